//! Frames as RFC 791, 8200, 9293, 768, 792 and 4443 have them: made from what they say, with right sums
//! unless asked.

use std::net::{IpAddr, SocketAddr};

use weir_l4::layout::{TCP, UDP};

pub type Mac = [u8; 6];

pub const ICMP: u8 = 1;
pub const ICMP6: u8 = 58;
pub const IP4_IN_IP: u8 = 4;
pub const IP6_IN_IP: u8 = 41;
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION_OPTIONS: u8 = 60;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;

pub const ETHERNET: usize = 14;

/// The sum of the Internet (RFC 1071) over `bytes`, not yet inverted.
pub fn sum_of(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    words.fold(0, plus)
}

/// Addition in one's complement.
pub fn plus(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// What an IP header says, but for lengths, protocol and sum.
#[derive(Clone, Debug)]
pub struct Ip {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub class: u8,
    pub flow_label: u32,
    pub id: u32,
    pub dont_fragment: bool,
    /// In bytes.
    pub offset: u16,
    pub more_fragments: bool,
    /// Of IPv4; whole words.
    pub options: Vec<u8>,
    /// Extension headers of IPv6: number and bytes; the first byte becomes the number of what follows.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// What is added to the right sum of an IPv4 header.
    pub sum_error: u16,
}

impl Ip {
    pub fn new(source: IpAddr, destination: IpAddr) -> Ip {
        Ip {
            source,
            destination,
            hop_limit: 64,
            class: 0,
            flow_label: 0,
            id: 0x1234,
            dont_fragment: true,
            offset: 0,
            more_fragments: false,
            options: Vec::new(),
            extensions: Vec::new(),
            sum_error: 0,
        }
    }

    /// A packet with `body`.
    pub fn around(&self, protocol: u8, body: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header_bytes = 20 + self.options.len();
                let mut header = vec![0x40 | (header_bytes / 4) as u8, self.class];
                header.extend(((header_bytes + body.len()) as u16).to_be_bytes());
                header.extend((self.id as u16).to_be_bytes());
                let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
                header.extend((flags | (self.offset / 8)).to_be_bytes());
                header.extend([self.hop_limit, protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(destination.octets());
                header.extend(&self.options);
                let sum = plus(!sum_of(&header), self.sum_error);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                [&header, body].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut chain = self.extensions.clone();
                if self.offset > 0 || self.more_fragments {
                    chain.push((FRAGMENT, self.fragment_header()));
                }
                let following = chain.iter().map(|(kind, _)| *kind).skip(1).chain([protocol]);
                let next = chain.first().map_or(protocol, |(kind, _)| *kind);
                let mut behind = Vec::new();
                for (following, (_, bytes)) in following.zip(&chain) {
                    behind.push(following);
                    behind.extend(&bytes[1..]);
                }
                behind.extend(body);
                let first = 6 << 28 | u32::from(self.class) << 20 | self.flow_label;
                let mut header = first.to_be_bytes().to_vec();
                header.extend((behind.len() as u16).to_be_bytes());
                header.extend([next, self.hop_limit]);
                header.extend(source.octets());
                header.extend(destination.octets());
                [header, behind].concat()
            }
            _ => panic!("{} and {} are of two families", self.source, self.destination),
        }
    }

    /// RFC 8200 §4.5.
    pub fn fragment_header(&self) -> Vec<u8> {
        let mut header = vec![0, 0];
        header.extend((self.offset | u16::from(self.more_fragments)).to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header
    }

    /// What sums of transport cover beside the transport (RFC 9293 §3.1, RFC 8200 §8.1).
    pub fn pseudo_header(&self, protocol: u8, length: usize) -> Vec<u8> {
        let mut bytes = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => [source.octets(), destination.octets()].concat(),
            (IpAddr::V6(source), IpAddr::V6(destination)) => [source.octets(), destination.octets()].concat(),
            _ => panic!("{} and {} are of two families", self.source, self.destination),
        };
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
        bytes
    }
}

/// The sum of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Right,
    /// UDP without (RFC 768).
    Missing,
    /// The right one and this more.
    Off(u16),
}

/// A packet of TCP or UDP.
#[derive(Clone, Debug)]
pub struct Packet {
    pub to_mac: Mac,
    pub from_mac: Mac,
    pub ip: Ip,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub urgent: u16,
    /// Of TCP; whole words.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    pub sum: Sum,
    /// What the Ethernet frame has behind the packet.
    pub padding: usize,
}

impl Packet {
    pub fn new(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Packet {
        Packet {
            to_mac: [0; 6],
            from_mac: [0; 6],
            ip: Ip::new(source.ip(), destination.ip()),
            protocol,
            source_port: source.port(),
            destination_port: destination.port(),
            sequence: 0x0102_0304,
            acknowledgement: 0,
            flags: SYN,
            urgent: 0,
            options: Vec::new(),
            payload: b"weir".to_vec(),
            sum: Sum::Right,
            padding: 0,
        }
    }

    /// What forwarding makes of it: other ends, and a hop less to go.
    pub fn translated(&self, source: SocketAddr, destination: SocketAddr) -> Packet {
        let mut other = self.clone();
        other.ip.source = source.ip();
        other.ip.destination = destination.ip();
        other.ip.hop_limit -= 1;
        other.source_port = source.port();
        other.destination_port = destination.port();
        other
    }

    /// A packet the other way, between the same ends.
    pub fn translated_back(&self) -> Packet {
        let mut other = self.clone();
        std::mem::swap(&mut other.ip.source, &mut other.ip.destination);
        std::mem::swap(&mut other.source_port, &mut other.destination_port);
        other
    }

    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.source, self.source_port)
    }

    pub fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.destination, self.destination_port)
    }

    pub fn with_flags(mut self, flags: u8) -> Packet {
        self.flags = flags;
        if flags & ACK != 0 {
            self.acknowledgement = 0x0a0b_0c0d;
        }
        self
    }

    pub fn with_payload(mut self, bytes: usize) -> Packet {
        self.payload = (0..bytes).map(|at| at as u8).collect();
        self
    }

    pub fn with_hop_limit(mut self, hop_limit: u8) -> Packet {
        self.ip.hop_limit = hop_limit;
        self
    }

    pub fn with_sum(mut self, sum: Sum) -> Packet {
        self.sum = sum;
        self
    }

    /// Transport header and payload.
    pub fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.source_port.to_be_bytes(), self.destination_port.to_be_bytes()].concat();
        let place = match self.protocol {
            TCP => {
                bytes.extend(self.sequence.to_be_bytes());
                bytes.extend(self.acknowledgement.to_be_bytes());
                bytes.extend([(((20 + self.options.len()) / 4) << 4) as u8, self.flags]);
                bytes.extend(64_000u16.to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(self.urgent.to_be_bytes());
                bytes.extend(&self.options);
                16
            }
            UDP => {
                bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
                bytes.extend([0, 0]);
                6
            }
            other => panic!("{other} is neither TCP nor UDP"),
        };
        bytes.extend(&self.payload);
        let pseudo_header = self.ip.pseudo_header(self.protocol, bytes.len());
        let right = !plus(sum_of(&pseudo_header), sum_of(&bytes));
        let right = if self.protocol == UDP && right == 0 { 0xffff } else { right };
        let sum = match self.sum {
            Sum::Right => right,
            Sum::Missing => 0,
            Sum::Off(error) => plus(right, error),
        };
        bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// From the IP header on.
    pub fn bytes(&self) -> Vec<u8> {
        self.ip.around(self.protocol, &self.transport())
    }

    pub fn frame(&self) -> Vec<u8> {
        self.framed(&self.bytes())
    }

    /// A frame with the addresses of this one, around another packet.
    pub fn framed(&self, packet: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(self.to_mac, self.from_mac, self.ip.source, packet);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// Frames of this packet in fragments, cut at these offsets (bytes of transport, multiples of 8).
    pub fn fragments(&self, cuts: &[usize]) -> Vec<Vec<u8>> {
        let whole = self.transport();
        let ends = cuts.iter().copied().chain([whole.len()]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let pieces = starts.zip(ends).map(|(start, end)| {
            let mut ip = self.ip.clone();
            ip.dont_fragment = false;
            ip.offset = start as u16;
            ip.more_fragments = end < whole.len();
            self.framed(&ip.around(self.protocol, &whole[start..end]))
        });
        pieces.collect()
    }
}

/// A frame around a packet of the family of `address`.
pub fn ethernet(to: Mac, from: Mac, address: IpAddr, packet: &[u8]) -> Vec<u8> {
    let kind: u16 = if address.is_ipv4() { 0x0800 } else { 0x86dd };
    [&to, &from, kind.to_be_bytes().as_slice(), packet].concat()
}

/// An ICMP error (RFC 792, RFC 4443): `word` is the second one of its header, such as an MTU.
#[derive(Clone, Debug)]
pub struct IcmpError {
    pub ip: Ip,
    pub kind: u8,
    pub code: u8,
    pub word: u32,
    /// The packet that it is about, or the beginning of it.
    pub quote: Vec<u8>,
    pub sum_error: u16,
}

impl IcmpError {
    pub fn new(source: IpAddr, destination: IpAddr, kind: u8, code: u8) -> IcmpError {
        let mut ip = Ip::new(source, destination);
        ip.dont_fragment = false;
        IcmpError { ip, kind, code, word: 0, quote: Vec::new(), sum_error: 0 }
    }

    pub fn about(mut self, quote: &[u8]) -> IcmpError {
        self.quote = quote.to_vec();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let protocol = if self.ip.source.is_ipv4() { ICMP } else { ICMP6 };
        let mut body = vec![self.kind, self.code, 0, 0];
        body.extend(self.word.to_be_bytes());
        body.extend(&self.quote);
        self.ip.around(protocol, &with_icmp_sum(&self.ip, body, self.sum_error))
    }

    /// What forwarding makes of it.
    pub fn translated(&self, source: IpAddr, destination: IpAddr, quote: &[u8]) -> IcmpError {
        let mut other = self.clone().about(quote);
        other.ip.source = source;
        other.ip.destination = destination;
        other.ip.hop_limit -= 1;
        other
    }
}

/// An ICMP message with its sum.
pub fn with_icmp_sum(ip: &Ip, mut message: Vec<u8>, error: u16) -> Vec<u8> {
    let pseudo_header = match ip.source {
        IpAddr::V4(_) => Vec::new(),
        IpAddr::V6(_) => ip.pseudo_header(ICMP6, message.len()),
    };
    let sum = plus(!plus(sum_of(&pseudo_header), sum_of(&message)), error);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// What a frame says, read by itself.
#[derive(Clone, Debug)]
pub struct Read {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub hop_limit: u8,
    pub protocol: u8,
    /// From the transport header to the end of the packet, without padding.
    pub body: Vec<u8>,
}

impl Read {
    /// Of a frame without extension headers; the sums of header and transport must be right.
    #[track_caller]
    pub fn of(frame: &[u8]) -> Read {
        let packet = &frame[ETHERNET..];
        let octets4 = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap();
        let octets16 = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap();
        let read = match packet[0] >> 4 {
            4 => {
                let header_bytes = usize::from(packet[0] & 15) * 4;
                let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
                assert_eq!(
                    sum_of(&packet[..header_bytes]),
                    0xffff,
                    "the header's sum is wrong: {packet:02x?}"
                );
                Read {
                    source: octets4(12).into(),
                    destination: octets4(16).into(),
                    hop_limit: packet[8],
                    protocol: packet[9],
                    body: packet[header_bytes..length].to_vec(),
                }
            }
            6 => Read {
                source: octets16(8).into(),
                destination: octets16(24).into(),
                hop_limit: packet[7],
                protocol: packet[6],
                body: packet[40..40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]))].to_vec(),
            },
            other => panic!("version {other}: {packet:02x?}"),
        };
        let pseudo_header = match read.protocol {
            ICMP => Vec::new(),
            other => Ip::new(read.source, read.destination).pseudo_header(other, read.body.len()),
        };
        let sum = plus(sum_of(&pseudo_header), sum_of(&read.body));
        assert_eq!(sum, 0xffff, "the sum of the transport is wrong: {packet:02x?}");
        read
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.body[at], self.body[at + 1], self.body[at + 2], self.body[at + 3]])
    }

    pub fn port(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.body[at], self.body[at + 1]])
    }
}
