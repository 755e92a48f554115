//! A connection as the layers above see it: bytes in and bytes out, encrypted or not.
//!
//! Every [`Duplex`] makes the same promises. For reading, call [`Duplex::poll_readable`] first, so that a
//! buffer is borrowed only when there is something to put into it. For writing, what [`Duplex::poll_send`]
//! counts as sent is with the kernel, so that nothing is left to flush.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::buffers::{Buffer, Buffers};
use crate::system::tcp::Acknowledged;
use crate::tls::Tls;
use crate::{socket, system};

/// How often to check whether the peer is still there ([`Duplex::is_broken_off`]) while nobody takes what it
/// has sent: the unread data hides the end of the connection, and no waker is called for it.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Bytes in both directions: a whole connection ([`Stream`]), or one stream of a multiplexed protocol.
pub trait Duplex {
    /// Ready when something can be received: bytes, the end, or an error.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Receives once into the free room of `buffer`, which must not be full, right after
    /// [`Self::poll_readable`] was ready. Zero is the end of the stream.
    fn receive_ready(&mut self, context: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>>;
    /// Sends as many of `bytes` as are taken now, at least one byte when ready. After `Pending` it must be
    /// called with the same bytes again.
    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Ends our direction: nothing more will be sent.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Makes dropping it send a reset, so that the peer can tell that what it received is incomplete.
    fn reset_on_close(&mut self);
    /// The socket, if the bytes pass through it unchanged: then the kernel may move them by itself.
    fn bare(&self) -> Option<&TcpStream>;
    /// Whether the peer has given up both directions, as far as that can be seen now without consuming
    /// anything it sent. A peer that has merely ended its stream has not. Takes a system call if it is a
    /// socket; no waker is registered for a change.
    fn is_broken_off(&mut self, context: &mut Context<'_>) -> bool;
    /// Like [`Self::is_broken_off`], but also detects a reset by a peer that had ended its stream before.
    /// Call it only before this side has ended its own stream.
    fn is_gone(&mut self, context: &mut Context<'_>) -> bool {
        self.is_broken_off(context)
    }
    /// Takes together what has come while nobody has room for it, where kept piece by piece it would take
    /// more memory than its bytes.
    #[inline]
    fn gather(&mut self, _context: &mut Context<'_>) {}

    /// Receives once into the free room of `buffer`, which must not be full. Zero is the end of the stream.
    #[inline]
    fn poll_receive(&mut self, context: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        ready!(self.poll_readable(context))?;
        self.receive_ready(context, buffer)
    }
}

/// What a protocol puts between the bytes of a connection and those that the layers above see, such as
/// MySQL's compression. The promises are those of [`Duplex`].
pub trait Layer {
    /// The connection below the layer.
    fn below(&self) -> &Stream;
    /// The same, mutable, for uses that do not concern its bytes.
    fn below_mut(&mut self) -> &mut Stream;
    /// Whether received content is waiting to be taken.
    fn has_content(&self) -> bool;
    /// As [`Duplex::poll_readable`].
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Passes at most `most` bytes of content to `put`, in one piece, right after [`Self::poll_readable`] was
    /// ready. Zero is the end of the stream.
    ///
    /// # Errors
    /// No more content can be had.
    fn take_with(&mut self, most: usize, put: &mut dyn FnMut(&[u8])) -> io::Result<usize>;
    /// As [`Duplex::poll_send`].
    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Marks the end of a unit: what was sent so far is complete, and what follows begins another.
    fn end_part(&mut self);
    /// Ready once the kernel has everything that was counted as sent.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A connection.
pub struct Stream(Kind);

/// Plain, encrypted, or under a protocol's own layer. The latter two are boxed, so that they do not make a
/// plain connection larger.
enum Kind {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
    Layered(Box<dyn Layer>),
}

struct Encrypted {
    socket: TcpStream,
    tls: Tls,
}

/// State of a peer, as far as it can be seen without consuming anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing; the task is woken when that changes.
    Quiet,
    /// The peer sent something. Until that is received, nothing else can be seen.
    Speaking,
    /// The peer ended its direction: it has left, or it has nothing more to send and still waits for an
    /// answer.
    Ended,
}

impl Duplex for Stream {
    #[inline]
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket.poll_read_ready(context),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_readable(&encrypted.socket, context),
            Kind::Layered(layer) => layer.poll_readable(context),
        }
    }

    #[inline]
    fn receive_ready(&mut self, context: &mut Context<'_>, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::receive_ready(socket, context, buffer),
            Kind::Encrypted(encrypted) => Poll::Ready(encrypted.tls.take(buffer)),
            Kind::Layered(layer) => {
                let room = buffer.free();
                let most = room.len();
                let mut put = |content: &[u8]| room[..content.len()].copy_from_slice(content);
                let taken = layer.take_with(most, &mut put);
                Poll::Ready(taken.inspect(|count| buffer.fill(*count)))
            }
        }
    }

    #[inline]
    fn poll_send(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::poll_send(socket, context, bytes),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_send(&encrypted.socket, context, &[bytes]),
            Kind::Layered(layer) => layer.poll_send(context, bytes),
        }
    }

    #[inline]
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = match &mut self.0 {
            Kind::Plain(socket) => socket,
            Kind::Encrypted(encrypted) => {
                ready!(encrypted.tls.poll_close(&encrypted.socket, context))?;
                &mut encrypted.socket
            }
            Kind::Layered(layer) => {
                ready!(layer.poll_flush(context))?;
                return layer.below_mut().poll_shutdown(context);
            }
        };
        Pin::new(socket).poll_shutdown(context)
    }

    #[inline]
    fn reset_on_close(&mut self) {
        match &mut self.0 {
            Kind::Plain(socket) => system::reset_on_close(socket),
            Kind::Encrypted(encrypted) => system::reset_on_close(&encrypted.socket),
            Kind::Layered(layer) => layer.below_mut().reset_on_close(),
        }
    }

    #[inline]
    fn bare(&self) -> Option<&TcpStream> {
        match &self.0 {
            Kind::Plain(socket) => Some(socket),
            Kind::Encrypted(_) | Kind::Layered(_) => None,
        }
    }

    fn is_broken_off(&mut self, _: &mut Context<'_>) -> bool {
        socket::is_reset(self.socket())
    }

    fn is_gone(&mut self, _: &mut Context<'_>) -> bool {
        socket::is_over(self.socket())
    }
}

impl Stream {
    /// A connection without encryption.
    pub fn plain(socket: TcpStream) -> Stream {
        Stream(Kind::Plain(socket))
    }

    /// A connection whose handshake is done.
    pub fn encrypted(socket: TcpStream, tls: Tls) -> Stream {
        Stream(Kind::Encrypted(Box::new(Encrypted { socket, tls })))
    }

    /// A connection with a layer on top.
    pub fn layered(layer: Box<dyn Layer>) -> Stream {
        Stream(Kind::Layered(layer))
    }

    /// Whether the bytes go through a layer, which needs to know where units end.
    pub fn has_parts(&self) -> bool {
        matches!(self.0, Kind::Layered(_))
    }

    /// Marks the end of a unit for a layer; does nothing without one.
    pub fn end_part(&mut self) {
        if let Kind::Layered(layer) = &mut self.0 {
            layer.end_part();
        }
    }

    /// What is borrowed for its encryption from now on is memory of `owner`, a client of the same worker.
    #[inline]
    pub fn counts_for(&mut self, owner: &Rc<Buffers>) {
        if let Kind::Encrypted(encrypted) = &mut self.0 {
            encrypted.tls.counts_for(owner);
        }
    }

    /// Takes the socket out of a plain connection; `None` for any other.
    pub fn into_socket(self) -> Option<TcpStream> {
        match self.0 {
            Kind::Plain(socket) => Some(socket),
            Kind::Encrypted(_) | Kind::Layered(_) => None,
        }
    }

    /// The socket below, whatever is between it and the bytes.
    fn socket(&self) -> &TcpStream {
        match &self.0 {
            Kind::Plain(socket) => socket,
            Kind::Encrypted(encrypted) => &encrypted.socket,
            Kind::Layered(layer) => layer.below().socket(),
        }
    }

    /// Receives once into the free room of `buffer`, which must not be full, if this is a plain connection
    /// that is known to be ready. Otherwise `Pending`, and no waker is registered. For a task that its waker
    /// has just woken: most likely the bytes are there.
    #[inline]
    pub fn receive_now(&mut self, buffer: &mut Buffer) -> Poll<io::Result<usize>> {
        match &self.0 {
            Kind::Plain(socket) => socket::receive_now(socket, buffer),
            Kind::Encrypted(_) | Kind::Layered(_) => Poll::Pending,
        }
    }

    /// A number that grows as the peer acknowledges sent bytes; `None` if the kernel has none that it has not
    /// acknowledged. A system call.
    pub fn taken(&self) -> Option<u64> {
        let unsent_bytes = self.unsent_bytes();
        (unsent_bytes > 0).then(|| u64::MAX - unsent_bytes)
    }

    /// Bytes sent that the kernel still has because the peer has not acknowledged them. A system call.
    pub fn unsent_bytes(&self) -> u64 {
        system::unsent_bytes(self.socket())
    }

    /// Turns off Nagle's algorithm (TCP_NODELAY), so that small messages do not wait for earlier
    /// acknowledgements.
    pub fn send_at_once(&self) {
        // A failure costs only time, and means that the connection is gone already.
        let _ = self.socket().set_nodelay(true);
    }

    /// Ends the connection if the peer's kernel does not acknowledge sent bytes for this long
    /// (TCP_USER_TIMEOUT, RFC 5482).
    pub fn end_when_unacknowledged(&self, after: Duration) {
        // Other kinds of sockets do not have this option.
        let after_ms = after.as_millis().try_into().unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(self.socket(), after_ms);
    }

    /// Has the kernel ask the peer's kernel whether it is there, once nothing has come for `idle`, and every
    /// `interval` from then on (SO_KEEPALIVE, tcp(7)). A peer that does not answer ends the connection after
    /// [`Self::end_when_unacknowledged`].
    pub fn probe_when_silent(&self, idle: Duration, interval: Duration) {
        // Other kinds of sockets do not have these options.
        let socket = self.socket();
        let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
        let _ = rustix::net::sockopt::set_tcp_keepidle(socket, idle);
        let _ = rustix::net::sockopt::set_tcp_keepintvl(socket, interval);
    }

    /// How the peer's host acknowledges what is sent to it; `None` without TCP. A system call.
    pub fn acknowledged(&self) -> Option<Acknowledged> {
        system::tcp::acknowledged(self.socket())
    }

    /// Our address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Receives once, for readers that have their own buffer.
    pub fn poll_read(&mut self, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(socket) => Pin::new(socket).poll_read(context, room),
            Kind::Encrypted(encrypted) => {
                ready!(encrypted.tls.poll_readable(&encrypted.socket, context))?;
                let taken = encrypted.tls.take_with(room.remaining(), |content| room.put_slice(content));
                Poll::Ready(taken.map(|_| ()))
            }
            Kind::Layered(layer) => {
                ready!(layer.poll_readable(context))?;
                let taken = layer.take_with(room.remaining(), &mut |content| room.put_slice(content));
                Poll::Ready(taken.map(|_| ()))
            }
        }
    }

    /// As [`Duplex::poll_send`], for several slices in one call.
    #[inline]
    pub fn poll_send_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[&[u8]; 3],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(socket) => socket::poll_send_vectored(socket, context, &parts.map(io::IoSlice::new)),
            Kind::Encrypted(encrypted) => encrypted.tls.poll_send(&encrypted.socket, context, parts),
            Kind::Layered(layer) => layer.poll_send(context, first_of(parts.iter().copied())),
        }
    }

    /// As [`Duplex::poll_send`], for any number of slices.
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
            Kind::Layered(layer) => layer.poll_send(context, first_of(parts.iter().map(|part| &**part))),
        }
    }

    /// Announces an orderly end where the protocol has a message for that (`close_notify`, RFC 8446 section
    /// 6.1), if the kernel takes it now: a client must be able to tell the end of a connection from a
    /// truncation attack.
    pub async fn say_farewell(&mut self) {
        match &mut self.0 {
            Kind::Plain(_) => {}
            Kind::Encrypted(encrypted) => {
                let Encrypted { socket, tls } = &mut **encrypted;
                std::future::poll_fn(|context| {
                    let _ = tls.poll_close(socket, context);
                    Poll::Ready(())
                })
                .await;
            }
            Kind::Layered(layer) => Box::pin(layer.below_mut().say_farewell()).await,
        }
    }

    /// Whether nothing is waiting to be received, not even an end of stream. Costs no system call while tokio
    /// considers the socket drained, as after an exchange that ended cleanly.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        let (socket, mut is_quiet) = match &self.0 {
            Kind::Plain(socket) => (socket, true),
            Kind::Encrypted(encrypted) => (&encrypted.socket, encrypted.tls.is_quiet()),
            Kind::Layered(layer) => return !layer.has_content() && layer.below().is_quiet(),
        };
        // Runs only while tokio considers the socket readable.
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

    /// Whether a peer that waits for something has reset or silently closed its connection. Once it has sent
    /// something, a close may be a half-close, and what it sent may be a request that wants an answer: then
    /// only a reset counts, and no waker is registered for it.
    pub fn poll_left(&mut self, context: &mut Context<'_>) -> bool {
        match self.poll_present(context) {
            Ok(Sight::Quiet) => false,
            Ok(Sight::Speaking) => self.is_broken_off(context),
            Ok(Sight::Ended) | Err(_) => true,
        }
    }

    /// State of the peer, without consuming anything it sent. `Err` if the connection was reset.
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
            Kind::Layered(layer) if layer.has_content() => return Ok(Sight::Speaking),
            Kind::Layered(layer) => return layer.below_mut().poll_present(context),
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

/// The first part that is not empty: a layer takes one piece at a time.
fn first_of<'a>(mut parts: impl Iterator<Item = &'a [u8]>) -> &'a [u8] {
    parts.find(|part| !part.is_empty()).unwrap_or_default()
}
