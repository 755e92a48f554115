//! Requests that are malformed (RFC 9114 §4.1.2): answered 400, and their streams end with H3_MESSAGE_ERROR.

use weir_tests::dialogue::http3::{Http3, Outcome, code, frame, headers, kind, request};
use weir_tests::dialogue::quic;
use weir_tests::dialogue::{Backend, Weir, until};

use super::{Authority, authority, site, start};

type Fields<'a> = &'a [(&'a str, &'a str)];

struct Scene {
    authority: Authority,
    backend: Backend,
    weir: Weir,
}

impl Scene {
    fn new() -> Scene {
        let (authority, backend) = (authority(), site());
        let weir = start(&authority, &backend);
        Scene { authority, backend, weir }
    }

    fn connect(&self) -> Http3 {
        let trust = quic::trusting(self.authority.path("ca.pem").as_ref());
        Http3::connect(self.weir.address("web"), "shop.example", &trust)
    }
}

/// What became of a stream: the status that came on it, and the codes that ended either side.
fn ends_of(client: &mut Http3, stream: u64) -> (u16, Option<u64>, Option<u64>) {
    let got = client.quic.receives_stream(stream);
    let (status, _) = weir_tests::dialogue::http3::response(&got.bytes);
    (status, got.reset, got.stopped)
}

#[test]
fn c3_a_malformed_request_is_answered_400_and_its_stream_ends_with_h3_message_error() {
    const GET: (&str, &str) = (":method", "GET");
    const HTTPS: (&str, &str) = (":scheme", "https");
    const HOST: (&str, &str) = (":authority", "shop.example");
    const PATH: (&str, &str) = (":path", "/");
    let cases: [(&str, Fields<'_>); 10] = [
        ("a pseudo-header twice", &[GET, GET, HTTPS, HOST, PATH]),
        ("no method", &[HTTPS, HOST, PATH]),
        ("no path", &[GET, HTTPS, HOST]),
        ("an empty path", &[GET, HTTPS, HOST, (":path", "")]),
        ("a pseudo-header of responses", &[GET, HTTPS, HOST, PATH, (":status", "200")]),
        ("one that nobody knows", &[GET, HTTPS, HOST, PATH, (":unknown", "x")]),
        ("one behind a field", &[GET, HTTPS, HOST, ("x", "y"), PATH]),
        ("an upper-case name", &[GET, HTTPS, HOST, PATH, ("X-Upper", "y")]),
        ("a field of connections", &[GET, HTTPS, HOST, PATH, ("connection", "close")]),
        ("a fragment", &[GET, HTTPS, HOST, (":path", "/a#b?c")]),
    ];
    let scene = Scene::new();
    let mut client = scene.connect();
    for (n, (name, fields)) in cases.into_iter().enumerate() {
        let stream = 4 * n as u64;
        client.requests(stream, &headers(fields));
        let (status, reset, _) = ends_of(&mut client, stream);
        assert_eq!((status, reset), (400, Some(code::MESSAGE_ERROR)), "{name}");
    }
    // One whose end has not come is not read on either.
    let stream = 4 * 20;
    client.begins(stream, 0, &headers(&[GET, GET, HTTPS, HOST, PATH]), false);
    assert_eq!(ends_of(&mut client, stream), (400, Some(code::MESSAGE_ERROR), Some(code::MESSAGE_ERROR)));
    // The connection serves on.
    let stream = 4 * 21;
    assert_eq!(client.asks(stream, "/"), Outcome::Answered(200, b"hello".to_vec()));
    assert_eq!(scene.backend.served(), 1);
}

#[test]
fn c3_content_and_trailers_that_make_a_request_malformed_end_its_stream_with_h3_message_error() {
    let scene = Scene::new();
    let mut client = scene.connect();
    let post = |length: &'static str| {
        let mut fields = request("POST", "/").to_vec();
        fields.push(("content-length", length));
        headers(&fields)
    };
    let data = |content: &[u8]| frame(kind::DATA, content);
    let cases = [
        ("no content", post("5")),
        ("less content", [post("5"), data(b"abc")].concat()),
        ("more content", [post("3"), data(b"abcdef")].concat()),
        // Without a declared length: a backend of HTTP/1.1 has the whole of a request when it has that much.
        (
            "a pseudo-header in trailers",
            [headers(&request("POST", "/")), data(b"abc"), headers(&[(":path", "/b")])].concat(),
        ),
    ];
    for (n, (name, bytes)) in cases.into_iter().enumerate() {
        let stream = 4 * n as u64;
        client.requests(stream, &bytes);
        let (status, reset, _) = ends_of(&mut client, stream);
        assert_eq!((status, reset), (400, Some(code::MESSAGE_ERROR)), "{name}");
    }
    until("what was begun to be broken off", || (scene.backend.busy() == 0).then_some(()));
    assert_eq!(scene.backend.served(), 0);
}

/// What is only too much is well formed: its answer ends as answers do.
#[test]
fn a_request_that_is_only_too_large_is_answered_and_not_reset() {
    let scene = Scene::new();
    let mut client = scene.connect();
    let long = format!("/{}", "a".repeat(20_000));
    client.requests(0, &headers(&request("GET", &long)));
    let (status, reset, _) = ends_of(&mut client, 0);
    assert_eq!((status, reset), (414, None));
}

#[test]
fn a_refusal_of_head_has_no_content() {
    let scene = Scene::new();
    let mut client = scene.connect();
    let long = format!("/{}", "a".repeat(20_000));
    for (n, (status, path)) in [(400, "/a#b"), (400, "/%00"), (414, long.as_str())].into_iter().enumerate() {
        let stream = 4 * n as u64;
        let mut fields = request("HEAD", path);
        // Whatever comes first.
        fields.rotate_left(n);
        client.requests(stream, &headers(&fields));
        let got = client.quic.receives_stream(stream);
        assert_eq!(weir_tests::dialogue::http3::response(&got.bytes), (status, Vec::new()));
    }
}
