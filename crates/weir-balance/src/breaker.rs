//! Stops sending to a pool that fails as a whole for a while, so that requests are refused at once instead of
//! waiting for answers that will not come, and backends can recover.
//!
//! Passive ejection ([`crate::Passive`]) takes out single backends, and never more than a share of them,
//! because failures everywhere are not the fault of any one backend. The breaker covers that other case: it
//! opens once `errors` of at least `of` requests within a window have failed. After `open` it lets `trials`
//! requests through. If all of them succeed it closes; the first failure opens it again, for longer each
//! time, up to ten times `open`.
//!
//! Source: Nygard, "Release It!", 2007, ch. 5; Envoy's outlier detection for the growing times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::moment::nanoseconds;

/// Consecutive openings lengthen the next one up to this factor.
const LONGEST_FACTOR: u32 = 10;
/// Parts of a window: counts expire in tenths of it.
const SLOTS: usize = 10;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    /// Share of failures (0.0..=1.0) …
    pub errors: f64,
    /// … of at least so many requests (count, at least 1) …
    pub of: u32,
    /// … within this time.
    pub within: Duration,
    /// For how long it opens first.
    pub open: Duration,
    /// Requests that must go well before it closes (count, at least 1).
    pub trials: u32,
}

/// The breaker of one pool, shared by all workers. While closed it costs three atomic operations a request.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Nanoseconds; 0 while it is closed.
    open_until: AtomicU64,
    window: [Tenth; SLOTS],
    trial: Mutex<Trial>,
}

/// One tenth of the window: its number's low 16 bits, then 24 bits each of requests and of failures.
#[derive(Debug, Default)]
struct Tenth(AtomicU64);

#[derive(Debug, Default)]
struct Trial {
    under_way: u32,
    went_well: u32,
    /// Openings in a row.
    in_a_row: u32,
    /// How often it has opened or closed. The result of a trial counts only in the round it began in.
    round: u32,
    /// When the last trial was let through.
    last: Duration,
}

impl Trial {
    /// Whether another trial may be let through. A trial whose client is slow to send or whose backend is
    /// slow to answer keeps its place for at most as long as the breaker opens; otherwise all would wait for
    /// it.
    fn has_room(&self, now: Duration, settings: &BreakerSettings) -> bool {
        self.under_way + self.went_well < settings.trials.max(1)
            || (self.under_way > 0 && now.saturating_sub(self.last) >= settings.open)
    }
}

/// A request that was let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// The breaker was closed.
    Closed,
    /// It is one of the trials of this round.
    Trial(u32),
}

/// How an observed answer changed the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It opened, for this long.
    Opened(Duration),
    /// It closed.
    Closed,
}

/// The state of the breaker, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests pass.
    Closed,
    /// No request passes, for this long.
    Open(Duration),
    /// A few trial requests may pass.
    Trying,
}

const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl Tenth {
    /// Counts one request. A tenth left over from an earlier time starts from zero; counters saturate.
    fn add(&self, number: u64, failed: bool) {
        let tag = (number & 0xffff) << (2 * COUNT_BITS);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cell| {
            let held = if cell >> (2 * COUNT_BITS) == number & 0xffff {
                cell & ((1 << (2 * COUNT_BITS)) - 1)
            } else {
                0
            };
            let (requests, failures) = (held >> COUNT_BITS, held & COUNT_MASK);
            if requests == COUNT_MASK {
                return Some(tag | held);
            }
            Some(tag | (requests + 1) << COUNT_BITS | (failures + u64::from(failed)))
        });
    }

    /// Requests and failures, if this tenth belongs to that time; otherwise zeros.
    fn counts(&self, number: u64) -> (u64, u64) {
        let cell = self.0.load(Ordering::Relaxed);
        match cell >> (2 * COUNT_BITS) == number & 0xffff {
            true => (cell >> COUNT_BITS & COUNT_MASK, cell & COUNT_MASK),
            false => (0, 0),
        }
    }
}

impl Breaker {
    /// Whether a request may go to the pool now; `Err` says for how long none may. An admitted caller reports
    /// the result with [`Breaker::observe`], or gives up with [`Breaker::forget`].
    pub fn admit(&self, now: Duration, settings: &BreakerSettings) -> Result<Admitted, Duration> {
        let until = self.open_until.load(Ordering::Acquire);
        if until == 0 {
            return Ok(Admitted::Closed);
        }
        if nanoseconds(now) < until {
            return Err(Duration::from_nanos(until - nanoseconds(now)));
        }
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        let until = self.open_until.load(Ordering::Acquire);
        if until == 0 {
            return Ok(Admitted::Closed);
        }
        if nanoseconds(now) < until {
            return Err(Duration::from_nanos(until - nanoseconds(now)));
        }
        if !trial.has_room(now, settings) {
            // The trials under way decide; nobody knows when.
            return Err(Duration::ZERO);
        }
        // Beyond that number it replaces a trial that takes too long.
        if trial.under_way + trial.went_well < settings.trials.max(1) {
            trial.under_way += 1;
        }
        trial.last = now;
        Ok(Admitted::Trial(trial.round))
    }

    /// Whether [`Breaker::admit`] would let a request through; changes nothing.
    pub fn lets_through(&self, now: Duration, settings: &BreakerSettings) -> bool {
        match self.state(now) {
            BreakerState::Closed => true,
            BreakerState::Open(_) => false,
            BreakerState::Trying => {
                let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
                trial.has_room(now, settings)
            }
        }
    }

    /// Records the result of an admitted request; returns the change if that opened or closed the breaker.
    pub fn observe(
        &self,
        admitted: Admitted,
        failed: bool,
        now: Duration,
        settings: &BreakerSettings,
    ) -> Option<Turn> {
        match admitted {
            // Sent before the breaker opened: says nothing new.
            Admitted::Closed if self.open_until.load(Ordering::Acquire) != 0 => None,
            Admitted::Closed => {
                let number = self.number(now, settings);
                self.window[number as usize % SLOTS].add(number, failed);
                (failed && self.is_too_much(number, settings))
                    .then(|| self.open(now, settings, None))
                    .flatten()
            }
            Admitted::Trial(round) if failed => self.open(now, settings, Some(round)),
            Admitted::Trial(round) => {
                let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
                if trial.round != round {
                    return None;
                }
                trial.under_way = trial.under_way.saturating_sub(1);
                trial.went_well += 1;
                if trial.went_well < settings.trials.max(1) {
                    return None;
                }
                let round = round.wrapping_add(1);
                *trial = Trial { in_a_row: trial.in_a_row, round, ..Trial::default() };
                self.window.iter().for_each(|tenth| tenth.0.store(0, Ordering::Relaxed));
                self.open_until.store(0, Ordering::Release);
                Some(Turn::Closed)
            }
        }
    }

    /// Withdraws an admitted request whose end says nothing about the pool, as when its client left.
    pub fn forget(&self, admitted: Admitted) {
        if let Admitted::Trial(round) = admitted {
            let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
            if trial.round == round {
                trial.under_way = trial.under_way.saturating_sub(1);
            }
        }
    }

    /// The state at `now`.
    pub fn state(&self, now: Duration) -> BreakerState {
        match self.open_until.load(Ordering::Acquire) {
            0 => BreakerState::Closed,
            until if nanoseconds(now) < until => {
                BreakerState::Open(Duration::from_nanos(until - nanoseconds(now)))
            }
            _ => BreakerState::Trying,
        }
    }

    /// How long it stays open (zero while trials run) and how often in a row it has opened; `None` while it
    /// is closed.
    pub fn openings(&self, now: Duration) -> Option<(Duration, u32)> {
        let left = match self.state(now) {
            BreakerState::Closed => return None,
            BreakerState::Open(left) => left,
            BreakerState::Trying => Duration::ZERO,
        };
        let trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        Some((left, trial.in_a_row))
    }

    /// Opens it for the time that was left in another process, capped by these settings.
    pub fn take_over(&self, (left, in_a_row): (Duration, u32), now: Duration, settings: &BreakerSettings) {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        trial.in_a_row = in_a_row.clamp(1, LONGEST_FACTOR);
        let left = left.min(settings.open.saturating_mul(trial.in_a_row));
        self.open_until.store(nanoseconds(now.saturating_add(left)).max(1), Ordering::Release);
    }

    fn number(&self, now: Duration, settings: &BreakerSettings) -> u64 {
        nanoseconds(now) / (nanoseconds(settings.within) / SLOTS as u64).max(1)
    }

    fn is_too_much(&self, number: u64, settings: &BreakerSettings) -> bool {
        let (mut requests, mut failures) = (0, 0);
        for back in 0..(SLOTS as u64).min(number + 1) {
            let at = number - back;
            let (more, failed) = self.window[at as usize % SLOTS].counts(at);
            requests += more;
            failures += failed;
        }
        requests >= u64::from(settings.of.max(1)) && failures as f64 >= settings.errors * requests as f64
    }

    /// Opens it unless it is open already; on behalf of a trial, unless that trial's round is over.
    fn open(&self, now: Duration, settings: &BreakerSettings, by_trial: Option<u32>) -> Option<Turn> {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = match by_trial {
            Some(round) => trial.round != round,
            None => self.open_until.load(Ordering::Acquire) != 0,
        };
        if is_late {
            return None;
        }
        let in_a_row = if by_trial.is_some() { (trial.in_a_row + 1).min(LONGEST_FACTOR) } else { 1 };
        *trial = Trial { in_a_row, round: trial.round.wrapping_add(1), ..Trial::default() };
        let length = settings.open.saturating_mul(trial.in_a_row);
        self.open_until.store(nanoseconds(now.saturating_add(length)).max(1), Ordering::Release);
        Some(Turn::Opened(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings {
        errors: 0.5,
        of: 4,
        within: Duration::from_secs(10),
        open: Duration::from_secs(5),
        trials: 2,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn goes(breaker: &Breaker, now: Duration, failed: bool) -> Option<Turn> {
        let admitted = breaker.admit(now, &SETTINGS).expect("it is let through");
        breaker.observe(admitted, failed, now, &SETTINGS)
    }

    fn opened() -> Breaker {
        let breaker = Breaker::default();
        assert_eq!((0..4).filter_map(|_| goes(&breaker, at(1), true)).last(), Some(Turn::Opened(at(5))));
        breaker
    }

    #[test]
    fn it_opens_at_its_share_of_enough_requests_and_not_before() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            assert_eq!(goes(&breaker, at(1), true), None, "three are too few");
        }
        assert_eq!(goes(&breaker, at(1), true), Some(Turn::Opened(at(5))));
        assert_eq!(breaker.admit(at(2), &SETTINGS), Err(at(4)));
        let calm = Breaker::default();
        for failed in [false, false, true, false, true, false, false] {
            assert_eq!(goes(&calm, at(1), failed), None);
        }
    }

    #[test]
    fn what_left_the_window_counts_no_more() {
        let breaker = Breaker::default();
        (0..3).for_each(|_| assert_eq!(goes(&breaker, at(1), true), None));
        assert_eq!(goes(&breaker, at(12), true), None);
        assert_eq!(breaker.state(at(12)), BreakerState::Closed);
    }

    #[test]
    fn a_few_are_tried_and_close_it_when_all_went_well() {
        let breaker = opened();
        assert!(!breaker.lets_through(at(5), &SETTINGS) && breaker.lets_through(at(6), &SETTINGS));
        let first = breaker.admit(at(6), &SETTINGS).expect("the first trial");
        let second = breaker.admit(at(6), &SETTINGS).expect("the second");
        assert!(matches!((first, second), (Admitted::Trial(_), Admitted::Trial(_))));
        assert_eq!(breaker.admit(at(6), &SETTINGS), Err(Duration::ZERO), "two are enough to know");
        assert!(!breaker.lets_through(at(6), &SETTINGS));
        assert_eq!(breaker.state(at(6)), BreakerState::Trying);
        assert_eq!(breaker.observe(first, false, at(6), &SETTINGS), None);
        assert_eq!(breaker.observe(second, false, at(7), &SETTINGS), Some(Turn::Closed));
        assert_eq!(breaker.admit(at(7), &SETTINGS), Ok(Admitted::Closed));
        assert_eq!(goes(&breaker, at(7), true), None, "what was before it opened is forgotten");
    }

    #[test]
    fn another_process_takes_it_over_as_it_stands_but_for_no_longer_than_its_own_settings_say() {
        assert_eq!(Breaker::default().openings(at(1)), None);
        let old = opened();
        assert_eq!(old.openings(at(2)), Some((at(4), 1)));
        let new = Breaker::default();
        new.take_over(old.openings(at(2)).unwrap(), at(100), &SETTINGS);
        assert_eq!(new.admit(at(100), &SETTINGS), Err(at(4)));
        // It opens for longer the next time, as the old one would.
        assert_eq!(goes(&new, at(104), true), Some(Turn::Opened(at(10))));
        assert_eq!(new.openings(at(120)), Some((Duration::ZERO, 2)), "trials are due");
        let later = Breaker::default();
        later.take_over((Duration::ZERO, 2), at(9), &SETTINGS);
        assert_eq!(later.state(at(9)), BreakerState::Trying);
        let bounded = Breaker::default();
        bounded.take_over((at(1 << 40), u32::MAX), at(9), &SETTINGS);
        assert_eq!(bounded.state(at(9)), BreakerState::Open(at(50)));
    }

    #[test]
    fn a_failed_trial_opens_it_for_longer_up_to_ten_times() {
        let breaker = opened();
        let mut now = at(1);
        let mut length = at(5);
        for expected in [2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10] {
            now += length;
            length = at(5) * expected;
            assert_eq!(goes(&breaker, now, true), Some(Turn::Opened(length)));
        }
    }

    #[test]
    fn a_trial_whose_client_left_makes_room_for_another() {
        let breaker = opened();
        let trials = [breaker.admit(at(6), &SETTINGS).unwrap(), breaker.admit(at(6), &SETTINGS).unwrap()];
        assert!(breaker.admit(at(6), &SETTINGS).is_err());
        breaker.forget(trials[0]);
        assert!(matches!(breaker.admit(at(6), &SETTINGS), Ok(Admitted::Trial(_))));
    }

    /// A trial that was answered late closed the breaker that another had opened again.
    #[test]
    fn a_trial_whose_round_is_over_says_nothing_more() {
        for is_forgotten in [false, true] {
            let breaker = opened();
            let slow = breaker.admit(at(6), &SETTINGS).expect("a trial");
            assert_eq!(goes(&breaker, at(6), true), Some(Turn::Opened(at(10))));
            match is_forgotten {
                false => assert_eq!(breaker.observe(slow, false, at(7), &SETTINGS), None),
                true => breaker.forget(slow),
            }
            assert_eq!(breaker.state(at(7)), BreakerState::Open(at(9)));
            let fresh = breaker.admit(at(16), &SETTINGS).expect("a trial of the next round");
            assert_eq!(breaker.observe(slow, false, at(16), &SETTINGS), None);
            assert_eq!(breaker.observe(slow, true, at(16), &SETTINGS), None);
            assert_eq!(breaker.observe(fresh, false, at(16), &SETTINGS), None, "one of two");
            assert_eq!(goes(&breaker, at(17), false), Some(Turn::Closed));
        }
    }

    /// One request that drips its body was a trial until it was whole, and nobody else was served meanwhile.
    #[test]
    fn a_trial_that_takes_longer_than_the_breaker_opens_for_gives_its_place_to_another() {
        let breaker = opened();
        let slow = breaker.admit(at(6), &SETTINGS).expect("a trial");
        assert_eq!(goes(&breaker, at(6), false), None);
        assert!(!breaker.lets_through(at(10), &SETTINGS) && breaker.admit(at(10), &SETTINGS).is_err());
        assert!(breaker.lets_through(at(11), &SETTINGS));
        let other = breaker.admit(at(11), &SETTINGS).expect("another");
        assert!(breaker.admit(at(11), &SETTINGS).is_err(), "one, and not as many as come");
        assert_eq!(breaker.observe(other, false, at(12), &SETTINGS), Some(Turn::Closed));
        assert_eq!(breaker.observe(slow, true, at(13), &SETTINGS), None);
        assert_eq!(breaker.state(at(13)), BreakerState::Closed);
    }

    #[test]
    fn what_was_sent_before_it_opened_neither_closes_nor_lengthens_it() {
        let breaker = Breaker::default();
        let early = breaker.admit(at(1), &SETTINGS).unwrap();
        for _ in 0..4 {
            goes(&breaker, at(1), true);
        }
        assert_eq!(breaker.state(at(2)), BreakerState::Open(at(4)));
        assert_eq!(breaker.observe(early, false, at(2), &SETTINGS), None);
        assert_eq!(breaker.observe(early, true, at(2), &SETTINGS), None);
        assert_eq!(breaker.state(at(2)), BreakerState::Open(at(4)));
    }

    #[test]
    fn threads_that_race_open_it_once() {
        let breaker = Breaker::default();
        let turns: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let one = |_| breaker.admit(at(1), &SETTINGS).ok();
                        let admitted: Vec<_> = (0..100).filter_map(one).collect();
                        let turn = |it| breaker.observe(it, true, at(1), &SETTINGS);
                        admitted.into_iter().filter_map(turn).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(turns, 1);
    }
}
