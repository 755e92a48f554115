//! What became of names that were asked for, and of the handshakes that asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of a name that a certificate was to be got for: label `result` of
/// `weir_acme_on_demand_names_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameResult {
    /// A certificate was ordered and came, or another process had got it meanwhile.
    Issued,
    /// It was in the store.
    Stored,
    /// The service said no.
    Refused,
    /// The service did not answer, or said that it can't.
    Unanswered,
    /// It was in no store, and as many as `max_names` were asked about and ordered, or `max_waiting`
    /// handshakes waited for others.
    Busy,
    /// There were more orders than `rate` and `burst` allow.
    Limited,
    /// It was in no store, and the authority could not be spoken with for another name a moment ago.
    Away,
    /// No certificate came.
    Failed,
}

impl NameResult {
    /// Every one, for metrics.
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

/// What became of a handshake for a name whose certificate was not in memory: label `result` of
/// `weir_acme_on_demand_handshakes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// It waited, and the certificate came.
    Served,
    /// It waited, and none was to be had.
    Refused,
    /// None had come within `wait`.
    TimedOut,
    /// The client left meanwhile, or Weir needed the room.
    Left,
    /// The store had no certificate for it, and `max_waiting` others waited; or as many names as may be were
    /// looked for there.
    NoPlace,
    /// It did not wait: by what is remembered of the name none was to be had.
    Remembered,
}

impl WaitResult {
    /// Every one, for metrics.
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

/// Since the start.
#[derive(Debug, Default)]
pub struct Counts {
    names: [AtomicU64; NameResult::ALL.len()],
    waits: [AtomicU64; WaitResult::ALL.len()],
    evicted: AtomicU64,
}

impl Counts {
    /// Names that came to this.
    pub fn names(&self, result: NameResult) -> u64 {
        self.names[result as usize].load(Relaxed)
    }

    /// Handshakes that came to this.
    pub fn waits(&self, result: WaitResult) -> u64 {
        self.waits[result as usize].load(Relaxed)
    }

    /// Certificates that gave way to others in memory.
    pub fn evictions(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// One more handshake that came to this.
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
