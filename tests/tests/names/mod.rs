//! Names that stand for several backends (threat H5), by a real name server whose answers change; and
//! backends that were added lastingly.

mod eyeballs;
mod services;
mod shared;
mod trust;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;
use weir_tests::dialogue::{After, Backend, NameServer, Setup, Signal, Weir, free_address, listen_at, until};

/// A backend at `127.0.1.LAST`, which says so.
fn backend_at(last: u8, port: u16) -> Backend {
    let address = SocketAddr::from((Ipv4Addr::new(127, 0, 1, last), port));
    Backend::serving_at(address, move |_, wire| {
        wire.answers(200, &[], format!("{last}"));
        After::Keep
    })
}

/// A port that no test has; backends of other addresses than `127.0.0.1` listen at it.
fn port() -> u16 {
    free_address().port()
}

/// Weir with one pool, whose backends are these, asking this server.
fn weir_with(server: &NameServer, backends: &str, dns: &str, pool: &str) -> Weir {
    Setup::of(&config(backends, dns, pool)).with("dns", server.address()).start()
}

fn config(backends: &str, dns: &str, pool: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [dns]
        resolvers = ["@dns"]
        timeout = "300ms"
        min_ttl = "100ms"
        {dns}
        [pool.app]
        backends = [{backends}]
        {pool}
        "#
    )
}

const UNPROBED: &str = "health = { check = \"off\" }";

fn all_of(name: &str, port: u16) -> String {
    format!("{{ address = \"{name}:{port}\", resolve = \"all\" }}")
}

fn ask(weir: &Weir) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let response = client.receives_response();
    (response.status, response.text())
}

/// Who answers: as many requests as take every backend in turn, and no failure among them.
fn who_answers(weir: &Weir) -> BTreeSet<String> {
    let answers = (0..12).map(|_| ask(weir));
    answers.inspect(|(status, text)| assert_eq!(*status, 200, "{text}")).map(|(_, text)| text).collect()
}

fn is_answered_by(weir: &Weir, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|text| (*text).to_owned()).collect();
    until(&format!("answers by {expected:?}"), || (who_answers(weir) == expected).then_some(()));
}

fn pool(weir: &Weir) -> Value {
    weir.admin().reads("/v1/pools/app").json()
}

/// State, weight and backup of each backend, by address.
fn backends(weir: &Weir) -> Vec<(String, String, u64, bool)> {
    let pool = pool(weir);
    let all = pool["backends"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<_> = all
        .iter()
        .map(|it| {
            let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
            let weight = it["weight"].as_u64().unwrap_or_default();
            (text("address"), text("state"), weight, it["backup"].as_bool().unwrap_or_default())
        })
        .collect();
    all.sort();
    all
}

fn addresses(weir: &Weir) -> Vec<String> {
    backends(weir).into_iter().map(|(address, ..)| address).collect()
}

#[test]
fn every_address_of_a_name_is_a_backend_and_they_follow_it() {
    let (server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=4).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2", "1 A 127.0.1.3"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    assert_eq!(who_answers(&weir), ["1", "2", "3"].map(str::to_owned).into(), "from the first request on");
    let config = weir.admin().reads("/v1/config").json();
    assert_eq!(config["pool"]["app"]["backends"][0]["resolve"], "all", "{config}");
    assert_eq!(config["pool"]["app"]["backends"].as_array().map(Vec::len), Some(1), "{config}");
    server.adds("app.weir.test 1 IN A 127.0.1.4");
    is_answered_by(&weir, &["1", "2", "3", "4"]);
    server.says("app.weir.test", &["1 A 127.0.1.2", "1 A 127.0.1.4"]);
    is_answered_by(&weir, &["2", "4"]);
    until("those that left to be gone", || (addresses(&weir).len() == 2).then_some(()));
    let status = weir.command(&["status"]);
    let said = format!("app.weir.test:{port} stands for 2, its answer lasts 1 s");
    assert!(status.stdout.contains(&said), "{status:?}");
    // What is known of those that stay goes over a reload, and nothing is asked for it.
    let served = |weir: &Weir| pool(weir)["backends"][0]["requests"]["2xx"].as_u64().unwrap_or_default();
    let before = served(&weir);
    let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(answer.json()["reload"]["result"], "unchanged", "{}", answer.json());
    assert!(served(&weir) >= before && before > 0);
    assert_eq!(addresses(&weir).len(), 2);
}

#[test]
fn backends_stay_while_their_name_vanishes_or_nobody_answers() {
    let (mut server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=2).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    is_answered_by(&weir, &["1", "2"]);
    server.forgets("app.weir.test");
    weir.reaches("weir_dns_lookups_total", &[("result", "empty")], 3.0);
    assert_eq!(weir.metric("weir_dns_name_failed", &[]), 1.0);
    assert_eq!(who_answers(&weir).len(), 2, "the name has vanished");
    server.stops();
    let failed = weir.metric("weir_dns_lookups_total", &[("result", "failed")]);
    weir.reaches("weir_dns_lookups_total", &[("result", "failed")], failed + 2.0);
    assert_eq!(who_answers(&weir).len(), 2, "nobody answers");
    let pool = pool(&weir);
    assert!(pool["names"][0]["error"].as_str().is_some_and(|error| !error.is_empty()), "{pool}");
    let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(answer.status(), 200);
    assert_eq!(who_answers(&weir).len(), 2, "after a reload without a name server");
    server.starts_again();
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    is_answered_by(&weir, &["2"]);
    assert_eq!(weir.metric("weir_dns_name_failed", &[]), 0.0);
}

/// Holds those who wait until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn passes(&self) {
        let open = self.open.lock().expect("not poisoned");
        drop(self.opened.wait_while(open, |open| !*open).expect("not poisoned"));
    }

    fn opens(&self) {
        *self.open.lock().expect("not poisoned") = true;
        self.opened.notify_all();
    }
}

#[test]
fn a_download_from_a_backend_whose_name_leaves_it_comes_to_its_end() {
    let (server, port) = (NameServer::start(), port());
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let slow = SocketAddr::from((Ipv4Addr::new(127, 0, 1, 1), port));
    let _slow = Backend::serving_at(slow, move |request, wire| {
        if request.target != "/slow" {
            wire.answers(200, &[], "1");
            return After::Keep;
        }
        wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst");
        held.passes();
        wire.sends("other");
        After::Keep
    });
    let _other = backend_at(2, port);
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    let mut client = weir.client("web");
    client.sends("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_until("first");
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    is_answered_by(&weir, &["2"]);
    let leaving = (format!("127.0.1.1:{port}"), "leaving".to_owned(), 1, false);
    assert!(backends(&weir).contains(&leaving), "it has work: {:?}", backends(&weir));
    let explained = weir.command(&["explain", "http", "GET", "http://a/"]);
    assert!(explained.stdout.contains("its name stands for it no more"), "{explained:?}");
    gate.opens();
    client.receives_exactly("other");
    until("it to be gone", || (addresses(&weir) == [format!("127.0.1.2:{port}")]).then_some(()));
    let events = weir.stderr();
    assert!(events.contains("leaves:") && events.contains("has left"), "{events}");
}

#[test]
fn a_tcp_session_goes_on_when_its_backend_leaves_and_new_ones_go_elsewhere() {
    let (server, port) = (NameServer::start(), port());
    let echoes = |last: u8| {
        let listener = listen_at(SocketAddr::from((Ipv4Addr::new(127, 0, 1, last), port)));
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    let _ = stream.write_all(&[b'0' + last]);
                    let mut other = stream.try_clone().expect("a second handle");
                    let _ = std::io::copy(&mut stream, &mut other);
                });
            }
        });
    };
    echoes(1);
    echoes(2);
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let of_tcp = config(&all_of("app.weir.test", port), "", UNPROBED);
    let of_tcp = of_tcp.replace("bind = \"@web\"", "bind = \"@web\"\nprotocol = \"tcp\"");
    let weir = Setup::of(&of_tcp).with("dns", server.address()).start();
    let mut client = weir.client("web");
    client.receives_exactly("1");
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    let leaving = (format!("127.0.1.1:{port}"), "leaving".to_owned(), 1, false);
    until("the first to leave", || backends(&weir).contains(&leaving).then_some(()));
    let mut other = weir.client("web");
    other.receives_exactly("2");
    client.sends("still here");
    client.receives_exactly("still here");
    drop(client);
    until("it to be gone", || (addresses(&weir) == [format!("127.0.1.2:{port}")]).then_some(()));
}

/// What the pool has already was waited for as for a newcomer, and nobody was ever missed.
#[test]
fn members_leave_though_their_name_stands_for_what_the_pool_has_already() {
    let (server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=3).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2", "1 A 127.0.1.3"]);
    server.says("other.weir.test", &["1 A 127.0.1.2"]);
    let (app, other) = (all_of("app.weir.test", port), all_of("other.weir.test", port));
    let weir = weir_with(&server, &format!("\"127.0.1.1:{port}\", {other}, {app}"), "", UNPROBED);
    is_answered_by(&weir, &["1", "2", "3"]);
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    is_answered_by(&weir, &["1", "2"]);
    until("it to be gone", || (addresses(&weir).len() == 2).then_some(()));
}

#[test]
fn one_that_comes_back_while_it_leaves_gets_work_again() {
    let (server, port) = (NameServer::start(), port());
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let address = SocketAddr::from((Ipv4Addr::new(127, 0, 1, 1), port));
    let _one = Backend::serving_at(address, move |request, wire| {
        if request.target == "/slow" {
            held.passes();
        }
        wire.answers(200, &[], "1");
        After::Keep
    });
    let _other = backend_at(2, port);
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    is_answered_by(&weir, &["1", "2"]);
    let mut clients: Vec<_> = (0..2).map(|_| weir.client("web")).collect();
    clients.iter_mut().for_each(|client| client.sends("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n"));
    until("a request to be held", || {
        let pool = pool(&weir);
        let all = pool["backends"].as_array().cloned().unwrap_or_default();
        all.iter().any(|it| it["in_flight"].as_u64() > Some(0)).then_some(())
    });
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    is_answered_by(&weir, &["2"]);
    server.adds("app.weir.test 1 IN A 127.0.1.1");
    is_answered_by(&weir, &["1", "2"]);
    gate.opens();
    clients.iter_mut().for_each(|client| drop(client.receives_status(200)));
}

/// An address that a name server leaves out for a moment came back as new, and was sent requests in the midst
/// of its maintenance.
#[test]
fn one_in_maintenance_is_still_in_maintenance_when_its_name_has_it_back() {
    let (server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=3).map(|last| backend_at(last, port)).collect();
    let all = ["1 A 127.0.1.1", "1 A 127.0.1.2", "1 A 127.0.1.3"];
    server.says("app.weir.test", &all);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    is_answered_by(&weir, &["1", "2", "3"]);
    let says = |state: &str| {
        let path = format!("/v1/pools/app/backends/127.0.1.1:{port}");
        let answer = weir.admin().calls("PATCH", &path, &[], &format!("{{\"state\": \"{state}\"}}"));
        assert_eq!(answer.status(), 200);
    };
    says("maintenance");
    server.says("app.weir.test", &all[1..2]);
    until("the other to be gone", || {
        (!addresses(&weir).contains(&format!("127.0.1.3:{port}"))).then_some(())
    });
    let maintained = (format!("127.0.1.1:{port}"), "maintenance".to_owned(), 1, false);
    assert!(backends(&weir).contains(&maintained), "{:?}", backends(&weir));
    server.says("app.weir.test", &all);
    is_answered_by(&weir, &["2", "3"]);
    assert!(backends(&weir).contains(&maintained), "{:?}", backends(&weir));
    says("ready");
    is_answered_by(&weir, &["1", "2", "3"]);
    says("maintenance");
    server.says("app.weir.test", &all[1..]);
    until("it to leave", || weir.stderr().matches("leaves:").count().ge(&3).then_some(()));
    says("ready");
    until("it to be gone", || (addresses(&weir).len() == 2).then_some(()));
    assert_eq!(who_answers(&weir).len(), 2);
}

#[test]
fn a_newcomer_gets_no_request_before_a_probe_has_found_it_up() {
    let (server, port) = (NameServer::start(), port());
    let _one = backend_at(1, port);
    server.says("app.weir.test", &["1 A 127.0.1.1"]);
    let probed = "health = { check = \"tcp\", interval = \"200ms\", fast_interval = \"100ms\", rise = 1 }\nretry = { attempts = 0 }";
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", probed);
    is_answered_by(&weir, &["1"]);
    server.adds("app.weir.test 1 IN A 127.0.1.2");
    until("the newcomer to be there", || {
        assert_eq!(ask(&weir), (200, "1".to_owned()));
        (addresses(&weir).len() == 2).then_some(())
    });
    for _ in 0..20 {
        assert_eq!(ask(&weir), (200, "1".to_owned()), "nobody listens there");
    }
    let _two = backend_at(2, port);
    is_answered_by(&weir, &["1", "2"]);
}

#[test]
fn a_service_says_hosts_ports_shares_and_who_is_a_backup() {
    let server = NameServer::start();
    let ports = [port(), port(), port()];
    let ordinary = [backend_at(1, ports[0]), backend_at(2, ports[1])];
    let _backup = backend_at(3, ports[2]);
    for last in 1..=3 {
        server.says(&format!("h{last}.weir.test"), &[&format!("1 A 127.0.1.{last}")]);
    }
    let record = |priority: u8, weight: u8, number: usize| {
        format!("1 SRV {priority} {weight} {} h{}.weir.test.", ports[number], number + 1)
    };
    let says = |weights: [u8; 2]| {
        let records = [record(10, weights[0], 0), record(10, weights[1], 1), record(20, 1, 2)];
        server.says("_http._tcp.weir.test", &records.each_ref().map(String::as_str));
    };
    says([3, 1]);
    let weir = weir_with(
        &server,
        "\"_http._tcp.weir.test\"",
        "",
        "health = { check = \"tcp\", interval = \"200ms\", fast_interval = \"100ms\", fall = 1 }",
    );
    let place = |number: usize| format!("127.0.1.{}:{}", number + 1, ports[number]);
    let ready =
        |number: usize, weight: u64, backup: bool| (place(number), "ready".to_owned(), weight, backup);
    until("all to be ready", || {
        let mut expected = vec![ready(0, 3, false), ready(1, 1, false), ready(2, 1, true)];
        expected.sort();
        (backends(&weir) == expected).then_some(())
    });
    let answers: Vec<String> = (0..8).map(|_| ask(&weir).1).collect();
    assert_eq!(answers.iter().filter(|text| *text == "1").count(), 6, "{answers:?}");
    says([1, 1]);
    until("the other weights", || backends(&weir).contains(&ready(0, 1, false)).then_some(()));
    drop(ordinary);
    is_answered_by(&weir, &["3"]);
}

#[test]
fn an_answer_that_does_not_fit_into_a_datagram_is_asked_for_again_over_tcp_and_bounded() {
    let (server, port) = (NameServer::start(), port());
    let records: Vec<String> = (1..=120).map(|last| format!("1 A 127.0.2.{last}")).collect();
    server.says("app.weir.test", &records.iter().map(String::as_str).collect::<Vec<_>>());
    let weir = weir_with(&server, &all_of("app.weir.test", port), "max_members = 100", UNPROBED);
    assert_eq!(addresses(&weir).len(), 100);
    assert!(weir.metric("weir_dns_addresses_refused_total", &[("reason", "max_members")]) >= 20.0);
}

#[test]
fn an_answer_with_addresses_that_may_not_be_is_used_without_them() {
    let (server, port) = (NameServer::start(), port());
    let _good = backend_at(1, port);
    let evil = Backend::serving_at((Ipv4Addr::new(127, 0, 9, 1), port).into(), |_, wire| {
        wire.answers(200, &[], "evil");
        After::Keep
    });
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.9.1", "1 AAAA ::1", "1 A 0.0.0.0"]);
    server.says("one.weir.test", &["1 A 127.0.9.1"]);
    let backends = format!("{}, \"one.weir.test:{port}\"", all_of("app.weir.test", port));
    let weir = weir_with(&server, &backends, "allow_address = [\"127.0.1.0/24\"]", UNPROBED);
    assert_eq!(addresses(&weir), [format!("127.0.1.1:{port}"), format!("one.weir.test:{port}")]);
    is_answered_by(&weir, &["1"]);
    weir.reaches("weir_dns_addresses_refused_total", &[("reason", "allow_address")], 4.0);
    // All of it poisoned: what was good stays.
    server.says("app.weir.test", &["1 A 127.0.9.1"]);
    weir.reaches("weir_dns_lookups_total", &[("result", "empty")], 6.0);
    assert_eq!(who_answers(&weir), ["1".to_owned()].into());
    assert_eq!(evil.connections(), 0);
}

#[test]
fn an_answer_lasts_as_long_as_it_says() {
    let (server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=4).map(|last| backend_at(last, port)).collect();
    server.says("short.weir.test", &["1 A 127.0.1.1"]);
    server.says("long.weir.test", &["200 A 127.0.1.3"]);
    let both = format!("{}, {}", all_of("short.weir.test", port), all_of("long.weir.test", port));
    let weir = weir_with(&server, &both, "", UNPROBED);
    is_answered_by(&weir, &["1", "3"]);
    server.says("long.weir.test", &["200 A 127.0.1.4"]);
    server.says("short.weir.test", &["1 A 127.0.1.2"]);
    is_answered_by(&weir, &["2", "3"]);
    // Another time at most, and the long one is asked for at once.
    let mut weir = weir;
    weir.reloads(&config(&both, "max_ttl = \"200ms\"", UNPROBED));
    is_answered_by(&weir, &["2", "4"]);
}

#[test]
fn members_outlive_an_upgrade_without_a_name_server_and_leave_with_their_name() {
    let (mut server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=2).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    let fixed = Backend::saying("fixed");
    let backends = format!("{}, \"{}\"", all_of("app.weir.test", port), fixed.address());
    let mut weir = weir_with(&server, &backends, "", UNPROBED);
    is_answered_by(&weir, &["1", "2", "fixed"]);
    server.stops();
    upgrades(&weir);
    is_answered_by(&weir, &["1", "2", "fixed"]);
    weir.reloads(&config(&format!("\"{}\"", fixed.address()), "", UNPROBED));
    assert_eq!(who_answers(&weir), ["fixed".to_owned()].into(), "the config has the name no more");
}

/// Has another process take over.
fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    until("the old process to be gone", || {
        let new = admin.tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (new != u64::from(old) && !weir.is_running(old)).then_some(())
    });
}

#[test]
fn a_backend_that_was_added_lastingly_outlives_reloads_and_upgrades() {
    let [file, lasting, passing] = ["file", "lasting", "passing"].map(Backend::saying);
    let config = format!(
        "[listener.web]\nbind = \"@web\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n{UNPROBED}\n",
        file.address()
    );
    let mut weir = Setup::of(&config).start();
    let adds = |weir: &Weir, backend: &Backend, more: &[&str]| {
        let address = backend.address().to_string();
        let words: Vec<&str> = ["add", "app", &address].into_iter().chain(more.iter().copied()).collect();
        let finished = weir.command(&words);
        assert_eq!(finished.code, 0, "{finished:?}");
    };
    adds(&weir, &lasting, &["--lasting"]);
    adds(&weir, &passing, &[]);
    assert_eq!(who_answers(&weir).len(), 3);
    weir.reloads(&config.replace("[pool.app]", "[pool.app]\nslow_start = \"100ms\""));
    is_answered_by(&weir, &["file", "lasting"]);
    upgrades(&weir);
    is_answered_by(&weir, &["file", "lasting"]);
    let shown = weir.admin().reads("/v1/config").json()["pool"]["app"]["backends"].clone();
    assert_eq!(shown.as_array().map(Vec::len), Some(2), "{shown}");
    let finished = weir.command(&["remove", "app", &lasting.address().to_string()]);
    assert_eq!(finished.code, 0, "{finished:?}");
    is_answered_by(&weir, &["file"]);
    weir.reloads(&config);
    assert_eq!(addresses(&weir).len(), 1, "what was removed does not come back");
}
