//! Violations of MySQL's protocol by a peer.

use std::fmt;

/// Why the bytes of a peer violate the protocol at this point. The connection must then be closed, because it
/// is unknown where the next packet begins, or which answer it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// A field extends beyond the end of its packet. If only the beginning of the packet was given, more of
    /// it may be needed.
    Truncated,
    /// A length-encoded integer begins with 0xFB or 0xFF, which is not allowed.
    LengthEncodedInteger,
    /// Bytes are left after the last field of a packet.
    TrailingBytes,
    /// The greeting's protocol version is not 10.
    ProtocolVersion,
    /// The peer lacks `CLIENT_PROTOCOL_41`: it speaks the protocol from before 2004.
    OldProtocol,
    /// A packet's first byte is not allowed at this point.
    UnexpectedPacket,
    /// A packet's sequence id does not follow its predecessor's.
    SequenceId,
    /// A statement's answer has 0 columns or more than [`crate::response::MAX_COLUMNS`].
    ColumnCount,
    /// A value has a type that the binary protocol does not have.
    ValueType,
    /// A server asked for a local file although `CLIENT_LOCAL_FILES` was not set.
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
