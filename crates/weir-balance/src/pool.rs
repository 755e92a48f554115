//! A pool: its backends, the state shared between workers, and the view from which pickers choose.

use crate::admin::AdminState;
use crate::backend::{Backend, Health, WeightTooLarge};
use crate::breaker::Breaker;
use crate::response_times::ResponseTimes;
use crate::retry_budget::RetryBudget;
use crate::role::{Role, WantedRole};
use crate::settings::Settings;
use crate::state::{State, TierKind};
use crate::view::{Standing, View};
use crate::{Algorithm, BreakerSettings, slow_start};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The backends of one `[pool.x]` under one config. A reload makes a new pool with [`Pool::rebuilt`] that
/// shares all live state.
#[derive(Debug)]
pub struct Pool {
    /// Number of the current view. Every pick reads it and only changes write it, so it must not share a
    /// cache line with counters.
    generation: Alone<AtomicU64>,
    view: Mutex<Arc<View>>,
    settings: Settings,
    members: Box<[Arc<Backend>]>,
    /// Sorted pairs of backend id and index, for sticky sessions.
    by_id: Box<[(u64, u32)]>,
    shared: Arc<Shared>,
    /// Requests in flight over the whole pool. Kept only if load is bounded, since every pick and release has
    /// to touch it.
    bounded_in_flight: Option<Arc<Alone<AtomicU64>>>,
    ejecting: Mutex<()>,
}

/// The state that continues across reloads.
#[derive(Debug)]
struct Shared {
    rotation: Alone<AtomicU64>,
    retry_budget: RetryBudget,
    breaker: Breaker,
    response_times: ResponseTimes,
}

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Alone<T>(T);

/// The result of [`Pool::refresh`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refreshed {
    /// Whether a new view was published.
    pub changed: bool,
    /// Backends (indexes) whose ejection ended, for the log.
    pub readmitted: Vec<usize>,
}

/// A backend that takes new work, for the kernel plane's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eligible {
    /// Index into the pool's members.
    pub index: usize,
    /// [`Backend::id`].
    pub id: u64,
    /// Effective weight, in hundredths (slow start included); above 0.
    pub weight: u32,
    /// The tier of all eligible backends.
    pub tier: TierKind,
}

impl Pool {
    /// A new pool of `members` in file order, as at the start of Weir. Settings outside their ranges don't
    /// panic.
    pub fn new(settings: Settings, members: Vec<Arc<Backend>>, now: Duration) -> Pool {
        let shared = Arc::new(Shared {
            rotation: Alone::default(),
            retry_budget: RetryBudget::new(settings.retries),
            breaker: Breaker::default(),
            response_times: ResponseTimes::default(),
        });
        let bounded = bounds_load(&settings).then(Arc::default);
        Pool::assemble(settings, members, shared, bounded, now)
    }

    /// The pool after a reload: new settings and members, with this pool's rotation and retry budget. Where
    /// an address stays, `members` holds this pool's `Arc`, so that counts and health live on.
    ///
    /// Exchanges picked from the old pool are released on the old pool; both count in the same cells.
    pub fn rebuilt(&self, settings: Settings, members: Vec<Arc<Backend>>, now: Duration) -> Pool {
        self.shared.retry_budget.set(settings.retries);
        let bounded = bounds_load(&settings).then(|| self.bounded_in_flight.clone().unwrap_or_default());
        Pool::assemble(settings, members, Arc::clone(&self.shared), bounded, now)
    }

    fn assemble(
        settings: Settings,
        members: Vec<Arc<Backend>>,
        shared: Arc<Shared>,
        bounded_in_flight: Option<Arc<Alone<AtomicU64>>>,
        now: Duration,
    ) -> Pool {
        let members = members.into_boxed_slice();
        let mut by_id: Box<[(u64, u32)]> =
            members.iter().enumerate().map(|(index, backend)| (backend.id(), index as u32)).collect();
        by_id.sort_unstable();
        let nothing = View { generation: 0, standings: Box::default(), tiers: Box::default(), by_role: None };
        let pool = Pool {
            generation: Alone(AtomicU64::new(0)),
            view: Mutex::new(Arc::new(nothing)),
            settings,
            members,
            by_id,
            shared,
            bounded_in_flight,
            ejecting: Mutex::new(()),
        };
        pool.refresh(now);
        pool
    }

    /// The settings this pool was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The backends in file order; a [`BackendIndex`](crate::BackendIndex) is an index into this slice.
    pub fn members(&self) -> &[Arc<Backend>] {
        &self.members
    }

    /// The index of the backend with this id (which a sticky cookie carries). O(log n).
    pub fn index_of(&self, id: u64) -> Option<usize> {
        let at = self.by_id.partition_point(|(other, _)| *other < id);
        self.by_id.get(at).filter(|(other, _)| *other == id).map(|(_, index)| *index as usize)
    }

    /// The number of the current view; it rises with every published change.
    pub fn generation(&self) -> u64 {
        self.generation.0.load(Ordering::Acquire)
    }

    /// Brings the view up to date with the live state: verdicts, roles, admin states, weights, ejections that
    /// end, steps of slow start.
    ///
    /// Call it after changing any of these and whenever [`Pool::next_change`] falls due, on the control
    /// thread or on the worker that got an [`Ejection`](crate::Ejection). Publishes a new view only if
    /// something differs. O(n) to compare; building costs up to a few milliseconds for maglev and large
    /// rings.
    pub fn refresh(&self, now: Duration) -> Refreshed {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        let readmitted = self.readmit(now);
        let mut standings = Vec::with_capacity(self.members.len());
        for backend in &self.members {
            let standing = Standing::of(backend, &self.settings, now);
            backend.set_ramp_percent(standing.ramp_percent);
            if standing.ramp_percent == slow_start::FULL_PERCENT {
                backend.end_slow_start();
            }
            standings.push(standing);
        }
        let changed = *standings != *view.standings;
        if changed {
            let generation = view.generation + 1;
            *view = Arc::new(View::build(
                generation,
                &self.settings,
                &self.members,
                standings.into_boxed_slice(),
            ));
            self.generation.0.store(generation, Ordering::Release);
        }
        Refreshed { changed, readmitted }
    }

    fn readmit(&self, now: Duration) -> Vec<usize> {
        let mut readmitted = vec![];
        for (index, backend) in self.members.iter().enumerate() {
            if let Some(until) = backend.ejected_until()
                && until <= now
            {
                let _one_at_a_time = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
                backend.set_ejected_until(None);
                backend.begin_slow_start(until);
                readmitted.push(index);
            }
        }
        readmitted
    }

    /// The next moment at which [`Pool::refresh`] will find a change without any event (an ejection ends,
    /// slow start takes a step); `None` if there is none. A moment on the same scale as `now`, never before
    /// it.
    pub fn next_change(&self, now: Duration) -> Option<Duration> {
        let step_of = |backend: &Backend| {
            slow_start::next_step(backend.slow_start_began()?, now, self.settings.slow_start?)
        };
        let moments = self.members.iter().flat_map(|backend| [backend.ejected_until(), step_of(backend)]);
        moments.flatten().min().map(|moment| moment.max(now))
    }

    /// Changes the operator's state of a backend; takes effect at the next refresh.
    pub fn set_admin_state(&self, index: usize, state: AdminState, now: Duration) {
        self.members[index].set_admin_state(state, now);
    }

    /// Changes a backend's weight; takes effect at the next refresh.
    pub fn set_weight(&self, index: usize, weight: u32) -> Result<(), WeightTooLarge> {
        self.members[index].set_weight(weight)
    }

    /// Stores a probe verdict about a backend; takes effect at the next refresh.
    pub fn set_health(&self, index: usize, health: Health, now: Duration) {
        self.members[index].set_health(health, now);
    }

    /// Takes a slot in flight on this backend whatever its state and its limit, for work that must reach this
    /// backend and no other. Release it like the slot of a pick.
    pub fn take(&self, index: usize) {
        self.members[index].acquire_beyond();
        if let Some(total) = &self.bounded_in_flight {
            total.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives back the slot in flight that a pick took. Call it exactly once per pick, on the pool the pick
    /// came from.
    ///
    /// Sequentially consistent: a caller that waits for a slot announces the wait, picks once more and only
    /// then sleeps; a releaser looks for waiters after this call. Either the second pick finds the slot or
    /// the releaser finds the waiter.
    pub fn release(&self, index: usize) {
        self.members[index].release();
        if let Some(total) = &self.bounded_in_flight {
            total.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the trial of a pick that was [`on_trial`](crate::Pick::on_trial): its outcome is known, or it was
    /// given up. Call it exactly once per such pick, then wake callers that wait for a backend. The slot in
    /// flight is released separately.
    pub fn end_trial(&self, index: usize) {
        self.members()[index].trials().end();
    }

    /// The breaker and its settings; `None` if the pool has none.
    #[inline]
    pub fn breaker(&self) -> Option<(&Breaker, &BreakerSettings)> {
        self.settings.breaker.as_ref().map(|settings| (&self.shared.breaker, settings))
    }

    /// The pool's retry budget: deposit per request, withdraw per retry.
    pub fn retry_budget(&self) -> &RetryBudget {
        &self.shared.retry_budget
    }

    /// How long the backends took to answer, if the caller records it.
    pub fn response_times(&self) -> &ResponseTimes {
        &self.shared.response_times
    }

    /// The backends that take new work now, in file order: ordinary ones, or backups when there is none,
    /// or the last resort when there is nothing else.
    pub fn eligible(&self) -> Vec<Eligible> {
        let view = self.view();
        let Some(tier) = view.tiers.first() else { return vec![] };
        let eligible = |entry: &crate::view::WeightedBackend| Eligible {
            index: entry.index as usize,
            id: self.members[entry.index as usize].id(),
            weight: entry.weight,
            tier: tier.kind,
        };
        tier.entries.iter().map(eligible).collect()
    }

    /// The tier that picks try first now; `None` when no backend takes new work.
    pub fn tier(&self) -> Option<TierKind> {
        self.view().tiers.first().map(|tier| tier.kind)
    }

    /// Whether work on a backend that could move elsewhere may stay: the backend takes new work, or would but
    /// for its weight, or nothing better is left.
    pub fn keeps(&self, index: usize) -> bool {
        let view = self.view();
        matches!(view.standings[index].state, State::Ready | State::WeightZero)
            || view.tier_of(index, None).is_some()
    }

    /// Like [`Self::keeps`], for work that needs a backend in a role.
    pub fn keeps_in_role(&self, index: usize, wanted: WantedRole) -> bool {
        let view = self.view();
        let is_left = matches!(view.standings[index].state, State::Ready | State::WeightZero);
        is_left && view.serves(index, Some(wanted)) || view.tier_of(index, Some(wanted)).is_some()
    }

    /// Stores the roles found by monitoring, by index. All of them take effect together at the next refresh:
    /// no view has two primaries because one was named before the other was deposed.
    pub fn set_roles(&self, roles: impl IntoIterator<Item = (usize, Option<Role>)>) {
        let _no_refresh_between = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, role) in roles {
            self.members[index].set_role(role);
        }
    }

    /// The state of a backend in the current view.
    pub fn state(&self, index: usize) -> State {
        self.view().standings[index].state
    }

    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn rotation(&self) -> &AtomicU64 {
        &self.shared.rotation.0
    }

    pub(crate) fn bounded_in_flight(&self) -> Option<&AtomicU64> {
        self.bounded_in_flight.as_ref().map(|total| &total.0)
    }

    pub(crate) fn ejecting(&self) -> &Mutex<()> {
        &self.ejecting
    }

    /// Records a successful pick, apart from the slot.
    pub(crate) fn note_picked(&self, index: usize, now: Duration) {
        if let Some(total) = &self.bounded_in_flight {
            total.0.fetch_add(1, Ordering::Relaxed);
        }
        if self.settings.algorithm == Algorithm::LeastTime {
            self.members[index].peak_ewma().note_pick(now);
        }
    }
}

fn bounds_load(settings: &Settings) -> bool {
    settings.hash_bound.is_some() && matches!(settings.algorithm, Algorithm::Source | Algorithm::Hash)
}
