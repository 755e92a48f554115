//! Parts, answered from what is kept whole (RFC 9110 §14, RFC 9111 §3.3).

use super::{is_hit, ok, reply, site};

const WHOLE: &str = "0123456789";
const TAGGED: &str = "cache-control: max-age=60\netag: \"a\"\nlast-modified: Sun, 06 Nov 1994 08:49:37 GMT";

#[test]
fn parts_come_from_what_is_kept_whole() {
    let site = site("", |_, _| ok(TAGGED, WHOLE));
    site.get("/", &[]);
    for (range, part, content_range) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
    ] {
        let answer = site.get("/", &[&format!("range: {range}")]);
        assert_eq!((answer.status, answer.text().as_str()), (206, part), "{range}: {answer:?}");
        assert_eq!(answer.fields.one("content-range"), Some(content_range));
        assert_eq!(answer.fields.one("content-length"), Some(part.len().to_string().as_str()));
        assert_eq!(answer.fields.one("etag"), Some("\"a\""));
        assert!(is_hit(&answer));
    }
    let beyond = site.get("/", &["range: bytes=10-"]);
    assert_eq!((beyond.status, beyond.fields.one("content-range")), (416, Some("bytes */10")), "{beyond:?}");
    for whole in ["bytes=0-1,3-4", "rows=0-1", "bytes=4-2"] {
        let answer = site.get("/", &[&format!("range: {whole}")]);
        assert_eq!((answer.status, answer.text().as_str()), (200, WHOLE), "{whole}");
    }
    assert_eq!(site.served(), 1);
}

/// RFC 9110 §14.2: a range means something for GET only.
#[test]
fn the_head_of_a_part_is_that_of_the_whole() {
    let site = site("", |_, _| ok(TAGGED, WHOLE));
    site.get("/", &[]);
    let answer = site.curl("/", &["range: bytes=2-4"], &["--head"]);
    let length = answer.fields.one("content-length");
    assert_eq!((answer.status, length, answer.fields.one("content-range")), (200, Some("10"), None));
    assert!(is_hit(&answer));
}

#[test]
fn a_range_for_something_else_gets_the_whole() {
    let site = site("", |_, _| ok(TAGGED, WHOLE));
    site.get("/", &[]);
    for (validator, status) in [
        ("\"a\"", 206),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 206),
        ("\"b\"", 200),
        ("W/\"a\"", 200),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 200),
    ] {
        let answer = site.get("/", &["range: bytes=2-4", &format!("if-range: {validator}")]);
        assert_eq!(answer.status, status, "{validator}");
    }
}

#[test]
fn a_range_of_what_is_not_kept_yet_fetches_the_whole() {
    let site = site("", |request, _| match request.fields.one("range") {
        None => ok(TAGGED, WHOLE),
        Some(_) => reply(206, "cache-control: max-age=60\ncontent-range: bytes 2-4/10", "234"),
    });
    let first = site.get("/", &["range: bytes=2-4"]);
    assert_eq!((first.status, first.text().as_str()), (206, "234"), "{first:?}");
    let second = site.get("/", &[]);
    assert_eq!((second.status, second.text().as_str()), (200, WHOLE), "{second:?}");
    assert_eq!(site.served(), 1);
    assert_eq!(site.asked()[0].fields.one("range"), None);
}

/// Threat E7. An origin that sends a part where the whole was asked for is asked again, as the client asked.
#[test]
fn a_part_from_the_origin_is_never_kept() {
    let site = site("", |_, before| {
        reply(206, "cache-control: max-age=60\netag: \"a\"\ncontent-range: bytes 0-0/10", before.to_string())
    });
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let answer = site.get("/", &["range: bytes=0-0"]);
        assert!(!is_hit(&answer), "{answer:?}");
        assert!(seen.insert(answer.text()), "{seen:?}");
    }
}
