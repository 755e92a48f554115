//! Slow clients hold no backend where a pool or a route has them buffered: requests wait here until they are
//! whole, and responses leave the backend at its pace.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use weir_tests::dialogue::http2::{Http2, get, headers, kind, request, window_update};
use weir_tests::dialogue::{
    After, Backend, ONE_POOL, PATIENCE, Response, ScriptedBackend, Setup, Weir, Wire, fingerprint, pattern,
    run_tool, tool, until,
};

/// A backend that takes one request at a time: who holds it is seen by who waits.
fn one_at_a_time(backend: &Backend, buffer: &str, more: &str) -> Weir {
    let config = format!(
        r#"
        [runtime]
        workers = 1
        memory = "64MiB"
        memory_share_per_client = 1.0
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        {more}
        [log]
        access = "@dir/access.log"
        [pool.app]
        backends = [{{ address = "@app", max_connections = 1 }}]
        buffer = {buffer}
        health = {{ check = "off" }}
        "#
    );
    Setup::of(&config).with("app", backend.address()).start()
}

/// Says how much came and what it comes to; `/big` is answered with 24 MiB, more than all sockets on the way
/// take.
fn backend() -> Backend {
    Backend::serving(|request, wire| {
        match request.target.as_str() {
            "/big" => wire.answers(200, &[], pattern(7, BIG)),
            "/trailers" => {
                let body = pattern(7, MIB);
                wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
                wire.sends(format!("{MIB:x}\r\n"));
                wire.sends(&body);
                wire.sends("\r\n0\r\nx-sum: 7\r\n\r\n");
            }
            _ => wire.answers(200, &[], summed(&request.body)),
        }
        After::Keep
    })
}

const MIB: usize = 1 << 20;
const BIG: usize = 24 * MIB;

fn summed(body: &[u8]) -> String {
    format!("{} {:x}", body.len(), fingerprint(body))
}

fn asks(weir: &Weir, path: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    client.receives_response()
}

fn counted(weir: &Weir, name: &str) -> f64 {
    weir.metric(name, &[("pool", "app")])
}

#[test]
fn a_request_is_whole_before_its_backend_hears_of_it() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "true", "");
    let body = pattern(3, 300_000);
    let length = format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut slow = weir.client("web");
    slow.sends(&length);
    slow.sends(&body[..150_000]);
    let mut chunked = weir.client("web");
    chunked.sends("PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    chunked.sends(format!("{:x}\r\n", body.len()));
    chunked.sends(&body[..10]);
    // Others are served meanwhile.
    for _ in 0..3 {
        assert_eq!(asks(&weir, "/").status, 200);
    }
    assert!(backend.requests().iter().all(|request| request.method == "GET"));
    slow.sends(&body[150_000..]);
    assert_eq!(slow.receives_status(200).text(), summed(&body));
    chunked.sends(&body[10..]);
    chunked.sends("\r\n0\r\n\r\n");
    assert_eq!(chunked.receives_status(200).text(), summed(&body));
    assert_eq!((counted(&weir, "weir_buffered_requests_total"), backend.connections()), (2.0, 1));
}

#[test]
fn a_longer_request_goes_on_as_it_comes_and_a_route_may_say_otherwise() {
    let backend = backend();
    let route = r#"
        [[listener.web.route]]
        path = "/as-it-comes"
        pool = "app"
        buffer = { requests = "0B", responses = "0B" }
    "#;
    let weir = one_at_a_time(&backend, r#"{ requests = "16KiB" }"#, route);
    let body = pattern(4, 200_000);
    for path in ["/", "/as-it-comes"] {
        let mut client = weir.client("web");
        client.sends(format!("PUT {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.sends(&body);
        assert_eq!(client.receives_status(200).text(), summed(&body));
    }
    assert_eq!(counted(&weir, "weir_unbuffered_requests_total"), 1.0);
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 0.0);
    let explain = |path: &str| {
        let url = format!("http://{}{path}", weir.address("web"));
        weir.command(&["explain", "http", "PUT", &url]).succeeded().to_owned()
    };
    assert!(explain("/").contains("requests up to 16KiB"), "{}", explain("/"));
    assert!(!explain("/as-it-comes").contains("buffered"), "{}", explain("/as-it-comes"));
}

#[test]
fn clients_of_http_2_and_those_that_ask_first_are_held_as_well() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "true", "");
    let body = pattern(5, 400_000);
    let url = format!("http://{}/", weir.address("web"));
    for arguments in [
        &["--http2-prior-knowledge"][..],
        &["--http1.1", "--header", "expect: 100-continue"],
        &["--http1.1", "--header", "transfer-encoding: chunked"],
    ] {
        let mut all = vec!["--silent", "--noproxy", "*", "--upload-file", "-", "--limit-rate", "4M"];
        all.extend(arguments);
        all.push(&url);
        let said = run_tool(&tool("curl", "curl"), &all, &body, PATIENCE);
        assert_eq!(said.succeeded(), summed(&body), "{arguments:?}");
    }
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 3.0);
}

#[test]
fn a_client_that_gives_up_its_upload_costs_no_backend_and_one_that_stalls_is_timed_out() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "true", "timeout = { client_body = \"300ms\" }");
    let half = "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello";
    let mut client = weir.client("web");
    client.sends(half);
    client.resets();
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_closed")], 1.0);
    let mut client = weir.client("web");
    client.sends(half);
    client.receives_status(408);
    assert_eq!(backend.connections(), 0);
}

/// Three quarters of 64 MiB are for what is held: uploads of 16 MiB that were all announced and have hardly
/// begun take little of it, on connections of their own or on one.
#[test]
fn uploads_that_have_only_begun_keep_nobody_from_the_buffer() {
    let backend = backend();
    let weir = one_at_a_time(&backend, r#"{ requests = "16MiB" }"#, "");
    // Each is told to go on once it is held.
    let begins = |_| {
        let mut client = weir.client("web");
        client
            .sends("PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(client.receives_head().status, 100);
        client.sends("1\r\nx\r\n");
        client
    };
    let clients: Vec<Wire> = (0..8).map(begins).collect();
    let mut shared = Http2::client(weir.client("web"), b"");
    let upload = [&request("PUT", "/")[..], &[("expect", "100-continue")]].concat();
    for number in 0..100 {
        shared.sends(headers(2 * number + 1, &upload, false));
    }
    for _ in 0..100 {
        while shared.receives_frame().expect("more").kind != kind::HEADERS {}
    }
    let body = pattern(3, 12 * MIB);
    let mut client = weir.client("web");
    client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
    client.sends(&body);
    assert_eq!(client.receives_status(200).text(), summed(&body));
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 1.0);
    assert_eq!(counted(&weir, "weir_unbuffered_requests_total"), 0.0);
    drop((clients, shared));
}

/// Beyond 8 MiB 16 are claimed for each of them, and of 48 MiB two can have that.
#[test]
fn what_is_held_is_charged_to_the_memory_budget_as_it_comes_and_the_rest_streams() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "{ requests = \"16MiB\" }\nqueue = { timeout = \"1m\" }", "");
    let body = pattern(3, 16 * MIB);
    let begins = |_| {
        let mut client = weir.client("web");
        client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.sends(&body[..9 * MIB]);
        client
    };
    let mut clients: Vec<Wire> = (0..3).map(begins).collect();
    weir.reaches("weir_unbuffered_requests_total", &[("pool", "app")], 1.0);
    clients.iter_mut().for_each(|client| client.sends(&body[9 * MIB..]));
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), summed(&body));
    }
    assert_eq!(counted(&weir, "weir_unbuffered_requests_total"), 1.0);
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 2.0);
}

/// Reads all of a response whose head has been seen.
fn reads_slowly(mut client: Wire, length: usize) -> Vec<u8> {
    let head = client.receives_until("\r\n\r\n");
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    client.receives(length)
}

#[test]
fn a_response_leaves_its_backend_while_its_client_reads_nothing() {
    let backend = backend();
    let weir = one_at_a_time(&backend, r#"{ responses = "32MiB" }"#, "");
    let mut slow = weir.client("web");
    slow.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    slow.looks();
    until("the backend is free again", || (backend.served() == 1 && backend.busy() == 0).then_some(()));
    assert_eq!(asks(&weir, "/").status, 200);
    assert_eq!(backend.connections(), 1, "the connection is kept, too");
    assert!(reads_slowly(slow, BIG) == pattern(7, BIG), "all of it, and in order");
    assert_eq!(counted(&weir, "weir_read_ahead_responses_total"), 1.0);
    let lines = weir.lines_of("access.log", 2);
    let big = lines.iter().find(|line| line.contains("/big")).expect("its line");
    let logged: serde_json::Value = serde_json::from_str(big).expect("JSON");
    assert!(logged["bytes_sent"].as_u64() > Some(BIG as u64) && logged["end"] == "done", "{big}");
}

#[test]
fn a_stream_of_http_2_gets_the_rest_and_the_trailers_when_its_window_opens() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "true", "");
    let mut slow = Http2::client(weir.client("web"), b"");
    slow.sends(get(1, "/trailers"));
    slow.receives(kind::HEADERS, 1);
    until("the backend is free again", || (backend.served() == 1 && backend.busy() == 0).then_some(()));
    assert_eq!(asks(&weir, "/").status, 200);
    slow.sends(window_update(0, 4 << 20));
    slow.sends(window_update(1, 4 << 20));
    let mut body = Vec::new();
    let trailers = loop {
        let frame = slow.receives_frame().expect("more");
        match frame.kind {
            kind::DATA => body.extend_from_slice(&frame.payload),
            kind::HEADERS => break frame,
            _ => {}
        }
    };
    assert!(body == pattern(7, MIB));
    assert_eq!(trailers.flags & 1, 1, "the end of the stream");
    assert_eq!(counted(&weir, "weir_read_ahead_responses_total"), 1.0);
}

#[test]
fn a_client_that_leaves_a_response_that_has_left_its_backend_is_not_the_backends_fault() {
    let backend = backend();
    let weir = one_at_a_time(&backend, r#"{ responses = "32MiB" }"#, "");
    let mut client = weir.client("web");
    client.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives(100);
    until("the backend is free again", || (backend.served() == 1 && backend.busy() == 0).then_some(()));
    client.resets();
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_closed")], 1.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), 0.0);
    assert_eq!(asks(&weir, "/").status, 200);
}

/// What comes into the buffer is no sign of a client that reads.
#[test]
fn a_client_that_reads_nothing_is_given_up_however_steadily_its_response_comes() {
    let is_given_up = Arc::new(AtomicBool::new(false));
    let told = is_given_up.clone();
    let backend = Backend::serving(move |_, wire| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 1_usize << 40);
        // More than all sockets on the way take, and then ever more.
        let mut goes_on = wire.tries_to_send(head).and_then(|()| wire.tries_to_send(pattern(7, BIG)));
        while goes_on.is_ok() && !told.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            goes_on = wire.tries_to_send("event");
        }
        After::Close
    });
    let weir = one_at_a_time(&backend, r#"{ responses = "40MiB" }"#, "timeout = { client_body = \"500ms\" }");
    let mut slow = weir.client("web");
    slow.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_body_timeout")], 1.0);
    is_given_up.store(true, Ordering::Relaxed);
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), 0.0);
}

/// A server that refuses by the head alone, reads no body and closes nothing.
#[test]
fn a_backend_that_answers_before_it_has_all_is_heard_and_its_connection_serves_nobody_else() {
    let backend = ScriptedBackend::start();
    let config = format!("{ONE_POOL}buffer = {{ requests = \"32MiB\" }}\nhealth = \"off\"");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {BIG}\r\n\r\n"));
    client.sends(pattern(1, BIG));
    let mut first = backend.accepts();
    first.receives_until("\r\n\r\n");
    first.answers(413, &[], "too much");
    assert_eq!(client.receives_status(413).text(), "too much");
    // The client is done with its request, and asks again over the same connection.
    client.sends("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut second = backend.accepts();
    assert_eq!(second.receives_request().target, "/next");
    second.answers(200, &[], "ok");
    assert_eq!(client.receives_status(200).text(), "ok");
}

/// Without a buffer the same client holds the backend: what the tests above see is not the kernel's doing.
#[test]
fn without_a_buffer_who_reads_nothing_holds_the_backend() {
    let backend = backend();
    let weir = one_at_a_time(&backend, r#"{ requests = "0B", responses = "0B" }"#, "");
    let mut slow = weir.client("web");
    slow.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut first = [0; 100];
    slow.socket().read_exact(&mut first).expect("the beginning");
    assert_eq!(backend.busy(), 1);
    assert_eq!(counted(&weir, "weir_read_ahead_responses_total"), 0.0);
    assert!(slow.receives(BIG).len() == BIG);
}

#[test]
fn no_more_threads_than_said_work_at_files_of_bodies() {
    let backend = backend();
    let config = ONE_POOL
        .replace("[pool.app]", "[pool.app]\nbuffer = { requests = \"64KiB\", requests_file = \"64MiB\" }");
    let config =
        format!("[runtime]\nworkers = 2\nbuffer_threads = 1\nbuffer_directory = \"@files\"\n{config}");
    let setup = Setup::of(&config).with("files", std::env::temp_dir().display());
    let weir = setup.with("app", backend.address()).start();
    let body = pattern(3, 8 * MIB);
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = weir.client("web");
                client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
                for part in body.chunks(MIB) {
                    client.sends(part);
                    most.fetch_max(threads_named(weir.pid(), "weir-files"), Ordering::Relaxed);
                }
                assert_eq!(client.receives_response().text(), summed(&body));
            });
        }
    });
    assert_eq!(most.into_inner(), 1);
}

fn threads_named(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// Those who read slowly have the memory, of which each that reads well gets a piece at a time.
#[test]
fn a_client_that_reads_goes_on_while_slow_ones_hold_the_memory() {
    const PIECE: usize = 8 << 20;
    let backend = Backend::serving(|request, wire| {
        let pieces = if request.target == "/slow" { 40 } else { 1 };
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", pieces * PIECE));
        let piece = vec![b'x'; PIECE];
        (0..pieces).for_each(|_| wire.sends(&piece));
        After::Keep
    });
    let config = r#"
        [runtime]
        workers = 1
        memory = "16MiB"
        memory_share_per_client = 1.0
        [listener.web]
        bind = "@web"
        pool = "app"
        timeout = { client_body = "10m" }
        [pool.app]
        buffer = { requests = "0B", responses = "1MiB" }
        backends = ["@app"]
        health = "off"
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let begins = |target: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client
    };
    let mut slow: Vec<Wire> = (0..12).map(|_| begins("/slow")).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                slow.iter_mut().for_each(|client| drop(client.receives(100_000)));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        for _ in 0..3 {
            // Each read would end with the patience of the test, long before that of Weir.
            assert_eq!(reads_slowly(begins("/fast"), PIECE).len(), PIECE);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn d51_who_only_says_that_it_makes_a_remote_call_holds_no_backend_that_speaks_http_1() {
    let backend = backend();
    let weir = one_at_a_time(&backend, "true", "");
    let mut slow = weir.client("web");
    slow.sends(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\nexpect: 100-continue\r\n\
         content-length: 10\r\n\r\n",
    );
    slow.receives_exactly("HTTP/1.1 100 Continue\r\n\r\n");
    slow.sends("hello");
    assert_eq!(asks(&weir, "/").status, 200, "while the slow one has still to send");
    slow.sends("again");
    assert_eq!(slow.receives_status(200).text(), summed(b"helloagain"));
    assert_eq!(counted(&weir, "weir_buffered_requests_total"), 1.0);
}
