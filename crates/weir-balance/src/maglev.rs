//! Maglev hashing: a lookup table that gives every backend its share and moves few keys when backends come
//! and go.
//!
//! The kernel plane copies the same table into its maps, so both planes send a key to the same backend.
//!
//! Source: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section
//! 3.4.

use crate::stable_hash::mix64;

/// Slots in a table: the paper's small prime, more than 65 per backend at a thousand backends.
pub const TABLE_SIZE: u32 = 65_537;

/// The slot of a key. Keys are mixed first: a caller may pass an address as it is.
pub fn slot(key: u64) -> usize {
    // Multiply and shift instead of a remainder: even to within 2^-47 and much cheaper than a division.
    ((u128::from(mix64(key)) * u128::from(TABLE_SIZE)) >> 64) as usize
}

#[derive(Debug)]
pub(crate) struct MaglevTable {
    /// Positions in the tier.
    pub(crate) slots: Box<[u32]>,
}

impl MaglevTable {
    pub(crate) fn new(backends: &[(u64, u32)]) -> MaglevTable {
        MaglevTable { slots: fill(backends).into_boxed_slice() }
    }
}

/// Fills a table of [`TABLE_SIZE`] slots with positions into `backends`, pairs of id and weight (any unit).
///
/// The result depends on the set of ids and weights, not on their order (positions follow the order, of
/// course). Backends of weight 0 get no slot; empty when none has weight. Each turn of the filling a backend
/// takes one slot for every full share of the largest weight it has saved up, so slots are proportional to
/// weight to within about one percent.
///
/// Half a millisecond to one and a half, by the machine: the free slots are kept as bits, which stay in the
/// first-level cache, and the last of them, which walks would take longest to meet, are looked for among
/// themselves.
pub fn fill(backends: &[(u64, u32)]) -> Vec<u32> {
    let mut takers: Vec<Taker> = backends
        .iter()
        .enumerate()
        .filter(|(_, (_, weight))| *weight > 0)
        .map(|(position, (id, weight))| Taker::new(*id, *weight, position))
        .collect();
    takers.sort_unstable_by_key(|taker| (taker.id, taker.position));
    let Some(largest) = takers.iter().map(|taker| u64::from(taker.weight)).max() else {
        return Vec::new();
    };
    let mut table = vec![0; TABLE_SIZE as usize];
    let mut free = FreeSlots::all();
    loop {
        for taker in &mut takers {
            taker.saved += u64::from(taker.weight);
            if taker.saved < largest {
                continue;
            }
            taker.saved -= largest;
            let slot = free.take_next_of(taker);
            table[slot] = taker.position as u32;
            if free.count == 0 {
                return table;
            }
        }
    }
}

/// Free slots left when they are looked for among themselves: a walk meets one of 256 after 256 steps on
/// average.
const FEW: usize = 256;

/// The slots that nobody has taken yet.
struct FreeSlots {
    /// A bit for each slot.
    bits: Box<[u64]>,
    count: usize,
    /// The free slots, in no order, once there are no more than [`FEW`].
    few: Vec<u32>,
}

impl FreeSlots {
    fn all() -> FreeSlots {
        let size = TABLE_SIZE as usize;
        let bits = (0..size.div_ceil(64)).map(|word| match size - word * 64 {
            left @ 0..64 => (1 << left) - 1,
            _ => u64::MAX,
        });
        FreeSlots { bits: bits.collect(), count: size, few: Vec::new() }
    }

    /// Takes the first free slot on the taker's walk, which is moved there.
    fn take_next_of(&mut self, taker: &mut Taker) -> usize {
        if self.count <= FEW {
            if self.few.is_empty() {
                self.few = (0..TABLE_SIZE).filter(|slot| self.bit(*slot) == 1).collect();
            }
            let steps = self.few.iter().map(|slot| taker.steps_to(*slot));
            let nearest = steps.enumerate().min_by_key(|(_, steps)| *steps).map_or(0, |(nearest, _)| nearest);
            taker.next = self.few.swap_remove(nearest);
        } else {
            taker.next = self.walk(taker);
            self.bits[taker.next as usize / 64] &= !(1 << (taker.next % 64));
        }
        self.count -= 1;
        taker.next as usize
    }

    /// The first free slot at or after the taker's next one, on its walk.
    ///
    /// Four steps at a time: whether a step meets a free slot can't be foreseen, and each wrong guess of the
    /// processor costs as much as ten steps.
    fn walk(&self, taker: &Taker) -> u32 {
        let mut from = taker.next;
        loop {
            let met = taker.strides.map(|stride| around(from + stride));
            let [first, second, third, fourth] = met.map(|slot| self.bit(slot));
            let free = first | second << 1 | third << 2 | fourth << 3;
            if free != 0 {
                return met[free.trailing_zeros() as usize];
            }
            from = around(met[3] + taker.skip);
        }
    }

    fn bit(&self, slot: u32) -> u64 {
        self.bits[slot as usize / 64] >> (slot % 64) & 1
    }
}

/// `slot`, below twice the size, counted on from the beginning.
fn around(slot: u32) -> u32 {
    if slot >= TABLE_SIZE { slot - TABLE_SIZE } else { slot }
}

/// One backend walking its own permutation of the slots.
struct Taker {
    id: u64,
    weight: u32,
    position: usize,
    saved: u64,
    next: u32,
    skip: u32,
    /// None, one, two and three times `skip`, around the table.
    strides: [u32; 4],
    /// What `skip` is to be multiplied with to give 1, around the table; 0 before it was asked for.
    inverse: u32,
}

impl Taker {
    fn new(id: u64, weight: u32, position: usize) -> Taker {
        let size = u64::from(TABLE_SIZE);
        let offset = mix64(id) % size;
        // The size is prime, so any skip from 1 to size - 1 visits every slot.
        let skip = (mix64(id ^ 0xa076_1d64_78bd_642f) % (size - 1) + 1) as u32;
        let (twice, thrice) = (times(skip, 2), times(skip, 3));
        Taker {
            id,
            weight,
            position,
            saved: 0,
            next: offset as u32,
            skip,
            strides: [0, skip, twice, thrice],
            inverse: 0,
        }
    }

    /// Steps from the next slot to `slot`.
    fn steps_to(&mut self, slot: u32) -> u32 {
        if self.inverse == 0 {
            self.inverse = inverse(self.skip);
        }
        times(around(slot + TABLE_SIZE - self.next), self.inverse)
    }
}

/// The product, around the table.
fn times(a: u32, b: u32) -> u32 {
    (u64::from(a) * u64::from(b) % u64::from(TABLE_SIZE)) as u32
}

/// What `skip`, above 0, is to be multiplied with to give 1: `skip` to the power of the prime size less 2
/// (Fermat).
fn inverse(skip: u32) -> u32 {
    let (mut power, mut product, mut rest) = (skip, 1, TABLE_SIZE - 2);
    while rest > 0 {
        if rest & 1 == 1 {
            product = times(product, power);
        }
        power = times(power, power);
        rest >>= 1;
    }
    product
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
        let mut takers: Vec<Taker> =
            backends.iter().zip(0..).map(|((id, weight), at)| Taker::new(*id, *weight, at)).collect();
        takers.retain(|taker| taker.weight > 0);
        takers.sort_by_key(|taker| (taker.id, taker.position));
        let largest = takers.iter().map(|taker| u64::from(taker.weight)).max().unwrap();
        let mut table = vec![u32::MAX; TABLE_SIZE as usize];
        let mut left = table.len();
        while left > 0 {
            for taker in takers.iter_mut() {
                taker.saved += u64::from(taker.weight);
                if taker.saved >= largest && left > 0 {
                    taker.saved -= largest;
                    while table[taker.next as usize] != u32::MAX {
                        taker.next = around(taker.next + taker.skip);
                    }
                    table[taker.next as usize] = taker.position as u32;
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
        for count in [1, 2, 3, 7, 100, 255, 4000, 70_000] {
            assert_eq!(fill(&backends(count)), fill_by_steps(&backends(count)), "{count} equal ones");
            assert_eq!(fill(&weighted(count)), fill_by_steps(&weighted(count)), "{count} of all weights");
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
