//! A connection to a daemon that a firewall on the way has forgotten: what is sent on it goes nowhere, and
//! nobody says so. Needs root.

use std::io::Read as _;
use std::net::TcpListener;

use weir_tests::dialogue::{Backend, ONE_POOL, PATIENCE, Setup, Weir, until_within};
use weir_tests::network::Network;

fn ask(weir: &Weir, path: &str) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    client.receives_status(200);
}

/// Lines used to wait for the end of the connection, which takes a quarter of an hour, and those that found
/// the queue full were lost.
#[test]
fn a_daemon_gets_its_lines_over_another_connection_if_nothing_is_acknowledged_on_the_first() {
    let network = Network::enter(1);
    let address = network.server(1, 601, false);
    let listener = network.on("server1", || TcpListener::bind(address).expect("a port"));
    let backend = Backend::saying("ok");
    let config = format!("[access_log.far]\ntarget = '@tcp'\nline = '$target'\n{ONE_POOL}health = \"off\"");
    let setup = Setup::of(&config).with("app", backend.address());
    let weir = setup.with("tcp", format!("syslog:tcp:{address}")).start();
    ask(&weir, "/before");
    let (mut first, from) = listener.accept().expect("a connection");
    let mut seen = [0; 1024];
    let count = first.read(&mut seen).expect("read");
    assert!(seen[..count].ends_with(b"access - /before"), "{:?}", String::from_utf8_lossy(&seen[..count]));
    for words in [
        "add table inet forgets",
        "add chain inet forgets in { type filter hook input priority 0 ; }",
        &format!("add rule inet forgets in tcp sport {} drop", from.port()),
    ] {
        network.run("server1", &["nft", words]);
    }
    listener.set_nonblocking(true).expect("an option");
    let mut number = 0;
    // It is found out by sending on it.
    let (mut second, _) = until_within(PATIENCE * 4, "another connection", || {
        ask(&weir, &format!("/{number}"));
        number += 1;
        std::thread::sleep(std::time::Duration::from_millis(100));
        listener.accept().ok()
    });
    second.set_nonblocking(false).expect("an option");
    let mut text = String::new();
    let last = format!("access - /{}", number - 1);
    while !text.contains(&last) {
        let count = second.read(&mut seen).expect("read");
        assert!(count > 0, "{text}");
        text += &String::from_utf8_lossy(&seen[..count]);
    }
    for number in 0..number {
        assert!(text.contains(&format!("access - /{number}")), "{number}: {text}");
    }
    for reason in ["queue", "target"] {
        assert_eq!(weir.metric("weir_access_log_missing_total", &[("log", "far"), ("reason", reason)]), 0.0);
    }
}
