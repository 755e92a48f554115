//! Rows A17, A18, A23, A24 and A26: what the other side gets to see.

use super::*;
use std::net::Ipv6Addr;
use weir_http::{
    AddedField, AddedFieldError, DroppedNames, FieldEdits, Query, ResponseContext, SentFraming, SetCookie,
    Underscores, Version, write_response,
};

const IDENTITY_LINES: &str = "via: 1.1 weir\r\nx-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: http\r\nx-real-ip: 203.0.113.7\r\n\
    x-forwarded-host: a\r\nforwarded: for=203.0.113.7;proto=http;host=\"a\"\r\nx-request-id: made-id\r\n";

#[test]
fn a_plain_request_keeps_its_fields_and_gains_the_identity_of_its_client() {
    assert_eq!(
        forwarded(b"GET /x?y HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nX-Other:  padded\t\r\nCookie: c\r\n\r\n"),
        format!(
            "GET /x?y HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nX-Other: padded\r\nCookie: c\r\n{IDENTITY_LINES}\r\n"
        )
    );
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
//= type=test
//# Intermediaries MUST parse a received Connection header field before a
//# message is forwarded and, for each connection-option in this field,
//# remove any header or trailer field(s) from the message with the same
//# name as the connection-option
#[test]
fn a23_connection_specific_fields_and_those_connection_names_are_removed() {
    let text = forwarded(
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Secret\r\nKeep-Alive: 5\r\nX-Secret: 1\r\nX-Kept: 2\r\n\
        Proxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\
        Proxy-Authorization: Basic x\r\nProxy: http://evil/\r\nx-SECRET: 3\r\n\r\n",
    );
    assert_eq!(text, format!("GET / HTTP/1.1\r\nHost: a\r\nX-Kept: 2\r\n{IDENTITY_LINES}\r\n"));
}

#[test]
fn a23_connection_can_never_remove_framing_host_authentication_or_identity() {
    let text = forwarded(
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Host, Content-Length, Authorization, Cookie, X-Forwarded-For, \
        Forwarded, Via, X-Request-Id, X-Forwarded-Proto, X-Forwarded-Host\r\nContent-Length: 4\r\n\
        Authorization: Basic x\r\nCookie: c\r\nX-Request-Id: theirs\r\n\r\n",
    );
    let identity = IDENTITY_LINES.replace("x-request-id: made-id\r\n", "");
    assert_eq!(
        text,
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nAuthorization: Basic x\r\nCookie: c\r\n\
             X-Request-Id: theirs\r\n{identity}\r\n"
        )
    );
}

#[test]
fn a24_a_client_that_is_not_trusted_cannot_say_who_it_is() {
    let text = forwarded(
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\n\
        X-Forwarded-Port: 443\r\nForwarded: for=10.0.0.1\r\nX-Real-IP: 10.0.0.1\r\nX-FORWARDED-FOR: 10.0.0.2\r\n\r\n",
    );
    assert_eq!(text, format!("GET / HTTP/1.1\r\nHost: a\r\n{IDENTITY_LINES}\r\n"));
}

#[test]
fn a24_underscore_twins_of_protected_names_are_dropped() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 1\r\nX-Forwarded_For: 1\r\nContent_Length: 5\r\n\
        Transfer_Encoding: chunked\r\nX_Real_Ip: 1\r\nAuthorization: z\r\nmy_field: 2\r\nX_From: 3\r\nx-from: 4\r\n\r\n";
    let kept = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: z\r\nmy_field: 2\r\nX_From: 3\r\nx-from: 4\r\n";
    assert_eq!(forwarded(bytes), format!("{kept}{IDENTITY_LINES}\r\n"));
    let keep = |context: &mut RequestContext<'_>| context.underscores = Underscores::Keep;
    assert!(forwarded_with(bytes, keep).contains("X_Forwarded_For: 1\r\n"));
    // A field that a rule sets is as good as an identity field.
    let dropped = DroppedNames::new(["X-From"]);
    let edits = Some(FieldEdits { dropped: &dropped, values: None, lines: b"X-From: weir\r\n" });
    let head = request(bytes).unwrap();
    let (identity, mut out) = (client(false), Vec::new());
    let context = RequestContext { edits, ..RequestContext::new(&identity, b"made-id") };
    write_request(&head, bytes, &context, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains(": 3") && !text.contains(": 4"), "{text}");
    assert!(text.ends_with("X-From: weir\r\n\r\n"), "{text}");
}

#[test]
fn a24_what_a_trusted_proxy_says_is_kept_and_appended_to() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n\
        X-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nForwarded: for=10.0.0.1\r\nVia: 1.1 edge\r\n\r\n";
    let head = request(bytes).unwrap();
    let mut out = Vec::new();
    write_request(&head, bytes, &RequestContext::new(&client(true), b"made-id"), &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nvia: 1.1 edge, 1.1 weir\r\n\
         x-forwarded-for: 10.0.0.1, 10.0.0.2, 203.0.113.7\r\nx-real-ip: 203.0.113.7\r\n\
         forwarded: for=10.0.0.1, for=203.0.113.7;proto=http;host=\"a\"\r\nx-request-id: made-id\r\n\r\n"
    );
}

//= https://www.rfc-editor.org/rfc/rfc7239#section-6
//= type=test
//# Note that an IPv6 address is always enclosed in square brackets
#[test]
fn an_ipv6_client_is_named_as_each_field_spells_it() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = request(bytes).unwrap();
    let named = |address: &str| {
        let address: Ipv6Addr = address.parse().unwrap();
        let identity = ClientIdentity::new(IpAddr::V6(address), Scheme::Https, false);
        let mut out = Vec::new();
        write_request(&head, bytes, &RequestContext::new(&identity, b"i"), &mut out);
        String::from_utf8(out).unwrap()
    };
    let text = named("2001:db8::7");
    assert!(text.contains("x-forwarded-for: 2001:db8::7\r\nx-forwarded-proto: https\r\n"), "{text}");
    assert!(text.contains("forwarded: for=\"[2001:db8::7]\";proto=https;host=\"a\"\r\n"), "{text}");
    assert!(named("::ffff:192.0.2.1").contains("x-forwarded-for: 192.0.2.1\r\n"));
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.3
//= type=test
//# A proxy MUST send an appropriate Via header field, as described below,
//# in each message that it forwards.
#[test]
fn via_names_the_received_version_and_extends_the_list() {
    let text = forwarded(b"GET / HTTP/1.1\r\nHost: a\r\nVia: 1.0 x\r\nVia:\r\nVIA: 1.1 y, 1.1 z\r\n\r\n");
    assert!(text.contains("\r\nvia: 1.0 x, 1.1 y, 1.1 z, 1.1 weir\r\n"), "{text}");
    assert!(forwarded(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n").contains("\r\nvia: 1.0 weir\r\n"));
}

#[test]
fn an_http_1_0_request_becomes_http_1_1_with_a_host() {
    let with_host = |context: &mut RequestContext<'_>| context.default_host = b"backend:80";
    let text = forwarded_with(b"GET /x HTTP/1.0\r\nAccept: */*\r\n\r\n", with_host);
    assert!(
        text.starts_with("GET /x HTTP/1.1\r\nhost: backend:80\r\nAccept: */*\r\nvia: 1.0 weir\r\n"),
        "{text}"
    );
    assert!(!text.contains("x-forwarded-host"));
}

#[test]
fn a13_an_absolute_target_is_forwarded_as_path_and_host() {
    let text = forwarded(b"GET http://a/x?y HTTP/1.1\r\nAccept: */*\r\nHost: A:80\r\n\r\n");
    assert!(text.starts_with("GET /x?y HTTP/1.1\r\nhost: a\r\nAccept: */*\r\nvia"), "{text}");
    assert!(
        forwarded(b"GET http://a?y HTTP/1.1\r\nHost: a\r\n\r\n")
            .starts_with("GET /?y HTTP/1.1\r\nhost: a\r\n")
    );
    assert!(
        forwarded(b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n")
            .starts_with("OPTIONS * HTTP/1.1\r\nhost: a\r\n")
    );
    assert!(
        forwarded(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("OPTIONS * HTTP/1.1\r\nHost: a\r\n")
    );
}

#[test]
fn a25_the_forwarded_path_is_the_one_that_was_matched() {
    let bytes = b"GET /a/../b%2f%41?q=%2e HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = request(bytes).unwrap();
    assert!(!head.path_is_plain());
    let path = weir_http::path::normalise(head.path(bytes)).unwrap();
    let (identity, mut out) = (client(false), Vec::new());
    let context = RequestContext { path: Some(&path), ..RequestContext::new(&identity, b"i") };
    write_request(&head, bytes, &context, &mut out);
    assert!(out.starts_with(b"GET /b%2FA?q=%2e HTTP/1.1\r\nHost: a\r\n"));
}

#[test]
fn a_backend_is_asked_with_the_query_and_by_the_host_that_the_caller_names() {
    let bytes = b"GET /a?b=1&c=2 HTTP/1.1\r\nHost: Shop.Test:80\r\nAccept: */*\r\n\r\n";
    let text = forwarded_with(bytes, |context| {
        context.query = Query::Of(Some(b"b=1"));
        context.host = Some(b"shop.test");
    });
    assert!(text.starts_with("GET /a?b=1 HTTP/1.1\r\nhost: shop.test\r\nAccept: */*\r\n"), "{text}");
    assert!(!text.contains("Shop") && text.contains("x-forwarded-host: shop.test\r\n"), "{text}");
    assert!(text.contains("host=\"shop.test\"\r\n"), "{text}");
    let text = forwarded_with(bytes, |context| context.query = Query::Of(None));
    assert!(text.starts_with("GET /a HTTP/1.1\r\nHost: Shop.Test:80\r\n"), "{text}");
    let absolute = b"GET http://Shop.Test/a?b HTTP/1.1\r\nHost: Shop.Test\r\n\r\n";
    let text = forwarded_with(absolute, |context| context.host = Some(b"shop.test"));
    assert!(text.starts_with("GET /a?b HTTP/1.1\r\nhost: shop.test\r\nvia"), "{text}");
}

#[test]
fn the_body_is_announced_once_and_as_a_plain_number() {
    let text = forwarded(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0042\r\n\r\n");
    assert!(
        text.contains("\r\ncontent-length: 42\r\n") && text.to_lowercase().matches("length").count() == 1,
        "{text}"
    );
    let text = forwarded(b"POST / HTTP/1.1\r\nTransfer-Encoding:CHUNKED\r\nHost: a\r\nTrailer: x\r\n\r\n");
    assert!(text.contains("\r\ntransfer-encoding: chunked\r\n") && !text.contains("CHUNKED"), "{text}");
    assert!(text.contains("\r\nTrailer: x\r\n"));
}

#[test]
fn a17_an_expectation_is_passed_on_only_when_the_proxy_asks_for_it() {
    let bytes = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    assert!(!forwarded(bytes).contains("xpect"));
    assert!(
        forwarded_with(bytes, |context| context.expect_continue = true)
            .contains("\r\nExpect: 100-continue\r\n")
    );
}

#[test]
fn a18_an_upgrade_is_passed_on_only_when_the_route_allows_it() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let text = forwarded(bytes);
    assert!(!text.contains("pgrade") && text.contains("Sec-WebSocket-Version: 13\r\n"), "{text}");
    let text = forwarded_with(bytes, |context| context.upgrade = true);
    assert!(text.ends_with("upgrade: websocket\r\nconnection: upgrade\r\n\r\n"), "{text}");
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n\r\n";
    let text = forwarded_with(bytes, |context| context.upgrade = true);
    assert!(!text.to_lowercase().contains("upgrade") && !text.contains("AAM"), "{text}");
}

#[test]
fn te_trailers_is_passed_on_as_connection_specific() {
    let text = forwarded(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: gzip;q=0.5, trailers\r\n\r\n");
    assert!(text.ends_with("te: trailers\r\nconnection: te\r\n\r\n"), "{text}");
    let text = forwarded_with(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", |context| context.close = true);
    assert!(text.ends_with("connection: close\r\n\r\n"), "{text}");
}

#[test]
fn a_request_id_is_passed_on_when_it_is_harmless_and_made_when_it_is_not() {
    let with = |value: &str| {
        forwarded(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: {value}\r\n\r\n").as_bytes())
    };
    assert!(with("abc-123_4.5").contains("\r\nX-Request-Id: abc-123_4.5\r\n"));
    for bad in ["", "a b", "a\"b", "<x>", &"a".repeat(129), "a\r\nX-Request-Id: b"] {
        let text = with(bad);
        assert!(text.contains("\r\nx-request-id: made-id\r\n") && !text.contains("X-Request-Id"), "{text}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.2
//= type=test
//# If the received value is zero (0), the recipient MUST NOT forward the
//# request; instead, the recipient MUST respond as the final recipient.
#[test]
fn a26_max_forwards_is_counted_down_for_trace_and_options_only() {
    let bytes = b"OPTIONS / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 5\r\n\r\n";
    assert_eq!(request(bytes).unwrap().max_forwards(), Some(5));
    let text = forwarded(bytes);
    assert!(text.ends_with("max-forwards: 4\r\n\r\n") && !text.contains("Max-Forwards"), "{text}");
    let bytes = b"TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n";
    assert_eq!(request(bytes).unwrap().max_forwards(), Some(0));
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n";
    assert_eq!(request(bytes).unwrap().max_forwards(), None);
    assert!(forwarded(bytes).contains("\r\nMax-Forwards: 0\r\n"));
    all_refused(
        Violation::MaxForwardsSyntax,
        &[
            b"TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: -1\r\n\r\n",
            b"TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 1\r\nMax-Forwards: 1\r\n\r\n",
        ],
    );
}

#[test]
fn added_fields_cannot_break_a_message() {
    assert_eq!(AddedField::new(b"x y", b"z"), Err(AddedFieldError::Name));
    assert_eq!(AddedField::new(b"", b"z"), Err(AddedFieldError::Name));
    assert_eq!(AddedField::new(b"x", b"z\r\ny: w"), Err(AddedFieldError::Value));
    assert_eq!(AddedField::new(b"x", b" z"), Err(AddedFieldError::Value));
    for name in [
        "Content-Length",
        "transfer-encoding",
        "Connection",
        "upgrade",
        "TE",
        "trailer",
        "keep-alive",
        "host",
    ] {
        assert_eq!(AddedField::new(name.as_bytes(), b"1"), Err(AddedFieldError::Reserved), "{name}");
    }
}

#[test]
fn a_backend_is_asked_by_another_host_and_told_of_the_clients() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: x\r\n\r\n";
    let dropped = DroppedNames::new(["x-forwarded-proto"]);
    let edits = Some(FieldEdits {
        dropped: &dropped,
        values: None,
        lines: b"x-forwarded-proto: https\r\naccept: \r\n",
    });
    let (head, identity, mut out) = (request(bytes).unwrap(), client(false), Vec::new());
    let context =
        RequestContext { edits, backend_host: Some(b"b.example"), ..RequestContext::new(&identity, b"i") };
    write_request(&head, bytes, &context, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("GET / HTTP/1.1\r\nhost: b.example\r\n"), "{text}");
    assert_eq!(text.to_ascii_lowercase().matches("\r\nhost: ").count(), 1);
    assert!(!text.contains("-proto: http\r\n") && text.contains("-proto: https\r\naccept: \r\n"), "{text}");
    assert!(text.contains("x-forwarded-host: a\r\n") && text.contains(";host=\"a\"\r\n"), "{text}");
    assert!(request(text.as_bytes()).is_ok(), "{text}");
}

#[test]
fn what_says_who_asks_is_made_anew_and_can_be_left_out() {
    let bytes =
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Real-Ip: 1.2.3.4\r\nX-Forwarded-Port: 1\r\nVia: 1.1 e\r\n\r\n";
    let head = request(bytes).unwrap();
    let written = |trusted: bool, of, edits| {
        let identity = client(trusted).at_port(8443);
        let context = RequestContext { client: of, edits, ..RequestContext::new(&identity, b"i") };
        let mut out = Vec::new();
        write_request(&head, bytes, &context, &mut out);
        String::from_utf8(out).unwrap()
    };
    let text = written(false, None, None);
    assert!(text.contains("x-real-ip: 203.0.113.7\r\nx-forwarded-port: 8443\r\n"), "{text}");
    assert!(!text.contains("1.2.3.4") && !text.contains("Port: 1\r\n"), "{text}");
    // A trusted proxy that passes on what clients say here is not believed in that.
    let text = written(true, Some(b"198.51.100.9"), None);
    assert!(text.contains("x-real-ip: 198.51.100.9\r\n") && !text.contains("1.2.3.4"), "{text}");
    assert!(text.contains("X-Forwarded-Port: 1\r\n") && !text.contains("8443"), "{text}");
    let dropped = DroppedNames::new(["forwarded", "x-real-ip", "x-forwarded-for"]).leaving_via();
    let text = written(false, None, Some(FieldEdits { dropped: &dropped, values: None, lines: b"" }));
    assert!(text.contains("\r\nVia: 1.1 e\r\n") && !text.contains("weir"), "{text}");
    assert!(!text.contains("\r\nforwarded") && !text.contains("203.0.113.7"), "{text}");
    assert!(text.contains("x-forwarded-port: 8443\r\n"), "{text}");
}

fn answered(context: ResponseContext<'_>, bytes: &[u8]) -> (String, SentFraming) {
    let head = response_to(context.request_method, bytes).unwrap();
    let mut out = Vec::new();
    let sent = write_response(&head, bytes, &context, &mut out);
    (String::from_utf8(out).unwrap(), sent)
}

fn to_11() -> ResponseContext<'static> {
    ResponseContext::new(Version::Http11, Method::Get, true)
}

fn to_10() -> ResponseContext<'static> {
    ResponseContext::new(Version::Http10, Method::Get, true)
}

#[test]
fn a_plain_response_keeps_its_fields_and_gains_via() {
    let (text, sent) = answered(
        to_11(),
        b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 13\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nETag: \"a\"\r\n\r\n",
    );
    assert_eq!(
        text,
        "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 13\r\nETag: \"a\"\r\nvia: 1.1 weir\r\n\r\n"
    );
    assert_eq!(sent, SentFraming { body: BodyLength::Length(13), keep_alive: true });
}

#[test]
fn a_response_of_http_1_0_or_without_reason_gets_a_status_line_of_ours() {
    let (text, _) = answered(to_11(), b"HTTP/1.0 404 Gone fishing\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(text, "HTTP/1.1 404 Gone fishing\r\ncontent-length: 0\r\nvia: 1.0 weir\r\n\r\n");
    let (text, _) = answered(to_11(), b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 \r\ncontent-length: 0\r\n"), "{text}");
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
//= type=test
//# A server MUST NOT send a response containing Transfer-Encoding unless
//# the corresponding request indicates HTTP/1.1 (or later minor revisions).
#[test]
fn bodies_without_length_are_chunked_for_http_1_1_and_end_with_the_connection_for_http_1_0() {
    for backend in [&b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\n\r\n"]
    {
        let (text, sent) = answered(to_11(), backend);
        assert_eq!(text, "HTTP/1.1 200 OK\r\nvia: 1.1 weir\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(sent, SentFraming { body: BodyLength::Chunked, keep_alive: true });
        let (text, sent) = answered(to_10(), backend);
        assert_eq!(text, "HTTP/1.1 200 OK\r\nvia: 1.1 weir\r\nconnection: close\r\n\r\n");
        assert_eq!(sent, SentFraming { body: BodyLength::UntilClose, keep_alive: false });
    }
    let (text, sent) = answered(to_10(), b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n");
    assert!(text.ends_with("connection: keep-alive\r\n\r\n") && sent.keep_alive, "{text}");
    let (text, sent) = answered(
        ResponseContext::new(Version::Http11, Method::Get, false),
        b"HTTP/1.1 204 No Content\r\n\r\n",
    );
    assert_eq!(text, "HTTP/1.1 204 No Content\r\nvia: 1.1 weir\r\nconnection: close\r\n\r\n");
    assert!(!sent.keep_alive);
}

#[test]
fn head_and_304_keep_their_length_and_204_does_not() {
    let to_head = ResponseContext::new(Version::Http11, Method::Head, true);
    let (text, sent) = answered(to_head, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n");
    assert!(text.contains("content-length: 9\r\n"));
    assert_eq!(sent, SentFraming { body: BodyLength::None, keep_alive: true });
    let (text, _) = answered(to_head, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(text, "HTTP/1.1 200 OK\r\nvia: 1.1 weir\r\n\r\n");
    let (text, _) = answered(to_11(), b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n");
    assert!(text.contains("content-length: 9\r\n"));
    let (text, _) = answered(to_11(), b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n");
    assert!(!text.contains("length"));
}

#[test]
fn a18_a_101_names_its_protocol_anew_and_interim_responses_carry_no_framing() {
    let (text, sent) = answered(
        to_11(),
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
    );
    assert_eq!(
        text,
        "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\nvia: 1.1 weir\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    );
    assert!(!sent.keep_alive);
    let context = ResponseContext { date: b"now", request_id: b"i", ..to_11() };
    let (text, _) = answered(context, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(text, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nvia: 1.1 weir\r\n\r\n");
}

#[test]
fn rules_and_stickiness_change_the_fields_of_responses() {
    let dropped = DroppedNames::new(["server"]);
    let edits =
        Some(FieldEdits { dropped: &dropped, values: None, lines: b"server: weir\r\nSet-Cookie: r=1\r\n" });
    let field = AddedField::new(b"set-cookie", b"weir=b1; path=/; httponly").unwrap();
    let sticky = SetCookie { field, is_private: false };
    let context = ResponseContext {
        edits,
        sticky: Some(&sticky),
        request_id: b"i",
        date: b"Sat, 21 Nov 2026 20:00:00 GMT",
        ..to_11()
    };
    let (text, _) =
        answered(context, b"HTTP/1.1 200 OK\r\nServer: x\r\nSet-Cookie: b=1\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(
        text,
        "HTTP/1.1 200 OK\r\nSet-Cookie: b=1\r\ncontent-length: 0\r\nvia: 1.1 weir\r\ndate: Sat, 21 Nov 2026 20:00:00 GMT\r\n\
         x-request-id: i\r\nserver: weir\r\nSet-Cookie: r=1\r\nset-cookie: weir=b1; path=/; httponly\r\n\r\n"
    );
    let (text, _) =
        answered(context, b"HTTP/1.1 200 OK\r\nDate: theirs\r\nX-Request-Id: j\r\ncontent-length: 0\r\n\r\n");
    assert!(text.contains("Date: theirs\r\n") && text.contains("X-Request-Id: j\r\n"));
    assert!(!text.contains("date: Sat") && !text.contains("x-request-id: i"), "{text}");
    let dropped = DroppedNames::new(["x-request-id", "x-powered-by", "server"]).leaving_via();
    let context = ResponseContext {
        edits: Some(FieldEdits { dropped: &dropped, values: None, lines: b"" }),
        ..context
    };
    let (text, _) = answered(
        context,
        b"HTTP/1.1 200 OK\r\nServer: x\r\nX-Powered-By: y\r\nVia: 1.1 z\r\nX-Powered: w\r\ncontent-length: 0\r\n\r\n",
    );
    assert_eq!(
        text,
        "HTTP/1.1 200 OK\r\nVia: 1.1 z\r\nX-Powered: w\r\ncontent-length: 0\r\ndate: Sat, 21 Nov 2026 20:00:00 GMT\r\n\
         set-cookie: weir=b1; path=/; httponly\r\n\r\n"
    );
}
