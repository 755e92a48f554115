//! System calls that fail now and then (threat H6). Needs strace, which injects the errors.

use std::net::UdpSocket;
use std::time::Duration;

use weir_tests::dialogue::{
    After, Backend, EVERY_PROTOCOL, Setup, Weir, Wire, datagram_socket, fingerprint, pattern, tool, until,
    until_within,
};

/// One worker, and a pool whose backend is soon found up again after a fault in its probes.
fn config() -> String {
    let health = r#"health = { check = "tcp", interval = "200ms", fast_interval = "100ms", timeout = "200ms", passive = "off" }"#;
    format!("[runtime]\nworkers = 1\n{EVERY_PROTOCOL}{health}")
}

fn echo() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[("x-sum", &format!("{:x}", fingerprint(&request.body)))], &request.body);
        After::Keep
    })
}

fn names() -> std::net::SocketAddr {
    let socket = datagram_socket();
    let address = socket.local_addr().expect("address");
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("timeout");
        while let Ok((size, from)) = socket.recv_from(&mut datagram) {
            let _ = socket.send_to(&datagram[..size], from);
        }
    });
    address
}

/// Weir under strace, with each of these injections.
fn faulty(backend: &Backend, injections: &[&str]) -> Weir {
    let strace = tool("strace", "strace").display().to_string();
    let mut words = vec![strace.as_str(), "-f", "-qqq", "-o", "/dev/null"];
    let calls: Vec<&str> =
        injections.iter().map(|injection| injection.split(':').next().unwrap_or_default()).collect();
    let trace = format!("trace={}", calls.join(","));
    let injections: Vec<String> = injections.iter().map(|injection| format!("inject={injection}")).collect();
    words.extend(["-e", &trace]);
    for injection in &injections {
        words.extend(["-e", injection]);
    }
    Setup::of(&config()).with("app", backend.address()).with("names", names()).under(&words).start()
}

/// Traffic of every kind, each answer checked.
fn everything_works(weir: &Weir, rounds: usize) {
    let mut kept = weir.client("web");
    for round in 0..rounds {
        let body = pattern(round as u64, (round * 7919) % 70_000);
        let request = [
            format!("PUT /{round} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(),
            &body,
        ]
        .concat();
        kept.sends(&request);
        let response = kept.receives_status(200);
        assert!(response.body == body, "round {round}: {} bytes back of {}", response.body.len(), body.len());
        if response.closes() {
            kept = weir.client("web");
        }
        let mut relayed = weir.client("relay");
        relayed.sends(&request);
        assert!(relayed.receives_status(200).body == body, "round {round}, relayed");
    }
}

fn datagrams_mostly_work(weir: &Weir) {
    // Datagrams may be lost anyway, so each question may be repeated.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.connect(weir.address("dns")).expect("connect");
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    for round in 0..20_u8 {
        until("a datagram to be answered", || {
            let _ = socket.send(&[round; 32]);
            let mut answer = [0; 64];
            let size = socket.recv(&mut answer).ok()?;
            (answer[..size] == [round; 32]).then_some(())
        });
    }
}

#[test]
fn interrupted_reads_and_writes_are_made_again() {
    let backend = echo();
    let weir = faulty(
        &backend,
        &[
            "recvfrom:error=EINTR:when=5+7",
            "sendto:error=EINTR:when=5+7",
            "readv:error=EINTR:when=3+5",
            "writev:error=EINTR:when=3+5",
            "epoll_wait:error=EINTR:when=5+9",
            "accept4:error=EINTR:when=2+3",
            "splice:error=EINTR:when=2+3",
            "recvmsg:error=EINTR:when=3+5",
            "sendmsg:error=EINTR:when=3+5",
        ],
    );
    everything_works(&weir, 40);
    datagrams_mostly_work(&weir);
}

#[test]
fn calls_that_would_block_after_all_are_waited_for() {
    let backend = echo();
    let weir = faulty(
        &backend,
        &[
            "recvfrom:error=EAGAIN:when=5+7",
            "readv:error=EAGAIN:when=3+5",
            "accept4:error=EAGAIN:when=2+4",
            "recvmsg:error=EAGAIN:when=3+5",
            "recvmmsg:error=EAGAIN:when=3+5",
        ],
    );
    // An injected EAGAIN swallows an edge: a runtime that relies on edges would wait for ever, unless the
    // next bytes wake it. The kernel never does this to a socket that has data, so only that no connection is
    // mixed up is asked here.
    let mut answered = 0;
    for round in 0..40 {
        let Ok(wire) = Wire::try_connect(weir.address("web")) else { continue };
        let mut wire = wire.with_patience(Duration::from_millis(300));
        let body = pattern(round, 1000);
        let _ = wire.tries_to_send(
            [b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n".as_slice(), &body].concat(),
        );
        if let Ok(response) = wire.tries_to_receive_response("PUT")
            && response.status == 200
        {
            assert!(response.body == body);
            answered += 1;
        }
    }
    println!("{answered} of 40 answered under injected EAGAIN");
    assert!(answered >= 10);
}

#[test]
fn short_of_kernel_buffers_datagrams_and_connections_go_on() {
    let backend = echo();
    let weir = faulty(
        &backend,
        &[
            "sendto:error=ENOBUFS:when=40+31",
            "sendmsg:error=ENOBUFS:when=4+3",
            "sendmmsg:error=ENOBUFS:when=4+3",
            "accept4:error=ENOBUFS:when=2+3",
        ],
    );
    datagrams_mostly_work(&weir);
    // On a TCP connection ENOBUFS ends that connection at worst; a fresh one must work.
    until("service", || {
        let mut wire = Wire::try_connect(weir.address("web")).ok()?;
        wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
        wire.tries_to_receive_response("GET").ok().filter(|response| response.status == 200)
    });
}

#[test]
fn an_accept_that_fails_does_not_end_accepting() {
    for error in ["ECONNABORTED", "EMFILE", "ENFILE", "ENOMEM", "EPROTO", "EPERM"] {
        let backend = echo();
        let weir = faulty(&backend, &[&format!("accept4:error={error}:when=1+3")]);
        for round in 0..10 {
            until_within(Duration::from_secs(10), &format!("{error}: service in round {round}"), || {
                let wire = Wire::try_connect(weir.address("web")).ok()?;
                let mut wire = wire.with_patience(Duration::from_secs(2));
                wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
                wire.tries_to_receive_response("GET").ok().filter(|response| response.status == 200)
            });
        }
    }
}

#[test]
fn a_socket_that_cannot_be_made_costs_one_request_and_not_the_worker() {
    let backend = echo();
    // The first sockets are the listeners; later ones are connections to backends, probes and flows.
    let weir = faulty(&backend, &["socket:error=EMFILE:when=30+2", "connect:error=EADDRNOTAVAIL:when=30+3"]);
    let mut served = 0;
    for _ in 0..60 {
        let Ok(mut wire) = Wire::try_connect(weir.address("web")) else { continue };
        let _ = wire.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        match wire.tries_to_receive_response("GET") {
            Ok(response) if response.status == 200 => served += 1,
            Ok(response) => assert!(matches!(response.status, 502..=504), "{response:?}"),
            Err((broken, _)) => panic!("left without an answer: {broken}"),
        }
    }
    println!("{served} of 60 served");
    assert!(served >= 30);
}

#[test]
fn options_that_cannot_be_set_are_done_without() {
    let backend = echo();
    let weir = faulty(
        &backend,
        &[
            "setsockopt:error=ENOPROTOOPT:when=40+2",
            "getsockname:error=ENOBUFS:when=20+5",
            "splice:error=EINVAL:when=1+1",
        ],
    );
    everything_works(&weir, 20);
}

#[test]
fn a_connection_reset_under_a_read_or_write_ends_only_itself() {
    let backend = echo();
    let weir = faulty(&backend, &["recvfrom:error=ECONNRESET:when=20+13", "sendto:error=EPIPE:when=20+17"]);
    let mut served = 0;
    for round in 0..60 {
        let Ok(wire) = Wire::try_connect(weir.address("web")) else { continue };
        // A backend whose connection was said to be broken, and is not, never answers: that client leaves.
        let mut wire = wire.with_patience(Duration::from_secs(2));
        let body = pattern(round, 3000);
        let _ = wire.tries_to_send(
            [b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 3000\r\n\r\n".as_slice(), &body].concat(),
        );
        if let Ok(response) = wire.tries_to_receive_response("PUT")
            && response.status == 200
        {
            assert!(response.body == body, "a wrong body");
            served += 1;
        }
    }
    println!("{served} of 60 served");
    assert!(served >= 25);
}
