//! How a session ends or leaves a server during a drain: of the server, the listener or Weir. The client gets
//! an error before its connection is closed.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use weir_io::buffers::SMALL;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Stream};
use weir_io::wait::receive;
use weir_stats::table::End;

use super::acquire::Attached;
use super::failure::Refusal;
use super::session::Session;
use crate::worker::{ListenerSlot, Worker};

/// Longest time for the client to read the error before its connection is closed. It is shorter than the time
/// that the process gives its sessions for this.
pub const LONGEST_GOODBYE: Duration = Duration::from_millis(500);
/// Most bytes of a command that are read and discarded meanwhile.
const MOST_READ_AWAY: usize = 1 << 20;

/// When a session that waits for its client is cut off; `None` if nothing drains. By then, its work on a
/// draining server must be done.
pub fn cut_off_at(worker: &Worker, slot: &ListenerSlot, attached: Option<&Attached>) -> Option<Duration> {
    let leaves = attached.and_then(|attached| worker.to_be_left_by(&attached.chosen.backend().shared));
    match (slot.draining_until(), leaves) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Attached {
    /// Whether the server is draining, so that the session must leave it as soon as nothing keeps the session
    /// there.
    pub fn is_leaving(&self) -> bool {
        self.chosen.backend().shared.balance.leaving_since().is_some()
    }
}

impl Session {
    /// Ends a session that waits for its client's next command, with an error. Its server connection is given
    /// up first.
    pub async fn refuse_and_end(&mut self, refusal: Refusal) -> End {
        self.detach();
        let end = refusal.end.unwrap_or(End::Internal);
        self.refuse(0, refusal).await.ok();
        self.buffer = None;
        until_quiet(&mut self.stream, &self.deadline, &self.worker).await;
        end
    }
}

/// Shuts down the sending side, and discards what the client still sends. If a socket is closed with unread
/// bytes, the kernel sends a reset, which can destroy the error before the client has read it.
pub async fn until_quiet(stream: &mut Stream, deadline: &Deadline, worker: &Worker) {
    if poll_fn(|context| stream.poll_shutdown(context)).await.is_err() {
        return;
    }
    deadline.set(clock::now() + LONGEST_GOODBYE);
    let mut read = 0;
    while read < MOST_READ_AWAY {
        let readable = poll_fn(|context| match stream.poll_readable(context) {
            Poll::Ready(result) => Poll::Ready(result.is_ok()),
            Poll::Pending if deadline.has_passed() || deadline.is_shed() => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        });
        if !readable.await {
            return;
        }
        let Some(mut waste) = worker.buffers.borrow(SMALL) else { return };
        match receive(stream, &mut waste, deadline).await {
            Ok(0) | Err(_) => return,
            Ok(count) => read += count,
        }
    }
}
