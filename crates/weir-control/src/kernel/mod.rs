//! The kernel plane: the only writer of the tables by which the kernel forwards.
//!
//! [`KernelPlane`] is a plane like the proxy's: a publication stages a change on it and then applies it. A
//! separate thread ([`owner`]) holds the program and its maps, so that filling a table never delays a probe.
//! It follows changes of pools and of the host's interfaces and routes, and sweeps away flows that have
//! ended.

mod clock;
mod counted;
mod failures;
mod interfaces;
mod leaving;
mod owner;
mod served;
mod views;
mod vip_probes;
mod wanted;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use weir_config::{Config, Listener, Plane as Asked};
use weir_l4::explain::Packet;
use weir_l4::host::Host;
use weir_l4::layout::{BackendCounter, Counter, MOST_ENDPOINTS, Verdict};
use weir_l4::lock::DirectoryLock;
use weir_l4::ports::LocalPorts;
use weir_l4::program::{Sizes, is_left_behind, remove_left_behind};
use weir_proxy::events::Event;
use weir_state::Snapshot;
use weir_state::plane::{Bell, Next, Pending, Placement, Placements, Plane, StageError, StagedChange};

use crate::blocking::blocking;
use crate::events::Bus;
use crate::lock;
use owner::{Order, OwnDirectory, Owner};
pub use served::{Absent, Unanswered, Unheard, look_at_interfaces};
use views::Views;
pub use views::{Explanation, FlowFilter, FlowRow, Flows};
pub use vip_probes::{AskedPlaces, NotAsked, VipProbes, VipWay};
pub use weir_l4::probes::PassingProbe;

/// The state of the kernel plane at its last look.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Interfaces at whose ingress packets are taken.
    pub interfaces: Vec<String>,
    /// Interfaces at which packets should be taken but are not, and why.
    pub unattached: BTreeMap<String, String>,
    /// How often an interface was found without the program that had been attached to it.
    pub lost_attachments: u64,
    /// Numbers of what did not fit into the program's tables: addresses of this host, and interfaces into
    /// other namespaces.
    pub left_out: [usize; 2],
    /// Listeners, by name.
    pub listeners: BTreeMap<String, SeenListener>,
    /// Backends, by pool and address in use.
    pub backends: BTreeMap<(String, SocketAddr), SeenBackend>,
}

impl Seen {
    /// Names for the program's numbers.
    fn named(&self) -> Named<'_> {
        let (listeners, backends) = (self.listeners.iter(), self.backends.iter());
        Named {
            listeners: listeners.filter_map(|(name, seen)| Some((seen.number?, name.as_str()))).collect(),
            backends: backends
                .filter_map(|((pool, address), seen)| Some((seen.number?, (pool.as_str(), *address))))
                .collect(),
        }
    }
}

/// Names by numbers.
struct Named<'s> {
    listeners: HashMap<u32, &'s str>,
    /// Pool and address.
    backends: HashMap<u32, (&'s str, SocketAddr)>,
}

/// A listener in the kernel.
#[derive(Clone, Debug, Default)]
pub struct SeenListener {
    /// Its number in the program.
    pub number: Option<u32>,
    /// Flows in the table.
    pub flows: u64,
    /// Those of them that are not over.
    pub open: u64,
    /// Counts of its packets by verdict.
    pub verdicts: Vec<(Verdict, Counter)>,
    /// It has moved to the proxy plane: only packets of its existing flows are taken.
    pub is_leaving: bool,
    /// Interfaces that it names at which packets can't be taken.
    pub absent: Vec<Absent>,
    /// Backends whose answers bypass the plane.
    pub unanswered: Vec<Unanswered>,
}

/// A backend that gets packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeenBackend {
    /// Its number in the program.
    pub number: Option<u32>,
    /// Flows that have not ended.
    pub open: u64,
    /// Its address belongs to this host: it gets no packets, which would come back here.
    pub is_this_host: bool,
    /// Counts since the plane was set up.
    pub counted: BackendCounter,
}

/// The kernel plane of this process.
pub struct KernelPlane {
    /// The handle of the thread that owns the program; `None` until a listener has asked for it.
    owner: Mutex<Option<Arc<Handle>>>,
    placements: ArcSwap<Placements>,
    /// What the previous process handed over, until the first config is placed.
    given: Mutex<Option<Arc<DirectoryLock>>>,
    vip_probes: Arc<VipProbes>,
    bus: Arc<Bus>,
    reports: UnboundedSender<Event>,
}

/// The handle of the thread.
struct Handle {
    /// `None` once the thread has ended, so that nothing waits for an answer from it.
    orders: Mutex<Option<Vec<Order>>>,
    /// Those that wait until the kernel is up to date with the pools; `None` as above.
    waiting: Mutex<Option<Vec<oneshot::Sender<()>>>>,
    bell: Arc<Bell>,
    seen: ArcSwap<Seen>,
    views: Views,
    /// The lock on the plane's directory; gone once the thread has ended.
    lock: Weak<DirectoryLock>,
    vip_probes: Arc<VipProbes>,
    /// Another process is about to take over the plane.
    is_handing_over: AtomicBool,
}

impl Handle {
    fn new(lock: Weak<DirectoryLock>, vip_probes: Arc<VipProbes>) -> Handle {
        Handle {
            orders: Mutex::new(Some(Vec::new())),
            waiting: Mutex::new(Some(Vec::new())),
            bell: Arc::new(Bell::default()),
            seen: ArcSwap::default(),
            views: Views::default(),
            lock,
            vip_probes,
            is_handing_over: AtomicBool::new(false),
        }
    }

    /// Gives the thread an order. If the thread has ended, the order is dropped together with its reply
    /// channel.
    fn give(&self, order: Order) {
        if let Some(orders) = &mut *lock(&self.orders) {
            orders.push(order);
        }
        self.bell.ring();
    }

    /// The orders since the last call.
    fn take_orders(&self) -> Vec<Order> {
        lock(&self.orders).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The channels of those that wait for the kernel to follow; each is notified when its end is dropped.
    fn take_waiting(&self) -> Vec<oneshot::Sender<()>> {
        lock(&self.waiting).as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        lock(&self.orders).is_none()
    }
}

/// Held by the thread: records that it has ended, for whatever reason.
struct Ended(Arc<Handle>);

impl Drop for Ended {
    fn drop(&mut self) {
        *lock(&self.0.orders) = None;
        *lock(&self.0.waiting) = None;
    }
}

impl KernelPlane {
    /// Loads nothing until a listener asks for it. `reports` gets the ejections of backends; `given` is what
    /// the previous process has handed over of its plane.
    pub fn new(bus: Arc<Bus>, reports: UnboundedSender<Event>, given: Option<DirectoryLock>) -> KernelPlane {
        KernelPlane {
            owner: Mutex::default(),
            placements: ArcSwap::default(),
            given: Mutex::new(given.map(Arc::new)),
            vip_probes: Arc::default(),
            bus,
            reports,
        }
    }

    /// Decides the plane of each listener that is not fixed to the proxy plane; loads the program for the
    /// first that uses it.
    ///
    /// # Errors
    /// A listener must be in the kernel, and can't be.
    pub async fn place(&self, config: &Config) -> Result<Placements, StageError> {
        let directory = &config.kernel.directory;
        let given = lock(&self.given).clone();
        if let Some(given) = given.filter(|given| !given.is_of(directory)) {
            return Err(format!(
                "the process before has its kernel plane in {}, and `kernel.directory` is {} now: to change it takes a restart, USR2 is \
                 not enough",
                given.directory().display(),
                directory.display()
            )
            .into());
        }
        let mut placements = Placements::default();
        // Read for the first listener that asks: without one, Weir can run where /proc/sys is not visible.
        let mut ports = None;
        for listener in config.listeners.iter().filter(|listener| listener.plane != Asked::Proxy) {
            let obstacle = match config.kernel_obstacle(listener).or_else(|| obstacle_to_choice(listener)) {
                Some(obstacle) => Some(obstacle),
                None => match has_source_ports(listener, &mut ports) {
                    Err(why) => Some(why),
                    Ok(()) => self.load_for(config, listener).await.err(),
                },
            };
            let placement = match obstacle {
                None => Placement::Kernel,
                Some(why) if listener.plane == Asked::Auto => Placement::Proxy(why),
                Some(why) => {
                    return Err(
                        format!("listener `{}` can't be on the kernel plane: {why}", listener.name).into()
                    );
                }
            };
            placements.0.insert(listener.name.clone(), placement);
        }
        if self.handle().is_none() {
            self.take_over_or_remove(config).await;
        }
        *lock(&self.given) = None;
        Ok(placements)
    }

    /// Takes care of what an earlier process has left if no listener asks for the program. If that process
    /// was killed, or gives way to this one, flows of listeners that have moved continue; if there are no
    /// flows, the plane is removed. What belongs to another process is left alone.
    async fn take_over_or_remove(&self, config: &Config) {
        let directory = &config.kernel.directory;
        if !directory.is_dir() {
            return;
        }
        let held = match self.lock(directory) {
            Ok(held) => held,
            Err(error) => return tracing::debug!(%error, "what is pinned there is not looked at"),
        };
        if is_left_behind(directory)
            && let Err(error) = self.open(config, held, true).await
        {
            tracing::warn!(%error, "flows that an earlier process has left in the kernel are not taken over");
        }
        if self.handle().is_none() && remove_left_behind(directory) {
            tracing::warn!("took away a kernel plane that an earlier process had left behind");
        }
    }

    /// Locks the plane below a directory for this process.
    fn lock(&self, directory: &Path) -> Result<Arc<DirectoryLock>, weir_l4::program::Error> {
        match &*lock(&self.given) {
            Some(given) => Ok(given.clone()),
            None => DirectoryLock::acquire(directory).map(Arc::new),
        }
    }

    /// Loads what a listener needs, unless it is loaded.
    async fn load_for(&self, config: &Config, listener: &Listener) -> Result<(), String> {
        self.load(config).await?;
        let pool = config.pools.iter().find(|pool| Some(&pool.name) == listener.pool.as_ref());
        if pool.is_some_and(|pool| Config::asks_at_vip(pool, listener)) {
            let vip_probes = self.vip_probes.clone();
            return blocking(move || vip_probes.load()).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Loads the program unless it is loaded.
    async fn load(&self, config: &Config) -> Result<(), String> {
        // A thread that has panicked is replaced by another, which takes over the program.
        if self.handle().is_some_and(|handle| !handle.has_ended()) {
            return Ok(());
        }
        let held = self.lock(&config.kernel.directory).map_err(|error| error.to_string())?;
        self.open(config, held, false).await
    }

    /// Loads the program, on another thread: the verifier takes a tenth of a second and more. `for_flows`:
    /// only if an earlier process has left some flows.
    async fn open(&self, config: &Config, lock: Arc<DirectoryLock>, for_flows: bool) -> Result<(), String> {
        let handle = Arc::new(Handle::new(Arc::downgrade(&lock), self.vip_probes.clone()));
        let own = OwnDirectory { path: config.kernel.directory.clone(), sizes: sizes_for(config), lock };
        let (of_owner, bus, reports) = (handle.clone(), self.bus.clone(), self.reports.clone());
        let opened = blocking(move || {
            let mut owner = Owner::open(own.clone(), of_owner.clone(), bus, reports)?;
            if for_flows && !owner.has_flows()? {
                return Ok(false);
            }
            of_owner.views.open(owner.flow_tables()?, &own.path, own.sizes);
            owner.spawn().map(|()| true)
        });
        let opened: Result<bool, String> = opened.await.map_err(|error| error.to_string())?;
        if opened? {
            *self::lock(&self.owner) = Some(handle);
        }
        Ok(())
    }

    /// Which backends are probed at a listener's address, and how.
    pub fn vip_probes(&self) -> Arc<VipProbes> {
        self.vip_probes.clone()
    }

    fn handle(&self) -> Option<Arc<Handle>> {
        lock(&self.owner).clone()
    }

    /// The planes of the listeners that are not fixed to the proxy plane.
    pub fn placements(&self) -> Arc<Placements> {
        self.placements.load_full()
    }

    /// The state of the plane; `None` while it is not loaded.
    pub fn seen(&self) -> Option<Arc<Seen>> {
        self.handle().map(|handle| handle.seen.load_full())
    }

    /// Flows that have not ended.
    pub fn open_flows(&self) -> u64 {
        self.seen().map_or(0, |seen| seen.backends.values().map(|backend| backend.open).sum())
    }

    /// Flows of a backend that have not ended, by its pool and current address.
    pub fn open_flows_of(&self, pool: &str, address: SocketAddr) -> u32 {
        let open = self.seen().and_then(|seen| Some(seen.backends.get(&(pool.to_owned(), address))?.open));
        open.map_or(0, |open| u32::try_from(open).unwrap_or(u32::MAX))
    }

    /// The flows in the table.
    ///
    /// # Errors
    /// The filter is not understood, or the kernel does not answer.
    pub async fn flows(&self, filter: FlowFilter) -> Result<Flows, String> {
        let Some(handle) = self.handle() else { return Ok(Flows::default()) };
        let asked = blocking(move || handle.views.flows(&handle.seen.load(), &filter));
        asked.await.map_err(|error| error.to_string())?
    }

    /// What would happen to a packet, according to the program itself.
    pub async fn explain(&self, packet: Packet) -> Result<Explanation, String> {
        let handle = self.handle().ok_or("no listener is on the kernel plane")?;
        let asked = blocking(move || handle.views.explain(&handle.seen.load(), &packet));
        asked.await.map_err(|error| error.to_string())?
    }

    /// Takes no new flows, waits at most `limit` for the existing ones, and removes the plane. Returns the
    /// number of flows that were cut off.
    pub async fn drain(&self, limit: Duration) -> u64 {
        let Some(handle) = self.handle() else { return 0 };
        let (done, wait) = oneshot::channel();
        handle.give(Order::Drain { limit, done });
        wait.await.unwrap_or(0)
    }

    /// Undoes a first start that failed: what it loaded is removed, and what an earlier process had left is
    /// kept.
    pub async fn give_up(&self) {
        let Some(handle) = self.handle() else { return };
        let (done, wait) = oneshot::channel();
        handle.give(Order::GiveUp { done });
        let _ = wait.await;
    }

    /// What the next process needs to take over the plane; `None` if there is none. From now on that process
    /// is responsible for attachments, until it has ended or [`KernelPlane::cancel_hand_over`] is called.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn hand_over(&self) -> io::Result<Option<OwnedFd>> {
        let Some(handle) = self.handle() else { return Ok(None) };
        let Some(held) = handle.lock.upgrade() else { return Ok(None) };
        let given = held.duplicate()?;
        handle.is_handing_over.store(true, Ordering::Release);
        Ok(Some(given))
    }

    /// Call this if the other process failed to start.
    pub fn cancel_hand_over(&self) {
        if let Some(handle) = self.handle() {
            handle.is_handing_over.store(false, Ordering::Release);
        }
    }

    /// Leaves everything as it is, for the next process.
    pub fn leave(&self) {
        if let Some(handle) = lock(&self.owner).take() {
            handle.give(Order::Leave);
        }
    }

    /// Waits until the kernel uses the current state of the pools' backends. During a sweep that may take as
    /// long as a look at some thousand flows.
    pub async fn follows(&self) {
        let Some(handle) = self.handle() else { return };
        let (done, wait) = oneshot::channel();
        if let Some(waiting) = &mut *lock(&handle.waiting) {
            waiting.push(done);
        }
        handle.bell.ring();
        // Nothing is ever sent; the channel is closed when it is done.
        let _ = wait.await;
    }

    async fn apply(
        &self,
        snapshot: Arc<Snapshot>,
        placements: Placements,
        is_of_one_pool: bool,
    ) -> io::Result<()> {
        self.vip_probes.serve(&snapshot, &placements);
        let Some(handle) = self.handle() else {
            self.placements.store(Arc::new(placements));
            return Ok(());
        };
        let (done, wait) = oneshot::channel();
        handle.give(Order::Serve {
            snapshot: snapshot.clone(),
            placements: placements.clone(),
            is_of_one_pool,
            done,
        });
        let applied = wait.await.map_err(|_| io::Error::other("the thread of the kernel plane has ended"))?;
        applied.map_err(io::Error::other)?;
        leaving::handshakes_end(&snapshot, &self.placements.load(), &placements).await;
        self.placements.store(Arc::new(placements));
        Ok(())
    }
}

/// Whether source ports are left for packets of a listener; `Err` says why not. Those of this host are read
/// for the first listener that asks.
fn has_source_ports(listener: &Listener, of_host: &mut Option<LocalPorts>) -> Result<(), String> {
    let ports = match of_host.take() {
        Some(ports) => ports,
        None => wanted::local_ports()?,
    };
    let found = wanted::source_ports(listener, of_host.insert(ports));
    found.map(drop).map_err(|taken| taken.to_string())
}

/// Why a listener that allows either plane can't be in the kernel on this host.
fn obstacle_to_choice(listener: &Listener) -> Option<String> {
    if listener.plane != Asked::Auto || listener.interfaces.is_empty() {
        return None;
    }
    // If the kernel does not list its interfaces it has no program either, and that is reported when it is
    // asked.
    served::obstacle_of_host(listener, &Host::read().ok()?)
}

/// Table sizes for a config, with room to grow, since maps can't grow.
fn sizes_for(config: &Config) -> Sizes {
    let room = |count: usize, least: u32| (count as u32).saturating_mul(4).clamp(least, 1 << 16);
    let backends: usize = config.pools.iter().map(|pool| pool.backends.len()).sum();
    let lists = config.listeners.iter().map(|listener| &listener.client_screen);
    // One more, for everything else.
    let networks: usize = lists.map(|lists| lists.allow.len() + lists.deny.len() + 1).sum();
    Sizes {
        // Two entries for each flow.
        flows: config.kernel.flows.saturating_mul(2),
        pools: (config.pools.len() as u32).saturating_mul(2).clamp(16, 4_096),
        backends: room(backends, 1_024).min(65_535),
        // Their memory is allocated when they are added.
        endpoints: MOST_ENDPOINTS,
        listeners: room(config.listeners.len(), 256),
        networks: networks.saturating_mul(4).clamp(4_096, 1 << 20) as u32,
    }
}

impl Plane for KernelPlane {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn stage<'p>(&'p self, next: Next<'p>) -> Pending<'p, Result<Box<dyn StagedChange + 'p>, StageError>> {
        Box::pin(async move {
            let before = Placements::clone(&self.placements.load());
            let (placements, is_of_one_pool) = match next {
                Next::Config(_, placements) => (placements.clone(), false),
                Next::Pool(_) => (before.clone(), true),
            };
            Ok(Box::new(Change { plane: self, placements, before, is_of_one_pool }) as Box<dyn StagedChange>)
        })
    }
}

/// A change to another snapshot.
struct Change<'p> {
    plane: &'p KernelPlane,
    placements: Placements,
    before: Placements,
    is_of_one_pool: bool,
}

impl StagedChange for Change<'_> {
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(self.plane.apply(snapshot.clone(), self.placements.clone(), self.is_of_one_pool))
    }

    fn put_back<'s>(&'s mut self, before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>> {
        Box::pin(self.plane.apply(before.clone(), self.before.clone(), self.is_of_one_pool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_thread_that_ends_hears_that_it_has() {
        let handle = Arc::new(Handle::new(Weak::new(), Arc::default()));
        let order = || {
            let (done, wait) = oneshot::channel();
            handle.give(Order::GiveUp { done });
            wait
        };
        let before = order();
        let thread = std::thread::spawn({
            let ended = Ended(handle.clone());
            move || {
                let _ended = ended;
                panic!("on purpose");
            }
        });
        assert!(thread.join().is_err());
        assert!(before.blocking_recv().is_err());
        assert!(order().blocking_recv().is_err());
        assert!(handle.has_ended());
    }
}
