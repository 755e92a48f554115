//! The less loaded of two drawn by weight.
//!
//! Two is enough: the fullest of n backends holds log log n more than the average instead of log n / log log n with one draw, and
//! workers that act on slightly old counts don't all run to the same backend, as they do with "least".
//!
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12 (2001).

use crate::choice::{Choice, Chosen, Slots};
use crate::picker::PickReason;
use crate::stable_hash::mix64;
use crate::view::{Tables, Tier};

/// Draws per candidate before neighbours are looked at.
const REDRAWS: u64 = 4;

/// Neighbours looked at before the candidate is given up.
const NEIGHBOURS: usize = 8;

/// Gives the backend with fewer in flight per weight of two different ones drawn by weight. O(1); O(n) when most are full.
///
/// A tie goes to the first drawn, so that an idle pool is used in proportion to weight.
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let better = |first: usize, second: usize| {
        let load = |position: usize, other: usize| {
            u64::from(choice.backend(position).in_flight()) * u64::from(choice.entry(other).weight)
        };
        load(second, first) < load(first, second)
    };
    choose_of_two(choice, better, PickReason::LessLoadedOfTwo)
}

/// Draws two usable backends and takes the second if `second_is_better(first, second)`, else the first.
pub(crate) fn choose_of_two<S: Slots>(
    choice: &Choice<'_, S>,
    second_is_better: impl Fn(usize, usize) -> bool,
    reason: PickReason,
) -> Chosen {
    let Some(first) = draw_usable(choice, choice.input.draw[0], None) else {
        return choice.sweep(start_of_sweep(choice));
    };
    let preferred = match draw_usable(choice, choice.input.draw[1], Some(first)) {
        Some(second) if second_is_better(first, second) => [second, first],
        Some(second) => [first, second],
        None => [first, first],
    };
    preferred
        .into_iter()
        .find_map(|position| choice.take(position))
        .map(|index| (index, reason))
        .or_else(|| choice.sweep(start_of_sweep(choice)))
}

fn start_of_sweep<S: Slots>(choice: &Choice<'_, S>) -> usize {
    sample(choice.tier, choice.input.draw[0])
}

/// A backend drawn by weight that has room, is not excluded and is not `avoid`.
fn draw_usable<S: Slots>(choice: &Choice<'_, S>, draw: u32, avoid: Option<usize>) -> Option<usize> {
    let fits = |position: &usize| Some(*position) != avoid && choice.is_usable(*position);
    let drawn = sample(choice.tier, draw);
    if fits(&drawn) {
        return Some(drawn);
    }
    let redrawn =
        (1..=REDRAWS).map(|attempt| sample(choice.tier, mix64(u64::from(draw) << 8 | attempt) as u32));
    let count = choice.tier.entries.len();
    let neighbours = (1..=NEIGHBOURS.min(count - 1)).map(|step| (drawn + step) % count);
    redrawn.chain(neighbours).find(fits)
}

fn sample(tier: &Tier, draw: u32) -> usize {
    match &tier.tables {
        Tables::Alias(table) => table.sample(draw),
        _ => ((u64::from(draw) * tier.entries.len() as u64) >> 32) as usize,
    }
}

/// Draws positions in proportion to weights in constant time.
///
/// Source: Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE TSE 17 (1991).
#[derive(Debug)]
pub(crate) struct AliasTable {
    columns: Box<[Column]>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// The column keeps draws whose fraction is below this (2^32 = all), the alias gets the rest.
    threshold: u64,
    alias: u32,
}

impl AliasTable {
    /// O(n). Every weight must be above 0.
    pub(crate) fn new(weights: &[u32]) -> AliasTable {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let count = weights.len() as u64;
        // In units where an even share is `total`.
        let mut share: Vec<u64> = weights.iter().map(|weight| u64::from(*weight) * count).collect();
        let mut columns: Box<[Column]> =
            (0..weights.len()).map(|own| Column { threshold: 1 << 32, alias: own as u32 }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|position| share[*position] < total);
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            let threshold = (u128::from(share[poor]) << 32) / u128::from(total);
            columns[poor] = Column { threshold: threshold as u64, alias: rich as u32 };
            share[rich] -= total - share[poor];
            if share[rich] < total {
                large.pop();
                small.push(rich);
            }
        }
        AliasTable { columns }
    }

    /// The position a uniform draw falls on. O(1).
    fn sample(&self, draw: u32) -> usize {
        let scaled = u64::from(draw) * self.columns.len() as u64;
        let at = (scaled >> 32) as usize;
        let column = self.columns[at];
        if (scaled & u64::from(u32::MAX)) < column.threshold { at } else { column.alias as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fall_in_proportion_to_weight() {
        let weights = [1, 2, 3, 250, 0x1900, 64];
        let table = AliasTable::new(&weights);
        let total: u32 = weights.iter().sum();
        let draws = 1 << 20;
        let mut counts = [0u32; 6];
        // Evenly spaced draws instead of random ones: the test can't have bad luck.
        for step in 0..draws {
            counts[table.sample(step << 12)] += 1;
        }
        for (weight, count) in weights.iter().zip(counts) {
            let expected = f64::from(draws) * f64::from(*weight) / f64::from(total);
            assert!((f64::from(count) - expected).abs() <= 8.0, "weight {weight}: {count} of {expected}");
        }
    }

    #[test]
    fn equal_weights_never_use_the_alias() {
        let table = AliasTable::new(&[5; 7]);
        assert!(table.columns.iter().all(|column| column.threshold == 1 << 32));
        assert_eq!((table.sample(0), table.sample(u32::MAX)), (0, 6));
    }
}
