//! Several Weirs with one store, behind one address.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::dialogue::{PATIENCE, Setup, Signal, Weir, run_tool, tool, until, until_within};

use super::pebble::{ORDER, Pebble, Ports, certificate, is_issued};
use super::{CONFIG, by, comes_to, handshakes, mirror, orders, setup, shown};
use crate::tls::{Authority, LAST, s_client};

/// A folder that several share; removed when dropped.
struct Store(PathBuf);

impl Store {
    fn new(ports: Ports) -> Store {
        Store(std::env::temp_dir().join(format!("weir-acme-shared-{}", ports.tls.port())))
    }

    /// What lies in the folder of the authority, or in one in it, with this extension.
    fn files(&self, within: &str, extension: &str) -> Vec<PathBuf> {
        let entries = |folder: &Path| {
            let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
            all.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let folders = entries(&self.0).into_iter().map(|folder| folder.join(within));
        let files = folders.flat_map(|folder| entries(&folder));
        files.filter(|file| file.extension().is_some_and(|own| own == extension)).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const FRONT: &str = r#"
    [runtime]
    workers = 1
    [listener.http]
    protocol = "tcp"
    bind = "@http"
    pool = "http"
    [listener.tls]
    protocol = "tcp"
    bind = "@tls"
    pool = "tls"
    [pool.http]
    backends = ["@one_http", "@other_http"]
    health = "off"
    [pool.tls]
    backends = ["@one_tls", "@other_tls"]
    health = "off"
"#;

/// One address before both: connections go to them in turn.
fn front(config: &str, outside: Ports, [one, other]: [Ports; 2]) -> Weir {
    let setup = Setup::of(config).with("http", outside.http).with("tls", outside.tls);
    let setup = setup.with("one_http", one.http).with("other_http", other.http);
    setup.with("one_tls", one.tls).with("other_tls", other.tls).start()
}

/// Has the authority come back, and nobody wait until it is asked again by itself.
fn starts(pebble: &mut Pebble, nodes: &[Weir]) {
    pebble.starts();
    nodes.iter().for_each(|node| _ = node.command(&["reload"]).succeeded());
}

fn with_store(config: &str, store: &Store) -> String {
    let domains = r#""shop.example", "www.shop.example", "a.shop.example", "b.shop.example""#;
    let config = config.replace(r#""shop.example", "www.shop.example""#, domains);
    config.replace("@dir/store", &store.0.display().to_string())
}

fn are_proved_by_both(way: &str, count: impl Fn(&Weir) -> f64) {
    let (outside, backend) = (Ports::free(), mirror());
    let (store, mut pebble) = (Store::new(outside), Pebble::away(outside, false));
    let inside = [Ports::free(), Ports::free()];
    let config = with_store(&by(way), &store);
    let nodes = inside.map(|ports| setup(&config, ports, &pebble, &backend).start());
    let front = front(FRONT, outside, inside);
    nodes.iter().for_each(|node| comes_to(node, "away", 1.0));
    starts(&mut pebble, &nodes);
    nodes.iter().for_each(|node| is_issued(node, "secure"));
    let [one, other] = &nodes;
    assert_eq!(orders(one, "issued") + orders(other, "issued"), 1.0, "one of them has ordered");
    assert_eq!(orders(one, "refused") + orders(other, "refused"), 0.0, "{}\n{}", one.story(), other.story());
    let proofs = [count(one), count(other)];
    assert!(proofs.iter().all(|count| *count >= 1.0), "{proofs:?} by {way}\n{}", front.story());
    let certificate = shown(one, "a.shop.example");
    until("the other to serve it", || (shown(other, "a.shop.example") == certificate).then_some(()));
    assert_eq!(
        store.files("challenges", "proof"),
        Vec::<PathBuf>::new(),
        "{way}: what is over is taken away"
    );
    assert_eq!(store.files("", "claim"), Vec::<PathBuf>::new());
}

#[test]
fn weirs_with_one_store_answer_each_others_requests_for_tokens_and_one_orders() {
    are_proved_by_both("http-01", |node| node.metric("weir_requests_total", &[("listener", "plain")]));
}

#[test]
fn weirs_with_one_store_show_each_others_certificates_of_challenges_and_one_orders() {
    are_proved_by_both("tls-alpn-01", |node| handshakes(node, "challenge"));
}

#[test]
fn a_weir_that_is_killed_in_the_middle_of_an_order_leaves_it_to_another() {
    let (outside, backend) = (Ports::free(), mirror());
    let (store, mut pebble) = (Store::new(outside), Pebble::away(outside, false));
    let inside = [Ports::free(), Ports::free()];
    let config = with_store(&by("http-01"), &store);
    let nodes = inside.map(|ports| setup(&config, ports, &pebble, &backend).start());
    // It takes what the authority asks, and answers nothing, so that the order does not get on.
    let silence = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silence.local_addr().expect("an address");
    let nowhere = Ports { http: silent, tls: silent };
    let to_one = FRONT.replace(r#", "@other_http""#, "").replace(r#", "@other_tls""#, "");
    let mut front = front(&to_one, outside, [nowhere, nowhere]);
    nodes.iter().for_each(|node| comes_to(node, "away", 1.0));
    starts(&mut pebble, &nodes);
    let claim: Value = until_within(ORDER, "an order to be under way", || {
        let claims = store.files("", "claim");
        let text = claims.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
        (!store.files("challenges", "proof").is_empty()).then(|| serde_json::from_str(&text).ok()).flatten()
    });
    let [one, other] = nodes;
    let holds = |node: &Weir| claim["process"] == node.pid();
    let (dead, alive, way) = if holds(&one) { (one, other, inside[1]) } else { (other, one, inside[0]) };
    assert!(holds(&dead), "{claim}");
    dead.signals_pid(dead.pid(), Signal::KILL);
    front.knows("one_http", way.http);
    front.reloads(&to_one);
    is_issued(&alive, "secure");
    assert_eq!(orders(&alive, "issued"), 1.0, "{}", alive.story());
    assert_eq!(store.files("", "claim"), Vec::<PathBuf>::new());
    drop(silence);
}

/// Ends the holder of a claim, also of a test that fails.
struct GivesUp<'a>(&'a AtomicBool);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn what_another_host_has_claimed_is_ordered_when_that_gives_it_up() {
    let (ports, backend) = (Ports::free(), mirror());
    let (store, mut pebble) = (Store::new(ports), Pebble::away(ports, false));
    let weir = setup(&with_store(&by("http-01"), &store), ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    let locks = store.files("", "lock");
    let lock = locks.iter().find(|file| !file.ends_with("account.lock")).expect("the certificate's lock");
    let claim = lock.with_extension("claim");
    let write = |renewals: u64| {
        let text = json!({ "host": "other", "process": 1, "number": 7, "renewals": renewals, "at": "" });
        std::fs::write(&claim, text.to_string()).expect("write");
    };
    let is_held = AtomicBool::new(true);
    std::thread::scope(|scope| {
        write(0);
        let held = GivesUp(&is_held);
        // As its holder renews it.
        let holder = scope.spawn(|| {
            for renewals in 1.. {
                if !is_held.load(Ordering::SeqCst) {
                    return;
                }
                write(renewals);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        starts(&mut pebble, std::slice::from_ref(&weir));
        until("it to wait", || (certificate(&weir, "secure")["acme"]["state"] == "ordering").then_some(()));
        assert_eq!(orders(&weir, "issued"), 0.0);
        drop(held);
        holder.join().expect("the holder");
        std::fs::remove_file(&claim).expect("it is there");
    });
    is_issued(&weir, "secure");
    assert_eq!(orders(&weir, "issued"), 1.0);
}

#[test]
fn j34_a_store_has_a_weir_answer_proofs_alone_and_a_flood_of_tokens_keeps_none_from_its_answer() {
    let (ports, backend) = (Ports::free(), mirror());
    let (store, pebble) = (Store::new(ports), Pebble::away(ports, false));
    let weir = setup(&with_store(&by("http-01"), &store), ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    let folder = until("a folder of the authority", || {
        let all = std::fs::read_dir(&store.0).ok()?.flatten().map(|entry| entry.path());
        all.into_iter().find(|path| path.is_dir())
    });
    let folder = folder.join("challenges");
    std::fs::create_dir(&folder).expect("a folder");
    let elsewhere = store.0.join("elsewhere");
    std::fs::write(&elsewhere, "token linked linked.thumb\n").expect("write");
    symlink(&elsewhere, folder.join("linked.proof")).expect("a link");
    std::fs::write(folder.join("page.proof"), "token page <script>\n").expect("write");
    let asked = |token: &str| {
        let mut client = weir.client("plain");
        client.sends(format!(
            "GET /.well-known/acme-challenge/{token} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n\r\n"
        ));
        client.receives_response().text()
    };
    for token in ["linked", "page", "page.proof", "..%2felsewhere", "%2e%2e%2felsewhere", "nobody"] {
        let text = asked(token);
        assert!(!text.contains("thumb") && !text.contains("<script>"), "{token}: {text}");
    }
    let url = format!("http://{}/.well-known/acme-challenge/flood", weir.address("plain"));
    let flood = std::thread::spawn(move || {
        let arguments = ["--h1", "-n", "3000", "-c", "100", &url];
        run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 6).succeeded().to_owned()
    });
    std::fs::write(folder.join("good.proof"), "token good good.thumb\n").expect("write");
    assert_eq!(asked("good"), "good.thumb");
    let text = flood.join().expect("the flood");
    assert!(text.contains("0 failed, 0 errored, 0 timeout"), "{text}");
    assert_eq!(store.files("challenges", "look"), Vec::<PathBuf>::new(), "looks leave nothing");
}

/// As many Weirs as there were had the authority count as many refusals, each time that they tried again.
#[test]
fn what_one_weir_is_refused_another_with_its_store_does_not_try() {
    let (outside, backend) = (Ports::free(), mirror());
    let (store, mut pebble) = (Store::new(outside), Pebble::away(outside, false));
    let inside = [Ports::free(), Ports::free()];
    let config = with_store(&by("http-01"), &store);
    let nodes = inside.map(|ports| setup(&config, ports, &pebble, &backend).start());
    // It takes what the authority asks, and answers nothing until it is dropped.
    let silence = std::net::TcpListener::bind(outside.http).expect("a port");
    nodes.iter().for_each(|node| comes_to(node, "away", 1.0));
    starts(&mut pebble, &nodes);
    for node in &nodes {
        until("it to order, or to wait for the other", || {
            let asks =
                silence.set_nonblocking(true).is_ok() && !store.files("challenges", "proof").is_empty();
            (asks && certificate(node, "secure")["acme"]["state"] == "ordering").then_some(())
        });
    }
    drop(silence);
    let [one, other] = &nodes;
    until_within(ORDER, "both to know", || {
        let held = orders(one, "held") + orders(other, "held");
        // A reload that came as it began to order has it try once more.
        (held == 1.0 && orders(one, "refused") + orders(other, "refused") >= 1.0).then_some(())
    });
    let waits = if orders(one, "held") == 1.0 { one } else { other };
    assert_eq!(orders(waits, "refused"), 0.0);
    let said = certificate(waits, "secure")["acme"]["error"].to_string();
    assert!(said.contains("another Weir with this store has tried: "), "{said}");

    let _front = front(FRONT, outside, inside);
    nodes.iter().for_each(|node| _ = node.command(&["reload"]).succeeded());
    nodes.iter().for_each(|node| is_issued(node, "secure"));
    assert_eq!(orders(one, "issued") + orders(other, "issued"), 1.0, "{}\n{}", one.story(), other.story());
    assert_eq!(store.files("", "refused"), Vec::<PathBuf>::new());
}

/// It used to be served after ten minutes, when the Weir that had failed looked again.
#[test]
fn what_one_weir_got_while_another_failed_the_other_serves_at_once() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::away(ports, false);
    let weir = setup(CONFIG, ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    let file = certificate(&weir, "secure")["file"].as_str().expect("a file").to_owned();
    let authority = Authority::new().signs("shop", &["shop.example", "www.shop.example"]);
    std::fs::write(&file, authority.text("shop.key") + &authority.text("shop.pem")).expect("write");
    until_within(ORDER, "it to be served", || {
        s_client(weir.address("secure"), "-servername shop.example", LAST)
            .stdout
            .contains("BEGIN CERT")
            .then_some(())
    });
    assert_eq!(certificate(&weir, "secure")["acme"]["state"], "issued");
}
