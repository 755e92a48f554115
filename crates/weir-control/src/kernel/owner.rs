//! The thread that owns the program in the kernel: it executes orders, and follows pools, interfaces and
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

/// Pause between two sweeps; longer if sweeps would take more than a twentieth of the time.
const SWEEP: Duration = Duration::from_secs(1);
/// Longest pause between two looks at what backends refuse.
const GLANCE: Duration = Duration::from_millis(100);
/// The same as [`SWEEP`] while the process drains, since something waits for the last flow.
const SWEEP_TO_END: Duration = Duration::from_millis(200);
/// Idle time of a flow whose listener was removed.
const IDLE_OF_THE_GONE: Duration = Duration::from_secs(60);

/// Orders to the thread.
pub(super) enum Order {
    /// Forward what this snapshot says.
    Serve {
        /// What is in force.
        snapshot: Arc<Snapshot>,
        /// Which listeners are in the kernel.
        placements: Placements,
        /// Whether an operator has changed a pool: flows to a backend that was removed from it continue.
        is_of_one_pool: bool,
        /// Receives the result.
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Take no new flows, wait for the others, remove everything, and end.
    Drain {
        /// Longest wait.
        limit: Duration,
        /// Receives the number of flows that were cut off.
        done: oneshot::Sender<u64>,
    },
    /// End, and remove what was not there before.
    GiveUp {
        /// Notified when it is done.
        done: oneshot::Sender<()>,
    },
    /// End, and leave everything to the next process.
    Leave,
}

/// Where the program is pinned, and its table sizes.
#[derive(Clone)]
pub(super) struct OwnDirectory {
    pub(super) path: PathBuf,
    pub(super) sizes: Sizes,
    pub(super) lock: Arc<DirectoryLock>,
}

/// The program, and the state needed to maintain it.
pub(super) struct Owner {
    pub(super) kernel: Kernel,
    tables: Arc<FlowTables>,
    directory: PathBuf,
    pub(super) handle: Arc<Handle>,
    pub(super) bus: Arc<Bus>,
    pub(super) host: Host,
    watched: Arc<HostWatch>,
    pub(super) serving: Option<(Arc<Snapshot>, Placements)>,
    /// Ports that this host assigns to other sockets, as of the last snapshot.
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
    /// The lock on the directory, held until this thread ends.
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
        // Opened before the first look, so that no change in between is missed.
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

    /// Whether an earlier process has left flows that are still in use.
    pub(super) fn has_flows(&self) -> Result<bool, String> {
        let idle = |_| IDLE_OF_OTHERS;
        let swept = self.tables.sweep(monotonic(), &idle, &mut || {}).map_err(|error| error.to_string())?;
        Ok(swept.by_backend.values().any(|flows| *flows > 0))
    }

    /// Another handle to the flow tables.
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
                        // Comes last, since the process ends when it gets this.
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

    /// Looks for backends that refuse connections or do not answer.
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

    /// Time until the next sweep.
    fn pause(&self, period: Duration) -> Duration {
        period.max(self.sweep_took * 20).saturating_sub(self.swept_at.elapsed())
    }

    /// Forwards according to a snapshot, and registers to be notified when its backends change state.
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
        // Not earlier, so that packets are taken by a program at all times.
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

    /// Logs once for each backend that is this host, whenever such an address appears or disappears.
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

    /// Returns whether this changed anything.
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
        // Taken before anything is looked at; dropping it notifies those that wait.
        let _waiting = self.handle.take_waiting();
        let Some((snapshot, placements)) = self.serving.clone() else { return };
        if self.watched.anything.swap(false, Ordering::AcqRel) {
            match Host::read() {
                Ok(host) => self.host = host,
                Err(error) => tracing::error!(%error, "the host's interfaces could not be read"),
            }
            // The interfaces that lead to backends may have changed.
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

    /// Removes flows that have ended, and reads the kernel's counters.
    fn sweep(&mut self) {
        let begun = Instant::now();
        let idle = self.idle_times();
        let now = monotonic();
        let of = |number: u32| idle.get(&number).copied().unwrap_or(IDLE_OF_THE_GONE);
        let (tables, bell) = (self.tables.clone(), self.handle.bell.clone());
        let mut has_rung = false;
        // A million flows take most of a second, and the failover of a backend must not wait for that.
        let swept = tables.sweep(now, &of, &mut || {
            if bell.wait(Duration::ZERO) {
                has_rung = true;
                self.follow();
            }
        });
        if has_rung {
            // There may also be orders, which wait until the sweep is done.
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

    /// Removes what is kept for listeners that left, once they have no flows any more.
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

    /// Publishes what the kernel counts, and adds it to the counters of listeners and backends, which both
    /// planes share.
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

    /// Gives no backend a new flow, and waits for the existing ones.
    fn drain(&mut self, limit: Duration) -> u64 {
        let begun = Instant::now();
        // Set for later updates as well: pools and the host change while flows end.
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

/// Logs if the tables of an earlier process have another size than configured, since they can't grow.
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

/// Starts the thread that listens for changes.
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

/// Starts a thread whose panic is logged and counted.
fn start_thread(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let told = move || {
        // What it held is dropped with it, and not used afterwards.
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
