//! Measures what it costs Weir, in processor time of the whole process, to add, remove or change one backend
//! while it runs.
//!
//! `WEIR_BIN=target/release/weir cargo run --release -p weir-tests --bin change_cost -- [--changes N]
//! [--rounds N] [--only NUMBER]`
//!
//! Every call goes through the admin API on a connection of its own, as with `weir add`, and what the process
//! uses without calls is subtracted. Probes are off: their cost does not depend on changes of backends.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use weir_tests::dialogue::{Admin, Setup, processor_time_of};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str = "usage: change_cost [--changes 100] [--rounds 5] [--only NUMBER]
Runs the `weir` beside this program, or the one WEIR_BIN names. Prints microseconds of processor time for each call: the median of the rounds,
and the least and the most of them.";

/// A config to change.
struct Scene {
    name: &'static str,
    pools: usize,
    backends: usize,
    /// Keys of each pool.
    pool: &'static str,
    /// Whether backends differ in weight, which makes the rotation as long as possible.
    is_weighted: bool,
}

const SCENES: &[Scene] = &[
    Scene { name: "100 pools of 100", pools: 100, backends: 100, pool: "", is_weighted: false },
    Scene {
        name: "100 pools of 100, maglev",
        pools: 100,
        backends: 100,
        pool: "balance = 'maglev'",
        is_weighted: false,
    },
    Scene { name: "2 pools of 4,000", pools: 2, backends: 4000, pool: "", is_weighted: false },
    Scene {
        name: "2 pools of 4,000, maglev",
        pools: 2,
        backends: 4000,
        pool: "balance = 'maglev'",
        is_weighted: false,
    },
    Scene {
        name: "100 pools of 100, hash",
        pools: 100,
        backends: 100,
        pool: "balance = 'hash'\nhash = { key = 'path' }",
        is_weighted: false,
    },
    Scene { name: "100 pools of 100, weighted", pools: 100, backends: 100, pool: "", is_weighted: true },
];

fn main() {
    let (mut changes, mut rounds, mut only) = (100, 5, None);
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "changes" => changes = value,
            "rounds" => rounds = value,
            "only" => only = usize::try_from(value).ok(),
            _ => return false,
        }
        true
    });
    println!("{:<28} {:>22} {:>22} {:>22}", "us of CPU per call", "add", "remove", "weight");
    for (number, scene) in SCENES.iter().enumerate() {
        if only.is_none_or(|only| only == number) {
            measure(scene, changes, rounds);
        }
    }
}

fn measure(scene: &Scene, changes: u64, rounds: u64) {
    let weir = Setup::of(&config(scene)).start();
    let pid = weir.pid();
    let (mut adding, mut removing, mut weighing) = (Vec::new(), Vec::new(), Vec::new());
    let admin = weir.admin();
    // The first round runs with cold caches and is not counted.
    for round in 0..=rounds {
        let idle = idle_share(pid);
        let pool = |number: u64| format!("p{}", (number * 7) % scene.pools as u64);
        // Never the same address twice in one pool.
        let address = |number: u64| format!("10.255.{}.{}:80", number / 250, number % 250 + 1);
        let add = |number| {
            let body = format!(r#"{{"address": "{}"}}"#, address(number));
            call(&admin, "POST", &format!("/v1/pools/{}/backends", pool(number)), &body, 201);
        };
        let path = |number| format!("/v1/pools/{}/backends/{}", pool(number), address(number));
        let weigh = |number| call(&admin, "PATCH", &path(number), r#"{"weight": 2}"#, 200);
        let remove = |number| call(&admin, "DELETE", &path(number), "", 200);
        let taken = [
            cost(pid, idle, changes, add),
            cost(pid, idle, changes, weigh),
            cost(pid, idle, changes, remove),
        ];
        if round > 0 {
            adding.push(taken[0]);
            weighing.push(taken[1]);
            removing.push(taken[2]);
        }
    }
    println!(
        "{:<28} {:>22} {:>22} {:>22}",
        scene.name,
        spread(&mut adding),
        spread(&mut removing),
        spread(&mut weighing)
    );
}

fn config(scene: &Scene) -> String {
    let mut text = String::from("[listener.web]\nbind = \"@web\"\n");
    for pool in 0..scene.pools {
        let _ = writeln!(text, "[[listener.web.route]]\nhost = 'p{pool}.example'\npool = 'p{pool}'");
    }
    for pool in 0..scene.pools {
        let backends: Vec<String> = (0..scene.backends)
            .map(|number| {
                let address = format!("10.{pool}.{}.{}:80", number / 250, number % 250 + 1);
                match scene.is_weighted {
                    true => format!("{{ address = '{address}', weight = {} }}", number * 7919 % 256 + 1),
                    false => format!("'{address}'"),
                }
            })
            .collect();
        let _ = writeln!(
            text,
            "[pool.p{pool}]\nbackends = [{}]\nhealth = {{ check = 'off', passive = 'off' }}\n{}",
            backends.join(", "),
            scene.pool
        );
    }
    text
}

fn call(admin: &Admin, method: &str, path: &str, body: &str, expected: u16) {
    let answer = admin.calls(method, path, &[], body);
    assert_eq!(answer.status(), expected, "{method} {path}: {:?}", answer.response);
}

/// Processor time of one call, in microseconds.
fn cost(pid: u32, idle: f64, changes: u64, call: impl Fn(u64)) -> f64 {
    let (begun, before) = (Instant::now(), processor_time_of(pid));
    (0..changes).for_each(call);
    let used = processor_time_of(pid).saturating_sub(before).as_secs_f64();
    (used - idle * begun.elapsed().as_secs_f64()) * 1e6 / changes as f64
}

/// The share of one processor that the process uses without calls.
fn idle_share(pid: u32) -> f64 {
    let (begun, before) = (Instant::now(), processor_time_of(pid));
    std::thread::sleep(Duration::from_millis(500));
    processor_time_of(pid).saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// The median, the least and the greatest.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    match (values.first(), values.get(values.len() / 2), values.last()) {
        (Some(least), Some(median), Some(most)) => format!("{median:.0} ({least:.0}-{most:.0})"),
        _ => "-".to_owned(),
    }
}
