//! Answers requests from memory: looks them up, has missing responses fetched once for all who wait, and
//! sends them.
//!
//! `weir-cache` decides what may be stored and reused. Start reading at [`serve::run`].

pub(in crate::http) mod around;
pub(in crate::http) mod background;
mod broadcast;
mod encodings;
pub mod explain;
mod fetch;
mod fetches;
mod follow;
mod hit;
mod learn;
mod lookup;
mod note;
mod recipient;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use weir_cache::Purge;
use weir_cache::{Pattern, QueryRule, Rules, Store, Times};
use weir_io::clock;

use self::background::Background;
use self::encodings::Encodings;
use self::fetches::Fetches;

pub(crate) use self::broadcast::Origin;
pub(crate) use self::learn::learn;
pub(crate) use self::note::Note;
pub(crate) use self::serve::run;

/// The stored responses, shared by all workers and kept across reloads.
pub struct Cache {
    /// The stored objects.
    pub store: Store,
    fetches: Fetches,
    encodings: Encodings,
    budget_bytes: AtomicU64,
}

impl Cache {
    /// An empty cache that stores at most `budget_bytes`, and lets at most `background` fetches go on that no
    /// client waits for.
    pub fn new(budget_bytes: u64, background: u32) -> Arc<Cache> {
        // The seed is random, so that nobody outside can choose keys that collide.
        let seed = std::hash::BuildHasher::hash_one(&foldhash::fast::RandomState::default(), budget_bytes);
        Arc::new(Cache {
            store: Store::new(budget_bytes, seed),
            fetches: Fetches::new(background),
            encodings: Encodings::default(),
            budget_bytes: AtomicU64::new(budget_bytes),
        })
    }

    /// Stores at most `budget_bytes` from now on.
    pub fn resize(&self, budget_bytes: u64) {
        if self.budget_bytes.swap(budget_bytes, Ordering::Relaxed) != budget_bytes {
            self.store.resize(budget_bytes);
        }
    }

    /// Most bytes stored.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Removes what `purge` names, or with `soft` marks it stale; gives how many responses that were. A fetch
    /// that is running does not put back what was purged.
    pub fn purge(&self, purge: &Purge, soft: bool) -> u64 {
        self.store.purge(purge, soft, clock::now())
    }

    /// The fetches that no client waits for.
    pub fn background(&self) -> &Background {
        self.fetches.background()
    }

    /// Whether more may be stored. Evicted objects that slow clients still read are in no budget, so their
    /// amount must be bounded here.
    fn has_room(&self) -> bool {
        self.store.lingering_bytes() <= self.gathered_most()
    }

    /// How often content was encoded in order to store it encoded.
    pub fn encodings(&self) -> u64 {
        self.encodings.count()
    }

    /// Most bytes that all running fetches may gather: these are not in the store yet.
    fn gathered_most(&self) -> u64 {
        self.budget_bytes() / 4
    }
}

/// The cache settings of one route.
pub struct RouteCache {
    /// The cache that the route uses.
    pub cache: Arc<Cache>,
    /// What may be stored, and for how long.
    pub rules: Rules,
    /// How long a request waits for the head of a response that is already being fetched for another request.
    pub collapse_timeout: Duration,
    /// The part of the key that keeps responses of different origins apart.
    scope: Box<[u8]>,
}

impl RouteCache {
    /// `pool` answers the route's requests; `rules` is a text for the rules that change these requests.
    pub fn new(config: &weir_config::RouteCache, pool: &str, rules: &[u8], cache: &Arc<Cache>) -> RouteCache {
        // Two routes to one pool may send it different requests for the same client request.
        let scope = [pool.as_bytes(), rules].concat();
        RouteCache {
            cache: cache.clone(),
            rules: rules_of(config),
            collapse_timeout: config.collapse_timeout,
            scope: scope.into(),
        }
    }
}

/// Translates the config into the rules of `weir-cache`.
fn rules_of(config: &weir_config::RouteCache) -> Rules {
    let patterns =
        |names: &[String]| names.iter().map(|name| Pattern::new(name.as_bytes())).collect::<Vec<_>>();
    let bytes = |names: &[String]| names.iter().map(|name| name.as_bytes().into()).collect();
    Rules {
        ttl: config.ttl,
        ttl_max: config.ttl_max,
        negative_ttl: config.negative_ttl,
        query: match config {
            _ if config.ignore_query => QueryRule::Ignore,
            _ if !config.query_only.is_empty() => QueryRule::Only(patterns(&config.query_only)),
            _ if !config.query_without.is_empty() => QueryRule::Without(patterns(&config.query_without)),
            _ => QueryRule::Whole,
        },
        query_sort: config.query_sort,
        key_headers: bytes(&config.key_headers),
        key_cookies: bytes(&config.key_cookies),
        set_cookie: match config.set_cookie {
            weir_config::SetCookie::Refuse => weir_cache::SetCookie::Refuse,
            weir_config::SetCookie::Strip => weir_cache::SetCookie::Strip,
        },
        stale_while_revalidate: config.stale_while_revalidate,
        stale_if_error: config.stale_if_error,
        object_max_bytes: config.object_max_bytes,
        honour_client: config.honour_client,
    }
}

/// Both clocks at once.
fn times() -> Times {
    Times { now: clock::now(), wall_seconds: wall_seconds() }
}

/// Seconds since 1970.
fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
