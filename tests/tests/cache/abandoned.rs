//! Fetches that nobody waits for any more (threat E10).

use weir_tests::dialogue::http2::{self, Http2, code};
use weir_tests::dialogue::{ScriptedBackend, Setup, Weir, Wire, until};

use super::{KEEPS, get, status};

/// An origin that takes requests and leaves them unanswered.
pub struct Silent {
    backend: ScriptedBackend,
    /// Connections that it has taken, those that have ended among them.
    taken: Vec<Wire>,
}

impl Silent {
    pub fn start() -> Silent {
        Silent { backend: ScriptedBackend::start(), taken: Vec::new() }
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.backend.address()
    }

    /// How many have connected so far.
    pub fn connected(&mut self) -> usize {
        while let Some(wire) = self.backend.accepts_if_any() {
            self.taken.push(wire);
        }
        self.taken.len()
    }

    /// Waits until this many have connected.
    pub fn awaits(&mut self, count: usize) {
        until("the origin has it", || (self.connected() >= count).then_some(()));
    }

    /// How many have not ended.
    pub fn open(&mut self) -> usize {
        self.connected();
        self.taken.iter_mut().map(|wire| usize::from(!wire.has_ended())).sum()
    }

    /// Waits until no more than this many are open.
    #[track_caller]
    pub fn comes_down_to(&mut self, most: usize) {
        let mut open = 0;
        let down = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("fetches that nobody waits for to end", || {
                open = self.open();
                (open <= most).then_some(())
            });
        }));
        assert!(down.is_ok(), "{open} of {} are under way, {most} may be", self.taken.len());
    }

    /// The connections that are open.
    fn wires(&mut self) -> impl Iterator<Item = &mut Wire> {
        self.connected();
        self.taken.iter_mut().filter_map(|wire| if wire.has_ended() { None } else { Some(wire) })
    }
}

/// [`KEEPS`] before an origin that may take a minute.
fn patient() -> String {
    KEEPS.replace("backend = \"3s\"", "backend = \"60s\"")
}

fn before(origin: &Silent, config: &str) -> Weir {
    Setup::of(config).with("app", origin.address()).start()
}

fn ask(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n")
}

/// Clients that each ask for something else, and leave as soon as the origin has it.
fn leave_at_once(weir: &Weir, origin: &mut Silent, count: usize) {
    for number in 0..count {
        let mut client = weir.client("web");
        client.sends(ask(&format!("/{number}")));
        origin.awaits(number + 1);
        client.resets();
    }
}

#[test]
fn requests_that_are_given_up_are_no_more_than_may_be_under_way() {
    let mut origin = Silent::start();
    let limit = "concurrency_limit = { max = 2, key = \"client_ip\" }\n[[listener.web.route]]";
    let weir = before(&origin, &patient().replace("[[listener.web.route]]", limit));
    for number in 0..40 {
        // The place of the one before is free in a moment.
        until("a place", || {
            let mut client = weir.client("web");
            client.sends(ask(&format!("/{number}")));
            until("an answer, or the origin", || {
                let is_refused = client.looks() > 0;
                (is_refused || origin.connected() > number).then_some(())
            });
            let has_begun = origin.connected() > number;
            client.resets();
            has_begun.then_some(())
        });
    }
    origin.comes_down_to(2);
}

#[test]
fn requests_that_are_given_up_leave_a_bounded_number_of_fetches() {
    let mut origin = Silent::start();
    let weir = before(&origin, &patient());
    leave_at_once(&weir, &mut origin, 150);
    origin.comes_down_to(64);
}

/// CVE-2023-44487 with the origin as its victim: each stream costs the client two frames.
#[test]
fn streams_of_http_2_that_are_reset_leave_a_bounded_number_of_fetches() {
    let mut origin = Silent::start();
    let config = patient().replace("bind = \"@web\"", "bind = \"@web\"\nhttp = [\"h1\", \"h2\"]");
    let weir = before(&origin, &config);
    for connection in 0..16 {
        let mut client = Http2::client(weir.client("web"), b"");
        for number in 0..15 {
            let stream = 2 * number + 1;
            client.sends(http2::get(stream, &format!("/{connection}/{number}")));
            origin.awaits((connection * 15 + number + 1) as usize);
            client.sends(http2::reset(stream, code::CANCEL));
        }
    }
    origin.comes_down_to(64);
}

#[test]
fn who_comes_back_finds_the_fetch_that_has_gone_on() {
    let mut origin = Silent::start();
    let weir = before(&origin, &patient());
    leave_at_once(&weir, &mut origin, 1);
    until("nobody waits", || (weir.metric("weir_cache_background_fetches", &[]) == 1.0).then_some(()));
    let mut again = weir.client("web");
    again.sends(ask("/0"));
    until("somebody waits", || (weir.metric("weir_cache_background_fetches", &[]) == 0.0).then_some(()));
    let wire = origin.wires().next().expect("the fetch");
    wire.receives_request();
    wire.answers(200, &[("cache-control", "max-age=60")], "whole");
    assert_eq!(again.receives_response().text(), "whole");
    assert_eq!(origin.connected(), 1);
    assert!(status(&get(&weir, "/0", "")).starts_with("weir; hit"));
}

#[test]
fn as_many_fetches_go_on_by_themselves_as_the_operator_says() {
    let mut origin = Silent::start();
    let weir = before(&origin, &format!("[cache]\nbackground_fetches = 3\n{}", patient()));
    leave_at_once(&weir, &mut origin, 10);
    origin.comes_down_to(3);
    weir.reaches("weir_cache_background_refused_total", &[], 7.0);
    assert_eq!(weir.metric("weir_cache_background_fetches", &[]), 3.0);
    for wire in origin.wires() {
        wire.receives_request();
        wire.answers(200, &[("cache-control", "max-age=60")], "whole");
    }
    until("they are kept", || (weir.metric("weir_cache_objects", &[]) == 3.0).then_some(()));
    until("they are over", || (weir.metric("weir_cache_background_fetches", &[]) == 0.0).then_some(()));
}

#[test]
fn what_is_stale_is_waited_for_where_no_more_may_be_fetched_by_itself() {
    let mut origin = Silent::start();
    let weir = before(&origin, &format!("[cache]\nbackground_fetches = 1\n{}", patient()));
    let mut client = weir.client("web");
    client.sends(ask("/page"));
    origin.awaits(1);
    let wire = origin.wires().next().expect("the fetch");
    wire.receives_request();
    wire.answers(200, &[("cache-control", "max-age=0, stale-while-revalidate=60")], "old");
    assert_eq!(client.receives_response().text(), "old");
    // Another takes the only place there is.
    let mut other = weir.client("web");
    other.sends(ask("/other"));
    until("the origin has it", || origin.wires().find_map(|wire| wire.looks().gt(&0).then_some(())));
    other.resets();
    until("it goes on", || (weir.metric("weir_cache_background_fetches", &[]) == 1.0).then_some(()));
    client.sends(ask("/page"));
    until("the origin has it, for there is one who waits", || {
        origin.wires().find_map(|wire| {
            let has_come = wire.looks() > 0 && wire.receives_request().target == "/page";
            has_come.then(|| wire.answers(200, &[("cache-control", "max-age=60")], "new"))
        })
    });
    assert_eq!(client.receives_response().text(), "new");
}
