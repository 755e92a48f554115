//! One flow: a client, a backend, and the socket that connects them.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::system;
use weir_io::system::datagrams::{self, BATCH, Route};
use weir_io::wait::give_way;
use weir_stats::table::{End, Rejected};

use super::leg::{Fit, Leg};
use super::{BATCHES_PER_TURN, Key, Relay, poll_batch};
use crate::access_log::{Record, Spoken, Timers};
use crate::backends::elapsed;
use crate::pace::{Pace, Way};
use crate::tcp::relay::Paces;
use crate::worker::{ListenerSlot, Worker};

/// Divides the time at which a flow without any answer was last active, so that such a flow counts as idle
/// almost since the process began. It makes room before all others, because source addresses of datagrams are
/// easily forged; among unanswered flows, the one idle longest goes first.
const UNANSWERED_PART: u32 = 4096;

/// A flow and its state.
pub struct Flow {
    key: Key,
    slot: Rc<ListenerSlot>,
    leg: RefCell<Leg>,
    begun: Duration,
    last_active: Cell<Duration>,
    /// Whether any backend has answered it.
    is_answered: Cell<bool>,
    /// The deadline of the task that serves it, once there is one.
    deadline: OnceCell<Deadline>,
    moves: Cell<u32>,
    from_client: Cell<u64>,
    from_backend: Cell<u64>,
    /// How fast its datagrams may pass in each direction.
    paces: RefCell<Paces>,
    /// Wakes the task that serves it when that must listen to another socket.
    waker: RefCell<Option<Waker>>,
    /// The address that the client sent to, according to a PROXY header.
    asked: Option<SocketAddr>,
}

/// How many of these datagrams, from the first on, a pace lets pass; the others are dropped, as they are
/// where a queue is full.
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

impl Flow {
    /// A flow to a backend that accepts new work. Nothing is sent yet.
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
            is_answered: Cell::new(false),
            deadline: OnceCell::new(),
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

    /// When a datagram last came from either side.
    pub fn last_active(&self) -> Duration {
        self.last_active.get()
    }

    /// The descriptor of its socket to the backend.
    pub fn descriptor(&self) -> RawFd {
        self.leg.borrow().descriptor()
    }

    /// Notes that a datagram came, so that flows idle for longer are closed first if room has to be made.
    fn is_active(&self, now: Duration) {
        self.last_active.set(now);
        if let Some(deadline) = self.deadline.get() {
            deadline.set_idle(Some(if self.is_answered.get() { now } else { now / UNANSWERED_PART }));
        }
    }

    /// Forwards the client's datagrams, after moving to another backend if this one no longer accepts work.
    pub fn forward(&self, relay: &Relay, datagrams: &[&[u8]]) {
        let now = clock::now();
        self.is_active(now);
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
        let fit = self.leg.borrow_mut().fit(&listener, relay.worker.patience_of_leavers.get(), now);
        if fit != Fit::Stays {
            self.move_on(relay, fit, now);
        }
        // An error belongs to a datagram sent earlier, at which nobody listened. These datagrams can still be
        // delivered, by another backend if there is one.
        for _ in 0..2 {
            let sent = self.leg.borrow_mut().send(datagrams);
            match sent {
                Ok(lost) => {
                    let cells = listener.shared.cells.of(relay.worker.number);
                    cells.rejected[Rejected::DatagramTooLong as usize].add(lost);
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.note_failure(relay, &error, now),
            }
        }
    }

    /// Handles an error from the socket: the backend's host reported that nobody listens there, or the
    /// network path is broken. If the break is at our end, at the pool's interface, each further datagram
    /// tries a new socket.
    fn note_failure(&self, relay: &Relay, error: &io::Error, now: Duration) {
        let client = self.key.client.ip();
        let fit = {
            let mut leg = self.leg.borrow_mut();
            leg.is_refused();
            tracing::debug!(backend = %leg.chosen.backend().shared.address, %error, "udp flow");
            match leg.is_left() {
                // The backend's name no longer has this address.
                true => Fit::Moved,
                false if leg.cannot_leave(client, error) => Fit::Moved,
                false => {
                    leg.chosen.observe_failure_for(client, &relay.worker, now, || error.to_string());
                    Fit::Unfit
                }
            }
        };
        self.move_on(relay, fit, now);
    }

    /// Moves the flow to another backend, or to another address of the same one; it stays where it is if none
    /// accepts it.
    fn move_on(&self, relay: &Relay, why: Fit, now: Duration) {
        let opened = {
            let leg = self.leg.borrow();
            let left = Some(&leg.chosen).filter(|_| why != Fit::Moved);
            Leg::open(relay, self.slot.current(), left, (self.key, self.asked), now)
        };
        let Ok(leg) = opened else { return };
        self.moves.set(self.moves.get() + 1);
        *self.leg.borrow_mut() = leg;
        // The task still waits on the old socket.
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Passes the backend's datagrams to the client until the flow has been idle for too long or draining is
    /// over.
    pub async fn serve(&self, relay: &Relay) {
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let deadline = self.deadline.get_or_init(|| relay.worker.deadlines.register(waker));
        deadline.belongs_to(self.slot.current().shared.number());
        deadline.set(self.due());
        self.is_active(self.last_active.get());
        let end = poll_fn(|context| self.poll(relay, deadline, context)).await;
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
                // The path's MTU is smaller than the kernel assumed; it uses the right one from now on.
                Poll::Ready(Err(error)) if system::is_too_long(&error) => full_batches += 1,
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
        if deadline.is_shed() {
            return Poll::Ready(End::Overload);
        }
        let draining_until = self.slot.draining_until();
        if draining_until.is_some() || deadline.has_passed() {
            let now = clock::now();
            let due = self.due();
            // Datagrams only note the time; whether the deadline has really passed is checked here.
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

    /// Sends the inbox's datagrams to the client, from the address that it wrote to.
    fn answer(&self, relay: &Relay) {
        let now = clock::now();
        self.is_answered.set(true);
        self.is_active(now);
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
            let sent = match datagrams::send(&relay.datagrams, rest, Some(route)) {
                Ok(sent) => sent,
                // Only the datagram that is too long for the path to the client is lost.
                Err(error) if system::is_too_long(&error) => {
                    rest = &rest[1..];
                    continue;
                }
                // Datagrams that the kernel does not take now are lost, as they are where a queue is full.
                Err(_) => break,
            };
            sent_bytes += rest[..sent].iter().map(|datagram| datagram.len() as u64).sum::<u64>();
            rest = &rest[sent..];
        }
        self.from_backend.set(self.from_backend.get() + sent_bytes);
        self.slot.current().shared.cells.of(relay.worker.number).bytes_sent.add(sent_bytes);
    }

    /// Counts what the backend sent; its first answer shows how fast it is.
    fn note_answer(&self, bytes: u64, now: Duration) {
        let leg = &mut *self.leg.borrow_mut();
        leg.chosen.backend().cells().bytes_received.add(bytes);
        if !std::mem::replace(&mut leg.has_answered, true) {
            leg.chosen.observe_success(now, leg.latency(now));
        }
    }

    /// Counts the flow and writes its access log line.
    fn finish(&self, worker: &Worker, end: End) {
        let listener = self.slot.current();
        let leg = self.leg.borrow();
        let rejected = (end == End::Overload).then_some(Rejected::Descriptors);
        listener.finish(worker, end, rejected, || Record {
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
