//! When a connection without exchanges is idle; the same for all versions of HTTP. Pure.
//!
//! For Weir an exchange is over when its last byte was handed on. The client may still be reading: bytes in
//! buffers, in the kernel or unacknowledged are work in progress. So a connection is idle while no exchange
//! runs, nothing is unsent, and nothing is received.

use std::time::Duration;

/// How often unsent bytes are checked within the time that a connection may be idle. Each check may be a
/// system call.
const LOOKS: u32 = 4;
/// Time until the next check of a connection that was asked to make room for another and could not: a client
/// may take this long to acknowledge data (RFC 1122 §4.2.3.2: less than half a second; Linux 40 ms).
const SOON: Duration = Duration::from_millis(100);

/// The result of a check of a connection without exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleVerdict {
    /// It is not idle, or not for long enough: check again at [`Idleness::due`].
    Stays,
    /// Nothing has happened for as long as it may be idle.
    Idle,
    /// Something is unsent, and none of it was taken for as long as that may last, whatever the client has
    /// sent meanwhile (threat D1).
    Stalled,
}

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// While nothing is unsent.
    pub idle: Duration,
    /// While something is unsent, and none of it is taken.
    pub stalled: Duration,
}

/// How long a connection without exchanges has been idle.
#[derive(Clone, Copy, Debug)]
pub struct Idleness {
    /// When an exchange ended, something was received, or everything was found to be sent.
    quiet_since: Duration,
    /// The result of the last check; `None` if nothing was unsent.
    unsent: Option<Unsent>,
}

#[derive(Clone, Copy, Debug)]
struct Unsent {
    /// How much the client had taken; `None` before the first check.
    taken: Option<u64>,
    /// When it last took more.
    since: Duration,
    looked_at: Duration,
    /// Whether the next check must be soon.
    is_urgent: bool,
}

impl Idleness {
    /// For a connection on which nothing was sent yet.
    pub fn of_new(now: Duration) -> Idleness {
        Idleness { quiet_since: now, unsent: None }
    }

    /// For a connection whose last exchange ended at `now`.
    pub fn behind_exchange(now: Duration) -> Idleness {
        let unsent = Unsent { taken: None, since: now, looked_at: now, is_urgent: false };
        Idleness { quiet_since: now, unsent: Some(unsent) }
    }

    /// Something was received.
    pub fn heard(&mut self, now: Duration) {
        self.quiet_since = now;
    }

    /// Since when it has been idle; `None` while something is known to be unsent.
    pub fn since(&self) -> Option<Duration> {
        let is_unsent = self.unsent.is_some_and(|unsent| unsent.taken.is_some());
        (!is_unsent).then_some(self.quiet_since)
    }

    /// When to check next.
    pub fn due(&self, patience: Patience) -> Duration {
        match &self.unsent {
            None => self.quiet_since + patience.idle,
            Some(unsent) => {
                let usual = patience.idle.min(patience.stalled) / LOOKS;
                unsent.looked_at + if unsent.is_urgent { usual.min(SOON) } else { usual }
            }
        }
    }

    /// Checks because the connection was asked to make room for another one. True if it can.
    pub fn makes_room(&mut self, taken: Option<u64>, now: Duration, patience: Patience) -> bool {
        self.look(taken, now, patience);
        if let Some(unsent) = &mut self.unsent {
            unsent.is_urgent = true;
        }
        taken.is_none()
    }

    /// Checks the connection. `taken` is how much the client has taken so far, in any measure that grows;
    /// `None` if nothing is left that it has not taken, wherever that may lie.
    pub fn look(&mut self, taken: Option<u64>, now: Duration, patience: Patience) -> IdleVerdict {
        let before = self.unsent.take();
        let Some(taken) = taken else {
            if before.is_some_and(|before| before.taken.is_some()) {
                self.quiet_since = now;
            }
            return if now >= self.quiet_since + patience.idle {
                IdleVerdict::Idle
            } else {
                IdleVerdict::Stays
            };
        };
        let before = before.filter(|before| before.taken.is_some_and(|before| before >= taken));
        let since = before.map_or(now, |before| before.since);
        self.unsent = Some(Unsent { taken: Some(taken), since, looked_at: now, is_urgent: false });
        if now >= since + patience.stalled { IdleVerdict::Stalled } else { IdleVerdict::Stays }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { idle: Duration::from_secs(60), stalled: Duration::from_secs(30) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Checks whenever it is due, until the connection ends; `taken_at` gives what the client has taken by
    /// then. Gives when it ended, and how.
    fn end_of(mut idleness: Idleness, taken_at: impl Fn(u64) -> Option<u64>) -> (u64, IdleVerdict) {
        for _ in 0..1000 {
            let now = idleness.due(PATIENCE);
            match idleness.look(taken_at(now.as_secs()), now, PATIENCE) {
                IdleVerdict::Stays => {
                    assert!(idleness.due(PATIENCE) > now, "it would be looked at without end")
                }
                ended => return (now.as_secs(), ended),
            }
        }
        panic!("it never ends");
    }

    #[test]
    fn a_connection_on_which_nothing_happens_is_idle_when_its_time_is_over() {
        assert_eq!(end_of(Idleness::of_new(at(5)), |_| None), (65, IdleVerdict::Idle));
        assert_eq!(end_of(Idleness::behind_exchange(at(5)), |_| None), (65, IdleVerdict::Idle));
    }

    #[test]
    fn what_is_received_begins_the_time_anew() {
        let mut idleness = Idleness::behind_exchange(at(0));
        assert_eq!(idleness.look(None, at(15), PATIENCE), IdleVerdict::Stays);
        idleness.heard(at(50));
        assert_eq!(idleness.look(None, at(60), PATIENCE), IdleVerdict::Stays);
        assert_eq!((idleness.since(), end_of(idleness, |_| None)), (Some(at(50)), (110, IdleVerdict::Idle)));
    }

    #[test]
    fn a_client_that_reads_slowly_is_not_idle_before_it_has_read_all() {
        // 3.6 MB at 45 KB/s.
        let taken_at = |now| (now < 80).then_some(45_000 * now);
        let (end, verdict) = end_of(Idleness::behind_exchange(at(0)), taken_at);
        assert_eq!(verdict, IdleVerdict::Idle);
        assert!((140..=150).contains(&end), "{end}");
    }

    #[test]
    fn d1_a_client_that_takes_nothing_is_stalled_whatever_it_says() {
        let mut idleness = Idleness::behind_exchange(at(0));
        for now in 1..100 {
            idleness.heard(at(now));
            if idleness.due(PATIENCE) > at(now) {
                continue;
            }
            if idleness.look(Some(1000), at(now), PATIENCE) == IdleVerdict::Stalled {
                assert!((38..=45).contains(&now), "{now}");
                return;
            }
            assert_eq!(idleness.since(), None);
        }
        panic!("it is not given up");
    }

    #[test]
    fn a_connection_that_could_not_make_room_counts_as_idle_again_soon_after_it_can() {
        let mut idleness = Idleness::behind_exchange(at(0));
        assert!(!idleness.makes_room(Some(1), at(5), PATIENCE));
        assert_eq!((idleness.since(), idleness.due(PATIENCE)), (None, at(5) + SOON));
        assert_eq!(idleness.look(None, at(5) + SOON, PATIENCE), IdleVerdict::Stays);
        assert_eq!(idleness.since(), Some(at(5) + SOON));
        assert!(idleness.makes_room(None, at(6), PATIENCE));
    }

    #[test]
    fn what_becomes_unsent_later_has_its_own_time() {
        let mut idleness = Idleness::of_new(at(0));
        idleness.heard(at(59));
        assert_eq!(idleness.look(Some(17), at(60), PATIENCE), IdleVerdict::Stays);
        assert_eq!(idleness.look(None, at(75), PATIENCE), IdleVerdict::Stays);
        assert_eq!(end_of(idleness, |_| None), (135, IdleVerdict::Idle));
    }
}
