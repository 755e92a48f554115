//! Row D8: PROXY protocol headers.

use std::net::SocketAddr;

use weir_http::proxy_protocol::{
    ProxyAddresses, ProxyProgress, ProxyVersion, ProxyViolation, V2_DEFAULT_LIMIT_BYTES, parse,
    parse_datagram, write_v1, write_v2, write_v2_datagram,
};

fn read(bytes: &[u8]) -> Result<ProxyProgress, ProxyViolation> {
    parse(bytes, V2_DEFAULT_LIMIT_BYTES)
}

/// Source, destination and length of a header that must be complete.
fn ends(bytes: &[u8]) -> (Option<(String, String)>, usize) {
    match read(bytes) {
        Ok(ProxyProgress::Complete { header, header_bytes }) => (
            header.addresses.map(|ends| (ends.source.to_string(), ends.destination.to_string())),
            header_bytes,
        ),
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

fn pair(source: &str, destination: &str) -> Option<(String, String)> {
    Some((source.to_owned(), destination.to_owned()))
}

fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, content].concat()
}

const V4_ENDS: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];

#[test]
fn d8_version_1_lines_are_read() {
    let line = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\nGET / HTTP/1.1\r\n";
    assert_eq!(ends(line), (pair("192.0.2.1:56324", "198.51.100.2:443"), 45));
    let line = b"PROXY TCP6 2001:db8::1 ::1 0 65535\r\n";
    assert_eq!(ends(line), (pair("[2001:db8::1]:0", "[::1]:65535"), line.len()));
    let longest = b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    assert_eq!(longest.len(), 107);
    assert_eq!(ends(longest), (None, 107));
    assert_eq!(ends(b"PROXY UNKNOWN\r\n"), (None, 15));
}

#[test]
fn d8_version_1_lines_that_are_not_exact_are_refused() {
    for (line, violation) in [
        ("PROXY TCP4 192.0.2.01 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 0300.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 192.0.2 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 256.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 0x7f.0.0.1 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 ::1 ::1 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP6 192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", ProxyViolation::Address),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 01 2\r\n", ProxyViolation::Port),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 65536 2\r\n", ProxyViolation::Port),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 +1 2\r\n", ProxyViolation::Port),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 \r\n", ProxyViolation::Port),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1\r\n", ProxyViolation::Line),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 2 \r\n", ProxyViolation::Line),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 2 3\r\n", ProxyViolation::Line),
        ("PROXY TCP4  192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Line),
        ("PROXY TCP5 192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Line),
        ("PROXY tcp4 192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Line),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 2\n", ProxyViolation::Line),
        ("PROXY TCP4 192.0.2.1 198.51.100.2 1 2\rX", ProxyViolation::Line),
        ("PROXY\tTCP4 192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Signature),
        ("PROXYTCP4 192.0.2.1 198.51.100.2 1 2\r\n", ProxyViolation::Signature),
        ("POST / HTTP/1.1\r\n", ProxyViolation::Signature),
        ("GET / HTTP/1.1\r\n", ProxyViolation::Signature),
    ] {
        assert_eq!(read(line.as_bytes()), Err(violation), "{line:?}");
    }
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(92));
    assert_eq!(read(long.as_bytes()), Err(ProxyViolation::LineTooLong));
    assert_eq!(read(&long.as_bytes()[..106]), Ok(ProxyProgress::Partial));
}

#[test]
fn d8_version_2_headers_are_read() {
    let with_next = [v2(0x21, 0x11, &V4_ENDS), b"GET".to_vec()].concat();
    assert_eq!(ends(&with_next), (pair("192.0.2.1:56324", "198.51.100.2:443"), 28));
    // A no-op TLV of three bytes behind the addresses.
    let with_tlv = v2(0x21, 0x11, &[&V4_ENDS[..], &[4, 0, 3, 1, 2, 3]].concat());
    assert_eq!(ends(&with_tlv).1, 34);
    let mut six = [0; 36];
    (six[15], six[31], six[33], six[35]) = (1, 2, 80, 81);
    assert_eq!(ends(&v2(0x21, 0x21, &six)), (pair("[::1]:80", "[::2]:81"), 52));
    assert_eq!(ends(&v2(0x20, 0x00, b"")), (None, 16));
    assert_eq!(ends(&v2(0x20, 0x11, b"xy")), (None, 18), "LOCAL ignores what it carries");
    assert_eq!(ends(&v2(0x21, 0x00, b"xy")), (None, 18), "UNSPEC ignores what it carries");
    assert_eq!(ends(&v2(0x21, 0x31, &[0; 216])), (None, 232));
}

#[test]
fn d8_version_2_headers_that_lie_about_their_length_are_refused() {
    for (header, violation) in [
        (v2(0x21, 0x11, &V4_ENDS[..11]), ProxyViolation::Length),
        (v2(0x21, 0x21, &[0; 35]), ProxyViolation::Length),
        (v2(0x21, 0x31, &[0; 215]), ProxyViolation::Length),
        (v2(0x21, 0x11, &[&V4_ENDS[..], &[4, 0]].concat()), ProxyViolation::Length),
        (v2(0x21, 0x11, &[&V4_ENDS[..], &[4, 0, 4, 1, 2, 3]].concat()), ProxyViolation::Length),
        (v2(0x21, 0x11, &[&V4_ENDS[..], &[4, 0xff, 0xff]].concat()), ProxyViolation::Length),
        (v2(0x21, 0x11, &[&V4_ENDS[..], &[3, 0, 3, 1, 2, 3]].concat()), ProxyViolation::Length),
        (v2(0x22, 0x11, &V4_ENDS), ProxyViolation::Command),
        (v2(0x11, 0x11, &V4_ENDS), ProxyViolation::Command),
        (v2(0x21, 0x13, &V4_ENDS), ProxyViolation::Family),
        (v2(0x21, 0x41, &V4_ENDS), ProxyViolation::Family),
        (v2(0x21, 0x11, &[0; 521]), ProxyViolation::TooLong),
        (b"\r\n\r\n\0\r\nQUIT\r".to_vec(), ProxyViolation::Signature),
    ] {
        assert_eq!(read(&header), Err(violation), "{}", header.escape_ascii());
    }
    // The limit is told from the length alone, before the bytes arrive.
    assert_eq!(read(&v2(0x21, 0x11, &[0; 521])[..16]), Err(ProxyViolation::TooLong));
    assert!(matches!(parse(&v2(0x20, 0x00, &[0; 521]), 600), Ok(ProxyProgress::Complete { .. })));
}

#[test]
fn d8_a_checksum_is_verified_where_there_is_one() {
    // The expected value comes from a table-driven CRC32c written apart from this crate, over the header with
    // the four bytes zeroed; it gives 0xe3069283 for "123456789", the published check value.
    let mut header = v2(0x21, 0x11, &[&V4_ENDS[..], &[3, 0, 4, 0, 0, 0, 0]].concat());
    assert_eq!(read(&header), Err(ProxyViolation::Checksum));
    header[31..35].copy_from_slice(&CRC_OF_EXAMPLE.to_be_bytes());
    assert_eq!(ends(&header), (pair("192.0.2.1:56324", "198.51.100.2:443"), 35));
    header[17] ^= 1;
    assert_eq!(read(&header), Err(ProxyViolation::Checksum));
}

const CRC_OF_EXAMPLE: u32 = 0x20ec_9549;

#[test]
fn d8_a_header_split_over_packets_is_waited_for_at_every_position() {
    for header in [
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        v2(0x21, 0x11, &[&V4_ENDS[..], &[4, 0, 3, 1, 2, 3]].concat()),
        v2(0x20, 0x00, b""),
    ] {
        for end in 0..header.len() {
            assert_eq!(read(&header[..end]), Ok(ProxyProgress::Partial), "{}", header[..end].escape_ascii());
        }
        assert_eq!(ends(&header).1, header.len());
    }
}

#[test]
fn written_headers_are_read_back() {
    for (source, destination) in [
        ("192.0.2.1:1", "198.51.100.2:65535"),
        ("[2001:db8::1]:1", "[2001:db8::2]:2"),
        ("[::ffff:192.0.2.1]:1", "198.51.100.2:2"),
        ("192.0.2.1:1", "[2001:db8::2]:2"),
    ] {
        let addresses =
            ProxyAddresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() };
        for (write, version) in [
            (write_v1 as fn(Option<ProxyAddresses>, &mut Vec<u8>), ProxyVersion::V1),
            (write_v2, ProxyVersion::V2),
        ] {
            let mut out = Vec::new();
            write(Some(addresses), &mut out);
            let Ok(ProxyProgress::Complete { header, header_bytes }) = read(&out) else {
                panic!("{}", out.escape_ascii())
            };
            assert_eq!((header_bytes, header.version), (out.len(), version));
            let read_back = header.addresses.unwrap();
            let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
            assert_eq!(plain(read_back.source), plain(addresses.source));
            assert_eq!(plain(read_back.destination), plain(addresses.destination));
            out.clear();
            write(None, &mut out);
            assert_eq!(ends(&out), (None, out.len()));
        }
    }
}

#[test]
fn the_header_of_a_datagram_says_datagrams_and_what_follows_is_the_clients() {
    for (source, destination, family) in
        [("192.0.2.1:56324", "198.51.100.2:53", 0x12), ("[2001:db8::1]:1", "[2001:db8::2]:53", 0x22)]
    {
        let addresses =
            ProxyAddresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() };
        let mut datagram = Vec::new();
        write_v2_datagram(addresses, &mut datagram);
        assert_eq!(datagram[12..14], [0x21, family]);
        let header_bytes = datagram.len();
        datagram.extend_from_slice(b"content");
        assert_eq!(parse_datagram(&datagram), Ok((Some(addresses), &b"content"[..])));
        assert_eq!(parse_datagram(&datagram[..header_bytes]), Ok((Some(addresses), &b""[..])));
        for end in 0..header_bytes {
            assert!(parse_datagram(&datagram[..end]).is_err(), "{end}");
        }
    }
    assert_eq!(
        parse_datagram(&[&v2(0x20, 0, b"")[..], b"x"].concat()),
        Ok((None, &b"x"[..])),
        "the sender's own"
    );
    assert_eq!(
        parse_datagram(b"PROXY TCP4 192.0.2.1 198.51.100.2 1 53\r\nx"),
        Err(ProxyViolation::Signature),
        "version 1 has no word for datagrams"
    );
}
