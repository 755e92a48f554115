//! Everything a peer can do wrong, each with the status to answer, a stable word for logs, and a sentence.

use std::fmt;

macro_rules! violations {
    ($($name:ident $status:literal $word:literal $text:literal;)*) => {
        /// One way in which a message breaks RFC 9110, 9112, 9113 or 9114, or Weir's limits.
        ///
        /// After any of them a connection of HTTP/1.x must be closed, since it is unknown where the next
        /// message would start. In HTTP/2 and HTTP/3 only the stream ends: see `Violation::stream_error`.
        /// Repeating the message does not help; the sender has to change it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Violation {
            $(#[doc = $text] $name,)*
        }

        impl Violation {
            /// All violations, for metric tables and documentation.
            pub const ALL: &[Violation] = &[$(Violation::$name),*];

            /// Status code to answer a client with. If a backend's response is at fault, the proxy answers
            /// 502 instead.
            pub const fn status(self) -> u16 {
                match self { $(Violation::$name => $status),* }
            }

            /// Stable word for logs and metric labels.
            pub const fn word(self) -> &'static str {
                match self { $(Violation::$name => $word),* }
            }

            const fn sentence(self) -> &'static str {
                match self { $(Violation::$name => $text),* }
            }
        }
    };
}

violations! {
    LeadingEmptyLines 400 "leading_empty_lines" "found more empty lines than allowed, expected a request line (RFC 9112 §2.2)";
    BareLineFeed 400 "bare_line_feed" "found LF without CR, expected CRLF as line end (RFC 9112 §2.2)";
    BareCarriageReturn 400 "bare_carriage_return" "found CR not followed by LF, expected CRLF as line end (RFC 9112 §2.2)";
    MethodSyntax 400 "method_syntax" "found a byte that is no token in the method, expected a token and one space (RFC 9112 §3.1)";
    MethodTooLong 501 "method_too_long" "found a method of more than 32 bytes, expected a method that exists (RFC 9112 §3)";
    RequestLineTooLong 414 "request_line_too_long" "found a request line over the limit, expected a shorter request-target (RFC 9112 §3)";
    TargetSyntax 400 "target_syntax" "found a byte that must not stand in a request-target, expected it percent-encoded (RFC 9112 §3.2)";
    TargetForm 400 "target_form" "found a request-target that fits no form of this method, expected origin-, absolute-, authority- or asterisk-form (RFC 9112 §3.2)";
    TargetUserinfo 400 "target_userinfo" "found userinfo in the request-target, expected host and port only (RFC 9110 §4.2.4)";
    TargetScheme 400 "target_scheme" "found another scheme in the request-target, expected http or https (RFC 9112 §3.2.2)";
    VersionSyntax 400 "version_syntax" "found no well-formed version at the end of the line, expected HTTP/1.1 or HTTP/1.0 and CRLF (RFC 9112 §2.3)";
    VersionUnsupported 505 "version_unsupported" "found another protocol version, expected HTTP/1.1 or HTTP/1.0 (RFC 9110 §15.6.6)";
    HostMissing 400 "host_missing" "found no Host in an HTTP/1.1 request, expected exactly one (RFC 9112 §3.2)";
    HostRepeated 400 "host_repeated" "found more than one Host, expected exactly one (RFC 9112 §3.2)";
    HostSyntax 400 "host_syntax" "found a host that is no uri-host with optional port, expected one (RFC 9110 §7.2)";
    HostMismatch 400 "host_mismatch" "found a Host that names another authority than the request-target, expected the same (RFC 9112 §3.2.2)";
    HeaderBlockTooLarge 431 "header_block_too_large" "found a field block over the limit, expected fewer or shorter fields (RFC 6585 §5)";
    TooManyFields 431 "too_many_fields" "found more fields than the limit, expected fewer (RFC 6585 §5)";
    FieldNameEmpty 400 "field_name_empty" "found a field line that begins with a colon, expected a name (RFC 9112 §5.1)";
    FieldNameSyntax 400 "field_name_syntax" "found a byte that is no token in a field name, expected a token directly followed by a colon (RFC 9112 §5.1)";
    FieldWithoutColon 400 "field_without_colon" "found a field line without a colon, expected name, colon, value (RFC 9112 §5)";
    FieldValueSyntax 400 "field_value_syntax" "found a control byte in a field value, expected visible bytes, spaces and tabs (RFC 9110 §5.5)";
    WhitespaceBeforeFields 400 "whitespace_before_fields" "found whitespace between the first line and the first field, expected a field name (RFC 9112 §2.2)";
    LineFolding 400 "line_folding" "found a field line that begins with whitespace, expected each field on one line (RFC 9112 §5.2)";
    ContentLengthSyntax 400 "content_length_syntax" "found a Content-Length that is not one plain decimal number below 2^63, expected digits only (RFC 9110 §8.6)";
    ContentLengthRepeated 400 "content_length_repeated" "found Content-Length more than once, expected at most one (RFC 9112 §6.3)";
    TwoBodyLengths 400 "two_body_lengths" "found Content-Length and Transfer-Encoding together, expected one of them (RFC 9112 §6.3)";
    TransferEncodingRepeated 400 "transfer_encoding_repeated" "found Transfer-Encoding on more than one line, expected chunked once (RFC 9112 §6.1)";
    TransferEncodingSyntax 400 "transfer_encoding_syntax" "found a Transfer-Encoding that does not end in one plain chunked, expected exactly chunked (RFC 9112 §6.3)";
    TransferEncodingUnsupported 501 "transfer_encoding_unsupported" "found a transfer coding beside chunked, expected chunked alone (RFC 9112 §6.1)";
    TransferEncodingVersion 400 "transfer_encoding_version" "found Transfer-Encoding in an HTTP/1.0 message, expected Content-Length (RFC 9112 §6.1)";
    ConnectionSyntax 400 "connection_syntax" "found a Connection option that is no token, expected a list of tokens (RFC 9110 §7.6.1)";
    TooManyConnectionOptions 400 "too_many_connection_options" "found more Connection options than the limit, expected fewer (RFC 9110 §7.6.1)";
    ExpectationUnknown 417 "expectation_unknown" "found an expectation other than 100-continue, expected only that one (RFC 9110 §10.1.1)";
    MaxForwardsSyntax 400 "max_forwards_syntax" "found a Max-Forwards that is not one decimal number, expected digits only (RFC 9110 §7.6.2)";
    TraceWithBody 400 "trace_with_body" "found content in a TRACE request, expected none (RFC 9110 §9.3.8)";
    ConnectWithBody 400 "connect_with_body" "found content in a CONNECT request, expected none (RFC 9110 §9.3.6)";
    PseudoFieldMissing 400 "pseudo_field_missing" "found no :method, :scheme, :path or :status, expected each that this message needs (RFC 9113 §8.3)";
    PseudoFieldRepeated 400 "pseudo_field_repeated" "found a pseudo-header more than once, expected each once (RFC 9113 §8.3)";
    PseudoFieldUnknown 400 "pseudo_field_unknown" "found a pseudo-header that this message must not have, expected only those defined for it (RFC 9113 §8.3)";
    PseudoFieldLate 400 "pseudo_field_late" "found a pseudo-header behind a field, expected all of them first (RFC 9113 §8.3)";
    FieldNameUppercase 400 "field_name_uppercase" "found an upper-case letter in a field name, expected lower case in HTTP/2 and HTTP/3 (RFC 9113 §8.2.1)";
    FieldValuePadded 400 "field_value_padded" "found whitespace around a field value, expected none in HTTP/2 and HTTP/3 (RFC 9113 §8.2.1)";
    ConnectionField 400 "connection_field" "found a field that belongs to HTTP/1.1 connections, expected none of them, and only trailers in te (RFC 9113 §8.2.2)";
    ProtocolUnsupported 501 "protocol_unsupported" "found a :protocol that is none to upgrade to, expected one such as websocket (RFC 9220 §3)";
    StatusSyntax 400 "status_syntax" "found a :status that is not three digits from 100, expected those alone (RFC 9113 §8.3.2)";
    StatusNotAllowed 400 "status_not_allowed" "found a status that HTTP/2 and HTTP/3 do not have here, expected no 101, and no interim response that ends the stream (RFC 9113 §8.1, §8.6)";
    StatusLineSyntax 400 "status_line_syntax" "found no well-formed status line, expected version, three digits and a reason (RFC 9112 §4)";
    StatusLineTooLong 400 "status_line_too_long" "found a status line over the limit, expected a shorter reason (RFC 9112 §4)";
    BodyNotAllowed 400 "body_not_allowed" "found a body length in a response whose status has no body, expected none (RFC 9112 §6.3)";
    UpgradeNotNamed 400 "upgrade_not_named" "found 101 without Upgrade and Connection: upgrade, expected both (RFC 9110 §15.2.2)";
    ChunkSizeSyntax 400 "chunk_size_syntax" "found a chunk size that is not 1 to 16 hexadecimal digits below 2^63, expected those alone (RFC 9112 §7.1)";
    ChunkExtensionSyntax 400 "chunk_extension_syntax" "found a malformed chunk extension, expected ;name or ;name=value without whitespace (RFC 9112 §7.1.1)";
    ChunkExtensionsTooLarge 400 "chunk_extensions_too_large" "found chunk extensions over the limit, expected fewer (RFC 9112 §7.1.1)";
    ChunkEnd 400 "chunk_end" "found other bytes behind chunk data, expected CRLF (RFC 9112 §7.1)";
    TrailersTooLarge 431 "trailers_too_large" "found a trailer section over the limit, expected fewer or shorter trailers (RFC 9112 §7.1.2)";
    BodyTooShort 400 "body_too_short" "found the end of the stream before the end of the body, expected the declared length (RFC 9112 §8)";
    BodyTooLong 400 "body_too_long" "found more body bytes than declared, expected the declared length (RFC 9113 §8.1.1)";
    TargetNotForHttp2 400 "target_not_for_http2" "found a path or host that HTTP/2 to the backend cannot carry, expected it percent-encoded, and the host plain (RFC 3986 §3.2.2, §3.3)";
    PathEscape 400 "path_escape" "found a percent sign without two hexadecimal digits in the path, expected a complete escape (RFC 3986 §2.1)";
    PathForbiddenByte 400 "path_forbidden_byte" "found an encoded control byte or a backslash in the path, expected neither (RFC 3986 §7.3)";
    PathAboveRoot 400 "path_above_root" "found a path that climbs above its root, expected dot segments to stay below it (RFC 3986 §5.2.4)";
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.sentence())
    }
}

impl std::error::Error for Violation {}
