//! Waiting for a peer with the session's deadline, and giving way to other sessions.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::buffers::Buffer;
use crate::deadline::Deadline;
use crate::stream::Duplex;

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

/// Receives once, or ends with the deadline.
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

/// Receives once, just after [`Duplex::poll_readable`] was ready in the same turn of the task; without a
/// deadline.
#[inline]
pub async fn receive_ready(stream: &mut impl Duplex, buffer: &mut Buffer) -> io::Result<usize> {
    let mut is_ready = true;
    poll_fn(|context| {
        if !std::mem::take(&mut is_ready) {
            // It was not, after all.
            ready!(stream.poll_readable(context))?;
        }
        stream.receive_ready(context, buffer)
    })
    .await
}

/// Sends all of `bytes`, or ends with the deadline, which `progress` is called to renew after each part sent.
/// What the peer sends meanwhile is gathered.
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

/// A large future, or one that is seldom needed, made and polled out of line.
///
/// Written as `Box::pin`, it is made on the stack of whoever asks for it, and what it does is compiled into
/// him: his frame has room for the largest of them at each call, and his code theirs in between.
#[inline(never)]
pub fn boxed<'a, F: Future + 'a>(make: impl FnOnce() -> F) -> Pin<Box<dyn Future<Output = F::Output> + 'a>> {
    Box::pin(make())
}

/// Gives way: the task gets its next turn once all that are ready, those included whose sockets have become
/// so meanwhile, have had theirs.
///
/// A task that wakes itself does not give way: the runtime looks at its sockets after 61 turns at the latest,
/// and while nobody else is known to be ready, all of them are that task's.
pub fn give_way(context: &mut Context<'_>) {
    // Its first poll leaves the waker where the runtime looks after it has looked at the sockets, and is
    // never ready.
    let _ = std::pin::pin!(tokio::task::yield_now()).poll(context);
}
