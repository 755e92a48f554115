//! Damaged packets are dropped or left to the host. None is sent on as something that it is not.

use weir_l4::layout::{TCP, UDP, Verdict};

use crate::frames::{ACK, ETHERNET, IcmpError, Packet, SYN, sum_of};
use crate::kinds::{Kind, TCP4, TCP6, UDP4, UDP6, each_kind};
use crate::namespace::{BACKENDS, CLIENTS};

each_kind! {
    a_frame_that_ends_anywhere_is_not_forwarded
    a_first_frame_that_ends_anywhere_opens_no_flow
    an_answer_that_ends_anywhere_is_not_forwarded
    a_length_beyond_the_frame_is_dropped
    a_length_that_cuts_the_header_is_not_forwarded
    a_length_within_the_frame_is_taken_at_its_word
    a_packet_from_the_listeners_own_address_is_not_forwarded
    a_packet_from_an_address_that_is_nobodys_is_not_forwarded
    a_packet_from_an_address_of_this_host_is_dropped_by_name
    what_claims_to_be_from_this_host_to_a_backend_is_remembered_nowhere
    errors_that_end_anywhere_are_not_misforwarded
    any_byte_of_the_header_may_be_wrong
}

/// The kernel's runner takes no frame that is shorter than its IP header.
fn shortest(kind: Kind) -> usize {
    ETHERNET + if kind.is_ip4 { 20 } else { 40 }
}

fn a_frame_that_ends_anywhere_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let frame = kind.later().with_payload(33).frame();
    for end in shortest(kind)..frame.len() {
        plane.run(CLIENTS, &frame[..end]).not_forwarded();
    }
}

fn a_first_frame_that_ends_anywhere_opens_no_flow(kind: Kind) {
    let mut plane = kind.plane();
    let frame = kind.first().with_payload(9).frame();
    for end in shortest(kind)..frame.len() {
        plane.run(CLIENTS, &frame[..end]).not_forwarded();
    }
    assert_eq!(plane.remembered(), 0);
}

fn an_answer_that_ends_anywhere_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let frame = kind.answer().with_payload(33).frame();
    for end in shortest(kind)..frame.len() {
        plane.run(BACKENDS, &frame[..end]).not_forwarded();
    }
}

/// A frame whose IP header gives another length than it has; its sum is right.
fn with_length(packet: &Packet, kind: Kind, bytes: usize) -> Vec<u8> {
    let mut frame = packet.frame();
    if kind.is_ip4 {
        frame[16..18].copy_from_slice(&(bytes as u16).to_be_bytes());
        frame[24..26].copy_from_slice(&[0, 0]);
        let sum = !sum_of(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&(bytes.saturating_sub(40) as u16).to_be_bytes());
    }
    frame
}

fn a_length_beyond_the_frame_is_dropped(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later();
    let whole = packet.bytes().len();
    for more in [1, 2, 100, 9000, 65_535 - whole] {
        plane.run(CLIENTS, &with_length(&packet, kind, whole + more)).dropped(Verdict::DropTruncated);
    }
}

fn a_length_that_cuts_the_header_is_not_forwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later();
    let header = if kind.is_ip4 { 20 } else { 40 };
    let transport = if kind.protocol == UDP { 8 } else { 20 };
    for bytes in (if kind.is_ip4 { 0 } else { 40 })..header + transport {
        plane.run(CLIENTS, &with_length(&packet, kind, bytes)).not_forwarded();
    }
}

/// What lies behind it is padding.
fn a_length_within_the_frame_is_taken_at_its_word(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later().with_payload(8);
    packet.padding = 30;
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
}

/// LAND: the answer would go to the listener again, and around as long as there are hops.
fn a_packet_from_the_listeners_own_address_is_not_forwarded(kind: Kind) {
    let mut plane = kind.plane();
    for port in [80, 1234] {
        let mut land = kind.first();
        land.ip.source = land.ip.destination;
        land.source_port = port;
        plane.run(CLIENTS, &land.frame()).not_forwarded();
    }
}

/// Addresses that no packet may come from: RFC 1812 §5.3.7, RFC 4291 §2.5.2, §2.5.3, §2.5.6 and §2.7.
fn a_packet_from_an_address_that_is_nobodys_is_not_forwarded(kind: Kind) {
    let mut plane = kind.plane();
    let sources = if kind.is_ip4 {
        ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "224.0.0.1", "239.1.2.3", "255.255.255.255"]
    } else {
        ["::", "::1", "fe80::1", "febf::1", "ff02::1", "ff0e::1", "::ffff:192.0.2.9"]
    };
    for source in sources {
        let mut first = kind.first();
        first.ip.source = source.parse().unwrap();
        if source.starts_with("::ffff") {
            first.ip.source = std::net::Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xc000, 0x209).into();
        }
        plane.run(CLIENTS, &first.frame()).not_forwarded();
    }
}

/// The backend's answers would be those to this host's own connections: to its probes, and to the proxy's.
fn a_packet_from_an_address_of_this_host_is_dropped_by_name(kind: Kind) {
    let mut plane = kind.plane();
    let here = kind.host(2, 200);
    plane.host_address(here.ip());
    for flags in [SYN, ACK] {
        let packet = kind.packet(here, kind.listener(0)).with_flags(flags);
        plane.run(CLIENTS, &packet.frame()).dropped(Verdict::DropOwnAddress);
    }
    assert_eq!((plane.remembered(), plane.open_flows(0)), (0, 0));
    let answer = kind.packet(kind.backend(0), here);
    plane.run(BACKENDS, &Packet { to_mac: BACKENDS.mac, ..answer }.frame()).untouched();
}

fn what_claims_to_be_from_this_host_to_a_backend_is_remembered_nowhere(kind: Kind) {
    let mut plane = kind.plane();
    let here = kind.host(2, 200);
    plane.host_address(here.ip());
    plane.run(CLIENTS, &kind.packet(here, kind.backend(0)).frame()).untouched();
    assert_eq!(plane.remembered(), 0);
}

fn errors_that_end_anywhere_are_not_misforwarded(kind: Kind) {
    let mut plane = kind.flowing();
    let seen = kind.answer().translated(kind.listener(0), kind.client(7)).bytes();
    let (kind_of_error, code) = if kind.is_ip4 { (3, 1) } else { (1, 3) };
    let error = IcmpError::new(kind.router(), kind.listener(0).ip(), kind_of_error, code).about(&seen);
    let frame = kind.later().framed(&error.bytes());
    for end in shortest(kind)..frame.len() {
        plane.run(CLIENTS, &frame[..end]).not_forwarded();
    }
}

/// Whatever one byte of the headers says: the packet stays, is dropped or answered, or goes to the backend
/// with nothing changed but what a translation changes.
fn any_byte_of_the_header_may_be_wrong(kind: Kind) {
    let transport = if kind.is_ip4 { 34 } else { 54 };
    let good = kind.later();
    let end = transport + if kind.protocol == TCP { 20 } else { 8 };
    for at in ETHERNET..end {
        for flip in [0x01, 0x80, 0xff] {
            let mut plane = kind.flowing();
            let mut frame = good.frame();
            frame[at] ^= flip;
            let outcome = plane.run(CLIENTS, &frame);
            if !outcome.was_sent() {
                outcome.not_forwarded();
                continue;
            }
            let to = &outcome.frame;
            let addresses = if kind.is_ip4 { 26..34 } else { 22..54 };
            assert_eq!(to.len(), frame.len(), "byte {at} ^ {flip:02x}: {outcome}");
            let (hop_limit, sums) = if kind.is_ip4 { (22, 24..26) } else { (21, 0..0) };
            let transport_sum = transport + if kind.protocol == TCP { 16 } else { 6 };
            for (place, (came, went)) in frame.iter().zip(to).enumerate().skip(ETHERNET) {
                let may_change = addresses.contains(&place)
                    || place == hop_limit
                    || sums.contains(&place)
                    || (transport..transport + 4).contains(&place)
                    || (transport_sum..transport_sum + 2).contains(&place);
                assert!(may_change || came == went, "byte {at} ^ {flip:02x} changed byte {place}: {outcome}");
            }
            let backend = kind.at_backend(&good).frame();
            let destination = if kind.is_ip4 { 30..34 } else { 38..54 };
            assert_eq!(to[destination.clone()], backend[destination], "byte {at} ^ {flip:02x}: {outcome}");
        }
    }
}

/// A TCP header that says it is shorter than it can be, or longer than the packet.
#[test]
fn a_wrong_data_offset_is_not_taken_for_more_than_it_is() {
    for kind in [TCP4, TCP6] {
        for words in (0..5).chain(7..16) {
            let mut plane = kind.flowing();
            let mut frame = kind.later().frame();
            let place = frame.len() - 4 - 20 + 12;
            frame[place] = words << 4;
            let outcome = plane.run(CLIENTS, &frame);
            if outcome.was_sent() {
                assert_eq!(outcome.frame[place], words << 4, "{outcome}");
                outcome.counted_of(0, Verdict::ToBackend);
            } else {
                outcome.not_forwarded();
            }
        }
    }
}

/// RFC 768: it is the receiver's to judge.
#[test]
fn a_wrong_udp_length_goes_on_as_it_came() {
    for kind in [UDP4, UDP6] {
        for length in [0_u16, 7, 9, 11, 13, 1000, 65_535] {
            let mut plane = kind.flowing();
            let mut frame = kind.later().frame();
            let place = frame.len() - 4 - 4;
            frame[place..place + 2].copy_from_slice(&length.to_be_bytes());
            let outcome = plane.run(CLIENTS, &frame);
            if outcome.was_sent() {
                assert_eq!(outcome.frame[place..place + 2], length.to_be_bytes(), "{outcome}");
                outcome.counted_of(0, Verdict::ToBackend);
            } else {
                outcome.not_forwarded();
            }
        }
    }
}

/// It has no room for what it must say.
#[test]
fn an_ipv4_header_shorter_than_five_words_is_not_forwarded() {
    for kind in [TCP4, UDP4] {
        for words in 0..5 {
            let mut frame = kind.later().frame();
            frame[14] = 0x40 | words;
            frame[24..26].copy_from_slice(&[0, 0]);
            let sum = !sum_of(&frame[14..14 + usize::from(words).max(5) * 4]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            kind.flowing().run(CLIENTS, &frame).not_forwarded();
        }
    }
}
