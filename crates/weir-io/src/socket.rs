//! System calls on one TCP socket, each made when tokio holds the socket for ready, and no more of them than
//! needed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncWrite as _, Interest};
use tokio::net::TcpStream;

use crate::buffers::Buffer;

/// Receives once into the free room of `buffer`, which must not be full, just after `poll_read_ready` said
/// that the socket is ready. Zero is the end of the stream.
#[inline]
pub fn receive_ready(
    stream: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut Buffer,
) -> Poll<io::Result<usize>> {
    let room = buffer.free();
    let size = room.len();
    let received = once(stream, Interest::READABLE, size, || {
        rustix::net::recv(stream, &mut *room, RecvFlags::empty()).map(|(_, count)| count)
    });
    match &received {
        Poll::Ready(Ok(count)) => buffer.fill(*count),
        Poll::Ready(Err(_)) => {}
        // Rare, and asking anew is what registers the task.
        Poll::Pending => context.waker().wake_by_ref(),
    }
    received
}

/// Sends as much of `bytes` as the kernel takes now, at least one byte when ready.
///
/// A socket can nearly always be written to, so that is tried before tokio is asked to watch it.
#[inline]
pub fn poll_send(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        let sent = once(stream, Interest::WRITABLE, bytes.len(), || {
            rustix::net::send(stream, bytes, SendFlags::NOSIGNAL)
        });
        if sent.is_ready() {
            return sent;
        }
        ready!(stream.poll_write_ready(context))?;
    }
}

/// Makes one system call that moves up to `size` bytes. `Pending` when the socket was not ready or a signal
/// came in between; nothing has been moved then and the task is not going to be woken.
///
/// A call that moved less has used the socket up, and tokio is told so in the only way it understands: with
/// `WouldBlock`. That saves the second call that would only find out the same; it is what tokio's own
/// `poll_read` does. The calls are rustix's, which enter the kernel without libc's cancellation points around
/// them.
#[inline]
fn once(
    stream: &TcpStream,
    interest: Interest,
    size: usize,
    call: impl FnOnce() -> rustix::io::Result<usize>,
) -> Poll<io::Result<usize>> {
    let mut outcome = Poll::Pending;
    let _ = stream.try_io(interest, || {
        let moved = match call() {
            Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
            // Nothing was moved, and the socket is as ready as it was (H6).
            Err(Errno::INTR) => return Ok(()),
            moved => moved.map_err(io::Error::from),
        };
        let is_used_up = matches!(moved, Ok(count) if count > 0 && count < size);
        outcome = Poll::Ready(moved);
        if is_used_up { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    outcome
}

/// Makes a system call when the socket is ready for it, and again after `WouldBlock` once it is ready anew.
pub fn poll_call(
    stream: &TcpStream,
    interest: Interest,
    context: &mut Context<'_>,
    mut call: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(if interest.is_readable() {
            stream.poll_read_ready(context)
        } else {
            stream.poll_write_ready(context)
        })?;
        match stream.try_io(interest, || call(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return Poll::Ready(result),
        }
    }
}

/// Whether the peer has reset its connection, or the kernel has given it up, as long as no other call was
/// told so. What the peer sent before may still be there to be received, and is not looked at. A reset behind
/// the end of its stream, which the kernel tells as a broken pipe, does not count. One system call.
pub fn is_reset(stream: &TcpStream) -> bool {
    matches!(stream.take_error(), Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe)
}

/// Whether a connection carries nothing more either way: the peer has reset it, be it behind the end of its
/// stream, or the kernel has given it up (POLLHUP of poll(2)). Says that only before this side has ended its
/// own stream. It takes nothing away, so that it may be asked again. One system call.
pub fn is_over(stream: &TcpStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
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
