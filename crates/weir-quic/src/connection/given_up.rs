//! Detects that a peer has given up a stream while nothing is read from it.

use std::rc::Rc;
use std::task::{Context, Poll};

use quinn_proto::StreamId;

use super::{Connection, StreamError};
use crate::wakers::watch;

impl Connection {
    /// The code with which the client asked us to stop sending on a stream. `Pending` until it does; the task
    /// is woken then.
    pub fn poll_stopped(&self, id: StreamId, context: &mut Context<'_>) -> Poll<StreamError> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(StreamError::ConnectionLost);
        }
        if let Ok(Some(code)) = inner.quic.send_stream(id).stopped() {
            return Poll::Ready(StreamError::Reset(code.into_inner()));
        }
        if let Some(entry) = inner.watches.get_mut(&id) {
            watch(&mut entry.stopped, context);
        }
        Poll::Pending
    }

    /// Ready once the client has reset its side of a stream, or the connection is over. Does not consume what
    /// the client has sent before. The task is woken when that changes.
    pub fn poll_broken_off(self: &Rc<Self>, id: StreamId, context: &mut Context<'_>) -> Poll<StreamError> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            return Poll::Ready(StreamError::ConnectionLost);
        }
        if let Ok(Some(code)) = inner.quic.recv_stream(id).received_reset() {
            // The peer may have to be told that it can open another stream.
            self.touch();
            return Poll::Ready(StreamError::Reset(code.into_inner()));
        }
        if let Some(entry) = inner.watches.get_mut(&id) {
            watch(&mut entry.readable, context);
        }
        Poll::Pending
    }
}
