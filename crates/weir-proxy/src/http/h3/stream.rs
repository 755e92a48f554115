//! One request stream of an HTTP/3 connection: receives a head and content, sends a head and content, ends.
//!
//! Flow control depends on whoever takes the content: nothing is read from the QUIC stream before it is asked
//! for, and what was not read keeps the client's window closed.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes};
use quinn_proto::StreamId;
use weir_http::h3::{
    Code, Fault, RequestStream, Scope, Section, SectionError, SectionRead, SectionWriter, StreamEvent,
};
use weir_http::{
    Field, Limits, RequestBuilder, RequestHead, StreamError, TrailerBuilder, TrailerLimits, Trailers,
    Version, Violation,
};
use weir_io::buffers::{Buffer, Held};
use weir_quic::connection::StreamError as Broken;

use super::backend::STREAM_WINDOW_BYTES as BACKEND_WINDOW_BYTES;
use super::connections::QuicSlot;
use super::shared::Shared;

/// Most content, in bytes, put into one DATA frame: it is copied, and copies count against no budget until
/// they are acknowledged. But there are only as many as the path carries at once.
const PIECE_BYTES: usize = 32 << 10;
/// Most bytes taken from the QUIC stream at once.
const READ_BYTES: usize = 64 << 10;

/// One stream.
pub struct Stream {
    pub(super) shared: Rc<Shared>,
    pub(super) id: StreamId,
    pub(super) reader: RequestStream,
    /// Received and not yet parsed.
    pub(super) input: Bytes,
    /// The head or the trailers, found and not yet read; they are at the start of `input`, and have this
    /// length.
    pub(super) section: Option<(Section, usize)>,
    /// Content found and not yet taken.
    pub(super) content: Bytes,
    /// The client ended the stream.
    pub(super) is_ended: bool,
    /// Any 2xx makes it a tunnel (RFC 9220).
    pub(super) asks_for_tunnel: bool,
    pub(super) trailers: Option<Box<Trailers>>,
    pub(super) trailer_limits: TrailerLimits,
    /// What is wrong with the request.
    pub(super) violation: Option<Violation>,
    pub(super) sending: Sending,
    /// To be sent before anything else.
    pub(super) pending: Bytes,
    /// The content of the frame whose header is pending; it is sent after that from where it is stored.
    pub(super) pending_content: Bytes,
    /// Bytes of a backend's response that may wait in QUIC because the client has no room for them.
    pub(super) waiting_bytes: u64,
    /// Counts these, and what is pending, against the memory budget.
    pub(super) held: Held,
    /// The place on a connection to a backend, if the peer is one.
    pub(super) slot: Option<QuicSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// No final head has been sent.
    Head,
    Content,
    /// Only the end follows what is pending.
    Ending,
    /// The end or a reset was sent.
    Ended,
}

/// Why a head could not be read.
#[derive(Debug)]
pub enum HeadError {
    /// The request is malformed, and must be answered accordingly.
    Refused(Violation),
    /// The stream or the connection is broken, and has been dealt with.
    Gone(io::Error),
}

/// The head of a response that is being built.
pub struct ResponseParts {
    frame: SectionWriter<Vec<u8>>,
    status: u16,
}

impl Default for ResponseParts {
    fn default() -> ResponseParts {
        ResponseParts { frame: SectionWriter::new(Vec::with_capacity(256)), status: 0 }
    }
}

impl ResponseParts {
    /// Appends a field; `:status` is the first.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        if let (b":status", &[a, b, c]) = (name, value) {
            let digit = |byte: u8| u16::from(byte.wrapping_sub(b'0') % 10);
            self.status = 100 * digit(a) + 10 * digit(b) + digit(c);
            return self.frame.status(self.status);
        }
        self.frame.field(name, value);
    }
}

impl Stream {
    /// A request's stream on a client's connection.
    pub fn of_client(shared: &Rc<Shared>, id: StreamId, reader: RequestStream) -> Stream {
        shared.quic.enter_request();
        Stream {
            shared: shared.clone(),
            id,
            reader,
            input: Bytes::new(),
            section: None,
            content: Bytes::new(),
            is_ended: false,
            asks_for_tunnel: false,
            trailers: None,
            trailer_limits: Limits::default().trailers_of_requests(),
            violation: None,
            sending: Sending::Head,
            pending: Bytes::new(),
            pending_content: Bytes::new(),
            waiting_bytes: 0,
            held: Held::new(&shared.buffers),
            slot: None,
        }
    }

    /// Receives until the bytes of the head are complete.
    pub fn poll_section(&mut self, context: &mut Context<'_>) -> Poll<Result<(), HeadError>> {
        match ready!(self.poll_advance(context)) {
            Ok(()) if self.section.is_some() => Poll::Ready(Ok(())),
            // Content can't come before the head, and a premature end was reported as an error.
            Ok(()) => Poll::Ready(Err(HeadError::Gone(io::ErrorKind::UnexpectedEof.into()))),
            Err(error) => Poll::Ready(Err(HeadError::Gone(error))),
        }
    }

    /// Reads the head, once [`Self::poll_section`] has found it. Its text is appended to `text`.
    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        limits: &Limits,
        head: &mut RequestHead,
        text: &mut Vec<u8>,
    ) -> Poll<Result<(), HeadError>> {
        let start = text.len();
        let mut builder = RequestBuilder::new(Version::Http3, limits, &mut *head, text);
        let Poll::Ready(read) = self.poll_fields(context, |name, value| builder.field(name, value)) else {
            drop(builder);
            text.truncate(start);
            return Poll::Pending;
        };
        let read = read.and_then(|()| {
            // Whether the end has been received by now decides whether the request has a body at all.
            let is_whole = match self.poll_advance(context) {
                Poll::Ready(Ok(())) => self.is_ended(),
                Poll::Ready(Err(error)) => return Err(HeadError::Gone(error)),
                Poll::Pending => false,
            };
            builder.finish(is_whole).map_err(HeadError::Refused)
        });
        match read {
            Ok(()) => self.asks_for_tunnel = head.is_extended_connect(),
            Err(_) => text.truncate(start),
        }
        Poll::Ready(read)
    }

    /// Passes the fields of the section that was found to `visit`.
    pub(super) fn poll_fields(
        &mut self,
        context: &mut Context<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Violation>,
    ) -> Poll<Result<(), HeadError>> {
        let read = match self.section.take() {
            Some((section, consumed)) => {
                let protocol = &mut *self.shared.protocol.borrow_mut();
                let read = protocol.read_section(&mut self.reader, &self.input, section, &mut visit);
                self.input.advance(consumed);
                read
            }
            None if self.shared.is_blocked(self.id, context) => return self.poll_given_up(context).map(Err),
            None => self.shared.protocol.borrow_mut().retry_section(&mut self.reader, &mut visit),
        };
        self.shared.note_instructions();
        Poll::Ready(match read {
            Ok(SectionRead::Complete) => Ok(()),
            Ok(SectionRead::Blocked) => {
                self.shared.block(self.id, context);
                return self.poll_given_up(context).map(Err);
            }
            Err(SectionError::Refused(violation)) => Err(HeadError::Refused(violation)),
            Err(SectionError::Fault(Fault::SectionTooLarge)) => {
                Err(HeadError::Refused(Violation::HeaderBlockTooLarge))
            }
            Err(SectionError::Fault(Fault::TooManyFields)) => {
                Err(HeadError::Refused(Violation::TooManyFields))
            }
            Err(SectionError::Fault(fault)) => Err(HeadError::Gone(self.break_off(fault))),
        })
    }

    /// Polled while fields wait for the peer's encoder: ready once the peer has given up the stream, or the
    /// connection is over, so that what they wait for will never come.
    fn poll_given_up(&mut self, context: &mut Context<'_>) -> Poll<HeadError> {
        if let Poll::Ready(broken) = self.shared.quic.poll_broken_off(self.id, context) {
            return Poll::Ready(HeadError::Gone(self.abandoned(&broken)));
        }
        // A client that has ended its request can only still signal that it does not want the answer. A
        // backend may refuse the rest of a request that it answers.
        if self.slot.is_none() {
            ready!(self.poll_gone(context));
            return Poll::Ready(HeadError::Gone(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Pending
    }

    /// Receives until there is content, a section, or the end of the stream.
    pub(super) fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.content.is_empty() && self.section.is_none() && !self.is_ended {
            if self.input.is_empty() {
                match ready!(self.shared.quic.poll_read(self.id, READ_BYTES, context)) {
                    Ok(Some(bytes)) => self.input = bytes,
                    Ok(None) => {
                        if let Err(fault) = self.reader.finish() {
                            return Poll::Ready(Err(self.break_off(fault)));
                        }
                        self.is_ended = true;
                        break;
                    }
                    Err(broken) => return Poll::Ready(Err(self.abandoned(&broken))),
                }
            }
            let step = match self.reader.advance(&self.input) {
                Ok(step) => step,
                Err(fault) => return Poll::Ready(Err(self.break_off(fault))),
            };
            match step.event {
                StreamEvent::Section(section) => self.section = Some((section, step.consumed)),
                StreamEvent::Data(range) => {
                    self.content = self.input.slice(range);
                    self.input.advance(step.consumed);
                }
                StreamEvent::NeedMore | StreamEvent::Blocked => self.input.advance(step.consumed),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when there is content to take, or the end of the stream.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(violation) = self.violation {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
        }
        loop {
            if self.section.is_some() || self.reader.is_blocked() {
                ready!(self.poll_trailers(context))?;
                continue;
            }
            if self.poll_advance(context)?.is_pending() {
                // A client may leave by this alone, and never end what it sends.
                if self.slot.is_none() {
                    ready!(self.poll_gone(context));
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                return Poll::Pending;
            }
            if self.section.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_trailers(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut builder = TrailerBuilder::new(self.trailer_limits);
        match ready!(self.poll_fields(context, |name, value| builder.field(name, value))) {
            Ok(()) => {
                self.trailers = Some(builder.finish());
                Poll::Ready(Ok(()))
            }
            Err(HeadError::Refused(violation)) => {
                self.violation = Some(violation);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)))
            }
            Err(HeadError::Gone(_)) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    /// Moves content into the free part of `buffer`, after [`Self::poll_readable`]; 0 means the end of the
    /// stream.
    pub fn take(&mut self, buffer: &mut Buffer) -> io::Result<usize> {
        let room = buffer.free();
        let count = self.content.len().min(room.len());
        room[..count].copy_from_slice(&self.content[..count]);
        buffer.fill(count);
        self.content.advance(count);
        if self.waiting_bytes > 0 {
            self.waiting_bytes = 0;
            self.count_held();
        }
        Ok(count)
    }

    /// Called when no buffer is free for what a backend sends. How much of it QUIC holds is not known: up to
    /// the window, unless everything has come.
    pub fn gather(&mut self) {
        if self.slot.is_some() && !self.is_ended && self.waiting_bytes == 0 {
            self.waiting_bytes = BACKEND_WINDOW_BYTES.into();
            self.count_held();
        }
    }

    fn count_held(&self) {
        self.held.set(self.waiting_bytes + self.pending.len() as u64);
    }

    /// Whether the end of the stream was received and everything before it taken.
    pub fn is_ended(&self) -> bool {
        self.is_ended && self.content.is_empty() && self.violation.is_none()
    }

    /// The trailers, once the end was received; given only once.
    pub fn take_trailers(&mut self) -> Option<Box<Trailers>> {
        self.trailers.take()
    }

    /// Sends a response's head; `is_last` if nothing follows.
    pub fn send_head(&mut self, head: ResponseParts, is_last: bool) -> io::Result<()> {
        if self.sending != Sending::Head {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if head.status >= 200 {
            self.sending = if is_last { Sending::Ending } else { Sending::Content };
        }
        if self.asks_for_tunnel && (200..300).contains(&head.status) {
            self.reader.become_tunnel();
        }
        let frame = Bytes::from(head.frame.into_out());
        self.pending =
            if self.pending.is_empty() { frame } else { [&self.pending[..], &frame].concat().into() };
        // As far as the client has room now; the rest is sent before whatever comes next. If our own streams
        // are broken, the driver will notice.
        let mut context = Context::from_waker(Waker::noop());
        let _ = self.shared.send_own(&mut context);
        match self.poll_pending(&mut context) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Ok(()),
        }
    }

    /// Sends what is pending, and the end after it if nothing else follows.
    pub(super) fn poll_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.poll_send_pending(context);
        self.count_held();
        polled
    }

    fn poll_send_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            if let Err(broken) = ready!(self.shared.quic.poll_write(self.id, &mut self.pending, context)) {
                return Poll::Ready(Err(self.refused(&broken)));
            }
        }
        while !self.pending_content.is_empty() {
            let sent = ready!(self.shared.quic.poll_write(self.id, &mut self.pending_content, context));
            if let Err(broken) = sent {
                return Poll::Ready(Err(self.refused(&broken)));
            }
        }
        // The answer to a malformed request gets its only end when the stream is dropped.
        if self.sending == Sending::Ending && self.malformed_code().is_none() {
            self.sending = Sending::Ended;
            if let Err(broken) = self.shared.quic.finish(self.id) {
                return Poll::Ready(Err(self.refused(&broken)));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends as much of `content` as fits into a frame, at least one byte when ready; what the client has no
    /// room for yet is kept.
    pub fn poll_send(&mut self, context: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        if self.sending != Sending::Content {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_pending(context))?;
        let count = content.len().min(PIECE_BYTES);
        if count == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut frame = Vec::with_capacity(count + 9);
        weir_http::h3::write_data_header(&mut frame, count as u64);
        frame.extend_from_slice(&content[..count]);
        self.pending = frame.into();
        match self.poll_pending(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                self.shared.quic.gave_piece();
                Poll::Ready(Ok(count))
            }
            Poll::Pending => Poll::Ready(Ok(count)),
        }
    }

    /// Puts `content` into a frame, to be sent without a copy; what the client has no room for yet is kept.
    pub fn poll_send_bytes(
        &mut self,
        context: &mut Context<'_>,
        content: &mut Bytes,
    ) -> Poll<io::Result<()>> {
        if self.sending != Sending::Content {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_pending(context))?;
        if content.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut header = Vec::with_capacity(9);
        weir_http::h3::write_data_header(&mut header, content.len() as u64);
        self.pending = header.into();
        self.pending_content = std::mem::take(content);
        match self.poll_pending(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// Ends our direction, with `trailers` if there are any. Does nothing if it has ended already. Ready once
    /// the end is on its way.
    pub fn poll_finish<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        match self.sending {
            Sending::Head => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Sending::Content => {
                // Trailers come after all content, including content that is kept apart from its frame's
                // header.
                ready!(self.poll_pending(context))?;
                let mut trailers = trailers.peekable();
                if trailers.peek().is_some() {
                    let mut frame = SectionWriter::new(Vec::new());
                    trailers.for_each(|field| frame.field(field.name, field.value));
                    self.pending = frame.into_out().into();
                }
                self.sending = Sending::Ending;
            }
            Sending::Ending | Sending::Ended => {}
        }
        self.poll_pending(context)
    }

    /// Notes that the request is malformed.
    pub fn note_violation(&mut self, violation: Violation) {
        self.violation = Some(violation);
    }

    //= https://www.rfc-editor.org/rfc/rfc9114#section-4.1.2
    //# Malformed requests or responses that are detected MUST be treated as
    //# a stream error of type H3_MESSAGE_ERROR.
    /// The code that ends the stream of a malformed request.
    fn malformed_code(&self) -> Option<u64> {
        self.violation.and_then(Violation::stream_error).map(StreamError::h3_code)
    }

    /// Resets the stream: the client sees that what it got is incomplete.
    pub fn reset(&mut self, why: StreamError) {
        self.reset_with(self.malformed_code().unwrap_or(why.h3_code()));
    }

    pub(super) fn reset_with(&mut self, code: u64) {
        self.pending = Bytes::new();
        self.pending_content = Bytes::new();
        self.count_held();
        if self.sending != Sending::Ended {
            self.sending = Sending::Ended;
            self.shared.quic.reset(self.id, code);
        }
        self.stop_reading(code);
    }

    pub(super) fn stop_reading(&mut self, code: u64) {
        if !self.is_ended {
            self.is_ended = true;
            self.shared.quic.stop(self.id, code);
            self.shared.abandon(self.id);
        }
    }

    /// Ready once the handshake is complete; false if the connection ended before.
    pub fn poll_confirmed(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.shared.quic.poll_confirmed(self.id, context)
    }

    /// Pending as long as the client wants the stream; then the task is woken.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.sending == Sending::Ended {
            return Poll::Pending;
        }
        let broken = ready!(self.shared.quic.poll_stopped(self.id, context));
        self.refused(&broken);
        Poll::Ready(())
    }

    /// Handles a client that broke off what it sends.
    fn abandoned(&mut self, broken: &Broken) -> io::Error {
        if self.slot.is_some() {
            return self.abandoned_by_backend(broken);
        }
        if let Broken::Reset(_) = broken {
            self.is_ended = true;
            self.shared.abandon(self.id);
            self.shared.count_broken();
        }
        io::ErrorKind::ConnectionReset.into()
    }

    /// Handles a client that does not want what we send.
    fn refused(&mut self, broken: &Broken) -> io::Error {
        if self.slot.is_some() {
            return self.refused_by_backend(broken);
        }
        if let Broken::Reset(_) = broken
            && self.sending != Sending::Ended
        {
            self.shared.count_broken();
            self.reset_with(Code::RequestCancelled.value());
        }
        io::ErrorKind::ConnectionReset.into()
    }

    /// Handles a client that broke the protocol.
    fn break_off(&mut self, fault: Fault) -> io::Error {
        match fault.scope() {
            Scope::Connection => self.shared.fail(fault),
            Scope::Stream => {
                if self.slot.is_none() {
                    self.shared.count_broken();
                }
                self.reset_with(fault.code().value());
            }
        }
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.slot.is_some() {
            return self.leave_backend();
        }
        let malformed_code = self.malformed_code();
        // Nobody answered: the client must see that this is no answer.
        if matches!(self.sending, Sending::Head | Sending::Content) {
            self.reset_with(malformed_code.unwrap_or(Code::InternalError.value()));
        }
        // The answer is complete without the rest of the request (RFC 9114 section 4.1).
        self.stop_reading(malformed_code.unwrap_or(Code::NoError.value()));
        self.shared.quic.leave_request();
        if self.sending == Sending::Ending {
            // The client's window was too small for everything, or the request was malformed.
            let rest = [std::mem::take(&mut self.pending), std::mem::take(&mut self.pending_content)];
            self.shared.send_late(self.id, rest, malformed_code);
        } else {
            self.shared.quic.forget(self.id);
        }
    }
}
