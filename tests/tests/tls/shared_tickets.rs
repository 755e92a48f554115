//! Ticket keys in a file, which two Weirs share.

use std::os::unix::fs::PermissionsExt as _;

use weir_tests::dialogue::{Backend, Setup, Weir, until};

use super::{Authority, LAST, mirror, s_client};

const CONFIG: &str = r#"
[runtime]
workers = 2
[listener.web]
bind = "@web"
http = ["h1"]
pool = "app"
[listener.web.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }]
ticket_keys = "@keys"
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// A line of base64 with a key of 48 or 80 bytes.
fn key(letter: &str, bytes: usize) -> String {
    let text = letter.repeat(bytes / 3 * 4 + 4);
    match bytes {
        48 => format!("{}\n", &text[..64]),
        _ => format!("{}A=\n", &text[..106]),
    }
}

fn write(file: &str, content: &str) {
    std::fs::write(file, content).expect("write");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("a mode");
}

fn setup(authority: &Authority, backend: &Backend, keys: &str) -> Setup {
    authority.setup(CONFIG).with("app", backend.address()).with("keys", keys)
}

fn begins(weir: &Weir, session: &str, version: &str) {
    let words = format!("-servername shop.example {version} -sess_out {session}");
    let shown = s_client(weir.address("web"), &words, LAST);
    assert!(shown.stdout.contains("New, TLSv1"), "{shown:?}");
}

fn resumes(weir: &Weir, session: &str, version: &str) -> bool {
    let words = format!("-servername shop.example {version} -sess_in {session}");
    let shown = s_client(weir.address("web"), &words, LAST);
    assert!(shown.stdout.contains("HTTP/1.1 200"), "{shown:?}");
    shown.stdout.contains("Reused, TLSv1")
}

#[test]
fn a_session_of_one_weir_is_resumed_at_another_with_the_same_keys_and_at_none_with_others() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let (keys, others) = (authority.path("tickets"), authority.path("other-tickets"));
    write(&keys, &(key("B", 80) + &key("C", 48)));
    write(&others, &key("D", 48));
    let one = setup(&authority, &backend, &keys).start();
    let two = setup(&authority, &backend, &keys).start();
    let stranger = setup(&authority, &backend, &others).start();
    for version in ["-tls1_3", "-tls1_2"] {
        let session = authority.path(&format!("session{version}"));
        begins(&one, &session, version);
        assert!(resumes(&two, &session, version), "{version}");
        assert!(resumes(&one, &session, version), "{version}");
        assert!(!resumes(&stranger, &session, version), "{version}");
    }
    assert_eq!(one.metric("weir_tls_handshakes_total", &[("result", "resumed")]), 2.0);
}

#[test]
fn a_file_that_changes_is_taken_up_without_a_reload_and_one_with_mistakes_is_said() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let keys = authority.path("tickets");
    write(&keys, &key("B", 48));
    let weir = setup(&authority, &backend, &keys).start();
    let (old, new) = (authority.path("old"), authority.path("new"));
    begins(&weir, &old, "-tls1_3");
    // What is there while it is half written changes nothing.
    write(&keys, "half a li");
    let good = "weir_ticket_keys_last_read_successful";
    until("the mistake to be counted", || (weir.metric(good, &[("listener", "web")]) == 0.0).then_some(()));
    assert!(resumes(&weir, &old, "-tls1_3"));
    until("a line in the log", || weir.stderr().contains("line 1 is no key").then_some(()));
    // The new key seals, the old one still opens.
    write(&keys, &(key("E", 48) + &key("B", 48)));
    until("the file to be good again", || (weir.metric(good, &[("listener", "web")]) == 1.0).then_some(()));
    assert!(resumes(&weir, &old, "-tls1_3"));
    begins(&weir, &new, "-tls1_3");
    write(&keys, &key("E", 48));
    until("the old key to be forgotten", || (!resumes(&weir, &old, "-tls1_3")).then_some(()));
    assert!(resumes(&weir, &new, "-tls1_3"));
    let all = [weir.story(), weir.admin().reads("/v1/config").response.text()].concat();
    assert!(!all.contains(key("E", 48).trim()) && !all.contains(key("B", 48).trim()));
}

#[test]
fn keys_that_others_may_read_are_refused_by_a_reload() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let (keys, open) = (authority.path("tickets"), authority.path("open"));
    write(&keys, &key("B", 48));
    write(&open, &key("B", 48));
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let mut weir = setup(&authority, &backend, &keys).start();
    weir.rewrites(&CONFIG.replace("@keys", &open));
    let refused = weir.command(&["reload"]);
    assert!(refused.code != 0 && refused.stderr.contains("may be read by others"), "{refused:?}");
    assert!(s_client(weir.address("web"), "-servername shop.example", LAST).stdout.contains("HTTP/1.1 200"));
}

#[test]
fn keys_come_into_force_by_the_mode_that_the_log_asks_for() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let keys = authority.path("tickets");
    write(&keys, &key("B", 48));
    let weir = setup(&authority, &backend, &keys).start();
    let is_good = |value: f64| {
        until("a look at the file", || {
            let found = weir.metric("weir_ticket_keys_last_read_successful", &[("listener", "web")]);
            (found == value).then_some(())
        });
    };
    for (mode, value) in [(0o644, 0.0), (0o600, 1.0)] {
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).expect("a mode");
        is_good(value);
    }
}
