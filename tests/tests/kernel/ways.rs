//! The way out on a host that does not forward, where the program goes by the host's routes itself: those
//! that there are now.

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::network::Network;

use super::{Talk, VIP, VIP6, asks, config, config_of, datagram_socket};

const LISTENERS: [(&str, &str); 2] = [(VIP, "10.99.0.1"), (VIP6, "fd99::1")];

/// A host that does not forward, and a client with two links to it and an address on neither.
fn network() -> Network {
    let network = Network::enter(1);
    network.greets(1, 8080);
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        network.sets("weir", key, "0");
    }
    let client = network.full("client");
    network.run(
        "weir",
        &["ip", "link", "add", "second", "type", "veth", "peer", "name", "second", "netns", &client],
    );
    for (host, last) in [("weir", 1), ("client", 2)] {
        network.run(host, &["ip", "addr", "add", &format!("10.50.2.{last}/24"), "dev", "second"]);
        network.run(host, &["ip", "addr", "add", &format!("fd50:2::{last}/64"), "dev", "second", "nodad"]);
        network.run(host, &["ip", "link", "set", "second", "up"]);
    }
    // Nobody is asked on a link for what is not on it.
    network.sets("client", "net.ipv4.conf.all.arp_ignore", "1");
    for key in ["all", "second", "uplink"] {
        network.sets("client", &format!("net.ipv4.conf.{key}.rp_filter"), "0");
    }
    for (_, address) in LISTENERS {
        network.run("client", &["ip", "addr", "add", address, "dev", "lo"]);
    }
    network
}

/// The client sends to the listeners by a link: the first or the second.
fn client_sends_by(network: &Network, link: usize) {
    let device = ["uplink", "second"][link - 1];
    for (listener, source) in LISTENERS {
        let gateway = at(listener, link, 1);
        network.run(
            "client",
            &["ip", "route", "replace", listener, "via", &gateway, "dev", device, "src", source],
        );
    }
}

/// The host's route to the client leads by a link.
fn weir_sends_by(network: &Network, link: usize) {
    let device = ["to_client", "second"][link - 1];
    for (listener, client) in LISTENERS {
        network
            .run("weir", &["ip", "route", "replace", client, "via", &at(listener, link, 2), "dev", device]);
    }
}

/// An address of the listener's family on a link.
fn at(listener: &str, link: usize, last: usize) -> String {
    if listener.contains(':') { format!("fd50:{link}::{last}") } else { format!("10.50.{link}.{last}") }
}

fn begin_both(network: &Network) -> [Talk; 2] {
    [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|to| Talk::begin(network, &to))
}

fn no_route(weir: &Weir) -> f64 {
    weir.metric("weir_l4_packets_total", &[("listener", "udp_four"), ("verdict", "drop_no_route")])
}

/// They left by the interface that the client's first packet came by.
#[test]
fn answers_leave_by_the_route_and_not_by_where_the_client_came() {
    let network = network();
    client_sends_by(&network, 2);
    weir_sends_by(&network, 1);
    let weir = Setup::of(&config(&network, 1, "")).start();
    begin_both(&network).iter_mut().for_each(|talk| talk.goes_on(b"around"));
    drop(weir);
}

#[test]
fn a_connection_outlives_the_interface_that_it_came_by_where_a_route_leads_around() {
    let network = network();
    client_sends_by(&network, 2);
    weir_sends_by(&network, 2);
    let weir = Setup::of(&config(&network, 1, "")).start();
    let mut talks = begin_both(&network);
    talks.iter_mut().for_each(|talk| talk.goes_on(b"by the second"));
    weir_sends_by(&network, 1);
    client_sends_by(&network, 1);
    network.run("weir", &["ip", "link", "set", "second", "down"]);
    talks.iter_mut().for_each(|talk| talk.goes_on(b"by the first"));
    drop(weir);
}

/// Each packet kept the flow alive that led to an interface that was gone, and was counted as forwarded.
#[test]
fn a_flow_goes_on_by_a_backends_interface_that_came_anew() {
    let network = network();
    let weir = Setup::of(&config(&network, 1, "health = \"off\"")).start();
    let mut talks = begin_both(&network);
    let to = format!("{VIP}:80");
    let socket = datagram_socket(&network, "10.50.1.2");
    assert_eq!(asks(&socket, &to, b"before"), "1");
    network.run("weir", &["ip", "link", "del", "to_server1"]);
    until("what nobody gets is dropped by name", || {
        socket.send_to(b"lost", &to).unwrap();
        (no_route(&weir) > 0.0).then_some(())
    });
    network.links_again("server1", 11);
    talks.iter_mut().for_each(|talk| talk.goes_on(b"by the second"));
    assert_eq!(asks(&socket, &to, b"after"), "1");
}

#[test]
fn a_connection_goes_on_when_its_interface_becomes_a_port_of_a_bridge() {
    let network = network();
    let text = config_of(&network, 1, "interface = [\"to_*\", \"br*\"]", 8080, "");
    let weir = Setup::of(&text).start();
    let mut talks = begin_both(&network);
    talks.iter_mut().for_each(|talk| talk.goes_on(b"by the interface"));
    for command in [
        "link add br0 type bridge",
        "addr flush dev to_client",
        "link set to_client master br0",
        "addr add 10.50.1.1/24 dev br0",
        "addr add fd50:1::1/64 dev br0 nodad",
        "link set br0 up",
    ] {
        let words: Vec<&str> = std::iter::once("ip").chain(command.split(' ')).collect();
        network.run("weir", &words);
    }
    talks.iter_mut().for_each(|talk| talk.goes_on(b"by the bridge"));
    begin_both(&network).iter_mut().for_each(|talk| talk.goes_on(b"another"));
    drop(weir);
}
