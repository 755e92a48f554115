//! The state in force as the workers see it: compiled from the config by the control side, immutable but for
//! the live cells inside, and shared by all workers.
//!
//! Everything with a history (counters, health, connections in flight) lives in `Arc`s that a new snapshot
//! takes over from the previous one, by listener name and by pool name and backend address. So a reload loses
//! nothing.

use std::sync::Arc;

use weir_config::Config;
use weir_tls::{Loaded, PeerKeys};

use crate::counterparts::Counterparts;
use crate::listener::Listener;
use crate::maintenance::Maintenance;
use crate::maps::Maps;
use crate::pool::{Displaced, Origin, Pool};
use crate::token_keys::TokenKeys;

/// Everything in force, in one consistent piece. What a plane derives from it belongs to that plane.
pub struct Snapshot {
    /// Counts from 1 and grows with every reload that took effect.
    pub generation: u64,
    /// The config it was compiled from, with the backends that were added or found since.
    pub config: Arc<Config>,
    /// In the order of the config.
    pub listeners: Vec<Arc<Listener>>,
    /// In the order of the config.
    pub pools: Vec<Arc<Pool>>,
    /// What operators have put into maintenance; the same object for the life of the process.
    pub maintenance: Arc<Maintenance>,
    /// Keys and values from files; `None` where the config has no map.
    pub maps: Option<Arc<Maps>>,
    /// Fetched keys for verifying tokens; `None` if the config has none.
    pub token_keys: Option<Arc<TokenKeys>>,
    /// What this Weir has in common with its peers; `None` if it has none.
    pub peer_keys: Option<Arc<PeerKeys>>,
    pub(crate) displaced: Displaced,
}

impl Snapshot {
    /// The names remembered for a listener's datagram senders, and its `client_idle`; `None` if there is no
    /// such listener.
    pub fn named(&self, listener: &str) -> Option<(&crate::named::NamedClients, std::time::Duration)> {
        let listener = self.listeners.iter().find(|it| it.config.name == listener)?;
        Some((&*listener.named, listener.config.timeout.client_idle))
    }

    /// Compiles `config`, taking over live state from `previous`. Pools whose config did not change are the
    /// same `Arc`s.
    ///
    /// `tls` holds what was read from the files that `config` names. `workers` is the number of copies of new
    /// counters; it must be the same for the life of the process. New weights and limits of existing backends
    /// take effect at once: see [`Self::undo`].
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
                Pool::compile(pool, &config.dns, tls, old, workers, &mut displaced)
            })
            .collect();
        let maintenance = previous.map_or_else(Arc::default, |old| old.maintenance.clone());
        let maps = Maps::compile(&config, previous.and_then(|old| old.maps.as_deref()));
        let token_keys = TokenKeys::compile(&config, previous.and_then(|old| old.token_keys.as_deref()));
        let mut old = Counterparts::new(previous.map_or(&[][..], |old| &old.listeners[..]), |listener| {
            &*listener.config.name
        });
        let listeners = config
            .listeners
            .iter()
            .map(|listener| {
                let old = old.find(&*listener.name);
                Arc::new(Listener::compile(listener, tls, (&maintenance, maps.as_ref()), old, workers))
            })
            .collect();
        let peer_keys = tls.peers().cloned();
        let generation = previous.map_or(1, |old| old.generation + 1);
        let mut pairs = pools.iter().zip(&config.pools);
        let has_others = pairs.any(|(pool, config)| pool.config.backends != config.backends);
        let config = match has_others {
            false => config,
            true => {
                let mut with = Config::clone(&config);
                with.pools = pools.iter().map(|pool| pool.config.clone()).collect();
                Arc::new(with)
            }
        };
        Snapshot { generation, config, listeners, pools, maintenance, maps, token_keys, peer_keys, displaced }
    }

    /// The config without the backends that came since, and with names in place of the backends they resolve
    /// to: a file with this content would change nothing.
    pub fn configured(&self) -> Arc<Config> {
        self.with_pools(|pool| pool.configured.clone())
    }

    /// The config for display: [`Self::configured`], with the backends that came since other than by a name.
    pub fn shown(&self) -> Arc<Config> {
        self.with_pools(|pool| {
            let others = pool.config.backends.iter().zip(&pool.backends);
            let others = others.filter(|(_, it)| matches!(it.origin, Origin::Group | Origin::Api));
            let others: Vec<weir_config::Backend> = others.map(|(config, _)| config.clone()).collect();
            let mut shown = pool.configured.clone();
            if !others.is_empty() {
                Arc::make_mut(&mut shown).backends.extend(others);
            }
            shown
        })
    }

    fn with_pools(&self, pool_as: impl Fn(&Pool) -> Arc<weir_config::Pool>) -> Arc<Config> {
        let pools: Vec<_> = self.pools.iter().map(|pool| pool_as(pool)).collect();
        if pools.iter().zip(&self.config.pools).all(|(one, other)| Arc::ptr_eq(one, other)) {
            return self.config.clone();
        }
        Arc::new(Config { pools, ..Config::clone(&self.config) })
    }

    /// Gives backends that the previous snapshot also has their previous weights and limits back, when this
    /// snapshot does not come into force. Takes effect at the next refresh of their pools.
    pub fn undo(&self) {
        for (backend, settings) in &self.displaced {
            backend.reconfigure(*settings);
        }
    }

    /// The pool of that name.
    pub fn pool(&self, name: &str) -> Option<&Arc<Pool>> {
        self.pools.iter().find(|pool| pool.config.name == name)
    }
}
