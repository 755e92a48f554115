//! Responses that Weir gives by itself.

use super::*;
use weir_http::h1::encode::write_continue;
use weir_http::{AddedField, DroppedNames, ErrorForm, FieldEdits, OwnAnswer, OwnResponse, Version};

fn own_answer(answer: OwnAnswer<'_>, own: &OwnResponse<'_>) -> String {
    written(|out| {
        answer.write(own, usize::MAX, out);
    })
}

fn error(status: u16, word: &str, retry_after_seconds: Option<u64>, own: &OwnResponse<'_>) -> String {
    own_answer(OwnAnswer::error(status, word, retry_after_seconds), own)
}

fn redirect(status: u16, location: &[u8], own: &OwnResponse<'_>) -> String {
    own_answer(OwnAnswer::Redirect { status, location }, own)
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn an_error_says_status_and_reason_word_and_whether_the_connection_stays() {
    let own = OwnResponse { request_id: b"i", ..OwnResponse::default() };
    assert_eq!(
        error(503, "no_backend", Some(2), &own),
        "HTTP/1.1 503 Service Unavailable\r\nx-request-id: i\r\nretry-after: 2\r\ncontent-type: text/plain; charset=utf-8\r\n\
         cache-control: no-store\r\ncontent-length: 35\r\nconnection: close\r\n\r\n503 Service Unavailable no_backend\n"
    );
    let own = OwnResponse { keep_alive: true, head_only: true, ..OwnResponse::default() };
    let text = error(404, "no_route", None, &own);
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
        let bytes = error(violation.status(), violation.word(), None, &OwnResponse::default());
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
    let fields = [AddedField::new(b"content-type", b"text/plain").unwrap()];
    assert_eq!(
        own_answer(OwnAnswer::Simple { status: 200, fields: &fields, body: b"ok\n" }, &own),
        "HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: text/plain\r\ncontent-length: 3\r\nconnection: keep-alive\r\n\r\nok\n"
    );
    let own = OwnResponse { keep_alive: true, ..OwnResponse::default() };
    assert_eq!(
        own_answer(OwnAnswer::Simple { status: 204, fields: &[], body: b"dropped" }, &own),
        "HTTP/1.1 204 No Content\r\n\r\n"
    );
    assert_eq!(
        redirect(308, b"https://shop.example/a", &own),
        "HTTP/1.1 308 Permanent Redirect\r\nlocation: https://shop.example/a\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(written(write_continue), "HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn a_route_adds_its_fields_to_every_answer_and_changes_not_what_an_error_is() {
    let dropped =
        DroppedNames::new(["cache-control", "Content-Type", "retry-after", "location", "x-request-id"]);
    let lines =
        b"access-control-allow-origin: *\r\ncache-control: max-age=31536000\r\nContent-Type: text/html\r\n\
        retry-after: 9\r\nlocation: /elsewhere\r\nx-request-id: route\r\n";
    let edits = Some(FieldEdits { dropped: &dropped, values: None, lines });
    let own = OwnResponse { keep_alive: true, request_id: b"i", edits, ..OwnResponse::default() };
    assert_eq!(
        error(429, "rate_limited", Some(1), &own),
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: text/plain; charset=utf-8\r\ncache-control: no-store\r\n\
         access-control-allow-origin: *\r\nlocation: /elsewhere\r\nx-request-id: route\r\ncontent-length: 35\r\n\r\n\
         429 Too Many Requests rate_limited\n"
    );
    let fields = [AddedField::new(b"content-type", b"text/plain").unwrap()];
    assert_eq!(
        own_answer(OwnAnswer::Simple { status: 200, fields: &fields, body: b"ok\n" }, &own),
        "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\ncache-control: max-age=31536000\r\nContent-Type: text/html\r\n\
         retry-after: 9\r\nlocation: /elsewhere\r\nx-request-id: route\r\ncontent-length: 3\r\n\r\nok\n"
    );
    let redirect = redirect(308, b"/a", &own);
    assert!(redirect.contains("\r\nlocation: /a\r\n") && !redirect.contains("/elsewhere"), "{redirect}");
}

#[test]
fn an_error_is_said_as_its_client_reads_it() {
    let own = OwnResponse { keep_alive: true, request_id: b"i-1", ..OwnResponse::default() };
    let said = |status, form, own: &OwnResponse<'_>| {
        let answer =
            OwnAnswer::Error { status, word: "no_backend", retry_after_seconds: None, form, fields: &[] };
        assert_eq!(answer.status(), if matches!(form, ErrorForm::Grpc { .. }) { 200 } else { status });
        own_answer(answer, own)
    };
    assert_eq!(
        said(503, ErrorForm::Problem, &own),
        "HTTP/1.1 503 Service Unavailable\r\nx-request-id: i-1\r\ncontent-type: application/problem+json\r\n\
         cache-control: no-store\r\ncontent-length: 107\r\n\r\n\
         {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"reason\":\"no_backend\",\"request_id\":\"i-1\",\"status\":503}\n"
    );
    let odd = OwnResponse { request_id: b"\"},{\\", ..own };
    let text = said(599, ErrorForm::Problem, &odd);
    assert!(
        text.ends_with("{\"type\":\"about:blank\",\"reason\":\"no_backend\",\"status\":599}\n"),
        "{text}"
    );
    assert_eq!(
        said(503, ErrorForm::Grpc { is_web: false, is_late: false }, &own),
        "HTTP/1.1 200 OK\r\nx-request-id: i-1\r\ncontent-type: application/grpc\r\ncache-control: no-store\r\n\
         grpc-status: 14\r\ngrpc-message: 503 Service Unavailable no_backend\r\ncontent-length: 0\r\n\r\n"
    );
    let statuses =
        [(400, 13), (401, 16), (403, 7), (404, 12), (413, 2), (429, 14), (500, 2), (502, 14), (504, 14)];
    for (status, code) in statuses {
        let text = said(status, ErrorForm::Grpc { is_web: true, is_late: false }, &own);
        assert!(text.contains(&format!("\r\ngrpc-status: {code}\r\n")), "{text}");
        assert!(text.contains("\r\ncontent-type: application/grpc-web+proto\r\n"), "{text}");
    }
    let page = ErrorForm::Page { content_type: "text/html; charset=utf-8", body: b"<p>Sorry</p>" };
    let text = said(404, page, &own);
    assert!(
        text.starts_with("HTTP/1.1 404 Not Found\r\n") && text.ends_with("\r\n\r\n<p>Sorry</p>"),
        "{text}"
    );
    assert!(text.contains("\r\ncontent-length: 12\r\n") && text.contains("\r\ncache-control: no-store\r\n"));
    let head = OwnResponse { head_only: true, ..own };
    for form in [page, ErrorForm::Problem, ErrorForm::Text] {
        let (with, without) = (said(404, form, &own), said(404, form, &head));
        assert!(without.ends_with("\r\n\r\n") && with.starts_with(&without), "{without}");
    }
}

#[test]
fn an_error_in_the_place_of_another_keeps_what_its_status_needs() {
    let field = |name: &str, value: &str| AddedField::new(name.as_bytes(), value.as_bytes()).unwrap();
    let fields = [field("www-authenticate", "Basic"), field("Retry-After", "7"), field("allow", "GET")];
    let answer = |status| OwnAnswer::Error {
        status,
        word: "answered",
        retry_after_seconds: Some(1),
        form: ErrorForm::Text,
        fields: &fields,
    };
    let text = own_answer(answer(405), &OwnResponse::default());
    assert!(text.contains("\r\nwww-authenticate: Basic\r\nRetry-After: 7\r\nallow: GET\r\n"), "{text}");
    assert!(!text.contains("retry-after: 1") && !text.contains("allow: GET, HEAD"), "{text}");
}

#[test]
fn a_redirect_cannot_be_split() {
    let text = redirect(302, b"/a\r\nset-cookie: x", &OwnResponse::default());
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
        own_answer(OwnAnswer::Trace { head: &head, buffer: bytes }, &own),
        "HTTP/1.1 200 OK\r\ncontent-type: message/http\r\ncache-control: no-store\r\ncontent-length: 61\r\n\r\n\
         TRACE /x?y HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\nVia: 1.1 e\r\n\r\n"
    );
}
