//! What one client can bring about by what it asks for, or by how slowly it sends and reads, takes no backend
//! from others (threat H16).

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir};

use super::is_up;

/// One failure is enough for passive health, and two for the breaker.
const CONFIG: &str = r#"
[runtime]
workers = 1
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
retry = { attempts = 0 }
breaker = { errors = 0.1, of = 2, within = "1h", for = "1h" }
[pool.app.health]
check = "off"
passive = { errors = 1, within = "1h", eject = "1h", max_ejected = 1.0 }
"#;

fn before(backend: impl ToString, more: &str) -> Weir {
    Setup::of(&CONFIG.replace("[pool.app]", &format!("[pool.app]\n{more}"))).with("app", backend).start()
}

fn failures(weir: &Weir) -> f64 {
    weir.metric("weir_backend_failures_total", &[("pool", "app")])
}

#[test]
fn answers_that_grow_with_what_was_asked_eject_nobody() {
    let backend = Backend::serving(|request, wire| {
        let names = request.fields.all("cookie").join(";");
        let forgotten: Vec<_> = names.split(';').map(|_| ("set-cookie", "gone; max-age=0")).collect();
        let long = "y".repeat(request.target.trim_start_matches('/').parse().unwrap_or(0));
        wire.answers(200, &[forgotten, vec![("x-next", &long)]].concat(), "ok");
        After::Keep
    });
    let weir = before(backend.address(), "");
    let ask = |target: &str, cookies: usize| {
        let mut client = weir.client("web");
        let cookies = vec!["a=1"; cookies].join(";");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\ncookie: {cookies}\r\n\r\n"));
        client.receives_response()
    };
    for _ in 0..3 {
        let many = ask("/", 150);
        assert_eq!((many.status, many.text().contains("too_many_fields")), (502, true), "{many:?}");
        let long = ask("/100000", 1);
        assert_eq!((long.status, long.text().contains("header_block_too_large")), (502, true), "{long:?}");
    }
    assert_eq!(ask("/", 1).status, 200);
    assert!(is_up(&weir, backend.address()) && failures(&weir) == 0.0, "{}", weir.story());
}

/// Many a server closes a connection whose request does not come to its end, without a word.
#[test]
fn a_backend_that_closes_while_a_client_is_to_send_more_is_not_to_blame() {
    let backend = ScriptedBackend::start();
    let weir = before(backend.address(), "");
    for end in ["closes", "resets", "after a hint"] {
        let mut client = weir.client("web");
        client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome");
        let mut wire = backend.accepts();
        wire.receives_until("some");
        match end {
            "closes" => drop(wire),
            "resets" => wire.resets(),
            _ => {
                wire.sends("HTTP/1.1 102 Processing\r\n\r\n");
                client.receives_until("via: 1.1 weir\r\n\r\n");
                drop(wire);
            }
        }
        assert_eq!(client.receives_response().status, 502, "{end}");
    }
    // Nor within an answer that it had begun before it had all.
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nsome");
    let mut wire = backend.accepts();
    wire.receives_until("some");
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
    client.receives_until("half");
    drop(wire);
    client.receives_close();
    assert!(is_up(&weir, backend.address()) && failures(&weir) == 0.0, "{}", weir.story());
    // One that has all is.
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nsome");
    let mut wire = backend.accepts();
    wire.receives_until("some");
    drop(wire);
    assert_eq!(client.receives_response().status, 502);
    assert!(!is_up(&weir, backend.address()));
}

#[test]
fn a_backend_that_closes_for_its_client_does_not_read_is_not_to_blame() {
    const BODY_BYTES: usize = 64 << 20;
    let backend = ScriptedBackend::start();
    for more in ["", "buffer = { responses = \"1MiB\" }"] {
        let weir = before(backend.address(), more);
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\n\r\n"));
        // All sockets on the way fill; then it has its own time for what it sends, as servers do.
        let mut socket = wire.socket().try_clone().expect("a second handle");
        socket.set_write_timeout(Some(Duration::from_millis(1300))).expect("a timeout");
        let mut sent = 0;
        let stalled = loop {
            match socket.write(&[b'x'; 64 << 10]) {
                Ok(count) => sent += count,
                Err(stalled) => break stalled,
            }
        };
        assert!(matches!(stalled.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{stalled}");
        drop((socket, wire));
        let got = client.receives_to_the_end().len();
        assert!(got > 1 << 20 && got < BODY_BYTES, "{got} of {sent}");
        weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "backend_closed")], 1.0);
        assert!(is_up(&weir, backend.address()) && failures(&weir) == 0.0, "{}", weir.story());
        // One whose client reads is.
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
        client.receives_until("half");
        drop(wire);
        client.receives_close();
        weir.reaches("weir_backend_failures_total", &[("pool", "app")], 1.0);
        assert!(!is_up(&weir, backend.address()));
    }
}
