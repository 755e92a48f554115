//! Receiving and sending with the session's deadline.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

use crate::buffers::Buffer;
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

/// Receives once into the free room of `buffer`, which must not be full. Zero is the end of the stream.
///
/// Goes through `poll_read` and not `try_read`: a short read then tells tokio that the socket is drained, which saves
/// the second `recv` that would only find out the same.
#[inline]
pub fn poll_receive(
    stream: &mut TcpStream,
    context: &mut Context<'_>,
    buffer: &mut Buffer,
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(buffer.free());
    ready!(Pin::new(stream).poll_read(context, &mut room))?;
    let count = room.filled().len();
    buffer.fill(count);
    Poll::Ready(Ok(count))
}

/// Sends as much of `bytes` as the kernel takes now, at least one byte when ready.
#[inline]
pub fn poll_send(stream: &mut TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    Pin::new(stream).poll_write(context, bytes)
}

/// Receives once, or ends with the deadline.
#[inline]
pub async fn receive(
    stream: &mut TcpStream,
    buffer: &mut Buffer,
    deadline: &Deadline,
) -> Result<usize, WaitError> {
    poll_fn(|context| match poll_receive(stream, context, buffer) {
        Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
        Poll::Pending => timed_out(deadline),
    })
    .await
}

/// Sends all of `bytes`, or ends with the deadline, which `progress` is called to renew after each part sent.
#[inline]
pub async fn send_all(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    deadline: &Deadline,
    mut progress: impl FnMut(),
) -> Result<(), WaitError> {
    while !bytes.is_empty() {
        let sent = poll_fn(|context| match poll_send(stream, context, bytes) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(deadline),
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
