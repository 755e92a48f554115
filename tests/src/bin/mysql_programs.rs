//! Runs random MySQL sessions against a server directly and through Weir, and fails if any answer differs.
//!
//! `cargo run -p weir-tests --bin mysql_programs -- [--programs N] [--threads N] [--at-once N] [--steps N]
//! [--seed N]`
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use weir_tests::mysql::{Found, Mysqld, Pair, Plan, run_plan, weir_for_programs};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str =
    "usage: mysql_programs [--programs 1000000] [--threads 4] [--at-once 6] [--steps 6] [--seed 1]
Runs the `weir` beside this program, or the one WEIR_BIN names, before two servers, and a third alone.
Exit code 1 when any answer differs. TERM and INT end it once the sessions that run have been compared.";

/// Whether it was told to end.
static IS_ENDED: AtomicBool = AtomicBool::new(false);

/// Time between two progress lines.
const TELL_EVERY: Duration = Duration::from_secs(30);

fn main() {
    let mut plan = Plan { programs: 1_000_000, threads: 4, at_once: 6, most_steps: 6, seed: 1 };
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "programs" => plan.programs = value,
            "threads" => plan.threads = value as usize,
            "at-once" => plan.at_once = value as usize,
            "steps" => plan.most_steps = value,
            "seed" => plan.seed = value,
            _ => return false,
        }
        true
    });
    std::thread::spawn(hears_signals);
    let alone = Mysqld::start("alone", "");
    let pair = Pair::start("programs");
    let weir = weir_for_programs(&pair);
    println!("{plan:?}");
    let begun = Instant::now();
    let mut told = begun;
    let tell = |found: &Found| {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let rate = found.programs as f64 / begun.elapsed().as_secs_f64();
            eprintln!("{} of {} sessions, {rate:.0} a second", found.programs, plan.programs);
        }
        !IS_ENDED.load(Ordering::Relaxed)
    };
    let found = run_plan(plan, &alone, weir.address("auto"), &pair, tell);
    found.different.iter().for_each(|what| println!("{what}"));
    // If one has ended, all its later answers differ.
    [&alone, &pair.primary, &pair.replica]
        .iter()
        .filter_map(|it| it.ended())
        .for_each(|why| println!("{why}"));
    println!(
        "{} sessions, {} answers, {} not known, {} about that, {} refused by a replica, {} different, {:.1} s",
        found.programs,
        found.answers,
        found.not_known,
        found.about_that,
        found.refused_by_replica,
        found.different.len(),
        begun.elapsed().as_secs_f64()
    );
    if !found.different.is_empty() {
        drop((weir, pair, alone));
        std::process::exit(1);
    }
}

/// Servers and Weir end, and their directories are removed, only if this program ends by itself.
fn hears_signals() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).expect("a signal");
        let mut int = signal(SignalKind::interrupt()).expect("a signal");
        loop {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            if IS_ENDED.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
            eprintln!("ends; again to end at once");
        }
    });
}
