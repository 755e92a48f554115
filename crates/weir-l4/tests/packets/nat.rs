//! Addresses and ports become others, both ways; all else stays.

use std::net::SocketAddr;

use weir_l4::layout::{Algorithm, Settings, TCP, Verdict};

use crate::frames::{ACK, FIN, PSH, SYN};
use crate::kinds::{Kind, each_kind, each_kind_and_sum, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS, set_neighbour};

each_kind_and_sum! {
    the_first_packet_goes_to_the_backend
    an_answer_comes_from_the_listener
    ports_are_kept_when_the_backend_has_none
    payload_of_any_length_passes
    what_is_not_an_address_stays
    a_frame_with_padding_keeps_it
}

each_kind! {
    a_conversation_keeps_its_backend
    later_packets_go_to_the_neighbours_that_were_found
    a_host_that_does_not_forward_balances_all_the_same
    a_flow_is_remembered_in_both_directions
    a_train_of_segments_is_counted_by_its_segments
    a_neighbour_that_changed_is_found_anew
    a_neighbour_in_a_namespace_of_this_host_is_reached_at_once
    bytes_and_flows_are_counted_by_backend
}

each_kind_of_nat! {
    two_listeners_may_share_a_backend_and_a_client_port
}

fn the_first_packet_goes_to_the_backend(kind: Kind) {
    kind.open(&mut kind.plane());
}

fn an_answer_comes_from_the_listener(kind: Kind) {
    let answer = kind.answer();
    let outcome = kind.flowing().run(BACKENDS, &answer.frame());
    outcome.forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn ports_are_kept_when_the_backend_has_none(kind: Kind) {
    let mut plane = kind.plane();
    let backend = SocketAddr::new(kind.backend(0).ip(), 0);
    plane.backend(0, backend);
    let (first, mut answer) = (kind.first(), kind.answer());
    let at_backend = first.translated(kind.seen(first.source()), SocketAddr::new(backend.ip(), 80));
    plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &at_backend.frame());
    answer.source_port = 80;
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn payload_of_any_length_passes(kind: Kind) {
    let mut plane = kind.flowing();
    for bytes in [0, 1, 2, 3, 17, 64, 1399, 1400] {
        let (packet, answer) = (kind.later().with_payload(bytes), kind.answer().with_payload(bytes));
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    }
}

fn what_is_not_an_address_stays(kind: Kind) {
    let mut plane = kind.flowing();
    for mut packet in [kind.later(), kind.answer()] {
        packet.flags = ACK | PSH | FIN | 0xe0;
        packet.urgent = 0x1357;
        packet.sequence = 0xffff_fffe;
        packet.options = vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        packet.ip.class = 0xb9;
        packet.ip.flow_label = 0xf_abcd;
        packet.ip.id = 0xbeef;
        packet.ip.dont_fragment = false;
        packet.ip.hop_limit = 255;
        if packet.from_mac == CLIENTS.neighbour {
            let expected = kind.at_backend(&packet);
            plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &expected.frame());
        } else {
            let expected = kind.at_client(&packet);
            plane.run(BACKENDS, &packet.frame()).forwarded(Verdict::ToClient, &expected.frame());
        }
    }
}

/// Ethernet has frames of 60 bytes at least.
fn a_frame_with_padding_keeps_it(kind: Kind) {
    let mut plane = kind.flowing();
    for padding in [1, 2, 18, 19] {
        let mut packet = kind.later().with_payload(1);
        packet.padding = padding;
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    }
}

fn a_conversation_keeps_its_backend(kind: Kind) {
    let mut plane = kind.plane_with(1, Algorithm::Turns);
    kind.open(&mut plane);
    plane.backend(1, kind.backend(1));
    plane.pool(0, Algorithm::Turns, &[1]);
    for _ in 0..3 {
        let (packet, answer) = (kind.later(), kind.answer());
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    }
}

/// The first packet after a look-up is sent by the kernel itself; what follows within the same second is not.
fn later_packets_go_to_the_neighbours_that_were_found(kind: Kind) {
    let mut plane = kind.flowing();
    let (packet, answer) = (kind.later(), kind.answer());
    for (at, frame, macs) in [
        (CLIENTS, packet.frame(), [BACKENDS.neighbour, BACKENDS.mac]),
        (BACKENDS, answer.frame(), [CLIENTS.neighbour, CLIENTS.mac]),
    ] {
        let found: Vec<_> = (0..10).map(|_| plane.run(at, &frame).macs()).collect();
        let as_it_came: [[u8; 6]; 2] = [frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap()];
        assert!(found.iter().all(|found| *found == macs || *found == as_it_came), "{found:02x?}");
        assert!(found.contains(&macs), "{found:02x?}");
    }
}

fn a_host_that_does_not_forward_balances_all_the_same(kind: Kind) {
    let mut plane = kind.plane();
    plane.set_forwarding(false);
    kind.open(&mut plane);
    let answer = kind.answer();
    for _ in 0..3 {
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    }
}

fn a_flow_is_remembered_in_both_directions(kind: Kind) {
    let mut plane = kind.flowing();
    assert_eq!(plane.remembered(), 2);
    kind.open(&mut plane);
    assert_eq!(plane.remembered(), 2);
    assert_eq!(plane.open_flows(0), 1);
}

/// Answers of one listener were sent from another when both shared a backend and a client used one port for
/// both.
fn two_listeners_may_share_a_backend_and_a_client_port(kind: Kind) {
    let mut plane = kind.flowing();
    plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
    let other = kind.packet(kind.client(7), kind.listener(1));
    let outcome = plane.run(CLIENTS, &other.frame());
    let transport = outcome.frame.len() - other.transport().len();
    let port = u16::from_be_bytes([outcome.frame[transport], outcome.frame[transport + 1]]);
    assert_ne!(port, other.source_port, "the backend can't tell the two apart");
    assert!(port >= 1024);
    let client_at_backend = SocketAddr::new(other.ip.source, port);
    let expected = other.translated(client_at_backend, kind.backend(0));
    outcome.forwarded_of(1, Verdict::ToBackend, &expected.frame());

    let mut answer = kind.answer();
    let expected = kind.at_client(&answer);
    plane.run(BACKENDS, &answer.frame()).forwarded_of(0, Verdict::ToClient, &expected.frame());
    answer.destination_port = port;
    let expected = answer.translated(kind.listener(1), kind.client(7));
    plane.run(BACKENDS, &answer.frame()).forwarded_of(1, Verdict::ToClient, &expected.frame());
    let later = other.with_flags(ACK);
    let expected = later.translated(client_at_backend, kind.backend(0));
    plane.run(CLIENTS, &later.frame()).forwarded_of(1, Verdict::ToBackend, &expected.frame());
}

fn a_train_of_segments_is_counted_by_its_segments(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_payload(2800);
    let outcome = plane.run_train(CLIENTS, &packet.frame(), 2, 1400);
    assert!(outcome.was_sent(), "{outcome}");
    assert_eq!(outcome.frame[14..], kind.at_backend(&packet).frame()[14..]);
    outcome.counted_packets(2);
}

/// What user space says when it hears of a change: the same second, and the new address.
fn a_neighbour_that_changed_is_found_anew(kind: Kind) {
    let mut plane = kind.flowing();
    let frame = kind.later().frame();
    let found: Vec<_> = (0..10).map(|_| plane.run(CLIENTS, &frame).macs()[0]).collect();
    assert!(found.contains(&BACKENDS.neighbour), "{found:02x?}");
    let other = [2, 0, 0, 0, 9, 9];
    set_neighbour(kind.backend(0).ip(), other);
    plane.settings(Settings { routes: 1, ..Settings::default() });
    let found: Vec<_> = (0..10).map(|_| plane.run(CLIENTS, &frame).macs()[0]).collect();
    set_neighbour(kind.backend(0).ip(), BACKENDS.neighbour);
    assert!(found.contains(&other) && !found.contains(&BACKENDS.neighbour), "{found:02x?}");
}

/// Without the detour through the other end's queue: the frame is addressed here.
fn a_neighbour_in_a_namespace_of_this_host_is_reached_at_once(kind: Kind) {
    let mut plane = kind.plane();
    plane.local_peer(BACKENDS.interface);
    for packet in [kind.first(), kind.later()] {
        let outcome = plane.run(CLIENTS, &packet.frame());
        assert_eq!(outcome.macs(), [BACKENDS.neighbour, BACKENDS.mac]);
        outcome.forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    }
}

fn bytes_and_flows_are_counted_by_backend(kind: Kind) {
    let mut plane = kind.plane();
    let before = plane.backend_counts(0);
    kind.open(&mut plane);
    let (later, answer) = (kind.later().with_payload(100).frame(), kind.answer().with_payload(1000).frame());
    assert!(plane.run(CLIENTS, &later).was_sent() && plane.run(BACKENDS, &answer).was_sent());
    let after = plane.backend_counts(0);
    assert_eq!(after.flows - before.flows, 1);
    let to_backend = kind.first().frame().len() + later.len();
    assert_eq!(after.bytes_to_backend - before.bytes_to_backend, to_backend as u64);
    assert_eq!(after.bytes_to_client - before.bytes_to_client, answer.len() as u64);
}

#[test]
fn a_syn_that_is_sent_again_opens_no_second_flow() {
    let kind = crate::kinds::TCP4;
    assert_eq!(kind.protocol, TCP);
    let mut plane = kind.plane_with(3, Algorithm::Turns);
    let first = kind.first().with_flags(SYN);
    for _ in 0..3 {
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
    }
    assert_eq!((0..3).map(|number| plane.open_flows(number)).sum::<u64>(), 1);
}
