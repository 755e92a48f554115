//! The source of packets becomes one of ours, so that backends need no way to clients: what is told apart by
//! ports that way, and what is left alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_l4::layout::{Algorithm, Direction, Forward, Verdict};

use crate::frames::{ACK, IcmpError, RST};
use crate::kinds::{Kind, TCP4, TCP6, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

each_kind_of_nat! {
    each_client_has_a_port_of_its_own_and_hears_its_own_answers
    every_port_of_every_source_is_found_and_then_none
    where_all_ports_are_taken_the_flow_that_has_been_opening_for_longest_leaves_its_own
    two_listeners_share_a_source
    a_flow_that_was_forgotten_gets_its_port_again
    a_port_that_is_another_clients_by_now_is_not_used
    a_client_may_be_its_own_backend
    a_packet_from_a_source_is_dropped_by_name
    an_answer_to_nobody_is_dropped_by_name
    what_a_backend_says_to_the_host_itself_is_left_alone
    what_a_backend_says_to_others_is_left_alone
    a_backend_of_nat_as_well_is_understood_by_both
    without_a_source_nothing_is_forwarded
    an_error_about_a_forgotten_flow_is_dropped_by_name
    an_error_for_the_host_itself_is_left_alone
    a_first_fragment_and_what_follows_have_one_port
}

const PORTS: (u16, u16) = (61_000, 65_535);

fn sources(kind: Kind) -> [IpAddr; 2] {
    match kind.is_ip4 {
        true => [Ipv4Addr::new(10, 2, 0, 1), Ipv4Addr::new(10, 2, 0, 2)].map(IpAddr::V4),
        false => [1, 2].map(|last| Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, last).into()),
    }
}

/// A plane with a listener and a backend, by these ports of both sources.
fn plane(kind: Kind, ports: (u16, u16)) -> Plane {
    let mut plane = kind.empty_plane();
    plane.backend(0, kind.backend(0));
    plane.pool(0, Algorithm::Hash, &[0]);
    listener(&mut plane, kind, 0, ports);
    sources(kind).iter().for_each(|source| plane.host_address(*source));
    plane
}

fn listener(plane: &mut Plane, kind: Kind, number: u8, ports: (u16, u16)) {
    let numbers = (u32::from(number), 0);
    let at = kind.listener(number);
    plane.full_nat_listener(numbers, at, kind.protocol, &[0], &sources(kind), ports);
}

/// Sends the first packet of a client to a listener; gives what the backend sees of the client.
#[track_caller]
fn opens(plane: &mut Plane, kind: Kind, client: SocketAddr, to: u8) -> SocketAddr {
    let first = kind.packet(client, kind.listener(to));
    let outcome = plane.run(CLIENTS, &first.frame());
    assert!(outcome.was_sent(), "{outcome}");
    let place = outcome.frame.len() - first.transport().len();
    let port = u16::from_be_bytes([outcome.frame[place], outcome.frame[place + 1]]);
    let ip: IpAddr = match kind.is_ip4 {
        true => <[u8; 4]>::try_from(&outcome.frame[26..30]).unwrap().into(),
        false => <[u8; 16]>::try_from(&outcome.frame[22..38]).unwrap().into(),
    };
    let seen = SocketAddr::new(ip, port);
    let expected = first.translated(seen, kind.backend(0));
    outcome.forwarded_of(u32::from(to), Verdict::ToBackend, &expected.frame());
    assert!(sources(kind).contains(&ip), "{seen}");
    seen
}

/// Sends an answer to where a client was seen; it reaches the client.
#[track_caller]
fn answers(plane: &mut Plane, kind: Kind, seen: SocketAddr, client: SocketAddr, from: u8) {
    let mut answer = kind.answer();
    (answer.ip.destination, answer.destination_port) = (seen.ip(), seen.port());
    let expected = answer.translated(kind.listener(from), client);
    let outcome = plane.run(BACKENDS, &answer.frame());
    outcome.forwarded_of(u32::from(from), Verdict::ToClient, &expected.frame());
}

/// Has the backend answer a client, which settles the flow.
#[track_caller]
fn settles(plane: &mut Plane, kind: Kind, client: SocketAddr, to: u8) {
    let port = plane.port_of(client, kind.listener(to), kind.protocol).expect("it has a flow");
    let seen = sources(kind).map(|source| SocketAddr::new(source, port));
    let before = plane.settled();
    for seen in seen {
        let mut answer = kind.answer();
        (answer.ip.destination, answer.destination_port) = (seen.ip(), seen.port());
        let _ = plane.run(BACKENDS, &answer.frame());
    }
    let mut later = kind.packet(client, kind.listener(to)).with_flags(ACK);
    later.acknowledgement = kind.answer().sequence + 1;
    assert!(plane.run(CLIENTS, &later.frame()).was_sent());
    assert_eq!(plane.settled(), before + 2);
}

fn clients(kind: Kind, count: u8) -> impl Iterator<Item = SocketAddr> {
    (0..count).map(move |number| kind.client(number))
}

fn each_client_has_a_port_of_its_own_and_hears_its_own_answers(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    let seen: Vec<(SocketAddr, SocketAddr)> =
        clients(kind, 100).map(|client| (client, opens(&mut plane, kind, client, 0))).collect();
    let apart: BTreeSet<SocketAddr> = seen.iter().map(|(_, seen)| *seen).collect();
    assert_eq!(apart.len(), 100);
    assert!(apart.iter().all(|seen| (PORTS.0..=PORTS.1).contains(&seen.port())), "{apart:?}");
    let addresses: BTreeSet<IpAddr> = apart.iter().map(SocketAddr::ip).collect();
    assert_eq!(addresses.len(), 2, "both sources are used");
    for (client, seen) in seen {
        answers(&mut plane, kind, seen, client, 0);
    }
}

fn every_port_of_every_source_is_found_and_then_none(kind: Kind) {
    let mut plane = plane(kind, (61_000, 61_019));
    let seen: BTreeSet<SocketAddr> =
        clients(kind, 40).map(|client| opens(&mut plane, kind, client, 0)).collect();
    assert_eq!(seen.len(), 40);
    clients(kind, 40).for_each(|client| settles(&mut plane, kind, client, 0));
    let first = kind.packet(kind.client(99), kind.listener(0));
    plane.run(CLIENTS, &first.frame()).dropped(Verdict::DropNoPort);
    assert_eq!(plane.open_flows(0), 40);
}

/// A flood held all ports for a minute, and nobody else could connect.
fn where_all_ports_are_taken_the_flow_that_has_been_opening_for_longest_leaves_its_own(kind: Kind) {
    let mut plane = plane(kind, (61_000, 61_019));
    let seen: Vec<SocketAddr> = clients(kind, 40).map(|client| opens(&mut plane, kind, client, 0)).collect();
    clients(kind, 30).for_each(|client| settles(&mut plane, kind, client, 0));
    // Of the remaining ten the last one was opened first, on a clock that wraps around.
    plane.change_opening(|flow| {
        let number = (30_u8..40).find(|number| flow.destination == kind.client(*number).ip().into());
        let age = number.filter(|_| flow.direction == Direction::ToClient as u8).map_or(0, u16::from);
        flow.opened = ((u16::from(flow.opened) + 254 - age) % 255 + 1) as u8;
    });
    let late = kind.client(99);
    let taken = opens(&mut plane, kind, late, 0);
    assert_eq!(taken, seen[39]);
    answers(&mut plane, kind, taken, late, 0);
    for number in 0..39 {
        answers(&mut plane, kind, seen[usize::from(number)], kind.client(number), 0);
    }
    assert_eq!((plane.open_flows(0), plane.remembered()), (40, 80));
}

fn two_listeners_share_a_source(kind: Kind) {
    let mut plane = plane(kind, (61_000, 61_000));
    listener(&mut plane, kind, 1, (61_000, 61_000));
    let client = kind.client(7);
    let seen = [0, 1].map(|to| opens(&mut plane, kind, client, to));
    assert_ne!(seen[0], seen[1]);
    for (seen, from) in seen.into_iter().zip([0, 1]) {
        answers(&mut plane, kind, seen, client, from);
    }
}

/// The backend identifies the connection by it.
fn a_flow_that_was_forgotten_gets_its_port_again(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    for client in clients(kind, 10) {
        let seen = opens(&mut plane, kind, client, 0);
        plane.forget();
        let later = kind.packet(client, kind.listener(0)).with_flags(ACK);
        let expected = later.translated(seen, kind.backend(0));
        plane.run(CLIENTS, &later.frame()).forwarded(Verdict::ToBackend, &expected.frame());
        answers(&mut plane, kind, seen, client, 0);
    }
}

/// A full table lets one direction of a flow go without the other.
fn a_port_that_is_another_clients_by_now_is_not_used(kind: Kind) {
    let mut plane = plane(kind, (61_000, 61_000));
    let (one, other) = (kind.client(1), kind.client(2));
    let seen = [one, other].map(|client| opens(&mut plane, kind, client, 0));
    plane.forget_way_back(kind.backend(0), seen[0], kind.protocol);
    let third = kind.client(3);
    assert_eq!(opens(&mut plane, kind, third, 0), seen[0]);
    [other, third].iter().for_each(|client| settles(&mut plane, kind, *client, 0));
    let later = kind.packet(one, kind.listener(0)).with_flags(ACK);
    plane.run(CLIENTS, &later.frame()).dropped(Verdict::DropNoPort);
    answers(&mut plane, kind, seen[0], third, 0);
    answers(&mut plane, kind, seen[1], other, 0);
    assert_eq!(plane.open_flows(0), 2);
}

fn a_client_may_be_its_own_backend(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    let client = SocketAddr::new(kind.backend(0).ip(), 40_007);
    let mut first = kind.packet(client, kind.listener(0));
    (first.to_mac, first.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
    let outcome = plane.run(BACKENDS, &first.frame());
    assert!(outcome.was_sent(), "{outcome}");
    let seen = opens(&mut plane, kind, client, 0);
    answers(&mut plane, kind, seen, client, 0);
}

/// A plane whose source of this number is an address of an interface, if `is_host`, or only routed here.
fn plane_whose_source(kind: Kind, number: usize, is_host: bool) -> Plane {
    let mut plane = kind.empty_plane();
    plane.backend(0, kind.backend(0));
    plane.pool(0, Algorithm::Hash, &[0]);
    listener(&mut plane, kind, 0, PORTS);
    if is_host {
        plane.host_address(sources(kind)[number]);
    }
    plane
}

fn a_packet_from_a_source_is_dropped_by_name(kind: Kind) {
    for is_host in [true, false] {
        let mut plane = plane_whose_source(kind, 0, is_host);
        let first = kind.packet(SocketAddr::new(sources(kind)[0], 62_000), kind.listener(0));
        plane.run(CLIENTS, &first.frame()).dropped(Verdict::DropOwnAddress);
        assert_eq!(plane.remembered(), 0);
    }
}

fn an_answer_to_nobody_is_dropped_by_name(kind: Kind) {
    for is_host in [true, false] {
        let mut plane = plane_whose_source(kind, 1, is_host);
        let mut answer = kind.answer();
        answer.ip.destination = sources(kind)[1];
        for port in [PORTS.0, 62_000, PORTS.1] {
            answer.destination_port = port;
            plane.run(BACKENDS, &answer.frame()).dropped(Verdict::DropUnknownFlow);
        }
        assert_eq!(plane.remembered(), 0);
    }
}

/// Above all Weir's own probes.
fn what_a_backend_says_to_the_host_itself_is_left_alone(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    opens(&mut plane, kind, kind.client(7), 0);
    let mut answer = kind.answer();
    answer.ip.destination = sources(kind)[0];
    for port in [1, 32_768, PORTS.0 - 1] {
        answer.destination_port = port;
        plane.run(BACKENDS, &answer.frame()).untouched();
    }
    // From another port of that host, or another host.
    answer.destination_port = PORTS.0;
    answer.source_port += 1;
    plane.run(BACKENDS, &answer.frame()).untouched();
    answer.source_port -= 1;
    answer.ip.source = kind.backend(1).ip();
    plane.run(BACKENDS, &answer.frame()).untouched();
}

fn what_a_backend_says_to_others_is_left_alone(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    let mut request = kind.packet(kind.client(7), kind.backend(0));
    plane.run(CLIENTS, &request.frame()).untouched();
    request = kind.packet(kind.backend(0), kind.client(7));
    plane.run(BACKENDS, &request.frame()).untouched();
    let later = request.with_payload(1000).fragments(&[512]).pop().unwrap();
    plane.run(BACKENDS, &later).untouched();
    assert_eq!(plane.remembered(), 0);
}

fn a_backend_of_nat_as_well_is_understood_by_both(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
    plane.share_backend(0, kind.protocol, kind.listener(1), 1);
    let client = kind.client(7);
    let seen = opens(&mut plane, kind, client, 0);
    let first = kind.packet(client, kind.listener(1));
    let expected = first.translated(client, kind.backend(0));
    plane.run(CLIENTS, &first.frame()).forwarded_of(1, Verdict::ToBackend, &expected.frame());
    for _ in 0..2 {
        answers(&mut plane, kind, seen, client, 0);
        answers(&mut plane, kind, client, client, 1);
        plane.forget();
        opens(&mut plane, kind, client, 0);
    }
    plane.forget();
    let mut lost = kind.answer();
    (lost.ip.destination, lost.destination_port) = (seen.ip(), seen.port());
    plane.run(BACKENDS, &lost.frame()).dropped(Verdict::DropUnknownFlow);
}

fn without_a_source_nothing_is_forwarded(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    plane.full_nat_listener((0, 0), kind.listener(0), kind.protocol, &[0], &[], PORTS);
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoPort);
}

/// What the backends' network says of a packet that was sent to a backend.
fn unreachable(kind: Kind, from: SocketAddr) -> Vec<u8> {
    let quoted = kind.packet(from, kind.backend(0)).with_payload(64);
    let (number, code) = if kind.is_ip4 { (3, 1) } else { (1, 3) };
    let error = IcmpError::new(kind.host(2, 9).ip(), from.ip(), number, code).about(&quoted.bytes());
    kind.answer().framed(&error.bytes())
}

fn an_error_about_a_forgotten_flow_is_dropped_by_name(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    let seen = opens(&mut plane, kind, kind.client(7), 0);
    let error = unreachable(kind, seen);
    assert!(plane.run(BACKENDS, &error).was_sent());
    plane.forget();
    plane.run(BACKENDS, &error).dropped(Verdict::DropIcmp);
}

fn an_error_for_the_host_itself_is_left_alone(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    plane.run(BACKENDS, &unreachable(kind, SocketAddr::new(sources(kind)[0], 40_000))).untouched();
}

fn a_first_fragment_and_what_follows_have_one_port(kind: Kind) {
    let mut plane = plane(kind, PORTS);
    let first = kind.first().with_payload(2000);
    let pieces = first.fragments(&[1024]);
    let outcome = plane.run(CLIENTS, &pieces[0]);
    assert!(outcome.was_sent(), "{outcome}");
    let seen = opens(&mut plane, kind, kind.client(7), 0);
    let expected = first.translated(seen, kind.backend(0)).fragments(&[1024]);
    assert_eq!(outcome.frame[14..], expected[0][14..]);
    plane.run(CLIENTS, &pieces[1]).forwarded(Verdict::ToBackend, &expected[1]);
}

#[test]
fn a_reset_of_a_forgotten_connection_opens_none_and_goes_nowhere() {
    for kind in [TCP4, TCP6] {
        let mut plane = plane(kind.by(Forward::FullNat), PORTS);
        plane.run(CLIENTS, &kind.first().with_flags(RST).frame()).dropped(Verdict::DropUnknownFlow);
        assert_eq!(plane.remembered(), 0);
    }
}
