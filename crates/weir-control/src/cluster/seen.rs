//! What operators see of a watched cluster.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_balance::Role;
use weir_config::MysqlTopology;
use weir_io::clock;
use weir_mysql::lag::Lag;
use weir_mysql::topology::MemberReport;
use weir_stats::Histogram;

use super::receipt::Receipt;
use crate::lock;
use crate::timestamp::Timestamp;

/// Shown for a member that belongs to another group than the established one.
const OF_ANOTHER_GROUP: &str = "of another group";
/// Receipts kept for each pool.
const RECEIPTS: usize = 8;

/// The state of a pool's cluster, as its watch sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `group-replication` or `replication`.
    pub topology: String,
    /// Address of the primary; `None` while there is none.
    pub primary: Option<String>,
    /// Why there is no primary; `None` while there is one.
    pub no_primary: Option<String>,
    /// How long there has been no primary since the process started, in seconds.
    pub without_primary_seconds: f64,
    /// How often another server became the primary.
    pub primary_changes: u64,
    /// Views, and tables with triggers, whose code takes user locks or sets user variables invisibly:
    /// statements that name one go to the primary and keep their connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_code: Vec<String>,
    /// In the order of the pool.
    pub members: Vec<MemberStatus>,
    /// The last failovers, newest first.
    pub failovers: Vec<Receipt>,
}

/// The state of a member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The address of its backend.
    pub address: String,
    /// Its state according to the group, or `writable` or `read-only`; empty while it does not answer.
    pub state: String,
    /// `primary` or `secondary`; `None` while it can be neither.
    pub role: Option<String>,
    /// `server_uuid`; `None` if it has never reported it.
    pub uuid: Option<String>,
    /// Version, from its greeting; `None` if it has never sent one.
    pub version: Option<String>,
    /// For how long it has lacked a transaction that the primary had, at least, in seconds; `None` for the
    /// primary, and while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    /// Transactions that the primary had executed and it had not, when they were last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_transactions: Option<u64>,
    /// When it last answered; `None` if it never did.
    pub last_seen: Option<Timestamp>,
    /// How often it answered.
    pub looks: u64,
    /// How often it did not answer.
    pub failed_looks: u64,
    /// Why it does not answer; empty while it does.
    pub error: String,
}

/// The published state of one pool, written by its watch. No lock is held for longer than a copy takes.
pub struct PoolSeen {
    shown: Mutex<Shown>,
    /// Time from the last sign of a primary to the next primary.
    pub failover_seconds: Histogram,
    /// Makes the next look panic, as a bug in the watch would.
    #[cfg(test)]
    pub(super) goes_wrong: std::sync::atomic::AtomicBool,
}

struct Shown {
    status: ClusterStatus,
    /// Indexes of members that belong to another group than the established one.
    of_other_groups: Vec<usize>,
    receipts: VecDeque<Receipt>,
    /// Since when there has been no primary.
    without_since: Option<Duration>,
    without: Duration,
}

impl PoolSeen {
    pub(super) fn new() -> Arc<PoolSeen> {
        let shown = Shown {
            status: ClusterStatus::default(),
            of_other_groups: Vec::new(),
            receipts: VecDeque::with_capacity(RECEIPTS),
            without_since: Some(clock::now()),
            without: Duration::ZERO,
        };
        Arc::new(PoolSeen {
            shown: Mutex::new(shown),
            failover_seconds: Histogram::default(),
            #[cfg(test)]
            goes_wrong: Default::default(),
        })
    }

    /// The current state.
    pub fn status(&self) -> ClusterStatus {
        let shown = lock(&self.shown);
        let mut status = shown.status.clone();
        let since = shown.without_since.map_or(Duration::ZERO, |since| clock::now().saturating_sub(since));
        status.without_primary_seconds = (shown.without + since).as_secs_f64();
        for index in &shown.of_other_groups {
            // Nothing is known about one that does not answer.
            if let Some(member) = status.members.get_mut(*index).filter(|member| !member.state.is_empty()) {
                OF_ANOTHER_GROUP.clone_into(&mut member.state);
            }
        }
        status.failovers = shown.receipts.iter().rev().cloned().collect();
        status
    }

    /// The pool has these members now; what is known about those that it had stays.
    pub(super) fn adopt(&self, topology: MysqlTopology, addresses: impl Iterator<Item = String>) {
        let mut shown = lock(&self.shown);
        topology.word().clone_into(&mut shown.status.topology);
        // The indexes may refer to other members now, and there will be a new decision.
        shown.of_other_groups.clear();
        let before = std::mem::take(&mut shown.status.members);
        let member = |address: String| {
            let known = before.iter().find(|member| member.address == address).cloned();
            known.unwrap_or_else(|| MemberStatus { address, ..MemberStatus::default() })
        };
        shown.status.members = addresses.map(member).collect();
    }

    /// Records the result of a look at a member, by index.
    pub(super) fn looked(&self, index: usize, result: &Result<MemberReport, String>, time: Timestamp) {
        #[cfg(test)]
        assert!(!self.goes_wrong.swap(false, std::sync::atomic::Ordering::Relaxed), "as the test has it");
        let mut shown = lock(&self.shown);
        let Some(member) = shown.status.members.get_mut(index) else { return };
        match result {
            Ok(report) => {
                member.looks += 1;
                member.last_seen = Some(time);
                member.error.clear();
                let read_only = if report.is_read_only { "read-only" } else { "writable" };
                let state = match report.own() {
                    Some(own) => own.state.word(),
                    None if report.uuid.is_empty() => read_only,
                    None => "in no group",
                };
                state.clone_into(&mut member.state);
            }
            Err(error) => {
                member.failed_looks += 1;
                (member.lag_seconds, member.lag_transactions) = (None, None);
                member.state.clear();
                member.error.clone_from(error);
            }
        }
    }

    /// Sets which members, by index, belong to another group than the established one.
    pub(super) fn of_other_groups(&self, indexes: Vec<usize>) {
        lock(&self.shown).of_other_groups = indexes;
    }

    /// Sets the stored code that was found.
    pub(super) fn hides(&self, names: Vec<String>) {
        lock(&self.shown).status.hidden_code = names;
    }

    /// Sets the lag of a member, by index; `None` if it is unknown, or does not apply.
    pub(super) fn lags(&self, index: usize, lag: Option<Lag>) {
        let mut shown = lock(&self.shown);
        if let Some(member) = shown.status.members.get_mut(index) {
            member.lag_seconds = lag.map(|lag| lag.time.as_secs_f64());
            member.lag_transactions = lag.map(|lag| lag.transactions);
        }
    }

    /// Records a decision: the roles, by index, and the primary or why there is none.
    pub(super) fn decided(&self, roles: &[Option<Role>], primary: Result<&str, &str>, now: Duration) {
        let mut shown = lock(&self.shown);
        for (member, role) in shown.status.members.iter_mut().zip(roles) {
            member.role = role.map(|role| role.word().to_owned());
        }
        match primary {
            Ok(_) => {
                let since = shown.without_since.take();
                shown.without += since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            }
            Err(_) => drop(shown.without_since.get_or_insert(now)),
        }
        shown.status.primary = primary.ok().map(str::to_owned);
        shown.status.no_primary = primary.err().map(str::to_owned);
    }

    /// Records a failover that has ended.
    pub(super) fn keep(&self, receipt: Receipt) {
        let seconds = receipt.unnoticed_seconds + receipt.absent_seconds;
        self.failover_seconds.record(Duration::from_secs_f64(seconds.max(0.0)));
        let mut shown = lock(&self.shown);
        shown.status.primary_changes += u64::from(receipt.from != receipt.to);
        if shown.receipts.len() == RECEIPTS {
            shown.receipts.pop_front();
        }
        shown.receipts.push_back(receipt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(number: u64) -> Receipt {
        Receipt {
            from: "a".to_owned(),
            to: if number == 0 { "a" } else { "b" }.to_owned(),
            reason: String::new(),
            last_seen: Timestamp::default(),
            detected: Timestamp::default(),
            writable: Timestamp::default(),
            unnoticed_seconds: 0.02,
            absent_seconds: 0.5,
            parked: number,
            moved: 0,
            failed: 0,
        }
    }

    #[test]
    fn the_last_receipts_are_kept_newest_first_and_a_primary_that_comes_back_is_no_change() {
        let seen = PoolSeen::new();
        (0..20).for_each(|number| seen.keep(receipt(number)));
        let status = seen.status();
        let parked: Vec<u64> = status.failovers.iter().map(|receipt| receipt.parked).collect();
        assert_eq!(parked, [19, 18, 17, 16, 15, 14, 13, 12]);
        assert_eq!(status.primary_changes, 19);
    }

    #[test]
    fn time_without_a_primary_adds_up_and_a_member_keeps_its_history_over_a_reload() {
        let seen = PoolSeen::new();
        let addresses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        seen.adopt(MysqlTopology::Replication, addresses(&["a", "b"]).into_iter());
        let report = MemberReport { uuid: String::new(), is_read_only: true, view: Vec::new() };
        seen.looked(1, &Ok(report), Timestamp::now());
        seen.looked(1, &Err("gone".to_owned()), Timestamp::now());
        seen.adopt(MysqlTopology::Replication, addresses(&["b", "c"]).into_iter());
        let status = seen.status();
        assert_eq!((status.members[0].looks, status.members[0].failed_looks), (1, 1));
        assert_eq!((&*status.members[0].error, status.members[1].looks), ("gone", 0));
        let later = clock::now() + Duration::from_secs(3);
        seen.decided(&[Some(Role::Primary), None], Ok("b"), later);
        assert!(seen.status().without_primary_seconds >= 3.0);
        assert_eq!(seen.status().members[0].role.as_deref(), Some("primary"));
    }
}
