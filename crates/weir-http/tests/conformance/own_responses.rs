//! Responses that Weir gives by itself.

use super::*;
use weir_http::h1::encode::{
    OwnResponse, error_response, redirect, simple_response, trace_response, write_continue,
};
use weir_http::{AddedField, Version};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_error_says_status_and_reason_word_and_whether_the_connection_stays() {
    let own = OwnResponse { request_id: b"i", ..OwnResponse::default() };
    assert_eq!(
        written(|out| error_response(503, "no_backend", Some(2), &own, out)),
        "HTTP/1.1 503 Service Unavailable\r\nx-request-id: i\r\nretry-after: 2\r\ncontent-type: text/plain; charset=utf-8\r\n\
         cache-control: no-store\r\ncontent-length: 35\r\nconnection: close\r\n\r\n503 Service Unavailable no_backend\n"
    );
    let own = OwnResponse { keep_alive: true, head_only: true, ..OwnResponse::default() };
    let text = written(|out| error_response(404, "no_route", None, &own, out));
    assert!(text.ends_with("content-length: 23\r\n\r\n") && !text.contains("connection"), "{text}");
}

#[test]
fn every_violation_makes_a_well_formed_error_response() {
    let mut words: Vec<_> = Violation::ALL.iter().map(|violation| violation.word()).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), Violation::ALL.len(), "words are told apart");
    for violation in Violation::ALL {
        assert!([400, 414, 417, 431, 501, 505].contains(&violation.status()), "{violation:?}");
        let text = violation.to_string();
        assert!(text.starts_with("found ") && text.contains("expected"), "{text}");
        let bytes = written(|out| {
            error_response(violation.status(), violation.word(), None, &OwnResponse::default(), out)
        });
        let head = response(bytes.as_bytes()).unwrap();
        assert_eq!((head.status(), head.keep_alive()), (violation.status(), false));
        assert_eq!(head.body(), BodyLength::Length((bytes.len() - head.head_bytes()) as u64));
        assert!(!head.reason(bytes.as_bytes()).is_empty());
    }
}

#[test]
fn routes_can_respond_and_redirect() {
    let own =
        OwnResponse { keep_alive: true, version: Version::Http10, date: b"now", ..OwnResponse::default() };
    let fields = [AddedField::replacing(b"content-type", b"text/plain").unwrap()];
    assert_eq!(
        written(|out| simple_response(200, &fields, b"ok\n", &own, out)),
        "HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: text/plain\r\ncontent-length: 3\r\nconnection: keep-alive\r\n\r\nok\n"
    );
    let own = OwnResponse { keep_alive: true, ..OwnResponse::default() };
    assert_eq!(
        written(|out| simple_response(204, &[], b"dropped", &own, out)),
        "HTTP/1.1 204 No Content\r\n\r\n"
    );
    assert_eq!(
        written(|out| redirect(308, b"https://shop.example/a", &[], &own, out)),
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: https://shop.example/a\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(written(write_continue), "HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn a_redirect_cannot_be_split() {
    let text = written(|out| redirect(302, b"/a\r\nset-cookie: x", &[], &OwnResponse::default(), out));
    assert!(text.starts_with("HTTP/1.1 500 ") && !text.contains("set-cookie"), "{text}");
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-9.3.8
//= type=test
//# A client MUST NOT generate fields in a TRACE request containing
//# sensitive data that might be disclosed by the response.
#[test]
fn a26_trace_echoes_nothing_that_could_be_secret() {
    let bytes = b"TRACE /x?y HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\nCookie: c\r\nAuthorization: z\r\nX-Key: k\r\nVia: 1.1 e\r\n\r\n";
    let head = request(bytes).unwrap();
    let own = OwnResponse { keep_alive: true, ..OwnResponse::default() };
    assert_eq!(
        written(|out| trace_response(&head, bytes, &own, out)),
        "HTTP/1.1 200 OK\r\ncontent-type: message/http\r\ncache-control: no-store\r\ncontent-length: 61\r\n\r\n\
         TRACE /x?y HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\nVia: 1.1 e\r\n\r\n"
    );
}
