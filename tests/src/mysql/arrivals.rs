//! Checks where statements are executed: sends reads and writes through Weir, and looks at the servers' own
//! logs and counters.
//!
//! The replica is read-only, but `app` may write there anyway. So a statement that Weir sends to the wrong
//! server is not refused: it is executed, and appears in that server's own log and counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::client::{Client, Login};
use super::servers::{Mysqld, Pair};

#[path = "../../../crates/weir-mysql/tests/against_sqlparser/generate.rs"]
mod generate;

use generate::{Draws, Statements};

/// Server options that count statements by the class that the server's own parser gives them, and log each of
/// them.
const WATCHED: &str = "performance_schema_instrument = 'statement/%=ON'\nlog_output = TABLE\nlock_wait_timeout = 20\n\
    innodb_lock_wait_timeout = 20\nmax_execution_time = 5000\n";

/// The schema for the texts. Calling a routine writes, whatever its name and its arguments suggest.
const DATA: &[&str] = &[
    "CREATE DATABASE app",
    "CREATE TABLE app.t (a INT, b VARCHAR(200), c INT, KEY i (a))",
    "CREATE TABLE app.u (a INT, b VARCHAR(200), d INT)",
    "INSERT INTO app.u VALUES (1, 'x', 1), (2, 'y', 2), (3, NULL, 3)",
    "CREATE TABLE app.calls (n INT)",
    "CREATE FUNCTION app.f (x TEXT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA \
     BEGIN INSERT INTO app.calls VALUES (1); RETURN 1; END",
    "CREATE FUNCTION app.count (x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA \
     BEGIN INSERT INTO app.calls VALUES (2); RETURN 1; END",
    "CREATE FUNCTION app.pure () RETURNS INT DETERMINISTIC NO SQL RETURN 1",
    "CREATE PROCEDURE app.p () MODIFIES SQL DATA INSERT INTO app.calls VALUES (3)",
    "GRANT CONNECTION_ADMIN ON *.* TO app@'%'",
    // This account's statements at the replica are judged by what they did there, not by what they are.
    "CREATE USER roams@'%' IDENTIFIED BY ''",
    "GRANT ALL ON app.* TO roams@'%'",
    "GRANT CONNECTION_ADMIN ON *.* TO roams@'%'",
];

/// Statements of a session, after the two that recreate `t`.
const TEXTS: u64 = 24;

/// Statements that take a session to the replica and keep it there, and statements that may follow. Calling
/// the procedure in a READ ONLY transaction does not write in the caller's own transaction.
const ROAMING: &[&str] = &[
    "START TRANSACTION READ ONLY",
    "START TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    "SET @v = 1",
    "SELECT GET_LOCK('roams', 0)",
    "CREATE TEMPORARY TABLE IF NOT EXISTS z (a INT)",
    "PREPARE s FROM 'INSERT INTO t (a) VALUES (5)'",
    "SET sort_buffer_size = 300000",
    "/* weir: secondary */ SELECT pure()",
    "SELECT CAST('x' AS SIGNED)",
    "SELECT SQL_CALC_FOUND_ROWS a FROM u LIMIT 1",
    "WITH x AS (SELECT FOUND_ROWS() AS n) UPDATE u JOIN x SET d = n",
    "WITH x AS (SELECT @@warning_count AS n) UPDATE u JOIN x SET d = n",
    "INSERT INTO t (a) VALUES (@v)",
    "EXECUTE s",
    "COMMIT",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "BEGIN",
    "START TRANSACTION READ WRITE",
    "SET autocommit = 0",
    "SET autocommit = 1",
    "SET completion_type = 1",
    "SET completion_type = 0",
    "SET SESSION TRANSACTION READ ONLY",
    "SET SESSION TRANSACTION READ WRITE",
    "SET TRANSACTION READ ONLY",
    "COMMIT; INSERT INTO t (a) VALUES (6)",
    "SELECT 1; COMMIT; INSERT INTO t (a) VALUES (7)",
    "START TRANSACTION READ ONLY; SELECT 1; COMMIT; DELETE FROM t",
    "LOCK TABLES t WRITE",
    "UNLOCK TABLES",
    "CREATE TABLE IF NOT EXISTS x (a INT)",
    "CALL p()",
];

/// Counts how often Weir has prepared a connection by a DO: before it lends a connection whose last session
/// inserted something or had a failed statement.
const WEIRS_OWN: &str = "SELECT COUNT(*) FROM mysql.general_log \
     WHERE user_host LIKE 'app%' AND CONVERT(argument USING utf8mb4) IN ('DO LAST_INSERT_ID(0)', 'DO 0')";

/// Statement classes that change nothing, by their names in `performance_schema`: reads, what Weir sets when
/// it takes a connection for a session, commands, and what the server could not parse.
const HARMLESS: &[&str] = &[
    "sql/select",
    "sql/set_option",
    "sql/show_",
    "sql/error",
    "sql/empty_query",
    "com/",
    "sql/begin",
    "sql/commit",
    "sql/rollback",
];

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Texts that were sent.
    pub texts: u64,
    /// Texts that a server refused.
    pub refused: u64,
    /// Texts that Weir refused because their session was kept at the replica.
    pub kept_away: u64,
    /// Transactions that the primary has committed for them (count).
    pub written: u64,
    /// Statements of `app` at the replica, by the server's class.
    pub at_replica: BTreeMap<String, u64>,
    /// Statements that were executed at the replica and are not reads.
    pub wrong: Vec<String>,
}

/// A primary and a replica that would both accept writes of `app`.
pub fn watched_pair(name: &str) -> Pair {
    let primary = Mysqld::start(&format!("{name}-primary"), WATCHED);
    let replica = Mysqld::start(&format!("{name}-replica"), WATCHED);
    replica.follows(&primary);
    let mut root = primary.root();
    for sql in DATA {
        root.does(sql);
    }
    replica.has_all_of(&primary);
    let mut root = replica.root();
    // `read_only` stays on: Weir recognises a replica by it.
    root.does("SET GLOBAL super_read_only = OFF");
    root.does("SET GLOBAL general_log = ON");
    Pair { primary, replica }
}

/// Sends the texts of this many sessions to `through`, an address of a Weir that splits reads and writes in
/// front of `pair`.
pub fn send_texts(sessions: u64, seed: u64, through: SocketAddr, pair: &Pair) -> Arrivals {
    let before = own_transactions(&pair.primary);
    let mut draws = Draws(seed);
    let mut arrivals = Arrivals::default();
    for session in 0..sessions {
        let mut client = Client::log_in(through, &Login::of("app", "app")).expect("app is let in");
        let dirty_once_in = [12, 40, 0][(session % 3) as usize];
        for sql in ["TRUNCATE app.t", "INSERT INTO app.t (a, b, c) VALUES (1, 'x', 1), (2, 'y', 2)"] {
            client.does(sql);
        }
        for _ in 0..TEXTS {
            let text = Statements { draws: &mut draws, dirty_once_in }.text();
            arrivals.texts += 1;
            arrivals.refused += u64::from(client.asks(&text).error().is_some());
        }
        client.quits();
        arrivals.roam(through, &mut draws);
    }
    arrivals.written = own_transactions(&pair.primary) - before;
    arrivals.look_at(&pair.replica);
    arrivals
}

impl Arrivals {
    /// A session that goes to the replica and back, with writes at both.
    fn roam(&mut self, through: SocketAddr, draws: &mut Draws) {
        let mut client = Client::log_in(through, &Login::of("roams", "app")).expect("roams is let in");
        for _ in 0..TEXTS {
            let text = match draws.once_in(3) {
                true => Statements { draws: &mut *draws, dirty_once_in: 0 }.text(),
                false => (*draws.one_of(ROAMING)).to_owned(),
            };
            self.texts += 1;
            let refusal = client.asks(&text).error();
            self.refused += u64::from(refusal.is_some());
            self.kept_away += u64::from(refusal.is_some_and(|(code, _)| code == 1836));
        }
        client.quits();
    }

    /// Records what the replica has executed for `app`.
    pub fn look_at(&mut self, replica: &Mysqld) {
        let mut root = replica.root();
        root.does("SET SESSION group_concat_max_len = 1000000");
        let counted = root.does(
            "SELECT GROUP_CONCAT(SUBSTRING(event_name, 11), '=', count_star) \
             FROM performance_schema.events_statements_summary_by_account_by_event_name \
             WHERE user = 'app' AND event_name LIKE 'statement/%' AND count_star > 0",
        );
        for (kind, count) in counted.value().split(',').filter_map(|one| one.split_once('=')) {
            self.at_replica.insert(kind.to_owned(), count.parse().unwrap_or(0));
            if kind == "sql/do" && root.does(WEIRS_OWN).value() == count {
                continue;
            }
            if !HARMLESS.iter().any(|harmless| kind.starts_with(harmless)) {
                self.wrong.push(format!("{count} of {kind}"));
            }
        }
        let own = own_transactions(replica);
        if own > 0 {
            self.wrong.push(format!("{own} transactions of the replica's own"));
        }
        if !self.wrong.is_empty() {
            let texts = root.does(
                "SELECT COALESCE(GROUP_CONCAT(DISTINCT CONVERT(argument USING utf8mb4) SEPARATOR '\\n'), '') FROM (SELECT argument \
                 FROM mysql.general_log WHERE user_host LIKE 'app%' AND command_type IN ('Query', 'Execute') AND NOT \
                 REGEXP_LIKE(CONVERT(argument USING utf8mb4), '^[( ]*(SELECT|SET|SHOW|WITH|EXPLAIN)', 'i') ORDER BY event_time DESC LIMIT 40) AS found",
            );
            self.wrong.push(format!("among what the replica was sent:\n{}", texts.value()));
        }
    }
}

/// Transactions that a server has committed for its own clients (count), by its `gtid_executed`.
fn own_transactions(server: &Mysqld) -> u64 {
    let mut root = server.root();
    let uuid = root.does("SELECT @@server_uuid").value();
    let executed = root.does("SELECT @@GLOBAL.gtid_executed").value().replace('\n', "");
    let of_own = executed.split(',').filter_map(|set| set.trim().strip_prefix(&uuid)?.strip_prefix(':'));
    let lengths = of_own.flat_map(|intervals| intervals.split(':')).map(|interval| {
        let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
        let number = |text: &str| text.parse::<u64>().expect("a number of a transaction");
        number(last) + 1 - number(first)
    });
    lengths.sum()
}
