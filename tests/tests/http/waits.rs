//! Whose turn it is, and whose time runs: the waits of an exchange are counted against whoever is waited for.

use std::io::Write as _;
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, NO_PROBES, ScriptedBackend, Setup, Wire, one_pool, until};

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn answering_after(time: Duration) -> Backend {
    Backend::serving(move |_, wire| {
        std::thread::sleep(time);
        wire.answers(200, &[], "ok");
        After::Keep
    })
}

#[test]
fn time_spent_in_the_queue_is_not_taken_from_the_backends() {
    let backend = answering_after(Duration::from_millis(400));
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        timeout = { backend = "1200ms" }
        [pool.app]
        backends = [{ address = "@app", max_connections = 1 }]
        queue = { max = 100, timeout = "60s" }
        health = { check = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    // The last of them waits for about two seconds before it is its turn.
    let mut clients: Vec<Wire> = (0..6).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends(GET);
    }
    for client in &mut clients {
        client.receives_status(200);
    }
    assert_eq!(weir.metric("weir_backend_failures_total", &[]), 0.0);
}

#[test]
fn a_client_that_sends_a_flood_of_requests_does_not_keep_another_from_its_turn() {
    let weir = Setup::of(
        r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        path = "/*"
        respond = { status = 200, body = "ok" }
        "#,
    )
    .start();
    const FLOOD: usize = 200_000;
    let mut flood = weir.client("web").with_patience(Duration::from_secs(120));
    let mut writer = flood.socket().try_clone().expect("a second handle");
    writer.set_write_timeout(None).expect("no bound: it is answered as fast as it is read");
    let sender = std::thread::spawn(move || {
        let block = GET.repeat(1000);
        for _ in 0..FLOOD / 1000 {
            writer.write_all(block.as_bytes()).expect("send");
        }
    });
    let reader = std::thread::spawn(move || {
        for _ in 0..FLOOD {
            flood.receives_status(200);
        }
    });
    // Each request takes one turn of the worker; if the flood were served thousands at a time, it would be
    // over long before.
    let mut other = weir.client("web");
    let mut served = 0;
    while !reader.is_finished() && served < 400 {
        other.sends(GET);
        other.receives_status(200);
        served += 1;
    }
    let is_first = !reader.is_finished();
    sender.join().expect("the sender");
    reader.join().expect("the reader");
    assert!(is_first, "the flood was over after {served} requests of the other client's");
}

#[test]
fn a_client_that_stalls_its_body_is_at_fault_even_when_the_answer_has_begun() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&one_pool(r#"timeout = { backend = "300ms", client_body = "1500ms" }"#, NO_PROBES))
        .with("app", backend.address())
        .start();
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nten bytes.");
    let mut wire = backend.accepts();
    wire.receives_request_head();
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
    client.receives_until("half");
    until("the session to be cut off", || client.has_ended().then_some(()));
    weir.reaches("weir_ends_total", &[("reason", "client_body_timeout")], 1.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[]), 0.0);
}

#[test]
fn draining_ends_an_exchange_whose_backend_is_silent() {
    for answer in ["", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"] {
        let backend = ScriptedBackend::start();
        let config = r#"
            [runtime]
            drain = "500ms"
            [listener.web]
            bind = "@web"
            pool = "app"
            timeout = { backend = "1h" }
            [listener.other]
            bind = "@other"
            pool = "app"
            [pool.app]
            backends = ["@app"]
            health = { check = "off" }
            "#;
        let mut weir = Setup::of(config).with("app", backend.address()).start();
        let mut client = weir.client("web");
        client.sends(GET);
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(answer);
        if !answer.is_empty() {
            client.receives_until("half");
        }
        let listener = config.find("[listener.web]").expect("it is there");
        let next = config.find("[listener.other]").expect("it is there");
        weir.reloads(&[&config[..listener], &config[next..]].concat());
        if answer.is_empty() {
            client.receives_status(503);
        } else {
            until("the response to be cut off", || client.has_ended().then_some(()));
        }
    }
}

#[test]
fn a_backend_that_says_it_is_at_work_is_given_time() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&one_pool(
        r#"timeout = { backend = "1s" }"#,
        r#"
        retry = { attempts = 0 }
        health = { check = "off" }
        "#,
    ))
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    client.sends(GET);
    let mut wire = backend.accepts();
    wire.receives_request();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(400));
        wire.sends("HTTP/1.1 102 Processing\r\n\r\n");
        assert_eq!(client.receives_head().status, 102);
    }
    wire.answers(200, &[], "at last");
    assert_eq!(client.receives_status(200).text(), "at last");
}

#[test]
fn an_early_refusal_says_that_the_connection_ends() {
    let backend = ScriptedBackend::start();
    let weir = super::plain_before(&backend);
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nbegun");
    let mut wire = backend.accepts();
    wire.receives_request_head();
    wire.sends("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    drop(wire);
    assert!(client.receives_status(413).closes());
}

#[test]
fn a_large_put_is_not_sent_on_a_connection_that_may_just_be_closing() {
    let backend = ScriptedBackend::start();
    let weir = super::plain_before(&backend);
    let mut client = weir.client("web");
    client.sends(GET);
    let mut first = backend.accepts();
    first.receives_request();
    first.answers(200, &[], "ok");
    client.receives_status(200);
    // Longer than what counts as fresh.
    std::thread::sleep(Duration::from_millis(1300));
    let body = "x".repeat(40_000);
    client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let mut second = backend.accepts();
    assert_eq!(second.receives_request().body.len(), body.len());
    second.answers(200, &[], "put");
    client.receives_status(200);
}

/// `min_body_rate` is checked after five seconds; seconds spent in the queue do not count for the client.
#[test]
fn time_spent_in_the_queue_is_not_taken_from_the_clients() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        limits = { min_body_rate = "100KiB/s" }
        [pool.app]
        backends = [{ address = "@app", max_connections = 1 }]
        queue = { max = 10, timeout = "60s" }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    let mut first = weir.client("web");
    first.sends(GET);
    let mut of_first = backend.accepts();
    of_first.receives_request();
    let mut second = weir.client("web");
    second.sends("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    std::thread::sleep(Duration::from_millis(5_500));
    of_first.answers(200, &[], "ok");
    first.receives_status(200);
    second.receives_exactly("HTTP/1.1 100 Continue\r\n\r\n");
    let mut of_second = backend.accepts_if_any().unwrap_or(of_first);
    of_second.receives_until("\r\n\r\n");
    // Each piece is handled when it arrives.
    for piece in ["hello", "world"] {
        second.sends(piece);
        of_second.receives_exactly(piece);
    }
    of_second.answers(200, &[], "ok");
    second.receives_status(200);
}

#[test]
fn time_that_a_body_takes_to_be_looked_at_is_not_taken_from_the_backends() {
    let backend = answering_after(Duration::from_millis(300));
    let weir = Setup::of(&one_pool(
        r#"
        sqli = "block"
        timeout = { backend = "1s" }
        "#,
        r#"
        retry = { attempts = 0 }
        health = { check = "off", passive = "off" }
        "#,
    ))
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    // The second request goes over the connection that the first one has opened.
    for _ in 0..2 {
        let kind = "application/x-www-form-urlencoded";
        client.sends(format!(
            "PUT / HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: 10\r\n\r\na=hel"
        ));
        std::thread::sleep(Duration::from_millis(1_500));
        client.sends("lowor");
        client.receives_status(200);
    }
    assert_eq!(backend.connections(), 1);
}
