//! The record of a failover: when the primary was last seen, when it was missed, and when there was one
//! again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_mysql::topology::NoPrimary;
use weir_state::Pool;
use weir_stats::Counter;
use weir_stats::table::PoolCells;

use crate::timestamp::Timestamp;

/// A moment by the monotonic clock and by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Duration,
    pub(super) time: Timestamp,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { at: weir_io::clock::now(), time: Timestamp::now() }
    }

    /// Seconds since an `earlier` moment.
    fn since(self, earlier: Moment) -> f64 {
        self.at.saturating_sub(earlier.at).as_secs_f64()
    }
}

/// One failover, from one primary to the next, which may be the same server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The primary that was lost, or that handed over.
    pub from: String,
    /// The new primary.
    pub to: String,
    /// Why there was none, as first seen; empty if the next one was seen at once.
    pub reason: String,
    /// When the former primary last said that it is the primary.
    pub last_seen: Timestamp,
    /// When it was found not to be the primary any more. From then on statements were parked.
    pub detected: Timestamp,
    /// When the next one had said that it accepts writes, and writes were sent to it.
    pub writable: Timestamp,
    /// From `last_seen` to `detected`.
    pub unnoticed_seconds: f64,
    /// From `detected` to `writable`.
    pub absent_seconds: f64,
    /// Statements and logins parked meanwhile.
    pub parked: u64,
    /// Statements that continued on another server, from `last_seen` to shortly after `writable`, because
    /// theirs was lost or no longer accepted writes.
    #[serde(default)]
    pub moved: u64,
    /// Clients that were notified in that time, by an error or the end of their connection, that their server
    /// was lost or no longer accepted writes, or that there was no primary.
    #[serde(default)]
    pub failed: u64,
}

/// The counts of a pool so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) parked: u64,
    pub(super) moved: u64,
    pub(super) failed: u64,
}

impl Tally {
    /// The counts of a pool, summed over all workers.
    pub(super) fn of(pool: &Pool) -> Tally {
        let total = |cell: fn(&PoolCells) -> &Counter| pool.cells.total(cell);
        Tally {
            parked: total(|cells| &cells.parked),
            moved: total(|cells| &cells.moved),
            failed: total(|cells| &cells.failed),
        }
    }
}

/// A failover that has ended, while affected clients are still being notified: workers leave the former
/// primary when its role goes to another, which is when the watch has decided.
#[derive(Debug, PartialEq)]
pub(super) struct OpenReceipt {
    receipt: Receipt,
    /// The pool's counts when the former primary was last seen.
    before: Tally,
}

impl OpenReceipt {
    /// Completes the receipt with the pool's current counts.
    pub(super) fn close(self, tally: Tally) -> Receipt {
        Receipt {
            moved: tally.moved.saturating_sub(self.before.moved),
            failed: tally.failed.saturating_sub(self.before.failed),
            ..self.receipt
        }
    }
}

/// Follows the primary of a pool, and writes the receipts.
#[derive(Default)]
pub(super) struct FailoverLedger {
    /// The current or last primary.
    last: Option<LastSeen>,
    lost: Option<Lost>,
}

/// A primary, when it last said that it is one, and the pool's counts then.
struct LastSeen {
    primary: String,
    at: Moment,
    tally: Tally,
}

struct Lost {
    reason: &'static str,
    detected: Moment,
    /// The number of parked statements and logins then.
    parked: u64,
}

impl FailoverLedger {
    /// With the primary of the previous process.
    pub(super) fn of(primary: Option<String>, now: Moment) -> FailoverLedger {
        let seen = |primary| LastSeen { primary, at: now, tally: Tally::default() };
        FailoverLedger { last: primary.map(seen), lost: None }
    }

    /// The primary has confirmed that it is one; `tally` is the pool's counts so far.
    pub(super) fn saw(&mut self, primary: &str, now: Moment, tally: Tally) {
        match &mut self.last {
            Some(last) if last.primary == primary => (last.at, last.tally) = (now, tally),
            last => *last = Some(LastSeen { primary: primary.to_owned(), at: now, tally }),
        }
    }

    /// Handles a decision; `tally` is the pool's counts so far. Returns a receipt, yet to be closed, once
    /// there is a primary after one was lost.
    pub(super) fn decided(
        &mut self,
        primary: Result<&str, NoPrimary>,
        now: Moment,
        tally: Tally,
    ) -> Option<OpenReceipt> {
        let to = match primary {
            Err(reason) => {
                if self.last.is_some() && self.lost.is_none() {
                    let parked = tally.parked;
                    self.lost = Some(Lost { reason: reason.words(), detected: now, parked });
                }
                return None;
            }
            Ok(to) => to.to_owned(),
        };
        let last = self.last.replace(LastSeen { primary: to.clone(), at: now, tally })?;
        let lost = self.lost.take();
        if lost.is_none() && last.primary == to {
            return None;
        }
        let lost = lost.unwrap_or(Lost { reason: "", detected: now, parked: tally.parked });
        let receipt = Receipt {
            from: last.primary,
            to,
            reason: lost.reason.to_owned(),
            last_seen: last.at.time,
            detected: lost.detected.time,
            writable: now.time,
            unnoticed_seconds: lost.detected.since(last.at),
            absent_seconds: now.since(lost.detected),
            parked: tally.parked.saturating_sub(lost.parked),
            moved: 0,
            failed: 0,
        };
        Some(OpenReceipt { receipt, before: last.tally })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(ms: u64) -> Moment {
        let at = Duration::from_millis(ms);
        Moment { at, time: Timestamp::of(std::time::UNIX_EPOCH + at) }
    }

    fn counted(parked: u64, moved: u64, failed: u64) -> Tally {
        Tally { parked, moved, failed }
    }

    #[test]
    fn a_receipt_says_how_long_a_primary_was_away_and_what_became_of_whom() {
        let mut ledger = FailoverLedger::default();
        assert_eq!(ledger.decided(Err(NoPrimary::NobodyAnswers), moment(0), counted(0, 0, 0)), None);
        let first = ledger.decided(Ok("a"), moment(10), counted(3, 0, 1));
        assert_eq!(first, None, "the first one takes over from nobody");
        ledger.saw("a", moment(1000), counted(3, 10, 20));
        assert_eq!(ledger.decided(Err(NoPrimary::Silent), moment(1030), counted(3, 11, 22)), None);
        assert_eq!(ledger.decided(Err(NoPrimary::NoneElected), moment(1050), counted(5, 12, 22)), None);
        let receipt = ledger.decided(Ok("b"), moment(7030), counted(45, 13, 23)).unwrap();
        let receipt = receipt.close(counted(46, 14, 23));
        assert_eq!((receipt.moved, receipt.failed), (4, 3), "since it was last seen");
        assert_eq!((&*receipt.from, &*receipt.to), ("a", "b"));
        assert_eq!(receipt.reason, NoPrimary::Silent.words());
        assert_eq!((receipt.unnoticed_seconds, receipt.absent_seconds, receipt.parked), (0.03, 6.0, 42));
        assert_eq!(receipt.writable, moment(7030).time);
    }

    #[test]
    fn a_primary_that_hands_over_between_two_looks_was_never_away() {
        let mut ledger = FailoverLedger::of(Some("a".to_owned()), moment(0));
        ledger.saw("a", moment(100), counted(0, 0, 0));
        let receipt = ledger.decided(Ok("b"), moment(140), counted(0, 1, 0)).unwrap();
        let receipt = receipt.close(counted(0, 1, 0));
        assert_eq!((receipt.unnoticed_seconds, receipt.absent_seconds, &*receipt.reason), (0.04, 0.0, ""));
        assert_eq!(ledger.decided(Ok("b"), moment(150), counted(0, 1, 0)), None);
    }

    #[test]
    fn a_primary_that_comes_back_gets_a_receipt_too() {
        let mut ledger = FailoverLedger::of(Some("a".to_owned()), moment(0));
        ledger.decided(Err(NoPrimary::Silent), moment(10), Tally::default());
        let receipt = ledger.decided(Ok("a"), moment(20), counted(1, 0, 0)).unwrap();
        let receipt = receipt.close(counted(1, 0, 0));
        assert_eq!((receipt.from == receipt.to, receipt.parked), (true, 1));
    }
}
