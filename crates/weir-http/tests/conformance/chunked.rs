//! Rows A5 to A7: chunked bodies.

use super::*;
use weir_http::h1::chunked::{write_chunk_end, write_chunk_head, write_last_chunk};

fn chunked(bytes: &[u8]) -> Result<Vec<u8>, Violation> {
    read_body(BodyLength::Chunked, bytes).map(|(content, _)| content)
}

fn all_bad(violation: Violation, bodies: &[&[u8]]) {
    for bytes in bodies {
        assert_eq!(chunked(bytes), Err(violation), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_chunked_body_is_its_content_and_ends_where_it_says() {
    for (bytes, content) in [
        (&b"0\r\n\r\n"[..], &b""[..]),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"5\r\nhello\r\n00000007\r\n, world\r\n000\r\n\r\n", b"hello, world"),
        (b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
    ] {
        let with_next = [bytes, b"GET / HTTP/1.1\r\n"].concat();
        let expected = Ok((content.to_vec(), bytes.len()));
        assert_eq!(read_body(BodyLength::Chunked, &with_next), expected, "{}", bytes.escape_ascii());
    }
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-7.1
//= type=test
//# A recipient MUST anticipate potentially large hexadecimal numerals and
//# prevent parsing errors due to integer conversion overflows or precision
//# loss due to integer representation.
#[test]
fn a5_a_chunk_size_is_hexadecimal_digits_and_nothing_else() {
    all_bad(
        Violation::ChunkSizeSyntax,
        &[
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"-5\r\nhello\r\n0\r\n\r\n",
            b"5_0\r\nhello\r\n0\r\n\r\n",
            b"\r\nhello\r\n0\r\n\r\n",
            b";a\r\nhello\r\n0\r\n\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"5 \r\nhello\r\n0\r\n\r\n",
            b"5\t\r\nhello\r\n0\r\n\r\n",
            b"5 ;a\r\nhello\r\n0\r\n\r\n",
            b"5g\r\nhello\r\n0\r\n\r\n",
            b"5\0\r\nhello\r\n0\r\n\r\n",
            b"g\r\nhello\r\n0\r\n\r\n",
            b"8000000000000000\r\n",
            b"ffffffffffffffff\r\n",
            b"10000000000000005\r\n",
            b"00000000000000005\r\n",
            b"5,5\r\nhello\r\n0\r\n\r\n",
        ],
    );
    let mut reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
    assert_eq!(reader.advance(b"7fffffffffffffff\r\nx").map(|step| step.data), Ok(18..19));
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-7.1.1
//= type=test
//# A recipient MUST ignore unrecognized chunk extensions.
#[test]
fn a6_well_formed_extensions_are_dropped() {
    for extension in
        [";a", ";a=b", ";a;b=c;d", ";a=\"b c\"", ";a=\"b\\\"\t;c\"", ";a=\"\";b", ";a=\"\u{e9}\""]
    {
        let bytes = format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n");
        assert_eq!(chunked(bytes.as_bytes()), Ok(b"hello".to_vec()), "{extension}");
    }
}

#[test]
fn a6_malformed_extensions_are_refused() {
    for extension in [
        &b";"[..],
        b";;a",
        b";a=",
        b"; a",
        b";a =b",
        b";a= b",
        b";a ",
        b";a=b c",
        b";=b",
        b";a=\"b\"c",
        b";a=\"b\0\"",
        b";a=\"b\rc\"",
        b";a\0",
        b";a(b",
        b";a\r\rx",
        b";\xe9",
        b";a=\"\x7f\"",
    ] {
        let bytes = [b"5", extension, b"\r\nhello\r\n0\r\n\r\n"].concat();
        let refused = chunked(&bytes).expect_err("malformed extension");
        let expected = [Violation::ChunkExtensionSyntax, Violation::BareCarriageReturn];
        assert!(expected.contains(&refused), "{}: {refused}", extension.escape_ascii());
    }
    // TERM.EXT and EXT.TERM: a lone LF ends the line for one reader and is part of the extension for another.
    all_bad(
        Violation::BareLineFeed,
        &[
            b"5;a\nhello\r\n0\r\n\r\n",
            b"5;\nhello\r\n0\r\n\r\n",
            b"5;a=b\nxx\r\nhello\r\n0\r\n\r\n",
            b"5;a=\"b\nc\"\r\nhello\r\n0\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"0\n\r\n",
            b"0\r\n\n",
        ],
    );
    all_bad(Violation::BareCarriageReturn, &[b"5;a\rX\r\nhello\r\n0\r\n\r\n", b"5\rX", b"0\r\n\rX"]);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-7.1.1
//= type=test
//# A server ought to limit the total length of chunk extensions received
//# in a request to an amount reasonable for the services provided
#[test]
fn a6_the_extensions_of_all_chunks_together_are_bounded() {
    let one = [b"1;", &[b'a'; 1023][..], b"\r\nx\r\n"].concat();
    let within = [one.repeat(4), b"0\r\n\r\n".to_vec()].concat();
    assert_eq!(chunked(&within), Ok(b"xxxx".to_vec()));
    let beyond = [one.repeat(4), b"0;a\r\n\r\n".to_vec()].concat();
    assert_eq!(chunked(&beyond), Err(Violation::ChunkExtensionsTooLarge));
}

#[test]
fn a7_chunk_data_is_followed_by_crlf_and_nothing_else() {
    all_bad(
        Violation::ChunkEnd,
        &[
            b"5\r\nhelloXX0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhello\rX0\r\n\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello \r\n0\r\n\r\n",
        ],
    );
    all_bad(Violation::ChunkSizeSyntax, &[b"5\r\nhello\r\n\r\n0\r\n\r\n", b"5\r\nhello\r\nXX\r\n"]);
}

//= https://www.rfc-editor.org/rfc/rfc9112#section-8
//= type=test
//# A message body that uses the chunked transfer coding is incomplete if
//# the zero-sized chunk that terminates the encoding has not been received.
#[test]
fn a7_a_chunked_body_without_its_end_is_truncated() {
    for bytes in
        [&b""[..], b"5", b"5\r\nhel", b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n", b"0\r\n\r", b"0\r\nx: y\r\n"]
    {
        assert_eq!(chunked(bytes), Err(Violation::BodyTooShort), "{}", bytes.escape_ascii());
    }
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1
//= type=test
//# Trailer fields ... ought not be merged into the header section unless
//# the recipient understands the corresponding header field definition
#[test]
fn trailers_are_read_and_those_that_frame_route_or_authenticate_are_dropped() {
    let bytes = b"0\r\nGrpc-Status: 0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil\r\n\
        Authorization: x\r\nCookie: x\r\nX-Forwarded-For: ::1\r\nx_forwarded_for: ::1\r\nConnection: close\r\n\
        Checksum:abc\r\n\r\nGET";
    let mut reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
    let step = reader.advance(bytes).unwrap();
    assert_eq!((step.consumed, step.complete), (bytes.len() - 3, true));
    let mut out = Vec::new();
    write_last_chunk(&mut out, reader.trailers());
    assert_eq!(out, b"0\r\nGrpc-Status: 0\r\nChecksum: abc\r\n\r\n");
}

#[test]
fn trailers_are_held_to_the_grammar_and_limits_of_fields() {
    all_bad(Violation::FieldNameSyntax, &[b"0\r\nx : y\r\n\r\n"]);
    all_bad(Violation::LineFolding, &[b"0\r\nx: y\r\n z\r\n\r\n"]);
    all_bad(Violation::WhitespaceBeforeFields, &[b"0\r\n x: y\r\n\r\n"]);
    all_bad(Violation::BareLineFeed, &[b"0\r\nx: y\n\r\n"]);
    all_bad(Violation::FieldValueSyntax, &[b"0\r\nx: \0\r\n\r\n"]);
    let long = [b"0\r\nx: ".to_vec(), vec![b'a'; 8192]].concat();
    let many = [b"0\r\n".to_vec(), b"x: y\r\n".repeat(33), b"\r\n".to_vec()].concat();
    all_bad(Violation::TrailersTooLarge, &[&long, &many]);
}

#[test]
fn chunks_are_written_as_they_are_read() {
    let mut out = Vec::new();
    write_chunk_head(&mut out, 5);
    out.extend_from_slice(b"hello");
    write_chunk_end(&mut out);
    write_chunk_head(&mut out, 300);
    out.extend_from_slice(&[b'x'; 300]);
    write_chunk_end(&mut out);
    write_last_chunk(&mut out, []);
    assert!(out.starts_with(b"5\r\nhello\r\n12c\r\nxxx"));
    assert_eq!(chunked(&out), Ok([b"hello".to_vec(), vec![b'x'; 300]].concat()));
}
