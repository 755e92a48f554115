//! Encodes one body on its way: received content goes in, content to be sent comes out.
//!
//! It holds an encoder and one buffer, both within the worker's memory budget, and does a bounded amount of
//! work each time it gets its turn.

use std::rc::Rc;

use weir_config::Coding;
use weir_io::buffers::{Buffer, Buffers, Charge, LARGE};
use weir_stats::table::{Compressed, ListenerCells};

use super::encoder::{Encoder, Then, memory_bytes};

/// Most content bytes that are encoded before other tasks get their turn: about a millisecond of work.
const TURN_BYTES: usize = 64 << 10;
/// Encoded content is sent in pieces of at least this size while there is more to encode.
const PIECE_BYTES: usize = 8 << 10;

/// A body on its way through an encoder.
pub struct Encoding {
    encoder: Encoder,
    /// Content that is encoded and not yet sent.
    out: Buffer,
    /// Whether the encoder may hold content that it has taken but not put out.
    held: bool,
    /// Whether a flush has begun for whose output there was no room yet.
    flushing: bool,
    finished: bool,
    /// How many bytes may still be encoded in this turn.
    turn: usize,
    coding: Coding,
    plain_bytes: u64,
    encoded_bytes: u64,
    _charge: Charge,
}

/// Counts a response that is sent in this coding.
pub fn count_response(cells: &ListenerCells, coding: Coding) {
    let compressed = match coding {
        Coding::Zstd => Compressed::Zstd,
        Coding::Brotli => Compressed::Brotli,
        Coding::Gzip => Compressed::Gzip,
    };
    cells.compressed[compressed as usize].increment();
}

/// The encoder failed.
#[derive(Debug)]
pub struct Broken;

impl Encoding {
    /// Begins encoding a body of `length` bytes, if that is known. `None` if the memory budget has no room
    /// for it.
    pub fn begin(
        coding: Coding,
        level: u32,
        length: Option<u64>,
        buffers: &Rc<Buffers>,
    ) -> Option<Box<Encoding>> {
        let charge = buffers.charge(memory_bytes(coding, level))?;
        let out = buffers.borrow(LARGE)?;
        let encoder = Encoder::new(coding, level, length)?;
        let encoding = Encoding {
            encoder,
            out,
            held: false,
            flushing: false,
            finished: false,
            turn: TURN_BYTES,
            coding,
            plain_bytes: 0,
            encoded_bytes: 0,
            _charge: charge,
        };
        Some(Box::new(encoding))
    }

    /// Bytes of encoded content so far.
    pub fn encoded_bytes(&self) -> u64 {
        self.encoded_bytes
    }

    /// Counts the response and its bytes.
    pub fn count(&self, cells: &ListenerCells) {
        count_response(cells, self.coding);
        self.count_content(cells);
    }

    /// Counts the bytes that went in and came out.
    pub fn count_content(&self, cells: &ListenerCells) {
        cells.compression_plain_bytes.add(self.plain_bytes);
        cells.compression_encoded_bytes.add(self.encoded_bytes);
    }

    /// The encoded content to send next.
    pub fn encoded(&self) -> &[u8] {
        self.out.filled()
    }

    /// Counts `count` bytes of [`Self::encoded`] as sent.
    pub fn sent(&mut self, count: usize) {
        self.out.consume(count);
    }

    /// Whether everything, including the end, has been put out.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Begins another turn.
    pub fn begin_turn(&mut self) {
        self.turn = TURN_BYTES;
    }

    /// Whether other tasks should get their turn first.
    pub fn is_out_of_turn(&self) -> bool {
        self.turn == 0
    }

    /// Whether there is enough output to send a piece.
    pub fn has_piece(&self) -> bool {
        self.out.filled().len() >= PIECE_BYTES
    }

    /// Encodes from the front of `content` while there is room and this turn lasts; gives how much it took.
    pub fn take(&mut self, content: &[u8]) -> Result<usize, Broken> {
        if self.flushing && !self.push(Then::Flush)? {
            return Ok(0);
        }
        let content = content.get(..self.turn).unwrap_or(content);
        self.out.compact();
        let step = self.encoder.step(content, self.out.free(), Then::More).map_err(|_| Broken)?;
        self.out.fill(step.produced);
        self.plain_bytes += step.consumed as u64;
        self.encoded_bytes += step.produced as u64;
        self.turn -= step.consumed;
        self.held |= step.consumed > 0;
        match step.consumed + step.produced {
            // Without progress the caller would repeat this for ever.
            0 => Err(Broken),
            _ => Ok(step.consumed),
        }
    }

    /// Puts out what the encoder holds back, because no more content is there yet; false if it holds nothing.
    pub fn flush(&mut self) -> Result<bool, Broken> {
        if !self.held {
            return Ok(false);
        }
        self.push(Then::Flush)?;
        Ok(true)
    }

    /// Ends the content. Must be called until [`Self::is_finished`], sending the output in between.
    pub fn finish(&mut self) -> Result<(), Broken> {
        if self.flushing && !self.push(Then::Flush)? {
            return Ok(());
        }
        self.finished = self.push(Then::Finish)?;
        Ok(())
    }

    /// Whether there was room for all of the output.
    fn push(&mut self, then: Then) -> Result<bool, Broken> {
        self.out.compact();
        let step = self.encoder.step(&[], self.out.free(), then).map_err(|_| Broken)?;
        self.out.fill(step.produced);
        self.encoded_bytes += step.produced as u64;
        self.flushing = then == Then::Flush && !step.complete;
        self.held = !step.complete;
        match step.complete || step.produced > 0 {
            true => Ok(step.complete),
            // Without progress the caller would repeat this for ever.
            false => Err(Broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row D12.
    #[test]
    fn a_turn_encodes_no_more_than_its_share() {
        let buffers = Buffers::new(64 << 20);
        for coding in Coding::ALL {
            let mut encoding = Encoding::begin(coding, 3, None, &buffers).unwrap();
            let content = vec![b'a'; 10 * TURN_BYTES];
            let mut taken = 0;
            while !encoding.is_out_of_turn() {
                taken += encoding.take(&content[taken..]).unwrap();
            }
            assert_eq!(taken, TURN_BYTES, "{coding:?}");
            encoding.begin_turn();
            assert!(!encoding.is_out_of_turn());
        }
    }

    #[test]
    fn a_flush_gives_out_what_is_held_and_then_nothing() {
        let buffers = Buffers::new(64 << 20);
        for coding in Coding::ALL {
            let mut encoding = Encoding::begin(coding, 3, None, &buffers).unwrap();
            assert!(!encoding.flush().unwrap(), "{coding:?} holds nothing yet");
            encoding.take(b"data: one\n\n").unwrap();
            assert!(encoding.flush().unwrap());
            let count = encoding.encoded().len();
            assert!(count > 10, "{coding:?}: {count} bytes");
            encoding.sent(count);
            assert!(!encoding.flush().unwrap() && encoding.encoded().is_empty(), "{coding:?}");
            encoding.finish().unwrap();
            assert!(encoding.is_finished() && !encoding.encoded().is_empty());
        }
    }
}
