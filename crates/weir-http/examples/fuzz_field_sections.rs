//! Fuzzes heads and trailers that are built from decoded fields: no panic, and what is accepted reads the
//! same in HTTP/1.1, goes out clean to both kinds of backends, and stays within the limits it was built with.
//!
//! Inputs are fields one after another: name, 0xff, value, 0xfe. `cargo run --release -p weir-http --example
//! fuzz_field_sections -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use fuzzing::Draws;
use weir_http::{
    Asked, BodyLength, BodyReader, ClientIdentity, Limits, Method, Progress, RequestBuilder, RequestContext,
    RequestHead, ResponseBuilder, ResponseContext, ResponseHead, Scheme, TrailerBuilder, Version, Violation,
    parse_request, parse_response, request_fields, response_fields, write_request, write_response,
};

const SEEDS: &[&[u8]] = &[
    b":method\xffGET\xfe:scheme\xffhttps\xfe:authority\xffa.test\xfe:path\xff/x?y\xfeaccept\xff*/*\xfe",
    b":method\xffPOST\xfe:scheme\xffhttp\xfe:authority\xff[::1]:80\xfe:path\xff/%2e/\xfecontent-length\xff5\xfete\xfftrailers\xfe",
    b":method\xffCONNECT\xfe:protocol\xffwebsocket\xfe:scheme\xffhttps\xfe:authority\xffa\xfe:path\xff/\xfesec-websocket-key\xffx\xfe",
    b":method\xffCONNECT\xfe:authority\xffa:443\xfe",
    b":method\xffOPTIONS\xfe:scheme\xffhttps\xfe:path\xff*\xfehost\xffb\xfemax-forwards\xff3\xfe",
    b":method\xffPUT\xfe:scheme\xffhttps\xfe:authority\xffa\xfe:path\xff/\xfecookie\xffa=1\xfex\xffy\xfecookie\xffb=2\xfecookie\xffc\xfe",
    b":status\xff200\xfecontent-length\xff5\xfeset-cookie\xffa\xfeset-cookie\xffb\xfe",
    b":status\xff204\xfedate\xffx\xfevia\xff1.0 y\xfe",
    b"grpc-status\xff0\xfehost\xffb\xfe",
];

const PIECES: &[&[u8]] = &[
    b"cookie\xffa\xfe",
    b"host\xffa.test\xfe",
    b"content-length\xff5\xfe",
    b"transfer-encoding\xffchunked\xfe",
    b"connection\xffclose\xfe",
    b"expect\xff100-continue\xfe",
    b"x_forwarded_for\xff1\xfe",
    b"x-request-id\xffabc\xfe",
    b":path\xff/\xfe",
    b"\r\nhost: b\r\n",
    b"\r\n\r\n",
    b" HTTP/1.1",
    b"http://",
    b"%2e%2e/",
    b"007",
    b"XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX",
];

fn main() -> ExitCode {
    let identity = ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Scheme::Https, false);
    fuzzing::run("sections", SEEDS, PIECES, |bytes, draws| {
        let limits = Limits {
            request_line_bytes: if draws.below(4) == 0 { 30 } else { 8192 },
            header_block_bytes: if draws.below(4) == 0 { 200 } else { 65536 },
            field_count: 1 + draws.below(12),
            ..Limits::default()
        };
        match bytes {
            [b':', b'm', ..] => request(bytes, &limits, draws, &identity),
            [b':', b's', ..] => response(bytes, &limits, draws),
            _ => trailers(bytes, &limits),
        }
    })
}

fn fields(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    bytes.split(|&byte| byte == 0xfe).filter(|field| !field.is_empty()).map(|field| {
        let middle = field.iter().position(|&byte| byte == 0xff).unwrap_or(field.len());
        (&field[..middle], field.get(middle + 1..).unwrap_or_default())
    })
}

fn outcome(violation: Violation) -> Result<u64, String> {
    Ok(2 + violation as u64)
}

fn wide() -> Limits {
    Limits { request_line_bytes: 1 << 20, header_block_bytes: 1 << 20, field_count: 200, ..Limits::default() }
}

fn request(
    bytes: &[u8],
    limits: &Limits,
    draws: &mut Draws,
    identity: &ClientIdentity,
) -> Result<u64, String> {
    let end_stream = draws.below(2) == 0;
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let mut builder = RequestBuilder::new(Version::Http2, limits, &mut head, &mut text);
    let taken = fields(bytes).try_for_each(|(name, value)| builder.field(name, value));
    if let Err(violation) = taken.and_then(|()| builder.finish(end_stream)) {
        return outcome(violation);
    }
    if text.len() > limits.section_bytes() || head.fields(&text).len() > limits.field_count {
        return Err(format!("limits exceeded by {} bytes of text", text.len()));
    }
    let upgrade = draws.below(2) == 0;
    let context = RequestContext { upgrade, websocket_key: b"k", ..RequestContext::new(identity, b"made") };
    let mut out = Vec::new();
    write_request(&head, &text, &context, &mut out);
    for bytes in [&text, &out] {
        clean(bytes)?;
        let mut again = RequestHead::new();
        match parse_request(bytes, &wide(), &mut again) {
            Ok(Progress::Complete { head_bytes }) if head_bytes == bytes.len() => {}
            other => return Err(format!("built request reads as {other:?}: \"{}\"", bytes.escape_ascii())),
        }
        let one = (again.method(), again.target(bytes), again.host(bytes), again.path_is_plain());
        if one != (head.method(), head.target(&text), head.host(&text), head.path_is_plain()) {
            return Err(format!("built request means something else: \"{}\"", bytes.escape_ascii()));
        }
        let framed = head.body() == again.body()
            || (head.body() == BodyLength::UntilClose && bytes == &text)
            || (head.body().is_open_ended() && again.body() == BodyLength::Chunked);
        if !framed || (end_stream && !head.body().is_empty()) {
            return Err(format!("body {:?} became {:?}", head.body(), again.body()));
        }
    }
    let (mut again, mut second) = (RequestHead::new(), Vec::new());
    let limits = wide();
    let mut builder = RequestBuilder::new(Version::Http2, &limits, &mut again, &mut second);
    let mut taken = Ok(());
    request_fields(&head, &text, &context, &mut |name, value| {
        taken = taken.and_then(|()| builder.field(name, value));
    });
    match taken.and_then(|()| builder.finish(head.body().is_empty())) {
        Ok(()) if again.body() == head.body() => Ok(1 + 100 * u64::from(again.is_extended_connect())),
        other => Err(format!("passed on to HTTP/2 it is {other:?}: \"{}\"", second.escape_ascii())),
    }
}

fn response(bytes: &[u8], limits: &Limits, draws: &mut Draws) -> Result<u64, String> {
    let method = [Method::Get, Method::Head, Method::Connect][draws.below(3)];
    let upgrade = (method == Method::Get && draws.below(2) == 0).then_some(&b"websocket"[..]);
    let (mut head, mut text) = (ResponseHead::new(), Vec::new());
    let mut builder =
        ResponseBuilder::new(Version::Http3, limits, Asked { method, upgrade }, &mut head, &mut text);
    let taken = fields(bytes).try_for_each(|(name, value)| builder.field(name, value));
    if let Err(violation) = taken.and_then(|()| builder.finish(draws.below(2) == 0)) {
        return outcome(violation).map(|label| 1000 + label);
    }
    let mut out = Vec::new();
    let sent = write_response(&head, &text, &ResponseContext::new(Version::Http11, method, true), &mut out);
    clean(&out)?;
    let mut again = ResponseHead::new();
    let read = parse_response(&out, &wide(), method, &mut again);
    if read != Ok(Progress::Complete { head_bytes: out.len() }) || again.body() != sent.body {
        return Err(format!("built response reads as {read:?}: \"{}\"", out.escape_ascii()));
    }
    let mut statuses = 0;
    let context = ResponseContext::new(Version::Http2, method, true);
    response_fields(&head, &text, &context, &mut |name, _| statuses += u32::from(name.starts_with(b":")));
    if statuses == 1 { Ok(1001) } else { Err(format!("{statuses} pseudo-headers in a response")) }
}

fn trailers(bytes: &[u8], limits: &Limits) -> Result<u64, String> {
    let mut builder = TrailerBuilder::new(limits.trailers_of_requests());
    if let Err(violation) = fields(bytes).try_for_each(|(name, value)| builder.field(name, value)) {
        return outcome(violation).map(|label| 2000 + label);
    }
    let mut out = Vec::new();
    weir_http::h1::chunked::write_last_chunk(&mut out, builder.finish().iter());
    let mut reader = BodyReader::new(BodyLength::Chunked, &wide());
    match reader.advance(&out) {
        Ok(step) if step.complete && step.consumed == out.len() => Ok(2001),
        other => Err(format!("trailers read as {other:?}: \"{}\"", out.escape_ascii())),
    }
}

/// Lines end in CRLF, hold no other control byte than tab, and only the last is empty.
fn clean(head: &[u8]) -> Result<(), String> {
    let text = head.strip_suffix(b"\r\n\r\n").ok_or("head does not end in an empty line")?;
    let mut lines = text.split(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let last = lines.peek().is_none();
        let line = if last { Some(line) } else { line.strip_suffix(b"\r") };
        let good = |line: &[u8]| {
            !line.is_empty() && line.iter().all(|&byte| byte == b'\t' || !byte.is_ascii_control())
        };
        if !line.is_some_and(good) {
            return Err(format!("bad line written: \"{}\"", head.escape_ascii()));
        }
    }
    Ok(())
}
