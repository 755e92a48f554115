//! HTTP/3 towards backends: before a server of the `h3` crate, and before Weir's own listener (threat J19).

use std::time::Duration;

use weir_tests::dialogue::{
    After, Authority, Backend, INNER, PATIENCE, Setup, Signal, Weir, Wire, fingerprint, free_address,
    pattern, until,
};

use super::super::http::upgrades::{echoing_websocket, open_websocket};
use super::origin::Origin;

pub const OUTER: &str = r#"
[runtime]
workers = 1
[log]
access = "@dir/access.log"
line = "$method $target $status $backend_protocol $end"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "origin"
timeout = { backend = "15s" }
[pool.origin]
backends = ["@origin"]
protocol = "h3"
tls = { ca = "@ca", server_name = "app.internal" }
health = { check = "off", passive = "off" }
MORE
"#;

/// No TCP: whoever falls back fails.
pub const ONLY: &str = "fall_back_after = \"off\"";

pub fn authority() -> Authority {
    Authority::new().signs("inner", &["app.internal"])
}

pub fn before(authority: &Authority, origin: impl ToString, more: &str) -> Weir {
    let setup = Setup::of(&OUTER.replace("MORE", more)).with("ca", authority.path("ca.pem"));
    setup.with("origin", origin).start()
}

pub fn picked(weir: &Weir, protocol: &str) -> f64 {
    weir.metric("weir_backend_picked_total", &[("pool", "origin"), ("protocol", protocol)])
}

pub fn get(weir: &Weir, path: &str) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    let answer = client.receives_response();
    (answer.status, answer.text())
}

#[test]
fn requests_share_a_connection_and_the_log_says_what_was_spoken() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut clients: Vec<_> = (0..40).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends("GET /all/40 HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "together");
    }
    assert_eq!((origin.connections(), picked(&weir, "h3")), (1, 1.0));
    let lines = weir.lines_of("access.log", 40);
    assert!(lines.iter().all(|line| line == "GET /all/40 200 HTTP/3.0 done"), "{lines:?}");
    let explained = weir.command(&["explain", "http", "GET", &format!("http://{}/", weir.address("web"))]);
    assert!(explained.stdout.contains("protocol h3, and over TCP h2 or h1"), "{explained:?}");
}

#[test]
fn more_requests_than_the_backend_allows_go_over_further_connections() {
    let authority = authority();
    let origin = Origin::start(&authority, 4);
    let weir = before(&authority, origin.address, ONLY);
    let mut clients: Vec<_> = (0..20).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends("GET /all/20 HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "together");
    }
    assert!(origin.connections() <= 20, "{}", origin.connections());
    for _ in 0..50 {
        assert_eq!(get(&weir, "/").0, 200, "streams that ended make room");
    }
}

#[test]
fn bodies_and_trailers_go_both_ways() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let body = pattern(3, 3 << 20);
    for length in [0, 1, 3000, 200_000, 3 << 20] {
        let content = &body[..length];
        let mut client = weir.client("web");
        client.sends(format!("PUT /echo HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
        let mut writer = client.socket().try_clone().expect("a second handle");
        let to_send = content.to_vec();
        let sending = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &to_send));
        let answer = client.receives_status(200);
        sending.join().expect("no panic").expect("all was taken");
        assert_eq!(
            (answer.body.len(), fingerprint(&answer.body)),
            (length, fingerprint(content)),
            "{length}"
        );
    }
    let mut client = weir.client("web");
    client.sends("PUT /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    client.sends("5\r\nhello\r\n0\r\nx-end: yes\r\n\r\n");
    let answer = String::from_utf8(client.receives_to_the_end()).expect("text");
    assert!(answer.ends_with("5\r\nhello\r\n0\r\nx-echoed: yes\r\n\r\n"), "{answer}");
    let mut client = weir.client("web");
    client.sends("GET /details HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = String::from_utf8(client.receives_to_the_end()).expect("text");
    let expected = format!("x-details: {}\r\n{}\r\n", "y".repeat(30_000), "x-more: 1\r\n".repeat(50));
    assert!(answer.ends_with(&expected), "as large as a head: {answer}");
    let (status, text) = get(&weir, "/bytes/5000000");
    assert!(status == 200 && text.len() >= 5_000_000);
    assert_eq!(origin.connections(), 1);
}

/// More is buffered than a stream may send before its peer opens the window: an answer in the meantime is
/// read.
#[test]
fn an_answer_that_comes_before_all_that_was_held_has_left_is_heard() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, &format!("{ONLY}\nbuffer = {{ requests = \"8MiB\" }}"));
    let body = pattern(3, 6 << 20);
    for (path, answer) in [("/deaf", &b"enough"[..]), ("/echo", &body)] {
        let mut client = weir.client("web");
        client.sends(format!("PUT {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.sends(&body);
        assert!(client.receives_status(200).body == answer, "{path}");
    }
    assert_eq!(weir.metric("weir_buffered_requests_total", &[("pool", "origin")]), 2.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &[("pool", "origin")]), 0.0);
}

#[test]
fn interim_responses_and_heads_without_content_pass() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("GET /hints HTTP/1.1\r\nhost: a\r\n\r\n");
    let hints = client.receives_head();
    assert_eq!((hints.status, hints.fields.one("link")), (103, Some("</a.css>")));
    assert_eq!(client.receives_status(200).text(), "hinted");
    client.sends("GET /x?y=z HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = client.receives_status(200);
    assert_eq!((answer.fields.one("x-path"), answer.text().as_str()), (Some("/x"), "hello"));
}

#[test]
fn j19_a_request_that_was_not_looked_at_is_sent_again_whatever_its_method_and_no_other_is() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let post = |path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce"));
        client.receives_response().status
    };
    assert_eq!(post("/reject"), 200);
    let times = |line: &str| origin.requests().iter().filter(|it| *it == line).count();
    assert_eq!(times("POST /reject"), 2);
    // The connection ends while the request is in flight: the backend may have processed it.
    assert_eq!(post("/die"), 502);
    assert_eq!(times("POST /die"), 1);
    assert_eq!(get(&weir, "/").0, 200, "over another connection");
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_backend_that_goes_away_gets_no_further_request_on_that_connection() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    assert_eq!(get(&weir, "/away"), (200, "hello".to_owned()), "it answers what it has accepted");
    for _ in 0..5 {
        assert_eq!(get(&weir, "/").0, 200);
    }
    assert_eq!(origin.connections(), 2);
}

#[test]
fn an_answer_that_breaks_off_is_seen_to_and_one_before_the_request_is_whole_is_heard() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("GET /broken HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = client.receives_head();
    assert_eq!(head.status, 200);
    let rest = client.receives_to_the_end();
    assert!(rest.len() < 10, "{rest:?}");
    let mut client = weir.client("web");
    client.sends("POST /early HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nsome");
    assert_eq!(client.receives_status(200).text(), "enough");
    assert_eq!(get(&weir, "/").0, 200);
    assert_eq!(origin.connections(), 1, "one stream's fate is not the others'");
}

/// A backend, a Weir in front of it that speaks HTTP/3, and an outer Weir with these keys for its pool. The
/// outer one has a connection to an inner process that has crashed and was restarted.
pub fn behind_one_that_crashed(keys: &str) -> (Backend, Weir, Weir) {
    let authority = authority();
    let (app, address) = (Backend::saying("hello"), free_address());
    let mut inner = inner(&authority, &app, r#""h3""#, address);
    let weir = before(&authority, address, keys);
    assert_eq!(get(&weir, "/").0, 200);
    inner.signals(Signal::KILL);
    inner.starts_again();
    (app, inner, weir)
}

#[test]
fn a_backend_that_dies_without_a_word_is_noticed() {
    let (_app, _inner, weir) = behind_one_that_crashed(ONLY);
    // The old connection is silent; it is given up within its idle timeout, and the request is sent again.
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(picked(&weir, "h3"), 2.0);
}

/// Only the requests on the old connection wait until it is given up.
#[test]
fn a_backend_that_crashed_and_is_back_is_asked_anew_although_the_old_connection_is_not_lost_yet() {
    let (_app, _inner, weir) = behind_one_that_crashed(ONLY);
    // Not sent again: it is answered when its connection is lost.
    let mut first = weir.client("web");
    first.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    let mut others: Vec<Wire> = Vec::new();
    until("another request to be answered", || {
        // So few that they have room on one connection.
        if others.len() < 50 {
            others.push(weir.client("web"));
            others.last_mut()?.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            std::thread::sleep(Duration::from_millis(100));
        }
        others.iter_mut().any(|other| other.looks() > 0).then_some(())
    });
    assert_eq!(first.looks(), 0, "they were answered when the old connection was lost");
    assert_eq!(first.receives_response().status, 502);
}

#[test]
fn a_request_that_hears_nothing_in_all_its_time_has_the_next_go_over_another_connection() {
    // Shorter than the silence after which it would be sent again.
    let keys = format!("{ONLY}\ntimeout = {{ request_total = \"1800ms\" }}");
    let (_app, _inner, weir) = behind_one_that_crashed(&keys);
    assert_eq!(get(&weir, "/").0, 504);
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
}

/// In the meantime the backend only acknowledges PINGs.
#[test]
fn a_backend_that_takes_long_to_answer_keeps_its_connection_and_gets_the_next_requests_over_it() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut clients: Vec<Wire> = Vec::new();
    for _ in 0..4 {
        clients.push(weir.client("web"));
        clients.last_mut().expect("one").sends("GET /all/4 HTTP/1.1\r\nhost: a\r\n\r\n");
        // Longer than a connection may be silent after a PING.
        std::thread::sleep(Duration::from_millis(1_700));
    }
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "together");
    }
    assert_eq!(origin.connections(), 1);
}

/// Weir with a listener that speaks these versions.
fn inner(authority: &Authority, app: &Backend, http: &str, at: std::net::SocketAddr) -> Weir {
    authority.setup(&INNER.replace("VERSIONS", http)).with("app", app.address()).with("inner", at).start()
}

#[test]
fn where_udp_does_not_get_through_requests_go_over_tcp_and_the_next_do_not_wait() {
    let (authority, app) = (authority(), Backend::saying("hello"));
    let inner = inner(&authority, &app, r#""h1", "h2""#, free_address());
    let weir = before(&authority, inner.address("inner"), "fall_back_after = \"100ms\"");
    for _ in 0..5 {
        assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    }
    assert_eq!((picked(&weir, "h3"), picked(&weir, "h2")), (0.0, 1.0));
    assert_eq!(weir.metric("weir_backend_fallbacks_total", &[("pool", "origin")]), 1.0);
    assert!(weir.stderr().contains("no HTTP/3: requests go over TCP for a minute"), "{}", weir.stderr());
    let lines = weir.lines_of("access.log", 5);
    assert!(lines.iter().all(|line| line == "GET / 200 HTTP/2.0 done"), "{lines:?}");
}

/// Nobody tried QUIC for a minute, and every request was refused over TCP.
#[test]
fn a_backend_without_tcp_that_was_late_once_is_asked_over_quic_by_the_next_request() {
    let (authority, app, address) = (authority(), Backend::saying("hello"), free_address());
    let silent = std::net::UdpSocket::bind(address).expect("a port that was free");
    let weir = before(&authority, address, "fall_back_after = \"100ms\"");
    assert_eq!(get(&weir, "/").0, 502);
    drop(silent);
    let _inner = inner(&authority, &app, r#""h3""#, address);
    until("QUIC to be tried", || (get(&weir, "/").0 == 200).then_some(()));
    let told = weir.stderr().matches("no HTTP/3: requests go over TCP").count();
    assert_eq!(told, 1, "{}", weir.stderr());
}

#[test]
fn j19_a_request_that_runs_out_of_time_says_nothing_of_whether_quic_gets_through() {
    let (authority, app, address) = (authority(), Backend::saying("hello"), free_address());
    let silent = std::net::UdpSocket::bind(address).expect("a port that was free");
    let more = "fall_back_after = \"9s\"\ntimeout = { connect = \"9s\", request_total = \"500ms\" }";
    let weir = before(&authority, address, more);
    assert_eq!(get(&weir, "/").0, 504);
    drop(silent);
    let _inner = inner(&authority, &app, r#""h1", "h2", "h3""#, address);
    until("QUIC to get through", || (get(&weir, "/").0 == 200).then_some(()));
    assert_eq!((picked(&weir, "h3"), picked(&weir, "h2")), (1.0, 0.0));
    assert_eq!(weir.metric("weir_backend_fallbacks_total", &[("pool", "origin")]), 0.0);
    assert!(!weir.stderr().contains("no HTTP/3"), "{}", weir.stderr());
}

#[test]
fn before_weirs_own_listener_bodies_pass_and_websockets_go_over_tcp() {
    let (authority, app) = (authority(), echoing_websocket());
    let inner_of_socket = inner(&authority, &app, r#""h1", "h2", "h3""#, free_address());
    let weir = before(&authority, inner_of_socket.address("inner"), "");
    assert_eq!(get(&weir, "/").0, 200);
    let mut socket = open_websocket(&weir);
    socket.sends("frames");
    socket.receives_exactly("frames");
    assert_eq!(picked(&weir, "h3"), 1.0);
    let echo = Backend::serving(|request, wire| {
        wire.answers(200, &[], &request.body);
        After::Keep
    });
    let inner = inner(&authority, &echo, r#""h1", "h2", "h3""#, free_address());
    let weir = before(&authority, inner.address("inner"), "buffer = { requests = \"64KiB\" }");
    let body = pattern(5, 1 << 20);
    for length in [0, 10, 60_000, 1 << 20] {
        let mut client = weir.client("web");
        client.sends(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
        client.sends(&body[..length]);
        assert!(client.receives_status(200).body == body[..length], "{length}");
    }
    assert_eq!((picked(&weir, "h3"), picked(&weir, "h2"), picked(&weir, "h1")), (1.0, 0.0, 0.0));
}

#[test]
fn a_backend_that_drains_and_starts_again_loses_no_request() {
    let (authority, app) = (authority(), Backend::saying("hello"));
    let mut inner = inner(&authority, &app, r#""h1", "h2", "h3""#, free_address());
    let weir = before(&authority, inner.address("inner"), "");
    for _ in 0..3 {
        assert_eq!(get(&weir, "/").0, 200);
        inner.signals(Signal::TERM);
        inner.starts_again();
    }
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(picked(&weir, "h3"), 4.0);
}

/// Threat J19: answering datagrams without the right key proves nothing.
#[test]
fn j19_a_backend_of_another_name_gets_no_request_over_quic_either() {
    let authority = Authority::new().signs("inner", &["other.internal"]);
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    assert_eq!(get(&weir, "/").0, 502);
    assert!(origin.requests().is_empty());
}

#[test]
fn a_request_above_the_last_of_a_goaway_is_sent_over_another_connection_whatever_its_method() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("POST /turn HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    assert_eq!(client.receives_status(200).text(), "hello");
    assert_eq!((origin.connections(), origin.requests().len()), (2, 2));
}

#[test]
fn clients_that_read_nothing_hold_up_nobody_on_their_connection() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut stalled: Vec<_> = (0..20).map(|_| weir.client("web").with_patience(PATIENCE * 4)).collect();
    for client in &mut stalled {
        client.sends("GET /bytes/20000000 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert_eq!(client.receives_head().status, 200);
    }
    for _ in 0..20 {
        assert_eq!(get(&weir, "/").0, 200);
    }
    assert_eq!(origin.connections(), 1);
    let whole = stalled.pop().expect("one of them").receives_to_the_end();
    assert!(whole.len() > 20_000_000 && whole.ends_with(b"0\r\n\r\n"));
}

#[test]
fn j19_a_backend_that_breaks_the_protocol_gets_502_and_no_more() {
    let authority = authority();
    let cases: [(&str, &[u8]); 7] = [
        ("content before a head", b"\x00\x05hello"),
        ("a push", b"\x05\x01\x00"),
        ("a frame of HTTP/2", b"\x08\x01\x00"),
        ("settings on a request's stream", b"\x04\x00"),
        ("a head that refers to what there is not", b"\x01\x04\xff\xff\xff\xff"),
        ("a head without a status", b"\x01\x03\x00\x00\xf5"),
        ("nothing", b""),
    ];
    for (what, answer) in cases {
        let origin = Origin::raw(&authority, answer);
        let weir = before(&authority, origin.address, ONLY);
        for _ in 0..3 {
            assert_eq!(get(&weir, "/").0, 502, "{what}");
        }
        assert_eq!(weir.metric("weir_panics_total", &[]), 0.0, "{what}");
    }
    // It says that there is more than comes.
    let origin = Origin::raw(&authority, b"\x01\x07\x00\x00\xd9\x54\x0210\x00\x05hello");
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_head().status, 200);
    assert!(client.receives_to_the_end().len() < 10);
}

#[test]
fn a_reload_keeps_connections_and_an_upgrade_loses_no_request() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let mut weir = before(&authority, origin.address, ONLY);
    assert_eq!(get(&weir, "/").0, 200);
    weir.reloads(&OUTER.replace("MORE", "balance = \"random-two\"\nfall_back_after = \"off\""));
    assert_eq!(get(&weir, "/").0, 200);
    assert_eq!(origin.connections(), 1, "the reload has kept it");
    let mut under_way = weir.client("web");
    under_way.sends("GET /all/2 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    until("the request to be there", || origin.requests().contains(&"GET /all/2".to_owned()).then_some(()));
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the new process", || {
        let status = weir.admin().tries_to_read("/v1/status")?.json();
        (status["pid"].as_u64()? != u64::from(old)).then_some(())
    });
    assert_eq!(get(&weir, "/all/2"), (200, "together".to_owned()));
    assert_eq!(under_way.receives_status(200).text(), "together", "by the old process");
    // The old one may have received the other as well: it stops a moment after the new one has started.
    until("the new process to have a connection of its own", || {
        assert_eq!(get(&weir, "/").0, 200);
        (origin.connections() == 2).then_some(())
    });
}

#[test]
fn requests_under_way_end_with_a_backend_that_is_found_down_where_the_pool_asks_for_it() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let probed = Backend::saying("well");
    let config = OUTER.replace("MORE", ONLY).replace(
        "health = { check = \"off\", passive = \"off\" }",
        "health = { check = \"tcp\", port = PORT, interval = \"100ms\", fall = 1, on_down = \"end-sessions\" }",
    );
    let config = config.replace("PORT", &probed.address().port().to_string());
    let setup = Setup::of(&config).with("ca", authority.path("ca.pem"));
    let weir = setup.with("origin", origin.address).start();
    assert_eq!(get(&weir, "/").0, 200);
    let mut client = weir.client("web");
    client.sends("GET /never HTTP/1.1\r\nhost: a\r\n\r\n");
    until("the request to be there", || origin.requests().contains(&"GET /never".to_owned()).then_some(()));
    probed.dies();
    assert_eq!(client.receives_response().status / 100, 5);
    weir.reaches("weir_backend_connections_cut_total", &[("pool", "origin")], 1.0);
}

/// H3_REQUEST_CANCELLED (RFC 9114 §8.1).
const CANCELLED: u64 = 0x10c;

#[test]
fn an_attempt_that_lost_against_another_backend_is_cancelled_and_its_connection_serves_on() {
    let authority = authority();
    let (silent, good) = (Origin::silent(&authority), Origin::start(&authority, 100));
    let config = OUTER.replace(r#"["@origin"]"#, r#"["@silent", "@origin"]"#).replace("MORE", ONLY);
    let config = config + "balance = 'first'\nretry = { hedge = { after = '50ms' } }\n";
    let setup = Setup::of(&config).with("ca", authority.path("ca.pem")).with("origin", good.address);
    let weir = setup.with("silent", silent.address).start();
    for _ in 0..3 {
        assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    }
    until("three to be cancelled", || {
        let stops = silent.seen.stops.lock().expect("a lock").clone();
        (stops == [CANCELLED; 3]).then_some(())
    });
    assert_eq!((silent.connections(), good.connections()), (1, 1));
    let won = [("pool", "origin"), ("result", "won")];
    assert_eq!(weir.metric("weir_hedge_results_total", &won), 3.0);
    let of_silent = [("pool", "origin"), ("backend", &*silent.address.to_string())];
    assert_eq!(weir.metric("weir_backend_in_flight", &of_silent), 0.0);
    assert_eq!(weir.metric("weir_backend_failures_total", &of_silent), 0.0);
}

#[test]
fn b20_an_upgrade_is_held_against_no_backend_that_listens_at_udp_alone() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    assert_eq!(get(&weir, "/").0, 200);
    let mut client = weir.client("web");
    client.sends(
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    let told = client.receives_status(502).text();
    assert!(told.contains("no_tunnel"), "{told}");
    assert_eq!(weir.metric("weir_retries_total", &[]), 0.0);
}
