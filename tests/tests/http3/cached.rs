//! Answers from memory over HTTP/3; `rfc9111/versions.rs` has those over HTTP/2.

use weir_tests::dialogue::{ScriptedBackend, Wire};

use super::uploads::accepts;
use super::*;
use crate::cache::Silent;

const KEEPS: &str = r#"
[[listener.web.route]]
path = "/*"
pool = "app"
[listener.web.route.cache]
[pool.app]"#;

impl Client {
    /// What a request without content and with these fields is answered.
    pub(super) async fn gets(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> (http::Response<()>, Vec<u8>) {
        let mut request = http::Request::builder().method(method).uri(format!("https://shop.example{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut stream = self.requests.send_request(request.body(()).unwrap()).await.unwrap();
        stream.finish().await.unwrap();
        let answer = stream.recv_response().await.unwrap();
        let mut content = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            content.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        (answer, content)
    }
}

fn field<'a>(answer: &'a http::Response<()>, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn what_is_kept_is_answered_whole_in_parts_and_by_its_head() {
    let authority = authority();
    let content = pattern(11, 300_000);
    let sent = content.clone();
    let backend = Backend::serving(move |request, wire| {
        let body = if request.target == "/small" { &b"0123456789"[..] } else { &sent };
        wire.answers(200, &[("cache-control", "max-age=60"), ("etag", "\"a\""), ("age", "7")], body);
        After::Keep
    });
    let config = CONFIG.replace("[pool.app]", KEEPS).replace("pool = \"app\"\ntls", "tls");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        for (path, body) in [("/large", &content[..]), ("/small", b"0123456789")] {
            let (first, got) = client.gets("GET", path, &[]).await;
            assert!(field(&first, "cache-status").contains("fwd=uri-miss") && got == body);
            let (hit, got) = client.gets("GET", path, &[]).await;
            assert!(hit.status() == 200 && got == body, "{path}: {hit:?}, {} bytes", got.len());
            assert!(field(&hit, "cache-status").starts_with("weir; hit; ttl=5"), "{hit:?}");
            assert!(field(&hit, "age").parse::<u32>().is_ok_and(|age| (7..20).contains(&age)), "{hit:?}");
            assert_eq!(field(&hit, "content-length"), body.len().to_string());

            let (part, got) = client.gets("GET", path, &[("range", "bytes=2-4")]).await;
            assert!(part.status() == 206 && got == body[2..5], "{path}: {part:?}");
            assert_eq!(field(&part, "content-range"), format!("bytes 2-4/{}", body.len()));
            let beyond = format!("bytes={}-", body.len());
            let (beyond, got) = client.gets("GET", path, &[("range", &beyond)]).await;
            assert!(beyond.status() == 416 && got.is_empty(), "{path}: {beyond:?}");
            let (good, got) = client.gets("GET", path, &[("if-none-match", "\"a\"")]).await;
            assert!(good.status() == 304 && got.is_empty(), "{path}: {good:?}");
            let (head, got) = client.gets("HEAD", path, &[]).await;
            assert!(head.status() == 200 && got.is_empty(), "{path}: {head:?}");
            assert_eq!(field(&head, "content-length"), body.len().to_string());
            for answer in [&part, &good, &head] {
                assert!(field(answer, "cache-status").starts_with("weir; hit"), "{answer:?}");
            }
        }
    });
    assert_eq!(backend.served(), 2);
}

/// Threat E10: each stream costs the client two frames.
#[test]
fn streams_of_http_3_that_are_reset_leave_a_bounded_number_of_fetches() {
    let authority = authority();
    let mut origin = Silent::start();
    let keeps = KEEPS.replace("[pool.app]", "[listener.web.timeout]\nbackend = \"60s\"\n[pool.app]");
    let config = CONFIG.replace("[pool.app]", &keeps).replace("pool = \"app\"\ntls", "tls");
    let weir = authority.setup(&config).with("app", origin.address()).start();
    run(async {
        let mut asked = 0;
        for connection in 0..4 {
            let mut client = Client::connect(&authority, weir.address("web")).await;
            for number in 0..40 {
                let uri = format!("https://shop.example/{connection}/{number}");
                let request = http::Request::get(uri).body(()).unwrap();
                let mut stream = client.requests.send_request(request).await.unwrap();
                stream.finish().await.unwrap();
                asked += 1;
                while origin.connected() < asked {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                stream.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
            }
            client.connection.close(0_u32.into(), b"");
            client.endpoint.wait_idle().await;
        }
    });
    origin.comes_down_to(64);
}

#[test]
fn who_stops_a_stream_of_http_3_takes_nothing_from_others_that_get_the_same() {
    let (authority, origin) = (authority(), ScriptedBackend::start());
    let config = CONFIG.replace("[pool.app]", KEEPS).replace("pool = \"app\"\ntls", "tls");
    let weir = authority.setup(&config).with("app", origin.address()).start();
    let content = pattern(3, 200_000);
    run(async {
        let mut clients = Vec::new();
        let mut behind: Option<Wire> = None;
        for _ in 0..2 {
            let mut client = Client::connect(&authority, weir.address("web")).await;
            let request = http::Request::get("https://shop.example/shared").body(()).unwrap();
            let mut stream = client.requests.send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            if behind.is_none() {
                let mut wire = accepts(&origin).await;
                wire.receives_until("\r\n\r\n");
                wire.sends("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 200000\r\n\r\n");
                wire.sends(&content[..100_000]);
                behind = Some(wire);
            }
            assert_eq!(stream.recv_response().await.unwrap().status(), 200);
            clients.push((client, stream));
        }
        // The one that asked first, of which nothing more is wanted.
        clients[0].1.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
        behind.as_mut().unwrap().sends(&content[100_000..]);
        let mut received = Vec::new();
        while let Some(mut data) = clients[1].1.recv_data().await.unwrap() {
            received.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        assert!(received == content, "{} bytes, changed", received.len());
    });
    origin.has_nobody_waiting();
}
