//! The PROXY protocol, versions 1 and 2, by which a proxy in front of us names its client (threat D8).
//!
//! Source: "The PROXY protocol", haproxy.org, section 2. Whether a peer must send a header is configured and
//! never guessed from the bytes ("MUST NOT try to guess"); this module only parses a header that must be
//! there.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest version 1 header, in bytes, CRLF included.
pub const V1_LONGEST_BYTES: usize = 107;
/// Longest version 2 header accepted by default, in bytes: room for addresses and small TLVs.
pub const V2_DEFAULT_LIMIT_BYTES: usize = 536;

const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client and the address it connected to; `None` if the connection is the proxy's own (LOCAL) or the
    /// family is unknown: then use the connection's own addresses.
    pub addresses: Option<ProxyAddresses>,
    /// Which version was sent.
    pub version: ProxyVersion,
}

/// Both ends of the client's connection, always of the same family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

/// Version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProxyVersion {
    V1,
    V2,
}

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProgress {
    /// The header is complete; the client's bytes begin at `header_bytes`.
    Complete {
        /// The content.
        header: ProxyHeader,
        /// The header's length in bytes.
        header_bytes: usize,
    },
    /// All bytes so far are valid; call again with more.
    Partial,
}

/// A mistake in a header. The connection must be closed without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyViolation {
    /// The first bytes are those of neither version.
    Signature,
    /// A version 1 line does not follow the specification.
    Line,
    /// A version 1 line is longer than 107 bytes.
    LineTooLong,
    /// An address is not in its canonical form.
    Address,
    /// A port is not a number from 0 to 65535 without leading zeros.
    Port,
    /// Version or command of a version 2 header is unknown.
    Command,
    /// Family or transport of a version 2 header is unknown.
    Family,
    /// A version 2 header is shorter than its addresses or TLVs, or a TLV overruns it.
    Length,
    /// A version 2 header is longer than the limit.
    TooLong,
    /// The checksum TLV does not match.
    Checksum,
}

impl fmt::Display for ProxyViolation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ProxyViolation::Signature => "found no PROXY protocol header, expected one from this peer",
            ProxyViolation::Line => {
                "found a malformed PROXY line, expected PROXY TCP4|TCP6 and four fields, or UNKNOWN"
            }
            ProxyViolation::LineTooLong => "found a PROXY line over 107 bytes, expected CRLF before that",
            ProxyViolation::Address => "found a malformed address in a PROXY line, expected canonical digits",
            ProxyViolation::Port => {
                "found a malformed port in a PROXY line, expected 0 to 65535 without leading zeros"
            }
            ProxyViolation::Command => {
                "found an unknown version or command, expected version 2 with LOCAL or PROXY"
            }
            ProxyViolation::Family => {
                "found an unknown address family or transport, expected a specified one"
            }
            ProxyViolation::Length => {
                "found a length that does not fit the content, expected whole addresses and TLVs"
            }
            ProxyViolation::TooLong => "found a version 2 header over the limit, expected a shorter one",
            ProxyViolation::Checksum => "found a CRC32c that does not match, expected that of the header",
        })
    }
}

impl std::error::Error for ProxyViolation {}

/// Parses a header at the beginning of `input`. `v2_limit_bytes` is the longest version 2 header to accept
/// ([`V2_DEFAULT_LIMIT_BYTES`]).
///
/// # Errors
/// Returned as soon as no further bytes could make it a valid header.
pub fn parse(input: &[u8], v2_limit_bytes: usize) -> Result<ProxyProgress, ProxyViolation> {
    match input.first() {
        None => Ok(ProxyProgress::Partial),
        Some(b'P') => parse_v1(input),
        Some(_) => parse_v2(input, v2_limit_bytes),
    }
}

fn parse_v1(input: &[u8]) -> Result<ProxyProgress, ProxyViolation> {
    let window = input.get(..V1_LONGEST_BYTES).unwrap_or(input);
    let prefix = b"PROXY ";
    if window.iter().zip(prefix).any(|(found, expected)| found != expected) {
        return Err(ProxyViolation::Signature);
    }
    let stop = window.iter().position(|&byte| !(0x20..0x7f).contains(&byte));
    let Some(end) = stop else {
        return if window.len() == V1_LONGEST_BYTES {
            Err(ProxyViolation::LineTooLong)
        } else {
            Ok(ProxyProgress::Partial)
        };
    };
    match (window.get(end), window.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => {}
        (Some(b'\r'), None) if window.len() == V1_LONGEST_BYTES => return Err(ProxyViolation::LineTooLong),
        (Some(b'\r'), None) => return Ok(ProxyProgress::Partial),
        _ => return Err(ProxyViolation::Line),
    }
    let text = window.get(prefix.len()..end).ok_or(ProxyViolation::Line)?;
    let addresses = v1_addresses(std::str::from_utf8(text).map_err(|_| ProxyViolation::Line)?)?;
    let header = ProxyHeader { addresses, version: ProxyVersion::V1 };
    Ok(ProxyProgress::Complete { header, header_bytes: end + 2 })
}

fn v1_addresses(text: &str) -> Result<Option<ProxyAddresses>, ProxyViolation> {
    let mut words = text.split(' ');
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        // The rest of an UNKNOWN line must be ignored.
        return Ok(None);
    }
    let (Some(source), Some(destination), Some(source_port), Some(destination_port), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(ProxyViolation::Line);
    };
    let address = |text: &str| -> Result<IpAddr, ProxyViolation> {
        match family {
            // The standard library refuses IPv4 numbers with leading zeros, which could be read as octal.
            "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| ProxyViolation::Address),
            "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| ProxyViolation::Address),
            _ => Err(ProxyViolation::Line),
        }
    };
    Ok(Some(ProxyAddresses {
        source: SocketAddr::new(address(source)?, v1_port(source_port)?),
        destination: SocketAddr::new(address(destination)?, v1_port(destination_port)?),
    }))
}

fn v1_port(text: &str) -> Result<u16, ProxyViolation> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || (text.len() > 1 && text.starts_with('0')) {
        return Err(ProxyViolation::Port);
    }
    text.parse().map_err(|_| ProxyViolation::Port)
}

fn parse_v2(input: &[u8], limit_bytes: usize) -> Result<ProxyProgress, ProxyViolation> {
    if input.iter().zip(&V2_SIGNATURE).any(|(found, expected)| found != expected) {
        return Err(ProxyViolation::Signature);
    }
    let Some(&version_and_command) = input.get(12) else { return Ok(ProxyProgress::Partial) };
    let local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyViolation::Command),
    };
    let Some(&family) = input.get(13) else { return Ok(ProxyProgress::Partial) };
    // With LOCAL, receivers must accept any family, since it has no meaning there.
    if !local && !matches!(family, 0x00 | 0x11 | 0x12 | 0x21 | 0x22 | 0x31 | 0x32) {
        return Err(ProxyViolation::Family);
    }
    let Some(&[high, low]) = input.get(14..16).and_then(|bytes| bytes.first_chunk()) else {
        return Ok(ProxyProgress::Partial);
    };
    let content_bytes = usize::from(u16::from_be_bytes([high, low]));
    let header_bytes = 16 + content_bytes;
    if header_bytes > limit_bytes {
        return Err(ProxyViolation::TooLong);
    }
    let Some(whole) = input.get(..header_bytes) else { return Ok(ProxyProgress::Partial) };
    let content = whole.get(16..).unwrap_or_default();
    let addresses = if local { None } else { v2_addresses(family, content, whole)? };
    Ok(ProxyProgress::Complete { header: ProxyHeader { addresses, version: ProxyVersion::V2 }, header_bytes })
}

fn v2_addresses(family: u8, content: &[u8], whole: &[u8]) -> Result<Option<ProxyAddresses>, ProxyViolation> {
    let (addresses, tlvs) = match family >> 4 {
        1 => {
            let (block, tlvs) = content.split_first_chunk::<12>().ok_or(ProxyViolation::Length)?;
            let [a, b, c, d, e, f, g, h, source_high, source_low, high, low] = *block;
            let source = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([source_high, source_low])));
            let destination = SocketAddr::from(([e, f, g, h], u16::from_be_bytes([high, low])));
            (Some(ProxyAddresses { source, destination }), tlvs)
        }
        2 => {
            let (source, rest) = content.split_first_chunk::<16>().ok_or(ProxyViolation::Length)?;
            let (destination, rest) = rest.split_first_chunk::<16>().ok_or(ProxyViolation::Length)?;
            let ([source_high, source_low, high, low], tlvs) =
                rest.split_first_chunk::<4>().ok_or(ProxyViolation::Length)?;
            let source = SocketAddr::from((*source, u16::from_be_bytes([*source_high, *source_low])));
            let destination = SocketAddr::from((*destination, u16::from_be_bytes([*high, *low])));
            (Some(ProxyAddresses { source, destination }), tlvs)
        }
        3 => (None, content.get(216..).ok_or(ProxyViolation::Length)?),
        // What follows an unspecified family must be ignored.
        _ => return Ok(None),
    };
    check_tlvs(tlvs, whole)?;
    Ok(addresses)
}

const TLV_CRC32C: u8 = 0x03;

fn check_tlvs(mut tlvs: &[u8], whole: &[u8]) -> Result<(), ProxyViolation> {
    while !tlvs.is_empty() {
        let (&[kind, high, low], rest) = tlvs.split_first_chunk::<3>().ok_or(ProxyViolation::Length)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (value, rest) = rest.split_at_checked(length).ok_or(ProxyViolation::Length)?;
        if kind == TLV_CRC32C {
            let stated = value.first_chunk::<4>().filter(|_| length == 4).ok_or(ProxyViolation::Length)?;
            let value_start = whole.len() - rest.len() - length;
            if crc32c_with_gap(whole, value_start) != u32::from_be_bytes(*stated) {
                return Err(ProxyViolation::Checksum);
            }
        }
        tlvs = rest;
    }
    Ok(())
}

/// CRC32c of the header, with the four checksum bytes at `gap` taken as zero.
fn crc32c_with_gap(whole: &[u8], gap: usize) -> u32 {
    let mut crc = u32::MAX;
    for (position, &byte) in whole.iter().enumerate() {
        let byte = if (gap..gap + 4).contains(&position) { 0 } else { byte };
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

/// Writes a version 1 header. `None`, for a connection without a client, writes `UNKNOWN`. IPv4-mapped
/// addresses are written as IPv4 if both are mapped; otherwise both are written as IPv6.
pub fn write_v1(addresses: Option<ProxyAddresses>, out: &mut Vec<u8>) {
    let Some(ProxyAddresses { source, destination }) = addresses else {
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        return;
    };
    let (family, source_ip, destination_ip) = match same_family(source.ip(), destination.ip()) {
        Ends::V4(source, destination) => ("TCP4", source.to_string(), destination.to_string()),
        Ends::V6(source, destination) => ("TCP6", source.to_string(), destination.to_string()),
    };
    let line =
        format!("PROXY {family} {source_ip} {destination_ip} {} {}\r\n", source.port(), destination.port());
    out.extend_from_slice(line.as_bytes());
}

/// Writes a version 2 header for a stream connection. `None` writes LOCAL, as the specification requires for
/// a probe's connection.
pub fn write_v2(addresses: Option<ProxyAddresses>, out: &mut Vec<u8>) {
    out.extend_from_slice(&V2_SIGNATURE);
    let Some(ProxyAddresses { source, destination }) = addresses else {
        out.extend_from_slice(&[0x20, 0x00, 0, 0]);
        return;
    };
    match same_family(source.ip(), destination.ip()) {
        Ends::V4(from, to) => {
            out.extend_from_slice(&[0x21, 0x11, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        Ends::V6(from, to) => {
            out.extend_from_slice(&[0x21, 0x21, 0, 36]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

/// Writes a version 2 header to put in front of a datagram from this client.
pub fn write_v2_datagram(addresses: ProxyAddresses, out: &mut Vec<u8>) {
    let start = out.len();
    write_v2(Some(addresses), out);
    // The low four bits of the fourteenth byte are the transport: 1 for a stream, 2 for datagrams.
    if let Some(family) = out.get_mut(start + V2_SIGNATURE.len() + 1) {
        *family = *family & 0xf0 | 0x02;
    }
}

/// Parses the header that a datagram must begin with. Returns the addresses, as in [`ProxyHeader`], and the
/// rest of the datagram. Version 1 is not accepted, as it can't express datagrams. The addresses may be those
/// of a TCP client of the sender.
///
/// # Errors
/// There is no header, or it is incomplete.
pub fn parse_datagram(datagram: &[u8]) -> Result<(Option<ProxyAddresses>, &[u8]), ProxyViolation> {
    match parse_v2(datagram, V2_DEFAULT_LIMIT_BYTES)? {
        ProxyProgress::Complete { header, header_bytes } => {
            Ok((header.addresses, datagram.get(header_bytes..).unwrap_or_default()))
        }
        ProxyProgress::Partial => Err(ProxyViolation::Length),
    }
}

/// Writes a version 2 header for a client without an address of a family that the protocol has: the command
/// PROXY with an unspecified family and no addresses (section 2.2 of the specification).
pub fn write_v2_unspecified(out: &mut Vec<u8>) {
    out.extend_from_slice(&V2_SIGNATURE);
    out.extend_from_slice(&[0x21, 0x00, 0, 0]);
}

enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn same_family(source: IpAddr, destination: IpAddr) -> Ends {
    let wide = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ends::V4(source, destination),
        (source, destination) => Ends::V6(wide(source), wide(destination)),
    }
}
