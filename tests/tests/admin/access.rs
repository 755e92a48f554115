//! Who may call what (threat D10).

use weir_tests::dialogue::{
    Backend, Broken, NO_PROBES, ONE_POOL, Setup, Signal, Weir, Wire, free_address, until,
};

use super::two;

const TOKEN: &str = "correct-horse-battery-staple";

fn with_token() -> (Weir, Backend) {
    let backend = Backend::saying("ok");
    (setup_with_token("@admin", &backend).start(), backend)
}

/// The admin API at `bind`, with the token.
fn setup_with_token(bind: &str, backend: &Backend) -> Setup {
    let admin = format!("[admin]\nbind = \"{bind}\"\ntoken_file = \"@dir/token\"");
    Setup::of(&format!("{admin}{ONE_POOL}{NO_PROBES}"))
        .with_file("token", &format!("{TOKEN}\n"))
        .with("app", backend.address())
}

#[test]
fn a_foreign_host_name_is_refused() {
    // DNS rebinding: a page of evil.example whose name now resolves to 127.0.0.1.
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let admin = weir.admin();
    for host in
        ["evil.example", "evil.example:9900", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3"]
    {
        for (method, path) in [
            ("GET", "/v1/status"),
            ("GET", "/metrics"),
            ("GET", "/v1/config"),
            ("POST", "/v1/reload"),
            ("GET", "/"),
        ] {
            let answer =
                admin.calls(method, path, &[("host", host)], if method == "POST" { "{}" } else { "" });
            assert!(
                matches!(answer.status(), 400 | 403 | 421),
                "{method} {path} for {host}: {:?}",
                answer.response
            );
        }
    }
    for host in ["localhost", "127.0.0.1", "[::1]:9900"] {
        assert_eq!(admin.calls("GET", "/v1/status", &[("host", host)], "").status(), 200, "{host}");
    }
}

#[test]
fn a_page_of_another_site_cannot_change_anything() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let admin = weir.admin();
    let path = format!("/v1/pools/app/backends/{}", a.address());
    for field in [("origin", "https://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
        for (method, path, body) in [
            ("POST", "/v1/reload", "{}"),
            ("PATCH", path.as_str(), r#"{"state": "drain"}"#),
            ("DELETE", path.as_str(), ""),
            ("POST", "/v1/pools/app/backends", r#"{"address": "127.0.0.1:1"}"#),
        ] {
            let answer = admin.calls(method, path, &[field], body);
            assert_eq!(answer.status(), 403, "{method} {path} with {field:?}: {:?}", answer.response);
        }
    }
    let status = admin.reads("/v1/pools/app").json();
    assert_eq!(status["backends"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["backends"][0]["admin"], "ready");
    // No answer may invite other sites to read it.
    let answer = admin.calls("GET", "/v1/status", &[("origin", "https://evil.example")], "");
    assert!(answer.response.fields.all("access-control-allow-origin").is_empty());
}

#[test]
fn changing_calls_need_the_token_where_one_is_set() {
    let (weir, backend) = with_token();
    let admin = weir.admin();
    let path = format!("/v1/pools/app/backends/{}", backend.address());
    let right = format!("Bearer {TOKEN}");
    for authorization in
        [None, Some("Bearer wrong"), Some("Basic x"), Some("Bearer "), Some(&right[..right.len() - 1])]
    {
        let fields: Vec<(&str, &str)> = authorization.iter().map(|value| ("authorization", *value)).collect();
        for (method, path, body) in [
            ("POST", "/v1/reload", "{}"),
            ("PATCH", path.as_str(), r#"{"weight": 7}"#),
            ("DELETE", path.as_str(), ""),
        ] {
            let answer = admin.calls(method, path, &fields, body);
            assert!(
                matches!(answer.status(), 401 | 403),
                "{method} {path} with {authorization:?}: {:?}",
                answer.response
            );
        }
    }
    let answer = admin.calls("PATCH", &path, &[("authorization", &right)], r#"{"weight": 7}"#);
    assert_eq!(answer.status(), 200, "{:?}", answer.response);
    assert_eq!(admin.calls("POST", "/v1/reload", &[("authorization", &right)], "{}").status(), 200);
}

#[test]
fn who_reloads_by_a_token_that_weir_has_not_read_yet_is_told_of_hup() {
    let (weir, _backend) = with_token();
    std::fs::write(weir.dir().join("token"), "another-token-of-more-than-enough-letters\n").expect("written");
    let outcome = weir.command(&["reload"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("HUP"), "{outcome:?}");
    weir.signals(Signal::HUP);
    until("it is read", || (weir.command(&["reload"]).code == 0).then_some(()));
}

#[test]
fn no_answer_log_or_page_shows_the_token() {
    let (weir, _backend) = with_token();
    let admin = weir.admin();
    for path in ["/v1/config", "/v1/status", "/metrics", "/", "/v1/openapi.json", "/v1/pools"] {
        let answer = admin.reads(path);
        assert_eq!(answer.status(), 200, "{path}");
        assert!(!answer.response.text().contains(TOKEN), "{path} shows the token");
    }
    let right = format!("Bearer {TOKEN}");
    admin.calls("POST", "/v1/reload", &[("authorization", &right)], "{}");
    admin.calls("POST", "/v1/reload", &[("authorization", "Bearer wrong-but-secret-too")], "{}");
    assert!(
        !weir.stderr().contains(TOKEN) && !weir.stderr().contains("wrong-but-secret-too"),
        "{}",
        weir.story()
    );
}

#[test]
fn no_answer_shows_the_value_that_a_route_asks_for_or_gives_to_backends() {
    let backend = Backend::saying("ok");
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [[listener.web.route]]
        name = "guarded"
        header = { x-gate = "open-sesame" }
        pool = "app"
        set_request_header = { authorization = "Bearer of-the-backend", x-origin-verify = "from-the-edge" }
        [pool.app]
        backends = ["@app"]
        health = { check = "off" }
        "#;
    let mut weir = Setup::of(config).with("app", backend.address()).start();
    let secrets = ["open-sesame", "of-the-backend", "from-the-edge"];
    let admin = weir.admin();
    let question = |headers: &str| {
        format!(
            r#"{{"protocol": "http", "method": "GET", "url": "http://{}/", "headers": {headers}}}"#,
            weir.address("web")
        )
    };
    let mut answers: Vec<String> = ["/v1/config", "/v1/status", "/", "/v1/pools", "/metrics"]
        .iter()
        .map(|path| admin.reads(path).response.text())
        .collect();
    for headers in ["[]", r#"[["x-gate", "guess"]]"#] {
        answers.push(admin.calls("POST", "/v1/explain", &[], &question(headers)).response.text());
    }
    assert!(answers.last().is_some_and(|text| text.contains("x-gate")), "{answers:?}");
    assert!(answers[0].contains("x-origin-verify"), "{}", answers[0]);
    // A reload says what it changed.
    weir.rewrites(
        &secrets
            .iter()
            .fold(config.to_owned(), |text, secret| text.replace(secret, &format!("new-{secret}"))),
    );
    answers.push(admin.calls("POST", "/v1/reload", &[], "{}").response.text());
    answers.push(weir.stderr());
    for (answer, secret) in answers.iter().flat_map(|answer| secrets.map(|secret| (answer, secret))) {
        assert!(!answer.contains(secret), "`{secret}` is shown in {answer}");
    }
}

#[test]
fn off_loopback_nothing_is_read_without_the_token_but_that_it_lives_and_is_ready() {
    let backend = Backend::saying("ok");
    let address = free_address();
    let weir = setup_with_token("@everywhere", &backend)
        .with("admin", address)
        .with("everywhere", format!("0.0.0.0:{}", address.port()))
        .start();
    let admin = weir.admin();
    let right = format!("Bearer {TOKEN}");
    let question =
        format!(r#"{{"protocol": "http", "method": "GET", "url": "http://{}/"}}"#, weir.address("web"));
    let reading =
        ["/", "/metrics", "/v1/status", "/v1/config", "/v1/pools", "/v1/pools/app", "/v1/openapi.json"]
            .map(|path| ("GET", path, ""));
    for (method, path, body) in reading.into_iter().chain([("POST", "/v1/explain", question.as_str())]) {
        for authorization in [None, Some("Bearer wrong-but-long-enough"), Some("Basic x")] {
            let fields: Vec<_> = authorization.iter().map(|value| ("authorization", *value)).collect();
            let answer = admin.calls(method, path, &fields, body);
            assert_eq!(answer.status(), 401, "{method} {path} with {authorization:?}: {:?}", answer.response);
            assert_eq!(answer.response.fields.one("www-authenticate"), Some("Bearer"));
        }
        let answer = admin.calls(method, path, &[("authorization", &right)], body);
        assert_eq!(answer.status(), 200, "{method} {path} with the token: {:?}", answer.response);
    }
    assert_eq!(admin.reads("/v1/events").status(), 401);
    for path in ["/livez", "/readyz"] {
        assert_eq!(admin.reads(path).status(), 200, "{path} is for whoever watches the machine");
    }
    // The command line finds the token in the config.
    assert_eq!(weir.command(&["status"]).code, 0);
}

#[test]
fn a_bind_that_others_can_reach_without_a_token_is_refused_at_start() {
    let mut weir = Setup::of(
        r#"
        [admin]
        bind = "0.0.0.0:9907"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["127.0.0.1:9"]
        health = { check = "off" }
        "#,
    )
    .launch();
    assert!(weir.exits().code().is_some_and(|code| code != 0));
    until("the reason on standard error", || weir.stderr().contains("token").then_some(()));
}

#[test]
fn a_body_over_the_cap_is_refused() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let mut wire = Wire::connect(weir.address("admin"));
    let huge = format!(r#"{{"state": "{}"}}"#, "x".repeat(10 << 20));
    let path = format!("/v1/pools/app/backends/{}", a.address());
    wire.sends(format!(
        "PATCH {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        huge.len()
    ));
    let _ = wire.tries_to_send(&huge);
    match wire.tries_to_receive_response("PATCH") {
        Ok(response) => assert_eq!(response.status, 413, "{response:?}"),
        Err((broken, _)) => assert!(matches!(broken, Broken::Ended | Broken::Reset), "{broken}"),
    }
    assert_eq!(weir.admin().reads("/livez").status(), 200);
}

#[test]
fn slow_callers_do_not_lock_the_admin_api() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let mut held: Vec<Wire> = (0..300)
        .map(|_| {
            let mut wire = Wire::connect(weir.address("admin"));
            wire.sends("GET /metrics HTTP/1.1\r\nhost: loc");
            wire
        })
        .collect();
    // They occupy every slot and will do so for seconds; others are served immediately.
    for _ in 0..10 {
        assert_eq!(weir.admin().reads("/livez").status(), 200);
    }
    assert!(held[0].has_ended(), "the oldest half-sent request made room");
    assert!(!held[299].has_ended(), "the newest did not have to make room, and its timeout has not passed");
    assert!(weir.stderr().contains("the admin API is full"), "{}", weir.story());
}

#[test]
fn whoever_has_the_token_gets_in_and_is_not_closed_for_those_who_have_not() {
    let (weir, _backend) = with_token();
    let right = format!("Bearer {TOKEN}");
    let stream = |authorization: &str| {
        let mut wire = Wire::connect(weir.address("admin"));
        wire.sends(format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n"));
        wire.receives_until("\r\n\r\n");
        wire
    };
    let mut operator = stream(&format!("authorization: {right}\r\n"));
    // Complete requests with endless answers: reading events needs no token.
    let _flood: Vec<Wire> = (0..300).map(|_| stream("")).collect();
    let answer = weir.admin().calls("POST", "/v1/reload", &[("authorization", &right)], "{}");
    assert_eq!(answer.status(), 200, "{:?}", answer.response);
    // The operator's own stream was the oldest of all and is still open: it reports the reload.
    operator.receives_until("event: reload");
}

#[test]
fn garbage_on_the_admin_port_is_answered_or_closed_and_harms_nobody() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut wire = Wire::connect(weir.address("admin"));
        wire.sends(garbage);
        wire.half_closes();
        let answer = wire.receives_to_the_end();
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4") || answer.starts_with(b"HTTP/1.1 5"),
            "{answer:?}"
        );
    }
    assert_eq!(weir.admin().reads("/livez").status(), 200);
}
