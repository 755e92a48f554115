//! Connections that this host's own sockets have, to a listener that was the proxy plane's: their packets are
//! left to the host, and no others.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};
use weir_l4::layout::{TCP, Verdict};
use weir_l4::sockets::{Which, has_connections};

use crate::frames::{ACK, FIN, IcmpError, RST, SYN};
use crate::kinds::{Kind, TCP4, TCP6};
use crate::namespace::CLIENTS;
use crate::plane::Plane;

macro_rules! each_family {
    ($($case:ident)*) => { $(
        mod $case {
            use crate::kinds::{TCP4, TCP6};

            #[test] fn tcp4() { super::$case(TCP4); }
            #[test] fn tcp6() { super::$case(TCP6); }
        }
    )* };
}

each_family! {
    packets_of_a_connection_that_the_host_has_are_left_to_it
    what_the_host_has_no_connection_of_is_forwarded_or_answered_as_ever
    a_segment_that_opens_goes_to_a_handshake_that_has_begun
    a_listening_socket_takes_nothing
    a_port_whose_connection_waits_for_late_segments_begins_a_flow
    fragments_of_a_connection_that_the_host_has_are_left_to_it
    errors_about_a_connection_that_the_host_has_are_left_to_it
    a_listener_that_has_nothing_on_the_host_does_not_ask_it
}

/// Gives the host addresses, which it keeps: the plane's namespace is for one case.
fn has_addresses(ends: &[SocketAddr]) {
    for end in ends {
        let place = format!("{}/{}", end.ip(), if end.is_ipv4() { 32 } else { 128 });
        let mut command = Command::new("ip");
        command.args(["addr", "add", &place, "dev", "lo"]);
        // It is not to be looked for elsewhere first.
        if end.is_ipv6() {
            command.arg("nodad");
        }
        assert!(command.status().is_ok_and(|status| status.success()), "`ip addr add {place}`");
        // The kernel may take a moment until a route leads there.
        let is_routed = || std::net::UdpSocket::bind((end.ip(), 0))?.connect(end);
        while is_routed().is_err() {
            std::thread::yield_now();
        }
    }
}

fn family_of(end: SocketAddr) -> AddressFamily {
    if end.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket that is listening.
fn listens(at: SocketAddr) -> TcpListener {
    let socket = rustix::net::socket(family_of(at), SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("it may be bound again");
    rustix::net::bind(&socket, &at).expect("its address is this host's");
    rustix::net::listen(&socket, 8).expect("it listens");
    socket.into()
}

/// A socket of a client, which need not be of this host.
fn client(from: SocketAddr) -> OwnedFd {
    let socket = rustix::net::socket(family_of(from), SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("it may be bound again");
    let transparent = socket2::SockRef::from(&socket);
    match from.is_ipv4() {
        true => transparent.set_ip_transparent_v4(true),
        false => transparent.set_ip_transparent_v6(true),
    }
    .expect("root may");
    rustix::net::bind(&socket, &from).expect("its port is free");
    socket
}

/// A connection of client 7 to the listener, both ends in this host, and nobody listening any more. When it
/// is dropped nothing is left of it.
fn connected(kind: Kind) -> (TcpStream, TcpStream) {
    let (here, there) = connected_from(kind.client(7), kind);
    for end in [&here, &there] {
        sockopt::set_socket_linger(end, Some(Duration::ZERO)).expect("it may be reset");
    }
    (here, there)
}

fn connected_from(from: SocketAddr, kind: Kind) -> (TcpStream, TcpStream) {
    let to = kind.listener(0);
    has_addresses(&[from, to]);
    let listener = listens(to);
    let socket = client(from);
    // As above: there may be no route for a moment, which is seen here too.
    while let Err(problem) = rustix::net::connect(&socket, &to) {
        assert_eq!(problem, rustix::io::Errno::NETUNREACH, "it connects");
        std::thread::yield_now();
    }
    let (here, _) = listener.accept().expect("it was asked");
    (here, socket.into())
}

/// Whether the end at `here` of a connection is in TIME-WAIT (proc_net_tcp.rst: state 06).
fn waits_for_late_segments(here: SocketAddr, there: SocketAddr) -> bool {
    let written = |end: SocketAddr| {
        let octets = match end.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words =
            octets.chunks_exact(4).map(|four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
        let address: String = words.map(|word| format!("{word:08X}")).collect();
        format!("{address}:{:04X}", end.port())
    };
    let table = if here.is_ipv4() { "tcp" } else { "tcp6" };
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).expect("the kernel says");
    table.contains(&format!(" {} {} 06 ", written(here), written(there)))
}

/// A plane whose listener was the proxy plane's before.
fn plane(kind: Kind) -> Plane {
    let mut plane = kind.plane();
    plane.is_for_one_case();
    plane.change_listener(kind.listener(0), TCP, |listener| listener.asks_host = 1);
    plane
}

fn packets_of_a_connection_that_the_host_has_are_left_to_it(kind: Kind) {
    let mut plane = plane(kind);
    let _ends = connected(kind);
    // A segment that opens another is answered by the socket, which knows what has become of this one.
    for flags in [ACK, ACK | FIN, RST, SYN] {
        plane.run(CLIENTS, &kind.first().with_flags(flags).frame()).left_to_host();
    }
    assert_eq!(plane.remembered(), 0);
}

fn what_the_host_has_no_connection_of_is_forwarded_or_answered_as_ever(kind: Kind) {
    let mut plane = plane(kind);
    let _ends = connected(kind);
    let of_other = |flags| kind.packet(kind.client(8), kind.listener(0)).with_flags(flags).frame();
    assert!(plane.run(CLIENTS, &of_other(SYN)).was_sent());
    // Another port of the same client.
    let mut other = kind.first();
    other.source_port += 1;
    assert!(plane.run(CLIENTS, &other.frame()).was_sent());
    assert!(plane.run(CLIENTS, &other.with_flags(ACK).frame()).was_sent());
}

fn a_segment_that_opens_goes_to_a_handshake_that_has_begun(kind: Kind) {
    let mut plane = plane(kind);
    let (from, to) = (kind.client(7), kind.listener(0));
    has_addresses(&[to]);
    let _listener = listens(to);
    // Its address is another host's: what it is answered goes there, and the handshake stays half done.
    let socket = client(from);
    rustix::io::ioctl_fionbio(&socket, true).expect("it need not wait");
    let begun = rustix::net::connect(&socket, &to);
    assert_eq!(begun, Err(rustix::io::Errno::INPROGRESS));
    // A busy kernel takes the segment in later.
    while !has_connections(to, Which::Opening).expect("the kernel says") {
        std::thread::yield_now();
    }
    for flags in [SYN, ACK] {
        plane.run(CLIENTS, &kind.first().with_flags(flags).frame()).left_to_host();
    }
}

fn a_listening_socket_takes_nothing(kind: Kind) {
    let mut plane = plane(kind);
    let to = kind.listener(0);
    has_addresses(&[to]);
    let _listener = listens(to);
    assert!(plane.run(CLIENTS, &kind.later().frame()).was_sent());
    assert!(plane.run(CLIENTS, &kind.first().frame()).was_sent());
}

fn a_port_whose_connection_waits_for_late_segments_begins_a_flow(kind: Kind) {
    let mut plane = plane(kind);
    // No other case's, since the addresses are used again.
    let from = kind.client(9);
    let (here, there) = connected_from(from, kind);
    // Who ends it first waits (TIME-WAIT).
    drop(here);
    drop(there);
    // A busy kernel carries the ends' last segments across later; until then packets belong to the socket.
    while !waits_for_late_segments(kind.listener(0), from) {
        std::thread::yield_now();
    }
    let of = |flags| kind.packet(from, kind.listener(0)).with_flags(flags).frame();
    plane.run(CLIENTS, &of(ACK | FIN)).left_to_host();
    assert!(plane.run(CLIENTS, &of(SYN)).was_sent());
}

fn fragments_of_a_connection_that_the_host_has_are_left_to_it(kind: Kind) {
    let mut plane = plane(kind);
    let ends = connected(kind);
    let packet = kind.later().with_payload(2000);
    for fragment in packet.fragments(&[1024]) {
        plane.run(CLIENTS, &fragment).left_to_host();
    }
    drop(ends);
    let mut of_other = packet;
    of_other.ip.source = kind.client(8).ip();
    plane.run(CLIENTS, &of_other.fragments(&[1024])[1]).dropped(Verdict::DropFragment);
}

fn errors_about_a_connection_that_the_host_has_are_left_to_it(kind: Kind) {
    let mut plane = plane(kind);
    let _ends = connected(kind);
    let error = |to| {
        let quote = kind.packet(kind.listener(0), to).with_flags(ACK);
        let unreachable = if kind.is_ip4 { 3 } else { 1 };
        IcmpError::new(kind.router(), kind.listener(0).ip(), unreachable, 1).about(&quote.bytes()).bytes()
    };
    let frame = |bytes: Vec<u8>| kind.first().framed(&bytes);
    plane.run(CLIENTS, &frame(error(kind.client(7)))).left_to_host();
    plane.run(CLIENTS, &frame(error(kind.client(8)))).dropped(Verdict::DropIcmp);
}

fn a_listener_that_has_nothing_on_the_host_does_not_ask_it(kind: Kind) {
    let mut plane = kind.plane();
    plane.is_for_one_case();
    let _ends = connected(kind);
    assert!(plane.run(CLIENTS, &kind.later().frame()).was_sent());
}

#[test]
fn datagrams_are_never_left_to_the_host() {
    for kind in [TCP4, TCP6] {
        let kind = Kind { protocol: weir_l4::layout::UDP, ..kind };
        let mut plane = kind.plane();
        plane.is_for_one_case();
        plane.change_listener(kind.listener(0), kind.protocol, |listener| listener.asks_host = 1);
        has_addresses(&[kind.listener(0)]);
        let _socket = std::net::UdpSocket::bind(kind.listener(0)).expect("its address is this host's");
        assert!(plane.run(CLIENTS, &kind.first().frame()).was_sent());
    }
}
