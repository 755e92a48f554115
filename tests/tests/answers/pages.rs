//! Error pages: which one, of which file, and what becomes of it at a reload.

use weir_tests::dialogue::{Backend, Setup, Weir};

use super::{asked, in_http2};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
[[listener.web.error_page]]
status = [404, "5xx"]
file = "@dir/sorry.html"
[[listener.web.error_page]]
status = "503"
body = "busy"
content_type = "text/plain"
[[listener.web.route]]
path = "/api/*"
pool = "gone"
[[listener.web.route.error_page]]
status = "5xx"
body = "<b>api</b>"
[[listener.web.route]]
path = "/shut/*"
pool = "gone"
[[listener.web.route]]
path = "/refused/*"
pool = "refused"
[[listener.web.route]]
path = "/closed/*"
deny_path = ["/closed/*"]
pool = "gone"
[pool.gone]
backends = ["@app"]
health = { check = "off", passive = "off" }
[pool.refused]
backends = ["@nobody"]
health = { check = "off", passive = "off" }
"#;

const SORRY: &str = "<!doctype html><p>Sorry & <i>good bye</i></p>";

fn start() -> (Backend, Weir) {
    let backend = Backend::saying("app");
    let weir = Setup::of(CONFIG).with("app", backend.address()).with_file("sorry.html", SORRY).start();
    let finished = weir.command(&["drain", "gone", &backend.address().to_string()]);
    assert_eq!(finished.code, 0, "{finished:?}");
    (backend, weir)
}

/// Status, type and content.
fn told(weir: &Weir, path: &str) -> (u16, String, String) {
    let answer = asked(weir, &format!("GET {path}"), &["accept: text/html"]);
    assert_eq!(answer.fields.one("cache-control"), Some("no-store"), "{answer:?}");
    assert!(answer.fields.one("x-request-id").is_some(), "{answer:?}");
    (answer.status, answer.fields.one("content-type").unwrap_or_default().to_owned(), answer.text())
}

fn of(status: u16, content_type: &str, body: &str) -> (u16, String, String) {
    (status, content_type.to_owned(), body.to_owned())
}

#[test]
fn the_page_of_a_route_stands_before_its_listeners_and_a_status_before_its_class() {
    let (_backend, weir) = start();
    let html = "text/html; charset=utf-8";
    assert_eq!(told(&weir, "/nowhere"), of(404, html, SORRY));
    assert_eq!(told(&weir, "/shut/x"), of(503, "text/plain", "busy"));
    assert_eq!(told(&weir, "/api/x"), of(503, html, "<b>api</b>"));
    assert_eq!(told(&weir, "/refused/x"), of(502, html, SORRY));
    let plain = "403 Forbidden denied_path\n";
    assert_eq!(told(&weir, "/closed/x"), of(403, "text/plain; charset=utf-8", plain), "it has no page");
    let retry = asked(&weir, "GET /shut/x", &[]);
    assert_eq!(retry.fields.one("retry-after"), Some("1"), "{retry:?}");
    let explained =
        weir.command(&["explain", "http", "GET", &format!("http://{}/nowhere", weir.address("web"))]);
    assert!(
        explained.stdout.contains("errors   told as a page, text/html; charset=utf-8, 45 bytes"),
        "{explained:?}"
    );
}

#[test]
fn a_page_comes_in_every_version_and_without_content_for_head() {
    let (_backend, weir) = start();
    let mut client = weir.client("web");
    for _ in 0..2 {
        client.sends("HEAD /nowhere HTTP/1.1\r\nhost: a\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n");
        let head = client.receives_response_to("HEAD");
        assert_eq!(head.fields.one("content-length"), Some("45"), "{head:?}");
        assert_eq!(client.receives_status(404).text(), SORRY, "behind the head and nothing else");
    }
    let page = in_http2(&weir, &[], "/nowhere");
    assert!(page.starts_with("HTTP/2 404") && page.contains("\r\ncontent-length: 45\r\n"), "{page}");
    assert!(page.ends_with(&format!("\r\n\r\n{SORRY}")), "{page}");
    let head = in_http2(&weir, &["--head"], "/nowhere");
    assert!(head.contains("\r\ncontent-length: 45\r\n") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn a_reload_reads_the_file_again_and_one_that_vanished_is_named_with_its_line() {
    let (_backend, mut weir) = start();
    std::fs::write(weir.dir().join("sorry.html"), "new").expect("write");
    assert_eq!(told(&weir, "/nowhere").2, SORRY, "what was read is in force");
    let reloaded = weir.command(&["reload"]);
    assert_eq!(reloaded.code, 0, "{reloaded:?}");
    assert!(reloaded.stdout.contains("files of error pages have changed"), "{reloaded:?}");
    assert_eq!(told(&weir, "/nowhere").2, "new");

    std::fs::remove_file(weir.dir().join("sorry.html")).expect("remove");
    for verb in [&["reload"][..], &["check"]] {
        let finished = if verb == ["check"] {
            let words = ["check", &weir.config_path()];
            weir_tests::dialogue::run_tool(
                &weir_tests::dialogue::weir_binary(),
                &words,
                b"",
                weir_tests::dialogue::PATIENCE,
            )
        } else {
            weir.command(verb)
        };
        assert_eq!(finished.code, 2, "{verb:?}: {finished:?}");
        assert!(finished.stderr.contains("weir.toml:7:8: `"), "{verb:?}: {finished:?}");
        assert!(finished.stderr.contains("sorry.html` can't be read"), "{verb:?}: {finished:?}");
    }
    assert_eq!(told(&weir, "/nowhere").2, "new");
    // What does not read the file needs none of its files.
    let body = r#"{"address": "127.0.0.1:9"}"#;
    let added = weir.admin().calls("POST", "/v1/pools/gone/backends", &[], body);
    assert_eq!(added.status(), 201, "{added:?}");
    assert_eq!(told(&weir, "/nowhere").2, "new");

    let large = "x".repeat((1 << 20) + 1);
    std::fs::write(weir.dir().join("sorry.html"), &large).expect("write");
    let finished = weir.command(&["reload"]);
    assert!(finished.stderr.contains("it is longer than 1048576 bytes"), "{finished:?}");
    std::fs::write(weir.dir().join("sorry.html"), &large[1..]).expect("write");
    weir.reloads(CONFIG);
    assert_eq!(told(&weir, "/nowhere").2.len(), 1 << 20);
    std::fs::remove_file(weir.dir().join("sorry.html")).expect("remove");
    std::fs::create_dir(weir.dir().join("sorry.html")).expect("a directory");
    let finished = weir.command(&["reload"]);
    assert!(finished.stderr.contains("it is no regular file"), "{finished:?}");
}
