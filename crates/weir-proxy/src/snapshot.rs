//! What is true right now, as the workers see it: compiled from the config by the control side, immutable but for the live
//! cells inside, and shared by all workers.
//!
//! Whatever has a history (counters, health, connections in flight) lives in `Arc`s that a new snapshot takes over from the
//! one before, by listener name and by pool name and backend address. So a reload loses nothing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use weir_config::Config;
use weir_stats::PerWorker;
use weir_stats::table::{BackendCells, ListenerCells, PoolCells};

use crate::http::route::RouteTable;
use crate::queue::WaitingRoom;

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
}

/// One listener and its live cells.
pub struct Listener {
    /// As configured.
    pub config: weir_config::Listener,
    /// Which pool takes a request, and why.
    pub routes: RouteTable,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<ListenerCells>>,
    /// Client connections open now, over all workers; bounded by `max_connections`.
    pub open_connections: Arc<AtomicU32>,
}

/// One pool and its live state.
pub struct Pool {
    /// As configured.
    pub config: weir_config::Pool,
    /// The choice among its backends.
    pub balance: Arc<weir_balance::Pool>,
    /// In the order of the config; a `Pick`'s index points in here.
    pub backends: Vec<Arc<Backend>>,
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
}

/// The socket address a backend's name stands for at the moment.
pub struct Resolved {
    address: ArcSwapOption<SocketAddr>,
}

impl Resolved {
    /// For a literal address it is known at once; for a host name the control side finds it out.
    pub fn of(name: &str) -> Resolved {
        Resolved { address: ArcSwapOption::from(name.parse::<SocketAddr>().ok().map(Arc::new)) }
    }

    /// `None` while a host name has never been resolved: the backend can't be connected to.
    #[inline]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.load().as_deref().copied()
    }

    /// Called by the control side when a name resolved to another address.
    pub fn set(&self, address: SocketAddr) {
        self.address.store(Some(Arc::new(address)));
    }
}

impl Snapshot {
    /// Compiles `config`, taking over live state from `previous`.
    ///
    /// `workers` is the number of copies new counters get; it must be the same for the life of the process.
    pub fn compile(config: Arc<Config>, previous: Option<&Snapshot>, workers: usize) -> Snapshot {
        let pools: Vec<Arc<Pool>> = config
            .pools
            .iter()
            .map(|pool| Arc::new(Pool::compile(pool, previous.and_then(|old| old.pool(&pool.name)), workers)))
            .collect();
        let listeners = config
            .listeners
            .iter()
            .map(|listener| {
                let old = previous.and_then(|old| old.listener(&listener.name));
                Arc::new(Listener::compile(listener, old, &pools, workers))
            })
            .collect();
        Snapshot { generation: previous.map_or(1, |old| old.generation + 1), config, listeners, pools }
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

impl Listener {
    fn compile(config: &weir_config::Listener, old: Option<&Arc<Listener>>, pools: &[Arc<Pool>], workers: usize) -> Listener {
        Listener {
            config: config.clone(),
            routes: RouteTable::compile(config, pools),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            open_connections: old.map_or_else(Default::default, |old| old.open_connections.clone()),
        }
    }

    /// Whether `peer` must open with a PROXY protocol header; nobody else may (D8: never guessed).
    pub fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        !self.config.accept_proxy.is_empty() && weir_config::contains(&self.config.accept_proxy, peer)
    }

    /// Whether what `peer` says of the client before it is believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        !self.config.trusted_proxies.is_empty() && weir_config::contains(&self.config.trusted_proxies, peer)
    }

    /// Counts a connection in, unless the listener is at its limit.
    pub fn admit(&self) -> bool {
        let limit = self.config.max_connections;
        self.open_connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < limit).then_some(open + 1))
            .is_ok()
    }

    /// Counts a connection out that [`Self::admit`] let in.
    pub fn leave(&self) {
        self.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
