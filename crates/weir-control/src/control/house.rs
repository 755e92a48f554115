//! Handles what is due by time and what the workers report, until the process ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedMutexGuard, mpsc};
use weir_balance::TierKind;
use weir_config::Protocol;
use weir_io::clock;
use weir_proxy::events;
use weir_proxy::plane::ProxyPlane;
use weir_state::{Pool, Snapshot};

use super::Control;
use super::rates::Rates;
use crate::dns::{Member, Moved};
use crate::events::What;
use crate::health::Fallen;
use crate::lock;

/// Longest wait between two checks of what changes with time: steps of slow start that began in between.
const HOUSE_KEEPING: Duration = Duration::from_millis(250);

/// Receivers for what the planes report.
pub(super) struct Reports {
    pub(super) of_workers: mpsc::UnboundedReceiver<events::Event>,
    pub(super) of_kernel: mpsc::UnboundedReceiver<events::Event>,
}

/// Handles what is due by time and what the workers report, until the process ends.
pub(super) async fn keep(control: Arc<Control>, mut reports: OwnedMutexGuard<Reports>, moved: Arc<Moved>) {
    let Reports { of_workers, of_kernel } = &mut *reports;
    let (mut footings, mut rates) = (HashMap::new(), Rates::default());
    loop {
        let now = clock::now();
        let snapshot = control.snapshot();
        control.note_footings(&snapshot, &mut footings);
        control.judge_rates(&snapshot, &mut rates, now);
        restaple(&snapshot);
        let mut next = now + HOUSE_KEEPING;
        for pool in &snapshot.pools {
            if pool.balance.next_change(now).is_some_and(|at| at <= now) {
                control.refresh(pool, now);
            }
            next = pool.balance.next_change(now).map_or(next, |at| next.min(at));
        }
        tokio::select! {
            report = of_workers.recv() => match report {
                Some(report) => control.take_report(report),
                None => return,
            },
            Some(report) = of_kernel.recv() => control.take_report(report),
            members = moved.next() => control.follow_addresses(&members),
            // Never zero: a time that stays due would make this loop spin.
            () = tokio::time::sleep((next - now).max(Duration::from_millis(1))) => {}
        }
    }
}

/// Makes listeners stop stapling what is out of date, which some clients would refuse, and resume what is
/// not; logs it.
fn restaple(snapshot: &Snapshot) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    for listener in &snapshot.listeners {
        let changed = listener.tls.iter().flat_map(|tls| tls.restaple(now as i64));
        changed.for_each(|facts| {
            let (listener, certificate) = (&listener.config.name, facts.file.display());
            if facts.is_stapled {
                tracing::info!(listener, %certificate, "the OCSP response is in date by the clock again, and stapled");
            } else {
                tracing::warn!(listener, %certificate, "the OCSP response is out of date and stapled no more");
            }
        });
    }
}

/// Ends the sessions of backends that went down, for pools configured so, until the process ends.
pub(super) async fn end_sessions(
    proxy: Arc<ProxyPlane>,
    mut fallen: OwnedMutexGuard<mpsc::UnboundedReceiver<Fallen>>,
) {
    while let Some(backend) = fallen.recv().await {
        proxy.end_sessions(&backend);
    }
}

/// The group of backends that each pool chose from at the last look, by name.
type Footings = HashMap<String, Option<TierKind>>;

impl Control {
    pub(super) fn refresh(&self, pool: &Pool, now: Duration) {
        for index in pool.refresh(now).readmitted {
            if let Some(backend) = pool.backends.get(index) {
                let (pool, backend) = (pool.config.name.clone(), backend.address.clone());
                tracing::info!(pool, backend, "ejection is over");
                self.bus.tell(What::Readmitted { pool, backend });
            }
        }
    }

    /// Probes the backends whose address has changed at their new address. One that is not in force yet is
    /// probed when it is.
    fn follow_addresses(&self, moved: &[Member]) {
        let snapshot = self.snapshot();
        for Member { pool, backend } in moved {
            let is_there = |pool: &&Arc<Pool>| pool.backends.iter().any(|it| Arc::ptr_eq(it, backend));
            if let Some(pool) = snapshot.pool(pool).filter(is_there) {
                self.board().follow_address(pool, backend);
            }
        }
    }

    /// Reports when a pool begins to choose from another group of backends. It checks instead of being
    /// notified, so that a pool that flaps within a moment causes no event.
    fn note_footings(&self, snapshot: &Snapshot, known: &mut Footings) {
        known.retain(|name, _| snapshot.pool(name).is_some());
        for pool in &snapshot.pools {
            let (name, now) = (&pool.config.name, pool.balance.tier());
            let before = known.insert(name.clone(), now).unwrap_or(Some(TierKind::Ordinary));
            if before == now {
                continue;
            }
            let serving_from = now.map_or("none", TierKind::word);
            match now {
                None => tracing::error!(pool = name, "no backend is left{}", what_follows(snapshot, name)),
                Some(TierKind::LastResort) => {
                    tracing::error!(pool = name, "no backend is up: the last resort is tried");
                }
                Some(TierKind::Panic) => tracing::error!(
                    pool = name,
                    "fewer backends are healthy than `panic_below` asks for: all ordinary ones are used"
                ),
                Some(TierKind::Backup) => {
                    tracing::warn!(pool = name, "no ordinary backend is up: backups serve")
                }
                Some(TierKind::Ordinary) => tracing::info!(pool = name, "ordinary backends serve again"),
            }
            self.bus.tell(What::Pool { pool: name.clone(), serving_from });
        }
    }

    /// Remembers the last failure before an ejection, one for each backend that a pool has now.
    fn note_ejection(&self, pool: &str, backend: &str, reason: &str) {
        let snapshot = self.snapshot();
        let is_there = |pool: &str, backend: &str| {
            snapshot.pool(pool).is_some_and(|pool| pool.backends.iter().any(|it| it.address == backend))
        };
        let mut ejections = lock(&self.ejections);
        ejections.insert((pool.to_owned(), backend.to_owned()), reason.to_owned());
        ejections.retain(|(pool, backend), _| is_there(pool, backend));
    }

    /// The failure that last had a backend ejected; `None` when there was none, or it has not been reported
    /// yet.
    pub fn ejection_reason(&self, pool: &str, backend: &str) -> Option<String> {
        let ejections = lock(&self.ejections);
        ejections.get(&(pool.to_owned(), backend.to_owned())).cloned()
    }

    /// Reports that a backend was ejected, and has it probed now.
    pub(super) fn tell_ejection(&self, name: String, address: String, until: Duration, reason: String) {
        let now = clock::now();
        let seconds = until.saturating_sub(now).as_secs_f64();
        tracing::warn!(
            pool = name,
            backend = address,
            seconds,
            reason,
            "backend ejected: traffic to it failed"
        );
        self.note_ejection(&name, &address, &reason);
        let snapshot = self.snapshot();
        if let Some(pool) = snapshot.pool(&name) {
            self.refresh(pool, now);
            if let Some(backend) = pool.backends.iter().find(|it| it.address == address) {
                self.board().hasten(backend);
            }
        }
        self.bus.tell(What::Ejected { pool: name, backend: address, seconds, reason });
    }

    fn take_report(&self, report: events::Event) {
        match report {
            events::Event::Ejected { pool: name, backend: address, until, reason } => {
                self.tell_ejection(name, address, until, reason);
            }
            events::Event::OtherAddress { name, first, address } => {
                self.followers.names.settle(&name, first, address);
            }
            events::Event::DescriptorsShort { shed } => {
                tracing::error!(
                    shed,
                    "file descriptors ran out; idle connections were shed (raise LimitNOFILE)"
                );
                self.bus.tell(What::DescriptorsShort { shed });
            }
        }
    }
}

/// What it means for a pool's clients that it has no backend left, as the end of a sentence.
fn what_follows(snapshot: &Snapshot, name: &str) -> String {
    let has_backends = |pool: &str| snapshot.pool(pool).is_some_and(|pool| pool.balance.tier().is_some());
    let mut all: Vec<String> = Vec::new();
    for listener in &snapshot.config.listeners {
        let own = (listener.pool.as_deref() == Some(name)).then_some(None);
        let routes = listener.routes.iter().filter(|route| route.may_go_to(name));
        for of_route in own.into_iter().chain(routes.map(|route| route.fallback_pool.as_deref())) {
            let fallbacks = || snapshot.config.fallbacks(name, of_route);
            let follows = match listener.protocol() {
                Protocol::Http => match fallbacks().into_iter().find(|pool| has_backends(pool)) {
                    Some(other) => format!("pool {other} serves in its place"),
                    None => "clients get 503".to_owned(),
                },
                Protocol::Tcp => "connections are not served".to_owned(),
                Protocol::Udp => "new flows are not served".to_owned(),
                Protocol::Mysql => "statements wait, or are refused".to_owned(),
            };
            let follows = format!("{follows} (listener {})", listener.name);
            if !all.contains(&follows) {
                all.push(follows);
            }
        }
    }
    if all.is_empty() { String::new() } else { format!(": {}", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_by_protocol_and_fallback_what_follows_when_no_backend_is_left() {
        let config = r#"
            [listener.web]
            bind = "127.0.0.1:1"
            pool = "app"
            [[listener.web.route]]
            path = "/a/*"
            pool = "app"
            fallback_pool = "sorry"
            [[listener.web.route]]
            path = "/b/*"
            pool = "bare"
            [listener.raw]
            protocol = "tcp"
            bind = "127.0.0.1:2"
            pool = "relayed"
            [listener.names]
            protocol = "udp"
            bind = "127.0.0.1:3"
            pool = "answering"
            [pool.app]
            backends = ["127.0.0.1:11"]
            [pool.bare]
            backends = ["127.0.0.1:12"]
            fallback_pool = "none"
            [pool.none]
            backends = [{ address = "127.0.0.1:13", weight = 0 }]
            [pool.sorry]
            backends = ["127.0.0.1:14"]
            [pool.relayed]
            backends = ["127.0.0.1:15"]
            fallback_pool = "sorry"
            [pool.answering]
            backends = ["127.0.0.1:16"]
            [pool.idle]
            backends = ["127.0.0.1:17"]
        "#;
        let config = weir_config::parse("weir.toml", config).unwrap_or_else(|report| panic!("{report}"));
        let snapshot = Snapshot::compile(Arc::new(config), &Default::default(), None, 1);
        for (pool, expected) in [
            ("app", ": clients get 503 (listener web), pool sorry serves in its place (listener web)"),
            ("bare", ": clients get 503 (listener web)"),
            ("relayed", ": connections are not served (listener raw)"),
            ("answering", ": new flows are not served (listener names)"),
            ("idle", ""),
        ] {
            assert_eq!(what_follows(&snapshot, pool), expected, "{pool}");
        }
    }
}
