//! What an account may have.

use weir_tests::dialogue::{Setup, until};
use weir_tests::mysql::{BEFORE_PAIR, Client, Login, LoginFailed, pair};

#[test]
fn an_account_gets_error_1203_beyond_its_sessions_and_others_are_let_in() {
    let pair = pair();
    let config = BEFORE_PAIR.replace("bind = \"@auto\"", "bind = \"@auto\"\nmax_connections_per_account = 2");
    let weir = Setup::of(&config).with("primary", pair.primary.address);
    let weir = weir.with("replica", pair.replica.address).start();
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
