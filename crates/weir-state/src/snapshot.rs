//! What is true right now, as the workers see it: compiled from the config by the control side, immutable but
//! for the live cells inside, and shared by all workers.
//!
//! Whatever has a history (counters, health, connections in flight) lives in `Arc`s that a new snapshot takes
//! over from the one before, by listener name and by pool name and backend address. So a reload loses
//! nothing.

use std::sync::Arc;

use weir_config::Config;
use weir_tls::Loaded;

use crate::counterparts::Counterparts;
use crate::listener::Listener;
use crate::maintenance::Maintenance;
use crate::pool::{Displaced, Pool};

/// What is in force, in one consistent piece. What a plane makes of it is that plane's.
pub struct Snapshot {
    /// Counts from 1 and grows with every reload that took effect.
    pub generation: u64,
    /// What it was compiled from, with the backends that were added or found since.
    pub config: Arc<Config>,
    /// In the order of the config.
    pub listeners: Vec<Arc<Listener>>,
    /// In the order of the config.
    pub pools: Vec<Arc<Pool>>,
    /// What operators have switched off; the same for the life of the process.
    pub maintenance: Arc<Maintenance>,
    pub(crate) displaced: Displaced,
}

impl Snapshot {
    /// Compiles `config`, taking over live state from `previous`. Pools that it says nothing new of are the
    /// very same.
    ///
    /// `tls` is what was read of the files that `config` names. `workers` is the number of copies new
    /// counters get; it must be the same for the life of the process. Weights and limits of backends that
    /// were there before are in force at once: see [`Self::undo`].
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
                Pool::compile(pool, tls, old, workers, &mut displaced)
            })
            .collect();
        let maintenance = previous.map_or_else(Arc::default, |old| old.maintenance.clone());
        let mut old = Counterparts::new(previous.map_or(&[][..], |old| &old.listeners[..]), |listener| {
            &*listener.config.name
        });
        let listeners = config
            .listeners
            .iter()
            .map(|listener| {
                let old = old.find(&*listener.name);
                Arc::new(Listener::compile(listener, tls, &maintenance, old, workers))
            })
            .collect();
        let generation = previous.map_or(1, |old| old.generation + 1);
        let mut pairs = pools.iter().zip(&config.pools);
        let has_found = pairs.any(|(pool, config)| pool.config.backends.len() > config.backends.len());
        let config = match has_found {
            false => config,
            true => {
                let mut with = Config::clone(&config);
                with.pools = pools.iter().map(|pool| pool.config.clone()).collect();
                Arc::new(with)
            }
        };
        Snapshot { generation, config, listeners, pools, maintenance, displaced }
    }

    /// The config without the backends that were found: what a file would have to say to change nothing.
    pub fn configured(&self) -> Arc<Config> {
        let has_found = |pool: &Arc<Pool>| pool.backends.iter().any(|backend| backend.is_found);
        if !self.pools.iter().any(has_found) {
            return self.config.clone();
        }
        let mut without = Config::clone(&self.config);
        for (config, pool) in without.pools.iter_mut().zip(&self.pools).filter(|(_, pool)| has_found(pool)) {
            let mut named = weir_config::Pool::clone(config);
            let mut backends = pool.backends.iter();
            named.backends.retain(|_| backends.next().is_some_and(|backend| !backend.is_found));
            *config = Arc::new(named);
        }
        Arc::new(without)
    }

    /// Gives backends that the snapshot before has, too, back the weights and limits that they had there, for
    /// a snapshot that does not come into force. Seen at the next refresh of their pools.
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
