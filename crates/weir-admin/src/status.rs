//! The state of the whole process as one value: what `GET /v1/status`, `weir status` and the status page
//! show.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_balance::{AdminState, Health, State, TierKind};
use weir_io::at::At;
use weir_io::clock;
use weir_stats::table::{BackendCells, CODE_CLASSES, PoolCells, Rejected};
use weir_stats::{Counter, Histogram, PerWorker};
use weir_tls::Facts;

use crate::maps::{self, MapStatus};
use crate::memory::{self, MemoryStatus};
pub use crate::names::NameStatus;
use crate::on_demand::{self, OnDemandStatus};
use crate::token_keys::{self, TokenKeysStatus};
use weir_control::acme::OrderStatus;
use weir_control::cluster::seen::PoolSeen;
pub use weir_control::cluster::seen::{ClusterStatus, MemberStatus};
use weir_control::control::Control;
use weir_control::dns::GroupStatus;
use weir_control::health::{AgentFindings, Findings};
pub use weir_control::peers::{PeerStatus, PeersStatus};
use weir_control::reload::Outcome;
use weir_control::timestamp::Timestamp;
use weir_state::plane::Placement;
use weir_state::sockets;
use weir_state::{Backend, Listener, Origin, Pool};

/// The whole status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of Weir.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// `serving` or `draining`.
    pub phase: String,
    /// Whether the previous process, before an upgrade, is still finishing its work, which this status does
    /// not include.
    #[serde(default)]
    pub process_before: bool,
    /// When the process started.
    pub started: Timestamp,
    /// Time since then, in seconds.
    pub uptime_seconds: f64,
    /// Worker threads.
    pub workers: usize,
    /// Where the config came from.
    pub config_source: String,
    /// Generation of the config in force.
    pub generation: u64,
    /// Client connections and UDP flows open now.
    pub sessions: u64,
    /// How the memory budget is used; `None` from an older process.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// Parts of the service that are in maintenance.
    #[serde(default)]
    pub maintenance: Vec<String>,
    /// Maps, in the order of the config.
    #[serde(default)]
    pub maps: Vec<MapStatus>,
    /// Rate limits that are counted together with other Weirs; `None` without `[peers]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersStatus>,
    /// Fetched keys for tokens, in the order of the config.
    #[serde(default)]
    pub token_keys: Vec<TokenKeysStatus>,
    /// Access logs whose lines are held in memory, each with the reason.
    #[serde(default)]
    pub waiting_logs: Vec<String>,
    /// The last reload; `None` before the first.
    pub last_reload: Option<Outcome>,
    /// Listeners, in the order of the config.
    pub listeners: Vec<ListenerStatus>,
    /// Pools, in the order of the config.
    pub pools: Vec<PoolStatus>,
}

/// One listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// `http`, `tcp` or `udp`.
    pub protocol: String,
    /// `proxy` or `kernel`: the plane that carries its packets.
    pub plane: String,
    /// Why it is on the proxy plane although it asks for another, or what its own plane can't do; `None` if
    /// there is nothing to say.
    pub plane_reason: Option<String>,
    /// The interfaces whose packets it gets on the kernel plane, or that its sockets are bound to; empty if
    /// they are bound to none.
    pub interfaces: Vec<String>,
    /// The addresses where it accepts.
    pub bind: Vec<String>,
    /// The pool for requests that match no route.
    pub pool: Option<String>,
    /// Number of routes.
    pub route_count: usize,
    /// Client connections open now.
    pub connections: u32,
    /// Limit of client connections.
    pub max_connections: u32,
    /// Connections accepted so far.
    pub connections_total: u64,
    /// Requests answered, by status class; classes without any are left out.
    pub requests: BTreeMap<String, u64>,
    /// Requests refused, by reason; reasons without any are left out.
    pub rejected: BTreeMap<String, u64>,
    /// Bytes from clients.
    pub bytes_received: u64,
    /// Bytes to clients.
    pub bytes_sent: u64,
    /// Times from the first byte of a request to the last byte of its response.
    pub request_seconds: Option<Quantiles>,
    /// Its TLS certificates, in the order of the config. Ordered ones come last, whether they have arrived or
    /// not.
    pub certificates: Vec<CertificateStatus>,
    /// Certificates ordered on demand, by their `acme`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_demand: Vec<OnDemandStatus>,
}

/// One certificate of a listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The file as configured, or where the certificate is stored.
    pub file: String,
    /// Its names, or the names ordered.
    pub names: Vec<String>,
    /// Start of its validity; `None` if it has not arrived or does not say.
    pub not_before: Option<Timestamp>,
    /// End of its validity; `None` as for `not_before`.
    pub not_after: Option<Timestamp>,
    /// Seconds until its end; negative when it has expired.
    pub expires_in_seconds: Option<f64>,
    /// Whether an OCSP response is stapled.
    pub is_stapled: bool,
    /// The state of its order; `None` if it is not obtained by ACME.
    pub acme: Option<OrderStatus>,
}

/// Upper bounds of quantiles since the start of the process, in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half are faster.
    pub p50: f64,
    /// Nine of ten are faster.
    pub p90: f64,
    /// 99 of 100 are faster.
    pub p99: f64,
}

/// One pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// The algorithm's name.
    pub balance: String,
    /// Backends that may be chosen now.
    pub ready_count: usize,
    /// The tier that picks try first: `ordinary`, `panic`, `backup`, `last-resort`, or `none`.
    pub serving_from: String,
    /// Exchanges waiting for a backend.
    pub queue_depth: u32,
    /// Retries: attempts after the first.
    pub retries: u64,
    /// Backends in the order of the config; those found otherwise come last.
    pub backends: Vec<BackendStatus>,
    /// The names of the config that resolve to several backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<NameStatus>,
    /// The monitored state of its cluster; `None` if the config fixes the primary, and for pools without
    /// MySQL servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Why connections to its backends could not be made from its `source` or `interface`, if that happened
    /// within the last minute. Such a failure is not counted against a backend. `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cannot_leave: Option<String>,
}

/// One backend of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    /// As configured.
    pub address: String,
    /// The socket address in use; `None` while the name is unresolved.
    pub resolved: Option<String>,
    /// `ready`, `weight-zero`, `draining`, `leaving`, `ejected`, `down` or `maintenance`.
    pub state: String,
    /// Why it is not ready; empty when it is.
    pub reason: String,
    /// The operator's state: `ready`, `drain` or `maintenance`.
    pub admin: String,
    /// The verdict of the probes: `unknown`, `up` or `down`.
    pub health: String,
    /// Used only when no ordinary backend is up.
    pub backup: bool,
    /// `primary` or `secondary`; `None` if backends have no roles, or its role is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Found through the MySQL group, not named in the config.
    #[serde(default, skip_serializing_if = "is_false")]
    pub found: bool,
    /// How it came into its pool: `config`, `group` (of its MySQL servers), `name` (a name resolved to it) or
    /// `api` (added lastingly).
    #[serde(default)]
    pub origin: String,
    /// The name that resolved to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Weight in force, before slow start.
    pub weight: u32,
    /// Share of weight and limit in force, percent; below 100 during slow start.
    pub ramp_percent: u32,
    /// Requests in flight now.
    pub in_flight: u32,
    /// Limit of requests in flight; `None` without a limit.
    pub max_connections: Option<u32>,
    /// Connections open now, idle ones included.
    pub connections: u64,
    /// Requests sent to it, by status class.
    pub requests: BTreeMap<String, u64>,
    /// Connections that failed.
    pub connect_failures: u64,
    /// Failures that passive health counted.
    pub failures: u64,
    /// How often it was ejected.
    pub ejections: u64,
    /// Of these, for failing much more often than the others (`success_rate`).
    #[serde(default)]
    pub outliers: u64,
    /// Seconds until its ejection ends; `None` when not ejected.
    pub ejected_for_seconds: Option<f64>,
    /// Times from sending the request to receiving the head of the response.
    pub response_seconds: Option<Quantiles>,
    /// The results of its probes.
    pub probes: Findings,
    /// The answers of its agent; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentFindings>,
}

/// Collects the whole status. Costs a pass over all counters; nothing on the data path waits for it.
pub fn of(control: &Control) -> Status {
    let snapshot = control.snapshot();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        phase: control.phase().word().to_owned(),
        started: control.started(),
        process_before: control.has_process_before(),
        uptime_seconds: control.uptime().as_secs_f64(),
        workers: control.proxy().workers(),
        config_source: control.source_name(),
        generation: snapshot.generation,
        sessions: control.sessions(),
        memory: Some(memory::of(control)),
        maps: maps::of(control),
        peers: control.sharing().status(),
        token_keys: token_keys::of(control),
        waiting_logs: control.waiting_log_words(),
        maintenance: control.maintenance_words(),
        last_reload: control.last_reload(),
        listeners: snapshot.listeners.iter().map(|it| listener(control, it)).collect(),
        pools: snapshot.pools.iter().map(|it| pool(control, it)).collect(),
    }
}

fn listener(control: &Control, listener: &Listener) -> ListenerStatus {
    let (config, cells) = (&listener.config, &listener.cells);
    let placement = control.kernel().placements().0.get(&config.name).cloned();
    let is_in_kernel = placement == Some(Placement::Kernel);
    let leaves = |seen: &weir_control::kernel::Seen| {
        seen.listeners.get(&config.name).is_some_and(|listener| listener.is_leaving)
    };
    let seen = control.kernel().seen().filter(|seen| is_in_kernel || leaves(seen));
    let flows = seen.as_ref().and_then(|seen| Some(seen.listeners.get(&config.name)?.open)).unwrap_or(0);
    ListenerStatus {
        name: config.name.clone(),
        protocol: config.protocol().word().to_owned(),
        plane: if is_in_kernel { "kernel" } else { "proxy" }.to_owned(),
        plane_reason: match placement {
            Some(Placement::Kernel) => seen.as_ref().and_then(|seen| {
                let told =
                    [unattached, absent, refused_backend, unanswered_backend].map(|tell| tell(config, seen));
                told.into_iter().flatten().reduce(|first, more| format!("{first}; {more}"))
            }),
            other => {
                let leaves =
                    seen.is_some().then(|| format!("leaves the kernel plane: {flows} flows go on there"));
                let why = other.and_then(|placement| match placement {
                    Placement::Proxy(reason) => Some(reason),
                    Placement::Kernel => None,
                });
                let told = [why, leaves, lost_interfaces(control, config)];
                told.into_iter().flatten().reduce(|first, more| format!("{first}; {more}"))
            }
        },
        interfaces: match seen {
            Some(seen) => seen.interfaces.clone(),
            None => sockets::interfaces_of(config).map(|name| name.to_string()).collect(),
        },
        bind: config.bind.iter().map(ToString::to_string).collect(),
        pool: config.pool.clone(),
        route_count: config.routes.len(),
        connections: listener.connections.open() + u32::try_from(flows).unwrap_or(u32::MAX),
        max_connections: config.max_connections,
        connections_total: cells.total(|cells| &cells.connections),
        requests: by_word(cells, &CODE_CLASSES, |cells| &cells.requests),
        rejected: by_word(cells, Rejected::WORDS, |cells| &cells.rejected[..]),
        bytes_received: cells.total(|cells| &cells.bytes_received),
        bytes_sent: cells.total(|cells| &cells.bytes_sent),
        request_seconds: quantiles(cells, |cells| &cells.request_seconds),
        certificates: certificates(control, listener),
        on_demand: on_demand::status(listener),
    }
}

/// The interfaces that its sockets are bound to and that are gone, in words.
fn lost_interfaces(control: &Control, config: &weir_config::Listener) -> Option<String> {
    let names: Vec<_> = sockets::interfaces_of(config).collect();
    let lost = control.lost_interfaces(names.iter().map(|name| &**name));
    (!lost.is_empty()).then(|| format!("gone, and nobody comes by it until it is back: {}", lost.join(", ")))
}

/// The interfaces of a listener where no packets are taken, and why.
fn unattached(config: &weir_config::Listener, seen: &weir_control::kernel::Seen) -> Option<String> {
    let patterns = &config.interfaces;
    let is_mine = |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name));
    let told = seen.unattached.iter().filter(|(name, _)| is_mine(name));
    told.map(|(name, why)| format!("no packets are taken at {name}: {why}"))
        .reduce(|first, more| format!("{first}; {more}"))
}

/// The interfaces named by a listener that can't take packets.
fn absent(config: &weir_config::Listener, seen: &weir_control::kernel::Seen) -> Option<String> {
    let absent = &seen.listeners.get(&config.name)?.absent;
    absent.iter().map(ToString::to_string).reduce(|first, more| format!("{first}; {more}"))
}

/// A backend whose answers bypass the plane; one example is enough.
fn unanswered_backend(config: &weir_config::Listener, seen: &weir_control::kernel::Seen) -> Option<String> {
    seen.listeners.get(&config.name)?.unanswered.first().map(ToString::to_string)
}

/// Why a backend gets no packets although it may be up.
fn refused_backend(config: &weir_config::Listener, seen: &weir_control::kernel::Seen) -> Option<String> {
    let is_mine = |pool: &String| config.pool.as_ref() == Some(pool);
    let found = seen.backends.iter().find(|((pool, _), backend)| is_mine(pool) && backend.is_this_host);
    found.map(|((_, address), _)| format!("backend {address} is this host itself: it gets no packets"))
}

fn certificates(control: &Control, listener: &Listener) -> Vec<CertificateStatus> {
    let Some(tls) = &listener.tls else { return Vec::new() };
    let mut all: Vec<_> = tls.certificates().iter().map(certificate).collect();
    for acme in listener.config.tls.iter().flat_map(|tls| tls.ordered()) {
        let file = weir_tls::acme::file(acme);
        let name = file.display().to_string();
        if !all.iter().any(|certificate| certificate.file == name) {
            let (file, names) = (file.clone(), acme.domains.clone());
            all.push(certificate(&Facts { file, names, ..Facts::default() }));
        }
        for certificate in all.iter_mut().filter(|certificate| certificate.file == name) {
            certificate.acme = control.orders().standing(&file).map(|standing| standing.status(acme));
        }
    }
    all
}

/// The current state of a certificate.
pub(crate) fn certificate(facts: &Facts) -> CertificateStatus {
    let moment = |seconds: Option<i64>| {
        Some(Timestamp::of(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds?).ok()?)))
    };
    CertificateStatus {
        file: facts.file.display().to_string(),
        names: facts.names.clone(),
        not_before: moment(facts.not_before),
        not_after: moment(facts.not_after),
        expires_in_seconds: facts.not_after.map(|ends| ends as f64 - Timestamp::now().unix_seconds()),
        is_stapled: facts.is_stapled,
        acme: None,
    }
}

/// The current state of a pool.
pub fn pool(control: &Control, pool: &Pool) -> PoolStatus {
    let standing = pool.balance.status();
    let backends = pool.backends.iter().zip(&standing);
    PoolStatus {
        name: pool.config.name.clone(),
        balance: pool.config.balance.word().to_owned(),
        ready_count: standing.iter().filter(|backend| backend.state == State::Ready).count(),
        serving_from: pool.balance.tier().map_or("none", TierKind::word).to_owned(),
        queue_depth: pool.queue.depth(),
        retries: pool.cells.total(|cells: &PoolCells| &cells.retries),
        backends: backends.map(|(it, standing)| backend(control, pool, it, standing)).collect(),
        names: names(control, pool),
        cluster: control.watch().seen(&pool.config.name).map(|seen| cluster(pool, &seen)),
        cannot_leave: pool.local_end.as_ref().and_then(|departure| departure.hindrance_at(clock::now())),
    }
}

/// The names of a pool that resolve to several backends.
fn names(control: &Control, pool: &Pool) -> Vec<NameStatus> {
    let status = |group: GroupStatus| {
        let is_of = |it: &&Arc<Backend>| matches!(&it.origin, Origin::Name(name) if **name == *group.name);
        let of_name = || pool.backends.iter().filter(is_of);
        NameStatus {
            backend_count: of_name().count(),
            leaving_count: of_name().filter(|it| it.balance.is_leaving()).count(),
            error: group.error.clone(),
            ttl_seconds: group.ttl.map(|ttl| ttl.as_secs_f64()),
            name: group.name,
        }
    };
    control.names().groups(&pool.config.name).into_iter().map(status).collect()
}

/// The state of a pool's cluster, with the facts that its servers reported.
fn cluster(pool: &Pool, seen: &PoolSeen) -> ClusterStatus {
    let mut status = seen.status();
    for member in &mut status.members {
        let backend = pool.backends.iter().find(|backend| backend.address == member.address);
        if let Some(facts) = backend.and_then(|backend| backend.server.load_full()) {
            member.version = Some(String::from_utf8_lossy(&facts.version).into_owned());
            member.uuid = facts.uuid.as_deref().map(str::to_owned);
        }
    }
    status
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The current state of the backend at this index of a pool.
pub fn backend_of(control: &Control, pool: &Pool, index: usize) -> BackendStatus {
    backend(control, pool, &pool.backends[index], &pool.balance.status_of(index))
}

fn backend(
    control: &Control,
    pool: &Pool,
    backend: &Backend,
    standing: &weir_balance::BackendStatus,
) -> BackendStatus {
    let cells = &backend.cells;
    let total = |counter: fn(&BackendCells) -> &Counter| cells.total(counter);
    let probes = control.board().findings(pool, backend);
    let left = |until: std::time::Duration| until.checked_sub(clock::now()).map(|left| left.as_secs_f64());
    BackendStatus {
        address: backend.address.clone(),
        resolved: backend.resolved.at().map(|at| match at {
            At::Inet(address) => weir_config::show_backend(address),
            at @ At::Unix(_) => at.to_string(),
        }),
        state: standing.state.word().to_owned(),
        reason: reason(control, pool, backend, standing, &probes),
        admin: standing.admin.word().to_owned(),
        health: health_word(standing.health).to_owned(),
        backup: standing.backup,
        role: standing.role.map(|role| role.word().to_owned()),
        found: backend.origin == Origin::Group,
        origin: backend.origin.word().to_owned(),
        name: match &backend.origin {
            Origin::Name(name) => Some(name.to_string()),
            _ => None,
        },
        weight: standing.weight,
        ramp_percent: standing.ramp_percent,
        in_flight: standing.in_flight + in_kernel(control, pool, backend),
        max_connections: backend.balance.max_connections(),
        connections: total(|cells| &cells.connections)
            .saturating_sub(total(|cells| &cells.connections_ended)),
        requests: by_word(cells, &CODE_CLASSES, |cells| &cells.requests),
        connect_failures: total(|cells| &cells.connect_failures),
        failures: total(|cells| &cells.failures),
        ejections: total(|cells| &cells.ejections) + backend.balance.outliers(),
        outliers: backend.balance.outliers(),
        ejected_for_seconds: standing.ejected_until.and_then(left),
        response_seconds: quantiles(cells, |cells| &cells.response_seconds),
        probes,
        agent: control.board().agent_findings(backend),
    }
}

/// Flows of a backend in the kernel, as last read.
pub(crate) fn in_kernel(control: &Control, pool: &Pool, backend: &Backend) -> u32 {
    let (seen, address) = (control.kernel().seen(), backend.resolved.address());
    let open = seen
        .zip(address)
        .and_then(|(seen, address)| Some(seen.backends.get(&(pool.config.name.clone(), address))?.open));
    open.map_or(0, |open| u32::try_from(open).unwrap_or(u32::MAX))
}

/// Why the backend at this index of a pool is not ready, in one line; empty if it is.
pub(crate) fn reason_of(control: &Control, pool: &Pool, index: usize) -> String {
    let backend = &pool.backends[index];
    reason(control, pool, backend, &pool.balance.status_of(index), &control.board().findings(pool, backend))
}

/// Why a backend is not ready, in one line.
fn reason(
    control: &Control,
    pool: &Pool,
    backend: &Backend,
    standing: &weir_balance::BackendStatus,
    probes: &Findings,
) -> String {
    let by_agent = |what: &str| {
        let last = control.board().agent_findings(backend);
        let last = last.and_then(|agent| agent.history.into_iter().find(|asked| asked.good));
        last.map_or_else(
            || format!("its agent: {what}"),
            |last| format!("its agent: {what}, it says {}", last.detail),
        )
    };
    match standing.state {
        State::Ready => String::new(),
        State::WeightZero if standing.weight > 0 => by_agent("0 % of its weight"),
        State::WeightZero => "its weight is 0".to_owned(),
        State::Draining if standing.admin == AdminState::Ready => by_agent("drain"),
        State::Draining => "an operator drains it".to_owned(),
        State::Leaving => "its name stands for it no more; what runs there goes on".to_owned(),
        State::Maintenance if standing.admin != AdminState::Maintenance => by_agent("maintenance"),
        State::Maintenance => "an operator took it out".to_owned(),
        State::Ejected => {
            let last = control.ejection_reason(&pool.config.name, &backend.address);
            last.map_or_else(
                || "traffic to it failed".to_owned(),
                |last| format!("traffic to it failed, the last: {last}"),
            )
        }
        State::Down if !backend.resolved.is_known() => {
            let error = control.names().error(&backend.address);
            format!("dns: {}", error.as_deref().unwrap_or("not resolved yet"))
        }
        State::Down if standing.agent.is_down => by_agent("down"),
        State::Down if standing.health == Health::Unknown && matches!(backend.origin, Origin::Name(_)) => {
            "no probe has found it up yet".to_owned()
        }
        State::Down => {
            let bad = probes.history.iter().find(|probed| !probed.good);
            bad.map_or_else(|| "its probes fail".to_owned(), |probed| probed.detail.clone())
        }
    }
}

/// Counts by word, without zeros.
fn by_word<T: Default>(
    cells: &PerWorker<T>,
    words: &[&str],
    counts: impl Fn(&T) -> &[Counter],
) -> BTreeMap<String, u64> {
    let counted = |index: usize| cells.total(|cells| &counts(cells)[index]);
    let all = words.iter().enumerate().map(|(index, word)| ((*word).to_owned(), counted(index)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn quantiles<T: Default>(cells: &PerWorker<T>, histogram: impl Fn(&T) -> &Histogram) -> Option<Quantiles> {
    let sum = cells.histogram(histogram);
    // Times above the last bound are shown as the last bound: JSON has no infinity.
    let at = |q| {
        sum.quantile_seconds(q).map(|seconds| {
            seconds.min(weir_stats::HistogramSum::upper_bound_seconds(weir_stats::BUCKET_COUNT - 2))
        })
    };
    Some(Quantiles { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)? })
}

/// The word for a probe verdict.
pub fn health_word(health: Health) -> &'static str {
    match health {
        Health::Unknown => "unknown",
        Health::Up => "up",
        Health::Down => "down",
    }
}

/// Parses the operator's word; the error says what was expected.
pub fn admin_state(word: &str) -> Result<AdminState, String> {
    AdminState::from_word(word)
        .ok_or_else(|| format!("state `{word}` is unknown, expected ready, drain or maintenance"))
}
