//! Attacks Weir in every known way beside honest traffic, and prints how that traffic suffered and how soon
//! attackers were closed.
//!
//! `cargo run --release -p weir-tests --bin attack -- [--seconds N] [--connections N] [--rate N] [--only
//! NUMBER]`
#![forbid(unsafe_code)]

use weir_tests::attack::{Plan, Scene, WAYS, attack, run};
use weir_tests::storm::numbers_from_arguments;

const USAGE: &str = "usage: attack [--seconds 5] [--connections 4] [--rate 1000] [--only NUMBER]
Runs the `weir` beside this program, or the one WEIR_BIN names, on the first core, and everything else on the second. Exit code 1 when an
attacker stayed open for longer than a second.";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, name, address, authority, seconds, connections] = &arguments[..]
        && flag == "--attacker"
    {
        let way = WAYS.iter().find(|way| way.name == name).expect("a way of that name");
        let number = |text: &str| text.parse().expect("a number");
        let address = address.parse().expect("an address");
        return attack(way, address, authority.as_ref(), number(seconds), number(connections));
    }
    let (mut plan, mut only) = (Plan { seconds: 5, connections: 4, rate: 1000 }, None);
    numbers_from_arguments(USAGE, |name, value| {
        match name {
            "seconds" => plan.seconds = value,
            "connections" => plan.connections = value,
            "rate" => plan.rate = value,
            "only" => only = usize::try_from(value).ok(),
            _ => return false,
        }
        true
    });
    let scene = Scene::start();
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>10} {:>5}",
        "attack", "calm p50", "calm p99", "p50", "p99", "closed", "median", "slowest", "open"
    );
    let mut stayed = 0;
    for (number, way) in WAYS.iter().enumerate() {
        if only.is_some_and(|only| only != number) {
            continue;
        }
        let report = run(&scene, plan, way);
        let after = &report.closed.after;
        let slowest = after.last().copied().unwrap_or_default();
        stayed += report.closed.open + u64::from(slowest.as_secs() >= 1);
        println!(
            "{:<28} {:>10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>10} {:>5}",
            report.name,
            format!("{:.0?}", report.calm.quantile(0.5)),
            format!("{:.0?}", report.calm.quantile(0.99)),
            format!("{:.0?}", report.attacked.quantile(0.5)),
            format!("{:.0?}", report.attacked.quantile(0.99)),
            after.len(),
            format!("{:.0?}", after.get(after.len() / 2).copied().unwrap_or_default()),
            format!("{slowest:.0?}"),
            report.closed.open,
        );
    }
    // Dropping it ends its Weir; leaving the process at once would not.
    drop(scene);
    std::process::exit(i32::from(stayed > 0));
}
