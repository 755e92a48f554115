//! Buckets by key: bounded memory, constant time, and no key loses its debt because others make new ones.
//!
//! Each key has two places of eight cells, and uses whichever was emptier when it came. A full bucket carries
//! no information, so its cell is free for the next key: nothing is swept, grown or moved. If both places
//! hold sixteen debts, the new key shares one of a fixed number of overflow buckets with others: it never
//! gets more than its rate, though it may get less, and this is counted.
//!
//! Source: Azar, Broder, Karlin, Upfal, "Balanced Allocations", 1999.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bucket::{Bucket, Ticks};
use crate::digest::Digest;
use crate::token_counts::TokenCounts;

/// Cells of one place, count.
const WAYS: usize = 8;
/// Most shards of a table (count). Each has its own lock, held for some dozens of nanoseconds.
const SHARDS: usize = 64;
/// Keys that justify another shard (count).
const SHARD_KEYS: usize = 256;
/// Overflow buckets, shared by keys without room (count).
const OVERFLOW: usize = 1024;

/// Cells examined under one lock when counting: a few microseconds' worth.
const COUNTED_AT_ONCE: usize = 2_048;

/// Digest, and the time when the bucket is full; all zero for a free cell.
pub(crate) type Cell = [u64; 3];

/// The buckets of one limit.
pub(crate) struct Table {
    shards: Box<[Shard]>,
    places: u64,
    overflow: Box<[AtomicU64]>,
    overflowed: AtomicU64,
}

#[repr(align(128))]
struct Shard(Mutex<ShardCells>);

struct ShardCells {
    cells: Box<[Cell]>,
    /// What the keys of the cells took, for other Weirs; `None` if nobody is told.
    counts: Option<TokenCounts>,
}

impl ShardCells {
    fn new(cells: usize, is_shared: bool) -> ShardCells {
        let counts = is_shared.then(|| TokenCounts::new(cells));
        ShardCells { cells: vec![[0; 3]; cells].into_boxed_slice(), counts }
    }

    fn note(&mut self, at: usize, tokens: i32) {
        if let Some(counts) = &mut self.counts {
            counts.note(at, tokens);
        }
    }

    /// Gives the cell, whose bucket is full, to another key.
    fn enter(&mut self, at: usize, cell: Cell) {
        if let Some(counts) = &mut self.counts {
            counts.leave(at, self.cells[at]);
        }
        self.cells[at] = cell;
    }

    /// Empties the cell; returns the time when its bucket would have been full.
    fn clear(&mut self, at: usize) -> Ticks {
        if let Some(counts) = &mut self.counts {
            counts.forget(at);
        }
        std::mem::take(&mut self.cells[at])[2]
    }
}

/// Where the bucket of a key is.
enum Found {
    /// In this cell.
    There(usize),
    /// Nowhere, but this cell is free.
    Room(usize),
    /// Nowhere, and no cell is free.
    Full,
}

impl Table {
    /// A table for this many keys at once, which notes what they take for [`Self::look`] if it is shared.
    /// Untouched memory is never allocated by the kernel.
    pub fn new(keys: u32, is_shared: bool) -> Table {
        let keys = keys.max(1) as usize;
        let shards = (keys / SHARD_KEYS).next_power_of_two().clamp(1, SHARDS);
        // A third more than requested: then two places of eight have room for all.
        let places = (keys + keys / 3).div_ceil(shards * WAYS) + 1;
        let shard = || Shard(Mutex::new(ShardCells::new(places * WAYS, is_shared)));
        Table {
            shards: (0..shards).map(|_| shard()).collect(),
            places: places as u64,
            overflow: (0..OVERFLOW).map(|_| AtomicU64::new(0)).collect(),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Takes a token from the key's bucket; `Err` says how long until there is one.
    pub fn take(&self, digest: Digest, bucket: &Bucket, now: Ticks) -> Result<(), Ticks> {
        self.change(digest, now, |full_at| bucket.take(full_at, now))
    }

    /// Takes a token from the key's bucket, as a debt if there is none.
    pub fn charge(&self, digest: Digest, bucket: &Bucket, now: Ticks) {
        // It never fails.
        let _ = self.change(digest, now, |full_at| Ok(bucket.charge(full_at, now)));
    }

    /// Sets the time when the key's bucket is full to the result of `next`, which gets the present one.
    fn change(
        &self,
        [low, high]: Digest,
        now: Ticks,
        next: impl Fn(Ticks) -> Result<Ticks, Ticks>,
    ) -> Result<(), Ticks> {
        let mut shard = self.shard(low);
        match self.find(&shard.cells, [low, high], now) {
            Found::There(at) => {
                shard.cells[at][2] = next(shard.cells[at][2])?;
                shard.note(at, 1);
                Ok(())
            }
            Found::Room(at) => {
                // A debt from when there was no room for the key, or of others that shared the bucket.
                let owed = self.shared(high).load(Relaxed);
                let after = next(owed)?;
                shard.enter(at, [low, high, after]);
                shard.note(at, 1);
                Ok(())
            }
            Found::Full => {
                drop(shard);
                self.overflowed.fetch_add(1, Relaxed);
                change_shared(self.shared(high), next)
            }
        }
    }

    /// Sets the time when the key's bucket is full to what follows from another Weir's word. This is not
    /// noted, or it would be told back.
    pub fn merge(&self, [low, high]: Digest, now: Ticks, next: impl Fn(Ticks) -> Ticks) {
        let mut shard = self.shard(low);
        match self.find(&shard.cells, [low, high], now) {
            Found::There(at) => shard.cells[at][2] = next(shard.cells[at][2]),
            Found::Room(at) => {
                let owed = self.shared(high).load(Relaxed);
                let after = next(owed);
                // A full bucket needs no cell.
                if after > now.max(owed) {
                    shard.enter(at, [low, high, after]);
                }
            }
            Found::Full => {
                drop(shard);
                self.overflowed.fetch_add(1, Relaxed);
                let _ = self.shared(high).fetch_update(Relaxed, Relaxed, |owed| Some(next(owed)));
            }
        }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Cells of each shard (count).
    pub fn shard_cells(&self) -> usize {
        self.places as usize * WAYS
    }

    /// Takes what was noted in a shard since the last look, and lists the debts in the `scanned` cells: of a
    /// key in these cells, all that it took is in the debt. `noted` gets a cell, its key and its tokens.
    pub fn look(
        &self,
        shard: usize,
        scanned: Range<usize>,
        now: Ticks,
        noted: impl FnMut(usize, Digest, i32),
        mut owing: impl FnMut(Digest, Ticks),
    ) {
        let Some(shard) = self.shards.get(shard) else { return };
        let mut shard = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ShardCells { cells, counts } = &mut *shard;
        if let Some(counts) = counts {
            counts.take(cells, noted);
        }
        for [low, high, full_at] in cells.get(scanned).into_iter().flatten() {
            if let Some(owed) = full_at.checked_sub(now).filter(|owed| *owed > 0) {
                owing([*low, *high], owed);
            }
        }
    }

    /// Returns a token.
    pub fn give_back(&self, [low, high]: Digest, bucket: &Bucket, now: Ticks) {
        let mut shard = self.shard(low);
        if let Found::There(at) = self.find(&shard.cells, [low, high], now) {
            shard.cells[at][2] = bucket.give_back(shard.cells[at][2]);
            shard.note(at, -1);
        }
    }

    /// Fills the key's own bucket; returns whether it was not full. A shared bucket stays as it is, because
    /// others owe that debt too.
    pub fn clear(&self, [low, high]: Digest, now: Ticks) -> bool {
        let mut shard = self.shard(low);
        let Found::There(at) = self.find(&shard.cells, [low, high], now) else { return false };
        shard.clear(at) > now
    }

    /// Fills all buckets, shared ones too; returns whether any was not full.
    pub fn clear_all(&self, now: Ticks) -> bool {
        let mut any = false;
        for shard in &self.shards {
            let mut shard = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
            for at in 0..shard.cells.len() {
                // Don't write to untouched memory, so that the kernel need not allocate it.
                if shard.cells[at][2] > 0 {
                    any |= shard.clear(at) > now;
                }
            }
        }
        for full_at in &self.overflow {
            any |= full_at.swap(0, Relaxed) > now;
        }
        any
    }

    /// Number of keys with debts. Looks at every cell, a few at a time so that nobody waits for long.
    pub fn owing(&self, now: Ticks) -> u64 {
        let owing = |shard: &Shard, begin: usize| {
            let shard = shard.0.lock().unwrap_or_else(PoisonError::into_inner);
            let end = shard.cells.len().min(begin + COUNTED_AT_ONCE);
            shard.cells[begin..end].iter().filter(|cell| cell[2] > now).count() as u64
        };
        let begins = || (0..self.shard_cells()).step_by(COUNTED_AT_ONCE);
        self.shards.iter().flat_map(|shard| begins().map(|begin| owing(shard, begin))).sum()
    }

    /// The time when the key's bucket is full.
    pub fn full_at(&self, [low, high]: Digest, now: Ticks) -> Ticks {
        let shard = self.shard(low);
        match self.find(&shard.cells, [low, high], now) {
            Found::There(at) => shard.cells[at][2],
            Found::Room(_) | Found::Full => self.shared(high).load(Relaxed),
        }
    }

    /// How often a key found no room of its own (count).
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Relaxed)
    }

    fn shard(&self, low: u64) -> MutexGuard<'_, ShardCells> {
        let shard = &self.shards[low as usize & (self.shards.len() - 1)];
        shard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self, high: u64) -> &AtomicU64 {
        &self.overflow[high as usize % OVERFLOW]
    }

    fn find(&self, cells: &[Cell], [low, high]: Digest, now: Ticks) -> Found {
        // The upper halves determine the places, the lower ones the shard and the shared bucket.
        let place = |bits: u64| (((bits >> 32) * self.places) >> 32) as usize * WAYS;
        let (first, second) = (place(low), place(high));
        let mut best = (None, 0);
        for start in [first, second] {
            let (mut free, mut free_count) = (None, 0);
            for (at, cell) in cells[start..start + WAYS].iter().enumerate() {
                if cell[0] == low && cell[1] == high {
                    return Found::There(start + at);
                }
                if cell[2] <= now {
                    free = Some(start + at);
                    free_count += 1;
                }
            }
            if free_count > best.1 {
                best = (free, free_count);
            }
        }
        best.0.map_or(Found::Full, Found::Room)
    }
}

/// [`Table::change`] for a bucket that several threads share.
pub(crate) fn change_shared(
    full_at: &AtomicU64,
    next: impl Fn(Ticks) -> Result<Ticks, Ticks>,
) -> Result<(), Ticks> {
    let mut before = full_at.load(Relaxed);
    loop {
        let after = next(before)?;
        match full_at.compare_exchange_weak(before, after, Relaxed, Relaxed) {
            Ok(_) => return Ok(()),
            Err(changed) => before = changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::ticks;
    use crate::digest::digest;
    use crate::rate::Rate;
    use std::time::Duration;

    fn key(number: u64) -> Digest {
        digest([3, 4], 0, &number.to_le_bytes())
    }

    fn slow() -> Bucket {
        Bucket::new(Rate::parse("1/h").unwrap(), 1)
    }

    #[test]
    fn as_many_keys_as_asked_for_have_a_bucket_of_their_own() {
        for keys in [1u32, 10, 100, 1_000, 50_000] {
            let table = Table::new(keys, false);
            for number in 0..u64::from(keys) {
                assert!(table.take(key(number), &slow(), ticks(Duration::from_secs(1))).is_ok());
            }
            // A few keys may be unlucky: fewer than one in a thousand.
            assert!(table.overflowed() <= u64::from(keys) / 1_000, "{} of {keys}", table.overflowed());
        }
    }

    #[test]
    fn a_flood_of_keys_makes_nobody_forget_what_another_owes() {
        let (table, now) = (Table::new(1_000, false), ticks(Duration::from_secs(1)));
        let victims = || (0..500).map(key);
        assert!(victims().all(|victim| table.take(victim, &slow(), now).is_ok()));
        let before = table.overflowed();
        for number in 1_000..1_000_000 {
            let _ = table.take(key(number), &slow(), now);
        }
        assert!(table.overflowed() > before + 900_000, "the flood found no room");
        assert!(victims().all(|victim| table.take(victim, &slow(), now).is_err()), "every debt stands");
    }

    #[test]
    fn who_finds_no_room_is_limited_all_the_same() {
        let (table, now) = (Table::new(100, false), ticks(Duration::from_secs(1)));
        (0..10_000).for_each(|number| _ = table.take(key(number), &slow(), now));
        let bucket = Bucket::new(Rate::parse("10/s").unwrap(), 10);
        let newcomer = key(99_999_999);
        let passed = (0..100).filter(|_| table.take(newcomer, &bucket, now + 1).is_ok()).count();
        assert!(passed <= 10, "{passed} of 100 passed");
    }

    #[test]
    fn room_comes_back_when_debts_are_paid_and_what_was_owed_in_common_is_taken_along() {
        let (table, now) = (Table::new(100, false), ticks(Duration::from_secs(1)));
        let bucket = Bucket::new(Rate::parse("1/s").unwrap(), 1);
        (0..10_000).for_each(|number| _ = table.take(key(number), &bucket, now));
        let newcomer = key(99_999_999);
        assert!(table.take(newcomer, &bucket, now).is_err(), "shares a bucket that is empty");
        let later = now + ticks(Duration::from_secs(1));
        assert!(table.take(newcomer, &bucket, later).is_ok());
        let overflowed = table.overflowed();
        (20_000..20_050).for_each(|number| assert!(table.take(key(number), &bucket, later).is_ok()));
        assert_eq!(table.overflowed(), overflowed, "their cells are free again");
    }

    #[test]
    fn who_gets_a_bucket_of_his_own_takes_along_what_he_owes() {
        let (table, now) = (Table::new(100, false), ticks(Duration::from_secs(1)));
        let quick = Bucket::new(Rate::parse("1/s").unwrap(), 1);
        (0..500).for_each(|number| _ = table.take(key(number), &quick, now));
        // A key without room that shares a bucket in which there are still tokens.
        let shares = |number: &u64| {
            let before = table.overflowed();
            table.take(key(*number), &slow(), now).is_ok() && table.overflowed() > before
        };
        let newcomer = key((1_000_000..).find(shares).unwrap());
        // By now all other debts are paid, and their cells free.
        let later = now + ticks(Duration::from_secs(2));
        let overflowed = table.overflowed();
        assert!(table.take(newcomer, &slow(), later).is_err(), "an hour is not over");
        assert_eq!(table.overflowed(), overflowed, "there is room");
    }

    #[test]
    fn what_is_charged_is_owed_by_that_key_alone() {
        let (table, now) = (Table::new(10, false), ticks(Duration::from_secs(1)));
        let bucket = Bucket::new(Rate::parse("1/s").unwrap(), 1);
        (0..3).for_each(|_| table.charge(key(1), &bucket, now));
        assert!(table.take(key(2), &bucket, now).is_ok());
        assert_eq!(table.take(key(1), &bucket, now), Err(ticks(Duration::from_secs(3))));
        assert!(table.take(key(1), &bucket, now + ticks(Duration::from_secs(3))).is_ok());
    }

    #[test]
    fn what_is_cleared_is_that_keys_alone_or_all_of_it() {
        let (table, now) = (Table::new(100, false), ticks(Duration::from_secs(1)));
        let take = |number| table.take(key(number), &slow(), now).is_ok();
        assert!(take(1) && take(2) && !take(1) && !take(2));
        assert!(table.clear(key(1), now) && !table.clear(key(1), now) && !table.clear(key(3), now));
        assert!(take(1) && !take(2), "2 owes as before");
        // Most of these share buckets.
        (10..10_000).for_each(|number| _ = take(number));
        assert!(table.clear_all(now) && !table.clear_all(now));
        assert!(take(1) && take(2) && take(99_999_999));
    }

    #[test]
    fn keys_that_owe_something_are_counted_until_they_have_paid() {
        let (table, now) = (Table::new(100_000, false), ticks(Duration::from_secs(1)));
        assert_eq!(table.owing(now), 0);
        (0..50_000).for_each(|number| assert!(table.take(key(number), &slow(), now).is_ok()));
        assert_eq!(table.owing(now), 50_000);
        assert!(table.clear(key(7), now));
        assert_eq!((table.owing(now), table.owing(now + ticks(Duration::from_secs(3_600)))), (49_999, 0));
    }

    #[test]
    fn what_is_given_back_is_there_again() {
        let (table, now) = (Table::new(10, false), ticks(Duration::from_secs(1)));
        assert!(table.take(key(1), &slow(), now).is_ok());
        assert!(table.take(key(1), &slow(), now).is_err());
        table.give_back(key(1), &slow(), now);
        assert!(table.take(key(1), &slow(), now).is_ok());
    }
}
