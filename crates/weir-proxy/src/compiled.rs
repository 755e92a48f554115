//! What the proxy plane derives from a snapshot before its workers serve it: routes, screens and the cache,
//! once for all workers.
//!
//! This is specific to the proxy plane: another plane derives other things from the same snapshot. State with
//! a history (rate limits, stored responses) is taken over from what was compiled before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use weir_config::{Bind, Config, Speaks};
use weir_http::{AddedField, Limits};
use weir_io::clock;
use weir_io::temporary;
pub use weir_io::temporary::TemporaryFiles;
use weir_screen::Screen;
pub use weir_screen::{AdaptiveState, Debtor, LimitRule, LimitStatus, RefusedKey, Whose};
pub use weir_screen::{KeyDebt, LimitId, LimitLook, SharedKey, SharedLimit, TokenCount};
use weir_state::memory;
use weir_state::{Listener, Snapshot};

use crate::access_log::{AccessLog, Logs};
use crate::http::by_route::ByRoute;
use crate::http::cache::Cache;
use crate::http::edit_table::EditTable;
use crate::http::limits::limits_of;
use crate::http::route::{PoolNames, RouteTable};
use crate::http::screen;
use crate::timers::ExchangeTimers;

/// A snapshot, ready to be served by the workers.
pub struct CompiledSnapshot {
    /// What it was compiled from.
    pub snapshot: Arc<Snapshot>,
    /// The compiled part of each of its listeners, in the same order.
    pub listeners: Vec<Arc<CompiledListener>>,
    /// The response cache; `None` if no route caches.
    pub cache: Option<Arc<Cache>>,
    /// Where bodies are put that should not be held in memory; `None` if the config has no folder for them.
    pub files: Option<Arc<TemporaryFiles>>,
    /// Each worker's share of the memory for buffers, in bytes: the part of the budget that the cache does
    /// not take.
    pub worker_buffer_bytes: u64,
    /// What one client may have of them on each worker.
    pub worker_client_bytes: u64,
}

/// The compiled part of a listener.
pub struct CompiledListener {
    /// The `alt-svc` field, which tells clients that HTTP/3 is available, or no longer is; `None` if it is
    /// not and was not before.
    pub alternative: Option<AddedField>,
    /// The listener's screen, which every request passes before its route's, or every connection; `None`
    /// without one.
    pub screen: Option<Box<Screen>>,
    /// The edits of header fields; `None` without any.
    pub edits: Option<Box<EditTable>>,
    /// The routes, which decide which pool takes a request.
    pub routes: RouteTable,
    /// The limits for the HTTP/1.1 parser.
    pub limits: Limits,
    /// The timers of exchanges, unless a pool or a route overrides them.
    pub timers: ExchangeTimers,
    /// Where its access log lines go; `None` if they only go to the log of `[log]` in its default form, or
    /// nowhere.
    pub logs: Option<Box<Logs>>,
    /// The counters by route; `None` without any.
    pub by_route: Option<Box<ByRoute>>,
    /// See [`CompiledSnapshot::files`].
    pub files: Option<Arc<TemporaryFiles>>,
    /// Whether any pool sends PROXY headers, which tell backends which address clients connected to.
    pub sends_proxy: bool,
}

impl CompiledSnapshot {
    /// Compiles for `workers`. `before` is what was served until now; its cache gets the limits of the new
    /// config. `access_log` has already taken over the new log settings.
    pub fn compile(
        snapshot: Arc<Snapshot>,
        before: Option<&CompiledSnapshot>,
        workers: usize,
        access_log: &AccessLog,
    ) -> CompiledSnapshot {
        let cache = cache_of(&snapshot.config, before);
        let files = files_of(&snapshot.config, before);
        let pools = PoolNames::of(&snapshot);
        let pool_configs: Vec<Arc<weir_config::Pool>> =
            snapshot.pools.iter().map(|pool| pool.config.clone()).collect();
        let told = snapshot.config.told_by_pool();
        let old: HashMap<&str, &CompiledListener> =
            before.into_iter().flat_map(CompiledSnapshot::named_listeners).collect();
        let compile = |listener: &Arc<Listener>| {
            let old = old.get(listener.config.name.as_str()).copied();
            let edits = EditTable::compile(&listener.config, &pool_configs, &told);
            let mut compiled =
                CompiledListener::compile(listener, (&pool_configs, edits), &pools, cache.as_ref(), old);
            compiled.files = files.clone();
            compiled.logs = Logs::compile(&snapshot.config, &listener.config, access_log);
            let counted = old.and_then(|old| old.by_route.as_deref());
            compiled.by_route = ByRoute::compile(&listener.config, counted, workers);
            Arc::new(compiled)
        };
        let listeners = snapshot.listeners.iter().map(compile).collect();
        drop((pools, told));
        let worker_buffer_bytes = memory::for_buffers(&snapshot.config) / workers as u64;
        let worker_client_bytes = memory::for_client(&snapshot.config, worker_buffer_bytes);
        CompiledSnapshot { listeners, cache, files, worker_buffer_bytes, worker_client_bytes, snapshot }
    }

    /// The same for a snapshot that differs only in the backends of a pool.
    pub fn with_pools_of(&self, snapshot: Arc<Snapshot>) -> CompiledSnapshot {
        CompiledSnapshot {
            snapshot,
            listeners: self.listeners.clone(),
            cache: self.cache.clone(),
            files: self.files.clone(),
            worker_buffer_bytes: self.worker_buffer_bytes,
            worker_client_bytes: self.worker_client_bytes,
        }
    }

    /// Restores the limits of the cache and of body files, which are otherwise those of whatever was compiled
    /// last.
    pub fn limit_shared(&self) {
        if let Some(cache) = &self.cache {
            limit(cache, &self.snapshot.config);
        }
        if let (Some(files), Some(limits)) = (&self.files, limits_of_files(&self.snapshot.config)) {
            files.limit(limits);
        }
    }

    /// Each listener, with its compiled part.
    pub fn listeners(&self) -> impl Iterator<Item = (&Arc<Listener>, &Arc<CompiledListener>)> {
        self.snapshot.listeners.iter().zip(&self.listeners)
    }

    /// The compiled part of the listener of that name.
    pub fn listener(&self, name: &str) -> Option<&CompiledListener> {
        self.named_listeners().find(|(other, _)| *other == name).map(|(_, compiled)| compiled)
    }

    fn named_listeners(&self) -> impl Iterator<Item = (&str, &CompiledListener)> {
        self.listeners().map(|(listener, compiled)| (listener.config.name.as_str(), &**compiled))
    }
}

/// The cache lives on as long as there are routes that cache.
fn cache_of(config: &Config, before: Option<&CompiledSnapshot>) -> Option<Arc<Cache>> {
    let budget_bytes = memory::for_cache(config)?;
    let cache = before.and_then(|before| before.cache.clone());
    let cache = cache.unwrap_or_else(|| Cache::new(budget_bytes, config.cache.background_fetches));
    limit(&cache, config);
    Some(cache)
}

/// The body files are kept across reloads as long as there is a folder for them.
fn files_of(config: &Config, before: Option<&CompiledSnapshot>) -> Option<Arc<TemporaryFiles>> {
    let limits = limits_of_files(config)?;
    match before.and_then(|before| before.files.clone()) {
        Some(files) => {
            files.limit(limits);
            Some(files)
        }
        None => Some(TemporaryFiles::new(limits)),
    }
}

fn limits_of_files(config: &Config) -> Option<temporary::Limits> {
    let runtime = &config.runtime;
    Some(temporary::Limits {
        directory: runtime.buffer_directory.as_ref()?.into(),
        bytes: runtime.buffer_files_bytes,
        files: u64::from(runtime.buffer_files_count),
        threads: runtime.buffer_threads as usize,
    })
}

/// Gives the cache the limits of `config`.
fn limit(cache: &Cache, config: &Config) {
    if let Some(budget_bytes) = memory::for_cache(config) {
        cache.resize(budget_bytes);
    }
    cache.background().set_most(config.cache.background_fetches);
}

impl CompiledListener {
    fn compile(
        listener: &Listener,
        (pool_configs, edits): (&[Arc<weir_config::Pool>], Option<Box<EditTable>>),
        pools: &PoolNames<'_>,
        cache: Option<&Arc<Cache>>,
        old: Option<&CompiledListener>,
    ) -> CompiledListener {
        let config = &listener.config;
        CompiledListener {
            alternative: alternative(listener),
            screen: screen::compile(
                &asked_of_clients(config),
                &pools.seeds,
                old.and_then(|old| old.screen.as_deref()),
            ),
            routes: RouteTable::compile(config, pools, cache, edits.as_deref(), old.map(|old| &old.routes)),
            edits,
            limits: limits_of_heads(config),
            timers: ExchangeTimers::of(&config.timeout, None, None),
            logs: None,
            by_route: None,
            files: None,
            sends_proxy: pool_configs.iter().any(|pool| pool.send_proxy.is_some()),
        }
    }

    /// How often a key found no bucket of its own, summed over all rate limits (count).
    pub fn rate_limit_overflow(&self) -> u64 {
        let of_routes = self.routes.routes().iter().filter_map(|route| route.screen.as_deref());
        of_routes.chain(self.screen.as_deref()).map(Screen::overflowed).sum()
    }
}

impl CompiledListener {
    /// Makes rate limits forget what `debtor` owes: those of the named route, or the listener's own and those
    /// of all its routes. Gives in how many limits it owed something, and how many limits there are.
    pub fn clear_debts(&self, route: Option<&str>, debtor: &Debtor<'_>) -> (usize, usize) {
        let now = clock::now();
        let routes = self.routes.routes().iter().filter(|it| route.is_none_or(|name| *it.name == *name));
        let own = self.screen.as_deref().filter(|_| route.is_none());
        let screens = routes.filter_map(|route| route.screen.as_deref()).chain(own);
        let each = screens.map(|screen| screen.clear_debts(debtor, now));
        each.fold((0, 0), |(owed, all), (more, others)| (owed + more, all + others))
    }

    /// The state of the rate limits, the listener's own first and then those of its routes, or only those of
    /// the named route: each with the route's name, and at most `most` of the keys that it has refused. Takes
    /// milliseconds for a limit with room for a million keys.
    pub fn limits(&self, route: Option<&str>, most: usize) -> Vec<(Option<Arc<str>>, LimitStatus)> {
        let now = clock::now();
        let own = self.screen.as_deref().filter(|_| route.is_none()).map(|screen| (None, screen));
        let routes = self.routes.routes().iter().filter(|it| route.is_none_or(|name| *it.name == *name));
        let of_routes = routes.filter_map(|it| Some((Some(it.name.clone()), it.screen.as_deref()?)));
        let screens = own.into_iter().chain(of_routes);
        let each = |(name, screen): (Option<Arc<str>>, &Screen)| {
            screen.limits(most, now).into_iter().map(move |status| (name.clone(), status))
        };
        screens.flat_map(each).collect()
    }

    /// The limits that are shared with other Weirs: those of the listener with this name, and of its routes.
    pub fn shared_limits(&self, listener: &str) -> Vec<SharedLimit> {
        let own = self.screen.iter().flat_map(|screen| screen.shared_limits(&[listener]));
        let routes =
            self.routes.routes().iter().filter_map(|route| Some((&*route.name, route.screen.as_deref()?)));
        own.chain(routes.flat_map(|(route, screen)| screen.shared_limits(&[listener, route]))).collect()
    }

    /// The state of adaptive limits, by the route's name; the name is empty for the listener's own.
    pub fn adaptive_limits(&self) -> impl Iterator<Item = (&str, AdaptiveState)> {
        let of_routes = self.routes.routes().iter().map(|route| (&*route.name, route.screen.as_deref()));
        let all = of_routes.chain([("", self.screen.as_deref())]);
        all.filter_map(|(name, screen)| Some((name, screen?.adaptive()?)))
    }
}

/// The configured limits for the HTTP/1.1 parser; the parser's defaults if the listener does not speak HTTP.
fn limits_of_heads(config: &weir_config::Listener) -> Limits {
    match &config.speaks {
        Speaks::Http(http) => limits_of(&http.limits),
        Speaks::Tcp | Speaks::Udp | Speaks::Mysql(_) => Limits::default(),
    }
}

/// The listener's screen for requests, or for connections.
fn asked_of_clients(config: &weir_config::Listener) -> Cow<'_, weir_config::Screen> {
    match &config.speaks {
        Speaks::Http(http) => Cow::Borrowed(&http.screen),
        Speaks::Tcp | Speaks::Udp | Speaks::Mysql(_) => Cow::Owned(config.client_screen.settings()),
    }
}

/// The `alt-svc` field for clients of other HTTP versions. Clients may remember it for a day; if HTTP/3 fails
/// they return to HTTP/2 by themselves (RFC 7838 section 2.4).
fn alternative(listener: &Listener) -> Option<AddedField> {
    let tls = listener.tls.as_deref()?;
    if tls.quic_config().is_none() {
        // Clients that remember HTTP/3 would try it in vain.
        return AddedField::new(b"alt-svc", b"clear").ok().filter(|_| listener.has_told_h3());
    }
    let port = listener.config.bind.iter().find_map(Bind::inet)?.first.port();
    AddedField::new(b"alt-svc", format!("h3=\":{port}\"; ma=86400").as_bytes()).ok()
}
