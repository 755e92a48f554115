//! Reads and writes compressed packets one step at a time, in room provided by the caller.
//!
//! Each compressed packet is inflated and deflated by itself, so nothing is kept between packets.

use std::cell::RefCell;
use std::fmt;
use std::io;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use weir_io::buffers::LARGE;
use weir_mysql::WireError;
use weir_mysql::compressed::{
    COMPRESSED_HEADER_BYTES, CompressedHeader, CompressedTurns, LEAST_COMPRESSED_BYTES,
};
use zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::Algorithm;

/// The zlib level, as on servers. A client cannot ask for another one.
pub const ZLIB_LEVEL: u32 = 6;
/// Highest zstd level that is used, whatever a client asks for. Above it, a core deflates less than a slow
/// line carries, and anyone with an account could keep Weir busy. Clients can inflate every level.
const MOST_ZSTD_LEVEL: u8 = 9;
/// Largest zstd window for a packet that is inflated in pieces, as a power of two. No packet has more content
/// than this.
const MOST_WINDOW_BITS: u32 = 24;
/// Memory for inflating zlib in pieces (bytes).
const ZLIB_BYTES: u64 = 64 << 10;

/// Why a client's compressed packet is invalid. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionError {
    /// The sequence ids of compressed packets are out of order.
    OutOfOrder,
    /// A payload does not inflate to the length in its header.
    Content,
}

impl fmt::Display for CompressionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            CompressionError::OutOfOrder => "compressed packets are out of order",
            CompressionError::Content => "a compressed packet has not the content that its header says",
        })
    }
}

impl std::error::Error for CompressionError {}

impl From<CompressionError> for io::Error {
    fn from(error: CompressionError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl From<WireError> for CompressionError {
    fn from(_: WireError) -> CompressionError {
        CompressionError::OutOfOrder
    }
}

thread_local! {
    /// State for deflating and inflating packets in one step. It is created on first use and shared by all
    /// connections of a worker, because nothing is kept in it between packets.
    static SHARED: RefCell<Shared> = RefCell::default();
}

#[derive(Default)]
struct Shared {
    deflate_zlib: Option<Compress>,
    inflate_zlib: Option<Decompress>,
    deflate_zstd: Option<CCtx<'static>>,
    inflate_zstd: Option<DCtx<'static>>,
}

/// Deflates `content` into `room`. `None` if that would not make it smaller, or it does not fit: then it is
/// sent uncompressed.
pub fn deflate(algorithm: Algorithm, content: &[u8], room: &mut [u8]) -> Option<usize> {
    if content.len() < LEAST_COMPRESSED_BYTES {
        return None;
    }
    let most = room.len().min(content.len() - 1);
    let room = room.get_mut(..most)?;
    SHARED.with_borrow_mut(|shared| match algorithm {
        Algorithm::Zlib => {
            let new = || Compress::new(Compression::new(ZLIB_LEVEL), true);
            let state = shared.deflate_zlib.get_or_insert_with(new);
            state.reset();
            let status = state.compress(content, room, FlushCompress::Finish);
            matches!(status, Ok(Status::StreamEnd)).then(|| state.total_out() as usize)
        }
        Algorithm::Zstd { level } => {
            let context = made(&mut shared.deflate_zstd, CCtx::try_create)?;
            context.compress(room, content, zstd_level(level)).ok()
        }
    })
}

/// The level that is used if a client asks for `asked`.
pub fn zstd_level(asked: u8) -> i32 {
    i32::from(asked.clamp(1, MOST_ZSTD_LEVEL))
}

/// Inflates a whole payload to exactly the length of `room`.
pub fn inflate(algorithm: Algorithm, payload: &[u8], room: &mut [u8]) -> Result<(), CompressionError> {
    let is_good = SHARED.with_borrow_mut(|shared| match algorithm {
        Algorithm::Zlib => {
            let state = shared.inflate_zlib.get_or_insert_with(|| Decompress::new(true));
            state.reset(true);
            let status = state.decompress(payload, room, FlushDecompress::Finish);
            matches!(status, Ok(Status::StreamEnd))
                && state.total_out() == room.len() as u64
                && state.total_in() == payload.len() as u64
        }
        Algorithm::Zstd { .. } => {
            let expected = room.len();
            let context = made(&mut shared.inflate_zstd, DCtx::try_create);
            context.is_some_and(|context| context.decompress(room, payload) == Ok(expected))
        }
    });
    is_good.then_some(()).ok_or(CompressionError::Content)
}

fn made<T>(place: &mut Option<T>, make: impl FnOnce() -> Option<T>) -> Option<&mut T> {
    if place.is_none() {
        *place = make();
    }
    place.as_mut()
}

/// Unpacks the compressed packets of a client.
pub struct Unpacker {
    algorithm: Algorithm,
    packet: Option<UnderWay>,
}

/// A packet whose header has been read.
struct UnderWay {
    payload_left: usize,
    content_left: usize,
    how: How,
}

/// How its payload becomes content.
enum How {
    /// The payload is the content.
    AsItIs,
    /// It is inflated in one step, once all of it has arrived.
    Whole,
    /// It is inflated in pieces, because it is too long to wait for.
    Zlib(Box<Decompress>),
    Zstd(DCtx<'static>),
}

/// The result of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// Bytes of content that were written to the room.
    pub produced: usize,
    /// If the input was too short for this step: how many bytes it must have for the next one, at most
    /// [`LARGE`]. Otherwise 0.
    pub needs: usize,
}

impl Unpacker {
    /// An unpacker that is between two packets.
    pub fn new(algorithm: Algorithm) -> Unpacker {
        Unpacker { algorithm, packet: None }
    }

    /// The room for the next step on this input, at most [`LARGE`] bytes.
    pub fn room_wanted(&self, input: &[u8]) -> usize {
        let wanted = match &self.packet {
            Some(packet) => packet.content_left,
            None => input.first_chunk().copied().map(CompressedHeader::parse).map_or(0, content_bytes),
        };
        wanted.clamp(1, LARGE)
    }

    /// Whether more content will come from input that was already consumed.
    pub fn owes(&self) -> bool {
        self.packet.as_ref().is_some_and(|packet| packet.payload_left == 0)
    }

    /// Bytes of memory held for the current packet, in addition to the caller's.
    pub fn held_bytes(&self) -> u64 {
        match self.packet.as_ref().map(|packet| &packet.how) {
            None | Some(How::AsItIs | How::Whole) => 0,
            Some(How::Zlib(_)) => ZLIB_BYTES,
            Some(How::Zstd(context)) => context.sizeof() as u64,
        }
    }

    /// Unpacks input into `room`, which must have at least [`Self::room_wanted`] bytes. One step takes at
    /// most one packet, so that its content never belongs to two commands. If nothing was consumed and
    /// nothing produced, more input is needed.
    ///
    /// # Errors
    /// The packet is invalid. It has cost no more than the room and the input.
    pub fn step(
        &mut self,
        input: &[u8],
        room: &mut [u8],
        turns: &mut CompressedTurns,
    ) -> Result<Unpacked, CompressionError> {
        let mut done = Unpacked::default();
        if self.packet.is_none() {
            let Some(header) = input.first_chunk().copied().map(CompressedHeader::parse) else {
                return Ok(Unpacked { needs: COMPRESSED_HEADER_BYTES, ..done });
            };
            turns.receive(header.sequence)?;
            done.consumed = COMPRESSED_HEADER_BYTES;
            self.packet = self.begin(header)?;
        }
        let input = input.get(done.consumed..).unwrap_or_default();
        let Some(packet) = &mut self.packet else { return Ok(done) };
        let step = packet.step(self.algorithm, input, room)?;
        turns.received(room.get_mut(..step.produced).unwrap_or_default());
        if packet.payload_left == 0 && packet.content_left == 0 {
            self.packet = None;
        }
        done.consumed += step.consumed;
        Ok(Unpacked { produced: step.produced, needs: step.needs, ..done })
    }

    /// `None` for a packet without content, which some peers send and which has no meaning.
    fn begin(&self, header: CompressedHeader) -> Result<Option<UnderWay>, CompressionError> {
        let (payload_left, content_left) = (header.payload_bytes as usize, content_bytes(header));
        let how = match (header.content_bytes, self.algorithm) {
            (0, _) if payload_left == 0 => return Ok(None),
            (0, _) => How::AsItIs,
            _ if payload_left == 0 => return Err(CompressionError::Content),
            _ if content_left <= LARGE && payload_left <= LARGE => How::Whole,
            (_, Algorithm::Zlib) => How::Zlib(Box::new(Decompress::new(true))),
            (_, Algorithm::Zstd { .. }) => {
                let mut context = DCtx::try_create().ok_or(CompressionError::Content)?;
                let _ = context.reset(ResetDirective::SessionAndParameters);
                let bounded = context.set_parameter(DParameter::WindowLogMax(MOST_WINDOW_BITS));
                bounded.map_err(|_| CompressionError::Content)?;
                How::Zstd(context)
            }
        };
        Ok(Some(UnderWay { payload_left, content_left, how }))
    }
}

/// Bytes of a packet's content.
fn content_bytes(header: CompressedHeader) -> usize {
    match header.content_bytes {
        0 => header.payload_bytes as usize,
        inflated => inflated as usize,
    }
}

impl UnderWay {
    fn step(
        &mut self,
        algorithm: Algorithm,
        input: &[u8],
        room: &mut [u8],
    ) -> Result<Unpacked, CompressionError> {
        let input = input.get(..self.payload_left).unwrap_or(input);
        // All content has been produced, so the payload must end here: a further byte of content is an error.
        let mut beyond = [0; 1];
        let room = match self.content_left {
            0 => &mut beyond[..],
            left => {
                let most = room.len().min(left);
                room.get_mut(..most).unwrap_or_default()
            }
        };
        if matches!(self.how, How::Whole) && input.len() < self.payload_left {
            return Ok(Unpacked { needs: self.payload_left, ..Unpacked::default() });
        }
        let (consumed, produced, is_over) = match &mut self.how {
            How::AsItIs => {
                let count = input.len().min(room.len());
                if let (Some(room), Some(input)) = (room.get_mut(..count), input.get(..count)) {
                    room.copy_from_slice(input);
                }
                (count, count, self.payload_left == count)
            }
            How::Whole => {
                inflate(algorithm, input, room)?;
                (input.len(), room.len(), true)
            }
            How::Zlib(state) => {
                let (taken, made) = (state.total_in(), state.total_out());
                let status = state.decompress(input, room, FlushDecompress::None);
                let status = status.map_err(|_| CompressionError::Content)?;
                let (consumed, produced) = (state.total_in() - taken, state.total_out() - made);
                (consumed as usize, produced as usize, status == Status::StreamEnd)
            }
            How::Zstd(context) => {
                let mut source = InBuffer::around(input);
                let mut sink = OutBuffer::around(&mut *room);
                let hint = context.decompress_stream(&mut sink, &mut source);
                let hint = hint.map_err(|_| CompressionError::Content)?;
                (source.pos(), sink.pos(), hint == 0)
            }
        };
        self.payload_left -= consumed;
        let Some(content_left) = self.content_left.checked_sub(produced) else {
            return Err(CompressionError::Content);
        };
        self.content_left = content_left;
        let is_whole = self.payload_left == 0 && content_left == 0;
        let stands_still = consumed == 0 && produced == 0;
        if is_over != is_whole && (is_over || is_whole) || stands_still && self.payload_left == 0 {
            return Err(CompressionError::Content);
        }
        let needs = if stands_still { 1 } else { 0 };
        Ok(Unpacked { consumed, produced, needs })
    }
}

#[cfg(test)]
mod tests;
