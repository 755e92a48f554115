//! Byte ranges (RFC 9110 §14.1.2, §14.2).

/// The ranges that a `range` field asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// Bytes from `first` to `last`, both included; to the end if `last` is `None`.
    From {
        /// First byte, from 0.
        first: u64,
        /// Last byte, at least `first`.
        last: Option<u64>,
    },
    /// This many bytes at the end.
    Last(u64),
}

/// A range applied to content of known length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Bytes `start..end`, never empty.
    Part {
        /// First byte.
        start: u64,
        /// Position after the last byte.
        end: u64,
    },
    /// There are no such bytes: 416.
    Unsatisfiable,
}

impl ByteRange {
    /// Parses the value of a `range` field that asks for one range of bytes. `None` for everything that is to
    /// be answered with the whole content: other units, several ranges (which a server may ignore, and which
    /// attackers request by the hundred), and malformed values.
    pub fn parse(text: &[u8]) -> Option<ByteRange> {
        let equals = text.iter().position(|&byte| byte == b'=')?;
        let (unit, set) = text.split_at(equals);
        unit.eq_ignore_ascii_case(b"bytes").then_some(())?;
        let set = set.get(1..)?;
        let dash = set.iter().position(|&byte| byte == b'-')?;
        let (first, last) = (number(set.get(..dash)?)?, number(set.get(dash + 1..)?)?);
        match (first, last) {
            (None, None) => None,
            (None, Some(count)) => Some(ByteRange::Last(count)),
            (Some(first), Some(last)) if last < first => None,
            (Some(first), last) => Some(ByteRange::From { first, last }),
        }
    }

    /// Applies the range to content of `length` bytes.
    pub fn of(self, length: u64) -> Resolved {
        let (start, end) = match self {
            ByteRange::From { first, last } => {
                (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
            }
            ByteRange::Last(count) => (length.saturating_sub(count), length),
        };
        if start < end { Resolved::Part { start, end } } else { Resolved::Unsatisfiable }
    }
}

/// Parses a number; one that is too large counts as the largest. `Some(None)` for an empty text.
fn number(text: &[u8]) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    let value = text.iter().try_fold(0_u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| value.saturating_mul(10).saturating_add(u64::from(digit)))
    });
    value.map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resolved(text: &str, length: u64) -> Option<Resolved> {
        ByteRange::parse(text.as_bytes()).map(|range| range.of(length))
    }

    const fn part(start: u64, end: u64) -> Option<Resolved> {
        Some(Resolved::Part { start, end })
    }

    #[test]
    fn the_examples_of_the_rfc_are_these_bytes() {
        // RFC 9110 section 14.1.2, "assuming a representation of length 10000".
        assert_eq!(resolved("bytes=0-499", 10_000), part(0, 500));
        assert_eq!(resolved("bytes=500-999", 10_000), part(500, 1000));
        assert_eq!(resolved("bytes=-500", 10_000), part(9500, 10_000));
        assert_eq!(resolved("bytes=9500-", 10_000), part(9500, 10_000));
        assert_eq!(resolved("Bytes=0-0", 10_000), part(0, 1));
        assert_eq!(resolved("bytes=-1", 10_000), part(9999, 10_000));
    }

    #[test]
    fn ranges_end_where_the_content_ends() {
        assert_eq!(resolved("bytes=0-", 1), part(0, 1));
        assert_eq!(resolved("bytes=5-99999999999999999999999999", 10), part(5, 10));
        assert_eq!(resolved("bytes=-11", 10), part(0, 10));
        for beyond in ["bytes=10-", "bytes=10-11", "bytes=99999999999999999999999999-", "bytes=-0"] {
            assert_eq!(resolved(beyond, 10), Some(Resolved::Unsatisfiable), "{beyond}");
        }
        assert_eq!(resolved("bytes=-5", 0), Some(Resolved::Unsatisfiable));
    }

    #[test]
    fn several_ranges_other_units_and_nonsense_ask_for_the_whole() {
        for whole in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=0-0,-1",
            "bytes=0-1, 3-4",
            "bytes=a-",
            "bytes= 0-1",
            "bytes=0 -1",
            "bytes=--1",
            "bytes=0--1",
            "bytes=+0-1",
            "items=0-1",
            "bytes 0-1",
            "=0-1",
            "bytes=0-1;x",
        ] {
            assert_eq!(resolved(whole, 10), None, "{whole}");
        }
    }

    proptest! {
        #[test]
        fn a_part_lies_within_the_content(text in "bytes=[0-9]{0,21}-[0-9]{0,21}", length in any::<u64>()) {
            if let Some(Resolved::Part { start, end }) = resolved(&text, length) {
                prop_assert!(start < end && end <= length);
            }
        }
    }
}
