//! By how much longer than usual a message was on its way.
//!
//! Nobody compares clocks: what counts is how the difference between both clocks grows. Its least value in
//! the last minute is that of a message that was quick; whatever exceeds it, the message has waited, mostly
//! for a segment that TCP sent again. Clocks that drift apart are forgotten with their minute.

use std::time::Duration;

/// Time after which the least difference is that of later messages.
const WINDOW: Duration = Duration::from_secs(30);

/// The delays of one connection.
#[derive(Debug, Default)]
pub struct Lag {
    /// Least difference of this window and of the one before, in milliseconds.
    least: [Option<i64>; 2],
    began: Duration,
}

impl Lag {
    /// By how much longer than usual the message of `sent_ms` was on its way when it came, at `now`.
    pub fn of(&mut self, sent_ms: u64, now: Duration) -> Duration {
        let [sent_ms, now_ms] =
            [u128::from(sent_ms), now.as_millis()].map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let difference = now_ms.saturating_sub(sent_ms);
        if now.saturating_sub(self.began) >= WINDOW {
            self.began = now;
            self.least = [None, self.least[0]];
        }
        self.least[0] = Some(self.least[0].map_or(difference, |least| least.min(difference)));
        let least = self.least.iter().flatten().min().copied().unwrap_or(difference);
        Duration::from_millis(u64::try_from(difference.saturating_sub(least)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_message_is_as_old_as_it_was_later_than_the_quickest() {
        let mut lag = Lag::default();
        for (sent, came, late) in [
            (5_000, 100, 0),
            (5_100, 195, 0),
            (5_200, 3_300, 3_005),
            (5_300, 3_300, 2_905),
            (8_500, 3_596, 1),
        ] {
            assert_eq!(lag.of(sent, ms(came)), ms(late), "{sent}");
        }
    }

    #[test]
    fn clocks_that_drift_apart_are_not_taken_for_delay() {
        let mut lag = Lag::default();
        // 200 ms an hour, for ten hours.
        for second in 0..36_000_u64 {
            let late = lag.of(second * 1_000, ms(second * 1_000 + second / 18));
            assert!(late < ms(10), "{late:?} after {second} s");
        }
    }

    #[test]
    fn no_time_is_too_large() {
        let mut lag = Lag::default();
        for (sent, came) in [(u64::MAX, 0), (0, u64::MAX / 2), (u64::MAX, u64::MAX / 2)] {
            lag.of(sent, ms(came));
        }
    }
}
