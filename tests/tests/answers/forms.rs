//! How an error is told to programs: problem details for those that read JSON, the status of a call for gRPC.

use weir_tests::dialogue::{Backend, PATIENCE, Response, Setup, Weir, client_program, curl, run_tool, until};

use super::{asked, in_http2};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
[[listener.web.error_page]]
status = "5xx"
body = "<p>page</p>"
[[listener.web.route]]
path = "/limited"
rate_limit = { rate = "1/h", burst = 1, key = "client_ip" }
respond = { status = 200 }
[[listener.web.route]]
path = "/own/*"
pool = "gone"
[[listener.web.route.error_page]]
status = 503
body = '{"own": true}'
content_type = "application/json"
[[listener.web.route]]
path = ["/gone/*", "/grpc.testing.TestService/*"]
pool = "gone"
[pool.gone]
backends = ["@app"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

fn start() -> (Backend, Weir) {
    let backend = Backend::saying("app");
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    let finished = weir.command(&["drain", "gone", &backend.address().to_string()]);
    assert_eq!(finished.code, 0, "{finished:?}");
    (backend, weir)
}

fn json(answer: &Response) -> serde_json::Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|problem| panic!("{problem}: {answer:?}"))
}

#[test]
fn who_prefers_json_gets_problem_details_and_a_browser_the_page() {
    let (_backend, weir) = start();
    let answer = asked(&weir, "GET /gone/x", &["accept: application/json, text/plain, */*"]);
    assert_eq!((answer.status, answer.fields.one("content-type")), (503, Some("application/problem+json")));
    let problem = json(&answer);
    assert_eq!(problem["type"], "about:blank");
    assert_eq!((&problem["title"], &problem["status"]), (&"Service Unavailable".into(), &503.into()));
    assert_eq!(problem["reason"], "no_backend");
    assert_eq!(problem["request_id"].as_str(), answer.fields.one("x-request-id"));
    assert_eq!(answer.fields.one("retry-after"), Some("1"));
    let browser = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    assert_eq!(asked(&weir, "GET /gone/x", &[browser]).text(), "<p>page</p>");
    assert_eq!(asked(&weir, "GET /own/x", &["accept: application/problem+json"]).text(), r#"{"own": true}"#);
    assert_eq!(asked(&weir, "GET /own/x", &["accept: */*"]).text(), r#"{"own": true}"#);
    // Before any route, with an id that the client chose.
    let fields = ["accept: application/json", "x-request-id: a=b/c"];
    let lost = asked(&weir, "GET /nowhere", &fields);
    assert_eq!(
        (json(&lost)["reason"].as_str(), json(&lost)["request_id"].as_str()),
        (Some("no_route"), Some("a=b/c"))
    );
    let head = asked(&weir, "HEAD /nowhere", &fields);
    assert_eq!(head.fields.one("content-length"), Some(lost.body.len().to_string().as_str()));
    // In HTTP/2, by curl, which reads it as one content.
    let url = format!("http://{}/limited", weir.address("web"));
    assert_eq!(curl(&["--http2-prior-knowledge", &url]), "");
    let limited = in_http2(&weir, &["--header", "accept: application/vnd.api+json"], "/limited");
    assert!(limited.starts_with("HTTP/2 429") && limited.contains("\r\nretry-after: "), "{limited}");
    let content = limited.split("\r\n\r\n").nth(1).unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_str(content).expect("JSON");
    assert_eq!((problem["status"].as_u64(), problem["reason"].as_str()), (Some(429), Some("rate_limited")));
}

#[test]
fn a_grpc_client_is_told_the_status_of_its_call() {
    let (_backend, weir) = start();
    let client = client_program("bin/grpc-interop-client");
    let port = format!("--server_port={}", weir.address("web").port());
    let words = ["--server_host=127.0.0.1", &port, "--test_case=empty_unary"];
    let finished = run_tool(&client, &words, b"", PATIENCE * 3);
    assert_ne!(finished.code, 0, "{finished:?}");
    let said = "code = Unavailable desc = 503 Service Unavailable no_backend";
    assert!(finished.stderr.contains(said), "{}\n{}", finished.stderr, weir.story());
    let line = &weir.lines_of("access.log", 1)[0];
    assert!(line.contains("\"status\":503") && line.contains("\"end\":\"no_backend\""), "{line}");
    let counted = || weir.metric("weir_requests_total", &[("listener", "web"), ("code", "5xx")]);
    until("the counter to say what became of the call", || (counted() >= 1.0).then_some(()));
}

#[test]
fn a_call_that_no_route_takes_gets_trailers_and_nothing_else() {
    let (_backend, weir) = start();
    // Without a body: curl 7.88 waits for ever when the end of the answer comes before it has sent its own.
    let fields = ["--request", "POST", "--header", "content-type: application/grpc+proto"];
    let answer = in_http2(&weir, &fields, "/nowhere");
    assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    for field in ["content-type: application/grpc", "grpc-status: 12", "grpc-message: 404 Not Found no_route"]
    {
        assert!(answer.contains(&format!("\r\n{field}\r\n")), "no {field}: {answer}");
    }
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    // gRPC-Web comes in HTTP/1.1, too.
    let web = asked(&weir, "GET /gone/x", &["content-type: application/grpc-web+proto"]);
    assert_eq!((web.status, web.fields.one("grpc-status")), (200, Some("14")), "{web:?}");
    assert_eq!(web.fields.one("content-type"), Some("application/grpc-web+proto"));
    assert!(web.body.is_empty());
    // What is no call is told as before.
    let other = asked(&weir, "GET /gone/x", &["content-type: application/grpc-like"]);
    assert_eq!((other.status, other.text().as_str()), (503, "<p>page</p>"));
}

#[test]
fn an_error_has_an_id_that_the_log_has_too_also_where_the_head_cannot_be_read() {
    let (_backend, weir) = start();
    let long = "x".repeat(70_000);
    let heads = [
        ("host_mismatch", "GET http://a/ HTTP/1.1\r\nhost: b\r\n\r\n".to_owned(), 400),
        ("host_repeated", "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n".to_owned(), 400),
        ("a bad line", "GET  /\r\n\r\n".to_owned(), 400),
        ("a long target", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414),
        ("a long field", format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"), 431),
    ];
    let mut ids = Vec::new();
    for (name, head, status) in &heads {
        let mut client = weir.client("web");
        let _ = client.tries_to_send(head);
        let answer = client.receives_response();
        assert_eq!(answer.status, *status, "{name}");
        let id = answer.fields.one("x-request-id").unwrap_or_else(|| panic!("{name}: {answer:?}"));
        assert_eq!(id.len(), 32, "{name}: {id}");
        ids.push(id.to_owned());
    }
    let lines = weir.lines_of("access.log", heads.len());
    for id in ids {
        assert!(lines.iter().any(|line| line.contains(&id)), "{id}: {lines:?}");
    }
}
