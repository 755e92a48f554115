//! `Expect: 100-continue` and protocol upgrades (threats A17 and A18).

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, pattern};

use super::{PLAIN, plain};

/// The handshake of RFC 6455 §1.3, whose accept value is known.
const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nhost: server.example.com\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
     sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// A backend that accepts a WebSocket and then sends back every byte.
pub fn echoing_websocket() -> Backend {
    Backend::serving(|request, wire| {
        if !request.fields.lists("upgrade", "websocket") {
            wire.answers(200, &[], "plain");
            return After::Keep;
        }
        assert!(request.fields.lists("connection", "upgrade"), "{:?}", request.fields);
        assert_eq!(request.fields.one("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
        wire.sends(ACCEPTED);
        let Ok(mut reader) = wire.socket().try_clone() else { return After::Close };
        let Ok(mut writer) = wire.socket().try_clone() else { return After::Close };
        let _ = reader.set_read_timeout(None);
        let _ = std::io::copy(&mut reader, &mut writer);
        After::Close
    })
}

/// Opens a WebSocket through Weir.
pub fn open_websocket(weir: &Weir) -> Wire {
    let mut client = weir.client("web");
    client.sends(HANDSHAKE);
    let head = client.receives_head();
    assert_eq!(head.status, 101);
    assert!(
        head.fields.lists("connection", "upgrade") && head.fields.lists("upgrade", "websocket"),
        "{head:?}"
    );
    assert_eq!(head.fields.one("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client
}

#[test]
fn a_websocket_carries_frames_both_ways() {
    let backend = echoing_websocket();
    let weir = plain(&backend);
    let mut socket = open_websocket(&weir);
    // A masked text frame "Hello" (RFC 6455 §5.7), then a lot of bytes that look like nothing in particular.
    let hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    socket.sends(hello);
    assert_eq!(socket.receives(hello.len()), hello);
    let bulk = pattern(3, 50_000);
    for _ in 0..20 {
        socket.sends(&bulk);
        assert!(socket.receives(bulk.len()) == bulk);
    }
    socket.half_closes();
    socket.receives_end();
}

#[test]
fn the_head_that_opens_a_tunnel_counts_as_sent_like_any_other() {
    let backend = echoing_websocket();
    let config = format!(
        "{PLAIN}[log]\naccess = \"@dir/access.log\"\nfields = {{ content = \"$body_bytes_sent\" }}\n"
    );
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends(HANDSHAKE);
    client.sends("frames");
    client.half_closes();
    let received = client.receives_to_the_end();
    assert!(received.ends_with(b"\r\n\r\nframes"), "{received:?}");
    let line: serde_json::Value = serde_json::from_str(&weir.lines_of("access.log", 1)[0]).expect("JSON");
    assert_eq!(line["bytes_sent"], received.len(), "{line}");
    assert_eq!(line["bytes_received"], HANDSHAKE.len() + "frames".len(), "{line}");
    assert_eq!(line["content"], "frames".len(), "{line}");
    let counted =
        |direction| weir.metric("weir_bytes_total", &[("listener", "web"), ("direction", direction)]);
    assert_eq!(counted("sent"), received.len() as f64);
    assert_eq!(counted("received"), (HANDSHAKE.len() + "frames".len()) as f64);
}

#[test]
fn a_websocket_survives_a_reload_and_the_change_of_its_pool() {
    // R2
    let (backend, other) = (echoing_websocket(), Backend::saying("other"));
    let mut weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut socket = open_websocket(&weir);
    socket.sends("before");
    socket.receives_exactly("before");
    weir.knows("app", other.address());
    weir.reloads(PLAIN);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "other", "the reload is in force");
    socket.sends("after");
    socket.receives_exactly("after");
}

#[test]
fn bytes_sent_ahead_of_a_refused_upgrade_are_the_next_request_and_no_tunnel() {
    // A18: the client behaves as if the upgrade had succeeded; the backend said 200.
    let backend = Backend::serving(|request, wire| {
        wire.answers(200, &[], format!("{} {}", request.target, request.fields.all("via").len()));
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(format!("{HANDSHAKE}GET /ahead HTTP/1.1\r\nhost: a\r\nvia: 1.1 first\r\n\r\n"));
    assert_eq!(client.receives_status(200).text(), "/chat 1");
    let second = client.receives_response();
    assert_eq!(second.status, 200);
    // Parsed and serialised by Weir like any request: its own `via` was added.
    let requests = backend.requests();
    assert_eq!(requests[1].target, "/ahead");
    assert!(requests[1].fields.all("via").join(",").contains("weir"), "{:?}", requests[1].fields);
}

#[test]
fn bytes_sent_ahead_of_an_accepted_upgrade_reach_the_backend_behind_its_101() {
    let backend = echoing_websocket();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(format!("{HANDSHAKE}early"));
    assert_eq!(client.receives_head().status, 101);
    client.receives_exactly("early");
}

/// RFC 9110 §15.5.22: a 426 that does not say which protocol is wanted says nothing.
#[test]
fn a_426_says_which_protocols_the_backend_wants() {
    let backend = Backend::serving(|request, wire| {
        let wanted = if request.target == "/h2c" { "h2c" } else { "websocket, chat/2" };
        wire.sends(format!(
            "HTTP/1.1 426 Upgrade Required\r\nupgrade: {wanted}\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nno"
        ));
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET /chat HTTP/1.1\r\nhost: a\r\n\r\n");
    let refused = client.receives_status(426);
    assert_eq!((refused.fields.one("upgrade"), refused.text().as_str()), (Some("websocket, chat/2"), "no"));
    assert!(refused.fields.lists("connection", "upgrade") && !refused.closes(), "{refused:?}");
    client.sends("GET /h2c HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let refused = client.receives_status(426);
    assert_eq!(refused.fields.one("upgrade"), None, "nobody is led to HTTP/2 without TLS");
    assert!(refused.closes(), "{refused:?}");
    client.receives_end();
}

#[test]
fn a_101_that_does_not_name_the_protocol_asked_for_becomes_502() {
    // A18
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    ] {
        let backend = ScriptedBackend::start();
        let weir = Setup::of(PLAIN).with("app", backend.address()).start();
        let mut client = weir.client("web");
        client.sends(HANDSHAKE);
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(answer);
        let response = client.receives_response();
        assert_eq!(response.status, 502, "{answer:?}");
        wire.receives_close();
    }
}

#[test]
fn after_a_101_that_nobody_asked_for_the_rest_of_a_body_is_no_request() {
    // A18
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request_head();
    wire.sends("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    assert_eq!(client.receives_response_to("POST").status, 502);
    client.sends("GET /body HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_end();
}

#[test]
fn an_upgrade_to_http_2_is_never_passed_on() {
    // A18: h2c smuggling.
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n\
         http2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    );
    client.receives_status(200);
    let fields = &backend.requests()[0].fields;
    assert!(fields.all("upgrade").is_empty() && fields.all("http2-settings").is_empty(), "{fields:?}");
    assert!(
        !fields.lists("connection", "upgrade") && !fields.lists("connection", "http2-settings"),
        "{fields:?}"
    );
}

#[test]
fn an_upgrade_that_carries_a_body_is_no_way_around_framing() {
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "POST /outer HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 5\r\n\r\nhello\
         GET /next HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    let response = client.receives_response();
    if response.status == 200 {
        client.receives_status(200);
        let seen: Vec<(String, usize)> =
            backend.requests().into_iter().map(|r| (r.target, r.body.len())).collect();
        assert_eq!(seen, [("/outer".to_owned(), 5), ("/next".to_owned(), 0)]);
    } else {
        assert!(matches!(response.status, 400 | 501), "{response:?}");
    }
}

#[test]
fn a_client_that_expects_100_continue_gets_it_before_it_sends_the_body() {
    // A17; RFC 9110 §10.1.1
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n");
    // Whether Weir answers by itself or asks the backend, the client must see 100 without having sent a byte
    // of body.
    let mut wire = None;
    let begun = std::time::Instant::now();
    while client.looks() == 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "no 100 came");
        if wire.is_none()
            && let Some(mut accepted) = backend.accepts_if_any()
        {
            let head = accepted.receives_request_head();
            if head.fields.lists("expect", "100-continue") {
                accepted.sends("HTTP/1.1 100 Continue\r\n\r\n");
            }
            wire = Some((accepted, head));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(client.receives_head().status, 100);
    client.sends("hello");
    let mut wire = match wire {
        Some((wire, _)) => wire,
        None => {
            let mut wire = backend.accepts();
            wire.receives_request_head();
            wire
        }
    };
    wire.receives_exactly("hello");
    wire.answers(200, &[], "thanks");
    let response = client.receives_status(200);
    assert_eq!(response.interim, Vec::<u16>::new(), "one 100 is enough");
}

#[test]
fn a_client_that_does_not_wait_for_100_is_served_all_the_same() {
    let backend = Backend::serving(|request, wire| {
        if request.fields.lists("expect", "100-continue") {
            wire.sends("HTTP/1.1 100 Continue\r\n\r\n");
        }
        wire.answers(200, &[], &request.body);
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for _ in 0..3 {
        client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-Continue\r\n\r\nhello");
        assert_eq!(client.receives_status(200).text(), "hello");
    }
}

#[test]
fn a_backend_may_answer_finally_instead_of_asking_for_the_body() {
    // A17: then the body is never sent; the connection must not wait for it nor take the next request for it.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request_head();
    wire.answers(401, &[], "who are you");
    let response = client.receives_status(401);
    if response.closes() {
        client.receives_close();
    } else if response.interim == [100] {
        // Weir itself asked for the body, so it is due now.
        client.sends("helloGET /next HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut next = backend.accepts();
        assert_eq!(next.receives_request().target, "/next");
        next.answers(200, &[], "ok");
        client.receives_status(200);
    }
}

#[test]
fn an_expectation_nobody_knows_is_refused_with_417() {
    // A17; RFC 9110 §10.1.1
    use super::refusal::{case_of, never_forwarded};
    const STATUSES: &[u16] = &[400, 417];
    let values = ["200-ok", "100-continuex", "100-continue, other", "x100-continue", "100", "=100-continue"];
    let cases: Vec<_> = values
        .iter()
        .map(|value| {
            let request =
                format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: {value}\r\n\r\nhello");
            case_of(value, request, STATUSES)
        })
        .collect();
    never_forwarded(&cases);
}
