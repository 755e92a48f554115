//! Runs one Weir for a long time with mixed traffic, while everything around it changes, and fails if clients
//! notice or if something is left behind.
//!
//! `cargo run -p weir-tests --bin soak -- [--minutes N] [--rate N] [--seed N]`; `lab/soak` does that.
#![forbid(unsafe_code)]

use weir_tests::soak::{SoakPlan, serve_backend, soak};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str = "usage: soak [--minutes 3 | --seconds 180] [--rate 60] [--change-every-ms 2000] [--upgrades 1] [--seed RANDOM] [--keep 0]
Runs the `weir` beside this program, or the one WEIR_BIN names, for so many minutes (or seconds), with so many clients a second.
Without upgrades (0) one process serves all the time. Exit code 1 when anything failed; its logs are then kept,
and always with `--keep 1`.";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, address, ledger] = &arguments[..]
        && flag == "--backend"
    {
        let address = address.parse().unwrap_or_else(|_| panic!("{address} is no address"));
        serve_backend(address, ledger.as_ref());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let keep = std::env::temp_dir().join(format!("weir-soak-{}", std::process::id()));
    let mut plan = SoakPlan {
        seconds: 0,
        rate: 60,
        change_every_ms: 2000,
        upgrades: true,
        seed: u64::from(now.subsec_nanos()),
        program: std::env::current_exe().expect("own path"),
        keep: Some(keep.clone()),
        keep_always: false,
        progress: true,
    };
    let mut minutes = 3;
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "minutes" => minutes = value,
            "seconds" => (plan.seconds, minutes) = (value, 0),
            "rate" => plan.rate = value,
            "change-every-ms" => plan.change_every_ms = value,
            "upgrades" => plan.upgrades = value > 0,
            "seed" => plan.seed = value,
            "keep" => plan.keep_always = value > 0,
            _ => return false,
        }
        true
    });
    plan.seconds += minutes * 60;
    eprintln!("soak: {} s, seed {}", plan.seconds, plan.seed);
    let report = soak(&plan);
    print!("{}", report.text());
    if report.failed() > 0 || plan.keep_always {
        println!("logs are in {}", keep.display());
    }
    std::process::exit(i32::from(report.failed() > 0));
}
