//! Clients of MySQL. They block, so each has a thread.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::sql_judge::SqlPhase;
use super::sql_ledger::{SqlFate, SqlRow};
use super::sql_servers::{ACCOUNTS, ROWS};
use super::sql_session::{SqlFailed, SqlSession};
use super::traffic::{Outcome, Shared};
use crate::dialogue::Draws;
use crate::mysql::{Asked, Value, execution, query};

/// What a client of MySQL does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlWork {
    /// Writes with autocommit on, and reads what it has written.
    Writes,
    /// Transactions that move money between accounts.
    Transactions,
    /// Reads that agree with each other.
    Reads,
    /// Prepared statements, for writes and reads.
    Prepared,
    /// State that stays with a connection, and a reset.
    State,
    /// Leaves in the middle.
    Leaves,
    /// Takes a big result slowly.
    SlowReader,
    /// Has a statement, or a session, killed by another session.
    Killed,
    /// Reads at a listener that comes and goes.
    Extra,
}

/// A wrong answer, or a statement that failed.
enum SqlTrouble {
    Wrong(String),
    Failed(SqlFailed),
}

impl From<SqlFailed> for SqlTrouble {
    fn from(failed: SqlFailed) -> SqlTrouble {
        SqlTrouble::Failed(failed)
    }
}

type Done = Result<(), SqlTrouble>;

/// Errors behind which a write with autocommit on has done nothing: no server took it.
const NOTHING_DONE: [u16; 3] = [1105, 1290, 1836];
/// Error of a statement that was killed (ER_QUERY_INTERRUPTED).
const INTERRUPTED: u16 = 1317;
/// How long a statement runs that is to be killed, seconds, and how often it is killed.
const SLEEP: u64 = 4;
const KILL_EVERY: Duration = Duration::from_millis(100);

/// One client's work from its arrival to its end.
pub(super) fn sql_works(shared: &Shared, work: SqlWork, number: u64, draws: &mut Draws) -> Outcome {
    let done = match work {
        SqlWork::Writes => writes(shared, number, draws),
        SqlWork::Transactions => transactions(shared, number, draws),
        SqlWork::Reads => reads(shared, draws),
        SqlWork::Prepared => prepared(shared, number, draws),
        SqlWork::State => state(shared, number, draws),
        SqlWork::Leaves => leaves(shared, number, draws),
        SqlWork::SlowReader => reads_slowly(shared),
        SqlWork::Killed => is_killed(shared, draws),
        SqlWork::Extra => reads_where_there_may_be_nobody(shared, draws),
    };
    match done {
        Ok(()) => Outcome::Good,
        Err(SqlTrouble::Wrong(what)) => Outcome::Wrong(what),
        Err(SqlTrouble::Failed(failed)) => failed.outcome(),
    }
}

/// The listener that splits reads and writes, or now and then the one for writes.
fn logs_in(shared: &Shared, draws: &mut Draws) -> Result<SqlSession, SqlFailed> {
    let to = if draws.below(4) == 0 { shared.targets.writes } else { shared.targets.db };
    SqlSession::log_in(shared, to, draws)
}

fn notes(shared: &Shared, rows: Vec<SqlRow>, fate: SqlFate) {
    shared.sql_ledger.lock().unwrap_or_else(PoisonError::into_inner).notes(rows, fate);
}

fn pauses(draws: &mut Draws) {
    std::thread::sleep(Duration::from_millis(draws.below(300)));
}

fn expects(what: &str, got: &str, expected: &str) -> Done {
    if got == expected {
        return Ok(());
    }
    Err(SqlTrouble::Wrong(format!("{what}: {got:?} for {expected:?}")))
}

fn insert_of((client, step): SqlRow) -> String {
    format!("INSERT INTO soak.written (client, step) VALUES ({client}, {step})")
}

/// Notes the fate of a write with autocommit on by its answer.
fn settles<T>(shared: &Shared, row: SqlRow, answer: Result<T, SqlFailed>) -> Result<T, SqlFailed> {
    let fate = match answer.as_ref().map_err(|failed| failed.told.code) {
        Ok(_) => SqlFate::Done,
        Err(Some(code)) if NOTHING_DONE.contains(&code) => SqlFate::Undone,
        Err(_) => SqlFate::Unknown,
    };
    notes(shared, vec![row], fate);
    answer
}

fn writes(shared: &Shared, number: u64, draws: &mut Draws) -> Done {
    let mut session = logs_in(shared, draws)?;
    for step in 0..=draws.below(5) {
        let row = (number, step);
        let answer = session.asks(SqlPhase::Write, &insert_of(row));
        let answer = settles(shared, row, answer)?;
        if draws.below(3) == 0 {
            // The connection is held for the number that it has made.
            session.holds(true);
            let number = session.asks(SqlPhase::Within, "SELECT LAST_INSERT_ID()")?.value();
            session.holds(false);
            let (_, made, ..) = answer.ok().unwrap_or_default();
            expects("LAST_INSERT_ID()", &number, &made.to_string())?;
        }
        let sql = format!("SELECT COUNT(*) FROM soak.written WHERE client = {number}");
        let count = session.asks(SqlPhase::Read, &sql)?.value();
        expects("the session's own writes", &count, &(step + 1).to_string())?;
        pauses(draws);
    }
    session.client.quits();
    Ok(())
}

fn transactions(shared: &Shared, number: u64, draws: &mut Draws) -> Done {
    let mut session = logs_in(shared, draws)?;
    let mut step = 0;
    for _ in 0..=draws.below(3) {
        let rows: Vec<SqlRow> = (0..=draws.below(4)).map(|more| (number, step + more)).collect();
        step += rows.len() as u64;
        session.asks(SqlPhase::Read, "BEGIN")?;
        session.holds(true);
        if let Err(trouble) = works_within(&mut session, &rows, draws) {
            // Its end was not asked for.
            notes(shared, rows, SqlFate::Undone);
            return Err(trouble);
        }
        if draws.below(4) == 0 {
            notes(shared, rows, SqlFate::Undone);
            session.asks(SqlPhase::Within, "ROLLBACK")?;
        } else {
            let answer = session.asks(SqlPhase::Commit, "COMMIT");
            let fate = match answer.as_ref().map_err(|failed| failed.told.code) {
                Ok(_) => SqlFate::Done,
                Err(Some(1213 | 1290)) => SqlFate::Undone,
                Err(_) => SqlFate::Unknown,
            };
            notes(shared, rows, fate);
            answer?;
        }
        session.holds(false);
        pauses(draws);
    }
    session.client.quits();
    Ok(())
}

/// The statements of a transaction but its begin and its end.
fn works_within(session: &mut SqlSession, rows: &[SqlRow], draws: &mut Draws) -> Done {
    let before = rows.first().map_or(0, |(_, step)| *step);
    // In one order, so that no two transactions wait for each other.
    let first = draws.below(ACCOUNTS.0 - 1);
    let second = first + 1 + draws.below(ACCOUNTS.0 - 1 - first);
    let amount = draws.below(100);
    for row in rows {
        session.asks(SqlPhase::Within, &insert_of(*row))?;
        if draws.below(3) == 0 {
            pauses(draws);
        }
    }
    let client = rows.first().map_or(0, |(client, _)| *client);
    let own = format!("SELECT COUNT(*) FROM soak.written WHERE client = {client} AND step >= {before}");
    let count = session.asks(SqlPhase::Within, &own)?.value();
    expects("the transaction's own writes", &count, &rows.len().to_string())?;
    for (sign, account) in [('-', first), ('+', second)] {
        let sql = format!("UPDATE soak.accounts SET balance = balance {sign} {amount} WHERE id = {account}");
        session.asks(SqlPhase::Within, &sql)?;
    }
    Ok(())
}

fn reads(shared: &Shared, draws: &mut Draws) -> Done {
    let mut session = logs_in(shared, draws)?;
    let zone = format!("+0{}:00", draws.below(9) + 1);
    session.asks(SqlPhase::Read, &format!("SET time_zone = '{zone}'"))?;
    for _ in 0..=draws.below(6) {
        let answer = session.asks(SqlPhase::Read, "SELECT SUM(balance), @@time_zone FROM soak.accounts")?;
        let row = answer.rows().into_iter().next().unwrap_or_default();
        expects("the sum and the time zone", &row.join(" "), &format!("{} {zone}", ACCOUNTS.1))?;
        pauses(draws);
        if draws.below(4) == 0 {
            session.asks(SqlPhase::Read, "START TRANSACTION READ ONLY")?;
            session.holds(true);
            let all = session.asks(SqlPhase::Within, "SELECT COUNT(*) FROM soak.numbers")?.value();
            expects("the rows", &all, &ROWS.0.to_string())?;
            pauses(draws);
            session.asks(SqlPhase::Within, "COMMIT")?;
            session.holds(false);
        }
    }
    session.client.quits();
    Ok(())
}

fn prepares(session: &mut SqlSession, sql: &str) -> Result<u32, SqlFailed> {
    session.sends(SqlPhase::Read, sql, &[b"\x16", sql.as_bytes()].concat())?;
    let answer = session.hears(SqlPhase::Read, sql, Asked::Statement)?;
    Ok(answer.statement().unwrap_or(0))
}

fn prepared(shared: &Shared, number: u64, draws: &mut Draws) -> Done {
    let mut session = logs_in(shared, draws)?;
    let insert = prepares(&mut session, "INSERT INTO soak.written (client, step) VALUES (?, ?)")?;
    let echo = prepares(&mut session, "SELECT CONCAT(?, ':', COUNT(*)) FROM soak.written WHERE client = ?")?;
    for step in 0..=draws.below(6) {
        let values = [number, step].map(|it| Value::Number(it as i64));
        session.sends(SqlPhase::Write, "prepared", &execution(insert, false, &values, step == 0))?;
        let answer = session.hears(SqlPhase::Write, "prepared INSERT", Asked::Results);
        settles(shared, (number, step), answer)?;
        let text = format!("{number} {step}");
        let values = [Value::Text(text.clone()), Value::Number(number as i64)];
        session.sends(SqlPhase::Read, "prepared", &execution(echo, false, &values, true))?;
        let answer = session.hears(SqlPhase::Read, "prepared SELECT", Asked::Results)?;
        // A row begins with a zero and a byte of NULLs; then the text stands behind its length.
        let row = answer.packets.iter().find(|(_, payload)| payload.first() == Some(&0));
        let got = row.and_then(|(_, payload)| payload.get(3..)).unwrap_or_default();
        expects("an echo", &String::from_utf8_lossy(got), &format!("{text}:{}", step + 1))?;
        pauses(draws);
    }
    session.client.quits();
    Ok(())
}

fn state(shared: &Shared, number: u64, draws: &mut Draws) -> Done {
    let mut session = logs_in(shared, draws)?;
    session.asks(SqlPhase::Read, &format!("SET @own = {number}"))?;
    session.holds(true);
    session.asks(SqlPhase::Within, "CREATE TEMPORARY TABLE soak.own (n BIGINT)")?;
    for turn in 0..=draws.below(3) {
        session.asks(SqlPhase::Within, "INSERT INTO soak.own VALUES (@own)")?;
        pauses(draws);
        let row = session.asks(SqlPhase::Within, "SELECT COUNT(*), SUM(n) FROM soak.own")?.rows().remove(0);
        expects("a temporary table", &row.join(" "), &format!("{} {}", turn + 1, number * (turn + 1)))?;
    }
    session.sends(SqlPhase::Within, "reset", b"\x1f")?;
    session.hears(SqlPhase::Within, "reset", Asked::One)?;
    session.holds(false);
    let variable = session.asks(SqlPhase::Read, "SELECT @own")?.value();
    expects("a variable behind a reset", &variable, "NULL")?;
    session.client.quits();
    Ok(())
}

fn leaves(shared: &Shared, number: u64, draws: &mut Draws) -> Done {
    let row = (number, 0);
    let mut session = logs_in(shared, draws)?;
    // What becomes of a client that leaves is not asked; what it has written is in the ledger.
    match draws.below(6) {
        0 => {
            if session.asks(SqlPhase::Read, "BEGIN").is_ok() {
                notes(shared, vec![row], SqlFate::Undone);
                let _ = session.asks(SqlPhase::Within, &insert_of(row));
            }
        }
        1 => {
            notes(shared, vec![row], SqlFate::Unknown);
            let _ = session.client.sends(&query(&insert_of(row)));
        }
        2 => {
            let _ = session.client.sends(&query("SELECT SLEEP(5), n FROM soak.numbers"));
            pauses(draws);
        }
        3 => {
            let _ = session.client.sends(&query("SELECT * FROM soak.numbers"));
            let _ = session.client.receives_bytes(&mut vec![0; 20_000]);
        }
        4 => {
            let packet = [&b"\x40\0\0\0"[..], &query(&insert_of(row))[..20]].concat();
            let _ = session.client.sends_bytes(&packet);
            pauses(draws);
        }
        _ => {
            let _ = session.asks(SqlPhase::Read, "SET @own = 1");
        }
    }
    Ok(())
}

fn reads_slowly(shared: &Shared) -> Done {
    let mut session = SqlSession::log_in_slow(shared.targets.db)?;
    let sql = "SELECT n, text FROM soak.numbers ORDER BY n";
    session.sends(SqlPhase::Read, sql, &query(sql))?;
    let (since, rows, mut at) = (Instant::now(), ROWS.0, 0_u64);
    let (mut wrong, mut refused, mut began) = (None, None, false);
    let whole = session.client.receives_with(Asked::Results, |_, payload| {
        if let Some(error) = crate::mysql::error_of(&payload) {
            refused = Some(error);
        }
        began = true;
        // A row is a number and a text, each behind its length; the text's takes three bytes.
        let number = at.to_string();
        let is_row = payload.len() > ROWS.1;
        if is_row && payload.get(1..=number.len()) != Some(number.as_bytes()) {
            wrong.get_or_insert(at);
        }
        let letter = b'a' + (at % 26) as u8;
        if is_row && !payload[payload.len() - ROWS.1..].iter().all(|byte| *byte == letter) {
            wrong.get_or_insert(at);
        }
        at += u64::from(is_row);
        if at.is_multiple_of(rows / 20) {
            std::thread::sleep(Duration::from_millis(if is_row { 120 } else { 0 }));
        }
    });
    if let Some(at) = wrong {
        return Err(SqlTrouble::Wrong(format!("row {at} of a big result is another one")));
    }
    let phase = if began && at > 0 { SqlPhase::Rows } else { SqlPhase::Read };
    if let Some((code, text)) = refused {
        return Err(session.failed(phase, since, sql, &format!("{code} {text}"), Some(code)).into());
    }
    if let Err(problem) = whole {
        let problem = format!("{problem} behind {at} rows");
        return Err(session.failed(phase, since, sql, &problem, None).into());
    }
    expects("rows of a big result", &at.to_string(), &rows.to_string())
}

/// Another session of the account kills what this one runs, or all of it, again and again until it has ended.
fn is_killed(shared: &Shared, draws: &mut Draws) -> Done {
    let mut session = SqlSession::log_in_slow(shared.targets.db)?;
    let mut killer = SqlSession::log_in_slow(shared.targets.db)?;
    let is_all = draws.below(2) == 0;
    let kill = format!("KILL {}{}", if is_all { "" } else { "QUERY " }, session.client.connection_id);
    let sql = format!("SELECT SLEEP({SLEEP}) FROM soak.accounts WHERE id = 0");
    let since = Instant::now();
    session.sends(SqlPhase::Read, &sql, &query(&sql))?;
    let (answer, kills) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| session.hears(SqlPhase::Read, &sql, Asked::Results));
        let mut kills = Vec::new();
        while !waits.is_finished() {
            std::thread::sleep(KILL_EVERY);
            let answer = killer.client.tries(&kill);
            kills.push(answer.map(|answer| answer.error().map_or(0, |(code, _)| code)).unwrap_or(u16::MAX));
        }
        (waits.join(), kills)
    });
    let answer = answer.unwrap_or_else(|_| panic!("the thread of a client panicked"));
    match answer {
        Err(failed) if failed.told.code == Some(INTERRUPTED) && !is_all => {}
        Err(failed) if is_all && matches!(failed.told.code, None | Some(INTERRUPTED)) => return Ok(()),
        Err(failed) => return Err(failed.into()),
        Ok(answer) if answer.rows().first().is_some_and(|row| row[0] == "1") && !is_all => {}
        Ok(_) => {
            let what = format!("{kill} was answered {kills:?} and has not ended it");
            return Err(session.failed(SqlPhase::Kill, since, &sql, &what, None).into());
        }
    }
    let one = session.asks(SqlPhase::Read, "SELECT 1")?.value();
    expects("the session behind a kill", &one, "1")
}

/// It comes and goes, so only a wrong answer is one.
fn reads_where_there_may_be_nobody(shared: &Shared, draws: &mut Draws) -> Done {
    let asked = SqlSession::log_in(shared, shared.targets.copies, draws)
        .and_then(|mut session| session.asks(SqlPhase::Read, "SELECT SUM(balance) FROM soak.accounts"));
    asked.map_or(Ok(()), |answer| expects("the sum", &answer.value(), &ACCOUNTS.1.to_string()))
}
