//! Files that a config names: what a start would refuse, `weir check` refuses as well, each with its line.

use std::os::unix::fs::PermissionsExt as _;

use weir_tests::dialogue::{Finished, PATIENCE, Weir, free_address, run_tool, weir_binary};

use super::{Authority, mirror, shop};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[listener.web.tls]
certificates = [
    { cert = "@files/shop.pem", key = "@files/shop.key" },
    { cert = "@files/other.pem", key = "@files/other.key" },
]
client_ca = "@files/ca.pem"
ticket_keys = "@files/tickets"
[pool.app]
backends = ["@app"]
health = "off"
sticky = { cookie = "a", secret_file = "@files/secret" }
[pool.app.tls]
ca = "@files/ca.pem"
verify = true
[admin]
bind = "@admin"
"#;

/// Everything that [`CONFIG`] names, and what can't take its place.
fn authority() -> Authority {
    let key = "ec -pkeyopt ec_paramgen_curve:P-256";
    let authority = Authority::new()
        .signs("shop", &["shop.example"])
        .signs("other", &["other.example"])
        .signs_with("gone", &["gone.example"], key, -1);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let tickets = format!("{}\n", "A".repeat(64));
    for (name, content) in [
        ("tickets", tickets.as_str()),
        ("secret", "a secret of many letters"),
        ("encrypted.key", encrypted),
        ("empty.pem", ""),
    ] {
        std::fs::write(authority.path(name), content).expect("write");
    }
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(authority.path("tickets"), mode).expect("a mode");
    authority
}

/// What a config is where it names these files; the addresses are nobody's.
fn filled(authority: &Authority, config: &str) -> String {
    let mut config = config.replace("@files/", &authority.path(""));
    for name in ["@web", "@app", "@admin"] {
        config = config.replace(name, &free_address().to_string());
    }
    config
}

/// `weir WORDS` of a config in a file `named.toml`.
fn weir(authority: &Authority, words: &[&str], config: &str) -> Finished {
    let file = authority.path("named.toml");
    std::fs::write(&file, filled(authority, config)).expect("write");
    let words: Vec<&str> = words.iter().copied().chain([file.as_str()]).collect();
    run_tool(&weir_binary(), &words, b"", PATIENCE)
}

#[test]
fn a_file_that_a_start_would_refuse_is_refused_by_check_too_with_its_line() {
    let authority = authority();
    let checked = weir(&authority, &["check"], CONFIG);
    assert!(checked.code == 0 && checked.stdout.contains("good, 1 listener"), "{checked:?}");
    assert_eq!(checked.stderr, "");
    for (from, to, line, said) in [
        ("/shop.pem", "/missing.pem", 7, "can't be read: No such file"),
        ("/shop.key", "/other.key", 7, "is not the key of"),
        ("/shop.key", "/encrypted.key", 7, "the private key is encrypted"),
        ("/shop.pem", "/other.key", 7, "holds no certificate"),
        ("/other.key", "/shop.pem", 8, "holds no private key"),
        ("/other.pem", "/empty.pem", 8, "holds no certificate"),
        ("/shop.pem", "/", 7, "it is no regular file"),
        ("client_ca = \"@files/ca.pem\"", "client_ca = \"@files/none\"", 10, "can't be read"),
        ("/tickets", "/none", 11, "can't be read"),
        ("/tickets", "/shop.pem", 11, "may be read by others"),
        ("/secret", "/none", 15, "can't be read"),
        ("/secret", "/empty.pem", 15, "holds a secret of 0 bytes"),
        ("\nca = \"@files/ca.pem\"", "\nca = \"@files/none\"", 17, "can't be read"),
        ("backends = [\"@app\"]", "backends = [\"@app\", \"a.123:80\"]", 16, "can't be asked for"),
        (
            "[admin]",
            "[admin]\ntls = { cert = \"@files/shop.pem\", key = \"@files/other.key\" }",
            20,
            "is not the key of",
        ),
        (
            "[admin]",
            "[admin]\ntls = { cert = \"@files/shop.pem\", key = \"@files/shop.key\", client_ca = \"@files/empty.pem\" }",
            20,
            "holds no certificate",
        ),
    ] {
        let config = CONFIG.replacen(from, to, 1);
        for words in [&["check"][..], &["check", "--online"], &["run"]] {
            let finished = weir(&authority, words, &config);
            let place = format!("named.toml:{line}:");
            assert_eq!(finished.code, 2, "{words:?} {to}: {finished:?}");
            for text in [place.as_str(), said, "the config has 1 mistake"] {
                assert!(finished.stderr.contains(text), "{words:?} {to}, no word of {text:?}: {finished:?}");
            }
            assert!(!finished.stdout.contains("good"), "{words:?} {to}: {finished:?}");
        }
    }
}

#[test]
fn all_files_that_cannot_be_used_are_told_at_once() {
    let authority = authority();
    let mut config = CONFIG.to_owned();
    for (from, to) in [
        ("/shop.pem", "/none.pem"),
        ("/shop.key", "/none.key"),
        ("/other.key", "/gone.key"),
        ("client_ca = \"@files/ca.pem\"", "client_ca = \"@files/none-of-clients\""),
        ("/tickets", "/none-of-tickets"),
        ("/secret", "/none-of-cookies"),
        ("\nca = \"@files/ca.pem\"", "\nca = \"@files/none-of-backends\""),
    ] {
        config = config.replacen(from, to, 1);
    }
    let all = |said: &str| {
        for place in [":7:", ":8:", ":10:", ":11:", ":15:", ":17:"] {
            assert!(said.contains(&format!(".toml{place}")), "no word of {place}: {said}");
        }
        assert!(said.contains("none.pem`") && said.contains("none.key`"), "{said}");
    };
    for words in [&["check"][..], &["run"]] {
        let finished = weir(&authority, words, &config);
        assert_eq!(finished.code, 2, "{finished:?}");
        all(&finished.stderr);
        assert!(finished.stderr.contains("the config has 7 mistakes"), "{finished:?}");
    }
    let backend = mirror();
    let mut running = authority.setup(&shop(1)).with("app", backend.address()).start();
    running.rewrites(&config.replace("@files/", &authority.path("")));
    let reloaded = running.command(&["reload"]);
    assert_eq!(reloaded.code, 2, "{reloaded:?}");
    all(&reloaded.stderr);
}

#[test]
fn a_certificate_that_is_not_there_yet_because_it_is_ordered_is_no_mistake() {
    let authority = authority();
    let acme = "[listener.web.tls.acme]\ndirectory = \"https://127.0.0.1:1/d\"\ndomains = \"a.example\"\nstore = \"@files/store\"\n";
    let config = CONFIG.replace("[pool.app]\n", &format!("{acme}[pool.app]\n"));
    let checked = weir(&authority, &["check"], &config);
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""), "{checked:?}");
    assert!(!std::path::Path::new(&authority.path("store")).exists(), "check makes nothing");
    let of_directory = format!("{acme}ca = \"@files/none\"\n");
    let checked =
        weir(&authority, &["check"], &CONFIG.replace("[pool.app]\n", &format!("{of_directory}[pool.app]\n")));
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(
        checked.stderr.contains("named.toml:16:6: warning: ") && checked.stderr.contains("can be ordered"),
        "{checked:?}"
    );
}

/// An expired certificate in the place of `other`.
fn expired(config: &str) -> String {
    config.replace("/other.", "/gone.")
}

#[test]
fn a_certificate_that_has_expired_is_served_and_told_at_check_start_and_reload() {
    let authority = authority();
    let checked = weir(&authority, &["check"], &expired(CONFIG));
    assert!(checked.code == 0 && checked.stdout.contains("good"), "{checked:?}");
    for text in ["named.toml:8:", "warning: ", "gone.pem` expired at 20", "expected a newer one"] {
        assert!(checked.stderr.contains(text), "no word of {text:?}: {checked:?}");
    }
    let backend = mirror();
    let config = CONFIG.replace("@files/", &authority.path("")).replace("client_ca", "#").replace(
        "[pool.app.tls]",
        "[pool.unused]\nbackends = [\"127.0.0.1:1\"]\nhealth = \"off\"\n[pool.unused.tls]",
    );
    let told =
        |weir: &Weir| weir.stderr().lines().filter(|line| line.contains("gone.pem` expired at 20")).count();
    let mut running = authority.setup(&config).with("app", backend.address()).start();
    assert_eq!(told(&running), 0, "{}", running.story());
    running.rewrites(&expired(&config));
    let reloaded = running.command(&["reload"]);
    assert!(reloaded.code == 0 && reloaded.stdout.contains("applied"), "{reloaded:?}");
    assert!(reloaded.stderr.contains("gone.pem` expired at 20"), "{reloaded:?}");
    let last = running.admin().reads("/v1/status").json()["last_reload"]["warnings"].to_string();
    assert!(last.contains("expired at 20"), "{last}");
    assert_eq!(told(&running), 1, "{}", running.story());
    let started = authority.setup(&expired(&config)).with("app", backend.address()).start();
    assert_eq!(told(&started), 1, "{}", started.story());
}

#[test]
fn check_online_says_good_last_and_tells_what_is_refused_from_what_is_not_reached() {
    let (authority, backend) = (authority(), mirror());
    let reached = CONFIG.replace("@app", &backend.address().to_string());
    let checked = weir(&authority, &["check", "--online"], &reached);
    let last = checked.stdout.lines().last().unwrap_or_default();
    assert!(checked.code == 0 && last.contains("named.toml: good, "), "{checked:?}");
    assert!(checked.stdout.contains("shop.pem: shop.example; good until"), "{checked:?}");
    let checked = weir(&authority, &["check", "--online"], CONFIG);
    assert!(checked.code == 1 && checked.stdout.contains(": FAILED, "), "{checked:?}");
    assert!(!checked.stdout.contains("good, "), "{checked:?}");
    assert!(checked.stderr.contains("would be taken") && checked.stderr.contains("1 failure"), "{checked:?}");
    let checked = weir(&authority, &["check", "--online"], &expired(&reached));
    assert!(checked.code == 1 && checked.stdout.contains("gone.pem: FAILED, "), "{checked:?}");
}
