//! When a connection is idle (`timeout.client_idle`): not while its client still reads, nor while it says
//! something. And who makes room for others when a listener is full.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use weir_tests::dialogue::http2::{END_STREAM, Outcome, PREFACE, frame, get, kind, setting, window_update};
use weir_tests::dialogue::{After, Backend, PATIENCE, Setup, Signal, Weir, until};

use super::connect;

/// `SETTINGS_INITIAL_WINDOW_SIZE`.
const INITIAL_WINDOW: u16 = 4;
/// A window that no answer here fills.
const WINDOW_BYTES: u32 = 16 << 20;
/// What the kernel keeps for a client that does not read.
const CLIENT_BUFFER_BYTES: usize = 64 << 10;

/// Weir before a backend that answers `/N` with N bytes.
fn weir_with(of_listener: &str) -> (Weir, Backend) {
    let backend = Backend::serving(|request, wire| {
        let count = request.target.trim_start_matches('/').parse().unwrap_or(5);
        wire.answers(200, &[], vec![b'x'; count]);
        After::Keep
    });
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        {of_listener}
        [pool.app]
        backends = ["@app"]
        health = "off"
        [log]
        access = "@dir/access.log"
        "#
    );
    (Setup::of(&config).with("app", backend.address()).start(), backend)
}

/// A client of HTTP/2 for whom the kernel keeps little, and that reads when it is told to.
struct Reader {
    stream: TcpStream,
    received: Vec<u8>,
    has_ended: bool,
    /// Bytes of whole frames among those received.
    looked_at: usize,
    content: usize,
    /// Streams that have ended.
    ends: usize,
    /// Opens its windows again for what it has read, as most clients do.
    returns_windows: bool,
}

impl Reader {
    /// One that has sent this.
    fn connect(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Reader {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(CLIENT_BUFFER_BYTES).expect("a small buffer");
        socket.connect(&address.into()).expect("connect");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        stream.write_all(bytes.as_ref()).expect("taken");
        let (received, has_ended, returns_windows) = (Vec::new(), false, true);
        Reader { stream, received, has_ended, looked_at: 0, content: 0, ends: 0, returns_windows }
    }

    /// One that has asked for these paths, on streams 1, 3 and so on.
    fn asks(address: SocketAddr, paths: &[&str]) -> Reader {
        let mut sent = PREFACE.to_vec();
        sent.extend(frame(kind::SETTINGS, 0, 0, &setting(INITIAL_WINDOW, WINDOW_BYTES)));
        sent.extend(window_update(0, WINDOW_BYTES));
        let requests = paths.iter().zip((1..).step_by(2)).map(|(path, stream)| get(stream, path));
        sent.extend(requests.flatten());
        Reader::connect(address, sent)
    }

    /// Reads once, at most this much.
    fn reads(&mut self, most: usize) {
        let mut chunk = vec![0; most];
        match self.stream.read(&mut chunk) {
            Ok(count @ 1..) => self.received.extend(&chunk[..count]),
            Ok(0) | Err(_) => self.has_ended = true,
        }
    }

    /// Looks at the frames among what was received.
    fn looks_at_frames(&mut self) {
        while let Some((header, behind)) = self.received[self.looked_at..].split_first_chunk::<9>() {
            let [high, middle, low, kind, flags, ..] = *header;
            let payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if behind.len() < payload {
                break;
            }
            let mut answer = Vec::new();
            match kind {
                kind::DATA => {
                    self.content += payload;
                    self.ends += usize::from(flags & END_STREAM);
                    if self.returns_windows && payload > 0 {
                        answer = window_update(0, payload as u32);
                    }
                }
                kind::PING if flags == 0 => answer = frame(kind::PING, 1, 0, &behind[..payload]),
                _ => {}
            }
            // Nobody may be there any more.
            let _ = self.stream.write_all(&answer);
            self.looked_at += 9 + payload;
        }
    }

    /// Reads so much at a time with these pauses until that many streams have ended, or the connection; gives
    /// the content received.
    fn reads_to_the_end_of(&mut self, streams: usize, most: usize, pause: Duration) -> usize {
        while !self.has_ended && self.ends < streams {
            std::thread::sleep(pause);
            self.reads(most);
            self.looks_at_frames();
        }
        self.content
    }
}

#[test]
fn an_answer_that_a_slow_client_still_reads_is_not_cut_off_by_client_idle() {
    let (weir, _backend) = weir_with(r#"timeout = { client_idle = "1s" }"#);
    let address = weir.address("web");
    // More than the kernel takes in one answer, or in many of which each is over for Weir at once; more than
    // eight seconds to read.
    let (one, many) = (vec!["/7680000"], vec!["/64000"; 120]);
    let (most, pause) = (64 << 10, Duration::from_millis(70));
    let read = |paths: &[&str], returns_windows| {
        let mut reader = Reader { returns_windows, ..Reader::asks(address, paths) };
        reader.reads_to_the_end_of(paths.len(), most, pause)
    };
    std::thread::scope(|scope| {
        let readers = [(&one, true), (&one, false), (&many, true), (&many, false)]
            .map(|(paths, returns_windows)| scope.spawn(move || read(paths, returns_windows)));
        let contents = readers.map(|reader| reader.join().expect("a reader"));
        assert_eq!(contents, [7_680_000; 4], "one answer, and many; with windows returned, and without");
    });
}

#[test]
fn a_client_that_says_something_now_and_then_is_not_idle() {
    let (weir, _backend) = weir_with(r#"timeout = { client_idle = "1s" }"#);
    let mut client = connect(&weir, b"");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        client.sends(frame(kind::PING, 0, 0, b"12345678"));
        client.receives(kind::PING, 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.asks(1, "/5"), Outcome::Answered(200, b"xxxxx".to_vec()));
}

#[test]
fn a_connection_that_says_nothing_is_told_of_its_end_after_client_idle() {
    let (weir, _backend) = weir_with(r#"timeout = { client_idle = "300ms" }"#);
    let mut client = connect(&weir, b"");
    assert!(matches!(client.asks(1, "/5"), Outcome::Answered(200, _)));
    let begun = Instant::now();
    assert_eq!(client.receives_the_end().0, Some(0));
    assert!(begun.elapsed() >= Duration::from_millis(290), "closed after {:?}", begun.elapsed());
    assert!(!client.wire.was_reset());
    weir.reaches("weir_ends_total", &[("reason", "client_idle")], 1.0);
}

/// Threat D1: what it says does not make up for what it does not read.
#[test]
fn d1_a_client_that_never_reads_its_answer_is_given_up_whatever_it_says() {
    let (weir, _backend) = weir_with(r#"timeout = { client_idle = "500ms", client_body = "500ms" }"#);
    let mut clients =
        [&["/3600000"][..], &["/60000"; 60]].map(|paths| Reader::asks(weir.address("web"), paths));
    until("both to be given up", || {
        for client in &mut clients {
            let _ = client.stream.write_all(&frame(kind::PING, 0, 0, b"12345678"));
        }
        std::thread::sleep(Duration::from_millis(50));
        (weir.metric("weir_connections", &[("listener", "web")]) == 0.0).then_some(())
    });
}

#[test]
fn a_connection_whose_client_still_reads_makes_no_room_for_others() {
    for reads_http2 in [true, false] {
        let (weir, _backend) = weir_with("max_connections = 2");
        let mut reader = if reads_http2 {
            Reader::asks(weir.address("web"), &["/1000000"])
        } else {
            Reader::connect(weir.address("web"), "GET /1000000 HTTP/1.1\r\nhost: a\r\n\r\n")
        };
        // Its exchange is over, and it has been without one for longer than the other.
        weir.lines_of("access.log", 1);
        let mut idle = connect(&weir, b"");
        assert!(matches!(idle.asks(1, "/5"), Outcome::Answered(200, _)));
        let mut newcomer = connect(&weir, b"");
        assert!(matches!(newcomer.asks(1, "/5"), Outcome::Answered(200, _)), "HTTP/2: {reads_http2}");
        idle.receives_the_end();
        if reads_http2 {
            assert_eq!(reader.reads_to_the_end_of(1, 64 << 10, Duration::ZERO), 1_000_000);
            reader.stream.write_all(&get(3, "/5")).expect("taken");
            assert_eq!(reader.reads_to_the_end_of(2, 64 << 10, Duration::ZERO), 1_000_005, "it made room");
        } else {
            while !reader.has_ended && reader.received.len() < 1_000_000 {
                reader.reads(64 << 10);
            }
            reader.stream.write_all(b"GET /5 HTTP/1.1\r\nhost: a\r\n\r\n").expect("taken");
            while !reader.has_ended && !reader.received.ends_with(b"\r\n\r\nxxxxx") {
                reader.reads(64 << 10);
            }
            assert!(!reader.has_ended, "it made room");
        }
    }
}

#[test]
fn the_end_of_a_process_destroys_nothing_that_a_client_still_reads() {
    let (weir, _backend) = weir_with("");
    let mut reader = Reader::asks(weir.address("web"), &["/2000000"]);
    weir.lines_of("access.log", 1);
    weir.signals(Signal::TERM);
    // It says that it has heard, and what it has read: what nobody receives makes the kernel destroy what
    // lies before the end.
    assert_eq!(reader.reads_to_the_end_of(1, 32 << 10, Duration::from_millis(50)), 2_000_000);
}
