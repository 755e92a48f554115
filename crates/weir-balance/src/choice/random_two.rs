//! The less loaded of two drawn by weight.
//!
//! Two is enough: the fullest of n backends holds log log n more than the average, instead of log n / log log
//! n with one draw. And workers that act on slightly old counts don't all run to the same backend, as they do
//! with "least".
//!
//! Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12 (2001).

use super::{Choice, Chosen, Slots};
use crate::pick::PickReason;
use crate::stable_hash::mix64;
use crate::view::{Tables, Tier};

/// Draws per candidate before its neighbours are tried.
const REDRAWS: u64 = 4;

/// Neighbours tried before the candidate is given up.
const NEIGHBOURS: usize = 8;

/// Chooses the backend with fewer in flight per weight of two different ones drawn by weight. O(1); O(n) when
/// most are full.
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
