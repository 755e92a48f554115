//! The TCP source of the bulk measurement. It sends without end to every connection, by plain writes as most
//! servers do.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};

/// Bytes per write.
const PIECE_BYTES: usize = 256 * 1024;
/// How many pieces one connection may send before the others get their turn.
const TURN_PIECES: usize = 16;

/// Serves connections of `listener` (non-blocking) until the process ends. Err when epoll gives up.
pub fn serve(listener: &OwnedFd) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let piece: Vec<u8> = (0..PIECE_BYTES).map(|index| b'a' + (index % 26) as u8).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut streams: Vec<Option<OwnedFd>> = Vec::new();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == LISTENER {
                accept(listener, &epoll, &mut streams)?;
                continue;
            }
            let slot = &mut streams[key as usize];
            let Some(stream) = slot else { continue };
            let gone = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            if gone || send_a_turn(stream, &piece).is_err() {
                *slot = None;
            }
        }
    }
}

fn accept(listener: &OwnedFd, epoll: &OwnedFd, streams: &mut Vec<Option<OwnedFd>>) -> io::Result<()> {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => {
            let key = socket.as_raw_fd() as usize;
            if streams.len() <= key {
                streams.resize_with(key + 1, || None);
            }
            epoll::add(epoll, &socket, EventData::new_u64(key as u64), EventFlags::OUT | EventFlags::RDHUP)?;
            streams[key] = Some(socket);
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn send_a_turn(stream: &OwnedFd, piece: &[u8]) -> rustix::io::Result<()> {
    for _ in 0..TURN_PIECES {
        match rustix::net::send(stream, piece, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
