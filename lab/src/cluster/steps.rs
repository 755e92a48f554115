//! One failover step: all contenders' clients are running, one member leaves and returns, and then the lab
//! asks the members what became of every write.
//!
//! All contenders go through the same event at the same time. So no contender has a luckier election, and a
//! member that returns late costs no contender more time.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::clients::{Clients, Record, Target};
use super::clock::{Clock, Writable};
use super::group::{Departure, Group, MEMBERS};
use super::ledger::{
    Outage, RecordedWrite, Tenure, Told, Verdict, first_by, judge, misplaced, outage, stall,
};

/// How long clients run before the event.
const STEADY: Duration = Duration::from_secs(3);
/// Time from the new primary's first write until the old one is started again.
const AWAY_PRIMARY: Duration = Duration::from_secs(5);
/// Time from a secondary's departure until it is started again: the group takes 5 to 6 s to expel a member
/// that crashed.
const AWAY_SECONDARY: Duration = Duration::from_secs(8);
/// Time from the member's return until the clients end.
const AFTER: Duration = Duration::from_secs(3);
/// How long the group may be without a primary before the step is aborted.
const NO_PRIMARY: Duration = Duration::from_secs(60);
/// Width of a point of the curve.
const BUCKET: Duration = Duration::from_millis(250);

/// The member that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// Member 1, the primary.
    Primary,
    /// Member 3, which is not elected when the primary leaves either.
    Secondary,
}

impl Victim {
    /// Its place among the members.
    pub fn index(self) -> usize {
        match self {
            Self::Primary => 0,
            Self::Secondary => MEMBERS - 1,
        }
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The member that it happens to.
    pub victim: Victim,
    /// How the member leaves.
    pub departure: Departure,
    /// An additional delay, so that the event falls at any point of a contender's check interval.
    pub delay: Duration,
}

/// The times of a step, since the clients began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The member left.
    pub event: Duration,
    /// The same, since 1970.
    pub event_unix: Duration,
    /// Another member accepted writes; `None` if none was supposed to.
    pub writable: Option<Writable>,
    /// It was started again; the same as `returned` if it never stopped.
    pub restarted: Duration,
    /// It was online again.
    pub returned: Duration,
    /// The clients ended.
    pub end: Duration,
}

/// What one contender's clients experienced.
#[derive(Debug, Clone, PartialEq)]
pub struct Experience {
    /// What became of the writes.
    pub verdict: Verdict,
    /// The outage between the event and the end.
    pub outage: Outage,
    /// Time from the event to the first good write after the pause that the event caused; `None` if none
    /// followed.
    pub writes_back: Option<Duration>,
    /// Time from the next primary's first accepted write to the first good write of these clients there.
    pub delay: Option<Duration>,
    /// Writes that failed before the event.
    pub failed_before: u64,
    /// Writes that failed from the member's restart on.
    pub failed_after_restart: u64,
    /// Reads that failed, from the event on.
    pub failed_reads: u64,
    /// The same for readers of the primary.
    pub failed_primary_reads: u64,
    /// The longest stall of a reader whose last read came from an unaffected member; `None` if there was no
    /// such reader.
    pub unrelated_stall: Option<Duration>,
    /// The same for readers of the member that left.
    pub related_stall: Option<Duration>,
    /// Good writes per second by the seconds since the event.
    pub curve: Vec<(f64, f64)>,
    /// The errors that clients got, and how often.
    pub problems: BTreeMap<String, u64>,
}

/// Takes `group` through one step with the clients of all `targets`, and leaves it whole with member 1 as
/// primary.
///
/// Returns the times and what each target's clients experienced, in the order of `targets`. Err if the group
/// itself does not recover; the step then says nothing about any contender.
pub fn run(group: &mut Group, step: &Step, targets: &[Target]) -> io::Result<(Times, Vec<Experience>)> {
    group.restore()?;
    Clock::prepare(&group.members[0])?;
    for target in targets {
        target.prepare(&group.members[0])?;
    }
    group.wait_until_equal()?;
    let origin = Instant::now();
    let clients: Vec<Clients> = targets.iter().map(|target| Clients::start(target, origin)).collect();
    let times = happen(group, step, origin)?;
    for clients in &clients {
        clients.tell_to_stop();
    }
    let mut records = Vec::new();
    for clients in clients {
        records.push(clients.finish()?);
    }
    group.wait_until_equal()?;
    let server_id = group.members[step.victim.index()].number as u32;
    let tenure = Tenure {
        before: group.members[Victim::Primary.index()].number as u32,
        event: times.event,
        after: times.writable.map(|writable| (writable.member, writable.at)),
    };
    let mut experiences = Vec::new();
    for (target, record) in targets.iter().zip(&records) {
        let rows =
            group.members.iter().map(|member| target.rows_on(member)).collect::<Result<Vec<_>, _>>()?;
        // All members hold the same rows; if not, that is reported anyway.
        let carried = target.carried(&group.members[0])?;
        let mut verdict = judge(&record.entries, &rows);
        verdict.misplaced = misplaced(&record.entries, &carried, &tenure);
        let mut experience = experience(record, verdict, server_id, &times);
        experience.delay = times.writable.and_then(|writable| {
            let first = first_by(&record.entries, &carried, writable.member)?;
            // A client that writes before the clock does is not late.
            Some(first.saturating_sub(writable.at))
        });
        experiences.push(experience);
    }
    group.restore()?;
    Ok((times, experiences))
}

fn happen(group: &mut Group, step: &Step, origin: Instant) -> io::Result<Times> {
    thread::sleep(STEADY + step.delay);
    let index = step.victim.index();
    let others = group.members.iter().enumerate().filter(|(other, _)| *other != index);
    let clock =
        (step.victim == Victim::Primary).then(|| Clock::start(others.map(|(_, member)| member), origin));
    let event = origin.elapsed();
    let event_unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    group.depart(index, step.departure)?;
    let begin = Instant::now();
    // A member that was told to shut down says for a moment that it is still primary.
    while group.primary().is_none_or(|primary| primary == index) {
        if begin.elapsed() > NO_PRIMARY {
            let problem =
                format!("the group had no other primary {NO_PRIMARY:?} after member {} went", index + 1);
            return Err(io::Error::other(problem));
        }
        thread::sleep(Duration::from_millis(50));
    }
    let writable = clock.and_then(|clock| clock.finish(NO_PRIMARY));
    thread::sleep(if index == 0 { AWAY_PRIMARY } else { AWAY_SECONDARY });
    let restarted = origin.elapsed();
    if step.departure != Departure::Switchover {
        group.start_again(index)?;
    }
    let returned = origin.elapsed();
    thread::sleep(AFTER);
    Ok(Times { event, event_unix, writable, restarted, returned, end: origin.elapsed() })
}

fn experience(record: &Record, verdict: Verdict, victim: u32, times: &Times) -> Experience {
    let failed = |from: Duration, until: Duration| {
        let within =
            |entry: &&RecordedWrite| entry.told != Told::Done && (from..until).contains(&entry.ended);
        record.entries.iter().filter(within).count() as u64
    };
    let since_event = |failed: &[Duration]| failed.iter().filter(|time| **time >= times.event).count() as u64;
    let stalls: Vec<(Duration, bool)> = record
        .reads
        .iter()
        .filter_map(|reads| stall(reads, victim, times.event, times.end))
        .map(|(gap, unrelated)| (gap.length(), unrelated))
        .collect();
    let worst = |wanted: bool| {
        stalls.iter().filter(|(_, unrelated)| *unrelated == wanted).map(|(length, _)| *length).max()
    };
    // The longest pause may be one that the member's return caused. The recovery from the event is measured
    // before the return, unless there was none before it.
    let whole = outage(&record.entries, times.event, times.end);
    let away = outage(&record.entries, times.event, times.restarted);
    Experience {
        verdict,
        writes_back: away.writes_back.or(whole.writes_back),
        outage: whole,
        delay: None,
        failed_before: failed(Duration::ZERO, times.event),
        failed_after_restart: failed(times.restarted, times.end),
        failed_reads: since_event(&record.failed_reads),
        failed_primary_reads: since_event(&record.failed_primary_reads),
        unrelated_stall: worst(true),
        related_stall: worst(false),
        curve: curve(&record.entries, times),
        problems: record.problems.clone(),
    }
}

/// Good writes per second, in steps of [`BUCKET`], by the seconds since the event (negative before it).
fn curve(entries: &[RecordedWrite], times: &Times) -> Vec<(f64, f64)> {
    let width = BUCKET.as_secs_f64();
    let first = -(times.event.as_secs_f64() / width).floor() as i64;
    let count = (times.end.saturating_sub(times.event).as_secs_f64() / width).floor() as i64;
    let mut good: BTreeMap<i64, u32> = (first..count).map(|bucket| (bucket, 0)).collect();
    for entry in entries.iter().filter(|entry| entry.told == Told::Done) {
        let bucket = ((entry.ended.as_secs_f64() - times.event.as_secs_f64()) / width).floor() as i64;
        if let Some(count) = good.get_mut(&bucket) {
            *count += 1;
        }
    }
    good.into_iter().map(|(bucket, count)| (bucket as f64 * width, f64::from(count) / width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ledger::Read;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn entry(number: u64, ended: u64, told: Told) -> RecordedWrite {
        RecordedWrite { number, begun: at(ended), ended: at(ended), told }
    }

    const TIMES: Times = Times {
        event: Duration::from_millis(1000),
        event_unix: Duration::ZERO,
        writable: None,
        restarted: Duration::from_millis(2000),
        returned: Duration::from_millis(2500),
        end: Duration::from_millis(3000),
    };

    #[test]
    fn failures_are_told_apart_by_what_had_happened_before_them() {
        let read = |time: u64, member: u32| Read { ended: at(time), member };
        let record = Record {
            entries: vec![
                entry(1, 500, Told::Refused),
                entry(2, 900, Told::Done),
                entry(3, 1001, Told::Nothing),
                entry(4, 1500, Told::Refused),
                entry(5, 1800, Told::Done),
                entry(6, 2100, Told::Refused),
                entry(7, 2900, Told::Done),
            ],
            reads: vec![
                vec![read(990, 2), read(1200, 2), read(2990, 2)],
                vec![read(990, 1), read(1400, 2), read(2990, 2)],
            ],
            failed_reads: vec![at(400), at(1001)],
            failed_primary_reads: vec![at(400), at(1001), at(1002)],
            problems: BTreeMap::new(),
        };
        let found = experience(&record, Verdict::default(), 1, &TIMES);
        assert_eq!((found.failed_before, found.failed_after_restart, found.failed_reads), (1, 1, 1));
        assert_eq!(found.failed_primary_reads, 2);
        assert_eq!((found.outage.unknown, found.outage.refused), (1, 2));
        // The longest pause was at the end, the one that the event made ended at 1800.
        assert_eq!((found.outage.pause, found.writes_back), (at(1100), Some(at(800))));
        assert_eq!((found.unrelated_stall, found.related_stall), (Some(at(1790)), Some(at(1590))));
    }

    #[test]
    fn the_curve_counts_good_writes_around_the_event() {
        let entries = [entry(1, 740, Told::Done), entry(2, 760, Told::Done), entry(3, 1010, Told::Refused)];
        let found = curve(&entries, &TIMES);
        assert_eq!(found.len(), 12);
        assert_eq!(found[..5], [(-1.0, 0.0), (-0.75, 0.0), (-0.5, 4.0), (-0.25, 4.0), (0.0, 0.0)]);
    }
}
