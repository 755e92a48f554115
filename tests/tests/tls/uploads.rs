//! Certificates that the admin API puts into a listener's folder.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use weir_tests::dialogue::{Admin, Signal, Weir, free_address, until};

use super::{Authority, curl, mirror, s_client};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1"]
pool = "app"
tls = { certificate_folder = "@dir/certificates" }
[listener.other]
bind = "@other"
http = ["h1"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }], certificate_folder = "@dir/certificates" }
[listener.alone]
bind = "@alone"
http = ["h1"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn puts(admin: &Admin, path: &str, certificate: &str, key: &str) -> (u16, String) {
    let body = json!({ "certificate": certificate, "key": key }).to_string();
    let answer = admin.calls("PUT", &format!("/v1/listeners/{path}"), &[], &body);
    (answer.status(), answer.response.text())
}

fn answers(weir: &Weir, authority: &Authority, listener: &str, host: &str) -> bool {
    let said = curl(weir, listener, host, &["--cacert", &authority.path("ca.pem")]);
    said.stdout.ends_with("status 200")
}

fn authority() -> Authority {
    Authority::new()
        .signs("shop", &["shop.example"])
        .signs("one", &["one.example"])
        .signs("two", &["two.example"])
}

#[test]
fn a_certificate_is_served_as_soon_as_it_is_put_and_outlives_reload_upgrade_and_restart() {
    let (authority, backend) = (authority(), mirror());
    let mut weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let refused = s_client(weir.address("web"), "-servername one.example", "");
    assert!(refused.stderr.contains("alert access denied"), "{refused:?}");
    let chain = authority.text("one.pem") + &authority.text("ca.pem");
    let (status, said) = puts(&weir.admin(), "web/certificates/one", &chain, &authority.text("one.key"));
    assert!(status == 200 && said.contains("one.example") && !said.contains("PRIVATE"), "{said}");
    // All listeners of the folder have it, and one without does not.
    for listener in ["web", "other"] {
        assert!(answers(&weir, &authority, listener, "one.example"), "{listener}");
    }
    assert!(!answers(&weir, &authority, "alone", "one.example"));
    let folder = weir.dir().join("certificates");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("one.pem"))), (0o700, 0o600));

    weir.reloads(&CONFIG.replacen("http = [\"h1\"]", "http = [\"h1\"]\nmax_connections = 5000", 1));
    assert!(answers(&weir, &authority, "web", "one.example"));
    let (status, said) =
        puts(&weir.admin(), "web/certificates/two", &authority.text("two.pem"), &authority.text("two.key"));
    assert_eq!(status, 200, "{said}");
    weir.signals(Signal::TERM);
    weir.starts_again();
    let have_both = |weir: &Weir| {
        ["one.example", "two.example"].map(|host| answers(weir, &authority, "web", host)) == [true; 2]
    };
    assert!(have_both(&weir));
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the new process", || {
        let answer = weir.admin().tries_to_read("/v1/status")?;
        (answer.json()["pid"].as_u64()? != u64::from(old)).then_some(())
    });
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
    assert!(have_both(&weir));

    let listed = weir.admin().reads("/v1/listeners/web/certificates").json();
    let names: Vec<_> =
        listed["certificates"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["one", "two"], "{listed}");
    assert_eq!(weir.admin().calls("DELETE", "/v1/listeners/web/certificates/one", &[], "").status(), 200);
    assert!(
        !answers(&weir, &authority, "web", "one.example") && answers(&weir, &authority, "web", "two.example")
    );
    assert_eq!(weir.admin().calls("DELETE", "/v1/listeners/web/certificates/one", &[], "").status(), 404);
    assert!(!weir.story().contains("PRIVATE KEY"));
}

#[test]
fn what_cannot_be_served_is_refused_and_changes_nothing() {
    let (authority, backend) = (
        authority().signs_with("late", &["late.example"], "ec -pkeyopt ec_paramgen_curve:P-256", -1),
        mirror(),
    );
    let stranger = Authority::new();
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let text = |file: &str| authority.text(file);
    let mixed = text("one.pem") + &stranger.text("ca.pem");
    for (path, certificate, key, status, expected) in [
        ("web/certificates/x", text("one.pem"), text("two.key"), 422, "is not the key of"),
        ("web/certificates/x", mixed, text("one.key"), 422, "the chain does not hold"),
        ("web/certificates/x", text("late.pem"), text("late.key"), 422, "it has expired"),
        ("web/certificates/x", "no PEM".to_owned(), text("one.key"), 422, "holds none"),
        ("web/certificates/%2e%2e%2fone", text("one.pem"), text("one.key"), 422, "can't have that name"),
        ("web/certificates/.one", text("one.pem"), text("one.key"), 422, "can't have that name"),
        ("alone/certificates/x", text("one.pem"), text("one.key"), 409, "certificate_folder"),
        ("nobody/certificates/x", text("one.pem"), text("one.key"), 404, "no listener with TLS"),
    ] {
        let (found, said) = puts(&weir.admin(), path, &certificate, &key);
        assert!(found == status && said.contains(expected), "{path}: {found} {said}");
        assert!(!said.contains(key.lines().nth(1).expect("a line")), "{said}");
    }
    assert!(!weir.dir().join("certificates").exists());
    assert!(!weir.dir().join("one.pem.pem").exists());
}

#[test]
fn a_key_is_not_taken_in_the_clear_from_another_machine_and_not_without_the_token() {
    const TOKEN: &str = "a-token-that-nobody-guesses";
    let (authority, backend) = (authority(), mirror());
    let address = free_address();
    let config = format!("[admin]\nbind = \"@everywhere\"\ntoken_file = \"@dir/token\"\n{CONFIG}");
    let weir = authority
        .setup(&config)
        .with("app", backend.address())
        .with_file("token", TOKEN)
        .with("admin", address)
        .with("everywhere", format!("0.0.0.0:{}", address.port()))
        .start();
    let body =
        json!({ "certificate": authority.text("one.pem"), "key": authority.text("one.key") }).to_string();
    let path = "/v1/listeners/web/certificates/one";
    assert_eq!(weir.admin().calls("PUT", path, &[], &body).status(), 401);
    let bearer = format!("Bearer {TOKEN}");
    let answer = weir.admin().calls("PUT", path, &[("authorization", &bearer)], &body);
    assert!(answer.status() == 403 && answer.response.text().contains("over TLS"), "{:?}", answer.response);
    assert!(!weir.dir().join("certificates").exists());
}

/// The folder is taken up as a whole: one broken file in it, half written say, refuses the change.
#[test]
fn a_change_that_cannot_be_taken_up_leaves_the_folder_as_it_was() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let put = |name: &str, of: &str| {
        let (certificate, key) = (authority.text(&format!("{of}.pem")), authority.text(&format!("{of}.key")));
        puts(&weir.admin(), &format!("web/certificates/{name}"), &certificate, &key).0
    };
    assert_eq!(put("shop", "one"), 200);
    let folder = weir.dir().join("certificates");
    let held = || std::fs::read(folder.join("shop.pem")).expect("the file");
    let before = held();
    std::fs::write(folder.join("other.pem"), "half").expect("written");
    assert_eq!((put("shop", "two"), put("new", "two")), (500, 500));
    assert!(held() == before && !folder.join("new.pem").exists());
    let removed = weir.admin().calls("DELETE", "/v1/listeners/web/certificates/shop", &[], "").status();
    assert_eq!(removed, 500);
    assert!(held() == before);
    std::fs::remove_file(folder.join("other.pem")).expect("removed");
    assert_eq!(put("shop", "two"), 200);
    assert!(held() != before);
}

/// What it had taken until then stayed there: part of a key, and room that others need.
#[test]
fn a_certificate_that_a_full_disk_does_not_take_leaves_nothing_behind() {
    const SMALL: &str = "mkdir certificates && mount -t tmpfs -o size=16k none certificates && exec \"$@\"";
    let (authority, backend) = (authority(), mirror());
    let setup = authority.setup(CONFIG).with("app", backend.address());
    let weir = setup.under(&["unshare", "-m", "sh", "-c", SMALL, "sh"]).start();
    let put = |of: &str| {
        let (certificate, key) = (authority.text(&format!("{of}.pem")), authority.text(&format!("{of}.key")));
        puts(&weir.admin(), "web/certificates/shop", &certificate, &key)
    };
    assert_eq!(put("one").0, 200);
    // The disk is mounted for Weir alone.
    let folder = format!("/proc/{}/root{}/certificates", weir.pid(), weir.dir().display());
    let of_others = format!("{folder}/others");
    std::fs::write(&of_others, vec![b'x'; 1 << 20]).expect_err("there is less room");
    let (status, said) = put("two");
    assert!(status == 500 && said.contains("No space left on device"), "{said}");
    let found = std::fs::read_dir(&folder).expect("the folder").flatten();
    let mut names: Vec<String> =
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    assert_eq!(names, ["others", "shop.pem"]);
    assert!(answers(&weir, &authority, "web", "one.example"));
    std::fs::remove_file(&of_others).expect("removed");
    assert_eq!(put("two").0, 200);
    assert!(answers(&weir, &authority, "web", "two.example"));
}

/// Which certificate is for a name was once looked for among all names, for each of them.
#[test]
fn a_certificate_is_put_beside_eighty_thousand_other_names() {
    let names = |number: usize| (0..2000).map(move |name| format!("n{name}.c{number}.example"));
    let authority = (0..40).fold(authority(), |authority, number| {
        let names: Vec<String> = names(number).collect();
        authority.signs(&format!("many-{number}"), &names.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let backend = mirror();
    let mut weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let folder = weir.dir().join("certificates");
    std::fs::create_dir(&folder).expect("make a directory");
    for number in 0..40 {
        let both = ["key", "pem"].map(|end| authority.text(&format!("many-{number}.{end}"))).concat();
        std::fs::write(folder.join(format!("many-{number}.pem")), both).expect("written");
    }
    let put = |name: &str, of: &str| {
        let (certificate, key) = (authority.text(&format!("{of}.pem")), authority.text(&format!("{of}.key")));
        puts(&weir.admin(), &format!("web/certificates/{name}"), &certificate, &key).0
    };
    // What came by other ways is taken up with the first, and what is there is not read again for the next.
    assert_eq!(put("new", "one"), 200);
    std::fs::write(folder.join("many-7.pem"), "half").expect("written");
    assert_eq!((put("new", "two"), put("one", "one")), (200, 200));
    for host in ["one.example", "two.example", "n0.c0.example", "n1999.c39.example", "n1000.c7.example"] {
        assert!(answers(&weir, &authority, "web", host), "{host}");
    }
    let both = ["key", "pem"].map(|end| authority.text(&format!("many-7.{end}"))).concat();
    std::fs::write(folder.join("many-7.pem"), both).expect("written");
    weir.reloads(&CONFIG.replacen("http = [\"h1\"]", "http = [\"h1\"]\nmax_connections = 5000", 1));
    assert!(answers(&weir, &authority, "other", "n1999.c39.example"));
}
