//! Asking the origin whether what is kept is still good (RFC 9111 §4.3).

use super::{age_of, is_hit, ok, reply, site, site_sending, status_of};

const NEVER_FRESH: &str = "cache-control: no-cache\netag: \"a\"";

#[test]
fn what_says_no_cache_is_validated_each_time_by_its_tag() {
    let site = site("", |request, before| match request.fields.one("if-none-match") {
        Some("\"a\"") => reply(304, "etag: \"a\"", ""),
        _ => ok(NEVER_FRESH, before.to_string()),
    });
    for asked in 1..=3 {
        let answer = site.get("/", &[]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "0"), "{answer:?}");
        assert_eq!(site.served(), asked);
    }
    let asked = site.asked();
    assert_eq!(asked[0].fields.one("if-none-match"), None);
    assert_eq!(asked[1].fields.one("if-none-match"), Some("\"a\""));
}

#[test]
fn what_has_no_tag_is_validated_by_its_date() {
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let site = site("", |request, before| match request.fields.one("if-modified-since") {
        Some(DATE) => reply(304, "", ""),
        _ => ok(&format!("cache-control: max-age=0\nlast-modified: {DATE}"), before.to_string()),
    });
    assert_eq!(site.bodies("/", &[], 3), ["0", "0", "0"]);
    assert_eq!(site.asked()[2].fields.one("if-modified-since"), Some(DATE));
}

#[test]
fn a_304_makes_it_fresh_again_and_its_fields_take_the_place_of_the_old_ones() {
    let site = site("", |request, before| match request.fields.one("if-none-match") {
        Some(_) => reply(304, "etag: \"a\"\ncache-control: max-age=60\nx-changed: 2\nage: 7", ""),
        None => ok("cache-control: max-age=0\netag: \"a\"\nx-kept: 1\nx-changed: 1", before.to_string()),
    });
    site.get("/", &[]);
    let second = site.get("/", &[]);
    assert!(status_of(&second).contains("fwd=stale"), "{second:?}");
    for _ in 0..2 {
        let next = site.get("/", &[]);
        assert!(is_hit(&next), "{next:?}");
        assert_eq!((next.status, next.text().as_str()), (200, "0"));
        assert_eq!((next.fields.one("x-kept"), next.fields.one("x-changed")), (Some("1"), Some("2")));
        assert!((7..30).contains(&age_of(&next)), "{next:?}");
    }
    assert_eq!(site.served(), 2);
}

#[test]
fn a_200_to_the_question_takes_the_place_of_what_was_kept() {
    let site = site("", |_, before| match before {
        0 => ok("cache-control: max-age=0\netag: \"a\"", "old"),
        _ => ok("cache-control: max-age=60\netag: \"b\"", "new"),
    });
    assert_eq!(site.bodies("/", &[], 3), ["old", "new", "new"]);
    assert_eq!(site.served(), 2);
}

/// Threat E7.
#[test]
fn a_304_of_something_else_is_not_mixed_with_what_is_kept() {
    let site = site("", |request, before| match (before, request.fields.one("if-none-match")) {
        (0, _) => ok(NEVER_FRESH, "old"),
        (1, Some(_)) => reply(304, "etag: \"b\"\nx-of: b", ""),
        (_, None) => ok("cache-control: max-age=60\netag: \"b\"\nx-of: b", "new"),
        (_, Some(_)) => reply(500, "", "asked again with conditions"),
    });
    assert_eq!(site.get("/", &[]).text(), "old");
    let second = site.get("/", &[]);
    assert_eq!((second.status, second.text().as_str()), (200, "new"), "{second:?}");
    assert_eq!(site.asked()[2].fields.one("if-none-match"), None);
    assert_eq!(site.get("/", &[]).text(), "new");
    assert_eq!(site.served(), 3);
}

#[test]
fn the_conditions_of_a_client_do_not_reach_the_origin_of_what_may_be_kept() {
    let site = site_sending("", "cache-control: max-age=60\netag: \"a\"");
    let first = site.get("/", &["if-none-match: \"a\""]);
    assert_eq!(first.status, 304, "{first:?}");
    assert_eq!(site.asked()[0].fields.one("if-none-match"), None);
    let second = site.get("/", &[]);
    assert!(is_hit(&second));
    assert_eq!((second.status, second.text().as_str()), (200, "0"));
}

/// RFC 9111 §3.5. What confirms an answer to one with credentials says nothing to others.
#[test]
fn what_a_304_says_to_an_authorized_client_stays_with_it() {
    let site = site("", |request, before| match request.fields.one("if-none-match") {
        Some("\"a\"") => reply(
            304,
            &format!("etag: \"a\"\nx-for: {}", request.fields.one("authorization").unwrap_or("all")),
            "",
        ),
        _ => ok("cache-control: max-age=0\netag: \"a\"", before.to_string()),
    });
    site.get("/", &[]);
    let authorized = site.get("/", &["authorization: me"]);
    assert_eq!((authorized.text().as_str(), authorized.fields.one("x-for")), ("0", Some("me")));
    let other = site.get("/", &["cache-control: max-stale=60"]);
    assert_eq!(
        (other.text().as_str(), other.fields.one("x-for"), site.served()),
        ("0", None, 2),
        "it is still kept"
    );
}

#[test]
fn what_is_not_for_others_is_asked_for_once_and_as_the_client_asks() {
    let site = site_sending("", "cache-control: max-age=60\netag: \"a\"");
    let wanted = ["authorization: me", "if-none-match: \"b\""];
    site.get("/", &wanted);
    let before = site.served();
    site.get("/", &wanted);
    assert_eq!(site.served(), before + 1, "it is known now that it is not for others");
    site.get("/", &["cache-control: no-store", "if-none-match: \"b\""]);
    assert_eq!(site.served(), before + 2);
    assert_eq!(site.asked()[before + 1].fields.one("if-none-match"), Some("\"b\""));
    // Others have not asked yet.
    assert!(site.is_kept("/", &[]));
}

#[test]
fn a_client_can_have_what_is_fresh_validated() {
    let site = site("", |request, before| match request.fields.one("if-none-match") {
        Some("\"a\"") => reply(304, "etag: \"a\"", ""),
        _ => ok("cache-control: max-age=60\netag: \"a\"", before.to_string()),
    });
    site.get("/", &[]);
    for (wanted, asked) in [
        ("cache-control: no-cache", 2),
        ("pragma: no-cache", 3),
        ("cache-control: max-age=60", 3),
        ("cache-control: min-fresh=1000", 4),
    ] {
        let answer = site.get("/", &[wanted]);
        assert_eq!((answer.status, answer.text().as_str(), site.served()), (200, "0", asked), "{wanted}");
    }
}

#[test]
fn clients_have_no_say_where_the_operator_says_so() {
    let site = site_sending("honour_client = false", "cache-control: max-age=60");
    site.get("/", &["cache-control: no-store"]);
    for wanted in ["no-cache", "max-age=0", "no-store", "only-if-cached, no-cache"] {
        assert!(is_hit(&site.get("/", &[&format!("cache-control: {wanted}")])), "{wanted}");
    }
    assert_eq!(site.served(), 1);
}

#[test]
fn a_client_that_wants_no_fetch_gets_a_504_where_there_is_nothing() {
    let site = site_sending("", "cache-control: max-age=60");
    let wanted = ["cache-control: only-if-cached"];
    assert_eq!(site.get("/", &wanted).status, 504);
    assert_eq!(site.served(), 0);
    site.get("/", &[]);
    assert!(is_hit(&site.get("/", &wanted)));
    assert_eq!(site.served(), 1);
}
