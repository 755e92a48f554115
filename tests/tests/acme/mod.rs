//! Certificates from a certificate authority: Debian's Pebble.

mod between;
mod dns01;
mod hung;
mod limits;
mod on_demand;
mod pebble;
mod renewal;
mod several;
mod shared;
mod stored;
mod unfinished;
mod unwritten;
mod words;

use std::os::unix::fs::PermissionsExt as _;

use weir_tests::dialogue::{Backend, Finished, Setup, Signal, Weir, until, until_within};

use self::pebble::{ORDER, Pebble, Ports, certificate, is_issued};
use crate::tls::{Authority, LAST, curl, mirror, s_client};

const CONFIG: &str = r#"
[listener.plain]
bind = "@plain"
http = ["h1"]
pool = "app"
[listener.secure]
bind = "@secure"
http = ["h1"]
pool = "app"
[listener.secure.tls.acme]
directory = "@directory"
domains = ["shop.example", "www.shop.example"]
contact = "mailto:ops@shop.example"
challenges = ["http-01"]
ca = "@dir/front-ca.pem"
store = "@dir/store"
[pool.app]
backends = ["@app"]
health = "off"
"#;

fn by(challenge: &str) -> String {
    CONFIG.replace("http-01", challenge)
}

fn setup(config: &str, ports: Ports, pebble: &Pebble, backend: &Backend) -> Setup {
    Setup::of(config)
        .with("plain", ports.http)
        .with("secure", ports.tls)
        .with("directory", pebble.directory())
        .with("app", backend.address())
        .with_file("front-ca.pem", &pebble.front_ca())
}

/// The certificate that a client is shown, PEM.
fn shown(weir: &Weir, name: &str) -> String {
    let text = s_client(weir.address("secure"), &format!("-servername {name}"), LAST).stdout;
    let begin = text.find("-----BEGIN CERTIFICATE-----").unwrap_or_else(|| panic!("nothing shown: {text}"));
    text[begin..].split_inclusive("-----END CERTIFICATE-----").next().unwrap_or_default().to_owned()
}

fn asked(weir: &Weir, pebble: &Pebble, name: &str) -> Finished {
    let root = pebble.root().display().to_string();
    curl(weir, "secure", name, &["--cacert", &root])
}

fn orders(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_acme_orders_total", &[("result", result)])
}

/// Waits until so many orders have ended so.
fn comes_to(weir: &Weir, result: &str, count: f64) {
    until_within(ORDER, &format!("{count} orders {result}"), || {
        (orders(weir, result) >= count).then_some(())
    });
}

fn handshakes(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_tls_handshakes_total", &[("listener", "secure"), ("result", result)])
}

#[test]
fn a_certificate_is_got_by_http_01_and_kept_from_others_and_over_a_restart() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let mut weir = setup(CONFIG, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    for name in ["shop.example", "www.shop.example"] {
        assert!(asked(&weir, &pebble, name).succeeded().ends_with("status 200"), "{name}");
    }
    assert_eq!((orders(&weir, "issued"), orders(&weir, "refused")), (1.0, 0.0), "{}", weir.story());
    assert!(weir.metric("weir_certificate_expiry_timestamp_seconds", &[("listener", "secure")]) > 1.7e9);
    let events = weir.admin().reads("/").response.text();
    assert!(events.contains("certificate for shop.example, www.shop.example issued: good until"), "{events}");

    // Only the folder above is as it was found; what it holds is for nobody else.
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let folders: Vec<_> = std::fs::read_dir(weir.dir().join("store")).expect("the store").flatten().collect();
    assert_eq!(folders.len(), 1);
    assert_eq!(mode(&folders[0].path()), 0o700);
    let files: Vec<_> = std::fs::read_dir(folders[0].path()).expect("the folder").flatten().collect();
    assert!(files.iter().any(|file| file.file_name() == "account.json"));
    let for_us_alone = |path: std::path::PathBuf| if path.is_dir() { 0o700 } else { 0o600 };
    assert!(files.iter().all(|file| mode(&file.path()) == for_us_alone(file.path())), "{files:?}");

    let before = shown(&weir, "shop.example");
    weir.signals(Signal::TERM);
    weir.starts_again();
    assert_eq!(shown(&weir, "shop.example"), before, "the stored certificate is served at once");
    assert_eq!(certificate(&weir, "secure")["acme"]["state"], "issued");
    assert_eq!(orders(&weir, "issued"), 0.0, "a restart orders nothing");
}

/// The listener asks its clients for certificates, which an authority does not have.
#[test]
fn a_certificate_is_got_by_tls_alpn_01_whose_protocol_is_not_offered_otherwise() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let config = by("tls-alpn-01").replace(
        "[listener.secure.tls.acme]",
        "[listener.secure.tls]\nclient_ca = \"@dir/front-ca.pem\"\n[listener.secure.tls.acme]",
    );
    let weir = setup(&config, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    assert!(handshakes(&weir, "challenge") >= 2.0, "at least one for each domain");
    assert_eq!(orders(&weir, "refused") + orders(&weir, "away"), 0.0, "{}", weir.story());
    let (host, key) = (weir.dir().join("c.pem"), weir.dir().join("c.key"));
    std::fs::write(&host, pebble.front_file("localhost.pem")).expect("write");
    std::fs::write(&key, pebble.front_file("localhost.key")).expect("write");
    let root = pebble.root().display().to_string();
    let more =
        ["--cacert", &root, "--cert", &host.display().to_string(), "--key", &key.display().to_string()];
    assert!(curl(&weir, "secure", "shop.example", &more).succeeded().ends_with("status 200"));
    let refused = s_client(weir.address("secure"), "-servername shop.example -alpn acme-tls/1", "");
    assert!(refused.stderr.contains("no application protocol"), "{refused:?}");
}

#[test]
fn a_challenge_that_nobody_waits_for_goes_to_the_backend() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let weir = setup(CONFIG, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    let mut client = weir.client("plain");
    client.sends(
        "GET /.well-known/acme-challenge/nobody HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\r\n",
    );
    assert!(client.receives_response().text().starts_with("GET /.well-known/acme-challenge/nobody "));
}

#[test]
fn while_the_authority_is_away_everything_else_is_served_and_it_is_asked_again() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::away(ports, false);
    let mut weir = setup(CONFIG, ports, &pebble, &backend).start();
    comes_to(&weir, "away", 2.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    assert_eq!(order["state"], "failing");
    assert!(order["error"].as_str().is_some_and(|error| error.contains("connection refused")), "{order}");
    let page = weir.admin().reads("/").response.text();
    assert!(page.contains("<title>Weir: a certificate is missing or expired"), "{page}");
    assert_eq!(page.matches("certificate for shop.example, www.shop.example failed").count(), 1, "{page}");
    let refused = s_client(weir.address("secure"), "-servername shop.example", "");
    assert!(refused.stderr.contains("alert access denied"), "{refused:?}");
    weir.reaches("weir_tls_handshakes_total", &[("listener", "secure"), ("result", "no_certificate")], 1.0);
    let mut client = weir.client("plain");
    client.sends(LAST);
    client.receives_status(200);
    pebble.starts();
    is_issued(&weir, "secure");
    assert!(asked(&weir, &pebble, "shop.example").succeeded().ends_with("status 200"));

    // It comes back once more, and has forgotten our account.
    pebble.stops();
    pebble.starts();
    let before = shown(&weir, "shop.example");
    weir.reloads(&CONFIG.replace("\"www.shop.example\"", "\"more.shop.example\""));
    comes_to(&weir, "issued", 1.0);
    is_issued(&weir, "secure");
    assert_ne!(shown(&weir, "more.shop.example"), before);
    until("a line in the log", || weir.stderr().contains("does not know our account").then_some(()));
}

#[test]
fn what_the_authority_refuses_is_said_and_another_way_is_tried() {
    let backend = mirror();
    let ports = Ports::free();
    // It looks where nobody listens.
    let pebble = Pebble::running(Ports { http: weir_tests::dialogue::free_address(), ..ports });
    let authority = Authority::new().signs("own", &["own.example"]);
    let config = CONFIG
        .replace("[\"http-01\"]", "[\"http-01\", \"tls-alpn-01\"]")
        .replace("[listener.secure.tls.acme]", "[listener.secure.tls]\ncertificates = [{ cert = \"@dir/own.pem\", key = \"@dir/own.key\" }]\n[listener.secure.tls.acme]");
    let weir = setup(&config, ports, &pebble, &backend)
        .with_file("own.pem", &authority.text("own.pem"))
        .with_file("own.key", &authority.text("own.key"))
        .start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    let error = order["error"].as_str().unwrap_or_default();
    assert!(error.contains("shop.example") && error.ends_with("connection refused (connection)"), "{order}");
    assert!(order["next"].is_string(), "{order}");
    // What there is serves meanwhile, also those who ask for the name that is on order.
    for name in ["own.example", "shop.example"] {
        assert!(
            s_client(weir.address("secure"), &format!("-servername {name}"), LAST)
                .stdout
                .contains("HTTP/1.1 200")
        );
    }
    // An operator need not wait for the minute.
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert!(handshakes(&weir, "challenge") >= 2.0);
    let own = curl(&weir, "secure", "own.example", &["--cacert", &authority.path("ca.pem")]);
    assert!(own.succeeded().ends_with("status 200"));
    assert!(asked(&weir, &pebble, "shop.example").succeeded().ends_with("status 200"));
}

#[test]
fn an_authority_that_wants_another_account_says_so() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::away(ports, true);
    pebble.starts();
    let weir = setup(CONFIG, ports, &pebble, &backend).start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    assert!(
        order["error"].as_str().is_some_and(|error| error.contains("externalAccountRequired")),
        "{order}"
    );
    until("a line in the log", || weir.stderr().contains("no certificate could be got").then_some(()));
}

#[test]
fn a_second_process_and_a_second_listener_use_what_the_first_has_got() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let shared = std::env::temp_dir().join(format!("weir-acme-{}", ports.tls.port()));
    let config = CONFIG.replace("@dir/store", &shared.display().to_string());
    let weir = setup(&config, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    let more = config.replace(
        "[pool.app]",
        "[listener.third]\nbind = \"@third\"\npool = \"app\"\n[listener.third.tls.acme]\ndirectory = \"@directory\"\ndomains = [\"www.shop.example\", \"shop.example\"]\n\
         contact = \"mailto:ops@shop.example\"\nchallenges = [\"http-01\"]\nca = \"@dir/front-ca.pem\"\nstore = \"STORE\"\n[pool.app]",
    );
    let more = more.replace("STORE", &shared.display().to_string());
    let other = setup(&more, Ports::free(), &pebble, &backend).start();
    assert_eq!(shown(&other, "shop.example"), shown(&weir, "shop.example"));
    for listener in ["secure", "third"] {
        assert_eq!(certificate(&other, listener)["acme"]["state"], "issued");
    }
    assert_eq!((orders(&weir, "issued"), orders(&other, "issued")), (1.0, 0.0));
    std::fs::remove_dir_all(shared).expect("remove");
}

#[test]
fn a_binary_upgrade_orders_nothing() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let weir = setup(CONFIG, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    let (old, before) = (weir.pid(), shown(&weir, "shop.example"));
    weir.signals_pid(old, Signal::USR2);
    until_within(ORDER, "the old process to end", || {
        let pids = weir.pids();
        (pids.len() == 1 && pids[0] != old).then_some(())
    });
    assert_eq!(shown(&weir, "shop.example"), before);
    assert_eq!(
        (certificate(&weir, "secure")["acme"]["state"].as_str(), orders(&weir, "issued")),
        (Some("issued"), 0.0)
    );
}
