//! Finds entries by the hashes of their keys: open addressing, four bytes per slot.
//!
//! The hashes themselves are in the entries. A removal moves up the entries that follow, so that there are no
//! tombstones to sweep.

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Index {
    /// Its length is a power of two; at most three quarters are in use.
    places: Vec<u32>,
    count: usize,
}

impl Index {
    pub fn new() -> Index {
        Index { places: vec![NONE; 8], count: 0 }
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }

    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    fn at(&self, place: usize) -> u32 {
        self.places.get(place).copied().unwrap_or(NONE)
    }

    fn set(&mut self, place: usize, entry: u32) {
        if let Some(found) = self.places.get_mut(place) {
            *found = entry;
        }
    }

    /// The entry with this hash for which `is` holds.
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut place = hash as usize & self.mask();
        loop {
            match self.at(place) {
                NONE => return None,
                entry if is(entry) => return Some(entry),
                _ => place = (place + 1) & self.mask(),
            }
        }
    }

    /// Adds an entry that is not in it. `hash_of` returns the hash of any entry.
    pub fn insert(&mut self, hash: u64, entry: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.count + 1) * 4 > self.places.len() * 3 {
            let doubled = vec![NONE; self.places.len() * 2];
            let before = std::mem::replace(&mut self.places, doubled);
            for moved in before.into_iter().filter(|entry| *entry != NONE) {
                self.place(hash_of(moved), moved);
            }
        }
        self.place(hash, entry);
        self.count += 1;
    }

    fn place(&mut self, hash: u64, entry: u32) {
        let mut place = hash as usize & self.mask();
        while self.at(place) != NONE {
            place = (place + 1) & self.mask();
        }
        self.set(place, entry);
    }

    /// Replaces an entry by another one with the same hash.
    pub fn replace(&mut self, hash: u64, entry: u32, by: u32) {
        let mut place = hash as usize & self.mask();
        while self.at(place) != NONE {
            if self.at(place) == entry {
                return self.set(place, by);
            }
            place = (place + 1) & self.mask();
        }
    }

    /// Removes an entry that is in it.
    pub fn remove(&mut self, hash: u64, entry: u32, hash_of: impl Fn(u32) -> u64) {
        let mask = self.mask();
        let mut hole = hash as usize & mask;
        while self.at(hole) != entry {
            if self.at(hole) == NONE {
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.count -= 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let moved = self.at(place);
            if moved == NONE {
                break;
            }
            // It may move up unless its own place lies after the hole.
            let home = hash_of(moved) as usize & mask;
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.set(hole, moved);
                hole = place;
            }
        }
        self.set(hole, NONE);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hashes of few bits, so that everything collides.
        #[test]
        fn it_holds_what_a_set_would(steps in proptest::collection::vec((any::<bool>(), 0_u32..64), 0..300), spread in 0_u64..9) {
            let hash_of = |entry: u32| u64::from(entry).wrapping_mul(spread);
            let (mut index, mut set) = (Index::new(), BTreeSet::new());
            for (insert, entry) in steps {
                if insert && set.insert(entry) {
                    index.insert(hash_of(entry), entry, hash_of);
                } else if !insert && set.remove(&entry) {
                    index.remove(hash_of(entry), entry, hash_of);
                }
                for entry in 0..64 {
                    let found = index.find(hash_of(entry), |found| found == entry);
                    prop_assert_eq!(found.is_some(), set.contains(&entry));
                }
            }
        }
    }
}
