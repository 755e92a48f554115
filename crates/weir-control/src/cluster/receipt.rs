//! What a failover was like: when the primary was last seen, when it was missed, when there was one again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_mysql::topology::NoPrimary;

use crate::timestamp::Timestamp;

/// A moment by the clock that durations are measured by, and by the one that people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Duration,
    pub(super) time: Timestamp,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { at: weir_io::clock::now(), time: Timestamp::now() }
    }

    /// Seconds since an `earlier` one.
    fn since(self, earlier: Moment) -> f64 {
        self.at.saturating_sub(earlier.at).as_secs_f64()
    }
}

/// One failover, from one primary to the next, which may be the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The primary that was lost, or that handed over.
    pub from: String,
    /// The primary since.
    pub to: String,
    /// Why there was none, as it was seen first; empty where the next one was seen at once.
    pub reason: String,
    /// When the former one last said that it is the primary.
    pub last_seen: Timestamp,
    /// When it was known to be the primary no more. From then on statements were parked.
    pub detected: Timestamp,
    /// When the next one had said that it takes writes, and writes were sent to it.
    pub writable: Timestamp,
    /// From `last_seen` to `detected`.
    pub unnoticed_seconds: f64,
    /// From `detected` to `writable`.
    pub absent_seconds: f64,
    /// Statements and logins that were parked meanwhile.
    pub parked: u64,
}

/// Follows the primary of a pool, and writes the receipts.
#[derive(Default)]
pub(super) struct Ledger {
    /// The primary that there is, or was last, and when it last said so.
    last: Option<(String, Moment)>,
    lost: Option<Lost>,
}

struct Lost {
    reason: &'static str,
    detected: Moment,
    /// What the pool had parked so far.
    parked: u64,
}

impl Ledger {
    /// Knows the primary of the process before.
    pub(super) fn of(primary: Option<String>, now: Moment) -> Ledger {
        Ledger { last: primary.map(|primary| (primary, now)), lost: None }
    }

    /// The primary said again that it is.
    pub(super) fn saw(&mut self, primary: &str, now: Moment) {
        match &mut self.last {
            Some((last, seen)) if last == primary => *seen = now,
            last => *last = Some((primary.to_owned(), now)),
        }
    }

    /// Takes what was decided; `parked` is how many statements the pool has parked so far. Gives a receipt
    /// once there is a primary after one was lost.
    pub(super) fn decided(
        &mut self,
        primary: Result<&str, NoPrimary>,
        now: Moment,
        parked: u64,
    ) -> Option<Receipt> {
        let to = match primary {
            Err(reason) => {
                if self.last.is_some() && self.lost.is_none() {
                    self.lost = Some(Lost { reason: reason.words(), detected: now, parked });
                }
                return None;
            }
            Ok(to) => to.to_owned(),
        };
        let (from, last_seen) = self.last.replace((to.clone(), now))?;
        let lost = self.lost.take();
        if lost.is_none() && from == to {
            return None;
        }
        let lost = lost.unwrap_or(Lost { reason: "", detected: now, parked });
        Some(Receipt {
            from,
            to,
            reason: lost.reason.to_owned(),
            last_seen: last_seen.time,
            detected: lost.detected.time,
            writable: now.time,
            unnoticed_seconds: lost.detected.since(last_seen),
            absent_seconds: now.since(lost.detected),
            parked: parked.saturating_sub(lost.parked),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(ms: u64) -> Moment {
        let at = Duration::from_millis(ms);
        Moment { at, time: Timestamp::of(std::time::UNIX_EPOCH + at) }
    }

    #[test]
    fn a_receipt_says_how_long_a_primary_was_away_and_how_many_waited() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.decided(Err(NoPrimary::NobodyAnswers), moment(0), 0), None);
        assert_eq!(ledger.decided(Ok("a"), moment(10), 3), None, "the first one takes over from nobody");
        ledger.saw("a", moment(1000));
        assert_eq!(ledger.decided(Err(NoPrimary::Silent), moment(1030), 3), None);
        assert_eq!(ledger.decided(Err(NoPrimary::NoneElected), moment(1050), 5), None);
        let receipt = ledger.decided(Ok("b"), moment(7030), 45).unwrap();
        assert_eq!((&*receipt.from, &*receipt.to), ("a", "b"));
        assert_eq!(receipt.reason, NoPrimary::Silent.words());
        assert_eq!((receipt.unnoticed_seconds, receipt.absent_seconds, receipt.parked), (0.03, 6.0, 42));
        assert_eq!(receipt.writable, moment(7030).time);
    }

    #[test]
    fn a_primary_that_hands_over_between_two_looks_was_never_away() {
        let mut ledger = Ledger::of(Some("a".to_owned()), moment(0));
        ledger.saw("a", moment(100));
        let receipt = ledger.decided(Ok("b"), moment(140), 0).unwrap();
        assert_eq!((receipt.unnoticed_seconds, receipt.absent_seconds, &*receipt.reason), (0.04, 0.0, ""));
        assert_eq!(ledger.decided(Ok("b"), moment(150), 0), None);
    }

    #[test]
    fn a_primary_that_comes_back_gets_a_receipt_too() {
        let mut ledger = Ledger::of(Some("a".to_owned()), moment(0));
        ledger.decided(Err(NoPrimary::Silent), moment(10), 0);
        let receipt = ledger.decided(Ok("a"), moment(20), 1).unwrap();
        assert_eq!((receipt.from == receipt.to, receipt.parked), (true, 1));
    }
}
