//! Connections that are passed on by the name that their clients ask for: where they go, what `weir explain`
//! says of it, and what is logged.

use serde_json::Value;
use weir_tests::dialogue::{Finished, Setup, Weir, free_address};

use super::{Authority, LAST, curl, mirror, s_client};

/// `routed` has routes alone, `both` a pool of its own besides.
const CONFIG: &str = r#"
[log]
access = "@dir/access.log"
[access_log.names]
target = "@dir/names.log"
line = "$listener $server_name $end"
[listener.routed]
protocol = "tcp"
bind = "@routed"
[[listener.routed.route]]
name = "shop"
sni = ["shop.example", "*.shop.example"]
pool = "shop"
timeout = { tunnel = "7m" }
[[listener.routed.route]]
name = "news"
sni = "news.example"
pool = "news"
[listener.both]
protocol = "tcp"
bind = "@both"
pool = "rest"
timeout = { connect = "9s" }
[[listener.both.route]]
name = "shop"
sni = "shop.example"
pool = "shop"
[pool.shop]
backends = ["@app"]
health = "off"
[pool.news]
backends = ["@app"]
health = "off"
[pool.rest]
backends = ["@app"]
health = "off"
timeout = { tunnel = "5m" }
"#;

/// Nobody is behind it: what is passed on ends at once.
fn start() -> Weir {
    Setup::of(CONFIG).with("app", free_address()).start()
}

fn explained(weir: &Weir, listener: &str, more: &[&str]) -> Finished {
    let address = weir.address(listener).to_string();
    weir.command(&[&["explain", "tcp", "127.0.0.1:1", &address], more].concat())
}

#[test]
fn explain_says_of_each_name_what_the_data_path_does_with_it() {
    let weir = start();
    let mut asked = 0;
    for listener in ["routed", "both"] {
        for name in ["shop.example", "SHOP.example", "a.shop.example", "news.example", "other.example", ""] {
            let words = match name {
                "" => "-noservername".to_owned(),
                name => format!("-servername {name}"),
            };
            s_client(weir.address(listener), &words, "");
            asked += 1;
            let lines = weir.lines_of("access.log", asked);
            let line: Value = serde_json::from_str(&lines[asked - 1]).expect("JSON");
            let more: &[&str] =
                if name.is_empty() { &["--json"] } else { &["--json", "--server-name", name] };
            let said: Value = serde_json::from_str(&explained(&weir, listener, more).stdout).expect("JSON");
            let taken =
                said["routes"].as_array().expect("routes").iter().find(|route| route["taken"] == true);
            let taken = taken.map(|route| &route["route"]).filter(|route| **route != "(default)");
            assert_eq!(taken, line.get("route"), "{listener} {name}: {said} {line}");
            assert_eq!(said.pointer("/pool/pool"), line.get("pool"), "{listener} {name}: {said} {line}");
            assert_eq!(said.get("refusal").is_some(), line["end"] == "no_route", "{listener} {name}: {said}");
        }
    }
}

#[test]
fn explain_tells_the_routes_what_a_client_without_a_name_gets_and_the_timers_of_the_route() {
    let weir = start();
    let of_shop = explained(&weir, "routed", &["--server-name", "shop.example"]).succeeded().to_owned();
    for line in [
        "name     shop.example; a client that asks for none: refuse, no_route\n",
        " * route shop: sni matched\n",
        "   route news: not looked at: an earlier route took it\n",
        "action   forward to pool shop\n",
        "timer    tunnel 7m, of the route\n",
    ] {
        assert!(of_shop.contains(line), "{line}: {of_shop}");
    }
    let nameless = explained(&weir, "routed", &[]).succeeded().to_owned();
    for line in [
        "   route news: the client asks for no server name, and not for `news.example`\n",
        "   route (default): the listener has no pool of its own: the connection is closed\n",
        "action   refuse, no_route\n",
    ] {
        assert!(nameless.contains(line), "{line}: {nameless}");
    }
    let other = explained(&weir, "both", &["--server-name", "other.example"]).succeeded().to_owned();
    for line in [
        "name     other.example; a client that asks for none: forward to pool rest\n",
        "   route shop: server name `other.example` is not `shop.example`\n",
        " * route (default): no route took it: the listener's own pool does\n",
        "timer    connect 9s, of the listener\n",
        "timer    tunnel 5m, of the pool\n",
    ] {
        assert!(other.contains(line), "{line}: {other}");
    }
    let wrong = explained(&weir, "both", &["--server-name", "a b"]);
    assert!(wrong.code != 0 && wrong.stderr.contains("expected one such as shop.example"), "{wrong:?}");
}

#[test]
fn the_name_that_was_read_is_in_the_line_whether_a_route_has_it_or_not() {
    let weir = start();
    s_client(weir.address("routed"), "-servername A.shop.example", "");
    s_client(weir.address("routed"), "-servername other.example", "");
    s_client(weir.address("both"), "-noservername", "");
    let mut own = weir.lines_of("names.log", 3);
    own.sort();
    assert_eq!(
        own,
        ["both - connect_failed", "routed a.shop.example connect_failed", "routed other.example no_route"]
    );
    let lines = weir.lines_of("access.log", 3).join("\n");
    assert!(
        lines.contains(r#""route":"shop""#) && lines.contains(r#""server_name":"a.shop.example""#),
        "{lines}"
    );
    assert!(lines.contains(r#""server_name":"other.example""#), "{lines}");
    assert_eq!(lines.matches("server_name").count(), 2, "{lines}");
}

/// Listeners that terminate TLS, one whose certificate is not there yet, and one without TLS.
const SERVED: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[listener.web.tls]
certificates = [
    { cert = "@dir/first.pem", key = "@dir/first.key" },
    { cert = "@dir/shop.pem", key = "@dir/shop.key" },
    { cert = "@dir/shoprsa.pem", key = "@dir/shoprsa.key" },
]
[listener.opened]
protocol = "tcp"
bind = "@opened"
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[listener.ordered]
bind = "@ordered"
pool = "app"
[listener.ordered.tls.acme]
directory = "https://127.0.0.1:1/directory"
domains = ["a.example"]
contact = "mailto:ops@a.example"
store = "@dir/store"
[listener.plain]
bind = "@plain"
pool = "app"
[pool.app]
backends = ["@app"]
health = "off"
"#;

#[test]
fn explain_says_which_certificate_is_shown_or_that_the_handshake_is_refused_and_warns_of_another_scheme() {
    let backend = mirror();
    let authority = Authority::new()
        .signs("first", &["first.example"])
        .signs("shop", &["shop.example"])
        .signs_with("shoprsa", &["shop.example"], "rsa:2048", 30);
    let weir = authority.setup(SERVED).with("app", backend.address()).start();
    let ask = |scheme: &str, listener: &str, host: &str| {
        let url = format!("{scheme}://{host}:{}/", weir.address(listener).port());
        weir.command(&["explain", "http", "GET", &url, "--listener", listener]).succeeded().to_owned()
    };
    let tls = |said: &str| said.lines().find(|line| line.starts_with("tls ")).unwrap_or_default().to_owned();
    let warnings = |said: &str| said.matches("\nwarning ").count();
    for (host, shown) in [("shop.example", "shop"), ("SHOP.example", "shop"), ("other.example", "first")] {
        let by_data_path = s_client(weir.address("web"), &format!("-servername {host}"), LAST).stdout;
        assert!(by_data_path.contains(&format!("subject=CN = {shown}\n")), "{host}: {by_data_path}");
        let said = ask("https", "web", host);
        assert!(tls(&said).contains(&format!("/{shown}.pem ({shown}.example)")), "{host}: {said}");
        assert_eq!(tls(&said).contains(&format!("none is for {host}")), shown == "first", "{host}: {said}");
        assert_eq!(tls(&said).contains("shoprsa.pem"), shown == "shop", "{host}: {said}");
        assert_eq!(warnings(&said), 0, "{said}");
    }
    let nameless = ask("https", "web", "127.0.0.1");
    assert!(tls(&nameless).ends_with("first.pem (first.example): the client asks for no name"), "{nameless}");
    let opened = explained(&weir, "opened", &["--server-name", "shop.example"]).succeeded().to_owned();
    assert!(tls(&opened).ends_with("/shop.pem (shop.example)"), "{opened}");

    let refused = ask("https", "ordered", "a.example");
    assert_ne!(curl(&weir, "ordered", "a.example", &["--insecure"]).code, 0);
    assert!(
        tls(&refused).ends_with("the handshake is refused: the listener has no certificate yet"),
        "{refused}"
    );
    assert!(refused.contains("warning  the TLS handshake is refused"), "{refused}");

    let in_the_clear = ask("http", "web", "shop.example");
    assert!(in_the_clear.contains("warning  listener web speaks TLS"), "{in_the_clear}");
    let over_tls = ask("https", "plain", "shop.example");
    assert!(over_tls.contains("warning  listener plain has no `tls`"), "{over_tls}");
    assert!(tls(&over_tls).is_empty(), "{over_tls}");
    assert_eq!(warnings(&ask("http", "plain", "shop.example")), 0);
}
