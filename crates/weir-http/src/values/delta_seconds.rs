//! Whole numbers of seconds (RFC 9111 §1.2.2), and the `age` field, which is one.

use super::list;

/// The largest number of seconds, some 68 years: larger ones count as this.
//= https://www.rfc-editor.org/rfc/rfc9111#section-1.2.2
//# If a cache receives a delta-seconds value greater than the greatest
//# integer it can represent, or if any of its subsequent calculations
//# overflows, the cache MUST consider the value to be 2147483648 (2^31)
//# or the greatest positive integer it can conveniently represent.
pub const MOST: u32 = 1 << 31;

/// Parses a number, at most [`MOST`]; `None` for anything but digits, including signs and fractions.
/// O(length).
pub fn parse(text: &[u8]) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u32, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        let next = value.saturating_mul(10).saturating_add(u32::from(digit)).min(MOST);
        (digit <= 9).then_some(next)
    })
}

/// The value of an `age` field in seconds; `None` if it is absent or malformed.
//= https://www.rfc-editor.org/rfc/rfc9111#section-5.1
//# Although it is defined as a singleton header field, a cache
//# encountering a message with a list-based Age field value SHOULD use
//# the first member of the field value, discarding subsequent ones.
pub fn age<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<u32> {
    list::elements(values).next().and_then(parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_and_large_numbers_stop_at_the_most() {
        assert_eq!(parse(b"0"), Some(0));
        assert_eq!(parse(b"0060"), Some(60));
        assert_eq!(parse(b"2147483647"), Some(MOST - 1));
        for large in ["2147483648", "4294967296", "99999999999999999999999999999999"] {
            assert_eq!(parse(large.as_bytes()), Some(MOST), "{large}");
        }
    }

    #[test]
    fn anything_but_digits_is_no_number_of_seconds() {
        for bad in ["", "-1", "+1", "1.5", "1s", " 1", "0x10", "1e3", "\"60\""] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn the_first_member_of_a_repeated_age_counts() {
        let of = |values: &[&'static str]| age(values.iter().map(|value| value.as_bytes()));
        assert_eq!(of(&["7"]), Some(7));
        assert_eq!(of(&["7, 9"]), Some(7));
        assert_eq!(of(&["7", "9"]), Some(7));
        assert_eq!(of(&["-7"]), None);
        assert_eq!(of(&["7;a=1, 9"]), None);
        assert_eq!(of(&[]), None);
    }
}
