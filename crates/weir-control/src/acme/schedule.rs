//! When a certificate is renewed, and when a failed order is tried again. Pure: moments and draws are
//! arguments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_tls::Facts;

/// How an attempt to get a certificate failed, as far as it matters for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The authority could not be spoken with, or said that it can't now: nothing was tried, and nothing is
    /// lost by asking again soon.
    Away,
    /// The authority refused. Authorities count such tries and shut out who makes too many.
    Refused,
    /// Our own disk.
    Store,
    /// The record for `dns-01` could not be put into its zone, or name servers did not have it in time.
    Dns,
    /// The authority was told to sign, and the certificate is not here yet: the same order is asked for
    /// again, and none is placed beside it.
    Late,
    /// Nothing was tried, for the authority has refused all orders of the account for a time.
    Held,
}

impl Blame {
    /// Every one, for metrics.
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

    /// The wait after the first failure, and the longest.
    fn bounds(self) -> (Duration, Duration) {
        match self {
            Blame::Away => (Duration::from_secs(1), Duration::from_secs(15 * 60)),
            // A disk does not empty itself from one second to the next.
            Blame::Store => (Duration::from_secs(15), Duration::from_secs(3600)),
            Blame::Refused => (Duration::from_secs(60), Duration::from_secs(12 * 3600)),
            // An order was placed, which authorities count as well, if not as strictly.
            Blame::Dns => (Duration::from_secs(15), Duration::from_secs(3600)),
            Blame::Late => (Duration::from_secs(5), Duration::from_secs(15 * 60)),
            // Who holds it says for how long.
            Blame::Held => (Duration::ZERO, Duration::ZERO),
        }
    }
}

/// How long to wait after the failure number `count` (from 1) in a row: twice as long each time, a quarter
/// more or less as `draw` (0 to 1) says, so that those who failed together do not come back together. Never
/// less than the authority asked for.
pub fn pause(blame: Blame, count: u32, asked_for: Option<Duration>, draw: f64) -> Duration {
    let (first, longest) = blame.bounds();
    let doubled = first.saturating_mul(1 << count.saturating_sub(1).min(20)).min(longest);
    let asked_for = asked_for.unwrap_or_default().min(Duration::from_secs(24 * 3600));
    doubled.mul_f64(0.75 + draw / 2.0).max(asked_for)
}

/// The times of a certificate that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// From when it is good.
    pub begins: SystemTime,
    /// From when it is good no more.
    pub ends: SystemTime,
    /// When it was got.
    pub came: SystemTime,
}

impl Life {
    /// Of a certificate whose file was `written` then; `None` when it does not say until when it is good.
    ///
    /// A file of the future was written by a clock that was ahead, or restored with such a time: when it came
    /// is not known, and waiting for that moment could be waiting beyond its end.
    pub fn of(certificate: &Facts, written: SystemTime, now: SystemTime) -> Option<Life> {
        let moment =
            |seconds: Option<i64>| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds?).ok()?));
        let (begins, ends) = (moment(certificate.not_before)?, moment(certificate.not_after)?);
        let came = if written <= now { written } else { begins };
        Some(Life { begins, ends, came })
    }
}

/// When the authority wants it to be renewed (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From then on.
    pub start: SystemTime,
    /// Up to then.
    pub end: SystemTime,
}

/// The least time that a new certificate is left alone, whatever the authority says: else its mistake would
/// make us order without end.
const LEAST_USE: Duration = Duration::from_secs(60);

/// When to renew. With a window that is a moment of it, chosen by `draw` (0 to 1); without one it is when a
/// third of the certificate's life is left. Never so late that fewer than a tenth is.
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

/// How long the authority's window is believed without asking again: as long as it says, within bounds (RFC
/// 9773 section 4.3).
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
