//! Names of one backend with several addresses, of which not each accepts (Happy Eyeballs, RFC 8305; threat
//! J18).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_tests::dialogue::{After, Backend, NameServer, Unreachable, Weir, until};

use super::{ask, backend_at, config, port, weir_with};

const FRESH: &str = "health = { check = \"off\" }\nkeep_alive = { max = 0 }\nretry = { attempts = 0 }";

/// A backend at `::1`, which says so.
fn six(port: u16) -> Backend {
    Backend::serving_at(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), |_, wire| {
        wire.answers(200, &[], "six");
        After::Keep
    })
}

fn one_of(port: u16) -> String {
    format!("\"app.weir.test:{port}\"")
}

fn changes(weir: &Weir) -> f64 {
    weir.metric("weir_dns_other_address_total", &[])
}

/// Waits until an answer that was asked for from now on was taken.
fn hears_the_name(weir: &Weir) {
    let before = weir.metric("weir_dns_lookups_total", &[("result", "good")]);
    weir.reaches("weir_dns_lookups_total", &[("result", "good")], before + 2.0);
}

const BOTH: &[&str] = &["1 A 127.0.1.1", "1 AAAA ::1"];

#[test]
fn an_address_that_refuses_is_followed_by_the_next_at_once_and_what_works_is_kept() {
    let (server, port) = (NameServer::start(), port());
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let four = backend_at(1, port);
    let weir = weir_with(&server, &one_of(port), "", FRESH);
    assert_eq!(ask(&weir).1, "1");
    server.says("app.weir.test", BOTH);
    hears_the_name(&weir);
    assert_eq!((ask(&weir).1.as_str(), changes(&weir)), ("1", 0.0), "the one in use works");
    drop(four);
    let _six = six(port);
    assert_eq!(ask(&weir), (200, "six".to_owned()));
    weir.reaches("weir_dns_other_address_total", &[], 1.0);
    let _four = backend_at(1, port);
    hears_the_name(&weir);
    for _ in 0..5 {
        assert_eq!(ask(&weir).1, "six", "what works stays in use");
    }
    assert_eq!(changes(&weir), 1.0);
}

#[test]
fn an_address_that_is_silent_is_followed_by_the_next() {
    let (server, port) = (NameServer::start(), port());
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let silent = Unreachable::at(SocketAddr::from((Ipv4Addr::new(127, 0, 1, 1), port)));
    let _six = six(port);
    let weir = weir_with(&server, &one_of(port), "", FRESH);
    server.says("app.weir.test", BOTH);
    hears_the_name(&weir);
    assert_eq!(ask(&weir), (200, "six".to_owned()));
    weir.reaches("weir_dns_other_address_total", &[], 1.0);
    assert_eq!(ask(&weir), (200, "six".to_owned()));
    drop(silent);
}

#[test]
fn where_it_is_off_a_name_is_at_its_one_address() {
    let (server, port) = (NameServer::start(), port());
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let _six = six(port);
    let weir = weir_with(&server, &one_of(port), "try_next = \"off\"", FRESH);
    server.says("app.weir.test", BOTH);
    hears_the_name(&weir);
    assert_eq!(ask(&weir).0, 502);
    assert_eq!(changes(&weir), 0.0);
}

#[test]
fn probes_find_the_address_that_works_before_a_request_does() {
    let (server, port) = (NameServer::start(), port());
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let four = backend_at(1, port);
    let probed = "health = { check = \"tcp\", interval = \"100ms\", fall = 50 }\nretry = { attempts = 0 }";
    let weir = weir_with(&server, &one_of(port), "", probed);
    server.says("app.weir.test", BOTH);
    hears_the_name(&weir);
    let _six = six(port);
    drop(four);
    weir.reaches("weir_dns_other_address_total", &[], 1.0);
    assert_eq!(ask(&weir), (200, "six".to_owned()));
    let resolved = || weir.admin().reads("/v1/pools/app").json()["backends"][0]["resolved"].clone();
    until("the address to be told", || (resolved() == format!("[::1]:{port}")).then_some(()));
}

/// Threat J18: an answer may bring addresses that the config forbids, and they are not tried either.
#[test]
fn j18_an_address_that_the_config_forbids_is_not_tried() {
    let (server, port) = (NameServer::start(), port());
    server.says("app.weir.test", BOTH);
    let stranger = six(port);
    let mut weir = weir_with(&server, &one_of(port), "allow_address = [\"127.0.1.0/24\"]", FRESH);
    hears_the_name(&weir);
    assert_eq!(ask(&weir).0, 502);
    assert_eq!((changes(&weir), stranger.connections()), (0.0, 0));
    // What a reload forbids is not tried any more, whatever the last answer was.
    weir.reloads(&config(&one_of(port), "", FRESH));
    hears_the_name(&weir);
    assert_eq!(ask(&weir).1, "six");
    weir.reloads(&config(&one_of(port), "allow_address = [\"127.0.1.0/24\"]", FRESH));
    let before = stranger.connections();
    assert_ne!(ask(&weir).0, 200);
    assert_eq!(stranger.connections(), before);
}
