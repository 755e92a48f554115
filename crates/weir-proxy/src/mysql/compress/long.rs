//! The rest of a packet that is too long for one piece: it is deflated as it arrives, and sent when it is
//! complete.

use std::io;
use std::rc::Rc;

use flate2::{Compress, Compression, FlushCompress, Status};
use weir_io::buffers::{Buffers, Held, LARGE};
use weir_mysql::compressed::{COMPRESSED_HEADER_BYTES, CompressedHeader};
use weir_mysql::packet::MAX_PAYLOAD_BYTES;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use super::Algorithm;
use super::codec::{ZLIB_LEVEL, zstd_level};

/// Most content that is gathered (bytes). Incompressible content grows by some 5 KiB, and must not exceed the
/// length that a header can hold.
pub const MOST_LONG_BYTES: usize = MAX_PAYLOAD_BYTES - (8 << 10);
/// Memory for deflating zlib (bytes).
const ZLIB_BYTES: usize = 320 << 10;

/// A compressed packet that is made in pieces.
pub struct Long {
    deflater: Deflater,
    /// The header, followed by the deflated bytes.
    packet: Vec<u8>,
    content_bytes: usize,
    /// Bytes that the kernel has accepted; `None` until the packet is complete.
    sent: Option<usize>,
    held: Held,
}

enum Deflater {
    Zlib(Box<Compress>),
    Zstd(CCtx<'static>),
}

impl Long {
    /// A packet for this many bytes of content. `None` if no memory is available.
    pub fn new(algorithm: Algorithm, content_bytes: usize, buffers: &Rc<Buffers>) -> Option<Long> {
        let deflater = match algorithm {
            Algorithm::Zlib => Deflater::Zlib(Box::new(Compress::new(Compression::new(ZLIB_LEVEL), true))),
            Algorithm::Zstd { level } => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(zstd_level(level))).ok()?;
                context.set_pledged_src_size(Some(content_bytes as u64)).ok()?;
                Deflater::Zstd(context)
            }
        };
        let packet = vec![0; COMPRESSED_HEADER_BYTES];
        Some(Long { deflater, packet, content_bytes, sent: None, held: Held::new(buffers) })
    }

    /// Deflates the next piece; `is_last` marks the last one.
    ///
    /// # Errors
    /// No memory is available, or the packet is longer than a header can hold.
    pub fn take(&mut self, piece: &[u8], is_last: bool) -> io::Result<()> {
        let mut rest = piece;
        loop {
            self.packet.reserve(LARGE);
            let (consumed, is_over) = match &mut self.deflater {
                Deflater::Zlib(state) => {
                    let before = state.total_in();
                    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::None };
                    let status = state.compress_vec(rest, &mut self.packet, flush);
                    let status = status.map_err(|_| io::ErrorKind::OutOfMemory)?;
                    ((state.total_in() - before) as usize, status == Status::StreamEnd)
                }
                Deflater::Zstd(context) => {
                    let directive = match is_last {
                        true => ZSTD_EndDirective::ZSTD_e_end,
                        false => ZSTD_EndDirective::ZSTD_e_continue,
                    };
                    let place = self.packet.len();
                    let mut source = InBuffer::around(rest);
                    let mut sink = OutBuffer::around_pos(&mut self.packet, place);
                    let left = context.compress_stream2(&mut sink, &mut source, directive);
                    let left = left.map_err(|_| io::ErrorKind::OutOfMemory)?;
                    (source.pos(), left == 0)
                }
            };
            rest = rest.get(consumed..).unwrap_or_default();
            if is_over || (rest.is_empty() && !is_last) {
                break;
            }
        }
        if self.packet.len() > COMPRESSED_HEADER_BYTES + MAX_PAYLOAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let deflater_bytes = match &self.deflater {
            Deflater::Zlib(_) => ZLIB_BYTES,
            Deflater::Zstd(context) => context.sizeof(),
        };
        self.held.set((self.packet.capacity() + deflater_bytes) as u64);
        Ok(())
    }

    /// Completes the packet, with this sequence id.
    pub fn end(&mut self, sequence: u8) {
        let header = CompressedHeader {
            payload_bytes: (self.packet.len() - COMPRESSED_HEADER_BYTES) as u32,
            sequence,
            content_bytes: self.content_bytes as u32,
        };
        if let Some(place) = self.packet.first_chunk_mut() {
            *place = header.to_bytes();
        }
        self.sent = Some(0);
    }

    /// Bytes that are still to be sent; `None` until the packet is complete.
    pub fn unsent(&self) -> Option<&[u8]> {
        self.packet.get(self.sent?..)
    }

    /// Records that the kernel has accepted `count` bytes; returns whether those were the last.
    pub fn sent(&mut self, count: usize) -> bool {
        let sent = self.sent.map_or(0, |sent| sent + count);
        self.sent = Some(sent);
        sent >= self.packet.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::compress::codec::inflate;

    #[test]
    fn what_does_not_shrink_fits_a_header_when_it_is_as_long_as_can_be() {
        let mut number = 1_u64;
        let mut next = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) as u8
        };
        let noise: Vec<u8> = (0..MOST_LONG_BYTES).map(|_| next()).collect();
        for algorithm in [Algorithm::Zlib, Algorithm::Zstd { level: 1 }] {
            let buffers = Buffers::new(64 << 20);
            let mut long = Long::new(algorithm, noise.len(), &buffers).unwrap();
            let last = noise.len().div_ceil(LARGE) - 1;
            for (index, piece) in noise.chunks(LARGE).enumerate() {
                long.take(piece, index == last).unwrap();
            }
            assert!(buffers.in_use_bytes() >= noise.len() as u64, "it counts");
            long.end(3);
            let packet = long.unsent().unwrap();
            let header = CompressedHeader::parse(*packet.first_chunk().unwrap());
            assert_eq!((header.sequence, header.content_bytes as usize), (3, noise.len()));
            let mut inflated = vec![0; noise.len()];
            inflate(algorithm, &packet[COMPRESSED_HEADER_BYTES..], &mut inflated).unwrap();
            assert!(inflated == noise && header.payload_bytes as usize == packet.len() - 7);
        }
    }
}
