//! Backends of HTTP/3 that are lost, or leave, while requests wait for them.

use weir_tests::dialogue::{ScriptedBackend, Signal, Weir, Wire, free_address, until};

use super::backends::{INNER, ONLY, authority, before, behind_one_that_crashed, get, picked};
use super::origin::Origin;

/// One whose request must not be made twice: it is answered when its connection is given up.
fn waits(weir: &Weir) -> Wire {
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    client
}

/// It waited for the end of the connection, which took ten seconds.
#[test]
fn a_request_that_may_be_sent_again_leaves_a_silent_connection_before_that_is_given_up() {
    let (_app, _inner, weir) = behind_one_that_crashed(ONLY);
    let mut first = waits(&weir);
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(first.looks(), 0, "it was answered when the old connection was lost");
    assert_eq!(first.receives_response().status, 502, "nobody knows whether it was looked at");
    assert_eq!(picked(&weir, "h3"), 2.0);
}

fn answers(wire: &mut Wire) {
    wire.receives_request();
    wire.answers(200, &[], "hello");
}

/// It went from one connection to the next, and none of them knew.
#[test]
fn a_request_that_leaves_a_silent_connection_takes_none_that_nobody_has_heard_on_since() {
    let authority = authority();
    let (app, address) = (ScriptedBackend::start(), free_address());
    let config = INNER.replace("HTTP", r#""h3""#).replace("pool =", "limits = { streams = 2 }\npool =");
    let mut inner = authority.setup(&config).with("app", app.address()).with("inner", address).start();
    let weir = before(&authority, address, ONLY);
    // More than there is room for on one.
    let mut clients: Vec<Wire> = (0..3).map(|_| weir.client("web")).collect();
    let mut asked: Vec<Wire> = Vec::new();
    for client in &mut clients {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        asked.push(app.accepts());
    }
    asked.iter_mut().for_each(answers);
    for client in &mut clients {
        assert_eq!(client.receives_status(200).text(), "hello");
    }
    assert_eq!(picked(&weir, "h3"), 2.0);
    inner.signals(Signal::KILL);
    inner.starts_again();
    let (mut first, mut client) = (waits(&weir), weir.client("web"));
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    answers(&mut app.accepts());
    assert_eq!(client.receives_status(200).text(), "hello");
    assert_eq!(first.looks(), 0, "it was answered when the old connections were lost");
    assert_eq!(picked(&weir, "h3"), 3.0);
}

#[test]
fn a_request_that_leaves_a_silent_connection_goes_over_tcp_where_quic_gets_through_no_more() {
    let (_app, mut inner, weir) = behind_one_that_crashed("fall_back_after = \"1s\"");
    inner.signals(Signal::KILL);
    inner.rewrites(&INNER.replace("HTTP", r#""h1", "h2""#));
    inner.starts_again();
    let mut first = waits(&weir);
    assert_eq!(get(&weir, "/"), (200, "hello".to_owned()));
    assert_eq!(first.looks(), 0, "it was answered when the old connection was lost");
    assert_eq!((picked(&weir, "h3"), picked(&weir, "h2")), (1.0, 1.0));
}

/// What QUIC says at the end was not read: that a request had not been looked at went unheard.
#[test]
fn a_request_above_the_last_of_a_goaway_is_sent_again_though_the_connection_ends_with_it() {
    let authority = authority();
    let origin = Origin::start(&authority, 100);
    let weir = before(&authority, origin.address, ONLY);
    let mut client = weir.client("web");
    client.sends("POST /last-words HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nonce");
    let has = |line: &str| origin.requests().iter().any(|it| it == line).then_some(());
    until("the request to be there", || has("POST /last-words"));
    // So that it finds both at once.
    weir.signals(Signal::STOP);
    origin.seen.leave.notify_one();
    until("its end", || has("gone"));
    weir.signals(Signal::CONT);
    assert_eq!(client.receives_status(200).text(), "hello");
    assert_eq!(origin.connections(), 2);
}

/// For so many insertions that no answer used, it was taken for one that floods Weir, at the cost of all.
#[test]
fn clients_that_give_up_their_requests_do_not_end_the_connection_that_others_share() {
    const GIVEN_UP: usize = 300;
    let authority = authority();
    let origin = Origin::inserting(&authority);
    let weir = before(&authority, origin.address, ONLY);
    let mut patient = waits(&weir);
    let comes = |number: usize| {
        until("a request to be there", || (origin.requests().len() >= number).then_some(()));
    };
    comes(1);
    for number in 0..GIVEN_UP {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        comes(number + 2);
        client.resets();
    }
    let stops = || origin.seen.stops.lock().expect("a lock").len();
    until("all to be given up", || (stops() >= GIVEN_UP).then_some(()));
    assert_eq!(patient.looks(), 0, "its connection has ended");
    assert_eq!(origin.connections(), 1);
}
