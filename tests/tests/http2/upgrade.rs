//! Drains and upgrades under connections that carry many streams.

use std::time::Duration;

use weir_tests::dialogue::http2::{END_STREAM, Outcome, code, frame, get, headers, kind, request};
use weir_tests::dialogue::{ScriptedBackend, Setup, Signal, until, until_within};

use super::super::clients::{node, site};
use super::{BOTH, connect};

/// A client as applications write it: it goes on over a new connection when the old one takes no more
/// requests, and counts what fails.
const CLIENT: &str = r#"
import http2 from "node:http2";
const [port, count] = [process.argv[1], Number(process.argv[2])];
let failed = 0, done = 0, connections = 0, session;
const current = () => {
  if (!session || session.closed || session.destroyed || session.goneAway) {
    const opened = session = http2.connect(`http://127.0.0.1:${port}`);
    connections++;
    opened.on("goaway", () => opened.goneAway = true);
    opened.on("error", error => { failed++; console.error("connection", error.message); });
  }
  return session;
};
const ask = number => new Promise(yes => {
  const length = number % 5000;
  const stream = current().request({ ":path": `/bytes/${length}` });
  let size = 0, status, ended = false;
  stream.on("response", head => status = head[":status"]);
  stream.on("data", data => size += data.length);
  stream.on("error", error => { console.error("stream", error.message); });
  stream.on("close", () => {
    if (status !== 200 || size !== length) {
      // RFC 9113 §8.7: nothing was done with it, and every client sends it again.
      if (stream.rstCode === 7) return ask(number).then(yes);
      failed++; console.error("request", number, status, size, stream.rstCode);
    }
    done++; yes();
  });
});
let next = 0;
const lane = async () => { while (next < count) await ask(next++); };
await Promise.all([...Array(20).keys()].map(lane));
console.log(`${done} done, ${failed} failed, ${connections} connections`);
process.exit(0);
"#;

#[test]
fn upgrades_under_http2_load_fail_no_request() {
    let backend = site();
    let weir = Setup::of(BOTH).with("app", backend.address()).start();
    let port = weir.address("web").port().to_string();
    let client = std::thread::spawn(move || node(CLIENT, &[&port, "10000"]));
    let mut upgrades = 0;
    while !client.is_finished() {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until_within(Duration::from_secs(120), "the old process to end", || {
            (!weir.is_running(old)).then_some(())
        });
        upgrades += 1;
    }
    let report = client.join().expect("node");
    println!("{upgrades} upgrades: {report}");
    assert!(report.starts_with("10000 done, 0 failed"), "{report}");
    assert!(upgrades > 0);
}

#[test]
fn a_drain_lets_running_streams_finish_and_takes_no_new_ones() {
    let backend = ScriptedBackend::start();
    let config = format!("[runtime]\ndrain = \"20s\"\n{BOTH}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let mut client = connect(&weir, b"");
    client.sends(headers(1, &request("POST", "/"), false));
    client.sends(frame(kind::DATA, 0, 1, b"first"));
    let mut wire = backend.accepts();
    wire.receives_until("first");
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    // The first GOAWAY names no stream; the second, after a round trip, names the last (RFC 9113 §6.8).
    let goaway = client.receives(kind::GOAWAY, 0);
    assert_eq!(goaway.payload[4..8], [0; 4], "NO_ERROR");
    let last = client.receives(kind::GOAWAY, 0);
    assert_eq!(last.payload[..4], 1u32.to_be_bytes(), "the running stream is served");
    client.sends(get(3, "/late"));
    client.sends(frame(kind::DATA, END_STREAM, 1, b"-last"));
    wire.receives_until("-last");
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone");
    assert_eq!(client.outcome_of(1), Outcome::Answered(200, b"done".to_vec()));
    let (ended, resets) = client.receives_the_end();
    assert!(matches!(ended, None | Some(0)), "{ended:?}");
    assert!(resets.iter().all(|reset| *reset == code::REFUSED_STREAM), "{resets:?}");
    // Sooner than the drain time: with its last stream.
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
}
