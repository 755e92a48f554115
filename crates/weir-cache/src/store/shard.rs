//! One part of the store, under one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::ghost::Ghost;
use super::index::Index;
use super::marks::Marks;
use super::queue::{Links, NONE, Queue};
use crate::object::{MOST_FREQUENT, Object};
use crate::weight;

/// Most entries that are moved or evicted per lock.
pub(super) const STEPS: usize = 64;

/// Most objects that a purge looks at per lock.
pub(super) const VISITS: usize = 1024;

/// Most entries that a purge skips by their marks alone per lock; they are adjacent in memory.
const PASSED_OVER: usize = 16 * VISITS;

/// The small queue gets one part in this many of the content.
const SMALL_PART: u64 = 10;

/// The request fields that tell the variants of one key apart.
#[derive(Debug)]
pub(super) struct Choice {
    key: Box<[u8]>,
    /// Names of request fields, in lower case and sorted.
    pub names: Box<[Box<[u8]>]>,
    /// Part of the variants' keys, so that variants of an earlier choice are never found again.
    pub generation: u64,
    frequency: AtomicU8,
}

impl Choice {
    fn weight(&self) -> u64 {
        let names: usize = self.names.iter().map(|name| weight::of(name.len())).sum();
        let own = weight::of(size_of::<Choice>() + 2 * size_of::<usize>());
        (own + weight::of(self.key.len()) + weight::of(size_of_val(&*self.names)) + names) as u64
    }
}

/// What a key can lead to.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Object(Arc<Object>),
    Choice(Arc<Choice>),
}

impl Found {
    fn key(&self) -> &[u8] {
        match self {
            Found::Object(object) => &object.key,
            Found::Choice(choice) => &choice.key,
        }
    }

    fn weight(&self) -> u64 {
        match self {
            Found::Object(object) => object.weight(),
            Found::Choice(choice) => choice.weight(),
        }
    }

    fn frequency(&self) -> u8 {
        match self {
            Found::Object(object) => object.frequency(),
            Found::Choice(choice) => choice.frequency.load(Ordering::Relaxed),
        }
    }

    fn set_frequency(&self, frequency: u8) {
        match self {
            Found::Object(object) => object.set_frequency(frequency),
            Found::Choice(choice) => choice.frequency.store(frequency, Ordering::Relaxed),
        }
    }

    fn touch(&self) {
        match self {
            Found::Object(object) => object.touch(),
            Found::Choice(choice) => {
                let before = choice.frequency.load(Ordering::Relaxed);
                choice.frequency.store((before + 1).min(MOST_FREQUENT), Ordering::Relaxed);
            }
        }
    }

    fn into_object(self) -> Option<Arc<Object>> {
        match self {
            Found::Object(object) => {
                object.set_removed();
                Some(object)
            }
            Found::Choice(_) => None,
        }
    }
}

#[derive(Debug)]
struct CacheEntry {
    /// `None` for a free entry; then `links.older` is the next free one.
    found: Option<Found>,
    hash: u64,
    links: Links,
    /// The marks by which purges select it, if it is an object.
    marks: Marks,
    /// Its neighbours in the list of objects with the same path.
    of_path: Links,
    in_main: bool,
}

fn links(entries: &mut [CacheEntry], entry: u32) -> Option<&mut Links> {
    entries.get_mut(entry as usize).map(|entry| &mut entry.links)
}

fn links_of_path(entries: &mut [CacheEntry], entry: u32) -> Option<&mut Links> {
    entries.get_mut(entry as usize).map(|entry| &mut entry.of_path)
}

fn path_of(entries: &[CacheEntry]) -> impl Fn(u32) -> u64 {
    |entry| entries.get(entry as usize).map_or(0, |entry| u64::from(entry.marks.path))
}

fn hash_of(entries: &[CacheEntry]) -> impl Fn(u32) -> u64 {
    |entry| entries.get(entry as usize).map_or(0, |entry| entry.hash)
}

/// A shard of the store; see [`super`].
#[derive(Debug)]
pub(super) struct Shard {
    index: Index,
    /// One entry of each path; the others are linked to it.
    paths: Index,
    /// The secret seed of the keys' hashes.
    seed: u64,
    entries: Vec<CacheEntry>,
    free: u32,
    small: Queue,
    main: Queue,
    ghost: Ghost,
}

impl Shard {
    pub fn new(seed: u64) -> Shard {
        Shard {
            index: Index::new(),
            paths: Index::new(),
            seed,
            entries: Vec::new(),
            free: NONE,
            small: Queue::new(),
            main: Queue::new(),
            ghost: Ghost::new(),
        }
    }

    /// Its memory, in bytes, including its own data structures.
    pub fn bytes(&self) -> u64 {
        let indices = self.index.bytes() + self.paths.bytes();
        let books = self.entries.capacity() * size_of::<CacheEntry>() + indices + self.ghost.bytes();
        self.held() + books as u64
    }

    fn held(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.small.count + self.main.count
    }

    fn locate(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let entries = &self.entries;
        self.index.find(hash, |entry| {
            entries.get(entry as usize).is_some_and(|entry| {
                entry.hash == hash && entry.found.as_ref().is_some_and(|found| found.key() == key)
            })
        })
    }

    fn found(&self, entry: u32) -> Option<&Found> {
        self.entries.get(entry as usize)?.found.as_ref()
    }

    /// What is under the key; counts as a use of it.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Found> {
        let found = self.found(self.locate(hash, key)?)?;
        found.touch();
        Some(found.clone())
    }

    /// Whether it contains this very object.
    pub fn holds(&self, object: &Arc<Object>) -> bool {
        let found = self.locate(object.hash, &object.key).and_then(|entry| self.found(entry));
        matches!(found, Some(Found::Object(found)) if Arc::ptr_eq(found, object))
    }

    /// Whether the key holds something that arrived later than `object`.
    pub fn has_newer(&self, object: &Object) -> bool {
        let found = self.locate(object.hash, &object.key).and_then(|entry| self.found(entry));
        matches!(found, Some(Found::Object(found)) if object.freshness().came_before(found.freshness()))
    }

    /// Makes these names select the variants under the key, unless they do already. Returns the generation of
    /// the variants, and the object that was there instead.
    pub fn choose_by(
        &mut self,
        hash: u64,
        key: &[u8],
        names: Box<[Box<[u8]>]>,
        generation: u64,
    ) -> (u64, Option<Arc<Object>>) {
        let found = self.locate(hash, key).and_then(|entry| self.found(entry));
        if let Some(Found::Choice(choice)) = found
            && choice.names == names
        {
            return (choice.generation, None);
        }
        let choice = Choice { key: key.into(), names, generation, frequency: AtomicU8::new(0) };
        (generation, self.set(hash, Found::Choice(Arc::new(choice))))
    }

    /// Stores an object under its key; returns the previous one.
    pub fn put(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        self.set(object.hash, Found::Object(object))
    }

    fn set(&mut self, hash: u64, found: Found) -> Option<Arc<Object>> {
        let weight = found.weight();
        let Some(place) = self.locate(hash, found.key()) else {
            self.add(hash, found, weight);
            return None;
        };
        self.leave_path(place);
        let entry = self.entries.get_mut(place as usize)?;
        let queue = if entry.in_main { &mut self.main } else { &mut self.small };
        let replaced = entry.found.replace(found)?;
        queue.bytes = queue.bytes + weight - replaced.weight();
        // A key that was requested often will be requested again, whatever is under it now.
        if let Some(found) = &entry.found {
            found.set_frequency(found.frequency().max(replaced.frequency()));
        }
        self.join_path(place);
        replaced.into_object()
    }

    fn add(&mut self, hash: u64, found: Found, weight: u64) {
        let in_main = self.ghost.recall(hash, self.count());
        let marks = Marks::default();
        let (found, of_path) = (Some(found), Links::ALONE);
        let entry = CacheEntry { found, hash, links: Links::ALONE, marks, of_path, in_main };
        let place = self.free;
        let place = if let Some(free) = self.entries.get_mut(place as usize) {
            self.free = free.links.older;
            *free = entry;
            place
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        let queue = if in_main { &mut self.main } else { &mut self.small };
        queue.push(place, weight, &mut *self.entries, links);
        self.index.insert(hash, place, hash_of(&self.entries));
        self.join_path(place);
    }

    /// Computes the marks of an object just put into an entry, and links it to those with the same path.
    fn join_path(&mut self, place: u32) {
        let Some(entry) = self.entries.get_mut(place as usize) else { return };
        let Some(Found::Object(object)) = &entry.found else { return };
        entry.marks = Marks::of(object, self.seed);
        let path = entry.marks.path;
        let Some(first) = self.first_of(path) else {
            self.paths.insert(u64::from(path), place, path_of(&self.entries));
            return;
        };
        // Behind the first, which remains the one in the index.
        let Some(of_first) = links_of_path(&mut self.entries, first) else { return };
        let older = std::mem::replace(&mut of_first.older, place);
        if let Some(own) = links_of_path(&mut self.entries, place) {
            *own = Links { newer: first, older };
        }
        if let Some(behind) = links_of_path(&mut self.entries, older) {
            behind.newer = place;
        }
    }

    /// Unlinks an object that is still in its entry from those with the same path.
    fn leave_path(&mut self, place: u32) {
        let Some(entry) = self.entries.get_mut(place as usize) else { return };
        let Some(Found::Object(_)) = &entry.found else { return };
        let path = u64::from(entry.marks.path);
        let Links { newer, older } = std::mem::replace(&mut entry.of_path, Links::ALONE);
        if let Some(behind) = links_of_path(&mut self.entries, older) {
            behind.newer = newer;
        }
        match links_of_path(&mut self.entries, newer) {
            Some(before) => before.older = older,
            None if older == NONE => self.paths.remove(path, place, path_of(&self.entries)),
            None => self.paths.replace(path, place, older),
        }
    }

    fn first_of(&self, path: u32) -> Option<u32> {
        let entries = &self.entries;
        let is =
            |entry| entries.get(entry as usize).is_some_and(|entry: &CacheEntry| entry.marks.path == path);
        self.paths.find(u64::from(path), is)
    }

    /// The entries of a path's objects, and of any other path with the same hash. O(their number).
    pub fn of_path(&self, path: u32) -> Vec<u32> {
        let next = |entry: &u32| self.entries.get(*entry as usize).map(|entry| entry.of_path.older);
        let rest = |entry: &u32| next(entry).filter(|older| *older != NONE);
        std::iter::successors(self.first_of(path), rest).collect()
    }

    /// Records that an object in the shard takes this much more memory.
    pub fn grow(&mut self, object: &Object, added: u64) {
        let place = self.locate(object.hash, &object.key);
        let Some(entry) = place.and_then(|place| self.entries.get(place as usize)) else { return };
        let queue = if entry.in_main { &mut self.main } else { &mut self.small };
        queue.bytes += added;
    }

    /// Removes what is under the key.
    pub fn remove(&mut self, hash: u64, key: &[u8]) -> Option<Found> {
        let place = self.locate(hash, key)?;
        self.take(place)
    }

    fn take(&mut self, place: u32) -> Option<Found> {
        self.leave_path(place);
        let entry = self.entries.get_mut(place as usize)?;
        let found = entry.found.take()?;
        let (hash, in_main) = (entry.hash, entry.in_main);
        let queue = if in_main { &mut self.main } else { &mut self.small };
        queue.remove(place, found.weight(), &mut *self.entries, links);
        self.index.remove(hash, place, hash_of(&self.entries));
        if let Some(own) = links(&mut self.entries, place) {
            own.older = self.free;
        }
        self.free = place;
        if let Found::Object(object) = &found {
            object.set_removed();
        }
        Some(found)
    }

    /// Evicts until `over` bytes are free or [`STEPS`] are done. Adds the objects to `evicted`, for the
    /// caller to drop without the lock, and returns whether there was anything to do.
    pub fn evict(&mut self, over: u64, evicted: &mut Vec<Arc<Object>>) -> bool {
        let mut freed = 0;
        for step in 0..STEPS {
            if freed >= over {
                break;
            }
            let small_is_large = self.small.bytes.saturating_mul(SMALL_PART) > self.held();
            let from_small = small_is_large || self.main.count == 0;
            let oldest = if from_small { self.small.oldest() } else { self.main.oldest() };
            let Some(place) = oldest else { return step > 0 };
            freed += self.step(place, evicted);
        }
        true
    }

    /// Evicts the oldest entry of its queue, or gives it another chance. Returns how many bytes that frees.
    fn step(&mut self, place: u32, evicted: &mut Vec<Arc<Object>>) -> u64 {
        let Some(entry) = self.entries.get_mut(place as usize) else { return 0 };
        let Some(found) = &entry.found else { return 0 };
        let (weight, frequency, hash) = (found.weight(), found.frequency(), entry.hash);
        if entry.in_main && frequency > 0 {
            found.set_frequency(frequency - 1);
            self.main.remove(place, weight, &mut *self.entries, links);
            self.main.push(place, weight, &mut *self.entries, links);
            return 0;
        }
        if !entry.in_main && frequency > 1 {
            found.set_frequency(0);
            entry.in_main = true;
            self.small.remove(place, weight, &mut *self.entries, links);
            self.main.push(place, weight, &mut *self.entries, links);
            return 0;
        }
        if !entry.in_main {
            self.ghost.note(hash, self.small.count + self.main.count);
        }
        evicted.extend(self.take(place).and_then(Found::into_object));
        weight
    }

    /// Calls `decide` with the next objects, from entry `from` on, whose marks `may_mean` includes, and
    /// removes those for which it returns true. Looks at no more than [`VISITS`] objects. Returns where to
    /// continue; `None` at the end.
    pub fn visit(
        &mut self,
        from: usize,
        may_mean: impl Fn(&Marks) -> bool,
        mut decide: impl FnMut(&Object) -> bool,
        removed: &mut Vec<Arc<Object>>,
    ) -> Option<usize> {
        let end = (from + PASSED_OVER).min(self.entries.len());
        let mut visits = 0;
        for place in from..end {
            let meant = |entry: &&CacheEntry| may_mean(&entry.marks);
            let Some(CacheEntry { found: Some(Found::Object(object)), .. }) =
                self.entries.get(place).filter(meant)
            else {
                continue;
            };
            if decide(object) {
                removed.extend(self.take(place as u32).and_then(Found::into_object));
            }
            visits += 1;
            if visits == VISITS {
                return Some(place + 1);
            }
        }
        (end < self.entries.len()).then_some(end)
    }

    /// Calls `decide` with the objects now in these entries, and removes those for which it returns true.
    pub fn visit_these(
        &mut self,
        places: &[u32],
        mut decide: impl FnMut(&Object) -> bool,
        removed: &mut Vec<Arc<Object>>,
    ) {
        for &place in places {
            if matches!(self.found(place), Some(Found::Object(object)) if decide(object)) {
                removed.extend(self.take(place).and_then(Found::into_object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_no_more_than_a_cache_line() {
        assert!(size_of::<CacheEntry>() <= 64, "{}", size_of::<CacheEntry>());
    }
}
