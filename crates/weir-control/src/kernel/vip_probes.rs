//! Probes that reach backends at a listener's address, on the path of its clients' packets: which backends
//! are probed in this way, and the kernel program for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustix::io::Errno;
use tokio::net::TcpStream;
use weir_config::{Bind, Config, Forward, Listener};
use weir_io::local_end::{LocalEnd, connect, open_alone};
use weir_l4::host::Host;
use weir_l4::probes::{PassingProbe, ProbePassage, ProbePassages, ProbeProgram};
use weir_l4::program::Program;
use weir_state::Snapshot;
use weir_state::plane::Placements;

use super::clock::monotonic;
use super::owner::Owner;
use crate::lock;

/// How long the program still rewrites a probe's packets after the time limit; without a limit they would be
/// rewritten for ever if this process were killed.
const GRACE: Duration = Duration::from_secs(5);

/// How long the program stays attached when nothing is probed in this way any more: probes that are under way
/// then can end first.
const UNUSED: Duration = Duration::from_secs(2);

/// Least time before the program is attached again because the packets of a probe were not rewritten: if that
/// does not help, it is not repeated for each probe.
const ATTACH_PAUSE: Duration = Duration::from_secs(60);

/// Largest TCP segment that fits on any IPv6 link inside an outer header: 1280 - 40 - 40 - 20.
const MOST_OF_A_SEGMENT: u32 = 1180;

/// The path of clients' packets to the backends of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipWay {
    /// The listener's address.
    pub vip: IpAddr,
    /// Which of the two forwarding methods by which backends answer directly.
    pub forward: Forward,
    /// The source of outer packets, if configured for the listener.
    pub source: Option<IpAddr>,
}

/// Shown after "at VIP 192.0.2.1:80".
impl fmt::Display for VipWay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.forward {
            Forward::Ipip => "through the tunnel",
            _ => "by its MAC address",
        })
    }
}

/// The addresses at which a pool's backends are probed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AskedPlaces {
    /// Listener addresses (VIPs); empty if backends are probed only at their own addresses.
    pub ways: Vec<VipWay>,
    /// Whether they are also probed at their own addresses, because the pool is also used by a listener whose
    /// clients reach backends there.
    pub and_own: bool,
}

/// Nothing was asked, for a reason that is not the backend's.
#[derive(Debug)]
pub struct NotAsked(String);

impl fmt::Display for NotAsked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for NotAsked {}

impl NotAsked {
    /// Whether this is the cause of an error of [`VipProbes::connect`].
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<NotAsked>())
    }
}

fn not_asked(why: impl Into<String>) -> io::Error {
    io::Error::other(NotAsked(why.into()))
}

/// Shared by the kernel plane's thread and the probes.
#[derive(Default)]
pub struct VipProbes {
    /// `None` while nothing is probed in this way.
    program: Mutex<Option<ProbeProgram>>,
    passages: ArcSwap<Option<Arc<ProbePassages>>>,
    /// By pool.
    asked: ArcSwap<BTreeMap<String, AskedPlaces>>,
    /// A probe has left unchanged: an interface does not run the program.
    is_missed: AtomicBool,
    /// When it was last attached again for that reason.
    attached_anew: Mutex<Option<Instant>>,
    /// Since when nothing has been probed in this way.
    unused_since: Mutex<Option<Instant>>,
}

impl VipProbes {
    /// Loads the program unless it is loaded. Takes as long as the verifier needs.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub(super) fn load(&self) -> Result<(), String> {
        let mut held = lock(&self.program);
        if held.is_none() {
            let program = ProbeProgram::load().map_err(|error| {
                format!("backends can't be asked at the listener's address: {error}; `health.at = \"backend\"` asks at their own")
            })?;
            self.passages.store(Arc::new(Some(program.passages())));
            *held = Some(program);
        }
        Ok(())
    }

    /// Probes backends on the paths of this snapshot from now on.
    pub(super) fn serve(&self, snapshot: &Snapshot, placements: &Placements) {
        let ways = ways(snapshot, placements);
        let others = if ways.is_empty() { BTreeSet::new() } else { used_otherwise(snapshot, placements) };
        let of = |(pool, ways): (String, Vec<VipWay>)| {
            let and_own = others.contains(&pool);
            (pool, AskedPlaces { ways, and_own })
        };
        self.asked.store(Arc::new(ways.into_iter().map(of).collect()));
    }

    /// Removes the program.
    pub(super) fn remove(&self) {
        self.is_missed.store(false, Ordering::Release);
        self.passages.store(Arc::default());
        *lock(&self.program) = None;
    }

    /// Leaves the attachments to the next process.
    pub(super) fn leave(&self) {
        if let Some(program) = &mut *lock(&self.program) {
            program.leave();
        }
    }

    /// The addresses at which the backend of `pool` with this own address is probed.
    pub fn places_of(&self, pool: &str, address: IpAddr) -> AskedPlaces {
        let is_ipv4 = address.to_canonical().is_ipv4();
        let mut asked = self.asked.load().get(pool).cloned().unwrap_or_default();
        asked.ways.retain(|way| way.vip.is_ipv4() == is_ipv4);
        asked
    }

    /// Connects to `to` on a path, with the same port, from where a pool's connections leave; ends within
    /// `limit`. The connection uses that path as long as the second value is kept.
    ///
    /// # Errors
    /// It was not accepted, or no probe could be made ([`NotAsked`]).
    pub async fn connect(
        &self,
        way: &VipWay,
        local_end: &LocalEnd,
        to: SocketAddr,
        limit: Duration,
    ) -> io::Result<(TcpStream, PassingProbe)> {
        let passages = Option::clone(&self.passages.load());
        let Some(passages) = passages else { return Err(not_asked("the kernel plane has ended")) };
        let is_wrapped = way.forward == Forward::Ipip;
        let opened = open_alone(local_end, to, is_wrapped.then_some(MOST_OF_A_SEGMENT));
        let (socket, here) = opened.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => not_asked("all local ports are in use"),
            _ => error,
        })?;
        if here.ip().to_canonical() == way.vip {
            return Err(not_asked(format!(
                "{} is the only address of this host that leads to {}: it needs another to be answered at",
                way.vip,
                to.ip()
            )));
        }
        let source = way.source.or_else(|| Host::source_to(to.ip()));
        let passage = ProbePassage {
            here,
            backend: to,
            vip: way.vip,
            // The same as for clients' packets, wherever the pool's own connections leave from.
            outer_source: is_wrapped.then(|| source.unwrap_or(here.ip())),
            until: monotonic() + limit + GRACE,
        };
        let begun = passages.begin(&passage);
        let passing =
            begun.map_err(|error| not_asked(format!("the kernel plane takes no more probes: {error}")))?;
        match connect(socket, to).await {
            Ok(stream) if passing.has_left() => Ok((stream, passing)),
            Err(error) if passing.has_left() || error.kind() != io::ErrorKind::ConnectionRefused => {
                Err(named(error, is_wrapped))
            }
            // The answer came from the backend's own address.
            Ok(_) | Err(_) => {
                self.is_missed.store(true, Ordering::Release);
                Err(not_asked(format!(
                    "it left for {} unchanged: no program for probes is at that interface, or a rule of this host changed its source",
                    to.ip()
                )))
            }
        }
    }
}

/// Explains the error if the backend's kernel answered an encapsulated packet by the ICMP message that it
/// does not support this protocol (RFC 792; RFC 4443 §3.4).
fn named(error: io::Error, is_wrapped: bool) -> io::Error {
    let unknown = [Errno::NOPROTOOPT, Errno::PROTO].map(Errno::raw_os_error);
    match error.raw_os_error() {
        Some(number) if is_wrapped && unknown.contains(&number) => {
            io::Error::new(error.kind(), "nothing there takes outer headers off")
        }
        _ => error,
    }
}

/// The ways of all pools whose backends are asked at a listener's address.
fn ways(snapshot: &Snapshot, placements: &Placements) -> BTreeMap<String, Vec<VipWay>> {
    let mut found: BTreeMap<String, Vec<VipWay>> = BTreeMap::new();
    for listener in snapshot.listeners.iter().map(|one| &*one.config) {
        let pool = listener.pool.as_ref().and_then(|name| snapshot.pool(name));
        let Some(pool) = pool.filter(|_| placements.is_in_kernel(&listener.name)) else { continue };
        if !Config::asks_at_vip(&pool.config, listener) {
            continue;
        }
        let of_pool = found.entry(pool.config.name.clone()).or_default();
        for vip in listener.bind.iter().filter_map(Bind::inet).map(|bind| bind.first.ip().to_canonical()) {
            let sources = listener.source_addresses.iter().map(IpAddr::to_canonical);
            let source = sources.filter(|_| listener.forward == Forward::Ipip);
            let source = source.into_iter().find(|source| source.is_ipv4() == vip.is_ipv4());
            of_pool.push(VipWay { vip, forward: listener.forward, source });
        }
        of_pool.sort();
        of_pool.dedup();
    }
    found
}

/// Pools used by a listener whose clients reach backends at the backends' own addresses.
fn used_otherwise(snapshot: &Snapshot, placements: &Placements) -> BTreeSet<String> {
    let is_answered_past = |listener: &Listener| {
        placements.is_in_kernel(&listener.name) && matches!(listener.forward, Forward::Dsr | Forward::Ipip)
    };
    snapshot.config.pools_used_by(|listener| !is_answered_past(listener))
}

impl Owner {
    /// Attaches the program for probes at listeners' addresses, if there are any, to all interfaces that
    /// routes lead out through, since answers may arrive at any of them.
    ///
    /// # Errors
    /// It failed for some interface; all others were attached.
    pub(super) fn attach_probes(&mut self) -> Result<(), String> {
        let Some((snapshot, placements)) = &self.serving else { return Ok(()) };
        let shared = self.handle.vip_probes.clone();
        let ways = ways(snapshot, placements);
        if ways.is_empty() {
            lock(&shared.unused_since).get_or_insert_with(Instant::now);
            return Ok(());
        }
        // If only another routing table leads to a backend, the interface is found by the source address
        // chosen for it.
        let asked = snapshot.pools.iter().filter(|pool| ways.contains_key(&pool.config.name));
        let asked = asked.flat_map(|pool| &pool.backends).filter_map(|backend| backend.resolved.address());
        let sources: BTreeSet<IpAddr> = asked.filter_map(|at| Host::source_to(at.ip())).collect();
        *lock(&shared.unused_since) = None;
        shared.load()?;
        let mut wanted = self.host.routed_interfaces();
        wanted.extend(self.host.interfaces_with(|address| sources.contains(&address)));
        wanted.extend(self.kernel.program().interfaces().map(str::to_owned));
        // If the program vanished without notice, the probes themselves discover it.
        let is_missed = shared.is_missed.swap(false, Ordering::AcqRel);
        let mut held = lock(&shared.program);
        let Some(program) = &mut *held else { return Ok(()) };
        let gone: Vec<String> =
            program.interfaces().filter(|name| !wanted.contains(*name)).map(str::to_owned).collect();
        gone.iter().for_each(|name| program.detach(name));
        let mut result = Ok(());
        for name in &wanted {
            let Some(index) = self.host.index_of(name) else { continue };
            if is_missed || !program.is_at(name, index) {
                attach_one(program, (name, index), self.kernel.program(), &mut result);
            }
        }
        result
    }

    /// As [`Owner::attach_probes`], when a probe was not rewritten; removes the program if it was not used
    /// for a while.
    pub(super) fn look_at_probes(&mut self) {
        let shared = self.handle.vip_probes.clone();
        let unused_since = *lock(&shared.unused_since);
        if let Some(since) = unused_since {
            if since.elapsed() >= UNUSED {
                shared.remove();
            }
            return;
        }
        let is_handing_over = self.handle.is_handing_over.load(Ordering::Acquire);
        let mut last = lock(&shared.attached_anew);
        let is_due = last.is_none_or(|last| last.elapsed() >= ATTACH_PAUSE);
        if !is_handing_over && is_due && shared.is_missed.load(Ordering::Acquire) {
            *last = Some(Instant::now());
            match self.attach_probes() {
                Ok(()) => {
                    tracing::warn!(
                        "probes at listeners' addresses are attached anew: one has left unchanged"
                    );
                }
                Err(error) => tracing::error!(%error, "probes can't go by listeners' addresses"),
            }
        }
    }
}

fn attach_one(
    program: &mut ProbeProgram,
    (name, index): (&str, u32),
    plane: &mut Program,
    result: &mut Result<(), String>,
) {
    if let Err(error) = program.attach(name, index, plane) {
        *result = Err(format!("probes can't go by listeners' addresses: {error}"));
    }
}
