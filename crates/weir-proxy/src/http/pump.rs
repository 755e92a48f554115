//! Moves one body from one connection to another: reads its framing, writes our own, holds at most one
//! buffer.
//!
//! The same for both directions. Back-pressure is the buffer: nothing more is read while it has not been
//! sent.

mod holding;
mod twin;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;
use weir_http::forward::is_digest;
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

/// A body of known length of which at least this much is still to come goes through a pipe with `splice(2)`:
/// nothing is copied.
const BULKY_BYTES: u64 = 256 << 10;
/// Most bytes moved before others get their turn.
const TURN_BYTES: u64 = 1 << 20;

/// One body on its way.
pub struct Pump {
    reader: BodyReader,
    framer: Framer,
    /// Bytes received and not yet sent: first `content` bytes of content, then what was not looked at yet.
    buffer: Option<Buffer>,
    content: usize,
    /// What encodes the content on its way, where it does not go as it came: then `content` counts what of
    /// its output is to be sent, and `plain` what it is still to take from the front of `buffer`.
    encoding: Option<Box<Encoding>>,
    plain: usize,
    /// Framing bytes of the source that stand between the content and what was not looked at.
    behind_content: usize,
    /// Content on its way inside the kernel; `None` while there is none.
    pipe: Option<Pipe>,
    /// Small pieces in a row, while splicing. At [`SMALL_PIECES`] the rest is copied.
    small_pieces: u32,
    /// Content bytes taken from the source so far.
    pub received: u64,
    /// Bytes sent by [`Self::poll`], framing included.
    pub streamed: u64,
    /// Most content bytes allowed.
    limit: u64,
    /// What [`Self::poll_hold`] moved, without framing, for whoever looks at it.
    copy: Option<Vec<u8>>,
    /// Content bytes that it moved.
    held: u64,
    /// Names that its trailers lose.
    pub(super) dropped: Option<Arc<DroppedNames>>,
    /// The content, for somebody else besides.
    aside: Option<Box<Aside>>,
}

/// Why a body did not get across.
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
    /// What was put into a file can't be read back.
    Lost,
}

impl PumpError {
    /// Nothing more can be received. A stream whose message is malformed says in which way.
    fn of_source(error: io::Error) -> PumpError {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>()) {
            Some(violation) => PumpError::Malformed(*violation),
            None => PumpError::SourceClosed,
        }
    }
}

impl Pump {
    /// A body read by `reader`. `rest` is what was received behind the head already.
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

    /// The same body, whose trailers lose these names: what a head loses must not come behind the body.
    pub fn dropping(mut self, names: Option<Arc<DroppedNames>>) -> Pump {
        self.dropped = names;
        self
    }

    /// How the sink is told where the body ends.
    pub fn framing(&self) -> Framing {
        self.framer.kind()
    }

    /// What stands behind the body, and goes on.
    fn trailers(&self) -> impl Iterator<Item = Field<'_>> {
        trailers(&self.reader, self.dropped.as_deref(), self.encoding.is_some())
    }

    /// The same body, of which at most `most` bytes are put aside for somebody else; 0: none.
    pub fn putting_aside(mut self, most: usize, buffers: &Rc<Buffers>) -> Pump {
        self.aside = (most > 0).then(|| Box::new(Aside::new(most, buffers)));
        self
    }

    /// All of the content, where it was to be put aside and has come.
    pub fn take_aside(&mut self) -> Result<AsideContent, AsideLost> {
        let is_received = self.is_received();
        match self.aside.take_if(|_| is_received) {
            Some(aside) => aside.content(),
            None => Err(AsideLost::Length),
        }
    }

    /// Has what leaves with the head kept, to be looked at before.
    pub fn keep_copy(&mut self) {
        self.copy = Some(Vec::new());
    }

    /// What was kept; no more is.
    pub fn take_copy(&mut self) -> Vec<u8> {
        self.copy.take().unwrap_or_default()
    }

    /// Whether all of it was received.
    pub fn is_received(&self) -> bool {
        self.reader.is_complete() && self.content == 0
    }

    /// Has the body sent as `encoding` makes it; `None`: as it comes.
    pub fn set_encoding(&mut self, encoding: Option<Box<Encoding>>) {
        self.encoding = encoding;
    }

    /// Counts what was encoded on the way, if anything was.
    pub fn count_encoded(&self, cells: &ListenerCells) {
        if let Some(encoding) = &self.encoding {
            encoding.count(cells);
        }
    }

    /// Whether nothing will follow what is there to be sent.
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

    /// Whether the source has said how much there is, and not sent all of it.
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

    /// Moves what has been received already, framed, behind the head in `out`: it then leaves with the head
    /// in one send.
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

    /// Moves bytes until neither side can go on. `moved` is set when anything moved at all.
    ///
    /// `Ready(Ok)` once the body is over and sent. What was received behind it stays in [`Self::into_rest`].
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
                // Only between bare sockets is there ever a pipe.
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
            // A body that ended together with its last content still has its end to be framed.
            if self.buffer.is_none() && !self.reader.is_complete() {
                let filled = match (self.bulk(sink, buffers), source.bare()) {
                    (Some(pipe), Some(source)) => self.poll_splice(context, source, pipe),
                    _ => self.poll_fill(context, source, buffers),
                };
                // What has come must not wait in an encoder for what has not: it may be an event, or half a
                // page.
                if filled.is_pending() && self.flush()? {
                    continue;
                }
                ready!(filled)?;
                *moved |= self.buffer.is_some() || self.pipe.is_some();
            }
        }
    }

    /// Tells a sink whose stream's end is that of the body of it, once all content was sent.
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

    /// An empty pipe for no more than belongs to the body, when what is to come is better spliced.
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

    /// Moves what has arrived into `pipe`. The limit needs no look: a body of known length was held against
    /// it before.
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

    /// The source has said that nothing more comes. On a multiplexed stream that is the end of the body,
    /// which may be one too early.
    pub fn end_source(&mut self, source: &mut Stream) -> Result<(), PumpError> {
        let ended = self.reader.end_stream(source.take_trailers());
        ended.map_err(|violation| match source.is_muxed() {
            true => PumpError::Malformed(violation),
            false => PumpError::SourceClosed,
        })
    }

    /// Makes ready for another sink, which gets no end yet.
    pub fn begin_again(&mut self) {
        self.framer.begin_again();
    }

    /// What it has moved until now has gone to where it waits for another sink, which gets no end yet.
    pub fn begin_behind(&mut self) {
        self.framer.begin_again();
        self.streamed = 0;
    }

    /// Makes ready for a sink that is told otherwise where the body ends. `held` is the content that was
    /// moved without framing; it goes, framed, behind what is in `out`. Behind it go `filed` bytes of content
    /// from elsewhere. Nothing else has left. Gives what goes behind those, where there are any.
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

    /// Reads the framing of what was received until there is content to send or nothing is left to look at.
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

    /// The length of the next run of content, now at the front of the buffer; `None` when nothing is left to
    /// look at.
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

    /// Encodes what was received until there is a piece to send, nothing is left, or others must get their
    /// turn.
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

    /// Has an encoder give out what it holds back; false when there is nothing.
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

    /// As [`Self::step_over`], for content that an encoder took.
    fn step_over_plain(&mut self, count: usize) {
        let is_over = self.plain == 0;
        self.leave_behind(count, is_over);
    }

    /// Gives up `count` bytes of content, and the source's framing behind them once the run is over.
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

    /// What was received behind the body, and proof that the body is over; `None` when it is not.
    pub fn into_rest(self) -> (Option<Buffer>, Option<Drained>) {
        let done = self.is_done();
        (self.buffer, if done { self.reader.drained() } else { None })
    }
}

/// The trailers that go on: without those that are `dropped`, and without digests of content that other
/// bytes stand for.
fn trailers<'a>(
    reader: &'a BodyReader,
    dropped: Option<&'a DroppedNames>,
    is_encoded: bool,
) -> impl Iterator<Item = Field<'a>> {
    let goes = move |field: &Field<'a>| {
        dropped.is_none_or(|names| !names.drops(field.name)) && !(is_encoded && is_digest(field.name))
    };
    reader.trailers().filter(goes)
}

/// What is to be sent next, where `content` bytes are.
fn outgoing<'a>(encoding: &'a Option<Box<Encoding>>, buffer: &'a Option<Buffer>, content: usize) -> &'a [u8] {
    match (encoding, buffer) {
        (Some(encoding), _) => &encoding.encoded()[..content],
        (None, Some(buffer)) => &buffer.filled()[..content],
        (None, None) => &[],
    }
}

#[cfg(test)]
mod tests;
