//! Requests that HTTP/2 could carry and HTTP/1.1 would understand otherwise (threats B9 to B13, B16).

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Http2, Outcome, PREFACE, block, code, frame, get, headers, kind, literal,
    request,
};
use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir, until};

use super::{BOTH, both, connect};

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Fails unless the request is refused, by the stream's end, the connection's or a status of ours.
fn refuses(weir: &Weir, fields: Fields<'_>, body: Option<&[u8]>) {
    let mut client = connect(weir, b"");
    client.sends(headers(1, fields, body.is_none()));
    if let Some(body) = body {
        client.sends(frame(kind::DATA, END_STREAM, 1, body));
    }
    let outcome = client.outcome_of(1);
    let refused = matches!(
        outcome,
        Outcome::Answered(400 | 405 | 431 | 501, _)
            | Outcome::Reset(code::PROTOCOL_ERROR, None)
            | Outcome::GoneAway(code::PROTOCOL_ERROR)
    );
    assert!(refused, "{fields:?} {body:?}: {outcome:?}");
}

/// A GET with one more field.
fn refuses_field(weir: &Weir, name: &str, value: &str) {
    let mut fields = request("GET", "/").to_vec();
    fields.push((name, value));
    refuses(weir, &fields, None);
}

#[test]
fn b9_stream_numbers_and_states_that_cannot_be_end_the_connection() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let ended = |bytes: Vec<u8>| {
        let mut client = connect(&weir, b"");
        client.sends(bytes);
        client.receives_the_end().0
    };
    assert_eq!(ended(get(2, "/")), Some(code::PROTOCOL_ERROR), "an even number");
    assert_eq!(ended([get(5, "/"), get(3, "/")].concat()), Some(code::PROTOCOL_ERROR), "a lower number");
    assert_eq!(ended(frame(kind::DATA, 0, 1, b"x")), Some(code::PROTOCOL_ERROR), "content on an idle stream");
    assert_eq!(
        ended(frame(kind::RST_STREAM, 0, 1, &[0; 4])),
        Some(code::PROTOCOL_ERROR),
        "reset of an idle one"
    );
    assert_eq!(ended(frame(kind::HEADERS, 5, 0, &block(&request("GET", "/")))), Some(code::PROTOCOL_ERROR));
    assert_eq!(ended(frame(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2])), Some(code::PROTOCOL_ERROR), "a push");
    let ended_short = ended(frame(kind::PING, 0, 0, b"short"));
    assert!(matches!(ended_short, Some(code::FRAME_SIZE_ERROR | code::PROTOCOL_ERROR)), "{ended_short:?}");
    let mut client = connect(&weir, b"");
    assert!(matches!(client.asks(1, "/"), Outcome::Answered(200, _)));
    client.sends(frame(kind::DATA, 0, 1, b"more"));
    let ended = client.outcome_of(1);
    let expected = [Outcome::Reset(code::STREAM_CLOSED, None), Outcome::GoneAway(code::STREAM_CLOSED)];
    assert!(expected.contains(&ended), "{ended:?}");
    let _ = client.wire.tries_to_send([get(1, "/again"), get(3, "/")].concat());
    client.outcome_of(3);
    assert!(backend.requests().iter().all(|request| request.target == "/"));
}

#[test]
fn b10_content_that_is_not_as_long_as_declared_is_never_a_whole_request() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    for (declared, body) in [("5", &b"abc"[..]), ("3", b"abcde"), ("1", b"")] {
        let mut fields = request("POST", "/").to_vec();
        fields.push(("content-length", declared));
        refuses(&weir, &fields, Some(body));
    }
    for length in ["+5", "0x5", "5, 5", "", "5 ", "99999999999999999999"] {
        let mut fields = request("POST", "/").to_vec();
        fields.push(("content-length", length));
        refuses(&weir, &fields, Some(b"abcde"));
    }
    let mut twice = request("POST", "/").to_vec();
    twice.extend([("content-length", "5"), ("content-length", "6")]);
    refuses(&weir, &twice, Some(b"abcde"));
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
}

#[test]
fn b10_nothing_beyond_the_declared_length_reaches_a_backend_that_is_being_sent_to() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(BOTH).with("app", backend.address()).start();
    let mut client = connect(&weir, b"");
    let mut fields = request("POST", "/").to_vec();
    fields.push(("content-length", "10"));
    client.sends(headers(1, &fields, false));
    client.sends(frame(kind::DATA, 0, 1, b"12345"));
    let mut wire = backend.accepts();
    wire.receives_until("\r\n\r\n12345");
    client.sends(frame(kind::DATA, END_STREAM, 1, b"67890GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"));
    let rest = String::from_utf8_lossy(&wire.receives_to_the_end()).into_owned();
    assert!(rest.is_empty() || rest == "67890", "{rest:?}");
    let outcome = client.outcome_of(1);
    assert!(
        matches!(outcome, Outcome::Reset(code::PROTOCOL_ERROR, None) | Outcome::Answered(400, _)),
        "{outcome:?}"
    );
}

#[test]
fn b10_fields_of_http_1_connections_are_never_forwarded() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let fields = [
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("connection", "close"),
        ("connection", "x-a"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("te", "trailers, chunked"),
    ];
    for (name, value) in fields {
        refuses_field(&weir, name, value);
    }
    let mut chunked = request("POST", "/").to_vec();
    chunked.push(("transfer-encoding", "chunked"));
    refuses(&weir, &chunked, Some(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"));
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
}

#[test]
fn b11_names_and_values_that_http_1_could_not_carry_are_never_forwarded() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let names = ["", "X-Upper", "x a", "x:a", "x\r\ny", "x\0", "x\u{7f}", "x\u{e9}", ":unknown", "x\ty"];
    for name in names {
        refuses_field(&weir, name, "v");
    }
    let values = ["a\r\nx-smuggled: 1", "a\nb", "a\rb", "a\0b", " a", "a ", "\ta", "a\t", "a\u{1}b"];
    for value in values {
        refuses_field(&weir, "x-value", value);
    }
    for path in ["/a\r\nx-smuggled: 1", "/a b", "/a\0", "/ HTTP/1.1\r\nhost: b\r\n\r\n"] {
        refuses(&weir, &request("GET", path), None);
    }
    for method in ["GET / HTTP/1.1\r\nx: y", "G T", "", "GET\0"] {
        refuses(&weir, &request(method, "/"), None);
    }
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
}

#[test]
fn b12_pseudo_headers_that_leave_a_doubt_are_never_forwarded() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    const GET: (&str, &str) = (":method", "GET");
    const HTTP: (&str, &str) = (":scheme", "http");
    const HOST: (&str, &str) = (":authority", "a.test");
    const PATH: (&str, &str) = (":path", "/");
    let cases: &[Fields<'_>] = &[
        &[HTTP, HOST, PATH],
        &[GET, HOST, PATH],
        &[GET, HTTP, HOST],
        &[GET, HTTP, PATH],
        &[GET, HTTP, HOST, PATH, ("host", "b.test")],
        &[GET, HTTP, HOST, PATH, ("host", "a.test"), ("host", "b.test")],
        &[GET, HTTP, HOST, PATH, PATH],
        &[GET, GET, HTTP, HOST, PATH],
        &[GET, HTTP, HOST, HOST, PATH],
        &[GET, HTTP, HOST, ("x", "y"), PATH],
        &[GET, HTTP, HOST, PATH, (":status", "200")],
        &[GET, HTTP, HOST, (":path", "")],
        &[GET, HTTP, HOST, (":path", "a")],
        &[GET, HTTP, HOST, (":path", "*")],
        &[GET, HTTP, HOST, (":path", "http://b.test/")],
        &[GET, HTTP, (":authority", "user@a.test"), PATH],
        &[GET, HTTP, (":authority", "a.test/b"), PATH],
        &[GET, HTTP, (":authority", "a.test b"), PATH],
        &[GET, HTTP, (":authority", ""), PATH],
        &[GET, (":scheme", "http://b.test/?"), HOST, PATH],
        &[GET, (":scheme", ""), HOST, PATH],
        &[(":method", "CONNECT"), HOST],
    ];
    for fields in cases {
        refuses(&weir, fields, None);
    }
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &[GET, HTTP, HOST, PATH, ("host", "a.test")], true));
    assert!(matches!(client.outcome_of(1), Outcome::Answered(200, _)), "the same host twice says it once");
    assert_eq!(backend.requests()[0].fields.one("host"), Some("a.test"));
}

/// `name: value` with both in Huffman codes, as they come, behind `prefix`.
fn coded(prefix: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let text = |bytes: &[u8]| [&[0x80 | bytes.len() as u8][..], bytes].concat();
    [&[prefix][..], &text(name), &text(value)].concat()
}

/// RFC 9113 §8.3.1: `:path` is path and query. The decoder cuts a fragment off, and with it a query that
/// stands behind it.
#[test]
fn b12_a_path_with_a_fragment_is_refused_however_it_is_written() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    // `:path` and `/a#b?c` in Huffman codes (RFC 7541 appendix B).
    const PATH: &[u8] = &[0xb9, 0x58, 0xd3, 0x3f];
    const VALUE: &[u8] = &[0x60, 0x7f, 0xf5, 0x1f, 0xf8, 0x4f];
    let value = &[&[0x80 | VALUE.len() as u8][..], VALUE].concat();
    let others = block(&[(":method", "GET"), (":scheme", "http"), (":authority", "a.test")]);
    let good = |stream| {
        let fields = [&others[..], &block(&[(":path", "/good")])].concat();
        frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields)
    };
    let paths = [
        ("plain", literal(0, b":path", b"/a#b?c")),
        ("at its end", literal(0, b":path", b"/a#")),
        ("plain, never to be indexed", literal(0x10, b":path", b"/a#b?c")),
        ("by the name in the static table", [&[0x04, 6][..], b"/a#b?c"].concat()),
        ("in Huffman codes", coded(0, PATH, VALUE)),
        ("in Huffman codes, by the name in the static table", [&[0x05][..], value].concat()),
        ("put into the table", literal(0x40, b":path", b"/a#b?c")),
        ("put into the table, in Huffman codes", [&[0x44][..], value].concat()),
    ];
    for (name, path) in paths {
        let is_kept = path[0] & 0xc0 == 0x40;
        let mut client = connect(&weir, b"");
        let fields = [&others[..], &path].concat();
        // In one frame, and cut anywhere.
        client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &fields));
        let outcome = client.outcome_of(1);
        assert!(matches!(outcome, Outcome::Answered(400, _)), "{name}: {outcome:?}");
        let cut = fields.len() - path.len() / 2;
        client.sends(frame(kind::HEADERS, END_STREAM, 3, &fields[..cut]));
        client.sends(frame(kind::CONTINUATION, END_HEADERS, 3, &fields[cut..]));
        let outcome = client.outcome_of(3);
        assert!(matches!(outcome, Outcome::Answered(..)), "{name}: {outcome:?}");
        if is_kept {
            // What was put into the table last, and its name for another value.
            client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 5, &[&others[..], &[0xbe]].concat()));
            let outcome = client.outcome_of(5);
            assert!(matches!(outcome, Outcome::Answered(..)), "{name}: {outcome:?}");
            let named = [&others[..], &[0x0f, 0x2f, 6], b"/a#b?c"].concat();
            client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 7, &named));
            let outcome = client.outcome_of(7);
            assert!(matches!(outcome, Outcome::Answered(..)), "{name}: {outcome:?}");
        }
        assert!(backend.requests().is_empty(), "{name}: {:?}", backend.requests());
        // The connection serves on, and knows its own requests from those.
        client.sends(good(9));
        let outcome = client.outcome_of(9);
        assert!(
            matches!(&outcome, Outcome::Answered(_, content) if content == b"hello"),
            "{name}: {outcome:?}"
        );
        backend.forgets();
    }
}

#[test]
fn a_refusal_of_head_has_no_content() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let long = format!("/{}", "a".repeat(20_000));
    for (status, path) in [(400, "/a#b"), (400, "/%00"), (414, long.as_str())] {
        let mut client = connect(&weir, b"");
        client.sends(large_headers(1, &request("HEAD", path)));
        assert_eq!(client.outcome_of(1), Outcome::Answered(status, Vec::new()), "{status}");
    }
    assert_eq!(backend.served(), 0);
}

/// A head without content, in as many frames as it takes.
fn large_headers(stream: u32, fields: Fields<'_>) -> Vec<u8> {
    let fields = block(fields);
    let (first, rest) = fields.split_at(fields.len().min(16_384));
    let flags = END_STREAM | if rest.is_empty() { END_HEADERS } else { 0 };
    let mut bytes = frame(kind::HEADERS, flags, stream, first);
    if !rest.is_empty() {
        bytes.extend(frame(kind::CONTINUATION, END_HEADERS, stream, rest));
    }
    bytes
}

#[test]
fn b12_a_number_sign_elsewhere_is_no_fragment() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let mut client = connect(&weir, b"");
    let mut fields = block(&request("GET", "/a%23b"));
    fields.extend(literal(0x40, b"x-note", b"/a#b"));
    // `referer`, named by the static table, with `/a#b?c` in Huffman codes.
    fields.extend([0x73, 0x86, 0x60, 0x7f, 0xf5, 0x1f, 0xf8, 0x4f]);
    client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &fields));
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    let seen = &backend.requests()[0];
    assert_eq!((seen.target.as_str(), seen.fields.one("x-note")), ("/a%23b", Some("/a#b")));
    assert_eq!(seen.fields.one("referer"), Some("/a#b?c"));
}

/// RFC 9113 §8.3.1 lets a client leave `:authority` out; `host` names the authority then.
#[test]
fn b12_host_without_authority_names_the_host() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/x?y"), ("host", "a.test")];
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &fields, true));
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    let seen = &backend.requests()[0];
    assert_eq!((seen.target.as_str(), seen.fields.one("host")), ("/x?y", Some("a.test")));
    let twice = [&fields[..], &[("host", "b.test")]].concat();
    refuses(&weir, &twice, None);
    let malformed = [&fields[..3], &[("host", "a.test/b")]].concat();
    refuses(&weir, &malformed, None);
    assert_eq!(backend.served(), 1);
}

#[test]
fn b13_trailers_that_frame_authenticate_or_pretend_to_be_a_head_are_refused_or_left_out() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let asks = |trailers: Fields<'_>| {
        let mut client: Http2 = connect(&weir, b"");
        client.sends(headers(1, &request("POST", "/"), false));
        client.sends(frame(kind::DATA, 0, 1, b"body"));
        client.sends(headers(1, trailers, true));
        client.outcome_of(1)
    };
    let refused: [Fields<'_>; 6] = [
        &[("X-Upper", "1")],
        &[("x", "a\r\nb")],
        &[("connection", "close")],
        &[(":path", "/b")],
        &[(":status", "200"), ("x-fine", "1")],
        &[(":unknown", "1")],
    ];
    for trailers in refused {
        let outcome = asks(trailers);
        assert!(
            matches!(outcome, Outcome::Reset(..) | Outcome::GoneAway(_) | Outcome::Answered(400, _)),
            "{trailers:?}: {outcome:?}"
        );
    }
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
    let kept = asks(&[
        ("x-sum", "1"),
        ("content-length", "4"),
        ("host", "b"),
        ("authorization", "x"),
        ("cookie", "c"),
    ]);
    assert!(matches!(kept, Outcome::Answered(200, _)), "{kept:?}");
    let seen = &backend.requests()[0];
    assert_eq!(seen.trailers.0, [("x-sum".to_owned(), "1".to_owned())]);
}

/// RFC 9113 §8.1: the decoder leaves such fields out where it does not refuse them.
#[test]
fn b13_a_request_whose_trailers_have_pseudo_headers_is_refused_however_they_are_written() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    let trailers = [
        ("of the static table", vec![0x84]),
        ("named by the static table", [&[0x04, 2][..], b"/b"].concat()),
        ("put into the table", literal(0x40, b":path", b"/b")),
        // `:path` and `/b`.
        ("in Huffman codes", coded(0, &[0xb9, 0x58, 0xd3, 0x3f], &[0x62, 0x3f])),
        // The first request's `:authority`.
        ("of the dynamic table", vec![0xbe]),
        ("behind a field", [&literal(0, b"x-fine", b"1")[..], &[0x84]].concat()),
    ];
    for (name, fields) in trailers {
        let mut client = connect(&weir, b"");
        let mut head = block(&[(":method", "POST"), (":scheme", "http"), (":path", "/")]);
        head.extend([0x41, 6]);
        head.extend(b"a.test");
        client.sends(frame(kind::HEADERS, END_HEADERS, 1, &head));
        client.sends(frame(kind::DATA, 0, 1, b"body"));
        client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &fields));
        let outcome = client.outcome_of(1);
        assert!(
            matches!(outcome, Outcome::Reset(..) | Outcome::GoneAway(_) | Outcome::Answered(400, _)),
            "{name}: {outcome:?}"
        );
        until("what was begun to be broken off", || (backend.busy() == 0).then_some(()));
        assert_eq!(backend.served(), 0, "{name}: {:?}", backend.requests());
    }
}

#[test]
fn b16_http2_is_spoken_only_where_it_is_configured() {
    let backend = Backend::saying("hello");
    let weir = Setup::of(
        r#"
        [listener.old]
        bind = "@old"
        pool = "app"
        [listener.new]
        bind = "@new"
        http = ["h2"]
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    let mut client = weir.client("old");
    client.sends([PREFACE, &frame(kind::SETTINGS, 0, 0, b""), &get(1, "/")].concat());
    let answer = String::from_utf8_lossy(&client.receives_to_the_end()).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 505"), "{answer}");
    let mut client = weir.client("new");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = client.receives_to_the_end();
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
    assert_eq!(backend.served(), 0);
    // Broken off within the preface, on a listener for both.
    let weir = both(&backend);
    let mut client = weir.client("web");
    client.sends([&PREFACE[..20], b"XX\r\n"].concat());
    client.receives_to_the_end();
    until("the session to be gone", || (backend.served() == 0).then_some(()));
}

#[test]
fn b11_a_head_that_no_table_explains_ends_the_connection() {
    let backend = Backend::saying("hello");
    let weir = both(&backend);
    // An index that nobody defined, an endless integer, a Huffman string that is all padding.
    for fields in
        [&[0xff, 0x7f][..], &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x00, 0x81, 0xff, 0x81, 0xff]]
    {
        let mut client = connect(&weir, b"");
        client.sends(frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, fields));
        let (goaway, resets) = client.receives_the_end();
        assert!(goaway.is_some_and(|code| code != 0), "{fields:?}: {goaway:?} {resets:?}");
    }
    assert_eq!(backend.served(), 0);
}
