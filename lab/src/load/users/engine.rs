//! One process's share of virtual users: one thread, epoll, and two queues of times.
//!
//! Every user pauses for the same time after its answer, so users wake in the order in which their answers
//! arrived: a queue suffices where a heap of timers would otherwise be needed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};
use serde::{Deserialize, Serialize};

use super::answer::Reader;
use crate::timer::Timer;

/// Marks the timer among the events.
const TIMER: u64 = u64::MAX;
/// How often each value occurred, in microseconds.
pub type Counts = BTreeMap<u32, u64>;

/// What users saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Answers of status 200 to 399, received whole.
    pub requests: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Connections opened again after the server had closed an idle one. Not an error, because a browser
    /// would do the same.
    pub reconnects: u64,
    /// From the first byte sent to the last one received, for each of `requests` (k6's `http_req_duration`).
    pub latencies_us: Counts,
    /// How long after it was due each request was sent. It tells whether the generator itself was the limit.
    pub lateness_us: Counts,
    /// What went wrong, by kind.
    pub errors: BTreeMap<String, u64>,
    /// The first thing that went wrong, in words.
    pub problem: Option<String>,
}

impl Tally {
    /// Adds the tally of other users.
    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.reconnects += other.reconnects;
        let into = |counts: &mut Counts, more: Counts| {
            more.into_iter().for_each(|(value, count)| *counts.entry(value).or_default() += count);
        };
        into(&mut self.latencies_us, other.latencies_us);
        into(&mut self.lateness_us, other.lateness_us);
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.problem = self.problem.take().or(other.problem);
    }

    fn fail(&mut self, kind: &str, detail: &dyn std::fmt::Display) {
        *self.errors.entry(kind.to_owned()).or_default() += 1;
        self.problem.get_or_insert_with(|| format!("{kind}: {detail}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UserState {
    /// Not begun, or pausing.
    Resting,
    Connecting,
    /// A request is out.
    Asking,
}

struct User {
    socket: Option<OwnedFd>,
    state: UserState,
    /// Whether this connection has answered before: the server may then close it at any moment.
    used: bool,
    /// When the request's first byte was sent.
    sent: Instant,
    reader: Reader,
}

/// Users at work on `targets`, one on each in turn.
pub struct Engine<'a> {
    targets: &'a [SocketAddr],
    request: &'a [u8],
    pause: Duration,
    patience: Duration,
    epoll: OwnedFd,
    users: Vec<User>,
    /// When each pausing user wakes, soonest first.
    sleepers: VecDeque<(Instant, usize)>,
    /// Users between request and answer.
    busy: usize,
    tally: Tally,
}

impl<'a> Engine<'a> {
    /// An engine whose users send `request` to `targets` (at least one) and pause for `pause`. In the end it
    /// waits up to `patience` for their answers. Err if the kernel refuses an epoll.
    pub fn new(
        targets: &'a [SocketAddr],
        request: &'a [u8],
        pause: Duration,
        patience: Duration,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (users, sleepers, tally) = (Vec::new(), VecDeque::new(), Tally::default());
        Ok(Self { targets, request, pause, patience, epoll, users, sleepers, busy: 0, tally })
    }

    /// Runs one user for each of `begins` (ascending, since `start`) until `end` (since `start`); then waits
    /// for outstanding answers. Err if epoll or the timer fail; failed requests are in the tally.
    pub fn run(mut self, begins: &[Duration], start: Instant, end: Duration) -> io::Result<Tally> {
        let end = start + end;
        let mut timer = Timer::new()?;
        epoll::add(&self.epoll, &timer.descriptor, EventData::new_u64(TIMER), EventFlags::IN)?;
        let mut newcomers: VecDeque<Instant> = begins.iter().map(|begin| start + *begin).collect();
        let mut events = Vec::with_capacity(1024);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let now = Instant::now();
            self.wake(&mut newcomers, now, end);
            let last = end + if self.busy > 0 { self.patience } else { Duration::ZERO };
            if now >= last {
                break;
            }
            let sleeper = self.sleepers.front().map(|(wake, _)| wake);
            let next = newcomers.front().into_iter().chain(sleeper).min().filter(|next| **next < end);
            timer.set(next.copied().unwrap_or(if now < end { end } else { last }))?;
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    TIMER => timer.take(),
                    key => self.on_event(key as usize, &mut buffer),
                }
            }
        }
        for _ in 0..self.busy {
            let detail = format!("no answer within {:?} of the end", self.patience);
            self.tally.fail("unanswered", &detail);
        }
        Ok(self.tally)
    }

    /// Sends the requests of all users that are due.
    fn wake(&mut self, newcomers: &mut VecDeque<Instant>, now: Instant, end: Instant) {
        while let Some(due) = newcomers.front().copied().filter(|due| *due <= now && *due < end) {
            newcomers.pop_front();
            let fresh = User {
                socket: None,
                state: UserState::Resting,
                used: false,
                sent: now,
                reader: Reader::default(),
            };
            self.users.push(fresh);
            self.ask(self.users.len() - 1, due);
        }
        while let Some((due, user)) =
            self.sleepers.front().copied().filter(|(due, _)| *due <= now && *due < end)
        {
            self.sleepers.pop_front();
            self.ask(user, due);
        }
    }

    /// Begins the request of `user` that was due at `due`.
    fn ask(&mut self, user: usize, due: Instant) {
        *self.tally.lateness_us.entry(microseconds(due.elapsed())).or_default() += 1;
        self.busy += 1;
        if self.users[user].socket.is_some() { self.send(user) } else { self.connect(user) }
    }

    fn connect(&mut self, user: usize) {
        let target = self.targets[user % self.targets.len()];
        let opened = self.open(target, user);
        let it = &mut self.users[user];
        it.used = false;
        match opened {
            Ok(socket) => (it.socket, it.state) = (Some(socket), UserState::Connecting),
            Err(error) => self.fail(user, "connect", &error),
        }
    }

    fn open(&self, target: SocketAddr, user: usize) -> io::Result<OwnedFd> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        epoll::add(&self.epoll, &socket, EventData::new_u64(user as u64), EventFlags::OUT)?;
        Ok(socket)
    }

    fn send(&mut self, user: usize) {
        let it = &mut self.users[user];
        let Some(socket) = &it.socket else { return };
        it.state = UserState::Asking;
        it.sent = Instant::now();
        match rustix::net::send(socket, self.request, SendFlags::NOSIGNAL) {
            Ok(count) if count == self.request.len() => {}
            // A request is far shorter than a socket's empty buffer.
            Ok(_) | Err(Errno::AGAIN) => self.fail(user, "send", &"the socket took only part of the request"),
            Err(_) if it.used => self.reconnect(user),
            Err(error) => self.fail(user, "send", &error),
        }
    }

    fn reconnect(&mut self, user: usize) {
        self.tally.reconnects += 1;
        self.users[user].socket = None;
        self.connect(user);
    }

    fn on_event(&mut self, user: usize, buffer: &mut [u8]) {
        match self.users[user].state {
            UserState::Connecting => self.on_connected(user),
            UserState::Asking | UserState::Resting => self.on_readable(user, buffer),
        }
    }

    fn on_connected(&mut self, user: usize) {
        let Some(socket) = &self.users[user].socket else { return };
        let checked =
            rustix::net::sockopt::socket_error(socket).map_err(io::Error::from).and_then(|connected| {
                connected?;
                epoll::modify(&self.epoll, socket, EventData::new_u64(user as u64), EventFlags::IN)?;
                Ok(())
            });
        match checked {
            Ok(()) => self.send(user),
            Err(error) => self.fail(user, "connect", &error),
        }
    }

    fn on_readable(&mut self, user: usize, buffer: &mut [u8]) {
        let it = &mut self.users[user];
        let Some(socket) = &it.socket else { return };
        let received = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty());
        let asking = it.state == UserState::Asking;
        match received {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((count @ 1.., _)) if asking => self.on_bytes(user, &buffer[..count]),
            Ok((count @ 1.., _)) => {
                it.socket = None;
                self.tally.fail("unasked", &format!("{count} bytes came while nothing was asked"));
            }
            // The server closed an idle connection, or just as it was used again.
            Ok((0, _)) | Err(_) if !asking => it.socket = None,
            Ok((0, _)) | Err(_) if it.used && !it.reader.has_begun() => self.reconnect(user),
            Ok((0, _)) => self.fail(user, "closed", &"the connection was closed within an answer"),
            Err(error) => self.fail(user, "reset", &error),
        }
    }

    fn on_bytes(&mut self, user: usize, bytes: &[u8]) {
        self.tally.bytes += bytes.len() as u64;
        let it = &mut self.users[user];
        let answer = match it.reader.take(bytes) {
            Ok(None) => return,
            Ok(Some(answer)) => answer,
            Err(problem) => return self.fail(user, "answer", &problem),
        };
        let latency = it.sent.elapsed();
        it.used = true;
        if answer.close {
            it.socket = None;
        }
        if (200..400).contains(&answer.status) {
            self.tally.requests += 1;
            *self.tally.latencies_us.entry(microseconds(latency)).or_default() += 1;
        } else {
            self.tally.fail(&format!("status {}", answer.status), &"an answer of 200 to 399 was expected");
        }
        self.rest(user);
    }

    /// Records that a request of `user` failed; a pause follows as after an answer.
    fn fail(&mut self, user: usize, kind: &str, detail: &dyn std::fmt::Display) {
        self.tally.fail(kind, detail);
        let it = &mut self.users[user];
        (it.socket, it.reader) = (None, Reader::default());
        self.rest(user);
    }

    fn rest(&mut self, user: usize) {
        self.users[user].state = UserState::Resting;
        self.busy -= 1;
        self.sleepers.push_back((Instant::now() + self.pause, user));
    }
}

/// Rounded to the nearest, so that a mean of many is not biased; `u32::MAX` for more than 71 minutes.
fn microseconds(duration: Duration) -> u32 {
    u32::try_from((duration.as_nanos() + 500) / 1000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello World!\n";

    /// A server that treats every connection as `serve` does, in a thread of its own.
    fn server(serve: fn(TcpStream)) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming() {
                thread::spawn(move || serve(client.unwrap()));
            }
        });
        address
    }

    fn asked(client: &mut TcpStream) -> bool {
        client.read_exact(&mut [0; REQUEST.len()]).is_ok()
    }

    /// `users` who come at once, ask every `pause_ms` or so for 200 ms, and then wait for half a second.
    fn play(target: SocketAddr, users: usize, pause_ms: u64) -> Tally {
        let milliseconds = Duration::from_millis;
        Engine::new(&[target], REQUEST, milliseconds(pause_ms), milliseconds(500))
            .unwrap()
            .run(&vec![Duration::ZERO; users], Instant::now(), milliseconds(200))
            .unwrap()
    }

    #[test]
    fn users_ask_again_and_again_on_one_connection_each() {
        let target = server(|mut client| {
            while asked(&mut client) {
                // In two pieces, which must count as one answer.
                client.write_all(&HELLO[..20]).unwrap();
                client.write_all(&HELLO[20..]).unwrap();
            }
        });
        let tally = play(target, 3, 20);
        // No more than 10 each fit into 200 ms; on a machine busy with other tests it may be fewer.
        assert!((6..=30).contains(&tally.requests), "{tally:?}");
        assert_eq!((tally.errors.len(), tally.reconnects), (0, 0), "{tally:?}");
        assert_eq!(tally.bytes, tally.requests * HELLO.len() as u64);
        assert_eq!(tally.latencies_us.values().sum::<u64>(), tally.requests);
        assert_eq!(tally.lateness_us.values().sum::<u64>(), tally.requests);
    }

    #[test]
    fn a_latency_is_the_time_the_server_took_and_not_the_rest() {
        let target = server(|mut client| {
            while asked(&mut client) {
                thread::sleep(Duration::from_millis(30));
                client.write_all(HELLO).unwrap();
            }
        });
        let tally = play(target, 1, 100);
        let least = *tally.latencies_us.first_key_value().unwrap().0;
        assert!((30_000..100_000).contains(&least), "{tally:?}");
    }

    #[test]
    fn a_connection_the_server_closed_at_rest_is_opened_again_without_an_error() {
        let target = server(|mut client| {
            asked(&mut client);
            client.write_all(HELLO).unwrap();
        });
        let tally = play(target, 1, 20);
        assert!(tally.requests > 2, "{tally:?}");
        assert_eq!(tally.errors, BTreeMap::new(), "{tally:?}");
    }

    #[test]
    fn a_server_that_closes_and_says_so_is_left_at_once() {
        let target = server(|mut client| {
            asked(&mut client);
            client.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
            // It holds on to the connection, which must not be used again.
            assert!(!asked(&mut client));
        });
        let tally = play(target, 1, 20);
        assert!(tally.requests > 2, "{tally:?}");
        assert_eq!((tally.errors.len(), tally.reconnects), (0, 0), "{tally:?}");
    }

    #[test]
    fn what_goes_wrong_is_counted_by_kind_and_is_no_latency() {
        let only = |tally: &Tally, kind: &str| {
            assert_eq!(tally.errors.keys().collect::<Vec<_>>(), [kind], "{tally:?}");
            assert!(
                tally.errors[kind] > 0 && tally.requests == 0 && tally.latencies_us.is_empty(),
                "{tally:?}"
            );
            assert!(tally.problem.as_ref().unwrap().starts_with(kind), "{tally:?}");
        };
        only(
            &play(
                server(|mut client| {
                    while asked(&mut client) {
                        client.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").unwrap();
                    }
                }),
                2,
                20,
            ),
            "status 502",
        );
        only(
            &play(
                server(|mut client| {
                    asked(&mut client);
                    client.write_all(&HELLO[..50]).unwrap();
                }),
                2,
                20,
            ),
            "closed",
        );
        only(
            &play(
                server(|mut client| {
                    asked(&mut client);
                    client.write_all(b"SSH-2.0-x\r\n\r\n").unwrap();
                }),
                2,
                20,
            ),
            "answer",
        );
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = play(nobody, 2, 20);
        only(&refused, "connect");
        // A user rests after a failure as after an answer.
        assert!(refused.errors["connect"] <= 20, "{refused:?}");
    }

    #[test]
    fn requests_that_are_never_answered_are_errors_after_a_while() {
        let begin = Instant::now();
        let tally = play(server(|mut client| while asked(&mut client) {}), 2, 20);
        assert_eq!(tally.errors, BTreeMap::from([("unanswered".to_owned(), 2)]));
        assert!(begin.elapsed() >= Duration::from_millis(700));
    }

    #[test]
    fn what_several_saw_is_one_tally() {
        let tally = |latency: u32, kind: &str| Tally {
            requests: 2,
            bytes: 10,
            reconnects: 1,
            latencies_us: Counts::from([(latency, 1), (100, 1)]),
            lateness_us: Counts::from([(5, 2)]),
            errors: BTreeMap::from([(kind.to_owned(), 3)]),
            problem: Some(format!("{kind}: x")),
        };
        let mut all = tally(50, "reset");
        all.add(tally(70, "closed"));
        assert_eq!((all.requests, all.bytes, all.reconnects), (4, 20, 2));
        assert_eq!(all.latencies_us, Counts::from([(50, 1), (70, 1), (100, 2)]));
        assert_eq!(all.lateness_us, Counts::from([(5, 4)]));
        assert_eq!(all.errors, BTreeMap::from([("closed".to_owned(), 3), ("reset".to_owned(), 3)]));
        assert_eq!(all.problem.as_deref(), Some("reset: x"));
    }

    #[test]
    fn microseconds_are_rounded_to_the_nearest() {
        let of = |nanoseconds| microseconds(Duration::from_nanos(nanoseconds));
        assert_eq!([of(0), of(499), of(500), of(1499), of(1500)], [0, 0, 1, 1, 2]);
        assert_eq!(microseconds(Duration::from_secs(5000)), u32::MAX);
    }
}
