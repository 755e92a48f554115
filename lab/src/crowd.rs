//! A crowd beside the load: many UDP flows that a load balancer has to remember while it is measured.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::addresses::{Family, after};

/// Ports used of each of the crowd's addresses.
const PORTS: u32 = 60_000;
const FIRST_PORT: u16 = 1024;
/// Sockets at a time: what they send at once fits the receiver's socket buffer.
const CHUNK: u32 = 100;
/// How long to wait for an answer before asking again.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often a flow asks: datagrams get lost if a buffer is full.
const ATTEMPTS: u32 = 10;

/// Echoes every datagram from the address that it was sent to, until the process ends. Prints on standard
/// output when it is ready.
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
        // The sender may be gone.
        let _ = socket.send_to(&datagram[..bytes], from);
    }
}

/// Opens `flows` flows to `target` from addresses of this network. Each flow asks, is answered, and asks
/// again, which proves to a load balancer that its source address is not forged.
///
/// Err if a flow gets no answer after all attempts.
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

/// Waits for the answer on `socket`, and asks again if it does not arrive.
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

/// Source address of flow `index`.
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
        // Another process may take the port between two binds; then another port is tried.
        let heard = (0..20).any(|_| {
            let answering = UdpSocket::bind("127.0.0.1:0").unwrap();
            let target = answering.local_addr().unwrap();
            let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
            drop(answering);
            std::thread::spawn(move || answer(&[target]));
            asking.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            // The server may not have started yet, so this is tried again.
            (0..100).any(|_| {
                let _ = asking.send_to(b"?", target);
                asking.recv(&mut [0; 4]).is_ok()
            })
        });
        assert!(heard);
    }
}
