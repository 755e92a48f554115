//! Reads TCP streams as fast as they come and counts the bytes.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::LoadResult;

/// Longest piece taken from a socket at once.
const PIECE_BYTES: usize = 1024 * 1024;

/// Reads `connections` streams from `target` for `duration`.
///
/// The bytes are thrown away inside the kernel (`MSG_TRUNC`) rather than copied out, so that the reader is
/// not the bottleneck. A stream that ends early is an error.
pub fn run(target: SocketAddr, connections: u32, duration: Duration) -> io::Result<LoadResult> {
    let streams: Vec<TcpStream> =
        (0..connections).map(|_| TcpStream::connect(target)).collect::<io::Result<_>>()?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (key, stream) in (0_u64..).zip(&streams) {
        stream.set_nonblocking(true)?;
        epoll::add(&epoll, stream, EventData::new_u64(key), EventFlags::IN)?;
    }
    let mut result = LoadResult { requests: u64::from(connections), ..LoadResult::default() };
    let mut events = Vec::with_capacity(64);
    let mut buffer = vec![0; PIECE_BYTES];
    let begin = Instant::now();
    while begin.elapsed() < duration && result.error_count() < u64::from(connections) {
        events.clear();
        let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let stream = &streams[event.data.u64() as usize];
            match rustix::net::recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, count)) if count > 0 => result.bytes += count as u64,
                Err(Errno::AGAIN | Errno::INTR) => {}
                ended => {
                    result.fail("closed", 1);
                    result.problem = Some(format!("a stream ended early: {ended:?}"));
                    epoll::delete(&epoll, stream)?;
                }
            }
        }
    }
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}
