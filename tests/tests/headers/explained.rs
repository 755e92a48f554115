//! What the admin API says of rules.

use serde_json::{Value, json};
use weir_tests::dialogue::{Backend, Weir};

use super::before;

const RULES: &str = r#"
pool = "app"
set_response_header = { x-site = "$host" }
remove_response_header = ["server"]
via = false
[[listener.web.route]]
path = "/a"
pool = "app"
set_request_header = { x-user = "$cookie.user", authorization = "Bearer secret-$host" }
add_request_header = { x-key = "secret" }
[[listener.web.route]]
path = "/b"
redirect = { to = "https://$host:$listener_port$path" }
"#;

fn explained(weir: &Weir, path: &str, headers: Value) -> Value {
    let url = format!("http://{}{path}", weir.address("web"));
    let question = json!({ "protocol": "http", "method": "GET", "url": url, "headers": headers }).to_string();
    let answer =
        weir.admin().calls("POST", "/v1/explain", &[("content-type", "application/json")], &question);
    assert_eq!(answer.status(), 200);
    answer.json()
}

fn changes(answer: &Value) -> Vec<String> {
    let all = answer["header_changes"].as_array().cloned().unwrap_or_default();
    let text = |change: &Value, key: &str| change[key].as_str().unwrap_or("-").to_owned();
    all.iter().map(|it| ["to", "of", "action", "name", "value"].map(|key| text(it, key)).join(" ")).collect()
}

#[test]
fn explain_shows_each_change_and_masks_what_backends_are_told_in_secret() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, RULES, r#"backend_host = "app.internal""#);
    let answer = explained(&weir, "/a", json!([["cookie", "user=u1"], ["host", "shop.example"]]));
    assert_eq!(answer["backend_host"], "app.internal");
    let changes = changes(&answer);
    for expected in [
        "backend route set authorization $host with (secret)",
        "backend route set x-user u1",
        "backend route add x-key (secret)",
        "backend route remove via -",
        "client listener remove server -",
        "client listener set x-site shop.example",
        "client route remove via -",
    ] {
        assert!(changes.iter().any(|change| change == expected), "{expected}: {changes:#?}");
    }
    assert_eq!(changes.len(), 7, "{changes:#?}");
    assert!(!answer.to_string().contains("Bearer"), "{answer}");
}

#[test]
fn explain_says_the_same_as_the_data_path_of_a_redirect() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, RULES, "");
    let answer = explained(&weir, "/b", json!([]));
    let told = super::ask(&weir, &format!("GET /b HTTP/1.1\r\nhost: {}\r\n\r\n", weir.address("web")));
    assert_eq!(told.fields.one("location"), answer["location"].as_str());
    let changes = changes(&answer);
    assert!(changes.iter().all(|change| change.starts_with("client ")), "{changes:#?}");
    let text = weir.command(&["explain", "http", "GET", &format!("http://{}/a", weir.address("web"))]);
    let text = text.succeeded();
    assert!(text.contains("header   to the client, of the listener: set x-site: 127.0.0.1\n"), "{text}");
    assert!(text.contains("set x-user, which comes out empty and is left out\n"), "{text}");
}

#[test]
fn the_effective_config_has_the_rules_without_what_may_be_secret() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, RULES, r#"backend_host = "app.internal""#);
    let shown = weir.admin().reads("/v1/config").json().to_string();
    for expected in
        ["set_response_header", "x-site", "$host", "remove_response_header", "backend_host", "(secret)"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(!shown.contains("secret-$host"), "{shown}");
}
