//! Listeners for reads, and writes that a server refuses because it takes none.

use weir_tests::dialogue::{Weir, until_within};
use weir_tests::mysql::{Answer, Asked, Client, Login, Pair, execution};

use super::client;
use super::replication::{before, has_primary};

/// `ER_OPTION_PREVENTS_STATEMENT`: the server takes no writes.
const READ_ONLY: u16 = 1290;
/// `ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION`.
const IN_READ_ONLY: u16 = 1792;

const LONG: std::time::Duration = std::time::Duration::from_secs(30);

/// Stored code that writes into `shop.written`, by a function, a view and a procedure.
const CODE: [&str; 5] = [
    "CREATE TABLE shop.written (n INT)",
    "CREATE FUNCTION shop.writes() RETURNS INT DETERMINISTIC
     BEGIN INSERT INTO shop.written VALUES (1); RETURN 1; END",
    "CREATE FUNCTION shop.lifts() RETURNS INT DETERMINISTIC
     BEGIN SET SESSION transaction_read_only = 0; INSERT INTO shop.written VALUES (2); RETURN 1; END",
    "CREATE VIEW shop.writer AS SELECT shop.writes() AS n",
    "CREATE PROCEDURE shop.goes_on() BEGIN COMMIT; START TRANSACTION READ WRITE;
     INSERT INTO shop.written VALUES (3); COMMIT; END",
];

fn scene(name: &str) -> (Pair, Weir) {
    let pair = Pair::start(name);
    let mut root = pair.primary.root();
    CODE.iter().for_each(|sql| drop(root.does(sql)));
    pair.replica.has_all_of(&pair.primary);
    let weir = before(&pair, "");
    (pair, weir)
}

fn code(answer: &Answer) -> Option<u16> {
    answer.error().map(|(code, _)| code)
}

fn port(client: &mut Client) -> u16 {
    client.does("SELECT @@port").value().parse().expect("a number")
}

/// What of `shop.written` a server has.
fn written(pair: &Pair) -> [String; 2] {
    [&pair.primary, &pair.replica]
        .map(|server| server.root().does("SELECT COUNT(*) FROM shop.written").value())
}

#[test]
fn a_write_that_is_refused_as_read_only_ends_no_session_that_nothing_keeps() {
    let (pair, weir) = scene("refused");
    let tried = [
        ("reads", "INSERT INTO written VALUES (3)"),
        ("reads", "UPDATE written SET n = 1"),
        ("reads", "SELECT n FROM written FOR UPDATE"),
        ("reads", "CREATE TABLE more (n INT)"),
        ("reads", "CALL goes_on()"),
        ("auto", "SELECT * FROM writer"),
        ("auto", "/* weir: secondary */ SELECT writes()"),
    ];
    for (listener, sql) in tried {
        let mut session = client(&weir, listener);
        let answer = session.asks(sql);
        assert_eq!(code(&answer), Some(READ_ONLY), "{listener}, {sql}: {answer}");
        assert_eq!(port(&mut session), pair.replica.address.port(), "{listener}, {sql}");
    }
    assert_eq!(written(&pair), ["0", "0"]);
    // Prepared, and what is the session's own stays.
    let mut session = client(&weir, "reads");
    session.does("SET @kept = 7");
    assert_eq!(code(&session.asks("INSERT INTO written VALUES (3)")), Some(READ_ONLY));
    assert_eq!(session.does("SELECT @kept").value(), "7");
}

/// Whatever a session of the listener for reads tries at a primary, nothing is written.
fn tries_all(session: &mut Client, weir: &Weir, at: u16) {
    let refused: [(&str, u16); 15] = [
        ("INSERT INTO shop.written VALUES (4)", READ_ONLY),
        ("SELECT n FROM shop.written FOR UPDATE", READ_ONLY),
        ("CREATE TABLE shop.more (n INT)", READ_ONLY),
        ("CALL shop.goes_on()", READ_ONLY),
        ("START TRANSACTION READ WRITE", READ_ONLY),
        ("SET SESSION transaction_read_only = 0; SELECT * FROM shop.writer", 0),
        ("SET @@SESSION.transaction_read_only = 0, @a = (SELECT n FROM shop.writer)", READ_ONLY),
        ("SET GLOBAL max_connections = 7", READ_ONLY),
        ("SELECT * FROM shop.writer", IN_READ_ONLY),
        ("SELECT shop.writes()", IN_READ_ONLY),
        ("SELECT shop.lifts()", IN_READ_ONLY),
        ("SELECT shop.lifts()", IN_READ_ONLY),
        ("DO shop.writes()", IN_READ_ONLY),
        ("EXPLAIN ANALYZE SELECT * FROM shop.writer", IN_READ_ONLY),
        ("SELECT * FROM shop.writer", IN_READ_ONLY),
    ];
    for (sql, expected) in refused {
        let answer = session.asks(sql);
        // A text of several is one that the session's capabilities do not have.
        let is_expected = code(&answer) == Some(expected) || (expected == 0 && code(&answer).is_some());
        assert!(is_expected, "{sql}: {answer}\n{}", weir.story());
        assert_eq!(port(session), at, "{sql}");
    }
    for lifts in [
        "SET SESSION TRANSACTION READ WRITE",
        "SET TRANSACTION READ WRITE",
        "SET @@transaction_read_only = 0",
        "SET autocommit = 0",
        "BEGIN",
        "SET autocommit = 1",
    ] {
        session.does(lifts);
        let answer = session.asks("SELECT * FROM shop.writer");
        assert_eq!(code(&answer), Some(IN_READ_ONLY), "{lifts}: {answer}\n{}", weir.story());
        session.does("ROLLBACK");
    }
    for (sql, expected) in
        [("INSERT INTO shop.written VALUES (5)", READ_ONLY), ("SELECT * FROM shop.writer", IN_READ_ONLY)]
    {
        session.sends(&[b"\x16", sql.as_bytes()].concat()).expect("sent");
        let answer = session.receives(Asked::Statement).expect("an answer");
        assert_eq!(code(&answer), Some(expected), "to prepare {sql}: {answer}");
    }
    session.does("PREPARE by_name FROM 'SET TRANSACTION READ WRITE'");
    assert_eq!(code(&session.asks("EXECUTE by_name")), Some(READ_ONLY));
    assert_eq!(port(session), at);
}

#[test]
fn a_listener_for_reads_writes_nothing_at_the_primary_that_has_a_schema_before_the_replica() {
    let (pair, weir) = scene("late-schema");
    pair.replica.root().does("STOP REPLICA SQL_THREAD");
    let mut root = pair.primary.root();
    root.does("CREATE DATABASE fresh");
    root.does("CREATE TABLE fresh.t (n INT)");
    let mut session = Client::log_in(weir.address("reads"), &Login::of("app", "fresh"))
        .expect("the primary knows the schema");
    assert_eq!(port(&mut session), pair.primary.address.port());
    assert_eq!(code(&session.asks("INSERT INTO t VALUES (3)")), Some(READ_ONLY));
    tries_all(&mut session, &weir, pair.primary.address.port());
    assert_eq!(written(&pair), ["0", "0"]);
    assert_eq!(root.does("SELECT COUNT(*) FROM fresh.t").value(), "0");
    // Where a session goes on at the replica, that decides again.
    let mut other = Client::log_in(weir.address("reads"), &Login::of("app", "fresh"))
        .expect("the primary knows the schema");
    assert_eq!(other.does("SELECT @@transaction_read_only").value(), "1");
    other.does("USE shop");
    assert_eq!(port(&mut other), pair.replica.address.port());
    assert_eq!(other.does("SELECT @@transaction_read_only").value(), "0");
    other.does("CREATE TEMPORARY TABLE own (n INT)");
}

#[test]
fn a_listener_for_reads_writes_nothing_at_the_primary_that_is_left_alone() {
    let (pair, weir) = scene("alone");
    let mut session = client(&weir, "reads");
    pair.replica.dies();
    let primary = pair.primary.address.port();
    until_within(LONG, "reads go to the primary", || {
        session
            .asks("SELECT @@port")
            .rows()
            .first()
            .is_some_and(|row| row[0] == primary.to_string())
            .then_some(())
    });
    tries_all(&mut session, &weir, primary);
    // A listener that splits is none for reads alone, and finds no traces of that on their connections.
    drop(session);
    let mut splits = client(&weir, "auto");
    assert_eq!(splits.does("SELECT @@transaction_read_only").value(), "0");
    splits.does("INSERT INTO written VALUES (1)");
    assert_eq!(pair.primary.root().does("SELECT COUNT(*) FROM shop.written").value(), "1");
}

#[test]
fn a_session_for_reads_that_is_kept_at_a_replica_writes_nothing_once_that_is_the_primary() {
    let (pair, weir) = scene("promoted");
    let (mut pinned, mut begun, mut both) =
        (client(&weir, "reads"), client(&weir, "reads"), client(&weir, "reads"));
    pinned.does("SET @a = 1");
    begun.does("BEGIN");
    begun.does("SELECT 1");
    both.does("SET @a = 1");
    both.does("BEGIN");
    let prepared =
        ["INSERT INTO shop.written VALUES (5)", "SELECT * FROM shop.writer"].map(|it| pinned.prepares(it));
    pair.primary.root().does("SET GLOBAL super_read_only = ON");
    let mut root = pair.replica.root();
    root.does("STOP REPLICA");
    root.does("SET GLOBAL read_only = OFF");
    has_primary(&weir, &pair.replica);
    let at = pair.replica.address.port();
    assert_eq!(code(&pinned.asks("INSERT INTO written VALUES (1)")), Some(READ_ONLY));
    assert_eq!(pinned.does("SELECT @a").value(), "1");
    for (statement, expected) in prepared.into_iter().zip([READ_ONLY, IN_READ_ONLY]) {
        pinned.sends(&execution(statement, false, &[], true)).expect("sent");
        let answer = pinned.receives(Asked::Results).expect("an answer");
        assert_eq!(code(&answer), Some(expected), "{answer}");
    }
    tries_all(&mut pinned, &weir, at);
    // It began as one that may write, and is over before it does.
    let answer = begun.asks("SELECT * FROM writer");
    assert_eq!(code(&answer), Some(1213), "{answer}");
    assert_eq!(port(&mut begun), pair.primary.address.port(), "the replica of now");
    let answer = both.tries("SELECT * FROM writer").expect("an answer");
    assert_eq!(code(&answer), Some(READ_ONLY), "{answer}");
    assert!(both.tries("SELECT 1").is_err(), "its connection has ended");
    assert_eq!(written(&pair), ["0", "0"]);
}
