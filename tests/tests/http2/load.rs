//! h2load: many streams at once, none may fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_tests::dialogue::{Finished, PATIENCE, Setup, run_tool, tool};

use super::super::clients::site;
use super::both;

/// So many while requests are answered.
const RELOADS: usize = 100;

/// Fails unless h2load says that every one of `count` requests was answered 2xx.
fn all_succeeded(finished: &Finished, count: u32) {
    let text = finished.succeeded();
    let expected = format!(
        "requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout"
    );
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains(&format!("status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx")), "{text}");
}

#[test]
fn a_hundred_connections_with_ten_streams_each_see_no_error() {
    let backend = site();
    let weir = both(&backend);
    let url = format!("http://{}/", weir.address("web"));
    let arguments = ["-c", "100", "-m", "10", "-n", "20000", &url];
    all_succeeded(&run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 6), 20_000);
}

#[test]
fn reloads_under_http2_load_fail_no_request() {
    let backend = site();
    let config = super::BOTH;
    let mut weir = Setup::of(config).with("app", backend.address()).start();
    let url = format!("http://{}/bytes/2000", weir.address("web"));
    // As many requests as there are meanwhile, so that a slow machine has less to do.
    let is_enough = Arc::new(AtomicBool::new(false));
    let load = std::thread::spawn({
        let is_enough = is_enough.clone();
        move || {
            let arguments = ["-c", "10", "-m", "10", "-n", "3000", &url];
            while !is_enough.load(Ordering::Relaxed) {
                let finished = run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", PATIENCE * 4);
                all_succeeded(&finished, 3000);
            }
        }
    });
    let (mut reloads, mut under_load) = (0, 0);
    while under_load < RELOADS && !load.is_finished() {
        let before = backend.served();
        weir.reloads(&format!("{config}\n# {reloads}\n"));
        reloads += 1;
        under_load += usize::from(backend.served() > before);
    }
    is_enough.store(true, Ordering::Relaxed);
    load.join().expect("h2load");
    println!("{reloads} reloads, {under_load} of them under load, {} requests", backend.served());
    assert_eq!(under_load, RELOADS);
}
