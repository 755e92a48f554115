//! Listeners at ranges of ports, and backends that keep the port which the client asked for: the maps are
//! those that the plan asks for.

use std::net::{IpAddr, SocketAddr};

use weir_l4::layout::{Algorithm, Forward, HashKey, TCP, Verdict};
use weir_l4::wanted::{Listener, Member, Pool, PortSpan, Wanted};

use crate::frames::{ACK, IcmpError, Packet, Read, SYN};
use crate::kinds::{Kind, each_kind_of_dsr, each_kind_of_ipip, each_kind_of_nat, each_kind_of_nat_and_sum};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

each_kind_of_nat_and_sum! {
    each_port_of_a_range_reaches_the_same_port_of_the_backend
    an_answer_without_a_flow_comes_from_the_port_that_was_asked
    an_error_without_a_flow_is_translated_for_the_client_alone
}

each_kind_of_nat! {
    ports_beside_the_range_are_left_alone
    what_the_backend_says_from_other_ports_is_left_alone
    who_asks_a_backend_itself_is_left_alone
    flows_of_a_client_port_to_two_ports_of_the_range_are_apart
    a_backend_with_a_port_gets_all_there
    answers_that_two_listeners_may_have_asked_for_are_dropped
    a_later_fragment_of_a_range_before_the_first_is_dropped
    full_nat_keeps_the_port_and_tells_clients_apart
    a_range_that_shrinks_leaves_nothing_behind
}

each_kind_of_dsr! {
    by_dsr_each_port_of_a_range_goes_on_as_it_came
}

each_kind_of_ipip! {
    by_ipip_each_port_of_a_range_goes_on_within
    by_ipip_a_backends_own_port_changes_nothing_within
    by_ipip_fragments_of_a_range_follow_the_first
    by_ipip_an_error_about_an_outer_packet_is_told_from_the_port_that_was_asked
    by_ipip_an_error_about_an_answer_reaches_the_backend_of_the_port_that_was_asked
}

const FIRST: u16 = 30_000;
const LAST: u16 = 30_004;

fn port(at: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(at.ip(), port)
}

fn listener(kind: Kind, number: u8, ports: (u16, u16)) -> Listener {
    let sources: Vec<IpAddr> = match kind.forward {
        Forward::FullNat | Forward::Ipip => vec![kind.source().ip()],
        Forward::Nat | Forward::Dsr => Vec::new(),
    };
    Listener {
        name: format!("listener{number}"),
        addresses: vec![PortSpan { first: port(kind.listener(number), ports.0), last_port: ports.1 }],
        protocol: kind.protocol,
        pool: "app".to_owned(),
        deny: Vec::new(),
        allow: Vec::new(),
        forward: kind.forward,
        sources,
        asks_host: false,
        interfaces: None,
        source_ports: (61_000, 61_999),
    }
}

fn wanted(kind: Kind, listeners: Vec<Listener>, backend_port: u16) -> Wanted {
    let member = Member {
        id: 1,
        address: port(kind.backend(0), backend_port),
        weight: 100,
        is_alive: true,
        source: None,
        failures_within: std::time::Duration::ZERO,
    };
    let pool = Pool {
        name: "app".to_owned(),
        algorithm: Algorithm::Hash,
        hash_key: HashKey::Client,
        members: vec![member],
    };
    Wanted { listeners, pools: vec![pool], ..Wanted::default() }
}

/// A plane with one listener at the range, and a backend without a port.
fn plane(kind: Kind) -> Plane {
    let mut plane = kind.empty_plane();
    plane.wants(&wanted(kind, vec![listener(kind, 0, (FIRST, LAST))], 0));
    plane
}

fn first(kind: Kind, at: u16) -> Packet {
    kind.packet(kind.client(7), port(kind.listener(0), at)).with_flags(SYN)
}

/// What the backend says from a port to a client.
fn answer(kind: Kind, at: u16) -> Packet {
    let mut answer = kind.answer();
    answer.source_port = at;
    answer
}

fn each_port_of_a_range_reaches_the_same_port_of_the_backend(kind: Kind) {
    let mut plane = plane(kind);
    for at in FIRST..=LAST {
        let (first, answer) = (first(kind, at), answer(kind, at));
        let expected = first.translated(first.source(), port(kind.backend(0), at));
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected.frame());
        let expected = answer.translated(port(kind.listener(0), at), kind.client(7));
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &expected.frame());
    }
    assert_eq!((plane.open_flows(0), plane.remembered()), (5, 10));
}

fn an_answer_without_a_flow_comes_from_the_port_that_was_asked(kind: Kind) {
    let mut plane = plane(kind);
    for at in [FIRST, LAST] {
        let answer = answer(kind, at).with_flags(ACK);
        let expected = answer.translated(port(kind.listener(0), at), kind.client(7));
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &expected.frame());
    }
    assert!(plane.backend_counts(0).bytes_to_client > 0);
}

/// A router on the clients' side says that what came from the listener did not arrive.
fn an_error_without_a_flow_is_translated_for_the_client_alone(kind: Kind) {
    let mut plane = plane(kind);
    let mut sent = answer(kind, FIRST + 1).with_flags(ACK).with_payload(64);
    sent.ip.hop_limit = 57;
    let seen = sent.translated(port(kind.listener(0), FIRST + 1), kind.client(7));
    let code = if kind.is_ip4 { (3, 1) } else { (1, 3) };
    // Which backend had sent it only a flow could tell.
    let error = IcmpError::new(kind.router(), kind.listener(0).ip(), code.0, code.1).about(&seen.bytes());
    plane.run(CLIENTS, &first(kind, FIRST).framed(&error.bytes())).dropped(Verdict::DropIcmp);
    // And one behind us that what came from the client did not: the client hears of it.
    let mut asked = first(kind, FIRST + 1).with_flags(ACK).with_payload(64);
    asked.ip.hop_limit = 57;
    let mut quoted = asked.translated(asked.source(), port(kind.backend(0), FIRST + 1));
    quoted.ip.hop_limit = 57;
    let error =
        IcmpError::new(kind.backend(0).ip(), kind.client(7).ip(), code.0, code.1).about(&quoted.bytes());
    let expected = error.translated(kind.listener(0).ip(), kind.client(7).ip(), &asked.bytes());
    let frame = kind.answer().framed(&error.bytes());
    plane.run(BACKENDS, &frame).forwarded(Verdict::IcmpToClient, &kind.answer().framed(&expected.bytes()));
}

fn ports_beside_the_range_are_left_alone(kind: Kind) {
    let mut plane = plane(kind);
    for at in [FIRST - 1, LAST + 1, 80] {
        plane.run(CLIENTS, &first(kind, at).frame()).untouched();
    }
    assert_eq!(plane.remembered(), 0);
}

fn what_the_backend_says_from_other_ports_is_left_alone(kind: Kind) {
    let mut plane = plane(kind);
    for at in [FIRST - 1, LAST + 1, 22] {
        plane.run(BACKENDS, &answer(kind, at).with_flags(ACK).frame()).untouched();
        let asks = kind.packet(kind.client(7), port(kind.backend(0), at)).with_flags(SYN);
        plane.run(CLIENTS, &asks.frame()).untouched();
    }
    assert_eq!(plane.remembered(), 0, "nobody notes what is not ours");
}

fn who_asks_a_backend_itself_is_left_alone(kind: Kind) {
    let mut plane = plane(kind);
    let asks = kind.packet(kind.client(7), port(kind.backend(0), FIRST)).with_flags(SYN);
    plane.run(CLIENTS, &asks.frame()).untouched();
    plane.run(BACKENDS, &answer(kind, FIRST).frame()).untouched();
    assert_eq!(plane.remembered(), 1);
}

fn flows_of_a_client_port_to_two_ports_of_the_range_are_apart(kind: Kind) {
    let mut plane = plane(kind);
    for at in [FIRST, FIRST + 1] {
        plane.run(CLIENTS, &first(kind, at).frame()).counted_of(0, Verdict::ToBackend);
    }
    // Nobody's port had to become another.
    for at in [FIRST, FIRST + 1] {
        assert_eq!(
            plane.port_of(kind.client(7), port(kind.listener(0), at), kind.protocol),
            Some(kind.client(7).port())
        );
    }
}

fn a_backend_with_a_port_gets_all_there(kind: Kind) {
    let mut plane = kind.empty_plane();
    plane.wants(&wanted(kind, vec![listener(kind, 0, (FIRST, LAST))], 8080));
    for at in [FIRST, LAST] {
        let first = first(kind, at);
        let outcome = plane.run(CLIENTS, &first.frame());
        let seen = plane.port_of(kind.client(7), port(kind.listener(0), at), kind.protocol).unwrap();
        let expected = first.translated(port(kind.client(7), seen), kind.backend(0));
        outcome.forwarded(Verdict::ToBackend, &expected.frame());
        let mut answer = kind.answer();
        answer.destination_port = seen;
        let expected = answer.translated(port(kind.listener(0), at), kind.client(7));
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &expected.frame());
    }
    plane.forget();
    plane.run(BACKENDS, &kind.answer().with_flags(ACK).frame()).dropped(Verdict::DropUnknownFlow);
}

fn answers_that_two_listeners_may_have_asked_for_are_dropped(kind: Kind) {
    let mut plane = kind.empty_plane();
    let listeners = vec![listener(kind, 0, (FIRST, LAST)), listener(kind, 1, (LAST, LAST + 1))];
    plane.wants(&wanted(kind, listeners, 0));
    for (at, from) in [(FIRST, 0), (LAST + 1, 1)] {
        let answer = answer(kind, at).with_flags(ACK);
        let expected = answer.translated(port(kind.listener(from), at), kind.client(7));
        let outcome = plane.run(BACKENDS, &answer.frame());
        outcome.forwarded_of(u32::from(from), Verdict::ToClient, &expected.frame());
    }
    plane.run(BACKENDS, &answer(kind, LAST).with_flags(ACK).frame()).not_forwarded();
}

fn a_later_fragment_of_a_range_before_the_first_is_dropped(kind: Kind) {
    let mut plane = plane(kind);
    for (packet, at) in [(first(kind, FIRST), CLIENTS), (answer(kind, FIRST), BACKENDS)] {
        let packet = packet.with_flags(ACK).with_payload(64);
        let fragments = packet.fragments(&[24]);
        plane.run(at, &fragments[1]).dropped(Verdict::DropFragment);
    }
}

fn full_nat_keeps_the_port_and_tells_clients_apart(kind: Kind) {
    let kind = kind.by(Forward::FullNat);
    let mut plane = plane(kind);
    plane.host_address(kind.source().ip());
    for number in [7, 8] {
        for at in [FIRST, LAST] {
            let (client, asked) = (kind.client(number), port(kind.listener(0), at));
            let first = kind.packet(client, asked).with_flags(SYN);
            let outcome = plane.run(CLIENTS, &first.frame());
            let seen = port(kind.source(), plane.port_of(client, asked, kind.protocol).unwrap());
            outcome.forwarded(Verdict::ToBackend, &first.translated(seen, port(kind.backend(0), at)).frame());
            let mut answer = answer(kind, at);
            answer.destination_port = seen.port();
            let expected = answer.translated(asked, client);
            plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &expected.frame());
        }
    }
    plane.forget();
    let mut lost = answer(kind, FIRST).with_flags(ACK);
    lost.destination_port = 61_500;
    plane.run(BACKENDS, &lost.frame()).dropped(Verdict::DropUnknownFlow);
    lost.source_port = 22;
    plane.run(BACKENDS, &lost.frame()).untouched();
}

fn a_range_that_shrinks_leaves_nothing_behind(kind: Kind) {
    let mut plane = kind.empty_plane();
    let held = plane.wants(&wanted(kind, vec![listener(kind, 0, (FIRST, LAST))], 0));
    let less = wanted(kind, vec![listener(kind, 0, (FIRST, FIRST))], 0);
    let held = plane.wants_instead(&held, &less);
    plane.run(CLIENTS, &first(kind, LAST).frame()).untouched();
    plane.run(BACKENDS, &answer(kind, LAST).with_flags(ACK).frame()).untouched();
    plane.run(CLIENTS, &first(kind, FIRST).frame()).counted_of(0, Verdict::ToBackend);
    // The port at 0 and the one that is left; of the origins as many.
    assert_eq!(plane.endpoints(), (2, 2));
    plane.wants_instead(&held, &Wanted::default());
    assert_eq!(plane.endpoints(), (0, 0));
}

fn by_dsr_each_port_of_a_range_goes_on_as_it_came(kind: Kind) {
    let mut plane = plane(kind);
    for at in FIRST..=LAST {
        let first = first(kind, at);
        let expected = first.translated(first.source(), first.destination());
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected.frame());
    }
    plane.run(CLIENTS, &first(kind, LAST + 1).frame()).untouched();
    plane.run(BACKENDS, &answer(kind, FIRST).frame()).untouched();
}

/// Within an outer packet to the backend.
fn within(kind: Kind, packet: &Packet) -> Vec<u8> {
    kind.wrapped_to(packet, &kind.at_backend(packet).bytes(), kind.backend(0).ip())
}

fn by_ipip_each_port_of_a_range_goes_on_within(kind: Kind) {
    let mut plane = plane(kind);
    for at in FIRST..=LAST {
        for packet in [first(kind, at), first(kind, at).with_flags(ACK).with_payload(301)] {
            plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &within(kind, &packet));
        }
    }
    for at in [FIRST - 1, LAST + 1] {
        plane.run(CLIENTS, &first(kind, at).frame()).untouched();
    }
    plane.run(BACKENDS, &answer(kind, FIRST).frame()).untouched();
    assert_eq!((plane.open_flows(0), plane.remembered()), (5, 5));
}

/// It is the listener's that the backend has.
fn by_ipip_a_backends_own_port_changes_nothing_within(kind: Kind) {
    let mut plane = kind.empty_plane();
    plane.wants(&wanted(kind, vec![listener(kind, 0, (FIRST, LAST))], 8080));
    for at in [FIRST, LAST] {
        let first = first(kind, at);
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &within(kind, &first));
    }
}

fn by_ipip_fragments_of_a_range_follow_the_first(kind: Kind) {
    let mut plane = plane(kind);
    for at in [FIRST, LAST] {
        let mut packet = first(kind, at).with_payload(1600);
        packet.ip.id = u32::from(at);
        plane.run(CLIENTS, &packet.fragments(&[800])[1]).dropped(Verdict::DropFragment);
        let expected = kind.at_backend(&packet).fragments(&[800]);
        for (fragment, expected) in packet.fragments(&[800]).iter().zip(expected) {
            let expected = kind.wrapped_to(&packet, &expected[14..], kind.backend(0).ip());
            plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
        }
    }
}

/// Of a router on the way to the backend.
fn by_ipip_an_error_about_an_outer_packet_is_told_from_the_port_that_was_asked(kind: Kind) {
    let mut plane = plane(kind);
    let code = if kind.is_ip4 { (3, 1) } else { (1, 3) };
    for at in [FIRST, LAST] {
        let packet = first(kind, at).with_payload(0);
        let sent = within(kind, &packet);
        let error =
            IcmpError::new(kind.host(2, 9).ip(), kind.source().ip(), code.0, code.1).about(&sent[14..]);
        let frame = kind.answer().framed(&error.bytes());
        plane.run(BACKENDS, &frame).untouched();
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &sent);
        let told = plane.run(BACKENDS, &frame).answered(Verdict::IcmpToClient);
        let read = Read::of(&told);
        assert_eq!((read.source, read.destination), (kind.listener(0).ip(), kind.client(7).ip()));
        let quote = &read.body[8..];
        assert!(kind.at_backend(&packet).bytes().starts_with(quote), "{quote:02x?}");
        let ports = quote.len() - if kind.protocol == TCP { 20 } else { 8 };
        assert_eq!(read.port(8 + ports + 2), at);
    }
}

fn by_ipip_an_error_about_an_answer_reaches_the_backend_of_the_port_that_was_asked(kind: Kind) {
    let mut plane = plane(kind);
    let code = if kind.is_ip4 { (3, 1) } else { (1, 3) };
    for at in [FIRST, LAST] {
        let first = first(kind, at);
        let answer = kind.packet(first.destination(), first.source()).with_flags(ACK).with_payload(64);
        let error =
            IcmpError::new(kind.router(), kind.listener(0).ip(), code.0, code.1).about(&answer.bytes());
        let frame = first.framed(&error.bytes());
        plane.run(CLIENTS, &frame).dropped(Verdict::DropIcmp);
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &within(kind, &first));
        let mut expected = error.clone();
        expected.ip.hop_limit -= 1;
        let expected = kind.wrapped_to(&first, &expected.bytes(), kind.backend(0).ip());
        plane.run(CLIENTS, &frame).forwarded(Verdict::IcmpToBackend, &expected);
    }
}
