//! The head of a response: see [`crate::message`].

use crate::body::BodyLength;
use crate::known::{HOP_BY_HOP, KnownHeader};
use crate::message::{
    ConnectionOptions, Cursor, Field, FieldLine, Fields, NOMINATED, Phase, Span, Version, value_by_name,
};

/// The head of a response. Filled by [`crate::h1::parse_response`]; [`clear`](Self::clear) it before the next one,
/// also between an interim response and the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    pub(crate) cursor: Cursor,
    pub(crate) status: u16,
    pub(crate) reason: Span,
    pub(crate) version: Version,
    pub(crate) fields: Fields,
    pub(crate) connection: ConnectionOptions,
    pub(crate) body: BodyLength,
    pub(crate) declared: Option<u64>,
    pub(crate) tunnel: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: Option<Span>,
    pub(crate) head_bytes: usize,
}

impl ResponseHead {
    /// An empty head.
    pub fn new() -> ResponseHead {
        ResponseHead::default()
    }

    /// Makes the head ready for another message; keeps its allocations.
    pub fn clear(&mut self) {
        self.cursor = Cursor::default();
        self.fields.clear();
        self.connection.clear();
        self.head_bytes = 0;
    }

    /// Whether a complete, valid response head was parsed since the last `clear`.
    pub fn is_complete(&self) -> bool {
        self.cursor.phase == Phase::Complete
    }

    /// Whether any byte of a response was seen since the last `clear`: a backend that closes before may be asked
    /// again on another connection, one that closes after may not.
    pub fn has_started(&self) -> bool {
        self.cursor.phase != Phase::Start
    }

    /// Length of the head in bytes; the body begins there.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Status code, 100 to 999. Codes above 599 mean what 5xx means (RFC 9110 §15).
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether another response to the same request follows: 1xx but 101 (RFC 9110 §15.2).
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Whether the connection is a tunnel from here: 101, or 2xx to CONNECT (RFC 9110 §7.8, §9.3.6).
    pub fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Reason phrase as sent; may be empty.
    pub fn reason<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        self.reason.of(buffer)
    }

    /// The version the backend speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// All fields as sent, in order, connection-specific ones included.
    pub fn fields<'a>(&'a self, buffer: &'a [u8]) -> impl ExactSizeIterator<Item = Field<'a>> {
        self.fields.iter(buffer)
    }

    /// The value of the first field of that known name. O(1) when there is none.
    pub fn value<'a>(&self, known: KnownHeader, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.fields.first(known).map(|line| line.value.of(buffer))
    }

    /// The values of all fields of that known name, in order. O(1) when there is none.
    pub fn values<'a>(
        &'a self,
        known: KnownHeader,
        buffer: &'a [u8],
    ) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.fields.values(known, buffer)
    }

    /// The value of the first field of any name, compared without regard to case. O(fields).
    pub fn value_by_name<'a>(&self, name: &[u8], buffer: &'a [u8]) -> Option<&'a [u8]> {
        value_by_name(&self.fields, name, buffer)
    }

    /// The fields that are not of the connection the message came by (RFC 9110 §7.6.1): what may be kept of it, and be given to
    /// others.
    pub fn end_to_end_fields<'a>(&'a self, buffer: &'a [u8]) -> impl Iterator<Item = Field<'a>> {
        let lines = self.fields.lines.iter();
        lines.filter(|line| !HOP_BY_HOP.has(line.known) && line.flags & NOMINATED == 0).map(|line| Field {
            name: line.name.of(buffer),
            value: line.value.of(buffer),
            known: line.known,
        })
    }

    /// Gives back room that the head does not need: for heads that are kept for long.
    pub fn shrink(&mut self) {
        self.fields.lines.shrink_to_fit();
        self.connection.others.shrink_to_fit();
    }

    /// Bytes of the allocations that it owns, one after another, beside its own size.
    pub fn allocations(&self) -> [usize; 2] {
        [
            self.fields.lines.capacity() * size_of::<FieldLine>(),
            self.connection.others.capacity() * size_of::<Span>(),
        ]
    }

    /// How the body is delimited (RFC 9112 §6.3).
    pub fn body(&self) -> BodyLength {
        self.body
    }

    /// `Content-Length` as declared, also where no body follows it (HEAD, 304).
    pub fn declared_length(&self) -> Option<u64> {
        self.declared
    }

    /// Whether the backend keeps the connection: never for tunnels and bodies delimited by close.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// The protocol a 101 switches to.
    pub fn upgrade<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.upgrade.map(|span| span.of(buffer))
    }

    /// Whether this is the 101 that the request asked for: exactly the protocol of `requested`. Only then may bytes be
    /// tunnelled (threat A18).
    pub fn accepts_upgrade(&self, buffer: &[u8], requested: &[u8]) -> bool {
        self.status == 101 && self.upgrade(buffer).is_some_and(|token| token.eq_ignore_ascii_case(requested))
    }
}
