//! WebSocket where HTTP/2 is spoken on one side or both (RFC 8441), with Node's client and server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use weir_tests::dialogue::{After, Backend, Setup, Weir};

use super::languages::node;

/// A WebSocket server that sends back what it gets. Its proof is that of RFC 6455 §1.3's key, whatever key it
/// was asked with.
fn with_a_proof_of_its_own() -> Backend {
    Backend::serving(|_, wire| {
        wire.sends(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        );
        After::Close
    })
}

/// `web` before `hop` before the backend: `web` speaks both versions to clients and HTTP/2 to `hop`, which
/// speaks HTTP/1.1 to the backend.
fn two_hops(backend: SocketAddr) -> Weir {
    Setup::of(
        r#"
        [log]
        access = "@dir/access.log"
        fields = { content = "$body_bytes_sent" }
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        pool = "hop"
        [listener.hop]
        bind = "@hop"
        http = ["h1", "h2"]
        pool = "app"
        [pool.hop]
        backends = ["@hop"]
        protocol = "h2"
        health = { check = "off" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#,
    )
    .with("app", backend)
    .start()
}

/// An address at which the script is going to listen.
fn for_the_script() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
}

/// A WebSocket server on the second port that proves the upgrade and sends back every byte.
const SERVER: &str = r#"
import http from "node:http";
import http2 from "node:http2";
import { createHash } from "node:crypto";
const proof = key => createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
const server = http.createServer((_, response) => response.end("plain"));
server.on("upgrade", (request, socket) => {
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: ${proof(request.headers["sec-websocket-key"])}\r\n\r\n`);
  socket.pipe(socket);
});
if (process.argv[2]) await new Promise(yes => server.listen(process.argv[2], "127.0.0.1", yes));
"#;

/// Opens a tunnel by extended CONNECT on the first port; prints the status, and how much came back of what
/// was sent.
const EXTENDED_CONNECT: &str = r#"
const connection = http2.connect(`http://127.0.0.1:${process.argv[1]}`);
connection.on("remoteSettings", settings => {
  if (!settings.enableConnectProtocol) throw new Error("extended CONNECT is not offered");
  const stream = connection.request({ ":method": "CONNECT", ":protocol": "websocket", ":scheme": "http", ":path": "/chat",
    ":authority": "localhost", "sec-websocket-version": "13" });
  let sent = 0, received = 0, status;
  stream.on("response", head => {
    status = head[":status"];
    if (status !== 200) return stream.close();
    if (head["sec-websocket-accept"]) throw new Error("HTTP/2 knows no such field");
    for (; sent < 1 << 20; sent += 1 << 16) stream.write(Buffer.alloc(1 << 16, sent >> 16));
  });
  stream.on("data", data => { received += data.length; if (received === sent) stream.end(); });
  stream.on("close", () => { console.log(status, received); process.exit(0); });
});
"#;

/// Upgrades in HTTP/1.1 on the first port; prints whether the proof was right, and how much came back of what
/// was sent.
const UPGRADE: &str = r#"
const key = "dGhlIHNhbXBsZSBub25jZQ==";
const request = http.request({ host: "127.0.0.1", port: process.argv[1], path: "/chat",
  headers: { connection: "Upgrade", upgrade: "websocket", "sec-websocket-key": key, "sec-websocket-version": "13" } });
request.on("upgrade", (response, socket) => {
  let received = 0;
  socket.on("data", data => { received += data.length; if (received === 1 << 20) socket.end(); });
  socket.on("close", () => {
    console.log(response.headers["sec-websocket-accept"] === proof(key), received);
    process.exit(0);
  });
  socket.write(Buffer.alloc(1 << 20, 7));
});
request.end();
"#;

fn run(client: &str, weir: &Weir, listener: &str, server: Option<SocketAddr>) -> String {
    let mut arguments = vec![weir.address(listener).port().to_string()];
    arguments.extend(server.map(|server| server.port().to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    node(&format!("{SERVER}{client}"), &arguments).trim().to_owned()
}

#[test]
fn a_tunnel_over_http2_reaches_a_backend_of_http1_over_one_hop_and_over_two() {
    let server = for_the_script();
    let weir = two_hops(server);
    for listener in ["hop", "web"] {
        assert_eq!(run(EXTENDED_CONNECT, &weir, listener, Some(server)), "200 1048576", "{listener}");
    }
}

#[test]
fn the_head_that_opens_a_tunnel_counts_as_sent_in_either_version() {
    let server = for_the_script();
    let weir = two_hops(server);
    for client in [EXTENDED_CONNECT, UPGRADE] {
        run(client, &weir, "web", Some(server));
    }
    for line in weir.lines_of("access.log", 4) {
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(line["content"], 1 << 20, "{line}");
        let head = line["bytes_sent"].as_u64().expect("a number") - (1 << 20);
        assert!((20..500).contains(&head), "{head} bytes of head: {line}");
    }
}

#[test]
fn an_upgrade_in_http1_goes_through_a_hop_of_http2() {
    let server = for_the_script();
    let weir = two_hops(server);
    assert_eq!(run(UPGRADE, &weir, "web", Some(server)), "true 1048576");
}

#[test]
fn a_backend_that_does_not_prove_the_upgrade_gets_no_tunnel() {
    let backend = with_a_proof_of_its_own();
    let weir = two_hops(backend.address());
    for listener in ["hop", "web"] {
        let said = run(EXTENDED_CONNECT, &weir, listener, None);
        assert_eq!(said.split(' ').next(), Some("502"), "{listener}: {said}");
    }
}
