//! Several certificates of one listener, and accounts that belong to others.

use super::{CONFIG, Pebble, Ports, asked, certificate, comes_to, is_issued, mirror, orders, setup, shown};
use weir_tests::dialogue::{Signal, until_within};

/// A second certificate beside the one of [`CONFIG`].
fn with_another(config: &str, domains: &str) -> String {
    let first = config.replace("\n[listener.secure.tls.acme]", "\n[[listener.secure.tls.acme]]");
    let own =
        first.split("[[listener.secure.tls.acme]]").nth(1).and_then(|rest| rest.split("[pool.app]").next());
    let other = own.expect("a table").replace("\"shop.example\", \"www.shop.example\"", domains);
    first.replace("[pool.app]", &format!("[[listener.secure.tls.acme]]{other}[pool.app]"))
}

fn count_of(weir: &weir_tests::dialogue::Weir, state: &str) -> usize {
    let status = weir.admin().reads("/v1/status").json();
    let listeners = status["listeners"].as_array().expect("a list").clone();
    let secure = listeners.into_iter().find(|each| each["name"] == "secure").expect("the listener");
    let certificates = secure["certificates"].as_array().expect("a list").clone();
    certificates.iter().filter(|each| each["acme"]["state"] == state).count()
}

#[test]
fn a_listener_has_a_certificate_for_each_of_its_customers_and_each_has_an_order_of_its_own() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let config = with_another(CONFIG, "\"other.example\"");
    let mut weir = setup(&config, ports, &pebble, &backend).start();
    until_within(super::ORDER, "both to be issued", || (count_of(&weir, "issued") == 2).then_some(()));
    for name in ["shop.example", "www.shop.example", "other.example"] {
        assert!(asked(&weir, &pebble, name).succeeded().ends_with("status 200"), "{name}");
    }
    let [shop, other] = ["shop.example", "other.example"].map(|name| shown(&weir, name));
    assert_eq!(shown(&weir, "www.shop.example"), shop);
    assert_ne!(shop, other);
    assert_eq!(orders(&weir, "issued"), 2.0, "{}", weir.story());

    // One more is ordered by a reload, and the two are served on.
    let more =
        with_another(&config, "\"other.example\"").replacen("\"other.example\"", "\"third.example\"", 1);
    weir.reloads(&more);
    until_within(super::ORDER, "the third to be issued", || (count_of(&weir, "issued") == 3).then_some(()));
    assert_eq!([shown(&weir, "shop.example"), shown(&weir, "other.example")], [shop.clone(), other.clone()]);
    assert!(asked(&weir, &pebble, "third.example").succeeded().ends_with("status 200"));

    weir.signals(Signal::TERM);
    weir.starts_again();
    assert_eq!([shown(&weir, "shop.example"), shown(&weir, "other.example")], [shop, other]);
    assert_eq!((orders(&weir, "issued"), count_of(&weir, "issued")), (0.0, 3));
}

/// Nobody answers for one of the two.
#[test]
fn one_that_cannot_be_got_does_not_keep_the_other_from_being_served() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let away = "https://localhost:1/dir";
    let config = with_another(CONFIG, "\"other.example\"").replacen("@directory", away, 1);
    let weir = setup(&config, ports, &pebble, &backend).start();
    until_within(super::ORDER, "one to be issued", || (count_of(&weir, "issued") == 1).then_some(()));
    comes_to(&weir, "away", 1.0);
    assert!(asked(&weir, &pebble, "other.example").succeeded().ends_with("status 200"));
    assert_eq!((count_of(&weir, "issued"), count_of(&weir, "failing") + count_of(&weir, "ordering")), (1, 1));
}

const KEY: &str = "c2l4dGVlbiBvY3RldHMgb2YgYSBrZXkgZm9yIGVhYi4";

fn with_external_account(key_id: &str) -> String {
    let account = format!(
        "[listener.secure.tls.acme]\nexternal_account = {{ key_id = \"{key_id}\", key = \"${{file:@dir/eab.key}}\" }}"
    );
    CONFIG.replace("[listener.secure.tls.acme]", &account)
}

#[test]
fn an_account_belongs_to_one_that_the_authority_knows_and_its_key_is_shown_nowhere() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::away(ports, true).knowing("kid-1", KEY);
    pebble.starts();
    let config = with_external_account("kid-1");
    let weir = setup(&config, ports, &pebble, &backend).with_file("eab.key", &format!("{KEY}\n")).start();
    is_issued(&weir, "secure");
    assert_eq!((orders(&weir, "issued"), orders(&weir, "refused")), (1.0, 0.0), "{}", weir.story());
    assert!(asked(&weir, &pebble, "shop.example").succeeded().ends_with("status 200"));
    let config = weir.admin().reads("/v1/config").response.text();
    assert!(config.contains("kid-1") && config.contains("(secret)"), "{config}");
    assert!(![config, weir.story()].concat().contains(KEY));
}

#[test]
fn a_key_that_is_not_the_one_the_authority_knows_is_refused_and_shown_nowhere() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble =
        Pebble::away(ports, true).knowing("kid-1", "b3RoZXIgb2N0ZXRzIG9mIGEga2V5IGZvciBlYWIuLi4");
    pebble.starts();
    let weir =
        setup(&with_external_account("kid-1"), ports, &pebble, &backend).with_file("eab.key", KEY).start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    assert!(order["error"].as_str().is_some_and(|error| !error.contains(KEY)), "{order}");
    assert!(!weir.story().contains(KEY));
}

/// A handshake that asks for a proof says of which domain, and not for whom.
#[test]
fn orders_that_share_names_are_all_proved_by_handshakes() {
    let (ports, backend) = (Ports::free(), mirror());
    let (pebble, other) = (Pebble::running(ports), Pebble::running(ports));
    let entry = |of: &str, domains: &[&str]| {
        format!(
            "[[listener.secure.tls.acme]]\ndirectory = \"@{of}_directory\"\ndomains = {domains:?}\n\
             challenges = [\"tls-alpn-01\"]\nca = \"@dir/{of}-ca.pem\"\nstore = \"@dir/store\"\n"
        )
    };
    let all = ["a.example", "b.example", "c.example", "d.example", "e.example", "f.example"];
    let entries =
        [entry("front", &all), entry("other", &all), entry("front", &all[2..]), entry("other", &all[4..])];
    let (head, rest) = CONFIG.split_once("[listener.secure.tls.acme]").expect("a table");
    let pools = rest.find("[pool.app]").expect("a pool");
    let weir = setup(&format!("{head}{}{}", entries.concat(), &rest[pools..]), ports, &pebble, &backend)
        .with("front_directory", pebble.directory())
        .with("other_directory", other.directory())
        .with_file("other-ca.pem", &other.front_ca())
        .start();
    until_within(super::ORDER * 2, "all to be issued", || {
        assert_eq!(orders(&weir, "refused"), 0.0, "{}", weir.story());
        (count_of(&weir, "issued") == entries.len()).then_some(())
    });
    assert_eq!(orders(&weir, "issued"), entries.len() as f64);
}
