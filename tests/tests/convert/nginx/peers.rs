//! Backends that are no plain web servers: remote calls, copies, TCP and UDP.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_tests::dialogue::{
    Backend, PATIENCE, Program, ScriptedBackend, Setup, Weir, Wire, datagram_socket, free_address, tool,
    until,
};

use super::stream::{module, nginx};
use super::{Both, Folder, convert, telling};
use crate::clients::node;

/// Answers calls: whole, in parts, and with errors in trailers and in the head alone.
const SERVER: &str = r#"
import http2 from "node:http2";
const server = http2.createServer();
server.on("stream", (stream, headers) => {
  const method = headers[":path"], head = { ":status": 200, "content-type": "application/grpc" };
  stream.on("error", () => {});
  if (method === "/fails" || headers["x-told"] !== "all" || headers["te"] !== "trailers") {
    stream.respond({ ...head, "grpc-status": "7", "grpc-message": "no%20entry" }, { endStream: true });
    return;
  }
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": method === "/fails-late" ? "13" : "0", "x-bin": "YQ" }));
  stream.respond(head, { waitForTrailers: true });
  let bytes = 0;
  stream.on("data", data => { bytes += data.length; if (method === "/both") stream.write(data); });
  stream.on("end", () => { if (method !== "/both") stream.write(Buffer.from([0, 0, 0, 0, 1, bytes % 256])); stream.end(); });
});
server.listen(Number(process.argv[1]), "127.0.0.1");
"#;

/// Says what comes of one call of each kind.
const CALLS: &str = r#"
import http2 from "node:http2";
const frame = data => { const head = Buffer.alloc(5); head.writeUInt32BE(data.length, 1); return Buffer.concat([head, data]); };
const session = http2.connect(`http://127.0.0.1:${process.argv[1]}`);
const call = path => new Promise(yes => {
  const stream = session.request({ ":method": "POST", ":path": path, "content-type": "application/grpc", "te": "trailers" });
  const got = { path, body: "", head: {}, trailers: {} };
  const kept = fields => Object.fromEntries(["grpc-status", "grpc-message", "content-type", "x-bin"].map(name => [name, fields[name]]));
  stream.on("response", head => { got.status = head[":status"]; got.head = kept(head); });
  stream.on("trailers", trailers => got.trailers = kept(trailers));
  stream.on("data", data => got.body += data.toString("hex"));
  stream.on("error", problem => got.problem = problem.code);
  stream.on("close", () => yes(got));
  for (let i = 0; i < 20; i++) stream.write(frame(Buffer.from(`message ${i}`)));
  stream.end();
});
for (const path of ["/unary", "/both", "/fails", "/fails-late", "/closed"]) {
  const got = await call(path);
  // Pages are each program's own.
  console.log(JSON.stringify(got.status === 403 ? { path, status: 403 } : got));
}
process.exit(0);
"#;

#[test]
fn remote_calls_are_passed_on_as_by_nginx() {
    let at = free_address();
    let server = Command::new(tool("node", "nodejs"))
        .args(["--input-type=module", "-e", SERVER, &at.port().to_string()])
        .stdout(Stdio::null())
        .spawn()
        .expect("node starts");
    let _server = Program::of(server);
    until("the server to listen", || std::net::TcpStream::connect(at).ok());
    let both = Both::of(
        &format!(
            "upstream calls {{ server {at}; keepalive 4; }}\nserver {{ listen @web http2; grpc_read_timeout 20s;\n\
             location / {{ grpc_pass grpc://calls; grpc_set_header X-Told all; }}\n\
             location /closed {{ return 403; }} }}"
        ),
        &[],
    );
    let calls = |at: SocketAddr| node(CALLS, &[&at.port().to_string()]);
    // nginx may use a connection again on which a call was answered before its end, and answer 502.
    let there = until("nginx to pass all on", || {
        Some(calls(both.nginx_at)).filter(|there| !there.contains("\"status\":502"))
    });
    let here = calls(both.weir_at);
    assert!(there.lines().count() == 5 && there.contains("\"grpc-status\":\"7\""), "{there}");
    assert_eq!(there, here, "by nginx, and by Weir\n{}", both.said);
}

#[test]
fn copies_are_made_of_the_same_requests() {
    let [app, of_nginx, of_weir] = ["app", "copies", "copies"].map(telling);
    let text = |copies: &Backend| {
        format!(
            "server {{ listen @web; server_name a.example;\n\
             location / {{ mirror /copy; proxy_pass http://@app; }}\n\
             location /bare/ {{ mirror off; proxy_pass http://@app; }}\n\
             location /fixed/ {{ mirror /copy; return 204; }}\n\
             location = /copy {{ internal; proxy_pass http://{}$request_uri; }} }}",
            copies.address()
        )
    };
    let requests = [
        ("GET", "/x?a=1", ""),
        ("POST", "/x/y", "some text"),
        ("GET", "/bare/x", ""),
        ("PUT", "/%41?b", "more"),
        ("DELETE", "/z", ""),
    ];
    for (copies, of_both) in [(&of_nginx, false), (&of_weir, true)] {
        let both = Both::of(&text(copies), &[("app", &app)]);
        let at = if of_both { both.weir_at } else { both.nginx_at };
        let mut asked = 0;
        for (method, target, body) in requests {
            let mut wire = Wire::connect(at);
            let length =
                if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
            wire.sends(format!(
                "{method} {target} HTTP/1.1\r\nhost: a.example\r\nx-own: 1\r\ncookie: c=1\r\n{length}\r\n{body}"
            ));
            assert_eq!(wire.receives_response_to(method).status, 200);
            asked += usize::from(!target.starts_with("/bare"));
            until("the copy", || (copies.served() == asked).then_some(()));
        }
    }
    let seen = |backend: &Backend| -> Vec<String> {
        let shown = |request: &weir_tests::dialogue::Request| {
            let fields =
                ["x-own", "cookie", "content-length"].map(|name| request.fields.one(name).unwrap_or(""));
            let target = request.target.replace("%41", "A");
            format!("{} {target} {fields:?} {}", request.method, String::from_utf8_lossy(&request.body))
        };
        backend.requests().iter().map(shown).collect()
    };
    let (there, here) = (seen(&of_nginx), seen(&of_weir));
    assert_eq!(there.len(), 4, "{there:?}");
    assert_eq!(there, here, "by nginx, and by Weir");
}

/// A real nginx with a `stream` block and a Weir with the converted one. `@a` and `@b` stand for the
/// addresses that they listen at.
struct Streams {
    nginx_at: [SocketAddr; 2],
    weir_at: [SocketAddr; 2],
    _nginx: (weir_tests::dialogue::Program, Folder),
    _weir: Weir,
}

impl Streams {
    fn of(stream: &str) -> Streams {
        let [nginx_at, weir_at] = [(); 2].map(|()| [free_address(), free_address()]);
        // Programs are waited for at an address of TCP.
        let ready = free_address();
        let text = |at: [SocketAddr; 2], folder: &Folder| {
            let stream = stream.replace("@a", &at[0].to_string()).replace("@b", &at[1].to_string());
            format!(
                "load_module {};\nuser root;\ndaemon off;\npid {};\nerror_log stderr;\nevents {{}}\nstream {{\n{stream}\n}}\n",
                module(),
                folder.path("nginx.pid")
            )
        };
        let folder = Folder::new();
        let only_there = format!("server {{ listen {ready}; proxy_pass 127.0.0.1:9; }}\n");
        let of_nginx = text(nginx_at, &folder).replace("stream {\n", &format!("stream {{\n{only_there}"));
        let program = nginx(&folder.write("nginx.conf", &of_nginx), ready);
        let own = Folder::new();
        let finished = convert(&own, &own.write("nginx.conf", &text(weir_at, &own)));
        assert!(finished.code == 0 && finished.stderr.contains(" 0 unsupported"), "{}", finished.stderr);
        let toml = std::fs::read_to_string(own.path("weir.toml")).expect("it was written");
        Streams { nginx_at, weir_at, _nginx: (program, folder), _weir: Setup::of(&toml).start() }
    }
}

#[test]
fn connections_are_relayed_and_announced_as_by_nginx() {
    let plain = ScriptedBackend::start();
    let told = ScriptedBackend::start();
    let streams = Streams::of(&format!(
        "upstream one {{ server 127.0.0.1:9 max_fails=0; server {} backup; }}\n\
         server {{ listen @a; proxy_pass {}; proxy_connect_timeout 2s; proxy_timeout 1m; }}\n\
         server {{ listen @b; proxy_pass one; proxy_protocol on; allow 127.0.0.1; deny all; }}",
        told.address(),
        plain.address(),
    ));
    for [at, announced] in [streams.nginx_at, streams.weir_at] {
        let mut client = Wire::connect(at);
        client.sends("hello");
        let mut server = plain.accepts();
        assert_eq!(server.receives(5), b"hello");
        server.sends("yes");
        assert_eq!(client.receives(3), b"yes");
        let mut client = Wire::connect(announced);
        client.sends("more");
        let mut server = told.accepts();
        let line = String::from_utf8(server.receives_until("\r\n")).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = announced.port().to_string();
        assert_eq!(
            [words[0], words[1], words[2], words[3], words[5]],
            ["PROXY", "TCP4", "127.0.0.1", "127.0.0.1", port.as_str()],
            "{line}"
        );
        assert_eq!(server.receives(4), b"more");
    }
}

/// What comes back of some datagrams, each with the number of the port that the server saw it from.
fn answered(at: SocketAddr, from: &UdpSocket) -> Vec<String> {
    let mut answers = Vec::new();
    for text in ["one", "two", "a third datagram", ""] {
        from.send_to(text.as_bytes(), at).expect("sent");
        let mut datagram = [0; 2048];
        let (size, by) = from.recv_from(&mut datagram).expect("an answer");
        assert_eq!(by, at);
        answers.push(String::from_utf8_lossy(&datagram[..size]).into_owned());
    }
    answers
}

#[test]
fn datagrams_are_relayed_as_by_nginx() {
    let server = datagram_socket();
    let address = server.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((size, from)) = server.recv_from(&mut datagram) {
            if server.send_to(&[b"got ", &datagram[..size]].concat(), from).is_err() {
                return;
            }
        }
    });
    let streams = Streams::of(&format!(
        "upstream names {{ server {address}; }}\n\
         server {{ listen @a udp; proxy_pass names; proxy_timeout 20s; proxy_responses 1; }}\n\
         server {{ listen @b udp reuseport; proxy_pass {address}; }}"
    ));
    let clients = [datagram_socket(), datagram_socket()];
    for client in &clients {
        client.set_read_timeout(Some(PATIENCE.max(Duration::from_secs(1)))).expect("a bound");
        for (there, here) in streams.nginx_at.into_iter().zip(streams.weir_at) {
            let said = [there, here].map(|at| answered(at, client));
            assert_eq!(said[0], said[1], "by nginx, and by Weir");
            assert_eq!(said[1][2], "got a third datagram");
        }
    }
}
