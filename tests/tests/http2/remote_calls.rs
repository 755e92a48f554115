//! Remote calls as gRPC makes them: unary, streaming either way and both, errors in trailers alone.

use std::process::{Command, Stdio};

use weir_tests::dialogue::{NO_PROBES, Program, Setup, Weir, free_address, one_pool, tool, until};

use super::super::clients::node;

/// A server with the four kinds of calls, its messages framed as gRPC frames them.
const SERVER: &str = r#"
import http2 from "node:http2";
const frame = data => { const head = Buffer.alloc(5); head.writeUInt32BE(data.length, 1); return Buffer.concat([head, data]); };
const server = http2.createServer();
server.on("stream", (stream, headers) => {
  stream.on("error", () => {});
  const method = headers[":path"];
  if (headers["te"] !== "trailers") { stream.respond({ ":status": 400 }, { endStream: true }); return; }
  const head = { ":status": 200, "content-type": "application/grpc" };
  if (method === "/fails") {
    stream.respond({ ...head, "grpc-status": "7", "grpc-message": "no%20entry" }, { endStream: true });
    return;
  }
  const many = Object.fromEntries([...Array(50).keys()].map(i => [`x-m${i}`, `${i}`]));
  const details = { "grpc-status": "3", "grpc-status-details-bin": "Y".repeat(30000), ...many };
  stream.on("wantTrailers", () => stream.sendTrailers(method === "/details" ? details : { "grpc-status": method === "/fails-late" ? "13" : "0", "x-bin": "YQ" }));
  stream.respond(head, { waitForTrailers: true });
  let rest = Buffer.alloc(0), count = 0;
  stream.on("data", data => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const size = rest.readUInt32BE(1), message = rest.subarray(5, 5 + size);
      rest = rest.subarray(5 + size); count++;
      if (method === "/both") stream.write(frame(Buffer.from(message).reverse()));
      if (method === "/unary" || method === "/fails-late") stream.write(frame(Buffer.from(message).reverse()));
      if (method === "/down") for (let i = 0; i < 1000; i++) stream.write(frame(Buffer.from(`${i}`)));
    }
  });
  stream.on("end", () => { if (method === "/up") stream.write(frame(Buffer.from(`${count}`))); stream.end(); });
});
server.listen(Number(process.argv[1]), "127.0.0.1");
"#;

const CLIENT: &str = r#"
import http2 from "node:http2";
import assert from "node:assert";
const frame = data => { const head = Buffer.alloc(5); head.writeUInt32BE(data.length, 1); return Buffer.concat([head, data]); };
const session = http2.connect(`http://127.0.0.1:${process.argv[1]}`);
const call = (path, drive) => new Promise((yes, no) => {
  const stream = session.request({ ":method": "POST", ":path": path, "content-type": "application/grpc", "te": "trailers" });
  const got = { messages: [], trailers: null, head: null };
  let rest = Buffer.alloc(0);
  stream.on("response", head => got.head = head);
  stream.on("trailers", trailers => got.trailers = trailers);
  stream.on("data", data => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const size = rest.readUInt32BE(1);
      const message = rest.subarray(5, 5 + size).toString();
      rest = rest.subarray(5 + size);
      got.messages.push(message);
      drive.hears?.(stream, message, got.messages.length);
    }
  });
  stream.on("error", no);
  stream.on("close", () => yes(got));
  drive.begins(stream);
});
const once = { begins: stream => stream.end(frame(Buffer.from("ping"))) };
const rounds = [];
for (let round = 0; round < 20; round++) rounds.push((async () => {
  const unary = await call("/unary", once);
  assert.deepEqual([unary.messages, unary.trailers["grpc-status"], unary.trailers["x-bin"]], [["gnip"], "0", "YQ"]);
  const down = await call("/down", once);
  assert.equal(down.messages.length, 1000); assert.equal(down.messages[999], "999"); assert.equal(down.trailers["grpc-status"], "0");
  const up = await call("/up", { begins: async stream => {
    for (let i = 0; i < 500; i++) stream.write(frame(Buffer.alloc(300, i)));
    stream.end();
  } });
  assert.deepEqual(up.messages, ["500"]);
  // Each message waits for the answer to the one before: nothing may be held back on the way.
  const both = await call("/both", {
    begins: stream => stream.write(frame(Buffer.from("n1"))),
    hears: (stream, _, count) => count < 50 ? stream.write(frame(Buffer.from(`n${count + 1}`))) : stream.end(),
  });
  assert.equal(both.messages.length, 50); assert.equal(both.messages[49], "05n"); assert.equal(both.trailers["grpc-status"], "0");
  const fails = await call("/fails", once);
  assert.deepEqual([fails.head[":status"], fails.head["grpc-status"], fails.head["grpc-message"], fails.messages], [200, "7", "no%20entry", []]);
  const details = (await call("/details", once)).trailers;
  assert.deepEqual([details["grpc-status"], details["x-m0"], details["x-m49"]], ["3", "0", "49"]);
  assert.equal(details["grpc-status-details-bin"].length, 30000);
  const late = await call("/fails-late", once);
  assert.equal(late.trailers["grpc-status"], "13");
})());
await Promise.all(rounds);
console.log("ok");
process.exit(0);
"#;

fn weir_before_a_server() -> (Weir, Program) {
    let address = free_address();
    let server = Command::new(tool("node", "nodejs"))
        .args(["--input-type=module", "-e", SERVER, &address.port().to_string()])
        .stdout(Stdio::null())
        .spawn()
        .expect("node starts");
    let server = Program::of(server);
    until("the server to listen", || std::net::TcpStream::connect(address).ok());
    let pool = format!("protocol = \"h2\"\n{NO_PROBES}");
    let weir = Setup::of(&one_pool("http = [\"h2\"]", &pool)).with("app", address).start();
    (weir, server)
}

#[test]
fn remote_calls_of_every_kind_get_their_messages_and_their_trailers() {
    let (weir, _server) = weir_before_a_server();
    assert_eq!(node(CLIENT, &[&weir.address("web").port().to_string()]).trim(), "ok");
}
