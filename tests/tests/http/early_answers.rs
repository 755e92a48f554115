//! Backends that speak before they have all of a request that is held for them: that is heard, and what is
//! left to be sent moves on meanwhile, over each version of HTTP.

use weir_tests::dialogue::http2::{
    END_STREAM, Http2, Outcome, code, frame, headers, kind, request, setting, window_update,
};
use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir, Wire, pattern};

use super::hedging::{between, nobody_is_left, settled};

const MIB: usize = 1 << 20;
/// More than the sockets on the way take.
const BIG: usize = 24 * MIB;
/// What a stream takes before its peer says more (RFC 9113 section 6.9.2).
const WINDOW: usize = 65_535;

/// Weir before one backend; `pool` says more of its pool, `route` are whole routes.
fn before(backend: &ScriptedBackend, pool: &str, route: &str) -> Weir {
    let config = format!(
        r#"
        [runtime]
        workers = 1
        memory = "256MiB"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "app"
        timeout = {{ backend = "5s" }}
        {route}
        [pool.app]
        backends = ["@app"]
        {pool}
        health = {{ check = "off", passive = {{ errors = 1, within = "10s", eject = "30s", max_ejected = 1.0 }} }}
        "#
    );
    Setup::of(&config).with("app", backend.address()).start()
}

/// A client that has sent all of `body`, together with the head: only a request that is here as a whole when
/// its first attempt begins gets a second one.
fn sends(weir: &Weir, method: &str, body: &[u8]) -> Wire {
    let mut client = weir.client("web");
    let head = format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    client.sends([head.as_bytes(), body].concat());
    client
}

fn nobody_is_blamed(weir: &Weir) {
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), 0.0);
    assert_eq!(weir.metric("weir_backend_ejections_total", &[]), 0.0);
}

/// What comes of a request on a stream, up to its end.
fn content_of(server: &mut Http2, stream: u32) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let found = server.receives_frame();
        let found = found.unwrap_or_else(|broken| panic!("{} bytes, then {broken}", content.len()));
        if found.stream == stream && found.kind == kind::DATA {
            content.extend_from_slice(&found.payload);
        }
        if found.stream == stream && found.flags & END_STREAM != 0 {
            return content;
        }
    }
}

/// It has room for as much as these tests send.
fn opens_window(server: &mut Http2, stream: u32) {
    server.sends(window_update(0, 64 << 20));
    server.sends(window_update(stream, 64 << 20));
}

#[test]
fn a_stream_that_is_refused_before_its_window_opens_is_answered_and_nobody_is_blamed() {
    let sqli = "[[listener.web.route]]\npath = \"/*\"\npool = \"app\"\nsqli = \"block\"";
    let text = format!("[\"{}\"]", "x".repeat(WINDOW + 4000));
    for (pool, route) in [("buffer = true", ""), ("", sqli)] {
        let backend = ScriptedBackend::start();
        let weir = before(&backend, &format!("protocol = \"h2\"\n{pool}"), route);
        let mut server: Option<Http2> = None;
        for _ in 0..3 {
            let mut client = weir.client("web");
            let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length";
            client.sends(format!("{head}: {}\r\n\r\n{text}", text.len()));
            let server = server.get_or_insert_with(|| Http2::server(backend.accepts(), b""));
            let stream = server.receives_request();
            server.sends(headers(stream, &[(":status", "413")], false));
            server.sends(frame(kind::DATA, END_STREAM, stream, b"too much"));
            assert_eq!(client.receives_status(413).text(), "too much", "{pool}");
            // What was sent for it stays unread, and takes no room from others.
            server.sends(window_update(0, WINDOW as u32));
            let end = server.receives(kind::RST_STREAM, stream);
            assert_eq!(end.payload, code::CANCEL.to_be_bytes());
        }
        backend.has_nobody_waiting();
        nobody_is_blamed(&weir);
    }
}

#[test]
fn a_stream_that_is_answered_first_and_read_then_gets_all_of_what_was_held() {
    let backend = ScriptedBackend::start();
    let weir = before(&backend, "protocol = \"h2\"\nbuffer = { requests = \"4MiB\" }", "");
    let body = pattern(3, 3 * MIB);
    let mut client = sends(&weir, "POST", &body);
    let mut server = Http2::server(backend.accepts(), b"");
    let stream = server.receives_request();
    server.sends(headers(stream, &[(":status", "103"), ("link", "</a>")], false));
    server.sends(headers(stream, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, 0, stream, b"it "));
    assert_eq!(client.receives_head().status, 103);
    client.receives_until("it ");
    opens_window(&mut server, stream);
    assert!(content_of(&mut server, stream) == body);
    server.sends(frame(kind::DATA, END_STREAM, stream, b"came"));
    client.receives_until("came");
    nobody_is_blamed(&weir);
}

#[test]
fn a_connection_that_speaks_first_and_reads_then_gets_all_of_what_was_held() {
    let body = pattern(3, BIG);
    for early in ["", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"] {
        let backend = ScriptedBackend::start();
        let weir = before(&backend, "buffer = { requests = \"32MiB\" }", "");
        let mut client = sends(&weir, "POST", &body);
        let mut server = backend.accepts();
        server.receives_until("\r\n\r\n");
        server.sends(early);
        if early.is_empty() {
            // It answers as it reads.
            server.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n"));
            server.sends(&body[..MIB]);
            client.receives_until("\r\n\r\n");
            assert!(client.receives(MIB) == body[..MIB]);
            assert!(server.receives(BIG) == body);
            for part in body[MIB..].chunks(MIB) {
                server.sends(part);
                assert!(client.receives(part.len()) == part);
            }
        } else {
            assert_eq!(client.receives_head().status, 103);
            assert!(server.receives(BIG) == body);
            server.answers(200, &[], "all");
            assert_eq!(client.receives_status(200).text(), "all");
        }
        nobody_is_blamed(&weir);
        // The request left whole, and its connection serves the next.
        let mut next = weir.client("web");
        next.sends("GET /next HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert_eq!(server.receives_request().target, "/next");
        server.answers(200, &[], "next");
        assert_eq!(next.receives_status(200).text(), "next");
    }
}

#[test]
fn what_was_held_goes_whole_to_another_backend_where_the_first_answers_before_it_has_it() {
    for protocol in ["h1", "h2"] {
        let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
        let pool =
            format!("protocol = '{protocol}'\nretry = {{ on = ['503'] }}\nbuffer = {{ requests = '32MiB' }}");
        let weir = between(one.address(), two.address(), &pool, "");
        let body = pattern(3, BIG);
        let mut client = sends(&weir, "PUT", &body);
        if protocol == "h1" {
            let mut first = one.accepts();
            first.receives_until("\r\n\r\n");
            first.answers(503, &[], "busy");
            let mut second = two.accepts();
            assert!(second.receives_request().body == body);
            second.answers(200, &[], "whole");
        } else {
            let mut first = Http2::server(one.accepts(), b"");
            let stream = first.receives_request();
            first.sends(headers(stream, &[(":status", "503")], true));
            let mut second = Http2::server(two.accepts(), b"");
            let stream = second.receives_request();
            opens_window(&mut second, stream);
            assert!(content_of(&mut second, stream) == body);
            second.sends(headers(stream, &[(":status", "200"), ("content-length", "5")], false));
            second.sends(frame(kind::DATA, END_STREAM, stream, b"whole"));
        }
        assert_eq!(client.receives_status(200).text(), "whole", "{protocol}");
        nobody_is_left(&weir);
    }
}

#[test]
fn a_second_backend_that_answers_before_it_has_what_was_held_gets_the_rest() {
    for protocol in ["h1", "h2"] {
        let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
        let rules = "retry = { hedge = { after = '50ms', idempotent = true } }";
        let pool = format!("protocol = '{protocol}'\n{rules}\nbuffer = {{ requests = '32MiB' }}");
        let weir = between(one.address(), two.address(), &pool, "");
        let body = pattern(3, BIG);
        let mut client = sends(&weir, "PUT", &body);
        let _silent = one.accepts();
        if protocol == "h1" {
            let mut second = two.accepts();
            second.receives_until("\r\n\r\n");
            second.sends("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
            client.receives_until("\r\n\r\n");
            assert!(second.receives(BIG) == body);
            second.sends("whole");
        } else {
            let mut second = Http2::server(two.accepts(), b"");
            let stream = second.receives_request();
            second.sends(headers(stream, &[(":status", "200"), ("content-length", "5")], false));
            client.receives_until("\r\n\r\n");
            opens_window(&mut second, stream);
            assert!(content_of(&mut second, stream) == body);
            second.sends(frame(kind::DATA, END_STREAM, stream, b"whole"));
        }
        client.receives_exactly("whole");
        settled(&weir, "won", 1.0);
        nobody_is_left(&weir);
    }
}

/// A stream's end is told apart from what leaves with the head.
#[test]
fn a_copy_and_a_second_try_of_a_request_with_a_body_end_their_streams() {
    let (one, two) = (ScriptedBackend::start(), ScriptedBackend::start());
    let rules = "protocol = 'h2'\nretry = { hedge = { after = '50ms', idempotent = true } }";
    let weir = between(one.address(), two.address(), rules, "");
    let mut client = sends(&weir, "PUT", b"hello");
    let mut first = Http2::server(one.accepts(), b"");
    let stream = first.receives_request();
    assert_eq!(content_of(&mut first, stream), b"hello");
    let mut second = Http2::server(two.accepts(), b"");
    let stream = second.receives_request();
    assert_eq!(content_of(&mut second, stream), b"hello");
    second.sends(headers(stream, &[(":status", "200"), ("content-length", "0")], true));
    client.receives_status(200);

    let (app, shadow) = (Backend::saying("app"), ScriptedBackend::start());
    let config = r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        path = "/*"
        pool = "app"
        mirror = { pool = "shadow" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        [pool.shadow]
        backends = ["@shadow"]
        protocol = "h2"
        health = "off"
        "#;
    let setup = Setup::of(config).with("app", app.address()).with("shadow", shadow.address());
    let weir = setup.start();
    let mut client = sends(&weir, "PUT", b"hello");
    client.receives_status(200);
    let mut copied = Http2::server(shadow.accepts(), b"");
    let stream = copied.receives_request();
    assert_eq!(content_of(&mut copied, stream), b"hello");
    copied.sends(headers(stream, &[(":status", "204")], true));
    weir.reaches("weir_mirrored_requests_total", &[("listener", "web"), ("result", "answered")], 1.0);
}

#[test]
fn a_remote_call_is_not_held_for_its_client_may_wait_for_an_answer() {
    let backend = ScriptedBackend::start();
    let weir = before(&backend, "protocol = \"h2\"\nbuffer = true", "");
    let mut client = Http2::client(weir.client("web"), &setting(3, 100));
    let call =
        [&request("POST", "/call")[..], &[("content-type", "application/grpc+proto"), ("te", "trailers")]];
    client.sends(headers(1, &call.concat(), false));
    client.sends(frame(kind::DATA, 0, 1, b"\0\0\0\0\x02hi"));
    let mut server = Http2::server(backend.accepts(), b"");
    let stream = server.receives_request();
    assert_eq!(server.receives(kind::DATA, stream).payload, b"\0\0\0\0\x02hi");
    server.sends(headers(stream, &[(":status", "200"), ("content-type", "application/grpc+proto")], false));
    server.sends(frame(kind::DATA, 0, stream, b"\0\0\0\0\x02ho"));
    assert_eq!(client.receives(kind::DATA, 1).payload, b"\0\0\0\0\x02ho");
    client.sends(frame(kind::DATA, END_STREAM, 1, b""));
    assert_eq!(content_of(&mut server, stream), b"");
    server.sends(headers(stream, &[("grpc-status", "0")], true));
    assert_eq!(client.outcome_of(1), Outcome::Answered(0, Vec::new()));
    assert_eq!(weir.metric("weir_buffered_requests_total", &[("pool", "app")]), 0.0);
    let url = format!("http://{}/", weir.address("web"));
    let explain = |arguments: &[&str]| {
        let all = [&["explain", "http", "POST", &url][..], arguments].concat();
        weir.command(&all).succeeded().to_owned()
    };
    assert!(explain(&[]).contains("requests up to 1MiB"), "{}", explain(&[]));
    let of_call = explain(&["--header", "content-type: application/grpc"]);
    assert!(!of_call.contains("requests up to") && of_call.contains("responses up to"), "{of_call}");
}
