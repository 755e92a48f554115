//! The PROXY protocol of datagrams: backends are told who the client is, and trusted senders tell it.

use std::net::{SocketAddr, UdpSocket};

use weir_tests::dialogue::{PATIENCE, Setup, Signal, Weir, datagram_socket, free_address, until};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 that names a client of IPv4 and where it sent a datagram to.
fn header(client: &str, asked: &str) -> Vec<u8> {
    let ends = [client, asked].map(|text| text.parse::<SocketAddr>().expect("an address and port"));
    let mut bytes = [SIGNATURE, &[0x21, 0x12, 0, 12]].concat();
    for end in ends {
        let SocketAddr::V4(end) = end else { panic!("of IPv4") };
        bytes.extend(end.ip().octets());
    }
    ends.iter().for_each(|end| bytes.extend(end.port().to_be_bytes()));
    bytes
}

fn with_header(client: &str, content: &[u8]) -> Vec<u8> {
    [&header(client, "192.0.2.53:53"), content].concat()
}

fn relay(listener: &str, pool: &str, backend: &UdpSocket) -> Weir {
    let config = config("@dns", listener, pool);
    Setup::of(&config).with("app", backend.local_addr().expect("an address")).start()
}

fn config(bind: &str, listener: &str, pool: &str) -> String {
    format!(
        r#"
        [runtime]
        drain = "100ms"
        [listener.dns]
        protocol = "udp"
        bind = "{bind}"
        pool = "app"
        timeout = {{ client_idle = "1h" }}
        {listener}
        [pool.app]
        backends = ["@app"]
        health = {{ check = "off" }}
        {pool}
        "#
    )
}

fn backend() -> UdpSocket {
    let socket = datagram_socket();
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn client(weir: &Weir) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(weir.address("dns")).expect("it connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn hears(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut datagram = vec![0; 65_536];
    let (size, from) = socket.recv_from(&mut datagram).expect("a datagram");
    datagram.truncate(size);
    (datagram, from)
}

fn refused(weir: &Weir, count: f64) {
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "bad_proxy_header")], count);
}

#[test]
fn the_first_datagram_of_a_flow_tells_the_backend_who_the_client_is() {
    let backend = backend();
    let weir = relay("", "send_proxy = \"v2\"", &backend);
    let clients = [client(&weir), client(&weir)];
    for client in &clients {
        let own = client.local_addr().expect("an address").to_string();
        let head = header(&own, &weir.address("dns").to_string());
        client.send(b"one").expect("it is sent");
        let (first, flow) = hears(&backend);
        assert_eq!(first, [&head[..], b"one"].concat());
        client.send(b"two").expect("it is sent");
        assert_eq!(hears(&backend), (b"two".to_vec(), flow));
        backend.send_to(b"answer", flow).expect("it is sent");
        assert_eq!(hears(client).0, b"answer", "nothing stands before an answer");
    }
}

#[test]
fn every_datagram_does_where_the_pool_says_so_and_none_is_longer_than_one_can_be() {
    let backend = backend();
    let weir = relay("", "send_proxy = \"v2\"\nproxy_datagrams = \"each\"", &backend);
    let client = client(&weir);
    let head =
        header(&client.local_addr().expect("an address").to_string(), &weir.address("dns").to_string());
    client.send(b"one").expect("it is sent");
    assert_eq!(hears(&backend).0, [&head[..], b"one"].concat());
    // With its header it is no datagram any more.
    client.send(&[b'x'; 65_507]).expect("it is sent");
    client.send(b"").expect("it is sent");
    assert_eq!(hears(&backend).0, head, "an empty one is a header alone");
    assert_eq!(weir.metric("weir_backend_up", &[("pool", "app")]), 1.0, "that was nobody's failure");
}

#[test]
fn j24_who_is_trusted_names_the_client_of_a_flow_and_what_follows_is_content() {
    let backend = backend();
    let listener = "accept_proxy = [\"127.0.0.0/8\"]\ndeny_address = [\"203.0.113.66\"]";
    let weir = relay(listener, "send_proxy = \"v2\"", &backend);
    let sender = client(&weir);
    sender.send(&with_header("203.0.113.7:5353", b"one")).expect("it is sent");
    let (first, flow) = hears(&backend);
    assert_eq!(first, with_header("203.0.113.7:5353", b"one"), "the client and where it sent it");
    // A client behind the sender writes what looks like a header: it names nobody.
    let forged = with_header("203.0.113.8:53", b"two");
    sender.send(&forged).expect("it is sent");
    assert_eq!(hears(&backend), (forged, flow));
    backend.send_to(b"answer", flow).expect("it is sent");
    assert_eq!(hears(&sender).0, b"answer");
    // Lists and limits are about whom it names.
    client(&weir).send(&with_header("203.0.113.66:53", b"denied")).expect("it is sent");
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", "denied_address")], 1.0);
}

#[test]
fn j24_datagrams_without_a_header_or_with_a_broken_one_reach_nobody() {
    let backend = backend();
    let weir = relay("accept_proxy = [\"127.0.0.0/8\"]", "", &backend);
    let sender = client(&weir);
    let whole = with_header("203.0.113.7:5353", b"");
    let mut long = whole.clone();
    long[14] = 0xff;
    let mut checksum = whole.clone();
    checksum[15] = 19;
    checksum.extend([3, 0, 4, 1, 2, 3, 4]);
    let broken: Vec<&[u8]> = vec![
        b"plain",
        b"",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 5353 53\r\nplain",
        &whole[..20],
        &long,
        &checksum,
    ];
    for (number, datagram) in broken.iter().enumerate() {
        sender.send(datagram).expect("it is sent");
        refused(&weir, number as f64 + 1.0);
    }
    // The sender's own, as its health checks are.
    sender.send(&[SIGNATURE, &[0x20, 0, 0, 0], b"local"].concat()).expect("it is sent");
    assert_eq!(hears(&backend).0, b"local");
}

#[test]
fn j24_one_sender_names_many_clients_where_each_datagram_has_a_header() {
    let backend = backend();
    let each = "proxy_datagrams = \"each\"";
    let listener = format!("accept_proxy = [\"127.0.0.1\"]\n{each}");
    let weir = relay(&listener, &format!("send_proxy = \"v2\"\n{each}"), &backend);
    let sender = client(&weir);
    let mut flows = Vec::new();
    for name in ["203.0.113.7:1", "203.0.113.7:2", "203.0.113.8:1", "203.0.113.7:1"] {
        sender.send(&with_header(name, name.as_bytes())).expect("it is sent");
        let (content, flow) = hears(&backend);
        assert_eq!(content, with_header(name, name.as_bytes()));
        flows.push(flow);
    }
    assert_eq!(flows[0], flows[3], "one client is one flow");
    assert!(flows[0] != flows[1] && flows[1] != flows[2]);
    sender.send(b"without").expect("it is sent");
    refused(&weir, 1.0);
    for flow in &flows[..3] {
        backend.send_to(b"answer", flow).expect("it is sent");
        assert_eq!(hears(&sender).0, b"answer");
    }
}

fn rejected(weir: &Weir, reason: &str, count: f64) {
    weir.reaches("weir_rejected_total", &[("listener", "dns"), ("reason", reason)], count);
}

/// Another sender's datagram gets through, and nothing has before it.
fn nothing_came_before(weir: &Weir, backend: &UdpSocket) {
    client(weir).send(&with_header("203.0.113.99:1", b"last")).expect("it is sent");
    assert_eq!(hears(backend).0, with_header("203.0.113.99:1", b"last"));
}

const TRUSTING: &str = "accept_proxy = [\"127.0.0.0/8\"]\ndeny_address = [\"203.0.113.66\"]";
const TELLING: &str = "send_proxy = \"v2\"";

#[test]
fn j32_a_client_that_is_refused_names_nobody_with_what_it_sends_next() {
    let backend = backend();
    let weir = relay(TRUSTING, TELLING, &backend);
    let sender = client(&weir);
    sender.send(&with_header("203.0.113.66:53", b"one")).expect("it is sent");
    rejected(&weir, "denied_address", 1.0);
    // The sender passes on what the client wrote, which looks like a header.
    for count in [2.0, 3.0] {
        sender.send(&with_header("203.0.113.7:53", b"forged")).expect("it is sent");
        rejected(&weir, "denied_address", count);
    }
    sender.send(b"plain").expect("it is sent");
    rejected(&weir, "denied_address", 4.0);
    nothing_came_before(&weir, &backend);
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "bad_proxy_header")]), 0.0);
}

#[test]
fn j32_one_over_its_rate_or_a_limit_of_flows_stays_who_it_is() {
    let limits = [
        ("rate_limited", "rate_limit = { rate = \"1/h\", burst = 1 }"),
        ("client_connections", "max_connections_per_client = 1"),
    ];
    for (reason, limit) in limits {
        let backend = backend();
        let weir = relay(&format!("{TRUSTING}\n{limit}"), TELLING, &backend);
        let (first, second) = (client(&weir), client(&weir));
        first.send(&with_header("203.0.113.7:1", b"one")).expect("it is sent");
        assert_eq!(hears(&backend).0, with_header("203.0.113.7:1", b"one"));
        second.send(&with_header("203.0.113.7:2", b"two")).expect("it is sent");
        rejected(&weir, reason, 1.0);
        second.send(&with_header("203.0.113.8:2", b"forged")).expect("it is sent");
        rejected(&weir, reason, 2.0);
        nothing_came_before(&weir, &backend);
    }
}

#[test]
fn j32_what_a_client_that_was_refused_sends_later_gets_in_under_its_name() {
    let backend = backend();
    let limit = "rate_limit = { rate = \"20/s\", burst = 1 }";
    let weir = relay(&format!("{TRUSTING}\n{limit}"), TELLING, &backend);
    let sender = client(&weir);
    client(&weir).send(&with_header("203.0.113.7:1", b"one")).expect("it is sent");
    assert_eq!(hears(&backend).0, with_header("203.0.113.7:1", b"one"));
    sender.send(&with_header("203.0.113.7:2", b"two")).expect("it is sent");
    backend.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("a timeout");
    let heard = until("it to be let in", || {
        sender.send(&with_header("203.0.113.8:2", b"forged")).expect("it is sent");
        let mut datagram = vec![0; 1000];
        backend.recv(&mut datagram).ok().map(|size| datagram[..size].to_vec())
    });
    let forged = with_header("203.0.113.8:2", b"forged");
    let as_itself = [with_header("203.0.113.7:2", b"two"), with_header("203.0.113.7:2", &forged)];
    assert!(as_itself.contains(&heard), "{heard:?}");
}

/// Content goes on under the names that were known, of flows and of who was refused.
fn names_are_kept(weir: &Weir, backend: &UdpSocket, senders: &[UdpSocket; 2], denied_count: f64) {
    let [named, denied] = senders;
    let forged = with_header("203.0.113.8:53", b"forged");
    denied.send(&forged).expect("it is sent");
    rejected(weir, "denied_address", denied_count);
    named.send(&forged).expect("it is sent");
    assert_eq!(hears(backend).0, with_header("203.0.113.7:53", &forged), "a new flow, of the same client");
    named.send(b"plain").expect("it is sent");
    assert_eq!(hears(backend).0, b"plain");
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "bad_proxy_header")]), 0.0);
}

/// A sender that has named a client with a flow, and one that has named one that was refused.
fn senders(weir: &Weir, backend: &UdpSocket) -> [UdpSocket; 2] {
    let senders = [client(weir), client(weir)];
    senders[1].send(&with_header("203.0.113.66:53", b"denied")).expect("it is sent");
    rejected(weir, "denied_address", 1.0);
    senders[0].send(&with_header("203.0.113.7:53", b"one")).expect("it is sent");
    assert_eq!(hears(backend).0, with_header("203.0.113.7:53", b"one"));
    senders
}

#[test]
fn j32_an_upgrade_leaves_every_client_its_name() {
    let backend = backend();
    let weir = relay(TRUSTING, TELLING, &backend);
    let senders = senders(&weir, &backend);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    // Until then it may read what comes.
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
    // Its counters began anew.
    names_are_kept(&weir, &backend, &senders, 1.0);
}

#[test]
fn j32_a_reload_that_listens_anew_leaves_every_client_its_name() {
    let backend = backend();
    let front = free_address();
    let config = |host: &str| config(&format!("{host}:{}", front.port()), TRUSTING, TELLING);
    let setup = Setup::of(&config("127.0.0.1")).with("dns", front);
    let mut weir = setup.with("app", backend.local_addr().expect("an address")).start();
    weir.knows("dns", front);
    let senders = senders(&weir, &backend);
    weir.reloads(&config("0.0.0.0"));
    names_are_kept(&weir, &backend, &senders, 2.0);
}
