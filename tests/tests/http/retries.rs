//! When a failed attempt is made again, and when it must not be (threat H3, R5).

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_tests::dialogue::{After, Backend, Broken, ScriptedBackend, Setup, Weir, free_address};

use super::PLAIN;

/// Two backends, of which the first takes its turn first.
const TWO: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
timeout = { connect = "500ms", backend = "500ms" }
[pool.app]
backends = ["@bad", "@good"]
balance = "first"
retry = { attempts = 2, on = ["connect", "empty", "timeout", "502", "503", "504"] }
health = { check = "off", passive = "off" }
"#;

fn between(bad: impl ToString, good: &Backend) -> Weir {
    Setup::of(TWO).with("bad", bad).with("good", good.address()).start()
}

pub fn ask(weir: &Weir, method: &str) -> weir_tests::dialogue::Response {
    let mut client = weir.client("web");
    let body = if method == "POST" { "content-length: 2\r\n\r\nhi" } else { "\r\n" };
    client.sends(format!("{method} / HTTP/1.1\r\nhost: a\r\n{body}"));
    client.receives_response()
}

#[test]
fn a_refused_connection_is_tried_elsewhere_for_every_method() {
    // Nothing was sent, so even a POST is safe to send again.
    let good = Backend::saying("good");
    let weir = between(free_address(), &good);
    for method in ["GET", "POST", "PUT", "DELETE"] {
        assert_eq!(ask(&weir, method).status, 200, "{method}");
    }
    weir.reaches("weir_retries_total", &[("pool", "app")], 4.0);
}

#[test]
fn a_get_whose_backend_closed_without_an_answer_is_tried_elsewhere() {
    for after in [After::Close, After::Reset] {
        let bad = Backend::serving(move |_, _| after);
        let good = Backend::saying("good");
        let weir = between(bad.address(), &good);
        let response = ask(&weir, "GET");
        assert_eq!((response.status, response.text().as_str()), (200, "good"), "{after:?}");
        assert_eq!((bad.served(), good.served()), (1, 1));
    }
}

#[test]
fn a_post_that_reached_a_backend_is_never_sent_twice() {
    // R5: nothing executed twice.
    for after in [After::Close, After::Reset] {
        let bad = Backend::serving(move |_, _| after);
        let good = Backend::saying("good");
        let weir = between(bad.address(), &good);
        let response = ask(&weir, "POST");
        assert_eq!(response.status, 502, "{after:?}");
        assert_eq!((bad.served(), good.served()), (1, 0));
    }
}

#[test]
fn a_post_on_a_kept_connection_that_the_backend_just_closed_is_never_executed_twice() {
    // The race every proxy has: the kept connection dies while the request is on its way. Without an answer
    // nobody knows whether it was executed, so the only right ways out are one execution or an error.
    let executed = std::sync::Arc::new(AtomicUsize::new(0));
    let counting = executed.clone();
    let backend = Backend::serving(move |request, wire| {
        if request.method == "POST" {
            counting.fetch_add(1, Ordering::SeqCst);
            return After::Reset;
        }
        wire.answers(200, &[], "warm");
        After::Keep
    });
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    for round in 1..=20 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
        client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
        client.receives_status(502);
        assert_eq!(executed.load(Ordering::SeqCst), round, "executed more than once");
    }
}

#[test]
fn a_post_is_tried_again_where_the_operator_says_so() {
    let bad = Backend::serving(|_, _| After::Reset);
    let good = Backend::serving(|request, wire| {
        wire.answers(200, &[], &request.body);
        After::Keep
    });
    let config = TWO.replace("attempts = 2,", "attempts = 2, non_idempotent = true,");
    let weir = Setup::of(&config).with("bad", bad.address()).with("good", good.address()).start();
    let response = ask(&weir, "POST");
    assert_eq!((response.status, response.text().as_str()), (200, "hi"));
}

#[test]
fn a_503_of_one_backend_is_hidden_by_another() {
    for status in [502, 503, 504] {
        let bad = Backend::serving(move |_, wire| {
            wire.answers(status, &[], "bad");
            After::Keep
        });
        let good = Backend::saying("good");
        let weir = between(bad.address(), &good);
        assert_eq!(ask(&weir, "GET").text(), "good", "{status}");
        // A POST was executed as far as anybody knows: its answer is passed on.
        assert_eq!(ask(&weir, "POST").text(), "bad", "{status}");
    }
}

#[test]
fn statuses_that_are_not_listed_are_passed_on() {
    let bad = Backend::serving(|_, wire| {
        wire.answers(500, &[], "the backend's own words");
        After::Keep
    });
    let good = Backend::saying("good");
    let weir = between(bad.address(), &good);
    let response = ask(&weir, "GET");
    assert_eq!((response.status, response.text().as_str()), (500, "the backend's own words"));
    assert_eq!(good.served(), 0);
}

#[test]
fn a_backend_that_does_not_answer_in_time_is_given_up() {
    let silent = ScriptedBackend::start();
    let good = Backend::saying("good");
    let weir = between(silent.address(), &good);
    assert_eq!(ask(&weir, "GET").text(), "good");
    let mut first = silent.accepts();
    first.receives_request();
    first.receives_close();
    // A POST may have been executed: 504, and no second try.
    assert_eq!(ask(&weir, "POST").status, 504);
    assert_eq!(good.served(), 1);
}

#[test]
fn when_every_backend_fails_the_client_gets_502() {
    let weir = Setup::of(TWO).with("bad", free_address()).with("good", free_address()).start();
    let response = ask(&weir, "GET");
    assert_eq!(response.status, 502);
    // The connection is still good: only the exchange failed.
    let mut client = weir.client("web");
    for _ in 0..3 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(502);
    }
}

#[test]
fn a_large_body_that_cannot_be_sent_again_is_not_half_sent_again() {
    // A retry needs the whole body; one that was streamed on is gone.
    let bad = ScriptedBackend::start();
    let good = Backend::serving(|request, wire| {
        wire.answers(200, &[], request.body.len().to_string());
        After::Keep
    });
    let weir = between(bad.address(), &good);
    let mut client = weir.client("web");
    let size = 3_000_000;
    client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"));
    client.sends(vec![b'x'; 1_000_000]);
    let mut wire = bad.accepts();
    wire.receives_request_head();
    wire.receives(600_000);
    wire.resets();
    let _ = client.tries_to_send(vec![b'x'; size - 1_000_000]);
    match client.tries_to_receive_response("PUT") {
        Ok(response) if response.status == 200 => assert_eq!(response.text(), size.to_string()),
        Ok(response) => assert_eq!(response.status, 502),
        Err((broken, _)) => panic!("no answer: {broken}"),
    }
    assert!(good.requests().iter().all(|request| request.body.len() == size));
}

#[test]
fn nothing_is_tried_again_once_the_client_has_a_part_of_the_response() {
    let bad = Backend::serving(|_, wire| {
        wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\npart");
        After::Reset
    });
    let good = Backend::saying("good");
    let weir = between(bad.address(), &good);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    match client.tries_to_receive_response("GET") {
        // The reset can destroy the part before Weir has read it; then a retry is right.
        Ok(response) => assert_eq!(response.text(), "good"),
        Err((Broken::Ended | Broken::Reset, _)) => assert_eq!(good.served(), 0),
        Err((broken, _)) => panic!("{broken}"),
    }
}

#[test]
fn a_storm_of_503_is_answered_with_few_retries() {
    // H3: the budget keeps retries at or below a fifth of the requests, or a failing pool would get a
    // multiple of its load.
    let storm = || {
        Backend::serving(|_, wire| {
            wire.answers(503, &[], "busy");
            After::Keep
        })
    };
    let (one, two) = (storm(), storm());
    let config = TWO.replace("balance = \"first\"", "");
    let weir = Setup::of(&config).with("bad", one.address()).with("good", two.address()).start();
    let requests = 2000;
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = weir.client("web");
                for _ in 0..requests / 4 {
                    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
                    client.receives_status(503);
                }
            });
        }
    });
    let attempts = one.served() + two.served();
    let retries = attempts - requests;
    println!("{retries} retries for {requests} requests");
    // A fifth, and an allowance of ten a second (over a window of ten) that lets a pool with little traffic
    // retry at all.
    let allowance = 10 * (begun.elapsed().as_secs() as usize + 11);
    assert!(retries <= requests / 5 + allowance, "{retries} retries for {requests} requests");
    assert!(
        retries < requests / 2,
        "{retries} retries: the machine is too slow for this test to show anything"
    );
    weir.reaches("weir_rejected_total", &[("reason", "retry_budget")], 1.0);
}
