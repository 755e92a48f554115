//! Rows A1 to A4 and A16: where a request's body ends.

use super::*;

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# If a message is received with both a Transfer-Encoding and a
//# Content-Length header field, the Transfer-Encoding overrides the
//# Content-Length.
#[test]
fn a1_a_request_with_two_body_lengths_is_refused_in_either_order() {
    all_refused(
        Violation::TwoBodyLengths,
        &[
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 4\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\ntransfer-encoding:\r\n\r\n",
        ],
    );
    assert_eq!(Violation::TwoBodyLengths.status(), 400);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# If a Transfer-Encoding header field is present in a request and
//# the chunked transfer coding is not the final encoding, the
//# message body length cannot be determined reliably; the server
//# MUST respond with the 400 (Bad Request) status code and then
//# close the connection.
#[test]
fn a2_anything_but_exactly_chunked_is_refused() {
    for value in [
        &b"xchunked"[..],
        b"chunkedx",
        b"chunked, identity",
        b"chunked, chunked",
        b"identity, chunked",
        b",chunked",
        b"chunked,",
        b", chunked",
        b"\tchunked",
        b"chunked\t",
        b"\x85chunked",
        b"chunked\x85",
        b"\xa0chunked",
        b"chunked\xa0",
        b"\"chunked\"",
        b"'chunked'",
        b"chunked;param",
        b"chunked;q=1",
        b"chunked, gzip",
        b"gzip",
        b"identity",
        b"",
        b"chu nked",
        b"chunked chunked",
    ] {
        let bytes = [b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: ", value, b"\r\n\r\n"].concat();
        assert_eq!(request_violation(&bytes), Violation::TransferEncodingSyntax, "{}", value.escape_ascii());
    }
    all_refused(
        Violation::FieldValueSyntax,
        &[
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\x0c\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\x00\r\n\r\n",
        ],
    );
    all_refused(
        Violation::TransferEncodingRepeated,
        &[
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        ],
    );
    all_refused(
        Violation::FieldNameSyntax,
        &[
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding\t: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer encoding: chunked\r\n\r\n",
        ],
    );
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
//= type=test
//# A server that receives a request message with a transfer coding it
//# does not understand SHOULD respond with 501 (Not Implemented).
#[test]
fn a2_a_well_formed_coding_beside_chunked_is_not_implemented() {
    for value in ["gzip, chunked", "gzip,chunked", "x-gzip , Chunked", "deflate, gzip, chunked"] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {value}\r\n\r\n");
        assert_eq!(request_violation(bytes.as_bytes()), Violation::TransferEncodingUnsupported, "{value}");
    }
    assert_eq!(Violation::TransferEncodingUnsupported.status(), 501);
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-5.5
//= type=test
//# A field value does not include leading or trailing whitespace.
#[test]
fn spaces_around_a_body_length_are_no_part_of_it_and_are_not_passed_on() {
    for (line, body, written) in [
        ("content-length: 5 ", BodyLength::Length(5), "content-length: 5\r\n"),
        ("content-length:   5   ", BodyLength::Length(5), "content-length: 5\r\n"),
        ("content-length:  5", BodyLength::Length(5), "content-length: 5\r\n"),
        ("Transfer-Encoding:  chunked ", BodyLength::Chunked, "transfer-encoding: chunked\r\n"),
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\n{line}\r\n\r\n");
        let head = request(bytes.as_bytes()).unwrap();
        assert_eq!(head.body(), body, "{line:?}");
        assert!(forwarded(bytes.as_bytes()).to_ascii_lowercase().contains(written), "{line:?}");
    }
}

#[test]
fn a2_chunked_is_understood_in_any_case_and_without_the_space() {
    for line in ["Transfer-Encoding: chunked", "TRANSFER-ENCODING:CHUNKED", "transfer-encoding: Chunked"] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\n{line}\r\n\r\n");
        assert_eq!(request(bytes.as_bytes()).unwrap().body(), BodyLength::Chunked, "{line}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
//= type=test
//# A server or client that receives an HTTP/1.0 message containing a
//# Transfer-Encoding header field MUST treat the message as if the
//# framing is faulty, even if a Content-Length is present, and close the
//# connection after processing the message.
#[test]
fn a3_transfer_encoding_in_http_1_0_is_refused() {
    all_refused(
        Violation::TransferEncodingVersion,
        &[
            b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
        ],
    );
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# If a message is received without Transfer-Encoding and with an
//# invalid Content-Length header field, then the message framing is
//# invalid and the recipient MUST treat it as an unrecoverable error
#[test]
fn a4_a_content_length_that_is_not_one_plain_number_is_refused() {
    for value in [
        "",
        "+5",
        "-1",
        "0x5",
        "5_0",
        "5, 5",
        "5,5",
        "5,6",
        "\t5",
        "5\t",
        "5 5",
        "5;",
        "5.0",
        "1e3",
        "\"5\"",
        "9223372036854775808",
        "18446744073709551616",
        "18446744073709551621",
        "99999999999999999999999999999999",
        "\u{665}",
        "00000000000000000005",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {value}\r\n\r\n");
        assert_eq!(request_violation(bytes.as_bytes()), Violation::ContentLengthSyntax, "{value:?}");
    }
    assert_eq!(Violation::ContentLengthSyntax.status(), 400);
}

#[test]
fn a4_a_repeated_content_length_is_refused_even_when_the_values_agree() {
    all_refused(
        Violation::ContentLengthRepeated,
        &[
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nx: y\r\ncontent-length:\r\n\r\n",
        ],
    );
}

#[test]
fn a4_a_plain_content_length_delimits_the_body_of_any_method() {
    for (method, value, length) in [
        ("POST", "0", 0),
        ("GET", "5", 5),
        ("HEAD", "5", 5),
        ("OPTIONS", "5", 5),
        ("BREW", "007", 7),
        ("PUT", "9223372036854775807", i64::MAX as u64),
    ] {
        let bytes = format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {value}\r\n\r\n");
        assert_eq!(request(bytes.as_bytes()).unwrap().body(), BodyLength::Length(length));
    }
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//= type=test
//# If this is a request message and none of the above are true, then the
//# message body length is zero (no message body is present).
#[test]
fn a16_a_request_without_framing_fields_has_no_body_whatever_its_method() {
    for method in ["GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE"] {
        let bytes = format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\nGET /smuggled HTTP/1.1\r\n");
        let head = request(bytes.as_bytes()).unwrap();
        assert_eq!(head.body(), BodyLength::None);
        assert_eq!(&bytes[head.head_bytes()..], "GET /smuggled HTTP/1.1\r\n");
        assert!(BodyReader::new(head.body(), &Limits::default()).is_complete());
    }
}

#[test]
fn a16_a_body_is_bounded_by_its_declared_length_and_the_rest_is_the_next_message() {
    assert_eq!(read_body(BodyLength::Length(5), b"helloGET /").unwrap(), (b"hello".to_vec(), 5));
    assert_eq!(read_body(BodyLength::Length(5), b"hell"), Err(Violation::BodyTooShort));
    assert_eq!(read_body(BodyLength::UntilClose, b"hello").unwrap(), (b"hello".to_vec(), 5));
}

/// The same declared-against-received check serves HTTP/2 and 3 (C3, B10).
#[test]
fn a_stream_that_ends_short_of_or_beyond_its_declared_length_is_malformed() {
    let limits = Limits::default();
    let mut reader = BodyReader::new(BodyLength::Length(5), &limits);
    assert_eq!(reader.receive(3), Ok(()));
    assert_eq!(reader.remaining(), Some(2));
    assert_eq!(reader.finish_at_eof(), Err(Violation::BodyTooShort));
    assert_eq!(reader.receive(3), Err(Violation::BodyTooLong));
    let mut reader = BodyReader::new(BodyLength::Length(7), &limits);
    assert_eq!(reader.finish_at_eof(), Err(Violation::BodyTooShort), "FIN without content (CVE-2026-33555)");
    let mut reader = BodyReader::new(BodyLength::UntilClose, &limits);
    assert_eq!(reader.receive(3), Ok(()));
    assert_eq!(reader.finish_at_eof(), Ok(()));
    assert_eq!(reader.receive(1), Err(Violation::BodyTooLong));
}
