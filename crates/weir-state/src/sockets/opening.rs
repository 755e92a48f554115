//! Opens the sockets of one endpoint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol as SocketProtocol, Socket, Type};

use weir_io::system::interface_named;

use super::{BACKLOG, Endpoint, Transport};

/// Pause between two attempts.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// Duplicates of an existing group's descriptors. For QUIC also new members, if an upgrade added workers: two
/// workers sharing one socket would each get half of a connection's packets.
pub(super) fn keep_group(
    endpoint: &Endpoint,
    address: SocketAddr,
    old: &[OwnedFd],
    workers: usize,
) -> io::Result<Vec<OwnedFd>> {
    let mut group = old.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
    if endpoint.transport == Transport::Quic
        && let Some(first) = old.first()
        && endpoint
            .interface
            .as_ref()
            .is_none_or(|name| interface_named(name) == endpoint.interface_of(first))
    {
        let address = socket2::SockRef::from(first).local_addr()?.as_socket().unwrap_or(address);
        while group.len() < workers {
            group.push(open(endpoint, address, true)?);
        }
    }
    Ok(group)
}

/// One socket per worker on one endpoint.
///
/// `SO_REUSEPORT` lets any process of this user join the group: a second Weir on the same address would
/// silently take half of the connections. So the address is first bound without it, which fails while anybody
/// else listens there for longer than `patience`. With `None` that check is skipped, because we listen there
/// ourselves, as when 127.0.0.1:80 becomes 0.0.0.0:80; sockets of other users or outside a group still cause
/// an error then.
pub(super) fn open_group(
    endpoint: &Endpoint,
    address: SocketAddr,
    workers: usize,
    patience: Option<Duration>,
) -> io::Result<Vec<OwnedFd>> {
    // Port 0 belongs to nobody yet; the kernel chooses the port, and all workers share it.
    if address.port() != 0
        && let Some(patience) = patience
    {
        drop(open_alone(endpoint, address, patience)?);
    }
    let first = open(endpoint, address, true)?;
    let chosen = socket2::SockRef::from(&first).local_addr()?.as_socket().unwrap_or(address);
    let rest = (1..workers).map(|_| open(endpoint, chosen, true));
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// Binds without a group. A listener that a reload removed a moment ago may still be serving its accept
/// queue: its address is busy until then, and a reload that brings it back must not fail because of that.
fn open_alone(endpoint: &Endpoint, address: SocketAddr, patience: Duration) -> io::Result<OwnedFd> {
    with_patience(patience, || open(endpoint, address, false))
}

/// Opens a socket, retrying for `patience` while its address is in use.
pub(super) fn with_patience<S>(patience: Duration, open: impl Fn() -> io::Result<S>) -> io::Result<S> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < patience => {
                std::thread::sleep(RELEASE_PAUSE);
            }
            opened => return opened,
        }
    }
}

/// Whether a socket can be bound there now. Takes nothing from existing sockets.
pub(super) fn can_be_opened(endpoint: &Endpoint) -> bool {
    endpoint.at.inet().is_some_and(|address| bind(endpoint, address, true).is_ok())
}

/// Opens one socket for an endpoint and binds it to `address`; listens on it only as a member of a group.
fn open(endpoint: &Endpoint, address: SocketAddr, in_group: bool) -> io::Result<OwnedFd> {
    let socket = bind(endpoint, address, in_group)?;
    if endpoint.transport == Transport::Tcp && in_group {
        socket.listen(BACKLOG.into())?;
    }
    Ok(socket.into())
}

/// Opens one socket for an endpoint and binds it to `address`.
fn bind(endpoint: &Endpoint, address: SocketAddr, in_group: bool) -> io::Result<Socket> {
    let transport = endpoint.transport;
    let domain = Domain::for_address(address);
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, SocketProtocol::TCP),
        Transport::Udp | Transport::Quic => (Type::DGRAM, SocketProtocol::UDP),
    };
    let socket = Socket::new(domain, kind.nonblocking().cloexec(), Some(protocol))?;
    if domain == Domain::IPV6 {
        // So that `0.0.0.0:80` and `[::]:80` can both be bound.
        socket.set_only_v6(true)?;
    }
    if transport == Transport::Tcp {
        socket.set_reuse_address(true)?;
    } else {
        // Holds a burst of datagrams while the worker is busy; the kernel caps it at `net.core.rmem_max`.
        let _ = socket.set_recv_buffer_size(4 << 20);
        let _ = socket.set_send_buffer_size(4 << 20);
    }
    // Accepted connections inherit it: heads and bodies go out in separate writes, and Nagle's algorithm
    // would delay the second.
    if transport == Transport::Tcp {
        socket.set_tcp_nodelay(true)?;
    }
    socket.set_reuse_port(in_group)?;
    if let Some(interface) = &endpoint.interface {
        // Bind to the interface first: whether an address is in use, or exists at all, depends on it.
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
