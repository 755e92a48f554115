//! What pools and routes say of retries: on what, how often, how long a try may take, and what of the pool's
//! budget is left (threats H3 and R5).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, ONE_POOL, ScriptedBackend, Setup, Weir, until};

use super::retries::ask;

/// Two backends, the first of them asked first; `pool` says more of the pool, `routes` are whole routes.
fn between(bad: impl ToString, good: &Backend, pool: &str, routes: &str) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        {routes}
        [pool.app]
        backends = ["@bad", "@good"]
        balance = "first"
        {pool}
        health = {{ check = "off", passive = "off" }}
        "#
    );
    Setup::of(&config).with("bad", bad).with("good", good.address()).start()
}

/// One backend alone.
fn before(backend: &Backend, pool: &str) -> Weir {
    let config = format!("{ONE_POOL}{pool}\nhealth = {{ check = \"off\", passive = \"off\" }}");
    Setup::of(&config).with("app", backend.address()).start()
}

fn retried_for(weir: &Weir, reason: &str) -> f64 {
    weir.metric("weir_retry_reasons_total", &[("pool", "app"), ("reason", reason)])
}

/// Answers with these, one after the other, and with the last for ever.
fn in_turn(answers: &'static [(u16, &'static [(&'static str, &'static str)])]) -> Backend {
    let asked = AtomicUsize::new(0);
    Backend::serving(move |_, wire| {
        let turn = asked.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        let (status, fields) = answers[turn];
        wire.answers(status, fields, "text");
        After::Keep
    })
}

#[test]
fn statuses_that_are_listed_are_tried_elsewhere_and_counted_but_never_for_a_post() {
    for status in ["429", "500"] {
        let code: u16 = status.parse().expect("a number");
        let bad = Backend::serving(move |_, wire| {
            wire.answers(code, &[], "bad");
            After::Keep
        });
        let good = Backend::saying("good");
        let weir = between(bad.address(), &good, &format!("retry = {{ on = [\"{status}\"] }}"), "");
        assert_eq!(ask(&weir, "GET").text(), "good", "{status}");
        assert_eq!(ask(&weir, "POST").status, code, "as far as anybody knows it was executed");
        assert_eq!(good.served(), 1);
        assert_eq!(retried_for(&weir, status), 1.0);
    }
}

#[test]
fn connections_outlive_an_answer_that_is_tried_elsewhere() {
    let bad = Backend::serving(|request, wire| {
        match request.target == "/chunked" {
            true => {
                wire.sends("HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n")
            }
            false => wire.answers(503, &[], "bad"),
        }
        After::Keep
    });
    let good = Backend::saying("good");
    let weir = between(bad.address(), &good, "retry = { on = [503], non_idempotent = true }", "");
    let mut client = weir.client("web");
    for request in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /chunked HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi",
    ] {
        client.sends(request);
        assert_eq!(client.receives_response().status, 200, "{request}");
    }
    assert_eq!((bad.served(), good.served()), (3, 3));
    // Not a connection for each answer that was not wanted.
    assert_eq!((bad.connections(), good.connections()), (1, 1));
    // Where an answer is not whole with its head, its connection is good for nothing.
    let endless = Backend::serving(|_, wire| {
        wire.sends("HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\nbad");
        After::Keep
    });
    let weir = between(endless.address(), &good, "retry = { on = [503] }", "");
    for _ in 0..2 {
        assert_eq!(ask(&weir, "GET").text(), "good");
    }
    assert_eq!((endless.served(), endless.connections()), (2, 2));
}

#[test]
fn a_backend_that_breaks_off_within_its_head_is_tried_elsewhere_by_reset_and_by_nothing_else() {
    let broken = || {
        Backend::serving(|_, wire| {
            wire.sends("HTTP/1.1 200 OK\r\nx-half: of the he");
            After::Close
        })
    };
    let good = Backend::saying("good");
    let bad = broken();
    let weir = between(bad.address(), &good, "retry = { on = ['reset'] }", "");
    assert_eq!(ask(&weir, "GET").text(), "good");
    assert_eq!(ask(&weir, "POST").status, 502, "it reached a backend");
    assert_eq!(retried_for(&weir, "reset"), 1.0);
    let bad = broken();
    let weir = between(bad.address(), &good, "retry = { on = ['connect', 'empty', 'timeout'] }", "");
    assert_eq!(ask(&weir, "GET").status, 502);
}

#[test]
fn a_route_says_when_to_retry_over_its_pool_and_explain_says_so() {
    let bad = Backend::serving(|_, wire| {
        wire.answers(500, &[], "bad");
        After::Keep
    });
    let good = Backend::saying("good");
    let route = "[[listener.web.route]]\npath = '/again/*'\npool = 'app'\n\
                 retry = { attempts = 1, on = [500], non_idempotent = true }";
    let weir = between(bad.address(), &good, "retry = { attempts = 0 }", route);
    let asks = |path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"));
        client.receives_response().status
    };
    assert_eq!(asks("/again/1"), 200);
    assert_eq!(asks("/once"), 500);
    let explained = |path: &str| {
        let url = format!("http://a{path}");
        weir.command(&["explain", "http", "GET", &url]).stdout
    };
    let told = explained("/again/1");
    assert!(told.contains("retry    1 more on 500, whatever the method, of the route"), "{told}");
    let told = explained("/once");
    assert!(told.contains("retry    none, of the pool"), "{told}");
}

#[test]
fn requests_pay_into_the_budget_by_the_rules_that_hold_for_them() {
    let bad = Backend::serving(|_, wire| {
        wire.answers(500, &[], "bad");
        After::Keep
    });
    let good = Backend::saying("good");
    let routes = "[[listener.web.route]]\npath = '/once'\npool = 'app'\nretry = { attempts = 0 }\n\
                  [[listener.web.route]]\npath = '/again'\npool = 'app'\nretry = { attempts = 1, on = [500] }";
    let asks = |weir: &Weir, path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_response().status
    };
    let of_route = "retry = { attempts = 0, budget = { share = 1.0, min_per_second = 0 } }";
    let weir = between(bad.address(), &good, of_route, routes);
    assert_eq!(asks(&weir, "/again"), 200, "it pays for itself");
    // Had the first paid, there would be a retry for the two of them.
    let of_pool = "retry = { attempts = 1, budget = { share = 0.5, min_per_second = 0 } }";
    let weir = between(bad.address(), &good, of_pool, routes);
    assert_eq!(asks(&weir, "/once"), 500);
    assert_eq!(asks(&weir, "/again"), 500);
}

#[test]
fn a_try_that_takes_too_long_gives_way_to_another_and_its_end_is_seen_by_the_backend() {
    let silent = ScriptedBackend::start();
    let good = Backend::saying("good");
    let retry = "retry = { on = ['timeout'], per_try_timeout = '200ms' }";
    let weir = between(silent.address(), &good, retry, "");
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = silent.accepts();
    wire.receives_request();
    assert_eq!(client.receives_status(200).text(), "good");
    wire.receives_close();
    assert_eq!(retried_for(&weir, "timeout"), 1.0);
}

#[test]
fn a_try_whose_body_can_be_sent_again_gives_way_as_one_without() {
    let silent = Backend::serving(|_, wire| {
        until("the try to be given up", || wire.has_ended().then_some(()));
        After::Close
    });
    let good = Backend::saying("good");
    let pool = "buffer = { requests = '8MiB', requests_file = '64MiB' }\ntimeout = { backend = '1h' }\n\
        retry = { attempts = 1, on = ['timeout'], per_try_timeout = '200ms' }";
    let weir = between(silent.address(), &good, pool, "[runtime]\nbuffer_directory = \"@dir\"");
    // It leaves with the head; it is held in memory; it is in a file.
    for length in [100, 6_000_000, 12_000_000] {
        let mut client = weir.client("web");
        client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
        client.sends(vec![b'x'; length]);
        assert_eq!(client.receives_response().text(), "good", "{length}");
        assert_eq!(good.requests().last().map(|request| request.body.len()), Some(length));
    }
    assert_eq!(retried_for(&weir, "timeout"), 3.0);
}

#[test]
fn the_last_try_and_one_that_none_may_follow_have_the_whole_time() {
    let slow = || {
        Backend::serving(|_, wire| {
            std::thread::sleep(Duration::from_millis(700));
            let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nslow");
            After::Keep
        })
    };
    let (one, two) = (slow(), slow());
    let retry = "retry = { attempts = 1, on = ['timeout'], per_try_timeout = '100ms' }";
    let weir = between(one.address(), &two, retry, "");
    assert_eq!(ask(&weir, "GET").text(), "slow", "two tries, and the second is the last");
    assert_eq!((one.served(), two.served()), (1, 1));
    // Nothing may follow a POST.
    assert_eq!(ask(&weir, "POST").text(), "slow");
    assert_eq!(one.served() + two.served(), 3);
    // Nor a try for which the budget has no retry left.
    let none = "retry = { on = ['timeout'], per_try_timeout = '100ms', budget = { share = 0.0, min_per_second = 0 } }";
    let weir = before(&one, none);
    assert_eq!(ask(&weir, "GET").text(), "slow");
    assert_eq!(weir.metric("weir_retries_total", &[("pool", "app")]), 0.0);
}

#[test]
fn a_retry_after_is_waited_for_before_the_next_try() {
    let backend = in_turn(&[(429, &[("retry-after", "1")]), (200, &[])]);
    let weir = before(&backend, "retry = { on = ['429'] }");
    let begun = Instant::now();
    assert_eq!(ask(&weir, "GET").status, 200);
    assert!(begun.elapsed() >= Duration::from_millis(990), "asked again after {:?}", begun.elapsed());
    assert_eq!(backend.served(), 2);
}

#[test]
fn an_answer_whose_retry_after_is_too_long_is_passed_on() {
    for (pool, after) in [("", "2"), ("retry_after = '10s', ", "11"), ("retry_after = 'off', ", "1")] {
        let waits = pool.contains("off");
        let backend = Backend::serving(move |_, wire| {
            wire.answers(429, &[("retry-after", after)], "later");
            After::Keep
        });
        let mut config = format!("retry = {{ {pool}on = ['429'], attempts = 1 }}");
        if waits {
            // Within the time of the whole request there is no room for it.
            config += "\ntimeout = { request_total = '800ms' }";
        }
        let weir = before(&backend, &config);
        let response = ask(&weir, "GET");
        assert_eq!((response.status, response.fields.one("retry-after")), (429, Some(after)), "{pool}");
        assert_eq!(backend.served(), 1, "{pool}");
    }
}

#[test]
fn a_503_tells_of_its_backend_and_so_another_is_asked_at_once() {
    let bad = in_turn(&[(503, &[("retry-after", "3600")])]);
    let good = Backend::saying("good");
    let weir = between(bad.address(), &good, "retry = { on = ['503'] }", "");
    assert_eq!(ask(&weir, "GET").text(), "good");
    let weir = before(&bad, "retry = { on = ['503'] }");
    assert_eq!(ask(&weir, "GET").status, 503, "there is no other, and an hour is too long");
    assert_eq!(bad.served(), 2);
}

#[test]
fn a_client_that_leaves_while_it_is_waited_is_not_asked_for_again() {
    let backend = in_turn(&[(429, &[("retry-after", "2")]), (200, &[])]);
    let weir = before(&backend, "retry = { on = ['429'], retry_after = '1m' }");
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    until("the first try", || (backend.served() == 1).then_some(()));
    weir.reaches("weir_retries_total", &[("pool", "app")], 1.0);
    client.resets();
    weir.reaches("weir_ends_total", &[("reason", "client_closed")], 1.0);
    assert_eq!(backend.served(), 1);
}

#[test]
fn a_pool_without_a_budget_tries_nothing_again_and_one_with_more_does() {
    // H3
    let bad = Backend::serving(|_, wire| {
        wire.answers(503, &[], "busy");
        After::Keep
    });
    for (budget, retries) in [("share = 0.0, min_per_second = 0", 0), ("share = 1.0, min_per_second = 0", 10)]
    {
        let weir =
            before(&bad, &format!("retry = {{ attempts = 1, on = ['503'], budget = {{ {budget} }} }}"));
        for _ in 0..10 {
            assert_eq!(ask(&weir, "GET").status, 503);
        }
        assert_eq!(weir.metric("weir_retries_total", &[("pool", "app")]), f64::from(retries), "{budget}");
        let refused = weir.metric("weir_rejected_total", &[("reason", "retry_budget")]);
        assert_eq!(refused, f64::from(10 - retries), "{budget}");
    }
}
