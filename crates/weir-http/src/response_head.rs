//! The head of a response: see [`crate::message`].

use crate::body_length::BodyLength;
use crate::known::KnownHeader;
use crate::message::{
    ConnectionOptions, Cursor, Field, FieldLine, Fields, Phase, Span, Version, common_to_heads,
};

/// The head of a response. Filled by [`crate::h1::parse_response`]; [`clear`](Self::clear) it before the next
/// one, also after an interim response.
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

common_to_heads!(ResponseHead);

impl ResponseHead {
    /// Makes the head ready for another message; keeps its allocations.
    pub fn clear(&mut self) {
        self.cursor = Cursor::default();
        self.fields.clear();
        self.connection.clear();
        self.head_bytes = 0;
    }

    /// Status code, 100 to 999. Codes above 599 are treated like 5xx (RFC 9110 §15).
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether another response to the same request follows: true for 1xx except 101 (RFC 9110 §15.2).
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Whether the connection becomes a tunnel after this head: 101, or 2xx to CONNECT (RFC 9110 §7.8,
    /// §9.3.6).
    pub fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Reason phrase as sent; may be empty.
    pub fn reason<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        self.reason.of(buffer)
    }

    /// Frees unused capacity, for heads that are kept for long.
    pub fn shrink(&mut self) {
        self.fields.lines.shrink_to_fit();
        self.connection.others.shrink_to_fit();
    }

    /// Sizes in bytes of the allocations that it owns, without its own size.
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

    /// `Content-Length` as declared, also where no body follows (HEAD, 304).
    pub fn declared_length(&self) -> Option<u64> {
        self.declared
    }

    /// Whether the backend keeps the connection open: never for tunnels and bodies delimited by close.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// The protocol a 101 switches to.
    pub fn upgrade<'a>(&self, buffer: &'a [u8]) -> Option<&'a [u8]> {
        self.upgrade.map(|span| span.of(buffer))
    }

    /// Whether this is the 101 that the request asked for: it must name exactly the protocol `requested`.
    /// Only then may bytes be tunnelled (threat A18).
    pub fn accepts_upgrade(&self, buffer: &[u8], requested: &[u8]) -> bool {
        self.status == 101 && self.upgrade(buffer).is_some_and(|token| token.eq_ignore_ascii_case(requested))
    }
}
