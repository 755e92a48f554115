//! Passes messages field by field to an HTTP/2 or HTTP/3 encoder.
//!
//! Pseudo-headers come first, names are in lower case, and there are no connection-specific fields (RFC 9113
//! §8, RFC 9114 §4). A `cookie` stays one field, which RFC 9113 §8.2.3 permits.

use super::keep::{KeepRule, put_kept};
use super::{
    Query, RequestContext, ResponseContext, SentFraming, authority_of, client_framing, cookies,
    put_conditions, put_early, put_identity, put_max_forwards, put_request_id, put_response_tail,
    request_rule, response_rule, target_of,
};
use crate::edits::{FieldEdits, ReplacedValue};
use crate::h1::encode::Digits;
use crate::known::KnownHeader;
use crate::message::{Fields, Method, RequestHead, ResponseHead, TargetForm};
use crate::sink::{FieldSink, Visitor};

/// Passes the head of a request for an HTTP/2 or HTTP/3 backend to `visit`, field by field.
///
/// An upgrade that is forwarded (`context.upgrade`) becomes an extended CONNECT if it is a GET without a
/// body, as nothing else can be expressed by one. Only a backend that announced
/// `SETTINGS_ENABLE_CONNECT_PROTOCOL` may get it (RFC 8441 §3). Then `Some` is returned with its protocol,
/// for [`crate::Asked::upgrade`], and the stream stays open. `None` means that the body follows as
/// [`RequestHead::body`] says, and that the stream ends with the head if that is empty.
///
/// `buffer` is what `head` was parsed from or built into. Allocates only for composed values of more than 256
/// bytes.
pub fn request_fields<'b>(
    head: &RequestHead,
    buffer: &'b [u8],
    context: &RequestContext<'_>,
    visit: &mut impl FnMut(&[u8], &[u8]),
) -> Option<&'b [u8]> {
    let sink = &mut Visitor::new(visit);
    let replaced = FieldEdits::known(&context.edits);
    let mut rule = request_rule(head, context, replaced);
    let has_target = matches!(head.form, TargetForm::Origin | TargetForm::Absolute);
    let connects = context.upgrade && head.method == Method::Get && has_target && head.body.is_empty();
    let upgrade = head.upgrade(buffer).filter(|_| connects);
    put_request_control(head, buffer, context, upgrade, sink);
    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1
    //# An intermediary that converts a request from another HTTP version to
    //# HTTP/2 MUST retain any authority information from the
    // It is in `:authority`; a second copy could only contradict it.
    rule.dropped = rule.dropped.with(KnownHeader::Host);
    if upgrade.is_some() {
        // RFC 8441 §5: the stream's handshake replaces this one.
        rule.dropped = rule.dropped.with(KnownHeader::SecWebsocketKey);
    }
    visit_kept(&head.fields, buffer, &rule, sink);
    cookies::put(&head.fields, buffer, context, replaced, sink);
    put_identity(head, buffer, context, replaced, sink);
    put_request_id(head, context, replaced, sink);
    put_conditions(context, sink);
    put_early(context, sink);
    if let Some(edits) = &context.edits {
        sink.lines(edits);
    }
    if head.te_trailers {
        sink.field(b"te", b"trailers");
    }
    put_max_forwards(head, sink);
    upgrade
}

/// Writes the pseudo-headers (RFC 9113 §8.3.1, §8.5, RFC 8441 §4).
fn put_request_control(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    upgrade: Option<&[u8]>,
    sink: &mut impl FieldSink,
) {
    let authority = authority_of(head, buffer, context);
    let method = if upgrade.is_some() { b"CONNECT" } else { head.method_text(buffer) };
    sink.field(b":method", method);
    if let Some(protocol) = upgrade {
        sink.field(b":protocol", protocol);
    }
    if head.form == TargetForm::Authority {
        return sink.field(b":authority", head.target(buffer));
    }
    sink.field(b":scheme", context.backend_scheme.word().as_bytes());
    sink.field(b":authority", authority);
    match target_of(head, buffer, context) {
        (path, None) => sink.field(b":path", path),
        (_, Some(_))
            if context.path.is_none()
                && context.query == Query::AsSent
                && head.form == TargetForm::Origin =>
        {
            sink.field(b":path", head.target(buffer));
        }
        (path, Some(query)) => sink.parts(b":path", [path, b"?", query]),
    }
}

/// Passes the head of a response for an HTTP/2 or HTTP/3 client to `visit`, field by field. Also for an
/// interim response, and for the 101 of an accepted upgrade, which becomes a 200 as in RFC 8441 §5.
///
/// If the returned body is `None` or `Length(0)`, the stream ends with the head, except for interim responses
/// and tunnels. Allocates only for composed values of more than 256 bytes.
pub fn response_fields(
    head: &ResponseHead,
    buffer: &[u8],
    context: &ResponseContext<'_>,
    visit: &mut impl FnMut(&[u8], &[u8]),
) -> SentFraming {
    let sink = &mut Visitor::new(visit);
    let mut rule = response_rule(head, context);
    let mut status = head.status;
    if status == 101 {
        status = 200;
        rule.dropped = rule.dropped.with(KnownHeader::SecWebsocketAccept);
    }
    put_status(status, sink);
    visit_kept(&head.fields, buffer, &rule, sink);
    put_response_tail(head, buffer, context, sink);
    client_framing(head, context)
}

/// Writes `:status` with three digits (RFC 9113 §8.3.2).
pub(crate) fn put_status(status: u16, sink: &mut impl FieldSink) {
    sink.field(b":status", Digits::default().of(u64::from(status.clamp(100, 999))));
}

fn visit_kept(fields: &Fields, buffer: &[u8], rule: &KeepRule<'_>, sink: &mut impl FieldSink) {
    let mut new = Vec::new();
    for line in &fields.lines {
        match rule.outcome(line, buffer, &mut new) {
            ReplacedValue::Same => put_kept(line, buffer, sink),
            ReplacedValue::New => sink.field(line.name.of(buffer), &new),
            ReplacedValue::LeftOut => {}
        }
    }
}
