//! No write is carried out anywhere but at the primary, as the servers themselves tell it.

use std::hash::{BuildHasher as _, RandomState};

use weir_tests::dialogue::{Weir, until};
use weir_tests::mysql::{
    Arrivals, Asked, Client, Pair, Value, error_of, execution, query, send_texts, watched_pair,
};

use super::leftovers::changes_user;
use super::{before, client, replication};

/// Sessions; the command `mysql_arrivals` runs more.
const SESSIONS: u64 = 60;

#[test]
fn no_text_that_writes_is_carried_out_by_a_replica_that_would_take_it() {
    let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one("weir"));
    println!("repeat with WEIR_SEED={seed}");
    let pair = watched_pair("arrivals");
    let weir = before(&pair);
    let found = send_texts(SESSIONS, seed, weir.address("auto"), &pair);
    println!("{found:#?}");
    assert!(found.wrong.is_empty(), "{}", found.wrong.join("\n"));
    let reads = found.at_replica.get("sql/select").copied().unwrap_or(0);
    assert!(reads * 8 > found.texts, "the replica got few reads: {reads} of {}", found.texts);
    assert!(found.written > SESSIONS * 3, "hardly anything was written: {}", found.written);
    assert!(found.refused * 2 < found.texts, "most texts were refused: {}", found.refused);
    assert!(found.kept_away > 3, "hardly any was kept at the replica: {}", found.kept_away);
    // Who looks for a write would see one: this is sent there, where it is carried out.
    client(&weir, "reads").does("INSERT INTO app.calls VALUES (4)");
    // It is counted behind its answer.
    let seen = until("the insert to be counted", || {
        let mut seen = Arrivals::default();
        seen.look_at(&pair.replica);
        (seen.wrong.first().map(String::as_str) == Some("1 of sql/insert")).then_some(seen)
    });
    assert_eq!(seen.wrong.get(1).map(String::as_str), Some("1 transactions of the replica's own"));
}

/// Error of what is the primary's alone, where a session is kept at the replica.
const READ_ONLY: u16 = 1836;
/// Error of a server about a write in a READ ONLY transaction.
const IN_READ_ONLY_TRANSACTION: u16 = 1792;
/// Error of a transaction that was rolled back.
const ROLLED_BACK: u16 = 1213;

/// The port of the server that answers.
fn port(client: &mut Client) -> u16 {
    client.does("SELECT @@port").value().parse().expect("a number")
}

fn refused(client: &mut Client, sql: &str) -> u16 {
    client.asks(sql).error().unwrap_or_else(|| panic!("{sql}: carried out")).0
}

/// Sends a command that one packet answers: the number of the error.
fn commands(client: &mut Client, payload: &[u8]) -> Option<u16> {
    client.sends(payload).expect("sent");
    client.receives(Asked::One).expect("an answer").error().map(|(code, _)| code)
}

/// COM_RESET_CONNECTION.
const RESET: &[u8] = &[0x1f];

/// Executes it with these values: the number of the error.
fn execute(client: &mut Client, statement: u32, cursor: bool, values: &[Value]) -> Option<u16> {
    client.sends(&execution(statement, cursor, values, true)).expect("sent");
    client.receives(Asked::Results).expect("an answer").error().map(|(code, _)| code)
}

fn send_piece(client: &mut Client, statement: u32, piece: &str) {
    let head = [&b"\x18"[..], &statement.to_le_bytes(), &0_u16.to_le_bytes()].concat();
    client.sends(&[&head, piece.as_bytes()].concat()).expect("sent");
}

/// That the replica has carried out nothing of its own.
fn is_untouched(pair: &Pair, what: &str) {
    let mut seen = Arrivals::default();
    seen.look_at(&pair.replica);
    let own: Vec<_> = seen.wrong.iter().filter(|wrong| wrong.ends_with("of the replica's own")).collect();
    assert!(own.is_empty(), "{what}: {:?}", seen.wrong);
}

/// A session in a READ ONLY transaction at the replica.
fn in_read_only(weir: &Weir, pair: &Pair) -> Client {
    let mut client = client(weir, "auto");
    client.does("START TRANSACTION READ ONLY");
    assert_eq!(port(&mut client), pair.replica.address.port());
    client
}

/// What is the primary's alone, whatever else is said in it.
const WRITES: &[&str] = &[
    "INSERT INTO app.t VALUES (1, 'a', 1)",
    "WITH x AS (SELECT @a AS n) UPDATE app.t JOIN x SET a = n",
    "BEGIN",
    "START TRANSACTION",
    "CREATE TABLE app.x (a INT)",
    "CALL app.p()",
    "SELECT @a, app.f('a')",
    "SELECT @a, a FROM app.t FOR UPDATE",
    "SET @b = app.f('a')",
    "DO app.f('a')",
    "SELECT 1; INSERT INTO app.t VALUES (1, 'a', 1)",
    "/*!50000 INSERT INTO app.t VALUES (1, 'a', 1) */",
    "EXECUTE s",
    "XA START 'x'",
    "LOCK TABLES app.t WRITE",
    "GRANT SELECT ON app.t TO app@'%'",
    "ANALYZE TABLE app.t",
    "SET GLOBAL max_connections = 1000",
];

#[test]
fn a_session_that_is_kept_at_a_replica_has_no_write_carried_out_there() {
    let pair = watched_pair("kept");
    let weir = before(&pair);
    let [primary, replica] = [&pair.primary, &pair.replica].map(|server| server.address.port());
    for pin in [
        "SET @a = 7",
        "SELECT 7 INTO @a",
        "SELECT GET_LOCK('kept', 0)",
        "PREPARE s FROM 'SELECT 1'",
        "SET sort_buffer_size = 300000",
    ] {
        let mut kept = in_read_only(&weir, &pair);
        kept.does(pin);
        for ends in [
            "CREATE TABLE app.x (a INT)",
            "START TRANSACTION READ WRITE",
            "LOCK TABLES app.t WRITE",
            "COMMIT; DELETE FROM app.t",
        ] {
            assert_eq!(refused(&mut kept, ends), READ_ONLY, "{pin}; {ends}");
        }
        // It is still open, and one that says nothing else is as the one before.
        kept.does("BEGIN");
        assert_eq!(refused(&mut kept, "DELETE FROM app.t"), IN_READ_ONLY_TRANSACTION);
        kept.does("COMMIT");
        kept.does("PREPARE s FROM 'INSERT INTO app.calls VALUES (9)'");
        for write in WRITES {
            assert_eq!(refused(&mut kept, write), READ_ONLY, "{pin}; {write}");
        }
        // It goes on where it is, with what it has there.
        let value = if pin.contains("@a") { "7" } else { "" };
        assert_eq!(kept.does("SELECT COALESCE(@a, '')").value(), value);
        kept.does("SET @b = 8, time_zone = '+01:00'");
        kept.does("SELECT RELEASE_ALL_LOCKS()");
        kept.does("START TRANSACTION READ ONLY");
        assert_eq!(port(&mut kept), replica);
        kept.does("COMMIT");
        is_untouched(&pair, pin);
        match pin.starts_with("SET") {
            true => changes_user(&mut kept, "app"),
            false => assert_eq!(commands(&mut kept, RESET), None),
        }
        kept.does("BEGIN");
        assert_eq!(port(&mut kept), primary);
        kept.does("INSERT INTO app.t VALUES (1, 'a', 1)");
        kept.does("COMMIT");
    }
    weir.reaches("weir_mysql_lost_total", &[("result", "failed")], (5 * (4 + WRITES.len())) as f64);
}

#[test]
fn what_ends_a_read_only_transaction_and_writes_does_so_at_the_primary() {
    let pair = watched_pair("leaves");
    let weir = before(&pair);
    let mut root = pair.primary.root();
    let mut count = || root.does("SELECT COUNT(*) FROM app.calls").value();
    for (at, (text, then)) in [
        ("START TRANSACTION READ WRITE", "INSERT INTO app.calls VALUES (5); COMMIT"),
        ("COMMIT", "BEGIN; INSERT INTO app.calls VALUES (5); COMMIT"),
        ("COMMIT; INSERT INTO app.calls VALUES (5)", "SELECT 1"),
        ("ROLLBACK; SELECT 1; INSERT INTO app.calls VALUES (5)", "SELECT 1"),
        ("CREATE TABLE app.made (a INT)", "INSERT INTO app.calls VALUES (5)"),
        (
            "SET completion_type = 1",
            "START TRANSACTION READ WRITE; INSERT INTO app.calls VALUES (5); COMMIT AND NO CHAIN",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = in_read_only(&weir, &pair);
        client.does(text);
        client.does(then);
        assert_eq!(count(), (at + 1).to_string(), "{text}; {then}");
        is_untouched(&pair, text);
    }
    // A session that says so itself is read-only wherever it is, as on a server.
    let mut client = in_read_only(&weir, &pair);
    client.does("SET SESSION TRANSACTION READ ONLY");
    client.does("COMMIT");
    assert_eq!(refused(&mut client, "DELETE FROM app.calls"), IN_READ_ONLY_TRANSACTION);
    client.does("SET SESSION TRANSACTION READ WRITE");
    assert_eq!(refused(&mut client, "COMMIT; SELECT nothing"), 1054, "what follows is carried out");
    // What reads in it first can neither be moved nor stay.
    let mut client = in_read_only(&weir, &pair);
    for text in ["SELECT 1; COMMIT; DELETE FROM app.calls", "CALL app.p(); DELETE FROM app.calls"] {
        assert_eq!(refused(&mut client, text), READ_ONLY, "{text}");
    }
    client.does("SELECT 1; COMMIT");
    client.does("DELETE FROM app.calls");
    assert_eq!(count(), "0");
    is_untouched(&pair, "several");
}

#[test]
fn a_statement_that_is_prepared_at_a_replica_is_executed_where_it_belongs() {
    let pair = watched_pair("executed");
    let weir = before(&pair);
    let one = [Value::Number(1)];
    let mut session = client(&weir, "auto");
    let insert = session.prepares("INSERT INTO app.calls VALUES (?)");
    let long = session.prepares("INSERT INTO app.t (b) VALUES (?)");
    let rows = session.prepares("SELECT a FROM app.u");
    session.does("START TRANSACTION READ ONLY");
    assert_eq!(port(&mut session), pair.replica.address.port());
    assert_eq!(execute(&mut session, insert, false, &one), Some(IN_READ_ONLY_TRANSACTION));
    session.does("COMMIT");
    assert_eq!(execute(&mut session, insert, false, &one), None);
    // A cursor outlives its transaction.
    session.does("START TRANSACTION READ ONLY");
    assert_eq!(execute(&mut session, rows, true, &[]), None);
    session.does("COMMIT");
    assert_eq!(execute(&mut session, insert, false, &one), Some(READ_ONLY));
    session.sends(&[&[0x19], &rows.to_le_bytes()[..]].concat()).expect("sent");
    assert_eq!(execute(&mut session, insert, false, &one), None);
    // A read that has warnings is held for a question, at the replica.
    session.does("SELECT CAST('x' AS SIGNED)");
    send_piece(&mut session, long, "piece");
    assert_eq!(execute(&mut session, long, false, &[Value::Long]), None);
    // A write that asks about the read before it.
    session.does("SELECT SQL_CALC_FOUND_ROWS a FROM app.u LIMIT 1");
    let asks = "WITH x AS (SELECT FOUND_ROWS() AS n) UPDATE app.u JOIN x SET d = n";
    assert_eq!(refused(&mut session, asks), 1105);
    // Pieces of a value are where the session is, and what they are for is not carried out there.
    session.does("START TRANSACTION READ ONLY");
    session.does("SET @a = 7");
    session.does("COMMIT");
    send_piece(&mut session, long, "piece");
    assert_eq!(execute(&mut session, long, false, &[Value::Long]), Some(READ_ONLY));
    assert_eq!(session.prepares("INSERT INTO app.t (b) VALUES (1)"), long + 2, "this carries out nothing");
    assert_eq!(session.does("SELECT @a").value(), "7");
    assert_eq!(commands(&mut session, RESET), None);
    session.does("INSERT INTO app.calls VALUES (1)");
    assert_eq!(pair.primary.root().does("SELECT COUNT(*) FROM app.calls").value(), "3");
    is_untouched(&pair, "prepared");
}

#[test]
fn a_cursor_that_asks_about_the_statement_before_it_is_opened_where_writes_may_follow() {
    let pair = watched_pair("asking-cursor");
    let weir = before(&pair);
    let mut session = client(&weir, "auto");
    let asks = session.prepares("SELECT LAST_INSERT_ID(), a FROM app.u");
    session.does("SELECT a FROM app.u");
    assert_eq!(execute(&mut session, asks, true, &[]), None);
    session.does("INSERT INTO app.calls VALUES (1)");
    is_untouched(&pair, "a cursor that asks");
}

#[test]
fn what_a_client_sends_to_a_secondary_by_a_hint_keeps_no_write_there() {
    let pair = watched_pair("hinted");
    let weir = before(&pair);
    let [primary, replica] = [&pair.primary, &pair.replica].map(|server| server.address.port());
    let mut hinted = client(&weir, "auto");
    hinted.does("/* weir: secondary */ SELECT app.pure()");
    for _ in 0..2 {
        assert_eq!(refused(&mut hinted, "INSERT INTO app.calls VALUES (5)"), READ_ONLY);
        assert_eq!(port(&mut hinted), replica);
    }
    assert_eq!(refused(&mut hinted, "/* weir: primary */ SELECT app.pure()"), READ_ONLY);
    // What a hint does not send there, it does not keep there.
    let mut other = client(&weir, "auto");
    let locks = "/* weir: secondary */ SELECT app.pure(), @@port FROM app.u LIMIT 1 FOR UPDATE";
    assert_eq!(other.does(locks).rows()[0][1], primary.to_string());
    is_untouched(&pair, "hinted");
}

#[test]
fn a_question_that_keeps_its_connection_is_answered_by_the_primary() {
    let pair = watched_pair("asks");
    let weir = before(&pair);
    let mut session = client(&weir, "auto");
    // The connection to the replica is held for a question about the warnings.
    session.does("SELECT CAST('x' AS SIGNED)");
    session.does("SELECT LAST_INSERT_ID() + CONNECTION_ID()");
    assert_eq!(port(&mut session), pair.primary.address.port(), "it keeps the number that it was told");
    session.does("INSERT INTO app.calls VALUES (5)");
    is_untouched(&pair, "asks");
}

#[test]
fn who_has_something_on_a_primary_that_becomes_a_replica_writes_nothing_there_any_more() {
    let pair = watched_pair("deposed");
    let mut old = pair.primary.root();
    old.does("SET GLOBAL read_only = OFF");
    let weir = replication::before(&pair, "");
    let [mut pinned, mut writes, mut commits, mut reads] = [(); 4].map(|()| client(&weir, "auto"));
    pinned.does("SET @a = 7");
    for (number, in_transaction) in [&mut writes, &mut commits].into_iter().enumerate() {
        in_transaction.does("BEGIN");
        in_transaction.does(&format!("INSERT INTO app.calls VALUES ({number})"));
    }
    reads.does("BEGIN");
    let executed = "SELECT @@GLOBAL.gtid_executed";
    let before = old.does(executed).value();
    old.does("SET GLOBAL read_only = ON");
    let mut new = pair.replica.root();
    new.does("STOP REPLICA");
    new.does("SET GLOBAL read_only = OFF");
    replication::has_primary(&weir, &pair.replica);
    assert_eq!(pinned.does("SELECT @a").value(), "7");
    assert_eq!(reads.does("SELECT @@port").value(), pair.primary.address.port().to_string());
    assert_eq!(refused(&mut writes, "INSERT INTO app.calls VALUES (5)"), ROLLED_BACK);
    assert_eq!(refused(&mut commits, "COMMIT"), ROLLED_BACK);
    // These go on, at the next primary; who is pinned would be refused for ever.
    for in_transaction in [&mut writes, &mut commits] {
        in_transaction.does("INSERT INTO app.calls VALUES (6)");
    }
    pinned.sends(&query("INSERT INTO app.calls VALUES (7)")).expect("sent");
    let (_, payload) = pinned.receives_packet().expect("an error");
    assert_eq!(error_of(&payload).map(|(code, _)| code), Some(READ_ONLY));
    assert!(pinned.receives_packet().is_err(), "its connection ends");
    assert_eq!(new.does("SELECT GROUP_CONCAT(n) FROM app.calls").value(), "6,6");
    assert_eq!(old.does(executed).value(), before, "the old one has committed nothing");
}
