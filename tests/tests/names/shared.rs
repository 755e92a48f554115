//! What a name has and its pool has already: once the pool has it no more for the other reason, it is the
//! name's, at once and not with the name's next answer.

use weir_tests::dialogue::{Authority, NameServer, until};

use super::{
    UNPROBED, addresses, all_of, backend_at, backends, config, is_answered_by, pool, port, weir_with,
};

#[test]
fn a_backend_that_the_file_has_no_more_stays_because_its_name_has_it() {
    let (server, port) = (NameServer::start(), port());
    let _backends = [1, 2].map(|last| backend_at(last, port));
    server.says("app.weir.test", &["120 A 127.0.1.1", "120 A 127.0.1.2"]);
    let name = all_of("app.weir.test", port);
    let mut weir = weir_with(&server, &format!("{name}, \"127.0.1.1:{port}\""), "", UNPROBED);
    is_answered_by(&weir, &["1", "2"]);
    weir.reloads(&config(&name, "", UNPROBED));
    is_answered_by(&weir, &["1", "2"]);
}

#[test]
fn a_backend_that_one_name_has_no_more_stays_because_another_has_it() {
    let (server, port) = (NameServer::start(), port());
    let _backends = [1, 2, 3].map(|last| backend_at(last, port));
    server.says("one.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.3"]);
    server.says("two.weir.test", &["120 A 127.0.1.2", "120 A 127.0.1.3"]);
    let names = format!("{}, {}", all_of("one.weir.test", port), all_of("two.weir.test", port));
    let weir = weir_with(&server, &names, "", UNPROBED);
    is_answered_by(&weir, &["1", "2", "3"]);
    server.says("one.weir.test", &["1 A 127.0.1.1"]);
    let good = weir.metric("weir_dns_lookups_total", &[("result", "good")]);
    // Two answers would have it drained.
    weir.reaches("weir_dns_lookups_total", &[("result", "good")], good + 4.0);
    assert!(backends(&weir).iter().all(|(_, state, ..)| state == "ready"), "{:?}", backends(&weir));
    is_answered_by(&weir, &["1", "2", "3"]);
    assert!(!weir.stderr().contains("leaves:"), "{}", weir.stderr());
}

/// Over TLS it has to prove the name that brought it, so it goes, and comes by the other.
#[test]
fn over_tls_a_backend_that_one_name_has_no_more_comes_back_by_another() {
    let (server, port) = (NameServer::start(), port());
    let authority = Authority::new();
    let _backends = [1, 2, 3].map(|last| backend_at(last, port));
    server.says("one.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.3"]);
    server.says("two.weir.test", &["120 A 127.0.1.2", "120 A 127.0.1.3"]);
    let names = format!("{}, {}", all_of("one.weir.test", port), all_of("two.weir.test", port));
    let tls = format!("{UNPROBED}\ntls = {{ ca = \"{}\" }}", authority.path("ca.pem"));
    let weir = weir_with(&server, &names, "", &tls);
    let third = format!("127.0.1.3:{port}");
    let owner = || {
        let pool = pool(&weir);
        let all = pool["backends"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|it| it["address"] == *third).map(|it| it["name"].to_string())
    };
    assert!(owner().is_some_and(|name| name.contains("one.weir.test")), "{:?}", pool(&weir));
    server.says("one.weir.test", &["1 A 127.0.1.1"]);
    until("it to come by the other name", || owner().filter(|name| name.contains("two.weir.test")));
}

#[test]
fn a_backend_that_is_removed_by_hand_comes_back_because_its_name_has_it() {
    let (server, port) = (NameServer::start(), port());
    let _backends = [1, 2].map(|last| backend_at(last, port));
    server.says("app.weir.test", &["1 A 127.0.1.2"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", UNPROBED);
    let first = format!("127.0.1.1:{port}");
    weir.command(&["add", "app", &first]).succeeded();
    server.says("app.weir.test", &["120 A 127.0.1.1", "120 A 127.0.1.2"]);
    until("the answer that lasts", || {
        (pool(&weir)["names"][0]["ttl_seconds"].as_f64() == Some(120.0)).then_some(())
    });
    weir.command(&["drain", "app", &format!("127.0.1.2:{port}")]).succeeded();
    is_answered_by(&weir, &["1"]);
    weir.command(&["remove", "app", &first]).succeeded();
    is_answered_by(&weir, &["1"]);
    until("both", || (addresses(&weir).len() == 2).then_some(()));
}
