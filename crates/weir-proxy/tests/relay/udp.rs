use std::net::{IpAddr, SocketAddr, UdpSocket};

use weir_balance::AdminState;
use weir_stats::table::{End, Rejected};

use crate::rig::{LONG, Rig, eventually, in_background, pattern};

fn config(backends: &[SocketAddr], bind: &str, listener: &str) -> String {
    let backends: Vec<String> = backends.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[admin]\nbind = \"off\"\n[listener.relay]\nprotocol = \"udp\"\nbind = \"{bind}\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [{}]\n[pool.app.health]\ncheck = \"off\"\n",
        backends.join(", ")
    )
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

fn client(rig: &Rig) -> UdpSocket {
    let socket = socket("127.0.0.1:0");
    socket.connect(rig.address()).unwrap();
    socket
}

/// Sends every datagram back with `name` in front.
fn echo(name: u8) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    in_background(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let mut answer = vec![name];
            answer.extend_from_slice(&buffer[..count]);
            let _ = socket.send_to(&answer, from);
        }
    });
    address
}

fn ask(client: &UdpSocket, question: &[u8]) -> Vec<u8> {
    client.send(question).unwrap();
    let mut buffer = vec![0; 65_536];
    let count = client.recv(&mut buffer).unwrap();
    buffer.truncate(count);
    buffer
}

#[test]
fn datagrams_of_every_size_go_there_and_back_unharmed() {
    let rig = Rig::serve(&config(&[echo(b'a')], "127.0.0.1:0", ""));
    let client = client(&rig);
    for size in [0, 1, 1_400, 9_000, 65_506] {
        let question = pattern(size as u64, size);
        let answer = ask(&client, &question);
        assert_eq!(answer[0], b'a');
        assert!(answer[1..] == question, "{size} bytes differ");
    }
    assert_eq!(rig.listener().connections.total(), 1, "one client, one flow");
}

#[test]
fn answers_leave_from_the_address_the_client_wrote_to() {
    let rig = Rig::serve(&config(&[echo(b'a')], "0.0.0.0:0", ""));
    for used in ["127.0.0.1", "127.0.0.77"] {
        let client = socket("127.0.0.1:0");
        client.send_to(b"?", (used, rig.address().port())).unwrap();
        let (_, from) = client.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from.ip(), used.parse::<IpAddr>().unwrap());
    }
}

#[test]
fn a_client_keeps_its_backend_and_other_clients_get_others() {
    let rig = Rig::serve(&config(&[echo(b'a'), echo(b'b')], "127.0.0.1:0", ""));
    let (first, second) = (client(&rig), client(&rig));
    let (of_first, of_second) = (ask(&first, b"")[0], ask(&second, b"")[0]);
    assert_ne!(of_first, of_second);
    for _ in 0..20 {
        assert_eq!(ask(&first, b"")[0], of_first);
        assert_eq!(ask(&second, b"")[0], of_second);
    }
}

#[test]
fn flows_of_one_client_spread_by_their_ports_where_flows_are_hashed() {
    // Behind a wildcard the destination is the address that the client wrote to.
    for bind in ["127.0.0.1:0", "0.0.0.0:0"] {
        let by_flow = "[pool.app]\nbalance = \"maglev\"\nhash = { key = \"flow\" }\n";
        let config = config(&[echo(b'a'), echo(b'b')], bind, "").replace("[pool.app]\n", by_flow);
        let rig = Rig::serve(&config);
        let destination = SocketAddr::from(([127, 0, 0, 1], rig.address().port()));
        for _ in 0..16 {
            let client = socket("127.0.0.1:0");
            client.connect(destination).unwrap();
            let owner = rig.owner_of_flow(client.local_addr().unwrap(), destination, 17);
            assert_eq!(usize::from(ask(&client, b"")[0] - b'a'), owner, "{bind}");
        }
    }
}

#[test]
fn a_flow_above_the_limit_is_not_opened_and_the_others_live_on() {
    let rig = Rig::serve(&config(&[echo(b'a')], "127.0.0.1:0", "max_connections = 1"));
    let (first, second) = (client(&rig), client(&rig));
    ask(&first, b"");
    second.send(b"").unwrap();
    eventually("the second is refused", || {
        rig.listener().rejected[Rejected::FlowLimit as usize].total() == 1
    });
    ask(&first, b"still here");
}

#[test]
fn a_flow_whose_backend_does_not_listen_moves_to_one_that_does() {
    // Bound to a port and closed again: the kernel answers with port unreachable.
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rig = Rig::serve(&config(&[gone, echo(b'b')], "127.0.0.1:0", ""));
    for _ in 0..2 {
        let client = client(&rig);
        client.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        // The datagram that finds out is lost, as datagrams are; the client's next one arrives.
        let answered = (0..50).any(|_| {
            client.send(b"x").unwrap();
            client.recv(&mut [0; 16]).is_ok_and(|count| count == 2)
        });
        assert!(answered);
    }
    let failures: u64 = rig.snapshot.pools[0].backends[0].cells.of(0).failures.total();
    assert!(failures >= 1);
}

#[test]
fn a_flow_leaves_a_backend_that_is_drained_at_its_next_datagram() {
    let rig = Rig::serve(&config(&[echo(b'a'), echo(b'b')], "127.0.0.1:0", ""));
    let client = client(&rig);
    let first = ask(&client, b"")[0];
    let balance = &rig.snapshot.pools[0].balance;
    let now = weir_io::clock::now();
    balance.set_admin_state(usize::from(first - b'a'), AdminState::Drain, now);
    balance.refresh(now);
    assert_ne!(ask(&client, b"")[0], first);
    assert_eq!(rig.pool().redispatches.total(), 1);
}

#[test]
fn a_reload_that_takes_the_backend_out_moves_the_flow_and_one_that_keeps_it_does_not() {
    let (a, b) = (echo(b'a'), echo(b'b'));
    let mut rig = Rig::serve(&config(&[a], "127.0.0.1:0", ""));
    let client = client(&rig);
    assert_eq!(ask(&client, b"")[0], b'a');
    rig.reload(&config(&[b, a], "127.0.0.1:0", ""));
    assert_eq!(ask(&client, b"")[0], b'a');
    rig.reload(&config(&[b], "127.0.0.1:0", ""));
    assert_eq!(ask(&client, b"")[0], b'b');
    assert_eq!(rig.listener().connections.total(), 1);
}

#[test]
fn a_flow_idle_for_too_long_ends_and_gives_its_place_back() {
    let rig = Rig::serve(&config(
        &[echo(b'a')],
        "127.0.0.1:0",
        "max_connections = 1\ntimeout = { client_idle = \"1s\" }",
    ));
    ask(&client(&rig), b"");
    rig.await_ends(End::ClientIdle, 1);
    eventually("the place is free", || rig.listener().connections_ended.total() == 1);
    ask(&client(&rig), b"");
    assert_eq!(rig.listener().connections.total(), 2);
}

#[test]
fn a_burst_of_many_clients_is_answered_to_each() {
    let rig = Rig::serve(&config(&[echo(b'a'), echo(b'b'), echo(b'c')], "127.0.0.1:0", ""));
    let clients: Vec<UdpSocket> = (0..100).map(|_| client(&rig)).collect();
    for (number, client) in clients.iter().enumerate() {
        client.send(&(number as u32).to_le_bytes()).unwrap();
    }
    for (number, client) in clients.iter().enumerate() {
        let mut answer = [0; 16];
        assert_eq!(client.recv(&mut answer).unwrap(), 5);
        assert_eq!(answer[1..5], (number as u32).to_le_bytes());
    }
}
