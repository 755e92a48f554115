//! Many clients and one fetch (threat E5).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, until};

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
    // An exchange is counted after its last byte was sent.
    until("all are counted", || (of("miss") + of("collapsed") + of("hit") >= 1000.0).then_some(()));
    assert_eq!(of("miss"), 1.0);
}

/// Two clients that ask for the same, and the connection on which the backend has received the request of the
/// first.
fn two_ask(weir: &Weir, backend: &ScriptedBackend) -> (Wire, Wire, Wire) {
    let mut first = weir.client("web");
    first.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let mut second = weir.client("web");
    second.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    (first, second, wire)
}

#[test]
fn a_client_that_leaves_does_not_end_the_fetch() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    let (first, mut second, mut wire) = two_ask(&weir, &backend);
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

/// `cache-status` said so of responses that broke off afterwards or were purged while they arrived.
#[test]
fn stored_is_said_of_nothing_that_is_still_to_come() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    for ends in [false, true] {
        let mut client = weir.client("web");
        client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\nfirst");
        let head = client.receives_head();
        assert_eq!(head.fields.one("cache-status"), Some("weir; fwd=uri-miss; fwd-status=200"));
        client.receives_exactly("first");
        if ends {
            wire.sends("-last");
            client.receives_exactly("-last");
        } else {
            drop(wire);
            client.receives_close();
        }
    }
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
fn a_stream_that_is_not_kept_ends_with_its_client_though_it_is_silent() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&KEEPS.replace("backend = \"3s\"", "backend = \"60s\""))
        .with("app", backend.address())
        .start();
    let mut client = weir.client("web");
    client.sends("GET /events HTTP/1.1\r\nhost: a.example\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends(
        "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n",
    );
    client.receives_head();
    client.receives_exactly("5\r\nevent\r\n");
    client.resets();
    until("the backend is let go", || wire.has_ended().then_some(()));
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
    // More than the sockets between Weir and the slow one take.
    let content = "0123456789abcdef".repeat(12 << 16);
    let sent = content.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.answers(200, &[("cache-control", "max-age=60")], &sent);
        After::Keep
    });
    let config = KEEPS.replace("1MiB", "16MiB");
    let weir = Setup::of(&config).with("app", backend.address()).start();
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

#[test]
fn early_hints_reach_who_asked_first() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    let (mut first, mut second, mut wire) = two_ask(&weir, &backend);
    for number in 1..=2 {
        wire.sends(format!("HTTP/1.1 103 Early Hints\r\nlink: </{number}.css>; rel=preload\r\n\r\n"));
        let hint = first.receives_head();
        let link = format!("</{number}.css>; rel=preload");
        assert_eq!((hint.status, hint.fields.one("link")), (103, Some(link.as_str())));
        assert_eq!(hint.fields.one("cache-status"), None);
    }
    wire.answers(200, &[("cache-control", "max-age=60")], "whole");
    for client in [&mut first, &mut second] {
        let response = client.receives_response();
        assert_eq!((response.status, response.text().as_str()), (200, "whole"));
    }
    backend.has_nobody_waiting();
}

#[test]
fn trailers_reach_those_who_wait_and_are_not_kept() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    for (path, life) in [("/kept", "max-age=60"), ("/not", "no-store")] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ncache-control: {life}\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
             5\r\nwhole\r\n0\r\nx-sum: 7\r\ncontent-length: 9\r\n\r\n"
        ));
        assert_eq!(client.receives_head().fields.one("transfer-encoding"), Some("chunked"));
        client.receives_exactly("5\r\nwhole\r\n0\r\nx-sum: 7\r\n\r\n");
        wire.resets();
    }
    let kept = get(&weir, "/kept", "");
    assert_eq!((kept.text().as_str(), kept.fields.one("content-length")), ("whole", Some("5")));
    assert_eq!((kept.fields.one("trailer"), kept.fields.one("x-sum")), (None, None));
}

/// RFC 9111 §3.3.
#[test]
fn what_breaks_off_is_neither_kept_nor_given_for_whole() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    for framing in ["content-length: 100", "transfer-encoding: chunked"] {
        for _ in 0..2 {
            let mut clients = [weir.client("web"), weir.client("web")];
            for client in &mut clients {
                client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
            }
            let mut wire = backend.accepts();
            wire.receives_request();
            wire.sends(format!(
                "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n{framing}\r\n\r\n5\r\nhello\r\n"
            ));
            for client in &mut clients {
                assert_eq!(client.receives_head().status, 200);
            }
            drop(wire);
            for client in &mut clients {
                let rest = client.tries_to_receive_response("GET");
                assert!(rest.is_err(), "{framing}: {rest:?}");
            }
        }
        // A client that waits for the whole object to get a part of it has received nothing yet, so it can
        // get an error.
        let mut part = weir.client("web");
        part.sends("GET /a HTTP/1.1\r\nhost: a.example\r\nrange: bytes=0-1\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n{framing}\r\n\r\n5\r\nhello\r\n"
        ));
        drop(wire);
        assert_eq!(part.receives_response().status, 502);
    }
    assert_eq!(weir.metric("weir_cache_objects", &[]), 0.0);
}

/// Resident memory of Weir, bytes.
fn resident(weir: &Weir) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its size");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

/// Threat E5: each of them would hold an object that was evicted for the next.
#[test]
fn slow_readers_of_many_objects_hold_no_more_than_there_is_room_for() {
    const LENGTH: usize = 12 << 20;
    let pieces = Arc::new(AtomicUsize::new(0));
    let sent = pieces.clone();
    let backend = Backend::serving(move |_, wire| {
        // A slow reader may hold this up.
        let _ = wire.tries_to_send(format!(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: {LENGTH}\r\n\r\n"
        ));
        for piece in vec![b'x'; LENGTH].chunks(64 << 10) {
            let _ = wire.tries_to_send(piece);
            pieces.fetch_add(1, Ordering::Relaxed);
        }
        After::Keep
    });
    let config = format!("[cache]\nmemory = \"64MiB\"\n{}", KEEPS.replace("1MiB", "16MiB"));
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut slow = Vec::new();
    for number in 0..36 {
        let mut client = weir.client("web");
        client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        assert_eq!(client.receives_head().status, 200);
        slow.push(client);
        // Until it has arrived completely, or its reader holds it up: no more than two may be in progress at
        // once.
        let mut last = (Instant::now(), 0);
        while backend.busy() > 0 && last.0.elapsed() < Duration::from_secs(1) {
            let now = sent.load(Ordering::Relaxed);
            if now != last.1 {
                last = (Instant::now(), now);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let bytes = |name| weir.metric(name, &[]) as u64 >> 20;
    let (kept, lingering) = (bytes("weir_cache_bytes"), bytes("weir_cache_lingering_bytes"));
    let resident = resident(&weir) >> 20;
    println!("{resident} MiB resident, {kept} MiB kept, {lingering} MiB that gave way");
    assert!(kept <= 64, "{kept} MiB");
    // A quarter of the budget, plus what was in progress when that was used up: no more than two objects.
    assert!(lingering <= 16 + 24, "{lingering} MiB");
    // Includes the process itself and what its allocator has not returned yet. All objects would be 432 MiB.
    assert!(resident < 200, "{resident} MiB");
    // When they have gone, there is room again.
    drop(slow);
    until("it is kept again", || {
        get(&weir, "/again", "");
        status(&get(&weir, "/again", "")).starts_with("weir; hit").then_some(())
    });
}
