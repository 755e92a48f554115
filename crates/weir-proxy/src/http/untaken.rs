//! The part of a request's head, and of the body bytes that are sent with it, that its backend has not taken
//! yet.
//!
//! A backend may be slow to read, may answer before it has read, or may never read at all. What it did not
//! take at once is sent while its answer is awaited and received.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use weir_io::buffers::Charge;
use weir_io::stream::Duplex as _;
use weir_io::wait::give_way;

use crate::http::stream::Stream;

/// Most bytes sent before other tasks get their turn.
const TURN_BYTES: usize = 1 << 20;

/// The part that was not sent yet.
pub struct Untaken {
    /// Its range in the bytes that are sent with the head.
    rest: Range<usize>,
    /// Where the range began.
    began: usize,
    /// Those bytes, once no other backend may be sent them. Until then all attempts share them.
    own: Option<Vec<u8>>,
    /// Accounts for the memory of `own`.
    charge: Option<Charge>,
}

impl Untaken {
    /// This range of the bytes that are sent with the head has to be sent.
    pub fn new(rest: Range<usize>) -> Untaken {
        Untaken { began: rest.start, rest, own: None, charge: None }
    }

    /// Takes over `bytes`, which the range refers to, and the charge for their memory.
    pub fn own(&mut self, bytes: Vec<u8>, charge: Option<Charge>) {
        (self.own, self.charge) = (Some(bytes), charge);
    }

    /// How many bytes of it were sent.
    pub fn sent(&self) -> u64 {
        (self.rest.start - self.began) as u64
    }

    /// Whether nothing of it is left to send.
    pub fn is_sent(&self) -> bool {
        self.rest.is_empty()
    }

    /// Sends what the backend takes; `Ready(Ok)` once everything was sent. The range refers to `shared`
    /// unless it has bytes of its own.
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
