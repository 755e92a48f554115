//! Where people see which certificates there are, and until when they are good.

use weir_tests::dialogue::{PATIENCE, Weir, run_tool, weir_binary};

use super::{Authority, mirror};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[listener.web.tls]
certificates = [
    { cert = "@dir/long.pem", key = "@dir/long.key" },
    { cert = "@dir/short.pem", key = "@dir/short.key" },
]
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn authority() -> Authority {
    let key = "ec -pkeyopt ec_paramgen_curve:P-256";
    Authority::new()
        .signs_with("long", &["shop.example", "*.shop.example"], key, 90)
        .signs_with("short", &["soon.example"], key, 5)
        .signs_with("gone", &["gone.example"], key, -1)
}

#[test]
fn status_api_and_page_show_names_and_expiry() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let certificates = weir.admin().reads("/v1/status").json()["listeners"][0]["certificates"].clone();
    assert_eq!(certificates[0]["names"], serde_json::json!(["shop.example", "*.shop.example"]));
    assert!(certificates[0]["file"].as_str().is_some_and(|file| file.ends_with("long.pem")));
    for (number, days) in [(0, 90.0), (1, 5.0)] {
        let left = certificates[number]["expires_in_seconds"].as_f64().expect("a number") / 86_400.0;
        assert!((days - 0.1..=days).contains(&left), "{left} days left of {days}");
        assert!(certificates[number]["not_after"].as_str().is_some_and(|time| time.starts_with("20")));
        assert!(certificates[number]["acme"].is_null());
    }
    let page = weir.admin().reads("/").response.text();
    assert!(page.contains("<h2>Certificates</h2>") && page.contains("*.shop.example"), "{page}");
    assert!(page.contains(">good</span>") && page.contains(">expires soon</span>"), "{page}");
    let text = weir.command(&["status"]);
    let line = text.succeeded().lines().find(|line| line.contains("soon.example")).expect("a line");
    assert!(line.contains("short.pem") && line.contains("4d23h"), "{line}");
}

fn checked(weir: &Weir, config: &str) -> (i32, String) {
    let file = weir.dir().join("other.toml");
    std::fs::write(&file, config.replace("@dir", &weir.dir().display().to_string())).expect("write");
    let finished =
        run_tool(&weir_binary(), &["check", "--online", &file.display().to_string()], b"", PATIENCE);
    (finished.code, format!("{}{}", finished.stdout, finished.stderr))
}

#[test]
fn check_online_reads_certificates_as_a_reload_would_and_names_what_is_wrong() {
    let (authority, backend) = (authority(), mirror());
    let weir: Weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let (web, app) = (weir.address("web").to_string(), backend.address().to_string());
    let config = CONFIG.replace("@web", &web).replace("@app", &app);
    let (code, said) = checked(&weir, &config);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("long.pem: shop.example, *.shop.example; good until 20"), "{said}");
    assert!(said.contains("(89 days)") && said.contains("(4 days)"), "{said}");
    for (from, to, wrong, expected) in [
        ("short.key", "long.key", "is not the key of ", 2),
        ("short", "gone", "gone.pem: FAILED, gone.example; expired 20", 1),
        ("short.pem", "missing.pem", "missing.pem` can't be used", 2),
        (
            "[pool.app]",
            "[listener.web.tls.acme]\ndirectory = \"https://127.0.0.1:1/d\"\ndomains = \"a.example\"\nstore = \"@dir/s\"\n[pool.app]",
            "not there yet",
            0,
        ),
        (
            "[pool.app]",
            "[pool.app]\ntls = { ca = \"@dir/none.pem\", server_name = \"a\" }",
            "none.pem` can't be used",
            2,
        ),
    ] {
        let (code, said) = checked(&weir, &config.replace(from, to));
        assert!(said.contains(wrong), "{to}: {said}");
        assert_eq!(code, expected, "{to}: {said}");
        let are_others_read = said.contains("long.pem: shop.example");
        assert_eq!(are_others_read, expected < 2, "{to}: {said}");
    }
}
