//! Kinds of flows that a case is run with, and the ends that they have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_l4::layout::{Algorithm, Forward, TCP, UDP, Verdict};

use crate::frames::{ACK, IP4_IN_IP, IP6_IN_IP, Ip, Packet, RST, SYN};
use crate::namespace::{BACKENDS, CLIENTS};
use crate::plane::Plane;

/// Family, protocol, whether the device sums whole packets, and what is done to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub is_ip4: bool,
    pub protocol: u8,
    pub is_summed: bool,
    pub forward: Forward,
}

pub const TCP4: Kind = Kind { is_ip4: true, protocol: TCP, is_summed: false, forward: Forward::Nat };
pub const UDP4: Kind = Kind { is_ip4: true, protocol: UDP, is_summed: false, forward: Forward::Nat };
pub const TCP6: Kind = Kind { is_ip4: false, protocol: TCP, is_summed: false, forward: Forward::Nat };
pub const UDP6: Kind = Kind { is_ip4: false, protocol: UDP, is_summed: false, forward: Forward::Nat };

impl Kind {
    pub const fn summed(self) -> Kind {
        Kind { is_summed: true, ..self }
    }

    pub const fn by(self, forward: Forward) -> Kind {
        Kind { forward, ..self }
    }

    /// The address of this family.
    fn pick(self, ip4: Ipv4Addr, ip6: Ipv6Addr) -> IpAddr {
        if self.is_ip4 { ip4.into() } else { ip6.into() }
    }

    /// A client's endpoint.
    pub fn client(self, number: u8) -> SocketAddr {
        let ip6 = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, u16::from(number));
        SocketAddr::new(self.pick(Ipv4Addr::new(198, 51, 100, number), ip6), 40_000 + u16::from(number))
    }

    /// A listener's endpoint.
    pub fn listener(self, number: u8) -> SocketAddr {
        let ip6 = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(number) + 1);
        SocketAddr::new(self.pick(Ipv4Addr::new(192, 0, 2, number + 1), ip6), 80)
    }

    /// A backend's endpoint.
    pub fn backend(self, number: u8) -> SocketAddr {
        self.host(2, number)
    }

    /// An endpoint on another network.
    pub fn host(self, network: u8, number: u8) -> SocketAddr {
        let ip6 = Ipv6Addr::new(0xfd00 + u16::from(network), 0, 0, 0, 0, 0, 0, 11 + u16::from(number));
        SocketAddr::new(self.pick(Ipv4Addr::new(10, network, 0, 11 + number), ip6), 8080)
    }

    /// A router on the clients' side.
    pub fn router(self) -> IpAddr {
        self.pick(Ipv4Addr::new(203, 0, 113, 1), Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1))
    }

    /// That router, as a backend sees it.
    pub fn router_seen(self) -> IpAddr {
        match self.forward {
            Forward::Nat | Forward::Dsr | Forward::Ipip => self.router(),
            Forward::FullNat => self.source().ip(),
        }
    }

    /// A plane with one listener, one pool and one backend, whose ports differ.
    pub fn plane(self) -> Plane {
        self.plane_with(1, Algorithm::Hash)
    }

    /// A plane with one listener and one pool of these.
    pub fn plane_with(self, backends: u8, algorithm: Algorithm) -> Plane {
        let mut plane = self.empty_plane();
        let numbers: Vec<u16> = (0..u16::from(backends)).collect();
        for number in 0..backends {
            plane.backend(u32::from(number), self.backend(number));
        }
        plane.pool(0, algorithm, &numbers);
        self.add_listener(&mut plane, 0, &numbers);
        plane
    }

    /// Writes a listener with pool 0. By full-NAT it has a single source.
    pub fn add_listener(self, plane: &mut Plane, number: u8, backends: &[u16]) {
        let (at, source) = (self.listener(number), self.source());
        match self.forward {
            Forward::Nat => plane.listener(u32::from(number), at, self.protocol, 0, backends),
            Forward::Dsr => plane.dsr_listener(u32::from(number), at, self.protocol, 0),
            Forward::Ipip => plane.ipip_listener(u32::from(number), at, self.protocol, 0, &[source.ip()]),
            Forward::FullNat => {
                plane.host_address(source.ip());
                let ports = (source.port(), source.port());
                let numbers = (u32::from(number), 0);
                plane.full_nat_listener(numbers, at, self.protocol, backends, &[source.ip()], ports);
            }
        }
    }

    /// Where full-NAT sends from.
    pub fn source(self) -> SocketAddr {
        SocketAddr::new(
            self.pick(Ipv4Addr::new(10, 2, 0, 1), Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, 1)),
            20_000,
        )
    }

    /// A client, as a backend sees it.
    pub fn seen(self, client: SocketAddr) -> SocketAddr {
        match self.forward {
            Forward::Nat | Forward::Dsr | Forward::Ipip => client,
            Forward::FullNat => self.source(),
        }
    }

    pub fn empty_plane(self) -> Plane {
        let mut plane = Plane::new();
        plane.set_summed(self.is_summed);
        plane
    }

    /// A packet from an end to another, for the MAC address of the interface that it comes in by.
    pub fn packet(self, source: SocketAddr, destination: SocketAddr) -> Packet {
        let mut packet = Packet::new(self.protocol, source, destination);
        packet.to_mac = CLIENTS.mac;
        packet.from_mac = CLIENTS.neighbour;
        packet
    }

    /// The first packet of a client to the listener.
    pub fn first(self) -> Packet {
        self.packet(self.client(7), self.listener(0)).with_flags(SYN)
    }

    /// A later one.
    pub fn later(self) -> Packet {
        self.first().with_flags(ACK)
    }

    /// The backend's answer to it.
    pub fn answer(self) -> Packet {
        let mut packet = self.packet(self.backend(0), self.seen(self.client(7))).with_flags(SYN | ACK);
        packet.to_mac = BACKENDS.mac;
        packet.from_mac = BACKENDS.neighbour;
        packet
    }

    /// The backend's reset that refuses the first packet (RFC 9293 §3.5.2).
    pub fn refusal(self) -> Packet {
        let first = self.first();
        let mut packet = self.answer().with_flags(RST | ACK);
        packet.sequence = 0;
        packet.acknowledgement = first.sequence + 1 + first.payload.len() as u32;
        packet
    }

    /// What a packet to the listener becomes.
    pub fn at_backend(self, packet: &Packet) -> Packet {
        match self.forward {
            Forward::Dsr | Forward::Ipip => packet.translated(packet.source(), packet.destination()),
            _ => packet.translated(self.seen(packet.source()), self.backend(0)),
        }
    }

    /// What a packet to a client becomes.
    pub fn at_client(self, packet: &Packet) -> Packet {
        let is_seen = packet.destination() == self.seen(self.client(7));
        let client = if is_seen { self.client(7) } else { packet.destination() };
        packet.translated(self.listener(0), client)
    }

    /// A plane with a flow of client 7.
    pub fn flowing(self) -> Plane {
        let mut plane = self.plane();
        self.open(&mut plane);
        plane
    }

    /// Sends the first packet of client 7.
    #[track_caller]
    pub fn open(self, plane: &mut Plane) {
        let first = self.first();
        let expected = self.sent_on(&first, &self.at_backend(&first).bytes(), 0);
        plane.run(CLIENTS, &first.frame()).forwarded(Verdict::ToBackend, &expected);
    }

    /// The frame in which these bytes of a packet go on to a backend: as they are, or by IP-in-IP within an
    /// outer packet.
    pub fn sent_on(self, packet: &Packet, bytes: &[u8], backend: u8) -> Vec<u8> {
        match self.forward {
            Forward::Ipip => self.wrapped_to(packet, bytes, self.backend(backend).ip()),
            _ => packet.framed(bytes),
        }
    }

    /// The frame around a packet to the listener, with a hop less to go, within an outer one to a backend
    /// (RFC 2003 §3.1, RFC 2473 §3.1, RFC 6040 §4.1).
    pub fn wrapped(self, packet: &Packet, backend: u8) -> Vec<u8> {
        self.wrapped_to(packet, &self.at_backend(packet).bytes(), self.backend(backend).ip())
    }

    /// The same around these bytes.
    pub fn wrapped_to(self, packet: &Packet, bytes: &[u8], backend: IpAddr) -> Vec<u8> {
        let mut outer = Ip::new(self.source().ip(), backend);
        (outer.class, outer.flow_label, outer.id) = (packet.ip.class, packet.ip.flow_label, packet.ip.id);
        packet.framed(&outer.around(if self.is_ip4 { IP4_IN_IP } else { IP6_IN_IP }, bytes))
    }
}

/// Makes of a case four tests with these names, by protocol and family. What follows the names is called on
/// [`TCP4`] and the others.
macro_rules! four_kinds {
    ($case:ident, $tcp4:ident $udp4:ident $tcp6:ident $udp6:ident $(, $($by:tt)+)?) => {
        #[test] fn $tcp4() { super::$case(crate::kinds::TCP4 $($($by)+)?); }
        #[test] fn $udp4() { super::$case(crate::kinds::UDP4 $($($by)+)?); }
        #[test] fn $tcp6() { super::$case(crate::kinds::TCP6 $($($by)+)?); }
        #[test] fn $udp6() { super::$case(crate::kinds::UDP6 $($($by)+)?); }
    };
}
pub(crate) use four_kinds;

/// Makes of each case four tests by NAT, by protocol and family.
macro_rules! each_kind_of_nat {
    ($($case:ident)*) => { $(
        mod $case {
            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6);
        }
    )* };
}
pub(crate) use each_kind_of_nat;

/// Makes of each case eight tests by DSR, by protocol and family, half of them with a device that sums whole
/// packets.
macro_rules! each_kind_of_dsr {
    ($($case:ident)*) => { $(
        mod $case {
            use weir_l4::layout::Forward;

            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6, .by(Forward::Dsr));
            crate::kinds::four_kinds!(
                $case, tcp4_summed udp4_summed tcp6_summed udp6_summed, .by(Forward::Dsr).summed()
            );
        }
    )* };
}
pub(crate) use each_kind_of_dsr;

/// Makes of each case eight tests by IP-in-IP, as [`each_kind_of_dsr`] does.
macro_rules! each_kind_of_ipip {
    ($($case:ident)*) => { $(
        mod $case {
            use weir_l4::layout::Forward;

            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6, .by(Forward::Ipip));
            crate::kinds::four_kinds!(
                $case, tcp4_summed udp4_summed tcp6_summed udp6_summed, .by(Forward::Ipip).summed()
            );
        }
    )* };
}
pub(crate) use each_kind_of_ipip;

/// Makes of each case twice the tests of [`each_kind_of_nat`]: those, and those again with a device that sums
/// whole packets.
macro_rules! each_kind_of_nat_and_sum {
    ($($case:ident)*) => { $(
        mod $case {
            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6);
            crate::kinds::four_kinds!(
                $case, tcp4_summed udp4_summed tcp6_summed udp6_summed, .summed()
            );
        }
    )* };
}
pub(crate) use each_kind_of_nat_and_sum;

/// Makes of each case four tests for each way of forwarding, by protocol and family.
macro_rules! each_kind {
    ($($case:ident)*) => { $(
        mod $case {
            use weir_l4::layout::Forward;

            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6);
            crate::kinds::four_kinds!(
                $case, tcp4_full_nat udp4_full_nat tcp6_full_nat udp6_full_nat, .by(Forward::FullNat)
            );
        }
    )* };
}
pub(crate) use each_kind;

/// Makes of each case twice the tests of [`each_kind`]: those, and those again with a device that sums whole
/// packets.
macro_rules! each_kind_and_sum {
    ($($case:ident)*) => { $(
        mod $case {
            use weir_l4::layout::Forward;

            crate::kinds::four_kinds!($case, tcp4 udp4 tcp6 udp6);
            crate::kinds::four_kinds!(
                $case, tcp4_summed udp4_summed tcp6_summed udp6_summed, .summed()
            );
            crate::kinds::four_kinds!(
                $case, tcp4_full_nat udp4_full_nat tcp6_full_nat udp6_full_nat, .by(Forward::FullNat)
            );
            crate::kinds::four_kinds!(
                $case, tcp4_full_nat_summed udp4_full_nat_summed tcp6_full_nat_summed udp6_full_nat_summed,
                .by(Forward::FullNat).summed()
            );
        }
    )* };
}
pub(crate) use each_kind_and_sum;
