//! When to probe: pure, told the time, so that the rule can be tested without waiting.
//!
//! The rule, in the words of the guide:
//!
//! - While nothing changes a probe starts every `interval`.
//! - A probe has `timeout` to answer, but never more than `interval`.
//! - While the state is changing (fewer results of one kind in a row than `rise` or `fall` asks for) the next probe starts
//!   `fast_interval` after the last one, but never later than a tenth of `interval`.
//! - A probe that has not answered after half of its time makes the backend suspect: the further probes that `fall` asks for
//!   start at once, `fast_interval` apart, side by side with the first, and have the other half of the time to answer.
//!
//! So a backend that stops answering is down at most `interval + timeout + (fall - 2) * fast_interval` after it stopped, with
//! the bounds above: for `interval = "100ms"` and all else default that is 210 ms. Waiting for each probe to time out
//! before sending the next would take `interval + fall * timeout`.

use std::time::Duration;

/// How often a target is probed and how long it may take to answer, with the bounds of the rule applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    interval: Duration,
    fast_interval: Duration,
    timeout: Duration,
    rise: u32,
    fall: u32,
}

impl Pace {
    /// The pace that a pool's health settings ask for.
    pub fn of(health: &weir_config::Health) -> Pace {
        let interval = health.interval.max(Duration::from_millis(1));
        Pace {
            interval,
            fast_interval: health.fast_interval.min(interval / 10).max(Duration::from_millis(1)),
            timeout: health.timeout.min(interval),
            rise: health.rise.max(1),
            fall: health.fall.max(1),
        }
    }

    /// Between probes while nothing changes.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start a probe; its result goes to [`Schedule::finished`] under this number.
    Start {
        /// Which probe it is.
        number: u64,
        /// How long it may take.
        limit: Duration,
    },
    /// Nothing before this time, unless a probe finishes.
    Wait(Duration),
}

/// The probes of one target: those under way and those to come.
#[derive(Debug)]
pub struct Schedule {
    pace: Pace,
    next_number: u64,
    last_start: Option<Duration>,
    first_start: Duration,
    under_way: Vec<UnderWay>,
    streak: Streak,
    hastened: bool,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    suspect_at: Duration,
}

/// Results of one kind in a row.
#[derive(Debug, Clone, Copy)]
struct Streak {
    good: bool,
    count: u32,
}

impl Schedule {
    /// A schedule whose first probe starts at `first`.
    pub fn new(pace: Pace, first: Duration) -> Schedule {
        // No result yet counts as changing, so the first ones come quickly.
        let streak = Streak { good: true, count: 0 };
        Schedule {
            pace,
            next_number: 0,
            last_start: None,
            first_start: first,
            under_way: Vec::new(),
            streak,
            hastened: false,
        }
    }

    /// What to do at time `now`. Call again after each `Start`, until it says `Wait`.
    pub fn step(&mut self, now: Duration) -> Step {
        let suspect = self.under_way.iter().any(|probe| probe.suspect_at <= now);
        let due = self.due(suspect);
        if due <= now {
            let limit = if suspect { self.pace.timeout / 2 } else { self.pace.timeout };
            let number = self.next_number;
            self.next_number += 1;
            self.last_start = Some(now);
            self.hastened = false;
            self.under_way.push(UnderWay { number, suspect_at: now + self.pace.timeout / 2 });
            return Step::Start { number, limit };
        }
        let suspicion = self.under_way.iter().map(|probe| probe.suspect_at).filter(|at| *at > now).min();
        Step::Wait(suspicion.map_or(due, |at| at.min(due)))
    }

    /// Takes the result of probe `number`.
    pub fn finished(&mut self, number: u64, good: bool) {
        self.under_way.retain(|probe| probe.number != number);
        let count = if good == self.streak.good { self.streak.count.saturating_add(1) } else { 1 };
        self.streak = Streak { good, count };
    }

    /// Starts the next probe at once: real traffic gave a reason to ask.
    pub fn hasten(&mut self) {
        self.hastened = self.under_way.is_empty();
    }

    /// When the next probe starts.
    fn due(&self, suspect: bool) -> Duration {
        if self.hastened {
            return Duration::ZERO;
        }
        let Some(last) = self.last_start else { return self.first_start };
        let fast = self.lacking(suspect) > 0;
        last + if fast { self.pace.fast_interval } else { self.pace.interval }
    }

    /// How many more results are needed to settle the state, beyond those under way.
    fn lacking(&self, suspect: bool) -> u32 {
        let bad_in_a_row = if self.streak.good { 0 } else { self.streak.count };
        let asked = if suspect {
            self.pace.fall.saturating_sub(bad_in_a_row)
        } else {
            let threshold = if self.streak.good { self.pace.rise } else { self.pace.fall };
            threshold.saturating_sub(self.streak.count)
        };
        asked.saturating_sub(self.under_way.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pace(interval: u64, fast_interval: u64, timeout: u64) -> Pace {
        Pace::of(&weir_config::Health {
            check: weir_config::Check::Tcp,
            interval: ms(interval),
            fast_interval: ms(fast_interval),
            timeout: ms(timeout),
            rise: 2,
            fall: 3,
            passive: None,
        })
    }

    /// Runs a schedule against a backend that answers within a millisecond until `stops`, then never. Gives the starts of
    /// probes, and when `fall` bad results in a row had come in.
    fn play(pace: Pace, stops: Duration, until: Duration) -> (Vec<Duration>, Option<Duration>) {
        let mut schedule = Schedule::new(pace, Duration::ZERO);
        let (mut starts, mut ends) = (Vec::new(), Vec::<(Duration, u64, bool)>::new());
        let (mut now, mut bad) = (Duration::ZERO, 0);
        while now <= until {
            ends.sort();
            while let Some(&(at, number, good)) = ends.first().filter(|end| end.0 <= now) {
                ends.remove(0);
                schedule.finished(number, good);
                bad = if good { 0 } else { bad + 1 };
                if bad == pace.fall {
                    return (starts, Some(at));
                }
            }
            match schedule.step(now) {
                Step::Start { number, limit } => {
                    starts.push(now);
                    let good = now < stops;
                    ends.push((now + if good { ms(1) } else { limit }, number, good));
                }
                Step::Wait(at) => now = ends.iter().map(|end| end.0).min().map_or(at, |end| at.min(end)),
            }
        }
        (starts, None)
    }

    #[test]
    fn a_frozen_backend_is_down_within_210_ms_at_an_interval_of_100_ms() {
        for stop in 1000..1100 {
            let stops = ms(stop);
            let (_, down) = play(pace(100, 200, 1000), stops, ms(5000));
            let took = down.expect("the backend goes down") - stops;
            assert!(took <= ms(210), "stopped at {stops:?}, down after {took:?}");
        }
    }

    #[test]
    fn the_documented_bound_holds_for_the_defaults() {
        for stop in (10_000..12_000).step_by(37) {
            let (_, down) = play(pace(2000, 200, 1000), ms(stop), ms(30_000));
            let took = down.expect("the backend goes down") - ms(stop);
            assert!(took <= ms(2000 + 1000 + 200), "stopped at {stop} ms, down after {took:?}");
        }
    }

    #[test]
    fn a_healthy_backend_is_probed_once_per_interval() {
        let (starts, down) = play(pace(1000, 200, 1000), ms(u64::from(u32::MAX)), ms(20_000));
        assert_eq!(down, None);
        // The two that `rise` asks for come quickly, then one a second.
        assert_eq!(starts[..2], [ms(0), ms(100)]);
        assert!(starts[1..].windows(2).all(|pair| pair[1] - pair[0] == ms(1000)), "{starts:?}");
    }

    #[test]
    fn one_slow_answer_does_not_take_a_backend_down() {
        let mut schedule = Schedule::new(pace(100, 10, 100), ms(0));
        let mut settle = |at| {
            let Step::Start { number, .. } = schedule.step(at) else { panic!("a probe is due at {at:?}") };
            schedule.finished(number, true);
        };
        settle(ms(0));
        settle(ms(10));
        let Step::Start { number: slow, .. } = schedule.step(ms(110)) else { panic!("due") };
        assert_eq!(schedule.step(ms(110)), Step::Wait(ms(160)));
        let Step::Start { number: second, limit } = schedule.step(ms(160)) else {
            panic!("suspect: a second one")
        };
        assert_eq!(limit, ms(50));
        schedule.finished(second, true);
        assert_eq!(schedule.step(ms(161)), Step::Wait(ms(170)));
        schedule.finished(slow, false);
        // One bad result: the state is changing again, but nothing is down.
        assert!(matches!(schedule.step(ms(210)), Step::Start { .. }));
    }

    #[test]
    fn a_backend_that_is_down_is_probed_once_per_interval() {
        let mut schedule = Schedule::new(pace(1000, 50, 1000), ms(0));
        let mut now = ms(0);
        let mut starts = Vec::new();
        while starts.len() < 8 {
            match schedule.step(now) {
                Step::Start { number, .. } => {
                    starts.push(now);
                    schedule.finished(number, false);
                }
                Step::Wait(at) => now = at,
            }
        }
        assert_eq!(starts[..4], [ms(0), ms(50), ms(100), ms(1100)]);
    }

    #[test]
    fn a_hastened_probe_starts_at_once() {
        let mut schedule = Schedule::new(pace(1000, 50, 1000), ms(0));
        for at in [ms(0), ms(50)] {
            let Step::Start { number, .. } = schedule.step(at) else { panic!("due") };
            schedule.finished(number, true);
        }
        assert_eq!(schedule.step(ms(51)), Step::Wait(ms(1050)));
        schedule.hasten();
        assert!(matches!(schedule.step(ms(200)), Step::Start { .. }));
        // The cadence goes on from there.
        schedule.finished(2, true);
        assert_eq!(schedule.step(ms(201)), Step::Wait(ms(1200)));
    }
}
