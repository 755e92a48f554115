//! What stored code leaves on a connection that no text of a statement tells of.

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Pair, execution, pair};

use super::{before, client};

/// A function that takes a lock, a view and a trigger that call it, and a procedure.
fn make(pair: &Pair, name: &str) {
    let mut root = pair.primary.root();
    root.does("SET GLOBAL log_bin_trust_function_creators = 1");
    root.does("USE shop");
    for sql in [
        "CREATE FUNCTION takes_NAME(n TEXT) RETURNS INT DETERMINISTIC RETURN GET_LOCK(n, 0)",
        "CREATE PROCEDURE calls_NAME() SELECT GET_LOCK('NAME', 0)",
        "CREATE VIEW shows_NAME AS SELECT takes_NAME('NAME') AS taken",
        "CREATE VIEW over_NAME AS SELECT taken FROM shows_NAME",
        "CREATE TABLE with_NAME (id INT)",
        "CREATE TRIGGER on_NAME BEFORE INSERT ON with_NAME FOR EACH ROW SET NEW.id = takes_NAME('NAME')",
    ] {
        root.does(&sql.replace("NAME", name));
    }
    pair.replica.has_all_of(&pair.primary);
}

/// Whether the lock is the session's own until the session ends, and free then.
fn is_the_sessions_own(weir: &Weir, takes: &str, lock: &str, pair: &Pair) -> Result<(), String> {
    let mut owner = client(weir, "auto");
    owner.does(takes);
    // As many as there are workers, and more: one would come upon the connection of the first.
    let mut others: Vec<Client> = (0..6).map(|_| client(weir, "auto")).collect();
    for other in &mut others {
        other.does("SELECT 1");
        let got = other.does(&format!("SELECT GET_LOCK('{lock}', 0)")).value();
        if got != "0" {
            return Err(format!("{takes}: another session got the lock"));
        }
    }
    drop(others);
    if owner.does(&format!("SELECT RELEASE_LOCK('{lock}')")).value() != "1" {
        return Err(format!("{takes}: its own session has it no more"));
    }
    owner.does(takes);
    drop(owner);
    let mut root = pair.primary.root();
    until("it is free when its session is gone", || {
        (root.does(&format!("SELECT IS_FREE_LOCK('{lock}')")).value() == "1").then_some(())
    });
    Ok(())
}

/// What takes the lock in a statement, one way each.
const WAYS: [&str; 5] = [
    "SELECT takes_NAME('NAME')",
    "CALL calls_NAME()",
    "SELECT * FROM shows_NAME",
    "SELECT taken FROM shop . `over_NAME`",
    "INSERT INTO with_NAME VALUES (1)",
];

fn each_way(weir: &Weir, name: &str, pair: &Pair) {
    let taken = WAYS.iter().map(|way| way.replace("NAME", name));
    let failed: Vec<String> =
        taken.filter_map(|way| is_the_sessions_own(weir, &way, name, pair).err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_lock_behind_a_view_or_a_trigger_that_the_config_names_is_its_sessions_own() {
    let pair = pair();
    make(&pair, "named");
    let config = format!("{BEFORE_PAIR}hidden_code = [\"shows_named\", \"OVER_named\", \"with_named\"]\n");
    let weir = Setup::of(&config).with("primary", pair.primary.address);
    let weir = weir.with("replica", pair.replica.address).start();
    each_way(&weir, "named", &pair);
    let explained = weir.command(&["explain", "sql", "--listener", "auto", "SELECT * FROM over_named"]);
    assert!(explained.succeeded().contains("hidden_code"), "{explained:?}");
}

#[test]
fn a_statement_that_was_prepared_before_its_hidden_code_was_known_keeps_its_connection() {
    let pair = pair();
    make(&pair, "later");
    let mut weir = before(&pair);
    let mut owner = client(&weir, "auto");
    let statement = owner.prepares("INSERT INTO with_later VALUES (1)");
    weir.reloads(&format!("{BEFORE_PAIR}hidden_code = [\"with_later\"]\n"));
    owner.sends(&execution(statement, false, &[], true)).expect("sent");
    assert!(owner.receives(Asked::Results).expect("an answer").error().is_none());
    let mut others: Vec<Client> = (0..6).map(|_| client(&weir, "auto")).collect();
    for other in &mut others {
        assert_eq!(other.does("SELECT GET_LOCK('later', 0)").value(), "0");
    }
    drop(owner);
    let mut root = pair.primary.root();
    until("it is free when its session is gone", || {
        (root.does("SELECT IS_FREE_LOCK('later')").value() == "1").then_some(())
    });
}

#[test]
fn a_lock_behind_a_view_or_a_trigger_is_found_on_the_servers() {
    let pair = pair();
    make(&pair, "found");
    let watched = BEFORE_PAIR.replace("topology = \"static\"", "topology = \"replication\"\nuser = \"app\"");
    let weir = Setup::of(&watched).with("primary", pair.primary.address);
    let weir = weir.with("replica", pair.replica.address).start();
    until("it is found", || {
        let status = weir.admin().reads("/v1/status").json();
        let names = status["pools"][0]["cluster"]["hidden_code"].as_array()?.clone();
        ["shows_found", "over_found", "with_found"]
            .iter()
            .all(|it| names.contains(&(*it).into()))
            .then_some(())
    });
    each_way(&weir, "found", &pair);
    assert!(weir.command(&["status"]).succeeded().contains("over_found"));
}

#[test]
fn the_name_of_a_view_writes_no_line_of_its_own_into_a_status_or_a_log() {
    let pair = Pair::start("named-badly");
    make(&pair, "badly");
    let mut root = pair.primary.root();
    root.does("USE shop");
    root.does("CREATE VIEW `v\n  failover at never\u{1b}[31m` AS SELECT takes_badly('badly') AS taken");
    pair.replica.has_all_of(&pair.primary);
    let watched = BEFORE_PAIR.replace("topology = \"static\"", "topology = \"replication\"\nuser = \"app\"");
    let weir = Setup::of(&watched).with("primary", pair.primary.address);
    let weir = weir.with("replica", pair.replica.address).start();
    let said = until("it is found", || {
        let said = weir.command(&["status"]).succeeded().to_owned();
        said.contains("failover at never").then_some(said)
    });
    let line = said.lines().find(|line| line.contains("stored code with locks")).unwrap_or_default();
    assert!(line.contains("failover at never") && !said.contains('\u{1b}'), "{said}");
    let logged = weir.stderr();
    assert!(!logged.lines().any(|line| line.starts_with("  failover at never")), "{logged}");
}

#[test]
fn a_lock_that_is_taken_where_no_select_stands_before_it_is_its_sessions_own() {
    let pair = pair();
    let mut root = pair.primary.root();
    root.does("SET GLOBAL log_bin_trust_function_creators = 1");
    root.does("USE shop");
    root.does("CREATE TABLE bare (a INT)");
    root.does("INSERT INTO bare VALUES (1), (2), (3), (4), (5), (6)");
    root.does("CREATE TABLE bare_too LIKE bare");
    root.does("CREATE FUNCTION degrees(n TEXT) RETURNS INT DETERMINISTIC RETURN GET_LOCK(n, 0)");
    pair.replica.has_all_of(&pair.primary);
    let weir = before(&pair);
    let failed: Vec<String> = [
        "SELECT (WITH q AS (SELECT 1) TABLE q), COALESCE(NULL, GET_LOCK('bare', 0))",
        "WITH q AS (SELECT 1) TABLE bare ORDER BY 1, GET_LOCK('bare', a - a)",
        "WITH q AS (SELECT 1) DELETE FROM bare ORDER BY a, GET_LOCK('bare', 0) LIMIT 1",
        "INSERT INTO bare_too TABLE bare ORDER BY GET_LOCK('bare', a - a) LIMIT 3",
        "CREATE TABLE IF NOT EXISTS bare_values VALUES ROW(GET_LOCK('bare', 0))",
        "CREATE TABLE IF NOT EXISTS bare_table TABLE bare ORDER BY GET_LOCK('bare', a - a) LIMIT 3",
        "CREATE EVENT IF NOT EXISTS bare_event ON SCHEDULE AT NOW() + INTERVAL GET_LOCK('bare', 0) DAY DO DO 1",
        "PURGE BINARY LOGS BEFORE '2000-01-01' + INTERVAL GET_LOCK('bare', 0) DAY",
        "SELECT shop . degrees('bare')",
        "SET @x = `shop`./**/degrees('bare')",
    ]
    .into_iter()
    .filter_map(|takes| is_the_sessions_own(&weir, takes, "bare", &pair).err())
    .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
