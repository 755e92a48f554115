//! What is being fetched at the moment, by key: requests for the same wait for one fetch.
//!
//! Beside it stand keys whose answers proved not to be kept. For a few seconds requests for them take the
//! ordinary path at once, instead of waiting for each other in vain.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_cache::{Crowd, KeyBuffer, PurgeSequence, RequestFacts, Reuse, reuse_coming};
use weir_io::clock;

use super::background::Background;
use super::broadcast::{Alone, Broadcast, Reader, Sender};

/// How long a key passes by the cache after its answer was not to be kept.
pub const PASS_FOR: Duration = Duration::from_secs(2);
/// How long nothing is fetched in the background for a key after that has failed.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// Parts of the table, so that workers rarely meet; a power of two.
const SHARD_COUNT: usize = 64;
/// Most keys that pass by, per part: an attacker can make up any number.
const PASSING_MOST: usize = 1024;

type Hashed<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The fetches under way.
pub struct Fetches {
    shards: Box<[Mutex<Shard>]>,
    /// Bytes that all of them have gathered.
    gathered: Arc<AtomicU64>,
    /// Those that no client waits for.
    background: Arc<Background>,
}

#[derive(Default)]
struct Shard {
    running: Hashed<Box<[u8]>, Running>,
    /// By hash of the key, until when.
    passing: Hashed<u64, Duration>,
}

/// A fetch that may be waited for.
struct Running {
    broadcast: Arc<Broadcast>,
    /// What was purged before it began.
    began: PurgeSequence,
}

impl Running {
    /// Whether such a request may wait for it. Who came before its head may have whatever comes.
    fn may_answer(&self, facts: &RequestFacts) -> bool {
        let Some(fresh) = self.broadcast.head().and_then(|head| head.freshness) else { return true };
        let verdict = reuse_coming(&fresh, facts, clock::now());
        matches!(verdict, Reuse::Fresh { .. } | Reuse::Stale { while_revalidate: false, .. })
    }
}

/// What a request that found nothing does.
pub enum Joined<T> {
    /// It was there after all.
    Found(T),
    /// It is the first: it has the fetch made.
    Leads(Lease, Reader),
    /// It waits for another's.
    Follows(Reader),
}

/// A fetch's entry in the table; gone when dropped, upon which whoever waits is told.
pub struct Lease {
    pub sender: Sender,
    /// What was purged before it began: of what is purged later it may bring what was before.
    pub began: PurgeSequence,
    /// `None` once it is out of the table.
    entry: Option<(Arc<super::Cache>, Box<[u8]>, u64)>,
}

impl Fetches {
    /// At most `background` of them go on that no client waits for.
    pub fn new(background: u32) -> Fetches {
        Fetches {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            gathered: Arc::default(),
            background: Arc::new(Background::new(background)),
        }
    }

    /// Those that no client waits for.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Bytes that all broadcasts have gathered.
    pub fn gathered(&self) -> &Arc<AtomicU64> {
        &self.gathered
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // The store takes the low bits for its own parts.
        let number = (hash >> 40) as usize % SHARD_COUNT;
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether such requests for the key pass by the cache at `now`.
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

    /// Has a crowd's requests for the key pass by until `until`.
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

    /// An answer to such a request that went past could have been kept: others are not to.
    pub fn pass_no_more(&self, hash: u64, facts: &RequestFacts) {
        for crowd in Crowd::of(facts) {
            let hash = of_crowd(hash, crowd);
            self.shard(hash).passing.remove(&hash);
        }
    }
}

/// Where it is noted of a key that a crowd's requests pass by.
fn of_crowd(hash: u64, crowd: Crowd) -> u64 {
    match crowd {
        Crowd::All => hash,
        Crowd::WithCookies => hash.rotate_left(21),
        Crowd::WithCredentials => !hash,
    }
}

/// What becomes of something that was given out of date.
pub enum Refresh {
    /// It is to be fetched.
    Begun(Lease),
    /// It is being fetched already, or that failed a moment ago.
    Needless,
    /// Too many fetches that nobody waits for are under way: somebody has to wait for it.
    NoRoom,
}

impl super::Cache {
    /// Waits with others for `key`, or has it fetched. `look` looks once more whether it is there: a fetch
    /// that has just ended puts it there before it leaves the table.
    ///
    /// A fetch that began before a purge which covers it is for those who wait for it already: a new one
    /// takes its place.
    ///
    /// Once a fetch's head has come, to join it is to reuse what it brings: it has to be fresh by now, and
    /// for `facts` (RFC 9111 §4). `None` is for nobody who would be answered by it.
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

    /// As [`Self::join`], for nobody who would wait.
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
    /// Takes the fetch out of the table: who asks from now on does not wait for it.
    pub fn leave(&mut self) {
        if let Some((cache, key, hash)) = self.entry.take() {
            let mut shard = cache.fetches.shard(hash);
            // Another may have taken its place.
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
