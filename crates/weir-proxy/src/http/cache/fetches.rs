//! The fetches that are running, by key: requests for the same key wait for one fetch.
//!
//! The table also holds keys whose responses turned out not to be storable. For a few seconds, requests for
//! them are forwarded at once, instead of waiting for each other in vain.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_cache::{Crowd, KeyBuffer, PurgeSequence, RequestFacts, Reuse, reuse_coming};
use weir_io::clock;

use super::background::Background;
use super::broadcast::{Alone, Broadcast, Reader, Sender};

/// How long requests for a key bypass the cache after its response could not be stored.
pub const PASS_FOR: Duration = Duration::from_secs(2);
/// How long nothing is fetched in the background for a key after a fetch has failed.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// Shards of the table, so that workers rarely contend for one lock; a power of two.
const SHARD_COUNT: usize = 64;
/// Most keys per shard whose requests bypass the cache: an attacker can make up any number of keys.
const PASSING_MOST: usize = 1024;

type Hashed<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The running fetches.
pub struct Fetches {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes that all of them have gathered.
    gathered: Arc<AtomicU64>,
    /// The fetches that no client waits for.
    background: Arc<Background>,
}

#[derive(Default)]
struct Shard {
    running: Hashed<Box<[u8]>, Running>,
    /// By hash of the key: until when its requests bypass the cache.
    passing: Hashed<u64, Duration>,
}

/// A fetch that requests may wait for.
struct Running {
    broadcast: Arc<Broadcast>,
    /// The purges that happened before it began.
    began: PurgeSequence,
}

impl Running {
    /// Whether a request with these `facts` may wait for it. Any request may until the head has come.
    fn may_answer(&self, facts: &RequestFacts) -> bool {
        let Some(fresh) = self.broadcast.head().and_then(|head| head.freshness) else { return true };
        let verdict = reuse_coming(&fresh, facts, clock::now());
        matches!(verdict, Reuse::Fresh { .. } | Reuse::Stale { while_revalidate: false, .. })
    }
}

/// What a request without a stored response does.
pub enum Joined<T> {
    /// The response was in the store after all.
    Found(T),
    /// It is the first and makes the fetch.
    Leads(Lease, Reader),
    /// It waits for a fetch that another request began.
    Follows(Reader),
}

/// A fetch's entry in the table. Dropping it removes the entry and tells those who wait.
pub struct Lease {
    pub sender: Sender,
    /// The purges that happened before it began: the fetch may bring content from before any later purge.
    pub began: PurgeSequence,
    /// `None` once the fetch is no longer in the table.
    entry: Option<(Arc<super::Cache>, Box<[u8]>, u64)>,
}

impl Fetches {
    /// At most `background` fetches go on that no client waits for.
    pub fn new(background: u32) -> Fetches {
        Fetches {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            gathered: Arc::default(),
            background: Arc::new(Background::new(background)),
        }
    }

    /// The fetches that no client waits for.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Bytes that all broadcasts have gathered.
    pub fn gathered(&self) -> &Arc<AtomicU64> {
        &self.gathered
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The store uses the low bits for its own shards.
        let number = (hash >> 40) as usize % SHARD_COUNT;
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests with these `facts` for the key bypass the cache at `now`.
    pub fn passes(&self, hash: u64, facts: &RequestFacts, now: Duration) -> bool {
        Crowd::of(facts).any(|crowd| self.has(of_crowd(hash, crowd), now))
    }

    fn has(&self, hash: u64, now: Duration) -> bool {
        let mut shard = self.shard(hash);
        match shard.passing.entry(hash) {
            Entry::Occupied(entry) if *entry.get() > now => true,
            Entry::Occupied(entry) => {
                entry.remove();
                false
            }
            Entry::Vacant(_) => false,
        }
    }

    /// Has a crowd's requests for the key bypass the cache until `until`.
    pub fn pass(&self, hash: u64, crowd: Crowd, now: Duration, until: Duration) {
        let hash = of_crowd(hash, crowd);
        let mut shard = self.shard(hash);
        if shard.passing.len() >= PASSING_MOST {
            shard.passing.retain(|_, until| *until > now);
        }
        if shard.passing.len() < PASSING_MOST {
            shard.passing.insert(hash, until);
        }
    }

    /// The answer to such a request that bypassed the cache could have been stored: others need not bypass
    /// it.
    pub fn pass_no_more(&self, hash: u64, facts: &RequestFacts) {
        for crowd in Crowd::of(facts) {
            let hash = of_crowd(hash, crowd);
            self.shard(hash).passing.remove(&hash);
        }
    }
}

/// The entry that notes whether a crowd's requests for a key bypass the cache.
fn of_crowd(hash: u64, crowd: Crowd) -> u64 {
    match crowd {
        Crowd::All => hash,
        Crowd::WithCookies => hash.rotate_left(21),
        Crowd::WithCredentials => !hash,
    }
}

/// How a stale response that was served gets refreshed.
pub enum Refresh {
    /// The caller has to fetch it.
    Begun(Lease),
    /// It is already being fetched, or a fetch failed a moment ago.
    Needless,
    /// Too many fetches that nobody waits for are running: a client has to wait for this one.
    NoRoom,
}

impl super::Cache {
    /// Joins the fetch for `key`, or begins one. `look` looks the key up once more, because a fetch that has
    /// just ended stores its response before it leaves the table.
    ///
    /// A fetch that began before a purge which covers it serves only those who wait for it already; a new one
    /// takes its place.
    ///
    /// Once a fetch's head has come, to join it means to reuse its response: that has to be fresh by now, and
    /// allowed for `facts` (RFC 9111 §4). `None` means that the caller does not want to be answered by it.
    pub fn join<T>(
        self: &Arc<Self>,
        key: &KeyBuffer,
        facts: Option<&RequestFacts>,
        look: impl FnOnce() -> Option<T>,
    ) -> Joined<T> {
        let hash = key.hash();
        let mut shard = self.fetches.shard(hash);
        if let Some(running) = shard.running.get(key.bytes())
            && !self.store.is_outdated(key, running.began)
            && facts.is_none_or(|facts| running.may_answer(facts))
        {
            return Joined::Follows(running.broadcast.join(false));
        }
        if let Some(found) = look() {
            return Joined::Found(found);
        }
        let alone = Alone::Among(self.fetches.background.clone());
        let sender = Sender::new(&self.fetches.gathered, self.gathered_most(), alone);
        let broadcast = sender.broadcast().clone();
        let began = self.store.purge_sequence();
        shard.running.insert(key.bytes().into(), Running { broadcast: broadcast.clone(), began });
        drop(shard);
        let reader = broadcast.join(true);
        let lease = Lease { sender, began, entry: Some((self.clone(), key.bytes().into(), hash)) };
        Joined::Leads(lease, reader)
    }

    /// As [`Self::join`], for a refresh that no client waits for.
    pub fn refresh(self: &Arc<Self>, key: &KeyBuffer, facts: &RequestFacts, now: Duration) -> Refresh {
        if self.fetches.passes(key.hash(), facts, now) {
            return Refresh::Needless;
        }
        let Joined::Leads(lease, reader) = self.join(key, None, || None::<()>) else {
            return Refresh::Needless;
        };
        drop(reader);
        if lease.sender.is_unwanted() { Refresh::NoRoom } else { Refresh::Begun(lease) }
    }
}

impl Lease {
    /// Removes the fetch from the table: requests that come from now on do not wait for it.
    pub fn leave(&mut self) {
        if let Some((cache, key, hash)) = self.entry.take() {
            let mut shard = cache.fetches.shard(hash);
            // Another fetch may have taken its place.
            let is_own = |running: &Running| Arc::ptr_eq(&running.broadcast, self.sender.broadcast());
            if shard.running.get(&key).is_some_and(is_own) {
                shard.running.remove(&key);
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leave();
    }
}
