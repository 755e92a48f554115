//! HTTP/1.1 requests at a fixed rate, whatever the answers do (an open loop).
//!
//! Each request has a time at which it is due, and its latency counts from then, even if it had to wait for a
//! connection. So a load balancer that stalls is charged for every request that fell due meanwhile, which a closed
//! loop, that stops asking, hides ("coordinated omission", Tene, 2013).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::LoadResult;
use super::fetch::body_begun;
use crate::statistics::latency_percentile;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: lab\r\n\r\n";
/// What the backend's short answer carries.
const BODY_BYTES: u64 = 13;
/// How long answers are waited for after the last request.
const PATIENCE: Duration = Duration::from_secs(2);

struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
    /// When the request it is busy with was due.
    due: Instant,
}

struct Paced {
    connections: Vec<Connection>,
    /// Places of connections that wait for work; the one that waited longest comes first.
    free: VecDeque<usize>,
    /// When requests were due that no connection was free for.
    late: VecDeque<Instant>,
    latencies_us: Vec<u32>,
    result: LoadResult,
}

/// Sends `rate` requests a second over `connections` connections to 127.0.0.1:`port` for `duration`.
///
/// A request that is not answered with 200 and the short body within 2 s of the end is an error.
pub fn run(port: u16, connections: u32, rate: u32, duration: Duration) -> io::Result<LoadResult> {
    // The default slack of 50 us would be half the time between two requests.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut paced = Paced::connect(port, connections, &epoll)?;
    let total = u64::from(rate) * duration.as_secs();
    let step = Duration::from_secs(1) / rate;
    let begin = Instant::now();
    let due = |index: u64| begin + step * u32::try_from(index).unwrap_or(u32::MAX);
    let (mut next, mut answered) = (0, 0);
    let mut events = Vec::with_capacity(256);
    while answered < total && begin.elapsed() < duration + PATIENCE {
        let now = Instant::now();
        while next < total && due(next) <= now {
            paced.ask(due(next))?;
            next += 1;
        }
        let wait =
            if next < total { due(next).saturating_duration_since(now) } else { Duration::from_millis(50) };
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match paced.receive(event.data.u64() as usize) {
                Ok(whole) => answered += u64::from(whole),
                Err(error) => {
                    paced.result.problem = Some(error.to_string());
                    paced.result.errors = total - answered;
                    paced.result.seconds = begin.elapsed().as_secs_f64();
                    return Ok(paced.result);
                }
            }
        }
    }
    let mut result = paced.result;
    result.seconds = begin.elapsed().as_secs_f64();
    result.requests = answered;
    if answered < total {
        result.errors = total - answered;
        result.problem = Some(format!("{} of {total} requests were not answered in time", total - answered));
    }
    let mut percentile = |fraction| latency_percentile(&mut paced.latencies_us, fraction).map(f64::from);
    (result.p50_us, result.p99_us, result.p999_us) = (percentile(0.5), percentile(0.99), percentile(0.999));
    Ok(result)
}

impl Paced {
    fn connect(port: u16, connections: u32, epoll: &std::os::fd::OwnedFd) -> io::Result<Self> {
        let mut paced = Self {
            connections: Vec::new(),
            free: (0..connections as usize).collect(),
            late: VecDeque::new(),
            latencies_us: Vec::new(),
            result: LoadResult::default(),
        };
        for key in 0..u64::from(connections) {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(epoll, &stream, EventData::new_u64(key), EventFlags::IN)?;
            paced.connections.push(Connection { stream, answer: Vec::new(), due: Instant::now() });
        }
        Ok(paced)
    }

    /// Sends the request that was due at `due`, or lets it wait for a connection.
    fn ask(&mut self, due: Instant) -> io::Result<()> {
        let Some(place) = self.free.pop_front() else {
            self.late.push_back(due);
            return Ok(());
        };
        let connection = &mut self.connections[place];
        connection.due = due;
        connection.stream.write_all(REQUEST)
    }

    /// Takes what has come for the connection at `place`; whether that made an answer whole.
    fn receive(&mut self, place: usize) -> io::Result<bool> {
        let connection = &mut self.connections[place];
        let mut piece = [0; 4096];
        match rustix::net::recv(&connection.stream, &mut piece[..], RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::Error::other("a connection was closed")),
            Ok((count, _)) => {
                connection.answer.extend_from_slice(&piece[..count]);
                self.result.bytes += count as u64;
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if body_begun(&connection.answer, BODY_BYTES)? != Some(BODY_BYTES) {
            return Ok(false);
        }
        connection.answer.clear();
        let latency = connection.due.elapsed().as_micros();
        self.latencies_us.push(u32::try_from(latency).unwrap_or(u32::MAX));
        self.free.push_back(place);
        if let Some(due) = self.late.pop_front() {
            self.ask(due)?;
        }
        Ok(true)
    }
}
