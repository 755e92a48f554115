//! Clients and backends that take their time, or hoard connections (threat D1).

use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, Broken, ScriptedBackend, Setup, Weir, Wire, until};

fn timed(timeouts: &str, more: &str, backend: impl ToString) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        timeout = {{ {timeouts} }}
        {more}
        [pool.app]
        backends = ["@app"]
        retry = {{ attempts = 0 }}
        health = {{ check = "off", passive = "off" }}
        "#
    );
    Setup::of(&config).with("app", backend).start()
}

#[test]
fn a_head_that_does_not_end_in_time_is_answered_408_however_steadily_it_drips() {
    let backend = Backend::saying("ok");
    let weir = timed(r#"header = "500ms", client_idle = "30s""#, "", backend.address());
    let mut client = weir.client("web");
    let begun = Instant::now();
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n");
    // Slowloris: a byte every so often must not renew the timer.
    let mut dripped = 0;
    while client.looks() == 0 && !client.has_ended() {
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "still waiting for the head after {:?}",
            begun.elapsed()
        );
        let _ = client.tries_to_send("x");
        dripped += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() >= Duration::from_millis(480), "given up after {:?}", begun.elapsed());
    assert!(dripped > 5);
    let response = client.receives_status(408);
    assert!(response.closes());
    client.receives_close();
    weir.reaches("weir_rejected_total", &[("reason", "header_timeout")], 1.0);
    assert_eq!(backend.served(), 0);
}

#[test]
fn the_header_timer_runs_for_each_request_of_a_kept_connection() {
    let backend = Backend::saying("ok");
    let weir = timed(r#"header = "500ms", client_idle = "30s""#, "", backend.address());
    let mut client = weir.client("web");
    for _ in 0..3 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    client.sends("GET / HT");
    client.receives_status(408);
}

#[test]
fn a_connection_that_sends_nothing_is_closed_after_client_idle() {
    let backend = Backend::saying("ok");
    let weir = timed(r#"client_idle = "300ms", header = "30s""#, "", backend.address());
    // One that never spoke, and one between two requests.
    let begun = Instant::now();
    let mut silent = weir.client("web");
    silent.receives_to_the_end();
    assert!(begun.elapsed() >= Duration::from_millis(290), "closed after {:?}", begun.elapsed());
    let mut kept = weir.client("web");
    kept.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    kept.receives_status(200);
    let begun = Instant::now();
    kept.receives_end();
    assert!(begun.elapsed() >= Duration::from_millis(290), "closed after {:?}", begun.elapsed());
}

#[test]
fn a_body_that_stalls_is_given_up() {
    let backend = Backend::saying("ok");
    let weir = timed(r#"client_body = "500ms""#, "", backend.address());
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome");
    let begun = Instant::now();
    let response = client.receives_response();
    assert_eq!(response.status, 408);
    assert!(begun.elapsed() >= Duration::from_millis(480), "given up after {:?}", begun.elapsed());
    client.receives_close();
    weir.reaches("weir_rejected_total", &[("reason", "body_timeout")], 1.0);
    assert_eq!(backend.served(), 0);
}

#[test]
fn a_body_below_the_least_rate_is_given_up() {
    let backend = Backend::saying("ok");
    let weir =
        timed(r#"client_body = "30s""#, r#"limits = { min_body_rate = "1000B/s" }"#, backend.address());
    let mut client = weir.client("web").with_patience(Duration::from_secs(1));
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
    let begun = Instant::now();
    while client.looks() == 0 && !client.has_ended() {
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "a body of 50 B/s is still taken after {:?}",
            begun.elapsed()
        );
        let _ = client.tries_to_send("x");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(5),
        "there are five seconds of grace; given up after {:?}",
        begun.elapsed()
    );
    client.receives_status(408);
    weir.reaches("weir_rejected_total", &[("reason", "body_timeout")], 1.0);
}

#[test]
fn a_client_that_does_not_read_its_response_is_given_up() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], vec![b'x'; 64 << 20]);
        After::Keep
    });
    let weir = timed(r#"client_body = "500ms""#, "", backend.address());
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    weir.reaches("weir_connections", &[("listener", "web")], 1.0);
    // Not read: the kernel's buffers fill, then nothing moves.
    until("the connection to be given up", || {
        (weir.metric("weir_connections", &[("listener", "web")]) == 0.0).then_some(())
    });
    match client.tries_to_receive_response("GET") {
        Err((Broken::Ended | Broken::Reset, _)) => {}
        other => panic!("expected a cut response, got {:?}", other.map(|response| response.body.len())),
    }
}

#[test]
fn a_slow_but_steady_reader_gets_everything() {
    let size = 3 << 20;
    let backend = Backend::serving(move |_, wire| {
        wire.answers(200, &[], vec![b'x'; size]);
        After::Keep
    });
    let weir = timed(r#"client_body = "1s", backend = "1s""#, "", backend.address());
    let mut client = weir.client("web");
    socket2::SockRef::from(client.socket()).set_recv_buffer_size(32 << 10).expect("a small buffer");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_until("\r\n\r\n");
    let mut got = 0;
    while got < size {
        let piece = (64 << 10).min(size - got);
        client.receives(piece);
        got += piece;
        // Slower than the timeouts in sum, never idle for as long as one of them.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_backend_that_is_silent_for_too_long_is_answered_504() {
    let backend = ScriptedBackend::start();
    let weir = timed(r#"backend = "400ms""#, "", backend.address());
    let mut client = weir.client("web");
    let begun = Instant::now();
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    client.receives_status(504);
    assert!(begun.elapsed() >= Duration::from_millis(390), "given up after {:?}", begun.elapsed());
    wire.receives_close();
}

#[test]
fn a_backend_that_stalls_in_its_response_is_visibly_cut_off() {
    let backend = ScriptedBackend::start();
    let weir = timed(r#"stream = "400ms""#, "", backend.address());
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart");
    client.receives_until("part");
    client.receives_close();
}

#[test]
fn a_backend_that_is_slow_with_its_first_byte_is_waited_for() {
    // H3: slow first byte, still within the timeout.
    let backend = ScriptedBackend::start();
    let weir = timed(
        r#"backend = "5s", client_idle = "100ms", header = "100ms", client_body = "100ms""#,
        "",
        backend.address(),
    );
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    // Longer than every timer of the client's side: none of them may run now.
    std::thread::sleep(Duration::from_millis(700));
    wire.answers(200, &[], "at last");
    assert_eq!(client.receives_status(200).text(), "at last");
}

#[test]
fn one_address_cannot_hold_more_connections_than_its_share() {
    let backend = Backend::saying("ok");
    let weir = timed("", "max_connections_per_client = 5", backend.address());
    let mut held: Vec<Wire> = Vec::new();
    for _ in 0..5 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
        held.push(client);
    }
    let mut sixth = weir.client("web");
    let _ = sixth.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    match sixth.tries_to_receive_response("GET") {
        Ok(response) => assert!(matches!(response.status, 429 | 503), "{response:?}"),
        Err((broken, _)) => assert!(matches!(broken, Broken::Ended | Broken::Reset), "{broken}"),
    }
    weir.reaches("weir_rejected_total", &[("reason", "client_connections")], 1.0);
    // Those that were there are untouched, and a place that is given up can be taken.
    for client in &mut held {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    drop(held.pop());
    until("a free place", || {
        let mut client = weir.client("web");
        let _ = client.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.tries_to_receive_response("GET").ok().filter(|response| response.status == 200)
    });
    // Another address has a share of its own.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("127.0.0.2");
    socket.connect(&weir.address("web").into()).expect("connect");
    let mut other = Wire::over(socket.into(), "client");
    other.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    other.receives_status(200);
}

#[test]
fn a_listener_at_its_limit_makes_room_by_closing_the_connection_idle_longest() {
    // D1: hoarding idle connections must not lock others out.
    let backend = Backend::saying("ok");
    let weir = timed(r#"client_idle = "60s""#, "max_connections = 10", backend.address());
    let mut held: Vec<Wire> = Vec::new();
    for _ in 0..10 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
        held.push(client);
    }
    for _ in 0..5 {
        // The newcomer itself is served, at its first try.
        let mut newcomer = weir.client("web");
        newcomer.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        newcomer.receives_status(200);
        let open = held.iter_mut().filter_map(|client| (!client.has_ended()).then_some(())).count();
        assert!(open <= 9, "{open} of those before are open beside the newcomer");
        held.push(newcomer);
    }
    assert!(held[0].has_ended(), "the connection that was idle longest is still open");
    assert!(weir.metric("weir_connections", &[("listener", "web")]) <= 10.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "listener_connections")]), 0.0);
}

#[test]
fn a_full_listener_whose_connections_are_all_busy_turns_newcomers_away_at_once() {
    let (backend, stuck) = (Backend::saying("ok"), ScriptedBackend::start());
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "stuck"
        max_connections = 4
        [listener.other]
        bind = "@other"
        pool = "app"
        [pool.stuck]
        backends = ["@stuck"]
        health = "off"
        [pool.app]
        backends = ["@app"]
        health = "off"
    "#;
    let weir = Setup::of(config).with("app", backend.address()).with("stuck", stuck.address()).start();
    // Idle, and longer than anybody, but at another listener: closing it would help nobody.
    let mut elsewhere = weir.client("other");
    elsewhere.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    elsewhere.receives_status(200);
    let mut busy: Vec<Wire> = (0..4).map(|_| weir.client("web")).collect();
    let mut held = Vec::new();
    for client in &mut busy {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        held.push(stuck.accepts());
    }
    let begun = Instant::now();
    let mut newcomer = weir.client("web");
    assert!(newcomer.tries_to_receive_response("GET").is_err(), "the listener is full of busy connections");
    assert!(begun.elapsed() < Duration::from_secs(1), "turned away after {:?}", begun.elapsed());
    weir.reaches("weir_rejected_total", &[("listener", "web"), ("reason", "listener_connections")], 1.0);
    elsewhere.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    elsewhere.receives_status(200);
    // Who was busy is served to the end.
    for (client, backend) in busy.iter_mut().zip(&mut held) {
        backend.receives_request();
        backend.sends("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        client.receives_status(200);
    }
}

#[test]
fn slow_connections_do_not_disturb_the_others() {
    // S6, scaled down: hundreds of half-sent heads beside honest requests.
    let backend = Backend::saying("ok");
    let weir = timed(r#"header = "30s""#, "", backend.address());
    let slow: Vec<Wire> = (0..500)
        .map(|_| {
            let mut client = weir.client("web");
            client.sends("GET / HTTP/1.1\r\nhost: a\r\nx-slow: ");
            client
        })
        .collect();
    weir.reaches("weir_connections", &[("listener", "web")], 500.0);
    let mut client = weir.client("web");
    for _ in 0..200 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    let resident = weir.usage().resident_bytes;
    println!("{} connections in half a head: {} KiB resident", slow.len(), resident >> 10);
    assert!(resident < 100 << 20, "{} MiB for 500 slow connections", resident >> 20);
}
