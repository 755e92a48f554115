//! Uploads that a backend does not read, and the requests that share a connection with them (threats B27 and
//! B28).

use weir_tests::dialogue::http3::{Http3, code, frame, headers, kind, request};
use weir_tests::dialogue::quic::frame as quic_frame;
use weir_tests::dialogue::{ScriptedBackend, Setup, Wire, until};

use super::backends::{ONLY, OUTER, get};
use super::origin::Origin;
use super::*;

/// No client is quiet for longer than this while there is room for what it sends.
const QUIET: Duration = Duration::from_secs(1);
/// No timer ends an upload that nobody reads.
const PATIENT: &str = "timeout = { backend = \"1h\", client_body = \"1h\" }\n";

/// The bytes of a request with content that does not end.
fn endless(path: &str) -> Vec<u8> {
    let mut bytes = headers(&request("POST", path));
    // The header of a DATA frame of a gigabyte.
    bytes.extend([kind::DATA as u8, 0xbb, 0x9a, 0xca, 0x00]);
    bytes
}

/// Sends content on a stream until there is no room for more, and none comes; gives how much.
async fn fills(upload: &mut quinn::SendStream) -> usize {
    let mut sent = 0;
    while let Ok(written) = tokio::time::timeout(QUIET, upload.write(&[b'a'; 16 << 10])).await {
        sent += written.expect("the stream is open");
    }
    sent
}

/// Waits for a connection while the client's goes on.
pub async fn accepts(backend: &ScriptedBackend) -> Wire {
    loop {
        if let Some(wire) = backend.accepts_if_any() {
            return wire;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Where uploads to `/unread` wait in line.
const LINE: &str = r#"
[[listener.web.route]]
path = "/unread"
pool = "busy"
[[listener.web.route]]
path = "/*"
pool = "app"
[pool.busy]
backends = [{ address = "@busy", max_connections = 1 }]
queue = { max = 100, timeout = "1h" }
health = "off"
[pool.app]"#;

/// Two uploads filled the window of the connection, which holds heads as well as content in HTTP/3.
#[test]
fn b28_uploads_that_a_backend_does_not_read_leave_room_for_other_requests_of_their_connection() {
    const UNREAD: usize = 5;
    let (authority, backend, busy) = (authority(), site(), ScriptedBackend::start());
    for trusted in ["", "trusted_proxies = [\"127.0.0.1\"]\n"] {
        let config = CONFIG.replace("[pool.app]", LINE);
        let config = config.replacen("pool = \"app\"\n", &format!("{PATIENT}{trusted}"), 1);
        let setup = authority.setup(&config).with("app", backend.address());
        let weir = setup.with("busy", busy.address()).start();
        run(async {
            let mut client = Client::connect(&authority, weir.address("web")).await;
            let (mut asking, _answer) = client.connection.open_bi().await.unwrap();
            asking.write_all(&headers(&request("GET", "/unread"))).await.unwrap();
            asking.finish().unwrap();
            let _occupied = accepts(&busy).await;
            let mut unread = Vec::new();
            for _ in 0..UNREAD {
                let (mut upload, answer) = client.connection.open_bi().await.unwrap();
                upload.write_all(&endless("/unread")).await.unwrap();
                fills(&mut upload).await;
                unread.push((upload, answer));
            }
            assert_eq!(client.asks(b"").await, (200, b"hello".to_vec()));
            assert_eq!(client.asks(b"some").await, (200, b"some".to_vec()));
        });
    }
}

/// One upload filled what the backend allows on the connection that all share, for heads and content.
#[test]
fn b27_content_that_a_backend_of_http_3_does_not_read_keeps_nobody_elses_waiting() {
    const WINDOW_BYTES: u32 = 256 << 10;
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let origin = Origin::narrow(&authority, WINDOW_BYTES);
    let config = OUTER.replace("MORE", ONLY).replace("timeout = { backend = \"15s\" }\n", PATIENT);
    let weir = Setup::of(&config).with("ca", authority.path("ca.pem")).with("origin", origin.address).start();
    let mut unread = weir.client("web");
    unread.sends("POST /never HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n");
    // Until neither Weir nor the kernel takes more.
    let mut socket = unread.socket().try_clone().expect("a second handle");
    socket.set_write_timeout(Some(QUIET)).expect("a timeout");
    while std::io::Write::write(&mut socket, &[b'a'; 16 << 10]).is_ok() {}
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    let mut other = weir.client("web");
    other.sends("PUT /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\nsome");
    assert_eq!(other.receives_status(200).text(), "some");
    assert_eq!(origin.connections(), 2);
}

/// What was under way beside it on the connection waits for no longer than the backend may take to answer.
#[test]
fn b27_content_under_way_goes_on_once_content_that_nobody_reads_is_given_up() {
    const WINDOW_BYTES: u32 = 256 << 10;
    let authority = Authority::new().signs("inner", &["app.internal"]);
    let origin = Origin::narrow(&authority, WINDOW_BYTES);
    let times = "timeout = { backend = \"2s\", client_body = \"1h\" }\n";
    let config = OUTER.replace("MORE", ONLY).replace("timeout = { backend = \"15s\" }\n", times);
    let weir = Setup::of(&config).with("ca", authority.path("ca.pem")).with("origin", origin.address).start();
    let mut other = weir.client("web");
    other.sends("PUT /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nsome");
    other.receives_until("some");
    let mut unread = weir.client("web");
    unread.sends("POST /never HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n");
    let mut socket = unread.socket().try_clone().expect("a second handle");
    socket.set_write_timeout(Some(QUIET)).expect("a timeout");
    while std::io::Write::write(&mut socket, &[b'a'; 16 << 10]).is_ok() {}
    other.sends("more");
    unread.receives_status(504);
    other.receives_until("more");
    assert_eq!(origin.connections(), 1);
}

/// `STOP_SENDING` was noticed only when there was something to send: the exchange, its memory and its place
/// at a backend lasted until `timeout.client_body`.
#[test]
fn a_client_that_stops_the_answer_and_leaves_its_upload_open_ends_the_exchange() {
    let buffer = "[pool.app]\nbuffer = { requests = \"64KiB\" }";
    for (is_held, is_answered) in [(false, false), (false, true), (true, false)] {
        let (authority, backend) = (authority(), ScriptedBackend::start());
        let config = CONFIG.replace("pool = \"app\"\n", &format!("pool = \"app\"\n{PATIENT}"));
        let config = if is_held { config.replace("[pool.app]", buffer) } else { config };
        let weir = authority.setup(&config).with("app", backend.address()).start();
        let mut client = Http3::connect(weir.address("web"), "shop.example", &tls(&authority));
        let in_use = || weir.metric("weir_memory_in_use_bytes", &[]);
        let at_rest = in_use();
        let fields = [&request("POST", "/")[..], &[("content-length", "100")]].concat();
        client.begins(0, 0, &[headers(&fields), frame(kind::DATA, b"some")].concat(), false);
        let mut wire = (!is_held).then(|| backend.accepts());
        if let Some(wire) = &mut wire {
            wire.receives_until("some");
        }
        if let Some(wire) = wire.as_mut().filter(|_| is_answered) {
            wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
            client.quic.waits("a head", |quic| (!quic.stream(0).bytes.is_empty()).then_some(()));
        }
        if is_held {
            until("the request to be taken up", || (in_use() > at_rest + 1000.0).then_some(()));
        }
        client.quic.sends(quic_frame::stop_sending(0, code::REQUEST_CANCELLED));
        // The client is there all the while, and acknowledges what it is asked.
        let line = until("the end of the exchange", || {
            client.quic.looks();
            Some(weir.file("access.log")).filter(|log| log.ends_with('\n'))
        });
        assert!(line.contains("client"), "held {is_held}, answered {is_answered}: {line}");
        if let Some(wire) = &mut wire {
            wire.receives_close();
        }
        client.gives_up = true;
    }
}
