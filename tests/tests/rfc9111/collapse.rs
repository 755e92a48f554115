//! Fetches that fail, or bring what is not to be kept (threat E5); `cache/fill.rs` has those that go well.

use std::time::{Duration, Instant};

use super::{CONFIG, Site, ok, site};
use weir_tests::dialogue::{PATIENCE, ScriptedBackend, Setup, Weir};

/// Weir before an origin that the test plays itself.
fn before(origin: &ScriptedBackend, rules: &str) -> Weir {
    Setup::of(&CONFIG.replace("RULES", rules)).with("app", origin.address()).start()
}

const ASK: &str = "GET /page HTTP/1.1\r\nhost: a.example\r\n\r\n";

/// Threat E5.
#[test]
fn a_fetch_that_fails_does_not_take_its_waiters_along_for_ever() {
    let origin = ScriptedBackend::start();
    let weir = before(&origin, "");
    let mut clients = [weir.client("web"), weir.client("web")];
    clients[0].sends(ASK);
    let mut fetch = origin.accepts();
    fetch.receives_request();
    clients[1].sends(ASK);
    fetch.resets();
    // The waiter may share the failure or begin anew; it gets an answer either way.
    let retried = std::thread::scope(|scope| {
        let answers = clients.each_mut().map(|client| scope.spawn(move || client.receives_response().status));
        let begun = Instant::now();
        let mut retried = 0;
        while answers.iter().any(|answer| !answer.is_finished()) && begun.elapsed() < PATIENCE {
            if let Some(mut again) = origin.accepts_if_any() {
                again.receives_request();
                again.answers(200, &[("cache-control", "max-age=60")], "again");
                retried += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let statuses = answers.map(|answer| answer.join().expect("an answer"));
        assert!(statuses.iter().all(|status| matches!(status, 200 | 502)), "{statuses:?}");
        retried
    });
    assert!(retried <= 2);
}

#[test]
fn what_turns_out_not_to_be_kept_is_fetched_for_each_client() {
    let site: Site = site("", |_, before| ok("cache-control: private, max-age=60", before.to_string()));
    let bodies = std::thread::scope(|scope| {
        let answers: Vec<_> = (0..8).map(|_| scope.spawn(|| site.get("/", &[]).text())).collect();
        let mut bodies: Vec<String> =
            answers.into_iter().map(|answer| answer.join().expect("an answer")).collect();
        bodies.sort();
        bodies
    });
    let expected: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    assert_eq!(bodies, expected);
}
