//! Backends that speak HTTP/2 badly (threat B15), and what is sent again when they go away.

use weir_tests::dialogue::http2::{
    END_HEADERS, END_STREAM, Http2, Outcome, code, frame, get, headers, kind, request, reset, setting,
    window_update,
};
use weir_tests::dialogue::{NO_HEALTH, ScriptedBackend, Setup, Weir, pattern};

use super::{accepts, answers, answers_next, before_h2, connect, is_hello};

fn weir_before(backend: &ScriptedBackend) -> Weir {
    let config = before_h2("timeout = { backend = \"2s\" }", NO_HEALTH);
    Setup::of(&config).with("app", backend.address()).start()
}

/// One failure ejects the backend.
const STRICT: &str = r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 } }"#;

/// `GOAWAY`: streams above `last` were not processed.
fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Sends a request, with a body unless it is a GET: in one piece, because a body that arrives after its head
/// is streamed on and can't be sent again.
fn asks(client: &mut Http2, method: &str) {
    let mut frames = headers(1, &request(method, "/"), method == "GET");
    if method != "GET" {
        frames.extend(frame(kind::DATA, END_STREAM, 1, b"once"));
    }
    client.sends(frames);
}

#[test]
fn b15_a_request_that_a_backend_refused_is_sent_once_more_whatever_its_method() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    for method in ["GET", "POST"] {
        let mut client = connect(&weir, b"");
        asks(&mut client, method);
        let mut server = accepts(&backend);
        let first = server.receives_request();
        server.sends(reset(first, code::REFUSED_STREAM));
        let second = answers_next(&mut server);
        let outcome = client.outcome_of(1);
        assert!(is_hello(&outcome), "{method}: {outcome:?}");
        assert!(second > first);
    }
}

#[test]
fn b15_trailers_over_the_limit_end_an_answer_of_which_nothing_is_left_out_and_nothing_else() {
    let backend = ScriptedBackend::start();
    let config = before_h2(
        r#"limits = { header = "4KiB", request_line = "2KiB" }"#,
        r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 } }"#,
    );
    let config = format!("[runtime]\nworkers = 1\n{config}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut clients = [connect(&weir, b""), connect(&weir, b"")];
    asks(&mut clients[0], "GET");
    let mut server = accepts(&backend);
    let first = server.receives_request();
    asks(&mut clients[1], "GET");
    let second = server.receives_request();
    server.sends(headers(first, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, 0, first, b"hello"));
    server.sends(headers(first, &[("grpc-status", "3"), ("x-details", &"y".repeat(6000))], true));
    let outcome = clients[0].outcome_of(1);
    assert!(matches!(outcome, Outcome::Reset(..)), "{outcome:?}");
    // Other streams on its connection go on, and the backend is not blamed.
    answers(&mut server, second);
    assert!(is_hello(&clients[1].outcome_of(1)));
    let mut client = connect(&weir, b"");
    asks(&mut client, "GET");
    answers_next(&mut server);
    assert!(is_hello(&client.outcome_of(1)));
    backend.has_nobody_waiting();
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

/// [`weir_before`], with these retries and one worker: all clients share its connection.
fn retrying_before(backend: &ScriptedBackend, retry: &str) -> Weir {
    let pool = format!("timeout = {{ backend = \"1h\" }}\nretry = {{ {retry} }}\n{NO_HEALTH}");
    let config = before_h2("", &pool);
    Setup::of(&format!("[runtime]\nworkers = 1\n{config}")).with("app", backend.address()).start()
}

#[test]
fn a_backend_that_closes_without_a_word_of_answer_is_tried_again_but_for_a_post() {
    let backend = ScriptedBackend::start();
    let weir = retrying_before(&backend, "attempts = 1");
    for method in ["GET", "POST"] {
        let mut client = connect(&weir, b"");
        asks(&mut client, method);
        let mut server = accepts(&backend);
        server.receives_request();
        drop(server);
        if method == "GET" {
            let mut server = accepts(&backend);
            answers_next(&mut server);
            assert!(is_hello(&client.outcome_of(1)));
        } else {
            assert!(matches!(client.outcome_of(1), Outcome::Answered(502, _)));
        }
    }
    backend.has_nobody_waiting();
    assert_eq!(weir.metric("weir_retry_reasons_total", &[("reason", "empty")]), 1.0);
}

#[test]
fn a_backend_that_closes_behind_an_interim_answer_has_not_closed_without_a_word() {
    let backend = ScriptedBackend::start();
    let weir = retrying_before(&backend, "attempts = 1");
    let mut client = connect(&weir, b"");
    asks(&mut client, "GET");
    let mut server = accepts(&backend);
    let stream = server.receives_request();
    server.sends(headers(stream, &[(":status", "103"), ("link", "</a>")], false));
    client.receives(kind::HEADERS, 1);
    drop(server);
    assert!(matches!(client.outcome_of(1), Outcome::Answered(502, _)));
    backend.has_nobody_waiting();
}

/// As with HTTP/1.1: the age of a connection is accepted as the cause once, without charging the retries or
/// their budget.
#[test]
fn a_connection_that_proves_closed_is_replaced_once_for_all_whose_requests_it_carried() {
    let backend = ScriptedBackend::start();
    let weir = retrying_before(&backend, "attempts = 0");
    let mut clients = [connect(&weir, b""), connect(&weir, b"")];
    clients[0].sends(get(1, "/"));
    let mut server = accepts(&backend);
    answers_next(&mut server);
    assert!(is_hello(&clients[0].outcome_of(1)));

    clients[0].sends(get(3, "/"));
    server.receives_request();
    drop(server);
    let mut server = accepts(&backend);
    answers_next(&mut server);
    assert!(is_hello(&clients[0].outcome_of(3)));

    clients[0].sends(get(5, "/"));
    clients[1].sends(get(1, "/"));
    server.receives_request();
    server.receives_request();
    drop(server);
    // One of the two requests opens the next connection, which the other shares.
    let mut server = accepts(&backend);
    server.receives_request();
    server.receives_request();
    drop(server);
    assert!(matches!(clients[0].outcome_of(5), Outcome::Answered(502, _)));
    assert!(matches!(clients[1].outcome_of(1), Outcome::Answered(502, _)));
    backend.has_nobody_waiting();
}

#[test]
fn a_try_with_a_body_that_takes_too_long_gives_way_to_another() {
    const INITIAL_WINDOW: u16 = 4;
    let backend = ScriptedBackend::start();
    let weir = retrying_before(
        &backend,
        "attempts = 1, on = [\"timeout\"], per_try_timeout = \"200ms\", budget = { min_per_second = 100 }",
    );
    // It reads the body and is silent, or does not read it.
    for settings in [Vec::new(), setting(INITIAL_WINDOW, 0)] {
        let mut client = connect(&weir, b"");
        asks(&mut client, "PUT");
        let mut silent = Http2::server(backend.accepts(), &settings);
        silent.receives_request();
        let mut server = accepts(&backend);
        let stream = server.receives_request();
        assert_eq!(server.receives(kind::DATA, stream).payload, b"once");
        answers(&mut server, stream);
        assert!(is_hello(&client.outcome_of(1)));
        drop(server);
    }
}

#[test]
fn a_refused_stream_is_tried_again_where_the_pool_lists_that_and_nothing_else() {
    let backend = ScriptedBackend::start();
    let config = before_h2("", &format!("retry = {{ on = \"refused-stream\" }}\n{NO_HEALTH}"));
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = connect(&weir, b"");
    asks(&mut client, "POST");
    let mut server = accepts(&backend);
    let first = server.receives_request();
    server.sends(reset(first, code::REFUSED_STREAM));
    answers_next(&mut server);
    let outcome = client.outcome_of(1);
    assert!(is_hello(&outcome), "{outcome:?}");
    let reason = [("pool", "app"), ("reason", "refused-stream")];
    assert_eq!(weir.metric("weir_retry_reasons_total", &reason), 1.0);
}

/// The first attempt has received part of what the file holds, or all of it with the end.
#[test]
fn a_body_in_a_file_is_sent_once_more_with_its_end_where_its_stream_was_refused() {
    let backend = ScriptedBackend::start();
    let config = r#"
        [runtime]
        workers = 1
        buffer_directory = "@dir"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        protocol = "h2"
        buffer = { requests = "64KiB", requests_file = "1GiB" }
        health = { check = "off", passive = "off" }
        "#;
    // One worker, so that both clients' requests go over the one connection to the backend.
    let weir = Setup::of(config).with("app", backend.address()).start();
    let body = pattern(3, 2 << 20);
    let mut server: Option<Http2> = None;
    let enough = 4 << 20;
    for most in [500_000, enough] {
        let mut client = weir.client("web");
        client.sends("PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
        client.sends(format!("{:x}\r\n", body.len()));
        client.sends(&body);
        client.sends("\r\n0\r\nx-sum: 42\r\n\r\n");
        let server = server.get_or_insert_with(|| accepts(&backend));
        let first = server.receives_request();
        let (some, _) = content_of(server, first, most);
        assert!(body.starts_with(&some));
        server.sends(reset(first, code::REFUSED_STREAM));
        let second = server.receives_request();
        let (all, has_trailers) = content_of(server, second, enough);
        assert!(all == body && has_trailers, "{} bytes, trailers: {has_trailers}", all.len());
        answers(server, second);
        assert_eq!(client.receives_status(200).text(), "hello");
    }
    assert_eq!(weir.metric("weir_buffered_requests_total", &[("pool", "app")]), 2.0);
}

/// The content of a stream, up to its end or `most` bytes, for which the window is opened; and whether
/// trailers ended it.
fn content_of(server: &mut Http2, stream: u32, most: u32) -> (Vec<u8>, bool) {
    /// The initial window of each stream (RFC 9113 section 6.9.2).
    const WINDOW: u32 = 65_535;
    server.sends(window_update(0, 4 << 20));
    server.sends(window_update(stream, most - WINDOW));
    let mut content = Vec::new();
    while content.len() < most as usize {
        let found = server.receives_frame();
        let found =
            found.unwrap_or_else(|broken| panic!("{} bytes of {stream}, then {broken}", content.len()));
        if found.stream == stream && found.kind == kind::DATA {
            content.extend_from_slice(&found.payload);
        }
        if found.stream == stream && found.flags & END_STREAM != 0 {
            return (content, found.kind == kind::HEADERS);
        }
    }
    (content, false)
}

#[test]
fn b15_requests_above_the_last_stream_of_a_goaway_are_sent_over_another_connection() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    for method in ["GET", "POST"] {
        let mut client = connect(&weir, b"");
        asks(&mut client, method);
        let mut server = accepts(&backend);
        server.receives_request();
        server.sends(goaway(0, 0));
        let mut next = accepts(&backend);
        let stream = answers_next(&mut next);
        let outcome = client.outcome_of(1);
        assert!(is_hello(&outcome), "{method}: {outcome:?}");
        next.sends(goaway(stream, 0));
        // Its acknowledgement, or the end of the connection, shows that the GOAWAY was read: the next request
        // finds no connection.
        next.sends(frame(kind::PING, 0, 0, b"12345678"));
        while next.receives_frame().is_ok_and(|frame| frame.kind != kind::PING) {}
    }
}

#[test]
fn b15_a_post_that_a_backend_may_have_worked_on_is_not_sent_again() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    let mut client = connect(&weir, b"");
    asks(&mut client, "POST");
    let mut server = accepts(&backend);
    let stream = server.receives_request();
    server.sends(goaway(stream, 0));
    drop(server);
    let outcome = client.outcome_of(1);
    assert!(matches!(outcome, Outcome::Answered(502, _)), "{outcome:?}");
    backend.has_nobody_waiting();
}

#[test]
fn b15_after_a_goaway_running_streams_finish_and_new_ones_go_elsewhere() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    let mut client = connect(&weir, b"");
    asks(&mut client, "GET");
    let mut server = accepts(&backend);
    let stream = server.receives_request();
    server.sends(goaway(stream, 0));
    // Its acknowledgement shows that what came before was read.
    server.sends(frame(kind::PING, 0, 0, b"12345678"));
    server.receives(kind::PING, 0);
    let mut other = connect(&weir, b"");
    asks(&mut other, "POST");
    let mut next = accepts(&backend);
    answers_next(&mut next);
    assert!(is_hello(&other.outcome_of(1)));
    answers(&mut server, stream);
    assert!(is_hello(&client.outcome_of(1)));
}

/// The rest of an upload follows over the connection that takes no more requests; what the backend has not
/// processed can't be sent again without its first part, and is nobody's fault.
#[test]
fn b15_a_goaway_within_an_upload_ends_only_what_it_says_was_not_processed() {
    let backend = ScriptedBackend::start();
    let config = before_h2("timeout = { backend = \"1h\", client_body = \"1h\" }", STRICT);
    let weir = Setup::of(&format!("[runtime]\nworkers = 1\n{config}")).with("app", backend.address()).start();
    for (is_processed, error) in [(true, 0), (true, code::ENHANCE_YOUR_CALM), (false, 0)] {
        let mut client = connect(&weir, b"");
        client.sends([headers(1, &request("POST", "/"), false), frame(kind::DATA, 0, 1, b"some")].concat());
        let mut server = accepts(&backend);
        let stream = server.receives_request();
        assert_eq!(server.receives(kind::DATA, stream).payload, b"some");
        // Beyond what was sent with the head.
        client.sends(frame(kind::DATA, 0, 1, b"more"));
        assert_eq!(server.receives(kind::DATA, stream).payload, b"more");
        server.sends(goaway(if is_processed { stream } else { 0 }, error));
        let mut other = connect(&weir, b"");
        // As soon as that was read, and with it what the connection still carries.
        server.sends(frame(kind::PING, 0, 0, b"12345678"));
        if is_processed {
            server.receives(kind::PING, 0);
        } else {
            assert!(matches!(client.outcome_of(1), Outcome::Answered(502, _)));
        }
        asks(&mut other, "POST");
        let mut next = accepts(&backend);
        let last = answers_next(&mut next);
        assert!(is_hello(&other.outcome_of(1)));
        if is_processed {
            client.sends(frame(kind::DATA, END_STREAM, 1, b"done"));
            assert_eq!(server.receives(kind::DATA, stream).payload, b"done");
            answers(&mut server, stream);
            let outcome = client.outcome_of(1);
            assert!(is_hello(&outcome), "{error}: {outcome:?}");
        }
        next.sends(goaway(last, 0));
        next.sends(frame(kind::PING, 0, 0, b"12345678"));
        while next.receives_frame().is_ok_and(|frame| frame.kind != kind::PING) {}
    }
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

/// It opens no more streams; its upload goes on.
#[test]
fn a_client_that_says_goaway_within_its_upload_is_answered() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    for error in [0, code::CANCEL] {
        let mut client = connect(&weir, b"");
        client.sends([headers(1, &request("POST", "/"), false), frame(kind::DATA, 0, 1, b"some")].concat());
        let mut server = accepts(&backend);
        let stream = server.receives_request();
        assert_eq!(server.receives(kind::DATA, stream).payload, b"some");
        client.sends([goaway(0, error), frame(kind::DATA, END_STREAM, 1, b"done")].concat());
        assert_eq!(server.receives(kind::DATA, stream).payload, b"done");
        answers(&mut server, stream);
        let outcome = client.outcome_of(1);
        assert!(is_hello(&outcome), "{error}: {outcome:?}");
        drop(server);
    }
}

/// Has a backend answer a request with `bytes`, given its stream, and returns what the client received.
fn answered_with(bytes: impl FnOnce(u32) -> Vec<u8>) -> Outcome {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    let mut client = connect(&weir, b"");
    asks(&mut client, "POST");
    let mut server = accepts(&backend);
    let stream = server.receives_request();
    // It may be cut off before everything was sent.
    let _ = server.wire.tries_to_send(bytes(stream));
    client.outcome_of(1)
}

#[test]
fn b15_a_push_is_refused_with_its_connection() {
    let outcome = answered_with(|stream| {
        let promise = [&[0, 0, 0, 2][..], &weir_tests::dialogue::http2::block(&request("GET", "/pushed"))];
        frame(kind::PUSH_PROMISE, END_HEADERS, stream, &promise.concat())
    });
    assert!(matches!(outcome, Outcome::Answered(502, _)), "{outcome:?}");
}

#[test]
fn b15_heads_of_backends_are_bounded_and_checked_as_in_http_1() {
    let many: Vec<(&str, &str)> =
        [(":status", "200")].into_iter().chain(std::iter::repeat_n(("x", "y"), 1_500)).collect();
    let cases: [(&str, &[(&str, &str)]); 8] = [
        ("more fields than allowed", &many),
        ("no status", &[("x", "y")]),
        ("a status that is none", &[(":status", "2000")]),
        ("a status twice", &[(":status", "200"), (":status", "200")]),
        ("a line break", &[(":status", "200"), ("x", "a\r\nset-cookie: b")]),
        ("a coding of HTTP/1.1", &[(":status", "200"), ("transfer-encoding", "chunked")]),
        ("an upgrade", &[(":status", "101")]),
        ("two lengths", &[(":status", "200"), ("content-length", "1"), ("content-length", "2")]),
    ];
    for (name, fields) in cases {
        let outcome = answered_with(|stream| headers(stream, fields, false));
        assert!(matches!(outcome, Outcome::Answered(502, _)), "{name}: {outcome:?}");
    }
    let endless = answered_with(|stream| {
        let large = weir_tests::dialogue::http2::block(&[(":status", "200"), ("x", &"v".repeat(10_000))]);
        let mut bytes = frame(kind::HEADERS, 0, stream, &large);
        for _ in 0..1_000 {
            bytes.extend(frame(kind::CONTINUATION, 0, stream, &large[1..]));
        }
        bytes
    });
    assert!(matches!(endless, Outcome::Answered(502, _)), "endless: {endless:?}");
}

#[test]
fn b15_a_body_that_is_not_as_long_as_the_backend_declared_is_visibly_cut_off() {
    for body in [&b"abc"[..], b"abcdefgh"] {
        let outcome = answered_with(|stream| {
            let head = headers(stream, &[(":status", "200"), ("content-length", "5")], false);
            [head, frame(kind::DATA, END_STREAM, stream, body)].concat()
        });
        let cut = matches!(outcome, Outcome::Reset(_, _) | Outcome::Answered(502, _) | Outcome::Closed);
        assert!(cut, "{body:?}: {outcome:?}");
    }
}

#[test]
fn b15_interim_answers_without_end_are_cut_off() {
    let outcome = answered_with(|stream| {
        (0..2_000).flat_map(|_| headers(stream, &[(":status", "103"), ("link", "</a>")], false)).collect()
    });
    assert!(matches!(outcome, Outcome::Answered(502, _) | Outcome::Reset(..)), "{outcome:?}");
}

#[test]
fn b15_interim_answers_behind_one_that_a_client_does_not_take_are_cut_off_too() {
    // Each becomes longer than what the kernel holds for the client.
    let rule = format!(
        "replace_response_header = {{ name = \"link\", match = \"~^(.*)$\", to = \"{}\" }}",
        "$1".repeat(1_000)
    );
    let listener = format!("timeout = {{ client_body = \"1h\" }}\n{rule}");
    let config = format!("[runtime]\nworkers = 1\n{}", before_h2(&listener, NO_HEALTH));
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut slow = weir.client("web");
    slow.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let mut server = accepts(&backend);
    let first = server.receives_request();
    let mut other = connect(&weir, b"");
    asks(&mut other, "GET");
    let second = server.receives_request();
    let hint = headers(first, &[(":status", "103"), ("link", &"x".repeat(15_000))], false);
    server.sends(hint.repeat(60));
    server.receives(kind::RST_STREAM, first);
    // Other streams of the connection go on.
    answers(&mut server, second);
    assert!(is_hello(&other.outcome_of(1)));
    let told = slow.receives_to_the_end();
    let end = String::from_utf8_lossy(&told[told.len().saturating_sub(500)..]).into_owned();
    assert!(end.contains("\r\n\r\nHTTP/1.1 502 "), "{end}");
    weir.reaches("weir_ends_total", &[("reason", "bad_response")], 1.0);
}

#[test]
fn b15_a_backend_that_allows_one_stream_at_a_time_gets_one_at_a_time() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let mut first = connect(&weir, b"");
    asks(&mut first, "GET");
    let mut server = Http2::server(backend.accepts(), &setting(MAX_CONCURRENT_STREAMS, 1));
    let stream = server.receives_request();
    server.sends(frame(kind::PING, 0, 0, b"12345678"));
    server.receives(kind::PING, 0);
    let mut second = connect(&weir, b"");
    asks(&mut second, "GET");
    let mut other = accepts(&backend);
    answers_next(&mut other);
    answers(&mut server, stream);
    assert!(is_hello(&first.outcome_of(1)) && is_hello(&second.outcome_of(1)));
}

/// Nothing reached a backend, and no other backend could take it either, so it costs no attempt.
#[test]
fn b17_a_request_that_http_2_cannot_express_is_refused_before_a_backend_is_tried() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend);
    for (path, host) in [("/a`b", "a"), ("/", "a%41b"), ("/a`b", "a%41b")] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        client.receives_status(400);
    }
    backend.has_nobody_waiting();
    assert_eq!(weir.metric("weir_retries_total", &[]), 0.0);
    weir.reaches("weir_ends_total", &[("reason", "bad_request")], 3.0);
    // A request that it can express is forwarded.
    let mut client = weir.client("web");
    client.sends("GET /a%60b HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut server = accepts(&backend);
    answers_next(&mut server);
    client.receives_status(200);
}
