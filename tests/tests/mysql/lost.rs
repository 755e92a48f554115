//! Connections to servers that are lost while a session has something on them.

use std::time::Duration;

use weir_tests::dialogue::{Setup, Signal, Weir, until};
use weir_tests::mysql::{Asked, Client, LOCAL_FILES, Login, Mysqld, Pair, Value, execution, pair, query};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

/// The schema of this name, which no other test uses: a session in it is known by it.
fn schema_of_its_own(pair: &Pair, name: &str) {
    pair.primary.root().does(&format!("CREATE DATABASE {name}"));
}

/// The number that the server knows the connection by that is in this schema.
fn thread_in(pair: &Pair, schema: &str) -> String {
    let sql = format!("SELECT id FROM information_schema.processlist WHERE db = '{schema}'");
    let rows = pair.primary.root().does(&sql).rows();
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows[0][0].clone()
}

fn kills(pair: &Pair, thread: &str) {
    pair.primary.root().does(&format!("KILL {thread}"));
    until("the connection to be closed", || {
        let left = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {thread}");
        (pair.primary.root().does(&left).value() == "0").then_some(())
    });
}

fn code_of(client: &mut Client, sql: &str) -> u16 {
    client.asks(sql).error().map_or(0, |(code, _)| code)
}

/// A session in a transaction, whose connection to the server then ends.
fn in_a_lost_transaction(weir: &Weir, pair: &Pair, schema: &str) -> Client {
    let mut client = client(weir, "writes");
    loses_its_transaction(&mut client, pair, schema);
    client
}

fn loses_its_transaction(client: &mut Client, pair: &Pair, schema: &str) {
    schema_of_its_own(pair, schema);
    client.does(&format!("USE {schema}"));
    client.does("BEGIN");
    client.does("INSERT INTO shop.chained VALUES (1)");
    kills(pair, &thread_in(pair, schema));
}

#[test]
fn a_rollback_whose_server_ends_meanwhile_is_what_was_asked_for() {
    let server = Mysqld::start("rolled-back", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let mut client = Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    client.does("BEGIN");
    let asked = || weir.metric("weir_backend_requests_total", &[("pool", "one")]);
    let before = asked();
    server.freezes();
    client.sends(&query("ROLLBACK")).expect("sent");
    until("it to be asked", || (asked() > before).then_some(()));
    server.dies();
    assert!(client.receives(Asked::Results).expect("an answer").is_ok());
}

#[test]
fn the_end_of_a_lost_transaction_chains_and_releases_as_any() {
    let pair = pair();
    let weir = before(&pair);
    client(&weir, "writes").does("CREATE TABLE chained (id INT)");
    let count = || client(&weir, "writes").does("SELECT COUNT(*) FROM chained").value();
    // Told at the next statement, and at that alone.
    let mut told = in_a_lost_transaction(&weir, &pair, "lost_and_told");
    assert_eq!(code_of(&mut told, "SELECT 1"), 1213);
    assert_eq!(code_of(&mut told, "SELECT 1"), 0);
    let mut ended = in_a_lost_transaction(&weir, &pair, "lost_and_ended");
    assert_eq!([code_of(&mut ended, "ROLLBACK"), code_of(&mut ended, "SELECT 1")], [0, 0]);
    let mut chained = in_a_lost_transaction(&weir, &pair, "lost_and_chained");
    for sql in ["ROLLBACK AND CHAIN", "INSERT INTO shop.chained VALUES (2)", "ROLLBACK"] {
        chained.does(sql);
    }
    assert_eq!(count(), "0", "the chained transaction was one");
    let mut by_setting = client(&weir, "writes");
    by_setting.does("SET completion_type = 'CHAIN'");
    loses_its_transaction(&mut by_setting, &pair, "lost_by_setting");
    for sql in ["ROLLBACK", "INSERT INTO shop.chained VALUES (4)", "ROLLBACK"] {
        by_setting.does(sql);
    }
    assert_eq!(count(), "0", "by completion_type, too");
    let mut released = in_a_lost_transaction(&weir, &pair, "lost_and_released");
    released.does("ROLLBACK RELEASE");
    assert!(released.tries("SELECT 1").is_err(), "the session has ended");
    let mut reset = in_a_lost_transaction(&weir, &pair, "lost_and_reset");
    reset.resets();
    assert_eq!(code_of(&mut reset, "SELECT 1"), 0, "whoever has the session next is not told");
    assert_eq!(count(), "0");
    client(&weir, "writes").does("DROP TABLE chained");
}

/// What a client sends while Weir hears nothing, and its server's connection ends meanwhile.
fn while_weir_is_stopped(weir: &Weir, then: impl FnOnce()) {
    let pids = weir.pids();
    pids.iter().for_each(|pid| weir.signals_pid(*pid, Signal::STOP));
    then();
    pids.iter().for_each(|pid| weir.signals_pid(*pid, Signal::CONT));
}

#[test]
fn a_server_that_is_lost_at_a_question_of_weirs_own_takes_its_transaction_and_its_locks_along() {
    let pair = pair();
    let weir = before(&pair);
    let mut first = client(&weir, "writes");
    first.does("CREATE TABLE asked (id INT PRIMARY KEY AUTO_INCREMENT, n BIGINT)");
    first.does("INSERT INTO asked (n) VALUES (0)");
    let mut lost = client(&weir, "writes");
    lost.does("INSERT INTO asked (n) VALUES (1)");
    // Weir knows the number when others have the connection, and has to say it on the next one.
    std::thread::sleep(Duration::from_millis(300));
    schema_of_its_own(&pair, "lost_at_a_question");
    lost.does("USE lost_at_a_question");
    lost.does("BEGIN");
    lost.does("UPDATE shop.asked SET n = 7");
    let thread = thread_in(&pair, "lost_at_a_question");
    while_weir_is_stopped(&weir, || {
        kills(&pair, &thread);
        lost.sends(&query("INSERT INTO shop.asked (n) VALUES (LAST_INSERT_ID())")).expect("sent");
    });
    let answer = lost.receives(Asked::Results).expect("an answer");
    assert_eq!(answer.error().map(|(code, _)| code), Some(1213), "{answer}");
    lost.does("INSERT INTO shop.asked (n) VALUES (3)");
    assert_eq!(first.does("SELECT GROUP_CONCAT(n ORDER BY id) FROM asked").value(), "0,1,3");
    // With a lock on the connection the session ends.
    let mut locked = client(&weir, "writes");
    locked.does("INSERT INTO asked (n) VALUES (4)");
    std::thread::sleep(Duration::from_millis(300));
    schema_of_its_own(&pair, "lost_with_a_lock");
    locked.does("USE lost_with_a_lock");
    locked.does("SELECT GET_LOCK('lost', 0)");
    locked.does("UPDATE shop.asked SET n = n WHERE id = 1");
    let thread = thread_in(&pair, "lost_with_a_lock");
    while_weir_is_stopped(&weir, || {
        kills(&pair, &thread);
        locked.sends(&query("INSERT INTO shop.asked (n) VALUES (LAST_INSERT_ID())")).expect("sent");
    });
    let told = locked.receives(Asked::Results);
    assert!(told.is_err() || told.is_ok_and(|answer| answer.error().is_some()));
    assert!(locked.tries("SELECT 1").is_err(), "the session has ended");
    assert_eq!(first.does("SELECT MAX(n) FROM asked").value(), "4");
    first.does("DROP TABLE asked");
}

/// Once a server has asked for a file, what the client sends is the file, whatever becomes of the server.
#[test]
fn a_server_that_is_lost_while_a_file_is_sent_ends_the_session_and_the_file_is_no_command() {
    let pair = pair();
    let weir = before(&pair);
    let mut root = client(&weir, "writes");
    root.does("CREATE TABLE uploaded (t TEXT)");
    let mut login = Login::of("app", "shop");
    login.capabilities |= LOCAL_FILES;
    let mut sender = Client::log_in(weir.address("auto"), &login).expect("let in");
    schema_of_its_own(&pair, "lost_with_a_file");
    sender.does("USE lost_with_a_file");
    sender.does("BEGIN");
    let thread = thread_in(&pair, "lost_with_a_file");
    sender.sends(&query("LOAD DATA LOCAL INFILE 'x' INTO TABLE shop.uploaded")).expect("sent");
    let (_, asked) = sender.receives_packet().expect("the server asks for the file");
    assert_eq!(asked[0], 0xfb);
    kills(&pair, &thread);
    let command = b"\x03INSERT INTO shop.uploaded VALUES ('taken for a command')";
    for sequence in 2..10_u8 {
        let mut packet = (command.len() as u32).to_le_bytes();
        packet[3] = sequence;
        if sender.sends_bytes(&[&packet[..], command].concat()).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    sender.sends_bytes(b"\0\0\0\x0a").ok();
    assert!(sender.receives(Asked::Results).is_err(), "the session has ended");
    assert_eq!(root.does("SELECT COUNT(*) FROM uploaded").value(), "0");
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
    root.does("DROP TABLE uploaded");
}

/// A client that has named the types of its values leaves them out from then on, whoever has answered.
#[test]
fn the_types_of_an_execution_that_is_told_of_a_lost_transaction_are_kept() {
    let pair = pair();
    let weir = before(&pair);
    let mut root = client(&weir, "writes");
    root.does("CREATE TABLE chained_types (v VARCHAR(40))");
    let mut own = client(&weir, "writes");
    let statement = own.prepares("INSERT INTO shop.chained_types VALUES (?)");
    let executes = |own: &mut Client, value: Value, with_types: bool| {
        own.sends(&execution(statement, false, &[value], with_types)).expect("sent");
        own.receives(Asked::Results).expect("an answer").error().map_or(0, |(code, _)| code)
    };
    assert_eq!(executes(&mut own, Value::Number(7), true), 0);
    schema_of_its_own(&pair, "lost_with_types");
    own.does("USE lost_with_types");
    own.does("BEGIN");
    own.does("INSERT INTO shop.chained_types VALUES ('lost')");
    kills(&pair, &thread_in(&pair, "lost_with_types"));
    assert_eq!(executes(&mut own, Value::Text("text".to_owned()), true), 1213);
    assert_eq!(executes(&mut own, Value::Text("text".to_owned()), false), 0);
    assert_eq!(root.does("SELECT GROUP_CONCAT(v ORDER BY v) FROM chained_types").value(), "7,text");
    root.does("DROP TABLE chained_types");
}

/// Who ends single connections says nothing about the server.
#[test]
fn connections_that_are_killed_at_a_server_do_not_eject_it() {
    let pair = Pair::start("killed");
    let weir = before(&pair);
    let mut root = pair.primary.root();
    for round in 0..12 {
        let mut own = client(&weir, "writes");
        own.does(&format!("SET @round = {round}"));
        own.sends(&query("SELECT SLEEP(60)")).expect("sent");
        let thread = until("it sleeps", || {
            let sleeps = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
            root.does(sleeps).rows().first().map(|row| row[0].clone())
        });
        kills(&pair, &thread);
        assert!(own.receives(Asked::Results).is_err(), "it was pinned");
    }
    let ejected = weir.metric("weir_backend_ejections_total", &[("pool", "pair")]);
    assert_eq!(ejected, 0.0, "{}", weir.story());
}
