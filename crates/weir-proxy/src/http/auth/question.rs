//! The request that asks an authentication service about a client's request. It is written as text and parsed
//! like a client's request, so that nothing gets into it that the parser did not check.

use std::borrow::Cow;

use weir_config::QuestionPart;
use weir_http::values::cookies;
use weir_http::{Field, KnownHeader, Limits, Progress, RequestHead, parse_request};

use super::AuthService;
use super::remembered::{Remembered, Tag};
use crate::http::exchange::Exchange;
use crate::http::requester::Requester;

/// Fields by which a trusted proxy describes the client: they are extended or kept, as in requests to
/// backends.
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
/// Bytes that the question may have in addition to the limit for the request's own head.
const MORE_BYTES: usize = 4096;
/// Fields that the question may have in addition to those of the request.
const MORE_FIELDS: usize = 8;

/// Writes the question about the request in `exchange` to `out`, and parses it into `head`. `false` if the
/// request does not fit into a valid question.
///
/// It names the path that routes compare and that backends are asked for: an answer for one path must not let
/// another one pass (threat J2). Fields that backends do not see because `connection` names them are left
/// out.
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
    for field in request.end_to_end_fields(text) {
        if is_told(service, &field) {
            if let Some(value) = told_value(service, &field) {
                put(&[field.name, b": ", &value, b"\r\n"]);
            }
        } else if is_trusted && OF_PROXIES.contains(&field.known) {
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

fn is_told(service: &AuthService, field: &Field<'_>) -> bool {
    service.told.iter().any(|name| field.name.eq_ignore_ascii_case(name.as_bytes()))
}

/// What the service is sent of a field; `None` for a field with cookies none of which it is sent.
fn told_value<'f>(service: &AuthService, field: &Field<'f>) -> Option<Cow<'f, [u8]>> {
    if field.known != KnownHeader::Cookie || service.cookies.is_empty() {
        return Some(Cow::Borrowed(field.value));
    }
    let is_named = |name: &[u8]| {
        service.cookies.iter().any(|wanted| match wanted.strip_suffix('*') {
            Some(front) => name.starts_with(front.as_bytes()),
            None => name == wanted.as_bytes(),
        })
    };
    let named = cookies::pairs(field.value).filter(|(name, _)| is_named(name));
    let pairs: Vec<Vec<u8>> = named.map(|(name, value)| [name, b"=", value].concat()).collect();
    (!pairs.is_empty()).then(|| Cow::Owned(pairs.join(&b"; "[..])))
}

/// Fields by which proxies describe where a request comes from, not what it asks for.
const OF_ADDRESSES: [KnownHeader; 3] =
    [KnownHeader::Forwarded, KnownHeader::XForwardedFor, KnownHeader::XRealIp];

/// The tag under which the answer to the question about the request in `exchange` is remembered. It covers
/// all that the service is sent, and all that header rules of its pool could add, except for what `memory`
/// leaves out.
pub(super) fn tag(
    requester: &Requester,
    exchange: &Exchange,
    service: &AuthService,
    memory: &Remembered,
) -> Tag {
    let Exchange { request, paths, .. } = exchange;
    let text = requester.received();
    let mut question = memory.question();
    if let Some(secure) = &requester.secure {
        question.put(b"server name", secure.server_name.as_deref().unwrap_or_default().as_bytes());
        question.put(b"tls version", secure.version_word().as_bytes());
        if let Some(certificate) = &secure.client_certificate {
            question.put(b"client certificate", certificate);
        }
    }
    question.put(b"port", &requester.identity.port().to_be_bytes());
    let is_trusted = requester.identity.is_trusted();
    question.put(b"trusted", &[u8::from(is_trusted)]);
    if let Some(host) = request.host(text).filter(|_| memory.is_by(QuestionPart::Host)) {
        question.put(b"host", host);
    }
    if memory.is_by(QuestionPart::Method) {
        question.put(b"method", request.method_text(text));
    }
    if memory.is_by(QuestionPart::Path) {
        question.put(b"path", paths.compared(request.path(text)));
    }
    if let Some(query) = request.query(text).filter(|_| memory.is_by(QuestionPart::Query)) {
        question.put(b"query", query);
    }
    let by_client = memory.is_by(QuestionPart::ClientIp);
    if by_client {
        let client = exchange.ledger.client(requester).address.ip().to_canonical();
        question.put(b"client", client.to_string().as_bytes());
        question.put(b"peer", requester.identity.address());
    }
    for field in request.end_to_end_fields(text) {
        let of_proxy = || {
            is_trusted
                && OF_PROXIES.contains(&field.known)
                && (by_client || !OF_ADDRESSES.contains(&field.known))
        };
        let value = match is_told(service, &field) {
            true => told_value(service, &field),
            false => of_proxy().then_some(Cow::Borrowed(field.value)),
        };
        if let Some(value) = value {
            // The leading `:` keeps it apart from all parts above.
            question.put(&[b":", &*field.name.to_ascii_lowercase()].concat(), &value);
        }
    }
    question.tag()
}
