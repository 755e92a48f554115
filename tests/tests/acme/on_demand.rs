//! Certificates that are ordered when a client asks for a name.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use weir_tests::dialogue::http3::{Http3, Outcome};
use weir_tests::dialogue::quic::{self, Quic};
use weir_tests::dialogue::{
    After, Backend, PATIENCE, ScriptedBackend, Setup, Signal, Weir, Wire, free_address, until, until_within,
};

use super::pebble::{ORDER, Pebble, Ports};
use super::{asked, handshakes, mirror, setup, shown};
use crate::tls::{Authority, LAST, s_client};

pub const CONFIG: &str = r#"
[listener.plain]
bind = "@plain"
http = ["h1"]
pool = "app"
[listener.secure]
bind = "@secure"
http = ["h1", "h2"]
pool = "app"
[listener.secure.tls.acme]
directory = "@directory"
challenges = ["tls-alpn-01"]
ca = "@dir/front-ca.pem"
store = "@dir/store"
[listener.secure.tls.acme.on_demand]
ask = "@ask"
[pool.app]
backends = ["@app"]
health = "off"
"#;

pub fn with(keys: &str) -> String {
    CONFIG.replace("[pool.app]", &format!("{keys}\n[pool.app]"))
}

pub fn demanding(config: &str, ports: Ports, pebble: &Pebble, backend: &Backend, service: &Backend) -> Setup {
    setup(config, ports, pebble, backend).with("ask", url(service.address()))
}

fn url(service: SocketAddr) -> String {
    format!("http://{service}/allowed?token=x")
}

/// A service that allows names in `.good.example` and refuses others, each in its way.
pub fn service() -> Backend {
    Backend::serving(|request, wire| {
        let says = |name: &str| request.target.contains(&format!("domain={name}"));
        match () {
            () if request.target.ends_with(".good.example") => wire.answers(200, &[], "yes"),
            () if says("moved") => wire.answers(302, &[("location", "/allowed?domain=a.good.example")], ""),
            () if says("broken") => wire.answers(500, &[], ""),
            () if says("noise") => wire.sends("SSH-2.0-OpenSSH_9.2\r\n"),
            () => wire.answers(404, &[], "no"),
        }
        After::Close
    })
}

pub fn names(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_acme_on_demand_names_total", &[("result", result)])
}

pub fn waits(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_acme_on_demand_handshakes_total", &[("result", result)])
}

pub fn served(weir: &Weir, pebble: &Pebble, name: &str) {
    let asked = asked(weir, pebble, name);
    assert!(asked.stdout.ends_with("status 200"), "{name}: {asked:?}\n{}", weir.story());
}

/// The handshake is refused as it is without any certificate.
pub fn refused(weir: &Weir, name: &str) {
    let refused = s_client(weir.address("secure"), &format!("-servername {name}"), "");
    assert!(refused.stderr.contains("alert access denied"), "{name}: {refused:?}");
}

/// A `ClientHello` for TLS 1.2 that asks for `name`; no handshake can follow it.
pub fn greeting(name: &str) -> Vec<u8> {
    let counted =
        |width: usize, bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[4 - width..], bytes].concat();
    let sni = counted(2, &[&[0][..], &counted(2, name.as_bytes())].concat());
    let extensions = [&[0, 0][..], &counted(2, &sni)].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0xc0, 0x2f], &[1, 0], &counted(2, &extensions)].concat();
    let message = [&[1][..], &counted(3, &body)].concat();
    [&[22, 3, 1][..], &counted(2, &message)].concat()
}

pub fn waiting(weir: &Weir) -> f64 {
    weir.metric("weir_acme_on_demand_waiting", &[])
}

#[test]
fn a_name_that_the_service_allows_is_ordered_while_its_client_waits_and_no_other_is() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let mut weir = demanding(CONFIG, ports, &pebble, &backend, &service).start();
    let explained = |weir: &Weir| {
        let url = "https://a.good.example/";
        weir.command(&["explain", "http", "GET", url, "--listener", "secure"]).stdout
    };
    assert!(explained(&weir).contains("ordered if `ask` allows it"), "{}", explained(&weir));
    served(&weir, &pebble, "a.good.example");
    assert!(explained(&weir).contains("on demand: in memory"), "{}", explained(&weir));
    let first = shown(&weir, "a.good.example");
    assert_eq!(shown(&weir, "A.Good.Example"), first);
    assert_eq!((names(&weir, "issued"), waits(&weir, "served")), (1.0, 1.0));
    assert!(handshakes(&weir, "challenge") >= 1.0);
    assert_eq!(service.requests()[0].target, "/allowed?token=x&domain=a.good.example");

    // A refusal, a redirect or garbage does not count as permission.
    for name in ["bad.example", "moved.example", "broken.example", "noise.example"] {
        refused(&weir, name);
    }
    assert_eq!((names(&weir, "refused"), names(&weir, "unanswered")), (2.0, 2.0));
    let count = service.served();
    refused(&weir, "bad.example");
    assert!(explained(&weir).contains("in memory") && waits(&weir, "remembered") >= 1.0);
    // Names that are not host names, and no name at all.
    for name in ["good", "-a.good.example", "a_b.good.example", "*.good.example", "10.0.0.1"] {
        s_client(weir.address("secure"), &format!("-servername {name}"), "");
    }
    s_client(weir.address("secure"), "-noservername", "");
    assert_eq!((service.served(), names(&weir, "issued")), (count, 1.0), "{:?}", service.requests().len());

    let status = weir.admin().reads("/v1/status").json();
    let listeners = status["listeners"].as_array().expect("a list");
    let secure = listeners.iter().find(|each| each["name"] == "secure").expect("the listener");
    let own = &secure["on_demand"][0];
    assert_eq!((own["certificates"].as_u64(), own["waiting"].as_u64()), (Some(1), Some(0)), "{own}");
    let failures = own["failures"].as_array().expect("a list");
    assert!(failures.iter().any(|each| each["name"] == "noise.example"), "{own}");
    assert!(weir.command(&["status"]).stdout.contains("1 certificates in memory"));
    let events = weir.admin().reads("/").response.text();
    assert!(events.contains("certificate for a.good.example issued"), "{events}");
    assert!(events.contains("<h2>Certificates on demand</h2>") && events.contains("noise.example: "));

    // What is stored is served after a restart, and nobody is asked.
    weir.signals(Signal::TERM);
    weir.starts_again();
    assert_eq!(shown(&weir, "a.good.example"), first);
    assert_eq!((names(&weir, "stored"), names(&weir, "issued"), service.served()), (1.0, 0.0, count));
}

#[test]
fn many_handshakes_for_one_name_are_one_question_and_one_order() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let weir =
        demanding(&CONFIG.replace("tls-alpn-01", "http-01"), ports, &pebble, &backend, &service).start();
    let (together, root) = (Barrier::new(20), pebble.root());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                together.wait();
                let asked = crate::tls::curl(
                    &weir,
                    "secure",
                    "b.good.example",
                    &["--cacert", &root.display().to_string()],
                );
                assert!(asked.stdout.ends_with("status 200"), "{asked:?}");
            });
        }
    });
    assert_eq!((names(&weir, "issued"), service.served()), (1.0, 1));
    assert_eq!(waiting(&weir), 0.0);
}

#[test]
fn a_client_that_leaves_gives_its_place_back_and_the_order_goes_on_for_the_next() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_open, service) = slow_service();
    let weir = demanding(&with("max_waiting = 2\nask_timeout = \"60s\""), ports, &pebble, &backend, &service)
        .start();
    let greets = || {
        let mut client = weir.client("secure");
        client.sends(greeting("c.good.example"));
        client
    };
    let leaves: Vec<Wire> = (0..2).map(|_| greets()).collect();
    weir.reaches("weir_acme_on_demand_waiting", &[], 2.0);
    // There is no third slot: it immediately gets what an unknown name gets.
    refused(&weir, "d.good.example");
    assert_eq!(waits(&weir, "no_place"), 1.0);
    drop(leaves);
    until("both places to be given back", || (waiting(&weir) == 0.0).then_some(()));
    assert_eq!(waits(&weir, "left"), 2.0);
    assert_eq!(weir.metric("weir_acme_on_demand_names", &[]), 1.0, "the question goes on");
    // A reload in the meantime, and a client that connects after it.
    let _next = greets();
    weir.reaches("weir_acme_on_demand_waiting", &[], 1.0);
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_open.store(true, Ordering::Release);
    until_within(ORDER, "it to be served", || (waits(&weir, "served") >= 1.0).then_some(()));
    served(&weir, &pebble, "c.good.example");
    assert_eq!((names(&weir, "issued"), service.served()), (1.0, 1));
}

/// A service that says yes to everything once it is told to.
pub fn slow_service() -> (Arc<AtomicBool>, Backend) {
    let is_open = Arc::new(AtomicBool::new(false));
    let service = Backend::serving({
        let is_open = is_open.clone();
        move |_, wire| {
            until_within(ORDER, "the test to let it answer", || {
                is_open.load(Ordering::Acquire).then_some(())
            });
            wire.answers(204, &[], "");
            After::Close
        }
    });
    (is_open, service)
}

/// The listener's config changes while a client waits: that client gets its certificate, and later ones are
/// treated according to the new config.
#[test]
fn a_reload_that_changes_the_entry_lets_those_have_theirs_who_wait() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_open, service) = slow_service();
    let config = with("ask_timeout = \"60s\"");
    let mut weir = demanding(&config, ports, &pebble, &backend, &service).start();
    let text = std::fs::read_to_string(weir.config_path()).expect("the config");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| shown(&weir, "e.good.example"));
        weir.reaches("weir_acme_on_demand_waiting", &[], 1.0);
        until("the service to be asked", || (service.busy() == 1).then_some(()));
        std::fs::write(weir.config_path(), text.replace("\"60s\"", "\"50s\"")).expect("write");
        assert_eq!(weir.command(&["reload"]).code, 0);
        is_open.store(true, Ordering::Release);
        assert!(waits.join().expect("it is shown one").contains("BEGIN CERTIFICATE"));
    });
    served(&weir, &pebble, "e.good.example");
    assert_eq!(names(&weir, "stored"), 1.0, "the new entry reads the certificate that the old one obtained");
    // Without the entry, the name is like any other.
    let (head, rest) = config.split_once("[listener.secure.tls.acme.on_demand]").expect("a table");
    let pools = rest.find("[pool.app]").expect("a pool");
    weir.reloads(&format!("{head}domains = \"own.example\"\n{}", &rest[pools..]));
    assert_eq!(weir.metric("weir_acme_on_demand_certificates", &[]), 0.0);
}

#[test]
fn a_service_that_is_silent_holds_few_and_nobody_for_long() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let silent = ScriptedBackend::start();
    let config = with("ask_timeout = \"500ms\"\nmax_names = 3\nremember = \"1h\"");
    let weir = setup(&config, ports, &pebble, &backend).with("ask", url(silent.address())).start();
    let clients: Vec<Wire> = (0..50)
        .map(|number| {
            let mut client = weir.client("secure");
            client.sends(greeting(&format!("f{number}.good.example")));
            client
        })
        .collect();
    until("all to be answered", || (waits(&weir, "refused") >= 50.0).then_some(()));
    assert!(names(&weir, "busy") >= 1.0 && names(&weir, "unanswered") >= 3.0, "{}", weir.story());
    assert_eq!((waiting(&weir), names(&weir, "issued")), (0.0, 0.0));
    drop(clients);
}

/// Somebody guesses names, a thousand at a time, while one customer is being served and another one arrives.
#[test]
fn a_thousand_names_at_once_are_bounded_and_customers_are_served_meanwhile() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let weir =
        demanding(&with("max_names = 20\nmax_waiting = 50"), ports, &pebble, &backend, &service).start();
    served(&weir, &pebble, "r.good.example");
    let clients: Vec<Wire> = (0..1000)
        .map(|number| {
            let mut client = weir.client("secure");
            client.sends(greeting(&format!("guess{number}.example")));
            client
        })
        .collect();
    served(&weir, &pebble, "r.good.example");
    let [most_names, most_waiting] =
        ["weir_acme_on_demand_names", "weir_acme_on_demand_waiting"].map(|name| weir.metric(name, &[]));
    assert!(most_names <= 20.0 && most_waiting <= 50.0, "{most_names} {most_waiting}");
    until("each to be answered", || {
        let all = ["refused", "no_place"].map(|result| waits(&weir, result)).iter().sum::<f64>();
        (all >= 1000.0).then_some(())
    });
    drop(clients);
    served(&weir, &pebble, "s.good.example");
    assert_eq!(
        (names(&weir, "issued"), waiting(&weir), weir.metric("weir_acme_on_demand_names", &[])),
        (2.0, 0.0, 0.0)
    );
}

#[test]
fn a_handshake_waits_no_longer_than_it_may() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_open, service) = slow_service();
    let authority = Authority::new().signs("own", &["own.example"]);
    let own = "[listener.secure.tls]\ncertificates = [{ cert = \"@dir/own.pem\", key = \"@dir/own.key\" }]\n[listener.secure.tls.acme]";
    let config = with("ask_timeout = \"60s\"\nwait = \"1s\"").replace("[listener.secure.tls.acme]", own);
    let weir = demanding(&config, ports, &pebble, &backend, &service)
        .with_file("own.pem", &authority.text("own.pem"))
        .with_file("own.key", &authority.text("own.key"))
        .start();
    // An unknown name gets the first certificate.
    let first = shown(&weir, "own.example");
    assert_eq!(shown(&weir, "g.good.example"), first);
    assert_eq!(waits(&weir, "timed_out"), 1.0);
    is_open.store(true, Ordering::Release);
    until_within(ORDER, "the order to go on", || (names(&weir, "issued") >= 1.0).then_some(()));
    assert_ne!(shown(&weir, "g.good.example"), first);
}

#[test]
fn while_the_authority_is_away_handshakes_fail_at_once_after_the_first_until_an_operator_says_so() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let mut pebble = Pebble::away(ports, false);
    let weir = demanding(CONFIG, ports, &pebble, &backend, &service).start();
    // Each failure doubles the time until the next attempt.
    until("a wait that is long enough to see", || {
        refused(&weir, "h.good.example");
        let refusals = waits(&weir, "remembered");
        (refusals >= 3.0 && names(&weir, "failed") >= 2.0).then_some(())
    });
    let tried = names(&weir, "failed");
    assert_eq!(service.served(), 1, "what it said is remembered");
    pebble.starts();
    assert_eq!(weir.command(&["reload"]).code, 0);
    served(&weir, &pebble, "h.good.example");
    assert!(names(&weir, "failed") >= tried && names(&weir, "issued") == 1.0);
}

#[test]
fn orders_in_a_time_have_a_bound_and_memory_has_one() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let config = with("rate = \"1/h\"\nburst = 2\nmax_certificates = 1");
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    served(&weir, &pebble, "i.good.example");
    served(&weir, &pebble, "j.good.example");
    refused(&weir, "k.good.example");
    assert_eq!((names(&weir, "limited"), names(&weir, "issued")), (1.0, 2.0));
    assert_eq!(weir.metric("weir_acme_on_demand_evictions_total", &[]), 1.0);
    let before = service.served();
    served(&weir, &pebble, "i.good.example");
    assert_eq!((names(&weir, "stored"), service.served()), (1.0, before), "it is read from the store");
}

#[test]
fn a_binary_upgrade_and_a_second_weir_serve_what_the_first_has_got() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let shared = std::env::temp_dir().join(format!("weir-on-demand-{}", ports.tls.port()));
    let config = CONFIG.replace("@dir/store", &shared.display().to_string());
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    served(&weir, &pebble, "l.good.example");
    let (old, before) = (weir.pid(), shown(&weir, "l.good.example"));
    weir.signals_pid(old, Signal::USR2);
    until_within(ORDER, "the old process to end", || {
        let pids = weir.pids();
        (pids.len() == 1 && pids[0] != old).then_some(())
    });
    assert_eq!(shown(&weir, "l.good.example"), before);
    let other = demanding(&config, Ports::free(), &pebble, &backend, &service).start();
    assert_eq!(shown(&other, "l.good.example"), before);
    assert_eq!((names(&weir, "issued"), names(&other, "issued"), service.served()), (0.0, 0.0, 1));
    std::fs::remove_dir_all(shared).expect("remove");
}

/// Challenges arrive at the new process, which knows nothing of those of the old one.
#[test]
fn an_upgrade_lets_those_go_who_wait_and_the_new_process_orders_what_is_asked_for_then() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_open, service) = slow_service();
    let weir = demanding(&with("ask_timeout = \"60s\""), ports, &pebble, &backend, &service).start();
    let old = weir.pid();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| s_client(weir.address("secure"), "-servername p.good.example", ""));
        weir.reaches("weir_acme_on_demand_waiting", &[], 1.0);
        weir.signals_pid(old, Signal::USR2);
        let refused = waits.join().expect("it ends");
        assert!(refused.stderr.contains("alert access denied"), "{refused:?}");
    });
    until_within(ORDER, "the old process to end", || {
        let pids = weir.pids();
        (pids.len() == 1 && pids[0] != old).then_some(())
    });
    is_open.store(true, Ordering::Release);
    served(&weir, &pebble, "p.good.example");
    assert_eq!(names(&weir, "issued"), 1.0);
}

/// The service is another Weir, which answers with its routes.
#[test]
fn a_service_over_tls_must_be_who_it_says_and_its_authorities_are_read_at_load() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let service = Setup::of(SERVICE)
        .with("service", free_address())
        .with_file("front.pem", &pebble.front_file("localhost.pem"))
        .with_file("front.key", &pebble.front_file("localhost.key"))
        .start();
    let url = format!("https://localhost:{}/allowed", service.address("service").port());
    let mut weir = setup(&with("remember = \"1s\""), ports, &pebble, &backend).with("ask", url).start();
    refused(&weir, "t.good.example");
    let status = weir.command(&["status"]).stdout;
    assert!(
        status.contains("t.good.example: ") && status.contains("authority that is not in `ca`"),
        "{status}"
    );
    weir.rewrites(&with("remember = \"1s\"\nca = \"@dir/nothing.pem\""));
    let said = weir.command(&["reload"]);
    assert!(said.code != 0 && said.stderr.contains("nothing.pem"), "{said:?}");
    weir.reloads(&with("remember = \"1s\"\nca = \"@dir/front-ca.pem\""));
    served(&weir, &pebble, "t.good.example");
    refused(&weir, "t.bad.example");
    assert_eq!((names(&weir, "issued"), names(&weir, "refused")), (1.0, 1.0));
}

const SERVICE: &str = r#"
[listener.service]
bind = "@service"
http = ["h1"]
tls = { certificates = [{ cert = "@dir/front.pem", key = "@dir/front.key" }] }
[[listener.service.route]]
path = "/allowed"
query = { domain = "*.good.example" }
respond = { status = 204 }
[[listener.service.route]]
path = "/*"
respond = { status = 403 }
"#;

/// Listeners with the same settings share certificates.
#[test]
fn a_listener_of_tcp_has_the_same_certificates_without_another_order() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let (_, entry) = CONFIG.split_once("[listener.secure.tls.acme]").expect("a table");
    let entry =
        entry.split("[pool.app]").next().unwrap_or_default().replace("listener.secure", "listener.raw");
    let raw = format!(
        "[listener.raw]\nprotocol = \"tcp\"\nbind = \"@raw\"\npool = \"app\"\n[listener.raw.tls.acme]{entry}"
    );
    let config = CONFIG.replace("[pool.app]", &format!("{raw}[pool.app]"));
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    let root = pebble.root().display().to_string();
    let asked = |listener: &str| crate::tls::curl(&weir, listener, "q.good.example", &["--cacert", &root]);
    for listener in ["raw", "secure", "raw"] {
        assert!(asked(listener).succeeded().ends_with("status 200"), "{listener}: {}", weir.story());
    }
    assert_eq!((names(&weir, "issued"), names(&weir, "stored"), service.served()), (1.0, 0.0, 1));
    assert_eq!(weir.metric("weir_acme_on_demand_certificates", &[]), 1.0);
}

/// A handshake over QUIC does not wait: the certificate is obtained for the next one.
#[test]
fn a_client_of_http_3_is_served_by_what_its_first_handshake_has_had_ordered() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let config = CONFIG.replace("[\"h1\", \"h2\"]", "[\"h1\", \"h2\", \"h3\"]");
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    let trusting = quic::trusting(&pebble.root());
    let connects = |name| Quic::try_connect(weir.address("secure"), name, &trusting, PATIENCE);
    let refused = connects("o.good.example").err().expect("it does not wait").to_string();
    assert!(refused.contains("refused"), "{refused}");
    until_within(ORDER, "it to be got", || (names(&weir, "issued") >= 1.0).then_some(()));
    let mut client = Http3::over(connects("o.good.example").expect("a certificate"));
    assert!(matches!(client.asks(0, "/"), Outcome::Answered(200, _)));
    // A name that the service refuses is not waited for either, and the service is asked only once.
    for _ in 0..2 {
        assert!(connects("bad.example").is_err());
        until("the answer", || (names(&weir, "refused") >= 1.0).then_some(()));
    }
    assert_eq!((service.served(), names(&weir, "issued"), waiting(&weir)), (2, 1.0, 0.0));
}

/// Pebble's certificates are valid for years, so Weir's clock is moved four years ahead.
#[test]
fn what_is_used_is_renewed_after_asking_again_and_nothing_else_is() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let is_gone = Arc::new(AtomicBool::new(false));
    let service = Backend::serving({
        let is_gone = is_gone.clone();
        move |request, wire| {
            let is_left = is_gone.load(Ordering::Acquire) && request.target.ends_with("left.good.example");
            wire.answers(if is_left { 404 } else { 200 }, &[], "");
            After::Close
        }
    });
    let weir =
        demanding(&with("remember = \"1s\""), ports, &pebble, &backend, &service).with_fake_clock().start();
    let all = ["used.good.example", "left.good.example", "unused.good.example"];
    let before = all.map(|name| shown(&weir, name));
    is_gone.store(true, Ordering::Release);
    weir.sets_clock("+1500d");
    assert_eq!(shown(&weir, all[0]), before[0]);
    assert_eq!(shown(&weir, all[1]), before[1]);
    let asked =
        |name: &str| service.requests().iter().filter(|request| request.target.ends_with(name)).count();
    // A reload has all certificates checked again; otherwise that could take up to ten minutes. Only once:
    // according to this clock the new certificate is as old as the first, so the next check would renew it
    // too.
    assert_eq!(weir.command(&["reload"]).code, 0);
    until_within(ORDER, "both to be asked about again, and one to be renewed", || {
        (asked(all[0]) >= 2 && asked(all[1]) >= 2 && names(&weir, "issued") >= 4.0).then_some(())
    });
    until("the new certificate to be shown", || (shown(&weir, all[0]) != before[0]).then_some(()));
    assert_eq!(shown(&weir, all[1]), before[1], "the service refuses it, but the certificate is still valid");
    assert_eq!(asked(all[2]), 1, "nobody asked for it lately");
    assert_eq!(names(&weir, "issued"), 4.0);
    until("a line in the log", || weir.stderr().contains("certificate renewed").then_some(()));
}

#[test]
fn names_outside_the_patterns_of_the_entry_are_nobodys() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let config = CONFIG
        .replace("[listener.secure.tls.acme]", "[listener.secure.tls.acme]\ndomains = \"*.good.example\"");
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    served(&weir, &pebble, "m.good.example");
    refused(&weir, "n.m.good.example");
    refused(&weir, "good.example");
    assert_eq!(service.served(), 1);
    let mut client = weir.client("plain");
    client.sends(LAST);
    client.receives_status(200);
}
