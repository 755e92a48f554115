//! The adaptive concurrency limit: how many requests a service can handle at once without getting slower,
//! found from its response times.
//!
//! While few requests are in flight, answers take as long as the work does. Beyond what the service can do at
//! once, each further request only makes all of them wait. So the limit follows the ratio of the unloaded
//! response time to the current one (the gradient, as in Netflix's concurrency-limits and Envoy's adaptive
//! concurrency). The unloaded time is measured: for a moment half as many requests may be in flight, then
//! half of that, as long as this makes answers faster. A mere average over time would take a long overload
//! for the normal state.

use std::time::Duration;

use crate::settings::AdaptiveLimit;

/// Answers per decision. It uses their median, which a few slow ones do not move.
const SAMPLES: usize = 16;
/// Least time between decisions.
const WINDOW: Duration = Duration::from_millis(100);
/// Time after which the unloaded response time is measured again, if answers are slow.
const MEASURED_EVERY: Duration = Duration::from_secs(60);
/// Time after which it is measured first.
const FIRST_MEASURED: Duration = Duration::from_secs(5);
/// Longest time for a measurement: the service may not answer at all.
const MEASURED_MOST: Duration = Duration::from_secs(10);
/// Longest phase of a measurement in which no request gets in, in addition to the time of four answers: the
/// requests in flight may be streams that go on for hours, or belong to clients that read slowly.
const EMPTYING_MOST: Duration = Duration::from_secs(1);
/// Time without any answer, in addition to the time of four answers, after which one more request gets in. If
/// all requests in flight are streams, there would never be an answer to adjust the limit by.
const SILENCE: Duration = Duration::from_secs(1);
/// Halving the requests in flight has helped if answers then take at most this share of their time before.
/// Without waiting they would take the same time; if all of it were waiting, half.
const HELPED: f64 = 0.75;
/// The share of the way to its target that one decision moves the limit, so that one odd window changes
/// little.
const STEP: f64 = 0.2;
/// The lowest target of one decision, as a share of the current limit.
const LEAST_GRADIENT: f64 = 0.5;

/// The state of an adaptive limit.
#[derive(Debug)]
pub(crate) struct Gradient {
    settings: AdaptiveLimit,
    most: f64,
    limit: f64,
    /// The unloaded response time, in seconds.
    unloaded: Option<f64>,
    window: Window,
    phase: Phase,
    /// When to measure next, if answers are slow then or the time was never measured.
    measure_at: Option<Duration>,
    was_measured: bool,
    /// When the current measurement is abandoned.
    give_up_at: Duration,
    /// Time of the last answer, or of the last request let in for lack of answers.
    last_word: Duration,
}

/// The current phase.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The limit follows the answers.
    Adapting,
    /// At most `level` may be in flight, and more still are; lasts until `until`. Answers took `before`
    /// seconds.
    Emptying { level: f64, before: f64, until: Duration },
    /// At most `level` may be in flight, until enough requests that began after `since` were answered.
    Measuring { level: f64, before: f64, since: Duration },
}

/// The answers since the last decision.
#[derive(Debug, Default)]
struct Window {
    began: Duration,
    /// Times in seconds of the last [`SAMPLES`].
    took: Vec<f64>,
    next: usize,
    most_under_way: u32,
}

impl Window {
    fn begin(&mut self, now: Duration) {
        self.took.clear();
        (self.began, self.next, self.most_under_way) = (now, 0, 0);
    }

    fn add(&mut self, took: f64, under_way: u32) {
        match self.took.get_mut(self.next) {
            Some(oldest) => *oldest = took,
            None => self.took.push(took),
        }
        self.next = (self.next + 1) % SAMPLES;
        self.most_under_way = self.most_under_way.max(under_way);
    }

    fn is_full(&self) -> bool {
        self.took.len() == SAMPLES
    }

    fn median(&self) -> f64 {
        let mut sorted = self.took.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

impl Gradient {
    /// Begins with limit `most`, at least 1, and no measurements.
    pub fn new(settings: &AdaptiveLimit, most: u32) -> Gradient {
        Gradient {
            settings: settings.clone(),
            most: f64::from(most.max(1)),
            limit: f64::from(most.max(1)),
            unloaded: None,
            window: Window::default(),
            phase: Phase::Adapting,
            measure_at: None,
            was_measured: false,
            give_up_at: Duration::ZERO,
            last_word: Duration::ZERO,
        }
    }

    /// Records that an answer began at `now` after `took`, with `under_way` requests in flight. `took` is
    /// `None` for an answer that says nothing about how long the work takes. Returns the limit from now on.
    pub fn answered(&mut self, now: Duration, took: Option<Duration>, under_way: u32) -> u32 {
        self.last_word = now;
        if self.is_given_up(now) {
            self.adapt(now);
        }
        if let Some(took) = took {
            self.learn(now, took, under_way);
        }
        self.in_force()
    }

    /// Records a refusal at `now` because the limit is reached. Returns the limit from now on: the requests
    /// that fill it may never be answered, or were answered long ago.
    pub fn refused(&mut self, now: Duration) -> u32 {
        let patience = SILENCE.saturating_add(times_four(self.unloaded.unwrap_or_default()));
        if self.is_given_up(now) {
            self.adapt(now);
        } else if self.phase == Phase::Adapting && now.saturating_sub(self.last_word) >= patience {
            self.last_word = now;
            self.limit = (self.limit + 1.0).min(self.most);
        }
        self.in_force()
    }

    fn is_given_up(&self, now: Duration) -> bool {
        match self.phase {
            Phase::Adapting => false,
            Phase::Emptying { until, .. } => now >= until.min(self.give_up_at),
            Phase::Measuring { .. } => now >= self.give_up_at,
        }
    }

    fn learn(&mut self, now: Duration, took: Duration, under_way: u32) {
        let seconds = took.as_secs_f64();
        match self.phase {
            Phase::Adapting => {
                self.window.add(seconds, under_way);
                if self.window.is_full() && now.saturating_sub(self.window.began) >= WINDOW {
                    self.decide(now);
                    self.window.begin(now);
                }
            }
            Phase::Emptying { level, before, .. } if f64::from(under_way) <= level => {
                self.phase = Phase::Measuring { level, before, since: now };
                self.window.begin(now);
            }
            Phase::Emptying { .. } => {}
            Phase::Measuring { level, before, since } if now.saturating_sub(took) >= since => {
                self.window.add(seconds, under_way);
                if self.window.is_full() {
                    self.measured(now, level, before);
                }
            }
            Phase::Measuring { .. } => {}
        }
    }

    /// The current limit.
    pub fn in_force(&self) -> u32 {
        let limit = match self.phase {
            Phase::Adapting => self.limit,
            Phase::Emptying { level, .. } | Phase::Measuring { level, .. } => level,
        };
        limit.clamp(self.least(), self.most) as u32
    }

    /// The unloaded response time; `None` until it is known.
    pub fn unloaded(&self) -> Option<Duration> {
        self.unloaded.map(Duration::from_secs_f64)
    }

    /// Sets this limit, for tests.
    #[cfg(test)]
    pub fn lowered_to(&mut self, limit: u32) -> u32 {
        self.limit = f64::from(limit);
        self.adapt(Duration::ZERO);
        self.in_force()
    }

    fn least(&self) -> f64 {
        f64::from(self.settings.min).clamp(1.0, self.most)
    }

    fn decide(&mut self, now: Duration) {
        let (took, under_way) = (self.window.median(), f64::from(self.window.most_under_way));
        // Keep the fastest time seen: a measurement made while something else slowed answers down applies
        // only until a faster one.
        let unloaded = self.unloaded.map_or(took, |known| known.min(took));
        self.unloaded = Some(unloaded);
        // Answers that take no time at all are as good as possible.
        let ratio = self.settings.tolerance * unloaded / took.max(f64::MIN_POSITIVE);
        let measure_at = *self.measure_at.get_or_insert(now + FIRST_MEASURED);
        if now >= measure_at && (ratio < 1.0 || !self.was_measured) && under_way > self.least() {
            self.give_up_at = now + MEASURED_MOST + times_four(took);
            return self.begin_to_measure(now, under_way / 2.0, took);
        }
        if ratio < 1.0 {
            // A limit far above the load would take long to take effect.
            self.limit = self.limit.min(2.0 * under_way);
        } else if under_way * 2.0 < self.limit {
            // With such a limit it is unknown whether more requests would be fine.
            return;
        }
        let aim = self.limit * ratio.clamp(LEAST_GRADIENT, 1.0) + self.limit.sqrt();
        let next = self.limit + STEP * (aim - self.limit);
        self.limit = next.clamp(self.least(), self.most);
    }

    fn begin_to_measure(&mut self, now: Duration, level: f64, before: f64) {
        let until = now + EMPTYING_MOST + times_four(before);
        self.phase = Phase::Emptying { level: level.max(self.least()), before, until };
    }

    /// Enough answers were measured with `level` in flight.
    fn measured(&mut self, now: Duration, level: f64, before: f64) {
        let took = self.window.median();
        if took < before * HELPED && level > self.least() {
            return self.begin_to_measure(now, level / 2.0, took);
        }
        (self.unloaded, self.was_measured) = (Some(took), true);
        self.adapt(now);
    }

    fn adapt(&mut self, now: Duration) {
        (self.phase, self.measure_at) = (Phase::Adapting, Some(now + MEASURED_EVERY));
        self.window.begin(now);
    }
}

/// Four times as many seconds; zero if that is not a valid time.
fn times_four(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(4.0 * seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::*;

    /// A service with this many workers, facing clients that send the next request as soon as they were
    /// answered or, if refused, a little later. Times are in microseconds.
    struct Service {
        gradient: Gradient,
        workers: usize,
        work: u64,
        crowd: usize,
        now: u64,
        /// Ends of work in progress, negated, since the heap returns the greatest.
        busy: BinaryHeap<(i64, u64)>,
        waiting: std::collections::VecDeque<u64>,
        /// Clients that pause before their next request.
        pausing: BinaryHeap<i64>,
        refused: u64,
        took: Vec<u64>,
    }

    impl Service {
        fn of(workers: usize, work: u64, crowd: usize) -> Service {
            let settings = AdaptiveLimit { min: 3, tolerance: 1.5 };
            Service {
                gradient: Gradient::new(&settings, 1_000),
                workers,
                work,
                crowd: 0,
                now: 1,
                busy: BinaryHeap::new(),
                waiting: Default::default(),
                pausing: BinaryHeap::new(),
                refused: 0,
                took: Vec::new(),
            }
            .with_crowd(crowd)
        }

        fn with_crowd(mut self, crowd: usize) -> Service {
            for number in self.crowd..crowd {
                self.pausing.push(-((self.now + number as u64) as i64));
            }
            self.crowd = self.crowd.max(crowd);
            self
        }

        fn under_way(&self) -> usize {
            self.busy.len() + self.waiting.len()
        }

        fn asks(&mut self) {
            if self.under_way() >= self.gradient.in_force() as usize {
                self.refused += 1;
                self.pausing.push(-((self.now + 10_000) as i64));
            } else if self.busy.len() < self.workers {
                self.busy.push((-((self.now + self.work) as i64), self.now));
            } else {
                self.waiting.push_back(self.now);
            }
        }

        /// Simulates this many seconds.
        fn runs(&mut self, seconds: u64) {
            let until = self.now + seconds * 1_000_000;
            (self.refused, self.took) = (0, Vec::new());
            loop {
                let ends = self.busy.peek().map_or(u64::MAX, |(at, _)| -at as u64);
                let asks = self.pausing.peek().map_or(u64::MAX, |at| -at as u64);
                self.now = ends.min(asks);
                if self.now >= until {
                    self.now = until;
                    return;
                }
                if asks < ends {
                    self.pausing.pop();
                    self.asks();
                    continue;
                }
                let Some((_, since)) = self.busy.pop() else { return };
                while self.busy.len() < self.workers
                    && let Some(next) = self.waiting.pop_front()
                {
                    self.busy.push((-((self.now + self.work) as i64), next));
                }
                let took = self.now - since;
                self.took.push(took);
                let micros = Duration::from_micros;
                self.gradient.answered(micros(self.now), Some(micros(took)), self.under_way() as u32 + 1);
                // Slightly later, so that clients answered together do not stay together for ever.
                self.pausing.push(-((self.now + 1 + took % 97) as i64));
            }
        }

        fn median(&self) -> u64 {
            let mut sorted = self.took.clone();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        }
    }

    #[test]
    fn a_crowd_before_few_workers_is_held_to_what_they_do_at_once() {
        let mut service = Service::of(8, 20_000, 400);
        service.runs(60);
        service.runs(30);
        assert!((8..=24).contains(&service.gradient.in_force()), "{:?}", service.gradient);
        assert!(service.median() < 3 * service.work, "{} us", service.median());
        assert!(service.took.len() as u64 * service.work > 30_000_000 * 8 * 95 / 100, "the workers are busy");
        assert!(service.refused > 0);
    }

    #[test]
    fn ten_minutes_of_overload_do_not_pass_for_the_way_things_are() {
        let mut service = Service::of(8, 20_000, 400);
        service.runs(600);
        service.runs(30);
        assert!((8..=24).contains(&service.gradient.in_force()), "{:?}", service.gradient);
        let unloaded = service.gradient.unloaded().unwrap().as_micros() as u64;
        assert!((service.work..=service.work * 3 / 2).contains(&unloaded), "{unloaded} us");
    }

    #[test]
    fn who_does_not_get_slower_is_not_held() {
        let mut service = Service::of(100_000, 20_000, 900);
        service.runs(30);
        let answered = service.took.len() as u64;
        assert!(service.refused < answered / 100, "{} of {answered}: while it is measured", service.refused);
        service.runs(600);
        assert_eq!(service.refused, 0, "{:?}", service.gradient);
    }

    #[test]
    fn workers_that_are_added_are_used_and_those_that_get_slower_get_less() {
        let mut service = Service::of(8, 20_000, 400);
        service.runs(60);
        service.workers = 64;
        service.runs(120);
        service.runs(30);
        let at_once = service.gradient.in_force();
        assert!((64..=180).contains(&at_once), "{:?}", service.gradient);
        assert!(
            service.took.len() as u64 * service.work > 30_000_000 * 64 * 95 / 100,
            "the workers are busy"
        );
        service.workers = 4;
        service.runs(120);
        service.runs(30);
        assert!((4..=16).contains(&service.gradient.in_force()), "{:?}", service.gradient);
    }

    #[test]
    fn a_service_that_stops_answering_while_it_is_measured_gets_its_limit_back() {
        let mut service = Service::of(8, 20_000, 400);
        service.runs(5);
        while service.gradient.phase == Phase::Adapting {
            service.runs(1);
        }
        let (level, before, since) = (4.0, 0.02, Duration::from_micros(service.now));
        service.gradient.phase = Phase::Measuring { level, before, since };
        let (now, low) = (Duration::from_micros(service.now), service.gradient.in_force());
        assert_eq!(
            service.gradient.answered(now + MEASURED_MOST / 2, None, 9),
            low,
            "a failure says nothing"
        );
        let limit = service.gradient.answered(now + MEASURED_MOST * 2, None, 9);
        assert!(limit > low && service.gradient.phase == Phase::Adapting, "{:?}", service.gradient);
    }

    #[test]
    fn the_limit_stays_within_its_bounds_whatever_comes() {
        let settings = AdaptiveLimit { min: 5, tolerance: 1.0 };
        let mut gradient = Gradient::new(&settings, 50);
        let mut seed = 7u64;
        for step in 0..200_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let took = match seed >> 61 {
                0 => Some(Duration::ZERO),
                1 => Some(Duration::MAX / 4),
                2 => None,
                _ => Some(Duration::from_micros(seed >> 40)),
            };
            let limit = gradient.answered(Duration::from_millis(step * 7), took, (seed >> 33) as u32 % 70);
            assert!((5..=50).contains(&limit), "{gradient:?}");
        }
        // A maximum below the minimum wins.
        assert_eq!(Gradient::new(&settings, 2).in_force(), 2);
    }

    /// A measurement made while clients sent slowly, say, would keep the limit far too high.
    #[test]
    fn a_time_that_was_measured_too_high_is_corrected_by_the_answers_that_come() {
        let mut gradient = Gradient::new(&AdaptiveLimit { min: 3, tolerance: 1.5 }, 200);
        (gradient.unloaded, gradient.was_measured) = (Some(1.0), true);
        let mut now = Duration::from_secs(1);
        for _ in 0..10 * SAMPLES {
            now += Duration::from_millis(5);
            gradient.answered(now, Some(Duration::from_millis(20)), 4);
        }
        assert_eq!(gradient.unloaded(), Some(Duration::from_millis(20)));
        // So answers that take twenty times as long lower it.
        for _ in 0..10 * SAMPLES {
            now += Duration::from_millis(5);
            gradient.answered(now, Some(Duration::from_millis(400)), 80);
        }
        assert!(gradient.in_force() < 100, "{gradient:?}");
    }
}
