//! One flow: a client, a backend, and a socket of its own between them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::UdpSocket;
use weir_balance::NoPick;
use weir_config::{ProxyDatagrams, RetryOn};
use weir_http::proxy_protocol::{self, ProxyAddresses};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::local_end::LocalEnd;
use weir_io::system;
use weir_io::system::datagrams::{self, BATCH, Route};
use weir_io::wait::give_way;
use weir_state::key::{Transport, flow_key};
use weir_stats::table::{End, Rejected};

use super::{BATCHES_PER_TURN, Key, Relay, poll_batch};
use crate::access_log::{Record, Spoken, Timers};
use crate::backends::{Chosen, ConnectError, WorkerBackend, WorkerPool, elapsed};
use crate::pace::{Pace, Way};
use crate::reach::{Attempt, Reach, RetryVerdict, Wish};
use crate::tcp::relay::Paces;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// A flow and what is known about it.
pub struct Flow {
    key: Key,
    slot: Rc<ListenerSlot>,
    leg: RefCell<Leg>,
    begun: Duration,
    last_active: Cell<Duration>,
    moves: Cell<u32>,
    from_client: Cell<u64>,
    from_backend: Cell<u64>,
    /// How fast its datagrams may pass.
    paces: RefCell<Paces>,
    /// Of the task that serves it, woken when it must listen to another socket.
    waker: RefCell<Option<Waker>>,
    /// The address that the client sent to, as a PROXY header says.
    asked: Option<SocketAddr>,
}

/// The way to one backend.
struct Leg {
    listener: Rc<WorkerListener>,
    chosen: Chosen,
    /// The pool as of `listener`, and the backend's index there: a reload makes new ones, while `chosen`
    /// stays what it was.
    pool: Rc<WorkerPool>,
    index: usize,
    /// The pool's view when the backend was last seen to be fit.
    generation: u64,
    socket: Rc<UdpSocket>,
    since: Duration,
    has_answered: bool,
    /// The PROXY header that its datagrams begin with, or its first one.
    header: Option<Header>,
}

/// What names the client to a backend, at the head of datagrams.
struct Header {
    bytes: Vec<u8>,
    /// Whether only the first datagram has it.
    is_once: bool,
    /// Whether one has got away.
    is_sent: bool,
}

impl Header {
    fn of(pool: &weir_config::Pool, client: SocketAddr, asked: Option<SocketAddr>) -> Header {
        let mut bytes = Vec::new();
        match asked {
            Some(destination) => {
                proxy_protocol::write_v2_datagram(ProxyAddresses { source: client, destination }, &mut bytes);
            }
            None => proxy_protocol::write_v2(None, &mut bytes),
        }
        Header { bytes, is_once: pool.proxy_datagrams == ProxyDatagrams::First, is_sent: false }
    }
}

impl Leg {
    /// A way to a backend, to another one where the flow has `left` one. One that the kernel knows no way to
    /// is replaced by another, `retry.attempts` times.
    fn open(
        relay: &Relay,
        listener: Rc<WorkerListener>,
        left: Option<&Chosen>,
        (key, asked): (Key, Option<SocketAddr>),
        now: Duration,
    ) -> Result<Leg, Rejected> {
        let worker = &relay.worker;
        let index = listener.compiled.routes.default_pool().ok_or(Rejected::NoBackend)?;
        let pool = listener.pools[index].clone();
        let generation = pool.shared.balance.generation();
        let client = key.client.ip();
        let asked = || Some(asked.unwrap_or_else(|| relay.destination(key)));
        let header = pool.shared.config.send_proxy;
        let header = header.map(|_| Header::of(&pool.shared.config, key.client, asked()));
        let key = flow_key(&pool.shared.config, Transport::Udp, key.client, asked);
        let wish = Wish { key, ..Wish::default() };
        let mut reach = Reach::begin(&pool, wish, now);
        if let Some(left) = left {
            reach = reach.leaving(left, home(&listener, left.backend()).map(|(_, index)| index));
        }
        loop {
            // A datagram waits for nothing.
            let chosen = reach.choose_now(worker, &pool, now).map_err(|refusal| match refusal {
                NoPick::AllBusy => Rejected::QueueFull,
                NoPick::NoneUp | NoPick::NoneInRole | NoPick::AllExcluded => Rejected::NoBackend,
            })?;
            // Many are never answered.
            chosen.end_trial();
            if let Some(socket) = open_socket(worker, &chosen, client, now)? {
                let index = chosen.index;
                let (socket, since) = (Rc::new(socket), now);
                return Ok(Leg {
                    listener,
                    chosen,
                    pool,
                    index,
                    generation,
                    socket,
                    since,
                    has_answered: false,
                    header,
                });
            }
            let attempt = Attempt::unsent(Some(RetryOn::Connect));
            let cells = listener.shared.cells.of(worker.number);
            if reach.after(&pool, &chosen, &attempt, cells) == RetryVerdict::Leave {
                return Err(Rejected::NoBackend);
            }
        }
    }

    /// Whether the next datagram begins with a header.
    fn wants_header(&self) -> bool {
        self.header.as_ref().is_some_and(|header| !(header.is_once && header.is_sent))
    }

    /// Sends a datagram behind the header. One that is too long with it is lost, as on a way with a smaller
    /// MTU, and so the header is with it; that is nobody's failure.
    fn send_behind_header(&mut self, datagram: &[u8]) -> io::Result<()> {
        let Some(header) = &mut self.header else { return Ok(()) };
        let whole = [&header.bytes[..], datagram].concat();
        match datagrams::send(&*self.socket, &[&whole], None) {
            Ok(_) => {
                self.chosen.backend().cells().bytes_sent.add(whole.len() as u64);
                header.is_sent = true;
                Ok(())
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the backend still takes work under the present config. Usually two loads.
    fn is_fit(&mut self, listener: &Rc<WorkerListener>) -> bool {
        if !Rc::ptr_eq(&self.listener, listener) && !self.move_home(listener) {
            return false;
        }
        let generation = self.pool.shared.balance.generation();
        if self.generation != generation {
            if !self.pool.shared.balance.keeps(self.index) {
                return false;
            }
            self.generation = generation;
        }
        true
    }

    /// Finds the backend in the pool that a reload brought; `false` when it is no longer there.
    fn move_home(&mut self, listener: &Rc<WorkerListener>) -> bool {
        let at_home = listener.compiled.routes.default_pool().map(|index| &listener.pools[index]);
        if at_home.is_some_and(|pool| Rc::ptr_eq(pool, &self.pool)) {
            // Another pool has changed.
            self.listener = listener.clone();
            return true;
        }
        let Some((pool, index)) = home(listener, self.chosen.backend()) else { return false };
        self.listener = listener.clone();
        self.pool = pool;
        self.index = index;
        // No view has this number: the state is looked at once.
        self.generation = u64::MAX;
        true
    }
}

/// Where `backend` stands in the pool that `listener` uses now.
fn home(listener: &WorkerListener, backend: &WorkerBackend) -> Option<(Rc<WorkerPool>, usize)> {
    let pool = listener.pools[listener.compiled.routes.default_pool()?].clone();
    let same = |other: &Rc<WorkerBackend>| Arc::ptr_eq(&other.shared.resolved, &backend.shared.resolved);
    let index = pool.backends.iter().position(same)?;
    Some((pool, index))
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.chosen.backend().cells().connections_ended.increment();
    }
}

/// A socket to the chosen backend. `Ok(None)` when the kernel knows no way there, which counts as the
/// backend's failure as it does for TCP; `Err` when this process has no descriptor left, which is nobody's
/// fault but ours.
fn open_socket(
    worker: &Worker,
    chosen: &Chosen,
    client: IpAddr,
    now: Duration,
) -> Result<Option<UdpSocket>, Rejected> {
    let Some(address) = chosen.backend().shared.resolved.address() else { return Ok(None) };
    let cells = chosen.backend().cells();
    let from_somewhere = match chosen.backend().socket_for(address, Some(client), false) {
        Ok(socket) => socket,
        Err(ConnectError::OutOfDescriptors) => return Err(Rejected::Descriptors),
        Err(error) => {
            cells.connect_failures.increment();
            tracing::debug!(%address, %error, "udp flow");
            return Ok(None);
        }
    };
    match connect(address, from_somewhere) {
        Ok(socket) => {
            cells.connections.increment();
            cells.requests[0].increment();
            Ok(Some(socket))
        }
        Err(error) if system::is_shortage(&error) => {
            tracing::debug!(%error, "udp flow");
            Err(Rejected::Descriptors)
        }
        Err(error) => {
            cells.connect_failures.increment();
            tracing::debug!(%address, %error, "udp flow");
            chosen.observe_failure(worker, now, || error.to_string());
            Ok(None)
        }
    }
}

/// How many of these datagrams, the first ones, a pace lets pass; the rest is dropped, as it is where a queue
/// is full.
fn admitted(pace: &mut Option<Box<Pace>>, datagrams: &[&[u8]], now: Duration) -> usize {
    let Some(pace) = pace else { return datagrams.len() };
    let passes = |datagram: &&&[u8]| {
        let has_room = pace.room(now).is_ok();
        if has_room {
            pace.take(now, datagram.len() as u64);
        }
        has_room
    };
    datagrams.iter().take_while(passes).count()
}

/// A socket that hears only `address`, and hears when nobody listens there.
fn connect(address: SocketAddr, from_somewhere: Option<socket2::Socket>) -> io::Result<UdpSocket> {
    let socket = match from_somewhere {
        Some(socket) => socket,
        None => LocalEnd::default().open(address, None, false)?,
    };
    socket.connect(&address.into())?;
    UdpSocket::from_std(socket.into())
}

impl Flow {
    /// A flow to a backend that takes work. Nothing is sent yet.
    pub fn open(
        relay: &Relay,
        slot: Rc<ListenerSlot>,
        key: Key,
        asked: Option<SocketAddr>,
        now: Duration,
    ) -> Result<Flow, Rejected> {
        let leg = Leg::open(relay, slot.current(), None, (key, asked), now)?;
        let shared = &slot.current().shared;
        Ok(Flow {
            key,
            slot: slot.clone(),
            leg: RefCell::new(leg),
            begun: now,
            last_active: Cell::new(now),
            moves: Cell::new(0),
            from_client: Cell::new(0),
            from_backend: Cell::new(0),
            paces: RefCell::new(Paces {
                from_client: Pace::of(shared, relay.worker.number, Way::FromClient),
                to_client: Pace::of(shared, relay.worker.number, Way::ToClient),
            }),
            waker: RefCell::default(),
            asked,
        })
    }

    /// When a datagram last came, from either side.
    pub fn last_active(&self) -> Duration {
        self.last_active.get()
    }

    /// Sends the client's datagrams on; first to another backend if this one no longer takes work.
    pub fn forward(&self, relay: &Relay, datagrams: &[&[u8]]) {
        let now = clock::now();
        self.last_active.set(now);
        let listener = self.slot.current();
        let allowed = admitted(&mut self.paces.borrow_mut().from_client, datagrams, now);
        if allowed < datagrams.len() {
            let dropped = (datagrams.len() - allowed) as u64;
            let cells = listener.shared.cells.of(relay.worker.number);
            cells.rejected[Rejected::Bandwidth as usize].add(dropped);
            if allowed == 0 {
                return;
            }
        }
        let datagrams = &datagrams[..allowed];
        let bytes = datagrams.iter().map(|datagram| datagram.len() as u64).sum();
        listener.shared.cells.of(relay.worker.number).bytes_received.add(bytes);
        self.from_client.set(self.from_client.get() + bytes);
        let is_fit = self.leg.borrow_mut().is_fit(&listener);
        if !is_fit {
            self.move_on(relay, now);
        }
        // An error is about a datagram sent earlier: nobody listened. These still have their chance, on
        // another backend if there is one.
        for _ in 0..2 {
            match self.send(datagrams) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.note_failure(relay, &error, now),
            }
        }
    }

    fn send(&self, datagrams: &[&[u8]]) -> io::Result<()> {
        let mut rest = datagrams;
        while self.leg.borrow().wants_header()
            && let Some((first, others)) = rest.split_first()
        {
            self.leg.borrow_mut().send_behind_header(first)?;
            rest = others;
        }
        let leg = self.leg.borrow();
        while !rest.is_empty() {
            let sent = datagrams::send(&*leg.socket, rest, None)?;
            let bytes = rest[..sent].iter().map(|datagram| datagram.len() as u64).sum();
            leg.chosen.backend().cells().bytes_sent.add(bytes);
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// The backend's host said that nobody listens there, or the way to it is broken.
    fn note_failure(&self, relay: &Relay, error: &io::Error, now: Duration) {
        {
            let mut leg = self.leg.borrow_mut();
            // Whoever listens there from now on has not heard it.
            if let Some(header) = &mut leg.header {
                header.is_sent = false;
            }
            tracing::debug!(backend = %leg.chosen.backend().shared.address, %error, "udp flow");
            leg.chosen.observe_failure(&relay.worker, now, || error.to_string());
        }
        self.move_on(relay, now);
    }

    /// Moves the flow to another backend; it stays where it is when no other takes it.
    fn move_on(&self, relay: &Relay, now: Duration) {
        let listener = self.slot.current();
        let opened = Leg::open(relay, listener, Some(&self.leg.borrow().chosen), (self.key, self.asked), now);
        let Ok(leg) = opened else { return };
        self.moves.set(self.moves.get() + 1);
        *self.leg.borrow_mut() = leg;
        // The task waits on the old socket.
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Brings the backend's datagrams to the client until the flow has been idle for too long or draining is
    /// over.
    pub async fn serve(&self, relay: &Relay) {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = relay.worker.deadlines.register(waker);
        deadline.set(self.due());
        let end = poll_fn(|context| self.poll(relay, &deadline, context)).await;
        self.finish(&relay.worker, end);
    }

    fn poll(&self, relay: &Relay, deadline: &Deadline, context: &mut Context<'_>) -> Poll<End> {
        *self.waker.borrow_mut() = Some(context.waker().clone());
        let mut full_batches = 0;
        loop {
            let socket = self.leg.borrow().socket.clone();
            let received = poll_batch(&socket, &mut relay.inbox.borrow_mut(), context);
            match received {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) => {
                    self.answer(relay);
                    full_batches += u32::from(count == BATCH);
                }
                Poll::Ready(Err(error)) => {
                    self.note_failure(relay, &error, clock::now());
                    full_batches += 1;
                }
            }
            if full_batches >= BATCHES_PER_TURN {
                give_way(context);
                break;
            }
        }
        let draining_until = self.slot.draining_until();
        if draining_until.is_some() || deadline.has_passed() {
            let now = clock::now();
            let due = self.due();
            // Datagrams only note the time; whether it is really over is seen here.
            if due <= now {
                let is_drained = draining_until.is_some_and(|until| until <= now);
                return Poll::Ready(if is_drained { End::Draining } else { End::ClientIdle });
            }
            deadline.set(due);
        }
        Poll::Pending
    }

    fn due(&self) -> Duration {
        let idle = self.last_active.get() + self.slot.current().shared.config.timeout.client_idle;
        self.slot.draining_until().map_or(idle, |until| until.min(idle))
    }

    /// Sends what is in the inbox to the client, from the address that it wrote to.
    fn answer(&self, relay: &Relay) {
        let now = clock::now();
        self.last_active.set(now);
        let inbox = relay.inbox.borrow();
        let mut datagrams: [&[u8]; BATCH] = [&[]; BATCH];
        let mut bytes = 0;
        for (index, datagram) in datagrams.iter_mut().enumerate().take(inbox.count()) {
            *datagram = inbox.datagram(index).bytes;
            bytes += datagram.len() as u64;
        }
        self.note_answer(bytes, now);
        let route = Route { to: self.key.peer, from: self.key.own };
        let datagrams = &datagrams[..inbox.count()];
        let allowed = admitted(&mut self.paces.borrow_mut().to_client, datagrams, now);
        if allowed < datagrams.len() {
            let dropped = (datagrams.len() - allowed) as u64;
            let listener = self.slot.current();
            let cells = listener.shared.cells.of(relay.worker.number);
            cells.rejected[Rejected::Bandwidth as usize].add(dropped);
        }
        let mut rest = &datagrams[..allowed];
        let mut sent_bytes = 0;
        while !rest.is_empty() {
            // What the kernel does not take now is lost, as datagrams are where a queue is full.
            let Ok(sent) = datagrams::send(&relay.datagrams, rest, Some(route)) else { break };
            sent_bytes += rest[..sent].iter().map(|datagram| datagram.len() as u64).sum::<u64>();
            rest = &rest[sent..];
        }
        self.from_backend.set(self.from_backend.get() + sent_bytes);
        self.slot.current().shared.cells.of(relay.worker.number).bytes_sent.add(sent_bytes);
    }

    /// Counts what the backend sent; its first answer tells how fast it is.
    fn note_answer(&self, bytes: u64, now: Duration) {
        let leg = &mut *self.leg.borrow_mut();
        leg.chosen.backend().cells().bytes_received.add(bytes);
        if !std::mem::replace(&mut leg.has_answered, true) {
            let latency = now.saturating_sub(leg.since);
            leg.chosen.observe_success(now, latency);
        }
    }

    /// Counts the flow and writes its line.
    fn finish(&self, worker: &Worker, end: End) {
        let listener = self.slot.current();
        let leg = self.leg.borrow();
        listener.finish(worker, end, None, || Record {
            pool: Some(&leg.pool.shared.config.name),
            backend: Some(&leg.chosen.backend().shared.address),
            bytes_received: self.from_client.get(),
            bytes_sent: self.from_backend.get(),
            retries: self.moves.get(),
            timers: Timers { total: elapsed(self.begun), ..Timers::default() },
            ..Record::of_session(&listener.shared.config.name, Spoken::Udp, self.key.client, end)
        });
    }
}
