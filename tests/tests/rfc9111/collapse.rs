//! Fetches that fail, or bring what is not to be kept (threat E5); `cache/fill.rs` has those that go well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{CONFIG, Site, by_number, ok, site, status_of};
use weir_tests::dialogue::{
    After, Backend, PATIENCE, Request, Response, ScriptedBackend, Setup, Weir, Wire, until,
};

/// Weir before an origin that the test plays itself.
fn before(origin: &ScriptedBackend, rules: &str) -> Weir {
    Setup::of(&CONFIG.replace("RULES", rules)).with("app", origin.address()).start()
}

const ASK: &str = "GET /page HTTP/1.1\r\nhost: a.example\r\n\r\n";

/// Threat E5.
#[test]
fn a_fetch_that_fails_does_not_take_its_waiters_along_for_ever() {
    let origin = ScriptedBackend::start();
    let weir = before(&origin, "");
    let mut clients = [weir.client("web"), weir.client("web")];
    clients[0].sends(ASK);
    let mut fetch = origin.accepts();
    fetch.receives_request();
    clients[1].sends(ASK);
    fetch.resets();
    // The waiter may share the failure or begin anew; it gets an answer either way.
    let retried = std::thread::scope(|scope| {
        let answers = clients.each_mut().map(|client| scope.spawn(move || client.receives_response().status));
        let begun = Instant::now();
        let mut retried = 0;
        while answers.iter().any(|answer| !answer.is_finished()) && begun.elapsed() < PATIENCE {
            if let Some(mut again) = origin.accepts_if_any() {
                again.receives_request();
                again.answers(200, &[("cache-control", "max-age=60")], "again");
                retried += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let statuses = answers.map(|answer| answer.join().expect("an answer"));
        assert!(statuses.iter().all(|status| matches!(status, 200 | 502)), "{statuses:?}");
        retried
    });
    assert!(retried <= 2);
}

#[test]
fn what_turns_out_not_to_be_kept_is_fetched_for_each_client() {
    let site: Site = site("", |_, before| ok("cache-control: private, max-age=60", before.to_string()));
    let bodies = std::thread::scope(|scope| {
        let answers: Vec<_> = (0..8).map(|_| scope.spawn(|| site.get("/", &[]).text())).collect();
        let mut bodies: Vec<String> =
            answers.into_iter().map(|answer| answer.join().expect("an answer")).collect();
        bodies.sort();
        bodies
    });
    let expected: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    assert_eq!(bodies, expected);
}

/// Weir before an origin that takes its time for `/page`, and a client that asks for it with these field
/// lines while the origin is busy with the same for one that came with others. What both get.
fn who_waits_with_another(
    origin: impl Fn(&Request, usize, &mut Wire) + Send + Sync + 'static,
    (rules, pool): (&str, &str),
    lines: [&str; 2],
) -> ([Response; 2], Backend) {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    let backend = Backend::serving(move |request, wire| {
        let before = counting.fetch_add(1, Ordering::SeqCst);
        origin(request, before, wire);
        After::Keep
    });
    let config = CONFIG.replace("RULES", rules) + pool;
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let ask = |lines: &str| format!("GET /page HTTP/1.1\r\nhost: a.example\r\n{lines}\r\n");
    // What is out of date from the first moment on is there.
    let mut early = weir.client("web");
    early.sends(ask(""));
    early.receives_response();
    let begun = count.load(Ordering::SeqCst);
    let mut clients = [weir.client("web"), weir.client("web")];
    clients[0].sends(ask(lines[0]));
    until("the origin is busy with the first", || (count.load(Ordering::SeqCst) > begun).then_some(()));
    clients[1].sends(ask(lines[1]));
    (clients.each_mut().map(Wire::receives_response), backend)
}

const SLOW: Duration = Duration::from_millis(400);

#[test]
fn who_waits_for_another_variant_gets_his_own() {
    let origin = |request: &Request, before: usize, wire: &mut Wire| {
        if before == 0 {
            // Nobody knows yet that it varies.
            return wire.answers(200, &[("cache-control", "max-age=0"), ("etag", "\"a\"")], "");
        }
        std::thread::sleep(SLOW);
        let language = request.fields.one("accept-language").unwrap_or("any").to_owned();
        wire.answers(200, &[("cache-control", "max-age=60"), ("vary", "accept-language")], language);
    };
    let ([first, second], backend) =
        who_waits_with_another(origin, ("", ""), ["accept-language: de\r\n", "accept-language: en\r\n"]);
    assert_eq!([first.text(), second.text()], ["de", "en"]);
    assert_eq!(backend.served(), 3);
}

#[test]
fn the_cookie_of_who_asked_first_is_not_given_to_who_waits_with_him() {
    let origin = |_: &Request, before: usize, wire: &mut Wire| {
        if before == 0 {
            return wire.answers(200, &[("cache-control", "max-age=0"), ("etag", "\"a\"")], "");
        }
        wire.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 8\r\n\r\nhalf");
        std::thread::sleep(SLOW);
        wire.sends("half");
    };
    let ([first, second], _backend) =
        who_waits_with_another(origin, ("", "sticky = { cookie = \"weir\" }\n"), ["", ""]);
    assert_eq!([first.text(), second.text()], ["halfhalf", "halfhalf"]);
    assert!(first.fields.one("set-cookie").is_some_and(|cookie| cookie.starts_with("weir=")), "{first:?}");
    assert_eq!(second.fields.one("set-cookie"), None);
}

/// RFC 9111 §3.5, while both wait: what a 304 says to one with credentials says nothing to the other.
#[test]
fn a_304_is_shared_by_all_who_wait_unless_it_is_for_one() {
    for (lines, served) in [("", 2), ("authorization: me\r\n", 3)] {
        let origin = |request: &Request, before: usize, wire: &mut Wire| {
            if before == 1 {
                std::thread::sleep(SLOW);
            }
            match (request.fields.one("if-none-match"), request.fields.one("authorization")) {
                (Some(_), None) => {
                    wire.sends("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\nx-for: all\r\n\r\n")
                }
                (Some(_), Some(_)) => {
                    wire.sends("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\nx-for: me\r\n\r\n")
                }
                _ => wire.answers(200, &[("cache-control", "max-age=0"), ("etag", "\"a\"")], "page"),
            }
        };
        let ([first, second], backend) = who_waits_with_another(origin, ("", ""), [lines, ""]);
        assert_eq!([first.text(), second.text()], ["page", "page"]);
        assert_eq!(backend.served(), served, "{second:?}");
        let is_for_all = served == 2;
        assert_eq!(first.fields.one("x-for"), Some(if is_for_all { "all" } else { "me" }));
        assert_eq!(second.fields.one("x-for"), is_for_all.then_some("all"));
        assert_eq!(status_of(&second).contains("collapsed"), is_for_all, "{second:?}");
    }
}

/// Waves of clients that ask together, of an origin that needs longer than its answers are fresh. The answers
/// of each wave, and how many requests have reached the origin.
fn waves(rules: &str, lines: &'static str, count: usize) -> (Vec<Vec<Response>>, usize) {
    let origin = by_number(move |before, wire| {
        std::thread::sleep(Duration::from_millis(1200));
        let fields: Vec<(&str, &str)> = lines.lines().filter_map(|line| line.split_once(": ")).collect();
        wire.answers(200, &fields, before.to_string());
    });
    let weir = Setup::of(&CONFIG.replace("RULES", rules)).with("app", origin.address()).start();
    let mut clients: Vec<Wire> = (0..6).map(|_| weir.client("web")).collect();
    let wave = |clients: &mut Vec<Wire>| {
        clients.iter_mut().for_each(|client| client.sends(ASK));
        clients.iter_mut().map(Wire::receives_response).collect()
    };
    ((0..count).map(|_| wave(&mut clients)).collect(), origin.served())
}

#[test]
fn an_origin_slower_than_the_operators_lifetime_is_asked_once_for_all() {
    for (rules, lines) in [("ttl = \"1s\"", ""), ("ttl_max = \"1s\"", "cache-control: max-age=60")] {
        let (waves, served) = waves(rules, lines, 1);
        assert_eq!(served, 1, "{rules}");
        assert!(waves[0].iter().all(|answer| answer.text() == "0"), "{rules}: {waves:?}");
    }
    // It counts from when the answer came: what comes right behind it is answered from memory.
    let (waves, served) =
        waves("ttl = \"30s\"\nnegative_ttl = \"1s\"", "date: Sun, 22 Nov 2020 00:00:00 GMT", 2);
    assert_eq!(served, 1, "{waves:?}");
}

/// RFC 9111 section 4: who asked before the answer was made may have it, however long it took.
#[test]
fn an_answer_that_took_longer_than_it_is_fresh_is_for_all_who_waited_for_it() {
    for lines in
        ["cache-control: max-age=1", "cache-control: s-maxage=1", "cache-control: max-age=60\nage: 100"]
    {
        let (waves, served) = waves("", lines, 2);
        for (number, wave) in waves.iter().enumerate() {
            let texts: Vec<String> = wave.iter().map(Response::text).collect();
            assert_eq!(texts, vec![number.to_string(); 6], "{lines}: {waves:?}");
            let collapsed = wave.iter().filter(|answer| status_of(answer).contains("collapsed"));
            assert_eq!(collapsed.count(), 5, "{lines}: {waves:?}");
            let aged = |answer: &Response| answer.fields.one("age").is_some();
            assert!(wave.iter().all(|answer| aged(answer) || !status_of(answer).contains("collapsed")));
        }
        assert_eq!(served, 2, "{lines}");
    }
    // What is never fresh says that it is not to be shared.
    let (_, served) = waves("", "cache-control: max-age=0", 1);
    assert_eq!(served, 6);
}
