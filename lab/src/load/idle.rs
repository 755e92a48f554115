//! Opens many connections, does one request on each, and leaves them open.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::LoadResult;

/// How many connections are between request and answer at a time.
const BATCH: usize = 64;

/// Opens `connections` connections to `target` and does one request on each.
///
/// Returns what happened and the open connections; dropping them closes them.
pub fn open(target: SocketAddr, connections: u32) -> io::Result<(LoadResult, Vec<TcpStream>)> {
    super::users::descriptor_limit();
    let mut result = LoadResult::default();
    let mut open = Vec::with_capacity(connections as usize);
    let begin = Instant::now();
    while open.len() < connections as usize && result.errors.is_empty() {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH.min(connections as usize - open.len()) {
            let mut stream = TcpStream::connect(target)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: lab\r\n\r\n")?;
            batch.push(stream);
        }
        for mut stream in batch {
            match read_answer(&mut stream) {
                Ok(bytes) => {
                    result.requests += 1;
                    result.bytes += bytes;
                }
                Err(error) => {
                    result.fail("answer", 1);
                    result.problem = Some(format!("connection {}: {error}", open.len()));
                }
            }
            open.push(stream);
        }
    }
    result.seconds = begin.elapsed().as_secs_f64();
    Ok((result, open))
}

/// Counts the connections in `open` that the other side has closed by now.
pub fn count_closed(open: &[TcpStream]) -> u64 {
    let closed = |stream: &TcpStream| {
        stream.set_nonblocking(true).is_err()
            || !matches!(stream.peek(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    };
    open.iter().filter(|stream| closed(stream)).count() as u64
}

/// Reads one answer with a short body; gives its length.
fn read_answer(stream: &mut TcpStream) -> io::Result<u64> {
    let mut answer = Vec::with_capacity(512);
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::Error::other("closed before its answer was whole"));
        }
        answer.extend_from_slice(&piece[..count]);
        if !answer.starts_with(b"HTTP/1.1 200".get(..answer.len().min(12)).unwrap_or_default()) {
            let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
            return Err(io::Error::other(format!("answered `{line}` where 200 was expected")));
        }
        if answer.ends_with(b"\r\n\r\nHello World!\n") {
            return Ok(answer.len() as u64);
        }
    }
}
