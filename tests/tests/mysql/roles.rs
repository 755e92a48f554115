//! Roles that a login comes with, while connections of another day are shared.

use weir_tests::dialogue::Setup;
use weir_tests::mysql::{Client, Login, Mysqld};

use super::leftovers::ONE_CONNECTION;

const ROLE: &str = "SELECT CURRENT_ROLE()";

/// An account that may have a role, and a schema that only the role may see.
fn makes_account(root: &mut Client) {
    for sql in [
        "CREATE ROLE reader, `r\u{f6}le`",
        "CREATE USER ro@'%' IDENTIFIED BY ''",
        "GRANT reader, `r\u{f6}le` TO ro@'%'",
        "CREATE DATABASE hall",
        "CREATE TABLE hall.t (n INT)",
        "GRANT SELECT ON hall.* TO reader",
        "GRANT SELECT ON shop.* TO ro@'%'",
    ] {
        root.does(sql);
    }
}

fn code(client: &mut Client, sql: &str) -> u16 {
    client.asks(sql).error().map_or(0, |(code, _)| code)
}

#[test]
fn each_session_has_the_roles_that_its_login_came_with_on_a_connection_that_all_share() {
    let server = Mysqld::start("roles", "");
    let mut root = server.root();
    makes_account(&mut root);
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let log_in = |schema| Client::log_in(weir.address("db"), &Login::of("ro", schema)).expect("ro is let in");
    let mut old = log_in("shop");
    root.does("SET DEFAULT ROLE reader TO ro@'%'");
    let mut new = log_in("hall");
    root.does("SET DEFAULT ROLE ALL TO ro@'%'");
    let mut all = log_in("shop");
    all.does("SET NAMES latin1");
    for _ in 0..3 {
        assert_eq!(old.does(ROLE).value(), "NONE");
        assert_eq!(code(&mut old, "SELECT * FROM hall.t"), 1142);
        assert_eq!(new.does(ROLE).value(), "`reader`@`%`");
        new.does("SELECT * FROM t");
        let asked = "SELECT CONVERT(CURRENT_ROLE() USING utf8mb4) = _utf8mb4'`reader`@`%`,`r\u{f6}le`@`%`'";
        assert_eq!(all.does(asked).value(), "1");
    }
    // Its own SET ROLE is nobody else's, and it keeps its own.
    new.does("SET ROLE NONE");
    assert_eq!(new.does(ROLE).value(), "NONE");
    new.quits();
    assert_eq!(log_in("hall").does(ROLE).value(), all.does(ROLE).value());
    assert_eq!(old.does(ROLE).value(), "NONE");
}

#[test]
fn a_session_keeps_its_roles_on_new_connections_and_ends_when_its_account_has_them_no_more() {
    let server = Mysqld::start("lost-roles", "");
    let mut root = server.root();
    makes_account(&mut root);
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    let weir = Setup::of(&config).with("server", server.address).start();
    let log_in = |schema| Client::log_in(weir.address("db"), &Login::of("ro", schema)).expect("ro is let in");
    root.does("SET DEFAULT ROLE reader TO ro@'%'");
    let mut first = log_in("hall");
    root.does("SET DEFAULT ROLE NONE TO ro@'%'");
    // The second has the connection that there was, and the first gets one that comes without roles.
    let mut second = log_in("shop");
    second.does("BEGIN");
    assert_eq!(first.does("SELECT DATABASE(), CURRENT_ROLE()").rows(), [["hall", "`reader`@`%`"]]);
    first.does("SELECT * FROM t");
    let mut third = log_in("shop");
    assert_eq!(third.does(ROLE).value(), "NONE");
    root.does("REVOKE reader FROM ro@'%'");
    assert_eq!(code(&mut first, "SELECT 1"), 3530);
    assert!(first.tries("SELECT 1").is_err(), "and its connection is closed");
    assert_eq!(second.does(ROLE).value(), "NONE");
}
