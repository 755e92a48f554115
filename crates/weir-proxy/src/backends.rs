//! Pools and backends on one worker: choosing and connecting. Idle connections are kept by the protocols that
//! use them.

mod opening;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::{Blamed, Ejection, NoPick, Outcome, PickInput, Picker, TierKind};
use weir_config::{ExchangeTimeouts, OnDown};
use weir_io::clock;
use weir_io::stream::Stream;
use weir_state::connections::ConnectionCount;
use weir_state::counterparts::Counterparts;
use weir_state::departure::Departure;
use weir_state::{Backend, Pool};
use weir_stats::PerWorker;
use weir_stats::table::{BackendCells, PoolCells};

pub use self::opening::ProxyHeader;
pub use crate::connect_error::ConnectError;
use crate::enders::{Ender, Enders};
use crate::events::Event;
use crate::evictions;
use crate::worker::Worker;

/// How long a connection stays idle whose MySQL server is being drained: its session may still ask about its
/// last statement.
const IDLE_AT_LEAVING: Duration = Duration::from_secs(1);

/// A pool on one worker.
pub struct WorkerPool {
    pub shared: Arc<Pool>,
    picker: Picker,
    pub backends: Vec<Rc<WorkerBackend>>,
    number: usize,
    /// Whether the pool configures timers of its own.
    says_timers: bool,
    /// Until when clients wait for the state of MySQL servers to become known; `None` while no client has had
    /// to.
    pub unheard_until: Cell<Option<Duration>>,
}

/// A backend on one worker.
pub struct WorkerBackend {
    pub shared: Arc<Backend>,
    /// The kept connections, one entry for each protocol that has kept any.
    kept: RefCell<Vec<Rc<dyn Keep>>>,
    /// Its open connections, if they are to be ended once it is down.
    enders: Rc<Enders>,
    /// Whether its connections are ended once it is down.
    ends_when_down: Cell<bool>,
    /// The local address that its connections use; `None` if the kernel chooses.
    local_end: RefCell<Option<Arc<Departure>>>,
    number: usize,
}

/// Connections to one backend that a protocol keeps for reuse, on one worker.
pub trait Keep: Any {
    /// Gives the same for this backend in the next snapshot, which takes over the idle connections.
    fn hand_over(&self) -> Rc<dyn Keep>;
    /// Closes up to `most` idle connections, those idle longest first; gives how many.
    fn close_idle(&self, most: usize) -> usize;
    /// Closes the prepared statements of idle connections; gives how many.
    fn close_statements(&self) -> usize {
        0
    }
    /// Ends connections in use that have no [`Ender`]; gives how many.
    fn end_all(&self) -> usize {
        0
    }
    /// Drops connections that have been idle for `longest`, that the backend has closed, or that go to an
    /// address the backend has left ([`weir_state::Resolved::moves`]).
    fn retire(&self, now: Duration, longest: Duration, moves: u32);
}

/// A connection to a backend.
pub struct Connection {
    stream: Stream,
    count: OpenCount,
    /// [`weir_state::Resolved::moves`] when it was opened. Once that has changed, this connection goes to an
    /// address that the backend has left.
    moves: u32,
    /// Whether the backend chose HTTP/2.
    is_h2: bool,
}

/// Counts a connection as open on its backend until dropped.
pub struct OpenCount {
    cells: Arc<PerWorker<BackendCells>>,
    number: u32,
    /// Its share of the backend's limit on open connections.
    _reserved: Option<Reservation>,
    /// Set if its pool ends connections once the backend is down.
    ender: Option<Rc<Ender>>,
}

impl OpenCount {
    /// Counts it as a connection that the backend ended while it was idle.
    pub fn note_ended_idle(&self) {
        self.cells.of(self.number as usize).ended_idle.increment();
    }

    /// For whoever must tell that this connection was ended here; `None` where nobody ends any.
    pub fn ender(&self) -> Option<Rc<Ender>> {
        self.ender.clone()
    }
}

/// One of the connections that may be open at a backend; dropping it gives it back.
pub struct Reservation(Arc<ConnectionCount>);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Connection {
    /// See [`weir_state::Resolved::moves`].
    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// Whether the backend chose HTTP/2 (ALPN).
    pub fn is_h2(&self) -> bool {
        self.is_h2
    }

    /// See [`OpenCount::ender`].
    pub fn ender(&self) -> Option<Rc<Ender>> {
        self.count.ender()
    }

    /// The byte stream, and the count, which must be held as long as bytes flow.
    pub fn into_parts(self) -> (Stream, OpenCount) {
        (self.stream, self.count)
    }
}

impl Deref for Connection {
    type Target = Stream;

    #[inline]
    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl DerefMut for Connection {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.cells.of(self.number as usize).connections_ended.increment();
    }
}

/// A backend that was chosen: it counts as one request in flight until this is dropped.
pub struct Chosen {
    pub pool: Rc<WorkerPool>,
    pub index: usize,
    /// The backend is down, and the outcome of this trial attempt is not known yet.
    on_trial: Cell<bool>,
}

impl WorkerPool {
    /// Takes over what this worker has of `old`, the previous pool of the same name: all of it, or the
    /// backends that are unchanged, or the idle connections of backends that were there before. If
    /// connections would now be made differently, with other TLS settings or from another address, idle ones
    /// are not taken over.
    pub fn new(shared: &Arc<Pool>, number: usize, old: Option<&Rc<WorkerPool>>) -> Rc<WorkerPool> {
        if let Some(old) = old.filter(|old| Arc::ptr_eq(&old.shared, shared)) {
            return old.clone();
        }
        let key_of = |backend: &Rc<WorkerBackend>| Arc::as_ptr(&backend.shared.resolved);
        let mut known = Counterparts::new(old.map_or(&[][..], |old| &old.backends[..]), key_of);
        let is_alike = old.is_some_and(|old| connects_alike(&old.shared, shared));
        let backends = shared.backends.iter().map(|backend| {
            let kept = known.find(&Arc::as_ptr(&backend.resolved));
            if let Some(kept) = kept.filter(|kept| is_alike && Arc::ptr_eq(&kept.shared, backend)) {
                return kept.clone();
            }
            let enders = kept.map(|old| old.enders.clone()).unwrap_or_default();
            let kept = match kept {
                Some(old) if is_alike && backend.is_spoken_to_as(&old.shared) => {
                    old.kept.borrow().iter().map(|kept| kept.hand_over()).collect()
                }
                Some(old) => {
                    old.close_idle(usize::MAX);
                    Vec::new()
                }
                None => Vec::new(),
            };
            Rc::new(WorkerBackend {
                shared: backend.clone(),
                kept: RefCell::new(kept),
                enders,
                ends_when_down: Cell::new(false),
                local_end: RefCell::default(),
                number,
            })
        });
        let (picker, backends) = (Picker::new(shared.balance.clone()), backends.collect());
        let says_timers = shared.config.timeout.if_any().is_some();
        let unheard_until = Cell::default();
        let pool =
            WorkerPool { shared: shared.clone(), picker, backends, number, says_timers, unheard_until };
        let pool = Rc::new(pool);
        let now = clock::now();
        let ends_when_down = shared.config.health.on_down == OnDown::EndSessions;
        for backend in &pool.backends {
            backend.shared.balance.set_left(false, now);
            backend.ends_when_down.set(ends_when_down);
            backend.local_end.borrow_mut().clone_from(&shared.local_end);
        }
        if let Some(old) = old {
            let is_here = |it: &WorkerBackend| {
                pool.backends.iter().any(|here| Arc::ptr_eq(&here.shared.balance, &it.shared.balance))
            };
            old.backends.iter().filter(|it| !is_here(it)).for_each(|it| it.leave(now));
        }
        pool
    }

    /// The timers that the pool itself configures; `None` if it configures none.
    #[inline]
    pub fn own_timeouts(&self) -> Option<&ExchangeTimeouts> {
        self.says_timers.then(|| &self.shared.config.timeout)
    }

    /// Called when the pool is no longer in the config.
    pub fn dissolve(&self) {
        let now = clock::now();
        self.backends.iter().for_each(|backend| backend.leave(now));
    }

    /// Whether its connections leave from the addresses of its clients, so that a connection may fail because
    /// of its client alone.
    pub fn leaves_as_clients(&self) -> bool {
        self.shared.local_end.as_ref().is_some_and(|local_end| local_end.is_clients)
    }

    /// Whether sessions that hold a connection to one of its backends can move elsewhere when that is
    /// removed.
    pub fn can_be_left(&self) -> bool {
        self.shared.config.mysql.is_some()
    }

    /// This worker's counters of the pool.
    #[inline]
    pub fn cells(&self) -> &PoolCells {
        self.shared.cells.of(self.number)
    }

    /// Chooses a backend and counts one request in flight on it.
    #[inline]
    pub fn choose(self: &Rc<Self>, input: &PickInput<'_>) -> Result<Chosen, NoPick> {
        let pick = self.picker.pick(input)?;
        match pick.tier {
            TierKind::Ordinary | TierKind::Backup => {}
            TierKind::LastResort => self.cells().last_resort.increment(),
            TierKind::Panic => self.cells().panics.increment(),
        }
        Ok(Chosen { pool: self.clone(), index: pick.index, on_trial: Cell::new(pick.on_trial) })
    }

    /// Chooses the backend at `index`, whatever its state and its limit.
    pub fn choose_at(self: &Rc<Self>, index: usize) -> Chosen {
        self.shared.balance.take(index);
        Chosen { pool: self.clone(), index, on_trial: Cell::new(false) }
    }

    /// The index in this pool of a backend that may have been chosen from a newer or older snapshot of the
    /// pool; `None` if it is not in this one.
    pub fn index_of(&self, chosen: &Chosen) -> Option<usize> {
        let balance = &chosen.backend().shared.balance;
        let is_same = |backend: &Rc<WorkerBackend>| Arc::ptr_eq(&backend.shared.balance, balance);
        // Nearly always it is the very same pool.
        let at_once = self.backends.get(chosen.index).is_some_and(is_same);
        if at_once { Some(chosen.index) } else { self.backends.iter().position(is_same) }
    }

    /// Closes up to `most` idle connections, those idle longest first; gives how many.
    pub fn close_idle(&self, most: usize) -> usize {
        let mut closed = 0;
        for backend in &self.backends {
            closed += backend.close_idle(most - closed);
        }
        closed
    }

    /// Drops idle connections that are too old, that the backend has closed, or that go to an address that it
    /// no longer has.
    pub fn retire_idle(&self, now: Duration) {
        let longest = self.shared.config.keep_alive.idle;
        for backend in &self.backends {
            let moves = backend.shared.resolved.moves();
            let is_left = self.can_be_left() && backend.shared.balance.leaving_since().is_some();
            let longest = if is_left { longest.min(IDLE_AT_LEAVING) } else { longest };
            backend.kept.borrow().iter().for_each(|kept| kept.retire(now, longest, moves));
        }
    }
}

/// Whether connections of the old and the new pool are made in the same way, apart from settings of each
/// backend ([`Backend::is_spoken_to_as`]).
fn connects_alike(before: &Pool, now: &Pool) -> bool {
    let (one, other) = (&before.config, &now.config);
    before.local_end == now.local_end && one.send_proxy == other.send_proxy && one.tls == other.tls
}

/// Ends the connections to a backend that went down, in pools configured to do so.
pub fn end_connections(pools: &[Rc<WorkerPool>], down: &Arc<weir_balance::Backend>) {
    let backends = pools.iter().flat_map(|pool| &pool.backends);
    backends.filter(|it| Arc::ptr_eq(&it.shared.balance, down)).for_each(|it| it.end_connections());
}

impl WorkerBackend {
    /// This worker's counters of the backend.
    #[inline]
    pub fn cells(&self) -> &BackendCells {
        self.shared.cells.of(self.number)
    }

    /// The connections to this backend that a protocol keeps; empty at first.
    #[inline]
    pub fn kept<K: Keep + Default>(&self) -> Rc<K> {
        let mut all = self.kept.borrow_mut();
        let found = all.iter().find_map(|kept| (kept.clone() as Rc<dyn Any>).downcast().ok());
        found.unwrap_or_else(|| {
            let empty = Rc::new(K::default());
            all.push(empty.clone());
            empty
        })
    }

    /// Called when its pool no longer has it: closes idle connections; those in use are left to their users.
    fn leave(&self, now: Duration) {
        self.shared.balance.set_left(true, now);
        self.close_idle(usize::MAX);
    }

    /// Called when it went down: ends its connections, idle or not, if its pool is configured to do so.
    fn end_connections(&self) {
        if self.ends_when_down.get() {
            let ended = self.enders.end_all()
                + self.kept.borrow().iter().map(|kept| kept.end_all() as u64).sum::<u64>();
            self.cells().ended.add(ended);
            self.close_idle(usize::MAX);
        }
    }

    /// Closes up to `most` idle connections, those idle longest first; gives how many.
    pub fn close_idle(&self, most: usize) -> usize {
        let mut closed = 0;
        for kept in self.kept.borrow().iter() {
            closed += kept.close_idle(most - closed);
        }
        closed
    }

    /// Closes the prepared statements of idle connections; gives how many.
    pub fn close_statements(&self) -> usize {
        self.kept.borrow().iter().map(|kept| kept.close_statements()).sum()
    }
}

impl Chosen {
    /// The chosen backend on this worker.
    #[inline]
    pub fn backend(&self) -> &Rc<WorkerBackend> {
        &self.pool.backends[self.index]
    }

    /// Reserves one more open connection at the backend, counted over all workers. At its `max_connections`,
    /// some worker closes an idle one for it. Connections are counted without a limit too, since the next
    /// config may have one.
    ///
    /// # Errors
    /// [`ConnectError::Full`] if no connection is idle.
    pub async fn reserve(&self, worker: &Worker) -> Result<Reservation, ConnectError> {
        let shared = &self.backend().shared;
        let most = shared.balance.max_connections().unwrap_or(u32::MAX);
        if shared.open.try_add(most) || evictions::of_connection(worker, &shared.open, most).await {
            return Ok(Reservation(shared.open.clone()));
        }
        Err(ConnectError::Full { backend: shared.address.clone() })
    }

    /// As [`Self::reserve`], but ignores the limit.
    pub fn reserve_beyond(&self) -> Reservation {
        let open = &self.backend().shared.open;
        open.try_add(u32::MAX);
        Reservation(open.clone())
    }

    /// Reports a success to the latency average: it answered `latency` after the request (or, for TCP, after
    /// connecting began).
    #[inline]
    pub fn observe_success(&self, now: Duration, latency: Duration) {
        self.end_trial();
        let _ = self.pool.shared.balance.observe(self.index, now, Outcome::Success { latency });
    }

    /// Reports a failure to passive health. `reason` is called only if that ejects the backend.
    pub fn observe_failure(&self, worker: &Worker, now: Duration, reason: impl FnOnce() -> String) {
        self.end_trial();
        let ejection = self.pool.shared.balance.observe(self.index, now, Outcome::Failure);
        self.blame(worker, now, ejection, reason);
    }

    /// As [`Self::observe_failure`], if no connection for `client` could be made, or its datagrams did not
    /// arrive. If these leave from the client's own address, several failures of one client count as one.
    pub fn observe_failure_for(
        &self,
        client: IpAddr,
        worker: &Worker,
        now: Duration,
        reason: impl FnOnce() -> String,
    ) {
        if !self.pool.leaves_as_clients() {
            return self.observe_failure(worker, now, reason);
        }
        self.end_trial();
        let client = weir_screen::address_key(client.to_canonical());
        if let Blamed::Counted(ejection) = self.pool.shared.balance.observe_for(self.index, now, client) {
            self.blame(worker, now, ejection, reason);
        }
    }

    /// Counts a failure, and reports the ejection if it causes one.
    fn blame(
        &self,
        worker: &Worker,
        now: Duration,
        ejection: Option<Ejection>,
        reason: impl FnOnce() -> String,
    ) {
        self.backend().cells().failures.increment();
        if let Some(ejection) = ejection {
            self.backend().cells().ejections.increment();
            let event = Event::Ejected {
                pool: self.pool.shared.config.name.clone(),
                backend: self.backend().shared.address.clone(),
                until: ejection.until,
                reason: reason(),
            };
            self.pool.shared.refresh(now);
            let _ = worker.events.send(event);
        }
    }

    /// Called when the outcome is known, or will never be: if this was a trial, another one may begin.
    #[inline]
    pub fn end_trial(&self) {
        if self.on_trial.replace(false) {
            self.pool.shared.balance.end_trial(self.index);
            self.call_next();
        }
    }
}

impl Chosen {
    /// Wakes those that wait for the room that there is now.
    #[inline]
    fn call_next(&self) {
        self.pool.shared.queue.call_next(|| self.backend().shared.balance.role());
    }
}

impl Drop for Chosen {
    #[inline]
    fn drop(&mut self) {
        self.end_trial();
        self.pool.shared.balance.release(self.index);
        self.call_next();
    }
}

/// The time since `start`, for counters.
#[inline]
pub fn elapsed(start: Duration) -> Duration {
    clock::now().saturating_sub(start)
}
