//! An HTTP/1.1 server that takes a known time to answer. Every load generator must then report this time as
//! the latency.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use crate::timer::Timer;

/// Time from a request's last byte to the first byte of its response.
pub const DELAY: Duration = Duration::from_millis(20);

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 13\r\n\r\nHello World!\n";
const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

struct Client {
    socket: OwnedFd,
    input: Vec<u8>,
}

/// Serves connections of `listener` (non-blocking) until the process ends; requests have no body. Err when
/// epoll or the timer give up.
pub fn serve(listener: &OwnedFd) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut timer = Timer::new()?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&epoll, &timer.descriptor, EventData::new_u64(TIMER), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    // The delay is the same for all, so answers fall due in the order of their requests.
    let mut due: VecDeque<(Instant, usize)> = VecDeque::new();
    let mut events = Vec::with_capacity(256);
    loop {
        while let Some((_, key)) = due.pop_front_if(|(moment, _)| *moment <= Instant::now()) {
            let sent = clients[key]
                .as_ref()
                .map(|client| rustix::net::send(&client.socket, ANSWER, SendFlags::NOSIGNAL));
            if sent != Some(Ok(ANSWER.len())) {
                clients[key] = None;
            }
        }
        if let Some((moment, _)) = due.front() {
            timer.set(*moment)?;
        }
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => accept(listener, &epoll, &mut clients)?,
                TIMER => timer.take(),
                key => receive(&mut clients, key as usize, &mut due),
            }
        }
    }
}

fn accept(listener: &OwnedFd, epoll: &OwnedFd, clients: &mut Vec<Option<Client>>) -> io::Result<()> {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => {
            rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
            let key = socket.as_raw_fd() as usize;
            if clients.len() <= key {
                clients.resize_with(key + 1, || None);
            }
            epoll::add(epoll, &socket, EventData::new_u64(key as u64), EventFlags::IN)?;
            clients[key] = Some(Client { socket, input: Vec::new() });
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn receive(clients: &mut [Option<Client>], key: usize, due: &mut VecDeque<(Instant, usize)>) {
    let Some(client) = &mut clients[key] else { return };
    let mut piece = [0; 4096];
    match rustix::net::recv(&client.socket, &mut piece[..], RecvFlags::empty()) {
        Err(Errno::AGAIN | Errno::INTR) => {}
        Ok((count @ 1.., _)) => {
            client.input.extend_from_slice(&piece[..count]);
            if client.input.ends_with(b"\r\n\r\n") {
                client.input.clear();
                due.push_back((Instant::now() + DELAY, key));
            }
        }
        Ok((0, _)) | Err(_) => {
            clients[key] = None;
            due.retain(|(_, of)| *of != key);
        }
    }
}
