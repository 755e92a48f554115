//! Waiting for a peer within the session's deadline, and yielding to other sessions.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::buffers::Buffer;
use crate::deadline::Deadline;
use crate::stream::Duplex;

/// Why a wait on a socket failed.
#[derive(Debug)]
pub enum WaitError {
    /// The session's deadline passed.
    TimedOut,
    /// The kernel reported an error: say, the peer reset the connection, or the host is unreachable.
    Broken(io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> WaitError {
        WaitError::Broken(error)
    }
}

/// Receives once, or fails when the deadline passes.
#[inline]
pub async fn receive(
    stream: &mut impl Duplex,
    buffer: &mut Buffer,
    deadline: &Deadline,
) -> Result<usize, WaitError> {
    poll_fn(|context| match stream.poll_receive(context, buffer) {
        Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
        Poll::Pending => timed_out(deadline),
    })
    .await
}

/// Receives once, right after [`Duplex::poll_readable`] was ready in the same poll of the task. Has no
/// deadline.
#[inline]
pub async fn receive_ready(stream: &mut impl Duplex, buffer: &mut Buffer) -> io::Result<usize> {
    let mut is_ready = true;
    poll_fn(|context| {
        if !std::mem::take(&mut is_ready) {
            // It was not ready after all.
            ready!(stream.poll_readable(context))?;
        }
        stream.receive_ready(context, buffer)
    })
    .await
}

/// Sends all of `bytes`, or fails when the deadline passes. `progress` is called after each part that was
/// sent, to renew the deadline. What the peer sends meanwhile is gathered ([`Duplex::gather`]).
#[inline]
pub async fn send_all(
    stream: &mut impl Duplex,
    mut bytes: &[u8],
    deadline: &Deadline,
    mut progress: impl FnMut(),
) -> Result<(), WaitError> {
    while !bytes.is_empty() {
        let sent = poll_fn(|context| match stream.poll_send(context, bytes) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => {
                stream.gather(context);
                timed_out(deadline)
            }
        })
        .await?;
        bytes = &bytes[sent..];
        if !bytes.is_empty() {
            progress();
        }
    }
    Ok(())
}

/// `Ready` with the error once the deadline has passed.
#[inline]
pub fn timed_out<T>(deadline: &Deadline) -> Poll<Result<T, WaitError>> {
    if deadline.has_passed() { Poll::Ready(Err(WaitError::TimedOut)) } else { Poll::Pending }
}

/// Boxes a large or rarely needed future, which is made and polled out of line.
///
/// With a plain `Box::pin`, the future is built on the caller's stack and its code is inlined into the
/// caller: the caller's frame would have room for the largest of them at every call, and its code would be
/// interspersed with theirs.
#[inline(never)]
pub fn boxed<'a, F: Future + 'a>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + 'a>> {
    Box::pin(make())
}

/// Yields: the task is polled again only after all other ready tasks were, including those whose sockets have
/// become ready meanwhile.
///
/// A task that wakes itself does not yield: the runtime polls the sockets only every 61 task polls, and until
/// then the same task may be the only one it knows to be ready.
pub fn give_way(context: &mut Context<'_>) {
    // The first poll leaves the waker where the runtime looks after it has polled the sockets, and is never
    // ready.
    let _ = std::pin::pin!(tokio::task::yield_now()).poll(context);
}
