//! Each client has its flow, each flow its backend, and each datagram its boundaries.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::{PATIENCE, Setup, Weir, datagram_socket, free_address, pattern, until};

/// Sends every datagram back with its name in front, in a thread of its own.
struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    received: Arc<AtomicUsize>,
}

fn echo(name: &'static str) -> Echo {
    let socket = datagram_socket();
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("timeout");
    let address = socket.local_addr().expect("address");
    let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (stopped, counting) = (stop.clone(), received.clone());
    std::thread::spawn(move || {
        let mut datagram = vec![0; 65_536];
        while !stopped.load(Ordering::SeqCst) {
            if let Ok((size, from)) = socket.recv_from(&mut datagram) {
                counting.fetch_add(1, Ordering::SeqCst);
                let _ = socket.send_to(&[name.as_bytes(), &datagram[..size]].concat(), from);
            }
        }
    });
    Echo { address, stop, received }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn relay(backends: &str, more: &str, echoes: &[&Echo]) -> Weir {
    relay_to(backends, more, &echoes.iter().map(|echo| echo.address).collect::<Vec<_>>())
}

/// The addresses are those of `@a`, `@b` and `@c`.
fn relay_to(backends: &str, more: &str, addresses: &[SocketAddr]) -> Weir {
    let config = format!(
        r#"
        [listener.dns]
        protocol = "udp"
        bind = "@dns"
        pool = "app"
        {more}
        [pool.app]
        {backends}
        health = {{ check = "off" }}
        "#
    );
    let named = addresses.iter().zip(["a", "b", "c"]);
    named.fold(Setup::of(&config), |setup, (address, name)| setup.with(name, address)).start()
}

fn client(weir: &Weir) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect(weir.address("dns")).expect("connect");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

fn ask(socket: &UdpSocket, question: &[u8]) -> Vec<u8> {
    socket.send(question).expect("send");
    let mut answer = vec![0; 65_536];
    let size = socket
        .recv(&mut answer)
        .unwrap_or_else(|problem| panic!("no answer to {} bytes: {problem}", question.len()));
    answer.truncate(size);
    answer
}

#[test]
fn flows_beyond_the_rate_do_not_begin_and_datagrams_beyond_the_bandwidth_are_dropped() {
    let backend = echo("a");
    let backends = "backends = [\"@a\"]";
    let weir = relay(backends, r#"rate_limit = { rate = "1/h", burst = 2 }"#, &[&backend]);
    let clients: Vec<UdpSocket> = (0..3).map(|_| client(&weir)).collect();
    for one in &clients[..2] {
        assert_eq!(ask(one, b"?"), b"a?");
    }
    clients[2].send(b"?").expect("send");
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "rate_limited")], 1.0);
    // Flows that are there go on.
    assert_eq!(ask(&clients[0], b"again"), b"aagain");
    assert_eq!(backend.received.load(Ordering::SeqCst), 3);
    drop(weir);

    let weir = relay(backends, r#"bandwidth = { from_client = "16KiB/s", burst = "1ms" }"#, &[&backend]);
    let one = client(&weir);
    let before = backend.received.load(Ordering::SeqCst);
    // 16 KiB may pass at once, in datagrams of 1 KiB; the rest of these 64 KiB comes too fast.
    for _ in 0..64 {
        one.send(&pattern(1, 1024)).expect("send");
    }
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "bandwidth")], 1.0);
    let dropped = || weir.metric("weir_rejected_total", &[("listener", "dns"), ("reason", "bandwidth")]);
    until("each to be passed or dropped", || {
        let passed = backend.received.load(Ordering::SeqCst) - before;
        (passed + dropped() as usize == 64).then_some(())
    });
    assert!(backend.received.load(Ordering::SeqCst) - before >= 16, "the burst passes");
}

#[test]
fn a_datagram_is_answered_whole_and_from_the_address_it_was_sent_to() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, "", &[&backend]);
    // Unconnected on purpose, to see where the answer comes from.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket.send_to(b"question", weir.address("dns")).expect("send");
    let mut answer = [0; 100];
    let (size, from) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!((&answer[..size], from), (&b"aquestion"[..], weir.address("dns")));
}

#[test]
fn datagrams_of_every_size_keep_their_boundaries() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, "", &[&backend]);
    let socket = client(&weir);
    for size in [0, 1, 2, 511, 512, 513, 1232, 1472, 1473, 4096, 9000, 16_384, 32_768, 65_000, 65_506] {
        let question = pattern(size as u64, size);
        let answer = ask(&socket, &question);
        assert!(answer[0] == b'a' && answer[1..] == question, "{size} bytes");
    }
}

#[test]
fn a_flow_stays_with_its_backend_and_flows_are_spread() {
    let (a, b, c) = (echo("a"), echo("b"), echo("c"));
    let weir = relay(r#"backends = ["@a", "@b", "@c"]"#, "", &[&a, &b, &c]);
    let mut used = BTreeSet::new();
    let clients: Vec<UdpSocket> = (0..24).map(|_| client(&weir)).collect();
    let firsts: Vec<u8> = clients.iter().map(|socket| ask(socket, b"0")[0]).collect();
    for round in 1..5 {
        for (socket, first) in clients.iter().zip(&firsts) {
            assert_eq!(ask(socket, &[round])[0], *first, "a flow moved in round {round}");
        }
    }
    used.extend(firsts);
    assert_eq!(used.len(), 3, "24 flows used {used:?}");
}

#[test]
fn answers_never_reach_another_client() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, "", &[&backend]);
    let clients: Vec<UdpSocket> = (0..16).map(|_| client(&weir)).collect();
    for round in 0..50_u8 {
        for (number, socket) in clients.iter().enumerate() {
            socket.send(&[number as u8, round]).expect("send");
        }
        for (number, socket) in clients.iter().enumerate() {
            let mut answer = [0; 10];
            let size = socket.recv(&mut answer).expect("an answer");
            assert_eq!(answer[..size], [b'a', number as u8, round]);
        }
    }
}

#[test]
fn a_flow_without_datagrams_is_forgotten_after_client_idle() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, r#"timeout = { client_idle = "300ms" }"#, &[&backend]);
    let before = weir.usage().descriptors;
    let sockets: Vec<UdpSocket> = (0..20).map(|_| client(&weir)).collect();
    for socket in &sockets {
        ask(socket, b"x");
    }
    assert!(weir.metric("weir_connections", &[("listener", "dns")]) >= 1.0);
    until("the flows to be forgotten", || {
        (weir.metric("weir_connections", &[("listener", "dns")]) == 0.0).then_some(())
    });
    until("their descriptors to be given back", || (weir.usage().descriptors <= before + 1).then_some(()));
    // A forgotten flow is simply a new one.
    for socket in &sockets {
        assert_eq!(ask(socket, b"again"), b"aagain");
    }
}

#[test]
fn a_flow_in_use_is_not_forgotten() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, r#"timeout = { client_idle = "1s" }"#, &[&backend]);
    let socket = client(&weir);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        ask(&socket, b"x");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(weir.metric("weir_connections_total", &[("listener", "dns")]), 1.0);
}

#[test]
fn flows_are_bounded_and_those_that_exist_go_on() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, "max_connections = 8", &[&backend]);
    let clients: Vec<UdpSocket> = (0..8).map(|_| client(&weir)).collect();
    for socket in &clients {
        ask(socket, b"x");
    }
    for _ in 0..50 {
        client(&weir).send(b"flood").expect("send");
    }
    weir.reaches("weir_rejected_total", &[("reason", "flow_limit")], 1.0);
    for socket in &clients {
        assert_eq!(ask(socket, b"still"), b"astill");
    }
    assert!(weir.metric("weir_connections", &[("listener", "dns")]) <= 8.0);
}

#[test]
fn a_backend_that_the_kernel_knows_no_way_to_loses_no_flow() {
    // Connecting to the broadcast address is refused immediately on every machine, like connecting to an
    // address without a route.
    let unreachable = "255.255.255.255:9";
    let backend = echo("b");
    let weir = Setup::of(
        r#"
        [listener.dns]
        protocol = "udp"
        bind = "@dns"
        pool = "app"
        [pool.app]
        backends = ["@a", "@b"]
        health = { check = "off", passive = { errors = 5, within = "60s", eject = "60s" } }
        "#,
    )
    .with("a", unreachable)
    .with("b", backend.address)
    .start();
    for _ in 0..40 {
        assert_eq!(ask(&client(&weir), b"x"), b"bx");
    }
    let labels = [("backend", unreachable)];
    assert!(weir.metric("weir_backend_connect_failures_total", &labels) >= 5.0);
    assert_eq!(weir.metric("weir_backend_ejections_total", &labels), 1.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "descriptors")]), 0.0);
}

#[test]
fn flows_that_look_for_another_backend_count_once_and_keep_to_the_retry_budget() {
    let backend = echo("b");
    let weir = Setup::of(
        r#"
        [listener.dns]
        protocol = "udp"
        bind = "@dns"
        pool = "app"
        [pool.app]
        backends = ["255.255.255.255:9", "@b"]
        balance = "first"
        health = { check = "off", passive = "off" }
        "#,
    )
    .with("b", backend.address)
    .start();
    assert_eq!(ask(&client(&weir), b"x"), b"bx");
    for metric in ["weir_retries_total", "weir_redispatches_total"] {
        assert_eq!(weir.metric(metric, &[("pool", "app")]), 1.0, "{metric}");
    }
    // A fifth of the flows, and ten a second over a window of ten: far fewer than these.
    for _ in 0..500 {
        client(&weir).send(b"x").expect("send");
    }
    weir.reaches("weir_rejected_total", &[("reason", "retry_budget")], 1.0);
}

#[test]
fn when_the_kernel_knows_no_way_to_any_backend_that_is_said_and_not_a_lack_of_descriptors() {
    let weir = relay(r#"backends = ["255.255.255.255:9"]"#, "", &[]);
    client(&weir).send(b"x").expect("send");
    weir.reaches("weir_rejected_total", &[("reason", "no_backend")], 1.0);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "descriptors")]), 0.0);
}

#[test]
fn a_backend_that_is_gone_and_comes_back_is_used_again_by_the_same_flow() {
    // The kernel reports "port unreachable" on the flow's socket; that must not end the flow for good.
    let address = free_address();
    let weir = relay_to(r#"backends = ["@a"]"#, "", &[address]);
    let socket = client(&weir);
    for _ in 0..20 {
        socket.send(b"nobody there").expect("send");
    }
    let backend = UdpSocket::bind(address).expect("bind");
    backend.set_read_timeout(Some(Duration::from_millis(100))).expect("timeout");
    until("a datagram at the backend", || {
        socket.send(b"hello").expect("send");
        let mut datagram = [0; 100];
        let (size, from) = backend.recv_from(&mut datagram).ok()?;
        (&datagram[..size] == b"hello").then(|| backend.send_to(b"here", from).expect("send"))
    });
    let mut answer = [0; 100];
    let size = socket.recv(&mut answer).expect("an answer");
    assert_eq!(&answer[..size], b"here");
}

#[test]
fn a_backend_may_answer_several_times_or_not_at_all() {
    let backend = datagram_socket();
    backend.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let address = backend.local_addr().expect("address");
    let weir = relay_to(r#"backends = ["@a"]"#, "", &[address]);
    let socket = client(&weir);
    socket.send(b"unanswered").expect("send");
    socket.send(b"question").expect("send");
    let mut datagram = [0; 100];
    let from = (0..2).map(|_| backend.recv_from(&mut datagram).expect("a datagram").1).last().expect("two");
    for part in [b"part 1", b"part 2", b"part 3"] {
        backend.send_to(part, from).expect("send");
    }
    for part in [b"part 1", b"part 2", b"part 3"] {
        let size = socket.recv(&mut datagram).expect("an answer");
        assert_eq!(&datagram[..size], part);
    }
}

#[test]
fn a_flood_of_datagrams_is_relayed_or_dropped_but_never_mixed_up() {
    let backend = echo("a");
    let weir = relay(r#"backends = ["@a"]"#, "", &[&backend]);
    let socket = client(&weir);
    let sender = socket.try_clone().expect("a second handle");
    let flood = std::thread::spawn(move || {
        for number in 0..20_000_u32 {
            let _ = sender.send(&number.to_be_bytes());
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_micros(500));
            }
        }
    });
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("timeout");
    let mut seen = BTreeSet::new();
    let mut datagram = [0; 100];
    while let Ok(size) = socket.recv(&mut datagram) {
        assert_eq!((size, datagram[0]), (5, b'a'));
        let number = u32::from_be_bytes([datagram[1], datagram[2], datagram[3], datagram[4]]);
        assert!(number < 20_000 && seen.insert(number), "{number} came twice");
    }
    flood.join().expect("the flood");
    println!(
        "{} of 20000 came back, {} reached the backend",
        seen.len(),
        backend.received.load(Ordering::SeqCst)
    );
    // The kernel drops what finds a full socket buffer, here or at the backend; a tenth comes back on the
    // slowest machine.
    assert!(seen.len() > 2_000, "only {} of 20000 came back", seen.len());
    assert_eq!(ask(&socket, b"last"), b"alast");
}

#[test]
fn datagrams_of_clients_that_are_denied_or_not_allowed_reach_no_backend() {
    let backend = echo("a");
    let lists = "allow_address = [\"127.0.0.0/24\"]\ndeny_address = [\"127.0.0.2\"]";
    let weir = relay(r#"backends = ["@a"]"#, lists, &[&backend]);
    for address in ["127.0.0.2:0", "127.0.1.1:0"] {
        let socket = UdpSocket::bind(address).expect("bind");
        socket.send_to(b"let me in", weir.address("dns")).expect("send");
    }
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "denied_address")], 2.0);
    assert_eq!(ask(&client(&weir), b"hello"), b"ahello");
    assert_eq!(backend.received.load(Ordering::SeqCst), 1);
    let explained = weir.command(&["explain", "udp", "127.0.1.1:4000", &weir.address("dns").to_string()]);
    assert!(explained.stdout.contains("no entry of 1 in `allow_address` holds 127.0.1.1"), "{explained:?}");
}
