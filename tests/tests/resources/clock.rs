//! Jumps of the wall clock change no timer (threat H4). Needs libfaketime.

use std::time::{Duration, Instant};

use weir_tests::dialogue::{NO_PROBES, ScriptedBackend, Setup, Weir, one_pool, until};

/// The config with these timeouts of the listener.
fn config(timeouts: &str) -> String {
    let log = "[log]\naccess = \"@dir/access.log\"";
    format!("{log}{}", one_pool(&format!("timeout = {{ {timeouts} }}"), NO_PROBES))
}

fn with_fake_clock(backend: &ScriptedBackend) -> Weir {
    let timeouts =
        r#"client_idle = "20s", header = "20s", backend = "20s", client_body = "20s", connect = "20s""#;
    Setup::of(&config(timeouts)).with("app", backend.address()).with_fake_clock().start()
}

#[test]
fn no_timer_fires_early_or_never_when_the_wall_clock_jumps_an_hour() {
    let backend = ScriptedBackend::start();
    let weir = with_fake_clock(&backend);
    for (round, offset) in ["+1h", "-1h", "+0"].into_iter().enumerate() {
        // Four waits at once, each under another timer: idle, head, body, backend.
        let mut idle = weir.client("web");
        idle.sends("GET /idle HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.answers(200, &[], "ok");
        idle.receives_status(200);
        drop(wire);
        let mut head = weir.client("web");
        head.sends("GET /head HTTP/1.1\r\nhost: a\r\n");
        let mut waiting = weir.client("web");
        waiting.sends("GET /waiting HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut waiting_wire = backend.accepts();
        waiting_wire.receives_request();
        weir.sets_clock(offset);
        // Long enough for any timer that depends on the wall clock to be checked.
        std::thread::sleep(Duration::from_millis(700));
        for (name, wire) in [("idle", &mut idle), ("head", &mut head), ("waiting", &mut waiting)] {
            assert!(
                wire.looks() == 0 && !wire.has_ended(),
                "round {round}, {offset}: the {name} connection was given up"
            );
        }
        waiting_wire.answers(200, &[], "ok");
        waiting.receives_status(200);
        drop(waiting_wire);
        head.sends("\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.answers(200, &[], "ok");
        head.receives_status(200);
    }
    // The jump was real: the log's times are an hour apart.
    let lines = weir.lines_of("access.log", 6);
    let hours: std::collections::BTreeSet<String> = lines
        .iter()
        .filter_map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).ok()?;
            let time = value["time"].as_str()?;
            Some(time.split(':').next()?.to_owned())
        })
        .collect();
    assert!(hours.len() >= 2, "libfaketime changed nothing: {hours:?}\n{lines:?}");
}

#[test]
fn a_timer_set_before_a_jump_back_still_fires() {
    let backend = ScriptedBackend::start();
    let weir = with_fake_clock(&backend);
    let mut client = weir.client("web");
    // A stalled body must end after its 20 s although the clock goes back an hour. The idle timeout of a kept
    // connection shows the same, and is set to 1 s to keep the test short.
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.answers(200, &[], "ok");
    client.receives_status(200);
    let mut weir = weir;
    weir.reloads(&config("client_idle = \"1s\""));
    let mut fresh = weir.client("web");
    weir.sets_clock("-1h");
    let begun = Instant::now();
    fresh.receives_to_the_end();
    assert!(
        begun.elapsed() >= Duration::from_millis(900) && begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    until("readiness", || (weir.admin().reads("/readyz").status() == 200).then_some(()));
}
