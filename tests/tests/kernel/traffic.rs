//! What goes through, and what is seen of it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};

use socket2::{Domain, Socket, Type};
use weir_tests::dialogue::{Setup, until};
use weir_tests::network::{Network, PATIENCE};
use weir_tests::raw::{RST, Segment, Sender};

use super::{Talk, VIP, VIP6, asks, config, datagram_socket, start};

#[test]
fn connections_and_datagrams_of_both_families_reach_backends_and_come_back() {
    let (network, weir) = start(3, "balance = \"round-robin\"");
    for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        let mut servers = BTreeSet::new();
        for _ in 0..9 {
            let mut talk = Talk::begin(&network, &to);
            talk.goes_on(b"hello");
            talk.goes_on(&vec![b'x'; 200_000]);
            servers.insert(talk.server);
        }
        assert_eq!(servers.len(), 3, "{to}");
    }
    for (to, from) in [(format!("{VIP}:80"), "0.0.0.0"), (format!("[{VIP6}]:80"), "::")] {
        let socket = datagram_socket(&network, from);
        let first = asks(&socket, &to, b"one");
        for _ in 0..20 {
            assert_eq!(asks(&socket, &to, b"again"), first, "a flow stays with its backend");
        }
    }
    let status = weir.admin().reads("/v1/status").json();
    for listener in status["listeners"].as_array().expect("listeners") {
        assert_eq!(listener["plane"], "kernel");
        let interfaces: Vec<&str> =
            listener["interfaces"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
        assert_eq!(interfaces, ["to_client", "to_server1", "to_server2", "to_server3"]);
    }
    weir.reaches("weir_connections_total", &[("listener", "tcp_four")], 9.0);
    weir.reaches("weir_bytes_total", &[("listener", "tcp_four"), ("direction", "sent")], 1_800_000.0);
    weir.reaches("weir_l4_packets_total", &[("listener", "udp_four"), ("verdict", "to_backend")], 21.0);
    weir.reaches("weir_l4_packets_total", &[("listener", "udp_four"), ("verdict", "to_client")], 21.0);
}

#[test]
fn clients_stay_with_the_backend_that_their_address_hashes_to() {
    let (network, _weir) = start(3, "balance = \"source\"");
    let servers: BTreeSet<String> =
        (0..10).map(|_| Talk::begin(&network, &format!("{VIP}:80")).server).collect();
    assert_eq!(servers.len(), 1);
}

#[test]
fn a_host_that_does_not_forward_balances_all_the_same() {
    let (network, _weir) = start(2, "balance = \"round-robin\"");
    for key in ["net.ipv4.conf.all.forwarding", "net.ipv6.conf.all.forwarding"] {
        network.sets("weir", key, "0");
    }
    for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        Talk::begin(&network, &to).goes_on(&vec![b'y'; 100_000]);
    }
}

/// Of a datagram that a backend sends first nothing says by which interface its client is: it was dropped.
#[test]
fn an_answer_of_no_flow_leaves_a_host_that_does_not_forward() {
    let network = Network::enter(1);
    for key in ["net.ipv4.conf.all.forwarding", "net.ipv6.conf.all.forwarding"] {
        network.sets("weir", key, "0");
    }
    let _weir = Setup::of(&config(&network, 1, "health = { check = \"off\" }")).start();
    for (is_v6, client, vip) in
        [(false, "10.50.1.2", VIP.to_owned()), (true, "fd50:1::2", format!("[{VIP6}]"))]
    {
        let socket = datagram_socket(&network, client);
        let to = socket.local_addr().unwrap();
        let backend = network.server(1, 8080, is_v6);
        let backend = network.on("server1", || UdpSocket::bind(backend).expect("a socket"));
        socket.set_nonblocking(true).unwrap();
        let mut answer = [0; 64];
        let (count, from) = until("an answer", || {
            backend.send_to(b"first", to).expect("the datagram leaves");
            socket.recv_from(&mut answer).ok()
        });
        assert_eq!((&answer[..count], from), (&b"first"[..], format!("{vip}:80").parse().unwrap()));
    }
}

#[test]
fn what_is_not_for_a_listener_goes_its_usual_way() {
    let (network, weir) = start(1, "");
    // Routed through Weir's host, past the listeners.
    let direct = network.server(1, 8080, false).to_string();
    Talk::begin(&network, &direct).goes_on(b"straight");
    asks(&datagram_socket(&network, "0.0.0.0"), &direct, b"straight, too");
    assert_eq!(
        weir.metric("weir_l4_packets_total", &[("listener", "tcp_four"), ("verdict", "to_backend")]),
        0.0
    );
}

#[test]
fn a_port_that_was_used_for_a_listener_may_be_used_for_its_backend_afterwards() {
    let (network, _weir) = start(1, "");
    let direct = network.server(1, 8080, false);
    let from: SocketAddr = "10.50.1.2:41234".parse().unwrap();
    let talk = |to: SocketAddr| {
        network.on("client", || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&from.into()).unwrap();
            socket.connect_timeout(&to.into(), PATIENCE).unwrap_or_else(|problem| panic!("{to}: {problem}"));
            let mut stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(b"x").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "1\nx");
        });
    };
    talk(format!("{VIP}:80").parse().unwrap());
    talk(direct);
    talk(format!("{VIP}:80").parse().unwrap());
}

#[test]
fn a_backend_that_its_probes_find_down_gets_no_new_flow_and_loses_those_it_had() {
    let (network, weir) = start(
        2,
        "balance = \"round-robin\"\nhealth = { interval = \"500ms\", timeout = \"500ms\", fall = 1, rise = 1 }",
    );
    let to = format!("{VIP}:80");
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    network.run("server1", &["ip", "link", "set", "uplink", "down"]);
    until("the backend is down", || {
        let status = weir.admin().reads("/v1/status").json();
        let pool = status["pools"].as_array()?.iter().find(|pool| pool["name"] == "four")?.clone();
        (pool["backends"][0]["state"] == "down").then_some(())
    });
    until("no table holds it", || {
        let servers: BTreeSet<String> = (0..4).map(|_| Talk::begin(&network, &to).server).collect();
        (servers == BTreeSet::from(["2".to_owned()])).then_some(())
    });
    for talk in &mut talks {
        if talk.server == "2" {
            talk.goes_on(b"still there");
        } else {
            let _ = talk.stream.write_all(b"anybody?");
            let ended = talk.stream.read(&mut [0; 16]);
            assert_eq!(ended.expect_err("a reset").kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

/// Of any number, from who knows the connection's ends: the backend does not heed it, and no more does Weir.
#[test]
fn a_reset_that_the_backend_does_not_heed_ends_no_flow() {
    let (network, weir) = start(1, "");
    for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        let mut talk = Talk::begin(&network, &to);
        talk.goes_on(b"hello");
        let source = talk.stream.local_addr().unwrap();
        let flows = |stage| weir.admin().reads(&format!("/v1/flows?client={source}&stage={stage}")).json();
        assert_eq!(flows("open")["matching"], 1);
        let destination = to.parse().unwrap();
        let reset =
            Segment { source, destination, flags: RST, sequence: 7, acknowledgement: 0, payload: b"" };
        network.on("client", || Sender::here().expect("root").sends(&reset.packet()).expect("it leaves"));
        until("the reset has come", || (flows("over")["matching"] == 1).then_some(()));
        talk.goes_on(b"still there");
        talk.goes_on(b"and still");
        assert_eq!((&flows("over")["matching"], &flows("open")["matching"]), (&0.into(), &1.into()));
    }
}

#[test]
fn clients_that_a_list_keeps_out_begin_no_flow_and_flows_that_run_go_on() {
    let (network, mut weir) = start(1, "");
    let to: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let to_six: SocketAddr = format!("[{VIP6}]:80").parse().unwrap();
    let mut running = Talk::begin(&network, &to.to_string());
    let lists = "plane = \"kernel\"\nallow_address = [\"10.50.0.0/16\", \"fd50:1::/64\"]\ndeny_address = [\"10.50.1.2\"]";
    weir.reloads(&super::config(&network, 1, "").replace("plane = \"kernel\"", lists));
    assert!(Talk::try_begin(&network, to).is_err());
    running.goes_on(b"as before");
    Talk::begin(&network, &to_six.to_string()).goes_on(b"allowed");
    let counted = [("listener", "tcp_four"), ("verdict", "drop_denied")];
    until("it is counted", || (weir.metric("weir_l4_packets_total", &counted) >= 1.0).then_some(()));
    let explained = weir.command(&["explain", "tcp", "10.50.1.2:4000", &to.to_string()]);
    assert!(explained.stdout.contains("drop_denied"), "{explained:?}");
    assert!(explained.stdout.contains("`10.50.1.2/32` of `deny_address` holds 10.50.1.2"), "{explained:?}");
    weir.reloads(&super::config(&network, 1, ""));
    Talk::begin(&network, &to.to_string()).goes_on(b"let in again");
}
