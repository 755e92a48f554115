//! What a session leaves on its connection, and who gets that next. Rows F4 and F12 of the threat model.
//!
//! All sessions share the one connection that a server may have, so that who comes next has it for certain.

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::mysql::{Asked, Client, Login, Mysqld, Value, error_of, execution, query};

pub const ONE_CONNECTION: &str = r#"
[runtime]
workers = 1
[listener.db]
protocol = "mysql"
bind = "@db"
access = "read-write"
pool = "one"
[pool.one]
backends = [{ address = "@server", max_connections = 1 }]
[pool.one.mysql]
topology = "static"
"#;

fn before(server: &Mysqld) -> Weir {
    Setup::of(ONE_CONNECTION).with("server", server.address).start()
}

fn client(weir: &Weir) -> Client {
    Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in")
}

/// What is left behind, by statements, what the next session asks, and what it is to hear: the first value,
/// or the number of an error. 1105 says that it is not known.
const LEFT: [(&str, &str, &str); 19] = [
    ("SET @left = 7", "SELECT @left IS NULL", "1"),
    ("SELECT 7 INTO @left", "SELECT @left IS NULL", "1"),
    ("CREATE TEMPORARY TABLE passing (n INT)", "SELECT * FROM passing", "1146"),
    ("USE information_schema", "SELECT DATABASE()", "shop"),
    ("SET autocommit = 0", "SELECT @@autocommit", "1"),
    (
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SELECT @@transaction_isolation",
        "REPEATABLE-READ",
    ),
    ("SET TRANSACTION READ ONLY", "INSERT INTO kept VALUES (1)", ""),
    // A server keeps READ ONLY of a transaction that ends in this way for the next statement.
    (
        "START TRANSACTION READ ONLY; SET autocommit = 0; SET autocommit = 1",
        "INSERT INTO kept VALUES (3)",
        "",
    ),
    ("SET sql_mode = 'ANSI_QUOTES'", "SELECT \"text\"", "text"),
    ("SET NAMES latin1", "SELECT @@character_set_client", "utf8mb4"),
    ("SET time_zone = '+05:00'", "SELECT @@time_zone", "SYSTEM"),
    ("SET sort_buffer_size = 65536", "SELECT @@sort_buffer_size > 65536", "1"),
    ("DO GET_LOCK('left', 0)", "SELECT IS_FREE_LOCK('left')", "1"),
    ("LOCK TABLES kept READ", "INSERT INTO kept VALUES (2)", ""),
    ("PREPARE left_over FROM 'SELECT 1'", "EXECUTE left_over", "1243"),
    ("HANDLER kept OPEN", "HANDLER kept READ FIRST", "1109"),
    ("XA START 'left'", "BEGIN", ""),
    ("BEGIN", "SET TRANSACTION READ ONLY", ""),
    ("SELECT SQL_CALC_FOUND_ROWS 1 UNION ALL SELECT 2 LIMIT 1", "SELECT FOUND_ROWS()", "0 or 1105"),
];

/// Ways for a session to be over.
const WAYS: [&str; 4] = ["quits", "breaks off", "resets", "changes to itself"];

#[test]
fn what_a_session_leaves_on_its_connection_the_next_one_does_not_find() {
    let server = Mysqld::start("leftovers", "");
    let weir = before(&server);
    client(&weir).does("CREATE TABLE kept (n INT)");
    let threads = |server: &Mysqld| {
        let of_app = "SELECT GROUP_CONCAT(id) FROM information_schema.processlist WHERE user = 'app'";
        server.root().does(of_app).value()
    };
    for (leaves, asks, hears) in LEFT {
        for way in WAYS {
            let what = format!("{leaves}; {way}; {asks}");
            // Logged in before, as a login would make the connection anew.
            let (mut next, mut first) = (client(&weir), client(&weir));
            leaves.split("; ").for_each(|leaves| drop(first.does(leaves)));
            let before = threads(&server);
            match way {
                "quits" => first.quits(),
                "breaks off" => drop(first),
                "resets" => {
                    first.sends(b"\x1f").expect("sent");
                    assert!(first.receives(Asked::One).expect("an answer").is_ok());
                    first.does("USE shop");
                    hears_own(&mut first, asks, hears, &what);
                }
                _ => {
                    changes_user(&mut first, "app");
                    hears_own(&mut first, asks, hears, &what);
                }
            }
            hears_own(&mut next, asks, hears, &what);
            assert_eq!(threads(&server), before, "{what}: it is the same connection");
        }
    }
}

fn hears_own(client: &mut Client, asks: &str, hears: &str, what: &str) {
    let answer = client.asks(asks);
    let heard = answer.error().map(|(code, _)| code.to_string());
    let heard = heard.or_else(|| answer.rows().first().map(|row| row[0].clone())).unwrap_or_default();
    assert!(hears.split(" or ").any(|hears| hears == heard), "{what}: {answer}");
    // What the question itself leaves, or keeps the connection by.
    client.does("ROLLBACK");
    client.sends(b"\x1f").expect("sent");
    assert!(client.receives(Asked::One).expect("an answer").is_ok());
}

/// COM_CHANGE_USER to an account without a password, in the schema `shop`.
pub fn changes_user(client: &mut Client, user: &str) {
    let change = [b"\x11", user.as_bytes(), b"\0\0shop\0\xff\0caching_sha2_password\0"].concat();
    client.sends(&change).expect("sent");
    let (sequence, asked) = client.receives_packet().expect("Weir asks for a proof");
    assert_eq!((sequence, asked[0]), (1, 0xfe));
    client.sends_bytes(b"\0\0\0\x02").expect("sent");
    let (_, answer) = client.receives_packet().expect("an answer");
    assert_eq!(answer[0], 0, "{:?}", error_of(&answer));
}

/// Tables of MyISAM have no transactions, and no status flag tells of what is locked against definitions.
#[test]
fn tables_that_a_session_has_used_with_autocommit_off_are_its_own_until_it_commits_or_leaves() {
    let server = Mysqld::start("used", "");
    let weir = before(&server);
    let mut root = server.root();
    root.does("CREATE TABLE shop.plain (n INT) ENGINE = MyISAM");
    root.does("SET lock_wait_timeout = 1");
    let mut alter = || {
        let answer = root.asks("ALTER TABLE shop.plain COMMENT = 'another'");
        answer.error().map_or(0, |(code, _)| code)
    };
    for way in ["commits", "commits in a text", "quits", "breaks off", "resets", "changes to itself"] {
        let mut user = client(&weir);
        user.does("SET autocommit = 0");
        user.does("SELECT 1");
        assert_eq!(alter(), 0, "{way}: nothing was used yet");
        user.does("SELECT n FROM plain");
        // These free nothing, and their status says nothing of the table.
        user.does("SELECT 1");
        user.does("UNLOCK TABLES");
        assert_eq!(alter(), 1205, "{way}: as it is without Weir");
        match way {
            "commits" => drop(user.does("COMMIT")),
            "commits in a text" => drop(user.does("SELECT n FROM plain; COMMIT; SELECT 1")),
            "quits" => user.quits(),
            "breaks off" => drop(user),
            "resets" => {
                user.sends(b"\x1f").expect("sent");
                assert!(user.receives(Asked::One).expect("an answer").is_ok());
            }
            _ => changes_user(&mut user, "app"),
        }
        until("the table is free", || (alter() == 0).then_some(()));
    }
}

/// No transaction has begun by it, as the status flags have it.
#[test]
fn a_savepoint_with_autocommit_off_is_its_sessions_until_it_commits() {
    let server = Mysqld::start("savepoint", "");
    let two = ONE_CONNECTION.replace("max_connections = 1", "max_connections = 2");
    let weir = Setup::of(&two).with("server", server.address).start();
    let (mut first, mut next) = (client(&weir), client(&weir));
    first.does("SET autocommit = 0");
    first.does("SAVEPOINT here");
    // It takes a connection that is idle.
    next.does("SET autocommit = 0");
    next.does("SET @a = 1");
    first.does("RELEASE SAVEPOINT here");
    first.does("COMMIT");
    assert_eq!(first.asks("RELEASE SAVEPOINT here").error().map(|(code, _)| code), Some(1305));
}

/// Whoever asks for the warnings of the statement before hears them, or that they are not known any more.
#[test]
fn warnings_are_shown_or_not_known_and_never_those_of_another_session() {
    let server = Mysqld::start("warnings", "");
    let weir = before(&server);
    let (mut first, mut next) = (client(&weir), client(&weir));
    let warns = "SELECT 'a' || 'b'";
    for (command, asked) in [(0x03, Asked::Results), (0x16, Asked::Statement)] {
        first.sends(&[&[command], warns.as_bytes()].concat()).expect("sent");
        assert!(first.receives(asked).expect("an answer").error().is_none());
        // It waits for the one connection, until that is held no longer for a question of the first.
        assert_eq!(next.does("SELECT 'between'").value(), "between");
        let answer = first.asks("SHOW WARNINGS");
        let known = answer.rows().first().map(|row| row[1].clone());
        let refused = answer.error().map(|(code, _)| code.to_string());
        let heard = known.or(refused).unwrap_or_default();
        assert!(["1287", "1105"].contains(&heard.as_str()), "command {command}: {answer}");
    }
}

/// What Weir prepares by itself has warnings of its own, and takes those of the statement before away.
#[test]
fn warnings_are_not_those_of_what_weir_has_prepared() {
    let server = Mysqld::start("prepared", "");
    let weir = before(&server);
    let mut first = client(&weir);
    first.sends(b"\x16SELECT 'a' || ?").expect("sent");
    let statement = first.receives(Asked::Statement).expect("an answer").statement().expect("a number");
    first.does("SELECT CAST('x' AS SIGNED)");
    // For its pieces it is prepared apart from what others share.
    first.sends(&[b"\x18", &statement.to_le_bytes()[..], b"\0\0piece"].concat()).expect("sent");
    let answer = first.asks("SHOW WARNINGS");
    let known = answer.rows().first().map(|row| row[1].clone());
    let heard = known.or(answer.error().map(|(code, _)| code.to_string())).unwrap_or_default();
    assert!(["1292", "1105"].contains(&heard.as_str()), "{answer}");
}

/// A server refuses a statement from a piece of a parameter that it does not have until it is reset.
#[test]
fn a_statement_that_a_wrong_piece_has_spoiled_is_refused_until_it_is_reset() {
    let server = Mysqld::start("pieces", "");
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    let weir = Setup::of(&config).with("server", server.address).start();
    let mut others: Vec<Client> = (0..4).map(|_| client(&weir)).collect();
    // The numbers of the errors, another session taking a connection before each execution.
    let mut spoils = |client: &mut Client, sql: &str, values: &[Value]| {
        let statement = client.prepares(sql);
        client.sends(&[b"\x18", &statement.to_le_bytes()[..], b"\0\0piece"].concat()).expect("sent");
        let mut heard = Vec::new();
        for (index, other) in others.iter_mut().enumerate() {
            if index == 2 {
                client.sends(&[b"\x1a", &statement.to_le_bytes()[..]].concat()).expect("sent");
                assert!(client.receives(Asked::One).expect("an answer").is_ok());
            }
            client.sends(&execution(statement, false, values, true)).expect("sent");
            let answer = client.receives(Asked::Results).expect("an answer");
            heard.push(answer.error().map_or(0, |(code, _)| code));
            other.does("BEGIN");
            other.does("SELECT 1");
        }
        others.iter_mut().for_each(|other| drop(other.does("COMMIT")));
        heard
    };
    // For a parameter that there is none of, and for one whose value comes along as well.
    for (sql, values, code) in [("SELECT 'whole'", &[][..], 1210), ("SELECT ?", &[Value::Number(3)], 1835)] {
        assert_eq!(spoils(&mut server.root(), sql, values), [code, code, 0, 0], "{sql} by the server alone");
        assert_eq!(spoils(&mut client(&weir), sql, values), [code, code, 0, 0], "{sql}");
    }
}

/// A piece has no answer: what is to be said of it, its execution says.
#[test]
fn a_piece_for_a_statement_that_asks_for_what_is_not_known_ends_no_session() {
    let server = Mysqld::start("asking", "");
    let weir = before(&server);
    let (mut first, mut next) = (client(&weir), client(&weir));
    first.does("SELECT SQL_CALC_FOUND_ROWS 1 UNION ALL SELECT 2 LIMIT 1");
    assert_eq!(next.does("SELECT 'between'").value(), "between");
    first.sends(b"\x16SELECT FOUND_ROWS(), ?").expect("sent");
    let statement = first.receives(Asked::Statement).expect("an answer").statement().expect("a number");
    first.sends(&[b"\x18", &statement.to_le_bytes()[..], b"\0\0piece"].concat()).expect("sent");
    first.sends(&execution(statement, false, &[Value::Text(String::new())], true)).expect("sent");
    let answer = first.receives(Asked::Results).expect("an answer");
    assert_eq!(answer.error().map(|(code, _)| code), Some(1105), "{answer}");
    assert_eq!(first.does("SELECT 'on'").value(), "on");
}

/// One that is refused leaves the session, as it does without Weir.
/// A server prepares no write while the next transaction is to be READ ONLY, and pieces have no answer.
#[test]
fn a_piece_for_a_statement_that_cannot_be_prepared_now_ends_no_session_and_its_execution_is_told() {
    let server = Mysqld::start("unprepared", "");
    server.root().does("CREATE TABLE shop.pieces (v TEXT)");
    let two = ONE_CONNECTION.replace("max_connections = 1", "max_connections = 2");
    let weir = Setup::of(&two).with("server", server.address).start();
    let (mut first, mut next) = (client(&weir), client(&weir));
    let statement = first.prepares("INSERT INTO shop.pieces VALUES (?)");
    // It takes the connection that has the statement.
    next.does("SET @a = 1");
    first.does("SET TRANSACTION READ ONLY");
    let piece = [b"\x18", &statement.to_le_bytes()[..], b"\0\0piece"].concat();
    first.sends(&piece).expect("sent");
    assert_eq!(first.asks("INSERT INTO shop.pieces VALUES ('x')").error().map(|(code, _)| code), Some(1792));
    let mut executes = || {
        first.sends(&execution(statement, false, &[Value::Long], true)).expect("sent");
        first.receives(Asked::Results).expect("an answer").error().map(|(code, _)| code)
    };
    assert_eq!(executes(), Some(1105), "the piece is lost");
    first.does("BEGIN");
    first.does("COMMIT");
    first.sends(&piece).expect("sent");
    first.sends(&execution(statement, false, &[Value::Long], true)).expect("sent");
    assert!(first.receives(Asked::Results).expect("an answer").is_ok());
    assert_eq!(first.does("SELECT GROUP_CONCAT(v) FROM shop.pieces").value(), "piece");
}

#[test]
fn a_release_ends_the_session_where_the_server_carries_it_out() {
    let server = Mysqld::start("release", "");
    let weir = before(&server);
    for (before, releases, ends) in [
        ("DO 0", "COMMIT RELEASE", true),
        ("DO 0", "SELECT 1; ROLLBACK RELEASE", true),
        // A number of its own, for the server may hear of the end of the other's a moment later.
        ("XA START '{who}'", "ROLLBACK RELEASE", false),
    ] {
        for (who, mut client) in [("alone", server.root()), ("through", client(&weir))] {
            client.does(&before.replace("{who}", who));
            let answer = client.asks(releases);
            assert_eq!(answer.error().is_none(), ends, "{releases}: {answer}");
            assert_eq!(client.tries("SELECT 1").is_err(), ends, "{releases} behind {before}, {who}");
        }
    }
}

#[test]
fn kill_ends_the_session_that_has_the_number_and_no_other_accounts() {
    let server = Mysqld::start("kill", "");
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    let weir = Setup::of(&config).with("server", server.address).start();
    let mut root = server.root();
    for statement in ["CREATE USER stranger@'%'", "GRANT SELECT ON *.* TO stranger@'%'"] {
        root.does(statement);
    }
    let log_in = |user| Client::log_in(weir.address("db"), &Login::of(user, "shop")).expect("it is let in");
    let (mut sleeper, mut other, mut stranger) = (log_in("app"), log_in("app"), log_in("stranger"));
    let number = sleeper.connection_id;
    assert!(number >> 31 == 1 && other.connection_id >> 31 == 1, "Weir's own");
    let number_is = |answer: weir_tests::mysql::Answer| answer.error().map(|(code, _)| code);
    assert_eq!(number_is(stranger.asks(&format!("KILL {number}"))), Some(1095), "while it is idle");
    assert_eq!(number_is(other.asks("KILL 4294967295")), Some(1094), "a number that nobody has");
    sleeper.sends(&query("SELECT SLEEP(60)")).expect("sent");
    until("the server sleeps", || {
        let sleeping = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        (root.does(sleeping).value() == "1").then_some(())
    });
    assert_eq!(number_is(stranger.asks(&format!("KILL QUERY {number}"))), Some(1095), "while it sleeps");
    other.does(&format!("KILL QUERY {number}"));
    let answer = sleeper.receives(Asked::Results).expect("the session goes on");
    // SLEEP says 1 when it is woken, or the statement ends with 1317.
    assert!(number_is(answer.clone()) == Some(1317) || answer.value() == "1", "{answer}");
    assert_eq!(sleeper.does("SELECT 'here'").value(), "here");
    other.does(&format!("KILL {number}"));
    assert!(sleeper.tries("SELECT 1").is_err(), "its connection has ended");
    assert_eq!(other.does("SELECT 'there'").value(), "there");
    assert_eq!(stranger.does("SELECT 'too'").value(), "too");
}

#[test]
fn a_connection_that_dumps_the_binlog_serves_nobody_else() {
    let server = Mysqld::start("dump", "log_bin = binlog");
    let config = format!("{ONE_CONNECTION}\n[log]\naccess = '@dir/access.log'\n");
    let weir = Setup::of(&config).with("server", server.address).start();
    let received = || weir.metric("weir_bytes_total", &[("listener", "db"), ("direction", "received")]);
    let mut dumps = client(&weir);
    dumps.does("SET @source_binlog_checksum = @@global.binlog_checksum");
    let file = dumps.does("SHOW BINARY LOGS").value();
    // COM_BINLOG_DUMP from the beginning to what there is now, which an EOF packet ends.
    let dump = [b"\x12\x04\0\0\0\x01\0\x63\0\0\0", file.as_bytes()].concat();
    dumps.sends(&dump).expect("sent");
    let mut events = 0;
    loop {
        let (_, event) = dumps.receives_packet().expect("an event");
        match event[0] {
            0 => events += 1,
            0xfe => break,
            _ => panic!("{:?}", error_of(&event)),
        }
    }
    assert!(events > 2, "{events}");
    // What the server has of it, a user variable among it, is gone with it.
    drop(dumps);
    // The login too, and the command once.
    let line: serde_json::Value = serde_json::from_str(&weir.lines_of("access.log", 1)[0]).expect("JSON");
    assert_eq!(line["bytes_received"].as_f64(), Some(received()), "{line}");
    let mut next = client(&weir);
    assert_eq!(next.does("SELECT @source_binlog_checksum IS NULL").value(), "1");
    // What any client may ask.
    next.sends(b"\x09").expect("COM_STATISTICS");
    let said = next.receives(Asked::One).expect("an answer");
    assert!(said.packets[0].1.starts_with(b"Uptime: "), "{said}");
}

/// What COM_RESET_CONNECTION leaves as it is on a server (mysqld 9.7.4).
#[test]
fn what_a_reset_does_not_undo_no_other_session_finds_and_its_own_keeps() {
    let server = Mysqld::start("beyond-reset", "");
    let weir = before(&server);
    let mut root = server.root();
    root.does("CREATE ROLE reader");
    root.does("CREATE DATABASE secret");
    root.does("CREATE TABLE secret.t (id INT)");
    for sql in [
        "CREATE USER some@'%' IDENTIFIED BY ''",
        "GRANT SELECT ON shop.* TO some@'%'",
        "GRANT SELECT ON secret.* TO reader",
        "GRANT reader TO some@'%'",
        "CREATE PROCEDURE shop.becomes() SQL SECURITY INVOKER SET ROLE reader",
        "GRANT EXECUTE ON PROCEDURE shop.becomes TO some@'%'",
    ] {
        root.does(sql);
    }
    let some = || Client::log_in(weir.address("db"), &Login::of("some", "shop")).expect("let in");
    let role = "SELECT CURRENT_ROLE()";
    for way in ["quits", "breaks off"] {
        let (mut next, mut first) = (some(), some());
        first.does("SET ROLE reader");
        first.resets();
        assert_eq!(first.does(role).value(), "`reader`@`%`", "as on a server");
        first.does("SELECT COUNT(*) FROM secret.t");
        if way == "quits" {
            first.quits()
        } else {
            drop(first)
        }
        assert_eq!(next.does(role).value(), "NONE", "{way}");
        assert_eq!(next.asks("SELECT * FROM secret.t").error().map(|(code, _)| code), Some(1142), "{way}");
    }
    let (mut next, mut first) = (some(), some());
    first.does("CALL becomes()");
    assert_eq!(first.does(role).value(), "`reader`@`%`");
    first.quits();
    assert_eq!(next.does(role).value(), "NONE", "by a routine");
    // Several statements may come in one text, or not (COM_SET_OPTION).
    let (mut next, mut first) = (client(&weir), client(&weir));
    first.sends(b"\x1b\x01\0").expect("sent");
    assert!(first.receives(Asked::One).expect("an answer").error().is_none());
    first.resets();
    assert_eq!(first.asks("DO 1; DO 2").error().map(|(code, _)| code), Some(1064), "as on a server");
    first.quits();
    next.does("DO 1; DO 2");
}

#[test]
fn kill_reaches_no_session_of_another_pool_whatever_its_accounts_name() {
    let (one, two) = (Mysqld::start("pool-one", ""), Mysqld::start("pool-two", ""));
    let second =
        ONE_CONNECTION.replace("[runtime]\nworkers = 1\n", "").replace("listener.db", "listener.other");
    let second =
        second.replace("@db", "@other").replace("\"one\"", "\"two\"").replace("pool.one", "pool.two");
    let config = format!("{ONE_CONNECTION}{}", second.replace("@server", "@second"));
    let weir = Setup::of(&config).with("server", one.address).with("second", two.address).start();
    let mut ours = client(&weir);
    let mut theirs = Client::log_in(weir.address("other"), &Login::of("app", "shop")).expect("let in");
    for kill in ["KILL", "KILL QUERY"] {
        let answer = theirs.asks(&format!("{kill} {}", ours.connection_id));
        assert_eq!(answer.error().map(|(code, _)| code), Some(1095), "{answer}");
    }
    ours.does("BEGIN");
    let answer = theirs.asks(&format!("KILL {}", ours.connection_id));
    assert!(answer.error().is_some(), "{answer}");
    ours.does("COMMIT");
}

/// COM_CHANGE_USER has room for numbers that a login has not.
#[test]
fn a_collation_of_a_large_number_is_the_sessions_on_every_connection() {
    let server = Mysqld::start("collations", "");
    let weir = before(&server);
    let changes = |client: &mut Client| {
        // utf8mb4_nb_0900_ai_ci.
        client.sends(b"\x11app\0\0shop\0\x36\x01caching_sha2_password\0").expect("sent");
        let (sequence, asked) = client.receives_packet().expect("a proof is asked for");
        assert_eq!((sequence, asked[0]), (1, 0xfe));
        client.sends_bytes(b"\0\0\0\x02").expect("sent");
        let (_, answer) = client.receives_packet().expect("an answer");
        assert_eq!(answer[0], 0, "{}", answer.escape_ascii());
    };
    let shown = "SELECT @@collation_connection, @@character_set_client, COLLATION('x')";
    let mut direct = Client::log_in(server.address, &Login::of("app", "shop")).expect("let in");
    changes(&mut direct);
    let expected = direct.does(shown).rows();
    assert_eq!(expected[0][0], "utf8mb4_nb_0900_ai_ci");
    let (mut own, mut other) = (client(&weir), client(&weir));
    changes(&mut own);
    for _ in 0..3 {
        assert_eq!(own.does(shown).rows(), expected);
        assert_eq!(other.does("SELECT @@collation_connection").value(), "utf8mb4_0900_ai_ci");
    }
    own.resets();
    direct.resets();
    assert_eq!(own.does(shown).rows(), direct.does(shown).rows(), "behind a reset");
}
