//! A server's answer in the bytes of a connection: what may be passed on, and where the answer ends.

use crate::capability::Capabilities;
use crate::command::ClientCommand;
use crate::outcome::ERR;
use crate::packet::{HEADER_BYTES, PacketEvent, PacketHead, PacketHeader, PacketReader};
use crate::response::{AnswerPart, ResponseFraming};
use crate::wire_error::WireError;

/// Reads the answer to one command. Holds no bytes: what has to be in one piece is asked for, all else goes
/// by, a row of 1 GiB too.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    packets: PacketReader,
    framing: ResponseFraming,
    /// The sequence id that the server's next packet has.
    sequence: u8,
    /// What is told when the packet under way, longer than the limit, has ended.
    deferred: Option<AnswerPart<'static>>,
}

/// What [`AnswerReader::advance`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerStep<'a> {
    /// Bytes of the input that belong to packets before the one that `event` is about: they may be passed on.
    pub before: usize,
    /// Bytes of the input that are done with, those of the event's packet included. More than `before` when
    /// something is told.
    pub consumed: usize,
    /// What is told.
    pub event: AnswerEvent<'a>,
}

/// What happened in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEvent<'a> {
    /// Nothing to be told: read on. What `consumed` leaves of the input must be there again, in one piece and
    /// with at least `needs` bytes in all.
    More {
        /// Bytes (count) that the input must have next time, counted behind `consumed`.
        needs: usize,
    },
    /// A packet that is not just the middle of something.
    Part(AnswerPart<'a>),
}

impl AnswerReader {
    /// The answer to `command`, whose last packet had the sequence id `sent`; `None` where
    /// [`ResponseFraming::new`] says so.
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

    /// The sequence id that the server's next packet has.
    pub fn next_sequence(&self) -> u8 {
        self.sequence
    }

    /// Whether the answer is over, to its last byte.
    pub fn is_over(&self) -> bool {
        self.framing.is_over() && self.packets.is_between_packets()
    }

    /// After [`AnswerPart::LocalInfile`]: the client has sent its file, the empty packet at its end with the
    /// sequence id `sent`.
    pub fn infile_sent(&mut self, sent: u8) {
        self.sequence = sent.wrapping_add(1);
    }

    /// Looks at `input` up to the first packet that is to be told of, or to its end. O(packets), without
    /// allocation.
    ///
    /// Must not be called once [`Self::is_over`]: what a server says unasked is an error.
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

    /// Goes past packets that are whole here, and of which all that counts is that they are columns or rows;
    /// gives their bytes (count). Most of an answer is those; what is anything else, or wrong, is left to be
    /// judged.
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

    /// Judges a packet's beginning; what it says is deferred to its end, if that is not here.
    fn head<'a>(&mut self, head: &PacketHead<'a>) -> Result<Option<AnswerPart<'a>>, WireError> {
        // An error may have been sent before the command came, as 4031 to an idle connection.
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
            // Their packets are judged only when they are whole.
            AnswerPart::Middle | AnswerPart::Prepared(_) | AnswerPart::LocalInfile { .. } => None,
        };
        Ok(None)
    }
}
