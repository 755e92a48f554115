//! A store behind a file server that answers nothing, as NFS when its server is gone. Needs root.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_tests::dialogue::{Weir, until, until_within};
use weir_tests::hung::Hung;

use super::pebble::{ORDER, Pebble, Ports, is_issued};
use super::{CONFIG, comes_to, mirror, setup, shown};

fn up(weir: &Weir, backend: SocketAddr) -> f64 {
    weir.metric("weir_backend_up", &[("pool", "app"), ("backend", &backend.to_string())])
}

/// Earlier the thread that probes, reloads and answers the admin API waited for the store.
#[test]
fn while_the_store_hangs_only_its_orders_wait() {
    let (ports, backend) = (Ports::free(), mirror());
    let gone = backend.address();
    let mut pebble = Pebble::away(ports, false);
    let config =
        CONFIG.replace("health = \"off\"", "health = { check = \"tcp\", interval = \"100ms\", fall = 2 }");
    let mut weir = setup(&config, ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    until("the backend to be up", || (up(&weir, gone) == 1.0).then_some(()));
    let hung = Hung::at(&weir.dir().join("store"));
    // It is to be tried again, and is not.
    let is_stuck = |weir: &Weir| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs_f64();
        weir.metric("weir_acme_next_attempt_timestamp_seconds", &[]) < now - 1.0
    };
    until_within(ORDER, "the order to wait for the store", || is_stuck(&weir).then_some(()));
    drop(backend);
    until("the backend to be found gone", || (up(&weir, gone) == 0.0).then_some(()));
    assert!(is_stuck(&weir), "{}", weir.story());

    // What listeners serve from the store must not be lost by a reload.
    weir.rewrites(&config.replace("fall = 2", "fall = 3"));
    let refused = weir.command(&["reload"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("the store of certificates does not answer"), "{refused:?}");

    drop(hung);
    pebble.starts();
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert!(shown(&weir, "shop.example").contains("BEGIN CERTIFICATE"));
}
