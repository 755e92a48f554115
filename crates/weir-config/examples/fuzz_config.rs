//! Breaks configs until the time is up: `fuzz_config --seconds 60`. The seed is printed; `WEIR_SEED` takes it
//! back.
//!
//! Ends with status 1 and the broken file on standard error when one breaks a promise.
#![expect(
    clippy::disallowed_methods,
    reason = "an example is a program: it has a clock, files and arguments"
)]

#[path = "../tests/mutate/mod.rs"]
mod mutate;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn seeds() -> Vec<String> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut seeds = Vec::new();
    // Good files outnumber the bad ones, so that a single mutation often leaves a file that is taken.
    for folder in ["good", "good", "good", "good", "good", "good", "good", "bad"] {
        let entries = std::fs::read_dir(testdata.join(folder)).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let toml = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
        seeds.extend(toml.filter_map(|path| std::fs::read_to_string(path).ok()));
    }
    seeds
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match arguments.as_slice() {
        [] => 10,
        [flag, seconds] if flag == "--seconds" && seconds.parse::<u64>().is_ok() => {
            seconds.parse().unwrap_or(10)
        }
        _ => {
            eprintln!("expected --seconds N");
            return ExitCode::from(2);
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now);
    println!("WEIR_SEED={seed}");
    let seeds = seeds();
    if seeds.is_empty() {
        eprintln!("no file in testdata to begin with");
        return ExitCode::FAILURE;
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut count, mut taken) = (0_u64, 0_u64);
    let mut random = mutate::Seeded(seed);
    while Instant::now() < end {
        let text = mutate::broken(&seeds, &mut random);
        match std::panic::catch_unwind(|| mutate::holds(&text)) {
            Ok(good) => taken += u64::from(good),
            Err(_) => {
                eprintln!("file {count} of seed {seed} breaks a promise:\n{text}");
                return ExitCode::FAILURE;
            }
        }
        count += 1;
    }
    println!("{count} broken files, {taken} of them taken, none broke a promise");
    ExitCode::SUCCESS
}
