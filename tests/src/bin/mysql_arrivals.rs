//! Sends reads and writes through Weir to servers that both accept writes, and fails if a write was executed
//! at the replica.
//!
//! `cargo run -p weir-tests --bin mysql_arrivals -- [--sessions N] [--seed N]`
#![forbid(unsafe_code)]

use weir_tests::dialogue::Setup;
use weir_tests::mysql::{BEFORE_PAIR, send_texts, watched_pair};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str = "usage: mysql_arrivals [--sessions 10000] [--seed 1]
Runs the `weir` beside this program, or the one WEIR_BIN names, before a primary and a replica.
Exit code 1 when the replica has carried out anything but reads.";

fn main() {
    let (mut sessions, mut seed) = (10_000, 1);
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "sessions" => sessions = value,
            "seed" => seed = value,
            _ => return false,
        }
        true
    });
    let pair = watched_pair("arrivals");
    let weir = Setup::of(BEFORE_PAIR)
        .with("primary", pair.primary.address)
        .with("replica", pair.replica.address)
        .start();
    let found = send_texts(sessions, seed, weir.address("auto"), &pair);
    println!("{found:#?}");
    if !found.wrong.is_empty() {
        drop((weir, pair));
        std::process::exit(1);
    }
}
