//! One worker's way into a pool.

use crate::choice::{Choice, Chosen, LiveSlots, Slots};
use crate::pool::Pool;
use crate::view::{TierKind, View};
use crate::{
    Algorithm, Explanation, explain, first, least_connections, least_time, maglev, random_two, ring_hash,
    round_robin,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A backend's place among the members of its pool, in file order.
pub type BackendIndex = usize;

/// What a choice depends on, besides the pool's state.
#[derive(Debug, Clone, Copy, Default)]
pub struct PickInput<'a> {
    /// Time since any monotonic origin, the same one everywhere.
    pub now: Duration,
    /// Two uniform random numbers; used by random-two and least-time.
    pub draw: [u32; 2],
    /// Hash of what source, hash and maglev choose by ([`stable_hash`](crate::stable_hash)); without it they take turns.
    pub key: Option<u64>,
    /// Backend id from the client's cookie.
    pub sticky: Option<u64>,
    /// Backends already tried in this exchange.
    pub exclude: &'a [BackendIndex],
}

/// A backend, with one slot in flight already taken: give it back with [`Pool::release`] exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the slot taken in flight must be released"]
pub struct Pick {
    /// Index into the pool's members.
    pub index: BackendIndex,
    /// Why this one.
    pub reason: PickReason,
    /// Which group it came from.
    pub tier: TierKind,
    /// Whether it is down and only tried: call [`Pool::end_trial`] exactly once, when the outcome is known or it is given up.
    pub on_trial: bool,
}

/// Why a backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PickReason {
    /// The client's cookie names it.
    Sticky,
    /// Its turn, or the next with room after it.
    InTurn,
    /// Fewest in flight per weight.
    LeastLoaded,
    /// Fewer in flight per weight than the other of two drawn.
    LessLoadedOfTwo,
    /// Shorter expected time than the other of two drawn.
    FasterOfTwo,
    /// First in file order with room.
    FirstWithRoom,
    /// Owns the key's place on the ring or in the table.
    OwnsKey,
    /// Next after the key's owner, which is full, over its bound or already tried.
    NextAfterOwner,
    /// The exchange has no key, so it was given in turn.
    NoKey,
    /// The algorithm's choices were full; the first other with room.
    AnyWithRoom,
}

impl PickReason {
    /// The reason in words, for logs and `weir explain`.
    pub const fn words(self) -> &'static str {
        match self {
            PickReason::Sticky => "the cookie names it",
            PickReason::InTurn => "next in turn",
            PickReason::LeastLoaded => "fewest in flight per weight",
            PickReason::LessLoadedOfTwo => "the less loaded of two drawn",
            PickReason::FasterOfTwo => "the shorter expected time of two drawn",
            PickReason::FirstWithRoom => "first in the list with room",
            PickReason::OwnsKey => "owns the key",
            PickReason::NextAfterOwner => "next after the key's owner",
            PickReason::NoKey => "no key, so next in turn",
            PickReason::AnyWithRoom => "first found with room",
        }
    }
}

/// Why there is no backend. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoPick {
    /// No backend takes new work: down, in maintenance, drained or weight 0. `http/failure` answers 503.
    NoneUp,
    /// Every backend left to try is at its limit: wait for a release, or answer 503.
    AllBusy,
    /// Every backend that takes work was already tried in this exchange.
    AllExcluded,
}

impl NoPick {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            NoPick::NoneUp => "no backend takes new work",
            NoPick::AllBusy => "every backend is at its limit",
            NoPick::AllExcluded => "every backend was tried already",
        }
    }
}

impl std::fmt::Display for NoPick {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.words())
    }
}

impl std::error::Error for NoPick {}

/// Chooses backends for one worker thread (it is not `Sync`; make one per worker and pool).
///
/// It keeps the pool's current view, so a pick costs one atomic load to see that it is still current and takes no lock. After a
/// change ([`Pool::refresh`]) the next pick fetches the new view through a mutex, once.
#[derive(Debug)]
pub struct Picker {
    pool: Arc<Pool>,
    generation: Cell<u64>,
    view: RefCell<Arc<View>>,
}

impl Picker {
    /// A picker that sees the pool as it is now and follows its changes.
    pub fn new(pool: Arc<Pool>) -> Picker {
        let view = pool.view();
        Picker { generation: Cell::new(view.generation), view: RefCell::new(view), pool }
    }

    /// The pool it chooses from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Chooses a backend and takes one slot in flight of it, never beyond its `max_connections`.
    ///
    /// A sticky backend that is up, even draining or of weight 0, is chosen before all else unless it is full or excluded.
    /// Then primaries, then (when none is eligible, or all were tried in this exchange) backups, then the last resort. Does not allocate or
    /// lock; O(1) for round-robin, random-two, least-time, hashes and maglev, see [`Algorithm`] for the others; when
    /// most backends are full, O(n).
    pub fn pick(&self, input: &PickInput<'_>) -> Result<Pick, NoPick> {
        self.follow();
        let view = self.view.borrow();
        let pick = choose(&self.pool, &view, input, LiveSlots)?;
        self.pool.note_picked(pick.index, input.now);
        Ok(pick)
    }

    /// What [`Picker::pick`] would answer to the same input right now, and how every backend stands. Takes no slot, moves no counter.
    pub fn explain(&self, input: &PickInput<'_>) -> Explanation {
        self.follow();
        explain::explain(&self.pool, &self.view.borrow(), input)
    }

    fn follow(&self) {
        if self.pool.generation() != self.generation.get() {
            let view = self.pool.view();
            self.generation.set(view.generation);
            self.view.replace(view);
        }
    }
}

/// The one place where a backend is chosen.
pub(crate) fn choose<S: Slots + Copy>(
    pool: &Pool,
    view: &View,
    input: &PickInput<'_>,
    slots: S,
) -> Result<Pick, NoPick> {
    if let Some(id) = input.sticky
        && let Some(pick) = choose_sticky(pool, view, input, id, slots)
    {
        return Ok(pick);
    }
    let pool_in_flight = pool.bounded_in_flight().map_or(0, |total| total.load(Ordering::Relaxed));
    for tier in &view.tiers {
        let choice = Choice {
            members: pool.members(),
            rotation: pool.rotation(),
            pool_in_flight,
            hash_bound: pool.settings().hash_bound,
            tier,
            input,
            slots,
        };
        if is_tried_through(&choice) {
            continue;
        }
        // Backups are not there to take the overflow: a primary tier with somebody left to try is waited for.
        let (index, reason) = run(pool.settings().algorithm, &choice).ok_or(NoPick::AllBusy)?;
        return Ok(Pick { index, reason, tier: tier.kind, on_trial: tier.on_trial });
    }
    Err(if view.tiers.is_empty() { NoPick::NoneUp } else { NoPick::AllExcluded })
}

fn run<S: Slots>(algorithm: Algorithm, choice: &Choice<'_, S>) -> Chosen {
    match algorithm {
        Algorithm::RoundRobin => round_robin::choose(choice),
        Algorithm::LeastConnections => least_connections::choose(choice),
        Algorithm::RandomTwo => random_two::choose(choice),
        Algorithm::LeastTime => least_time::choose(choice),
        Algorithm::First => first::choose(choice),
        Algorithm::Source | Algorithm::Hash => ring_hash::choose(choice),
        Algorithm::Maglev => maglev::choose(choice),
    }
}

/// Whether this exchange has tried every backend of the tier. Asked before choosing, so that no turn is spent on it.
fn is_tried_through<S: Slots>(choice: &Choice<'_, S>) -> bool {
    let count = choice.tier.entries.len();
    choice.input.exclude.len() >= count && (0..count).all(|position| choice.is_excluded(position))
}

fn choose_sticky<S: Slots>(
    pool: &Pool,
    view: &View,
    input: &PickInput<'_>,
    id: u64,
    slots: S,
) -> Option<Pick> {
    let index = pool.index_of(id)?;
    if input.exclude.contains(&index) {
        return None;
    }
    let (standing, backend) = (&view.standings[index], &pool.members()[index]);
    let reason = PickReason::Sticky;
    if standing.state.keeps_sticky() {
        let tier = if standing.backup { TierKind::Backup } else { TierKind::Primary };
        let taken = slots.take(backend, u32::MAX);
        return taken.then_some(Pick { index, reason, tier, on_trial: false });
    }
    // Where everybody goes to a backend that is out, its own clients go to it first: their sessions are there.
    let tier = view.tier_of(index)?;
    let taken = match tier.on_trial {
        true => slots.take_on_trial(backend, u32::MAX),
        false => slots.take(backend, u32::MAX),
    };
    taken.then_some(Pick { index, reason, tier: tier.kind, on_trial: tier.on_trial })
}
