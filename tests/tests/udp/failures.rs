//! What a backend is blamed for, and what is nobody's failure: datagrams that are too long, a way that
//! carries less, ports that have run out, an address that a name has left.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use weir_tests::dialogue::{NameServer, PATIENCE, Setup, Weir, datagram_socket, free_address, until};
use weir_tests::network::Network;

/// Answers every datagram with its name, and a list of what came.
fn answers_as(name: &'static str, socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut datagram = vec![0; 65_536];
        while let Ok((size, from)) = socket.recv_from(&mut datagram) {
            let head = &datagram[..size.min(64)];
            let _ = socket.send_to(&[name.as_bytes(), head].concat(), from);
        }
    });
}

fn client(weir: &Weir, own: &str) -> UdpSocket {
    let socket = UdpSocket::bind(own).expect("a socket");
    socket.connect(weir.address("dns")).expect("it connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn hears(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut datagram = vec![0; 1000];
    let size = socket.recv(&mut datagram).ok()?;
    datagram.truncate(size);
    Some(datagram)
}

fn ask(socket: &UdpSocket, question: &[u8]) -> Vec<u8> {
    socket.send(question).expect("it is sent");
    hears(socket).expect("an answer")
}

fn nobody_is_blamed(weir: &Weir) {
    for metric in ["weir_backend_failures_total", "weir_backend_connect_failures_total"] {
        assert_eq!(weir.metric(metric, &[("pool", "app")]), 0.0, "{metric}");
    }
    assert_eq!(weir.metric("weir_backend_ejections_total", &[("pool", "app")]), 0.0);
}

const CONFIG: &str = r#"
    [listener.dns]
    protocol = "udp"
    bind = "@dns"
    pool = "app"
    [pool.app]
    backends = ["@a", "@b"]
    balance = "first"
    health = { check = "off", passive = { errors = 2, within = "60s", eject = "60s" } }
"#;

#[test]
fn j33_a_datagram_that_is_too_long_for_the_backends_is_dropped_and_counted_and_no_backend_is_blamed() {
    let (a, b) = (datagram_socket(), datagram_socket());
    let addresses = [&a, &b].map(|socket| socket.local_addr().expect("an address"));
    answers_as("a", a);
    answers_as("b", b);
    let front = UdpSocket::bind("[::1]:0").and_then(|it| it.local_addr()).expect("an address");
    let setup = Setup::of(CONFIG).with("dns", front).with("a", addresses[0]).with("b", addresses[1]);
    let weir = setup.start();
    let socket = client(&weir, "[::1]:0");
    // Over IPv4 65,507 bytes are the most.
    for round in 1..=5 {
        socket.send(&vec![b'x'; 65_520]).expect("it is sent");
        assert_eq!(ask(&socket, b"short"), b"ashort");
        let long = [("listener", "dns"), ("reason", "datagram_too_long")];
        assert_eq!(weir.metric("weir_rejected_total", &long), f64::from(round));
    }
    nobody_is_blamed(&weir);
    assert_eq!(weir.metric("weir_backend_connections_total", &[("pool", "app")]), 1.0, "one flow, one way");
}

#[test]
fn a_way_that_carries_less_than_was_thought_moves_no_flow_and_is_nobodys_failure() {
    // Behind the first server, which is a router here, is a link of 1,300 bytes; it says so.
    let network = Network::enter(2);
    network.links("server1", "server2", 1);
    network.sets("server1", "net.ipv4.ip_forward", "1");
    network.run("server1", &["ip", "link", "set", "to_server2", "mtu", "1300"]);
    network.run("server2", &["ip", "route", "add", "10.50.11.0/24", "via", "10.60.1.1"]);
    network.run("weir", &["ip", "route", "add", "10.60.1.0/24", "via", "10.50.11.2"]);
    let serve = |host: &str, address: &str, name: &'static str| {
        answers_as(name, network.on(host, || UdpSocket::bind(address).expect("a socket")));
    };
    serve("server2", "10.60.1.2:9000", "a");
    serve("server1", "10.50.11.2:9000", "b");
    let config = format!("{CONFIG}\nsend_proxy = \"v2\"");
    let setup = Setup::of(&config).with("dns", "10.50.1.1:9000");
    let weir = setup.with("a", "10.60.1.2:9000").with("b", "10.50.11.2:9000").start();
    let socket = network.on("client", || client(&weir, "10.50.1.2:0"));
    assert!(ask(&socket, b"first").starts_with(b"a\r\n\r\n"), "behind a header");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    // What the router drops is lost; what comes then is sent in pieces.
    for _ in 0..3 {
        let answer = until("an answer", || {
            socket.send(&[b'x'; 1400]).expect("it is sent");
            hears(&socket)
        });
        assert_eq!(answer, [b"a", &[b'x'; 64][..]].concat(), "by the same, and without another header");
    }
    nobody_is_blamed(&weir);
}

#[test]
fn ports_that_have_run_out_are_held_against_no_backend() {
    let network = Network::enter(1);
    network.sets("weir", "net.ipv4.ip_local_port_range", "40000 40059");
    for (name, port) in [("a", 9001), ("b", 9002)] {
        answers_as(name, network.on("server1", || UdpSocket::bind(("10.50.11.2", port)).expect("a socket")));
    }
    let setup = Setup::of(CONFIG).with("dns", "10.50.1.1:9000");
    let weir = setup.with("a", "10.50.11.2:9001").with("b", "10.50.11.2:9002").start();
    let sockets: Vec<UdpSocket> =
        network.on("client", || (0..90).map(|_| client(&weir, "10.50.1.2:0")).collect());
    for socket in &sockets {
        socket.send(b"x").expect("it is sent");
    }
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "ports")], 30.0);
    nobody_is_blamed(&weir);
    assert!(hears(&sockets[0]).expect("an answer").ends_with(b"x"));
    assert!(ask(&sockets[0], b"again").ends_with(b"again"), "flows that have one go on");
}

/// A relay to the one address that a name has, 127.0.1.1, and what serves there and where the name will lead.
fn by_name(server: &NameServer, drain: &str) -> (Weir, UdpSocket, u16) {
    let port = free_address().port();
    let old = UdpSocket::bind(("127.0.1.1", port)).expect("a socket");
    answers_as("new", UdpSocket::bind(("127.0.1.2", port)).expect("a socket"));
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let config = format!(
        r#"
        [runtime]
        drain = "{drain}"
        [dns]
        resolvers = ["@names"]
        min_ttl = "100ms"
        [listener.dns]
        protocol = "udp"
        bind = "@dns"
        pool = "app"
        [pool.app]
        backends = ["app.weir.test:{port}"]
        health = {{ check = "off", passive = {{ errors = 1, within = "60s", eject = "60s" }} }}
        "#
    );
    (Setup::of(&config).with("names", server.address()).start(), old, port)
}

/// The name leads to the other address, and Weir has learnt of it: a new flow goes there.
fn leads_elsewhere(server: &NameServer, weir: &Weir) {
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    until("a new flow to go to the new address", || {
        let socket = client(weir, "127.0.0.1:0");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        socket.send(b"?").expect("it is sent");
        hears(&socket).filter(|answer| answer == b"new?")
    });
}

#[test]
fn a_flow_leaves_an_address_that_its_name_has_left_when_the_drain_is_over() {
    let server = NameServer::start();
    let (weir, old, _) = by_name(&server, "100ms");
    answers_as("old", old);
    let socket = client(&weir, "127.0.0.1:0");
    assert_eq!(ask(&socket, b"1"), b"old1");
    leads_elsewhere(&server, &weir);
    until("the flow to move", || (ask(&socket, b"2") == b"new2").then_some(()));
    nobody_is_blamed(&weir);
}

#[test]
fn a_refusal_from_an_address_that_a_name_has_left_moves_the_flow_and_is_nobodys_failure() {
    let server = NameServer::start();
    let (weir, old, _) = by_name(&server, "1h");
    let socket = client(&weir, "127.0.0.1:0");
    socket.send(b"1").expect("it is sent");
    old.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (_, flow) = old.recv_from(&mut [0; 100]).expect("a datagram");
    leads_elsewhere(&server, &weir);
    old.send_to(b"still here", flow).expect("it is sent");
    assert_eq!(
        hears(&socket).expect("an answer"),
        b"still here",
        "it may go on for as long as the drain takes"
    );
    drop(old);
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    until("the flow to move", || {
        socket.send(b"2").expect("it is sent");
        hears(&socket).filter(|answer| answer == b"new2")
    });
    nobody_is_blamed(&weir);
}

#[test]
fn what_was_sent_to_all_hosts_of_a_network_is_answered_from_our_address_there() {
    let backend = datagram_socket();
    let address = backend.local_addr().expect("an address");
    answers_as("a", backend);
    let front = SocketAddr::from(([0, 0, 0, 0], free_address().port()));
    let config = CONFIG.replace(", \"@b\"", "").replace("@dns", &front.to_string());
    let weir = Setup::of(&config).with("a", address).start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_broadcast(true).expect("it may");
    socket.send_to(b"?", ("127.255.255.255", front.port())).expect("it is sent");
    let mut answer = [0; 10];
    let (size, from) = socket.recv_from(&mut answer).unwrap_or_else(|it| panic!("{it}\n{}", weir.story()));
    assert_eq!((&answer[..size], from), (&b"a?"[..], SocketAddr::from(([127, 0, 0, 1], front.port()))));
}
