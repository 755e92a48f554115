//! Packets as bytes, from any address: what no socket would send.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// Flags of TCP.
pub const FIN: u8 = 1;
/// As [`FIN`].
pub const SYN: u8 = 2;
/// As [`FIN`].
pub const RST: u8 = 4;
/// As [`FIN`].
pub const ACK: u8 = 16;

/// A segment of TCP.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'p> {
    /// Whence.
    pub source: SocketAddr,
    /// Whither; of the same family.
    pub destination: SocketAddr,
    /// [`SYN`] and others.
    pub flags: u8,
    /// Its number.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledgement: u32,
    /// What it carries.
    pub payload: &'p [u8],
}

impl Segment<'_> {
    /// The packet, from its IP header on.
    pub fn packet(&self) -> Vec<u8> {
        let mut tcp = Vec::with_capacity(20 + self.payload.len());
        tcp.extend(self.source.port().to_be_bytes());
        tcp.extend(self.destination.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledgement.to_be_bytes());
        // A header of 20 bytes, and a window of 65,535.
        tcp.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(self.payload);
        packet(self.source.ip(), self.destination.ip(), 6, tcp, 16)
    }
}

/// A datagram of UDP, from its IP header on.
pub fn datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::with_capacity(8 + payload.len());
    udp.extend(source.port().to_be_bytes());
    udp.extend(destination.port().to_be_bytes());
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    packet(source.ip(), destination.ip(), 17, udp, 6)
}

/// The IP header before a transport's packet, whose sum at `sum_at` is filled in.
fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    mut transport: Vec<u8>,
    sum_at: usize,
) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let addresses = [octets(source), octets(destination)].concat();
    let length = transport.len() as u16;
    let pseudo = [&addresses[..], &length.to_be_bytes(), &[0, protocol]].concat();
    let sum = sum_of(&[&pseudo[..], &transport].concat());
    transport[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut header = Vec::with_capacity(40 + transport.len());
    if source.is_ipv4() {
        header.extend([0x45, 0]);
        header.extend((20 + length).to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        header.extend(&addresses);
        let sum = sum_of(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header.extend([0x60, 0, 0, 0]);
        header.extend(length.to_be_bytes());
        header.extend([protocol, 64]);
        header.extend(&addresses);
    }
    header.extend(transport);
    header
}

/// The sum of RFC 1071.
fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends packets as they are, from the host it was made in.
#[derive(Debug)]
pub struct Sender {
    four: Socket,
    six: Socket,
}

impl Sender {
    /// Of the calling thread's network namespace.
    ///
    /// # Errors
    /// It needs root.
    pub fn here() -> io::Result<Sender> {
        // IPPROTO_RAW: the header comes with the packet.
        let socket = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(255)));
        Ok(Sender { four: socket(Domain::IPV4)?, six: socket(Domain::IPV6)? })
    }

    /// Sends a packet on the way to where it says.
    pub fn sends(&self, packet: &[u8]) -> io::Result<()> {
        let (socket, to) = if packet[0] >> 4 == 4 {
            let octets: [u8; 4] = packet[16..20].try_into().expect("four bytes");
            (&self.four, IpAddr::from(Ipv4Addr::from(octets)))
        } else {
            let octets: [u8; 16] = packet[24..40].try_into().expect("sixteen bytes");
            (&self.six, IpAddr::from(Ipv6Addr::from(octets)))
        };
        socket.send_to(packet, &SocketAddr::new(to, 0).into()).map(drop)
    }
}
