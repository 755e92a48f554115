//! What a backend must not get away with (threats A20, A16 and the garbage of H3).

use weir_tests::dialogue::{After, Backend, Broken, Response, ScriptedBackend, Setup, Weir, Wire};

use super::{PLAIN, plain};

/// A pool that never tries again, so that the one bad answer is what the test sees.
const NO_RETRY: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
timeout = { backend = "2s" }

[pool.app]
backends = ["@app"]
retry = { attempts = 0 }
health = { check = "off", passive = "off" }
"#;

/// A client, and the connection on which the backend has received its request.
fn asks(weir: &Weir, backend: &ScriptedBackend) -> (Wire, Wire) {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    (client, wire)
}

#[test]
fn a_response_whose_head_breaks_the_rules_becomes_502_and_its_connection_is_dropped() {
    let heads: &[(&str, &[u8])] = &[
        ("two lengths", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 5\r\n\r\nhello"),
        ("a list of lengths", b"HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\nhello"),
        (
            "length and chunked",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("a negative length", b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello"),
        ("an empty length", b"HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nhello"),
        ("a length that overflows", b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhello"),
        (
            "chunked twice",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("another coding", b"HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("CR in the reason", b"HTTP/1.1 200 O\rK\r\ncontent-length: 0\r\n\r\n"),
        ("NUL in the reason", b"HTTP/1.1 200 O\0K\r\ncontent-length: 0\r\n\r\n"),
        ("LF line ends", b"HTTP/1.1 200 OK\ncontent-length: 0\n\n"),
        ("CR in a value", b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: evil\r\ncontent-length: 0\r\n\r\n"),
        ("NUL in a value", b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n"),
        ("space before a colon", b"HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\nhello"),
        ("no colon", b"HTTP/1.1 200 OK\r\nnonsense\r\ncontent-length: 0\r\n\r\n"),
        ("an empty name", b"HTTP/1.1 200 OK\r\n: x\r\ncontent-length: 0\r\n\r\n"),
        ("folding", b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n"),
        ("a status of two digits", b"HTTP/1.1 20 OK\r\ncontent-length: 0\r\n\r\n"),
        ("a status of four digits", b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n"),
        ("status 000", b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n"),
        ("version 2.0", b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
        (
            "101 that nobody asked for",
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ),
    ];
    let mut problems = Vec::new();
    let backend = ScriptedBackend::start();
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    for (name, head) in heads {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(head);
        match client.tries_to_receive_response("GET") {
            Ok(response) if response.status == 502 => {}
            other => problems.push(format!("{name}: the client got {other:?}")),
        }
        let closed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wire.receives_close()));
        if closed.is_err() {
            problems.push(format!("{name}: the backend connection was left open"));
        }
    }
    assert!(problems.is_empty(), "{}\n{}", problems.join("\n"), weir.story());
}

#[test]
fn a_response_with_oversized_head_becomes_502() {
    let backend = Backend::serving(|request, wire| {
        let _ = match request.target.as_str() {
            "/field" => wire.tries_to_send(format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1 << 20))),
            "/line" => wire.tries_to_send(format!("HTTP/1.1 200 {}", "y".repeat(1 << 20))),
            _ => wire.tries_to_send(format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(10_000))),
        };
        After::Keep
    });
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    for path in ["/field", "/line", "/count"] {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(502);
    }
}

#[test]
fn a_chunked_response_that_goes_wrong_is_visibly_cut_off() {
    let bodies: &[(&str, &[u8])] = &[
        ("bad size", b"5\r\nhello\r\nxyz\r\n"),
        ("no CRLF behind the data", b"5\r\nhelloXX"),
        ("LF behind the size", b"5\r\nhello\r\n5\nworld\r\n0\r\n\r\n"),
        ("overflowing size", b"5\r\nhello\r\nffffffffffffffffff\r\n"),
        ("FIN in a chunk", b"5\r\nhello\r\n10\r\nwor"),
        ("FIN before the last chunk", b"5\r\nhello\r\n"),
    ];
    let backend = ScriptedBackend::start();
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    for (name, body) in bodies {
        let (mut client, mut wire) = asks(&weir, &backend);
        wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        wire.sends(body);
        wire.half_closes();
        match client.tries_to_receive_response("GET") {
            Err((Broken::Ended | Broken::Reset, partial)) => {
                let partial = partial.map(|response: Box<Response>| response.body).unwrap_or_default();
                assert!(
                    b"helloworld".starts_with(&partial[..]),
                    "{name}: {:?}",
                    String::from_utf8_lossy(&partial)
                );
            }
            Ok(response) if response.status == 502 => {}
            other => panic!("{name}: the client took this for a whole response, or hangs: {other:?}"),
        }
    }
}

#[test]
fn a_response_shorter_than_its_length_is_visibly_cut_off() {
    // H3: a truncated response must not look whole.
    for reset in [false, true] {
        let backend = ScriptedBackend::start();
        let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
        let (mut client, mut wire) = asks(&weir, &backend);
        wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this");
        client.receives_until("only this");
        if reset {
            wire.resets()
        } else {
            drop(wire)
        }
        client.receives_close();
        // A fresh request is served: only that connection was given up.
        let (mut client, mut wire) = asks(&weir, &backend);
        wire.answers(200, &[], "ok");
        client.receives_status(200);
    }
}

#[test]
fn a_reset_in_a_response_that_ends_with_its_connection_is_not_a_clean_end() {
    // Without a length or chunks, only FIN or RST tells a complete body from a truncated one.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.sends("HTTP/1.1 200 OK\r\n\r\nsome of it");
    let head = client.receives_head();
    if head.fields.lists("transfer-encoding", "chunked") {
        client.receives_until("some of it");
        wire.resets();
        let rest = client.receives_to_the_end();
        assert!(
            !rest.windows(5).any(|window| window == b"0\r\n\r\n"),
            "the cut body was ended as if it were whole"
        );
    } else {
        client.receives_until("some of it");
        wire.resets();
        client.receives_close();
        assert!(client.was_reset(), "the cut body was ended with a clean FIN");
    }
}

#[test]
fn bytes_behind_a_response_are_never_taken_for_the_next_one() {
    // A20: response queue poisoning.
    let poison = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned";
    for (name, first) in [
        ("behind a length", format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok{poison}")),
        (
            "behind chunks",
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{poison}"),
        ),
        ("behind 204", format!("HTTP/1.1 204 No Content\r\n\r\n{poison}")),
        ("behind 304", format!("HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n{poison}")),
        ("two finals", format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n{poison}")),
    ] {
        let backend = ScriptedBackend::start();
        let weir = Setup::of(PLAIN).with("app", backend.address()).start();
        let mut client = weir.client("web");
        client.sends("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(&first);
        let response = client.receives_response();
        assert!(matches!(response.status, 200 | 204 | 304), "{name}: {response:?}");
        client.sends("GET /second HTTP/1.1\r\nhost: a\r\n\r\n");
        // The second request must come on a fresh connection.
        let mut fresh = backend.accepts();
        assert_eq!(fresh.receives_request().target, "/second");
        fresh.answers(200, &[], "genuine");
        assert_eq!(client.receives_status(200).text(), "genuine", "{name}");
        wire.receives_close();
    }
}

#[test]
fn bytes_that_arrive_on_an_idle_backend_connection_spoil_it() {
    // A20: the poisoned response arrives late, while the connection is idle in the pool.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.answers(200, &[], "ok");
    client.receives_status(200);
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned");
    client.sends("GET /second HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut fresh = backend.accepts();
    assert_eq!(fresh.receives_request().target, "/second");
    fresh.answers(200, &[], "genuine");
    assert_eq!(client.receives_status(200).text(), "genuine");
}

#[test]
fn a_204_with_a_body_gives_the_client_no_body() {
    // A20
    let backend = ScriptedBackend::start();
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    for head in [
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let mut client = weir.client("web");
        client.sends("GET /first HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(head);
        let response = client.receives_response();
        assert!(matches!(response.status, 204 | 502), "{response:?}");
        if !response.closes() {
            client.sends("GET /second HTTP/1.1\r\nhost: a\r\n\r\n");
            let mut fresh = backend.accepts();
            fresh.receives_request();
            fresh.answers(200, &[], "genuine");
            assert_eq!(client.receives_status(200).text(), "genuine");
        }
    }
}

#[test]
fn a_flood_of_interim_responses_is_cut_off() {
    // A17, A20
    let backend = Backend::serving(|_, wire| {
        for _ in 0..10_000 {
            if wire.tries_to_send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").is_err() {
                return After::Close;
            }
        }
        wire.answers(200, &[], "ok");
        After::Keep
    });
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.receives_response();
    assert_eq!(response.status, 502);
    assert!(response.interim.len() <= 100, "{} interim responses were passed on", response.interim.len());
}

#[test]
fn long_interim_responses_are_cut_off_sooner() {
    let hint = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(50_000));
    let backend = Backend::serving(move |_, wire| {
        // It may be cut off before everything was sent.
        let _ = wire.tries_to_send(hint.repeat(20));
        let _ = wire.tries_to_send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        After::Close
    });
    let weir = Setup::of(NO_RETRY).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.receives_status(502);
    assert_eq!(response.interim.len(), 10);
}

#[test]
fn a_page_may_have_many_early_hints() {
    let backend = Backend::serving(|_, wire| {
        for file in 0..40 {
            wire.sends(format!("HTTP/1.1 103 Early Hints\r\nlink: </{file}.js>; rel=preload\r\n\r\n"));
        }
        wire.answers(200, &[], "ok");
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).interim, [103; 40]);
}

#[test]
fn early_hints_are_passed_on_before_the_response() {
    let backend = Backend::serving(|_, wire| {
        wire.sends("HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n");
        wire.answers(200, &[], "ok");
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.receives_status(200);
    assert!(matches!(response.interim[..], [103] | []), "{:?}", response.interim);
    // A client of HTTP/1.0 does not know interim responses (RFC 9110 §15.2).
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).interim, Vec::<u16>::new());
}
