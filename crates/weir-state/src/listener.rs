//! One listener in force, and its connections.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_io::listener::UNIX_PEER;
use weir_stats::PerWorker;
use weir_stats::table::ListenerCells;
use weir_tls::acme::Challenges;
use weir_tls::{Loaded, ServerTls};

use crate::bandwidth::Bandwidth;
use crate::connections::ConnectionCount;
use crate::maintenance::Maintenance;
use crate::maps::Maps;
use crate::named::NamedClients;

/// One listener and its live cells.
pub struct Listener {
    /// As configured.
    pub config: Arc<weir_config::Listener>,
    /// How TLS is served; `None` without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Pending ACME challenges, which certificate authorities will ask for.
    pub challenges: Arc<Challenges>,
    /// What operators have put into maintenance, for all listeners.
    pub maintenance: Arc<Maintenance>,
    /// All maps of the config; `None` if it has none.
    pub maps: Option<Arc<Maps>>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<ListenerCells>>,
    /// Client connections open now, over all workers; bounded by `max_connections`.
    pub connections: Arc<ConnectionCount>,
    /// The bandwidth limits shared by all its connections.
    pub bandwidth: Arc<Bandwidth>,
    /// The clients that trusted senders of datagrams have named.
    pub named: Arc<NamedClients>,
    /// Whether its clients were told that it speaks HTTP/3, by this config or an earlier one.
    told_h3: AtomicBool,
    by_client: Arc<OpenBy<IpAddr>>,
    by_account: Arc<OpenBy<Box<[u8]>>>,
}

/// Number of connections by client (or another key); only keys with connections are present.
pub(crate) type OpenBy<K> = Mutex<HashMap<K, u32>>;

/// One connection or request of a client, or one session of an account, counted until dropped.
#[derive(Debug)]
pub struct Counted<K: Hash + Eq> {
    of: K,
    open: Arc<OpenBy<K>>,
}

/// One connection of a client, counted until dropped.
pub type ClientConnection = Counted<IpAddr>;
/// One session of a MySQL account, counted until dropped.
pub type AccountSession = Counted<Box<[u8]>>;

/// The client is at `max_connections_per_client`.
#[derive(Debug)]
pub struct TooManyFromClient;

/// The account is at `max_connections_per_account`.
#[derive(Debug)]
pub struct TooManyOfAccount;

impl<K: Hash + Eq + Clone> Counted<K> {
    /// Counts one more; `None` if there are `limit` already.
    pub(crate) fn of(open: &Arc<OpenBy<K>>, of: K, limit: u32) -> Option<Counted<K>> {
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.get(&of).is_some_and(|count| *count >= limit) {
            return None;
        }
        *counts.entry(of.clone()).or_insert(0) += 1;
        Some(Counted { of, open: open.clone() })
    }
}

impl<K: Hash + Eq> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

impl Listener {
    pub(crate) fn compile(
        config: &Arc<weir_config::Listener>,
        loaded: &Loaded,
        (maintenance, maps): (&Arc<Maintenance>, Option<&Arc<Maps>>),
        old: Option<&Arc<Listener>>,
        workers: usize,
    ) -> Listener {
        let tls = loaded.listener(&config.name).cloned();
        let speaks_h3 = tls.as_ref().is_some_and(|tls| tls.quic_config().is_some());
        Listener {
            config: config.clone(),
            tls,
            challenges: loaded.challenges().clone(),
            maintenance: maintenance.clone(),
            maps: maps.cloned(),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            connections: old.map_or_else(Default::default, |old| old.connections.clone()),
            bandwidth: Bandwidth::compile(config.bandwidth, old.map(|old| &old.bandwidth)),
            named: old.map_or_else(Default::default, |old| old.named.clone()),
            told_h3: AtomicBool::new(speaks_h3 || old.is_some_and(|old| old.has_told_h3())),
            by_client: old.map_or_else(Default::default, |old| old.by_client.clone()),
            by_account: old.map_or_else(Default::default, |old| old.by_account.clone()),
        }
    }

    /// Whether its clients were told that it speaks HTTP/3, by this config or an earlier one, of this process
    /// or the one before. They may remember that for a day.
    pub fn has_told_h3(&self) -> bool {
        self.told_h3.load(Ordering::Relaxed)
    }

    /// Notes that the process before has told clients so.
    pub fn note_told_h3(&self) {
        self.told_h3.store(true, Ordering::Relaxed);
    }

    /// Counts one more connection of the client at `address`; `Err` when it has `max_connections_per_client`
    /// already. An IPv6 client is its /64.
    ///
    /// `Ok(None)`, with nothing counted: without a limit, for a trusted proxy, whose connections belong to
    /// many clients, and for a Unix socket, which does not tell clients apart.
    pub fn count_client(&self, address: IpAddr) -> Result<Option<ClientConnection>, TooManyFromClient> {
        let Some(limit) = self.config.max_connections_per_client else { return Ok(None) };
        if address == UNIX_PEER.ip() || self.trusts(address) {
            return Ok(None);
        }
        let address = weir_screen::address_key(address);
        Counted::of(&self.by_client, address, limit).map(Some).ok_or(TooManyFromClient)
    }

    /// Counts one more session of the account with this name; `Err` when it has `max_connections_per_account`
    /// already. `Ok(None)` without a limit: then nothing is counted.
    pub fn count_account(&self, user: &[u8]) -> Result<Option<AccountSession>, TooManyOfAccount> {
        let limit = self.config.mysql().and_then(|mysql| mysql.max_connections_per_account);
        let Some(limit) = limit else { return Ok(None) };
        Counted::of(&self.by_account, user.into(), limit).map(Some).ok_or(TooManyOfAccount)
    }

    /// Whether any of its routes caches responses.
    pub fn keeps(&self) -> bool {
        self.config.routes.iter().any(|route| route.cache.is_some())
    }

    /// Whether `peer` must start with a PROXY protocol header; no other peer may (D8: never guessed).
    pub fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        !self.config.accept_proxy.is_empty() && weir_config::contains(&self.config.accept_proxy, peer)
    }

    /// Whether `peer` is trusted to say who the client behind it is.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        weir_config::contains(&self.config.http().trusted_proxies, peer)
    }

    /// Counts a connection in, unless the listener is at its limit.
    pub fn admit(&self) -> bool {
        self.connections.try_add(self.config.max_connections)
    }

    /// Whether half of the connection limit is used.
    pub fn is_half_full(&self) -> bool {
        self.connections.open().saturating_mul(2) >= self.config.max_connections
    }

    /// Counts out a connection that [`Self::admit`] counted in.
    pub fn leave(&self) {
        self.connections.remove();
    }

    /// A number that is unique to this listener and that reloads keep.
    pub fn number(&self) -> usize {
        Arc::as_ptr(&self.connections).addr()
    }
}
