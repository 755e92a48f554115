//! Attacks on HTTP/2 and HTTP/3 from many connections that reconnect when closed, beside honest traffic whose
//! latency is measured. The program `attack` runs them.
//!
//! Weir has one core; backend, honest clients and attackers share the other, on which attackers run only if
//! nothing else wants to.

mod honest;
mod scene;
mod ways;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use honest::{Honest, Latencies};
pub use scene::{AUTHORITY, Scene};
pub use ways::{WAYS, Way};

/// The size of an attack.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long each phase lasts (seconds): first calm, then attacked.
    pub seconds: u64,
    /// Concurrent attacking connections.
    pub connections: u64,
    /// Honest requests per second, over all clients.
    pub rate: u64,
}

/// What an attacker process has seen.
#[derive(Clone, Debug, Default)]
pub struct Closed {
    /// Connections that were closed, and how long each had attacked.
    pub after: Vec<Duration>,
    /// Connections that were still open when the time was over, having attacked longer than a second.
    pub open: u64,
}

/// The results of one attack.
#[derive(Debug)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// Honest requests before it.
    pub calm: Latencies,
    /// Honest requests beside it.
    pub attacked: Latencies,
    /// What became of the attackers.
    pub closed: Closed,
}

/// Runs one attack: honest traffic alone, then with attackers beside it.
pub fn run(scene: &Scene, plan: Plan, way: &Way) -> Report {
    let time = Duration::from_secs(plan.seconds);
    let honest = |time| Honest::start(scene, way.is_http3, plan.rate).ends_after(time);
    // Warms up connections, caches and the processor's clock.
    honest(Duration::from_millis(500));
    let calm = honest(time);
    let mut attacker = Command::new("chrt");
    let program = std::env::current_exe().expect("own path");
    attacker.args(["--idle", "0"]).arg(program).args(["--attacker", way.name]);
    attacker.arg(scene.address(way.is_http3).to_string()).arg(scene.authority());
    attacker.args([plan.seconds.to_string(), plan.connections.to_string()]);
    let child = attacker.stdout(Stdio::piped()).spawn().expect("chrt, of util-linux");
    let attacked = honest(time);
    let said = child.wait_with_output().expect("an attacker that ends").stdout;
    Report { name: way.name, calm, attacked, closed: parse(&String::from_utf8_lossy(&said)) }
}

fn parse(text: &str) -> Closed {
    let mut closed = Closed::default();
    for line in text.lines() {
        match line.split_once(' ').map(|(word, number)| (word, number.parse())) {
            Some(("closed", Ok(micros))) => closed.after.push(Duration::from_micros(micros)),
            Some(("open", Ok(count))) => closed.open = count,
            _ => {}
        }
    }
    closed.after.sort_unstable();
    closed
}

/// Runs an attacker process: attacks with this many connections for this long, and prints when each was
/// closed.
pub fn attack(way: &Way, address: SocketAddr, authority: &Path, seconds: u64, connections: u64) {
    let until = Instant::now() + Duration::from_secs(seconds);
    let results: Vec<Closed> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|_| scope.spawn(|| again_and_again(way, address, authority, until)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    for closed in &results {
        closed.after.iter().for_each(|after| println!("closed {}", after.as_micros()));
    }
    println!("open {}", results.iter().map(|closed| closed.open).sum::<u64>());
}

fn again_and_again(way: &Way, address: SocketAddr, authority: &Path, until: Instant) -> Closed {
    let mut closed = Closed::default();
    while Instant::now() < until {
        let Some(mut connection) = (way.connect)(address, authority) else { continue };
        let begun = Instant::now();
        let mut number = 0;
        let mut is_open = true;
        while is_open && (Instant::now() < until || begun.elapsed() < Duration::from_secs(1)) {
            is_open = connection.sends(number);
            number += 1;
        }
        if is_open {
            closed.open += 1;
        } else {
            closed.after.push(begun.elapsed());
        }
    }
    closed
}
