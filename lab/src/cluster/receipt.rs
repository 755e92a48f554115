//! What a load balancer itself reports about a failover: the receipts in `/v1/status` of Weir.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// One failover as reported. Times are since 1970, to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// When the loss of the former primary was detected.
    pub detected: Duration,
    /// When writes were sent to the next primary.
    pub writable: Duration,
    /// Statements that waited meanwhile.
    pub parked: u64,
}

/// Fetches `path` from `admin` and returns the first failover from the primary at `from`; `None` if there is
/// none.
pub fn first_from(admin: SocketAddr, path: &str, from: SocketAddr) -> io::Result<Option<Receipt>> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str::<Value>(body));
    match status {
        Some(Ok(status)) => Ok(oldest(&status, &from.to_string())),
        _ => Err(io::Error::other(format!("{admin} answered `{answer}` where its status was expected"))),
    }
}

/// The oldest receipt in a status whose primary was `from`. The newest receipt comes first.
fn oldest(status: &Value, from: &str) -> Option<Receipt> {
    let pools = status["pools"].as_array()?.iter();
    let receipts = pools.filter_map(|pool| pool["cluster"]["failovers"].as_array());
    let found = receipts.flatten().rev().find(|receipt| receipt["from"] == from)?;
    let time = |name: &str| unix(found[name].as_str()?);
    Some(Receipt {
        detected: time("detected")?,
        writable: time("writable")?,
        parked: found["parked"].as_u64()?,
    })
}

/// Time since 1970 of `2026-11-24T16:20:39.317Z`.
fn unix(text: &str) -> Option<Duration> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, between: char| -> Option<Vec<u64>> {
        text.split(between).map(|number| number.parse().ok()).collect()
    };
    let [year, month, day] = numbers(date, '-')?.try_into().ok()?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':')?.try_into().ok()?;
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    // Years begin in March here, so that the leap day comes last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day;
    let days = days.checked_sub(719_469)?;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(Duration::from_secs(seconds) + Duration::from_secs_f64(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn moments_are_read_as_time_since_1970() {
        assert_eq!(unix("1970-01-01T00:00:00Z"), Some(Duration::ZERO));
        assert_eq!(unix("2026-11-24T16:20:39.317Z"), Some(Duration::from_millis(1_795_537_239_317)));
        assert_eq!(unix("2024-02-29T23:59:59.5Z"), Some(Duration::from_millis(1_709_251_199_500)));
        assert_eq!(unix("yesterday"), None);
    }

    #[test]
    fn the_first_failover_from_a_primary_is_found_behind_later_ones() {
        let receipt = |from: &str, second: u64| {
            let at = |half: u64| format!("1970-01-01T00:00:{second:02}.{half}00Z");
            json!({ "from": from, "detected": at(1), "writable": at(5), "parked": second })
        };
        let failovers = [receipt("a:1", 30), receipt("b:2", 20), receipt("a:1", 10)];
        let status = json!({ "pools": [{ "name": "plain" }, { "cluster": { "failovers": failovers } }] });
        let expected = Receipt {
            detected: Duration::from_millis(10_100),
            writable: Duration::from_millis(10_500),
            parked: 10,
        };
        assert_eq!(oldest(&status, "a:1"), Some(expected));
        assert_eq!(oldest(&status, "c:3"), None);
        assert_eq!(oldest(&json!({}), "a:1"), None);
    }
}
