//! A listening stream socket: TCP, or Unix domain.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream};

use crate::system::{self, datagrams};
use crate::unix_socket;

/// The peer address given for connections to a Unix socket, which have none: the unspecified address, which
/// no peer over IP has.
pub const UNIX_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A listening socket, registered with the runtime.
pub enum Listener {
    /// TCP.
    Inet(TcpListener),
    /// Unix domain. tokio's own listener gives streams of another type; [`crate::at`] says why there is only
    /// one type here.
    Unix(AsyncFd<OwnedFd>),
}

impl Listener {
    /// Registers a socket that is listening and non-blocking.
    ///
    /// # Errors
    /// The runtime can't watch it.
    pub fn new(socket: OwnedFd) -> io::Result<Listener> {
        if SockRef::from(&socket).domain()? == Domain::UNIX {
            return datagrams::watch(socket, Interest::READABLE).map(Listener::Unix);
        }
        TcpListener::from_std(socket.into()).map(Listener::Inet)
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let socket = match self {
            Listener::Inet(listener) => return listener.poll_accept(context),
            Listener::Unix(socket) => socket,
        };
        loop {
            let mut ready = ready!(socket.poll_read_ready(context))?;
            match accept_unix(socket.get_ref()) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                accepted => return Poll::Ready(accepted.map_err(io::Error::from).and_then(begin)),
            }
        }
    }

    /// Accepts a connection that is waiting; `None` when there is none.
    ///
    /// # Errors
    /// Those of accept(2); and for a Unix socket that was withdrawn, once its queue is empty, an error for
    /// which [`is_end`] is true.
    pub fn accept_now(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let socket = match self {
            Listener::Inet(listener) => return system::accept_now(listener),
            Listener::Unix(socket) => socket,
        };
        // Checked before accepting: no connection enters the queue after the withdrawal, and those from
        // before are still in it.
        let has_ended = unix_socket::is_withdrawn(socket.get_ref());
        match accept_unix(socket.get_ref()) {
            Err(Errno::AGAIN) if has_ended => Err(Errno::INVAL.into()),
            Err(Errno::AGAIN) => Ok(None),
            accepted => accepted.map_err(io::Error::from).and_then(begin).map(Some),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Inet(listener) => listener.as_fd(),
            Listener::Unix(socket) => socket.as_fd(),
        }
    }
}

/// Whether an error of [`Listener::accept_now`] means that no more connections will come. A blocking
/// accept(2) reports it with the same error.
pub fn is_end(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

fn accept_unix(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

fn begin(socket: OwnedFd) -> io::Result<(TcpStream, SocketAddr)> {
    Ok((TcpStream::from_std(socket.into())?, UNIX_PEER))
}
