//! What the config says of versions, suites and staples, as `openssl s_client` and `curl` see it.

use weir_tests::dialogue::{Backend, Weir, until};

use super::{Authority, LAST, curl, mirror, s_client};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1"]
pool = "app"
[listener.web.tls]
certificates = [{ cert = "@dir/own.pem", key = "@dir/own.key" }]
MORE
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn running(authority: &Authority, backend: &Backend, more: &str) -> Weir {
    authority.setup(&CONFIG.replace("MORE", more)).with("app", backend.address()).start()
}

/// Which of these words for `s_client` come to an answer.
fn served<'w>(weir: &Weir, words: &[&'w str]) -> Vec<&'w str> {
    let is_served =
        |words: &&&str| s_client(weir.address("web"), words, LAST).stdout.contains("HTTP/1.1 200");
    words.iter().filter(is_served).copied().collect()
}

#[test]
fn the_oldest_version_that_is_spoken_is_the_one_that_the_config_says() {
    let (authority, backend) = (Authority::new().signs("own", &["shop.example"]), mirror());
    let words = ["-tls1_1 -cipher ALL:@SECLEVEL=0", "-tls1_2", "-tls1_3"];
    assert_eq!(served(&running(&authority, &backend, ""), &words), ["-tls1_2", "-tls1_3"]);
    let weir = running(&authority, &backend, "min_version = \"1.3\"");
    assert_eq!(served(&weir, &words), ["-tls1_3"]);
    let refused = s_client(weir.address("web"), "-tls1_2", LAST);
    assert!(refused.stderr.contains("alert protocol version"), "{refused:?}");
    let ca = authority.path("ca.pem");
    let old = curl(&weir, "web", "shop.example", &["--cacert", &ca, "--tls-max", "1.2"]);
    assert_eq!(old.code, 35, "{old:?}");
    assert!(curl(&weir, "web", "shop.example", &["--cacert", &ca]).succeeded().ends_with("status 200"));
    weir.reaches("weir_tls_handshakes_total", &[("listener", "web"), ("result", "no_common")], 2.0);
}

#[test]
fn a_policy_of_ciphers_takes_what_it_says_and_nothing_else() {
    let (authority, backend) = (Authority::new().signs("own", &["shop.example"]), mirror());
    let words = [
        "-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256",
        "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384",
        "-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256",
        "-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256",
        "-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384",
        "-tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305",
        "-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA",
        "-groups X25519",
        "-groups P-256",
    ];
    let without = |left_out: &[usize]| -> Vec<&str> {
        let kept = words.iter().enumerate().filter(|(number, _)| !left_out.contains(number));
        kept.map(|(_, words)| *words).collect()
    };
    // CBC is in none of them.
    assert_eq!(served(&running(&authority, &backend, ""), &words), without(&[6]));
    let weir = running(&authority, &backend, "ciphers = \"strong\"");
    assert_eq!(served(&weir, &words), without(&[0, 3, 6]));
    let weir = running(&authority, &backend, "ciphers = \"nist\"");
    assert_eq!(served(&weir, &words), without(&[2, 5, 6, 7]));
}

/// `own.ocsp` of a certificate: what openssl says of it by an index with this line, for an hour.
fn answers(authority: &Authority, index: &str) {
    let serial = "serial=$(openssl x509 -in own.pem -noout -serial | cut -d= -f2)";
    authority.openssl(&format!("version > version && {serial}; printf '{index}' $serial > index"));
    authority.openssl("ocsp -issuer ca.pem -cert own.pem -reqout own.request");
    authority.openssl(
        "ocsp -index index -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin own.request -respout own.ocsp -nmin 60",
    );
}

/// Any DER was stapled, and clients that look at it refused the connection.
#[test]
fn a_staple_that_is_not_good_for_its_certificate_is_refused_with_a_word_why() {
    let (good, revoked) = (
        "V\\t400101000000Z\\t\\t%s\\tunknown\\t/CN=own\\n",
        "R\\t400101000000Z\\t200101000000Z\\t%s\\tunknown\\t/CN=own\\n",
    );
    let (authority, backend) = (Authority::new().signs("own", &["shop.example"]), mirror());
    let own = "[{ cert = \"@dir/own.pem\", key = \"@dir/own.key\" }]";
    let config = CONFIG.replace("MORE", "");
    let stapled = config.replace(own, &own.replace(" }", ", ocsp = \"@dir/staple\" }"));
    let mut weir = authority.setup(&config).with("app", backend.address()).start();
    let staple = weir.dir().join("staple");
    let refused = |weir: &mut Weir, why: &str| {
        weir.rewrites(&stapled);
        let finished = weir.command(&["reload"]);
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(matches!(finished.code, 1 | 2) && said.contains(why), "{why}: {finished:?}");
    };
    for (bytes, why) in [
        (&b"0"[..], "is no OCSP response"),
        (b"\x30\x03\x02\x01\x05", "is no OCSP response"),
        (b"\x30\x03\x0a\x01\x06", "unauthorized"),
    ] {
        std::fs::write(&staple, bytes).expect("write");
        refused(&mut weir, why);
    }
    answers(&authority, revoked);
    std::fs::copy(authority.path("own.ocsp"), &staple).expect("copy");
    refused(&mut weir, "is revoked");
    answers(&authority, good);
    let other = Authority::new().signs("own", &["shop.example"]);
    answers(&other, good);
    std::fs::copy(other.path("own.ocsp"), &staple).expect("copy");
    refused(&mut weir, "is for another certificate");
    std::fs::copy(authority.path("own.ocsp"), &staple).expect("copy");
    weir.reloads(&stapled);
    let shown = |weir: &Weir| s_client(weir.address("web"), "-status", LAST).stdout;
    assert!(shown(&weir).contains("Cert Status: good"));
    // Out of date it is no mistake of the config, and nothing is stapled.
    let mut old = std::fs::read(authority.path("own.ocsp")).expect("a response");
    let next_update = b"\xa0\x11\x18\x0f";
    let at = old.windows(4).position(|bytes| bytes == next_update).expect("it says until when it holds");
    old[at + 4..at + 8].copy_from_slice(b"2001");
    std::fs::write(&staple, old).expect("write");
    weir.reloads(&stapled);
    until("nothing to be stapled", || shown(&weir).contains("no response sent").then_some(()));
    until("a line in the log", || weir.stderr().contains("out of date and stapled no more").then_some(()));
    let status = weir.admin().reads("/v1/status").json();
    assert_eq!(status["listeners"][0]["certificates"][0]["is_stapled"], false);
}

#[test]
fn a_staple_is_shown_to_clients_that_ask_for_it() {
    let (authority, backend) = (Authority::new().signs("own", &["shop.example"]), mirror());
    let line = "serial=$(openssl x509 -in own.pem -noout -serial | cut -d= -f2); printf 'V\\t400101000000Z\\t\\t%s\\tunknown\\t/CN=own\\n' $serial > index";
    authority.openssl(&format!("version > version && {line}"));
    authority.openssl("ocsp -issuer ca.pem -cert own.pem -reqout own.request");
    authority.openssl(
        "ocsp -index index -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin own.request -respout own.ocsp -ndays 7",
    );
    let own = "[{ cert = \"@dir/own.pem\", key = \"@dir/own.key\" }]";
    let stapled = own.replace(" }", &format!(", ocsp = \"{}\" }}", authority.path("own.ocsp")));
    for (certificates, version, is_shown) in
        [(own, "-tls1_3", false), (&stapled, "-tls1_3", true), (&stapled, "-tls1_2", true)]
    {
        let config = CONFIG.replace("MORE", "").replace(own, certificates);
        let weir = authority.setup(&config).with("app", backend.address()).start();
        let shown = s_client(weir.address("web"), &format!("-status {version}"), LAST).stdout;
        assert_eq!(shown.contains("OCSP response: no response sent"), !is_shown, "{shown}");
        assert_eq!(shown.contains("Cert Status: good"), is_shown, "{version}: {shown}");
        let status = weir.admin().reads("/v1/status").json();
        assert_eq!(status["listeners"][0]["certificates"][0]["is_stapled"], is_shown);
    }
}
