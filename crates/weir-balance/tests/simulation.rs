//! A seeded discrete-event simulation: clients, backends with a fixed number of servers each, and a pool
//! between them, on simulated time. It shows that the algorithms are worth their names where it matters: with
//! a slow backend, a failing one, and one that comes back cold.

mod seed;

use seed::{Draws, seed};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use weir_balance::*;

/// What one simulated backend can do.
#[derive(Debug, Clone)]
struct Machine {
    servers: usize,
    mean_seconds: f64,
    /// Refuses every request from the first moment until the second (seconds).
    refuses: Option<(f64, f64)>,
}

#[derive(Debug, Clone)]
struct World {
    settings: Settings,
    machines: Vec<Machine>,
    arrivals_per_second: f64,
    seconds: f64,
    probe_every: Option<f64>,
    seed: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Event {
    Arrival,
    Done { machine: usize, sent_ns: u64 },
    Probe,
    Refresh,
}

/// One finished request: when it was sent, to whom, how long it took; `None` when it was refused.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Record {
    sent: f64,
    machine: usize,
    took: Option<f64>,
}

struct Simulation {
    world: World,
    picker: Picker,
    draws: Draws,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    ordinal: u64,
    waiting: Vec<VecDeque<u64>>,
    serving: Vec<usize>,
    health: Vec<HealthMachine>,
    records: Vec<Record>,
    ejections: Vec<Ejection>,
}

fn moment(nanoseconds: u64) -> Duration {
    Duration::from_nanos(nanoseconds)
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1.0e9) as u64
}

impl Simulation {
    fn run(world: World) -> Simulation {
        let members = (0..world.machines.len())
            .map(|at| Arc::new(Backend::new(format!("10.9.0.{at}:80"), BackendSettings::default())))
            .collect();
        let pool = Pool::new(world.settings.clone(), members, Duration::ZERO);
        let count = world.machines.len();
        let mut simulation = Simulation {
            picker: Picker::new(Arc::new(pool)),
            draws: Draws(world.seed),
            agenda: BinaryHeap::new(),
            ordinal: 0,
            waiting: vec![VecDeque::new(); count],
            serving: vec![0; count],
            health: vec![HealthMachine::new(world.settings.rise, world.settings.fall); count],
            records: vec![],
            ejections: vec![],
            world,
        };
        simulation.plan(0, Event::Arrival);
        if simulation.world.probe_every.is_some() {
            simulation.plan(0, Event::Probe);
        }
        while let Some(Reverse((at, _, event))) = simulation.agenda.pop() {
            simulation.step(at, event);
        }
        simulation
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.ordinal += 1;
        self.agenda.push(Reverse((at, self.ordinal, event)));
    }

    fn step(&mut self, now: u64, event: Event) {
        match event {
            Event::Arrival => {
                self.arrive(now);
                let gap = self.draws.exponential(1.0 / self.world.arrivals_per_second);
                if now < nanoseconds(self.world.seconds) {
                    self.plan(now + nanoseconds(gap), Event::Arrival);
                }
            }
            Event::Done { machine, sent_ns } => self.finish(now, machine, sent_ns),
            Event::Probe => self.probe(now),
            Event::Refresh => self.refresh(now),
        }
    }

    fn arrive(&mut self, now: u64) {
        let input = PickInput { now: moment(now), draw: self.draws.pair(), ..PickInput::default() };
        let machine = self.picker.pick(&input).expect("somebody is always up here").index;
        if self.refuses(machine, now) {
            self.picker.pool().release(machine);
            self.records.push(Record { sent: now as f64 / 1.0e9, machine, took: None });
            if let Some(ejection) = self.picker.pool().observe(machine, moment(now), Outcome::Failure) {
                self.ejections.push(ejection);
                self.refresh(now);
            }
        } else if self.serving[machine] < self.world.machines[machine].servers {
            self.serve(now, machine, now);
        } else {
            self.waiting[machine].push_back(now);
        }
    }

    fn serve(&mut self, now: u64, machine: usize, sent_ns: u64) {
        self.serving[machine] += 1;
        let seconds = self.draws.exponential(self.world.machines[machine].mean_seconds);
        self.plan(now + nanoseconds(seconds), Event::Done { machine, sent_ns });
    }

    fn finish(&mut self, now: u64, machine: usize, sent_ns: u64) {
        let latency = moment(now - sent_ns);
        let pool = self.picker.pool();
        assert!(pool.observe(machine, moment(now), Outcome::Success { latency }).is_none());
        pool.release(machine);
        let took = Some(latency.as_secs_f64());
        self.records.push(Record { sent: sent_ns as f64 / 1.0e9, machine, took });
        self.serving[machine] -= 1;
        if let Some(sent_ns) = self.waiting[machine].pop_front() {
            self.serve(now, machine, sent_ns);
        }
    }

    fn probe(&mut self, now: u64) {
        for machine in 0..self.health.len() {
            let ok = !self.refuses(machine, now);
            if let Some(transition) = self.health[machine].observe(ok) {
                self.picker.pool().set_health(machine, transition.to, moment(now));
                self.refresh(now);
            }
        }
        if now < nanoseconds(self.world.seconds) {
            let every = self.world.probe_every.expect("planned only with probes");
            self.plan(now + nanoseconds(every), Event::Probe);
        }
    }

    fn refresh(&mut self, now: u64) {
        self.picker.pool().refresh(moment(now));
        if let Some(next) = self.picker.pool().next_change(moment(now))
            && now < nanoseconds(self.world.seconds)
        {
            self.plan(next.as_nanos() as u64, Event::Refresh);
        }
    }

    fn refuses(&self, machine: usize, now: u64) -> bool {
        let (from, until) = self.world.machines[machine].refuses.unwrap_or((f64::MAX, f64::MAX));
        (from..until).contains(&(now as f64 / 1.0e9))
    }

    /// The given percentile of latency (seconds).
    fn percentile(&self, percent: usize) -> f64 {
        let mut took: Vec<f64> = self.records.iter().filter_map(|record| record.took).collect();
        took.sort_by(f64::total_cmp);
        took[took.len() * percent / 100]
    }

    /// Share of the requests sent in a span (seconds) that went to a machine.
    fn share(&self, machine: usize, from: f64, until: f64) -> f64 {
        let sent = || self.records.iter().filter(|record| (from..until).contains(&record.sent));
        sent().filter(|record| record.machine == machine).count() as f64 / sent().count() as f64
    }
}

fn machines(count: usize) -> Vec<Machine> {
    vec![Machine { servers: 8, mean_seconds: 0.010, refuses: None }; count]
}

/// Four backends, one three times as slow: it can do 266 requests per second and its even share is 250.
fn one_slow(algorithm: Algorithm, seed: u64) -> World {
    let mut machines = machines(4);
    machines[2].mean_seconds = 0.030;
    World {
        settings: Settings { algorithm, ..Settings::default() },
        machines,
        arrivals_per_second: 1_000.0,
        seconds: 60.0,
        probe_every: None,
        seed,
    }
}

#[test]
fn with_one_slow_backend_two_choices_and_latency_beat_taking_turns() {
    let seed = seed();
    let p99 = |algorithm| {
        let simulation = Simulation::run(one_slow(algorithm, seed));
        let p99 = simulation.percentile(99);
        println!("{:<18} p50 {:.4} s, p99 {p99:.4} s", algorithm.word(), simulation.percentile(50));
        p99
    };
    let turns = p99(Algorithm::RoundRobin);
    let two = p99(Algorithm::RandomTwo);
    let least = p99(Algorithm::LeastConnections);
    let time = p99(Algorithm::LeastTime);
    assert!(two < turns * 0.8, "random-two {two} against round-robin {turns}");
    assert!(least < turns * 0.8, "least-connections {least} against round-robin {turns}");
    assert!(time < turns * 0.6, "least-time {time} against round-robin {turns}");
    assert!(time < two, "least-time {time} against random-two {two}");
}

#[test]
fn least_time_sends_the_slow_backend_less_than_the_others_but_does_not_forget_it() {
    let simulation = Simulation::run(one_slow(Algorithm::LeastTime, seed()));
    let share = simulation.share(2, 5.0, 60.0);
    assert!((0.001..0.2).contains(&share), "{share}");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let seed = seed();
    let run = || Simulation::run(World { seconds: 5.0, ..one_slow(Algorithm::LeastTime, seed) }).records;
    assert_eq!(run(), run());
}

/// Three backends; the second refuses everything from second 10 to second 30 and is probed every 100 ms.
fn one_fails(passive: Option<Passive>, seed: u64) -> World {
    let mut machines = machines(3);
    machines[1].refuses = Some((10.0, 30.0));
    World {
        settings: Settings {
            slow_start: Some(Duration::from_secs(10)),
            passive,
            rise: 2,
            fall: 3,
            ..Settings::default()
        },
        machines,
        arrivals_per_second: 600.0,
        seconds: 60.0,
        probe_every: Some(0.1),
        seed,
    }
}

#[test]
fn a_failed_backend_is_out_after_fall_probes_and_comes_back_slowly() {
    let simulation = Simulation::run(one_fails(None, seed()));
    let last_refused = simulation.records.iter().filter(|record| record.took.is_none()).map(|one| one.sent);
    let last_refused = last_refused.fold(0.0, f64::max);
    assert!(
        (10.0..10.31).contains(&last_refused),
        "three probes of 100 ms, then nothing more: {last_refused}"
    );
    assert_eq!(simulation.share(1, 10.31, 30.0), 0.0);
    let shares: Vec<f64> =
        [30.2, 32.7, 35.2, 37.7, 40.2].windows(2).map(|span| simulation.share(1, span[0], span[1])).collect();
    assert!(shares.is_sorted(), "{shares:?}");
    assert!((0.03..0.12).contains(&shares[0]), "begins with about a tenth of a share: {shares:?}");
    let full = simulation.share(1, 40.2, 60.0);
    assert!((full - 1.0 / 3.0).abs() < 0.01, "{full}");
}

#[test]
fn passive_ejection_bounds_the_failures_to_a_handful_where_probes_alone_let_dozens_through() {
    let first = seed();
    // One history holds some 40 arrivals before the third probe, as a Poisson process draws them: the sum of
    // several is below 30 each once in a hundred thousand runs, a single one once in twenty.
    let histories = 8;
    let mut through = 0;
    for seed in (0..histories).map(|nth| first.wrapping_add(nth)) {
        let refused = |passive| {
            let simulation = Simulation::run(one_fails(passive, seed));
            (
                simulation.records.iter().filter(|record| record.took.is_none()).count(),
                simulation.ejections.len(),
            )
        };
        let (probes_only, none) = refused(None);
        let (with_passive, ejections) = refused(Some(Passive::default()));
        assert_eq!(none, 0);
        assert_eq!(ejections, 1, "probes keep it out before the ejection ends");
        assert_eq!(with_passive, 5);
        through += probes_only;
    }
    assert!(through > 30 * histories as usize, "{through} in {histories} histories");
}

#[test]
fn an_unprobed_backend_that_keeps_failing_is_ejected_for_longer_each_time() {
    let world = World { probe_every: None, ..one_fails(Some(Passive::default()), seed()) };
    let mut world = world;
    world.settings.passive = Some(Passive { eject: Duration::from_secs(2), ..Passive::default() });
    let simulation = Simulation::run(world);
    let rows: Vec<u32> = simulation.ejections.iter().map(|ejection| ejection.in_a_row).collect();
    assert!(rows.len() >= 3, "{rows:?}");
    assert!(rows.iter().enumerate().all(|(at, row)| *row as usize == at + 1), "{rows:?}");
    let refused = simulation.records.iter().filter(|record| record.took.is_none()).count();
    assert_eq!(refused, rows.len() * 5, "each try costs as many failures as the settings allow");
}
