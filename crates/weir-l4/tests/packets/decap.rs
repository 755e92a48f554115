//! On a backend: outer headers of balancers are taken off, and nothing else is touched.

use std::net::IpAddr;

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::decap::{Decapsulator, TAKEN};
use weir_l4::layout::Forward;

use crate::frames::{IP4_IN_IP, IP6_IN_IP, Ip, Packet};
use crate::kinds::{Kind, each_kind_of_ipip};
use crate::namespace::{BACKENDS, Namespace};

each_kind_of_ipip! {
    the_inner_packet_comes_out_as_it_was
    congestion_on_the_way_is_told
    what_others_send_is_left_alone
    what_is_not_for_this_host_is_dropped_or_left
    damage_and_fragments_do_not_come_out
    only_named_destinations_are_taken
}

const LEFT: i32 = -1;
const SHOT: i32 = 2;

/// A backend, which is the host of the tests' namespace: its balancer is host 9 of its network.
struct Backend {
    kind: Kind,
    program: Decapsulator,
    _namespace: Namespace,
}

impl Backend {
    fn of(kind: Kind, to: &[IpAddr]) -> Backend {
        let namespace = Namespace::new();
        namespace.enter();
        let program = Decapsulator::load(&[balancer(kind)], to).expect("root may load it");
        Backend { kind, program, _namespace: namespace }
    }

    /// What becomes of a frame, and under which name it is counted.
    #[track_caller]
    fn takes(&mut self, frame: &[u8]) -> (i32, Vec<u8>, Vec<&'static str>) {
        let before = self.program.counts().unwrap();
        let packet = TestPacket {
            frame,
            interface: BACKENDS.interface,
            segments: 0,
            segment_bytes: 0,
            is_summed: self.kind.is_summed,
            repeat: 1,
        };
        let result = test_run(self.program.program(), &packet).expect("the kernel runs it");
        let after = self.program.counts().unwrap();
        let counted = (0..TAKEN.len()).filter(|at| after[*at] != before[*at]).map(|at| TAKEN[at]);
        (result.action, result.frame, counted.collect())
    }

    #[track_caller]
    fn leaves(&mut self, frame: &[u8], counted: &[&str]) {
        assert_eq!(self.takes(frame), (LEFT, frame.to_vec(), counted.to_vec()));
    }

    #[track_caller]
    fn drops(&mut self, frame: &[u8], counted: &str) {
        let (action, _, found) = self.takes(frame);
        assert_eq!((action, found), (SHOT, vec![counted]));
    }
}

fn balancer(kind: Kind) -> IpAddr {
    kind.host(2, 9).ip()
}

/// An address of the namespace's host.
fn here(kind: Kind) -> IpAddr {
    kind.source().ip()
}

/// A client's packet to an address of this host.
fn inner(kind: Kind) -> Packet {
    let mut packet = kind.packet(kind.client(7), kind.source());
    (packet.to_mac, packet.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
    packet.with_payload(101)
}

/// The frame of an outer packet around `bytes`.
fn within(kind: Kind, outer: &Ip, bytes: &[u8]) -> Vec<u8> {
    inner(kind).framed(&outer.around(if kind.is_ip4 { IP4_IN_IP } else { IP6_IN_IP }, bytes))
}

fn outer(kind: Kind) -> Ip {
    Ip::new(balancer(kind), here(kind))
}

fn the_inner_packet_comes_out_as_it_was(kind: Kind) {
    assert_eq!(kind.forward, Forward::Ipip);
    let mut backend = Backend::of(kind, &[]);
    let mut packet = inner(kind);
    for (class, hop_limit) in [(0, 64), (0xb9, 1), (0x02, 255)] {
        (packet.ip.class, packet.ip.hop_limit) = (class, hop_limit);
        let mut outer = outer(kind);
        outer.class = class;
        let (action, frame, counted) = backend.takes(&within(kind, &outer, &packet.bytes()));
        assert_eq!((action, counted), (LEFT, vec!["taken_off"]));
        assert_eq!(frame, packet.frame());
    }
    if kind.is_ip4 {
        let mut outer = outer(kind);
        outer.options = vec![1; 12];
        assert_eq!(backend.takes(&within(kind, &outer, &packet.bytes())).1, packet.frame());
    }
    backend.leaves(&packet.frame(), &[]);
}

/// RFC 6040 §4.2, the table: what came in, what the way made of it, what goes on.
fn congestion_on_the_way_is_told(kind: Kind) {
    let mut backend = Backend::of(kind, &[]);
    for (before, outside, after) in [
        (0, 0, Some(0)),
        (0, 1, Some(0)),
        (0, 2, Some(0)),
        (0, 3, None),
        (1, 0, Some(1)),
        (1, 1, Some(1)),
        (1, 2, Some(1)),
        (1, 3, Some(3)),
        (2, 0, Some(2)),
        (2, 1, Some(1)),
        (2, 2, Some(2)),
        (2, 3, Some(3)),
        (3, 0, Some(3)),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (3, 3, Some(3)),
    ] {
        let (mut packet, mut outer) = (inner(kind), outer(kind));
        (packet.ip.class, outer.class) = (0xb8 | before, 0x48 | outside);
        packet.ip.flow_label = 0xa_bcde;
        let frame = within(kind, &outer, &packet.bytes());
        match after {
            None => backend.drops(&frame, "drop_congested"),
            Some(after) => {
                packet.ip.class = 0xb8 | after;
                assert_eq!(backend.takes(&frame).1, packet.frame(), "{before} {outside}");
            }
        }
    }
}

fn what_others_send_is_left_alone(kind: Kind) {
    let mut backend = Backend::of(kind, &[]);
    let outer = Ip::new(kind.host(2, 8).ip(), here(kind));
    backend.leaves(&within(kind, &outer, &inner(kind).bytes()), &["left_stranger"]);
}

fn what_is_not_for_this_host_is_dropped_or_left(kind: Kind) {
    let mut backend = Backend::of(kind, &[]);
    // A tunnel to another host that passes by.
    let passing = Ip::new(balancer(kind), kind.host(3, 0).ip());
    backend.leaves(&within(kind, &passing, &inner(kind).bytes()), &[]);
    let elsewhere = kind.packet(kind.client(7), kind.host(3, 0)).bytes();
    backend.drops(&within(kind, &outer(kind), &elsewhere), "drop_elsewhere");
}

fn damage_and_fragments_do_not_come_out(kind: Kind) {
    let mut backend = Backend::of(kind, &[]);
    let bytes = inner(kind).bytes();
    let header = if kind.is_ip4 { 20 } else { 40 };
    for cut in [0, 1, header - 1, header, bytes.len() - 1] {
        backend.drops(&within(kind, &outer(kind), &bytes[..cut]), "drop_damaged");
    }
    let mut other = bytes.clone();
    other[0] ^= 0x70;
    backend.drops(&within(kind, &outer(kind), &other), "drop_damaged");
    if !kind.is_ip4 {
        return;
    }
    for (offset, more_fragments) in [(0, true), (64, false)] {
        let mut outer = outer(kind);
        (outer.dont_fragment, outer.offset, outer.more_fragments) = (false, offset, more_fragments);
        backend.leaves(&within(kind, &outer, &bytes), &["left_fragment"]);
    }
    if !kind.is_summed {
        let mut outer = outer(kind);
        outer.sum_error = 1;
        backend.leaves(&within(kind, &outer, &bytes), &["left_damaged"]);
    }
}

fn only_named_destinations_are_taken(kind: Kind) {
    let mut backend = Backend::of(kind, &[kind.listener(0).ip()]);
    backend.drops(&within(kind, &outer(kind), &inner(kind).bytes()), "drop_elsewhere");
    let named = inner(kind).framed(&kind.packet(kind.client(7), kind.listener(0)).bytes());
    let (action, frame, _) = backend.takes(&within(kind, &outer(kind), &named[14..]));
    assert_eq!((action, frame), (LEFT, named));
}
