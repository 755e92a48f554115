//! Limits that count answers: who fails too often is kept out for a while.

use weir_tests::dialogue::{
    After, Backend, NO_HEALTH, PATIENCE, Setup, Weir, http2, one_pool, run_tool, tool, until,
};

use super::{ask, rejected, with_listener, with_route};

/// A site that lets `x-password: right` in, and answers everything else with the status in the path.
fn site() -> Backend {
    Backend::serving(|request, wire| {
        let status = match request.fields.one("x-password") {
            Some("right") => 200,
            _ => request.target.trim_start_matches('/').parse().unwrap_or(401),
        };
        wire.answers(status, &[], format!("said {status}"));
        After::Keep
    })
}

fn statuses<const N: usize>(weir: &Weir, targets: [&str; N], fields: &str) -> [u16; N] {
    targets.map(|target| ask(weir, "GET", target, fields).status)
}

#[test]
fn who_fails_to_log_in_too_often_is_kept_out_and_nobody_else_is() {
    let backend = site();
    let keys = r#"rate_limit = { rate = "3/1h", statuses = [401, "403"], key = "header:x-user" }"#;
    let weir = with_route(&backend, keys).start();
    let of = |user: &str, password: &str| {
        ask(&weir, "POST", "/login", &format!("x-user: {user}\r\nx-password: {password}\r\n"))
    };
    // Good logins cost nothing, however many there are.
    (0..10).for_each(|_| assert_eq!(of("eve", "right").status, 200));
    let tries: Vec<u16> = (0..5).map(|_| of("eve", "guess").status).collect();
    assert_eq!(tries, [401, 401, 401, 429, 429]);
    let refused = of("eve", "right");
    assert_eq!((refused.status, refused.text()), (429, "429 Too Many Requests rate_limited\n".to_owned()));
    let wait: u64 = refused.fields.one("retry-after").unwrap().parse().unwrap();
    assert!((1..=1_200).contains(&wait), "{wait} s until a third of an hour is over");
    assert_eq!((of("ann", "right").status, of("ann", "guess").status), (200, 401));
    assert_eq!(rejected(&weir, "rate_limited"), 3.0);
    assert_eq!(backend.requests().len(), 15, "no refused request came so far");
}

#[test]
fn who_is_kept_out_comes_again_when_it_was_told_and_its_waiting_was_not_counted() {
    let backend = site();
    let keys = r#"rate_limit = { rate = "1/5s", burst = 2, statuses = "4xx", status = 503 }"#;
    let weir = with_route(&backend, keys).start();
    assert_eq!(statuses(&weir, ["/401", "/200", "/404", "/200", "/401"], ""), [401, 200, 404, 503, 503]);
    let waits: Vec<u64> = (0..10)
        .map(|_| ask(&weir, "GET", "/401", "").fields.one("retry-after").unwrap().parse().unwrap())
        .collect();
    assert!(waits.iter().all(|wait| (1..=5).contains(wait)), "{waits:?}");
    until("it is let in again", || (ask(&weir, "GET", "/200", "").status == 200).then_some(()));
    assert_eq!(statuses(&weir, ["/404", "/200"], ""), [404, 503]);
}

/// A client that sends many requests before the first answer is charged for all of them later.
#[test]
fn answers_that_were_under_way_together_are_owed() {
    let backend = site();
    let keys = r#"rate_limit = { rate = "1/1m", statuses = [401], key = "route" }"#;
    let weir = with_route(&backend, keys).start();
    let mut clients: Vec<_> = (0..4).map(|_| weir.client("web")).collect();
    for client in &mut clients {
        client.sends("POST /401 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n");
        assert_eq!(client.receives_head().status, 100);
    }
    for client in &mut clients {
        client.sends("ab");
        client.receives_status(401);
    }
    let refused = ask(&weir, "GET", "/200", "");
    let wait: u64 = refused.fields.one("retry-after").unwrap().parse().unwrap();
    assert!(
        refused.status == 429 && (200..=240).contains(&wait),
        "{wait} s for four answers of which one was free"
    );
}

#[test]
fn what_weir_itself_answers_counts_as_well_but_for_refusals_by_limits() {
    let backend = site();
    let keys = r#"
        rate_limit = [
            { rate = "4/1h", statuses = ["4xx"], key = "header:x-user" },
            { rate = "1/1h", burst = 3, key = "header:x-other" },
        ]
        deny_path = ["/denied"]
        [[listener.web.route]]
        path = "/gone"
        respond = { status = 410 }
    "#;
    let weir = with_listener(&backend, keys).start();
    let of = |user: &str, targets: [&str; 6]| {
        // For the second limit it is another client each time.
        let mut number = 0;
        targets.map(|target| {
            number += 1;
            ask(&weir, "GET", target, &format!("x-user: {user}\r\nx-other: {user}{number}\r\n")).status
        })
    };
    assert_eq!(
        of("a", ["/gone", "/own", "/gone", "/denied", "/gone", "/own"]),
        [410, 200, 410, 403, 410, 429]
    );
    // A list refuses before any limit is checked.
    assert_eq!(of("a", ["/denied", "/own", "/denied", "/own", "/gone", "/"]), [403, 429, 403, 429, 429, 429]);
    // A 429 of another limit is not counted, although it is a 4xx.
    let limited = || ask(&weir, "GET", "/own", "x-user: b\r\nx-other: b\r\n").status;
    let many: Vec<u16> = (0..20).map(|_| limited()).collect();
    assert_eq!(many.iter().filter(|status| **status == 200).count(), 3);
    assert_eq!(ask(&weir, "GET", "/gone", "x-user: b\r\n").status, 410);
}

#[test]
fn what_no_route_takes_is_counted_and_keeps_out_where_a_route_is() {
    let backend = Backend::saying("hello");
    let config = r#"
        [listener.web]
        bind = "@web"
        rate_limit = { rate = "2/1h", statuses = 404 }
        [[listener.web.route]]
        path = "/app"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        health = "off"
    "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let targets = ["/app", "/wp-login.php", "/app", "/.env", "/app", "/.git", "/app"];
    assert_eq!(statuses(&weir, targets, ""), [200, 404, 200, 404, 429, 404, 429]);
}

#[test]
fn names_and_passwords_that_weir_refuses_are_counted() {
    let backend = Backend::saying("hello");
    let htpasswd =
        run_tool(&tool("htpasswd", "apache2-utils"), &["-nbBC", "4", "ann", "secret"], b"", PATIENCE);
    let keys = r#"
        auth = { basic = { users = "@dir/users" } }
        rate_limit = { rate = "2/1h", statuses = 401 }
    "#;
    let weir = with_route(&backend, keys).with_file("users", htpasswd.succeeded()).start();
    const RIGHT: &str = "authorization: Basic YW5uOnNlY3JldA==\r\n";
    const WRONG: &str = "authorization: Basic YW5uOmd1ZXNz\r\n";
    let all = [RIGHT, WRONG, RIGHT, "", RIGHT, WRONG].map(|fields| ask(&weir, "GET", "/", fields).status);
    assert_eq!(all, [200, 401, 200, 401, 429, 429]);
}

#[test]
fn a_service_that_refuses_is_counted_by_what_the_client_is_told() {
    let backend = Backend::saying("hello");
    let service = Backend::serving(|request, wire| {
        let status = if request.fields.all("cookie").contains(&"id=good") { 200 } else { 401 };
        wire.answers(status, &[], "");
        After::Keep
    });
    let keys = r#"
        rate_limit = { rate = "2/1h", statuses = 401 }
        [listener.web.route.auth.forward]
        pool = "auth"
        path = "/verify"
        [pool.auth]
        backends = ["@auth"]
        health = "off"
    "#;
    let weir = with_route(&backend, keys).with("auth", service.address()).start();
    let all = ["cookie: id=good\r\n", "", "cookie: id=good\r\n", "", "cookie: id=good\r\n"];
    assert_eq!(all.map(|fields| ask(&weir, "GET", "/", fields).status), [200, 401, 200, 401, 429]);
    assert_eq!(service.requests().len(), 4);
}

#[test]
fn answers_from_memory_are_counted_by_what_they_say() {
    let backend = Backend::serving(|request, wire| {
        let status = if request.target.starts_with("/missing") { 404 } else { 200 };
        wire.answers(status, &[("cache-control", "max-age=60")], &request.target);
        After::Keep
    });
    let keys = r#"
        rate_limit = { rate = "3/1h", statuses = ["404"] }
        cache = { ttl = "60s" }
    "#;
    let weir = with_route(&backend, keys).start();
    let targets = ["/a", "/missing", "/a", "/missing", "/a", "/missing", "/a", "/missing"];
    assert_eq!(statuses(&weir, targets, ""), [200, 404, 200, 404, 200, 404, 429, 429]);
    assert_eq!(backend.requests().len(), 2, "memory answered the others");
}

#[test]
fn streams_of_http_2_are_counted_as_requests_are() {
    let backend = site();
    let weir = Setup::of(&one_pool(
        r#"
        http = ["h1", "h2"]
        rate_limit = { rate = "2/1h", statuses = [401] }
        "#,
        NO_HEALTH,
    ))
    .with("app", backend.address())
    .start();
    let mut client = http2::Http2::client(weir.client("web"), b"");
    let mut stream = u32::MAX;
    let said = ["/200", "/401", "/200", "/401", "/200"].map(|path| {
        stream = stream.wrapping_add(2);
        match client.asks(stream, path) {
            http2::Outcome::Answered(_, content) => String::from_utf8(content).unwrap(),
            other => panic!("{path}: {other:?}"),
        }
    });
    let refused = "429 Too Many Requests rate_limited\n";
    assert_eq!(said, ["said 200", "said 401", "said 200", "said 401", refused]);
    assert_eq!(rejected(&weir, "rate_limited"), 1.0);
    assert_eq!(ask(&weir, "GET", "/200", "").status, 429, "the same client over HTTP/1.1");
}

#[test]
fn a_dry_run_of_answers_refuses_nothing_and_is_counted() {
    let backend = site();
    let keys = r#"rate_limit = { rate = "2/1h", statuses = 401, dry_run = true }"#;
    let weir = with_route(&backend, keys).start();
    assert_eq!(statuses(&weir, ["/401", "/401", "/401", "/200"], ""), [401, 401, 401, 200]);
    let would = weir.metric("weir_would_reject_total", &[("listener", "web"), ("reason", "rate_limited")]);
    assert_eq!((would, rejected(&weir, "rate_limited")), (2.0, 0.0));
}

fn two_routes(first: &str, statuses: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        {first}
        [[listener.web.route]]
        path = "/*"
        pool = "app"
        rate_limit = {{ rate = "2/1h", statuses = {statuses} }}
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#
    )
}

#[test]
fn a_reload_keeps_what_is_owed_and_other_statuses_begin_anew() {
    let backend = site();
    let mut weir = Setup::of(&two_routes("", "[401, 403]")).with("app", backend.address()).start();
    assert_eq!(statuses(&weir, ["/401", "/403", "/200"], ""), [401, 403, 429]);
    let other = "[[listener.web.route]]\npath = \"/other\"\nrespond = { status = 200 }\n";
    weir.reloads(&two_routes(other, "[401, 403]"));
    assert_eq!(statuses(&weir, ["/200", "/other"], ""), [429, 200]);
    weir.reloads(&two_routes(other, "[401]"));
    assert_eq!(statuses(&weir, ["/200", "/401", "/403", "/401", "/200"], ""), [200, 401, 403, 401, 429]);
}

#[test]
fn explain_says_which_answers_a_limit_counts_and_what_is_left() {
    let backend = site();
    let weir = Setup::of(&two_routes("", "[401, 403, \"5xx\"]")).with("app", backend.address()).start();
    let url = format!("http://{}/200", weir.address("web"));
    let explain = || weir.command(&["explain", "http", "GET", &url]).succeeded().to_owned();
    let line = |left: u32| {
        format!(
            "rate_limit of the route: {left} of 2 tokens left for client 127.0.0.1; 2/h, counts answers of 401, 403, 5xx"
        )
    };
    for left in [2, 1] {
        let said = explain();
        assert!(said.contains(&line(left)) && said.contains("action   forward to pool app"), "{said}");
        assert_eq!(ask(&weir, "GET", "/401", "").status, 401);
    }
    let said = explain();
    assert!(said.contains(&format!(" ! {}", line(0))), "{said}");
    assert!(said.contains("action   refuse 429, rate_limit of the route"), "{said}");
}
