//! Forwarding of datagrams that reached the wrong worker or process.
//!
//! Where it can, the kernel steers by connection ID ([`crate::cid::steering_program`]), so within a process
//! this is only for machines where it can't. Between processes forwarding is normal as long as an old process
//! drains after an upgrade: both hold the same sockets, only the new one receives from them, and it forwards
//! the datagrams of the old one's connections. The old process sends its answers itself.
//!
//! Datagrams that do not fit into the queue are dropped, as by a network.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair, sockopt};
use tokio::sync::mpsc;

use crate::socket::{Arrived, BoundAt};

/// Most datagrams waiting for one worker.
const QUEUE: usize = 1024;
/// Bytes that the kernel queues for a process that is slow to receive.
const KERNEL_QUEUE_BYTES: usize = 1 << 20;
/// Bytes before the payload in a message to another process.
const HEADER_BYTES: usize = 1 + 3 * ADDRESS_BYTES + 4;
const ADDRESS_BYTES: usize = 16 + 2 + 4 + 1;
/// A bit of the first byte, besides the two ECN bits: whether `local` is known.
const HAS_LOCAL: u8 = 4;
/// Another: whether an interface index follows the addresses. Processes of versions without interfaces have
/// no socket bound to one, so they neither send nor get this.
const HAS_INTERFACE: u8 = 8;
/// Longest message: a header and the longest datagram.
pub const MESSAGE_BYTES: usize = HEADER_BYTES + (64 << 10);

/// A forwarded datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The address and interface of the socket that received it.
    pub place: BoundAt,
    /// Its sender.
    pub remote: SocketAddr,
    /// Which of our addresses it was sent to.
    pub local: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Its payload.
    pub bytes: Box<[u8]>,
}

impl Forwarded {
    /// Copies a datagram that arrived at the socket at `place`.
    pub fn of(place: BoundAt, arrived: &Arrived<'_>) -> Forwarded {
        let Arrived { bytes, remote, local, ecn } = *arrived;
        Forwarded { place, remote, local, ecn, bytes: bytes.into() }
    }

    /// The datagram as if it had just arrived.
    pub fn arrived(&self) -> Arrived<'_> {
        Arrived { bytes: &self.bytes, remote: self.remote, local: self.local, ecn: self.ecn }
    }

    /// Encodes it as a message to another process.
    fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER_BYTES + self.bytes.len());
        let local = if self.local.is_some() { HAS_LOCAL } else { 0 };
        let interface = if self.place.interface.is_some() { HAS_INTERFACE } else { 0 };
        message.push(self.ecn | local | interface);
        let local = self.local.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        for address in [self.place.address, self.remote, SocketAddr::new(local, 0)] {
            write_address(&mut message, address);
        }
        if let Some(interface) = self.place.interface {
            message.extend_from_slice(&interface.get().to_be_bytes());
        }
        message.extend_from_slice(&self.bytes);
        message
    }

    /// Decodes [`Self::encode`]; `None` for anything else.
    fn decode(message: &[u8]) -> Option<Forwarded> {
        let (&flags, rest) = message.split_first()?;
        let (address, rest) = read_address(rest)?;
        let (remote, rest) = read_address(rest)?;
        let (local, rest) = read_address(rest)?;
        let local = (flags & HAS_LOCAL != 0).then_some(local.ip());
        let (interface, bytes) = match flags & HAS_INTERFACE {
            0 => (None, rest),
            _ => {
                let (index, rest) = rest.split_first_chunk()?;
                (Some(NonZeroU32::new(u32::from_be_bytes(*index))?), rest)
            }
        };
        let place = BoundAt { address, interface };
        Some(Forwarded { place, remote, local, ecn: flags & 3, bytes: bytes.into() })
    }
}

fn write_address(out: &mut Vec<u8>, address: SocketAddr) {
    let (ip, scope) = match address {
        SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
    };
    out.extend_from_slice(&ip.octets());
    out.extend_from_slice(&address.port().to_be_bytes());
    out.extend_from_slice(&scope.to_be_bytes());
    out.push(u8::from(address.is_ipv4()));
}

fn read_address(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (fields, rest) = bytes.split_first_chunk::<ADDRESS_BYTES>()?;
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&fields[..16]).ok()?);
    let port = u16::from_be_bytes([fields[16], fields[17]]);
    let scope = u32::from_be_bytes([fields[18], fields[19], fields[20], fields[21]]);
    let address = match fields[22] {
        0 => SocketAddrV6::new(ip, port, 0, scope).into(),
        _ => SocketAddr::new(ip.to_ipv4_mapped()?.into(), port),
    };
    Some((address, rest))
}

/// Sending end of the queue to one worker of this process.
pub type ForwardSender = mpsc::Sender<Forwarded>;
/// Receiving end of the queue to one worker of this process.
pub type ForwardReceiver = mpsc::Receiver<Forwarded>;

/// Creates a queue for [`QUEUE`] datagrams.
pub fn forward_queue() -> (ForwardSender, ForwardReceiver) {
    mpsc::channel(QUEUE)
}

/// A socket to one worker of an older or newer process.
#[derive(Debug)]
pub struct ForwardSocket {
    socket: OwnedFd,
}

impl ForwardSocket {
    /// Creates a connected pair.
    pub fn pair() -> io::Result<(ForwardSocket, ForwardSocket)> {
        // Such sockets preserve message boundaries, and no one else can connect to them.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        for end in [&ours, &theirs] {
            // The kernel's default is enough only for a few datagrams; we ask for more and take what it
            // grants.
            let _ = sockopt::set_socket_send_buffer_size(end, KERNEL_QUEUE_BYTES);
        }
        Ok((ForwardSocket { socket: ours }, ForwardSocket { socket: theirs }))
    }

    /// Wraps an end that another process handed over.
    pub fn adopt(socket: OwnedFd) -> ForwardSocket {
        ForwardSocket { socket }
    }

    /// A second descriptor for the same end.
    pub fn try_clone(&self) -> io::Result<ForwardSocket> {
        Ok(ForwardSocket { socket: self.socket.try_clone()? })
    }

    /// The descriptor, to be handed over.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Whether the other process has ended: nobody has the other end any more. One system call.
    pub fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut asked = [PollFd::new(&self.socket, PollFlags::empty())];
        // A poll that fails has found out nothing.
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().contains(PollFlags::HUP)
    }

    /// Sends a datagram. Never waits; `Err` when the queue is full or the other process has ended.
    pub fn send(&self, datagram: &Forwarded) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.socket, &datagram.encode(), flags)?;
        Ok(())
    }

    /// Receives one datagram; `None` when the message is not one. `WouldBlock` when there is none,
    /// `UnexpectedEof` when the other process has ended.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<Option<Forwarded>> {
        let (_, count) = rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Forwarded::decode(&room[..count]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(endpoint: &str, remote: &str, local: Option<&str>) -> Forwarded {
        Forwarded {
            place: endpoint.parse::<SocketAddr>().unwrap().into(),
            remote: remote.parse().unwrap(),
            local: local.map(|ip| ip.parse().unwrap()),
            ecn: 2,
            bytes: b"datagram".as_slice().into(),
        }
    }

    fn bound_to(interface: u32, mut datagram: Forwarded) -> Forwarded {
        datagram.place.interface = NonZeroU32::new(interface);
        datagram
    }

    #[test]
    fn a_datagram_reaches_another_process_with_its_addresses() {
        let (ours, theirs) = ForwardSocket::pair().unwrap();
        let mut room = vec![0; MESSAGE_BYTES];
        for sent in [
            datagram("0.0.0.0:443", "192.0.2.7:5555", Some("198.51.100.1")),
            datagram("[::]:443", "[fe80::1%3]:5555", Some("2001:db8::1")),
            datagram("127.0.0.1:8443", "127.0.0.1:1", None),
            bound_to(7, datagram("[fe80::2%7]:443", "[fe80::1%7]:5555", Some("fe80::2"))),
            bound_to(u32::MAX, datagram("0.0.0.0:443", "192.0.2.7:5555", None)),
        ] {
            ours.send(&sent).unwrap();
            assert_eq!(theirs.receive(&mut room).unwrap(), Some(sent));
        }
        assert_eq!(theirs.receive(&mut room).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!theirs.has_ended());
        drop(ours);
        assert!(theirs.has_ended());
        assert_eq!(theirs.receive(&mut room).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_slow_process_makes_us_drop_and_not_wait() {
        let (ours, _theirs) = ForwardSocket::pair().unwrap();
        let mut sent = datagram("127.0.0.1:443", "127.0.0.1:1", None);
        sent.bytes = vec![7; 1200].into();
        let refused = (0..100_000).find_map(|_| ours.send(&sent).err()).expect("the queue is bounded");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_message_cut_short_is_no_datagram() {
        let whole = bound_to(2, datagram("127.0.0.1:443", "[2001:db8::1]:1", Some("127.0.0.1"))).encode();
        for length in 0..HEADER_BYTES {
            assert_eq!(Forwarded::decode(&whole[..length]), None, "{length} bytes");
        }
    }
}
