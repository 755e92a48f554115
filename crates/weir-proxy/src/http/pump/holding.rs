//! Holding a body: moving it as it arrives into the buffer that is sent with the head.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use weir_io::buffers::Buffers;

use super::{Pump, PumpError};
use crate::http::claim::HeldClaim;
use crate::http::stream::Stream;

impl Pump {
    /// As [`Self::take_received`], as far as `claim` has room for it.
    pub(super) fn take_some(
        &mut self,
        out: &mut Vec<u8>,
        claim: &mut HeldClaim<'_>,
    ) -> Result<(), PumpError> {
        loop {
            self.frame_next()?;
            if claim.is_full(self.held) || (self.framer.is_clear() && self.content == 0) {
                return Ok(());
            }
            let count = match self.content {
                0 => 0,
                content => claim.room(self.held, content),
            };
            if count == 0 && self.content > 0 {
                return Ok(());
            }
            let content = self.buffer.as_ref().map_or(&[][..], |buffer| &buffer.filled()[..count]);
            self.framer.put(out, content, count == self.content);
            if let Some(copy) = &mut self.copy {
                copy.extend_from_slice(content);
            }
            self.held += count as u64;
            self.content_sent(count);
        }
    }

    /// Moves what arrives to the end of `out`, where the head is, until the body is complete or `claim` has
    /// no more room.
    pub fn poll_hold(
        &mut self,
        context: &mut Context<'_>,
        source: &mut Stream,
        buffers: &Rc<Buffers>,
        out: &mut Vec<u8>,
        claim: &mut HeldClaim<'_>,
    ) -> Poll<Result<(), PumpError>> {
        loop {
            if claim.is_full(self.held) {
                return Poll::Ready(Ok(()));
            }
            self.take_some(out, claim)?;
            if self.reader.is_complete() || self.content > 0 {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_fill(context, source, buffers))?;
        }
    }

    /// Content bytes that [`Self::poll_hold`] has moved.
    pub fn held(&self) -> u64 {
        self.held
    }
}
