//! Packets straight to a backend, past all listeners: their answers are not ours, and they take no port from
//! who comes by a listener.

use std::net::SocketAddr;

use weir_l4::layout::Verdict;

use crate::frames::{ACK, SYN};
use crate::kinds::{Kind, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

each_kind_of_nat! {
    what_somebody_sends_straight_to_a_backend_keeps_nobody_from_connecting
    who_asks_a_backend_straight_has_its_answers_while_ports_are_free
    of_ports_that_were_used_straight_the_one_silent_longest_is_taken
}

/// Ports that are tried for a flow of the client, its own first.
fn tried(kind: Kind) -> Vec<u16> {
    let next = |port: u32, attempt: u32| 1024 + (port * 40_503 + 12_345 + attempt) % 64_512;
    let own = u32::from(kind.client(7).port());
    let ports = (0..16).scan(own, |port, attempt| Some(std::mem::replace(port, next(*port, attempt))));
    ports.map(|port| port as u16).collect()
}

#[track_caller]
fn asks_straight(plane: &mut Plane, kind: Kind, port: u16, flags: u8) {
    let from = SocketAddr::new(kind.client(7).ip(), port);
    plane.run(CLIENTS, &kind.packet(from, kind.backend(0)).with_flags(flags).frame()).untouched();
}

/// Opens the client's flow; gives the port that the backend sees.
#[track_caller]
fn opens(plane: &mut Plane, kind: Kind) -> u16 {
    let first = kind.first();
    let outcome = plane.run(CLIENTS, &first.frame());
    let port = plane.port_of(kind.client(7), kind.listener(0), kind.protocol);
    let port = port.unwrap_or_else(|| panic!("no flow: {outcome}"));
    let expected = first.translated(SocketAddr::new(kind.client(7).ip(), port), kind.backend(0));
    outcome.forwarded(Verdict::ToBackend, &expected.frame());
    port
}

#[track_caller]
fn is_answered(plane: &mut Plane, kind: Kind, port: u16) {
    let mut answer = kind.answer();
    answer.destination_port = port;
    let expected = answer.translated(kind.listener(0), kind.client(7));
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &expected.frame());
}

/// From a client's made-up address, with every port: nothing answered the client any more.
fn what_somebody_sends_straight_to_a_backend_keeps_nobody_from_connecting(kind: Kind) {
    for flags in [ACK, SYN] {
        let mut plane = kind.plane();
        tried(kind).into_iter().for_each(|port| asks_straight(&mut plane, kind, port, flags));
        assert_eq!(plane.remembered(), 16);
        let port = opens(&mut plane, kind);
        assert!(tried(kind).contains(&port), "none of {:?} was left: {port}", tried(kind));
        is_answered(&mut plane, kind, port);
        // And what goes on does not take it back.
        plane
            .run(CLIENTS, &kind.packet(SocketAddr::new(kind.client(7).ip(), port), kind.backend(0)).frame())
            .untouched();
        is_answered(&mut plane, kind, port);
    }
}

fn who_asks_a_backend_straight_has_its_answers_while_ports_are_free(kind: Kind) {
    let mut plane = kind.plane();
    for port in tried(kind).into_iter().take(15) {
        asks_straight(&mut plane, kind, port, ACK);
    }
    let port = opens(&mut plane, kind);
    assert_eq!(port, tried(kind)[15]);
    is_answered(&mut plane, kind, port);
    for port in tried(kind).into_iter().take(15) {
        let mut answer = kind.answer();
        answer.destination_port = port;
        plane.run(BACKENDS, &answer.frame()).untouched();
    }
}

fn of_ports_that_were_used_straight_the_one_silent_longest_is_taken(kind: Kind) {
    let mut plane = kind.plane();
    tried(kind).into_iter().for_each(|port| asks_straight(&mut plane, kind, port, ACK));
    // All of them a second ago (a time is 2^27 ns), and since then all but one again.
    plane.change_opening(|flow| flow.opened = (u16::from(flow.opened) + 246).rem_euclid(255) as u8 + 1);
    let silent = tried(kind)[9];
    for port in tried(kind).into_iter().filter(|port| *port != silent) {
        asks_straight(&mut plane, kind, port, ACK);
    }
    assert_eq!(opens(&mut plane, kind), silent);
}
