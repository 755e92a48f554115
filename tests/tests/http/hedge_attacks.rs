//! What could go wrong where two backends are asked at once: streams, bodies, queues, caches, clients that
//! leave, processes that are replaced (threat H15).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_tests::dialogue::http2::{
    END_STREAM, Frame, Http2, Outcome, code, frame, get, headers, kind, reset,
};
use weir_tests::dialogue::{
    After, Backend, Draws, ScriptedBackend, Setup, Signal, Weir, Wire, pattern, until,
};

use super::hedging::{GET, SOON, asking, between, nobody_is_left, results, sent, settled};

/// Two silent backends, the first of them asked first.
fn pair(pool: &str, routes: &str) -> (ScriptedBackend, ScriptedBackend, Weir) {
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = between(one.address(), two.address(), pool, routes);
    (one, two, weir)
}

/// A backend that answers late.
fn slow(after: Duration) -> Backend {
    Backend::serving(move |_, wire| {
        std::thread::sleep(after);
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
        After::Keep
    })
}

/// The connection of a backend that got a request on it.
fn asked(backend: &ScriptedBackend) -> Wire {
    let mut wire = backend.accepts();
    wire.receives_request();
    wire
}

fn answers(server: &mut Http2, stream: u32, text: &str) {
    server.sends(headers(stream, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, END_STREAM, stream, text.as_bytes()));
}

fn is_cancelled(server: &mut Http2, stream: u32) {
    let Frame { payload, .. } = server.receives(kind::RST_STREAM, stream);
    assert_eq!(payload, code::CANCEL.to_be_bytes());
}

#[test]
fn the_stream_that_lost_is_reset_and_its_connection_serves_on() {
    let (one, two, weir) = pair(&format!("{SOON}\nprotocol = 'h2'"), "");
    let mut client = asking(&weir, GET);
    let mut first = Http2::server(one.accepts(), b"");
    let lost = first.receives_request();
    let mut second = Http2::server(two.accepts(), b"");
    let won = second.receives_request();
    answers(&mut second, won, "second");
    assert_eq!(client.receives_status(200).text(), "second");
    is_cancelled(&mut first, lost);
    // What comes for it all the same is thrown away.
    answers(&mut first, lost, "too late");
    client.sends(GET);
    let won = first.receives_request();
    let lost = second.receives_request();
    answers(&mut first, won, "first");
    assert_eq!(client.receives_status(200).text(), "first");
    is_cancelled(&mut second, lost);
    one.has_nobody_waiting();
    two.has_nobody_waiting();
    assert_eq!((results(&weir, "won"), results(&weir, "lost")), (1.0, 1.0));
    nobody_is_left(&weir);
}

#[test]
fn a_stream_of_a_client_that_is_reset_ends_both_attempts_and_no_other_stream() {
    let config = format!(
        r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        [pool.app]
        backends = ["@one", "@two"]
        balance = "first"
        {SOON}
        health = {{ check = "off" }}
        "#
    );
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = Setup::of(&config).with("one", one.address()).with("two", two.address()).start();
    let mut client = Http2::client(weir.client("web"), b"");
    client.sends(get(1, "/leaves"));
    let (mut first, mut second) = (asked(&one), asked(&two));
    client.sends(get(3, "/stays"));
    let (mut first_of_other, mut second_of_other) = (asked(&one), asked(&two));
    client.sends(reset(1, code::CANCEL));
    first.receives_close();
    second.receives_close();
    settled(&weir, "left", 1.0);
    first_of_other.answers(200, &[], "stays");
    assert_eq!(client.outcome_of(3), Outcome::Answered(200, b"stays".to_vec()));
    second_of_other.receives_close();
    settled(&weir, "lost", 1.0);
    nobody_is_left(&weir);
}

#[test]
fn an_answer_that_lost_leaves_its_connection_in_use() {
    for first_is_bad in [true, false] {
        let rules = "retry = { attempts = 0, on = ['503'], hedge = { after = '50ms' } }";
        let (one, two, weir) = pair(rules, "");
        let mut client = asking(&weir, GET);
        let (mut first, mut second) = (asked(&one), asked(&two));
        let (bad, good, of_bad) = match first_is_bad {
            true => (&mut first, &mut second, one.address().to_string()),
            false => (&mut second, &mut first, two.address().to_string()),
        };
        bad.answers(503, &[], "busy");
        weir.reaches("weir_backend_failures_total", &[("backend", &of_bad)], 1.0);
        good.answers(200, &[], "good");
        assert_eq!(client.receives_status(200).text(), "good");
        // Both connections serve the next.
        client.sends(GET);
        first.receives_request();
        second.receives_request();
        first.answers(200, &[], "next");
        assert_eq!(client.receives_status(200).text(), "next");
        second.receives_close();
        one.has_nobody_waiting();
        two.has_nobody_waiting();
        nobody_is_left(&weir);
    }
}

#[test]
fn a_body_that_waits_in_a_file_goes_to_one_backend() {
    let config = r#"
        [runtime]
        workers = 1
        buffer_directory = "@dir"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@one", "@two"]
        balance = "first"
        retry = { hedge = { after = "50ms", idempotent = true } }
        buffer = { requests = "64KiB", requests_file = "1GiB" }
        health = { check = "off" }
        "#;
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = Setup::of(config).with("one", one.address()).with("two", two.address()).start();
    let body = pattern(5, 300_000);
    let mut client =
        asking(&weir, &format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
    client.sends(&body);
    let mut wire = one.accepts();
    assert!(wire.receives_request().body == body);
    // What is due later is hedged meanwhile.
    let mut other = asking(&weir, GET);
    let (_first, mut second) = (asked(&one), asked(&two));
    second.answers(200, &[], "second");
    assert_eq!(other.receives_status(200).text(), "second");
    wire.answers(200, &[], "once");
    assert_eq!(client.receives_status(200).text(), "once");
    assert_eq!(sent(&weir), 1.0);
}

#[test]
fn a_body_that_is_held_in_memory_reaches_both_whole() {
    let pool = "retry = { hedge = { after = '50ms', idempotent = true } }\nbuffer = { requests = '4MiB' }";
    let (one, two, weir) = pair(pool, "");
    let body = pattern(5, 3_000_000);
    let mut client =
        asking(&weir, &format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
    client.sends(&body);
    let mut first = one.accepts();
    // It reads nothing, so that the first is still being sent when the second is due.
    let mut second = two.accepts();
    assert!(second.receives_request().body == body);
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    first.receives_to_the_end();
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    asked(&one).answers(200, &[], "next");
    assert_eq!(client.receives_status(200).text(), "next");
    nobody_is_left(&weir);
}

#[test]
fn who_waits_in_line_gets_the_place_of_the_attempt_that_lost() {
    let config = format!(
        r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = [{{ address = "@one", max_connections = 1 }}, {{ address = "@two", max_connections = 1 }}]
        balance = "first"
        {SOON}
        health = {{ check = "off" }}
        "#
    );
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let weir = Setup::of(&config).with("one", one.address()).with("two", two.address()).start();
    let mut client = asking(&weir, GET);
    let (mut first, mut second) = (asked(&one), asked(&two));
    let mut waiting = asking(&weir, GET);
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    // The first stays silent, and loses its place with the race.
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    first.receives_close();
    let mut next = asked(&one);
    next.answers(200, &[], "next");
    assert_eq!(waiting.receives_status(200).text(), "next");
    nobody_is_left(&weir);
}

#[test]
fn a_pool_under_trial_by_its_breaker_gets_one_request_and_no_second() {
    let fails = Arc::new(AtomicBool::new(true));
    let backend = |then: Duration| {
        let failing = fails.clone();
        Backend::serving(move |_, wire| {
            if failing.load(Ordering::SeqCst) {
                wire.answers(500, &[], "fails");
            } else {
                std::thread::sleep(then);
                let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
            }
            After::Keep
        })
    };
    let (first, other) = (backend(Duration::from_secs(1)), backend(Duration::ZERO));
    let pool = "retry = { attempts = 0, hedge = { after = '20ms' } }\n\
                breaker = { errors = 0.5, of = 1, within = '1h', for = '100ms', trials = 1 }";
    let weir = between(first.address(), other.address(), pool, "");
    let ask = || asking(&weir, GET).receives_response();
    assert_eq!(ask().status, 500);
    fails.store(false, Ordering::SeqCst);
    let (served, before) = (other.served(), sent(&weir));
    until("the trial", || (ask().status == 200).then_some(()));
    assert_eq!((results(&weir, "breaker"), sent(&weir), other.served()), (1.0, before, served));
    // It has closed.
    assert_eq!(ask().status, 200);
    assert_eq!(sent(&weir), before + 1.0);
}

#[test]
fn a_fetch_of_the_cache_asks_a_second_backend_on_behalf_of_all_who_wait() {
    let routes = "[[listener.web.route]]\npool = 'app'\n[listener.web.route.cache]\nobject_max = '1MiB'";
    let (one, two, weir) = pair(SOON, routes);
    let first_client = asking(&weir, GET);
    let mut second_client = asking(&weir, GET);
    let (mut first, mut second) = (asked(&one), asked(&two));
    // The fetch is nobody's own.
    first_client.resets();
    second.answers(200, &[("cache-control", "max-age=60")], "kept");
    assert_eq!(second_client.receives_status(200).text(), "kept");
    first.receives_close();
    settled(&weir, "won", 1.0);
    assert_eq!(asking(&weir, GET).receives_status(200).text(), "kept");
    assert_eq!(sent(&weir), 1.0);
    nobody_is_left(&weir);
}

#[test]
fn a_copy_for_a_mirror_is_not_sent_twice() {
    let config = r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        path = "/direct"
        pool = "app"
        [[listener.web.route]]
        path = "/*"
        pool = "quick"
        mirror = { pool = "app" }
        [pool.quick]
        backends = ["@quick"]
        health = { check = "off" }
        [pool.app]
        backends = ["@one", "@two"]
        balance = "first"
        retry = { hedge = { after = "50ms" } }
        health = { check = "off" }
        "#;
    let (one, two, quick) = (ScriptedBackend::start(), ScriptedBackend::start(), Backend::saying("quick"));
    let setup = Setup::of(config).with("one", one.address()).with("two", two.address());
    let weir = setup.with("quick", quick.address()).start();
    assert_eq!(asking(&weir, GET).receives_status(200).text(), "quick");
    let mut copy = asked(&one);
    let mut client = asking(&weir, "GET /direct HTTP/1.1\r\nhost: a\r\n\r\n");
    let (_first, mut second) = (asked(&one), asked(&two));
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    copy.answers(200, &[], "copy");
    let answered = [("listener", "web"), ("result", "answered")];
    weir.reaches("weir_mirrored_requests_total", &answered, 1.0);
    assert_eq!(sent(&weir), 1.0);
}

#[test]
fn both_backends_are_told_who_the_client_is() {
    let (one, two, weir) = pair(&format!("{SOON}\nsend_proxy = 'v1'"), "");
    let mut client = asking(&weir, GET);
    let (from, to) = (client.local().port(), weir.address("web").port());
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\n");
    let mut first = one.accepts();
    first.receives_exactly(&header);
    first.receives_request();
    let mut second = two.accepts();
    second.receives_exactly(&header);
    second.receives_request();
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    first.receives_close();
}

#[test]
fn the_time_for_the_whole_request_ends_both_attempts() {
    let (one, two, weir) = pair(&format!("{SOON}\ntimeout = {{ request_total = '2s' }}"), "");
    let mut client = asking(&weir, GET);
    let (mut first, mut second) = (asked(&one), asked(&two));
    assert_eq!(client.receives_response().status, 504);
    first.receives_close();
    second.receives_close();
    settled(&weir, "failed", 1.0);
    nobody_is_left(&weir);
    // Both had it for most of the time.
    for backend in [one.address().to_string(), two.address().to_string()] {
        assert_eq!(weir.metric("weir_backend_failures_total", &[("backend", &backend)]), 1.0);
    }
}

#[test]
fn a_try_that_is_cut_short_leaves_the_second_under_way() {
    let rules =
        "retry = { attempts = 1, on = ['timeout'], per_try_timeout = '4s', hedge = { after = '2s' } }";
    let (one, two, weir) = pair(rules, "");
    let mut client = asking(&weir, GET);
    let (mut first, mut second) = (asked(&one), asked(&two));
    first.receives_close();
    let of_first = one.address().to_string();
    weir.reaches("weir_backend_failures_total", &[("backend", &of_first)], 1.0);
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    settled(&weir, "won", 1.0);
    assert_eq!(weir.metric("weir_retries_total", &[("pool", "app")]), 0.0);
    nobody_is_left(&weir);
}

#[test]
fn an_upgrade_meanwhile_leaves_both_attempts_alone() {
    let (one, two, weir) = pair(SOON, "");
    let mut client = asking(&weir, GET);
    let (mut first, mut second) = (asked(&one), asked(&two));
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    until("the new process to answer", || {
        let pid = admin.tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (pid != u64::from(old)).then_some(())
    });
    second.answers(200, &[], "second");
    assert_eq!(client.receives_status(200).text(), "second");
    first.receives_close();
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
}

#[test]
fn requests_that_were_sent_together_are_answered_in_their_order() {
    let (one, two, weir) = pair(SOON, "");
    let mut client = weir.client("web");
    client.sends("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n");
    let (mut first, mut second) = (asked(&one), asked(&two));
    second.answers(200, &[], "1");
    assert_eq!(client.receives_status(200).text(), "1");
    first.receives_close();
    let mut first = asked(&one);
    second.receives_request();
    first.answers(200, &[], "2");
    assert_eq!(client.receives_status(200).text(), "2");
    nobody_is_left(&weir);
}

#[test]
fn a_client_that_has_sent_its_next_request_and_leaves_is_noticed_when_it_is_answered() {
    let (one, two, weir) = pair(SOON, "");
    let mut client = weir.client("web");
    client.sends("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n");
    let (mut first, mut second) = (asked(&one), asked(&two));
    client.resets();
    second.answers(200, &[], "1");
    first.receives_close();
    nobody_is_left(&weir);
}

/// A backend that answers at about the time at which the other is asked, in all lengths, by an echo of what
/// it was asked for; one in 16 with 503.
fn about_then(seed: u64) -> Backend {
    let draws = AtomicU64::new(seed);
    Backend::serving(move |request, wire| {
        let draw = Draws::seeded(draws.fetch_add(1, Ordering::SeqCst)).below(1 << 20);
        std::thread::sleep(Duration::from_millis(draw % 16));
        let text = request.target.repeat(if draw.is_multiple_of(7) { 10_000 } else { 1 });
        let bytes = match draw / 16 % 16 {
            0 => "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy".to_owned(),
            1..8 => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()),
            _ => format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n",
                text.len()
            ),
        };
        match wire.tries_to_send(bytes) {
            Ok(()) => After::Keep,
            Err(_) => After::Close,
        }
    })
}

#[test]
fn backends_that_answer_at_once_and_clients_that_leave_mix_nothing_up_and_leave_nothing_behind() {
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@one", "@two", "@three"]
        retry = { on = ["503"], hedge = { after = "4ms" }, budget = { share = 1.0, min_per_second = 1000 } }
        health = { check = "off", passive = "off" }
    "#;
    let backends = [1000, 2000, 3000].map(about_then);
    let mut setup = Setup::of(config);
    for (name, backend) in ["one", "two", "three"].into_iter().zip(&backends) {
        setup = setup.with(name, backend.address());
    }
    let weir = setup.start();
    std::thread::scope(|scope| {
        for number in 0..12 {
            let weir = &weir;
            scope.spawn(move || {
                let mut draws = Draws::seeded(number);
                let mut client = weir.client("web");
                for turn in 0..60 {
                    let target = format!("/{number}/{turn}/");
                    client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
                    if draws.below(8) == 0 {
                        std::thread::sleep(Duration::from_millis(draws.below(12)));
                        std::mem::replace(&mut client, weir.client("web")).resets();
                        continue;
                    }
                    let answer = client.receives_response();
                    let text = answer.text();
                    assert!(
                        answer.status == 503 || text == target || text == target.repeat(10_000),
                        "{target}: {} {:.80}",
                        answer.status,
                        text
                    );
                }
            });
        }
    });
    nobody_is_left(&weir);
    let sent = sent(&weir);
    assert!(sent > 50.0, "{sent}");
    let ended = || ["won", "lost", "failed", "left"].iter().map(|result| results(&weir, result)).sum::<f64>();
    until("all to be accounted for", || (ended() == sent).then_some(()));
    assert!(results(&weir, "won") > 0.0 && results(&weir, "lost") > 0.0);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}

#[test]
fn a_budget_that_is_used_up_has_no_hedge_however_many_are_due() {
    let first = slow(Duration::from_millis(150));
    let other = slow(Duration::from_millis(150));
    let pool =
        "retry = { on = ['503'], hedge = { after = '20ms' }, budget = { share = 0.0, min_per_second = 1 } }";
    let weir = between(first.address(), other.address(), pool, "");
    std::thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| assert_eq!(asking(&weir, GET).receives_response().status, 200));
        }
    });
    // One a second, averaged over ten.
    assert!(sent(&weir) <= 10.0 && results(&weir, "no_budget") > 0.0, "{}", sent(&weir));
}
