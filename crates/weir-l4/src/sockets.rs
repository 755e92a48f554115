//! Connections of this host's own sockets, queried from the kernel with sock_diag(7): a listener that the
//! kernel plane took from the proxy plane may have some.

use std::io;
use std::net::SocketAddr;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::host::{BUFFER, DONE, ERROR, messages};
use crate::layout::TCP;

/// Which connections to look for, by the states in linux/tcp_states.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those whose handshake is in progress.
    Opening,
    /// All for which packets may still arrive.
    All,
}

impl Which {
    /// A bit for each state.
    const fn states(self) -> u32 {
        const SYN_RECEIVED: u32 = 1 << 3 | 1 << 12;
        // Established, and the seven states in which a connection ends.
        const OTHERS: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 11;
        match self {
            Which::Opening => SYN_RECEIVED,
            Which::All => SYN_RECEIVED | OTHERS,
        }
    }
}

/// Whether a socket of this host has a TCP connection with this local address.
pub fn has_connections(at: SocketAddr, which: Which) -> io::Result<bool> {
    /// NLM_F_REQUEST and NLM_F_DUMP.
    const REQUEST: u16 = 0x301;
    const BY_FAMILY: u16 = 20;
    /// The header, and `struct inet_diag_req_v2`.
    const LENGTH: usize = 16 + 56;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let mut request = [0; LENGTH];
    request[..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    request[16] = family.as_raw() as u8;
    request[17] = TCP;
    request[20..24].copy_from_slice(&which.states().to_ne_bytes());
    request[24..26].copy_from_slice(&at.port().to_be_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut octets = Vec::with_capacity(16);
    match at.ip() {
        std::net::IpAddr::V4(address) => octets.extend(address.octets()),
        std::net::IpAddr::V6(address) => octets.extend(address.octets()),
    }
    let mut buffer = vec![0; BUFFER];
    loop {
        let (bytes, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        for message in messages(&buffer[..bytes]) {
            match message.kind {
                DONE => return Ok(false),
                ERROR => return Err(message.error()),
                // Four bytes, two ports, and then the local address. The kernel continues only as far as its
                // answers are read.
                _ if message.body.get(8..8 + octets.len()) == Some(&octets[..]) => return Ok(true),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_found_at_its_own_end_alone_and_a_listening_socket_is_none() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(place).unwrap();
            let at = listener.local_addr().unwrap();
            assert!(!has_connections(at, Which::All).unwrap());
            let client = TcpStream::connect(at).unwrap();
            assert!(has_connections(at, Which::All).unwrap());
            assert!(!has_connections(at, Which::Opening).unwrap());
            let other = if at.is_ipv4() { "127.0.0.2" } else { "::2" }.parse().unwrap();
            assert!(!has_connections(SocketAddr::new(other, at.port()), Which::All).unwrap());
            drop(client);
        }
    }
}
