//! Rules that lead by a value of the request, by whether a cookie counts, and by whether servers are up; and
//! what is held back of what servers say.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use weir_tests::dialogue::{Response, until};

use super::{Pair, sends};

const FRAME: &str = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                     frontend web\n bind 127.0.0.1:18000\n";

/// A backend that says its name in what its server is told.
fn backend(name: &str, last: u8) -> String {
    format!("backend {name}\n http-request set-header X-App {name}\n server a 10.0.0.{last}:80\n")
}

#[test]
fn a_value_of_the_request_names_the_same_backend_and_else_the_default_at_once() {
    let backends = ["one", "two", "app_a", "app_", "seg-by", "seg-v1.x", "a-host", "b.example"];
    let backends: String = backends.iter().map(|name| backend(name, 1)).collect();
    let text = format!(
        "{FRAME} use_backend app_%[req.hdr(x-to),lower] if {{ req.hdr(x-to) -m found }}\n \
         use_backend %[req.cook(shop)] if {{ req.cook(shop) -m found }}\n \
         use_backend app_%[req.cook(to)] if {{ path /two }} {{ hdr(host) x }}\n \
         use_backend seg-%[path,field(2,/)] if {{ path_beg /by /v }}\n \
         use_backend %[req.hdr(host),lower,field(1,.)]-host if {{ hdr_end(host) .label.test }}\n \
         use_backend %[req.hdr(host),lower]\n use_backend two\n default_backend one\n{backends}"
    );
    let pair = Pair::start(&text, 1, &[]);
    let mut requests = Vec::new();
    for path in ["/", "/by", "/by/x", "/byx", "/v1.x/", "/v1xx", "/two", "/x/by"] {
        for fields in [
            "host: a.test",
            "host: b.example",
            "host: B.Example",
            "host: two",
            "host: a.label.test",
            "host: A.label.test",
            "host: a.b.label.test",
            "host: x|x-to: a",
            "host: x|x-to: A",
            "host: x|x-to: b",
            "host: x|x-to: b, a",
            "host: x|x-to: b|x-to: a",
            "host: x|x-to: a, b",
            "host: x|x-to: a,",
            "host: x|x-to: ",
            "host: x|cookie: shop=two",
            "host: x|cookie: a=b; shop=app_a",
            "host: x|cookie: shop=Two",
            "host: x|cookie: a=b; shop=",
            "host: two|cookie: shops=two",
            "host: x|cookie: a=b; to=",
            "host: x|cookie: a=b; to=a",
        ] {
            requests.push((format!("GET {path}"), fields));
        }
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
}

#[test]
fn a_map_leads_to_backends_with_rules_of_their_own() {
    let map = std::env::temp_dir().join(format!("weir-leads-{}.map", std::process::id()));
    std::fs::write(&map, "/a app_a\n/a/x two\n/none nobody\n").expect("written");
    let text = format!(
        "{FRAME} use_backend %[path,map_beg({})]\n use_backend two\n default_backend one\n{}{}\
         backend app_a\n http-request deny if {{ path_end .no }}\n http-request set-header X-App a\n server a 10.0.0.1:80\n",
        map.display(),
        backend("one", 1),
        backend("two", 1)
    );
    let pair = Pair::start(&text, 1, &[]);
    for path in ["/", "/a", "/ab", "/a.no", "/a/x.no", "/b.no", "/none", "/a/y"] {
        pair.all_alike(&[(&format!("GET {path}"), "host: a")]);
    }
    drop(pair);
    let _ = std::fs::remove_file(map);
}

#[test]
fn texts_made_upper_or_lower_case_are_compared_as_they_are_then() {
    let text = format!(
        "{FRAME} http-request deny deny_status 404 if {{ req.hdr(x-a),upper -m str ABC }}\n \
         http-request deny deny_status 410 if {{ req.hdr(x-a),lower -m str -i DEF }}\n \
         http-request deny deny_status 401 if {{ req.hdr(x-a),upper -m str ghi }}\n \
         http-request deny deny_status 405 if {{ req.hdr(host),upper -m str EVIL.TEST }}\n default_backend one\n{}",
        backend("one", 1)
    );
    let pair = Pair::start(&text, 1, &[]);
    for value in ["abc", "ABC", "def", "Def", "ghi", "GHI", "x, abc"] {
        for host in ["a", "evil.test", "EVIL.test"] {
            pair.all_alike(&[("GET /", &format!("host: {host}|x-a: {value}"))]);
        }
    }
}

#[test]
fn who_watches_is_told_the_same() {
    let text = format!(
        "{FRAME} monitor-uri /up\n monitor fail if {{ req.hdr(x-fail) -m found }}\n \
         monitor fail if {{ src 192.0.2.0/24 }} || {{ hdr(x-other) 1 }}\n \
         http-request deny if {{ path /up /upper }}\n default_backend one\n{}",
        backend("one", 1)
    );
    let pair = Pair::start(&text, 1, &[]);
    for method in ["GET", "HEAD", "POST"] {
        for path in ["/up", "/upper", "/up/x", "/"] {
            for fields in ["host: a", "host: a|x-fail: 1", "host: a|x-other: 1", "host: a|x-other: 2"] {
                pair.all_alike(&[(&format!("{method} {path}"), fields)]);
            }
        }
    }
}

#[test]
fn who_watches_whether_servers_are_up_is_told_so() {
    let text = format!(
        "{FRAME} monitor-uri /up\n monitor fail if {{ nbsrv(one) lt 1 }}\n default_backend one\n\
         backend one\n option httpchk GET /healthz\n server a SERVER check inter 100ms fall 1\n"
    );
    for (server, status) in [("10.0.0.1:80", 200), ("127.0.4.9:9", 503)] {
        let pair = Pair::start(&text.replace("SERVER", server), 1, &[]);
        for address in pair.addresses {
            until(&format!("{status} of {address}"), || {
                (sends(address, "GET /up HTTP/1.1\r\nhost: a\r\n\r\n").status == status).then_some(())
            });
        }
    }
}

/// What one of both answers, with a cookie if there is one.
fn asks(address: SocketAddr, path: &str, cookie: Option<&str>) -> Response {
    let cookie = cookie.map(|cookie| format!("cookie: {cookie}\r\n")).unwrap_or_default();
    sends(address, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n{cookie}\r\n"))
}

#[test]
fn a_cookie_does_not_count_where_it_is_ignored() {
    let text = format!(
        "{FRAME} default_backend app\nbackend app\n cookie SRV insert indirect\n \
         ignore-persist if {{ path_beg /static }}\n http-request set-header X-App 1\n \
         server a 10.0.0.1:80 cookie a\n server b 10.0.0.2:80 cookie b\n"
    );
    let pair = Pair::start(&text, 2, &[]);
    for address in pair.addresses {
        assert!(asks(address, "/static/x", None).fields.all("set-cookie").is_empty(), "{address}");
        let first = asks(address, "/", None);
        let cookie = first.fields.all("set-cookie").join(" ");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        assert!(cookie.starts_with("SRV="), "{address}: {cookie}");
        let server = |path: &str| {
            let told: serde_json::Value =
                serde_json::from_slice(&asks(address, path, Some(&cookie)).body).expect("what a server says");
            assert_eq!(told["fields"]["x-app"], "1", "{address}");
            told["server"].to_string()
        };
        let servers = |path: &str| (0..6).map(|_| server(path)).collect::<BTreeSet<_>>().len();
        assert_eq!((servers("/x"), servers("/static/x")), (1, 2), "{address}");
    }
}

#[test]
fn what_servers_say_is_held_back_by_the_same_rules() {
    let text = format!(
        "{FRAME} default_backend one\nbackend one\n http-request set-var(txn.path) path\n \
         tcp-response content accept if {{ var(txn.path) -m end .txt }}\n \
         tcp-response content close if {{ var(txn.path) -m beg /held }}\n \
         tcp-response content reject if {{ status 200 }}\n \
         tcp-response content reject if {{ res.hdr(x-made-by) -m found }}\n \
         tcp-response content reject if {{ path_beg /never }}\n server a 10.0.0.1:80\n"
    );
    let pair = Pair::start(&text, 1, &[]);
    for path in ["/", "/held", "/held/x", "/held/x.txt", "/never", "/x.txt"] {
        pair.all_alike(&[(&format!("GET {path}"), "host: a")]);
    }
    let tcp = "defaults\n mode tcp\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
               listen web\n bind 127.0.0.1:18000\n tcp-response content reject if { res.payload(0,4) -m str HTTP }\n \
               tcp-response content close if { res.len gt 0 }\n server a 10.0.0.1:80\n";
    Pair::start(tcp, 1, &[]).all_alike(&[("GET /x", "host: a"), ("POST /x", "host: a")]);
}
