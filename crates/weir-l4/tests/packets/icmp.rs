//! Errors of ICMP go to who sent the packet that they are about, and speak of it as that one knows it (RFC
//! 5508 §4.2), as the kernel's own NAT has it: outside, and inside the quote.

use std::net::IpAddr;

use weir_l4::layout::{Algorithm, Forward, UDP, Verdict};

use crate::frames::{ACK, ICMP, ICMP6, IcmpError, Ip, Packet, with_icmp_sum};
use crate::kinds::{Kind, each_kind, each_kind_and_sum, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS};

each_kind_and_sum! {
    an_error_on_the_way_to_a_client_reaches_the_backend
    an_error_behind_the_listener_reaches_the_client
    too_big_reaches_the_backend_with_its_mtu
    a_backend_is_told_no_less_than_1280_bytes_where_it_knows_all_clients_by_one_address
    a_quote_of_eight_bytes_is_enough
    a_quote_of_any_length_is_translated
    a_quoted_udp_packet_without_a_sum_keeps_none
    a_quoted_first_fragment_is_translated
}

each_kind! {
    every_kind_of_error_is_translated
    an_error_of_the_backend_itself_comes_from_the_listener
    an_error_with_a_wrong_sum_does_not_get_a_right_one
    an_error_of_fewer_than_eight_quoted_bytes_is_not_misforwarded
    an_error_for_another_address_than_it_quotes_is_not_forwarded
    an_error_about_an_unknown_flow_is_not_misforwarded
    an_error_about_a_stranger_is_untouched
    echo_to_the_listener_is_untouched
    a_redirect_is_not_forwarded
    an_error_about_icmp_is_untouched
    a_quote_with_a_wrong_sum_keeps_it_wrong
    an_error_moves_no_flow
    a_quoted_later_fragment_is_not_misforwarded
    a_quote_with_options_or_extensions_is_translated
    an_error_in_fragments_is_not_misforwarded
    padding_behind_a_quote_is_no_part_of_it
}

each_kind_of_nat! {
    a_changed_client_port_is_the_clients_own_in_the_quote
}

const fn unreachable(kind: Kind) -> (u8, u8) {
    if kind.is_ip4 { (3, 1) } else { (1, 3) }
}

/// What the listener is quoted to have sent to the client, and what the backend had sent.
fn about_answer(kind: Kind) -> (Packet, Packet) {
    let mut sent = kind.answer().with_flags(ACK).with_payload(64);
    sent.ip.hop_limit = 64;
    let mut seen = sent.translated(kind.listener(0), kind.client(7));
    seen.ip.hop_limit = 57;
    sent.ip.hop_limit = 57;
    (seen, sent)
}

/// What the client is quoted to have sent to the backend, and what it had sent.
fn about_request(kind: Kind) -> (Packet, Packet) {
    let mut sent = kind.later().with_payload(64);
    sent.ip.hop_limit = 57;
    let mut seen = kind.at_backend(&sent);
    seen.ip.hop_limit = 57;
    (seen, sent)
}

fn framed(packet: &Packet, error: &IcmpError) -> Vec<u8> {
    packet.framed(&error.bytes())
}

fn to_backend(kind: Kind, kind_of_error: (u8, u8)) -> IcmpError {
    IcmpError::new(kind.router(), kind.listener(0).ip(), kind_of_error.0, kind_of_error.1)
}

fn router_behind(kind: Kind) -> IpAddr {
    kind.host(2, 9).ip()
}

fn an_error_on_the_way_to_a_client_reaches_the_backend(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

fn an_error_behind_the_listener_reaches_the_client(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_request(kind);
    let (kind_of_error, code) = unreachable(kind);
    let error = IcmpError::new(router_behind(kind), kind.seen(kind.client(7)).ip(), kind_of_error, code)
        .about(&seen.bytes());
    let expected = error.translated(kind.listener(0).ip(), kind.client(7).ip(), &sent.bytes());
    let outcome = plane.run(BACKENDS, &framed(&kind.answer(), &error));
    outcome.forwarded(Verdict::IcmpToClient, &framed(&kind.answer(), &expected));
}

fn an_error_of_the_backend_itself_comes_from_the_listener(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_request(kind);
    let (kind_of_error, code) = if kind.is_ip4 { (3, 3) } else { (1, 4) };
    let error = IcmpError::new(kind.backend(0).ip(), kind.seen(kind.client(7)).ip(), kind_of_error, code)
        .about(&seen.bytes());
    let expected = error.translated(kind.listener(0).ip(), kind.client(7).ip(), &sent.bytes());
    let outcome = plane.run(BACKENDS, &framed(&kind.answer(), &error));
    outcome.forwarded(Verdict::IcmpToClient, &framed(&kind.answer(), &expected));
}

fn too_big_reaches_the_backend_with_its_mtu(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let mut error = to_backend(kind, if kind.is_ip4 { (3, 4) } else { (2, 0) }).about(&seen.bytes());
    for mtu in [1280, 1281, 1492] {
        error.word = mtu;
        let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
    }
}

/// By full-NAT: 552 bytes that one client's way was said to take were what all clients got from then on.
fn a_backend_is_told_no_less_than_1280_bytes_where_it_knows_all_clients_by_one_address(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let mut error = to_backend(kind, if kind.is_ip4 { (3, 4) } else { (2, 0) }).about(&seen.bytes());
    // Beside it stands, of IPv4, how long the quote is (RFC 4884 §4.1).
    let beside = if kind.is_ip4 { 0x0017_0000 } else { 0 };
    for mtu in [0, 68, 552, 1279] {
        error.word = beside | mtu;
        let mut expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
        expected.word = beside | least_told(kind, mtu);
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
    }
}

/// What a backend is told to fit.
fn least_told(kind: Kind, mtu: u32) -> u32 {
    if kind.forward == Forward::FullNat { mtu.max(1280) } else { mtu }
}

fn header_bytes(kind: Kind) -> usize {
    if kind.is_ip4 { 20 } else { 40 }
}

/// RFC 792 asks for no more; katran once wanted 20, and connections hung.
fn a_quote_of_eight_bytes_is_enough(kind: Kind) {
    quote_of(kind, 8);
}

fn a_quote_of_any_length_is_translated(kind: Kind) {
    for bytes in [9, 15, 16, 17, 18, 19, 20, 21, 33] {
        quote_of(kind, bytes);
    }
}

/// An error that quotes so many bytes of transport.
#[track_caller]
fn quote_of(kind: Kind, bytes: usize) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let (seen, mut sent) = (seen.bytes(), sent.bytes());
    // Half a sum can't be brought forward, and nobody looks at it.
    if kind.protocol != UDP && bytes == 17 {
        sent[header_bytes(kind) + 16] = seen[header_bytes(kind) + 16];
    }
    let length = header_bytes(kind) + bytes;
    let error = to_backend(kind, unreachable(kind)).about(&seen[..length]);
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent[..length]);
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

fn a_quoted_udp_packet_without_a_sum_keeps_none(kind: Kind) {
    if kind.protocol != UDP {
        return;
    }
    let mut plane = kind.flowing();
    let (mut seen, mut sent) = about_answer(kind);
    seen.sum = crate::frames::Sum::Missing;
    sent.sum = crate::frames::Sum::Missing;
    let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

fn every_kind_of_error_is_translated(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let all: &[(u8, u8)] = if kind.is_ip4 {
        &[(3, 0), (3, 2), (3, 3), (3, 4), (3, 13), (4, 0), (11, 0), (11, 1), (12, 0)]
    } else {
        &[(1, 0), (1, 1), (1, 3), (1, 4), (2, 0), (3, 0), (3, 1), (4, 0), (4, 1)]
    };
    for one in all {
        let error = to_backend(kind, *one).about(&seen.bytes());
        let mut expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
        if *one == if kind.is_ip4 { (3, 4) } else { (2, 0) } {
            expected.word = least_told(kind, 0);
        }
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
    }
}

/// It stays wrong by as much: who receives it judges it.
fn an_error_with_a_wrong_sum_does_not_get_a_right_one(kind: Kind) {
    let mut plane = kind.flowing();
    for wrong in [1, 0x1234, 0xfffe] {
        let (seen, sent) = about_answer(kind);
        let mut error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
        error.sum_error = wrong;
        let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
        let (seen, sent) = about_request(kind);
        let (number, code) = unreachable(kind);
        let mut error = IcmpError::new(router_behind(kind), kind.seen(kind.client(7)).ip(), number, code)
            .about(&seen.bytes());
        error.sum_error = wrong;
        let expected = error.translated(kind.listener(0).ip(), kind.client(7).ip(), &sent.bytes());
        let outcome = plane.run(BACKENDS, &framed(&kind.answer(), &error));
        outcome.forwarded(Verdict::IcmpToClient, &framed(&kind.answer(), &expected));
    }
}

fn an_error_of_fewer_than_eight_quoted_bytes_is_not_misforwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let (seen, sent) = (seen.bytes(), sent.bytes());
    for length in 0..header_bytes(kind) + 8 {
        let error = to_backend(kind, unreachable(kind)).about(&seen[..length]);
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        if length >= header_bytes(kind) + 4 && outcome.was_sent() {
            let mut sent = sent[..length].to_vec();
            if kind.protocol == UDP && length == header_bytes(kind) + 7 {
                sent[length - 1] = seen[length - 1];
            }
            let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent);
            outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
        } else {
            outcome.not_forwarded();
        }
    }
}

/// Who was told of a packet is who sent it: anything else is forged, and the kernel's conntrack drops it too.
fn an_error_for_another_address_than_it_quotes_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, _) = about_answer(kind);
    let mut error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    error.ip.destination = kind.listener(3).ip();
    plane.run(CLIENTS, &framed(&kind.later(), &error)).not_forwarded();
    let (seen, _) = about_request(kind);
    let (kind_of_error, code) = unreachable(kind);
    let error =
        IcmpError::new(router_behind(kind), kind.client(9).ip(), kind_of_error, code).about(&seen.bytes());
    plane.run(BACKENDS, &framed(&kind.answer(), &error)).not_forwarded();
}

/// By its hash it may reach the backend that sent it; anyone else must not get it.
fn an_error_about_an_unknown_flow_is_not_misforwarded(kind: Kind) {
    for algorithm in [Algorithm::Hash, Algorithm::Turns] {
        let mut plane = kind.plane_with(1, algorithm);
        let (seen, sent) = about_answer(kind);
        let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
        let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
        let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
        if algorithm == Algorithm::Hash && outcome.was_sent() {
            outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
        } else {
            outcome.dropped(Verdict::DropIcmp);
        }
    }
}

fn an_error_about_a_stranger_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let quote = kind.packet(kind.listener(3), kind.client(7)).bytes();
    let mut error = to_backend(kind, unreachable(kind)).about(&quote);
    error.ip.destination = kind.listener(3).ip();
    plane.run(CLIENTS, &framed(&kind.later(), &error)).untouched();
}

fn echo_to_the_listener_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let ip = Ip::new(kind.client(7).ip(), kind.listener(0).ip());
    let (protocol, request, reply) = if kind.is_ip4 { (ICMP, 8, 0) } else { (ICMP6, 128, 129) };
    for (kind_of_message, bytes) in [(request, 0), (request, 56), (reply, 56)] {
        let message = [vec![kind_of_message, 0, 0, 0, 0, 7, 0, 1], vec![0xa5; bytes]].concat();
        let echo = ip.around(protocol, &with_icmp_sum(&ip, message, 0));
        plane.run(CLIENTS, &kind.later().framed(&echo)).untouched();
    }
}

/// RFC 792 and RFC 4861 §4.5: it is about this host's own routes.
fn a_redirect_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, _) = about_answer(kind);
    let error = to_backend(kind, if kind.is_ip4 { (5, 1) } else { (137, 0) }).about(&seen.bytes());
    plane.run(CLIENTS, &framed(&kind.later(), &error)).not_forwarded();
}

fn an_error_about_icmp_is_untouched(kind: Kind) {
    let mut plane = kind.flowing();
    let ip = Ip::new(kind.listener(0).ip(), kind.client(7).ip());
    let (protocol, reply) = if kind.is_ip4 { (ICMP, 0) } else { (ICMP6, 129) };
    let quote = ip.around(protocol, &with_icmp_sum(&ip, vec![reply, 0, 0, 0, 0, 7, 0, 1], 0));
    let error = to_backend(kind, unreachable(kind)).about(&quote);
    plane.run(CLIENTS, &framed(&kind.later(), &error)).untouched();
}

fn a_quote_with_a_wrong_sum_keeps_it_wrong(kind: Kind) {
    let mut plane = kind.flowing();
    let (mut seen, mut sent) = about_answer(kind);
    for packet in [&mut seen, &mut sent] {
        packet.sum = crate::frames::Sum::Off(0x0102);
        packet.ip.sum_error = 0x0203;
    }
    let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

/// Anyone can send an error: the flow goes on as before.
fn an_error_moves_no_flow(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, _) = about_answer(kind);
    let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    assert!(plane.run(CLIENTS, &framed(&kind.later(), &error)).was_sent());
    assert_eq!((plane.remembered(), plane.open_flows(0)), (2, 1));
    let (packet, answer) = (kind.later(), kind.answer());
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

fn a_changed_client_port_is_the_clients_own_in_the_quote(kind: Kind) {
    let mut plane = kind.flowing();
    plane.listener(1, kind.listener(1), kind.protocol, 0, &[0]);
    let sent = kind.packet(kind.client(7), kind.listener(1)).with_payload(16);
    let outcome = plane.run(CLIENTS, &sent.frame());
    assert!(outcome.was_sent());
    let (kind_of_error, code) = unreachable(kind);
    let error = IcmpError::new(router_behind(kind), kind.seen(kind.client(7)).ip(), kind_of_error, code);
    let mut sent_then = sent;
    sent_then.ip.hop_limit = outcome.frame[14 + if kind.is_ip4 { 8 } else { 7 }];
    let error = error.about(&outcome.frame[14..]);
    let expected = error.translated(kind.listener(1).ip(), kind.client(7).ip(), &sent_then.bytes());
    let outcome = plane.run(BACKENDS, &framed(&kind.answer(), &error));
    outcome.forwarded_of(1, Verdict::IcmpToClient, &framed(&kind.answer(), &expected));
}

/// Of a datagram too big for its own host's interface: what is too big for the next one is its first
/// fragment.
fn a_quoted_first_fragment_is_translated(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let (seen, sent) = (&seen.fragments(&[32])[0][14..], &sent.fragments(&[32])[0][14..]);
    let mut error = to_backend(kind, if kind.is_ip4 { (3, 4) } else { (2, 0) }).about(seen);
    error.word = 1280;
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), sent);
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

/// It has no ports: whose it is can't be told.
fn a_quoted_later_fragment_is_not_misforwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let (mut seen, _) = about_answer(kind);
    // Its bytes look like the ports.
    seen.payload = [seen.transport(), seen.transport()].concat();
    let place = if kind.protocol == UDP { 8 } else { 24 };
    seen.payload.splice(0..0, vec![0; place - seen.transport().len() % 8]);
    for fragment in &seen.fragments(&[32, 40, 48, 56])[1..] {
        let error = to_backend(kind, unreachable(kind)).about(&fragment[14..]);
        plane.run(CLIENTS, &framed(&kind.later(), &error)).not_forwarded();
    }
}

fn a_quote_with_options_or_extensions_is_translated(kind: Kind) {
    let mut plane = kind.flowing();
    let (mut seen, mut sent) = about_answer(kind);
    for packet in [&mut seen, &mut sent] {
        if kind.is_ip4 {
            packet.ip.options = vec![1, 1, 1, 1, 1, 1, 1, 0];
        } else {
            packet.ip.extensions = vec![(crate::frames::DESTINATION_OPTIONS, vec![0, 0, 1, 4, 0, 0, 0, 0])];
        }
    }
    let error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent.bytes());
    let outcome = plane.run(CLIENTS, &framed(&kind.later(), &error));
    outcome.forwarded(Verdict::IcmpToBackend, &framed(&kind.later(), &expected));
}

fn an_error_in_fragments_is_not_misforwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, _) = about_answer(kind);
    let mut error = to_backend(kind, unreachable(kind)).about(&seen.bytes());
    error.ip.more_fragments = true;
    plane.run(CLIENTS, &framed(&kind.later(), &error)).not_forwarded();
}

/// Ports were read from the padding, and port 0 found a backend.
fn padding_behind_a_quote_is_no_part_of_it(kind: Kind) {
    let mut plane = kind.flowing();
    let (seen, sent) = about_answer(kind);
    let (seen, sent) = (seen.bytes(), sent.bytes());
    for padding in [&[0; 40][..], &seen[header_bytes(kind)..]] {
        for length in header_bytes(kind)..header_bytes(kind) + 4 {
            let error = to_backend(kind, unreachable(kind)).about(&seen[..length]);
            let frame = [&framed(&kind.later(), &error), padding].concat();
            plane.run(CLIENTS, &frame).not_forwarded();
        }
        for length in [8, 12, 16] {
            let length = header_bytes(kind) + length;
            let error = to_backend(kind, unreachable(kind)).about(&seen[..length]);
            let expected = error.translated(kind.router_seen(), kind.backend(0).ip(), &sent[..length]);
            let frame = [&framed(&kind.later(), &error), padding].concat();
            let expected = [&framed(&kind.later(), &expected), padding].concat();
            plane.run(CLIENTS, &frame).forwarded(Verdict::IcmpToBackend, &expected);
        }
    }
}
