//! Fragments follow the first one of their packet, which alone has the ports.

use weir_l4::layout::{UDP, Verdict};

use crate::frames::{DESTINATION_OPTIONS, FRAGMENT, ICMP6, Packet};
use crate::kinds::{Kind, TCP4, TCP6, UDP4, UDP6, each_kind, each_kind_and_sum, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS};

each_kind_and_sum! {
    fragments_of_a_client_follow_the_first
    fragments_of_a_backend_follow_the_first
}

each_kind! {
    a_first_fragment_may_open_a_flow
    fragments_of_another_packet_are_not_mixed_up
    a_first_fragment_without_a_whole_header_is_not_forwarded
    fragments_for_an_address_without_listener_are_untouched
    later_fragments_to_a_host_address_from_a_backend_are_untouched
    a_later_fragment_passes_once_the_first_has_come
}

each_kind_of_nat! {
    a_later_fragment_before_the_first_is_dropped
}

fn long(packet: Packet) -> Packet {
    packet.with_payload(2000)
}

fn fragments_of_a_client_follow_the_first(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = long(kind.later());
    let expected = kind.at_backend(&packet).fragments(&[800, 1600]);
    for (fragment, expected) in packet.fragments(&[800, 1600]).iter().zip(expected) {
        plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
    }
}

fn fragments_of_a_backend_follow_the_first(kind: Kind) {
    let mut plane = kind.flowing();
    let answer = long(kind.answer());
    let expected = kind.at_client(&answer).fragments(&[1024]);
    for (fragment, expected) in answer.fragments(&[1024]).iter().zip(expected) {
        plane.run(BACKENDS, fragment).forwarded(Verdict::ToClient, &expected);
    }
}

fn a_first_fragment_may_open_a_flow(kind: Kind) {
    let mut plane = kind.plane();
    let first = long(kind.first());
    let expected = kind.at_backend(&first).fragments(&[1024]);
    for (fragment, expected) in first.fragments(&[1024]).iter().zip(expected) {
        plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
    }
}

fn a_later_fragment_before_the_first_is_dropped(kind: Kind) {
    let mut plane = kind.flowing();
    plane.run(CLIENTS, &long(kind.later()).fragments(&[1024])[1]).dropped(Verdict::DropFragment);
    plane.run(BACKENDS, &long(kind.answer()).fragments(&[1024])[1]).dropped(Verdict::DropFragment);
}

fn a_later_fragment_passes_once_the_first_has_come(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = long(kind.later());
    let (fragments, expected) = (packet.fragments(&[1024]), kind.at_backend(&packet).fragments(&[1024]));
    plane.run(CLIENTS, &fragments[1]).dropped(Verdict::DropFragment);
    plane.run(CLIENTS, &fragments[0]).forwarded(Verdict::ToBackend, &expected[0]);
    plane.run(CLIENTS, &fragments[1]).forwarded(Verdict::ToBackend, &expected[1]);
}

fn fragments_of_another_packet_are_not_mixed_up(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = long(kind.later());
    let expected = kind.at_backend(&packet).fragments(&[1024]);
    plane.run(CLIENTS, &packet.fragments(&[1024])[0]).forwarded(Verdict::ToBackend, &expected[0]);
    let mut other = packet.clone();
    other.ip.id = 0x4321;
    plane.run(CLIENTS, &other.fragments(&[1024])[1]).dropped(Verdict::DropFragment);
    let mut other = packet;
    other.ip.source = kind.client(8).ip();
    plane.run(CLIENTS, &other.fragments(&[1024])[1]).dropped(Verdict::DropFragment);
}

/// Without the transport's sum it can't be translated (RFC 1858, RFC 7112).
fn a_first_fragment_without_a_whole_header_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    // UDP's header has 8 bytes: a fragment with bytes cannot be shorter.
    if kind.protocol == UDP {
        return;
    }
    for cut in [8, 16] {
        for fragment in kind.later().fragments(&[cut]) {
            plane.run(CLIENTS, &fragment).not_forwarded();
        }
    }
}

fn fragments_for_an_address_without_listener_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let other = long(kind.packet(kind.client(7), kind.listener(3)));
    for fragment in other.fragments(&[1024]) {
        plane.run(CLIENTS, &fragment).untouched();
    }
}

fn later_fragments_to_a_host_address_from_a_backend_are_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let mut answer = long(kind.answer());
    answer.ip.destination = kind.host(2, 200).ip();
    plane.host_address(answer.ip.destination);
    for fragment in answer.fragments(&[1024]) {
        plane.run(BACKENDS, &fragment).untouched();
    }
}

/// RFC 6946: a fragment header around a whole packet.
#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    for kind in [TCP6, UDP6, TCP6.summed(), UDP6.summed()] {
        let mut plane = kind.plane();
        let (mut first, mut answer) = (kind.first(), kind.answer());
        first.ip.extensions = vec![(FRAGMENT, first.ip.fragment_header())];
        answer.ip.extensions = first.ip.extensions.clone();
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
        plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
        // It is not waited for by fragments of the same number.
        first.ip.extensions.clear();
        plane.run(CLIENTS, &first.with_payload(64).fragments(&[32])[1]).dropped(Verdict::DropFragment);
    }
}

/// What stands before the transport of the first fragment is no header of the later ones, whose Next Header
/// counts for nothing (RFC 8200 §4.5): they were dropped.
#[test]
fn later_fragments_follow_whatever_next_header_they_name() {
    for kind in [TCP6, UDP6, TCP6.summed(), UDP6.summed()] {
        let mut plane = kind.flowing();
        let (packet, answer) = (long(kind.later()), long(kind.answer()));
        // Destination options behind the fragment header; one that names no header; one that names ICMPv6.
        let options = [&[kind.protocol, 0, 1, 4, 0, 0, 0, 0][..], &packet.transport()].concat();
        for (behind, first, later) in [
            (&options, DESTINATION_OPTIONS, DESTINATION_OPTIONS),
            (&packet.transport(), kind.protocol, 59),
            (&packet.transport(), kind.protocol, ICMP6),
        ] {
            let cut = |packet: &Packet, behind: &[u8]| {
                let mut ip = packet.ip.clone();
                let mut pieces = Vec::new();
                for (at, piece) in [(0, &behind[..1024]), (1024, &behind[1024..])] {
                    (ip.offset, ip.more_fragments) = (at, at == 0);
                    pieces.push(packet.framed(&ip.around(if at == 0 { first } else { later }, piece)));
                }
                pieces
            };
            let there = kind.at_backend(&packet);
            let head = behind.len() - packet.transport().len();
            let expected = [&behind[..head], &there.transport()].concat();
            for (fragment, expected) in cut(&packet, behind).iter().zip(cut(&there, &expected)) {
                plane.run(CLIENTS, fragment).forwarded(Verdict::ToBackend, &expected);
            }
            let back = kind.at_client(&answer);
            let sent = [&behind[..head], &answer.transport()].concat();
            let expected = [&behind[..head], &back.transport()].concat();
            for (fragment, expected) in cut(&answer, &sent).iter().zip(cut(&back, &expected)) {
                plane.run(BACKENDS, fragment).forwarded(Verdict::ToClient, &expected);
            }
        }
    }
}

/// A later fragment's first bytes are payload, whatever they look like.
#[test]
fn bytes_of_a_later_fragment_are_no_ports() {
    for kind in [TCP4, UDP4, TCP6, UDP6] {
        let mut plane = kind.flowing();
        let mut packet = kind.later();
        let header = packet.transport();
        let filler = if kind.protocol == UDP { 8 } else { 20 };
        packet.payload = [vec![0; 64 - filler], header].concat();
        plane.run(CLIENTS, &packet.fragments(&[64])[1]).dropped(Verdict::DropFragment);
    }
}
