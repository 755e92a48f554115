//! Conditions of clients, answered from memory (RFC 9110 §13, RFC 9111 §4.3.2).

use super::{is_hit, ok, site, site_sending};

const TAGGED: &str = "cache-control: max-age=60\netag: \"a\"\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT\ncontent-type: text/plain\nx-a: 1";

#[test]
fn a_client_that_has_it_gets_a_304_from_memory() {
    let site = site_sending("", TAGGED);
    site.get("/", &[]);
    for condition in [
        "if-none-match: \"a\"",
        "if-none-match: W/\"a\"",
        "if-none-match: \"b\", \"a\"",
        "if-none-match: *",
        "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT",
        "if-modified-since: Sunday, 06-Nov-94 08:49:37 GMT",
        "if-modified-since: Sun Nov  6 08:49:37 1994",
    ] {
        let answer = site.get("/", &[condition]);
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{condition}: {answer:?}");
        assert!(is_hit(&answer), "{condition}");
        assert_eq!(answer.fields.one("etag"), Some("\"a\""));
        assert_eq!(answer.fields.one("x-a"), Some("1"));
        assert!(answer.fields.one("cache-control").is_some() && answer.fields.one("date").is_some());
        for content in ["content-length", "content-type", "transfer-encoding"] {
            assert_eq!(answer.fields.one(content), None, "{content}");
        }
    }
    assert_eq!(site.served(), 1);
}

#[test]
fn a_client_that_has_something_else_gets_it_whole() {
    let site = site_sending("", TAGGED);
    site.get("/", &[]);
    for conditions in [
        &["if-none-match: \"b\""][..],
        &["if-none-match: a"],
        &["if-modified-since: Sun, 06 Nov 1994 08:49:36 GMT"],
        &["if-modified-since: yesterday"],
        &["if-none-match: \"b\"", "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT"],
    ] {
        let answer = site.get("/", conditions);
        assert_eq!((answer.status, answer.text().as_str()), (200, "0"), "{conditions:?}");
        assert!(is_hit(&answer));
    }
    assert_eq!(site.served(), 1);
}

#[test]
fn preconditions_that_are_for_the_origin_go_to_it() {
    let site = site("", |request, _| match request.fields.one("if-match") {
        Some("\"b\"") => super::reply(412, "", ""),
        _ => ok(TAGGED, "whole"),
    });
    site.get("/", &[]);
    assert_eq!(site.get("/", &["if-match: \"b\""]).status, 412);
    assert!(is_hit(&site.get("/", &[])));
    assert_eq!(site.served(), 2);
}
