//! Durations, sizes and rates as people write them: a whole number and its unit, nothing else.
//!
//! A number without a unit is refused rather than guessed: `timeout = 30` means milliseconds to one reader
//! and seconds to another, and the wrong guess is found in production.

use std::time::Duration;

/// Why a text is refused, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong, lower case, no full stop.
    pub message: String,
    /// What to write.
    pub hint: String,
}

/// Refuses a text.
pub(crate) fn refuse<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { message: message.into(), hint: hint.into() })
}

const MILLIS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const BYTES: [(&str, u64); 8] = [
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Parses `"200ms"`, `"30s"`, `"2m"`, `"1h"`, `"1d"`.
///
/// `Err` says what to write instead; it never guesses a unit.
pub fn duration(text: &str) -> Result<Duration, Refused> {
    quantity(text, "duration", "\"30s\"", &MILLIS, duration_unit).map(Duration::from_millis)
}

/// Parses `"512B"`, `"64KiB"`, `"10MB"`, `"1MiB"`, `"2GiB"` into bytes.
pub fn size(text: &str) -> Result<u64, Refused> {
    quantity(text, "size", "\"64KiB\"", &BYTES, size_unit)
}

/// Parses `"100B/s"`, `"1KiB/s"` into bytes per second.
pub fn byte_rate(text: &str) -> Result<u64, Refused> {
    let Some(amount) = text.strip_suffix("/s") else {
        let hint = match size(text) {
            Ok(_) => format!("did you mean \"{text}/s\"?"),
            Err(_) => "expected bytes per second such as \"100B/s\"".to_owned(),
        };
        return Err(Refused { message: format!("{text:?} is not a rate"), hint });
    };
    size(amount).map_err(|refused| Refused {
        message: format!("{text:?} is not a rate"),
        hint: if refused.hint.starts_with("did you mean") {
            refused.hint.replace("\"?", "/s\"?")
        } else {
            "expected bytes per second such as \"100B/s\"".to_owned()
        },
    })
}

/// The unit that an operator who wrote `unit` most likely meant.
fn duration_unit(unit: &str) -> Option<&'static str> {
    match unit.to_ascii_lowercase().as_str() {
        "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => Some("ms"),
        "sec" | "secs" | "second" | "seconds" | "s" => Some("s"),
        "min" | "mins" | "minute" | "minutes" | "m" => Some("m"),
        "hr" | "hrs" | "hour" | "hours" | "h" => Some("h"),
        "day" | "days" | "d" => Some("d"),
        "ms" => Some("ms"),
        _ => None,
    }
}

/// The unit that an operator who wrote `unit` most likely meant. In nginx and HAProxy, `k` and `m` are powers
/// of two.
fn size_unit(unit: &str) -> Option<&'static str> {
    match unit.to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => Some("B"),
        "k" | "ki" | "kib" => Some("KiB"),
        "kb" => Some("KB"),
        "m" | "mi" | "mib" => Some("MiB"),
        "mb" => Some("MB"),
        "g" | "gi" | "gib" => Some("GiB"),
        "gb" => Some("GB"),
        "t" | "ti" | "tib" => Some("TiB"),
        _ => None,
    }
}

fn quantity(
    text: &str,
    what: &str,
    example: &str,
    units: &[(&str, u64)],
    meant: fn(&str) -> Option<&'static str>,
) -> Result<u64, Refused> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let refuse = |hint: String| Err(Refused { message: format!("{text:?} is not a {what}"), hint });
    let names = units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if number.is_empty() {
        return match text.strip_prefix('-') {
            Some(_) => refuse(format!("a {what} is never negative; expected something like {example}")),
            None => refuse(format!("expected a whole number and a unit ({names}), such as {example}")),
        };
    }
    if unit.is_empty() {
        let suggestion = units.iter().find(|(name, _)| example.contains(name)).map_or("", |(name, _)| name);
        return refuse(format!("add the unit ({names}), such as \"{number}{suggestion}\""));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        if let Some(suggestion) = fraction(text, units) {
            return refuse(format!("write it as a whole number: {suggestion:?}"));
        }
        return match meant(unit.trim()) {
            Some(unit) => refuse(format!("did you mean \"{number}{unit}\"?")),
            None => refuse(format!("expected a whole number and a unit ({names}), such as {example}")),
        };
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)) {
        Some(amount) => Ok(amount),
        None => refuse(format!("the number is too large; expected something like {example}")),
    }
}

/// `1.5s` as a whole number: `1500ms`. `None` if the text is not such a number, or if the result would not be
/// exact.
fn fraction(text: &str, units: &[(&str, u64)]) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.')?;
    if part.is_empty() || part.len() > 9 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = whole.parse().ok()?;
    let scale = 10u64.pow(u32::try_from(part.len()).ok()?);
    let part = part.parse::<u64>().ok()?.checked_mul(*factor)?;
    let amount = whole.checked_mul(*factor)?.checked_add(part.checked_div(scale)?)?;
    (part % scale == 0).then(|| largest_unit(amount, units))
}

/// A duration in the largest unit that divides it, so that it reads back to the same value. Fractions of a
/// millisecond are dropped.
pub fn show_duration(duration: Duration) -> String {
    match u64::try_from(duration.as_millis()).unwrap_or(u64::MAX) {
        0 => "0s".to_owned(),
        // Nobody writes "1m" for a timeout.
        60_000 => "60s".to_owned(),
        millis => largest_unit(millis, &MILLIS),
    }
}

/// A size in the largest unit that divides it, so that it reads back to the same value.
pub fn show_size(bytes: u64) -> String {
    match bytes {
        0 => "0B".to_owned(),
        bytes => largest_unit(bytes, &BYTES),
    }
}

/// A byte rate in the largest unit that divides it.
pub fn show_byte_rate(bytes_per_second: u64) -> String {
    format!("{}/s", show_size(bytes_per_second))
}

fn largest_unit(amount: u64, units: &[(&str, u64)]) -> String {
    let mut best = units[0];
    for (name, factor) in units {
        if amount.is_multiple_of(*factor) && *factor > best.1 {
            best = (name, *factor);
        }
    }
    format!("{}{}", amount / best.1, best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(size("0B"), Ok(0));
        assert_eq!(byte_rate("1KiB/s"), Ok(1024));
    }

    #[test]
    fn what_is_shown_reads_back_to_the_same_value() {
        for millis in [0, 1, 200, 999, 1_000, 1_500, 60_000, 90_000, 3_600_000, 86_400_000, 86_401_000] {
            let value = Duration::from_millis(millis);
            assert_eq!(duration(&show_duration(value)), Ok(value));
        }
        for bytes in [0, 1, 100, 1000, 1024, 1_000_000, 1 << 20, 3 << 30, u64::MAX] {
            assert_eq!(size(&show_size(bytes)), Ok(bytes));
            assert_eq!(byte_rate(&show_byte_rate(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn a_number_without_unit_is_refused_with_the_unit_to_add() {
        assert_eq!(duration("30").unwrap_err().hint, "add the unit (ms, s, m, h, d), such as \"30s\"");
    }

    #[test]
    fn units_of_other_programs_are_recognised() {
        assert_eq!(duration("30 sec").unwrap_err().hint, "did you mean \"30s\"?");
        assert_eq!(size("64k").unwrap_err().hint, "did you mean \"64KiB\"?");
        assert_eq!(byte_rate("64k/s").unwrap_err().hint, "did you mean \"64KiB/s\"?");
        assert_eq!(byte_rate("64KiB").unwrap_err().hint, "did you mean \"64KiB/s\"?");
    }

    #[test]
    fn a_fraction_is_said_with_a_whole_number() {
        assert_eq!(duration("1.5s").unwrap_err().hint, "write it as a whole number: \"1500ms\"");
        assert_eq!(size("1.5MiB").unwrap_err().hint, "write it as a whole number: \"1536KiB\"");
    }

    #[test]
    fn a_number_too_large_for_the_machine_is_refused() {
        assert!(duration("99999999999999999999s").unwrap_err().hint.contains("too large"));
        assert!(size("18446744073709551615GiB").unwrap_err().hint.contains("too large"));
    }
}
