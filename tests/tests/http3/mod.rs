//! HTTP/3, by the `h3` crate over quinn.

mod answers;
mod attacks;
mod auth;
mod backends;
mod blocked;
mod cached;
mod counted;
mod drain;
mod early;
mod held;
mod idle;
mod lost;
mod malformed;
mod moving;
mod origin;
mod relay;
mod sqli;
mod taken_out;
mod told;
mod tunnels;
mod uploads;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use weir_tests::dialogue::{After, Backend, PATIENCE, Signal, Weir, pattern, run_tool, tool};

use super::tls::Authority;

/// One listener that speaks every version, one pool, one backend, no probes.
pub const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2", "h3"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[pool.app]
backends = ["@app"]
health = "off"
[log]
access = "@dir/access.log"
"#;

/// A site that says hello, and sends back what it is sent.
fn site() -> Backend {
    Backend::serving(|request, wire| {
        let body = if request.body.is_empty() { b"hello".to_vec() } else { request.body.clone() };
        wire.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()));
        wire.sends(&body);
        After::Keep
    })
}

fn start(authority: &Authority, backend: &Backend) -> Weir {
    authority.setup(CONFIG).with("app", backend.address()).start()
}

/// The TLS config of a client that trusts this authority.
fn tls(authority: &Authority) -> Arc<rustls::ClientConfig> {
    weir_tests::dialogue::quic::trusting(authority.path("ca.pem").as_ref())
}

struct Client {
    endpoint: quinn::Endpoint,
    connection: quinn::Connection,
    requests: SendRequest<OpenStreams, Bytes>,
}

impl Client {
    async fn connect(authority: &Authority, address: SocketAddr) -> Client {
        Client::connect_as(authority, address, quinn::TransportConfig::default()).await
    }

    async fn connect_as(
        authority: &Authority,
        address: SocketAddr,
        transport: quinn::TransportConfig,
    ) -> Client {
        Client::try_connect_as(authority, address, transport).await.unwrap()
    }

    async fn try_connect_as(
        authority: &Authority,
        address: SocketAddr,
        transport: quinn::TransportConfig,
    ) -> Result<Client, quinn::ConnectionError> {
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls(authority)).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(address, "shop.example").unwrap().await?;
        Client::try_over(endpoint, connection).await
    }

    async fn over(endpoint: quinn::Endpoint, connection: quinn::Connection) -> Client {
        Client::try_over(endpoint, connection).await.unwrap()
    }

    /// `Err` where the connection ended before HTTP/3 had begun on it.
    async fn try_over(
        endpoint: quinn::Endpoint,
        connection: quinn::Connection,
    ) -> Result<Client, quinn::ConnectionError> {
        let begun = h3::client::new(h3_quinn::Connection::new(connection.clone())).await;
        let Ok((mut driver, requests)) = begun else { return Err(connection.closed().await) };
        tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
        Ok(Client { endpoint, connection, requests })
    }

    /// The status and the content of the answer.
    async fn asks(&mut self, body: &[u8]) -> (u16, Vec<u8>) {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let request = http::Request::builder().method(method).uri("https://shop.example/").body(()).unwrap();
        let mut stream = self.requests.send_request(request).await.unwrap();
        if !body.is_empty() {
            stream.send_data(Bytes::copy_from_slice(body)).await.unwrap();
        }
        stream.finish().await.unwrap();
        let answer = stream.recv_response().await.unwrap();
        let mut content = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            content.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        (answer.status().as_u16(), content)
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE * 3, test).await.expect("in time") });
}

fn authority() -> Authority {
    Authority::new().signs("shop", &["shop.example"])
}

#[test]
fn requests_and_large_bodies_pass_in_http_3() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()));
        let body = pattern(7, 3 << 20);
        assert!(client.asks(&body).await == (200, body), "the content came back changed");
    });
    assert!(weir.lines_of("access.log", 1)[0].contains("HTTP/3"));
}

/// More than may be buffered in memory, in both directions.
#[test]
fn bodies_that_wait_in_files_pass_whole_in_http_3() {
    let (authority, backend) = (authority(), site());
    let in_files = r#"
        buffer = { requests = "64KiB", requests_file = "1GiB", responses = "64KiB", responses_file = "1GiB" }
        [runtime]
        buffer_directory = "@dir"
        [log]"#;
    let config = CONFIG.replace("[log]", in_files);
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let body = pattern(7, 9 << 20);
        assert!(client.asks(&body).await == (200, body), "the content came back changed");
    });
    assert_eq!(weir.metric("weir_buffered_requests_total", &[("pool", "app")]), 1.0);
    assert!(weir.metric("weir_buffer_files_made_total", &[]) >= 1.0);
}

#[test]
fn connections_go_on_over_a_reload() {
    let (authority, backend) = (authority(), site());
    let mut weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        for round in 0..5 {
            assert_eq!(client.asks(b"").await.0, 200);
            weir.reloads(&format!("{CONFIG}\n[runtime]\ndrain = \"{}s\"\n", 20 + round));
            assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()));
        }
        assert!(client.connection.close_reason().is_none());
    });
}

#[test]
fn a_client_that_moves_keeps_its_connection() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
        client.endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()));
        assert!(client.connection.close_reason().is_none());
    });
    weir.reaches("weir_quic_migrations_total", &[], 1.0);
}

#[test]
fn a_drain_says_goaway_and_lets_what_runs_end() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
        weir.signals(Signal::TERM);
        let closed = tokio::time::timeout(Duration::from_secs(10), client.connection.closed()).await.unwrap();
        let quinn::ConnectionError::ApplicationClosed(closed) = closed else { panic!("{closed}") };
        assert_eq!(closed.error_code.into_inner(), 0x100, "H3_NO_ERROR");
    });
}

/// What curl prints for this path over TLS, with these arguments, whatever the status.
fn curl(authority: &Authority, weir: &Weir, arguments: &[&str], path: &str) -> String {
    let port = weir.address("web").port();
    let (ca, resolve) = (authority.path("ca.pem"), format!("shop.example:{port}:127.0.0.1"));
    let url = format!("https://shop.example:{port}{path}");
    let to = ["-s", "--cacert", &ca, "--resolve", &resolve, "--noproxy", "*", &url];
    run_tool(&tool("curl", "curl"), &[&to[..], arguments].concat(), b"", PATIENCE).succeeded().to_owned()
}

#[test]
fn other_versions_are_told_of_http_3_by_every_answer() {
    let (authority, backend) = (authority(), site());
    let routes = r#"
        [[listener.web.route]]
        path = "/own"
        respond = { status = 418, body = "short and stout" }
        [[listener.web.route]]
        path = "/old"
        redirect = { to = "https://$host/new" }
        [[listener.web.route]]
        path = "/*"
        pool = "app"
        [pool.app]"#;
    let config = CONFIG.replace("[pool.app]", routes).replace("pool = \"app\"\ntls", "tls");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let address = weir.address("web");
    let said = format!("alt-svc: h3=\":{}\"", address.port());
    for version in ["--http1.1", "--http2"] {
        for (path, status) in [("/", "200"), ("/own", "418"), ("/old", "308"), ("/%00", "400")] {
            let head = curl(&authority, &weir, &[version, "-D", "-", "-o", "/dev/null"], path).to_lowercase();
            let first = head.lines().next().unwrap_or_default();
            assert!(first.contains(status) && head.contains(&said), "{version} {path}: {head}");
        }
    }
}

#[test]
fn a_listener_for_nothing_but_http_3_leaves_tcp_alone() {
    let (authority, backend) = (authority(), site());
    let config = CONFIG.replace(r#"["h1", "h2", "h3"]"#, r#"["h3"]"#);
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let refused = std::net::TcpStream::connect(weir.address("web")).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()));
    });
}

/// Threat C7: early data is not offered, so none is accepted before the handshake is complete.
#[test]
fn c7_requests_before_the_end_of_the_handshake_are_not_offered_and_not_taken() {
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut tls = (*tls(&authority)).clone();
        tls.enable_early_data = true;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
        for _ in 0..2 {
            // The second connection begins with a ticket from the first.
            let connecting = endpoint.connect(weir.address("web"), "shop.example").unwrap();
            let connection = match connecting.into_0rtt() {
                Ok((connection, accepted)) => {
                    // Even with a ticket that wrongly allows early data: whatever was sent early is
                    // discarded.
                    assert!(!accepted.await, "taken early");
                    connection
                }
                Err(connecting) => connecting.await.unwrap(),
            };
            let mut client = Client::over(endpoint.clone(), connection).await;
            assert_eq!(client.asks(b"").await.0, 200);
            // The tickets come after the handshake.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}
