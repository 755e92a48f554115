//! Wall-clock times for people and machines: RFC 3339 in UTC. Never used to measure durations;
//! `weir_io::clock` is for that.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment of wall-clock time, in milliseconds since 1970; serialised as RFC 3339 text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Now.
    pub fn now() -> Timestamp {
        Timestamp::of(SystemTime::now())
    }

    /// For a wall-clock time; 1970 for one before that.
    pub fn of(moment: SystemTime) -> Timestamp {
        Timestamp(moment.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64)
    }

    /// Seconds since 1970.
    pub fn unix_seconds(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// `2026-11-21T22:15:00.123Z`
    pub fn rfc3339(self) -> String {
        let (days, of_day) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil(days as i64);
        let (seconds, millis) = (of_day / 1000, of_day % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.rfc3339())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no time, expected RFC 3339 in UTC")))
    }
}

/// Parses what [`Timestamp::rfc3339`] writes.
fn parse(text: &str) -> Option<Timestamp> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)? as i64, number(5, 7)?, number(8, 10)?);
    if !text.ends_with('Z') || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = (year - 1970) * 365 + leap_days(year) + month_start(year, month) + day as i64 - 1;
    let millis = number(20, 23).unwrap_or(0);
    let seconds = number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    Some(Timestamp(u64::try_from(days).ok()? * 86_400_000 + seconds * 1000 + millis))
}

/// Leap days from 1970 to the start of `year`.
fn leap_days(year: i64) -> i64 {
    let up_to = |year: i64| year / 4 - year / 100 + year / 400;
    up_to(year - 1) - up_to(1969)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from the start of `year` to the start of its month number `month`.
fn month_start(year: i64, month: u64) -> i64 {
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    lengths[..month as usize - 1].iter().sum()
}

/// Year, month and day of a day number since 1970.
fn civil(days: i64) -> (i64, u64, i64) {
    let mut year = 1970 + days / 366;
    while (year + 1 - 1970) * 365 + leap_days(year + 1) <= days {
        year += 1;
    }
    let of_year = days - (year - 1970) * 365 - leap_days(year);
    let month = (1..=12).rev().find(|&month| month_start(year, month) <= of_year).unwrap_or(1);
    (year, month, of_year - month_start(year, month) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_read_as_they_should() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_299_300_123, "2026-11-21T22:15:00.123Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(millis).rfc3339(), text);
            assert_eq!(parse(text), Some(Timestamp(millis)));
        }
    }

    #[test]
    fn every_day_of_four_centuries_reads_back() {
        for day in 0..146_097 {
            let moment = Timestamp(day * 86_400_000 + 86_399_999);
            assert_eq!(parse(&moment.rfc3339()), Some(moment));
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "yesterday", "2026-13-01T00:00:00.000Z", "2026-01-01T00:00:00.000+01:00"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
