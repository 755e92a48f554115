//! The lower bound: the least that a proxy can do. Every byte of a client goes to a backend connection of its
//! own and back, without being looked at.
//!
//! One thread, epoll, one receive and one send per message and side. No proxy that terminates TCP with these
//! calls can cost less, so what a contender takes beyond this is the cost of what it does with the bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

use crate::backend::listen;

/// Most bytes read from a socket at once.
const PIECE_BYTES: usize = 64 * 1024;

/// One side of a session.
struct Side {
    socket: OwnedFd,
    /// Descriptor number of the other side, which is its index in the table.
    other: usize,
    /// Bytes that this socket has not accepted yet.
    pending: Vec<u8>,
    /// What epoll watches for.
    interest: EventFlags,
    /// Whether this socket has ended.
    finished: bool,
}

/// Relays connections of 127.0.0.1:`port` to 127.0.0.1:`backend_port` until the process ends. Err when epoll
/// gives up.
pub fn serve(port: u16, backend_port: u16) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let listener = listen((Ipv4Addr::LOCALHOST, port).into())?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut relay = Relay { epoll, sides: Vec::new(), buffer: vec![0; PIECE_BYTES] };
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        match epoll::wait(&relay.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == LISTENER {
                relay.accept_all(&listener, backend_port)?;
            } else if relay.on_event(key as usize, flags).is_err() {
                relay.close(key as usize);
            }
        }
    }
}

struct Relay {
    epoll: OwnedFd,
    /// Indexed by descriptor number; both sides of a session are present, or neither.
    sides: Vec<Option<Side>>,
    buffer: Vec<u8>,
}

impl Relay {
    fn accept_all(&mut self, listener: &OwnedFd, backend_port: u16) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let client = match rustix::net::accept_with(listener, flags) {
                Ok(client) => client,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            let backend =
                rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
            match rustix::net::connect(&backend, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, backend_port)) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                // Dropping the client's socket closes it.
                Err(_) => continue,
            }
            let (one, other) = (client.as_raw_fd() as usize, backend.as_raw_fd() as usize);
            self.add(client, one, other)?;
            self.add(backend, other, one)?;
        }
    }

    fn add(&mut self, socket: OwnedFd, key: usize, other: usize) -> io::Result<()> {
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        if self.sides.len() <= key {
            self.sides.resize_with(key + 1, || None);
        }
        let interest = EventFlags::IN;
        epoll::add(&self.epoll, &socket, EventData::new_u64(key as u64), interest)?;
        self.sides[key] = Some(Side { socket, other, pending: Vec::new(), interest, finished: false });
        Ok(())
    }

    /// Err when the session is over.
    fn on_event(&mut self, key: usize, flags: EventFlags) -> rustix::io::Result<()> {
        let Some(side) = self.sides[key].as_mut() else { return Ok(()) };
        if flags.contains(EventFlags::OUT) {
            let pending = std::mem::take(&mut side.pending);
            let other = side.other;
            self.send(key, &pending)?;
            self.watch(key)?;
            self.watch(other)?;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.on_readable(key)?;
        }
        Ok(())
    }

    fn on_readable(&mut self, key: usize) -> rustix::io::Result<()> {
        let Some(side) = self.sides[key].as_mut() else { return Ok(()) };
        let other = side.other;
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = rustix::net::recv(&side.socket, &mut buffer[..], RecvFlags::empty());
        let next = match received {
            Ok((0, _)) => {
                side.finished = true;
                self.finish(other).and_then(|()| self.watch(key))
            }
            Ok((count, _)) => self.send(other, &buffer[..count]).and_then(|()| self.after_send(key, other)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        };
        self.buffer = buffer;
        next
    }

    /// In the usual case everything was sent; then epoll's interest does not change and no call is made.
    fn after_send(&mut self, from: usize, to: usize) -> rustix::io::Result<()> {
        if self.sides[to].as_ref().is_some_and(|side| !side.pending.is_empty()) {
            self.watch(from)?;
            self.watch(to)?;
        }
        Ok(())
    }

    /// Passes the end of the stream on to the socket of `to`. Err if both directions are done.
    fn finish(&mut self, to: usize) -> rustix::io::Result<()> {
        let Some(side) = self.sides[to].as_ref() else { return Ok(()) };
        if side.finished && side.pending.is_empty() {
            return Err(Errno::PIPE);
        }
        if side.pending.is_empty() {
            rustix::net::shutdown(&side.socket, rustix::net::Shutdown::Write)
        } else {
            Ok(())
        }
    }

    /// Sends `bytes` to the socket of `key`; what it does not accept is kept in `pending`.
    fn send(&mut self, key: usize, bytes: &[u8]) -> rustix::io::Result<()> {
        let Some(side) = self.sides[key].as_mut() else { return Ok(()) };
        let sent = match rustix::net::send(&side.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            // A backend connection that is still being established accepts nothing yet.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => 0,
            Err(error) => return Err(error),
        };
        side.pending.extend_from_slice(&bytes[sent..]);
        let source_finished =
            |relay: &Self, source: usize| relay.sides[source].as_ref().is_some_and(|source| source.finished);
        let (drained, source) = (side.pending.is_empty(), side.other);
        if drained && source_finished(self, source) { self.finish(key) } else { Ok(()) }
    }

    /// Sets epoll's interest for `key`: input unless the other side is behind or the input has ended, and
    /// room to write if bytes wait for it.
    fn watch(&mut self, key: usize) -> rustix::io::Result<()> {
        let Some(side) = self.sides[key].as_ref() else { return Ok(()) };
        let other_is_behind = self.sides[side.other].as_ref().is_some_and(|other| !other.pending.is_empty());
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, !other_is_behind && !side.finished);
        interest.set(EventFlags::OUT, !side.pending.is_empty());
        if interest != side.interest {
            epoll::modify(&self.epoll, &side.socket, EventData::new_u64(key as u64), interest)?;
            if let Some(side) = self.sides[key].as_mut() {
                side.interest = interest;
            }
        }
        Ok(())
    }

    fn close(&mut self, key: usize) {
        if let Some(side) = self.sides[key].take() {
            self.sides[side.other] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    fn session() -> (TcpStream, TcpStream) {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let backend_port = backend.local_addr().unwrap().port();
        let port = crate::contender::free_port().unwrap();
        thread::spawn(move || serve(port, backend_port));
        let client = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(client) => break client,
                Err(_) => thread::yield_now(),
            }
        };
        let (backend, _) = backend.accept().unwrap();
        for stream in [&client, &backend] {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        (client, backend)
    }

    #[test]
    fn bytes_pass_both_ways_and_ends_pass_one_by_one() {
        let (mut client, mut backend) = session();
        client.write_all(b"ask").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut asked = String::new();
        backend.read_to_string(&mut asked).unwrap();
        assert_eq!(asked, "ask");
        backend.write_all(b"answer").unwrap();
        drop(backend);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_slow_reader_gets_every_byte_in_order() {
        let (mut client, mut backend) = session();
        let sent: Vec<u8> = (0..16_000_000_u32).map(|index| (index / 7) as u8).collect();
        let copy = sent.clone();
        // More than all buffers on the way hold, and nothing is read until most of it waits.
        let writer = thread::spawn(move || {
            backend.write_all(&copy[..1_000_000]).unwrap();
            backend.write_all(&copy[1_000_000..]).unwrap();
        });
        let mut received = vec![0; 1];
        client.read_exact(&mut received).unwrap();
        client.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(received == sent, "{} of {} bytes, or not the same", received.len(), sent.len());
    }
}
