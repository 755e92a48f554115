//! What the kernel knows about a TCP connection (`TCP_INFO`, tcp(7)). The call needs `unsafe`, which is
//! confined to this file and to `datagrams`.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{socklen_t, tcp_info};

/// How the peer's host acknowledges what is sent to it, whatever the program there does.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// Whether a segment was sent that it has not acknowledged. What waits because the peer has no room is
    /// not sent.
    pub is_awaited: bool,
    /// Time since its last acknowledgement, of whatever, to the millisecond.
    pub last: Duration,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
}

/// See [`Acknowledged`]; `None` if the socket is none of TCP. A system call.
pub fn acknowledged(socket: &impl AsFd) -> Option<Acknowledged> {
    // SAFETY: the structure has integers only, for which zero is a value.
    let mut info: tcp_info = unsafe { mem::zeroed() };
    let mut size = mem::size_of::<tcp_info>() as socklen_t;
    // SAFETY: the kernel writes no more than the `size` bytes that the structure has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    (result == 0).then(|| Acknowledged {
        is_awaited: info.tcpi_unacked > 0,
        last: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_a_host_has_acknowledged_is_awaited_no_more_though_nobody_reads_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"hello").unwrap();
        // What comes back was sent after the acknowledgement.
        far.write_all(b"hello").unwrap();
        near.read_exact(&mut [0; 5]).unwrap();
        let seen = acknowledged(&near).unwrap();
        assert!(!seen.is_awaited, "{seen:?}");
        assert!(seen.round_trip > Duration::ZERO, "{seen:?}");
        assert!(acknowledged(&UnixStream::pair().unwrap().0).is_none());
    }
}
