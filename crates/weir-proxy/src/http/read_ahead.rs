//! The part of a response that has come from its backend but has not gone to its client yet: read from the
//! backend at its speed, within a limit, and sent to the client at the client's speed.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use weir_http::Field;
use weir_io::buffers::{Buffer, Buffers, LARGE};
use weir_io::temporary::{TemporaryFile, TemporaryFiles};

use crate::http::cache::around::Trailer;
use crate::http::pump::{Pump, PumpError};
use crate::http::sink::{Parts, Sink};
use crate::http::stream::Stream;

/// A response in transit, in memory and, after that, in a file.
pub struct ReadAhead {
    /// Framed for the client. The last one stays even if it is empty, so that there always is one.
    pieces: VecDeque<Buffer>,
    /// Bytes in the pieces.
    held: u64,
    /// Most bytes in the pieces.
    most: u64,
    buffers: Rc<Buffers>,
    /// Where a file may be made, and of how many bytes; `None` once there is one.
    files: Option<(Arc<TemporaryFiles>, u64)>,
    /// Holds what came when memory was full, and everything after that until the client has got it.
    file: Option<Box<TemporaryFile>>,
    /// The trailers, once the client's stream may be ended; `None` before.
    end: Option<Vec<Trailer>>,
    /// Whether the client's stream was ended.
    is_told: bool,
    /// Whether memory was short for the last bytes: there is room again once the client has got what is held.
    is_short: bool,
}

/// Which side has moved.
#[derive(Default)]
pub struct AheadMoved {
    /// More has come from the backend.
    pub came: bool,
    /// The client has taken some.
    pub went: bool,
}

impl ReadAhead {
    /// A buffer for `most` bytes; `None` if there is no memory for any.
    pub fn new(most: u64, buffers: &Rc<Buffers>) -> Option<ReadAhead> {
        let first = buffers.borrow(LARGE)?;
        let pieces = VecDeque::from([first]);
        let buffers = buffers.clone();
        let (files, file, end) = (None, None, None);
        let (is_told, is_short) = (false, false);
        Some(ReadAhead { pieces, held: 0, most, buffers, files, file, end, is_told, is_short })
    }

    /// Adds room for `most` more bytes in a file; with 0, none.
    pub fn before_file(mut self, files: Option<&Arc<TemporaryFiles>>, most: u64) -> ReadAhead {
        self.files = files.filter(|_| most > 0).map(|files| (files.clone(), most));
        self
    }

    /// Whether the client has got all that has come.
    pub fn is_drained(&self) -> bool {
        self.held_bytes() == 0 && (self.end.is_none() || self.is_told)
    }

    /// Bytes that the client has not got yet.
    pub fn held_bytes(&self) -> u64 {
        self.held + self.filed_bytes()
    }

    /// Those of them that are in the file.
    fn filed_bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.unread())
    }

    /// Whether nothing more can be sent to the client until the disk has done something.
    pub fn awaits_disk(&self) -> bool {
        self.held == 0 && self.file.as_ref().is_some_and(|file| file.awaits_disk())
    }

    /// Moves what can be moved on both sides; `Ready(Ok)` once the whole response has come, however much of
    /// it the client has got. Says which side has moved.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        source: &mut Stream,
        client: &mut Stream,
        download: &mut Pump,
        moved: &mut AheadMoved,
    ) -> Poll<Result<(), PumpError>> {
        loop {
            let buffers = self.buffers.clone();
            self.is_short = false;
            let filled = download.poll(context, source, self, &buffers, &mut moved.came);
            let was_full = !self.has_room() || self.is_short;
            if let Poll::Ready(Err(error)) = self.poll_drain(context, client, &mut moved.went) {
                return Poll::Ready(Err(error));
            }
            // The last piece can always be filled again; until then the client is waited for.
            let has_room = self.has_room() && (!self.is_short || self.held == 0);
            if filled.is_ready() || !was_full || !has_room {
                return filled;
            }
        }
    }

    /// Sends the client what it takes; `Ready(Ok)` once it has got everything.
    pub fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        while self.held > 0 {
            let is_last = self.is_last_told() && self.pieces.len() == 1 && self.filed_bytes() == 0;
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
        ready!(self.poll_drain_file(context, client, moved))?;
        if let Some(trailers) = self.end.as_ref().filter(|_| !self.is_told) {
            ready!(client.poll_end(context, trailers.iter().map(Trailer::field)))
                .map_err(|_| PumpError::SinkClosed)?;
            self.is_told = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the client what it takes from the file.
    fn poll_drain_file(
        &mut self,
        context: &mut Context<'_>,
        client: &mut Stream,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        let is_last_told = self.is_last_told();
        let Some(file) = &mut self.file else { return Poll::Ready(Ok(())) };
        loop {
            let unread = file.unread();
            if unread == 0 {
                return Poll::Ready(Ok(()));
            }
            let content = ready!(file.poll_next(context)).map_err(|_| PumpError::Lost)?;
            let is_last = is_last_told && content.len() as u64 == unread;
            let parts = Parts { before: b"", content, behind: b"", is_last };
            let sent = ready!(client.poll_take(context, &parts)).map_err(|_| PumpError::SinkClosed)?;
            if sent == 0 {
                return Poll::Ready(Err(PumpError::SinkClosed));
            }
            *moved = true;
            file.consume(sent);
        }
    }

    /// Whether the end has come, without trailers.
    fn is_last_told(&self) -> bool {
        self.end.as_ref().is_some_and(Vec::is_empty)
    }

    fn has_room(&self) -> bool {
        let in_file = match &self.file {
            Some(file) => file.has_room(),
            None => self.files.is_some(),
        };
        in_file || self.filed_bytes() == 0 && self.held < self.most
    }

    /// Takes some of `bytes`; 0 if there is no room now.
    fn take_some(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> usize {
        if self.filed_bytes() == 0 {
            let count = self.take_in_memory(bytes);
            if count > 0 {
                return count;
            }
            if let Some(file) = &mut self.file {
                file.restart();
            }
        }
        if let Some((files, most)) = self.files.take() {
            self.file = TemporaryFile::begin(&files, most, &self.buffers).map(Box::new);
        }
        let Some(file) = &mut self.file else { return 0 };
        // If it waits for the disk, the disk wakes it.
        self.is_short = false;
        match file.poll_put(context, bytes) {
            Poll::Ready(count) => count,
            Poll::Pending => 0,
        }
    }

    fn take_in_memory(&mut self, bytes: &[u8]) -> usize {
        let room = self.most.saturating_sub(self.held) as usize;
        if room == 0 {
            return 0;
        }
        let Some(last) = self.last() else {
            self.is_short = true;
            return 0;
        };
        if last.free().is_empty() {
            last.compact();
        }
        let count = bytes.len().min(room).min(last.free().len());
        last.append(&bytes[..count]);
        self.held += count as u64;
        count
    }

    /// The piece to be filled; `None` if memory is short.
    fn last(&mut self) -> Option<&mut Buffer> {
        if self.pieces.back().is_none_or(Buffer::is_full) {
            self.pieces.push_back(self.buffers.borrow(LARGE)?);
        }
        self.pieces.back_mut()
    }
}

impl Sink for ReadAhead {
    /// If there is no room, the next poll after the client has taken something tries again.
    fn poll_take(&mut self, context: &mut Context<'_>, parts: &Parts<'_>) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        for part in [parts.before, parts.content, parts.behind] {
            let mut rest = part;
            while !rest.is_empty() {
                let count = self.take_some(context, rest);
                if count == 0 {
                    return if taken > 0 { Poll::Ready(Ok(taken)) } else { Poll::Pending };
                }
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
}
