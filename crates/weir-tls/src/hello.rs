//! Reads the server name from a ClientHello without answering it (RFC 8446 section 4.1.2, RFC 6066 section
//! 3).
//!
//! For listeners that choose a pool by name and pass the connection on unchanged, and for handshakes that are
//! made for one protocol only. Does no I/O; reads each byte only once per call, and allocates only for a
//! ClientHello that is spread over several records.

/// Most bytes of a ClientHello, including record headers (threat D4): post-quantum key shares take two KiB.
pub const HELLO_BYTES: usize = 64 << 10;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// More must be received.
    Partial,
    /// A complete ClientHello; the name in lower case, `None` when it has none that is a host name.
    Hello(Option<String>),
    /// Not TLS.
    NotTls,
    /// TLS, but it violates the protocol, or is longer than [`HELLO_BYTES`].
    Malformed,
}

const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const APPLICATION_PROTOCOLS: u16 = 16;
/// RFC 8446 section 5.1.
const RECORD_BYTES: usize = 16 << 10;

/// Parses what was received so far, from the first byte on.
pub fn read(received: &[u8]) -> Greeting {
    match message(received) {
        Ok(hello) => name(&hello).map_or(Greeting::Malformed, Greeting::Hello),
        Err(greeting) => greeting,
    }
}

/// Whether a complete ClientHello offers this application protocol (ALPN, RFC 7301) and no other.
pub fn offers_only(received: &[u8], protocol: &[u8]) -> bool {
    let Ok(hello) = message(received) else { return false };
    let mut only = false;
    let whole = each_extension(&hello, |kind, mut body| {
        if kind == APPLICATION_PROTOCOLS {
            let mut names = vector(&mut body, 2)?;
            only = vector(&mut names, 1)? == protocol && names.is_empty() && body.is_empty();
        }
        Some(())
    });
    whole.is_some() && only
}

/// The body of a complete ClientHello, without the records; `Err` when there is none, or it is incomplete.
fn message(received: &[u8]) -> Result<Vec<u8>, Greeting> {
    let mut message: Vec<u8> = Vec::new();
    let mut rest = received;
    loop {
        match *rest {
            [] => return Err(too_long(received)),
            [HANDSHAKE_RECORD, ..] => {}
            _ if message.is_empty() => return Err(Greeting::NotTls),
            _ => return Err(Greeting::Malformed),
        }
        if rest.get(1).is_some_and(|major| *major != 3) {
            return Err(if message.is_empty() { Greeting::NotTls } else { Greeting::Malformed });
        }
        let Some((head, body)) = rest.split_at_checked(5) else { return Err(too_long(received)) };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > RECORD_BYTES {
            return Err(Greeting::Malformed);
        }
        message.extend_from_slice(&body[..body.len().min(length)]);
        match *message {
            [] => {}
            [CLIENT_HELLO, ..] => {}
            _ => return Err(Greeting::Malformed),
        }
        if let [_, a, b, c, ..] = *message {
            let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if length > HELLO_BYTES {
                return Err(Greeting::Malformed);
            }
            if message.len() >= 4 + length {
                message.truncate(4 + length);
                message.drain(..4);
                return Ok(message);
            }
        }
        match body.get(length..) {
            Some(behind) => rest = behind,
            None => return Err(too_long(received)),
        }
    }
}

fn too_long(received: &[u8]) -> Greeting {
    if received.len() >= HELLO_BYTES { Greeting::Malformed } else { Greeting::Partial }
}

/// Takes a vector with a length field of `width` bytes from the front.
fn vector<'b>(bytes: &mut &'b [u8], width: usize) -> Option<&'b [u8]> {
    let (length, rest) = bytes.split_at_checked(width)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (vector, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(vector)
}

/// `None` when the ClientHello is malformed.
fn name(hello: &[u8]) -> Option<Option<String>> {
    let mut found = None;
    each_extension(hello, |kind, body| {
        if kind == SERVER_NAME {
            // If it occurs twice, two parsers may use different ones.
            if found.is_some() {
                return None;
            }
            found = Some(host_name(body)?);
        }
        Some(())
    })?;
    Some(found.flatten())
}

/// Passes every extension of a ClientHello to `see`; `None` when it is malformed, or `see` returns that.
fn each_extension<'h>(hello: &'h [u8], mut see: impl FnMut(u16, &'h [u8]) -> Option<()>) -> Option<()> {
    // Version and random.
    let (_, mut rest) = hello.split_at_checked(34)?;
    let session = vector(&mut rest, 1)?;
    if session.len() > 32 {
        return None;
    }
    let suites = vector(&mut rest, 2)?;
    if suites.is_empty() || !suites.len().is_multiple_of(2) {
        return None;
    }
    vector(&mut rest, 1)?;
    if rest.is_empty() {
        // TLS 1.2 allows a ClientHello without extensions.
        return Some(());
    }
    let mut extensions = vector(&mut rest, 2)?;
    if !rest.is_empty() {
        return None;
    }
    while !extensions.is_empty() {
        let (kind, behind) = extensions.split_at_checked(2)?;
        extensions = behind;
        see(u16::from_be_bytes([kind[0], kind[1]]), vector(&mut extensions, 2)?)?;
    }
    Some(())
}

/// The only host name in the extension; `Some(None)` for an address, which is not a name (RFC 6066 section
/// 3).
fn host_name(mut extension: &[u8]) -> Option<Option<String>> {
    let mut list = vector(&mut extension, 2)?;
    let (&kind, mut entry) = list.split_first()?;
    let name = vector(&mut entry, 2)?;
    list = entry;
    if kind != 0 || !list.is_empty() || !extension.is_empty() {
        return None;
    }
    server_name(name)
}

/// The host name for this content of the extension, in lower case and without a trailing dot. `Some(None)`
/// for an address, which is not a name (RFC 6066 section 3), and `None` if the content is not allowed.
pub fn server_name(name: &[u8]) -> Option<Option<String>> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 255 {
        return None;
    }
    let text = std::str::from_utf8(name).ok()?;
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some(None);
    }
    // Different parsers would interpret a NUL or other bytes that no name has differently (threat D5).
    name.iter().all(|byte| good(*byte)).then(|| Some(text.trim_end_matches('.').to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector_of(width: usize, bytes: &[u8]) -> Vec<u8> {
        let length = (bytes.len() as u32).to_be_bytes();
        [&length[4 - width..], bytes].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector_of(2, body)].concat()
    }

    fn sni(name: &[u8]) -> Vec<u8> {
        extension(0, &vector_of(2, &[&[0][..], &vector_of(2, name)].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector_of(1, &[9; 32]),
            &vector_of(2, &[0x13, 1]),
            &[1, 0],
            &vector_of(2, extensions),
        ]
        .concat();
        [&[1][..], &vector_of(3, &body)].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector_of(2, part)].concat()).collect()
    }

    #[test]
    fn the_name_is_found_wherever_the_records_are_cut_and_however_they_arrive() {
        let message = message(
            &[extension(43, &[2, 3, 4]), sni(b"Shop.Example"), extension(16, b"\0\x03\x02h2")].concat(),
        );
        for size in [1, 2, 3, 5, 40, 1000] {
            let bytes = records(&message, size);
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), Greeting::Partial, "records of {size}, {end} bytes");
            }
            assert_eq!(read(&bytes), Greeting::Hello(Some("shop.example".to_owned())));
            assert_eq!(
                read(&[&bytes[..], b"more"].concat()),
                Greeting::Hello(Some("shop.example".to_owned()))
            );
        }
    }

    #[test]
    fn names_that_readers_could_take_differently_are_refused() {
        let with = |extensions: Vec<u8>| read(&records(&message(&extensions), 1000));
        assert_eq!(with(Vec::new()), Greeting::Hello(None));
        assert_eq!(with(sni(b"10.0.0.1")), Greeting::Hello(None), "an address is no name");
        assert_eq!(with(sni(b"shop.example\0.evil")), Greeting::Malformed);
        assert_eq!(with(sni(b"")), Greeting::Malformed);
        assert_eq!(with(sni("sh\u{f6}p".as_bytes())), Greeting::Malformed);
        assert_eq!(with([sni(b"a"), sni(b"b")].concat()), Greeting::Malformed);
        let two = [&[0][..], &vector_of(2, b"a"), &[0], &vector_of(2, b"b")].concat();
        assert_eq!(with(extension(0, &vector_of(2, &two))), Greeting::Malformed);
    }

    #[test]
    fn a_greeting_for_one_protocol_only_is_known() {
        let offers = |names: &[u8]| {
            let hello = message(&[sni(b"a.example"), extension(16, &vector_of(2, names))].concat());
            offers_only(&records(&hello, 40), b"acme-tls/1")
        };
        assert!(offers(b"\x0aacme-tls/1"));
        assert!(!offers(b"\x0aacme-tls/1\x02h2"));
        assert!(!offers(b"\x02h2\x0aacme-tls/1"));
        assert!(!offers(b"\x02h2") && !offers(b"") && !offers(b"\x0bacme-tls/1"));
        assert!(!offers_only(&records(&message(&sni(b"a.example")), 40), b"acme-tls/1"));
        assert!(!offers_only(b"GET / HTTP/1.1\r\n", b"acme-tls/1"));
    }

    #[test]
    fn what_is_no_tls_and_what_never_ends_is_told_apart() {
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Greeting::NotTls);
        assert_eq!(read(b"\x16"), Greeting::Partial);
        assert_eq!(read(b"\x16GET"), Greeting::NotTls);
        assert_eq!(read(b"\x16\x03\x01\x00\x00"), Greeting::Malformed, "an empty record");
        assert_eq!(read(b"\x16\x03\x01\xff\xff"), Greeting::Malformed, "longer than a record may be");
        assert_eq!(read(b"\x16\x03\x01\x00\x05\x02"), Greeting::Malformed, "another message");
        assert_eq!(read(b"\x16\x03\x01\x00\x05\x01\x02"), Greeting::Partial);
        assert_eq!(
            read(b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\x00"),
            Greeting::Malformed,
            "16 MiB are announced"
        );
    }
}
