//! Flows that are opening are held apart until their client has heard the backend: a flood from addresses of
//! others pushes out nothing that has settled.

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::layout::{Algorithm, TCP, Verdict};

use crate::frames::{ACK, FIN, Packet, RST, SYN};
use crate::kinds::{Kind, TCP4, TCP6, each_kind, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::{FLOWS, Plane};

each_kind! {
    a_flow_settles_when_its_client_has_heard_the_backend
    a_first_packet_sent_again_settles_nothing
    a_settled_flow_begins_anew_among_those_that_are_opening
}

each_kind_of_nat! {
    a_flood_pushes_out_no_flow_that_has_settled
    a_flood_past_the_listener_pushes_out_no_flow_that_has_settled
}

impl Plane {
    /// Lets time pass for flows that are opening, in ticks.
    pub fn age_opening(&mut self, ticks: u32) {
        self.change_opening(|flow| flow.last_tick -= ticks);
    }
}

/// The answer of the backend to a client's first packet.
fn answer_to(kind: Kind, first: &Packet) -> Packet {
    let mut answer = kind.answer();
    let seen = kind.seen(first.source());
    (answer.ip.destination, answer.destination_port) = (seen.ip(), seen.port());
    answer
}

/// What the client says when it has heard that.
fn heard(kind: Kind, first: &Packet, answer: &Packet) -> Packet {
    let mut later = first.clone();
    if kind.protocol == TCP {
        later = later.with_flags(ACK);
        later.acknowledgement = answer.sequence.wrapping_add(1);
    }
    later
}

/// Goes through a handshake, or through a question, its answer and another question.
#[track_caller]
fn shakes_hands(plane: &mut Plane, kind: Kind, first: &Packet) {
    let answer = answer_to(kind, first);
    let later = heard(kind, first, &answer);
    plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(first).frame());
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    plane.run(CLIENTS, &later.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&later).frame());
}

fn a_flow_settles_when_its_client_has_heard_the_backend(kind: Kind) {
    let mut plane = kind.flowing();
    assert_eq!((plane.opening(), plane.settled()), (2, 0));
    let answer = kind.answer();
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    assert_eq!((plane.opening(), plane.settled()), (2, 0));
    let later = heard(kind, &kind.first(), &answer);
    for _ in 0..2 {
        plane.run(CLIENTS, &later.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&later).frame());
        assert_eq!((plane.opening(), plane.settled()), (0, 2));
        let answer = kind.answer().with_flags(ACK);
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
    }
    assert_eq!(plane.open_flows(0), 1);
}

fn a_first_packet_sent_again_settles_nothing(kind: Kind) {
    let mut plane = kind.flowing();
    kind.open(&mut plane);
    assert_eq!((plane.opening(), plane.settled()), (2, 0));
}

/// Three times as many first packets as there is room for, each from another port and address.
fn flood(plane: &mut Plane, kind: Kind, to: std::net::SocketAddr) {
    for number in 0..3 * FLOWS {
        let mut packet = kind.packet(kind.client(1 + (number % 200) as u8), to).with_flags(SYN);
        packet.source_port = 1024 + (number / 200) as u16;
        let frame = packet.frame();
        let packet = TestPacket {
            frame: &frame,
            interface: CLIENTS.interface,
            segments: 0,
            segment_bytes: 0,
            is_summed: kind.is_summed,
            repeat: 1,
        };
        test_run(plane.program(), &packet).expect("the kernel runs it");
    }
    plane.recount();
}

/// Flows that have settled, and are silent from then on.
fn settled(plane: &mut Plane, kind: Kind) -> Vec<Packet> {
    let firsts: Vec<Packet> = (0..100)
        .map(|number| {
            let mut first = kind.first();
            first.source_port = 50_000 + number;
            first
        })
        .collect();
    firsts.iter().for_each(|first| shakes_hands(plane, kind, first));
    assert_eq!(plane.settled(), 200);
    firsts
}

fn a_flood_pushes_out_no_flow_that_has_settled(kind: Kind) {
    for algorithm in [Algorithm::Hash, Algorithm::Turns, Algorithm::LeastFlows] {
        let mut plane = kind.plane_with(1, algorithm);
        let firsts = settled(&mut plane, kind);
        flood(&mut plane, kind, kind.listener(0));
        assert_eq!(plane.settled(), 200, "{algorithm:?}");
        assert!(plane.opening() > 0);
        for first in &firsts {
            let answer = answer_to(kind, first);
            let later = heard(kind, first, &answer);
            plane
                .run(CLIENTS, &later.frame())
                .forwarded(Verdict::ToBackend, &kind.at_backend(&later).frame());
        }
        // And who comes now gets through.
        let mut first = kind.first();
        first.source_port = 60_000;
        shakes_hands(&mut plane, kind, &first);
    }
}

/// Whom a backend's answers are for that was asked by its own address is remembered, too.
fn a_flood_past_the_listener_pushes_out_no_flow_that_has_settled(kind: Kind) {
    let mut plane = kind.plane();
    settled(&mut plane, kind);
    flood(&mut plane, kind, kind.backend(0));
    assert_eq!(plane.settled(), 200);
}

/// Its port is used again after a reset, or its backend is another by now.
fn a_settled_flow_begins_anew_among_those_that_are_opening(kind: Kind) {
    let mut plane = kind.plane();
    shakes_hands(&mut plane, kind, &kind.first());
    plane.change_backend(0, |backend| backend.generation = 2);
    if kind.protocol == TCP {
        let later = kind.later();
        plane.run(CLIENTS, &later.frame()).answered(Verdict::Reset);
        assert_eq!(plane.remembered(), 0);
    }
    shakes_hands(&mut plane, kind, &kind.first());
    assert_eq!((plane.opening(), plane.settled()), (0, 2));
}

/// Only who gets the backend's answer knows its sequence number.
#[test]
fn who_guesses_an_acknowledgement_settles_nothing() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.flowing();
        let answer = kind.answer();
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
        for away in [1 << 20, 1 << 30, 1 << 31, u32::MAX - (1 << 20)] {
            let mut guess = heard(kind, &kind.first(), &answer);
            guess.acknowledgement = guess.acknowledgement.wrapping_add(away);
            assert!(plane.run(CLIENTS, &guess.frame()).was_sent());
            assert_eq!((plane.opening(), plane.settled()), (2, 0), "{away}");
        }
    }
}

/// What the backend said last is 0 as long as it has said nothing.
#[test]
fn who_acknowledges_what_no_backend_has_said_settles_nothing() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.flowing();
        for acknowledgement in [0, 1, 1000, u32::MAX] {
            let mut guess = kind.later();
            guess.acknowledgement = acknowledgement;
            assert!(plane.run(CLIENTS, &guess.frame()).was_sent());
            assert_eq!((plane.opening(), plane.settled()), (2, 0), "{acknowledgement}");
        }
    }
}

/// Its application may have broken the connection off.
#[test]
fn a_backend_that_answers_before_it_resets_has_refused_nothing() {
    for kind in [TCP4, TCP6] {
        let refused = |answers: bool| {
            let mut plane = kind.flowing();
            let before = plane.backend_counts(0).refused;
            let answer = kind.answer();
            let reset = kind.refusal();
            for packet in [&answer, &reset].into_iter().skip(usize::from(!answers)) {
                let expected = kind.at_client(packet).frame();
                plane.run(BACKENDS, &packet.frame()).forwarded(Verdict::ToClient, &expected);
            }
            plane.backend_counts(0).refused - before
        };
        assert_eq!((refused(true), refused(false)), (0, 1));
    }
}

/// Of a pool that hashes segments go on that nobody knows: what the backend resets was none.
#[test]
fn a_segment_that_the_backend_resets_settles_nothing_and_is_no_refusal() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.plane();
        let before = plane.backend_counts(0).refused;
        let segment = kind.later();
        plane
            .run(CLIENTS, &segment.frame())
            .forwarded(Verdict::ToBackend, &kind.at_backend(&segment).frame());
        let mut reset = kind.answer().with_flags(RST);
        reset.sequence = segment.acknowledgement;
        plane.run(BACKENDS, &reset.frame()).forwarded(Verdict::ToClient, &kind.at_client(&reset).frame());
        assert!(plane.run(CLIENTS, &segment.frame()).was_sent());
        assert_eq!((plane.opening(), plane.settled()), (2, 0));
        assert_eq!(plane.backend_counts(0).refused, before);
    }
}

/// Who is served is what failures of a single client are held against.
#[test]
fn a_connection_is_served_once_its_client_has_heard_the_backend() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.plane();
        let before = plane.backend_counts(0).served;
        shakes_hands(&mut plane, kind, &kind.first());
        let later = kind.later();
        assert!(plane.run(CLIENTS, &later.frame()).was_sent());
        assert_eq!(plane.backend_counts(0).served - before, 1);
    }
}

/// A SYN again at once is a fault of the network; a second later nobody has answered.
#[test]
fn a_backend_that_does_not_answer_is_counted_once_for_each_connection() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.flowing();
        let before = plane.backend_counts(0).unanswered;
        // Two at once might lie on both sides of a tick's end.
        for _ in 0..3 {
            plane.age_opening(2);
            kind.open(&mut plane);
        }
        assert_eq!(plane.backend_counts(0).unanswered - before, 1);
        let mut plane = kind.flowing();
        let answer = kind.answer();
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
        let before = plane.backend_counts(0).unanswered;
        plane.age_opening(2);
        kind.open(&mut plane);
        assert_eq!(plane.backend_counts(0).unanswered - before, 0, "the answer was lost on its way");
    }
}

/// One client could make a backend say this of what no listener refuses.
#[test]
fn a_reset_that_does_not_acknowledge_the_first_segment_is_no_refusal() {
    for kind in [TCP4, TCP6] {
        let mut to_a_later_segment = kind.refusal();
        to_a_later_segment.flags = RST;
        let mut of_another = kind.refusal();
        of_another.acknowledgement = kind.first().sequence;
        let mut far = kind.refusal();
        far.acknowledgement = kind.first().sequence + 1 + (1 << 16);
        for reset in [to_a_later_segment, of_another, far] {
            let mut plane = kind.flowing();
            let before = plane.backend_counts(0).refused;
            plane.run(BACKENDS, &reset.frame()).forwarded(Verdict::ToClient, &kind.at_client(&reset).frame());
            assert_eq!(plane.backend_counts(0).refused, before, "{reset:?}");
        }
    }
}

/// Hosts take it for somebody's probe and say nothing, which is no fault of the backend.
#[test]
fn a_segment_that_opens_and_ends_is_dropped_by_name() {
    for kind in [TCP4, TCP6] {
        for algorithm in [Algorithm::Hash, Algorithm::Turns] {
            let mut plane = kind.plane_with(1, algorithm);
            for flags in [SYN | FIN, SYN | FIN | ACK, SYN | FIN | RST] {
                plane.run(CLIENTS, &kind.first().with_flags(flags).frame()).dropped(Verdict::DropBadFlags);
            }
            assert_eq!(plane.remembered(), 0);
        }
    }
}

/// Another number is another connection, and what does not open asks nothing again.
#[test]
fn only_the_first_segment_sent_again_is_unanswered() {
    for kind in [TCP4, TCP6] {
        let mut another = kind.first();
        another.sequence += 1;
        for packet in [another, kind.first().with_flags(SYN | FIN), kind.first().with_flags(SYN | ACK)] {
            let mut plane = kind.flowing();
            let before = plane.backend_counts(0);
            plane.age_opening(2);
            assert!(plane.run(CLIENTS, &packet.frame()).was_sent());
            assert_eq!(plane.backend_counts(0).unanswered, before.unanswered, "{packet:?}");
        }
    }
}

/// Of IPv6 all addresses of a network are one client's.
#[test]
fn failures_of_one_client_count_once_and_those_of_another_again() {
    for kind in [TCP4, TCP6] {
        let mut plane = kind.plane();
        let before = plane.backend_counts(0);
        let mut firsts = Vec::new();
        for (client, ports) in [(7, 5), (8, 5)] {
            for port in 0..ports {
                let mut first = kind.packet(kind.client(client), kind.listener(0)).with_flags(SYN);
                first.source_port = 50_000 + port;
                firsts.push(first);
            }
        }
        for _ in 0..2 {
            for first in &firsts {
                let expected = kind.at_backend(first).frame();
                plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected);
            }
            plane.age_opening(2);
        }
        let after = plane.backend_counts(0);
        let counted = (after.unanswered - before.unanswered, after.failed_again - before.failed_again);
        assert_eq!(counted, if kind.is_ip4 { (2, 8) } else { (1, 9) });
    }
}
