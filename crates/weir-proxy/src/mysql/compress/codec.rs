//! Content in and out of compressed packets, one step at a time, in room that the caller has.
//!
//! Each compressed packet is inflated and deflated by itself, so that nothing is kept from one to the next.

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

/// Level of zlib, as servers have it. A client can not ask for another.
pub const ZLIB_LEVEL: u32 = 6;
/// Highest level of zstd that is used, whatever a client asks for: above it a core deflates less than a slow
/// line carries, and who has an account could have Weir do nothing else. The client inflates all levels.
const MOST_ZSTD_LEVEL: u8 = 9;
/// Largest window of zstd that is held for a packet which is inflated piece by piece, as a power of two: no
/// packet has more content.
const MOST_WINDOW_BITS: u32 = 24;
/// What inflating zlib piece by piece holds, in bytes.
const ZLIB_BYTES: u64 = 64 << 10;

/// Why what a client sent can not be inflated. The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionError {
    /// Its compressed packets are out of order.
    OutOfOrder,
    /// The payload of one is no content of the length that its header says.
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
    /// What deflates and inflates packets in one step: made when it is used first, and shared by all
    /// connections of a worker, as nothing stays in it.
    static SHARED: RefCell<Shared> = RefCell::default();
}

#[derive(Default)]
struct Shared {
    deflate_zlib: Option<Compress>,
    inflate_zlib: Option<Decompress>,
    deflate_zstd: Option<CCtx<'static>>,
    inflate_zstd: Option<DCtx<'static>>,
}

/// Deflates `content` into `room`. `None` where that makes it no smaller, or it does not fit: then it goes as
/// it is.
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

/// The level that is used for one that a client asks for.
pub fn zstd_level(asked: u8) -> i32 {
    i32::from(asked.clamp(1, MOST_ZSTD_LEVEL))
}

/// Inflates a whole payload to exactly all of `room`.
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

/// Follows the compressed packets of a client.
pub struct Unpacker {
    algorithm: Algorithm,
    packet: Option<UnderWay>,
}

/// A packet of which the header went by.
struct UnderWay {
    payload_left: usize,
    content_left: usize,
    how: How,
}

/// How its payload becomes content.
enum How {
    /// It is the content.
    AsItIs,
    /// In one step, once all of it is there.
    Whole,
    /// Piece by piece, since it is too long to be waited for.
    Zlib(Box<Decompress>),
    Zstd(DCtx<'static>),
}

/// What one step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Bytes of content in the room.
    pub produced: usize,
    /// Bytes that the input must have for a further step, when it was too short for this one; at most
    /// [`LARGE`]. Else 0.
    pub needs: usize,
}

impl Unpacker {
    /// Between two packets.
    pub fn new(algorithm: Algorithm) -> Unpacker {
        Unpacker { algorithm, packet: None }
    }

    /// Room that the next step on this input wants, at most [`LARGE`] bytes.
    pub fn room_wanted(&self, input: &[u8]) -> usize {
        let wanted = match &self.packet {
            Some(packet) => packet.content_left,
            None => input.first_chunk().copied().map(CompressedHeader::parse).map_or(0, content_bytes),
        };
        wanted.clamp(1, LARGE)
    }

    /// Whether content is to come of input that went by already.
    pub fn owes(&self) -> bool {
        self.packet.as_ref().is_some_and(|packet| packet.payload_left == 0)
    }

    /// Bytes of memory that are held for the packet under way, beside the caller's.
    pub fn held_bytes(&self) -> u64 {
        match self.packet.as_ref().map(|packet| &packet.how) {
            None | Some(How::AsItIs | How::Whole) => 0,
            Some(How::Zlib(_)) => ZLIB_BYTES,
            Some(How::Zstd(context)) => context.sizeof() as u64,
        }
    }

    /// Makes content of the input into `room`, which has at least [`Self::room_wanted`]; of one packet at
    /// most, so that what is given at once never belongs to two commands. Where nothing was consumed and
    /// nothing produced, more input is needed.
    ///
    /// # Errors
    /// What was sent is not what it says it is. It costs no more than the room and the input.
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

    /// `None` for a packet without content, which some send and which means nothing.
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
        // Where all content is out, the end of the payload has yet to say so: a byte too many is a lie.
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
