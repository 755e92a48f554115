//! Content in tiny frames, as remote calls send it, many of them ahead of whoever takes them.

use std::time::Duration;

use weir_tests::dialogue::http2::{
    END_STREAM, Http2, Outcome, frame, get, headers, kind, request, setting, window_update,
};
use weir_tests::dialogue::{PATIENCE, ScriptedBackend, Setup, Weir};

use super::{BOTH, connect};

/// Content of each frame.
const CRUMB: &[u8] = b"ten bytes.";
/// So many fill the window of a client's stream, and stay far below that of a backend's.
const COUNT: usize = (128 << 10) / CRUMB.len() - 1;

fn crumbs(stream: u32) -> Vec<u8> {
    let mut frames = frame(kind::DATA, 0, stream, CRUMB).repeat(COUNT);
    frames.extend(frame(kind::DATA, END_STREAM, stream, b""));
    frames
}

fn weir_before(backend: &ScriptedBackend, protocol: &str) -> Weir {
    let config = format!("{BOTH}protocol = \"{protocol}\"\n");
    Setup::of(&config).with("app", backend.address()).start()
}

#[test]
fn an_upload_in_tiny_frames_waits_for_a_slow_backend() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "h1");
    for pause in [Duration::ZERO, Duration::from_secs(1)] {
        let mut client = connect(&weir, b"");
        client.sends([headers(1, &request("POST", "/"), false), crumbs(1)].concat());
        let mut behind = backend.accepts();
        behind.receives_until("\r\n\r\n");
        std::thread::sleep(pause);
        let content = behind.receives_until("\r\n0\r\n\r\n");
        assert!(content.len() > COUNT * CRUMB.len(), "{} bytes", content.len());
        behind.answers(200, &[], "done");
        assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"done".to_vec()));
    }
}

/// All clients share the connection to a backend: one that reads slowly must not end it for the others.
#[test]
fn an_answer_in_tiny_frames_waits_for_a_slow_client_and_harms_no_other() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "h2");
    // A window for the head and little else.
    let mut slow = connect(&weir, &setting(4, 1));
    slow.sends(get(1, "/slow"));
    let mut server = Http2::server(backend.accepts().with_patience(PATIENCE), b"");
    let first = server.receives_request();
    server.sends(headers(first, &[(":status", "200")], false));
    server.sends(crumbs(first));
    std::thread::sleep(Duration::from_secs(1));
    let mut other = connect(&weir, b"");
    other.sends(get(1, "/other"));
    let second = server.receives_request();
    server.sends(headers(second, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, END_STREAM, second, b"hello"));
    assert_eq!(other.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    slow.sends([window_update(0, 1 << 20), window_update(1, 1 << 20)].concat());
    let Outcome::Answered(200, content) = slow.outcome_of(1) else { panic!("no answer") };
    assert_eq!(content.len(), COUNT * CRUMB.len());
}
