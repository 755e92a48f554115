//! What a session of MySQL is promised behind Weir.

use weir_tests::dialogue::{Setup, until};
use weir_tests::mysql::{Client, Login, Mysqld, Pair, pair};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

/// The port of the server that answers.
fn port(client: &mut Client) -> u16 {
    client.does("SELECT @@port").value().parse().expect("a number")
}

fn ports(pair: &Pair) -> [u16; 2] {
    [pair.primary.address.port(), pair.replica.address.port()]
}

#[test]
fn a_read_goes_to_the_replica_and_what_is_in_a_transaction_to_the_primary() {
    let pair = pair();
    let weir = before(&pair);
    let [primary, replica] = ports(&pair);
    let mut client = client(&weir, "auto");
    assert_eq!(port(&mut client), replica);
    client.does("BEGIN");
    assert_eq!(port(&mut client), primary);
    client.does("COMMIT");
    assert_eq!(port(&mut client), replica);
    client.does("SET autocommit = 0");
    assert_eq!(port(&mut client), primary);
}

#[test]
fn a_session_reads_what_it_has_written_on_the_replica_at_once() {
    let pair = pair();
    let weir = before(&pair);
    let replica = ports(&pair)[1];
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE written (id INT PRIMARY KEY)");
    for id in 0..50 {
        client.does(&format!("INSERT INTO written VALUES ({id})"));
        let row = client.does("SELECT COUNT(*), @@port FROM written").rows().remove(0);
        assert_eq!(row, [(id + 1).to_string(), replica.to_string()]);
    }
}

#[test]
fn the_locks_of_a_client_that_leaves_in_a_transaction_are_free_at_once() {
    let pair = pair();
    let weir = before(&pair);
    let mut first = client(&weir, "auto");
    first.does("CREATE TABLE locked (id INT PRIMARY KEY, n INT)");
    first.does("INSERT INTO locked VALUES (1, 0)");
    let mut second = client(&weir, "auto");
    second.does("SET innodb_lock_wait_timeout = 1");
    for n in 1..20 {
        let mut leaves = client(&weir, "auto");
        leaves.does("BEGIN");
        leaves.does("UPDATE locked SET n = -1 WHERE id = 1");
        leaves.does("SELECT GET_LOCK('left', 0)");
        drop(leaves);
        second.does(&format!("UPDATE locked SET n = {n} WHERE id = 1"));
        until("the named lock is free", || {
            (second.does("SELECT IS_FREE_LOCK('left')").value() == "1").then_some(())
        });
    }
}

#[test]
fn what_one_session_has_set_no_other_finds() {
    let pair = pair();
    let weir = before(&pair);
    for listener in ["writes", "reads"] {
        // As many as there are workers, and more: each comes upon a connection of the first.
        let mut all: Vec<Client> = (0..8).map(|_| client(&weir, listener)).collect();
        for client in &mut all {
            client.does("SET foreign_key_checks = 0, unique_checks = 0, sql_safe_updates = 1");
            client.does("SET time_zone = '+05:00', lc_time_names = 'de_DE', sql_select_limit = 3");
        }
        drop(all);
        for _ in 0..8 {
            let mut client = client(&weir, listener);
            let found = client.does(
                "SELECT @@foreign_key_checks, @@unique_checks, @@sql_safe_updates, @@time_zone, @@lc_time_names, \
                 @@sql_select_limit > 3",
            );
            assert_eq!(found.rows()[0], ["1", "1", "0", "SYSTEM", "en_US", "1"]);
        }
    }
}

#[test]
fn last_insert_id_is_the_sessions_own_wherever_it_asks() {
    let pair = pair();
    let weir = before(&pair);
    let mut first = client(&weir, "auto");
    first.does("CREATE TABLE given (id INT AUTO_INCREMENT PRIMARY KEY, n INT)");
    first.does("INSERT INTO given (n) VALUES (1), (2), (3)");
    first.does("INSERT INTO given (n) VALUES (4)");
    assert_eq!(first.does("SELECT LAST_INSERT_ID()").value(), "4");
    let mut second = client(&weir, "auto");
    second.does("BEGIN");
    assert_eq!(second.does("SELECT LAST_INSERT_ID()").value(), "0", "not what the first has left");
    second.does("INSERT INTO given (id, n) VALUES (100, 0)");
    assert_eq!(
        second.does("SELECT LAST_INSERT_ID()").value(),
        "0",
        "an id that was named is none that was given"
    );
    second.does("ROLLBACK");
    second.does("INSERT INTO given (n) VALUES (LAST_INSERT_ID())");
    first.does("SELECT 1");
    assert_eq!(first.does("SELECT LAST_INSERT_ID()").value(), "4");
    assert_eq!(first.does("SELECT n FROM given WHERE n = LAST_INSERT_ID()").value(), "4");
}

#[test]
fn a_packet_of_more_than_16_mebibytes_passes_both_ways() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    for length in [(1 << 24) - 2, (1 << 24) - 1, 1 << 24, 33 << 20] {
        let text = "x".repeat(length - "SELECT ''".len());
        let answer = client.does(&format!("SELECT '{text}'"));
        assert!(answer.value() == text, "{length}");
    }
}

#[test]
fn a_result_of_100_mebibytes_passes_in_little_memory() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    let before = weir.usage().resident_bytes;
    let (mut bytes, mut most) = (0, 0);
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) \
                SELECT REPEAT('x', 1048576) FROM n";
    client.sends(&weir_tests::mysql::query(rows)).expect("sent");
    let each = |_, payload: Vec<u8>| {
        bytes += payload.len();
        most = most.max(weir.usage().resident_bytes);
    };
    client.receives_with(weir_tests::mysql::Asked::Results, each).expect("an answer");
    assert!(bytes > 100 << 20);
    assert!(most < before + (24 << 20), "{before} bytes before, {most} at most");
}

#[test]
fn a_session_whose_schema_was_dropped_goes_on_without_one() {
    let server = Mysqld::start("dropped", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    server.root().does("CREATE DATABASE passing");
    let log_in =
        |schema: &str| Client::log_in(weir.address("db"), &Login::of("app", schema)).expect("let in");
    let mut other = log_in("shop");
    for first in ["SELECT 1", "USE shop", "CREATE DATABASE passing", "DO 1"] {
        server.root().does("CREATE DATABASE IF NOT EXISTS passing");
        let mut own = log_in("passing");
        own.does("DO 1");
        other.does("DO 1");
        server.root().does("DROP DATABASE passing");
        own.does(first);
        let named = own.asks("SELECT * FROM t").error().map(|(code, _)| code);
        assert_eq!(named, Some(if first == "USE shop" { 1146 } else { 1046 }), "{first}");
        own.resets();
        own.does("USE shop");
        assert_eq!(own.does("SELECT DATABASE()").value(), "shop", "{first}");
    }
}

#[test]
fn a_session_reads_what_a_statement_that_failed_has_committed() {
    let pair = Pair::start("untold");
    let weir = before(&pair);
    let mut own = client(&weir, "auto");
    own.does("CREATE TABLE there (id INT PRIMARY KEY)");
    pair.replica.has_all_of(&pair.primary);
    own.does("SELECT 1 FROM there");
    pair.replica.root().does("STOP REPLICA SQL_THREAD");
    own.does("BEGIN");
    own.does("INSERT INTO there VALUES (1)");
    assert_eq!(own.asks("CREATE TABLE there (id INT)").error().map(|(code, _)| code), Some(1050));
    for _ in 0..3 {
        assert_eq!(own.does("SELECT COUNT(*) FROM there").value(), "1");
    }
    pair.replica.root().does("START REPLICA SQL_THREAD");
    pair.replica.has_all_of(&pair.primary);
    let replica = pair.replica.address.port();
    until("reads to go to the replica again", || (port(&mut own) == replica).then_some(()));
    assert_eq!(own.does("SELECT COUNT(*) FROM there").value(), "1");
}

/// `completion_type` says what follows where a statement does not.
#[test]
fn a_plain_end_of_a_transaction_closes_the_connection_where_completion_type_says_so() {
    let server = Mysqld::start("completion", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let log_in = |address| Client::log_in(address, &Login::of("app", "shop")).expect("app is let in");
    let mut root = server.root();
    root.does("CREATE TABLE shop.kept (n INT)");
    root.does("CREATE PROCEDURE shop.commits() COMMIT");
    let mut other = log_in(weir.address("db"));
    for (ends, closes) in [
        ("COMMIT", true),
        ("ROLLBACK", true),
        ("COMMIT AND CHAIN", true),
        ("DO 0; COMMIT", true),
        ("CALL commits()", true),
        ("COMMIT NO RELEASE", false),
        ("ROLLBACK AND NO CHAIN NO RELEASE", false),
    ] {
        for at in [server.address, weir.address("db")] {
            let mut client = log_in(at);
            client.does("SET completion_type = 2");
            client.does("BEGIN");
            client.does("INSERT INTO kept VALUES (1)");
            client.asks(ends);
            assert_eq!(client.tries("DO 0").is_err(), closes, "{ends} at {at}");
            other.does("INSERT INTO kept VALUES (2)");
        }
    }
    let mut client = log_in(weir.address("db"));
    client.does("SET completion_type = 2; COMMIT");
    assert!(client.tries("DO 0").is_err(), "by a type that it has set itself");
    other.does("SELECT 1");
}

#[test]
fn a_plain_end_of_a_transaction_begins_the_next_where_completion_type_says_so() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE chained (n INT)");
    client.does("SET completion_type = 1");
    client.does("BEGIN");
    client.does("INSERT INTO chained VALUES (1)");
    client.does("COMMIT");
    client.does("INSERT INTO chained VALUES (2)");
    client.does("ROLLBACK");
    client.does("COMMIT AND NO CHAIN");
    assert_eq!(client.does("SELECT GROUP_CONCAT(n) FROM chained").value(), "1");
    // The next one is READ ONLY as well.
    client.does("START TRANSACTION READ ONLY");
    client.does("SELECT COUNT(*) FROM chained");
    let answer = client.asks("COMMIT; INSERT INTO chained VALUES (3)");
    assert!(answer.error().is_some(), "{answer}");
    client.does("ROLLBACK AND NO CHAIN");
    assert_eq!(client.does("SELECT GROUP_CONCAT(n) FROM chained").value(), "1");
}
