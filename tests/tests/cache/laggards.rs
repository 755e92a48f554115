//! A client that reads slowly what others get by the same fetch (threat E11).

use std::io::Read as _;

use weir_tests::dialogue::http2::{Http2, get as get_by_http2, kind, setting};
use weir_tests::dialogue::{PATIENCE, ScriptedBackend, Setup, Wire};

use super::KEEPS;

/// More than is kept (`object_max`), and than lies between a backend and its clients.
const BYTES: usize = 4 << 20;

/// A chunk of the origin's.
fn chunk() -> Vec<u8> {
    [&b"400\r\n"[..], &[b'x'; 1024], b"\r\n"].concat()
}

/// Receives at least one byte.
fn reads_some(client: &Wire, received: &mut Vec<u8>) {
    let mut socket = client.socket();
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut room = vec![0; 1 << 16];
    let count = socket.read(&mut room).expect("more in time");
    assert!(count > 0, "the end behind {} bytes", received.len());
    received.extend_from_slice(&room[..count]);
}

/// It is not known to be too large before it is under way.
#[test]
fn e11_who_reads_nothing_of_what_turns_out_too_large_keeps_nobody_else_waiting() {
    let origin = ScriptedBackend::start();
    // No timer ends a client that reads nothing.
    let config = KEEPS
        .replace("bind = \"@web\"\n", "bind = \"@web\"\nhttp = [\"h1\", \"h2\"]\n")
        .replace("backend = \"3s\"", "backend = \"3s\", client_body = \"1h\"");
    let weir = Setup::of(&config).with("app", origin.address()).start();
    for (path, slow_is_first) in [("/first", true), ("/second", false)] {
        // A window for the head and little else.
        let mut slow = Http2::client(weir.client("web"), &setting(4, 1000));
        let mut other = weir.client("web");
        let asks_slowly = |slow: &mut Http2| slow.sends(get_by_http2(1, path));
        let asks = |other: &mut Wire| other.sends(format!("GET {path} HTTP/1.1\r\nhost: a.test\r\n\r\n"));
        match slow_is_first {
            true => asks_slowly(&mut slow),
            false => asks(&mut other),
        }
        let mut behind = origin.accepts();
        behind.receives_until("\r\n\r\n");
        behind.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n");
        behind.sends(chunk());
        // Whoever asks now gets the same, from its beginning.
        match slow_is_first {
            true => asks(&mut other),
            false => asks_slowly(&mut slow),
        }
        slow.receives(kind::HEADERS, 1);
        let mut answer = Vec::new();
        reads_some(&other, &mut answer);
        let sending = std::thread::spawn(move || {
            (1..BYTES / 1024).for_each(|_| behind.sends(chunk()));
            behind.sends("0\r\n\r\n");
        });
        while !answer.ends_with(b"\r\n0\r\n\r\n") {
            reads_some(&other, &mut answer);
        }
        assert!(answer.len() > BYTES, "{} bytes", answer.len());
        sending.join().expect("all was sent");
    }
}
