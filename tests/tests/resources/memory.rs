//! A small memory budget (threat D3).

use weir_tests::dialogue::{Backend, Broken, Setup, Wire, until};

#[test]
fn with_its_memory_budget_used_up_weir_refuses_and_does_not_grow() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(
        r#"
        [runtime]
        memory = "16MiB"
        memory_share_per_client = 1.0
        workers = 1
        [listener.web]
        bind = "@web"
        pool = "app"
        limits = { header = "1MiB", request_line = "1MiB" }
        timeout = { header = "30s" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    let before = weir.usage().resident_bytes;
    // Each makes Weir hold almost a mebibyte of a head that never ends: 100 of them are several budgets.
    let mut hoard: Vec<Wire> = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let Ok(mut wire) = Wire::try_connect(weir.address("web")) else { continue };
        let _ = wire.tries_to_send(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(900 << 10)));
        refused += usize::from(wire.has_ended() || wire.looks() > 0);
        hoard.push(wire);
    }
    until("refusals to be counted", || {
        (weir.metric("weir_rejected_total", &[("reason", "memory")]) >= 1.0).then_some(())
    });
    let grown = weir.usage().resident_bytes.saturating_sub(before);
    println!("{} MiB more with a budget of 16 MiB; {refused} refused at once", grown >> 20);
    assert!(grown < 40 << 20, "{} MiB more", grown >> 20);
    for wire in &mut hoard {
        if wire.looks() > 0 {
            match wire.tries_to_receive_response("GET") {
                Ok(response) => assert!(matches!(response.status, 503 | 431), "{response:?}"),
                Err((broken, _)) => assert!(matches!(broken, Broken::Ended | Broken::Reset), "{broken}"),
            }
        }
    }
    // Recovers by itself once they are gone.
    drop(hoard);
    until("service again", || {
        let mut wire = Wire::try_connect(weir.address("web")).ok()?;
        wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
        wire.tries_to_receive_response("GET").ok().filter(|response| response.status == 200)
    });
    assert_eq!(weir.admin().reads("/livez").status(), 200);
}

#[test]
fn no_huge_page_is_cleared_while_connections_wait() {
    let backend = Backend::saying("ok");
    let config = "[listener.web]\nbind = \"@web\"\npool = \"app\"\n[pool.app]\nbackends = [\"@app\"]\n";
    let weir = Setup::of(config).with("app", backend.address()).start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).unwrap();
    let enabled = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert_eq!(enabled.map(str::trim), Some("0"), "{status}");
}

#[test]
fn ten_thousand_idle_connections_cost_little() {
    // S6 and the memory figure, scaled to what the descriptor limit of a test machine allows.
    let backend = Backend::saying("ok");
    let weir = super::super::http::plain(&backend);
    let mut clients = Vec::new();
    let most =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024).min(4000) / 2;
    let before = weir.usage().resident_bytes;
    for _ in 0..most {
        let mut wire = weir.client("web");
        wire.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        wire.receives_status(200);
        clients.push(wire);
    }
    let each = (weir.usage().resident_bytes.saturating_sub(before)) / most;
    println!("{most} idle kept connections: {each} bytes each");
    // The aim is 4 KiB; the margin is for allocator slack at this small number.
    assert!(each < 8 << 10, "{each} bytes for an idle connection");
    for wire in clients.iter_mut().step_by(97) {
        wire.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        wire.receives_status(200);
    }
}
