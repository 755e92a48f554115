//! Measures how far secondaries lag behind their primary, by the GTIDs that each has executed.
//!
//! If the primary had executed a transaction at some moment and a secondary has not executed it now, the
//! secondary has lacked it at least since then. So no heartbeat table is needed, clocks of servers are not
//! compared, and an idle primary causes no lag.

use std::collections::VecDeque;
use std::time::Duration;

use crate::gtid::GtidSet;

/// Most characters of a GTID set that are asked for (count). A longer set counts as unknown.
const MOST_TEXT: usize = 60_000;
/// Most intervals: fewer than a [`GtidSet`] keeps.
const MOST_INTERVALS: usize = 4000;

/// Asks a server for the transactions that it has executed. Any account may ask this. MariaDB has no such
/// variable, and a server without GTIDs answers with an empty set.
pub const EXECUTED_SQL: &str = "SELECT LEFT(@@GLOBAL.gtid_executed, 60000)";

/// The set in the answer to [`EXECUTED_SQL`]; `None` if it is empty, too long or not a GTID set.
pub fn executed(rows: &[crate::topology::TextRow]) -> Option<GtidSet> {
    let text = rows.first()?.first()?.as_deref()?;
    let is_short = |text: &[u8]| {
        text.len() < MOST_TEXT && text.iter().filter(|byte| **byte == b':').count() < MOST_INTERVALS
    };
    let text = std::str::from_utf8(text).ok().filter(|text| is_short(text.as_bytes()))?;
    let set = GtidSet::parse(text)?;
    (!set.is_empty()).then_some(set)
}

/// Most samples of the primary's GTID set that are kept.
const MOST_MOMENTS: usize = 512;
/// When there are too many samples, those are dropped that are closer together than their age divided by
/// this. So reported times are accurate to about that share, and months of samples fit.
const SHARE_OF_AGE: u32 = 32;

/// Samples of the primary's executed GTIDs, with the time of each.
#[derive(Debug, Default)]
pub struct Progress {
    /// In order of time; each set contains the one before, and more.
    moments: VecDeque<(Duration, GtidSet)>,
}

/// How far a secondary is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Transactions that the primary had executed when last asked and the secondary has not (count).
    pub transactions: u64,
    /// How long the secondary has lacked one of them, at least; zero if it lacks none. Too short by up to the
    /// interval between two questions to the primary.
    pub time: Duration,
}

impl Progress {
    /// Takes the primary's GTID set at `now`. If that lacks some of the previous set, the primary is another
    /// server or was reset, and all earlier samples are dropped.
    pub fn note(&mut self, executed: GtidSet, now: Duration) {
        match self.moments.back() {
            Some((_, last)) if *last == executed => return,
            Some((_, last)) if !executed.contains(last) => self.moments.clear(),
            _ => {}
        }
        if self.moments.len() >= MOST_MOMENTS {
            self.thin_out(now);
        }
        self.moments.push_back((now, executed));
    }

    fn thin_out(&mut self, now: Duration) {
        let next: Vec<Duration> = self.moments.iter().skip(1).map(|(at, _)| *at).chain([now]).collect();
        let (mut next, mut kept) = (next.into_iter(), None);
        self.moments.retain(|(at, _)| {
            let gap = next.next().unwrap_or(now).saturating_sub(kept.unwrap_or(Duration::ZERO));
            let is_kept = kept.is_none() || gap > now.saturating_sub(*at) / SHARE_OF_AGE;
            if is_kept {
                kept = Some(*at);
            }
            is_kept
        });
        while self.moments.len() >= MOST_MOMENTS {
            self.moments.pop_front();
        }
    }

    /// How far a secondary is behind that has executed this set at `now`; `None` if there is no sample of a
    /// primary.
    pub fn lag(&self, executed: &GtidSet, now: Duration) -> Option<Lag> {
        let (_, last) = self.moments.back()?;
        let had = self.moments.partition_point(|(_, set)| executed.contains(set));
        let lacked_since = self.moments.get(had).map_or(now, |(at, _)| *at);
        let transactions = last.count_beyond(executed);
        Some(Lag { transactions, time: now.saturating_sub(lacked_since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: u64) -> GtidSet {
        GtidSet::parse(&format!("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{numbers}")).unwrap()
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_copy_is_behind_since_the_first_moment_of_the_primary_that_it_lacks() {
        let mut primary = Progress::default();
        assert_eq!(primary.lag(&set(5), at(0)), None, "nobody knows of a primary");
        for (second, numbers) in [(1, 10), (2, 20), (3, 20), (4, 30)] {
            primary.note(set(numbers), at(second));
        }
        for (has, transactions, seconds) in
            [(30, 0, 0), (35, 0, 0), (29, 1, 5), (20, 10, 5), (19, 11, 7), (1, 29, 8)]
        {
            let lag = primary.lag(&set(has), at(9)).unwrap();
            assert_eq!((lag.transactions, lag.time), (transactions, at(seconds)), "{has}");
        }
    }

    #[test]
    fn a_primary_that_has_less_than_the_one_before_begins_anew() {
        let mut primary = Progress::default();
        primary.note(set(50), at(1));
        primary.note(set(40), at(2));
        assert_eq!(primary.lag(&set(40), at(3)), Some(Lag { transactions: 0, time: at(0) }));
        assert_eq!(primary.lag(&set(39), at(3)).unwrap().time, at(1));
    }

    #[test]
    fn what_is_kept_of_a_primary_stays_bounded_and_the_time_nearly_right() {
        let mut primary = Progress::default();
        for second in 1..=10_000 {
            primary.note(set(second), at(second));
            assert!(primary.moments.len() <= MOST_MOMENTS);
        }
        let lag = primary.lag(&set(4_000), at(10_000)).unwrap();
        assert_eq!(lag.transactions, 6_000);
        assert!(at(5_800) <= lag.time && lag.time <= at(6_000), "{:?}", lag.time);
    }

    #[test]
    fn an_answer_without_a_set_says_nothing() {
        let answer = |text: &str| executed(&[vec![Some(text.as_bytes().to_vec())]]);
        assert_eq!(answer("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7"), Some(set(7)));
        for none in ["", "0-1-2", &"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7,".repeat(2000)[..MOST_TEXT]] {
            assert_eq!(answer(none), None, "{}", none.len());
        }
        let apart: String = (0..4000).map(|number| format!(":{}", 2 * number + 1)).collect();
        assert_eq!(answer(&format!("3e11fa47-71ca-11e1-9e33-c80aa9429562{apart}")), None);
        assert_eq!((executed(&[]), executed(&[vec![None]])), (None, None));
    }
}
