//! The packets of each case.

use std::net::SocketAddr;

use weir_tests::raw::{ACK, FIN, Header, RST, SYN, icmp, in_ip, tcp, udp};

use super::Wire;

const PSH: u8 = 8;
const URG: u8 = 32;
const ECE: u8 = 64;
const CWR: u8 = 128;

/// A case: packets that go in, from either end.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) packets: fn(&mut Wire),
    pub(super) is_of_ip4: bool,
}

const fn case(name: &'static str, packets: fn(&mut Wire)) -> Case {
    Case { name, packets, is_of_ip4: false }
}

const fn of_ip4(name: &'static str, packets: fn(&mut Wire)) -> Case {
    Case { name, packets, is_of_ip4: true }
}

pub(super) const CASES: &[Case] = &[
    case("a connection from beginning to end", |wire| {
        opens(wire);
        ends(wire);
    }),
    case("the port used again after both have ended", |wire| {
        opens(wire);
        ends(wire);
        client(wire, SYN, [90_000, 0], b"");
        server(wire, SYN | ACK, [70_000, 90_001], b"");
    }),
    case("broken off by the client, and the port used again", |wire| {
        opens(wire);
        client(wire, RST, [101, 0], b"");
        client(wire, SYN, [90_000, 0], b"");
        server(wire, SYN | ACK, [70_000, 90_001], b"");
    }),
    case("broken off by the backend", |wire| {
        opens(wire);
        server(wire, RST | ACK, [501, 101], b"");
    }),
    case("the client goes on after the backend's reset", |wire| {
        opens(wire);
        server(wire, RST | ACK, [501, 101], b"");
        client(wire, ACK | PSH, [101, 501], b"more");
    }),
    case("refused", |wire| {
        client(wire, SYN, [100, 0], b"");
        server(wire, RST | ACK, [0, 101], b"");
    }),
    case("opened by ECN, with options and a class", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
        let header = Header { class: 0xb9, id: 0x4321, hop_limit: 33, ..Header::default() };
        let segment = tcp(from, to, SYN | ECE | CWR, [100, 0], &options, b"");
        wire.client_sends(&in_ip(from.ip(), to.ip(), 6, &header, &segment));
        let (from, to) = (wire.backend(), wire.client());
        let segment = tcp(from, to, SYN | ACK | ECE, [500, 101], &options, b"");
        wire.server_sends(&in_ip(from.ip(), to.ip(), 6, &header, &segment));
    }),
    case("urgent data", |wire| {
        opens(wire);
        client(wire, ACK | URG | PSH, [101, 501], b"now");
    }),
    case("data in the first segment", |wire| client(wire, SYN, [100, 0], b"early")),
    case("segments sent again", |wire| {
        client(wire, SYN, [100, 0], b"");
        client(wire, SYN, [100, 0], b"");
        server(wire, SYN | ACK, [500, 101], b"");
        server(wire, SYN | ACK, [500, 101], b"");
        client(wire, ACK, [101, 501], b"");
        client(wire, ACK | PSH, [101, 501], b"twice");
        client(wire, ACK | PSH, [101, 501], b"twice");
    }),
    case("opened anew in the middle of a connection", |wire| {
        opens(wire);
        client(wire, SYN, [300_000, 0], b"");
        server(wire, ACK, [501, 101], b"");
    }),
    case("data far outside the window", |wire| {
        opens(wire);
        client(wire, ACK | PSH, [0x7000_0000, 501], b"far");
    }),
    case("a first segment with a wrong sum", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        damaged(wire, tcp(from, to, SYN, [100, 0], b"", b""), 6, 16);
    }),
    case("a later segment with a wrong sum", |wire| {
        opens(wire);
        let (from, to) = (wire.client(), wire.listener());
        damaged(wire, tcp(from, to, ACK | PSH, [101, 501], b"", b"bad"), 6, 16);
    }),
    case("a segment of an unknown connection", |wire| client(wire, ACK | PSH, [101, 501], b"hello?")),
    case("a reset of an unknown connection", |wire| client(wire, RST, [101, 0], b"")),
    case("the end of an unknown connection", |wire| client(wire, FIN | ACK, [101, 501], b"")),
    case("SYN and FIN at once", |wire| client(wire, SYN | FIN, [100, 0], b"")),
    case("SYN and RST at once", |wire| client(wire, SYN | RST, [100, 0], b"")),
    case("no flags at all", |wire| client(wire, 0, [100, 0], b"")),
    case("FIN, PSH and URG", |wire| client(wire, FIN | PSH | URG, [100, 0], b"")),
    case("a TCP header that says it is too short", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let mut segment = tcp(from, to, SYN, [100, 0], b"", b"");
        segment[12] = 0x40;
        wire.client_sends(&in_ip(from.ip(), to.ip(), 6, &numbered(), &segment));
    }),
    case("a TCP header that ends behind its packet", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let mut segment = tcp(from, to, SYN, [100, 0], b"", b"");
        segment[12] = 0xf0;
        wire.client_sends(&in_ip(from.ip(), to.ip(), 6, &numbered(), &segment));
    }),
    case("a client's port at two listeners of a pool", |wire| {
        let (from, to) = (wire.client(), wire.other_listener());
        client(wire, SYN, [100, 0], b"");
        let packet = wire.tcp(from, to, SYN, [200, 0], b"");
        wire.client_sends(&packet);
    }),
    case("answers to a port that two listeners' clients have", |wire| {
        let (from, to, backend) = (wire.client(), wire.other_listener(), wire.backend());
        client(wire, SYN, [100, 0], b"");
        let packet = wire.tcp(from, to, SYN, [200, 0], b"");
        wire.client_sends(&packet);
        wire.heard.clear();
        let at = if wire.is_v6 { 40 } else { 20 };
        let seen = u16::from_be_bytes([wire.last_to_server[at], wire.last_to_server[at + 1]]);
        let seen = SocketAddr::new(from.ip(), seen);
        let packet = wire.tcp(backend, seen, SYN | ACK, [700, 201], b"");
        wire.server_sends(&packet);
        server(wire, SYN | ACK, [500, 101], b"");
    }),
    case("datagrams and answers", |wire| {
        let (from, to, backend) = (wire.client(), wire.listener(), wire.backend());
        for (is_there, what) in [(true, "one"), (false, "two"), (true, ""), (false, "x")] {
            if is_there {
                let packet = wire.udp(from, to, what.as_bytes());
                wire.client_sends(&packet);
            } else {
                let packet = wire.udp(backend, from, what.as_bytes());
                wire.server_sends(&packet);
            }
        }
    }),
    case("a datagram without a sum", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let mut datagram = udp(from, to, b"bare");
        datagram[6..8].fill(0);
        wire.client_sends(&in_ip(from.ip(), to.ip(), 17, &numbered(), &datagram));
    }),
    case("a datagram with a wrong sum", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        damaged(wire, udp(from, to, b"bad"), 17, 6);
    }),
    case("a datagram that says it is longer", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let mut datagram = udp(from, to, b"long");
        datagram[5] += 9;
        wire.client_sends(&in_ip(from.ip(), to.ip(), 17, &numbered(), &datagram));
    }),
    case("a datagram shorter than its packet", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let mut datagram = udp(from, to, b"short");
        datagram.extend([0; 7]);
        wire.client_sends(&in_ip(from.ip(), to.ip(), 17, &numbered(), &datagram));
    }),
    case("the last hop", |wire| with_hops(wire, 1)),
    case("the last hop but one", |wire| with_hops(wire, 2)),
    case("too long for the backend's link, and not to be cut", |wire| {
        opens(wire);
        client(wire, ACK | PSH, [101, 501], &[b'x'; 1350]);
    }),
    of_ip4("too long for the backend's link, and may be cut", |wire| {
        let (from, to) = (wire.client(), wire.listener());
        let header = Header { fragment: 0, ..numbered() };
        wire.client_sends(&in_ip(from.ip(), to.ip(), 17, &header, &udp(from, to, &[b'x'; 1350])));
    }),
    case("options of IP that say nothing", |wire| {
        let header = Header {
            options: vec![1, 1, 1, 0],
            extensions: vec![(0, vec![0, 1, 4, 0, 0, 0, 0]), (60, vec![0, 1, 4, 0, 0, 0, 0])],
            ..numbered()
        };
        with_header(wire, &header);
    }),
    of_ip4("an option that asks routers for their addresses", |wire| {
        with_header(wire, &Header { options: vec![7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0], ..numbered() });
    }),
    of_ip4("an option that names the way", |wire| {
        with_header(wire, &Header { options: vec![0x83, 7, 4, 10, 0, 0, 5, 0], ..numbered() });
    }),
    case("fragments in their order", |wire| {
        for fragment in fragments(wire, wire.client(), wire.listener(), 0x77) {
            wire.client_sends(&fragment);
        }
        for fragment in fragments(wire, wire.backend(), wire.client(), 0x78) {
            wire.server_sends(&fragment);
        }
    }),
    case("the last fragment first", |wire| {
        for fragment in fragments(wire, wire.client(), wire.listener(), 0x79).iter().rev() {
            wire.client_sends(fragment);
        }
    }),
    case("a later fragment alone", |wire| {
        let all = fragments(wire, wire.client(), wire.listener(), 0x7a);
        wire.client_sends(&all[1]);
    }),
    case("the backend says that its port is closed", |wire| {
        error_of_backend(wire, closed(wire.is_v6), 0, usize::MAX, true)
    }),
    case("the backend says so by eight bytes", |wire| error_of_backend(wire, closed(wire.is_v6), 0, 8, true)),
    case("a router behind says that the hops are over", |wire| {
        error_of_backend(wire, if wire.is_v6 { [3, 0] } else { [11, 0] }, 0, 8, false);
    }),
    case("a router behind says that it does not fit", |wire| {
        error_of_backend(wire, too_big(wire.is_v6), 1280, usize::MAX, false);
    }),
    case("a router before says that an answer does not fit", |wire| {
        opens(wire);
        error_of_client(wire, too_big(wire.is_v6), 1280, wire.clients_router());
    }),
    case("the client says that its port is closed", |wire| {
        opens(wire);
        error_of_client(wire, closed(wire.is_v6), 0, wire.client().ip());
    }),
    case("a router before says so of an unknown connection", |wire| {
        error_of_client(wire, too_big(wire.is_v6), 1280, wire.clients_router());
    }),
    case("a backend says so of an unknown datagram", |wire| {
        let (from, to) = (wire.backend(), wire.client());
        let quoted = wire.udp(to, from, b"never sent");
        let packet = error(from, to, closed(wire.is_v6), 0, &quoted);
        wire.server_sends(&packet);
    }),
    case("the backend speaks first", |wire| {
        let (from, to) = (wire.backend(), wire.client());
        let packet = wire.udp(from, to, b"news");
        wire.server_sends(&packet);
    }),
    case("the backend opens a connection from another port", |wire| {
        let (from, to) = (SocketAddr::new(wire.backend().ip(), 51_000), wire.client());
        let packet = wire.tcp(from, to, SYN, [100, 0], b"");
        wire.server_sends(&packet);
    }),
    case("the backend asked by its own address", |wire| {
        let (from, to) = (wire.client(), wire.backend());
        let packet = wire.tcp(from, to, SYN, [100, 0], b"");
        wire.client_sends(&packet);
        server(wire, SYN | ACK, [500, 101], b"");
        let packet = wire.tcp(from, to, ACK, [101, 501], b"");
        wire.client_sends(&packet);
    }),
    case("another port of the listener's address", |wire| {
        let (from, to) = (wire.client(), SocketAddr::new(wire.listener().ip(), 81));
        let packet = wire.tcp(from, to, SYN, [100, 0], b"");
        wire.client_sends(&packet);
    }),
];

/// With a number of its own, which nobody on the way gives it.
fn numbered() -> Header {
    Header { id: 0x1234, ..Header::default() }
}

fn client(wire: &mut Wire, flags: u8, numbers: [u32; 2], payload: &[u8]) {
    let packet = wire.tcp(wire.client(), wire.listener(), flags, numbers, payload);
    wire.client_sends(&packet);
}

fn server(wire: &mut Wire, flags: u8, numbers: [u32; 2], payload: &[u8]) {
    let packet = wire.tcp(wire.backend(), wire.client(), flags, numbers, payload);
    wire.server_sends(&packet);
}

/// A handshake.
fn opens(wire: &mut Wire) {
    client(wire, SYN, [100, 0], b"");
    server(wire, SYN | ACK, [500, 101], b"");
    client(wire, ACK, [101, 501], b"");
}

/// Words both ways, and both ends.
fn ends(wire: &mut Wire) {
    client(wire, ACK | PSH, [101, 501], b"hello");
    server(wire, ACK | PSH, [501, 106], b"welcome");
    client(wire, FIN | ACK, [106, 508], b"");
    server(wire, FIN | ACK, [508, 107], b"");
    client(wire, ACK, [107, 509], b"");
}

/// A client's packet whose transport's sum is wrong by one.
fn damaged(wire: &mut Wire, mut transport: Vec<u8>, protocol: u8, sum_at: usize) {
    transport[sum_at + 1] ^= 1;
    let (from, to) = (wire.client().ip(), wire.listener().ip());
    wire.client_sends(&in_ip(from, to, protocol, &numbered(), &transport));
}

fn with_header(wire: &mut Wire, header: &Header) {
    let (from, to) = (wire.client(), wire.listener());
    wire.client_sends(&in_ip(from.ip(), to.ip(), 17, header, &udp(from, to, b"headed")));
}

fn with_hops(wire: &mut Wire, hop_limit: u8) {
    let (from, to) = (wire.client(), wire.listener());
    let header = Header { hop_limit, ..numbered() };
    wire.client_sends(&in_ip(from.ip(), to.ip(), 6, &header, &tcp(from, to, SYN, [100, 0], b"", b"")));
}

/// A datagram of 1,208 bytes in two fragments.
fn fragments(wire: &Wire, from: SocketAddr, to: SocketAddr, id: u16) -> Vec<Vec<u8>> {
    let whole = udp(from, to, &[b'f'; 1200]);
    [(0, 800, true), (800, whole.len(), false)]
        .map(|(start, end, goes_on)| {
            let offset = start as u16 / 8;
            let mut header =
                Header { id, fragment: offset | if goes_on { 0x2000 } else { 0 }, ..Header::default() };
            if wire.is_v6 {
                let mut body = vec![0];
                body.extend((offset << 3 | u16::from(goes_on)).to_be_bytes());
                body.extend(u32::from(id).to_be_bytes());
                header.extensions = vec![(44, body)];
            }
            in_ip(from.ip(), to.ip(), 17, &header, &whole[start..end])
        })
        .to_vec()
}

/// Type and code of "port unreachable".
fn closed(is_v6: bool) -> [u8; 2] {
    if is_v6 { [1, 4] } else { [3, 3] }
}

/// Type and code of "packet too big".
fn too_big(is_v6: bool) -> [u8; 2] {
    if is_v6 { [2, 0] } else { [3, 4] }
}

fn error(from: SocketAddr, to: SocketAddr, kind: [u8; 2], value: u32, quoted: &[u8]) -> Vec<u8> {
    let message = icmp(from.ip(), to.ip(), kind, value, quoted);
    in_ip(from.ip(), to.ip(), if from.is_ipv6() { 58 } else { 1 }, &numbered(), &message)
}

/// An error about a client's datagram, as it came to the backend: of its header, `most` bytes behind that are
/// quoted.
fn error_of_backend(wire: &mut Wire, kind: [u8; 2], value: u32, most: usize, is_of_backend: bool) {
    let (from, to) = (wire.client(), wire.listener());
    let packet = wire.udp(from, to, b"is anybody there?");
    wire.client_sends(&packet);
    let mut quoted = wire.last_to_server.clone();
    quoted.truncate(most.saturating_add(if wire.is_v6 { 40 } else { 20 }));
    let source = if is_of_backend { wire.backend().ip() } else { wire.backends_router() };
    let packet = error(SocketAddr::new(source, 0), wire.client(), kind, value, &quoted);
    wire.server_sends(&packet);
}

/// An error about a segment that the listener has sent.
fn error_of_client(wire: &mut Wire, kind: [u8; 2], value: u32, source: std::net::IpAddr) {
    let quoted = wire.tcp(wire.listener(), wire.client(), ACK | PSH, [501, 101], &[b'a'; 64]);
    let packet = error(SocketAddr::new(source, 0), wire.listener(), kind, value, &quoted);
    wire.client_sends(&packet);
}
