//! Flows begin, go on, end, and lose their backends.

use weir_l4::layout::{Algorithm, BackendState, TCP, UDP, Verdict};

use crate::frames::{ACK, FIN, PSH, Packet, RST, SYN};
use crate::kinds::{Kind, TCP4, TCP6, each_kind, each_kind_of_nat, each_kind_of_nat_and_sum};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::{Outcome, Plane};

each_kind! {
    a_flow_of_a_dead_backend_leaves_it
    a_pool_without_backends_drops
    a_pool_of_dead_backends_drops
    a_way_that_is_closed_drops
    a_flow_of_another_generation_is_not_its_backends
    a_forgotten_flow_of_a_pool_that_hashes_goes_on
    an_answer_of_a_dead_backend_never_leaks_its_address
}

each_kind_of_nat_and_sum! {
    an_answer_without_a_flow_comes_from_its_listener
}

each_kind_of_nat! {
    a_client_that_is_its_own_backend_is_dropped
    an_answer_of_a_backend_that_kept_the_port_finds_its_listener
    an_answer_without_a_flow_that_several_may_have_asked_for_is_dropped
    every_free_port_of_a_backend_is_found
    flows_go_around_by_turns
    the_fewest_flows_are_weighed
    fewer_flows_than_none_are_none
    the_fewest_flows_get_the_next
}

/// TCP alone: families.
macro_rules! each_family {
    ($($case:ident)*) => { $(
        mod $case {
            use crate::kinds::{TCP4, TCP6};

            #[test] fn tcp4() { super::$case(TCP4); }
            #[test] fn tcp6() { super::$case(TCP6); }
            #[test] fn tcp4_summed() { super::$case(TCP4.summed()); }
            #[test] fn tcp6_summed() { super::$case(TCP6.summed()); }
        }
    )* };
}

each_family! {
    a_segment_of_an_unknown_connection_is_reset
    a_reset_answers_by_the_segments_own_numbers
    a_reset_is_not_reset
    a_reset_of_an_unknown_connection_leaves_none_open
    a_connection_of_a_dead_backend_is_reset
    a_first_segment_to_a_dead_backend_finds_another
    a_port_is_used_again_after_both_have_closed
    a_port_is_used_again_after_a_reset
    a_port_is_not_taken_over_while_one_side_is_open
    a_reset_that_nobody_heeds_ends_no_flow
    a_reset_stays_where_one_side_alone_goes_on
    what_both_have_closed_is_not_opened_by_what_follows_a_reset
    a_closed_connections_last_segments_still_pass
    a_backend_that_refuses_is_counted
}

fn numbered(kind: Kind, number: u8) -> Packet {
    kind.packet(kind.client(number), kind.listener(0))
}

/// The backend that a packet of a client went to.
#[track_caller]
fn backend_of(kind: Kind, packet: &Packet, outcome: &Outcome, of: u8) -> u8 {
    assert!(outcome.was_sent(), "{outcome}");
    let found = (0..of).find(|number| {
        let expected = packet.translated(kind.seen(packet.source()), kind.backend(*number)).frame();
        outcome.frame[14..] == expected[14..]
    });
    found.unwrap_or_else(|| panic!("it went to none of them: {outcome}"))
}

#[track_caller]
fn sends(plane: &mut Plane, kind: Kind, packet: &Packet, of: u8) -> u8 {
    let outcome = plane.run(CLIENTS, &packet.frame());
    outcome.counted_of(0, Verdict::ToBackend);
    backend_of(kind, packet, &outcome, of)
}

fn flows_go_around_by_turns(kind: Kind) {
    let mut plane = kind.plane_with(3, Algorithm::Turns);
    let picks: Vec<u8> = (1..=9).map(|client| sends(&mut plane, kind, &numbered(kind, client), 3)).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

fn the_fewest_flows_get_the_next(kind: Kind) {
    let mut plane = kind.plane_with(3, Algorithm::LeastFlows);
    for (backend, flows) in [(0, 5), (1, 3), (2, 4)] {
        plane.set_open_flows(backend, flows);
    }
    let picks: Vec<u8> = (1..=6).map(|client| sends(&mut plane, kind, &numbered(kind, client), 3)).collect();
    assert_eq!(picks, [1, 1, 2, 0, 1, 2]);
}

/// A sweep sets the counts between two packets of a flow that it did not see.
fn fewer_flows_than_none_are_none(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::LeastFlows);
    for (backend, flows) in [(0, 0u64.wrapping_sub(3)), (1, 1)] {
        plane.set_open_flows(backend, flows);
    }
    assert_eq!(sends(&mut plane, kind, &numbered(kind, 1), 2), 0);
}

fn the_fewest_flows_are_weighed(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::LeastFlows);
    plane.change_backend(1, |backend| backend.weight = 300);
    let picks: Vec<u8> = (1..=8).map(|client| sends(&mut plane, kind, &numbered(kind, client), 2)).collect();
    assert_eq!(picks.iter().filter(|pick| **pick == 1).count(), 6, "{picks:?}");
}

fn a_pool_without_backends_drops(kind: Kind) {
    for algorithm in [Algorithm::Hash, Algorithm::Turns, Algorithm::LeastFlows] {
        let mut plane = kind.plane_with(1, algorithm);
        plane.pool(0, algorithm, &[]);
        plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoBackend);
        assert_eq!(plane.remembered(), 0);
    }
}

fn a_pool_of_dead_backends_drops(kind: Kind) {
    for algorithm in [Algorithm::Hash, Algorithm::Turns, Algorithm::LeastFlows] {
        let mut plane = kind.plane_with(2, algorithm);
        for number in [0, 1] {
            plane.change_backend(number, |backend| backend.state = BackendState::Dead as u8);
        }
        plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoBackend);
    }
}

/// It would be answered from an address that it never asked.
fn a_client_that_is_its_own_backend_is_dropped(kind: Kind) {
    let mut plane = kind.plane();
    let mut first = kind.packet(kind.backend(0), kind.listener(0));
    first.source_port = 50_000;
    first.to_mac = BACKENDS.mac;
    plane.run(BACKENDS, &first.frame()).dropped(Verdict::DropOwnBackend);
    assert_eq!(plane.remembered(), 0);
}

/// Blackhole, unreachable, prohibit: the routes of 10.5.9.0/24, 10.5.11.0/24 and 10.5.8.0/24.
fn a_way_that_is_closed_drops(kind: Kind) {
    for (last, word) in [(9, "blackhole"), (11, "unreachable"), (8, "prohibit")] {
        let mut plane = kind.plane();
        let address =
            if kind.is_ip4 { format!("10.5.{last}.11:8080") } else { format!("[fd05:{last:x}::11]:8080") };
        plane.backend(0, address.parse().unwrap());
        let outcome = plane.run(CLIENTS, &kind.first().frame());
        assert!(!outcome.was_sent(), "{word}: {outcome}");
        outcome.dropped(Verdict::DropNoRoute);
    }
}

fn an_answer_without_a_flow_comes_from_its_listener(kind: Kind) {
    let mut plane = kind.plane();
    let answer = kind.answer().with_flags(ACK);
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    let mut plane = kind.flowing();
    plane.forget();
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn an_answer_of_a_backend_that_kept_the_port_finds_its_listener(kind: Kind) {
    let mut plane = kind.empty_plane();
    plane.backend(0, std::net::SocketAddr::new(kind.backend(0).ip(), 0));
    plane.pool(0, Algorithm::Hash, &[0]);
    plane.listener(0, kind.listener(0), kind.protocol, 0, &[0]);
    let mut answer = kind.answer().with_flags(ACK);
    answer.source_port = 80;
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

/// Nobody can say whose it is, and the backend's address must not be seen.
fn an_answer_without_a_flow_that_several_may_have_asked_for_is_dropped(kind: Kind) {
    let mut plane = kind.plane();
    plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
    let answer = kind.answer().with_flags(ACK);
    let outcome = plane.run(BACKENDS, &answer.frame());
    outcome.counted_of(1, Verdict::DropUnknownFlow);
    outcome.not_forwarded();
}

/// The number was given to another backend meanwhile.
fn a_flow_of_another_generation_is_not_its_backends(kind: Kind) {
    let mut plane = kind.flowing();
    plane.backend(0, kind.backend(4));
    plane.change_backend(0, |backend| backend.generation = 2);
    let later = kind.later();
    let outcome = plane.run(CLIENTS, &later.frame());
    let stale = kind.at_backend(&later).frame();
    assert_ne!(outcome.frame[14..], stale[14..], "it went to the one before");
    let answer = kind.answer();
    let outcome = plane.run(BACKENDS, &answer.frame());
    if outcome.was_sent() {
        outcome.forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    } else {
        outcome.not_forwarded();
    }
}

/// A hash leads to the same backend again: so two Weirs may take over from each other.
fn a_forgotten_flow_of_a_pool_that_hashes_goes_on(kind: Kind) {
    let mut plane = kind.flowing();
    plane.forget();
    let later = kind.later();
    plane.run(CLIENTS, &later.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&later).frame());
    assert_eq!(plane.remembered(), 2);
}

fn kill(plane: &mut Plane, number: u32) {
    plane.change_backend(number, |backend| backend.state = BackendState::Dead as u8);
}

/// Datagrams move; a connection can't.
fn a_flow_of_a_dead_backend_leaves_it(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::Turns);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0);
    kill(&mut plane, 0);
    plane.pool(0, Algorithm::Turns, &[1]);
    let later = kind.later();
    if kind.protocol == UDP {
        for _ in 0..2 {
            assert_eq!(sends(&mut plane, kind, &later, 2), 1);
        }
        assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
        let mut answer = kind.answer();
        answer.ip.source = kind.backend(1).ip();
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    } else {
        plane.run(CLIENTS, &later.frame()).answered(Verdict::Reset);
        assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 0));
    }
}

fn an_answer_of_a_dead_backend_never_leaks_its_address(kind: Kind) {
    let mut plane = kind.flowing();
    kill(&mut plane, 0);
    let answer = kind.answer().with_flags(ACK);
    let outcome = plane.run(BACKENDS, &answer.frame());
    if outcome.was_sent() {
        outcome.forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    } else {
        assert_eq!(outcome.action, 2, "dropped, not left to the host's own forwarding: {outcome}");
        outcome.not_forwarded();
    }
}

/// Three listeners share a backend, and one client has the same port for all: each has its own at the
/// backend.
fn every_free_port_of_a_backend_is_found(kind: Kind) {
    let mut plane = kind.plane();
    let mut ports = Vec::new();
    for number in 0..3 {
        plane.listener(number, kind.listener(number as u8), kind.protocol, 0, &[0]);
        let first = kind.packet(kind.client(7), kind.listener(number as u8));
        let outcome = plane.run(CLIENTS, &first.frame());
        assert!(outcome.was_sent(), "{outcome}");
        let place = outcome.frame.len() - first.transport().len();
        ports.push(u16::from_be_bytes([outcome.frame[place], outcome.frame[place + 1]]));
        outcome.counted_of(number, Verdict::ToBackend);
    }
    assert_eq!(ports[0], kind.client(7).port());
    for (number, port) in (0..).zip(ports) {
        let mut answer = kind.answer();
        answer.destination_port = port;
        let expected = answer.translated(kind.listener(number), kind.client(7));
        let outcome = plane.run(BACKENDS, &answer.frame());
        outcome.forwarded_of(u32::from(number), Verdict::ToClient, &expected.frame());
    }
}

/// Checks a reset that answers a segment: its numbers, and that it is from the listener.
#[track_caller]
fn is_reset(outcome: Outcome, segment: &Packet) {
    let frame = outcome.answered(Verdict::Reset);
    let reset = segment.translated_back();
    let read = crate::frames::Read::of(&frame);
    assert_eq!((read.source, read.destination), (reset.ip.source, reset.ip.destination));
    assert_eq!((read.port(0), read.port(2)), (reset.source_port, reset.destination_port));
    // RFC 9293 §3.10.7.1.
    if segment.flags & ACK != 0 {
        assert_eq!((read.word(4), read.body[13]), (segment.acknowledgement, RST));
    } else {
        let length = segment.payload.len() as u32
            + u32::from(segment.flags & SYN != 0)
            + u32::from(segment.flags & FIN != 0);
        let acknowledged = segment.sequence.wrapping_add(length);
        assert_eq!((read.word(4), read.word(8), read.body[13]), (0, acknowledged, RST | ACK));
    }
    assert_eq!((read.body.len(), read.body[12]), (20, 0x50), "a header and nothing else");
    assert_eq!(frame[..6], segment.from_mac, "it goes back");
    assert!(read.hop_limit >= 64);
}

/// With a sum only what is not cut can be judged: see `quotable` in `hop_limit`.
fn judged(kind: Kind, segment: Packet) -> Packet {
    if kind.is_summed { segment.with_payload(0) } else { segment }
}

fn a_segment_of_an_unknown_connection_is_reset(kind: Kind) {
    for algorithm in [Algorithm::Turns, Algorithm::LeastFlows] {
        let mut plane = kind.plane_with(1, algorithm);
        for flags in [ACK, ACK | PSH, FIN | ACK, SYN | ACK, FIN, 0] {
            let segment = judged(kind, kind.later().with_flags(flags));
            is_reset(plane.run(CLIENTS, &segment.frame()), &segment);
        }
        assert_eq!(plane.remembered(), 0);
    }
}

fn a_reset_answers_by_the_segments_own_numbers(kind: Kind) {
    let mut plane = kind.plane_with(1, Algorithm::Turns);
    for (flags, sequence, acknowledgement, bytes) in [
        (ACK, 5, 0xffff_ffff, 0),
        (ACK, 5, 0, 100),
        (FIN, 0xffff_ffff, 0, 0),
        (FIN, 0xffff_fffe, 0, 9),
        (0, 0xffff_fff0, 0, 1200),
    ] {
        let mut segment = judged(kind, kind.first().with_payload(bytes));
        segment.flags = flags;
        segment.sequence = sequence;
        segment.acknowledgement = acknowledgement;
        is_reset(plane.run(CLIENTS, &segment.frame()), &segment);
        if !kind.is_summed {
            segment.options = vec![1; 12];
            is_reset(plane.run(CLIENTS, &segment.frame()), &segment);
        }
    }
}

fn a_reset_is_not_reset(kind: Kind) {
    let mut plane = kind.plane_with(1, Algorithm::Turns);
    for flags in [RST, RST | ACK, RST | FIN, RST | SYN] {
        plane.run(CLIENTS, &kind.first().with_flags(flags).frame()).not_forwarded();
    }
}

/// In a pool that hashes it goes where the connection would be.
fn a_reset_of_an_unknown_connection_leaves_none_open(kind: Kind) {
    let mut plane = kind.plane();
    let reset = kind.later().with_flags(RST | ACK);
    plane.run(CLIENTS, &reset.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&reset).frame());
    assert_eq!(plane.open_flows(0), 0);
    kind.open(&mut plane);
    assert_eq!((plane.remembered(), plane.open_flows(0)), (2, 1));
}

fn a_connection_of_a_dead_backend_is_reset(kind: Kind) {
    for algorithm in [Algorithm::Hash, Algorithm::Turns, Algorithm::LeastFlows] {
        let mut plane = kind.plane_with(2, algorithm);
        let dead = sends(&mut plane, kind, &kind.first(), 2);
        kill(&mut plane, u32::from(dead));
        plane.pool(0, algorithm, &[u16::from(1 - dead)]);
        let segment = judged(kind, kind.later());
        is_reset(plane.run(CLIENTS, &segment.frame()), &segment);
        assert_eq!(plane.open_flows(u32::from(dead)), 0);
    }
}

/// The client tries again, or begins anew: nothing of the dead connection is in its way.
fn a_first_segment_to_a_dead_backend_finds_another(kind: Kind) {
    let mut plane = kind.plane_with(2, Algorithm::Turns);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0);
    kill(&mut plane, 0);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 1);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 1);
    assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
}

/// By turns over two backends, so that a new flow is seen by its backend.
fn by_turns(kind: Kind) -> Plane {
    let mut plane = kind.plane_with(2, Algorithm::Turns);
    assert_eq!(kind.protocol, TCP);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0);
    says(&mut plane, kind, SYN | ACK);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 0);
    plane
}

/// The backend says this.
#[track_caller]
fn says(plane: &mut Plane, kind: Kind, flags: u8) {
    let answer = kind.answer().with_flags(flags);
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

/// IPVS dropped the first segment of the next connection, and a second was lost.
fn a_port_is_used_again_after_both_have_closed(kind: Kind) {
    let mut plane = by_turns(kind);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(FIN | ACK), 2), 0);
    says(&mut plane, kind, FIN | ACK);
    assert_eq!(plane.open_flows(0), 0);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 1);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 1);
    assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
}

fn a_port_is_used_again_after_a_reset(kind: Kind) {
    for by_client in [true, false] {
        let mut plane = by_turns(kind);
        if by_client {
            assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(RST), 2), 0);
        } else {
            says(&mut plane, kind, RST);
        }
        assert_eq!(plane.open_flows(0), 0);
        assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 1);
        assert_eq!(plane.open_flows(1), 1);
    }
}

/// A first segment sent again, or forged, must not end a connection (RFC 5961 §4).
fn a_port_is_not_taken_over_while_one_side_is_open(kind: Kind) {
    let mut plane = by_turns(kind);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(FIN | ACK), 2), 0);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0);
    assert_eq!(plane.open_flows(0), 1);
}

/// Its number was none that the other side waits for, or it was forged.
fn a_reset_that_nobody_heeds_ends_no_flow(kind: Kind) {
    for by_client in [true, false] {
        let mut plane = by_turns(kind);
        for _ in 0..3 {
            if by_client {
                assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(RST), 2), 0);
            } else {
                says(&mut plane, kind, RST | ACK);
            }
            assert_eq!(plane.open_flows(0), 0);
            assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(PSH | ACK), 2), 0);
            assert_eq!(plane.open_flows(0), 0);
            says(&mut plane, kind, ACK);
            assert_eq!(plane.open_flows(0), 1);
            says(&mut plane, kind, ACK);
            assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 0);
            assert_eq!(plane.open_flows(0), 1, "it counts once");
        }
        assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 0, "its port is not used again");
        assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(FIN | ACK), 2), 0);
        says(&mut plane, kind, FIN | ACK);
        assert_eq!(plane.open_flows(0), 0);
    }
}

/// What was under way when the reset came: who has sent it answers that by another.
fn a_reset_stays_where_one_side_alone_goes_on(kind: Kind) {
    let mut plane = by_turns(kind);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(RST), 2), 0);
    (0..3).for_each(|_| says(&mut plane, kind, PSH | ACK));
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(RST), 2), 0);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 0, "a segment that the reset had overtaken");
    assert_eq!(plane.open_flows(0), 0);
    assert_eq!(sends(&mut plane, kind, &kind.first(), 2), 1);
    assert_eq!((plane.open_flows(0), plane.open_flows(1)), (0, 1));
}

fn what_both_have_closed_is_not_opened_by_what_follows_a_reset(kind: Kind) {
    let mut plane = by_turns(kind);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(FIN | ACK), 2), 0);
    says(&mut plane, kind, FIN | ACK);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(RST), 2), 0);
    says(&mut plane, kind, ACK);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 0);
    assert_eq!(plane.open_flows(0), 0);
}

fn a_closed_connections_last_segments_still_pass(kind: Kind) {
    let mut plane = by_turns(kind);
    assert_eq!(sends(&mut plane, kind, &kind.later().with_flags(FIN | ACK), 2), 0);
    says(&mut plane, kind, FIN | ACK);
    assert_eq!(sends(&mut plane, kind, &kind.later(), 2), 0);
    says(&mut plane, kind, ACK);
    says(&mut plane, kind, FIN | ACK);
    assert_eq!(plane.open_flows(0), 0, "counted down once");
}

/// What passive health goes by: a reset before any answer.
fn a_backend_that_refuses_is_counted(kind: Kind) {
    let mut plane = kind.plane();
    let before = plane.backend_counts(0).refused;
    kind.open(&mut plane);
    let reset = kind.refusal();
    plane.run(BACKENDS, &reset.frame()).forwarded(Verdict::ToClient, &kind.at_client(&reset).frame());
    assert_eq!(plane.backend_counts(0).refused - before, 1);
    // Once it has answered, a reset says nothing of its health.
    let mut plane = by_turns(kind);
    let before = plane.backend_counts(0).refused;
    says(&mut plane, kind, RST);
    assert_eq!(plane.backend_counts(0).refused - before, 0);
}

/// The new connection keeps its port at the backend, which has forgotten the last one's by its own rules.
#[test]
fn a_reopened_flow_has_the_clients_own_port() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.flowing();
        says(&mut plane, kind, RST);
        kind.open(&mut plane);
        assert_eq!(plane.remembered(), 2);
    }
}
