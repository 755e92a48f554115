//! One client can't have the whole memory budget (threat D34): another one, from another address, is served
//! whatever the first does.

use weir_tests::dialogue::http2::{Http2, Outcome, frame, get, kind, setting};
use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, until};

/// More than all sockets on the way take.
const BIG: usize = 24 << 20;
/// More than comes along with a head.
const PAGE: usize = 200_000;

const CONFIG: &str = r#"
[runtime]
workers = 1
memory = "16MiB"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
timeout = { client_body = "10m" }
MORE
[log]
access = "@dir/access.log"
[pool.app]
backends = [{ address = "@app", max_connections = MOST }]
queue = { max = 100000, timeout = "1h" }
timeout = { backend = "1h" }
health = "off"
"#;

fn config(most: u32, more: &str) -> String {
    CONFIG.replace("MOST", &most.to_string()).replace("MORE", more)
}

/// A connection from this address of the loopback network.
fn client_at(weir: &Weir, address: [u8; 4]) -> Wire {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from((address, 0)).into()).expect("an address of our own");
    socket.connect(&weir.address("web").into()).expect("connect");
    Wire::over(socket.into(), "client")
}

fn refused(weir: &Weir) -> f64 {
    weir.metric("weir_rejected_total", &[("reason", "memory")])
}

/// Asks in HTTP/1.1 for a page, which needs a buffer of its own.
fn gets_page(client: &mut Wire) {
    client.sends("GET /page HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).body.len(), PAGE);
}

#[test]
fn d34_slow_readers_of_one_address_leave_memory_to_another() {
    let backend = Backend::serving(|request, wire| {
        let length = if request.target == "/page" { PAGE } else { BIG };
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"));
        // Who reads slowly may be gone before it is all sent.
        match wire.tries_to_send(vec![b'x'; length]) {
            Ok(()) => After::Keep,
            Err(_) => After::Close,
        }
    });
    let weir = Setup::of(&config(1000, "")).with("app", backend.address()).start();
    let mut kept = client_at(&weir, [127, 0, 0, 2]);
    gets_page(&mut kept);
    let mut slow = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(slow.len() < 400, "{} answers wait, and nobody is refused", slow.len());
        let mut client = weir.client("web");
        let _ = client.tries_to_send("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
        slow.push(client);
    }
    assert!(slow.len() > 4, "only {} answers wait", slow.len());
    gets_page(&mut kept);
    gets_page(&mut client_at(&weir, [127, 0, 0, 3]));
    let told = until("the largest client", || {
        let told = weir.command(&["status"]).stdout;
        told.contains("most by client 127.0.0.1").then_some(told)
    });
    assert!(told.contains("of 4.0MiB"), "{told}");
    weir.reaches("weir_memory_client_refusals_total", &[], 1.0);
    let overloaded = |line: &String| line.contains("overload");
    until("the log", || weir.lines_of("access.log", 1).iter().any(overloaded).then_some(()));
    drop(slow);
    until("service again", || {
        let mut client = weir.client("web");
        client.tries_to_send("GET /page HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
        client.tries_to_receive_response("GET").ok().filter(|response| response.status == 200)
    });
}

#[test]
fn d34_stalled_streams_of_http_2_leave_memory_to_another_address() {
    const STREAMS: u32 = 100;
    const INITIAL_WINDOW: u16 = 4;
    let routes = "[[listener.web.route]]\npath = \"/page\"\nrespond = { status = 200, body = \"a page\" }";
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config(1, routes)).with("app", backend.address()).start();
    for path in ["/page", "/in-line"] {
        let before = refused(&weir);
        let mut stalled = Vec::new();
        while refused(&weir) <= before {
            assert!(stalled.len() < 30, "{path}: {} clients wait, and nobody is refused", stalled.len());
            // Its streams take nothing of what they ask for.
            let mut client = Http2::client(weir.client("web"), &setting(INITIAL_WINDOW, 0));
            client.sends((0..STREAMS).flat_map(|number| get(1 + 2 * number, path)).collect::<Vec<u8>>());
            client.sends(frame(kind::PING, 0, 0, b"all here"));
            client.receives(kind::PING, 0);
            stalled.push(client);
        }
        let mut other = Http2::client(client_at(&weir, [127, 0, 0, 2]), b"");
        for stream in [1, 3, 5] {
            assert_eq!(other.asks(stream, "/page"), Outcome::Answered(200, b"a page".to_vec()), "{path}");
        }
        let mut plain = client_at(&weir, [127, 0, 0, 3]);
        plain.sends("GET /page HTTP/1.1\r\nhost: a\r\n\r\n");
        plain.receives_status(200);
        drop(stalled);
        until("the memory to be free again", || {
            let mut client = Http2::client(weir.client("web"), b"");
            matches!(client.asks(1, "/page"), Outcome::Answered(200, _)).then_some(())
        });
    }
}

/// Of a proxy that speaks for many clients it is not one who holds the memory.
#[test]
fn d34_clients_behind_a_trusted_proxy_have_a_share_each() {
    let backend = Backend::serving(|request, wire| {
        let length = if request.target == "/page" { PAGE } else { BIG };
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"));
        match wire.tries_to_send(vec![b'x'; length]) {
            Ok(()) => After::Keep,
            Err(_) => After::Close,
        }
    });
    let more = "trusted_proxies = [\"127.0.0.1\"]\n[[listener.web.route]]\npath = \"/own\"\nrespond = { status = 200, body = \"own\" }";
    let config = config(1000, more);
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let begins = |client: &str| {
        let mut wire = weir.client("web");
        let _ =
            wire.tries_to_send(format!("GET /big HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n"));
        wire
    };
    let mut slow = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(slow.len() < 400, "{} answers wait, and nobody is refused", slow.len());
        slow.push(begins("192.0.2.1"));
    }
    // On a connection that has just carried a request of the first one, too.
    let mut proxy = weir.client("web");
    for (path, client, length) in [("/own", "192.0.2.1", 3), ("/page", "192.0.2.2", PAGE)] {
        proxy.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n"));
        assert_eq!(proxy.receives_status(200).body.len(), length, "{client}");
    }
}

/// Whoever rents a host for IPv6 often has a /48, and so 65,536 of the networks that have a share each.
#[test]
fn d34_clients_of_one_48_leave_memory_to_those_of_another() {
    let backend = Backend::serving(|request, wire| {
        let length = if request.target == "/page" { PAGE } else { BIG };
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"));
        match wire.tries_to_send(vec![b'x'; length]) {
            Ok(()) => After::Keep,
            Err(_) => After::Close,
        }
    });
    let config = config(1000, "accept_proxy = [\"127.0.0.0/8\"]");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let begins = |client: &str, path: &str| {
        let mut wire = weir.client("web");
        let _ = wire.tries_to_send(format!(
            "PROXY TCP6 {client} 2001:db8::80 5555 80\r\nGET {path} HTTP/1.1\r\nhost: a\r\n\r\n"
        ));
        wire
    };
    let mut slow = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(slow.len() < 400, "{} answers wait, and nobody is refused", slow.len());
        slow.push(begins(&format!("2001:db8:1:{:x}::1", slow.len()), "/big"));
    }
    for client in ["2001:db8:2::1", "2001:db8:3::1", "2001:db8:2::2"] {
        assert_eq!(begins(client, "/page").receives_status(200).body.len(), PAGE, "{client}");
    }
}

/// They were moved out of counted buffers, and counted for nobody.
#[test]
fn d34_halves_of_heads_are_their_clients_memory() {
    let backend = Backend::saying("ok");
    let config = config(1000, "")
        .replace("\"16MiB\"", "\"16MiB\"\nmemory_share_per_client = 0.05")
        .replace("\"10m\"", "\"10m\", header = \"10m\"");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let half = format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}", "y".repeat(4000));
    let mut halves = Vec::new();
    while refused(&weir) < 1.0 {
        assert!(halves.len() < 400, "{} halves wait, and nobody is refused", halves.len());
        let mut client = weir.client("web");
        let _ = client.tries_to_send(&half);
        halves.push(client);
    }
    assert!(halves.len() > 100, "only {} halves wait", halves.len());
    let mut other = client_at(&weir, [127, 0, 0, 2]);
    other.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    other.receives_status(200);
}
