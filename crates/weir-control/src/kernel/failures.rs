//! Passive health from packets: connections that a backend refused or did not answer, as the program counts
//! them, weighed against the flows it was given as those of the proxy plane are against its picks.
//!
//! The program counts one for each client within the pool's window: what a single client says of a backend
//! that serves others is not believed, since some segments no host answers. Where nobody has been served for
//! as long as that window, each counts: so the backend of a few clients is found, too. Against how many flows
//! is not weighed there either: a host says it only once a second that it takes no outer packets (RFC 1812
//! §4.3.2.8), however many come.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use weir_balance::{Ejection, Outcome};
use weir_l4::layout::BackendCounter;
use weir_proxy::events::Event;
use weir_state::{Pool, Snapshot};

/// What was counted of each backend at the last look, by pool and address in use.
#[derive(Debug, Default)]
pub struct Failures {
    last: BTreeMap<(String, SocketAddr), Looked>,
}

/// What a look found of a backend.
#[derive(Clone, Copy, Debug)]
struct Looked {
    counted: BackendCounter,
    /// When more connections had been served than before, or the first look.
    served_at: Duration,
}

impl Failures {
    /// Takes in what has been counted since the last look, and gives those that this has ejected. What was
    /// counted before the first look at a backend is an earlier process's business. `counted` gives `None`
    /// for a pool or backend that is not in the kernel.
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

/// Failures are spread evenly among the flows of the same span: in which order they came nobody knows. Where
/// nobody is served, other flows are no successes.
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
    // Beyond these none would say anything new.
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
