//! Prints how long a look for connections of this host's sockets takes, with so many of them: at an end that
//! has them all, at one that has a single one, and at one that has none. Needs root, for a network namespace,
//! and two descriptors for each connection.
//!
//! `ulimit -n 100000; cargo run --release -p weir-l4 --example sockets_cost -- 10000`

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_l4::sockets::{Which, has_connections};

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/frames.rs"]
mod frames;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/packets/namespace.rs"]
mod namespace;

const LOOKS: usize = 51;

fn main() {
    let count: usize =
        std::env::args().nth(1).map_or(10_000, |text| text.parse().expect("a number of connections"));
    let namespace = namespace::Namespace::new();
    namespace.enter();
    let many = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut held: Vec<(TcpStream, TcpStream)> = (0..count).map(|_| connected(&many)).collect();
    held.push(connected(&one));
    let none: SocketAddr = "127.0.0.1:1".parse().expect("an address");
    let at = |listener: &TcpListener| listener.local_addr().expect("it is bound");
    for (what, end) in [("all", at(&many)), ("one", at(&one)), ("none", none)] {
        for which in [Which::All, Which::Opening] {
            let mut looks: Vec<Duration> = (0..LOOKS)
                .map(|_| {
                    let begun = Instant::now();
                    has_connections(end, which).expect("the kernel says");
                    begun.elapsed()
                })
                .collect();
            looks.sort();
            println!(
                "{count} connections, {what:<4} at this end, {which:?}: {:?} median, {:?} longest",
                looks[LOOKS / 2],
                looks[LOOKS - 1]
            );
        }
    }
}

/// Both ends of a connection.
fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    (client, listener.accept().expect("a connection").0)
}
