//! What an account may have, how many may wait, and what clients are told of the server.

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Login, LoginFailed, Pair, pair, query};

use super::{client, said_by};

/// Weir before a pair, with this config.
fn with(pair: &Pair, config: &str) -> Weir {
    let setup = Setup::of(config).with("primary", pair.primary.address);
    setup.with("replica", pair.replica.address).start()
}

#[test]
fn an_account_gets_error_1203_beyond_its_sessions_and_others_are_let_in() {
    let pair = pair();
    let config = BEFORE_PAIR.replace("bind = \"@auto\"", "bind = \"@auto\"\nmax_connections_per_account = 2");
    let weir = with(&pair, &config);
    let log_in = |user: &str| Client::log_in(weir.address("auto"), &Login::of(user, "shop"));
    let (first, mut second) = (log_in("app").expect("let in"), log_in("app").expect("let in"));
    let refused = log_in("app");
    assert!(matches!(refused, Err(LoginFailed::Refused(1203, _))), "{refused:?}");
    weir.reaches("weir_rejected_total", &[("reason", "account_connections")], 1.0);
    log_in("root").expect("another account");
    first.quits();
    let mut third = until("its place is free", || log_in("app").ok());
    for client in [&mut second, &mut third] {
        client.does("SELECT 1");
    }
}

#[test]
fn beyond_park_max_nobody_waits_for_a_primary() {
    let pair = pair();
    let weir = with(&pair, &format!("{BEFORE_PAIR}park = \"60s\"\npark_max = 1\n"));
    let (mut first, mut second) = (client(&weir, "writes"), client(&weir, "writes"));
    for client in [&mut first, &mut second] {
        client.does("SELECT 1");
    }
    let primary = pair.primary.address.to_string();
    weir.command(&["drain", "pair", &primary]).succeeded();
    first.sends(&query("DO 1")).expect("sent");
    until("it waits", || (weir.metric("weir_mysql_parked_total", &[]) == 1.0).then_some(()));
    let refused = second.asks("DO 1");
    assert_eq!(refused.error().map(|(code, _)| code), Some(1836));
    assert_eq!(weir.metric("weir_mysql_park_refusals_total", &[("reason", "full")]), 1.0);
    weir.command(&["enable", "pair", &primary]).succeeded();
    assert!(first.receives(Asked::Results).expect("an answer").is_ok());
    assert!(second.asks("DO 1").is_ok());
}

#[test]
fn clients_are_greeted_with_the_version_that_the_listener_says() {
    let pair = pair();
    let listener = "bind = \"@auto\"\nserver_version = \"8.0.36\"";
    let weir = with(&pair, &BEFORE_PAIR.replace("bind = \"@auto\"", listener));
    let (said, is_well) = said_by("mysql", weir.address("auto"), &["--commands"], "status;");
    let line = said.lines().find(|line| line.starts_with("Server version:"));
    assert!(is_well && line.is_some_and(|line| line.contains("8.0.36")), "{said}");
    // Of the others the servers' own.
    let version = pair.primary.root().does("SELECT @@version").value();
    let (said, _) = said_by("mysql", weir.address("writes"), &["--commands"], "status;");
    assert!(said.contains(&version) && !said.contains("8.0.36"), "{said}");
}

#[test]
fn logins_in_full_wait_beyond_their_number_a_second() {
    let pair = pair();
    for limit in ["full_logins", "full_logins_per_client", "full_logins_per_account"] {
        let weir = with(&pair, &format!("{BEFORE_PAIR}{limit} = 1\n"));
        // An account without a password shows an empty one.
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| client(&weir, "auto"))).collect();
            clients.into_iter().for_each(|client| drop(client.join().expect("let in")));
        });
        assert!(weir.metric("weir_mysql_logins_waited_total", &[]) >= 1.0, "{limit}: nobody waited");
    }
}
