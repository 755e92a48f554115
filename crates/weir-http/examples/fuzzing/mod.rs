//! A loop that mutates seed inputs and checks them, on stable Rust without instrumentation. Inputs that reach
//! an outcome not seen before (the check returns a small number for it) join the corpus.
#![expect(clippy::disallowed_methods, reason = "a run needs its arguments, its seed and a clock")]

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A small generator of known quality (Marsaglia, "Xorshift RNGs", 2003), so that a seed gives the same run
/// anywhere.
#[derive(Clone)]
pub struct Draws(u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() >> 16) as usize % bound }
    }
}

/// Runs `check` on mutations of `seeds` for the seconds that `--seconds` says (10 unless given).
///
/// `check` returns a label of what happened, or says what is wrong. Exit code 1 when anything was found.
pub fn run(
    name: &str,
    seeds: &[&[u8]],
    pieces: &[&[u8]],
    mut check: impl FnMut(&[u8], &mut Draws) -> Result<u64, String>,
) -> ExitCode {
    let given = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let duration = Duration::from_secs(seconds());
    println!("{name}: WEIR_SEED={seed}, {} s, {} seed inputs", duration.as_secs(), seeds.len());
    let mut draws = Draws(seed | 1);
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|bytes| bytes.to_vec()).collect();
    let mut outcomes: HashMap<u64, u64> = HashMap::new();
    let mut found = HashSet::new();
    let (mut executions, mut slowest) = (0_u64, Duration::ZERO);
    // Panics are findings; their backtraces would bury the inputs.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    while start.elapsed() < duration && found.len() < 10 {
        for _ in 0..256 {
            let input = mutate(&corpus, pieces, &mut draws);
            let before = draws.clone();
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| check(&input, &mut draws)))
                .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
            let mut taken = began.elapsed();
            // On a busy machine this thread may have waited for its turn: what is slow must be slow again.
            for _ in 0..3 {
                if taken > slowest.max(Duration::from_millis(1)) {
                    let began = Instant::now();
                    let _ = catch_unwind(AssertUnwindSafe(|| check(&input, &mut before.clone())));
                    taken = taken.min(began.elapsed());
                }
            }
            slowest = slowest.max(taken);
            executions += 1;
            match result {
                Ok(outcome) => {
                    let seen = outcomes.entry(outcome).or_default();
                    *seen += 1;
                    if (*seen == 1 || draws.below(5000) == 0) && corpus.len() < 4096 {
                        corpus.push(input);
                    }
                }
                Err(finding) => {
                    if found.insert(finding.clone()) {
                        println!("finding: {finding}\n  input: \"{}\"", input.escape_ascii());
                    }
                }
            }
        }
    }
    println!(
        "{name}: {executions} executions, {} outcomes, {} inputs kept, slowest {slowest:?}, {} findings",
        outcomes.len(),
        corpus.len(),
        found.len()
    );
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without text")
}

fn seconds() -> u64 {
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix("--seconds=") {
            Some(value) => Some(value.to_owned()),
            None if argument == "--seconds" => arguments.next(),
            None => None,
        };
        if let Some(seconds) = value.and_then(|value| value.parse().ok()) {
            return seconds;
        }
    }
    10
}

fn mutate(corpus: &[Vec<u8>], pieces: &[&[u8]], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = corpus[draws.below(corpus.len())].clone();
    for _ in 0..1 + draws.below(4) {
        let at = draws.below(bytes.len() + 1);
        match draws.below(9) {
            0 if at < bytes.len() => bytes[at] = draws.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            4 => bytes.insert(at, b"\r\n\t :;,\0_%/"[draws.below(11)]),
            5 => {
                let end = at + draws.below(bytes.len() + 1 - at).min(40);
                let copy = bytes[at..end].to_vec();
                let to = draws.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            6 => {
                let other = &corpus[draws.below(corpus.len())];
                let from = draws.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let piece = pieces[draws.below(pieces.len())];
                let end = at + draws.below(2) * piece.len().min(bytes.len() - at);
                bytes.splice(at..end, piece.iter().copied());
            }
        }
    }
    bytes.truncate(2048);
    bytes
}
