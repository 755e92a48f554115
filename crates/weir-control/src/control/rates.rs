//! The success rates of each pool's backends, measured in intervals (`success_rate`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::Counted;
use weir_state::{Backend, Pool, Snapshot};
use weir_stats::table::BackendCells;

use super::Control;

/// The counts at the last look at each pool, by its name.
#[derive(Default)]
pub(super) struct Rates(HashMap<String, Look>);

struct Look {
    at: Duration,
    /// By number of the backend, as long as it is in its pool.
    counts: HashMap<usize, Counted>,
}

impl Control {
    /// Compares the backends of the pools that ask for it and whose interval is over.
    pub(super) fn judge_rates(&self, snapshot: &Snapshot, rates: &mut Rates, now: Duration) {
        let interval = |pool: &Arc<Pool>| {
            pool.config.health.passive.as_ref().and_then(|passive| Some(passive.success_rate?.interval))
        };
        rates.0.retain(|name, _| snapshot.pool(name).is_some_and(|pool| interval(pool).is_some()));
        for pool in &snapshot.pools {
            let Some(interval) = interval(pool) else { continue };
            let name = &pool.config.name;
            if rates.0.get(name).is_some_and(|look| now < look.at + interval) {
                continue;
            }
            let counts: HashMap<usize, Counted> =
                pool.backends.iter().map(|backend| (number(backend), counted(backend))).collect();
            let before = rates.0.insert(name.clone(), Look { at: now, counts });
            let (Some(before), Some(look)) = (before, rates.0.get(name)) else { continue };
            let since = |backend: &Arc<Backend>| {
                let (now, then) = (look.counts.get(&number(backend))?, before.counts.get(&number(backend))?);
                let finished = now.finished.saturating_sub(then.finished);
                Some(Counted { finished, failed: now.failed.saturating_sub(then.failed) })
            };
            let since: Vec<Counted> = pool.backends.iter().map(|it| since(it).unwrap_or_default()).collect();
            for outlier in pool.balance.judge_rates(&since, now) {
                let Some(backend) = pool.backends.get(outlier.ejection.index) else { continue };
                let (until, reason) = (outlier.ejection.until, outlier.to_string());
                self.tell_ejection(name.clone(), backend.address.clone(), until, reason);
            }
        }
    }
}

fn number(backend: &Backend) -> usize {
    Arc::as_ptr(&backend.balance).addr()
}

/// Attempts that have ended, and those that failed. They are not read atomically, which averages out over an
/// interval.
fn counted(backend: &Backend) -> Counted {
    let in_flight = u64::from(backend.balance.in_flight());
    Counted {
        finished: backend.balance.picks().saturating_sub(in_flight),
        failed: backend.cells.total(|cells: &BackendCells| &cells.failures),
    }
}
