//! Properties that hold for any fields at all, and for any message on its way from one version to another.

use super::properties::{FIRST, STATUS, assert_clean, config, head_like};
use super::*;
use proptest::prelude::*;
use weir_http::{
    Asked, RequestBuilder, ResponseBuilder, ResponseContext, TrailerBuilder, Version, request_fields,
    response_fields, write_response,
};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Fields that a good request may have behind its pseudo-headers.
const GOOD: &[(&str, &str)] = &[
    ("host", "a.test"),
    ("cookie", "a=1"),
    ("cookie", "b=2"),
    ("cookie", ""),
    ("content-length", "0"),
    ("te", "trailers"),
    ("expect", "100-continue"),
    ("x-request-id", "abc"),
    ("via", "1.0 z"),
    ("x_forwarded_for", "1"),
    ("x-forwarded-for", "1.1.1.1"),
    ("forwarded", "for=1"),
    ("max-forwards", "3"),
    ("sec-websocket-key", "theirs"),
    ("accept", "*/*"),
    ("x", ""),
];
const NAMES: &[&str] = &[
    ":method",
    ":path",
    ":protocol",
    ":status",
    ":x",
    "transfer-encoding",
    "connection",
    "upgrade",
    "content-length",
    "te",
    "host",
    "cookie",
    "expect",
    "Accept",
    "x:",
    "",
];
const VALUES: &[&str] = &[
    "",
    "GET",
    "websocket",
    "https",
    "b.test:81",
    "/a?b",
    "5",
    "007",
    "trailers, x",
    "x\r\ny: z",
    " x",
    "chunked",
    "\0",
];

fn any_field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let text = |known: &'static [&'static str]| {
        prop::sample::select(known).prop_map(|text| text.as_bytes().to_vec())
    };
    let good = || {
        prop::sample::select(GOOD)
            .prop_map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
    };
    let bytes = || prop::collection::vec(any::<u8>(), 0..6);
    prop_oneof![
        20 => good(),
        1 => (text(NAMES), text(VALUES)),
        1 => (bytes(), text(VALUES)),
        2 => (good(), bytes()).prop_map(|((name, _), value)| (name, value)),
    ]
}

/// Mostly sections that begin as a good request does, so that what is behind it matters.
fn any_request() -> impl Strategy<Value = Fields> {
    let control = (
        prop::sample::select(&["GET", "POST", "OPTIONS", "TRACE", "CONNECT", "EXTENDED"][..]),
        prop::sample::select(&["/", "/a/../%2e?b=c", "*", "//x"][..]),
        prop::sample::select(&["a.test", "A.test:443", "a.test", "[::1]:80"][..]),
        0_usize..40,
    );
    let control = control.prop_map(|(method, path, authority, left_out)| {
        let mut fields: Fields =
            [(":method", method), (":scheme", "https"), (":path", path), (":authority", authority)]
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .into();
        if left_out < fields.len() {
            fields.remove(left_out);
        }
        if let Some((_, method)) = fields.iter_mut().find(|(_, value)| value == b"EXTENDED") {
            *method = b"CONNECT".to_vec();
            fields.push((b":protocol".to_vec(), b"websocket".to_vec()));
        }
        fields
    });
    (control, prop::collection::vec(any_field(), 0..8)).prop_map(|(control, rest)| [control, rest].concat())
}

fn wide() -> Limits {
    Limits {
        request_line_bytes: 1 << 20,
        header_block_bytes: 1 << 20,
        field_count: 1000,
        ..Limits::default()
    }
}

fn build(fields: &Fields, end_stream: bool, limits: &Limits) -> Result<(RequestHead, Vec<u8>), Violation> {
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let mut builder = RequestBuilder::new(Version::Http2, limits, &mut head, &mut text);
    for (name, value) in fields {
        builder.field(name, value)?;
    }
    builder.finish(end_stream)?;
    Ok((head, text))
}

fn parse(text: &[u8]) -> Result<RequestHead, Violation> {
    let mut head = RequestHead::new();
    match parse_request(text, &wide(), &mut head)? {
        Progress::Complete { head_bytes } if head_bytes == text.len() => Ok(head),
        progress => panic!("{progress:?} of {} bytes: {}", text.len(), text.escape_ascii()),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_built_from_any_fields_reads_the_same_in_http_1(fields in any_request(), end_stream: bool, upgrade: bool) {
        if let Ok((head, text)) = build(&fields, end_stream, &Limits::default()) {
            // The text it was built into, and what a backend gets of it: neither can be read in two ways.
            let identity = client(false);
            let context = RequestContext { upgrade, websocket_key: b"k", ..RequestContext::new(&identity, b"made-id") };
            let mut out = Vec::new();
            write_request(&head, &text, &context, &mut out);
            for bytes in [&text, &out] {
                assert_clean(bytes);
                let again = parse(bytes).unwrap();
                prop_assert_eq!(again.method(), head.method());
                prop_assert_eq!(again.target(bytes), head.target(&text));
                prop_assert_eq!(again.host(bytes), head.host(&text));
                prop_assert_eq!((again.path(bytes), again.query(bytes)), (head.path(&text), head.query(&text)));
                prop_assert_eq!(again.path_is_plain(), head.path_is_plain());
                prop_assert_eq!(again.target_form(), head.target_form());
            }
            let built: Vec<_> = head.fields(&text).collect();
            let again = parse(&text).unwrap();
            prop_assert_eq!(again.fields(&text).collect::<Vec<_>>(), built);
            let again = parse(&out).unwrap();
            let framed = if head.body() == BodyLength::UntilClose { BodyLength::Chunked } else { head.body() };
            prop_assert_eq!(again.body(), framed);
            prop_assert_eq!(end_stream && !head.body().is_empty(), false);
            prop_assert_eq!(again.upgrade(&out), head.upgrade(&text).filter(|_| upgrade));
            prop_assert_eq!(again.te_trailers(), head.te_trailers());
        }
    }

    #[test]
    fn a_request_means_the_same_in_every_version(fields in any_request(), trusted: bool) {
        // The same request as a client of HTTP/1.1 sends it.
        if let Ok((head, text)) = build(&fields, true, &Limits::default()) {
            let of = |name: &[u8]| fields.iter().find(|(seen, _)| seen == name).map(|(_, value)| value.clone());
            let (method, path) = (of(b":method").unwrap(), of(b":path").or(of(b":authority")).unwrap());
            let mut wire = [&method[..], b" ", &path, b" HTTP/1.1\r\n"].concat();
            let mut cookie: Option<Vec<u8>> = None;
            if let Some(authority) = of(b":authority") {
                wire.extend_from_slice(&[b"Host: ", &authority[..], b"\r\n"].concat());
            }
            for (name, value) in fields.iter().filter(|(name, _)| name.first() != Some(&b':')) {
                match &name[..] {
                    b"cookie" if value.is_empty() => cookie = cookie.or(Some(Vec::new())),
                    b"cookie" => {
                        let before = cookie.take().filter(|cookie| !cookie.is_empty());
                        cookie = Some(before.map_or(value.clone(), |before| [&before[..], b"; ", value].concat()));
                    }
                    b"host" if of(b":authority").is_some() => {}
                    _ => wire.extend_from_slice(&[&name[..], b":  ", value, b" \r\n"].concat()),
                }
            }
            if let Some(cookie) = cookie {
                wire.extend_from_slice(&[b"cookie: ", &cookie[..], b"\r\n"].concat());
            }
            wire.extend_from_slice(b"\r\n");
            if !head.is_extended_connect() {
                let Ok(parsed) = parse(&wire) else {
                    // Only text that is no text: it is refused in HTTP/1.1 too late to matter.
                    prop_assert!(String::from_utf8(text).is_err(), "only HTTP/1.1 refuses {}", wire.escape_ascii());
                    return Ok(());
                };
                let identity = client(trusted);
                let context = RequestContext::new(&identity, b"made-id");
                let lines = |head: &RequestHead, bytes: &[u8]| {
                    let mut out = Vec::new();
                    write_request(head, bytes, &context, &mut out);
                    let text = String::from_utf8_lossy(&out).to_lowercase().replace("2 weir", "1.1 weir");
                    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                    lines[1..].sort();
                    lines
                };
                if String::from_utf8(text.clone()).is_ok() {
                    prop_assert_eq!(lines(&head, &text), lines(&parsed, &wire));
                }
            }
        }
    }

    #[test]
    fn a_request_passed_on_to_http_2_is_one_that_we_would_take(bytes in head_like(FIRST), trusted: bool, upgrade: bool) {
        let mut head = RequestHead::new();
        if let Ok(Progress::Complete { .. }) = parse_request(&bytes, &Limits::default(), &mut head) {
            let identity = client(trusted);
            let context = RequestContext { upgrade, default_host: b"b", ..RequestContext::new(&identity, b"made-id") };
            let mut fields = Fields::new();
            let upgrades = request_fields(&head, &bytes, &context, &mut |name, value| {
                fields.push((name.to_vec(), value.to_vec()));
            });
            let built = build(&fields, head.body().is_empty(), &wide());
            prop_assert!(built.is_ok(), "{:?}: {:?}", built, fields);
            let (again, text) = built.unwrap();
            prop_assert_eq!(again.method_text(&text), head.method_text(&bytes));
            prop_assert_eq!(again.host(&text), Some(head.host(&bytes).unwrap_or(b"b")));
            prop_assert_eq!(again.upgrade(&text), upgrades);
            prop_assert_eq!(again.query(&text), head.query(&bytes));
            // The same fields as a backend of HTTP/1.1 gets, but for those of its connection.
            let mut out = Vec::new();
            write_request(&head, &bytes, &context, &mut out);
            let connection = ["host", "connection", "transfer-encoding", "upgrade", "sec-websocket-key"];
            let pairs = |fields: Vec<(&[u8], &[u8])>| {
                let pairs = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()));
                let mut pairs: Fields = pairs.filter(|(name, _)| !connection.iter().any(|one| one.as_bytes() == name)).collect();
                pairs.sort();
                pairs
            };
            let written = parse(&out).unwrap();
            let written = pairs(written.fields(&out).map(|field| (field.name, field.value)).collect());
            let visited = fields.iter().filter(|(name, _)| name.first() != Some(&b':'));
            prop_assert_eq!(pairs(visited.map(|(name, value)| (&name[..], &value[..])).collect()), written);
        }
    }

    #[test]
    fn a_response_passed_on_to_http_2_is_one_that_we_would_take(bytes in head_like(STATUS), method_is_head: bool) {
        let method = if method_is_head { Method::Head } else { Method::Get };
        let mut head = ResponseHead::new();
        if let Ok(Progress::Complete { .. }) = parse_response(&bytes, &Limits::default(), method, &mut head) {
            let context = ResponseContext { date: b"now", ..ResponseContext::new(Version::Http3, method, true) };
            let mut fields = Fields::new();
            let sent = response_fields(&head, &bytes, &context, &mut |name, value| fields.push((name.to_vec(), value.to_vec())));
            let (mut again, mut text) = (ResponseHead::new(), Vec::new());
            let limits = wide();
            let upgrade = head.upgrade(&bytes);
            let mut builder = ResponseBuilder::new(Version::Http3, &limits, Asked { method, upgrade }, &mut again, &mut text);
            for (name, value) in &fields {
                prop_assert_eq!(builder.field(name, value), Ok(()), "{:?}", fields);
            }
            let ends = sent.body.is_empty() && !head.is_interim() && !head.is_tunnel();
            prop_assert_eq!(builder.finish(ends), Ok(()), "{:?}", fields);
            prop_assert_eq!((again.status(), again.is_tunnel()), (head.status(), head.is_tunnel()));
            prop_assert_eq!(again.body(), sent.body);
            prop_assert_eq!(again.declared_length(), head.declared_length());
            // And back: a client of HTTP/1.1 behind another Weir gets a well-framed response.
            let mut out = Vec::new();
            let framing = write_response(&again, &text, &ResponseContext::new(Version::Http11, method, true), &mut out);
            assert_clean(&out);
            prop_assert_eq!(response_to(method, &out).unwrap().body(), framing.body);
        }
    }

    #[test]
    fn a_response_built_from_any_fields_is_framed_as_announced(
        fields in prop::collection::vec(any_field(), 0..8),
        status in prop::sample::select(&["200", "204", "304", "103", "404", "999", "101", "99"][..]),
        end_stream: bool,
        upgrade: bool,
    ) {
        let (mut head, mut text) = (ResponseHead::new(), Vec::new());
        let asked = Asked { method: Method::Get, upgrade: upgrade.then_some(b"websocket") };
        let limits = Limits::default();
        let mut builder = ResponseBuilder::new(Version::Http2, &limits, asked, &mut head, &mut text);
        let mut outcome = builder.field(b":status", status.as_bytes());
        for (name, value) in &fields {
            outcome = outcome.and_then(|()| builder.field(name, value));
        }
        if outcome.and_then(|()| builder.finish(end_stream)).is_ok() {
            let mut out = Vec::new();
            let sent = write_response(&head, &text, &ResponseContext::new(Version::Http11, Method::Get, true), &mut out);
            assert_clean(&out);
            let again = response(&out).unwrap();
            prop_assert_eq!((again.status(), again.body()), (head.status(), sent.body));
            prop_assert_eq!(again.upgrade(&out), head.upgrade(&text).filter(|_| head.is_tunnel()));
        }
    }

    #[test]
    fn any_trailers_come_out_clean(fields in prop::collection::vec(any_field(), 0..8)) {
        let mut builder = TrailerBuilder::new(Limits::default().trailers_of_requests());
        if fields.iter().all(|(name, value)| builder.field(name, value).is_ok()) {
            let trailers = builder.finish();
            let mut out = Vec::new();
            weir_http::h1::chunked::write_last_chunk(&mut out, trailers.iter());
            let mut reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
            let step = reader.advance(&out).unwrap();
            prop_assert!(step.complete && step.consumed == out.len());
            prop_assert_eq!(reader.trailers().collect::<Vec<_>>(), trailers.iter().collect::<Vec<_>>());
        }
    }
}
