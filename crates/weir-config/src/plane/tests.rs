use std::time::Duration;

use crate::{Plane, parse, to_toml};

/// A tcp listener on `plane` and its pool, with further settings for each.
fn file(plane: &str, listener: &str, pool: &str) -> String {
    format!(
        "[listener.vip]\nprotocol = 'tcp'\nbind = '10.0.9.9:80'\npool = 'app'\nplane = '{plane}'\n{listener}\n\
         [pool.app]\nbackends = ['10.0.0.1:80']\n{pool}\n"
    )
}

fn obstacle(text: &str) -> Option<String> {
    let config = parse("weir.toml", text).unwrap_or_else(|report| panic!("{report}"));
    config.kernel_obstacle(&config.listeners[0])
}

#[test]
fn what_the_kernel_plane_cannot_do_keeps_auto_off_it_and_is_the_reason() {
    for (listener, pool, reason) in [
        (
            "accept_proxy = '10.0.0.0/8'",
            "",
            "`accept_proxy` means nothing on the kernel plane: the header stands within the connection, which nobody reads there",
        ),
        (
            "max_connections = 10",
            "",
            "`max_connections` means nothing on the kernel plane: `flows` of `[kernel]` bounds the flows of all listeners together",
        ),
        (
            "max_connections_per_client = 10",
            "",
            "`max_connections_per_client` means nothing on the kernel plane: nobody counts the flows of a client there",
        ),
        (
            "tls = { certificates = [{ cert = 'a', key = 'b' }] }",
            "",
            "`tls` means nothing on the kernel plane: connections go through to the backend, and nobody decrypts them",
        ),
        (
            "[[listener.vip.route]]\nsni = 'a.example'\npool = 'app'",
            "",
            "`route` means nothing on the kernel plane: the server name stands within the connection, which nobody reads there",
        ),
        (
            "",
            "send_proxy = 'v1'",
            "`send_proxy` means nothing on the kernel plane: nothing is added to a connection there; by `nat` backends see the client's address",
        ),
        (
            "",
            "tls = true",
            "`tls` means nothing on the kernel plane: connections go through to the backend, and nobody encrypts them",
        ),
        ("", "queue = { max = 7 }", "`queue` means nothing on the kernel plane: packets wait for nobody"),
        (
            "",
            "balance = 'hash'\nhash = { bounded = 1.5 }",
            "`bounded` means nothing on the kernel plane: a backend is looked up there whatever its load",
        ),
        (
            "",
            "balance = 'first'",
            "pool `app` cannot choose by `first` on the kernel plane: expected `round-robin`, `least-connections`, `source`, `hash` or `maglev`",
        ),
    ] {
        assert_eq!(obstacle(&file("auto", listener, pool)).as_deref(), Some(reason));
    }
    let text = file("auto", "", "");
    for (from, to, reason) in [
        (
            "'10.0.9.9:80'",
            "'0.0.0.0:80'",
            "the kernel plane cannot take `0.0.0.0:80`: it takes packets by their destination, which is an address: list those that clients use",
        ),
        (
            "'10.0.9.9:80'",
            "'10.0.9.9:0'",
            "the kernel plane cannot take `10.0.9.9:0`: nobody chooses a free port there: say which one",
        ),
        (
            "'10.0.9.9:80'",
            "'[2001:db8::9]:80'",
            "the kernel plane cannot forward from `[2001:db8::9]:80` to `10.0.0.1:80`: it keeps the address family: make a listener and a pool for each of IPv4 and IPv6",
        ),
        (
            "'10.0.0.1:80'",
            "{ address = '10.0.0.1:80', max_connections = 9 }",
            "`max_connections` means nothing on the kernel plane: connections go through to the backend, and nobody holds them back",
        ),
        (
            "'10.0.0.1:80'",
            "'127.0.0.1:80'",
            "the kernel plane cannot forward to `127.0.0.1:80`: it is this machine, and packets are forwarded to others",
        ),
        ("'tcp'", "'http'", "http is not spoken there"),
    ] {
        let text = if to == "'http'" { text.replace("plane = 'auto'\n", "") } else { text.clone() };
        assert_eq!(obstacle(&text.replace(from, to)).as_deref(), Some(reason));
    }
}

#[test]
fn addresses_of_a_link_alone_are_refused_in_the_kernel() {
    let text =
        file("kernel", "", "").replace("10.0.9.9", "[2001:db8::9]").replace("10.0.0.1", "[2001:db8::1]");
    for (from, expected) in [
        ("[2001:db8::9]", "the kernel plane cannot take `[fe80::9]:80`"),
        ("[2001:db8::1]", "the kernel plane cannot forward to `[fe80::9]:80`"),
    ] {
        let refused = parse("weir.toml", &text.replace(from, "[fe80::9]")).expect_err("nothing gets there");
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    assert!(parse("weir.toml", &text).is_ok());
}

#[test]
fn what_other_listeners_of_a_pool_hash_keeps_auto_off_the_kernel_plane() {
    let text = file("auto", "", "balance = 'maglev'\nhash = { key = 'uri' }")
        + "[listener.web]\nbind = '10.0.9.9:81'\npool = 'app'\n";
    let reason = "pool `app` cannot hash `uri` on the kernel plane: packets tell addresses and ports: expected \"client_ip\"";
    assert_eq!(obstacle(&text).as_deref(), Some(reason));
    assert_eq!(obstacle(&text.replace("maglev", "round-robin")), None);
}

#[test]
fn what_only_tunes_the_proxy_and_what_is_the_default_anyway_leaves_auto_on_the_kernel_plane() {
    for (listener, pool) in [
        ("", ""),
        ("interface = 'eth0'\nforward = 'nat'", "balance = 'least-connections'\nslow_start = '10s'"),
        (
            "timeout = { connect = '1s', header = '1s', handshake = '1s', client_idle = '1h' }",
            "retry = { attempts = 5 }",
        ),
        ("max_connections = 100000", "queue = { max = 1000, timeout = '1s' }\ntls = false"),
        ("", "balance = 'maglev'\nhash = { key = 'flow' }\nhealth = { check = 'off' }"),
    ] {
        assert_eq!(obstacle(&file("auto", listener, pool)), None, "{listener} {pool}");
    }
    assert_eq!(obstacle(&file("kernel", "", "")), None);
}

#[test]
fn a_quiet_tcp_connection_is_remembered_for_longer_where_its_packets_may_be_forwarded_in_the_kernel() {
    for (plane, protocol, seconds) in [
        ("proxy", "tcp", 60),
        ("kernel", "tcp", 900),
        ("auto", "tcp", 900),
        ("kernel", "udp", 60),
        ("auto", "udp", 60),
    ] {
        let text = file(plane, "", "").replace("'tcp'", &format!("'{protocol}'"));
        let config = parse("weir.toml", &text).unwrap();
        assert_eq!(
            config.listeners[0].timeout.client_idle,
            Duration::from_secs(seconds),
            "{plane} {protocol}"
        );
        let other = parse("weir.toml", &to_toml(&config)).unwrap();
        assert_eq!(config, other);
    }
    let said = parse("weir.toml", &file("kernel", "timeout.client_idle = '60s'", "")).unwrap();
    assert_eq!(said.listeners[0].timeout.client_idle, Duration::from_secs(60));
}

#[test]
fn a_kernel_listener_is_written_without_what_means_nothing_there() {
    let config = parse("weir.toml", &file("kernel", "interface = 'eth*'", "")).unwrap();
    assert_eq!(config.listeners[0].plane, Plane::Kernel);
    let written = to_toml(&config);
    let expected = "[listener.vip]\nprotocol = \"tcp\"\nbind = [\"10.0.9.9:80\"]\npool = \"app\"\nplane = \"kernel\"\n\
                    interface = [\"eth*\"]\nforward = \"nat\"\n\n[listener.vip.timeout]\nclient_idle = \"15m\"\n\n[pool.app]\n\
                    backends = [\"10.0.0.1:80\"]\nbalance = \"round-robin\"\n";
    assert!(written.contains(expected), "{written}");
    assert!(!written.contains("queue") && !written.contains("retry"), "{written}");
}

#[test]
fn lists_of_addresses_hold_on_either_plane_and_belong_to_the_listener() {
    for plane in ["proxy", "kernel"] {
        let lists = "deny_address = ['10.6.6.0/24']\nallow_address = ['10.0.0.0/8']";
        let config = parse("weir.toml", &file(plane, lists, "")).unwrap_or_else(|report| panic!("{report}"));
        let networks = &config.listeners[0].client_screen;
        assert_eq!(
            (networks.deny[0].to_string(), networks.allow[0].to_string()),
            ("10.6.6.0/24".into(), "10.0.0.0/8".into())
        );
        let again = parse("weir.toml", &to_toml(&config)).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(config, again);
    }
    let route = "[[listener.vip.route]]\nsni = 'a.example'\npool = 'app'\ndeny_address = ['10.0.0.1']";
    let refused =
        parse("weir.toml", &file("proxy", route, "")).expect_err("a route has no such list").to_string();
    assert!(refused.contains("`deny_address` means nothing in a route of a tcp listener"), "{refused}");
}

#[test]
fn least_connections_has_no_more_backends_in_the_kernel_than_it_compares() {
    let of = |plane, count: usize| {
        let backends: Vec<String> =
            (0..count).map(|at| format!("'10.1.{}.{}:80'", at / 250, at % 250 + 1)).collect();
        let text = file(plane, "", "balance = 'least-connections'");
        text.replace("['10.0.0.1:80']", &format!("[{}]", backends.join(", ")))
    };
    assert!(parse("weir.toml", &of("kernel", 1_024)).is_ok());
    let refused = parse("weir.toml", &of("kernel", 1_025)).expect_err("one is never chosen").to_string();
    let expected = "pool `app` has 1025 backends, and `least-connections` compares 1024 on the kernel plane";
    assert!(refused.contains(expected) && refused.contains("expected another `balance`"), "{refused}");
    assert!(obstacle(&of("auto", 1_025)).is_some_and(|why| why.starts_with(expected)));
    assert!(parse("weir.toml", &of("kernel", 1_025).replace("least-connections", "maglev")).is_ok());
}

#[test]
fn a_backend_that_is_the_listener_itself_is_refused_in_the_kernel() {
    for (listener, backend) in [
        ("10.0.9.9:80", "10.0.9.9:80"),
        ("10.0.9.9:80-90", "10.0.9.9:85"),
        ("10.0.9.9:80-90", "10.0.9.9"),
        ("[2001:db8::9]:80", "[2001:db8::9]:80"),
    ] {
        let probed = "health = { port = 8080 }";
        let text =
            file("kernel", "", probed).replace("10.0.9.9:80", listener).replace("10.0.0.1:80", backend);
        let refused = parse("weir.toml", &text).expect_err("its packets would come back").to_string();
        let expected = format!("the kernel plane cannot forward from `{listener}` to `{backend}`");
        assert!(refused.contains(&expected) && refused.contains("it is the listener itself"), "{refused}");
    }
    // Another port of the address may belong to another host, as when Weir is only on the route to it.
    let text = file("kernel", "", "").replace("10.0.0.1:80", "10.0.9.9:8080");
    assert!(parse("weir.toml", &text).is_ok());
}

#[test]
fn backends_are_asked_at_the_listeners_address_where_they_answer_past_the_plane() {
    let asks = |listener: &str, pool: &str| {
        let text = file("kernel", listener, pool);
        let config = parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let again = parse("weir.toml", &to_toml(&config)).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(config, again);
        crate::Config::asks_at_vip(&config.pools[0], &config.listeners[0])
    };
    for forward in ["forward = 'dsr'", "forward = 'ipip'"] {
        assert!(asks(forward, ""));
        assert!(asks(forward, "health = { check = 'tcp', port = 80 }"));
        assert!(!asks(forward, "health = { check = 'tcp', port = 8080 }"), "told elsewhere");
        assert!(asks(forward, "health = { check = 'tcp', port = 8080, at = 'vip' }"));
        assert!(!asks(forward, "health = { check = 'tcp', at = 'backend' }"));
        assert!(!asks(forward, "health = 'off'"));
    }
    assert!(!asks("forward = 'nat'", ""));
    assert!(!asks("forward = 'nat'", "health = { at = 'backend' }"));
}

#[test]
fn no_probe_asks_at_the_address_of_a_listener_that_backends_do_not_have() {
    let at_vip = "health = { at = 'vip' }";
    for (plane, listener) in [("kernel", "forward = 'nat'"), ("kernel", ""), ("proxy", "")] {
        let refused =
            parse("weir.toml", &file(plane, listener, at_vip)).expect_err("nobody has it").to_string();
        assert!(refused.contains("no probe can ask at the listener's address"), "{refused}");
        assert!(
            refused.contains("no listener forwards to `app` by `forward = \"dsr\"` or `\"ipip\"`"),
            "{refused}"
        );
    }
    assert!(parse("weir.toml", &file("auto", "forward = 'dsr'", at_vip)).is_ok());
    let refused = parse("weir.toml", &file("kernel", "forward = 'dsr'", "health = { at = 'tunnel' }"));
    let refused = refused.expect_err("it is no word").to_string();
    assert!(refused.contains("\"vip\"") && refused.contains("\"backend\""), "{refused}");
}
