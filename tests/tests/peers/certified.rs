//! Weirs that know each other by certificates of an authority.

use std::net::SocketAddr;

use weir_tests::dialogue::{Authority, Setup, Weir, free_address, until};

use super::{Secret, ask, config, finds, has_left, left};

/// The keys of certificates.
const KEY: &str = "ec -pkeyopt ec_paramgen_curve:P-256";

const BY_USER: &str = r#"rate_limit = { rate = "6/1h", burst = 6, key = "header:x-user" }"#;

/// An authority with the certificates of two Weirs, of one whose name is another, and with a list that
/// revokes nobody.
fn authority() -> Authority {
    let authority = Authority::new()
        .signs("one", &["one.example", "weirs.example"])
        .signs("two", &["weirs.example"])
        .signs("other", &["shop.example"]);
    let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\ncrlnumber=number\ndefault_md=sha256\n\
                    crl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid:always\n";
    for (file, text) in [("ca.conf", settings), ("index.txt", ""), ("number", "01")] {
        std::fs::write(authority.path(file), text).expect("write");
    }
    authority.openssl("ca -config ca.conf -keyfile ca.key -cert ca.pem -gencrl -crldays 30 -out crl.pem");
    authority
}

/// The config of a Weir that shows this certificate.
fn with_certificate(authority: &Authority, addresses: &[SocketAddr], name: &str) -> String {
    let [cert, key, ca, crl] = [&format!("{name}.pem"), &format!("{name}.key"), "ca.pem", "crl.pem"]
        .map(|file| authority.path(file));
    let tls = format!(
        "[peers.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\nca = \"{ca}\"\ncrl = \"{crl}\"\nname = \"weirs.example\"\n\
         [listener.web]"
    );
    config(addresses, BY_USER).replace("[listener.web]", &tls)
}

fn start(config: &str, at: SocketAddr, secret: &Secret) -> Weir {
    Setup::of(config).with("peers", at).with("secret", secret.path()).start()
}

#[test]
fn weirs_with_certificates_count_together_until_one_is_revoked() {
    let secret = Secret::of("a secret of all Weirs");
    let authority = authority();
    let addresses = [free_address(), free_address()];
    let configs = ["one", "two"].map(|name| with_certificate(&authority, &addresses, name));
    let mut one = start(&configs[0], addresses[0], &secret);
    let two = start(&configs[1], addresses[1], &secret);
    [&one, &two].into_iter().for_each(|weir| finds(weir, 1));
    assert_eq!((ask(&one, "ann"), ask(&two, "ann")), (200, 200));
    [&one, &two].into_iter().for_each(|weir| has_left(weir, "ann", 4));
    // A reload that changes nothing of it leaves them together, and their counts as they are.
    one.reloads(&configs[0]);
    assert_eq!(ask(&one, "ann"), 200);
    has_left(&two, "ann", 3);
    let ca = "ca -config ca.conf -keyfile ca.key -cert ca.pem";
    authority.openssl(&format!("{ca} -revoke two.pem"));
    authority.openssl(&format!("{ca} -gencrl -crldays 30 -out crl.pem"));
    one.reloads(&configs[0]);
    until("the revoked one to be alone", || {
        let alone = |weir: &Weir| {
            weir.metric("weir_peers_told", &[]) == 0.0 && weir.metric("weir_peers_heard", &[]) == 0.0
        };
        (alone(&one) && alone(&two)).then_some(())
    });
    // No limit has begun anew.
    assert_eq!((ask(&two, "ann"), left(&two, "ann"), left(&one, "ann")), (200, 2, 3));
}

/// Threat D70.
#[test]
fn d70_neither_the_secret_alone_nor_a_certificate_for_another_name_lets_anybody_in() {
    let secret = Secret::of("a secret of all Weirs");
    let authority = authority();
    let addresses: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
    let one = start(&with_certificate(&authority, &addresses, "one"), addresses[0], &secret);
    let _with_secret = start(&config(&addresses, BY_USER), addresses[1], &secret);
    let of_shop = with_certificate(&authority, &addresses, "other").replace("weirs.example", "shop.example");
    let _other = start(&of_shop, addresses[2], &secret);
    until("both to have knocked", || {
        (one.metric("weir_peers_refused_total", &[("reason", "stranger")]) >= 2.0).then_some(())
    });
    let told = one.metric("weir_peers_told", &[]);
    assert_eq!((told, one.metric("weir_peers_heard", &[])), (0.0, 0.0), "{}", one.stderr());
}

/// Threat D70.
#[test]
fn d70_neither_a_certificate_that_has_ended_nor_one_of_another_authority_lets_anybody_in() {
    let secret = Secret::of("a secret of all Weirs");
    let authority = authority().signs_with("ended", &["weirs.example"], KEY, -1);
    let others = self::authority();
    let addresses: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
    let one = start(&with_certificate(&authority, &addresses, "one"), addresses[0], &secret);
    let ended = start(&with_certificate(&authority, &addresses, "ended"), addresses[1], &secret);
    let _other = start(&with_certificate(&others, &addresses, "two"), addresses[2], &secret);
    until("both to have knocked", || {
        (one.metric("weir_peers_refused_total", &[("reason", "stranger")]) >= 2.0).then_some(())
    });
    let told = one.metric("weir_peers_told", &[]);
    assert_eq!((told, one.metric("weir_peers_heard", &[])), (0.0, 0.0), "{}", one.stderr());
    assert!(ended.stderr().contains("ended.pem") && ended.stderr().contains("expired"), "{}", ended.stderr());
}

#[test]
fn a_certificate_for_another_name_is_not_put_in_force() {
    let secret = Secret::of("a secret of all Weirs");
    let authority = authority();
    let addresses = [free_address()];
    let mut weir = start(&with_certificate(&authority, &addresses, "one"), addresses[0], &secret);
    weir.rewrites(&with_certificate(&authority, &addresses, "other"));
    let refused = weir.command(&["reload"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("other.pem` can't be used"), "{refused:?}");
    assert!(refused.stderr.contains("is not for `weirs.example`"), "{refused:?}");
}

#[test]
fn metrics_tell_when_the_certificate_and_the_lists_end() {
    const DAY: f64 = 86_400.0;
    let secret = Secret::of("a secret of all Weirs");
    let authority = authority();
    let addresses = [free_address()];
    let config = with_certificate(&authority, &addresses, "one");
    let mut weir = start(&config, addresses[0], &secret);
    let file = authority.path("one.pem");
    let ends = |weir: &Weir| {
        weir.metric("weir_peers_certificate_expiry_timestamp_seconds", &[("certificate", &file)])
    };
    let before = ends(&weir);
    assert!(before > 1.7e9, "{before}");
    let list = authority.path("crl.pem");
    let labels = [("listener", ""), ("pool", ""), ("file", list.as_str())];
    let of_list = weir.metric("weir_crl_expiry_timestamp_seconds", &labels);
    assert!((of_list - before).abs() < DAY, "{of_list} {before}");
    let _authority = authority.signs_with("one", &["weirs.example"], KEY, 90);
    weir.reloads(&config);
    assert!(ends(&weir) - before > 59.0 * DAY, "{} {before}", ends(&weir));
}
