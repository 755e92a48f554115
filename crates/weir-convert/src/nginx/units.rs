//! nginx's durations and sizes, and how Weir writes them.

use std::time::Duration;

use weir_config::units::{show_duration, show_size};

/// A duration as nginx writes it: `60`, `60s`, `1m30s`, `500ms`, `1h 30m`. `None` if it is none.
pub fn nginx_time(text: &str) -> Option<Duration> {
    let mut total: u64 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units = [
            ("ms", 1),
            ("s", 1000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
            ("w", 604_800_000),
            ("M", 2_592_000_000),
            ("y", 31_536_000_000),
        ];
        let unit = units.iter().find(|(unit, _)| rest.starts_with(unit));
        let millis = match unit {
            Some((unit, millis)) => {
                rest = &rest[unit.len()..];
                *millis
            }
            None if rest.is_empty() || rest.starts_with(' ') => 1000,
            None => return None,
        };
        total = total.checked_add(number.checked_mul(millis)?)?;
        rest = rest.trim_start();
    }
    Some(Duration::from_millis(total))
}

/// A size as nginx writes it: `1024`, `8k`, `1m`, `1g`, in bytes. `None` if it is none.
pub fn nginx_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor: u64 = match &text[digits..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// A duration as Weir writes it, in quotes, within bounds.
pub fn duration_between(duration: Duration, least: Duration, most: Duration) -> String {
    format!("\"{}\"", show_duration(duration.clamp(least, most)))
}

/// A duration of a timer as Weir writes it: from 10 ms to a day.
pub fn timer(duration: Duration) -> String {
    duration_between(duration, Duration::from_millis(10), Duration::from_secs(86_400))
}

/// A size as Weir writes it, in quotes.
pub fn size_text(bytes: u64) -> String {
    format!("\"{}\"", show_size(bytes))
}

/// Whether a text is a host that Weir can ask by, without a port.
pub fn is_plain_host(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.len() <= 253
        && text.split('.').all(is_label)
        && (!is_number || text.parse::<std::net::Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_those_of_nginx() {
        for (text, millis) in [
            ("60", 60_000),
            ("60s", 60_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h 30m", 5_400_000),
            ("1M", 2_592_000_000),
        ] {
            assert_eq!(nginx_time(text).map(|time| time.as_millis()), Some(millis), "{text}");
        }
        assert_eq!((nginx_time("x"), nginx_time(""), nginx_time("5x")), (None, None, None));
        assert_eq!(
            (nginx_size("8k"), nginx_size("1m"), nginx_size("7")),
            (Some(8192), Some(1 << 20), Some(7))
        );
        assert_eq!((nginx_size("1t"), nginx_size("99999999999999999999")), (None, None));
        assert_eq!(size_text(1 << 20), "\"1MiB\"");
    }
}
