//! Certificates that their authority has revoked (threat D6): of clients, and of backends.

use std::time::{Duration, SystemTime};

use weir_tests::dialogue::{Weir, until};

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
pub fn authority(names: &[&str]) -> Authority {
    let authority = names.iter().fold(Authority::new(), |authority, name| {
        let host = format!("{name}.example");
        authority.signs(name, &[&host])
    });
    let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\ncrlnumber=number\ndefault_md=sha256\n\
         crl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid:always\n";
    std::fs::write(authority.path("ca.conf"), config).expect("write");
    std::fs::write(authority.path("index.txt"), "").expect("write");
    std::fs::write(authority.path("number"), "01").expect("write");
    authority
}

/// Revokes these and writes the list anew.
pub fn revoke(authority: &Authority, names: &[&str], length: &str) {
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

/// Whether the client whose certificate this is gets in.
fn gets_in(weir: &Weir, authority: &Authority, name: &str) -> bool {
    let [ca, cert, key] =
        ["ca.pem", &format!("{name}.pem"), &format!("{name}.key")].map(|it| authority.path(it));
    curl(weir, "strict", "shop.example", &["--cacert", &ca, "--cert", &cert, "--key", &key]).code == 0
}

#[test]
fn a_list_that_is_out_of_date_refuses_and_one_that_is_none_or_speaks_of_others_is_told_at_load() {
    let (own, namesake, other) = (authority(&["shop", "good"]), authority(&[]), authority(&[]));
    let backend = mirror();
    other.openssl("req -x509 -key ca.key -days 30 -subj /CN=other -out ca.pem");
    for authority in [&own, &namesake, &other] {
        revoke(authority, &[], "-crldays 30");
    }
    let start = |list: &str| {
        let setup = own.setup(CONFIG).with("app", backend.address());
        setup.with_file("crl.pem", list).start()
    };
    assert!(gets_in(&start(&own.text("crl.pem")), &own, "good"));
    let both_keys = format!("{}{}", own.text("crl.pem"), namesake.text("crl.pem"));
    assert!(!gets_in(&start(&namesake.text("crl.pem")), &own, "good"), "nothing is known of this key's");
    revoke(&own, &[], "-crl_lastupdate 20240101000000Z -crl_nextupdate 20240201000000Z");
    let mut weir = start(&own.text("crl.pem"));
    assert!(!gets_in(&weir, &own, "good"), "the list is of years ago");
    assert!(
        weir.stderr().contains("holds a list of revoked certificates that is out of date"),
        "{}",
        weir.stderr()
    );
    let checked = weir.command(&["check", "--online"]);
    assert!(format!("{checked:?}").contains("was good until 2024-02-01T00:00:00"), "{checked:?}");
    let file = weir.dir().join("crl.pem").display().to_string();
    let labels = [("listener", "strict"), ("pool", ""), ("file", file.as_str())];
    assert_eq!(weir.metric("weir_crl_expiry_timestamp_seconds", &labels), 1_706_745_600.0);
    for (list, said) in [
        (own.text("ca.pem"), "holds no list"),
        (other.text("crl.pem"), "holds no list of an authority"),
        (both_keys, "holds a list of CN=authority, and so does"),
    ] {
        std::fs::write(weir.dir().join("crl.pem"), list).expect("write");
        weir.rewrites(CONFIG);
        let refused = weir.command(&["reload"]);
        assert!(refused.code == 2 && refused.stderr.contains("crl.pem` can't be used"), "{refused:?}");
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
}

#[test]
fn of_two_lists_of_one_authority_the_newer_counts_wherever_it_stands() {
    let (own, backend) = (authority(&["shop", "good", "bad"]), mirror());
    revoke(&own, &[], "-crl_lastupdate 20240101000000Z -crldays 30");
    let older = own.text("crl.pem");
    revoke(&own, &["bad"], "-crldays 30");
    let newer = own.text("crl.pem");
    for both in [format!("{older}{newer}"), format!("{newer}{older}")] {
        let setup = own.setup(CONFIG).with("app", backend.address());
        let weir = setup.with_file("crl.pem", &both).start();
        assert!(gets_in(&weir, &own, "good") && !gets_in(&weir, &own, "bad"));
    }
}

/// Writes a list that ends in some seconds; gives a moment behind its end.
fn revoke_for_seconds(authority: &Authority) -> SystemTime {
    revoke(authority, &[], "-crlsec 8");
    SystemTime::now() + Duration::from_secs(9)
}

#[test]
fn a_client_that_resumes_is_refused_once_the_list_has_ended_though_its_tickets_are_renewed() {
    let (own, backend) = (authority(&["shop", "good"]), mirror());
    // Where the machine is too slow for the seconds, once more.
    let resumed = (0..5).any(|_| {
        let ended = revoke_for_seconds(&own);
        let weir = own.setup(CONFIG).with("app", backend.address()).start();
        let session = weir.dir().join("session").display().to_string();
        let words =
            format!("-servername shop.example -cert {} -key {}", own.path("good.pem"), own.path("good.key"));
        let asks = |how: &str| s_client(weir.address("strict"), &format!("{words} {how}"), LAST).stdout;
        asks(&format!("-sess_out {session}"));
        // Each brings a ticket for the next.
        let was_resumed = (0..3).all(|_| {
            let shown = asks(&format!("-sess_in {session} -sess_out {session}"));
            shown.contains("Reused, TLS") && shown.contains("HTTP/1.1 200")
        });
        if !was_resumed || SystemTime::now() >= ended {
            return false;
        }
        until("the end of the list", || (SystemTime::now() >= ended).then_some(()));
        let refused = asks(&format!("-sess_in {session}"));
        assert!(!refused.contains("HTTP/1.1 200"), "{refused}");
        true
    });
    assert!(resumed, "no session was resumed in time");
}

/// A backend that shows the certificate of this name.
fn origin(name: &str) -> String {
    format!(
        "[listener.{name}]\nbind = \"@{name}\"\nhttp = [\"h1\"]\ntls = {{ certificates = [{{ cert = \"@dir/{name}.pem\", key = \"@dir/{name}.key\" }}] }}\n\
         [[listener.{name}.route]]\npath = \"/*\"\nrespond = {{ status = 200, body = \"{name}\" }}\n"
    )
}

/// Before it, with a connection for each request.
const FRONT: &str = r#"
[listener.front]
bind = "@front"
http = ["h1"]
pool = "app"
[pool.app]
backends = ["@origin"]
health = "off"
keep_alive = { max = 0 }
tls = { ca = "@dir/ca.pem", crl = "@dir/crl.pem", server_name = "NAME.example" }
"#;

/// The status of its answer.
fn asks(front: &Weir) -> u16 {
    let mut client = front.client("front");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_response().status
}

#[test]
fn a_backend_whose_certificate_is_on_the_list_is_not_believed() {
    let authority = authority(&["good", "bad"]);
    revoke(&authority, &["bad"], "-crldays 30");
    let weir = authority.setup(&[origin("good"), origin("bad")].concat()).start();
    for (name, status) in [("good", 200), ("bad", 502)] {
        let front = authority.setup(&FRONT.replace("NAME", name)).with("origin", weir.address(name)).start();
        assert_eq!(asks(&front), status, "{name}");
    }
}

#[test]
fn a_backend_that_resumes_is_not_believed_once_the_list_has_ended() {
    let authority = authority(&["shop"]);
    let origin = authority.setup(&origin("shop")).start();
    let resumed = (0..5).any(|_| {
        let ended = revoke_for_seconds(&authority);
        let front = authority.setup(&FRONT.replace("NAME", "shop"));
        let front = front.with("origin", origin.address("shop")).start();
        let were_good = (0..8).all(|_| asks(&front) == 200);
        if !were_good || SystemTime::now() >= ended {
            return false;
        }
        until("the end of the list", || (SystemTime::now() >= ended).then_some(()));
        assert_eq!(asks(&front), 502);
        true
    });
    assert!(resumed, "nobody was asked in time");
    let resumed = [("listener", "shop"), ("result", "resumed")];
    assert!(origin.metric("weir_tls_handshakes_total", &resumed) > 1.0);
}
