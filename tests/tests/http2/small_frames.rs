//! Content that comes ahead of whoever takes it: in tiny frames, as remote calls send it, and for many who
//! read slowly (threat B7).

use std::net::SocketAddr;
use std::time::Duration;

use weir_tests::dialogue::http2::{
    END_STREAM, Http2, Outcome, frame, get, headers, kind, request, setting, window_update,
};
use weir_tests::dialogue::{
    Authority, Backend, PATIENCE, ScriptedBackend, Setup, Unreachable, Weir, free_address, until,
};
use weir_tests::versions::{Behind, VersionedBackend};

use super::{BOTH, connect};

/// Content of each frame.
const SMALL: &[u8] = b"ten bytes.";
/// So many fill the window of a client's stream, and stay far below that of a backend's.
const COUNT: usize = (128 << 10) / SMALL.len() - 1;

/// So many fill the window that a client has before it knows of another.
const FIRST_COUNT: usize = (64 << 10) / SMALL.len() - 1;

fn small_frames(stream: u32, count: usize) -> Vec<u8> {
    let mut frames = frame(kind::DATA, 0, stream, SMALL).repeat(count);
    frames.extend(frame(kind::DATA, END_STREAM, stream, b""));
    frames
}

/// All clients share one worker, and so its connection.
fn weir_before(backend: SocketAddr, protocol: &str) -> Weir {
    let config = format!("[runtime]\nworkers = 1\n{BOTH}protocol = \"{protocol}\"\n");
    Setup::of(&config).with("app", backend).start()
}

#[test]
fn an_upload_in_tiny_frames_waits_for_a_slow_backend() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(backend.address(), "h1");
    for pause in [Duration::ZERO, Duration::from_secs(1)] {
        let mut client = connect(&weir, b"");
        // More than fits in the windows it has before it knows of larger ones.
        client.receives(kind::SETTINGS, 0);
        client.receives(kind::WINDOW_UPDATE, 0);
        client.sends([headers(1, &request("POST", "/"), false), small_frames(1, COUNT)].concat());
        let mut behind = backend.accepts();
        behind.receives_until("\r\n\r\n");
        std::thread::sleep(pause);
        let content = behind.receives_until("\r\n0\r\n\r\n");
        assert!(content.len() > COUNT * SMALL.len(), "{} bytes", content.len());
        behind.answers(200, &[], "done");
        assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"done".to_vec()));
    }
}

#[test]
fn an_upload_in_tiny_frames_waits_in_line() {
    let backend = ScriptedBackend::start();
    let limited = BOTH.replace("\"@app\"", "{ address = \"@app\", max_connections = 1 }");
    let config = format!("[runtime]\nworkers = 1\n{limited}queue = {{ max = 10, timeout = \"9s\" }}\n");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut first = connect(&weir, b"");
    first.sends(get(1, "/first"));
    let mut busy = backend.accepts();
    busy.receives_until("\r\n\r\n");
    let mut client = connect(&weir, b"");
    client.sends([headers(1, &request("POST", "/"), false), small_frames(1, FIRST_COUNT)].concat());
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    std::thread::sleep(Duration::from_millis(500));
    busy.answers(200, &[], "first");
    assert_eq!(first.outcome_of(1), Outcome::Answered(200, b"first".to_vec()));
    let content = busy.receives_until("\r\n0\r\n\r\n");
    assert!(content.len() > FIRST_COUNT * SMALL.len(), "{} bytes", content.len());
    busy.answers(200, &[], "done");
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"done".to_vec()));
}

#[test]
fn an_upload_in_tiny_frames_to_a_backend_that_is_away_leaves_its_connection_to_others() {
    let backend = Unreachable::start();
    for protocol in ["h1", "h2"] {
        let listener = BOTH.replacen("[pool.app]", "timeout = { connect = \"1s\" }\n[pool.app]", 1);
        let config = format!("{listener}protocol = \"{protocol}\"\nretry = {{ attempts = 0 }}\n");
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let mut client = connect(&weir, b"");
        client.sends([headers(1, &request("POST", "/"), false), small_frames(1, FIRST_COUNT)].concat());
        for outcome in [client.outcome_of(1), client.asks(3, "/other")] {
            let Outcome::Answered(_, content) = outcome else { panic!("{protocol}: {outcome:?}") };
            assert_eq!(
                String::from_utf8_lossy(&content),
                "504 Gateway Timeout connect_timeout\n",
                "{protocol}"
            );
        }
    }
}

/// Sends as many small frames as the window takes and has Weir show that it has read them, which it does as
/// long as the connection is open.
fn sends_many(client: &mut Http2, stream: u32) {
    client.sends(frame(kind::DATA, 0, stream, SMALL).repeat(FIRST_COUNT - 1));
    client.sends(frame(kind::PING, 0, 0, b"are read"));
    client.receives(kind::PING, 0);
}

#[test]
fn an_upload_in_tiny_frames_waits_for_who_is_asked_whether_it_may_pass() {
    let (backend, service) = (Backend::saying("done"), ScriptedBackend::start());
    let question = "[listener.web.auth.forward]\npool = \"auth\"\npath = \"/\"\n[pool.app]";
    let listener = BOTH.replacen("[pool.app]", question, 1);
    let config = format!("{listener}[pool.auth]\nbackends = [\"@auth\"]\nhealth = {{ check = \"off\" }}\n");
    let weir = Setup::of(&config).with("app", backend.address()).with("auth", service.address()).start();
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &request("POST", "/"), false));
    let mut asked = service.accepts();
    asked.receives_until("\r\n\r\n");
    sends_many(&mut client, 1);
    // It may be slow with its content, too.
    asked.sends("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n");
    client.sends(frame(kind::PING, 0, 0, b"still so"));
    client.receives(kind::PING, 0);
    asked.sends("pass");
    client.sends(frame(kind::DATA, END_STREAM, 1, SMALL));
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"done".to_vec()));
    assert_eq!(backend.requests()[0].body.len(), FIRST_COUNT * SMALL.len());
}

/// What has come with the head leaves with it, once there is room.
#[test]
fn an_upload_in_tiny_frames_waits_for_its_window_at_a_backend() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(backend.address(), "h2");
    let mut other = weir.client("web");
    other.sends("GET /other HTTP/1.1\r\nhost: a\r\n\r\n");
    // No window for the content of any request.
    let mut server = Http2::server(backend.accepts().with_patience(PATIENCE), &setting(4, 0));
    server.receives_request();
    let mut client = connect(&weir, b"");
    client.sends([headers(1, &request("POST", "/"), false), frame(kind::DATA, 0, 1, SMALL)].concat());
    let waiting = server.receives_request();
    sends_many(&mut client, 1);
    client.sends(frame(kind::DATA, END_STREAM, 1, b""));
    server.sends([window_update(0, 1 << 20), window_update(waiting, 1 << 20)].concat());
    let mut received = 0;
    while received < FIRST_COUNT * SMALL.len() {
        received += server.receives(kind::DATA, waiting).payload.len();
    }
    server.sends(headers(waiting, &[(":status", "204")], true));
    assert_eq!(client.outcome_of(1), Outcome::Answered(204, Vec::new()));
}

/// All clients share the connection to a backend: one that reads slowly must not end it for the others.
#[test]
fn b7_an_answer_in_tiny_frames_waits_for_a_slow_client_and_harms_no_other() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(backend.address(), "h2");
    // A window for the head and little else.
    let mut slow = connect(&weir, &setting(4, 1));
    slow.sends(get(1, "/slow"));
    let mut server = Http2::server(backend.accepts().with_patience(PATIENCE), b"");
    let first = server.receives_request();
    server.sends(headers(first, &[(":status", "200")], false));
    server.sends(small_frames(first, COUNT));
    std::thread::sleep(Duration::from_secs(1));
    let mut other = connect(&weir, b"");
    other.sends(get(1, "/other"));
    let second = server.receives_request();
    server.sends(headers(second, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, END_STREAM, second, b"hello"));
    assert_eq!(other.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    slow.sends([window_update(0, 1 << 20), window_update(1, 1 << 20)].concat());
    let Outcome::Answered(200, content) = slow.outcome_of(1) else { panic!("no answer") };
    assert_eq!(content.len(), COUNT * SMALL.len());
}

/// The same in a tunnel, whose content nobody knows the length of.
#[test]
fn b7_a_tunnel_in_tiny_frames_waits_for_a_slow_client_and_harms_no_other() {
    const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    const BYTES: usize = 250_000;
    let backend = ScriptedBackend::start();
    let weir = weir_before(backend.address(), "h2");
    let mut slow = connect(&weir, &setting(4, 1));
    let mut fields = request("CONNECT", "/chat").to_vec();
    fields.extend([(":protocol", "websocket"), ("sec-websocket-version", "13")]);
    slow.sends(headers(1, &fields, false));
    let tunnels = setting(ENABLE_CONNECT_PROTOCOL, 1);
    let mut server = Http2::server(backend.accepts().with_patience(PATIENCE), &tunnels);
    let first = server.receives_request();
    server.sends(headers(first, &[(":status", "200")], false));
    slow.receives(kind::HEADERS, 1);
    // Of a byte each: with what the library keeps of a frame they take 64 MB.
    server.sends(frame(kind::DATA, 0, first, b"x").repeat(BYTES));
    std::thread::sleep(Duration::from_secs(1));
    let mut other = connect(&weir, b"");
    other.sends(get(1, "/other"));
    let second = server.receives_request();
    server.sends(headers(second, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, END_STREAM, second, b"hello"));
    assert_eq!(other.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    slow.sends([window_update(0, 1 << 20), window_update(1, 1 << 20)].concat());
    let mut received = 0;
    while received < BYTES {
        received += slow.receives(kind::DATA, 1).payload.len();
    }
    assert_eq!(received, BYTES);
}

/// What waits for them counts against the budget, which refuses new requests in time (threat D3).
#[test]
fn d3_answers_that_wait_for_slow_clients_count_against_the_memory_budget() {
    const BUDGET_BYTES: usize = 16 << 20;
    const WINDOW_BYTES: usize = 256 << 10;
    const SHARE: &str = "memory_share_per_client = 1.0\n";
    let authority = Authority::new().signs("app", &["app.internal"]);
    let backend = VersionedBackend::start(free_address(), Behind::Http2, &authority, "app");
    let memory = BUDGET_BYTES >> 20;
    let config =
        format!("[runtime]\nworkers = 1\nmemory = \"{memory}MiB\"\n{SHARE}{BOTH}protocol = \"h2\"\n");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut slow = Vec::new();
    while weir.metric("weir_rejected_total", &[("reason", "memory")]) < 1.0 {
        assert!(slow.len() <= BUDGET_BYTES / WINDOW_BYTES, "{} answers wait", slow.len());
        let mut client = connect(&weir, &setting(4, 1));
        client.sends(get(1, "/bytes/1000000"));
        client.receives(kind::HEADERS, 1);
        slow.push(client);
    }
    assert!(slow.len() > 8, "only {} answers wait", slow.len());
    let refused = connect(&weir, b"").asks(1, "/bytes/1000000");
    assert!(matches!(refused, Outcome::Answered(503, _)), "{refused:?}");
    drop(slow);
    until("service again", || {
        let mut client = connect(&weir, b"");
        (client.asks(1, "/hello") == Outcome::Answered(200, b"hello".to_vec())).then_some(())
    });
}

/// A frame without content with each message, as some libraries send it, is nothing to end a connection for.
#[test]
fn frames_without_content_in_every_message_end_no_connection() {
    const MESSAGES: u32 = 300;
    let backend = ScriptedBackend::start();
    let weir = weir_before(backend.address(), "h2");
    let mut client = connect(&weir, b"");
    let mut server: Option<Http2> = None;
    for message in 0..MESSAGES {
        let stream = 1 + 2 * message;
        let nothing = frame(kind::DATA, 0, stream, b"");
        let last = frame(kind::DATA, END_STREAM, stream, b"question");
        client.sends([headers(stream, &request("POST", "/"), false), nothing, last].concat());
        let server =
            server.get_or_insert_with(|| Http2::server(backend.accepts().with_patience(PATIENCE), b""));
        let asked = server.receives_request();
        server.sends(headers(asked, &[(":status", "200")], false));
        server.sends(frame(kind::DATA, 0, asked, b"answer"));
        server.sends(frame(kind::DATA, 0, asked, b""));
        server.sends(frame(kind::DATA, END_STREAM, asked, b""));
        assert_eq!(
            client.outcome_of(stream),
            Outcome::Answered(200, b"answer".to_vec()),
            "message {message}"
        );
    }
}

/// However many read slowly, the connection to a backend that they share is open for others.
#[test]
fn b7_slow_clients_leave_the_connection_that_they_share_to_others() {
    const SLOW: usize = 60;
    let authority = Authority::new().signs("app", &["app.internal"]);
    let backend = VersionedBackend::start(free_address(), Behind::Http2, &authority, "app");
    let weir = weir_before(backend.address(), "h2");
    let slow: Vec<Http2> = (0..SLOW)
        .map(|_| {
            let mut client = connect(&weir, &setting(4, 1));
            client.sends(get(1, "/bytes/1000000"));
            client.receives(kind::HEADERS, 1);
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let mut other = connect(&weir, b"");
    assert_eq!(other.asks(1, "/hello"), Outcome::Answered(200, b"hello".to_vec()));
    assert_eq!(weir.metric("weir_backend_connections_total", &[("pool", "app")]), 1.0, "they shared one");
    drop(slow);
}
