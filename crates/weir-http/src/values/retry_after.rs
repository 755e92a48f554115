//! `retry-after` (RFC 9110 §10.2.3): seconds, or a date.

use std::time::Duration;

use super::{delta_seconds, http_date};

/// How long to wait; zero for a date in the past. `wall_seconds` is the current time in seconds since 1970.
///
/// `None` if it is neither seconds nor a date. O(1), does not allocate.
pub fn parse(value: &[u8], wall_seconds: u64) -> Option<Duration> {
    let seconds = match delta_seconds::parse(value) {
        Some(seconds) => u64::from(seconds),
        None => http_date::parse(value, wall_seconds)?.saturating_sub(wall_seconds),
    };
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_say_how_long_and_all_else_says_nothing() {
        let now = 784_111_777;
        let seconds = |value: &[u8]| parse(value, now).map(|wait| wait.as_secs());
        assert_eq!(seconds(b"120"), Some(120));
        assert_eq!(seconds(b"0"), Some(0));
        assert_eq!(seconds(b"Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(seconds(b"Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
        for odd in [&b""[..], b"-1", b"1.5", b"soon", b"1 s"] {
            assert_eq!(seconds(odd), None, "{odd:?}");
        }
    }
}
