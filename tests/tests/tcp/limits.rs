//! Limits of connections that begin, and of bytes that pass.

use std::time::{Duration, Instant};

use weir_tests::dialogue::{NO_PROBES, ScriptedBackend, Setup, Weir, Wire, fingerprint, pattern, until};

use super::front;

fn relay(backend: &ScriptedBackend, more: &str) -> Weir {
    Setup::of(&front(more, NO_PROBES)).with("app", backend.address()).start()
}

/// Whether a new connection reaches the backend; otherwise it is reset.
fn gets_through(weir: &Weir, backend: &ScriptedBackend) -> bool {
    // The reset may arrive before `connect` returns.
    let Ok(mut client) = Wire::try_connect(weir.address("front")) else { return false };
    let _ = client.tries_to_send("hello");
    let mut outcome = None;
    until("the connection to get through or to be refused", || {
        if let Some(mut accepted) = backend.accepts_if_any() {
            accepted.receives_exactly("hello");
            outcome = Some(true);
        } else if client.has_ended() {
            outcome = Some(false);
        }
        outcome
    })
}

#[test]
fn connections_beyond_the_rate_are_refused_before_their_backend_hears_of_them() {
    let backend = ScriptedBackend::start();
    // One token an hour is added, so none while the test runs.
    let weir = relay(&backend, r#"rate_limit = { rate = "1/h", burst = 3 }"#);
    let through: Vec<bool> = (0..5).map(|_| gets_through(&weir, &backend)).collect();
    assert_eq!(through, [true, true, true, false, false]);
    weir.reaches("weir_rejected_total", &[("listener", "front"), ("reason", "rate_limited")], 2.0);
    let explain = |client: &str| {
        let explained = weir.command(&["explain", "tcp", client, &weir.address("front").to_string()]);
        explained.succeeded().to_owned()
    };
    let refused = explain("127.0.0.1:4000");
    assert!(refused.contains("0 of 3 tokens left for client 127.0.0.1"), "{refused}");
    assert!(refused.contains("refuse, rate_limited"), "{refused}");
    // Another client has a bucket of its own.
    assert!(explain("192.0.2.1:4000").contains("3 of 3 tokens left"), "{refused}");
}

#[test]
fn a_limit_of_the_listener_holds_for_all_and_a_dry_run_only_counts() {
    let backend = ScriptedBackend::start();
    let weir = relay(
        &backend,
        r#"rate_limit = [{ rate = "2/h", burst = 2, key = "listener", dry_run = true }, { rate = "4/h", burst = 4, key = "listener" }]"#,
    );
    let through: Vec<bool> = (0..5).map(|_| gets_through(&weir, &backend)).collect();
    assert_eq!(through, [true, true, true, true, false]);
    weir.reaches("weir_would_reject_total", &[("listener", "front"), ("reason", "rate_limited")], 2.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "rate_limited")]), 1.0);
}

#[test]
fn a_limit_goes_on_over_a_reload() {
    let backend = ScriptedBackend::start();
    let more = r#"rate_limit = { rate = "1/h", burst = 2 }"#;
    let mut weir = relay(&backend, more);
    assert!(gets_through(&weir, &backend));
    let config = std::fs::read_to_string(weir.config_path()).expect("the config");
    weir.reloads(&config.replace("health =", "slow_start = \"1s\"\nhealth ="));
    assert!(gets_through(&weir, &backend));
    assert!(!gets_through(&weir, &backend), "the bucket is not full again");
}

const MIB: usize = 1 << 20;

/// Sends `bytes` one way over as many connections at once; all arrive whole. Gives how long that took.
fn moves(
    weir: &Weir,
    backend: &ScriptedBackend,
    bytes: usize,
    to_client: bool,
    connections: usize,
) -> Duration {
    let mut pairs: Vec<(Wire, Wire)> = (0..connections)
        .map(|_| {
            let mut client = weir.client("front");
            client.sends("x");
            let mut accepted = backend.accepts();
            accepted.receives_exactly("x");
            (client, accepted)
        })
        .collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (client, backend) in &mut pairs {
            let (from, to) = if to_client { (backend, client) } else { (client, backend) };
            scope.spawn(move || from.sends(pattern(7, bytes)));
            scope.spawn(move || {
                let got = to.receives(bytes);
                assert_eq!(fingerprint(&got), fingerprint(&pattern(7, bytes)));
            });
        }
    });
    begun.elapsed()
}

#[test]
fn each_connection_is_as_fast_as_it_may_be_and_no_faster_in_each_direction() {
    let backend = ScriptedBackend::start();
    let weir = relay(&backend, r#"bandwidth = { to_client = "1MiB/s", from_client = "2MiB/s" }"#);
    // The first tenth of a second is the burst; bytes in the kernel's buffers have passed as well.
    let slow = moves(&weir, &backend, 2 * MIB, true, 1);
    assert!(slow >= Duration::from_millis(1_700), "2 MiB at 1 MiB/s took {slow:?}");
    let up = moves(&weir, &backend, 4 * MIB, false, 1);
    assert!(up >= Duration::from_millis(1_700), "4 MiB at 2 MiB/s took {up:?}");
    for direction in ["sent", "received"] {
        let waits =
            weir.metric("weir_bandwidth_waits_total", &[("listener", "front"), ("direction", direction)]);
        assert!(waits >= 10.0, "{direction}: {waits}");
    }
    let explained = weir.command(&["explain", "tcp", "192.0.2.1:1", &weir.address("front").to_string()]);
    assert!(
        explained.succeeded().contains("to the client 1MiB/s each; from the client 2MiB/s each"),
        "{explained:?}"
    );
}

#[test]
fn all_connections_of_a_listener_share_what_it_may_pass() {
    let backend = ScriptedBackend::start();
    let weir = relay(&backend, r#"bandwidth = { total_to_client = "4MiB/s" }"#);
    let took = moves(&weir, &backend, MIB, true, 8);
    assert!(took >= Duration::from_millis(1_700), "8 MiB at 4 MiB/s took {took:?}");
    // The other direction has no limit.
    moves(&weir, &backend, MIB, false, 2);
    assert_eq!(weir.metric("weir_bandwidth_waits_total", &[("direction", "received")]), 0.0);
}

#[test]
fn what_all_clients_send_together_is_bounded_too() {
    let backend = ScriptedBackend::start();
    let weir = relay(&backend, r#"bandwidth = { total_from_client = "4MiB/s" }"#);
    let took = moves(&weir, &backend, MIB, false, 8);
    assert!(took >= Duration::from_millis(1_700), "8 MiB at 4 MiB/s took {took:?}");
    moves(&weir, &backend, MIB, true, 2);
    assert_eq!(weir.metric("weir_bandwidth_waits_total", &[("direction", "sent")]), 0.0);
}

#[test]
fn a_connection_that_waits_for_its_bandwidth_is_not_idle_and_ends_when_it_should() {
    let backend = ScriptedBackend::start();
    let weir = relay(&backend, "bandwidth = { to_client = \"64KiB/s\" }\ntimeout = { client_idle = \"1s\" }");
    let mut client = weir.client("front");
    client.sends("x");
    let mut accepted = backend.accepts();
    accepted.receives_exactly("x");
    // 192 KiB take three seconds, during which it never rests for one.
    let bytes = 192 << 10;
    accepted.sends(pattern(3, bytes));
    assert_eq!(fingerprint(&client.receives(bytes)), fingerprint(&pattern(3, bytes)));
    // Then it is idle, and is closed cleanly.
    client.receives_close();
}

#[test]
fn a_connection_that_waits_for_its_share_for_longer_than_it_may_be_idle_is_not_ended() {
    let backend = ScriptedBackend::start();
    let weir = relay(
        &backend,
        "bandwidth = { total_to_client = \"16KiB/s\" }\ntimeout = { client_idle = \"200ms\" }",
    );
    // 32 KiB for each of two: the second half of them waits for half a second at a time.
    let bytes = 32 << 10;
    let mut clients: Vec<_> = (0..2)
        .map(|_| {
            let mut client = weir.client("front");
            client.sends("x");
            let mut accepted = backend.accepts();
            accepted.receives_exactly("x");
            accepted.sends(pattern(5, bytes));
            (client, accepted)
        })
        .collect();
    for (client, _) in &mut clients {
        assert_eq!(fingerprint(&client.receives(bytes)), fingerprint(&pattern(5, bytes)));
    }
    for (client, _) in &mut clients {
        client.receives_close();
    }
}
