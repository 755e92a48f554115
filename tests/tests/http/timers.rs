//! Timers of routes and pools, of tunnels and streams, and of whole requests (threat D1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_tests::dialogue::http2::{END_HEADERS, Http2, block, frame, kind, request};
use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, until};

use super::upgrades::{echoing_websocket, open_websocket};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// Before one backend; `listener` and `pool` are the timers of each, `routes` whole routes.
fn timed(listener: &str, pool: &str, routes: &str, backend: impl ToString) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        timeout = {{ {listener} }}
        {routes}
        [pool.app]
        backends = ["@app"]
        timeout = {{ {pool} }}
        retry = {{ attempts = 0 }}
        health = {{ check = "off", passive = "off" }}
        "#
    );
    Setup::of(&config).with("app", backend).start()
}

fn ends(weir: &Weir, reason: &str) -> f64 {
    weir.metric("weir_ends_total", &[("listener", "web"), ("reason", reason)])
}

/// Waits until so many have ended so, and no more: an exchange is counted behind its answer.
fn have_ended(weir: &Weir, reason: &str, count: f64) {
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", reason)], count);
    assert_eq!(ends(weir, reason), count);
}

/// A wait that is longer than the short timers of these tests.
fn longer() {
    std::thread::sleep(Duration::from_millis(900));
}

#[test]
fn a_long_poll_is_waited_for_on_its_route_while_another_keeps_its_short_timer() {
    let backend = ScriptedBackend::start();
    let poll = "[[listener.web.route]]\npath = '/poll'\npool = 'app'\ntimeout = { backend = 'off' }";
    let weir = timed("backend = '300ms'", "", poll, backend.address());
    let mut patient = weir.client("web");
    patient.sends("GET /poll HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut waiting = backend.accepts();
    waiting.receives_request();
    let mut other = weir.client("web");
    other.sends(GET);
    let _silent = backend.accepts();
    other.receives_status(504);
    longer();
    assert!(patient.looks() == 0 && !patient.has_ended(), "its route waits for as long as it takes");
    waiting.answers(200, &[], "news");
    assert_eq!(patient.receives_status(200).text(), "news");
    have_ended(&weir, "backend_timeout", 1.0);
}

#[test]
fn a_pools_timer_stands_over_the_listeners_and_explain_says_who_says_each() {
    let backend = ScriptedBackend::start();
    let route = "[[listener.web.route]]\npath = '/slow'\npool = 'app'\ntimeout = { client_body = '90s', tunnel = 'off' }";
    let weir =
        timed("backend = '1h', tunnel = '2h'", "backend = '300ms', connect = '3s'", route, backend.address());
    let mut client = weir.client("web");
    client.sends(GET);
    let mut silent = backend.accepts();
    silent.receives_request();
    client.receives_status(504);
    let question = r#"{"protocol": "http", "method": "GET", "url": "/slow", "headers": [["host", "a"]]}"#;
    let answer = weir.admin().calls("POST", "/v1/explain", &[("content-type", "application/json")], question);
    let timers: Vec<(String, String, String)> = answer.json()["timers"]
        .as_array()
        .expect("timers are told")
        .iter()
        .map(|timer| {
            let text = |key: &str| timer[key].as_str().map(str::to_owned).expect("a text");
            (text("name"), text("value"), text("from"))
        })
        .collect();
    let expected = [
        ("connect", "3s", "pool"),
        ("backend", "300ms", "pool"),
        ("client_body", "90s", "route"),
        ("stream", "1h", "listener"),
        ("tunnel", "off", "route"),
        ("request_total", "off", "listener"),
    ];
    let expected = expected.map(|(name, value, from)| (name.to_owned(), value.to_owned(), from.to_owned()));
    assert_eq!(timers, expected);
    let finished = weir.command(&["explain", "http", "GET", "http://a/slow"]);
    assert!(finished.stdout.contains("timer    backend 300ms, of the pool"), "{}", finished.stdout);
    let config: Value = weir.admin().reads("/v1/config").json();
    assert!(config.to_string().contains("300ms"), "the effective config has it: {config}");
}

#[test]
fn a_slow_upload_is_taken_on_its_route_and_given_up_on_others() {
    let backend = Backend::saying("got it");
    let route = "[[listener.web.route]]\npath = '/upload'\npool = 'app'\ntimeout = { client_body = '1m' }";
    let weir = timed("client_body = '300ms'", "", route, backend.address());
    let begin = |path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nhalf"));
        client
    };
    let mut slow = begin("/upload");
    begin("/").receives_status(408);
    longer();
    assert!(slow.looks() == 0 && !slow.has_ended());
    slow.sends("done");
    assert_eq!(slow.receives_status(200).text(), "got it");
    assert_eq!(backend.requests().last().map(|request| request.body.clone()), Some(b"halfdone".to_vec()));
    weir.reaches("weir_ends_total", &[("reason", "client_body_timeout")], 1.0);
}

#[test]
fn an_idle_websocket_lives_longer_than_an_idle_connection_and_ends_by_a_timer_of_its_own() {
    let backend = echoing_websocket();
    let weir = timed("client_idle = '200ms', header = '200ms', backend = '200ms'", "", "", backend.address());
    let mut socket = open_websocket(&weir);
    longer();
    socket.sends("still here");
    socket.receives_exactly("still here");

    let weir = timed("client_idle = '1h'", "tunnel = '300ms'", "", backend.address());
    let mut socket = open_websocket(&weir);
    let begun = Instant::now();
    socket.receives_close();
    assert!(begun.elapsed() >= Duration::from_millis(290), "closed after {:?}", begun.elapsed());
    weir.reaches("weir_ends_total", &[("reason", "tunnel_idle")], 1.0);
}

#[test]
fn a_stream_may_be_silent_for_longer_than_a_backend_may_take_to_answer() {
    let backend = ScriptedBackend::start();
    let weir = timed("backend = '300ms', stream = '1m'", "", "", backend.address());
    let mut client = weir.client("web");
    client.sends(GET);
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends(CHUNKED);
    wire.sends("6\r\nevent1\r\n");
    client.receives_until("event1");
    longer();
    wire.sends("6\r\nevent2\r\n0\r\n\r\n");
    client.receives_until("event2");
    assert_eq!(ends(&weir, "stream_timeout"), 0.0);
}

#[test]
fn a_silent_stream_is_cut_off_and_its_backend_blamed_only_where_it_owes_something() {
    for (head, failures) in [(CHUNKED, 0.0), ("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", 1.0)] {
        let backend = ScriptedBackend::start();
        let route = "[[listener.web.route]]\npath = '/*'\npool = 'app'\ntimeout = { stream = '300ms' }";
        let config = format!(
            "[listener.web]\nbind = \"@web\"\n{route}\n[pool.app]\nbackends = [\"@app\"]\nhealth = {{ check = 'off' }}\n"
        );
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let mut client = weir.client("web");
        client.sends(GET);
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(head);
        client.receives_until("\r\n\r\n");
        client.receives_close();
        wire.receives_close();
        weir.reaches("weir_ends_total", &[("reason", "stream_timeout")], 1.0);
        assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), failures, "{head}");
    }
}

/// As gRPC does it: the response has begun, the request has not ended, and nobody has anything to say.
#[test]
fn a_call_of_http_2_that_streams_both_ways_may_be_silent_for_as_long_as_a_stream_may() {
    let backend = ScriptedBackend::start();
    let weir = timed("client_body = '300ms', backend = '300ms', stream = '1m'", "", "", backend.address());
    let mut client = Http2::client(weir.client("web"), b"");
    client.sends(frame(kind::HEADERS, END_HEADERS, 1, &block(&request("POST", "/both"))));
    client.sends(frame(kind::DATA, 0, 1, b"ping"));
    let mut wire = backend.accepts();
    wire.receives_until("ping");
    wire.sends(CHUNKED);
    wire.sends("4\r\npong\r\n");
    client.receives(kind::HEADERS, 1);
    assert_eq!(client.receives(kind::DATA, 1).payload, b"pong");
    longer();
    client.sends(frame(kind::DATA, 0, 1, b"more"));
    wire.receives_until("more");
    wire.sends("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(client.receives(kind::DATA, 1).payload, b"last");
}

#[test]
fn a_whole_request_ends_in_its_time_with_its_retries_counted_in() {
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = is_silent.clone();
    let backend = Backend::serving(move |_, wire| {
        while silent.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        After::Keep
    });
    let config = r#"
        [listener.web]
        bind = "@web"
        timeout = { backend = '300ms' }
        [[listener.web.route]]
        path = '/*'
        pool = 'app'
        timeout = { request_total = '1500ms' }
        [pool.app]
        backends = ["@app"]
        retry = { attempts = 10, on = ['timeout'] }
        health = { check = 'off', passive = 'off' }
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let mut client = weir.client("web");
    let begun = Instant::now();
    client.sends(GET);
    client.receives_status(504);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1490), "given up after {took:?}");
    // Eleven tries of 300 ms would have taken more than three seconds.
    assert!(weir.metric("weir_retries_total", &[("pool", "app")]) < 10.0, "{took:?}");
    have_ended(&weir, "request_total_timeout", 1.0);
    // The next request of the connection has a time of its own.
    is_silent.store(false, Ordering::SeqCst);
    client.sends(GET);
    assert_eq!(client.receives_status(200).text(), "ok");
}

#[test]
fn a_whole_request_ends_in_its_time_wherever_it_waits() {
    let backend = ScriptedBackend::start();
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = 'app'
        timeout = { request_total = '600ms' }
        [pool.app]
        backends = [{ address = "@app", max_connections = 1 }]
        queue = { max = 10, timeout = '1m' }
        health = { check = 'off' }
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    // The response is under way and never still.
    let mut reader = weir.client("web");
    reader.sends(GET);
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends(CHUNKED);
    // In the queue behind it.
    let mut queued = weir.client("web");
    queued.sends(GET);
    until("the response to be cut off", || {
        let _ = wire.tries_to_send("1\r\nx\r\n");
        std::thread::sleep(Duration::from_millis(20));
        reader.has_ended().then_some(())
    });
    queued.receives_status(504);
    drop(wire);
    // The client has not sent all: it is the one who was waited for.
    let mut uploader = weir.client("web");
    uploader.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n");
    assert!(uploader.receives_status(408).closes());
    weir.reaches("weir_ends_total", &[("reason", "request_total_timeout")], 3.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[]), 0.0, "nobody is blamed for it");
}

#[test]
fn a_websocket_goes_on_beyond_the_time_of_a_request() {
    let backend = echoing_websocket();
    let weir = timed("request_total = '300ms'", "", "", backend.address());
    let mut socket = open_websocket(&weir);
    longer();
    socket.sends("still here");
    socket.receives_exactly("still here");
}

#[test]
fn a_request_that_is_over_in_time_leaves_no_timer_to_the_answers_of_weirs_own() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], "ok");
        After::Keep
    });
    let own = "[[listener.web.route]]\npath = '/own'\nrespond = { body = 'own' }";
    let weir = timed("request_total = '200ms'", "", own, backend.address());
    let mut client = weir.client("web");
    for _ in 0..2 {
        client.sends(GET);
        client.receives_status(200);
        longer();
        client.sends("GET /own HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "own");
    }
    assert_eq!(ends(&weir, "request_total_timeout"), 0.0);
}

#[test]
fn a_grpc_call_is_told_that_its_time_was_over() {
    let backend = ScriptedBackend::start();
    let weir = timed("request_total = '300ms'", "", "", backend.address());
    let mut client = weir.client("web");
    client.sends(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\ncontent-length: 5\r\n\r\nhello",
    );
    let mut wire = backend.accepts();
    wire.receives_request();
    let told = client.receives_status(200);
    assert_eq!(told.fields.one("grpc-status"), Some("4"), "{told:?}");
    have_ended(&weir, "request_total_timeout", 1.0);
}
