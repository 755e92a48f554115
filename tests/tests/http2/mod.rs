//! HTTP/2 to clients and to backends, through other people's programs and, for attacks, frame by frame.

mod curl;
mod drips;
mod floods;
mod honest;
mod idle;
mod ignored;
mod load;
mod malformed;
mod matrix;
mod picking;
mod remote_calls;
mod shared;
mod small_frames;
mod specification;
mod stalls;
mod tunnels;
mod unreachable;
mod upgrade;
mod upstream;

use std::thread::JoinHandle;

use weir_tests::dialogue::http2::{END_STREAM, Http2, Outcome, frame, get, headers, kind};
use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir, one_pool};

/// A listener that speaks both versions to clients, and a pool that is spoken to in HTTP/1.1.
const BOTH: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

/// Weir with [`BOTH`] before this backend.
fn both(backend: &Backend) -> Weir {
    Setup::of(BOTH).with("app", backend.address()).start()
}

/// A client that speaks HTTP/2 by prior knowledge, with these settings.
fn connect(weir: &Weir, settings: &[u8]) -> Http2 {
    Http2::client(weir.client("web"), settings)
}

/// The config of a listener that speaks both versions to clients, and of a pool that is spoken to in HTTP/2;
/// with these lines of the listener and of the pool.
fn before_h2(of_listener: &str, of_pool: &str) -> String {
    one_pool(&format!("http = [\"h1\", \"h2\"]\n{of_listener}"), &format!("protocol = \"h2\"\n{of_pool}"))
}

/// A connection of Weir's to this backend, which has sent its settings.
fn accepts(backend: &ScriptedBackend) -> Http2 {
    Http2::server(backend.accepts(), b"")
}

/// Answers a request with 200 and `hello`.
fn answers(server: &mut Http2, stream: u32) {
    server.sends(headers(stream, &[(":status", "200")], false));
    server.sends(frame(kind::DATA, END_STREAM, stream, b"hello"));
}

/// Answers the next request with 200 and `hello`; gives its stream.
fn answers_next(server: &mut Http2) -> u32 {
    let stream = server.receives_request();
    answers(server, stream);
    stream
}

/// Answers every request that comes, up to the end of the connection.
fn serves(mut server: Http2) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok(found) = server.receives_frame() {
            if found.kind == kind::HEADERS {
                answers(&mut server, found.stream);
            }
        }
    })
}

fn is_hello(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(200, content) if content == b"hello")
}

/// A client's request on this stream reaches the server as its next, and is answered.
#[track_caller]
fn is_served(client: &mut Http2, stream: u32, server: &mut Http2) {
    client.sends(get(stream, "/"));
    answers_next(server);
    assert!(is_hello(&client.outcome_of(stream)));
}

/// A client's request on this stream makes a connection to the backend, over which it is answered.
#[track_caller]
fn is_served_anew(client: &mut Http2, stream: u32, backend: &ScriptedBackend) -> Http2 {
    client.sends(get(stream, "/"));
    let mut server = accepts(backend);
    answers_next(&mut server);
    assert!(is_hello(&client.outcome_of(stream)));
    server
}
