//! A pool that fails as a whole is left alone for a while, and tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{
    After, Backend, Response, ScriptedBackend, Setup, Signal, Weir, until, until_within,
};

/// Answers 500 while `fails`, else 200.
fn failing(fails: &Arc<AtomicBool>) -> Backend {
    let fails = fails.clone();
    Backend::serving(move |request, wire| {
        let status = match (fails.load(Ordering::SeqCst), request.target.as_str()) {
            (_, "/missing") => 404,
            (true, _) => 500,
            (false, _) => 200,
        };
        wire.answers(status, &[], "text");
        After::Keep
    })
}

fn ask(weir: &Weir, path: &str) -> Response {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    client.receives_response()
}

fn before(backend: impl ToString, breaker: &str, more: &str) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [log]
        access = "@dir/access.log"
        [pool.app]
        backends = ["@app"]
        breaker = {breaker}
        retry = {{ attempts = 0 }}
        health = {{ check = "off", passive = "off" }}
        {more}
        "#
    );
    Setup::of(&config).with("app", backend).start()
}

#[test]
fn once_too_many_have_failed_the_rest_is_refused_and_no_backend_hears_of_it() {
    let backend = failing(&Arc::new(AtomicBool::new(true)));
    let weir = before(backend.address(), r#"{ errors = 0.5, of = 4, within = "1h", for = "1h" }"#, "");
    // What is not the backends' fault is no failure.
    let statuses: Vec<u16> =
        ["/missing", "/missing", "/", "/", "/", "/missing"].map(|path| ask(&weir, path).status).to_vec();
    assert_eq!(statuses, [404, 404, 500, 500, 503, 503]);
    let refused = ask(&weir, "/");
    let seconds: u64 = refused.fields.one("retry-after").and_then(|text| text.parse().ok()).expect("a count");
    assert!((3500..=3600).contains(&seconds), "{seconds}");
    assert_eq!(backend.requests().len(), 4);
    assert_eq!(weir.metric("weir_breaker_opened_total", &[("pool", "app")]), 1.0);
    assert_eq!(weir.metric("weir_breaker_open", &[("pool", "app")]), 1.0);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "breaker_open")], 3.0);
    let lines = weir.lines_of("access.log", 7);
    assert_eq!(lines.iter().filter(|line| line.contains(r#""end":"breaker_open""#)).count(), 3);
    let explained = weir.command(&["explain", "http", "GET", &format!("http://{}/", weir.address("web"))]);
    assert!(explained.succeeded().contains("open: refuses with 503 for"), "{explained:?}");
}

#[test]
fn an_upgrade_does_not_forget_that_it_is_open() {
    let backend = failing(&Arc::new(AtomicBool::new(true)));
    let weir = before(backend.address(), r#"{ of = 2, within = "1h", for = "1h" }"#, "");
    assert_eq!([(); 2].map(|()| ask(&weir, "/").status), [500, 500]);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(old)).then_some(()));
    assert_eq!(ask(&weir, "/").status, 503);
    assert_eq!((backend.served(), weir.metric("weir_breaker_open", &[("pool", "app")])), (2, 1.0));
}

#[test]
fn when_its_trials_go_well_it_closes_and_a_reload_does_not_forget_that_it_is_open() {
    let fails = Arc::new(AtomicBool::new(true));
    let backend = failing(&fails);
    let breaker = r#"{ of = 2, within = "1h", for = "1h", trials = 2 }"#;
    let mut weir = before(backend.address(), breaker, "");
    assert_eq!([(); 3].map(|()| ask(&weir, "/").status), [500, 500, 503]);
    let config = std::fs::read_to_string(weir.config_path()).expect("the config");
    weir.reloads(&config.replace("attempts = 0", "attempts = 1"));
    assert_eq!(ask(&weir, "/").status, 503);
    drop(weir);

    fails.store(true, Ordering::SeqCst);
    let weir = before(backend.address(), &breaker.replace(r#"for = "1h""#, r#"for = "100ms""#), "");
    assert_eq!([(); 2].map(|()| ask(&weir, "/").status), [500, 500]);
    fails.store(false, Ordering::SeqCst);
    until("the breaker to close", || {
        ask(&weir, "/");
        (weir.metric("weir_breaker_open", &[("pool", "app")]) == 0.0).then_some(())
    });
    assert_eq!(ask(&weir, "/").status, 200);
}

#[test]
fn a_fallback_pool_serves_while_it_is_open() {
    let (backend, other) = (failing(&Arc::new(AtomicBool::new(true))), Backend::saying("sorry"));
    let more = format!(
        "fallback_pool = \"other\"\n[pool.other]\nbackends = [\"{}\"]\nhealth = {{ check = \"off\" }}\n",
        other.address()
    );
    let weir = before(backend.address(), r#"{ of = 2, within = "1h", for = "1h" }"#, &more);
    assert_eq!([(); 2].map(|()| ask(&weir, "/").status), [500, 500]);
    for _ in 0..3 {
        assert_eq!(ask(&weir, "/").text(), "sorry");
    }
    assert_eq!(weir.metric("weir_fallbacks_total", &[("pool", "app")]), 3.0);
}

/// While its body dripped in, it was the trial that all others waited for.
#[test]
fn a_client_that_drips_its_body_keeps_nobody_out() {
    let fails = Arc::new(AtomicBool::new(true));
    let backend = failing(&fails);
    let weir = before(backend.address(), r#"{ of = 2, within = "1h", for = "100ms", trials = 1 }"#, "");
    assert_eq!([(); 2].map(|()| ask(&weir, "/").status), [500, 500]);
    fails.store(false, Ordering::SeqCst);
    let in_flight = || {
        let pool = weir.admin().reads("/v1/pools/app").json();
        pool["backends"][0]["in_flight"].as_u64().unwrap_or_default()
    };
    let _dripping = until("a trial", || {
        let mut client = weir.client("web");
        client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n1");
        let tried = || match in_flight() {
            0 => (client.looks() > 0).then_some(false),
            _ => Some(true),
        };
        until("a refusal or a trial", tried).then_some(client)
    });
    until("an answer", || (ask(&weir, "/").status == 200).then_some(()));
    assert_eq!(weir.metric("weir_breaker_open", &[("pool", "app")]), 0.0);
}

/// The client that leaves is not the pool's fault, and a trial that it had is another's.
#[test]
fn clients_that_leave_neither_open_it_nor_keep_its_trials() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), r#"{ of = 2, within = "1h", for = "100ms", trials = 1 }"#, "");
    for _ in 0..4 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        client.resets();
        wire.receives_close();
    }
    assert_eq!(weir.metric("weir_breaker_opened_total", &[("pool", "app")]), 0.0);
    let answers = |status| {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.answers(status, &[("connection", "close")], "");
        client.receives_status(status);
    };
    answers(500);
    answers(500);
    // The only trial is one whose client leaves.
    let (client, mut wire) = until("a trial", || {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let tried = until("a refusal or a trial", || match backend.accepts_if_any() {
            None => (client.looks() > 0).then_some(None),
            tried => Some(tried),
        });
        tried.map(|wire| (client, wire))
    });
    wire.receives_request();
    client.resets();
    wire.receives_close();
    answers(200);
    weir.reaches("weir_breaker_opened_total", &[("pool", "app")], 1.0);
    assert_eq!(weir.metric("weir_breaker_open", &[("pool", "app")]), 0.0);
}

/// The time for the whole request was shorter than the backend's, so that nobody was told that it hangs.
#[test]
fn a_backend_that_has_not_answered_when_the_request_was_over_has_failed_and_who_waits_in_line_has_not() {
    let backend = ScriptedBackend::start();
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = [{ address = "@app", max_connections = 1 }]
        breaker = { of = 2, within = "1h", for = "1h" }
        queue = { timeout = "10s" }
        timeout = { request_total = "300ms" }
        retry = { attempts = 0 }
        health = { check = "off", passive = "off" }
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let failed = || {
        let (pool, address) = (("pool", "app"), backend.address().to_string());
        weir.metric("weir_backend_requests_total", &[pool, ("backend", &address), ("code", "none")])
    };
    for round in 1..=2 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut hanging = backend.accepts();
        hanging.receives_request();
        // There is no place for it.
        let behind = ask(&weir, "/behind");
        assert_eq!((client.receives_response().status, behind.status), (504, 504));
        assert_eq!(failed(), f64::from(round));
    }
    assert_eq!(ask(&weir, "/").status, 503);
    assert_eq!(weir.metric("weir_breaker_opened_total", &[("pool", "app")]), 1.0);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "request_total_timeout")], 4.0);
}
