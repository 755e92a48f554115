//! What is kept, and for how long (RFC 9111 §3, §4.2).

use super::{age_of, is_hit, ok, reply, site, site_sending, status_of};

#[test]
fn a_fresh_response_answers_without_the_origin() {
    let site = site_sending("", "cache-control: max-age=60\ncontent-type: text/plain\nx-a: 1");
    let first = site.get("/page", &[]);
    assert!(!is_hit(&first));
    assert!(status_of(&first).contains("fwd=uri-miss"), "{first:?}");
    for _ in 0..3 {
        let next = site.get("/page", &[]);
        assert!(is_hit(&next), "{next:?}");
        assert!(age_of(&next) <= 30);
        assert_eq!((next.status, next.text().as_str()), (200, "0"));
        assert_eq!(next.fields.one("x-a"), Some("1"));
        assert_eq!(next.fields.one("content-length"), Some("1"));
        assert!(next.fields.one("date").is_some());
    }
    assert_eq!(site.served(), 1);
}

#[test]
fn lifetimes_come_from_the_response() {
    let site = site("", |request, before| {
        let line = match request.target.as_str() {
            "/s-maxage" => "cache-control: max-age=0, s-maxage=60",
            "/expires" => "date: Sun, 06 Nov 1994 08:49:37 GMT\nexpires: Sun, 06 Nov 2094 08:49:37 GMT",
            "/targeted" => "cache-control: no-store\ncdn-cache-control: max-age=60",
            "/quoted" => "cache-control: max-age=\"60\"",
            "/upper" => "Cache-Control: MAX-AGE=60",
            "/two-lines" => "cache-control: public\ncache-control: max-age=60",
            "/heuristic" => "last-modified: Sun, 06 Nov 1994 08:49:37 GMT",
            "/understood" => "cache-control: no-store, must-understand, max-age=60",
            _ => "",
        };
        ok(line, before.to_string())
    });
    for kept in
        ["/s-maxage", "/expires", "/targeted", "/quoted", "/upper", "/two-lines", "/heuristic", "/understood"]
    {
        assert!(site.is_kept(kept, &[]), "{kept}");
    }
    assert!(!site.is_kept("/nothing", &[]));
}

/// Threat E3.
#[test]
fn what_is_private_or_not_to_be_stored_is_fetched_each_time() {
    let site = site("", |request, before| {
        let line = match request.target.as_str() {
            "/private" => "cache-control: private, max-age=60",
            "/no-store" => "cache-control: no-store, max-age=60",
            "/both" => "cache-control: public, max-age=60\ncache-control: no-store",
            "/set-cookie" => "cache-control: max-age=60\nset-cookie: session=1",
            "/targeted" => "cache-control: max-age=60\ncdn-cache-control: private",
            "/public-private" => "cache-control: public, private, max-age=60",
            _ => "",
        };
        ok(line, before.to_string())
    });
    for target in ["/private", "/no-store", "/both", "/set-cookie", "/targeted", "/public-private"] {
        assert!(!site.is_kept(target, &[]), "{target}");
    }
    assert_eq!(site.get("/set-cookie", &[]).fields.one("set-cookie"), Some("session=1"));
}

/// Threat E3.
#[test]
fn set_cookie_is_stripped_from_what_is_kept_where_the_operator_says_so() {
    let site = site_sending("set_cookie = \"strip\"", "cache-control: max-age=60\nset-cookie: session=1");
    assert_eq!(site.get("/", &[]).fields.one("set-cookie"), Some("session=1"));
    let second = site.get("/", &[]);
    assert!(is_hit(&second));
    assert_eq!(second.fields.one("set-cookie"), None);
}

/// Threat E3.
#[test]
fn responses_to_authorized_requests_are_kept_only_when_they_say_that_all_may_have_them() {
    let site = site("", |request, before| {
        let line = match request.target.as_str() {
            "/public" => "cache-control: max-age=60, public",
            "/shared" => "cache-control: s-maxage=60",
            "/must-revalidate" => "cache-control: max-age=60, must-revalidate",
            _ => "cache-control: max-age=60",
        };
        ok(line, before.to_string())
    });
    let secret = ["authorization: Basic dTpw"];
    assert!(!site.is_kept("/plain", &secret));
    for kept in ["/public", "/shared", "/must-revalidate"] {
        assert!(site.is_kept(kept, &secret), "{kept}");
    }
}

/// Threat E8.
#[test]
fn freshness_that_nobody_can_read_is_none() {
    let lines = [
        "cache-control: max-age=abc",
        "cache-control: max-age=-60",
        "cache-control: max-age=1.5",
        "cache-control: max-age=60, max-age=0",
        "cache-control: max-age=60; private",
        "cache-control: max-age=60, no-cache=\"x",
        "expires: 0",
        "expires: soon",
        "date: Sun, 06 Nov 1994 08:49:37 GMT\nexpires: Sun, 06 Nov 1994 08:49:37 GMT",
        "cache-control: max-age=60\nage: 60",
        "cache-control: max-age=60\nage: 99999999999999999999",
        "cache-control: max-age=60\ndate: Sun, 06 Nov 1994 08:49:37 GMT",
        "cdn-cache-control: max-age=0\ncache-control: max-age=60",
    ];
    let site = site("", move |request, before| {
        let number: usize = request.target.trim_start_matches('/').parse().expect("a number");
        ok(lines[number], before.to_string())
    });
    for (number, line) in lines.iter().enumerate() {
        assert!(!site.is_kept(&format!("/{number}"), &[]), "{line}");
    }
}

#[test]
fn the_age_that_a_response_had_is_added_to() {
    let site = site_sending("", "cache-control: max-age=100\nage: 40");
    site.get("/", &[]);
    let second = site.get("/", &[]);
    assert!(is_hit(&second));
    assert!((40..60).contains(&age_of(&second)), "{second:?}");
}

#[test]
fn what_says_nothing_is_kept_as_long_as_the_operator_says() {
    let site = site("ttl = \"60s\"\nnegative_ttl = \"60s\"", |request, before| {
        let status = match request.target.as_str() {
            "/missing" => 404,
            "/gone" => 410,
            "/moved" => 301,
            "/found" => 302,
            "/bad" => 400,
            "/broken" => 500,
            "/away" => 503,
            _ => 200,
        };
        let line = if request.target == "/never" { "cache-control: max-age=0" } else { "" };
        reply(status, line, before.to_string())
    });
    for kept in ["/", "/missing", "/gone", "/moved"] {
        assert!(site.is_kept(kept, &[]), "{kept}");
    }
    for fetched in ["/found", "/bad", "/broken", "/away", "/never"] {
        assert!(!site.is_kept(fetched, &[]), "{fetched}");
    }
}

#[test]
fn without_negative_ttl_what_is_missing_is_asked_for_each_time() {
    let site = site("ttl = \"60s\"", |_, before| reply(404, "", before.to_string()));
    assert!(!site.is_kept("/", &[]));
}

#[test]
fn nothing_is_fresh_for_longer_than_the_operator_says() {
    let site = site_sending("ttl_max = \"50s\"", "cache-control: max-age=1000\nage: 60\netag: \"a\"");
    site.get("/", &[]);
    assert!(!is_hit(&site.get("/", &[])));
}

#[test]
fn what_is_too_large_goes_through_whole_and_is_not_kept() {
    let site = site("object_max = \"10KiB\"", |_, _| ok("cache-control: max-age=60", "x".repeat(20_000)));
    for asked in 1..=2 {
        assert_eq!(site.get("/", &[]).body.len(), 20_000);
        assert_eq!(site.served(), asked);
    }
}

#[test]
fn head_is_answered_from_a_kept_get_and_keeps_nothing_itself() {
    let site = site_sending("", "cache-control: max-age=60");
    let first = site.curl("/", &[], &["--head"]);
    assert_eq!((first.status, site.asked()[0].method.as_str()), (200, "HEAD"));
    assert!(!is_hit(&first));
    site.get("/", &[]);
    assert_eq!(site.served(), 2);
    let third = site.curl("/", &[], &["--head"]);
    assert!(is_hit(&third), "{third:?}");
    assert_eq!((site.served(), third.fields.one("content-length")), (2, Some("1")));
}

#[test]
fn fields_that_a_response_withholds_are_not_kept() {
    let site = site_sending(
        "",
        "cache-control: max-age=60, no-cache=\"x-own\", private=x-mine\nx-own: 1\nx-mine: 2\nx-all: 3",
    );
    let first = site.get("/", &[]);
    assert_eq!((first.fields.one("x-own"), first.fields.one("x-mine")), (Some("1"), Some("2")));
    let second = site.get("/", &[]);
    assert!(is_hit(&second));
    let fields = ["x-own", "x-mine", "x-all"].map(|name| second.fields.one(name));
    assert_eq!(fields, [None, None, Some("3")]);
}

#[test]
fn a_request_that_says_no_store_leaves_nothing() {
    let site = site_sending("", "cache-control: max-age=60");
    site.get("/", &["cache-control: no-store"]);
    assert!(!is_hit(&site.get("/", &[])));
    assert!(is_hit(&site.get("/", &[])));
}
