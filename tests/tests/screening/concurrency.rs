//! Limits of requests under way: counted in with the head, counted out however it ends.

use std::net::SocketAddr;

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Sets, Setup, Weir, Wire, until};

use super::{ask, rejected};

fn before(backend: SocketAddr, limit: &str) -> Weir {
    patient(backend, limit, "500ms")
}

fn patient(backend: SocketAddr, limit: &str, timeout: &str) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        timeout = {{ backend = "{timeout}" }}
        concurrency_limit = {limit}
        [[listener.web.route]]
        path = "/own"
        respond = {{ status = 200, body = "own" }}
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off", passive = "off" }}
        retry = {{ attempts = 0 }}
        "#
    );
    Setup::of(&config).with("app", backend).start()
}

fn begins(weir: &Weir) -> Wire {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client
}

const ONE: &str = r#"{ max = 1, key = "client_ip" }"#;

#[test]
fn the_second_is_told_429_while_the_first_is_under_way_and_served_when_it_is_done() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), ONE);
    let mut first = begins(&weir);
    let mut behind = backend.accepts();
    behind.receives_request();
    let refused = ask(&weir, "GET", "/", "");
    assert_eq!((refused.status, refused.fields.one("retry-after")), (429, Some("1")));
    assert_eq!(refused.text(), "429 Too Many Requests concurrency_limited\n");
    assert_eq!(ask(&weir, "GET", "/own", "").status, 429, "it is a limit of the whole listener");
    behind.answers(200, &[], "done");
    first.receives_status(200);
    assert_eq!(ask(&weir, "GET", "/own", "").status, 200);
    assert_eq!(rejected(&weir, "concurrency_limited"), 2.0);
}

/// Each comes over a connection of its own, which another worker may serve before the one that answered has
/// its next turn.
#[test]
fn who_asks_one_after_the_other_never_finds_its_own_place_taken() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], "well");
        After::Keep
    });
    let weir = before(backend.address(), ONE);
    for number in 0..500 {
        for path in ["/own", "/"] {
            assert_eq!(ask(&weir, "GET", path, "").status, 200, "{number} {path}");
        }
    }
    assert_eq!(rejected(&weir, "concurrency_limited"), 0.0);
}

/// However a request ends, the next one finds its place.
#[test]
fn a_place_is_given_back_whatever_becomes_of_the_request() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), ONE);
    let free = |how: &str| {
        until(&format!("a place after {how}"), || {
            (ask(&weir, "GET", "/own", "").status == 200).then_some(())
        });
    };
    let client = begins(&weir);
    backend.accepts().receives_request();
    client.resets();
    free("the client reset");
    let mut client = begins(&weir);
    backend.accepts().resets();
    client.receives_status(502);
    free("the backend reset");
    let mut client = begins(&weir);
    let silent = backend.accepts();
    client.receives_status(504);
    drop(silent);
    free("a timeout");
    let mut client = begins(&weir);
    let mut behind = backend.accepts();
    behind.receives_request();
    behind.sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort");
    drop(behind);
    client.receives_to_the_end();
    free("a cut answer");
    let mut client = begins(&weir);
    let mut behind = backend.accepts();
    behind.receives_request();
    behind.sends("not HTTP at all\r\n\r\n");
    client.receives_status(502);
    free("a bad answer");
}

#[test]
fn a_tunnel_holds_its_place_to_its_end() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), ONE);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    let mut behind = backend.accepts();
    behind.receives_request();
    behind.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    client.receives_until("\r\n\r\n");
    behind.sends("x");
    client.receives_exactly("x");
    assert_eq!(ask(&weir, "GET", "/own", "").status, 429);
    drop((client, behind));
    until("the tunnel's end", || (ask(&weir, "GET", "/own", "").status == 200).then_some(()));
}

#[test]
fn at_the_origin_what_is_answered_by_the_config_needs_no_place() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), r#"{ max = 1, key = "listener", at = "origin", status = 503 }"#);
    let _first = begins(&weir);
    let mut behind = backend.accepts();
    behind.receives_request();
    assert_eq!(ask(&weir, "GET", "/own", "").status, 200);
    assert_eq!(ask(&weir, "GET", "/", "").status, 503);
    behind.answers(200, &[], "done");
}

/// Four at once, and each takes 20 ms; what comes beside waits.
fn of_four_workers() -> Backend {
    let places = std::sync::Arc::new((std::sync::Mutex::new(4), std::sync::Condvar::new()));
    Backend::serving(move |_, wire| {
        let (free, freed) = &*places;
        let mut free = freed.wait_while(free.lock().unwrap(), |free| *free == 0).unwrap();
        *free -= 1;
        drop(free);
        std::thread::sleep(std::time::Duration::from_millis(20));
        *places.0.lock().unwrap() += 1;
        freed.notify_one();
        wire.answers(200, &[], "done");
        After::Keep
    })
}

#[test]
fn an_adaptive_limit_finds_what_four_workers_do_at_once_and_holds_a_crowd_to_it() {
    let backend = of_four_workers();
    let limit = r#"{ max = 1000, key = "listener", status = 503, adaptive = true }"#;
    let weir = patient(backend.address(), limit, "30s");
    let limit = || weir.metric("weir_adaptive_limit_requests", &[("listener", "web"), ("route", "")]);
    let unloaded = || weir.metric("weir_adaptive_limit_unloaded_seconds", &[("listener", "web")]);
    assert_eq!((limit(), unloaded()), (1000.0, 0.0));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let mut client = weir.client("web");
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
                    let answer = client.receives_response();
                    assert!(matches!(answer.status, 200 | 503), "{answer:?}");
                    if answer.status == 503 {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                }
            });
        }
        let _end = Sets(&is_over);
        // Sixty at four workers wait for 15 times as long as the work takes.
        until("the limit to be found", || (limit() < 30.0 && unloaded() < 0.06).then_some(()));
    });
    assert!(rejected(&weir, "concurrency_limited") > 0.0);
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("adaptive from 3 to 1000: an answer takes "), "{explained}");
}

/// How long a client takes to send says nothing of the service.
#[test]
fn an_adaptive_limit_counts_no_time_in_which_clients_send() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[], "done");
        After::Keep
    });
    let limit = r#"{ max = 1000, key = "listener", status = 503, adaptive = true }"#;
    let weir = patient(backend.address(), limit, "30s");
    let pause = std::time::Duration::from_millis(300);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = weir.client("web");
                for _ in 0..6 {
                    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na");
                    std::thread::sleep(pause);
                    client.sends("b");
                    client.receives_status(200);
                }
            });
        }
    });
    let unloaded = weir.metric("weir_adaptive_limit_unloaded_seconds", &[("listener", "web")]);
    assert!(unloaded > 0.0 && unloaded < pause.as_secs_f64() / 2.0, "{unloaded}");
}
