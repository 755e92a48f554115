//! The end of a process with answers under way.

use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use weir_tests::dialogue::{PATIENCE, Signal, Weir, fingerprint, pattern};

use super::relay::Relay;
use super::{CONFIG, Client, authority, run, site, start};

#[test]
fn a_drain_waits_until_the_client_has_all_of_its_answer() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        // More than the client's window for a stream, by less than Weir lets wait: for Weir the exchange is
        // over when the client has read nothing.
        let content = pattern(8, 1_250_000 + 100_000);
        let request = http::Request::post("https://shop.example/").body(()).unwrap();
        let mut stream = client.requests.send_request(request).await.unwrap();
        stream.send_data(Bytes::from(content.clone())).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        weir.signals(Signal::TERM);
        // Longer than requests are still taken.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(client.connection.close_reason().is_none(), "{:?}", client.connection.close_reason());
        let mut received = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            received.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        assert!(received == content, "{} bytes, changed", received.len());
        let closed = tokio::time::timeout(Duration::from_secs(5), client.connection.closed()).await.unwrap();
        assert!(matches!(closed, quinn::ConnectionError::ApplicationClosed(_)), "{closed}");
    });
}

/// An answer without content is over for Weir before the client has room for it.
#[test]
fn an_answer_without_content_comes_as_soon_as_the_client_has_room_again() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut transport = quinn::TransportConfig::default();
        transport.receive_window(50_000u32.into());
        let mut client = Client::connect_as(&authority, weir.address("web"), transport).await;
        let content = pattern(8, 200_000);
        let request = http::Request::post("https://shop.example/").body(()).unwrap();
        let mut large = client.requests.send_request(request).await.unwrap();
        large.send_data(Bytes::from(content.clone())).await.unwrap();
        large.finish().await.unwrap();
        assert_eq!(large.recv_response().await.unwrap().status(), 200);
        // Until no more of it has room.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let request = http::Request::head("https://shop.example/").body(()).unwrap();
        let mut head = client.requests.send_request(request).await.unwrap();
        head.finish().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(weir.lines_of("access.log", 1)[0].contains("HEAD"));
        let mut received = Vec::new();
        while let Some(mut data) = large.recv_data().await.unwrap() {
            received.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        assert!(received == content, "{} bytes, changed", received.len());
        let answer = tokio::time::timeout(PATIENCE, head.recv_response()).await;
        assert_eq!(answer.expect("an answer").unwrap().status(), 200);
    });
}

#[test]
fn a_client_that_has_gone_does_not_keep_a_process_from_its_end() {
    let (authority, backend) = (authority(), site());
    let mut weir = start(&authority, &backend);
    run(async {
        let relay = Relay::to(&weir);
        let mut client = Client::connect(&authority, relay.address).await;
        let request = http::Request::post("https://shop.example/").body(()).unwrap();
        let mut stream = client.requests.send_request(request).await.unwrap();
        stream.send_data(Bytes::from(pattern(8, 1_350_000))).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        // It has not read its answer, and never will.
        drop(relay);
        weir.signals(Signal::TERM);
        let begun = Instant::now();
        weir.exits();
        assert!(begun.elapsed() < Duration::from_secs(15), "after {:?}", begun.elapsed());
    });
}

/// Runs `change` in the middle of a request, which must be answered all the same.
fn a_request_survives(change: impl FnOnce(&mut Weir)) {
    let (authority, backend) = (authority(), site());
    let mut weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let content = pattern(9, 600_000);
        let request = http::Request::post("https://shop.example/").body(()).unwrap();
        let mut stream = client.requests.send_request(request).await.unwrap();
        stream.send_data(Bytes::copy_from_slice(&content[..1_000])).await.unwrap();
        change(&mut weir);
        tokio::time::sleep(Duration::from_secs(3)).await;
        // More than its windows: it has to hear that they are open again.
        stream.send_data(Bytes::copy_from_slice(&content[1_000..])).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        let mut received = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            received.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        assert_eq!((received.len(), fingerprint(&received)), (content.len(), fingerprint(&content)));
    });
}

#[test]
fn a_request_under_way_is_finished_when_the_process_is_told_to_end() {
    a_request_survives(|weir| weir.signals(Signal::TERM));
}

#[test]
fn a_request_under_way_is_finished_when_a_reload_takes_http_3_away() {
    a_request_survives(|weir| weir.reloads(&CONFIG.replace(r#"["h1", "h2", "h3"]"#, r#"["h1", "h2"]"#)));
}

#[test]
fn a_request_under_way_is_finished_when_a_reload_takes_the_listener_away() {
    a_request_survives(|weir| {
        let other = CONFIG.replace("[listener.web]", "[listener.other]").replace("@web", "@other");
        weir.reloads(&other);
    });
}

#[test]
fn a_request_under_way_is_finished_by_the_old_process_of_an_upgrade() {
    a_request_survives(|weir| {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
    });
}

/// As long as one connection was there, so was the address for everybody; and the reload that had it back was
/// refused, as if another program had it.
#[test]
fn an_address_that_a_reload_took_out_lets_nobody_in_and_can_be_had_back_while_connections_live_there() {
    let (authority, backend) = (authority(), site());
    let both = CONFIG.replace("bind = \"@web\"", "bind = [\"@web\", \"@other\"]");
    let mut weir = authority.setup(&both).with("app", backend.address()).start();
    let other = weir.address("other");
    run(async {
        let mut client = Client::connect(&authority, other).await;
        assert_eq!(client.asks(b"").await.0, 200);
        weir.reloads(CONFIG);
        let refused = Client::try_connect_as(&authority, other, quinn::TransportConfig::default()).await;
        let refused = refused.err().expect("nobody listens there");
        assert!(matches!(refused, quinn::ConnectionError::ConnectionClosed(_)), "{refused}");
        assert_eq!(client.asks(b"").await.0, 200, "who was there before is served on");
        // Longer than sockets of TCP are served on.
        tokio::time::sleep(Duration::from_secs(5)).await;
        weir.reloads(&both);
        for _ in 0..4 {
            let mut newcomer = Client::connect(&authority, other).await;
            assert_eq!(newcomer.asks(b"").await.0, 200);
        }
        assert_eq!(client.asks(b"").await.0, 200);
    });
}
