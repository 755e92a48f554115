//! What a reload would change, and what takes a restart.

use weir_config::{Change, ChangeKind, diff, parse, to_toml_without_secrets, until_restart};

const OLD: &str = r#"
[runtime]
workers = 2

[listener.web]
bind = "0.0.0.0:80"
pool = "app"

[[listener.web.route]]
name = "api"
path = "/api/*"
pool = "app"
add_request_header = { authorization = "Bearer old-secret" }

[[listener.web.route]]
name = "static"
path = "/static/*"
pool = "app"

[listener.old]
bind = "0.0.0.0:81"
pool = "app"

[pool.app]
backends = ["10.0.0.1:8080"]
"#;

fn changes(new: &str) -> Vec<Change> {
    diff(&parse("old.toml", OLD).unwrap(), &parse("new.toml", new).unwrap())
}

#[test]
fn equal_configs_do_not_differ_however_they_are_written() {
    assert_eq!(changes(OLD), []);
    assert_eq!(
        changes(&OLD.replace(
            "pool = \"app\"\n\n[pool",
            "timeout = { connect = \"2000ms\" }\npool = \"app\"\n\n[pool"
        )),
        []
    );
}

#[test]
fn objects_come_and_go() {
    let new = OLD.replace("listener.old", "listener.new");
    let shown: Vec<_> = changes(&new).iter().map(Change::to_string).collect();
    assert_eq!(shown, ["listener.new added", "listener.old removed"]);
}

#[test]
fn a_changed_setting_is_named_with_what_held_and_what_holds() {
    let new = OLD.replace(
        "backends = [\"10.0.0.1:8080\"]",
        "backends = [\"10.0.0.2:8080\"]\nhealth.interval = \"5s\"",
    );
    let found = changes(&new);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, ChangeKind::Changed);
    assert!(found[0].keys.iter().all(|key| !key.restart));
    assert_eq!(
        found[0].to_string(),
        "pool.app changed: backends from [\"10.0.0.1:8080\"] to [\"10.0.0.2:8080\"], health.interval from \"2s\" to \"5s\""
    );
}

#[test]
fn workers_and_the_admin_address_take_a_restart_and_drain_does_not() {
    let new = OLD
        .replace("workers = 2", "workers = 3\ndrain = \"5s\"")
        .replace("[listener.web]\n", "[admin]\nbind = \"off\"\n\n[listener.web]\n");
    let found = changes(&new);
    let restart: Vec<_> =
        found.iter().flat_map(|change| &change.keys).map(|key| (key.key.as_str(), key.restart)).collect();
    assert_eq!(restart, [("drain", false), ("workers", true), ("bind", true)]);
    assert!(found.iter().all(|change| change.keys.iter().any(|key| key.restart)));
}

#[test]
fn the_order_of_routes_counts() {
    let (start, rest) = OLD.split_once("[[listener.web.route]]\nname = \"api\"").unwrap();
    let (api, rest) = rest.split_once("[[listener.web.route]]").unwrap();
    let (other, end) = rest.split_once("[listener.old]").unwrap();
    let new = format!(
        "{start}[[listener.web.route]]{other}[[listener.web.route]]\nname = \"api\"{api}[listener.old]{end}"
    );
    let shown: Vec<_> = changes(&new).iter().map(Change::to_string).collect();
    assert_eq!(shown, ["listener.web changed: route order from api, static to static, api"]);
}

#[test]
fn a_secret_that_changed_is_noticed_and_not_shown() {
    let found = changes(&OLD.replace("old-secret", "new-secret"));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].keys[0].key, "route api.add_request_header");
    let shown = found[0].to_string();
    assert!(!shown.contains("old-secret") && !shown.contains("new-secret"), "{shown}");
    assert!(shown.contains("authorization = \"(secret)\""), "{shown}");
}

#[test]
fn a_config_for_people_holds_no_value_that_a_route_asks_for_or_gives_to_backends() {
    let text = OLD.replace(
        "add_request_header",
        "header = { x-gate = \"open-sesame\", x-there = \"*\" }\nadd_response_header = { x-served-by = \"weir\" }\nadd_request_header",
    );
    let shown = to_toml_without_secrets(&parse("old.toml", &text).unwrap());
    assert!(!shown.contains("open-sesame") && !shown.contains("old-secret"), "{shown}");
    assert!(shown.contains("header = { x-gate = \"(secret)\", x-there = \"*\" }"), "{shown}");
    assert!(shown.contains("add_response_header = { x-served-by = \"weir\" }"), "{shown}");
}

#[test]
fn what_only_a_restart_can_change_stays_and_is_named() {
    let running = parse("old.toml", OLD).unwrap();
    let new = OLD.replace("workers = 2", "workers = 7\ndrain = \"5s\"\nmemory = \"1GiB\"").replace(
        "[listener.web]\n",
        "[admin]\nbind = \"127.0.0.1:9911\"\n\n[kernel]\nflows = 5000\n\n[listener.web]\n",
    );
    let wanted = parse("new.toml", &new).unwrap();
    let (kept, differing) = until_restart(&wanted, &running);
    assert_eq!(differing, ["runtime.workers", "runtime.memory", "admin.bind", "kernel.flows"]);
    assert_eq!(kept.kernel, running.kernel);
    assert_eq!((&kept.admin, kept.runtime.workers), (&running.admin, Some(2)));
    assert_eq!((kept.runtime.memory_bytes, kept.runtime.drain), (None, wanted.runtime.drain));
    assert_eq!(kept.listeners, wanted.listeners);
    // Switched off it is, too, only after a restart.
    let off = parse("off.toml", &OLD.replace("[runtime]", "[admin]\nbind = \"off\"\n[runtime]")).unwrap();
    assert_eq!(until_restart(&off, &running).0.admin, running.admin);
    assert_eq!(until_restart(&running, &off).0.admin, None);
}
