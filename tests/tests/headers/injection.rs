//! What clients send can end no field and begin no other (threat A27).

use weir_tests::dialogue::Backend;
use weir_tests::dialogue::http2::{Http2, Outcome, headers};

use super::{ask, asked, before, talkative};

const RULES: &str = r#"
pool = "app"
http = ["h1", "h2"]
[listener.web.set_request_header]
x-all = "$path|$query|$query.q|$cookie.c|$header.x-odd"
x-end = "$header.x-odd"
[listener.web.set_response_header]
x-echo = "$path$query|$cookie.c|$header.x-odd"
"#;

#[test]
fn a27_what_is_percent_encoded_stays_so_in_a_value() {
    let backend = talkative();
    let weir = before(&backend, RULES, "");
    let head = "GET /a%0Ab%20c?q=%0d%0aset-cookie:%20x=1 HTTP/1.1\r\nhost: a\r\ncookie: c=%0d%0ax: y\r\n\r\n";
    let response = ask(&weir, head);
    // A path with an encoded control byte is not forwarded at all.
    assert_eq!(response.status, 400);
    assert!(response.fields.all("set-cookie").is_empty(), "{:?}", response.fields);
    let head = head.replace("%0Ab", "b");
    let fields = asked(&weir, &backend, &head);
    let value = "/ab%20c|?q=%0d%0aset-cookie:%20x=1|%0d%0aset-cookie:%20x=1|%0d%0ax: y|";
    assert_eq!(fields.all("x-all"), [value]);
    assert!(fields.all("set-cookie").is_empty() && fields.all("x").is_empty(), "{fields:?}");
    let echoed = ask(&weir, &head).fields;
    assert_eq!(echoed.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(echoed.all("x-echo").len(), 1);
}

#[test]
fn a27_bytes_that_end_a_line_do_not_come_into_a_value_in_http_1() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, RULES, "");
    for odd in ["a\rx-admin: 1", "a\nx-admin: 1", "a\0b", "a\x0bb", "a\x7fb"] {
        let response = ask(&weir, &format!("GET / HTTP/1.1\r\nhost: a\r\nx-odd: {odd}\r\n\r\n"));
        // A line that ends earlier is another field of the client's own, or none.
        assert!(response.fields.all("x-admin").is_empty(), "{odd:?}: {:?}", response.fields);
        let echoed = response.fields.all("x-echo").join("");
        assert!(!echoed.contains("x-admin") && !echoed.contains('\0'), "{odd:?}: {echoed:?}");
    }
    for request in backend.requests() {
        assert!(!request.fields.all("x-all").join("").contains("admin"), "{:?}", request.fields);
    }
    // A tab is a control byte that a value may have; what Weir writes has none.
    let fields = asked(&weir, &backend, "GET / HTTP/1.1\r\nhost: a\r\nx-odd: a\tb\r\n\r\n");
    assert_eq!(fields.all("x-end"), ["a b"]);
}

#[test]
fn a27_bytes_that_end_a_line_do_not_come_into_a_value_in_http_2() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, RULES, "");
    for odd in ["a\r\nx-admin: 1", "a\nx-admin: 1", "a\0b"] {
        let mut client = Http2::client(weir.client("web"), &[]);
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a"), ("x-odd", odd)];
        client.sends(headers(1, &fields, true));
        let outcome = client.outcome_of(1);
        assert!(!matches!(outcome, Outcome::Answered(200, _)), "{odd:?}: {outcome:?}");
    }
    assert!(backend.requests().is_empty());
}

#[test]
fn a27_a_value_with_whitespace_at_its_end_is_trimmed_before_it_is_sent() {
    let backend = Backend::saying("ok");
    let rules = "pool = \"app\"\nset_request_header = { x-two = \"$header.x-a $header.x-b\" }";
    let weir = before(&backend, rules, "");
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nx-a: one\r\n\r\n");
    client.receives_status(200);
    let head = backend.requests().pop().expect("a request").head;
    assert!(head.contains("x-two: one\r\n"), "{head}");
}
