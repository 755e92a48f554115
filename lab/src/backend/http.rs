//! The HTTP/1.1 backend of the measurements: one thread, epoll, answers made in advance.
//!
//! It must cost little, because it shares its core with the load generator, and yet be strict: it reads each
//! head to its end, skips bodies by `content-length`, answers pipelined requests in order and honours
//! `connection: close`. `?size=N` in the target asks for a body of N bytes; all other requests get the short
//! one. Its counters are served at [`super::COUNTERS_PATH`].

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};

/// The short body every plain request gets: 13 bytes.
pub const SHORT_BODY: &[u8] = b"Hello World!\n";

/// Longest request head; a longer one is answered with 431.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Long answers are sent in pieces of this size.
const BODY_PIECE_BYTES: usize = 256 * 1024;

/// What the start of a connection's input holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// The head has not ended yet.
    Incomplete,
    /// A whole head of `head_bytes`, followed by `body_bytes` to skip.
    Request { head_bytes: usize, body_bytes: u64, answer: Answer, close: bool },
    /// Nothing this backend understands; answered with this status line and closed.
    Refused(&'static str),
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Short { head_only: bool },
    Sized { bytes: u64, head_only: bool },
    Counters,
}

fn parse(input: &[u8]) -> Input {
    let Some(end) = find(input, b"\r\n\r\n") else {
        return if input.len() > MAX_HEAD_BYTES {
            Input::Refused("431 Request Header Fields Too Large")
        } else {
            Input::Incomplete
        };
    };
    let head = &input[..end];
    let line_end = find(head, b"\r\n").unwrap_or(end);
    let mut words = head[..line_end].split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Input::Refused("400 Bad Request");
    };
    if !version.starts_with(b"HTTP/1.") {
        return Input::Refused("505 HTTP Version Not Supported");
    }
    let mut close = version == b"HTTP/1.0";
    let mut body_bytes = 0;
    let mut rest = &head[line_end..];
    while let Some(line) = rest.strip_prefix(b"\r\n") {
        let line_end = find(line, b"\r\n").unwrap_or(line.len());
        rest = &line[line_end..];
        let Some(colon) = line[..line_end].iter().position(|byte| *byte == b':') else {
            return Input::Refused("400 Bad Request");
        };
        let (name, value) = (&line[..colon], line[colon + 1..line_end].trim_ascii());
        // The length tells most names apart without looking at their bytes.
        match name.len() {
            10 if name.eq_ignore_ascii_case(b"connection") => {
                if value.eq_ignore_ascii_case(b"close") {
                    close = true;
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    close = false;
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => match number(value) {
                Some(bytes) => body_bytes = bytes,
                None => return Input::Refused("400 Bad Request"),
            },
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                return Input::Refused("411 Length Required");
            }
            _ => {}
        }
    }
    let head_only = method == b"HEAD";
    let answer = match sized(target) {
        None if target == super::COUNTERS_PATH.as_bytes() => Answer::Counters,
        None => Answer::Short { head_only },
        Some(Some(bytes)) => Answer::Sized { bytes, head_only },
        Some(None) => return Input::Refused("400 Bad Request"),
    };
    Input::Request { head_bytes: end + 4, body_bytes, answer, close }
}

/// The size that the target asks for. `None` if it asks for none, `Some(None)` if it is not a number.
fn sized(target: &[u8]) -> Option<Option<u64>> {
    let query = target.iter().position(|byte| *byte == b'?')?;
    target[query + 1..].split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(b"size=")).map(number)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Response heads with the current date, rebuilt once a second, and the counters.
struct Answers {
    connections: Cell<u64>,
    requests: Cell<u64>,
    made: Instant,
    date: String,
    short: Vec<u8>,
    body_piece: Vec<u8>,
}

impl Answers {
    fn new() -> Self {
        let body_piece = (0..BODY_PIECE_BYTES).map(|index| b'a' + (index % 26) as u8).collect();
        let mut answers = Self {
            connections: Cell::new(0),
            requests: Cell::new(0),
            made: Instant::now(),
            date: String::new(),
            short: Vec::new(),
            body_piece,
        };
        answers.make();
        answers
    }

    fn refresh(&mut self) {
        if self.made.elapsed() >= Duration::from_secs(1) {
            self.make();
        }
    }

    fn make(&mut self) {
        self.made = Instant::now();
        self.date = http_date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
        self.short = self.head("200 OK", SHORT_BODY.len() as u64, false);
        self.short.extend_from_slice(SHORT_BODY);
    }

    fn head(&self, status: &str, body_bytes: u64, close: bool) -> Vec<u8> {
        let close = if close { "connection: close\r\n" } else { "" };
        let date = &self.date;
        format!("HTTP/1.1 {status}\r\ndate: {date}\r\ncontent-type: text/plain\r\ncontent-length: {body_bytes}\r\n{close}\r\n")
            .into_bytes()
    }
}

/// IMF-fixdate of `seconds` since 1970 (RFC 9110 section 5.6.7).
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = seconds / 86_400;
    // Years begin in March here, so that the leap day comes last (Hinnant, "chrono-compatible low-level date
    // algorithms", 2013).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = year_of_era + era * 400 + u64::from(month < 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (day_name, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize]);
    format!("{day_name}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

struct Connection {
    socket: OwnedFd,
    /// Bytes received but not understood yet.
    input: Vec<u8>,
    /// Request body bytes still to be thrown away.
    skip_bytes: u64,
    /// Answer bytes the socket did not take yet, from `output_sent` on.
    output: Vec<u8>,
    output_sent: usize,
    /// Body bytes to send after `output`.
    body_bytes: u64,
    /// Close once everything is sent.
    closing: bool,
    /// Whether epoll watches for room to write (and then not for input).
    waits_for_room: bool,
}

/// What to do with a connection after an event.
#[derive(PartialEq, Eq)]
enum Next {
    Keep,
    Close,
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            input: Vec::new(),
            skip_bytes: 0,
            output: Vec::new(),
            output_sent: 0,
            body_bytes: 0,
            closing: false,
            waits_for_room: false,
        }
    }

    fn on_readable(&mut self, buffer: &mut [u8], answers: &Answers) -> Next {
        let received = match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((0, _)) => return Next::Close,
            Ok((count, _)) => &buffer[..count],
            Err(Errno::AGAIN | Errno::INTR) => return Next::Keep,
            Err(_) => return Next::Close,
        };
        if self.input.is_empty() {
            // The usual case: whole requests in one piece, parsed in place.
            return self.answer_all(received, answers);
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(received);
        self.answer_all(&input, answers)
    }

    fn on_writable(&mut self, answers: &Answers) -> Next {
        if self.flush(answers) == Next::Close {
            return Next::Close;
        }
        let input = std::mem::take(&mut self.input);
        self.answer_all(&input, answers)
    }

    /// Answers what `input` holds until it is used up, ends within a request, or the socket takes no more;
    /// keeps the rest for later.
    fn answer_all(&mut self, input: &[u8], answers: &Answers) -> Next {
        let mut used = 0;
        while self.sent_all() && used < input.len() {
            let taken = self.take_requests(&input[used..], answers);
            used += taken;
            if self.flush(answers) == Next::Close {
                return Next::Close;
            }
            if taken == 0 {
                break;
            }
        }
        self.input.extend_from_slice(&input[used..]);
        Next::Keep
    }

    fn sent_all(&self) -> bool {
        self.output_sent == self.output.len() && self.body_bytes == 0
    }

    /// Answers the requests at the start of `input`, as far as they can be answered in order now; returns how
    /// many bytes they took.
    fn take_requests(&mut self, input: &[u8], answers: &Answers) -> usize {
        let mut used = 0;
        // A sized body is generated while it is sent, so nothing may be queued behind it.
        while !self.closing && self.body_bytes == 0 {
            let rest = &input[used..];
            let skipped = self.skip_bytes.min(rest.len() as u64) as usize;
            self.skip_bytes -= skipped as u64;
            used += skipped;
            let rest = &rest[skipped..];
            if rest.is_empty() {
                break;
            }
            match parse(rest) {
                Input::Incomplete => break,
                Input::Refused(status) => {
                    self.closing = true;
                    self.output.extend_from_slice(&answers.head(status, 0, true));
                    used = input.len();
                }
                Input::Request { head_bytes, body_bytes, answer, close } => {
                    used += head_bytes;
                    self.skip_bytes = body_bytes;
                    self.closing = close;
                    self.queue(answer, answers);
                }
            }
        }
        used
    }

    fn queue(&mut self, answer: Answer, answers: &Answers) {
        answers.requests.set(answers.requests.get() + 1);
        match answer {
            Answer::Counters => {
                // Requests for the counters are not counted.
                answers.requests.set(answers.requests.get() - 1);
                answers.connections.set(answers.connections.get().saturating_sub(1));
                let body = format!("{} {}\n", answers.connections.get(), answers.requests.get());
                self.closing = true;
                self.output.extend_from_slice(&answers.head("200 OK", body.len() as u64, true));
                self.output.extend_from_slice(body.as_bytes());
            }
            Answer::Short { head_only: false } if !self.closing => {
                self.output.extend_from_slice(&answers.short)
            }
            Answer::Short { head_only } => {
                self.output.extend_from_slice(&answers.head("200 OK", SHORT_BODY.len() as u64, self.closing));
                if !head_only {
                    self.output.extend_from_slice(SHORT_BODY);
                }
            }
            Answer::Sized { bytes, head_only } => {
                self.output.extend_from_slice(&answers.head("200 OK", bytes, self.closing));
                self.body_bytes = if head_only { 0 } else { bytes };
            }
        }
    }

    fn flush(&mut self, answers: &Answers) -> Next {
        loop {
            let head_is_left = self.output_sent < self.output.len();
            let piece = if head_is_left {
                &self.output[self.output_sent..]
            } else if self.body_bytes > 0 {
                &answers.body_piece[..self.body_bytes.min(BODY_PIECE_BYTES as u64) as usize]
            } else {
                break;
            };
            // A head is held back until its body follows, so that both leave in one segment.
            let more = if head_is_left && self.body_bytes > 0 { SendFlags::MORE } else { SendFlags::empty() };
            match rustix::net::send(&self.socket, piece, SendFlags::NOSIGNAL | more) {
                Ok(count) if head_is_left => self.output_sent += count,
                Ok(count) => self.body_bytes -= count as u64,
                Err(Errno::AGAIN) => return Next::Keep,
                Err(Errno::INTR) => {}
                Err(_) => return Next::Close,
            }
        }
        self.output.clear();
        self.output_sent = 0;
        if self.closing {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            return Next::Close;
        }
        Next::Keep
    }
}

/// Serves connections of `listener` (non-blocking) until the process ends. Err when epoll itself gives up.
pub fn serve(listener: &OwnedFd) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; 64 * 1024];
    let mut answers = Answers::new();
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        answers.refresh();
        for event in &events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == LISTENER {
                accept_all(listener, &epoll, &mut connections, &answers)?;
                continue;
            }
            let slot = &mut connections[key as usize];
            let Some(connection) = slot else { continue };
            let next = if flags.contains(EventFlags::OUT) {
                connection.on_writable(&answers)
            } else {
                connection.on_readable(&mut buffer, &answers)
            };
            if next == Next::Close {
                *slot = None;
                continue;
            }
            let waits_for_room = !connection.sent_all();
            if waits_for_room != connection.waits_for_room {
                connection.waits_for_room = waits_for_room;
                let interest = if waits_for_room { EventFlags::OUT } else { EventFlags::IN };
                epoll::modify(&epoll, &connection.socket, EventData::new_u64(key), interest)?;
            }
        }
    }
}

fn accept_all(
    listener: &OwnedFd,
    epoll: &OwnedFd,
    connections: &mut Vec<Option<Connection>>,
    answers: &Answers,
) -> io::Result<()> {
    loop {
        let socket = match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => return Ok(()),
            // The client gave up while it waited to be accepted.
            Err(Errno::CONNABORTED | Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        answers.connections.set(answers.connections.get() + 1);
        // Descriptors are small and reused, so they index the table directly.
        let key = socket.as_raw_fd() as usize;
        if connections.len() <= key {
            connections.resize_with(key + 1, || None);
        }
        epoll::add(epoll, &socket, EventData::new_u64(key as u64), EventFlags::IN)?;
        connections[key] = Some(Connection::new(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown as Side, TcpListener, TcpStream};
    use std::thread;

    fn connect() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&OwnedFd::from(listener)));
        TcpStream::connect(address).unwrap()
    }

    /// Sends `request`, closes that direction, and returns everything that is received.
    fn answers_to(request: &[u8]) -> String {
        let mut client = connect();
        client.write_all(request).unwrap();
        client.shutdown(Side::Write).unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        answers
    }

    fn body_of(answer: &str) -> &str {
        answer.split_once("\r\n\r\n").unwrap().1
    }

    #[test]
    fn a_plain_request_gets_the_short_body() {
        let answer = answers_to(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\ndate: "), "{answer}");
        assert!(answer.contains("\r\ncontent-length: 13\r\n"), "{answer}");
        assert_eq!(body_of(&answer), "Hello World!\n");
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let answers = answers_to(
            b"GET /?size=5 HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nGET /?size=3 HTTP/1.1\r\nhost: a\r\n\r\n",
        );
        let lengths: Vec<&str> = answers.split("content-length: ").skip(1).map(|rest| &rest[..2]).collect();
        assert_eq!(lengths, ["5\r", "13", "3\r"]);
        assert!(answers.ends_with("\r\n\r\nabc"), "{answers}");
    }

    #[test]
    fn a_head_in_many_pieces_is_one_request() {
        let mut client = connect();
        for byte in b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" {
            client.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    }

    #[test]
    fn a_request_body_is_skipped_even_if_it_looks_like_a_request() {
        let answers = answers_to(
            b"POST / HTTP/1.1\r\ncontent-length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\nGET /?size=1 HTTP/1.1\r\nhost: a\r\n\r\n",
        );
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
        assert!(answers.ends_with("\r\n\r\na"), "{answers}");
    }

    #[test]
    fn connection_close_closes_after_the_answer() {
        let mut client = connect();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nConnection: Close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert_eq!(body_of(&answer), "Hello World!\n");
    }

    #[test]
    fn a_long_body_arrives_whole_to_a_reader_that_is_slow_to_start() {
        let mut client = connect();
        client.write_all(b"GET /x?y=1&size=8388608 HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        client.shutdown(Side::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        let head = find(&answer, b"\r\n\r\n").unwrap() + 4;
        assert_eq!(answer.len() - head, 8_388_608);
    }

    #[test]
    fn what_cannot_be_understood_is_refused_and_closed() {
        for (request, status) in [
            ("GET /\r\n\r\n", "400"),
            ("GET / HTTP/2.0\r\n\r\n", "505"),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", "411"),
            ("POST / HTTP/1.1\r\ncontent-length: 1x\r\n\r\n", "400"),
            ("GET /?size=-1 HTTP/1.1\r\n\r\n", "400"),
        ] {
            let answer = answers_to(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_798_761_599), "Thu, 31 Dec 2026 23:59:59 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
