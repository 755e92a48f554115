//! Claims that hold for every pool and every history, checked on random ones.

mod seed;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use seed::{Draws, for_all};
use std::sync::Arc;
use std::time::Duration;
use weir_balance::*;

fn backend(at: usize, settings: BackendSettings) -> Arc<Backend> {
    Arc::new(Backend::new(format!("10.{}.{}.1:80", at / 200, at % 200), settings))
}

fn weighted(settings: Settings, weights: &[u32]) -> Picker {
    let member =
        |(at, weight): (usize, &u32)| backend(at, BackendSettings { weight: *weight, ..Default::default() });
    let members = weights.iter().enumerate().map(member).collect();
    Picker::new(Arc::new(Pool::new(settings, members, Duration::ZERO)))
}

fn with(algorithm: Algorithm) -> Settings {
    Settings { algorithm, ..Settings::default() }
}

fn keyed(key: u64) -> PickInput<'static> {
    PickInput { key: Some(key), ..PickInput::default() }
}

fn owner(picker: &Picker, key: u64) -> u64 {
    let pick = picker.pick(&keyed(key)).expect("a backend is up");
    picker.pool().release(pick.index);
    picker.pool().members()[pick.index].id()
}

#[test]
fn round_robin_is_never_a_whole_turn_off_anyones_share() {
    for_all(150, vec(1..=256u32, 1..40), |weights| {
        let picker = weighted(with(Algorithm::RoundRobin), &weights);
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut counts = vec![0u64; weights.len()];
        for turn in 1..=(total * 2).min(6_000) {
            counts[picker.pick(&PickInput::default()).unwrap().index] += 1;
            for (count, weight) in counts.iter().zip(&weights) {
                let ideal = turn as f64 * f64::from(*weight) / total as f64;
                prop_assert!((*count as f64 - ideal).abs() < 1.0, "turn {turn}: {count} against {ideal}");
            }
        }
        Ok(())
    });
}

/// Takes each of a few members out and counts the keys that changed owner: (of the one taken out, of others),
/// as shares.
fn moved_when_one_leaves(algorithm: Algorithm, count: usize, leaver: usize) -> (f64, f64) {
    const KEYS: u64 = 50_000;
    let picker = weighted(with(algorithm), &vec![1; count]);
    let before: Vec<u64> = (0..KEYS).map(|key| owner(&picker, key)).collect();
    let gone = picker.pool().members()[leaver].id();
    picker.pool().set_health(leaver, Health::Down, Duration::ZERO);
    assert!(picker.pool().refresh(Duration::ZERO).changed);
    let (mut own, mut others) = (0, 0);
    for (key, before) in before.iter().enumerate() {
        match owner(&picker, key as u64) {
            after if after == *before => assert_ne!(after, gone),
            _ if *before == gone => own += 1,
            _ => others += 1,
        }
    }
    (own as f64 / KEYS as f64, others as f64 / KEYS as f64)
}

#[test]
fn maglev_moves_at_most_a_share_and_one_percent_when_a_backend_leaves() {
    for count in [2, 3, 5, 10, 30, 100, 300] {
        for leaver in [0, count / 2] {
            let (own, others) = moved_when_one_leaves(Algorithm::Maglev, count, leaver);
            println!("{count} backends: {own:.4} of its own keys and {others:.4} of others moved");
            assert!(own + others <= 1.0 / count as f64 + 0.01, "{count}: {own} + {others}");
        }
    }
}

#[test]
fn the_ring_moves_no_key_of_a_backend_that_stays() {
    for algorithm in [Algorithm::Source, Algorithm::Hash] {
        for count in [2, 3, 10, 100, 1000] {
            let (own, others) = moved_when_one_leaves(algorithm, count, count / 3);
            assert_eq!(others, 0.0);
            assert!(own < 2.0 / count as f64, "{count}: {own}");
        }
    }
}

#[test]
fn a_backend_that_returns_gets_exactly_its_old_keys_back() {
    for algorithm in [Algorithm::Hash, Algorithm::Maglev] {
        let picker = weighted(with(algorithm), &[3, 1, 2, 5]);
        let before: Vec<u64> = (0..5_000).map(|key| owner(&picker, key)).collect();
        for health in [Health::Down, Health::Up] {
            picker.pool().set_health(2, health, Duration::ZERO);
            picker.pool().refresh(Duration::ZERO);
        }
        assert!((0..5_000).all(|key| owner(&picker, key) == before[key as usize]));
    }
}

#[test]
fn the_order_in_the_file_decides_nothing_for_hashes() {
    for_all(20, (vec(1..20u32, 2..9), any::<u64>()), |(weights, shuffle)| {
        for algorithm in [Algorithm::Source, Algorithm::Maglev] {
            let forward = weighted(with(algorithm), &weights);
            let mut members: Vec<_> = forward.pool().members().to_vec();
            let mut draws = Draws(shuffle);
            members.sort_by_cached_key(|_| draws.next());
            let shuffled = Picker::new(Arc::new(Pool::new(with(algorithm), members, Duration::ZERO)));
            for key in 0..500 {
                prop_assert_eq!(owner(&forward, key), owner(&shuffled, key));
            }
        }
        Ok(())
    });
}

#[test]
fn no_backend_ever_exceeds_its_bound_however_hot_the_keys() {
    let histories = (vec(1..10u32, 2..12), 105..300u32, vec((0..40u64, any::<bool>()), 1..600));
    for_all(60, histories, |(weights, percent, steps)| {
        let bound = f64::from(percent) / 100.0;
        let settings =
            Settings { algorithm: Algorithm::Hash, hash_bound: Some(bound), ..Settings::default() };
        let picker = weighted(settings, &weights);
        let total_weight: u32 = weights.iter().sum();
        let mut held = vec![];
        for (key, release) in steps {
            if release && !held.is_empty() {
                let index = held.swap_remove(key as usize % held.len());
                picker.pool().release(index);
                continue;
            }
            // Squared, so that a few keys get most of the picks.
            let pick = picker.pick(&keyed(key * key / 40)).unwrap();
            held.push(pick.index);
            let share = f64::from(weights[pick.index]) / f64::from(total_weight);
            let most = (bound * held.len() as f64 * share).ceil().max(1.0);
            let load = picker.pool().members()[pick.index].in_flight();
            prop_assert!(f64::from(load) <= most, "{load} in flight, bound {most}");
        }
        Ok(())
    });
}

#[test]
fn random_choices_follow_weights_when_nobody_is_busy() {
    for_all(10, (vec(1..=20u32, 2..8), any::<u64>()), |(weights, state)| {
        let picker = weighted(with(Algorithm::RandomTwo), &weights);
        let total: u32 = weights.iter().sum();
        let mut draws = Draws(state);
        let mut counts = vec![0u32; weights.len()];
        for _ in 0..40_000 {
            let input = PickInput { draw: draws.pair(), ..PickInput::default() };
            let pick = picker.pick(&input).unwrap();
            counts[pick.index] += 1;
            picker.pool().release(pick.index);
        }
        for (count, weight) in counts.iter().zip(&weights) {
            let expected = 40_000.0 * f64::from(*weight) / f64::from(total);
            // Seven standard deviations: wrong once in 10^11 runs.
            prop_assert!(
                (f64::from(*count) - expected).abs() < 7.0 * expected.sqrt() + 1.0,
                "{count}/{expected}"
            );
        }
        Ok(())
    });
}

#[test]
fn every_retry_is_covered_by_the_requests_of_the_last_ten_seconds() {
    let steps = vec((0..3u64, 0..200u32, 0..200u32), 1..60);
    for_all(60, (0..=100u32, steps), |(percent, steps)| {
        let budget = RetryBudget::new(RetryShare { per_mille: percent * 10, per_second: 10 });
        let (mut second, mut history) = (1_000u64, vec![]);
        for (elapsed, requests, wanted) in steps {
            second += elapsed;
            let now = Duration::from_secs(second);
            (0..requests).for_each(|_| budget.deposit(now));
            history.push((second, u64::from(requests), 0u64));
            for _ in 0..wanted {
                if !budget.withdraw(now) {
                    prop_assert_eq!(budget.available(now), 0);
                    break;
                }
                history.last_mut().unwrap().2 += 1;
                let recent = history.iter().filter(|(at, ..)| second - at < 10);
                let (requests, retries) = recent.fold((0, 0), |sum, step| (sum.0 + step.1, sum.1 + step.2));
                prop_assert!(retries <= requests * u64::from(percent) / 100 + 100);
            }
        }
        Ok(())
    });
}

/// Something that can happen to a pool.
#[derive(Debug, Clone)]
enum Event {
    Pick { draw: [u32; 2], key: Option<u64>, sticky: Option<usize>, exclude: Vec<usize> },
    Release(usize),
    Health(usize, bool, bool),
    Admin(usize, AdminState),
    Weight(usize, u32),
    Limit(usize, Option<u32>),
    Failures(usize, u32),
    Pass(u64),
    Reload,
}

fn events() -> impl Strategy<Value = Event> {
    let index = 0..64usize;
    let admin = prop_oneof![Just(AdminState::Ready), Just(AdminState::Drain), Just(AdminState::Maintenance)];
    let pick = (
        any::<[u32; 2]>(),
        any::<Option<u64>>(),
        proptest::option::weighted(0.2, 0..64usize),
        vec(0..64usize, 0..4),
    );
    prop_oneof![
        12 => pick.prop_map(|(draw, key, sticky, exclude)| Event::Pick { draw, key, sticky, exclude }),
        4 => index.clone().prop_map(Event::Release),
        2 => (index.clone(), any::<bool>(), any::<bool>()).prop_map(|(at, up, late)| Event::Health(at, up, late)),
        1 => (index.clone(), admin).prop_map(|(at, state)| Event::Admin(at, state)),
        1 => (index.clone(), 0..4u32).prop_map(|(at, weight)| Event::Weight(at, weight)),
        1 => (index.clone(), proptest::option::of(1..4u32)).prop_map(|(at, limit)| Event::Limit(at, limit)),
        2 => (index, 1..6u32).prop_map(|(at, times)| Event::Failures(at, times)),
        2 => (1..5_000u64).prop_map(Event::Pass),
        1 => Just(Event::Reload),
    ]
}

/// A pool with a life of its own, and what must be true after each step of it.
struct Life {
    picker: Picker,
    now: Duration,
    held: Vec<(Arc<Pool>, Pick)>,
}

fn give_back(pool: &Pool, pick: Pick) {
    if pick.on_trial {
        pool.end_trial(pick.index);
    }
    pool.release(pick.index);
}

impl Life {
    fn pool(&self) -> &Arc<Pool> {
        self.picker.pool()
    }

    fn step(&mut self, event: Event) -> TestCaseResult {
        let count = self.pool().members().len();
        let now = self.now;
        match event {
            Event::Pick { draw, key, sticky, exclude } => {
                let exclude: Vec<usize> = exclude.into_iter().map(|at| at % count).collect();
                let sticky = sticky.map(|at| self.pool().members()[at % count].id());
                let input = PickInput { now, draw, key, sticky, exclude: &exclude, role: None };
                self.pick(&input)?;
            }
            Event::Release(at) if !self.held.is_empty() => {
                let (pool, pick) = self.held.swap_remove(at % self.held.len());
                give_back(&pool, pick);
            }
            Event::Release(_) => {}
            Event::Health(at, up, late) => {
                self.pool().members()[at % count].set_late(late);
                self.pool().set_health(at % count, if up { Health::Up } else { Health::Down }, now);
            }
            Event::Admin(at, state) => self.pool().set_admin_state(at % count, state, now),
            Event::Weight(at, weight) => self.pool().set_weight(at % count, weight).unwrap(),
            Event::Limit(at, limit) => self.pool().members()[at % count].set_max_connections(limit),
            Event::Failures(at, times) => self.fail(at % count, times)?,
            Event::Pass(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Event::Reload => {
                let members = self.pool().members().to_vec();
                let pool = self.pool().rebuilt(self.pool().settings().clone(), members, now);
                self.picker = Picker::new(Arc::new(pool));
            }
        }
        self.pool().refresh(self.now);
        prop_assert!(
            self.pool().next_change(self.now).is_none_or(|next| next > self.now),
            "refresh left work"
        );
        let in_flight: u32 = self.pool().members().iter().map(|backend| backend.in_flight()).sum();
        prop_assert_eq!(in_flight as usize, self.held.len());
        Ok(())
    }

    fn pick(&mut self, input: &PickInput<'_>) -> TestCaseResult {
        let before = self.pool().status();
        let explained = self.picker.explain(input);
        prop_assert_eq!(&before, &self.pool().status(), "explaining changed something");
        let answer = self.picker.pick(input);
        prop_assert_eq!(&answer, &explained.outcome);
        let open = |status: &BackendStatus| status.limit.is_none_or(|limit| status.in_flight < limit);
        match answer {
            Ok(pick) => {
                let chosen = &before[pick.index];
                prop_assert!(open(chosen), "{:?} was full", chosen);
                prop_assert!(!input.exclude.contains(&pick.index));
                let allowed = match (pick.reason, pick.tier) {
                    (_, TierKind::LastResort) => {
                        let none_ready = before.iter().all(|one| one.state != State::Ready);
                        let admitted = match (self.pool().settings().last_resort, chosen.state) {
                            (_, State::Ejected) => true,
                            (LastResort::Late, State::Down) => self.pool().members()[pick.index].is_late(),
                            (LastResort::All, State::Down) => true,
                            _ => false,
                        };
                        none_ready && admitted && chosen.admin == AdminState::Ready && chosen.weight > 0
                    }
                    (PickReason::Sticky, _) => {
                        matches!(chosen.state, State::Ready | State::Draining | State::WeightZero)
                    }
                    _ => chosen.state == State::Ready,
                };
                prop_assert!(allowed, "{:?} for {:?}", chosen.state, pick);
                prop_assert_eq!(
                    pick.on_trial,
                    pick.tier == TierKind::LastResort && chosen.state == State::Down
                );
                prop_assert_eq!(self.pool().members()[pick.index].in_flight(), chosen.in_flight + 1);
                self.held.push((Arc::clone(self.pool()), pick));
            }
            Err(NoPick::NoneInRole) => prop_assert!(false, "no role was asked for"),
            Err(NoPick::NoneUp) => prop_assert!(self.pool().eligible().is_empty()),
            Err(NoPick::AllExcluded) => {
                prop_assert!(self.pool().eligible().iter().all(|one| input.exclude.contains(&one.index)));
            }
            Err(NoPick::AllBusy) => {
                prop_assert!(!self.pool().eligible().is_empty());
                for (status, refusal) in &explained.backends {
                    prop_assert!(refusal.is_some(), "{} could have been chosen", status.address);
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, index: usize, times: u32) -> TestCaseResult {
        let passive = self.pool().settings().passive.expect("set below");
        for _ in 0..times {
            let Some(ejection) = self.pool().observe(index, self.now, Outcome::Failure) else { continue };
            prop_assert!(ejection.until > self.now);
            let serves =
                |one: &Backend| one.admin_state() == AdminState::Ready && one.is_up() && one.weight() > 0;
            let is_out = |one: &Backend| one.ejected_until().is_some_and(|at| at > self.now);
            let members = self.pool().members();
            // Ordinary backends may all go while a backup takes over.
            let takes_over = |one: &&Arc<Backend>| one.is_backup() && serves(one) && !is_out(one);
            if !members[index].is_backup()
                && passive.max_ejected > 0.0
                && members.iter().any(|one| takes_over(&one))
            {
                continue;
            }
            let out = members.iter().filter(|one| is_out(one) && serves(one));
            let share = out.filter(|one| one.is_backup() == members[index].is_backup()).count() as f64
                / members.len() as f64;
            prop_assert!(share <= passive.max_ejected + 1.0e-9, "{share} ejected");
        }
        Ok(())
    }
}

#[test]
fn whatever_happens_picks_are_allowed_counted_and_as_explained() {
    let algorithms = proptest::sample::select(Algorithm::ALL.to_vec());
    let last_resort = proptest::sample::select(vec![LastResort::Late, LastResort::All, LastResort::Off]);
    let pools = (
        algorithms,
        vec((0..4u32, any::<bool>(), proptest::option::of(1..4u32)), 1..9),
        any::<bool>(),
        last_resort,
    );
    for_all(400, (pools, vec(events(), 1..120)), |((algorithm, members, bounded, last_resort), history)| {
        let settings = Settings {
            algorithm,
            hash_bound: bounded.then_some(1.25),
            slow_start: bounded.then_some(Duration::from_secs(5)),
            passive: Some(Passive { errors: 3, ..Passive::default() }),
            last_resort,
            ..Settings::default()
        };
        let member = |(at, (weight, backup, max_connections))| {
            backend(at, BackendSettings { weight, backup, max_connections, assumed_up: true, role: None })
        };
        let members = members.into_iter().enumerate().map(member).collect();
        let picker = Picker::new(Arc::new(Pool::new(settings, members, Duration::ZERO)));
        let mut life = Life { picker, now: Duration::from_secs(1), held: vec![] };
        for event in history {
            life.step(event)?;
        }
        for (pool, pick) in life.held.drain(..) {
            give_back(&pool, pick);
        }
        prop_assert!(life.pool().members().iter().all(|backend| backend.in_flight() == 0));
        Ok(())
    });
}
