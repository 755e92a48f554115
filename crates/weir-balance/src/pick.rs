//! The inputs and results of a choice.

use crate::role::WantedRole;
use crate::state::TierKind;
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
    /// Hash of what source, hash and maglev choose by ([`stable_hash`](crate::stable_hash)); without it they
    /// fall back to round robin.
    pub key: Option<u64>,
    /// Backend id from the client's cookie.
    pub sticky: Option<u64>,
    /// Backends already tried in this exchange.
    pub exclude: &'a [BackendIndex],
    /// The role that the backend must have. Ignored in a pool whose backends have no roles.
    pub role: Option<WantedRole>,
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
    /// Whether it is down and only on trial: call [`Pool::end_trial`] exactly once, when the outcome is known
    /// or the attempt is given up.
    pub on_trial: bool,
}

/// Why a backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PickReason {
    /// The client's cookie names it.
    Sticky,
    /// It was its turn, or it was the next one with room.
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
    /// The exchange has no key, so round robin was used.
    NoKey,
    /// The algorithm's choices were full; this is another one with room.
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
    /// No backend with the requested role takes new work: wait for one to get the role, or give up.
    NoneInRole,
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
            NoPick::NoneInRole => "no backend in the wanted role takes new work",
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
