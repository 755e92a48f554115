//! Allow and deny lists of addresses, methods, paths and user agents.

use std::time::Duration;

use weir_tests::dialogue::{Backend, PATIENCE, run_tool, tool};

use super::{ask, rejected, with_listener, with_route};

#[test]
fn each_list_refuses_with_403_and_its_own_word_and_the_backend_sees_nothing() {
    let backend = Backend::saying("hello");
    for (keys, method, target, fields, word) in [
        (r#"deny_user_agent = ["curl/*"]"#, "GET", "/", "user-agent: CURL/8.5\r\n", "denied_user_agent"),
        (r#"allow_user_agent = ["*Mozilla*"]"#, "GET", "/", "user-agent: wget\r\n", "denied_user_agent"),
        (r#"deny_user_agent = [""]"#, "GET", "/", "", "denied_user_agent"),
        (
            r#"deny_user_agent = '~^(bad|evil)bot/\d+'"#,
            "GET",
            "/",
            "user-agent: evilbot/66\r\n",
            "denied_user_agent",
        ),
        (r#"deny_path = ["/admin/*"]"#, "GET", "/%61dmin/x", "", "denied_path"),
        (r#"deny_path = ["/admin/*"]"#, "GET", "/a/../admin/x?y", "", "denied_path"),
        (r#"allow_path = ["!*.php"]"#, "GET", "/index.php", "", "denied_path"),
        (r#"deny_method = ["DELETE"]"#, "DELETE", "/", "", "denied_method"),
        (r#"allow_method = ["GET", "HEAD"]"#, "POST", "/", "content-length: 0\r\n", "denied_method"),
        (r#"deny_address = ["127.0.0.0/8"]"#, "GET", "/", "", "denied_address"),
        (r#"allow_address = ["10.0.0.0/8", "::1"]"#, "GET", "/", "", "denied_address"),
        (
            r#"allow_address = ["127.0.0.0/8"]
            deny_address = ["127.0.0.1/32"]"#,
            "GET",
            "/",
            "",
            "denied_address",
        ),
    ] {
        let weir = with_route(&backend, keys).start();
        let refused = ask(&weir, method, target, fields);
        assert_eq!((refused.status, refused.text()), (403, format!("403 Forbidden {word}\n")), "{keys}");
        assert_eq!(rejected(&weir, word), 1.0, "{keys}");
        let line = weir.lines_of("access.log", 1).remove(0);
        assert!(
            line.contains(&format!(r#""end":"{word}""#)) && line.contains(r#""route":"guarded""#),
            "{line}"
        );
        assert!(backend.requests().is_empty(), "{keys}");
    }
}

#[test]
fn what_no_list_means_passes() {
    let backend = Backend::saying("hello");
    let keys = r#"
        deny_user_agent = ["curl/*", "!*Mozilla*"]
        deny_path = ["/admin/*"]
        allow_path = ["/shop/*", "*.html"]
        allow_method = ["~^(GET|HEAD)$"]
        deny_address = ["0.0.0.0/0", "::/0"]
        allow_address = ["127.0.0.1"]
    "#;
    let weir = with_route(&backend, keys).start();
    let agent = "user-agent: Mozilla/5.0 (X11)\r\n";
    for target in ["/shop/cart", "/index.html", "/shop/admin/"] {
        assert_eq!(ask(&weir, "GET", target, agent).status, 200, "{target}");
    }
    assert_eq!(ask(&weir, "GET", "/shopping", agent).status, 403);
    assert_eq!(backend.requests().len(), 3);
}

#[test]
fn a_listeners_lists_are_asked_for_every_route_and_for_what_no_route_takes() {
    let backend = Backend::saying("hello");
    let weir = with_listener(&backend, r#"deny_method = "PURGE""#).start();
    for target in ["/own", "/other"] {
        assert_eq!(ask(&weir, "PURGE", target, "").status, 403);
        assert_eq!(ask(&weir, "GET", target, "").status, 200);
    }
}

#[test]
fn a_refused_request_leaves_the_connection_to_the_next_one() {
    let backend = Backend::saying("hello");
    let weir = with_route(&backend, r#"deny_path = "/no""#).start();
    let mut client = weir.client("web");
    client.sends("GET /no HTTP/1.1\r\nhost: a\r\n\r\nGET /yes HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(403);
    client.receives_status(200);
    client.sends("POST /no HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n");
    assert!(client.receives_status(403).closes(), "its body was not read");
}

/// RFC 9110 section 7.6.2 has Weir answer such a request itself, which is no reason to let it past what
/// others are asked.
#[test]
fn a_request_that_may_go_no_further_is_screened_like_any_other() {
    let backend = Backend::saying("hello");
    let fields = "max-forwards: 0\r\n";
    for method in ["OPTIONS", "TRACE"] {
        let weir = with_route(&backend, r#"deny_address = ["127.0.0.0/8"]"#).start();
        let refused = ask(&weir, method, "/", fields);
        assert_eq!((refused.status, rejected(&weir, "denied_address")), (403, 1.0), "{method}");
        let weir = with_listener(&backend, r#"rate_limit = { rate = "1/h", burst = 2 }"#).start();
        let statuses: Vec<u16> = (0..3).map(|_| ask(&weir, method, "/", fields).status).collect();
        assert_eq!(statuses, [200, 200, 429], "{method}");
    }
    assert!(backend.requests().is_empty());
}

/// Behind a proxy that is trusted, the client is whom it names; what others write of themselves is not
/// believed.
#[test]
fn the_client_is_whom_a_trusted_proxy_names() {
    let backend = Backend::saying("hello");
    let setup =
        |trusted: &str| with_listener(&backend, &format!("{trusted}\ndeny_address = [\"203.0.113.0/24\"]"));
    let trusting = setup(r#"trusted_proxies = ["127.0.0.0/8", "10.0.0.0/8"]"#).start();
    for (forwarded, status) in [
        ("203.0.113.7", 403),
        ("198.51.100.1, 203.0.113.7, 10.0.0.3", 403),
        ("203.0.113.7, 198.51.100.1", 200),
        ("198.51.100.1\r\nx-forwarded-for: 203.0.113.7:4711", 403),
        ("203.0.113.7, unknown, 10.0.0.3", 200),
        ("10.0.0.3, 10.0.0.4", 200),
    ] {
        let answer = ask(&trusting, "GET", "/", &format!("x-forwarded-for: {forwarded}\r\n"));
        assert_eq!(answer.status, status, "{forwarded}");
    }
    let distrusting = setup("").start();
    assert_eq!(ask(&distrusting, "GET", "/", "x-forwarded-for: 203.0.113.7\r\n").status, 200);
}

#[test]
fn ten_thousand_networks_and_two_thousand_user_agents_are_answered_as_fast_as_one() {
    let backend = Backend::saying("hello");
    let networks: Vec<String> =
        (0..10_000).map(|n| format!("\"{}.{}.{}.0/24\"", 11 + n % 80, n / 80 % 256, n * 7 % 256)).collect();
    let mut agents: Vec<String> = (0..2_000).map(|n| format!("\"*badbot-{n}*\"")).collect();
    agents.push("\"curl/*\"".to_owned());
    let mut networks = networks;
    networks.sort();
    networks.dedup();
    let keys = format!("deny_address = [{}]\ndeny_user_agent = [{}]", networks.join(", "), agents.join(", "));
    let weir = with_route(&backend, &keys).start();
    let url = format!("http://{}/", weir.address("web"));
    let curl = |agent: &str| {
        let arguments = [
            "--silent",
            "--noproxy",
            "*",
            "--user-agent",
            agent,
            "--write-out",
            "%{http_code}",
            "--output",
            "/dev/null",
            &url,
        ];
        run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE).succeeded().to_owned()
    };
    assert_eq!(curl("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36"), "200");
    assert_eq!(curl("a BADBOT-1999/2"), "403");
    assert_eq!(curl("curl/8"), "403");
}

/// An expression on which backtracking engines need years (D13).
#[test]
fn an_expression_that_others_backtrack_on_costs_nothing() {
    let backend = Backend::saying("hello");
    let keys = r#"deny_user_agent = ['~^(a+)+$', '~(x+x+)+y', '~^(([a-z])+.)+[A-Z]([a-z])+$']"#;
    let weir = with_route(&backend, keys).start();
    let agent = format!("user-agent: {}!\r\n", "a".repeat(30_000) + &"x".repeat(20_000));
    let before = weir.usage().cpu;
    for _ in 0..10 {
        assert_eq!(ask(&weir, "GET", "/", &agent).status, 200);
    }
    let spent = weir.usage().cpu.saturating_sub(before);
    assert!(spent < Duration::from_millis(500), "{spent:?} for ten requests");
}
