//! What operators change while an upgrade is under way: nothing that the new process would not know of.

use std::fs::File;
use std::io::Write as _;

use serde_json::json;
use weir_tests::dialogue::{Authority, PATIENCE, Signal, Weir, until, until_within};

use super::{ask, named};
use crate::tls::curl;

const CONFIG: &str = r#"
[runtime]
drain = "20s"
[listener.web]
bind = "@web"
[[listener.web.route]]
path = "/kept/*"
pool = "app"
cache = {}
[[listener.web.route]]
map = { plans = "gold" }
pool = "app"
[[listener.web.route]]
path = "/other/*"
pool = "other"
[[listener.web.route]]
pool = "app"
[listener.secure]
bind = "@secure"
http = ["h1"]
pool = "app"
tls = { certificate_folder = "@dir/certificates" }
[map.plans]
file = "@dir/plans.map"
key = "$host"
[pool.app]
backends = ["@a", "@b"]
health = "off"
[pool.other]
backends = ["@b"]
health = "off"
"#;

/// The same with one backend.
fn with_one() -> String {
    CONFIG.replace("[\"@a\", \"@b\"]", "[\"@a\"]").replace("[\"@b\"]", "[\"@a\"]")
}

/// The new process, which waits for the rest of its config.
struct Starting {
    pipe: File,
    config: Vec<u8>,
    old: u32,
}

impl Starting {
    /// Begins an upgrade. The config is in its place again afterwards, for whoever reloads.
    fn of(weir: &Weir) -> Starting {
        let (path, old) = (weir.config_path(), weir.pid());
        let config = std::fs::read(&path).expect("the config");
        std::fs::remove_file(&path).expect("remove");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        weir.signals_pid(old, Signal::USR2);
        until("the upgrade to begin", || weir.stderr().contains("starting the new process").then_some(()));
        // Opens once the new process has.
        let pipe = File::options().write(true).open(&path).expect("the pipe");
        let next = weir.dir().join("next.toml");
        std::fs::write(&next, &config).expect("write");
        std::fs::rename(next, &path).expect("rename");
        Starting { pipe, config, old }
    }

    /// Lets the new process have its config, and waits until the old one has ended.
    fn goes_on(mut self, weir: &Weir) {
        self.pipe.write_all(&self.config).expect("it reads");
        drop(self.pipe);
        until_within(PATIENCE * 2, "the old process to end", || (!weir.is_running(self.old)).then_some(()));
    }
}

/// Each call that changes something, and how it is answered where it may.
fn changes(a: &str, b: &str, authority: &Authority) -> Vec<(&'static str, String, String, u16)> {
    let certificate = json!({ "certificate": authority.text("two.pem"), "key": authority.text("two.key") });
    let pool = "/v1/pools/app/backends";
    let certificates = "/v1/listeners/secure/certificates";
    vec![
        ("PATCH", format!("{pool}/{a}"), r#"{"weight": 7}"#.to_owned(), 200),
        ("POST", pool.to_owned(), r#"{"address": "127.0.0.1:1", "weight": 0}"#.to_owned(), 201),
        ("DELETE", format!("{pool}/{b}"), String::new(), 200),
        ("PUT", format!("{certificates}/two"), certificate.to_string(), 200),
        ("DELETE", format!("{certificates}/one"), String::new(), 200),
        ("PUT", "/v1/maps/plans?key=b".to_owned(), r#"{"value": "gold"}"#.to_owned(), 200),
        ("DELETE", "/v1/maps/plans?key=a".to_owned(), String::new(), 200),
        ("POST", "/v1/maintenance".to_owned(), r#"{"state": "on", "pool": "other"}"#.to_owned(), 200),
        ("POST", "/v1/cache/purge".to_owned(), r#"{"all": true}"#.to_owned(), 200),
        ("POST", "/v1/reload".to_owned(), String::new(), 200),
    ]
}

#[test]
fn an_upgrade_loses_no_change_that_was_answered_as_made() {
    let (a, b) = (named("a"), named("b"));
    let authority = Authority::new().signs("one", &["one.example"]).signs("two", &["two.example"]);
    let weir = authority
        .setup(CONFIG)
        .with_file("plans.map", "a gold\n")
        .with("a", a.address())
        .with("b", b.address())
        .start();
    let admin = weir.admin();
    let body = json!({ "certificate": authority.text("one.pem"), "key": authority.text("one.key") });
    let put = admin.calls("PUT", "/v1/listeners/secure/certificates/one", &[], &body.to_string());
    assert_eq!(put.status(), 200);
    let (address_a, address_b) = (a.address().to_string(), b.address().to_string());
    let changes = changes(&address_a, &address_b, &authority);

    let starting = Starting::of(&weir);
    for (method, path, body, _) in &changes {
        let answer = admin.calls(method, path, &[], body);
        let said = answer.response.text();
        assert!(answer.status() == 503 && said.contains("upgrade_under_way"), "{method} {path}: {said}");
        assert_eq!(answer.response.fields.one("retry-after"), Some("1"));
    }
    let said = weir.command(&["drain", "app", &address_a]);
    assert!(said.code != 0 && said.stderr.contains("an upgrade is under way"), "{said:?}");
    assert_eq!(admin.reads("/v1/status").json()["pid"], starting.old);
    assert_eq!(ask(&weir, "web").status, 200);
    starting.goes_on(&weir);

    for (method, path, body, status) in &changes {
        let answer = admin.calls(method, path, &[], body);
        assert_eq!(answer.status(), *status, "{method} {path}: {}", answer.response.text());
    }
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(PATIENCE * 2, "the old process to end", || (!weir.is_running(old)).then_some(()));
    let ca = authority.path("ca.pem");
    let is_served = |host| curl(&weir, "secure", host, &["--cacert", &ca]).stdout.ends_with("status 200");
    assert!(is_served("two.example") && !is_served("one.example"));
    assert_eq!(std::fs::read_to_string(weir.dir().join("plans.map")).expect("the map"), "b gold\n");
    let maintenance = admin.reads("/v1/maintenance").json();
    assert_eq!(maintenance["maintenance"][0]["pool"], "other", "{maintenance}");
}

#[test]
fn changes_are_taken_again_where_an_upgrade_has_failed() {
    let backend = named("a");
    let authority = Authority::new();
    let setup = authority.setup(&with_one()).with_file("plans.map", "a gold\n");
    let weir = setup.with("a", backend.address()).start();
    let starting = Starting::of(&weir);
    let switch = || weir.admin().calls("POST", "/v1/maintenance", &[], r#"{"state": "on"}"#).status();
    assert_eq!(switch(), 503);
    let mut pipe = starting.pipe;
    pipe.write_all(b"[listener.web]\nbind = 7\n").expect("it reads");
    drop(pipe);
    until("the upgrade to fail", || weir.stderr().contains("upgrade failed").then_some(()));
    assert_eq!((switch(), weir.pid()), (200, starting.old), "{}", weir.story());
    assert_eq!(ask(&weir, "web").status, 503);
}

/// The new process has read its config by then, and the old one is about to end.
#[test]
fn a_hang_up_in_the_middle_of_an_upgrade_is_a_reload_of_the_new_process() {
    let (a, b) = (named("a"), named("b"));
    let setup = Authority::new().setup(&with_one()).with_file("plans.map", "a gold\n");
    let weir = setup.with("a", a.address()).start();
    let starting = Starting::of(&weir);
    let text = String::from_utf8(starting.config.clone()).expect("text");
    let changed = text.replace(&a.address().to_string(), &b.address().to_string());
    std::fs::write(weir.config_path(), changed).expect("write");
    weir.signals_pid(starting.old, Signal::HUP);
    until("the signal to be seen", || weir.stderr().contains("told to reload").then_some(()));
    starting.goes_on(&weir);
    until("the changed config to be in force", || (ask(&weir, "web").text() == "b").then_some(()));
}
