//! What a failover was like: when the primary was last seen, when it was missed, when there was one again.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_mysql::topology::NoPrimary;
use weir_state::Pool;
use weir_stats::Counter;
use weir_stats::table::PoolCells;

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
    /// Statements that went on at another server, from `last_seen` to shortly after `writable`: theirs was
    /// lost, or took no writes any more.
    #[serde(default)]
    pub moved: u64,
    /// Clients that were told in that time, by an error or the end of their connection, that their server was
    /// lost or took no writes any more, or that there was no primary.
    #[serde(default)]
    pub failed: u64,
}

/// What a pool has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) parked: u64,
    pub(super) moved: u64,
    pub(super) failed: u64,
}

impl Tally {
    /// Of a pool, over all workers.
    pub(super) fn of(pool: &Pool) -> Tally {
        let total = |cell: fn(&PoolCells) -> &Counter| pool.cells.total(cell);
        Tally {
            parked: total(|cells| &cells.parked),
            moved: total(|cells| &cells.moved),
            failed: total(|cells| &cells.failed),
        }
    }
}

/// A failover that is over, while those whom it has cost something are still told so: workers leave the
/// former primary once its role is another's, which is when the watch has decided.
#[derive(Debug, PartialEq)]
pub(super) struct OpenReceipt {
    receipt: Receipt,
    /// What the pool had counted when the former primary was last seen.
    before: Tally,
}

impl OpenReceipt {
    /// With what the pool has counted by now.
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
    /// The primary that there is, or was last.
    last: Option<LastSeen>,
    lost: Option<Lost>,
}

/// A primary, when it last said that it is, and what its pool had counted by then.
struct LastSeen {
    primary: String,
    at: Moment,
    tally: Tally,
}

struct Lost {
    reason: &'static str,
    detected: Moment,
    /// What the pool had parked by then.
    parked: u64,
}

impl FailoverLedger {
    /// Knows the primary of the process before.
    pub(super) fn of(primary: Option<String>, now: Moment) -> FailoverLedger {
        let seen = |primary| LastSeen { primary, at: now, tally: Tally::default() };
        FailoverLedger { last: primary.map(seen), lost: None }
    }

    /// The primary said again that it is; `tally` is what its pool has counted so far.
    pub(super) fn saw(&mut self, primary: &str, now: Moment, tally: Tally) {
        match &mut self.last {
            Some(last) if last.primary == primary => (last.at, last.tally) = (now, tally),
            last => *last = Some(LastSeen { primary: primary.to_owned(), at: now, tally }),
        }
    }

    /// Takes what was decided; `tally` is what the pool has counted so far. Gives a receipt, to be closed,
    /// once there is a primary after one was lost.
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
