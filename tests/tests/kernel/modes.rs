//! The set-ups of the guide for each way of forwarding, run as they are written there, between the hosts that
//! they are for.

use std::collections::BTreeSet;

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::network::Network;

use super::decapsulate::Decapsulates;
use super::{Talk, asks, datagram_socket};

/// The first config below a heading of the guide's page.
pub fn set_up(heading: &str) -> String {
    // Within the binary, which `make kernels` takes to hosts without the source.
    let page = include_str!("../../../docs/guide/kernel-plane.md");
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).expect("the page has the heading");
    let (_, config) = below.split_once("```toml\n").expect("a config stands below it");
    config.split_once("```").expect("it ends").0.to_owned()
}

/// Starts what the guide has below a heading, and the same listeners for udp.
fn start(network: &Network, heading: &str) -> Weir {
    let guide = set_up(heading);
    let listeners = guide.split("[pool.").next().expect("pools stand last");
    let of_udp = listeners.replace("[listener.", "[listener.udp_").replace("\"tcp\"", "\"udp\"");
    let kernel = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    Setup::of(&(guide.clone() + &of_udp + &kernel)).start()
}

/// The addresses that the guide has: of Weir's host beside its own, and of two backends.
fn addresses(network: &Network, of_weir: &[&str]) {
    for address in of_weir {
        network.run("weir", &["ip", "addr", "add", address, "dev", "lo"]);
    }
    for server in 1..=2 {
        let host = format!("server{server}");
        for (address, via) in [
            (format!("10.0.0.{server}"), format!("10.50.{}.2", 10 + server)),
            (format!("fd00::{server}"), format!("fd50:{}::2", 10 + server)),
        ] {
            network.run(&host, &["ip", "addr", "add", &address, "dev", "uplink"]);
            network.run("weir", &["ip", "route", "add", &address, "via", &via]);
        }
    }
}

/// Connections, a large transfer and datagrams, by both families.
fn goes_through(network: &Network) {
    for (to, from) in [("10.0.9.9:443", "0.0.0.0"), ("[fd00:9::9]:443", "::")] {
        let servers: BTreeSet<String> = (0..16)
            .map(|_| {
                let mut talk = Talk::begin(network, to);
                talk.goes_on(b"hello");
                talk.server
            })
            .collect();
        assert_eq!(servers.len(), 2, "{to}");
        let mut talk = Talk::begin(network, to);
        (0..40).for_each(|_| talk.goes_on(&vec![b'x'; 100_000]));
        let socket = datagram_socket(network, from);
        let first = asks(&socket, to, b"one");
        for size in [1, 500, 1400] {
            assert_eq!(asks(&socket, to, &vec![b'u'; size]), first, "a flow stays with its backend");
        }
    }
}

#[test]
fn the_guides_direct_server_return_has_backends_answer_past_the_plane() {
    let network = Network::enter(2);
    for server in 1..=2 {
        let host = format!("server{server}");
        for (address, vip) in
            [(format!("10.0.0.{server}"), "10.0.9.9"), (format!("fd00::{server}"), "fd00:9::9")]
        {
            network.run(&host, &["ip", "addr", "add", &address, "dev", "uplink"]);
            network.run(&host, &["ip", "addr", "add", vip, "dev", "lo"]);
            // On the link, not behind the server's other address.
            network.run("weir", &["ip", "route", "add", &address, "dev", &format!("to_{host}")]);
            for at in [address.as_str(), vip] {
                network.greets_at(server, at.parse().expect("an address"), 443);
            }
        }
        for key in ["net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce"] {
            network.sets(&host, key, if key.ends_with("ignore") { "1" } else { "2" });
        }
    }
    let weir = start(&network, "Direct server return: answers go past Weir");
    goes_through(&network);
    until("packets to be counted", || {
        let labels = [("listener", "web"), ("verdict", "to_backend")];
        (weir.metric("weir_l4_packets_total", &labels) > 0.0).then_some(())
    });
    let back = weir.metric("weir_l4_packets_total", &[("listener", "web"), ("verdict", "to_client")]);
    assert_eq!(back, 0.0);
}

/// Between Weir and its backends is a router, and behind that the links are narrower than those of clients.
#[test]
fn the_guides_ip_in_ip_reaches_backends_behind_a_router_of_narrow_links() {
    let network = Network::enter(3);
    for address in ["10.0.0.5/32", "fd00::5/128"] {
        network.run("weir", &["ip", "addr", "add", address, "dev", "lo"]);
    }
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        network.sets("server3", key, "1");
    }
    let mut decapsulate = Vec::new();
    for server in 1..=2 {
        let host = format!("server{server}");
        network.links("server3", &host, server);
        for (at, device) in [("server3", format!("to_{host}")), (host.as_str(), "to_server3".to_owned())] {
            network.run(at, &["ip", "link", "set", &device, "mtu", "1400"]);
        }
        for (address, vip, router, behind) in [
            (format!("10.0.0.{server}"), "10.0.9.9", "10.50.13.2", format!("10.60.{server}.2")),
            (format!("fd00::{server}"), "fd00:9::9", "fd50:13::2", format!("fd60:{server}::2")),
        ] {
            network.run(&host, &["ip", "addr", "add", &address, "dev", "to_server3"]);
            network.run(&host, &["ip", "addr", "add", vip, "dev", "lo"]);
            network.run("weir", &["ip", "route", "add", &address, "via", router]);
            network.run("server3", &["ip", "route", "add", &address, "via", &behind]);
            for at in [address.as_str(), vip] {
                network.greets_at(server, at.parse().expect("an address"), 443);
            }
        }
        for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.to_server3.rp_filter"] {
            network.sets(&host, key, "0");
        }
        let words = "--from 10.0.0.5 --from fd00::5 --to 10.0.9.9 --to fd00:9::9";
        decapsulate.push(Decapsulates::start(&network, server, "to_server3", words));
    }
    let weir = start(&network, "IP-in-IP: answers go past Weir, and backends may be behind routers");
    goes_through(&network);
    for (listener, verdict) in [("web", "to_backend"), ("web6", "to_backend"), ("web", "icmp_to_client")] {
        until("packets to be counted", || {
            let labels = [("listener", listener), ("verdict", verdict)];
            (weir.metric("weir_l4_packets_total", &labels) > 0.0).then_some(())
        });
    }
    let back = weir.metric("weir_l4_packets_total", &[("listener", "web"), ("verdict", "to_client")]);
    assert_eq!(back, 0.0);
    for one in decapsulate {
        let said = one.ends();
        assert!(said.starts_with("taken_off ") && !said.starts_with("taken_off 0,"), "{said}");
        assert!(said.trim_end().ends_with("drop_refused 0"), "{said}");
    }
}

#[test]
fn the_guides_ranges_of_ports_reach_the_port_that_was_asked() {
    let network = Network::enter(2);
    addresses(&network, &[]);
    for server in 1..=2 {
        for port in [21, 30_000, 30_050, 30_100] {
            network.greets_at(server, format!("10.0.0.{server}").parse().expect("an address"), port);
        }
        for port in [16_384, 17_383, 8080] {
            network.greets_at(server, format!("fd00::{server}").parse().expect("an address"), port);
        }
    }
    let kernel = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    let weir = Setup::of(&(set_up("Ranges of ports") + &kernel)).start();
    until("probes to hear their answers", || {
        let status = weir.admin().reads("/v1/status").json();
        let pools = status["pools"].as_array()?.clone();
        let mut backends = pools.iter().filter_map(|pool| pool["backends"].as_array()).flatten();
        backends.all(|backend| backend["probes"]["good_count"].as_u64() > Some(0)).then_some(())
    });
    let mut talks: Vec<Talk> = Vec::new();
    for port in [21, 30_000, 30_050, 30_100] {
        let mut talk = Talk::begin(&network, &format!("10.0.9.9:{port}"));
        talk.goes_on(&vec![b'x'; 50_000]);
        let client = talk.stream.local_addr().unwrap();
        let found = weir.admin().reads(&format!("/v1/flows?client={client}")).json();
        assert_eq!(found["flows"][0]["backend"], format!("10.0.0.{}:{port}", talk.server), "{found}");
        talks.push(talk);
    }
    let server = talks[0].server.clone();
    assert!(talks.iter().all(|talk| talk.server == server), "a client stays with its backend at all ports");
    let of_server = weir.admin().reads(&format!("/v1/flows?backend=10.0.0.{server}")).json();
    assert_eq!(of_server["matching"], 4, "{of_server}");

    let socket = datagram_socket(&network, "::");
    let asked = [16_384, 17_383].map(|port| asks(&socket, &format!("[fd00:9::9]:{port}"), b"one"));
    assert_eq!(asked[0], asked[1]);

    let explained = weir.command(&["explain", "tcp", "10.50.1.2:4000", "10.0.9.9:30077"]);
    assert!(explained.stdout.contains(&format!("10.0.0.{server} takes it")), "{explained:?}");
    assert!(explained.stdout.contains(&format!("to 10.0.0.{server}:30077")), "{explained:?}");
    let beside = weir.command(&["explain", "tcp", "10.50.1.2:4000", "10.0.9.9:30101"]);
    assert!(beside.code != 0 && beside.stderr.contains("no TCP listener"), "{beside:?}");
    let status = weir.admin().reads("/v1/status").json();
    let backend = &status["pools"][0]["backends"][0];
    assert_eq!((&backend["address"], &backend["resolved"]), (&"10.0.0.1".into(), &"10.0.0.1".into()));
    assert_eq!(status["listeners"][0]["bind"][1], "10.0.9.9:30000-30100");
}

#[test]
fn the_guides_full_nat_serves_clients_that_backends_have_no_route_to() {
    let network = Network::enter(2);
    addresses(&network, &["10.0.0.5/32", "fd00::5/128"]);
    for server in 1..=2 {
        let host = format!("server{server}");
        let net = 10 + server;
        network.run(&host, &["ip", "route", "del", "default"]);
        network.run(&host, &["ip", "-6", "route", "del", "default"]);
        network.run(&host, &["ip", "route", "add", "10.0.0.5", "via", &format!("10.50.{net}.1")]);
        network.run(&host, &["ip", "route", "add", "fd00::5", "via", &format!("fd50:{net}::1")]);
        for address in [format!("10.0.0.{server}"), format!("fd00::{server}")] {
            network.greets_at(server, address.parse().expect("an address"), 443);
        }
    }
    let weir = start(&network, "full-NAT: backends need no route to clients");
    goes_through(&network);
    until("probes to hear their answers", || {
        let status = weir.admin().reads("/v1/status").json();
        let pools = status["pools"].as_array()?.clone();
        let mut backends = pools.iter().filter_map(|pool| pool["backends"].as_array()).flatten();
        backends.all(|backend| backend["probes"]["good_count"].as_u64() > Some(0)).then_some(())
    });
}
