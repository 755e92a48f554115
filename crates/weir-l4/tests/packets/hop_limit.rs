//! A hop less with each packet; where none is left, the sender is told (RFC 1812 §5.3.1, RFC 4443 §3.3).

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::layout::Verdict;

use crate::frames::{DESTINATION_OPTIONS, IcmpError, Ip, Packet, Read, with_icmp_sum};
use crate::kinds::{Kind, TCP4, UDP4, each_kind, each_kind_and_sum, each_kind_of_nat};
use crate::namespace::{BACKENDS, CLIENTS, Device};
use crate::plane::Plane;

each_kind_and_sum! {
    the_last_hop_of_a_client_is_answered
    the_last_hop_of_a_backend_is_answered
}

/// What the program returns for a packet that it drops.
const SHOT: i32 = 2;

each_kind! {
    a_packet_with_two_hops_left_goes_on
    no_hop_left_is_answered_as_well
    the_last_hop_of_a_first_packet_opens_no_flow_for_long
    a_later_fragment_is_not_answered
    the_quote_has_ports_and_sum
    a_header_with_options_is_quoted_whole
}

each_kind_of_nat! {
    answers_have_a_limit
}

fn a_packet_with_two_hops_left_goes_on(kind: Kind) {
    let mut plane = kind.flowing();
    let (packet, answer) = (kind.later().with_hop_limit(2), kind.answer().with_hop_limit(2));
    assert_eq!(kind.at_backend(&packet).ip.hop_limit, 1);
    plane.run(CLIENTS, &packet.frame()).forwarded(Verdict::ToBackend, &kind.at_backend(&packet).frame());
    plane.run(BACKENDS, &answer.frame()).forwarded(Verdict::ToClient, &kind.at_client(&answer).frame());
}

/// Checks that the sender is told, by an error that quotes what it sent.
#[track_caller]
fn is_told(kind: Kind, plane: &mut Plane, at: Device, packet: &Packet) -> Read {
    let outcome = plane.run(at, &packet.frame());
    let frame = outcome.answered(Verdict::TimeExceeded);
    assert_eq!(frame[..6], packet.from_mac, "it goes back");
    assert_eq!(frame[6..12], packet.to_mac);
    let read = Read::of(&frame);
    assert_eq!(read.destination, packet.ip.source);
    assert_eq!([read.body[0], read.body[1]], if kind.is_ip4 { [11, 0] } else { [3, 0] });
    assert_eq!(read.word(4), 0);
    let quote = &read.body[8..];
    assert!(packet.bytes().starts_with(quote), "quoted as it came: {quote:02x?}");
    assert!(quote.len() >= if kind.is_ip4 { 28 } else { 48 }, "header and 8 bytes: {quote:02x?}");
    assert!(read.body.len() <= if kind.is_ip4 { 556 } else { 1240 });
    assert!(read.hop_limit >= 64);
    read
}

/// Bytes of payload to try. When a program cuts a packet the kernel gives up the sum over the whole of it,
/// and the runner compares what is left of it all the same: with a sum only a packet that is quoted whole can
/// be judged.
fn quotable(kind: Kind) -> &'static [usize] {
    if kind.is_summed { &[0] } else { &[0, 1, 2, 3, 4, 1400] }
}

fn the_last_hop_of_a_client_is_answered(kind: Kind) {
    let mut plane = kind.flowing();
    for bytes in quotable(kind) {
        is_told(kind, &mut plane, CLIENTS, &kind.later().with_hop_limit(1).with_payload(*bytes));
    }
}

fn the_last_hop_of_a_backend_is_answered(kind: Kind) {
    let mut plane = kind.flowing();
    for bytes in quotable(kind) {
        is_told(kind, &mut plane, BACKENDS, &kind.answer().with_hop_limit(1).with_payload(*bytes));
    }
}

fn no_hop_left_is_answered_as_well(kind: Kind) {
    is_told(kind, &mut kind.flowing(), CLIENTS, &kind.later().with_hop_limit(0));
}

/// Who traces the way to a listener sends first packets: the sender's own listener answers, and it works
/// again after.
fn the_last_hop_of_a_first_packet_opens_no_flow_for_long(kind: Kind) {
    let mut plane = kind.plane();
    is_told(kind, &mut plane, CLIENTS, &kind.first().with_hop_limit(1));
    kind.open(&mut plane);
    assert_eq!(plane.open_flows(0), 1);
}

fn a_later_fragment_is_not_answered(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_payload(1000);
    let expected = kind.at_backend(&packet).fragments(&[512]);
    plane.run(CLIENTS, &packet.fragments(&[512])[0]).forwarded(Verdict::ToBackend, &expected[0]);
    plane.run(CLIENTS, &packet.with_hop_limit(1).fragments(&[512])[1]).not_forwarded();
}

/// A tracer finds its probe by the ports.
fn the_quote_has_ports_and_sum(kind: Kind) {
    let mut plane = kind.flowing();
    let packet = kind.later().with_hop_limit(1);
    let read = is_told(kind, &mut plane, CLIENTS, &packet);
    let transport = 8 + if kind.is_ip4 { 20 } else { 40 };
    assert_eq!(read.port(transport), packet.source_port);
    assert_eq!(read.port(transport + 2), packet.destination_port);
}

fn a_header_with_options_is_quoted_whole(kind: Kind) {
    let mut plane = kind.flowing();
    let mut packet = kind.later().with_hop_limit(1);
    if kind.is_ip4 {
        packet.ip.options = vec![1; 40];
    } else {
        packet.ip.extensions =
            vec![(DESTINATION_OPTIONS, vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])];
    }
    let read = is_told(kind, &mut plane, CLIENTS, &packet);
    assert!(read.body.len() >= 8 + if kind.is_ip4 { 60 } else { 56 } + 8, "the ports are in it");
}

/// RFC 1812 §4.3.2.8, RFC 4443 §2.4: some thousand a second and processor.
fn answers_have_a_limit(kind: Kind) {
    let mut plane = kind.flowing();
    let frame = kind.later().with_hop_limit(1).frame();
    let interface = CLIENTS.interface;
    let packet =
        TestPacket { frame: &frame, interface, segments: 0, segment_bytes: 0, is_summed: false, repeat: 1 };
    // Without a look at the counters each time: a busy machine would not send as many in a second.
    let is_answered =
        |_: &u32| test_run(plane.program(), &packet).expect("the kernel runs it").action != SHOT;
    let answered = (0..100_000).take_while(is_answered).count();
    assert!((500..100_000).contains(&answered), "{answered}");
    plane.recount();
}

/// RFC 1122 §3.2.2.
#[test]
fn an_error_is_not_answered_by_an_error() {
    for kind in [TCP4, UDP4] {
        let mut plane = kind.flowing();
        let quote = kind.packet(kind.listener(0), kind.client(7)).bytes();
        let mut error = IcmpError::new(kind.router(), kind.listener(0).ip(), 3, 1).about(&quote);
        error.ip.hop_limit = 1;
        plane.run(CLIENTS, &kind.later().framed(&error.bytes())).not_forwarded();
    }
}

#[test]
fn the_sums_of_the_builder_are_right() {
    let ip = Ip::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    // ICMP echo with number and sequence 1, nothing else.
    assert_eq!(with_icmp_sum(&ip, vec![8, 0, 0, 0, 0, 1, 0, 1], 0)[2..4], [0xf7, 0xfd]);
}
