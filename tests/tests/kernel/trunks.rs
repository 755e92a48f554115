//! VLANs and bonds, as hosts in production have them: the program stands at the VLAN's interface, or at the
//! bond's, and what leaves by those has their tag and one of their links. Most of it is seen on kernels that
//! have such interfaces: `make kernels`.

use serde_json::Value;
use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::network::{Network, Trunk};

use super::decapsulate::Decapsulates;
use super::modes::set_up;
use super::{Talk, asks, datagram_socket};

const TO: [(&str, &str); 2] = [("10.0.9.9:443", "10.0.9.100"), ("[fd00:9::9]:443", "fd00:9::100")];
const SERVERS: usize = 2;

/// Listeners of both protocols and families by `forward`.
fn config(network: &Network, forward: &str, of_listener: &str) -> String {
    let mut text = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    for (name, (to, _), source) in [("four", TO[0], "10.0.0.254"), ("six", TO[1], "fd00::fe")] {
        let source = match forward {
            "full-nat" => format!("source_address = \"{source}\"\n"),
            _ => String::new(),
        };
        for protocol in ["tcp", "udp"] {
            text += &format!(
                "[listener.{protocol}_{name}]\nprotocol = \"{protocol}\"\nbind = \"{to}\"\nplane = \"kernel\"\n\
                 forward = \"{forward}\"\n{source}{of_listener}\npool = \"{name}\"\n"
            );
        }
        let backend = |server: usize| match name {
            "four" => format!("\"10.0.0.{server}:443\""),
            _ => format!("\"[fd00::{server}]:443\""),
        };
        let backends: Vec<String> = (1..=SERVERS).map(backend).collect();
        text += &format!("[pool.{name}]\nbackends = [{}]\nbalance = \"round-robin\"\n", backends.join(", "));
    }
    text
}

/// Has the servers greet; where answers go past Weir, at the listeners' addresses as well.
fn greets(network: &Network, forward: &str) -> Vec<Decapsulates> {
    let mut decapsulates = Vec::new();
    for server in 1..=SERVERS {
        let host = format!("server{server}");
        for address in [format!("10.0.0.{server}"), format!("fd00::{server}")] {
            network.greets_at(server, address.parse().expect("an address"), 443);
        }
        if !matches!(forward, "dsr" | "ipip") {
            continue;
        }
        network.sets(&host, "net.ipv4.conf.all.arp_ignore", "1");
        for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.eth0.rp_filter"] {
            network.sets(&host, key, "0");
        }
        // From Weir's own host, which has the listeners' addresses, clients would not get them.
        network.run(&host, &["ip", "route", "replace", "default", "via", "10.0.0.253"]);
        network.run(&host, &["ip", "-6", "route", "replace", "default", "via", "fd00::fd"]);
        for vip in ["10.0.9.9/32", "fd00:9::9/128"] {
            network.run(&host, &["ip", "addr", "add", vip, "dev", "lo"]);
            let address = vip.split('/').next().expect("an address");
            network.greets_at(server, address.parse().expect("an address"), 443);
        }
        if forward == "ipip" {
            let words = "--from 10.0.0.254 --from fd00::fe --to 10.0.9.9 --to fd00:9::9";
            decapsulates.push(Decapsulates::start(network, server, "eth0", words));
        }
    }
    decapsulates
}

/// Connections, more than a segment at a time, and datagrams, by both families and at both backends.
fn goes_through(network: &Network, largest: usize) {
    for (to, from) in TO {
        let mut talks: Vec<Talk> = (0..4)
            .map(|_| until("a connection", || Talk::try_begin(network, to.parse().unwrap()).ok()))
            .collect();
        for server in ["1", "2"] {
            assert!(talks.iter().any(|talk| talk.server == server), "{to} {server}");
        }
        for talk in &mut talks {
            (0..4).for_each(|_| talk.goes_on(&vec![b'x'; 60_000]));
        }
        let socket = datagram_socket(network, from);
        for size in [1, 500, largest] {
            asks(&socket, to, &vec![b'u'; size]);
        }
    }
}

fn too_big(weir: &Weir) -> f64 {
    let of =
        |listener| weir.metric("weir_l4_packets_total", &[("listener", listener), ("verdict", "too_big")]);
    of("tcp_four") + of("tcp_six")
}

fn is_served(trunk: Trunk, forward: &str) {
    let Some(network) = Network::behind_switch(SERVERS, trunk) else { return };
    let _decapsulates = greets(&network, forward);
    let weir = Setup::of(&config(&network, forward, "")).start();
    goes_through(&network, 1400);
    // What Weir answers itself goes back by the VLAN, too: clients learn of a link that takes less.
    let before = too_big(&weir);
    network.run("weir", &["ip", "link", "set", &trunk.back(), "mtu", "1340"]);
    goes_through(&network, 1200);
    until("clients were told", || (too_big(&weir) > before).then_some(()));
    for interface in [trunk.front(), trunk.back()] {
        assert_eq!(weir.metric("weir_l4_attached", &[("interface", &interface)]), 1.0);
    }
}

const VLANS: Trunk = Trunk { bond: None, has_vlans: true, is_within: false };

#[test]
fn clients_and_backends_in_vlans_are_served_by_nat() {
    is_served(VLANS, "nat");
}

#[test]
fn clients_and_backends_in_vlans_are_served_by_full_nat() {
    is_served(VLANS, "full-nat");
}

#[test]
fn clients_and_backends_in_vlans_are_served_by_dsr() {
    is_served(VLANS, "dsr");
}

#[test]
fn clients_and_backends_in_vlans_are_served_by_ipip() {
    is_served(VLANS, "ipip");
}

#[test]
fn clients_and_backends_in_vlans_within_another_are_served() {
    for forward in ["nat", "ipip"] {
        is_served(Trunk { is_within: true, ..VLANS }, forward);
    }
}

#[test]
fn a_bond_is_served_and_a_link_of_it_that_fails_takes_no_connection_along() {
    for (mode, forward) in
        [("active-backup", "nat"), ("802.3ad", "nat"), ("802.3ad", "ipip"), ("active-backup", "dsr")]
    {
        let trunk = Trunk { bond: Some(mode), ..Trunk::default() };
        let Some(network) = Network::behind_switch(SERVERS, trunk) else { return };
        let _decapsulates = greets(&network, forward);
        let weir = Setup::of(&config(&network, forward, "")).start();
        goes_through(&network, 1400);
        let mut talks: Vec<Talk> = TO.iter().map(|(to, _)| Talk::begin(&network, to)).collect();
        network.run("weir", &["ip", "link", "set", "eth0", "down"]);
        talks.iter_mut().for_each(|talk| talk.goes_on(b"by the other link"));
        network.run("weir", &["ip", "link", "set", "eth0", "up"]);
        talks.iter_mut().for_each(|talk| talk.goes_on(b"by both"));
        assert_eq!(weir.metric("weir_l4_attached", &[("interface", "bond0")]), 1.0);
        assert_eq!(weir.metric("weir_l4_attachments_lost_total", &[]), 0.0);
    }
}

/// As the page has it, but for the directory. The switch keeps what has no tag from either VLAN.
#[test]
fn the_guides_vlans_on_a_bond_are_served() {
    let trunk = Trunk { bond: Some("802.3ad"), has_vlans: true, is_within: false };
    let Some(network) = Network::behind_switch(SERVERS, trunk) else { return };
    let _decapsulates = greets(&network, "nat");
    let kernel = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    let weir = Setup::of(&(set_up("VLANs and bonds") + &kernel)).start();
    let mut talks: Vec<Talk> = (0..16)
        .map(|_| until("a connection", || Talk::try_begin(&network, TO[0].0.parse().unwrap()).ok()))
        .collect();
    network.run("weir", &["ip", "link", "set", "eth1", "down"]);
    talks.iter_mut().for_each(|talk| talk.goes_on(&vec![b'x'; 60_000]));
    assert_eq!(weir.command(&["check"]).stderr, "");
}

/// A switch that does not know where Weir is sends a frame by all of its ports. The program stood at each of
/// the two that were named, and so the backend got it twice.
#[test]
fn a_frame_that_comes_by_both_links_of_a_bond_is_forwarded_once() {
    let trunk = Trunk { bond: Some("active-backup"), ..Trunk::default() };
    let Some(network) = Network::behind_switch(SERVERS, trunk) else { return };
    let _decapsulates = greets(&network, "nat");
    for port in ["p0", "p1"] {
        network.run("switch", &["ip", "link", "set", port, "type", "bridge_slave", "learning", "off"]);
    }
    network.run("switch", &["ip", "link", "set", "trunk", "type", "bridge", "fdb_flush"]);
    let weir = Setup::of(&config(&network, "nat", "interface = [\"eth0\", \"eth1\"]")).start();
    let reaches = |count: usize| {
        let labels = [("listener", "udp_four"), ("verdict", "to_backend")];
        weir.reaches("weir_l4_packets_total", &labels, count as f64);
        assert_eq!(weir.metric("weir_l4_packets_total", &labels), count as f64);
    };
    let socket = datagram_socket(&network, TO[0].1);
    for count in 1..=5 {
        asks(&socket, TO[0].0, b"once");
        reaches(count);
    }
    assert_eq!(weir.metric("weir_l4_attached", &[("interface", "bond0")]), 1.0);
    assert_eq!(weir.command(&["check"]).stderr, "");
}

fn reason(weir: &Weir) -> Value {
    weir.admin().reads("/v1/status").json()["listeners"][0]["plane_reason"].clone()
}

/// Nothing said that the frames of a VLAN are not those of the interface below it.
#[test]
fn a_listeners_address_on_a_vlan_of_a_named_interface_is_told_of() {
    let Some(network) = Network::behind_switch(SERVERS, VLANS) else { return };
    let _decapsulates = greets(&network, "nat");
    let text = |names: &str| config(&network, "nat", &format!("interface = [{names}]"));
    let mut weir = Setup::of(&text("\"eth0\", \"eth0.200\"")).start();
    let why = "10.0.9.9 is on eth0.100, whose frames are not those of eth0: name eth0.100 in `interface` as well, or clients that come by it are left to this host";
    until("status says so", || (reason(&weir) == why).then_some(()));
    let checked = weir.command(&["check"]);
    assert!(checked.stderr.contains(&format!("warning: listener `tcp_four`: {why}")), "{checked:?}");
    weir.reloads(&text("\"eth0\", \"eth0.*\""));
    until("status says nothing more", || (reason(&weir) == Value::Null).then_some(()));
    goes_through(&network, 1400);
}

/// It was attached to, and clients' connections were reset by the host: the program found no packet behind
/// the tag.
#[test]
fn a_vlan_that_leaves_its_tag_in_frames_is_told_of_until_it_does_not() {
    let Some(network) = Network::behind_switch(SERVERS, VLANS) else { return };
    let _decapsulates = greets(&network, "nat");
    let set = |value: &str| {
        network.run("weir", &["ip", "link", "set", "eth0.100", "type", "vlan", "reorder_hdr", value]);
    };
    set("off");
    let mut weir = Setup::of(&config(&network, "nat", "interface = [\"eth0.100\", \"eth0.200\"]")).start();
    let why = "eth0.100 leaves the tag of its VLAN in frames, which the kernel plane does not read: `ip link set eth0.100 type vlan reorder_hdr on`";
    until("status says so", || (reason(&weir) == why).then_some(()));
    let checked = weir.command(&["check"]);
    assert!(checked.stderr.contains(&format!("warning: listener `tcp_four`: {why}")), "{checked:?}");
    weir.reloads(&config(&network, "nat", ""));
    until("status says so where none is named", || (reason(&weir) == why).then_some(()));
    set("on");
    until("status says nothing more", || (reason(&weir) == Value::Null).then_some(()));
    goes_through(&network, 1400);
}
