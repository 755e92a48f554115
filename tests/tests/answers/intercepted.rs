//! Answers of backends that a page takes the place of.

use weir_tests::dialogue::{After, Backend, Setup, Weir, pattern};

use super::{asked, in_http2};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[[listener.web.error_page]]
status = [401, 405, "5xx"]
body = "page"
content_type = "text/plain"
intercept = true
[[listener.web.error_page]]
status = 404
body = "lost"
content_type = "text/plain"
[[listener.web.route]]
path = "/raw/*"
pool = "app"
[[listener.web.route.error_page]]
status = 500
body = "unused"
[[listener.web.route]]
path = "/kept/*"
pool = "app"
cache = { negative_ttl = "60s" }
[[listener.web.route.error_page]]
status = ["404", "5xx"]
body = "kept page"
intercept = true
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

/// Answers with the status that stands last in the path, and secrets.
fn site() -> Backend {
    Backend::serving(|request, wire| {
        let status = request.target.rsplit('/').next().and_then(|text| text.parse().ok()).unwrap_or(200);
        let fields =
            [("www-authenticate", "Basic realm=\"x\""), ("allow", "GET, HEAD"), ("x-powered-by", "secret")];
        let large = request.target.contains("large");
        let body = if large { pattern(1, 3 << 20) } else { b"secret stack trace".to_vec() };
        wire.answers(status, &fields, body);
        After::Keep
    })
}

fn start() -> (Backend, Weir) {
    let backend = site();
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    (backend, weir)
}

fn replaced(weir: &Weir) -> f64 {
    weir.metric("weir_replaced_answers_total", &[("listener", "web")])
}

#[test]
fn a_backends_error_gives_way_to_the_page_and_its_connection_is_kept() {
    let (backend, weir) = start();
    let mut client = weir.client("web");
    for _ in 0..5 {
        client.sends("GET /500 HTTP/1.1\r\nhost: a\r\n\r\n");
        let answer = client.receives_status(500);
        assert_eq!((answer.text().as_str(), answer.fields.one("x-powered-by")), ("page", None));
        assert_eq!(answer.fields.one("cache-control"), Some("no-store"));
    }
    assert_eq!(replaced(&weir), 5.0);
    assert_eq!(backend.connections(), 1, "each answer was there as a whole");
    assert_eq!(
        asked(&weir, "GET /503", &["accept: application/json"]).fields.one("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(asked(&weir, "GET /404", &[]).text(), "secret stack trace", "its page is for Weir's own");
    assert_eq!(
        asked(&weir, "GET /raw/500", &[]).text(),
        "secret stack trace",
        "the route's page stands first"
    );
    assert_eq!(asked(&weir, "GET /raw/502", &[]).text(), "page");
    assert_eq!(asked(&weir, "GET /200", &[]).text(), "secret stack trace");
    let head = asked(&weir, "HEAD /500", &[]);
    assert_eq!(head.fields.one("content-length"), Some("4"), "{head:?}");
    let url = format!("http://{}/raw/x", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.stdout.contains("errors   of backends give way to pages: "), "{explained:?}");
}

#[test]
fn what_the_status_needs_comes_along() {
    let (_backend, weir) = start();
    let answer = asked(&weir, "GET /401", &[]);
    assert_eq!(answer.fields.one("www-authenticate"), Some("Basic realm=\"x\""), "{answer:?}");
    assert_eq!(answer.text(), "page");
    let answer = asked(&weir, "POST /405", &["content-length: 0"]);
    assert_eq!(answer.fields.one("allow"), Some("GET, HEAD"), "{answer:?}");
    let answer = in_http2(&weir, &[], "/401");
    assert!(
        answer.contains("\r\nwww-authenticate: Basic realm=\"x\"\r\n") && answer.ends_with("page"),
        "{answer}"
    );
}

#[test]
fn a_long_error_and_a_long_upload_end_early_and_the_client_gets_its_page() {
    let (backend, weir) = start();
    let mut client = weir.client("web");
    client.sends("GET /large/500 HTTP/1.1\r\nhost: a\r\n\r\nGET /200 HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(500).text(), "page");
    assert_eq!(client.receives_status(200).text(), "secret stack trace", "the client's connection goes on");
    // A backend that answers before it has the content: what the client still sends is not read for ever.
    let early = Backend::serving(|_, wire| {
        wire.answers(500, &[], "early");
        After::Close
    });
    let mut weir = weir;
    weir.knows("app", early.address());
    weir.reloads(CONFIG);
    let mut client = weir.client("web");
    client.sends("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
    client.sends(pattern(2, 100_000));
    assert_eq!(client.receives_status(500).text(), "page");
    assert!(backend.served() >= 2);
}

#[test]
fn what_is_kept_gives_way_too() {
    let (backend, weir) = start();
    for _ in 0..3 {
        assert_eq!(asked(&weir, "GET /kept/404", &[]).text(), "kept page");
        assert_eq!(asked(&weir, "GET /kept/502", &[]).text(), "kept page");
    }
    assert_eq!(backend.requests().iter().filter(|it| it.target == "/kept/404").count(), 1, "it is kept");
    assert_eq!(replaced(&weir), 6.0);
    assert_eq!(asked(&weir, "GET /kept/410", &[]).text(), "secret stack trace");
}
