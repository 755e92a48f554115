//! Limits how many requests on a connection to a backend are reset before they are answered. Backends take
//! many resets at once for an attack (Rapid Reset, CVE-2023-44487) and end the connection, with the requests
//! of other clients on it.

use std::cell::Cell;
use std::time::Duration;

/// How many may be reset at once, which no backend takes for an attack: the `h2` crate, and what is built on
/// it, tolerates 20 that it has not processed.
const AT_ONCE: u32 = 20;
/// One more may be reset each time this has passed.
const PAUSE: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Default)]
pub struct Resets {
    /// When all resets so far are forgotten.
    spent_until: Cell<Duration>,
}

impl Resets {
    /// Counts one more. Gives how long to wait before the stream is reset.
    pub fn take(&self, now: Duration) -> Duration {
        self.spent_until.set(self.spent_until.get().max(now) + PAUSE);
        self.spent_until.get().saturating_sub(now + PAUSE * AT_ONCE)
    }

    /// Notes that a request was answered. Two answers make up for one reset: where most requests are answered
    /// there is no attack, and with many requests there are also many clients that lose patience.
    pub fn answered(&self) {
        self.spent_until.set(self.spent_until.get().saturating_sub(PAUSE / 2));
    }

    /// Whether the next reset would have to wait.
    pub fn is_spent(&self, now: Duration) -> bool {
        self.spent_until.get().saturating_sub(now) > PAUSE * (AT_ONCE - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_one_by_one() {
        let (resets, now) = (Resets::default(), Duration::from_secs(7));
        for number in 0..AT_ONCE {
            assert!(!resets.is_spent(now), "{number}");
            assert_eq!(resets.take(now), Duration::ZERO, "{number}");
        }
        assert!(resets.is_spent(now));
        assert_eq!(resets.take(now), PAUSE);
        assert_eq!(resets.take(now), 2 * PAUSE);
        (0..8).for_each(|_| resets.answered());
        assert!(!resets.is_spent(now));
        let later = now + PAUSE * (AT_ONCE + 2);
        assert!(!resets.is_spent(later));
        assert_eq!(resets.take(later), Duration::ZERO);
    }
}
