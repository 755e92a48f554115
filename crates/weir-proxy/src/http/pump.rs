//! Moves one body from one connection to another: parses its framing, writes our own, holds at most one
//! buffer.
//!
//! It works the same for both directions. The buffer provides back-pressure: nothing more is read while it
//! has not been sent.

mod holding;
mod twin;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;
use weir_http::forward::is_of_bytes;
use weir_http::h1::connection::Drained;
use weir_http::{BodyReader, DroppedNames, Field, Violation};
use weir_io::buffers::{Buffer, Buffers, LARGE};
use weir_io::pipes::{Pipe, SMALL_PIECE, SMALL_PIECES};
use weir_io::socket::poll_call;
use weir_io::stream::Duplex as _;
use weir_io::wait::give_way;
use weir_stats::table::ListenerCells;

use crate::http::aside::{Aside, AsideContent, AsideLost};
use crate::http::compress::Encoding;
use crate::http::sink::{Framer, Framing, Sink};
use crate::http::stream::Stream;

/// A body of known length with at least this much still to come is moved through a pipe with `splice(2)`,
/// without copying.
const BULKY_BYTES: u64 = 256 << 10;
/// Most bytes moved before other tasks get their turn.
const TURN_BYTES: u64 = 1 << 20;

/// One body in transit.
pub struct Pump {
    reader: BodyReader,
    framer: Framer,
    /// Bytes received and not yet sent: first `content` bytes of content, then bytes that are not parsed yet.
    buffer: Option<Buffer>,
    content: usize,
    /// Encodes the content on its way, unless it is forwarded unchanged. Then `content` counts the output
    /// that is still to be sent, and `plain` the bytes at the front of `buffer` that are still to be encoded.
    encoding: Option<Box<Encoding>>,
    plain: usize,
    /// Framing bytes of the source between the content and the bytes that are not parsed yet.
    behind_content: usize,
    /// Content that is in the kernel's pipe; `None` if there is none.
    pipe: Option<Pipe>,
    /// Small pieces in a row while splicing. At [`SMALL_PIECES`] the rest is copied.
    small_pieces: u32,
    /// Content bytes taken from the source so far.
    pub received: u64,
    /// Bytes sent by [`Self::poll`], framing included.
    pub streamed: u64,
    /// Most content bytes allowed.
    limit: u64,
    /// The content that [`Self::poll_hold`] moved, without framing, to be inspected.
    copy: Option<Vec<u8>>,
    /// Content bytes that [`Self::poll_hold`] moved.
    held: u64,
    /// Names that are dropped from its trailers.
    pub(super) dropped: Option<Arc<DroppedNames>>,
    /// Sets a copy of the content aside.
    aside: Option<Box<Aside>>,
}

/// Why a body could not be moved.
#[derive(Debug)]
pub enum PumpError {
    /// The source's connection broke, or ended before the body did.
    SourceClosed,
    /// The source's framing is wrong.
    Malformed(Violation),
    /// The sink's connection broke.
    SinkClosed,
    /// More content than `body_limit` allows.
    TooLarge,
    /// No buffer could be had within the memory budget.
    OutOfMemory,
    /// Content that was put into a file can't be read back.
    Lost,
}

impl PumpError {
    /// The error for a source that gives nothing more. A stream with a malformed message says what is wrong.
    fn of_source(error: io::Error) -> PumpError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>()) {
            Some(violation) => PumpError::Malformed(*violation),
            None => PumpError::SourceClosed,
        }
    }
}

impl Pump {
    /// A body that `reader` parses. `rest` was received after the head.
    pub fn new(reader: BodyReader, framing: Framing, rest: Option<Buffer>, limit: Option<u64>) -> Pump {
        Pump {
            reader,
            framer: Framer::new(framing, Vec::new()),
            buffer: rest.filter(|buffer| !buffer.is_empty()),
            content: 0,
            encoding: None,
            plain: 0,
            behind_content: 0,
            pipe: None,
            small_pieces: 0,
            received: 0,
            streamed: 0,
            limit: limit.unwrap_or(u64::MAX),
            copy: None,
            held: 0,
            dropped: None,
            aside: None,
        }
    }

    /// Drops these names from the trailers: fields that are removed from a head must not come back as
    /// trailers.
    pub fn dropping(mut self, names: Option<Arc<DroppedNames>>) -> Pump {
        self.dropped = names;
        self
    }

    /// How the sink learns where the body ends.
    pub fn framing(&self) -> Framing {
        self.framer.kind()
    }

    /// The trailers that are forwarded.
    fn trailers(&self) -> impl Iterator<Item = Field<'_>> {
        trailers(&self.reader, self.dropped.as_deref(), self.encoding.is_some())
    }

    /// Sets aside a copy of at most `most` bytes of the body; with 0, none.
    pub fn putting_aside(mut self, most: usize, buffers: &Rc<Buffers>) -> Pump {
        self.aside = (most > 0).then(|| Box::new(Aside::new(most, buffers)));
        self
    }

    /// The whole content, if it was set aside and is complete.
    pub fn take_aside(&mut self) -> Result<AsideContent, AsideLost> {
        let is_received = self.is_received();
        match self.aside.take_if(|_| is_received) {
            Some(aside) => aside.content(),
            None => Err(AsideLost::Length),
        }
    }

    /// Keeps a copy of the content that is sent with the head, to be inspected before.
    pub fn keep_copy(&mut self) {
        self.copy = Some(Vec::new());
    }

    /// The kept copy; no more is kept after this.
    pub fn take_copy(&mut self) -> Vec<u8> {
        self.copy.take().unwrap_or_default()
    }

    /// Whether all of it was received.
    pub fn is_received(&self) -> bool {
        self.reader.is_complete() && self.content == 0
    }

    /// Makes the body be encoded by `encoding`; `None` forwards it unchanged.
    pub fn set_encoding(&mut self, encoding: Option<Box<Encoding>>) {
        self.encoding = encoding;
    }

    /// Counts the encoding, if there is one.
    pub fn count_encoded(&self, cells: &ListenerCells) {
        if let Some(encoding) = &self.encoding {
            encoding.count(cells);
        }
    }

    /// Whether nothing follows the bytes that are there to be sent.
    #[inline]
    fn is_at_end(&self) -> bool {
        self.reader.is_complete() && self.encoding.as_ref().is_none_or(|encoding| encoding.is_finished())
    }

    /// Whether all of it was received and everything was handed to the kernel.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.is_at_end()
            && self.content == 0
            && self.pipe.is_none()
            && self.framer.is_clear()
            && self.framer.is_told()
    }

    /// Whether the source has announced a length, and not sent all of it.
    pub fn is_owed(&self) -> bool {
        self.reader.remaining().is_some_and(|left| left > 0)
    }

    /// Whether it can only go on once the source sends more.
    pub fn waits_for_source(&self) -> bool {
        self.content == 0
            && self.plain == 0
            && self.pipe.is_none()
            && self.framer.is_clear()
            && !self.reader.is_complete()
    }

    /// Moves the body bytes that were received already, framed, to the end of `out`, where the head is, so
    /// that they are sent together with it.
    ///
    /// At most `room` bytes of content are moved.
    pub fn take_received(&mut self, out: &mut Vec<u8>, room: usize) -> Result<(), PumpError> {
        loop {
            self.frame_next()?;
            if self.content > room.saturating_sub(out.len()) {
                return Ok(());
            }
            if self.framer.is_clear() && self.content == 0 {
                return Ok(());
            }
            let content = outgoing(&self.encoding, &self.buffer, self.content);
            self.framer.put(out, content, true);
            self.content_sent(self.content);
        }
    }

    /// Moves bytes until neither side can go on. `moved` is set if anything moved.
    ///
    /// `Ready(Ok)` once the body is complete and sent. Bytes received after it are left for
    /// [`Self::into_rest`].
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut impl Sink,
        buffers: &Rc<Buffers>,
        moved: &mut bool,
    ) -> Poll<Result<(), PumpError>> {
        let enough = self.streamed + TURN_BYTES;
        if let Some(encoding) = &mut self.encoding {
            encoding.begin_turn();
        }
        loop {
            self.frame_next()?;
            while !self.framer.is_clear() || self.content > 0 {
                let Poll::Ready(sent) = self.poll_send(context, sink) else {
                    source.gather(context);
                    return Poll::Pending;
                };
                sent.map_err(|_| PumpError::SinkClosed)?;
                *moved = true;
            }
            while let Some(pipe) = &mut self.pipe {
                // Only bare sockets ever use a pipe.
                let socket = sink.socket().ok_or(PumpError::SinkClosed)?;
                let drained = poll_call(socket, Interest::WRITABLE, context, |socket| pipe.drain(socket));
                self.streamed += ready!(drained).map_err(|_| PumpError::SinkClosed)? as u64;
                *moved = true;
                if pipe.held() == 0 {
                    self.pipe = None;
                }
            }
            ready!(self.poll_tell_end(context, sink))?;
            if self.is_done() {
                return Poll::Ready(Ok(()));
            }
            let tired = self.encoding.as_ref().is_some_and(|encoding| encoding.is_out_of_turn());
            if self.streamed >= enough || tired {
                *moved |= tired;
                give_way(context);
                return Poll::Pending;
            }
            // If the body ended together with its last content, its end must still be framed.
            if self.buffer.is_none() && !self.reader.is_complete() {
                let filled = match (self.bulk(sink, buffers), source.bare()) {
                    (Some(pipe), Some(source)) => self.poll_splice(context, source, pipe),
                    _ => self.poll_fill(context, source, buffers),
                };
                // Content that has arrived must not wait in an encoder for more: it may be an event, or half
                // a page.
                if filled.is_pending() && self.flush()? {
                    continue;
                }
                ready!(filled)?;
                *moved |= self.buffer.is_some() || self.pipe.is_some();
            }
        }
    }

    /// Once all content was sent, ends the stream of a sink for which that is the end of the body.
    pub fn poll_tell_end(
        &mut self,
        context: &mut Context<'_>,
        sink: &mut impl Sink,
    ) -> Poll<Result<(), PumpError>> {
        let is_due = self.framer.kind() == Framing::Stream && self.is_at_end() && self.content == 0;
        if is_due && !self.framer.is_told() {
            ready!(sink.poll_end(context, self.trailers())).map_err(|_| PumpError::SinkClosed)?;
            self.framer.ended();
        }
        Poll::Ready(Ok(()))
    }

    /// A pipe for at most the rest of the body, if that is better spliced.
    fn bulk(&mut self, sink: &impl Sink, buffers: &Rc<Buffers>) -> Option<Pipe> {
        let most = self.reader.remaining().filter(|remaining| *remaining >= BULKY_BYTES)?;
        if self.encoding.is_some() || self.aside.is_some() {
            return None;
        }
        if self.framer.kind() != Framing::Plain
            || self.small_pieces >= SMALL_PIECES
            || sink.socket().is_none()
        {
            return None;
        }
        Pipe::borrow(buffers, most)
    }

    /// Moves what has arrived into `pipe`. The limit need not be checked here: a body of known length was
    /// checked before.
    fn poll_splice(
        &mut self,
        context: &mut Context<'_>,
        source: &TcpStream,
        mut pipe: Pipe,
    ) -> Poll<Result<(), PumpError>> {
        let filled = poll_call(source, Interest::READABLE, context, |source| pipe.fill(source));
        let count = ready!(filled).map_err(|_| PumpError::SourceClosed)?;
        if count == 0 {
            return Poll::Ready(Err(PumpError::SourceClosed));
        }
        self.reader.receive(count as u64).map_err(PumpError::Malformed)?;
        self.received += count as u64;
        self.small_pieces = if count < SMALL_PIECE { self.small_pieces + 1 } else { 0 };
        self.pipe = Some(pipe);
        Poll::Ready(Ok(()))
    }

    /// Receives into a fresh buffer; one is borrowed only once there is something to receive.
    fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        source: &mut Stream,
        buffers: &Rc<Buffers>,
    ) -> Poll<Result<(), PumpError>> {
        ready!(source.poll_readable(context)).map_err(PumpError::of_source)?;
        let mut buffer = buffers.borrow(LARGE).ok_or(PumpError::OutOfMemory)?;
        match ready!(source.receive_ready(context, &mut buffer)) {
            Ok(0) => Poll::Ready(self.end_source(source)),
            Ok(_) => {
                self.buffer = Some(buffer);
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(PumpError::of_source(error))),
        }
    }

    /// Handles the end of the source. On a multiplexed stream that ends the body, perhaps too early.
    pub fn end_source(&mut self, source: &mut Stream) -> Result<(), PumpError> {
        let ended = self.reader.end_stream(source.take_trailers());
        ended.map_err(|violation| match source.is_muxed() {
            true => PumpError::Malformed(violation),
            false => PumpError::SourceClosed,
        })
    }

    /// Prepares for another sink, which has got no end yet.
    pub fn begin_again(&mut self) {
        self.framer.begin_again();
    }

    /// Prepares for another sink, which gets no end yet: what was moved until now waits (in a file) to be
    /// sent to it.
    pub fn begin_behind(&mut self) {
        self.framer.begin_again();
        self.streamed = 0;
    }

    /// Prepares for a sink with another framing. `held` is the content that was moved without framing; it is
    /// appended to `out` in that framing. After it come `filed` bytes of content from elsewhere. Nothing else
    /// has been sent. Gives the bytes that go after those, if there are any.
    pub fn frame_anew(&mut self, framing: Framing, held: &[u8], filed: u64, out: &mut Vec<u8>) -> Vec<u8> {
        self.framer = Framer::new(framing, Vec::new());
        if !held.is_empty() {
            self.framer.begin(held.len());
            self.framer.put(out, held, true);
        }
        let mut behind = Vec::new();
        if filed > 0 {
            self.framer.begin(usize::try_from(filed).unwrap_or(usize::MAX));
            self.framer.put(out, b"", false);
            self.framer.put(&mut behind, b"", true);
        }
        if self.content > 0 {
            self.framer.begin(self.content);
        } else if self.is_at_end() {
            self.framer.end(trailers(&self.reader, self.dropped.as_deref(), self.encoding.is_some()));
            self.framer.put(if filed > 0 { &mut behind } else { out }, b"", false);
        }
        behind
    }

    /// Parses the framing of received bytes until there is content to send or nothing is left to parse.
    fn frame_next(&mut self) -> Result<(), PumpError> {
        if self.encoding.is_some() {
            self.encode_next()?;
        } else {
            while self.content == 0 && !self.reader.is_complete() {
                let Some(run) = self.next_run()? else { return Ok(()) };
                self.content = run;
                match run {
                    0 => self.step_over(0),
                    _ => self.framer.begin(run),
                }
            }
        }
        if self.content == 0 && self.is_at_end() {
            self.framer.end(trailers(&self.reader, self.dropped.as_deref(), self.encoding.is_some()));
        }
        Ok(())
    }

    /// The length of the next run of content, which is then at the front of the buffer; `None` if nothing is
    /// left to parse.
    fn next_run(&mut self) -> Result<Option<usize>, PumpError> {
        let Some(buffer) = &mut self.buffer else { return Ok(None) };
        let step = self.reader.advance(buffer.filled()).map_err(PumpError::Malformed)?;
        buffer.consume(step.data.start);
        self.behind_content = step.consumed - step.data.end;
        self.received += step.data.len() as u64;
        if self.received > self.limit {
            return Err(PumpError::TooLarge);
        }
        Ok(Some(step.data.len()))
    }

    /// Encodes received content until there is a piece to send, nothing is left, or other tasks should get
    /// their turn.
    fn encode_next(&mut self) -> Result<(), PumpError> {
        while self.content == 0 {
            let Some(encoding) = &mut self.encoding else { return Ok(()) };
            if encoding.has_piece() || encoding.is_finished() && !encoding.encoded().is_empty() {
                self.content = encoding.encoded().len();
                self.framer.begin(self.content);
            } else if encoding.is_finished() || encoding.is_out_of_turn() {
                return Ok(());
            } else if self.plain > 0 {
                let buffer = self.buffer.as_ref().map_or(&[][..], |buffer| &buffer.filled()[..self.plain]);
                let taken = encoding.take(buffer).map_err(|_| PumpError::OutOfMemory)?;
                self.plain -= taken;
                self.step_over_plain(taken);
            } else if self.reader.is_complete() {
                encoding.finish().map_err(|_| PumpError::OutOfMemory)?;
            } else {
                let Some(run) = self.next_run()? else { return Ok(()) };
                self.plain = run;
                if run == 0 {
                    self.step_over_plain(0);
                }
            }
        }
        Ok(())
    }

    /// Makes the encoder put out what it holds back; false if there is nothing.
    fn flush(&mut self) -> Result<bool, PumpError> {
        let Some(encoding) = &mut self.encoding else { return Ok(false) };
        let flushed = encoding.flush().map_err(|_| PumpError::OutOfMemory)?;
        let count = encoding.encoded().len();
        if count > 0 {
            self.content = count;
            self.framer.begin(count);
        }
        Ok(flushed || count > 0)
    }

    fn poll_send(&mut self, context: &mut Context<'_>, sink: &mut impl Sink) -> Poll<io::Result<()>> {
        let content = outgoing(&self.encoding, &self.buffer, self.content);
        let is_last =
            self.framer.kind() == Framing::Stream && self.is_at_end() && self.trailers().next().is_none();
        let sent = ready!(sink.poll_take(context, &self.framer.parts(content, is_last)))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.streamed += sent as u64;
        let of_content = self.framer.took(sent, self.content);
        if of_content > 0 {
            self.content_sent(of_content);
        }
        Poll::Ready(Ok(()))
    }

    /// Counts `count` content bytes as sent.
    fn content_sent(&mut self, count: usize) {
        if let (Some(aside), Some(buffer)) = (&mut self.aside, &self.buffer) {
            aside.put(&buffer.filled()[..count]);
        }
        self.content -= count;
        match &mut self.encoding {
            Some(encoding) => encoding.sent(count),
            None => self.step_over(count),
        }
    }

    /// As [`Self::step_over`], for content that the encoder has taken.
    fn step_over_plain(&mut self, count: usize) {
        let is_over = self.plain == 0;
        self.leave_behind(count, is_over);
    }

    /// Drops `count` bytes of content, and the source's framing after them if the run is over.
    fn step_over(&mut self, count: usize) {
        let is_over = self.content == 0;
        self.leave_behind(count, is_over);
    }

    fn leave_behind(&mut self, count: usize, run_is_over: bool) {
        let behind = if run_is_over { std::mem::take(&mut self.behind_content) } else { 0 };
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(count + behind);
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
    }

    /// The bytes received after the body, and proof that the body is over; `None` if it is not.
    pub fn into_rest(self) -> (Option<Buffer>, Option<Drained>) {
        let done = self.is_done();
        (self.buffer, if done { self.reader.drained() } else { None })
    }
}

/// The trailers that are forwarded: without those that are `dropped`, and if the content was encoded, without
/// those about its bytes.
fn trailers<'a>(
    reader: &'a BodyReader,
    dropped: Option<&'a DroppedNames>,
    is_encoded: bool,
) -> impl Iterator<Item = Field<'a>> {
    let goes = move |field: &Field<'a>| {
        dropped.is_none_or(|names| !names.drops(field.name)) && !(is_encoded && is_of_bytes(field.name))
    };
    reader.trailers().filter(goes)
}

/// The next `content` bytes to send.
fn outgoing<'a>(encoding: &'a Option<Box<Encoding>>, buffer: &'a Option<Buffer>, content: usize) -> &'a [u8] {
    match (encoding, buffer) {
        (Some(encoding), _) => &encoding.encoded()[..content],
        (None, Some(buffer)) => &buffer.filled()[..content],
        (None, None) => &[],
    }
}

#[cfg(test)]
mod tests;
