//! What clients were told about their writes, held against what the servers have in the end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::sql_servers::{ACCOUNTS, SqlServers, WITH_PASSWORD};
use crate::mysql::Client;
use crate::storm::Failures;

/// Longest time until nothing of any client is left on the servers.
const SETTLED_AFTER: Duration = Duration::from_secs(45);

/// A row of `soak.written`: the client's number and its step.
pub(super) type SqlRow = (u64, u64);

/// What clients know of their writes.
#[derive(Debug, Default)]
pub(super) struct SqlLedger {
    /// Acknowledged.
    done: Vec<SqlRow>,
    /// Refused, rolled back, or in a transaction whose end was never asked for.
    undone: Vec<SqlRow>,
    /// Rows of transactions whose end got no answer: all are there, or none.
    unknown: Vec<Vec<SqlRow>>,
}

/// What a client knows of a transaction's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SqlFate {
    Done,
    Undone,
    Unknown,
}

impl SqlLedger {
    /// Notes what became of a transaction.
    pub(super) fn notes(&mut self, rows: Vec<SqlRow>, fate: SqlFate) {
        match fate {
            SqlFate::Done => self.done.extend(rows),
            SqlFate::Undone => self.undone.extend(rows),
            SqlFate::Unknown => self.unknown.push(rows),
        }
    }

    /// How many rows were acknowledged, refused, and neither.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.done.len(), self.undone.len(), self.unknown.iter().map(Vec::len).sum())
    }

    fn check_rows(&self, found: &HashMap<SqlRow, u64>, failures: &mut Failures) {
        for (row, count) in found.iter().filter(|(_, count)| **count > 1) {
            failures.add(format!("MySQL: {row:?} was written {count} times"));
        }
        for row in self.done.iter().filter(|row| !found.contains_key(row)) {
            failures.add(format!("MySQL: {row:?} was acknowledged, and is lost"));
        }
        for row in self.undone.iter().filter(|row| found.contains_key(row)) {
            failures.add(format!("MySQL: {row:?} was refused or rolled back, and is there"));
        }
        for rows in &self.unknown {
            let there = rows.iter().filter(|row| found.contains_key(row)).count();
            if there != 0 && there != rows.len() {
                failures.add(format!("MySQL: {there} rows of one transaction of {rows:?}"));
            }
        }
        let told: HashSet<&SqlRow> =
            self.done.iter().chain(&self.undone).chain(self.unknown.iter().flatten()).collect();
        for row in found.keys().filter(|row| !told.contains(row)) {
            failures.add(format!("MySQL: nobody has written {row:?}"));
        }
    }
}

/// Compares the servers with the ledger and with each other, once all clients have left.
pub(super) fn check_sql(servers: &SqlServers, ledger: &SqlLedger) -> Failures {
    let mut failures = Failures::default();
    servers.copy().has_all_of(servers.primary());
    let mut roots = [servers.primary().root(), servers.copy().root()];
    let rows = roots[0].does("SELECT client, step, COUNT(*) FROM soak.written GROUP BY client, step").rows();
    let number = |text: &String| text.parse::<u64>().unwrap_or(u64::MAX);
    let found = rows.iter().map(|row| ((number(&row[0]), number(&row[1])), number(&row[2]))).collect();
    ledger.check_rows(&found, &mut failures);
    let [first, second] = [0, 1].map(|at| contents(&mut roots[at]));
    if first != second {
        failures.add(format!("MySQL: the primary has {first}, and its copy {second}"));
    }
    let ((_, money), total) = (ACCOUNTS, roots[0].does("SELECT SUM(balance) FROM soak.accounts").value());
    if total != money.to_string() {
        failures.add(format!("MySQL: {total} in all accounts, which had {money}"));
    }
    for root in &mut roots {
        if let Some(left) = is_left(root) {
            failures.add(format!("MySQL: {left} {SETTLED_AFTER:?} after all clients have left"));
        }
    }
    failures
}

fn contents(root: &mut Client) -> String {
    let sql = "SELECT CONCAT_WS(' ', (SELECT CONCAT_WS(' ', COUNT(*), BIT_XOR(CRC32(CONCAT_WS(',', id, client, \
               step)))) FROM soak.written), (SELECT GROUP_CONCAT(balance ORDER BY id) FROM soak.accounts), \
               @@GLOBAL.gtid_executed)";
    root.does(sql).value()
}

/// What clients have left on a server: connections, or transactions.
fn is_left(root: &mut Client) -> Option<String> {
    let begun = Instant::now();
    let user = WITH_PASSWORD.0;
    let connections = format!(
        "SELECT COALESCE(GROUP_CONCAT(CONCAT_WS(' ', id, command, time, info)), '') \
         FROM performance_schema.processlist WHERE user IN ('app', '{user}')"
    );
    let transactions =
        "SELECT COALESCE(GROUP_CONCAT(trx_mysql_thread_id), '') FROM information_schema.innodb_trx";
    loop {
        let (sessions, open) = (root.does(&connections).value(), root.does(transactions).value());
        if sessions.is_empty() && open.is_empty() {
            return None;
        }
        if begun.elapsed() > SETTLED_AFTER {
            return Some(format!("connections {sessions:?}, transactions {open:?}"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
