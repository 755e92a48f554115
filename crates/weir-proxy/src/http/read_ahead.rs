//! What of a response has come from its backend and has not gone to its client yet: taken off the backend at
//! its pace, within a limit, and given to the client at the client's.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::net::TcpStream;
use weir_http::Field;
use weir_io::buffers::{Buffer, Buffers, LARGE};

use crate::http::cache::around::Trailer;
use crate::http::pump::{Pump, PumpError};
use crate::http::sink::{Parts, Sink};
use crate::http::stream::Stream;

/// A response on its way, in memory.
pub struct ReadAhead {
    /// Framed as the client gets it. The last one stays when it is empty, so that there always is one.
    pieces: VecDeque<Buffer>,
    /// Bytes in them.
    held: u64,
    /// Most bytes in them.
    most: u64,
    buffers: Rc<Buffers>,
    /// Trailers, once the end of the client's stream is to be told; `None` before.
    end: Option<Vec<Trailer>>,
    /// Whether the end was told.
    is_told: bool,
}

impl ReadAhead {
    /// Room for `most` bytes; `None` where there is no memory for any.
    pub fn new(most: u64, buffers: &Rc<Buffers>) -> Option<ReadAhead> {
        let first = buffers.borrow(LARGE)?;
        let pieces = VecDeque::from([first]);
        Some(ReadAhead { pieces, held: 0, most, buffers: buffers.clone(), end: None, is_told: false })
    }

    /// Whether the client has all that has come.
    pub fn is_drained(&self) -> bool {
        self.held == 0 && (self.end.is_none() || self.is_told)
    }

    /// Bytes that the client has not got.
    pub fn held_bytes(&self) -> u64 {
        self.held
    }

    /// Moves what can be moved on both sides; `Ready(Ok)` once all of the response has come, wherever the
    /// client is.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        source: &mut Stream,
        client: &mut Stream,
        download: &mut Pump,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        loop {
            let buffers = self.buffers.clone();
            let filled = download.poll(context, source, self, &buffers, moved);
            let was_full = !self.has_room();
            if let Poll::Ready(Err(error)) = self.poll_drain(context, client, moved) {
                return Poll::Ready(Err(error));
            }
            if filled.is_ready() || !was_full || !self.has_room() {
                return filled;
            }
        }
    }

    /// Gives the client what it takes; `Ready(Ok)` once it has all.
    pub fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        while self.held > 0 {
            let is_last = self.end.as_ref().is_some_and(Vec::is_empty) && self.pieces.len() == 1;
            let Some(front) = self.pieces.front_mut() else { break };
            let parts = Parts { before: b"", content: front.filled(), behind: b"", is_last };
            let sent = ready!(client.poll_take(context, &parts)).map_err(|_| PumpError::SinkClosed)?;
            if sent == 0 {
                return Poll::Ready(Err(PumpError::SinkClosed));
            }
            *moved = true;
            front.consume(sent);
            self.held -= sent as u64;
            if front.is_empty() && self.pieces.len() > 1 {
                self.pieces.pop_front();
            }
        }
        if let Some(trailers) = self.end.as_ref().filter(|_| !self.is_told) {
            ready!(client.poll_end(context, trailers.iter().map(Trailer::field)))
                .map_err(|_| PumpError::SinkClosed)?;
            self.is_told = true;
        }
        Poll::Ready(Ok(()))
    }

    fn has_room(&self) -> bool {
        self.held < self.most
    }

    /// The piece that takes more; `None` when memory is short.
    fn last(&mut self) -> Option<&mut Buffer> {
        if self.pieces.back().is_none_or(Buffer::is_full) {
            self.pieces.push_back(self.buffers.borrow(LARGE)?);
        }
        self.pieces.back_mut()
    }
}

impl Sink for ReadAhead {
    /// Where there is no room, whoever gives the client something asks again.
    fn poll_take(&mut self, _: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        for part in [parts.before, parts.content, parts.behind] {
            let mut rest = part;
            while !rest.is_empty() {
                let room = self.most.saturating_sub(self.held) as usize;
                let Some(last) = self.last().filter(|_| room > 0) else {
                    return if taken > 0 { Poll::Ready(Ok(taken)) } else { Poll::Pending };
                };
                if last.free().is_empty() {
                    last.compact();
                }
                let count = rest.len().min(room).min(last.free().len());
                last.append(&rest[..count]);
                self.held += count as u64;
                taken += count;
                rest = &rest[count..];
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_end<'a>(
        &mut self,
        _: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        self.end = Some(trailers.map(|field| Trailer::of(&field)).collect());
        Poll::Ready(Ok(()))
    }

    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
