//! Row A20 and the rest of what backends can get wrong; framing of responses.

use super::*;

fn response_violation(bytes: &[u8]) -> Violation {
    match response(bytes) {
        Err(violation) => violation,
        Ok(_) => panic!("accepted: {}", bytes.escape_ascii()),
    }
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# If it is in a response message received by a proxy, the proxy MUST
//# close the connection to the server, discard the received response, and
//# send a 502 (Bad Gateway) response to the client.
#[test]
fn a20_ambiguous_framing_of_a_response_is_refused() {
    for (fields, violation) in [
        ("content-length: 5\r\ncontent-length: 6\r\n", Violation::ContentLengthRepeated),
        ("content-length: 5\r\ncontent-length: 5\r\n", Violation::ContentLengthRepeated),
        ("content-length: 5, 5\r\n", Violation::ContentLengthSyntax),
        ("content-length: \r\n", Violation::ContentLengthSyntax),
        ("content-length: -1\r\n", Violation::ContentLengthSyntax),
        ("content-length: \t5\r\n", Violation::ContentLengthSyntax),
        ("content-length: 5\r\ntransfer-encoding: chunked\r\n", Violation::TwoBodyLengths),
        ("transfer-encoding: gzip\r\n", Violation::TransferEncodingSyntax),
        ("transfer-encoding: chunked, chunked\r\n", Violation::TransferEncodingSyntax),
        ("transfer-encoding: gzip, chunked\r\n", Violation::TransferEncodingUnsupported),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", Violation::TransferEncodingRepeated),
        ("x: a\r\n b\r\n", Violation::LineFolding),
        ("x : a\r\n", Violation::FieldNameSyntax),
        ("x: a\0\r\n", Violation::FieldValueSyntax),
        ("x: a\rset-cookie: b\r\n", Violation::BareCarriageReturn),
        ("x: a\nset-cookie: b\r\n", Violation::BareLineFeed),
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        assert_eq!(response_violation(bytes.as_bytes()), violation, "{fields:?}");
    }
    let old = response_violation(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(old, Violation::TransferEncodingVersion);
}

#[test]
fn a20_padding_before_a_length_is_taken_from_servers_that_align_it() {
    let head = response(b"HTTP/1.1 200 OK\r\nContent-Length:       13 \r\n\r\n").unwrap();
    assert_eq!(head.body(), BodyLength::Length(13));
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# Any response to a HEAD request and any response with a 1xx
//# (Informational), 204 (No Content), or 304 (Not Modified) status code is
//# always terminated by the first empty line after the header fields
#[test]
fn a20_statuses_without_body_have_none_whatever_the_fields_say() {
    let body = |method, text: &str| {
        response_to(method, text.as_bytes()).map(|head| (head.body(), head.declared_length()))
    };
    assert_eq!(
        body(Method::Get, "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n"),
        Ok((BodyLength::None, Some(9)))
    );
    assert_eq!(
        body(Method::Get, "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n"),
        Ok((BodyLength::None, None))
    );
    assert_eq!(
        body(Method::Head, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"),
        Ok((BodyLength::None, Some(9)))
    );
    assert_eq!(
        body(Method::Head, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        Ok((BodyLength::None, None))
    );
    assert_eq!(body(Method::Get, "HTTP/1.1 204 No Content\r\n\r\n"), Ok((BodyLength::None, None)));
    assert_eq!(
        body(Method::Get, "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"),
        Ok((BodyLength::None, None))
    );
    for text in [
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 100 Continue\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 5\r\n\r\n",
    ] {
        assert_eq!(body(Method::Get, text), Err(Violation::BodyNotAllowed), "{text:?}");
    }
    assert_eq!(
        body(Method::Get, "HTTP/1.1 204 x\r\ncontent-length: x\r\n\r\n"),
        Err(Violation::ContentLengthSyntax)
    );
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# Otherwise, this is a response message without a declared message
//# body length, so the message body length is determined by the
//# number of octets received prior to the server closing the
//# connection.
#[test]
fn a_response_without_declared_length_ends_with_the_connection() {
    let head = response(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    assert_eq!((head.body(), head.keep_alive()), (BodyLength::UntilClose, false));
    let head = response(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    assert_eq!((head.body(), head.keep_alive()), (BodyLength::Chunked, true));
    let head = response(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n").unwrap();
    assert_eq!((head.body(), head.keep_alive()), (BodyLength::Length(13), true));
    let head = response(b"HTTP/1.0 200 OK\r\ncontent-length: 13\r\n\r\n").unwrap();
    assert!(!head.keep_alive());
    let head = response(b"HTTP/1.0 200 OK\r\ncontent-length: 13\r\nconnection: keep-alive\r\n\r\n").unwrap();
    assert!(head.keep_alive());
}

#[test]
fn a20_a_status_line_with_anything_odd_is_refused() {
    for (line, violation) in [
        ("HTTP/1.1 099 X\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 20 OK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 2000 OK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 2x0 OK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1  200 OK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1\t200 OK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 200\tOK\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 200 O\0K\r\n", Violation::StatusLineSyntax),
        ("HTTP/1.1 200 O\rset-cookie: a\r\n", Violation::BareCarriageReturn),
        ("HTTP/1.1 200 OK\nset-cookie: a\r\n", Violation::BareLineFeed),
        ("HTTP/2.0 200 OK\r\n", Violation::VersionUnsupported),
        ("HTTP/1.2 200 OK\r\n", Violation::VersionUnsupported),
        ("http/1.1 200 OK\r\n", Violation::StatusLineSyntax),
        ("ICY 200 OK\r\n", Violation::StatusLineSyntax),
        ("\r\nHTTP/1.1 200 OK\r\n", Violation::StatusLineSyntax),
        ("helloHTTP/1.1 200 OK\r\n", Violation::StatusLineSyntax),
    ] {
        let bytes = format!("{line}content-length: 0\r\n\r\n");
        assert_eq!(response_violation(bytes.as_bytes()), violation, "{line:?}");
    }
    let mut long = b"HTTP/1.1 200 ".to_vec();
    long.resize(8194, b'x');
    assert_eq!(response_violation(&long), Violation::StatusLineTooLong);
}

#[test]
fn the_reason_may_be_empty_missing_or_latin() {
    for (line, status, reason) in [
        ("HTTP/1.1 200 OK", 200, "OK"),
        ("HTTP/1.1 200 ", 200, ""),
        ("HTTP/1.1 200", 200, ""),
        ("HTTP/1.1 404 Nicht gefunden \u{fc}\tx", 404, "Nicht gefunden \u{fc}\tx"),
        ("HTTP/1.1 999 Odd", 999, "Odd"),
    ] {
        let bytes = format!("{line}\r\ncontent-length: 0\r\n\r\n");
        let head = response(bytes.as_bytes()).unwrap();
        assert_eq!((head.status(), head.reason(bytes.as_bytes())), (status, reason.as_bytes()), "{line:?}");
    }
}

#[test]
fn a17_interim_responses_are_told_from_final_ones() {
    for (status, interim, tunnel) in
        [(100, true, false), (102, true, false), (103, true, false), (200, false, false)]
    {
        let bytes = format!("HTTP/1.1 {status} X\r\n\r\n");
        let head = response(bytes.as_bytes()).unwrap();
        assert_eq!((head.is_interim(), head.is_tunnel()), (interim, tunnel));
    }
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.8
//= type=test
//# A server MUST NOT switch to a protocol that was not indicated by the
//# client in the corresponding request's Upgrade header field.
#[test]
fn a18_a_101_is_a_tunnel_only_for_the_protocol_that_was_asked_for() {
    let bytes = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n";
    let head = response(bytes).unwrap();
    assert!(head.is_tunnel() && !head.keep_alive() && !head.is_interim());
    assert!(head.accepts_upgrade(bytes, b"websocket"));
    assert!(!head.accepts_upgrade(bytes, b"foo"));
    for bytes in [
        &b"HTTP/1.1 101 Switching Protocols\r\n\r\n"[..],
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket, foo\r\n\r\n",
    ] {
        assert_eq!(response_violation(bytes), Violation::UpgradeNotNamed, "{}", bytes.escape_ascii());
    }
    // 200 is no upgrade, whatever fields it has.
    let bytes = b"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\ncontent-length: 0\r\n\r\n";
    let head = response(bytes).unwrap();
    assert!(!head.is_tunnel() && !head.accepts_upgrade(bytes, b"websocket"));
}

#[test]
fn a_successful_answer_to_connect_is_a_tunnel_and_a_refusal_is_not() {
    let head = response_to(Method::Connect, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").unwrap();
    assert!(head.is_tunnel() && !head.keep_alive());
    assert_eq!(head.body(), BodyLength::None);
    let head = response_to(Method::Connect, b"HTTP/1.1 403 No\r\ncontent-length: 5\r\n\r\n").unwrap();
    assert!(!head.is_tunnel());
    assert_eq!(head.body(), BodyLength::Length(5));
}

#[test]
fn a20_bytes_behind_a_response_keep_the_connection_out_of_the_pool() {
    use weir_http::h1::connection::Busy;
    let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 poison\r\n";
    let head = response(bytes).unwrap();
    let mut body = BodyReader::new(head.body(), &Limits::default());
    let step = body.advance(&bytes[head.head_bytes()..]).unwrap();
    assert!(step.complete);
    let unread = bytes.len() - head.head_bytes() - step.consumed;
    let sent = BodyReader::new(BodyLength::None, &Limits::default());
    let end =
        Busy::first("connection").finish(sent.drained().unwrap(), body.drained().unwrap(), true, unread);
    assert_eq!(end.err(), Some("connection"));
}
