//! `on_down = "end-sessions"`: what is under way at a backend that went down is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, until};

use super::is_up;

/// Answers probes with a status that can be changed.
fn probed() -> (Backend, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let told = status.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.answers(told.load(Ordering::SeqCst), &[], "");
        After::Close
    });
    (backend, status)
}

fn config(protocol: &str, probes: &Backend, more: &str) -> String {
    format!(
        r#"
        [listener.front]
        bind = "@front"
        protocol = "{protocol}"
        pool = "app"
        [pool.app]
        backends = ["@app", {{ address = "@other", backup = true }}]
        [pool.app.health]
        check = "http"
        port = {}
        interval = "1s"
        fast_interval = "20ms"
        timeout = "1s"
        rise = 1
        fall = 1
        passive = "off"
        last_resort = "off"
        {more}
        [log]
        access = "@dir/access.log"
        "#,
        probes.address().port()
    )
}

const END: &str = "on_down = \"end-sessions\"";

/// Another backend, at an address where the probed port answers well.
struct Other {
    backend: Backend,
    _probed: Backend,
}

impl Other {
    fn start(probes: &Backend) -> Other {
        let (mut address, mut probed) = (weir_tests::dialogue::free_address(), probes.address());
        address.set_ip([127, 0, 0, 3].into());
        probed.set_ip(address.ip());
        let saying = |address, text: &'static str| {
            Backend::serving_at(address, move |_, wire| {
                wire.answers(200, &[], text);
                After::Keep
            })
        };
        Other { backend: saying(address, "other"), _probed: saying(probed, "") }
    }
}

fn start(config: &str, app: &ScriptedBackend, other: &Other) -> Weir {
    let weir = Setup::of(config).with("app", app.address()).with("other", other.backend.address()).start();
    until("a verdict", || {
        let status = weir.admin().reads("/v1/pools/app").json();
        (status["backends"][0]["health"] == "up").then_some(())
    });
    weir
}

fn goes_down(weir: &Weir, app: &ScriptedBackend, status: &AtomicU16) {
    status.store(503, Ordering::SeqCst);
    until("the backend to be down", || (!is_up(weir, app.address())).then_some(()));
}

#[test]
fn a_tcp_session_is_reset_on_both_sides_and_says_why() {
    let (probes, status) = probed();
    let (app, other) = (ScriptedBackend::start(), Other::start(&probes));
    let weir = start(&config("tcp", &probes, END), &app, &other);
    let mut client = weir.client("front");
    client.sends("hello");
    let mut backend = app.accepts();
    backend.receives_exactly("hello");
    backend.sends("world");
    client.receives_exactly("world");
    goes_down(&weir, &app, &status);
    // No end of the stream: the client must not take what it has for all there is.
    until("the client to be cut off", || client.has_ended().then_some(()));
    assert!(client.was_reset());
    until("the backend to be told", || backend.has_ended().then_some(()));
    let line = weir.lines_of("access.log", 1).remove(0);
    assert!(line.contains("backend_down"), "{line}");
    let cut = [("backend", app.address().to_string())];
    assert_eq!(weir.metric("weir_backend_connections_cut_total", &[("backend", &cut[0].1)]), 1.0);
}

#[test]
fn without_being_asked_for_sessions_go_on() {
    let (probes, status) = probed();
    let (app, other) = (ScriptedBackend::start(), Other::start(&probes));
    let weir = start(&config("tcp", &probes, ""), &app, &other);
    let mut client = weir.client("front");
    client.sends("hello");
    let mut backend = app.accepts();
    backend.receives_exactly("hello");
    goes_down(&weir, &app, &status);
    backend.sends("world");
    client.receives_exactly("world");
    client.sends("again");
    backend.receives_exactly("again");
}

#[test]
fn a_session_that_began_while_it_was_down_is_left_alone_until_it_goes_down_again() {
    let (probes, status) = probed();
    let app = ScriptedBackend::start();
    let config = config("tcp", &probes, END)
        .replace(", { address = \"@other\", backup = true }", "")
        .replace("last_resort = \"off\"", "last_resort = \"all\"");
    // One worker: once it has ended one session, it has ended all that there were.
    let config = format!("{config}\n[runtime]\nworkers = 1\n");
    let weir = Setup::of(&config).with("app", app.address()).start();
    let mut before = weir.client("front");
    before.sends("hello");
    let mut backend_before = app.accepts();
    backend_before.receives_exactly("hello");
    goes_down(&weir, &app, &status);
    until("the session before to be cut off", || before.has_ended().then_some(()));
    let mut client = weir.client("front");
    client.sends("hello");
    let mut backend = app.accepts();
    backend.receives_exactly("hello");
    let bad = [("backend", app.address().to_string()), ("result", "bad".to_owned())];
    let bad: Vec<(&str, &str)> = bad.iter().map(|(name, value)| (*name, value.as_str())).collect();
    weir.reaches("weir_probes_total", &bad, weir.metric("weir_probes_total", &bad) + 2.0);
    backend.sends("world");
    client.receives_exactly("world");
    status.store(200, Ordering::SeqCst);
    until("it to be up", || is_up(&weir, app.address()).then_some(()));
    goes_down(&weir, &app, &status);
    until("the client to be cut off", || client.has_ended().then_some(()));
}

#[test]
fn an_http_request_without_an_answer_goes_elsewhere_and_one_with_half_an_answer_is_visibly_cut() {
    let (probes, status) = probed();
    let (app, other) = (ScriptedBackend::start(), Other::start(&probes));
    let weir = start(&config("http", &probes, END), &app, &other);
    let (mut waiting, mut reading) = (weir.client("front"), weir.client("front"));
    waiting.sends("GET /waiting HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut unanswered = app.accepts();
    unanswered.receives_request();
    reading.sends("GET /reading HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut half = app.accepts();
    half.receives_request();
    half.sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it");
    reading.receives_until("half of it");
    goes_down(&weir, &app, &status);
    assert_eq!(waiting.receives_status(200).text(), "other");
    until("the answer to be cut", || reading.has_ended().then_some(()));
    assert!(reading.was_reset());
}

#[test]
fn a_websocket_is_cut_off_and_idle_connections_are_closed() {
    let (probes, status) = probed();
    let (app, other) = (ScriptedBackend::start(), Other::start(&probes));
    // With one worker who waits for the next request is where that comes.
    let config = format!("{}\n[runtime]\nworkers = 1\n", config("http", &probes, END));
    let weir = start(&config, &app, &other);
    // One request first, whose connection is kept.
    let mut first = weir.client("front");
    first.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut idle = app.accepts();
    idle.receives_request();
    idle.answers(200, &[], "kept");
    assert_eq!(first.receives_status(200).text(), "kept");
    let mut client = weir.client("front");
    client.sends("GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n");
    // It comes on the connection that was kept.
    idle.receives_request();
    idle.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\nhello");
    client.receives_until("hello");
    client.sends("hi");
    idle.receives_exactly("hi");
    let mut kept = {
        first.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut kept = app.accepts();
        kept.receives_request();
        kept.answers(200, &[], "kept");
        first.receives_status(200);
        kept
    };
    goes_down(&weir, &app, &status);
    until("the socket to be cut off", || client.has_ended().then_some(()));
    assert!(client.was_reset());
    until("the kept one to be closed", || kept.has_ended().then_some(()));
    let lines = weir.lines_of("access.log", 3);
    assert!(lines.iter().any(|line| line.contains("/socket") && line.contains("backend_down")), "{lines:?}");
    // Its other clients are served by who is left.
    first.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(first.receives_status(200).text(), "other");
}
