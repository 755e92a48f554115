//! Packets as bytes, from any address, for what no socket would send.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// A TCP flag.
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
    /// Source address.
    pub source: SocketAddr,
    /// Destination address, of the same family.
    pub destination: SocketAddr,
    /// [`SYN`] and others.
    pub flags: u8,
    /// Its sequence number.
    pub sequence: u32,
    /// Its acknowledgement number.
    pub acknowledgement: u32,
    /// What it carries.
    pub payload: &'p [u8],
}

impl Segment<'_> {
    /// The packet, from its IP header on.
    pub fn packet(&self) -> Vec<u8> {
        let (source, destination) = (self.source, self.destination);
        let tcp =
            tcp(source, destination, self.flags, [self.sequence, self.acknowledgement], b"", self.payload);
        in_ip(source.ip(), destination.ip(), 6, &Header::default(), &tcp)
    }
}

/// A datagram of UDP, from its IP header on.
pub fn datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    in_ip(source.ip(), destination.ip(), 17, &Header::default(), &udp(source, destination, payload))
}

/// The fields of an IP header besides addresses and protocol.
#[derive(Clone, Debug)]
pub struct Header {
    /// Remaining hops.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub class: u8,
    /// IPv4: the packet's identification; with 0 the sending kernel chooses one.
    pub id: u16,
    /// IPv4: the flags and the offset of fragments, as the field has them (RFC 791 §3.1).
    pub fragment: u16,
    /// IPv4: options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6: extension headers in their order: kind, and what follows the byte of the next header's kind.
    pub extensions: Vec<(u8, Vec<u8>)>,
}

impl Default for Header {
    /// Don't fragment.
    fn default() -> Header {
        Header {
            hop_limit: 64,
            class: 0,
            id: 0,
            fragment: 0x4000,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }
}

/// A TCP segment with its checksum. The numbers are sequence and acknowledgement; options must be a multiple
/// of four bytes.
pub fn tcp(
    source: SocketAddr,
    destination: SocketAddr,
    flags: u8,
    numbers: [u32; 2],
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(20 + options.len() + payload.len());
    tcp.extend(source.port().to_be_bytes());
    tcp.extend(destination.port().to_be_bytes());
    tcp.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    // A window of 65,535.
    tcp.extend([(5 + options.len() as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend(payload);
    with_sum(source.ip(), destination.ip(), 6, tcp, 16)
}

/// A UDP datagram with its checksum.
pub fn udp(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::with_capacity(8 + payload.len());
    udp.extend(source.port().to_be_bytes());
    udp.extend(destination.port().to_be_bytes());
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    with_sum(source.ip(), destination.ip(), 17, udp, 6)
}

/// An ICMP error with its checksum: `kind` is type and code, `value` the second word, before the quoted
/// packet.
pub fn icmp(source: IpAddr, destination: IpAddr, kind: [u8; 2], value: u32, quoted: &[u8]) -> Vec<u8> {
    let mut icmp = vec![kind[0], kind[1], 0, 0];
    icmp.extend(value.to_be_bytes());
    icmp.extend(quoted);
    if source.is_ipv6() {
        return with_sum(source, destination, 58, icmp, 2);
    }
    let sum = sum_of(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    icmp
}

/// Fills in the checksum at `sum_at`, including the pseudo-header.
fn with_sum(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    mut transport: Vec<u8>,
    sum_at: usize,
) -> Vec<u8> {
    let sum = sum_of_transport(source, destination, protocol, &transport);
    transport[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    transport
}

/// The checksum that a transport's packet should have; 0 if it already has it.
pub fn sum_of_transport(source: IpAddr, destination: IpAddr, protocol: u8, transport: &[u8]) -> u16 {
    let addresses = [octets(source), octets(destination)].concat();
    let pseudo = [&addresses[..], &(transport.len() as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat();
    sum_of(&[&pseudo[..], transport].concat())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A transport's packet, from its IP header on.
pub fn in_ip(source: IpAddr, destination: IpAddr, protocol: u8, said: &Header, transport: &[u8]) -> Vec<u8> {
    let addresses = [octets(source), octets(destination)].concat();
    let mut packet = Vec::with_capacity(60 + transport.len());
    if source.is_ipv4() {
        let length = 20 + said.options.len();
        packet.extend([0x40 | (length / 4) as u8, said.class]);
        packet.extend(((length + transport.len()) as u16).to_be_bytes());
        packet.extend(said.id.to_be_bytes());
        packet.extend(said.fragment.to_be_bytes());
        packet.extend([said.hop_limit, protocol, 0, 0]);
        packet.extend(&addresses);
        packet.extend(&said.options);
        let sum = sum_of(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let mut extensions = Vec::new();
        for (index, (_, body)) in said.extensions.iter().enumerate() {
            extensions.push(said.extensions.get(index + 1).map_or(protocol, |next| next.0));
            extensions.extend(body);
        }
        packet.extend([0x60 | said.class >> 4, said.class << 4, 0, 0]);
        packet.extend(((extensions.len() + transport.len()) as u16).to_be_bytes());
        packet.extend([said.extensions.first().map_or(protocol, |first| first.0), said.hop_limit]);
        packet.extend(&addresses);
        packet.extend(&extensions);
    }
    packet.extend(transport);
    packet
}

/// The checksum of RFC 1071; 0 for data that include a correct one.
pub fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends packets unchanged, from the host in which it was created.
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

    /// Sends a packet to its destination.
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

/// Receives what arrives at a host's uplink, as on the wire.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    mac: [u8; 6],
}

impl Listener {
    /// Of the calling thread's network namespace, whose uplink has this MAC address.
    ///
    /// # Errors
    /// It needs root.
    pub fn here(mac: [u8; 6]) -> io::Result<Listener> {
        // ETH_P_ALL, in the order of the network's bytes.
        let all = Protocol::from(i32::from(3_u16.to_be()));
        Ok(Listener { socket: Socket::new(Domain::PACKET, Type::RAW, Some(all))?, mac })
    }

    /// Waits for the next packet, from its IP header on.
    ///
    /// # Errors
    /// Nothing came for as long as `patience`.
    pub fn hears(&self, patience: Duration) -> io::Result<Vec<u8>> {
        self.socket.set_read_timeout(Some(patience))?;
        loop {
            let mut frame = vec![0; 65_536];
            let count = (&self.socket).read(&mut frame)?;
            frame.truncate(count);
            // The socket also gets what this host sends.
            if count > 14 && frame[..6] == self.mac && matches!(frame[12..14], [8, 0] | [0x86, 0xdd]) {
                return Ok(frame.split_off(14));
            }
        }
    }
}
