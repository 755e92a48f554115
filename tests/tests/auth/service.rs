//! A service that is asked about each request.

use std::process::Command;

use weir_tests::dialogue::{Program, Setup, client_program, free_address};

use super::*;

#[test]
fn what_the_service_lets_pass_goes_on_with_what_it_says_of_the_user() {
    let site = Site::start();
    let body = "x".repeat(200_000);
    let mut client = site.weir.client("web");
    let fields =
        format!("{GOOD}\r\nauthorization: Basic c2VjcmV0\r\nx-other: 1\r\ncontent-length: {}", body.len());
    client.sends(format!("POST /a%62?q=%2F&r HTTP/1.1\r\nhost: Shop.Example:8443\r\n{fields}\r\n\r\n{body}"));
    let answer = client.receives_response();
    assert_eq!((answer.status, answer.text().as_str()), (200, "app 200000"));
    assert_eq!(answer.fields.all("set-cookie"), ["app=1", "seen=1", "again=2"]);
    assert_eq!(answer.fields.one("x-secret"), None);
    // On the same connection, behind the body.
    client.sends(format!("GET /second HTTP/1.1\r\nhost: a\r\n{GOOD}\r\n\r\n"));
    assert_eq!(client.receives_response().text(), "app 0");

    let question = &site.auth.requests()[0];
    assert_eq!((question.method.as_str(), question.target.as_str()), ("GET", "/verify?a=1"));
    assert!(question.body.is_empty() && question.fields.one("content-length").is_none());
    let of = |name| question.fields.one(name).unwrap_or("none");
    assert_eq!(of("x-forwarded-method"), "POST");
    assert_eq!(of("x-forwarded-uri"), "/ab?q=%2F&r");
    assert_eq!(of("x-forwarded-host"), "Shop.Example:8443");
    assert_eq!((of("x-forwarded-proto"), of("x-forwarded-for")), ("http", "127.0.0.1"));
    assert_eq!((of("cookie"), of("authorization")), ("id=good", "Basic c2VjcmV0"));
    assert_eq!(of("x-other"), "none");
    let request = &site.app.requests()[0];
    assert_eq!(of("x-request-id"), request.fields.one("x-request-id").unwrap_or_default());
    assert_eq!(request.target, "/ab?q=%2F&r");
    assert_eq!(request.fields.all("remote-user"), ["ann"]);
    assert_eq!(request.fields.all("remote-groups"), ["a, b"]);
    assert_eq!(request.fields.one("x-secret"), None);
    assert_eq!(request.fields.one("x-forwarded-method"), None, "that is for the service");
    assert_eq!(site.auth.connections(), 1, "its connection is kept");

    assert_eq!(site.results("passed"), 2.0);
    let line = &site.weir.lines_of("access.log", 2)[0];
    assert!(line.contains("\"user\":\"ann\"") && line.contains("\"auth\":0."), "{line}");
    let log = site.weir.file("access.log");
    assert!(!log.contains("good") && !log.contains("c2VjcmV0"), "no credentials stand in the log: {log}");
}

/// It would let pass what it was told of, and the backend serve something else.
#[test]
fn the_service_is_told_of_nothing_that_the_backend_does_not_get() {
    let config = CONFIG.replacen("path =", "request_header = [\"cookie\", \"x-tenant\"]\npath =", 1);
    let site = Site::of(&config, verifier());
    let named = "connection: x-tenant, x-forwarded-uri";
    assert_eq!(asked(&site.weir, "GET /", &[GOOD, "x-tenant: mine"]).status, 200);
    assert_eq!(site.question().fields.one("x-tenant"), Some("mine"));
    assert_eq!(asked(&site.weir, "GET /", &[GOOD, "x-tenant: mine", named]).status, 200);
    assert_eq!((site.question().fields.one("x-tenant"), site.request().fields.one("x-tenant")), (None, None));
    assert_eq!(site.question().fields.one("x-forwarded-uri"), Some("/"));
}

#[test]
fn what_it_does_not_let_pass_is_answered_in_its_words() {
    let site = Site::start();
    let answer = asked(&site.weir, "GET /", &[]);
    assert_eq!((answer.status, answer.text().as_str()), (401, "who are you?"));
    assert_eq!(answer.fields.one("www-authenticate"), Some("Bearer"));
    assert_eq!(answer.fields.one("x-hop"), None, "what is of its connection stays there");
    let head = asked(&site.weir, "HEAD /", &[]);
    assert_eq!((head.status, head.fields.one("content-length")), (401, Some("12")));
    let browser = by_curl(&site.weir, &["--http2-prior-knowledge", "--header", "accept: text/html"], "/");
    assert!(browser.starts_with("HTTP/2 302"), "{browser}");
    assert!(browser.contains("\r\nlocation: https://login.example/?rd=x\r\n"), "{browser}");
    assert!(
        browser.contains("\r\nset-cookie: begun=1\r\n") && browser.ends_with("<a>login</a>"),
        "{browser}"
    );
    // A body that nobody wants does not become the next request.
    let mut client = site.weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 27\r\n\r\nGET /public/x HTTP/1.1\r\n\r\n..");
    assert_eq!(client.receives_response().status, 401);
    client.receives_close();
    assert_eq!(site.app.served(), 0);
    assert_eq!(site.results("denied"), 4.0);
    let labels = [("listener", "web"), ("reason", "auth_denied")];
    site.weir.reaches("weir_rejected_total", &labels, 4.0);
    site.weir.reaches("weir_ends_total", &labels, 4.0);
}

#[test]
fn a_route_may_let_everybody_pass_and_what_weir_says_itself_is_guarded_too() {
    let site = Site::start();
    assert_eq!(asked(&site.weir, "GET /public/x", &[]).text(), "app 0");
    assert_eq!(site.auth.served(), 0);
    for path in ["/said", "/moved", "/kept/x"] {
        assert_eq!(asked(&site.weir, &format!("GET {path}"), &[]).status, 401, "{path}");
    }
    let said = asked(&site.weir, "GET /said", &[GOOD]);
    assert_eq!((said.text().as_str(), said.fields.all("set-cookie")), ("said", vec!["seen=1", "again=2"]));
    assert_eq!(asked(&site.weir, "GET /moved", &[GOOD]).fields.one("location"), Some("/elsewhere"));
}

#[test]
fn a_call_of_grpc_is_told_by_its_trailers() {
    let site = Site::start();
    let call = site.weir.dir().join("call");
    std::fs::write(&call, "abc").expect("write");
    // Not by curl: where the answer is there before its upload has begun, 7.88 waits for ever.
    let told = |more: &[&str]| {
        let data = format!("--data={}", call.display());
        let url = format!("http://{}/shop.Shop/Buy", site.weir.address("web"));
        let all = [&["--verbose", "--no-dep", "--timeout=20", &data], more, &[&url]].concat();
        run_tool(&tool("nghttp", "nghttp2-client"), &all, b"", PATIENCE * 3).succeeded().to_owned()
    };
    let kind = "--header=content-type: application/grpc";
    let answer = told(&[kind]);
    assert!(answer.contains(" :status: 200\n") && answer.contains(" grpc-status: 16\n"), "{answer}");
    let answer = told(&[kind, "--header=accept: text/html"]);
    assert!(answer.contains(" grpc-status: 16\n"), "a login page is of no use to it: {answer}");
    assert!(!answer.contains("location"), "{answer}");
}

#[test]
fn a_real_client_of_grpc_calls_a_service_behind_it() {
    let config = CONFIG.replace("[pool.app]", "[pool.app]\nprotocol = \"h2\"");
    let server = free_address();
    let mut command = Command::new(client_program("bin/grpc-interop-server"));
    let _server = Program::start(command.arg(format!("--port={}", server.port())), server);
    // It says by a field of its own that it may.
    let auth = Backend::serving(|_, wire| {
        wire.answers(200, &[("remote-user", "ann")], "");
        After::Keep
    });
    let weir = Setup::of(&config).with("app", server).with("auth", auth.address()).start();
    let port = format!("--server_port={}", weir.address("web").port());
    for case in ["large_unary", "ping_pong", "client_streaming"] {
        let words = ["--server_host=127.0.0.1", &port, &format!("--test_case={case}")];
        run_tool(&client_program("bin/grpc-interop-client"), &words, b"", PATIENCE * 3).succeeded();
    }
    assert!(auth.served() >= 3);
}

/// A service of Python's: HTTP/1.0, closes behind every answer, writes fields its own way.
const PYTHON: &str = r#"
import http.server, sys
class Verify(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.path == "/verify?a=1" and "id=good" in (self.headers["Cookie"] or "") and "Content-Length" not in self.headers
        self.send_response(200 if ok else 403)
        if ok: self.send_header("Remote-User", "bob " + self.headers["X-Forwarded-Uri"] + " " + self.headers["X-Forwarded-Method"])
        self.end_headers()
        self.wfile.write(b"yes" if ok else b"no\n")
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Verify).serve_forever()
"#;

#[test]
fn a_service_in_python_is_asked_by_curl_in_two_versions() {
    let address = free_address();
    let mut python = Command::new(tool("python3", "python3"));
    let _service = Program::start(python.args(["-c", PYTHON, &address.port().to_string()]), address);
    let app = app();
    let weir = Setup::of(CONFIG).with("app", app.address()).with("auth", address).start();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let good = by_curl(&weir, &[version, "--data", "hello", "--cookie", "id=good"], "/cart?x=1");
        assert!(good.ends_with("app 5"), "{good}");
        assert_eq!(app.requests().pop().unwrap().fields.all("remote-user"), ["bob /cart?x=1 POST"]);
        let bad = by_curl(&weir, &[version, "--data", "hello", "--cookie", "id=bad"], "/cart?x=1");
        assert!(bad.contains(" 403") && bad.ends_with("no\n"), "{bad}");
    }
}

#[test]
fn explain_says_who_is_asked_and_what_comes_of_the_answer() {
    let site = Site::start();
    let explained = |path: &str| {
        let url = format!("http://{}{path}", site.weir.address("web"));
        site.weir.command(&["explain", "http", "GET", &url]).stdout
    };
    let text = explained("/");
    for said in [
        "auth     pool auth is asked for GET /verify?…, for at most 20s",
        "remote-user, remote-groups of its answer for the backend; set-cookie of its answer for the client",
        "header   to the backend, of the auth: set remote-user: (what is known of the user)",
        "header   to the client, of the auth: add set-cookie",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    assert!(explained("/said").contains("auth     pool auth"));
    assert!(!explained("/public/x").contains("auth "));
    assert_eq!(site.auth.served(), 0, "nobody is asked for it");
}

#[test]
fn a_reload_begins_to_ask_and_stops() {
    let open = CONFIG
        .replace("[[listener.web.route]]\npath = \"/public/*\"", "[[listener.web.route]]\npath = \"/*\"");
    let mut site = Site::of(&open, verifier());
    let mut client = site.weir.client("web");
    let mut asks = |site: &Site, status| {
        client.sends("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_response().status, status, "{}", site.weir.story());
    };
    asks(&site, 200);
    site.weir.reloads(CONFIG);
    asks(&site, 401);
    site.weir.reloads(&open);
    asks(&site, 200);
}

#[test]
fn clients_are_told_the_fields_that_are_listed_and_no_others() {
    let listed = "user = \"remote-user\"\ncopy_to_client = [\"x-secret\", \"remote-groups\"]";
    let site = Site::of(&CONFIG.replacen("user = \"remote-user\"", listed, 1), verifier());
    let answer = asked(&site.weir, "GET /", &[GOOD]);
    assert_eq!((answer.status, answer.fields.one("x-secret")), (200, Some("of the service")));
    assert_eq!(answer.fields.one("remote-groups"), Some("a, b"));
    assert_eq!((answer.fields.one("remote-user"), answer.fields.all("set-cookie")), (None, vec!["app=1"]));
}
