//! Maglev hashing: a lookup table that gives every backend its share and moves few keys when backends come
//! and go.
//!
//! The kernel plane copies the same table into its maps, so both planes send a key to the same backend.
//!
//! Source: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section
//! 3.4.

use crate::stable_hash::mix64;
use std::hint::select_unpredictable;

/// Slots in a table: the paper's small prime, more than 65 per backend at a thousand backends.
pub const TABLE_SIZE: u32 = 65_537;

/// The slot of a key. Keys are mixed first, so a caller may pass an address as it is.
pub fn slot(key: u64) -> usize {
    // Multiply and shift instead of a remainder: even to within 2^-47, and much cheaper than a division.
    ((u128::from(mix64(key)) * u128::from(TABLE_SIZE)) >> 64) as usize
}

#[derive(Debug)]
pub(crate) struct MaglevTable {
    /// Positions in the tier, by slot.
    pub(crate) slots: Box<[u32]>,
}

impl MaglevTable {
    pub(crate) fn new(backends: &[(u64, u32)]) -> MaglevTable {
        MaglevTable { slots: fill(backends).into_boxed_slice() }
    }
}

/// Fills a table of [`TABLE_SIZE`] slots with positions into `backends`, pairs of id and weight (any unit).
///
/// The result depends on the set of ids and weights, not on their order (though the positions do). Backends
/// of weight 0 get no slot; the table is empty if no backend has weight. In each turn a backend saves up its
/// weight and takes one slot for every full share of the largest weight, so its slots are proportional to its
/// weight to within about one percent.
///
/// Takes half a millisecond. Taken slots are kept as bits, which stay in the L1 cache. Backends whose turn it
/// is look ahead together, so that the processor mispredicts few branches. The last free slots, which walks
/// would take longest to meet, are searched directly.
pub fn fill(backends: &[(u64, u32)]) -> Vec<u32> {
    let mut takers: Vec<(u64, u32, u32)> = (0..)
        .zip(backends)
        .filter(|(_, (_, weight))| *weight > 0)
        .map(|(position, (id, weight))| (*id, position, *weight))
        .collect();
    takers.sort_unstable();
    if takers.is_empty() {
        return Vec::new();
    }
    let mut turns = Turns::new(takers.iter().map(|(_, _, weight)| *weight));
    let mut filling = Filling::new(takers.iter().map(|(id, position, _)| Walk::new(*id, *position)));
    while filling.free_count > 0 {
        turns.advance();
        turns.due.chunks(TOGETHER).for_each(|due| filling.take_in_turn(due));
    }
    filling.table
}

/// Which taker takes a slot in which turn.
struct Turns {
    /// The savings and the weight of each taker.
    savings: Vec<(u64, u64)>,
    largest_weight: u64,
    /// Takers whose turn it is, by number.
    due: Vec<u32>,
}

impl Turns {
    fn new(weights: impl Iterator<Item = u32>) -> Turns {
        let savings: Vec<(u64, u64)> = weights.map(|weight| (0, u64::from(weight))).collect();
        let largest_weight = savings.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
        let is_even = savings.iter().all(|(_, weight)| *weight == largest_weight);
        Turns {
            due: (0..savings.len() as u32).collect(),
            // With equal weights all are due in every turn.
            savings: if is_even { Vec::new() } else { savings },
            largest_weight,
        }
    }

    fn advance(&mut self) {
        if self.savings.is_empty() {
            return;
        }
        self.due.resize(self.savings.len(), 0);
        let mut count = 0;
        // Every taker is written and the length grows only for those due, since which are due can't be
        // predicted.
        for (taker, (saved, weight)) in (0..).zip(&mut self.savings) {
            *saved += *weight;
            let is_due = *saved >= self.largest_weight;
            *saved -= self.largest_weight * u64::from(is_due);
            self.due[count] = taker;
            count += usize::from(is_due);
        }
        self.due.truncate(count);
    }
}

/// At most this many takers look ahead together.
const TOGETHER: usize = 128;

/// Fewest takers for which looking ahead pays.
const WORTH_LOOKING_AHEAD: usize = 24;

/// Once this many free slots are left they are searched directly: a walk meets one of 256 after 256 steps on
/// average. Must be more than [`TOGETHER`].
const FEW: usize = 256;

/// A table that is being filled.
struct Filling {
    table: Vec<u32>,
    walks: Vec<Walk>,
    taken: TakenSlots,
    free_count: usize,
    /// The free slots, in no order, once there are at most [`FEW`] of them.
    few: Vec<u32>,
}

impl Filling {
    fn new(walks: impl Iterator<Item = Walk>) -> Filling {
        Filling {
            table: vec![0; TABLE_SIZE as usize],
            walks: walks.collect(),
            taken: TakenSlots(Box::new([0; _])),
            free_count: TABLE_SIZE as usize,
            few: Vec::new(),
        }
    }

    /// Lets each of `due`, no more than [`TOGETHER`], take the first free slot on its walk.
    fn take_in_turn(&mut self, due: &[u32]) {
        if self.free_count <= FEW {
            return due.iter().take(self.free_count).for_each(|taker| self.take_of_few(*taker as usize));
        }
        let looked_ahead = due.len() >= WORTH_LOOKING_AHEAD;
        if looked_ahead {
            // A few wasted steps cost less than another round, the more so the fewer slots are free.
            match self.free_count {
                20_000.. => self.look_ahead::<2>(due),
                5_000.. => self.look_ahead::<4>(due),
                _ => self.look_ahead::<8>(due),
            }
        }
        for taker in due {
            let walk = &mut self.walks[*taker as usize];
            // Seldom taken by a backend that came earlier in this turn.
            if !looked_ahead || self.taken.holds(walk.place) {
                while !walk.walks_to_free::<4>(&self.taken) {}
            }
            self.table[slot_at(walk.place)] = walk.position;
            self.taken.add(walk.place);
            walk.place = walk.place.wrapping_add(walk.stride);
        }
        self.free_count -= due.len();
    }

    /// Moves each walk of `due` on to the next slot that is free so far.
    ///
    /// All of them go `STEPS`, then those that met no free slot go again: whether a step meets one can't be
    /// predicted, and each mispredicted branch costs as much as ten steps.
    fn look_ahead<const STEPS: usize>(&mut self, due: &[u32]) {
        let mut walking = [0; TOGETHER];
        walking[..due.len()].copy_from_slice(due);
        let mut count = due.len();
        while count > 0 {
            let mut left = 0;
            for at in 0..count.min(TOGETHER) {
                let taker = walking[at];
                let has_met_one = self.walks[taker as usize].walks_to_free::<STEPS>(&self.taken);
                walking[left % TOGETHER] = taker;
                left += usize::from(!has_met_one);
            }
            count = left;
        }
    }

    fn take_of_few(&mut self, taker: usize) {
        let walk = &self.walks[taker];
        if self.few.is_empty() {
            self.few = (0..TABLE_SIZE).filter(|slot| !self.taken.holds(place_of(*slot))).collect();
        }
        let (next, inverse) = (slot_at(walk.place) as u32, inverse(walk.skip));
        let steps_to = |slot: u32| times(around(slot + TABLE_SIZE - next), inverse);
        let nearest = self.few.iter().zip(0..).map(|(slot, at)| steps_to(*slot) * FEW as u32 + at).min();
        if let Some(nearest) = nearest {
            let slot = self.few.swap_remove(nearest as usize % FEW);
            self.table[slot as usize] = walk.position;
            self.free_count -= 1;
        }
    }
}

/// One backend walking its own permutation of the slots.
struct Walk {
    /// The place to look at next.
    place: u64,
    /// The distance from one place to the next.
    stride: u64,
    skip: u32,
    position: u32,
}

impl Walk {
    fn new(id: u64, position: u32) -> Walk {
        let (offset, skip) = offset_and_skip(id);
        Walk { place: place_of(offset), stride: u64::from(skip) * APART, skip, position }
    }

    /// Walks to the first free slot, at most `STEPS`; returns whether it found one.
    ///
    /// Looks at all of them and selects without a branch: see [`Filling::look_ahead`].
    fn walks_to_free<const STEPS: usize>(&mut self, taken: &TakenSlots) -> bool {
        let mut places = [0; STEPS];
        let mut end = self.place;
        for place in &mut places {
            *place = end;
            end = end.wrapping_add(self.stride);
        }
        self.place =
            places.iter().rfold(end, |first, place| select_unpredictable(taken.holds(*place), first, *place));
        self.place != end
    }
}

/// Where a backend's walk begins, and how far each step of it goes.
fn offset_and_skip(id: u64) -> (u32, u32) {
    let size = u64::from(TABLE_SIZE);
    // The size is prime, so any skip from 1 to size - 1 visits every slot.
    ((mix64(id) % size) as u32, (mix64(id ^ 0xa076_1d64_78bd_642f) % (size - 1) + 1) as u32)
}

/// Slots lie on a circle of 2^64, which wrapping additions go around by themselves. The circle is longer by 1
/// than all slots together, so a walk that has gone around is one place short of where it was.
const APART: u64 = u64::MAX / TABLE_SIZE as u64;

/// More than the number of times a walk can go around, and too little to matter otherwise: a walk that begins
/// this far into a slot never falls out of it.
const INTO_THE_SLOT: u64 = 1 << 20;

fn place_of(slot: u32) -> u64 {
    u64::from(slot) * APART + INTO_THE_SLOT
}

fn slot_at(place: u64) -> usize {
    ((u128::from(place) * u128::from(TABLE_SIZE)) >> 64) as usize
}

/// One bit for each slot, found by the upper 17 bits of its place: slots are more than 2^47 apart, so these
/// bits tell them apart and cost less than a multiplication.
struct TakenSlots(Box<[u64; 1 << 11]>);

impl TakenSlots {
    fn holds(&self, place: u64) -> bool {
        self.0[(place >> 53) as usize] >> (place >> 47 & 63) & 1 == 1
    }

    fn add(&mut self, place: u64) {
        self.0[(place >> 53) as usize] |= 1 << (place >> 47 & 63);
    }
}

/// `slot`, which is below twice the table size, reduced to the table.
fn around(slot: u32) -> u32 {
    if slot >= TABLE_SIZE { slot - TABLE_SIZE } else { slot }
}

/// The product of two slots modulo the table size: 2^16 counts as -1, since it is one less than the size.
fn times(a: u32, b: u32) -> u32 {
    let product = u64::from(a) * u64::from(b);
    around((product as u32 & 0xffff) + TABLE_SIZE - (product >> 16) as u32)
}

/// The inverse of `skip` (above 0) modulo the table size: `skip` to the power of the prime size less 2, which
/// is 2^16 - 1 (Fermat).
fn inverse(skip: u32) -> u32 {
    // To the power of 2^bits - 1.
    [1, 2, 4, 8].iter().fold(skip, |power, bits| {
        let raised = (0..*bits).fold(power, |raised, _| times(raised, raised));
        times(raised, power)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(count: usize) -> Vec<(u64, u32)> {
        (0..count).map(|at| (crate::stable_hash(format!("10.1.{at}.1:80").as_bytes()), 1)).collect()
    }

    fn counts(table: &[u32], backends: usize) -> Vec<usize> {
        let mut counts = vec![0; backends];
        table.iter().for_each(|position| counts[*position as usize] += 1);
        counts
    }

    /// The filling as the paper writes it, one step after the other.
    fn fill_by_steps(backends: &[(u64, u32)]) -> Vec<u32> {
        struct Taker {
            weight: u64,
            position: u32,
            saved: u64,
            next: u32,
            skip: u32,
        }
        let mut sorted: Vec<(u64, u32, u32)> =
            backends.iter().zip(0..).map(|((id, weight), at)| (*id, at, *weight)).collect();
        sorted.retain(|(_, _, weight)| *weight > 0);
        sorted.sort();
        let taker = |(id, position, weight): (u64, u32, u32)| {
            let (next, skip) = offset_and_skip(id);
            Taker { weight: u64::from(weight), position, saved: 0, next, skip }
        };
        let mut takers: Vec<Taker> = sorted.into_iter().map(taker).collect();
        let largest = takers.iter().map(|taker| taker.weight).max().unwrap();
        let mut table = vec![u32::MAX; TABLE_SIZE as usize];
        let mut left = table.len();
        while left > 0 {
            for taker in takers.iter_mut() {
                taker.saved += taker.weight;
                if taker.saved >= largest && left > 0 {
                    taker.saved -= largest;
                    while table[taker.next as usize] != u32::MAX {
                        taker.next = (taker.next + taker.skip) % TABLE_SIZE;
                    }
                    table[taker.next as usize] = taker.position;
                    left -= 1;
                }
            }
        }
        table
    }

    #[test]
    fn the_quick_filling_gives_the_table_of_the_paper() {
        let weighted = |count: usize| -> Vec<(u64, u32)> {
            let weight = |at: usize| (at * 7919 % 257) as u32;
            backends(count).into_iter().enumerate().map(|(at, (id, _))| (id, weight(at + 1))).collect()
        };
        for count in [1, 2, 3, 7, 23, 24, 100, 128, 129, 255, 4000, 70_000] {
            assert_eq!(fill(&backends(count)), fill_by_steps(&backends(count)), "{count} equal ones");
            assert_eq!(fill(&weighted(count)), fill_by_steps(&weighted(count)), "{count} of all weights");
        }
    }

    #[test]
    fn a_place_tells_its_slot_however_often_the_walk_has_been_around() {
        let mut bits_before = None;
        for slot in 0..TABLE_SIZE {
            let places = [place_of(slot), place_of(slot) - u64::from(TABLE_SIZE)];
            assert_eq!(places.map(slot_at), [slot as usize; 2]);
            let bits = places.map(|place| place >> 47);
            assert!(bits[0] == bits[1] && bits_before < Some(bits[0]), "{slot}: {bits:?}");
            bits_before = Some(bits[0]);
        }
    }

    #[test]
    fn a_slot_times_its_inverse_is_one() {
        for slot in (1..TABLE_SIZE).step_by(97).chain([2, TABLE_SIZE - 1]) {
            assert_eq!(times(slot, inverse(slot)), 1, "{slot}");
            assert_eq!(u64::from(times(slot, 65_521)), u64::from(slot) * 65_521 % u64::from(TABLE_SIZE));
        }
    }

    #[test]
    fn equal_backends_differ_by_at_most_one_slot() {
        for count in [1, 2, 3, 10, 100, 1000] {
            let counts = counts(&fill(&backends(count)), count);
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            assert!(spread <= 1, "{count} backends: {spread}");
        }
    }

    #[test]
    fn slots_are_proportional_to_weight_within_one_percent() {
        let weights = [1, 10, 100, 256, 33];
        let weighted: Vec<_> =
            backends(5).into_iter().zip(weights).map(|((id, _), weight)| (id, weight)).collect();
        let counts = counts(&fill(&weighted), 5);
        for (weight, count) in weights.iter().zip(counts) {
            let expected = 65_537.0 * f64::from(*weight) / 400.0;
            assert!(
                (count as f64 - expected).abs() <= expected * 0.01 + 1.0,
                "weight {weight}: {count}/{expected}"
            );
        }
    }

    #[test]
    fn the_order_in_the_file_does_not_matter() {
        let forward = backends(9);
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        let (table, reversed) = (fill(&forward), fill(&backward));
        assert!(table.iter().zip(&reversed).all(|(a, b)| *a == 8 - *b));
    }

    #[test]
    fn no_weight_means_no_slot() {
        assert!(fill(&[]).is_empty());
        assert!(fill(&[(1, 0)]).is_empty());
        assert!(fill(&[(1, 0), (2, 5)]).iter().all(|position| *position == 1));
    }

    #[test]
    fn keys_reach_every_slot_evenly_even_when_they_are_small_numbers() {
        let mut hits = [0u32; 64];
        for key in 0..640_000u64 {
            hits[slot(key) * 64 / TABLE_SIZE as usize] += 1;
        }
        assert!(hits.iter().all(|count| (9_500..10_500).contains(count)), "{hits:?}");
    }
}
