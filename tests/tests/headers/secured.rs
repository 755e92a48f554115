//! Variables of TLS, and of clients' certificates.

use weir_tests::dialogue::Authority;

use crate::tls::{curl, mirror};

const CONFIG: &str = r#"
[listener.strict]
bind = "@strict"
http = ["h1", "h2"]
pool = "app"
set_request_header = { x-subject = "$client_cert_subject", x-name = "$server_name", x-tls = "$tls_version", x-scheme = "$scheme" }
set_response_header = { x-user = "$client_cert_subject" }
[listener.strict.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }]
client_ca = "@dir/ca.pem"
client_auth = "optional"
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn authority() -> Authority {
    Authority::new().signs("shop", &["shop.example"]).signs("alice", &["alice"])
}

#[test]
fn a_backend_is_told_whose_certificate_was_proven_and_by_which_tls() {
    let (authority, backend) = (authority(), mirror());
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let (ca, cert, key) =
        (authority.path("ca.pem"), authority.path("alice.pem"), authority.path("alice.key"));
    let forged = ["-H", "x-subject: CN=root", "--cacert", &ca];
    for (version, word) in [("1.2", "TLSv1.2"), ("1.3", "TLSv1.3")] {
        let tls = [&forged[..], &["--cert", &cert, "--key", &key, "--tls-max", version, "-i"]].concat();
        let shown = curl(&weir, "strict", "shop.example", &tls);
        let text = shown.succeeded();
        for line in ["x-subject: CN=alice", "x-name: shop.example", "x-scheme: https", "x-user: CN=alice"] {
            assert!(text.contains(&format!("{line}\r\n")), "{line}: {text}");
        }
        assert!(text.contains(&format!("x-tls: {word}\r\n")), "{text}");
    }
    let without = curl(&weir, "strict", "shop.example", &forged);
    assert!(!without.succeeded().contains("x-subject"), "{without:?}");
}

#[test]
fn a27_a_subject_is_one_value_whatever_its_authority_signed() {
    let (authority, backend) = (authority(), mirror());
    let subject = r"/O=a, CN=root\+x/CN=bob; Jörg";
    authority.openssl(&format!(
        "req -utf8 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '{subject}' -keyout bob.key -out bob.csr"
    ));
    authority.openssl("x509 -req -in bob.csr -out bob.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile extensions");
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let (ca, cert, key) = (authority.path("ca.pem"), authority.path("bob.pem"), authority.path("bob.key"));
    let shown = curl(&weir, "strict", "shop.example", &["--cacert", &ca, "--cert", &cert, "--key", &key]);
    let text = shown.succeeded();
    assert!(text.contains("x-subject: CN=bob\\; J\\C3\\B6rg,O=a\\, CN\\=root\\+x\r\n"), "{text}");
}
