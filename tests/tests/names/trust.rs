//! What answers are worth: addresses that a config forbids or that take the place of all others, of either
//! family, over TLS, and while nobody can be asked.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_tests::dialogue::{After, Authority, Backend, NameServer, Setup, until};

use super::{
    UNPROBED, addresses, all_of, ask, backend_at, backends, config, is_answered_by, port, upgrades,
    weir_with, who_answers,
};

/// Probes that find out soon.
const PROBED: &str = "health = { check = \"tcp\", interval = \"200ms\", fast_interval = \"100ms\", rise = 1, fall = 1 }\nretry = { attempts = 0 }";

#[test]
fn old_backends_serve_until_those_that_take_their_place_are_up() {
    let (server, port) = (NameServer::start(), port());
    let old: Vec<Backend> = (1..=2).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    let weir = weir_with(&server, &all_of("app.weir.test", port), "", PROBED);
    is_answered_by(&weir, &["1", "2"]);
    // Nobody listens there yet.
    server.says("app.weir.test", &["1 A 127.0.1.3", "1 A 127.0.1.4"]);
    until("the newcomers to be found down", || {
        assert_eq!(ask(&weir).0, 200);
        let down = |last: u8| {
            let at = format!("127.0.1.{last}:{port}");
            backends(&weir).iter().any(|(address, state, ..)| *address == at && state == "down")
        };
        (down(3) && down(4)).then_some(())
    });
    let before = weir.metric("weir_dns_lookups_total", &[("result", "good")]);
    weir.reaches("weir_dns_lookups_total", &[("result", "good")], before + 6.0);
    for _ in 0..12 {
        assert_eq!(ask(&weir).0, 200, "the last one that is ready stays: {:?}", backends(&weir));
    }
    let _new: Vec<Backend> = (3..=4).map(|last| backend_at(last, port)).collect();
    until("those whom the name has to serve alone", || {
        let answers = who_answers(&weir);
        (answers == ["3".to_owned(), "4".to_owned()].into()).then_some(())
    });
    until("the old ones to be gone", || (addresses(&weir).len() == 2).then_some(()));
    drop(old);
}

#[test]
fn a_reload_that_forbids_an_address_takes_it_out_at_once() {
    let (mut server, port) = (NameServer::start(), port());
    let _good = backend_at(1, port);
    let evil = Backend::serving_at((Ipv4Addr::new(127, 0, 9, 1), port).into(), |_, wire| {
        wire.answers(200, &[], "evil");
        After::Keep
    });
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.9.1"]);
    server.says("one.weir.test", &["1 A 127.0.9.1"]);
    let both = format!("{}, \"one.weir.test:{port}\"", all_of("app.weir.test", port));
    let mut weir = weir_with(&server, &both, "", UNPROBED);
    is_answered_by(&weir, &["1", "evil"]);
    // Nobody says anything else in the meantime.
    server.stops();
    weir.reloads(&config(&both, "allow_address = [\"127.0.1.0/24\"]", UNPROBED));
    evil.forgets();
    assert_eq!(who_answers(&weir), ["1".to_owned()].into());
    assert!(evil.requests().is_empty());
    let one = (format!("one.weir.test:{port}"), "down".to_owned(), 1, false);
    assert!(backends(&weir).contains(&one), "{:?}", backends(&weir));
    upgrades(&weir);
    assert_eq!(who_answers(&weir), ["1".to_owned()].into(), "after an upgrade");
    assert!(evil.requests().is_empty());
}

#[test]
fn addresses_of_both_families_are_members_unless_one_is_not_allowed() {
    let (server, port) = (NameServer::start(), port());
    let _four = backend_at(1, port);
    let _six = Backend::serving_at(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), |_, wire| {
        wire.answers(200, &[], "six");
        After::Keep
    });
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 AAAA ::1"]);
    let all = all_of("app.weir.test", port);
    let mut weir = weir_with(&server, &all, "", UNPROBED);
    is_answered_by(&weir, &["1", "six"]);
    weir.reloads(&config(&all, "allow_address = [\"0.0.0.0/0\"]", UNPROBED));
    assert_eq!(who_answers(&weir), ["1".to_owned()].into());
    assert_eq!(addresses(&weir), [format!("127.0.1.1:{port}")]);
}

#[test]
fn a_name_of_one_backend_keeps_its_address_over_an_upgrade_without_a_name_server() {
    let (mut server, port) = (NameServer::start(), port());
    let _backends: Vec<Backend> = (1..=2).map(|last| backend_at(last, port)).collect();
    server.says("one.weir.test", &["1 A 127.0.1.1"]);
    let weir = weir_with(&server, &format!("\"one.weir.test:{port}\""), "", UNPROBED);
    assert_eq!(ask(&weir), (200, "1".to_owned()));
    server.stops();
    upgrades(&weir);
    assert_eq!(ask(&weir), (200, "1".to_owned()), "from the first request on");
    server.starts_again();
    server.says("one.weir.test", &["1 A 127.0.1.2"]);
    is_answered_by(&weir, &["2"]);
}

#[test]
fn whoever_a_name_leads_to_has_to_prove_that_name() {
    let (server, port) = (NameServer::start(), port());
    let authority = Authority::new().signs("inner", &["app.weir.test"]);
    let app = Backend::saying("proven");
    let outer = |pool: &str, name: &str| {
        format!(
            "[listener.{pool}]\nbind = \"@{pool}\"\npool = \"{pool}\"\n[pool.{pool}]\nbackends = [{name}]\n\
             tls = {{ ca = \"@dir/ca.pem\" }}\nretry = {{ attempts = 0 }}\nhealth = {{ check = \"off\", passive = \"off\" }}\n"
        )
    };
    let config = format!(
        r#"
        [dns]
        resolvers = ["@dns"]
        [listener.inner]
        bind = "127.0.0.1:{port}"
        http = ["h1"]
        pool = "app"
        [listener.inner.tls]
        certificates = [{{ cert = "@dir/inner.pem", key = "@dir/inner.key" }}]
        [pool.app]
        backends = ["@app"]
        {}{}{}
        "#,
        outer("host", &all_of("app.weir.test", port)),
        outer("service", "\"_http._tcp.app.weir.test\""),
        outer("other", &all_of("other.weir.test", port)),
    );
    for name in ["app", "other"] {
        server.says(&format!("{name}.weir.test"), &["60 A 127.0.0.1"]);
    }
    server.says("_http._tcp.app.weir.test", &[&format!("60 SRV 1 1 {port} other.weir.test.")]);
    let weir = authority.setup(&config).with("dns", server.address()).with("app", app.address()).start();
    let asks = |listener: &str| {
        let mut client = weir.client(listener);
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let response = client.receives_response();
        (response.status, response.text())
    };
    assert_eq!(asks("host"), (200, "proven".to_owned()));
    // Its records could name anybody; who asks for a service wants whoever is that service.
    assert_eq!(asks("service"), (200, "proven".to_owned()));
    let (status, text) = asks("other");
    assert!(status == 502 && text.contains("backend_tls"), "{status}: {text}");
}

#[test]
fn the_config_of_the_guide_does_what_the_guide_says() {
    let page = include_str!("../../../docs/guide/names.md");
    let (_, config) = page.split_once("```toml\n").expect("a config");
    let (config, _) = config.split_once("```").expect("it ends");
    let (server, port) = (NameServer::start(), port());
    let config = [
        (r#"["10.0.0.53", "10.0.1.53"]"#, r#"["@dns"]"#.to_owned()),
        ("10.0.0.0/8", "127.0.0.0/8".to_owned()),
        ("0.0.0.0:80", "@web".to_owned()),
        (":8080", format!(":{port}")),
        ("10.0.0.9:8025", format!("127.0.1.9:{port}")),
        (":8025", format!(":{port}")),
        (".internal", ".weir.test".to_owned()),
    ]
    .iter()
    .fold(config.to_owned(), |config, (from, to)| {
        assert!(config.contains(from), "the guide has {from}");
        config.replace(from, to)
    });
    let _backends: Vec<Backend> = (1..=5).map(|last| backend_at(last, port)).collect();
    server.says("app.weir.test", &["1 A 127.0.1.1", "1 A 127.0.1.2"]);
    server.says("_http._tcp.search.weir.test", &[&format!("1 SRV 1 1 {port} node.weir.test.")]);
    server.says("node.weir.test", &["1 A 127.0.1.3"]);
    server.says("mail.weir.test", &["1 A 127.0.1.4", "1 A 127.0.1.5"]);
    let weir = Setup::of(&config).with("dns", server.address()).start();
    let asks = |path: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
        client.receives_status(200).text()
    };
    is_answered_by(&weir, &["1", "2"]);
    assert_eq!(asks("/search/x"), "3");
    let mail = asks("/mail/x");
    assert!(mail == "4" || mail == "5", "one of the two: {mail}");
    assert!((0..8).all(|_| asks("/mail/x") == mail), "and always the same");
}
