//! The peer's encoder stream, which fills the dynamic table (RFC 9204 §4.3).

use super::integer;
use super::static_table;
use super::table::{DynamicTable, ENTRY_OVERHEAD_BYTES, Name};
use crate::h3::error::Fault;
use crate::huffman;

/// The table, and the parser of the instructions that fill it.
#[derive(Debug)]
pub(super) struct Instructions {
    table: DynamicTable,
    /// An incomplete instruction. Never longer than one whose entry would fit into the table.
    partial: Vec<u8>,
    names: Vec<u8>,
    values: Vec<u8>,
    /// The budget for instructions, in bytes of entries (threat C4): a one-byte duplicate costs us a whole
    /// entry, and insertions that no section uses are of no benefit.
    allowance: u64,
}

/// The initial budget, and the most that can be saved up, as a multiple of the announced table capacity.
const SAVED_TABLES: u64 = 16;
/// What each section adds to the budget, as a multiple of the announced table capacity.
const TABLES_PER_SECTION: u64 = 4;
/// Smaller tables count as being of this size, in bytes.
const SMALLEST_COUNTED_BYTES: usize = 1024;
/// The cost of an instruction besides the entry.
const INSTRUCTION_COST: u64 = 32;

impl Instructions {
    pub(super) fn new(max_capacity: usize) -> Instructions {
        Instructions {
            table: DynamicTable::new(max_capacity),
            partial: Vec::new(),
            names: Vec::new(),
            values: Vec::new(),
            allowance: saved(max_capacity),
        }
    }

    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    /// A decoded section adds to the budget.
    #[inline]
    pub(super) fn earn(&mut self) {
        let capacity = self.table.max_capacity();
        let earned = self.allowance + TABLES_PER_SECTION * counted_table(capacity);
        self.allowance = earned.min(saved(capacity));
    }

    /// Takes bytes of the encoder stream, split in any way, and executes every complete instruction.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<(), Fault> {
        if self.partial.is_empty() {
            let done = self.carry_out(input)?;
            self.partial.extend_from_slice(input.get(done..).unwrap_or_default());
            return Ok(());
        }
        let mut begun = std::mem::take(&mut self.partial);
        begun.extend_from_slice(input);
        let done = self.carry_out(&begun)?;
        begun.drain(..done);
        // Instructions are rarely split, so no room is kept for them.
        self.partial = if begun.is_empty() { Vec::new() } else { begun };
        Ok(())
    }

    /// Executes complete instructions; returns how many bytes they took.
    fn carry_out(&mut self, input: &[u8]) -> Result<usize, Fault> {
        let mut done = 0;
        while let Some(&first) = input.get(done) {
            let step = match first {
                0x80.. => self.insert_with_name_of(input, done, first & 0x40 != 0),
                0x40.. => self.insert(input, done),
                0x20.. => self.set_capacity(input, done),
                _ => self.duplicate(input, done),
            };
            match step {
                Ok(end) => done = end,
                Err(Stop::Short) => break,
                Err(Stop::Wrong(fault)) => return Err(fault),
            }
        }
        Ok(done)
    }

    fn insert_with_name_of(&mut self, input: &[u8], at: usize, is_static: bool) -> Result<usize, Stop> {
        let (index, at) = integer::read(input, at, 6)?;
        let name = match is_static {
            true => Name::Text(static_table::entry(index).ok_or(Fault::InstructionReference)?.0),
            false => Name::Of(self.absolute(index)?),
        };
        let value = Text::read(input, at, 7, self.table.capacity())?;
        let text = value.decode(input, self.table.capacity(), &mut self.values)?;
        insert(&mut self.table, &mut self.allowance, name, text)?;
        Ok(value.end)
    }

    fn insert(&mut self, input: &[u8], at: usize) -> Result<usize, Stop> {
        let capacity = self.table.capacity();
        let name = Text::read(input, at, 5, capacity)?;
        let value = Text::read(input, name.end, 7, capacity)?;
        let name = name.decode(input, capacity, &mut self.names)?;
        let text = value.decode(input, capacity, &mut self.values)?;
        insert(&mut self.table, &mut self.allowance, Name::Text(name), text)?;
        Ok(value.end)
    }

    fn set_capacity(&mut self, input: &[u8], at: usize) -> Result<usize, Stop> {
        let (capacity, end) = integer::read(input, at, 5)?;
        spend(&mut self.allowance, 0)?;
        self.table.set_capacity(capacity).ok_or(Fault::InstructionCapacity)?;
        Ok(end)
    }

    fn duplicate(&mut self, input: &[u8], at: usize) -> Result<usize, Stop> {
        let (index, end) = integer::read(input, at, 5)?;
        let absolute = self.absolute(index)?;
        let size = self.table.duplicate(absolute).ok_or(Fault::InstructionReference)?;
        spend(&mut self.allowance, size)?;
        Ok(end)
    }

    /// The absolute index for an index relative to the next insertion.
    fn absolute(&self, index: u64) -> Result<u64, Fault> {
        let absolute = self.table.insert_count().checked_sub(index).and_then(|above| above.checked_sub(1));
        absolute.filter(|&index| self.table.entry(index).is_some()).ok_or(Fault::InstructionReference)
    }
}

fn insert(table: &mut DynamicTable, allowance: &mut u64, name: Name<'_>, value: &[u8]) -> Result<(), Fault> {
    let name_length = match name {
        Name::Text(text) => text.len(),
        Name::Of(index) => table.entry(index).map_or(0, |(name, _)| name.len()),
    };
    spend(allowance, name_length + value.len())?;
    //= https://www.rfc-editor.org/rfc/rfc9204#section-3.2.2
    //# It is an error if the encoder attempts to add an entry
    //# that is larger than the dynamic table capacity; the decoder MUST treat
    //# this as a connection error of type QPACK_ENCODER_STREAM_ERROR.
    table.insert(name, value).ok_or(Fault::InstructionTooLarge)
}

fn spend(allowance: &mut u64, bytes: usize) -> Result<(), Fault> {
    let cost = INSTRUCTION_COST + bytes as u64;
    *allowance = allowance.checked_sub(cost).ok_or(Fault::InstructionFlood)?;
    Ok(())
}

/// Enough to set the capacity a few times even without a table.
fn saved(max_capacity: usize) -> u64 {
    SAVED_TABLES * counted_table(max_capacity) + 16 * INSTRUCTION_COST
}

/// An encoder that does its best fills a small table anew for each section.
fn counted_table(max_capacity: usize) -> u64 {
    if max_capacity == 0 { 0 } else { max_capacity.max(SMALLEST_COUNTED_BYTES) as u64 }
}

/// Why an instruction is not executed.
enum Stop {
    /// More bytes are needed.
    Short,
    Wrong(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Wrong(fault)
    }
}

impl From<integer::Failure> for Stop {
    fn from(failure: integer::Failure) -> Stop {
        match failure {
            integer::Failure::Short => Stop::Short,
            integer::Failure::TooLarge => Stop::Wrong(Fault::InstructionInteger),
        }
    }
}

/// Position and encoding of a string.
#[derive(Clone, Copy)]
struct Text {
    start: usize,
    end: usize,
    is_huffman: bool,
}

impl Text {
    /// Finds the string at `at`. One that can't fit into the table is refused as soon as its length is known.
    fn read(input: &[u8], at: usize, prefix_bits: u32, capacity: usize) -> Result<Text, Stop> {
        let is_huffman = input.get(at).ok_or(Stop::Short)? >> prefix_bits & 1 != 0;
        let (length, start) = integer::read(input, at, prefix_bits)?;
        let length = usize::try_from(length).map_err(|_| Fault::InstructionTooLarge)?;
        let fewest = if is_huffman { huffman::fewest_decoded_bytes(length) } else { length };
        if fewest.saturating_add(ENTRY_OVERHEAD_BYTES) > capacity {
            return Err(Stop::Wrong(Fault::InstructionTooLarge));
        }
        let end = start + length;
        if end > input.len() {
            return Err(Stop::Short);
        }
        Ok(Text { start, end, is_huffman })
    }

    fn decode<'a>(self, input: &'a [u8], capacity: usize, room: &'a mut Vec<u8>) -> Result<&'a [u8], Fault> {
        let coded = input.get(self.start..self.end).unwrap_or_default();
        if !self.is_huffman {
            return Ok(coded);
        }
        let length = huffman::decode(coded, capacity, room).map_err(|failure| match failure {
            huffman::Failure::Malformed => Fault::InstructionHuffman,
            huffman::Failure::TooLong => Fault::InstructionTooLarge,
        })?;
        Ok(room.get(..length).unwrap_or_default())
    }
}
