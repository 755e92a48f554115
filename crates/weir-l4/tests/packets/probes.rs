//! Probes of backends at a listener's address: packets of their sockets become those to that address, and
//! what comes from there becomes the backend's.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::layout::Forward;
use weir_l4::probes::{PassingProbe, ProbePassage, ProbeProgram};

use crate::frames::{ACK, IP4_IN_IP, IP6_IN_IP, Ip, Packet, Sum};
use crate::kinds::{Kind, TCP4, TCP6, UDP4};
use crate::namespace::{BACKENDS, Namespace};

const LEFT: i32 = -1;
/// What the program's clock never comes to.
const FOR_EVER: Duration = Duration::from_secs(1 << 33);

/// Both families and both ways, with devices that sum whole packets and with others.
fn kinds() -> [Kind; 8] {
    let of =
        |kind: Kind| [kind, kind.summed()].map(|kind| [Forward::Dsr, Forward::Ipip].map(|by| kind.by(by)));
    let [[a, b], [c, d]] = of(TCP4);
    let [[e, f], [g, h]] = of(TCP6);
    [a, b, c, d, e, f, g, h]
}

/// Weir's host: a probe from here to the first backend, by the first listener.
struct ProbingHost {
    kind: Kind,
    program: ProbeProgram,
    _namespace: Namespace,
}

impl ProbingHost {
    fn of(kind: Kind) -> ProbingHost {
        let namespace = Namespace::new();
        namespace.enter();
        let program = ProbeProgram::load().expect("root may load it");
        ProbingHost { kind, program, _namespace: namespace }
    }

    fn asks(&self, until: Duration) -> PassingProbe {
        let kind = self.kind;
        let is_wrapped = kind.forward == Forward::Ipip;
        let passage = ProbePassage {
            here: here(kind),
            backend: kind.backend(0),
            vip: kind.listener(0).ip(),
            outer_source: is_wrapped.then(|| outer_source(kind)),
            until,
        };
        self.program.passages().begin(&passage).expect("there is room")
    }

    /// What the program makes of a frame that goes out, or comes in.
    #[track_caller]
    fn makes(&mut self, is_egress: bool, frame: &[u8]) -> (i32, Vec<u8>) {
        let packet = TestPacket {
            frame,
            interface: BACKENDS.interface,
            segments: 0,
            segment_bytes: 0,
            is_summed: self.kind.is_summed,
            repeat: 1,
        };
        let result = test_run(self.program.program(is_egress), &packet).expect("the kernel runs it");
        (result.action, result.frame)
    }

    #[track_caller]
    fn leaves(&mut self, is_egress: bool, packet: &Packet) {
        assert_eq!(self.makes(is_egress, &packet.frame()), (LEFT, packet.frame()), "{:?}", self.kind);
    }
}

fn here(kind: Kind) -> SocketAddr {
    kind.source()
}

fn outer_source(kind: Kind) -> IpAddr {
    kind.host(2, 9).ip()
}

/// The listener's address, at the backend's port.
fn vip(kind: Kind) -> SocketAddr {
    SocketAddr::new(kind.listener(0).ip(), kind.backend(0).port())
}

/// What the probe's socket sends, on its way out by the backends' interface.
fn sent(kind: Kind) -> Packet {
    let mut packet = kind.packet(here(kind), kind.backend(0));
    (packet.to_mac, packet.from_mac) = (BACKENDS.neighbour, BACKENDS.mac);
    packet.with_payload(101)
}

/// What the backend answers from the listener's address.
fn answered(kind: Kind) -> Packet {
    let mut packet = kind.packet(vip(kind), here(kind)).with_flags(ACK);
    (packet.to_mac, packet.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
    packet.with_payload(1200)
}

#[test]
fn what_a_probe_sends_goes_to_the_vip_at_its_backend() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let probe = host.asks(FOR_EVER);
        assert!(!probe.has_left());
        for sum in [Sum::Right, Sum::Off(1)] {
            // A sum over a whole packet that is damaged is none.
            if kind.is_summed && sum != Sum::Right {
                continue;
            }
            let packet = sent(kind).with_sum(sum);
            let inner = packet.translated(here(kind), vip(kind));
            let expected = match kind.forward {
                Forward::Ipip => {
                    let protocol = if kind.is_ip4 { IP4_IN_IP } else { IP6_IN_IP };
                    let outer = Ip::new(outer_source(kind), kind.backend(0).ip());
                    packet.framed(&outer.around(protocol, &inner.bytes()))
                }
                _ => inner.frame(),
            };
            assert_eq!(host.makes(true, &packet.frame()), (LEFT, expected), "{kind:?} {sum:?}");
        }
        assert!(probe.has_left());
    }
}

#[test]
fn what_the_vip_answers_comes_from_the_backend() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let probe = host.asks(FOR_EVER);
        let packet = answered(kind);
        let expected = packet.translated(kind.backend(0), here(kind));
        assert_eq!(host.makes(false, &packet.frame()), (LEFT, expected.frame()), "{kind:?}");
        assert!(!probe.has_left(), "only what goes out has left");
    }
}

#[test]
fn what_is_no_probes_is_left_alone() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let _probe = host.asks(FOR_EVER);
        let other_port = |mut at: SocketAddr| {
            at.set_port(at.port() + 1);
            at
        };
        let ends = [
            (other_port(here(kind)), kind.backend(0)),
            (here(kind), other_port(kind.backend(0))),
            (here(kind), kind.backend(1)),
            (kind.client(7), kind.backend(0)),
            (here(kind), vip(kind)),
        ];
        for (from, to) in ends {
            host.leaves(true, &kind.packet(from, to));
        }
        for (from, to) in [
            (other_port(vip(kind)), here(kind)),
            (vip(kind), other_port(here(kind))),
            (kind.listener(1), here(kind)),
            (kind.backend(0), here(kind)),
        ] {
            let mut packet = kind.packet(from, to).with_flags(ACK);
            (packet.to_mac, packet.from_mac) = (BACKENDS.mac, BACKENDS.neighbour);
            host.leaves(false, &packet);
        }
        // A frame that a switch floods is for another host.
        let mut flooded = answered(kind);
        flooded.to_mac = [2, 9, 9, 9, 9, 9];
        host.leaves(false, &flooded);
    }
    let mut host = ProbingHost::of(UDP4.by(Forward::Dsr));
    let _probe = host.asks(FOR_EVER);
    host.leaves(true, &sent(host.kind));
    host.leaves(false, &answered(host.kind));
}

#[test]
fn a_probe_whose_time_is_over_is_left_alone() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let _probe = host.asks(Duration::from_nanos(1));
        host.leaves(true, &sent(kind));
        host.leaves(false, &answered(kind));
    }
}

#[test]
fn a_probe_that_has_ended_is_left_alone() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        drop(host.asks(FOR_EVER));
        host.leaves(true, &sent(kind));
        host.leaves(false, &answered(kind));
    }
}
