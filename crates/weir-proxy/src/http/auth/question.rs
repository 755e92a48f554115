//! The question that a service is asked about a request: a request of Weir's own, written as text and read
//! as a client's would be, so that nothing gets into it that the parser did not check.

use weir_http::{KnownHeader, Limits, Progress, RequestHead, parse_request};

use super::AuthService;
use crate::http::exchange::Exchange;
use crate::http::requester::Requester;

/// Fields by which a proxy that is trusted says who asks: they are extended or kept, as towards backends.
const OF_PROXIES: [KnownHeader; 8] = [
    KnownHeader::Forwarded,
    KnownHeader::XForwardedFor,
    KnownHeader::XForwardedProto,
    KnownHeader::XForwardedHost,
    KnownHeader::XForwardedPort,
    KnownHeader::XRealIp,
    KnownHeader::ClientCert,
    KnownHeader::ClientCertChain,
];
/// Bytes that the question may have besides what the request's own head may have.
const MORE_BYTES: usize = 4096;
/// Fields that it may have more than the request.
const MORE_FIELDS: usize = 8;

/// Writes the question about the request in `exchange` to `out`, and reads it into `head`. `false` where what
/// the request says fits into no question.
///
/// The path that it names is the one that routes compare and backends are asked for: an answer for one path
/// must not let another pass (threat J2).
pub fn write(
    requester: &Requester,
    exchange: &Exchange,
    service: &AuthService,
    limits: &Limits,
    (out, head): (&mut Vec<u8>, &mut RequestHead),
) -> bool {
    let Exchange { request, paths, .. } = exchange;
    let text = requester.received();
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    let target = service.target.as_bytes();
    match request.host(text) {
        Some(host) => put(&[b"GET ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]),
        None => put(&[b"GET ", target, b" HTTP/1.0\r\n"]),
    }
    let is_trusted = requester.identity.is_trusted();
    for field in request.fields(text) {
        let is_told = || service.told.iter().any(|name| field.name.eq_ignore_ascii_case(name.as_bytes()));
        if is_told() || (is_trusted && OF_PROXIES.contains(&field.known)) {
            put(&[field.name, b": ", field.value, b"\r\n"]);
        }
    }
    let path = match paths.compared(request.path(text)) {
        b"" => b"*",
        path => path,
    };
    put(&[b"x-forwarded-method: ", request.method_text(text), b"\r\nx-forwarded-uri: ", path]);
    if let Some(query) = request.query(text) {
        put(&[b"?", query]);
    }
    put(&[b"\r\n\r\n"]);
    let limits = Limits {
        request_line_bytes: limits.request_line_bytes.max(target.len() + 32),
        header_block_bytes: limits.header_block_bytes + limits.request_line_bytes + MORE_BYTES,
        field_count: limits.field_count + MORE_FIELDS,
        ..*limits
    };
    matches!(parse_request(out, &limits, head), Ok(Progress::Complete { head_bytes }) if head_bytes == out.len())
}
