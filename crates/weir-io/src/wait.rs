//! Waiting for a peer with the session's deadline, and giving way to other sessions.

use std::future::Future as _;
use std::io;
use std::task::{Context, Poll};

use crate::deadline::Deadline;

/// Why a wait on a socket ended without what was waited for.
#[derive(Debug)]
pub enum WaitError {
    /// The session's deadline passed.
    TimedOut,
    /// The kernel reported an error: the peer reset, the host is unreachable.
    Broken(io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> WaitError {
        WaitError::Broken(error)
    }
}

/// `Ready` with the error once the deadline has passed.
#[inline]
pub fn timed_out<T>(deadline: &Deadline) -> Poll<Result<T, WaitError>> {
    if deadline.has_passed() { Poll::Ready(Err(WaitError::TimedOut)) } else { Poll::Pending }
}

/// Gives way: the task gets its next turn once all that are ready, those included whose sockets have become so meanwhile, have had theirs.
///
/// A task that wakes itself does not give way: the runtime looks at its sockets after 61 turns at the latest, and while nobody else is known to
/// be ready, all of them are that task's.
pub fn give_way(context: &mut Context<'_>) {
    // Its first poll leaves the waker where the runtime looks after it has looked at the sockets, and is never ready.
    let _ = std::pin::pin!(tokio::task::yield_now()).poll(context);
}
