//! One QUIC connection: the protocol's state, the tasks that wait for its streams, and whether it has
//! something to send.

mod given_up;
mod silence;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, Dir, Event, FinishError, ReadError, ReadableError, StreamEvent,
    StreamId, VarInt, WriteError,
};
use weir_io::buffers::Held;

use crate::allowance::Allowance;
use crate::endpoint::Driver;
use crate::flood_budget::FloodBudget;
use crate::path::ClientPaths;
use crate::port::Port;
use crate::timers::Timer;
use crate::wakers::{wake, watch};

/// A connection from a client, or one to a server.
pub struct Connection {
    pub(crate) handle: ConnectionHandle,
    pub(crate) port: Rc<Port>,
    pub(crate) inner: RefCell<Inner>,
    /// Whether it is in the driver's queue.
    pub(crate) is_queued: Cell<bool>,
    pub(crate) timer: Timer,
    pub(crate) driver: Rc<Driver>,
    /// The last address that the client has proved.
    pub(crate) client: Cell<SocketAddr>,
    /// Whether it is counted among the handshakes in progress.
    pub(crate) is_half_open: Cell<bool>,
    /// Whether the client had proved its address before it began.
    is_proved: bool,
    /// Whether its handshake is complete.
    pub(crate) is_confirmed: Cell<bool>,
    /// Whether this side opened it, so that the peer is a server.
    pub(crate) is_ours: Cell<bool>,
    /// Whether it was handed to the listener.
    is_served: Cell<bool>,
    /// The listener's guard, which counts the connection until it is dropped.
    guard: RefCell<Option<Box<dyn Any>>>,
    idle_timeout: Duration,
    flood_budget: RefCell<FloodBudget>,
    /// When the handshake must be complete; afterwards, when to probe a silent client.
    pub(crate) own_due: Cell<Option<Instant>>,
    requests: Cell<u32>,
    /// When something was last received from the client.
    pub(crate) heard_at: Cell<Instant>,
    /// When the peer was first probed after it was last heard from.
    asked_at: Cell<Option<Instant>>,
    /// How many checks ([`Self::look`]) of a server have found no response since then (count).
    looks: Cell<u32>,
    pub(crate) paths: RefCell<ClientPaths>,
}

/// State that changes with every packet.
pub(crate) struct Inner {
    pub(crate) quic: quinn_proto::Connection,
    watches: HashMap<StreamId, Watch, foldhash::fast::RandomState>,
    /// Streams that we have ended and whose end the client has not acknowledged, with their total bytes.
    ending: HashMap<StreamId, u64, foldhash::fast::RandomState>,
    /// Total bytes written to the streams that have not ended. At most the send window of them is still in
    /// memory.
    pub(crate) unended_bytes: u64,
    pub(crate) held: Held,
    ended: Option<Waker>,
    accepting: [Option<Waker>; 2],
    /// The task that waits for the end of the connection, and for events of all its streams.
    pub(crate) closed: Option<Waker>,
    pub(crate) lost: Option<ConnectionError>,
    pub(crate) send_window: u64,
    /// What a server allows.
    pub(crate) allowance: Option<Arc<Allowance>>,
}

/// Tasks that wait for events of one stream.
#[derive(Default)]
struct Watch {
    readable: Option<Waker>,
    writable: Option<Waker>,
    /// Woken when the client no longer wants the answer.
    stopped: Option<Waker>,
    /// Woken when the handshake is complete.
    confirmed: Option<Waker>,
    /// Bytes written so far, until the stream ends.
    written_bytes: u64,
}

/// Why a stream ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The client reset its side, or asked us to stop sending, with this code.
    Reset(u64),
    /// The connection is gone.
    ConnectionLost,
}

/// Permission for a connection to begin.
pub(crate) struct Admission {
    /// The endpoint's handle for it.
    pub(crate) handle: ConnectionHandle,
    /// The client has proved its address.
    pub(crate) is_proved: bool,
    /// Counts the connection until it is dropped.
    pub(crate) guard: Box<dyn Any>,
    /// Idle timeout of the connection.
    pub(crate) idle_timeout: Duration,
    /// Frames without content that the peer may send before it has earned any.
    pub(crate) control_frames: u32,
}

impl Connection {
    pub(crate) fn new(
        driver: &Rc<Driver>,
        port: &Rc<Port>,
        quic: quinn_proto::Connection,
        admission: Admission,
        now: Instant,
    ) -> Connection {
        let client = Cell::new(quic.remote_address());
        let inner = Inner {
            quic,
            watches: HashMap::default(),
            ending: HashMap::default(),
            unended_bytes: 0,
            held: Held::new(&driver.buffers),
            ended: None,
            accepting: [None, None],
            closed: None,
            lost: None,
            send_window: 0,
            allowance: None,
        };
        Connection {
            handle: admission.handle,
            port: port.clone(),
            inner: RefCell::new(inner),
            is_queued: Cell::new(false),
            timer: Timer::default(),
            driver: driver.clone(),
            client,
            is_half_open: Cell::new(false),
            is_proved: admission.is_proved,
            is_confirmed: Cell::new(false),
            is_ours: Cell::new(false),
            is_served: Cell::new(false),
            guard: RefCell::new(Some(admission.guard)),
            idle_timeout: admission.idle_timeout,
            flood_budget: RefCell::new(FloodBudget::new(admission.control_frames, now)),
            own_due: Cell::new(None),
            requests: Cell::new(0),
            heard_at: Cell::new(now),
            asked_at: Cell::new(None),
            looks: Cell::new(0),
            paths: RefCell::default(),
        }
    }

    /// Call this when a datagram was passed to the protocol: closes the connection if it had too many frames
    /// for its content (threat C5).
    pub(crate) fn charge_frames(self: &Rc<Self>, now: Instant) {
        let has_room = {
            let budget = &mut *self.flood_budget.borrow_mut();
            !budget.is_due() || budget.charge(&self.inner.borrow().quic.stats(), now)
        };
        if !has_room && !self.inner.borrow().is_over() {
            tracing::debug!(client = %self.client.get(), "quic connection closed for its many frames");
            self.close(self.port.front.flooded(), "too many frames without content");
        }
    }

    /// The client's address: the last one from which it has answered a challenge (RFC 9000 §8.2), not the
    /// source address of its last packet (row C8).
    pub fn client(&self) -> SocketAddr {
        self.client.get()
    }

    /// Our address, as the client uses it.
    pub fn local(&self) -> SocketAddr {
        let bound = self.port.socket.address();
        let local = self.inner.borrow().quic.local_ip();
        local.map_or(bound, |ip| SocketAddr::new(ip, bound.port()))
    }

    /// Result of the TLS handshake.
    pub fn handshake(&self) -> Option<Box<quinn_proto::crypto::rustls::HandshakeData>> {
        self.inner.borrow().quic.crypto_session().handshake_data()?.downcast().ok()
    }

    /// The client's certificate chain, if it sent one.
    pub fn client_certificates(&self) -> Option<Box<Vec<rustls::pki_types::CertificateDer<'static>>>> {
        self.inner.borrow().quic.crypto_session().peer_identity()?.downcast().ok()
    }

    /// Whether the client's requests may be replays (RFC 8470), because the handshake is not complete.
    pub fn is_early(&self) -> bool {
        self.inner.borrow().quic.is_handshaking()
    }

    /// Ready once the handshake is complete, so that the client's requests can't be replays. False when the
    /// connection ended before that.
    pub fn poll_confirmed(&self, id: StreamId, context: &mut Context<'_>) -> Poll<bool> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(false);
        }
        if !inner.quic.is_handshaking() {
            return Poll::Ready(true);
        }
        if let Some(entry) = inner.watches.get_mut(&id) {
            watch(&mut entry.confirmed, context);
        }
        Poll::Pending
    }

    /// Counts a request that is served before the handshake is complete.
    pub fn note_early(&self) {
        self.driver.counts().served_early();
    }

    /// Whether it is time to hand the connection to the listener: its handshake is complete, or the client
    /// resumes a session with early data and has proved its address. Returns true only once.
    pub(crate) fn is_to_be_served(&self) -> bool {
        let is_time = !self.is_served.get()
            && (self.is_confirmed.get() || (self.is_proved && self.inner.borrow().takes_early_data()));
        is_time && !self.is_served.replace(true)
    }

    /// Call this when the handshake is complete.
    pub(crate) fn confirm(self: &Rc<Self>) {
        self.is_confirmed.set(true);
        self.driver.leave_handshake(self);
        if self.is_ours.get() {
            wake(&mut self.inner.borrow_mut().closed);
        } else {
            self.driver.counts().established();
        }
        self.own_due.set(None);
        if self.requests.get() > 0 {
            self.keep_alive_from(Instant::now());
        }
        for watch in self.inner.borrow_mut().watches.values_mut() {
            wake(&mut watch.confirmed);
        }
    }

    /// Round-trip time to the client.
    pub fn round_trip(&self) -> Duration {
        self.inner.borrow().quic.rtt()
    }

    /// Number of stream frames sent so far. While there is something to send, it increases as long as the
    /// client's windows have room.
    pub fn pieces_sent(&self) -> u64 {
        self.inner.borrow().quic.stats().frame_tx.stream
    }

    /// Ready once the connection is over, for whatever reason.
    pub fn poll_lost(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(());
        }
        watch(&mut inner.closed, context);
        Poll::Pending
    }

    /// The next stream that the peer has opened, even if it has closed the connection since. `None` if there
    /// will be no more.
    pub fn poll_accept(self: &Rc<Self>, dir: Dir, context: &mut Context<'_>) -> Poll<Option<StreamId>> {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(id) = inner.quic.streams().accept(dir) {
            inner.watches.insert(id, Watch::default());
            return Poll::Ready(Some(id));
        }
        if inner.is_over() {
            return Poll::Ready(None);
        }
        watch(&mut inner.accepting[dir as usize], context);
        Poll::Pending
    }

    /// Opens a stream to the client; `None` while the client allows no more.
    pub fn open(self: &Rc<Self>, dir: Dir) -> Option<StreamId> {
        let inner = &mut *self.inner.borrow_mut();
        let id = inner.quic.streams().open(dir)?;
        inner.watches.insert(id, Watch::default());
        Some(id)
    }

    /// The next bytes of a stream, at most `limit`; `None` is its end. Bytes that are not read count against
    /// the flow-control window, which is what slows the client down.
    pub fn poll_read(
        self: &Rc<Self>,
        id: StreamId,
        limit: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamError>> {
        let inner = &mut *self.inner.borrow_mut();
        let is_over = inner.is_over();
        let (outcome, owes_packet) = match inner.quic.recv_stream(id).read(true) {
            Ok(mut chunks) => {
                let outcome = chunks.next(limit);
                (outcome, chunks.finalize().should_transmit())
            }
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Poll::Ready(if is_over { Err(StreamError::ConnectionLost) } else { Ok(None) });
            }
        };
        let outcome = match outcome {
            Ok(chunk) => Poll::Ready(Ok(chunk.map(|chunk| chunk.bytes))),
            Err(ReadError::Reset(code)) => Poll::Ready(Err(StreamError::Reset(code.into_inner()))),
            Err(ReadError::Blocked) if is_over => Poll::Ready(Err(StreamError::ConnectionLost)),
            Err(ReadError::Blocked) => {
                if let Some(entry) = inner.watches.get_mut(&id) {
                    watch(&mut entry.readable, context);
                }
                Poll::Pending
            }
        };
        if owes_packet {
            self.touch();
        }
        outcome
    }

    /// Accepts bytes from the front of `bytes` as far as the windows have room, at least one when ready. Does
    /// not copy.
    pub fn poll_write(
        self: &Rc<Self>,
        id: StreamId,
        bytes: &mut Bytes,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), StreamError>> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(Err(StreamError::ConnectionLost));
        }
        let written = inner.quic.send_stream(id).write_chunks(std::slice::from_mut(bytes));
        if let (Ok(written), Some(allowance)) = (&written, &inner.allowance) {
            allowance.note_sent(written.bytes as u64);
        }
        if let Ok(written) = &written
            && id.dir() == Dir::Bi
            && let Some(entry) = inner.watches.get_mut(&id)
        {
            entry.written_bytes += written.bytes as u64;
            inner.unended_bytes += written.bytes as u64;
        }
        // If we are blocked by a window, the peer may have to be told so.
        self.touch();
        match written {
            Ok(_) => Poll::Ready(Ok(())),
            Err(WriteError::Blocked) => {
                if let Some(entry) = inner.watches.get_mut(&id) {
                    watch(&mut entry.writable, context);
                }
                Poll::Pending
            }
            Err(WriteError::Stopped(code)) => Poll::Ready(Err(StreamError::Reset(code.into_inner()))),
            Err(WriteError::ClosedStream) => Poll::Ready(Err(StreamError::ConnectionLost)),
        }
    }

    /// Ends our side of a stream in an orderly way.
    pub fn finish(self: &Rc<Self>, id: StreamId) -> Result<(), StreamError> {
        let inner = &mut *self.inner.borrow_mut();
        let finished = inner.quic.send_stream(id).finish();
        self.touch();
        match finished {
            Ok(()) => {
                let written =
                    inner.watches.get_mut(&id).map(|entry| std::mem::take(&mut entry.written_bytes));
                inner.ending.insert(id, written.unwrap_or_default());
                Ok(())
            }
            Err(FinishError::Stopped(code)) => Err(StreamError::Reset(code.into_inner())),
            Err(FinishError::ClosedStream) => Err(StreamError::ConnectionLost),
        }
    }

    /// Resets our side of a stream: the client learns that what it received is incomplete.
    pub fn reset(self: &Rc<Self>, id: StreamId, code: u64) {
        let inner = &mut *self.inner.borrow_mut();
        // A stream that has ended needs no reset.
        let _ = inner.quic.send_stream(id).reset(code_of(code));
        inner.has_ended(id);
        self.touch();
    }

    /// Asks the client to stop sending on a stream; what was received is discarded.
    pub fn stop(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().quic.recv_stream(id).stop(code_of(code));
        self.touch();
    }

    /// Ready once the client has acknowledged everything, as far as it wants it, on the streams that we have
    /// ended: closing the connection would lose the rest.
    pub fn poll_acknowledged(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.ending.is_empty() || inner.is_over() {
            return Poll::Ready(());
        }
        watch(&mut inner.ended, context);
        Poll::Pending
    }

    /// Call this when nothing more will be asked about the stream.
    pub fn forget(&self, id: StreamId) {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(entry) = inner.watches.remove(&id) {
            inner.unended_bytes -= entry.written_bytes;
        }
    }

    /// Closes the connection with an application error code (RFC 9000 §10.2).
    pub fn close(self: &Rc<Self>, code: u64, reason: &'static str) {
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.quic.close(Instant::now(), code_of(code), Bytes::from_static(reason.as_bytes()));
            inner.wake_all();
        }
        self.end();
        self.touch();
    }

    /// Counts a request that begins. As long as there are any, the client is probed now and then, so that a
    /// slow backend does not let the connection reach its idle timeout.
    pub fn enter_request(self: &Rc<Self>) {
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() == 1 && !self.is_half_open.get() {
            self.keep_alive_from(Instant::now());
        }
    }

    /// Call this when a piece of an answer was sent whole, not cut to fit a window.
    pub fn gave_piece(&self) {
        self.flood_budget.borrow_mut().sent_piece();
    }

    /// Counts a request that has ended.
    pub fn leave_request(&self) {
        self.flood_budget.borrow_mut().request_ended();
        self.requests.set(self.requests.get().saturating_sub(1));
    }

    fn keep_alive_from(self: &Rc<Self>, now: Instant) {
        self.own_due.set(Some(now + self.idle_timeout / 3));
        self.touch();
    }

    /// Handles our own timer, not one of the protocol's.
    pub(crate) fn own_timeout(self: &Rc<Self>, now: Instant) {
        if self.own_due.get().is_none_or(|due| due > now) {
            return;
        }
        self.own_due.set(None);
        if self.is_half_open.get() {
            self.driver.counts().handshakes_timed_out();
            let inner = &mut *self.inner.borrow_mut();
            inner.quic.close(now, VarInt::from_u32(0), Bytes::new());
            inner.wake_all();
            self.end();
        } else if self.requests.get() == 0 {
            // An idle server may be silent.
        } else if self.is_ours.get() {
            self.look(now);
        } else {
            self.inner.borrow_mut().quic.ping();
            self.keep_alive_from(now);
        }
    }

    /// Queues the connection to send what it has.
    pub(crate) fn touch(self: &Rc<Self>) {
        self.driver.queue(self);
    }

    /// Distributes the protocol's events. Returns `true` if one of them says that the handshake is complete.
    pub(crate) fn dispatch(self: &Rc<Self>) -> bool {
        let mut connected = false;
        let mut lost = false;
        let inner = &mut *self.inner.borrow_mut();
        while let Some(event) = inner.quic.poll() {
            match event {
                Event::Connected => connected = true,
                Event::ConnectionLost { reason } => {
                    tracing::debug!(client = %self.client.get(), %reason, "quic connection lost");
                    inner.lost = Some(reason);
                    inner.wake_all();
                    lost = true;
                }
                Event::Stream(event) => inner.wake_for(&event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        if lost {
            self.end();
        }
        connected
    }

    /// Calls `look` with the listener's guard for the connection ([`crate::port::Front::admit`]); `None` once
    /// the connection is over.
    pub fn look_at_guard<T>(&self, look: impl FnOnce(&dyn Any) -> T) -> Option<T> {
        self.guard.borrow().as_deref().map(look)
    }

    /// The connection is over and no longer counts.
    pub(crate) fn end(&self) {
        self.driver.leave_handshake(self);
        drop(self.guard.take());
    }
}

impl Inner {
    pub(crate) fn is_over(&self) -> bool {
        self.lost.is_some() || self.quic.is_closed()
    }

    fn takes_early_data(&self) -> bool {
        self.quic.has_0rtt() && !self.is_over()
    }

    fn wake_for(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Opened { dir } => wake(&mut self.accepting[*dir as usize]),
            StreamEvent::Readable { id } => {
                if let Some(watch) = self.watches.get_mut(id) {
                    wake(&mut watch.readable);
                }
            }
            StreamEvent::Writable { id } => {
                if let Some(watch) = self.watches.get_mut(id) {
                    wake(&mut watch.writable);
                }
            }
            StreamEvent::Stopped { id, .. } => {
                self.has_ended(*id);
                if let Some(watch) = self.watches.get_mut(id) {
                    wake(&mut watch.writable);
                    wake(&mut watch.stopped);
                }
            }
            StreamEvent::Finished { id } => {
                self.has_ended(*id);
            }
            StreamEvent::Available { .. } => wake(&mut self.closed),
        }
    }

    /// The client has acknowledged all of a stream, or wants no more of it.
    fn has_ended(&mut self, id: StreamId) {
        if let Some(entry) = self.watches.get_mut(&id) {
            self.unended_bytes -= std::mem::take(&mut entry.written_bytes);
        }
        if let Some(bytes) = self.ending.remove(&id) {
            self.unended_bytes -= bytes;
            if self.ending.is_empty() {
                wake(&mut self.ended);
            }
        }
    }

    fn wake_all(&mut self) {
        self.accepting.iter_mut().for_each(wake);
        wake(&mut self.closed);
        wake(&mut self.ended);
        for watch in self.watches.values_mut() {
            wake(&mut watch.readable);
            wake(&mut watch.writable);
            wake(&mut watch.stopped);
            wake(&mut watch.confirmed);
        }
    }
}

fn code_of(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
