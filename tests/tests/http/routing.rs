//! Which route takes a request, and what routes do to it (threat D9).

use weir_tests::dialogue::{After, Backend, Response, Setup, Weir};

const ROUTES: &str = r#"
[listener.web]
bind = "@web"

[[listener.web.route]]
host = "canary.example"
header = { x-canary = "1" }
pool = "two"

[[listener.web.route]]
host = ["shop.example", "*.shop.example"]
path = "/api/*"
method = ["GET", "HEAD"]
pool = "two"
rewrite = { prefix = "/v2/" }
set_request_header = { x-from = "weir", x-set = "by-weir" }
set_response_header = { x-served = "weir", server = "hidden" }

[[listener.web.route]]
host = "shop.example"
path = "/old/*"
redirect = { to = "https://shop.example/new$query", status = 301 }

[[listener.web.route]]
host = "plain.example"
redirect = { to = "https://$host$path" }

[[listener.web.route]]
path = "/health"
respond = { status = 200, body = "fine\n" }

[[listener.web.route]]
path = "/teapot"
respond = { status = 418, body = "{\"short\": true}\n", content_type = "application/json" }

[[listener.web.route]]
header = { x-debug = "*" }
host = "shop.example"
respond = { status = 202, body = "debug\n" }

[[listener.web.route]]
host = ["shop.example", "canary.example"]
pool = "one"

[pool.one]
backends = ["@one"]
health = { check = "off" }
[pool.two]
backends = ["@two"]
health = { check = "off" }
"#;

struct Site {
    weir: Weir,
    one: Backend,
    two: Backend,
}

fn site() -> Site {
    let named = |name: &'static str| {
        Backend::serving(move |request, wire| {
            wire.answers(200, &[("x-backend", name), ("server", "inner/1.0")], &request.target);
            After::Keep
        })
    };
    let (one, two) = (named("one"), named("two"));
    let weir = Setup::of(ROUTES).with("one", one.address()).with("two", two.address()).start();
    Site { weir, one, two }
}

impl Site {
    fn asks(&self, method: &str, host: &str, target: &str, fields: &str) -> Response {
        let mut client = self.weir.client("web");
        client.sends(format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{fields}\r\n"));
        client.receives_response_to(method)
    }

    fn backend_for(&self, method: &str, host: &str, target: &str, fields: &str) -> String {
        let response = self.asks(method, host, target, fields);
        response.fields.one("x-backend").map_or_else(|| response.status.to_string(), str::to_owned)
    }
}

#[test]
fn the_first_route_that_matches_host_path_method_and_header_wins() {
    let site = site();
    for (method, host, target, fields, expected) in [
        ("GET", "shop.example", "/", "", "one"),
        ("GET", "shop.example", "/api/x", "", "two"),
        ("HEAD", "shop.example", "/api/x", "", "two"),
        ("GET", "shop.example", "/api", "", "one"),
        ("GET", "shop.example", "/apix", "", "one"),
        ("DELETE", "shop.example", "/api/x", "", "one"),
        ("GET", "a.shop.example", "/api/x", "", "two"),
        ("GET", "a.b.shop.example", "/api/x", "", "two"),
        ("GET", "notshop.example", "/api/x", "", "404"),
        ("GET", "SHOP.Example", "/api/x", "", "two"),
        ("GET", "shop.example:8080", "/api/x", "", "two"),
        ("GET", "shop.example.", "/", "", "404"),
        ("GET", "canary.example", "/", "x-canary: 1\r\n", "two"),
        ("GET", "canary.example", "/", "X-CANARY: 1\r\n", "two"),
        ("GET", "canary.example", "/", "x-canary: 2\r\n", "one"),
        ("GET", "canary.example", "/", "", "one"),
        ("GET", "shop.example", "/", "x-debug: anything\r\n", "202"),
        ("GET", "anything.example", "/health", "", "200"),
    ] {
        let got = site.backend_for(method, host, target, fields);
        // A name with a final dot is the same host (RFC 3986 §3.2.2), so either answer to it is consistent.
        if host.ends_with('.') && got == "one" {
            continue;
        }
        assert_eq!(got, expected, "{method} {host}{target} {fields}");
    }
}

#[test]
fn an_unknown_host_is_answered_404_and_reaches_no_backend() {
    // D9
    let site = site();
    let response = site.asks("GET", "evil.example", "/", "");
    assert!(matches!(response.status, 404 | 421), "{response:?}");
    assert!(!response.text().contains("evil"), "the Host was reflected: {}", response.text());
    assert!(
        response.fields.0.iter().all(|(_, value)| !value.contains("evil")),
        "the Host was reflected: {response:?}"
    );
    assert_eq!(site.one.served() + site.two.served(), 0);
    site.weir.reaches("weir_rejected_total", &[("reason", "no_route")], 1.0);
}

#[test]
fn a_rewrite_replaces_the_matched_prefix_and_keeps_the_rest() {
    let site = site();
    assert_eq!(site.asks("GET", "shop.example", "/api/a/b?c=/api/", "").text(), "/v2/a/b?c=/api/");
    assert_eq!(site.asks("GET", "shop.example", "/api/", "").text(), "/v2/");
    assert_eq!(
        site.asks("GET", "shop.example", "/API/a", "").text(),
        "/API/a",
        "paths are compared with their case"
    );
}

#[test]
fn added_fields_replace_those_of_the_same_name() {
    let site = site();
    let response = site.asks("GET", "shop.example", "/api/x", "x-set: by-client\r\nx-set: again\r\n");
    assert_eq!(response.fields.one("x-served"), Some("weir"));
    assert_eq!(response.fields.all("server"), ["hidden"]);
    let request = site.two.requests().remove(0);
    assert_eq!(request.fields.all("x-set"), ["by-weir"]);
    assert_eq!(request.fields.one("x-from"), Some("weir"));
}

/// A prefix without a slash at its end leaves `../secret` of `/static../secret`, which is no dot segment
/// until it is put behind `/files/`.
#[test]
fn no_rewritten_path_has_a_dot_segment() {
    let backend = Backend::saying("hello");
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        path = "/static*"
        rewrite = { prefix = "/files/" }
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    for target in [
        "/static../secret",
        "/static..",
        "/static.",
        "/static./x",
        "/static%2e%2e/secret",
        "/static..;a/secret",
        "/x/../static../secret?q",
    ] {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let response = client.receives_response();
        for request in backend.requests() {
            let path = request.target.split('?').next().unwrap_or_default();
            assert!(!path.split('/').any(|segment| [".", ".."].contains(&segment)), "{target} became {path}");
        }
        assert_eq!(response.status, 400, "{target}");
        assert!(response.text().contains("path_above_root"), "{target}: {response:?}");
    }
    let mut client = weir.client("web");
    client.sends("GET /static..x/y HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    assert_eq!(backend.requests().pop().expect("a request").target, "/files/..x/y");
}

#[test]
fn a_redirect_fills_in_host_path_and_query() {
    let site = site();
    let response = site.asks("GET", "shop.example", "/old/page?a=b", "");
    assert_eq!(response.status, 301);
    assert_eq!(response.fields.one("location"), Some("https://shop.example/new?a=b"));
    let response = site.asks("POST", "plain.example:80", "/form", "content-length: 0\r\n");
    assert_eq!(response.status, 308);
    // The port is that of another scheme.
    assert_eq!(response.fields.one("location"), Some("https://plain.example/form"));
}

/// A page from another origin may read a 429 only if the answer permits it, as a backend's answer would.
#[test]
fn weirs_own_answers_have_the_fields_that_their_route_adds() {
    let backend = Backend::saying("ok");
    let mut config = r#"
        [listener.web]
        bind = "@web"
        timeout = { backend = "300ms", connect = "300ms" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        [pool.none]
        backends = ["@none"]
        retry = { attempts = 0 }
        health = "off"
    "#
    .to_owned();
    for (path, keys) in [
        ("/denied", "pool = \"app\"\ndeny_method = \"GET\""),
        ("/large", "pool = \"app\"\nbody_limit = \"3B\""),
        (
            "/often",
            "pool = \"app\"\nrate_limit = { rate = \"1/h\", burst = 1, key = \"route\", at = \"origin\" }",
        ),
        ("/down", "pool = \"none\""),
        ("/there", "redirect = { to = \"/here\" }"),
        ("/own", "respond = { status = 503, body = \"own\" }"),
    ] {
        config += &format!(
            "[[listener.web.route]]\npath = \"{path}\"\n{keys}\n\
             set_response_header = {{ access-control-allow-origin = \"*\", cache-control = \"max-age=99\" }}\n"
        );
    }
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let ask = |method: &str, path: &str, fields: &str| {
        let mut client = weir.client("web");
        client.sends(format!("{method} {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
        client.receives_response()
    };
    assert_eq!(ask("GET", "/often", "").status, 200);
    for (method, path, fields, status, is_error) in [
        ("GET", "/denied", "", 403, true),
        ("POST", "/large", "content-length: 4\r\n", 413, true),
        ("GET", "/often", "", 429, true),
        ("GET", "/down", "", 502, true),
        ("OPTIONS", "/down", "max-forwards: 0\r\n", 200, true),
        ("GET", "/there", "", 308, false),
        ("GET", "/own", "", 503, false),
    ] {
        let answer = ask(method, path, fields);
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.fields.all("access-control-allow-origin"), ["*"], "{path}: {answer:?}");
        // An error must not be cached, whatever the route says about its pages.
        let kept = if is_error { "no-store" } else { "max-age=99" };
        assert_eq!(answer.fields.all("cache-control"), [kept], "{path}");
    }
    assert!(ask("GET", "/nowhere", "").fields.all("access-control-allow-origin").is_empty());
}

const TO_HTTPS: &str = r#"
[listener.web]
bind = "@web"
[[listener.web.route]]
path = "/*"
redirect = { to = "https://$host$path" }
"#;

#[test]
fn a_redirect_keeps_the_brackets_of_an_ipv6_host_and_drops_its_port() {
    let weir = Setup::of(TO_HTTPS).start();
    for (host, expected) in [("[2001:db8::1]:8080", "[2001:db8::1]"), ("a.example.:80", "a.example")] {
        let mut client = weir.client("web");
        client.sends(format!("GET /x HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        let response = client.receives_response();
        assert_eq!(response.fields.one("location"), Some(format!("https://{expected}/x").as_str()));
    }
}

#[test]
fn a_redirect_never_reflects_a_host_that_no_route_names() {
    // D9: a route without host that redirects to `$host` takes any Host, so the value must at least be a
    // valid one.
    let weir = Setup::of(TO_HTTPS).start();
    for target in ["/%0d%0aset-cookie:x=y", "//evil.example/%2e%2e", "/a%0ab"] {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: good.example\r\n\r\n"));
        let response = client.receives_response();
        assert!(response.fields.all("set-cookie").is_empty(), "{response:?}");
        if let Some(location) = response.fields.one("location") {
            assert!(location.starts_with("https://good.example/"), "{target}: {location}");
        }
    }
    for host in ["evil.example/@good", "a\\b", "a\"b", "a<script>"] {
        let mut client = weir.client("web");
        client.sends(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        client.receives_status(400);
    }
}

#[test]
fn an_answer_from_the_config_has_its_status_type_and_body() {
    let site = site();
    let response = site.asks("GET", "x.example", "/health", "");
    assert_eq!((response.status, response.text().as_str()), (200, "fine\n"));
    assert!(response.fields.one("content-type").expect("a type").starts_with("text/plain"));
    let response = site.asks("GET", "x.example", "/teapot", "");
    assert_eq!((response.status, response.fields.one("content-type")), (418, Some("application/json")));
    let response = site.asks("HEAD", "x.example", "/health", "");
    assert_eq!((response.status, response.fields.one("content-length")), (200, Some("5")));
    assert_eq!(site.one.served() + site.two.served(), 0);
}

#[test]
fn kept_connections_are_routed_request_by_request() {
    let site = site();
    let mut client = site.weir.client("web");
    for round in 0..20 {
        let (path, expected) = if round % 2 == 0 { ("/", "one") } else { ("/api/x", "two") };
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: shop.example\r\n\r\n"));
        assert_eq!(client.receives_status(200).fields.one("x-backend"), Some(expected));
    }
    assert_eq!((site.one.connections(), site.two.connections()), (1, 1));
}

#[test]
fn a_listener_serves_on_every_address_it_binds() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = ["@first", "@second"]
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#,
    )
    .with("app", backend.address())
    .start();
    for name in ["first", "second"] {
        let mut client = weir.client(name);
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
}
