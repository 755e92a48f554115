//! Packets within packets: RFC 2003 for IPv4, RFC 2473 for IPv6, RFC 6040 for ECN.

use std::net::{IpAddr, SocketAddr};

use weir_l4::layout::{TCP, UDP};

use crate::frames::{ETHERNET, ICMP6, IP4_IN_IP, IP6_IN_IP, Ip, plus, sum_of};

use super::{Expected, Packet, Piece, Told, World, u16_at};

/// What every link of IPv4 carries (RFC 791 §3.2), and of IPv6 (RFC 8200 §5).
const LEAST_MTU: [u32; 2] = [68, 1280];

impl Packet {
    pub(super) fn outer_bytes(&self) -> usize {
        if self.is_ip4 { 20 } else { 40 }
    }

    /// The protocol of outer packets around packets of this family.
    pub(super) fn protocol_within(&self) -> u8 {
        if self.is_ip4 { IP4_IN_IP } else { IP6_IN_IP }
    }

    /// Whether a whole message of ICMP is as it was sent (RFC 792, RFC 4443 §2.3).
    fn icmp_sum_is_right(&self, frame: &[u8]) -> bool {
        let message = &frame[self.transport..self.end];
        let pseudo_header = match self.is_ip4 {
            true => Vec::new(),
            false => Ip::new(self.source, self.destination).pseudo_header(ICMP6, message.len()),
        };
        plus(sum_of(&pseudo_header), sum_of(message)) == 0xffff
    }

    /// `frame`, which holds this packet, with the packet within an outer one.
    pub(super) fn wrapped(&self, frame: &[u8], (destination, source): (IpAddr, IpAddr)) -> Vec<u8> {
        let (ethernet, inner) = frame.split_at(ETHERNET);
        let mut outer = Ip::new(source, destination);
        let word = u32::from_be_bytes([inner[0], inner[1], inner[2], inner[3]]);
        if self.is_ip4 {
            outer.class = inner[1];
            outer.id = u32::from(u16_at(inner, 4).expect("the header is whole"));
        } else {
            (outer.class, outer.flow_label) = ((word >> 20) as u8, word & 0xf_ffff);
        }
        let (packet, padding) = inner.split_at(self.end - self.start);
        [ethernet, &outer.around(self.protocol_within(), packet), padding].concat()
    }
}

impl World {
    /// What may become of a packet that nobody is told about if it does not fit.
    pub(super) fn may_send_within(&self, packet: &Packet, frame: &[u8], outer: (IpAddr, IpAddr)) -> Expected {
        if packet.end - packet.start + packet.outer_bytes() > self.mtu {
            return Expected::NotSent;
        }
        Expected::MaySend(packet.wrapped(frame, outer))
    }

    /// The client's ends and the protocol of a packet to a listener by IP-in-IP.
    pub fn to_ipip(&self, frame: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
        let packet = Packet::read(frame, ETHERNET, false).filter(|packet| packet.piece != Piece::Later)?;
        let (client, listener) = packet.ends(frame)?;
        let is_ours = self.ipip.contains_key(&(listener, packet.protocol));
        is_ours.then_some((client, listener, packet.protocol))
    }

    /// An error about a packet that may have been an outer one (RFC 2003 §4, RFC 2473 §8).
    pub(super) fn error_about_outer(&self, frame: &[u8], packet: &Packet, outer: &Packet) -> Expected {
        let end = packet.end;
        let Some(inner) = Packet::read(&frame[..end], outer.transport, true) else {
            return Expected::Untouched;
        };
        let is_within = inner.is_ip4 == outer.is_ip4 && outer.transport == outer.start + outer.outer_bytes();
        if !is_within || inner.piece == Piece::Later || ![TCP, UDP].contains(&inner.protocol) {
            return Expected::Untouched;
        }
        let Some((client, listener)) = inner.ends(&frame[..end]) else { return Expected::Untouched };
        let is_sent = self.ipip.get(&(listener, inner.protocol)) == Some(&(outer.destination, outer.source));
        let is_known = self.flows_of_ipip.contains(&(client, listener, inner.protocol));
        if !is_sent || !is_known || packet.destination != outer.source {
            return Expected::Untouched;
        }
        let at = packet.transport;
        if inner.sum_place() + 2 > end || outer.piece != Piece::Whole || !packet.icmp_sum_is_right(frame) {
            return Expected::NotSent;
        }
        let mtu = if packet.is_ip4 {
            u32::from(u16_at(frame, at + 6).expect("the quote is behind it"))
        } else {
            u32::from_be_bytes([frame[at + 4], frame[at + 5], frame[at + 6], frame[at + 7]])
        };
        let is_too_big =
            [frame[at], frame[at + 1]] == [3, 4] && packet.is_ip4 || frame[at] == 2 && !packet.is_ip4;
        let least = LEAST_MTU[usize::from(!packet.is_ip4)];
        let (kind, word) = match (packet.is_ip4, frame[at]) {
            _ if is_too_big && mtu < least => return Expected::NotSent,
            // No less is told: a client may take nothing less seriously (RFC 2473 §7.1).
            (true, _) if is_too_big => ([3, 4], (mtu - 20).max(least)),
            (false, _) if is_too_big => ([2, 0], (mtu - 40).max(least)),
            // A source quench is not for the client (RFC 2003 §4.3).
            (true, 4) => return Expected::NotSent,
            (true, _) => ([3, 1], 0),
            (false, _) => ([1, 3], 0),
        };
        let quote = frame[inner.start..end].to_vec();
        Expected::MayTell(Told { listener: listener.ip(), client: client.ip(), kind, word, quote })
    }
}
