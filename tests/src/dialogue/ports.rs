//! Addresses nobody listens on.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Below the kernel's range for outgoing connections (32768 up), so that no client's own port can take one of
/// ours between the moment it was found free and the moment the program under test binds it.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A loopback address that is free for TCP and for UDP, and that this process has not handed out before.
pub fn free_address() -> SocketAddr {
    if NEXT.load(Ordering::Relaxed) == 0 {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.subsec_nanos());
        let start = (nanos ^ std::process::id().wrapping_mul(2_654_435_761)) % COUNT + 1;
        let _ = NEXT.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    for _ in 0..COUNT {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(port).expect("below 32768")));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// Listens at an address from [`free_address`].
///
/// A child that another thread is just starting holds a copy of every descriptor of ours between fork and
/// exec, also of a socket that has just been closed; so a busy address is tried again for a moment.
pub fn listen_at(address: SocketAddr) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(problem)
                if problem.kind() == ErrorKind::AddrInUse && begun.elapsed() < Duration::from_secs(2) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(problem) => panic!("can't listen at {address}: {problem}"),
        }
    }
}

/// A UDP socket at a free address; see [`listen_at`].
pub fn datagram_socket() -> UdpSocket {
    let begun = Instant::now();
    loop {
        match UdpSocket::bind(free_address()) {
            Ok(socket) => return socket,
            Err(problem) => {
                assert!(begun.elapsed() < Duration::from_secs(2), "no datagram socket: {problem}")
            }
        }
    }
}

/// A backend that never accepts: a full accept queue drops SYNs, as a firewall would.
#[derive(Debug)]
pub struct Unreachable {
    address: SocketAddr,
    _socket: socket2::Socket,
    _fillers: Vec<TcpStream>,
}

impl Unreachable {
    /// At an address of its own.
    pub fn start() -> Unreachable {
        let begun = Instant::now();
        let (socket, address) = loop {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
            let address = free_address();
            match socket.bind(&address.into()) {
                Ok(()) => break (socket, address),
                Err(problem) => {
                    assert!(begun.elapsed() < Duration::from_secs(2), "no socket: {problem}")
                }
            }
        };
        Unreachable::filled(socket, address)
    }

    /// At this address, of IPv4.
    pub fn at(address: SocketAddr) -> Unreachable {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&address.into()).expect("an address of this machine that nobody has");
        Unreachable::filled(socket, address)
    }

    fn filled(socket: socket2::Socket, address: SocketAddr) -> Unreachable {
        socket.listen(0).expect("listen");
        let fillers = (0..8)
            .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok())
            .collect();
        Unreachable { address, _socket: socket, _fillers: fillers }
    }

    /// Where it does not accept.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
