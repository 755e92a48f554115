//! Kills one of three backend processes repeatedly under load, and fails if a client notices more than is
//! unavoidable.
//!
//! `cargo run -p weir-tests --bin kill_one -- [--requests N] [--kills N] [--clients N] [--seed N]`
#![forbid(unsafe_code)]

use weir_tests::storm::{KillPlan, kill_and_restart, numbers_from_arguments, serve_process};

const USAGE: &str = "usage: kill_one [--requests 1000000] [--kills 20] [--clients 12] [--seed 1]
Runs the `weir` beside this program, or the one WEIR_BIN names. Exit code 1 when an idempotent request failed, or any request
was executed twice.";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, address, ledger] = &arguments[..]
        && flag == "--backend"
    {
        let address = address.parse().unwrap_or_else(|_| panic!("{address} is no address"));
        serve_process(address, ledger.as_ref());
    }
    let program = std::env::current_exe().expect("own path");
    let mut plan = KillPlan { requests: 1_000_000, kills: 20, clients: 12, seed: 1, program };
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "requests" => plan.requests = value,
            "kills" => plan.kills = value,
            "clients" => plan.clients = value,
            "seed" => plan.seed = value,
            _ => return false,
        }
        true
    });
    let report = kill_and_restart(&plan);
    print!("{}", report.text());
    std::process::exit(i32::from(report.failed() > 0));
}
