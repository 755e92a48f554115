//! A backend is the one that weir-balance would pick: two Weirs, and both planes, agree.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_balance::maglev::{fill, slot};
use weir_balance::{address_hash, stable_hash};
use weir_l4::layout::{Algorithm, HashKey, Verdict};

use crate::frames::Packet;
use crate::kinds::{Kind, each_kind_of_nat};
use crate::namespace::CLIENTS;
use crate::plane::Plane;

each_kind_of_nat! {
    a_thousand_clients_reach_the_backends_that_weir_balance_picks
    a_thousand_flows_reach_the_backends_that_weir_balance_picks
    a_few_slots_are_picked_by_remainder
    a_dead_backend_moves_nobody_elses_clients
}

const BACKENDS: u8 = 7;

fn table(weights: &[u32]) -> Vec<u16> {
    let ids: Vec<_> = weights
        .iter()
        .enumerate()
        .map(|(at, weight)| (stable_hash(format!("backend {at}").as_bytes()), *weight))
        .collect();
    fill(&ids).into_iter().map(|position| position as u16).collect()
}

/// Addresses and ports that look like nothing in particular.
fn client(kind: Kind, number: u32) -> SocketAddr {
    let mixed = number.wrapping_mul(0x9e37_79b1);
    let address: IpAddr = if kind.is_ip4 {
        Ipv4Addr::from(0xc612_0000 | mixed >> 15).into()
    } else {
        let [a, b, c, d] = mixed.to_be_bytes().map(u16::from);
        Ipv6Addr::new(0x2001, 0xdb8, 0xc, a, b << 8, number as u16, c, d << 8 | a).into()
    };
    SocketAddr::new(address, 1024 + (mixed % 60_000) as u16)
}

/// As written down for `hash.key = "flow"`: addresses, ports in network order, protocol.
fn flow_hash(packet: &Packet) -> u64 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut bytes = [octets(packet.ip.source), octets(packet.ip.destination)].concat();
    bytes.extend(packet.source_port.to_be_bytes());
    bytes.extend(packet.destination_port.to_be_bytes());
    bytes.push(packet.protocol);
    stable_hash(&bytes)
}

fn plane_of(kind: Kind, key: HashKey, slots: &[u16]) -> Plane {
    let mut plane = kind.plane_with(BACKENDS, Algorithm::Hash);
    plane.pool_by(0, Algorithm::Hash, key, slots);
    plane
}

#[track_caller]
fn goes_to(plane: &mut Plane, kind: Kind, first: &Packet, backend: u16) {
    let expected = first.translated(first.source(), kind.backend(backend as u8));
    plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected.frame());
}

fn a_thousand_clients_reach_the_backends_that_weir_balance_picks(kind: Kind) {
    let table = table(&[1, 2, 3, 4, 5, 6, 7]);
    let mut plane = plane_of(kind, HashKey::Client, &table);
    for number in 0..1000 {
        let first = kind.packet(client(kind, number), kind.listener(0));
        goes_to(&mut plane, kind, &first, table[slot(address_hash(first.ip.source))]);
    }
}

fn a_thousand_flows_reach_the_backends_that_weir_balance_picks(kind: Kind) {
    let table = table(&[1; 7]);
    let mut plane = plane_of(kind, HashKey::Flow, &table);
    for number in 0..1000 {
        let first = kind.packet(client(kind, number), kind.listener(0));
        goes_to(&mut plane, kind, &first, table[slot(flow_hash(&first))]);
    }
}

/// A table of another size than Maglev's.
fn a_few_slots_are_picked_by_remainder(kind: Kind) {
    let slots = [0, 1, 2, 3, 4];
    let mut plane = plane_of(kind, HashKey::Client, &slots);
    for number in 0..100 {
        let first = kind.packet(client(kind, number), kind.listener(0));
        goes_to(&mut plane, kind, &first, slots[slot(address_hash(first.ip.source)) % slots.len()]);
    }
}

/// Before the table is written anew: milliseconds.
fn a_dead_backend_moves_nobody_elses_clients(kind: Kind) {
    let table = table(&[1; 7]);
    let mut plane = plane_of(kind, HashKey::Client, &table);
    plane.change_backend(3, |backend| backend.state = 2);
    for number in 0..300 {
        let first = kind.packet(client(kind, number), kind.listener(0));
        let pick = table[slot(address_hash(first.ip.source))];
        if pick != 3 {
            goes_to(&mut plane, kind, &first, pick);
            continue;
        }
        let outcome = plane.run(CLIENTS, &first.frame());
        let dead = first.translated(first.source(), kind.backend(3)).frame();
        assert!(outcome.was_sent(), "{outcome}");
        assert_ne!(outcome.frame[14..], dead[14..], "it went to the dead one");
        outcome.counted_of(0, Verdict::ToBackend);
    }
}
