//! Measures what hedging does to tail latency, and what it costs the backends.
//!
//! `cargo run --release -p weir-tests --bin hedge_tail -- [--seconds N] [--rate N] [--only N]`
//!
//! Requests are sent at a fixed rate, whether or not earlier ones were answered (an open loop), and are
//! measured from when each was due.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, Draws, Setup, Weir, free_address};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str = "usage: hedge_tail [--seconds 20] [--rate 300] [--only scene]
Runs the `weir` beside this program, or the one WEIR_BIN names, before three backends that take 2 to 4 ms, and now and then 200 ms.";

/// Clients, each with a connection of its own. Enough that one is free when a request is due.
const CLIENTS: usize = 64;
/// How long a stalled request takes.
const STALL: Duration = Duration::from_millis(200);

/// Which backends stall, and how many of 1000 requests.
struct Scene {
    name: &'static str,
    stalls: [u64; 3],
}

const SCENES: [Scene; 4] = [
    Scene { name: "one stalls 1 %", stalls: [10, 0, 0] },
    Scene { name: "each stalls 1 %", stalls: [10, 10, 10] },
    Scene { name: "one stalls 10 %", stalls: [100, 0, 0] },
    Scene { name: "all stall always", stalls: [1000, 1000, 1000] },
];

/// Hedging settings, and their names here.
const WAYS: [(&str, &str); 4] = [
    ("none", "{}"),
    ("p95", "{ hedge = { after = 'p95' }, budget = { share = 0.1, min_per_second = 0 } }"),
    ("p99", "{ hedge = { after = 'p99' }, budget = { share = 0.1, min_per_second = 0 } }"),
    ("20ms", "{ hedge = { after = '20ms' }, budget = { share = 0.1, min_per_second = 0 } }"),
];

fn main() {
    let (mut seconds, mut rate, mut only) = (20, 300, None);
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "seconds" => seconds = value,
            "rate" => rate = value.max(1),
            "only" => only = usize::try_from(value).ok(),
            _ => return false,
        }
        true
    });
    println!(
        "{:<18} {:<6} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "ms", "hedge", "p50", "p99", "p99.9", "max", "asked twice"
    );
    for (number, scene) in SCENES.iter().enumerate() {
        if only.is_none_or(|only| only == number) {
            for (name, retry) in WAYS {
                measure(scene, name, retry, seconds, rate);
            }
        }
    }
}

fn measure(scene: &Scene, name: &str, retry: &str, seconds: u64, rate: u64) {
    let backends: Vec<Backend> =
        scene.stalls.iter().enumerate().map(|(at, stalls)| backend(at, *stalls)).collect();
    let weir = before(&backends, retry);
    // Enough answers for a percentile, and open connections; not counted.
    run(&weir, rate, rate * 4);
    let before = weir.metric("weir_hedges_total", &[("pool", "app")]);
    let count = rate * seconds;
    let mut taken = run(&weir, rate, count);
    let twice = weir.metric("weir_hedges_total", &[("pool", "app")]) - before;
    taken.sort_unstable();
    let at = |per_mille: usize| {
        let index = (taken.len() * per_mille / 1000).min(taken.len() - 1);
        taken[index].as_secs_f64() * 1000.0
    };
    println!(
        "{:<18} {name:<6} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>10.1} %",
        scene.name,
        at(500),
        at(990),
        at(999),
        at(1000),
        twice * 100.0 / count as f64
    );
}

fn backend(number: usize, stalls: u64) -> Backend {
    let drawn = AtomicU64::new(1 + (number as u64) * 1_000_000);
    Backend::counting_at(free_address(), move |_, wire| {
        let mut draws = Draws::seeded(drawn.fetch_add(1, Ordering::Relaxed));
        let stall = draws.below(1000) < stalls;
        let time = if stall { STALL } else { Duration::from_micros(2000 + draws.below(2000)) };
        std::thread::sleep(time);
        match wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") {
            Ok(()) => After::Keep,
            Err(_) => After::Close,
        }
    })
}

fn before(backends: &[Backend], retry: &str) -> Weir {
    let mut config =
        String::from("[listener.web]\nbind = \"@web\"\npool = \"app\"\n[pool.app]\nbackends = [");
    for number in 0..backends.len() {
        let _ = write!(config, "\"@b{number}\", ");
    }
    let _ = writeln!(config, "]\nretry = {retry}\nhealth = {{ check = \"off\", passive = \"off\" }}");
    let mut setup = Setup::of(&config);
    for (number, backend) in backends.iter().enumerate() {
        setup = setup.with(&format!("b{number}"), backend.address());
    }
    setup.start()
}

/// Sends `count` requests, `rate` a second, and gives how long each took from when it was due.
fn run(weir: &Weir, rate: u64, count: u64) -> Vec<Duration> {
    let begun = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let taken = Mutex::new(Vec::with_capacity(usize::try_from(count).unwrap_or_default()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = weir.client("web");
                let mut own = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let due = begun + Duration::from_nanos(number * 1_000_000_000 / rate);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
                    client.receives_status(200);
                    own.push(due.elapsed());
                }
                taken.lock().expect("nobody panics").extend(own);
            });
        }
    });
    taken.into_inner().expect("nobody panics")
}
