//! How far copies are behind their primary, by the transactions that each has executed.
//!
//! What the primary had executed at some moment, and a copy has not now, that copy has lacked since then at
//! least. So no table of heartbeats is needed, no clock of a server is compared with another's, and a primary
//! that writes nothing leaves nobody behind.

use std::collections::VecDeque;
use std::time::Duration;

use crate::gtid::GtidSet;

/// Most characters of a set that are asked for: beyond them a set is not known.
const MOST_TEXT: usize = 60_000;
/// Most intervals: fewer than a [`GtidSet`] keeps.
const MOST_INTERVALS: usize = 4000;

/// Asks a server for the transactions that it has executed. Every account may ask this; MariaDB has no such
/// variable, and a server without GTIDs answers with nothing.
pub const EXECUTED_SQL: &str = "SELECT LEFT(@@GLOBAL.gtid_executed, 60000)";

/// The set in the answer to [`EXECUTED_SQL`]; `None` where it is empty, too long or no set.
pub fn executed(rows: &[crate::topology::TextRow]) -> Option<GtidSet> {
    let text = rows.first()?.first()?.as_deref()?;
    let is_short = |text: &[u8]| {
        text.len() < MOST_TEXT && text.iter().filter(|byte| **byte == b':').count() < MOST_INTERVALS
    };
    let text = std::str::from_utf8(text).ok().filter(|text| is_short(text.as_bytes()))?;
    let set = GtidSet::parse(text)?;
    (!set.is_empty()).then_some(set)
}

/// Most moments of the primary that are kept.
const MOST_MOMENTS: usize = 512;
/// Beyond that those are forgotten that lie closer to each other than this share of their age: what is said
/// of the time is right by about as much, and months need fewer moments than there may be.
const SHARE_OF_AGE: u32 = 32;

/// What a primary had executed, and when.
#[derive(Debug, Default)]
pub struct Progress {
    /// In order; each set has all of the one before, and more.
    moments: VecDeque<(Duration, GtidSet)>,
}

/// How far a copy is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Transactions that the primary had executed when it was last asked and the copy has not (count).
    pub transactions: u64,
    /// For how long it has lacked one of them, at least; zero where it lacks none. Too short by the time
    /// between two questions to the primary.
    pub time: Duration,
}

impl Progress {
    /// Takes what the primary had executed at `now`. Where that lacks some of what it had before, it is
    /// another server or begins anew, and what was before is forgotten.
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

    /// How far one is behind that has executed this at `now`; `None` where nothing is known of a primary.
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
