//! Before a real gunicorn with one worker, which serves one request at a time: slow clients do not hold it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use weir_tests::dialogue::{Response, Setup, Weir, Wire, tool, until};

/// Says how much it got; `/big` answers with 24 MiB, more than all sockets on the way take.
const APPLICATION: &str = r#"
def application(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length)
    answer = b"b" * (24 << 20) if environ["PATH_INFO"] == "/big" else str(len(body)).encode()
    start_response("200 OK", [("Content-Length", str(len(answer)))])
    return [answer]
"#;

const BIG: usize = 24 << 20;

/// A gunicorn at a Unix socket in a folder of its own.
struct Gunicorn {
    child: Child,
    dir: PathBuf,
}

impl Gunicorn {
    fn start(name: &str) -> Gunicorn {
        let dir = std::env::temp_dir().join(format!("weir-gunicorn-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        std::fs::write(dir.join("app.py"), APPLICATION).expect("written");
        let socket = format!("unix:{}", dir.join("app.sock").display());
        let mut command = Command::new(tool("gunicorn", "gunicorn"));
        command.args(["--workers", "1", "--timeout", "300", "--bind", &socket, "app:application"]);
        command.current_dir(&dir).stdout(Stdio::null()).stderr(Stdio::null());
        let gunicorn = Gunicorn { child: command.spawn().expect("started"), dir };
        until("gunicorn to listen", || gunicorn.dir.join("app.sock").exists().then_some(()));
        gunicorn
    }

    fn before(&self, buffer: &str) -> Weir {
        let config = r#"
            [listener.web]
            bind = "@web"
            pool = "app"
            [pool.app]
            backends = ["unix:SOCKET"]
            buffer = BUFFER
            health = { check = "http", path = "/", interval = "100ms" }
        "#;
        let socket = self.dir.join("app.sock").display().to_string();
        Setup::of(&config.replace("SOCKET", &socket).replace("BUFFER", buffer)).start()
    }
}

impl Drop for Gunicorn {
    fn drop(&mut self) {
        // Its worker goes with it.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
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
    let gunicorn = Gunicorn::start("buffered");
    let weir = gunicorn.before(r#"{ requests = "1MiB", responses = "32MiB" }"#);
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
