//! Packets go to a backend within an outer one, as RFC 2003 and RFC 2473 have it, wherever the backend is.

use std::net::IpAddr;

use weir_l4::layout::{Address, Settings, TCP, Verdict};

use crate::frames::{ACK, FIN, IcmpError, Packet, Read, SYN};
use crate::kinds::{Kind, each_kind_of_ipip};
use crate::mtu::all_of_this_tick;
use crate::namespace::{BACKENDS, CLIENTS, NARROW, NARROW_MTU, ROUTE_MTU};
use crate::one_way::{
    a_dead_backend_is_left, a_flow_settles_by_its_client_alone,
    a_hop_limit_that_ends_here_is_answered_by_the_listener,
    a_host_that_does_not_forward_balances_all_the_same,
    an_error_about_an_answer_reaches_the_backend as an_error_about_an_answer_reaches_the_backend_within,
    damage_and_padding_stay as damage_and_padding_stay_within, fragments_follow_the_first, goes_on,
    later_packets_go_to_the_neighbour, what_the_backend_answers_is_left_alone,
};
use crate::plane::Plane;

each_kind_of_ipip! {
    a_conversation_goes_within_outer_packets
    damage_and_padding_stay_within
    fragments_follow_the_first
    an_error_about_an_answer_reaches_the_backend_within
    what_the_backend_answers_is_left_alone
    a_flow_settles_by_its_client_alone
    a_backend_behind_a_router_is_reached
    a_dead_backend_is_left
    a_hop_limit_that_ends_here_is_answered_by_the_listener
    the_outer_header_counts_for_what_fits
    the_route_says_whence_where_the_listener_does_not
    a_train_whose_segments_do_not_fit_is_answered
    a_host_that_does_not_forward_balances_all_the_same
    a_router_that_has_less_room_is_heard_by_the_client
    a_backend_that_is_not_reached_is_told_to_the_client
    a_backend_that_takes_no_outer_packets_has_refused_the_client
    an_error_that_quotes_too_little_is_dropped
    an_error_about_an_outer_packet_that_was_damaged_is_dropped
    an_error_about_what_was_not_sent_is_left_alone
}

fn a_conversation_goes_within_outer_packets(kind: Kind) {
    let mut plane = later_packets_go_to_the_neighbour(kind);
    // Outer ones have DSCP and ECN of inner ones (RFC 6040 §4.1), and are never cut.
    for class in [0x01, 0x02, 0x03, 0xb8] {
        let mut odd = kind.later().with_flags(ACK | FIN);
        (odd.ip.class, odd.ip.flow_label, odd.ip.dont_fragment) = (class, 0xf_abcd, false);
        goes_on(&mut plane, kind, &odd);
    }
}

fn a_backend_behind_a_router_is_reached(kind: Kind) {
    let mut plane = kind.plane();
    plane.backend(0, kind.host(4, 0));
    for packet in [kind.first(), kind.later(), kind.later()] {
        let inner = kind.at_backend(&packet).bytes();
        let expected = kind.wrapped_to(&packet, &inner, kind.host(4, 0).ip());
        plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &expected);
    }
}

/// Bytes of the outer header.
fn outer_bytes(kind: Kind) -> u16 {
    if kind.is_ip4 { 20 } else { 40 }
}

fn the_outer_header_counts_for_what_fits(kind: Kind) {
    for (backend, mtu) in [(kind.host(3, 0), NARROW_MTU), (kind.host(4, 0), ROUTE_MTU)] {
        let mut plane = kind.plane();
        plane.backend(0, backend);
        if mtu == NARROW_MTU {
            plane.change_backend(0, |backend| backend.interface = NARROW.interface);
        }
        let room = mtu - outer_bytes(kind);
        let head = kind.later().with_payload(0).bytes().len();
        for packet in [kind.first(), kind.later().with_payload(usize::from(room) - head)] {
            let expected = kind.wrapped_to(&packet, &kind.at_backend(&packet).bytes(), backend.ip());
            plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &expected);
        }
        let mut large = kind.later().with_payload(usize::from(room) + 1 - head);
        if !kind.is_summed {
            let read = Read::of(&plane.run(CLIENTS, &large.frame()).answered(Verdict::TooBig));
            assert_eq!(read.word(4), u32::from(room));
        }
        large.ip.dont_fragment = false;
        if kind.is_ip4 {
            plane.run(CLIENTS, &large.frame()).dropped(Verdict::DropUnanswered);
        }
    }
}

fn the_route_says_whence_where_the_listener_does_not(kind: Kind) {
    let mut plane = kind.plane();
    plane.ipip_listener(0, kind.listener(0), kind.protocol, 0, &[]);
    plane.run(CLIENTS, &kind.first().frame()).dropped(Verdict::DropNoRoute);
    plane.change_backend(0, |backend| backend.source = Address::from(kind.source().ip()));
    goes_on(&mut plane, kind, &kind.first());
    goes_on(&mut plane, kind, &kind.later());
}

fn a_train_whose_segments_do_not_fit_is_answered(kind: Kind) {
    if kind.is_summed {
        return;
    }
    let mut plane = kind.plane();
    plane.backend(0, kind.host(3, 0));
    plane.change_backend(0, |backend| backend.interface = NARROW.interface);
    let head = kind.later().with_payload(0).bytes().len() as u32;
    let room = u32::from(NARROW_MTU - outer_bytes(kind));
    let packet = kind.later().with_payload(2800);
    let outcome = plane.run_train(CLIENTS, &packet.frame(), 3, room + 1 - head);
    outcome.counted_packets(3);
    assert!(outcome.was_sent(), "{outcome}");
    assert_eq!(Read::of(&outcome.frame).word(4), room);
}

/// The packet of client 7 that a router between here and the backend quotes, within the outer one.
fn sent(kind: Kind, packet: &Packet) -> Vec<u8> {
    kind.wrapped(packet, 0)[14..].to_vec()
}

/// A frame of such a router's error.
fn error_of_router(kind: Kind, number: u8, code: u8, word: u32, quote: &[u8]) -> Vec<u8> {
    error_of(kind.host(2, 9).ip(), kind, [number, code], word, quote)
}

/// The same from another host.
fn error_of(host: IpAddr, kind: Kind, [number, code]: [u8; 2], word: u32, quote: &[u8]) -> Vec<u8> {
    let mut error = IcmpError::new(host, kind.source().ip(), number, code).about(quote);
    error.word = word;
    let mut carrier = kind.later();
    (carrier.to_mac, carrier.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
    carrier.framed(&error.bytes())
}

/// The error that the client gets quotes the packet that it sent, with one hop less to go.
#[track_caller]
fn is_told(kind: Kind, frame: &[u8], packet: &Packet, number: [u8; 2]) -> u32 {
    let read = Read::of(frame);
    assert_eq!((read.source, read.destination), (kind.listener(0).ip(), kind.client(7).ip()));
    assert_eq!([read.body[0], read.body[1]], number);
    let quote = &read.body[8..];
    assert!(kind.at_backend(packet).bytes().starts_with(quote), "{quote:02x?}");
    assert!(quote.len() >= if kind.is_ip4 { 28 } else { 48 }, "header and 8 bytes: {quote:02x?}");
    read.word(4)
}

/// RFC 2003 §4.1, RFC 2473 §8.2.
fn a_router_that_has_less_room_is_heard_by_the_client(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_payload(if kind.is_summed { 0 } else { 1300 });
    let quote = sent(kind, &packet);
    // The limit that stray packets have used up is a different one.
    plane.answered(0..3, all_of_this_tick());
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    for (mtu, told) in
        [(1400, 1400 - u32::from(outer_bytes(kind))), (1340, 1340 - u32::from(outer_bytes(kind)))]
    {
        let outcome = plane.run(BACKENDS, &error_of_router(kind, number, code, mtu, &quote));
        let frame = outcome.answered(Verdict::IcmpToClient);
        assert_eq!(is_told(kind, &frame, &packet, [number, code]), told);
    }
    // An MTU below the minimum of the IP version is ignored.
    let outcome = plane.run(BACKENDS, &error_of_router(kind, number, code, 60, &quote));
    outcome.dropped(Verdict::DropIcmp);
}

fn a_backend_that_is_not_reached_is_told_to_the_client(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_payload(0);
    let quote = sent(kind, &packet);
    let (kinds, told) =
        if kind.is_ip4 { ([(3, 0), (3, 1), (11, 0)], [3, 1]) } else { ([(1, 0), (1, 3), (3, 0)], [1, 3]) };
    for (number, code) in kinds {
        let outcome = plane.run(BACKENDS, &error_of_router(kind, number, code, 0, &quote));
        assert_eq!(is_told(kind, &outcome.answered(Verdict::IcmpToClient), &packet, told), 0);
    }
}

/// The backend's kernel says so if nothing there removes the outer header. Probes, which come without one,
/// are answered all the same.
fn a_backend_that_takes_no_outer_packets_has_refused_the_client(kind: Kind) {
    let mut plane = kind.flowing();
    let before = plane.backend_counts(0);
    let counted = |plane: &mut Plane| {
        let now = plane.backend_counts(0);
        [
            now.refused - before.refused,
            now.failed_again - before.failed_again,
            now.unanswered - before.unanswered,
        ]
    };
    let quote = sent(kind, &kind.first().with_payload(0));
    let (too_big, refusals) =
        if kind.is_ip4 { ([3, 4], [[3, 2], [3, 3]]) } else { ([2, 0], [[4, 1], [1, 4]]) };
    let backend = kind.backend(0).ip();
    plane.run(BACKENDS, &error_of(backend, kind, too_big, 1400, &quote)).answered(Verdict::IcmpToClient);
    let mut damaged = error_of(backend, kind, refusals[0], 0, &quote);
    *damaged.last_mut().expect("bytes") ^= 1;
    plane.run(BACKENDS, &damaged).not_forwarded();
    for refusal in refusals {
        // An error from a router or from another backend does not count as the backend's own.
        for other in [kind.host(2, 9).ip(), kind.backend(1).ip()] {
            let outcome = plane.run(BACKENDS, &error_of(other, kind, refusal, 0, &quote));
            outcome.answered(Verdict::IcmpToClient);
        }
    }
    assert_eq!(counted(&mut plane), [0, 0, 0]);
    for (refusal, expected) in refusals.into_iter().zip([[1, 0, 0], [1, 1, 0]]) {
        let outcome = plane.run(BACKENDS, &error_of(backend, kind, refusal, 0, &quote));
        outcome.answered(Verdict::IcmpToClient);
        assert_eq!(counted(&mut plane), expected, "one client counts once");
    }
    // With IPv6, the addresses of one network count as one client: see `failures_of_one_client_count_once`.
    if kind.is_ip4 {
        let other = kind.packet(kind.client(8), kind.listener(0)).with_flags(SYN).with_payload(0);
        goes_on(&mut plane, kind, &other);
        let quote = sent(kind, &other);
        let outcome = plane.run(BACKENDS, &error_of(backend, kind, refusals[0], 0, &quote));
        outcome.answered(Verdict::IcmpToClient);
        assert_eq!(counted(&mut plane), [2, 1, 0]);
    }
}

/// It must quote up to the end of the transport checksum, as we do ourselves.
fn an_error_that_quotes_too_little_is_dropped(kind: Kind) {
    let mut plane = kind.flowing();
    let quote = sent(kind, &kind.later().with_payload(0));
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    let needed = quote.len();
    let cut = error_of_router(kind, number, code, 1400, &quote[..needed - 4]);
    if kind.protocol == TCP {
        plane.run(BACKENDS, &cut).dropped(Verdict::DropIcmp);
    } else {
        plane.run(BACKENDS, &cut).untouched();
    }
    let none = error_of_router(kind, number, code, 1400, &quote[..usize::from(outer_bytes(kind)) + 8]);
    plane.run(BACKENDS, &none).untouched();
}

/// The client would otherwise receive it with a correct checksum (RFC 792, RFC 4443 §2.3). Many lengths are
/// tried, because bytes are summed in pieces.
fn an_error_about_an_outer_packet_that_was_damaged_is_dropped(kind: Kind) {
    let mut plane = kind.flowing();
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    let head = sent(kind, &kind.later().with_payload(0)).len() + 8;
    for bytes in [0, 1, 2, 3, 63, 64, 65, 128 - head % 64, 129 - head % 64, 1300] {
        let packet = kind.later().with_payload(bytes);
        let good = error_of_router(kind, number, code, 1400, &sent(kind, &packet));
        // With padding after it, which the checksum does not cover.
        for padding in [&[][..], &[0xa5; 3]] {
            let good = [&good, padding].concat();
            let message = good.len() - padding.len() - head - bytes;
            // The code, the sum, the MTU, and the first and the last byte of the quote.
            for (at, flip) in [(1, 8), (2, 1), (3, 0x80), (7, 4), (8, 0x20), (head + bytes - 1, 0xff)] {
                let mut damaged = good.clone();
                damaged[message + at] ^= flip;
                plane.run(BACKENDS, &damaged).not_forwarded();
            }
            let mut damaged = good.clone();
            damaged[message + 3] ^= 1;
            plane.run(BACKENDS, &damaged).dropped(Verdict::DropIcmp);
            // Of a device that sums whole packets nothing is cut without its sum.
            if !kind.is_summed {
                let frame = plane.run(BACKENDS, &good).answered(Verdict::IcmpToClient);
                is_told(kind, &frame, &packet, [number, code]);
            }
        }
    }
}

/// An error that does not match a flow and both ends of its outer packets has no effect on it.
fn an_error_about_what_was_not_sent_is_left_alone(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_payload(0);
    let (number, code) = if kind.is_ip4 { (3, 4) } else { (2, 0) };
    let other_flow = kind.packet(kind.client(8), kind.listener(0)).with_flags(ACK).with_payload(0);
    for quote in [sent(kind, &other_flow), kind.wrapped(&packet, 1)[14..].to_vec()] {
        plane.run(BACKENDS, &error_of_router(kind, number, code, 1400, &quote)).untouched();
    }
    let mut error =
        IcmpError::new(kind.router(), kind.listener(0).ip(), number, code).about(&sent(kind, &packet));
    error.word = 1400;
    plane.run(CLIENTS, &kind.later().framed(&error.bytes())).untouched();
    plane.settings(Settings { routes: 1, ..Settings::default() });
    goes_on(&mut plane, kind, &kind.later());
}
