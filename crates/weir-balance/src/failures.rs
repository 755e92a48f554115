//! Counts the failures of one backend: when there are enough to eject it, and for how long.

use crate::Passive;
use crate::moment::nanoseconds;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Consecutive ejections lengthen the next one up to this factor.
const LONGEST_FACTOR: u32 = 10;

/// Failures must also be at least one in this many of the picks made meanwhile: at 50,000 requests per second
/// five failures in ten seconds are noise, and ejecting a backend for them would do more harm.
const PICKS_PER_FAILURE: u64 = 100;

/// Failures kept per backend, whatever `errors` says (4096 * 40 bytes at worst).
const MOST_ERRORS: u32 = 4096;

/// The recent failures of one backend and its ejections.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    /// At most `errors` of them, oldest first.
    pub(crate) recent: VecDeque<RecentFailure>,
    in_a_row: u32,
    last_until: Duration,
    last_length: Duration,
    /// Ejections for a success rate far below the others'.
    pub(crate) outliers: u64,
}

/// One failure.
#[derive(Debug)]
pub(crate) struct RecentFailure {
    /// In nanoseconds.
    at: u64,
    /// The backend's pick count at that time.
    picks: u64,
    /// The client whose fault alone it may be; `None` if it is the backend's fault.
    client: Option<IpAddr>,
}

impl FailureLog {
    /// Records one failure; returns whether there are now enough to eject. `None` if `client` alone may be at
    /// fault and one of that client's failures counts already.
    pub(crate) fn record(
        &mut self,
        now: Duration,
        picks: u64,
        client: Option<IpAddr>,
        passive: &Passive,
    ) -> Option<bool> {
        let errors = passive.errors.clamp(1, MOST_ERRORS) as usize;
        let is_within = |at: u64| nanoseconds(now).saturating_sub(at) <= nanoseconds(passive.within);
        let is_told = |it: &RecentFailure| it.client == client && is_within(it.at);
        if client.is_some() && self.recent.iter().any(is_told) {
            return None;
        }
        while self.recent.len() >= errors {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentFailure { at: nanoseconds(now), picks, client });
        let first = self.recent.front()?;
        let picks_between = picks.saturating_sub(first.picks);
        let is_enough = self.recent.len() == errors
            && is_within(first.at)
            && picks_between <= errors as u64 * PICKS_PER_FAILURE;
        Some(is_enough)
    }

    /// Begins the next ejection: returns until when, and how many in a row this makes.
    pub(crate) fn eject(&mut self, now: Duration, passive: &Passive) -> (Duration, u32) {
        // A failure before the backend has served as long as it was out (or as long as it takes to count
        // errors) continues the row.
        let probation = self.last_length.max(passive.within);
        let relapsed = self.in_a_row > 0 && now <= self.last_until.saturating_add(probation);
        self.in_a_row = if relapsed { (self.in_a_row + 1).min(LONGEST_FACTOR) } else { 1 };
        self.last_length = passive.eject.saturating_mul(self.in_a_row);
        self.last_until = now.saturating_add(self.last_length);
        self.recent.clear();
        (self.last_until, self.in_a_row)
    }
}
