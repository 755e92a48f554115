//! What probes ask, and what servers of other people answer: bodies, gRPC's health protocol, conversations.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{
    After, Authority, Backend, Program, Setup, Weir, Wire, client_program, free_address, listen_at, tool,
    until,
};

use super::is_up;

/// One backend, and probes that come often and have all the time that a busy machine may need.
fn config(protocol: &str, of_pool: &str, check: &str) -> String {
    format!(
        r#"
        [listener.front]
        bind = "@front"
        protocol = "{protocol}"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        {of_pool}
        [pool.app.health]
        interval = "2s"
        fast_interval = "50ms"
        down_interval = "2s"
        timeout = "2s"
        rise = 1
        fall = 1
        passive = "off"
        {check}
        "#
    )
}

fn goes_up(weir: &Weir, address: SocketAddr) {
    until(&format!("{address} to be up\n{}", weir.story()), || {
        let status = weir.admin().reads("/v1/pools/app").json();
        (status["backends"][0]["health"] == "up").then_some(())
    });
    assert!(is_up(weir, address));
}

/// Waits until the backend is down, and gives why.
fn goes_down(weir: &Weir) -> String {
    until(&format!("the backend to be down\n{}", weir.story()), || {
        let status = weir.admin().reads("/v1/pools/app").json();
        let backend = &status["backends"][0];
        (backend["health"] == "down").then(|| backend["reason"].as_str().unwrap_or_default().to_owned())
    })
}

/// A backend that serves each connection by itself, whatever is asked. It ends with the test program.
fn speaking(serve: impl Fn(&mut Wire) + Send + 'static) -> SocketAddr {
    let address = free_address();
    let listener = listen_at(address);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(&mut Wire::over(stream, "weir"));
        }
    });
    address
}

#[test]
fn a_probe_has_the_method_and_the_fields_that_are_said_and_the_body_must_be_as_expected() {
    let body = Arc::new(Mutex::new("all is WELL"));
    let (told, seen) = (body.clone(), Arc::new(Mutex::new(Vec::new())));
    let notes = seen.clone();
    let backend = Backend::serving(move |request, wire| {
        let field = |name: &str| request.fields.one(name).unwrap_or_default().to_owned();
        *notes.lock().unwrap() = vec![
            request.method.clone(),
            field("x-probe"),
            field("user-agent"),
            field("content-length"),
            field("host"),
        ];
        let body = *told.lock().unwrap();
        // The body in two parts, so that it comes after the head.
        let (one, two) = body.split_at(4);
        wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        for part in [one, two] {
            wire.sends(format!("{:x}\r\n{part}\r\n", part.len()));
        }
        wire.sends("0\r\n\r\n");
        After::Close
    });
    let check = r#"
        check = "http"
        method = "POST"
        host = "probe.example"
        headers = { x-probe = "yes", user-agent = "mine/1" }
        expect_body = "~^all is (WELL|fine)$""#;
    let weir = Setup::of(&config("http", "", check)).with("app", backend.address()).start();
    goes_up(&weir, backend.address());
    assert_eq!(*seen.lock().unwrap(), ["POST", "yes", "mine/1", "0", "probe.example"]);
    *body.lock().unwrap() = "all is \x1b[31mWELL, but";
    let why = goes_down(&weir);
    assert_eq!(why, "answered \"all is \\x1b[31mWELL, but\", expected a match of ~^all is (WELL|fine)$");
    // It shows wherever one would look.
    let url = format!("http://{}/", weir.address("front"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.succeeded().contains(&why), "{explained:?}");
    assert!(weir.command(&["status"]).succeeded().contains(&why));
    let mut events = Wire::connect(weir.admin().address());
    events.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 0\r\n\r\n");
    events.receives_until("expected a match of ~^all is");
    *body.lock().unwrap() = "all is fine";
    goes_up(&weir, backend.address());
}

#[test]
fn a_body_that_says_what_it_must_not_is_bad_and_one_that_never_ends_is_looked_at_as_far_as_it_goes() {
    let body = Arc::new(Mutex::new("ready, ready"));
    let told = body.clone();
    // It sends without end: the text is found all the same, and the search for another one is bounded.
    let backend = Backend::serving(move |_, wire| {
        let body = *told.lock().unwrap();
        if wire.tries_to_send("HTTP/1.1 200 OK\r\n\r\n").is_ok() {
            while wire.tries_to_send(body.repeat(100)).is_ok() {}
        }
        After::Close
    });
    let check = "check = \"http\"\nexpect_body = \"ready\"";
    let weir = Setup::of(&config("http", "", check)).with("app", backend.address()).start();
    goes_up(&weir, backend.address());
    *body.lock().unwrap() = "stopping now";
    let why = goes_down(&weir);
    assert!(why.contains("and more than 65536 bytes, expected \"ready\" in it"), "{why}");
    drop(weir);
    let check = "check = \"http\"\nexpect_body = \"!stopping\"";
    let weir = Setup::of(&config("http", "", check)).with("app", backend.address()).start();
    let why = goes_down(&weir);
    assert!(why.ends_with("expected no \"stopping\" in it"), "{why}");
}

#[test]
fn an_answer_with_a_bad_status_is_shown_with_its_body() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(503, &[], "no database\r\n");
        After::Keep
    });
    let weir = Setup::of(&config("http", "", "check = \"http\"")).with("app", backend.address()).start();
    let why = goes_down(&weir);
    assert_eq!(why, "answered 503 with \"no database\\r\\n\", expected 200-399");
}

#[test]
fn nghttpd_is_probed_in_http2_with_and_without_tls_and_its_body_is_read() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    for tls in [false, true] {
        let address = free_address();
        let of_pool = if tls {
            "protocol = \"h2\"\ntls = { ca = \"@dir/ca.pem\", server_name = \"app.internal\" }"
        } else {
            "protocol = \"h2\""
        };
        let check = "check = \"http\"\npath = \"/state\"\nexpect_body = '~^up\\n$'";
        let weir = authority.setup(&config("http", of_pool, check)).with("app", address).start();
        let state = weir.dir().join("state");
        std::fs::write(&state, "up\n").expect("write");
        let root = format!("--htdocs={}", weir.dir().display());
        let port = address.port().to_string();
        let mut nghttpd = Command::new(tool("nghttpd", "nghttp2-server"));
        nghttpd.args(["--address=127.0.0.1", &root]);
        if tls {
            nghttpd.args([&port, &authority.path("own.key"), &authority.path("own.pem")]);
        } else {
            nghttpd.args(["--no-tls", &port]);
        }
        let _server = Program::start(&mut nghttpd, address);
        goes_up(&weir, address);
        // As long as before: nghttpd may remember the length.
        std::fs::write(&state, "no\n").expect("write");
        assert_eq!(goes_down(&weir), "answered \"no\\n\", expected a match of ~^up\\n$", "TLS: {tls}");
    }
}

/// grpc-go's health server.
struct GrpcHealth {
    program: Program,
    told: ChildStdin,
    says: BufReader<std::process::ChildStdout>,
}

impl GrpcHealth {
    fn start(address: SocketAddr, keys: &[String]) -> GrpcHealth {
        let mut command = Command::new(client_program("bin/grpchealth"));
        command.arg(address.to_string()).args(keys).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        let told = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let program = Program::of(child);
        until("the server to listen", || TcpStream::connect(address).ok());
        GrpcHealth { program, told, says }
    }

    /// Has it answer so about a service from now on.
    fn is(&mut self, service: &str, status: &str) {
        writeln!(self.told, "{service} {status}").expect("it listens");
        let mut line = String::new();
        self.says.read_line(&mut line).expect("it answers");
        assert_eq!(line, format!("{service} {status}\n"), "{:?}", self.program.is_running());
    }
}

#[test]
fn grpcs_own_health_server_is_asked_about_a_service_and_believed() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    for tls in [false, true] {
        let address = free_address();
        let (of_pool, keys) = match tls {
            true => (
                "tls = { ca = \"@dir/ca.pem\", server_name = \"app.internal\" }",
                vec![authority.path("own.pem"), authority.path("own.key")],
            ),
            false => ("", Vec::new()),
        };
        let mut server = GrpcHealth::start(address, &keys);
        let check = "check = \"grpc\"\nservice = \"shop.v1.Cart\"\nheaders = { x-who = \"weir\" }";
        // The pool speaks HTTP/1.1 or relays; the probe speaks HTTP/2 all the same.
        let weir = authority.setup(&config("tcp", of_pool, check)).with("app", address).start();
        // The server as a whole serves; of this service it knows nothing.
        let why = goes_down(&weir);
        assert!(why.starts_with("answered grpc-status 5 NOT_FOUND \"unknown service\""), "{why}");
        server.is("shop.v1.Cart", "SERVING");
        goes_up(&weir, address);
        for status in ["NOT_SERVING", "UNKNOWN"] {
            server.is("shop.v1.Cart", status);
            let expected = format!("answered {status}, expected SERVING");
            until(&expected, || (goes_down(&weir) == expected).then_some(()));
        }
        drop(weir);
        let whole = config("tcp", of_pool, "check = \"grpc\"");
        let weir = authority.setup(&whole).with("app", address).start();
        goes_up(&weir, address);
        server.is("-", "NOT_SERVING");
        assert_eq!(goes_down(&weir), "answered NOT_SERVING, expected SERVING");
    }
}

#[test]
fn a_server_without_the_health_protocol_and_one_of_http1_are_named() {
    let address = free_address();
    let server = client_program("bin/grpc-interop-server");
    let _server = Program::start(Command::new(server).arg(format!("--port={}", address.port())), address);
    let weir = Setup::of(&config("tcp", "", "check = \"grpc\"")).with("app", address).start();
    let why = goes_down(&weir);
    assert!(why.starts_with("answered grpc-status 12 UNIMPLEMENTED"), "{why}");
    drop(weir);
    let backend = speaking(|wire| {
        wire.receives_until("\r\n\r\n");
        wire.sends("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        // Held until the probe has read it: a close with something unread would be a reset.
        while !wire.has_ended() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let weir = Setup::of(&config("tcp", "", "check = \"grpc\"")).with("app", backend).start();
    let why = goes_down(&weir);
    assert!(why.starts_with("answered against HTTP/2: "), "{why}");
}

#[test]
fn redis_is_asked_in_its_own_protocol_and_a_wrong_password_is_told() {
    let address = free_address();
    let mut redis = Command::new(tool("redis-server", "redis-server"));
    redis.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    redis.args(["--appendonly", "no", "--requirepass", "secret", "--dir", "/tmp"]);
    let _redis = Program::start(&mut redis, address);
    let check = r#"steps = [{ send = "PING\r\n", expect = "+PONG" }]"#;
    let weir = Setup::of(&config("tcp", "", check)).with("app", address).start();
    let why = goes_down(&weir);
    assert_eq!(
        why,
        "answered \"-NOAUTH Authentication required.\\r\\n\" and no more within 2s, expected \"+PONG\" in it (step 1 of 1)"
    );
    drop(weir);
    let check = r#"steps = [
        { send = 'AUTH secret\r\n', expect = "+OK" },
        { send = "*1\r\n$4\r\nPING\r\n", expect = "+PONG\r\n" },
        { send = "INFO replication\r\n", expect = "~role:(master|slave)" },
    ]"#;
    let weir = Setup::of(&config("tcp", "", check)).with("app", address).start();
    goes_up(&weir, address);
    let history = weir.admin().reads("/v1/pools/app").json();
    assert_eq!(history["backends"][0]["probes"]["history"][0]["detail"], "answered as expected in 3 steps");
}

/// A server of mail as far as a probe goes; `220` and `250` come in parts.
const SMTP: &str = r#"
import socketserver, sys, time
class Mail(socketserver.StreamRequestHandler):
    def say(self, text):
        for part in (text[:3], text[3:]):
            self.wfile.write(part.encode()); self.wfile.flush(); time.sleep(0.02)
    def handle(self):
        self.say("220-mail.example at your service\r\n220 ready\r\n")
        for line in self.rfile:
            if line.startswith(b"EHLO"): self.say("250-mail.example\r\n250-SIZE\r\n250 HELP\r\n")
            elif line.startswith(b"QUIT"): self.say("221 bye\r\n"); return
            else: self.say("500 what?\r\n")
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
Server(("127.0.0.1", int(sys.argv[1])), Mail).serve_forever()
"#;

#[test]
fn a_mail_server_is_greeted_and_left_politely() {
    let address = free_address();
    let mut python = Command::new(tool("python3", "python3"));
    python.args(["-c", SMTP, &address.port().to_string()]);
    let _mail = Program::start(&mut python, address);
    let check = r#"steps = [
        { expect = '~(?m)^220 ' },
        { send = "EHLO weir.example\r\n", expect = '~(?m)^250 .*\n' },
        { send = "QUIT\r\n", expect = "221 " },
    ]"#;
    let weir = Setup::of(&config("tcp", "", check)).with("app", address).start();
    goes_up(&weir, address);
    weir.reaches("weir_probes_total", &[("result", "good")], 2.0);
    assert!(!weir.stderr().contains("is down"), "{}", weir.story());
}

#[test]
fn a_backend_that_sends_without_end_or_byte_by_byte_is_no_burden() {
    // One floods and never says it, the other says it one byte at a time.
    let flood = speaking(|wire| while wire.tries_to_send("x".repeat(65_536)).is_ok() {});
    let check = r#"steps = [{ expect = "+PONG" }]"#;
    let weir = Setup::of(&config("tcp", "", check)).with("app", flood).start();
    let why = goes_down(&weir);
    assert!(why.contains("and more than 16384 bytes, expected \"+PONG\" in it"), "{why}");
    drop(weir);
    let slow = speaking(|wire| {
        for byte in "hello +PONG\r\n".chars() {
            if wire.tries_to_send(byte.to_string()).is_err() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let weir = Setup::of(&config("tcp", "", check)).with("app", slow).start();
    goes_up(&weir, slow);
}
