//! The bytes under an HTTP/2 connection, as the `h2` crate wants them: what was received before it began, then the stream.
//!
//! On the way in, frames are counted ([`Gauge`]): `h2` answers or ignores most of what a peer may send too much of, and a proxy pays for that.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffers::Buffer;
use crate::http::h2::gauge::Gauge;
use crate::io::give_way;
use crate::stream::Stream;

/// A connection's bytes.
pub struct Wire {
    stream: Stream,
    /// Received before it was known that this is HTTP/2.
    first: Option<Buffer>,
    gauge: Option<Rc<RefCell<Gauge>>>,
}

impl Wire {
    /// The bytes of `stream`, those in `first` before all others. Where a `gauge` is given, it sees every byte received.
    pub fn new(stream: Stream, first: Option<Buffer>, gauge: Option<Rc<RefCell<Gauge>>>) -> Wire {
        Wire { stream, first, gauge }
    }

    /// What was sent earns the peer the windows that it opens for it: some clients do so every 4 KiB, twice.
    fn note_sent(&self, sent: &Poll<io::Result<usize>>) {
        if let (Some(gauge), Poll::Ready(Ok(count))) = (&self.gauge, sent) {
            gauge.borrow_mut().moved(*count);
        }
    }

    /// Whether the peer is heard no longer: it has sent too much, which whoever drives the connection tells it.
    fn is_deaf(&self) -> bool {
        self.gauge.as_ref().is_some_and(|gauge| gauge.borrow().is_exhausted())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_deaf() {
            return Poll::Pending;
        }
        let most = self.gauge.as_ref().map_or(usize::MAX, |gauge| gauge.borrow().turn_left());
        if most == 0 {
            give_way(context);
            return Poll::Pending;
        }
        if most < room.remaining() {
            let mut part = ReadBuf::new(room.initialize_unfilled_to(most));
            ready!(self.poll_receive(context, &mut part))?;
            let count = part.filled().len();
            room.advance(count);
            return Poll::Ready(Ok(()));
        }
        self.poll_receive(context, room)
    }
}

impl Wire {
    /// Receives once, and counts it.
    fn poll_receive(&mut self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        if let Some(first) = &mut self.first {
            let count = first.filled().len().min(room.remaining());
            room.put_slice(&first.filled()[..count]);
            first.consume(count);
            if first.is_empty() {
                self.first = None;
            }
        } else {
            ready!(self.stream.poll_read(context, room))?;
        }
        if let Some(gauge) = &self.gauge {
            gauge.borrow_mut().see(&room.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = self.stream.poll_send(context, bytes);
        self.note_sent(&sent);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self.stream.poll_send_slices(context, parts);
        self.note_sent(&sent);
        sent
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What a stream counts as sent is with the kernel.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(context)
    }
}
