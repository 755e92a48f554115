//! All changes to a message between client and backend, in one place.
//!
//! Messages are written from their parsed form: as HTTP/1.1 text ([`write_request`], [`write_response`]), or
//! field by field for HTTP/2 and HTTP/3 ([`request_fields`], [`response_fields`]). This file decides for both
//! what is kept, dropped and added; the files below it only differ in how they write it. Every byte that
//! reaches the other side was checked by the parser, and a framing field is kept only if it is the plain
//! number that Weir itself acts on.

mod coding;
mod cookies;
mod keep;
mod text;
mod visit;

pub use coding::{LeftAlone, Negotiated, is_of_bytes, recoding};
pub use text::{write_request, write_response};
pub(crate) use visit::put_status;
pub use visit::{request_fields, response_fields};

use self::keep::KeepRule;
use crate::added::{AddedField, SetCookie};
use crate::body_length::BodyLength;
use crate::edits::FieldEdits;
use crate::identity::ClientIdentity;
use crate::known::{CONDITIONAL, HOP_BY_HOP, IDENTITY, KnownHeader, KnownSet, NOT_OF_BACKENDS};
use crate::message::{
    Fields, Method, NOMINATED, RequestHead, ResponseHead, TargetForm, UNDERSCORE_TWIN, Version,
};
use crate::scheme::Scheme;
use crate::sink::FieldSink;

/// Treatment of field names that have an underscore (threat A24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Underscores {
    /// Drop those that, with dashes, would be a framing, identity, authentication or other protected field,
    /// or one that Weir adds: backends that read `_` as `-` would take them for it.
    #[default]
    DropTwins,
    /// Forward all of them.
    Keep,
}

/// Which part of a resource is requested, and under which conditions (RFC 9110 §13.1, §14.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conditions<'a> {
    /// As the client requested.
    #[default]
    AsSent,
    /// The whole resource, unless it is still what a cache has stored (RFC 9111 §4.3.1). With neither of the
    /// two values: the whole resource unconditionally.
    Of {
        /// Value of `if-none-match`.
        if_none_match: Option<&'a [u8]>,
        /// Value of `if-modified-since`.
        if_modified_since: Option<&'a [u8]>,
    },
}

/// The query to request from a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Query<'a> {
    /// The client's.
    #[default]
    AsSent,
    /// This one, without its `?`; `None` for none. Only origin- and absolute-form can have one.
    Of(Option<&'a [u8]>),
}

/// Fields of a response about a cache that it passed or came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFields<'a> {
    /// Value of `age`, in seconds, for a stored response (RFC 9111 §5.1); `None` keeps what the backend sent.
    pub age_seconds: Option<u64>,
    /// Our member of `cache-status` (RFC 9211 §2).
    pub status: &'a [u8],
}

/// Facts about a request that affect how it is forwarded to a backend.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The client.
    pub identity: &'a ClientIdentity,
    /// The path to request: the normalised one that routing matched, or what a route rewrote it to. `None`:
    /// as it was sent, for plain paths.
    pub path: Option<&'a [u8]>,
    /// The query to request.
    pub query: Query<'a>,
    /// Host and port to request, if spelled differently than sent. `None`: as sent.
    pub host: Option<&'a [u8]>,
    /// Valid host and port to send to the backend instead of the client's (RFC 9110 §7.2). The forwarding
    /// fields still have the client's.
    pub backend_host: Option<&'a [u8]>,
    /// The port in `x-forwarded-port`, if the client does not send that itself. `None`: the one that it
    /// connected to.
    pub port: Option<u16>,
    /// The client's address, if it differs from that of the connection because a trusted proxy named it.
    pub client: Option<&'a [u8]>,
    /// `x-request-id` for a request without an acceptable one.
    pub request_id: &'a [u8],
    /// `host` for an HTTP/1.0 request without one.
    pub default_host: &'a [u8],
    /// Which part of the resource is requested.
    pub conditions: Conditions<'a>,
    /// Name of a cookie that is not sent to backends; `None` for none.
    pub hidden_cookie: Option<&'a [u8]>,
    /// Changes by the operator's rules.
    pub edits: Option<FieldEdits<'a>>,
    /// The request may be a replay, because the client's handshake is not complete (RFC 8470): the backend is
    /// told.
    pub early: bool,
    /// Forward `Upgrade`, since the route allows that protocol.
    pub upgrade: bool,
    /// `sec-websocket-key` for an upgrade that arrived as an extended CONNECT, which has none (RFC 8441 §5);
    /// see [`crate::websocket::key`]. Empty for none.
    pub websocket_key: &'a [u8],
    /// `:scheme` for an HTTP/2 backend: that of the connection to it (RFC 9110 §7.4).
    pub backend_scheme: Scheme,
    /// Forward `Expect: 100-continue`, instead of Weir answering it.
    pub expect_continue: bool,
    /// Ask the backend to close after the response. Has no effect in HTTP/2.
    pub close: bool,
    /// How to treat names with underscores.
    pub underscores: Underscores,
}

impl<'a> RequestContext<'a> {
    /// The defaults: path as sent, nothing added, no upgrade, connection kept.
    pub fn new(identity: &'a ClientIdentity, request_id: &'a [u8]) -> RequestContext<'a> {
        RequestContext {
            identity,
            path: None,
            query: Query::AsSent,
            host: None,
            backend_host: None,
            port: None,
            client: None,
            request_id,
            default_host: b"",
            conditions: Conditions::AsSent,
            hidden_cookie: None,
            edits: None,
            early: false,
            upgrade: false,
            websocket_key: b"",
            backend_scheme: Scheme::Http,
            expect_continue: false,
            close: false,
            underscores: Underscores::DropTwins,
        }
    }
}

/// Facts about a response that affect how it is forwarded to a client.
#[derive(Clone, Copy, Debug)]
pub struct ResponseContext<'a> {
    /// The client's protocol version: only HTTP/1.1 has chunks.
    pub client_version: Version,
    /// The method of the request: HEAD is answered without a body.
    pub request_method: Method,
    /// Both Weir and the client want to keep the client's connection open.
    pub keep_alive: bool,
    /// Changes by the operator's rules.
    pub edits: Option<FieldEdits<'a>>,
    /// `sec-websocket-accept` for an upgrade whose backend sent none, as in HTTP/2 (RFC 8441 §5); see
    /// [`crate::websocket::accept`]. Empty for none.
    pub websocket_accept: &'a [u8],
    /// The stickiness cookie.
    pub sticky: Option<&'a SetCookie>,
    /// `alt-svc`, for clients that could use a newer version (RFC 7838 §3).
    pub alternative: Option<&'a AddedField>,
    /// `x-request-id` to add if the backend sent none; empty for none.
    pub request_id: &'a [u8],
    /// `date` to add if the backend sent none (RFC 9110 §6.6.1); empty for none.
    pub date: &'a [u8],
    /// Fields about the cache; `None` without a cache.
    pub cache: Option<CacheFields<'a>>,
    /// The coding chosen by the client's `accept-encoding`; `None` if the response does not depend on it.
    pub negotiated: Option<Negotiated>,
}

impl ResponseContext<'_> {
    /// The defaults for a request: nothing added.
    pub fn new(
        client_version: Version,
        request_method: Method,
        keep_alive: bool,
    ) -> ResponseContext<'static> {
        ResponseContext {
            client_version,
            request_method,
            keep_alive,
            edits: None,
            websocket_accept: b"",
            sticky: None,
            alternative: None,
            request_id: b"",
            date: b"",
            cache: None,
            negotiated: None,
        }
    }
}

/// The framing that [`write_response`] or [`response_fields`] announced to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentFraming {
    /// How the body must be written; `UntilClose` means raw bytes, then close, or the end of the stream.
    pub body: BodyLength,
    /// Whether the client's connection can be kept open after it.
    pub keep_alive: bool,
}

fn request_rule<'a>(head: &RequestHead, context: &RequestContext<'a>, replaced: KnownSet) -> KeepRule<'a> {
    let flags = NOMINATED
        | match context.underscores {
            Underscores::DropTwins => UNDERSCORE_TWIN,
            Underscores::Keep => 0,
        };
    let mut dropped = dropped_from_request(head, context).union(replaced);
    if FieldEdits::leaves_via(&context.edits) {
        dropped = dropped.without(KnownHeader::Via);
    }
    let by_name = FieldEdits::by_name(&context.edits);
    let values = FieldEdits::of_values(&context.edits);
    KeepRule { dropped, flags, by_name, underscores: context.underscores, recoded: false, values }
}

/// Known names that are not forwarded as received.
fn dropped_from_request(head: &RequestHead, context: &RequestContext<'_>) -> KnownSet {
    let mut dropped = HOP_BY_HOP.with(KnownHeader::Via);
    if head.form == TargetForm::Absolute || context.host.is_some() || context.backend_host.is_some() {
        dropped = dropped.with(KnownHeader::Host);
    }
    if context.identity.trusted {
        // Many trusted proxies forward what their clients send in these fields.
        dropped = dropped.union(EXTENDED);
        if context.identity.certificate.is_some() {
            dropped = dropped.with(KnownHeader::ClientCert).with(KnownHeader::ClientCertChain);
        }
    } else {
        dropped = dropped.union(IDENTITY);
    }
    if head.request_id.is_none() {
        dropped = dropped.with(KnownHeader::XRequestId);
    }
    if !(context.expect_continue && head.expect_continue) {
        dropped = dropped.with(KnownHeader::Expect);
    }
    // A key is meaningful only if the client makes its handshake in HTTP/1.1.
    if context.upgrade && head.extended_connect {
        dropped = dropped.with(KnownHeader::SecWebsocketKey);
    }
    if head.max_forwards.is_some() {
        dropped = dropped.with(KnownHeader::MaxForwards);
    }
    if context.conditions != Conditions::AsSent {
        dropped = dropped.union(CONDITIONAL);
    }
    if context.early {
        dropped = dropped.with(KnownHeader::EarlyData);
    }
    if context.hidden_cookie.is_some() {
        dropped = dropped.with(KnownHeader::Cookie);
    }
    dropped
}

/// Fields that are rewritten or extended, whoever sent them.
const EXTENDED: KnownSet =
    KnownSet::of(&[KnownHeader::XForwardedFor, KnownHeader::Forwarded, KnownHeader::XRealIp]);

/// Host and port that the client requests; `None` for an HTTP/1.0 request without them.
#[inline]
fn host_of<'b>(head: &RequestHead, buffer: &'b [u8], context: &RequestContext<'b>) -> Option<&'b [u8]> {
    context.host.or_else(|| head.host(buffer))
}

/// Host and port to send to a backend.
#[inline]
fn authority_of<'b>(head: &RequestHead, buffer: &'b [u8], context: &RequestContext<'b>) -> &'b [u8] {
    context.backend_host.or_else(|| host_of(head, buffer, context)).unwrap_or(context.default_host)
}

/// Path and query to request from a backend.
fn target_of<'b>(
    head: &RequestHead,
    buffer: &'b [u8],
    context: &RequestContext<'b>,
) -> (&'b [u8], Option<&'b [u8]>) {
    match head.form {
        TargetForm::Asterisk | TargetForm::Authority => (head.target(buffer), None),
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
            (b"*", None)
        }
        TargetForm::Absolute | TargetForm::Origin => {
            let query = match context.query {
                Query::AsSent => head.query(buffer),
                Query::Of(query) => query,
            };
            (context.path.unwrap_or_else(|| head.path(buffer)), query)
        }
    }
}

/// Writes `via`, `x-forwarded-*`, `x-real-ip` and `forwarded`, except for those that rules drop.
fn put_identity(
    head: &RequestHead,
    buffer: &[u8],
    context: &RequestContext<'_>,
    replaced: KnownSet,
    sink: &mut impl FieldSink,
) {
    let identity = context.identity;
    let fields = &head.fields;
    if !replaced.has(KnownHeader::Via) {
        put_via(fields, buffer, head.version, sink);
    }
    let before = if identity.trusted { Some(fields) } else { None };
    let kept = |name| identity.trusted && fields.seen.has(name);
    if !replaced.has(KnownHeader::XForwardedFor) {
        let (name, known) = (b"x-forwarded-for", KnownHeader::XForwardedFor);
        match &*identity.address {
            b"" => put_received(sink, name, before, known, buffer),
            address => put_list(sink, name, before, known, buffer, &[address]),
        }
    }
    if !replaced.has(KnownHeader::XForwardedProto) && !kept(KnownHeader::XForwardedProto) {
        sink.field(b"x-forwarded-proto", identity.scheme.word().as_bytes());
    }
    let client = context.client.unwrap_or(&identity.address);
    if !client.is_empty() && !replaced.has(KnownHeader::XRealIp) {
        sink.field(b"x-real-ip", client);
    }
    let port = context.port.unwrap_or(identity.port);
    if port != 0 && !replaced.has(KnownHeader::XForwardedPort) && !kept(KnownHeader::XForwardedPort) {
        sink.number(b"x-forwarded-port", u64::from(port));
    }
    if let Some(certificate) = &identity.certificate
        && !replaced.has(KnownHeader::ClientCert)
    {
        sink.field(b"client-cert", certificate);
    }
    let host = host_of(head, buffer, context);
    if let Some(host) = host
        && !replaced.has(KnownHeader::XForwardedHost)
        && !kept(KnownHeader::XForwardedHost)
    {
        sink.field(b"x-forwarded-host", host);
    }
    if !replaced.has(KnownHeader::Forwarded) {
        let element: &[&[u8]] = match host {
            Some(host) => &[&identity.element, b";host=\"", host, b"\""],
            None => &[&identity.element],
        };
        put_list(sink, b"forwarded", before, KnownHeader::Forwarded, buffer, element);
    }
}

/// Writes one list field with all received values, followed by our own element, the concatenation of `parts`.
fn put_list(
    sink: &mut impl FieldSink,
    name: &'static [u8],
    before: Option<&Fields>,
    known: KnownHeader,
    buffer: &[u8],
    parts: &[&[u8]],
) {
    let received = before.into_iter().flat_map(|fields| fields.values(known, buffer));
    let received = received.filter(|value| !value.is_empty()).flat_map(|value| [value, b", "]);
    sink.parts(name, received.chain(parts.iter().copied()));
}

/// Writes one list field with all received values, if there are any; used if we have no element of our own.
fn put_received(
    sink: &mut impl FieldSink,
    name: &'static [u8],
    before: Option<&Fields>,
    known: KnownHeader,
    buffer: &[u8],
) {
    let received = before.into_iter().flat_map(|fields| fields.values(known, buffer));
    let mut received = received.filter(|value| !value.is_empty());
    if let Some(first) = received.next() {
        let rest = received.flat_map(|value| [&b", "[..], value]);
        sink.parts(name, std::iter::once(first).chain(rest));
    }
}

//= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.3
//# A proxy MUST send an appropriate Via header field, as described below, in each message that it forwards.
fn put_via(fields: &Fields, buffer: &[u8], version: Version, sink: &mut impl FieldSink) {
    put_list(sink, b"via", Some(fields), KnownHeader::Via, buffer, &[version.received_protocol()]);
}

/// Writes `x-request-id`, unless the one that the client sent is kept.
#[inline]
fn put_request_id(
    head: &RequestHead,
    context: &RequestContext<'_>,
    replaced: KnownSet,
    sink: &mut impl FieldSink,
) {
    if head.request_id.is_none() && !replaced.has(KnownHeader::XRequestId) {
        sink.parts(b"x-request-id", [context.request_id]);
    }
}

/// Writes a cache's conditions.
#[inline]
fn put_conditions(context: &RequestContext<'_>, sink: &mut impl FieldSink) {
    let Conditions::Of { if_none_match, if_modified_since } = context.conditions else { return };
    if let Some(tags) = if_none_match {
        sink.field(b"if-none-match", tags);
    }
    if let Some(date) = if_modified_since {
        sink.field(b"if-modified-since", date);
    }
}

/// Writes `early-data` for a request that may be a replay.
#[inline]
fn put_early(context: &RequestContext<'_>, sink: &mut impl FieldSink) {
    //= https://www.rfc-editor.org/rfc/rfc8470#section-5.2
    //# An intermediary that forwards a request prior to the completion of the
    //# TLS handshake with its client MUST send it with the Early-Data header
    //# field set to "1"
    if context.early {
        sink.field(b"early-data", b"1");
    }
}

/// Writes `max-forwards` for a TRACE or OPTIONS request.
#[inline]
fn put_max_forwards(head: &RequestHead, sink: &mut impl FieldSink) {
    if let Some(left) = head.max_forwards {
        //= https://www.rfc-editor.org/rfc/rfc9110#section-7.6.2
        //# If the received Max-Forwards value is greater than zero, the
        //# intermediary MUST generate an updated Max-Forwards field in the
        //# forwarded message
        sink.number(b"max-forwards", left.saturating_sub(1));
    }
}

fn response_rule<'a>(head: &ResponseHead, context: &ResponseContext<'a>) -> KeepRule<'a> {
    let mut dropped = NOT_OF_BACKENDS.union(FieldEdits::known(&context.edits));
    if FieldEdits::leaves_via(&context.edits) {
        dropped = dropped.without(KnownHeader::Via);
    }
    // A Content-Length that is kept must be true: it was declared, and is what we send or what HEAD would
    // get.
    if head.declared.is_none() {
        dropped = dropped.with(KnownHeader::ContentLength);
    }
    if context.cache.is_some_and(|cache| cache.age_seconds.is_some()) {
        // Those of the request that fetched the stored response do not apply to this one.
        dropped = dropped.with(KnownHeader::Age).with(KnownHeader::XRequestId);
    }
    let mut recoded = false;
    if let Some(negotiated) = &context.negotiated {
        dropped = dropped.union(coding::dropped(negotiated));
        recoded = negotiated.coding.is_some();
    }
    let by_name = FieldEdits::by_name(&context.edits);
    let values = FieldEdits::of_values(&context.edits);
    KeepRule { dropped, flags: NOMINATED, by_name, underscores: Underscores::Keep, recoded, values }
}

/// Writes the fields that a response gets after those that are kept.
#[inline]
fn put_response_tail(
    head: &ResponseHead,
    buffer: &[u8],
    context: &ResponseContext<'_>,
    sink: &mut impl FieldSink,
) {
    let replaced = FieldEdits::known(&context.edits);
    if replaced.has(KnownHeader::Via) {
        // Rules leave `via` to others.
    } else if head.fields.seen.has(KnownHeader::Via) || head.version != Version::Http11 {
        put_via(&head.fields, buffer, head.version, sink);
    } else {
        sink.line(b"via: 1.1 weir\r\n", 3);
    }
    if head.is_interim() {
        return;
    }
    let is_put = |name| !replaced.has(name);
    if let Some(cache) = &context.cache {
        if let Some(age) = cache.age_seconds.filter(|_| is_put(KnownHeader::Age)) {
            sink.number(b"age", age);
        }
        if is_put(KnownHeader::CacheStatus) {
            sink.field(b"cache-status", cache.status);
        }
    }
    if !context.date.is_empty() && !head.fields.seen.has(KnownHeader::Date) && is_put(KnownHeader::Date) {
        sink.field(b"date", context.date);
    }
    let is_kept = context.cache.is_some_and(|cache| cache.age_seconds.is_some());
    if !context.request_id.is_empty()
        && (is_kept || !head.fields.seen.has(KnownHeader::XRequestId))
        && is_put(KnownHeader::XRequestId)
    {
        sink.field(b"x-request-id", context.request_id);
    }
    if let Some(negotiated) = &context.negotiated {
        coding::put(negotiated, head, buffer, replaced, sink);
    }
    if let Some(edits) = &context.edits {
        sink.lines(edits);
    }
    let alternative = context.alternative.filter(|_| is_put(KnownHeader::AltSvc));
    let cookie = context.sticky.map(|cookie| &cookie.field);
    for field in cookie.into_iter().chain(alternative) {
        sink.line(&field.line, field.name_bytes);
    }
    if context.sticky.is_some_and(|cookie| cookie.is_private) {
        // It is added to what the backend sent; the strictest directive applies (RFC 9111 §5.2.2).
        sink.line(b"cache-control: private\r\n", 13);
    }
}

fn client_framing(head: &ResponseHead, context: &ResponseContext<'_>) -> SentFraming {
    let recoded = context.negotiated.filter(|negotiated| negotiated.coding.is_some());
    let body = match (head.body, recoded) {
        (body, None) if !body.is_open_ended() => body,
        (body, Some(_)) if body.is_empty() => body,
        (_, Some(Negotiated { length: Some(length), .. })) => BodyLength::Length(length),
        //= https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        //# A server MUST NOT send a response containing Transfer-Encoding
        //# unless the corresponding request indicates HTTP/1.1 (or later
        //# minor revisions).
        // In HTTP/2 and HTTP/3 the body ends with the stream.
        _ if context.client_version != Version::Http11 => BodyLength::UntilClose,
        _ => BodyLength::Chunked,
    };
    let ends_connection = body == BodyLength::UntilClose && context.client_version < Version::Http2;
    let keep_alive = context.keep_alive && !head.tunnel && !ends_connection;
    SentFraming { body, keep_alive: keep_alive || head.is_interim() }
}
