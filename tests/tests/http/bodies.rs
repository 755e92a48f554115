//! Bodies keep their bytes and their ends, in both directions (threat A16).

use weir_tests::dialogue::{
    After, Backend, NO_PROBES, ScriptedBackend, Setup, fingerprint, one_pool, pattern,
};

use super::{PLAIN, plain};

/// Answers with the body's length and fingerprint.
fn weighing() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[], format!("{} {:x}", request.body.len(), fingerprint(&request.body)));
        After::Keep
    })
}

#[test]
fn a_request_body_with_a_length_arrives_with_that_length() {
    let backend = weighing();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for size in [0, 1, 1000, 16_384, 65_536, 1_000_000] {
        let body = pattern(size as u64, size);
        client.sends(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"));
        client.sends(&body);
        assert_eq!(client.receives_status(200).text(), format!("{size} {:x}", fingerprint(&body)));
        let request = backend.requests().pop().expect("a request");
        assert_eq!(request.fields.one("content-length"), Some(size.to_string().as_str()));
        assert_eq!(request.fields.one("transfer-encoding"), None);
    }
}

#[test]
fn a_chunked_request_body_arrives_whole_with_its_trailers() {
    let backend = weighing();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
    let body = pattern(7, 200_000);
    for (number, piece) in body.chunks(7919).enumerate() {
        // Leading zeros, upper and lower case are all legal sizes.
        let size =
            if number % 2 == 0 { format!("{:X}", piece.len()) } else { format!("000{:x}", piece.len()) };
        client.sends([size.as_bytes(), b"\r\n", piece, b"\r\n"].concat());
    }
    client.sends("0\r\nx-sum: 42\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), format!("{} {:x}", body.len(), fingerprint(&body)));
    let request = backend.requests().remove(0);
    assert_eq!(request.fields.one("transfer-encoding"), Some("chunked"));
    assert_eq!(request.fields.one("content-length"), None);
    assert_eq!(request.trailers.one("x-sum"), Some("42"));
}

#[test]
fn a_trailer_cannot_carry_framing_host_or_credentials() {
    // B13 for HTTP/1.1; RFC 9110 §6.5.1
    let backend = weighing();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\
         content-length: 5\r\ntransfer-encoding: chunked\r\nhost: b\r\nauthorization: x\r\nx-forwarded-for: 1.2.3.4\r\n\r\n",
    );
    let response = client.receives_response();
    if response.status == 200 {
        let trailers = &backend.requests()[0].trailers;
        for name in ["content-length", "transfer-encoding", "host", "authorization", "x-forwarded-for"] {
            assert!(trailers.all(name).is_empty(), "the trailer {name} was forwarded: {trailers:?}");
        }
    } else {
        assert_eq!(response.status, 400);
    }
}

#[test]
fn a_chunked_response_arrives_whole_with_its_trailers() {
    let body = pattern(11, 300_000);
    let sent = body.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
        for piece in sent.chunks(4099) {
            wire.sends([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
        }
        wire.sends("0\r\nx-sum: 43\r\n\r\n");
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for _ in 0..2 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n");
        let response = client.receives_status(200);
        assert!(response.body == body, "the body differs; {} bytes", response.body.len());
        assert_eq!(response.trailers.one("x-sum"), Some("43"));
    }
    assert_eq!(backend.connections(), 1);
}

#[test]
fn a_response_that_ends_with_its_connection_reaches_the_client_whole_and_framed() {
    let body = pattern(12, 100_000);
    let sent = body.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.sends("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n");
        wire.sends(&sent);
        After::Close
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.receives_status(200);
    assert!(response.body == body);
    // A client of HTTP/1.0 does not know chunks: for it the body ends with the connection.
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let response = client.receives_status(200);
    assert_eq!(response.fields.one("transfer-encoding"), None);
    assert!(response.body == body);
}

#[test]
fn a_chunked_response_reaches_a_client_of_http_1_0_without_chunks() {
    let backend = Backend::serving(|_, wire| {
        wire.sends(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        );
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let response = client.receives_status(200);
    assert_eq!(response.fields.one("transfer-encoding"), None);
    assert_eq!(response.body, b"hello world");
    client.receives_end();
}

#[test]
fn a_response_to_head_has_no_body_and_keeps_the_connection_in_step() {
    let backend = Backend::serving(|request, wire| {
        if request.method == "HEAD" {
            wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n");
        } else {
            wire.answers(200, &[], "after");
        }
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
    let response = client.receives_response_to("HEAD");
    assert_eq!(response.fields.one("content-length"), Some("12345"));
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "after");
    assert_eq!(backend.connections(), 1, "the backend connection was reused");
}

#[test]
fn responses_204_and_304_have_no_body_and_keep_the_connection_in_step() {
    let backend = Backend::serving(|request, wire| {
        match request.target.as_str() {
            "/204" => wire.sends("HTTP/1.1 204 No Content\r\n\r\n"),
            // A 304 may carry the length that a 200 would have had (RFC 9110 §8.6).
            "/304" => wire.sends("HTTP/1.1 304 Not Modified\r\ncontent-length: 999\r\netag: \"x\"\r\n\r\n"),
            _ => wire.answers(200, &[], "after"),
        }
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for (path, status) in [("/204", 204), ("/200", 200), ("/304", 304), ("/200", 200)] {
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let response = client.receives_status(status);
        if status == 204 {
            assert!(
                response.fields.one("transfer-encoding").is_none()
                    && response.fields.one("content-length").is_none()
            );
        }
    }
}

#[test]
fn a_body_on_get_head_delete_and_options_is_framed_like_any_other() {
    // A16: CL.0
    let backend = Backend::serving(|request, wire| {
        if request.method == "HEAD" {
            wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
        } else {
            wire.answers(200, &[], "ok");
        }
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
        client.sends(format!(
            "{method} /outer HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{smuggled}",
            smuggled.len()
        ));
        assert_eq!(client.receives_response_to(method).status, 200, "{method}");
    }
    client.sends("GET /last HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    let targets: Vec<String> = backend.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(targets, ["/outer", "/outer", "/outer", "/outer", "/last"]);
    assert!(backend.requests()[0].body == smuggled.as_bytes());
}

#[test]
fn a_body_sent_to_an_answer_from_the_config_is_drained_or_the_connection_closed() {
    // A16: 0.CL on a static answer
    let backend = Backend::saying("from the backend");
    let weir = Setup::of(&one_pool(
        r#"
        [[listener.web.route]]
        path = "/static"
        respond = { status = 200, body = "static\n" }
        [[listener.web.route]]
        path = "/moved"
        redirect = { to = "https://elsewhere.example$path" }
        "#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start();
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    for (path, status) in [("/static", 200), ("/moved", 308)] {
        for chunked in [false, true] {
            let mut client = weir.client("web");
            let framing = match chunked {
                false => format!("content-length: {}\r\n\r\n{smuggled}", smuggled.len()),
                true => format!(
                    "transfer-encoding: chunked\r\n\r\n{:x}\r\n{smuggled}\r\n0\r\n\r\n",
                    smuggled.len()
                ),
            };
            client.sends(format!("POST {path} HTTP/1.1\r\nhost: a\r\n{framing}"));
            let response = client.receives_status(status);
            if response.closes() {
                client.receives_close();
            } else {
                client.sends("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
                assert_eq!(client.receives_status(200).text(), "from the backend");
            }
        }
    }
    let all: Vec<String> = backend.requests().into_iter().map(|request| request.target).collect();
    assert!(!all.contains(&"/smuggled".to_owned()), "{all:?}");
}

#[test]
fn an_answer_before_the_end_of_the_request_never_leaves_an_undrained_connection_in_use() {
    // A16, H3: early response, then reuse; CVE-2025-4366.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = 100_000 + smuggled.len();
    client.sends(format!("POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
    client.sends(vec![b'x'; 50_000]);
    let mut first = backend.accepts();
    assert_eq!(first.receives_request_head().target, "/early");
    first.answers(403, &[], "no");
    let response = client.receives_status(403);
    // The rest of the body comes after the answer; whatever happens to it, it must be treated as body.
    let rest_sent =
        client.tries_to_send(vec![b'x'; 50_000]).and_then(|()| client.tries_to_send(smuggled)).is_ok();
    if !response.closes() {
        assert!(rest_sent, "the connection was kept but did not take the rest of the body");
        client.sends("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    let mut fence = weir.client("web");
    fence.sends("GET /fence HTTP/1.1\r\nhost: a\r\n\r\n");
    // A fresh connection for the fence, or the first one if its request was sent to the end.
    let mut answered = false;
    let mut connections = vec![first];
    weir_tests::dialogue::until("the fence at the backend", || {
        connections.extend(backend.accepts_if_any());
        for wire in &mut connections[1..] {
            if wire.looks() > 0 {
                let request = wire.receives_request();
                assert_ne!(request.target, "/smuggled");
                wire.answers(200, &[], "ok");
                answered |= request.target == "/fence";
            }
        }
        answered.then_some(())
    });
    fence.receives_status(200);
    // The connection of the early answer carries body bytes, and never another request's head after a
    // truncated body.
    let after = connections[0].looks();
    assert!(after <= length, "the backend got {after} bytes of a body of {length}");
}

#[test]
fn a_client_that_goes_away_in_its_body_leaves_no_half_request_on_a_kept_connection() {
    let backend = weighing();
    let weir = plain(&backend);
    // First a kept backend connection, so that there is one that could be corrupted.
    let mut client = weir.client("web");
    client.sends("GET /warm HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    let mut leaver = weir.client("web");
    leaver.sends("POST /cut HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf of it");
    leaver.resets();
    for _ in 0..5 {
        client.sends("GET /after HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    let targets: Vec<String> = backend.requests().into_iter().map(|request| request.target).collect();
    assert!(!targets.contains(&"/cut".to_owned()), "a cut request looked whole to the backend: {targets:?}");
}

#[test]
fn a_client_that_half_closes_still_gets_its_answer() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.half_closes();
    let mut wire = backend.accepts();
    wire.receives_request();
    wire.answers(200, &[], "late but here");
    assert_eq!(client.receives_status(200).text(), "late but here");
    client.receives_end();
}

#[test]
fn a_client_that_closes_is_taken_for_gone_where_the_listener_says_so() {
    let backend = ScriptedBackend::start();
    let config = PLAIN.replace("bind = \"@web\"", "bind = \"@web\"\nabort_on_close = true");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    // Before the answer's head, and during a pause in its body.
    for begun in ["", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n"] {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(begun);
        if !begun.is_empty() {
            client.receives_until("event\r\n");
        }
        client.half_closes();
        wire.receives_close();
    }
    weir.reaches("weir_ends_total", &[("reason", "client_closed")], 2.0);
}

#[test]
fn bytes_that_arrive_one_at_a_time_make_the_same_exchange() {
    // H3: one-byte writes, both sides.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends_byte_by_byte(
        "POST /slow?a=b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    );
    let mut wire = backend.accepts();
    let request = wire.receives_request();
    assert_eq!((request.target.as_str(), &request.body[..]), ("/slow?a=b", &b"hello"[..]));
    wire.sends_byte_by_byte("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nworld\r\n0\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "world");
}

#[test]
fn a_body_over_the_routes_limit_is_refused_and_never_whole_at_the_backend() {
    let backend = weighing();
    let weir = Setup::of(&one_pool(
        r#"
        [[listener.web.route]]
        path = "/small/*"
        pool = "app"
        body_limit = "1KiB"
        "#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start();
    let mut client = weir.client("web");
    client.sends(format!(
        "POST /small/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1024\r\n\r\n{}",
        "x".repeat(1024)
    ));
    client.receives_status(200);
    // Declared as too long: refused because of the head alone.
    client.sends("POST /small/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1025\r\n\r\n");
    client.receives_status(413);
    // Too long without saying so.
    let mut client = weir.client("web");
    client.sends("POST /small/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..8 {
        let _ = client.tries_to_send([b"100\r\n".as_slice(), &[b'x'; 256], b"\r\n"].concat());
    }
    assert_eq!(client.receives_response().status, 413);
    weir.reaches("weir_rejected_total", &[("reason", "body_too_large")], 2.0);
    // Elsewhere there is no limit.
    let mut client = weir.client("web");
    client.sends(format!(
        "POST /large HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n{}",
        "x".repeat(5000)
    ));
    client.receives_status(200);
    let sizes: Vec<usize> = backend.requests().into_iter().map(|request| request.body.len()).collect();
    assert_eq!(sizes, [1024, 5000]);
}

#[test]
fn a_refusal_is_readable_even_when_the_client_is_still_sending() {
    // Closing a socket with unread bytes sends a reset that can destroy the answer on its way; Weir must
    // linger.
    let backend = weighing();
    let weir = plain(&backend);
    for round in 0..20 {
        let mut client = weir.client("web");
        let _ = client.tries_to_send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\n{}",
            "x".repeat(300_000)
        ));
        let response = client.tries_to_receive_response("POST");
        let status = response.as_ref().map(|response| response.status);
        assert_eq!(status.ok(), Some(400), "round {round}: {response:?}");
    }
}
