//! Many clients and one fetch (threat E5).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, until};

use super::{KEEPS, before, get, status};

#[test]
fn a_thousand_clients_for_one_cold_object_cause_one_request() {
    let backend = Backend::serving(|_, wire| {
        std::thread::sleep(Duration::from_millis(300));
        wire.answers(200, &[("cache-control", "max-age=60")], "the one");
        After::Keep
    });
    let weir = before(&backend);
    let mut clients: Vec<_> = (0..1000).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends("GET /cold HTTP/1.1\r\nhost: a.example\r\n\r\n");
    }
    for client in &mut clients {
        let response = client.receives_response();
        assert_eq!((response.status, response.text().as_str()), (200, "the one"));
    }
    assert_eq!(backend.served(), 1);
    let of = |result| weir.metric("weir_cache_requests_total", &[("listener", "web"), ("result", result)]);
    // An exchange is counted after its last byte has left.
    until("all are counted", || (of("miss") + of("collapsed") + of("hit") >= 1000.0).then_some(()));
    assert_eq!(of("miss"), 1.0);
}

#[test]
fn a_client_that_leaves_does_not_end_the_fetch() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    let mut first = weir.client("web");
    first.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let mut second = weir.client("web");
    second.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    first.resets();
    wire.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\nfirst");
    let head = second.receives_head();
    assert_eq!(head.status, 200);
    second.receives_exactly("first");
    wire.sends("-last");
    second.receives_exactly("-last");
    backend.has_nobody_waiting();
    until("the object is kept", || status(&get(&weir, "/a", "")).starts_with("weir; hit").then_some(()));
}

#[test]
fn who_waits_gets_the_content_while_it_comes() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    let mut clients: Vec<_> = (0..3).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    }
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends(
        "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n",
    );
    for client in &mut clients {
        assert_eq!(client.receives_head().status, 200);
        client.receives_exactly("3\r\none\r\n");
    }
    wire.sends("3\r\ntwo\r\n0\r\n\r\n");
    for client in &mut clients {
        client.receives_exactly("3\r\ntwo\r\n0\r\n\r\n");
    }
    let kept = get(&weir, "/a", "");
    assert_eq!((kept.text().as_str(), kept.fields.one("content-length")), ("onetwo", Some("6")));
}

#[test]
fn a_slow_fetch_holds_nobody_up_for_longer_than_collapse_timeout() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = asked.clone();
    let backend = Backend::serving(move |_, wire| {
        if counting.fetch_add(1, Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(2900));
        }
        wire.answers(200, &[("cache-control", "max-age=60")], "here");
        After::Keep
    });
    let weir = Setup::of(&KEEPS.replace("\"2s\"", "\"300ms\"")).with("app", backend.address()).start();
    let mut first = weir.client("web");
    first.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    until("the first is being fetched", || (asked.load(Ordering::SeqCst) == 1).then_some(()));
    let begun = Instant::now();
    let second = get(&weir, "/a", "");
    assert_eq!(second.text(), "here");
    assert!(begun.elapsed() < Duration::from_millis(2000), "waited {:?}", begun.elapsed());
    assert!(status(&second).contains("detail=collapse-timeout"), "{}", status(&second));
    assert_eq!(first.receives_response().text(), "here");
}

#[test]
fn what_is_not_to_be_kept_is_everybodys_own() {
    let backend = Backend::serving(|request, wire| {
        std::thread::sleep(Duration::from_millis(100));
        let mine = request.fields.one("x-me").unwrap_or_default().to_owned();
        wire.answers(200, &[("cache-control", "private")], mine);
        After::Keep
    });
    let weir = before(&backend);
    let mut clients: Vec<_> = (0..20).map(|_| weir.client("web")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.sends(format!("GET /me HTTP/1.1\r\nhost: a.example\r\nx-me: {number}\r\n\r\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.receives_response().text(), number.to_string());
    }
    assert_eq!(backend.served(), 20);
    assert!(
        status(&get(&weir, "/me", "x-me: 7\r\n")).contains("hit-for-miss"),
        "they no longer wait for each other"
    );
}

#[test]
fn what_proves_too_large_is_passed_on_and_not_kept() {
    let content = "0123456789abcdef".repeat(3 << 16);
    let sent = content.clone();
    let backend = Backend::serving(move |request, wire| {
        if request.target == "/chunked" {
            wire.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n");
            for piece in sent.as_bytes().chunks(10_000) {
                wire.sends(format!("{:x}\r\n", piece.len()));
                wire.sends(piece);
                wire.sends("\r\n");
            }
            wire.sends("0\r\n\r\n");
        } else {
            wire.answers(200, &[("cache-control", "max-age=60")], &sent);
        }
        After::Keep
    });
    let weir = before(&backend);
    for path in ["/known", "/chunked"] {
        for _ in 0..2 {
            let response = get(&weir, path, "");
            assert!(response.text() == content, "{path}: {} bytes", response.body.len());
        }
    }
    assert_eq!(backend.served(), 4);
    assert_eq!(weir.metric("weir_cache_objects", &[]), 0.0);
}

#[test]
fn a_slow_reader_holds_up_neither_the_fetch_nor_the_others() {
    let content = "0123456789abcdef".repeat(1 << 15);
    let sent = content.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.answers(200, &[("cache-control", "max-age=60")], &sent);
        After::Keep
    });
    let weir = before(&backend);
    let mut slow = weir.client("web");
    slow.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    until("it is kept though nobody reads it", || {
        let response = get(&weir, "/a", "");
        assert!(response.text() == content);
        status(&response).starts_with("weir; hit").then_some(())
    });
    assert!(slow.receives_response().text() == content);
    assert_eq!(backend.served(), 1);
}

#[test]
fn what_is_kept_and_gathered_stays_within_its_memory() {
    let backend = Backend::serving(|request, wire| {
        let body = request.target.repeat(100_000 / request.target.len());
        wire.answers(200, &[("cache-control", "max-age=60")], body);
        After::Keep
    });
    let config = format!("[cache]\nmemory = \"4MiB\"\n{KEEPS}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = weir.client("web");
    for number in 0..200 {
        client.sends(format!("GET /{number:03} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        assert_eq!(client.receives_response().status, 200);
    }
    assert!(weir.metric("weir_cache_bytes", &[]) <= 4_194_304.0);
    assert!(weir.metric("weir_cache_objects", &[]) >= 10.0);
    assert!(weir.metric("weir_cache_evictions_total", &[]) >= 100.0);
}
