//! A stream of a connection that carries many: what HTTP/2 and HTTP/3 have in common for an exchange.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use weir_http::section::Asked;
use weir_http::{Field, Limits, ResponseHead, StreamError, Trailers, Violation};
use weir_io::buffers::Buffer;
use weir_io::deadline::Deadline;

use crate::access_log::Spoken;
use crate::http::failure::{Awaited, Failure};
use crate::http::{h2, h3};

/// One request and its response on a multiplexed connection. The peer is a client or a backend.
pub enum Muxed {
    /// Of an HTTP/2 connection.
    H2(h2::Stream),
    /// Of an HTTP/3 connection.
    H3(h3::Stream),
}

/// The head of a response under way. What an encoder refuses is told by [`Muxed::send_head`].
pub enum Head {
    H2(h2::ResponseParts),
    H3(h3::ResponseParts),
}

impl Head {
    /// Puts a field behind those there are; `:status` is one.
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

    /// What is spoken on its connection.
    pub fn spoken(&self) -> Spoken {
        match self {
            Muxed::H2(_) => Spoken::Http2,
            Muxed::H3(_) => Spoken::Http3,
        }
    }

    /// Takes what has come together although nobody has room for it.
    pub fn gather(&mut self, context: &mut Context<'_>) {
        match self {
            Muxed::H2(stream) => stream.gather(context),
            Muxed::H3(stream) => stream.gather(),
        }
    }

    /// Moves content into the free room of `buffer`, after [`Self::poll_readable`]; zero is the end of the
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

    /// Whether dropping it with some of the request unread resets what the client has not read of the answer
    /// either, in the eyes of some clients.
    pub fn resets_behind_answers(&self) -> bool {
        matches!(self, Muxed::H2(stream) if !stream.is_ended())
    }

    /// The fields behind the content, once the end was received; given once.
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

    /// Sends a response's head; `is_last` when nothing follows. Interim ones are told by their status.
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

    /// As [`Self::poll_send`], for content that nothing but the end follows: where it goes in one piece, the
    /// end goes with it.
    pub fn poll_send_last(&mut self, context: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Muxed::H2(stream) => stream.poll_send(context, content, true),
            // The end is put into the packet of what goes before it in any case.
            Muxed::H3(stream) => stream.poll_send(context, content),
        }
    }

    /// Sends as much of `content` as the peer has room for now and takes it off, without a copy; some of it
    /// is gone when ready. The end goes with the last byte where `is_last`; [`Self::poll_finish`] is still to
    /// be called.
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

    /// Ends what we send, with `trailers` where there are any. Nothing when it has ended already.
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

    /// The request was not as it must be, which its answer says. In HTTP/3 the end of a stream says so too
    /// where it is malformed.
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

    /// Pending, and the task is woken, for as long as the peer wants the stream.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Muxed::H2(stream) => stream.poll_gone(context),
            Muxed::H3(stream) => stream.poll_gone(context),
        }
    }

    /// Ready once it is certain that the request is no copy that somebody sends again (RFC 8470). False when
    /// the connection has ended before.
    pub fn poll_confirmed(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match self {
            Muxed::H3(stream) => stream.poll_confirmed(context),
            Muxed::H2(_) => Poll::Ready(true),
        }
    }

    /// A backend's next head, interim or final. Its text goes behind what is in `text`.
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

    /// Whether nothing at all comes from a backend although it is time, so that a request which may be sent
    /// again had better go over another connection. Over TCP the kernel answers, whatever the backend does.
    pub fn is_silent(&self) -> bool {
        matches!(self, Muxed::H3(stream) if stream.is_silent())
    }

    /// No answer came, for this reason: a connection that seems dead is not used for further requests.
    pub fn note_unanswered(&self, why: &Failure) {
        match (why, self) {
            (Failure::BackendTimeout, Muxed::H2(stream)) => stream.give_up_connection(),
            (Failure::BackendTimeout, Muxed::H3(stream)) => stream.give_up_connection(),
            // The time for the whole request may be short: others may be answered over the same connection.
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

/// Waits until it is certain that the request is no copy.
pub async fn confirm(stream: &mut Muxed, deadline: &Deadline) -> Result<(), Failure> {
    poll_fn(|context| match stream.poll_confirmed(context) {
        Poll::Ready(true) => Poll::Ready(Ok(())),
        Poll::Ready(false) => Poll::Ready(Err(Failure::ClientClosed)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(Failure::HeaderTimeout)),
        Poll::Pending => Poll::Pending,
    })
    .await
}
