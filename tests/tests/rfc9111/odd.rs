//! One client's odd request, and what others get (threat E9).

use std::sync::Mutex;
use std::sync::mpsc::channel;

use weir_tests::dialogue::http2::{self, Http2, Outcome};
use weir_tests::dialogue::{After, Backend, Request, Setup, Wire, until};

use super::{CONFIG, Reply, Site, is_hit, ok, reply, site, status_of};

/// What the origin answers a request that carries no oddity.
const GOOD: &str = "cache-control: max-age=60\netag: \"a\"";

/// A site whose origin answers requests without an oddity well, and the others as they ask it to.
fn provoked(rules: &str) -> Site {
    site(rules, |request, before| match odd_reply(request) {
        Some(odd) => odd,
        None => ok(GOOD, before.to_string()),
    })
}

fn odd_reply(request: &Request) -> Option<Reply> {
    if request.fields.one("cookie").is_some_and(|cookie| cookie.len() > 8192) {
        return Some(reply(400, "", "cookie too large"));
    }
    if request.fields.one("cookie").is_some() {
        return Some(ok("cache-control: private", "mine"));
    }
    if request.fields.one("authorization").is_some() {
        return Some(reply(401, "www-authenticate: basic", "who"));
    }
    let (status, lines) = request.fields.one("x-odd")?.split_once('|')?;
    Some(reply(status.parse().ok()?, lines, "odd"))
}

#[test]
fn a_fresh_response_survives_whatever_one_client_that_wants_it_validated_is_answered() {
    let site = provoked("ttl = \"60s\"\nnegative_ttl = \"60s\"");
    let cookie = format!("cookie: a={}", "x".repeat(9 << 10));
    let ways: [&[&str]; 13] = [
        &[&cookie],
        &["cookie: session=1"],
        &["authorization: basic bWU6bWU="],
        &["x-odd: 406|"],
        &["range: bytes=9-", "x-odd: 416|"],
        &["x-odd: 200|cache-control: no-store"],
        &["x-odd: 200|set-cookie: a=b"],
        &["x-odd: 404|cache-control: no-store"],
        &["x-odd: 404|"],
        &["x-odd: 403|cache-control: max-age=60"],
        &["x-odd: 500|"],
        &["x-odd: 503|cache-control: max-age=60"],
        &["x-odd: 304|cache-control: private"],
    ];
    for (number, way) in ways.iter().enumerate() {
        for wanted in ["cache-control: no-cache", "pragma: no-cache", "cache-control: min-fresh=1000"] {
            let target = format!("/{number}/{}", wanted.len());
            site.get(&target, &[]);
            site.get(&target, &[way, &[wanted][..]].concat());
            for _ in 0..2 {
                let other = site.get(&target, &[]);
                assert!(is_hit(&other) && other.text() == "0", "after {way:?}, {wanted}: {other:?}");
            }
        }
    }
}

#[test]
fn a_refusal_that_one_client_provokes_has_no_other_go_past_the_cache() {
    let site = provoked("");
    let cookie = format!("cookie: a={}", "x".repeat(9 << 10));
    for (target, odd) in [("/a", cookie.as_str()), ("/b", "authorization: me"), ("/c", "x-odd: 422|")] {
        assert!(site.get(target, &[odd]).status >= 400);
        let next = site.get(target, &[]);
        assert!(status_of(&next).ends_with("stored"), "{odd}: {next:?}");
        assert!(is_hit(&site.get(target, &[])), "{odd}");
    }
}

/// Pages for those who have logged in are one thing, the same pages for all others another.
#[test]
fn what_is_private_to_those_with_cookies_is_kept_for_those_without() {
    let site = provoked("");
    assert_eq!(site.get("/", &["cookie: session=1"]).text(), "mine");
    let next = site.get("/", &[]);
    assert!(status_of(&next).ends_with("stored"), "{next:?}");
    assert!(is_hit(&site.get("/", &[])));
    // Who has cookies too does not wait for what is not for him.
    until("one that goes past at once", || {
        let answer = site.get("/two", &["cookie: session=2"]);
        status_of(&answer).contains("hit-for-miss").then_some(())
    });
}

#[test]
fn the_first_answer_that_could_have_been_kept_ends_the_passing_by() {
    let site = provoked("");
    for odd in ["x-odd: 200|cache-control: no-store", "x-odd: 200|set-cookie: a=b", "x-odd: 500|"] {
        let target = format!("/{}", odd.len());
        site.get(&target, &[odd]);
        // It goes past, and shows that this may be kept.
        site.get(&target, &[]);
        let next = site.get(&target, &[]);
        assert!(status_of(&next).ends_with("stored"), "{odd}: {next:?}");
        assert!(is_hit(&site.get(&target, &[])), "{odd}");
    }
}

#[test]
fn what_brings_nothing_to_keep_does_not_stand_in_for_the_refresh() {
    let site =
        site("", |_, before| ok("cache-control: max-age=0, stale-while-revalidate=60", before.to_string()));
    site.get("/", &[]);
    site.curl("/", &[], &["--head"]);
    site.get("/", &["cache-control: no-store", "x-nothing: 1"]);
    assert_eq!(site.get("/", &[]).text(), "0");
    until("the refresh", || (site.served() >= 2).then_some(()));
    let refresh = &site.asked()[1];
    assert_eq!((refresh.method.as_str(), refresh.fields.one("x-nothing")), ("GET", None));
    until("the newer one", || (site.get("/", &[]).text() != "0").then_some(()));
}

/// One such request a second would keep the others from ever asking.
#[test]
fn a_failure_that_one_client_provokes_has_the_others_served_no_longer_from_what_is_stale() {
    let site = site("stale_if_error = \"60s\"", |request, before| match request.fields.one("x-odd") {
        Some(_) => reply(503, "", "odd"),
        None => ok("cache-control: max-age=0", before.to_string()),
    });
    assert_eq!(site.get("/", &[]).text(), "0");
    assert_eq!(site.get("/", &["x-odd: 1", "cache-control: no-cache"]).status, 503);
    assert_eq!(site.get("/", &[]).text(), "2");
}

#[test]
fn who_waits_with_a_request_that_the_origin_breaks_off_is_answered() {
    let ways: [fn(&mut Wire) -> After; 3] = [
        |_| After::Reset,
        |_| After::Close,
        |wire| {
            wire.sends("this is not HTTP\r\n\r\n");
            After::Close
        },
    ];
    for break_off in ways {
        let (goes_on, is_to_go_on) = channel::<()>();
        let is_to_go_on = Mutex::new(is_to_go_on);
        let backend = Backend::serving(move |request, wire| {
            if request.fields.one("x-odd").is_some() {
                let _ = is_to_go_on.lock().map(|held| held.recv());
                return break_off(wire);
            }
            wire.answers(200, &[("cache-control", "max-age=60")], request.target.as_bytes());
            After::Keep
        });
        let weir = Setup::of(&CONFIG.replace("RULES", "")).with("app", backend.address()).start();
        let mut client = Http2::client(weir.client("web"), b"");
        let odd = [&http2::request("GET", "/page")[..], &[("x-odd", "1")]].concat();
        client.sends(http2::headers(1, &odd, true));
        until("the origin has the odd one", || (backend.busy() == 1).then_some(()));
        // Requests of one connection are taken up in their order: when the last is answered, the one before
        // it waits.
        client.sends(http2::get(3, "/page"));
        assert_eq!(client.asks(5, "/other"), Outcome::Answered(200, b"/other".to_vec()));
        assert_eq!(backend.served(), 2, "who waits has not asked for himself");
        goes_on.send(()).expect("an origin");
        assert_eq!(client.outcome_of(3), Outcome::Answered(200, b"/page".to_vec()));
    }
}
