//! MySQL metrics: of listeners, and of servers with roles.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_balance::Role;
use weir_config::Protocol;
use weir_control::control::Control;
use weir_mysql::{LeftBehind, RouteReason};
use weir_state::{Backend, Listener, Pool};
use weir_stats::HistogramSum;
use weir_stats::expose::{self, Exposition};
use weir_stats::table::{Login, PoolCells};

use super::{Counted, counted, gauge};

/// Metrics of MySQL listeners.
pub(super) fn logins(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mysql = counted(listeners.iter().filter(|listener| listener.config.protocol() == Protocol::Mysql));
    mysql.by_word(out, &expose::MYSQL_LOGINS, Login::WORDS, |cells| &cells.logins[..]);
    statements(out, listeners);
    let pins = LeftBehind::ALL.iter().map(|(_, word, _)| *word).chain(["plugin"]);
    mysql.worded(out, &expose::MYSQL_PINS, pins, |cells, index| match index < LeftBehind::ALL.len() {
        true => &cells.pins[index],
        false => &cells.pinned_by_plugin,
    });
    mysql.each(
        out,
        &expose::MYSQL_RERUNS,
        &[("lost", |cells| &cells.rerun_lost), ("read_only", |cells| &cells.rerun_read_only)],
    );
    mysql.each(
        out,
        &expose::MYSQL_PREPARED_REFUSALS,
        &[("session", |cells| &cells.prepared_too_much), ("memory", |cells| &cells.prepared_no_memory)],
    );
    mysql.each(
        out,
        &expose::MYSQL_CATCH_UPS,
        &[("waited", |cells| &cells.catch_ups), ("behind", |cells| &cells.behind)],
    );
    mysql.totals(out, &expose::MYSQL_LOGINS_WAITED, |cells| &cells.logins_waited);
}

/// Metrics of MySQL pools: waits for a server in a role, and their results.
pub(super) fn waits(out: &mut Exposition, pools: &[Arc<Pool>]) {
    let of_mysql = pools.iter().filter(|it| it.config.mysql.is_some());
    let of_mysql = Counted(of_mysql.map(|it| (vec![&*it.config.name], &*it.cells)).collect());
    of_mysql.totals(out, &expose::PARKED, |cells: &PoolCells| &cells.parked);
    of_mysql.each(
        out,
        &expose::PARK_REFUSALS,
        &[("full", |cells| &cells.park_full), ("timeout", |cells| &cells.park_timeouts)],
    );
    of_mysql.each(
        out,
        &expose::MYSQL_LOST,
        &[("moved", |cells| &cells.moved), ("failed", |cells| &cells.failed)],
    );
}

/// Only reasons that have occurred: most listeners see few of them.
fn statements(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mut family = out.family(&expose::MYSQL_STATEMENTS);
    for listener in listeners.iter().filter(|listener| listener.config.protocol() == Protocol::Mysql) {
        for (index, reason) in RouteReason::ALL.iter().enumerate() {
            let count: u64 = listener.cells.iter().map(|cells| cells.statements[index].total()).sum();
            if count > 0 {
                let labels = [listener.config.name.as_str(), reason.wants().word(), reason.word()];
                family.sample(&labels, count as f64);
            }
        }
    }
}

/// Prepared statements at servers.
fn prepared(out: &mut Exposition, pools: &[Arc<Pool>]) {
    let servers = || {
        let pools = pools.iter().filter(|pool| pool.config.mysql.is_some());
        pools.flat_map(|pool| pool.backends.iter().map(move |backend| (&*pool.config.name, backend)))
    };
    let count = |backend: &Backend| f64::from(backend.prepared.load(Ordering::Relaxed));
    let counts = servers().map(|(pool, backend)| ([pool, &*backend.address], count(backend)));
    gauge(out, &expose::MYSQL_PREPARED, counts);
    let mut closed = out.family(&expose::MYSQL_STATEMENTS_CLOSED);
    for (pool, backend) in servers() {
        let total: u64 = backend.cells.iter().map(|cells| cells.statements_closed.total()).sum();
        closed.sample(&[pool, &backend.address], total as f64);
    }
}

/// The monitored state of MySQL servers with roles.
pub(super) fn clusters(out: &mut Exposition, control: &Control, pools: &[Arc<Pool>]) {
    let mut roles = out.family(&expose::MYSQL_ROLE);
    for pool in pools.iter().filter(|pool| pool.config.mysql.is_some()) {
        for backend in &pool.backends {
            let role = backend.balance.role().map_or("none", Role::word);
            roles.sample(&[&pool.config.name, &backend.address, role], 1.0);
        }
    }
    prepared(out, pools);
    let seen = pools.iter().filter_map(|pool| {
        let seen = control.watch().seen(&pool.config.name)?;
        Some((&*pool.config.name, seen.status(), seen))
    });
    let seen: Vec<_> = seen.collect();
    let members =
        || seen.iter().flat_map(|(pool, status, _)| status.members.iter().map(move |member| (*pool, member)));
    let lags = members().filter_map(|(pool, it)| Some(([pool, &*it.address], it.lag_seconds?)));
    gauge(out, &expose::MYSQL_LAG_SECONDS, lags);
    let lags = members().filter_map(|(pool, it)| Some(([pool, &*it.address], it.lag_transactions? as f64)));
    gauge(out, &expose::MYSQL_LAG_TRANSACTIONS, lags);
    let mut looks = out.family(&expose::MYSQL_LOOKS);
    for (pool, status, _) in &seen {
        for member in &status.members {
            looks.sample(&[pool, &member.address, "answered"], member.looks as f64);
            looks.sample(&[pool, &member.address, "failed"], member.failed_looks as f64);
        }
    }
    let mut changes = out.family(&expose::MYSQL_PRIMARY_CHANGES);
    seen.iter().for_each(|(pool, status, _)| changes.sample(&[pool], status.primary_changes as f64));
    let mut without = out.family(&expose::MYSQL_WITHOUT_PRIMARY);
    seen.iter().for_each(|(pool, status, _)| without.sample(&[pool], status.without_primary_seconds));
    let mut failovers = out.family(&expose::MYSQL_FAILOVER);
    for (pool, _, seen) in &seen {
        let mut sum = HistogramSum::default();
        seen.failover_seconds.add_to(&mut sum);
        failovers.histogram(&[pool], &sum);
    }
}
