//! One place where clients are accepted, as it is in force, and the connections it has.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
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
    /// What TLS is served with; `None` where it is not.
    pub tls: Option<Arc<ServerTls>>,
    /// What certificate authorities are waiting to see.
    pub challenges: Arc<Challenges>,
    /// What operators have switched off, of all listeners.
    pub maintenance: Arc<Maintenance>,
    /// All maps of the config; `None` where it has none.
    pub maps: Option<Arc<Maps>>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<ListenerCells>>,
    /// Client connections open now, over all workers; bounded by `max_connections`.
    pub connections: Arc<ConnectionCount>,
    /// How fast the bytes of all its connections together may pass.
    pub bandwidth: Arc<Bandwidth>,
    /// Whom trusted senders of datagrams have named.
    pub named: Arc<NamedClients>,
    by_client: Arc<OpenBy<IpAddr>>,
    by_account: Arc<OpenBy<Box<[u8]>>>,
}

/// How many connections each has that has any.
pub(crate) type OpenBy<K> = Mutex<HashMap<K, u32>>;

/// One connection or one request of one client, or one session of one account, counted until dropped.
#[derive(Debug)]
pub struct Counted<K: Hash + Eq> {
    of: K,
    open: Arc<OpenBy<K>>,
}

/// One connection of one client, counted until dropped.
pub type ClientConnection = Counted<IpAddr>;
/// One session of one account of MySQL, counted until dropped.
pub type AccountSession = Counted<Box<[u8]>>;

/// The client is at `max_connections_per_client`.
#[derive(Debug)]
pub struct TooManyFromClient;

/// The account is at `max_connections_per_account`.
#[derive(Debug)]
pub struct TooManyOfAccount;

impl<K: Hash + Eq + Clone> Counted<K> {
    /// One more, unless there are `limit`.
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
        Listener {
            config: config.clone(),
            tls: loaded.listener(&config.name).cloned(),
            challenges: loaded.challenges().clone(),
            maintenance: maintenance.clone(),
            maps: maps.cloned(),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            connections: old.map_or_else(Default::default, |old| old.connections.clone()),
            bandwidth: Bandwidth::compile(config.bandwidth, old.map(|old| &old.bandwidth)),
            named: old.map_or_else(Default::default, |old| old.named.clone()),
            by_client: old.map_or_else(Default::default, |old| old.by_client.clone()),
            by_account: old.map_or_else(Default::default, |old| old.by_account.clone()),
        }
    }

    /// Counts in one more connection of the client at `address`; `Err` when it has as many as
    /// `max_connections_per_client`. An IPv6 client is its /64.
    ///
    /// `Ok(None)` without a limit, for a trusted proxy, whose connections are those of many, and for a Unix
    /// socket, which tells nobody from another: then nothing is counted.
    pub fn count_client(&self, address: IpAddr) -> Result<Option<ClientConnection>, TooManyFromClient> {
        let Some(limit) = self.config.max_connections_per_client else { return Ok(None) };
        if address == UNIX_PEER.ip() || self.trusts(address) {
            return Ok(None);
        }
        let address = weir_screen::address_key(address);
        Counted::of(&self.by_client, address, limit).map(Some).ok_or(TooManyFromClient)
    }

    /// Counts in one more session of the account with this name; `Err` when it has as many as
    /// `max_connections_per_account`. `Ok(None)` without a limit: then nothing is counted.
    pub fn count_account(&self, user: &[u8]) -> Result<Option<AccountSession>, TooManyOfAccount> {
        let limit = self.config.mysql().and_then(|mysql| mysql.max_connections_per_account);
        let Some(limit) = limit else { return Ok(None) };
        Counted::of(&self.by_account, user.into(), limit).map(Some).ok_or(TooManyOfAccount)
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
        self.connections.try_add(self.config.max_connections)
    }

    /// Whether half of the places are taken.
    pub fn is_half_full(&self) -> bool {
        self.connections.open().saturating_mul(2) >= self.config.max_connections
    }

    /// Counts a connection out that [`Self::admit`] let in.
    pub fn leave(&self) {
        self.connections.remove();
    }

    /// A number that no other listener has and that reloads leave as it is.
    pub fn number(&self) -> usize {
        Arc::as_ptr(&self.connections).addr()
    }
}
