//! What would happen to a packet: runs the program itself on a made-up one.
//!
//! The program for this is compiled from the same source as the one that forwards, and uses the same maps,
//! but stores no flow and counts nothing.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;

use crate::bpf::{TestPacket, test_run};
use crate::host::Interface;
use crate::layout::{Address, TCP, Trace, TraceStep, UDP, Verdict};
use crate::program::{Error, Program, Sizes};

/// A possible packet: the first of a connection, or a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver, of the same family.
    pub destination: SocketAddr,
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
}

/// What the program did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The steps it recorded, in order, each with its number.
    pub steps: Vec<(TraceStep, u32)>,
    /// The final verdict; `None` for a packet that is left to the host's own stack.
    pub verdict: Option<Verdict>,
    /// Source and destination of the packet that leaves instead: the rewritten packet, or an answer to it.
    pub becomes: Option<(SocketAddr, SocketAddr)>,
    /// Source and destination of the outer packet, for IP-in-IP.
    pub within: Option<(IpAddr, IpAddr)>,
}

/// The program for explanations.
pub struct Explainer(Program);

impl Explainer {
    /// Uses the maps that this or another process has pinned below `directory` with these sizes.
    pub fn open(directory: &Path, sizes: Sizes) -> Result<Explainer, Error> {
        Program::open_to_explain(directory, sizes).map(Explainer)
    }

    /// Runs the program on a packet as if it had arrived at `interface`.
    pub fn explain(&mut self, packet: &Packet, interface: &Interface) -> Result<Explained, Error> {
        let frame = frame_of(packet, interface.mac);
        self.0.array::<Trace>("trace")?.set(0, Trace::default(), 0)?;
        let asked = TestPacket {
            frame: &frame,
            interface: interface.index,
            segments: 0,
            segment_bytes: 0,
            is_summed: false,
            repeat: 1,
        };
        let program = self.0.classifier().fd()?;
        let result = test_run(program.as_fd(), &asked).map_err(Error::Run)?;
        let trace = self.0.array::<Trace>("trace")?.get(&0, 0)?;
        let noted = trace.steps.iter().take(trace.count as usize);
        let step = |number: u32| TraceStep::ALL.get(number.checked_sub(1)? as usize).copied();
        let steps: Vec<(TraceStep, u32)> =
            noted.filter_map(|entry| Some((step(entry.step)?, entry.value))).collect();
        let ends = |(step, value): &(TraceStep, u32)| {
            (*step == TraceStep::Verdict).then(|| Verdict::ALL.get(*value as usize).copied()).flatten()
        };
        let verdict = steps.iter().find_map(ends);
        let leaves = verdict.is_some_and(|verdict| verdict < Verdict::DropBadHeader);
        let (within, packet) = unwrapped(result.frame.get(ETHERNET..).unwrap_or_default());
        let becomes = leaves.then(|| ends_of(packet)).flatten();
        Ok(Explained { steps, verdict, becomes, within: within.filter(|_| leaves) })
    }
}

const ETHERNET: usize = 14;
const HOPS: u8 = 64;
const SYN: u8 = 2;

/// A frame to `mac` with a SYN, or with a datagram of 8 bytes.
fn frame_of(packet: &Packet, mac: [u8; 6]) -> Vec<u8> {
    let (source, destination) = (packet.source.ip().to_canonical(), packet.destination.ip().to_canonical());
    let mut transport = Vec::from(packet.source.port().to_be_bytes());
    transport.extend(packet.destination.port().to_be_bytes());
    let sum_at = match packet.protocol {
        // RFC 9293 §3.1: sequence number, acknowledgement, offset and flags, window.
        TCP => {
            transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, SYN, 0xff, 0xff]);
            transport.extend([0; 4]);
            16
        }
        // RFC 768: length, sum.
        _ => {
            transport.extend([0, 16, 0, 0]);
            transport.extend([0; 8]);
            6
        }
    };
    let length = transport.len() as u16;
    let mut header = Vec::with_capacity(40);
    let (kind, pseudo) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header.extend([0x45, 0]);
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 0, 0x40, 0, HOPS, packet.protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum = sum_of(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            (0x0800u16, header[12..].to_vec())
        }
        _ => {
            header.extend([0x60, 0, 0, 0]);
            header.extend(length.to_be_bytes());
            header.extend([packet.protocol, HOPS]);
            header.extend(Address::from(source).0);
            header.extend(Address::from(destination).0);
            (0x86dd, header[8..].to_vec())
        }
    };
    let mut summed = pseudo;
    summed.extend([0, packet.protocol]);
    summed.extend(length.to_be_bytes());
    summed.extend(&transport);
    let sum = match sum_of(&summed) {
        0 => 0xffff,
        sum => sum,
    };
    transport[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::with_capacity(ETHERNET + header.len() + transport.len());
    frame.extend(mac);
    // A locally administered address that no interface has.
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(kind.to_be_bytes());
    frame.extend(header);
    frame.extend(transport);
    frame
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn sum_of(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The addresses of an outer packet, and the packet inside; for any other packet, `None` and the packet
/// itself.
fn unwrapped(packet: &[u8]) -> (Option<(IpAddr, IpAddr)>, &[u8]) {
    let header = match (packet.first().map(|first| first >> 4), packet.get(9), packet.get(6)) {
        (Some(4), Some(4), _) => 20,
        (Some(6), _, Some(41)) => 40,
        _ => return (None, packet),
    };
    let ends = ends_of(packet).map(|(source, destination)| (source.ip(), destination.ip()));
    (ends, packet.get(header..).unwrap_or_default())
}

/// Source and destination of a packet, with ports for TCP and UDP. `None` if it is truncated.
fn ends_of(packet: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let address = |at: usize, bytes: usize| -> Option<IpAddr> {
        let octets = packet.get(at..at + bytes)?;
        match bytes {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        }
    };
    let (source, destination, protocol, transport) = match packet.first()? >> 4 {
        4 => (address(12, 4)?, address(16, 4)?, packet[9], usize::from(packet[0] & 15) * 4),
        _ => (address(8, 16)?, address(24, 16)?, *packet.get(6)?, 40),
    };
    let port = |at: usize| -> Option<u16> {
        match protocol {
            TCP | UDP => Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?)),
            _ => Some(0),
        }
    };
    Some((SocketAddr::new(source, port(transport)?), SocketAddr::new(destination, port(transport + 2)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_made_up_is_whole_and_its_sums_are_right() {
        for (source, destination) in
            [("198.51.100.7:4321", "192.0.2.1:443"), ("[2001:db8::7]:4321", "[2001:db8::1]:443")]
        {
            for protocol in [TCP, UDP] {
                let packet = Packet {
                    source: source.parse().unwrap(),
                    destination: destination.parse().unwrap(),
                    protocol,
                };
                let frame = frame_of(&packet, [2, 0, 0, 0, 0, 9]);
                assert_eq!(ends_of(&frame[ETHERNET..]), Some((packet.source, packet.destination)));
                let is_v4 = packet.source.is_ipv4();
                let (header, addresses) = if is_v4 { (20, 12..20) } else { (40, 8..40) };
                let ip = &frame[ETHERNET..];
                if is_v4 {
                    assert_eq!(sum_of(&ip[..20]), 0, "{packet:?}");
                }
                let mut summed = ip[addresses].to_vec();
                summed.extend([0, protocol]);
                summed.extend(((ip.len() - header) as u16).to_be_bytes());
                summed.extend(&ip[header..]);
                assert_eq!(sum_of(&summed), 0, "{packet:?}");
            }
        }
    }
}
