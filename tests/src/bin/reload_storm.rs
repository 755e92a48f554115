//! Reloads and upgrades Weir repeatedly under load, and fails if any client notices.
//!
//! `cargo run -p weir-tests --bin reload_storm -- [--requests N] [--reloads N] [--upgrades N] [--long-lived
//! N] [--clients N] [--http2 N] [--http3 N] [--seed N]`
#![forbid(unsafe_code)]

use weir_tests::storm::{StormPlan, numbers_from_arguments, reload_storm};

const USAGE: &str = "usage: reload_storm [--requests 1000000] [--reloads 100] [--upgrades 10] [--long-lived 20] [--clients 16] [--http2 4] [--http3 4] [--seed 1]
Runs the `weir` beside this program, or the one WEIR_BIN names. Exit code 1 when any request failed.";

fn main() {
    let mut plan = StormPlan::default();
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "requests" => plan.requests = value,
            "reloads" => plan.reloads = value,
            "upgrades" => plan.upgrades = value,
            "long-lived" => plan.long_lived = value,
            "clients" => plan.clients = value,
            "http2" => plan.http2 = value,
            "http3" => plan.http3 = value,
            "seed" => plan.seed = value,
            _ => return false,
        }
        true
    });
    let report = reload_storm(plan);
    print!("{}", report.text());
    std::process::exit(i32::from(report.failed() > 0));
}
