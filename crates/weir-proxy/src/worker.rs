//! One worker: a thread with its own runtime, listening sockets, sessions, idle backend connections, timers
//! and counters.
//!
//! Nothing here is `Send` or locked. Other threads reach a worker by sending it a [`Command`]. The worker
//! knows no protocol: the function that it is given serves its sockets ([`ServeSocket`]).

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use weir_http::h3::Code;
use weir_io::buffers::Buffers;
use weir_io::clock;
use weir_io::deadline::Deadlines;
use weir_io::system;
use weir_mysql::{KnownStates, KnownVerdicts};
use weir_quic::forward::ForwardSocket;
use weir_quic::process::{WorkerEndpoint, WorkerSetup};
use weir_state::counterparts::Counterparts;
use weir_state::sockets::{self, Endpoint};
use weir_state::{Listener, Snapshot};

use crate::access_log::{AccessLog, WorkerLog};
use crate::backends::{WorkerPool, end_connections};
use crate::compiled::CompiledSnapshot;
use crate::events::{Event, Totals};
use crate::evictions::{Eviction, Evictions, Idle};
use crate::listener_socket::{Closing, ListenerSocket};
use crate::slots;
pub use crate::slots::{ListenerSlot, WorkerListener};

/// How often idle backend connections are checked for being too old or closed by the backend.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Begins to serve the listening socket of that descriptor, in the protocol of its listener.
pub type ServeSocket = fn(&Rc<Worker>, &Rc<ListenerSocket>, OwnedFd) -> io::Result<()>;

/// The parameters of a worker.
pub struct Setup {
    pub number: usize,
    pub cpu: Option<usize>,
    pub events: mpsc::UnboundedSender<Event>,
    pub access_log: AccessLog,
    pub totals: Arc<Totals>,
    pub evictions: Arc<[Evictions]>,
    pub quic: WorkerSetup,
    pub serve_socket: ServeSocket,
    pub inbox: mpsc::UnboundedReceiver<Command>,
}

/// What the control side asks of a worker.
pub enum Command {
    /// Serve this snapshot from now on.
    Apply {
        compiled: Arc<CompiledSnapshot>,
        sockets: Vec<(Endpoint, OwnedFd)>,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// Serve this snapshot from now on; it differs from the one before only in the pool of this index.
    ApplyPool { snapshot: Arc<Snapshot>, pool: usize, done: oneshot::Sender<io::Result<()>> },
    /// From now on the next process forwards datagrams of this worker's connections through `socket`.
    ReceiveForwarded { socket: ForwardSocket },
    /// Wake each session so that it notices changes, for example that its backend is being removed.
    Look,
    /// A backend went down, and its pool ends the sessions of backends that are down.
    EndSessions(Arc<weir_balance::Backend>),
    /// Stop accepting; sockets whose endpoint was withdrawn keep accepting for `linger`. Sessions end after
    /// what they are doing, at the latest after `limit`. No other process receives what arrives at QUIC's
    /// endpoints in `kept`, so they go on receiving.
    Drain { limit: Duration, linger: Duration, kept: Arc<[Endpoint]> },
    /// End the thread.
    Stop,
}

/// The state that the sessions of one worker share.
pub struct Worker {
    /// 0 to the number of workers less one; also selects this worker's copy of each counter.
    pub number: usize,
    pub buffers: Rc<Buffers>,
    pub deadlines: Rc<Deadlines>,
    pub events: mpsc::UnboundedSender<Event>,
    pub totals: Arc<Totals>,
    pub log: WorkerLog,
    /// See [`system::accept_ceiling`].
    pub accept_ceiling: i32,
    pub quic: WorkerEndpoint,
    pub mysql_states: KnownStates,
    pub mysql_verdicts: KnownVerdicts,
    serve_socket: ServeSocket,
    evictions: Arc<[Evictions]>,
    /// How long a session that can't leave a backend at once may stay when that backend is removed
    /// (`runtime.drain`).
    pub patience_of_leavers: Cell<Duration>,
    /// When a shortage of file descriptors was last reported.
    reported: Cell<Option<Duration>>,
    random: Cell<u64>,
    /// Whether this thread has already run the TLS warm-up.
    is_warm: Cell<bool>,
    slots: RefCell<Vec<Rc<ListenerSlot>>>,
    sockets: RefCell<Vec<Rc<ListenerSocket>>>,
    pools: RefCell<Rc<[Rc<WorkerPool>]>>,
}

impl Worker {
    /// A uniform 64-bit draw (xorshift64*): for choosing backends and request ids, not for secrets.
    #[inline]
    pub fn draw(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// How many idle backend connections are closed at a time when descriptors run out.
const CLOSED_BACKENDS: usize = 32;
/// How many idle sessions are asked to close at a time if closing backend connections was not enough.
const SHED_SESSIONS: usize = 8;
/// A worker reports a shortage at most this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

impl Worker {
    /// Makes room when file descriptors run out: closes idle backend connections first, which no client
    /// notices, then the sessions that have been idle longest. Gives how many it closed; sessions take a
    /// moment to end.
    pub fn make_room(&self) -> usize {
        let pools = self.pools.borrow().clone();
        let mut closed = 0;
        for pool in pools.iter() {
            closed += pool.close_idle(CLOSED_BACKENDS - closed);
        }
        if closed == 0 {
            closed = self.deadlines.shed_idle(SHED_SESSIONS);
        }
        self.report_shortage(closed);
        closed
    }

    /// As [`Self::make_room`], but ends the session that has been idle longest at one listener first, and
    /// closes anything else only if none is idle there.
    pub fn make_room_at(&self, listener: usize) -> usize {
        match self.deadlines.shed_idle_of(listener, SHED_SESSIONS) {
            0 => self.make_room(),
            closed => {
                self.report_shortage(closed);
                closed
            }
        }
    }

    fn report_shortage(&self, closed: usize) {
        let now = clock::now();
        let last = self.reported.get();
        if last.is_none_or(|last| now.saturating_sub(last) >= REPORT_INTERVAL) {
            self.reported.set(Some(now));
            let _ = self.events.send(Event::DescriptorsShort { shed: closed });
        }
    }

    /// The current pool of that name, for callers that have waited since they looked it up; `None` if it is
    /// gone.
    pub fn pool(&self, name: &str) -> Option<Rc<WorkerPool>> {
        self.pools.borrow().iter().find(|pool| pool.shared.config.name == name).cloned()
    }

    /// When a session that can't leave the backend at once must have left it; `None` while the backend stays.
    pub fn to_be_left_by(&self, backend: &weir_state::Backend) -> Option<Duration> {
        backend.balance.leaving_since().map(|since| since.saturating_add(self.patience_of_leavers.get()))
    }

    /// Has every worker close whatever of `idle` has been idle longest there.
    pub fn evict(&self, idle: Idle) -> Arc<Eviction> {
        Evictions::ask(&self.evictions, idle)
    }

    /// Closes whatever has been idle longest on this worker; gives how many were closed.
    fn shed(&self, idle: &Idle) -> usize {
        match idle {
            Idle::Session { listener } => self.deadlines.shed_idle_of(*listener, 1),
            Idle::Connection { open } => {
                let pools = self.pools.borrow().clone();
                let backends = pools.iter().flat_map(|pool| &pool.backends);
                backends.filter(|it| Arc::ptr_eq(&it.shared.open, open)).map(|it| it.close_idle(1)).sum()
            }
            Idle::Statements { prepared } => {
                let pools = self.pools.borrow().clone();
                let backends = pools.iter().flat_map(|pool| &pool.backends);
                let ours = backends.filter(|it| Arc::ptr_eq(&it.shared.prepared, prepared));
                ours.map(|it| it.close_statements()).sum()
            }
        }
    }
}

async fn evict_when_asked(worker: Rc<Worker>) {
    worker.evictions[worker.number].answer(|idle| worker.shed(idle)).await;
}

/// The worker thread's main function.
pub fn run(setup: Setup) {
    if let Some(cpu) = setup.cpu
        && let Err(error) = system::pin_to(cpu)
    {
        tracing::warn!(worker = setup.number, cpu, %error, "worker runs unpinned");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime needs an epoll descriptor; without one nothing can be served");
    runtime.block_on(serve(setup));
}

impl Worker {
    /// A worker that serves nothing yet, and the receiver of its commands.
    fn new(setup: Setup) -> (Rc<Worker>, mpsc::UnboundedReceiver<Command>) {
        let seed = std::hash::BuildHasher::hash_one(&foldhash::fast::RandomState::default(), setup.number);
        // Nothing is served before the first snapshot, which sets the memory budget.
        let buffers = Buffers::new(0);
        let worker = Worker {
            number: setup.number,
            buffers: buffers.clone(),
            deadlines: Deadlines::new(),
            events: setup.events,
            totals: setup.totals,
            log: setup.access_log.for_worker(),
            accept_ceiling: system::accept_ceiling(),
            quic: WorkerEndpoint::new(setup.quic, &buffers),
            mysql_states: KnownStates::default(),
            mysql_verdicts: KnownVerdicts::default(),
            serve_socket: setup.serve_socket,
            evictions: setup.evictions,
            patience_of_leavers: Cell::new(Duration::ZERO),
            reported: Cell::new(None),
            random: Cell::new(seed | 1),
            is_warm: Cell::new(false),
            slots: RefCell::default(),
            sockets: RefCell::default(),
            pools: RefCell::new(Rc::new([])),
        };
        (Rc::new(worker), setup.inbox)
    }
}

async fn serve(setup: Setup) {
    let (worker, mut inbox) = Worker::new(setup);
    tokio::task::spawn_local(worker.deadlines.clone().run());
    tokio::task::spawn_local(sweep(worker.clone()));
    tokio::task::spawn_local(evict_when_asked(worker.clone()));
    tokio::task::spawn_local(worker.log.clone().run());
    while let Some(command) = inbox.recv().await {
        match command {
            Command::Apply { compiled, sockets, done } => {
                let _ = done.send(apply(&worker, &compiled, sockets));
            }
            Command::ApplyPool { snapshot, pool, done } => {
                let _ = done.send(apply_pool(&worker, &snapshot, pool));
            }
            Command::ReceiveForwarded { socket } => worker.quic.receive_from(socket),
            Command::Look => worker.deadlines.wake_all(),
            Command::EndSessions(backend) => end_connections(&worker.pools.borrow(), &backend),
            Command::Drain { limit, linger, kept } => drain(&worker, clock::now() + limit, linger, &kept),
            Command::Stop => break,
        }
    }
    worker.quic.close(Code::NoError.value());
    worker.log.flush();
}

/// Switches the worker to another snapshot.
fn apply(
    worker: &Rc<Worker>,
    compiled: &CompiledSnapshot,
    sockets: Vec<(Endpoint, OwnedFd)>,
) -> io::Result<()> {
    let snapshot = &compiled.snapshot;
    worker.buffers.resize(compiled.worker_buffer_bytes, compiled.worker_client_bytes);
    worker.totals.note_memory(worker.number, worker.buffers.usage());
    worker.patience_of_leavers.set(snapshot.config.runtime.drain);
    if snapshot.pools.iter().any(|pool| pool.client_login.is_some()) {
        system::forbid_core();
    }
    let old_pools = worker.pools.borrow().clone();
    let mut known = Counterparts::new(&old_pools, |pool| &*pool.shared.config.name);
    let pools = snapshot.pools.iter();
    let pools: Rc<[Rc<WorkerPool>]> =
        pools.map(|pool| WorkerPool::new(pool, worker.number, known.find(&*pool.config.name))).collect();
    *worker.pools.borrow_mut() = pools.clone();
    let is_gone =
        |old: &&Rc<WorkerPool>| !pools.iter().any(|pool| pool.shared.config.name == old.shared.config.name);
    old_pools.iter().filter(is_gone).for_each(|old| old.dissolve());

    let old_slots = worker.slots.take();
    let slots = slots::followers(&old_slots, compiled, &pools);
    let until = clock::now() + snapshot.config.runtime.drain;
    slots::let_go(&old_slots, &slots, until);
    warm_up(worker, snapshot);
    let served = move_sockets(worker, &slots, sockets);
    *worker.slots.borrow_mut() = slots;
    worker.deadlines.wake_all();
    worker.log.flush();
    served
}

/// Switches the worker to `snapshot`, which differs from the one it serves in one pool only.
///
/// Sessions are not woken, except when a backend is gone to which sessions hold connections between two
/// statements. The others look up the pool when they next choose a backend, and the pool's queue calls those
/// that wait for one.
fn apply_pool(worker: &Worker, snapshot: &Snapshot, index: usize) -> io::Result<()> {
    let old = worker.pools.borrow().clone();
    let (Some(shared), Some(before)) = (snapshot.pools.get(index), old.get(index)) else {
        return Err(io::Error::other("a worker was told to change a pool that it does not have"));
    };
    let changed = WorkerPool::new(shared, worker.number, Some(before));
    let numbered = old.iter().enumerate();
    let pools: Rc<[Rc<WorkerPool>]> =
        numbered.map(|(at, pool)| if at == index { &changed } else { pool }).cloned().collect();
    for slot in worker.slots.borrow().iter() {
        slot.has_pools(&pools);
    }
    *worker.pools.borrow_mut() = pools;
    if changed.shared.backends.len() < before.shared.backends.len() && changed.can_be_left() {
        worker.deadlines.wake_all();
    }
    Ok(())
}

/// Runs before the first listener with TLS is served, so that the first handshake on a thread is not slower
/// than those that follow.
fn warm_up(worker: &Worker, snapshot: &Snapshot) {
    let mut served = snapshot.listeners.iter().filter_map(|listener| listener.tls.as_deref()).peekable();
    if served.peek().is_some() && !worker.is_warm.replace(true) {
        served.for_each(weir_tls::warm_up);
    }
}

/// Keeps the sockets whose endpoint is still wanted, opens new ones, closes the rest.
fn move_sockets(
    worker: &Rc<Worker>,
    slots: &[Rc<ListenerSlot>],
    wanted: Vec<(Endpoint, OwnedFd)>,
) -> io::Result<()> {
    let mut old = worker.sockets.take();
    let mut kept = Vec::with_capacity(wanted.len());
    for (endpoint, descriptor) in wanted {
        let Some(slot) = slots.iter().find(|slot| slot.accepts_at(&endpoint)) else { continue };
        // The descriptor is a duplicate for the socket that the worker already polls, so it is simply
        // dropped.
        let socket = match old.iter().position(|socket| socket.is_of(&endpoint, &descriptor)) {
            Some(index) => {
                let socket = old.swap_remove(index);
                socket.belongs_to(slot.clone());
                socket
            }
            None => open(worker, endpoint, descriptor, slot)?,
        };
        kept.push(socket);
    }
    old.iter().for_each(|socket| socket.close(Closing::After(sockets::LINGER)));
    *worker.sockets.borrow_mut() = kept;
    Ok(())
}

fn open(
    worker: &Rc<Worker>,
    endpoint: Endpoint,
    descriptor: OwnedFd,
    slot: &Rc<ListenerSlot>,
) -> io::Result<Rc<ListenerSocket>> {
    let socket = Rc::new(ListenerSocket::new(endpoint, &descriptor, slot.clone()));
    (worker.serve_socket)(worker, &socket, descriptor)?;
    Ok(socket)
}

/// Stops accepting; sockets whose endpoint was withdrawn keep accepting for `linger`. Connected clients may
/// finish until `until`. QUIC goes on receiving at endpoints in `kept`.
fn drain(worker: &Worker, until: Duration, linger: Duration, kept: &[Endpoint]) {
    for socket in worker.sockets.take() {
        socket.close(match kept.contains(&socket.endpoint) {
            true => Closing::After(linger),
            false => Closing::IfWithdrawnAfter(linger),
        });
    }
    slots::let_go(&worker.slots.borrow(), &[], until);
    worker.deadlines.wake_all();
}

/// Closes idle backend connections that are too old or that the backend has closed, and reports how the
/// memory budget is used.
async fn sweep(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = clock::now();
        worker.pools.borrow().iter().for_each(|pool| pool.retire_idle(now));
        worker.totals.note_memory(worker.number, worker.buffers.usage());
    }
}

/// Counts one session while it exists; dropping it counts the session out, on a panic too.
pub struct SessionCount {
    worker: Rc<Worker>,
    listener: Arc<Listener>,
    _panic: PanicCount,
}

impl SessionCount {
    /// The caller has called [`Listener::admit`].
    pub fn enter(worker: &Rc<Worker>, listener: &Arc<Listener>) -> SessionCount {
        worker.totals.sessions.fetch_add(1, Ordering::Relaxed);
        listener.cells.of(worker.number).connections.increment();
        SessionCount { worker: worker.clone(), listener: listener.clone(), _panic: PanicCount::new(worker) }
    }
}

impl Drop for SessionCount {
    fn drop(&mut self) {
        let totals = &self.worker.totals;
        let drained_at = totals.drained_at.load(Ordering::Relaxed);
        if drained_at > 0 && clock::now().as_nanos() as u64 >= drained_at {
            totals.cut_off.fetch_add(1, Ordering::Relaxed);
        }
        // Last: whoever sees that no session is left must also see how many were cut off.
        totals.sessions.fetch_sub(1, Ordering::Release);
        self.listener.cells.of(self.worker.number).connections_ended.increment();
        self.listener.leave();
    }
}

/// Runs work that belongs to no session, as a task of its own.
pub fn spawn(worker: &Rc<Worker>, work: impl Future<Output = ()> + 'static) {
    let count = PanicCount::new(worker);
    // Boxed: a future that awaits another one that it was given holds space for it twice.
    let work = Box::pin(work);
    tokio::task::spawn_local(async move {
        let _count = count;
        work.await;
    });
}

/// Counts a panic of the task that holds it.
pub struct PanicCount(Rc<Worker>);

impl PanicCount {
    /// Counts for a task of `worker`.
    pub fn new(worker: &Rc<Worker>) -> PanicCount {
        PanicCount(worker.clone())
    }
}

impl Drop for PanicCount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.totals.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use weir_quic::process::{HandOver, Process};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn worker(access_log: AccessLog) -> Rc<Worker> {
        let (events, _) = mpsc::unbounded_channel();
        let (_, inbox) = mpsc::unbounded_channel();
        let (_, mut quic) = Process::open(HandOver::default(), 1).unwrap();
        let setup = Setup {
            number: 0,
            cpu: None,
            events,
            access_log,
            totals: Arc::default(),
            evictions: (0..1).map(|_| Evictions::default()).collect(),
            quic: quic.remove(0),
            serve_socket: |_, _, _| Ok(()),
            inbox,
        };
        Worker::new(setup).0
    }

    /// A worker that has `config` in force and accepts nowhere; its deadlines run. For tests on a local
    /// runtime.
    pub(crate) fn serving(config: &str) -> (Rc<Worker>, Arc<Snapshot>) {
        let config = weir_config::parse("weir.toml", config).unwrap_or_else(|report| panic!("{report}"));
        let loaded = weir_tls::Loaded::load(&config, &weir_tls::TicketKeys::new([]), &Arc::default());
        let loaded = loaded.unwrap_or_else(|errors| panic!("{errors:?}"));
        let snapshot = Arc::new(Snapshot::compile(Arc::new(config), &loaded, None, 1));
        let access_log = AccessLog::start(&snapshot.config.log, &snapshot.config.access_logs).unwrap();
        let compiled = CompiledSnapshot::compile(snapshot.clone(), None, 1, &access_log);
        let worker = worker(access_log);
        apply(&worker, &compiled, Vec::new()).unwrap();
        tokio::task::spawn_local(worker.deadlines.clone().run());
        tokio::task::spawn_local(evict_when_asked(worker.clone()));
        (worker, snapshot)
    }

    /// The worker's listener of that index.
    pub(crate) fn listener(worker: &Worker, index: usize) -> Rc<WorkerListener> {
        worker.slots.borrow()[index].current()
    }

    #[tokio::test(flavor = "local")]
    async fn a_pool_that_gets_a_backend_wakes_no_session_and_leaves_other_pools_the_very_same() {
        let text = "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n\
                    [pool.other]\nbackends = ['10.0.1.1:80']\n";
        let config = weir_config::parse("weir.toml", text).unwrap_or_else(|report| panic!("{report}"));
        let first = Arc::new(Snapshot::compile(Arc::new(config), &Default::default(), None, 1));
        let access_log = AccessLog::start(&first.config.log, &[]).unwrap();
        let compiled = CompiledSnapshot::compile(first.clone(), None, 1, &access_log);
        let worker = worker(access_log);
        apply(&worker, &compiled, Vec::new()).unwrap();
        let slot = worker.slots.borrow()[0].clone();
        let before = slot.current();
        let wakes = Arc::new(Wakes::default());
        let _session = worker.deadlines.register(wakes.clone().into());

        let added = weir_config::Backend {
            address: "10.0.0.2:80".to_owned(),
            weight: 1,
            ..weir_config::Backend::default()
        };
        let change = first.with_backend(0, added).unwrap();
        apply_pool(&worker, &change.snapshot, change.pool).unwrap();
        let after = slot.current();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        assert_eq!((before.pools[0].backends.len(), after.pools[0].backends.len()), (1, 2));
        assert!(Rc::ptr_eq(&before.pools[1], &after.pools[1]));
        assert!(Rc::ptr_eq(&before.pools[0].backends[0], &after.pools[0].backends[0]));

        apply(&worker, &compiled, Vec::new()).unwrap();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "after a reload each looks at what has changed");
    }
}
