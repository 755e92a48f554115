//! What Weir changes in a message between client and backend: everything, in one place.
//!
//! Messages are written from their parsed form. A field line whose stored bytes are exactly what Weir would write
//! (`name: value` CRLF, each byte checked by the parser) is copied from the buffer, and neighbours of that kind are
//! copied together; all other lines are composed anew. No byte reaches the other side that the parser did not
//! check, and framing fields are only among the copied ones when they are the one plain number Weir itself acts on.

use crate::added::AddedField;
use crate::body::BodyLength;
use crate::h1::encode;
use crate::identity::ClientIdentity;
use crate::known::{HOP_BY_HOP, IDENTITY, KnownHeader, KnownSet};
use crate::message::{
    CANONICAL, Fields, Method, NOMINATED, RequestHead, ResponseHead, TargetForm, UNDERSCORE_TWIN,
    UNDERSCORED, Version,
};

/// What to do with field names that have an underscore (threat A24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// Drop those that with dashes would be a framing, identity, authentication or other protected field, or one that
    /// Weir adds: backends that read `_` as `-` would take them for it.
    #[default]
    DropTwins,
    /// Drop all of them.
    DropAll,
    /// Pass all of them on.
    Keep,
}

/// What a request becomes on its way to a backend.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// Who asks.
    pub identity: &'a ClientIdentity,
    /// The path to ask for: the normalised one that routing matched, or what a route rewrote it to. `None`: as it was
    /// sent, for paths that are plain. The query stays.
    pub path: Option<&'a [u8]>,
    /// `x-request-id` for a request that has no acceptable one.
    pub request_id: &'a [u8],
    /// `host` for an HTTP/1.0 request that has none.
    pub default_host: &'a [u8],
    /// Fields the route adds.
    pub added: &'a [AddedField],
    /// Pass `Upgrade` on: the route allows that protocol.
    pub upgrade: bool,
    /// Pass `Expect: 100-continue` on, instead of Weir answering it.
    pub expect_continue: bool,
    /// Ask the backend to close behind the response.
    pub close: bool,
    /// What to do with underscores.
    pub underscores: Underscores,
}

impl<'a> RequestContext<'a> {
    /// The usual: path as sent, nothing added, no upgrade, connection kept.
    pub fn new(identity: &'a ClientIdentity, request_id: &'a [u8]) -> RequestContext<'a> {
        RequestContext {
            identity,
            path: None,
            request_id,
            default_host: b"",
            added: &[],
            upgrade: false,
            expect_continue: false,
            close: false,
            underscores: Underscores::DropTwins,
        }
    }
}

/// Writes the head of a request for a backend, as HTTP/1.1.
///
/// The body follows as [`RequestHead::body`] says: that many bytes, or chunks written with [`crate::h1::chunked`].
/// `buffer` is what `head` was parsed from. Does not allocate once `out` is large enough.
pub fn write_request(head: &RequestHead, buffer: &[u8], context: &RequestContext<'_>, out: &mut Vec<u8>) {
    out.reserve(head.head_bytes + context.path.map_or(0, <[u8]>::len) + 512);
    let replaced = replaced_names(context.added);
    let dropped = dropped_from_request(head, context).union(replaced);
    let run_start = write_request_line(head, buffer, context, out);
    // Where Host is missing or not the authority, the request line was composed, so that the field stands behind it.
    let host_stays = head.fields.seen.has(KnownHeader::Host) && !dropped.has(KnownHeader::Host);
    if !host_stays && !replaced.has(KnownHeader::Host) {
        encode::write_field(out, b"host", head.host(buffer).unwrap_or(context.default_host));
    }
    let flags = NOMINATED
        | match context.underscores {
            Underscores::DropTwins => UNDERSCORE_TWIN,
            Underscores::DropAll => UNDERSCORED,
            Underscores::Keep => 0,
        };
    let rule = CopyRule { dropped, flags, replacing: context.added, underscores: context.underscores };
    copy_fields(&head.fields, buffer, run_start, &rule, out);
    if head.body.is_open_ended() {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    write_identity(head, buffer, context, replaced, out);
    for field in context.added {
        out.extend_from_slice(&field.line);
    }
    write_request_connection(head, buffer, context, out);
    if let Some(left) = head.max_forwards {
        //= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.2
        //# If the received Max-Forwards value is greater than zero, the
        //# intermediary MUST generate an updated Max-Forwards field in the
        //# forwarded message
        out.extend_from_slice(b"max-forwards: ");
        encode::write_decimal(out, left.saturating_sub(1));
        out.extend_from_slice(b"\r\n");
    }
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
        || head.form == TargetForm::Absolute
        || head.version == Version::Http10
        || !head.fields.seen.has(KnownHeader::Host);
    if !composed {
        return head.method_text.start();
    }
    out.extend_from_slice(head.method_text(buffer));
    out.push(b' ');
    match head.form {
        TargetForm::Asterisk | TargetForm::Authority => out.extend_from_slice(head.target(buffer)),
        //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2.4
        //# If a proxy receives an OPTIONS request with an absolute-form of
        //# request-target in which the URI has an empty path and no query
        //# component, then the last proxy on the request chain MUST send a
        //# request-target of "*" when it forwards the request to the indicated
        //# origin server.
        TargetForm::Absolute
            if head.method == Method::Options
                && head.path.start() == head.path.end()
                && head.query.is_none() =>
        {
            out.push(b'*');
        }
        TargetForm::Absolute | TargetForm::Origin => {
            out.extend_from_slice(context.path.unwrap_or_else(|| head.path(buffer)));
            if let Some(query) = head.query(buffer) {
                out.push(b'?');
                out.extend_from_slice(query);
            }
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    head.fields.start
}

/// Known names that are not passed on as they came.
fn dropped_from_request(head: &RequestHead, context: &RequestContext<'_>) -> KnownSet {
    let mut dropped = HOP_BY_HOP.with(KnownHeader::Via);
    if head.form == TargetForm::Absolute {
        dropped = dropped.with(KnownHeader::Host);
    }
    if context.identity.trusted {
        dropped = dropped.with(KnownHeader::XForwardedFor).with(KnownHeader::Forwarded);
    } else {
        dropped = dropped.union(IDENTITY);
    }
    if head.request_id.is_none() {
        dropped = dropped.with(KnownHeader::XRequestId);
    }
    if !(context.expect_continue && head.expect_continue) {
        dropped = dropped.with(KnownHeader::Expect);
    }
    if head.max_forwards.is_some() {
        dropped = dropped.with(KnownHeader::MaxForwards);
    }
    dropped
}

fn replaced_names(added: &[AddedField]) -> KnownSet {
    let known = added.iter().filter(|field| field.replaces && field.known != KnownHeader::Other);
    known.fold(KnownSet::EMPTY, |names, field| names.with(field.known))
}

/// `via`, `x-forwarded-*`, `forwarded` and `x-request-id`, but for those the route replaces.
fn write_identity(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    replaced: KnownSet,
    out: &mut Vec<u8>,
) {
    let identity = context.identity;
    let host = head.host(buffer);
    let usual = !identity.trusted
        && head.version == Version::Http11
        && !head.fields.seen.has(KnownHeader::Via)
        && replaced.is_empty();
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
        write_other_identity(head, buffer, identity, replaced, out);
    }
    if head.request_id.is_none() && !replaced.has(KnownHeader::XRequestId) {
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(context.request_id);
        out.extend_from_slice(b"\r\n");
    }
}

/// The same for trusted clients, other versions, and requests that have a `via` already.
fn write_other_identity(
    head: &RequestHead,
    buffer: &[u8],
    identity: &ClientIdentity,
    replaced: KnownSet,
    out: &mut Vec<u8>,
) {
    let fields = &head.fields;
    if !replaced.has(KnownHeader::Via) {
        write_via(fields, buffer, head.version, out);
    }
    let kept = |name| identity.trusted && fields.seen.has(name);
    if !replaced.has(KnownHeader::XForwardedFor) {
        let before = if identity.trusted { Some(fields) } else { None };
        write_list(out, b"x-forwarded-for", before, KnownHeader::XForwardedFor, buffer, &[&identity.address]);
    }
    if !replaced.has(KnownHeader::XForwardedProto) && !kept(KnownHeader::XForwardedProto) {
        encode::write_field(out, b"x-forwarded-proto", identity.scheme.word().as_bytes());
    }
    let host = head.host(buffer);
    if let Some(host) = host
        && !replaced.has(KnownHeader::XForwardedHost)
        && !kept(KnownHeader::XForwardedHost)
    {
        encode::write_field(out, b"x-forwarded-host", host);
    }
    if !replaced.has(KnownHeader::Forwarded) {
        let before = if identity.trusted { Some(fields) } else { None };
        let element: &[&[u8]] = match host {
            Some(host) => &[&identity.element, b";host=\"", host, b"\""],
            None => &[&identity.element],
        };
        write_list(out, b"forwarded", before, KnownHeader::Forwarded, buffer, element);
    }
}

/// Writes one line with all received values of a list field, then our own element made of `parts`.
fn write_list(
    out: &mut Vec<u8>,
    name: &[u8],
    before: Option<&Fields>,
    known: KnownHeader,
    buffer: &[u8],
    parts: &[&[u8]],
) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    let received = before.into_iter().flat_map(|fields| fields.values(known, buffer));
    for value in received.filter(|value| !value.is_empty()) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.3
//# A proxy MUST send an appropriate Via header field, as described below, in each message that it forwards.
fn write_via(fields: &Fields, buffer: &[u8], version: Version, out: &mut Vec<u8>) {
    let own: &[u8] = match version {
        Version::Http10 => b"1.0 weir",
        Version::Http11 => b"1.1 weir",
        Version::Http2 => b"2 weir",
        Version::Http3 => b"3 weir",
    };
    write_list(out, b"via", Some(fields), KnownHeader::Via, buffer, &[own]);
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

/// Which fields [`copy_fields`] leaves out.
struct CopyRule<'a> {
    dropped: KnownSet,
    flags: u8,
    replacing: &'a [AddedField],
    underscores: Underscores,
}

impl CopyRule<'_> {
    /// Whether an added field takes the place of this one.
    fn replaces(&self, name: &[u8], flags: u8) -> bool {
        if flags & UNDERSCORED != 0 && self.underscores == Underscores::Keep {
            return self
                .replacing
                .iter()
                .any(|field| field.replaces && field.name().eq_ignore_ascii_case(name));
        }
        self.replacing.iter().any(|field| field.replaces_name(name))
    }
}

/// Copies the fields that stay, in order. Bytes from `run_start` on, up to the first field, are copied too.
#[inline]
fn copy_fields(fields: &Fields, buffer: &[u8], mut run_start: usize, rule: &CopyRule<'_>, out: &mut Vec<u8>) {
    let nothing_dropped = fields.seen.intersection(rule.dropped).is_empty()
        && fields.any_flags & rule.flags == 0
        && rule.replacing.is_empty();
    if nothing_dropped && fields.all_canonical {
        out.extend_from_slice(buffer.get(run_start..fields.end).unwrap_or_default());
        return;
    }
    let mut run_end = fields.start;
    for line in &fields.lines {
        let drop = rule.dropped.has(line.known)
            || line.flags & rule.flags != 0
            || (!rule.replacing.is_empty() && rule.replaces(line.name.of(buffer), line.flags));
        if !drop && line.flags & CANONICAL != 0 {
            if run_end != line.name.start() {
                out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
                run_start = line.name.start();
            }
            run_end = line.value.end() + 2;
            continue;
        }
        out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
        run_start = run_end;
        if !drop {
            write_line(line.known, line.name.of(buffer), line.value.of(buffer), out);
        }
    }
    out.extend_from_slice(buffer.get(run_start..run_end).unwrap_or_default());
}

/// Composes a line that was not stored as Weir writes it.
fn write_line(known: KnownHeader, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match crate::scan::decimal(value) {
        Some(length) if known == KnownHeader::ContentLength => {
            out.extend_from_slice(b"content-length: ");
            encode::write_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        _ => encode::write_field(out, name, value),
    }
}

/// What a response becomes on its way to a client.
#[derive(Clone, Copy, Debug)]
pub struct ResponseContext<'a> {
    /// The version the client speaks: one of HTTP/1.0 knows no chunks.
    pub client_version: Version,
    /// The method of the request: HEAD is answered without a body.
    pub request_method: Method,
    /// Weir and the client both want to keep the client's connection.
    pub keep_alive: bool,
    /// Fields the route adds.
    pub added: &'a [AddedField],
    /// A further field, such as the stickiness cookie.
    pub sticky: Option<&'a AddedField>,
    /// `x-request-id` to name where the backend named none; empty for none.
    pub request_id: &'a [u8],
    /// `date` to name where the backend gave none (RFC 9110 §6.6.1); empty for none.
    pub date: &'a [u8],
}

impl ResponseContext<'_> {
    /// The usual for a request: nothing added.
    pub fn new(
        client_version: Version,
        request_method: Method,
        keep_alive: bool,
    ) -> ResponseContext<'static> {
        ResponseContext {
            client_version,
            request_method,
            keep_alive,
            added: &[],
            sticky: None,
            request_id: b"",
            date: b"",
        }
    }
}

/// What [`write_response`] announced to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentFraming {
    /// How the body must now be written; `UntilClose` means raw bytes, then close.
    pub body: BodyLength,
    /// Whether the client's connection can be kept behind it.
    pub keep_alive: bool,
}

/// Writes the head of a response for a client of HTTP/1.x. Also for interim responses and for a 101 whose protocol was
/// compared ([`ResponseHead::accepts_upgrade`]). Does not allocate once `out` is large enough.
///
/// Interim responses must not be sent to a client of HTTP/1.0 (RFC 9110 §15.2).
pub fn write_response(
    head: &ResponseHead,
    buffer: &[u8],
    context: &ResponseContext<'_>,
    out: &mut Vec<u8>,
) -> SentFraming {
    out.reserve(head.head_bytes + 256);
    let sent = client_framing(head, context);
    let mut dropped = HOP_BY_HOP.with(KnownHeader::Via).union(replaced_names(context.added));
    // What is left of Content-Length must be true: it was declared, and is what we send or what HEAD would get.
    if head.declared.is_none() {
        dropped = dropped.with(KnownHeader::ContentLength);
    }
    let run_start = write_response_line(head, buffer, out);
    let rule =
        CopyRule { dropped, flags: NOMINATED, replacing: context.added, underscores: Underscores::Keep };
    copy_fields(&head.fields, buffer, run_start, &rule, out);
    if head.fields.seen.has(KnownHeader::Via) || head.version != Version::Http11 {
        write_via(&head.fields, buffer, head.version, out);
    } else {
        out.extend_from_slice(b"via: 1.1 weir\r\n");
    }
    if head.is_interim() {
        out.extend_from_slice(b"\r\n");
        return sent;
    }
    if !context.date.is_empty() && !head.fields.seen.has(KnownHeader::Date) {
        encode::write_field(out, b"date", context.date);
    }
    if !context.request_id.is_empty() && !head.fields.seen.has(KnownHeader::XRequestId) {
        encode::write_field(out, b"x-request-id", context.request_id);
    }
    for field in context.added.iter().chain(context.sticky) {
        out.extend_from_slice(&field.line);
    }
    if sent.body == BodyLength::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if let Some(protocol) = head.upgrade(buffer) {
        encode::write_field(out, b"upgrade", protocol);
        out.extend_from_slice(b"connection: upgrade\r\n");
    } else if !head.tunnel {
        encode::write_connection(sent.keep_alive, context.client_version, out);
    }
    out.extend_from_slice(b"\r\n");
    sent
}

fn client_framing(head: &ResponseHead, context: &ResponseContext<'_>) -> SentFraming {
    let marked_end = matches!(head.body, BodyLength::Chunked | BodyLength::UntilClose);
    let body = match head.body {
        _ if !marked_end => head.body,
        //= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        //# A server MUST NOT send a response containing Transfer-Encoding
        //# unless the corresponding request indicates HTTP/1.1 (or later
        //# minor revisions).
        _ if context.client_version != Version::Http11 => BodyLength::UntilClose,
        _ => BodyLength::Chunked,
    };
    let keep_alive = context.keep_alive && !head.tunnel && body != BodyLength::UntilClose;
    SentFraming { body, keep_alive: keep_alive || head.is_interim() }
}

/// Writes the status line, or leaves it to the run of copied bytes that begins at the returned position.
fn write_response_line(head: &ResponseHead, buffer: &[u8], out: &mut Vec<u8>) -> usize {
    // 13 bytes stand before the reason only where the space before it does.
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
