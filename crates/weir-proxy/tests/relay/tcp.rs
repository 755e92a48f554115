use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use weir_stats::table::{End, Rejected};

use crate::rig::{Backend, LONG, Rig, in_background, pattern};

fn config(backends: &[SocketAddr], listener: &str, pool: &str) -> String {
    let backends: Vec<String> = backends.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[admin]\nbind = \"off\"\n[listener.relay]\nprotocol = \"tcp\"\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [{}]\n{pool}\n",
        backends.join(", ")
    )
}

/// Closes with a reset.
fn abort(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        stream.write_all(&buffer[..count]).unwrap();
    }
}

fn receive(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_backend_that_speaks_first_is_heard() {
    let backend = Backend::open().serve(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        echo(stream);
    });
    let rig = Rig::serve(&config(&[backend], "", ""));
    let mut client = rig.connect();
    assert_eq!(receive(&mut client, 11), b"220 ready\r\n");
    client.write_all(b"EHLO").unwrap();
    assert_eq!(receive(&mut client, 4), b"EHLO");
    drop(client);
    rig.await_ends(End::Done, 1);
    assert_eq!(rig.listener().bytes_received.total(), 4);
    assert_eq!(rig.listener().bytes_sent.total(), 15);
}

#[test]
fn connections_of_one_client_spread_by_their_ports_where_flows_are_hashed() {
    let backend = |name: u8| Backend::open().serve(move |mut stream| stream.write_all(&[name]).unwrap());
    let by_flow = "balance = \"maglev\"\nhash = { key = \"flow\" }";
    let rig = Rig::serve(&config(&[backend(0), backend(1)], "", by_flow));
    for _ in 0..16 {
        let mut client = rig.connect();
        let owner = rig.owner_of_flow(client.local_addr().unwrap(), rig.address(), 6);
        assert_eq!(usize::from(receive(&mut client, 1)[0]), owner);
    }
}

#[test]
fn an_end_of_stream_passes_and_the_other_direction_goes_on() {
    let backend = Backend::open().serve(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&(all.len() as u64).to_le_bytes()).unwrap();
    });
    let rig = Rig::serve(&config(&[backend], "", ""));
    let mut client = rig.connect();
    client.write_all(b"twelve bytes").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, 12_u64.to_le_bytes());
    rig.await_ends(End::Done, 1);
}

#[test]
fn bulk_in_both_directions_at_once_arrives_whole_and_small_messages_follow_it() {
    const LENGTH: usize = 24 << 20;
    let backend = Backend::open().serve(|mut stream| {
        let mut sending = stream.try_clone().unwrap();
        let sender = in_background(move || sending.write_all(&pattern(2, LENGTH)).unwrap());
        let mut received = vec![0; LENGTH];
        stream.read_exact(&mut received).unwrap();
        assert!(received == pattern(1, LENGTH), "what the backend received differs");
        sender.join().unwrap();
        echo(stream);
    });
    let rig = Rig::serve(&config(&[backend], "", ""));
    let mut client = rig.connect();
    let mut sending = client.try_clone().unwrap();
    let sender = in_background(move || sending.write_all(&pattern(1, LENGTH)).unwrap());
    assert!(receive(&mut client, LENGTH) == pattern(2, LENGTH), "what the client received differs");
    sender.join().unwrap();
    for round in 0..200_u32 {
        client.write_all(&round.to_le_bytes()).unwrap();
        assert_eq!(receive(&mut client, 4), round.to_le_bytes());
    }
    drop(client);
    rig.await_ends(End::Done, 1);
    assert_eq!(rig.listener().bytes_received.total(), (LENGTH + 800) as u64);
}

#[test]
fn a_receiver_that_is_slow_holds_up_the_sender_and_loses_nothing() {
    const LENGTH: usize = 16 << 20;
    let backend = Backend::open();
    let rig = Rig::serve(&config(&[backend.address], "", ""));
    let mut client = rig.connect();
    let sender = in_background(move || {
        client.write_all(&pattern(3, LENGTH)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    let mut stream = backend.accept();
    let mut all = Vec::new();
    // Odd pieces, so that pipes and buffers are emptied in the middle.
    let mut piece = vec![0; 7_919];
    while let count @ 1.. = stream.read(&mut piece).unwrap() {
        all.extend_from_slice(&piece[..count]);
    }
    assert!(all == pattern(3, LENGTH));
    drop(stream);
    let mut client = sender.join().unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    rig.await_ends(End::Done, 1);
}

#[test]
fn a_reset_of_either_side_is_a_reset_for_the_other() {
    let backend = Backend::open();
    let rig = Rig::serve(&config(&[backend.address], "", ""));
    let mut client = rig.connect();
    let mut served = backend.accept();
    client.write_all(b"x").unwrap();
    receive(&mut served, 1);
    abort(client);
    assert_eq!(served.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    rig.await_ends(End::ClientClosed, 1);

    let mut client = rig.connect();
    let mut served = backend.accept();
    served.write_all(b"y").unwrap();
    receive(&mut client, 1);
    abort(served);
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    rig.await_ends(End::BackendClosed, 1);
}

#[test]
fn an_answer_to_a_request_that_was_not_read_to_its_end_still_arrives() {
    let backend = Backend::open();
    let rig = Rig::serve(&config(&[backend.address], "", ""));
    let mut client = rig.connect();
    let mut uploading = client.try_clone().unwrap();
    let served = backend.accept();
    // The backend never reads; once everything in between is full the upload stands still.
    let uploader = in_background(move || while uploading.write_all(&[b'x'; 65_536]).is_ok() {});
    crate::rig::eventually("the upload has begun", || rig.listener().bytes_received.total() > 1 << 16);
    (&served).write_all(b"413 too large").unwrap();
    // Unread bytes make this close a reset.
    drop(served);
    assert_eq!(receive(&mut client, 13), b"413 too large");
    drop(client);
    uploader.join().unwrap();
    rig.await_ends(End::BackendClosed, 1);
}

#[test]
fn a_connection_that_one_backend_refuses_goes_to_another() {
    let good = Backend::open().serve(echo);
    let rig = Rig::serve(&config(&[Backend::absent(), good], "", ""));
    for _ in 0..4 {
        let mut client = rig.connect();
        client.write_all(b"ping").unwrap();
        assert_eq!(receive(&mut client, 4), b"ping");
    }
    assert!(rig.pool().redispatches.total() >= 1);
    assert_eq!(rig.pool().retries.total(), rig.pool().redispatches.total());
}

#[test]
fn a_client_that_no_backend_takes_is_reset_and_never_sees_an_orderly_end() {
    let rig = Rig::serve(&config(&[Backend::absent()], "", "retry = { attempts = 1 }"));
    let mut client = rig.connect();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    rig.await_ends(End::ConnectFailed, 1);
    assert_eq!(rig.pool().retries.total(), 1);
    assert_eq!(rig.pool().redispatches.total(), 0);
}

#[test]
fn a_proxy_header_comes_in_and_goes_out() {
    let backend = Backend::open();
    let rig =
        Rig::serve(&config(&[backend.address], "accept_proxy = [\"127.0.0.0/8\"]", "send_proxy = \"v1\""));
    let mut client = rig.connect();
    client.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\nhello").unwrap();
    let mut served = backend.accept();
    let expected = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\nhello";
    assert_eq!(receive(&mut served, expected.len()), expected);
}

#[test]
fn a_peer_that_must_send_a_proxy_header_and_does_not_is_reset() {
    let backend = Backend::open();
    let rig = Rig::serve(&config(&[backend.address], "accept_proxy = [\"127.0.0.0/8\"]", ""));
    let mut client = rig.connect();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(rig.listener().rejected[Rejected::BadProxyHeader as usize].total(), 1);
}

#[test]
fn whoever_finds_every_backend_full_waits_in_line_and_the_line_has_an_end() {
    let backend = Backend::open();
    let pool = "queue = { max = 1, timeout = \"20s\" }";
    let text = config(&[], "", pool).replace(
        "backends = []",
        &format!("backends = [{{ address = \"{}\", max_connections = 1 }}]", backend.address),
    );
    let rig = Rig::serve(&text);
    let first = rig.connect();
    let served = backend.accept();
    let mut second = rig.connect();
    crate::rig::eventually("the second waits", || rig.snapshot.pools[0].queue.depth() == 1);
    let mut third = rig.connect();
    assert_eq!(third.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    rig.await_ends(End::QueueFull, 1);
    drop((first, served));
    let mut served = backend.accept();
    second.write_all(b"my turn").unwrap();
    assert_eq!(receive(&mut served, 7), b"my turn");
}

#[test]
fn nobody_waits_in_line_for_longer_than_its_timeout() {
    let backend = Backend::open();
    let text = config(&[], "", "queue = { max = 10, timeout = \"30ms\" }").replace(
        "backends = []",
        &format!("backends = [{{ address = \"{}\", max_connections = 1 }}]", backend.address),
    );
    let rig = Rig::serve(&text);
    let _first = rig.connect();
    let _served = backend.accept();
    let mut second = rig.connect();
    assert_eq!(second.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    rig.await_ends(End::QueueTimeout, 1);
    assert_eq!(rig.snapshot.pools[0].queue.depth(), 0);
}

#[test]
fn a_session_idle_for_too_long_ends_in_order_on_both_sides() {
    let backend = Backend::open();
    let rig = Rig::serve(&config(&[backend.address], "timeout = { client_idle = \"1s\" }", ""));
    let mut client = rig.connect();
    let mut served = backend.accept();
    client.write_all(b"x").unwrap();
    receive(&mut served, 1);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(served.read(&mut [0; 1]).unwrap(), 0);
    rig.await_ends(End::ClientIdle, 1);
}

#[test]
fn sessions_of_a_listener_that_goes_away_live_until_draining_is_over() {
    let backend = Backend::open().serve(echo);
    let runtime = |text: String| format!("[runtime]\ndrain = \"1s\"\n{text}");
    let mut rig = Rig::serve(&runtime(config(&[backend], "", "")));
    let mut client = rig.connect();
    client.write_all(b"before").unwrap();
    receive(&mut client, 6);
    let before = rig.snapshot.clone();
    rig.reload(&runtime(config(&[backend], "", "")).replace("listener.relay", "listener.other"));
    client.write_all(b"during").unwrap();
    assert_eq!(receive(&mut client, 6), b"during");
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let ends = &before.listeners[0].cells.of(0).ends;
    crate::rig::eventually("the end is counted", || ends[End::Draining as usize].total() == 1);
}

#[test]
fn a_session_leaves_one_line_in_the_log() {
    let backend = Backend::open().serve(echo);
    let path = std::env::temp_dir().join(format!("weir-relay-{}.log", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let log = format!("[log]\naccess = \"{}\"\n", path.display());
    let rig = Rig::serve(&format!("{log}{}", config(&[backend], "", "")));
    let mut client = rig.connect();
    client.write_all(b"ping").unwrap();
    receive(&mut client, 4);
    drop(client);
    rig.await_ends(End::Done, 1);
    let (handle, address) = (rig.log.clone(), backend.to_string());
    // Ending the worker hands over what it still has.
    drop(rig);
    assert!(handle.finish(LONG));
    let line = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    for part in [
        "\"listener\":\"relay\"",
        "\"pool\":\"app\"",
        &format!("\"backend\":\"{address}\""),
        "\"protocol\":\"TCP\"",
        "\"bytes_received\":4,\"bytes_sent\":4",
        "\"connect\":0.0",
        "\"end\":\"done\"",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[test]
fn what_waits_to_be_accepted_is_served_though_the_listener_goes_at_once() {
    // More than one turn of the accept loop, and none of it seen by the worker when it is told to close.
    const WAITING: usize = 300;
    let backend = Backend::open().serve(echo);
    let served = config(&[backend], "", "");
    let other = served.replace("listener.relay", "listener.other").replace("127.0.0.1:0", "127.0.0.2:0");
    let mut rig = Rig::idle(&served);
    let mut clients: Vec<TcpStream> = (0..WAITING).map(|_| rig.connect()).collect();
    rig.reload_at_once(&other);
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
        assert_eq!(receive(client, 5), b"hello");
    }
}
