//! Fills the metrics from the counters.

mod kernel;
mod mysql;
mod peers;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_balance::{BackendStatus, State};
use weir_config::{PoolProtocol, Protocol, SqliMode};
use weir_proxy::HedgeRules;
use weir_proxy::access_log::Missing;
use weir_proxy::compiled::TemporaryFiles;
use weir_proxy::compiled::{AdaptiveState, CompiledSnapshot};
use weir_proxy::http::cache::Cache;
use weir_quic::counts::{Counts as QuicCounts, DROP_NAMES};
use weir_stats::expose::{self, Exposition, Metric};
use weir_stats::table::{
    AuthResult, CODE_CLASSES, CacheResult, Compressed, End, FileRefusal, HedgeResult, ListenerCells,
    MirrorResult, PoolCells, Rejected, RetryReason, RouteCells, SqliVerdict,
};
use weir_stats::{Counter, Histogram, PerWorker};

use crate::{maps, on_demand, process, status, token_keys};
use weir_control::control::Control;
use weir_control::reload::ReloadVerdict;
use weir_state::{Backend, Listener, Pool};

/// The text of one scrape.
pub(crate) fn text(control: &Control) -> String {
    let compiled = control.compiled();
    let snapshot = &compiled.snapshot;
    let mut out = Exposition::default();
    about_weir(&mut out, control, snapshot.generation);
    listeners(&mut out, control, &compiled);
    kernel::in_kernel(&mut out, control);
    peers::of_peers(&mut out, control);
    names(&mut out, control, &snapshot.pools);
    backends(&mut out, control, &snapshot.listeners, &snapshot.pools);
    pools(&mut out, control, &snapshot.pools);
    if let Some(cache) = &compiled.cache {
        about_cache(&mut out, cache);
    }
    if let Some(files) = &compiled.files {
        about_files(&mut out, files);
    }
    about_process(&mut out, control);
    out.into_text()
}

fn about_weir(out: &mut Exposition, control: &Control, generation: u64) {
    out.family(&expose::BUILD_INFO).sample(&[env!("CARGO_PKG_VERSION")], 1.0);
    out.single(&expose::CONFIG_GENERATION, generation as f64);
    let last = control.last_reload();
    // Until the first reload, the config from the start of the process is in force: that counts as a success.
    out.single(
        &expose::LAST_RELOAD_SUCCESSFUL,
        f64::from(u8::from(last.as_ref().is_none_or(|last| last.result.is_good()))),
    );
    let time = last.map_or(control.started(), |last| last.time);
    out.single(&expose::LAST_RELOAD_TIMESTAMP, time.unix_seconds());
    let mut reloads = out.family(&expose::RELOADS);
    for verdict in ReloadVerdict::ALL {
        reloads.sample(&[verdict.word()], control.reload_count(verdict) as f64);
    }
    out.single(&expose::WORKERS, control.proxy().workers() as f64);
    out.single(&expose::SESSIONS, control.sessions() as f64);
    of_memory(out, control);
    of_maps(out, control);
    token_keys::metrics(out, &control.snapshot());
    out.single(&expose::BLOCKING_REFUSED, weir_control::blocking::refused() as f64);
    let panics = control.proxy().panics() + weir_control::tasks::panics();
    out.single(&expose::PANICS, panics as f64);
    out.single(&expose::LOG_LOST, control.lost_log_lines() as f64);
    let mut waiting = out.family(&expose::LOG_WAITS);
    for (log, why) in control.waiting_logs() {
        waiting.sample(&[&log], f64::from(u8::from(why.is_some())));
    }
    let mut missing = out.family(&expose::LOG_MISSING);
    for (log, reasons) in control.missing_log_lines() {
        for Missing { reason, lines } in reasons {
            missing.sample(&[&log, reason], lines as f64);
        }
    }
    quic(out, control.proxy().quic_counts());
}

fn of_memory(out: &mut Exposition, control: &Control) {
    let usage = control.proxy().memory();
    out.single(&expose::MEMORY_IN_USE, usage.in_use_bytes as f64);
    out.single(&expose::MEMORY_BUDGET, usage.budget_bytes as f64);
    out.single(&expose::MEMORY_CLIENT_MAX, usage.client_bytes as f64);
    out.single(&expose::MEMORY_LARGEST_CLIENT, usage.largest.map_or(0, |(_, bytes)| bytes) as f64);
    out.single(&expose::MEMORY_CLIENT_REFUSALS, usage.client_refusals as f64);
}

fn of_maps(out: &mut Exposition, control: &Control) {
    let maps = maps::of(control);
    let mut lines = out.family(&expose::MAP_LINES);
    for map in &maps {
        lines.sample(&[&map.name], map.line_count as f64);
    }
    let mut versions = out.family(&expose::MAP_VERSIONS);
    for map in &maps {
        versions.sample(&[&map.name, "applied"], map.applied as f64);
        versions.sample(&[&map.name, "refused"], map.refused as f64);
    }
    let mut stale = out.family(&expose::MAP_STALE);
    for map in &maps {
        stale.sample(&[&map.name], f64::from(u8::from(map.error.is_some())));
    }
}

fn about_cache(out: &mut Exposition, cache: &Cache) {
    out.single(&expose::CACHE_BYTES, cache.store.bytes() as f64);
    out.single(&expose::CACHE_BUDGET, cache.budget_bytes() as f64);
    out.single(&expose::CACHE_LINGERING, cache.store.lingering_bytes() as f64);
    out.single(&expose::CACHE_OBJECTS, cache.store.objects() as f64);
    out.single(&expose::CACHE_EVICTIONS, cache.store.evictions() as f64);
    out.single(&expose::CACHE_PURGED, cache.store.purged() as f64);
    out.single(&expose::CACHE_BACKGROUND, f64::from(cache.background().count()));
    out.single(&expose::CACHE_BACKGROUND_REFUSED, cache.background().refused() as f64);
    out.single(&expose::CACHE_ENCODINGS, cache.encodings() as f64);
}

fn about_files(out: &mut Exposition, files: &TemporaryFiles) {
    out.single(&expose::BUFFER_FILES, files.files() as f64);
    out.single(&expose::BUFFER_FILE_BYTES, files.bytes() as f64);
    out.single(&expose::BUFFER_FILE_LIMIT, files.most_bytes() as f64);
    out.single(&expose::BUFFER_FILES_MADE, files.made() as f64);
    let mut refusals = out.family(&expose::BUFFER_FILE_REFUSALS);
    for reason in FileRefusal::ALL {
        refusals.sample(&[reason.word()], files.refusals(*reason) as f64);
    }
}

fn quic(out: &mut Exposition, workers: &[QuicCounts]) {
    let sum = |count: fn(&QuicCounts) -> &AtomicU64| {
        workers.iter().map(|worker| count(worker).load(Ordering::Relaxed)).sum::<u64>() as f64
    };
    let mut handshakes = out.family(&expose::QUIC_HANDSHAKES);
    handshakes.sample(&["established"], sum(|counts| &counts.established_count));
    handshakes.sample(&["timed_out"], sum(|counts| &counts.timed_out_count));
    handshakes.sample(&["refused"], sum(|counts| &counts.refused_count));
    out.single(&expose::QUIC_RETRIES, sum(|counts| &counts.retried_count));
    out.single(&expose::QUIC_FORWARDED, sum(|counts| &counts.forwarded_count));
    let mut dropped = out.family(&expose::QUIC_DROPPED);
    for (index, name) in DROP_NAMES.iter().enumerate() {
        let count = workers.iter().map(|worker| worker.drops[index].load(Ordering::Relaxed)).sum::<u64>();
        dropped.sample(&[name], count as f64);
    }
    out.single(&expose::QUIC_STATELESS, sum(|counts| &counts.responded_count));
    out.single(&expose::QUIC_MIGRATIONS, sum(|counts| &counts.migrated_count));
    out.single(&expose::QUIC_WITHHELD, sum(|counts| &counts.withheld_count));
    out.single(&expose::QUIC_EARLY, sum(|counts| &counts.early_count));
}

/// Objects with counters, each with its label values.
struct Counted<'c, C>(Vec<(Vec<&'c str>, &'c PerWorker<C>)>);

impl<C: Default> Counted<'_, C> {
    /// Writes one sample per object.
    fn totals(&self, out: &mut Exposition, metric: &'static Metric, count: fn(&C) -> &Counter) {
        let mut family = out.family(metric);
        for (labels, cells) in &self.0 {
            family.sample(labels, cells.total(count) as f64);
        }
    }

    /// Writes one sample per object and word; `count` returns the counter of the word with an index.
    fn worded(
        &self,
        out: &mut Exposition,
        metric: &'static Metric,
        words: impl Iterator<Item = &'static str> + Clone,
        count: impl Fn(&C, usize) -> &Counter,
    ) {
        let mut family = out.family(metric);
        for (labels, cells) in &self.0 {
            for (index, word) in words.clone().enumerate() {
                let labels = [labels, &[word][..]].concat();
                family.sample(&labels, cells.total(|cells| count(cells, index)) as f64);
            }
        }
    }

    /// Writes one sample per object and word of a closed set.
    fn by_word(
        &self,
        out: &mut Exposition,
        metric: &'static Metric,
        words: &'static [&'static str],
        counts: fn(&C) -> &[Counter],
    ) {
        self.worded(out, metric, words.iter().copied(), |cells, index| &counts(cells)[index]);
    }

    /// Writes one sample per object and counter, with the counter's word.
    fn each(&self, out: &mut Exposition, metric: &'static Metric, counts: &[(&'static str, Count<C>)]) {
        self.worded(out, metric, counts.iter().map(|(word, _)| *word), |cells, index| counts[index].1(cells));
    }

    /// Writes one histogram per object.
    fn histograms(&self, out: &mut Exposition, metric: &'static Metric, of: fn(&C) -> &Histogram) {
        let mut family = out.family(metric);
        for (labels, cells) in &self.0 {
            family.histogram(labels, &cells.histogram(of));
        }
    }
}

/// Reads a counter from a cell.
type Count<C> = fn(&C) -> &Counter;

/// Writes one sample of each.
fn gauge<'l, const LABELS: usize>(
    out: &mut Exposition,
    metric: &'static Metric,
    samples: impl IntoIterator<Item = ([&'l str; LABELS], f64)>,
) {
    let mut family = out.family(metric);
    for (labels, value) in samples {
        family.sample(&labels, value);
    }
}

fn counted<'l>(listeners: impl Iterator<Item = &'l Arc<Listener>>) -> Counted<'l, ListenerCells> {
    Counted(listeners.map(|it| (vec![&*it.config.name], &*it.cells)).collect())
}

/// The listeners that speak HTTP: request counters would be zero for the others, and a quantile of nothing is
/// no number.
fn of_http(listeners: &[Arc<Listener>]) -> impl Iterator<Item = &Arc<Listener>> {
    listeners.iter().filter(|listener| listener.config.protocol() == Protocol::Http)
}

fn listeners(out: &mut Exposition, control: &Control, compiled: &CompiledSnapshot) {
    let listeners = &compiled.snapshot.listeners[..];
    let (all, http) = (counted(listeners.iter()), counted(of_http(listeners)));
    http.by_word(out, &expose::REQUESTS, &CODE_CLASSES, |cells| &cells.requests);
    http.histograms(out, &expose::REQUEST_DURATION, |cells| &cells.request_seconds);
    routes(out, compiled);
    let open = |it: &'_ Arc<Listener>| f64::from(it.connections.open());
    gauge(out, &expose::CONNECTIONS, listeners.iter().map(|it| ([&*it.config.name], open(it))));
    all.totals(out, &expose::CONNECTIONS_TOTAL, |cells| &cells.connections);
    all.each(
        out,
        &expose::BYTES,
        &[("received", |cells| &cells.bytes_received), ("sent", |cells| &cells.bytes_sent)],
    );
    all.by_word(out, &expose::REJECTED, Rejected::WORDS, |cells| &cells.rejected[..]);
    screens(out, compiled, listeners);
    all.by_word(out, &expose::ENDS, End::WORDS, |cells| &cells.ends[..]);
    let keeping = counted(listeners.iter().filter(|listener| listener.keeps()));
    keeping.by_word(out, &expose::CACHE_REQUESTS, CacheResult::WORDS, |cells| &cells.cache[..]);
    let of_senders =
        |it: &&Arc<Listener>| it.config.protocol() == Protocol::Udp && !it.config.accept_proxy.is_empty();
    let told = counted(listeners.iter().filter(of_senders));
    told.totals(out, &expose::NAMES_FORGOTTEN, |cells| &cells.names_forgotten);
    mysql::logins(out, listeners);
    tls::tls(out, control, listeners, &compiled.snapshot.pools);
    on_demand::metrics(out, listeners);
    compression(out, listeners);
    all.totals(out, &expose::REPLACED, |cells| &cells.replaced);
    let limited = counted(listeners.iter().filter(|it| {
        it.config.bandwidth.is_some() || it.config.routes.iter().any(|route| route.bandwidth.is_some())
    }));
    limited.each(
        out,
        &expose::THROTTLED,
        &[("sent", |cells| &cells.throttled[0]), ("received", |cells| &cells.throttled[1])],
    );
    all.totals(out, &expose::LOG_DROPPED, |cells| &cells.log_dropped);
}

/// Metrics of routes, for listeners that ask for them.
fn routes(out: &mut Exposition, compiled: &CompiledSnapshot) {
    let of_listener =
        compiled.listeners().filter_map(|(it, compiled)| Some((it, compiled.by_route.as_deref()?)));
    let by_route = of_listener.flat_map(|(listener, by_route)| {
        by_route.iter().map(move |(route, cells)| (vec![&*listener.config.name, route], cells))
    });
    let by_route: Counted<'_, RouteCells> = Counted(by_route.collect());
    by_route.by_word(out, &expose::ROUTE_REQUESTS, &CODE_CLASSES, |cells| &cells.requests);
    by_route.histograms(out, &expose::ROUTE_DURATION, |cells| &cells.request_seconds);
}

fn screens(out: &mut Exposition, compiled: &CompiledSnapshot, listeners: &[Arc<Listener>]) {
    let has_limits = |listener: &Arc<Listener>| {
        listener.config.protocol() == Protocol::Http || !listener.config.client_screen.rate_limit.is_empty()
    };
    let mut would = out.family(&expose::WOULD_REJECT);
    for (labels, cells) in &counted(listeners.iter().filter(|it| has_limits(it))).0 {
        for reason in Rejected::WOULD {
            let count = cells.total(|cells| &cells.would_reject[*reason as usize]);
            would.sample(&[labels[0], reason.word()], count as f64);
        }
    }
    let with_screens = compiled.listeners().filter(|(it, _)| has_limits(it));
    let overflow =
        with_screens.map(|(it, screens)| ([&*it.config.name], screens.rate_limit_overflow() as f64));
    gauge(out, &expose::RATE_LIMIT_OVERFLOW, overflow);
    adaptive_limits(out, compiled);
    let asks = |listener: &&Arc<Listener>| {
        let of_routes = listener.config.routes.iter().map(|route| route.sqli.mode);
        of_routes.chain([listener.config.http().sqli.mode]).any(|mode| mode != SqliMode::Off)
    };
    let asking = counted(of_http(&compiled.snapshot.listeners).filter(asks));
    asking.by_word(out, &expose::SQLI, SqliVerdict::WORDS, |cells| &cells.sqli[..]);
    let guards = |listener: &&Arc<Listener>| {
        let of_routes = listener.config.routes.iter().map(|route| &route.auth);
        of_routes.chain([&listener.config.http().auth]).any(Option::is_some)
    };
    let guarding = counted(of_http(&compiled.snapshot.listeners).filter(guards));
    guarding.by_word(out, &expose::AUTH, AuthResult::WORDS, |cells| &cells.auth[..]);
    guarding.totals(out, &expose::AUTH_FORGOTTEN, |cells| &cells.auth_forgotten);
    let copies = |it: &&Arc<Listener>| it.config.routes.iter().any(|route| route.mirror.is_some());
    let copying = counted(of_http(&compiled.snapshot.listeners).filter(copies));
    copying.by_word(out, &expose::MIRRORED, MirrorResult::WORDS, |cells| &cells.mirrored[..]);
}

/// Metrics of adaptive limits; nothing if there is none.
fn adaptive_limits(out: &mut Exposition, compiled: &CompiledSnapshot) {
    let of_listener = compiled.listeners().flat_map(|(listener, compiled)| {
        compiled.adaptive_limits().map(move |(route, state)| ([&*listener.config.name, route], state))
    });
    let all: Vec<_> = of_listener.collect();
    gauge(out, &expose::ADAPTIVE_LIMIT, all.iter().map(|(labels, state)| (*labels, f64::from(state.limit))));
    let unloaded = |state: &AdaptiveState| state.unloaded.unwrap_or_default().as_secs_f64();
    gauge(out, &expose::ADAPTIVE_UNLOADED, all.iter().map(|(labels, state)| (*labels, unloaded(state))));
}

fn compression(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    // Zeros from listeners that never compress would be useless.
    let compressing = counted(listeners.iter().filter(|listener| {
        let config = &listener.config;
        config.http().compress.is_some() || config.routes.iter().any(|route| route.compress.is_some())
    }));
    compressing.by_word(out, &expose::COMPRESSED, Compressed::WORDS, |cells| &cells.compressed[..]);
    compressing.each(
        out,
        &expose::COMPRESSION_BYTES,
        &[
            ("plain", |cells| &cells.compression_plain_bytes),
            ("encoded", |cells| &cells.compression_encoded_bytes),
        ],
    );
}

/// Whether requests are forwarded to the pool.
fn takes_requests(pool: &Pool, listeners: &[Arc<Listener>]) -> bool {
    of_http(listeners).any(|listener| {
        listener.config.pool.as_ref() == Some(&pool.config.name)
            || listener.config.routes.iter().any(|route| route.may_go_to(&pool.config.name))
    })
}

fn names(out: &mut Exposition, control: &Control, pools: &[Arc<Pool>]) {
    let counts = control.names().counts();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let mut lookups = out.family(&expose::DNS_LOOKUPS);
    for (result, counter) in [("good", &counts.good), ("empty", &counts.empty), ("failed", &counts.failed)] {
        lookups.sample(&[result], count(counter));
    }
    let mut refused = out.family(&expose::DNS_REFUSED);
    for (reason, counter) in [("allow_address", &counts.refused), ("max_members", &counts.left_out)] {
        refused.sample(&[reason], count(counter));
    }
    out.family(&expose::DNS_OTHER_ADDRESS).sample(&[], count(&counts.other_address));
    let mut failed = out.family(&expose::DNS_NAME_FAILED);
    for pool in pools {
        for group in control.names().groups(&pool.config.name) {
            failed.sample(&[&pool.config.name, &group.name], f64::from(u8::from(group.error.is_some())));
        }
    }
}

fn backends(out: &mut Exposition, control: &Control, listeners: &[Arc<Listener>], pools: &[Arc<Pool>]) {
    let all = || pools.iter().flat_map(|pool| pool.backends.iter().map(move |backend| (pool, backend)));
    let counted = |chosen: &dyn Fn(&Pool, &Backend) -> bool| {
        let chosen = all().filter(|(pool, backend)| chosen(pool, backend));
        let named = chosen.map(|(pool, it)| (vec![&*pool.config.name, &*it.address], &*it.cells));
        Counted(named.collect::<Vec<_>>())
    };
    let standing = |out: &mut Exposition, metric, value: fn(&BackendStatus) -> bool| {
        let mut family = out.family(metric);
        for pool in pools {
            for it in pool.balance.status() {
                family.sample(&[&pool.config.name, &it.address], f64::from(u8::from(value(&it))));
            }
        }
    };
    let each = |value: fn(&Backend) -> f64| {
        all().map(move |(pool, it)| ([&*pool.config.name, &*it.address], value(it)))
    };
    let every = counted(&|_, _| true);
    standing(out, &expose::BACKEND_UP, |it| it.state == State::Ready);
    standing(out, &expose::BACKEND_HEALTHY, BackendStatus::is_healthy);
    gauge(out, &expose::BACKEND_WEIGHT, each(|it| f64::from(it.balance.weight())));
    let connections = |it: &Backend| {
        let ended = it.cells.total(|cells| &cells.connections_ended);
        it.cells.total(|cells| &cells.connections).saturating_sub(ended) as f64
    };
    gauge(out, &expose::BACKEND_CONNECTIONS, each(connections));
    let in_flight = all().map(|(pool, it)| {
        let flows = status::in_kernel(control, pool, it);
        ([&*pool.config.name, &*it.address], f64::from(it.balance.in_flight() + flows))
    });
    gauge(out, &expose::BACKEND_IN_FLIGHT, in_flight);
    every.totals(out, &expose::BACKEND_CONNECTIONS_TOTAL, |cells| &cells.connections);
    every.totals(out, &expose::BACKEND_CONNECT_FAILURES, |cells| &cells.connect_failures);
    every.by_word(out, &expose::BACKEND_REQUESTS, &CODE_CLASSES, |cells| &cells.requests);
    let asked = counted(&|pool, _| takes_requests(pool, listeners));
    asked.totals(out, &expose::BACKEND_REUSED, |cells| &cells.reused);
    asked.totals(out, &expose::BACKEND_ENDED_IDLE, |cells| &cells.ended_idle);
    asked.histograms(out, &expose::BACKEND_RESPONSE, |cells| &cells.response_seconds);
    every.each(
        out,
        &expose::BACKEND_BYTES,
        &[("received", |cells| &cells.bytes_received), ("sent", |cells| &cells.bytes_sent)],
    );
    counted(&|_, backend| backend.tls.is_some()).each(
        out,
        &expose::BACKEND_TLS,
        &[
            ("full", |cells| &cells.tls_full),
            ("resumed", |cells| &cells.tls_resumed),
            ("failed", |cells| &cells.tls_failures),
        ],
    );
    counted(&|pool, _| pool.config.protocol.lets_pick()).each(
        out,
        &expose::BACKEND_PICKED,
        &[
            ("h3", |cells| &cells.picked_h3),
            ("h2", |cells| &cells.picked_h2),
            ("h1", |cells| &cells.picked_h1),
        ],
    );
    let over_quic = counted(&|pool, _| pool.config.protocol == PoolProtocol::H3);
    over_quic.totals(out, &expose::BACKEND_FELL_BACK, |cells| &cells.fell_back);
    every.totals(out, &expose::BACKEND_FAILURES, |cells| &cells.failures);
    every.totals(out, &expose::BACKEND_EJECTIONS, |cells| &cells.ejections);
    every.totals(out, &expose::BACKEND_ENDED, |cells| &cells.ended);
}

/// The answers of agents, and ejections by comparison.
fn agents(out: &mut Exposition, control: &Control, pools: &[Arc<Pool>]) {
    let all = || pools.iter().flat_map(|pool| pool.backends.iter().map(move |backend| (pool, backend)));
    let mut outliers = out.family(&expose::BACKEND_OUTLIERS);
    for (pool, backend) in all() {
        outliers.sample(&[&pool.config.name, &backend.address], backend.balance.outliers() as f64);
    }
    let mut asked = out.family(&expose::AGENT_CHECKS);
    for (pool, backend) in all() {
        let Some(found) = control.board().agent_findings(backend) else { continue };
        asked.sample(&[&pool.config.name, &backend.address, "good"], found.good_count as f64);
        asked.sample(&[&pool.config.name, &backend.address, "bad"], found.bad_count as f64);
    }
}

/// Hedged requests, and those that were due to be.
fn hedges(out: &mut Exposition, pools: &[Arc<Pool>]) {
    let counted = Counted(pools.iter().map(|it| (vec![&*it.config.name], &*it.cells)).collect());
    counted.totals(out, &expose::HEDGES, |cells: &PoolCells| &cells.hedges);
    counted.by_word(out, &expose::HEDGE_RESULTS, HedgeResult::WORDS, |cells| &cells.hedge_results);
    let now = weir_io::clock::now();
    let delays = pools.iter().filter_map(|it| {
        let delay = HedgeRules::of(&it.config.retry, None)?.delay(it.balance.response_times(), now)?;
        Some(([&*it.config.name], delay.as_secs_f64()))
    });
    gauge(out, &expose::HEDGE_DELAY, delays);
}

fn pools(out: &mut Exposition, control: &Control, pools: &[Arc<Pool>]) {
    let mut states = out.family(&expose::POOL_BACKENDS);
    for pool in pools {
        let standing = pool.balance.status();
        for state in STATES {
            let count = standing.iter().filter(|backend| backend.state == state).count();
            states.sample(&[&pool.config.name, state.word()], count as f64);
        }
    }
    let findings: Vec<_> = pools
        .iter()
        .flat_map(|pool| {
            pool.backends.iter().map(move |backend| (pool, backend, control.board().findings(pool, backend)))
        })
        .collect();
    let mut probes = out.family(&expose::PROBES);
    for (pool, backend, found) in &findings {
        probes.sample(&[&pool.config.name, &backend.address, "good"], found.good_count as f64);
        probes.sample(&[&pool.config.name, &backend.address, "bad"], found.bad_count as f64);
        probes.sample(&[&pool.config.name, &backend.address, "unsent"], found.unsent_count as f64);
    }
    let durations = findings.iter().filter_map(|(pool, backend, found)| {
        Some(([&*pool.config.name, &*backend.address], found.history.first()?.seconds))
    });
    gauge(out, &expose::PROBE_DURATION, durations);
    agents(out, control, pools);
    let counted = Counted(pools.iter().map(|it| (vec![&*it.config.name], &*it.cells)).collect());
    counted.totals(out, &expose::RETRIES, |cells: &PoolCells| &cells.retries);
    counted.by_word(out, &expose::RETRY_REASONS, RetryReason::WORDS, |cells| &cells.retry_reasons);
    counted.totals(out, &expose::REDISPATCHES, |cells| &cells.redispatches);
    hedges(out, pools);
    counted.totals(out, &expose::BUFFERED_REQUESTS, |cells| &cells.buffered_requests);
    counted.totals(out, &expose::UNBUFFERED_REQUESTS, |cells| &cells.unbuffered_requests);
    counted.totals(out, &expose::READ_AHEAD, |cells| &cells.read_ahead);
    let broken = pools.iter().filter(|it| it.config.breaker.is_some());
    let of_breakers = Counted(broken.clone().map(|it| (vec![&*it.config.name], &*it.cells)).collect());
    of_breakers.totals(out, &expose::BREAKER_OPENED, |cells: &PoolCells| &cells.breaker_opened);
    let now = weir_io::clock::now();
    let open = broken.filter_map(|it| {
        let state = it.balance.breaker()?.0.state(now);
        Some(([&*it.config.name], f64::from(u8::from(state != weir_balance::BreakerState::Closed))))
    });
    gauge(out, &expose::BREAKER_OPEN, open);
    counted.totals(out, &expose::QUEUED, |cells| &cells.queued);
    mysql::waits(out, pools);
    mysql::clusters(out, control, pools);
    counted.totals(out, &expose::FALLBACKS, |cells| &cells.fallbacks);
    counted.totals(out, &expose::LAST_RESORT, |cells| &cells.last_resort);
    counted.totals(out, &expose::PANIC, |cells| &cells.panics);
    let depths = pools.iter().map(|it| ([&*it.config.name], f64::from(it.queue.depth())));
    gauge(out, &expose::QUEUE_DEPTH, depths);
}

const STATES: [State; 7] = [
    State::Ready,
    State::WeightZero,
    State::Draining,
    State::Leaving,
    State::Ejected,
    State::Down,
    State::Maintenance,
];

fn about_process(out: &mut Exposition, control: &Control) {
    let process = process::usage();
    let mut single = |metric, value: Option<f64>| {
        if let Some(value) = value {
            out.single(metric, value);
        }
    };
    single(&expose::PROCESS_CPU, process.cpu_seconds);
    single(&expose::PROCESS_RESIDENT, process.resident_bytes);
    single(&expose::PROCESS_VIRTUAL, process.virtual_bytes);
    single(&expose::PROCESS_OPEN_FDS, process.open_fds);
    single(&expose::PROCESS_MAX_FDS, process.max_fds);
    single(&expose::PROCESS_THREADS, process.threads);
    single(&expose::PROCESS_START, Some(control.started().unix_seconds()));
    single(&expose::OWN_LOG_DROPPED, Some(weir_control::own_log::dropped() as f64));
}
