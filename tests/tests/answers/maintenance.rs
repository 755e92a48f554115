//! Maintenance as a switch.

use weir_tests::dialogue::{Backend, NO_HEALTH, Setup, Signal, Weir, one_pool, until};

use super::{asked, in_http2};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
trusted_proxies = ["127.0.0.1"]
[listener.web.maintenance]
allow = ["10.1.0.0/16"]
retry_after = "10m"
file = "@dir/closed.html"
[[listener.web.error_page]]
status = 503
body = "error page"
[[listener.web.route]]
name = "shop"
path = "/shop/*"
pool = "shop"
maintenance = { body = "shop is shut" }
[[listener.web.route]]
name = "own"
path = "/own"
respond = { status = 200, body = "own" }
[listener.other]
bind = "@other"
pool = "app"
[[listener.other.error_page]]
status = 503
body = "other page"
[listener.raw]
protocol = "tcp"
bind = "@raw"
pool = "app"
[pool.app]
backends = ["@app"]
health = "off"
[pool.shop]
backends = ["@app"]
health = "off"
[listener.flows]
protocol = "udp"
bind = "@flows"
pool = "datagrams"
[pool.datagrams]
backends = ["@app"]
health = "off"
[pool.unused]
backends = ["@app"]
health = "off"
[log]
access = "@dir/access.log"
"#;

fn start() -> (Backend, Weir) {
    let backend = Backend::saying("app");
    let weir =
        Setup::of(CONFIG).with("app", backend.address()).with_file("closed.html", "<p>closed</p>").start();
    (backend, weir)
}

/// Runs `weir maintenance …` and gives what it prints.
fn maintenance(weir: &Weir, words: &[&str]) -> String {
    let mut all = vec!["maintenance"];
    all.extend(words);
    let finished = weir.command(&all);
    assert_eq!(finished.code, 0, "{words:?}: {finished:?}");
    finished.stdout.trim().to_owned()
}

fn text(weir: &Weir, path: &str) -> String {
    asked(weir, &format!("GET {path}"), &[]).text()
}

fn of_other(weir: &Weir) -> String {
    let mut client = weir.client("other");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_response().text()
}

#[test]
fn a_listener_a_route_and_a_pool_are_switched_off_and_on() {
    let (backend, weir) = start();
    assert_eq!(maintenance(&weir, &[]), "nothing is in maintenance");
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "app");
    assert_eq!(maintenance(&weir, &["on", "--listener", "web"]), "in maintenance: listener web");
    let served = backend.served();
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /shop/x HTTP/1.1\r\nhost: a\r\n\r\n");
    let closed = client.receives_status(503);
    assert_eq!((closed.text().as_str(), closed.fields.one("retry-after")), ("<p>closed</p>", Some("600")));
    assert_eq!(closed.fields.one("cache-control"), Some("no-store"));
    let shop = client.receives_status(503);
    assert_eq!((shop.text().as_str(), shop.fields.one("retry-after")), ("shop is shut", Some("300")));
    assert_eq!(text(&weir, "/own"), "<p>closed</p>");
    let problem = asked(&weir, "GET /", &["accept: application/json"]);
    assert!(problem.text().contains("\"reason\":\"maintenance\""), "{problem:?}");
    let grpc = in_http2(&weir, &["--header", "content-type: application/grpc"], "/");
    assert!(grpc.contains("\r\ngrpc-status: 14\r\n"), "{grpc}");
    assert_eq!(backend.served(), served, "nothing reached it");
    assert_eq!(of_other(&weir), "app");
    assert_eq!(weir.metric("weir_rejected_total", &[("listener", "web"), ("reason", "maintenance")]), 5.0);
    assert!(weir.lines_of("access.log", 2)[1].contains("\"end\":\"maintenance\""));
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("action   refuse 503, maintenance of listener web"), "{explained}");
    assert!(explained.contains("told as a page, text/html; charset=utf-8, 13 bytes"), "{explained}");
    assert!(weir.command(&["status"]).stdout.contains("in maintenance: listener web"));

    maintenance(&weir, &["on", "--route", "shop"]);
    maintenance(&weir, &["off", "--listener", "web"]);
    assert_eq!((text(&weir, "/"), text(&weir, "/shop/x")), ("app".to_owned(), "shop is shut".to_owned()));
    maintenance(&weir, &["off"]);
    maintenance(&weir, &["on", "--pool", "app"]);
    assert_eq!((text(&weir, "/"), text(&weir, "/shop/x")), ("<p>closed</p>".to_owned(), "app".to_owned()));
    assert_eq!(of_other(&weir), "other page", "without a page of its own, maintenance shows the error page");
    maintenance(&weir, &["off", "--pool", "app"]);
    maintenance(&weir, &["on"]);
    assert_eq!((text(&weir, "/own"), of_other(&weir)), ("<p>closed</p>".to_owned(), "other page".to_owned()));
    assert_eq!(maintenance(&weir, &["off"]), "nothing is in maintenance");
    assert_eq!((text(&weir, "/"), of_other(&weir)), ("app".to_owned(), "app".to_owned()));
}

#[test]
fn networks_that_are_allowed_get_through_by_the_address_that_a_trusted_proxy_says() {
    let (_backend, weir) = start();
    maintenance(&weir, &["on"]);
    let from = |address: &str| asked(&weir, "GET /", &[&format!("x-forwarded-for: {address}")]).status;
    assert_eq!([from("10.1.2.3"), from("10.2.2.3"), from("192.0.2.1")], [200, 503, 503]);
    let shop = asked(&weir, "GET /shop/x", &["x-forwarded-for: 10.1.2.3"]);
    assert_eq!(shop.status, 503, "the route's own table allows nobody");
}

/// It is in none of them as long as it is treated as an IPv6 address.
#[test]
fn a_client_of_ipv4_that_a_header_names_as_one_of_ipv6_is_in_the_networks_of_ipv4() {
    let backend = Backend::saying("app");
    let weir = Setup::of(&one_pool(
        r#"
        accept_proxy = ["127.0.0.1"]
        trusted_proxies = ["192.0.2.0/24", "::ffff:203.0.113.0/120"]
        maintenance = { allow = ["10.1.0.0/16"] }
        "#,
        NO_HEALTH,
    ))
    .with("app", backend.address())
    .start();
    maintenance(&weir, &["on"]);
    let from = |header: &str, field: &str| {
        let mut wire = weir.client("web");
        wire.sends(format!("PROXY {header} 5555 80\r\nGET / HTTP/1.1\r\nhost: a\r\n{field}\r\n"));
        wire.receives_response().status
    };
    assert_eq!(from("TCP4 10.1.2.3 192.0.2.80", ""), 200);
    assert_eq!(from("TCP6 ::ffff:10.1.2.3 ::ffff:192.0.2.80", ""), 200, "`allow` of maintenance");
    assert_eq!(from("TCP6 ::ffff:10.2.2.3 ::ffff:192.0.2.80", ""), 503);
    let told = "x-forwarded-for: 10.1.2.3\r\n";
    assert_eq!(from("TCP4 192.0.2.9 192.0.2.80", told), 200);
    assert_eq!(from("TCP6 ::ffff:192.0.2.9 ::ffff:192.0.2.80", told), 200, "`trusted_proxies`");
    assert_eq!(from("TCP4 203.0.113.9 192.0.2.80", told), 200, "an IPv4 entry written as IPv6");
    assert_eq!(from("TCP6 ::ffff:198.51.100.9 ::ffff:192.0.2.80", told), 503);
}

#[test]
fn names_that_are_not_there_are_refused_and_the_api_says_what_is_off() {
    let (_backend, weir) = start();
    for (body, code) in [
        (r#"{"state": "on", "listener": "wep"}"#, 400),
        (r#"{"state": "on", "listener": "raw"}"#, 400),
        (r#"{"state": "on", "route": "nowhere"}"#, 400),
        (r#"{"state": "on", "listener": "other", "route": "shop"}"#, 400),
        (r#"{"state": "on", "pool": "nowhere"}"#, 404),
        (r#"{"state": "on", "pool": "app", "listener": "web"}"#, 400),
        (r#"{"state": "on", "pool": "datagrams"}"#, 400),
        (r#"{"state": "on", "pool": "unused"}"#, 400),
        (r#"{"state": "broken"}"#, 400),
        (r#"{"state": "on", "spool": "app"}"#, 400),
    ] {
        let answer = weir.admin().calls("POST", "/v1/maintenance", &[], body);
        assert_eq!(answer.status(), code, "{body}: {answer:?}");
    }
    let body = r#"{"state": "on", "listener": "web", "route": "shop"}"#;
    assert_eq!(weir.admin().calls("POST", "/v1/maintenance", &[], body).status(), 200);
    let shown = weir.admin().reads("/v1/maintenance").json();
    assert_eq!(shown["maintenance"], serde_json::json!([{ "listener": "web", "route": "shop" }]));
    assert_eq!(weir.admin().reads("/v1/status").json()["maintenance"][0], "route shop of web");
    let finished = weir.command(&["maintenance", "on", "--pool", "app", "--listener", "web"]);
    assert_eq!(finished.code, 2, "{finished:?}");
}

/// As soon as a route is inserted before it, its position belongs to another route, which the switch would
/// then apply to.
#[test]
fn a_route_without_a_name_of_its_own_is_refused() {
    let (_backend, mut weir) = start();
    let unnamed = CONFIG.replace("name = \"own\"\n", "");
    weir.reloads(&unnamed);
    for words in [&["--listener", "web", "--route", "web/1"][..], &["--route", "web/1"]] {
        let refused = weir.command(&[&["maintenance", "on"], words].concat());
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.stderr.contains("`web/1` has no name of its own"), "{refused:?}");
        assert!(refused.stderr.contains("give it a `name`"), "{refused:?}");
    }
    let body = r#"{"state": "on", "listener": "web", "route": "web/1"}"#;
    assert_eq!(weir.admin().calls("POST", "/v1/maintenance", &[], body).status(), 400);
    assert_eq!(maintenance(&weir, &[]), "nothing is in maintenance");
    // A route with a name is followed by that name.
    maintenance(&weir, &["on", "--listener", "web", "--route", "shop"]);
    let first =
        "[[listener.web.route]]\npath = \"/first\"\npool = \"app\"\n[[listener.web.route]]\nname = \"shop\"";
    weir.reloads(&unnamed.replace("[[listener.web.route]]\nname = \"shop\"", first));
    assert_eq!(
        (text(&weir, "/first"), text(&weir, "/shop/x")),
        ("app".to_owned(), "shop is shut".to_owned())
    );
}

#[test]
fn a_pool_is_closed_to_requests_alone_and_the_switch_says_whom_it_does_not_touch() {
    let (_backend, weir) = start();
    let refused = weir.command(&["maintenance", "on", "--pool", "datagrams"]);
    assert_ne!(refused.code, 0, "{refused:?}");
    let why = "no listener that speaks http uses pool `datagrams`, but `flows`, which speaks udp";
    assert!(refused.stderr.contains(why), "{refused:?}");
    assert_eq!(maintenance(&weir, &[]), "nothing is in maintenance");

    let said = maintenance(&weir, &["on", "--pool", "app"]);
    assert_eq!(said, "in maintenance: pool app (not for listener raw, which speaks tcp)");
    assert_eq!(text(&weir, "/"), "<p>closed</p>");
    let mut raw = weir.client("raw");
    raw.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert_eq!(raw.receives_status(200).text(), "app", "connections are passed on");
    let explained = weir.command(&["explain", "tcp", "127.0.0.1:1", &weir.address("raw").to_string()]).stdout;
    let action = "action   forward to pool app, whose maintenance is for requests alone\n";
    assert!(explained.contains(action), "{explained}");
    let shown = weir.admin().reads("/v1/maintenance").json();
    let untouched = serde_json::json!([{ "listener": "raw", "protocol": "tcp" }]);
    assert_eq!(shown["maintenance"], serde_json::json!([{ "pool": "app", "untouched": untouched }]));
    let status = weir.command(&["status"]).stdout;
    assert!(status.contains("in maintenance: pool app (not for listener raw, which speaks tcp)"), "{status}");
    assert_eq!(maintenance(&weir, &["on", "--pool", "shop"]), format!("{said}, pool shop"));
}

#[test]
fn it_outlives_a_reload_and_an_upgrade_and_a_listener_that_is_gone() {
    let (_backend, mut weir) = start();
    maintenance(&weir, &["on", "--pool", "shop"]);
    maintenance(&weir, &["on", "--listener", "other"]);
    std::fs::write(weir.dir().join("closed.html"), "new page").expect("write");
    weir.reloads(&CONFIG.replace("shop is shut", "still shut"));
    assert_eq!((text(&weir, "/shop/x"), of_other(&weir)), ("still shut".to_owned(), "other page".to_owned()));
    let old = weir.pid();
    weir.signals(Signal::USR2);
    until("the new process to serve alone", || match *weir.pids() {
        [pid] if pid != old => Some(()),
        _ => None,
    });
    until("the new process to answer", || weir.admin().tries_to_read("/readyz").map(|_| ()));
    assert_eq!((text(&weir, "/shop/x"), text(&weir, "/")), ("still shut".to_owned(), "app".to_owned()));
    assert_eq!(of_other(&weir), "other page");
    let gone = CONFIG.find("[listener.other]").expect("it is there");
    let end = CONFIG.find("[listener.raw]").expect("it is there");
    weir.reloads(&[&CONFIG[..gone], &CONFIG[end..]].concat());
    maintenance(&weir, &["off", "--listener", "other"]);
    assert_eq!(maintenance(&weir, &["off", "--pool", "shop"]), "nothing is in maintenance");
    assert_eq!(text(&weir, "/shop/x"), "app");
}

/// Pools that get requests in other ways than from a route: by mirroring, forward authentication and
/// fallback.
const BESIDE: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
trusted_proxies = ["127.0.0.1"]
pool = "app"
[listener.web.maintenance]
allow = ["10.1.0.0/16"]
retry_after = "7m"
[[listener.web.route]]
path = "/copied"
pool = "last"
mirror = { pool = "shadow" }
[[listener.web.route]]
path = "/asked"
pool = "last"
auth = { forward = { pool = "login", path = "/verify" } }
[pool.app]
backends = ["@app"]
health = "off"
fallback_pool = "sorry"
[pool.sorry]
backends = ["@sorry"]
health = "off"
fallback_pool = "last"
[pool.last]
backends = ["@last"]
health = "off"
[pool.shadow]
backends = ["@shadow"]
health = "off"
[pool.login]
backends = ["@login"]
health = "off"
"#;

const NAMES: [&str; 5] = ["app", "sorry", "last", "shadow", "login"];

fn start_beside() -> ([Backend; 5], Weir) {
    let backends = NAMES.map(Backend::saying);
    let mut setup = Setup::of(BESIDE);
    for (name, backend) in NAMES.into_iter().zip(&backends) {
        setup = setup.with(name, backend.address());
    }
    let weir = setup.start();
    (backends, weir)
}

const ALLOWED: &[&str] = &["x-forwarded-for: 10.1.2.3"];

#[test]
fn a_fallback_in_maintenance_gets_nothing_and_the_next_one_serves() {
    let (backends, weir) = start_beside();
    let [app, sorry, ..] = &backends;
    assert_eq!(weir.command(&["drain", "app", &app.address().to_string()]).code, 0);
    assert_eq!(text(&weir, "/"), "sorry");
    maintenance(&weir, &["on", "--pool", "sorry"]);
    assert_eq!(text(&weir, "/"), "last");
    assert_eq!(sorry.served(), 1);
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("forward to pool last, the fallback"), "{explained}");
    assert_eq!(asked(&weir, "GET /", ALLOWED).text(), "sorry", "a client that is allowed is still served");
    maintenance(&weir, &["on", "--pool", "last"]);
    assert_eq!(asked(&weir, "GET /", &[]).status, 503, "there is no other");
    maintenance(&weir, &["off"]);
    assert_eq!(text(&weir, "/"), "sorry");
}

#[test]
fn no_copies_are_made_for_a_pool_in_maintenance() {
    let (backends, weir) = start_beside();
    let [.., shadow, _] = &backends;
    let reaches = |result: &str, least: f64| {
        weir.reaches("weir_mirrored_requests_total", &[("listener", "web"), ("result", result)], least);
    };
    assert_eq!(text(&weir, "/copied"), "last");
    reaches("answered", 1.0);
    maintenance(&weir, &["on", "--pool", "shadow"]);
    for _ in 0..3 {
        assert_eq!(text(&weir, "/copied"), "last", "the request itself goes on");
    }
    reaches("maintenance", 3.0);
    assert_eq!(shadow.served(), 1);
    maintenance(&weir, &["off"]);
    assert_eq!(text(&weir, "/copied"), "last");
    reaches("answered", 2.0);
}

#[test]
fn a_service_in_maintenance_is_not_asked_and_lets_nobody_pass() {
    let (backends, weir) = start_beside();
    let [_, _, last, _, login] = &backends;
    assert_eq!((text(&weir, "/asked"), login.served()), ("last".to_owned(), 1));
    maintenance(&weir, &["on", "--pool", "login"]);
    let closed = asked(&weir, "GET /asked", &[]);
    assert_eq!((closed.status, closed.fields.one("retry-after")), (503, Some("420")));
    assert_eq!((last.served(), login.served()), (1, 1));
    let url = format!("http://{}/asked", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("maintenance of pool login"), "{explained}");
    assert_eq!(
        asked(&weir, "GET /asked", ALLOWED).text(),
        "last",
        "a client that is allowed is still checked"
    );
    assert_eq!(login.served(), 2);
    maintenance(&weir, &["off"]);
    assert_eq!(text(&weir, "/asked"), "last");
}
