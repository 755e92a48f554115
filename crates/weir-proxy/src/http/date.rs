//! The `date` field of Weir's own responses (RFC 9110 §5.6.7), rendered at most once a second per worker.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

thread_local! {
    static RENDERED: RefCell<(u64, [u8; 29])> = const { RefCell::new((u64::MAX, [0; 29])) };
}

/// Calls `with` with the present time as an IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn now<T>(with: impl FnOnce(&[u8]) -> T) -> T {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    RENDERED.with_borrow_mut(|(rendered, text)| {
        if *rendered != seconds {
            *text = render(seconds);
            *rendered = seconds;
        }
        with(text)
    })
}

fn render(seconds: u64) -> [u8; 29] {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let month = MONTHS[month as usize - 1];
    let text = format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT");
    let mut out = [b' '; 29];
    for (place, byte) in out.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    out
}

/// Year, month (1 to 12) and day (1 to 31) of the day `days` after 1970-01-01 in the Gregorian calendar.
///
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_is_rendered_as_the_rfc_has_it() {
        assert_eq!(&render(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&render(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&render(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
    }
}
