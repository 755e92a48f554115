//! Passive health: real traffic that fails takes a backend out for a while (threat H3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, Setup, Weir, Wire, free_address, until, until_within};

use super::{is_up, named, two_backends};

fn ask(weir: &Weir) -> u16 {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    client.receives_response().status
}

#[test]
fn a_backend_that_fails_often_is_ejected_and_returns_when_it_is_well() {
    let sick = Arc::new(AtomicBool::new(true));
    let told = sick.clone();
    let flapping = Backend::serving(move |_, wire| {
        if told.load(Ordering::SeqCst) {
            return After::Reset;
        }
        wire.answers(200, &[], "a");
        After::Keep
    });
    let well = named("b");
    let more = r#"health = { check = "off", passive = { errors = 3, within = "10s", eject = "3s", max_ejected = 0.5 } }"#;
    let weir = Setup::of(&two_backends(more)).with("a", flapping.address()).with("b", well.address()).start();
    let begun = Instant::now();
    while is_up(&weir, flapping.address()) {
        assert!(begun.elapsed() < Duration::from_secs(8), "never ejected\n{}", weir.story());
        // Retries hide these failures from the client.
        assert_eq!(ask(&weir), 200);
    }
    let seen = flapping.served();
    assert!((3..=6).contains(&seen), "three failures eject; it got {seen} requests");
    let ejected = Instant::now();
    while ejected.elapsed() < Duration::from_secs(1) {
        assert_eq!(ask(&weir), 200);
        // An attempt that was in progress at the third failure may still arrive.
        assert!(flapping.served() <= seen + 1, "an ejected backend still gets requests");
    }
    assert_eq!(
        weir.metric("weir_backend_ejections_total", &[("backend", &flapping.address().to_string())]),
        1.0
    );
    sick.store(false, Ordering::SeqCst);
    until("it to return", || {
        ask(&weir);
        (is_up(&weir, flapping.address()) && flapping.served() > seen + 3).then_some(())
    });
    let mut events = Wire::connect(weir.admin().address());
    events.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 0\r\n\r\n");
    events.receives_until("ejected");
    events.receives_until("readmitted");
}

#[test]
fn never_more_than_the_allowed_share_is_ejected() {
    // Both fail: one of the two may be ejected but the other must stay, or a mistake of clients could empty
    // the pool.
    let fail = || Backend::serving(|_, _| After::Reset);
    let (a, b) = (fail(), fail());
    let more = r#"health = { check = "off", passive = { errors = 2, within = "10s", eject = "30s", max_ejected = 0.5 } }"#;
    let weir = Setup::of(&two_backends(more)).with("a", a.address()).with("b", b.address()).start();
    for _ in 0..40 {
        assert!(matches!(ask(&weir), 502 | 503));
    }
    let up = [a.address(), b.address()].into_iter().filter(|address| is_up(&weir, address)).count();
    assert_eq!(up, 1, "{}", weir.story());
}

#[test]
fn a_lone_primary_that_fails_gives_way_to_its_backup() {
    let primary = Backend::serving(|_, _| After::Reset);
    let backup = named("backup");
    let more = r#"retry = { attempts = 0 }
        health = { check = "off", passive = { errors = 3, within = "10s", eject = "30s" } }"#;
    let config = two_backends(more).replace("\"@b\"", "{ address = \"@b\", backup = true }");
    let weir = Setup::of(&config).with("a", primary.address()).with("b", backup.address()).start();
    let answers: Vec<u16> = (0..10).map(|_| ask(&weir)).collect();
    assert_eq!(answers[..3], [502; 3], "{answers:?}");
    // The requests right after the third failure may be sent before every worker knows.
    assert_eq!(answers[5..], [200; 5], "{answers:?}");
    assert!(!is_up(&weir, primary.address()));
}

#[test]
fn a_backend_that_answers_503_is_ejected_and_that_is_named() {
    let busy = Backend::serving(|_, wire| {
        wire.answers(503, &[], "busy");
        After::Keep
    });
    let well = named("b");
    let more = r#"health = { check = "off", passive = { errors = 3, within = "10s", eject = "30s" } }"#;
    let weir = Setup::of(&two_backends(more)).with("a", busy.address()).with("b", well.address()).start();
    while is_up(&weir, busy.address()) {
        ask(&weir);
    }
    let row = until("the reason in the status", || {
        let status = weir.command(&["status"]);
        let row =
            status.succeeded().lines().find(|row| row.contains(&busy.address().to_string()))?.to_owned();
        row.contains("answered 503").then_some(row)
    });
    assert!(row.contains("ejected"), "{row}");
    assert!(weir.stderr().contains("answered 503"), "{}", weir.story());
}

#[test]
fn answers_of_4xx_never_eject() {
    let picky = || {
        Backend::serving(|_, wire| {
            wire.answers(404, &[], "");
            After::Keep
        })
    };
    let (picky, other) = (picky(), picky());
    let more = r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s" } }"#;
    let weir = Setup::of(&two_backends(more)).with("a", picky.address()).with("b", other.address()).start();
    for _ in 0..30 {
        assert_eq!(ask(&weir), 404);
    }
    assert!(is_up(&weir, picky.address()));
}

#[test]
fn a_client_that_goes_away_is_not_the_backends_failure() {
    let slow = Backend::serving(|_, wire| {
        std::thread::sleep(Duration::from_millis(30));
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        After::Keep
    });
    let more = r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 } }"#;
    let weir =
        Setup::of(&two_backends(more).replace("\"@a\", \"@b\"", "\"@a\"")).with("a", slow.address()).start();
    for _ in 0..20 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.resets();
    }
    until("the answers to be over", || (slow.busy() == 0).then_some(()));
    assert_eq!(ask(&weir), 200);
    assert!(is_up(&weir, slow.address()));
}

/// Their length depends on the request, and clients must not be able to have backends ejected.
#[test]
fn trailers_are_as_long_as_a_head_may_be_and_longer_ones_eject_nobody() {
    let backend = Backend::serving(|request, wire| {
        let length = request.target.trim_start_matches('/').parse().unwrap_or(0);
        let trailer = "y".repeat(length);
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-details: {trailer}\r\n\r\n"
        ));
        After::Close
    });
    let more = r#"health = { check = "off", passive = { errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 } }"#;
    let weir = Setup::of(&two_backends(more).replace("\"@a\", \"@b\"", "\"@a\""))
        .with("a", backend.address())
        .start();
    let get = |length: usize| {
        let mut client = weir.client("web");
        client.sends(format!("GET /{length} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
        String::from_utf8(client.receives_to_the_end()).expect("text")
    };
    for length in [10, 8000, 8200, 60_000] {
        let answer = get(length);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.ends_with(&format!("x-details: {}\r\n\r\n", "y".repeat(length))),
            "{length}: {answer}"
        );
    }
    for _ in 0..5 {
        let answer = get(70_000);
        assert!(
            !answer.contains("0\r\n\r\n") && !answer.contains("x-details"),
            "it is not complete: {answer}"
        );
    }
    assert!(get(10).starts_with("HTTP/1.1 200") && is_up(&weir, backend.address()));
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

#[test]
fn with_passive_off_nothing_is_ejected() {
    let dead = free_address();
    let well = named("b");
    let weir = Setup::of(&two_backends(r#"health = { check = "off", passive = "off" }"#))
        .with("a", dead)
        .with("b", well.address())
        .start();
    for _ in 0..30 {
        assert_eq!(ask(&weir), 200, "the retry hides it");
    }
    assert!(is_up(&weir, dead));
}

#[test]
fn what_statuses_are_failures_can_be_said() {
    let sick = Backend::serving(|request, wire| {
        wire.answers(if request.target == "/busy" { 503 } else { 500 }, &[], "");
        After::Keep
    });
    let well = named("b");
    let more = r#"health = { check = "off", passive = { errors = 3, within = "10s", eject = "30s", statuses = ["429", "500-501"] } }"#;
    let weir = Setup::of(&two_backends(more)).with("a", sick.address()).with("b", well.address()).start();
    let ask = |path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
        client.receives_response().status
    };
    for _ in 0..20 {
        ask("/busy");
    }
    assert!(is_up(&weir, sick.address()), "503 is none of those");
    until("500 to eject it", || {
        ask("/");
        (!is_up(&weir, sick.address())).then_some(())
    });
    until("the log to say so", || weir.stderr().contains("answered 500").then_some(()));
}

/// Every third answer of this backend is a failure.
fn odd() -> Backend {
    let count = std::sync::atomic::AtomicUsize::new(0);
    Backend::serving(move |_, wire| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        wire.answers(if number.is_multiple_of(3) { 503 } else { 200 }, &[], "");
        After::Keep
    })
}

/// Asks again and again until this backend gets no more requests.
fn asks_until_out(weir: &Weir, backend: &Backend) {
    let mut client = weir.client("web");
    until_within(Duration::from_secs(60), "the odd one to be ejected", || {
        for _ in 0..50 {
            client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            client.receives_response();
        }
        (!is_up(weir, backend.address())).then_some(())
    });
}

#[test]
fn a_pool_of_few_is_compared_where_it_says_so() {
    let (odd, one, two) = (odd(), named("well"), named("well"));
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@odd", "@one", "@two"]
        [pool.app.health]
        check = "off"
        passive = { errors = 1000000, eject = "30s", success_rate = { interval = "1s", min_requests = 5, min_backends = 3, factor = 1.0 } }
        "#;
    let setup = Setup::of(config).with("odd", odd.address()).with("one", one.address());
    let weir = setup.with("two", two.address()).start();
    asks_until_out(&weir, &odd);
    assert!(is_up(&weir, one.address()) && is_up(&weir, two.address()));
}

#[test]
fn a_backend_that_fails_more_often_than_the_others_is_ejected_by_comparison() {
    // Never enough failures for a count of a million.
    let odd = odd();
    let others: Vec<Backend> = (0..5).map(|_| named("well")).collect();
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@odd", "@b0", "@b1", "@b2", "@b3", "@b4"]
        [pool.app.health]
        check = "off"
        passive = { errors = 1000000, eject = "30s", success_rate = { interval = "1s", min_requests = 5 } }
        "#;
    let mut setup = Setup::of(config).with("odd", odd.address());
    for (number, other) in others.iter().enumerate() {
        setup = setup.with(&format!("b{number}"), other.address());
    }
    let weir = setup.start();
    asks_until_out(&weir, &odd);
    let address = odd.address().to_string();
    assert_eq!(weir.metric("weir_backend_outliers_total", &[("backend", &address)]), 1.0);
    let status = weir.admin().reads("/v1/pools/app").json();
    let backend = &status["backends"][0];
    assert_eq!(backend["state"], "ejected");
    assert!(backend["reason"].as_str().is_some_and(|why| why.contains("the pool's mean is")), "{status}");
    assert!(others.iter().all(|other| is_up(&weir, other.address())));
    let mut events = Wire::connect(weir.admin().address());
    events.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 0\r\n\r\n");
    events.receives_until("the pool's mean is");
}
