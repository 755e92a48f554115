//! Compression between a client and Weir: a layer over the client's connection that starts after the login.
//! Code above it sees uncompressed packets. Connections to servers are not compressed.
//!
//! Nothing is held between packets, and during one no more than a buffer in each direction. Long packets are
//! inflated in pieces, as room becomes available. A long row is deflated as it arrives, and sent when it is
//! complete.

mod codec;
mod long;

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_config::MysqlCompression;
use weir_io::buffers::{Buffer, Buffers, Held, LARGE, SMALL};
use weir_io::stream::{Duplex as _, Layer, Stream};
use weir_mysql::capability::Capabilities;
use weir_mysql::compressed::{COMPRESSED_HEADER_BYTES, CompressedHeader, CompressedTurns};

pub use self::codec::CompressionError;
use self::codec::{Unpacker, deflate};
use self::long::{Long, MOST_LONG_BYTES};

/// The compression negotiated with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Zlib,
    /// `level` is the one that the client asks for, 1 to 22.
    Zstd {
        level: u8,
    },
}

/// The capabilities that negotiate compression.
pub const COMPRESSION: Capabilities =
    Capabilities(Capabilities::COMPRESS.0 | Capabilities::ZSTD_COMPRESSION_ALGORITHM.0);

/// The capabilities offered to clients for the algorithms that a listener allows.
pub fn offered(algorithms: &[MysqlCompression]) -> Capabilities {
    algorithms.iter().fold(Capabilities::NONE, |offered, algorithm| {
        offered
            | match algorithm {
                MysqlCompression::Zlib => Capabilities::COMPRESS,
                MysqlCompression::Zstd => Capabilities::ZSTD_COMPRESSION_ALGORITHM,
                MysqlCompression::Uncompressed => Capabilities::NONE,
            }
    })
}

impl Algorithm {
    /// The algorithm for the negotiated capabilities `agreed`; `None` for no compression. If both are set,
    /// zlib is used, as on a server.
    pub fn of(agreed: Capabilities, zstd_level: Option<u8>) -> Option<Algorithm> {
        if agreed.has(Capabilities::COMPRESS) {
            return Some(Algorithm::Zlib);
        }
        let is_zstd = agreed.has(Capabilities::ZSTD_COMPRESSION_ALGORITHM);
        is_zstd.then(|| Algorithm::Zstd { level: zstd_level.unwrap_or(DEFAULT_ZSTD_LEVEL) })
    }

    /// The capability that stands for this algorithm.
    pub fn capability(self) -> Capabilities {
        match self {
            Algorithm::Zlib => Capabilities::COMPRESS,
            Algorithm::Zstd { .. } => Capabilities::ZSTD_COMPRESSION_ALGORITHM,
        }
    }

    /// The zstd level, for a login packet with one.
    pub fn zstd_level(self) -> Option<u8> {
        match self {
            Algorithm::Zlib => None,
            Algorithm::Zstd { level } => Some(level),
        }
    }
}

/// The default level of clients.
const DEFAULT_ZSTD_LEVEL: u8 = 3;

/// The client's connection with compression. `first` has bytes that were received after the login.
pub fn compressed(
    below: Stream,
    algorithm: Algorithm,
    first: Option<Buffer>,
    buffers: &Rc<Buffers>,
) -> Stream {
    Stream::layered(Box::new(Compressed {
        below,
        algorithm,
        buffers: buffers.clone(),
        turns: CompressedTurns::after_login(),
        unpacker: Unpacker::new(algorithm),
        held: Held::new(buffers),
        is_fresh: first.is_some(),
        incoming: first,
        needs: COMPRESSED_HEADER_BYTES,
        content: None,
        has_ended: false,
        broken: None,
        outgoing: None,
        long: None,
        accepted: 0,
    }))
}

struct Compressed {
    below: Stream,
    algorithm: Algorithm,
    buffers: Rc<Buffers>,
    turns: CompressedTurns,
    unpacker: Unpacker,
    /// The memory held by the unpacker.
    held: Held,
    /// Bytes that were received and not unpacked.
    incoming: Option<Buffer>,
    /// Whether `incoming` has bytes that the unpacker has not seen.
    is_fresh: bool,
    /// Bytes that `incoming` must have for the unpacker to continue.
    needs: usize,
    /// Content that was unpacked and not taken by the caller.
    content: Option<Buffer>,
    has_ended: bool,
    /// Why nothing more can be unpacked.
    broken: Option<CompressionError>,
    /// A packet that the kernel has not fully accepted yet.
    outgoing: Option<Buffer>,
    /// The rest of a packet that is being gathered, or that the kernel has not fully accepted yet.
    long: Option<Box<Long>>,
    /// Bytes of content in either that were not yet reported to the caller as sent.
    accepted: usize,
}

impl Compressed {
    /// Unpacks until there is content; returns whether there is any.
    fn unpack(&mut self) -> io::Result<bool> {
        while self.incoming.is_some() || self.unpacker.owes() {
            let incoming = self.incoming.as_ref().map_or(&[][..], Buffer::filled);
            let room = self.unpacker.room_wanted(incoming);
            let mut content = self.buffers.borrow(room).ok_or(io::ErrorKind::OutOfMemory)?;
            let step = self.unpacker.step(incoming, content.free(), &mut self.turns);
            self.held.set(self.unpacker.held_bytes());
            let step = step.inspect_err(|error| self.broken = Some(*error))?;
            if let Some(incoming) = &mut self.incoming {
                incoming.consume(step.consumed);
            }
            self.incoming.take_if(|incoming| incoming.is_empty());
            if step.produced > 0 {
                content.fill(step.produced);
                self.content = Some(content);
                return Ok(true);
            }
            if step.needs > 0 {
                self.needs = step.needs;
                return Ok(false);
            }
        }
        self.needs = COMPRESSED_HEADER_BYTES;
        Ok(false)
    }

    /// Receives and appends to the waiting bytes. Zero is the end of the stream.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.below.poll_readable(context))?;
        let mut incoming = match self.incoming.take() {
            Some(mut incoming) if incoming.capacity() >= self.needs => {
                incoming.compact();
                incoming
            }
            held => {
                let mut larger =
                    self.buffers.borrow(self.needs.max(SMALL)).ok_or(io::ErrorKind::OutOfMemory)?;
                held.iter().for_each(|held| larger.append(held.filled()));
                larger
            }
        };
        let polled = self.below.receive_ready(context, &mut incoming);
        if !incoming.is_empty() {
            self.incoming = Some(incoming);
        }
        polled
    }

    /// Adds the front of `bytes` to the rest of a packet that would otherwise need further compressed
    /// packets; `false` if that is not necessary. Some clients assume that a packet spans at most two
    /// compressed packets, as servers send it (Connector/Python's own reader).
    fn gather(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let left = self.turns.unsent_of_packet();
        if self.long.is_none() {
            if left <= bytes.len().min(LARGE) || left > MOST_LONG_BYTES {
                return Ok(false);
            }
            let long = Long::new(self.algorithm, left, &self.buffers).ok_or(io::ErrorKind::OutOfMemory)?;
            self.long = Some(Box::new(long));
        }
        let Some(long) = &mut self.long else { return Ok(false) };
        let piece = bytes.get(..left.min(LARGE)).unwrap_or(bytes);
        long.take(piece, piece.len() == left)?;
        self.turns.send_part(piece);
        if piece.len() == left {
            long.end(self.turns.end_part());
        }
        self.accepted = piece.len();
        Ok(true)
    }

    /// Makes a compressed packet of the front of `bytes`.
    fn pack(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.gather(bytes)? {
            return Ok(());
        }
        let room = if bytes.len() + COMPRESSED_HEADER_BYTES <= SMALL { SMALL } else { LARGE };
        let mut outgoing = self.buffers.borrow(room).ok_or(io::ErrorKind::OutOfMemory)?;
        let free = outgoing.free();
        let payload = free.get_mut(COMPRESSED_HEADER_BYTES..).unwrap_or_default();
        let as_it_is = bytes.get(..payload.len()).unwrap_or(bytes);
        let mut numbered = Vec::new();
        let (content_bytes, deflated, sequence) = if self.turns.is_renumbered(bytes) {
            numbered.extend_from_slice(as_it_is);
            let sequence = self.turns.send(as_it_is, &mut numbered);
            (as_it_is.len(), deflate(self.algorithm, &numbered, payload), sequence)
        } else {
            let piece = bytes.get(..LARGE).unwrap_or(bytes);
            let deflated = deflate(self.algorithm, piece, payload);
            let piece = if deflated.is_some() { piece } else { as_it_is };
            (piece.len(), deflated, self.turns.send(piece, &mut []))
        };
        if deflated.is_none() {
            let content = if numbered.is_empty() { as_it_is } else { &numbered };
            payload.iter_mut().zip(content).for_each(|(to, from)| *to = *from);
        }
        let header = CompressedHeader {
            payload_bytes: deflated.unwrap_or(content_bytes) as u32,
            sequence,
            content_bytes: if deflated.is_some() { content_bytes as u32 } else { 0 },
        };
        if let Some(place) = free.first_chunk_mut() {
            *place = header.to_bytes();
        }
        outgoing.fill(COMPRESSED_HEADER_BYTES + header.payload_bytes as usize);
        self.outgoing = Some(outgoing);
        self.accepted = content_bytes;
        Ok(())
    }
}

impl Layer for Compressed {
    fn below(&self) -> &Stream {
        &self.below
    }

    fn below_mut(&mut self) -> &mut Stream {
        &mut self.below
    }

    fn has_content(&self) -> bool {
        self.content.is_some() || self.incoming.is_some() || self.unpacker.owes()
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.content.is_some() || self.has_ended {
                return Poll::Ready(Ok(()));
            }
            if let Some(broken) = self.broken {
                return Poll::Ready(Err(broken.into()));
            }
            if std::mem::take(&mut self.is_fresh) && self.unpack()? {
                continue;
            }
            match ready!(self.poll_fill(context))? {
                0 => self.has_ended = true,
                _ => self.is_fresh = true,
            }
        }
    }

    fn take_with(&mut self, most: usize, put: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let Some(content) = &mut self.content else { return Ok(0) };
        let piece = content.filled();
        let piece = piece.get(..most).unwrap_or(piece);
        put(piece);
        let count = piece.len();
        content.consume(count);
        if content.is_empty() {
            self.content = None;
            // Further packets, or more of this one, may follow the content that was used up.
            self.is_fresh = self.incoming.is_some() || self.unpacker.owes();
        }
        Ok(count)
    }

    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_flush(context))?;
            if self.accepted > 0 {
                return Poll::Ready(Ok(std::mem::take(&mut self.accepted)));
            }
            if bytes.is_empty() {
                return Poll::Ready(Ok(0));
            }
            self.pack(bytes)?;
        }
    }

    fn end_part(&mut self) {
        self.turns.end_result();
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(outgoing) = &mut self.outgoing {
            let count = ready!(self.below.poll_send(context, outgoing.filled()))?;
            outgoing.consume(count);
            if outgoing.is_empty() {
                self.outgoing = None;
            }
        }
        while let Some(unsent) = self.long.as_ref().and_then(|long| long.unsent()) {
            let count = ready!(self.below.poll_send(context, unsent))?;
            self.long.take_if(|long| long.sent(count));
        }
        Poll::Ready(Ok(()))
    }
}

/// The invalid compression that caused this error of a connection, if it was that.
pub fn cause(error: &io::Error) -> Option<CompressionError> {
    error.get_ref().and_then(|cause| cause.downcast_ref()).copied()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use weir_io::stream::Sight;

    use super::*;

    /// A client, Weir's end of its connection, and the buffers in use.
    async fn pair() -> (TcpStream, Stream, Rc<Buffers>) {
        pair_of(Algorithm::Zlib).await
    }

    async fn pair_of(algorithm: Algorithm) -> (TcpStream, Stream, Rc<Buffers>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let below = Stream::plain(listener.accept().await.unwrap().0);
        let buffers = Buffers::new(8 << 20);
        (client, compressed(below, algorithm, None, &buffers), buffers)
    }

    #[tokio::test(flavor = "local")]
    async fn what_comes_byte_by_byte_is_given_and_no_buffer_is_held_between_commands() {
        let (mut client, mut stream, buffers) = pair().await;
        for _ in 0..2 {
            for byte in b"\x05\0\0\0\0\0\0\x01\0\0\0\x0e" {
                client.write_all(&[*byte]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut taken = buffers.borrow(SMALL).unwrap();
            while taken.filled().len() < 5 {
                poll_fn(|context| stream.poll_receive(context, &mut taken)).await.unwrap();
            }
            assert_eq!(taken.filled(), b"\x01\0\0\0\x0e");
            drop(taken);
            let sent = poll_fn(|context| stream.poll_send(context, b"\x01\0\0\x01\0")).await;
            assert_eq!(sent.unwrap(), 5);
            let mut answer = [0; 12];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"\x05\0\0\x01\0\0\0\x01\0\0\x01\0");
            let sight = poll_fn(|context| Poll::Ready(stream.poll_present(context))).await;
            assert_eq!((sight.unwrap(), buffers.in_use_bytes()), (Sight::Quiet, 0));
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_a_client_has_said_too_early_waits_and_is_seen() {
        let (mut client, mut stream, buffers) = pair().await;
        let both = b"\x05\0\0\0\0\0\0\x01\0\0\0\x0e\x05\0\0\0\0\0\0\x01\0\0\0\x01";
        client.write_all(both).await.unwrap();
        for (command, sight) in [(0x0e, Sight::Speaking), (0x01, Sight::Quiet)] {
            let mut taken = buffers.borrow(SMALL).unwrap();
            let count = poll_fn(|context| stream.poll_receive(context, &mut taken)).await.unwrap();
            assert_eq!((count, taken.filled()[4]), (5, command), "one command at a time");
            let seen = poll_fn(|context| Poll::Ready(stream.poll_present(context))).await;
            assert_eq!(seen.unwrap(), sight);
        }
    }

    #[tokio::test(flavor = "local")]
    async fn a_packet_lies_in_two_compressed_ones_at_most_however_it_comes() {
        for algorithm in [Algorithm::Zlib, Algorithm::Zstd { level: 3 }] {
            let (mut client, mut stream, buffers) = pair_of(algorithm).await;
            let noise = (0..1_500_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8);
            let mut answer = Vec::new();
            for (sequence, length) in [10, 100_000, 1_400_000, 5, 70_000].into_iter().enumerate() {
                let payload: Vec<u8> = noise.clone().take(length).collect();
                weir_mysql::packet::write_packets(&mut answer, sequence as u8 + 1, &payload);
            }
            let sent = answer.clone();
            let sending = tokio::task::spawn_local(async move {
                for piece in sent.chunks(16_000) {
                    let mut rest = piece;
                    while !rest.is_empty() {
                        let count = poll_fn(|context| stream.poll_send(context, rest)).await.unwrap();
                        rest = &rest[count..];
                    }
                }
            });
            let (mut content, mut starts, mut sequence) = (Vec::new(), Vec::new(), 0);
            while content.len() < answer.len() {
                let mut head = [0; COMPRESSED_HEADER_BYTES];
                client.read_exact(&mut head).await.unwrap();
                let header = CompressedHeader::parse(head);
                assert_eq!(header.sequence, sequence);
                let mut payload = vec![0; header.payload_bytes as usize];
                client.read_exact(&mut payload).await.unwrap();
                starts.push(content.len());
                if header.content_bytes == 0 {
                    content.extend(payload);
                } else {
                    let mut inflated = vec![0; header.content_bytes as usize];
                    codec::inflate(algorithm, &payload, &mut inflated).unwrap();
                    content.extend(inflated);
                }
                sequence += 1;
            }
            sending.await.unwrap();
            assert!(content == answer, "{algorithm:?}");
            let mut at = 0;
            while at < answer.len() {
                let end =
                    at + 4 + u32::from_le_bytes([answer[at], answer[at + 1], answer[at + 2], 0]) as usize;
                let cuts = starts.iter().filter(|start| (at + 1..end).contains(*start)).count();
                assert!(cuts <= 1, "{algorithm:?}: {} bytes are cut {cuts} times", end - at);
                at = end;
            }
            assert_eq!(buffers.in_use_bytes(), 0);
        }
    }
}
