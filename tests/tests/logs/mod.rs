//! What is written about a request, and what a client cannot make it say (threat D11).

mod by_route;
mod forgotten;
mod hung;
mod own;
mod rotation;
mod several;
mod syslog;
mod unopened;

use std::collections::BTreeSet;
use std::time::Duration;

use weir_tests::dialogue::{
    Authority, Backend, EVERY_VERSION, NO_HEALTH, NO_PROBES, ONE_POOL, ScriptedBackend, Setup, Weir, curl,
    one_pool, until,
};
use weir_tests::versions::{Client, Front, run};

fn logging(format: &str, backend: impl ToString) -> Weir {
    let log = format!("[log]\naccess = \"@dir/access.log\"\nformat = \"{format}\"");
    let proxy = one_pool(
        r#"timeout = { backend = "300ms" }"#,
        r#"
        retry = { attempts = 0 }
        health = "off"
        "#,
    );
    Setup::of(&format!("{log}{proxy}")).with("app", backend).start()
}

/// Requests with parts that try to break out of their place in the line.
const NASTY: &[(&str, &[u8])] = &[
    ("quotes", b"GET /\x22quote HTTP/1.1\r\nhost: a\r\nuser-agent: \"}, {\"forged\": true\r\nreferer: \"x\" \"y\"\r\n\r\n"),
    ("encoded line end", b"GET /a%0d%0aforged%20line HTTP/1.1\r\nhost: a\r\nuser-agent: a%0d%0ab\r\n\r\n"),
    ("backslashes", b"GET /?q=\\n\\r\\x1b[31m HTTP/1.1\r\nhost: a\r\nuser-agent: \\\"\\\r\n\r\n"),
    ("high bytes", b"GET /b HTTP/1.1\r\nhost: a\r\nuser-agent: \xff\xfe\x80 caf\xe9\r\n\r\n"),
    ("a tab", b"GET /c HTTP/1.1\r\nhost: a\r\nuser-agent: tab\there\r\n\r\n"),
    ("line separators", "GET /d HTTP/1.1\r\nhost: a\r\nuser-agent: \u{2028}\u{2029}\u{85}\r\n\r\n".as_bytes()),
    ("braces and brackets", b"GET /e?{}[]<script> HTTP/1.1\r\nhost: a\r\nuser-agent: {} [] <b>\r\n\r\n"),
    ("an escape sequence in the path", b"GET /\x1b[2J HTTP/1.1\r\nhost: a\r\n\r\n"),
    ("a bare CR", b"GET /f HTTP/1.1\r\nhost: a\r\nuser-agent: x\rforged line\r\n\r\n"),
    ("a bad host", b"GET /g HTTP/1.1\r\nhost: \"evil\"\r\n\r\n"),
    ("an endless path", &[b'G'; 9000]),
];

fn send_nasty(weir: &Weir) -> usize {
    for (name, bytes) in NASTY {
        let mut client = weir.client("web");
        let _ = client.tries_to_send(bytes);
        client.half_closes();
        let answer = client.receives_to_the_end();
        assert!(answer.starts_with(b"HTTP/1.1 "), "{name}: {answer:?}");
    }
    let mut last = weir.client("web");
    last.sends("GET /the-last-one HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    last.receives_status(200);
    // Each worker has its own batch, so lines arrive out of order.
    weir.lines_of("access.log", NASTY.len() + 1);
    NASTY.len() + 1
}

fn lines(weir: &Weir) -> Vec<String> {
    let bytes = std::fs::read(weir.dir().join("access.log")).expect("the log");
    for byte in &bytes {
        assert!(
            *byte == b'\n' || (0x20..0x7f).contains(byte) || *byte >= 0x80,
            "a control byte {byte:#04x} in the log"
        );
    }
    String::from_utf8(bytes).expect("the log is UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn every_json_line_is_one_object_whatever_the_request_holds() {
    let backend = Backend::saying("ok");
    let weir = logging("json", backend.address());
    let sent = send_nasty(&weir);
    let lines = lines(&weir);
    assert_eq!(lines.len(), sent, "{lines:#?}");
    for line in &lines {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|problem| panic!("{problem}: {line}"));
        assert!(value.is_object() && value.get("forged").is_none(), "{line}");
        for key in ["time", "listener", "client", "status"] {
            assert!(value.get(key).is_some(), "no {key}: {line}");
        }
    }
}

/// For answers of Weir itself, of a backend and of the cache, in both versions.
#[test]
fn combined_lines_count_the_bytes_of_the_body_and_own_lines_may() {
    let config = r#"
        [access_log.combined]
        target = "@dir/combined.log"
        format = "combined"
        [access_log.own]
        target = "@dir/own.log"
        line = "$target $status $body_bytes_sent $bytes_sent"
        [listener.web]
        bind = "@web"
        http = ["h1", "h2"]
        access_logs = ["combined", "own"]
        [[listener.web.route]]
        path = "/passed"
        pool = "app"
        [[listener.web.route]]
        path = "/kept"
        pool = "app"
        cache = { ttl = "60s" }
        [[listener.web.route]]
        path = "/own"
        respond = { status = 200, body = "0123456789" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#;
    let backend = Backend::saying("0123456789");
    let weir = Setup::of(config).with("app", backend.address()).start();
    let mut sent = 0;
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for (path, method, bytes) in [
            ("/passed", "GET", 10),
            ("/passed", "HEAD", 0),
            ("/kept", "GET", 10),
            ("/kept", "GET", 10),
            ("/own", "GET", 10),
            ("/own", "HEAD", 0),
        ] {
            let url = format!("http://{}{path}", weir.address("web"));
            let head: &[&str] = if method == "HEAD" { &["--head"] } else { &[] };
            curl(&[&[version, "--silent", &url][..], head].concat());
            sent += 1;
            // Workers write in batches.
            let combined = weir.lines_of("combined.log", sent).pop().expect("a line");
            let own = weir.lines_of("own.log", sent).pop().expect("a line");
            assert!(combined.contains(&format!(" {bytes} \"-\" ")), "{version} {method} {path}: {combined}");
            let numbers: Vec<usize> =
                own.split(' ').skip(2).map(|it| it.parse().expect("a number")).collect();
            assert_eq!(numbers[0], bytes, "{version} {method}: {own}");
            assert!(numbers[1] > bytes + 50, "{version} {method}: {own}");
        }
    }
}

#[test]
fn every_combined_or_haproxy_line_keeps_its_fields_apart() {
    for format in ["combined", "haproxy"] {
        let backend = Backend::saying("ok");
        let weir = logging(format, backend.address());
        let sent = send_nasty(&weir);
        let lines = lines(&weir);
        assert_eq!(lines.len(), sent, "{format}: {lines:#?}");
        for line in &lines {
            // Quoted parts: request, referer and agent in one format, the request in the other. An odd number
            // means that a quote of the client's got through.
            let quotes = line.replace("\\\\", "").replace("\\\"", "").matches('"').count();
            assert_eq!(quotes, if format == "combined" { 6 } else { 2 }, "{format}: {line}");
            assert!(!line.contains('\r') && !line.contains('\u{1b}'), "{line:?}");
        }
    }
}

#[test]
fn a_json_line_says_who_what_where_how_long_and_why_it_ended() {
    let backend = Backend::saying("hello");
    let weir = logging("json", backend.address());
    let mut client = weir.client("web");
    client.sends("POST /path?query=1 HTTP/1.1\r\nhost: shop.example\r\nuser-agent: tester/1\r\ncontent-length: 3\r\n\r\nabc");
    let response = client.receives_status(200);
    let line = weir.lines_of("access.log", 1).remove(0);
    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    for (key, expected) in [
        ("listener", "web"),
        ("pool", "app"),
        ("method", "POST"),
        ("host", "shop.example"),
        ("path", "/path?query=1"),
        ("user_agent", "tester/1"),
        ("end", "done"),
    ] {
        assert_eq!(value[key], expected, "{key}: {line}");
    }
    assert_eq!(value["backend"], backend.address().to_string(), "{line}");
    assert_eq!(value["status"], 200, "{line}");
    assert_eq!(value["request_id"].as_str(), response.fields.one("x-request-id"), "{line}");
    assert!(value["client"].as_str().is_some_and(|client| client.starts_with("127.0.0.1")), "{line}");
    for timer in ["client_header", "connect", "backend_header", "total"] {
        assert!(line.contains(timer), "no {timer}: {line}");
    }
}

#[test]
fn a_haproxy_line_has_method_path_and_status_in_every_version_of_http() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = Backend::saying("hello");
    let log = "[log]\naccess = \"@dir/access.log\"\nformat = \"haproxy\"";
    let weir =
        authority.setup(&format!("{log}{EVERY_VERSION}{NO_HEALTH}")).with("app", backend.address()).start();
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            let name = if front.is_tls() { "secure" } else { "plain" };
            let client = Client::connect(front, &authority, weir.address(name), "shop.example");
            let mut client = client.await.expect("a connection");
            let path = format!("/by/{front:?}");
            let answer = client.ask("GET", &path, &[], Vec::new()).await.expect("an answer");
            assert_eq!(answer.status.as_u16(), 200, "{front:?}");
        }
    });
    let lines = weir.lines_of("access.log", Front::ALL.len());
    for front in Front::ALL {
        let request = format!("\"GET /by/{front:?} {}\"", front.version());
        let line = lines.iter().find(|line| line.ends_with(&request));
        let line = line.unwrap_or_else(|| panic!("no line ends with {request}: {lines:#?}"));
        // Source: HAProxy configuration manual, section 8.2.3: timers, status, bytes, two cookies,
        // termination, counts, queues.
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!((words.len(), words[4].split('/').count(), words[5]), (15, 5, "200"), "{line}");
    }
}

/// As HAProxy does: `CR` if the client left within the head, `PR` if it is not a valid head.
#[test]
fn a_haproxy_line_of_a_head_that_never_came_whole_says_so() {
    let backend = Backend::saying("hello");
    let config = format!("[log]\naccess = '@dir/access.log'\nformat = 'haproxy'\n{ONE_POOL}health = \"off\"");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    for (number, (sent, expected)) in [
        ("GET /half HTTP/1.1\r\nhost: a\r\n", " CR-- "),
        ("GARBAGE\r\n\r\n", " PR-- "),
        ("GET /whole HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", " ---- "),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = weir.client("web");
        client.sends(sent);
        client.half_closes();
        let _ = client.receives_to_the_end();
        let line = weir.lines_of("access.log", number + 1).pop().expect("a line");
        let (timers, is_whole) = (line.split(' ').nth(4).unwrap_or_default(), sent.contains("whole"));
        assert!(line.contains(expected) && timers.starts_with("-1/-1/-1/-1/") != is_whole, "{line}");
    }
}

#[test]
fn requests_of_a_route_without_access_log_are_counted_and_not_written() {
    let backend = Backend::saying("ok");
    let config = r#"
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        pool = "app"
        [[listener.web.route]]
        path = "/quiet*"
        access_log = false
        pool = "app"
        [[listener.web.route]]
        path = "/healthz"
        access_log = false
        respond = { status = 200 }
        [[listener.web.route]]
        path = "/said"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    // One connection has one worker, whose lines arrive in order.
    let mut client = weir.client("web");
    let paths = ["/quiet", "/said", "/healthz", "/quiet/2", "/elsewhere"];
    for path in paths {
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.receives_status(200);
    }
    let lines = weir.lines_of("access.log", 2);
    let written: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let written: Vec<_> = written.iter().map(|line| line["path"].as_str().unwrap_or_default()).collect();
    assert_eq!(written, ["/said", "/elsewhere"], "{lines:#?}");
    weir.reaches("weir_requests_total", &[("listener", "web")], paths.len() as f64);
}

#[test]
fn lines_that_a_full_disk_does_not_take_are_counted() {
    let backend = Backend::saying("ok");
    let config = super::http::PLAIN.to_owned() + "\n[log]\naccess = \"/dev/full\"\n";
    let weir = Setup::of(&config).with("app", backend.address()).start();
    assert_eq!(weir.metric("weir_access_log_lost_total", &[]), 0.0);
    for _ in 0..5 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        client.receives_status(200);
    }
    weir.reaches("weir_access_log_lost_total", &[], 5.0);
}

#[test]
fn the_end_reason_tells_failures_apart() {
    let backend = ScriptedBackend::start();
    let weir = logging("json", backend.address());
    let ends = |count: usize| -> String {
        let line = weir.lines_of("access.log", count).pop().expect("a line");
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        value["end"].as_str().unwrap_or_default().to_owned()
    };
    // A client whose request has arrived at the backend.
    let asks = || {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        (client, wire)
    };
    // The backend is silent.
    let (mut client, silent) = asks();
    client.receives_status(504);
    assert_eq!(ends(1), "backend_timeout");
    drop(silent);
    // The backend closes without an answer.
    let (mut client, wire) = asks();
    drop(wire);
    client.receives_status(502);
    assert_eq!(ends(2), "backend_closed");
    // The backend answers garbage.
    let (mut client, mut wire) = asks();
    wire.sends("garbage\r\n\r\n");
    client.receives_status(502);
    assert_eq!(ends(3), "bad_response");
    // The client goes away.
    let (client, _wire) = asks();
    client.resets();
    assert_eq!(ends(4), "client_closed");
    // The client breaks the rules.
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\n\r\n");
    client.receives_status(400);
    assert_eq!(ends(5), "bad_request");
}

#[test]
fn a_client_that_closes_a_kept_connection_has_not_broken_anything_off() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(super::http::PLAIN).with("app", backend.address()).start();
    for _ in 0..5 {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200);
    }
    weir.reaches("weir_ends_total", &[("reason", "done")], 5.0);
    until("the connections to be gone", || (weir.metric("weir_connections", &[]) == 0.0).then_some(()));
    assert_eq!(weir.metric("weir_ends_total", &[("reason", "client_closed")]), 0.0);
}

#[test]
fn ten_thousand_hosts_paths_and_methods_do_not_widen_the_metrics() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(super::http::PLAIN).with("app", backend.address()).start();
    let names = |weir: &Weir| -> BTreeSet<String> {
        weir.admin()
            .metrics()
            .into_iter()
            .map(|sample| format!("{} {:?}", sample.name, sample.labels))
            .collect()
    };
    let ask = |range: std::ops::Range<u32>| {
        let mut client = weir.client("web");
        let mut all = String::new();
        let count = range.len();
        for number in range {
            all += &format!(
                "M{number} /path/{number}?q={number} HTTP/1.1\r\nhost: h{number}.example\r\nuser-agent: u{number}\r\n\r\n"
            );
        }
        client.sends(all);
        for _ in 0..count {
            client.receives_status(200);
        }
    };
    ask(0..100);
    let before = names(&weir);
    let size = weir.admin().reads("/metrics").response.body.len();
    std::thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for block in 0..10 {
                    ask(part * 2500 + block * 250..part * 2500 + (block + 1) * 250);
                }
            });
        }
    });
    let after = names(&weir);
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(weir.admin().reads("/metrics").response.body.len() < size + size / 5);
}

#[test]
fn a_log_that_cannot_be_written_does_not_hold_up_requests() {
    // A pipe that nobody reads fills up and then blocks its writer.
    let backend = Backend::saying("ok");
    let config = format!("[log]\naccess = \"@dir/pipe\"\n{ONE_POOL}{NO_PROBES}");
    let mkfifo = "mkfifo \"$(dirname \"$4\")/pipe\" && exec 9<>\"$(dirname \"$4\")/pipe\" && exec \"$@\"";
    let weir = Setup::of(&config).with("app", backend.address()).under(&["sh", "-c", mkfifo, "sh"]).start();
    let mut client = weir.client("web");
    let agent = "x".repeat(1000);
    for _ in 0..3000 {
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nuser-agent: {agent}\r\n\r\n"));
        client.receives_status(200);
    }
}
