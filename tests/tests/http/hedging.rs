//! A second backend is asked beside one that takes its time (threats H15, R5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, until};

use super::retries::ask;

/// What `hedge` says in most tests.
pub const SOON: &str = "retry = { hedge = { after = '50ms' } }";

/// Two backends, the first of them asked first; `pool` says more of the pool, `routes` are whole routes.
pub fn between(first: impl ToString, second: impl ToString, pool: &str, routes: &str) -> Weir {
    let config = format!(
        r#"
        [runtime]
        workers = 1
        [log]
        access = "./access.json"
        [listener.web]
        bind = "@web"
        pool = "app"
        {routes}
        [pool.app]
        backends = ["@first", "@second"]
        balance = "first"
        {pool}
        health = {{ check = "off" }}
        "#
    );
    Setup::of(&config).with("first", first).with("second", second).start()
}

pub fn results(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_hedge_results_total", &[("pool", "app"), ("result", result)])
}

pub fn settled(weir: &Weir, result: &str, count: f64) {
    weir.reaches("weir_hedge_results_total", &[("pool", "app"), ("result", result)], count);
}

pub fn sent(weir: &Weir) -> f64 {
    weir.metric("weir_hedges_total", &[("pool", "app")])
}

/// A client that has sent a request.
pub fn asking(weir: &Weir, request: &str) -> Wire {
    let mut client = weir.client("web");
    client.sends(request);
    client
}

pub const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// Nobody is left at a backend: places are free again.
pub fn nobody_is_left(weir: &Weir) {
    until("no request in flight", || {
        let samples = weir.admin().metrics();
        let mut in_flight = samples.iter().filter(|it| it.name == "weir_backend_in_flight");
        in_flight.all(|it| it.value == 0.0).then_some(())
    });
}

#[test]
fn the_second_backend_answers_for_one_that_is_silent_and_that_one_sees_the_end() {
    let silent = ScriptedBackend::start();
    let good = Backend::saying("good");
    let weir = between(silent.address(), good.address(), SOON, "");
    let mut client = asking(&weir, GET);
    let mut wire = silent.accepts();
    wire.receives_request();
    assert_eq!(client.receives_status(200).text(), "good");
    wire.receives_close();
    settled(&weir, "won", 1.0);
    assert_eq!(sent(&weir), 1.0);
    // Whoever lost is neither good nor bad.
    let of_first = [("backend", silent.address().to_string())];
    let of_first = of_first.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(weir.metric("weir_backend_failures_total", &of_first), 0.0);
    assert_eq!(weir.metric("weir_backend_requests_total", &of_first), 0.0);
    nobody_is_left(&weir);
    let line = &weir.lines_of("access.json", 1)[0];
    let backend = format!("\"backend\":\"{}\"", good.address());
    assert!(line.contains("\"hedge\":\"won\"") && line.contains(&backend), "{line}");
    assert!(line.contains("\"retries\":0"), "{line}");
    // The connection of the one that won is kept, and the client's.
    client.sends(GET);
    let mut wire = silent.accepts();
    wire.receives_request();
    assert_eq!(client.receives_status(200).text(), "good");
    assert_eq!((good.connections(), sent(&weir)), (1, 2.0));
}

#[test]
fn the_first_backend_may_still_win_and_then_the_second_sees_the_end() {
    let (slow, silent) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = between(slow.address(), silent.address(), SOON, "");
    let mut client = asking(&weir, GET);
    let mut first = slow.accepts();
    first.receives_request();
    let mut second = silent.accepts();
    second.receives_request();
    first.answers(200, &[], "slow");
    assert_eq!(client.receives_status(200).text(), "slow");
    second.receives_close();
    settled(&weir, "lost", 1.0);
    assert!(weir.lines_of("access.json", 1)[0].contains("\"hedge\":\"lost\""));
    nobody_is_left(&weir);
}

#[test]
fn an_answer_in_time_asks_nobody_else() {
    let (quick, other) = (Backend::saying("quick"), Backend::saying("other"));
    let weir = between(quick.address(), other.address(), "retry = { hedge = { after = '1h' } }", "");
    assert_eq!(ask(&weir, "GET").text(), "quick");
    assert_eq!((other.served(), sent(&weir)), (0, 0.0));
    assert!(!weir.lines_of("access.json", 1)[0].contains("hedge"));
}

#[test]
fn what_changes_something_is_never_sent_to_two_backends_unless_it_is_idempotent_and_said() {
    // R5: nothing is executed twice.
    let slow = || {
        Backend::serving(|_, wire| {
            std::thread::sleep(Duration::from_millis(800));
            let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
            After::Keep
        })
    };
    let other = Backend::saying("other");
    let first = slow();
    let hedge = "retry = { non_idempotent = true, hedge = { after = '20ms' } }";
    let weir = between(first.address(), other.address(), hedge, "");
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(ask(&weir, method).text(), "slow", "{method}");
    }
    assert_eq!((other.served(), sent(&weir)), (0, 0.0));
    let hedge = "retry = { non_idempotent = true, hedge = { after = '20ms', idempotent = true } }";
    let first = slow();
    let weir = between(first.address(), other.address(), hedge, "");
    assert_eq!(ask(&weir, "POST").text(), "slow");
    for method in ["PUT", "DELETE"] {
        assert_eq!(ask(&weir, method).text(), "other", "{method}");
    }
    assert_eq!((other.served(), sent(&weir)), (2, 2.0));
}

#[test]
fn a_body_that_is_all_here_reaches_the_second_backend_whole_and_one_on_its_way_does_not() {
    let silent = ScriptedBackend::start();
    let good = Backend::saying("good");
    let hedge = "retry = { hedge = { after = '50ms', idempotent = true } }";
    let weir = between(silent.address(), good.address(), hedge, "");
    let whole =
        ["content-length: 5\r\n\r\nhello", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"];
    for body in whole {
        let mut client = asking(&weir, &format!("PUT / HTTP/1.1\r\nhost: a\r\n{body}"));
        let mut wire = silent.accepts();
        wire.receives_request();
        assert_eq!(client.receives_status(200).text(), "good", "{body}");
        assert_eq!(good.requests().last().map(|request| request.body.clone()), Some(b"hello".to_vec()));
        // The client's connection is good for the next, and so is the backend's.
        client.sends(GET);
        let mut wire = silent.accepts();
        wire.receives_request();
        client.receives_status(200);
    }
    assert_eq!((sent(&weir), good.connections()), (4.0, 1));
    let mut client = asking(&weir, "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe");
    let mut wire = silent.accepts();
    wire.receives_until("\r\n\r\nhe");
    client.sends("llo");
    wire.receives_exactly("llo");
    // What is due without a body is sent meanwhile.
    let mut other = asking(&weir, GET);
    let mut beside = silent.accepts();
    beside.receives_request();
    other.receives_status(200);
    assert_eq!(sent(&weir), 5.0);
    wire.answers(200, &[], "once");
    assert_eq!(client.receives_status(200).text(), "once");
}

#[test]
fn a_session_that_a_cookie_keeps_on_its_backend_stays_there() {
    let slow = Backend::serving(|_, wire| {
        std::thread::sleep(Duration::from_secs(1));
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
        After::Keep
    });
    let other = Backend::saying("other");
    let pool = "retry = { hedge = { after = '20ms' } }\nsticky = { cookie = 'at' }";
    let weir = between(slow.address(), other.address(), pool, "");
    let fresh = ask(&weir, "GET");
    assert_eq!(fresh.text(), "other");
    let cookie = fresh.fields.one("set-cookie").expect("who has won").split(';').next().unwrap().to_owned();
    // Whoever has won is whom the client stays with.
    let mut client = asking(&weir, &format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n"));
    assert_eq!(client.receives_status(200).text(), "other");
    assert_eq!(sent(&weir), 1.0);
}

#[test]
fn without_another_backend_or_a_retry_in_the_budget_the_first_is_waited_for() {
    let slow = || {
        Backend::serving(|_, wire| {
            std::thread::sleep(Duration::from_secs(1));
            let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
            After::Keep
        })
    };
    let (one, two) = (slow(), slow());
    let none = "retry = { hedge = { after = '20ms' }, budget = { share = 0.0, min_per_second = 0 } }";
    let weir = between(one.address(), two.address(), none, "");
    assert_eq!(ask(&weir, "GET").text(), "slow");
    assert_eq!((results(&weir, "no_budget"), sent(&weir), two.served()), (1.0, 0.0, 0));
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@one", { address = "@two", backup = true }]
        retry = { hedge = { after = "20ms" } }
        health = { check = "off" }
    "#;
    let weir = Setup::of(config).with("one", one.address()).with("two", two.address()).start();
    assert_eq!(ask(&weir, "GET").text(), "slow");
    assert_eq!((results(&weir, "no_backend"), sent(&weir)), (1.0, 0.0), "a backup is not there for that");
    let full = "retry = { hedge = { after = '20ms' } }";
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@one", {{ address = "@two", max_connections = 1 }}]
        balance = "first"
        {full}
        health = {{ check = "off" }}
        "#
    );
    let (silent, held) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = Setup::of(&config).with("one", silent.address()).with("two", held.address()).start();
    let mut first = asking(&weir, GET);
    let mut at_one = silent.accepts();
    at_one.receives_request();
    let mut at_two = held.accepts();
    at_two.receives_request();
    let mut second = asking(&weir, GET);
    let mut at_one_too = silent.accepts();
    at_one_too.receives_request();
    settled(&weir, "busy", 1.0);
    at_two.answers(200, &[], "two");
    assert_eq!(first.receives_status(200).text(), "two");
    at_one_too.answers(200, &[], "one");
    assert_eq!(second.receives_status(200).text(), "one");
}

#[test]
fn an_answer_that_is_listed_loses_against_one_still_under_way_whichever_it_is_of() {
    let rules = "retry = { attempts = 0, on = ['503'], hedge = { after = '50ms' } }";
    for first_is_bad in [true, false] {
        let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
        let weir = between(one.address(), two.address(), rules, "");
        let mut client = asking(&weir, GET);
        let mut first = one.accepts();
        first.receives_request();
        let mut second = two.accepts();
        second.receives_request();
        let (bad, good, of_bad) = match first_is_bad {
            true => (&mut first, &mut second, one.address()),
            false => (&mut second, &mut first, two.address()),
        };
        bad.answers(503, &[], "busy");
        // It has failed, and its place is free while the other is waited for.
        let of_bad = of_bad.to_string();
        weir.reaches("weir_backend_failures_total", &[("backend", &of_bad)], 1.0);
        assert_eq!(weir.metric("weir_backend_in_flight", &[("backend", &of_bad)]), 0.0);
        good.answers(200, &[], "good");
        assert_eq!(client.receives_status(200).text(), "good");
        settled(&weir, if first_is_bad { "won" } else { "lost" }, 1.0);
        nobody_is_left(&weir);
    }
}

#[test]
fn where_both_fail_the_last_decides_and_a_retry_goes_to_neither() {
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let good = Backend::saying("good");
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@one", "@two", "@good"]
        balance = "first"
        retry = { attempts = 1, on = ["503", "empty"], hedge = { after = "50ms" } }
        health = { check = "off" }
    "#;
    let setup = Setup::of(config).with("one", one.address()).with("two", two.address());
    let weir = setup.with("good", good.address()).start();
    let mut client = asking(&weir, GET);
    let mut first = one.accepts();
    first.receives_request();
    let mut second = two.accepts();
    second.receives_request();
    drop(first);
    let of_first = one.address().to_string();
    weir.reaches("weir_backend_failures_total", &[("backend", &of_first)], 1.0);
    second.answers(503, &[], "busy");
    assert_eq!(client.receives_status(200).text(), "good");
    settled(&weir, "failed", 1.0);
    assert_eq!(weir.metric("weir_retries_total", &[("pool", "app")]), 1.0);
    nobody_is_left(&weir);
}

#[test]
fn a_client_that_leaves_takes_both_attempts_along() {
    // Both under way, and the second alone.
    for first_has_failed in [false, true] {
        let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
        let weir = between(one.address(), two.address(), SOON, "");
        let client = asking(&weir, GET);
        let mut first = one.accepts();
        first.receives_request();
        let mut second = two.accepts();
        second.receives_request();
        if first_has_failed {
            drop(first);
            let of_first = one.address().to_string();
            weir.reaches("weir_backend_failures_total", &[("backend", &of_first)], 1.0);
            client.resets();
        } else {
            client.resets();
            first.receives_close();
        }
        second.receives_close();
        settled(&weir, "left", 1.0);
        weir.reaches("weir_ends_total", &[("reason", "client_closed")], 1.0);
        nobody_is_left(&weir);
        let of_second = two.address().to_string();
        assert_eq!(weir.metric("weir_backend_failures_total", &[("backend", &of_second)]), 0.0);
    }
}

#[test]
fn a_percentile_waits_for_enough_answers_and_then_cuts_the_slow_ones_off() {
    let stalls = Arc::new(AtomicBool::new(false));
    let stalled = stalls.clone();
    let sometimes = Backend::serving(move |_, wire| {
        if stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_secs(5));
        }
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst");
        After::Keep
    });
    let other = Backend::saying("other");
    let pool = "retry = { hedge = { after = 'p95', min = '30ms', max = '2s' } }";
    let weir = between(sometimes.address(), other.address(), pool, "");
    let explained = || weir.command(&["explain", "http", "GET", "http://a/"]).stdout;
    let told = explained();
    assert!(
        told.contains("hedge    none yet: p95 takes 100 answers of the last 60 s, and there are 0"),
        "{told}"
    );
    let mut client = weir.client("web");
    for _ in 0..100 {
        client.sends(GET);
        client.receives_status(200);
    }
    let told = until("the percentile", || {
        let told = explained();
        told.contains("hedge    a second backend after ").then_some(told)
    });
    assert!(told.contains(" ms, by p95 of 1"), "{told}");
    let told = weir.command(&["explain", "http", "POST", "http://a/"]).stdout;
    assert!(told.contains("hedge    none: the method may not be repeated"), "{told}");
    stalls.store(true, Ordering::SeqCst);
    let begun = std::time::Instant::now();
    client.sends(GET);
    assert_eq!(client.receives_status(200).text(), "other");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    settled(&weir, "won", 1.0);
    assert!(weir.metric("weir_hedge_delay_seconds", &[("pool", "app")]) >= 0.03);
}

#[test]
fn a_pool_that_is_slow_as_a_whole_gets_no_more_than_the_budget_on_top() {
    // H15
    let slow = || {
        Backend::serving(|_, wire| {
            std::thread::sleep(Duration::from_millis(100));
            let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
            After::Keep
        })
    };
    let (one, two) = (slow(), slow());
    let pool = "retry = { hedge = { after = '10ms' }, budget = { share = 0.1, min_per_second = 0 } }";
    let weir = between(one.address(), two.address(), pool, "");
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(ask(&weir, "GET").status, 200)));
        }
    });
    // A tenth of the hundred, and no more.
    assert!(sent(&weir) <= 10.0, "{} of 100", sent(&weir));
    assert!(results(&weir, "no_budget") > 0.0);
    assert!(one.requests().len() + two.requests().len() <= 110);
}

#[test]
fn a_route_says_of_hedges_what_it_says_and_its_pool_the_rest() {
    let silent = ScriptedBackend::start();
    let good = Backend::saying("good");
    let routes = "[[listener.web.route]]\npath = '/never/*'\npool = 'app'\nretry = { hedge = { after = 'off' } }\n\
                  [[listener.web.route]]\npath = '/later/*'\npool = 'app'\nretry = { hedge = { after = '70ms' } }";
    let weir = between(
        silent.address(),
        good.address(),
        "retry = { attempts = 0, hedge = { after = '1h' } }",
        routes,
    );
    let mut client = asking(&weir, "GET /later/1 HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = silent.accepts();
    wire.receives_request();
    assert_eq!(client.receives_status(200).text(), "good");
    let explained = |path: &str| {
        let url = format!("http://a{path}");
        weir.command(&["explain", "http", "GET", &url]).stdout
    };
    assert!(explained("/later/1").contains("hedge    a second backend after 70.0 ms"));
    assert!(!explained("/never/1").contains("hedge"));
}

#[test]
fn a_reload_meanwhile_leaves_both_attempts_alone() {
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let config = |hedge: &str| {
        format!(
            "[listener.web]\nbind = '@web'\npool = 'app'\n[pool.app]\nbackends = ['@one', '@two']\n\
             balance = 'first'\n{hedge}\nhealth = {{ check = 'off' }}\n"
        )
    };
    let setup = Setup::of(&config(SOON)).with("one", one.address()).with("two", two.address());
    let mut weir = setup.start();
    let mut client = asking(&weir, GET);
    let mut first = one.accepts();
    first.receives_request();
    let mut second = two.accepts();
    second.receives_request();
    weir.reloads(&config(""));
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    first.receives_close();
    settled(&weir, "won", 1.0);
    // The new config asks one.
    let mut client = asking(&weir, GET);
    let mut first = one.accepts();
    first.receives_request();
    first.answers(200, &[], "first");
    assert_eq!(client.receives_status(200).text(), "first");
}

#[test]
fn a_hint_of_the_first_goes_on_until_a_second_is_asked_and_not_after() {
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = between(one.address(), two.address(), "retry = { hedge = { after = '1s' } }", "");
    let mut client = asking(&weir, GET);
    let mut first = one.accepts();
    first.receives_request();
    first.sends("HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n");
    assert_eq!(client.receives_head().status, 103);
    let mut second = two.accepts();
    second.receives_request();
    second.sends("HTTP/1.1 103 Early Hints\r\nlink: </b.css>\r\n\r\n");
    first.sends("HTTP/1.1 103 Early Hints\r\nlink: </c.css>\r\n\r\n");
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
}
