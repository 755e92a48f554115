//! Weir's own answers have the fields that rules say, and stay what they are.

use weir_tests::dialogue::{Backend, Response, Setup, Weir, free_address};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
set_response_header = { strict-transport-security = "max-age=63072000", x-host = "$host" }
limits = { header = "4KiB" }

[[listener.web.route]]
path = "/redirect"
redirect = { to = "https://$host/$query.next?via=$header.x-odd", status = 302 }
[[listener.web.route]]
path = "/respond"
respond = { status = 200, body = "fine\n" }
set_response_header = { x-route = "$path" }
remove_response_header = ["date"]
[[listener.web.route]]
path = "/denied"
deny_method = ["GET"]
pool = "down"
[[listener.web.route]]
path = "/limited"
rate_limit = { rate = "1/h", burst = 1, at = "edge" }
pool = "down"
[[listener.web.route]]
path = "/small"
body_limit = "1B"
pool = "down"
[[listener.web.route]]
path = "/down"
pool = "down"
set_response_header = { content-type = "text/html", cache-control = "max-age=9", retry-after = "9" }

[pool.down]
backends = ["@down"]
health = { check = "off", passive = "off" }
retry = { attempts = 0 }
set_response_header = { x-pool = "down" }
"#;

fn site() -> Weir {
    Setup::of(CONFIG).with("down", free_address()).start()
}

fn answered(weir: &Weir, request: &str, status: u16) -> Response {
    let mut client = weir.client("web");
    client.sends(request);
    let response = client.receives_response();
    assert_eq!(response.status, status, "{request}");
    let fields = &response.fields;
    assert_eq!(fields.all("strict-transport-security"), ["max-age=63072000"], "{request}");
    response
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: shop.example:80\r\n\r\n")
}

#[test]
fn every_answer_of_weirs_own_has_the_fields_of_its_listener() {
    let weir = site();
    for (path, status) in
        [("/none", 404), ("/denied", 403), ("/redirect", 302), ("/respond", 200), ("/down", 502)]
    {
        let response = answered(&weir, &get(path), status);
        assert_eq!(response.fields.one("x-host"), Some("shop.example"), "{path}");
    }
    let statuses: Vec<u16> = (0..2)
        .map(|_| {
            let mut client = weir.client("web");
            client.sends(get("/limited"));
            let response = client.receives_response();
            assert!(response.fields.one("strict-transport-security").is_some());
            response.status
        })
        .collect();
    assert_eq!(statuses, [502, 429]);
    let large = "POST /small HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    assert_eq!(answered(&weir, large, 413).fields.one("x-host"), Some("a"));
    // Of a head that can't be read nothing is said.
    let broken = answered(&weir, "GET / HTTP/1.1\r\nhost: a\r\nx-host: b\r\nbad\r\n\r\n", 400);
    assert!(broken.fields.one("x-host").is_none(), "{:?}", broken.fields);
}

#[test]
fn an_answer_in_place_of_a_pool_has_the_fields_of_that_pool() {
    let weir = site();
    for (request, status) in [
        (get("/down"), 502),
        (get("/denied"), 403),
        ("POST /small HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello".to_owned(), 413),
    ] {
        assert_eq!(answered(&weir, &request, status).fields.all("x-pool"), ["down"], "{request}");
    }
    assert!(answered(&weir, &get("/none"), 404).fields.all("x-pool").is_empty());
}

#[test]
fn rules_do_not_change_what_an_error_is() {
    let response = answered(&site(), &get("/down"), 502);
    assert_eq!(response.fields.all("content-type"), ["text/plain; charset=utf-8"]);
    assert_eq!(response.fields.all("cache-control"), ["no-store"]);
    assert!(response.text().contains("502"), "{}", response.text());
}

#[test]
fn fields_of_a_routes_own_answer_are_set_and_taken_out() {
    let response = answered(&site(), &get("/respond"), 200);
    assert_eq!(response.fields.all("x-route"), ["/respond"]);
    assert!(response.fields.all("date").is_empty());
    assert_eq!(response.text(), "fine\n");
}

#[test]
fn a_redirect_is_filled_in_and_holds_nothing_that_is_no_uri() {
    let weir = site();
    let request = "GET /redirect?next=a%0d%0ab HTTP/1.1\r\nhost: shop.example\r\nx-odd: \"<a b>\"\r\n\r\n";
    let response = answered(&weir, request, 302);
    assert_eq!(response.fields.all("location"), ["https://shop.example/a%0d%0ab?via=%22%3Ca%20b%3E%22"]);
}

#[test]
fn errors_of_a_backend_have_the_fields_too() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(500, &[("server", "inner")], "broken");
        weir_tests::dialogue::After::Keep
    });
    let rules = "pool = \"app\"\nset_response_header = { x-frame-options = \"DENY\" }\nremove_response_header = [\"server\"]";
    let weir = super::before(&backend, rules, "");
    let response = super::ask(&weir, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!((response.status, response.fields.one("x-frame-options")), (500, Some("DENY")));
    assert!(response.fields.one("server").is_none());
}
