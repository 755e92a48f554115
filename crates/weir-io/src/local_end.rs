//! The source of connections and datagrams to backends: an address, an interface, or the client's own
//! address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::at::At;
use crate::system::datagrams::{bind_without_port, make_transparent};

/// Where connections and datagrams leave from. The kernel chooses what is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocalEnd {
    /// Source address towards IPv4 backends.
    pub v4: Option<Ipv4Addr>,
    /// Source address towards IPv6 backends.
    pub v6: Option<Ipv6Addr>,
    /// Name of an interface.
    pub interface: Option<Box<str>>,
    /// Use the client's own address as the source (`IP_TRANSPARENT`, ip(7)). Answers arrive only if routing
    /// leads them to this host.
    pub is_clients: bool,
}

impl LocalEnd {
    /// Whether the kernel chooses everything.
    pub fn is_any(&self) -> bool {
        *self == LocalEnd::default()
    }

    /// The same without the client's address, for what has no client: a probe.
    #[must_use]
    pub fn without_client(&self) -> LocalEnd {
        LocalEnd { is_clients: false, ..self.clone() }
    }

    /// A bound socket that is yet to be connected to `to`, on behalf of `client`.
    ///
    /// # Errors
    /// The socket can't be bound there; nothing is wrong with the backend.
    pub fn open(&self, to: SocketAddr, client: Option<IpAddr>, is_stream: bool) -> io::Result<Socket> {
        let (kind, protocol) =
            if is_stream { (Type::STREAM, Protocol::TCP) } else { (Type::DGRAM, Protocol::UDP) };
        let domain = Domain::for_address(to);
        let socket = Socket::new(domain, kind.nonblocking().cloexec(), Some(protocol))?;
        if let Some(interface) = &self.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if let Some(from) = self.address_for(to, client)? {
            if self.is_clients {
                make_transparent(&socket, to.is_ipv6())?;
            }
            // The kernel chooses the port when the socket connects, so that a port is only taken for one
            // backend's address, and other connections can use it towards other backends.
            bind_without_port(&socket)?;
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        Ok(socket)
    }

    /// Whether a socket for `client` can be connected to `to`. It can't if the source is the client's own
    /// address and that is of the other family.
    pub fn suits(&self, to: SocketAddr, client: Option<IpAddr>) -> bool {
        self.address_for(to, client).is_ok()
    }

    /// Whether an error from connecting or sending on a socket that [`LocalEnd::open`] returned is about its
    /// source and not about its destination: no route leads there from that address or through that
    /// interface, or the address or interface is gone (connect(2), ip(7)). Routers report some of these
    /// errors as well, for packets that have already left.
    pub fn explains(&self, error: &io::Error) -> bool {
        let is_special = self.is_clients || self.interface.is_some();
        match error.raw_os_error() {
            Some(libc::EINVAL) => true,
            Some(libc::EPERM | libc::EACCES | libc::ENETUNREACH | libc::ENETDOWN | libc::ENODEV) => {
                is_special
            }
            _ => error.kind() == io::ErrorKind::AddrNotAvailable,
        }
    }

    /// The source address. `None` leaves it to the kernel, as for a client that connected to a Unix socket
    /// and has no address.
    fn address_for(&self, to: SocketAddr, client: Option<IpAddr>) -> io::Result<Option<IpAddr>> {
        if !self.is_clients {
            return Ok(match to.ip() {
                IpAddr::V4(_) => self.v4.map(IpAddr::V4),
                IpAddr::V6(_) => self.v6.map(IpAddr::V6),
            });
        }
        let client = client.map(|client| client.to_canonical()).filter(|client| !client.is_unspecified());
        let Some(client) = client else { return Ok(None) };
        if client.is_ipv4() != to.is_ipv4() {
            let text = format!("{client} can't be the source of packets to {}", to.ip());
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        Ok(Some(client))
    }

    /// Connects to `at` without a client. For a Unix socket there is no source to choose.
    ///
    /// # Errors
    /// The socket can't be bound to the source, or the connection was not accepted.
    pub async fn connect(&self, at: &At) -> io::Result<TcpStream> {
        match at {
            At::Inet(to) if !self.is_any() => {
                connect(self.open(*to, None, true).map_err(not_here)?, *to).await
            }
            at => at.connect().await,
        }
    }
}

/// A socket that is yet to be connected, and the address it is bound to, with a port that no other socket on
/// that address has. When it is closed it resets its connection, so that the port is free at once.
///
/// # Errors
/// The socket can't be bound to the source, no route leads to `to`, or no port is left.
pub fn open_alone(
    local_end: &LocalEnd,
    to: SocketAddr,
    mss: Option<u32>,
) -> io::Result<(Socket, SocketAddr)> {
    // Finds out which address the kernel chooses; nothing is sent.
    let datagrams = local_end.open(to, None, false).map_err(not_here)?;
    datagrams.connect(&to.into())?;
    let from = datagrams.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket =
        Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if let Some(interface) = &local_end.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(mss) = mss {
        socket.set_tcp_mss(mss)?;
    }
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&SocketAddr::new(from.ip(), 0).into())?;
    let here = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket, here))
}

/// Turns the error that [`LocalEnd::open`] returns for an address that this host does not have into one
/// without the error number. Connections fail with the same number when ports have run out
/// ([`crate::system::is_out_of_ports`]): that is a shortage, this is a mistake in the config.
pub fn not_here(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            io::Error::new(error.kind(), "its pool's `source` is no address of this host")
        }
        _ => error,
    }
}

/// Whether this process may use its clients' addresses as the source of what it sends.
///
/// # Errors
/// It may not, because it lacks CAP_NET_ADMIN and CAP_NET_RAW; or no descriptor is left.
pub fn may_be_clients() -> io::Result<()> {
    make_transparent(&Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?, false)
}

/// Connects a socket that [`LocalEnd::open`] returned.
///
/// # Errors
/// The connection was not accepted.
pub async fn connect(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::is_out_of_ports;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_connection_leaves_from_the_address_of_its_family() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let local_end = LocalEnd { v4: Some(Ipv4Addr::new(127, 0, 0, 77)), ..LocalEnd::default() };
        let stream = local_end.connect(&to.into()).await.unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), Ipv4Addr::new(127, 0, 0, 77));
        assert_eq!(listener.accept().await.unwrap().1.ip(), Ipv4Addr::new(127, 0, 0, 77));
        let other = LocalEnd { v6: Some(Ipv6Addr::LOCALHOST), ..LocalEnd::default() };
        assert_eq!(other.connect(&to.into()).await.unwrap().local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
    }

    #[tokio::test]
    async fn an_address_that_is_not_here_is_told() {
        let local_end = LocalEnd { v4: Some(Ipv4Addr::new(192, 0, 2, 1)), ..LocalEnd::default() };
        let error = local_end.connect(&"127.0.0.1:9".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(!is_out_of_ports(&error, "127.0.0.1:9".parse().unwrap()), "nothing has run out");
        assert!(error.to_string().contains("no address of this host"), "{error}");
        let nowhere = LocalEnd { interface: Some("no-such-if".into()), ..LocalEnd::default() };
        assert!(nowhere.connect(&"127.0.0.1:9".parse().unwrap()).await.is_err());
    }

    #[test]
    fn no_port_to_leave_from_is_a_shortage_where_the_host_has_an_address_for_the_way() {
        let error = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        assert!(is_out_of_ports(&error, "127.0.0.1:9".parse().unwrap()));
        assert!(!is_out_of_ports(&io::ErrorKind::ConnectionRefused.into(), "127.0.0.1:9".parse().unwrap()));
    }

    #[test]
    fn a_client_of_the_other_family_is_refused_and_a_mapped_one_is_not() {
        let local_end = LocalEnd { is_clients: true, ..LocalEnd::default() };
        let address = |to: &str, client: &str| {
            local_end.address_for(to.parse().unwrap(), Some(client.parse().unwrap()))
        };
        assert!(address("10.0.0.1:80", "2001:db8::1").is_err());
        let v4 = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(address("10.0.0.1:80", "::ffff:192.0.2.7").unwrap(), Some(v4));
        assert_eq!(address("[2001:db8::9]:80", "2001:db8::1").unwrap(), Some("2001:db8::1".parse().unwrap()));
        for to in ["10.0.0.1:80", "[2001:db8::9]:80"] {
            assert_eq!(address(to, "0.0.0.0").unwrap(), None, "of a Unix socket");
        }
    }

    #[test]
    fn what_is_about_the_source_is_told_from_what_is_about_the_backend() {
        let explains = |local_end: &LocalEnd, numbers: &[i32]| {
            let all = numbers.iter().map(|number| local_end.explains(&io::Error::from_raw_os_error(*number)));
            all.collect::<Vec<bool>>()
        };
        let of_source = [libc::EINVAL, libc::EADDRNOTAVAIL];
        let of_way = [libc::EPERM, libc::EACCES, libc::ENETUNREACH, libc::ENETDOWN, libc::ENODEV];
        let of_backend = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ETIMEDOUT, libc::ECONNRESET];
        let of_one = LocalEnd { v4: Some(Ipv4Addr::LOCALHOST), ..LocalEnd::default() };
        assert_eq!(explains(&of_one, &of_way), [false; 5]);
        let of_clients = LocalEnd { is_clients: true, ..LocalEnd::default() };
        let by_interface = LocalEnd { interface: Some("eth1".into()), ..LocalEnd::default() };
        for local_end in [of_clients, by_interface] {
            assert_eq!(explains(&local_end, &of_way), [true; 5]);
            assert_eq!(explains(&local_end, &of_source), [true; 2]);
            assert_eq!(explains(&local_end, &of_backend), [false; 4]);
        }
        assert_eq!(explains(&of_one, &of_source), [true; 2]);
    }
}
