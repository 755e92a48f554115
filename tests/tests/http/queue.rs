//! What happens when every backend is at `max_connections`, over all workers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{After, Backend, PATIENCE, ScriptedBackend, Setup, Weir, Wire, until};

/// A backend whose answers wait until the test lets them go, one by one.
struct Gate {
    backend: Backend,
    go: Sender<()>,
    peak: Arc<Peak>,
}

/// How many requests were under way at most. A request counts until just before its answer is sent: from then
/// on Weir may rightly send the next one.
#[derive(Default)]
struct Peak {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Peak {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

fn gate() -> Gate {
    let (go, wait) = channel();
    let wait: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(wait));
    let peak = Arc::new(Peak::default());
    let counting = peak.clone();
    let backend = Backend::serving(move |request, wire| {
        counting.enter();
        let allowed = wait.lock().map(|wait| wait.recv_timeout(PATIENCE * 2).is_ok());
        counting.leave();
        if allowed.unwrap_or(false) {
            wire.answers(200, &[], &request.target);
        }
        After::Keep
    });
    Gate { backend, go, peak }
}

fn limited(gate: &Gate, queue: &str) -> Weir {
    let config = format!(
        r#"
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = [{{ address = "@app", max_connections = 2 }}]
        queue = {queue}
        health = {{ check = "off", passive = "off" }}
        "#
    );
    Setup::of(&config).with("app", gate.backend.address()).start()
}

fn ask(weir: &Weir, target: &str) -> Wire {
    let mut client = weir.client("web");
    client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
    client
}

/// Fills the backend: two requests in progress.
fn fill(weir: &Weir, gate: &Gate) -> [Wire; 2] {
    let both = [ask(weir, "/1"), ask(weir, "/2")];
    until("two requests at the backend", || (gate.backend.busy() == 2).then_some(()));
    both
}

#[test]
fn one_request_too_many_waits_and_is_served_when_another_is_done() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 10, timeout = "10s" }"#);
    let mut first = fill(&weir, &gate);
    let mut third = ask(&weir, "/3");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    assert_eq!(gate.backend.served(), 2);
    assert_eq!(third.looks(), 0);
    gate.go.send(()).expect("the backend waits");
    until("the third at the backend", || (gate.backend.served() == 3).then_some(()));
    gate.go.send(()).expect("the backend waits");
    gate.go.send(()).expect("the backend waits");
    for client in &mut first {
        client.receives_status(200);
    }
    assert_eq!(third.receives_status(200).text(), "/3");
    assert_eq!(gate.peak.most(), 2, "never more than max_connections at once");
    until("an empty queue", || (weir.metric("weir_queue_depth", &[("pool", "app")]) == 0.0).then_some(()));
}

#[test]
fn waiting_requests_are_served_first_come_first_served() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 10, timeout = "10s" }"#);
    let _first = fill(&weir, &gate);
    let mut waiting = Vec::new();
    for number in 3..=8 {
        waiting.push(ask(&weir, &format!("/{number}")));
        weir.reaches("weir_queue_depth", &[("pool", "app")], f64::from(number - 2));
    }
    for done in 1..=6 {
        gate.go.send(()).expect("the backend waits");
        until("the next at the backend", || (gate.backend.served() >= 2 + done).then_some(()));
    }
    let targets: Vec<String> =
        gate.backend.requests().into_iter().skip(2).map(|request| request.target).collect();
    assert_eq!(targets, ["/3", "/4", "/5", "/6", "/7", "/8"]);
    for _ in 0..2 {
        gate.go.send(()).expect("the backend waits");
    }
    for client in &mut waiting {
        client.receives_status(200);
    }
}

#[test]
fn a_request_that_finds_the_queue_full_is_answered_503_at_once() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 1, timeout = "10s" }"#);
    let _first = fill(&weir, &gate);
    let mut third = ask(&weir, "/3");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    let begun = std::time::Instant::now();
    ask(&weir, "/4").receives_status(503);
    assert!(begun.elapsed().as_secs() < 5, "refused only after {:?}", begun.elapsed());
    weir.reaches("weir_rejected_total", &[("reason", "queue_full")], 1.0);
    for _ in 0..3 {
        gate.go.send(()).expect("the backend waits");
    }
    assert_eq!(third.receives_status(200).text(), "/3");
}

#[test]
fn a_request_that_waited_for_its_whole_timeout_is_answered_503() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 10, timeout = "300ms" }"#);
    let mut first = fill(&weir, &gate);
    let begun = std::time::Instant::now();
    ask(&weir, "/3").receives_status(503);
    assert!(begun.elapsed().as_millis() >= 290, "given up after {:?}", begun.elapsed());
    let line: serde_json::Value =
        serde_json::from_str(&weir.lines_of("access.log", 1)[0]).expect("a line of JSON");
    assert!(line["queue"].as_f64().is_some_and(|seconds| seconds >= 0.29), "where the time went: {line}");
    weir.reaches("weir_rejected_total", &[("reason", "queue_timeout")], 1.0);
    gate.go.send(()).expect("the backend waits");
    gate.go.send(()).expect("the backend waits");
    for client in &mut first {
        client.receives_status(200);
    }
    assert_eq!(gate.backend.served(), 2, "what was given up never reached the backend");
}

#[test]
fn a_client_that_leaves_the_queue_gives_up_its_place() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 1, timeout = "10s" }"#);
    let _first = fill(&weir, &gate);
    let leaver = ask(&weir, "/leaver");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    leaver.resets();
    until("an empty queue", || (weir.metric("weir_queue_depth", &[("pool", "app")]) == 0.0).then_some(()));
    let mut next = ask(&weir, "/next");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    for _ in 0..3 {
        gate.go.send(()).expect("the backend waits");
    }
    assert_eq!(next.receives_status(200).text(), "/next");
    assert!(gate.backend.requests().iter().all(|request| request.target != "/leaver"));
}

#[test]
fn a_request_whose_client_closed_while_it_waited_is_never_executed() {
    let gate = gate();
    let weir = limited(&gate, r#"{ max = 10, timeout = "10s" }"#);
    let mut first = fill(&weir, &gate);
    // An orderly close, which unlike a reset is only the end of a stream.
    let mut leaver = weir.client("web");
    leaver.sends("POST /leaver HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
    weir.reaches("weir_queue_depth", &[("pool", "app")], 1.0);
    drop(leaver);
    until("an empty queue", || (weir.metric("weir_queue_depth", &[("pool", "app")]) == 0.0).then_some(()));
    for _ in 0..2 {
        gate.go.send(()).expect("the backend waits");
    }
    for client in &mut first {
        client.receives_status(200);
    }
    gate.go.send(()).expect("the backend waits");
    ask(&weir, "/next").receives_status(200);
    let targets: Vec<String> = gate.backend.requests().into_iter().map(|request| request.target).collect();
    assert!(!targets.iter().any(|target| target == "/leaver"), "{targets:?}");
    let ends = weir.lines_of("access.log", 4);
    assert!(ends.iter().any(|line| line.contains("/leaver") && line.contains("client_closed")), "{ends:#?}");
}

#[test]
fn max_connections_holds_over_all_workers_under_load() {
    let peak = Arc::new(Peak::default());
    let counting = peak.clone();
    let backend = Backend::serving(move |_, wire| {
        counting.enter();
        // Long enough that without the limit many would overlap.
        std::thread::sleep(std::time::Duration::from_millis(2));
        counting.leave();
        wire.answers(200, &[], "ok");
        After::Keep
    });
    let weir = Setup::of(
        r#"
        [runtime]
        workers = 2
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = [{ address = "@app", max_connections = 3 }]
        queue = { max = 1000, timeout = "10s" }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                let mut client = weir.client("web");
                for number in 0..25 {
                    client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n"));
                    client.receives_status(200);
                }
            });
        }
    });
    assert_eq!(backend.served(), 600);
    assert!(peak.most() <= 3, "{} requests at once", peak.most());
    assert_eq!(peak.most(), 3, "the limit was never reached, so the test showed nothing");
}

fn crowded_config(backends: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = {backends}
        queue = {{ max = 10, timeout = "8s" }}
        health = {{ check = "off", passive = "off" }}
        "#
    )
}

fn crowded(backends: &str, known: &[(&str, SocketAddr)]) -> Weir {
    let setup = Setup::of(&crowded_config(backends));
    known.iter().fold(setup, |setup, (name, address)| setup.with(name, address)).start()
}

const ONE_OF_ONE: &str = r#"[{ address = "@a", max_connections = 1 }]"#;

/// Sends a request that `backend` gets and does not answer.
fn occupy(weir: &Weir, backend: &ScriptedBackend) -> (Wire, Wire) {
    let client = ask(weir, "/occupies");
    let mut wire = backend.accepts();
    wire.receives_request();
    (client, wire)
}

/// Requests in line, in this order.
fn line_up(weir: &Weir, count: u32) -> Vec<Wire> {
    let enter = |number: u32| {
        let client = ask(weir, &format!("/{number}"));
        weir.reaches("weir_queue_depth", &[("pool", "app")], f64::from(number));
        client
    };
    (1..=count).map(enter).collect()
}

#[test]
fn a_backend_that_is_enabled_again_serves_those_who_wait() {
    let (a, b) = (ScriptedBackend::start(), Backend::saying("b"));
    let pool = r#"[{ address = "@a", max_connections = 1 }, { address = "@b", max_connections = 1 }]"#;
    let weir = crowded(pool, &[("a", a.address()), ("b", b.address())]);
    let path = format!("/v1/pools/app/backends/{}", b.address());
    assert_eq!(weir.admin().calls("PATCH", &path, &[], r#"{"state": "drain"}"#).status(), 200);
    let _held = occupy(&weir, &a);
    let waiting = line_up(&weir, 3);
    assert_eq!(weir.admin().calls("PATCH", &path, &[], r#"{"state": "ready"}"#).status(), 200);
    for mut client in waiting {
        assert_eq!(client.receives_status(200).text(), "b");
    }
    let served: Vec<String> = b.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(served, ["/1", "/2", "/3"], "the line was not kept");
}

#[test]
fn a_reload_that_lets_a_backend_take_more_serves_all_who_wait() {
    let a = ScriptedBackend::start();
    let mut weir = crowded(ONE_OF_ONE, &[("a", a.address())]);
    let _held = occupy(&weir, &a);
    let waiting = line_up(&weir, 3);
    weir.reloads(&crowded_config(&ONE_OF_ONE.replace("max_connections = 1", "max_connections = 10")));
    let mut wires: Vec<Wire> = waiting.iter().map(|_| a.accepts()).collect();
    for wire in &mut wires {
        let target = wire.receives_request().target;
        wire.answers(200, &[], target);
    }
    for mut client in waiting {
        client.receives_status(200);
    }
}

#[test]
fn a_backend_that_is_added_serves_those_who_wait() {
    let (a, b) = (ScriptedBackend::start(), Backend::saying("b"));
    let weir = crowded(ONE_OF_ONE, &[("a", a.address())]);
    let _held = occupy(&weir, &a);
    let waiting = line_up(&weir, 3);
    let body = format!(r#"{{"address": "{}", "max_connections": 1}}"#, b.address());
    assert_eq!(weir.admin().calls("POST", "/v1/pools/app/backends", &[], &body).status(), 201);
    for mut client in waiting {
        assert_eq!(client.receives_status(200).text(), "b");
    }
}

#[test]
fn those_who_wait_for_a_pool_that_goes_away_are_told_at_once() {
    let (a, b) = (ScriptedBackend::start(), Backend::saying("b"));
    let mut weir = crowded(ONE_OF_ONE, &[("a", a.address())]);
    weir.knows("b", b.address());
    let _held = occupy(&weir, &a);
    let waiting = line_up(&weir, 3);
    let begun = std::time::Instant::now();
    weir.reloads(&crowded_config(r#"["@b"]"#).replace("app", "other"));
    for mut client in waiting {
        client.receives_status(503);
    }
    assert!(begun.elapsed().as_secs() < 5, "told only after {:?}", begun.elapsed());
}
