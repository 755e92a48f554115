//! The state of certificates ordered on demand, for the operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use weir_state::Listener;
use weir_stats::expose::{self, Exposition};
use weir_tls::ServerTls;
use weir_tls::on_demand::{NameResult, NameVerdict, OnDemand, WaitResult};

/// Most failed names in the status (count): a hostile client may have caused thousands.
const FAILURES: usize = 20;

/// The state of one `acme` with `on_demand` of a listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OnDemandStatus {
    /// The certificate authority's directory.
    pub directory: String,
    /// Handshakes that wait for a certificate not in the store.
    pub waiting: usize,
    /// Names that are being checked or ordered now.
    pub names: usize,
    /// Certificates in memory; more may be in the store.
    pub certificates: usize,
    /// Names whose order failed and that are not retried for now, longest wait first; at most 20.
    pub failures: Vec<FailedName>,
}

/// A name for which no certificate could be obtained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedName {
    /// The name.
    pub name: String,
    /// Consecutive failed attempts.
    pub count: u32,
    /// Why the last one failed.
    pub error: String,
    /// Seconds until it is tried again, if it is asked for then.
    pub again_in_seconds: f64,
}

/// All of a listener, in the order of the config.
pub(crate) fn status(listener: &Listener) -> Vec<OnDemandStatus> {
    of(listener).iter().map(one).collect()
}

fn one(on_demand: &Arc<OnDemand>) -> OnDemandStatus {
    let [waiting, names, certificates] = on_demand.sizes();
    let now = Instant::now();
    let failures = on_demand.failures(FAILURES).into_iter().map(|(name, failed)| FailedName {
        name,
        count: failed.count,
        again_in_seconds: failed.until.saturating_duration_since(now).as_secs_f64(),
        error: failed.reason,
    });
    OnDemandStatus {
        directory: on_demand.acme().directory.clone(),
        waiting,
        names,
        certificates,
        failures: failures.collect(),
    }
}

fn of(listener: &Listener) -> &[Arc<OnDemand>] {
    listener.tls.as_ref().map_or(&[], |tls| tls.on_demand())
}

/// Metrics by directory; nothing if there is none.
pub(crate) fn metrics(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mut all: Vec<&Arc<OnDemand>> = Vec::new();
    for each in listeners.iter().flat_map(|listener| of(listener)) {
        if !all.iter().any(|other| Arc::ptr_eq(each, other)) {
            all.push(each);
        }
    }
    let mut by_directory: BTreeMap<&str, Vec<&OnDemand>> = BTreeMap::new();
    for each in all {
        by_directory.entry(&each.acme().directory).or_default().push(each);
    }
    let sum = |all: &[&OnDemand], value: &dyn Fn(&OnDemand) -> u64| -> f64 {
        all.iter().map(|each| value(each)).sum::<u64>() as f64
    };
    let mut names = out.family(&expose::ON_DEMAND_NAMES);
    for (directory, all) in &by_directory {
        for result in NameResult::ALL {
            names.sample(&[directory, result.word()], sum(all, &|it| it.counts.names(result)));
        }
    }
    let mut waits = out.family(&expose::ON_DEMAND_HANDSHAKES);
    for (directory, all) in &by_directory {
        for result in WaitResult::ALL {
            waits.sample(&[directory, result.word()], sum(all, &|it| it.counts.waits(result)));
        }
    }
    let sizes = [&expose::ON_DEMAND_WAITING, &expose::ON_DEMAND_UNDER_WAY, &expose::ON_DEMAND_HELD];
    for (index, metric) in sizes.into_iter().enumerate() {
        let mut family = out.family(metric);
        for (directory, all) in &by_directory {
            family.sample(&[directory], sum(all, &|it| it.sizes()[index] as u64));
        }
    }
    let mut evictions = out.family(&expose::ON_DEMAND_EVICTIONS);
    for (directory, all) in &by_directory {
        evictions.sample(&[directory], sum(all, &|it| it.counts.evictions()));
    }
}

/// What happens to a handshake whose name gets no certificate.
const OTHERWISE: &str = "the handshake is served as one for an unknown name";

/// What would happen to a handshake for `name` (lower case).
pub(crate) struct OnDemandHandshake {
    /// In words.
    pub words: String,
    /// Whether it is served like one for an unknown name.
    pub is_served_otherwise: bool,
}

/// What would happen to a handshake for `name` (lower case); `None` if no on-demand certificate applies.
pub(crate) fn explain(tls: &ServerTls, name: &str) -> Option<OnDemandHandshake> {
    let on_demand = tls.orders(name)?;
    let wait = on_demand.settings().wait;
    let expect = |words: String| Some(OnDemandHandshake { words, is_served_otherwise: false });
    let words = match on_demand.verdict(name) {
        NameVerdict::Kept => return expect("on demand: in memory".to_owned()),
        NameVerdict::Begun => {
            return expect(format!("on demand: under way; the handshake waits up to {wait:?}"));
        }
        NameVerdict::Unknown => {
            let by = "from the store, or else ordered if `ask` allows it";
            return expect(format!("on demand: {by}; the handshake waits up to {wait:?}"));
        }
        NameVerdict::Away => {
            let by = "from the store; if not there";
            return expect(format!("on demand: {by}, {OTHERWISE}, for the authority is away"));
        }
        NameVerdict::Refused => "`ask` refused it a moment ago".to_owned(),
        NameVerdict::Failed(reason) => format!("none came a moment ago ({reason})"),
        NameVerdict::Full => "as many names as may be are looked for in the store".to_owned(),
        NameVerdict::Closed => "no names are taken any more".to_owned(),
    };
    let words = format!("on demand: {words}; {OTHERWISE}");
    Some(OnDemandHandshake { words, is_served_otherwise: true })
}
