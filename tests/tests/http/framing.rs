//! Requests whose end is ambiguous or wrong are never forwarded (threats A1 to A7, S2).

use weir_tests::dialogue::Backend;

use super::plain;
use super::refusal::{Case, case, case_of, never_completed, never_forwarded};

/// What a smuggler would have the backend see.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";

fn with_field(field: &[u8], body: &str) -> Vec<u8> {
    let mut request = b"POST /outer HTTP/1.1\r\nhost: a\r\n".to_vec();
    request.extend_from_slice(field);
    request.extend_from_slice(b"\r\n\r\n");
    request.extend_from_slice(body.as_bytes());
    request.extend_from_slice(SMUGGLED.as_bytes());
    request
}

#[test]
fn content_length_together_with_transfer_encoding_is_never_forwarded() {
    // A1: CL.TE and TE.CL.
    never_forwarded(&[
        case("CL.TE", with_field(b"content-length: 5\r\ntransfer-encoding: chunked", "0\r\n\r\n")),
        case("TE.CL", with_field(b"transfer-encoding: chunked\r\ncontent-length: 3", "1\r\nx\r\n0\r\n\r\n")),
        case("CL 0 and TE", with_field(b"content-length: 0\r\ntransfer-encoding: chunked", "0\r\n\r\n")),
        case("TE in odd case", with_field(b"Content-Length: 5\r\nTRANSFER-ENCODING: Chunked", "0\r\n\r\n")),
        case_of(
            "CL and a TE that is no chunked",
            with_field(b"content-length: 5\r\ntransfer-encoding: identity", "12345"),
            &[400, 501],
        ),
    ]);
}

#[test]
fn obfuscated_transfer_encoding_is_never_forwarded() {
    // A2: anything but exactly one final `chunked`.
    const BOTH: &[u16] = &[400, 501];
    let values: &[(&str, &[u8])] = &[
        ("xchunked", b"transfer-encoding: xchunked"),
        ("chunkedx", b"transfer-encoding: chunkedx"),
        ("chunked not last", b"transfer-encoding: chunked, identity"),
        ("chunked before gzip", b"transfer-encoding: chunked, gzip"),
        ("leading comma", b"transfer-encoding: ,chunked"),
        ("trailing comma", b"transfer-encoding: chunked,"),
        ("chunked twice in a list", b"transfer-encoding: chunked, chunked"),
        ("vertical tab before", b"transfer-encoding: \x0bchunked"),
        ("vertical tab behind", b"transfer-encoding: chunked\x0b"),
        ("form feed behind", b"transfer-encoding: chunked\x0c"),
        ("NEL before", b"transfer-encoding: \x85chunked"),
        ("no-break space before", b"transfer-encoding: \xa0chunked"),
        ("no-break space behind", b"transfer-encoding: chunked\xa0"),
        ("tab inside", b"transfer-encoding: chun\tked"),
        ("double quotes", b"transfer-encoding: \"chunked\""),
        ("single quotes", b"transfer-encoding: 'chunked'"),
        ("two lines, both chunked", b"transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
        ("two lines, chunked first", b"transfer-encoding: chunked\r\ntransfer-encoding: identity"),
        ("two lines, chunked last", b"transfer-encoding: identity\r\ntransfer-encoding: chunked"),
        ("a parameter", b"transfer-encoding: chunked;q=1"),
        ("a parameter without value", b"transfer-encoding: chunked;a"),
        ("empty", b"transfer-encoding:"),
        ("identity", b"transfer-encoding: identity"),
        ("gzip before chunked", b"transfer-encoding: gzip, chunked"),
        ("cow", b"transfer-encoding: cow"),
        ("NUL behind", b"transfer-encoding: chunked\0"),
        ("folded", b"transfer-encoding:\r\n chunked"),
        ("space before the colon", b"transfer-encoding : chunked"),
        ("a control byte in the name", b"transfer\x01-encoding: chunked"),
    ];
    let cases: Vec<Case> =
        values.iter().map(|(name, field)| case_of(name, with_field(field, "0\r\n\r\n"), BOTH)).collect();
    never_forwarded(&cases);
}

#[test]
fn whitespace_around_chunked_means_chunked_on_both_sides() {
    // A2: a tab is optional whitespace (RFC 9110 §5.6.3); the backend must see the plain word whatever the
    // client sent.
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\t chunked \t\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    let response = client.receives_response();
    if response.status == 200 {
        let requests = backend.requests();
        assert_eq!(requests[0].fields.one("transfer-encoding"), Some("chunked"));
        assert_eq!(requests[0].body, b"hello");
    } else {
        assert_eq!(response.status, 400);
        client.receives_close();
    }
}

#[test]
fn spaces_around_a_body_length_are_stripped_and_the_request_is_served() {
    // RFC 9110 §5.5: a field value does not include leading or trailing whitespace.
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for (field, body) in [
        ("content-length: 5 ", "hello"),
        ("content-length:   5   ", "hello"),
        ("transfer-encoding:  chunked ", "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        client.sends(format!("POST / HTTP/1.1\r\nhost: a\r\n{field}\r\n\r\n{body}"));
        client.receives_status(200);
        let request = backend.requests().pop().expect("a request");
        let (name, value) = field.split_once(':').expect("a field");
        assert_eq!(request.fields.one(name), Some(value.trim()), "{field:?}");
        assert!(request.head.contains(&format!("{name}: {}\r\n", value.trim())), "{:?}", request.head);
        assert_eq!(request.body, b"hello", "{field:?}");
    }
}

#[test]
fn transfer_encoding_in_http_1_0_is_never_forwarded() {
    // A3
    never_forwarded(&[
        case("TE in 1.0", "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        case(
            "TE in 1.0, kept alive",
            "POST / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        case(
            "TE and CL in 1.0",
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        ),
    ]);
}

#[test]
fn content_length_that_is_not_one_plain_number_is_never_forwarded() {
    // A4
    let values: &[(&str, &[u8])] = &[
        ("equal twice in a list", b"content-length: 5, 5"),
        ("equal on two lines", b"content-length: 5\r\ncontent-length: 5"),
        ("different on two lines", b"content-length: 5\r\ncontent-length: 6"),
        ("different in a list", b"content-length: 5, 6"),
        ("empty", b"content-length:"),
        ("only spaces", b"content-length:   "),
        ("empty, then a number", b"content-length:\r\ncontent-length: 5"),
        ("plus", b"content-length: +5"),
        ("minus", b"content-length: -1"),
        ("minus zero", b"content-length: -0"),
        ("hexadecimal", b"content-length: 0x5"),
        ("underscore", b"content-length: 5_0"),
        ("decimal point", b"content-length: 5.0"),
        ("exponent", b"content-length: 5e0"),
        ("letters", b"content-length: five"),
        ("2^63", b"content-length: 9223372036854775808"),
        ("2^64 + 5 wraps to 5", b"content-length: 18446744073709551621"),
        ("forty digits", b"content-length: 1000000000000000000000000000000000000000"),
        ("space inside", b"content-length: 5 5"),
        ("trailing comma", b"content-length: 5,"),
        ("semicolon", b"content-length: 5;a"),
        ("quotes", b"content-length: \"5\""),
        ("vertical tab", b"content-length: \x0b5"),
        ("no-break space", b"content-length: \xa05"),
        ("full-width digit", "content-length: \u{ff15}".as_bytes()),
        ("two lines in different case", b"content-length: 5\r\nContent-Length: 0"),
    ];
    let cases: Vec<Case> =
        values.iter().map(|(name, field)| case(name, with_field(field, "12345"))).collect();
    never_forwarded(&cases);
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut request = b"POST /outer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    request.extend_from_slice(body);
    request
}

#[test]
fn a_malformed_chunk_size_ends_the_request() {
    // A5
    let bodies: &[(&str, &[u8])] = &[
        ("0x prefix", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("plus", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("minus", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("underscore", b"0_5\r\nhello\r\n0\r\n\r\n"),
        ("empty", b"\r\nhello\r\n0\r\n\r\n"),
        ("leading space", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("leading tab", b"\t5\r\nhello\r\n0\r\n\r\n"),
        ("trailing space", b"5 \r\nhello\r\n0\r\n\r\n"),
        ("trailing tab", b"5\t\r\nhello\r\n0\r\n\r\n"),
        ("longest prefix", b"5xyz\r\nhello\r\n0\r\n\r\n"),
        ("2^64 wraps to 5", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("2^63", b"8000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("a hundred digits", &[&[b'0'; 100][..], b"5\r\nhello\r\n0\r\n\r\n"].concat()),
        ("letters", b"zz\r\nhello\r\n0\r\n\r\n"),
        ("NUL", b"5\0\r\nhello\r\n0\r\n\r\n"),
        ("0x0 as the last", b"5\r\nhello\r\n0x0\r\n\r\n"),
        ("full-width digit", "\u{ff15}\r\nhello\r\n0\r\n\r\n".as_bytes()),
        ("second chunk bad", b"5\r\nhello\r\n+5\r\nworld\r\n0\r\n\r\n"),
    ];
    let cases: Vec<Case> = bodies.iter().map(|(name, body)| case(name, chunked(body))).collect();
    never_completed(&cases);
}

#[test]
fn a_malformed_chunk_extension_ends_the_request() {
    // A6: TERM.EXT, EXT.TERM, SPILL and their like.
    let bodies: &[(&str, &[u8])] = &[
        ("bare LF in the extension", b"5;a\nhello\r\n0\r\n\r\n"),
        ("bare LF as its end", b"5;a=b\nX\r\nhello\r\n0\r\n\r\n"),
        ("bare CR in the extension", b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("NUL in the extension", b"5;a=\0\r\nhello\r\n0\r\n\r\n"),
        ("LF in a quoted value", b"5;a=\"\n\"\r\nhello\r\n0\r\n\r\n"),
        ("no semicolon", b"5 a=b\r\nhello\r\n0\r\n\r\n"),
        ("a name that is no token", b"5;a(b)=c\r\nhello\r\n0\r\n\r\n"),
        ("bare LF behind the last size", b"5\r\nhello\r\n0;a\n\r\n\r\n"),
    ];
    let mut cases: Vec<Case> = bodies.iter().map(|(name, body)| case(name, chunked(body))).collect();
    let huge = format!("5;a={}\r\nhello\r\n0\r\n\r\n", "x".repeat(64 * 1024));
    cases.push(case_of("64 KiB in one extension", chunked(huge.as_bytes()), &[400, 413, 431]));
    let many: String = (0..4000).map(|_| "1;abcdefgh=ijklmnop\r\nx\r\n").collect();
    cases.push(case_of("4000 small extensions", chunked((many + "0\r\n\r\n").as_bytes()), &[400, 413, 431]));
    never_completed(&cases);
}

#[test]
fn chunk_extensions_are_dropped_when_forwarding() {
    // A6
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(chunked(b"5;name=value;other=\"quoted; text\"\r\nhello\r\n0;last\r\n\r\n"));
    client.receives_status(200);
    let request = backend.requests().remove(0);
    // The test's own reader takes a size line of hexadecimal digits alone, so an extension would have broken
    // it.
    assert_eq!(request.body, b"hello");
    assert!(backend.broken().is_empty());
}

#[test]
fn chunk_data_without_its_crlf_ends_the_request() {
    // A7
    let bodies: &[(&str, &[u8])] = &[
        ("LF behind the data", b"5\r\nhello\n0\r\n\r\n"),
        ("CR behind the data", b"5\r\nhello\r0\r\n\r\n"),
        ("other bytes behind the data", b"5\r\nhelloXX0\r\n\r\n"),
        ("size too small", b"4\r\nhello\r\n0\r\n\r\n"),
        ("an extra CRLF before the next size", b"5\r\nhello\r\n\r\n0\r\n\r\n"),
        ("LF behind the size", b"5\nhello\r\n0\r\n\r\n"),
        ("LF behind the last size", b"5\r\nhello\r\n0\n\r\n"),
        ("LF as the last line", b"5\r\nhello\r\n0\r\n\n"),
        ("bytes where the last line should be", b"5\r\nhello\r\n0\r\nXX\r\n\r\n"),
        ("a bare LF in a trailer", b"5\r\nhello\r\n0\r\na: b\nc: d\r\n\r\n"),
        ("a trailer with a space before its colon", b"5\r\nhello\r\n0\r\na : b\r\n\r\n"),
    ];
    let cases: Vec<Case> = bodies.iter().map(|(name, body)| case(name, chunked(body))).collect();
    never_completed(&cases);
}
