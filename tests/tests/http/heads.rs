//! Request heads that break the rules or the limits are refused before a backend sees them (threats A8 to
//! A15, A22, A26).

use weir_tests::dialogue::{Backend, NO_PROBES, Setup, one_pool};

use super::refusal::{Case, case, case_of, never_forwarded};
use super::{PLAIN, plain};

fn with_line(line: &[u8]) -> Vec<u8> {
    [line, b"\r\nhost: a\r\n\r\n"].concat()
}

fn with_fields(fields: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nhost: a\r\n", fields, b"\r\n\r\n"].concat()
}

#[test]
fn a_line_that_does_not_end_in_crlf_is_refused() {
    // A8
    never_forwarded(&[
        case("LF behind the request line", "GET / HTTP/1.1\nhost: a\r\n\r\n"),
        case("LF behind a field", "GET / HTTP/1.1\r\nhost: a\nx: y\r\n\r\n"),
        case("LF everywhere", "GET / HTTP/1.1\nhost: a\n\n"),
        case("LF as the empty line", "GET / HTTP/1.1\r\nhost: a\r\n\n\r\n\r\n"),
        case("CR behind the request line", "GET / HTTP/1.1\rhost: a\r\n\r\n"),
        case("CR behind a field", "GET / HTTP/1.1\r\nhost: a\rx: y\r\n\r\n"),
        case("CR and another byte", "GET / HTTP/1.1\r\nhost: a\r\nx: y\rXz: y\r\n\r\n"),
        case("CR inside a value", "GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n"),
        case("CR CR LF", "GET / HTTP/1.1\r\nhost: a\r\nx: a\r\r\n\r\n"),
    ]);
}

#[test]
fn a_folded_field_is_refused() {
    // A9
    never_forwarded(&[
        case("folded with a space", with_fields(b"x: a\r\n b")),
        case("folded with a tab", with_fields(b"x: a\r\n\tb")),
        case("a folded host", "GET / HTTP/1.1\r\nhost:\r\n a\r\n\r\n"),
        case("an empty folded line", with_fields(b"x: a\r\n \r\ny: b")),
    ]);
}

#[test]
fn a_field_line_without_a_clean_name_is_refused() {
    // A10, A11
    let fields: &[(&str, &[u8])] = &[
        ("space before the colon", b"x : y"),
        ("tab before the colon", b"x\t: y"),
        ("no colon", b"xyz"),
        ("empty name", b": y"),
        ("NUL in the name", b"x\0z: y"),
        ("control byte in the name", b"x\x01z: y"),
        ("non-ASCII name", b"x\xe9: y"),
        ("space inside the name", b"x z: y"),
        ("parenthesis in the name", b"x(z): y"),
        ("quote in the name", b"\"x\": y"),
        ("slash in the name", b"x/z: y"),
        ("at in the name", b"x@z: y"),
        ("brackets in the name", b"x[z]: y"),
        ("DEL in the name", b"x\x7f: y"),
    ];
    let mut cases: Vec<Case> = fields.iter().map(|(name, field)| case(name, with_fields(field))).collect();
    cases.push(case("space before the first field", "GET / HTTP/1.1\r\n host: a\r\n\r\n"));
    cases.push(case("tab before the first field", "GET / HTTP/1.1\r\n\thost: a\r\n\r\n"));
    never_forwarded(&cases);
}

#[test]
fn a_control_byte_in_a_field_value_is_refused() {
    // A11
    let mut cases = Vec::new();
    for byte in (0..0x20).filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n')).chain([0x7f]) {
        cases.push(case(
            &format!("byte {byte:#04x} in a value"),
            with_fields(&[b"x: a", &[byte][..], b"b"].concat()),
        ));
    }
    never_forwarded(&cases);
}

#[test]
fn a_malformed_request_target_is_refused() {
    // A12
    let targets: &[(&str, &[u8])] = &[
        ("fragment", b"/a#b"),
        ("only a fragment", b"#"),
        ("fragment in absolute form", b"http://a/#b"),
        ("space", b"/a b"),
        ("two spaces behind the method", b" /a"),
        ("tab", b"/a\tb"),
        ("non-ASCII", b"/caf\xc3\xa9"),
        ("byte 0xff", b"/\xff"),
        ("NUL", b"/a\0b"),
        ("no leading slash", b"a"),
        ("no leading slash, dots", b"../a"),
        ("empty", b""),
        ("query alone", b"?a=b"),
        ("asterisk for GET", b"*"),
        ("unknown scheme", b"ftp://a/"),
        ("file scheme", b"file:///etc/passwd"),
        ("no authority", b"http:///a"),
        ("authority form for GET", b"a:80"),
        ("backslash", b"\\a"),
        ("angle brackets", b"/<a>"),
        ("quote", b"/\"a\""),
    ];
    let cases: Vec<Case> = targets
        .iter()
        .map(|(name, target)| case(name, with_line(&[b"GET ", *target, b" HTTP/1.1"].concat())))
        .collect();
    never_forwarded(&cases);
}

#[test]
fn an_absolute_target_with_userinfo_or_another_host_is_not_believed() {
    // A13
    never_forwarded(&[
        case("userinfo", "GET http://user:secret@a/ HTTP/1.1\r\nhost: a\r\n\r\n"),
        case("userinfo without password", "GET http://user@a/ HTTP/1.1\r\nhost: a\r\n\r\n"),
        case("empty userinfo", "GET http://@a/ HTTP/1.1\r\nhost: a\r\n\r\n"),
    ]);
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET http://inner/path HTTP/1.1\r\nhost: outer\r\n\r\n");
    match client.receives_response().status {
        400 => assert!(backend.requests().is_empty()),
        200 => assert_eq!(backend.requests()[0].fields.all("host"), ["inner"]),
        other => panic!("expected 400, or 200 for the host of the target; got {other}"),
    }
}

#[test]
fn an_absolute_target_reaches_the_backend_in_origin_form() {
    // A13
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    for (target, expected) in
        [("http://shop.example/a?b=c", "/a?b=c"), ("http://shop.example/", "/"), ("http://shop.example", "/")]
    {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: shop.example\r\n\r\n"));
        client.receives_status(200);
        let request = backend.requests().pop().expect("a request");
        assert_eq!(
            (request.target.as_str(), request.fields.one("host")),
            (expected, Some("shop.example")),
            "{target}"
        );
    }
}

#[test]
fn a_missing_repeated_or_malformed_host_is_refused() {
    // A14
    let mut cases = vec![
        case("no host", "GET / HTTP/1.1\r\n\r\n"),
        case("no host but another field", "GET / HTTP/1.1\r\nx: y\r\n\r\n"),
        case("two hosts", "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
        case("the same host twice", "GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n"),
        case("no host with an absolute target", "GET http://a/ HTTP/1.1\r\n\r\n"),
    ];
    let hosts = [
        "a b", "a/b", "a@b", "user@a", "a#b", "a?b", "[::1", "::1", "a:b", "a:80:80", "a\\b", "<a>",
        "a:99999", "a%zz",
    ];
    for host in hosts {
        cases.push(case(&format!("host {host:?}"), format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")));
    }
    never_forwarded(&cases);
}

#[test]
fn any_version_but_1_1_and_1_0_is_refused() {
    // A15
    const STATUSES: &[u16] = &[400, 505];
    let versions = [
        "HTTP/1.2",
        "HTTP/1.10",
        "HTTP/1.01",
        "HTTP/2.0",
        "HTTP/3",
        "HTTP/0.9",
        "http/1.1",
        "HTTP/1.",
        "HTTP/11",
        "HTTP/1,1",
        "HTP/1.1",
        "HTTP/1.1x",
        "HTTP/ 1.1",
        "HTTP/1.1 ",
        "HTTP/+1.1",
        "ICAP/1.0",
        "RTSP/1.0",
    ];
    let mut cases: Vec<Case> = versions
        .iter()
        .map(|version| case_of(version, with_line(format!("GET / {version}").as_bytes()), STATUSES))
        .collect();
    cases.push(case_of("no version", "GET /\r\n\r\n", STATUSES));
    cases.push(case_of("no version, host behind it", "GET /\r\nhost: a\r\n\r\n", STATUSES));
    cases.push(case_of("the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", STATUSES));
    cases.push(case_of("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", STATUSES));
    never_forwarded(&cases);
}

#[test]
fn a_malformed_method_is_refused() {
    never_forwarded(&[
        case("no method", with_line(b" / HTTP/1.1")),
        case("a control byte in the method", with_line(b"GE\x01T / HTTP/1.1")),
        case("a colon in the method", with_line(b"GET: / HTTP/1.1")),
        case("non-ASCII method", with_line(b"G\xc9T / HTTP/1.1")),
        case_of(
            "a method of 9000 bytes",
            with_line(&[&[b'A'; 9000][..], b" / HTTP/1.1"].concat()),
            &[400, 414, 501],
        ),
        case("only empty lines", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"),
    ]);
}

#[test]
fn a_head_over_its_limits_is_refused_before_it_ends() {
    // A22: the request must be refused at the limit, so none of these ever ends.
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    never_forwarded(&[
        case_of("request line over 8 KiB", format!("GET /{}", "a".repeat(9000)), &[414]),
        case_of("request line of 1 MiB", format!("GET /{}", "a".repeat(1 << 20)), &[414]),
        case_of("query over 8 KiB", format!("GET /?{}", "a".repeat(9000)), &[414]),
        case_of(
            "one field over 64 KiB",
            format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "b".repeat(70_000)),
            &[431],
        ),
        case_of(
            "one field name over 64 KiB",
            format!("GET / HTTP/1.1\r\nhost: a\r\n{}", "b".repeat(70_000)),
            &[431],
        ),
        case_of("200 fields", format!("GET / HTTP/1.1\r\nhost: a\r\n{many}"), &[431]),
    ]);
}

#[test]
fn a_head_at_its_limits_is_served() {
    // A22: the limits are inclusive.
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let path = "a".repeat(8192 - "GET / HTTP/1.1".len());
    let fields: String = (0..99).map(|n| format!("x-{n}: y\r\n")).collect();
    for request in [
        format!("GET /{path} HTTP/1.1\r\nhost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"),
    ] {
        let mut client = weir.client("web");
        client.sends(&request);
        client.receives_status(200);
    }
}

#[test]
fn configured_limits_replace_the_defaults() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(&one_pool(
        r#"limits = { request_line = "256B", header = "1KiB", header_count = 10 }"#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start();
    let fields: String = (0..10).map(|n| format!("x-{n}: y\r\n")).collect();
    for (request, status) in [
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(300)), 414),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "b".repeat(1100)), 431),
        (format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"), 431),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n\r\n".to_owned(), 200),
    ] {
        let mut client = weir.client("web");
        client.sends(&request);
        client.receives_status(status);
    }
    weir.reaches("weir_rejected_total", &[("reason", "header_too_large")], 3.0);
}

#[test]
fn connect_is_refused() {
    // A26
    const STATUSES: &[u16] = &[400, 405, 501];
    never_forwarded(&[
        case_of("CONNECT", "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", STATUSES),
        case_of(
            "CONNECT with early data",
            "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
            STATUSES,
        ),
        case_of("CONNECT with a path", "CONNECT /a HTTP/1.1\r\nhost: a\r\n\r\n", STATUSES),
    ]);
}

#[test]
fn trace_never_echoes_secrets() {
    // A26; RFC 9110 §9.3.8
    let backend = Backend::serving(|request, wire| {
        // A backend that knows TRACE echoes what it was sent, which is why Weir must not send it secrets.
        wire.answers(200, &[("content-type", "message/http")], &request.head);
        weir_tests::dialogue::After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "TRACE / HTTP/1.1\r\nhost: a\r\nauthorization: Basic c2VjcmV0\r\ncookie: session=secret\r\n\r\n",
    );
    let response = client.receives_response();
    if response.status == 200 {
        let text = response.text();
        assert!(!text.contains("c2VjcmV0") && !text.contains("session=secret"), "echoed: {text}");
    } else {
        assert!(matches!(response.status, 405 | 501), "{response:?}");
    }
    let mut client = weir.client("web");
    client.sends("TRACE / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody");
    let status = client.receives_response().status;
    assert!(matches!(status, 400 | 405 | 501), "a TRACE with a body was answered {status}");
}

#[test]
fn a_refused_method_is_answered_with_those_that_are_allowed() {
    // RFC 9110 §15.5.6
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    for request in ["TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n"] {
        let mut client = weir.client("web");
        client.sends(request);
        let response = client.receives_status(405);
        let allowed = response.fields.one("allow").expect("an allow field");
        assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
        assert!(!allowed.contains("TRACE") && !allowed.contains("CONNECT"), "{allowed}");
    }
}

#[test]
fn a_request_that_comes_back_again_and_again_is_ended() {
    // A pool that leads back to its own listener: one request must not become a storm.
    let config = PLAIN.replace("\"@app\"", "\"@web\"");
    let weir = Setup::of(&config).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = client.receives_status(508);
    assert!(answer.text().contains("looped"), "{answer:?}");
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "looped")], 1.0);
    weir.reaches("weir_requests_total", &[("listener", "web"), ("code", "5xx")], 17.0);
    assert_eq!(weir.metric("weir_requests_total", &[("listener", "web"), ("code", "5xx")]), 17.0);
    // Sixteen times is more than the proxies of one service need, but eight may occur.
    let own = ["1.1 weir"; 8].join(", ");
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nvia: {own}\r\n\r\n"));
    client.receives_status(200);
}

#[test]
fn max_forwards_counts_down_and_stops_here_at_zero() {
    // A26; RFC 9110 §7.6.2
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("OPTIONS / HTTP/1.1\r\nhost: a\r\nmax-forwards: 5\r\n\r\n");
    client.receives_status(200);
    assert_eq!(backend.requests()[0].fields.one("max-forwards"), Some("4"));
    backend.forgets();
    let mut client = weir.client("web");
    client.sends("OPTIONS / HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n");
    let answer = client.receives_status(200);
    // RFC 9110 §9.3.7: what may be asked for, and no echo.
    assert!(answer.fields.one("allow").is_some_and(|methods| methods.contains("OPTIONS")), "{answer:?}");
    assert_eq!((answer.fields.one("content-length"), answer.fields.one("content-type")), (Some("0"), None));
    client.sends("TRACE /a HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n");
    let echo = client.receives_status(200);
    assert_eq!(echo.fields.one("content-type"), Some("message/http"));
    assert!(echo.text().starts_with("TRACE /a HTTP/1.1\r\n"), "{echo:?}");
    assert!(backend.requests().is_empty(), "forwarded beyond Max-Forwards: 0");
}

#[test]
fn a_method_nobody_knows_is_forwarded_as_it_is() {
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("PROPFIND /dav HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc");
    client.receives_status(200);
    let request = backend.requests().remove(0);
    assert_eq!(
        (request.method.as_str(), request.target.as_str(), &request.body[..]),
        ("PROPFIND", "/dav", &b"abc"[..])
    );
}

/// RFC 9110 §9.3.2: an answer to HEAD has no content, and neither has a refusal.
#[test]
fn a_refusal_of_head_has_no_content() {
    let backend = Backend::saying("hello");
    let weir = plain(&backend);
    let long = format!("HEAD /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(20_000));
    let many = format!("HEAD / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(2_000));
    let requests = [
        ("400", "HEAD /a#b HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("400", "HEAD / HTTP/1.1\r\n\r\n"),
        ("400", "HEAD / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n"),
        ("505", "HEAD / HTTP/9.9\r\nhost: a\r\n\r\n"),
        ("414", &long),
        ("431", &many),
    ];
    for (status, request) in requests {
        let mut client = weir.client("web");
        let _ = client.tries_to_send(request);
        let answer = String::from_utf8_lossy(&client.receives_to_the_end()).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (head, content) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(content.is_empty() && head.contains("content-length: "), "{answer}");
    }
    assert_eq!(backend.served(), 0);
}
