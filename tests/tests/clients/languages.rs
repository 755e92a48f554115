//! Python's and Node's own clients.

use weir_tests::dialogue::{NO_PROBES, PATIENCE, Setup, one_pool, run_tool, tool};

use super::super::http::plain;
use super::site;

fn python(script: &str, arguments: &[&str]) -> String {
    let mut all = vec!["-c", script];
    all.extend(arguments);
    run_tool(&tool("python3", "python3"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

pub fn node(script: &str, arguments: &[&str]) -> String {
    let mut all = vec!["--input-type=module", "-e", script];
    all.extend(arguments);
    run_tool(&tool("node", "nodejs"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

#[test]
fn python_http_client_keeps_its_connection_and_sends_bodies_of_all_kinds() {
    let backend = site();
    let weir = plain(&backend);
    let script = r#"
import http.client, sys
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
for n in range(50):
    c.request("GET", "/bytes/%d" % n)
    r = c.getresponse(); body = r.read()
    assert (r.status, len(body)) == (200, n), (r.status, len(body))
    sock = c.sock
    c.request("POST", "/echo", body=b"x" * n)
    r = c.getresponse(); assert r.read() == b"x" * n
    c.request("POST", "/echo", body=(b"part%d" % i for i in range(n)), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    r = c.getresponse(); assert r.read() == b"".join(b"part%d" % i for i in range(n))
    assert c.sock is sock, "the connection was not kept"
c.request("HEAD", "/bytes/77"); r = c.getresponse(); assert r.read() == b"" and r.getheader("content-length") == "77"
print("ok")
"#;
    assert_eq!(python(script, &[&weir.address("web").port().to_string()]).trim(), "ok");
    assert_eq!(weir.metric("weir_connections_total", &[("listener", "web")]), 1.0);
}

#[test]
fn python_urllib_follows_a_redirect_of_weirs() {
    let backend = site();
    let weir = Setup::of(&one_pool(
        r#"
        [[listener.web.route]]
        path = "/old"
        redirect = { to = "/chunked", status = 302 }
        "#,
        NO_PROBES,
    ))
    .with("app", backend.address())
    .start();
    let script = r#"
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
r = opener.open("http://127.0.0.1:%s/old" % sys.argv[1], timeout=10)
assert r.read() == b"hello world" and r.url.endswith("/chunked")
try:
    opener.open("http://127.0.0.1:%s/a%%00b" % sys.argv[1], timeout=10); raise SystemExit("not refused")
except urllib.error.HTTPError as e:
    assert e.code == 400, e.code
print("ok")
"#;
    assert_eq!(python(script, &[&weir.address("web").port().to_string()]).trim(), "ok");
}

#[test]
fn python_opens_a_websocket_and_gets_its_frames_back() {
    let backend = super::super::http::upgrades::echoing_websocket();
    let weir = plain(&backend);
    let script = r#"
import base64, hashlib, os, socket, struct, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
key = "dGhlIHNhbXBsZSBub25jZQ=="
s.sendall(("GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % key).encode())
f = s.makefile("rb")
assert f.readline().startswith(b"HTTP/1.1 101"), "no 101"
accept = None
for line in iter(f.readline, b"\r\n"):
    name, value = line.split(b":", 1)
    if name.lower() == b"sec-websocket-accept": accept = value.strip().decode()
assert accept == base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
for size in (0, 1, 125, 126, 65535, 65536, 300000):
    mask, data = os.urandom(4), os.urandom(size)
    head = b"\x82" + (bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size) if size < 65536 else b"\xff" + struct.pack(">Q", size))
    frame = head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data))
    s.sendall(frame)
    assert f.read(len(frame)) == frame, size
print("ok")
"#;
    assert_eq!(python(script, &[&weir.address("web").port().to_string()]).trim(), "ok");
}

#[test]
fn node_fetch_streams_bodies_both_ways() {
    let backend = site();
    let weir = plain(&backend);
    let script = r#"
const base = `http://127.0.0.1:${process.argv[1]}`;
const all = await Promise.all([...Array(50).keys()].map(async n => {
  const r = await fetch(`${base}/bytes/${n * 1000}`);
  const body = await r.arrayBuffer();
  if (r.status !== 200 || body.byteLength !== n * 1000) throw new Error(`${n}: ${r.status} ${body.byteLength}`);
  return n;
}));
let parts = 0;
const body = new ReadableStream({
  pull(to) { if (parts === 100) to.close(); else to.enqueue(new TextEncoder().encode(`part ${parts++}\n`)); },
});
const echoed = await (await fetch(`${base}/echo`, { method: "POST", body, duplex: "half" })).text();
if (!echoed.endsWith("part 99\n") || echoed.split("\n").length !== 101) throw new Error(echoed);
const chunked = await (await fetch(`${base}/chunked`)).text();
if (chunked !== "hello world") throw new Error(chunked);
const aborted = new AbortController();
const hanging = fetch(`${base}/bytes/50000000`, { signal: aborted.signal }).then(r => r.body.getReader().read()).then(() => aborted.abort());
await hanging;
console.log("ok", all.length);
process.exit(0);
"#;
    assert_eq!(node(script, &[&weir.address("web").port().to_string()]).trim(), "ok 50");
}

#[test]
fn node_http_agent_keeps_and_reuses_its_sockets() {
    let backend = site();
    let weir = plain(&backend);
    let script = r#"
import http from "node:http";
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const get = n => new Promise((yes, no) => http.get({ port: process.argv[1], host: "127.0.0.1", path: `/bytes/${n}`, agent }, r => {
  let size = 0; r.on("data", d => size += d.length); r.on("end", () => size === n ? yes() : no(new Error(`${n}: ${size}`)));
}).on("error", no));
await Promise.all([...Array(400).keys()].map(get));
console.log("ok");
process.exit(0);
"#;
    assert_eq!(node(script, &[&weir.address("web").port().to_string()]).trim(), "ok");
    let connections = weir.metric("weir_connections_total", &[("listener", "web")]);
    assert!(connections <= 4.0, "{connections} connections for 4 sockets");
}
