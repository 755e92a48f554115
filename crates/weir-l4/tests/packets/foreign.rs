//! What is none of our business stays as it came, byte for byte, for the next program and the host.

use std::net::IpAddr;

use weir_l4::layout::{Algorithm, TCP, UDP, Verdict};

use crate::frames::{ACK, Ip};
use crate::kinds::{Kind, TCP4, TCP6, UDP4, each_kind, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS, NARROW};

each_kind! {
    frames_for_other_mac_addresses_are_untouched
    broadcast_and_multicast_frames_are_untouched
    frames_of_a_vlan_are_untouched
    other_ports_and_addresses_are_untouched
    other_protocols_are_untouched
    packets_of_the_other_protocol_are_untouched
    frames_of_the_other_ethertype_are_untouched
    port_zero_is_untouched
    a_stranger_behind_the_backends_is_untouched
    an_answer_to_this_host_itself_is_untouched
    a_plane_without_listeners_touches_nothing
    a_wrong_version_is_untouched
    a_flow_found_at_another_interface_goes_on
}

each_kind_of_nat! {
    packets_of_two_listeners_reach_their_own_pools
}

fn frames_for_other_mac_addresses_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    for mac in [[2, 0, 0, 0, 1, 2], BACKENDS.mac, NARROW.mac, [2, 0, 0, 0, 0x11, 1], [0; 6]] {
        let (mut first, mut later) = (kind.first(), kind.later());
        first.to_mac = mac;
        first.source_port += 1;
        later.to_mac = mac;
        plane.run(CLIENTS, &first.frame()).untouched();
        plane.run(CLIENTS, &later.frame()).untouched();
    }
}

fn broadcast_and_multicast_frames_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        let mut packet = kind.later();
        packet.to_mac = mac;
        plane.run(CLIENTS, &packet.frame()).untouched();
    }
}

/// Tagged, and tagged twice. A tag that the device has taken off is not the runner's to give.
fn frames_of_a_vlan_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &[0x81, 0, 0, 0]] {
        let frame = kind.later().frame();
        plane.run(CLIENTS, &[&frame[..12], tags, &frame[12..]].concat()).untouched();
    }
}

fn other_ports_and_addresses_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    for (address, port) in [(0, 81), (0, 79), (0, 0x5000), (1, 80), (3, 8080), (0, 8080)] {
        let mut packet = kind.later();
        packet.ip.destination = kind.listener(address).ip();
        packet.destination_port = port;
        plane.run(CLIENTS, &packet.frame()).untouched();
    }
}

fn other_protocols_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later();
    // IGMP, IP-in-IP, DCCP, GRE, ESP, AH, no next header, SCTP, UDP-Lite, 255.
    for protocol in [2, 4, 33, 41, 47, 50, 51, 59, 132, 136, 255] {
        let bytes = packet.ip.around(protocol, &packet.transport());
        plane.run(CLIENTS, &packet.framed(&bytes)).untouched();
    }
}

fn packets_of_the_other_protocol_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later();
    packet.protocol = if kind.protocol == TCP { UDP } else { TCP };
    plane.run(CLIENTS, &packet.frame()).untouched();
}

/// ARP, PPPoE, LLDP, MPLS, and IP of the other family around the same bytes.
fn frames_of_the_other_ethertype_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let other_family = if kind.is_ip4 { 0x86dd_u16 } else { 0x0800 };
    for ethertype in [0x0806, 0x8864, 0x88cc, 0x8847, 0x0001, other_family] {
        // The runner wants room for a whole IPv6 header.
        let mut frame = kind.later().with_payload(40).frame();
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        plane.run(CLIENTS, &frame).untouched();
    }
}

/// Nobody listens there, and in the maps it stands for all of an address.
fn port_zero_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later();
    packet.destination_port = 0;
    plane.run(CLIENTS, &packet.frame()).untouched();
    let mut answer = kind.answer();
    answer.source_port = 0;
    plane.run(BACKENDS, &answer.frame()).untouched();
}

fn a_stranger_behind_the_backends_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.answer();
    packet.ip.source = kind.backend(5).ip();
    plane.run(BACKENDS, &packet.frame()).untouched();
    let mut packet = kind.answer();
    packet.source_port = 22;
    packet.flags = ACK;
    plane.run(BACKENDS, &packet.frame()).untouched();
}

/// An answer to a probe of Weir's own, which has no flow.
fn an_answer_to_this_host_itself_is_untouched(kind: Kind) {
    let mut plane = kind.plane();
    let mut answer = kind.answer();
    answer.ip.destination = kind.host(2, 200).ip();
    plane.host_address(answer.ip.destination);
    plane.run(BACKENDS, &answer.frame()).untouched();
}

fn a_plane_without_listeners_touches_nothing(kind: Kind) {
    let mut plane = kind.empty_plane();
    plane.run(CLIENTS, &kind.first().frame()).untouched();
    plane.run(BACKENDS, &kind.answer().frame()).untouched();
}

fn a_wrong_version_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    for version in (0..16).filter(|version| *version != if kind.is_ip4 { 4 } else { 6 }) {
        let mut frame = kind.later().frame();
        frame[14] = version << 4 | frame[14] & 15;
        plane.run(CLIENTS, &frame).untouched();
    }
}

fn packets_of_two_listeners_reach_their_own_pools(kind: Kind) {
    let mut plane = kind.plane();
    plane.backend(1, kind.backend(1));
    plane.pool(1, Algorithm::Turns, &[1]);
    plane.listener(1, kind.listener(1), kind.protocol, 1, &[1]);
    kind.open(&mut plane);
    let first = kind.packet(kind.client(7), kind.listener(1));
    let expected = first.translated(kind.client(7), kind.backend(1));
    plane.run(CLIENTS, &first.frame()).forwarded_of(1, Verdict::ToBackend, &expected.frame());
    let mut answer = kind.answer();
    answer.ip.source = kind.backend(1).ip();
    let expected = answer.translated(kind.listener(1), kind.client(7));
    plane.run(BACKENDS, &answer.frame()).forwarded_of(1, Verdict::ToClient, &expected.frame());
}

/// Ways are not the same in both directions, and interfaces come and go.
fn a_flow_found_at_another_interface_goes_on(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later();
    packet.to_mac = NARROW.mac;
    plane.run(NARROW, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
}

#[test]
fn arp_is_untouched() {
    let mut plane = TCP4.flowing();
    let request = [
        &[0xff; 6][..],
        &CLIENTS.neighbour,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &CLIENTS.neighbour,
        &[10, 1, 0, 9],
        &[0; 6],
        &[192, 0, 2, 1],
    ]
    .concat();
    plane.run(CLIENTS, &request).untouched();
    let to_us = [&CLIENTS.mac[..], &request[6..]].concat();
    plane.run(CLIENTS, &to_us).untouched();
}

/// Neighbour discovery for the listener's own address.
#[test]
fn a_neighbour_solicitation_is_untouched() {
    let kind = TCP6;
    let ip = Ip::new(kind.client(7).ip(), kind.listener(0).ip());
    let message = [vec![135, 0, 0, 0, 0, 0, 0, 0], vec![0xfe; 16]].concat();
    let packet = ip.around(crate::frames::ICMP6, &crate::frames::with_icmp_sum(&ip, message, 0));
    kind.flowing().run(CLIENTS, &kind.later().framed(&packet)).untouched();
}

/// RFC 4459 and others carry IP in UDP: what is inside is nobody's before it is taken out.
#[test]
fn a_listeners_packet_inside_a_tunnel_is_untouched() {
    let inner = TCP4.later().bytes();
    let mut outer = UDP4.packet(TCP4.client(7), TCP4.listener(2));
    outer.destination_port = 4789;
    outer.payload = inner.clone();
    TCP4.flowing().run(CLIENTS, &outer.frame()).untouched();
    let ip = Ip::new(TCP4.client(7).ip(), TCP4.listener(0).ip());
    TCP4.flowing().run(CLIENTS, &TCP4.later().framed(&ip.around(4, &inner))).untouched();
}

/// The maps have IPv4 addresses in the form `::ffff:a.b.c.d`; on the wire nobody may use it (RFC 4038 §4.2
/// and the kernel's own stack say so).
#[test]
fn an_ipv6_packet_of_mapped_addresses_is_untouched() {
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    for kind in [TCP4, UDP4] {
        let mut plane = kind.flowing();
        for (at, mut packet) in [(CLIENTS, kind.first()), (CLIENTS, kind.later()), (BACKENDS, kind.answer())]
        {
            packet.ip.source = mapped(packet.ip.source);
            packet.ip.destination = mapped(packet.ip.destination);
            plane.run(at, &packet.frame()).untouched();
            packet.source_port += 1;
            plane.run(at, &packet.frame()).untouched();
            packet.ip.source = TCP6.client(7).ip();
            plane.run(at, &packet.frame()).untouched();
        }
    }
}
