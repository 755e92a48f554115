//! Properties that hold for any bytes at all.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use weir_http::{Field, ResponseContext, Version, path, write_response};

/// Bytes that look like a head: pieces that matter to the parser in any order.
pub(super) fn head_like(first: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(PIECES).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    let first = prop::sample::select(first).prop_map(|text| text.as_bytes().to_vec());
    (first, prop::collection::vec(piece, 0..14))
        .prop_map(|(first, pieces)| [first, pieces.concat(), b"\r\n\r\n".to_vec()].concat())
}

pub(super) const FIRST: &[&str] = &[
    "GET / HTTP/1.1\r\nhost: a\r\n",
    "POST /x?y HTTP/1.1\r\nHost: shop.example:80\r\n",
    "OPTIONS * HTTP/1.1\r\nhost: a\r\n",
    "GET http://a/b HTTP/1.1\r\nhost: a\r\n",
    "TRACE / HTTP/1.0\r\n",
    "CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n",
    "\r\nPUT /a/../%2e?q HTTP/1.1\r\nhost:a\r\n",
    "",
];

pub(super) const STATUS: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.1 204\r\n",
    "HTTP/1.0 304 x y\r\n",
    "HTTP/1.1 100 \r\n",
    "HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: w\r\n",
    "",
];

const PIECES: &[&str] = &[
    "\r\n",
    "\r",
    "\n",
    " ",
    "\t",
    ":",
    ": ",
    ",",
    ";",
    "%2e",
    "/",
    "?",
    "_",
    "\0",
    "\u{e9}",
    "GET ",
    " HTTP/1.1\r\n",
    "x: y\r\n",
    "x_forwarded_for: z\r\n",
    "content-length: 5\r\n",
    "Content-Length:007\r\n",
    "transfer-encoding: chunked\r\n",
    "connection: close, x\r\n",
    "Connection: upgrade\r\n",
    "upgrade: websocket\r\n",
    "te: trailers\r\n",
    "via: 1.1 z\r\n",
    "x-request-id: abc\r\n",
    "expect: 100-continue\r\n",
    "x-forwarded-for: 1.1.1.1\r\n",
    "Max-Forwards: 3\r\n",
    "cookie:  a=b \r\n",
    "accept:  a\r\n",
    "range: \tb\r\n",
    "age: 1 \r\n",
    "x-of-no-value: \r\n",
    "x-unknown: x: y\r\n",
    "host: a\r\n",
    "date: now\r\n",
    "trailer: q\r\n",
];

/// Parses in pieces that end at the given positions, then whole.
fn parse_split(bytes: &[u8], ends: &[usize], limits: &Limits) -> (Result<Progress, Violation>, RequestHead) {
    let mut head = RequestHead::new();
    for &end in ends.iter().chain([&bytes.len()]) {
        match parse_request(&bytes[..end], limits, &mut head) {
            Ok(Progress::Partial) if end < bytes.len() => {}
            outcome => return (outcome, head),
        }
    }
    (Ok(Progress::Partial), head)
}

/// No line of a head holds a control byte but tab, and lines end in CRLF only.
pub(super) fn assert_clean(head: &[u8]) {
    assert!(head.ends_with(b"\r\n\r\n"), "{}", head.escape_ascii());
    let lines = head[..head.len() - 4].split(|&byte| byte == b'\n');
    let count = lines.clone().count();
    for (index, line) in lines.enumerate() {
        let text = if index + 1 < count { line.strip_suffix(b"\r").expect("CRLF") } else { line };
        assert!(!text.is_empty(), "empty line inside {}", head.escape_ascii());
        assert!(
            text.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f)),
            "{}",
            head.escape_ascii()
        );
    }
}

fn small_limits() -> Limits {
    Limits { request_line_bytes: 40, header_block_bytes: 120, field_count: 6, ..Limits::default() }
}

/// A seed from `WEIR_SEED`, or a new one; printed, so that a failure can be had again.
#[expect(clippy::disallowed_methods, reason = "a run without a seed makes one")]
pub(super) fn config() -> ProptestConfig {
    let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("WEIR_SEED={seed}");
    ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_never_panic_any_parser(bytes in prop::collection::vec(any::<u8>(), 0..300), method_is_head: bool) {
        let _ = parse_request(&bytes, &Limits::default(), &mut RequestHead::new());
        let method = if method_is_head { Method::Head } else { Method::Get };
        let _ = parse_response(&bytes, &Limits::default(), method, &mut ResponseHead::new());
        let _ = weir_http::proxy_protocol::parse(&bytes, 536);
        let _ = path::normalise(&bytes);
        let _ = read_body(BodyLength::Chunked, &bytes);
    }

    #[test]
    fn a_request_means_the_same_however_it_is_split(bytes in head_like(FIRST), small: bool) {
        let limits = if small { small_limits() } else { Limits::default() };
        let (whole, whole_head) = parse_split(&bytes, &[], &limits);
        let every: Vec<usize> = (0..bytes.len()).collect();
        for end in &every {
            let (split, head) = parse_split(&bytes, &[*end], &limits);
            prop_assert_eq!(whole, split, "split at {} of {}", end, bytes.escape_ascii());
            if matches!(whole, Ok(Progress::Complete { .. })) {
                prop_assert_eq!(&whole_head, &head);
            }
        }
        prop_assert_eq!(whole, parse_split(&bytes, &every, &limits).0, "byte by byte");
    }

    #[test]
    fn a_response_means_the_same_however_it_is_split(bytes in head_like(STATUS), small: bool) {
        let limits = if small { small_limits() } else { Limits::default() };
        let mut whole_head = ResponseHead::new();
        let whole = parse_response(&bytes, &limits, Method::Get, &mut whole_head);
        for end in 0..bytes.len() {
            let mut head = ResponseHead::new();
            let mut split = parse_response(&bytes[..end], &limits, Method::Get, &mut head);
            if split == Ok(Progress::Partial) {
                split = parse_response(&bytes, &limits, Method::Get, &mut head);
            }
            prop_assert_eq!(whole, split, "split at {} of {}", end, bytes.escape_ascii());
        }
    }

    #[test]
    fn a_head_used_again_after_clear_is_as_good_as_new(one in head_like(FIRST), other in head_like(FIRST)) {
        let mut used = RequestHead::new();
        let _ = parse_request(&one, &Limits::default(), &mut used);
        used.clear();
        let again = parse_request(&other, &Limits::default(), &mut used);
        let mut fresh = RequestHead::new();
        prop_assert_eq!(again, parse_request(&other, &Limits::default(), &mut fresh));
        if matches!(again, Ok(Progress::Complete { .. })) {
            prop_assert_eq!(used, fresh);
        }
    }

    #[test]
    fn a_forwarded_request_is_clean_and_means_what_was_received(bytes in head_like(FIRST), trusted: bool, upgrade: bool) {
        let mut head = RequestHead::new();
        if let Ok(Progress::Complete { .. }) = parse_request(&bytes, &Limits::default(), &mut head) {
            let identity = client(trusted);
            let context = RequestContext { upgrade, default_host: b"b", ..RequestContext::new(&identity, b"made-id") };
            let mut out = Vec::new();
            write_request(&head, &bytes, &context, &mut out);
            assert_clean(&out);
            let mut again = RequestHead::new();
            let limits = Limits { request_line_bytes: 1 << 20, header_block_bytes: 1 << 20, field_count: 200, ..Limits::default() };
            let progress = parse_request(&out, &limits, &mut again);
            prop_assert_eq!(progress, Ok(Progress::Complete { head_bytes: out.len() }), "{}", out.escape_ascii());
            prop_assert_eq!((again.method(), again.body()), (head.method(), head.body()));
            prop_assert_eq!(again.query(&out), head.query(&bytes));
            prop_assert_eq!(again.host(&out), Some(head.host(&bytes).unwrap_or(b"b")));
            prop_assert_eq!(again.version(), Version::Http11);
            let asterisk = out.starts_with(b"OPTIONS * ");
            prop_assert!(asterisk || again.path(&out) == head.path(&bytes));
            prop_assert_eq!(again.upgrade(&out), head.upgrade(&bytes).filter(|_| upgrade));
        }
    }

    #[test]
    fn a_forwarded_response_is_clean_and_framed_as_announced(bytes in head_like(STATUS), old: bool, keep_alive: bool) {
        let mut head = ResponseHead::new();
        if let Ok(Progress::Complete { .. }) = parse_response(&bytes, &Limits::default(), Method::Get, &mut head) {
            let version = if old { Version::Http10 } else { Version::Http11 };
            let mut out = Vec::new();
            let sent = write_response(&head, &bytes, &ResponseContext::new(version, Method::Get, keep_alive), &mut out);
            assert_clean(&out);
            let again = response(&out).unwrap();
            prop_assert_eq!((again.status(), again.body()), (head.status(), sent.body));
            prop_assert_eq!(again.reason(&out), head.reason(&bytes));
            if !again.is_interim() && !old {
                prop_assert_eq!(again.keep_alive(), sent.keep_alive);
            }
        }
    }

    #[test]
    fn chunked_content_survives_any_chunks_and_any_splits(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        cuts in prop::collection::vec(1_usize..9, 1..20),
        trailer in prop::option::of("[a-z]{1,8}"),
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            weir_http::h1::chunked::write_chunk_head(&mut wire, chunk.len() as u64);
            wire.extend_from_slice(chunk);
            weir_http::h1::chunked::write_chunk_end(&mut wire);
        }
        let field = trailer.as_ref().map(|value| Field { name: b"x-sum", value: value.as_bytes(), known: weir_http::KnownHeader::Other });
        weir_http::h1::chunked::write_last_chunk(&mut wire, field);
        let whole = wire.len();
        wire.extend_from_slice(b"GET /next");
        let mut reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
        let (mut content, mut at) = (Vec::new(), 0);
        let mut cuts = cuts.iter().cycle();
        while !reader.is_complete() {
            let end = (at + cuts.next().unwrap()).min(wire.len());
            let step = reader.advance(&wire[at..end]).unwrap();
            prop_assert!(step.consumed > 0, "progress on {} bytes", end - at);
            content.extend_from_slice(&wire[at..end][step.data]);
            at += step.consumed;
        }
        prop_assert_eq!(at, whole);
        prop_assert_eq!(content, chunks.concat());
        let trailers: Vec<_> = reader.trailers().map(|field| field.value.to_vec()).collect();
        prop_assert_eq!(trailers, trailer.map(String::into_bytes).into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_chunked_body_is_judged_the_same_however_it_is_split(
        pieces in prop::collection::vec(prop::sample::select(CHUNK_PIECES), 0..12),
    ) {
        let bytes = pieces.concat().into_bytes();
        let whole = read_body(BodyLength::Chunked, &bytes);
        let mut reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
        let (mut content, mut at) = (Vec::new(), 0);
        let single = loop {
            if reader.is_complete() {
                break Ok((content, at));
            }
            let Some(byte) = bytes.get(at..at + 1) else {
                break reader.finish_at_eof().map(|()| (content, at));
            };
            match reader.advance(byte) {
                Ok(step) => {
                    content.extend_from_slice(&byte[step.data]);
                    at += step.consumed;
                }
                Err(violation) => break Err(violation),
            }
        };
        prop_assert_eq!(whole, single, "{}", bytes.escape_ascii());
    }

    #[test]
    fn normalising_twice_is_normalising_once(raw in "/[a-z./%25eE;A-F0-9~_-]{0,30}") {
        if let Ok(once) = path::normalise(raw.as_bytes()) {
            prop_assert!(once.starts_with(b"/"));
            let segments = once.split(|&byte| byte == b'/');
            prop_assert!(segments.clone().all(|segment| segment != b"." && segment != b".."), "{}", once.escape_ascii());
            prop_assert_eq!(path::normalise(&once).map(|twice| twice.into_owned()), Ok(once.clone().into_owned()));
        }
    }
}

const CHUNK_PIECES: &[&str] = &[
    "0",
    "1",
    "5",
    "a",
    "\r\n",
    "\r",
    "\n",
    "x",
    "hello",
    ";",
    ";a",
    "=",
    "\"",
    "\\",
    " ",
    "0\r\n",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "x: y\r\n",
    "host: a\r\n",
    ": ",
    "1;a=\"b\"\r\nz\r\n",
];
