//! Flows of datagrams that a load balancer has to remember while it is measured: a crowd beside the load.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::addresses::{Family, after};

/// Ports of one address of the crowd's.
const PORTS: u32 = 60_000;
const FIRST_PORT: u16 = 1024;
/// Sockets at a time: what they send at once fits the buffer of the socket that it comes to.
const CHUNK: u32 = 100;
/// Longest wait for an answer until it is asked again.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often a flow asks: datagrams get lost where a buffer is full.
const ATTEMPTS: u32 = 10;

/// Sends every datagram back, from the address it came to, until the process ends; says on standard output
/// when it is ready.
pub fn answer(addresses: &[SocketAddr]) -> io::Result<()> {
    let sockets: Vec<UdpSocket> = addresses.iter().map(UdpSocket::bind).collect::<io::Result<_>>()?;
    println!("answering");
    std::thread::scope(|scope| {
        let served: Vec<_> = sockets.iter().map(|socket| scope.spawn(|| send_back(socket))).collect();
        served.into_iter().filter_map(|one| one.join().ok()).collect()
    })
}

fn send_back(socket: &UdpSocket) -> io::Result<()> {
    let mut datagram = [0; 64];
    loop {
        let (bytes, from) = socket.recv_from(&mut datagram)?;
        // Who asked may be gone.
        let _ = socket.send_to(&datagram[..bytes], from);
    }
}

/// Opens `flows` flows to `target`, from addresses that are this network's own: each asks, is answered, and
/// asks again, by which a load balancer knows that it is no forgery.
///
/// Err when one gets no answer, however often it asks.
pub fn open(target: SocketAddr, flows: u32) -> io::Result<()> {
    let family = if target.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    for first in (0..flows).step_by(CHUNK as usize) {
        let mut sockets = Vec::new();
        for index in first..flows.min(first + CHUNK) {
            let socket = UdpSocket::bind(place(family, index))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(target)?;
            socket.send(b"?")?;
            sockets.push(socket);
        }
        for socket in &sockets {
            let explain = |error: io::Error| {
                io::Error::new(error.kind(), format!("flow {first} and after: no answer: {error}"))
            };
            heard(socket).map_err(explain)?;
            socket.send(b"!")?;
        }
    }
    Ok(())
}

/// Waits for the answer to what `socket` has asked, and asks again when it does not come.
fn heard(socket: &UdpSocket) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match socket.recv(&mut [0; 64]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.send(b"?")?,
            Err(error) => return Err(error),
        };
    }
    socket.recv(&mut [0; 64]).map(drop)
}

/// Where flow `index` comes from.
fn place(family: Family, index: u32) -> SocketAddr {
    let address: IpAddr = after(family.crowd(), index / PORTS);
    SocketAddr::new(address, FIRST_PORT + (index % PORTS) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_has_a_place_of_its_own() {
        assert_eq!(place(Family::Ipv4, 0).to_string(), "10.78.0.1:1024");
        assert_eq!(place(Family::Ipv4, 59_999).to_string(), "10.78.0.1:61023");
        assert_eq!(place(Family::Ipv4, 60_000).to_string(), "10.78.0.2:1024");
        assert_eq!(place(Family::Ipv6, 60_000).to_string(), "[fd78::2]:1024");
    }

    #[test]
    fn a_crowd_is_answered() {
        // Between two binds somebody else may get the port: then another one is tried.
        let heard = (0..20).any(|_| {
            let answering = UdpSocket::bind("127.0.0.1:0").unwrap();
            let target = answering.local_addr().unwrap();
            let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
            drop(answering);
            std::thread::spawn(move || answer(&[target]));
            asking.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            // The server may not be there yet: it is asked again.
            (0..100).any(|_| {
                let _ = asking.send_to(b"?", target);
                asking.recv(&mut [0; 4]).is_ok()
            })
        });
        assert!(heard);
    }
}
