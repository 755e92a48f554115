//! The few calls to the kernel that tokio and the standard library do not offer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};

/// CPUs this process may run on, by number; empty when the kernel does not say.
pub fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps the calling thread on one CPU.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on every CPU that the process may use, behind those that serve (nice 10): for
/// work that takes long, and that a thread began which [`pin_to`] keeps in its place. Where the kernel lets
/// it do neither it stays as it is.
pub fn run_beside_workers() {
    let mut set = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    // The kernel takes of these what the control group grants.
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // For Linux a thread (setpriority(2)).
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Number of a descriptor from which on accepting pauses, so that what was accepted can still be served.
///
/// The kernel gives out the lowest free number (open(2)), so a high one tells how many are in use, without
/// counting. An eighth of the limit is held back, at least 8 and at most 1024.
pub fn accept_ceiling() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = limit.min(i32::MAX as u64) as i32;
    limit - (limit / 8).clamp(8, 1024)
}

/// A quarter of the descriptors that this process may have, for what is not a connection.
pub fn quarter_of_descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) / 4
}

/// Has no core be written of this process from now on (core(5)): there are passwords in its memory. A
/// handler that `core_pattern` pipes to is told of the limit, and systemd-coredump goes by it.
///
/// A process that is not dumpable (prctl(2)) would be safer, and could not count its own descriptors any more
/// unless it is root's.
pub fn forbid_core() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    let none = rustix::process::Rlimit { current: Some(0), ..limit };
    // Lowering it is always allowed.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
}

/// Whether the kernel had no descriptor, or no memory for one, left for us: no peer is to blame.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Whether a connection to `to` failed for want of a port, or an entry of a table, to leave from
/// (connect(2)): no peer is to blame. IPv6 says the same where the host has no address for the way there,
/// which is no shortage: a datagram socket, whose ports are others, tells the two apart.
pub fn is_out_of_ports(error: &io::Error, to: SocketAddr) -> bool {
    let is_without_address = |error: io::Error| error.raw_os_error() == Some(libc::EADDRNOTAVAIL);
    let any = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let has_address = || {
        std::net::UdpSocket::bind((any, 0))
            .and_then(|it| it.connect(to))
            .map_or_else(|it| !is_without_address(it), |()| true)
    };
    error.raw_os_error() == Some(libc::EADDRNOTAVAIL) && has_address()
}

/// Whether a datagram socket could not be connected for want of a port to leave from (connect(2)): no peer is
/// to blame. Other than a connection, it takes its port from all others that leave by the same address.
pub fn is_out_of_datagram_ports(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EADDRINUSE))
}

/// Whether a datagram is longer than one can be, or than the way carries (udp(7)). On a connected socket the
/// kernel says so once also of a datagram that was sent before, when it has learnt what the way carries.
pub fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Accepts a connection that waits; `None` when there is none.
pub fn accept_now(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    match SockRef::from(listener).accept() {
        Ok((stream, peer)) => {
            stream.set_nonblocking(true)?;
            let peer = peer.as_socket().ok_or(io::ErrorKind::Unsupported)?;
            Ok(Some((TcpStream::from_std(stream.into())?, peer)))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// An interface that no packet arrives on: the kernel counts up from 1 as interfaces are made.
const NOWHERE: NonZeroU32 = NonZeroU32::new(i32::MAX as u32).expect("not zero");

/// Takes a listening TCP socket out of the search for new connections, for good: what asks for its address
/// from now on finds another socket there, or is refused. Handshakes under way end at it, and what waits in
/// its queue stays. Nobody has to have a right for that, since Linux 5.7 (`SO_BINDTOIFINDEX`, socket(7)).
///
/// Who is bound to an interface already may leave it by CAP_NET_RAW only. Without, the socket stays where it
/// is and leaves what asks for a connection unanswered: the client asks again a second later, once the socket
/// is closed.
///
/// # Errors
/// The kernel is older; the socket goes on as it was.
pub fn withdraw(listener: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(listener);
    match socket.bind_device_by_index_v4(Some(NOWHERE)) {
        Err(error) if is_not_permitted(&error) && interface_of(listener).is_some() => {
            socket.attach_filter(&NO_NEW_CONNECTIONS)
        }
        bound => bound,
    }
}

/// A filter for a listening socket (socket(7), `SO_ATTACH_FILTER`), which is shown packets from the TCP
/// header on: drops those with SYN and without ACK.
const NO_NEW_CONNECTIONS: [SockFilter; 5] = {
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const SYN_AND_ACK: u32 = 0x12;
    [
        // Loads the byte with the flags (BPF_LD | BPF_B | BPF_ABS), and keeps these two (BPF_ALU | BPF_AND).
        SockFilter::new(0x30, 0, 0, FLAGS),
        SockFilter::new(0x54, 0, 0, SYN_AND_ACK),
        // BPF_JMP | BPF_JEQ, then twice BPF_RET.
        SockFilter::new(0x15, 0, 1, SYN),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ]
};

/// Whether [`withdraw`] was called for the socket, in this process or another.
pub fn is_withdrawn(listener: &impl AsFd) -> bool {
    let interface = interface_of(listener);
    interface == Some(NOWHERE) || interface.is_some() && datagrams::has_filter(listener)
}

/// Whether an error says that no interface has the name that was given.
pub fn is_no_interface(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

/// Whether an error says that this process lacks a right; that ports below 1024 are not for it is another
/// error (EACCES).
pub fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// Whether there are no sockets of that family: this host has no IPv6, or what confines the process keeps it
/// from it.
pub fn is_no_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Index of the interface that a socket is bound to; `None` when it is bound to none.
pub fn interface_of(socket: &impl AsFd) -> Option<NonZeroU32> {
    SockRef::from(socket).device_index_v4().ok().flatten()
}

/// Index of the interface that has this name now, or this other name (ip-link(8), `altname`); `None` when
/// none has. An interface that goes away and comes back under its name has another index.
pub fn interface_named(name: &str) -> Option<NonZeroU32> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None).ok()?;
    NonZeroU32::new(rustix::net::netdevice::name_to_index(&socket, name).ok()?)
}

/// Makes closing the socket send a reset, so that the peer sees that what it got is not whole.
pub fn reset_on_close(socket: &impl AsFd) {
    // A failure leaves an ordinary close, which a peer that counts bytes still tells from a whole message.
    let _ = SockRef::from(socket).set_linger(Some(std::time::Duration::ZERO));
}

/// Both ends of a pipe.
pub struct PipeEnds {
    /// The end to read from.
    pub read: OwnedFd,
    /// The end to write to.
    pub write: OwnedFd,
    /// Capacity that the kernel granted, in bytes of page slots.
    pub capacity_bytes: usize,
}

/// A non-blocking pipe, of `capacity_bytes` if the user's limit allows.
pub fn open_pipe(capacity_bytes: usize) -> io::Result<PipeEnds> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let capacity_bytes = match fcntl_setpipe_size(&write, capacity_bytes) {
        Ok(granted) => granted,
        Err(_) => fcntl_getpipe_size(&write)?,
    };
    Ok(PipeEnds { read, write, capacity_bytes })
}

/// Moves up to `count` bytes between a socket and a pipe without copying them. Zero is the end of the stream.
#[inline]
pub fn splice(from: &impl AsFd, to: &impl AsFd, count: usize) -> io::Result<usize> {
    Ok(rustix::pipe::splice(from, None, to, None, count, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?)
}

pub use datagrams::unsent_bytes;

pub mod datagrams;
