//! The proxy plane as the control side uses it: start the workers, give them a snapshot, drain them.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Mutex, MutexGuard, mpsc, oneshot};
use weir_config::{Config, Source};
use weir_io::buffers::BudgetUse;
use weir_io::unix_socket::Listening;
use weir_io::{clock, local_end, system};
use weir_quic::process::{HandOver, Process};
use weir_state::Snapshot;
use weir_state::plane::{Next, Pending, Plane, StageError, StagedChange};
use weir_state::sockets::{Endpoint, InterfaceState, LAST_LINGER, LINGER, Sockets, Transport};

use crate::access_log::AccessLog;
use crate::compiled::CompiledSnapshot;
use crate::events::{Event, Totals};
use crate::evictions::Evictions;
use crate::listen;
use crate::worker::{self, Command};

/// Parameters of a plane.
pub struct Options {
    /// Worker threads, at least 1.
    pub workers: usize,
    /// Whether each worker is pinned to a CPU of its own.
    pub pin: bool,
    /// Where events go; sending never blocks a worker.
    pub events: mpsc::UnboundedSender<Event>,
    /// The access log's writer.
    pub access_log: AccessLog,
    /// What the previous process has handed over for QUIC.
    pub quic: HandOver,
    /// Listening sockets that the previous process has handed over; those that the first config does not use
    /// are closed.
    pub sockets: Sockets,
}

/// Time for sessions that are cut off at the end of a drain to end properly: with a reset, a counter, a line
/// in the access log.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The running workers, and the sockets they listen on.
pub struct ProxyPlane {
    workers: Vec<Worker>,
    totals: Arc<Totals>,
    access_log: AccessLog,
    quic: Process,
    compiled: ArcSwapOption<CompiledSnapshot>,
    /// Locked by a change from its staging to its end.
    sockets: Mutex<Sockets>,
    /// Whether another process is about to take over the sockets: withdrawing one here withdraws it there
    /// too.
    is_handing_over: AtomicBool,
    /// Whether the sockets were given up for good.
    is_leaving: AtomicBool,
    /// Endpoints that an earlier process has handed over and that the first config does not use.
    unused: std::sync::Mutex<Vec<Endpoint>>,
}

/// What happens to the listening sockets of a process that ends.
#[derive(Clone, Copy, Debug)]
pub enum Leaving<'l> {
    /// No process takes them over.
    ToNobody,
    /// Another process serves them, except for these, which it does not use.
    ToSuccessorBut(&'l [Endpoint]),
}

fn is_quic(endpoint: &Endpoint) -> bool {
    endpoint.transport == Transport::Quic
}

/// Makes the kernel assign no new connections to these sockets. If it can't, this is logged once.
fn withdraw(sockets: &Sockets, endpoints: &[Endpoint]) {
    static SAID: Once = Once::new();
    if let Err(error) = sockets.withdraw(endpoints) {
        SAID.call_once(|| {
            tracing::warn!(
                %error,
                "listening sockets can't be withdrawn before they are closed (Linux 5.7 lets them): a \
                 connection that begins at that very moment may be reset"
            );
        });
    }
}

struct Worker {
    commands: mpsc::UnboundedSender<Command>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl ProxyPlane {
    /// Starts the worker threads; they serve nothing until the first [`Self::apply`].
    pub fn start(options: Options) -> io::Result<ProxyPlane> {
        let totals = Arc::new(Totals::default());
        let workers = options.workers.max(1);
        let evictions: Arc<[Evictions]> = (0..workers).map(|_| Evictions::default()).collect();
        let cpus = system::allowed_cpus();
        let mut started = Vec::with_capacity(workers);
        let (quic, setups) = Process::open(options.quic, workers)?;
        for (number, quic) in setups.into_iter().enumerate() {
            let (commands, inbox) = mpsc::unbounded_channel();
            let setup = worker::Setup {
                number,
                cpu: (options.pin && !cpus.is_empty()).then(|| cpus[number % cpus.len()]),
                events: options.events.clone(),
                access_log: options.access_log.clone(),
                totals: totals.clone(),
                evictions: evictions.clone(),
                quic,
                serve_socket: listen::serve,
                inbox,
            };
            let thread = std::thread::Builder::new()
                .name(format!("weir-worker-{number}"))
                .spawn(move || worker::run(setup))?;
            started.push(Worker { commands, thread: Some(thread).into() });
        }
        let (compiled, sockets) = (ArcSwapOption::empty(), Mutex::new(options.sockets));
        let (is_handing_over, is_leaving, unused) = Default::default();
        let access_log = options.access_log;
        Ok(ProxyPlane {
            workers: started,
            totals,
            access_log,
            quic,
            compiled,
            sockets,
            is_handing_over,
            is_leaving,
            unused,
        })
    }

    /// Makes every worker serve what was compiled, and returns when all of them do.
    ///
    /// A socket that is not in `sockets` any more stops accepting once the connections in its accept queue
    /// are served; its sessions end by themselves or at `drain`.
    pub async fn apply(&self, compiled: &Arc<CompiledSnapshot>, sockets: &Sockets) -> io::Result<()> {
        let mut dealt = Vec::with_capacity(self.workers.len());
        for number in 0..self.workers.len() {
            dealt.push(sockets.for_worker(number, self.workers.len())?);
        }
        let commands = dealt.into_iter().map(|sockets| {
            let compiled = compiled.clone();
            move |done| Command::Apply { compiled, sockets, done }
        });
        self.command(commands).await?;
        self.compiled.store(Some(compiled.clone()));
        Ok(())
    }

    /// What all workers serve, as it was compiled for them; `None` before the first config.
    pub fn compiled(&self) -> Option<Arc<CompiledSnapshot>> {
        self.compiled.load_full()
    }

    /// As [`Self::apply`], for a snapshot that differs from the current one only in the pool of this index.
    /// Wakes no session.
    async fn apply_pool(&self, snapshot: &Arc<Snapshot>, pool: usize) -> io::Result<()> {
        let commands = self.workers.iter().map(|_| {
            let snapshot = snapshot.clone();
            move |done| Command::ApplyPool { snapshot, pool, done }
        });
        self.command(commands).await?;
        let compiled = self.compiled().map(|before| Arc::new(before.with_pools_of(snapshot.clone())));
        self.compiled.store(compiled);
        Ok(())
    }

    /// Sends each worker a command, and waits until all have carried it out.
    async fn command<C>(&self, commands: impl Iterator<Item = C>) -> io::Result<()>
    where
        C: FnOnce(oneshot::Sender<io::Result<()>>) -> Command,
    {
        let mut applied = Vec::with_capacity(self.workers.len());
        for (worker, command) in self.workers.iter().zip(commands) {
            let (done, wait) = oneshot::channel();
            worker.commands.send(command(done)).map_err(|_| io::Error::other("a worker thread has ended"))?;
            applied.push(wait);
        }
        for wait in applied {
            wait.await
                .map_err(|_| io::Error::other("a worker thread ended while it applied a snapshot"))??;
        }
        Ok(())
    }

    /// Wakes each session so that it notices changes, for example that its backend is being removed.
    pub fn wake_sessions(&self) {
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Look);
        }
    }

    /// Makes each worker end its connections to a backend that went down, in pools configured to do so.
    pub fn end_sessions(&self, backend: &Arc<weir_balance::Backend>) {
        for worker in &self.workers {
            let _ = worker.commands.send(Command::EndSessions(backend.clone()));
        }
    }

    /// Stops accepting, lets running work end, and returns when none is left or `limit` is over (then the
    /// rest is cut off). Connections that have begun are served; others are refused, or reach the next
    /// process.
    ///
    /// Gives the number of sessions that were cut off.
    pub async fn drain(&self, limit: Duration, leaving: Leaving<'_>) -> u64 {
        let linger = self.close_sockets(leaving).await.min(limit);
        let kept: Arc<[Endpoint]> = match leaving {
            Leaving::ToNobody => [].into(),
            Leaving::ToSuccessorBut(unused) => unused.iter().filter(|it| is_quic(it)).cloned().collect(),
        };
        // Set before any worker receives the command. Sessions end themselves at their own, slightly later
        // deadline, and must be told apart from those that were done in time.
        let deadline = clock::now() + limit;
        self.totals.drained_at.store(deadline.as_nanos() as u64, Ordering::Relaxed);
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Drain { limit, linger, kept: kept.clone() });
        }
        let is_busy = || self.totals.accepting.load(Ordering::Acquire) > 0 || self.sessions() > 0;
        while is_busy() && clock::now() < deadline + LAST_WORDS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.totals.cut_off.load(Ordering::Relaxed) + self.sessions()
    }

    /// What the next process needs in order to forward to this one the QUIC datagrams of its connections.
    pub fn hand_over_quic(&self) -> io::Result<HandOver> {
        let (hand_over, sockets) = self.quic.hand_over()?;
        for (worker, socket) in self.workers.iter().zip(sockets) {
            let _ = worker.commands.send(Command::ReceiveForwarded { socket });
        }
        Ok(hand_over)
    }

    /// The QUIC counters of each worker.
    pub fn quic_counts(&self) -> &[weir_quic::counts::Counts] {
        self.quic.counts()
    }

    /// Called when the next process could not be started.
    pub fn cancel_hand_over(&self) {
        self.is_handing_over.store(false, Ordering::Relaxed);
        self.quic.cancel_hand_over();
    }

    /// Endpoints that the previous process has handed over but that are not used, so that it can give them
    /// up.
    pub fn unused_endpoints(&self) -> Vec<Endpoint> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The state of each interface that sockets are bound to. Waits for a change that is in progress.
    pub async fn interfaces(&self) -> BTreeMap<Arc<str>, InterfaceState> {
        self.sockets.lock().await.interfaces()
    }

    /// Sessions open now.
    pub fn sessions(&self) -> u64 {
        self.totals.sessions.load(Ordering::Acquire)
    }

    /// Panics caught so far while serving a connection.
    pub fn panics(&self) -> u64 {
        self.totals.panics.load(Ordering::Relaxed)
    }

    /// How the memory budget of the buffers was used when the workers last looked, every 2 s.
    pub fn memory(&self) -> BudgetUse {
        self.totals.memory()
    }

    /// Number of worker threads.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Duplicates of every listening socket, to hand over to a new process. Waits for a change that is in
    /// progress.
    pub async fn listening_sockets(&self) -> io::Result<Vec<(Endpoint, Listening)>> {
        let sockets = self.sockets.lock().await;
        let duplicates = sockets.for_worker(0, 1)?;
        self.is_handing_over.store(true, Ordering::Relaxed);
        let with_file = |(endpoint, socket)| {
            let file = sockets.file_of(&endpoint).cloned();
            (endpoint, Listening { socket, file })
        };
        Ok(duplicates.into_iter().map(with_file).collect())
    }

    /// Gives up the listening sockets; gives how long workers are to keep serving those that were withdrawn.
    /// Once the workers have closed theirs too, new clients are refused rather than left waiting in a queue
    /// that nobody serves (after an upgrade the new process has the sockets and serves them).
    async fn close_sockets(&self, leaving: Leaving<'_>) -> Duration {
        let mut sockets = self.sockets.lock().await;
        self.is_leaving.store(true, Ordering::Relaxed);
        let linger = match leaving {
            Leaving::ToNobody => {
                withdraw(&sockets, &sockets.gone_from(&Sockets::default()));
                LAST_LINGER
            }
            Leaving::ToSuccessorBut(unused) => {
                let others: Vec<_> = unused.iter().filter(|it| !is_quic(it)).cloned().collect();
                withdraw(&sockets, &others);
                LINGER
            }
        };
        *sockets = Sockets::default();
        linger
    }

    /// Ends the worker threads; sessions that are still open are cut off.
    pub fn stop(&self) {
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Stop);
        }
        for worker in &self.workers {
            let thread = worker.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                let _ = thread.join();
            }
        }
    }
}

impl Plane for ProxyPlane {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn stage<'p>(&'p self, next: Next<'p>) -> Pending<'p, Result<Box<dyn StagedChange + 'p>, StageError>> {
        Box::pin(async move {
            Ok(match next {
                Next::Config(config, placements) => {
                    check_sources(config)?;
                    let in_use = self.sockets.lock().await;
                    if self.is_leaving.load(Ordering::Relaxed) {
                        // All sockets would be bound again, and new clients admitted.
                        return Err("the process is on its way out and listens no more".to_owned().into());
                    }
                    let bound = Sockets::bind(config, placements, self.workers(), &in_use)?;
                    let before = self.compiled();
                    Box::new(WholeChange { plane: self, before, in_use, other: bound, is_applied: false })
                        as Box<dyn StagedChange>
                }
                Next::Pool(pool) => Box::new(OnePoolChange { plane: self, pool }),
            })
        })
    }
}

/// Refuses a config with a pool whose connections leave from client addresses if this process is not allowed
/// to do that: each request would be answered with 502.
fn check_sources(config: &Config) -> Result<(), StageError> {
    let Some(pool) = config.pools.iter().find(|pool| pool.source.contains(&Source::Client)) else {
        return Ok(());
    };
    match local_end::may_be_clients() {
        Err(error) if system::is_not_permitted(&error) => Err(format!(
            "pool `{}` has `source = \"client\"`, and this process may not send from the addresses of its clients: that takes CAP_NET_ADMIN (AmbientCapabilities= of systemd)",
            pool.name
        )
        .into()),
        _ => Ok(()),
    }
}

/// A change to a snapshot that may listen on other sockets.
struct WholeChange<'p> {
    plane: &'p ProxyPlane,
    /// The snapshot that is served until the change is applied; `None` for the first one.
    before: Option<Arc<CompiledSnapshot>>,
    in_use: MutexGuard<'p, Sockets>,
    /// Sockets that are bound but not used yet; once the change is applied, those that were used before,
    /// which are closed when this is dropped.
    other: Sockets,
    is_applied: bool,
}

impl WholeChange<'_> {
    async fn serve(&mut self, compiled: &Arc<CompiledSnapshot>) -> io::Result<()> {
        std::mem::swap(&mut *self.in_use, &mut self.other);
        self.is_applied = !self.is_applied;
        self.plane.apply(compiled, &self.in_use).await
    }
}

impl StagedChange for WholeChange<'_> {
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(async {
            let (before, workers) = (self.before.as_deref(), self.plane.workers());
            let access_log = &self.plane.access_log;
            let compiled = CompiledSnapshot::compile(snapshot.clone(), before, workers, access_log);
            self.serve(&Arc::new(compiled)).await?;
            // Last: a client that is allowed to connect only from now on gets the new config.
            self.in_use.allow(&snapshot.config).map_err(io::Error::other)
        })
    }

    fn put_back<'s>(&'s mut self, _before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(async {
            let Some(before) = self.before.clone() else { return Ok(()) };
            before.limit_shared();
            self.serve(&before).await?;
            self.in_use.allow(&before.snapshot.config).map_err(io::Error::other)
        })
    }
}

impl Drop for WholeChange<'_> {
    /// Closes the sockets that are no longer served. This waits until every plane has made the change,
    /// because a withdrawn socket can't be put back.
    fn drop(&mut self) {
        if !self.is_applied {
            self.other.give_up(&self.in_use);
            return;
        }
        for endpoint in self.in_use.lost() {
            tracing::warn!(
                "what stands at {endpoint} is not the socket that Weir made: nobody finds it until a restart"
            );
        }
        let gone = self.other.gone_from(&self.in_use);
        if self.before.is_none() {
            // Those belong to the previous process, which still serves them.
            let missing = self.other.missing_from(&self.in_use);
            *self.plane.unused.lock().unwrap_or_else(PoisonError::into_inner) = missing;
        } else if !self.plane.is_handing_over.load(Ordering::Relaxed) {
            withdraw(&self.other, &gone);
            let missing = self.other.missing_from(&self.in_use);
            self.in_use.note_leaving(missing);
        }
    }
}

/// A change to a snapshot that differs in one pool.
struct OnePoolChange<'p> {
    plane: &'p ProxyPlane,
    pool: usize,
}

impl StagedChange for OnePoolChange<'_> {
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(self.plane.apply_pool(snapshot, self.pool))
    }

    fn put_back<'s>(&'s mut self, before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(self.plane.apply_pool(before, self.pool))
    }
}
