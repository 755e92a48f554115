//! What leaves together with a request's head, as far as its backend has not taken it.
//!
//! A backend may be slow to read, may answer before it has read, or never read at all: what it did not take
//! at once moves on while its answer is awaited and received.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use weir_io::buffers::Charge;
use weir_io::stream::Duplex as _;
use weir_io::wait::give_way;

use crate::http::stream::Stream;

/// Most bytes sent before others get their turn.
const TURN_BYTES: usize = 1 << 20;

/// A part that was not sent.
pub struct Untaken {
    /// Where it is in the bytes that leave with the head.
    rest: Range<usize>,
    /// Where it began.
    began: usize,
    /// Those bytes, once no other backend may be sent them. Until then they are where all attempts find them.
    own: Option<Vec<u8>>,
    /// Counts those as memory in use.
    charge: Option<Charge>,
}

impl Untaken {
    /// This much of what leaves with the head is to be sent.
    pub fn new(rest: Range<usize>) -> Untaken {
        Untaken { began: rest.start, rest, own: None, charge: None }
    }

    /// Keeps `bytes`, of which it is a part, and what stands for their memory.
    pub fn own(&mut self, bytes: Vec<u8>, charge: Option<Charge>) {
        (self.own, self.charge) = (Some(bytes), charge);
    }

    /// Bytes of it that were sent.
    pub fn sent(&self) -> u64 {
        (self.rest.start - self.began) as u64
    }

    /// Whether nothing of it is left to be sent.
    pub fn is_sent(&self) -> bool {
        self.rest.is_empty()
    }

    /// Sends what the backend takes; `Ready(Ok)` once all was sent. It is a part of `shared` where it has no
    /// bytes of its own.
    ///
    /// # Errors
    /// The backend takes no more.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        backend: &mut Stream,
        shared: &[u8],
        moved: &mut bool,
    ) -> Poll<io::Result<()>> {
        let bytes = self.own.as_deref().unwrap_or(shared);
        let turn = self.rest.start + TURN_BYTES;
        while !self.rest.is_empty() {
            if self.rest.start >= turn {
                give_way(context);
                return Poll::Pending;
            }
            let rest = bytes.get(self.rest.clone()).unwrap_or_default();
            let sent = ready!(backend.poll_send(context, rest))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *moved = true;
            self.rest.start += sent;
        }
        (self.own, self.charge) = (None, None);
        Poll::Ready(Ok(()))
    }
}
