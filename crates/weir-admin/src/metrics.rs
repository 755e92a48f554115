//! Fills the table of metrics from the cells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use weir_balance::State;
use weir_config::{Protocol, RouteAction, SqliMode};
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::http::cache::Cache;
use weir_quic::counts::{Counts as QuicCounts, DROP_NAMES};
use weir_stats::Counter;
use weir_stats::expose::{self, Exposition, Metric};
use weir_stats::table::{
    BackendCells, CODE_CLASSES, CacheResult, Compressed, End, Handshake, ListenerCells, PoolCells, Rejected,
    SqliVerdict,
};

use crate::process;
use weir_control::acme::{Blame, Standing};
use weir_control::control::Control;
use weir_control::reload::Verdict;
use weir_control::timestamp::Timestamp;
use weir_state::{Backend, Listener, Pool};

/// One scrape.
pub(crate) fn text(control: &Control) -> String {
    let compiled = control.compiled();
    let snapshot = &compiled.snapshot;
    let mut out = Exposition::default();
    about_weir(&mut out, control, snapshot.generation);
    listeners(&mut out, control, &compiled);
    backends(&mut out, &snapshot.listeners, &snapshot.pools);
    pools(&mut out, control, &snapshot.pools);
    if let Some(cache) = &compiled.cache {
        about_cache(&mut out, cache);
    }
    about_process(&mut out, control);
    out.into_text()
}

fn about_weir(out: &mut Exposition, control: &Control, generation: u64) {
    out.family(&expose::BUILD_INFO).sample(&[env!("CARGO_PKG_VERSION")], 1.0);
    out.single(&expose::CONFIG_GENERATION, generation as f64);
    let last = control.last_reload();
    // Before the first reload the config that the process was started with is in force: that counts as a
    // success.
    out.single(
        &expose::LAST_RELOAD_SUCCESSFUL,
        f64::from(u8::from(last.as_ref().is_none_or(|last| last.result.is_good()))),
    );
    let time = last.map_or(control.started(), |last| last.time);
    out.single(&expose::LAST_RELOAD_TIMESTAMP, time.unix_seconds());
    let mut reloads = out.family(&expose::RELOADS);
    for verdict in Verdict::ALL {
        reloads.sample(&[verdict.word()], control.reload_count(verdict) as f64);
    }
    out.single(&expose::WORKERS, control.workers() as f64);
    out.single(&expose::SESSIONS, control.sessions() as f64);
    out.single(&expose::PANICS, control.panics() as f64);
    out.single(&expose::LOG_LOST, control.lost_log_lines() as f64);
    quic(out, control.quic_counts());
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
    out.single(&expose::QUIC_EARLY, sum(|counts| &counts.early_count));
}

fn listeners(out: &mut Exposition, control: &Control, compiled: &CompiledSnapshot) {
    let listeners = &compiled.snapshot.listeners[..];
    let counter = |out: &mut Exposition, metric: &'static Metric, count: fn(&ListenerCells) -> &Counter| {
        let mut family = out.family(metric);
        for listener in listeners {
            family.sample(&[&listener.config.name], listener.cells.sum(|cells| count(cells).total()) as f64);
        }
    };
    requests(out, listeners);
    let mut open = out.family(&expose::CONNECTIONS);
    for listener in listeners {
        open.sample(&[&listener.config.name], f64::from(listener.connections.open()));
    }
    counter(out, &expose::CONNECTIONS_TOTAL, |cells| &cells.connections);
    let mut bytes = out.family(&expose::BYTES);
    for listener in listeners {
        let (name, cells) = (&*listener.config.name, &listener.cells);
        bytes.sample(&[name, "received"], cells.sum(|cells| cells.bytes_received.total()) as f64);
        bytes.sample(&[name, "sent"], cells.sum(|cells| cells.bytes_sent.total()) as f64);
    }
    let mut rejected = out.family(&expose::REJECTED);
    for listener in listeners {
        for reason in Rejected::ALL {
            let count = listener.cells.sum(|cells| cells.rejected[*reason as usize].total());
            rejected.sample(&[&listener.config.name, reason.word()], count as f64);
        }
    }
    screens(out, compiled);
    let mut ends = out.family(&expose::ENDS);
    for listener in listeners {
        for end in End::ALL {
            let count = listener.cells.sum(|cells| cells.ends[*end as usize].total());
            ends.sample(&[&listener.config.name, end.word()], count as f64);
        }
    }
    let mut cache = out.family(&expose::CACHE_REQUESTS);
    for listener in listeners.iter().filter(|listener| listener.keeps()) {
        for result in CacheResult::ALL {
            let count = listener.cells.sum(|cells| cells.cache[*result as usize].total());
            cache.sample(&[&listener.config.name, result.word()], count as f64);
        }
    }
    tls(out, listeners);
    acme(out, control);
    compression(out, listeners);
    counter(out, &expose::LOG_DROPPED, |cells| &cells.log_dropped);
}

/// Those that speak HTTP: what counts requests would be zeros for the others, and a quantile of nothing is no
/// number.
fn of_http(listeners: &[Arc<Listener>]) -> impl Iterator<Item = &Arc<Listener>> {
    listeners.iter().filter(|listener| listener.config.protocol() == Protocol::Http)
}

fn requests(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mut requests = out.family(&expose::REQUESTS);
    for listener in of_http(listeners) {
        for (class, word) in CODE_CLASSES.iter().enumerate() {
            requests.sample(
                &[&listener.config.name, word],
                listener.cells.sum(|cells| cells.requests[class].total()) as f64,
            );
        }
    }
    let mut durations = out.family(&expose::REQUEST_DURATION);
    for listener in of_http(listeners) {
        durations
            .histogram(&[&listener.config.name], &listener.cells.histogram(|cells| &cells.request_seconds));
    }
}

fn screens(out: &mut Exposition, compiled: &CompiledSnapshot) {
    let listeners = &compiled.snapshot.listeners[..];
    let mut would = out.family(&expose::WOULD_REJECT);
    for listener in of_http(listeners) {
        for reason in Rejected::WOULD {
            let count = listener.cells.sum(|cells| cells.would_reject[*reason as usize].total());
            would.sample(&[&listener.config.name, reason.word()], count as f64);
        }
    }
    let mut overflow = out.family(&expose::RATE_LIMIT_OVERFLOW);
    let with_screens = compiled.listeners();
    for (listener, compiled) in with_screens.filter(|(it, _)| it.config.protocol() == Protocol::Http) {
        overflow.sample(&[&listener.config.name], compiled.rate_limit_overflow() as f64);
    }
    let asks = |listener: &&Arc<Listener>| {
        let of_routes = listener.config.routes.iter().map(|route| route.sqli.mode);
        of_routes.chain([listener.config.http().sqli.mode]).any(|mode| mode != SqliMode::Off)
    };
    let mut sqli = out.family(&expose::SQLI);
    for listener in of_http(listeners).filter(asks) {
        for verdict in SqliVerdict::ALL {
            let count = listener.cells.sum(|cells| cells.sqli[*verdict as usize].total());
            sqli.sample(&[&listener.config.name, verdict.word()], count as f64);
        }
    }
}

fn compression(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    // Zeros of listeners that never compress would tell nobody anything.
    let compressing = || {
        listeners.iter().filter(|listener| {
            let config = &listener.config;
            config.http().compress.is_some() || config.routes.iter().any(|route| route.compress.is_some())
        })
    };
    let mut responses = out.family(&expose::COMPRESSED);
    for listener in compressing() {
        for compressed in Compressed::ALL {
            let count = listener.cells.sum(|cells| cells.compressed[*compressed as usize].total());
            responses.sample(&[&listener.config.name, compressed.word()], count as f64);
        }
    }
    let mut bytes = out.family(&expose::COMPRESSION_BYTES);
    for listener in compressing() {
        let (name, cells) = (&*listener.config.name, &listener.cells);
        let plain = cells.sum(|cells| cells.compression_plain_bytes.total());
        let encoded = cells.sum(|cells| cells.compression_encoded_bytes.total());
        bytes.sample(&[name, "plain"], plain as f64);
        bytes.sample(&[name, "encoded"], encoded as f64);
    }
}

fn tls(out: &mut Exposition, listeners: &[Arc<Listener>]) {
    let mut handshakes = out.family(&expose::TLS_HANDSHAKES);
    for listener in listeners.iter().filter(|listener| listener.tls.is_some()) {
        for result in Handshake::ALL {
            let count = listener.cells.sum(|cells| cells.handshakes[*result as usize].total());
            handshakes.sample(&[&listener.config.name, result.word()], count as f64);
        }
    }
    let mut expiry = out.family(&expose::CERTIFICATE_EXPIRY);
    for listener in listeners {
        for certificate in listener.tls.iter().flat_map(|tls| tls.certificates()) {
            if let Some(time) = certificate.not_after {
                let file = certificate.file.to_string_lossy();
                expiry.sample(&[&listener.config.name, &file], time as f64);
            }
        }
    }
}

fn acme(out: &mut Exposition, control: &Control) {
    let standings: Vec<_> = control.orders().standings();
    let standings = || standings.iter().map(|(file, standing)| (file.to_string_lossy(), standing));
    let mut orders = out.family(&expose::ACME_ORDERS);
    for (file, standing) in standings() {
        orders.sample(&[&file, "issued"], standing.issued_count as f64);
        for blame in Blame::ALL {
            orders.sample(&[&file, blame.word()], standing.failed_counts[blame as usize] as f64);
        }
    }
    let mut last = out.family(&expose::ACME_LAST_SUCCESSFUL);
    for (file, standing) in standings() {
        last.sample(&[&file], f64::from(u8::from(standing.failures_in_a_row == 0)));
    }
    let mut gauge = |metric, moment: fn(&Standing) -> Option<SystemTime>| {
        let mut family = out.family(metric);
        for (file, standing) in standings() {
            if let Some(moment) = moment(standing) {
                family.sample(&[&file], Timestamp::of(moment).unix_seconds());
            }
        }
    };
    gauge(&expose::ACME_NEXT, |standing| standing.next);
    gauge(&expose::ACME_CAME, |standing| standing.came);
}

/// Whether requests are forwarded to the pool.
fn takes_requests(pool: &Pool, listeners: &[Arc<Listener>]) -> bool {
    of_http(listeners).any(|listener| {
        let mut of_routes = listener.config.routes.iter().map(|route| &route.action);
        listener.config.pool.as_ref() == Some(&pool.config.name)
            || of_routes.any(|action| matches!(action, RouteAction::Pool(name) if *name == pool.config.name))
    })
}

fn backends(out: &mut Exposition, listeners: &[Arc<Listener>], pools: &[Arc<Pool>]) {
    let each = |value: &mut dyn FnMut(&Pool, usize, &Backend)| {
        for pool in pools {
            pool.backends.iter().enumerate().for_each(|(index, backend)| value(pool, index, backend));
        }
    };
    let gauge = |out: &mut Exposition, metric: &'static Metric, read: fn(&Pool, usize, &Backend) -> f64| {
        let mut family = out.family(metric);
        each(&mut |pool, index, backend| {
            family.sample(&[&pool.config.name, &backend.address], read(pool, index, backend));
        });
    };
    let counter = |out: &mut Exposition, metric: &'static Metric, count: fn(&BackendCells) -> &Counter| {
        let mut family = out.family(metric);
        each(&mut |pool, _, backend| {
            let total = backend.cells.sum(|cells| count(cells).total());
            family.sample(&[&pool.config.name, &backend.address], total as f64);
        });
    };
    gauge(out, &expose::BACKEND_UP, |pool, index, _| {
        f64::from(u8::from(pool.balance.state(index) == State::Ready))
    });
    let mut healthy = out.family(&expose::BACKEND_HEALTHY);
    for pool in pools {
        for backend in pool.balance.status() {
            let is_healthy = f64::from(u8::from(backend.is_healthy()));
            healthy.sample(&[&pool.config.name, &backend.address], is_healthy);
        }
    }
    gauge(out, &expose::BACKEND_WEIGHT, |_, _, backend| f64::from(backend.balance.weight()));
    gauge(out, &expose::BACKEND_CONNECTIONS, |_, _, backend| {
        let ended = backend.cells.sum(|cells| cells.connections_ended.total());
        backend.cells.sum(|cells| cells.connections.total()).saturating_sub(ended) as f64
    });
    gauge(out, &expose::BACKEND_IN_FLIGHT, |_, _, backend| f64::from(backend.balance.in_flight()));
    counter(out, &expose::BACKEND_CONNECTIONS_TOTAL, |cells| &cells.connections);
    counter(out, &expose::BACKEND_CONNECT_FAILURES, |cells| &cells.connect_failures);
    let mut requests = out.family(&expose::BACKEND_REQUESTS);
    each(&mut |pool, _, backend| {
        for (class, word) in CODE_CLASSES.iter().enumerate() {
            let count = backend.cells.sum(|cells| cells.requests[class].total());
            requests.sample(&[&pool.config.name, &backend.address, word], count as f64);
        }
    });
    responses(out, listeners, pools);
    let mut bytes = out.family(&expose::BACKEND_BYTES);
    each(&mut |pool, _, backend| {
        let (pool, address, cells) = (&*pool.config.name, &*backend.address, &backend.cells);
        bytes.sample(&[pool, address, "received"], cells.sum(|cells| cells.bytes_received.total()) as f64);
        bytes.sample(&[pool, address, "sent"], cells.sum(|cells| cells.bytes_sent.total()) as f64);
    });
    let mut handshakes = out.family(&expose::BACKEND_TLS);
    each(&mut |pool, _, backend| {
        if backend.tls.is_some() {
            let mut put = |result, count: fn(&BackendCells) -> &Counter| {
                let total = backend.cells.sum(|cells| count(cells).total());
                handshakes.sample(&[&pool.config.name, &backend.address, result], total as f64);
            };
            put("full", |cells| &cells.tls_full);
            put("resumed", |cells| &cells.tls_resumed);
            put("failed", |cells| &cells.tls_failures);
        }
    });
    counter(out, &expose::BACKEND_FAILURES, |cells| &cells.failures);
    counter(out, &expose::BACKEND_EJECTIONS, |cells| &cells.ejections);
}

fn responses(out: &mut Exposition, listeners: &[Arc<Listener>], pools: &[Arc<Pool>]) {
    let backends = || {
        let pools = pools.iter().filter(|pool| takes_requests(pool, listeners));
        pools.flat_map(|pool| pool.backends.iter().map(move |backend| (&*pool.config.name, backend)))
    };
    let mut reused = out.family(&expose::BACKEND_REUSED);
    for (pool, backend) in backends() {
        let total = backend.cells.sum(|cells| cells.reused.total());
        reused.sample(&[pool, &backend.address], total as f64);
    }
    let mut responses = out.family(&expose::BACKEND_RESPONSE);
    for (pool, backend) in backends() {
        let histogram = backend.cells.histogram(|cells| &cells.response_seconds);
        responses.histogram(&[pool, &backend.address], &histogram);
    }
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
    }
    let mut durations = out.family(&expose::PROBE_DURATION);
    for (pool, backend, found) in &findings {
        if let Some(last) = found.history.first() {
            durations.sample(&[&pool.config.name, &backend.address], last.seconds);
        }
    }
    let counter = |out: &mut Exposition, metric: &'static Metric, count: fn(&PoolCells) -> &Counter| {
        let mut family = out.family(metric);
        for pool in pools {
            family.sample(&[&pool.config.name], pool.cells.sum(|cells| count(cells).total()) as f64);
        }
    };
    counter(out, &expose::RETRIES, |cells| &cells.retries);
    counter(out, &expose::REDISPATCHES, |cells| &cells.redispatches);
    counter(out, &expose::QUEUED, |cells| &cells.queued);
    counter(out, &expose::LAST_RESORT, |cells| &cells.last_resort);
    let mut depth = out.family(&expose::QUEUE_DEPTH);
    for pool in pools {
        depth.sample(&[&pool.config.name], f64::from(pool.queue.depth()));
    }
}

const STATES: [State; 6] =
    [State::Ready, State::WeightZero, State::Draining, State::Ejected, State::Down, State::Maintenance];

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
}
