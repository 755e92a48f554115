//! An echo server: the answering half of netperf's request/response tests, for any number of connections and
//! without netserver's one process for each.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

/// Most bytes read from a connection at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Serves connections of `listener` (non-blocking) until the process ends. Err when epoll gives up.
///
/// A client that does not read its answers is closed once the socket's buffer is full: requests are small
/// here.
///
/// With `once`, it closes every connection after the first answer, as netserver does in TCP_CRR. netperf then
/// waits for that close before it goes on.
pub fn serve(listener: &OwnedFd, once: bool) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut streams: Vec<Option<OwnedFd>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let key = event.data.u64();
            if key == LISTENER {
                accept_all(listener, &epoll, &mut streams)?;
                continue;
            }
            let slot = &mut streams[key as usize];
            if slot.as_ref().is_some_and(|stream| !answer(stream, &mut buffer, once)) {
                *slot = None;
            }
        }
    }
}

fn accept_all(listener: &OwnedFd, epoll: &OwnedFd, streams: &mut Vec<Option<OwnedFd>>) -> io::Result<()> {
    loop {
        let stream = match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(stream) => stream,
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error) => return Err(error.into()),
        };
        // An answer must not wait for the client to acknowledge the one before.
        rustix::net::sockopt::set_tcp_nodelay(&stream, true)?;
        let key = stream.as_raw_fd() as usize;
        if streams.len() <= key {
            streams.resize_with(key + 1, || None);
        }
        epoll::add(epoll, &stream, EventData::new_u64(key as u64), EventFlags::IN)?;
        streams[key] = Some(stream);
    }
}

/// Sends back what was received; false if the connection is over.
fn answer(stream: &OwnedFd, buffer: &mut [u8], once: bool) -> bool {
    match rustix::net::recv(stream, &mut *buffer, RecvFlags::empty()) {
        Ok((count, _)) if count > 0 => rustix::net::send(stream, &buffer[..count], SendFlags::NOSIGNAL)
            .is_ok_and(|sent| sent == count && !once),
        Err(Errno::AGAIN | Errno::INTR) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::thread;

    #[test]
    fn every_byte_comes_back_and_the_end_after_it() {
        let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = rustix::net::getsockname(&listener).unwrap();
        let address = std::net::SocketAddrV4::try_from(address).unwrap();
        thread::spawn(move || super::serve(&listener, false));
        for _ in 0..3 {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"a").unwrap();
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"a");
            client.write_all(b"bc").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut rest = String::new();
            client.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "bc");
        }
    }

    #[test]
    fn once_means_that_the_end_follows_the_first_answer() {
        let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = std::net::SocketAddrV4::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        thread::spawn(move || super::serve(&listener, true));
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"n").unwrap();
        let mut all = String::new();
        client.read_to_string(&mut all).unwrap();
        assert_eq!(all, "n");
    }
}
