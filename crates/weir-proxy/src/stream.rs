//! A connection as the layers above see it: bytes in and bytes out, encrypted or not.
//!
//! All kinds keep the same promises. Reading: [`Stream::poll_readable`] first, so that a buffer is borrowed only when there is
//! something for it. Writing: what [`Stream::poll_send`] counts as sent is with the kernel, so that nothing is left to flush.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use weir_http::{Field, StreamError, Trailers};
use weir_io::buffers::Buffer;
use weir_io::socket;
use weir_io::system;
use weir_io::tls::Tls;

use crate::http::cache::Fetch;
use crate::muxed::Muxed;

/// A connection.
pub struct Stream(Kind);

/// What carries the bytes. Everything but a bare socket is boxed, so that a plain connection is no larger for the others.
enum Kind {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
    /// One of many on a connection, which somebody else drives.
    Muxed(Box<Muxed>),
}

struct Encrypted {
    socket: TcpStream,
    tls: Tls,
}

/// What is to be seen of a peer without taking anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing; the task is woken when that changes.
    Quiet,
    /// It sent something. As long as that is not received, nothing else can be seen.
    Speaking,
    /// It ended its direction: it left, or it has no more to say and waits for an answer all the same.
    Ended,
}

impl Stream {
    /// A connection whose bytes go over the wire as they are.
    pub fn plain(socket: TcpStream) -> Stream {
        Stream(Kind::Plain(socket))
    }

    /// A connection whose handshake is done.
    pub fn encrypted(socket: TcpStream, tls: Tls) -> Stream {
        Stream(Kind::Encrypted(Box::new(Encrypted { socket, tls })))
    }

    /// One of the streams of a multiplexed connection. Its end is the message's: see [`Stream::poll_finish`].
    pub fn muxed(stream: Muxed) -> Stream {
        Stream(Kind::Muxed(Box::new(stream)))
    }

    /// The stream of a multiplexed connection that this is.
    #[inline]
    pub fn as_muxed(&mut self) -> Option<&mut Muxed> {
        match &mut self.0 {
            Kind::Muxed(stream) => Some(stream),
            _ => None,
        }
    }

    /// The fetch that this answers on, where its peer is the cache.
    pub fn as_fetch(&self) -> Option<&Fetch> {
        match &self.0 {
            Kind::Muxed(stream) => match &**stream {
                Muxed::Fetch(fetch) => Some(fetch),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether this is one of the streams of a multiplexed connection.
    #[inline]
    pub fn is_muxed(&self) -> bool {
        matches!(self.0, Kind::Muxed(_))
    }

    /// The socket, given up by a connection whose bytes go over the wire as they are; `None` for any other.
    pub fn into_socket(self) -> Option<TcpStream> {
        match self.0 {
            Kind::Plain(socket) => Some(socket),
            _ => None,
        }
    }

    /// The encryption, if there is any.
    pub fn tls(&self) -> Option<&Tls> {
        match &self.0 {
            Kind::Plain(_) | Kind::Muxed(_) => None,
            Kind::Encrypted(encrypted) => Some(&encrypted.tls),
        }
    }

    /// The socket, when nothing stands between it and the bytes: then the kernel may move them by itself.
    #[inline]
    pub fn bare(&self) -> Option<&TcpStream> {
        match &self.0 {
            Kind::Plain(socket) => Some(socket),
            Kind::Encrypted(_) | Kind::Muxed(_) => None,
        }
    }

    /// The socket below, whatever stands between it and the bytes; `None` when it is not for this stream alone.
    fn socket(&self) -> Option<&TcpStream> {
        match &self.0 {
            Kind::Plain(socket) => Some(socket),
            Kind::Encrypted(encrypted) => Some(&encrypted.socket),
            Kind::Muxed(_) => None,
        }
    }

    /// Keeps small messages from waiting for the acknowledgement of those before (TCP_NODELAY).
    pub fn send_at_once(&self) {
        // A failure costs time only, and comes from a connection that is gone already.
        let _ = self.socket().map(|socket| socket.set_nodelay(true));
    }

    /// Makes the drop of the connection send a reset, so that the peer sees that what it got is not whole.
    pub fn reset_on_close(&mut self) {
        match &mut self.0 {
            Kind::Plain(socket) => system::reset_on_close(socket),
            Kind::Encrypted(encrypted) => system::reset_on_close(&encrypted.socket),
            Kind::Muxed(stream) => stream.reset(StreamError::Internal),
        }
    }

    /// Our address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().ok_or(io::ErrorKind::Unsupported)?.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().ok_or(io::ErrorKind::Unsupported)?.peer_addr()
    }

    /// Ready when something can be received: bytes, the end, or an error.
    #[inline]
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket.poll_read_ready(context),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_readable(&encrypted.socket, context),
            Kind::Muxed(stream) => stream.poll_readable(context),
        }
    }

    /// What has come has to wait: on a stream of a multiplexed connection it is taken together, for kept frame by frame it takes more memory than its window
    /// says.
    pub fn gather(&mut self, context: &mut Context<'_>) {
        if let Kind::Muxed(stream) = &mut self.0 {
            stream.gather(context);
        }
    }

    /// Receives once into the free room of `buffer`, which must not be full. Zero is the end of the stream.
    #[inline]
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_readable(context))?;
        self.receive_ready(context, buffer)
    }

    /// As [`Self::poll_receive`], just after [`Self::poll_readable`] was ready.
    #[inline]
    pub fn receive_ready(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::receive_ready(socket, context, buffer),
            Kind::Encrypted(encrypted) => Poll::Ready(encrypted.tls.take(buffer)),
            Kind::Muxed(stream) => Poll::Ready(stream.take(buffer)),
        }
    }

    /// Receives once, for readers that bring room of their own.
    pub fn poll_read(&mut self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(socket) => Pin::new(socket).poll_read(context, room),
            Kind::Encrypted(encrypted) => {
                ready!(encrypted.tls.poll_readable(&encrypted.socket, context))?;
                let taken = encrypted.tls.take_with(room.remaining(), |content| room.put_slice(content));
                Poll::Ready(taken.map(|_| ()))
            }
            Kind::Muxed(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Sends as much of `bytes` as the kernel takes now, at least one byte when ready. After `Pending` it must be called with the same bytes
    /// again: some may have been encrypted already.
    #[inline]
    pub fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::poll_send(socket, context, bytes),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_send(&encrypted.socket, context, &[bytes]),
            Kind::Muxed(stream) => stream.poll_send(context, bytes),
        }
    }

    /// As [`Self::poll_send`], for bytes that end the message with nothing behind them: where they go in one piece, the end goes with them.
    /// [`Self::poll_finish`] is still to be called.
    #[inline]
    pub fn poll_send_last(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Muxed(stream) => stream.poll_send_last(context, bytes),
            _ => self.poll_send(context, bytes),
        }
    }

    /// As [`Self::poll_send`], from several places in one call.
    #[inline]
    pub fn poll_send_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[&[u8]; 3],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::poll_send_vectored(socket, context, &parts.map(io::IoSlice::new)),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_send(&encrypted.socket, context, parts),
            Kind::Muxed(stream) => {
                let first = parts.iter().find(|part| !part.is_empty());
                stream.poll_send(context, first.unwrap_or(&parts[0]))
            }
        }
    }

    /// As [`Self::poll_send`], from as many places as the caller has.
    pub fn poll_send_slices(
        &mut self,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::poll_send_vectored(socket, context, parts),
            Kind::Encrypted(encrypted) => {
                let mut few: [&[u8]; 8] = [&[]; 8];
                few.iter_mut().zip(parts).for_each(|(place, part)| *place = part);
                encrypted.tls.poll_send(&encrypted.socket, context, &few)
            }
            Kind::Muxed(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Ends the message, with `trailers` where there are any, on a stream whose end that is; on others its framing is its end, and
    /// nothing is to be done.
    pub fn poll_finish<'a>(
        &mut self,
        context: &mut Context<'_>,
        trailers: impl Iterator<Item = Field<'a>>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(_) | Kind::Encrypted(_) => Poll::Ready(Ok(())),
            Kind::Muxed(stream) => stream.poll_finish(context, trailers),
        }
    }

    /// Whether this is a stream of which everything was taken, its end too.
    pub fn is_ended(&self) -> bool {
        matches!(&self.0, Kind::Muxed(stream) if stream.is_ended())
    }

    /// See [`Muxed::resets_behind_answers`].
    pub fn resets_behind_answers(&self) -> bool {
        matches!(&self.0, Kind::Muxed(stream) if stream.resets_behind_answers())
    }

    /// The fields behind the message, once its end was received; given once. `None` where they are part of its framing.
    pub fn take_trailers(&mut self) -> Option<Box<Trailers>> {
        self.as_muxed().and_then(Muxed::take_trailers)
    }

    /// Says that nothing more will be sent.
    pub fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = match &mut self.0 {
            Kind::Plain(socket) => socket,
            Kind::Encrypted(encrypted) => {
                ready!(encrypted.tls.poll_close(&encrypted.socket, context))?;
                &mut encrypted.socket
            }
            Kind::Muxed(stream) => return stream.poll_finish(context, std::iter::empty()),
        };
        Pin::new(socket).poll_shutdown(context)
    }

    /// Says that the end is meant, where that has words of its own (RFC 8446 section 6.1), if the kernel takes them now: a client must not take
    /// the end of a connection for an attack that cut it off.
    pub async fn say_farewell(&mut self) {
        if let Kind::Encrypted(encrypted) = &mut self.0 {
            let Encrypted { socket, tls } = &mut **encrypted;
            std::future::poll_fn(|context| {
                let _ = tls.poll_close(socket, context);
                Poll::Ready(())
            })
            .await;
        }
    }

    /// Whether nothing, not even an end of stream, has arrived that was not received. Costs no system call while tokio knows the socket as
    /// drained, which it is after an exchange that ended cleanly.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        let (socket, mut is_quiet) = match &self.0 {
            Kind::Plain(socket) => (socket, true),
            Kind::Encrypted(encrypted) => (&encrypted.socket, encrypted.tls.is_quiet()),
            // It carries one message, and is never kept.
            Kind::Muxed(_) => return false,
        };
        // Entered only while tokio takes the socket for readable.
        let _ = socket.try_io(Interest::READABLE, || {
            match rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK) {
                Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
                _ => {
                    is_quiet = false;
                    Ok(())
                }
            }
        });
        is_quiet
    }

    /// What is to be seen of the peer without taking anything of what it sent. Err when the connection was reset.
    pub fn poll_present(&mut self, context: &mut Context<'_>) -> io::Result<Sight> {
        let socket = match &mut self.0 {
            Kind::Plain(socket) => socket,
            Kind::Encrypted(encrypted) => {
                return match encrypted.tls.poll_readable(&encrypted.socket, context) {
                    Poll::Pending => Ok(Sight::Quiet),
                    Poll::Ready(Ok(())) if encrypted.tls.has_content() => Ok(Sight::Speaking),
                    Poll::Ready(Ok(())) => Ok(Sight::Ended),
                    Poll::Ready(Err(error)) => Err(error),
                };
            }
            Kind::Muxed(stream) => {
                return match stream.poll_gone(context) {
                    Poll::Pending => Ok(Sight::Quiet),
                    Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
                };
            }
        };
        match socket.poll_read_ready(context) {
            Poll::Pending => return Ok(Sight::Quiet),
            Poll::Ready(result) => result?,
        }
        match socket.poll_peek(context, &mut ReadBuf::new(&mut [0; 1])) {
            Poll::Pending => Ok(Sight::Quiet),
            Poll::Ready(Ok(0)) => Ok(Sight::Ended),
            Poll::Ready(Ok(_)) => Ok(Sight::Speaking),
            Poll::Ready(Err(error)) => Err(error),
        }
    }
}
