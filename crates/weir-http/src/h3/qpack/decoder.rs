//! Decodes field sections, with the dynamic table that the peer's encoder stream fills (RFC 9204 §2.2, §4.4,
//! §4.5).

use std::collections::VecDeque;

use super::instructions::Instructions;
use super::integer;
use super::static_table;
use super::table::{DynamicTable, ENTRY_OVERHEAD_BYTES};
use crate::h3::error::{Fault, SectionError};
use crate::huffman;

/// Limits of one field section (threat C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionLimits {
    /// Most bytes: names, values and 32 for each field (RFC 9114 §4.2.2).
    pub bytes: usize,
    /// Most fields; each cookie crumb counts as one.
    pub field_count: usize,
}

/// The result of decoding a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionRead {
    /// All fields were visited.
    Complete,
    /// The section refers to insertions that have not arrived. No field was visited; read it again when they
    /// have.
    Blocked,
}

/// The decoder of one connection.
///
/// Holds at most twice the announced capacity of text, one incomplete instruction of less than four times
/// that, and between sections 8 KiB.
#[derive(Debug)]
pub struct Decoder {
    instructions: Instructions,
    blocked_limit: usize,
    blocked: Vec<Blocked>,
    unblocked: VecDeque<u64>,
    /// Number of insertions that the encoder knows we have received (RFC 9204 §2.1.4).
    known_received: u64,
    /// Bytes to send on the decoder stream.
    output: Vec<u8>,
    names: Vec<u8>,
    values: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Blocked {
    stream_id: u64,
    required: u64,
}

/// Most bytes that may wait for the decoder stream: a peer that does not accept them and goes on sending is
/// after our memory.
const OUTPUT_LIMIT_BYTES: usize = 16 * 1024;

/// Most room that is kept for the next name or value: one long cookie must not cost a connection memory for
/// good.
const KEPT_ROOM_BYTES: usize = 4096;

impl Decoder {
    /// A decoder with these announced limits; `table_capacity` is in bytes, 0 for no table.
    pub fn new(table_capacity: usize, blocked_streams: usize) -> Decoder {
        Decoder {
            instructions: Instructions::new(table_capacity),
            blocked_limit: blocked_streams,
            blocked: Vec::new(),
            unblocked: VecDeque::new(),
            known_received: 0,
            output: Vec::new(),
            names: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Decodes a section received on a stream and passes each field to `visit`, in order. Name and value are
    /// valid only during the call.
    ///
    /// Each field is counted against `limits` before anything is allocated for it.
    ///
    /// # Errors
    /// The section is malformed or over a limit, or `visit` refused a field, which stops the decoding.
    pub fn read_section<E>(
        &mut self,
        stream_id: u64,
        section: &[u8],
        limits: SectionLimits,
        visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<SectionRead, SectionError<E>> {
        let prefix = Prefix::read(section, self.instructions.table())?;
        if prefix.required > self.instructions.table().insert_count() {
            self.block(stream_id, prefix.required)?;
            return Ok(SectionRead::Blocked);
        }
        self.instructions.earn();
        let mut lines = Lines {
            section,
            at: prefix.length,
            table: self.instructions.table(),
            required: prefix.required,
            base: prefix.base,
            names: &mut self.names,
            values: &mut self.values,
            bytes_left: limits.bytes,
            fields_left: limits.field_count,
        };
        let result = lines.read(visit);
        for room in [&mut self.names, &mut self.values] {
            if room.len() > KEPT_ROOM_BYTES {
                *room = Vec::new();
            }
        }
        // A section that is refused or over a limit no longer refers to any entry either.
        if prefix.required > 0 {
            self.acknowledge_section(stream_id, prefix.required)?;
        }
        result.map(|()| SectionRead::Complete)
    }

    /// Counts the insertions for a section as used although we no longer read it: that is not the peer's
    /// fault.
    pub fn excuse_section(&mut self) {
        self.instructions.earn();
    }

    //= https://www.rfc-editor.org/rfc/rfc9204#section-2.1.2
    //# If a decoder encounters more blocked streams than it promised
    //# to support, it MUST treat this as a connection error of type
    //# QPACK_DECOMPRESSION_FAILED.
    #[cold]
    fn block(&mut self, stream_id: u64, required: u64) -> Result<(), Fault> {
        // A section that was retried too early is already listed.
        self.blocked.retain(|blocked| blocked.stream_id != stream_id);
        if self.blocked.len() >= self.blocked_limit {
            return Err(Fault::TooManyBlocked);
        }
        self.blocked.push(Blocked { stream_id, required });
        Ok(())
    }

    /// Takes bytes of the peer's encoder stream, split in any way.
    ///
    /// # Errors
    /// An instruction is malformed, or there are far more of them than requests could need.
    pub fn receive_instructions(&mut self, input: &[u8]) -> Result<(), Fault> {
        self.instructions.receive(input)?;
        let inserted = self.instructions.table().insert_count();
        let unblocked = &mut self.unblocked;
        self.blocked.retain(|blocked| {
            let waits = blocked.required > inserted;
            if !waits {
                unblocked.push_back(blocked.stream_id);
            }
            waits
        });
        Ok(())
    }

    /// The next stream whose blocked section can now be read.
    pub fn poll_unblocked(&mut self) -> Option<u64> {
        self.unblocked.pop_front()
    }

    /// How many streams are waiting for insertions.
    pub fn blocked_count(&self) -> usize {
        self.blocked.len()
    }

    //= https://www.rfc-editor.org/rfc/rfc9204#section-2.2.2.2
    //# When an endpoint receives a stream reset before the end of a stream or
    //# before all encoded field sections are processed on that stream, or
    //# when it abandons reading of a stream, it generates a Stream
    //# Cancellation instruction.
    /// Reports that nothing more of a stream will be read, so that the encoder can release what its sections
    /// refer to.
    ///
    /// # Errors
    /// The peer does not accept bytes of the decoder stream.
    pub fn cancel(&mut self, stream_id: u64) -> Result<(), Fault> {
        self.blocked.retain(|blocked| blocked.stream_id != stream_id);
        self.unblocked.retain(|&unblocked| unblocked != stream_id);
        if self.instructions.table().max_capacity() == 0 {
            return Ok(());
        }
        self.push_output(0x40, 6, stream_id)
    }

    fn acknowledge_section(&mut self, stream_id: u64, required: u64) -> Result<(), Fault> {
        self.known_received = self.known_received.max(required);
        self.push_output(0x80, 7, stream_id)
    }

    fn push_output(&mut self, flags: u8, prefix_bits: u32, value: u64) -> Result<(), Fault> {
        if self.output.len() >= OUTPUT_LIMIT_BYTES {
            return Err(Fault::AcknowledgementsUnread);
        }
        integer::write(&mut self.output, flags, prefix_bits, value);
        Ok(())
    }

    /// The next bytes to send on the decoder stream, without the stream type.
    ///
    /// This also acknowledges all insertions that no section has acknowledged yet, in one instruction.
    #[inline]
    pub fn output(&mut self) -> &[u8] {
        let inserted = self.instructions.table().insert_count();
        if inserted > self.known_received && self.push_output(0x00, 6, inserted - self.known_received).is_ok()
        {
            self.known_received = inserted;
        }
        &self.output
    }

    /// Removes the first `count` bytes of [`Self::output`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.output.drain(..count.min(self.output.len()));
    }
}

/// The prefix of a section (RFC 9204 §4.5.1).
struct Prefix {
    required: u64,
    base: u64,
    length: usize,
}

impl Prefix {
    #[inline]
    fn read(section: &[u8], table: &DynamicTable) -> Result<Prefix, Fault> {
        // No references, as in most sections when there is no table.
        if let [0, 0, ..] = section {
            return Ok(Prefix { required: 0, base: 0, length: 2 });
        }
        let (encoded, at) = section_integer(section, 0, 8)?;
        let required = required_insert_count(encoded, table)?;
        let is_negative = section.get(at).is_some_and(|byte| byte & 0x80 != 0);
        let (delta, length) = section_integer(section, at, 7)?;
        //= https://www.rfc-editor.org/rfc/rfc9204#section-4.5.1.2
        //# The value of Base MUST NOT be negative.
        let base = match is_negative {
            false => Some(required + delta),
            true => required.checked_sub(delta).and_then(|base| base.checked_sub(1)),
        };
        Ok(Prefix { required, base: base.ok_or(Fault::SectionInsertCount)?, length })
    }
}

//= https://www.rfc-editor.org/rfc/rfc9204#section-4.5.1.1
//# If the decoder encounters a value of EncodedInsertCount that could not
//# have been produced by a conformant encoder, it MUST treat this as a
//# connection error of type QPACK_DECOMPRESSION_FAILED.
fn required_insert_count(encoded: u64, table: &DynamicTable) -> Result<u64, Fault> {
    if encoded == 0 {
        return Ok(0);
    }
    let most_entries = (table.max_capacity() / ENTRY_OVERHEAD_BYTES) as u64;
    let full_range = 2 * most_entries;
    if encoded > full_range {
        return Err(Fault::SectionInsertCount);
    }
    let most = table.insert_count() + most_entries;
    let wrapped = most / full_range * full_range;
    let required = wrapped + encoded - 1;
    match required {
        _ if required > most && required <= full_range => Err(Fault::SectionInsertCount),
        _ if required > most => Ok(required - full_range),
        0 => Err(Fault::SectionInsertCount),
        _ => Ok(required),
    }
}

/// The field lines of one section that is being decoded.
struct Lines<'a> {
    section: &'a [u8],
    at: usize,
    table: &'a DynamicTable,
    required: u64,
    base: u64,
    names: &'a mut Vec<u8>,
    values: &'a mut Vec<u8>,
    bytes_left: usize,
    fields_left: usize,
}

/// Position and encoding of a string.
#[derive(Clone, Copy)]
struct Text {
    start: usize,
    end: usize,
    is_huffman: bool,
}

impl<'a> Lines<'a> {
    fn read<E>(
        &mut self,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), SectionError<E>> {
        while let Some(&first) = self.section.get(self.at) {
            self.fields_left = self.fields_left.checked_sub(1).ok_or(Fault::TooManyFields)?;
            self.pay(ENTRY_OVERHEAD_BYTES)?;
            match first {
                0xc0.. => {
                    let (index, at) = section_integer(self.section, self.at, 6)?;
                    self.at = at;
                    let (name, value) = static_table::entry(index).ok_or(Fault::SectionReference)?;
                    self.pay(name.len() + value.len())?;
                    visit(name, value).map_err(SectionError::Refused)?;
                }
                0x80.. => {
                    let index = self.relative(6)?;
                    self.indexed(index, &mut visit)?;
                }
                0x50..0x60 | 0x70.. => {
                    let (index, at) = section_integer(self.section, self.at, 4)?;
                    self.at = at;
                    let (name, _) = static_table::entry(index).ok_or(Fault::SectionReference)?;
                    self.pay(name.len())?;
                    let value = self.text(7)?;
                    visit(name, self.value(value)?).map_err(SectionError::Refused)?;
                }
                0x40.. => {
                    let index = self.relative(4)?;
                    self.named_by_entry(index, &mut visit)?;
                }
                0x20.. => {
                    let name = self.text(3)?;
                    self.literal(name, &mut visit)?;
                }
                0x10.. => {
                    let index = self.post_base(4)?;
                    self.indexed(index, &mut visit)?;
                }
                _ => {
                    let index = self.post_base(3)?;
                    self.named_by_entry(index, &mut visit)?;
                }
            }
        }
        Ok(())
    }

    fn indexed<E>(
        &mut self,
        index: u64,
        visit: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), SectionError<E>> {
        let (name, value) = self.entry(index)?;
        self.pay(name.len() + value.len())?;
        visit(name, value).map_err(SectionError::Refused)
    }

    fn named_by_entry<E>(
        &mut self,
        index: u64,
        visit: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), SectionError<E>> {
        let (name, _) = self.entry(index)?;
        self.pay(name.len())?;
        let value = self.text(7)?;
        visit(name, self.value(value)?).map_err(SectionError::Refused)
    }

    fn literal<E>(
        &mut self,
        name: Text,
        visit: &mut impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), SectionError<E>> {
        let value = self.text(7)?;
        let section = self.section;
        let name_length = decoded(section, name, &mut self.bytes_left, self.names)?;
        let value_length = decoded(section, value, &mut self.bytes_left, self.values)?;
        let name =
            if name.is_huffman { self.names.get(..name_length) } else { section.get(name.start..name.end) };
        let value = if value.is_huffman {
            self.values.get(..value_length)
        } else {
            section.get(value.start..value.end)
        };
        visit(name.unwrap_or_default(), value.unwrap_or_default()).map_err(SectionError::Refused)
    }

    /// The bytes of a value, decoded if need be, and counted against the limits.
    #[inline]
    fn value(&mut self, value: Text) -> Result<&[u8], Fault> {
        let length = decoded(self.section, value, &mut self.bytes_left, self.values)?;
        let bytes = if value.is_huffman {
            self.values.get(..length)
        } else {
            self.section.get(value.start..value.end)
        };
        Ok(bytes.unwrap_or_default())
    }

    #[inline]
    fn pay(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(Fault::SectionTooLarge)?;
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc9204#section-2.2.3
    //# If the decoder encounters a reference in a field line representation to
    //# a dynamic table entry that has already been evicted or that has an
    //# absolute index greater than or equal to the declared Required Insert
    //# Count (Section 4.5.1), it MUST treat this as a connection error of
    //# type QPACK_DECOMPRESSION_FAILED.
    fn entry(&self, index: u64) -> Result<(&'a [u8], &'a [u8]), Fault> {
        let known = if index < self.required { self.table.entry(index) } else { None };
        known.ok_or(Fault::SectionReference)
    }

    /// The absolute index for an index relative to the base.
    fn relative(&mut self, prefix_bits: u32) -> Result<u64, Fault> {
        let (index, at) = section_integer(self.section, self.at, prefix_bits)?;
        self.at = at;
        self.base.checked_sub(index).and_then(|above| above.checked_sub(1)).ok_or(Fault::SectionReference)
    }

    /// The absolute index for a post-base index.
    fn post_base(&mut self, prefix_bits: u32) -> Result<u64, Fault> {
        let (index, at) = section_integer(self.section, self.at, prefix_bits)?;
        self.at = at;
        Ok(self.base + index)
    }

    /// Finds the string that begins here, and moves past it.
    #[inline]
    fn text(&mut self, prefix_bits: u32) -> Result<Text, Fault> {
        let is_huffman = self.section.get(self.at).is_some_and(|byte| byte >> prefix_bits & 1 != 0);
        let (length, start) = section_integer(self.section, self.at, prefix_bits)?;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let end = end.filter(|&end| end <= self.section.len()).ok_or(Fault::SectionTruncated)?;
        self.at = end;
        Ok(Text { start, end, is_huffman })
    }
}

#[inline]
fn section_integer(section: &[u8], at: usize, prefix_bits: u32) -> Result<(u64, usize), Fault> {
    integer::read(section, at, prefix_bits).map_err(|failure| match failure {
        integer::Failure::Short => Fault::SectionTruncated,
        integer::Failure::TooLarge => Fault::SectionInteger,
    })
}

/// Subtracts the length of a string from the limit, and decodes it into `room` if it is Huffman-coded;
/// returns its length.
#[inline]
fn decoded(section: &[u8], text: Text, bytes_left: &mut usize, room: &mut Vec<u8>) -> Result<usize, Fault> {
    let mut length = text.end - text.start;
    if text.is_huffman {
        if huffman::fewest_decoded_bytes(length) > *bytes_left {
            return Err(Fault::SectionTooLarge);
        }
        let coded = section.get(text.start..text.end).unwrap_or_default();
        length = huffman::decode(coded, *bytes_left, room).map_err(|failure| match failure {
            huffman::Failure::Malformed => Fault::SectionHuffman,
            huffman::Failure::TooLong => Fault::SectionTooLarge,
        })?;
    }
    *bytes_left = bytes_left.checked_sub(length).ok_or(Fault::SectionTooLarge)?;
    Ok(length)
}
