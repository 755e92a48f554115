//! When a connection is idle: not while its client still reads.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use weir_tests::dialogue::http3::{Http3, Outcome, headers, request};
use weir_tests::dialogue::{After, Backend, Weir, quic};

use super::relay::Relay;
use super::{Authority, CONFIG, Client, authority, run};

/// What the client has room for.
const WINDOW_BYTES: u32 = 50_000;

/// Weir before a backend that answers with so much content.
fn start_with(authority: &Authority, of_listener: &str, content_bytes: usize) -> (Weir, Backend) {
    let backend = Backend::serving(move |_, wire| {
        wire.answers(200, &[], vec![b'x'; content_bytes]);
        After::Keep
    });
    let config = CONFIG.replace("tls = {", &format!("{of_listener}\ntls = {{"));
    (authority.setup(&config).with("app", backend.address()).start(), backend)
}

type Answer = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// A client that asks, with room for little, and has received the head of the answer.
async fn asks(authority: &Authority, weir: &Weir) -> (Client, Answer) {
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(WINDOW_BYTES.into());
    let mut client = Client::connect_as(authority, weir.address("web"), transport).await;
    let request = http::Request::get("https://shop.example/").body(()).unwrap();
    let mut stream = client.requests.send_request(request).await.unwrap();
    stream.finish().await.unwrap();
    assert_eq!(stream.recv_response().await.unwrap().status(), 200);
    (client, stream)
}

#[test]
fn an_answer_that_a_slow_client_still_reads_is_not_cut_off_by_client_idle_in_http_3() {
    let authority = authority();
    const CONTENT_BYTES: usize = 600_000;
    let (weir, _backend) = start_with(&authority, r#"timeout = { client_idle = "1s" }"#, CONTENT_BYTES);
    run(async {
        let (_client, mut stream) = asks(&authority, &weir).await;
        let mut received = 0;
        while let Some(data) = stream.recv_data().await.expect("it is not cut off") {
            received += data.remaining();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(received, CONTENT_BYTES);
    });
}

#[test]
fn a_connection_whose_client_has_not_acknowledged_its_answer_makes_no_room_for_others() {
    let authority = authority();
    let (weir, _backend) = start_with(&authority, "max_connections = 2", 500);
    // It takes nothing in before it is told to.
    let trust = quic::trusting(authority.path("ca.pem").as_ref());
    let mut reader = Http3::connect(weir.address("web"), "shop.example", &trust);
    reader.requests(0, &headers(&request("GET", "/")));
    weir.lines_of("access.log", 1);
    run(async {
        // It has been without an exchange for a shorter time.
        let idle = Client::connect(&authority, weir.address("web")).await;
        let mut newcomer = loop {
            let transport = quinn::TransportConfig::default();
            match Client::try_connect_as(&authority, weir.address("web"), transport).await {
                Ok(newcomer) => break newcomer,
                // Room is being made: over QUIC that takes until the client has been told.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        assert_eq!(newcomer.asks(b"").await.0, 200);
        let closed = idle.connection.closed().await;
        assert!(matches!(closed, quinn::ConnectionError::ApplicationClosed(_)), "{closed}");
    });
    assert!(matches!(reader.outcome_of(0), Outcome::Answered(200, content) if content.len() == 500));
    assert!(matches!(reader.asks(4, "/"), Outcome::Answered(200, _)), "it made room");
}

/// A translation of addresses that forgets the client gives it another port each time. But for one in ten
/// seconds nothing was sent there that was longer than three times what little had come.
#[test]
fn a_client_whose_port_changes_again_and_again_goes_on_receiving() {
    let authority = authority();
    let gates = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let opened = gates.clone();
    let backend = Backend::serving(move |_, wire| {
        let (gate, opens) = std::sync::mpsc::channel::<()>();
        opened.lock().unwrap().push(gate);
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 6 * 10_000));
        for _ in 0..6 {
            let _ = opens.recv();
            wire.sends([b'x'; 10_000]);
        }
        After::Keep
    });
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    run(async {
        let mut transport = quinn::TransportConfig::default();
        // Shorter than what a second address had to wait for.
        transport.max_idle_timeout(Some(Duration::from_secs(8).try_into().unwrap()));
        let relay = Relay::to(&weir);
        let mut client = Client::connect_as(&authority, relay.address, transport).await;
        let request = http::Request::get("https://shop.example/").body(()).unwrap();
        let mut stream = client.requests.send_request(request).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        let mut received = 0;
        for part in 1..=6 {
            relay.moves();
            gates.lock().unwrap()[0].send(()).unwrap();
            while received < part * 10_000 {
                received += stream.recv_data().await.unwrap().expect("more of it").remaining();
            }
        }
    });
    weir.reaches("weir_quic_migrations_total", &[], 1.0);
}

/// First packets may be anybody's. They took all places of the listener, those of TCP too, until
/// `timeout.handshake`.
#[test]
fn clients_that_never_answer_take_no_more_than_half_of_the_places() {
    let authority = authority();
    let (weir, _backend) = start_with(&authority, "max_connections = 16", 5);
    run(async {
        let mut relays = Vec::new();
        for _ in 0..24 {
            let relay = Relay::to(&weir);
            relay.closes();
            let address = relay.address;
            let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
            let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(super::tls(&authority)).unwrap();
            endpoint.set_default_client_config(quinn::ClientConfig::new(std::sync::Arc::new(crypto)));
            let connecting = endpoint.connect(address, "shop.example").unwrap();
            relays.push((relay, endpoint, tokio::spawn(connecting)));
        }
        let turned_away = || {
            let retried = weir.metric("weir_quic_retries_total", &[]);
            retried + weir.metric("weir_rejected_total", &[("reason", "listener_connections")])
        };
        // Until all have been heard, which are clients on this very thread.
        while turned_away() < 8.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(weir.metric("weir_rejected_total", &[("reason", "listener_connections")]), 0.0);
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
        drop(relays);
    });
}
