//! Limits how many requests on a connection to a backend are reset. Backends take many resets at once for an
//! attack (Rapid Reset, CVE-2023-44487) and end the connection, with the requests of other clients on it.

use std::cell::Cell;
use std::time::Duration;

/// How many may be reset at once before they are answered, which no backend takes for an attack: the `h2`
/// crate, and what is built on it, tolerates 20 that it has not processed.
const AT_ONCE: u32 = 20;
/// One more may be reset each time this has passed.
const PAUSE: Duration = Duration::from_millis(250);

/// The same for all resets, in the middle of an answer too: servers on Netty end a connection with more than
/// 200 of them in 30 s (Armeria: 400 in 60 s), and those on nghttp2 with a thousand and 33 in each second,
/// however many other requests it carries. Another Weir bears 90 at once (`limits.control_frames`).
const OF_ALL_AT_ONCE: u32 = 60;
const PAUSE_OF_ALL: Duration = Duration::from_millis(333);
/// A backend is not kept at an answer that nobody wants for longer than this.
const LONGEST_WAIT_OF_ALL: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub struct Resets {
    /// When all resets before an answer so far are forgotten.
    spent_until: Cell<Duration>,
    /// The same for all resets.
    all_spent_until: Cell<Duration>,
}

impl Resets {
    /// Counts one more. Gives how long to wait before the stream is reset.
    pub fn take(&self, now: Duration, is_answered: bool) -> Duration {
        let waits = |spent: &Cell<Duration>, at_once: u32, pause: Duration| {
            spent.set(spent.get().max(now) + pause);
            spent.get().saturating_sub(now + pause * at_once)
        };
        let of_all = waits(&self.all_spent_until, OF_ALL_AT_ONCE, PAUSE_OF_ALL).min(LONGEST_WAIT_OF_ALL);
        match is_answered {
            true => of_all,
            false => of_all.max(waits(&self.spent_until, AT_ONCE, PAUSE)),
        }
    }

    /// Notes that a request was answered. Two answers make up for one reset before an answer: where most
    /// requests are answered there is no attack, and with many requests there are also many clients that lose
    /// patience.
    pub fn answered(&self) {
        self.spent_until.set(self.spent_until.get().saturating_sub(PAUSE / 2));
    }

    /// Whether the next reset would have to wait.
    pub fn is_spent(&self, now: Duration) -> bool {
        self.spent_until.get().saturating_sub(now) > PAUSE * (AT_ONCE - 1)
            || self.all_spent_until.get().saturating_sub(now) > PAUSE_OF_ALL * (OF_ALL_AT_ONCE - 1)
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
            assert_eq!(resets.take(now, false), Duration::ZERO, "{number}");
        }
        assert!(resets.is_spent(now));
        assert_eq!(resets.take(now, false), PAUSE);
        assert_eq!(resets.take(now, false), 2 * PAUSE);
        (0..8).for_each(|_| resets.answered());
        assert!(!resets.is_spent(now));
        let later = now + PAUSE * (AT_ONCE + 2);
        assert!(!resets.is_spent(later));
        assert_eq!(resets.take(later, false), Duration::ZERO);
    }

    #[test]
    fn no_answers_make_up_for_more_resets_than_any_backend_bears() {
        let (resets, start) = (Resets::default(), Duration::from_secs(7));
        let count_until = |end: Duration| {
            let mut now = start;
            let mut count = 0;
            while now < end {
                (0..10).for_each(|_| resets.answered());
                match resets.is_spent(now) {
                    true => now += Duration::from_millis(10),
                    false => {
                        assert_eq!(resets.take(now, count % 2 == 0), Duration::ZERO, "{count}");
                        count += 1;
                    }
                }
            }
            count
        };
        assert!((140..160).contains(&count_until(start + Duration::from_secs(30))));
    }

    #[test]
    fn what_is_left_behind_in_an_answer_is_reset_in_the_end() {
        let (resets, now) = (Resets::default(), Duration::from_secs(7));
        let last = (0..1000).map(|_| resets.take(now, true)).last();
        assert_eq!(last, Some(LONGEST_WAIT_OF_ALL));
    }
}
