//! Configs of several files, with values from the environment and from files (threat H11).

use weir_tests::dialogue::{After, Backend};
use weir_tests::dialogue::{Setup, Weir, run_tool, weir_binary};

use super::ask;

/// Says which key it was shown.
fn keyed() -> Backend {
    Backend::serving(|request, wire| {
        let key = request.fields.one("x-key").unwrap_or("none").to_owned();
        wire.answers(200, &[], &key);
        After::Keep
    })
}

const CONFIG: &str = r#"
include = "part-*.toml"

[log]
level = "debug"
access = "./access.log"

[listener.web]
bind = "${env:WEB}"
pool = "app"
deny_address = ["@blocked"]

[listener.web.timeout]
backend = "${env:PATIENCE}"
"#;

const POOL: &str = r#"
[pool.app]
backends = ["@app"]
use = "unchecked"

[shared.unchecked]
health = { check = "off" }
"#;

const ROUTE: &str = r#"
[[listener.web.route]]
path = "/keyed"
pool = "app"
add_request_header = { x-key = "Bearer ${file:key}" }
"#;

/// The environment must be known before the addresses are: the listener has one of its own.
fn composed(backend: &Backend) -> Weir {
    let web = weir_tests::dialogue::free_address();
    Setup::of(CONFIG)
        .with("web", web)
        .with("blocked", "@file:blocked.txt")
        .with("app", backend.address())
        .with_file("part-10-pool.toml", POOL)
        .with_file("part-20-route.toml", ROUTE)
        .with_file("blocked.txt", "# nobody yet\n192.0.2.0/24\n")
        .with_file("key", "k$y-of-the-house\n")
        .environment("WEB", &web.to_string())
        .environment("PATIENCE", "12345ms")
        .start()
}

fn status_of(weir: &Weir, path: &str) -> (u16, String) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    let response = client.receives_response();
    (response.status, response.text())
}

fn rewrites(weir: &Weir, file: &str, content: &str) {
    std::fs::write(weir.dir().join(file), content).expect("write a file of the config");
}

#[test]
fn several_files_serve_as_one_and_a_reload_reads_all_of_them_anew() {
    let backend = keyed();
    let weir = composed(&backend);
    assert_eq!(status_of(&weir, "/keyed"), (200, "Bearer k$y-of-the-house".to_owned()));
    assert_eq!(ask(&weir, "web").text(), "none");
    rewrites(&weir, "key", "another-key-by-now");
    rewrites(
        &weir,
        "part-30-more.toml",
        "[[listener.web.route]]\npath = \"/more\"\nuse = \"more\"\n[shared.more]\nrespond = { status = 299 }\n",
    );
    let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(answer.status(), 200, "{}", answer.json());
    assert_eq!(status_of(&weir, "/keyed"), (200, "Bearer another-key-by-now".to_owned()));
    assert_eq!(status_of(&weir, "/more").0, 299);
    // Who runs `weir reload` has not the environment of Weir, and needs not have it.
    rewrites(&weir, "blocked.txt", "127.0.0.0/8\n");
    let finished = weir.command(&["reload"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert_eq!(status_of(&weir, "/keyed").0, 403);
}

#[test]
fn what_came_from_elsewhere_is_shown_nowhere() {
    let backend = keyed();
    let weir = composed(&backend);
    let config = weir.admin().reads("/v1/config").json().to_string();
    assert!(config.contains("(secret)"), "{config}");
    rewrites(&weir, "key", "another-key-by-now");
    let reloaded = weir.admin().calls("POST", "/v1/reload", &[], "{}").json().to_string();
    assert!(reloaded.contains("add_request_header"), "{reloaded}");
    // A value that cannot stand where it does is named by where it came from.
    rewrites(&weir, "part-40.toml", "[pool.app]\nslow_start = \"${file:key}\"\nbalance = \"x${file:key}\"\n");
    let refused = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(refused.status(), 422);
    let refused = refused.json().to_string();
    assert!(
        refused.contains("part-40.toml:2:14: `slow_start` cannot be what comes from `${file:key}`"),
        "{refused}"
    );
    let checked =
        run_tool(&weir_binary(), &["check", &weir.config_path()], b"", std::time::Duration::from_secs(20));
    assert!(checked.stderr.contains("part-40.toml:3:11:"), "{checked:?}");
    assert!(checked.stderr.contains("the environment variable `WEB` is not set"), "{checked:?}");
    let status = weir.admin().reads("/v1/status").json().to_string();
    assert_eq!(status_of(&weir, "/keyed").0, 200);
    let logged = weir.lines_of("access.log", 1).join("\n");
    for (what, text) in [
        ("/v1/config", config),
        ("the reload", reloaded),
        ("the refusal", refused),
        ("weir check", format!("{checked:?}")),
        ("/v1/status", status),
        ("the access log", logged),
        ("the log", weir.stderr() + &weir.stdout()),
    ] {
        for secret in ["y-of-the-house", "another-key", "12345", "12.345"] {
            assert!(!text.contains(secret), "{what} shows {secret}:\n{text}");
        }
    }
}

#[test]
fn a_mistake_in_an_included_file_is_told_with_that_file_and_line_and_changes_nothing() {
    let backend = keyed();
    let weir = composed(&backend);
    rewrites(&weir, "part-20-route.toml", &ROUTE.replace("pool = \"app\"", "pool = \"ap\""));
    rewrites(&weir, "part-30.toml", "[listener.web]\npool = \"app\"\n[log]\nformt = \"json\"\n");
    let refused = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert_eq!(refused.status(), 422);
    let error = refused.json().to_string();
    for place in ["part-30.toml:4:1:", "weir.toml:10:1: `pool` is said twice", "part-30.toml:2:1"] {
        assert!(error.contains(place), "no word of {place}: {error}");
    }
    assert_eq!(status_of(&weir, "/keyed").0, 200);
}

#[test]
fn files_that_are_named_one_by_one_are_read_as_one() {
    let backend = keyed();
    let config = "[listener.web]\nbind = \"@web\"\npool = \"app\"\n";
    let weir = Setup::of(config)
        .with("app", backend.address())
        .with_file("more.toml", POOL)
        .under(&["sh", "-c", "exec \"$@\" --config more.toml", "sh"])
        .start();
    assert_eq!(ask(&weir, "web").text(), "none");
    let source = weir.admin().reads("/v1/status").json()["config_source"].to_string();
    assert!(source.contains("weir.toml, ") && source.contains("more.toml"), "{source}");
    rewrites(&weir, "more.toml", "[pool.app]\nbackends = []\n");
    let refused = weir.admin().calls("POST", "/v1/reload", &[], "{}").json().to_string();
    assert!(refused.contains("more.toml:2:12:"), "{refused}");
}

/// Of the first three nothing was said: they were keys that no request has, and were never met.
#[test]
fn what_comes_from_elsewhere_is_refused_in_keys_and_as_a_list_and_it_is_said_what_to_write() {
    let backend = keyed();
    let weir = composed(&backend);
    std::fs::write(weir.dir().join("networks"), "192.0.2.0/24\n198.51.100.0/24\n").expect("write");
    let route = ROUTE.trim_end().to_owned();
    for (part, line, said) in [
        ("query = { \"${env:WEB}\" = \"a\" }", 6, "`${env:WEB}` cannot stand in a key"),
        ("cookie = { \"${file:key}\" = \"a\" }", 6, "`${file:key}` cannot stand in a key"),
        ("[log.fields]\n\"${env:WEB}\" = \"$path\"", 7, "`${env:WEB}` cannot stand in a key"),
        (
            "allow_address = \"${file:networks}\"",
            6,
            "it holds several, of which each is an element of its own",
        ),
    ] {
        std::fs::write(weir.dir().join("part-20-route.toml"), format!("{route}\n{part}\n")).expect("write");
        let finished = weir.command(&["reload"]);
        assert_eq!(finished.code, 2, "{part}: {finished:?}");
        assert!(finished.stderr.contains(&format!("part-20-route.toml:{line}:")), "{part}: {finished:?}");
        assert!(finished.stderr.contains(said), "{part}: {finished:?}");
    }
    let as_list = "allow_address = \"@file:networks\"";
    std::fs::write(weir.dir().join("part-20-route.toml"), format!("{route}\n{as_list}\n")).expect("write");
    let finished = weir.command(&["reload"]);
    assert_eq!(finished.code, 0, "{finished:?}");
}
