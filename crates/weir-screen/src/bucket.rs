//! A token bucket in one number: the generic cell rate algorithm (GCRA).
//!
//! A bucket is represented by the time at which it will be full again. Taking a token moves that time ahead
//! by one interval; if it would then be further ahead than the time to fill the whole bucket, the bucket is
//! empty. So no timer has to fill buckets, full ones need not be stored, and the long-term rate is exact
//! whatever the order in which threads come.
//!
//! Source: ITU-T Recommendation I.371, annex A.

use std::time::Duration;

use crate::rate::Rate;

/// Time in sixteenths of a nanosecond, so that even ten million a second are rounded by less than a
/// thousandth. Lasts for 36 years.
pub(crate) type Ticks = u64;

const TICKS_PER_NS: u64 = 16;

/// A bucket's debt is capped at this time, or at its fill time if that is longer, so that a moment in which
/// much went wrong keeps nobody out for days.
const LONGEST_DEBT: Ticks = 3_600 * 1_000_000_000 * TICKS_PER_NS;

/// `now` as a number.
pub(crate) fn ticks(now: Duration) -> Ticks {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_mul(TICKS_PER_NS)
}

/// A number of ticks as a duration.
pub(crate) fn duration(ticks: Ticks) -> Duration {
    Duration::from_nanos(ticks.div_ceil(TICKS_PER_NS))
}

/// The parameters that all buckets of a limit share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Time for one token.
    interval: Ticks,
    /// Time to fill an empty bucket.
    depth: Ticks,
}

impl Bucket {
    /// A bucket with a capacity of `burst` tokens (at least one), refilled at `rate`.
    pub fn new(rate: Rate, burst: u32) -> Bucket {
        let interval = (ticks(rate.per) / u64::from(rate.count)).max(1);
        Bucket { interval, depth: interval.saturating_mul(u64::from(burst.max(1))) }
    }

    /// Takes a token from a bucket that is full at `full_at`. Returns its new `full_at`, or as the error how
    /// long until there is a token.
    #[inline]
    pub fn take(&self, full_at: Ticks, now: Ticks) -> Result<Ticks, Ticks> {
        let after = full_at.max(now).saturating_add(self.interval);
        match (after - now).checked_sub(self.depth) {
            None | Some(0) => Ok(after),
            Some(wait) => Err(wait),
        }
    }

    /// Takes a token even if there is none, and returns the new `full_at`. A debt has to be filled up before
    /// there are tokens again.
    pub fn charge(&self, full_at: Ticks, now: Ticks) -> Ticks {
        full_at.max(now).saturating_add(self.interval).min(self.latest(now))
    }

    /// Takes the tokens that somebody else took at `at`, as a debt where there are fewer; a negative count
    /// returns tokens. Counts that are settled at the same time give the same in any order.
    pub fn settle(&self, full_at: Ticks, tokens: i32, [at, now]: [Ticks; 2]) -> Ticks {
        let change = self.interval.saturating_mul(u64::from(tokens.unsigned_abs()));
        match tokens < 0 {
            true => full_at.saturating_sub(change),
            false => full_at.max(at.min(now)).saturating_add(change).min(self.latest(now)),
        }
    }

    /// The larger one of two debts: that of the bucket, and `owed`.
    pub fn owe(&self, full_at: Ticks, owed: Ticks, now: Ticks) -> Ticks {
        full_at.max(now.saturating_add(owed).min(self.latest(now)))
    }

    fn latest(&self, now: Ticks) -> Ticks {
        now.saturating_add(self.depth).saturating_add(self.depth.max(LONGEST_DEBT))
    }

    /// Returns an unused token.
    pub fn give_back(&self, full_at: Ticks) -> Ticks {
        full_at.saturating_sub(self.interval)
    }

    /// Number of whole tokens in a bucket.
    pub fn tokens(&self, full_at: Ticks, now: Ticks) -> u64 {
        self.depth.saturating_sub(full_at.saturating_sub(now)) / self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: &str, burst: u32) -> Bucket {
        Bucket::new(Rate::parse(rate).unwrap(), burst)
    }

    const SECOND: Ticks = 1_000_000_000 * TICKS_PER_NS;

    #[test]
    fn a_full_bucket_gives_its_burst_at_once_and_then_one_each_interval() {
        let bucket = bucket("10/s", 3);
        let now = 7 * SECOND;
        let mut full_at = 0;
        for left in [3, 2, 1] {
            assert_eq!(bucket.tokens(full_at, now), left);
            full_at = bucket.take(full_at, now).unwrap();
        }
        assert_eq!(bucket.tokens(full_at, now), 0);
        assert_eq!(bucket.take(full_at, now), Err(SECOND / 10));
        assert_eq!(bucket.take(full_at, now + SECOND / 10 - 1), Err(1));
        full_at = bucket.take(full_at, now + SECOND / 10).unwrap();
        assert_eq!(bucket.take(full_at, now + SECOND / 10), Err(SECOND / 10));
        assert_eq!(bucket.tokens(full_at, now + SECOND), 3, "never more than its burst");
    }

    #[test]
    fn what_was_given_back_can_be_taken_again() {
        let bucket = bucket("1/h", 1);
        let taken = bucket.take(0, SECOND).unwrap();
        assert!(bucket.take(taken, SECOND).is_err());
        assert!(bucket.take(bucket.give_back(taken), SECOND).is_ok());
    }

    #[test]
    fn what_is_charged_beyond_the_burst_is_a_debt_that_has_an_end() {
        let (bucket, now) = (bucket("10/m", 10), 7 * SECOND);
        let charged = |count: u32| (0..count).fold(0, |full_at, _| bucket.charge(full_at, now));
        assert_eq!(bucket.tokens(charged(3), now), 7);
        assert_eq!(bucket.take(charged(10), now), Err(6 * SECOND));
        assert_eq!((bucket.tokens(charged(30), now), bucket.take(charged(30), now)), (0, Err(126 * SECOND)));
        assert_eq!(bucket.take(charged(100_000), now), Err(3_606 * SECOND));
        let slow = self::bucket("2/d", 2);
        let owed = (0..100).fold(0, |full_at, _| slow.charge(full_at, now));
        assert_eq!(slow.take(owed, now), Err((86_400 + 43_200) * SECOND));
        assert!(slow.charge(u64::MAX, u64::MAX) > 0);
    }

    #[test]
    fn a_clock_that_is_a_little_behind_takes_nothing_from_nobody() {
        let bucket = bucket("100/s", 1);
        let full_at = bucket.take(0, 5 * SECOND).unwrap();
        assert!(bucket.take(full_at, 5 * SECOND - 3).is_err());
        assert!(bucket.take(full_at, 5 * SECOND + SECOND / 100).is_ok());
    }

    #[test]
    fn the_slowest_and_the_fastest_rate_neither_overflow_nor_round_away() {
        for (rate, burst) in [("1/7d", 10_000_000), ("10000000/s", 10_000_000), ("9999999/s", 1)] {
            let bucket = bucket(rate, burst);
            let full_at = bucket.take(0, 36 * 365 * 86_400 * SECOND / 40).unwrap();
            assert!(full_at > 0);
            let exact = SECOND as f64 * Rate::parse(rate).unwrap().per.as_secs_f64()
                / f64::from(Rate::parse(rate).unwrap().count);
            assert!((bucket.interval as f64 / exact - 1.0).abs() < 0.001, "{rate}");
        }
    }
}
