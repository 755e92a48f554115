//! Typed messages. Heads hold spans into the buffer they were parsed from, never copies. They are cleared and
//! reused, so that nothing is allocated in steady state.

use std::borrow::Cow;

use crate::body_length::BodyLength;
use crate::known::{HOP_BY_HOP, KnownHeader, KnownSet};
pub use crate::response_head::ResponseHead;
use crate::scheme::Scheme;

/// Positions in the buffer a head was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline(always)]
    pub(crate) fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// First position.
    #[inline(always)]
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// Position after the last byte.
    #[inline(always)]
    pub fn end(self) -> usize {
        self.end as usize
    }

    /// The bytes; empty if `buffer` is too short, and so not the one the head was parsed from.
    #[inline(always)]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Request method (RFC 9110 §9). Methods are case-sensitive: `get` is `Other`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// Any other token; the head has its text.
    Other,
}

impl Method {
    /// The method this token names.
    pub fn from_token(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// Whether the method is safe: the client asks for no change (RFC 9110 §9.2.1). Unknown methods are not
    /// safe.
    pub const fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace)
    }

    /// Whether sending it twice has the same effect as once (RFC 9110 §9.2.2). Unknown methods are not
    /// idempotent.
    pub const fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Method::Put | Method::Delete)
    }
}

/// Protocol version of a message as received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
    Http3,
}

impl Version {
    /// The `via` element for a message received in this version, such as `1.1 weir` (RFC 9110 §7.6.3).
    pub(crate) const fn received_protocol(self) -> &'static [u8] {
        match self {
            Version::Http10 => b"1.0 weir",
            Version::Http11 => b"1.1 weir",
            Version::Http2 => b"2 weir",
            Version::Http3 => b"3 weir",
        }
    }
}

/// How the request-target was written (RFC 9112 §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://host/path?query`; its authority replaces `Host`.
    Absolute,
    /// `host:port`, with CONNECT only.
    Authority,
    /// `*`, with OPTIONS only.
    Asterisk,
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name as sent; a token.
    pub name: &'a [u8],
    /// The value without surrounding whitespace; no control bytes but tab.
    pub value: &'a [u8],
    /// Which name it is.
    pub known: KnownHeader,
}

/// The line is stored exactly as `name: value` CRLF, which is also how Weir would write it.
pub(crate) const CANONICAL: u8 = 1;
/// The name has an underscore.
pub(crate) const UNDERSCORED: u8 = 2;
/// The name is that of a protected field if its underscores are replaced by dashes.
pub(crate) const UNDERSCORE_TWIN: u8 = 4;
/// A `Connection` option names it.
pub(crate) const NOMINATED: u8 = 8;
/// The whitespace around the value contains a tab.
pub(crate) const TABBED: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldLine {
    pub name: Span,
    pub value: Span,
    pub known: KnownHeader,
    pub flags: u8,
}

/// The field section of a message, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub lines: Vec<FieldLine>,
    /// Known names that occur.
    pub seen: KnownSet,
    /// Known names that occur more than once.
    pub repeated: KnownSet,
    /// Union of the flags of all lines.
    pub any_flags: u8,
    /// Whether every line is canonical: then Weir would write the whole block just as it is.
    pub all_canonical: bool,
    /// Where the first line begins.
    pub start: usize,
    /// Where the empty line begins.
    pub end: usize,
}

impl Fields {
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.seen = KnownSet::EMPTY;
        self.repeated = KnownSet::EMPTY;
        self.any_flags = 0;
        self.all_canonical = true;
        self.start = 0;
        self.end = 0;
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, line: FieldLine) {
        let bit = KnownSet::EMPTY.with(line.known).without(KnownHeader::Other);
        self.repeated = self.repeated.union(self.seen.intersection(bit));
        self.seen = self.seen.union(bit);
        self.any_flags |= line.flags;
        self.all_canonical &= line.flags & CANONICAL != 0;
        self.lines.push(line);
    }

    /// The first line with that name.
    pub(crate) fn first(&self, known: KnownHeader) -> Option<&FieldLine> {
        if !self.seen.has(known) {
            return None;
        }
        self.lines.iter().find(|line| line.known == known)
    }

    pub(crate) fn values<'a>(
        &'a self,
        known: KnownHeader,
        buffer: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        let lines = if self.seen.has(known) { self.lines.as_slice() } else { &[] };
        lines.iter().filter(move |line| line.known == known).map(move |line| line.value.of(buffer))
    }

    pub(crate) fn value_by_name<'a>(&self, name: &[u8], buffer: &'a [u8]) -> Option<&'a [u8]> {
        let mut lines = self.lines.iter();
        lines.find(|line| line.name.of(buffer).eq_ignore_ascii_case(name)).map(|line| line.value.of(buffer))
    }

    pub(crate) fn combined<'a>(&self, name: &[u8], buffer: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let mut values = self.lines.iter().filter(|line| line.name.of(buffer).eq_ignore_ascii_case(name));
        let first = values.next()?;
        let mut combined = Cow::Borrowed(first.value.of(buffer));
        for line in values {
            //= https://www.rfc-editor.org/rfc/rfc9110#section-5.3
            //# a recipient MAY combine multiple field lines within a field section that
            //# have the same field name into one field line, without changing the
            //# semantics of the message, by appending each subsequent field line
            //# value to the initial field line value in order, separated by a comma
            //# (",") and optional whitespace
            let separator: &[u8] = if line.known == KnownHeader::Cookie { b"; " } else { b", " };
            combined.to_mut().extend_from_slice(separator);
            combined.to_mut().extend_from_slice(line.value.of(buffer));
        }
        Some(combined)
    }

    pub(crate) fn end_to_end<'a>(&'a self, buffer: &'a [u8]) -> impl Iterator<Item = Field<'a>> {
        let lines = self.lines.iter();
        lines.filter(|line| !HOP_BY_HOP.has(line.known) && line.flags & NOMINATED == 0).map(|line| Field {
            name: line.name.of(buffer),
            value: line.value.of(buffer),
            known: line.known,
        })
    }

    pub(crate) fn iter<'a>(&'a self, buffer: &'a [u8]) -> impl ExactSizeIterator<Item = Field<'a>> {
        self.lines.iter().map(move |line| Field {
            name: line.name.of(buffer),
            value: line.value.of(buffer),
            known: line.known,
        })
    }
}

/// How far a partly received head was parsed, so that each further byte is parsed only once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub phase: Phase,
    /// Bytes before this position were parsed and are valid.
    pub at: usize,
    /// Position where the current line begins.
    pub line_start: usize,
    /// Position where the current line's first part (method, field name) ends.
    pub mark: usize,
    /// Union of the byte classes in the part being parsed.
    pub classes: u8,
    pub empty_lines: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Start,
    FirstLine,
    Target,
    Query,
    Version,
    FieldStart,
    FieldName,
    FieldValue,
    Complete,
}

/// Properties that requests and responses have in common.
macro_rules! common_to_heads {
    ($head:ident) => {
        impl $head {
            /// An empty head.
            pub fn new() -> $head {
                $head::default()
            }

            /// Whether a complete, valid head was parsed since the last `clear`.
            pub fn is_complete(&self) -> bool {
                self.cursor.phase == Phase::Complete
            }

            /// Whether any byte of a message was seen since the last `clear`. If not, a client that closes
            /// was idle, and a request to a backend that closes may be sent again on another connection. If
            /// so, the message was cut off.
            pub fn has_started(&self) -> bool {
                self.cursor.phase != Phase::Start
            }

            /// Length of the head in bytes, including empty lines before it; the body begins there. For
            /// HTTP/2 and HTTP/3 it is the length of the text that was built, not the number of bytes
            /// received.
            pub fn head_bytes(&self) -> usize {
                self.head_bytes
            }

            /// The protocol version of the sender.
            pub fn version(&self) -> Version {
                self.version
            }

            /// All fields as sent, in order, connection-specific ones included.
            pub fn fields<'a>(&'a self, buffer: &'a [u8]) -> impl ExactSizeIterator<Item = Field<'a>> {
                self.fields.iter(buffer)
            }

            /// The fields that are not specific to the connection (RFC 9110 §7.6.1): those that may be stored
            /// and sent to others.
            pub fn end_to_end_fields<'a>(&'a self, buffer: &'a [u8]) -> impl Iterator<Item = Field<'a>> {
                self.fields.end_to_end(buffer)
            }

            /// The value of the first field with that known name. O(1) when there is none.
            pub fn value<'a>(&self, known: KnownHeader, buffer: &'a [u8]) -> Option<&'a [u8]> {
                self.fields.first(known).map(|line| line.value.of(buffer))
            }

            /// The values of all fields with that known name, in order. O(1) when there is none.
            pub fn values<'a>(
                &'a self,
                known: KnownHeader,
                buffer: &'a [u8],
            ) -> impl Iterator<Item = &'a [u8]> + Clone {
                self.fields.values(known, buffer)
            }

            /// The value of the first field with any name, compared case-insensitively. O(fields).
            pub fn value_by_name<'a>(&self, name: &[u8], buffer: &'a [u8]) -> Option<&'a [u8]> {
                self.fields.value_by_name(name, buffer)
            }
        }
    };
}
pub(crate) use common_to_heads;

/// The head of a request. Filled by [`crate::h1::parse_request`], or by a [`crate::section::RequestBuilder`]
/// from HTTP/2 or HTTP/3 fields; [`clear`](Self::clear) it before the next one.
///
/// Methods that return bytes take the buffer that was parsed or built. About 250 bytes, plus 20 per field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    pub(crate) cursor: Cursor,
    pub(crate) method: Method,
    pub(crate) method_text: Span,
    pub(crate) target: Span,
    pub(crate) form: TargetForm,
    pub(crate) scheme: Option<Scheme>,
    pub(crate) host: Option<Span>,
    pub(crate) path: Span,
    pub(crate) query: Option<Span>,
    pub(crate) path_is_plain: bool,
    pub(crate) version: Version,
    pub(crate) fields: Fields,
    pub(crate) connection: ConnectionOptions,
    pub(crate) body: BodyLength,
    pub(crate) keep_alive: bool,
    pub(crate) expect_continue: bool,
    pub(crate) te_trailers: bool,
    pub(crate) upgrade: Option<Span>,
    pub(crate) max_forwards: Option<u64>,
    pub(crate) request_id: Option<Span>,
    pub(crate) head_bytes: usize,
    pub(crate) extended_connect: bool,
    /// Holds pseudo-headers while a head is built; empty at all other times.
    pub(crate) staged: Vec<u8>,
}

/// Options of the `Connection` lines (RFC 9110 §7.6.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionOptions {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
    /// Options other than the three above.
    pub others: Vec<Span>,
}

impl ConnectionOptions {
    pub(crate) fn clear(&mut self) {
        self.close = false;
        self.keep_alive = false;
        self.upgrade = false;
        self.others.clear();
    }

    /// Whether the sender keeps the connection open after this message (RFC 9112 §9.3).
    pub(crate) fn persists(&self, version: Version) -> bool {
        !self.close && (version >= Version::Http11 || self.keep_alive)
    }
}

common_to_heads!(RequestHead);

impl RequestHead {
    /// Makes the head ready for another message; keeps its allocations.
    pub fn clear(&mut self) {
        self.cursor = Cursor::default();
        self.method = Method::default();
        self.fields.clear();
        self.connection.clear();
        self.head_bytes = 0;
        self.extended_connect = false;
        self.staged.clear();
    }

    /// The method, as soon as it was parsed; `Get` before.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method as sent; `GET` for an extended CONNECT.
    pub fn method_text<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        self.method_text.of(buffer)
    }

    /// The request-target as sent.
    pub fn target<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        self.target.of(buffer)
    }

    /// The form of the request-target.
    pub fn target_form(&self) -> TargetForm {
        self.form
    }

    /// Scheme of an absolute-form target, or `:scheme`; `None` if the connection determines it.
    pub fn scheme(&self) -> Option<Scheme> {
        self.scheme
    }

    /// Host and optional port, validated; from the request-target if it has them, otherwise from `Host`.
    /// `None` only in HTTP/1.0.
    pub fn host<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.host.map(|span| span.of(buffer))
    }

    /// The path as sent, without the query; `/` if an absolute-form target has none, empty in asterisk- and
    /// authority-form. For routing, pass it through [`crate::path::normalise`].
    pub fn path<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        if self.form == TargetForm::Absolute && self.path.start() == self.path.end() {
            return b"/";
        }
        self.path.of(buffer)
    }

    /// Whether the path has neither `%` nor `.`, and so is already normal.
    pub fn path_is_plain(&self) -> bool {
        self.path_is_plain
    }

    /// The query as sent, without its `?`; `None` when there is no `?`.
    pub fn query<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.query.map(|span| span.of(buffer))
    }

    /// The whole value of a field with any name, compared case-insensitively. If it came on several lines,
    /// they are joined by `, ` (RFC 9110 §5.3), or by `; ` for `cookie`. O(fields); allocates only to join.
    pub fn combined<'a>(&self, name: &[u8], buffer: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        self.fields.combined(name, buffer)
    }

    /// How the body is delimited (RFC 9112 §6.3). `UntilClose` occurs only in HTTP/2 and HTTP/3, where it
    /// means until the stream ends.
    pub fn body(&self) -> BodyLength {
        self.body
    }

    /// Whether the client wants the connection kept open (RFC 9112 §9.3).
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the client waits for `100 Continue` before it sends its body. False without a body, and in
    /// HTTP/1.0, where the expectation must be ignored (RFC 9110 §10.1.1).
    pub fn expect_continue(&self) -> bool {
        self.expect_continue
    }

    /// The one protocol that the client asks to upgrade to, such as `websocket`: in HTTP/1.1 when
    /// `Connection` lists `upgrade`, in HTTP/2 and HTTP/3 by an extended CONNECT. `None` for lists and for
    /// `h2c`, which Weir never forwards (threat A18).
    pub fn upgrade<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.upgrade.map(|span| span.of(buffer))
    }

    /// Whether this was an extended CONNECT (RFC 8441 §4). Then any 2xx opens the tunnel, so a response that
    /// does not accept the upgrade must not be forwarded with such a status.
    pub fn is_extended_connect(&self) -> bool {
        self.extended_connect
    }

    /// Whether a `Connection` option names a field that would otherwise be forwarded (RFC 9110 §7.6.1); the
    /// backend does not get it. O(1) when none does.
    pub fn withholds_fields(&self) -> bool {
        let withheld = |line: &FieldLine| line.flags & NOMINATED != 0 && !HOP_BY_HOP.has(line.known);
        self.fields.any_flags & NOMINATED != 0 && self.fields.lines.iter().any(withheld)
    }

    /// Whether any name has an underscore, which some backends treat as a dash. O(1).
    pub fn has_underscored_names(&self) -> bool {
        self.fields.any_flags & UNDERSCORED != 0
    }

    /// Whether the client accepts trailers (`TE: trailers`, RFC 9110 §10.1.4).
    pub fn te_trailers(&self) -> bool {
        self.te_trailers
    }

    /// `Max-Forwards` of a TRACE or OPTIONS request (RFC 9110 §7.6.2); `None` for other methods. At `Some(0)`
    /// Weir must answer itself: see [`crate::OwnAnswer`].
    pub fn max_forwards(&self) -> Option<u64> {
        self.max_forwards
    }

    /// The client's `x-request-id`, if it is one line of 1 to 128 bytes of `A-Z a-z 0-9 - _ . ~ + / = : @`.
    pub fn request_id<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.request_id.map(|span| span.of(buffer))
    }
}
