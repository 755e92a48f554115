//! Rates: a count per time.

use std::fmt;
use std::time::Duration;

/// A rate: `count` per `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    /// A whole number of seconds, at least one.
    pub per: Duration,
}

const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// Longest time of a rate, in seconds.
const LONGEST: u64 = 7 * 86_400;
/// Largest count of a rate.
const MOST: u32 = 10_000_000;

impl Rate {
    /// Parses `"100/s"`, `"30/m"`, `"1000/h"`, `"10000/d"`, `"5/10s"`.
    ///
    /// # Errors
    /// It is not a rate; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Rate, String> {
        const EXPECTED: &str = "expected a count and a time, such as \"100/s\", \"30/m\" or \"5/10s\"";
        let Some((count, per)) = text.split_once('/') else {
            return Err(match text.parse::<u32>() {
                Ok(count) => format!("in which time? say \"{count}/s\" or \"{count}/m\""),
                // nginx writes `10r/s`, which has a slash; this is `10rps`.
                Err(_) => EXPECTED.to_owned(),
            });
        };
        if let Some(count) = count.strip_suffix(['r', 'R']).filter(|count| count.parse::<u32>().is_ok()) {
            return Err(format!("did you mean \"{count}/{per}\"?"));
        }
        if !count.bytes().all(|byte| byte.is_ascii_digit()) || count.is_empty() {
            return Err(EXPECTED.to_owned());
        }
        let Some(count) = count.parse::<u32>().ok().filter(|count| *count <= MOST) else {
            return Err(format!("expected at most {MOST} in a time"));
        };
        if count == 0 {
            return Err("a rate of 0 lets nobody pass: use a deny list".to_owned());
        }
        let digits = per.len() - per.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = per.split_at(digits);
        let Some((_, seconds)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(match unit {
                "sec" | "second" => format!("did you mean \"{count}/s\"?"),
                "min" | "minute" => format!("did you mean \"{count}/m\"?"),
                "hour" | "hr" => format!("did you mean \"{count}/h\"?"),
                "day" => format!("did you mean \"{count}/d\"?"),
                "ms" => "a time below a second: say how many in a whole one".to_owned(),
                _ => EXPECTED.to_owned(),
            });
        };
        let number = if number.is_empty() { 1 } else { number.parse::<u64>().unwrap_or(u64::MAX) };
        match number.checked_mul(*seconds) {
            Some(0) => Err("a time of 0 is no time".to_owned()),
            Some(seconds) if seconds <= LONGEST => Ok(Rate { count, per: Duration::from_secs(seconds) }),
            _ => Err("expected a time of at most 7d".to_owned()),
        }
    }

    /// Tokens that come in one second, rounded up: the default burst.
    pub fn in_a_second(&self) -> u32 {
        u32::try_from(u64::from(self.count).div_ceil(self.per.as_secs().max(1))).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.per.as_secs();
        let (name, unit) =
            UNITS.iter().rev().find(|(_, unit)| seconds.is_multiple_of(*unit)).unwrap_or(&UNITS[0]);
        match seconds / unit {
            1 => write!(out, "{}/{name}", self.count),
            number => write!(out, "{}/{number}{name}", self.count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_alike() {
        for (text, count, seconds) in [
            ("100/s", 100, 1),
            ("30/m", 30, 60),
            ("1000/h", 1000, 3_600),
            ("7/d", 7, 86_400),
            ("5/10s", 5, 10),
            ("5/90s", 5, 90),
        ] {
            let rate = Rate::parse(text).unwrap();
            assert_eq!((rate.count, rate.per.as_secs()), (count, seconds));
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!(Rate::parse("60/60s").unwrap().to_string(), "60/m");
    }

    #[test]
    fn what_is_no_rate_says_what_to_write() {
        for (text, hint) in [
            ("100", "in which time? say \"100/s\" or \"100/m\""),
            ("10r/s", "did you mean \"10/s\"?"),
            ("10/sec", "did you mean \"10/s\"?"),
            ("10/500ms", "a time below a second: say how many in a whole one"),
            ("0/s", "a rate of 0 lets nobody pass: use a deny list"),
            ("10/0s", "a time of 0 is no time"),
            ("10/8d", "expected a time of at most 7d"),
            ("10/99999999999999999999d", "expected a time of at most 7d"),
            ("99999999999/s", "expected at most 10000000 in a time"),
        ] {
            assert_eq!(Rate::parse(text).unwrap_err(), hint, "{text}");
        }
        for text in ["", "/s", "-1/s", "+1/s", "1.5/s", "10/", "10/x", "fast"] {
            assert!(Rate::parse(text).unwrap_err().starts_with("expected a count"), "{text}");
        }
    }

    #[test]
    fn a_second_holds_at_least_one() {
        let second = |text| Rate::parse(text).unwrap().in_a_second();
        assert_eq!([second("100/s"), second("90/m"), second("1/d"), second("5/2s")], [100, 2, 1, 3]);
    }
}
