//! Requests that HTTP/2 could carry and HTTP/1.1 would understand otherwise (threats B9 to B13, B16).

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Http2, Outcome, PREFACE, block, code, frame, get, headers, kind, request,
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
    // What the decoder leaves out is not compared with routes and not forwarded either.
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &[GET, HTTP, HOST, (":path", "/a#b")], true));
    client.outcome_of(1);
    assert!(backend.requests().iter().all(|request| !request.target.contains('#')));
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
    for trailers in [&[("X-Upper", "1")][..], &[("x", "a\r\nb")], &[("connection", "close")]] {
        let outcome = asks(trailers);
        assert!(
            matches!(outcome, Outcome::Reset(..) | Outcome::GoneAway(_) | Outcome::Answered(400, _)),
            "{trailers:?}: {outcome:?}"
        );
    }
    assert_eq!(backend.served(), 0, "{:?}", backend.requests());
    // The decoder leaves the names of a request's line out where it does not refuse them.
    for trailers in [&[(":path", "/b")][..], &[("x-fine", "1"), (":status", "200")]] {
        asks(trailers);
    }
    for seen in backend.requests() {
        assert!(seen.target == "/" && seen.trailers.0.iter().all(|(name, _)| name == "x-fine"), "{seen:?}");
    }
    backend.forgets();
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
