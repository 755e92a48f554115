//! Authorities that refuse for an account what they would refuse for all its names, and what they say then.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use weir_tests::dialogue::{After, Backend, Signal, until, until_within};

use super::between::{Answer, Between};
use super::on_demand::{self, demanding, names, refused, served, service};
use super::{CONFIG, ORDER, Pebble, Ports, certificate, comes_to, is_issued, mirror, orders, setup, shown};

/// As Let's Encrypt says it.
const TOO_MANY: &str = "too many new orders (300) from this account in the last 3h0m0s, retry after a while";

fn limited(detail: &str) -> Answer {
    Answer::problem(429, "rateLimited", detail).with("retry-after", "3600")
}

/// Refuses at `path` what is not let through.
fn refusing(
    pebble: &Pebble,
    path: &'static str,
    no: impl Fn() -> Answer + Send + Sync + 'static,
) -> (Arc<AtomicBool>, Between) {
    let lets = Arc::new(AtomicBool::new(false));
    let authority = Between::and(pebble, {
        let lets = lets.clone();
        move |request, ask| match request.target == path && !lets.load(Ordering::Acquire) {
            true => no(),
            false => ask(),
        }
    });
    (lets, authority)
}

#[test]
fn names_whose_account_is_unknown_to_the_authority_share_the_next_one() {
    const AT_ONCE: usize = 6;
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let mut pebble = Pebble::running(ports);
    let (together, come) = (Barrier::new(AT_ONCE), AtomicUsize::new(0));
    let authority = Between::and(&pebble, move |request, ask| {
        // The first is alone; those after it are all refused before any of them goes on.
        if request.target == "/order-plz" && (1..=AT_ONCE).contains(&come.fetch_add(1, Ordering::AcqRel)) {
            let answer = ask();
            together.wait();
            return answer;
        }
        ask()
    });
    let weir = demanding(on_demand::CONFIG, ports, &pebble, &backend, &service)
        .with("directory", authority.directory())
        .start();
    served(&weir, &pebble, "first.good.example");
    pebble.stops();
    pebble.starts();
    std::thread::scope(|scope| {
        for number in 0..AT_ONCE {
            let weir = &weir;
            scope.spawn(move || shown(weir, &format!("n{number}.good.example")));
        }
    });
    assert_eq!((names(&weir, "issued"), names(&weir, "failed")), (1.0 + AT_ONCE as f64, 0.0));
    assert_eq!(authority.asked("/sign-me-up"), 2, "{}", weir.story());
}

/// Nothing that an authority says is kept or logged whole.
#[test]
fn a_refusal_of_a_megabyte_is_cut() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let words = || Answer::problem(403, "unauthorized", &format!("no \u{e4}{}", "\u{e4}".repeat(450_000)));
    let (_, authority) = refusing(&pebble, "/order-plz", words);
    let weir = setup(CONFIG, ports, &pebble, &backend).with("directory", authority.directory()).start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    let error = order["error"].as_str().expect("an error");
    assert!(error.starts_with("no \u{e4}\u{e4}") && error.len() < 2 << 10, "{} bytes", error.len());
    until("a line in the log", || weir.stderr().contains("no certificate could be got").then_some(()));
    assert!(weir.stderr().len() < 100 << 10, "{} bytes", weir.stderr().len());
}

fn held(path: &'static str) {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let (lets, authority) = refusing(&pebble, path, || limited(TOO_MANY));
    let weir = demanding(on_demand::CONFIG, ports, &pebble, &backend, &service)
        .with("directory", authority.directory())
        .start();
    for number in 0..6 {
        refused(&weir, &format!("n{number}.good.example"));
    }
    assert_eq!(authority.asked(path), 1, "{}", weir.story());
    assert_eq!((names(&weir, "failed"), names(&weir, "limited")), (1.0, 5.0));
    let status = weir.command(&["status"]).stdout;
    assert!(status.contains("n5.good.example: ") && status.contains("from this account"), "{status}");
    // An operator need not wait.
    lets.store(true, Ordering::Release);
    assert_eq!(weir.command(&["reload"]).code, 0);
    served(&weir, &pebble, "n3.good.example");
    served(&weir, &pebble, "n4.good.example");
}

#[test]
fn a_limit_on_new_orders_holds_for_all_names_of_the_account() {
    held("/order-plz");
}

#[test]
fn a_limit_on_new_accounts_holds_for_all_names() {
    held("/sign-me-up");
}

#[test]
fn a_limit_on_one_name_holds_up_no_other() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let count = AtomicUsize::new(0);
    let authority = Between::and(&pebble, move |request, ask| {
        let own = "too many certificates (50) already issued for \"one.good.example\" in the last 168h0m0s";
        match request.target == "/order-plz" && count.fetch_add(1, Ordering::AcqRel) == 0 {
            true => limited(own),
            false => ask(),
        }
    });
    let weir = demanding(on_demand::CONFIG, ports, &pebble, &backend, &service)
        .with("directory", authority.directory())
        .start();
    refused(&weir, "a.one.good.example");
    served(&weir, &pebble, "b.good.example");
    assert_eq!((names(&weir, "issued"), names(&weir, "failed")), (1.0, 1.0));
}

/// It suggests to renew, and refuses then.
#[test]
fn a_renewal_that_meets_a_limit_is_not_tried_again_without_what_it_replaces() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let is_full = Arc::new(AtomicBool::new(false));
    let authority = Between::and(&pebble, {
        let is_full = is_full.clone();
        move |request, ask| match request.target.as_str() {
            "/dir" => {
                let answer = ask();
                let renewal = answer.says("newOrder").replace("/order-plz", "/renewal");
                answer.changed(|all| all["renewalInfo"] = renewal.into())
            }
            "/order-plz" if is_full.load(Ordering::Acquire) => limited(TOO_MANY),
            path if path.starts_with("/renewal/") => {
                let (start, end) = ("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z");
                let window = serde_json::json!({ "suggestedWindow": { "start": start, "end": end } });
                Answer::json(&window).with("retry-after", "3600")
            }
            _ => ask(),
        }
    });
    let mut weir = setup(CONFIG, ports, &pebble, &backend).with("directory", authority.directory()).start();
    is_issued(&weir, "secure");
    assert_eq!(authority.asked("/order-plz"), 1);
    super::renewal::ages(&weir);
    is_full.store(true, Ordering::Release);
    weir.signals(Signal::TERM);
    weir.starts_again();
    comes_to(&weir, "refused", 1.0);
    assert_eq!(authority.asked("/order-plz"), 2, "{}", weir.story());
}

#[test]
fn an_account_that_is_no_more_is_named_by_its_file() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let no = || Answer::problem(403, "unauthorized", "Account is not valid, has status \"deactivated\"");
    let (lets, authority) = refusing(&pebble, "/order-plz", no);
    let weir = setup(CONFIG, ports, &pebble, &backend).with("directory", authority.directory()).start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    let error = order["error"].as_str().expect("an error");
    let file = error.split(['`', ' ', ',']).find(|word| word.ends_with("account.json")).expect("a file");
    std::fs::remove_file(file).expect("remove");
    lets.store(true, Ordering::Release);
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert_eq!((authority.asked("/sign-me-up"), orders(&weir, "issued")), (2, 1.0));
}

/// An authority that holds the first order until `is_mended`, and refuses it then for what was wrong before.
fn refusing_once_mended(pebble: &Pebble, is_mended: &Arc<AtomicBool>) -> Between {
    let (is_mended, count) = (is_mended.clone(), AtomicUsize::new(0));
    Between::and(pebble, move |request, ask| {
        if request.target != "/order-plz" || count.fetch_add(1, Ordering::AcqRel) > 0 {
            return ask();
        }
        until_within(ORDER, "the reload", || is_mended.load(Ordering::Acquire).then_some(()));
        Answer::problem(403, "rejectedIdentifier", "not yet")
    })
}

/// An operator has mended what was wrong while an attempt was under way that fails for it.
#[test]
fn a_reload_while_an_order_is_under_way_has_it_tried_again_when_it_fails() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let is_mended = Arc::new(AtomicBool::new(false));
    let authority = refusing_once_mended(&pebble, &is_mended);
    let weir = setup(CONFIG, ports, &pebble, &backend).with("directory", authority.directory()).start();
    until("an order to be under way", || (authority.asked("/order-plz") == 1).then_some(()));
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_mended.store(true, Ordering::Release);
    // Without it, a refusal is left alone for three quarters of a minute at least.
    until("it to be tried again", || (authority.asked("/order-plz") == 2).then_some(()));
    is_issued(&weir, "secure");
    assert_eq!((orders(&weir, "refused"), orders(&weir, "issued")), (1.0, 1.0));
}

/// A client waits for a name while a reload comes, and is served once what was wrong is mended.
fn waited_for(
    weir: &weir_tests::dialogue::Weir,
    pebble: &Pebble,
    is_under_way: impl Fn() -> bool,
    is_mended: &AtomicBool,
) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| served(weir, pebble, "a.good.example"));
        until("an attempt to be under way", || is_under_way().then_some(()));
        assert_eq!(weir.command(&["reload"]).code, 0);
        is_mended.store(true, Ordering::Release);
        client.join().expect("it is served");
    });
    assert_eq!((names(weir, "issued"), names(weir, "failed"), names(weir, "refused")), (1.0, 0.0, 0.0));
}

/// It failed of what had been mended, its client was refused, and so was who came in the minute after.
#[test]
fn a_reload_while_a_name_is_ordered_on_demand_has_it_tried_again_when_it_fails() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let pebble = Pebble::running(ports);
    let is_mended = Arc::new(AtomicBool::new(false));
    let authority = refusing_once_mended(&pebble, &is_mended);
    let config = on_demand::CONFIG.replace("ask = \"@ask\"", "ask = \"@ask\"\nwait = \"25s\"");
    let weir = demanding(&config, ports, &pebble, &backend, &service)
        .with("directory", authority.directory())
        .start();
    waited_for(&weir, &pebble, || authority.asked("/order-plz") == 1, &is_mended);
    assert_eq!(authority.asked("/order-plz"), 2);
}

#[test]
fn a_reload_while_the_service_is_asked_for_a_name_has_it_asked_again_when_it_refuses() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_mended, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let service = Backend::serving({
        let (is_mended, count) = (is_mended.clone(), count.clone());
        move |_, wire| {
            let is_first = count.fetch_add(1, Ordering::AcqRel) == 0;
            if is_first {
                until_within(ORDER, "the reload", || is_mended.load(Ordering::Acquire).then_some(()));
            }
            wire.answers(if is_first { 404 } else { 200 }, &[], "");
            After::Close
        }
    });
    let config = on_demand::CONFIG.replace("ask = \"@ask\"", "ask = \"@ask\"\nwait = \"25s\"");
    let weir = demanding(&config, ports, &pebble, &backend, &service).start();
    waited_for(&weir, &pebble, || count.load(Ordering::Acquire) == 1, &is_mended);
    assert_eq!(count.load(Ordering::Acquire), 2);
}

/// It was no wait at all: the authority was asked again within two minutes, and counted that.
#[test]
fn a_wait_that_is_said_as_a_date_is_kept() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let date = std::process::Command::new("date")
        .env("LC_ALL", "C")
        .args(["-u", "-d", "+3 hours", "+%a, %d %b %Y %H:%M:%S GMT"])
        .output()
        .expect("it runs");
    let date = String::from_utf8(date.stdout).expect("text").trim().to_owned();
    let no = move || {
        Answer::problem(429, "rateLimited", "too many certificates for shop.example")
            .with("retry-after", &date)
    };
    let (_, authority) = refusing(&pebble, "/order-plz", no);
    let weir = setup(CONFIG, ports, &pebble, &backend).with("directory", authority.directory()).start();
    comes_to(&weir, "refused", 1.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    let wait = weir.metric("weir_acme_next_attempt_timestamp_seconds", &[]) - now.as_secs_f64();
    assert!((10_000.0..=11_000.0).contains(&wait), "{wait} s: {}", weir.story());
}
