//! KILL, in whatever way it names a connection.

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::mysql::{Answer, Asked, Client, Login, Mysqld, execution, pair, query};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

fn code(answer: &Answer) -> Option<u16> {
    answer.error().map(|(code, _)| code)
}

/// Weir before one server, with as many connections as it likes.
fn before_one(server: &Mysqld) -> Weir {
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    Setup::of(&config).with("server", server.address).start()
}

/// Has a client sleep at the server, for so long that somebody must wake it.
fn sleeps(server: &Mysqld, client: &mut Client) {
    client.sends(&query("SELECT SLEEP(600)")).expect("sent");
    until("the server sleeps", || {
        let sleeping = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        (server.root().does(sleeping).value() == "1").then_some(())
    });
}

fn executes(client: &mut Client, statement: u32) -> Answer {
    client.sends(&execution(statement, false, &[], true)).expect("sent");
    client.receives(Asked::Results).expect("an answer")
}

#[test]
fn a_kill_that_is_prepared_reaches_the_session_that_has_the_number() {
    let server = Mysqld::start("kill-prepared", "");
    let weir = before_one(&server);
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut killer, mut sleeper) = (log_in(), log_in());
    let number = sleeper.connection_id;
    let statement = killer.prepares(&format!("KILL QUERY {number}"));
    for _ in 0..2 {
        sleeps(&server, &mut sleeper);
        let killed = executes(&mut killer, statement);
        assert!(killed.is_ok(), "{killed}");
        assert_eq!(sleeper.receives(Asked::Results).expect("an answer").value(), "1", "it was woken");
    }
    // A number that is none of Weir's is the server's own.
    let statement = killer.prepares("KILL QUERY 4000000");
    assert_eq!(code(&executes(&mut killer, statement)), Some(1094));
    let statement = killer.prepares(&format!("KILL {number}"));
    assert!(executes(&mut killer, statement).is_ok());
    assert!(sleeper.tries("SELECT 1").is_err(), "its connection has ended");
    assert_eq!(killer.does("SELECT 'there'").value(), "there");
}

#[test]
fn a_kill_as_a_command_reaches_the_session_that_has_the_number() {
    let server = Mysqld::start("kill-command", "");
    let weir = before_one(&server);
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut killer, mut killed) = (log_in(), log_in());
    let kill = [&b"\x0c"[..], &killed.connection_id.to_le_bytes()].concat();
    killer.sends(&kill).expect("sent");
    let answer = killer.receives(Asked::One).expect("an answer");
    assert!(answer.is_ok(), "{answer}");
    assert!(killed.tries("SELECT 1").is_err(), "its connection has ended");
}

#[test]
fn a_kill_among_other_statements_is_refused_and_none_of_them_run() {
    let server = Mysqld::start("kill-among", "");
    let weir = before_one(&server);
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut killer, mut other) = (log_in(), log_in());
    killer.does("CREATE TABLE among (n INT)");
    let number = other.connection_id;
    for text in [
        format!("KILL {number}; INSERT INTO among VALUES (1)"),
        format!("INSERT INTO among VALUES (1); KILL QUERY {number}"),
    ] {
        let answer = killer.asks(&text);
        assert!(
            answer.error().is_some_and(|(code, text)| code == 1105 && text.contains("alone")),
            "{answer}"
        );
    }
    assert_eq!(killer.does("SELECT COUNT(*) FROM among").value(), "0");
    assert_eq!(other.does("SELECT 'here'").value(), "here");
    let ends_itself = killer.asks("KILL CONNECTION_ID()");
    assert_eq!(code(&ends_itself), Some(1317), "as on a server");
    assert!(killer.tries("SELECT 1").is_err());
}

/// Each server counts its connections, so the number of one is that of a stranger's at another.
#[test]
fn a_servers_number_kills_nothing_where_it_is_not_known_which_server_is_meant() {
    let pair = pair();
    let weir = before(&pair);
    let mut stranger = pair.primary.root();
    let number = stranger.does("SELECT CONNECTION_ID()").value();
    let mut reads = client(&weir, "reads");
    for kill in ["KILL", "KILL QUERY"] {
        let answer = reads.asks(&format!("{kill} {number}"));
        let says = |(code, text): (u16, String)| code == 1105 && text.contains("which server");
        assert!(answer.error().is_some_and(says), "{answer}");
    }
    // With a connection of its own it is that server's.
    reads.does("SET @mine = 1");
    assert_eq!(code(&reads.asks("KILL 4000000")), Some(1094));
    // Told at the replica, and meant there.
    let mut told = client(&weir, "auto");
    told.does("START TRANSACTION READ ONLY");
    let number = told.does("SELECT CONNECTION_ID()").value();
    let mut killer = client(&weir, "auto");
    let answer = killer.asks(&format!("KILL {number}"));
    assert_eq!(code(&answer), Some(1105), "{answer}");
    told.does("COMMIT");
    told.quits();
    // Told at the primary, where every KILL goes.
    let mut told = client(&weir, "auto");
    let number = told.does("SELECT CONNECTION_ID()").value();
    killer.does(&format!("KILL {number}"));
    assert!(told.tries("SELECT 1").is_err());
    assert_eq!(stranger.does("SELECT 'here'").value(), "here");
}

#[test]
fn a_statement_that_waits_for_a_server_does_not_run_once_it_is_killed() {
    let server = Mysqld::start("kill-waiting", "");
    let config = ONE_CONNECTION
        .replace("[pool.one.mysql]", "queue = { max = 9, timeout = \"60s\" }\n[pool.one.mysql]");
    let weir = Setup::of(&config).with("server", server.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let [mut holder, mut waiting, mut killer] = [log_in(), log_in(), log_in()];
    holder.does("CREATE TABLE waited (n INT)");
    holder.does("BEGIN");
    let stands_in_line = |waiting: &mut Client| {
        waiting.sends(&query("INSERT INTO waited VALUES (1)")).expect("sent");
        until("it to stand in line", || (weir.metric("weir_queue_depth", &[]) == 1.0).then_some(()));
    };
    // One that it does not run is not ended later.
    killer.does(&format!("KILL QUERY {}", waiting.connection_id));
    stands_in_line(&mut waiting);
    killer.does(&format!("KILL QUERY {}", waiting.connection_id));
    let answer = waiting.receives(Asked::Results).expect("an answer");
    assert_eq!(code(&answer), Some(1317), "{answer}");
    stands_in_line(&mut waiting);
    killer.does(&format!("KILL {}", waiting.connection_id));
    let answer = waiting.receives(Asked::Results).expect("an answer");
    assert_eq!(code(&answer), Some(1317), "{answer}");
    assert!(waiting.tries("SELECT 1").is_err(), "its connection has ended");
    holder.does("COMMIT");
    assert_eq!(holder.does("SELECT COUNT(*) FROM waited").value(), "0");
}

#[test]
fn a_kill_leaves_no_warnings_of_the_statement_before() {
    let pair = pair();
    let weir = before(&pair);
    let (mut killer, other) = (client(&weir, "auto"), client(&weir, "auto"));
    for warns in ["SELECT CAST('x' AS SIGNED)", "SELECT nothing_of_this_name"] {
        killer.asks(warns);
        killer.does(&format!("KILL QUERY {}", other.connection_id));
        assert!(killer.does("SHOW WARNINGS").rows().is_empty(), "{warns}");
    }
}
