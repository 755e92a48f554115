//! The few calls to the kernel that tokio and the standard library do not offer.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use socket2::SockRef;
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
/// # Errors
/// The kernel is older, or the socket is bound to an interface already; it goes on as it was.
pub fn withdraw(listener: &impl AsFd) -> io::Result<()> {
    SockRef::from(listener).bind_device_by_index_v4(Some(NOWHERE))
}

/// Whether [`withdraw`] was called for the socket, in this process or another.
pub fn is_withdrawn(listener: &impl AsFd) -> bool {
    SockRef::from(listener).device_index_v4().is_ok_and(|index| index == Some(NOWHERE))
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
