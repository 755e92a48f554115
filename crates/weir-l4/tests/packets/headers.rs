//! Options of IPv4 and extension headers of IPv6 are looked through, up to a bound, and go on as they came.

use weir_l4::layout::Verdict;

use crate::frames::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};
use crate::kinds::{Kind, TCP4, TCP6, UDP4, UDP6};
use crate::namespace::{BACKENDS, CLIENTS};

const IP4: [Kind; 4] = [TCP4, UDP4, TCP4.summed(), UDP4.summed()];
const IP6: [Kind; 4] = [TCP6, UDP6, TCP6.summed(), UDP6.summed()];

/// Six are looked through.
const BOUND: usize = 6;

fn padding(bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    header[1] = (bytes / 8 - 1) as u8;
    header[2] = 1;
    header[3] = (bytes - 4) as u8;
    header
}

/// RFC 8200 §4.4: a kind that nobody has use for.
fn routing(segments_left: u8) -> Vec<u8> {
    let mut header = vec![0, 2, 4, segments_left, 0, 0, 0, 0];
    header.extend([0xfd; 16]);
    header
}

#[track_caller]
fn passes(kind: Kind, extensions: &[(u8, Vec<u8>)]) {
    let mut plane = kind.plane();
    let (mut first, mut answer) = (kind.first(), kind.answer());
    first.ip.extensions = extensions.to_vec();
    answer.ip.extensions = extensions.to_vec();
    plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

#[track_caller]
fn does_not_pass(kind: Kind, extensions: &[(u8, Vec<u8>)]) {
    let (mut first, mut later, mut answer) = (kind.first(), kind.later(), kind.answer());
    for packet in [&mut first, &mut later, &mut answer] {
        packet.ip.extensions = extensions.to_vec();
    }
    kind.plane().run(CLIENTS, &first.frame()).not_forwarded();
    kind.flowing().run(CLIENTS, &later.frame()).not_forwarded();
    kind.flowing().run(BACKENDS, &answer.frame()).not_forwarded();
}

#[test]
fn ipv4_options_of_every_length_go_on() {
    for kind in IP4 {
        for words in 1..=10 {
            let mut plane = kind.plane();
            let (mut first, mut answer) = (kind.first(), kind.answer());
            // A timestamp to fill in (RFC 791 §3.1), as long as there is room; no operation behind it.
            let mut options = vec![1; words * 4];
            options[0] = 7;
            options[1] = 3;
            options[2] = 4;
            options[words * 4 - 1] = 0;
            first.ip.options = options.clone();
            answer.ip.options = options;
            plane
                .run(CLIENTS, &first.frame())
                .forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
            plane
                .run(BACKENDS, &answer.frame())
                .forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
        }
    }
}

#[test]
fn tcp_options_go_on() {
    for kind in [TCP4, TCP6, TCP4.summed(), TCP6.summed()] {
        let mut plane = kind.plane();
        for words in 0..=10 {
            let mut first = kind.first();
            first.options = vec![1; words * 4];
            plane
                .run(CLIENTS, &first.frame())
                .forwarded(Verdict::ToBackend, &kind.at_backend(&first).frame());
        }
    }
}

#[test]
fn one_extension_header_of_each_kind_is_looked_through() {
    for kind in IP6 {
        for (number, header) in [
            (HOP_BY_HOP, padding(8)),
            (HOP_BY_HOP, padding(24)),
            (DESTINATION_OPTIONS, padding(8)),
            (DESTINATION_OPTIONS, padding(16)),
            (DESTINATION_OPTIONS, padding(128)),
            (ROUTING, routing(0)),
            (FRAGMENT, vec![0, 0, 0, 0, 9, 9, 9, 9]),
        ] {
            passes(kind, &[(number, header)]);
        }
    }
}

#[test]
fn extension_headers_are_looked_through_up_to_the_bound() {
    for kind in IP6 {
        for count in 1..=BOUND {
            passes(kind, &vec![(DESTINATION_OPTIONS, padding(8)); count]);
        }
    }
}

#[test]
fn the_order_of_the_rfc_is_looked_through() {
    let chain = [
        (HOP_BY_HOP, padding(8)),
        (DESTINATION_OPTIONS, padding(16)),
        (ROUTING, routing(0)),
        (FRAGMENT, vec![0, 0, 0, 0, 9, 9, 9, 9]),
        (DESTINATION_OPTIONS, padding(8)),
    ];
    for kind in IP6 {
        passes(kind, &chain);
    }
}

#[test]
fn more_extension_headers_than_the_bound_are_a_disguise() {
    for kind in IP6 {
        for count in [BOUND + 1, BOUND + 2, 20] {
            does_not_pass(kind, &vec![(DESTINATION_OPTIONS, padding(8)); count]);
        }
    }
}

/// The sum of the transport is over the last destination, which is not the one in the header (RFC 8200 §8.1).
#[test]
fn a_routing_header_with_segments_left_does_not_pass() {
    for kind in IP6 {
        does_not_pass(kind, &[(ROUTING, routing(1))]);
    }
}

/// What it signs is the addresses (RFC 4302).
#[test]
fn an_authentication_header_does_not_pass() {
    for kind in IP6 {
        does_not_pass(
            kind,
            &[(51, vec![0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9])],
        );
    }
}

/// Where transport would begin behind the end of the packet.
#[test]
fn an_extension_header_longer_than_the_packet_does_not_pass() {
    for kind in IP6 {
        for length in [3, 4, 5, 6, 7, 100, 255] {
            let mut header = padding(8);
            header[1] = length;
            does_not_pass(kind, &[(DESTINATION_OPTIONS, header)]);
        }
    }
}

/// An error quotes the header whole, with 64 bytes of extensions at most: what had more was dropped, and
/// counted as answered.
#[test]
fn a_header_that_is_too_long_to_quote_is_dropped_as_unanswered() {
    for kind in [TCP6, UDP6] {
        for (bytes, is_quoted) in [(64, true), (72, false), (512, false)] {
            let mut plane = kind.plane();
            let mut large = kind.first().with_payload(1500);
            let mut last = kind.first().with_hop_limit(1);
            for packet in [&mut large, &mut last] {
                packet.ip.extensions = vec![(DESTINATION_OPTIONS, padding(bytes))];
            }
            for (packet, verdict) in [(large, Verdict::TooBig), (last, Verdict::TimeExceeded)] {
                let outcome = plane.run(CLIENTS, &packet.frame());
                match is_quoted {
                    true => drop(outcome.answered(verdict)),
                    false => outcome.dropped(Verdict::DropUnanswered),
                }
            }
        }
    }
}
