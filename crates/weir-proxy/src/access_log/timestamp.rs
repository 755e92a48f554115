//! Wall-clock time as text, in UTC; everything but the fraction of a second is computed once per second.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_http::values::http_date;

use super::render::{digits2, digits3};

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// A moment as calendar fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    year: u64,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

/// The calendar fields of the second that was last asked for.
#[derive(Debug)]
pub struct Calendar {
    second: u64,
    civil: Civil,
}

impl Default for Calendar {
    fn default() -> Calendar {
        Calendar { second: 0, civil: civil(0) }
    }
}

impl Calendar {
    /// `2026-11-21T22:05:09.123Z` (RFC 3339 section 5.6).
    pub fn rfc3339(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        let (at, milliseconds) = self.at(time);
        super::render::number(out, at.year);
        for (mark, field) in
            [(b'-', at.month), (b'-', at.day), (b'T', at.hour), (b':', at.minute), (b':', at.second)]
        {
            out.push(mark);
            digits2(out, field);
        }
        out.push(b'.');
        digits3(out, milliseconds);
        out.push(b'Z');
    }

    /// `Nov 21 22:05:09` (RFC 3164 section 4.1.2): a day of one digit has a blank before it.
    pub fn rfc3164(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        let (at, _) = self.at(time);
        out.extend_from_slice(MONTHS[usize::from(at.month - 1)]);
        out.extend_from_slice(if at.day < 10 { b"  " } else { b" " });
        super::render::number(out, u64::from(at.day));
        for (mark, field) in [(b' ', at.hour), (b':', at.minute), (b':', at.second)] {
            out.push(mark);
            digits2(out, field);
        }
    }

    /// `21/Nov/2026:22:05:09 +0000`, as Apache and nginx write it.
    pub fn common(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        let (at, _) = self.at(time);
        day_first(out, at);
        out.extend_from_slice(b" +0000");
    }

    /// `21/Nov/2026:22:05:09.123`, as HAProxy writes it.
    pub fn haproxy(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        let (at, milliseconds) = self.at(time);
        day_first(out, at);
        out.push(b'.');
        digits3(out, milliseconds);
    }

    fn at(&mut self, time: SystemTime) -> (Civil, u16) {
        // If the clock is set before 1970 this gives the epoch: a wrong time is no reason to lose the line.
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        if since.as_secs() != self.second {
            *self = Calendar { second: since.as_secs(), civil: civil(since.as_secs()) };
        }
        (self.civil, since.subsec_millis() as u16)
    }
}

fn day_first(out: &mut Vec<u8>, at: Civil) {
    digits2(out, at.day);
    out.push(b'/');
    out.extend_from_slice(MONTHS[usize::from(at.month - 1)]);
    out.push(b'/');
    super::render::number(out, at.year);
    for field in [at.hour, at.minute, at.second] {
        out.push(b':');
        digits2(out, field);
    }
}

/// Calendar fields of a second since 1970, in the Gregorian calendar.
fn civil(seconds: u64) -> Civil {
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = http_date::civil(days);
    Civil {
        year,
        month: month as u8,
        day: day as u8,
        hour: (second_of_day / 3_600) as u8,
        minute: (second_of_day / 60 % 60) as u8,
        second: (second_of_day % 60) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rfc3339(milliseconds: u64) -> String {
        let mut out = Vec::new();
        Calendar::default().rfc3339(&mut out, UNIX_EPOCH + Duration::from_millis(milliseconds));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_moments_are_written_right() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(951_868_799_999), "2000-02-29T23:59:59.999Z");
        assert_eq!(rfc3339(1_795_298_709_007), "2026-11-21T22:05:09.007Z");
        assert_eq!(rfc3339(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn a_day_of_one_digit_has_a_blank_before_it_in_syslog() {
        let mut out = Vec::new();
        for seconds in [1_795_298_709, 951_868_799 + 86_400] {
            Calendar::default().rfc3164(&mut out, UNIX_EPOCH + Duration::from_secs(seconds));
            out.push(b'|');
        }
        assert_eq!(String::from_utf8(out).unwrap(), "Nov 21 22:05:09|Mar  1 23:59:59|");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = civil(0);
        for day in 1..200_000 {
            let next = civil(day * 86_400);
            let same_month = next.month == last.month && next.year == last.year && next.day == last.day + 1;
            let next_month = next.day == 1 && next.month == last.month % 12 + 1 && last.day >= 28;
            assert!(same_month || next_month, "{last:?} then {next:?}");
            last = next;
        }
    }

    #[test]
    fn the_cached_second_never_outlives_itself() {
        let mut calendar = Calendar::default();
        let mut out = Vec::new();
        for milliseconds in [1_795_298_709_007_u64, 1_795_298_709_900, 1_795_298_710_000, 1_795_298_708_000] {
            calendar.haproxy(&mut out, UNIX_EPOCH + Duration::from_millis(milliseconds));
            out.push(b' ');
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "21/Nov/2026:22:05:09.007 21/Nov/2026:22:05:09.900 21/Nov/2026:22:05:10.000 21/Nov/2026:22:05:08.000 "
        );
    }
}
