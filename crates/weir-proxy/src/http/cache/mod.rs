//! Answers from memory: looks them up, has them fetched once for all who wait, and sends them.
//!
//! What may be kept and reused is decided in `weir-cache`. Start reading at [`serve::run`].

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

/// What is kept, for all workers, over all reloads.
pub struct Cache {
    /// The objects.
    pub store: Store,
    fetches: Fetches,
    encodings: Encodings,
    budget_bytes: AtomicU64,
}

impl Cache {
    /// An empty one that keeps at most `budget_bytes`, and lets at most `background` fetches go on that no
    /// client waits for.
    pub fn new(budget_bytes: u64, background: u32) -> Arc<Cache> {
        // Nobody outside may be able to choose keys that meet in one place.
        let seed = std::hash::BuildHasher::hash_one(&foldhash::fast::RandomState::default(), budget_bytes);
        Arc::new(Cache {
            store: Store::new(budget_bytes, seed),
            fetches: Fetches::new(background),
            encodings: Encodings::default(),
            budget_bytes: AtomicU64::new(budget_bytes),
        })
    }

    /// Keeps at most `budget_bytes` from now on.
    pub fn resize(&self, budget_bytes: u64) {
        if self.budget_bytes.swap(budget_bytes, Ordering::Relaxed) != budget_bytes {
            self.store.resize(budget_bytes);
        }
    }

    /// Most bytes kept.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Takes out what `purge` names, or with `soft` makes it out of date; gives how many responses those
    /// were. A fetch that is under way does not put back what is named.
    pub fn purge(&self, purge: &Purge, soft: bool) -> u64 {
        self.store.purge(purge, soft, clock::now())
    }

    /// Fetches that no client waits for.
    pub fn background(&self) -> &Background {
        self.fetches.background()
    }

    /// Whether more may be kept. What slow clients still read of objects that had to give way is in no
    /// budget, so there must not come to be more and more of it.
    fn has_room(&self) -> bool {
        self.store.lingering_bytes() <= self.gathered_most()
    }

    /// How often content was encoded to be kept so.
    pub fn encodings(&self) -> u64 {
        self.encodings.count()
    }

    /// Most bytes that all fetches under way may gather: what they hold is not among the objects yet.
    fn gathered_most(&self) -> u64 {
        self.budget_bytes() / 4
    }
}

/// What one route asks of the cache.
pub struct RouteCache {
    /// Where it is kept.
    pub cache: Arc<Cache>,
    /// What is kept, and for how long.
    pub rules: Rules,
    /// How long a request waits for the head of an answer that another one has asked for.
    pub collapse_timeout: Duration,
    /// What keeps answers of different origins apart.
    scope: Box<[u8]>,
}

impl RouteCache {
    /// `pool` answers the route's requests, which `rules` change.
    pub fn new(config: &weir_config::RouteCache, pool: &str, rules: &[u8], cache: &Arc<Cache>) -> RouteCache {
        // Two routes to one pool may tell it different things of the same request.
        let scope = [pool.as_bytes(), rules].concat();
        RouteCache {
            cache: cache.clone(),
            rules: rules_of(config),
            collapse_timeout: config.collapse_timeout,
            scope: scope.into(),
        }
    }
}

/// The config's words in the terms of the policy.
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
