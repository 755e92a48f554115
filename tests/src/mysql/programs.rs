//! Random programs of MySQL sessions, which cover whatever a session can leave behind, ask about, or be in
//! the middle of.
//!
//! Several of them run at once, their statements interleaved, and each must get the answers that it would get
//! alone. So a program touches nothing that another writes: it has the schema of the place in which it runs,
//! its named locks are its own, and no program writes what all of them read.

use std::sync::atomic::{AtomicU64, Ordering};

use super::data::{NATIONAL, schema_of};
use super::packets::Value;
use super::packets::{DEPRECATE_EOF, FOUND_ROWS, SESSION_TRACK};
use crate::dialogue::Draws;

/// What a session does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// COM_QUERY.
    Query(String),
    /// COM_STMT_PREPARE; later steps refer to the statement by this number.
    Prepare(usize, String),
    /// COM_STMT_EXECUTE.
    Execute {
        /// Which.
        statement: usize,
        /// Whether rows stay with a cursor.
        cursor: bool,
        /// As many as the statement has parameters, most of the time.
        values: Vec<Value>,
        /// Whether the types of the values are sent, which is required the first time.
        with_types: bool,
    },
    /// COM_STMT_SEND_LONG_DATA, of a parameter.
    LongData(usize, u16, String),
    /// COM_STMT_FETCH, of so many rows.
    Fetch(usize, u32),
    /// COM_STMT_RESET.
    ResetStatement(usize),
    /// COM_STMT_CLOSE.
    Close(usize),
    /// COM_PING.
    Ping,
    /// COM_INIT_DB.
    Schema(String),
    /// COM_RESET_CONNECTION.
    Reset,
    /// COM_SET_OPTION: whether one text may contain several statements.
    Several(bool),
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// By COM_QUIT.
    InOrder,
    /// Its connection closes without COM_QUIT.
    WithoutAWord,
}

/// A session's login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its schema at first; empty for none.
    pub schema: String,
    /// Capability flags that not all clients have.
    pub capabilities: u32,
}

/// A session from login to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its login.
    pub who: Who,
    /// What it does.
    pub steps: Vec<Step>,
    /// How it ends.
    pub leaving: Leaving,
}

impl Program {
    /// Draws one for this place, of at most `most` steps.
    pub fn draw(draws: &mut Draws, place: usize, most: u64) -> Program {
        // A replica is only sure to have what the session itself has written: a program without writes reads
        // none of the place's tables.
        let writes = draws.below(3) > 0;
        let capabilities = [
            DEPRECATE_EOF,
            DEPRECATE_EOF,
            0,
            DEPRECATE_EOF | SESSION_TRACK,
            SESSION_TRACK,
            DEPRECATE_EOF | FOUND_ROWS,
        ];
        let schema = match draws.below(4) {
            0 => String::new(),
            1 => pick(draws, &["fixed", NATIONAL]).to_owned(),
            _ if writes => schema_of(place),
            _ => "fixed".to_owned(),
        };
        let who = Who { schema, capabilities: pick(draws, &capabilities) };
        let mut steps = Vec::new();
        if writes {
            let schema = schema_of(place);
            let number = draws.below(1 << 30);
            steps.push(Step::Query(format!("REPLACE INTO {schema}.began VALUES (1, {number})")));
        }
        let mut drawing = Drawing {
            draws,
            place,
            number: DRAWN.fetch_add(1, Ordering::Relaxed),
            writes,
            hears_changes: who.capabilities & SESSION_TRACK != 0,
            theme: 0,
            parameters: [0; STATEMENTS],
            shows: [false; STATEMENTS],
            has_cursor: [false; STATEMENTS],
            explains: [false; STATEMENTS],
        };
        drawing.theme = drawing.draws.below(THEMES + 3);
        for _ in 0..1 + drawing.draws.below(most) {
            let step = drawing.step();
            steps.push(step);
        }
        let leaving = if draws.below(4) == 0 { Leaving::WithoutAWord } else { Leaving::InOrder };
        Program { who, steps, leaving }
    }
}

fn pick<T: Clone>(draws: &mut Draws, from: &[T]) -> T {
    from[draws.below(from.len() as u64) as usize].clone()
}

/// Statements that a program knows by number.
const STATEMENTS: usize = 3;

/// Number of subjects that a program may focus on.
const THEMES: u64 = 9;

/// How many programs were drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

struct Drawing<'d> {
    draws: &'d mut Draws,
    place: usize,
    /// Unique among all programs: a server frees locks of GET_LOCK only after closing a connection, so those
    /// of the program before may still be there.
    number: u64,
    writes: bool,
    /// Whether the session gets reports of changes of its state.
    hears_changes: bool,
    /// Half of the statements are about this subject; from [`THEMES`] up, about none in particular.
    theme: u64,
    parameters: [usize; STATEMENTS],
    /// Whether a parameter is a column of the result unchanged.
    shows: [bool; STATEMENTS],
    /// Whether it was executed with a cursor.
    has_cursor: [bool; STATEMENTS],
    /// Whether it is an EXPLAIN: mysqld 9.7 crashes when one is executed with a cursor for the second time.
    explains: [bool; STATEMENTS],
}

impl Drawing<'_> {
    fn step(&mut self) -> Step {
        let theme = if self.theme < THEMES && self.draws.below(2) == 0 {
            self.theme
        } else {
            self.draws.below(THEMES + 1)
        };
        let table: &[&str] = match theme {
            0 => READS,
            1 => ASKS_BACK,
            2 => TRANSACTIONS,
            3 => SETTINGS,
            4 if self.writes => WRITES,
            5 if self.writes => PINS,
            6 => return self.prepared(),
            7 => ERRORS_AND_MANY,
            8 => match self.draws.below(4) {
                0 => TRANSACTIONS,
                1 if self.writes => WRITES,
                _ => return self.prepared(),
            },
            9 => return self.command(),
            _ => READS,
        };
        let sql = pick(self.draws, table);
        // Weir reports what servers report by default, and nothing else that a client asks for.
        let is_told = self.hears_changes && sql.contains("session_track");
        if is_told || (!self.writes && sql.contains("{s}")) {
            return self.step();
        }
        Step::Query(self.filled(sql))
    }

    /// Fills numbers, the place and its schema, and the names of this program's own locks into a text.
    fn filled(&mut self, sql: &str) -> String {
        let locks = format!("{}_{}", self.place, self.number);
        let sql = sql.replace("{s}", &schema_of(self.place)).replace("{l}", &locks);
        let mut sql = sql.replace("{p}", &self.place.to_string());
        while sql.contains("{r}") {
            let number = self.draws.below(9).to_string();
            sql = sql.replacen("{r}", &number, 1);
        }
        sql
    }

    fn command(&mut self) -> Step {
        match self.draws.below(7) {
            0 | 1 => Step::Ping,
            2 => Step::Reset,
            6 => Step::Several(self.draws.below(2) == 0),
            3 => Step::Schema(pick(self.draws, &["fixed", NATIONAL]).to_owned()),
            4 if self.writes => Step::Schema(schema_of(self.place)),
            _ => Step::Schema("nowhere".to_owned()),
        }
    }

    fn prepared(&mut self) -> Step {
        let statement = self.draws.below(STATEMENTS as u64) as usize;
        match self.draws.below(10) {
            0..=2 => {
                let sql = pick(self.draws, PREPARED);
                if !self.writes && sql.contains("{s}") {
                    return self.prepared();
                }
                self.parameters[statement] = sql.matches('?').count();
                self.shows[statement] = sql.contains(", ?") && sql.starts_with("SELECT");
                self.has_cursor[statement] = false;
                self.explains[statement] = sql.starts_with("EXPLAIN");
                Step::Prepare(statement, self.filled(sql))
            }
            3 => Step::LongData(statement, 0, pick(self.draws, &["lang", "", "l\u{e4}nger"]).to_owned()),
            4 => Step::Fetch(statement, 1 + self.draws.below(4) as u32),
            5 if self.draws.below(2) == 0 => Step::ResetStatement(statement),
            5 => Step::Close(statement),
            _ => {
                let values = (0..self.parameters[statement]).map(|_| self.value(statement)).collect();
                // mysqld 9.7 sends no end of rows for an execution without a cursor after one with a cursor.
                let cursor = self.draws.below(4) == 0 || self.has_cursor[statement];
                let cursor = cursor && !self.explains[statement];
                self.has_cursor[statement] = cursor;
                Step::Execute { statement, cursor, values, with_types: self.draws.below(3) > 0 }
            }
        }
    }

    fn value(&mut self, statement: usize) -> Value {
        match self.draws.below(6) {
            // The type of a column that shows a NULL parameter depends on who executed the same text before.
            0 if !self.shows[statement] => Value::Null,
            1 => Value::Text(pick(self.draws, &["", "drei", "3", "\u{e4}"]).to_owned()),
            2 => Value::Long,
            _ => Value::Number(self.draws.below(9) as i64),
        }
    }
}

// The type of a user variable is never shown: a server that looks up an unset variable creates it as NULL,
// with a type that depends on the statement that looked.
const READS: &[&str] = &[
    "SELECT id, v FROM fixed.k WHERE id = {r}",
    "SELECT COUNT(*), SUM(n), GROUP_CONCAT(v ORDER BY id) FROM fixed.k",
    "SELECT id, v FROM fixed.seen ORDER BY id LIMIT {r}",
    "SELECT id FROM k ORDER BY id LIMIT 3",
    "SELECT id, v, n FROM {s}.t ORDER BY id",
    "SELECT COUNT(*) FROM t",
    "SELECT DATABASE(), @@autocommit, @@sql_mode, @@character_set_client, @@collation_connection",
    "SELECT @@time_zone, @@transaction_isolation, @@sql_select_limit, @@group_concat_max_len, @@lc_time_names",
    "SELECT @@max_sort_length, @@auto_increment_increment, @@transaction_read_only, @@foreign_key_checks",
    "SELECT FIELD(@a, 0, 1, 2, 3, 4, 5, 6, 7, 8), @b <=> 'b', FIELD(@f, 0, 1, 2, 3, 4, 5, 6, 7, 8)",
    "SELECT \"v\" FROM fixed.k ORDER BY id LIMIT 1",
    "SELECT 'a' || 'b', 'dr\u{fc}ben', LENGTH('\u{2603}')",
    "SELECT fixed.twice({r})",
    "SELECT fixed.remembers({r})",
    "SELECT id FROM {s}.tmp ORDER BY id",
    "SHOW TABLES",
    "SHOW VARIABLES LIKE 'sql_mode'",
    "SHOW CREATE TABLE fixed.k",
    "SELECT DATE_FORMAT('2026-01-05', '%W'), FROM_UNIXTIME(0)",
    "SELECT /*! 1 + */ {r}",
    "/* a comment */ SELECT {r}",
    "SELECT 10 / 3, 1 FROM DUAL",
    "VALUES ROW(1, 2), ROW(3, 4)",
    "TABLE fixed.k ORDER BY id LIMIT 2",
    "WITH w AS (SELECT {r} AS a) SELECT a FROM w",
    "SELECT id FROM {s}.t ORDER BY id LIMIT 2 FOR UPDATE",
    "SELECT id FROM fixed.k WHERE id = {r} FOR SHARE",
    "DO 1",
    "DESCRIBE fixed.k",
    "EXPLAIN FORMAT=TREE SELECT id FROM fixed.k WHERE id = {r}",
    "CHECKSUM TABLE fixed.k",
    "SELECT USER() LIKE 'app@%', CURRENT_ROLE()",
    "SELECT RAND({r}) BETWEEN 0 AND 1, CONNECTION_ID() > 0",
    "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
    "SELECT WEEK('2026-01-05'), @@default_week_format, @@sql_notes",
    "SELECT SQL_NO_CACHE {r}",
    "SELECT @@default_storage_engine, @@session_track_schema, @@collation_server",
    "HELP 'nothing of the kind'",
];

const ASKS_BACK: &[&str] = &[
    "SELECT LAST_INSERT_ID()",
    "SELECT @@last_insert_id, @@identity",
    "SELECT ROW_COUNT()",
    "SELECT FOUND_ROWS()",
    "SHOW WARNINGS",
    "SHOW ERRORS",
    "SHOW COUNT(*) WARNINGS",
    "SELECT @@warning_count, @@error_count",
    "GET DIAGNOSTICS @a = NUMBER",
    "SELECT SQL_CALC_FOUND_ROWS id FROM fixed.k ORDER BY id LIMIT {r}",
    "SELECT CAST('x' AS SIGNED)",
    "INSERT INTO {s}.t (v, n) VALUES (NULL, {r})",
    "SELECT LAST_INSERT_ID({r})",
    "SET last_insert_id = {r}",
    "SELECT id FROM fixed.k WHERE id < {r}",
    "UPDATE {s}.t SET n = LAST_INSERT_ID(n + 1) ORDER BY id LIMIT 1",
    "INSERT INTO {s}.t (v, n) SELECT NULL, LAST_INSERT_ID()",
    "SHOW COUNT(*) ERRORS",
    "GET DIAGNOSTICS CONDITION 1 @b = MYSQL_ERRNO",
    "SELECT FIELD(@b, 1051, 1064, 1146, 1287, 1292)",
    "DROP TABLE IF EXISTS {s}.never",
    "SHOW WARNINGS LIMIT 1",
    "SELECT {r} UNION SELECT 2 LIMIT 1",
    "GET DIAGNOSTICS @a = ROW_COUNT",
    "GET DIAGNOSTICS @b = NUMBER, @a = ROW_COUNT",
    "SELECT FIELD(@a, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8)",
];

const TRANSACTIONS: &[&str] = &[
    "BEGIN",
    "START TRANSACTION",
    "START TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "COMMIT",
    "COMMIT",
    "ROLLBACK",
    "ROLLBACK",
    "COMMIT AND CHAIN",
    "ROLLBACK AND CHAIN",
    "SAVEPOINT p",
    "ROLLBACK TO p",
    "RELEASE SAVEPOINT p",
    "SET autocommit = 0",
    "SET autocommit = 1",
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET TRANSACTION READ ONLY",
    "SET SESSION TRANSACTION READ ONLY",
    "SET SESSION TRANSACTION READ WRITE",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "XA START 'x{p}'",
    "XA END 'x{p}'",
    "XA COMMIT 'x{p}' ONE PHASE",
    "XA ROLLBACK 'x{p}'",
    "INSERT INTO {s}.t (n) VALUES ({r})",
    "UPDATE {s}.t SET n = {r} WHERE id = {r}",
    "SELECT COUNT(*), SUM(n) FROM {s}.t",
    "START TRANSACTION READ WRITE",
    "BEGIN WORK",
    "COMMIT AND NO CHAIN",
    "COMMIT RELEASE",
    "ROLLBACK RELEASE",
    "SET TRANSACTION READ WRITE",
    "SET autocommit = DEFAULT",
    "SET @@autocommit := 0, @a = 3",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
];

// An explicit number, by `insert_id` or for a row, is below all that a server assigns itself. After a greater
// one the server continues with the increment of whichever session had the same open table before, not this
// one's.
const SETTINGS: &[&str] = &[
    "SET NAMES utf8mb4",
    "SET NAMES latin1",
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
    "SET NAMES 'utf8mb4' COLLATE 'utf8mb4_unicode_ci'",
    "SET NAMES utf8",
    "SET NAMES DEFAULT",
    "SET character_set_connection = latin1",
    "SET collation_connection = latin1_bin",
    "SET collation_connection = utf8mb4_bin",
    "SET CHARACTER SET latin1",
    "SET character_set_results = NULL",
    "SET character_set_connection = utf16",
    "SET sql_mode = 'ANSI_QUOTES'",
    "SET sql_mode = 'PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'",
    "SET sql_mode = ''",
    "SET sql_mode = DEFAULT",
    "SET time_zone = '+02:00'",
    "SET group_concat_max_len = 5",
    "SET sql_select_limit = 2",
    "SET sql_select_limit = DEFAULT",
    "SET lc_time_names = 'de_DE'",
    "SET max_sort_length = 100",
    "SET auto_increment_increment = 3",
    "SET foreign_key_checks = 0, unique_checks = 0",
    "SET @a = {r}, @b = 'b'",
    "SET div_precision_increment = 1, @@session.time_zone = '+01:00'",
    "SET timestamp = 86400",
    "SET timestamp = DEFAULT",
    "SELECT NOW() < '2000-01-01'",
    "SET GLOBAL sql_mode = ''",
    "SET nonsense = 1",
    "SET ROLE NONE",
    "SET ROLE reader",
    "USE fixed",
    "USE {s}",
    "USE `dr\u{fc}ben`",
    "USE nowhere",
    "SET @@sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')",
    "SET completion_type = 1",
    "SET completion_type = 2",
    "SET completion_type = DEFAULT",
    "SET sql_auto_is_null = 1",
    "SET sql_safe_updates = 1",
    "SET SESSION cte_max_recursion_depth = 5",
    "SET insert_id = 1",
    "SET sql_notes = 0",
    "SET max_error_count = 0",
    "SET default_week_format = 3",
    "SET optimizer_switch = 'index_merge=off'",
    "SET sql_quote_show_create = 0",
    "SET session_track_schema = 0",
    "SET session_track_system_variables = ''",
    "SET session_track_state_change = 1",
    "SET session_track_transaction_info = 'CHARACTERISTICS'",
    "SET session_track_gtids = OFF",
    "SET session_track_state_change = 0",
    "SET session_track_schema = OFF, session_track_system_variables = NULL",
    "SET collation_server = latin1_bin",
    "SET character_set_client = latin1",
    "SET SESSION sql_mode = '', SESSION time_zone = '+03:00'",
    "SET @a = NULL, @b = NULL",
    "SET block_encryption_mode = 'aes-256-cbc'",
];

const WRITES: &[&str] = &[
    "INSERT INTO {s}.t (v, n) VALUES ('a{r}', {r})",
    "INSERT INTO {s}.t (v, n) VALUES ('b{r}', {r}), ('c{r}', {r})",
    "INSERT IGNORE INTO {s}.t (v, n) VALUES ('a{r}', {r})",
    "INSERT INTO t (n) VALUES ({r})",
    "INSERT INTO {s}.t (v, n) VALUES ('a{r}', 1) ON DUPLICATE KEY UPDATE n = n + 1, id = LAST_INSERT_ID(id)",
    "REPLACE INTO {s}.t (v, n) VALUES ('a{r}', {r})",
    "UPDATE {s}.t SET n = n + 1 WHERE id < 1{r}",
    "UPDATE {s}.t SET n = {r}",
    "DELETE FROM {s}.t WHERE id < {r}",
    "INSERT INTO {s}.t (n) SELECT n FROM fixed.k WHERE id > {r}",
    "CREATE TABLE IF NOT EXISTS {s}.x (a INT)",
    "DROP TABLE IF EXISTS {s}.x",
    "INSERT INTO {s}.x VALUES ({r})",
    "SELECT a FROM {s}.x ORDER BY a",
    "SELECT id, v, n FROM {s}.t ORDER BY id DESC LIMIT 3",
    "INSERT INTO {s}.t (id, n) VALUES (-5{r}, 0)",
    "INSERT INTO {s}.told VALUES ({r})",
    "INSERT INTO {s}.told VALUES (1{r}), ({r})",
    "INSERT IGNORE INTO {s}.told VALUES ({r})",
    "DELETE FROM {s}.told",
];

const PINS: &[&str] = &[
    "CREATE TEMPORARY TABLE {s}.tmp (id INT)",
    "CREATE TEMPORARY TABLE {s}.t (id INT, other INT)",
    "INSERT INTO {s}.tmp VALUES ({r}), ({r})",
    "DROP TEMPORARY TABLE IF EXISTS {s}.tmp",
    "SELECT id FROM {s}.tmp ORDER BY id",
    "SELECT GET_LOCK('l{l}', 20)",
    "SELECT RELEASE_LOCK('l{l}')",
    "DO RELEASE_ALL_LOCKS()",
    "SELECT IS_FREE_LOCK('l{l}')",
    "SELECT @a := {r}",
    "SELECT {r}, 'b' INTO @a, @b",
    "LOCK TABLES {s}.t WRITE",
    "LOCK TABLES {s}.t READ, fixed.k READ",
    "UNLOCK TABLES",
    "HANDLER {s}.t OPEN AS h",
    "HANDLER h READ FIRST",
    "HANDLER h CLOSE",
    "PREPARE q FROM 'SELECT id FROM fixed.k WHERE id = ?'",
    "SET @a = {r}",
    "EXECUTE q USING @a",
    "DEALLOCATE PREPARE q",
    "SELECT FIELD(@a, 0, 1, 2, 3, 4, 5, 6, 7, 8), @b <=> 'b', FIELD(@f, 0, 1, 2, 3, 4, 5, 6, 7, 8)",
    "CALL fixed.results()",
    "CREATE TEMPORARY TABLE {s}.tmp SELECT {r} AS id",
    "SELECT GET_LOCK('l{l}', 0), GET_LOCK('m{l}', 0)",
    "SELECT IS_USED_LOCK('m{l}') IS NULL",
    "SELECT RELEASE_ALL_LOCKS()",
    "ALTER TABLE {s}.tmp ADD COLUMN more INT",
    "TRUNCATE {s}.tmp",
    "SELECT id INTO @a FROM fixed.k WHERE id = {r}",
    "BEGIN; SELECT f FROM fixed.remembered; COMMIT",
    "BEGIN; SELECT f FROM fixed.set_so; COMMIT",
    "INSERT INTO {s}.told VALUES ({r})",
    "SELECT @@group_concat_max_len",
];

const ERRORS_AND_MANY: &[&str] = &[
    "SELEC 1",
    "SELECT * FROM fixed.nowhere",
    "SELECT nothing FROM fixed.k",
    "SELECT 'open",
    "",
    ";",
    "SELECT 1;",
    "SELECT 1; SELECT 2",
    "SELECT 1; SELEC 2; SELECT 3",
    "SELECT id, (SELECT n.id FROM fixed.k n WHERE n.id <= k.id) FROM fixed.k k ORDER BY id",
    "INSERT INTO {s}.told VALUES ({r}); SELECT 1",
    "SET @a = {r}; SELECT FIELD(@a, 0, 1, 2, 3)",
    "INSERT INTO {s}.t (n) VALUES ({r}); SELECT LAST_INSERT_ID()",
    "BEGIN; INSERT INTO {s}.t (n) VALUES ({r}); ROLLBACK",
    "BEGIN; UPDATE {s}.t SET n = 0; COMMIT; SELECT COUNT(*) FROM {s}.t",
    "SET sql_mode = 'ANSI_QUOTES'; SELECT \"v\" FROM fixed.k ORDER BY id LIMIT 1",
    "SELECT 1; SET NAMES latin1",
    "CALL fixed.results()",
    "CALL fixed.nowhere()",
    "SELECT CAST('x' AS SIGNED); SHOW WARNINGS",
    "/*!80000 SET @b = {r} */",
    "INSERT INTO {s}.t (id) VALUES (1), (1)",
    "SELECT 1 INTO @a; SELECT @a <=> 1",
    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'of its own'",
    "SELECT (SELECT id FROM fixed.k)",
    "SELECT 1; USE fixed; SELECT DATABASE()",
    "SET rand_seed1 = 1, rand_seed2 = 2; SELECT RAND() < 0.5",
    "SET autocommit = 0; SELECT {r}; SET autocommit = 1",
    "CREATE TEMPORARY TABLE {s}.tmp (id INT); DROP TEMPORARY TABLE {s}.tmp",
    "SELECT 1 FROM DUAL WHERE",
    "SELECT 1; COMMIT RELEASE",
    "-- nothing",
    "SELECT 2 /* ; */ ; /* last */",
    "KILL QUERY 1",
    "SELECT GET_LOCK('l{l}', 0); SELECT RELEASE_LOCK('l{l}')",
    "BEGIN; SELECT {r}",
    "LOCK TABLES {s}.t READ; UNLOCK TABLES",
    "SELECT SQL_CALC_FOUND_ROWS id FROM fixed.k LIMIT 1; SELECT FOUND_ROWS()",
    "KILL QUERY CONNECTION_ID()",
];

const PREPARED: &[&str] = &[
    "SELECT id, v FROM fixed.k WHERE id = ?",
    "SELECT ?, ?",
    "SELECT id, v, n FROM fixed.k ORDER BY id",
    "SELECT id FROM fixed.k WHERE id > ? ORDER BY id",
    "INSERT INTO {s}.t (v, n) VALUES (?, ?)",
    "UPDATE {s}.t SET n = ? WHERE id = ?",
    "SELECT FIELD(@a, 0, 1, 2, 3), ?",
    "SET @a = ?",
    "SELECT LENGTH(?), DATABASE()",
    "SELECT 'a' || ?, \"v\" FROM fixed.k ORDER BY id LIMIT 1",
    "SELECT id FROM k WHERE id = ?",
    "SELECT LAST_INSERT_ID(), ?",
    "BEGIN",
    "COMMIT",
    "SELEC ?",
    "CALL fixed.results()",
    "SELECT id FROM {s}.t ORDER BY id",
    "SELECT @a := ?",
    "CREATE TEMPORARY TABLE {s}.tmp (id INT)",
    "SELECT GET_LOCK(?, 0)",
    "SET NAMES latin1",
    "SHOW WARNINGS",
    "SELECT id FROM fixed.k WHERE id = ? FOR SHARE",
    "DO RELEASE_ALL_LOCKS()",
    "SELECT SQL_CALC_FOUND_ROWS id FROM fixed.k LIMIT 2",
    "SELECT FOUND_ROWS(), ROW_COUNT()",
    "SET autocommit = ?",
    "ROLLBACK",
    "START TRANSACTION READ ONLY",
    "EXPLAIN SELECT ?",
    "SELECT CAST(? AS SIGNED) IS NULL",
    "SHOW TABLES",
    "DROP TEMPORARY TABLE IF EXISTS {s}.tmp",
    "INSERT INTO {s}.t (n) VALUES (?), (?)",
    "USE fixed",
];
