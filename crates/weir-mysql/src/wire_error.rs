//! What a peer can do wrong in MySQL's protocol.

use std::fmt;

/// Why bytes of a peer are not what the protocol allows at that place. The connection they came by is of no
/// use any more: where the next packet begins, or whose answer it is, is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// A field reaches beyond the end of its packet. Where only the beginning of a packet was given, more of
    /// it may be needed.
    Truncated,
    /// The first byte of a length-encoded integer is 0xFB or 0xFF, which begin no integer.
    LengthEncodedInteger,
    /// Bytes are left where the packet should have ended.
    TrailingBytes,
    /// A greeting of another version than 10.
    ProtocolVersion,
    /// The peer lacks `CLIENT_PROTOCOL_41`: it speaks what servers spoke before 2004.
    OldProtocol,
    /// A packet's first byte is none that may stand at this place.
    UnexpectedPacket,
    /// A packet's sequence id is not the one after its predecessor's.
    SequenceId,
    /// A statement's answer has 0 columns or more than [`crate::response::MAX_COLUMNS`].
    ColumnCount,
    /// A value's type is none of the binary protocol's.
    ValueType,
    /// A request for a local file from a server that was not told of `CLIENT_LOCAL_FILES`.
    LocalInfileNotOffered,
}

impl fmt::Display for WireError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            WireError::Truncated => "a field reaches beyond the end of its packet",
            WireError::LengthEncodedInteger => "a length-encoded integer begins with 0xFB or 0xFF",
            WireError::TrailingBytes => "a packet is longer than its fields",
            WireError::ProtocolVersion => "the greeting is not of protocol version 10",
            WireError::OldProtocol => "the peer does not speak the protocol of MySQL 4.1 and later",
            WireError::UnexpectedPacket => "a packet of this kind is not expected here",
            WireError::SequenceId => "a packet's sequence id does not follow its predecessor's",
            WireError::ColumnCount => "a result has no column, or more than 65535",
            WireError::ValueType => "a value is of a type that the binary protocol does not have",
            WireError::LocalInfileNotOffered => "a local file is asked for, which was not offered",
        })
    }
}

impl std::error::Error for WireError {}
