//! Taking out what is kept.

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup};

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

#[test]
fn an_order_that_is_none_is_refused() {
    let weir = before(&tagged());
    for order in ["{}", r#"{"path": "/a", "tag": "b"}"#, r#"{"pathh": "/a"}"#] {
        assert_eq!(weir.admin().calls("POST", "/v1/cache/purge", &[], order).status(), 400, "{order}");
    }
}
