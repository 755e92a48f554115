//! What one backend's failures add up to: when there are enough of them to eject it, and for how long.

use crate::Passive;
use crate::moment::nanoseconds;
use std::collections::VecDeque;
use std::time::Duration;

/// Ejections in a row lengthen the next one up to this factor.
const LONGEST_FACTOR: u32 = 10;

/// Failures must also be at least one in so many of the picks made while they happened: at 50,000 requests
/// per second five failures in ten seconds are noise, and ejecting a backend for it would do more harm.
const PICKS_PER_FAILURE: u64 = 100;

/// Timestamps kept per backend, whatever `errors` says (4096 * 16 bytes at worst).
const MOST_ERRORS: u32 = 4096;

/// The recent failures of one backend and its ejections.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    /// Nanoseconds, and the backend's picks so far; at most `errors` of them, oldest first.
    pub(crate) recent: VecDeque<(u64, u64)>,
    in_a_row: u32,
    last_until: Duration,
    last_length: Duration,
    /// Ejections by comparison.
    pub(crate) outliers: u64,
}

impl FailureLog {
    /// Notes one failure; whether this makes enough of them.
    pub(crate) fn record(&mut self, now: Duration, picks: u64, passive: &Passive) -> bool {
        let errors = passive.errors.clamp(1, MOST_ERRORS) as usize;
        while self.recent.len() >= errors {
            self.recent.pop_front();
        }
        self.recent.push_back((nanoseconds(now), picks));
        let Some(&(first_at, first_picks)) = self.recent.front() else { return false };
        let picks_between = picks.saturating_sub(first_picks);
        self.recent.len() == errors
            && nanoseconds(now).saturating_sub(first_at) <= nanoseconds(passive.within)
            && picks_between <= errors as u64 * PICKS_PER_FAILURE
    }

    /// Opens the next ejection: until when, and how many in a row.
    pub(crate) fn eject(&mut self, now: Duration, passive: &Passive) -> (Duration, u32) {
        // Failing again before it has served as long as it was out (or as long as it takes to count errors)
        // continues the row.
        let probation = self.last_length.max(passive.within);
        let relapsed = self.in_a_row > 0 && now <= self.last_until.saturating_add(probation);
        self.in_a_row = if relapsed { (self.in_a_row + 1).min(LONGEST_FACTOR) } else { 1 };
        self.last_length = passive.eject.saturating_mul(self.in_a_row);
        self.last_until = now.saturating_add(self.last_length);
        self.recent.clear();
        (self.last_until, self.in_a_row)
    }
}
