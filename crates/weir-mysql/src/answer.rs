//! Reads a server's answer from the bytes of a connection: which bytes may be forwarded, and where the answer
//! ends.

use crate::capability::{Capabilities, StatusFlags};
use crate::command::{AnswerShape, ClientCommand};
use crate::outcome::{EOF, ERR, OK, OkPacket};
use crate::packet::{HEADER_BYTES, PacketEvent, PacketHead, PacketHeader, PacketReader};
use crate::response::{AnswerPart, LOCAL_INFILE, ResponseFraming, definition};
use crate::wire_error::WireError;

/// Reads the answer to one command. It buffers nothing: it asks the caller to keep only those packets in one
/// piece that it must read, and lets the rest pass, even a row of 1 GiB.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    packets: PacketReader,
    framing: ResponseFraming,
    /// The sequence id of the server's next packet.
    sequence: u8,
    /// The part to report at the end of the current packet, which is longer than the limit.
    deferred: Option<AnswerPart<'static>>,
}

/// What [`AnswerReader::advance`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerStep<'a> {
    /// Bytes of the input that belong to packets before the one in `event`. They may be forwarded.
    pub before: usize,
    /// Bytes of the input that have been read, including the packet in `event`. More than `before` if there
    /// is a part to report.
    pub consumed: usize,
    /// What was found there.
    pub event: AnswerEvent<'a>,
}

/// What happened in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEvent<'a> {
    /// No part to report: read more. The input that remains after `consumed` must be passed again, in one
    /// piece and with at least `needs` bytes in all.
    More {
        /// Bytes (count) that the next input must have, counted from `consumed`.
        needs: usize,
    },
    /// A packet other than a column or row in the middle of a result.
    Part(AnswerPart<'a>),
}

/// An answer of one result without an error, whole in one piece: most answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeAnswer<'a> {
    /// Its last packet.
    pub ok: OkPacket<'a>,
    /// Whether it has a result set, even an empty one.
    pub has_rows: bool,
}

impl<'a> WholeAnswer<'a> {
    /// The answer to `command`, whose last packet had the sequence id `sent`, if `input` is nothing else.
    /// `None` if [`AnswerReader`] must read it: there is more to it, or less, or the protocol is broken, or
    /// the connection lacks [`Capabilities::DEPRECATE_EOF`]. O(packets), without allocation.
    pub fn read(
        command: ClientCommand,
        sent: u8,
        capabilities: Capabilities,
        input: &'a [u8],
    ) -> Option<WholeAnswer<'a>> {
        let is_binary = match command.answer() {
            _ if !capabilities.has(Capabilities::DEPRECATE_EOF) => return None,
            AnswerShape::TextResults => false,
            AnswerShape::BinaryResults => true,
            _ => return None,
        };
        let mut sequence = sent.wrapping_add(1);
        let (first, mut rest) = whole_packet(input, sequence)?;
        let mut columns_left = match *first {
            [OK, ..] if rest.is_empty() => return WholeAnswer::ended(first, capabilities, false),
            [count] if count > OK && count < LOCAL_INFILE => count,
            _ => return None,
        };
        loop {
            sequence = sequence.wrapping_add(1);
            let (payload, behind) = whole_packet(rest, sequence)?;
            rest = behind;
            match *payload.first()? {
                first if columns_left > 0 => {
                    definition(first).ok()?;
                    columns_left -= 1;
                }
                EOF if rest.is_empty() => return WholeAnswer::ended(payload, capabilities, true),
                EOF | ERR => return None,
                first if is_binary && first != OK => return None,
                _ => {}
            }
        }
    }

    #[inline]
    fn ended(payload: &'a [u8], capabilities: Capabilities, has_rows: bool) -> Option<WholeAnswer<'a>> {
        let ok = OkPacket::parse(payload, capabilities).ok()?;
        let is_last = !ok.status.has(StatusFlags::MORE_RESULTS_EXISTS);
        let has_cursor = ok.status.has(StatusFlags::CURSOR_EXISTS);
        (is_last && !has_cursor).then_some(WholeAnswer { ok, has_rows })
    }
}

/// The payload of the first packet, and what is behind it; `None` unless the packet is whole, is not
/// continued in the next one, and has this sequence id.
#[inline]
fn whole_packet(input: &[u8], sequence: u8) -> Option<(&[u8], &[u8])> {
    let (header, behind) = input.split_first_chunk()?;
    let header = PacketHeader::parse(*header);
    if header.sequence != sequence || header.goes_on() {
        return None;
    }
    behind.split_at_checked(header.payload_bytes as usize)
}

impl AnswerReader {
    /// A reader for the answer to `command`, whose last packet had the sequence id `sent`; `None` in the
    /// cases of [`ResponseFraming::new`].
    pub fn new(
        command: ClientCommand,
        sent: u8,
        capabilities: Capabilities,
        head_limit: usize,
    ) -> Option<AnswerReader> {
        let framing = ResponseFraming::new(command, capabilities, head_limit)?;
        let sequence = sent.wrapping_add(1);
        Some(AnswerReader { packets: PacketReader::new(), framing, sequence, deferred: None })
    }

    /// As [`ResponseFraming::telling_definitions`].
    pub fn telling_definitions(self, tells: bool) -> AnswerReader {
        AnswerReader { framing: self.framing.telling_definitions(tells), ..self }
    }

    /// The sequence id of the server's next packet.
    pub fn next_sequence(&self) -> u8 {
        self.sequence
    }

    /// Whether the answer has ended, including its last byte.
    pub fn is_over(&self) -> bool {
        self.framing.is_over() && self.packets.is_between_packets()
    }

    /// To be called after [`AnswerPart::LocalInfile`], once the client has sent its file. `sent` is the
    /// sequence id of the empty packet that ends the file.
    pub fn infile_sent(&mut self, sent: u8) {
        self.sequence = sent.wrapping_add(1);
    }

    /// Reads `input` up to the first packet that must be reported, or to its end. O(packets), without
    /// allocation.
    ///
    /// Must not be called once [`Self::is_over`]: anything that a server sends after the end is an error.
    pub fn advance<'a>(&mut self, input: &'a [u8]) -> Result<AnswerStep<'a>, WireError> {
        let mut consumed = 0;
        loop {
            consumed += self.pass_middle(input.get(consumed..).unwrap_or_default());
            let rest = input.get(consumed..).unwrap_or_default();
            let framing = &self.framing;
            let step = self
                .packets
                .advance(rest, |first, header| framing.head_bytes(first, header.payload_bytes))?;
            let before = consumed;
            consumed += step.consumed;
            match step.event {
                PacketEvent::Partial { needs } => {
                    return Ok(AnswerStep { before, consumed, event: AnswerEvent::More { needs } });
                }
                PacketEvent::Middle => {}
                PacketEvent::End { .. } => {
                    self.sequence = self.packets.next_sequence();
                    if let Some(deferred) = self.deferred.take() {
                        let event = AnswerEvent::Part(deferred);
                        return Ok(AnswerStep { before, consumed, event });
                    }
                }
                PacketEvent::Head(head) => {
                    if let Some(part) = self.head(&head)? {
                        return Ok(AnswerStep { before, consumed, event: AnswerEvent::Part(part) });
                    }
                }
            }
        }
    }

    /// Skips whole packets that are certainly columns or rows, which is most of an answer, and returns their
    /// length in bytes. Stops at any other packet, and at one with an error; [`Self::advance`] handles those.
    fn pass_middle(&mut self, input: &[u8]) -> usize {
        let mut passed = 0;
        if !self.packets.is_between_packets() {
            return passed;
        }
        while let Some((header, behind)) = input.get(passed..).and_then(<[u8]>::split_first_chunk) {
            let header = PacketHeader::parse(*header);
            let payload = behind.get(..header.payload_bytes as usize).unwrap_or_default();
            let Some(first) = payload.first() else { break };
            if header.goes_on() || header.sequence != self.sequence || !self.framing.passes(*first) {
                break;
            }
            self.sequence = self.sequence.wrapping_add(1);
            passed += HEADER_BYTES + payload.len();
        }
        passed
    }

    /// Interprets the beginning of a packet. If the packet continues beyond the input, its part is reported
    /// at its end.
    fn head<'a>(&mut self, head: &PacketHead<'a>) -> Result<Option<AnswerPart<'a>>, WireError> {
        // A server may have sent an error before the command arrived, such as 4031 to an idle connection.
        if head.header.sequence != self.sequence && head.bytes.first() != Some(&ERR) {
            return Err(WireError::SequenceId);
        }
        let part = self.framing.packet(head)?;
        if head.is_whole {
            self.sequence = self.packets.next_sequence();
            return Ok(Some(part).filter(|part| !matches!(part, AnswerPart::Middle)));
        }
        self.deferred = match part {
            AnswerPart::Over(end) => Some(AnswerPart::Over(end.numbers())),
            AnswerPart::ResultOver(end) => Some(AnswerPart::ResultOver(end.numbers())),
            AnswerPart::DefinitionsOver => Some(AnswerPart::DefinitionsOver),
            // The framing accepts these packets only if they are whole.
            AnswerPart::Middle | AnswerPart::Prepared(_) | AnswerPart::LocalInfile { .. } => None,
        };
        Ok(None)
    }
}
