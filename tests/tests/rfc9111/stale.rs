//! Stale answers, where they are allowed and where they are not (RFC 9111 §4.2.4, RFC 5861).

use std::time::{Duration, Instant};

use super::{is_hit, ok, reply, site, site_sending};
use weir_tests::dialogue::until;

#[test]
fn a_stale_one_answers_at_once_while_it_is_fetched_anew() {
    let site = site_sending("", "cache-control: max-age=0, stale-while-revalidate=60");
    assert_eq!(site.get("/", &[]).text(), "0");
    let second = site.get("/", &[]);
    assert_eq!(second.text(), "0", "{second:?}");
    assert!(is_hit(&second), "{second:?}");
    until("the origin asked behind the client's back", || (site.served() >= 2).then_some(()));
    until("the newer one", || (site.get("/", &[]).text() != "0").then_some(()));
}

#[test]
fn the_operator_may_say_for_how_long_where_the_response_does_not() {
    let site = site_sending("stale_while_revalidate = \"60s\"", "cache-control: max-age=0");
    assert_eq!(site.bodies("/", &[], 2), ["0", "0"]);
    until("the origin asked behind the client's back", || (site.served() >= 2).then_some(()));
}

#[test]
fn an_origin_that_is_gone_is_covered_for_where_that_is_allowed() {
    for (rules, lines) in [
        ("", "cache-control: max-age=0, stale-if-error=60"),
        ("stale_if_error = \"60s\"", "cache-control: max-age=0"),
        ("stale_if_error = \"60s\"", "cache-control: no-store\ncdn-cache-control: max-age=0"),
    ] {
        let mut site = site_sending(rules, lines);
        site.get("/", &[]);
        site.origin_dies();
        for _ in 0..2 {
            let answer = site.get("/", &[]);
            assert_eq!((answer.status, answer.text().as_str()), (200, "0"), "{lines}: {answer:?}");
        }
    }
}

/// What the origin has taken back covers for nothing.
#[test]
fn what_the_origin_no_longer_lets_keep_is_not_given_when_it_is_gone() {
    for (status, lines) in
        [(200, "cache-control: no-store"), (404, "cache-control: private"), (410, "set-cookie: a=b")]
    {
        let mut site = site("stale_if_error = \"60s\"", move |_, before| match before {
            0 => ok("cache-control: max-age=0", "old"),
            _ => reply(status, lines, "new"),
        });
        site.get("/", &[]);
        let taken_back = site.get("/", &[]);
        assert_eq!((taken_back.status, taken_back.text().as_str()), (status, "new"));
        site.origin_dies();
        let answer = site.get("/", &[]);
        assert!(matches!(answer.status, 502..=504), "{lines}: {answer:?}");
    }
}

#[test]
fn an_origin_that_is_gone_is_not_covered_for_where_that_is_not_allowed() {
    for (rules, lines) in [
        ("", "cache-control: max-age=0\netag: \"a\""),
        ("stale_if_error = \"60s\"", "cache-control: max-age=0, must-revalidate\netag: \"a\""),
        ("stale_if_error = \"60s\"", "cache-control: max-age=0, proxy-revalidate\netag: \"a\""),
        ("stale_if_error = \"60s\"", "cache-control: s-maxage=0\netag: \"a\""),
        ("stale_if_error = \"60s\"", "cache-control: no-cache\netag: \"a\""),
        ("stale_if_error = \"60s\"", "cache-control: no-store"),
    ] {
        let mut site = site_sending(rules, lines);
        site.get("/", &[]);
        site.origin_dies();
        let answer = site.get("/", &[]);
        assert!(matches!(answer.status, 502..=504), "{lines}: {answer:?}");
        assert!(!is_hit(&answer));
    }
}

#[test]
fn errors_of_the_origin_are_covered_for_like_its_absence() {
    for status in [500, 502, 503, 504] {
        let site = site("stale_if_error = \"60s\"", move |_, before| match before {
            0 => ok("cache-control: max-age=0", "good"),
            _ => reply(status, "", "bad"),
        });
        assert_eq!(site.bodies("/", &[], 3), ["good", "good", "good"], "{status}");
    }
    // What says something of what was asked for is no failure.
    let site = site("stale_if_error = \"60s\"", move |_, before| match before {
        0 => ok("cache-control: max-age=0", "good"),
        _ => reply(404, "", "gone"),
    });
    assert_eq!(site.bodies("/", &[], 2), ["good", "gone"]);
}

#[test]
fn an_error_that_may_be_kept_does_not_take_the_place_of_what_covers_for_it() {
    let site = site("stale_if_error = \"60s\"", move |_, before| match before {
        0 => ok("cache-control: max-age=0", "good"),
        _ => reply(503, "cache-control: max-age=60", "bad"),
    });
    assert_eq!(site.bodies("/", &[], 4), ["good", "good", "good", "good"]);
}

#[test]
fn who_asks_just_after_a_failure_does_not_wait_for_the_next() {
    let site = site("stale_if_error = \"60s\"", move |_, before| {
        if before > 0 {
            std::thread::sleep(Duration::from_millis(600));
        }
        reply(if before > 0 { 503 } else { 200 }, "cache-control: max-age=0", before.to_string())
    });
    assert_eq!(site.bodies("/", &[], 2), ["0", "0"]);
    let begun = Instant::now();
    assert_eq!(site.get("/", &[]).text(), "0");
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(site.served(), 2);
}

#[test]
fn a_client_may_take_a_stale_one() {
    let site = site("", |_, before| match before {
        0 => ok("cache-control: max-age=0\netag: \"a\"", "0"),
        _ => ok("cache-control: max-age=0, must-revalidate\netag: \"b\"", "1"),
    });
    site.get("/", &[]);
    let stale = site.get("/", &["cache-control: max-stale=60"]);
    assert_eq!((stale.text().as_str(), site.served()), ("0", 1), "{stale:?}");
    assert_eq!(site.get("/", &[]).text(), "1");
    // Not where the response forbids it.
    site.get("/", &["cache-control: max-stale=60"]);
    assert_eq!(site.served(), 3);
}
