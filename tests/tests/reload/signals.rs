//! TERM, INT and USR1.

use weir_tests::dialogue::{ScriptedBackend, Setup, Signal, Wire, free_address, tool, until};

use super::{ask, named};

fn config(drain: &str) -> String {
    format!(
        r#"
        [runtime]
        drain = "{drain}"
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off" }}
        "#
    )
}

#[test]
fn term_finishes_what_is_under_way_accepts_nothing_new_and_exits_with_0() {
    let backend = ScriptedBackend::start();
    let mut weir = Setup::of(&config("20s")).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let front = weir.address("web");
    weir.signals(Signal::TERM);
    until("the listener to be closed", || std::net::TcpStream::connect(front).is_err().then_some(()));
    wire.answers(200, &[], "still served");
    let response = client.receives_status(200);
    assert_eq!(response.text(), "still served");
    assert!(response.closes(), "a kept connection must learn that this was its last answer");
    assert_eq!(weir.exits().code(), Some(0), "{}", weir.story());
}

#[test]
fn readyz_says_503_while_draining_and_livez_200() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config("20s")).with("app", backend.address()).start();
    let admin = weir.admin();
    assert_eq!((admin.reads("/readyz").status(), admin.reads("/livez").status()), (200, 200));
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    weir.signals(Signal::TERM);
    until("readyz to change", || (admin.tries_to_read("/readyz")?.status() == 503).then_some(()));
    assert_eq!(admin.reads("/livez").status(), 200);
    wire.answers(200, &[], "ok");
    client.receives_status(200);
}

/// It bound all that was closed anew, and let clients in that were cut off later.
#[test]
fn a_reload_while_the_process_drains_opens_nothing() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config("20s")).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    weir.signals(Signal::TERM);
    let address = weir.address("web");
    until("nobody to be let in", || Wire::try_connect(address).is_err().then_some(()));
    let text = std::fs::read_to_string(weir.config_path()).expect("the config");
    let more = format!("{text}\n[listener.more]\nbind = \"{}\"\npool = \"app\"\n", free_address());
    std::fs::write(weir.config_path(), more).expect("write");
    let finished = weir.command(&["reload"]);
    assert!(finished.code == 1 && finished.stderr.contains("on its way out"), "{finished:?}");
    assert!(Wire::try_connect(address).is_err(), "a process that ends lets somebody in");
    wire.answers(200, &[], "ok");
    client.receives_status(200);
}

#[test]
fn idle_kept_connections_do_not_hold_up_the_end() {
    let backend = named("a");
    let mut weir = Setup::of(&config("30s")).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    let begun = std::time::Instant::now();
    weir.signals(Signal::TERM);
    client.receives_end();
    assert_eq!(weir.exits().code(), Some(0));
    assert!(begun.elapsed().as_secs() < 8, "an idle connection held the end up for {:?}", begun.elapsed());
}

#[test]
fn what_outlasts_the_drain_time_is_cut_off() {
    let backend = ScriptedBackend::start();
    let mut weir = Setup::of(&config("500ms")).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let begun = std::time::Instant::now();
    weir.signals(Signal::TERM);
    weir.exits();
    assert!(begun.elapsed().as_millis() >= 490, "ended after {:?}", begun.elapsed());
    client.receives_to_the_end();
}

#[test]
fn the_log_says_how_many_were_cut_off_at_the_end_of_the_drain() {
    let backend = ScriptedBackend::start();
    let config = config("2s").replace("bind = \"@web\"", "protocol = \"tcp\"\n bind = \"@web\"");
    let mut weir = Setup::of(&config).with("app", backend.address()).start();
    let mut sessions: Vec<_> = (0..23).map(|_| (weir.client("web"), backend.accepts())).collect();
    let admin = weir.admin();
    weir.signals(Signal::TERM);
    until("draining", || (admin.tries_to_read("/readyz")?.status() == 503).then_some(()));
    // Three are done in time.
    for (client, _wire) in sessions.drain(..3) {
        client.resets();
    }
    weir.exits();
    assert!(weir.stderr().contains("cut_off=20"), "{}", weir.story());
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let backend = ScriptedBackend::start();
    let mut weir = Setup::of(&config("60s")).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let admin = weir.admin();
    weir.signals(Signal::INT);
    until("draining", || (admin.tries_to_read("/readyz")?.status() == 503).then_some(()));
    weir.signals(Signal::INT);
    weir.exits();
}

#[test]
fn usr1_opens_the_log_anew() {
    let backend = named("a");
    let weir = Setup::of(&config("1s")).with("app", backend.address()).start();
    ask(&weir, "web");
    weir.lines_of("access.log", 1);
    std::fs::rename(weir.dir().join("access.log"), weir.dir().join("access.log.1")).expect("rotate");
    weir.signals(Signal::USR1);
    until("a line in the new file", || {
        ask(&weir, "web");
        (!weir.file("access.log").is_empty()).then_some(())
    });
    for line in weir.file("access.log.1").lines().chain(weir.file("access.log").lines()) {
        assert!(serde_json_is_object(line), "a broken line: {line:?}");
    }
}

fn serde_json_is_object(line: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(line).is_ok_and(|value| value.is_object())
}

/// It was done, and the new process was killed by the kernel with the last request of the old one.
#[test]
fn the_first_process_of_a_container_refuses_an_upgrade_and_serves_on() {
    let backend = named("a");
    let unshare = tool("unshare", "util-linux").display().to_string();
    let setup = Setup::of(&config("1s")).with("app", backend.address());
    let weir = setup.under(&[&unshare, "--pid", "--fork", "--kill-child"]).start();
    let pid = weir.pid();
    weir.signals_pid(pid, Signal::USR2);
    until("an answer to it", || {
        let said = weir.stderr();
        assert!(!said.contains("upgrading"), "{said}");
        said.contains("upgrade refused: this is the first process").then_some(())
    });
    assert_eq!((ask(&weir, "web").text(), weir.pid()), ("a".to_owned(), pid));
}
