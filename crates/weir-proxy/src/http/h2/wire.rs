//! The byte stream of an HTTP/2 connection, as the `h2` crate needs it: first the bytes received before
//! HTTP/2 was recognised, then the stream.
//!
//! Incoming frames of a client are counted ([`FloodBudget`]), because `h2` answers or ignores most frames
//! that a peer may send too many of, and that costs a proxy. Meaningless frames are removed
//! ([`EmptyDataFilter`]), because `h2` tolerates only few of them.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use h2::StreamId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_http::Violation;
use weir_io::buffers::{Buffer, Buffers, Held};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::stream::Stream;
use weir_io::wait::give_way;

use crate::http::h2::empty_data::EmptyDataFilter;
use crate::http::h2::flood_budget::FloodBudget;
use crate::http::h2::frames::{Frames, Part};
use crate::http::h2::heard::Heard;
use crate::http::h2::malformed::MalformedRequests;
use crate::http::h2::send_window::SendWindow;
use crate::http::h2::turn::Turn;

/// Receives in a row of which nothing is left, before other tasks get their turn.
const RECEIVES: u32 = 8;
/// Most bytes that are read and discarded after our end.
const MOST_READ_AWAY: usize = 16 << 20;

/// Bytes that a connection has been given to send and the kernel has not taken: they are in buffers of the
/// `h2` crate. Frame headers and heads are not counted when they are given but only when they are sent, so
/// the count may be a little too low.
pub struct Unsent {
    bytes: Cell<u64>,
    most: u64,
    /// Whether the kernel took nothing when it was last asked.
    is_blocked: Cell<bool>,
    /// All bytes that the kernel ever took.
    sent_bytes: Cell<u64>,
    held: Held,
}

impl Unsent {
    /// Nothing yet. At most `most` bytes count against the budget of `buffers`: content given for streams
    /// that were reset since is gone.
    pub fn new(most: u64, buffers: &Rc<Buffers>) -> Unsent {
        let (bytes, is_blocked, sent_bytes) = (Cell::new(0), Cell::new(false), Cell::new(0));
        Unsent { bytes, most, is_blocked, sent_bytes, held: Held::new(buffers) }
    }

    /// Notes content that was given to the `h2` crate, which takes no more than the client has room for.
    #[inline]
    pub fn add(&self, bytes: usize) {
        self.set((self.bytes.get() + bytes as u64).min(self.most));
    }

    #[inline]
    fn note(&self, sent: &Poll<io::Result<usize>>) {
        self.is_blocked.set(sent.is_pending());
        if let Poll::Ready(Ok(count)) = sent {
            self.sent_bytes.set(self.sent_bytes.get() + *count as u64);
            self.set(self.bytes.get().saturating_sub(*count as u64));
        }
    }

    /// Notes that the connection has sent everything that it could: the rest waits for the kernel, or there
    /// is none.
    #[inline]
    pub fn settle(&self) {
        if !self.is_blocked.get() {
            self.set(0);
        }
    }

    #[inline]
    fn set(&self, bytes: u64) {
        self.bytes.set(bytes);
        self.held.set(bytes);
    }
}

/// State of a client's connection that its driver, its streams, and its byte stream share.
pub struct Watched {
    pub flood_budget: RefCell<FloodBudget>,
    pub turn: RefCell<Turn>,
    pub malformed: RefCell<MalformedRequests>,
    pub unsent: Unsent,
    /// Bytes received so far.
    pub received_bytes: Cell<u64>,
    /// Our direction has ended, and what still came has been read and discarded.
    pub is_shut: Cell<bool>,
    stream: Rc<RefCell<Stream>>,
}

impl Watched {
    /// For a new connection, whose client may send `control_frames` frames without content before it has
    /// earned more.
    pub fn new(stream: Stream, control_frames: u32, unsent: Unsent) -> Rc<Watched> {
        Rc::new(Watched {
            flood_budget: RefCell::new(FloodBudget::new(control_frames, clock::now())),
            turn: RefCell::default(),
            malformed: RefCell::default(),
            unsent,
            received_bytes: Cell::new(0),
            is_shut: Cell::new(false),
            stream: Rc::new(RefCell::new(stream)),
        })
    }

    /// How much the client has taken so far, if there is something that it has not taken, here or in the
    /// kernel; otherwise `None`. Costs a system call.
    pub fn taken(&self) -> Option<u64> {
        let queued_bytes = self.stream.borrow().unsent_bytes();
        let is_unsent = self.unsent.is_blocked.get() || queued_bytes > 0;
        is_unsent.then(|| self.unsent.sent_bytes.get().saturating_sub(queued_bytes))
    }

    /// What is wrong with the request on `stream` that the `h2` crate does not report; given only once.
    pub fn violation_of(&self, stream: StreamId) -> Option<Violation> {
        self.malformed.borrow_mut().take(stream.as_u32())
    }

    /// Notes that a request was answered.
    pub fn answered(&self) {
        self.turn.borrow_mut().know(true);
        self.flood_budget.borrow_mut().answered();
    }

    /// Notes that a request was refused for its head with so many fields.
    pub fn refused(&self, fields: usize) {
        self.turn.borrow_mut().know(false);
        self.flood_budget.borrow_mut().refused(fields);
    }

    /// Notes that a piece of an answer was given to the `h2` crate; `is_all` if the client's windows had room
    /// for all that there was.
    #[inline]
    pub fn gave(&self, bytes: usize, is_all: bool) {
        self.unsent.add(bytes);
        if is_all {
            self.flood_budget.borrow_mut().sent_piece();
        }
    }
}

/// A connection's byte stream.
pub struct Wire {
    stream: Rc<RefCell<Stream>>,
    /// Bytes received before it was known that this is HTTP/2.
    first: Option<Buffer>,
    /// The position in a client's frames, and the state that they update.
    frames: Frames,
    watched: Option<Rc<Watched>>,
    /// For a backend: what was received from it.
    heard: Option<Rc<Heard>>,
    /// For a backend: how much content it takes.
    window: Option<Rc<SendWindow>>,
    filter: EmptyDataFilter,
    /// Bytes received and filtered, and still to be passed on.
    filtered: Vec<u8>,
    /// Bytes read and discarded after our end.
    read_away: usize,
}

impl Wire {
    /// The byte stream of a client, beginning with `first`. `watched` is updated by every byte received and
    /// sent.
    pub fn of_client(first: Option<Buffer>, watched: Rc<Watched>) -> Wire {
        let (stream, watched) = (watched.stream.clone(), Some(watched));
        Wire {
            stream,
            first,
            frames: Frames::default(),
            watched,
            heard: None,
            window: None,
            filter: EmptyDataFilter::of_client(),
            filtered: Vec::new(),
            read_away: 0,
        }
    }

    /// The byte stream to a backend; `heard` notes what is received, and `window` what may be sent.
    pub fn of_backend(stream: Rc<RefCell<Stream>>, heard: Rc<Heard>, window: Rc<SendWindow>) -> Wire {
        let (first, frames, filter) = (None, Frames::default(), EmptyDataFilter::of_backend());
        let (watched, heard, window) = (None, Some(heard), Some(window));
        Wire { stream, first, frames, watched, heard, window, filter, filtered: Vec::new(), read_away: 0 }
    }

    /// Bytes that were sent earn the peer the window updates that it sends for them: some clients send two
    /// every 4 KiB.
    fn note_sent(&self, sent: &Poll<io::Result<usize>>) {
        let Some(watched) = &self.watched else { return };
        watched.unsent.note(sent);
        if let Poll::Ready(Ok(count)) = sent {
            watched.flood_budget.borrow_mut().moved(*count);
        }
    }

    /// Whether nothing more is read from the peer, because it has sent too much; the connection's driver
    /// tells it so.
    fn is_deaf(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.flood_budget.borrow().is_exhausted())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_deaf() {
            return Poll::Pending;
        }
        let most = self.watched.as_ref().map_or(usize::MAX, |watched| watched.turn.borrow().left());
        if most == 0 {
            give_way(context);
            return Poll::Pending;
        }
        if most < room.remaining() {
            let mut part = ReadBuf::new(room.initialize_unfilled_to(most));
            ready!(self.poll_receive(context, &mut part))?;
            let count = part.filled().len();
            room.advance(count);
            return Poll::Ready(Ok(()));
        }
        self.poll_receive(context, room)
    }
}

impl Wire {
    /// Receives the bytes for the `h2` crate, and counts them.
    fn poll_receive(&mut self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        for _ in 0..RECEIVES {
            let held = self.filter.held();
            if !self.filtered.is_empty() || room.remaining() <= held.len() {
                return self.poll_receive_apart(context, room);
            }
            let before = room.filled().len();
            room.put_slice(held);
            let begun = room.filled().len();
            let polled = self.poll_bytes(context, room);
            // At the end of the stream, an incomplete frame header is not passed on.
            if !matches!(polled, Poll::Ready(Ok(()))) || room.filled().len() == begun {
                room.set_filled(before);
                return polled;
            }
            self.count(&room.filled()[begun..]);
            let kept = self.filter.strip(&mut room.filled_mut()[before..]);
            room.set_filled(before + kept);
            if kept > 0 {
                return polled;
            }
        }
        give_way(context);
        Poll::Pending
    }

    /// The same if there is no room for more than the held bytes.
    fn poll_receive_apart(
        &mut self,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.filtered.is_empty() {
            let mut bytes = self.filter.held().to_vec();
            let begun = bytes.len();
            bytes.resize(begun + room.remaining(), 0);
            let mut part = ReadBuf::new(&mut bytes[begun..]);
            ready!(self.poll_bytes(context, &mut part))?;
            let count = part.filled().len();
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            self.count(&bytes[begun..begun + count]);
            let kept = self.filter.strip(&mut bytes[..begun + count]);
            bytes.truncate(kept);
            self.filtered = bytes;
        }
        if self.filtered.is_empty() {
            give_way(context);
            return Poll::Pending;
        }
        let count = self.filtered.len().min(room.remaining());
        room.put_slice(&self.filtered[..count]);
        self.filtered.drain(..count);
        Poll::Ready(Ok(()))
    }

    fn count(&mut self, mut received: &[u8]) {
        if let Some(heard) = &self.heard {
            heard.note(received);
        }
        if let Some(window) = &self.window {
            window.note_received(received);
        }
        let Some(watched) = &self.watched else { return };
        watched.received_bytes.set(watched.received_bytes.get() + received.len() as u64);
        let (budget, turn) = (&mut *watched.flood_budget.borrow_mut(), &mut *watched.turn.borrow_mut());
        let malformed = &mut *watched.malformed.borrow_mut();
        while let Some(part) = self.frames.next(&mut received) {
            turn.see(part);
            if let Part::Header(header) = part {
                budget.see(header);
            }
            if !malformed.see(part) {
                budget.exhaust();
            }
        }
    }

    /// Receives once.
    fn poll_bytes(&mut self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(first) = &mut self.first else { return self.stream.borrow_mut().poll_read(context, room) };
        let count = first.filled().len().min(room.remaining());
        room.put_slice(&first.filled()[..count]);
        first.consume(count);
        if first.is_empty() {
            self.first = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = self.stream.borrow_mut().poll_send(context, bytes);
        self.note_sent(&sent);
        if let (Some(window), Poll::Ready(Ok(count))) = (&self.window, &sent) {
            window.note_sent(&bytes[..*count]);
        }
        sent
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self.stream.borrow_mut().poll_send_slices(context, parts);
        self.note_sent(&sent);
        if let (Some(window), Poll::Ready(Ok(count))) = (&self.window, &sent) {
            let mut left = *count;
            for part in parts {
                let of_part = left.min(part.len());
                window.note_sent(&part[..of_part]);
                left -= of_part;
            }
        }
        sent
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bytes that a stream counts as sent are with the kernel.
        Poll::Ready(Ok(()))
    }

    /// Ends our direction to a client, then reads and discards what the client sends until it ends too:
    /// closing with bytes unread makes the kernel send a reset, which destroys what the client has not read
    /// yet. The connection's driver bounds the time.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(watched) = &self.watched else { return self.stream.borrow_mut().poll_shutdown(context) };
        if !watched.is_shut.get() {
            ready!(self.stream.borrow_mut().poll_shutdown(context))?;
            watched.is_shut.set(true);
        }
        if self.is_deaf() {
            return Poll::Pending;
        }
        for _ in 0..RECEIVES {
            let mut waste = [0; 16 << 10];
            let mut room = ReadBuf::new(&mut waste);
            // An end by an error counts as an end.
            let read = ready!(self.stream.borrow_mut().poll_read(context, &mut room));
            let count = room.filled().len();
            self.read_away += count;
            if read.is_err() || count == 0 || self.read_away > MOST_READ_AWAY {
                return Poll::Ready(Ok(()));
            }
        }
        give_way(context);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_what_the_kernel_does_not_take_is_counted_until_it_does() {
        let buffers = Buffers::new(1 << 30);
        let unsent = Unsent::new(1000, &buffers);
        unsent.add(600);
        unsent.note(&Poll::Ready(Ok(100)));
        assert_eq!(buffers.in_use_bytes(), 500);
        unsent.note(&Poll::Pending);
        unsent.settle();
        assert_eq!(buffers.in_use_bytes(), 500);
        unsent.add(600);
        assert_eq!(buffers.in_use_bytes(), 1000, "no more than can be");
        unsent.note(&Poll::Ready(Ok(10)));
        unsent.settle();
        assert_eq!(buffers.in_use_bytes(), 0, "what was given for a stream that was reset");
    }
}
