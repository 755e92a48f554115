//! One address in one pool: its live state, shared by all workers and kept across reloads.

use crate::admin::AdminState;
use crate::agent::{AgentCell, AgentSays};
use crate::failures::FailureLog;
use crate::latency::PeakEwma;
use crate::moment::{NEVER, moment, nanoseconds};
use crate::role::Role;
use crate::slow_start::FULL_PERCENT;
use crate::stable_hash::stable_hash;
use crate::trial::Trials;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The largest weight a backend may have, as in the config file.
pub const MAX_WEIGHT: u32 = 256;

/// Means "no `max_connections`" in the atomics, so that the hot path needs only one comparison.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// `load` holds the requests in flight in its low bits and the picks ever made above them: one atomic
/// addition counts both. 2^24 in flight is beyond what one machine's file descriptors allow; 2^40 picks last
/// 127 days at 100,000 per second and then wrap.
const IN_FLIGHT_BITS: u32 = 24;
const IN_FLIGHT_MASK: u64 = (1 << IN_FLIGHT_BITS) - 1;
const ONE_PICK: u64 = (1 << IN_FLIGHT_BITS) + 1;

/// What probes say about a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// No verdict yet. The backend counts as up or down as [`BackendSettings::assumed_up`] says.
    Unknown,
    /// The last verdict was good.
    Up,
    /// The last verdict was bad.
    Down,
}

/// What the config says about one backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendSettings {
    /// Share of the work, 0..=[`MAX_WEIGHT`]. 0 takes no new work but serves sticky sessions.
    pub weight: u32,
    /// Used only while no ordinary backend is eligible.
    pub backup: bool,
    /// Most requests (HTTP) or connections (TCP) in flight at once over all workers; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Whether it counts as up before the first probe's verdict.
    pub assumed_up: bool,
    /// The role, if the config fixes it. `None`: the role set by [`Backend::set_role`] applies.
    pub role: Option<Role>,
}

impl Default for BackendSettings {
    fn default() -> Self {
        BackendSettings { weight: 1, backup: false, max_connections: None, assumed_up: true, role: None }
    }
}

/// A weight above [`MAX_WEIGHT`] was requested; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightTooLarge {
    /// The requested weight.
    pub weight: u32,
}

impl std::fmt::Display for WeightTooLarge {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "weight {} is too large, expected 0 to {MAX_WEIGHT}", self.weight)
    }
}

impl std::error::Error for WeightTooLarge {}

/// One backend: its address as configured and everything about it that changes while Weir runs.
///
/// It lives in an `Arc` that outlives a reload ([`Pool::rebuilt`](crate::Pool::rebuilt)), so a reload keeps
/// counts, health and latency.
#[derive(Debug)]
pub struct Backend {
    hot: Hot,
    address: String,
    id: u64,
    agent: AgentCell,
    /// The configured limit; the limit in force is in [`Hot`].
    configured_limit: AtomicU32,
    weight: AtomicU32,
    backup: AtomicBool,
    assumed_up: AtomicBool,
    admin: AtomicU8,
    /// Whether the name it came from no longer resolves to it.
    leaving: AtomicBool,
    health: AtomicU8,
    /// Whether the last failed probe failed only because the answer did not come in time.
    late: AtomicBool,
    /// The role fixed by the config, as [`Role::code`].
    fixed_role: AtomicU8,
    /// The role found by monitoring, as [`Role::code`].
    found_role: AtomicU8,
    trials: Trials,
    /// Nanoseconds; [`NEVER`] when not in slow start.
    ramp_started: AtomicU64,
    /// Nanoseconds; [`NEVER`] when not ejected.
    ejected_until: AtomicU64,
    /// When the operator took it out of service, in nanoseconds; [`NEVER`] while it takes work.
    taken_out_at: AtomicU64,
    /// When it was removed from its pool, in nanoseconds; [`NEVER`] while it is in one.
    left_at: AtomicU64,
    failures: Mutex<FailureLog>,
}

/// The fields that every pick touches, on cache lines of their own: two lines, because x86 fetches them in
/// pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Hot {
    load: AtomicU64,
    max_connections: AtomicU32,
    ramp_percent: AtomicU32,
    latency: PeakEwma,
}

impl Backend {
    /// A new backend: ready, idle and not yet probed. A weight above [`MAX_WEIGHT`] is taken as
    /// [`MAX_WEIGHT`].
    pub fn new(address: impl Into<String>, settings: BackendSettings) -> Backend {
        let address = address.into();
        Backend {
            id: stable_hash(address.as_bytes()),
            address,
            hot: Hot {
                load: AtomicU64::new(0),
                max_connections: AtomicU32::new(settings.max_connections.unwrap_or(UNLIMITED)),
                ramp_percent: AtomicU32::new(FULL_PERCENT),
                latency: PeakEwma::default(),
            },
            agent: AgentCell::default(),
            configured_limit: AtomicU32::new(settings.max_connections.unwrap_or(UNLIMITED)),
            weight: AtomicU32::new(settings.weight.min(MAX_WEIGHT)),
            backup: AtomicBool::new(settings.backup),
            assumed_up: AtomicBool::new(settings.assumed_up),
            admin: AtomicU8::new(AdminState::Ready as u8),
            leaving: AtomicBool::new(false),
            health: AtomicU8::new(Health::Unknown as u8),
            late: AtomicBool::new(false),
            fixed_role: AtomicU8::new(Role::code(settings.role)),
            found_role: AtomicU8::new(Role::code(None)),
            trials: Trials::default(),
            ramp_started: AtomicU64::new(NEVER),
            ejected_until: AtomicU64::new(NEVER),
            taken_out_at: AtomicU64::new(NEVER),
            left_at: AtomicU64::new(NEVER),
            failures: Mutex::new(FailureLog::default()),
        }
    }

    /// Applies the settings of a new config; live state (health, role, in flight, admin state, latency)
    /// stays. Limits take effect at once, the rest at the next refresh.
    pub fn reconfigure(&self, settings: BackendSettings) {
        self.weight.store(settings.weight.min(MAX_WEIGHT), Ordering::Relaxed);
        self.backup.store(settings.backup, Ordering::Relaxed);
        self.assumed_up.store(settings.assumed_up, Ordering::Relaxed);
        self.fixed_role.store(Role::code(settings.role), Ordering::Relaxed);
        self.set_max_connections(settings.max_connections);
    }

    /// The current values of the settings that [`Self::reconfigure`] changes.
    pub fn settings(&self) -> BackendSettings {
        BackendSettings {
            weight: self.weight(),
            backup: self.is_backup(),
            max_connections: limit_of(self.configured_limit.load(Ordering::Relaxed)),
            assumed_up: self.is_assumed_up(),
            role: Role::of_code(self.fixed_role.load(Ordering::Relaxed)),
        }
    }

    /// Its role: the one the config fixes, otherwise the one found by monitoring. `None` while the role is
    /// unknown, and for a server that neither takes writes nor has a copy fit to read from.
    pub fn role(&self) -> Option<Role> {
        let fixed = Role::of_code(self.fixed_role.load(Ordering::Relaxed));
        fixed.or_else(|| Role::of_code(self.found_role.load(Ordering::Relaxed)))
    }

    /// Sets the role found by monitoring; takes effect at the pool's next refresh. When a role passes from
    /// one backend to another, [`Pool::set_roles`](crate::Pool::set_roles) makes sure that no pick sees both
    /// in it at once.
    pub fn set_role(&self, role: Option<Role>) {
        self.found_role.store(Role::code(role), Ordering::Relaxed);
    }

    /// The address as written in the config.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A number that identifies this address in sticky cookies, the ring and Maglev. It is a hash of the
    /// address, so it depends neither on the order in the file nor on the process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The configured weight, before slow start; 0..=[`MAX_WEIGHT`].
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Changes the weight; takes effect at the pool's next refresh.
    pub fn set_weight(&self, weight: u32) -> Result<(), WeightTooLarge> {
        if weight > MAX_WEIGHT {
            return Err(WeightTooLarge { weight });
        }
        self.weight.store(weight, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it serves only while no ordinary backend is eligible.
    pub fn is_backup(&self) -> bool {
        self.backup.load(Ordering::Relaxed)
    }

    /// The limit of requests in flight (count) in force, before slow start: the agent's, otherwise the
    /// configured one. `None`: no limit.
    pub fn max_connections(&self) -> Option<u32> {
        limit_of(self.hot.max_connections.load(Ordering::Relaxed))
    }

    /// Changes the configured limit; takes effect at the next pick unless the agent has set another. Requests
    /// in flight above a lowered limit run on.
    pub fn set_max_connections(&self, limit: Option<u32>) {
        self.configured_limit.store(limit.unwrap_or(UNLIMITED), Ordering::Relaxed);
        self.apply_limit();
    }

    fn apply_limit(&self) {
        let configured = self.configured_limit.load(Ordering::Relaxed);
        let limit = self.agent.says().max_connections.unwrap_or(configured);
        self.hot.max_connections.store(limit, Ordering::Relaxed);
    }

    /// Requests or connections in flight now (count), over all workers and pools that share this cell.
    pub fn in_flight(&self) -> u32 {
        (self.hot.load.load(Ordering::SeqCst) & IN_FLIGHT_MASK) as u32
    }

    /// Picks ever made (count); wraps at 2^40.
    pub fn picks(&self) -> u64 {
        self.hot.load.load(Ordering::Relaxed) >> IN_FLIGHT_BITS
    }

    /// Counts picks that another plane made from this pool's tables; failures are weighed against them.
    pub fn note_picks(&self, count: u64) {
        self.hot.load.fetch_add(count << IN_FLIGHT_BITS, Ordering::Relaxed);
    }

    /// The state that the operator has set.
    pub fn admin_state(&self) -> AdminState {
        AdminState::of_code(self.admin.load(Ordering::Relaxed))
    }

    /// The stricter of the operator's and the agent's states.
    pub fn admin_in_force(&self) -> AdminState {
        self.admin_state().max(self.agent.says().admin)
    }

    /// What the agent reports; the default if the backend has no agent.
    pub fn agent(&self) -> AgentSays {
        self.agent.says()
    }

    /// Stores what the agent reports. Its limit takes effect at the next pick, the rest at the pool's next
    /// refresh. Coming back from down or maintenance begins slow start.
    pub fn set_agent(&self, says: &AgentSays, now: Duration) {
        let before = self.agent.set(says, now);
        self.apply_limit();
        let was_out = before.admin == AdminState::Maintenance && says.admin == AdminState::Ready;
        if was_out || before.is_down && !says.is_down {
            self.begin_slow_start(now);
        }
    }

    /// Changes the operator's state; takes effect at the pool's next refresh. Leaving maintenance begins slow
    /// start; leaving drain does not, since a drained backend stayed warm.
    pub fn set_admin_state(&self, state: AdminState, now: Duration) {
        let before = self.admin.swap(state as u8, Ordering::Relaxed);
        if state == AdminState::Ready {
            self.taken_out_at.store(NEVER, Ordering::Relaxed);
        } else if before == AdminState::Ready as u8 {
            self.taken_out_at.store(nanoseconds(now), Ordering::Relaxed);
        }
        if before == AdminState::Maintenance as u8 && state == AdminState::Ready {
            self.begin_slow_start(now);
        }
    }

    /// Whether the name it came from no longer resolves to it, so that it takes no new work.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Sets whether the name it came from no longer resolves to it; takes effect at the pool's next refresh.
    /// The operator's state stays as it is.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Relaxed);
    }

    /// Records at `now` whether the backend has been removed from its pool.
    pub fn set_left(&self, has_left: bool, now: Duration) {
        match has_left {
            false => self.left_at.store(NEVER, Ordering::Relaxed),
            // Repeating the call must not move the time of removal forward.
            true => drop(self.left_at.fetch_min(nanoseconds(now), Ordering::Relaxed)),
        }
    }

    /// Whether it has been removed from its pool, so that state kept for it is of no further use.
    pub fn has_left(&self) -> bool {
        self.left_at.load(Ordering::Relaxed) != NEVER
    }

    /// Since when it has been on its way out: taken out by the operator or its agent, or removed from its
    /// pool. `None` while it stays. For callers that can move their work to another backend.
    pub fn leaving_since(&self) -> Option<Duration> {
        let (out, left) = (&self.taken_out_at, &self.left_at);
        let out = out.load(Ordering::Relaxed).min(self.agent.taken_out_at());
        moment(out.min(left.load(Ordering::Relaxed)))
    }

    /// Whether the backend accepted the last failed probe and merely did not answer in time.
    pub fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Records whether the last probe failed only by lateness; takes effect at the pool's next refresh.
    pub fn set_late(&self, late: bool) {
        self.late.store(late, Ordering::Relaxed);
    }

    pub(crate) fn trials(&self) -> &Trials {
        &self.trials
    }

    /// The verdict of the probes.
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            0 => Health::Unknown,
            1 => Health::Up,
            _ => Health::Down,
        }
    }

    /// Stores a probe verdict; takes effect at the pool's next refresh. Slow start begins when a backend
    /// comes up after being down, and when the first verdict brings up a backend that was not assumed up. A
    /// first verdict about a backend that was assumed up begins none, or every start of Weir would throttle
    /// all backends at once.
    pub fn set_health(&self, health: Health, now: Duration) {
        let before = self.health.swap(health as u8, Ordering::Relaxed);
        let was_down =
            before == Health::Down as u8 || before == Health::Unknown as u8 && !self.is_assumed_up();
        if was_down && health == Health::Up {
            self.begin_slow_start(now);
        }
    }

    /// Whether probes and agent allow traffic, by the last verdict or, before the first, the assumption.
    pub fn is_up(&self) -> bool {
        let probed = match self.health() {
            Health::Up => true,
            Health::Down => false,
            Health::Unknown => self.is_assumed_up(),
        };
        probed && !self.agent.says().is_down
    }

    /// Whether new work may go to it, ejection aside.
    pub(crate) fn could_serve(&self) -> bool {
        self.admin_in_force() == AdminState::Ready
            && self.is_up()
            && self.weight() > 0
            && self.agent.says().weight_percent > 0
    }

    /// Whether it counts as up before the first verdict.
    pub fn is_assumed_up(&self) -> bool {
        self.assumed_up.load(Ordering::Relaxed)
    }

    /// Changes the assumption that applies before the first verdict, for a backend whose name has just been
    /// resolved or has not been yet; takes effect at the pool's next refresh. Begins no slow start, nor does
    /// the first verdict.
    pub fn assume_up(&self, assumed_up: bool) {
        self.assumed_up.store(assumed_up, Ordering::Relaxed);
    }

    /// Starts the ramp of `slow_start` now, for a backend added to a running pool.
    pub fn begin_slow_start(&self, now: Duration) {
        self.ramp_started.store(nanoseconds(now), Ordering::Relaxed);
    }

    /// When slow start began; `None` when it is over or never was.
    pub fn slow_start_began(&self) -> Option<Duration> {
        moment(self.ramp_started.load(Ordering::Relaxed))
    }

    pub(crate) fn end_slow_start(&self) {
        self.ramp_started.store(NEVER, Ordering::Relaxed);
    }

    /// Scales `max_connections` while the backend warms up; set at refresh.
    pub(crate) fn set_ramp_percent(&self, percent: u32) {
        self.hot.ramp_percent.store(percent, Ordering::Relaxed);
    }

    /// When a passive ejection ends; `None` when not ejected. A moment in the past means the next refresh
    /// readmits it.
    pub fn ejected_until(&self) -> Option<Duration> {
        moment(self.ejected_until.load(Ordering::Relaxed))
    }

    /// Ejects it until that moment, to carry over an ejection decided by an older process; takes effect at
    /// the pool's next refresh.
    pub fn eject_until(&self, until: Duration) {
        self.set_ejected_until(Some(until));
    }

    pub(crate) fn set_ejected_until(&self, until: Option<Duration>) {
        self.ejected_until.store(until.map_or(NEVER, nanoseconds), Ordering::Relaxed);
    }

    /// How often it was ejected for failing much more often than the others.
    pub fn outliers(&self) -> u64 {
        self.failures().outliers
    }

    pub(crate) fn failures(&self) -> MutexGuard<'_, FailureLog> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds a measured response time (connect time for TCP) into the peak EWMA. Lock-free.
    pub fn observe_latency(&self, now: Duration, rtt: Duration) {
        self.hot.latency.observe(now, rtt);
    }

    /// The peak EWMA of response times, undecayed; `None` before the first observation.
    pub fn latency(&self) -> Option<Duration> {
        self.hot.latency.stored()
    }

    pub(crate) fn peak_ewma(&self) -> &PeakEwma {
        &self.hot.latency
    }

    /// The limit of requests in flight in force now: `max_connections` scaled by slow start, at least 1.
    pub(crate) fn limit(&self) -> u32 {
        let configured = self.hot.max_connections.load(Ordering::Relaxed);
        if configured == UNLIMITED || configured == 0 {
            return configured;
        }
        match self.hot.ramp_percent.load(Ordering::Relaxed) {
            FULL_PERCENT => configured,
            percent => ((u64::from(configured) * u64::from(percent) / 100) as u32).max(1),
        }
    }

    /// Whether there is room for one more request; another worker may take it in between.
    pub(crate) fn has_room(&self) -> bool {
        let limit = self.limit();
        limit == UNLIMITED || self.in_flight() < limit
    }

    /// Counts one more in flight if that keeps the count at or below both the limit and `ceiling`. Exact
    /// across threads.
    ///
    /// Sequentially consistent: a releaser that sees no waiter and a waiter that sees no room can't both be
    /// wrong ([`Pool::release`](crate::Pool::release) explains why).
    pub(crate) fn try_acquire(&self, ceiling: u32) -> bool {
        let limit = self.limit().min(ceiling);
        if limit == UNLIMITED {
            self.hot.load.fetch_add(ONE_PICK, Ordering::SeqCst);
            return true;
        }
        let mut seen = self.hot.load.load(Ordering::SeqCst);
        while (seen & IN_FLIGHT_MASK) < u64::from(limit) {
            let wanted = seen.wrapping_add(ONE_PICK);
            match self.hot.load.compare_exchange_weak(seen, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(actual) => seen = actual,
            }
        }
        false
    }

    /// Counts one more in flight whatever the limit.
    pub(crate) fn acquire_beyond(&self) {
        self.hot.load.fetch_add(ONE_PICK, Ordering::SeqCst);
    }

    /// Gives back what `try_acquire` counted. A release without an acquire is a bug of the caller: it panics
    /// in debug builds and is ignored in release builds, because an in-flight count that wrapped would shut
    /// the backend out for good.
    pub(crate) fn release(&self) {
        let before = self.hot.load.fetch_sub(1, Ordering::SeqCst);
        if before & IN_FLIGHT_MASK == 0 {
            self.hot.load.fetch_add(1, Ordering::SeqCst);
            debug_assert!(false, "backend {} was released more often than picked", self.address);
        }
    }
}

fn limit_of(limit: u32) -> Option<u32> {
    Some(limit).filter(|limit| *limit != UNLIMITED)
}

#[cfg(test)]
mod tests;
