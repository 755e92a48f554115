//! Limits of rate: how exact they are, what they count by, and what those are told who are over.

use std::time::{Duration, Instant};

use weir_tests::dialogue::{After, Backend, PATIENCE, Setup, Weir, alone, run_tool, tool};

use super::{ask, rejected, with_listener, with_route};

/// RFC 9110 section 5.3: several lines are one value. By the first line alone a client could be counted as
/// somebody else, or as nobody.
#[test]
fn a_key_is_all_lines_of_its_header_and_not_the_first() {
    let backend = Backend::saying("hello");
    let weir =
        with_route(&backend, r#"rate_limit = { rate = "1/h", burst = 1, key = "header:x-user" }"#).start();
    for (fields, status) in [
        ("x-user: a\r\nx-user: b\r\n", 200),
        ("x-user: a\r\nX-User: c\r\n", 200),
        ("x-user: a\r\n", 200),
        ("x-user: a, b\r\n", 429),
        ("x-user: a\r\nx-other: 1\r\nx-user: b\r\n", 429),
        ("x-user: a\r\nx-user: c\r\n", 429),
    ] {
        assert_eq!(ask(&weir, "GET", "/", fields).status, status, "{fields:?}");
    }
}

#[test]
fn who_is_over_is_told_when_to_come_again_and_comes_again() {
    let backend = Backend::saying("hello");
    let weir = with_route(&backend, r#"rate_limit = { rate = "1/2s", burst = 2 }"#).start();
    let statuses: Vec<u16> = (0..4).map(|_| ask(&weir, "GET", "/", "").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    let refused = ask(&weir, "GET", "/", "");
    assert_eq!(refused.text(), "429 Too Many Requests rate_limited\n");
    let wait: u64 = refused.fields.one("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&wait), "{wait} s");
    std::thread::sleep(Duration::from_secs(wait));
    assert_eq!(ask(&weir, "GET", "/", "").status, 200);
    assert_eq!(rejected(&weir, "rate_limited"), 3.0);
    assert_eq!(backend.requests().len(), 3);
    let lines = weir.lines_of("access.log", 6);
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains(r#""status":429"#) && line.contains(r#""end":"rate_limited""#))
            .count(),
        3
    );
}

#[test]
fn keys_are_counted_apart_and_who_hides_the_header_is_counted_by_address() {
    let backend = Backend::saying("hello");
    let limit = |key: &str| format!(r#"rate_limit = {{ rate = "1/h", key = "{key}" }}"#);
    let weir = with_route(&backend, &limit("header:x-user")).start();
    for (fields, status) in [
        ("x-user: a\r\n", 200),
        ("x-user: a\r\n", 429),
        ("X-User: b\r\n", 200),
        ("", 200),
        ("", 429),
        ("x-user: a\r\n", 429),
    ] {
        assert_eq!(ask(&weir, "GET", "/", fields).status, status, "{fields}");
    }
    let weir = with_route(&backend, &limit("cookie:session")).start();
    for (fields, status) in [
        ("cookie: x=1; session=a\r\n", 200),
        ("cookie: session=a; x=2\r\n", 429),
        ("cookie: session=b\r\n", 200),
    ] {
        assert_eq!(ask(&weir, "GET", "/", fields).status, status, "{fields}");
    }
    let weir = with_route(&backend, &limit("route")).start();
    assert_eq!(ask(&weir, "GET", "/a", "").status, 200);
    assert_eq!(ask(&weir, "GET", "/b", "x-user: a\r\n").status, 429);
}

#[test]
fn the_strictest_of_several_holds_and_what_it_refuses_costs_nothing_of_the_others() {
    let backend = Backend::saying("hello");
    let keys = r#"rate_limit = [{ rate = "1/h", burst = 3, key = "client_ip" }, { rate = "1/h", key = "header:x-user", status = 503 }]"#;
    let weir = with_route(&backend, keys).start();
    let of = |user: &str| ask(&weir, "GET", "/", &format!("x-user: {user}\r\n")).status;
    assert_eq!([of("a"), of("a"), of("a"), of("a")], [200, 503, 503, 503]);
    assert_eq!([of("b"), of("c"), of("d")], [200, 200, 429]);
}

/// Who hammers a route that has a limit of its own does not use up what the listener gives to all.
#[test]
fn what_a_routes_limit_refuses_costs_nothing_of_the_listeners() {
    let backend = Backend::saying("hello");
    let keys = r#"
        rate_limit = { rate = "1/h", burst = 4, key = "listener" }
        [[listener.web.route]]
        path = "/login"
        pool = "app"
        rate_limit = { rate = "1/h", burst = 1 }
    "#;
    let weir = with_listener(&backend, keys).start();
    let of = |target: &str| ask(&weir, "GET", target, "").status;
    let hammered: Vec<u16> = (0..8).map(|_| of("/login")).collect();
    assert_eq!(hammered, [200, 429, 429, 429, 429, 429, 429, 429]);
    assert_eq!([of("/"), of("/own"), of("/"), of("/")], [200, 200, 200, 429]);
}

#[test]
fn a_dry_run_refuses_nothing_and_is_counted_and_logged() {
    let backend = Backend::saying("hello");
    let weir = with_route(&backend, r#"rate_limit = { rate = "1/h", dry_run = true }"#).start();
    (0..5).for_each(|_| assert_eq!(ask(&weir, "GET", "/", "").status, 200));
    assert_eq!(rejected(&weir, "rate_limited"), 0.0);
    let would = weir.metric("weir_would_reject_total", &[("listener", "web"), ("reason", "rate_limited")]);
    assert_eq!(would, 4.0);
    let lines = weir.lines_of("access.log", 5);
    let noted = |line: &&String| line.contains(r#""end":"done","would_reject":"rate_limited""#);
    assert_eq!(lines.iter().filter(noted).count(), 4);
}

#[test]
fn at_the_origin_only_what_goes_to_a_backend_counts() {
    let backend = Backend::saying("hello");
    let keys = r#"rate_limit = { rate = "1/h", burst = 2, key = "listener", at = "origin" }"#;
    let weir = with_listener(&backend, keys).start();
    (0..5).for_each(|_| assert_eq!(ask(&weir, "GET", "/own", "").status, 200));
    let statuses: Vec<u16> = (0..3).map(|_| ask(&weir, "GET", "/", "").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    // A body that nobody read ends the connection; the refusal comes all the same.
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc");
    assert!(client.receives_status(429).closes());
    assert_eq!(backend.requests().len(), 2);
}

/// Both workers, many connections, and far more than is allowed, for some seconds of real time.
#[test]
fn ten_times_the_rate_from_many_connections_gets_exactly_the_rate() {
    let _quiet = alone();
    let backend = Backend::saying("hello");
    const RATE: u32 = 100;
    const BURST: u32 = 10;
    for key in ["route", "client_ip"] {
        let keys = format!(r#"rate_limit = {{ rate = "{RATE}/s", burst = {BURST}, key = "{key}" }}"#);
        let weir = with_route(&backend, &keys).start();
        let url = format!("http://{}/", weir.address("web"));
        let begun = Instant::now();
        let arguments = ["--h1", "-c", "32", "-D", "6", &url];
        let finished = run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 3);
        let longest = begun.elapsed().as_secs_f64();
        let text = finished.succeeded();
        let codes = text.lines().find_map(|line| line.strip_prefix("status codes: ")).unwrap_or(text);
        let count = |class: &str| -> f64 {
            let part = codes.split(", ").find(|part| part.ends_with(class)).unwrap_or("0");
            part.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0)
        };
        let (passed, refused) = (count("2xx"), count("4xx"));
        let least = f64::from(RATE) * 6.0 * 0.99;
        let most = f64::from(RATE) * longest * 1.01 + f64::from(BURST);
        println!("{key}: {passed} passed and {refused} were refused in 6 to {longest:.2} s");
        assert!((least..=most).contains(&passed), "{passed} passed, {least} to {most} expected\n{text}");
        assert!(passed + refused > 5.0 * least, "the load was too small to prove anything\n{text}");
    }
}

/// More keys than there is room for: the flood is told apart no more, and nobody who owes is let pass for it.
#[test]
fn a_flood_of_keys_takes_bounded_memory_and_frees_nobody() {
    let backend = Backend::saying("hello");
    let keys = r#"rate_limit = { rate = "1/h", key = "header:x-key", keys = 1000 }"#;
    let weir = with_route(&backend, keys).start();
    let victim = || ask(&weir, "GET", "/", "x-key: victim\r\n").status;
    assert_eq!((victim(), victim()), (200, 429));
    let before = weir.usage().resident_bytes;
    let mut client = weir.client("web");
    for round in 0..200 {
        let requests: String =
            (0..100).map(|n| format!("GET / HTTP/1.1\r\nhost: a\r\nx-key: {round}-{n}\r\n\r\n")).collect();
        client.sends(requests);
        for _ in 0..100 {
            let status = client.receives_response().status;
            assert!(matches!(status, 200 | 429), "{status}");
        }
    }
    assert_eq!(victim(), 429);
    let overflow = weir.metric("weir_rate_limit_overflow_total", &[("listener", "web")]);
    assert!(overflow > 10_000.0, "{overflow}");
    let grown = weir.usage().resident_bytes.saturating_sub(before) >> 10;
    assert!(grown < 8 << 10, "grown by {grown} KiB");
}

/// What memory answers is not counted at the origin, and what is over there is answered from memory too where
/// that may be stale.
#[test]
fn at_the_origin_what_memory_answers_is_free_and_a_fetch_that_is_refused_says_when() {
    let backend = Backend::serving(|request, wire| {
        wire.answers(200, &[("cache-control", "max-age=60")], &request.target);
        After::Keep
    });
    let keys = r#"
        rate_limit = { rate = "1/h", burst = 2, key = "route", at = "origin" }
        cache = { ttl = "60s" }
    "#;
    let weir = with_route(&backend, keys).start();
    for _ in 0..5 {
        for target in ["/a", "/b"] {
            assert_eq!(ask(&weir, "GET", target, "").status, 200, "{target}");
        }
    }
    let refused = ask(&weir, "GET", "/c", "");
    assert_eq!((refused.status, refused.text()), (429, "429 Too Many Requests rate_limited\n".to_owned()));
    assert!(refused.fields.one("retry-after").is_some());
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn a_text_with_variables_is_counted_by_what_it_says_of_each_request() {
    let backend = Backend::saying("ok");
    let key = r#"rate_limit = { rate = "1/h", burst = 1, key = "$host $query.tenant" }"#;
    let weir = with_route(&backend, key).start();
    let status = |target: &str| ask(&weir, "GET", target, "").status;
    assert_eq!(
        ["/?tenant=a", "/other?tenant=a", "/?tenant=b", "/?x&tenant=b"].map(status),
        [200, 429, 200, 429]
    );
    let path = r#"rate_limit = { rate = "1/h", burst = 1, key = "$client_ip $path" }"#;
    let weir = with_route(&backend, path).start();
    let status = |target: &str| ask(&weir, "GET", target, "").status;
    // Another spelling of a path is no other path.
    assert_eq!(["/a", "/%61", "/b/../a", "/b"].map(status), [200, 429, 429, 200]);
}

#[test]
fn who_has_nothing_of_a_text_is_counted_by_address_and_ipv6_by_its_64() {
    let backend = Backend::saying("ok");
    let config = r#"
        [listener.web]
        bind = "@web"
        accept_proxy = ["127.0.0.0/8"]
        pool = "app"
        rate_limit = { rate = "1/h", burst = 1, key = "KEY" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#;
    for key in ["$cookie.user$header.x-user", "$client_ip $scheme"] {
        let setup = Setup::of(&config.replace("KEY", key)).with("app", backend.address());
        let weir = setup.start();
        let status = |client: &str| {
            let mut wire = weir.client("web");
            wire.sends(format!(
                "PROXY TCP6 {client} 2001:db8::80 5555 80\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n"
            ));
            wire.receives_response().status
        };
        let clients = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::1", "2001:db8:1:3::1"];
        assert_eq!(clients.map(status), [200, 429, 200], "{key}");
    }
}

#[test]
fn a_network_of_the_length_that_is_said_counts_as_one_client() {
    let backend = Backend::saying("hello");
    let by = |prefixes: &str| {
        let keys = format!(
            "accept_proxy = [\"127.0.0.0/8\"]\nrate_limit = {{ rate = \"1/h\", burst = 1, {prefixes} }}"
        );
        with_listener(&backend, &keys).start()
    };
    let status = |weir: &Weir, from: &str| {
        let (family, to) = if from.contains(':') { ("TCP6", "2001:db8::1") } else { ("TCP4", "192.0.2.1") };
        let mut client = weir.client("web");
        client.sends(format!(
            "PROXY {family} {from} {to} 4711 80\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        ));
        client.receives_response().status
    };
    let weir = by("ipv4_prefix = 24, ipv6_prefix = 48");
    for (from, expected) in [
        ("198.51.100.1", 200),
        ("198.51.100.200", 429),
        ("198.51.101.1", 200),
        ("2001:db8:1:2::1", 200),
        ("2001:db8:1:3::1", 429),
        ("2001:db8:2:2::1", 200),
        // An IPv4 address is the same however it is written.
        ("::ffff:198.51.100.7", 429),
    ] {
        assert_eq!(status(&weir, from), expected, "{from}");
    }
    // Unless it is said, one address of IPv4, and one /64 of IPv6.
    let weir = by("status = 429");
    for (from, expected) in [
        ("198.51.100.1", 200),
        ("198.51.100.200", 200),
        ("2001:db8:1:2::1", 200),
        ("2001:db8:1:2:3:4:5:6", 429),
        ("2001:db8:1:3::1", 200),
    ] {
        assert_eq!(status(&weir, from), expected, "{from}");
    }
}
