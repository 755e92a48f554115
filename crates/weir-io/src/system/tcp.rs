//! What the kernel knows about a TCP connection.

use std::os::fd::AsFd;
use std::time::Duration;

use super::datagrams::tcp_info;

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
    let info = tcp_info(socket)?;
    Some(Acknowledged {
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
