//! Clients that leave while the backend takes nothing of what they have sent.

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use weir_tests::dialogue::{
    NO_HEALTH, ScriptedBackend, Setup, Weir, Wire, free_address, listen_at, pattern, until,
};

use super::front;

/// Long enough for Weir to check whether a client whose bytes the backend does not read is still there.
const LOOKED_FOR: Duration = Duration::from_secs(5);

fn relay(backend: impl ToString) -> Weir {
    Setup::of(&front("", NO_HEALTH)).with("app", backend).start()
}

fn in_flight(weir: &Weir) -> f64 {
    weir.metric("weir_backend_in_flight", &[("pool", "app")])
}

/// Sends until all buffers on the way are full.
fn fills(client: &Wire) {
    let mut socket = client.socket();
    socket.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let block = pattern(1, 1 << 16);
    loop {
        match socket.write(&block) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
            Err(error) => panic!("the tunnel broke while it was filled: {error}"),
        }
    }
}

/// Echoes what it receives, and does not read while its echo is not read.
fn blocking_echo() -> std::net::SocketAddr {
    let listener = listen_at(free_address());
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &stream, &mut &stream);
            });
        }
    });
    address
}

/// It kept its place until the `tunnel` timeout, because its bytes waited for the backend, and the backend's
/// for it.
#[test]
fn a_client_that_resets_a_tunnel_that_is_full_both_ways_gives_its_place_back() {
    let weir = relay(blocking_echo());
    let client = weir.client("front");
    fills(&client);
    assert_eq!(in_flight(&weir), 1.0);
    client.resets();
    until("the place to be given back", || (in_flight(&weir) == 0.0).then_some(()));
}

/// Nothing was sent to it that could have revealed that it had gone.
#[test]
fn a_client_that_resets_a_tunnel_before_a_backend_that_stopped_reading_gives_its_place_back() {
    let backend = ScriptedBackend::start();
    let weir = relay(backend.address());
    let client = weir.client("front");
    let wire = backend.accepts();
    fills(&client);
    assert_eq!(in_flight(&weir), 1.0);
    client.resets();
    until("the place to be given back", || (in_flight(&weir) == 0.0).then_some(()));
    drop(wire);
}

/// FIN says that the request is complete: what a slow backend has not read yet is still wanted, even when the
/// client's system refuses the answer.
#[test]
fn what_a_client_sent_before_it_ended_its_stream_reaches_a_slow_backend() {
    for is_refused in [false, true] {
        let backend = ScriptedBackend::start();
        let weir = relay(backend.address());
        let client = weir.client("front");
        let mut wire = backend.accepts();
        let sent = pattern(2, 3 << 20);
        let mut socket: &TcpStream = client.socket();
        socket.write_all(&sent).expect("send");
        socket.shutdown(std::net::Shutdown::Write).expect("half-close");
        // Long enough for all of it to be sent, and for the client to be checked.
        std::thread::sleep(LOOKED_FOR);
        let kept = (!is_refused).then_some(client);
        if is_refused {
            wire.sends("too late");
            std::thread::sleep(LOOKED_FOR);
        }
        assert!(wire.receives(sent.len()) == sent);
        wire.receives_end();
        drop(kept);
    }
}

/// Nothing was sent to it that could have revealed that it had gone: its backend was held for `client_idle`,
/// and in a tunnel for `tunnel`.
#[test]
fn a_client_that_resets_behind_the_end_of_its_stream_gives_its_place_back() {
    for protocol in ["tcp", "http"] {
        let backend = ScriptedBackend::start();
        let config = format!(
            r#"
            [listener.front]
            protocol = "{protocol}"
            bind = "@front"
            pool = "app"
            {}
            [pool.app]
            backends = ["@app"]
            health = {{ check = "off", passive = "off" }}
            "#,
            if protocol == "tcp" { "timeout = { client_idle = \"1h\" }" } else { "" }
        );
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let mut client = weir.client("front");
        let mut wire = if protocol == "tcp" { backend.accepts() } else { in_tunnel(&mut client, &backend) };
        client.sends("last words");
        client.half_closes();
        wire.receives_exactly("last words");
        wire.receives_end();
        // A client that has ended its stream but is still there is waited for.
        std::thread::sleep(LOOKED_FOR);
        wire.sends("so long");
        client.receives_exactly("so long");
        assert_eq!(in_flight(&weir), 1.0, "{protocol}");
        client.resets();
        until("the place to be given back", || (in_flight(&weir) == 0.0).then_some(()));
    }
}

/// Opens a tunnel over HTTP/1.1; gives the backend's end.
fn in_tunnel(client: &mut Wire, backend: &ScriptedBackend) -> Wire {
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_until("\r\n\r\n");
    wire.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    client.receives_until("\r\n\r\n");
    wire
}

/// Unread bytes hide that their sender has gone: it kept its place until `queue.timeout`.
#[test]
fn a_client_that_has_sent_something_and_resets_in_line_gives_its_place_in_line_up() {
    for protocol in ["tcp", "http"] {
        let backend = ScriptedBackend::start();
        let config = format!(
            r#"
            [listener.front]
            protocol = "{protocol}"
            bind = "@front"
            pool = "app"
            [pool.app]
            backends = [{{ address = "@app", max_connections = 1 }}]
            queue = {{ timeout = "1h", max = 1 }}
            health = {{ check = "off", passive = "off" }}
            "#
        );
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let mut first = weir.client("front");
        first.sends("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        let waits = |count: f64| {
            let depth = || weir.metric("weir_queue_depth", &[("pool", "app")]);
            until(&format!("{count} in line"), || (depth() == count).then_some(()));
        };
        let mut second = weir.client("front");
        second.sends("POST /second HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nfirst");
        waits(1.0);
        second.resets();
        waits(0.0);
        wire.receives_until("/first");
        let mut third = weir.client("front");
        third.sends("GET /third HTTP/1.1\r\nhost: a\r\n\r\n");
        waits(1.0);
        wire.sends("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        drop(wire);
        drop(first);
        backend.accepts().receives_until("/third");
    }
}
