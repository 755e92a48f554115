//! Before a real gunicorn with one worker, which serves one request at a time: slow clients do not hold it.

use weir_tests::dialogue::{Gunicorn, PATIENCE, Response, Setup, Weir, Wire, pattern, run_tool, tool};

/// Says how much it got; `/big` answers with 24 MiB, more than all sockets on the way take.
const APPLICATION: &str = r#"
import hashlib

def application(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    if environ["PATH_INFO"] == "/huge":
        start_response("200 OK", [("Content-Length", str(200 << 20))])
        return (bytes([number & 255]) * (1 << 20) for number in range(200))
    answer = b"b" * (24 << 20) if environ["PATH_INFO"] == "/big" else str(len(body)).encode()
    if environ["PATH_INFO"] == "/sum":
        answer = hashlib.sha256(body).hexdigest().encode()
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]
"#;

const BIG: usize = 24 << 20;
/// What `/huge` answers with, and what is uploaded.
const HUGE: usize = 200 << 20;
const UPLOAD: usize = 64 << 20;

fn before(gunicorn: &Gunicorn, buffer: &str) -> Weir {
    let config = r#"
        [runtime]
        workers = 1
        memory = "64MiB"
        memory_share_per_client = 1.0
        buffer_directory = "@dir"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["unix:SOCKET"]
        buffer = BUFFER
        health = { check = "http", path = "/", interval = "100ms" }
    "#;
    let socket = gunicorn.socket().display().to_string();
    Setup::of(&config.replace("SOCKET", &socket).replace("BUFFER", buffer)).start()
}

fn sends(weir: &Weir, head: &str) -> Wire {
    let mut client = weir.client("web");
    client.sends(format!("{head} HTTP/1.1\r\nhost: a\r\n"));
    client
}

fn asks(weir: &Weir) -> Response {
    let mut client = sends(weir, "GET /");
    client.sends("\r\n");
    client.receives_response()
}

#[test]
fn its_only_worker_serves_others_while_one_client_sends_slowly_and_another_reads_nothing() {
    let gunicorn = Gunicorn::start(APPLICATION);
    let weir = before(&gunicorn, r#"{ requests = "1MiB", responses = "32MiB" }"#);
    let mut uploader = sends(&weir, "POST /");
    uploader.sends("content-length: 100000\r\n\r\n");
    uploader.sends(vec![b'u'; 50_000]);
    let mut reader = sends(&weir, "GET /big");
    reader.sends("\r\n");
    weir.reaches("weir_read_ahead_responses_total", &[("pool", "app")], 1.0);
    for _ in 0..3 {
        assert_eq!(asks(&weir).text(), "0");
    }
    uploader.sends(vec![b'u'; 50_000]);
    assert_eq!(uploader.receives_status(200).text(), "100000");
    let head = reader.receives_until("\r\n\r\n");
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    assert!(reader.receives(BIG).iter().all(|byte| *byte == b'b'));
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), 0.0);
}

/// Both are more than memory may hold at all.
#[test]
fn its_only_worker_is_free_while_files_hold_a_long_upload_and_a_long_answer() {
    let gunicorn = Gunicorn::start(APPLICATION);
    let buffer =
        r#"{ requests = "64KiB", requests_file = "1GiB", responses = "64KiB", responses_file = "1GiB" }"#;
    let weir = before(&gunicorn, buffer);
    assert_eq!(asks(&weir).text(), "0");
    let at_rest = weir.usage().resident_bytes;
    let body = pattern(3, UPLOAD);
    let mut uploader = sends(&weir, "POST /sum");
    uploader.sends(format!("content-length: {UPLOAD}\r\n\r\n"));
    uploader.sends(&body[..UPLOAD - 1000]);
    let mut reader = sends(&weir, "GET /huge");
    reader.sends("\r\n");
    weir.reaches("weir_read_ahead_responses_total", &[("pool", "app")], 1.0);
    let most = weir.metric("weir_buffer_file_bytes", &[]);
    for _ in 0..3 {
        assert_eq!(asks(&weir).text(), "0");
    }
    uploader.sends(&body[UPLOAD - 1000..]);
    let sum = uploader.receives_status(200).text();
    let script = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())";
    let expected = run_tool(&tool("python3", "python3"), &["-c", script], &body, PATIENCE);
    assert_eq!(expected.succeeded().trim(), sum);
    reader.receives_until("\r\n\r\n");
    for number in 0..HUGE >> 20 {
        assert!(reader.receives(1 << 20).iter().all(|byte| *byte == number as u8), "MiB {number}");
    }
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "app")]), 0.0);
    let grown = weir.usage().peak_bytes.saturating_sub(at_rest);
    println!("{} MiB in files, {} KiB more memory", most as u64 >> 20, grown >> 10);
    assert!(grown < 16 << 20, "{grown} bytes");
}
