//! h2load: many streams at once, none may fail.

use std::time::Duration;

use weir_tests::dialogue::{Finished, PATIENCE, Setup, run_tool, tool};

use super::super::clients::site;
use super::both;

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
    let load = std::thread::spawn(move || {
        let arguments = ["-c", "10", "-m", "10", "-n", "30000", &url];
        run_tool(&tool("h2load", "nghttp2-client"), &arguments, b"", Duration::from_secs(120))
    });
    let mut reloads = 0;
    while !load.is_finished() {
        weir.reloads(&format!("{config}\n# {reloads}\n"));
        reloads += 1;
    }
    all_succeeded(&load.join().expect("h2load"), 30_000);
    println!("{reloads} reloads");
    assert!(reloads > 0);
}
