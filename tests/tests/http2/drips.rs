//! Content that clients send a byte at a time, over a connection to a backend that many share (threat B29).
//! The backend is built with the `h2` crate, which ends a connection on which too many such frames wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use tokio::sync::Notify;
use weir_tests::dialogue::http2::{END_STREAM, Http2, Outcome, frame, headers, kind, request};
use weir_tests::dialogue::{Setup, Weir, free_address, listen_at, until};

use super::{BOTH, connect, is_hello};

/// As many as ended a connection.
const DRIPS: usize = 200;

/// What a backend has seen.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Uploads that it keeps and does not read.
    unread: AtomicUsize,
    /// Connections that it ended because of what came on them.
    ended: AtomicUsize,
    /// Answers `/slow`.
    release: Notify,
}

/// A backend with the settings that the `h2` crate has of itself.
fn backend() -> (SocketAddr, Arc<Seen>) {
    let (address, seen) = (free_address(), Arc::new(Seen::default()));
    let (listener, seen_too) = (listen_at(address), seen.clone());
    listener.set_nonblocking(true).expect("non-blocking");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                seen_too.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, seen_too.clone()));
            }
        });
    });
    (address, seen)
}

async fn serve(stream: tokio::net::TcpStream, seen: Arc<Seen>) {
    let Ok(mut requests) = h2::server::handshake(stream).await else { return };
    while let Some(received) = requests.accept().await {
        match received {
            Ok((request, answer)) => drop(tokio::spawn(answers(request, answer, seen.clone()))),
            Err(error) => {
                if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                    seen.ended.fetch_add(1, Ordering::SeqCst);
                }
                return;
            }
        }
    }
}

async fn answers(request: Request<RecvStream>, mut answer: SendResponse<Bytes>, seen: Arc<Seen>) {
    let path = request.uri().path().to_owned();
    let mut content = request.into_body();
    match path.as_str() {
        "/unread" => {
            seen.unread.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
        "/slow" => seen.release.notified().await,
        _ => {}
    }
    let Ok(mut sending) = answer.send_response(Response::new(()), false) else { return };
    if path == "/echo" {
        while let Some(Ok(piece)) = content.data().await {
            let _ = content.flow_control().release_capacity(piece.len());
            let _ = sending.send_data(piece, false);
        }
        let _ = sending.send_data(Bytes::new(), true);
    } else {
        let _ = sending.send_data(Bytes::from_static(b"hello"), true);
    }
}

fn weir_before(backend: SocketAddr) -> Weir {
    let config = format!("[runtime]\nworkers = 1\n{BOTH}protocol = \"h2\"\n");
    Setup::of(&config).with("app", backend).start()
}

/// Begins an upload that nobody reads, and sends it a byte at a time.
fn drips(weir: &Weir, seen: &Seen) -> Http2 {
    let mut client = connect(weir, b"");
    client.sends(headers(1, &request("POST", "/unread"), false));
    // What comes before that goes along with the head, in one piece.
    until("the upload", || (seen.unread.load(Ordering::SeqCst) == 1).then_some(()));
    client.sends(frame(kind::DATA, 0, 1, b"x").repeat(DRIPS));
    client.sends(frame(kind::PING, 0, 0, b"are read"));
    client.receives(kind::PING, 0);
    client
}

#[test]
fn b29_content_that_drips_and_is_not_read_ends_no_connection_that_others_share() {
    let (address, seen) = backend();
    let weir = weir_before(address);
    let mut other = connect(&weir, b"");
    // It is not sent again when its connection ends.
    other.sends(headers(1, &request("POST", "/slow"), false));
    other.sends(frame(kind::DATA, END_STREAM, 1, b"some"));
    until("a connection", || (seen.connections.load(Ordering::SeqCst) == 1).then_some(()));
    let dripping = drips(&weir, &seen);
    // Requests that begin now go elsewhere.
    until("a second connection", || {
        assert!(is_hello(&connect(&weir, b"").asks(1, "/")));
        (seen.connections.load(Ordering::SeqCst) > 1).then_some(())
    });
    seen.release.notify_one();
    assert_eq!(other.outcome_of(1), Outcome::Answered(200, b"hello".to_vec()));
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0);
    drop(dripping);
}

/// Who takes turns waits for no pause: the messages of a call would take minutes.
#[test]
fn small_messages_that_are_answered_flow_at_once() {
    const MESSAGES: usize = 1000;
    let (address, seen) = backend();
    let weir = weir_before(address);
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &request("POST", "/echo"), false));
    client.receives(kind::HEADERS, 1);
    for message in 0..MESSAGES {
        client.sends(frame(kind::DATA, 0, 1, b"message"));
        assert_eq!(client.receives(kind::DATA, 1).payload, b"message", "{message}");
    }
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0);
}

/// They are joined, and none is lost.
#[test]
fn content_that_drips_arrives_whole() {
    let (address, seen) = backend();
    let weir = weir_before(address);
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &request("POST", "/echo"), false));
    client.sends(frame(kind::DATA, 0, 1, b"x").repeat(5 * DRIPS));
    client.sends(frame(kind::DATA, END_STREAM, 1, b"y"));
    let Outcome::Answered(200, content) = client.outcome_of(1) else { panic!("no answer") };
    assert_eq!(content, [&vec![b'x'; 5 * DRIPS][..], b"y"].concat());
    assert_eq!(seen.ended.load(Ordering::SeqCst), 0);
}
