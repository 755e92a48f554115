//! Fuzzes request and response heads: no panic, the same result for every split, and what is forwarded is
//! clean and means the same when it is read again.
//!
//! `cargo run --release -p weir-http --example fuzz_request_head -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use fuzzing::Draws;
use weir_http::{
    ClientIdentity, Limits, Method, Progress, RequestContext, RequestHead, ResponseContext, ResponseHead,
    Scheme, Version, Violation, parse_request, parse_response, path, write_request, write_response,
};

const SEEDS: &[&[u8]] = &[
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /x?y=z HTTP/1.1\r\nHost: shop.example:8080\r\nContent-Length: 5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\nhello",
    b"PUT http://a:80/b%2f../c HTTP/1.1\r\nhost: A\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: x\r\n\r\n",
    b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"\r\nOPTIONS * HTTP/1.1\r\nHost:[::1]:80\r\nMax-Forwards: 3\r\nVia: 1.0 x\r\nX_Forwarded_For:  1\t\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
    b"TRACE / HTTP/1.0\r\nX-Request-Id: abc\r\nExpect: 100-continue\r\nForwarded: for=1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nDate: x\r\nConnection: keep-alive\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.0 204 \r\nContent-Length: 0\r\nVia: 1.1 y\r\n\r\n",
];

const PIECES: &[&[u8]] = &[
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close, x\r\n",
    b"Host: b\r\n",
    b"x-forwarded-for: 1\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n\r\n",
    b"\r\n",
    b" HTTP/1.1\r\n",
    b"chunked",
    b"HTTP/1.0",
    b"http://",
    b"%2e%2e/",
    b"18446744073709551616",
    b"\r\n folded",
    b"XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX",
];

fn main() -> ExitCode {
    let identity = ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Scheme::Http, false);
    let trusted = ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Scheme::Https, true);
    fuzzing::run("heads", SEEDS, PIECES, |bytes, draws| {
        let limits = Limits {
            request_line_bytes: if draws.below(4) == 0 { 30 } else { 8192 },
            header_block_bytes: if draws.below(4) == 0 { 90 } else { 65536 },
            field_count: 1 + draws.below(12),
            ..Limits::default()
        };
        if bytes.starts_with(b"HTTP") {
            response(bytes, &limits, draws)
        } else {
            let identity = if draws.below(2) == 0 { &identity } else { &trusted };
            request(bytes, &limits, draws, identity)
        }
    })
}

fn outcome(result: Result<Progress, Violation>) -> u64 {
    match result {
        Ok(Progress::Partial) => 0,
        Ok(Progress::Complete { .. }) => 1,
        Err(violation) => 2 + violation as u64,
    }
}

fn request(
    bytes: &[u8],
    limits: &Limits,
    draws: &mut Draws,
    identity: &ClientIdentity,
) -> Result<u64, String> {
    let mut head = RequestHead::new();
    let whole = parse_request(bytes, limits, &mut head);
    let (mut split_head, mut end) = (RequestHead::new(), 0);
    let split = loop {
        end = (end + 1 + draws.below(12)).min(bytes.len());
        match parse_request(&bytes[..end], limits, &mut split_head) {
            Ok(Progress::Partial) if end < bytes.len() => {}
            result => break result,
        }
    };
    if whole != split {
        return Err(format!("whole gives {whole:?}, split gives {split:?}"));
    }
    let Ok(Progress::Complete { .. }) = whole else { return Ok(outcome(whole)) };
    if head != split_head {
        return Err("whole and split fill the head differently".to_owned());
    }
    let normal = path::normalise(head.path(bytes));
    let context = RequestContext {
        path: normal.as_deref().ok().filter(|path| !path.is_empty() && draws.below(2) == 0),
        upgrade: draws.below(2) == 0,
        default_host: b"b",
        ..RequestContext::new(identity, b"made")
    };
    let mut out = Vec::new();
    write_request(&head, bytes, &context, &mut out);
    clean(&out)?;
    let wide =
        Limits { request_line_bytes: 1 << 20, header_block_bytes: 1 << 20, field_count: 200, ..*limits };
    let mut again = RequestHead::new();
    match parse_request(&out, &wide, &mut again) {
        Ok(Progress::Complete { head_bytes }) if head_bytes == out.len() => {}
        other => return Err(format!("forwarded request reads as {other:?}: \"{}\"", out.escape_ascii())),
    }
    let host = head.host(bytes).unwrap_or(b"b");
    if (again.method(), again.body(), again.host(&out)) != (head.method(), head.body(), Some(host)) {
        return Err(format!("forwarded request means something else: \"{}\"", out.escape_ascii()));
    }
    Ok(outcome(whole) + 1000 * (1 + normal.map_or_else(|violation| violation as u64, |_| 0)))
}

fn response(bytes: &[u8], limits: &Limits, draws: &mut Draws) -> Result<u64, String> {
    let method = [Method::Get, Method::Head, Method::Connect][draws.below(3)];
    let mut head = ResponseHead::new();
    let whole = parse_response(bytes, limits, method, &mut head);
    let mut split_head = ResponseHead::new();
    let mut split = parse_response(&bytes[..draws.below(bytes.len())], limits, method, &mut split_head);
    if split == Ok(Progress::Partial) {
        split = parse_response(bytes, limits, method, &mut split_head);
    }
    if whole != split {
        return Err(format!("whole gives {whole:?}, split gives {split:?}"));
    }
    if let Ok(Progress::Complete { .. }) = whole {
        let version = [Version::Http10, Version::Http11][draws.below(2)];
        let mut out = Vec::new();
        let sent = write_response(&head, bytes, &ResponseContext::new(version, method, true), &mut out);
        clean(&out)?;
        let wide =
            Limits { request_line_bytes: 1 << 20, header_block_bytes: 1 << 20, field_count: 200, ..*limits };
        let mut again = ResponseHead::new();
        let read = parse_response(&out, &wide, method, &mut again);
        if read != Ok(Progress::Complete { head_bytes: out.len() }) || again.body() != sent.body {
            return Err(format!("forwarded response reads as {read:?}: \"{}\"", out.escape_ascii()));
        }
    }
    Ok(10_000 + outcome(whole))
}

/// Lines end in CRLF, hold no other control byte than tab, and only the last is empty.
fn clean(head: &[u8]) -> Result<(), String> {
    let text = head.strip_suffix(b"\r\n\r\n").ok_or("head does not end in an empty line")?;
    let mut lines = text.split(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let line = if lines.peek().is_some() {
            line.strip_suffix(b"\r").ok_or("LF without CR written")?
        } else {
            line
        };
        if line.is_empty() || line.iter().any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f) {
            return Err(format!("control byte or empty line written: \"{}\"", head.escape_ascii()));
        }
    }
    Ok(())
}
