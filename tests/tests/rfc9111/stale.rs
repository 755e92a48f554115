//! Stale answers, where they are allowed and where they are not (RFC 9111 §4.2.4, RFC 5861).

use std::time::{Duration, Instant};

use super::{CONFIG, age_of, by_number, is_hit, ok, reply, site, site_sending, status_of};
use weir_tests::dialogue::{Response, Setup, Wire, until};

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

const ASK: &str = "GET / HTTP/1.1\r\nhost: a.example\r\n\r\n";

/// What is kept covers for the origin not only for the client whose request asked it.
#[test]
fn who_waits_for_a_fetch_that_ends_in_an_error_gets_what_is_kept() {
    for status in [500, 503] {
        let origin = by_number(move |before, wire| {
            if before == 0 {
                wire.answers(200, &[("cache-control", "max-age=0")], "kept");
            } else {
                std::thread::sleep(Duration::from_millis(500));
                wire.answers(status, &[], "bad");
            }
        });
        let config = CONFIG.replace("RULES", "stale_if_error = \"60s\"");
        let weir = Setup::of(&config).with("app", origin.address()).start();
        let mut clients: Vec<Wire> = (0..5).map(|_| weir.client("web")).collect();
        clients[0].sends(ASK);
        clients[0].receives_status(200);
        clients[0].sends(ASK);
        until("the origin is asked again", || (origin.served() == 2).then_some(()));
        clients[1..].iter_mut().for_each(|client| client.sends(ASK));
        for client in &mut clients {
            let answer = client.receives_response();
            assert_eq!((answer.status, answer.text().as_str()), (200, "kept"), "{status}: {answer:?}");
            assert!(is_hit(&answer), "{answer:?}");
        }
        assert_eq!(origin.served(), 2, "{status}");
    }
}

#[test]
fn who_has_waited_long_enough_for_a_silent_origin_gets_what_is_kept() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let origin = by_number(move |before, wire| {
        if before == 0 {
            wire.answers(200, &[("cache-control", "max-age=0")], "kept");
        } else {
            // Until the test is over.
            let _ = held.lock().map(|held| held.recv());
        }
    });
    let rules = "stale_if_error = \"60s\"\ncollapse_timeout = \"2s\"";
    let weir = Setup::of(&CONFIG.replace("RULES", rules)).with("app", origin.address()).start();
    let mut clients: Vec<Wire> = (0..5).map(|_| weir.client("web")).collect();
    clients[0].sends(ASK);
    clients[0].receives_status(200);
    clients[0].sends(ASK);
    until("the origin is asked again", || (origin.served() == 2).then_some(()));
    clients[1..4].iter_mut().for_each(|client| client.sends(ASK));
    for client in &mut clients[1..4] {
        assert_eq!(client.receives_status(200).text(), "kept");
    }
    // Nor does who comes just behind them wait.
    let begun = Instant::now();
    clients[4].sends(ASK);
    assert_eq!(clients[4].receives_status(200).text(), "kept");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(origin.connections(), 1, "nobody else asked it");
    drop(release);
    assert_eq!(clients[0].receives_status(200).text(), "kept");
}

/// An origin that fails from the second request on, whoever asks, and says 304 to nobody.
fn failing() -> super::Site {
    site("stale_if_error = \"60s\"", |_, before| match before {
        0 => ok("cache-control: max-age=0\netag: \"a\"", "good!"),
        _ => reply(503, "", "bad"),
    })
}

#[test]
fn requests_whose_answers_are_not_kept_are_covered_for_too() {
    for (fields, options) in [
        (&[][..], &["--head"][..]),
        (&["cache-control: no-store"], &[]),
        (&["cache-control: no-store"], &["--http2-prior-knowledge"]),
    ] {
        let mut site = failing();
        site.get("/", &[]);
        let answer = site.curl("/", fields, options);
        assert_eq!(answer.status, 200, "{fields:?} {options:?}: {answer:?}");
        assert!(is_hit(&answer) && answer.fields.one("content-length") == Some("5"), "{answer:?}");
        site.get("/gone", &[]);
        site.origin_dies();
        let answer = site.curl("/gone", fields, options);
        assert_eq!(answer.status, 200, "{fields:?} {options:?}: {answer:?}");
    }
    // Who wants nothing that the origin has not confirmed is told what it says (RFC 9111 section 5.2.1.4).
    let site = failing();
    site.get("/", &[]);
    assert_eq!(site.get("/", &["cache-control: no-cache"]).status, 503);
    assert_eq!(site.curl("/", &["cache-control: no-cache"], &["--head"]).status, 503);
}

/// The request is read again for it, and what its client has sent behind it stays.
#[test]
fn what_covers_for_an_error_is_chosen_by_the_request_and_the_connection_goes_on() {
    let site = failing();
    let mut client = site.weir.client("web");
    client.sends(ASK);
    client.receives_status(200);
    let no_store = "GET / HTTP/1.1\r\nhost: a.example\r\ncache-control: no-store\r\n";
    let head = "HEAD / HTTP/1.1\r\nhost: a.example\r\n\r\n";
    client.sends(format!("{no_store}if-none-match: \"a\"\r\n\r\n{head}{no_store}range: bytes=1-2\r\n\r\n"));
    client.receives_status(304);
    assert_eq!(client.receives_response_to("HEAD").status, 200);
    assert_eq!(client.receives_status(206).text(), "oo");
    assert_eq!(site.served(), 2, "who comes just behind a failure does not have it asked again");
}

/// RFC 9211 section 2.5.
#[test]
fn the_status_says_for_how_long_it_has_been_stale() {
    let ttl_of = |answer: &Response| {
        let status = status_of(answer);
        let ttl = status.split("ttl=").nth(1).unwrap_or_else(|| panic!("no ttl: {status}"));
        ttl.split(';').next().and_then(|ttl| ttl.parse::<i64>().ok()).unwrap_or_else(|| panic!("{status}"))
    };
    for (said, wanted) in [
        ("max-age=60, stale-while-revalidate=600", ""),
        ("max-age=60, stale-if-error=600", ""),
        ("max-age=60", "cache-control: max-stale=600"),
    ] {
        let mut site = site_sending("", &format!("cache-control: {said}\nage: 70\netag: \"a\""));
        site.get("/", &[]);
        site.origin_dies();
        let answer = site.get("/", &[wanted]);
        assert!(is_hit(&answer), "{said}: {answer:?}");
        // Both are whole seconds: of 70.4 it is 70 and -11.
        let over = 60 - age_of(&answer) as i64 - ttl_of(&answer);
        assert!((0..=1).contains(&over) && ttl_of(&answer) <= -10, "{said}: {answer:?}");
    }
}
