//! A request stream to a backend: sends the head and content of a request, receives a response.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use weir_http::h3::{Code, RequestStream};
use weir_http::section::{Asked, ResponseBuilder};
use weir_http::{Limits, ResponseHead, Version, Violation};
use weir_quic::connection::StreamError as Broken;

use super::connections::QuicSlot;
use super::shared::{Shared, number};
use super::stream::{HeadError, Sending, Stream};

impl Stream {
    /// A stream to a backend, on which the request's head is sent first; `is_whole` if nothing follows it.
    pub fn of_backend(
        shared: &Rc<Shared>,
        reader: RequestStream,
        head: Bytes,
        is_whole: bool,
        slot: QuicSlot,
    ) -> Stream {
        let mut stream = Stream::of_client(shared, slot.id, reader);
        stream.slot = Some(slot);
        stream.pending = head;
        stream.sending = if is_whole { Sending::Ending } else { Sending::Content };
        // As far as there is room now. If the stream is broken, whoever reads the response will notice.
        let _ = stream.poll_pending(&mut Context::from_waker(std::task::Waker::noop()));
        stream
    }

    /// A backend's next head: an interim one, or the final one, after which its content can be received.
    pub fn poll_response(
        &mut self,
        context: &mut Context<'_>,
        limits: &Limits,
        asked: Asked<'_>,
        head: &mut ResponseHead,
        text: &mut Vec<u8>,
    ) -> Poll<io::Result<Result<(), Violation>>> {
        self.trailer_limits = limits.trailers_of_responses();
        // The rest of the request, for which there was no room before. A backend that wants no more of it may
        // still answer.
        let _ = self.poll_pending(context);
        if self.shared.quic.is_over() && !self.shared.has_read_last.get() {
            // The backend's last frames may say that it has not processed this request.
            self.await_driver(context);
            return Poll::Pending;
        }
        //= https://www.rfc-editor.org/rfc/rfc9114#section-5.2
        //# Requests on stream IDs greater than or equal to the indicated identifier
        //# are rejected by the sender of the GOAWAY.
        if number(self.id) >= self.shared.refused_from.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        self.await_driver(context);
        if self.section.is_none() && !self.reader.is_blocked() {
            if let Err(error) = ready!(self.poll_advance(context)) {
                return Poll::Ready(Err(error));
            }
            if self.section.is_none() {
                // The end, or content, came where a head should be, which is an error.
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        let start = text.len();
        let mut builder = ResponseBuilder::new(Version::Http3, limits, asked, &mut *head, text);
        let mut is_interim = false;
        let read = self.poll_fields(context, |name, value| {
            is_interim |= name == b":status" && value.first() == Some(&b'1');
            builder.field(name, value)
        });
        let Poll::Ready(read) = read else {
            drop(builder);
            text.truncate(start);
            return Poll::Pending;
        };
        Poll::Ready(match read {
            Ok(()) if is_interim => {
                self.reader.await_final_head();
                Ok(builder.finish(false))
            }
            // Whether the end has been received by now decides whether the response has a body at all.
            Ok(()) => match self.poll_advance(context) {
                Poll::Ready(Err(error)) => Err(error),
                Poll::Ready(Ok(())) => Ok(builder.finish(self.is_ended())),
                Poll::Pending => Ok(builder.finish(false)),
            },
            Err(HeadError::Refused(violation)) => Ok(Err(violation)),
            Err(HeadError::Gone(error)) => Err(error),
        })
    }

    /// Registers the task to be woken by events that concern all requests of the connection.
    fn await_driver(&self, context: &Context<'_>) {
        self.shared.awaited.borrow_mut().insert(number(self.id), context.waker().clone());
    }

    /// Whether an acknowledgement of the backend has been overdue for so long that a request which may be
    /// sent again should use another connection. The task that waits for the response is woken when this
    /// becomes true.
    pub fn is_silent(&self) -> bool {
        self.slot.is_some() && self.shared.quic.is_silent()
    }

    /// Nothing was heard of a backend for too long: its connection is not used for further requests.
    pub fn give_up_connection(&self) {
        if let Some(slot) = &self.slot {
            slot.give_up_connection();
        }
    }

    /// Whether nothing at all was received from the backend since the request was sent, although something is
    /// overdue.
    pub fn is_unheard(&self) -> bool {
        self.slot.as_ref().is_some_and(QuicSlot::is_unheard)
    }

    /// Handles a response that the backend broke off. `ConnectionRefused`: the backend guarantees that it did
    /// not process the request. `ConnectionAborted`: the whole connection is gone.
    pub(super) fn abandoned_by_backend(&mut self, broken: &Broken) -> io::Error {
        match broken {
            Broken::Reset(code) => {
                self.is_ended = true;
                self.shared.abandon(self.id);
                match *code == Code::RequestRejected.value() {
                    true => io::ErrorKind::ConnectionRefused.into(),
                    false => io::ErrorKind::ConnectionReset.into(),
                }
            }
            Broken::ConnectionLost => io::ErrorKind::ConnectionAborted.into(),
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc9114#section-4.1
    //# Clients MUST NOT discard complete responses as a result of
    //# having their request terminated abruptly
    /// Handles a backend that takes no more of the request; its response is still read.
    pub(super) fn refused_by_backend(&mut self, broken: &Broken) -> io::Error {
        (self.pending, self.pending_content) = (Bytes::new(), Bytes::new());
        if self.sending != Sending::Ended {
            self.sending = Sending::Ended;
            if let Broken::Reset(code) = broken {
                self.shared.quic.reset(self.id, *code);
            }
        }
        io::ErrorKind::ConnectionReset.into()
    }

    /// Called when nobody needs the stream any more: what is incomplete is reset.
    pub(super) fn leave_backend(&mut self) {
        let code = Code::RequestCancelled.value();
        self.shared.awaited.borrow_mut().remove(&number(self.id));
        let is_unsent = !self.pending.is_empty() || !self.pending_content.is_empty();
        if self.sending == Sending::Content || (self.sending == Sending::Ending && is_unsent) {
            self.reset_with(code);
        }
        self.stop_reading(code);
        self.shared.quic.leave_request();
        self.shared.quic.forget(self.id);
    }
}
