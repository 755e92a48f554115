//! Lines that break, peers that are silent or slow, and strangers.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use weir_tests::dialogue::{Weir, free_address, until};

use super::line::Line;
use super::{Secret, ask, finds, has_left, left, start};

const BY_USER: &str = r#"rate_limit = { rate = "60/1h", burst = 60, key = "header:x-user" }"#;

/// Two Weirs, each of which reaches the other by a line.
fn on_lines(secret: &Secret) -> ([Weir; 2], [Line; 2]) {
    let addresses = [free_address(), free_address()];
    let lines = addresses.map(Line::to);
    let one = start(addresses[0], &[lines[1].address()], secret, BY_USER);
    let other = start(addresses[1], &[lines[0].address()], secret, BY_USER);
    finds(&one, 1);
    finds(&other, 1);
    ([one, other], lines)
}

#[test]
fn weirs_that_do_not_reach_each_other_count_alone_and_agree_when_they_do_again() {
    let secret = Secret::of("a secret of two Weirs");
    let (weirs, lines) = on_lines(&secret);
    assert!((0..10).all(|_| ask(&weirs[0], "ann") == 200));
    has_left(&weirs[1], "ann", 50);
    lines.iter().for_each(Line::breaks);
    for weir in &weirs {
        until("the other to be missed", || (weir.metric("weir_peers_told", &[]) == 0.0).then_some(()));
    }
    assert!((0..50).all(|_| ask(&weirs[0], "ann") == 200));
    assert!((0..30).all(|_| ask(&weirs[1], "ann") == 200), "never fewer than alone");
    assert_eq!((left(&weirs[0], "ann"), left(&weirs[1], "ann")), (0, 20));
    let status = weirs[0].command(&["status"]).succeeded().to_owned();
    assert!(status.contains(" away: "), "{status}");
    lines.iter().for_each(Line::mends);
    weirs.iter().for_each(|weir| finds(weir, 1));
    has_left(&weirs[1], "ann", 0);
    assert_eq!(left(&weirs[0], "ann"), 0);
    // From now on both count together again.
    assert!((0..5).all(|_| ask(&weirs[1], "bob") == 200));
    has_left(&weirs[0], "bob", 55);
}

/// Threat D70.
#[test]
fn d70_a_peer_that_takes_and_says_nothing_holds_up_no_request_and_is_given_up() {
    let secret = Secret::of("a secret of two Weirs");
    let (weirs, lines) = on_lines(&secret);
    lines.iter().for_each(Line::freezes);
    for weir in &weirs {
        assert!((0..200).all(|number| ask(weir, &format!("user {number}")) == 200));
        assert!((0..60).all(|_| ask(weir, "ann") == 200));
        assert_eq!(ask(weir, "ann"), 429);
        until("the other to be given up", || (weir.metric("weir_peers_told", &[]) == 0.0).then_some(()));
        until("the other not to be listened to", || {
            (weir.metric("weir_peers_heard", &[]) == 0.0).then_some(())
        });
    }
    lines.iter().for_each(Line::thaws);
    weirs.iter().for_each(|weir| finds(weir, 1));
    assert!((0..5).all(|_| ask(&weirs[1], "bob") == 200));
    has_left(&weirs[0], "bob", 55);
}

/// Threat D70.
#[test]
fn d70_who_has_another_secret_changes_nothing_and_learns_nothing() {
    let (secret, other) = (Secret::of("a secret of two Weirs"), Secret::of("a secret of somebody else"));
    let addresses = [free_address(), free_address(), free_address()];
    let weirs: Vec<Weir> = addresses[..2].iter().map(|at| start(*at, &addresses, &secret, BY_USER)).collect();
    let stranger = start(addresses[2], &addresses, &other, BY_USER);
    weirs.iter().for_each(|weir| finds(weir, 1));
    until("the stranger to be noticed", || {
        (weirs[0].metric("weir_peers_refused_total", &[("reason", "stranger")]) > 0.0).then_some(())
    });
    assert!((0..60).all(|_| ask(&stranger, "ann") == 200));
    assert!((0..60).all(|_| ask(&weirs[0], "bob") == 200));
    has_left(&weirs[1], "bob", 0);
    assert_eq!((left(&weirs[0], "ann"), left(&weirs[1], "ann"), left(&stranger, "bob")), (60, 60, 60));
    assert_eq!(
        (stranger.metric("weir_peers_told", &[]), stranger.metric("weir_peers_heard", &[])),
        (0.0, 0.0)
    );
    let status = stranger.command(&["status"]).succeeded().to_owned();
    assert!(status.contains(" away: "), "{status}");
}

/// Threat D70.
#[test]
fn d70_strangers_who_send_anything_or_nothing_keep_no_peer_out() {
    let secret = Secret::of("a secret of two Weirs");
    let addresses = [free_address(), free_address()];
    let weir = start(addresses[0], &addresses, &secret, BY_USER);
    until("it to listen", || (weir.metric("weir_peers_listening", &[]) == 1.0).then_some(()));
    let knocks = |what: &[u8]| {
        let mut stream = TcpStream::connect(addresses[0]).unwrap();
        let _ = stream.write_all(what);
        stream
    };
    let mut strangers: Vec<TcpStream> = (0..300).map(|_| knocks(b"")).collect();
    for what in [
        &b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..],
        &[0xff; 70_000],
        &[0; 5],
        // A TLS record of a handshake that is longer than it says, and one without an end.
        &[22, 3, 1, 0, 5, 1, 0, 0, 1, 0],
        &[22, 3, 1, 64, 0, 1, 255, 255, 255],
    ] {
        strangers.push(knocks(what));
    }
    let other = start(addresses[1], &addresses, &secret, BY_USER);
    finds(&weir, 1);
    finds(&other, 1);
    assert!((0..5).all(|_| ask(&weir, "ann") == 200));
    has_left(&other, "ann", 55);
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}

#[test]
fn a_weir_that_cannot_listen_serves_says_so_and_listens_once_it_can() {
    let secret = Secret::of("a secret of two Weirs");
    let addresses = [free_address(), free_address()];
    let taken = weir_tests::dialogue::listen_at(addresses[0]);
    let weirs: Vec<Weir> =
        addresses.iter().map(|at: &SocketAddr| start(*at, &addresses, &secret, BY_USER)).collect();
    assert_eq!(ask(&weirs[0], "ann"), 200);
    until("it to be said", || (weirs[0].metric("weir_peers_listening", &[]) == 0.0).then_some(()));
    let status = weirs[0].command(&["status"]).succeeded().to_owned();
    assert!(status.contains("can't listen: "), "{status}");
    // What it counts is known to the other all the same.
    has_left(&weirs[1], "ann", 59);
    drop(taken);
    weirs.iter().for_each(|weir| finds(weir, 1));
}
