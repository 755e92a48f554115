//! Where a body goes (to a client, to a backend, or into memory), and how it is told where the body ends.

use std::io;
use std::task::{Context, Poll};

use tokio::net::TcpStream;
use weir_http::h1::chunked::{write_chunk_end, write_chunk_head, write_last_chunk};
use weir_http::{BodyLength, Field};
use weir_io::stream::Duplex as _;

use crate::http::stream::Stream;

/// What stands behind a chunk's content.
const CHUNK_END: &[u8] = b"\r\n";

/// What takes a body.
pub trait Sink {
    /// Takes as much as there is room for now, at least one byte when ready; gives how much.
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>>;

    /// The body is over, with `trailers` behind it where there are any; memory that keeps the content alone
    /// has nothing to do then.
    fn poll_end<'a>(
        &mut self,
        _context: &mut Context<'_>,
        _trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The socket, where what it is given goes out as it is; `None` for memory, and where it is framed.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// Content, and the framing around it where a sink is told so where the body ends.
pub struct Parts<'a> {
    pub before: &'a [u8],
    pub content: &'a [u8],
    pub behind: &'a [u8],
    /// Whether nothing but the end follows: where the content goes in one piece, the end of a stream goes
    /// with it.
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

/// How the sink is told where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Its length was announced, or closing ends it.
    Plain,
    /// We frame it in chunks.
    Chunked,
    /// The end of the sink's stream is that of the body.
    Stream,
}

impl Framing {
    /// What a body of `length`, as it was announced to it, needs on `sink`.
    pub fn on(sink_is_muxed: bool, length: BodyLength) -> Framing {
        match length {
            _ if sink_is_muxed => Framing::Stream,
            BodyLength::Chunked => Framing::Chunked,
            _ => Framing::Plain,
        }
    }
}

/// Frames content, and knows how much of the framing was taken.
#[derive(Clone)]
pub struct Framer {
    kind: Framing,
    /// What goes out before the next content.
    before: Vec<u8>,
    taken: usize,
    /// Whether the content is a chunk of ours, whose end goes out with it: a reader that waits for whole
    /// chunks (of server-sent events, say) must not be kept waiting for the next one.
    is_chunk_open: bool,
    is_ended: bool,
}

impl Framer {
    /// For a body of which nothing was taken yet. `head` goes before it.
    pub fn new(kind: Framing, head: Vec<u8>) -> Framer {
        Framer { kind, before: head, taken: 0, is_chunk_open: false, is_ended: false }
    }

    /// How the sink is told where the body ends.
    #[inline]
    pub fn kind(&self) -> Framing {
        self.kind
    }

    /// Whether all that was framed has been taken, but for content.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.taken == self.before.len()
    }

    /// Whether the sink needs no more telling once the content is over.
    #[inline]
    pub fn is_told(&self) -> bool {
        self.kind == Framing::Plain || self.is_ended
    }

    /// Frames the next `bytes` of content; not before those before them were taken.
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

    /// The end of the sink's stream was told.
    pub fn ended(&mut self) {
        self.is_ended = true;
    }

    /// Makes ready for another sink, which gets no end yet.
    pub fn begin_again(&mut self) {
        if self.kind == Framing::Stream {
            self.is_ended = false;
        }
    }

    /// `content`, which is all that is left of what was begun, in its framing.
    #[inline]
    pub fn parts<'a>(&'a self, content: &'a [u8], is_last: bool) -> Parts<'a> {
        let behind: &[u8] = if self.is_chunk_open { CHUNK_END } else { b"" };
        Parts { before: &self.before[self.taken..], content, behind, is_last }
    }

    /// Notes that a sink took `taken` bytes of [`Self::parts`], with `content` bytes of content in them;
    /// gives how many of those it took.
    #[inline]
    pub fn took(&mut self, taken: usize, content: usize) -> usize {
        let of_framing = taken.min(self.before.len() - self.taken);
        let of_content = (taken - of_framing).min(content);
        let of_end = taken - of_framing - of_content;
        self.taken += of_framing;
        if self.is_chunk_open && of_content == content {
            // Whatever did not fit of the end goes before what comes next.
            self.is_chunk_open = false;
            self.make_room();
            self.before.extend_from_slice(&CHUNK_END[of_end..]);
        }
        of_content
    }

    /// Puts what was framed into `out`, and the front of the content behind it, which ends there where
    /// `is_whole`.
    pub fn put(&mut self, out: &mut Vec<u8>, content: &[u8], is_whole: bool) {
        out.append(&mut self.before);
        out.extend_from_slice(content);
        if is_whole && std::mem::take(&mut self.is_chunk_open) {
            write_chunk_end(out);
        }
    }

    /// Gives the room that framing was written in back, empty.
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
