//! Reasons to end an HTTP/2 or HTTP/3 stream early, with the codes of both (RFC 9113 §7, RFC 9114 §8.1).

use crate::violation::Violation;

macro_rules! stream_errors {
    ($($(#[$doc:meta])* $name:ident $h2:literal $h3:literal;)*) => {
        /// Why a stream is reset, in either version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StreamError {
            $($(#[$doc])* $name,)*
        }

        impl StreamError {
            /// All of them.
            pub const ALL: &[StreamError] = &[$(StreamError::$name),*];

            /// The code in RST_STREAM (RFC 9113 §7).
            pub const fn h2_code(self) -> u32 {
                match self { $(StreamError::$name => $h2),* }
            }

            /// The code in RESET_STREAM and STOP_SENDING (RFC 9114 §8.1).
            pub const fn h3_code(self) -> u64 {
                match self { $(StreamError::$name => $h3),* }
            }
        }
    };
}

stream_errors! {
    /// Nothing is wrong: the response is complete, and the rest of the request is not needed (RFC 9113 §8.1).
    NotNeeded 0x0 0x100;
    /// The message is malformed (RFC 9113 §8.1.1, RFC 9114 §4.1.2).
    Malformed 0x1 0x10e;
    /// Weir or the backend can't complete what it began.
    Internal 0x2 0x102;
    /// The request was not processed: it may be sent again, whatever its method (RFC 9113 §8.7).
    Refused 0x7 0x10b;
    /// The stream is not needed any more.
    Cancelled 0x8 0x10c;
    /// The tunnel of a CONNECT broke.
    TunnelBroken 0xa 0x10f;
    /// The peer causes too much work.
    ExcessiveLoad 0xb 0x107;
    /// The request can only be served in HTTP/1.1.
    Http11Required 0xd 0x110;
}

impl Violation {
    /// The error to reset the stream with after a message that was wrong in this way.
    ///
    /// `None` if the message is well-formed but Weir does not accept it: a client gets an answer with
    /// [`Violation::status`], and a backend's stream is reset with [`StreamError::Cancelled`].
    pub const fn stream_error(self) -> Option<StreamError> {
        //= https://www.rfc-editor.org/rfc/rfc9113#section-8.1.1
        //# Malformed requests or responses that are detected MUST be treated as
        //# a stream error (Section 5.4.2) of type PROTOCOL_ERROR.
        match self {
            Violation::MethodTooLong
            | Violation::RequestLineTooLong
            | Violation::HeaderBlockTooLarge
            | Violation::TooManyFields
            | Violation::TrailersTooLarge
            | Violation::TargetScheme
            | Violation::ProtocolUnsupported
            | Violation::ExpectationUnknown
            | Violation::MaxForwardsSyntax
            | Violation::TargetNotForHttp2
            | Violation::PathEscape
            | Violation::PathForbiddenByte
            | Violation::PathAboveRoot => None,
            _ => Some(StreamError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_registries() {
        // RFC 9113 §7 and RFC 9114 §8.1 list them in these tables.
        assert_eq!((StreamError::Malformed.h2_code(), StreamError::Malformed.h3_code()), (1, 0x10e));
        assert_eq!((StreamError::Refused.h2_code(), StreamError::Refused.h3_code()), (7, 0x10b));
        assert_eq!((StreamError::Cancelled.h2_code(), StreamError::Cancelled.h3_code()), (8, 0x10c));
    }

    #[test]
    fn what_is_only_too_much_is_answered_and_not_reset() {
        assert_eq!(Violation::TooManyFields.stream_error(), None);
        assert_eq!(Violation::BodyTooShort.stream_error(), Some(StreamError::Malformed));
        for &violation in Violation::ALL {
            let answered = matches!(violation.status(), 414 | 417 | 431);
            assert!(!answered || violation.stream_error().is_none(), "{}", violation.word());
        }
    }
}
