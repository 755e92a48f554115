//! What a client gets from memory.

use std::time::Duration;

use weir_tests::dialogue::{After, Backend, PATIENCE, ScriptedBackend, Setup, run_tool, tool, until};

use super::{KEEPS, before, get, status};

fn keeping(fields: &'static [(&'static str, &'static str)]) -> Backend {
    Backend::serving(move |request, wire| {
        let not_modified = fields
            .iter()
            .any(|(name, value)| *name == "etag" && request.fields.one("if-none-match") == Some(*value));
        if not_modified {
            wire.answers(304, fields, "");
        } else if request.method == "HEAD" {
            wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n");
        } else {
            wire.answers(200, fields, "0123456789");
        }
        After::Keep
    })
}

#[test]
fn the_second_request_is_answered_from_memory() {
    let backend = keeping(&[("cache-control", "max-age=60"), ("x-request-id", "theirs"), ("etag", "\"1\"")]);
    let weir = before(&backend);
    let first = get(&weir, "/a", "");
    assert_eq!(status(&first), "weir; fwd=uri-miss; fwd-status=200; stored");
    assert_eq!(first.fields.one("age"), None, "it came from the backend");
    let second = get(&weir, "/a", "x-request-id: mine\r\n");
    assert_eq!(second.text(), "0123456789");
    assert!(status(&second).starts_with("weir; hit; ttl="), "{}", status(&second));
    assert_eq!(second.fields.all("age"), ["0"]);
    assert_eq!(second.fields.one("etag"), Some("\"1\""));
    assert_eq!(
        second.fields.all("x-request-id"),
        ["mine"],
        "that of the request it was fetched for is not told"
    );
    assert!(second.fields.one("date").is_some());
    assert_eq!(backend.served(), 1);
    weir.reaches("weir_cache_requests_total", &[("listener", "web"), ("result", "hit")], 1.0);
}

#[test]
fn head_conditions_and_ranges_are_answered_from_the_whole() {
    let backend = keeping(&[("cache-control", "max-age=60"), ("etag", "\"1\"")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    let part = get(&weir, "/a", "range: bytes=2-4\r\n");
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(part.fields.one("content-range"), Some("bytes 2-4/10"));
    let tail = get(&weir, "/a", "range: bytes=-3\r\n");
    assert_eq!((tail.status, tail.text().as_str()), (206, "789"));
    let beyond = get(&weir, "/a", "range: bytes=10-\r\n");
    assert_eq!((beyond.status, beyond.fields.one("content-range")), (416, Some("bytes */10")));
    let known = get(&weir, "/a", "if-none-match: \"1\"\r\n");
    assert_eq!((known.status, known.body.len()), (304, 0));
    let mut client = weir.client("web");
    client.sends("HEAD /a HTTP/1.1\r\nhost: a.example\r\n\r\nGET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    let head = client.receives_response_to("HEAD");
    assert_eq!((head.status, head.fields.one("content-length")), (200, Some("10")));
    assert_eq!(client.receives_response().text(), "0123456789", "nothing followed the head");
    assert_eq!(backend.served(), 1);
}

#[test]
fn a_range_of_what_is_not_there_yet_fetches_the_whole() {
    let backend = keeping(&[("cache-control", "max-age=60")]);
    let weir = before(&backend);
    let part = get(&weir, "/a", "range: bytes=0-1\r\n");
    assert_eq!((part.status, part.text().as_str()), (206, "01"));
    assert_eq!(backend.requests()[0].fields.one("range"), None);
    assert_eq!(get(&weir, "/a", "").text(), "0123456789");
    assert_eq!(backend.served(), 1);
}

#[test]
fn what_is_too_old_is_confirmed_once() {
    let backend = keeping(&[("cache-control", "max-age=1"), ("etag", "\"1\"")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    std::thread::sleep(Duration::from_millis(1100));
    let confirmed = get(&weir, "/a", "");
    assert_eq!(confirmed.text(), "0123456789");
    assert!(status(&confirmed).contains("fwd=stale; fwd-status=304"), "{}", status(&confirmed));
    assert_eq!(backend.requests()[1].fields.one("if-none-match"), Some("\"1\""));
    assert!(status(&get(&weir, "/a", "")).starts_with("weir; hit"));
    assert_eq!(backend.served(), 2);
}

#[test]
fn a_stale_answer_is_given_while_it_is_fetched_anew() {
    let backend = keeping(&[("cache-control", "max-age=1, stale-while-revalidate=60"), ("etag", "\"1\"")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    std::thread::sleep(Duration::from_millis(1100));
    let stale = get(&weir, "/a", "");
    assert_eq!((stale.text().as_str(), stale.fields.one("age")), ("0123456789", Some("1")));
    until("it was fetched anew", || (backend.served() == 2).then_some(()));
    until("what was fetched is given", || {
        (get(&weir, "/a", "").fields.one("age") == Some("0")).then_some(())
    });
    weir.reaches("weir_cache_requests_total", &[("listener", "web"), ("result", "stale")], 1.0);
}

#[test]
fn a_dead_backend_leaves_what_is_kept_and_nothing_else() {
    let backend = keeping(&[("cache-control", "max-age=1")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    std::thread::sleep(Duration::from_millis(1100));
    backend.dies();
    let stale = get(&weir, "/a", "");
    assert_eq!((stale.status, stale.text().as_str()), (200, "0123456789"));
    assert!(status(&stale).starts_with("weir; hit; ttl=-"), "{}", status(&stale));
    assert_eq!(get(&weir, "/b", "").status, 502);
    let nothing_else = get(&weir, "/b", "cache-control: only-if-cached\r\n");
    assert_eq!(nothing_else.status, 504);
}

#[test]
fn what_must_be_confirmed_is_not_given_when_the_backend_is_dead() {
    let backend = keeping(&[("cache-control", "max-age=1, must-revalidate")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    std::thread::sleep(Duration::from_millis(1100));
    backend.dies();
    assert!(matches!(get(&weir, "/a", "").status, 502 | 504));
}

#[test]
fn an_unsafe_method_puts_what_is_kept_out() {
    let backend = keeping(&[("cache-control", "max-age=60"), ("location", "/b")]);
    let weir = before(&backend);
    get(&weir, "/a", "");
    get(&weir, "/b", "");
    let mut client = weir.client("web");
    client.sends("POST /a HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n\r\nhi");
    let posted = client.receives_response();
    assert!(status(&posted).contains("fwd=method"), "{}", status(&posted));
    assert!(status(&get(&weir, "/a", "")).contains("fwd=uri-miss"));
    assert!(status(&get(&weir, "/b", "")).contains("fwd=uri-miss"), "the answer named it in `location`");
}

#[test]
fn what_is_kept_survives_a_reload() {
    let backend = keeping(&[("cache-control", "max-age=60")]);
    let mut weir = before(&backend);
    get(&weir, "/a", "");
    weir.reloads(&format!("{KEEPS}\n[pool.other]\nbackends = [\"127.0.0.1:1\"]\n"));
    assert!(status(&get(&weir, "/a", "")).starts_with("weir; hit"));
    assert_eq!(backend.served(), 1);
}

#[test]
fn each_variant_is_kept_for_itself() {
    let backend = Backend::serving(|request, wire| {
        let language = request.fields.one("accept-language").unwrap_or("none").to_owned();
        wire.answers(200, &[("cache-control", "max-age=60"), ("vary", "accept-language")], language);
        After::Keep
    });
    let weir = before(&backend);
    for language in ["de", "fr", "de", "fr"] {
        let response = get(&weir, "/a", &format!("accept-language: {language}\r\n"));
        assert_eq!(response.text(), language);
    }
    assert_eq!(backend.served(), 2);
}

#[test]
fn the_log_says_what_became_of_each() {
    let backend = keeping(&[("cache-control", "max-age=60")]);
    let config = format!("[log]\naccess = \"@dir/access.log\"\n{KEEPS}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    // Each worker writes its own lines: on one connection they stand in order.
    let mut client = weir.client("web");
    for _ in 0..2 {
        client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
        client.receives_status(200);
    }
    let lines = weir.lines_of("access.log", 2);
    assert!(lines[0].contains("\"cache\":\"miss\""), "{}", lines[0]);
    assert!(lines[0].contains(&format!("\"backend\":\"{}\"", backend.address())), "{}", lines[0]);
    assert!(lines[1].contains("\"cache\":\"hit\""), "{}", lines[1]);
    assert!(lines[1].contains("\"backend\":null") || !lines[1].contains("\"backend\":\""), "{}", lines[1]);
}

#[test]
fn explain_says_what_the_cache_would() {
    let backend = keeping(&[("cache-control", "max-age=60")]);
    let weir = before(&backend);
    let ask = || weir.command(&["explain", "http", "GET", "http://a.example/a", "--listener", "web"]).stdout;
    assert!(ask().contains("cache    nothing is kept: it is fetched"), "{}", ask());
    get(&weir, "/a", "");
    assert!(ask().contains("cache    answered from memory: 200 with 10 bytes"), "{}", ask());
    assert_eq!(backend.served(), 1, "asking what would happen makes nothing happen");
}

#[test]
fn http2_gets_the_same_from_memory() {
    let content = "0123456789abcdef".repeat(20_000);
    let sent = content.clone();
    let backend = Backend::serving(move |_, wire| {
        wire.answers(200, &[("cache-control", "max-age=60"), ("etag", "\"1\"")], &sent);
        After::Keep
    });
    let config = KEEPS.replace("bind = \"@web\"", "bind = \"@web\"\nhttp = [\"h1\", \"h2\"]");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let url = format!("http://{}/a", weir.address("web"));
    let curl = |arguments: &[&str]| {
        let always = ["--http2-prior-knowledge", "--silent", "--max-time", "5", "--noproxy", "*", &url];
        let all: Vec<&str> = always.into_iter().chain(arguments.iter().copied()).collect();
        run_tool(&tool("curl", "curl"), &all, b"", PATIENCE).succeeded().to_owned()
    };
    for _ in 0..2 {
        assert!(curl(&[]) == content);
    }
    let head = curl(&["--head"]);
    assert!(head.starts_with("HTTP/2 200") && head.contains("content-length: 320000"), "{head}");
    assert_eq!(curl(&["--range", "16-19"]), "0123");
    let known = curl(&["--include", "--header", "if-none-match: \"1\""]);
    assert!(known.starts_with("HTTP/2 304"), "{known}");
    assert_eq!(backend.served(), 1);
}

/// RFC 9111 §4, §5.2.2.4: once the head is there, to be answered by it is to reuse it.
#[test]
fn who_comes_after_the_head_of_a_fetch_is_answered_by_it_while_it_may_be_reused() {
    let config = KEEPS.replace("backend = \"3s\"", "backend = \"60s\"").replace("\"2s\"", "\"60s\"");
    for (said, lines, is_shared) in [
        ("max-age=60", "", true),
        ("max-age=60\r\nage: 61", "", false),
        ("no-cache", "", false),
        ("max-age=60", "cache-control: no-cache\r\n", false),
        ("max-age=60\r\nage: 9", "cache-control: max-age=5\r\n", false),
    ] {
        println!("{said:?}, {lines:?}");
        let backend = ScriptedBackend::start();
        let weir = Setup::of(&config).with("app", backend.address()).start();
        let mut first = weir.client("web");
        first.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.sends(format!(
            "HTTP/1.1 200 OK\r\ncache-control: {said}\r\netag: \"1\"\r\ncontent-length: 3\r\n\r\n"
        ));
        assert_eq!(first.receives_head().status, 200);
        let mut second = weir.client("web");
        second.sends(format!("GET /a HTTP/1.1\r\nhost: a.example\r\n{lines}\r\n"));
        if is_shared {
            assert_eq!(second.receives_head().status, 200);
            backend.has_nobody_waiting();
        } else {
            let mut again = backend.accepts();
            again.receives_request();
            again.answers(200, &[("cache-control", "max-age=60")], "new");
            assert_eq!(second.receives_response().text(), "new");
        }
        wire.sends("old");
        first.receives_exactly("old");
    }
}
