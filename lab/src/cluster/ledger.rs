//! The ledger: the answer that a writer got to each of its writes, and whether the members agree with it
//! afterwards.
//!
//! Pure: it is given entries, rows and times, and never asks a server or a clock.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The answer that a writer got to one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// Success. The row must be on every member, once.
    Done,
    /// It can't have happened: the connection failed, or the server refused it as read-only. The row must not
    /// be there.
    Refused,
    /// The connection broke or timed out after it was sent. It may be there or not, but not twice.
    Nothing,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedWrite {
    /// The number it carries; no two writes of a run share one, and none is ever sent again.
    pub number: u64,
    /// When the writer began with it, since the beginning of the run.
    pub begun: Duration,
    /// When it had the answer, or gave up.
    pub ended: Duration,
    /// What it was told.
    pub told: Told,
}

/// What the rows of the members say about a ledger. Counts of writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that were refused.
    pub refused: u64,
    /// Writes without a clear answer.
    pub unknown: u64,
    /// Writes without a clear answer that are there.
    pub unknown_but_written: u64,
    /// Acknowledged but missing on at least one member: data loss.
    pub lost: u64,
    /// More than once on at least one member: a statement was sent again.
    pub doubled: u64,
    /// Refused but present on at least one member.
    pub refused_but_written: u64,
    /// Rows with a number that nobody wrote, and writes without a clear answer that only some members have.
    pub inconsistent: u64,
    /// Executed by a member that was not the primary at the time.
    #[serde(default)]
    pub misplaced: u64,
}

impl Verdict {
    /// Whether the outcome of every write agrees with the answer that its writer got.
    pub fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.refused_but_written + self.inconsistent + self.misplaced == 0
    }
}

/// Judges `entries` by what the members hold: for each member how often it holds each number.
///
/// The members must have applied everything before they were read, or a row on its way counts as lost.
pub fn judge(entries: &[RecordedWrite], members: &[BTreeMap<u64, u64>]) -> Verdict {
    let mut verdict = Verdict::default();
    for entry in entries {
        let counts = members.iter().map(|rows| rows.get(&entry.number).copied().unwrap_or(0));
        let least = counts.clone().min().unwrap_or(0);
        let most = counts.max().unwrap_or(0);
        verdict.doubled += u64::from(most > 1);
        match entry.told {
            Told::Done => {
                verdict.acknowledged += 1;
                verdict.lost += u64::from(least == 0);
            }
            Told::Refused => {
                verdict.refused += 1;
                verdict.refused_but_written += u64::from(most > 0);
            }
            Told::Nothing => {
                verdict.unknown += 1;
                verdict.unknown_but_written += u64::from(least > 0);
                verdict.inconsistent += u64::from(least == 0 && most > 0);
            }
        }
    }
    let known: HashSet<u64> = entries.iter().map(|entry| entry.number).collect();
    let strangers: BTreeSet<u64> =
        members.iter().flat_map(BTreeMap::keys).copied().filter(|number| !known.contains(number)).collect();
    verdict.inconsistent += strangers.len() as u64;
    verdict
}

/// Which member was primary until when. Members are identified by `server_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// The primary at first.
    pub before: u32,
    /// When the event happened, to it or to another member.
    pub event: Duration,
    /// The next primary, and when it had accepted its first write; `None` if the first one remained primary.
    pub after: Option<(u32, Duration)>,
}

/// Counts the writes of `entries` that were executed by a member that was not the primary at any time between
/// the write's beginning and its end. `carried` says which member executed each.
pub fn misplaced(entries: &[RecordedWrite], carried: &BTreeMap<u64, u32>, tenure: &Tenure) -> u64 {
    let is_misplaced = |entry: &&RecordedWrite| {
        let Some(member) = carried.get(&entry.number) else { return false };
        let by_former = *member == tenure.before && tenure.after.is_none_or(|(_, at)| entry.begun < at);
        let by_next = tenure.after.is_some_and(|(next, _)| next == *member) && entry.ended >= tenure.event;
        !by_former && !by_next
    };
    entries.iter().filter(is_misplaced).count() as u64
}

/// When the first write that `member` executed was acknowledged.
pub fn first_by(entries: &[RecordedWrite], carried: &BTreeMap<u64, u32>, member: u32) -> Option<Duration> {
    let its_own = |entry: &&RecordedWrite| {
        entry.told == Told::Done && carried.get(&entry.number).is_some_and(|carrier| *carrier == member)
    };
    entries.iter().filter(its_own).map(|entry| entry.ended).min()
}

/// A time without a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Its beginning: the last success before it, or the beginning of the search.
    pub from: Duration,
    /// Its end: the first success after it, or the end of the search.
    pub until: Duration,
    /// Whether it ended with a success.
    pub ended: bool,
}

impl Gap {
    /// How long it lasted.
    pub fn length(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

/// The longest time between `from` and `until` without a success. `good` are the times of successes, in any
/// order; those outside do not count.
pub fn longest_gap(good: &[Duration], from: Duration, until: Duration) -> Gap {
    let mut times: Vec<Duration> =
        good.iter().copied().filter(|time| (from..=until).contains(time)).collect();
    times.sort_unstable();
    let mut longest = Gap { from, until: from, ended: true };
    let mut last = from;
    for time in times {
        if time - last > longest.length() {
            longest = Gap { from: last, until: time, ended: true };
        }
        last = time;
    }
    let rest = Gap { from: last, until, ended: false };
    if rest.length() > longest.length() { rest } else { longest }
}

/// What writers experienced from `event` to `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Time from the event to the first good write after the longest pause. If that pause is no longer than
    /// busy writers make anyway, the pause itself. `None` if no good write followed.
    pub writes_back: Option<Duration>,
    /// The longest pause.
    pub pause: Duration,
    /// Writes that were refused in that time.
    pub refused: u64,
    /// Writes without a clear answer in that time.
    pub unknown: u64,
}

/// Pauses below this are ordinary: writers rest between writes, and the group's members wait for each other.
const ORDINARY_PAUSE: Duration = Duration::from_millis(100);

/// Sums up `entries` from `event` to `until`.
///
/// The pause is that of all writers together: writes are possible if one of them can write. A failed write
/// counts if its answer came in that time.
pub fn outage(entries: &[RecordedWrite], event: Duration, until: Duration) -> Outage {
    let done: Vec<Duration> =
        entries.iter().filter(|entry| entry.told == Told::Done).map(|entry| entry.ended).collect();
    let pause = longest_gap(&done, event, until);
    let count = |told: Told| {
        let within = |entry: &&RecordedWrite| entry.told == told && (event..=until).contains(&entry.ended);
        entries.iter().filter(within).count() as u64
    };
    // An ordinary pause can be anywhere, even seconds after an event that nobody noticed.
    let back = if pause.length() < ORDINARY_PAUSE { pause.length() } else { pause.until - event };
    Outage {
        writes_back: pause.ended.then_some(back),
        pause: pause.length(),
        refused: count(Told::Refused),
        unknown: count(Told::Nothing),
    }
}

/// A good read: when it was answered, and by which member (its number).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// When its answer came.
    pub ended: Duration,
    /// The `server_id` of the member that answered.
    pub member: u32,
}

/// The longest stall of one reader between `event` and `until`, and whether the reader was unrelated to the
/// event: whether its last good read before the event came from a member other than `victim`.
///
/// `None` if it had no good read before the event, so that nothing can be said.
pub fn stall(reads: &[Read], victim: u32, event: Duration, until: Duration) -> Option<(Gap, bool)> {
    let before = reads.iter().filter(|read| read.ended <= event).max_by_key(|read| read.ended)?;
    let good: Vec<Duration> = reads.iter().map(|read| read.ended).collect();
    // A read that already hangs at the time of the event began to stall before it; only the stall from the
    // event on counts.
    Some((longest_gap(&good, event, until), before.member != victim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn entry(number: u64, ended: u64, told: Told) -> RecordedWrite {
        RecordedWrite { number, begun: at(ended.saturating_sub(1)), ended: at(ended), told }
    }

    fn rows(numbers: &[u64]) -> BTreeMap<u64, u64> {
        let mut rows = BTreeMap::new();
        for number in numbers {
            *rows.entry(*number).or_default() += 1;
        }
        rows
    }

    #[test]
    fn writes_that_are_where_their_writer_was_told_make_a_clean_verdict() {
        let entries = [entry(1, 1, Told::Done), entry(2, 2, Told::Refused), entry(3, 3, Told::Nothing)];
        let verdict = judge(&entries, &[rows(&[1]), rows(&[1]), rows(&[1])]);
        let expected = Verdict { acknowledged: 1, refused: 1, unknown: 1, ..Verdict::default() };
        assert_eq!(verdict, expected);
        assert!(verdict.is_clean());
    }

    #[test]
    fn an_acknowledged_write_that_one_member_lacks_is_lost() {
        let entries = [entry(1, 1, Told::Done), entry(2, 2, Told::Done)];
        let verdict = judge(&entries, &[rows(&[1, 2]), rows(&[1]), rows(&[1, 2])]);
        assert_eq!((verdict.lost, verdict.acknowledged), (1, 2));
        assert!(!verdict.is_clean());
    }

    #[test]
    fn a_write_that_is_there_twice_is_doubled_whatever_its_writer_was_told() {
        let entries = [entry(1, 1, Told::Done), entry(2, 2, Told::Nothing)];
        let verdict = judge(&entries, &[rows(&[1, 2]), rows(&[1, 1, 2, 2]), rows(&[1, 2])]);
        assert_eq!(verdict.doubled, 2);
        assert!(!verdict.is_clean());
    }

    #[test]
    fn a_write_of_unknown_fate_may_be_there_but_not_on_some_members_only() {
        let entries = [entry(1, 1, Told::Nothing), entry(2, 2, Told::Nothing)];
        let verdict = judge(&entries, &[rows(&[1, 2]), rows(&[1, 2]), rows(&[1])]);
        assert_eq!((verdict.unknown, verdict.unknown_but_written, verdict.inconsistent), (2, 1, 1));
        assert!(judge(&entries, &[rows(&[1, 2]), rows(&[1, 2])]).is_clean());
    }

    #[test]
    fn a_refused_write_that_is_there_and_a_row_nobody_wrote_are_told() {
        let verdict = judge(&[entry(1, 1, Told::Refused)], &[rows(&[1]), rows(&[1, 9]), rows(&[1, 9])]);
        assert_eq!((verdict.refused_but_written, verdict.inconsistent), (1, 1));
    }

    #[test]
    fn a_write_is_misplaced_when_another_than_the_primary_carried_it_out() {
        let entries = [100, 1010, 2000, 2100].map(|ended| entry(ended, ended, Told::Done));
        let by = |members: [u32; 4]| -> BTreeMap<u64, u32> {
            entries.iter().map(|entry| entry.number).zip(members).collect()
        };
        let tenure = Tenure { before: 1, event: at(1000), after: Some((2, at(1900))) };
        assert_eq!(misplaced(&entries, &by([1, 1, 2, 2]), &tenure), 0);
        assert_eq!(misplaced(&entries, &by([1, 2, 2, 2]), &tenure), 0, "it was under way when that changed");
        assert_eq!(misplaced(&entries, &by([2, 1, 1, 3]), &tenure), 3);
        let unchanged = Tenure { after: None, ..tenure };
        assert_eq!(misplaced(&entries, &by([1, 1, 1, 2]), &unchanged), 1);
        assert_eq!(first_by(&entries, &by([1, 1, 2, 2]), 2), Some(at(2000)));
        assert_eq!(first_by(&entries, &by([1, 1, 1, 1]), 2), None);
    }

    #[test]
    fn the_longest_gap_lies_between_good_things_or_at_an_end() {
        let good = [at(900), at(100), at(150), at(800)];
        let found = longest_gap(&good, at(100), at(1000));
        assert_eq!(found, Gap { from: at(150), until: at(800), ended: true });
        // Nothing after 900: the search's end bounds the gap, and nothing good ended it.
        let found = longest_gap(&good, at(100), at(3000));
        assert_eq!(found, Gap { from: at(900), until: at(3000), ended: false });
        // Good things outside of the search do not count.
        let found = longest_gap(&good, at(200), at(700));
        assert_eq!(found, Gap { from: at(200), until: at(700), ended: false });
    }

    #[test]
    fn writes_are_back_at_the_end_of_the_longest_pause_after_the_event() {
        // The event is at 1000. A write in flight is still acknowledged, then nothing until 7250.
        let mut entries: Vec<RecordedWrite> = (1..=100).map(|n| entry(n, n * 10, Told::Done)).collect();
        entries.push(entry(101, 1003, Told::Done));
        entries.push(entry(102, 1004, Told::Nothing));
        entries.push(entry(103, 1500, Told::Refused));
        entries.push(entry(104, 2500, Told::Refused));
        entries.extend((0..100).map(|n| entry(200 + n, 7250 + 10 * n, Told::Done)));
        let found = outage(&entries, at(1000), at(8240));
        let expected = Outage { writes_back: Some(at(6250)), pause: at(6247), refused: 2, unknown: 1 };
        assert_eq!(found, expected);
    }

    #[test]
    fn writes_that_never_come_back_are_not_given_a_time() {
        let entries = [entry(1, 900, Told::Done), entry(2, 1500, Told::Refused)];
        let found = outage(&entries, at(1000), at(9000));
        assert_eq!((found.writes_back, found.pause), (None, at(8000)));
    }

    #[test]
    fn an_ordinary_pause_long_after_the_event_is_not_its_end() {
        let entries: Vec<RecordedWrite> =
            (1..=300).filter(|n| *n != 250).map(|n| entry(n, n * 10, Told::Done)).collect();
        let found = outage(&entries, at(1000), at(3000));
        assert_eq!((found.pause, found.writes_back), (at(20), Some(at(20))));
    }

    #[test]
    fn a_failure_before_the_event_is_not_the_events() {
        let entries = [entry(1, 900, Told::Refused), entry(2, 1010, Told::Done), entry(3, 1020, Told::Done)];
        let found = outage(&entries, at(1000), at(1020));
        assert_eq!((found.refused, found.writes_back), (0, Some(at(10))));
    }

    #[test]
    fn a_reader_of_another_member_is_unrelated_and_its_stall_is_still_counted() {
        let reads = |member: u32| -> Vec<Read> {
            [900, 950, 4000, 4050].map(|time| Read { ended: at(time), member }).to_vec()
        };
        let (gap, unrelated) = stall(&reads(2), 1, at(1000), at(4050)).unwrap();
        assert!(unrelated);
        assert_eq!(gap.length(), at(3000));
        assert!(!stall(&reads(1), 1, at(1000), at(4050)).unwrap().1);
        assert_eq!(stall(&reads(1)[2..], 1, at(1000), at(4050)), None);
    }
}
