//! Fetches long HTTP/1.1 bodies as fast as they come, on several connections kept alive.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::LoadResult;

/// Longest piece of a body taken from a socket at once.
const PIECE_BYTES: usize = 1024 * 1024;

enum Phase {
    /// The head so far.
    Head(Vec<u8>),
    /// Body bytes still to come.
    Body(u64),
}

struct Exchange {
    stream: TcpStream,
    phase: Phase,
    began: Instant,
}

/// Fetches bodies of `body_bytes` over `connections` connections to `target` for `duration`.
///
/// Body bytes are thrown away inside the kernel (`MSG_TRUNC`) rather than copied out, so that the client is
/// not the bottleneck; their number is checked. An answer other than 200 with that `content-length` ends the
/// run as an error.
pub fn run(
    target: SocketAddr,
    connections: u32,
    body_bytes: u64,
    duration: Duration,
) -> io::Result<LoadResult> {
    let request = format!("GET /?size={body_bytes} HTTP/1.1\r\nhost: lab\r\n\r\n");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut exchanges = Vec::new();
    for key in 0..u64::from(connections) {
        let mut stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.write_all(request.as_bytes())?;
        stream.set_nonblocking(true)?;
        epoll::add(&epoll, &stream, EventData::new_u64(key), EventFlags::IN)?;
        exchanges.push(Exchange { stream, phase: Phase::Head(Vec::new()), began: Instant::now() });
    }
    let mut result = LoadResult::default();
    let mut latencies_us = Vec::new();
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; PIECE_BYTES];
    let begin = Instant::now();
    while begin.elapsed() < duration {
        events.clear();
        let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let exchange = &mut exchanges[event.data.u64() as usize];
            match exchange.receive(&mut buffer, body_bytes) {
                Ok(count) => result.bytes += count,
                Err(error) => {
                    result.fail("answer", 1);
                    result.problem = Some(error.to_string());
                    result.seconds = begin.elapsed().as_secs_f64();
                    return Ok(result);
                }
            }
            if matches!(exchange.phase, Phase::Body(0)) {
                result.requests += 1;
                latencies_us.push(u32::try_from(exchange.began.elapsed().as_micros()).unwrap_or(u32::MAX));
                exchange.stream.write_all(request.as_bytes())?;
                exchange.phase = Phase::Head(Vec::new());
                exchange.began = Instant::now();
            }
        }
    }
    result.seconds = begin.elapsed().as_secs_f64();
    result.put_latencies(&mut latencies_us);
    Ok(result)
}

impl Exchange {
    /// Takes what is there; gives how many bytes that was.
    fn receive(&mut self, buffer: &mut [u8], body_bytes: u64) -> io::Result<u64> {
        let (limit, flags) = match &self.phase {
            // Short pieces, so that little of the body is copied out with the head.
            Phase::Head(_) => (4096, RecvFlags::empty()),
            Phase::Body(left) => (buffer.len().min(*left as usize), RecvFlags::TRUNC),
        };
        let count = match rustix::net::recv(&self.stream, &mut buffer[..limit], flags) {
            Ok((_, 0)) => return Err(io::Error::other("the connection was closed inside an answer")),
            Ok((_, count)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        match &mut self.phase {
            Phase::Body(left) => *left -= count as u64,
            Phase::Head(head) => {
                head.extend_from_slice(&buffer[..count]);
                if let Some(body_begun) = body_begun(head, body_bytes)? {
                    self.phase = Phase::Body(body_bytes - body_begun);
                }
            }
        }
        Ok(count as u64)
    }
}

/// How many body bytes follow the head in `received`; `None` while the head has not ended. Err when it is not
/// an answer of 200 with `body_bytes`.
pub fn body_begun(received: &[u8], body_bytes: u64) -> io::Result<Option<u64>> {
    let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<u64>().ok());
    if !head.starts_with("http/1.1 200") || length != Some(body_bytes) {
        return Err(io::Error::other(format!(
            "expected 200 and content-length {body_bytes}, received `{head}`"
        )));
    }
    let begun = (received.len() - end - 4) as u64;
    if begun > body_bytes {
        return Err(io::Error::other(format!("{begun} bytes follow a head that announced {body_bytes}")));
    }
    Ok(Some(begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_begins_after_the_head() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nx: y\r\n\r\nabc";
        assert_eq!(body_begun(head, 10).unwrap(), Some(3));
        assert_eq!(body_begun(&head[..30], 10).unwrap(), None);
    }

    #[test]
    fn another_status_or_length_is_an_error() {
        assert!(body_begun(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 10\r\n\r\n", 10).is_err());
        assert!(body_begun(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", 10).is_err());
        assert!(body_begun(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 10).is_err());
    }
}
