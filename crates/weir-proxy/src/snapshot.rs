//! What is true right now, as the workers see it: compiled from the config by the control side, immutable but for the live
//! cells inside, and shared by all workers.
//!
//! Whatever has a history (counters, health, connections in flight) lives in `Arc`s that a new snapshot takes over from the
//! one before, by listener name and by pool name and backend address. So a reload loses nothing.

mod change;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use weir_balance::Refreshed;
use weir_config::Config;
use weir_http::AddedField;
use weir_io::clock;
use weir_screen::Screen;
use weir_stats::PerWorker;
use weir_stats::table::{BackendCells, ListenerCells, PoolCells};
use weir_tls::acme::Challenges;
use weir_tls::{BackendTls, ClientTls, Loaded, ServerTls};

pub use self::change::PoolChange;
use crate::counterparts::Counterparts;
use crate::http::cache::Cache;
use crate::http::route::RouteTable;
use crate::http::screening;
use crate::memory;
use crate::queue::WaitingRoom;
use crate::seats::Seats;

/// Everything a worker needs to serve, in one consistent piece.
pub struct Snapshot {
    /// Counts from 1 and grows with every reload that took effect.
    pub generation: u64,
    /// What it was compiled from.
    pub config: Arc<Config>,
    /// In the order of the config.
    pub listeners: Vec<Arc<Listener>>,
    /// In the order of the config.
    pub pools: Vec<Arc<Pool>>,
    /// What is kept of responses; `None` where no route keeps any.
    pub cache: Option<Arc<Cache>>,
    /// Each worker's part of the memory that is for buffers: what the cache does not take of the budget.
    pub worker_buffer_bytes: u64,
    displaced: Displaced,
}

/// Live backends with the settings that a snapshot has changed.
type Displaced = Vec<(Arc<weir_balance::Backend>, weir_balance::BackendSettings)>;

/// One listener and its live cells.
pub struct Listener {
    /// As configured.
    pub config: Arc<weir_config::Listener>,
    /// What TLS is served with; `None` where it is not.
    pub tls: Option<Arc<ServerTls>>,
    /// What certificate authorities are waiting to see.
    pub challenges: Arc<Challenges>,
    /// `alt-svc`, which tells clients that HTTP/3 is spoken here too; `None` where it is not.
    pub alternative: Option<AddedField>,
    /// What is asked of every request, before its route is asked; `None` for nothing.
    pub screen: Option<Box<Screen>>,
    /// Which pool takes a request, and why.
    pub routes: RouteTable,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<ListenerCells>>,
    /// Client connections open now, over all workers; bounded by `max_connections`.
    pub seats: Arc<Seats>,
    client_seats: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// One connection of one client, counted until dropped.
pub struct ClientSeat {
    address: IpAddr,
    seats: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// The client is at `max_connections_per_client`.
#[derive(Debug)]
pub struct TooManyFromClient;

impl Drop for ClientSeat {
    fn drop(&mut self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = seats.get_mut(&self.address) {
            *taken -= 1;
            if *taken == 0 {
                seats.remove(&self.address);
            }
        }
    }
}

/// One pool and its live state.
pub struct Pool {
    /// As configured.
    pub config: Arc<weir_config::Pool>,
    /// The choice among its backends.
    pub balance: Arc<weir_balance::Pool>,
    /// In the order of the config; a `Pick`'s index points in here.
    pub backends: Vec<Arc<Backend>>,
    /// What TLS is spoken with; `None` where it is not.
    tls: Option<Arc<ClientTls>>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<PoolCells>>,
    /// Exchanges that wait because every backend is at `max_connections`.
    pub waiting_room: Arc<WaitingRoom>,
}

/// One backend of one pool.
pub struct Backend {
    /// As configured; its name in logs and metrics.
    pub address: String,
    /// Its state as the balancer sees it.
    pub balance: Arc<weir_balance::Backend>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<BackendCells>>,
    /// Where connections go.
    pub resolved: Arc<Resolved>,
    /// What TLS is spoken with; `None` where it is not.
    pub tls: Option<BackendTls>,
}

/// The socket address a backend's name stands for at the moment.
pub struct Resolved {
    address: ArcSwapOption<SocketAddr>,
    moves: AtomicU32,
}

impl Resolved {
    /// For a literal address it is known at once; for a host name the control side finds it out.
    pub fn of(name: &str) -> Resolved {
        let address = name.parse::<SocketAddr>().ok().map(Arc::new);
        Resolved { address: ArcSwapOption::from(address), moves: AtomicU32::new(0) }
    }

    /// `None` while a host name has never been resolved: the backend can't be connected to.
    #[inline]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.load().as_deref().copied()
    }

    /// Called by the control side when a name resolved to another address.
    pub fn set(&self, address: SocketAddr) {
        self.address.store(Some(Arc::new(address)));
        // After the address: whoever sees the new count connects to the new address.
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// How often the address has changed. To be asked before [`Self::address`], to know of a connection whether it still goes where
    /// the name points.
    #[inline]
    pub fn moves(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }
}

impl Snapshot {
    /// Compiles `config`, taking over live state from `previous`. Pools that it says nothing new of are the very same.
    ///
    /// `tls` is what was read of the files that `config` names. `workers` is the number of copies new counters get; it must be the same for the life of
    /// the process. Weights and limits of backends that were there before are in force at once: see [`Self::undo`].
    pub fn compile(
        config: Arc<Config>,
        tls: &Loaded,
        previous: Option<&Snapshot>,
        workers: usize,
    ) -> Snapshot {
        let mut displaced = Vec::new();
        let mut old =
            Counterparts::new(previous.map_or(&[][..], |old| &old.pools[..]), |pool| &*pool.config.name);
        let pools: Vec<Arc<Pool>> = config
            .pools
            .iter()
            .map(|pool| {
                let old = old.find(&*pool.name);
                Pool::compile(pool, tls.pool(&pool.name), old, workers, &mut displaced)
            })
            .collect();
        let cache = cache_of(&config, previous);
        let mut old = Counterparts::new(previous.map_or(&[][..], |old| &old.listeners[..]), |listener| {
            &*listener.config.name
        });
        let listeners = config
            .listeners
            .iter()
            .map(|listener| {
                let old = old.find(&*listener.name);
                Arc::new(Listener::compile(listener, tls, old, (&pools, cache.as_ref()), workers))
            })
            .collect();
        let worker_buffer_bytes = memory::for_buffers(&config) / workers as u64;
        let generation = previous.map_or(1, |old| old.generation + 1);
        Snapshot { generation, config, listeners, pools, cache, worker_buffer_bytes, displaced }
    }

    /// Gives backends that the snapshot before has, too, back the weights and limits that they had there, for a snapshot that does not come into force.
    /// Seen at the next refresh of their pools.
    pub fn undo(&self) {
        for (backend, settings) in &self.displaced {
            backend.reconfigure(*settings);
        }
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.config.name == name)
    }

    /// The listener of that name.
    pub fn listener(&self, name: &str) -> Option<&Arc<Listener>> {
        self.listeners.iter().find(|listener| listener.config.name == name)
    }
}

/// What is kept lives on as long as there are routes that keep something.
fn cache_of(config: &Config, previous: Option<&Snapshot>) -> Option<Arc<Cache>> {
    let budget_bytes = memory::for_cache(config)?;
    let most = config.cache.background_fetches;
    match previous.and_then(|old| old.cache.as_ref()) {
        Some(cache) => {
            cache.resize(budget_bytes);
            cache.background().set_most(most);
            Some(cache.clone())
        }
        None => Some(Cache::new(budget_bytes, most)),
    }
}

impl Pool {
    fn compile(
        config: &Arc<weir_config::Pool>,
        tls: Option<&Arc<ClientTls>>,
        old: Option<&Arc<Pool>>,
        workers: usize,
        displaced: &mut Displaced,
    ) -> Arc<Pool> {
        if let Some(old) = old.filter(|old| old.is_as_configured(config, tls)) {
            return old.clone();
        }
        let mut known =
            Counterparts::new(old.map_or(&[][..], |old| &old.backends[..]), |backend| &*backend.address);
        let compile = |backend: &weir_config::Backend| match known.find(&*backend.address) {
            Some(old) => Backend::compile(backend, tls.map(AsRef::as_ref), old, displaced),
            // Without a server name there is no TLS; `Loaded` lets no such config through.
            None => {
                let tls = tls.and_then(|tls| tls.for_backend(&backend.address, None).ok());
                Arc::new(Backend::new(backend, tls, workers))
            }
        };
        let backends: Vec<Arc<Backend>> = config.backends.iter().map(compile).collect();
        let members = backends.iter().map(|backend| backend.balance.clone()).collect();
        let (settings, now) = (settings_of(config), clock::now());
        let balance = match old {
            Some(old) => old.balance.rebuilt(settings, members, now),
            None => weir_balance::Pool::new(settings, members, now),
        };
        Arc::new(Pool {
            config: config.clone(),
            balance: Arc::new(balance),
            backends,
            tls: tls.cloned(),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            waiting_room: old.map_or_else(Default::default, |old| old.waiting_room.clone()),
        })
    }

    /// Whether `config`, with `tls`, would make the same pool again: nothing was set by hand either.
    fn is_as_configured(&self, config: &weir_config::Pool, tls: Option<&Arc<ClientTls>>) -> bool {
        let has_same_tls = match (&self.tls, tls) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let mut backends = self.backends.iter().zip(&config.backends);
        has_same_tls
            && *self.config == *config
            && backends.all(|(backend, config)| backend.balance.weight() == config.weight)
    }

    /// [`weir_balance::Pool::refresh`]; a change calls those who wait for a backend, since it may have made room.
    pub fn refresh(&self, now: Duration) -> Refreshed {
        let refreshed = self.balance.refresh(now);
        if refreshed.changed {
            self.waiting_room.call_all();
        }
        refreshed
    }
}

/// A day is how long clients may remember it; they come back to HTTP/2 by themselves where it fails (RFC 7838 section 2.4).
fn alternative(config: &weir_config::Listener, tls: &ServerTls) -> Option<AddedField> {
    tls.quic_config()?;
    let port = config.bind.first()?.port();
    AddedField::appending(b"alt-svc", format!("h3=\":{port}\"; ma=86400").as_bytes()).ok()
}

/// What the config says of choosing, in the balancer's terms.
fn settings_of(config: &weir_config::Pool) -> weir_balance::Settings {
    weir_balance::Settings {
        algorithm: config.balance,
        hash_bound: config.hash.bounded,
        slow_start: config.slow_start,
        passive: config.health.passive.map(|passive| weir_balance::Passive {
            errors: passive.errors,
            within: passive.within,
            eject: passive.eject,
            max_ejected: passive.max_ejected,
        }),
        rise: config.health.rise,
        fall: config.health.fall,
        last_resort: config.health.last_resort,
        ..weir_balance::Settings::default()
    }
}

impl Backend {
    fn new(config: &weir_config::Backend, tls: Option<BackendTls>, workers: usize) -> Backend {
        // A new backend's name is resolved before anybody serves it.
        let settings = settings_of_backend(config, true);
        Backend {
            address: config.address.clone(),
            balance: Arc::new(weir_balance::Backend::new(config.address.as_str(), settings)),
            cells: Arc::new(PerWorker::new(workers)),
            resolved: Arc::new(Resolved::of(&config.address)),
            tls,
        }
    }

    /// What becomes of a backend that was there before: the very same unless it is spoken to otherwise.
    fn compile(
        config: &weir_config::Backend,
        tls: Option<&ClientTls>,
        old: &Arc<Backend>,
        displaced: &mut Displaced,
    ) -> Arc<Backend> {
        // A name that has not been resolved stays out over a reload.
        let settings = settings_of_backend(config, old.resolved.address().is_some());
        let before = old.balance.settings();
        if before != settings {
            displaced.push((old.balance.clone(), before));
            old.balance.reconfigure(settings);
        }
        let tls = tls.and_then(|tls| tls.for_backend(&config.address, old.tls.as_ref()).ok());
        let speaks_as_before = match (&old.tls, &tls) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(&one.config, &other.config),
            _ => false,
        };
        if speaks_as_before {
            return old.clone();
        }
        Arc::new(Backend {
            address: old.address.clone(),
            balance: old.balance.clone(),
            cells: old.cells.clone(),
            resolved: old.resolved.clone(),
            tls,
        })
    }
}

fn settings_of_backend(config: &weir_config::Backend, assumed_up: bool) -> weir_balance::BackendSettings {
    weir_balance::BackendSettings {
        weight: config.weight,
        backup: config.backup,
        max_connections: config.max_connections,
        assumed_up,
    }
}

impl Listener {
    fn compile(
        config: &Arc<weir_config::Listener>,
        loaded: &Loaded,
        old: Option<&Arc<Listener>>,
        (pools, cache): (&[Arc<Pool>], Option<&Arc<Cache>>),
        workers: usize,
    ) -> Listener {
        let tls = loaded.listener(&config.name);
        Listener {
            config: config.clone(),
            tls: tls.cloned(),
            challenges: loaded.challenges().clone(),
            alternative: tls.and_then(|tls| alternative(config, tls)),
            screen: screening::compile(&config.http().screen, old.and_then(|old| old.screen.as_deref())),
            routes: RouteTable::compile(config, pools, cache, old.map(|old| &old.routes)),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            seats: old.map_or_else(Default::default, |old| old.seats.clone()),
            client_seats: old.map_or_else(Default::default, |old| old.client_seats.clone()),
        }
    }

    /// Times a key found no bucket of its own, over all its rate limits, count.
    pub fn rate_limit_overflow(&self) -> u64 {
        let of_routes = self.routes.routes().iter().filter_map(|route| route.screen.as_deref());
        of_routes.chain(self.screen.as_deref()).map(Screen::overflowed).sum()
    }

    /// A seat for one more connection of the client at `address`; `Err` when it has as many as `max_connections_per_client`. An IPv6 client is its
    /// /64.
    ///
    /// `Ok(None)` without a limit, and for a trusted proxy, whose connections are those of many: then nothing is counted.
    pub fn seat_client(&self, address: IpAddr) -> Result<Option<ClientSeat>, TooManyFromClient> {
        let Some(limit) = self.config.max_connections_per_client else { return Ok(None) };
        if self.trusts(address) {
            return Ok(None);
        }
        let address = weir_screen::address_key(address);
        let mut seats = self.client_seats.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = seats.entry(address).or_insert(0);
        if *taken >= limit {
            return Err(TooManyFromClient);
        }
        *taken += 1;
        Ok(Some(ClientSeat { address, seats: self.client_seats.clone() }))
    }

    /// Whether any of its routes keeps responses.
    pub fn keeps(&self) -> bool {
        self.config.routes.iter().any(|route| route.cache.is_some())
    }

    /// Whether `peer` must open with a PROXY protocol header; nobody else may (D8: never guessed).
    pub fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        !self.config.accept_proxy.is_empty() && weir_config::contains(&self.config.accept_proxy, peer)
    }

    /// Whether what `peer` says of the client before it is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        weir_config::contains(&self.config.http().trusted_proxies, peer)
    }

    /// Counts a connection in, unless the listener is at its limit.
    pub fn admit(&self) -> bool {
        self.seats.take(self.config.max_connections)
    }

    /// Counts a connection out that [`Self::admit`] let in.
    pub fn leave(&self) {
        self.seats.give_back();
    }

    /// A number that no other listener has and that reloads leave as it is.
    pub fn number(&self) -> usize {
        Arc::as_ptr(&self.seats).addr()
    }
}
