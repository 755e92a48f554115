//! The object store: shared by all threads, bounded by memory.
//!
//! Keys are spread over shards by their hash. Each shard has a lock, which is held for one lookup or a
//! bounded number of moves ([`shard::STEPS`]). A hit finds its object, counts the use in the object itself,
//! and moves nothing. S3-FIFO decides what to evict: new objects enter a small queue, and only those that are
//! used again reach the main queue, so that a flood of requests that come only once evicts nothing else
//! (threat E6). The ghost queue remembers which keys were evicted recently.
//!
//! One budget covers all shards. The thread that inserts also evicts, from the next shards that have at least
//! their share of the objects, one lock at a time. The share is by number: by bytes, a shard with an object
//! larger than its part of the budget would have to drop all others and then that one. As each shard evicts a
//! little in turn, objects that came at the same time go together, and the allocator gets whole pages back.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.

mod ghost;
mod index;
mod lingering;
mod marks;
mod purges;
mod queue;
mod shard;
#[cfg(test)]
mod tests;

pub use purges::{Purge, PurgeSequence};

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_http::values::accept_encoding::Coding;
use weir_http::values::vary::Vary;
use weir_http::{KnownHeader, RequestHead};

use crate::key::{KeyBuffer, KeyParts, hash};
use crate::object::{Body, Object};
use lingering::Lingering;
use marks::Meant;
use purges::Log;
use shard::{Found, Shard};

/// Most shards. With many more workers than this on one store, some would wait for each other; with more
/// shards, each would be small.
const SHARDS: u64 = 64;

/// Least size of a shard, in bytes: the queues of a smaller one would say little about use.
const SHARD_BYTES: u64 = 1 << 20;

/// Most evictions in a row by one caller: some thousand steps, less than a millisecond. A large object may
/// replace many small ones, and the worker that inserts it has other clients to serve.
const ROUNDS: usize = 16;
/// No object takes more than this part of the budget: it would evict too much.
const LARGEST_PART: u64 = 4;

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The object that the request selects. [`crate::reuse`] says whether it may answer.
    Hit(Arc<Object>),
    /// Nothing under this key.
    Absent,
    /// Something, but no variant for this request (`vary`).
    VariantAbsent,
}

/// Why an object was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// A purge, or an unsafe method that succeeded, came after its fetch began.
    Purged,
    /// It takes more than a quarter of the budget.
    TooLarge,
    /// The object that it was to replace is gone or was itself replaced, or a newer one is there.
    Outdated,
}

/// Objects by their keys, within a budget.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Mutex<Shard>]>,
    seed: u64,
    budget: AtomicU64,
    /// The memory of the whole store, in bytes.
    bytes: AtomicU64,
    objects: AtomicU64,
    evictions: AtomicU64,
    purged: AtomicU64,
    purges: Log,
    lingering: Lingering,
    /// The next shard in which to look for something to evict.
    next_shard: AtomicUsize,
    /// The last generation of variants that was assigned.
    generation: AtomicU64,
}

impl Store {
    /// An empty store that takes at most `budget_bytes`. `seed` is a secret random number: clients who knew
    /// it could choose requests whose keys all collide.
    pub fn new(budget_bytes: u64, seed: u64) -> Store {
        let count = (budget_bytes / SHARD_BYTES).clamp(1, SHARDS);
        let count = 1_usize << count.ilog2();
        Store {
            shards: (0..count).map(|_| Mutex::new(Shard::new(seed))).collect(),
            seed,
            budget: AtomicU64::new(budget_bytes),
            bytes: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            purges: Log::default(),
            lingering: Lingering::default(),
            next_shard: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// The seed, for [`KeyBuffer::build`].
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The memory of the store, in bytes. Objects that were removed while they are still read are not
    /// included: see [`Self::lingering_bytes`].
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memory of objects that are no longer in the store but are still read, in bytes. O(their number).
    pub fn lingering_bytes(&self) -> u64 {
        self.lingering.bytes()
    }

    /// Its budget, in bytes.
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// How many objects there are.
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Number of objects evicted to make room, ever.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Number of objects purged, ever; soft purges included.
    pub fn purged(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }

    /// The object under its key that a request selects; counts as a use.
    ///
    /// Leaves in `key` the key to wait for and to fetch under; it includes the request's values of the fields
    /// that `vary` names, if those are known. At most two locks, one after the other; allocates nothing once
    /// `key` has capacity.
    pub fn get(&self, key: &mut KeyBuffer, head: &RequestHead, buffer: &[u8]) -> Lookup {
        key.back_to_primary();
        let found = self.shard(key.hash()).find(key.hash(), key.bytes());
        let choice = match found {
            None => return Lookup::Absent,
            Some(Found::Object(object)) => return Lookup::Hit(object),
            Some(Found::Choice(choice)) => choice,
        };
        key.select_names(&choice.names, choice.generation, head, buffer);
        let found = self.shard(key.hash()).find(key.hash(), key.bytes());
        match found {
            Some(Found::Object(object)) => Lookup::Hit(object),
            _ => Lookup::VariantAbsent,
        }
    }

    /// The state of purges: take it when a fetch begins, and pass it to [`Self::insert`] when it has ended.
    pub fn purge_sequence(&self) -> PurgeSequence {
        self.purges.sequence()
    }

    /// Whether a purge, or an unsafe method that succeeded, has come since `began` and may cover what is
    /// being fetched under `key`: new requests must not wait for that fetch. One load if there was none.
    ///
    /// The tags are not known yet, so a purge of any tag counts.
    pub fn is_outdated(&self, key: &KeyBuffer, began: PurgeSequence) -> bool {
        self.purges.covers(key.bytes(), None, self.seed, began)
    }

    /// Stores an object, replacing the one under its key. `key`, `head` and `buffer` are those of the request
    /// that caused the fetch; it does not matter which variant was selected in `key`.
    ///
    /// Evicts some of the excess, and holds no lock for more than a bounded number of steps. Call
    /// [`Self::settle`] afterwards.
    ///
    /// # Errors
    /// The object was not stored.
    pub fn insert(
        &self,
        key: &KeyBuffer,
        head: &RequestHead,
        buffer: &[u8],
        object: Object,
        began: PurgeSequence,
    ) -> Result<Arc<Object>, Refused> {
        let mut key = key.clone();
        key.back_to_primary();
        if let Vary::Names(names) = Vary::of(object.head().values(KnownHeader::Vary, object.text())) {
            let generation = self.choose_by(&key, names.clone().into_boxed_slice());
            key.select_names(&names, generation, head, buffer);
        }
        self.put(&key, object, began)
    }

    /// Makes these names select the variants under this key, and returns the generation of those variants.
    fn choose_by(&self, key: &KeyBuffer, names: Box<[Box<[u8]>]>) -> u64 {
        let fresh = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let (generation, replaced) =
            self.with_shard(key.hash(), |shard| shard.choose_by(key.hash(), key.bytes(), names, fresh));
        if let Some(replaced) = replaced {
            self.objects.fetch_sub(1, Ordering::Relaxed);
            self.lingering.add([replaced]);
        }
        generation
    }

    fn put(&self, key: &KeyBuffer, mut object: Object, began: PurgeSequence) -> Result<Arc<Object>, Refused> {
        object.key = key.bytes().into();
        object.hash = key.hash();
        object.began = began.number();
        object.weigh();
        if object.weight() > self.budget() / LARGEST_PART {
            return Err(Refused::TooLarge);
        }
        let object = Arc::new(object);
        let replaced = self.with_shard(key.hash(), |shard| {
            // Inside the lock: a purge that is recorded after this will find the object in the shard.
            if self.purges.covers(&object.key, Some(&object.tags), self.seed, began) {
                return Err(Refused::Purged);
            }
            // Of two fetches, the one that began earlier may end later.
            if shard.has_newer(&object) {
                return Err(Refused::Outdated);
            }
            Ok(shard.put(Arc::clone(&object)))
        })?;
        match replaced {
            Some(replaced) => self.lingering.add([replaced]),
            None => _ = self.objects.fetch_add(1, Ordering::Relaxed),
        }
        self.make_room(self.place(key.hash()), ROUNDS);
        Ok(object)
    }

    /// Replaces `old` by `new`, which [`crate::freshen`] has made from it.
    ///
    /// # Errors
    /// The object was not stored. `Outdated` when `old` is no longer there.
    pub fn freshened(
        &self,
        old: &Arc<Object>,
        mut new: Object,
        began: PurgeSequence,
    ) -> Result<Arc<Object>, Refused> {
        new.key = old.key.clone();
        new.hash = old.hash;
        new.began = began.number();
        new.set_frequency(old.frequency());
        new.weigh();
        let new = Arc::new(new);
        let replaced = self.with_shard(old.hash, |shard| {
            if !shard.holds(old) {
                return Err(Refused::Outdated);
            }
            if self.purges.covers(&new.key, Some(&new.tags), self.seed, began) {
                return Err(Refused::Purged);
            }
            Ok(shard.put(Arc::clone(&new)))
        });
        replaced?;
        self.make_room(self.place(old.hash), ROUNDS);
        Ok(new)
    }

    /// Removes everything stored for the key's resource, whatever request fields select its variants, and
    /// keeps fetches that have begun from storing it again (RFC 9111 §4.4 names the URI). Returns whether
    /// there was anything. Locks each shard once.
    pub fn remove(&self, key: &KeyBuffer) -> bool {
        self.purges.note_uri(hash(self.seed, key.uri()));
        let Some(parts) = key.parts() else { return false };
        let mut count = 0;
        self.visit_path(marks::path_mark(parts.path, self.seed), |object| {
            let is_meant = KeyParts::uri_of(&object.key) == key.uri();
            count += u32::from(is_meant);
            is_meant
        });
        // The names by which its variants are selected are forgotten too.
        let (hash, primary) = key.primary();
        if let Some(Found::Object(object)) = self.with_shard(hash, |shard| shard.remove(hash, primary)) {
            self.objects.fetch_sub(1, Ordering::Relaxed);
            self.lingering.add([object]);
        }
        count > 0
    }

    /// Removes this very object, if it is still there.
    pub fn discard(&self, object: &Arc<Object>) -> bool {
        let removed = self.with_shard(object.hash, |shard| {
            if shard.holds(object) { shard.remove(object.hash, &object.key) } else { None }
        });
        if removed.is_none() {
            return false;
        }
        self.objects.fetch_sub(1, Ordering::Relaxed);
        self.lingering.add([Arc::clone(object)]);
        true
    }

    /// Stores the content of an object in another coding as well; an empty `body` records that the coding is
    /// not worthwhile. False when the object is no longer there, already has that coding, or would be too
    /// large.
    pub fn encode(&self, object: &Arc<Object>, coding: Coding, body: Body) -> bool {
        let added = object.encoding_weight(&body);
        if coding == Coding::Identity || object.weight() + added > self.budget() / LARGEST_PART {
            return false;
        }
        let kept = self.with_shard(object.hash, |shard| {
            let kept = shard.holds(object) && object.set_encoded(coding, body);
            if kept {
                object.add_weight(added);
                shard.grow(object, added);
            }
            kept
        });
        self.make_room(self.place(object.hash), ROUNDS);
        kept
    }

    /// Removes everything that the purge covers and whose fetch began before it, or with `soft` makes it
    /// stale as of `now`. Returns the number of objects.
    ///
    /// Finds the objects of a path directly. For a tag, or a prefix on one host, it looks at few other
    /// objects; for other prefixes it looks at all. Holds no lock for more than [`shard::VISITS`] objects.
    pub fn purge(&self, purge: &Purge, soft: bool, now: Duration) -> u64 {
        let number = self.purges.note(purge);
        let meant = Meant::by(purge, self.seed);
        let mut count = 0;
        let mut decide = |object: &Object| {
            let covered = object.began < number && purge.covers(object);
            if covered {
                count += 1;
                if soft {
                    object.set_soft_purged(now);
                }
            }
            covered && !soft
        };
        if let Meant::OfPath(path) = meant {
            self.visit_path(path, &mut decide);
            self.purged.fetch_add(count, Ordering::Relaxed);
            return count;
        }
        for shard in &self.shards {
            let mut at = Some(0);
            while let Some(from) = at {
                let may_mean = |marks: &_| meant.includes(marks);
                at = self.visit(shard, |shard, removed| shard.visit(from, may_mean, &mut decide, removed));
            }
        }
        self.purged.fetch_add(count, Ordering::Relaxed);
        count
    }

    /// Calls `decide` with the objects of a path (and of others with the same mark), and removes those for
    /// which it returns true.
    fn visit_path(&self, path: u32, mut decide: impl FnMut(&Object) -> bool) {
        for shard in &self.shards {
            let places = lock(shard).of_path(path);
            for some in places.chunks(shard::VISITS) {
                self.visit(shard, |shard, removed| shard.visit_these(some, &mut decide, removed));
            }
        }
    }

    /// Lets `visit` remove objects from a shard.
    fn visit<T>(
        &self,
        shard: &Mutex<Shard>,
        visit: impl FnOnce(&mut Shard, &mut Vec<Arc<Object>>) -> T,
    ) -> T {
        let mut removed = Vec::new();
        let mut guard = lock(shard);
        let before = guard.bytes();
        let result = visit(&mut guard, &mut removed);
        let after = guard.bytes();
        drop(guard);
        self.account(before, after);
        self.objects.fetch_sub(removed.len() as u64, Ordering::Relaxed);
        self.lingering.add(removed);
        result
    }

    /// Changes the budget, and evicts what no longer fits.
    pub fn resize(&self, budget_bytes: u64) {
        self.budget.store(budget_bytes, Ordering::Relaxed);
        self.make_room(0, usize::MAX);
    }

    /// Evicts some more of the excess. Returns whether there is more: then call it again after serving
    /// others.
    pub fn settle(&self) -> bool {
        let place = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        self.bytes() > self.budget() && !self.make_room(place, ROUNDS)
    }

    /// Evicts until everything fits as far as possible, one lock at a time, taking at most `rounds` locks.
    /// Returns whether that is done.
    fn make_room(&self, home: usize, rounds: usize) -> bool {
        let mut place = home;
        // Number of shards in a row that had nothing to evict.
        let mut barren = 0;
        let mut left = rounds;
        while self.bytes() > self.budget() && barren <= 2 * self.shards.len() {
            if left == 0 {
                return false;
            }
            // The shard that was just inserted into comes last.
            place = (place + 1) & (self.shards.len() - 1);
            let Some(shard) = self.shards.get(place) else { return true };
            let share = (self.objects() / self.shards.len() as u64) as usize;
            let mut evicted = Vec::new();
            let mut guard = lock(shard);
            let before = guard.bytes();
            // In the second round every shard has to evict.
            let mut moved = false;
            if guard.count() >= share.max(1) || barren >= self.shards.len() {
                let over = self.bytes().saturating_sub(self.budget());
                moved = guard.evict(over, &mut evicted);
            }
            let after = guard.bytes();
            drop(guard);
            self.account(before, after);
            let count = evicted.len() as u64;
            self.objects.fetch_sub(count, Ordering::Relaxed);
            self.evictions.fetch_add(count, Ordering::Relaxed);
            // Freed here, without a lock.
            self.lingering.add(evicted);
            if moved {
                barren = 0;
                left -= 1;
            } else {
                barren += 1;
            }
        }
        true
    }

    fn place(&self, hash: u64) -> usize {
        // The lowest bits determine the place within a shard.
        (hash >> 48) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        #[allow(
            clippy::indexing_slicing,
            reason = "the number of shards is a power of two, and the place is masked by it"
        )]
        lock(&self.shards[self.place(hash)])
    }

    /// Changes a shard, and updates the totals accordingly.
    fn with_shard<T>(&self, hash: u64, change: impl FnOnce(&mut Shard) -> T) -> T {
        let mut shard = self.shard(hash);
        let before = shard.bytes();
        let result = change(&mut shard);
        let after = shard.bytes();
        drop(shard);
        self.account(before, after);
        result
    }

    fn account(&self, before: u64, after: u64) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// A panic under the lock leaves the shard as consistent as its methods do: they call no foreign code.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
