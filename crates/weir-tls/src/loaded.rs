//! All files that a config names, read at once: either all of them can be used, or none is put in force.

use std::collections::HashMap;
use std::sync::Arc;

use weir_config::{Config, Protocol};

use crate::acme::Challenges;
use crate::client::ClientTls;
use crate::client_login::ClientLogin;
use crate::files::{self, LoadError};
use crate::own_account::OwnAccount;
use crate::peers::PeerKeys;
use crate::revocations::ListFacts;
use crate::server::ServerTls;
use crate::sticky::StickyKey;
use crate::tickets::TicketKeys;

/// The TLS settings, cookie keys and logins of listeners and pools, by name.
#[derive(Debug, Default)]
pub struct Loaded {
    listeners: HashMap<String, Arc<ServerTls>>,
    pools: HashMap<String, Arc<ClientTls>>,
    sticky: HashMap<String, Arc<StickyKey>>,
    accounts: HashMap<String, Arc<OwnAccount>>,
    client_logins: HashMap<String, Arc<ClientLogin>>,
    challenges: Arc<Challenges>,
    peers: Option<Arc<PeerKeys>>,
}

impl Loaded {
    /// Reads every file with keys that `config` names. `challenges` is the ACME state of the process.
    ///
    /// # Errors
    /// An error for each file that can't be used.
    pub fn load(
        config: &Config,
        tickets: &Arc<TicketKeys>,
        challenges: &Arc<Challenges>,
    ) -> Result<Loaded, Vec<LoadError>> {
        let mut loaded = Loaded { challenges: challenges.clone(), ..Loaded::default() };
        let mut errors = Vec::new();
        for listener in &config.listeners {
            let Some(tls) = listener.tls.as_ref().filter(|tls| tls.is_spoken()) else { continue };
            match ServerTls::load(listener, tls, tickets, challenges) {
                Ok(tls) => drop(loaded.listeners.insert(listener.name.clone(), Arc::new(tls))),
                Err(error) => errors.push(error),
            }
        }
        for pool in &config.pools {
            let Some(sticky) = &pool.sticky else { continue };
            match StickyKey::load(sticky.secret_file.as_deref()) {
                Ok(key) => drop(loaded.sticky.insert(pool.name.clone(), Arc::new(key))),
                Err(error) => errors.push(error),
            }
        }
        for pool in &config.pools {
            let Some(mysql) = &pool.mysql else { continue };
            match OwnAccount::load(mysql) {
                Ok(Some(account)) => drop(loaded.accounts.insert(pool.name.clone(), account)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
            match ClientLogin::load(mysql) {
                Ok(login) => drop(loaded.client_logins.insert(pool.name.clone(), login)),
                Err(error) => errors.push(error),
            }
        }
        for pool in &config.pools {
            let Some(tls) = &pool.tls else { continue };
            match ClientTls::load(tls, pool.protocol) {
                Ok(tls) => {
                    errors.extend(pool.backends.iter().filter_map(|each| tls.name_of(&each.address).err()));
                    let tls = if speaks_http(config, &pool.name) { tls } else { tls.without_alpn() };
                    loaded.pools.insert(pool.name.clone(), Arc::new(tls));
                }
                Err(error) => errors.push(error),
            }
        }
        match config.peers.as_ref().map(PeerKeys::load).transpose() {
            Ok(keys) => loaded.peers = keys.map(Arc::new),
            Err(error) => errors.push(error),
        }
        // Checked now, instead of when the first token waits for its keys.
        for ca in config.fetched_keys().iter().filter_map(|keys| keys.ca.as_ref()) {
            errors.extend(files::certificates(ca).err());
        }
        if errors.is_empty() { Ok(loaded) } else { Err(errors) }
    }

    /// `None` for a listener without TLS.
    pub fn listener(&self, name: &str) -> Option<&Arc<ServerTls>> {
        self.listeners.get(name)
    }

    /// The revocation lists in use, each with the name of its listener or pool.
    pub fn revocations(&self) -> impl Iterator<Item = (&str, &ListFacts)> {
        let of_listeners = self.listeners.iter().map(|(name, tls)| (name, tls.revocations()));
        let of_pools = self.pools.iter().map(|(name, tls)| (name, tls.revocations()));
        of_listeners.chain(of_pools).flat_map(|(name, lists)| lists.iter().map(|list| (name.as_str(), list)))
    }

    /// Proofs for the challenges of certificate authorities.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// What this Weir has in common with its peers; `None` if it has none.
    pub fn peers(&self) -> Option<&Arc<PeerKeys>> {
        self.peers.as_ref()
    }

    /// The key of the pool's sticky cookies; `None` if it has none.
    pub fn sticky(&self, pool: &str) -> Option<&Arc<StickyKey>> {
        self.sticky.get(pool)
    }

    /// Weir's account on the pool's MySQL servers; `None` if it has none.
    pub fn account(&self, pool: &str) -> Option<&Arc<OwnAccount>> {
        self.accounts.get(pool)
    }

    /// What clients of the pool's MySQL servers log in with; `None` for other pools.
    pub fn client_login(&self, pool: &str) -> Option<&Arc<ClientLogin>> {
        self.client_logins.get(pool)
    }

    /// `None` for a pool without TLS.
    pub fn pool(&self, name: &str) -> Option<&Arc<ClientTls>> {
        self.pools.get(name)
    }
}

/// Whether an HTTP listener uses the pool, or none does.
fn speaks_http(config: &Config, pool: &str) -> bool {
    let uses = |listener: &weir_config::Listener| {
        let by_route = listener.routes.iter().any(|route| route.may_go_to(pool));
        by_route || listener.pool.as_deref() == Some(pool)
    };
    let mut users = config.listeners.iter().filter(|listener| uses(listener)).peekable();
    users.peek().is_none() || users.any(|listener| listener.protocol() == Protocol::Http)
}
