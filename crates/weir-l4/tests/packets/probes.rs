//! Probes of backends at a listener's address: packets of their sockets become those to that address, and
//! what comes from there becomes the backend's.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_l4::bpf::{TestPacket, test_run};
use weir_l4::layout::Forward;
use weir_l4::probes::{PassingProbe, ProbePassage, ProbeProgram};

use crate::frames::{ACK, IP4_IN_IP, IP6_IN_IP, IcmpError, Ip, Packet, Sum};
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

/// A probe's packet as routers would quote it, within the outer packet if there is one; and the packet that
/// its socket sent, which the rewritten error should quote.
fn quotes(kind: Kind) -> (Vec<u8>, Packet) {
    let inner = sent(kind).translated(here(kind), vip(kind)).bytes();
    let mut own = sent(kind);
    own.ip.hop_limit -= 1;
    let quote = match kind.forward {
        Forward::Ipip => {
            let protocol = if kind.is_ip4 { IP4_IN_IP } else { IP6_IN_IP };
            Ip::new(outer_source(kind), kind.backend(0).ip()).around(protocol, &inner)
        }
        _ => inner,
    };
    (quote, own)
}

/// An ICMP error from a host behind the backends' interface to the sender of the packet that it quotes.
fn error(kind: Kind, from: IpAddr, [number, code]: [u8; 2], quote: &[u8]) -> IcmpError {
    let to = if kind.forward == Forward::Ipip { outer_source(kind) } else { here(kind).ip() };
    IcmpError::new(from, to, number, code).about(quote)
}

const fn unreachable(kind: Kind) -> [[u8; 2]; 4] {
    if kind.is_ip4 { [[3, 1], [3, 2], [3, 3], [11, 0]] } else { [[1, 3], [4, 1], [1, 4], [3, 0]] }
}

/// Regression: the error was about a connection that this host does not have, so the probe waited for its
/// timeout.
#[test]
fn an_error_about_a_probe_becomes_one_about_what_its_socket_has_sent() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let _probe = host.asks(FOR_EVER);
        let carrier = answered(kind);
        let (quote, own) = quotes(kind);
        let own = own.bytes();
        for number in unreachable(kind) {
            for from in [kind.backend(0).ip(), kind.host(2, 9).ip()] {
                // The whole packet, without the last bytes of its payload, and as little as some routers
                // quote.
                for left in [own.len(), own.len() - 7, own.len() - 101 - 12] {
                    let quote = &quote[..quote.len() - (own.len() - left)];
                    let error = error(kind, from, number, quote);
                    let expected = error.translated(from, here(kind).ip(), &own[..left]);
                    let became = host.makes(false, &carrier.framed(&error.bytes()));
                    assert_eq!(
                        became,
                        (LEFT, carrier.framed(&expected.bytes())),
                        "{kind:?} {number:?} {left}"
                    );
                }
            }
        }
        // A wrong checksum stays wrong.
        if !kind.is_summed {
            let mut damaged = error(kind, kind.backend(0).ip(), unreachable(kind)[0], &quote);
            damaged.sum_error = 1;
            let expected = damaged.translated(kind.backend(0).ip(), here(kind).ip(), &own);
            let became = host.makes(false, &carrier.framed(&damaged.bytes()));
            assert_eq!(became, (LEFT, carrier.framed(&expected.bytes())), "{kind:?}");
        }
    }
}

#[test]
fn an_error_about_what_no_probe_has_sent_is_left_alone() {
    for kind in kinds() {
        let mut host = ProbingHost::of(kind);
        let _probe = host.asks(FOR_EVER);
        let carrier = answered(kind);
        let (quote, _) = quotes(kind);
        let from = kind.backend(0).ip();
        let mut left: Vec<IcmpError> = Vec::new();
        // "Packet too big", and a message that is not an error.
        let too_big = if kind.is_ip4 { [3, 4] } else { [2, 0] };
        let echo = if kind.is_ip4 { [8, 0] } else { [128, 0] };
        left.extend([too_big, echo].map(|number| error(kind, from, number, &quote)));
        let unreached = unreachable(kind)[0];
        // To a host other than the sender of the quoted packet.
        let mut other = error(kind, from, unreached, &quote);
        other.ip.destination = kind.host(2, 8).ip();
        left.push(other);
        // With too little quoted.
        left.push(error(kind, from, unreached, &quote[..quote.len() - 101 - 13]));
        // About another connection, and about an outer packet to another backend.
        let mut inner = sent(kind).translated(here(kind), vip(kind));
        inner.source_port += 1;
        let protocol = if kind.is_ip4 { IP4_IN_IP } else { IP6_IN_IP };
        let around =
            |to: IpAddr, inner: &Packet| Ip::new(outer_source(kind), to).around(protocol, &inner.bytes());
        if kind.forward == Forward::Ipip {
            left.push(error(kind, from, unreached, &around(from, &inner)));
            inner.source_port -= 1;
            left.push(error(kind, from, unreached, &around(kind.backend(1).ip(), &inner)));
        } else {
            left.push(error(kind, from, unreached, &inner.bytes()));
        }
        for error in left {
            let frame = carrier.framed(&error.bytes());
            assert_eq!(host.makes(false, &frame), (LEFT, frame), "{kind:?} {error:?}");
        }
    }
}
