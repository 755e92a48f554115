//! Counters for the outcomes of names and of the handshakes that asked for them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The outcome for a name that needed a certificate: label `result` of `weir_acme_on_demand_names_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameResult {
    /// A certificate was ordered and issued, or another process had obtained it meanwhile.
    Issued,
    /// It was in the store.
    Stored,
    /// The service said no.
    Refused,
    /// The service did not answer, or answered that it can't tell.
    Unanswered,
    /// It was in no store, and `max_names` names were being asked about or ordered, or `max_waiting`
    /// handshakes were waiting for others.
    Busy,
    /// There were more orders than `rate` and `burst` allow.
    Limited,
    /// It was in no store, and a moment ago the authority could not be reached for another name.
    Away,
    /// No certificate was issued.
    Failed,
}

impl NameResult {
    /// All values, for metrics.
    pub const ALL: [NameResult; 8] = [
        NameResult::Issued,
        NameResult::Stored,
        NameResult::Refused,
        NameResult::Unanswered,
        NameResult::Busy,
        NameResult::Limited,
        NameResult::Away,
        NameResult::Failed,
    ];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            NameResult::Issued => "issued",
            NameResult::Stored => "stored",
            NameResult::Refused => "refused",
            NameResult::Unanswered => "unanswered",
            NameResult::Busy => "busy",
            NameResult::Limited => "limited",
            NameResult::Away => "away",
            NameResult::Failed => "failed",
        }
    }
}

/// The outcome for a handshake whose name had no certificate in memory: label `result` of
/// `weir_acme_on_demand_handshakes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// It waited, and the certificate arrived.
    Served,
    /// It waited, and there was no certificate.
    Refused,
    /// None had arrived within `wait`.
    TimedOut,
    /// The client left meanwhile, or Weir needed its place.
    Left,
    /// The store had no certificate for it and `max_waiting` others were waiting; or the limit of names being
    /// looked up in the store was reached.
    NoPlace,
    /// It did not wait: an earlier refusal or failure for the name is remembered.
    Remembered,
}

impl WaitResult {
    /// All values, for metrics.
    pub const ALL: [WaitResult; 6] = [
        WaitResult::Served,
        WaitResult::Refused,
        WaitResult::TimedOut,
        WaitResult::Left,
        WaitResult::NoPlace,
        WaitResult::Remembered,
    ];

    /// The word in metrics.
    pub fn word(self) -> &'static str {
        match self {
            WaitResult::Served => "served",
            WaitResult::Refused => "refused",
            WaitResult::TimedOut => "timed_out",
            WaitResult::Left => "left",
            WaitResult::NoPlace => "no_place",
            WaitResult::Remembered => "remembered",
        }
    }
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Counts {
    names: [AtomicU64; NameResult::ALL.len()],
    waits: [AtomicU64; WaitResult::ALL.len()],
    evicted: AtomicU64,
}

impl Counts {
    /// Number of names with this outcome.
    pub fn names(&self, result: NameResult) -> u64 {
        self.names[result as usize].load(Relaxed)
    }

    /// Number of handshakes with this outcome.
    pub fn waits(&self, result: WaitResult) -> u64 {
        self.waits[result as usize].load(Relaxed)
    }

    /// Number of certificates evicted from memory.
    pub fn evictions(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Counts a handshake with this outcome.
    pub fn wait(&self, result: WaitResult) {
        self.waits[result as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn name(&self, result: NameResult) {
        self.names[result as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn evicted(&self, count: u64) {
        self.evicted.fetch_add(count, Relaxed);
    }
}
