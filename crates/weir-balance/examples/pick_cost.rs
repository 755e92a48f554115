//! Prints what one pick and its release cost, per algorithm, with 3 and with 1000 backends, alone and with
//! two threads.
//!
//! `cargo run --release -p weir-balance --example pick_cost`
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_balance::{Algorithm, Backend, BackendSettings, Outcome, PickInput, Picker, Pool, Settings};

const ROUNDS: usize = 200;
const PICKS: u64 = 4_000;

fn main() {
    println!("ns per pick + release, median of {ROUNDS} rounds of {PICKS} (lowest to 9 of 10)");
    println!("{:<18} {:>9} {:>8} {:>22} {:>22}", "algorithm", "backends", "limits", "1 thread", "2 threads");
    for algorithm in Algorithm::ALL {
        for count in [3, 1000] {
            for max_connections in [None, Some(1000)] {
                let pool = pool(algorithm, count, max_connections);
                let alone = measure(&pool, 1);
                let shared = measure(&pool, 2);
                let limits = if max_connections.is_some() { "yes" } else { "no" };
                println!("{:<18} {count:>9} {limits:>8} {alone:>22} {shared:>22}", algorithm.word());
            }
        }
    }
}

fn pool(algorithm: Algorithm, count: usize, max_connections: Option<u32>) -> Arc<Pool> {
    let settings = BackendSettings { max_connections, ..BackendSettings::default() };
    let members =
        (0..count).map(|at| Arc::new(Backend::new(format!("10.0.{}.{}:80", at / 250, at % 250), settings)));
    let hash_bound = max_connections.map(|_| 1.25);
    let pool = Pool::new(
        Settings { algorithm, hash_bound, ..Settings::default() },
        members.collect(),
        Duration::ZERO,
    );
    // A steady load of two in flight everywhere, so that "least" has something to compare.
    let picker = Picker::new(Arc::new(pool));
    for turn in 0..count as u64 * 2 {
        let input = PickInput { key: Some(turn), draw: [turn as u32, !turn as u32], ..PickInput::default() };
        if let Ok(pick) = picker.pick(&input) {
            let latency = Duration::from_micros(200 + turn % 100);
            picker.pool().observe(pick.index, Duration::from_secs(1), Outcome::Success { latency });
        }
    }
    Arc::clone(picker.pool())
}

/// Each thread times its own short rounds: shorter than a scheduler's slice, so that most are undisturbed on
/// a busy machine.
fn measure(pool: &Arc<Pool>, threads: u64) -> String {
    let mut costs: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || rounds(&Picker::new(Arc::clone(pool)), thread)))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker ended well")).collect()
    });
    costs.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1} to {:.1})", costs[costs.len() / 2], costs[0], costs[costs.len() * 9 / 10])
}

fn rounds(picker: &Picker, thread: u64) -> Vec<f64> {
    let round = |turn: usize| {
        let began = Instant::now();
        work(picker, thread << 8 | turn as u64);
        began.elapsed().as_nanos() as f64 / PICKS as f64
    };
    (0..ROUNDS).map(round).collect()
}

fn work(picker: &Picker, seed: u64) {
    let mut state = seed << 32;
    for turn in 0..PICKS {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let input = PickInput {
            now: Duration::from_micros(2_000_000 + turn),
            draw: [(state >> 32) as u32, (state >> 16) as u32],
            key: Some(state),
            ..PickInput::default()
        };
        if let Ok(pick) = black_box(picker.pick(black_box(&input))) {
            picker.pool().release(pick.index);
        }
    }
}
