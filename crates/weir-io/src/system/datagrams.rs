//! Many datagrams per system call, with the address that each was sent to: `recvmmsg(2)` and `sendmmsg(2)`.
//! Also the number of unsent bytes of a socket, whether it has a filter, and what is known about a TCP
//! connection, since these calls need `unsafe` as well.
#![allow(unsafe_code)]
// The lengths of control messages are `size_t` in one C library and `socklen_t` in another.
#![allow(clippy::unnecessary_cast)]

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Datagrams per call.
pub const BATCH: usize = 32;
/// Bytes from one slot to the next: the longest datagram and a cache line, so that the beginnings of the
/// slots do not all fall on the same cache set. Memory that no datagram reaches is never touched and costs
/// nothing.
const STRIDE: usize = (64 << 10) + 64;
/// Room for an `IP_PKTINFO` or `IPV6_PKTINFO` message, a traffic class and a segment size.
const CONTROL_BYTES: usize = 128;

/// Bytes that were written to a stream socket and that its peer has not acknowledged (`SIOCOUTQ`, tcp(7)); 0
/// for any other socket.
pub fn unsent_bytes(socket: &impl AsFd) -> u64 {
    let mut count: c_int = 0;
    // SAFETY: the call writes one integer, for which there is room, and refuses a descriptor of another kind.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { count.unsigned_abs().into() } else { 0 }
}

/// What the kernel knows about a TCP connection (`TCP_INFO`, tcp(7)); `None` for any other socket.
pub(super) fn tcp_info(socket: &impl AsFd) -> Option<libc::tcp_info> {
    // SAFETY: the structure has integers only, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut size = mem::size_of_val(&info) as libc::socklen_t;
    let (descriptor, at) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the kernel writes no more than the `size` bytes that the structure has.
    let result =
        unsafe { libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut size) };
    (result == 0).then_some(info)
}

/// Registers the non-blocking `socket` with tokio for readiness of `interest` only.
pub fn watch<S: AsRawFd + Into<OwnedFd>>(socket: S, interest: Interest) -> io::Result<AsyncFd<S>> {
    // SAFETY: the socket owns its descriptor, which never changes, and lives as long as it is registered.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

/// Control messages must be aligned like their header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Received datagrams, until the next call.
pub struct Inbox {
    bytes: Box<[u8]>,
    sources: Box<[sockaddr_storage; BATCH]>,
    controls: Box<[Control; BATCH]>,
    lengths: [Lengths; BATCH],
    count: usize,
}

/// Bytes that the kernel filled of a slot's buffers.
#[derive(Clone, Copy, Default)]
struct Lengths {
    datagram: usize,
    source: usize,
    control: usize,
}

/// One received datagram.
pub struct Datagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Sender; `None` on a connected socket.
    pub source: Option<SocketAddr>,
    /// Our address that it was sent to, if [`tell_destinations`] was called. For a broadcast it is our
    /// address in that network, or `None` where only routes say which.
    pub destination: Option<IpAddr>,
    /// The two ECN bits, if [`tell_congestion`] was called.
    pub ecn: u8,
    /// Length of each of the datagrams that the kernel merged, except for the last; `None` for a single
    /// datagram. Only if [`merge_received`] was called.
    pub segment_bytes: Option<usize>,
}

impl Inbox {
    /// An empty inbox: 2 MiB of address space, of which only pages that datagrams reach take memory.
    pub fn empty() -> Inbox {
        Inbox {
            bytes: vec![0; BATCH * STRIDE].into_boxed_slice(),
            // SAFETY: all-zero is a valid sockaddr_storage: integers only.
            sources: Box::new(unsafe { mem::zeroed() }),
            controls: Box::new([Control([0; CONTROL_BYTES]); BATCH]),
            lengths: [Lengths::default(); BATCH],
            count: 0,
        }
    }

    /// Receives at most [`BATCH`] datagrams that have arrived, and discards those of the last call. Never
    /// waits: `WouldBlock` when there is none.
    pub fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.count = 0;
        // SAFETY: all-zero is a valid iovec and a valid mmsghdr: integers and null pointers.
        let (mut vectors, mut headers) =
            unsafe { (mem::zeroed::<[iovec; BATCH]>(), mem::zeroed::<[mmsghdr; BATCH]>()) };
        let slots =
            self.bytes.chunks_exact_mut(STRIDE).zip(self.sources.iter_mut()).zip(self.controls.iter_mut());
        for ((header, vector), ((slot, source), control)) in headers.iter_mut().zip(&mut vectors).zip(slots) {
            *vector = iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let header = &mut header.msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_name = ptr::from_mut(source).cast();
            header.msg_namelen = mem::size_of::<sockaddr_storage>() as u32;
            header.msg_control = ptr::from_mut(control).cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: every header points at a vector, a source and a control buffer of the stated lengths. All
        // of them outlive the call and nothing else borrows them during it.
        let count = unsafe {
            libc::recvmmsg(
                descriptor,
                headers.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        self.count = count as usize;
        for (lengths, header) in self.lengths.iter_mut().zip(&headers[..self.count]) {
            *lengths = Lengths {
                datagram: (header.msg_len as usize).min(STRIDE),
                source: header.msg_hdr.msg_namelen as usize,
                control: (header.msg_hdr.msg_controllen as usize).min(CONTROL_BYTES),
            };
        }
        Ok(self.count)
    }

    /// Datagrams received by the last call.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The datagram at `index`, which is below [`Self::count`].
    #[inline]
    pub fn datagram(&self, index: usize) -> Datagram<'_> {
        assert!(index < self.count, "no such datagram");
        let lengths = self.lengths[index];
        let told = Told::of(&self.controls[index], lengths.control);
        Datagram {
            bytes: &self.bytes[index * STRIDE..][..lengths.datagram],
            source: socket_address(&self.sources[index], lengths.source),
            destination: told.destination,
            ecn: told.ecn,
            segment_bytes: told.segment_bytes,
        }
    }
}

/// Asks the kernel to report, for every datagram, which of our addresses it was sent to.
pub fn tell_destinations(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    let (level, option) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    set_option(socket, level, option, 1)
}

/// Asks the kernel to report, for every datagram, which congestion mark it carries (RFC 3168).
pub fn tell_congestion(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    let (level, option) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS)
    };
    set_option(socket, level, option, 1)
}

/// Lets the kernel merge datagrams from one sender that arrive together into one long one (`UDP_GRO`,
/// udp(7)).
pub fn merge_received(socket: &impl AsFd) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Sends datagrams whole or not at all, whatever path MTU the kernel assumes: QUIC discovers the path MTU
/// itself.
pub fn never_fragment(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    let (level, option, value) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    };
    set_option(socket, level, option, value)
}

/// Lets a socket bind to a source address that this host need not have (`IP_TRANSPARENT`, ip(7)).
///
/// # Errors
/// The process lacks the right: it takes `CAP_NET_ADMIN` or `CAP_NET_RAW`.
pub fn make_transparent(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    match is_ipv6 {
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        true => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Defers the choice of a port until the socket is connected, although it is bound to an address before
/// (`IP_BIND_ADDRESS_NO_PORT`, ip(7); it works for IPv6 as well).
pub fn bind_without_port(socket: &impl AsFd) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

fn set_option(socket: &impl AsFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let descriptor = socket.as_fd().as_raw_fd();
    let size = mem::size_of::<c_int>() as u32;
    // SAFETY: the option's value is a C int that lives throughout the call, and its size is given.
    let result = unsafe { libc::setsockopt(descriptor, level, option, ptr::from_ref(&value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets a classic BPF program choose, for each datagram, which socket of the `SO_REUSEPORT` group gets it
/// (socket(7)). The program sees the datagram's payload. If it returns a number that is no socket's, the
/// kernel's hash chooses.
pub fn steer_group(socket: &impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        // The kernel only reads it, although the C type is a mutable pointer.
        filter: program.as_ptr().cast_mut(),
    };
    let descriptor = socket.as_fd().as_raw_fd();
    let size = mem::size_of::<libc::sock_fprog>() as u32;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    // SAFETY: the value is a sock_fprog that points at as many instructions as it says; both outlive this.
    let result = unsafe { libc::setsockopt(descriptor, level, option, ptr::from_ref(&program).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Permanently removes a socket, over which flows may still send, from the lookup for receivers: it is
/// connected to an address where nobody is, so only datagrams from there find it. Its port and its interface
/// stay. Otherwise it would keep receiving what is meant for another socket with a less specific address or
/// without an interface.
///
/// # Errors
/// The socket is unchanged, or has lost its interface.
pub fn withdraw(socket: &impl AsFd) -> io::Result<()> {
    /// The discard service (RFC 863), which never answers.
    const DISCARD: u16 = 9;
    let interface = super::interface_of(socket);
    if interface.is_some() {
        // That address can't be reached through the interface, so the socket is unbound from it and bound
        // again later. Neither takes a capability.
        rustix::net::connect_unspec(socket)?;
    }
    let socket = SockRef::from(socket);
    let is_ipv6 = socket.local_addr()?.is_ipv6();
    let nobody: IpAddr = if is_ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let connected = socket.connect(&SocketAddr::new(nobody, DISCARD).into());
    if interface.is_some() {
        socket.bind_device_by_index_v4(interface)?;
    }
    connected
}

/// Whether a socket has a filter (`SO_ATTACH_FILTER`).
pub(super) fn has_filter(socket: &impl AsFd) -> bool {
    let mut instructions: libc::socklen_t = 0;
    // SAFETY: for a length of 0 the kernel writes only the length, which outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            ptr::null_mut(),
            &raw mut instructions,
        )
    };
    result == 0 && instructions > 0
}

/// Addresses of a datagram on an unconnected socket.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Receiver.
    pub to: SocketAddr,
    /// Which of our addresses it leaves from; `None` leaves that to the kernel.
    pub from: Option<IpAddr>,
}

/// Sends `datagrams`, at most [`BATCH`], in one call; `route` is `None` on a connected socket. Returns how
/// many the kernel took; an error is that of the first datagram. Never waits.
pub fn send(socket: &impl AsFd, datagrams: &[&[u8]], route: Option<Route>) -> io::Result<usize> {
    let name = route.map(|route| socket2::SockAddr::from(route.to));
    let mut control = Control([0; CONTROL_BYTES]);
    let control_bytes = route.and_then(|route| route.from).map_or(0, |from| write_source(&mut control, from));
    // SAFETY: all-zero is a valid iovec and a valid mmsghdr: integers and null pointers.
    let (mut vectors, mut headers) =
        unsafe { (mem::zeroed::<[iovec; BATCH]>(), mem::zeroed::<[mmsghdr; BATCH]>()) };
    let count = datagrams.len().min(BATCH);
    for (index, bytes) in datagrams[..count].iter().enumerate() {
        // The kernel only reads from it, although the C type is the one for receiving.
        vectors[index] = iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
        let header = &mut headers[index].msg_hdr;
        header.msg_iov = &mut vectors[index];
        header.msg_iovlen = 1;
        if let Some(name) = &name {
            header.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_namelen = name.len();
        }
        if control_bytes > 0 {
            header.msg_control = ptr::from_mut(&mut control).cast();
            header.msg_controllen = control_bytes as _;
        }
    }
    let descriptor = socket.as_fd().as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers point at vectors, a name and a control message that outlive the call,
    // and the vectors at bytes that are borrowed throughout; the kernel writes only the headers' `msg_len`.
    let sent = unsafe { libc::sendmmsg(descriptor, headers.as_mut_ptr(), count as u32, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// A datagram to send, or several of one length in a row.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Its addresses.
    pub route: Route,
    /// The two ECN bits.
    pub ecn: u8,
    /// Length at which the kernel is to cut `bytes` into datagrams (`UDP_SEGMENT`, udp(7)); `None` for a
    /// single datagram.
    pub segment_bytes: Option<u16>,
}

/// Sends up to [`BATCH`] of `outgoing`, each to its own destination, in one call. Returns how many the kernel
/// took; an error is that of the first one. Never waits.
pub fn send_each(socket: &impl AsFd, outgoing: &[Outgoing<'_>]) -> io::Result<usize> {
    let count = outgoing.len().min(BATCH);
    // SAFETY: all-zero is a valid iovec and a valid mmsghdr: integers and null pointers.
    let (mut vectors, mut headers) =
        unsafe { (mem::zeroed::<[iovec; BATCH]>(), mem::zeroed::<[mmsghdr; BATCH]>()) };
    let mut controls = [Control([0; CONTROL_BYTES]); BATCH];
    let mut names: [Option<socket2::SockAddr>; BATCH] = [const { None }; BATCH];
    for (index, one) in outgoing[..count].iter().enumerate() {
        let name = names[index].insert(one.route.to.into());
        let control_bytes = write_controls(&mut controls[index], one);
        // The kernel only reads from it, although the C type is the one for receiving.
        let base = one.bytes.as_ptr().cast_mut().cast::<c_void>();
        vectors[index] = iovec { iov_base: base, iov_len: one.bytes.len() };
        let header = &mut headers[index].msg_hdr;
        header.msg_iov = &mut vectors[index];
        header.msg_iovlen = 1;
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
        if control_bytes > 0 {
            header.msg_control = ptr::from_mut(&mut controls[index]).cast();
            header.msg_controllen = control_bytes as _;
        }
    }
    let descriptor = socket.as_fd().as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` headers point at vectors, names and control messages that outlive the call,
    // and the vectors at bytes that are borrowed throughout; the kernel writes only the headers' `msg_len`.
    let sent = unsafe { libc::sendmmsg(descriptor, headers.as_mut_ptr(), count as u32, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Writes the control messages for `one`; returns their length.
fn write_controls(control: &mut Control, one: &Outgoing<'_>) -> usize {
    let mut used = one.route.from.map_or(0, |from| write_source(control, from));
    if one.ecn != 0 {
        let class = c_int::from(one.ecn);
        let (level, kind) = match one.route.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        used += write_control(control, used, level, kind, &class);
    }
    if let Some(segment) = one.segment_bytes {
        used += write_control(control, used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
    }
    used
}

/// Writes a control message that names the address to send from; returns its length.
fn write_source(control: &mut Control, from: IpAddr) -> usize {
    // SAFETY: in_pktinfo and in6_pktinfo are plain integers, for which zero is valid.
    let (mut v4, mut v6) = unsafe { (mem::zeroed::<libc::in_pktinfo>(), mem::zeroed::<libc::in6_pktinfo>()) };
    match from {
        IpAddr::V4(address) => {
            v4.ipi_spec_dst.s_addr = u32::from_ne_bytes(address.octets());
            write_control(control, 0, libc::IPPROTO_IP, libc::IP_PKTINFO, &v4)
        }
        IpAddr::V6(address) => {
            v6.ipi6_addr.s6_addr = address.octets();
            write_control(control, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &v6)
        }
    }
}

/// Writes one message at `at`, where the one before ended; returns its length.
fn write_control<T>(control: &mut Control, at: usize, level: c_int, kind: c_int, value: &T) -> usize {
    let payload = mem::size_of::<T>() as u32;
    // SAFETY: CMSG_LEN and CMSG_SPACE only compute. The buffer is aligned for a cmsghdr, `at` is a sum of
    // CMSG_SPACEs, which keep that alignment, and what is written is asserted to fit; the payload may be less
    // aligned than T, hence the unaligned copy.
    unsafe {
        let space = libc::CMSG_SPACE(payload) as usize;
        assert!(at + space <= CONTROL_BYTES, "room for the control message");
        let header = control.0.as_mut_ptr().add(at).cast::<libc::cmsghdr>();
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
        ptr::copy_nonoverlapping(
            ptr::from_ref(value).cast::<u8>(),
            libc::CMSG_DATA(header),
            payload as usize,
        );
        space
    }
}

/// What the kernel reported about a datagram.
#[derive(Default)]
struct Told {
    destination: Option<IpAddr>,
    ecn: u8,
    segment_bytes: Option<usize>,
}

impl Told {
    fn of(control: &Control, length: usize) -> Told {
        let message_header = mem::size_of::<libc::cmsghdr>();
        let mut told = Told::default();
        let mut at = 0;
        while at + message_header <= length {
            // SAFETY: a cmsghdr was written there, checked above, at an address aligned for it: the kernel
            // keeps messages at multiples of a `size_t`, to which `at` is rounded below. Every field is an
            // integer.
            let (level, kind, stated) = unsafe {
                let message = &*control.0.as_ptr().add(at).cast::<libc::cmsghdr>();
                (message.cmsg_level, message.cmsg_type, message.cmsg_len as usize)
            };
            let Some(payload) = control.0.get(at + message_header..(at + stated).min(length)) else { break };
            told.note(level, kind, payload);
            at += stated.max(message_header).next_multiple_of(mem::align_of::<libc::cmsghdr>());
        }
        told
    }

    fn note(&mut self, level: c_int, kind: c_int, payload: &[u8]) {
        match (level, kind) {
            // struct in_pktinfo: interface index, local address, destination address, four bytes each. The
            // two addresses differ if the destination is a broadcast or multicast address, which cannot be a
            // source.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let octets = payload.get(4..8).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
                self.destination = octets.map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
            }
            // struct in6_pktinfo: destination address, then the interface index.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let octets = payload.get(..16).and_then(|octets| <[u8; 16]>::try_from(octets).ok());
                let destination = octets.map(Ipv6Addr::from).filter(|address| !address.is_multicast());
                self.destination = destination.map(IpAddr::V6);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => self.ecn = payload.first().map_or(0, |class| class & 3),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = payload.first_chunk().map_or(0, |class| c_int::from_ne_bytes(*class));
                self.ecn = class as u8 & 3;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = payload.first_chunk().map_or(0, |size| c_int::from_ne_bytes(*size));
                self.segment_bytes = usize::try_from(size).ok().filter(|&size| size > 0);
            }
            _ => {}
        }
    }
}

fn socket_address(storage: &sockaddr_storage, length: usize) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET if length >= mem::size_of::<sockaddr_in>() => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller than the storage and no more
            // aligned.
            let address = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 if length >= mem::size_of::<sockaddr_in6>() => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller than the storage and no
            // more aligned.
            let address = unsafe { &*ptr::from_ref(storage).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            Some(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_of_every_size_pass_unharmed_with_their_source() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let sizes = [0, 1, 1_472, 9_000, 65_507];
        let sent: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![size as u8; size]).collect();
        let slices: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        assert_eq!(send(&sender, &slices, None).unwrap(), sizes.len());
        let mut inbox = Inbox::empty();
        assert_eq!(inbox.receive(&receiver).unwrap(), sizes.len());
        for (index, bytes) in sent.iter().enumerate() {
            let datagram = inbox.datagram(index);
            assert_eq!(datagram.bytes, bytes);
            assert_eq!(datagram.source, Some(sender.local_addr().unwrap()));
            assert_eq!(datagram.destination, None);
        }
        assert_eq!(inbox.receive(&receiver).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(inbox.count(), 0);
    }

    #[test]
    fn a_wildcard_socket_learns_the_destination_and_answers_from_it() {
        for (wildcard, used) in [("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "::1")] {
            let listening = UdpSocket::bind(wildcard).unwrap();
            let used: IpAddr = used.parse().unwrap();
            tell_destinations(&listening, used.is_ipv6()).unwrap();
            let port = listening.local_addr().unwrap().port();
            let client = UdpSocket::bind((used, 0)).unwrap();
            client.connect((used, port)).unwrap();
            client.send(b"ask").unwrap();
            let mut inbox = Inbox::empty();
            assert_eq!(inbox.receive(&listening).unwrap(), 1);
            let datagram = inbox.datagram(0);
            assert_eq!(datagram.destination, Some(used));
            let route = Route { to: datagram.source.unwrap(), from: datagram.destination };
            assert_eq!(send(&listening, &[b"answer"], Some(route)).unwrap(), 1);
            // The client is connected: an answer from any other address would not reach it.
            let mut answer = [0; 16];
            let length = client.recv(&mut answer).unwrap();
            assert_eq!(&answer[..length], b"answer");
        }
    }

    #[test]
    fn what_was_sent_to_all_hosts_of_a_network_is_answered_from_our_address_there() {
        let listening = UdpSocket::bind("0.0.0.0:0").unwrap();
        tell_destinations(&listening, false).unwrap();
        let client = UdpSocket::bind("127.0.0.9:0").unwrap();
        client.set_broadcast(true).unwrap();
        client.send_to(b"ask", ("127.255.255.255", listening.local_addr().unwrap().port())).unwrap();
        let mut inbox = Inbox::empty();
        assert_eq!(inbox.receive(&listening).unwrap(), 1);
        let datagram = inbox.datagram(0);
        assert_eq!(datagram.destination, Some("127.0.0.1".parse().unwrap()));
        let route = Route { to: datagram.source.unwrap(), from: datagram.destination };
        assert_eq!(send(&listening, &[b"answer"], Some(route)).unwrap(), 1);
    }

    #[test]
    fn more_datagrams_than_a_batch_come_in_several_calls() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        for number in 0..BATCH as u8 + 5 {
            sender.send(&[number]).unwrap();
        }
        let mut inbox = Inbox::empty();
        assert_eq!(inbox.receive(&receiver).unwrap(), BATCH);
        assert_eq!(inbox.datagram(BATCH - 1).bytes, [BATCH as u8 - 1]);
        assert_eq!(inbox.receive(&receiver).unwrap(), 5);
        assert_eq!(inbox.datagram(0).bytes, [BATCH as u8]);
    }
}
