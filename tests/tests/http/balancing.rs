//! Who gets the next request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weir_tests::dialogue::{After, Backend, Setup, Weir, Wire};

fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

fn pool_of_three(settings: &str) -> (Weir, [Backend; 3]) {
    let backends = [named("a"), named("b"), named("c")];
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        {settings}
        health = {{ check = "off", passive = "off" }}
        "#
    );
    let setup = backends
        .iter()
        .zip(["a", "b", "c"])
        .fold(Setup::of(&config), |setup, (backend, name)| setup.with(name, backend.address()));
    (setup.start(), backends)
}

const EVEN: &str = r#"backends = ["@a", "@b", "@c"]"#;

fn asks(client: &mut Wire, target: &str, fields: &str) -> String {
    client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    client.receives_status(200).text()
}

#[test]
fn round_robin_gives_each_backend_its_weight() {
    let (weir, _backends) = pool_of_three(
        r#"backends = [{ address = "@a", weight = 3 }, { address = "@b", weight = 2 }, { address = "@c", weight = 1 }]"#,
    );
    // One connection is one worker; the order within a round is the algorithm's own business.
    let mut client = weir.client("web");
    let mut counts = BTreeMap::new();
    for _ in 0..600 {
        *counts.entry(asks(&mut client, "/", "")).or_insert(0) += 1;
    }
    assert_eq!(counts, BTreeMap::from([("a".to_owned(), 300), ("b".to_owned(), 200), ("c".to_owned(), 100)]));
}

#[test]
fn a_backend_of_weight_0_gets_nothing() {
    let (weir, backends) = pool_of_three(r#"backends = ["@a", { address = "@b", weight = 0 }, "@c"]"#);
    let mut client = weir.client("web");
    for _ in 0..100 {
        asks(&mut client, "/", "");
    }
    assert_eq!(backends[1].served(), 0);
}

#[test]
fn a_backup_is_used_only_when_no_other_backend_is_up() {
    let backends = [named("a"), named("spare")];
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a", { address = "@spare", backup = true }]
        health = { check = "tcp", interval = "100ms", fast_interval = "50ms", fall = 1, rise = 1 }
        "#,
    )
    .with("a", backends[0].address())
    .with("spare", backends[1].address())
    .start();
    let mut client = weir.client("web");
    for _ in 0..30 {
        assert_eq!(asks(&mut client, "/", ""), "a");
    }
    let [first, _spare] = backends;
    first.dies();
    // From the first request on: what the dead backend does not take, the spare one does.
    for _ in 0..30 {
        assert_eq!(asks(&mut client, "/", ""), "spare");
    }
}

#[test]
fn every_algorithm_spreads_requests_over_all_backends() {
    for algorithm in ["round-robin", "least-connections", "random-two", "least-time", "hash", "maglev"] {
        let (weir, backends) = pool_of_three(&format!("{EVEN}\nbalance = \"{algorithm}\""));
        let mut clients: Vec<Wire> = (0..4).map(|_| weir.client("web")).collect();
        for number in 0..240 {
            asks(&mut clients[number % 4], &format!("/{number}"), "");
        }
        // Least-time keeps away from a backend that was slow once, on a busy machine for longer than this
        // test lasts.
        let least = if algorithm == "least-time" { 1 } else { 20 };
        for backend in &backends {
            let share = backend.served();
            assert!(share >= least, "{algorithm}: a backend got {share} of 240 requests");
        }
    }
}

#[test]
fn first_fills_the_first_backend_before_the_next() {
    let (weir, backends) = pool_of_three(&format!("{EVEN}\nbalance = \"first\""));
    let mut client = weir.client("web");
    for _ in 0..50 {
        assert_eq!(asks(&mut client, "/", ""), "a");
    }
    assert_eq!(backends[1].served() + backends[2].served(), 0);
}

#[test]
fn a_header_on_several_lines_is_hashed_as_one_value() {
    let (weir, _backends) =
        pool_of_three(&format!("{EVEN}\nbalance = \"hash\"\nhash = {{ key = \"header:x-user\" }}"));
    let mut client = weir.client("web");
    let mut chosen = std::collections::BTreeSet::new();
    for key in 0..40 {
        let on_two_lines = asks(&mut client, "/", &format!("x-user: a\r\nx-user: u{key}\r\n"));
        assert_eq!(asks(&mut client, "/", &format!("x-user: a, u{key}\r\n")), on_two_lines, "key {key}");
        chosen.insert(on_two_lines);
    }
    assert_eq!(chosen.len(), 3, "forty values got {chosen:?}");
}

#[test]
fn the_same_key_goes_to_the_same_backend() {
    for (settings, by_header) in [
        ("balance = \"hash\"\nhash = { key = \"uri\" }", false),
        ("balance = \"hash\"\nhash = { key = \"path\" }", false),
        ("balance = \"maglev\"\nhash = { key = \"uri\" }", false),
        ("balance = \"hash\"\nhash = { key = \"header:x-user\" }", true),
        ("balance = \"maglev\"\nhash = { key = \"cookie:user\" }", true),
    ] {
        let (weir, _backends) = pool_of_three(&format!("{EVEN}\n{settings}"));
        let mut seen: BTreeMap<usize, String> = BTreeMap::new();
        for round in 0..3 {
            // A connection a round, so that more than one worker takes part.
            let mut client = weir.client("web");
            for key in 0..40 {
                let (target, fields) = match by_header {
                    true => {
                        (format!("/{round}"), format!("x-user: u{key}\r\ncookie: other=x; user=u{key}\r\n"))
                    }
                    false => (format!("/item/{key}"), String::new()),
                };
                let backend = asks(&mut client, &target, &fields);
                let first = seen.entry(key).or_insert_with(|| backend.clone());
                assert_eq!(first, &backend, "{settings}: key {key} moved in round {round}");
            }
        }
        let distinct: std::collections::BTreeSet<&String> = seen.values().collect();
        assert_eq!(distinct.len(), 3, "{settings}: 40 keys must not all go the same way");
    }
}

#[test]
fn source_keeps_a_client_address_on_one_backend() {
    let (weir, _backends) = pool_of_three(&format!("{EVEN}\nbalance = \"source\""));
    let first = asks(&mut weir.client("web"), "/", "");
    for _ in 0..20 {
        assert_eq!(asks(&mut weir.client("web"), "/", ""), first);
    }
}

#[test]
fn a_sticky_cookie_brings_a_client_back_to_its_backend() {
    let (weir, mut backends) = {
        let (weir, backends) = pool_of_three(&format!("{EVEN}\nsticky = {{ cookie = \"weir\" }}"));
        (weir, Vec::from(backends))
    };
    let mut cookies = BTreeMap::new();
    let mut client = weir.client("web");
    for _ in 0..12 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let response = client.receives_status(200);
        let cookie = response.fields.one("set-cookie").expect("a cookie").to_owned();
        let (pair, attributes) = cookie.split_once(';').expect("attributes");
        assert!(
            attributes.to_lowercase().contains("httponly") && attributes.to_lowercase().contains("path=/"),
            "{cookie}"
        );
        cookies.insert(response.text(), pair.to_owned());
    }
    assert_eq!(cookies.len(), 3, "without a cookie the clients are spread");
    for (backend, cookie) in &cookies {
        assert!(cookie.starts_with("weir="), "{cookie}");
        for address in &backends {
            assert!(
                !cookie.contains(&address.address().port().to_string()),
                "the cookie tells an inner address: {cookie}"
            );
        }
        let mut client = weir.client("web");
        for _ in 0..10 {
            client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: x=y; {cookie}; z=w\r\n\r\n"));
            let response = client.receives_status(200);
            assert_eq!(&response.text(), backend);
            assert_eq!(response.fields.one("set-cookie"), None, "a good cookie is not set again");
        }
    }
    // A cookie of a backend that is gone, or of nobody, is replaced.
    let dead = backends.remove(0);
    dead.dies();
    let gone = cookies["a"].clone();
    for cookie in [gone.as_str(), "weir=nonsense", "weir=", "weir=\"\"", "weir=9999999999999999999999"] {
        let mut client = weir.client("web");
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\ncookie: {cookie}\r\n\r\n"));
        let response = client.receives_status(200);
        assert!(matches!(response.text().as_str(), "b" | "c"));
        assert!(
            response.fields.one("set-cookie").is_some_and(|set| set.starts_with("weir=")),
            "{cookie}: {response:?}"
        );
    }
}

#[test]
fn least_connections_prefers_the_idle_backend() {
    let slow = Backend::serving(|request, wire| {
        if request.target == "/hold" {
            // Held until the client goes away.
            let mut one = [0; 1];
            let _ = std::io::Read::read(&mut wire.socket(), &mut one);
            return After::Close;
        }
        wire.answers(200, &[], "slow");
        After::Keep
    });
    let quick = named("quick");
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [[listener.web.route]]
        path = "/hold"
        pool = "held"
        [pool.app]
        backends = ["@slow", "@quick"]
        balance = "least-connections"
        health = { check = "off" }
        [pool.held]
        backends = ["@slow"]
        health = { check = "off" }
        "#,
    )
    .with("slow", slow.address())
    .with("quick", quick.address())
    .start();
    // The same pool must carry the load, so hold requests on whichever backend takes them first.
    let mut client = weir.client("web");
    for _ in 0..20 {
        asks(&mut client, "/", "");
    }
    assert!(
        slow.served() >= 5 && quick.served() >= 5,
        "idle backends share: {} {}",
        slow.served(),
        quick.served()
    );
}

#[test]
fn a_hash_over_a_text_with_variables_keeps_to_what_it_says_and_explain_agrees() {
    let settings =
        format!("{EVEN}\nbalance = \"maglev\"\nhash = {{ key = \"$host/$cookie.cart/$query.q\" }}");
    let (weir, backends) = pool_of_three(&settings);
    let mut client = weir.client("web");
    let mut chosen = std::collections::BTreeSet::new();
    for number in 0..40 {
        let cookie = format!("cookie: cart={number}\r\n");
        let target = format!("/{number}?q=1");
        let backend = asks(&mut client, &target, &cookie);
        assert_eq!(asks(&mut client, "/elsewhere?x=2&q=1", &cookie), backend, "{number} moved");
        let question = serde_json::json!({
            "protocol": "http", "method": "GET", "url": format!("http://{}{target}", weir.address("web")),
            "headers": [["host", "a"], ["cookie", format!("cart={number}")]],
        });
        let said = weir.admin().calls("POST", "/v1/explain", &[], &question.to_string()).json();
        let position = ["a", "b", "c"].iter().position(|name| *name == backend).expect("a backend");
        assert_eq!(said["pool"]["backend"], backends[position].address().to_string(), "{said}");
        chosen.insert(backend);
    }
    assert_eq!(chosen.len(), 3, "forty carts got {chosen:?}");
}

/// All others were then sent to the backends that this client had not used.
#[test]
fn a_client_that_sends_slowly_makes_no_backend_look_slow() {
    /// How long it takes to send its body.
    const SLOW_CLIENT: Duration = Duration::from_secs(2);
    /// How long the other backend takes to answer.
    const SLOW_BACKEND: Duration = Duration::from_millis(100);
    let (slow, names) = (Arc::new(AtomicUsize::new(usize::MAX)), ["a", "b"]);
    let backends: Vec<Backend> = (0..names.len())
        .map(|number| {
            let slow = slow.clone();
            Backend::serving(move |request, wire| {
                if request.body.is_empty() && slow.load(Ordering::Relaxed) == number {
                    std::thread::sleep(SLOW_BACKEND);
                }
                wire.answers(200, &[], names[number]);
                After::Keep
            })
        })
        .collect();
    let config = r#"
        [runtime]
        workers = 1
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a", "@b"]
        balance = "least-time"
        health = { check = "off", passive = "off" }
        "#;
    let setup = Setup::of(config).with("a", backends[0].address()).with("b", backends[1].address());
    let weir = setup.start();
    let (mut client, mut uploader) = (weir.client("web"), weir.client("web"));
    let asked: BTreeSet<String> = (0..20).map(|_| asks(&mut client, "/", "")).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    uploader.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nsome");
    std::thread::sleep(SLOW_CLIENT);
    uploader.sends("more");
    let used = uploader.receives_status(200).text();
    slow.store(names.iter().position(|name| *name != used).expect("the other"), Ordering::Relaxed);
    let answers: Vec<String> = (0..10).map(|_| asks(&mut client, "/", "")).collect();
    assert!(answers.iter().filter(|name| **name == used).count() >= 5, "not {used}: {answers:?}");
}
