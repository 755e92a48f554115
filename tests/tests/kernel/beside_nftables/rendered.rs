//! Packets as lines of text: all that a header says, and whether sums are right.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_tests::raw::{sum_of, sum_of_transport};

/// Where a packet's transport begins, and what it is; later fragments have none.
struct Parts {
    source: IpAddr,
    destination: IpAddr,
    /// What the headers of IP say beside the addresses.
    said: String,
    protocol: u8,
    transport: usize,
    is_fragment: bool,
    is_first: bool,
}

fn parts(packet: &[u8]) -> Option<Parts> {
    let bytes = |at: usize, count: usize| packet.get(at..at + count);
    let short = |at: usize| bytes(at, 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    if packet.first()? >> 4 == 4 {
        let length = usize::from(packet[0] & 15) * 4;
        let (fragment, protocol) = (short(6)?, *packet.get(9)?);
        let mut said = format!("class {} hops {}", packet[1], packet[8]);
        // Who answers numbers its packets as it likes.
        if protocol != 1 {
            write!(said, " id {:x} fragment {fragment:x}", short(4)?).expect("a string");
        }
        if length > 20 {
            write!(said, " options {:x?}", bytes(20, length - 20)?).expect("a string");
        }
        if short(2).map(usize::from) != Some(packet.len()) {
            write!(said, " length {} of {}", short(2)?, packet.len()).expect("a string");
        }
        if sum_of(bytes(0, length)?) != 0 {
            said += " header's sum is wrong";
        }
        return Some(Parts {
            source: Ipv4Addr::from(<[u8; 4]>::try_from(bytes(12, 4)?).ok()?).into(),
            destination: Ipv4Addr::from(<[u8; 4]>::try_from(bytes(16, 4)?).ok()?).into(),
            said,
            protocol,
            transport: length,
            is_fragment: fragment & 0x3fff != 0,
            is_first: fragment & 0x1fff == 0,
        });
    }
    let mut parts = Parts {
        source: Ipv6Addr::from(<[u8; 16]>::try_from(bytes(8, 16)?).ok()?).into(),
        destination: Ipv6Addr::from(<[u8; 16]>::try_from(bytes(24, 16)?).ok()?).into(),
        said: format!("class {} hops {}", (packet[0] << 4) | (packet[1] >> 4), packet[7]),
        protocol: packet[6],
        transport: 40,
        is_fragment: false,
        is_first: true,
    };
    if short(4).map(|length| usize::from(length) + 40) != Some(packet.len()) {
        write!(parts.said, " length {} of {}", short(4)?, packet.len() - 40).expect("a string");
    }
    while matches!(parts.protocol, 0 | 43 | 44 | 60) && parts.is_first {
        let length =
            if parts.protocol == 44 { 8 } else { 8 + usize::from(*packet.get(parts.transport + 1)?) * 8 };
        let header = bytes(parts.transport, length)?;
        write!(parts.said, " extension {} {:x?}", parts.protocol, &header[1..]).expect("a string");
        if parts.protocol == 44 {
            let offset = u16::from_be_bytes([header[2], header[3]]);
            parts.is_fragment = offset & 0xfff9 != 0;
            parts.is_first = offset & 0xfff8 == 0;
        }
        parts.protocol = header[0];
        parts.transport += length;
    }
    Some(parts)
}

fn places(parts: &Parts, transport: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| transport.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    Some((SocketAddr::new(parts.source, port(0)?), SocketAddr::new(parts.destination, port(2)?)))
}

/// Whether a datagram goes to a place.
pub(super) fn is_to(packet: &[u8], place: SocketAddr) -> bool {
    let Some(parts) = parts(packet) else { return false };
    parts.protocol == 17 && places(&parts, &packet[parts.transport..]).is_some_and(|(_, to)| to == place)
}

/// Whether a datagram goes to a port.
pub(super) fn is_to_port(packet: &[u8], port: u16) -> bool {
    let Some(parts) = parts(packet) else { return false };
    parts.protocol == 17
        && places(&parts, &packet[parts.transport..]).is_some_and(|(_, to)| to.port() == port)
}

/// A packet between hosts of the cases; `None` for what hosts say of themselves, as neighbour discovery.
pub(super) fn packet(packet: &[u8]) -> Option<String> {
    let parts = parts(packet)?;
    let nets = ["198.51.100.", "192.0.2.", "10.0.0.", "2001:db8:", "fd00:"];
    if !nets.iter().any(|net| parts.destination.to_string().starts_with(net)) {
        return None;
    }
    let transport = &packet[parts.transport..];
    let text = if parts.is_fragment {
        let (from, to) = (parts.source, parts.destination);
        format!("{from} > {to} fragment of {} bytes #{:x}", transport.len(), checksum(transport))
    } else {
        transport_text(&parts, transport, false)
    };
    Some(format!("{text} ({})", parts.said))
}

fn transport_text(parts: &Parts, transport: &[u8], is_quoted: bool) -> String {
    let (source, destination) = (parts.source, parts.destination);
    let is_good = match parts.protocol {
        1 => sum_of(transport) == 0,
        17 if transport.get(6..8) == Some(&[0, 0]) => true,
        protocol => sum_of_transport(source, destination, protocol, transport) == 0,
    };
    let sum = match (is_quoted, is_good) {
        (true, _) => "",
        (false, true) => " sum right",
        (false, false) => " sum wrong",
    };
    match (parts.protocol, places(parts, transport)) {
        (6, Some((from, to))) if transport.len() >= 20 => {
            let header = (usize::from(transport[12] >> 4) * 4).clamp(20, transport.len());
            format!(
                "{from} > {to} tcp flags {:x} of {} numbers {:x?} urgent {:x?} options {:x?} {} bytes #{:x}{sum}",
                transport[13],
                transport[12] >> 4,
                &transport[4..12],
                &transport[18..20],
                &transport[20..header],
                transport.len() - header,
                checksum(&transport[header..]),
            )
        }
        (17, Some((from, to))) if transport.len() >= 8 => {
            let is_without = transport[6..8] == [0, 0];
            format!(
                "{from} > {to} udp of {} {} bytes #{:x}{}",
                u16::from_be_bytes([transport[4], transport[5]]),
                transport.len() - 8,
                checksum(&transport[8..]),
                if is_without { " no sum" } else { sum },
            )
        }
        (1 | 58, _) if transport.len() >= 8 && !is_quoted => {
            let quoted = &transport[8..];
            let text = match self::parts(quoted) {
                Some(inner) if quoted.len() > inner.transport => {
                    let text = transport_text(&inner, &quoted[inner.transport..], true);
                    format!("{text} ({})", inner.said)
                }
                _ => format!("{quoted:x?}"),
            };
            format!(
                "{source} > {destination} icmp {}/{} value {:x?}{sum} quotes {} bytes: {text}",
                transport[0],
                transport[1],
                &transport[4..8],
                quoted.len(),
            )
        }
        (protocol, Some((from, to))) => {
            format!("{from} > {to} protocol {protocol} {:x?}", &transport[4..])
        }
        (protocol, None) => format!("{source} > {destination} protocol {protocol} {transport:x?}"),
    }
}

/// Tells contents apart.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
