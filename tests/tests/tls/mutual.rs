//! Client certificates (threats B14, D6).

use super::{Authority, LAST, curl, mirror, s_client};

const CONFIG: &str = r#"
[listener.open]
bind = "@open"
http = ["h1"]
pool = "app"
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[listener.strict]
bind = "@strict"
http = ["h1"]
pool = "app"
[listener.strict.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }, { cert = "@dir/other.pem", key = "@dir/other.key" }]
client_ca = "@dir/ca.pem"
[listener.asks]
bind = "@asks"
http = ["h1"]
pool = "app"
[listener.asks.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }]
client_ca = "@dir/ca.pem"
client_auth = "optional"
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn authority() -> Authority {
    Authority::new()
        .signs("shop", &["shop.example"])
        .signs("other", &["other.example"])
        .signs("client", &["client"])
}

#[test]
fn without_a_good_certificate_there_is_no_request_where_one_is_required() {
    let (authority, stranger, backend) = (authority(), authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let ca = authority.path("ca.pem");
    assert_ne!(curl(&weir, "strict", "shop.example", &["--cacert", &ca]).code, 0);
    let (cert, key) = (stranger.path("client.pem"), stranger.path("client.key"));
    let refused = curl(&weir, "strict", "shop.example", &["--cacert", &ca, "--cert", &cert, "--key", &key]);
    assert_ne!(refused.code, 0, "signed by an authority that nobody named: {refused:?}");
    assert!(backend.requests().is_empty());
    weir.reaches(
        "weir_tls_handshakes_total",
        &[("listener", "strict"), ("result", "client_certificate")],
        2.0,
    );
}

/// RFC 9440. What a client says of itself in that field is worth nothing.
#[test]
fn backends_see_the_certificate_that_was_proven_and_no_other() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let ca = authority.path("ca.pem");
    let (cert, key) = (authority.path("client.pem"), authority.path("client.key"));
    let forged = ["--cacert", &ca, "-H", "client-cert: :forged:", "-H", "client-cert-chain: :forged:"];
    let pem = authority.text("client.pem");
    let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    for listener in ["strict", "asks"] {
        let shown =
            curl(&weir, listener, "shop.example", &[&forged[..], &["--cert", &cert, "--key", &key]].concat());
        assert!(shown.succeeded().contains(&format!("client-cert: :{base64}:\r\n")), "{shown:?}");
        assert!(!shown.stdout.contains("forged"), "{shown:?}");
    }
    for listener in ["open", "asks"] {
        let shown = curl(&weir, listener, "shop.example", &forged);
        assert!(!shown.succeeded().to_lowercase().contains("client-cert"), "{shown:?}");
    }
}

/// Threat D6 (CVE-2025-23419): a session that began where nobody was asked is worth nothing where a
/// certificate is required.
#[test]
fn d6_a_ticket_of_another_listener_does_not_stand_for_a_certificate() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let session = weir.dir().join("session").display().to_string();
    let name = "-servername shop.example";
    for version in ["-tls1_3", "-tls1_2"] {
        s_client(weir.address("open"), &format!("{name} {version} -sess_out {session}"), LAST).succeeded();
        let again = s_client(weir.address("open"), &format!("{name} {version} -sess_in {session}"), LAST);
        assert!(again.stdout.contains("Reused, TLSv1"), "the same listener takes it: {again:?}");
        s_client(weir.address("open"), &format!("{name} {version} -sess_out {session}"), LAST).succeeded();
        let before = backend.served();
        let strict = s_client(weir.address("strict"), &format!("{name} {version} -sess_in {session}"), LAST);
        assert!(!strict.stdout.contains("HTTP/1.1 200"), "{strict:?}");
        assert_eq!(backend.served(), before);
    }
}

/// Threat B14 (RFC 9110 section 15.5.20).
#[test]
fn b14_a_host_of_another_certificate_is_misdirected_where_clients_have_certificates() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let ca = authority.path("ca.pem");
    let (cert, key) = (authority.path("client.pem"), authority.path("client.key"));
    let own = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let other = [&own[..], &["-H", "host: other.example"]].concat();
    assert!(curl(&weir, "strict", "shop.example", &own).succeeded().ends_with("status 200"));
    assert!(curl(&weir, "strict", "shop.example", &other).succeeded().ends_with("status 421"));
    assert!(
        curl(&weir, "open", "shop.example", &other).succeeded().ends_with("status 200"),
        "nobody is asked there"
    );
}
