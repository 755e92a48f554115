//! How a session leaves: a server that is to go, or its client, when Weir or the listener goes. It is told
//! why before it is closed.

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

/// Longest wait for the client to have read why it is closed: less than the process gives its sessions for
/// their last words.
pub const LONGEST_GOODBYE: Duration = Duration::from_millis(500);
/// Most bytes of a command that are read away meanwhile.
const MOST_READ_AWAY: usize = 1 << 20;

/// When a session is cut off that waits for its client; `None` while nothing goes. What it has on a server
/// that is to go has until then to come to an end.
pub fn cut_off_at(worker: &Worker, slot: &ListenerSlot, attached: Option<&Attached>) -> Option<Duration> {
    let leaves = attached.and_then(|attached| worker.to_be_left_by(&attached.chosen.backend().shared));
    match (slot.draining_until(), leaves) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Attached {
    /// Whether the server is to be left as soon as nothing holds the session there.
    pub fn is_leaving(&self) -> bool {
        self.chosen.backend().shared.balance.leaving_since().is_some()
    }
}

impl Session {
    /// Ends a session that waits for its client's next command, with a word about why. What it has on a
    /// server is given up before.
    pub async fn refuse_and_end(&mut self, refusal: Refusal) -> End {
        self.detach();
        let end = refusal.end.unwrap_or(End::Internal);
        self.refuse(0, refusal).await.ok();
        self.buffer = None;
        until_quiet(&mut self.stream, &self.deadline, &self.worker).await;
        end
    }
}

/// Says that nothing more comes, and reads away what the client sends meanwhile: closing with bytes unread
/// makes the kernel send a reset, which can destroy the error before the client has read it.
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
