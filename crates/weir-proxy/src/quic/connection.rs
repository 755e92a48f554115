//! One QUIC connection: the protocol's state, who waits for which stream, and whether it has something to send.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, Dir, Event, FinishError, ReadError, ReadableError, StreamEvent,
    StreamId, VarInt, WriteError,
};

use super::endpoint::Driver;
use super::gauge::Gauge;
use super::port::{Port, Settings};
use super::timers::Entry;
use super::wakers::{wake, watch};

/// Smallest and largest number of bytes that wait to be acknowledged, per connection. In between it is twice what the path carries at once:
/// a client that acknowledges nothing, or slowly, makes us hold little.
const SEND_WINDOW: (u64, u64) = (128 << 10, 8 << 20);

/// What the send windows of all connections of a worker may come to beyond the smallest (threat S4): a client that first takes much and then
/// acknowledges nothing keeps its window until it is given up.
const SEND_WINDOWS_BYTES: u64 = 64 << 20;

/// The send windows of all connections of a worker.
#[derive(Default)]
pub(super) struct SendWindows {
    /// Bytes beyond the smallest window, in all.
    granted: Cell<u64>,
}

impl SendWindows {
    /// Takes back a window of `before` (0: none yet) and gives one of `wanted`, or what there is; never less than the smallest.
    fn exchange(&self, before: u64, wanted: u64) -> u64 {
        let others = self.granted.get() - before.saturating_sub(SEND_WINDOW.0);
        let granted = (wanted - SEND_WINDOW.0).min(SEND_WINDOWS_BYTES.saturating_sub(others));
        self.granted.set(others + granted);
        SEND_WINDOW.0 + granted
    }
}

/// A path that is still to be proved gets no more than three times what came from it, but for one datagram in this time: the protocol pads its
/// challenge to 1,200 bytes, which one short packet of a client behind a new address translation would not allow. So whoever names others' addresses
/// has no use of it.
const FREE_CHALLENGE_INTERVAL: Duration = Duration::from_secs(10);

/// A client's connection.
pub struct Connection {
    pub(super) handle: ConnectionHandle,
    pub(super) port: Rc<Port>,
    pub(super) inner: RefCell<Inner>,
    /// Whether it is in the driver's queue.
    pub(super) is_queued: Cell<bool>,
    pub(super) timer: Entry,
    driver: Rc<Driver>,
    /// Where the client is, as far as it has proved it.
    client: Cell<SocketAddr>,
    /// Counted among the handshakes under way.
    pub(super) is_half_open: Cell<bool>,
    /// What counts the connection, dropped when it is over.
    guard: RefCell<Option<Box<dyn Any>>>,
    idle_timeout: Duration,
    gauge: RefCell<Gauge>,
    /// When the handshake must be over, later when a silent client is asked whether it is there.
    pub(super) own_due: Cell<Option<Instant>>,
    requests: Cell<u32>,
    unproved_path: RefCell<Option<UnprovedPath>>,
    free_challenge_at: Cell<Option<Instant>>,
}

/// An address that packets come from and nobody has answered from yet.
struct UnprovedPath {
    address: SocketAddr,
    received_bytes: u64,
    sent_bytes: u64,
}

/// What changes with every packet.
pub(super) struct Inner {
    pub(super) quic: quinn_proto::Connection,
    watches: HashMap<StreamId, Watch, foldhash::fast::RandomState>,
    /// Streams that we have ended and whose end the client has not acknowledged.
    ending: HashSet<StreamId, foldhash::fast::RandomState>,
    ended: Option<Waker>,
    accepting: [Option<Waker>; 2],
    closed: Option<Waker>,
    lost: Option<ConnectionError>,
    send_window: u64,
}

/// Who waits for what on one stream.
#[derive(Default)]
struct Watch {
    readable: Option<Waker>,
    writable: Option<Waker>,
    /// Woken when the client has lost interest in the answer.
    stopped: Option<Waker>,
    finished: bool,
}

/// What a stream ended with before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The client gave up its side, or refuses ours, with this code.
    Reset(u64),
    /// The connection is gone.
    ConnectionLost,
}

impl Connection {
    pub(super) fn new(
        driver: &Rc<Driver>,
        port: &Rc<Port>,
        (handle, quic): (ConnectionHandle, quinn_proto::Connection),
        guard: Box<dyn Any>,
        settings: &Settings,
        now: Instant,
    ) -> Connection {
        let client = Cell::new(quic.remote_address());
        let inner = Inner {
            quic,
            watches: HashMap::default(),
            ending: HashSet::default(),
            ended: None,
            accepting: [None, None],
            closed: None,
            lost: None,
            send_window: 0,
        };
        Connection {
            handle,
            port: port.clone(),
            inner: RefCell::new(inner),
            is_queued: Cell::new(false),
            timer: Entry::default(),
            driver: driver.clone(),
            client,
            is_half_open: Cell::new(false),
            guard: RefCell::new(Some(guard)),
            idle_timeout: settings.idle_timeout,
            gauge: RefCell::new(Gauge::new(settings.control_frames, now)),
            own_due: Cell::new(None),
            requests: Cell::new(0),
            unproved_path: RefCell::new(None),
            free_challenge_at: Cell::new(None),
        }
    }

    /// A datagram came from `remote`.
    pub(super) fn note_received(&self, remote: SocketAddr, bytes: usize) {
        if remote == self.client.get() {
            return;
        }
        let path = &mut *self.unproved_path.borrow_mut();
        match path {
            Some(path) if path.address == remote => path.received_bytes += bytes as u64,
            _ => *path = Some(UnprovedPath { address: remote, received_bytes: bytes as u64, sent_bytes: 0 }),
        }
    }

    /// A datagram was given to the protocol: closes the connection when its frames were too many for what they brought (threat C5).
    pub(super) fn gauge_frames(self: &Rc<Self>, now: Instant) {
        let has_room = {
            let gauge = &mut *self.gauge.borrow_mut();
            !gauge.is_due() || gauge.look(&self.inner.borrow().quic.stats(), now)
        };
        if !has_room && !self.inner.borrow().is_over() {
            tracing::debug!(client = %self.client.get(), "quic connection closed for its many frames");
            self.close(self.port.front.flooded(), "too many frames without content");
        }
    }

    /// Whether `bytes` may go to `destination`, which counts them. What may not is as good as lost on the way.
    pub(super) fn may_send(&self, destination: SocketAddr, bytes: usize, now: Instant) -> bool {
        if destination == self.client.get() {
            return true;
        }
        let path = &mut *self.unproved_path.borrow_mut();
        let Some(path) = path.as_mut().filter(|path| path.address == destination) else {
            // The one before, which was proved, or else one that has sent nothing that counted.
            return false;
        };
        let wanted = path.sent_bytes + bytes as u64;
        if wanted > 3 * path.received_bytes {
            let is_free =
                self.free_challenge_at.get().is_none_or(|last| now >= last + FREE_CHALLENGE_INTERVAL);
            if !is_free || path.sent_bytes > 0 {
                return false;
            }
            self.free_challenge_at.set(Some(now));
        }
        path.sent_bytes = wanted;
        true
    }

    /// The client's address: the last one from which it has answered a challenge (RFC 9000 §8.2), not where its last packet says it came
    /// from (row C8).
    pub fn client(&self) -> SocketAddr {
        self.client.get()
    }

    /// Where the client's packets come from now, proved or not.
    pub fn path(&self) -> SocketAddr {
        self.inner.borrow().quic.remote_address()
    }

    /// Our address that the client uses.
    pub fn local(&self) -> SocketAddr {
        let bound = self.port.socket.address();
        let local = self.inner.borrow().quic.local_ip();
        local.map_or(bound, |ip| SocketAddr::new(ip, bound.port()))
    }

    /// What the TLS handshake agreed on.
    pub fn handshake(&self) -> Option<Box<quinn_proto::crypto::rustls::HandshakeData>> {
        self.inner.borrow().quic.crypto_session().handshake_data()?.downcast().ok()
    }

    /// The client's certificate chain, if it sent one.
    pub fn client_certificates(&self) -> Option<Box<Vec<rustls::pki_types::CertificateDer<'static>>>> {
        self.inner.borrow().quic.crypto_session().peer_identity()?.downcast().ok()
    }

    /// Whether the client's requests may be copies that somebody sends again (RFC 8470): the handshake is not over.
    pub fn is_early(&self) -> bool {
        self.inner.borrow().quic.is_handshaking()
    }

    /// What ended the connection, once something has.
    pub fn lost(&self) -> Option<ConnectionError> {
        self.inner.borrow().lost.clone()
    }

    /// Ready once the connection is over, by whatever cause.
    pub fn poll_lost(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(());
        }
        watch(&mut inner.closed, context);
        Poll::Pending
    }

    /// The next stream that the client has opened; `None` when there will be no more.
    pub fn poll_accept(self: &Rc<Self>, dir: Dir, context: &mut Context<'_>) -> Poll<Option<StreamId>> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(None);
        }
        if let Some(id) = inner.quic.streams().accept(dir) {
            inner.watches.insert(id, Watch::default());
            return Poll::Ready(Some(id));
        }
        watch(&mut inner.accepting[dir as usize], context);
        Poll::Pending
    }

    /// Opens a stream towards the client; `None` while the client allows no more.
    pub fn open(self: &Rc<Self>, dir: Dir) -> Option<StreamId> {
        let inner = &mut *self.inner.borrow_mut();
        let id = inner.quic.streams().open(dir)?;
        inner.watches.insert(id, Watch::default());
        Some(id)
    }

    /// The next bytes of a stream, at most `limit`; `None` is its end. What is not asked for stays in the window, which is what holds the
    /// client back.
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

    /// Takes as much from the front of `bytes` as the windows have room for, at least one byte when ready. Nothing is copied.
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
        // Being blocked may have to be told, too.
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

    /// Ends our side of a stream in order.
    pub fn finish(self: &Rc<Self>, id: StreamId) -> Result<(), StreamError> {
        let inner = &mut *self.inner.borrow_mut();
        let finished = inner.quic.send_stream(id).finish();
        self.touch();
        match finished {
            Ok(()) => {
                inner.ending.insert(id);
                Ok(())
            }
            Err(FinishError::Stopped(code)) => Err(StreamError::Reset(code.into_inner())),
            Err(FinishError::ClosedStream) => Err(StreamError::ConnectionLost),
        }
    }

    /// Gives up our side of a stream: the client learns that what it got is not whole.
    pub fn reset(self: &Rc<Self>, id: StreamId, code: u64) {
        let inner = &mut *self.inner.borrow_mut();
        // A stream that has ended needs none.
        let _ = inner.quic.send_stream(id).reset(code_of(code));
        inner.has_ended(id);
        self.touch();
    }

    /// Asks the client to send no more on a stream; what has come is forgotten.
    pub fn stop(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().quic.recv_stream(id).stop(code_of(code));
        self.touch();
    }

    /// The code with which the client refuses our side of a stream; `Pending` while it wants it, and the task is woken when that changes.
    pub fn poll_stopped(&self, id: StreamId, context: &mut Context<'_>) -> Poll<StreamError> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(StreamError::ConnectionLost);
        }
        if let Ok(Some(code)) = inner.quic.send_stream(id).stopped() {
            return Poll::Ready(StreamError::Reset(code.into_inner()));
        }
        if let Some(entry) = inner.watches.get_mut(&id) {
            watch(&mut entry.stopped, context);
        }
        Poll::Pending
    }

    /// Ready while the client has everything of the streams that we have ended, as far as it wants it: what it has not acknowledged is lost when
    /// the connection is closed.
    pub fn poll_acknowledged(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.ending.is_empty() || inner.is_over() {
            return Poll::Ready(());
        }
        watch(&mut inner.ended, context);
        Poll::Pending
    }

    /// Says that nobody will ask about the stream again.
    pub fn forget(&self, id: StreamId) {
        self.inner.borrow_mut().watches.remove(&id);
    }

    /// Closes the connection with an application's code (RFC 9000 §10.2).
    pub fn close(self: &Rc<Self>, code: u64, reason: &'static str) {
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.quic.close(Instant::now(), code_of(code), Bytes::from_static(reason.as_bytes()));
            inner.wake_all();
        }
        self.end();
        self.touch();
    }

    /// Counts a request in that is being served: the client is asked now and then whether it is there, so that a slow backend does not make
    /// the connection look idle.
    pub fn enter_request(self: &Rc<Self>) {
        self.requests.set(self.requests.get() + 1);
        if self.requests.get() == 1 && !self.is_half_open.get() {
            self.keep_alive_from(Instant::now());
        }
    }

    /// Counts a request out.
    pub fn leave_request(&self) {
        self.gauge.borrow_mut().served();
        self.requests.set(self.requests.get().saturating_sub(1));
    }

    fn keep_alive_from(self: &Rc<Self>, now: Instant) {
        self.own_due.set(Some(now + self.idle_timeout / 3));
        self.touch();
    }

    /// A moment of ours has come, not one of the protocol's.
    pub(super) fn own_timeout(self: &Rc<Self>, now: Instant) {
        if self.own_due.get().is_none_or(|due| due > now) {
            return;
        }
        self.own_due.set(None);
        if self.is_half_open.get() {
            self.driver.counts().handshakes_timed_out();
            self.inner.borrow_mut().quic.close(now, VarInt::from_u32(0), Bytes::new());
            self.end();
        } else if self.requests.get() > 0 {
            self.inner.borrow_mut().quic.ping();
            self.keep_alive_from(now);
        }
    }

    /// Puts the connection in line to send what it has.
    pub(super) fn touch(self: &Rc<Self>) {
        self.driver.queue(self);
    }

    /// Hands out the protocol's events. The first that tells that the handshake is over makes it `true`.
    pub(super) fn dispatch(self: &Rc<Self>) -> bool {
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

    /// The connection counts no more.
    pub(super) fn end(&self) {
        self.driver.leave_handshake(self);
        drop(self.guard.take());
    }

    /// Bounds what waits to be acknowledged by what the path carries, and by what all connections of the worker may hold together.
    pub(super) fn fit_send_window(&self, inner: &mut Inner) {
        let wanted = (2 * inner.quic.congestion_state().window()).clamp(SEND_WINDOW.0, SEND_WINDOW.1);
        if wanted != inner.send_window {
            let granted = self.driver.send_windows.exchange(inner.send_window, wanted);
            if granted != inner.send_window {
                inner.send_window = granted;
                inner.quic.set_send_window(granted);
            }
        }
    }

    /// What would have to change for a packet to prove nothing about the path: challenges and probes sent so far. `None` when the path is
    /// the one that is proved already.
    pub(super) fn unproved(&self, inner: &Inner) -> Option<(u64, u64)> {
        if inner.quic.remote_address() == self.client.get() {
            return None;
        }
        let stats = inner.quic.stats();
        Some((stats.frame_tx.path_challenge, stats.path.sent_plpmtud_probes))
    }

    /// A packet was sent to `destination` while the path was not proved, with `before` from just before it. Every packet on a path that is still
    /// to be proved carries a challenge; one without tells that the client has answered.
    pub(super) fn note_path(&self, inner: &Inner, destination: SocketAddr, before: (u64, u64)) {
        let path = inner.quic.remote_address();
        if destination == path && !inner.quic.is_closed() && self.unproved(inner) == Some(before) {
            tracing::debug!(from = %self.client.get(), to = %path, "quic client moved");
            self.client.set(path);
            self.driver.counts().migrated();
        }
    }
}

impl Inner {
    pub(super) fn is_over(&self) -> bool {
        self.lost.is_some() || self.quic.is_closed()
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
                if let Some(watch) = self.watches.get_mut(id) {
                    watch.finished = true;
                }
            }
            StreamEvent::Available { .. } => {}
        }
    }

    /// The client has all of a stream, or wants no more of it.
    fn has_ended(&mut self, id: StreamId) {
        if self.ending.remove(&id) && self.ending.is_empty() {
            wake(&mut self.ended);
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
        }
    }
}

fn code_of(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

impl Drop for Connection {
    fn drop(&mut self) {
        let before = self.inner.get_mut().send_window;
        self.driver.send_windows.exchange(before, SEND_WINDOW.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_send_windows_grow_only_as_far_as_all_of_a_worker_may() {
        let windows = SendWindows::default();
        let (least, most) = SEND_WINDOW;
        let granted: Vec<u64> = (0..20).map(|_| windows.exchange(0, most)).collect();
        let beyond: u64 = granted.iter().map(|window| window - least).sum();
        assert_eq!(beyond, SEND_WINDOWS_BYTES);
        assert_eq!((granted[0], granted[19]), (most, least));
        // What one gives back another gets.
        assert_eq!(windows.exchange(granted[0], least), least);
        assert!(windows.exchange(granted[19], most) > most / 2);
    }
}
