//! The common parts of all algorithms: one choice, and the operations it may use.
//!
//! Live picks and `explain` run the same code over the same [`Choice`]; only the [`Slots`] differ: live ones
//! take a slot in flight and advance the rotation, the dry run changes nothing.

use crate::Algorithm;
use crate::backend::{Backend, UNLIMITED};
use crate::pick::{PickInput, PickReason};
use crate::view::{Tier, WeightedBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod first;
mod least_connections;
mod least_time;
mod maglev;
mod random_two;
mod ring_hash;
mod round_robin;

/// The side effects a choice may have.
pub(crate) trait Slots {
    /// The number of this turn in the pool's shared rotation.
    fn turn(&self, rotation: &AtomicU64) -> u64;
    /// Takes one slot in flight if that keeps the count at or below the backend's limit and `ceiling`.
    fn take(&self, backend: &Backend, ceiling: u32) -> bool;
    /// Like [`Slots::take`], and takes a place on trial too: both or neither.
    fn take_on_trial(&self, backend: &Backend, ceiling: u32) -> bool;
}

/// Takes slots for real.
#[derive(Clone, Copy)]
pub(crate) struct LiveSlots;

impl Slots for LiveSlots {
    fn turn(&self, rotation: &AtomicU64) -> u64 {
        rotation.fetch_add(1, Ordering::Relaxed)
    }

    fn take(&self, backend: &Backend, ceiling: u32) -> bool {
        backend.try_acquire(ceiling)
    }

    fn take_on_trial(&self, backend: &Backend, ceiling: u32) -> bool {
        if !backend.trials().begin() {
            return false;
        }
        let taken = self.take(backend, ceiling);
        if !taken {
            backend.trials().end();
        }
        taken
    }
}

/// Changes nothing: shows what the next pick would be.
#[derive(Clone, Copy)]
pub(crate) struct DryRun;

impl Slots for DryRun {
    fn turn(&self, rotation: &AtomicU64) -> u64 {
        rotation.load(Ordering::Relaxed)
    }

    fn take(&self, backend: &Backend, ceiling: u32) -> bool {
        backend.has_room() && (ceiling == UNLIMITED || backend.in_flight() < ceiling)
    }

    fn take_on_trial(&self, backend: &Backend, ceiling: u32) -> bool {
        backend.trials().has_room() && self.take(backend, ceiling)
    }
}

/// One choice among the backends of one tier.
pub(crate) struct Choice<'a, S> {
    pub(crate) members: &'a [Arc<Backend>],
    pub(crate) rotation: &'a AtomicU64,
    /// In flight over the pool, without this request; kept only if load is bounded.
    pub(crate) pool_in_flight: u64,
    pub(crate) hash_bound: Option<f64>,
    pub(crate) tier: &'a Tier,
    pub(crate) input: &'a PickInput<'a>,
    pub(crate) slots: S,
}

/// The result of an algorithm: the member's index and the reason; `None` when every backend of the tier is
/// full or excluded.
pub(crate) type Chosen = Option<(usize, PickReason)>;

impl<S: Slots> Choice<'_, S> {
    /// Runs an algorithm.
    pub(crate) fn run(&self, algorithm: Algorithm) -> Chosen {
        match algorithm {
            Algorithm::RoundRobin => round_robin::choose(self),
            Algorithm::LeastConnections => least_connections::choose(self),
            Algorithm::RandomTwo => random_two::choose(self),
            Algorithm::LeastTime => least_time::choose(self),
            Algorithm::First => first::choose(self),
            Algorithm::Source | Algorithm::Hash => ring_hash::choose(self),
            Algorithm::Maglev => maglev::choose(self),
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.slots.turn(self.rotation)
    }

    /// The position in the tier whose turn it is.
    pub(crate) fn position_in_turn(&self) -> usize {
        let sequence = self.tier.sequence();
        sequence[(self.turn() % sequence.len() as u64) as usize] as usize
    }

    pub(crate) fn entry(&self, position: usize) -> WeightedBackend {
        self.tier.entries[position]
    }

    pub(crate) fn backend(&self, position: usize) -> &Backend {
        &self.members[self.tier.entries[position].index as usize]
    }

    pub(crate) fn is_excluded(&self, position: usize) -> bool {
        self.input.exclude.contains(&(self.tier.entries[position].index as usize))
    }

    /// Whether taking this backend would succeed now.
    pub(crate) fn is_usable(&self, position: usize) -> bool {
        let backend = self.backend(position);
        !self.is_excluded(position)
            && backend.has_room()
            && (!self.tier.on_trial || backend.trials().has_room())
    }

    /// Takes a slot of the backend at `position` and returns its member index; `None` if it is full or
    /// excluded.
    pub(crate) fn take(&self, position: usize) -> Option<usize> {
        self.take_below(position, UNLIMITED)
    }

    /// Like [`Choice::take`], but never beyond `ceiling` in flight.
    pub(crate) fn take_below(&self, position: usize, ceiling: u32) -> Option<usize> {
        if self.is_excluded(position) {
            return None;
        }
        let backend = self.backend(position);
        let taken = if self.tier.on_trial {
            self.slots.take_on_trial(backend, ceiling)
        } else {
            self.slots.take(backend, ceiling)
        };
        taken.then(|| self.tier.entries[position].index as usize)
    }

    /// Tries every backend of the tier once, from `start` on: the O(n) fallback when the quick ways found
    /// only full ones.
    pub(crate) fn sweep(&self, start: usize) -> Chosen {
        let count = self.tier.entries.len();
        (0..count)
            .find_map(|step| self.take((start + step) % count))
            .map(|index| (index, PickReason::AnyWithRoom))
    }
}
