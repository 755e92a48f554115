//! Backends that go silent while requests wait for them, because they hang, or because their host can't be
//! reached any more (threat H17).

use weir_tests::dialogue::http2::{END_STREAM, Http2, frame, get, headers, kind, request};
use weir_tests::dialogue::{NO_HEALTH, ScriptedBackend, Setup, Weir, until};
use weir_tests::network::Network;

use super::{answers_next, before_h2, connect, is_hello, is_served_anew, serves};

/// One worker, so that all clients share its connection.
fn before(backend: &ScriptedBackend) -> Weir {
    let pool = format!("timeout = {{ backend = \"1h\", connect = \"500ms\" }}\n{NO_HEALTH}");
    let config = before_h2("limits = { control_frames = 1000000 }", &pool);
    Setup::of(&format!("[runtime]\nworkers = 1\n{config}")).with("app", backend.address()).start()
}

/// Both used to wait for the end of the connection, which takes 15 seconds. Needs root.
#[test]
fn h17_a_request_that_may_be_sent_again_leaves_an_unreachable_host_and_another_waits_for_it() {
    let network = Network::enter(1);
    let address = network.server(1, 8080, false);
    let backend = network.on("server1", || ScriptedBackend::at(address));
    let weir = before(&backend);
    let mut client = connect(&weir, b"");
    let mut server = is_served_anew(&mut client, 1, &backend);
    network.run("server1", &["ip", "route", "add", "blackhole", "10.50.11.1/32"]);
    client.sends(get(3, "/"));
    client.sends(headers(5, &request("POST", "/"), false));
    client.sends(frame(kind::DATA, END_STREAM, 5, b"once"));
    // It is sent again, over connections that can't be established.
    let answered = loop {
        let found = client.receives_frame().expect("an answer");
        if found.kind == kind::HEADERS {
            break found.stream;
        }
    };
    assert_eq!(answered, 3);
    network.run("server1", &["ip", "route", "del", "blackhole", "10.50.11.1/32"]);
    // The host comes back, and receives everything that was sent to it in the meantime.
    server.receives_request();
    answers_next(&mut server);
    assert!(is_hello(&client.outcome_of(5)));
}

/// Its host acknowledges data that the backend does not read.
#[test]
fn h17_a_request_stays_with_a_backend_that_hangs_and_others_go_over_another_connection() {
    let backend = ScriptedBackend::start();
    let weir = before(&backend);
    let mut client = connect(&weir, b"");
    let mut hangs = is_served_anew(&mut client, 1, &backend);
    client.sends(get(3, "/stays"));
    // From here on nobody reads from this connection.
    let mut stream = 3;
    let next = until("another connection", || {
        stream += 2;
        client.sends([get(stream, "/"), frame(kind::PING, 0, 0, b"12345678")].concat());
        client.receives(kind::PING, 0);
        let next = backend.accepts_if_any();
        if next.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        next
    });
    let serving = serves(Http2::server(next, b""));
    assert!(is_hello(&client.outcome_of(stream)));
    // All requests that were sent before are still on it, and none was sent elsewhere.
    answers_next(&mut hangs);
    assert!(is_hello(&client.outcome_of(3)));
    drop(weir);
    serving.join().expect("answers");
}
