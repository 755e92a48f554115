//! What stored code behind a view or a trigger leaves on a connection, whatever its client can, and whether
//! or not the statement succeeds. Row F4 of the threat model.

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{Client, DEPRECATE_EOF, LOCAL_FILES, Login, Mysqld, Pair};

use super::before;
use super::leftovers::ONE_CONNECTION;

/// Capabilities of clients that wait for EOF packets, and of those that do not.
const KINDS: [u32; 2] = [0, DEPRECATE_EOF];

fn client(weir: &Weir, capabilities: u32) -> Client {
    let login = Login { capabilities, ..Login::of("app", "shop") };
    Client::log_in(weir.address("db"), &login).expect("app is let in")
}

const CODE: [&str; 16] = [
    "SET GLOBAL log_bin_trust_function_creators = 1",
    "USE shop",
    "CREATE TABLE kept (n INT)",
    "INSERT INTO kept VALUES (1)",
    "CREATE FUNCTION runs_one() RETURNS INT DETERMINISTIC BEGIN SET @left = 7; RETURN 1; END",
    "CREATE FUNCTION runs_two() RETURNS INT DETERMINISTIC BEGIN SET SESSION group_concat_max_len = 77; SET @left = 7; RETURN 1; END",
    "CREATE FUNCTION runs_shadow() RETURNS INT DETERMINISTIC BEGIN CREATE TEMPORARY TABLE IF NOT EXISTS shop.kept (n INT); RETURN 1; END",
    "CREATE VIEW sets_one AS SELECT runs_one() AS n",
    "CREATE VIEW sets_two AS SELECT runs_two() AS n",
    "CREATE VIEW shadows AS SELECT runs_shadow() AS n",
    "CREATE TABLE triggers_two (n INT PRIMARY KEY)",
    "CREATE TABLE triggers_zone (n INT PRIMARY KEY)",
    "INSERT INTO triggers_two VALUES (1)",
    "INSERT INTO triggers_zone VALUES (1)",
    "CREATE TRIGGER two BEFORE INSERT ON triggers_two FOR EACH ROW SET NEW.n = NEW.n + 0 * runs_two()",
    "CREATE TRIGGER zone BEFORE INSERT ON triggers_zone FOR EACH ROW SET SESSION time_zone = '+09:00'",
];

/// A statement that leaves something, whether it fails, a question of it, and what a session hears that has
/// left nothing, and the one that has.
const LEAVES: [(&str, bool, &str, [&str; 2]); 8] = [
    ("SELECT * FROM sets_one", false, "SELECT @left IS NULL", ["1", "0"]),
    ("SELECT * FROM sets_two", false, "SELECT @left IS NULL", ["1", "0"]),
    ("SELECT * FROM sets_two", false, "SELECT @@group_concat_max_len = 77", ["0", "1"]),
    ("SELECT * FROM shadows", false, "SELECT COUNT(*) FROM kept", ["1", "0"]),
    ("INSERT INTO triggers_two VALUES (2)", false, "SELECT @left IS NULL", ["1", "0"]),
    ("INSERT INTO triggers_two VALUES (1)", true, "SELECT @left IS NULL", ["1", "0"]),
    ("INSERT INTO triggers_two VALUES (1)", true, "SELECT @@group_concat_max_len = 77", ["0", "1"]),
    ("INSERT INTO triggers_zone VALUES (1)", true, "SELECT @@time_zone", ["SYSTEM", "+09:00"]),
];

#[test]
fn what_stored_code_leaves_is_its_sessions_own_and_no_other_finds_it() {
    let server = Mysqld::start("stored-code", "");
    let mut root = server.root();
    CODE.iter().for_each(|sql| drop(root.does(sql)));
    let waits =
        ONE_CONNECTION.replace("[pool.one.mysql]", "queue = { max = 1, timeout = \"1s\" }\n[pool.one.mysql]");
    let weir = Setup::of(&waits).with("server", server.address).start();
    for capabilities in KINDS {
        for (leaves, fails, asks, [others, own]) in LEAVES {
            for way in ["stays", "quits", "breaks off"] {
                let what = format!("{capabilities:#x}: {leaves}; {way}; {asks}");
                root.does("DELETE FROM triggers_two WHERE n > 1");
                // Logged in before, as a login would make the connection anew.
                let (mut next, mut first) = (client(&weir, capabilities), client(&weir, capabilities));
                next.does("DO 0");
                assert_eq!(first.asks(leaves).error().is_some(), fails, "{what}");
                match way {
                    "quits" => first.quits(),
                    "breaks off" => drop(first),
                    _ => {
                        // The connection is the first one's, or it is as new.
                        let answer = next.asks(asks);
                        let refused = answer.error().map(|(code, _)| code);
                        assert!(refused == Some(1040) || answer.value() == others, "{what}: {answer}");
                        assert_eq!(first.does(asks).value(), own, "{what}: its own");
                        first.quits();
                    }
                }
                assert_eq!(next.does(asks).value(), others, "{what}");
                next.quits();
            }
        }
    }
}

/// Behind an error, it is not the next statement's doing: a SET tells what it sets, and not that before.
#[test]
fn a_setting_behind_a_statement_that_has_failed_does_not_hide_what_that_has_left() {
    let server = Mysqld::start("behind-failed", "");
    let mut root = server.root();
    CODE.iter().for_each(|sql| drop(root.does(sql)));
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    for capabilities in KINDS {
        let (mut next, mut first) = (client(&weir, capabilities), client(&weir, capabilities));
        assert!(first.asks("INSERT INTO triggers_two VALUES (1)").error().is_some());
        first.does("SET sql_safe_updates = 0");
        first.does("DO 0");
        assert_eq!(first.does("SELECT @left").value(), "7");
        first.quits();
        assert_eq!(next.does("SELECT @left IS NULL").value(), "1", "{capabilities:#x}");
    }
}

#[test]
fn a_plain_write_that_succeeds_or_fails_keeps_no_connection() {
    let server = Mysqld::start("plain-writes", "");
    let mut root = server.root();
    root.does("CREATE TABLE shop.plain (id INT AUTO_INCREMENT PRIMARY KEY, n INT UNIQUE)");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    for capabilities in KINDS {
        let (mut first, mut next) = (client(&weir, capabilities), client(&weir, capabilities));
        for sql in [
            "INSERT INTO plain (n) VALUES (1)",
            "INSERT INTO plain (n) VALUES (1)",
            "SELECT * FROM nowhere",
            "SET autocommit = 1; SET time_zone = '+01:00'; USE shop",
            "SET NAMES utf8mb4",
            "SELECT id FROM plain",
            "UPDATE plain SET n = 2",
            "DELETE FROM plain",
        ] {
            first.asks(sql);
            // It waits for the one connection until that is free.
            let answer = next.asks("SELECT 'free'");
            assert!(answer.error().is_none(), "behind {sql}: {answer}");
        }
    }
}

#[test]
fn a_session_reads_what_a_function_has_written_whatever_its_client_can() {
    let pair = Pair::start("function-writes");
    let mut root = pair.primary.root();
    for sql in [
        "SET GLOBAL log_bin_trust_function_creators = 1",
        "CREATE TABLE shop.by_function (n INT)",
        "CREATE FUNCTION shop.writes() RETURNS INT DETERMINISTIC BEGIN INSERT INTO shop.by_function VALUES (1); RETURN 1; END",
    ] {
        root.does(sql);
    }
    pair.replica.has_all_of(&pair.primary);
    let weir = before(&pair);
    pair.replica.root().does("STOP REPLICA SQL_THREAD");
    for (capabilities, written) in KINDS.into_iter().zip(["1", "2"]) {
        let login = Login { capabilities, ..Login::of("app", "shop") };
        let mut client = Client::log_in(weir.address("auto"), &login).expect("app is let in");
        client.does("SELECT writes()");
        // So that the next statement may go anywhere.
        client.resets();
        let read = client.does("SELECT COUNT(*) FROM shop.by_function").value();
        assert_eq!(read, written, "{capabilities:#x}: its own write");
    }
    pair.replica.root().does("START REPLICA SQL_THREAD");
}

/// The OK packet of LOAD DATA says that no id was given.
#[test]
fn the_first_id_that_a_file_was_given_is_its_sessions_last_insert_id_and_no_others() {
    let server = Mysqld::start("loaded-ids", "");
    let mut root = server.root();
    root.does("CREATE TABLE shop.numbered (id INT AUTO_INCREMENT PRIMARY KEY, n INT) AUTO_INCREMENT = 500");
    root.does("CREATE FUNCTION shop.last_id() RETURNS INT DETERMINISTIC RETURN LAST_INSERT_ID()");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let mut next = client(&weir, DEPRECATE_EOF);
    for (capabilities, id) in KINDS.into_iter().zip(["500", "503"]) {
        let mut first = client(&weir, capabilities | LOCAL_FILES);
        first.file = b"1\n2\n3\n".to_vec();
        first.does("LOAD DATA LOCAL INFILE 'x' INTO TABLE numbered (n)");
        let other = next.does("SELECT last_id()").value();
        assert_eq!(other, "0", "{capabilities:#x}: another session, in a function");
        next.resets();
        assert_eq!(first.does("SELECT LAST_INSERT_ID()").value(), id, "{capabilities:#x}");
        first.quits();
        root.does("TRUNCATE shop.numbered");
        root.does("ALTER TABLE shop.numbered AUTO_INCREMENT = 503");
    }
}
