//! What must hold while many workers pick at once.

mod seed;

use seed::{Draws, seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use weir_balance::*;

const THREADS: u64 = 4;

fn pool(algorithm: Algorithm, count: usize, max_connections: Option<u32>) -> Arc<Pool> {
    let settings = BackendSettings { max_connections, ..BackendSettings::default() };
    let members = (0..count).map(|at| Arc::new(Backend::new(format!("10.3.0.{at}:80"), settings))).collect();
    let settings = Settings { algorithm, hash_bound: Some(1.25), ..Settings::default() };
    Arc::new(Pool::new(settings, members, Duration::ZERO))
}

#[test]
fn max_connections_is_never_exceeded_and_every_slot_comes_back() {
    let seed = seed();
    for algorithm in Algorithm::ALL {
        let pool = pool(algorithm, 3, Some(2));
        let inside: Vec<AtomicU32> = (0..3).map(|_| AtomicU32::new(0)).collect();
        let busy = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, inside, busy) = (&pool, &inside, &busy);
                scope.spawn(move || {
                    let picker = Picker::new(Arc::clone(pool));
                    let mut draws = Draws(seed ^ thread);
                    let mut held = vec![];
                    for _ in 0..20_000 {
                        let input =
                            PickInput { draw: draws.pair(), key: Some(draws.next()), ..PickInput::default() };
                        match picker.pick(&input) {
                            Ok(pick) => {
                                // Counted outside the crate: its own counters can't hide its own mistake.
                                let now_inside = inside[pick.index].fetch_add(1, Ordering::SeqCst) + 1;
                                assert!(now_inside <= 2, "{algorithm}: {now_inside} at once");
                                held.push(pick.index);
                            }
                            Err(none) => {
                                assert_eq!(none, NoPick::AllBusy);
                                busy.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        // One thread alone asks for more than the six slots there are, so the limit is
                        // reached however the scheduler interleaves them.
                        if held.len() > 7 || (draws.next().is_multiple_of(3) && !held.is_empty()) {
                            let index = held.swap_remove(0);
                            inside[index].fetch_sub(1, Ordering::SeqCst);
                            pool.release(index);
                        }
                    }
                    for index in held {
                        inside[index].fetch_sub(1, Ordering::SeqCst);
                        pool.release(index);
                    }
                });
            }
        });
        assert!(pool.members().iter().all(|backend| backend.in_flight() == 0), "{algorithm}");
        assert!(
            busy.load(Ordering::Relaxed) > 0,
            "{algorithm}: the limit was never reached, so nothing was tested"
        );
    }
}

/// Lets two threads do something at the same moment, over and over: they meet before each round and after it.
/// Without it they meet in the few nanoseconds that matter about never.
fn race(rounds: u32, contender: impl Fn(u32, usize) + Sync, after_each: impl Fn(u32) + Sync) {
    let arrived = AtomicU32::new(0);
    let meet = |expected: u32| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0u32;
        while arrived.load(Ordering::SeqCst) < expected {
            spins += 1;
            // The other may not even have a core on a busy machine.
            if spins.is_multiple_of(10_000) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    std::thread::scope(|scope| {
        for side in 0..2 {
            let (contender, after_each, meet) = (&contender, &after_each, &meet);
            scope.spawn(move || {
                for round in 0..rounds {
                    meet(round * 6 + 2);
                    contender(round, side);
                    meet(round * 6 + 4);
                    if side == 0 {
                        after_each(round);
                    }
                    meet(round * 6 + 6);
                }
            });
        }
    });
}

#[test]
fn only_one_of_two_threads_that_race_for_the_last_slot_gets_it() {
    let pool = pool(Algorithm::First, 1, Some(1));
    let (won, wrong) = (AtomicU32::new(0), AtomicU32::new(0));
    let contender = |_, _| {
        if Picker::new(Arc::clone(&pool)).pick(&PickInput::default()).is_ok() {
            won.fetch_add(1, Ordering::SeqCst);
        }
    };
    // A panic in one thread would leave the other waiting, so what is wrong is counted and claimed at the
    // end.
    let after_each = |_| {
        let winners = won.swap(0, Ordering::SeqCst);
        wrong.fetch_add(u32::from(winners != 1), Ordering::SeqCst);
        for _ in 0..winners {
            pool.release(0);
        }
    };
    race(20_000, contender, after_each);
    assert_eq!(wrong.load(Ordering::SeqCst), 0, "rounds of 20000 with other than one winner");
}

#[test]
fn round_robin_is_exact_over_all_workers_together() {
    let pool = pool(Algorithm::RoundRobin, 5, None);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let picker = Picker::new(Arc::clone(&pool));
                (0..10_000).for_each(|_| assert!(picker.pick(&PickInput::default()).is_ok()));
            });
        }
    });
    let counts: Vec<_> = pool.members().iter().map(|backend| backend.picks()).collect();
    assert_eq!(counts, [THREADS * 10_000 / 5; 5]);
}

#[test]
fn pickers_follow_a_change_while_they_run_and_never_pick_what_was_down_before_they_looked() {
    let pool = pool(Algorithm::RandomTwo, 4, None);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, ended) = (&pool, &ended);
            scope.spawn(move || {
                let picker = Picker::new(Arc::clone(pool));
                let mut draws = Draws(thread);
                while !ended.load(Ordering::Relaxed) {
                    let before = pool.generation();
                    let pick = picker.pick(&PickInput { draw: draws.pair(), ..PickInput::default() });
                    // Even generations have backend 0 down. If the generation was the same before and after,
                    // that view chose.
                    if before == pool.generation() && before % 2 == 0 {
                        assert_ne!(pick.unwrap().index, 0);
                    }
                    pool.release(pick.unwrap().index);
                }
            });
        }
        assert_eq!(pool.generation(), 1);
        for turn in 0..5_000 {
            let health = if turn % 2 == 0 { Health::Down } else { Health::Up };
            pool.set_health(0, health, Duration::ZERO);
            assert!(pool.refresh(Duration::ZERO).changed);
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn two_workers_never_eject_more_than_the_limit_together() {
    const ROUNDS: u32 = 10_000;
    let members = (0..2).map(|at| Arc::new(Backend::new(format!("10.4.0.{at}:80"), Default::default())));
    let passive = Passive { errors: 1, eject: Duration::from_millis(500), ..Passive::default() };
    let settings = Settings { passive: Some(passive), ..Settings::default() };
    let pool = Pool::new(settings, members.collect(), Duration::ZERO);
    let (ejected, wrong) = (AtomicU32::new(0), AtomicU32::new(0));
    // An hour between rounds: every ejection is over by then.
    let at = |round: u32| Duration::from_secs(3600 * u64::from(round + 1));
    let contender = |round, side| {
        let ejection = pool.observe(side, at(round), Outcome::Failure);
        ejected.fetch_add(u32::from(ejection.is_some()), Ordering::SeqCst);
    };
    let after_each = |_| {
        wrong.fetch_add(u32::from(ejected.swap(0, Ordering::SeqCst) != 1), Ordering::SeqCst);
    };
    race(ROUNDS, contender, after_each);
    assert_eq!(wrong.load(Ordering::SeqCst), 0, "rounds of {ROUNDS} with other than one ejection of two");
}
