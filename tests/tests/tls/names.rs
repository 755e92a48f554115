//! Connections that are passed on by the name that their clients ask for, and what is logged of them.

use weir_tests::dialogue::{Setup, Weir, free_address};

use super::s_client;

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
