//! Connections to backends that many clients share: what one of them does, or its backend, must not end the
//! requests of others (threat B18).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use weir_tests::dialogue::http2::{
    END_STREAM, Frame, Http2, Outcome, PREFACE, code, frame, get, headers, kind, request, reset, setting,
    window_update,
};
use weir_tests::dialogue::{NO_HEALTH, ScriptedBackend, Setup, Weir, until};
use weir_tests::network::Network;

use super::{
    accepts, answers, answers_next, before_h2, connect, is_hello, is_served, is_served_anew, serves,
};

const MAX_CONCURRENT_STREAMS: u16 = 3;

/// One worker, so that all clients share its connection.
fn weir_before(backend: &ScriptedBackend, pool: &str) -> Weir {
    let config = before_h2("limits = { streams = 1000, control_frames = 1000000 }", pool);
    Setup::of(&format!("[runtime]\nworkers = 1\n{config}")).with("app", backend.address()).start()
}

/// One failure ejects the backend.
const STRICT: &str = r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 } }"#;

/// The frames up to the acknowledgement of a `PING`, which shows that everything before it was read.
fn frames_until_acknowledged(server: &mut Http2) -> Vec<Frame> {
    server.sends(frame(kind::PING, 0, 0, b"all of it"[..8].as_ref()));
    let mut frames = Vec::new();
    loop {
        let found = server.receives_frame().expect("a frame");
        if found.kind == kind::PING && found.flags & 1 != 0 {
            return frames;
        }
        frames.push(found);
    }
}

fn is_reset(frame: &Frame) -> bool {
    frame.kind == kind::RST_STREAM
}

fn is_end_of_answer(frame: &Frame) -> bool {
    frame.kind == kind::DATA && frame.flags & END_STREAM != 0
}

/// Receives until this many such frames have come.
fn receives_count(end: &mut Http2, count: u32, is_one: impl Fn(&Frame) -> bool) {
    let mut received = 0;
    while received < count {
        received += u32::from(is_one(&end.receives_frame().expect("a frame")));
    }
}

/// A client whose request the backend has received and does not answer yet: the client, the connection to the
/// backend, and the request's stream there.
fn waits_patiently(weir: &Weir, backend: &ScriptedBackend) -> (Http2, Http2, u32) {
    let mut patient = connect(weir, b"");
    patient.sends(get(1, "/patient"));
    let mut server = accepts(backend);
    let awaited = server.receives_request();
    (patient, server, awaited)
}

#[test]
fn b18_a_connection_outlives_any_number_of_answers_that_clients_break_off() {
    /// More than the `h2` crate remembers by default.
    const AT_ONCE: u32 = 300;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let (mut patient, mut server, awaited) = waits_patiently(&weir, &backend);
    let mut client = connect(&weir, b"");
    let streams = (0..AT_ONCE).map(|number| 1 + 2 * number);
    client.sends(streams.clone().flat_map(|stream| get(stream, "/")).collect::<Vec<u8>>());
    let asked: Vec<u32> = (0..AT_ONCE).map(|_| server.receives_request()).collect();
    let begin = |stream: &u32| {
        [headers(*stream, &[(":status", "200")], false), frame(kind::DATA, 0, *stream, b"some")].concat()
    };
    server.sends(asked.iter().flat_map(begin).collect::<Vec<u8>>());
    receives_count(&mut client, AT_ONCE, |found| found.kind == kind::HEADERS);
    client.sends(streams.flat_map(|stream| reset(stream, code::CANCEL)).collect::<Vec<u8>>());
    receives_count(&mut server, AT_ONCE / 5, is_reset);
    // Data that was already on its way.
    let late = asked.iter().flat_map(|stream| frame(kind::DATA, END_STREAM, *stream, b"late"));
    server.sends(late.collect::<Vec<u8>>());
    frames_until_acknowledged(&mut server);
    answers(&mut server, awaited);
    let outcome = patient.outcome_of(1);
    assert!(is_hello(&outcome), "{outcome:?}");
    backend.has_nobody_waiting();
}

/// RFC 9110 section 8.6: the length is that of the answer to a request without a condition.
#[test]
fn b18_a_304_that_tells_a_length_and_ends_by_an_empty_frame_is_an_answer() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, STRICT);
    let mut server = None;
    for client_speaks_h2 in [true, false] {
        let mut h2 = connect(&weir, b"");
        let mut h1 = weir.client("web");
        if client_speaks_h2 {
            h2.sends(get(1, "/"));
        } else {
            h1.sends("GET / HTTP/1.1\r\nhost: a.test\r\n\r\n");
        }
        let server = server.get_or_insert_with(|| accepts(&backend));
        let stream = server.receives_request();
        let fields = [(":status", "304"), ("content-length", "50"), ("etag", "\"a\"")];
        server.sends([headers(stream, &fields, false), frame(kind::DATA, END_STREAM, stream, b"")].concat());
        if client_speaks_h2 {
            let outcome = h2.outcome_of(1);
            assert!(matches!(outcome, Outcome::Answered(304, _)), "{outcome:?}");
        } else {
            h1.receives_status(304);
            h1.sends("GET /next HTTP/1.1\r\nhost: a.test\r\n\r\n");
            answers_next(server);
            assert_eq!(h1.receives_status(200).text(), "hello");
        }
    }
    weir.reaches("weir_ends_total", &[("reason", "done")], 3.0);
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

#[test]
fn h17_a_connection_on_which_nothing_comes_is_replaced_although_each_request_is_given_up_by_its_client() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let mut client = connect(&weir, b"");
    let mut silent = is_served_anew(&mut client, 1, &backend);
    // From here on nobody reads from this connection, as if the network path were gone.
    let mut stream = 1;
    let next = until("another connection", || {
        stream += 2;
        client.sends([get(stream, "/"), frame(kind::PING, 0, 0, b"12345678")].concat());
        client.receives(kind::PING, 0);
        let next = backend.accepts_if_any();
        if next.is_none() {
            client.sends(reset(stream, code::CANCEL));
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        next
    });
    // The first request to arrive may be one that was given up before.
    let serving = serves(Http2::server(next, b""));
    assert!(is_hello(&client.outcome_of(stream)));
    // It was sent a PING.
    silent.receives(kind::PING, 0);
    drop(weir);
    serving.join().expect("answers");
}

/// Needs root.
#[test]
fn h17_requests_on_a_connection_whose_way_is_gone_end_long_before_their_own_time() {
    let network = Network::enter(1);
    let address = network.server(1, 8080, false);
    let backend = network.on("server1", || ScriptedBackend::at(address));
    let pool = format!("{NO_HEALTH}\ntimeout = {{ backend = \"1h\" }}");
    let weir = weir_before(&backend, &pool);
    let mut client = connect(&weir, b"");
    let _unreachable = is_served_anew(&mut client, 1, &backend);
    network.run("server1", &["ip", "route", "add", "blackhole", "10.50.11.1/32"]);
    client.sends(get(3, "/"));
    // It is sent once more, over a connection that can't be established.
    let outcome = client.outcome_of(3);
    assert!(matches!(outcome, Outcome::Answered(504, _)), "{outcome:?}");
    network.run("server1", &["ip", "route", "del", "blackhole", "10.50.11.1/32"]);
    is_served_anew(&mut client, 5, &backend);
}

#[test]
fn h17_a_backend_that_says_that_it_is_there_may_take_its_time() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let mut client = connect(&weir, b"");
    client.sends(get(1, "/"));
    let mut server = accepts(&backend);
    let stream = server.receives_request();
    server.receives(kind::PING, 0);
    client.sends(get(3, "/"));
    let other = server.receives_request();
    answers(&mut server, stream);
    assert!(is_hello(&client.outcome_of(1)));
    answers(&mut server, other);
    assert!(is_hello(&client.outcome_of(3)));
    backend.has_nobody_waiting();
}

#[test]
fn h17_a_request_whose_whole_time_was_spent_on_a_silent_connection_gives_it_up() {
    let backend = ScriptedBackend::start();
    let pool = format!("{NO_HEALTH}\ntimeout = {{ request_total = \"300ms\" }}");
    let weir = weir_before(&backend, &pool);
    let mut client = connect(&weir, b"");
    client.sends(get(1, "/"));
    let mut silent = accepts(&backend);
    let stream = silent.receives_request();
    frames_until_acknowledged(&mut silent);
    answers(&mut silent, stream);
    assert!(is_hello(&client.outcome_of(1)));
    client.sends(get(3, "/"));
    silent.receives_request();
    assert!(matches!(client.outcome_of(3), Outcome::Answered(504, _)));
    client.sends(get(5, "/"));
    let mut server = accepts(&backend);
    server.receives_request();
}

#[test]
fn h17_a_request_that_takes_too_long_does_not_give_up_a_connection_on_which_others_are_answered() {
    let backend = ScriptedBackend::start();
    let pool = format!("{NO_HEALTH}\ntimeout = {{ request_total = \"1s\" }}");
    let weir = weir_before(&backend, &pool);
    let mut client = connect(&weir, b"");
    client.sends(get(1, "/slow"));
    let mut server = accepts(&backend);
    server.receives_request();
    is_served(&mut client, 3, &mut server);
    assert!(matches!(client.outcome_of(1), Outcome::Answered(504, _)));
    is_served(&mut client, 5, &mut server);
}

#[test]
fn b19_a_connection_whose_requests_are_given_up_takes_no_more_before_its_backend_ends_it() {
    /// No more than any backend allows: the `h2` crate allows 20.
    const ALLOWED: u32 = 20;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let (mut patient, mut server, awaited) = waits_patiently(&weir, &backend);
    let mut client = connect(&weir, b"");
    let streams = (0..ALLOWED).map(|number| 1 + 2 * number);
    client.sends(streams.clone().flat_map(|stream| get(stream, "/")).collect::<Vec<u8>>());
    for _ in 0..ALLOWED {
        server.receives_request();
    }
    client.sends(streams.flat_map(|stream| reset(stream, code::CANCEL)).collect::<Vec<u8>>());
    receives_count(&mut server, ALLOWED, is_reset);
    client.sends(get(1001, "/"));
    let mut next = accepts(&backend);
    answers_next(&mut next);
    assert!(is_hello(&client.outcome_of(1001)));
    answers(&mut server, awaited);
    assert!(is_hello(&patient.outcome_of(1)));
}

#[test]
fn b19_requests_that_are_given_up_all_at_once_are_broken_off_a_few_at_a_time() {
    const AT_ONCE: u32 = 60;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let (mut patient, mut server, awaited) = waits_patiently(&weir, &backend);
    let mut client = connect(&weir, b"");
    let streams = (0..AT_ONCE).map(|number| 1 + 2 * number);
    client.sends(streams.clone().flat_map(|stream| get(stream, "/")).collect::<Vec<u8>>());
    let asked: Vec<u32> = (0..AT_ONCE).map(|_| server.receives_request()).collect();
    client.sends(streams.flat_map(|stream| reset(stream, code::CANCEL)).collect::<Vec<u8>>());
    // A stream that was answered in the meantime needs no reset from us.
    let mut resets = Vec::new();
    while resets.len() < 20 {
        let found = server.receives_frame().expect("a reset");
        if found.kind == kind::RST_STREAM {
            resets.push(found.stream);
        }
    }
    let more = frames_until_acknowledged(&mut server).into_iter().filter(is_reset).count();
    assert!(more < 10, "{more} more at once");
    for stream in asked.into_iter().filter(|stream| !resets.contains(stream)) {
        answers(&mut server, stream);
    }
    answers(&mut server, awaited);
    assert!(is_hello(&patient.outcome_of(1)));
    // No stream is left on it, and it takes no new ones.
    assert_eq!(server.receives_the_end().0.unwrap_or(0), 0);
}

/// Serves as servers on Netty do, up to the end of the connection: more than 200 resets in 30 s end it,
/// whether the requests were answered or not. An answer ends when its request does, and otherwise not at all.
/// Counts the resets, and the connections that it has ended.
fn bears_few_resets(mut server: Http2, [resets, ended]: [Arc<AtomicUsize>; 2]) {
    const MOST: usize = 200;
    let mut count = 0;
    while let Ok(found) = server.receives_frame() {
        match found.kind {
            kind::HEADERS => {
                server.sends(headers(found.stream, &[(":status", "200")], false));
                server.sends(frame(kind::DATA, 0, found.stream, b"some"));
            }
            kind::DATA if found.flags & END_STREAM != 0 => {
                server.sends(frame(kind::DATA, END_STREAM, found.stream, b"hello"));
            }
            kind::RST_STREAM => {
                count += 1;
                resets.fetch_add(1, Ordering::Relaxed);
                if count > MOST {
                    ended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            _ => {}
        }
    }
}

/// Only resets of requests without an answer were counted.
#[test]
fn b19_answers_that_clients_break_off_end_no_connection_that_others_share() {
    const LEAVING: usize = 250;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let [resets, ended] = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let counts = [resets.clone(), ended.clone()];
    let is_over = Arc::new(AtomicBool::new(false));
    let accepting = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            while !is_over.load(Ordering::Relaxed) {
                match backend.accepts_if_any() {
                    Some(wire) => {
                        let counts = counts.clone();
                        std::thread::spawn(move || bears_few_resets(Http2::server(wire, b""), counts));
                    }
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
    });
    let mut patient = connect(&weir, b"");
    patient.sends(headers(1, &request("POST", "/"), false));
    patient.receives(kind::DATA, 1);
    for number in 0..LEAVING {
        let mut leaving = weir.client("web");
        leaving.sends("GET / HTTP/1.1\r\nhost: a.test\r\n\r\n");
        leaving.receives_until("some");
        leaving.resets();
        until("its reset", || (resets.load(Ordering::Relaxed) > number).then_some(()));
    }
    patient.sends(frame(kind::DATA, END_STREAM, 1, b"done"));
    assert_eq!(*patient.receives(kind::DATA, 1).payload, *b"hello");
    assert_eq!(ended.load(Ordering::Relaxed), 0, "connections ended");
    is_over.store(true, Ordering::Relaxed);
    accepting.join().expect("no panic");
}

#[test]
fn b20_an_upgrade_that_a_backend_cannot_do_is_asked_for_once_and_held_against_nobody() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, STRICT);
    let mut server = None;
    for _ in 0..3 {
        let mut client = weir.client("web");
        client.sends(
            "GET /chat HTTP/1.1\r\nhost: a.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
        );
        let _ = server.get_or_insert_with(|| accepts(&backend));
        client.receives_status(502);
    }
    assert_eq!(weir.metric("weir_retries_total", &[]), 0.0);
    weir.reaches("weir_ends_total", &[("reason", "no_tunnel")], 3.0);
    // Others are served over the same connection.
    let mut client = connect(&weir, b"");
    client.sends(get(1, "/"));
    let mut server = server.expect("it was asked");
    answers_next(&mut server);
    assert!(is_hello(&client.outcome_of(1)));
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

/// A connection of Weir's to this backend, which has not sent its settings.
fn accepts_without_a_word(backend: &ScriptedBackend) -> Http2 {
    let mut wire = backend.accepts();
    wire.receives_exactly(PREFACE);
    Http2 { wire }
}

fn takes_request(server: &mut Http2) -> u32 {
    loop {
        let found = server.takes_frame().expect("a request");
        if found.kind == kind::HEADERS {
            return found.stream;
        }
    }
}

#[test]
fn a_backend_that_has_not_said_how_many_it_takes_gets_one_request_and_then_as_many_as_it_says() {
    const ALLOWED: u32 = 8;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let mut client = connect(&weir, b"");
    client.sends((0..20).flat_map(|number| get(1 + 2 * number, "/")).collect::<Vec<u8>>());
    let mut server = accepts_without_a_word(&backend);
    let mut asked = vec![takes_request(&mut server)];
    server.sends(frame(kind::SETTINGS, 0, 0, &setting(MAX_CONCURRENT_STREAMS, ALLOWED)));
    for _ in 1..ALLOWED {
        asked.push(server.receives_request());
    }
    let more = frames_until_acknowledged(&mut server);
    assert!(more.iter().all(|frame| frame.kind != kind::HEADERS), "{more:?}");
    for stream in asked {
        answers(&mut server, stream);
    }
    // The rest arrives over the same connection or another one.
    let mut left = 20 - ALLOWED;
    let mut servers = vec![server];
    until("all to be asked for", || {
        if let Some(wire) = backend.accepts_if_any() {
            servers.push(Http2::server(wire, &setting(MAX_CONCURRENT_STREAMS, ALLOWED)));
        }
        for server in &mut servers {
            let frames = frames_until_acknowledged(server);
            for found in frames.iter().filter(|found| found.kind == kind::HEADERS) {
                answers(server, found.stream);
                left -= 1;
            }
        }
        (left == 0).then_some(())
    });
    receives_count(&mut client, 20, is_end_of_answer);
}

#[test]
fn a_backend_that_never_says_how_many_it_takes_is_asked_all_the_same() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let mut client = connect(&weir, b"");
    client.sends([get(1, "/"), get(3, "/")].concat());
    let mut server = accepts_without_a_word(&backend);
    takes_request(&mut server);
    takes_request(&mut server);
    backend.has_nobody_waiting();
}

/// They would otherwise wait for a second, longer than for a connection.
#[test]
fn requests_beside_the_first_go_to_a_silent_backend_within_the_time_for_a_connection() {
    let backend = ScriptedBackend::start();
    let keys = "timeout = { connect = \"500ms\" }\nretry = { attempts = 0 }";
    let weir = weir_before(&backend, &format!("{NO_HEALTH}\n{keys}"));
    let mut client = connect(&weir, b"");
    client.sends([get(1, "/"), get(3, "/")].concat());
    let mut server = accepts_without_a_word(&backend);
    let asked = [takes_request(&mut server), takes_request(&mut server)];
    server.sends(frame(kind::SETTINGS, 0, 0, b""));
    asked.into_iter().for_each(|stream| answers(&mut server, stream));
    receives_count(&mut client, 2, is_end_of_answer);
}

/// Each one in turn had the whole time for itself, from the moment when the one before had given up.
#[test]
fn requests_that_wait_for_one_connection_wait_no_longer_than_for_their_own() {
    const WAITING: u32 = 60;
    // It accepts connections and sends nothing.
    let backend = ScriptedBackend::start();
    let pool = r#"
        tls = { verify = false }
        timeout = { connect = "500ms", request_total = "15s" }
        retry = { attempts = 0 }
        [log]
        access = "@dir/access.log"
        line = "$status $end"
    "#;
    let config = before_h2("", &format!("{NO_HEALTH}\n{pool}"));
    let weir = Setup::of(&format!("[runtime]\nworkers = 1\n{config}")).with("app", backend.address()).start();
    let mut client = connect(&weir, b"");
    client.sends((0..WAITING).flat_map(|number| get(1 + 2 * number, "/")).collect::<Vec<u8>>());
    let lines = weir.lines_of("access.log", WAITING as usize);
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
}

#[test]
fn requests_above_the_last_stream_of_a_goaway_with_an_error_are_sent_over_another_connection() {
    const NO_STREAM: [u8; 4] = [0; 4];
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, STRICT);
    for error in [code::ENHANCE_YOUR_CALM, code::PROTOCOL_ERROR] {
        let mut client = connect(&weir, b"");
        let body = frame(kind::DATA, END_STREAM, 1, b"once");
        client.sends([headers(1, &request("POST", "/"), false), body].concat());
        let mut server = accepts(&backend);
        server.receives_request();
        server.sends(frame(kind::GOAWAY, 0, 0, &[NO_STREAM, error.to_be_bytes()].concat()));
        let mut next = accepts(&backend);
        let stream = answers_next(&mut next);
        let outcome = client.outcome_of(1);
        assert!(is_hello(&outcome), "{error}: {outcome:?}");
        // The next request finds no connection.
        next.sends(frame(kind::GOAWAY, 0, 0, &[stream.to_be_bytes(), [0; 4]].concat()));
        while next.receives_frame().is_ok() {}
    }
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

/// RFC 9113 section 5.2: the window of the connection is one for all of its streams.
#[test]
fn b27_content_that_a_backend_does_not_read_keeps_nobody_elses_waiting() {
    /// The default window of a connection (section 6.9.2).
    const WINDOW: usize = 65_535;
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, NO_HEALTH);
    let mut unread = weir.client("web");
    let length = 2 * WINDOW;
    unread.sends(format!("POST /unread HTTP/1.1\r\nhost: a.test\r\ncontent-length: {length}\r\n\r\n"));
    unread.sends(vec![b'a'; length]);
    let mut first = accepts(&backend);
    let held = first.receives_request();
    let mut taken = 0;
    while taken < WINDOW {
        taken += first.receives(kind::DATA, held).payload.len();
    }
    let mut other = weir.client("web");
    other.sends("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 4\r\n\r\nsome");
    let mut second = accepts(&backend);
    let stream = second.receives_request();
    assert_eq!(second.receives(kind::DATA, stream).payload, b"some");
    answers(&mut second, stream);
    assert_eq!(other.receives_status(200).text(), "hello");
    // A request without content needs no window.
    other.sends("GET / HTTP/1.1\r\nhost: a.test\r\n\r\n");
    answers_next(&mut first);
    assert_eq!(other.receives_status(200).text(), "hello");
    first.sends([window_update(0, WINDOW as u32), window_update(held, WINDOW as u32)].concat());
    while taken < length {
        taken += first.receives(kind::DATA, held).payload.len();
    }
    answers(&mut first, held);
    assert_eq!(unread.receives_status(200).text(), "hello");
    backend.has_nobody_waiting();
}
