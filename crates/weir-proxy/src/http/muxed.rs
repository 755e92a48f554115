//! A stream of a multiplexed connection: what HTTP/2 and HTTP/3 have in common for an exchange.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use weir_http::section::Asked;
use weir_http::{Field, InterimAllowance, Limits, ResponseHead, StreamError, Trailers, Violation};
use weir_io::buffers::Buffer;
use weir_io::deadline::Deadline;

use crate::access_log::Spoken;
use crate::http::failure::{Awaited, Failure};
use crate::http::{h2, h3};

/// One request and its response on a multiplexed connection. The peer is a client or a backend.
pub enum Muxed {
    /// A stream of an HTTP/2 connection.
    H2(h2::Stream),
    /// A stream of an HTTP/3 connection.
    H3(h3::Stream),
}

/// The head of a response that is being written. If the encoder refuses a field, [`Muxed::send_head`] reports
/// it.
pub enum Head {
    H2(h2::ResponseParts),
    H3(h3::ResponseParts),
}

impl Head {
    /// Appends a field; `:status` is one too.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            Head::H2(parts) => parts.field(name, value),
            Head::H3(parts) => parts.field(name, value),
        }
    }
}

impl Muxed {
    /// Ready when there is content to take, or the end of the stream.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Muxed::H2(stream) => stream.poll_readable(context),
            Muxed::H3(stream) => stream.poll_readable(context),
        }
    }

    /// The protocol of its connection.
    pub fn spoken(&self) -> Spoken {
        match self {
            Muxed::H2(_) => Spoken::Http2,
            Muxed::H3(_) => Spoken::Http3,
        }
    }

    /// Takes content that has piled up although no buffer is free for it.
    pub fn gather(&mut self, context: &mut Context<'_>) {
        match self {
            Muxed::H2(stream) => stream.gather(context),
            Muxed::H3(stream) => stream.gather(),
        }
    }

    /// Moves content into the free part of `buffer`, after [`Self::poll_readable`]; 0 means the end of the
    /// stream.
    pub fn take(&mut self, buffer: &mut Buffer) -> io::Result<usize> {
        match self {
            Muxed::H2(stream) => stream.take(buffer),
            Muxed::H3(stream) => stream.take(buffer),
        }
    }

    /// Whether the end of the stream was received and everything before it taken.
    pub fn is_ended(&self) -> bool {
        match self {
            Muxed::H2(stream) => stream.is_ended(),
            Muxed::H3(stream) => stream.is_ended(),
        }
    }

    /// Whether dropping the stream with part of the request unread makes some clients discard the part of the
    /// answer that they have not read yet.
    pub fn resets_behind_answers(&self) -> bool {
        matches!(self, Muxed::H2(stream) if !stream.is_ended())
    }

    /// The trailers, once the end was received; given only once.
    pub fn take_trailers(&mut self) -> Option<Box<Trailers>> {
        match self {
            Muxed::H2(stream) => stream.take_trailers(),
            Muxed::H3(stream) => stream.take_trailers(),
        }
    }

    /// Begins the head of a response.
    pub fn head(&self) -> Head {
        match self {
            Muxed::H2(_) => Head::H2(h2::ResponseParts::default()),
            Muxed::H3(_) => Head::H3(h3::ResponseParts::default()),
        }
    }

    /// Sends a response's head; `is_last` if nothing follows. Interim heads are recognised by their status.
    pub fn send_head(&mut self, head: Head, is_last: bool) -> io::Result<()> {
        match (self, head) {
            (Muxed::H2(stream), Head::H2(parts)) => stream.send_head(parts.into_response()?, is_last),
            (Muxed::H3(stream), Head::H3(parts)) => stream.send_head(parts, is_last),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Sends as much of `content` as the peer has room for now, at least one byte when ready.
    pub fn poll_send(&mut self, context: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Muxed::H2(stream) => stream.poll_send(context, content, false),
            Muxed::H3(stream) => stream.poll_send(context, content),
        }
    }

    /// As [`Self::poll_send`], for content that only the end follows: if it is sent in one piece, the end is
    /// sent with it.
    pub fn poll_send_last(&mut self, context: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Muxed::H2(stream) => stream.poll_send(context, content, true),
            // The end is put into the packet of the data before it in any case.
            Muxed::H3(stream) => stream.poll_send(context, content),
        }
    }

    /// Sends as much of `content` as the peer has room for now and removes it from `content`, without a copy;
    /// when ready, at least some was sent. If `is_last`, the end is sent with the last byte;
    /// [`Self::poll_finish`] must still be called.
    pub fn poll_send_bytes(
        &mut self,
        context: &mut Context<'_>,
        content: &mut Bytes,
        is_last: bool,
    ) -> Poll<io::Result<()>> {
        match self {
            Muxed::H2(stream) => stream.poll_send_bytes(context, content, is_last),
            Muxed::H3(stream) => stream.poll_send_bytes(context, content),
        }
    }

    /// Ends our direction, with `trailers` if there are any. Does nothing if it has ended already.
    pub fn poll_finish<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        match self {
            Muxed::H2(stream) => Poll::Ready(stream.finish(trailers)),
            Muxed::H3(stream) => stream.poll_finish(context, trailers),
        }
    }

    /// Notes that the request was malformed, which its answer says. In HTTP/3 the way the stream ends says so
    /// too if the message is malformed.
    pub fn note_violation(&mut self, violation: Violation) {
        match self {
            Muxed::H3(stream) => stream.note_violation(violation),
            Muxed::H2(_) => {}
        }
    }

    /// Breaks the stream off.
    pub fn reset(&mut self, why: StreamError) {
        match self {
            Muxed::H2(stream) => stream.reset(why),
            Muxed::H3(stream) => stream.reset(why),
        }
    }

    /// Pending as long as the peer wants the stream; then the task is woken.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Muxed::H2(stream) => stream.poll_gone(context),
            Muxed::H3(stream) => stream.poll_gone(context),
        }
    }

    /// Ready once it is certain that the request is no replay (RFC 8470). False if the connection ended
    /// before.
    pub fn poll_confirmed(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match self {
            Muxed::H3(stream) => stream.poll_confirmed(context),
            Muxed::H2(_) => Poll::Ready(true),
        }
    }

    /// A backend's next head, interim or final. Its text is appended to `text`.
    pub fn poll_response(
        &mut self,
        context: &mut Context<'_>,
        limits: &Limits,
        asked: Asked<'_>,
        head: &mut ResponseHead,
        text: &mut Vec<u8>,
    ) -> Poll<io::Result<Result<(), Violation>>> {
        match self {
            Muxed::H2(stream) => stream.poll_response(context, limits, asked, head, text),
            Muxed::H3(stream) => stream.poll_response(context, limits, asked, head, text),
        }
    }

    /// Takes the interim responses of a backend that have come, while nobody asks for the next head. True if
    /// they are more than what is `left`: then the stream is given up. In HTTP/3 they wait in the stream's
    /// window.
    pub fn floods(&mut self, context: &mut Context<'_>, left: InterimAllowance) -> bool {
        match self {
            Muxed::H2(stream) => stream.floods(context, left),
            Muxed::H3(_) => false,
        }
    }

    /// Whether a backend sends nothing at all although an acknowledgement is overdue, so that a request which
    /// may be sent again should use another connection. Always false over TCP, where the kernel acknowledges
    /// whatever the backend does.
    pub fn is_silent(&self) -> bool {
        match self {
            Muxed::H2(stream) => stream.is_silent(),
            Muxed::H3(stream) => stream.is_silent(),
        }
    }

    /// No answer came, for this reason: a connection that seems dead is not used for further requests.
    pub fn note_unanswered(&self, why: &Failure) {
        match (why, self) {
            (Failure::BackendTimeout, Muxed::H2(stream)) => stream.give_up_connection(),
            (Failure::BackendTimeout, Muxed::H3(stream)) => stream.give_up_connection(),
            // The request's total time may be short: other requests may be answered over the same connection.
            (Failure::RequestTotal(Awaited::Backend), Muxed::H2(stream)) if stream.is_unheard() => {
                stream.give_up_connection();
            }
            (Failure::RequestTotal(Awaited::Backend), Muxed::H3(stream)) if stream.is_unheard() => {
                stream.give_up_connection();
            }
            _ => {}
        }
    }
}

/// Waits until it is certain that the request is no replay.
pub async fn confirm(stream: &mut Muxed, deadline: &Deadline) -> Result<(), Failure> {
    poll_fn(|context| match stream.poll_confirmed(context) {
        Poll::Ready(true) => Poll::Ready(Ok(())),
        Poll::Ready(false) => Poll::Ready(Err(Failure::ClientClosed)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(Failure::HeaderTimeout)),
        Poll::Pending => Poll::Pending,
    })
    .await
}
