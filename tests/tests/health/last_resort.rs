//! What a pool does when probes say that all of its backends are down: like Envoy's panic mode, but with a
//! limit on what is tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, Setup, Weir, Wire, until};

use super::{is_up, two_backends};

/// Probes get 100 ms; passive health is off, so that only probes count.
fn config(more: &str) -> String {
    two_backends(&format!(
        r#"
        queue = {{ max = 2, timeout = "500ms" }}
        retry = {{ attempts = 0 }}
        [pool.app.health]
        check = "http"
        path = "/healthz"
        interval = "100ms"
        fast_interval = "20ms"
        timeout = "100ms"
        rise = 2
        fall = 3
        passive = "off"
        {more}
        "#
    ))
}

/// A backend that works, and whose health page takes too long while `late` says so.
fn working(name: &'static str, late: &Arc<AtomicBool>) -> Backend {
    let late = late.clone();
    Backend::serving(move |request, wire| {
        if request.target == "/healthz" && late.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(400));
            return After::Close;
        }
        wire.answers(200, &[], name);
        After::Keep
    })
}

fn late() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

fn ask(weir: &Weir) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let response = client.receives_response();
    (response.status, response.text())
}

fn both_down(weir: &Weir, backends: [&Backend; 2]) {
    until("both to be down", || backends.iter().all(|it| !is_up(weir, it.address())).then_some(()));
}

fn serving_from(weir: &Weir) -> String {
    weir.admin().reads("/v1/pools/app").json()["serving_from"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn backends_whose_probes_are_merely_late_serve_on_when_all_are_down() {
    let (a_late, b_late) = (late(), late());
    let (a, b) = (working("a", &a_late), working("b", &b_late));
    let weir = Setup::of(&config("")).with("a", a.address()).with("b", b.address()).start();
    both_down(&weir, [&a, &b]);
    let answers: Vec<_> = (0..20).map(|_| ask(&weir)).collect();
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    for name in ["a", "b"] {
        assert_eq!(answers.iter().filter(|(_, by)| by == name).count(), 10, "in turn, as always");
    }
    // It is visible wherever an operator would look.
    assert_eq!(serving_from(&weir), "last-resort");
    assert_eq!(weir.metric("weir_last_resort_total", &[("pool", "app")]), 20.0);
    for name in ["weir_backend_up", "weir_backend_healthy"] {
        assert_eq!(weir.metric(name, &[("backend", &a.address().to_string())]), 0.0, "{name}");
    }
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.succeeded().contains("down by its probes, but nothing else is left"), "{explained:?}");
    assert!(weir.command(&["status"]).succeeded().contains("serving from last-resort"));
    until("a line in the log", || weir.stderr().contains("the last resort is tried").then_some(()));
    // As soon as one is up it gets everything.
    a_late.store(false, Ordering::SeqCst);
    until("a to be up", || is_up(&weir, a.address()).then_some(()));
    assert!((0..10).all(|_| ask(&weir) == (200, "a".to_owned())));
    assert_eq!(serving_from(&weir), "ordinary");
    assert_eq!(weir.metric("weir_last_resort_total", &[("pool", "app")]), 20.0);
}

#[test]
fn a_backend_that_refuses_or_answers_its_probe_badly_is_believed() {
    let refusing = Backend::serving(|_, wire| {
        wire.answers(503, &[], "not now");
        After::Keep
    });
    let b_late = late();
    let b = working("b", &b_late);
    for (last_resort, expected) in [("", ["b", "b"]), ("last_resort = \"all\"", ["not now", "b"])] {
        let weir =
            Setup::of(&config(last_resort)).with("a", refusing.address()).with("b", b.address()).start();
        both_down(&weir, [&refusing, &b]);
        let mut seen = [ask(&weir).1, ask(&weir).1];
        seen.sort_by_key(|text| std::cmp::Reverse(text.clone()));
        assert_eq!(seen, expected, "{last_resort}\n{}", weir.story());
    }
}

#[test]
fn with_the_last_resort_off_clients_get_503_at_once() {
    let (a_late, b_late) = (late(), late());
    let (a, b) = (working("a", &a_late), working("b", &b_late));
    let weir = Setup::of(&config("last_resort = \"off\"")).with("a", a.address()).with("b", b.address());
    let weir = weir.start();
    both_down(&weir, [&a, &b]);
    let begun = Instant::now();
    assert_eq!(ask(&weir).0, 503);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    weir.reaches("weir_rejected_total", &[("reason", "no_backend")], 1.0);
    assert_eq!(serving_from(&weir), "none");
}

#[test]
fn what_an_operator_took_out_is_not_tried_however_few_are_left() {
    let (a_late, b_late) = (late(), late());
    let (a, b) = (working("a", &a_late), working("b", &b_late));
    let weir = Setup::of(&config("last_resort = \"all\"")).with("a", a.address()).with("b", b.address());
    let weir = weir.start();
    both_down(&weir, [&a, &b]);
    weir.command(&["drain", "app", &a.address().to_string()]).succeeded();
    assert!((0..6).all(|_| ask(&weir) == (200, "b".to_owned())));
    weir.command(&["drain", "app", &b.address().to_string()]).succeeded();
    assert_eq!(ask(&weir).0, 503);
}

#[test]
fn backends_that_are_as_dead_as_their_probes_say_hold_few_requests_and_the_rest_is_refused_soon() {
    // They accept and never answer: each request that is tried would wait for `timeout.backend`.
    let over = Arc::new(AtomicBool::new(false));
    let frozen = || {
        let over = over.clone();
        Backend::serving(move |_, _| {
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            After::Close
        })
    };
    let (a, b) = (frozen(), frozen());
    let weir = Setup::of(&config("")).with("a", a.address()).with("b", b.address()).start();
    both_down(&weir, [&a, &b]);
    let mut stuck: Vec<Wire> = (0..64).map(|_| weir.client("web")).collect();
    for client in &mut stuck {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    weir.reaches("weir_last_resort_total", &[("pool", "app")], 64.0);
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(ask(&weir).0, 503);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "three refusals took {:?}", begun.elapsed());
    assert_eq!(weir.metric("weir_last_resort_total", &[("pool", "app")]), 64.0, "32 at each of two");
    weir.reaches("weir_rejected_total", &[("reason", "queue_timeout")], 3.0);
    // One client gives up, so its place is free for another.
    stuck.pop().expect("one of 64").resets();
    let mut next = weir.client("web");
    next.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    weir.reaches("weir_last_resort_total", &[("pool", "app")], 65.0);
    over.store(true, Ordering::SeqCst);
}

#[test]
fn below_the_panic_threshold_all_are_used_and_it_shows() {
    let lates: Vec<Arc<AtomicBool>> = (0..4).map(|number| Arc::new(AtomicBool::new(number > 0))).collect();
    let names = ["b0", "b1", "b2", "b3"];
    let backends: Vec<Backend> = names.iter().zip(&lates).map(|(name, late)| working(name, late)).collect();
    let config = config("panic_below = 0.5").replace(r#"["@a", "@b"]"#, r#"["@b0", "@b1", "@b2", "@b3"]"#);
    let mut setup = Setup::of(&config);
    for (name, backend) in names.iter().zip(&backends) {
        setup = setup.with(name, backend.address());
    }
    let weir = setup.start();
    let down = |count: usize| {
        until("the probes to say so", || {
            let down = backends.iter().filter(|it| !is_up(&weir, it.address())).count();
            (down == count).then_some(())
        });
    };
    down(3);
    until("panic", || (serving_from(&weir) == "panic").then_some(()));
    let mut seen: Vec<String> = (0..8).map(|_| ask(&weir).1).collect();
    seen.sort();
    assert_eq!(seen, ["b0", "b0", "b1", "b1", "b2", "b2", "b3", "b3"]);
    weir.reaches("weir_panic_total", &[("pool", "app")], 8.0);
    assert_eq!(weir.metric("weir_last_resort_total", &[("pool", "app")]), 0.0);
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.succeeded().contains("fewer backends are healthy than `panic_below`"), "{explained:?}");
    until("a line in the log", || weir.stderr().contains("all ordinary ones are used").then_some(()));
    // Half of them are enough.
    lates[1].store(false, Ordering::SeqCst);
    down(2);
    until("calm", || (serving_from(&weir) == "ordinary").then_some(()));
    let mut seen: Vec<String> = (0..4).map(|_| ask(&weir).1).collect();
    seen.sort();
    assert_eq!(seen, ["b0", "b0", "b1", "b1"]);
}
