//! Maglev hashing: a lookup table that gives every backend its share and moves few keys when backends come and go.
//!
//! The kernel plane copies the same table into its maps, so both planes send a key to the same backend.
//!
//! Source: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4.

use crate::choice::{Choice, Chosen, Slots};
use crate::picker::PickReason;
use crate::round_robin;
use crate::stable_hash::mix64;
use crate::view::Tables;

/// Slots in a table: the paper's small prime, more than 65 per backend at a thousand backends.
pub const TABLE_SIZE: u32 = 65_537;

/// Slots after the key's own that are tried when its backend is full or excluded.
const PATIENCE: usize = 64;

/// Gives the backend that the table holds at the key; when that is full or excluded, the next different one in the table. O(1).
///
/// Without a key: in turn. Weights are shares of the table.
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let (Some(key), Tables::Maglev(table)) = (choice.input.key, &choice.tier.tables) else {
        return round_robin::choose_because(choice, PickReason::NoKey);
    };
    let own = slot(key);
    let owner = table.slots[own];
    if let Some(index) = choice.take(owner as usize) {
        return Some((index, PickReason::OwnsKey));
    }
    let after = (1..=PATIENCE).map(|step| table.slots[(own + step) % table.slots.len()]);
    after
        .filter(|position| *position != owner)
        .find_map(|position| choice.take(position as usize))
        .map(|index| (index, PickReason::NextAfterOwner))
        .or_else(|| choice.sweep(own % choice.tier.entries.len()))
}

/// The slot of a key. Keys are mixed first: a caller may pass an address as it is.
pub fn slot(key: u64) -> usize {
    // Multiply and shift instead of a remainder: even to within 2^-47 and much cheaper than a division.
    ((u128::from(mix64(key)) * u128::from(TABLE_SIZE)) >> 64) as usize
}

#[derive(Debug)]
pub(crate) struct MaglevTable {
    /// Positions in the tier.
    slots: Box<[u32]>,
}

impl MaglevTable {
    pub(crate) fn new(backends: &[(u64, u32)]) -> MaglevTable {
        MaglevTable { slots: fill(backends).into_boxed_slice() }
    }
}

/// Fills a table of [`TABLE_SIZE`] slots with positions into `backends`, pairs of id and weight (any unit).
///
/// The result depends on the set of ids and weights, not on their order (positions follow the order, of course). Backends
/// of weight 0 get no slot; empty when none has weight. Each turn of the filling a backend takes one slot for every full share of
/// the largest weight it has saved up, so slots are proportional to weight to within about one percent.
/// O(TABLE_SIZE * ln TABLE_SIZE) expected, a few milliseconds.
pub fn fill(backends: &[(u64, u32)]) -> Vec<u32> {
    let size = TABLE_SIZE as usize;
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
    let mut table = vec![u32::MAX; size];
    let mut filled = 0;
    loop {
        for taker in &mut takers {
            taker.saved += u64::from(taker.weight);
            if taker.saved < largest {
                continue;
            }
            taker.saved -= largest;
            while table[taker.next] != u32::MAX {
                taker.advance();
            }
            table[taker.next] = taker.position as u32;
            filled += 1;
            if filled == size {
                return table;
            }
        }
    }
}

/// One backend walking its own permutation of the slots.
struct Taker {
    id: u64,
    weight: u32,
    position: usize,
    saved: u64,
    next: usize,
    skip: usize,
}

impl Taker {
    fn new(id: u64, weight: u32, position: usize) -> Taker {
        let size = u64::from(TABLE_SIZE);
        let offset = mix64(id) % size;
        // The size is prime, so any skip from 1 to size - 1 visits every slot.
        let skip = mix64(id ^ 0xa076_1d64_78bd_642f) % (size - 1) + 1;
        Taker { id, weight, position, saved: 0, next: offset as usize, skip: skip as usize }
    }

    fn advance(&mut self) {
        self.next += self.skip;
        if self.next >= TABLE_SIZE as usize {
            self.next -= TABLE_SIZE as usize;
        }
    }
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
