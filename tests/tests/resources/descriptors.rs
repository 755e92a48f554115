//! Running out of file descriptors (threat D2).

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{
    Backend, PATIENCE, Setup, Signal, Weir, Wire, datagram_socket, free_address, listen_at, until,
};

fn short_of_descriptors(backend: &Backend) -> Weir {
    Setup::of(
        r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        pool = "app"
        timeout = { client_idle = "60s", header = "1s" }
        [pool.app]
        backends = ["@app"]
        keep_alive = { idle = "200ms" }
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .under(&["prlimit", "--nofile=64:64"])
    .start()
}

fn is_served(weir: &Weir) -> bool {
    let Ok(wire) = Wire::try_connect(weir.address("web")) else { return false };
    let mut wire = wire.with_patience(Duration::from_secs(2));
    wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").is_ok()
        && wire.tries_to_receive_response("GET").is_ok_and(|response| response.status == 200)
}

/// Opens 200 connections and sends `start` on each; those that are refused are refused.
fn hoard(weir: &Weir, start: &str) -> Vec<Wire> {
    let mut hoard: Vec<Wire> = Vec::new();
    for _ in 0..200 {
        if let Ok(mut wire) = Wire::try_connect(weir.address("web")) {
            let _ = wire.tries_to_send(start);
            hoard.push(wire);
        }
    }
    hoard
}

/// The share of one CPU that Weir uses while nothing but the shortage goes on.
fn does_not_spin(weir: &Weir) {
    let (cpu, begun, log) = (weir.usage().cpu, Instant::now(), weir.stderr().lines().count());
    std::thread::sleep(Duration::from_secs(1));
    let (wall, used, lines) = (begun.elapsed(), weir.usage().cpu - cpu, weir.stderr().lines().count() - log);
    println!("cpu {used:?} and {lines} lines of log in {wall:?} while short of descriptors");
    assert!(used < wall / 5, "spinning: {used:?} of {wall:?}");
    assert!(lines <= 10, "{lines} lines of log in {wall:?}");
}

fn recovers(weir: &Weir) {
    until("recovery", || is_served(weir).then_some(()));
    // For good, not just once.
    for _ in 0..50 {
        assert!(is_served(weir), "{}", weir.story());
    }
    assert_eq!(weir.admin().reads("/livez").status(), 200);
}

#[test]
fn two_hundred_idle_connections_with_64_descriptors_do_not_lock_others_out() {
    for (name, start) in [("silent", ""), ("kept", "GET / HTTP/1.1\r\nhost: a\r\n\r\n")] {
        let backend = Backend::saying("ok");
        let weir = short_of_descriptors(&backend);
        let hoard = hoard(&weir, start);
        // Newcomers are served while the hoard stands, because what has been idle longest makes room.
        for round in 0..10 {
            until(&format!("newcomer {round} to be served beside {name} connections"), || {
                is_served(&weir).then_some(())
            });
        }
        does_not_spin(&weir);
        drop(hoard);
        recovers(&weir);
    }
}

#[test]
fn two_hundred_half_sent_heads_with_64_descriptors_neither_spin_nor_last() {
    let backend = Backend::saying("ok");
    let weir = short_of_descriptors(&backend);
    let hoard = hoard(&weir, "GET / HTTP/1.1\r\nhost: a\r\n");
    does_not_spin(&weir);
    // The header timer (1 s here) ends them wave by wave; nobody has to leave by himself.
    weir_tests::dialogue::until_within(Duration::from_secs(20), "a newcomer to be served", || {
        is_served(&weir).then_some(())
    });
    drop(hoard);
    recovers(&weir);
}

#[test]
fn connections_that_speak_are_served_even_when_there_are_too_many_of_them() {
    let backend = Backend::saying("ok");
    let weir = short_of_descriptors(&backend);
    // Each thread opens, asks, closes; together they would need more than there is. The accept queue has room
    // for all of them, so waiting there costs a client a few milliseconds, and being refused would cost it
    // its request.
    let outcomes: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..40).map(|_| scope.spawn(|| (0..25).map(|_| outcome(&weir)).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    });
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in outcomes {
        *counts.entry(outcome).or_default() += 1;
    }
    println!("with 64 descriptors, of 1000: {counts:?}");
    assert!(counts.get("200").is_some_and(|&served| served >= 990), "of 1000: {counts:?}");
    until("all descriptors to be given back", || (weir.usage().descriptors < 40).then_some(()));
}

/// What became of one short request: a status, or how it broke.
fn outcome(weir: &Weir) -> String {
    let mut wire = match Wire::try_connect(weir.address("web")) {
        Ok(wire) => wire,
        Err(problem) => return format!("connect: {}", problem.kind()),
    };
    let _ = wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    match wire.tries_to_receive_response("GET") {
        Ok(response) => response.status.to_string(),
        Err((broken, _)) => broken.to_string(),
    }
}

/// Sends back what it receives, connection by connection.
fn echoing() -> SocketAddr {
    let listener = listen_at(free_address());
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

#[test]
fn tcp_sessions_that_find_no_descriptor_are_not_held_against_the_backends() {
    let weir = Setup::of(
        r#"
        [runtime]
        workers = 1
        [log]
        access = "@dir/access.log"
        [listener.relay]
        protocol = "tcp"
        bind = "@relay"
        pool = "app"
        timeout = { connect = "300ms" }
        [pool.app]
        backends = ["@one", "@two"]
        health = { check = "off", passive = { errors = 3 } }
        "#,
    )
    .with("one", echoing())
    .with("two", echoing())
    .under(&["prlimit", "--nofile=64:64"])
    .start();
    // Each needs two descriptors. All at once, so that many are accepted before the first has its second.
    // Where it comes out even all the same, a connection to the admin API takes one more.
    let mut held = Vec::new();
    let (given_up, sessions) = loop {
        weir.signals(Signal::STOP);
        let sessions: Vec<Wire> = (0..60).map(|_| weir.client("relay")).collect();
        let said = || weir.stderr().matches("file descriptors ran out").count();
        let before = said();
        weir.signals(Signal::CONT);
        // Who waits says so each second: by the third time all who were accepted have tried.
        let given_up = || {
            let log = weir.file("access.log");
            log.lines()
                .find(|line| line.contains(r#""end":"overload""#) && line.ends_with('}'))
                .map(str::to_owned)
        };
        until("a session without, or none", || (given_up().is_some() || said() > before + 2).then_some(()));
        if let Some(line) = given_up() {
            break (line, sessions);
        }
        assert!(held.len() < 3, "no session found itself without a descriptor");
        drop(sessions);
        held.push(weir.client("admin"));
    };
    assert!(given_up.contains(r#""retries":0"#), "{given_up}");
    drop(sessions);
    weir.reaches("weir_ends_total", &[("reason", "overload")], 1.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "memory")]), 0.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[]), 0.0);
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
    for _ in 0..4 {
        let mut client = weir.client("relay");
        client.sends("hello");
        client.receives_exactly("hello");
    }
}

/// Sources that send one datagram each took the last descriptors for `client_idle`, and nobody was ever asked
/// to make room.
#[test]
fn sources_of_one_datagram_each_lock_out_neither_connections_nor_other_flows() {
    let backend = Backend::saying("ok");
    let datagrams = datagram_socket();
    let weir = Setup::of(
        r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        pool = "app"
        [listener.dns]
        protocol = "udp"
        bind = "@dns"
        pool = "names"
        timeout = { client_idle = "1h" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off", passive = "off" }
        [pool.names]
        backends = ["@names"]
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("app", backend.address())
    .with("names", datagrams.local_addr().expect("an address"))
    .under(&["prlimit", "--nofile=128:128"])
    .start();
    let source = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(weir.address("dns")).expect("it connects");
        socket
    };
    let hears = |expected: &[u8]| {
        let mut datagram = [0; 100];
        let patience = Some(Duration::from_millis(100));
        datagrams.set_read_timeout(patience).expect("a timeout");
        while let Ok((size, from)) = datagrams.recv_from(&mut datagram) {
            if datagram[..size] == *expected {
                return Some(from);
            }
        }
        None
    };
    // One that is answered.
    let known = source();
    let flow = until("a flow", || {
        known.send(b"known").expect("it is sent");
        hears(b"known")
    });
    datagrams.send_to(b"answer", flow).expect("it is sent");
    known.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    known.recv(&mut [0; 10]).expect("an answer");
    let flood: Vec<UdpSocket> = (0..200).map(|_| source()).collect();
    for socket in &flood {
        socket.send(b"x").expect("it is sent");
    }
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "descriptors")], 1.0);
    for round in 0..20 {
        until(&format!("newcomer {round} to be served"), || is_served(&weir).then_some(()));
    }
    let newcomer = source();
    until("another flow", || {
        newcomer.send(b"new").expect("it is sent");
        hears(b"new")
    });
    known.send(b"still here").expect("it is sent");
    assert_eq!(
        until("the flow that was answered", || hears(b"still here")),
        flow,
        "others made room before it"
    );
    assert!(weir.metric("weir_ends_total", &[("listener", "dns"), ("reason", "overload")]) > 0.0);
    does_not_spin(&weir);
}

/// Probes that found no descriptor took all backends down, and with `on_down` every session.
#[test]
fn probes_that_find_no_descriptor_say_nothing_of_the_backends() {
    let weir = Setup::of(
        r#"
        [runtime]
        workers = 1
        [listener.relay]
        protocol = "tcp"
        bind = "@relay"
        pool = "app"
        [pool.app]
        backends = ["@one"]
        health = { check = "tcp", interval = "100ms", fast_interval = "10ms", on_down = "end-sessions" }
        "#,
    )
    .with("one", echoing())
    .start();
    let probes = |result: &str| weir.metric("weir_probes_total", &[("result", result)]);
    weir.reaches("weir_probes_total", &[("result", "good")], 3.0);
    let mut session = weir.client("relay");
    session.sends("hello");
    session.receives_exactly("hello");
    // From outside: what it has it keeps, and gets nothing more.
    let limited = |most: &str| {
        let pid = weir.pid().to_string();
        let prlimit = weir_tests::dialogue::tool("prlimit", "util-linux");
        let set =
            std::process::Command::new(prlimit).args(["--pid", &pid, &format!("--nofile={most}:")]).status();
        assert!(set.is_ok_and(|status| status.success()), "prlimit of {pid}");
    };
    let before = weir.usage().descriptors;
    limited("3");
    until("a word of the shortage", || weir.stderr().contains("probes can't be sent").then_some(()));
    // As many as take a backend down, and more.
    std::thread::sleep(Duration::from_millis(600));
    session.sends("still here");
    session.receives_exactly("still here");
    limited("1024");
    weir.reaches("weir_probes_total", &[("result", "unsent")], 3.0);
    assert_eq!(probes("bad"), 0.0, "{}", weir.story());
    assert!(!weir.stderr().contains("backend is down"), "{}", weir.story());
    assert_eq!(weir.stderr().matches("probes can't be sent").count(), 1, "{}", weir.story());
    assert!(before > 3, "{before}");
}

#[test]
fn no_worker_waits_for_the_table_of_descriptors_to_grow() {
    let most =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(1 << 16).min(1 << 16);
    let weir =
        Setup::of("[listener.web]\nbind = \"@web\"\nroute = [{ respond = { status = 204 } }]\n").start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", weir.pid())).unwrap();
    let size =
        status.lines().find_map(|line| line.strip_prefix("FDSize:")).map(|size| size.trim().parse::<u64>());
    assert!(matches!(size, Some(Ok(size)) if size >= most), "{size:?} of {most}\n{status}");
}
