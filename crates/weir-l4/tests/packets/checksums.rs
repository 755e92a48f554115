//! Sums follow the addresses by their difference: right ones stay right, wrong ones wrong, and none stays
//! none.

use weir_l4::layout::{UDP, Verdict};

use crate::frames::{Packet, Sum, plus, sum_of};
use crate::kinds::{Kind, TCP4, UDP4, UDP6, each_kind, each_kind_and_sum};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

each_kind_and_sum! {
    a_wrong_sum_stays_wrong_by_as_much
    a_sum_that_comes_out_as_zero_is_right
}

each_kind! {
    sums_of_many_packets_are_right
}

/// Sends it from the client's side, and from the backend's.
fn both_ways(plane: &mut Plane, kind: Kind, change: impl Fn(&mut Packet, &Packet)) {
    let (mut packet, mut answer) = (kind.later(), kind.answer());
    change(&mut packet, &kind.at_backend(&kind.later()));
    change(&mut answer, &kind.at_client(&kind.answer()));
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn a_wrong_sum_stays_wrong_by_as_much(kind: Kind) {
    let mut plane = kind.flowing();
    for error in [1, 0x00ff, 0x1234, 0x8000, 0xfffe] {
        both_ways(&mut plane, kind, |packet, _| packet.sum = Sum::Off(error));
    }
}

/// UDP says so with all ones (RFC 768, RFC 8200 §8.1); for TCP both are the same number, and ours may choose.
fn a_sum_that_comes_out_as_zero_is_right(kind: Kind) {
    let mut plane = kind.flowing();
    for (at, came, mut expected) in [
        (CLIENTS, kind.later(), kind.at_backend(&kind.later())),
        (BACKENDS, kind.answer(), kind.at_client(&kind.answer())),
    ] {
        let payload = payload_for_sum_of_zero(&expected);
        let mut packet = came;
        packet.payload = payload.clone();
        expected.payload = payload;
        let outcome = plane.run(at, &packet.frame());
        let place =
            outcome.frame.len() - expected.transport().len() + if kind.protocol == UDP { 6 } else { 16 };
        let sum = u16::from_be_bytes([outcome.frame[place], outcome.frame[place + 1]]);
        assert!(sum == 0xffff || sum == 0 && kind.protocol != UDP, "{sum:04x}");
        let mut wanted = expected.frame();
        wanted[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        let verdict = if at == CLIENTS { Verdict::ToBackend } else { Verdict::ToClient };
        outcome.forwarded(verdict, &wanted);
    }
}

/// Two bytes that make the sum of the packet 0.
fn payload_for_sum_of_zero(packet: &Packet) -> Vec<u8> {
    let mut with_none = packet.clone();
    with_none.payload = vec![0, 0];
    let transport = with_none.transport();
    let place = if packet.protocol == UDP { 6 } else { 16 };
    let sum = u16::from_be_bytes([transport[place], transport[place + 1]]);
    sum.to_be_bytes().to_vec()
}

fn sums_of_many_packets_are_right(kind: Kind) {
    let mut plane = kind.flowing();
    let mut state = 0x9e37_79b9_u32;
    for _ in 0..200 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = state.to_be_bytes();
        both_ways(&mut plane, kind, |packet, _| packet.payload = word.to_vec());
    }
}

#[test]
fn a_udp_packet_without_a_sum_gets_none_over_ipv4() {
    for kind in [UDP4, UDP4.summed()] {
        both_ways(&mut kind.flowing(), kind, |packet, _| packet.sum = Sum::Missing);
    }
}

/// It is not allowed (RFC 8200 §8.1) but for tunnels (RFC 6935); it is for its receiver to judge.
#[test]
fn a_udp_packet_without_a_sum_gets_none_over_ipv6() {
    for kind in [UDP6, UDP6.summed()] {
        both_ways(&mut kind.flowing(), kind, |packet, _| packet.sum = Sum::Missing);
    }
}

#[test]
fn a_udp_packet_without_a_sum_may_open_a_flow() {
    for kind in [UDP4, UDP6, UDP4.summed(), UDP6.summed()] {
        let first = kind.first().with_sum(Sum::Missing);
        let outcome = kind.plane().run(CLIENTS, &first.frame());
        outcome.forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
    }
}

#[test]
fn a_udp_packet_without_a_sum_gets_none_when_its_ports_change() {
    for kind in [UDP4, UDP6, UDP4.summed(), UDP6.summed()] {
        let mut plane = kind.flowing();
        plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
        let other = kind.packet(kind.client(7), kind.listener(1)).with_sum(Sum::Missing);
        let outcome = plane.run(CLIENTS, &other.frame());
        let place = outcome.frame.len() - other.transport().len() + 6;
        assert_eq!(outcome.frame[place..place + 2], [0, 0]);
    }
}

#[test]
fn a_packet_whose_header_sum_is_wrong_is_dropped_before_it_opens_a_flow() {
    for kind in [TCP4, UDP4] {
        for error in [1, 0x100, 0x8000] {
            let mut plane = kind.plane();
            let mut first = kind.first();
            first.ip.sum_error = error;
            plane.run(CLIENTS, &first.frame()).dropped(Verdict::DropBadHeader);
            assert_eq!(plane.remembered(), 0);
        }
    }
}

#[test]
fn a_packet_whose_header_sum_is_wrong_is_dropped_in_a_flow() {
    for kind in [TCP4, UDP4] {
        let mut plane = kind.flowing();
        let (mut packet, mut answer) = (kind.later(), kind.answer());
        packet.ip.sum_error = 0x55;
        answer.ip.sum_error = 0x55;
        plane.run(CLIENTS, &packet.frame()).dropped(Verdict::DropBadHeader);
        plane.run(BACKENDS, &answer.frame()).dropped(Verdict::DropBadHeader);
    }
}

/// The words of a header that has options count too.
#[test]
fn a_header_sum_covers_options() {
    let kind = TCP4;
    let mut first = kind.first();
    first.ip.options = vec![1, 1, 1, 0];
    let mut frame = first.frame();
    frame[14 + 20] ^= 0x40;
    kind.plane().run(CLIENTS, &frame).dropped(Verdict::DropBadHeader);
}

#[test]
fn the_sum_is_that_of_the_rfc() {
    // RFC 1071 §3.
    assert_eq!(sum_of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    assert_eq!(plus(0xffff, 1), 1);
}
