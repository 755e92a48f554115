//! HTTP/3 (RFC 9114) and QPACK (RFC 9204), without QUIC and without I/O.
//!
//! A QUIC library gives streams of bytes; this layer says what they mean, and which bytes to send.
//! [`Connection`] holds what the streams of a connection share, [`RequestStream`] reads one message,
//! [`SectionWriter`] writes a HEADERS frame. Nothing here waits: timers, stream limits and flow control are
//! the caller's. How to drive it:
//!
//! ```
//! use weir_http::h3::{self, Connection, Fault, OwnStream, SectionError, SectionRead, StreamEvent};
//! use weir_http::{Limits, RequestBuilder, RequestHead, Version, Violation};
//!
//! let limits = Limits::default();
//! // Once the handshake is complete. The last argument is a random number.
//! let mut connection = Connection::new(&h3::Config::new(&limits), 0x1234_5678);
//!
//! // Open a unidirectional stream for each of ours when it first has bytes; write what flow control takes. Ask again after
//! // anything else was called: once per turn of the loop is enough.
//! for own in OwnStream::ALL {
//!     let taken = connection.pending(own).len(); // quic.write(stream_of(own), connection.pending(own))
//!     connection.sent(own, taken);
//! }
//!
//! // A unidirectional stream of the client is readable: here its control stream (2), with empty settings.
//! match connection.receive(2, &[0x00, 0x04, 0x00])? {
//!     h3::PeerStream::Read => {}
//!     h3::PeerStream::Ignore => { /* quic.stop(stream, Code::StreamCreationError) */ }
//! }
//! // It ended or was reset: connection.closed(stream)?
//!
//! // A request stream was opened by the client: `None` means RESET_STREAM and STOP_SENDING with `Connection::REFUSED`.
//! let mut stream = connection.admit(0).expect("no GOAWAY was sent");
//! let (mut head, mut text) = (RequestHead::new(), Vec::new());
//!
//! // It is readable: HEADERS with `:method: GET`, `:scheme: https`, `:path: /` and `:authority: a`, then DATA.
//! let input = b"\x01\x08\0\0\xd1\xd7\xc1\x50\x01a\0\x05hello";
//! let mut at = 0;
//! while at < input.len() {
//!     let step = stream.advance(&input[at..])?;
//!     match step.event {
//!         StreamEvent::Section(section) if section.is_trailers => { /* the same with a `TrailerBuilder` */ }
//!         StreamEvent::Section(section) => {
//!             let mut builder = RequestBuilder::new(Version::Http3, &limits, &mut head, &mut text);
//!             match connection.read_section(&mut stream, &input[at..], section, |name, value| {
//!                 builder.field(name, value)
//!             }) {
//!                 // Whether the stream ends here is known once `finish` was called; a body follows otherwise.
//!                 Ok(SectionRead::Complete) => builder.finish(false).expect("a good request"),
//!                 // Stop reading the stream until `Event::Unblocked` names it, then begin a new builder and call
//!                 // `connection.retry_section(&mut stream, ...)`; then go on here.
//!                 Ok(SectionRead::Blocked) => break,
//!                 // Answer 431: the connection is fine.
//!                 Err(SectionError::Fault(Fault::SectionTooLarge | Fault::TooManyFields)) => break,
//!                 // Close the connection, or reset the stream, as `fault.scope()` says, with `fault.code()`.
//!                 Err(SectionError::Fault(fault)) => return Err(fault),
//!                 // Reset the stream with `violation.stream_error()`, or answer with `violation.status()`.
//!                 Err(SectionError::Refused(violation)) => { let _: Violation = violation; break }
//!             }
//!         }
//!         // Content: a range of what was given to `advance`. Count it with `BodyReader::receive`.
//!         StreamEvent::Data(range) => assert_eq!(&input[at..][range], b"hello"),
//!         StreamEvent::NeedMore => {}
//!         StreamEvent::Blocked => break,
//!     }
//!     at += step.consumed;
//! }
//! assert_eq!(text, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
//!
//! // The client ended the stream (FIN): the frames must be whole, and `BodyReader::end_stream` compares the length (C3).
//! stream.finish()?;
//! // Had it been reset, or would we stop reading it: connection.abandon(stream.id())?
//!
//! // The response: a HEADERS frame, then a header before each piece of content.
//! let mut out = Vec::new();
//! let mut response = h3::SectionWriter::new(&mut out);
//! response.status(200);
//! response.field(b"content-type", b"text/plain");
//! response.finish();
//! h3::write_data_header(&mut out, 5); // then five bytes of content
//! assert_eq!(out, b"\x01\x40\x04\0\0\xd9\xf5\0\x05");
//!
//! // Draining: `announce_end`, a round trip later `refuse_requests`; close with `Code::NoError` when all are done.
//! connection.announce_end();
//! # Ok::<(), h3::Fault>(())
//! ```

mod connection;
mod control;
mod error;
mod frame;
pub mod qpack;
mod settings;
mod stream;
pub mod varint;

pub use connection::{Config, Connection, Event, OwnStream, PeerStream};
pub use error::{Code, Fault, Scope, SectionError};
pub use frame::{FrameHeader, FrameHeaderReader, FrameKind, write_data_header};
pub use qpack::{SectionLimits, SectionRead, SectionWriter};
pub use settings::Settings;
pub use stream::{RequestStream, Section, StreamEvent, StreamStep};
