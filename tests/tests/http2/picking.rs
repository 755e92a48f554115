//! Backends that pick HTTP/2 or HTTP/1.1 over TLS (`protocol = "auto"`, ALPN), and change their mind (threat
//! J17).

use std::sync::{Arc, Barrier, Mutex};

use weir_tests::dialogue::{After, Authority, Backend, INNER, Setup, Signal, Weir, pattern};

use super::super::http::upgrades::{echoing_websocket, open_websocket};

/// The Weir that asks the inner one.
const OUTER: &str = r#"
[runtime]
workers = 1
[log]
access = "@dir/access.log"
line = "$method $target $status $backend_protocol"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "inner"
[pool.inner]
backends = [BACKENDS]
protocol = "auto"
tls = { ca = "@ca", server_name = "app.internal" }
MORE
"#;

const UNPROBED: &str = "health = { check = \"off\", passive = \"off\" }";

const BOTH: &str = r#""h1", "h2""#;
const FIRST: &str = r#""h1""#;

fn authority() -> Authority {
    Authority::new().signs("inner", &["app.internal"])
}

fn inner(authority: &Authority, http: &str, app: &Backend) -> Weir {
    authority.setup(&INNER.replace("VERSIONS", http)).with("app", app.address()).start()
}

fn outer(authority: &Authority, inner: &[&Weir], more: &str) -> Weir {
    let names: Vec<String> = (0..inner.len()).map(|number| format!("\"@in{number}\"")).collect();
    let config = OUTER.replace("BACKENDS", &names.join(", ")).replace("MORE", more);
    let setup = Setup::of(&config).with("ca", authority.path("ca.pem"));
    let with = |setup: Setup, (number, weir): (usize, &&Weir)| {
        setup.with(&format!("in{number}"), weir.address("inner"))
    };
    inner.iter().enumerate().fold(setup, with).start()
}

fn picked(weir: &Weir, protocol: &str) -> f64 {
    weir.metric("weir_backend_picked_total", &[("pool", "inner"), ("protocol", protocol)])
}

fn get(weir: &Weir) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = client.receives_response();
    (answer.status, answer.text())
}

/// A backend that answers nobody before this many ask at once.
fn patient(count: usize) -> Backend {
    let (gate, waited) = (Arc::new(Barrier::new(count)), Mutex::new(0));
    Backend::serving(move |_, wire| {
        let is_one_of_them = {
            let mut waited = waited.lock().expect("a lock");
            *waited += 1;
            *waited <= count
        };
        if is_one_of_them {
            gate.wait();
        }
        wire.answers(200, &[], "hello");
        After::Keep
    })
}

/// This many clients ask at once; gives the number of connections to the backend, by the version it picked.
fn burst(http: &str, count: usize) -> (f64, f64) {
    let (authority, app) = (authority(), patient(count));
    let inner = inner(&authority, http, &app);
    let outer = outer(&authority, &[&inner], UNPROBED);
    let mut clients: Vec<_> = (0..count).map(|_| outer.client("web")).collect();
    for client in &mut clients {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "hello");
    }
    for client in &mut clients {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    (picked(&outer, "h2"), picked(&outer, "h1"))
}

#[test]
fn many_who_come_at_once_to_a_cold_backend_share_the_connection_that_the_first_gets() {
    assert_eq!(burst(BOTH, 40), (1.0, 0.0));
}

#[test]
fn where_it_picks_http1_each_gets_a_connection_and_they_are_used_again() {
    assert_eq!(burst(FIRST, 40), (0.0, 40.0));
}

#[test]
fn bodies_go_both_ways_whatever_is_picked() {
    let authority = authority();
    let app = Backend::serving(|request, wire| {
        let text = [&request.body[..], request.head.as_bytes()].concat();
        wire.answers(200, &[], &text);
        After::Keep
    });
    let body = pattern(3, 1 << 20);
    for (http, version) in [(BOTH, "HTTP/2.0"), (FIRST, "HTTP/1.1")] {
        let inner = inner(&authority, http, &app);
        let outer = outer(&authority, &[&inner], UNPROBED);
        for length in [0, 1, 3000, 1 << 20] {
            let content = &body[..length];
            let mut client = outer.client("web");
            client.sends(format!("PUT /{length} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
            client.sends(content);
            let answer = client.receives_status(200).body;
            assert!(answer.starts_with(content), "{version} {length}");
            assert!(answer[length..].starts_with(format!("PUT /{length} ").as_bytes()), "{version} {length}");
            let chunks = content
                .chunks(100_000)
                .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
            let framed: Vec<u8> = chunks.flatten().chain(*b"0\r\nx-end: yes\r\n\r\n").collect();
            for split in [0, framed.len()] {
                client.sends("PUT /chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
                client.sends(&framed[..split]);
                client.sends(&framed[split..]);
                let answer = client.receives_status(200).body;
                assert!(answer.starts_with(content), "{version} {length} in chunks");
                assert!(answer[length..].starts_with(b"PUT /chunked "), "{version} {length} in chunks");
            }
        }
        let lines = outer.lines_of("access.log", 12);
        assert!(lines.iter().all(|line| line.ends_with(&format!(" 200 {version}"))), "{lines:?}");
    }
}

#[test]
fn a_backend_that_changes_its_mind_is_spoken_to_as_it_picks_then() {
    let (authority, app) = (authority(), Backend::saying("hello"));
    let mut inner = inner(&authority, BOTH, &app);
    let outer = outer(&authority, &[&inner], UNPROBED);
    for (http, seen) in [(FIRST, (1.0, 1.0)), (BOTH, (2.0, 1.0)), (FIRST, (2.0, 2.0))] {
        assert_eq!(get(&outer).0, 200);
        inner.rewrites(&INNER.replace("VERSIONS", http));
        inner.signals(Signal::KILL);
        inner.starts_again();
        assert_eq!(get(&outer), (200, "hello".to_owned()));
        assert_eq!((picked(&outer, "h2"), picked(&outer, "h1")), seen);
    }
    let explained = outer.command(&["explain", "http", "GET", &format!("http://{}/", outer.address("web"))]);
    let said = format!("h2 or h1, as each backend picks: {} picked h1", inner.address("inner"));
    assert!(explained.stdout.contains(&said), "{explained:?}");
}

#[test]
fn a_request_whose_first_backend_picked_one_version_is_whole_for_another_that_picks_the_other() {
    let authority = authority();
    let (tired, app) = (
        Backend::serving(|_, wire| {
            wire.answers(503, &[], "tired");
            After::Keep
        }),
        Backend::serving(|request, wire| {
            wire.answers(200, &[], &request.body);
            After::Keep
        }),
    );
    let more = format!(
        "{UNPROBED}\nbalance = \"first\"\nbuffer = {{ requests = \"64KiB\" }}\nretry = {{ on = [503], attempts = 2 }}"
    );
    for (first, second) in [(BOTH, FIRST), (FIRST, BOTH)] {
        let one = inner(&authority, first, &tired);
        let other = inner(&authority, second, &app);
        let outer = outer(&authority, &[&one, &other], &more);
        let mut client = outer.client("web");
        client.sends("PUT / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
        client.sends("6\r\n world\r\n0\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "hello world", "{first}");
        client.sends("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nagain");
        assert_eq!(client.receives_status(200).text(), "again", "{first}");
        assert!(picked(&outer, "h2") == 1.0 && picked(&outer, "h1") >= 1.0, "{first}");
    }
}

#[test]
fn a_websocket_goes_over_http1_to_a_backend_that_picks_http2() {
    let (authority, app) = (authority(), echoing_websocket());
    let inner = inner(&authority, BOTH, &app);
    let outer = outer(&authority, &[&inner], UNPROBED);
    assert_eq!(get(&outer).0, 200);
    let mut socket = open_websocket(&outer);
    socket.sends("frames");
    socket.receives_exactly("frames");
    assert_eq!((picked(&outer, "h2"), picked(&outer, "h1")), (1.0, 0.0));
}

#[test]
fn probes_speak_what_is_picked() {
    let authority = authority();
    let app = Backend::serving(|request, wire| {
        let is_probe = request.target == "/healthz";
        wire.answers(if is_probe { 204 } else { 200 }, &[], "");
        After::Keep
    });
    // The second soon after the first, each with all the time it needs.
    let pace = "interval = \"60s\", fast_interval = \"50ms\", timeout = \"60s\", rise = 2";
    let more = format!("health = {{ check = \"http\", path = \"/healthz\", expect_status = [204], {pace} }}");
    for http in [BOTH, FIRST] {
        let inner = inner(&authority, http, &app);
        let outer = outer(&authority, &[&inner], &more);
        outer.reaches("weir_probes_total", &[("pool", "inner"), ("result", "good")], 2.0);
        assert_eq!(outer.metric("weir_probes_total", &[("pool", "inner"), ("result", "bad")]), 0.0);
        assert_eq!(get(&outer).0, 200);
    }
}

/// Threat J17: a backend that only claims to speak HTTP/2 does not hold up the requests that wait for it.
#[test]
fn b20_an_upgrade_is_held_against_no_backend_that_speaks_http_2_alone() {
    let (authority, app) = (authority(), Backend::saying("hello"));
    let inners = [0, 1].map(|_| inner(&authority, "\"h2\"", &app));
    let strict = "retry = { attempts = 2 }\n\
                  health = { check = \"off\", passive = { errors = 1, eject = \"1h\", max_ejected = 1.0 } }";
    let outer = outer(&authority, &[&inners[0], &inners[1]], strict);
    assert_eq!(get(&outer), (200, "hello".to_owned()));
    for _ in 0..5 {
        let mut client = outer.client("web");
        client.sends(
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        let told = client.receives_status(502).text();
        assert!(told.contains("no_tunnel"), "{told}");
    }
    assert_eq!(outer.metric("weir_backend_ejections_total", &[]), 0.0);
    assert_eq!(outer.metric("weir_retries_total", &[]), 0.0);
    assert_eq!(get(&outer), (200, "hello".to_owned()));
}

#[test]
fn j17_a_backend_that_agrees_to_nothing_is_asked_in_http1() {
    let (authority, app) = (authority(), Backend::saying("hello"));
    let config = INNER.replace("http = [VERSIONS]", "protocol = \"tcp\"");
    let inner = authority.setup(&config).with("app", app.address()).start();
    let outer = outer(&authority, &[&inner], UNPROBED);
    for _ in 0..3 {
        assert_eq!(get(&outer), (200, "hello".to_owned()));
    }
    assert_eq!((picked(&outer, "h2"), picked(&outer, "h1")), (0.0, 1.0));
}
