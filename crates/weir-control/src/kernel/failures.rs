//! Passive health checks from packets: connections that a backend refused or did not answer, as the program
//! counts them, in proportion to the flows it was given, just as on the proxy plane.
//!
//! The program counts one failure per client within the pool's window: a single client's failures are not
//! believed if the backend serves others, since some segments get no answer from any host. If no client was
//! served within that window, each failure counts, so that a backend with few clients is ejected, too. Then
//! failures are not compared with the number of flows either: a host reports only once a second that it does
//! not accept outer packets (RFC 1812 §4.3.2.8), however many arrive.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use weir_balance::{Ejection, Outcome};
use weir_l4::layout::BackendCounter;
use weir_proxy::events::Event;
use weir_state::{Pool, Snapshot};

/// The counts of each backend at the last look, by pool and current address.
#[derive(Debug, Default)]
pub struct Failures {
    last: BTreeMap<(String, SocketAddr), Looked>,
}

/// The counts of one backend at a look.
#[derive(Clone, Copy, Debug)]
struct Looked {
    counted: BackendCounter,
    /// When the number of served connections last increased, or the time of the first look.
    served_at: Duration,
}

impl Failures {
    /// Evaluates what was counted since the last look, and returns the backends that this has ejected. Counts
    /// from before the first look at a backend belong to an earlier process. `counted` returns `None` for a
    /// pool or backend that is not in the kernel.
    pub fn observe(
        &mut self,
        snapshot: &Snapshot,
        now: Duration,
        mut counted: impl FnMut(&str, SocketAddr) -> Option<BackendCounter>,
    ) -> Vec<Event> {
        let mut ejected = Vec::new();
        let mut next = BTreeMap::new();
        for pool in &snapshot.pools {
            let Some(passive) = &pool.config.health.passive else { continue };
            for (index, backend) in pool.backends.iter().enumerate() {
                let Some(address) = backend.resolved.address() else { continue };
                let Some(counted) = counted(&pool.config.name, address) else { continue };
                let at = (pool.config.name.clone(), address);
                let mut served_at = now;
                if let Some(before) = self.last.get(&at) {
                    let more = since(&before.counted, &counted);
                    if more.served == 0 {
                        served_at = before.served_at;
                    }
                    let serves_nobody = now.saturating_sub(served_at) > passive.within;
                    ejected.extend(observe_one(pool, index, now, &more, serves_nobody));
                }
                next.insert(at, Looked { counted, served_at });
            }
        }
        self.last = next;
        ejected
    }
}

fn since(before: &BackendCounter, now: &BackendCounter) -> BackendCounter {
    BackendCounter {
        flows: now.flows.saturating_sub(before.flows),
        refused: now.refused.saturating_sub(before.refused),
        unanswered: now.unanswered.saturating_sub(before.unanswered),
        failed_again: now.failed_again.saturating_sub(before.failed_again),
        served: now.served.saturating_sub(before.served),
        ..BackendCounter::default()
    }
}

/// Spreads failures evenly among the flows of the same period, since their order is unknown. If no client was
/// served, other flows do not count as successes.
fn observe_one(
    pool: &Pool,
    index: usize,
    now: Duration,
    more: &BackendCounter,
    serves_nobody: bool,
) -> Option<Event> {
    let backend = &pool.backends[index];
    let by_others = more.refused + more.unanswered;
    let failures = by_others + if serves_nobody { more.failed_again } else { 0 };
    let flows = if serves_nobody { more.flows.min(failures) } else { more.flows };
    let mut ejection: Option<Ejection> = None;
    let mut picks = 0;
    // More than these would make no difference.
    for number in 1..=failures.min(1_000) {
        let until_then = flows * number / failures;
        backend.balance.note_picks(until_then - picks);
        picks = until_then;
        ejection = pool.balance.observe(index, now, Outcome::Failure).or(ejection);
    }
    backend.balance.note_picks(flows - picks);
    let cells = backend.cells.last();
    cells.failures.add(by_others + more.failed_again);
    cells.connect_failures.add(by_others + more.failed_again);
    let ejection = ejection?;
    cells.ejections.increment();
    pool.refresh(now);
    let reason = match (more.refused, more.unanswered) {
        (0, 0) => format!("{failures} connections failed, and nobody was served"),
        (refused, 0) => format!("refused {refused} connections"),
        (0, unanswered) => format!("did not answer {unanswered} connections"),
        (refused, unanswered) => format!("refused {refused} connections and did not answer {unanswered}"),
    };
    Some(Event::Ejected {
        pool: pool.config.name.clone(),
        backend: backend.address.clone(),
        until: ejection.until,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const PASSIVE: &str =
        "health = { check = 'off', passive = { errors = 3, within = '10s', eject = '10s' } }";

    fn snapshot() -> Snapshot {
        let text = format!(
            "[listener.vip]\nprotocol = 'tcp'\nbind = '192.0.2.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80', '10.0.0.2:80']\n{PASSIVE}\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1)
    }

    /// Ejected by what was counted at each second, after a first look at nothing.
    fn ejected(looks: &[BackendCounter]) -> Vec<String> {
        let (snapshot, mut failures) = (snapshot(), Failures::default());
        let bad: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let mut found = Vec::new();
        let mut sum = BackendCounter { flows: 5, refused: 5, ..BackendCounter::default() };
        for (second, look) in (1..).zip([BackendCounter::default()].iter().chain(looks)) {
            sum += *look;
            let counted =
                |_: &str, address| Some(if address == bad { sum } else { BackendCounter::default() });
            let events = failures.observe(&snapshot, Duration::from_secs(second), counted);
            found.extend(events.into_iter().map(|event| match event {
                Event::Ejected { backend, reason, .. } => format!("{backend} {reason}"),
                other => panic!("{other:?}"),
            }));
        }
        found
    }

    fn look(flows: u64, refused: u64, unanswered: u64) -> BackendCounter {
        BackendCounter { flows, refused, unanswered, ..BackendCounter::default() }
    }

    #[test]
    fn what_an_earlier_process_left_counted_ejects_nobody() {
        assert_eq!(ejected(&[look(2, 2, 0)]), [""; 0]);
    }

    #[test]
    fn refused_and_unanswered_connections_eject_together() {
        let expected = ["10.0.0.1:80 refused 1 connections and did not answer 1"];
        assert_eq!(ejected(&[look(1, 1, 0), look(2, 1, 1)]), expected);
        assert_eq!(ejected(&[look(3, 3, 0)]), ["10.0.0.1:80 refused 3 connections"]);
    }

    #[test]
    fn one_client_ejects_no_backend_that_serves_others_and_any_that_serves_nobody() {
        let of_one = BackendCounter { failed_again: 9, ..look(10, 1, 0) };
        let served = BackendCounter { served: 1, flows: 1, ..BackendCounter::default() };
        let beside_others: Vec<BackendCounter> =
            (0..40).map(|second| if second % 10 == 0 { of_one } else { served }).collect();
        assert_eq!(ejected(&beside_others), [""; 0]);
        let silent = [BackendCounter::default(); 9];
        assert_eq!(ejected(&[&silent[..], &[of_one]].concat()), [""; 0], "its window is not over");
        let expected = ["10.0.0.1:80 refused 1 connections"];
        assert_eq!(ejected(&[&silent[..], &[BackendCounter::default(), of_one]].concat()), expected);
    }

    #[test]
    fn few_failures_among_many_flows_eject_a_backend_that_serves_nobody() {
        let looks = |served| {
            let each = BackendCounter { served, ..look(10_000, 1, 0) };
            ejected(&[each; 20])
        };
        assert_eq!(looks(1), [""; 0]);
        assert_eq!(looks(0), ["10.0.0.1:80 refused 1 connections"]);
    }

    #[test]
    fn few_failures_among_many_flows_are_noise() {
        assert_eq!(ejected(&[look(100, 1, 0), look(1_000, 1, 1), look(100_000, 500, 0)]), [""; 0]);
        assert_eq!(ejected(&[look(100, 1, 1), look(100, 1, 1)]).len(), 1);
    }
}
