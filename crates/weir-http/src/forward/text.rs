//! Writes messages as HTTP/1.1 text.
//!
//! A field line whose stored bytes are exactly what Weir would write (`name: value` CRLF, each byte
//! validated) is copied from the buffer, together with its neighbours of that kind; all other lines are
//! composed anew.

use super::keep::{KeepRule, put_kept};
use super::{
    Query, RequestContext, ResponseContext, SentFraming, authority_of, client_framing, cookies, host_of,
    put_conditions, put_early, put_identity, put_max_forwards, put_request_id, put_response_tail,
    request_rule, response_rule, target_of,
};
use crate::body_length::BodyLength;
use crate::edits::{FieldEdits, ReplacedValue};
use crate::h1::encode;
use crate::known::{IDENTITY, KnownHeader, KnownSet, same};
use crate::message::{CANONICAL, Fields, RequestHead, ResponseHead, TargetForm, Version};
use crate::scan;

/// Writes the head of a request for a backend, as HTTP/1.1.
///
/// The body follows as [`RequestHead::body`] says: either that many bytes, or chunks written with
/// [`crate::h1::chunked`]. `buffer` is what `head` was parsed from. Does not allocate once `out` is large
/// enough.
pub fn write_request(head: &RequestHead, buffer: &[u8], context: &RequestContext<'_>, out: &mut Vec<u8>) {
    out.reserve(head.head_bytes + context.path.map_or(0, <[u8]>::len) + 512);
    let replaced = FieldEdits::known(&context.edits);
    let rule = request_rule(head, context, replaced);
    let run_start = write_request_line(head, buffer, context, out);
    // If Host is missing or differs from the authority, the request line was composed, so that the field can
    // follow it.
    let host_stays = head.fields.seen.has(KnownHeader::Host) && !rule.dropped.has(KnownHeader::Host);
    if !host_stays {
        encode::write_field(out, b"host", authority_of(head, buffer, context));
    }
    copy_fields(&head.fields, buffer, run_start, &rule, out);
    cookies::put(&head.fields, buffer, context, replaced, out);
    if head.body.is_open_ended() {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    write_identity(head, buffer, context, replaced, out);
    if let Some(edits) = &context.edits {
        out.extend_from_slice(edits.lines);
    }
    write_request_connection(head, buffer, context, out);
    put_max_forwards(head, out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the request line, or leaves it to the run of copied bytes that begins at the returned position.
fn write_request_line(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    out: &mut Vec<u8>,
) -> usize {
    let composed = context.path.is_some()
        || context.query != Query::AsSent
        || context.host.is_some()
        || context.backend_host.is_some()
        || head.form == TargetForm::Absolute
        || head.version == Version::Http10
        || !head.fields.seen.has(KnownHeader::Host);
    if !composed {
        return head.method_text.start();
    }
    out.extend_from_slice(head.method_text(buffer));
    out.push(b' ');
    let (path, query) = target_of(head, buffer, context);
    out.extend_from_slice(path);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    head.fields.start
}

/// Writes `via`, `x-forwarded-*`, `x-real-ip`, `forwarded` and `x-request-id`, except for those that rules
/// drop.
fn write_identity(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    replaced: KnownSet,
    out: &mut Vec<u8>,
) {
    let identity = context.identity;
    let host = host_of(head, buffer, context);
    let usual = !identity.trusted
        && head.version == identity.version
        && !head.fields.seen.has(KnownHeader::Via)
        && context.port.is_none()
        && replaced.intersection(IDENTITY.with(KnownHeader::Via)).is_empty();
    if usual {
        out.extend_from_slice(&identity.lines);
        if let Some(host) = host {
            out.extend_from_slice(b"x-forwarded-host: ");
            out.extend_from_slice(host);
            out.extend_from_slice(b"\r\nforwarded: ");
            out.extend_from_slice(&identity.element);
            out.extend_from_slice(b";host=\"");
            out.extend_from_slice(host);
            out.extend_from_slice(b"\"\r\n");
        } else {
            encode::write_field(out, b"forwarded", &identity.element);
        }
    } else {
        put_identity(head, buffer, context, replaced, out);
    }
    put_request_id(head, context, replaced, out);
    put_conditions(context, out);
    put_early(context, out);
}

fn write_request_connection(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    out: &mut Vec<u8>,
) {
    let upgrade = head.upgrade(buffer).filter(|_| context.upgrade);
    if head.te_trailers {
        out.extend_from_slice(b"te: trailers\r\n");
    }
    if let Some(protocol) = upgrade {
        encode::write_field(out, b"upgrade", protocol);
        if head.extended_connect && !context.websocket_key.is_empty() {
            encode::write_field(out, b"sec-websocket-key", context.websocket_key);
        }
    }
    //= https://www.rfc-editor.org/rfc/rfc9110#section-7.8
    //# A sender of Upgrade MUST also send an "Upgrade" connection option
    out.extend_from_slice(match (upgrade.is_some(), head.te_trailers, context.close) {
        (false, false, false) => b"",
        (false, false, true) => b"connection: close\r\n",
        (false, true, false) => b"connection: te\r\n",
        (false, true, true) => b"connection: te, close\r\n",
        (true, false, _) => b"connection: upgrade\r\n",
        (true, true, _) => b"connection: upgrade, te\r\n",
    });
}

/// Copies the fields to keep, in order. The bytes from `run_start` up to the first field are copied, too.
#[inline]
fn copy_fields(fields: &Fields, buffer: &[u8], mut run_start: usize, rule: &KeepRule<'_>, out: &mut Vec<u8>) {
    if rule.keeps_all(fields) && fields.all_canonical {
        out.extend_from_slice(buffer.get(run_start..fields.end).unwrap_or_default());
        return;
    }
    let mut run_end = fields.start;
    let mut new = Vec::new();
    for line in &fields.lines {
        let outcome = rule.outcome(line, buffer, &mut new);
        if outcome == ReplacedValue::Same && line.flags & CANONICAL != 0 {
            if run_end != line.name.start() {
                out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
                run_start = line.name.start();
            }
            run_end = line.value.end() + 2;
            continue;
        }
        out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
        run_start = run_end;
        match outcome {
            ReplacedValue::Same => put_kept(line, buffer, out),
            ReplacedValue::New => encode::write_field(out, line.name.of(buffer), &new),
            ReplacedValue::LeftOut => {}
        }
    }
    out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
}

/// Writes the head of a response for an HTTP/1.x client, including interim responses, and a 101 whose
/// protocol was checked ([`ResponseHead::accepts_upgrade`]). Does not allocate once `out` is large enough.
///
/// Interim responses must not be sent to an HTTP/1.0 client (RFC 9110 §15.2).
pub fn write_response(
    head: &ResponseHead,
    buffer: &[u8],
    context: &ResponseContext<'_>,
    out: &mut Vec<u8>,
) -> SentFraming {
    out.reserve(head.head_bytes + 256);
    let sent = client_framing(head, context);
    let run_start = write_response_line(head, buffer, out);
    let rule = response_rule(head, context);
    copy_fields(&head.fields, buffer, run_start, &rule, out);
    put_response_tail(head, buffer, context, out);
    if head.is_interim() {
        out.extend_from_slice(b"\r\n");
        return sent;
    }
    if sent.body == BodyLength::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if let Some(protocol) = head.upgrade(buffer) {
        encode::write_field(out, b"upgrade", protocol);
        out.extend_from_slice(b"connection: upgrade\r\n");
        if !context.websocket_accept.is_empty() && !head.fields.seen.has(KnownHeader::SecWebsocketAccept) {
            encode::write_field(out, b"sec-websocket-accept", context.websocket_accept);
        }
    } else if head.status == 426 && context.client_version == Version::Http11 {
        write_wanted_protocols(head, buffer, sent.keep_alive, out);
    } else if !head.tunnel {
        encode::write_connection(sent.keep_alive, context.client_version, out);
    }
    out.extend_from_slice(b"\r\n");
    sent
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-15.5.22
//# The server MUST send an Upgrade header field in a 426 response to
//# indicate the required protocol(s)
/// Writes which protocols a backend requires, except for `h2c`, which Weir forwards to nobody.
#[cold]
fn write_wanted_protocols(head: &ResponseHead, buffer: &[u8], keep_alive: bool, out: &mut Vec<u8>) {
    let names_h2c = |value: &[u8]| value.split(|&byte| byte == b',').any(|one| same(b"h2c", scan::trim(one)));
    let mut is_any = false;
    for value in head.fields.values(KnownHeader::Upgrade, buffer).filter(|value| !names_h2c(value)) {
        encode::write_field(out, b"upgrade", value);
        is_any = true;
    }
    out.extend_from_slice(match (is_any, keep_alive) {
        (true, true) => b"connection: upgrade\r\n",
        (true, false) => b"connection: upgrade, close\r\n",
        (false, true) => b"",
        (false, false) => b"connection: close\r\n",
    });
}

/// Writes the status line, or leaves it to the run of copied bytes that begins at the returned position.
fn write_response_line(head: &ResponseHead, buffer: &[u8], out: &mut Vec<u8>) -> usize {
    // The reason begins at byte 13 only if the space before it is there.
    if head.version != Version::Http10 && head.reason.start() == 13 {
        return 0;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    encode::write_decimal(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason(buffer));
    out.extend_from_slice(b"\r\n");
    head.fields.start
}
