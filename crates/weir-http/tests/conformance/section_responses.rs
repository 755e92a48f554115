//! Responses of HTTP/2 backends become heads, or are refused (RFC 9113 §8.1, §8.3.2).

use super::*;
use weir_http::{Asked, ResponseBuilder, ResponseContext, Version, write_response};

fn answered(
    asked: Asked<'_>,
    fields: &[(&str, &str)],
    end_stream: bool,
) -> Result<(ResponseHead, Vec<u8>), Violation> {
    let (mut head, mut text) = (ResponseHead::new(), Vec::new());
    let limits = Limits::default();
    let mut builder = ResponseBuilder::new(Version::Http2, &limits, asked, &mut head, &mut text);
    for (name, value) in fields {
        builder.field(name.as_bytes(), value.as_bytes())?;
    }
    builder.finish(end_stream)?;
    Ok((head, text))
}

fn to(method: Method) -> Asked<'static> {
    Asked { method, upgrade: None }
}

fn body_of(method: Method, fields: &[(&str, &str)], end_stream: bool) -> Result<BodyLength, Violation> {
    answered(to(method), fields, end_stream).map(|(head, _)| head.body())
}

#[test]
fn a_response_becomes_the_text_that_means_the_same_in_http_1() {
    let fields = [
        (":status", "404"),
        ("content-type", "text/plain"),
        ("content-length", "3"),
        ("set-cookie", "a"),
        ("set-cookie", "b"),
    ];
    let (head, text) = answered(to(Method::Get), &fields, false).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&text),
        "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 3\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n"
    );
    assert_eq!((head.status(), head.reason(&text), head.version()), (404, &b"Not Found"[..], Version::Http2));
    assert_eq!((head.body(), head.declared_length()), (BodyLength::Length(3), Some(3)));
    assert!(head.is_complete() && head.keep_alive() && !head.is_tunnel());
    let mut out = Vec::new();
    write_response(&head, &text, &ResponseContext::new(Version::Http11, Method::Get, true), &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        String::from_utf8_lossy(&text).replace("\r\n\r\n", "\r\nvia: 2 weir\r\n\r\n")
    );
}

#[test]
fn a_response_ends_where_status_method_and_stream_say() {
    // B10; RFC 9113 §8.1.1
    let ok: &[(&str, &str)] = &[(":status", "200")];
    let length: &[(&str, &str)] = &[(":status", "200"), ("content-length", "5")];
    assert_eq!(body_of(Method::Get, ok, false), Ok(BodyLength::UntilClose));
    assert_eq!(body_of(Method::Get, ok, true), Ok(BodyLength::Length(0)));
    assert_eq!(body_of(Method::Get, length, false), Ok(BodyLength::Length(5)));
    assert_eq!(body_of(Method::Get, length, true), Err(Violation::BodyTooShort));
    assert_eq!(body_of(Method::Head, length, true), Ok(BodyLength::None));
    assert_eq!(body_of(Method::Head, ok, true), Ok(BodyLength::None));
    assert_eq!(
        body_of(Method::Get, &[(":status", "304"), ("content-length", "5")], true),
        Ok(BodyLength::None)
    );
    assert_eq!(body_of(Method::Get, &[(":status", "204")], true), Ok(BodyLength::None));
    assert_eq!(
        body_of(Method::Get, &[(":status", "204"), ("content-length", "5")], true),
        Err(Violation::BodyNotAllowed)
    );
    let twice = [(":status", "200"), ("content-length", "5"), ("content-length", "5")];
    assert_eq!(body_of(Method::Get, &twice, false), Err(Violation::ContentLengthRepeated));
    // A client of HTTP/1.1 would wait for the connection to close.
    let (head, text) = answered(to(Method::Get), ok, true).unwrap();
    let mut out = Vec::new();
    write_response(&head, &text, &ResponseContext::new(Version::Http11, Method::Get, true), &mut out);
    assert!(String::from_utf8_lossy(&out).contains("\r\ncontent-length: 0\r\n"));
}

#[test]
fn only_one_status_of_three_digits_comes_first() {
    // RFC 9113 §8.3.2
    for (value, violation) in [
        ("", Violation::StatusSyntax),
        ("20", Violation::StatusSyntax),
        ("099", Violation::StatusSyntax),
        ("2000", Violation::StatusSyntax),
        ("2x0", Violation::StatusSyntax),
        ("+20", Violation::StatusSyntax),
        ("200 ", Violation::FieldValuePadded),
        ("101", Violation::StatusNotAllowed),
    ] {
        assert_eq!(body_of(Method::Get, &[(":status", value)], true), Err(violation), "{value:?}");
    }
    for (fields, violation) in [
        (&[][..], Violation::PseudoFieldMissing),
        (&[("x", "y")], Violation::PseudoFieldMissing),
        (&[("x", "y"), (":status", "200")], Violation::PseudoFieldMissing),
        (&[(":status", "200"), (":status", "200")], Violation::PseudoFieldRepeated),
        (&[(":status", "200"), (":path", "/")], Violation::PseudoFieldUnknown),
        (&[(":status", "200"), ("x", "y"), (":path", "/")], Violation::PseudoFieldLate),
        (&[(":status", "200"), ("connection", "close")], Violation::ConnectionField),
        (&[(":status", "200"), ("transfer-encoding", "chunked")], Violation::ConnectionField),
        (&[(":status", "200"), ("te", "trailers")], Violation::ConnectionField),
        (&[(":status", "200"), ("x", "a\r\nb")], Violation::FieldValueSyntax),
        (&[(":status", "200"), ("X", "a")], Violation::FieldNameUppercase),
    ] {
        assert_eq!(body_of(Method::Get, fields, true), Err(violation), "{fields:?}");
    }
}

#[test]
fn an_interim_response_does_not_end_the_stream() {
    // RFC 9113 §8.1
    let (head, _) = answered(to(Method::Get), &[(":status", "103"), ("link", "</x>")], false).unwrap();
    assert!(head.is_interim());
    assert_eq!(body_of(Method::Get, &[(":status", "100")], true), Err(Violation::StatusNotAllowed));
}

#[test]
fn a_2xx_to_an_extended_connect_is_an_accepted_upgrade() {
    // RFC 8441 §5
    let asked = Asked { method: Method::Get, upgrade: Some(b"websocket") };
    let fields = [(":status", "200"), ("sec-websocket-protocol", "chat")];
    let (head, text) = answered(asked, &fields, false).unwrap();
    assert_eq!(head.status(), 101);
    assert!(head.is_tunnel() && head.accepts_upgrade(&text, b"websocket") && head.body().is_empty());
    let mut out = Vec::new();
    write_response(&head, &text, &ResponseContext::new(Version::Http11, Method::Get, true), &mut out);
    let seen = response(&out).unwrap();
    assert!(seen.accepts_upgrade(&out, b"websocket"));
    let refused = answered(asked, &[(":status", "403")], true).unwrap().0;
    assert_eq!((refused.status(), refused.is_tunnel()), (403, false));
}
