//! What is counted of backends is what backends saw.

use std::io::Write as _;

use weir_tests::dialogue::{After, Backend, ONE_POOL, ScriptedBackend, Setup, curl, until};

use super::{PLAIN, plain};

#[test]
fn a_connection_to_a_backend_counts_as_open_until_it_is_closed() {
    let backend = Backend::serving(|request, wire| {
        let closes = request.target == "/last";
        wire.answers(200, if closes { &[("connection", "close")] } else { &[] }, "ok");
        if closes { After::Close } else { After::Keep }
    });
    let weir = plain(&backend);
    let open = || weir.metric("weir_backend_connections", &[("pool", "app")]);
    let mut client = weir.client("web");
    for target in ["/1", "/2", "/last", "/3", "/last"] {
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(200);
        if target != "/last" {
            assert_eq!(open(), 1.0, "the kept connection is open");
        }
    }
    assert_eq!(backend.connections(), 2);
    until("no connection to be open", || (open() == 0.0).then_some(()));
}

#[test]
fn every_byte_of_an_upload_counts_as_sent_to_the_backend_whether_answered_or_not() {
    const BODY_BYTES: usize = 3 << 20;
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let labels = [("pool", "app"), ("direction", "sent")];
    let sent = || weir.metric("weir_backend_bytes_total", &labels);
    for is_answered in [true, false] {
        let before = sent();
        let mut client = weir.client("web");
        let mut writer = client.socket().try_clone().expect("a second handle");
        let sender = std::thread::spawn(move || {
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
            writer.write_all(head.as_bytes()).expect("send");
            writer.write_all(&vec![b'x'; BODY_BYTES]).expect("send");
        });
        let mut wire = backend.accepts();
        assert_eq!(wire.receives_request().body.len(), BODY_BYTES);
        if is_answered {
            wire.answers(200, &[("connection", "close")], "ok");
        }
        drop(wire);
        client.receives_status(if is_answered { 200 } else { 502 });
        sender.join().expect("the sender");
        // The client may have its answer a moment before what it took is counted.
        weir.reaches("weir_backend_bytes_total", &labels, before + BODY_BYTES as f64);
        let counted = sent() - before;
        assert!(counted < (BODY_BYTES + 1024) as f64, "{counted} bytes, answered: {is_answered}");
    }
}

#[test]
fn requests_that_no_backend_sees_count_in_bytes_as_others_do() {
    const CONFIG: &str = r#"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        [[listener.web.route]]
        path = "/own"
        respond = { status = 200, body = "own" }
        [[listener.web.route]]
        path = "/moved"
        redirect = { to = "/own", status = 302 }
        [[listener.web.route]]
        path = "/denied"
        pool = "app"
        deny_method = ["GET"]
        [[listener.web.route]]
        pool = "app"
        [listener.web.route.cache]
        [pool.app]
        backends = ["@app"]
        health = "off"
        [log]
        access = "@dir/access.log"
        "#;
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[("cache-control", "max-age=60")], "kept");
        After::Keep
    });
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    let mut client = weir.client("web");
    let mut sent = 0;
    for (path, status) in [
        ("/kept", 200),
        ("/kept", 200),
        ("/own", 200),
        ("/moved", 302),
        ("/denied", 403),
        ("/kept?again", 200),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        client.sends(&request);
        client.receives_status(status);
        sent += request.len();
    }
    for line in weir.lines_of("access.log", 6) {
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let path = line["path"].as_str().expect("a path");
        let length = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").len();
        assert_eq!(line["bytes_received"], length, "{line}");
    }
    let received = [("listener", "web"), ("direction", "received")];
    assert_eq!(weir.metric("weir_bytes_total", &received), sent as f64);
    curl(&["--http2-prior-knowledge", &format!("http://{}/kept", weir.address("web"))]);
    weir.reaches("weir_bytes_total", &received, sent as f64 + 1.0);
}

/// The guide says so: content that comes in chunks counts without them, and with them where it leaves.
#[test]
fn chunks_count_where_they_are_sent_and_not_where_they_are_received() {
    let backend = Backend::serving(|request, wire| {
        assert_eq!(request.body, b"hello world");
        wire.sends(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        );
        After::Keep
    });
    let config = format!("{PLAIN}[log]\naccess = \"@dir/access.log\"\n");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = weir.client("web");
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    client.sends(format!("{head}5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"));
    let received = client.receives_to_the_end();
    let line: serde_json::Value = serde_json::from_str(&weir.lines_of("access.log", 1)[0]).expect("JSON");
    assert_eq!(line["bytes_received"], head.len() + "hello world".len(), "{line}");
    assert_eq!(line["bytes_sent"], received.len(), "{line}");
}

/// Nobody could see that a backend ends connections sooner than `keep_alive.idle` lets them rest.
#[test]
fn idle_connections_that_a_backend_has_ended_are_counted_and_cost_no_request() {
    let backend = ScriptedBackend::start();
    let config = format!("[runtime]\nworkers = 1\n{ONE_POOL}health = \"off\"\nretry = {{ attempts = 0 }}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let ended = || weir.metric("weir_backend_idle_connections_ended_total", &[("pool", "app")]);
    assert_eq!(ended(), 0.0);
    let mut client = weir.client("web");
    for (count, how) in ["closed", "reset", "spoken on"].into_iter().enumerate() {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.answers(200, &[], how);
        assert_eq!(client.receives_status(200).text(), how);
        assert_eq!(ended(), count as f64, "{how}");
        let spoken_on = match how {
            "closed" => {
                drop(wire);
                None
            }
            "reset" => {
                wire.resets();
                None
            }
            _ => {
                wire.sends("HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n");
                Some(wire)
            }
        };
        weir.reaches("weir_backend_idle_connections_ended_total", &[("pool", "app")], (count + 1) as f64);
        drop(spoken_on);
    }
    assert_eq!(weir.metric("weir_backend_connections_reused_total", &[("pool", "app")]), 0.0);
}
