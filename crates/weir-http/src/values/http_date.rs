//! Dates (RFC 9110 §5.6.7): the one form that is written, and the three that are parsed.

const WEEKDAYS: [&[u8]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
const LONG_WEEKDAYS: [&[u8]; 7] =
    [b"Thursday", b"Friday", b"Saturday", b"Sunday", b"Monday", b"Tuesday", b"Wednesday"];
const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Seconds in a day; HTTP has no leap seconds.
const DAY: u64 = 86_400;

/// A date and time of the Gregorian calendar, in UTC.
struct Moment {
    year: u64,
    month: u64,
    day: u64,
    second_of_day: u64,
}

/// Parses a date in any of the three forms into seconds since the epoch; 0 for dates before it.
///
/// `now`, in seconds since the epoch, determines the century of two-digit years. `None` for anything else:
/// names of days and months are case-sensitive, and the zone must be `GMT`. Checks that the month has such a
/// day, but not that the weekday is right. O(1), does not allocate.
pub fn parse(text: &[u8], now: u64) -> Option<u64> {
    let moment = match text {
        [_, _, _, b',', b' ', rest @ ..] if WEEKDAYS.contains(&text.get(..3)?) => fixdate(rest)?,
        [_, _, _, b' ', rest @ ..] if WEEKDAYS.contains(&text.get(..3)?) => asctime(rest)?,
        _ => {
            let comma = text.iter().position(|&byte| byte == b',')?;
            let (weekday, rest) = text.split_at(comma);
            LONG_WEEKDAYS.contains(&weekday).then_some(())?;
            rfc850(rest.strip_prefix(b", ")?, now)?
        }
    };
    moment.seconds()
}

/// `06 Nov 1994 08:49:37 GMT`
fn fixdate(text: &[u8]) -> Option<Moment> {
    let &[d1, d2, b' ', m1, m2, m3, b' ', y1, y2, y3, y4, b' ', ref rest @ ..] = text else { return None };
    Some(Moment {
        year: digits(&[y1, y2, y3, y4])?,
        month: month([m1, m2, m3])?,
        day: digits(&[d1, d2])?,
        second_of_day: clock(rest.strip_suffix(b" GMT")?)?,
    })
}

/// `06-Nov-94 08:49:37 GMT`
fn rfc850(text: &[u8], now: u64) -> Option<Moment> {
    let &[d1, d2, b'-', m1, m2, m3, b'-', y1, y2, b' ', ref rest @ ..] = text else { return None };
    let (this_year, _, _) = civil(now / DAY);
    let mut year = this_year / 100 * 100 + digits(&[y1, y2])?;
    //= https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7
    //# Recipients of a timestamp value in rfc850-date format, which uses a
    //# two-digit year, MUST interpret a timestamp that appears to be more
    //# than 50 years in the future as representing the most recent year in
    //# the past that had the same last two digits.
    if year > this_year + 50 {
        year = year.checked_sub(100)?;
    }
    let second_of_day = clock(rest.strip_suffix(b" GMT")?)?;
    Some(Moment { year, month: month([m1, m2, m3])?, day: digits(&[d1, d2])?, second_of_day })
}

/// `Nov  6 08:49:37 1994`
fn asctime(text: &[u8]) -> Option<Moment> {
    let &[m1, m2, m3, b' ', d1, d2, b' ', ref rest @ ..] = text else { return None };
    let day = if d1 == b' ' { digits(&[d2])? } else { digits(&[d1, d2])? };
    let (time, year) = rest.split_at_checked(8)?;
    let year = year.strip_prefix(b" ").filter(|year| year.len() == 4)?;
    Some(Moment { year: digits(year)?, month: month([m1, m2, m3])?, day, second_of_day: clock(time)? })
}

/// `08:49:37`; second 60 is a leap second, which counts as the second after it.
fn clock(text: &[u8]) -> Option<u64> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = text else { return None };
    let (hour, minute, second) = (digits(&[h1, h2])?, digits(&[m1, m2])?, digits(&[s1, s2])?);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

fn month(name: [u8; 3]) -> Option<u64> {
    MONTHS.iter().position(|month| *month == name).map(|index| index as u64 + 1)
}

fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then_some(value * 10 + u64::from(digit))
    })
}

impl Moment {
    fn seconds(&self) -> Option<u64> {
        let leap =
            self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        let length = match self.month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if self.day == 0 || self.day > length {
            return None;
        }
        let days = days_since_epoch(self.year, self.month, self.day);
        Some(days.map_or(0, |days| days * DAY + self.second_of_day))
    }
}

/// Days from 1970-01-01 to this date; `None` before 1970.
///
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    // The algorithm's years begin in March, so that a leap day is the last day of its year. Year 0 has none
    // before it.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

/// A time in seconds since the epoch as an IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Years end at
/// 9999. Does not allocate.
pub fn text(seconds: u64) -> [u8; 29] {
    const LAST: u64 = 253_402_300_799;
    let seconds = seconds.min(LAST);
    let days = seconds / DAY;
    let (year, month, day) = civil(days);
    let mut out = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let weekday = WEEKDAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let month = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    put(&mut out, 0, weekday);
    put(&mut out, 5, &two(day));
    put(&mut out, 8, month);
    put(&mut out, 12, &two(year / 100));
    put(&mut out, 14, &two(year % 100));
    put(&mut out, 17, &two(seconds / 3600 % 24));
    put(&mut out, 20, &two(seconds / 60 % 60));
    put(&mut out, 23, &two(seconds % 60));
    out
}

fn put(out: &mut [u8; 29], at: usize, text: &[u8]) {
    for (place, byte) in out.iter_mut().skip(at).zip(text) {
        *place = *byte;
    }
}

/// The two digits of a number below 100.
fn two(number: u64) -> [u8; 2] {
    [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8]
}

/// Year, month (1 to 12) and day (1 to 31) of the day `days` after 1970-01-01 in the Gregorian calendar.
///
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-22
    const NOW: u64 = 1_795_305_600;

    fn of(text: &str) -> Option<u64> {
        parse(text.as_bytes(), NOW)
    }

    #[test]
    fn the_three_examples_of_the_rfc_are_the_same_moment() {
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(of("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(of("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
        assert_eq!(of("Sun Nov 16 08:49:37 1994"), Some(784_111_777 + 10 * DAY));
    }

    #[test]
    fn moments_are_written_as_the_rfc_has_them() {
        assert_eq!(&text(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&text(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&text(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(&text(u64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn two_digit_years_lie_at_most_fifty_years_ahead() {
        // It is 2026: 76 is 2076, fifty years from now; 77 is 1977.
        assert_eq!(&text(of("Sunday, 06-Nov-76 00:00:00 GMT").unwrap())[12..16], b"2076");
        assert_eq!(&text(of("Sunday, 06-Nov-77 00:00:00 GMT").unwrap())[12..16], b"1977");
        assert_eq!(&text(of("Sunday, 06-Nov-26 00:00:00 GMT").unwrap())[12..16], b"2026");
    }

    #[test]
    fn dates_before_the_epoch_are_the_epoch() {
        assert_eq!(of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(of("Wed, 31 Dec 1969 23:59:59 GMT"), Some(0));
        assert_eq!(of("Sat, 01 Jan 0000 00:00:00 GMT"), Some(0));
    }

    #[test]
    fn anything_else_is_no_date() {
        for bad in [
            "",
            "0",
            "-1",
            "Sun",
            "Sun, ",
            "sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 gmt",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 GMT ",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06-Nov-94 08:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 00:60:00 GMT",
            "Sun, 06 Nov 1994 00:00:61 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "Sun Nov  6 08:49:37 94",
            "Sun Nov  6 08:49:37 1994 GMT",
            "Son, 06 Nov 1994 08:49:37 GMT",
            "\u{ff}\u{ff}\u{ff}, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in 0_u64..253_402_300_799) {
            prop_assert_eq!(parse(&text(seconds), NOW), Some(seconds));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), now in any::<u32>()) {
            let _ = parse(&bytes, u64::from(now));
        }

        #[test]
        fn no_date_with_a_byte_changed_makes_it_panic(seconds in 0_u64..253_402_300_799, at in 0_usize..29, byte in any::<u8>()) {
            let mut bytes = text(seconds);
            bytes[at] = byte;
            let _ = parse(&bytes, NOW);
        }
    }
}
