//! When to renew a certificate, and when to retry a failed order. Pure functions: times and random numbers
//! are arguments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_tls::Facts;

/// Why an attempt to obtain a certificate failed, as far as it affects the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The authority could not be reached, or was unavailable: nothing was tried, and retrying soon does no
    /// harm.
    Away,
    /// The authority refused. Authorities count such attempts, and lock out clients that make too many.
    Refused,
    /// Our own disk.
    Store,
    /// The record for `dns-01` could not be added to its zone, or name servers did not have it in time.
    Dns,
    /// The authority was asked to finalize the order, and the certificate has not been issued yet: the same
    /// order is continued, and no other is placed.
    Late,
    /// Nothing was tried, because the authority has refused all orders of the account for some time.
    Held,
}

impl Blame {
    /// All values, for metrics.
    pub const ALL: [Blame; 6] =
        [Blame::Away, Blame::Refused, Blame::Store, Blame::Dns, Blame::Late, Blame::Held];

    /// The word in metrics and the log.
    pub fn word(self) -> &'static str {
        match self {
            Blame::Away => "away",
            Blame::Refused => "refused",
            Blame::Store => "store",
            Blame::Dns => "dns",
            Blame::Late => "late",
            Blame::Held => "held",
        }
    }

    /// The wait after the first failure, and the longest wait.
    fn bounds(self) -> (Duration, Duration) {
        match self {
            Blame::Away => (Duration::from_secs(1), Duration::from_secs(15 * 60)),
            // A full disk does not get free space within a second.
            Blame::Store => (Duration::from_secs(15), Duration::from_secs(3600)),
            Blame::Refused => (Duration::from_secs(60), Duration::from_secs(12 * 3600)),
            // An order was placed, and authorities count these too, although less strictly.
            Blame::Dns => (Duration::from_secs(15), Duration::from_secs(3600)),
            Blame::Late => (Duration::from_secs(5), Duration::from_secs(15 * 60)),
            // The hold itself has a duration.
            Blame::Held => (Duration::ZERO, Duration::ZERO),
        }
    }
}

/// How long to wait after failure number `count` (from 1) in a row: doubles each time, varied by up to a
/// quarter according to `draw` (0 to 1), so that attempts that failed together are not repeated together.
/// Never less than the authority asked for.
pub fn pause(blame: Blame, count: u32, asked_for: Option<Duration>, draw: f64) -> Duration {
    let (first, longest) = blame.bounds();
    let doubled = first.saturating_mul(1 << count.saturating_sub(1).min(20)).min(longest);
    let asked_for = asked_for.unwrap_or_default().min(Duration::from_secs(24 * 3600));
    doubled.mul_f64(0.75 + draw / 2.0).max(asked_for)
}

/// The times of an existing certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Start of its validity.
    pub begins: SystemTime,
    /// End of its validity.
    pub ends: SystemTime,
    /// When it was obtained.
    pub came: SystemTime,
}

impl Life {
    /// For a certificate whose file was last modified at `written`; `None` if it has no expiry time.
    ///
    /// If that time is in the future, the clock was ahead or the file was restored with such a time. Then it
    /// is unknown when the certificate was obtained, and waiting until that time could go beyond its expiry.
    pub fn of(certificate: &Facts, written: SystemTime, now: SystemTime) -> Option<Life> {
        let moment =
            |seconds: Option<i64>| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds?).ok()?));
        let (begins, ends) = (moment(certificate.not_before)?, moment(certificate.not_after)?);
        let came = if written <= now { written } else { begins };
        Some(Life { begins, ends, came })
    }
}

/// The period in which the authority suggests renewal (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start of the period.
    pub start: SystemTime,
    /// End of the period.
    pub end: SystemTime,
}

/// Least age at which a certificate is renewed, whatever the authority says: otherwise a mistake of the
/// authority could make us order without end.
const LEAST_USE: Duration = Duration::from_secs(60);

/// When to renew: with a window, at a time in it that `draw` (0 to 1) selects; without one, when a third of
/// the certificate's lifetime is left. Never when less than a tenth is left.
pub fn renewal(life: Life, window: Option<Window>, draw: f64) -> SystemTime {
    let span = life.ends.duration_since(life.begins).unwrap_or_default();
    let usual = life.begins + span.mul_f64(2.0 / 3.0 - draw / 100.0);
    let latest = life.begins + span.mul_f64(0.9);
    let wished = window.map_or(usual, |window| {
        let length = window.end.duration_since(window.start).unwrap_or_default();
        window.start + length.mul_f64(draw)
    });
    wished.min(latest).max(life.came + LEAST_USE.min(span / 3).max(Duration::from_secs(1)))
}

/// How long the authority's window is used without asking again: as long as it says, within limits (RFC 9773
/// section 4.3).
pub fn window_is_good_for(said: Duration) -> Duration {
    said.clamp(Duration::from_secs(60), Duration::from_secs(24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn life(days: u32) -> Life {
        let begins = SystemTime::UNIX_EPOCH + 1000 * DAY;
        Life { begins, ends: begins + days * DAY, came: begins + Duration::from_secs(3600) }
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_bound_and_chance_spreads_it() {
        let seconds = |blame, count, draw| pause(blame, count, None, draw).as_secs_f64();
        assert_eq!(seconds(Blame::Away, 1, 0.5), 1.0);
        assert_eq!(seconds(Blame::Away, 4, 0.5), 8.0);
        assert_eq!(seconds(Blame::Away, 1000, 0.5), 900.0);
        assert_eq!((seconds(Blame::Refused, 1, 0.0), seconds(Blame::Refused, 1, 1.0)), (45.0, 75.0));
        assert_eq!(seconds(Blame::Refused, 3, 0.5), 240.0);
        assert_eq!(seconds(Blame::Refused, u32::MAX, 0.5), 43_200.0);
    }

    #[test]
    fn what_the_authority_asks_for_is_waited_for_within_reason() {
        let asked = |seconds| pause(Blame::Away, 1, Some(Duration::from_secs(seconds)), 0.5);
        assert_eq!(asked(120), Duration::from_secs(120));
        assert_eq!(asked(0), Duration::from_secs(1));
        assert_eq!(asked(u64::MAX), DAY);
    }

    #[test]
    fn a_file_of_the_future_is_renewed_when_one_is_that_came_as_its_certificate_began() {
        let life = life(90);
        let seconds = |moment: SystemTime| moment.duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let facts = Facts {
            not_before: Some(seconds(life.begins)),
            not_after: Some(seconds(life.ends)),
            ..Facts::default()
        };
        let now = life.begins + DAY;
        assert_eq!(Life::of(&facts, life.came, now), Some(life));
        let ahead = Life::of(&facts, now + 365 * DAY, now).unwrap();
        assert_eq!(renewal(ahead, None, 0.0), life.begins + 60 * DAY);
    }

    #[test]
    fn without_a_window_a_third_of_its_life_is_left_when_it_is_renewed() {
        let life = life(90);
        assert_eq!(renewal(life, None, 0.0), life.begins + 60 * DAY);
        let drawn = renewal(life, None, 1.0);
        assert!(drawn > life.begins + 59 * DAY && drawn < life.begins + 60 * DAY);
    }

    #[test]
    fn the_authoritys_window_holds_unless_it_is_too_late() {
        let life = life(90);
        let window = |from: u32, to: u32| {
            Some(Window { start: life.begins + from * DAY, end: life.begins + to * DAY })
        };
        assert_eq!(renewal(life, window(50, 52), 0.5), life.begins + 51 * DAY);
        assert_eq!(renewal(life, window(95, 99), 0.5), life.begins + 81 * DAY, "a tenth is left");
        assert_eq!(
            renewal(life, window(52, 50), 0.5),
            life.begins + 52 * DAY,
            "a window that ends before it begins"
        );
    }

    #[test]
    fn an_authority_that_always_wants_it_renewed_is_asked_once_a_minute_at_most() {
        let life = life(90);
        let past = Window { start: SystemTime::UNIX_EPOCH, end: SystemTime::UNIX_EPOCH + DAY };
        assert_eq!(renewal(life, Some(past), 0.5), life.came + Duration::from_secs(60));
        let stillborn = Life { ends: life.begins, ..life };
        assert_eq!(renewal(stillborn, None, 0.5), life.came + Duration::from_secs(1));
        assert_eq!(window_is_good_for(Duration::ZERO), Duration::from_secs(60));
        assert_eq!(window_is_good_for(10 * DAY), DAY);
    }
}
