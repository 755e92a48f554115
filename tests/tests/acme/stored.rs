//! Certificates that were ordered on demand and are in the store: served whatever becomes of others.

use std::sync::atomic::Ordering;

use weir_tests::dialogue::{Signal, Wire, until};

use super::mirror;
use super::on_demand::{
    demanding, greeting, names, refused, served, service, slow_service, waiting, waits, with,
};
use super::pebble::{Pebble, Ports};

#[test]
fn what_is_stored_is_served_whatever_holds_up_orders() {
    let (ports, backend, service) = (Ports::free(), mirror(), service());
    let mut pebble = Pebble::running(ports);
    let mut weir = demanding(&with("max_names = 1"), ports, &pebble, &backend, &service).start();
    let root = pebble.root().display().to_string();
    served(&weir, &pebble, "u.good.example");
    pebble.stops();
    weir.signals(Signal::TERM);
    weir.starts_again();
    // Each failure doubles the time in which nothing is ordered, until it is long enough to be seen.
    until("the authority to be left alone", || {
        refused(&weir, "v.good.example");
        let url = "https://w.good.example/";
        let explained = weir.command(&["explain", "http", "GET", url, "--listener", "secure"]).stdout;
        explained.contains("for the authority is away").then_some(())
    });
    let asked = crate::tls::curl(&weir, "secure", "u.good.example", &["--cacert", &root]);
    assert!(asked.stdout.ends_with("status 200"), "{asked:?}\n{}", weir.story());
    refused(&weir, "w.good.example");
    assert_eq!((names(&weir, "stored"), names(&weir, "issued")), (1.0, 0.0));
    assert!(names(&weir, "failed") >= 1.0);
}

/// After a restart no certificate is in memory: those who come for theirs need no place among those who wait
/// for a service.
#[test]
fn handshakes_that_wait_for_a_slow_name_keep_nobody_from_what_is_stored() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let (is_open, service) = slow_service();
    is_open.store(true, Ordering::Release);
    let mut weir =
        demanding(&with("max_waiting = 2\nask_timeout = \"60s\""), ports, &pebble, &backend, &service)
            .start();
    let customers = ["x.good.example", "y.good.example", "z.good.example"];
    customers.iter().for_each(|name| served(&weir, &pebble, name));
    weir.signals(Signal::TERM);
    is_open.store(false, Ordering::Release);
    weir.starts_again();
    let _slow: Vec<Wire> = (0..2)
        .map(|_| {
            let mut client = weir.client("secure");
            client.sends(greeting("slow.good.example"));
            client
        })
        .collect();
    weir.reaches("weir_acme_on_demand_waiting", &[], 2.0);
    until("the service to be asked", || (service.busy() == 1).then_some(()));
    customers.iter().for_each(|name| served(&weir, &pebble, name));
    // What is not there finds no place, and is not asked about for nobody.
    refused(&weir, "new.good.example");
    assert_eq!((names(&weir, "stored"), waits(&weir, "served"), waits(&weir, "no_place")), (3.0, 3.0, 1.0));
    assert_eq!((names(&weir, "busy"), waiting(&weir), service.busy()), (1.0, 2.0, 1));
    is_open.store(true, Ordering::Release);
}
