//! Relays both directions of a connection in one future: no task per direction, no lock, no channel.
//!
//! Small messages are copied through a borrowed buffer that goes back as soon as it is empty. A direction
//! that keeps filling its buffer moves through a pipe with `splice(2)` instead, which copies nothing, until
//! its pieces become small again.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use weir_io::buffers::{Buffer, Buffers, LARGE, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::pipes::{Pipe, SMALL_PIECE, SMALL_PIECES};
use weir_io::socket::poll_call;
use weir_io::stream::{Duplex, LOOK_AGAIN};
use weir_io::system;
use weir_io::wait::give_way;
use weir_stats::table::{BackendCells, End, ListenerCells};

use crate::enders::Ender;
use crate::pace::Pace;

/// A direction is bulky once it has filled its buffer this often in a row (256 KiB).
const FULL_BUFFERS: u32 = 4;
/// Most bytes that a direction moves before other tasks get their turn.
const TURN_BYTES: u64 = 1 << 20;

/// The two connections of a session.
pub struct Pair<'a, C, B> {
    pub client: &'a mut C,
    pub backend: &'a mut B,
}

/// Bytes that were received before the relay began.
#[derive(Default)]
pub struct FirstBytes {
    pub from_client: Option<Buffer>,
    pub from_backend: Option<Buffer>,
}

/// The conditions under which a relay runs.
pub struct Terms<'a> {
    pub buffers: &'a Rc<Buffers>,
    /// The calling task's deadline.
    pub deadline: &'a Deadline,
    /// The relay ends when neither direction has moved a byte for this long.
    pub idle: Duration,
    /// The reason that is reported in that case.
    pub idle_end: End,
    /// Whether an encrypted stream that ends without a close alert has ended in order, because the protocol
    /// inside shows by itself what is complete.
    pub ends_unsaid: bool,
    /// How fast bytes may pass; `None` for as fast as they can.
    pub paces: Paces,
    /// Set if the backend's connection is ended once the backend is down; clients must not take that end for
    /// the end of the stream.
    pub ender: Option<Rc<Ender>>,
    /// The listeners to what each side sends, if its meaning is needed when the relay ends.
    pub heard: Heard<'a>,
}

/// Called with the bytes that one side has sent, before the other side receives them; called with `None` for
/// bytes that are moved without being looked at.
pub type Listening<'a> = Option<&'a dyn Fn(Option<&[u8]>)>;

/// The listener of each direction.
#[derive(Clone, Copy, Default)]
pub struct Heard<'a> {
    pub from_client: Listening<'a>,
    pub from_backend: Listening<'a>,
}

/// How fast bytes may pass in each direction.
#[derive(Default)]
pub struct Paces {
    pub from_client: Option<Box<Pace>>,
    pub to_client: Option<Box<Pace>>,
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relayed {
    pub end: End,
    /// Bytes from the client that the backend's socket took.
    pub from_client: u64,
    /// Bytes from the backend that the client's socket took.
    pub from_backend: u64,
    /// Both sides have received all that the other sent; only set if somebody listened and the relay was cut
    /// off with both directions open. The client's connection is then left open for a last message.
    pub is_quiet: bool,
}

/// Counts the bytes that a relay has moved, at the listener and at the backend. The listener has already
/// counted the first `known` bytes from the client when they were received.
pub fn counting<'a>(
    listener: &'a ListenerCells,
    backend: &'a BackendCells,
    mut known: u64,
) -> impl FnMut(u64, u64) + 'a {
    move |from_client, from_backend| {
        let known_here = from_client.min(known);
        known -= known_here;
        listener.bytes_received.add(from_client - known_here);
        listener.bytes_sent.add(from_backend);
        backend.bytes_sent.add(from_client);
        backend.bytes_received.add(from_backend);
    }
}

/// Relays until both sides have ended their streams, or something cuts the session off.
///
/// An end of stream is passed on as one, and the other direction goes on. A reset of one side resets the
/// other. So does every end that neither side asked for while bytes are in transit: a cut must never look
/// like the end of the stream. `moved` is called with the bytes moved since its last call (from the client,
/// from the backend), for the counters.
pub async fn run<C: Duplex, B: Duplex>(
    pair: Pair<'_, C, B>,
    first: FirstBytes,
    mut terms: Terms<'_>,
    draining_until: impl Fn() -> Option<Duration>,
    mut moved: impl FnMut(u64, u64),
) -> Relayed {
    let (ends_unsaid, heard) = (terms.ends_unsaid, terms.heard);
    let Paces { from_client, to_client } = std::mem::take(&mut terms.paces);
    let mut relay = Relay {
        pair,
        terms,
        up: Direction::new(first.from_client, ends_unsaid, from_client, heard.from_client),
        down: Direction::new(first.from_backend, ends_unsaid, to_client, heard.from_backend),
        at_break: 0,
        due: Duration::ZERO,
        look_at: None,
    };
    let mut told = (0, 0);
    relay.renew(draining_until());
    let close = poll_fn(|context| {
        if relay.terms.ender.as_ref().is_some_and(|ender| ender.has_ended()) {
            return Poll::Ready(Close { end: End::BackendDown, is_clean: false });
        }
        relay.wake_from_pause();
        let settled = relay.poll(context);
        let now_moved = (relay.up.moved, relay.down.moved);
        if now_moved != told {
            moved(now_moved.0 - told.0, now_moved.1 - told.1);
            told = now_moved;
            relay.renew(draining_until());
        } else if relay.is_held_back() {
            // Bytes are waiting, and it is the pace that holds them, not the peers.
            relay.renew(draining_until());
        }
        if settled.is_ready() {
            return settled;
        }
        if relay.client_has_left(context) {
            // If the client had ended its stream, the backend still has to read all that the client sent.
            return Poll::Ready(Close { end: End::ClientClosed, is_clean: relay.up.ended.is_some() });
        }
        let checked = relay.check_time(draining_until());
        relay.pause();
        checked
    })
    .await;
    let is_over = relay.up.ended.is_none() && relay.down.ended.is_none() && close.end != End::BackendDown;
    let is_quiet = heard.from_client.is_some() && is_over && relay.up.is_empty() && relay.down.is_empty();
    if !close.is_clean {
        if !is_quiet {
            relay.pair.client.reset_on_close();
        }
        relay.pair.backend.reset_on_close();
    }
    Relayed { end: close.end, from_client: relay.up.moved, from_backend: relay.down.moved, is_quiet }
}

struct Relay<'a, C, B> {
    pair: Pair<'a, C, B>,
    terms: Terms<'a>,
    /// From the client to the backend.
    up: Direction<'a>,
    /// From the backend to the client.
    down: Direction<'a>,
    /// Bytes that the other direction had moved when a sink broke.
    at_break: u64,
    /// The deadline as last set, not counting pauses.
    due: Duration,
    /// When to check whether the client is still there, while the backend does not take what it has sent.
    look_at: Option<Duration>,
}

/// Why the session is over, and whether both sides may see an ordinary end of stream.
struct Close {
    end: End,
    is_clean: bool,
}

impl<C: Duplex, B: Duplex> Relay<'_, C, B> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Close> {
        let (client, backend) = (&mut *self.pair.client, &mut *self.pair.backend);
        if self.up.ended.is_none() && self.up.poll(client, backend, context, self.terms.buffers).is_ready() {
            settle_one(&self.up, &self.down, backend, &mut self.at_break);
        }
        if self.down.ended.is_none()
            && self.down.poll(backend, client, context, self.terms.buffers).is_ready()
        {
            settle_one(&self.down, &self.up, client, &mut self.at_break);
        }
        let (end, is_clean) = match (self.up.ended, self.down.ended) {
            (None, None) => return Poll::Pending,
            (Some(Ended::NoMemory), _) | (_, Some(Ended::NoMemory)) => (End::Overload, false),
            (Some(Ended::SourceBroke), _) => (End::ClientClosed, false),
            (_, Some(Ended::SourceBroke)) => (End::BackendClosed, false),
            (Some(Ended::Whole), Some(Ended::Whole)) => (End::Done, true),
            // A backend may answer, close and so refuse the rest of the request: the client has that answer
            // and must not lose it to a reset. Without an answer the reset is all there is to pass on.
            (Some(Ended::SinkBroke), Some(last)) => (End::BackendClosed, self.said_more(last, &self.down)),
            (Some(last), Some(Ended::SinkBroke)) => (End::ClientClosed, self.said_more(last, &self.up)),
            (Some(_), None) | (None, Some(_)) => return Poll::Pending,
        };
        Poll::Ready(Close { end, is_clean })
    }

    /// Whether the client has gone without a byte showing it. That happens while its bytes wait for a backend
    /// that may never take them, for example because the backend itself waits for its answers to be taken; or
    /// after the end of the client's stream, while a backend that ignores that end says nothing. Neither must
    /// keep the backend's slot.
    fn client_has_left(&mut self, context: &mut Context<'_>) -> bool {
        let is_looked_for = match self.up.ended {
            None => !self.up.is_empty(),
            Some(ended) => ended == Ended::Whole && self.down.ended.is_none() && self.down.is_empty(),
        };
        if !is_looked_for {
            self.look_at = None;
            return false;
        }
        if self.down.was_reset {
            return true;
        }
        let now = clock::now();
        if self.look_at.is_some_and(|at| now < at) {
            return false;
        }
        let is_due = self.look_at.replace(now + LOOK_AGAIN).is_some();
        // If a backend sends to a closed socket, it loses what it has not yet received of the client's bytes.
        let has_all = |backend: &TcpStream| system::unsent_bytes(backend) == 0;
        match self.up.ended {
            _ if !is_due => false,
            // A reset after the end of the client's stream does not matter while that end is still to be
            // read: the data before it is wanted.
            None => self.pair.client.is_broken_off(context),
            Some(_) => self.pair.client.is_gone(context) && self.pair.backend.bare().is_none_or(has_all),
        }
    }

    fn said_more(&self, last: Ended, direction: &Direction<'_>) -> bool {
        last == Ended::Whole && direction.moved > self.at_break
    }

    /// Ends the relay if it was idle for too long or draining is over; brings the deadline forward once
    /// draining has begun.
    fn check_time(&mut self, draining_until: Option<Duration>) -> Poll<Close> {
        if self.terms.deadline.has_passed() {
            if draining_until.is_some_and(|until| until <= clock::now()) {
                return Poll::Ready(Close { end: End::Draining, is_clean: false });
            }
            // A quiet connection that was idle too long ends in order; one whose bytes nobody takes is cut
            // off.
            return Poll::Ready(Close {
                end: self.terms.idle_end,
                is_clean: self.up.is_empty() && self.down.is_empty(),
            });
        }
        if let Some(until) = draining_until
            && until < self.due
        {
            self.due = until;
            self.terms.deadline.set(until);
        }
        Poll::Pending
    }

    /// Restores the deadline after a pause. While a pace let nothing pass, the deadline was brought forward
    /// to when it will, or to when the client is checked: reaching that is no reason to end.
    fn wake_from_pause(&mut self) {
        let resume_at = self.up.resume_at.take().or(self.down.resume_at.take()).or(self.look_at);
        if resume_at.is_some() && clock::now() < self.due {
            self.terms.deadline.set(self.due);
        }
    }

    /// Whether a pace holds back bytes that are waiting.
    fn is_held_back(&self) -> bool {
        self.up.resume_at.is_some() || self.down.resume_at.is_some()
    }

    /// Brings the deadline forward to when a pace will let something pass, or to when the client is checked.
    fn pause(&self) {
        let resume = self.up.resume_at.into_iter().chain(self.down.resume_at).chain(self.look_at).min();
        if let Some(at) = resume.filter(|at| *at < self.due) {
            self.terms.deadline.no_later_than(at);
        }
    }

    /// Restarts the idle deadline, but never beyond the end of draining.
    fn renew(&mut self, draining_until: Option<Duration>) {
        let idle = clock::now() + self.terms.idle;
        self.due = draining_until.map_or(idle, |until| until.min(idle));
        self.terms.deadline.set(self.due);
    }
}

/// Handles the end of one direction while the other goes on.
fn settle_one(ended: &Direction<'_>, other: &Direction<'_>, sink: &impl Duplex, at_break: &mut u64) {
    match ended.ended {
        // If both directions are over, the sockets are closed right away, which has the same effect and saves
        // a call.
        Some(Ended::Whole) if other.ended.is_none() => {
            // An error means that the sink is gone, which the other direction will notice.
            if let Some(socket) = sink.bare() {
                let _ = SockRef::from(socket).shutdown(Shutdown::Write);
            }
        }
        Some(Ended::SinkBroke) => *at_break = other.moved,
        _ => {}
    }
}

/// One direction.
struct Direction<'a> {
    transfer: Transfer,
    /// As in [`Terms`].
    ends_unsaid: bool,
    /// The source has sent its last byte; what is held still has to be sent.
    source_ended: bool,
    ended: Option<Ended>,
    /// The sink was reset before it had ended its own stream.
    was_reset: bool,
    /// Bytes that the sink took.
    moved: u64,
    /// Full buffers in a row while copying, small pieces in a row while splicing.
    streak: u32,
    /// How fast bytes may pass.
    pace: Option<Box<Pace>>,
    /// When the pace will let something pass; set while it lets nothing pass.
    resume_at: Option<Duration>,
    /// As in [`Heard`].
    heard: Listening<'a>,
}

/// How bytes are moved, and what holds those in transit, if there are any.
enum Transfer {
    Copy(Option<Buffer>),
    Splice(Option<Pipe>),
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The source ended its stream and the sink took all of it.
    Whole,
    /// The source was reset.
    SourceBroke,
    /// The sink takes nothing more.
    SinkBroke,
    /// No buffer could be had within the memory budget.
    NoMemory,
}

impl<'a> Direction<'a> {
    fn new(
        first: Option<Buffer>,
        ends_unsaid: bool,
        pace: Option<Box<Pace>>,
        heard: Listening<'a>,
    ) -> Direction<'a> {
        Direction {
            transfer: Transfer::Copy(first),
            ends_unsaid,
            source_ended: false,
            ended: None,
            was_reset: false,
            moved: 0,
            streak: 0,
            pace,
            resume_at: None,
            heard,
        }
    }

    /// How many bytes may be received now; pending while the pace lets none pass.
    #[inline]
    fn room(&mut self) -> Poll<u64> {
        let Some(pace) = &mut self.pace else { return Poll::Ready(u64::MAX) };
        match pace.room(clock::now()) {
            Ok(room) => Poll::Ready(room),
            Err(until) => {
                self.resume_at = Some(until);
                Poll::Pending
            }
        }
    }

    /// Tells the pace that so many bytes were received.
    #[inline]
    fn count(&self, bytes: usize) {
        if let Some(pace) = &self.pace {
            pace.take(clock::now(), bytes as u64);
        }
    }

    /// Whether the sink has taken every byte that was received.
    fn is_empty(&self) -> bool {
        match &self.transfer {
            Transfer::Copy(buffer) => buffer.is_none(),
            Transfer::Splice(pipe) => pipe.is_none(),
        }
    }

    /// Moves what can be moved; ready when the direction has ended.
    fn poll(
        &mut self,
        source: &mut impl Duplex,
        sink: &mut impl Duplex,
        context: &mut Context<'_>,
        buffers: &Rc<Buffers>,
    ) -> Poll<()> {
        let enough = self.moved + TURN_BYTES;
        let ended = loop {
            if self.moved >= enough {
                give_way(context);
                return Poll::Pending;
            }
            let step = match &mut self.transfer {
                Transfer::Copy(_) => self.copy(source, sink, context, buffers),
                Transfer::Splice(_) => self.splice(source, sink, context, buffers),
            };
            match ready!(step) {
                Ok(()) => {}
                Err(Ended::Whole) if sink.bare().is_none() => {
                    // On an encrypted stream the end is a record of its own, which has to be delivered like
                    // any other.
                    break match ready!(sink.poll_shutdown(context)) {
                        Ok(()) => Ended::Whole,
                        Err(error) => broken_sink(&mut self.was_reset, &error),
                    };
                }
                Err(ended) => break ended,
            }
        };
        self.ended = Some(ended);
        // Whatever is left can't be delivered any more.
        self.transfer = Transfer::Copy(None);
        Poll::Ready(())
    }

    /// One receive, and the sends that empty the buffer again.
    #[inline]
    fn copy(
        &mut self,
        source: &mut impl Duplex,
        sink: &mut impl Duplex,
        context: &mut Context<'_>,
        buffers: &Rc<Buffers>,
    ) -> Poll<Result<(), Ended>> {
        if matches!(self.transfer, Transfer::Copy(None)) {
            if self.source_ended {
                return Poll::Ready(Err(Ended::Whole));
            }
            // A buffer is borrowed only now: a session that was merely woken must not need memory.
            ready!(source.poll_readable(context)).map_err(|_| Ended::SourceBroke)?;
            let size = if ready!(self.room()) < LARGE as u64 { SMALL } else { LARGE };
            let Some(mut buffer) = buffers.borrow(size) else { return Poll::Ready(Err(Ended::NoMemory)) };
            let count = match ready!(source.receive_ready(context, &mut buffer)) {
                Ok(count) => count,
                Err(error) if self.ends_unsaid && error.kind() == io::ErrorKind::UnexpectedEof => 0,
                Err(_) => return Poll::Ready(Err(Ended::SourceBroke)),
            };
            if count == 0 {
                self.source_ended = true;
                return Poll::Ready(Ok(()));
            }
            self.count(count);
            if let Some(heard) = self.heard {
                heard(Some(buffer.filled()));
            }
            self.streak = if count == buffer.capacity() { self.streak + 1 } else { 0 };
            self.transfer = Transfer::Copy(Some(buffer));
        }
        let Transfer::Copy(held) = &mut self.transfer else { return Poll::Ready(Ok(())) };
        let Some(buffer) = held else { return Poll::Ready(Ok(())) };
        while !buffer.is_empty() {
            let Poll::Ready(sent) = sink.poll_send(context, buffer.filled()) else {
                source.gather(context);
                return Poll::Pending;
            };
            let count = sent.map_err(|error| broken_sink(&mut self.was_reset, &error))?;
            buffer.consume(count);
            self.moved += count as u64;
        }
        *held = None;
        if self.streak >= FULL_BUFFERS && source.bare().is_some() && sink.bare().is_some() {
            self.streak = 0;
            self.transfer = Transfer::Splice(None);
        }
        Poll::Ready(Ok(()))
    }

    /// Fills one pipe and empties it again.
    fn splice(
        &mut self,
        source: &mut impl Duplex,
        sink: &mut impl Duplex,
        context: &mut Context<'_>,
        buffers: &Rc<Buffers>,
    ) -> Poll<Result<(), Ended>> {
        let (Some(source), Some(sink)) = (source.bare(), sink.bare()) else {
            // Only bare sockets ever switch to splicing.
            return Poll::Ready(Err(Ended::SourceBroke));
        };
        if matches!(self.transfer, Transfer::Splice(None)) {
            if self.source_ended {
                return Poll::Ready(Err(Ended::Whole));
            }
            if self.pace.is_some() {
                // A source that has nothing to send must not wait for the pace.
                ready!(source.poll_read_ready(context)).map_err(|_| Ended::SourceBroke)?;
            }
            let room = ready!(self.room());
            let Some(mut pipe) = Pipe::borrow(buffers, room) else {
                self.transfer = Transfer::Copy(None);
                return Poll::Ready(Ok(()));
            };
            let filled = ready!(poll_call(source, Interest::READABLE, context, |source| pipe.fill(source)));
            let count = filled.map_err(|_| Ended::SourceBroke)?;
            if count == 0 {
                self.source_ended = true;
                return Poll::Ready(Ok(()));
            }
            self.count(count);
            if let Some(heard) = self.heard {
                heard(None);
            }
            self.streak = if count < SMALL_PIECE { self.streak + 1 } else { 0 };
            self.transfer = Transfer::Splice(Some(pipe));
        }
        let Transfer::Splice(held) = &mut self.transfer else { return Poll::Ready(Ok(())) };
        let Some(pipe) = held else { return Poll::Ready(Ok(())) };
        while pipe.held() > 0 {
            let drained = ready!(poll_call(sink, Interest::WRITABLE, context, |sink| pipe.drain(sink)));
            self.moved += drained.map_err(|error| broken_sink(&mut self.was_reset, &error))? as u64;
        }
        *held = None;
        // A listener hears the bytes again as soon as the bulk is over.
        let enough = if self.heard.is_some() { 1 } else { SMALL_PIECES };
        if self.streak >= enough {
            self.streak = 0;
            self.transfer = Transfer::Copy(None);
        }
        Poll::Ready(Ok(()))
    }
}

/// What `error` of a sink means for the direction. The kernel reports a reset after the end of a stream as a
/// broken pipe.
fn broken_sink(was_reset: &mut bool, error: &io::Error) -> Ended {
    *was_reset = error.kind() != io::ErrorKind::BrokenPipe;
    Ended::SinkBroke
}
