use super::*;
use crate::{KillTarget, SqlDialect, SqlMode};

fn auto() -> SessionFacts {
    SessionFacts::default()
}

fn verdict(text: &str) -> StatementVerdict {
    classify(text.as_bytes(), &auto())
}

/// What is left and asked, as words: `left left/asked asked`.
fn traces(verdict: &StatementVerdict) -> String {
    let left: Vec<_> = verdict.leaves.words().collect();
    let asked: Vec<_> = verdict.reads_back.words().collect();
    match asked.is_empty() {
        true => left.join(" "),
        false => format!("{}/{}", left.join(" "), asked.join(" ")),
    }
}

/// Checks a table whose lines have the reason, what the statement leaves and reads back, and the statement,
/// separated by ` | `.
fn check_table(table: &str, wants: RoleWanted) -> usize {
    let mut rows = 0;
    for line in table.lines().filter(|line| !line.is_empty()) {
        let mut columns = line.splitn(3, " | ");
        let mut column = || columns.next().unwrap_or_else(|| panic!("three columns in {line:?}"));
        let (reason, left, text) = (column().trim(), column().trim(), column());
        let verdict = verdict(text);
        assert_eq!(verdict.reason.word(), reason, "{text}");
        assert_eq!(traces(&verdict), left, "{text}");
        assert_eq!(verdict.wants, wants, "{text}");
        rows += 1;
    }
    rows
}

#[test]
fn what_is_known_to_be_a_read_may_run_on_any_member() {
    let rows = check_table(include_str!("statements_read.txt"), RoleWanted::AnyMember);
    assert!(rows >= 90, "{rows}");
}

#[test]
fn all_else_wants_the_primary() {
    let rows = check_table(include_str!("statements_primary.txt"), RoleWanted::Primary);
    assert!(rows >= 150, "{rows}");
}

#[test]
fn tables_are_used_where_a_text_may_name_one() {
    for text in [
        "SELECT a FROM t",
        "(select 1 from t)",
        "TABLE t",
        "WITH w AS (TABLE t) SELECT 1",
        "SET @a = (SELECT n FROM t)",
        "DO (SELECT n FROM t)",
        "SHOW VARIABLES LIKE 'a'",
        "DESCRIBE t",
        "INSERT INTO t VALUES (1)",
        "CALL p()",
        "EXECUTE q",
        "SELECT 1; SELECT a FROM t",
        "HANDLER t READ FIRST",
        "COMMIT; SELECT a FROM t",
        "CREATE TEMPORARY TABLE u AS SELECT a FROM t",
        // UNLOCK TABLES commits only after LOCK TABLES.
        "UNLOCK TABLES",
        "SELECT 'open",
        // A savepoint keeps its metadata locks as long as used tables do.
        "SAVEPOINT a",
    ] {
        assert_eq!(verdict(text).tables, TableUse::Used, "{text}");
    }
    for text in [
        "SELECT 1, @@version, NOW(), 'from t'",
        "SET autocommit = 0",
        "SET NAMES utf8mb4",
        "SET @a = 1, sql_mode = ''",
        "USE shop",
        "BEGIN",
        "ROLLBACK TO a",
        "DO 1",
        "/* FROM t */ SELECT 1",
        "",
    ] {
        assert_eq!(verdict(text).tables, TableUse::Unused, "{text}");
    }
    for text in [
        "COMMIT",
        "ROLLBACK AND CHAIN",
        "SELECT a FROM t; COMMIT; SELECT 1",
        "CREATE TABLE u AS SELECT a FROM t",
        "ANALYZE TABLE t",
    ] {
        assert_eq!(verdict(text).tables, TableUse::Freed, "{text}");
    }
}

#[test]
fn a_read_with_a_write_behind_it_wants_the_primary() {
    for line in include_str!("statements_read.txt").lines().filter(|line| !line.is_empty()) {
        let text = line.splitn(3, " | ").nth(2).expect("three columns");
        for write in ["DELETE FROM t", "/*!DELETE FROM t*/", "(DELETE FROM t)", "call p()"] {
            let both = classify(format!("{text}\n;{write}").as_bytes(), &auto());
            assert_eq!(both.wants, RoleWanted::Primary, "{text}; {write}");
            assert_eq!(both.resend, Resend::Never, "{text}; {write}");
        }
    }
}

#[test]
fn a_transaction_and_autocommit_off_take_reads_to_the_primary() {
    let text = b"SELECT a FROM t";
    let in_one = SessionFacts { transaction: OpenTransaction::ReadWrite, ..auto() };
    let read_only = SessionFacts { transaction: OpenTransaction::ReadOnly, ..auto() };
    let off = SessionFacts { autocommit: false, ..auto() };
    let judge = |facts| {
        let verdict = classify(text, &facts);
        (verdict.wants, verdict.reason, verdict.own_reason, verdict.resend)
    };
    let plain = RouteReason::PlainRead;
    assert_eq!(judge(auto()), (RoleWanted::AnyMember, plain, plain, Resend::Anywhere));
    assert_eq!(judge(in_one), (RoleWanted::Primary, RouteReason::InTransaction, plain, Resend::Never));
    assert_eq!(
        judge(read_only),
        (RoleWanted::AnyMember, RouteReason::InReadOnlyTransaction, plain, Resend::Never)
    );
    assert_eq!(judge(off), (RoleWanted::Primary, RouteReason::AutocommitOff, plain, Resend::Never));
    let listener = |access| classify(b"DELETE FROM t", &SessionFacts { access, ..auto() }).reason;
    assert_eq!(listener(SplitAccess::ReadWrite), RouteReason::ReadWriteListener);
    assert_eq!(listener(SplitAccess::ReadOnly), RouteReason::ReadOnlyListener);
}

#[test]
fn transactions_begin_and_end() {
    use Completion::{AsSet, No, Yes};
    use TransactionStep::{Autocommit, Begin, Commit, ImplicitCommit, None, Rollback, Unclear};
    let (read_only, chain, release) = (false, AsSet, AsSet);
    for (text, step) in [
        ("BEGIN", Begin { read_only }),
        ("begin work;", Begin { read_only }),
        ("START TRANSACTION", Begin { read_only }),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ WRITE", Begin { read_only }),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ /**/ ONLY", Begin { read_only: true }),
        ("COMMIT", Commit { chain, release }),
        ("COMMIT WORK AND CHAIN", Commit { chain: Yes, release }),
        ("COMMIT AND NO CHAIN RELEASE", Commit { chain: No, release: Yes }),
        ("COMMIT NO RELEASE", Commit { chain, release: No }),
        ("ROLLBACK", Rollback { chain, release }),
        ("/* x */ rollback and chain no release", Rollback { chain: Yes, release: No }),
        ("ROLLBACK TO SAVEPOINT a", None),
        ("ROLLBACK WORK TO a", None),
        ("SAVEPOINT a", None),
        ("SET autocommit = 0", Autocommit(Some(false))),
        ("SET @@session.autocommit = ON", Autocommit(Some(true))),
        ("SET @@autocommit := 'off'", Autocommit(Some(false))),
        ("SET SESSION autocommit=1, sql_mode=''", Autocommit(Some(true))),
        ("SET NAMES utf8mb4, autocommit = 0", Autocommit(Some(false))),
        ("SET autocommit = 1 - 1", Autocommit(Option::None)),
        ("SET GLOBAL autocommit = 0", None),
        ("SET `autocommit` = false", Autocommit(Some(false))),
        ("CREATE TABLE t (a INT)", ImplicitCommit),
        ("CREATE TEMPORARY TABLE t (a INT)", None),
        ("DROP TEMPORARY TABLE t", None),
        ("TRUNCATE t", ImplicitCommit),
        ("LOCK TABLES t READ", ImplicitCommit),
        ("UNLOCK TABLES", ImplicitCommit),
        ("FLUSH LOGS", ImplicitCommit),
        ("CALL p()", Unclear { autocommit: true, releases: false }),
        ("XA START 'a'", Unclear { autocommit: false, releases: false }),
        ("BEGIN; INSERT INTO t VALUES (1); COMMIT", Unclear { autocommit: false, releases: false }),
        ("SELECT 1; SET autocommit = 1", Unclear { autocommit: true, releases: false }),
        ("SELECT 1; COMMIT RELEASE", Unclear { autocommit: false, releases: true }),
        ("SET autocommit = 0; COMMIT", Unclear { autocommit: false, releases: false }),
        ("INSERT INTO t VALUES (1); SELECT 1", None),
        ("INSERT INTO t VALUES (1)", None),
    ] {
        assert_eq!(verdict(text).transaction, step, "{text}");
    }
    assert!(verdict("COMMIT; DELETE FROM t").ends_as_set);
    for text in ["COMMIT AND NO CHAIN; DELETE FROM t", "BEGIN; COMMIT; DELETE FROM t", "COMMIT"] {
        assert!(!verdict(text).ends_as_set, "{text}");
    }
}

#[test]
fn a_text_that_may_end_its_transaction_by_autocommit_leaves_what_that_said_of_itself() {
    let leaves = |text: &str| verdict(text).leaves.has(LeftBehind::NEXT_TRANSACTION);
    assert!(leaves("START TRANSACTION READ ONLY; SET autocommit = 0; SET autocommit = 1"));
    assert!(leaves("START TRANSACTION READ ONLY; SET autocommit = 0; SELECT 1; SET autocommit = @x"));
    assert!(!leaves("START TRANSACTION READ ONLY; SET autocommit = 0"));
    assert!(!leaves("SELECT 1; SET autocommit = 1"));
}

#[test]
fn what_changes_something_is_told_whatever_else_is_said_of_it_first() {
    for text in [
        "INSERT INTO t VALUES (1)",
        "SELECT @a FROM t FOR UPDATE",
        "SELECT LAST_INSERT_ID() FROM t LOCK IN SHARE MODE",
        "SELECT CONNECTION_ID() INTO OUTFILE 'x'",
        "WITH x AS (SELECT ROW_COUNT() AS n) UPDATE t JOIN x SET a = n",
        "SELECT @a, f(1)",
        "SET @a = f(1)",
        "SET GLOBAL read_only = OFF",
        "SET PASSWORD = 'x'",
        "DO f(1)",
        "BEGIN",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
        "LOCK TABLES t READ",
        "FLUSH TABLES WITH READ LOCK",
        "EXECUTE s",
        "CALL p()",
        "XA START 'a'",
        "SELECT 1; DELETE FROM t",
        "SELECT @a /*! FROM t */",
        "FROBNICATE t",
        "SELECT 'a",
    ] {
        assert!(verdict(text).may_change(), "{text}");
    }
    for text in [
        "SELECT @a",
        "SELECT a INTO @a FROM t",
        "SET @a = 1, time_zone = '+01:00'",
        "DO RELEASE_LOCK('a')",
        "SELECT FOUND_ROWS(), CONNECTION_ID()",
        "SHOW WARNINGS",
        "SHOW PROCESSLIST",
        "START TRANSACTION READ ONLY",
        "COMMIT",
        "ROLLBACK AND CHAIN",
        "SAVEPOINT a",
        "UNLOCK TABLES",
        "CREATE TEMPORARY TABLE x (a INT)",
        "HANDLER t READ FIRST",
        "COMMIT; SELECT a FROM t",
        "CREATE TEMPORARY TABLE u AS SELECT a FROM t",
        // UNLOCK TABLES commits only after LOCK TABLES.
        "UNLOCK TABLES",
        "PREPARE s FROM 'DELETE FROM t'",
        "DEALLOCATE PREPARE s",
        "KILL 5",
        "SELECT @a; SET @b = 1",
        "",
    ] {
        assert!(!verdict(text).may_change(), "{text}");
    }
    assert!(classify_head(b"SELECT 'a", &auto()).may_change());
}

#[test]
fn what_is_beyond_a_read_only_transaction_is_told() {
    use BeyondReadOnly::{AtOnce, Later, Nothing};
    for (text, beyond) in [
        ("INSERT INTO t VALUES (1)", Nothing),
        ("CREATE TABLE t (a INT)", AtOnce),
        ("CREATE TEMPORARY TABLE t (a INT)", Nothing),
        ("LOCK TABLES t WRITE", AtOnce),
        ("UNLOCK TABLES", Nothing),
        ("BEGIN", Nothing),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT", Nothing),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ WRITE", AtOnce),
        ("START TRANSACTION READ ONLY", Nothing),
        ("BEGIN; DELETE FROM t", Nothing),
        ("START TRANSACTION READ WRITE; SELECT 1", AtOnce),
        ("COMMIT", Nothing),
        ("COMMIT; SELECT 1", Nothing),
        ("COMMIT; SELECT 1; INSERT INTO t VALUES (1)", AtOnce),
        ("ROLLBACK; BEGIN", AtOnce),
        ("COMMIT AND CHAIN; INSERT INTO t VALUES (1)", Nothing),
        ("COMMIT AND CHAIN; COMMIT; INSERT INTO t VALUES (1)", Later),
        ("SELECT 1; COMMIT", Nothing),
        ("SELECT 1; COMMIT; INSERT INTO t VALUES (1)", Later),
        ("SELECT 1; CREATE TABLE t (a INT)", Later),
        ("INSERT INTO t VALUES (1); SELECT 1", Nothing),
        ("CALL p()", Nothing),
        ("CALL p(); INSERT INTO t VALUES (1)", Later),
        ("SET autocommit = 1; SELECT f(1)", Later),
    ] {
        assert_eq!(verdict(text).beyond_read_only, beyond, "{text}");
        let read_only = SessionFacts { transaction: OpenTransaction::ReadOnly, ..auto() };
        let wants = if beyond == AtOnce { RoleWanted::Primary } else { RoleWanted::AnyMember };
        assert_eq!(classify(text.as_bytes(), &read_only).wants, wants, "{text}");
    }
}

#[test]
fn a_file_of_the_client_is_asked_for_only_by_load_local() {
    for text in [
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t",
        "LOAD DATA CONCURRENT FROM LOCAL INFILE 'x' INTO TABLE t",
        "load data concurrent local infile 'x' replace into table t (a, b)",
        "LOAD XML LOW_PRIORITY LOCAL INFILE 'x' INTO TABLE t",
        "SELECT 1; LOAD DATA LOCAL INFILE 'x' INTO TABLE t",
        "/*!50000 LOAD DATA LOCAL INFILE 'x' INTO TABLE t */",
    ] {
        assert!(verdict(text).local_infile, "{text}");
        assert_eq!(verdict(text).resend, Resend::Never, "{text}");
    }
    for text in [
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "SELECT 'LOAD DATA LOCAL INFILE'",
        "INSERT INTO t VALUES ('; LOAD DATA LOCAL INFILE ''x'' INTO TABLE t')",
        "LOAD /* LOCAL */ DATA INFILE 'x' INTO TABLE t",
        "-- LOAD DATA LOCAL INFILE 'x'\nSELECT 1",
    ] {
        assert!(!verdict(text).local_infile, "{text}");
    }
}

#[test]
fn kill_says_what_it_ends() {
    let target = |query_only, id| Some(KillTarget { query_only, id });
    assert_eq!(verdict("KILL 12").kill, target(false, Some(12)));
    assert_eq!(verdict("kill query 2147483660;").kill, target(true, Some(2_147_483_660)));
    assert_eq!(verdict("KILL CONNECTION 5").kill, target(false, Some(5)));
    assert_eq!(verdict("KILL CONNECTION_ID()").kill, target(false, None));
    assert_eq!(verdict("KILL 1 + 1").kill, target(false, None));
    assert_eq!(verdict("KILL 99999999999999999999").kill, target(false, None));
    assert_eq!(verdict("SELECT 'KILL 12'").kill, None);
}

#[test]
fn what_may_be_sent_again() {
    for (text, resend) in [
        ("SELECT a FROM t WHERE id = 1", Resend::Anywhere),
        ("SHOW TABLES", Resend::Anywhere),
        ("SELECT SQL_CALC_FOUND_ROWS a FROM t", Resend::IfRefused),
        ("SELECT a FROM t FOR UPDATE", Resend::IfRefused),
        ("SELECT LAST_INSERT_ID()", Resend::IfRefused),
        ("UPDATE t SET a = 1", Resend::IfRefused),
        ("DROP TABLE t", Resend::IfRefused),
        ("BEGIN", Resend::IfRefused),
        ("SELECT f(1)", Resend::Never),
        ("UPDATE t SET a = f(1)", Resend::Never),
        ("COMMIT", Resend::Never),
        ("CALL p()", Resend::Never),
        ("EXECUTE s", Resend::Never),
        ("DELETE FROM t; DELETE FROM u", Resend::Never),
        ("FROBNICATE t", Resend::Never),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", Resend::Never),
        ("INSERT INTO t VALUES ('", Resend::Never),
    ] {
        assert_eq!(verdict(text).resend, resend, "{text}");
    }
}

#[test]
fn the_sql_mode_decides_where_strings_end() {
    let with = |mode: &str, text: &str| {
        let dialect = SqlDialect { mode: SqlMode::read(mode), ..SqlDialect::default() };
        classify(text.as_bytes(), &SessionFacts { dialect, ..auto() })
    };
    // By default the string continues after the backslash and contains the semicolon.
    let text = r"SELECT 'a\'; DELETE FROM t; -- '";
    assert_eq!(with("", text).reason, RouteReason::PlainRead);
    assert_eq!(with("NO_BACKSLASH_ESCAPES", text).reason, RouteReason::SeveralStatements);
    let text = r#"SELECT "a' FROM t", 'b'"#;
    assert_eq!(with("", text).reason, RouteReason::PlainRead);
    assert_eq!(with("ANSI_QUOTES", text).reason, RouteReason::PlainRead);
    let text = r#"SELECT "f"(1)"#;
    assert_eq!(with("ANSI_QUOTES", text).reason, RouteReason::UnknownFunction);
    assert_eq!(with("", "SELECT COUNT (a) FROM t").reason, RouteReason::UnknownFunction);
    assert_eq!(with("IGNORE_SPACE", "SELECT COUNT (a) FROM t").reason, RouteReason::PlainRead);
    assert_eq!(with("ORACLE", "SELECT 1").reason, RouteReason::Unreadable);
}

#[test]
fn a_backslash_inside_a_character_ends_no_string() {
    use crate::ClientCharset;
    let text = b"SELECT '\xbf\\'; DELETE FROM t -- '";
    let with = |charset| {
        let dialect = SqlDialect { charset, ..SqlDialect::default() };
        classify(text, &SessionFacts { dialect, ..auto() }).statements
    };
    assert_eq!(with(ClientCharset::Gbk), 2);
    assert_eq!(with(ClientCharset::ShiftJis), 1);
    assert_eq!(with(ClientCharset::SingleByte), 1);
    assert_eq!(with(ClientCharset::Utf8), 1);
}

#[test]
fn a_text_that_is_not_whole_is_trusted_in_nothing() {
    let head = classify_head(b"SELECT 1 FROM t WHERE a = 'abc", &auto());
    assert_eq!((head.wants, head.reason), (RoleWanted::Primary, RouteReason::NotWhole));
    assert!(head.leaves.pins());
    assert_eq!(head.resend, Resend::Never);
    assert!(classify_head(b"LOAD DATA LOCAL INFILE 'x' INTO", &auto()).local_infile);
}

#[test]
fn statements_are_counted_without_the_empty_ones() {
    for (text, count) in
        [("", 0), (" ; ;; -- x", 0), ("SELECT 1;", 1), (";SELECT 1; ;\n", 1), ("SELECT 1; ; SELECT 2", 2)]
    {
        assert_eq!(verdict(text).statements, count, "{text:?}");
    }
    assert_eq!(verdict("/* nothing */").kind, StatementKind::Empty);
}

#[test]
fn words_are_unique() {
    let words: Vec<_> = RouteReason::ALL.iter().map(|reason| reason.word()).collect();
    let unique: std::collections::BTreeSet<_> = words.iter().collect();
    assert_eq!(unique.len(), words.len());
    assert!(RouteReason::ALL.iter().all(|reason| !reason.meaning().is_empty()));
}

#[test]
fn a_name_without_a_schema_may_be_one_servers_own() {
    let facts = SessionFacts { is_in_own_schema: true, ..auto() };
    let read = |sql: &str| classify(sql.as_bytes(), &facts).reason;
    assert_eq!(read("SELECT * FROM threads"), RouteReason::ServerState);
    assert_eq!(read("SELECT 1"), RouteReason::ServerState);
    assert_eq!(read("SHOW TABLES"), RouteReason::Metadata);
}

#[test]
fn what_each_server_measures_by_itself_is_asked_of_the_primary() {
    let read = |sql: &str| classify(sql.as_bytes(), &auto()).reason;
    for sql in [
        "SHOW TABLE STATUS LIKE 't'",
        "SHOW INDEX FROM t",
        "SHOW EXTENDED KEYS IN t FROM shop",
        "SELECT AUTO_INCREMENT FROM information_schema.TABLES",
        "SELECT * FROM `INFORMATION_SCHEMA` . `statistics`",
        "SELECT 1 FROM t JOIN information_schema.partitions p",
        "SELECT * FROM mysql.slow_log",
    ] {
        assert_eq!(read(sql), RouteReason::ServerState, "{sql}");
    }
    for sql in [
        "SELECT * FROM shop.tables",
        "SELECT * FROM files, information_schema.columns",
        "SELECT information_schema FROM tables",
        "SELECT user FROM mysql.user",
    ] {
        assert_eq!(read(sql), RouteReason::PlainRead, "{sql}");
    }
    assert_eq!(read("SHOW FULL COLUMNS FROM t"), RouteReason::Metadata);
    assert_eq!(read("SHOW PROCEDURE STATUS"), RouteReason::Metadata);
}
