//! One stream of an HTTP/2 connection, in either role: receives content, sends content, a head and an end.
//!
//! Flow control depends on whoever takes the content. A peer's window opens again only when what it sent has
//! moved into a buffer of the exchange, and nothing is handed to the connection that the peer's window has no
//! room for.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use tokio::time::Sleep;
use weir_http::section::Asked;
use weir_http::{
    Field, InterimAllowance, Limits, Method, ResponseHead, StreamError, TrailerLimits, Trailers, Violation,
};
use weir_io::buffers::{Buffer, Held};
use weir_io::clock;

use crate::http::h2::connections::{STREAM_WINDOW_BYTES, StreamSlot};
use crate::http::h2::head;
use crate::http::h2::interim::InterimHeads;
use crate::http::h2::wire::Watched;

/// Most content, in bytes, handed to the connection at once: it is copied, and copies count against no budget
/// until they are sent.
const PIECE_BYTES: usize = 16 << 10;

/// Content of frames below this size, in bytes, is copied if it has to wait: kept as it came, it would take
/// more memory than that.
const SMALL_PIECE_BYTES: usize = 1 << 10;

/// One stream.
pub struct Stream {
    receiving: Receiving,
    sending: Sending,
    /// Interim responses of a backend, received and not yet taken.
    interim: InterimHeads,
    /// Content received and not yet taken.
    content: Bytes,
    gathered: Gathered,
    trailers: Option<Box<Trailers>>,
    trailer_limits: TrailerLimits,
    /// Its response ends with its head, whatever length that announces (RFC 9110 §8.6).
    is_bodiless: bool,
    /// Whether a client's stream is to become a tunnel, or is one (RFC 8441).
    tunnel: Tunnel,
    /// Its place on the connection to a backend that carries it.
    slot: Option<StreamSlot>,
    /// Counts what is sent to a client.
    watched: Option<Rc<Watched>>,
    /// The pause before a small piece may be sent to a backend.
    pause: Option<Pin<Box<Sleep>>>,
}

/// Content after `content` for which no buffer is free.
#[derive(Default)]
struct Gathered {
    pieces: VecDeque<Bytes>,
    /// Small pieces after all those, joined.
    small_pieces: BytesMut,
    bytes: usize,
    /// Counts them. `None` for a client's stream, whose whole window is counted by
    /// [`crate::http::under_way::UnderWay`].
    held: Option<Held>,
}

impl Gathered {
    /// Counts everything that waits, with `content` bytes before it.
    fn count(&self, content: usize) {
        if let Some(held) = &self.held {
            held.set((content + self.bytes) as u64);
        }
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if piece.len() < SMALL_PIECE_BYTES {
            return self.small_pieces.extend_from_slice(&piece);
        }
        if !self.small_pieces.is_empty() {
            self.pieces.push_back(self.small_pieces.split().freeze());
        }
        self.pieces.push_back(piece);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let is_over = self.small_pieces.is_empty();
        let piece = self
            .pieces
            .pop_front()
            .or_else(|| (!is_over).then(|| std::mem::take(&mut self.small_pieces).freeze()))?;
        self.bytes -= piece.len();
        Some(piece)
    }
}

/// The state of an extended CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tunnel {
    /// None was requested.
    No,
    Asked,
    Open,
}

enum Receiving {
    /// A backend's head has not come yet.
    Head(ResponseFuture),
    Content(RecvStream),
    /// A backend's head will not come.
    Broken,
    /// `END_STREAM` was received, and everything before it was taken.
    Ended,
    /// What came after the content makes the message malformed.
    Malformed(Violation),
}

enum Sending {
    /// A client's stream that has not been answered yet.
    Head(SendResponse<Bytes>),
    Content(SendStream<Bytes>),
    /// `END_STREAM` or a reset was sent.
    Ended,
}

impl Stream {
    /// A request's stream on a client's connection; `asks_for_tunnel` means that any 2xx makes it a tunnel.
    pub fn of_client(
        receiving: RecvStream,
        sending: SendResponse<Bytes>,
        watched: Rc<Watched>,
        asks_for_tunnel: bool,
    ) -> Stream {
        let receiving =
            if receiving.is_end_stream() { Receiving::Ended } else { Receiving::Content(receiving) };
        Stream {
            receiving,
            sending: Sending::Head(sending),
            interim: InterimHeads::default(),
            content: Bytes::new(),
            gathered: Gathered::default(),
            trailers: None,
            trailer_limits: Limits::default().trailers_of_requests(),
            is_bodiless: false,
            tunnel: if asks_for_tunnel { Tunnel::Asked } else { Tunnel::No },
            slot: None,
            watched: Some(watched),
            pause: None,
        }
    }

    /// A stream to a backend on which the request's head was sent. `held` counts response content that nobody
    /// has taken yet.
    pub fn of_backend(
        receiving: ResponseFuture,
        sending: SendStream<Bytes>,
        is_ended: bool,
        slot: StreamSlot,
        held: Held,
    ) -> Stream {
        Stream {
            receiving: Receiving::Head(receiving),
            sending: if is_ended { Sending::Ended } else { Sending::Content(sending) },
            interim: InterimHeads::default(),
            content: Bytes::new(),
            gathered: Gathered { held: Some(held), ..Gathered::default() },
            trailers: None,
            // Replaced by the limits for its head.
            trailer_limits: Limits::default().trailers_of_responses(),
            is_bodiless: false,
            tunnel: Tunnel::No,
            slot: Some(slot),
            watched: None,
            pause: None,
        }
    }

    /// Ready when there is content to take, or the end of the stream.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.content.is_empty() {
            if let Some(piece) = self.gathered.pop() {
                self.content = piece;
                break;
            }
            let stream = match &mut self.receiving {
                Receiving::Content(stream) => stream,
                Receiving::Malformed(violation) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, *violation)));
                }
                Receiving::Broken => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Receiving::Head(_) | Receiving::Ended => return Poll::Ready(Ok(())),
            };
            match ready!(stream.poll_data(context)) {
                // The `h2` crate expects content of the length that a 304 announces.
                Some(Err(error)) if self.is_bodiless && error.is_reset() && error.is_library() => {
                    self.receiving = Receiving::Ended;
                }
                Some(data) => {
                    self.content = data.map_err(broken)?;
                    if let Some(slot) = &self.slot {
                        slot.note_answer_piece();
                    }
                }
                None => {
                    let fields = ready!(stream.poll_trailers(context)).map_err(broken)?;
                    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.5
                    //# Frame types other than DATA or stream management frames
                    //# (RST_STREAM, WINDOW_UPDATE, and PRIORITY) MUST NOT be sent on
                    //# a connected stream and MUST be treated as a stream error
                    //# (Section 5.4.2) if received.
                    if fields.is_some() && self.tunnel == Tunnel::Open {
                        self.reset(StreamError::Malformed);
                        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                    }
                    self.receiving = match self.read_trailers(fields) {
                        Ok(()) => Receiving::Ended,
                        Err(violation) => Receiving::Malformed(violation),
                    };
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn read_trailers(&mut self, fields: Option<HeaderMap>) -> Result<(), Violation> {
        if let (Some(watched), Receiving::Content(stream)) = (&self.watched, &self.receiving)
            && let Some(violation) = watched.violation_of(stream.stream_id())
        {
            return Err(violation);
        }
        let trailers = fields.map(|fields| head::read_trailers(&fields, self.trailer_limits));
        self.trailers = trailers.transpose()?;
        Ok(())
    }

    /// Takes what has come although no buffer is free for it, up to the window, which is not reopened: the
    /// `h2` crate keeps each frame separately, and ends a connection on which small ones take too much
    /// memory.
    pub fn gather(&mut self, context: &mut Context<'_>) {
        let Receiving::Content(stream) = &mut self.receiving else { return };
        // The end, or an error, is found again once this has been taken.
        while let Poll::Ready(Some(Ok(piece))) = stream.poll_data(context) {
            self.gathered.push(piece);
            if let Some(slot) = &self.slot {
                slot.note_answer_piece();
            }
        }
        self.gathered.count(self.content.len());
    }

    /// Moves content into the free part of `buffer`, after [`Self::poll_readable`]; 0 means the end of the
    /// stream.
    pub fn take(&mut self, buffer: &mut Buffer) -> io::Result<usize> {
        let room = buffer.free();
        let count = self.content.len().min(room.len());
        room[..count].copy_from_slice(&self.content[..count]);
        buffer.fill(count);
        bytes::Buf::advance(&mut self.content, count);
        self.gathered.count(self.content.len());
        if let Receiving::Content(stream) = &mut self.receiving {
            stream.flow_control().release_capacity(count).map_err(broken)?;
        }
        Ok(count)
    }

    /// Whether the end of the stream was received and everything before it taken.
    pub fn is_ended(&self) -> bool {
        self.content.is_empty() && matches!(self.receiving, Receiving::Ended)
    }

    /// The trailers, once the end was received; given only once.
    pub fn take_trailers(&mut self) -> Option<Box<Trailers>> {
        self.trailers.take()
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
        if let Some(interim) = self.interim.pop() {
            return Poll::Ready(Ok(head::read_response(&interim, false, limits, asked, head, text)));
        }
        let Receiving::Head(response) = &mut self.receiving else {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        };
        if let Poll::Ready(Some(interim)) = response.poll_informational(context) {
            let interim = match interim {
                Ok(interim) => interim,
                Err(error) => return Poll::Ready(Err(self.broken_unanswered(error))),
            };
            return Poll::Ready(Ok(head::read_response(&interim, false, limits, asked, head, text)));
        }
        let polled = Pin::new(response).poll(context);
        if let (Poll::Pending, Some(slot)) = (&polled, &self.slot) {
            slot.await_answer(context);
        }
        let (parts, content) = match ready!(polled) {
            Ok(response) => response.into_parts(),
            Err(error) => return Poll::Ready(Err(self.broken_unanswered(error))),
        };
        if let Some(slot) = &self.slot {
            slot.note_answered();
        }
        self.is_bodiless = asked.method == Method::Head || matches!(parts.status.as_u16(), 204 | 304);
        let is_whole = content.is_end_stream();
        self.receiving = if is_whole { Receiving::Ended } else { Receiving::Content(content) };
        let response = Response::from_parts(parts, ());
        Poll::Ready(Ok(head::read_response(&response, is_whole, limits, asked, head, text)))
    }

    /// Takes the interim responses of a backend that have come, while nobody asks for the next head. True if
    /// they are more than what is `left`: then the stream is given up. The task is woken when more comes.
    pub fn floods(&mut self, context: &mut Context<'_>, left: InterimAllowance) -> bool {
        let Receiving::Head(response) = &mut self.receiving else { return false };
        if self.interim.gather(context, response, left) {
            return false;
        }
        self.give_up();
        (self.receiving, self.sending) = (Receiving::Broken, Sending::Ended);
        true
    }

    /// The error for a backend's stream whose head has not come.
    fn broken_unanswered(&mut self, error: h2::Error) -> io::Error {
        self.receiving = Receiving::Broken;
        broken_unanswered(error)
    }

    /// Sends a response's head, interim or final; `is_last` if nothing follows.
    pub fn send_head(&mut self, head: Response<()>, is_last: bool) -> io::Result<()> {
        let Sending::Head(stream) = &mut self.sending else { return Err(io::ErrorKind::BrokenPipe.into()) };
        if head.status().is_informational() {
            return stream.send_informational(head).map_err(broken);
        }
        if self.tunnel == Tunnel::Asked && head.status().is_success() {
            self.tunnel = Tunnel::Open;
        }
        let stream = stream.send_response(head, is_last).map_err(broken)?;
        self.sending = if is_last { Sending::Ended } else { Sending::Content(stream) };
        Ok(())
    }

    /// Sends as much of `content` as the peer's windows have room for now, at least one byte when ready, and
    /// the end with all of it if `content` is the last.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        content: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        if !is_last && !content.is_empty() {
            ready!(self.poll_pause(context, content.len()));
        }
        let Sending::Content(stream) = &mut self.sending else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let wanted = content.len().min(PIECE_BYTES);
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        let count = ready!(poll_room(stream, wanted, context))?;
        let ends = is_last && count == content.len();
        if let Some(slot) = self.slot.as_ref().filter(|_| !ends) {
            slot.note_piece(count);
        }
        stream.send_data(Bytes::copy_from_slice(&content[..count]), ends).map_err(broken)?;
        if let Some(watched) = &self.watched {
            watched.gave(count, count == wanted);
        }
        if ends {
            self.sending = Sending::Ended;
        }
        Poll::Ready(Ok(count))
    }

    /// Ready when so little content may be sent to a backend. What follows it meanwhile is sent together with
    /// it.
    fn poll_pause(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let Some(slot) = &self.slot else { return Poll::Ready(()) };
        loop {
            let at = slot.piece_at(bytes);
            if at.is_zero() || at <= clock::now() {
                self.pause = None;
                return Poll::Ready(());
            }
            let pause = || Box::pin(tokio::time::sleep(at.saturating_sub(clock::now())));
            ready!(self.pause.get_or_insert_with(pause).as_mut().poll(context));
            self.pause = None;
        }
    }

    /// Sends as much of `content` as the peer's windows have room for now, and removes it from `content`: the
    /// frames refer to it without a copy.
    pub fn poll_send_bytes(
        &mut self,
        context: &mut Context<'_>,
        content: &mut Bytes,
        is_last: bool,
    ) -> Poll<io::Result<()>> {
        let Sending::Content(stream) = &mut self.sending else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if content.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let count = ready!(poll_room(stream, content.len(), context))?;
        let piece = content.split_to(count);
        let ends = is_last && content.is_empty();
        stream.send_data(piece, ends).map_err(broken)?;
        if ends {
            self.sending = Sending::Ended;
        }
        Poll::Ready(Ok(()))
    }

    /// Ends our direction, with `trailers` if there are any. Does nothing if it has ended already.
    pub fn finish<'a>(&mut self, trailers: impl Iterator<Item = Field<'a>>) -> io::Result<()> {
        match std::mem::replace(&mut self.sending, Sending::Ended) {
            Sending::Ended => Ok(()),
            Sending::Content(mut stream) => {
                let trailers = head::write_trailers(trailers)?;
                match trailers.is_empty() {
                    true => stream.send_data(Bytes::new(), true),
                    false => stream.send_trailers(trailers),
                }
                .map_err(broken)
            }
            Sending::Head(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Called when nothing was received from a backend for too long: its connection takes no further
    /// requests.
    pub fn give_up_connection(&self) {
        if let Some(slot) = &self.slot {
            slot.give_up_connection();
        }
    }

    /// Whether nothing was received on a backend's connection since the request was sent.
    pub fn is_unheard(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_unheard())
    }

    /// Whether the host of a backend acknowledges nothing, so that a request which may be sent again should
    /// use another connection. The task that waits for the response is woken when this becomes true.
    pub fn is_silent(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_unreachable())
    }

    /// Resets the stream: the peer sees that what it got is incomplete.
    pub fn reset(&mut self, why: StreamError) {
        let reason = Reason::from(why.h2_code());
        match std::mem::replace(&mut self.sending, Sending::Ended) {
            Sending::Head(mut stream) => stream.send_reset(reason),
            Sending::Content(mut stream) => stream.send_reset(reason),
            Sending::Ended => {}
        }
    }

    /// Pending as long as the peer wants the stream; then the task is woken.
    pub fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.sending {
            Sending::Head(stream) => stream.poll_reset(context).map(|_| ()),
            Sending::Content(stream) => stream.poll_reset(context).map(|_| ()),
            Sending::Ended => Poll::Pending,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Stream {
    /// If a request to a backend is given up, the `h2` crate resets its stream. If there were many of these,
    /// that is done later, or not at all: most are answered meanwhile.
    fn give_up(&mut self) {
        let Some(slot) = &self.slot else { return };
        let is_answered = match &self.receiving {
            Receiving::Head(_) => false,
            Receiving::Content(stream) if !stream.is_end_stream() => true,
            Receiving::Content(_) | Receiving::Ended => match self.sending {
                Sending::Ended => return,
                // The rest of the request is not sent.
                Sending::Head(_) | Sending::Content(_) => true,
            },
            Receiving::Broken | Receiving::Malformed(_) => return,
        };
        let pause = slot.note_given_up(is_answered);
        if pause.is_zero() {
            return;
        }
        let held = self.gathered.held.take();
        if let (Some(held), true) = (&held, is_answered) {
            // As much as the backend may have sent by then.
            held.set(STREAM_WINDOW_BYTES.into());
        }
        let mut receiving = std::mem::replace(&mut self.receiving, Receiving::Ended);
        let sending = std::mem::replace(&mut self.sending, Sending::Ended);
        let kept = (sending, self.slot.take(), held);
        tokio::task::spawn_local(async move {
            let mut sleep = pin!(tokio::time::sleep(pause));
            let (mut interim, most) = (InterimHeads::default(), InterimAllowance::of(&Limits::default()));
            poll_fn(|context| {
                let fits = match &mut receiving {
                    Receiving::Head(response) => interim.gather(context, response, most),
                    _ => true,
                };
                if fits { sleep.as_mut().poll(context) } else { Poll::Ready(()) }
            })
            .await;
            drop((receiving, kept));
        });
    }
}

/// How many of `wanted` bytes the peer's windows have room for, at least one when ready.
fn poll_room(
    stream: &mut SendStream<Bytes>,
    wanted: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    stream.reserve_capacity(wanted);
    let mut room = stream.capacity();
    while room == 0 {
        room = match ready!(stream.poll_capacity(context)) {
            Some(room) => room.map_err(broken)?,
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
    }
    Poll::Ready(Ok(wanted.min(room)))
}

/// Converts `error`, for code that decides whether the request may be sent again.
///
/// `ConnectionRefused`: the peer guarantees that it did not process the request (RFC 9113 §8.7).
fn broken(error: h2::Error) -> io::Error {
    let kind = match error.reason() {
        Some(Reason::REFUSED_STREAM) => io::ErrorKind::ConnectionRefused,
        // Only streams above the last one that a GOAWAY names get this error, whatever its reason (RFC 9113
        // §6.8).
        _ if error.is_go_away() && error.is_remote() => io::ErrorKind::ConnectionRefused,
        _ if error.is_io() => io::ErrorKind::ConnectionReset,
        Some(Reason::CANCEL | Reason::NO_ERROR) => io::ErrorKind::ConnectionReset,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

/// As [`broken`], for a stream whose head has not come.
///
/// `ConnectionAborted`: its connection ended without any message about the stream.
fn broken_unanswered(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => io::Error::new(io::ErrorKind::ConnectionAborted, error),
        false => broken(error),
    }
}
