//! Times and sizes as HAProxy writes them.

use std::fmt;

/// A time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

/// Longest time that is read, in milliseconds: HAProxy has no longer one.
const LONGEST: u64 = 2_147_483_647;

/// Reads `10s`, `500ms`, `1m`, `1h`, `1d`, `100us`; a number without a unit is so many times `unit`
/// milliseconds (1 or 1000). `None` if it is no time.
pub fn duration(text: &str, unit: u64) -> Option<Time> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match word {
        "" => number.checked_mul(unit)?,
        "us" => number.div_ceil(1000),
        "ms" => number,
        "s" => number.checked_mul(1000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        "d" => number.checked_mul(86_400_000)?,
        _ => return None,
    };
    Some(Time(millis.min(LONGEST)))
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Time(millis) = *self;
        for (unit, word) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")] {
            if millis >= unit && millis.is_multiple_of(unit) {
                return write!(f, "{}{word}", millis / unit);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl Time {
    /// The time within bounds in milliseconds, and whether it was outside of them.
    pub fn within(self, least: u64, most: u64) -> (Time, bool) {
        let kept = Time(self.0.clamp(least, most));
        (kept, kept != self)
    }

    /// As the period of a rate: whole seconds at least.
    pub fn whole_seconds(self) -> String {
        let Time(millis) = self;
        Time(millis.div_ceil(1000).max(1) * 1000).to_string()
    }
}

/// Bytes: `16k`, `10m`, `1g`, or a number.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let shift = match word.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_the_one_that_is_meant() {
        for (text, unit, told) in [
            ("5000", 1, Some("5s")),
            ("30s", 1, Some("30s")),
            ("90s", 1, Some("90s")),
            ("120s", 1, Some("2m")),
            ("1500ms", 1, Some("1500ms")),
            ("2", 1000, Some("2s")),
            ("24d", 1, Some("24d")),
            ("s", 1, None),
            ("5x", 1, None),
            ("99999999999999999999", 1, None),
        ] {
            assert_eq!(duration(text, unit).map(|time| time.to_string()).as_deref(), told, "{text}");
        }
        assert_eq!(bytes("16k"), Some(16_384));
    }
}
