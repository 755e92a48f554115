//! Listeners that are given another pool by a reload: connections stay with the backend that they have.

use std::net::TcpStream;

use weir_tests::dialogue::{Setup, Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::{Talk, VIP, asks, datagram_socket};

/// Listeners of both protocols that lead to `pool`, with these pools before one server each.
fn config(network: &Network, pool: &str, pools: &[(&str, usize)]) -> String {
    let mut text = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    for protocol in ["tcp", "udp"] {
        text += &format!(
            "[listener.{protocol}]\nprotocol = \"{protocol}\"\nbind = \"{VIP}:80\"\nplane = \"kernel\"\npool = \"{pool}\"\n"
        );
    }
    for (name, server) in pools {
        text += &format!("[pool.{name}]\nbackends = [\"{}\"]\n", network.server(*server, 8080, false));
    }
    text
}

fn begin(network: &Network) -> Talk {
    Talk::begin(network, &format!("{VIP}:80"))
}

fn open_flows(weir: &Weir, pool: &str) -> u64 {
    let status = until("its status", || weir.admin().tries_to_read("/v1/status")).json();
    let pools = status["pools"].as_array().expect("pools");
    let found = pools.iter().find(|one| one["name"] == pool).expect("the pool");
    found["backends"][0]["in_flight"].as_u64().expect("a number")
}

#[test]
fn connections_go_on_when_their_listener_gets_another_pool_and_when_theirs_is_renamed() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    let both = [("blue", 1), ("green", 2)];
    let mut weir = Setup::of(&config(&network, "blue", &both)).start();
    let mut first = begin(&network);
    let datagrams = datagram_socket(&network, "10.50.1.2");
    assert_eq!(asks(&datagrams, &format!("{VIP}:80"), b"to the first"), "1");
    weir.reloads(&config(&network, "green", &both));
    first.goes_on(b"its pool is not its listener's any more");
    assert_eq!(asks(&datagrams, &format!("{VIP}:80"), b"and again"), "1");
    let mut second = begin(&network);
    assert_eq!((first.server.as_str(), second.server.as_str()), ("1", "2"));
    until("its flow is counted there", || (open_flows(&weir, "blue") > 0).then_some(()));
    // Renamed, and the other one is gone.
    weir.reloads(&config(&network, "teal", &[("teal", 2)]));
    let mut third = begin(&network);
    assert_eq!(third.server, "2");
    [&mut first, &mut second, &mut third].into_iter().for_each(|talk| talk.goes_on(b"without their pools"));
    weir.reloads(&config(&network, "blue", &both));
    assert_eq!(begin(&network).server, "1");
    [&mut first, &mut second, &mut third].into_iter().for_each(|talk| talk.goes_on(b"back again"));
}

#[test]
fn connections_of_a_pool_that_was_replaced_outlive_a_kill_and_an_upgrade() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&config(&network, "blue", &[("blue", 1)])).start();
    let mut talk = begin(&network);
    weir.reloads(&config(&network, "green", &[("green", 2)]));
    weir.signals(Signal::KILL);
    weir.starts_again();
    talk.goes_on(b"somebody else is there");
    // By an upgrade, and with it to yet another pool.
    let mut other = begin(&network);
    weir.rewrites(&config(&network, "teal", &[("teal", 1)]));
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
    until("the new process to answer", || weir.admin().tries_to_read("/v1/status"));
    talk.goes_on(b"and another");
    other.goes_on(b"that replaced its pool");
    assert_eq!((other.server.as_str(), begin(&network).server.as_str()), ("2", "1"));
    let (new, admin) = (weir.pid(), weir.address("admin"));
    weir.signals_pid(new, Signal::KILL);
    until("it to be gone", || TcpStream::connect(admin).is_err().then_some(()));
    weir.starts_again();
    talk.goes_on(b"killed as well");
    other.goes_on(b"the same");
}

#[test]
fn a_backend_that_leaves_a_pool_which_was_replaced_keeps_its_flows_for_as_long_as_a_drain_may_take() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    let both = [("blue", 1), ("green", 2)];
    let mut weir = Setup::of(&config(&network, "blue", &both)).start();
    let mut talk = begin(&network);
    weir.reloads(&config(&network, "green", &both));
    talk.goes_on(b"its pool is still in the file");
    // And has another backend from now on.
    let others = config(&network, "green", &[("blue", 2), ("green", 2)]);
    weir.reloads(&others);
    talk.goes_on(b"nor is its backend any more");
    weir.reloads(&format!("[runtime]\ndrain = \"1s\"\n{others}"));
    until("it is reset", || {
        use std::io::{Read, Write};
        let _ = talk.stream.write_all(b"?");
        talk.stream.read(&mut [0; 64]).is_err().then_some(())
    });
}
