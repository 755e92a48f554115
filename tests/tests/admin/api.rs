//! What the admin API shows and changes.

use weir_tests::dialogue::{After, Authority, Backend, ScriptedBackend, Setup, until};

use super::{TWO, two};

fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

fn asks(weir: &weir_tests::dialogue::Weir) -> String {
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    client.receives_response().text()
}

#[test]
fn status_shows_listeners_pools_and_backends() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    for _ in 0..10 {
        asks(&weir);
    }
    let status = until("the requests to be counted", || {
        let status = weir.admin().reads("/v1/status").json();
        (status["listeners"][0]["requests"]["2xx"].as_u64() == Some(10)).then_some(status)
    });
    assert_eq!(status["phase"], "serving");
    assert_eq!(status["pid"], weir.pid());
    assert_eq!(status["listeners"][0]["name"], "web");
    assert_eq!(status["listeners"][0]["bind"][0], weir.address("web").to_string());
    let backends = status["pools"][0]["backends"].as_array().expect("backends");
    let addresses: Vec<&str> = backends.iter().filter_map(|backend| backend["address"].as_str()).collect();
    assert_eq!(addresses, [a.address().to_string(), b.address().to_string()]);
    assert!(backends.iter().all(|backend| backend["state"] == "ready"), "{backends:?}");
}

#[test]
fn a_drained_backend_gets_no_new_work_and_comes_back() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let path = format!("/v1/pools/app/backends/{}", a.address());
    for state in ["drain", "maintenance"] {
        let answer = weir.admin().calls("PATCH", &path, &[], &format!(r#"{{"state": "{state}"}}"#));
        assert_eq!(answer.status(), 200, "{:?}", answer.response);
        for _ in 0..20 {
            assert_eq!(asks(&weir), "b", "{state}");
        }
        assert_eq!(weir.metric("weir_backend_up", &[("backend", &a.address().to_string())]), 0.0);
        // Nobody is to be woken for what the operator did.
        assert_eq!(
            weir.metric("weir_backend_healthy", &[("backend", &a.address().to_string())]),
            1.0,
            "{state}"
        );
        weir.admin().calls("PATCH", &path, &[], r#"{"state": "ready"}"#);
        until("the backend to be used again", || (asks(&weir) == "a").then_some(()));
    }
}

#[test]
fn a_request_under_way_survives_the_drain_of_its_backend() {
    let slow = ScriptedBackend::start();
    let weir =
        Setup::of(&TWO.replace("\"@a\", \"@b\"", "\"@a\"").replace("check = \"tcp\"", "check = \"off\""))
            .with("a", slow.address())
            .start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = slow.accepts();
    wire.receives_request();
    let path = format!("/v1/pools/app/backends/{}", slow.address());
    assert_eq!(weir.admin().calls("PATCH", &path, &[], r#"{"state": "drain"}"#).status(), 200);
    let mut other = weir.client("web");
    other.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    other.receives_status(503);
    wire.answers(200, &[], "finished");
    assert_eq!(client.receives_status(200).text(), "finished");
}

#[test]
fn a_weight_changes_the_share_at_once() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let path = format!("/v1/pools/app/backends/{}", a.address());
    assert_eq!(weir.admin().calls("PATCH", &path, &[], r#"{"weight": 4}"#).status(), 200);
    let mut client = weir.client("web");
    let mut count = 0;
    for _ in 0..100 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        count += i32::from(client.receives_status(200).text() == "a");
    }
    assert!((76..=84).contains(&count), "weight 4 of 5 got {count} of 100");
}

#[test]
fn a_weight_set_by_hand_outlives_backends_that_come_and_go_but_not_a_reload() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let weir = two(&a, &b);
    let admin = weir.admin();
    let path = format!("/v1/pools/app/backends/{}", a.address());
    let weight = || admin.reads("/v1/pools/app").json()["backends"][0]["weight"].as_u64();
    assert_eq!(admin.calls("PATCH", &path, &[], r#"{"weight": 7}"#).status(), 200);
    let body = format!(r#"{{"address": "{}"}}"#, c.address());
    assert_eq!(admin.calls("POST", "/v1/pools/app/backends", &[], &body).status(), 201);
    assert_eq!(weight(), Some(7), "after another was added");
    let other = format!("/v1/pools/app/backends/{}", c.address());
    assert_eq!(admin.calls("DELETE", &other, &[], "").status(), 200);
    assert_eq!(weight(), Some(7), "after another was removed");
    // The file is as it was, and yet there is something to put back.
    assert_eq!(admin.calls("POST", "/v1/reload", &[], "{}").status(), 200);
    assert_eq!(weight(), Some(1), "after a reload");
}

#[test]
fn a_backend_can_be_added_and_removed_while_requests_run() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let weir = two(&a, &b);
    let admin = weir.admin();
    let body = format!(r#"{{"address": "{}"}}"#, c.address());
    assert_eq!(admin.calls("POST", "/v1/pools/app/backends", &[], &body).status(), 201);
    assert_eq!(admin.calls("POST", "/v1/pools/app/backends", &[], &body).status(), 409);
    until("the added backend to be used", || (asks(&weir) == "c").then_some(()));
    for (backend, status) in [(&a, 200), (&b, 200), (&c, 409)] {
        let answer = admin.calls("DELETE", &format!("/v1/pools/app/backends/{}", backend.address()), &[], "");
        assert_eq!(answer.status(), status, "{:?}", answer.response);
    }
    for _ in 0..10 {
        assert_eq!(asks(&weir), "c");
    }
}

#[test]
fn every_error_is_json_with_a_code_and_a_message() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let path = format!("/v1/pools/app/backends/{}", a.address());
    for (method, path, body, status) in [
        ("GET", "/v1/nothing", "", 404),
        ("GET", "/v1/pools/none", "", 404),
        ("PATCH", "/v1/pools/none/backends/x", r#"{"state": "drain"}"#, 404),
        ("PATCH", "/v1/pools/app/backends/127.0.0.1:1", r#"{"state": "drain"}"#, 404),
        ("PATCH", path.as_str(), r#"{"state": "sideways"}"#, 400),
        ("PATCH", path.as_str(), r#"{"weight": -1}"#, 400),
        ("PATCH", path.as_str(), r#"{"weight": 100000}"#, 400),
        ("PATCH", path.as_str(), r#"{"wieght": 1}"#, 400),
        ("PATCH", path.as_str(), "{", 400),
        ("PATCH", path.as_str(), "", 400),
        ("DELETE", "/v1/status", "", 405),
        ("POST", "/v1/pools/app/backends", r#"{"address": "nonsense"}"#, 400),
    ] {
        let answer = weir.admin().calls(method, path, &[], body);
        assert_eq!(answer.status(), status, "{method} {path} {body}: {:?}", answer.response);
        let json = answer.json();
        assert!(
            json["error"]["code"].is_string() && json["error"]["message"].is_string(),
            "{method} {path}: {json}"
        );
    }
}

/// The sum of no samples is no number, and an alert on it is silent or false.
#[test]
fn a_listener_and_a_pool_have_no_metrics_of_what_they_do_not_do() {
    let backend = named("a");
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [listener.raw]
        protocol = "tcp"
        bind = "@raw"
        pool = "plain"
        [pool.app]
        backends = ["@app"]
        health = "off"
        [pool.plain]
        backends = ["@app"]
        health = "off"
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let page = weir.admin().reads("/metrics").response.text();
    let has = |name: &str, label: &str| {
        page.lines().any(|line| line.starts_with(name) && line.contains(&format!("{{{label}")))
    };
    for (name, http, tcp) in [
        ("weir_requests_total", "listener=\"web\"", "listener=\"raw\""),
        ("weir_request_duration_seconds_bucket", "listener=\"web\"", "listener=\"raw\""),
        ("weir_would_reject_total", "listener=\"web\"", "listener=\"raw\""),
        ("weir_rate_limit_overflow_total", "listener=\"web\"", "listener=\"raw\""),
        ("weir_backend_response_seconds_bucket", "pool=\"app\"", "pool=\"plain\""),
        ("weir_backend_connections_reused_total", "pool=\"app\"", "pool=\"plain\""),
    ] {
        assert!(has(name, http) && !has(name, tcp), "{name}");
    }
    assert!(!has("weir_sqli_requests_total", ""), "no listener asks for it");
    for name in ["weir_connections_total", "weir_bytes_total", "weir_ends_total"] {
        assert!(has(name, "listener=\"web\"") && has(name, "listener=\"raw\""), "{name}");
    }
}

#[test]
fn metrics_are_well_formed_and_documented() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    asks(&weir);
    let page = weir.admin().reads("/metrics").response.text();
    for name in [
        "weir_requests_total",
        "weir_request_duration_seconds_bucket",
        "weir_backend_up",
        "weir_backend_healthy",
        "weir_backend_connections",
        "weir_backend_response_seconds_count",
        "weir_connections",
        "weir_connections_total",
        "weir_bytes_total",
        "weir_retries_total",
        "weir_queue_depth",
        "weir_rejected_total",
        "weir_reloads_total",
        "weir_config_generation",
        "weir_build_info",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
    ] {
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} is missing");
    }
    let mut typed = std::collections::BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap_or_default().to_owned();
            assert!(typed.insert(name.clone()), "{name} is declared twice");
        } else if !line.starts_with('#') && !line.is_empty() {
            let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let known = ["", "_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| typed.contains(name.strip_suffix(suffix).unwrap_or(&name)));
            assert!(known, "{name} has no # TYPE before it");
            assert!(
                line.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok()),
                "no number: {line}"
            );
        }
    }
}

#[test]
fn the_config_in_force_is_shown_whole_with_every_default() {
    let backend = named("a");
    let weir = Authority::new()
        .signs("shop", &["shop.example"])
        .setup(
            r#"
            [cache]
            memory = "32MiB"
            [listener.secure]
            bind = "@secure"
            pool = "app"
            http = ["h1", "h2"]
            deny_method = "TRACE"
            tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }], min_version = "1.3" }
            [[listener.secure.route]]
            path = "/kept/*"
            pool = "app"
            cache = { ttl = "60s" }
            [listener.passed]
            protocol = "tcp"
            bind = "@passed"
            [[listener.passed.route]]
            sni = "*.shop.example"
            pool = "relayed"
            [pool.app]
            backends = ["@a", { address = "127.0.0.1:9", weight = 0 }]
            protocol = "h2"
            tls = { verify = false }
            health = { check = "off" }
            [pool.relayed]
            backends = ["@a"]
            health = { check = "off" }
            "#,
        )
        .with("a", backend.address())
        .start();
    let config = weir.admin().reads("/v1/config").json();
    assert_eq!(config["generation"], 1);
    assert_eq!(config["cache"]["memory"], "32MiB");
    let secure = &config["listener"]["secure"];
    assert_eq!(secure["http"], serde_json::json!(["h1", "h2"]));
    assert_eq!(secure["deny_method"], serde_json::json!(["TRACE"]));
    assert_eq!(secure["tls"]["min_version"], "1.3");
    assert_eq!(secure["tls"]["tickets"], true);
    assert!(secure["tls"]["certificates"][0]["key"].as_str().is_some_and(|key| key.ends_with("/shop.key")));
    assert_eq!(secure["timeout"]["handshake"], "10s");
    assert_eq!(secure["route"][0]["cache"]["ttl"], "60s");
    assert_eq!(secure["route"][0]["cache"]["object_max"], "16MiB");
    assert_eq!(config["listener"]["passed"]["route"][0]["sni"][0], "*.shop.example");
    let app = &config["pool"]["app"];
    assert_eq!((&app["protocol"], &app["tls"]["verify"]), (&"h2".into(), &false.into()));
    assert_eq!(app["backends"][1], serde_json::json!({ "address": "127.0.0.1:9", "weight": 0 }));
    assert_eq!(app["health"]["check"], "off");
    assert_eq!(app["retry"]["attempts"], 2);
}

#[test]
fn explain_names_the_listener_route_pool_and_backend_that_a_request_gets() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let body =
        format!(r#"{{"protocol": "http", "method": "GET", "url": "http://{}/x"}}"#, weir.address("web"));
    let answer = weir.admin().calls("POST", "/v1/explain", &[], &body);
    assert_eq!(answer.status(), 200, "{:?}", answer.response);
    let text = answer.response.text();
    for word in ["web", "app"] {
        assert!(text.contains(word), "no word of {word}: {text}");
    }
}

#[test]
fn events_tell_of_reloads_and_of_operators_changes() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let mut stream = weir.client("admin");
    stream.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
    let head = stream.receives_head();
    assert_eq!(head.status, 200);
    assert!(head.fields.one("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    let path = format!("/v1/pools/app/backends/{}", a.address());
    weir.admin().calls("PATCH", &path, &[], r#"{"state": "drain"}"#);
    stream.receives_until(&a.address().to_string());
    weir.admin().calls("POST", "/v1/reload", &[], "{}");
    stream.receives_until("reload");
}

#[test]
fn the_page_for_people_is_html_that_escapes_what_others_chose() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let answer = weir.admin().reads("/");
    assert_eq!(answer.status(), 200);
    assert!(answer.response.fields.one("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    let text = answer.response.text();
    assert!(text.contains("app") && text.contains(&a.address().to_string()));
    let policy = answer.response.fields.one("content-security-policy").unwrap_or_default().to_owned();
    assert!(!policy.is_empty() && !policy.contains("unsafe-eval"), "policy {policy:?}");
}
