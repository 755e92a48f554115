//! The kernel plane: packets that eBPF forwards, between hosts that are network namespaces. Needs root.

mod alike;
mod beside_nftables;
mod crowd;
mod decapsulate;
mod failover;
mod flood;
mod interfaces;
mod keepalived;
mod leftovers;
mod life;
mod modes;
mod one_way;
mod owners;
mod planes;
mod pools;
mod privileges;
mod tagged;
mod traffic;
mod trunks;
mod views;
mod vip_probes;
mod ways;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::network::{Network, PATIENCE};

/// Where clients send to.
const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::10";

/// A listener of TCP and one of UDP for each family, before `servers` backends at port 8080.
fn config(network: &Network, servers: usize, more: &str) -> String {
    config_of(network, servers, "", 8080, more)
}

/// The same before backends at `port`, with more lines in listeners and in pools.
fn config_of(network: &Network, servers: usize, of_listener: &str, port: u16, more: &str) -> String {
    let mut text = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    for (name, vip, is_v6) in [("four", VIP.to_owned(), false), ("six", format!("[{VIP6}]"), true)] {
        let backends: Vec<String> =
            (1..=servers).map(|number| format!("\"{}\"", network.server(number, port, is_v6))).collect();
        for protocol in ["tcp", "udp"] {
            text += &format!(
                "[listener.{protocol}_{name}]\nprotocol = \"{protocol}\"\nbind = \"{vip}:80\"\nplane = \"kernel\"\npool = \"{name}\"\n{of_listener}\n"
            );
        }
        text += &format!("[pool.{name}]\nbackends = [{}]\n{more}\n", backends.join(", "));
    }
    text
}

/// Weir between a client and `servers` backends that greet.
fn start(servers: usize, more: &str) -> (Network, Weir) {
    let network = Network::enter(servers);
    (1..=servers).for_each(|number| network.greets(number, 8080));
    let weir = Setup::of(&config(&network, servers, more)).start();
    (network, weir)
}

/// A connection through the kernel, and who answered.
struct Talk {
    stream: TcpStream,
    server: String,
}

impl Talk {
    fn begin(network: &Network, to: &str) -> Talk {
        let to: SocketAddr = to.parse().expect("an address");
        Talk::try_begin(network, to).unwrap_or_else(|problem| panic!("{to}: {problem}"))
    }

    fn try_begin(network: &Network, to: SocketAddr) -> std::io::Result<Talk> {
        Talk::try_begin_within(PATIENCE, network, to)
    }

    /// For what may lead to a server that does not answer, and is tried again.
    fn try_begin_within(patience: Duration, network: &Network, to: SocketAddr) -> std::io::Result<Talk> {
        network.on("client", || {
            let mut stream = TcpStream::connect_timeout(&to, patience)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut greeting = [0; 2];
            stream.read_exact(&mut greeting)?;
            Ok(Talk { stream, server: String::from_utf8_lossy(&greeting[..1]).into_owned() })
        })
    }

    /// Sends bytes and gets them back.
    fn goes_on(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection takes bytes");
        let mut back = vec![0; bytes.len()];
        self.stream.read_exact(&mut back).expect("the backend sends them back");
        assert_eq!(back, bytes);
    }
}

/// Asks by a datagram of a socket; gives the number of the server.
fn asks(socket: &UdpSocket, to: &str, what: &[u8]) -> String {
    socket.send_to(what, to).expect("the datagram leaves");
    let mut answer = [0; 2048];
    let (count, from) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!(from, to.parse::<SocketAddr>().expect("an address"), "answers come from the listener");
    assert_eq!(&answer[2..count], what);
    String::from_utf8_lossy(&answer[..1]).into_owned()
}

fn datagram_socket(network: &Network, at: &str) -> UdpSocket {
    network.on("client", || {
        let socket = UdpSocket::bind((at, 0)).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    })
}
