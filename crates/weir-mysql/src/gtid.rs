//! GTID sets, as far as reading one's own writes needs them.
//!
//! Source: MySQL 8.4 Reference Manual, section 19.1.3.1, "GTID Format and Storage".

use std::collections::HashMap;

/// Most intervals of a set, over all sources. A set that reaches it is emptied, which costs a wait.
const MOST_INTERVALS: usize = 4096;

/// A set of transactions by source (a UUID, with a tag if there is one) and number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GtidSet {
    /// Intervals of transaction numbers, both ends inclusive, sorted, neither overlapping nor adjacent.
    sources: HashMap<Box<str>, Vec<(u64, u64)>>,
    intervals: usize,
}

impl GtidSet {
    /// Parses a set as servers write it: `uuid:1-5:7, uuid:tag:1-3`; `None` if the text is not a GTID set. A
    /// source may occur several times.
    pub fn parse(text: &str) -> Option<GtidSet> {
        let mut set = GtidSet::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let mut fields = part.split(':').map(str::trim);
            let uuid = fields.next().filter(|uuid| is_uuid(uuid))?.to_ascii_lowercase();
            let mut source = uuid.clone();
            for field in fields {
                if let Some((first, last)) = interval(field) {
                    set.insert(&source, first, last);
                } else if is_tag(field) {
                    source = format!("{uuid}:{}", field.to_ascii_lowercase());
                } else {
                    return None;
                }
            }
        }
        Some(set)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether the set contains all of `other`.
    pub fn contains(&self, other: &GtidSet) -> bool {
        other.sources.iter().all(|(source, intervals)| {
            let own = self.sources.get(source).map_or(&[][..], Vec::as_slice);
            intervals.iter().all(|(first, last)| {
                let after = own.partition_point(|(_, own_last)| own_last < last);
                own.get(after).is_some_and(|(own_first, _)| own_first <= first)
            })
        })
    }

    /// How many transactions of this set are not in `other`. Linear in the intervals of both.
    pub fn count_beyond(&self, other: &GtidSet) -> u64 {
        let width = |first: u64, last: u64| last.saturating_add(1).saturating_sub(first);
        let beyond = self.sources.iter().flat_map(|(source, intervals)| {
            let others = other.sources.get(source).map_or(&[][..], Vec::as_slice);
            intervals.iter().map(move |(first, last)| {
                let common = others.iter().map(|(low, high)| width(*low.max(first), *high.min(last)));
                width(*first, *last) - common.sum::<u64>()
            })
        });
        beyond.fold(0, u64::saturating_add)
    }

    /// Adds all transactions of `other`.
    pub fn add(&mut self, other: &GtidSet) {
        for (source, intervals) in &other.sources {
            intervals.iter().for_each(|(first, last)| self.insert(source, *first, *last));
        }
    }

    fn insert(&mut self, source: &str, first: u64, last: u64) {
        if self.intervals >= MOST_INTERVALS {
            *self = GtidSet::default();
        }
        let own = match self.sources.get_mut(source) {
            Some(own) => own,
            None => self.sources.entry(source.into()).or_default(),
        };
        let before = own.len();
        // Intervals that overlap or touch the new one are merged with it.
        let begin = own.partition_point(|(_, own_last)| own_last.saturating_add(1) < first);
        let end = own.partition_point(|(own_first, _)| *own_first <= last.saturating_add(1));
        let (mut first, mut last) = (first, last);
        if let Some(touched) = own.get(begin..end)
            && let [(low, _), ..] = touched
            && let [.., (_, high)] = touched
        {
            (first, last) = (first.min(*low), last.max(*high));
        }
        own.splice(begin..end.max(begin), [(first, last)]);
        self.intervals = self.intervals + own.len() - before;
    }
}

fn interval(field: &str) -> Option<(u64, u64)> {
    let (first, last) = field.split_once('-').unwrap_or((field, field));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (0 < first && first <= last).then_some((first, last))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

fn is_tag(text: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    text.len() <= 32
        && text.as_bytes().first().is_some_and(is_first)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl std::fmt::Display for GtidSet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sources: Vec<_> = self.sources.iter().collect();
        sources.sort();
        for (index, (source, intervals)) in sources.into_iter().enumerate() {
            if index > 0 {
                write!(out, ",")?;
            }
            write!(out, "{source}")?;
            for (first, last) in intervals {
                match first == last {
                    true => write!(out, ":{first}")?,
                    false => write!(out, ":{first}-{last}")?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";
    const TWO: &str = "2174b383-5441-11e8-b90a-c80aa9429562";

    fn set(text: &str) -> GtidSet {
        GtidSet::parse(&text.replace("ONE", ONE).replace("TWO", TWO)).expect(text)
    }

    #[test]
    fn intervals_that_touch_are_one() {
        for (text, expected) in [
            ("ONE:1-5:7", "ONE:1-5:7"),
            ("ONE:7:1-5:6", "ONE:1-7"),
            ("ONE:3, ONE:1, ONE:2", "ONE:1-3"),
            ("ONE:1-10:4-5", "ONE:1-10"),
            ("ONE:1-3:6-9:2-7", "ONE:1-9"),
            (" TWO:4 ,\nONE:2:tag:1-2:5 ", "TWO:4,ONE:2,ONE:tag:1-2:5"),
            ("", ""),
        ] {
            let expected = expected.replace("ONE", ONE).replace("TWO", TWO);
            assert_eq!(set(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn a_set_contains_what_is_whole_within_its_intervals() {
        let known = set("ONE:1-5:8-10, TWO:tag:3");
        for within in ["ONE:1-5", "ONE:4", "ONE:8-10:2, TWO:tag:3", ""] {
            assert!(known.contains(&set(within)), "{within}");
        }
        for beyond in ["ONE:5-8", "ONE:6", "ONE:11", "TWO:3", "TWO:tag:2-3"] {
            assert!(!known.contains(&set(beyond)), "{beyond}");
        }
    }

    #[test]
    fn transactions_beyond_another_set_are_counted() {
        let known = set("ONE:1-10:20-30, TWO:5, ONE:tag:1-2");
        for (other, beyond) in [
            ("ONE:1-10:20-30, TWO:5, ONE:tag:1-2", 0),
            ("ONE:1-100, TWO:1-9, ONE:tag:1-2", 0),
            ("", 24),
            ("ONE:1-9:21-22:24:40-50, TWO:6", 1 + 8 + 1 + 2),
        ] {
            assert_eq!(known.count_beyond(&set(other)), beyond, "{other}");
        }
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in
            ["x", "3e11fa47:1", "ONE:0", "ONE:5-3", "ONE:1:", "ONE:1-x", "ONE:'", "ONE:18446744073709551616"]
        {
            assert_eq!(GtidSet::parse(&text.replace("ONE", ONE)), None, "{text}");
        }
    }

    #[test]
    fn what_is_known_stays_bounded() {
        let mut known = GtidSet::default();
        for number in 0..3 * MOST_INTERVALS as u64 {
            known.add(&set(&format!("ONE:{}", 2 * number + 1)));
            assert!(known.intervals <= MOST_INTERVALS);
        }
        assert!(known.contains(&set(&format!("ONE:{}", 6 * MOST_INTERVALS - 1))));
    }
}
