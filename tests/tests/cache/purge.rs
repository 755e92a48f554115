//! Taking out what is kept.

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, until};

use super::{KEEPS, before, get, status};

fn tagged() -> Backend {
    Backend::serving(|request, wire| {
        if request.fields.one("if-none-match").is_some() {
            wire.answers(304, &[("etag", "\"1\"")], "");
            return After::Keep;
        }
        let tag = if request.target.starts_with("/news") { "news all" } else { "all" };
        wire.answers(200, &[("cache-control", "max-age=60"), ("surrogate-key", tag), ("etag", "\"1\"")], "x");
        After::Keep
    })
}

#[test]
fn paths_prefixes_tags_and_all_are_purged() {
    let backend = tagged();
    let weir = before(&backend);
    let paths = ["/news/1", "/news/2?a=b", "/shop/1", "/shop/2"];
    for (order, purged, left) in [
        (r#"{"host": "a.example", "path": "/news/2"}"#, 1, [true, false, true, true]),
        (r#"{"prefix": "/shop/"}"#, 2, [true, true, false, false]),
        (r#"{"tag": "news"}"#, 2, [false, false, true, true]),
        (r#"{"host": "b.example"}"#, 0, [true, true, true, true]),
        (r#"{"all": true}"#, 4, [false, false, false, false]),
    ] {
        for path in paths {
            get(&weir, path, "");
        }
        let answer = weir.admin().calls("POST", "/v1/cache/purge", &[], order);
        assert_eq!((answer.status(), answer.json()["purged"].as_u64()), (200, Some(purged)), "{order}");
        for (path, left) in paths.iter().zip(left) {
            assert_eq!(status(&get(&weir, path, "")).starts_with("weir; hit"), left, "{order}: {path}");
        }
    }
}

#[test]
fn a_soft_purge_has_everything_confirmed() {
    let backend = tagged();
    let weir = before(&backend);
    get(&weir, "/shop/1", "");
    let finished = weir.command(&["cache", "purge", "--tag", "all", "--soft"]);
    assert!(finished.stdout.contains("1 response made out of date"), "{finished:?}");
    let confirmed = get(&weir, "/shop/1", "");
    assert!(status(&confirmed).contains("fwd-status=304"), "{}", status(&confirmed));
    assert!(status(&get(&weir, "/shop/1", "")).starts_with("weir; hit"));
}

#[test]
fn what_was_being_fetched_when_it_was_purged_is_not_kept() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(KEEPS).with("app", backend.address()).start();
    let mut client = weir.client("web");
    client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    let mut wire = backend.accepts();
    wire.receives_request();
    let answer = weir.admin().calls("POST", "/v1/cache/purge", &[], r#"{"path": "/a"}"#);
    assert_eq!(answer.json()["purged"].as_u64(), Some(0));
    wire.answers(200, &[("cache-control", "max-age=60")], "old");
    assert_eq!(client.receives_response().text(), "old", "who had asked before gets it");
    client.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    wire.receives_request();
    wire.answers(200, &[("cache-control", "max-age=60")], "new");
    assert_eq!(client.receives_response().text(), "new");
}

/// A client that has asked for the path, and the backend's side of it.
fn asks(weir: &Weir, backend: &ScriptedBackend, line: &str) -> (Wire, Wire) {
    let mut client = weir.client("web");
    client.sends(format!("{line} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
    let mut wire = backend.accepts();
    wire.receives_request();
    (client, wire)
}

const OLD_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\nsurrogate-key: any\r\ncontent-length: 3\r\n\r\n";

/// As [`KEEPS`], for tests that decide themselves when something comes.
fn patient() -> String {
    KEEPS.replace("backend = \"3s\"", "backend = \"60s\"").replace("\"2s\"", "\"60s\"")
}

#[test]
fn who_asks_after_a_purge_or_an_unsafe_request_gets_nothing_of_a_fetch_that_began_before() {
    for (number, change) in
        [r#"{"all": true}"#, r#"{"path": "/P"}"#, r#"{"tag": "any"}"#, "POST"].into_iter().enumerate()
    {
        for head_first in [false, true] {
            println!("{change}, the head before it: {head_first}");
            let path = format!("/{number}{head_first}");
            let backend = ScriptedBackend::start();
            let weir = Setup::of(&patient()).with("app", backend.address()).start();
            let (mut before, mut old) = asks(&weir, &backend, &format!("GET {path}"));
            if head_first {
                old.sends(OLD_HEAD);
                assert_eq!(before.receives_head().status, 200);
            }
            if change == "POST" {
                let (mut client, mut wire) = asks(&weir, &backend, &format!("POST {path}"));
                wire.answers(200, &[], "done");
                assert_eq!(client.receives_response().status, 200);
            } else {
                let order = change.replace("/P", &path);
                assert_eq!(weir.admin().calls("POST", "/v1/cache/purge", &[], &order).status(), 200);
            }
            let (mut after, mut new) = asks(&weir, &backend, &format!("GET {path}"));
            // The old one ends first, and takes the new one out of nobody's way.
            if !head_first {
                old.sends(OLD_HEAD);
                assert_eq!(before.receives_head().status, 200);
            }
            old.sends("old");
            before.receives_exactly("old");
            let mut waits = weir.client("web");
            waits.sends(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
            new.answers(200, &[("cache-control", "max-age=60")], "new");
            assert_eq!(after.receives_response().text(), "new");
            assert_eq!(waits.receives_response().text(), "new");
            let kept = get(&weir, &path, "");
            assert!(status(&kept).starts_with("weir; hit") && kept.text() == "new", "{kept:?}");
            backend.has_nobody_waiting();
        }
    }
}

#[test]
fn what_is_not_purged_is_fetched_once_for_all_as_before() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&patient()).with("app", backend.address()).start();
    let (mut before, mut wire) = asks(&weir, &backend, "GET /a");
    wire.sends(OLD_HEAD);
    assert_eq!(before.receives_head().status, 200);
    for order in [r#"{"path": "/b"}"#, r#"{"prefix": "/c"}"#, r#"{"host": "b.example"}"#] {
        assert_eq!(weir.admin().calls("POST", "/v1/cache/purge", &[], order).status(), 200);
        let mut after = weir.client("web");
        after.sends("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
        assert_eq!(after.receives_head().status, 200, "{order}");
    }
    wire.sends("old");
    before.receives_exactly("old");
    backend.has_nobody_waiting();
}

/// A fetch in the background is joined like any other, and is not waited for by those who get what is stale.
#[test]
fn a_soft_purge_has_what_is_being_refreshed_refreshed_anew() {
    let backend = ScriptedBackend::start();
    let config = patient().replace("stale_if_error", "stale_while_revalidate = \"1h\"\nstale_if_error");
    // One worker, so that what is fetched in the background comes by the connection that is kept.
    let config = format!("[runtime]\nworkers = 1\n{config}");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let (mut first, mut wire) = asks(&weir, &backend, "GET /a");
    wire.answers(200, &[("cache-control", "max-age=0"), ("etag", "\"1\"")], "one");
    assert_eq!(first.receives_response().text(), "one");
    let purge = || weir.admin().calls("POST", "/v1/cache/purge", &[], r#"{"all": true, "soft": true}"#);
    assert_eq!(get(&weir, "/a", "").text(), "one", "stale, and fetched anew");
    wire.receives_request();
    assert_eq!(purge().status(), 200);
    assert_eq!(get(&weir, "/a", "").text(), "one", "stale, and fetched anew once more");
    let mut again = backend.accepts();
    again.receives_request();
    wire.answers(200, &[("cache-control", "max-age=60")], "old");
    again.answers(200, &[("cache-control", "max-age=60")], "new");
    until("the later one is kept", || {
        let kept = get(&weir, "/a", "");
        assert_ne!(kept.text(), "old");
        (kept.text() == "new").then_some(())
    });
}

#[test]
fn an_order_that_is_none_is_refused() {
    let weir = before(&tagged());
    for order in ["{}", r#"{"path": "/a", "tag": "b"}"#, r#"{"pathh": "/a"}"#] {
        assert_eq!(weir.admin().calls("POST", "/v1/cache/purge", &[], order).status(), 400, "{order}");
    }
}
