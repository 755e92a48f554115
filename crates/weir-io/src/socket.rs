//! System calls on one TCP socket. Each is made only when tokio believes the socket to be ready, and no call
//! is made that is not needed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncWrite as _, Interest};
use tokio::net::TcpStream;

use crate::buffers::Buffer;

/// Receives once into the free room of `buffer`, which must not be full, right after `poll_read_ready`
/// reported the socket ready. Zero is the end of the stream.
#[inline]
pub fn receive_ready(
    stream: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut Buffer,
) -> Poll<io::Result<usize>> {
    let received = receive_now(stream, buffer);
    if received.is_pending() {
        // Rare. The task must poll readiness again, which registers its waker.
        context.waker().wake_by_ref();
    }
    received
}

/// Receives once into the free room of `buffer`, which must not be full, if the socket is ready. `Pending` if
/// not, and then no waker is registered. Zero is the end of the stream.
#[inline]
pub fn receive_now(stream: &TcpStream, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
    let room = buffer.free();
    let size = room.len();
    let received = once(stream, Interest::READABLE, size, || {
        rustix::net::recv(stream, &mut *room, RecvFlags::empty()).map(|(_, count)| count)
    });
    if let Poll::Ready(Ok(count)) = &received {
        buffer.fill(*count);
    }
    received
}

/// Sends as many of `bytes` as the kernel takes now, at least one byte when ready.
///
/// A socket is nearly always writable, so a send is tried before tokio is asked to watch for it.
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
/// interrupted the call; then nothing was moved, and no waker is registered.
///
/// A call that moved fewer bytes has drained or filled the socket. tokio can be told that only with
/// `WouldBlock`, which saves a second call that would find the same; tokio's own `poll_read` does this too.
/// The calls are rustix's, which enter the kernel without libc's cancellation points.
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
            // Nothing was moved, and the socket's readiness has not changed (H6).
            Err(Errno::INTR) => return Ok(()),
            moved => moved.map_err(io::Error::from),
        };
        let is_used_up = matches!(moved, Ok(count) if count > 0 && count < size);
        outcome = Poll::Ready(moved);
        if is_used_up { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    outcome
}

/// Makes a system call when the socket is ready for it, and again after `WouldBlock` once it is ready again.
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

/// Whether the peer has reset its connection, or the kernel has given it up, unless another call has already
/// returned that error. Data that the peer sent before may still be in the receive queue; it is not looked
/// at. A reset after the end of the peer's stream, which the kernel reports as a broken pipe, does not count.
/// One system call.
pub fn is_reset(stream: &TcpStream) -> bool {
    matches!(stream.take_error(), Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe)
}

/// Whether a connection is dead in both directions: the peer has reset it, possibly after its FIN, or the
/// kernel has given it up (POLLHUP of poll(2)). Only meaningful before this side has shut down its own
/// stream. It consumes nothing, so it can be called repeatedly. One system call.
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

/// Whether a failed send may simply be repeated, because a signal interrupted it.
fn is_passing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}
