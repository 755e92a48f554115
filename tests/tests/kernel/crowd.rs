//! Crowds of connections, while Weir is killed, started, upgraded and told otherwise.
//!
//! `WEIR_LONG=1` has 10,000 connections rather than 1,000, and prints how long starts take; with it goes
//! `--test-threads=1`, for two such crowds have more descriptors than a process may.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use weir_tests::crowd::{Crowd, CrowdServer, sent_again};
use weir_tests::dialogue::{Draws, Sets, Setup, Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::{VIP, VIP6, config};

/// Connections of each family.
fn size() -> usize {
    if std::env::var("WEIR_LONG").is_ok_and(|value| value == "1") { 5_000 } else { 500 }
}

const SERVERS: usize = 3;
const HOSTS: [&str; 4] = ["client", "server1", "server2", "server3"];

fn text(network: &Network, more: &str) -> String {
    config(network, SERVERS, more).replace("flows = 4096", "flows = 32768")
}

fn start(more: &str) -> (Network, Weir, Vec<CrowdServer>, Crowd) {
    let network = Network::enter(SERVERS);
    let program = Path::new(env!("CARGO_BIN_EXE_crowd_server"));
    let servers = (1..=SERVERS).map(|number| CrowdServer::start(&network, program, number, 8080)).collect();
    let weir = Setup::of(&text(&network, more)).start();
    let to: [SocketAddr; 2] = [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|to| to.parse().unwrap());
    let crowd = Crowd::gather(&network, &to, size());
    (network, weir, servers, crowd)
}

/// Does something while all connections talk; none may be lost, and no segment be sent again.
fn while_they_talk(network: &Network, crowd: &mut Crowd, what: impl FnOnce()) {
    let before = HOSTS.map(|host| sent_again(network, host));
    let is_done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let talk = scope.spawn(|| crowd.talks_until(&is_done));
        let end = Sets(&is_done);
        what();
        drop(end);
        talk.join().expect("it does not panic")
    });
    let after = HOSTS.map(|host| sent_again(network, host));
    println!("{} connections talked {rounds} times, {} were lost", crowd.size(), crowd.lost());
    assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    assert_eq!(after, before, "segments sent again, by host");
}

fn killed(weir: &mut Weir) {
    weir.signals(Signal::KILL);
    weir.exits();
}

#[test]
fn a_crowd_of_connections_notices_neither_kills_nor_starts_nor_upgrades() {
    let (network, mut weir, _servers, mut crowd) = start("balance = \"round-robin\"");
    while_they_talk(&network, &mut crowd, || {
        for _ in 0..3 {
            killed(&mut weir);
            weir.starts_again();
        }
        for _ in 0..2 {
            let old = weir.pid();
            weir.signals_pid(old, Signal::USR2);
            until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
            until("the new process to answer", || weir.admin().tries_to_read("/v1/status"));
        }
    });
}

/// A process may die between any two writes.
#[test]
fn a_crowd_of_connections_notices_none_of_twenty_kills_amid_reloads() {
    let (network, mut weir, _servers, mut crowd) = start("balance = \"round-robin\"");
    // Other listeners and pools come first, and would take the numbers that flows go by.
    let other = format!(
        "[listener.another]\nprotocol = \"tcp\"\nbind = \"{VIP}:81\"\nplane = \"kernel\"\npool = \"another\"\n[pool.another]\nbackends = [\"{}\", \"{}\"]\n",
        network.server(2, 8081, false),
        network.server(1, 8081, false)
    );
    let texts = [
        text(&network, "balance = \"round-robin\""),
        other + &text(&network, "balance = \"maglev\"\nhash = { key = \"flow\" }"),
        text(&network, "balance = \"least-connections\""),
    ];
    let mut draws = Draws::new();
    while_they_talk(&network, &mut crowd, || {
        for round in 0..20 {
            weir.rewrites(&texts[round % texts.len()]);
            weir.signals(Signal::HUP);
            let begun = Instant::now();
            let moment = Duration::from_micros(draws.below(20_000));
            while begun.elapsed() < moment {
                std::hint::spin_loop();
            }
            killed(&mut weir);
            weir.starts_again();
        }
    });
}
