//! Certificates that their authority has revoked (threat D6): of clients, and of backends.

use super::{Authority, LAST, curl, mirror, s_client};

const CONFIG: &str = r#"
[listener.strict]
bind = "@strict"
http = ["h1"]
pool = "app"
[listener.strict.tls]
certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }]
client_ca = "@dir/ca.pem"
crl = "@dir/crl.pem"
[pool.app]
backends = ["@app"]
health = "off"
"#;

/// An authority with a list of those of its certificates that it has revoked, in `crl.pem`.
fn authority(names: &[&str]) -> Authority {
    let authority = names.iter().fold(Authority::new(), |authority, name| {
        let host = format!("{name}.example");
        authority.signs(name, &[&host])
    });
    let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\ncrlnumber=number\ndefault_md=sha256\n";
    std::fs::write(authority.path("ca.conf"), config).expect("write");
    std::fs::write(authority.path("index.txt"), "").expect("write");
    std::fs::write(authority.path("number"), "01").expect("write");
    authority
}

/// Revokes these and writes the list anew.
fn revoke(authority: &Authority, names: &[&str], length: &str) {
    let ca = "ca -config ca.conf -keyfile ca.key -cert ca.pem";
    for name in names {
        authority.openssl(&format!("{ca} -revoke {name}.pem"));
    }
    authority.openssl(&format!("{ca} -gencrl {length} -out crl.pem"));
}

#[test]
fn a_client_whose_certificate_is_on_the_list_is_refused_from_the_reload_on_even_with_a_ticket() {
    let authority = authority(&["shop", "good", "bad"]);
    revoke(&authority, &["bad"], "-crldays 30");
    let backend = mirror();
    let mut weir = authority.setup(CONFIG).with("app", backend.address()).start();
    let shows = |weir: &_, name: &str| {
        let [ca, cert, key] =
            ["ca.pem", &format!("{name}.pem"), &format!("{name}.key")].map(|it| authority.path(it));
        curl(weir, "strict", "shop.example", &["--cacert", &ca, "--cert", &cert, "--key", &key]).code == 0
    };
    assert!(shows(&weir, "good") && !shows(&weir, "bad"));
    let refused = [("listener", "strict"), ("result", "client_certificate")];
    weir.reaches("weir_tls_handshakes_total", &refused, 1.0);
    let session = authority.path("session");
    let words = format!(
        "-servername shop.example -cert {} -key {}",
        authority.path("good.pem"),
        authority.path("good.key")
    );
    let asks = |weir: &weir_tests::dialogue::Weir, how: &str| {
        s_client(weir.address("strict"), &format!("{words} {how} {session}"), LAST).stdout
    };
    assert!(asks(&weir, "-sess_out").contains("New, TLS"));
    let resumed = asks(&weir, "-sess_in");
    assert!(resumed.contains("Reused, TLS") && resumed.contains("HTTP/1.1 200"), "{resumed}");

    revoke(&authority, &["good"], "-crldays 30");
    std::fs::write(weir.dir().join("crl.pem"), authority.text("crl.pem")).expect("write");
    weir.reloads(CONFIG);
    assert!(!shows(&weir, "good"));
    let refused = asks(&weir, "-sess_in");
    assert!(!refused.contains("HTTP/1.1 200"), "{refused}");
}

#[test]
fn a_list_that_is_out_of_date_or_speaks_of_others_refuses_and_one_that_is_none_is_told_at_load() {
    let (own, other, backend) = (authority(&["shop", "good"]), authority(&[]), mirror());
    for authority in [&own, &other] {
        revoke(authority, &[], "-crldays 30");
    }
    let start = |list: &str| {
        let setup = own.setup(CONFIG).with("app", backend.address());
        setup.with_file("crl.pem", list).start()
    };
    let shows = |weir: &_| {
        let [ca, cert, key] = ["ca.pem", "good.pem", "good.key"].map(|it| own.path(it));
        curl(weir, "strict", "shop.example", &["--cacert", &ca, "--cert", &cert, "--key", &key]).code == 0
    };
    assert!(shows(&start(&own.text("crl.pem"))));
    assert!(!shows(&start(&other.text("crl.pem"))), "nothing is known of this authority's");
    revoke(&own, &[], "-crl_lastupdate 20240101000000Z -crl_nextupdate 20240201000000Z");
    let mut weir = start(&own.text("crl.pem"));
    assert!(!shows(&weir), "the list is of years ago");
    std::fs::write(weir.dir().join("crl.pem"), own.text("ca.pem")).expect("write");
    weir.rewrites(CONFIG);
    let said = weir.command(&["reload"]);
    assert!(said.code != 0 && said.stderr.contains("crl.pem: holds no list"), "{said:?}");
}

#[test]
fn a_backend_whose_certificate_is_on_the_list_is_not_believed() {
    let authority = authority(&["good", "bad"]);
    revoke(&authority, &["bad"], "-crldays 30");
    let origin = |name: &str| {
        format!(
            "[listener.{name}]\nbind = \"@{name}\"\nhttp = [\"h1\"]\ntls = {{ certificates = [{{ cert = \"@dir/{name}.pem\", key = \"@dir/{name}.key\" }}] }}\n\
             [[listener.{name}.route]]\npath = \"/*\"\nrespond = {{ status = 200, body = \"{name}\" }}\n"
        )
    };
    let weir = authority.setup(&[origin("good"), origin("bad")].concat()).start();
    let front = r#"
        [listener.front]
        bind = "@front"
        http = ["h1"]
        pool = "app"
        [pool.app]
        backends = ["@origin"]
        health = "off"
        tls = { ca = "@dir/ca.pem", crl = "@dir/crl.pem", server_name = "NAME.example" }
    "#;
    for (name, status) in [("good", 200), ("bad", 502)] {
        let front = authority.setup(&front.replace("NAME", name)).with("origin", weir.address(name)).start();
        let mut client = front.client("front");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_response().status, status, "{name}");
    }
}
