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
    loop {
        let mut room = ReadBuf::new(buffer.free());
        match ready!(Pin::new(&mut *stream).poll_read(context, &mut room)) {
            Ok(()) => {
                let count = room.filled().len();
                buffer.fill(count);
                return Poll::Ready(Ok(count));
            }
            // A signal came in between; nothing was received (H6).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Sends as much of `bytes` as the kernel takes now, at least one byte when ready.
#[inline]
pub fn poll_send(stream: &mut TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        match ready!(Pin::new(&mut *stream).poll_write(context, bytes)) {
            Err(error) if is_passing(&error) => {}
            result => return Poll::Ready(result),
        }
    }
}

/// As [`poll_send`], from several places in one call.
#[inline]
pub fn poll_send_vectored(
    stream: &mut TcpStream,
    context: &mut Context<'_>,
    parts: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    loop {
        match ready!(Pin::new(&mut *stream).poll_write_vectored(context, parts)) {
            Err(error) if is_passing(&error) => {}
            result => return Poll::Ready(result),
        }
    }
}

/// Whether a send that failed so may simply be made again: a signal came in between.
fn is_passing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
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
