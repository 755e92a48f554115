//! Sends content from memory to a client: framed as its head announced, without copying, and given up if the
//! client takes none of it for too long.

use std::future::poll_fn;
use std::io::IoSlice;
use std::ops::Range;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use weir_cache::Body;
use weir_http::Field;
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::wait::send_all;
use weir_io::wait::{WaitError, timed_out};

use crate::http::reply;
use crate::http::session::Session;
use crate::http::sink::{Framer, Framing, Sink as _};

/// Most buffers that one send gathers from.
const GATHERED: usize = 8;

/// The content of one response.
pub struct Sending<'a> {
    session: &'a mut Session,
    framer: Framer,
    /// How long the client may take none of it.
    patience: Duration,
}

impl Sending<'_> {
    /// Nothing has been sent yet; `head` is sent with the first content.
    pub fn new(session: &mut Session, framing: Framing, head: Vec<u8>, patience: Duration) -> Sending<'_> {
        Sending { session, framer: Framer::new(framing, head), patience }
    }

    /// The client's session, between two pieces.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Sends what waits for content, without waiting longer.
    pub async fn flush(&mut self) -> Result<(), WaitError> {
        if !self.framer.is_clear() {
            self.renew();
            let Session { stream, requester, .. } = &mut *self.session;
            let renew = || requester.wait(clock::now(), self.patience);
            let waiting = self.framer.parts(b"", false).before;
            send_all(stream, waiting, &requester.deadline, renew).await?;
            self.framer.took(waiting.len(), 0);
        }
        Ok(())
    }

    /// Sends the next piece; it is not known whether more follow.
    pub async fn piece(&mut self, mut content: Bytes) -> Result<(), WaitError> {
        self.framer.begin(content.len());
        while !self.framer.is_clear() || !content.is_empty() {
            self.renew();
            let Session { stream, requester, .. } = &mut *self.session;
            if stream.is_muxed() {
                self.on_stream(&mut content, false).await?;
                continue;
            }
            let taken =
                poll_fn(|context| match stream.poll_take(context, &self.framer.parts(&content, false)) {
                    Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                    Poll::Pending => timed_out(&requester.deadline),
                })
                .await?;
            content.advance(self.framer.took(taken, content.len()));
        }
        Ok(())
    }

    /// Sends the bytes of `body` in `range`, which are the whole content, and the end; what was sent is
    /// removed from `range`.
    pub async fn kept(&mut self, body: &Body, range: &mut Range<u64>) -> Result<(), WaitError> {
        if self.session.stream.is_muxed() {
            // The frames refer to the stored bytes without a copy.
            while let Some(mut piece) = first(body, range) {
                let length = piece.len() as u64;
                self.on_stream(&mut piece, range.start + length == range.end).await?;
                range.start += length - piece.len() as u64;
                self.renew();
            }
            return reply::finish(self.session, std::iter::empty).await;
        }
        while !self.framer.is_clear() || !range.is_empty() {
            let Session { stream, requester, .. } = &mut *self.session;
            let head = self.framer.parts(b"", false).before;
            let taken = poll_fn(|context| {
                let mut places = [IoSlice::new(&[]); GATHERED];
                places[0] = IoSlice::new(head);
                let mut count = usize::from(!head.is_empty());
                for bytes in body.slices(range.start, range.end).take(GATHERED - count) {
                    places[count] = IoSlice::new(bytes);
                    count += 1;
                }
                match stream.poll_send_slices(context, &places[..count]) {
                    Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
                    Poll::Pending => timed_out(&requester.deadline),
                }
            })
            .await?;
            let left = (range.end - range.start) as usize;
            range.start += self.framer.took(taken, left) as u64;
            if !range.is_empty() {
                self.renew();
            }
        }
        Ok(())
    }

    /// Ends content that came in pieces.
    pub async fn end<'t, T: Iterator<Item = Field<'t>>>(
        &mut self,
        trailers: impl Fn() -> T,
    ) -> Result<(), WaitError> {
        self.framer.end(trailers());
        self.flush().await?;
        reply::finish(self.session, trailers).await
    }

    /// Gives back the buffer that the head was in.
    pub fn into_room(self) -> Vec<u8> {
        self.framer.into_room()
    }

    fn renew(&self) {
        self.session.requester.wait(clock::now(), self.patience);
    }

    /// Sends some of `content` on a stream, without a copy.
    async fn on_stream(&mut self, content: &mut Bytes, is_last: bool) -> Result<(), WaitError> {
        let Session { stream, requester, .. } = &mut *self.session;
        poll_fn(|context| match stream.poll_send_bytes(context, content, is_last) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => {
                stream.gather(context);
                timed_out(&requester.deadline)
            }
        })
        .await
    }
}

/// The first bytes of `body` in `range`, at most to the end of a chunk; `None` if the range is empty.
fn first(body: &Body, range: &Range<u64>) -> Option<Bytes> {
    let mut start = 0;
    for chunk in body.chunks() {
        let end = start + chunk.len() as u64;
        if range.start < end.min(range.end) {
            return Some(chunk.slice((range.start - start) as usize..(range.end.min(end) - start) as usize));
        }
        start = end;
    }
    None
}
