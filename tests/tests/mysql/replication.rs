//! A primary and a copy that no group holds together: `topology = "replication"`.

use serde_json::Value;
use weir_tests::dialogue::{Setup, Weir, until, until_within};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Mysqld, Pair, query};

use super::client;

/// For a server to be missed and another to be looked at; much more than it takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(30);

/// Weir before a pair that tells by `read_only` who is the primary; `more` is said of the pool's servers.
pub fn before(pair: &Pair, more: &str) -> Weir {
    let watched = "topology = \"replication\"\nuser = \"app\"\npark = \"60s\"\n";
    let config = BEFORE_PAIR.replace("topology = \"static\"\n", watched);
    let setup = Setup::of(&format!("{config}{more}\n")).with("primary", pair.primary.address);
    let weir = setup.with("replica", pair.replica.address).start();
    until_within(LONG, "both have a role", || {
        let roles = ["primary", "secondary"];
        let has = |role: &str| weir.metric("weir_mysql_role", &[("role", role)]) == 1.0;
        roles.into_iter().all(has).then_some(())
    });
    weir
}

/// Waits until Weir takes this server for the primary.
pub fn has_primary(weir: &Weir, server: &Mysqld) {
    let address = server.address.to_string();
    until_within(LONG, "it is the primary", || (seen(weir)["primary"] == *address).then_some(()));
}

/// What `/v1/status` says of the cluster.
fn seen(weir: &Weir) -> Value {
    weir.admin().reads("/v1/status").json()["pools"][0]["cluster"].clone()
}

/// The port of the server that answers.
fn port(client: &mut Client) -> u16 {
    client.does("SELECT @@port").value().parse().expect("a number")
}

#[test]
fn a_copy_that_stops_to_follow_is_seen_to_be_behind_and_gets_no_reads_until_it_has_caught_up() {
    let pair = Pair::start("behind");
    let weir = before(&pair, "max_lag = \"1s\"");
    let copy = pair.replica.address.to_string();
    let lag = |name: &str| weir.metric(name, &[("backend", &copy)]);
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE behind (id INT PRIMARY KEY)");
    pair.replica.has_all_of(&pair.primary);
    assert_eq!(port(&mut client), pair.replica.address.port());
    until_within(LONG, "it is known to have all", || {
        let member = seen(&weir)["members"][1].clone();
        (member["lag_transactions"] == 0 && member["lag_seconds"] == 0.0).then_some(())
    });
    pair.replica.root().does("STOP REPLICA");
    (0..7).for_each(|id| drop(client.does(&format!("INSERT INTO behind VALUES ({id})"))));
    let is_behind = || {
        let (transactions, seconds) = (lag("weir_mysql_lag_transactions"), lag("weir_mysql_lag_seconds"));
        (transactions == 7.0 && seconds > 1.0).then_some(())
    };
    until_within(LONG, "it is behind", is_behind);
    assert!(weir.command(&["status"]).succeeded().contains("s and 7 transactions behind"));
    until_within(LONG, "reads go to the primary", || {
        (port(&mut client) == pair.primary.address.port()).then_some(())
    });
    pair.replica.root().does("START REPLICA");
    until_within(LONG, "and back", || (port(&mut client) == pair.replica.address.port()).then_some(()));
    assert_eq!(lag("weir_mysql_lag_transactions"), 0.0);
}

#[test]
fn a_transaction_is_rolled_back_whose_statement_is_the_first_to_hear_that_its_primary_takes_no_writes() {
    let pair = Pair::start("refused");
    let weir = before(&pair, "");
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE refused (id INT PRIMARY KEY)");
    let root = || pair.primary.root();
    for statement in ["INSERT INTO refused VALUES (2)", "COMMIT", "DELETE FROM refused"] {
        client.does("BEGIN");
        client.does("INSERT INTO refused VALUES (1)");
        root().does("SET GLOBAL super_read_only = ON");
        let answer = client.asks(statement);
        assert_eq!(answer.error().map(|(code, _)| code), Some(1213), "{statement}: {answer}");
        root().does("SET GLOBAL super_read_only = OFF");
        root().does("SET GLOBAL read_only = OFF");
        // It waits until there is a primary again.
        client.does("INSERT INTO refused VALUES (3)");
        assert_eq!(client.does("SELECT id FROM refused").rows(), [["3"]], "{statement}");
        client.does("DELETE FROM refused");
    }
}

#[test]
fn a_receipt_counts_who_waited_who_went_on_elsewhere_and_who_was_told() {
    let pair = Pair::start("receipt");
    let weir = before(&pair, "");
    let (mut lost, mut pinned) = (client(&weir, "writes"), client(&weir, "writes"));
    lost.does("BEGIN");
    lost.does("SELECT 1");
    pinned.does("SET @a = 1");
    let mut moved = client(&weir, "writes");
    moved.sends(&query("SELECT SLEEP(3)")).expect("sent");
    until("it runs", || {
        let runs = "SELECT COUNT(*) FROM performance_schema.processlist WHERE info = 'SELECT SLEEP(3)'";
        (pair.primary.root().does(runs).value() == "1").then_some(())
    });
    let mut parked = client(&weir, "writes");
    pair.primary.dies();
    until_within(LONG, "it is missed", || seen(&weir)["primary"].is_null().then_some(()));
    parked.sends(&query("DO 1")).expect("sent");
    until("both wait", || (weir.metric("weir_mysql_parked_total", &[]) == 2.0).then_some(()));
    let mut root = pair.replica.root();
    root.does("STOP REPLICA");
    root.does("SET GLOBAL read_only = OFF");
    assert!(parked.receives(Asked::Results).expect("an answer").is_ok());
    assert_eq!(moved.receives(Asked::Results).expect("an answer").value(), "0");
    let receipt = until_within(LONG, "a receipt", || seen(&weir)["failovers"].get(0).cloned());
    assert_eq!((&receipt["moved"], &receipt["failed"]), (&1.into(), &2.into()), "{receipt}");
    assert!(receipt["parked"].as_u64() >= Some(1), "{receipt}");
    assert!(weir.command(&["status"]).succeeded().contains("1 moved, 2 failed"));
    for (result, count) in [("moved", 1.0), ("failed", 2.0)] {
        assert_eq!(weir.metric("weir_mysql_lost_total", &[("result", result)]), count, "{result}");
    }
}

/// Numbers of transactions begin anew with the primary's, and what a copy had of those before is not what it
/// has now.
#[test]
fn what_a_copy_had_before_a_reset_of_transactions_is_not_taken_for_what_it_has() {
    let pair = Pair::start("reset");
    let weir = before(&pair, "");
    let mut session = client(&weir, "auto");
    session.does("CREATE TABLE reset_here (id INT)");
    (0..20).for_each(|id| drop(session.does(&format!("INSERT INTO reset_here VALUES ({id})"))));
    assert_eq!(session.does("SELECT COUNT(*) FROM reset_here").value(), "20");
    assert_eq!(port(&mut session), pair.replica.address.port(), "it is known to have all");
    until_within(LONG, "both have been asked what they have", || {
        (seen(&weir)["members"][1]["lag_transactions"] == 0).then_some(())
    });
    let mut copy = pair.replica.root();
    copy.does("STOP REPLICA");
    copy.does("RESET REPLICA ALL");
    for server in [&pair.primary, &pair.replica] {
        server.root().does("RESET BINARY LOGS AND GTIDS");
    }
    until_within(LONG, "both are seen to have less", || {
        (weir.stderr().matches("has executed less than it had before").count() == 2).then_some(())
    });
    session.does("INSERT INTO reset_here VALUES (20)");
    assert_eq!(session.does("SELECT COUNT(*) FROM reset_here").value(), "21");
}

/// From then on the same numbers are given to other transactions, and nobody ever has the old ones.
#[test]
fn a_session_sees_its_writes_behind_a_reset_of_the_gtids_and_waits_for_none_of_before() {
    let pair = Pair::start("gtid-reset");
    let setup = Setup::of(&format!("{BEFORE_PAIR}[runtime]\nworkers = 1\n"));
    let weir = setup.with("primary", pair.primary.address).with("replica", pair.replica.address).start();
    let mut old = client(&weir, "auto");
    old.does("CREATE TABLE numbered (id INT PRIMARY KEY)");
    (0..9).for_each(|id| drop(old.does(&format!("INSERT INTO numbered VALUES ({id})"))));
    let count = |client: &mut Client| client.does("SELECT COUNT(*) FROM numbered").value();
    assert_eq!((count(&mut old).as_str(), port(&mut old)), ("9", pair.replica.address.port()));
    let mut replica = pair.replica.root();
    for sql in [
        "STOP REPLICA",
        "RESET REPLICA",
        "SET GLOBAL super_read_only = OFF",
        "RESET BINARY LOGS AND GTIDS",
        "SET GLOBAL super_read_only = ON",
    ] {
        replica.does(sql);
    }
    pair.primary.root().does("RESET BINARY LOGS AND GTIDS");
    let mut new = client(&weir, "auto");
    new.does("INSERT INTO numbered VALUES (9)");
    assert_eq!(count(&mut new), "10", "the replica has not copied it");
    replica.does("START REPLICA");
    pair.replica.has_all_of(&pair.primary);
    for session in [&mut old, &mut new] {
        assert_eq!(count(session), "10");
        assert_eq!(port(session), pair.replica.address.port(), "it waits for nothing that never comes");
    }
}
