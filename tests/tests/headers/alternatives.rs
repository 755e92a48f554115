//! `alt-svc` of backends, which speaks of a host and port that are not theirs here (RFC 7838 section 3).

use weir_tests::dialogue::{After, Authority, Backend, Weir};

use crate::tls::curl;

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
[[listener.web.route]]
path = "/kept"
pool = "app"
cache = { ttl = "60s" }
[[listener.web.route]]
path = "/ours"
pool = "app"
set_response_header = { alt-svc = "h2=\"alt.example:443\"" }
[[listener.web.route]]
pool = "app"
[listener.new]
bind = "@new"
http = ["h1", "h2", "h3"]
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
pool = "app"
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// A backend that has an HTTP/3 of its own, and says so in each way there is.
fn backend() -> Backend {
    Backend::serving(|_, wire| {
        wire.sends(
            "HTTP/1.1 103 Early Hints\r\nalt-svc: h3=\":9999\"\r\nlink: </a.css>\r\n\r\n\
             HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nalt-svc: h3=\":9999\"; ma=60\r\n\
             Alt-Svc: h3-29=\":9998\"\r\n\r\n2\r\nok\r\n0\r\nalt-svc: clear\r\nx-other: 1\r\n\r\n",
        );
        After::Keep
    })
}

/// The lines about alternatives in all that a client is sent: interim responses, heads, trailers.
fn said(all: &str) -> Vec<String> {
    let all = all.to_lowercase();
    all.lines().filter(|line| line.starts_with("alt-svc")).map(str::to_owned).collect()
}

fn get(weir: &Weir, path: &str) -> String {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te, close\r\n\r\n"));
    let all = String::from_utf8(client.receives_to_the_end()).expect("text");
    assert!(all.contains("200 OK"), "{all}");
    all
}

#[test]
fn what_a_backend_says_of_its_alternatives_reaches_no_client_and_what_a_rule_says_does() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), backend());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    for path in ["/", "/kept", "/kept"] {
        let all = get(&weir, path);
        assert!(said(&all).is_empty(), "{path}: {all}");
    }
    assert_eq!(backend.served(), 2, "the last came from memory");
    assert_eq!(said(&get(&weir, "/ours")), ["alt-svc: h2=\"alt.example:443\""]);
    let own = format!("alt-svc: h3=\":{}\"; ma=86400", weir.address("new").port());
    for version in ["--http1.1", "--http2"] {
        let ca = authority.path("ca.pem");
        let finished = curl(&weir, "new", "shop.example", &[version, "--cacert", &ca, "-i"]);
        let all = finished.succeeded();
        assert_eq!(said(all), [own.as_str()], "{version}: {all}");
    }
}
