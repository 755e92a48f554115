//! When to probe. Pure functions that are passed the time, so that the rule can be tested without waiting.
//!
//! The rule, in the words of the guide:
//!
//! - While nothing changes a probe starts every `interval`.
//! - While the backend is down and its probes stay bad a probe starts every `down_interval`.
//! - A probe has `timeout` to answer, but never more than `interval`.
//! - While the state is changing (fewer results of one kind in a row than `rise` or `fall` asks for) the next
//!   probe starts `fast_interval` after the last one, but never later than a tenth of `interval`.
//! - A probe that has not answered after half of its time makes the backend suspect: the further probes that
//!   `fall` asks for start at once, `fast_interval` apart, side by side with the first, and have the other
//!   half of the time to answer. When any of them is answered well the suspicion was unfounded, and those
//!   that then run out of their half do not count.
//!
//! So a backend that stops answering is down at most `interval + timeout + (fall - 2) * fast_interval` after
//! it stopped, with the bounds above: for `interval = "100ms"` and all else default that is 210 ms. Waiting
//! for each probe to time out before sending the next would take `interval + fall * timeout`.

use std::time::Duration;

/// How often a target is probed and how long it may take to answer, with the limits of the rule applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pace {
    interval: Duration,
    fast_interval: Duration,
    down_interval: Duration,
    timeout: Duration,
    rise: u32,
    fall: u32,
}

impl Pace {
    /// The pace for a pool's health settings.
    pub fn of(health: &weir_config::Health) -> Pace {
        let interval = health.interval.max(Duration::from_millis(1));
        Pace {
            interval,
            fast_interval: health.fast_interval.min(interval / 10).max(Duration::from_millis(1)),
            down_interval: health.down_interval.unwrap_or(interval).max(Duration::from_millis(1)),
            timeout: health.timeout.min(interval),
            rise: health.rise.max(1),
            fall: health.fall.max(1),
        }
    }

    /// Time between probes while nothing changes.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Start a probe; pass its result to [`Schedule::finished`] with this number.
    Start {
        /// Number of the probe.
        number: u64,
        /// How long it may take.
        limit: Duration,
    },
    /// Do nothing before this time, unless a probe finishes.
    Wait(Duration),
}

/// The probes of one target: those in progress and the next ones.
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
    /// Sent because of a suspicion, with less time than the config gives a probe.
    is_short: bool,
    /// Another probe has been answered meanwhile, so if this one is late it does not count.
    is_excused: bool,
}

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The answer was good.
    Good,
    /// There was a bad answer, or a refusal.
    Bad,
    /// There was no answer in time.
    Late,
    /// No probe was made, for a reason that is not the backend's fault.
    Unsent,
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
        // Having no result yet counts as changing, so the first probes follow quickly.
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

    /// What to do at `now`. Call it again after each `Start`, until it returns `Wait`.
    pub fn step(&mut self, now: Duration) -> Due {
        let suspect = self.suspicions().any(|at| at <= now);
        let due = self.due(suspect);
        if due <= now {
            let limit = if suspect { self.pace.timeout / 2 } else { self.pace.timeout };
            let number = self.next_number;
            self.next_number += 1;
            self.last_start = Some(now);
            self.hastened = false;
            self.under_way.push(UnderWay {
                number,
                suspect_at: now + self.pace.timeout / 2,
                is_short: suspect,
                is_excused: false,
            });
            return Due::Start { number, limit };
        }
        let suspicion = self.suspicions().filter(|at| *at > now).min();
        Due::Wait(suspicion.map_or(due, |at| at.min(due)))
    }

    /// When probes in progress make the backend suspect. Probes that were themselves sent because of a
    /// suspicion are ignored: half of their shorter time is too little.
    fn suspicions(&self) -> impl Iterator<Item = Duration> {
        self.under_way.iter().filter(|probe| !probe.is_short).map(|probe| probe.suspect_at)
    }

    /// Takes the result of probe `number`. `false` when it must not count: probes sent because of a suspicion
    /// have only part of the timeout, so once the suspicion has proved unfounded their lateness is not the
    /// backend's fault; and a probe that was not sent has no result.
    #[must_use]
    pub fn finished(&mut self, number: u64, ending: Ending) -> bool {
        let ended = self
            .under_way
            .iter()
            .position(|probe| probe.number == number)
            .map(|at| self.under_way.remove(at));
        if ending == Ending::Unsent {
            return false;
        }
        let good = ending == Ending::Good;
        if good {
            self.under_way
                .iter_mut()
                .filter(|probe| probe.is_short)
                .for_each(|probe| probe.is_excused = true);
        } else if ending == Ending::Late && ended.is_some_and(|probe| probe.is_excused) {
            return false;
        }
        let count = if good == self.streak.good { self.streak.count.saturating_add(1) } else { 1 };
        self.streak = Streak { good, count };
        true
    }

    /// Starts the next probe at once, because real traffic gave a reason.
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
        // After `fall` failures in a row it is down, or not up again yet.
        let slow = if self.streak.good { self.pace.interval } else { self.pace.down_interval };
        last + if fast { self.pace.fast_interval } else { slow }
    }

    /// How many more results are needed to settle the state, besides those in progress.
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
            check: weir_config::Check::Tcp(weir_config::TcpProbe::default()),
            port: None,
            at: None,
            interval: ms(interval),
            fast_interval: ms(fast_interval),
            down_interval: None,
            timeout: ms(timeout),
            rise: 2,
            fall: 3,
            passive: None,
            panic_below: None,
            on_down: weir_config::OnDown::Keep,
            agent: None,
            last_resort: weir_balance::LastResort::Late,
        })
    }

    /// Runs a schedule against a backend that answers within a millisecond until `stops`, then never. Gives
    /// the starts of probes, and when `fall` bad results in a row had come in.
    fn play(pace: Pace, stops: Duration, until: Duration) -> (Vec<Duration>, Option<Duration>) {
        let mut schedule = Schedule::new(pace, Duration::ZERO);
        let (mut starts, mut ends) = (Vec::new(), Vec::<(Duration, u64, bool)>::new());
        let (mut now, mut bad) = (Duration::ZERO, 0);
        while now <= until {
            ends.sort();
            while let Some(&(at, number, good)) = ends.first().filter(|end| end.0 <= now) {
                ends.remove(0);
                if !schedule.finished(number, if good { Ending::Good } else { Ending::Late }) {
                    continue;
                }
                bad = if good { 0 } else { bad + 1 };
                if bad == pace.fall {
                    return (starts, Some(at));
                }
            }
            match schedule.step(now) {
                Due::Start { number, limit } => {
                    starts.push(now);
                    let good = now < stops;
                    ends.push((now + if good { ms(1) } else { limit }, number, good));
                }
                Due::Wait(at) => now = ends.iter().map(|end| end.0).min().map_or(at, |end| at.min(end)),
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
    fn a_backend_that_always_answers_late_but_in_time_stays_up() {
        // It answers after 650 ms of 1 s; probes sent on suspicion at 500 ms would have to wait until 1150
        // ms.
        let mut schedule = Schedule::new(pace(1000, 100, 1000), ms(0));
        let mut ends = Vec::<(Duration, u64, Ending)>::new();
        let (mut now, mut bad) = (ms(0), 0);
        while now <= ms(30_000) {
            ends.sort_by_key(|end| end.0);
            // The timer may be looked at before the results that came at the same moment.
            if let Due::Start { number, limit } = schedule.step(now) {
                let ending = if limit >= ms(650) { Ending::Good } else { Ending::Late };
                ends.push((now + limit.min(ms(650)), number, ending));
                continue;
            }
            while let Some(&(_, number, ending)) = ends.first().filter(|end| end.0 <= now) {
                ends.remove(0);
                bad += u32::from(schedule.finished(number, ending) && ending != Ending::Good);
            }
            match schedule.step(now) {
                Due::Start { number, limit } if limit >= ms(650) => {
                    ends.push((now + ms(650), number, Ending::Good))
                }
                Due::Start { number, limit } => ends.push((now + limit, number, Ending::Late)),
                Due::Wait(at) => now = ends.iter().map(|end| end.0).min().map_or(at, |end| at.min(end)),
            }
        }
        assert_eq!(bad, 0);
    }

    #[test]
    fn one_slow_answer_does_not_take_a_backend_down() {
        let mut schedule = Schedule::new(pace(100, 10, 100), ms(0));
        let mut settle = |at| {
            let Due::Start { number, .. } = schedule.step(at) else { panic!("a probe is due at {at:?}") };
            assert!(schedule.finished(number, Ending::Good));
        };
        settle(ms(0));
        settle(ms(10));
        let Due::Start { number: slow, .. } = schedule.step(ms(110)) else { panic!("due") };
        assert_eq!(schedule.step(ms(110)), Due::Wait(ms(160)));
        let Due::Start { number: second, limit } = schedule.step(ms(160)) else {
            panic!("suspect: a second one")
        };
        assert_eq!(limit, ms(50));
        assert!(schedule.finished(second, Ending::Good));
        assert_eq!(schedule.step(ms(161)), Due::Wait(ms(170)));
        assert!(schedule.finished(slow, Ending::Late), "the slow one had its whole time");
        // One bad result: the state is changing again, but nothing is down.
        assert!(matches!(schedule.step(ms(210)), Due::Start { .. }));
    }

    #[test]
    fn a_backend_that_is_down_is_probed_once_per_interval() {
        let mut schedule = Schedule::new(pace(1000, 50, 1000), ms(0));
        let mut now = ms(0);
        let mut starts = Vec::new();
        while starts.len() < 8 {
            match schedule.step(now) {
                Due::Start { number, .. } => {
                    starts.push(now);
                    assert!(schedule.finished(number, Ending::Bad));
                }
                Due::Wait(at) => now = at,
            }
        }
        assert_eq!(starts[..4], [ms(0), ms(50), ms(100), ms(1100)]);
    }

    #[test]
    fn while_it_stays_down_probes_are_down_interval_apart_and_the_first_good_one_ends_that() {
        let down_interval = ms(30_000);
        let mut schedule = Schedule::new(Pace { down_interval, ..pace(1000, 50, 1000) }, ms(0));
        let (mut now, mut starts) = (ms(0), Vec::new());
        while starts.len() < 9 {
            match schedule.step(now) {
                Due::Start { number, .. } => {
                    starts.push(now.as_millis());
                    let ending = if starts.len() < 6 { Ending::Bad } else { Ending::Good };
                    assert!(schedule.finished(number, ending));
                }
                Due::Wait(at) => now = at,
            }
        }
        assert_eq!(starts, [0, 50, 100, 30_100, 60_100, 90_100, 90_150, 91_150, 92_150]);
    }

    #[test]
    fn a_hastened_probe_starts_at_once() {
        let mut schedule = Schedule::new(pace(1000, 50, 1000), ms(0));
        for at in [ms(0), ms(50)] {
            let Due::Start { number, .. } = schedule.step(at) else { panic!("due") };
            assert!(schedule.finished(number, Ending::Good));
        }
        assert_eq!(schedule.step(ms(51)), Due::Wait(ms(1050)));
        schedule.hasten();
        assert!(matches!(schedule.step(ms(200)), Due::Start { .. }));
        // The cadence goes on from there.
        assert!(schedule.finished(2, Ending::Good));
        assert_eq!(schedule.step(ms(201)), Due::Wait(ms(1200)));
    }

    #[test]
    fn a_probe_that_was_not_sent_is_no_result_and_the_next_comes_at_its_turn() {
        let mut schedule = Schedule::new(pace(1000, 50, 1000), ms(0));
        for at in [ms(0), ms(50)] {
            let Due::Start { number, .. } = schedule.step(at) else { panic!("due") };
            assert!(schedule.finished(number, Ending::Good));
        }
        for at in [ms(1050), ms(2050), ms(3050), ms(4050)] {
            let Due::Start { number, .. } = schedule.step(at) else { panic!("due at {at:?}") };
            assert!(!schedule.finished(number, Ending::Unsent));
            assert_eq!(schedule.step(at), Due::Wait(at + ms(1000)), "nobody is suspected");
        }
    }
}
