//! Packets: a header of four bytes and a payload of up to 16 MiB - 1; longer payloads continue in the next
//! packet.
//!
//! [`PacketReader`] buffers nothing: it works on the slices it is given, asks for the beginning of each
//! packet in one piece, and lets the rest pass. So a packet of 1 GiB needs no more buffer than a small one.
//!
//! Source: MySQL internals, "Protocol Basics: MySQL Packets".

use crate::wire_error::WireError;

/// Bytes of a packet's header: three of length, one of sequence id.
pub const HEADER_BYTES: usize = 4;

/// The longest payload of one packet. A payload of this length continues in the next packet, which is empty
/// if nothing is left.
pub const MAX_PAYLOAD_BYTES: usize = 0xFF_FFFF;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// Bytes of payload in this packet, 0 to [`MAX_PAYLOAD_BYTES`].
    pub payload_bytes: u32,
    /// The sequence id. It counts the packets of both sides, starts at 0 for each command, and wraps after
    /// 255.
    pub sequence: u8,
}

impl PacketHeader {
    /// Parses a header; any four bytes are valid.
    pub fn parse([low, middle, high, sequence]: [u8; HEADER_BYTES]) -> PacketHeader {
        PacketHeader { payload_bytes: u32::from_le_bytes([low, middle, high, 0]), sequence }
    }

    /// The header's four bytes. Only the lower 24 bits of `payload_bytes` fit.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let [low, middle, high, _] = self.payload_bytes.to_le_bytes();
        [low, middle, high, self.sequence]
    }

    /// Whether the payload continues in the next packet.
    pub fn goes_on(self) -> bool {
        self.payload_bytes as usize == MAX_PAYLOAD_BYTES
    }
}

/// Follows packets in a stream of bytes. A payload that spans several packets counts as one.
#[derive(Clone, Debug, Default)]
pub struct PacketReader {
    within: Option<Within>,
    next_sequence: u8,
}

/// The reader's position within a payload.
#[derive(Clone, Copy, Debug)]
struct Within {
    /// Bytes still to come of the current packet.
    left: u32,
    goes_on: bool,
    /// Bytes of the payload that have passed, over all its packets.
    seen_bytes: u64,
}

/// What [`PacketReader::advance`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketStep<'a> {
    /// Bytes of the input that have been read; more than 0 except for [`PacketEvent::Partial`].
    pub consumed: usize,
    /// What was found there.
    pub event: PacketEvent<'a>,
}

/// What happened in a stream of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketEvent<'a> {
    /// The beginning of the next packet is incomplete: pass the same bytes again with at least `needs`.
    Partial {
        /// Bytes that the input must have, including the header; more than it had.
        needs: usize,
    },
    /// A packet began.
    Head(PacketHead<'a>),
    /// Bytes of a payload whose head was reported; more follow.
    Middle,
    /// The last bytes of a payload whose head was reported but did not contain all of it.
    End {
        /// Bytes of the whole payload.
        payload_bytes: u64,
    },
}

/// The beginning of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead<'a> {
    /// The header of its first packet.
    pub header: PacketHeader,
    /// As many bytes as `wanted` asked for, or all bytes of the first packet if those are fewer.
    pub bytes: &'a [u8],
    /// Whether `bytes` is the whole payload. Then no [`PacketEvent::End`] follows.
    pub is_whole: bool,
}

impl PacketReader {
    /// A reader that is between two packets.
    pub fn new() -> PacketReader {
        PacketReader::default()
    }

    /// Whether the last byte read ended a payload, or none was read yet.
    pub fn is_between_packets(&self) -> bool {
        self.within.is_none()
    }

    /// The sequence id of the next packet, if it belongs to the same command.
    pub fn next_sequence(&self) -> u8 {
        self.next_sequence
    }

    /// Reads the first packet of `input`, or the rest of the current one.
    ///
    /// `wanted` returns how many bytes of a payload must be in one piece, given its first byte (`None` if it
    /// is empty) and its header. It is called for each payload once its first byte is available, perhaps
    /// repeatedly. O(1); keeps and copies nothing.
    ///
    /// `Err` is [`WireError::SequenceId`]: a payload continues in a packet with the wrong sequence id.
    pub fn advance<'a>(
        &mut self,
        input: &'a [u8],
        wanted: impl FnOnce(Option<u8>, PacketHeader) -> usize,
    ) -> Result<PacketStep<'a>, WireError> {
        match self.within {
            None => Ok(self.head(input, wanted)),
            Some(within) if within.left > 0 => Ok(self.go_on(input, within)),
            Some(within) => {
                let Some(header) = input.first_chunk().copied().map(PacketHeader::parse) else {
                    return Ok(PacketStep::partial(HEADER_BYTES));
                };
                if header.sequence != self.next_sequence {
                    return Err(WireError::SequenceId);
                }
                self.next_sequence = header.sequence.wrapping_add(1);
                let within = Within { left: header.payload_bytes, goes_on: header.goes_on(), ..within };
                let step = self.go_on(input.get(HEADER_BYTES..).unwrap_or_default(), within);
                Ok(PacketStep { consumed: step.consumed + HEADER_BYTES, ..step })
            }
        }
    }

    fn head<'a>(
        &mut self,
        input: &'a [u8],
        wanted: impl FnOnce(Option<u8>, PacketHeader) -> usize,
    ) -> PacketStep<'a> {
        let Some((header, payload)) = input.split_first_chunk() else {
            return PacketStep::partial(HEADER_BYTES);
        };
        let header = PacketHeader::parse(*header);
        let first = payload.first().copied();
        if header.payload_bytes > 0 && first.is_none() {
            return PacketStep::partial(HEADER_BYTES + 1);
        }
        let first = first.filter(|_| header.payload_bytes > 0);
        let length = wanted(first, header).min(header.payload_bytes as usize);
        let Some(bytes) = payload.get(..length) else {
            return PacketStep::partial(HEADER_BYTES + length);
        };
        let left = header.payload_bytes - length as u32;
        let is_whole = left == 0 && !header.goes_on();
        self.next_sequence = header.sequence.wrapping_add(1);
        self.within =
            (!is_whole).then(|| Within { left, goes_on: header.goes_on(), seen_bytes: length as u64 });
        PacketStep {
            consumed: HEADER_BYTES + length,
            event: PacketEvent::Head(PacketHead { header, bytes, is_whole }),
        }
    }

    fn go_on<'a>(&mut self, input: &'a [u8], within: Within) -> PacketStep<'a> {
        let count = input.len().min(within.left as usize);
        let left = within.left - count as u32;
        let seen_bytes = within.seen_bytes + count as u64;
        let is_over = left == 0 && !within.goes_on;
        self.within = (!is_over).then_some(Within { left, seen_bytes, ..within });
        let event = match is_over {
            true => PacketEvent::End { payload_bytes: seen_bytes },
            false if count == 0 && input.is_empty() && within.left > 0 => PacketEvent::Partial { needs: 1 },
            false => PacketEvent::Middle,
        };
        PacketStep { consumed: count, event }
    }
}

impl PacketStep<'_> {
    fn partial(needs: usize) -> PacketStep<'static> {
        PacketStep { consumed: 0, event: PacketEvent::Partial { needs } }
    }
}

/// Appends `payload` in as many packets as it needs, the first with the sequence id `sequence`; returns the
/// sequence id after the last one.
pub fn write_packets(out: &mut Vec<u8>, sequence: u8, payload: &[u8]) -> u8 {
    let (mut sequence, mut rest) = (sequence, payload);
    loop {
        let (now, later) = rest.split_at(rest.len().min(MAX_PAYLOAD_BYTES));
        let header = PacketHeader { payload_bytes: now.len() as u32, sequence };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(now);
        sequence = sequence.wrapping_add(1);
        if !header.goes_on() {
            return sequence;
        }
        rest = later;
    }
}

/// Appends the payload that `fill` writes, after its header; returns the next sequence id. A payload longer
/// than [`MAX_PAYLOAD_BYTES`] is moved once, to be split.
pub fn write_packet_with(out: &mut Vec<u8>, sequence: u8, fill: impl FnOnce(&mut Vec<u8>)) -> u8 {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    fill(out);
    let payload_bytes = out.len().saturating_sub(start + HEADER_BYTES);
    if payload_bytes >= MAX_PAYLOAD_BYTES {
        let payload = out.split_off(start + HEADER_BYTES);
        out.truncate(start);
        return write_packets(out, sequence, &payload);
    }
    let header = PacketHeader { payload_bytes: payload_bytes as u32, sequence };
    for (to, from) in out.iter_mut().skip(start).zip(header.to_bytes()) {
        *to = from;
    }
    sequence.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all packets of `bytes`, in slices of `slice_bytes`; returns the head, length and id of each.
    fn read(bytes: &[u8], slice_bytes: usize, wanted: usize) -> Result<Vec<(Vec<u8>, u64, u8)>, WireError> {
        let mut reader = PacketReader::new();
        let (mut packets, mut at, mut end) = (Vec::new(), 0, 0);
        let mut open: Option<(Vec<u8>, u8)> = None;
        loop {
            let step = reader.advance(&bytes[at..end], |_, _| wanted)?;
            at += step.consumed;
            match step.event {
                PacketEvent::Partial { needs } => {
                    assert!(needs > end - at, "asked for what is there");
                    if end == bytes.len() {
                        return Ok(packets);
                    }
                    end = (end + slice_bytes).min(bytes.len());
                }
                PacketEvent::Head(head) if head.is_whole => {
                    packets.push((head.bytes.to_vec(), head.bytes.len() as u64, head.header.sequence));
                }
                PacketEvent::Head(head) => open = Some((head.bytes.to_vec(), head.header.sequence)),
                PacketEvent::Middle => {
                    assert!(step.consumed > 0);
                }
                PacketEvent::End { payload_bytes } => {
                    assert!(step.consumed > 0);
                    let (head, sequence) = open.take().expect("an end has a beginning");
                    packets.push((head, payload_bytes, sequence));
                }
            }
        }
    }

    #[test]
    fn small_packets_are_found_in_slices_of_every_size() {
        let bytes = b"\x03\0\0\x00\x03ab\x00\0\0\x01\x01\0\0\xff\x0e\x06\0\0\0abcdef";
        let expected: Vec<(Vec<u8>, u64, u8)> = vec![
            (b"\x03ab".to_vec(), 3, 0),
            (b"".to_vec(), 0, 1),
            (b"\x0e".to_vec(), 1, 255),
            (b"abcd".to_vec(), 6, 0),
        ];
        for slice_bytes in 1..=bytes.len() {
            assert_eq!(read(bytes, slice_bytes, 4).as_ref(), Ok(&expected), "slices of {slice_bytes}");
        }
    }

    #[test]
    fn a_payload_of_exactly_the_longest_packet_ends_with_an_empty_one() {
        for (payload_bytes, packets) in [
            (MAX_PAYLOAD_BYTES - 1, 1),
            (MAX_PAYLOAD_BYTES, 2),
            (MAX_PAYLOAD_BYTES + 1, 2),
            (2 * MAX_PAYLOAD_BYTES, 3),
        ] {
            let payload = vec![7; payload_bytes];
            let mut out = Vec::new();
            assert_eq!(write_packets(&mut out, 254, &payload), 254_u8.wrapping_add(packets));
            assert_eq!(out.len(), payload_bytes + usize::from(packets) * HEADER_BYTES);
            for slice_bytes in [65_537, MAX_PAYLOAD_BYTES + HEADER_BYTES, usize::MAX / 2] {
                let read = read(&out, slice_bytes, 9).expect("it is well-formed");
                assert_eq!(read, [(vec![7; 9], payload_bytes as u64, 254)], "{payload_bytes}");
            }
            let mut filled = Vec::new();
            assert_eq!(
                write_packet_with(&mut filled, 254, |out| out.extend_from_slice(&payload)),
                254_u8.wrapping_add(packets)
            );
            assert!(filled == out, "both writers agree on {payload_bytes}");
        }
    }

    #[test]
    fn a_payload_that_goes_on_under_another_sequence_id_is_refused() {
        let mut out = Vec::new();
        write_packets(&mut out, 0, &vec![0; MAX_PAYLOAD_BYTES]);
        let last = out.len() - 1;
        out[last] = 2;
        assert_eq!(read(&out, usize::MAX / 2, 1), Err(WireError::SequenceId));
    }

    #[test]
    fn what_is_wanted_goes_by_the_first_byte_and_the_length() {
        let mut reader = PacketReader::new();
        let ask = |input: &[u8], reader: &mut PacketReader| {
            let wanted = |first: Option<u8>, header: PacketHeader| {
                assert_eq!((first, header.payload_bytes), (Some(0xFE), 7));
                5
            };
            reader.advance(input, wanted).map(|step| step.event == PacketEvent::Partial { needs: 9 })
        };
        assert_eq!(ask(b"\x07\0\0\x01\xfe", &mut reader), Ok(true));
        assert_eq!(ask(b"\x07\0\0\x01\xfe\0\0\x02\0\0\0", &mut reader), Ok(false));
        assert!(!reader.is_between_packets());
        let step = reader.advance(b"\0\0next", |_, _| 1).expect("the rest goes by");
        assert_eq!(step, PacketStep { consumed: 2, event: PacketEvent::End { payload_bytes: 7 } });
        assert_eq!(reader.next_sequence(), 2);
    }
}
