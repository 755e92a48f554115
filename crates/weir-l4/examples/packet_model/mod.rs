//! What may become of a packet, from the RFCs alone: RFC 791 and 8200 for headers, 768 and 9293 for
//! transport, 1624 for sums, 5508 for errors of ICMP; 2003, 2473 and 6040 for IP-in-IP.

mod tunnel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use weir_l4::layout::{Forward, TCP, UDP};

use crate::frames::{ETHERNET, ICMP, ICMP6, Mac, plus, sum_of};

/// Who is where.
#[derive(Default)]
pub struct World {
    /// Listeners, by endpoint and protocol: the backend of each.
    pub listeners: BTreeMap<(SocketAddr, u8), SocketAddr>,
    /// Backends: the listener of each.
    pub backends: BTreeMap<(SocketAddr, u8), SocketAddr>,
    /// Listeners by full-NAT: the backend of each, and the address that it sends from.
    pub full_nat: BTreeMap<(SocketAddr, u8), (SocketAddr, IpAddr)>,
    /// Listeners by DSR.
    pub dsr: BTreeSet<(SocketAddr, u8)>,
    /// Listeners by IP-in-IP: destination and source of the outer packets of each.
    pub ipip: BTreeMap<(SocketAddr, u8), (IpAddr, IpAddr)>,
    /// Clients of those: client, listener and protocol.
    pub flows_of_ipip: BTreeSet<(SocketAddr, SocketAddr, u8)>,
    /// Ports that full-NAT sends from: the first and the last.
    pub ports: (u16, u16),
    /// Ports that were seen of clients of a listener.
    ports_of: BTreeMap<(SocketAddr, SocketAddr, u8), u16>,
    /// Whom answers of a backend to such a port are for: client and listener.
    owners: BTreeMap<(SocketAddr, SocketAddr, u8), (SocketAddr, SocketAddr)>,
    pub mtu: usize,
}

/// What may happen.
#[derive(Debug)]
pub enum Expected {
    /// It is none of ours.
    Untouched,
    /// It is left alone or dropped.
    NotSent,
    /// It is sent on as this.
    Sent(Vec<u8>),
    /// As [`Expected::Sent`], or not sent.
    MaySend(Vec<u8>),
    /// It is sent on as one of these, or not sent.
    MaySendOneOf(Vec<Vec<u8>>),
    /// It is answered, with this MTU if it is too long, or not sent.
    Answered(u32),
    /// A client is told this, or it is not sent.
    MayTell(Told),
}

/// An ICMP error that a client gets for one about an outer packet.
#[derive(Debug)]
pub struct Told {
    pub listener: IpAddr,
    pub client: IpAddr,
    pub kind: [u8; 2],
    pub word: u32,
    /// What is known of the client's packet.
    pub quote: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    Whole,
    First,
    Later,
}

/// What a packet says, where it lies in the frame.
struct Packet {
    is_ip4: bool,
    /// Of the IP header.
    start: usize,
    transport: usize,
    end: usize,
    protocol: u8,
    piece: Piece,
    hop_limit: u8,
    source: IpAddr,
    destination: IpAddr,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// RFC 1624, equation 3: the sum after some words became others.
fn brought_forward(sum: u16, from: &[u8], to: &[u8]) -> u16 {
    !plus(plus(!sum, !sum_of(from)), sum_of(to))
}

impl Packet {
    /// `None` when it is no packet, or damaged; `is_quote` when the rest of it may be missing.
    fn read(frame: &[u8], start: usize, is_quote: bool) -> Option<Packet> {
        match frame.get(start)? >> 4 {
            4 => Packet::read4(frame, start, is_quote),
            6 => Packet::read6(frame, start, is_quote),
            _ => None,
        }
    }

    fn read4(frame: &[u8], start: usize, is_quote: bool) -> Option<Packet> {
        let octets = |at: usize| <[u8; 4]>::try_from(frame.get(start + at..start + at + 4)?).ok();
        let header = usize::from(frame[start] & 15) * 4;
        let whole = frame.get(start..start + header)?;
        let size = usize::from(u16_at(frame, start + 2)?);
        if header < 20 || size < header && !is_quote {
            return None;
        }
        if !is_quote && (sum_of(whole) != 0xffff || start + size > frame.len()) {
            return None;
        }
        let place = u16_at(frame, start + 6)?;
        let piece = match (place & 0x1fff, place & 0x2000) {
            (0, 0) => Piece::Whole,
            (0, _) => Piece::First,
            _ => Piece::Later,
        };
        Some(Packet {
            is_ip4: true,
            start,
            transport: start + header,
            end: (start + size).min(frame.len()),
            protocol: frame[start + 9],
            piece,
            hop_limit: frame[start + 8],
            source: octets(12)?.into(),
            destination: octets(16)?.into(),
        })
    }

    fn read6(frame: &[u8], start: usize, is_quote: bool) -> Option<Packet> {
        let octets = |at: usize| <[u8; 16]>::try_from(frame.get(start + at..start + at + 16)?).ok();
        let end = start + 40 + usize::from(u16_at(frame, start + 4)?);
        if end > frame.len() && !is_quote {
            return None;
        }
        let (source, destination) = (octets(8)?, octets(24)?);
        let mut protocol = frame[start + 6];
        let mut transport = start + 40;
        let mut piece = Piece::Whole;
        while [0, 43, 44, 60].contains(&protocol) && piece != Piece::Later {
            let head = frame.get(transport..transport + 8)?;
            match protocol {
                44 => {
                    let place = u16::from_be_bytes([head[2], head[3]]);
                    piece = match (place & 0xfff8, place & 1) {
                        (0, 0) => piece,
                        (0, _) => Piece::First,
                        _ => Piece::Later,
                    };
                    transport += 8;
                }
                // The sum is over another destination (RFC 8200 §8.1).
                43 if head[3] > 0 => return None,
                _ => transport += 8 + usize::from(head[1]) * 8,
            }
            protocol = head[0];
        }
        Some(Packet {
            is_ip4: false,
            start,
            transport,
            end: end.min(frame.len()),
            protocol,
            piece,
            hop_limit: frame[start + 7],
            source: source.into(),
            destination: destination.into(),
        })
    }

    fn ends(&self, frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let source = SocketAddr::new(self.source, u16_at(frame, self.transport)?);
        let destination = SocketAddr::new(self.destination, u16_at(frame, self.transport + 2)?);
        Some((source, destination))
    }

    fn addresses(&self) -> Range<usize> {
        if self.is_ip4 { self.start + 12..self.start + 20 } else { self.start + 8..self.start + 40 }
    }

    fn sum_place(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }

    /// Raises the MTU that an error says (RFC 1191 §4, RFC 4443 §3.2).
    fn tell_at_least(&self, frame: &mut [u8], least: u32) {
        let at = self.transport;
        let first = if self.is_ip4 && frame[at..at + 2] == [3, 4] {
            6
        } else if !self.is_ip4 && frame[at] == 2 {
            4
        } else {
            return;
        };
        let field = &mut frame[at + first..at + 8];
        let said = field.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let told = said.max(least).to_be_bytes();
        let bytes = field.len();
        field.copy_from_slice(&told[4 - bytes..]);
    }

    /// Writes other addresses, and a hop limit that is less by `hops`.
    fn readdress(&self, frame: &mut [u8], source: IpAddr, destination: IpAddr, hops: u8) {
        let before = frame[self.start..self.transport].to_vec();
        let (hop_limit, addresses) = (self.start + if self.is_ip4 { 8 } else { 7 }, self.addresses());
        frame[hop_limit] -= hops;
        let octets = [source, destination].map(|address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        });
        frame[addresses].copy_from_slice(&octets.concat());
        if self.is_ip4 {
            let at = self.start + 10;
            let sum = u16::from_be_bytes([frame[at], frame[at + 1]]);
            // The sum's own field is the same before and after.
            let after = frame[self.start..self.transport].to_vec();
            put(frame, at, brought_forward(sum, &before, &after));
        }
    }

    /// Makes it a packet between other ends; `limit` is where what is known of it ends.
    fn retarget(&self, frame: &mut [u8], ends: (SocketAddr, SocketAddr), hops: u8, limit: usize) {
        let before = [&frame[self.addresses()], &frame[self.transport..self.transport + 4]].concat();
        self.readdress(frame, ends.0.ip(), ends.1.ip(), hops);
        put(frame, self.transport, ends.0.port());
        put(frame, self.transport + 2, ends.1.port());
        let after = [&frame[self.addresses()], &frame[self.transport..self.transport + 4]].concat();
        let at = self.sum_place();
        if at + 2 > limit {
            return;
        }
        let sum = u16::from_be_bytes([frame[at], frame[at + 1]]);
        if self.protocol == UDP && sum == 0 {
            return;
        }
        let sum = brought_forward(sum, &before, &after);
        put(frame, at, if self.protocol == UDP && sum == 0 { 0xffff } else { sum });
    }
}

/// Addresses of clients, to which ways lead.
fn is_client(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [198, 51, 100],
        IpAddr::V6(address) => address.segments()[..3] == [0x2001, 0xdb8, 0xc],
    }
}

impl World {
    /// Notes a listener at a port, and the backend that its packets go to.
    pub fn add(&mut self, at: (SocketAddr, u8), forward: Forward, backend: SocketAddr, source: IpAddr) {
        match forward {
            Forward::Nat => {
                self.listeners.insert(at, backend);
                self.backends.insert((backend, at.1), at.0);
            }
            Forward::FullNat => drop(self.full_nat.insert(at, (backend, source))),
            Forward::Dsr => drop(self.dsr.insert(at)),
            Forward::Ipip => drop(self.ipip.insert(at, (backend.ip(), source))),
        }
    }

    /// Notes a listener of NAT that nothing comes for by its own interface: what comes is left alone, but for
    /// what its backend says.
    pub fn add_confined(&mut self, at: (SocketAddr, u8), backend: SocketAddr) {
        self.backends.insert((backend, at.1), at.0);
    }

    /// The ends and the protocol of a client's packet to a listener of full-NAT.
    pub fn to_full_nat(&self, frame: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
        let packet = Packet::read(frame, ETHERNET, false).filter(|packet| packet.piece != Piece::Later)?;
        let (client, listener) = packet.ends(frame)?;
        let is_ours = self.full_nat.contains_key(&(listener, packet.protocol));
        is_ours.then_some((client, listener, packet.protocol))
    }

    /// Notes which port was chosen for a client of a listener: nobody tells beforehand. Says whether that was
    /// none of ours.
    pub fn learn(&mut self, (client, listener, protocol): (SocketAddr, SocketAddr, u8), port: u16) -> bool {
        let (backend, source) = self.full_nat[&(listener, protocol)];
        self.ports_of.insert((client, listener, protocol), port);
        self.owners.insert((backend, SocketAddr::new(source, port), protocol), (client, listener));
        !(self.ports.0..=self.ports.1).contains(&port)
    }

    /// The ends of an answer that comes by here to who asked `listener`; `None` where none does. By full-NAT
    /// to whom the backend saw at `port` or the next one after it.
    pub fn answer(
        &self,
        (client, listener, protocol): (SocketAddr, SocketAddr, u8),
        port: u16,
    ) -> Option<(SocketAddr, SocketAddr)> {
        if let Some((backend, source)) = self.full_nat.get(&(listener, protocol)) {
            let at = |port| (*backend, SocketAddr::new(*source, port), protocol);
            let (later, all) = (at(port)..=at(u16::MAX), at(0)..=at(u16::MAX));
            let owner = self.owners.range(later).next().or_else(|| self.owners.range(all).next());
            return owner.map(|((backend, seen, _), _)| (*backend, *seen));
        }
        self.listeners.get(&(listener, protocol)).map(|backend| (*backend, client))
    }

    /// Whether an answer would be one to full-NAT: a flow's, and nobody else's.
    fn is_for_full_nat(&self, ends: (SocketAddr, SocketAddr), protocol: u8) -> bool {
        let mut pairs = self.full_nat.iter();
        pairs.any(|((listener, of), (backend, source))| {
            *of == protocol
                && (ends.1 == *listener
                    || ends.0 == *backend
                        && ends.1.ip() == *source
                        && (self.ports.0..=self.ports.1).contains(&ends.1.port()))
        })
    }

    /// Judges a frame that comes in where `mac` is the address of the interface.
    pub fn expected(&self, frame: &[u8], mac: Mac) -> Expected {
        let family = match frame.get(12..14) {
            Some([8, 0]) => 4,
            Some([0x86, 0xdd]) => 6,
            _ => return Expected::Untouched,
        };
        if frame[..6] != mac {
            return Expected::Untouched;
        }
        if frame.get(ETHERNET).is_none_or(|first| first >> 4 != family) {
            return Expected::NotSent;
        }
        let Some(packet) = Packet::read(frame, ETHERNET, false) else { return Expected::NotSent };
        match packet.protocol {
            _ if packet.piece == Piece::Later && !packet.is_ip4 => self.later_fragment_of_any(frame, packet),
            ICMP | ICMP6 => self.error(frame, &packet),
            TCP | UDP if packet.piece == Piece::Later => self.later_fragment(frame, &packet),
            TCP | UDP => self.segment(frame, &packet),
            _ => Expected::Untouched,
        }
    }

    /// What the ends of a packet become.
    fn translated(&self, ends: (SocketAddr, SocketAddr), protocol: u8) -> Option<(SocketAddr, SocketAddr)> {
        if self.dsr.contains(&(ends.1, protocol)) || self.ipip.contains_key(&(ends.1, protocol)) {
            return Some(ends);
        }
        if let Some((backend, source)) = self.full_nat.get(&(ends.1, protocol)) {
            let port = self.ports_of.get(&(ends.0, ends.1, protocol))?;
            return Some((SocketAddr::new(*source, *port), *backend));
        }
        if let Some((client, listener)) = self.owners.get(&(ends.0, ends.1, protocol)) {
            return Some((*listener, *client));
        }
        if let Some(backend) = self.listeners.get(&(ends.1, protocol)) {
            return Some((ends.0, *backend));
        }
        self.backends.get(&(ends.0, protocol)).map(|listener| (*listener, ends.1))
    }

    fn segment(&self, frame: &[u8], packet: &Packet) -> Expected {
        let header = if packet.protocol == TCP { 20 } else { 8 };
        if packet.transport + header > packet.end {
            return Expected::NotSent;
        }
        let Some(ends) = packet.ends(frame) else { return Expected::NotSent };
        let Some(other) = self.translated(ends, packet.protocol) else {
            let is_ours = self.is_for_full_nat(ends, packet.protocol);
            return if is_ours { Expected::Answered(self.mtu as u32) } else { Expected::Untouched };
        };
        let outer = self.ipip.get(&(ends.1, packet.protocol));
        let room = if outer.is_some() { self.mtu - packet.outer_bytes() } else { self.mtu };
        if packet.hop_limit <= 1 || packet.end - packet.start > room {
            return Expected::Answered(room as u32);
        }
        let mut sent = frame.to_vec();
        packet.retarget(&mut sent, other, 1, packet.end);
        if let Some(outer) = outer {
            sent = packet.wrapped(&sent, *outer);
        }
        // The table may have let a flow go, and ports may be used up.
        let is_full_nat = self.is_for_full_nat(ends, packet.protocol);
        let is_plain = !is_full_nat && (is_client(other.0.ip()) || is_client(other.1.ip()));
        // More extension headers than six are a disguise.
        let is_plain =
            is_plain && ends.0.port() != 0 && ends.1.port() != 0 && packet.transport < ETHERNET + 40 + 48;
        // What opens a connection and ends it belongs to none.
        let is_odd = packet.protocol == TCP && frame[packet.transport + 13] & 0x03 == 0x03;
        if is_plain && !is_odd { Expected::Sent(sent) } else { Expected::MaySend(sent) }
    }

    /// What IPv6 makes of a later fragment is for the first one to say, whatever it names itself (RFC 8200
    /// section 4.5).
    fn later_fragment_of_any(&self, frame: &[u8], packet: Packet) -> Expected {
        let mut packet = packet;
        let expected = [TCP, UDP].map(|protocol| {
            packet.protocol = protocol;
            self.later_fragment(frame, &packet)
        });
        if expected.iter().all(|one| matches!(one, Expected::Untouched)) {
            return Expected::Untouched;
        }
        let sent = expected.into_iter().flat_map(|one| match one {
            Expected::MaySend(sent) => vec![sent],
            Expected::MaySendOneOf(sent) => sent,
            _ => Vec::new(),
        });
        Expected::MaySendOneOf(sent.collect())
    }

    fn later_fragment(&self, frame: &[u8], packet: &Packet) -> Expected {
        let to = self.listeners.iter().find(|((listener, protocol), _)| {
            listener.ip() == packet.destination && *protocol == packet.protocol
        });
        let from = self
            .backends
            .iter()
            .find(|((backend, protocol), _)| backend.ip() == packet.source && *protocol == packet.protocol);
        let to_full_nat = self.full_nat.iter().find(|((listener, protocol), _)| {
            listener.ip() == packet.destination && *protocol == packet.protocol
        });
        // Of several clients the first fragment says which one it is.
        let at = |port| {
            let (backend, seen) =
                (SocketAddr::new(packet.source, port), SocketAddr::new(packet.destination, port));
            (backend, seen, packet.protocol)
        };
        let by_full_nat = self.owners.range(at(0)..=at(u16::MAX)).filter(|((_, seen, protocol), _)| {
            seen.ip() == packet.destination && *protocol == packet.protocol
        });
        let by_full_nat: BTreeSet<(IpAddr, IpAddr)> =
            by_full_nat.map(|(_, (client, listener))| (listener.ip(), client.ip())).collect();
        if !by_full_nat.is_empty() {
            let sent = by_full_nat.into_iter().filter(|_| packet.hop_limit > 1).map(|ends| {
                let mut sent = frame.to_vec();
                packet.readdress(&mut sent, ends.0, ends.1, 1);
                sent
            });
            return Expected::MaySendOneOf(sent.collect());
        }
        let by_dsr = self
            .dsr
            .iter()
            .any(|(listener, protocol)| listener.ip() == packet.destination && *protocol == packet.protocol);
        let outer = self.ipip.iter().find(|((listener, protocol), _)| {
            listener.ip() == packet.destination && *protocol == packet.protocol
        });
        let other = match (to, from) {
            _ if by_dsr || outer.is_some() => (packet.source, packet.destination),
            _ if to_full_nat.is_some() => {
                let (_, (backend, source)) = to_full_nat.expect("just asked");
                (*source, backend.ip())
            }
            (Some((_, backend)), _) => (packet.source, backend.ip()),
            (None, Some((_, listener))) => (listener.ip(), packet.destination),
            (None, None) => return Expected::Untouched,
        };
        if packet.hop_limit <= 1 {
            return Expected::NotSent;
        }
        let mut sent = frame.to_vec();
        packet.readdress(&mut sent, other.0, other.1, 1);
        match outer {
            Some((_, outer)) => self.may_send_within(packet, &sent, *outer),
            None => Expected::MaySend(sent),
        }
    }

    fn error(&self, frame: &[u8], packet: &Packet) -> Expected {
        let at = packet.transport;
        let is_right_family = (packet.protocol == ICMP) == packet.is_ip4;
        let Some(kind) = frame.get(at).filter(|_| packet.piece == Piece::Whole && is_right_family) else {
            return Expected::Untouched;
        };
        let is_error = if packet.is_ip4 { [3, 4, 11, 12].contains(kind) } else { (1..128).contains(kind) };
        let quoted = Packet::read(&frame[..packet.end], at + 8, true).filter(|_| is_error);
        let Some(quoted) = quoted.filter(|quoted| quoted.is_ip4 == packet.is_ip4) else {
            return Expected::Untouched;
        };
        if quoted.protocol == quoted.protocol_within() {
            return self.error_about_outer(frame, packet, &quoted);
        }
        if quoted.piece == Piece::Later || ![TCP, UDP].contains(&quoted.protocol) {
            return Expected::Untouched;
        }
        let Some(ends) = quoted.ends(&frame[..packet.end]) else { return Expected::NotSent };
        // What is quoted went the other way.
        let opposite = (ends.1, ends.0);
        let is_full_nat = self.is_for_full_nat(opposite, quoted.protocol);
        let Some((destination, source)) = self.translated(opposite, quoted.protocol) else {
            return if is_full_nat { Expected::NotSent } else { Expected::Untouched };
        };
        if packet.destination != ends.0.ip() || packet.hop_limit <= 1 {
            return Expected::NotSent;
        }
        let by_full_nat = self.full_nat.contains_key(&(ends.0, quoted.protocol));
        let is_to_backend = self.listeners.contains_key(&(ends.0, quoted.protocol));
        let mut sent = frame.to_vec();
        let before = sent[at + 4..packet.end].to_vec();
        quoted.retarget(&mut sent, (source, destination), 0, packet.end);
        if by_full_nat {
            packet.tell_at_least(&mut sent, 1280);
        }
        let outer = self.ipip.get(&(ends.0, quoted.protocol));
        let by_dsr = outer.is_some() || self.dsr.contains(&(ends.0, quoted.protocol));
        let outer_source = if by_dsr {
            packet.source
        } else if by_full_nat {
            destination.ip()
        } else if is_to_backend {
            packet.source
        } else {
            destination.ip()
        };
        let pseudo_before = frame[packet.addresses()].to_vec();
        packet.readdress(&mut sent, outer_source, source.ip(), 1);
        let after = sent[at + 4..packet.end].to_vec();
        let Some(sum) = u16_at(&sent, at + 2) else { return Expected::NotSent };
        let mut sum = brought_forward(sum, &before, &after);
        if !packet.is_ip4 {
            sum = brought_forward(sum, &pseudo_before, &sent[packet.addresses()]);
        }
        put(&mut sent, at + 2, sum);
        match outer {
            Some(outer) => self.may_send_within(packet, &sent, *outer),
            None => Expected::MaySend(sent),
        }
    }
}

/// Whether two frames are the same packet: their MAC addresses may differ, and a sum of 0 is one of all ones
/// but for UDP.
pub fn is_same(found: &[u8], expected: &[u8]) -> bool {
    if found.len() != expected.len() {
        return false;
    }
    let differing: Vec<usize> = (12..found.len()).filter(|at| found[*at] != expected[*at]).collect();
    let is_either_zero = |at: usize| {
        let (a, b) = (u16_at(found, at), u16_at(expected, at));
        a == Some(0) && b == Some(0xffff) || a == Some(0xffff) && b == Some(0)
    };
    match differing.as_slice() {
        [] => true,
        pairs if pairs.len() % 2 == 0 && pairs.len() <= 6 => {
            pairs.chunks(2).all(|pair| pair[1] == pair[0] + 1 && is_either_zero(pair[0]))
        }
        _ => false,
    }
}
