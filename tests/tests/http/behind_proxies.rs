//! Who the client is where a trusted proxy passes requests on: one answer, wherever it is asked.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Weir, Wire, one_pool};

fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

/// Trusts loopback addresses; has three backends, and these settings for their pool.
fn trusting(of_pool: &str) -> (Weir, [Backend; 3]) {
    let backends = [named("a"), named("b"), named("c")];
    let config = format!(
        r#"
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        pool = "app"
        trusted_proxies = ["127.0.0.0/8", "10.0.0.0/8"]
        max_connections_per_client = 1
        [pool.app]
        backends = ["@a", "@b", "@c"]
        {of_pool}
        health = "off"
        "#
    );
    let known = ["a", "b", "c"].iter().zip(&backends);
    let setup = known.fold(Setup::of(&config), |setup, (name, backend)| setup.with(name, backend.address()));
    (setup.start(), backends)
}

/// The text of the backend that gets a request in the name of `client`.
fn ask(wire: &mut Wire, client: &str) -> String {
    wire.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}, 10.0.0.9\r\n\r\n"));
    wire.receives_status(200).text()
}

#[test]
fn a_choice_by_address_is_by_the_client_that_a_trusted_proxy_names() {
    for of_pool in [
        "balance = \"source\"",
        "balance = \"hash\"\nhash = { key = \"client_ip\" }",
        "balance = \"maglev\"\nhash = { key = \"client_ip\" }",
    ] {
        let (weir, _backends) = trusting(of_pool);
        let mut proxy = weir.client("web");
        let mut chosen = BTreeSet::new();
        for number in 1..=40 {
            let client = format!("203.0.113.{number}");
            let backend = ask(&mut proxy, &client);
            assert_eq!(ask(&mut proxy, &client), backend, "{of_pool}: {client} moved");
            chosen.insert(backend);
        }
        assert_eq!(chosen.len(), 3, "{of_pool}: forty clients got {chosen:?}");
    }
}

#[test]
fn explain_chooses_by_the_same_client_as_the_request() {
    let (weir, backends) = trusting("balance = \"source\"");
    let mut proxy = weir.client("web");
    for number in 1..=20 {
        let client = format!("203.0.113.{number}");
        let question = json!({
            "protocol": "http", "method": "GET", "url": format!("http://{}/", weir.address("web")),
            "from": "127.0.0.1", "headers": [["x-forwarded-for", format!("{client}, 10.0.0.9")]],
        });
        let said = weir.admin().calls("POST", "/v1/explain", &[], &question.to_string()).json();
        let text = ask(&mut proxy, &client);
        let position = ["a", "b", "c"].iter().position(|name| *name == text).expect("a backend");
        assert_eq!(said["pool"]["backend"], backends[position].address().to_string(), "{client}: {said}");
    }
}

#[test]
fn the_log_names_the_client_that_a_trusted_proxy_names() {
    let (weir, _backends) = trusting("");
    let mut proxy = weir.client("web");
    let clients = [
        ("203.0.113.7", "203.0.113.7:0"),
        ("203.0.113.7:4711", "203.0.113.7:4711"),
        ("2001:db8::7", "[2001:db8::7]:0"),
    ];
    for (named, _) in clients {
        ask(&mut proxy, named);
    }
    let lines = weir.lines_of("access.log", clients.len());
    for ((_, logged), line) in clients.iter().zip(lines) {
        let line: Value = serde_json::from_str(&line).expect("a line of JSON");
        assert_eq!(line["client"], *logged, "{line}");
    }
}

#[test]
fn the_connections_of_a_trusted_proxy_are_nobodys_share() {
    let (weir, _backends) = trusting("");
    let mut held: Vec<Wire> = (0..5).map(|_| weir.client("web")).collect();
    for (number, proxy) in held.iter_mut().enumerate() {
        ask(proxy, &format!("203.0.113.{number}"));
    }
    assert_eq!(weir.metric("weir_rejected_total", &[("reason", "client_connections")]), 0.0);
}

/// A customer with IPv6 has at least a /64 and can use every address in it.
#[test]
fn connections_from_one_64_share_the_limit_of_one_client() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        accept_proxy = ["127.0.0.0/8"]
        max_connections_per_client = 1
        [listener.raw]
        protocol = "tcp"
        bind = "@raw"
        pool = "app"
        accept_proxy = ["127.0.0.0/8"]
        max_connections_per_client = 1
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#,
    )
    .with("app", backend.address())
    .start();
    let from = |listener: &str, client: &str| {
        let mut wire = weir.client(listener);
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        wire.sends(format!("PROXY TCP6 {client} 2001:db8::80 5555 80\r\n{get}"));
        wire
    };
    for listener in ["web", "raw"] {
        let mut held = from(listener, "2001:db8:1:2::1");
        held.receives_status(200);
        for number in 2..=20 {
            from(listener, &format!("2001:db8:1:2:ffff::{number:x}")).receives_close();
        }
        let mut other = from(listener, "2001:db8:1:3::1");
        other.receives_status(200);
        weir.reaches(
            "weir_rejected_total",
            &[("listener", listener), ("reason", "client_connections")],
            19.0,
        );
    }
}

#[test]
fn a_proxy_header_to_a_backend_names_the_client_that_a_trusted_proxy_names() {
    let backend = ScriptedBackend::start();
    let weir = Setup::of(&one_pool(
        r#"trusted_proxies = ["127.0.0.0/8"]"#,
        r#"
        send_proxy = "v1"
        health = "off"
        "#,
    ))
    .with("app", backend.address())
    .start();
    let port = weir.address("web").port();
    for (client, header) in [
        ("203.0.113.7", format!("PROXY TCP4 203.0.113.7 127.0.0.1 0 {port}\r\n")),
        ("198.51.100.1:99", format!("PROXY TCP4 198.51.100.1 127.0.0.1 99 {port}\r\n")),
    ] {
        let mut proxy = weir.client("web");
        proxy.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n"));
        let mut wire = backend.accepts();
        wire.receives_exactly(header);
        wire.receives_request();
        wire.answers(200, &[], "ok");
        proxy.receives_status(200);
    }
}

/// One backend, and these lines for the listener; one address is denied, and `/limited` takes one request an
/// hour from each client.
fn behind(of_listener: &str) -> (Weir, Backend) {
    let backend = named("a");
    let config = format!(
        r#"
        [log]
        access = "@dir/access.log"
        [listener.web]
        bind = "@web"
        {of_listener}
        deny_address = ["203.0.113.66"]
        [[listener.web.route]]
        path = "/limited"
        pool = "app"
        rate_limit = {{ rate = "1/h", burst = 1 }}
        [[listener.web.route]]
        pool = "app"
        [pool.app]
        backends = ["@app"]
        set_request_header = {{ x-seen = "$client_ip" }}
        health = "off"
        "#
    );
    (Setup::of(&config).with("app", backend.address()).start(), backend)
}

fn status(weir: &Weir, path: &str, lines: &str) -> u16 {
    let mut wire = weir.client("web");
    wire.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{lines}\r\n"));
    wire.receives_response().status
}

#[test]
fn whom_a_field_of_a_cdn_names_is_the_client_of_log_lists_limits_and_backends() {
    let (weir, backend) =
        behind("trusted_proxies = [\"127.0.0.0/8\"]\nclient_address = \"cf-connecting-ip\"");
    let of = |client: &str| format!("x-forwarded-for: 9.9.9.9\r\nCF-Connecting-IP: {client}\r\n");
    assert_eq!(status(&weir, "/", &of("203.0.113.7")), 200);
    let fields = backend.requests().pop().expect("a request").fields;
    for name in ["x-seen", "x-real-ip", "cf-connecting-ip"] {
        assert_eq!(fields.all(name), ["203.0.113.7"], "{name}");
    }
    assert_eq!(status(&weir, "/", &of("203.0.113.66")), 403);
    for client in ["203.0.113.1", "203.0.113.2"] {
        assert_eq!(status(&weir, "/limited", &of(client)), 200, "{client}");
        assert_eq!(status(&weir, "/limited", &of(client)), 429, "{client}");
    }
    let logged =
        |line: &String| serde_json::from_str::<Value>(line).expect("a line of JSON")["client"].take();
    // Each worker writes its own lines, in no particular order with those of others.
    let mut clients: Vec<Value> = weir.lines_of("access.log", 6).iter().map(logged).collect();
    clients.sort_by_key(Value::to_string);
    assert_eq!(clients, [1, 1, 2, 2, 66, 7].map(|last| format!("203.0.113.{last}:0")));
}

#[test]
fn a_field_that_comes_twice_or_is_no_address_names_nobody() {
    let (weir, backend) =
        behind("trusted_proxies = [\"127.0.0.0/8\"]\nclient_address = \"cf-connecting-ip\"");
    for lines in [
        "cf-connecting-ip: 203.0.113.7\r\ncf-connecting-ip: 203.0.113.66\r\n",
        "cf-connecting-ip: 203.0.113.66, 203.0.113.7\r\n",
        "cf-connecting-ip: unknown\r\n",
        "x-forwarded-for: 203.0.113.66\r\n",
    ] {
        assert_eq!(status(&weir, "/", lines), 200, "{lines}");
        let fields = backend.requests().pop().expect("a request").fields;
        assert_eq!(fields.all("x-seen"), ["127.0.0.1"], "{lines}");
        assert_eq!(fields.all("cf-connecting-ip"), ["127.0.0.1"], "{lines}");
    }
}

#[test]
fn a_client_that_is_no_trusted_proxy_cannot_say_who_it_is_in_the_field_of_a_cdn() {
    let (weir, backend) = behind("trusted_proxies = [\"10.0.0.0/8\"]\nclient_address = \"cf-connecting-ip\"");
    for lines in ["cf-connecting-ip: 203.0.113.7\r\nCF_Connecting_IP: 203.0.113.7\r\n", ""] {
        assert_eq!(status(&weir, "/", lines), 200);
        let fields = backend.requests().pop().expect("a request").fields;
        for name in ["x-seen", "x-real-ip", "cf-connecting-ip"] {
            assert_eq!(fields.all(name), ["127.0.0.1"], "{name}");
        }
        assert!(fields.all("cf_connecting_ip").is_empty(), "{fields:?}");
    }
}

#[test]
fn so_many_hops_from_the_right_is_the_client_whoever_stands_between_and_explain_agrees() {
    let (weir, backend) = behind("trusted_proxies = [\"127.0.0.0/8\"]\nclient_address = { hops = 2 }");
    for (list, client) in [
        ("203.0.113.66, 203.0.113.7, 198.51.100.1", "203.0.113.7"),
        ("203.0.113.7, 198.51.100.1", "203.0.113.7"),
        ("198.51.100.1", "198.51.100.1"),
        ("203.0.113.7, unknown, 198.51.100.1", "127.0.0.1"),
    ] {
        let line = format!("x-forwarded-for: {list}\r\n");
        assert_eq!(status(&weir, "/", &line), 200, "{list}");
        let fields = backend.requests().pop().expect("a request").fields;
        assert_eq!(fields.all("x-seen"), [client], "{list}");
        let question = json!({
            "protocol": "http", "method": "GET", "url": format!("http://{}/", weir.address("web")),
            "from": "127.0.0.1", "headers": [["x-forwarded-for", list]],
        });
        let said = weir.admin().calls("POST", "/v1/explain", &[], &question.to_string()).json();
        let seen =
            said["header_changes"].as_array().and_then(|all| all.iter().find(|it| it["name"] == "x-seen"));
        assert_eq!(seen.map(|it| it["value"].clone()), Some(json!(client)), "{list}: {said}");
    }
    assert_eq!(status(&weir, "/", "x-forwarded-for: 203.0.113.66, 198.51.100.1\r\n"), 403);
}
