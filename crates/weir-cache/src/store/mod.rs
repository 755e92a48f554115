//! Where objects are kept: shared by all threads, bounded by what they take in memory.
//!
//! Keys are spread over shards by their hash, each behind a lock that is held for one lookup or a bounded
//! number of moves ([`shard::STEPS`]). A hit finds its object, counts its use in the object itself, and moves
//! nothing. What is evicted is decided by S3-FIFO: new objects stand in a small queue, from which only those
//! that were used again reach the main one, so that a flood of requests that come once sweeps nothing else
//! out (threat E6); the ghost queue remembers which were turned away of late.
//!
//! The budget is one for all shards. Whoever inserts evicts, from the next shards that have their share of
//! the objects, and one lock at a time. The share is by number: by bytes, a shard with an object larger than
//! its part of the budget would have to give up all others and then that one. As each gives a little in turn,
//! what goes is what came at one time, and the allocator gets whole pages back.
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

/// Most shards. With more workers than this on one store, some would wait for each other; with more shards,
/// each is small.
const SHARDS: u64 = 64;

/// Least that a shard is worth, in bytes: the queues of smaller ones say little.
const SHARD_BYTES: u64 = 1 << 20;

/// Most times in a row that something is evicted under a lock: some thousand steps, less than a millisecond.
/// A large object may take the place of many small ones, and whoever puts it in has others to serve.
const ROUNDS: usize = 16;
/// No object takes more than this part of the budget: it would sweep too much out.
const LARGEST_PART: u64 = 4;

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The object that the request selects. Whether it may answer says [`crate::reuse`].
    Hit(Arc<Object>),
    /// Nothing under this key.
    Absent,
    /// Something, but not for a request such as this one (`vary`).
    VariantAbsent,
}

/// Why an object was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// A purge, or an unsafe method that succeeded, has come between its fetch and now.
    Purged,
    /// It takes more than a quarter of the budget.
    TooLarge,
    /// The object that it was to replace is gone, or was replaced by another; or one is there that came
    /// later.
    Outdated,
}

/// Objects by their keys, within a budget.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Mutex<Shard>]>,
    seed: u64,
    budget: AtomicU64,
    /// The memory of all of it, in bytes.
    bytes: AtomicU64,
    objects: AtomicU64,
    evictions: AtomicU64,
    purged: AtomicU64,
    purges: Log,
    lingering: Lingering,
    /// Where to look next for something to evict.
    next_shard: AtomicUsize,
    /// The last generation of variants that was given out.
    generation: AtomicU64,
}

impl Store {
    /// An empty store that takes at most `budget_bytes`. `seed` is a secret random number: with it known,
    /// clients could choose requests whose keys all fall into one place.
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

    /// The memory of the store, in bytes. Objects that were removed while they are being read are not in it:
    /// [`Self::lingering_bytes`].
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The memory of objects that are not in the store any more and that somebody still reads, in bytes.
    /// O(their number).
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

    /// How many objects were evicted to make room, ever.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// How many objects were purged, ever; softly too.
    pub fn purged(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }

    /// The object that a request selects of those under its key, and a count of its use.
    ///
    /// Leaves in `key` what to wait for and what to fetch under: with what the request says by the fields
    /// that `vary` names, where it is known which those are. At most two locks, one after the other;
    /// allocates nothing once `key` has room.
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

    /// The state of purges, to be taken when a fetch begins and given to [`Self::insert`] when it has ended.
    pub fn purge_sequence(&self) -> PurgeSequence {
        self.purges.sequence()
    }

    /// Whether what is fetched under `key` since `began` may be of before a purge, or an unsafe method that
    /// succeeded, which covers it: who asks now is not to wait for it. One load unless there was any.
    ///
    /// Its tags are not known yet, so that a purge of any tag covers it.
    pub fn is_outdated(&self, key: &KeyBuffer, began: PurgeSequence) -> bool {
        self.purges.covers(key.bytes(), None, self.seed, began)
    }

    /// Takes an object in, in the place of the one under its key. `key`, `head` and `buffer` are those of the
    /// request that it was fetched for; whatever variant was selected in `key` does not matter.
    ///
    /// Evicts some of what there is no room for, and holds no lock for more than a bounded number of steps.
    /// Call [`Self::settle`] after it.
    ///
    /// # Errors
    /// It is not taken in.
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

    /// The generation of variants under this key that are told apart by these names, which it makes them to
    /// be.
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
            // Behind the lock: a purge that is noted after this will find the object in the shard.
            if self.purges.covers(&object.key, Some(&object.tags), self.seed, began) {
                return Err(Refused::Purged);
            }
            // Of two fetches the one that began earlier may end later.
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

    /// Puts `new`, which [`crate::freshen`] has made of `old`, in its place.
    ///
    /// # Errors
    /// It is not taken in. `Outdated` when `old` is not there any more.
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

    /// Removes all that is kept of the key's resource, whatever fields of requests tell its responses apart,
    /// and lets no fetch that has begun put it there again (RFC 9111 §4.4 names the URI). Says whether there
    /// was anything. Locks each shard once.
    pub fn remove(&self, key: &KeyBuffer) -> bool {
        self.purges.note_uri(hash(self.seed, key.uri()));
        let Some(parts) = key.parts() else { return false };
        let mut count = 0;
        self.visit_path(marks::path_mark(parts.path, self.seed), |object| {
            let is_meant = KeyParts::uri_of(&object.key) == key.uri();
            count += u32::from(is_meant);
            is_meant
        });
        // The fields that its responses vary by are forgotten too.
        let (hash, primary) = key.primary();
        if let Some(Found::Object(object)) = self.with_shard(hash, |shard| shard.remove(hash, primary)) {
            self.objects.fetch_sub(1, Ordering::Relaxed);
            self.lingering.add([object]);
        }
        count > 0
    }

    /// Removes this one object, if it is still there.
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

    /// Keeps the content of an object in another coding too, or with an empty `body` that it is not worth it.
    /// False when the object is not there any more, has it in that coding already, or it is too large.
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

    /// Removes, or with `soft` makes stale as of `now`, all that the purge covers and whose fetch had begun
    /// before. How many those were.
    ///
    /// Goes to the objects of a path directly; for a tag, and for a prefix of one host, it looks at few
    /// objects beside those it means, and for other prefixes at all. Holds no lock for more than
    /// [`shard::VISITS`] objects.
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

    /// Shows the objects of a path, and of any other that has the same mark, to `decide`, and removes those
    /// it wants removed.
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

    /// Gives it another budget, and evicts what there is no room for then.
    pub fn resize(&self, budget_bytes: u64) {
        self.budget.store(budget_bytes, Ordering::Relaxed);
        self.make_room(0, usize::MAX);
    }

    /// Evicts some more of what there is no room for. Whether there is more: then call it again, when others
    /// have had their turn.
    pub fn settle(&self) -> bool {
        let place = self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        self.bytes() > self.budget() && !self.make_room(place, ROUNDS)
    }

    /// Evicts until all fits that can be made to, one lock at a time and from at most `rounds` of them.
    /// Whether that is done.
    fn make_room(&self, home: usize, rounds: usize) -> bool {
        let mut place = home;
        // Shards that had nothing to evict, one after another.
        let mut barren = 0;
        let mut left = rounds;
        while self.bytes() > self.budget() && barren <= 2 * self.shards.len() {
            if left == 0 {
                return false;
            }
            // The one that something was just put into comes last.
            place = (place + 1) & (self.shards.len() - 1);
            let Some(shard) = self.shards.get(place) else { return true };
            let share = (self.objects() / self.shards.len() as u64) as usize;
            let mut evicted = Vec::new();
            let mut guard = lock(shard);
            let before = guard.bytes();
            // In the second round every shard has to give.
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
            // Freed here, with no lock held.
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
        // The lowest bits choose the place within a shard.
        (hash >> 48) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        #[allow(
            clippy::indexing_slicing,
            reason = "the number of shards is a power of two, and the place is masked by it"
        )]
        lock(&self.shards[self.place(hash)])
    }

    /// Changes a shard, and accounts for what that has changed.
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

/// A panic while a lock was held has left the shard as consistent as any of its methods do: they do not call
/// out.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
