//! Tunnels on streams (RFC 8441): clients that leave them, and backends that refuse them on a connection that
//! many share.

use weir_tests::dialogue::http2::{
    END_STREAM, Http2, Outcome, code, frame, headers, kind, request, reset, setting,
};
use weir_tests::dialogue::{ScriptedBackend, Setup, Weir, Wire};

use super::{BOTH, connect};

const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Answers nobody gives up but by a client that leaves.
const PATIENT: &str = "timeout = { backend = \"1h\", tunnel = \"1h\" }\n";

fn weir_before(backend: &ScriptedBackend, pool: &str) -> Weir {
    let config = BOTH.replace("pool = \"app\"\n", &format!("pool = \"app\"\n{PATIENT}"));
    let log = "[runtime]\nworkers = 1\n[log]\naccess = \"@dir/access.log\"\nline = \"$status $end $body_bytes_sent\"\n";
    Setup::of(&format!("{log}{config}{pool}")).with("app", backend.address()).start()
}

/// Asks for a tunnel on stream 1, of a protocol without a proof.
fn asks_for_tunnel(client: &mut Http2) {
    let mut fields = request("CONNECT", "/chat").to_vec();
    fields.push((":protocol", "chat"));
    client.sends(headers(1, &fields, false));
}

/// Takes the upgrade that a client has asked for by a stream, over a connection of HTTP/1.1.
fn accepts_tunnel(backend: &ScriptedBackend) -> Wire {
    let mut wire = backend.accepts();
    wire.receives_request_head();
    wire.sends("HTTP/1.1 101 Switching Protocols\r\nupgrade: chat\r\nconnection: upgrade\r\n\r\n");
    wire
}

/// It had said its last, and nobody would have noticed for the whole of `timeout.tunnel`.
#[test]
fn b22_who_leaves_a_tunnel_behind_the_end_of_its_stream_gives_its_backend_back() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "");
    for leaves_connection in [false, true] {
        let mut client = connect(&weir, b"");
        asks_for_tunnel(&mut client);
        let mut wire = accepts_tunnel(&backend);
        client.receives(kind::HEADERS, 1);
        client.sends(frame(kind::DATA, END_STREAM, 1, b"last words"));
        wire.receives_exactly("last words");
        wire.receives_end();
        wire.sends("so long");
        assert_eq!(client.receives(kind::DATA, 1).payload, b"so long");
        match leaves_connection {
            false => client.sends(reset(1, code::CANCEL)),
            true => drop(client),
        }
        let lines = weir.lines_of("access.log", 1 + usize::from(leaves_connection));
        assert!(lines.iter().all(|line| line == "101 client_closed 7"), "{lines:?}");
    }
}

/// What it has sent ahead is no reason to look at it no more.
#[test]
fn b22_who_sends_ahead_and_leaves_before_its_tunnel_is_open_takes_the_question_along() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "");
    let mut client = connect(&weir, b"");
    asks_for_tunnel(&mut client);
    client.sends(frame(kind::DATA, 0, 1, b"ahead"));
    let mut wire = backend.accepts();
    wire.receives_request_head();
    client.sends(reset(1, code::CANCEL));
    wire.receives_close();
    assert_eq!(weir.lines_of("access.log", 1), ["- client_closed 0"]);
}

/// RFC 9113 §8.5: taken for the end, it would let bytes stand for one that never were in the tunnel.
#[test]
fn b23_a_field_section_in_a_tunnel_breaks_its_stream_and_is_no_end_of_it() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "");
    let mut client = connect(&weir, b"");
    asks_for_tunnel(&mut client);
    let mut wire = accepts_tunnel(&backend);
    client.receives(kind::HEADERS, 1);
    client.sends(frame(kind::DATA, 0, 1, b"hello"));
    wire.receives_exactly("hello");
    client.sends(headers(1, &[("x-late", "1")], true));
    assert_eq!(client.receives(kind::RST_STREAM, 1).payload, code::PROTOCOL_ERROR.to_be_bytes());
    wire.receives_close();
    assert!(wire.was_reset(), "no end in order");
}

#[test]
fn b21_an_upgrade_that_is_refused_ends_its_stream_and_does_not_reset_it() {
    let backend = ScriptedBackend::start();
    let weir = weir_before(&backend, "protocol = \"h2\"\n");
    let mut server: Option<Http2> = None;
    for _ in 0..3 {
        let mut client = weir.client("web");
        client.sends(
            "GET /chat HTTP/1.1\r\nhost: a.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
        );
        let tunnels = || Http2::server(backend.accepts(), &setting(ENABLE_CONNECT_PROTOCOL, 1));
        let server = server.get_or_insert_with(tunnels);
        let stream = server.receives_request();
        server.sends(headers(stream, &[(":status", "403")], false));
        server.sends(frame(kind::DATA, END_STREAM, stream, b"not you"));
        assert_eq!(client.receives_status(403).text(), "not you");
        let ended = loop {
            let found = server.receives_frame().expect("the end of the stream");
            if found.stream == stream {
                break found;
            }
        };
        assert_eq!((ended.kind, ended.flags, ended.payload.len()), (kind::DATA, END_STREAM, 0), "{ended:?}");
    }
}

/// In HTTP/2 any 2xx opens a tunnel (RFC 8441 §5), and what the client sent into it would go nowhere.
#[test]
fn a_route_that_answers_itself_opens_no_tunnel() {
    let routes = r#"
        [[listener.web.route]]
        path = "/200"
        respond = { status = 200, body = "hello" }
        [[listener.web.route]]
        path = "/204"
        respond = { status = 204 }
        [[listener.web.route]]
        path = "/403"
        respond = { status = 403, body = "not you" }
        [pool.app]"#;
    let log = "[log]\naccess = \"@dir/access.log\"\nline = \"$status $end\"\n";
    let config = format!("{log}{}", BOTH.replace("[pool.app]", routes));
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&config).with("app", backend.address()).start();
    // A connection of its own for each: what repeats on one comes in a form that the test does not read.
    let asks = |path| {
        let mut client = connect(&weir, b"");
        let mut fields = request("CONNECT", path).to_vec();
        fields.push((":protocol", "websocket"));
        client.sends(headers(1, &fields, false));
        client.outcome_of(1)
    };
    for path in ["/200", "/204"] {
        let told = b"501 Not Implemented no_tunnel\n".to_vec();
        assert_eq!(asks(path), Outcome::Answered(501, told), "{path}");
    }
    assert_eq!(asks("/403"), Outcome::Answered(403, b"not you".to_vec()));
    assert_eq!(connect(&weir, b"").asks(1, "/200"), Outcome::Answered(200, b"hello".to_vec()));
    // Each worker writes its own, so their order says nothing.
    let mut lines = weir.lines_of("access.log", 4);
    lines.sort_unstable();
    assert_eq!(lines, ["200 responded", "403 responded", "501 no_tunnel", "501 no_tunnel"]);
}

/// The refusal of a gRPC call has status 200, which is no refusal of a tunnel.
#[test]
fn a_refused_tunnel_is_not_answered_like_a_call() {
    let backend = ScriptedBackend::start();
    let config = BOTH.replacen("pool = \"app\"\n", "", 1);
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = connect(&weir, b"");
    let mut fields = request("CONNECT", "/nowhere").to_vec();
    fields.extend([(":protocol", "websocket"), ("content-type", "application/grpc")]);
    client.sends(headers(1, &fields, false));
    assert_eq!(client.outcome_of(1), Outcome::Answered(404, b"404 Not Found no_route\n".to_vec()));
}
