//! Whom a listener lets in: lists of networks, of which the longest prefix decides.

use std::net::IpAddr;

use weir_l4::layout::{ADMITTED, DENIED, Network, Verdict};

use crate::frames::Packet;
use crate::kinds::{Kind, each_kind};
use crate::namespace::{BACKENDS, CLIENTS, NARROW};

each_kind! {
    a_client_that_is_denied_begins_no_flow
    where_some_are_allowed_all_others_are_denied
    the_longest_prefix_decides
    a_list_is_of_its_own_listener
    a_flow_goes_on_when_its_client_is_denied_later
    a_listener_takes_new_flows_by_its_own_interfaces_alone
    a_flow_goes_on_by_an_interface_that_is_not_its_listeners
    fragments_by_an_interface_that_is_not_the_listeners_are_left_alone
}

/// A network of so many of the client's leading bits.
fn around(kind: Kind, bits: u8) -> (IpAddr, u8) {
    (kind.client(7).ip(), bits)
}

fn a_client_that_is_denied_begins_no_flow(kind: Kind) {
    let mut plane = kind.plane();
    let (address, bits) = around(kind, 24);
    plane.admits(Network::of(0, address, bits), DENIED);
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropDenied);
    assert_eq!(plane.remembered(), 0);
}

fn where_some_are_allowed_all_others_are_denied(kind: Kind) {
    let mut plane = kind.plane();
    plane.admits(Network::all(0), DENIED);
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropDenied);
    let (address, bits) = around(kind, 24);
    plane.admits(Network::of(0, address, bits), ADMITTED);
    assert!(plane.run(CLIENTS, &kind.first().frame()).was_sent());
}

fn the_longest_prefix_decides(kind: Kind) {
    let whole = if kind.is_ip4 { 32 } else { 128 };
    let mut plane = kind.plane();
    let client = kind.client(7).ip();
    plane.admits(Network::of(0, client, 8), ADMITTED);
    plane.admits(Network::of(0, client, 16), DENIED);
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropDenied);
    plane.admits(Network::of(0, client, whole), ADMITTED);
    assert!(plane.run(CLIENTS, &kind.first().frame()).was_sent());
}

fn a_list_is_of_its_own_listener(kind: Kind) {
    let mut plane = kind.plane();
    plane.admits(Network::all(1), DENIED);
    assert!(plane.run(CLIENTS, &kind.first().frame()).was_sent());
}

fn a_flow_goes_on_when_its_client_is_denied_later(kind: Kind) {
    let mut plane = kind.flowing();
    plane.admits(Network::all(0), DENIED);
    assert!(plane.run(CLIENTS, &kind.later().frame()).was_sent());
    assert!(plane.run(BACKENDS, &kind.answer().frame()).was_sent());
}

/// A first packet as it comes in by the other interface of clients.
fn by_another(kind: Kind) -> Packet {
    Packet { to_mac: NARROW.mac, ..kind.first() }
}

/// Clients that came by an interface of other listeners were served.
fn a_listener_takes_new_flows_by_its_own_interfaces_alone(kind: Kind) {
    let mut plane = kind.plane();
    plane.confine(kind.listener(0), kind.protocol, CLIENTS);
    plane.run(NARROW, &by_another(kind).frame()).untouched();
    assert_eq!(plane.remembered(), 0);
    kind.open(&mut plane);
}

fn a_flow_goes_on_by_an_interface_that_is_not_its_listeners(kind: Kind) {
    let mut plane = kind.flowing();
    plane.confine(kind.listener(0), kind.protocol, CLIENTS);
    let later = Packet { to_mac: NARROW.mac, ..kind.later() };
    assert!(plane.run(NARROW, &later.frame()).was_sent());
}

fn fragments_by_an_interface_that_is_not_the_listeners_are_left_alone(kind: Kind) {
    let mut plane = kind.plane();
    plane.confine(kind.listener(0), kind.protocol, CLIENTS);
    for fragment in by_another(kind).with_payload(1_000).fragments(&[512]) {
        plane.run(NARROW, &fragment).untouched();
    }
}
