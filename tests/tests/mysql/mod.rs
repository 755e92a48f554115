//! MySQL listeners before real servers.

mod access_log;
mod accounts;
mod arrivals;
mod character_sets;
pub mod cluster;
mod compression;
mod diagnostics;
mod drain;
mod ended_programs;
mod failover;
mod globals;
mod kill;
mod leftovers;
mod limits;
mod lost;
mod mariadb;
mod odd_clients;
mod old_clients;
mod own_servers;
mod prepared;
mod probes;
mod programs;
mod proxied;
mod raised_errors;
mod read_only;
mod replication;
mod roles;
mod routines;
mod sessions;
mod stored_code;
mod traffic;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{BEFORE_PAIR, Client, Login, Pair, words_of};

/// Weir before the pair.
fn before(pair: &Pair) -> Weir {
    Setup::of(BEFORE_PAIR).with("primary", pair.primary.address).with("replica", pair.replica.address).start()
}

/// A client of `app`'s at a listener, in the schema `shop`.
fn client(weir: &Weir, listener: &str) -> Client {
    Client::log_in(weir.address(listener), &Login::of("app", "shop")).expect("app is let in")
}

/// What a client program prints of statements that `app` sends in the schema `shop`: all of it, and whether
/// it ended well.
fn said_by(program: &str, address: SocketAddr, options: &[&str], sql: &str) -> (String, bool) {
    let words = words_of(program);
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .args(["--no-defaults", "--user=app", "--database=shop", "--skip-column-names"])
        .args([format!("--host={}", address.ip()), format!("--port={}", address.port())])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(sql.as_bytes()));
        child.wait_with_output().expect("the client ends")
    });
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), output.status.success())
}
