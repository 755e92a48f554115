//! Everything a peer can do wrong in HTTP/3 itself, and the error codes for it (RFC 9114 §8.1, RFC 9204 §6).

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $value:literal $text:literal;)*) => {
        /// An error code of HTTP/3 or QPACK, for CONNECTION_CLOSE, RESET_STREAM and STOP_SENDING.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The value on the wire.
            pub const fn value(self) -> u64 {
                match self { $(Code::$name => $value),* }
            }

            /// Its name in the IANA registry.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => $text),* }
            }
        }
    };
}

codes! {
    /// Nothing is wrong.
    NoError 0x100 "H3_NO_ERROR";
    /// A rule was broken that has no code of its own.
    GeneralProtocolError 0x101 "H3_GENERAL_PROTOCOL_ERROR";
    /// Weir can't continue.
    InternalError 0x102 "H3_INTERNAL_ERROR";
    /// A stream that must not be opened.
    StreamCreationError 0x103 "H3_STREAM_CREATION_ERROR";
    /// A stream that the connection needs has ended.
    ClosedCriticalStream 0x104 "H3_CLOSED_CRITICAL_STREAM";
    /// A frame that is not allowed at this point.
    FrameUnexpected 0x105 "H3_FRAME_UNEXPECTED";
    /// A frame whose length does not match its contents.
    FrameError 0x106 "H3_FRAME_ERROR";
    /// The peer causes too much work.
    ExcessiveLoad 0x107 "H3_EXCESSIVE_LOAD";
    /// An invalid stream or push id.
    IdError 0x108 "H3_ID_ERROR";
    /// An error in SETTINGS.
    SettingsError 0x109 "H3_SETTINGS_ERROR";
    /// No SETTINGS at the start of the control stream.
    MissingSettings 0x10a "H3_MISSING_SETTINGS";
    /// The request was not processed, and may be sent again.
    RequestRejected 0x10b "H3_REQUEST_REJECTED";
    /// The request or its response is no longer needed.
    RequestCancelled 0x10c "H3_REQUEST_CANCELLED";
    /// The stream ended before the request was complete.
    RequestIncomplete 0x10d "H3_REQUEST_INCOMPLETE";
    /// The message is malformed.
    MessageError 0x10e "H3_MESSAGE_ERROR";
    /// The tunnel of a CONNECT broke.
    ConnectError 0x10f "H3_CONNECT_ERROR";
    /// The request can only be served in HTTP/1.1.
    VersionFallback 0x110 "H3_VERSION_FALLBACK";
    /// A field section that can't be decoded.
    QpackDecompressionFailed 0x200 "QPACK_DECOMPRESSION_FAILED";
    /// An invalid instruction on the encoder stream.
    QpackEncoderStreamError 0x201 "QPACK_ENCODER_STREAM_ERROR";
    /// An invalid instruction on the decoder stream.
    QpackDecoderStreamError 0x202 "QPACK_DECODER_STREAM_ERROR";
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({:#x})", self.name(), self.value())
    }
}

macro_rules! faults {
    ($($name:ident $scope:ident $code:ident $word:literal $text:literal;)*) => {
        /// One way in which a peer breaks RFC 9114, RFC 9204 or Weir's limits for them.
        ///
        /// Most end the connection: [`Fault::scope`] says which. Faults of messages are
        /// [`Violation`](crate::Violation)s.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $(#[doc = $text] $name,)*
        }

        impl Fault {
            /// All faults, for metric tables and tests.
            pub const ALL: &[Fault] = &[$(Fault::$name),*];

            /// The code to close the connection or reset the stream with, depending on [`Fault::scope`].
            pub const fn code(self) -> Code {
                match self { $(Fault::$name => Code::$code),* }
            }

            /// Whether the error concerns the connection or one stream.
            pub const fn scope(self) -> Scope {
                match self { $(Fault::$name => Scope::$scope),* }
            }

            /// Stable word for logs and metric labels.
            pub const fn word(self) -> &'static str {
                match self { $(Fault::$name => $word),* }
            }

            /// A sentence about it, which is also suitable as the reason in a CONNECTION_CLOSE.
            pub const fn sentence(self) -> &'static str {
                match self { $(Fault::$name => $text),* }
            }
        }
    };
}

/// What a [`Fault`] ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The whole connection: CONNECTION_CLOSE with the code.
    Connection,
    /// One request: RESET_STREAM and STOP_SENDING with the code, or an answer if one is possible.
    Stream,
}

faults! {
    DataBeforeHeaders Connection FrameUnexpected "h3_data_before_headers" "found DATA before HEADERS, expected HEADERS first (RFC 9114 §4.1)";
    FrameAfterTrailers Connection FrameUnexpected "h3_frame_after_trailers" "found DATA or HEADERS behind trailers, expected the end of the stream (RFC 9114 §4.1)";
    FrameInTunnel Connection FrameUnexpected "h3_frame_in_tunnel" "found HEADERS in a tunnel, expected DATA alone (RFC 9114 §4.4)";
    ControlFrameOnRequestStream Connection FrameUnexpected "h3_control_frame_on_request_stream" "found SETTINGS, GOAWAY, CANCEL_PUSH or MAX_PUSH_ID on a request stream, expected it on the control stream (RFC 9114 §7.2)";
    MessageFrameOnControlStream Connection FrameUnexpected "h3_message_frame_on_control_stream" "found DATA, HEADERS or PUSH_PROMISE on the control stream, expected it on a request stream (RFC 9114 §7.2)";
    FrameOfHttp2 Connection FrameUnexpected "h3_frame_of_http2" "found a frame type that only HTTP/2 has, expected one of HTTP/3 (RFC 9114 §7.2.8)";
    PushPromiseFromClient Connection FrameUnexpected "h3_push_promise_from_client" "found PUSH_PROMISE from a client, expected none (RFC 9114 §7.2.5)";
    TruncatedFrame Connection FrameError "h3_truncated_frame" "found the end of the stream inside a frame, expected as many bytes as its length says (RFC 9114 §7.1)";
    RequestIncomplete Stream RequestIncomplete "h3_request_incomplete" "found the end of the stream before a field section, expected a request (RFC 9114 §4.1)";
    SectionTooLarge Stream ExcessiveLoad "h3_section_too_large" "found a field section over the limit, expected fewer or shorter fields (RFC 9114 §4.2.2)";
    TooManyFields Stream ExcessiveLoad "h3_too_many_fields" "found more fields than the limit, expected fewer (RFC 9204 §7.3)";
    UnknownFramesTooLarge Connection ExcessiveLoad "h3_unknown_frames_too_large" "found too many bytes in frames of unknown types, expected a few (RFC 9114 §10.5)";
    FrameBeforeSettings Connection MissingSettings "h3_frame_before_settings" "found another frame first on the control stream, expected SETTINGS (RFC 9114 §6.2.1)";
    SettingsRepeated Connection FrameUnexpected "h3_settings_repeated" "found SETTINGS again, expected it once (RFC 9114 §7.2.4)";
    SettingsTooLarge Connection ExcessiveLoad "h3_settings_too_large" "found more settings than the limit, expected fewer (RFC 9114 §10.5)";
    SettingRepeated Connection SettingsError "h3_setting_repeated" "found a setting twice, expected each once (RFC 9114 §7.2.4)";
    SettingOfHttp2 Connection SettingsError "h3_setting_of_http2" "found a setting that only HTTP/2 has, expected one of HTTP/3 (RFC 9114 §7.2.4.1)";
    SettingValue Connection SettingsError "h3_setting_value" "found another value in a setting that is a switch, expected 0 or 1 (RFC 9220 §3, RFC 9297 §2.1.1)";
    ControlFramePayload Connection FrameError "h3_control_frame_payload" "found more or fewer bytes in a frame than its fields take, expected exactly those (RFC 9114 §7.1)";
    ControlStreamRepeated Connection StreamCreationError "h3_control_stream_repeated" "found a second control stream, expected one (RFC 9114 §6.2.1)";
    QpackStreamRepeated Connection StreamCreationError "h3_qpack_stream_repeated" "found a second QPACK stream of the same type, expected one of each (RFC 9204 §4.2)";
    PushStreamFromClient Connection StreamCreationError "h3_push_stream_from_client" "found a push stream from a client, expected none (RFC 9114 §6.2.2)";
    CriticalStreamClosed Connection ClosedCriticalStream "h3_critical_stream_closed" "found the end of the control stream or of a QPACK stream, expected it to last as long as the connection (RFC 9114 §6.2.1)";
    TooManyStreams Connection ExcessiveLoad "h3_too_many_streams" "found more unidirectional streams than the limit, expected fewer (RFC 9114 §10.5)";
    GoAwayId Connection IdError "h3_goaway_id" "found an id in GOAWAY that is larger than before, expected no larger one (RFC 9114 §5.2)";
    GoAwayStream Connection IdError "h3_goaway_stream" "found a server's GOAWAY that names no request's stream, expected one (RFC 9114 §7.2.6)";
    PushIdReduced Connection IdError "h3_push_id_reduced" "found MAX_PUSH_ID below an earlier one, expected it to grow (RFC 9114 §7.2.7)";
    PushIdUnknown Connection IdError "h3_push_id_unknown" "found CANCEL_PUSH of a push that was never promised, expected a known id (RFC 9114 §7.2.3)";
    AcknowledgementsUnread Connection ExcessiveLoad "h3_acknowledgements_unread" "found a peer that takes no more of the QPACK decoder stream, expected flow control credit for it (RFC 9204 §4.4)";
    SectionTruncated Connection QpackDecompressionFailed "qpack_section_truncated" "found the end of a field section inside a line, expected whole lines (RFC 9204 §4.5)";
    SectionInteger Connection QpackDecompressionFailed "qpack_section_integer" "found an integer of more than 62 bits in a field section, expected a smaller one (RFC 9204 §4.1.1)";
    SectionHuffman Connection QpackDecompressionFailed "qpack_section_huffman" "found a Huffman string that is no code or is wrongly padded, expected codes and a few one bits (RFC 7541 §5.2)";
    SectionReference Connection QpackDecompressionFailed "qpack_section_reference" "found a reference to an entry that is not in the table, expected an entry that is (RFC 9204 §2.2.3)";
    SectionInsertCount Connection QpackDecompressionFailed "qpack_section_insert_count" "found a Required Insert Count or Base that cannot be, expected one in range (RFC 9204 §4.5.1)";
    TooManyBlocked Connection QpackDecompressionFailed "qpack_too_many_blocked" "found more blocked streams than promised, expected no more than SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204 §2.1.2)";
    InstructionInteger Connection QpackEncoderStreamError "qpack_instruction_integer" "found an integer of more than 62 bits on the encoder stream, expected a smaller one (RFC 9204 §4.1.1)";
    InstructionHuffman Connection QpackEncoderStreamError "qpack_instruction_huffman" "found a Huffman string that is no code or is wrongly padded, expected codes and a few one bits (RFC 7541 §5.2)";
    InstructionReference Connection QpackEncoderStreamError "qpack_instruction_reference" "found an instruction on an entry that is not in the table, expected an entry that is (RFC 9204 §2.2.3)";
    InstructionCapacity Connection QpackEncoderStreamError "qpack_instruction_capacity" "found a table capacity over the one announced, expected no more (RFC 9204 §4.3.1)";
    InstructionTooLarge Connection QpackEncoderStreamError "qpack_instruction_too_large" "found an entry that is larger than the table, expected one that fits (RFC 9204 §3.2.2)";
    InstructionFlood Connection ExcessiveLoad "qpack_instruction_flood" "found far more instructions than sections that could use them, expected insertions that serve requests (RFC 9204 §7.3)";
    AcknowledgementUnfounded Connection QpackDecoderStreamError "qpack_acknowledgement_unfounded" "found an acknowledgement of something that was not sent, expected none (RFC 9204 §4.4)";
    AcknowledgementInteger Connection QpackDecoderStreamError "qpack_acknowledgement_integer" "found an integer of more than 62 bits on the decoder stream, expected a smaller one (RFC 9204 §4.1.1)";
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.sentence())
    }
}

impl std::error::Error for Fault {}

/// Why a field section could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError<E> {
    /// The section itself is malformed, or over a limit. [`Fault::SectionTooLarge`] and
    /// [`Fault::TooManyFields`] can be answered with 431; all others end the connection.
    Fault(Fault),
    /// The visitor refused a field, for this reason. The connection can continue.
    Refused(E),
}

impl<E> From<Fault> for SectionError<E> {
    fn from(fault: Fault) -> SectionError<E> {
        SectionError::Fault(fault)
    }
}
