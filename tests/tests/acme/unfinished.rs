//! What goes wrong when the authority has been told to sign: it counts what it issues, so the same order is
//! asked for again, and none is placed beside it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_tests::dialogue::{Backend, Setup, Signal, Weir, until_within};

use super::between::{Answer, Between};
use super::{
    CONFIG, ORDER, Pebble, Ports, asked, certificate, comes_to, is_issued, mirror, orders, setup, shown,
};

/// A Weir that orders from `authority`.
fn from(authority: &Between, ports: Ports, pebble: &Pebble, backend: &Backend) -> Setup {
    setup(CONFIG, ports, pebble, backend).with("directory", authority.directory())
}

/// An authority that gives no certificate away until it is told to.
fn withholding(pebble: &Pebble) -> (Arc<AtomicBool>, Between) {
    let gives = Arc::new(AtomicBool::new(false));
    let authority = Between::and(pebble, {
        let gives = gives.clone();
        move |request, ask| match request.target.starts_with("/certZ/") && !gives.load(Ordering::Acquire) {
            true => Answer::plain(503),
            false => ask(),
        }
    });
    (gives, authority)
}

/// Where the order is kept that is not brought to its end.
fn kept(weir: &Weir) -> PathBuf {
    PathBuf::from(format!("{}.order", certificate(weir, "secure")["file"].as_str().expect("a file")))
}

/// It signs when it likes to, and would be asked again tomorrow.
#[test]
fn an_authority_that_takes_its_time_is_asked_for_the_same_order_again() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_finalized, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let authority = Between::and(&pebble, move |request, ask| {
        let answer = ask();
        is_finalized.fetch_or(request.target.starts_with("/finalize-order/"), Ordering::AcqRel);
        let is_look = request.target.starts_with("/my-order/") && is_finalized.load(Ordering::Acquire);
        match is_look && looks.fetch_add(1, Ordering::AcqRel) == 0 {
            true => {
                answer.changed(|order| order["status"] = "processing".into()).with("retry-after", "86400")
            }
            false => answer,
        }
    });
    let weir = from(&authority, ports, &pebble, &backend).start();
    is_issued(&weir, "secure");
    assert_eq!((authority.asked("/order-plz"), authority.asked("/finalize-order/")), (1, 1));
    assert_eq!(orders(&weir, "issued"), 1.0, "{}", weir.story());
    assert!(!kept(&weir).exists());
}

#[test]
fn a_certificate_that_does_not_come_across_is_fetched_later_also_by_the_next_process() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (gives, authority) = withholding(&pebble);
    let mut weir = from(&authority, ports, &pebble, &backend).start();
    until_within(ORDER, "it to be fetched twice", || (authority.asked("/certZ/") >= 2).then_some(()));
    assert_eq!(authority.asked("/finalize-order/"), 1, "{}", weir.story());
    comes_to(&weir, "late", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    assert!(order["error"].as_str().is_some_and(|error| error.contains("503")), "{order}");
    let kept = kept(&weir);
    assert_eq!(std::fs::metadata(&kept).expect("it is kept").permissions().mode() & 0o777, 0o600);

    weir.signals(Signal::TERM);
    weir.starts_again();
    gives.store(true, Ordering::Release);
    is_issued(&weir, "secure");
    assert!(asked(&weir, &pebble, "shop.example").succeeded().ends_with("status 200"));
    assert_eq!((authority.asked("/order-plz"), authority.asked("/finalize-order/")), (1, 1));
    assert_eq!((orders(&weir, "issued"), kept.exists()), (1.0, false), "{}", weir.story());
}

#[test]
fn an_order_that_the_authority_has_forgotten_is_given_up_for_another() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::running(ports);
    let (gives, authority) = withholding(&pebble);
    let weir = from(&authority, ports, &pebble, &backend).start();
    comes_to(&weir, "late", 1.0);
    pebble.stops();
    pebble.starts();
    gives.store(true, Ordering::Release);
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert_eq!(authority.asked("/finalize-order/"), 2, "{}", weir.story());
    assert!(shown(&weir, "shop.example").starts_with("-----BEGIN") && !kept(&weir).exists());
}

/// It changes its mind when it should sign.
#[test]
fn an_order_that_turned_invalid_is_given_up_and_not_placed_again_at_once() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_finalized, signs) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let authority = Between::and(&pebble, {
        let signs = signs.clone();
        move |request, ask| {
            let answer = ask();
            is_finalized.fetch_or(request.target.starts_with("/finalize-order/"), Ordering::AcqRel);
            let is_look = request.target.starts_with("/my-order/") && is_finalized.load(Ordering::Acquire);
            let no = serde_json::json!({ "type": "urn:ietf:params:acme:error:caa", "detail": "not for you" });
            let refuse = |order: &mut serde_json::Value| {
                (order["status"], order["error"]) = ("invalid".into(), no);
            };
            match is_look && !signs.load(Ordering::Acquire) {
                true => answer.changed(refuse),
                false => answer,
            }
        }
    });
    let weir = from(&authority, ports, &pebble, &backend).start();
    comes_to(&weir, "refused", 1.0);
    let order = certificate(&weir, "secure")["acme"].clone();
    assert!(order["error"].as_str().is_some_and(|error| error.contains("not for you (caa)")), "{order}");
    assert!(!kept(&weir).exists() && authority.asked("/finalize-order/") == 1);
    signs.store(true, Ordering::Release);
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert_eq!((authority.asked("/order-plz"), authority.asked("/finalize-order/")), (2, 2));
}
