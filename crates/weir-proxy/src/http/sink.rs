//! Where a body goes (to a client, to a backend, or into memory), and how its end is marked.

use std::io;
use std::task::{Context, Poll};

use tokio::net::TcpStream;
use weir_http::h1::chunked::{write_chunk_end, write_chunk_head, write_last_chunk};
use weir_http::{BodyLength, Field};
use weir_io::stream::Duplex as _;

use crate::http::stream::Stream;

/// Follows a chunk's content.
const CHUNK_END: &[u8] = b"\r\n";

/// Takes a body.
pub trait Sink {
    /// Takes as much as there is room for now, at least one byte when ready; gives how much.
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>>;

    /// Ends the body, with `trailers` if there are any. Memory that only keeps the content has nothing to do.
    fn poll_end<'a>(
        &mut self,
        _context: &mut Context<'_>,
        _trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The socket, if bytes are sent on it unchanged; `None` for memory, and if they are framed.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// Content, and the framing around it if the sink's framing marks the end.
pub struct Parts<'a> {
    pub before: &'a [u8],
    pub content: &'a [u8],
    pub behind: &'a [u8],
    /// Whether only the end follows: if the content is sent in one piece, the end of a stream is sent with
    /// it.
    pub is_last: bool,
}

impl Sink for Stream {
    #[inline]
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        let Parts { before, content, behind, is_last } = *parts;
        if is_last {
            self.poll_send_last(context, content)
        } else if before.is_empty() && behind.is_empty() {
            self.poll_send(context, content)
        } else {
            self.poll_send_parts(context, &[before, content, behind])
        }
    }

    #[inline]
    fn poll_end<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        self.poll_finish(context, trailers)
    }

    #[inline]
    fn socket(&self) -> Option<&TcpStream> {
        self.bare()
    }
}

/// How the sink learns where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By a length in the head, or by closing.
    Plain,
    /// By chunked framing that we write.
    Chunked,
    /// By the end of the sink's stream.
    Stream,
}

impl Framing {
    /// The framing on the sink for a body whose head announced `length`.
    pub fn on(sink_is_muxed: bool, length: BodyLength) -> Framing {
        match length {
            _ if sink_is_muxed => Framing::Stream,
            BodyLength::Chunked => Framing::Chunked,
            _ => Framing::Plain,
        }
    }
}

/// Frames content, and tracks how much of the framing was taken.
#[derive(Clone)]
pub struct Framer {
    kind: Framing,
    /// Bytes that are sent before the next content.
    before: Vec<u8>,
    taken: usize,
    /// Whether the content is a chunk of ours, whose end is sent with it: a reader that waits for whole
    /// chunks (of server-sent events, say) must not have to wait for the next one.
    is_chunk_open: bool,
    is_ended: bool,
}

impl Framer {
    /// For a body of which nothing was taken yet; `head` is sent before it.
    pub fn new(kind: Framing, head: Vec<u8>) -> Framer {
        Framer { kind, before: head, taken: 0, is_chunk_open: false, is_ended: false }
    }

    /// How the sink learns where the body ends.
    #[inline]
    pub fn kind(&self) -> Framing {
        self.kind
    }

    /// Whether all framing has been taken, so that only content may remain.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.taken == self.before.len()
    }

    /// Whether the sink needs no further end mark once the content is over.
    #[inline]
    pub fn is_told(&self) -> bool {
        self.kind == Framing::Plain || self.is_ended
    }

    /// Frames the next `bytes` of content; only after those before them were taken.
    #[inline]
    pub fn begin(&mut self, bytes: usize) {
        if self.kind == Framing::Chunked {
            self.make_room();
            write_chunk_head(&mut self.before, bytes as u64);
            self.is_chunk_open = true;
        }
    }

    /// Frames the end of the content.
    pub fn end<'a>(&mut self, trailers: impl Iterator<Item = Field<'a>>) {
        if self.kind == Framing::Chunked && !self.is_ended {
            self.make_room();
            write_last_chunk(&mut self.before, trailers);
            self.is_ended = true;
        }
    }

    /// Notes that the sink's stream was ended.
    pub fn ended(&mut self) {
        self.is_ended = true;
    }

    /// Prepares for another sink, which has got no end yet.
    pub fn begin_again(&mut self) {
        if self.kind == Framing::Stream {
            self.is_ended = false;
        }
    }

    /// `content`, which must be all that is left of what was begun, with its framing.
    #[inline]
    pub fn parts<'a>(&'a self, content: &'a [u8], is_last: bool) -> Parts<'a> {
        let behind: &[u8] = if self.is_chunk_open { CHUNK_END } else { b"" };
        Parts { before: &self.before[self.taken..], content, behind, is_last }
    }

    /// Notes that a sink took `taken` bytes of [`Self::parts`], which had `content` bytes of content; gives
    /// how many of these it took.
    #[inline]
    pub fn took(&mut self, taken: usize, content: usize) -> usize {
        let of_framing = taken.min(self.before.len() - self.taken);
        let of_content = (taken - of_framing).min(content);
        let of_end = taken - of_framing - of_content;
        self.taken += of_framing;
        if self.is_chunk_open && of_content == content {
            // The part of the chunk's end that was not taken is sent before what comes next.
            self.is_chunk_open = false;
            self.make_room();
            self.before.extend_from_slice(&CHUNK_END[of_end..]);
        }
        of_content
    }

    /// Appends the framing to `out`, and after it the front of the content, which ends there if `is_whole`.
    pub fn put(&mut self, out: &mut Vec<u8>, content: &[u8], is_whole: bool) {
        out.append(&mut self.before);
        out.extend_from_slice(content);
        if is_whole && std::mem::take(&mut self.is_chunk_open) {
            write_chunk_end(out);
        }
    }

    /// Gives back the buffer that framing was written in, emptied.
    pub fn into_room(mut self) -> Vec<u8> {
        self.before.clear();
        self.before
    }

    fn make_room(&mut self) {
        if self.is_clear() {
            self.before.clear();
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_taken_byte_by_byte_is_whole_with_its_framing() {
        let mut framer = Framer::new(Framing::Chunked, b"head:".to_vec());
        let mut taken = Vec::new();
        for content in [&b"abc"[..], b"de"] {
            framer.begin(content.len());
            let mut rest = content;
            while !framer.is_clear() || !rest.is_empty() {
                let parts = framer.parts(rest, false);
                let all = [parts.before, parts.content, parts.behind].concat();
                taken.push(all[0]);
                rest = &rest[framer.took(1, rest.len())..];
            }
        }
        framer.end(std::iter::empty());
        taken.extend_from_slice(framer.parts(b"", false).before);
        assert_eq!(taken, b"head:3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
        assert!(framer.is_told());
    }
}
