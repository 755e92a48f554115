//! What goes in on one side comes out on the other: complete, in order, and with its end.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{
    Broken, NO_HEALTH, ScriptedBackend, Setup, Unreachable, Weir, Wire, fingerprint, free_address, pattern,
    until,
};

use super::front;

fn relay(backend: impl ToString, more: &str) -> Weir {
    Setup::of(&front(more, NO_HEALTH)).with("app", backend).start()
}

#[test]
fn bytes_pass_both_ways_in_order() {
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address(), "");
    let mut client = weir.client("front");
    let mut wire = backend.accepts();
    for round in 0..200 {
        let (question, answer) = (format!("question {round}\n"), format!("answer {round}\n"));
        client.sends(&question);
        wire.receives_exactly(&question);
        wire.sends(&answer);
        client.receives_exactly(&answer);
    }
}

#[test]
fn a_backend_may_speak_first() {
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address(), "");
    let mut client = weir.client("front");
    let mut wire = backend.accepts();
    wire.sends("220 ready\r\n");
    client.receives_exactly("220 ready\r\n");
}

#[test]
fn a_half_close_is_passed_on_and_the_other_direction_goes_on() {
    for client_first in [true, false] {
        let backend = ScriptedBackend::start();
        let weir = relay(backend.address(), "");
        let mut client = weir.client("front");
        let mut wire = backend.accepts();
        let (first, second) = if client_first { (&mut client, &mut wire) } else { (&mut wire, &mut client) };
        first.sends("last words");
        first.half_closes();
        second.receives_exactly("last words");
        second.receives_end();
        let answer = pattern(1, 300_000);
        second.sends(&answer);
        assert!(first.receives(answer.len()) == answer);
        second.half_closes();
        first.receives_end();
        until("the session to end", || {
            (weir.metric("weir_connections", &[("listener", "front")]) == 0.0).then_some(())
        });
    }
}

#[test]
fn a_reset_is_passed_on() {
    for client_first in [true, false] {
        let backend = ScriptedBackend::start();
        let weir = relay(backend.address(), "");
        let mut client = weir.client("front");
        let mut wire = backend.accepts();
        client.sends("a");
        wire.receives_exactly("a");
        let (first, mut second) = if client_first { (client, wire) } else { (wire, client) };
        first.resets();
        second.receives_close();
    }
}

#[test]
fn two_hundred_mebibytes_pass_unchanged_in_both_directions_at_once() {
    const SIZE: usize = 200 << 20;
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address(), "");
    let before = weir.usage().resident_bytes;
    let client = weir.client("front");
    let wire = backend.accepts();
    let handles = [(&client, 1), (&wire, 2)];
    let sums: Vec<u64> = std::thread::scope(|scope| {
        for (end, seed) in handles {
            let mut writer = end.socket().try_clone().expect("a second handle");
            scope.spawn(move || {
                let block = pattern(seed, 4 << 20);
                for _ in 0..SIZE / block.len() {
                    writer.write_all(&block).expect("send");
                }
                writer.shutdown(std::net::Shutdown::Write).expect("half-close");
            });
        }
        let readers: Vec<_> = [(&client, 2), (&wire, 1)]
            .into_iter()
            .map(|(end, seed)| {
                let mut reader = end.socket().try_clone().expect("a second handle");
                scope.spawn(move || {
                    let expected = pattern(seed, 4 << 20);
                    let mut block = vec![0; expected.len()];
                    for _ in 0..SIZE / expected.len() {
                        reader.read_exact(&mut block).expect("read");
                        assert!(block == expected, "a block differs");
                    }
                    assert_eq!(reader.read(&mut block).expect("the end"), 0, "more came than was sent");
                    fingerprint(&block)
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    });
    assert_eq!(sums.len(), 2);
    let peak = weir.usage().peak_bytes;
    assert!(peak < before + (20 << 20), "{} MiB more at peak", (peak - before) >> 20);
}

#[test]
fn bursts_of_every_size_pass_unchanged() {
    // Sizes around buffer and pipe boundaries, where a relay that changes its way of copying can fail.
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address(), "");
    let mut client = weir.client("front");
    let mut wire = backend.accepts();
    for size in [
        1, 2, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 131_072, 1_048_575,
        1_048_577, 3,
    ] {
        let burst = pattern(size as u64, size);
        let mut writer = client.socket().try_clone().expect("a second handle");
        let sent = burst.clone();
        let sender = std::thread::spawn(move || writer.write_all(&sent).expect("send"));
        assert!(wire.receives(size) == burst, "{size} bytes towards the backend");
        sender.join().expect("the sender");
        let mut writer = wire.socket().try_clone().expect("a second handle");
        let sent = burst.clone();
        let sender = std::thread::spawn(move || writer.write_all(&sent).expect("send"));
        assert!(client.receives(size) == burst, "{size} bytes towards the client");
        sender.join().expect("the sender");
    }
}

#[test]
fn a_session_without_a_byte_either_way_is_closed_after_client_idle() {
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address(), r#"timeout = { client_idle = "400ms" }"#);
    let mut client = weir.client("front");
    let mut wire = backend.accepts();
    // Bytes in either direction renew the timer.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(900) {
        wire.sends("x");
        client.receives_exactly("x");
        std::thread::sleep(Duration::from_millis(50));
    }
    let quiet_since = Instant::now();
    client.receives_close();
    wire.receives_close();
    assert!(quiet_since.elapsed() >= Duration::from_millis(300), "closed after {:?}", quiet_since.elapsed());
}

#[test]
fn a_sessions_silence_is_bounded_by_tunnel_of_its_route_before_client_idle_of_its_listener() {
    let config = r#"
        [listener.front]
        protocol = "tcp"
        bind = "@front"
        timeout = { client_idle = "300ms" }
        [[listener.front.route]]
        sni = "short.example"
        pool = "app"
        [[listener.front.route]]
        pool = "app"
        timeout = { tunnel = "1200ms" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off", passive = "off" }
        "#;
    let backend = ScriptedBackend::start();
    let weir = Setup::of(config).with("app", backend.address()).start();
    let mut client = weir.client("front");
    // No `ClientHello`: it asks for no name, and the second route takes it.
    client.sends("hello");
    let mut wire = backend.accepts();
    wire.receives_exactly("hello");
    std::thread::sleep(Duration::from_millis(700));
    wire.sends("still there");
    client.receives_exactly("still there");
    let quiet_since = Instant::now();
    client.receives_close();
    wire.receives_close();
    assert!(quiet_since.elapsed() >= Duration::from_millis(1100), "closed after {:?}", quiet_since.elapsed());
    weir.reaches("weir_ends_total", &[("reason", "tunnel_idle")], 1.0);
}

#[test]
fn a_backend_that_refuses_is_replaced_by_another() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(
        r#"
        [listener.front]
        protocol = "tcp"
        bind = "@front"
        pool = "app"
        [pool.app]
        backends = ["@dead", "@app"]
        balance = "first"
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("dead", free_address())
    .with("app", backend.address())
    .start();
    for _ in 0..10 {
        let mut client = weir.client("front");
        client.sends("hello");
        let mut wire = backend.accepts();
        wire.receives_exactly("hello");
    }
}

#[test]
fn a_lone_backend_that_refuses_gets_every_attempt_though_another_is_drained() {
    let drained = ScriptedBackend::start();
    let dead = free_address();
    let weir = Setup::of(
        r#"
        [log]
        access = "@dir/access.log"
        [listener.front]
        protocol = "tcp"
        bind = "@front"
        pool = "app"
        [pool.app]
        backends = ["@dead", "@drained"]
        retry = { attempts = 2 }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("dead", dead)
    .with("drained", drained.address())
    .start();
    weir.command(&["drain", "app", &drained.address().to_string()]).succeeded();
    if let Ok(mut client) = Wire::try_connect(weir.address("front")) {
        client.receives_close();
    }
    let line = weir.lines_of("access.log", 1).remove(0);
    assert!(line.contains(r#""retries":2,"#) && line.contains(r#""end":"connect_failed""#), "{line}");
    drained.has_nobody_waiting();
    let status = weir.command(&["status"]);
    let row = status.succeeded().lines().find(|row| row.contains(&dead.to_string())).expect("its row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        words[1..7],
        ["ready", "1", "0", "0", "0", "3"],
        "three attempts failed, each told once: {row}"
    );
}

#[test]
fn a_client_that_leaves_while_it_waits_in_line_gives_its_place_up() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(
        r#"
        [listener.front]
        protocol = "tcp"
        bind = "@front"
        pool = "app"
        [pool.app]
        backends = [{ address = "@app", max_connections = 1 }]
        queue = { max = 10, timeout = "60s" }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    let _first = weir.client("front");
    let _wire = backend.accepts();
    let depth = |expected: f64| {
        let what = format!("{expected} in line");
        until(&what, || (weir.metric("weir_queue_depth", &[("pool", "app")]) == expected).then_some(()));
    };
    for resets in [true, false] {
        let waiting = weir.client("front");
        depth(1.0);
        if resets {
            waiting.resets()
        } else {
            drop(waiting)
        }
        depth(0.0);
    }
    weir.reaches("weir_ends_total", &[("reason", "client_closed")], 2.0);
    backend.has_nobody_waiting();
}

#[test]
fn when_no_backend_accepts_the_client_is_closed_and_not_left_hanging() {
    let weir = relay(free_address(), r#"timeout = { connect = "500ms" }"#);
    // The end may even come before the client has noticed that it was connected.
    if let Ok(mut client) = Wire::try_connect(weir.address("front")) {
        let _ = client.tries_to_send("hello");
        client.receives_close();
    }
    weir.reaches("weir_connections_total", &[("listener", "front")], 1.0);
}

#[test]
fn a_thousand_short_sessions_leave_nothing_behind() {
    let backend = weir_tests::dialogue::Backend::saying("unused");
    let echo = weir_tests::dialogue::listen_at(free_address());
    let address = echo.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut stream in echo.incoming().flatten() {
            std::thread::spawn(move || {
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all);
                let _ = stream.write_all(&all);
            });
        }
    });
    let weir = relay(address, "");
    let before = weir.usage().descriptors;
    let front: SocketAddr = weir.address("front");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..250 {
                    let mut stream = TcpStream::connect(front).expect("connect");
                    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
                    let text = format!("{thread}/{number}");
                    stream.write_all(text.as_bytes()).expect("send");
                    stream.shutdown(std::net::Shutdown::Write).expect("half-close");
                    let mut back = String::new();
                    stream.read_to_string(&mut back).expect("read");
                    assert_eq!(back, text);
                }
            });
        }
    });
    weir.reaches("weir_connections_total", &[("listener", "front")], 1000.0);
    until("all descriptors to be given back", || (weir.usage().descriptors <= before + 1).then_some(()));
    drop(backend);
}

#[test]
fn a_stalled_connect_ends_at_its_timeout() {
    let backend = Unreachable::start();
    let weir = relay(backend.address(), r#"timeout = { connect = "300ms" }"#);
    let mut client = weir.client("front").with_patience(Duration::from_secs(9));
    let begun = Instant::now();
    match client.tries_to_receive_request() {
        Err(Broken::Ended | Broken::Reset) => {}
        other => panic!("expected the end, got {other:?}"),
    }
    assert!(begun.elapsed() >= Duration::from_millis(290), "given up after {:?}", begun.elapsed());
}
