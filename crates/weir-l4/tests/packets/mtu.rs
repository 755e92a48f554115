//! What does not fit the way out is not sent there: the sender is told what fits (RFC 1191, RFC 8201).

use std::net::SocketAddr;

use weir_l4::layout::{Settings, TCP, Verdict};

use crate::frames::{Packet, Read, sum_of};
use crate::kinds::{Kind, TCP4, UDP4, each_kind};
use crate::namespace::{BACKENDS, CLIENTS, Device, NARROW, NARROW_MTU, ROUTE_MTU};
use crate::plane::Plane;

// With a sum over the whole packet an answer can't be judged: see `quotable` in `hop_limit`.
each_kind! {
    a_packet_larger_than_the_interface_is_answered
    an_answer_larger_than_the_way_to_the_client_is_answered
    a_packet_that_just_fits_goes_on
    padding_behind_a_packet_is_not_in_its_way
    a_packet_larger_than_the_route_is_answered
    a_train_whose_segments_fit_goes_on
    a_train_that_was_not_counted_goes_on_where_its_segments_fit
    a_train_that_is_longer_than_its_header_can_say_goes_on
    a_train_whose_segments_do_not_fit_is_answered
    a_train_whose_segments_are_larger_than_the_route_is_answered
    a_first_packet_that_does_not_fit_is_answered
    who_has_a_flow_is_told_what_fits_though_strays_used_up_their_answers
}

/// A plane whose backend is at `host`, and that has a flow.
fn plane_to(kind: Kind, backend: SocketAddr) -> Plane {
    let mut plane = kind.plane();
    plane.backend(0, backend);
    plane.change_backend(0, |backend| backend.interface = 0);
    let first = kind.first();
    let expected = first.translated(kind.seen(first.source()), backend);
    plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected.frame());
    plane
}

/// A packet of so many bytes from the IP header on.
fn of_size(packet: Packet, bytes: u16) -> Packet {
    let bare = packet.with_payload(0);
    let head = bare.bytes().len();
    bare.with_payload(usize::from(bytes) - head)
}

#[track_caller]
fn is_told(kind: Kind, plane: &mut Plane, at: Device, packet: &Packet, mtu: u16) {
    let read = Read::of(&plane.run(at, &packet.frame()).answered(Verdict::TooBig));
    is_too_big(kind, &read, packet, mtu);
}

#[track_caller]
fn is_too_big(kind: Kind, read: &Read, packet: &Packet, mtu: u16) {
    assert_eq!(read.destination, packet.ip.source);
    assert_eq!([read.body[0], read.body[1]], if kind.is_ip4 { [3, 4] } else { [2, 0] });
    assert_eq!(read.word(4), u32::from(mtu), "the next hop's MTU, after 16 bits of nothing");
    let quote = &read.body[8..];
    assert!(packet.bytes().starts_with(quote), "quoted as it came: {quote:02x?}");
    assert!(quote.len() >= if kind.is_ip4 { 28 } else { 48 }, "header and 8 bytes: {quote:02x?}");
}

fn a_packet_larger_than_the_interface_is_answered(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    is_told(kind, &mut plane, CLIENTS, &of_size(kind.later(), NARROW_MTU + 1), NARROW_MTU);
    is_told(kind, &mut plane, CLIENTS, &of_size(kind.later(), 1500), NARROW_MTU);
}

fn an_answer_larger_than_the_way_to_the_client_is_answered(kind: Kind) {
    let mut plane = kind.flowing();
    is_told(kind, &mut plane, BACKENDS, &of_size(kind.answer(), 1501), 1500);
}

fn a_packet_that_just_fits_goes_on(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    for bytes in [NARROW_MTU - 1, NARROW_MTU] {
        let packet = of_size(kind.later(), bytes);
        let expected = packet.translated(kind.seen(packet.source()), kind.host(3, 0));
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &expected.frame());
    }
}

/// Whether the host forwards, and so knows the way's MTU, or not.
fn padding_behind_a_packet_is_not_in_its_way(kind: Kind) {
    for forwards in [true, false] {
        let mut plane = kind.flowing();
        plane.set_forwarding(forwards);
        plane.settings(Settings { routes: 1, ..Settings::default() });
        let mut packet = of_size(kind.later(), 1500);
        packet.padding = 40;
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    }
}

fn a_packet_larger_than_the_route_is_answered(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(4, 0));
    let fits = of_size(kind.later(), ROUTE_MTU);
    let expected = fits.translated(kind.seen(fits.source()), kind.host(4, 0));
    plane.run(CLIENTS, &fits.frame()).forwarded(Verdict::ToBackend, &expected.frame());
    is_told(kind, &mut plane, CLIENTS, &of_size(kind.later(), ROUTE_MTU + 1), ROUTE_MTU);
}

fn a_train_whose_segments_fit_goes_on(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    let packet = kind.later().with_payload(2600);
    let outcome = plane.run_train(CLIENTS, &packet.frame(), 2, 1300);
    let expected = packet.translated(kind.seen(packet.source()), kind.host(3, 0));
    assert!(outcome.was_sent(), "{outcome}");
    assert_eq!(outcome.frame[14..], expected.frame()[14..]);
    outcome.counted_packets(2);
}

/// A hypervisor's device hands trains on without having counted their segments.
fn a_train_that_was_not_counted_goes_on_where_its_segments_fit(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    let packet = kind.later().with_payload(2600);
    let outcome = plane.run_train(CLIENTS, &packet.frame(), 0, 1300);
    let expected = packet.translated(kind.seen(packet.source()), kind.host(3, 0));
    outcome.forwarded(Verdict::ToBackend, &expected.frame());
}

/// The frame with a header that says no length, as the kernel has it of more than 64 KiB (BIG TCP).
fn without_length(kind: Kind, packet: &Packet) -> Vec<u8> {
    let mut frame = packet.frame();
    if !kind.is_ip4 {
        frame[18..20].fill(0);
        return frame;
    }
    frame[16..18].fill(0);
    frame[24..26].fill(0);
    let sum = !sum_of(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// It was dropped as one that ends too soon. Of a datagram, and of what is no train, it is.
fn a_train_that_is_longer_than_its_header_can_say_goes_on(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    let packet = kind.later().with_payload(2600);
    let expected = packet.translated(kind.seen(packet.source()), kind.host(3, 0));
    plane.run(CLIENTS, &without_length(kind, &packet)).not_forwarded();
    let outcome = plane.run_train(CLIENTS, &without_length(kind, &packet), 2, 1300);
    if kind.protocol == TCP {
        assert!(outcome.was_sent(), "{outcome}");
        assert_eq!(outcome.frame[14..], without_length(kind, &expected)[14..]);
        let outcome = plane.run_train(CLIENTS, &without_length(kind, &packet), 2, 1450);
        outcome.counted_packets(2);
        assert!(outcome.frame.len() < 200, "an error: {outcome}");
    } else {
        assert!(!outcome.was_sent(), "{outcome}");
    }
}

fn a_train_whose_segments_do_not_fit_is_answered(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    let packet = kind.later().with_payload(2900);
    let outcome = plane.run_train(CLIENTS, &packet.frame(), 2, 1450);
    outcome.counted_packets(2);
    assert!(outcome.was_sent(), "{outcome}");
    is_too_big(kind, &Read::of(&outcome.frame), &packet, NARROW_MTU);
}

/// The interface has room for them, the route (`mtu lock`) has not: they left larger than it.
fn a_train_whose_segments_are_larger_than_the_route_is_answered(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(4, 0));
    let head = (kind.later().with_payload(0).bytes().len()) as u32;
    let packet = kind.later().with_payload(2600);
    for segments in [0, 3] {
        let fits = plane.run_train(CLIENTS, &packet.frame(), segments, u32::from(ROUTE_MTU) - head);
        let expected = packet.translated(kind.seen(packet.source()), kind.host(4, 0));
        assert!(fits.was_sent(), "{fits}");
        assert_eq!(fits.frame[14..], expected.frame()[14..]);
        let outcome = plane.run_train(CLIENTS, &packet.frame(), segments, u32::from(ROUTE_MTU) - head + 1);
        assert!(outcome.was_sent(), "{outcome}");
        is_too_big(kind, &Read::of(&outcome.frame), &packet, ROUTE_MTU);
    }
}

/// By a little or by much; whether the way to the backend was known or not.
fn a_first_packet_that_does_not_fit_is_answered(kind: Kind) {
    for interface in [0, NARROW.interface] {
        for bytes in [NARROW_MTU + 1, NARROW_MTU + 5, 1500] {
            let mut plane = kind.plane();
            plane.backend(0, kind.host(3, 0));
            plane.change_backend(0, |backend| backend.interface = interface);
            is_told(kind, &mut plane, CLIENTS, &of_size(kind.first(), bytes), NARROW_MTU);
        }
    }
}

/// Thousands of segments of no connection, each answered by a reset, kept everybody from the MTU.
fn who_has_a_flow_is_told_what_fits_though_strays_used_up_their_answers(kind: Kind) {
    let mut plane = plane_to(kind, kind.host(3, 0));
    let large = of_size(kind.later(), NARROW_MTU + 1);
    plane.answered(0..1, all_of_this_tick());
    is_told(kind, &mut plane, CLIENTS, &large, NARROW_MTU);
    let mut answer = kind.answer();
    (answer.ip.source, answer.to_mac) = (kind.host(3, 0).ip(), NARROW.mac);
    assert!(plane.run(NARROW, &answer.frame()).was_sent());
    let mut heard = kind.later();
    heard.acknowledgement = answer.sequence + 1;
    assert!(plane.run(CLIENTS, &heard.frame()).was_sent());
    assert_eq!(plane.settled(), 2);
    plane.answered(0..2, all_of_this_tick());
    plane.answered(3..4, all_of_this_tick());
    is_told(kind, &mut plane, CLIENTS, &large, NARROW_MTU);
}

/// The program's clock, and more answers than it gives.
pub fn all_of_this_tick() -> [u32; 2] {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    [((now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64) >> 30) as u32, 1 << 20]
}

/// A router would cut it (RFC 791 §3.2); here it is dropped, and its sender is not told of a rule that it did
/// not make.
#[test]
fn an_ipv4_packet_that_may_be_cut_is_dropped_when_it_does_not_fit() {
    for kind in [TCP4, UDP4] {
        let mut plane = plane_to(kind, kind.host(3, 0));
        let mut packet = of_size(kind.later(), NARROW_MTU + 1);
        packet.ip.dont_fragment = false;
        plane.run(CLIENTS, &packet.frame()).not_forwarded();
    }
}
