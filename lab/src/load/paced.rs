//! HTTP/1.1 requests at a fixed rate, independent of the answers (an open loop).
//!
//! Each request has a time at which it is due, and its latency counts from then, even if it had to wait for a
//! connection. So a load balancer that stalls is charged for every request that fell due meanwhile. A closed
//! loop stops asking and hides this ("coordinated omission", Tene, 2013).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::LoadResult;
use super::fetch::body_begun;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: lab\r\n\r\n";
/// What the backend's short answer carries.
const BODY_BYTES: u64 = 13;
/// Marks the timer among the events.
const TIMER: u64 = u64::MAX;
/// How long to wait for answers after the last request.
const PATIENCE: Duration = Duration::from_secs(2);

struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
    /// When its current request was due.
    due: Instant,
}

struct Paced {
    connections: Vec<Connection>,
    /// Indexes of idle connections; the one that has waited longest comes first.
    free: VecDeque<usize>,
    /// Due times of requests for which no connection was free.
    late: VecDeque<Instant>,
    latencies_us: Vec<u32>,
    result: LoadResult,
}

/// Sends `rate` requests a second over `connections` connections to `target` for `duration`.
///
/// A request that is not answered with 200 and the short body within 2 s of the end is an error.
pub fn run(target: SocketAddr, connections: u32, rate: u32, duration: Duration) -> io::Result<LoadResult> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut paced = Paced::connect(target, connections, &epoll)?;
    let total = u64::from(rate) * duration.as_secs();
    let step = Duration::from_secs(1) / rate;
    let timer = ticking(step)?;
    epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
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
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            if event.data.u64() == TIMER {
                let _ = rustix::io::read(&timer, &mut [0; 8]);
                continue;
            }
            match paced.receive(event.data.u64() as usize) {
                Ok(whole) => answered += u64::from(whole),
                Err(error) => {
                    paced.result.problem = Some(error.to_string());
                    paced.result.fail("answer", total - answered);
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
        result.fail("unanswered", total - answered);
        result.problem = Some(format!("{} of {total} requests were not answered in time", total - answered));
    }
    result.put_latencies(&mut paced.latencies_us);
    Ok(result)
}

/// A timer that can be read every `step`.
///
/// The timeout of the wait itself is too coarse: its unit is a millisecond, in which ten requests fall due.
fn ticking(step: Duration) -> io::Result<OwnedFd> {
    // The default slack of 50 us would be half the time between two requests.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let timer = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let step = Timespec { tv_sec: step.as_secs() as i64, tv_nsec: i64::from(step.subsec_nanos()) };
    let setting = Itimerspec { it_interval: step, it_value: step };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting)?;
    Ok(timer)
}

impl Paced {
    fn connect(target: SocketAddr, connections: u32, epoll: &OwnedFd) -> io::Result<Self> {
        let mut paced = Self {
            connections: Vec::new(),
            free: (0..connections as usize).collect(),
            late: VecDeque::new(),
            latencies_us: Vec::new(),
            result: LoadResult::default(),
        };
        for key in 0..u64::from(connections) {
            let stream = TcpStream::connect(target)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(epoll, &stream, EventData::new_u64(key), EventFlags::IN)?;
            paced.connections.push(Connection { stream, answer: Vec::new(), due: Instant::now() });
        }
        Ok(paced)
    }

    /// Sends the request that was due at `due`, or queues it for a connection.
    fn ask(&mut self, due: Instant) -> io::Result<()> {
        let Some(place) = self.free.pop_front() else {
            self.late.push_back(due);
            return Ok(());
        };
        let connection = &mut self.connections[place];
        connection.due = due;
        connection.stream.write_all(REQUEST)
    }

    /// Handles what the connection at `place` received. Returns whether that completed an answer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    /// Answers each request at once, but the first only after `stall`.
    fn server_that_stalls_once(stall: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = [0; REQUEST.len()];
            let mut stall = Some(stall);
            while client.read_exact(&mut request).is_ok() {
                thread::sleep(stall.take().unwrap_or_default());
                client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nHello World!\n").unwrap();
            }
        });
        address
    }

    #[test]
    fn a_stall_is_charged_to_every_request_that_fell_due_in_it() {
        let target = server_that_stalls_once(Duration::from_millis(300));
        let result = run(target, 1, 200, Duration::from_secs(1)).unwrap();
        assert_eq!((result.requests, result.error_count()), (200, 0), "{result:?}");
        // 60 requests fell due within 300 ms. A closed loop would have seen one slow answer, less than one in
        // a hundred.
        assert!(result.figures[&crate::metric::Metric::LATENCY_P99] > 200_000.0, "{result:?}");
    }

    #[test]
    fn requests_that_are_never_answered_are_errors() {
        let target = server_that_stalls_once(Duration::from_secs(3600));
        let result = run(target, 1, 10, Duration::from_secs(1)).unwrap();
        assert_eq!((result.requests, result.error_count()), (0, 10), "{result:?}");
    }
}
