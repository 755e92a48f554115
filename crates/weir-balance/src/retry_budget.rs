//! Limits the retries of a pool, so that retries can't turn a brown-out into a collapse.
//!
//! A retry is granted only if the retries of the last ten seconds, including it, stay at or below a
//! percentage of the requests of the same ten seconds plus a small allowance, which lets a quiet pool retry
//! at all. That holds at the moment of each grant; later, the requests that justified it may leave the window
//! before it does. Counts are kept per second in a ring of atomics.
//!
//! Source: Finagle's `RetryBudget` (percent, minimum per second, ten-second lifetime); Google SRE book, ch.
//! 21, "Handling Overload".

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds that count as recent.
pub(crate) const WINDOW_SECONDS: u64 = 10;

/// More slots than the window, so that a worker whose clock read is a little old doesn't hit a slot that is
/// already reused.
const SLOTS: usize = 16;

/// How many retries a pool may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryShare {
    /// Retries per 1000 recent requests (0..=1000).
    pub per_mille: u32,
    /// Retries per second (count) allowed whatever the traffic, averaged over ten seconds.
    pub per_second: u32,
}

impl Default for RetryShare {
    /// A fifth of the requests, plus ten a second.
    fn default() -> RetryShare {
        RetryShare { per_mille: 200, per_second: 10 }
    }
}

/// The retry allowance of one pool; shared by all workers, lock-free.
#[derive(Debug)]
pub struct RetryBudget {
    per_mille: AtomicU64,
    per_second: AtomicU64,
    requests: [Second; SLOTS],
    retries: [Second; SLOTS],
}

impl RetryBudget {
    /// A budget with these settings.
    pub fn new(settings: RetryShare) -> RetryBudget {
        RetryBudget {
            per_mille: AtomicU64::new(u64::from(settings.per_mille)),
            per_second: AtomicU64::new(u64::from(settings.per_second)),
            requests: Default::default(),
            retries: Default::default(),
        }
    }

    pub(crate) fn set(&self, settings: RetryShare) {
        self.per_mille.store(u64::from(settings.per_mille), Ordering::Relaxed);
        self.per_second.store(u64::from(settings.per_second), Ordering::Relaxed);
    }

    /// Counts one request (not a retry). O(1), one atomic addition.
    pub fn deposit(&self, now: Duration) {
        self.requests[slot(now.as_secs())].add(now.as_secs());
    }

    /// Asks for one retry; `false` means that the failure must go to the client. O(1) (32 atomic loads) and
    /// exact: concurrent callers may be refused a little early but never exceed the budget together.
    ///
    /// Takes `now` because the allowance is per time and this crate reads no clock.
    pub fn withdraw(&self, now: Duration) -> bool {
        let second = now.as_secs();
        // Counted first and taken back if too many, so that two threads can't both take the last one.
        if !self.retries[slot(second)].add(second) {
            return false;
        }
        let allowed = self.allowed(second);
        if sum(&self.retries, second) <= allowed {
            return true;
        }
        self.retries[slot(second)].subtract(second);
        false
    }

    /// Retries that could be sent now (count), for status pages.
    pub fn available(&self, now: Duration) -> u64 {
        let second = now.as_secs();
        self.allowed(second).saturating_sub(sum(&self.retries, second))
    }

    fn allowed(&self, second: u64) -> u64 {
        let share = sum(&self.requests, second) * self.per_mille.load(Ordering::Relaxed) / 1000;
        share + self.per_second.load(Ordering::Relaxed) * WINDOW_SECONDS
    }
}

/// The count of one second: the second's low 32 bits above a 32-bit count.
#[derive(Debug, Default)]
struct Second(AtomicU64);

impl Second {
    /// `false` when the slot already belongs to a later second, because the caller's clock read is older than
    /// the window.
    fn add(&self, second: u64) -> bool {
        let seen = self.0.load(Ordering::SeqCst);
        if seen >> 32 == u64::from(second as u32) {
            // The slot can be reused between load and addition only if this thread slept for 16 seconds right
            // here; the addition then counts in the wrong second, which is harmless.
            self.0.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |cell| {
                let held = cell >> 32;
                match held.cmp(&u64::from(second as u32)) {
                    std::cmp::Ordering::Equal => Some(cell + 1),
                    std::cmp::Ordering::Less => Some(u64::from(second as u32) << 32 | 1),
                    std::cmp::Ordering::Greater => None,
                }
            })
            .is_ok()
    }

    fn subtract(&self, second: u64) {
        // If the slot was reused meanwhile there is nothing to take back.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |cell| {
            (cell >> 32 == u64::from(second as u32) && cell as u32 > 0).then(|| cell - 1)
        });
    }
}

fn slot(second: u64) -> usize {
    (second % SLOTS as u64) as usize
}

fn sum(slots: &[Second; SLOTS], now: u64) -> u64 {
    let now = u64::from(now as u32);
    slots
        .iter()
        .map(|slot| slot.0.load(Ordering::SeqCst))
        .filter(|cell| {
            let age = now.wrapping_sub(cell >> 32);
            age < WINDOW_SECONDS
        })
        .map(|cell| u64::from(cell as u32))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: u64 = 10 * WINDOW_SECONDS;

    fn withdraw_all(budget: &RetryBudget, now: Duration) -> u64 {
        (0..100_000).take_while(|_| budget.withdraw(now)).count() as u64
    }

    #[test]
    fn a_quiet_pool_may_retry_its_reserve_and_no_more() {
        let budget = RetryBudget::new(RetryShare::default());
        assert_eq!(withdraw_all(&budget, Duration::from_secs(50)), RESERVE);
        assert_eq!(budget.available(Duration::from_secs(59)), 0);
        assert_eq!(budget.available(Duration::from_secs(60)), RESERVE);
    }

    #[test]
    fn a_fifth_of_recent_requests_may_be_retried() {
        let budget = RetryBudget::new(RetryShare::default());
        let now = Duration::from_secs(7);
        (0..1000).for_each(|_| budget.deposit(now));
        assert_eq!(withdraw_all(&budget, now), 200 + RESERVE);
    }

    #[test]
    fn requests_of_long_ago_allow_nothing_now() {
        let budget = RetryBudget::new(RetryShare::default());
        (0..1000).for_each(|_| budget.deposit(Duration::from_secs(7)));
        assert_eq!(budget.available(Duration::from_secs(16)), 200 + RESERVE);
        assert_eq!(budget.available(Duration::from_secs(17)), RESERVE);
    }

    #[test]
    fn threads_that_race_for_the_last_retry_never_exceed_the_budget() {
        let budget = RetryBudget::new(RetryShare::default());
        let now = Duration::from_secs(3);
        (0..5000).for_each(|_| budget.deposit(now));
        let granted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        granted.fetch_add(u64::from(budget.withdraw(now)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(granted.load(Ordering::Relaxed) <= 1000 + RESERVE);
        // Once the race is over whatever was refused too early is still there to take.
        let rest = withdraw_all(&budget, now);
        assert_eq!(granted.load(Ordering::Relaxed) + rest, 1000 + RESERVE);
    }

    #[test]
    fn a_clock_read_older_than_the_ring_is_refused_not_miscounted() {
        let budget = RetryBudget::new(RetryShare::default());
        assert!(budget.withdraw(Duration::from_secs(20)));
        assert!(!budget.withdraw(Duration::from_secs(4)));
        assert_eq!(budget.available(Duration::from_secs(20)), RESERVE - 1);
    }
}
