//! Limits say whom they keep out.

use serde_json::{Value, json};
use weir_tests::dialogue::{PATIENCE, ScriptedBackend, Setup, Weir, Wire, run_tool, tool, until};

use super::ask;

const CONFIG: &str = r#"
    [runtime]
    workers = 2
    [listener.web]
    bind = "@web"
    [[listener.web.route]]
    name = "login"
    path = "/login"
    respond = { status = 401 }
    rate_limit = { rate = "1/1h", statuses = [401], key = "header:x-user", keys = 1000 }
    [[listener.web.route]]
    name = "api"
    path = "/api"
    respond = { status = 200, body = "api" }
    rate_limit = [
      { rate = "1/1h", burst = 1, key = "header:x-api-key" },
      { rate = "1/1h", burst = 1, key = "$client_ip $header.authorization $cookie.session $header.x-device" },
    ]
    [[listener.web.route]]
    name = "tried"
    path = "/tried"
    respond = { status = 200, body = "tried" }
    rate_limit = { rate = "1/1h", burst = 1, dry_run = true }
    [[listener.web.route]]
    name = "page"
    path = "/page"
    respond = { status = 200, body = "page" }
    rate_limit = { rate = "5/1h", burst = 5 }
    [[listener.web.route]]
    name = "whole"
    path = "/whole"
    respond = { status = 200, body = "whole" }
    rate_limit = { rate = "1/1h", burst = 1, key = "route" }
"#;

/// The statuses that curl is answered, one request each.
fn curl(weir: &Weir, path: &str, fields: &[&str]) -> String {
    let url = format!("http://{}{path}", weir.address("web"));
    let mut all = vec!["--silent", "--max-time", "20", "--noproxy", "*", "--output", "/dev/null"];
    all.extend(["--write-out", "%{http_code}"]);
    fields.iter().for_each(|field| all.extend(["--header", field]));
    all.push(&url);
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

/// The limits that the admin API lists.
fn listed(weir: &Weir, query: &str) -> Vec<Value> {
    let answer = weir.admin().reads(&format!("/v1/limits{query}"));
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.json()["limits"].as_array().expect("a list").clone()
}

/// The only limit of a route.
fn of_route(weir: &Weir, route: &str) -> Value {
    let mut limits = listed(weir, &format!("?route={route}"));
    assert_eq!(limits.len(), 1, "{limits:?}");
    limits.remove(0)
}

/// Who is listed by a limit, and how often each was refused.
fn who(limit: &Value) -> Vec<(String, u64)> {
    let row = |it: &Value| {
        let whose = it["key"].as_str().map(str::to_owned);
        let whose = whose.or_else(|| it["client"].as_str().map(|client| format!("client {client}")));
        (whose.unwrap_or_default(), it["refused_total"].as_u64().expect("a count"))
    };
    limit["refused"].as_array().expect("a list").iter().map(row).collect()
}

fn pairs(all: &[(&str, u64)]) -> Vec<(String, u64)> {
    all.iter().map(|(whose, count)| ((*whose).to_owned(), *count)).collect()
}

#[test]
fn who_is_refused_is_listed_by_limit_those_most_often_first_and_nobody_who_was_let_in() {
    let weir = Setup::of(CONFIG).start();
    for (user, expected) in [("ann", "401"), ("bob", "401"), ("eve", "401"), ("bob", "429"), ("ann", "429")] {
        assert_eq!(curl(&weir, "/login", &[&format!("x-user: {user}")]), expected);
    }
    assert_eq!(curl(&weir, "/login", &["x-user: ann"]), "429");
    assert_eq!((curl(&weir, "/login", &[]), curl(&weir, "/login", &[])), ("401".into(), "429".into()));
    let limit = of_route(&weir, "login");
    let facts = ["listener", "limit", "key", "rate", "keys", "tracked_count", "refused_total"];
    let facts: Vec<Value> = facts.iter().map(|name| limit[*name].clone()).collect();
    let expected = ["web", "rate_limit", "header:x-user", "1/h"].map(Value::from);
    assert_eq!(facts[..4], expected);
    assert_eq!(facts[4..], [1000, 4, 4].map(Value::from));
    assert_eq!((&limit["burst"], &limit["statuses"]), (&json!(1), &json!(["401"])));
    // Of those refused as often the last comes first; who has no such header is shown by its address.
    assert_eq!(who(&limit), pairs(&[("ann", 2), ("client 127.0.0.1", 1), ("bob", 1)]));
    for refused in limit["refused"].as_array().expect("a list") {
        let seconds = |name: &str| refused[name].as_f64().expect("seconds");
        assert!((3_000.0..=3_600.0).contains(&seconds("let_in_after_seconds")), "{refused}");
        assert!((0.0..600.0).contains(&seconds("refused_ago_seconds")), "{refused}");
    }
    let said =
        weir.command(&["limits", "show", "--listener", "web", "--route", "login"]).succeeded().to_owned();
    let head = "listener web, route login: rate_limit 1/h, burst 1 by header:x-user, answers of 401\n  \
                4 of 1000 keys in use (0.4%), 4 refused\n";
    assert!(said.starts_with(head), "{said}");
    let rows: Vec<Vec<&str>> = said.lines().skip(2).map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0].join(" "), "refused last let in again who");
    assert_eq!((rows[1][0], &rows[1][5..], rows.len()), ("2", &["key", "ann"][..], 4), "{said}");
    // Nobody else is kept out, and a limit that is cleared has nobody.
    assert_eq!(
        weir.command(&["limits", "clear", "--key", "ann"]).succeeded().trim(),
        "cleared in 1 of 6 limits"
    );
    let left = pairs(&[("client 127.0.0.1", 1), ("bob", 1)]);
    assert_eq!(who(&of_route(&weir, "login")), left);
    assert_eq!(listed(&weir, "?keys=1&route=login")[0]["refused"].as_array().map(Vec::len), Some(1));
}

#[test]
fn refusals_of_all_workers_are_counted_and_outlive_a_reload() {
    let mut weir = Setup::of(CONFIG).start();
    let load = |weir: &Weir, requests: &str| {
        let url = format!("http://{}/page", weir.address("web"));
        let arguments = ["--h1", "-n", requests, "-c", "8", "-t", "2", &url];
        let finished = run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 3);
        finished.succeeded().to_owned()
    };
    let text = load(&weir, "200");
    assert!(text.contains("5 2xx, 0 3xx, 195 4xx, 0 5xx"), "{text}");
    assert_eq!(who(&of_route(&weir, "page")), pairs(&[("client 127.0.0.1", 195)]));
    weir.reloads(&CONFIG.replace("body = \"whole\"", "body = \"other\""));
    assert_eq!(ask(&weir, "GET", "/whole", "").text(), "other");
    let text = load(&weir, "40");
    assert!(text.contains("0 2xx, 0 3xx, 40 4xx, 0 5xx"), "{text}");
    let limit = of_route(&weir, "page");
    assert_eq!(who(&limit), pairs(&[("client 127.0.0.1", 235)]));
    assert_eq!((&limit["refused_total"], &limit["tracked_count"]), (&json!(235), &json!(1)));
}

#[test]
fn limits_of_all_together_dry_runs_and_names_that_are_not_there_are_told_apart() {
    let weir = Setup::of(CONFIG).start();
    let statuses = |path: &str| (ask(&weir, "GET", path, "").status, ask(&weir, "GET", path, "").status);
    assert_eq!((statuses("/whole"), statuses("/tried")), ((200, 429), (200, 200)));
    let whole = of_route(&weir, "whole");
    assert_eq!((&whole["keys"], who(&whole)), (&Value::Null, pairs(&[("", 1)])));
    let tried = of_route(&weir, "tried");
    assert_eq!((&tried["dry_run"], who(&tried)), (&json!(true), pairs(&[("client 127.0.0.1", 1)])));
    let said = weir.command(&["limits", "show"]).succeeded().to_owned();
    assert!(said.contains("  all together\n") && said.contains("by client_ip, dry run\n"), "{said}");
    let order: Vec<String> = listed(&weir, "").iter().map(|it| it["route"].to_string()).collect();
    assert_eq!(order.join(" "), r#""login" "api" "api" "tried" "page" "whole""#);
    let as_json = weir.command(&["limits", "show", "--route", "whole", "--json"]).succeeded().to_owned();
    let as_json: Value = serde_json::from_str(&as_json).expect("JSON");
    assert_eq!(as_json["limits"][0]["route"], "whole");
    for query in ["?route=no", "?listener=no", "?listener=no&route=page"] {
        assert_eq!(weir.admin().reads(&format!("/v1/limits{query}")).status(), 404, "{query}");
    }
    assert_eq!(weir.admin().reads("/v1/limits?keys=many").status(), 400);
    let refused = weir.command(&["limits", "show", "--route", "no"]);
    assert_eq!(refused.code, 1, "{refused:?}");
}

#[test]
fn connections_and_requests_at_once_are_listed_too() {
    let backend = ScriptedBackend::start();
    let config = r#"
        [listener.front]
        protocol = "tcp"
        bind = "@front"
        pool = "app"
        rate_limit = { rate = "1/h", burst = 1 }
        [listener.web]
        bind = "@web"
        pool = "app"
        concurrency_limit = { max = 1, key = "client_ip" }
        [pool.app]
        backends = ["@app"]
        health = "off"
    "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    let of = |listener: &str| listed(&weir, &format!("?listener={listener}")).remove(0);
    let mut through = weir.client("front");
    through.sends("hello");
    let mut accepted = backend.accepts();
    accepted.receives_exactly("hello");
    // The reset may be here before the connect is seen to have come about.
    let _refused = Wire::try_connect(weir.address("front"));
    weir.reaches("weir_rejected_total", &[("listener", "front"), ("reason", "rate_limited")], 1.0);
    assert_eq!(who(&of("front")), pairs(&[("client 127.0.0.1", 1)]));
    let mut first = weir.client("web");
    first.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut behind = backend.accepts();
    behind.receives_request();
    assert_eq!(ask(&weir, "GET", "/", "").status, 429);
    let limit = of("web");
    assert_eq!((&limit["limit"], &limit["max"]), (&json!("concurrency_limit"), &json!(1)));
    assert_eq!((who(&limit), &limit["tracked_count"]), (pairs(&[("client 127.0.0.1", 1)]), &json!(1)));
    assert_eq!(limit["refused"][0]["under_way"], 1);
    let said = weir.command(&["limits", "show", "--listener", "web"]).succeeded().to_owned();
    assert!(said.starts_with("listener web: concurrency_limit 1 at once by client_ip\n"), "{said}");
    behind.answers(200, &[], "done");
    first.receives_status(200);
    until("its request to be over", || (of("web")["refused"][0]["under_way"] == 0).then_some(()));
}

#[test]
fn d44_what_may_be_a_secret_is_not_shown_and_what_is_shown_steers_nothing() {
    let weir = Setup::of(CONFIG).start();
    let secret =
        "authorization: Bearer open-sesame\r\ncookie: session=open-sesame\r\nx-api-key: open-sesame\r\n";
    let other = secret.replace("open-sesame", "open-barley");
    // The second limit refuses who comes with another key of the first.
    for (fields, status) in [
        (format!("{secret}x-device: d\r\n"), 200),
        (format!("{secret}x-device: d\r\n"), 429),
        (format!("{other}x-device: d\r\n"), 200),
        (format!("{other}x-device: d\r\n"), 429),
        (
            format!("{}x-device: d\r\n", secret.replace("x-api-key: open-sesame", "x-api-key: open-third")),
            429,
        ),
    ] {
        assert_eq!(ask(&weir, "GET", "/api", &fields).status, status, "{fields}");
    }
    let answer = weir.admin().reads("/v1/limits").json().to_string();
    let said = weir.command(&["limits", "show"]).succeeded().to_owned();
    assert!(!answer.contains("open-") && !said.contains("open-"), "{answer}\n{said}");
    let limits = listed(&weir, "?route=api");
    let [by_key, by_text] = [0, 1].map(|number| who(&limits[number]));
    assert!(by_key.len() == 2 && by_key[0].0 != by_key[1].0, "two secrets are told apart: {by_key:?}");
    assert!(by_key.iter().all(|(key, _)| key.starts_with("[hidden ") && key.len() == 17), "{by_key:?}");
    let shown = &by_text[0].0;
    assert!(shown.starts_with("127.0.0.1 [hidden ") && shown.ends_with("] d"), "{shown}");
    assert_eq!(limits[0]["refused"][0]["hidden"], true);
    // Control characters of C1, marks that turn the direction, a line separator, bytes that are no text.
    let odd = b"x-user: \xc2\x9b31m\xe2\x80\xaeevil\xe2\x80\xa8\xff\r\n";
    for status in [401, 429] {
        let mut client = weir.client("web");
        let request =
            [&b"GET /login HTTP/1.1\r\nhost: a\r\n"[..], odd, b"connection: close\r\n\r\n"].concat();
        client.sends(request);
        assert_eq!(client.receives_response_to("GET").status, status);
    }
    let harmless = r"\u{9b}31m\u{202e}evil\u{2028}\xff";
    assert_eq!(who(&of_route(&weir, "login")), pairs(&[(harmless, 1)]));
    let said = weir.command(&["limits", "show", "--route", "login"]).succeeded().to_owned();
    assert!(said.lines().count() == 4 && said.ends_with(&format!("key {harmless}\n")), "{said}");
}

#[test]
fn d44_a_flood_of_refused_keys_lists_a_bounded_number_and_those_refused_often_first() {
    let weir = Setup::of(CONFIG).start();
    let mut client = weir.client("web");
    // Each is refused but for the first time that it comes.
    let mut sends = |user: &str, count: usize| {
        let request = format!("GET /login HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n");
        client.sends(request.repeat(count));
        for number in 0..count {
            let expected = if number == 0 { 401 } else { 429 };
            assert_eq!(client.receives_response_to("GET").status, expected, "{user} {number}");
        }
    };
    sends("often", 50);
    let long = "x".repeat(200);
    for number in 0..900 {
        sends(&format!("{number}-{long}"), 2);
    }
    let limit = listed(&weir, "?route=login&keys=100000").remove(0);
    let refused = who(&limit);
    assert_eq!((refused[0].clone(), refused.len()), (("often".to_owned(), 49), 256));
    assert_eq!((&limit["refused_total"], &limit["tracked_count"]), (&json!(949), &json!(901)));
    assert!(refused[1..].iter().all(|(key, _)| key.len() == 128), "{refused:?}");
    assert_eq!(limit["refused"][1]["cut"], true);
}
