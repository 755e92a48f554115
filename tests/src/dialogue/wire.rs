//! One end of a TCP connection that a test drives: exact bytes out, exact bytes in, every wait bounded.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::PATIENCE;
use super::message::{self, Broken, Request, Response};

/// A connection, and what was received on it but not yet consumed.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// How the other side ended: `Some(true)` for FIN, `Some(false)` for a reset.
    end: Option<bool>,
    side: &'static str,
    patience: Duration,
    /// Everything ever received.
    total_bytes: u64,
}

impl Wire {
    /// Connects as a client.
    pub fn connect(address: SocketAddr) -> Wire {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => Wire::over(stream, "client"),
            Err(problem) => panic!("client can't connect to {address}: {problem}"),
        }
    }

    /// Connects as a client; an error is the caller's to judge.
    pub fn try_connect(address: SocketAddr) -> io::Result<Wire> {
        Ok(Wire::over(TcpStream::connect_timeout(&address, PATIENCE)?, "client"))
    }

    /// Wraps a connection; `side` names our side in failure messages.
    pub fn over(stream: TcpStream, side: &'static str) -> Wire {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        // Its own bound on writes: a peer that does not read must fail the test and not hang it.
        stream.set_write_timeout(Some(PATIENCE)).expect("write timeout");
        Wire { stream, buffer: Vec::new(), end: None, side, patience: PATIENCE, total_bytes: 0 }
    }

    /// Sets how long one wait may last.
    pub fn with_patience(mut self, patience: Duration) -> Wire {
        self.patience = patience;
        self
    }

    /// The address of the other side.
    pub fn peer(&self) -> SocketAddr {
        self.stream.peer_addr().expect("connected")
    }

    /// The address of this side.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("connected")
    }

    /// The socket itself, for options.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Everything ever received, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Sends all of `bytes`.
    pub fn sends(&mut self, bytes: impl AsRef<[u8]>) {
        if let Err(problem) = self.tries_to_send(bytes) {
            panic!("{} can't send: {problem}\n{}", self.side, self.received());
        }
    }

    /// Sends all of `bytes`, or says why not.
    pub fn tries_to_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends `bytes` one at a time, each in a packet of its own.
    pub fn sends_byte_by_byte(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.sends([*byte]);
        }
    }

    /// Sends FIN; receiving goes on.
    pub fn half_closes(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection with RST.
    pub fn resets(self) {
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Waits for at least one more byte, or the end. `Ok(0)` is the end.
    fn fill(&mut self, deadline: Instant) -> io::Result<usize> {
        if self.end.is_some() {
            return Ok(0);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 16_384];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.end = Some(true),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                self.total_bytes += count as u64;
                return Ok(count);
            }
            Err(problem) if matches!(problem.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                self.end = Some(false);
            }
            Err(problem) if matches!(problem.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(problem) if problem.kind() == ErrorKind::Interrupted => return self.fill(deadline),
            Err(problem) => return Err(problem),
        }
        Ok(0)
    }

    /// Waits until `ready` finds what it looks for in the bytes received; `Err` says why it never did.
    pub(super) fn wait<T>(&mut self, mut ready: impl FnMut(&[u8]) -> Option<T>) -> Result<T, Broken> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(found) = ready(&self.buffer) {
                return Ok(found);
            }
            match self.fill(deadline) {
                Ok(0) if self.end == Some(false) => return Err(Broken::Reset),
                Ok(0) => return Err(Broken::Ended),
                Ok(_) => {}
                Err(problem) if problem.kind() == ErrorKind::TimedOut => {
                    return Err(Broken::Waited(self.patience));
                }
                Err(problem) => panic!("{} can't receive: {problem}", self.side),
            }
        }
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let rest = self.buffer.split_off(count);
        std::mem::replace(&mut self.buffer, rest)
    }

    pub(super) fn take_all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    fn received(&self) -> String {
        let shown = &self.buffer[..self.buffer.len().min(2000)];
        format!(
            "{} has received and not read {} bytes: {:?}",
            self.side,
            self.buffer.len(),
            String::from_utf8_lossy(shown)
        )
    }

    fn fail(&self, wanted: &str, broken: &Broken) -> ! {
        panic!("{} expected {wanted}, but {broken}\n{}", self.side, self.received());
    }

    /// Receives exactly `count` bytes.
    pub fn receives(&mut self, count: usize) -> Vec<u8> {
        match self.wait(|bytes| (bytes.len() >= count).then_some(())) {
            Ok(()) => self.take(count),
            Err(broken) => self.fail(&format!("{count} bytes"), &broken),
        }
    }

    /// Receives these very bytes.
    pub fn receives_exactly(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let got = self.receives(expected.len());
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected), "{}", self.side);
    }

    /// Receives up to and including `needle`, and returns all of it.
    pub fn receives_until(&mut self, needle: &str) -> Vec<u8> {
        match self.wait(|bytes| message::find(bytes, needle.as_bytes())) {
            Ok(at) => self.take(at + needle.len()),
            Err(broken) => self.fail(&format!("{needle:?}"), &broken),
        }
    }

    /// Receives at least one byte, and returns everything received.
    pub fn receives_something(&mut self) -> Vec<u8> {
        match self.wait(|bytes| (!bytes.is_empty()).then_some(())) {
            Ok(()) => self.take_all(),
            Err(broken) => self.fail("some bytes", &broken),
        }
    }

    /// The other side ends with FIN and sends nothing before it.
    pub fn receives_end(&mut self) {
        let extra = self.receives_to_the_end();
        assert!(
            extra.is_empty(),
            "{} expected the end, found {:?}",
            self.side,
            String::from_utf8_lossy(&extra)
        );
        assert_eq!(self.end, Some(true), "{} expected FIN, found a reset", self.side);
    }

    /// The other side ends the connection, with FIN or RST, and sends nothing before it.
    pub fn receives_close(&mut self) {
        let extra = self.receives_to_the_end();
        assert!(
            extra.is_empty(),
            "{} expected the end, found {:?}",
            self.side,
            String::from_utf8_lossy(&extra)
        );
    }

    /// Receives whatever comes until the other side ends the connection, with FIN or RST.
    pub fn receives_to_the_end(&mut self) -> Vec<u8> {
        match self.wait(|_| None::<()>) {
            Err(Broken::Ended | Broken::Reset) => self.take_all(),
            Err(broken) => self.fail("the end of the connection", &broken),
            Ok(()) => unreachable!("the question is never answered"),
        }
    }

    /// Whether the other side ended with a reset; known once the end was received.
    pub fn was_reset(&self) -> bool {
        self.end == Some(false)
    }

    /// Whether the other side has ended by now; does not wait.
    pub fn has_ended(&mut self) -> bool {
        self.looks();
        self.end.is_some()
    }

    /// Takes in whatever has arrived by now; does not wait. Gives the number of bytes received and not read.
    pub fn looks(&mut self) -> usize {
        self.stream.set_nonblocking(true).expect("non-blocking");
        let mut chunk = [0; 65536];
        while self.end.is_none() {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.end = Some(true),
                Ok(count) => {
                    self.buffer.extend_from_slice(&chunk[..count]);
                    self.total_bytes += count as u64;
                }
                Err(problem) if problem.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.end = Some(false),
            }
        }
        self.stream.set_nonblocking(false).expect("blocking");
        self.buffer.len()
    }

    /// Receives a whole response to any method but HEAD.
    pub fn receives_response(&mut self) -> Response {
        self.receives_response_to("GET")
    }

    /// Receives a whole response to `method`.
    pub fn receives_response_to(&mut self, method: &str) -> Response {
        match message::read_response(self, method) {
            Ok(response) => response,
            Err((broken, partial)) => {
                self.fail(&format!("a response to {method} (got {partial:?})"), &broken)
            }
        }
    }

    /// Receives a response, or says how it broke off and what there was of it.
    pub fn tries_to_receive_response(
        &mut self,
        method: &str,
    ) -> Result<Response, (Broken, Option<Box<Response>>)> {
        message::read_response(self, method)
    }

    /// Receives a response of this status, with its body.
    pub fn receives_status(&mut self, status: u16) -> Response {
        let response = self.receives_response();
        assert_eq!(response.status, status, "{} expected another status: {response:?}", self.side);
        response
    }

    /// Receives a response head alone, such as that of a 100 or a 101.
    pub fn receives_head(&mut self) -> Response {
        match message::read_response_head(self) {
            Ok(response) => response,
            Err(broken) => self.fail("a response head", &broken),
        }
    }

    /// Receives a whole request.
    pub fn receives_request(&mut self) -> Request {
        match message::read_request(self) {
            Ok(request) => request,
            Err(broken) => self.fail("a request", &broken),
        }
    }

    /// Receives a request, or says how it broke off.
    pub fn tries_to_receive_request(&mut self) -> Result<Request, Broken> {
        message::read_request(self)
    }

    /// Receives the head of a request; its body, if any, stays to be received.
    pub fn receives_request_head(&mut self) -> Request {
        match message::read_request_head(self) {
            Ok(request) => request,
            Err(broken) => self.fail("a request head", &broken),
        }
    }

    /// Sends a response with a length.
    pub fn answers(&mut self, status: u16, fields: &[(&str, &str)], body: impl AsRef<[u8]>) {
        self.sends(message::response_bytes(status, fields, body.as_ref()));
    }
}
