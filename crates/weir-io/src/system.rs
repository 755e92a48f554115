//! The few system calls that tokio and the standard library do not offer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};

/// Numbers of the CPUs this process may run on; empty when the kernel does not say.
pub fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Pins the calling thread to one CPU.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on every CPU that the process may use, at a lower priority than the workers
/// (nice 10). This is for long work on a thread that was spawned by a pinned one ([`pin_to`]). If the kernel
/// allows neither, the thread stays as it is.
pub fn run_beside_workers() {
    let mut set = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    // The kernel uses those of them that the control group grants.
    let _ = rustix::thread::sched_setaffinity(None, &set);
    // On Linux this applies to a thread (setpriority(2)).
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Descriptor number from which on accepting pauses, so that accepted connections can still be served.
///
/// The kernel hands out the lowest free number (open(2)), so a high number shows how many are in use, without
/// counting. An eighth of the limit is held back, at least 8 and at most 1024.
pub fn accept_ceiling() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = limit.min(i32::MAX as u64) as i32;
    limit - (limit / 8).clamp(8, 1024)
}

/// A quarter of the descriptors that this process may have, the share for what is not a connection.
pub fn quarter_of_descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) / 4
}

/// Prevents core dumps of this process from now on (core(5)), as there are passwords in its memory. A handler
/// that `core_pattern` pipes to is passed the limit, and systemd-coredump respects it.
///
/// Making the process not dumpable (prctl(2)) would be safer, but then it could no longer count its own
/// descriptors unless it runs as root.
pub fn forbid_core() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    let none = rustix::process::Rlimit { current: Some(0), ..limit };
    // Lowering the limit is always allowed.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
}

/// Whether the kernel had no descriptor left, or no memory for one: no peer is to blame.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Whether a connection to `to` failed because no local port or table entry is left (connect(2)): no peer is
/// to blame. For IPv6 the kernel returns the same error when the host has no address for the route, which is
/// no shortage. A datagram socket, which has ports of its own, tells the two apart.
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

/// Whether a datagram socket could not be connected because no local port is left (connect(2)): no peer is to
/// blame. Unlike TCP connections, it needs a port that no other datagram socket on the same address has.
pub fn is_out_of_datagram_ports(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EADDRINUSE))
}

/// Whether a datagram is longer than a datagram can be, or than the path carries (udp(7)). On a connected
/// socket the kernel also reports this once for an earlier datagram, after it has learnt what the path
/// carries.
pub fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Accepts a connection that is waiting; `None` when there is none.
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

/// Index of an interface that does not exist: the kernel numbers interfaces upwards from 1.
const NOWHERE: NonZeroU32 = NonZeroU32::new(i32::MAX as u32).expect("not zero");

/// Permanently removes a listening TCP socket from the lookup for new connections: a SYN to its address finds
/// another socket there from now on, or is refused. Handshakes under way still complete at it, and
/// connections in its queue stay. Since Linux 5.7 this needs no capability (`SO_BINDTOIFINDEX`, socket(7)).
///
/// A socket that is already bound to an interface can only be bound to another with CAP_NET_RAW. Without
/// that, the socket stays where it is and ignores new SYNs: the client repeats its SYN a second later, after
/// the socket was closed.
///
/// # Errors
/// The kernel is older; the socket is unchanged.
pub fn withdraw(listener: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(listener);
    match socket.bind_device_by_index_v4(Some(NOWHERE)) {
        Err(error) if is_not_permitted(&error) && interface_of(listener).is_some() => {
            socket.attach_filter(&NO_NEW_CONNECTIONS)
        }
        bound => bound,
    }
}

/// A filter for a listening socket (socket(7), `SO_ATTACH_FILTER`), which sees packets from the TCP header
/// on: drops those with SYN and without ACK.
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

/// Whether [`withdraw`] was called for the socket, by this process or another.
pub fn is_withdrawn(listener: &impl AsFd) -> bool {
    let interface = interface_of(listener);
    interface == Some(NOWHERE) || interface.is_some() && datagrams::has_filter(listener)
}

/// Whether an error says that no interface has the name that was given.
pub fn is_no_interface(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

/// Whether an error says that this process lacks a capability. Ports below 1024 without the right to them
/// give another error (EACCES).
pub fn is_not_permitted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// Whether the error says that there are no sockets of this address family: the host has no IPv6, or the
/// process's sandbox forbids it.
pub fn is_no_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Index of the interface that a socket is bound to; `None` when it is bound to none.
pub fn interface_of(socket: &impl AsFd) -> Option<NonZeroU32> {
    SockRef::from(socket).device_index_v4().ok().flatten()
}

/// Index of the interface that has this name or alternative name now (ip-link(8), `altname`); `None` if none
/// has. An interface that is removed and created again under its name has another index.
pub fn interface_named(name: &str) -> Option<NonZeroU32> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None).ok()?;
    NonZeroU32::new(rustix::net::netdevice::name_to_index(&socket, name).ok()?)
}

/// Makes closing the socket send a reset, so that the peer can tell that what it received is incomplete.
pub fn reset_on_close(socket: &impl AsFd) {
    // If this fails the close is an ordinary one; a peer that counts bytes still notices.
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
pub mod tcp;
