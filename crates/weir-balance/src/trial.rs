//! The last resort: what a pool does when none of its backends is up.
//!
//! Probes can be wrong about all backends at once: the machine was starved for a second, or the page they
//! request hangs while the rest works. Answering 503 to every client is then the worse mistake. A backend
//! that is down may still be given a few exchanges *on trial*: so few at once that, if it is as dead as its
//! probes say, only those few wait in vain for its timeouts.
//!
//! Source: Envoy's panic mode, which tries every host, without a bound, as soon as fewer than half are
//! healthy.

use std::sync::atomic::{AtomicU32, Ordering};

/// Exchanges (count) on trial at one backend at once, over all workers. Enough to find out, and enough for a
/// good rate if the backend answers: a trial ends with the first sign of its outcome, so at 10 ms each that
/// is 3,200 a second.
pub(crate) const MOST_TRIALS: u32 = 32;

/// Which backends that are down by their probes are tried when no backend of the pool is up; the value of
/// `last_resort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LastResort {
    /// Those that accepted the last probe and did not answer it in time. A backend that refused the probe or
    /// answered badly counts as really down.
    #[default]
    Late,
    /// All of them.
    All,
    /// None: Weir answers for the pool at once.
    Off,
}

impl LastResort {
    /// Every config word, in the order of the reference page.
    pub const NAMES: [&'static str; 3] = ["late", "all", "off"];

    /// The value that an operator's word names; `None` for any other word.
    pub fn from_word(word: &str) -> Option<LastResort> {
        [LastResort::Late, LastResort::All, LastResort::Off].into_iter().find(|each| each.word() == word)
    }

    /// The config word.
    pub const fn word(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether a backend that is down by its probes may be tried; `is_late` says whether its last probe
    /// failed only by lateness.
    pub(crate) fn admits(self, is_late: bool) -> bool {
        match self {
            LastResort::Late => is_late,
            LastResort::All => true,
            LastResort::Off => false,
        }
    }
}

/// The exchanges on trial at one backend.
#[derive(Debug, Default)]
pub(crate) struct Trials(AtomicU32);

impl Trials {
    pub(crate) fn has_room(&self) -> bool {
        self.0.load(Ordering::SeqCst) < MOST_TRIALS
    }

    pub(crate) fn begin(&self) -> bool {
        let more = |running: u32| (running < MOST_TRIALS).then(|| running + 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(crate) fn end(&self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a trial ended that had not begun");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_meanings_match_both_ways() {
        for word in LastResort::NAMES {
            assert_eq!(LastResort::from_word(word).map(LastResort::word), Some(word));
        }
        assert_eq!(LastResort::from_word("panic"), None);
    }

    #[test]
    fn trials_are_bounded_and_each_that_ends_makes_room_for_one() {
        let trials = Trials::default();
        assert!((0..MOST_TRIALS).all(|_| trials.begin()));
        assert!(!trials.begin() && !trials.has_room());
        trials.end();
        assert!(trials.has_room() && trials.begin() && !trials.begin());
    }
}
