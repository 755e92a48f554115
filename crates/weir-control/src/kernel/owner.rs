//! The thread that owns the program in the kernel: it does what it is told, and follows pools, interfaces and
//! flows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use weir_config::show_backend;
use weir_io::clock;
use weir_l4::flows::{FlowTables, Swept};
use weir_l4::host::{Host, Watch};
use weir_l4::kernel::Kernel;
use weir_l4::lock::DirectoryLock;
use weir_l4::numbers::name_of;
use weir_l4::ports::LocalPorts;
use weir_l4::program::{Sizes, remove_other_layouts};
use weir_l4::wanted::Wanted;
use weir_proxy::events::Event;
use weir_state::Snapshot;
use weir_state::plane::Placements;

use super::clock::monotonic;
use super::failures::Failures;
use super::interfaces::Attaching;
use super::leaving::{IDLE_OF_OTHERS, Moves};
use super::served::meant_by;
use super::wanted::{local_ports, wanted};
use super::{Ended, Handle, Seen, SeenBackend, SeenListener, counted};
use crate::events::Bus;
use crate::tasks;

/// Pause between two sweeps, unless a sweep takes so long that it would be a twentieth of the time.
const SWEEP: Duration = Duration::from_secs(1);
/// Longest pause between two looks at what backends refuse.
const GLANCE: Duration = Duration::from_millis(100);
/// The same as [`SWEEP`] while the process drains: somebody waits for the last flow.
const SWEEP_TO_END: Duration = Duration::from_millis(200);
/// Idle time of a flow whose listener is gone.
const IDLE_OF_THE_GONE: Duration = Duration::from_secs(60);

/// What the thread is told.
pub(super) enum Order {
    /// Forward what this snapshot says.
    Serve {
        /// What is in force.
        snapshot: Arc<Snapshot>,
        /// Which listeners are in the kernel.
        placements: Placements,
        /// Whether an operator has changed a pool: what runs at a backend that it has no more goes on.
        is_of_one_pool: bool,
        /// Told when it is done.
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Take no new flows, wait for the others, take everything away, and end.
    Drain {
        /// Longest wait.
        limit: Duration,
        /// Told how many flows were cut off.
        done: oneshot::Sender<u64>,
    },
    /// End, and take away what was not there before.
    GiveUp {
        /// Told when it is done.
        done: oneshot::Sender<()>,
    },
    /// End, and leave everything to the next process.
    Leave,
}

/// Where the program is pinned, and how large its tables are.
#[derive(Clone)]
pub(super) struct OwnDirectory {
    pub(super) path: PathBuf,
    pub(super) sizes: Sizes,
    pub(super) lock: Arc<DirectoryLock>,
}

/// The program and what is to be done with it.
pub(super) struct Owner {
    pub(super) kernel: Kernel,
    tables: Arc<FlowTables>,
    directory: PathBuf,
    pub(super) handle: Arc<Handle>,
    pub(super) bus: Arc<Bus>,
    pub(super) host: Host,
    watched: Arc<HostWatch>,
    pub(super) serving: Option<(Arc<Snapshot>, Placements)>,
    /// Ports that this host gives to others, as of the last snapshot.
    ports: LocalPorts,
    pub(super) in_force: Wanted,
    /// No backend gets a new flow any more.
    is_draining: bool,
    swept: Swept,
    swept_at: Instant,
    sweep_took: Duration,
    reports: UnboundedSender<Event>,
    failures: Failures,
    /// Backends that are this host, by pool and address.
    own_backends: BTreeSet<(String, SocketAddr)>,
    pub(super) moves: Moves,
    pub(super) attaching: Attaching,
    /// Whose the directory is, until this thread ends.
    _lock: Arc<DirectoryLock>,
}

/// Whether the host has changed; set by a thread that listens to the kernel.
#[derive(Default)]
struct HostWatch {
    neighbours: AtomicBool,
    anything: AtomicBool,
}

impl Owner {
    pub(super) fn open(
        own: OwnDirectory,
        handle: Arc<Handle>,
        bus: Arc<Bus>,
        reports: UnboundedSender<Event>,
    ) -> Result<Owner, String> {
        let mut kernel = Kernel::open(&own.path, own.sizes).map_err(|error| error.to_string())?;
        note_size(&mut kernel, own.sizes);
        // Before the first look, so that no change is missed between the two.
        let watch =
            Watch::open().map_err(|error| format!("changes of interfaces can't be watched: {error}"))?;
        let host = Host::read().map_err(|error| format!("the host's interfaces can't be read: {error}"))?;
        let ports = local_ports()?;
        let watched = Arc::new(HostWatch::default());
        watch_host(watch, watched.clone(), handle.clone())?;
        let tables = Arc::new(kernel.flow_tables().map_err(|error| error.to_string())?);
        Ok(Owner {
            kernel,
            tables,
            directory: own.path,
            handle,
            bus,
            host,
            watched,
            serving: None,
            ports,
            in_force: Wanted::default(),
            is_draining: false,
            swept: Swept::default(),
            swept_at: Instant::now(),
            sweep_took: Duration::ZERO,
            reports,
            failures: Failures::default(),
            own_backends: BTreeSet::new(),
            moves: Moves::default(),
            attaching: Attaching::default(),
            _lock: own.lock,
        })
    }

    /// Whether an earlier process has left flows that go on.
    pub(super) fn has_flows(&self) -> Result<bool, String> {
        let idle = |_| IDLE_OF_OTHERS;
        let swept = self.tables.sweep(monotonic(), &idle, &mut || {}).map_err(|error| error.to_string())?;
        Ok(swept.by_backend.values().any(|flows| *flows > 0))
    }

    /// Another handle of the tables of flows.
    pub(super) fn flow_tables(&mut self) -> Result<FlowTables, String> {
        self.kernel.flow_tables().map_err(|error| error.to_string())
    }

    pub(super) fn spawn(self) -> Result<(), String> {
        start_thread("weir-kernel", move || self.run())
    }

    fn run(mut self) {
        let _ended = Ended(self.handle.clone());
        self.tell_host();
        loop {
            self.handle.bell.wait(self.pause(SWEEP).min(GLANCE));
            for order in self.handle.take_orders() {
                match order {
                    Order::Serve { snapshot, placements, is_of_one_pool, done } => {
                        match &self.serving {
                            Some((before, _)) if is_of_one_pool => {
                                self.moves.note_removed(before, &snapshot, &self.kernel);
                            }
                            _ => self.moves.note_left_out(&snapshot, &self.kernel),
                        }
                        let _ = done.send(self.serve(snapshot, placements));
                    }
                    Order::Drain { limit, done } => {
                        let cut_off = self.drain(limit);
                        self.handle.vip_probes.remove();
                        self.kernel.remove();
                        // Last: the process ends when it hears of it.
                        let _ = done.send(cut_off);
                        return;
                    }
                    Order::GiveUp { done } => {
                        self.handle.vip_probes.remove();
                        if !self.kernel.was_there() {
                            self.kernel.remove();
                        }
                        let _ = done.send(());
                        return;
                    }
                    Order::Leave => return self.handle.vip_probes.leave(),
                }
            }
            self.glance();
            self.follow();
            if self.pause(SWEEP).is_zero() {
                self.sweep();
            }
        }
    }

    /// Looks for backends that refuse connections or leave them unanswered.
    fn glance(&mut self) {
        let Some((snapshot, _)) = &self.serving else { return };
        let (kernel, in_force) = (&mut self.kernel, &self.in_force);
        let ejected = self.failures.observe(snapshot, clock::now(), |pool, address| {
            let pool = in_force.pools.iter().find(|one| one.name == pool)?;
            let is_there = pool.members.iter().any(|member| member.address == address);
            is_there.then(|| kernel.backend_counts(&pool.name, address).ok()).flatten()
        });
        for event in ejected {
            let _ = self.reports.send(event);
        }
    }

    /// Until the next sweep.
    fn pause(&self, period: Duration) -> Duration {
        period.max(self.sweep_took * 20).saturating_sub(self.swept_at.elapsed())
    }

    /// Forwards what a snapshot says, and has its pools ring when their backends stand otherwise.
    fn serve(&mut self, snapshot: Arc<Snapshot>, placements: Placements) -> Result<(), String> {
        self.ports = local_ports()?;
        self.moves.note(self.serving.as_ref(), (&snapshot, &placements), &self.kernel);
        let next = self.wanted(&snapshot, &placements);
        self.put_in_force(next)?;
        for pool in &snapshot.pools {
            let is_used = self.in_force.pools.iter().any(|used| used.name == pool.config.name);
            pool.bell.store(is_used.then(|| self.handle.bell.clone()));
        }
        self.serving = Some((snapshot, placements));
        self.attach()?;
        self.note_unanswered();
        // Only now, so that no packet goes by without a program.
        if remove_other_layouts(&self.directory) > 0 {
            tracing::warn!(
                "took the place of a kernel plane of another version of Weir, whose flows can't be read: connections that it carried go on in \
                 pools that hash, and are reset in others"
            );
        }
        self.look();
        Ok(())
    }

    fn wanted(&self, snapshot: &Snapshot, placements: &Placements) -> Wanted {
        let is_own = |address: IpAddr| self.host.addresses.contains(&address.into());
        let numbers = &self.kernel.numbers().pools;
        let has_flows = |pool: &str| self.moves.any_goes_on() && numbers.of(name_of(pool)).is_some();
        let interfaces_of = |listener: &weir_config::Listener| meant_by(listener, &self.host);
        let mut wanted = wanted(snapshot, placements, &self.ports, &is_own, &has_flows, &interfaces_of);
        for listener in &mut wanted.listeners {
            listener.asks_host = self.moves.asks_host(&listener.name);
        }
        wanted.leaving = self.moves.kept(snapshot, &wanted, self.kernel.live_backends());
        if self.is_draining {
            wanted.pools.iter_mut().flat_map(|pool| &mut pool.members).for_each(|member| member.weight = 0);
        }
        wanted
    }

    /// Says it once of each backend that is this host, and each time its address comes or goes.
    fn note_own_backends(&mut self) {
        let own: BTreeSet<(String, SocketAddr)> = self
            .in_force
            .pools
            .iter()
            .flat_map(|pool| pool.members.iter().map(|member| (pool.name.clone(), member.address)))
            .filter(|(_, address)| self.host.addresses.contains(&address.ip().into()))
            .collect();
        for (pool, backend) in own.difference(&self.own_backends) {
            let backend = show_backend(*backend);
            tracing::error!(pool, backend, "the kernel plane refuses a backend that is this host itself");
        }
        for (pool, backend) in self.own_backends.difference(&own) {
            let backend = show_backend(*backend);
            tracing::info!(pool, backend, "the kernel plane no longer refuses a backend: it is another host");
        }
        self.own_backends = own;
    }

    /// Whether anything changed by it.
    fn put_in_force(&mut self, next: Wanted) -> Result<bool, String> {
        if next == self.in_force {
            return Ok(false);
        }
        let host = &self.host;
        self.kernel.apply(&next, &|address| host.interface_to(address)).map_err(|error| error.to_string())?;
        self.in_force = next;
        self.note_own_backends();
        Ok(true)
    }

    /// Brings the kernel up to date with pools and host.
    pub(super) fn follow(&mut self) {
        // Taken before anything is looked at, and told by being dropped.
        let _waiting = self.handle.take_waiting();
        let Some((snapshot, placements)) = self.serving.clone() else { return };
        if self.watched.anything.swap(false, Ordering::AcqRel) {
            match Host::read() {
                Ok(host) => self.host = host,
                Err(error) => tracing::error!(%error, "the host's interfaces could not be read"),
            }
            // Interfaces to backends may be others.
            self.in_force = Wanted::default();
            self.tell_host();
            self.attach_again();
        }
        if self.watched.neighbours.swap(false, Ordering::AcqRel)
            && let Err(error) = self.kernel.forget_ways()
        {
            tracing::error!(%error, "the kernel plane was not told of changed neighbours");
        }
        match self.put_in_force(self.wanted(&snapshot, &placements)) {
            Ok(true) => self.note_unanswered(),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "the kernel plane does not follow its pools"),
        }
    }

    /// Lets flows go that have ended, and looks at what the kernel counts.
    fn sweep(&mut self) {
        let begun = Instant::now();
        let idle = self.idle_times();
        let now = monotonic();
        let of = |number: u32| idle.get(&number).copied().unwrap_or(IDLE_OF_THE_GONE);
        let (tables, bell) = (self.tables.clone(), self.handle.bell.clone());
        let mut has_rung = false;
        // Through a million flows it takes most of a second, which no backend that went down waits for.
        let swept = tables.sweep(now, &of, &mut || {
            if bell.wait(Duration::ZERO) {
                has_rung = true;
                self.follow();
            }
        });
        if has_rung {
            // For orders as well, which wait until the sweep is through.
            bell.ring();
        }
        match swept {
            Ok(swept) => self.swept = swept,
            Err(error) => tracing::error!(%error, "flows of the kernel plane could not be swept"),
        }
        self.let_go(begun);
        if let Err(error) = self.kernel.correct(&self.swept) {
            tracing::error!(%error, "flows of backends could not be corrected");
        }
        self.look_at_attachments();
        self.look();
        self.swept_at = Instant::now();
        self.sweep_took = begun.elapsed();
    }

    /// Takes away what is kept of listeners that left, once they have no flow any more.
    fn let_go(&mut self, begun: Instant) {
        let Some((snapshot, _)) = self.serving.clone() else { return };
        self.moves.look_at_sockets(&snapshot);
        if !self.moves.swept(&self.swept, begun, &snapshot) {
            return;
        }
        self.follow();
        self.attach_again();
    }

    /// Idle times by number of the listener.
    fn idle_times(&self) -> HashMap<u32, Duration> {
        let Some((snapshot, _)) = &self.serving else { return HashMap::new() };
        let numbers = &self.kernel.numbers().listeners;
        let of = |listener: &Arc<weir_state::Listener>| {
            Some((numbers.of(name_of(&listener.config.name))?, listener.config.timeout.client_idle))
        };
        snapshot.listeners.iter().filter_map(of).chain(self.moves.idle_times()).collect()
    }

    /// Notes for others what the kernel counts, and adds it to what is counted of listeners and backends on
    /// any plane.
    fn look(&mut self) {
        let failed = &self.attaching.failed;
        let interfaces = self.kernel.program().interfaces().filter(|name| !failed.contains_key(*name));
        let mut seen = Seen {
            interfaces: interfaces.map(str::to_owned).collect(),
            unattached: failed.clone(),
            lost_attachments: self.attaching.lost,
            left_out: self.attaching.left_out,
            ..Seen::default()
        };
        let before = self.handle.seen.load_full();
        let leaving = self.serving.iter().flat_map(|(snapshot, _)| &snapshot.listeners);
        let leaving = leaving.map(|one| &one.config.name).filter(|name| self.moves.leaves(name));
        let in_force = self.in_force.listeners.iter().map(|listener| &listener.name);
        let names: Vec<(String, bool)> = in_force
            .map(|name| (name.clone(), false))
            .chain(leaving.map(|name| (name.clone(), true)))
            .collect();
        for (name, is_leaving) in names {
            let number = self.kernel.numbers().listeners.of(name_of(&name));
            let count =
                |of: &BTreeMap<u32, u64>| number.and_then(|number| of.get(&number).copied()).unwrap_or(0);
            let (flows, open) = (count(&self.swept.by_listener), count(&self.swept.open_by_listener));
            let verdicts = self.kernel.verdicts(&name).unwrap_or_default();
            let absent = self.attaching.absent.get(&name).cloned().unwrap_or_default();
            let unanswered = self.attaching.unanswered.get(&name).cloned().unwrap_or_default();
            let listener = SeenListener { number, flows, open, verdicts, is_leaving, absent, unanswered };
            seen.listeners.insert(name, listener);
        }
        for pool in &self.in_force.pools {
            for member in &pool.members {
                let number = self.kernel.number_of(&pool.name, member.address);
                let open = self.kernel.open_flows(&pool.name, member.address).unwrap_or(0);
                let counted = self.kernel.backend_counts(&pool.name, member.address).unwrap_or_default();
                let at = (pool.name.clone(), member.address);
                let is_this_host = self.own_backends.contains(&at);
                seen.backends.insert(at, SeenBackend { number, open, is_this_host, counted });
            }
        }
        if let Some((snapshot, _)) = &self.serving {
            counted::add(snapshot, &before, &seen);
        }
        self.handle.seen.store(Arc::new(seen));
    }

    /// Gives no backend a new flow, and waits for those that run.
    fn drain(&mut self, limit: Duration) -> u64 {
        let begun = Instant::now();
        // Also for all that follows: pools and hosts change while flows end.
        self.is_draining = true;
        self.follow();
        loop {
            self.sweep();
            let open: u64 = self.swept.by_backend.values().sum();
            if open == 0 || begun.elapsed() >= limit {
                return open;
            }
            std::thread::sleep(self.pause(SWEEP_TO_END).min(limit.saturating_sub(begun.elapsed())));
        }
    }
}

/// Says so where the tables of an earlier process have another size than is asked for: they can't grow.
fn note_size(kernel: &mut Kernel, asked: Sizes) {
    match kernel.flow_entries() {
        // Two entries for each flow.
        Ok(entries) if entries != asked.flows => tracing::warn!(
            in_force = entries / 2,
            asked = asked.flows / 2,
            "the tables of flows that an earlier process has left stay as large as they are: `kernel.flows` needs a restart to change"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the size of the tables of flows is not known"),
    }
}

/// Starts the thread that hears of changes.
fn watch_host(watch: Watch, watched: Arc<HostWatch>, handle: Arc<Handle>) -> Result<(), String> {
    let listen = move || {
        loop {
            match watch.wait() {
                Ok(true) => watched.anything.store(true, Ordering::Release),
                Ok(false) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return tracing::error!(%error, "changes of interfaces are no longer seen"),
            }
            watched.neighbours.store(true, Ordering::Release);
            handle.bell.ring();
        }
    };
    start_thread("weir-host", listen)
}

/// Starts a thread that does not end by a panic in silence.
fn start_thread(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let told = move || {
        // What it held is dropped with it, and nobody looks at it after.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            tasks::count_panic();
            tracing::error!(
                thread = name,
                "the kernel plane's thread ended by a panic: a mistake of Weir's own; packets go on as they did, and nothing changes that any more: restart Weir"
            );
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(told).map(drop).map_err(|error| error.to_string())
}
