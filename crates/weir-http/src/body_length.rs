//! How a message declares where its body ends.

/// How a body is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// No body.
    #[default]
    None,
    /// This many bytes; zero is a declared, empty body.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// All bytes until the sender closes (HTTP/1.x responses) or ends the stream (HTTP/2 and 3 without a
    /// declared length).
    UntilClose,
}

impl BodyLength {
    /// Whether no body bytes follow.
    pub const fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Length(0))
    }

    /// Whether the length is not known in advance: the body ends with a last chunk, the stream or the
    /// connection. Towards HTTP/1.1 such a body is written in chunks.
    pub const fn is_open_ended(self) -> bool {
        matches!(self, BodyLength::Chunked | BodyLength::UntilClose)
    }
}
