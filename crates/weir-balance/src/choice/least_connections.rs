//! Least connections: the backend with the least load.

use super::{Choice, Chosen, Slots};
use crate::pick::PickReason;

/// Backends compared per pick. A pool up to this size is compared whole. In a larger one, the least of this
/// many from a rotating start is about as good as the least of all (Mitzenmacher 2001: the gap shrinks as log
/// log n / log d) at a bounded price.
const WINDOW: usize = 128;

/// Lost races for the least loaded backend's last slot, before any backend with room is taken.
const ATTEMPTS: usize = 4;

/// Chooses the backend with the fewest in flight per weight. O(n), at most 128; O(1) while idle backends are
/// near the start.
///
/// Ties go in the order of the weighted rotation, so that an idle pool is used like round robin and not like
/// "first".
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let start = choice.position_in_turn();
    for _ in 0..ATTEMPTS {
        let position = least_loaded(choice, start)?;
        if let Some(index) = choice.take(position) {
            return Some((index, PickReason::LeastLoaded));
        }
    }
    choice.sweep(start)
}

fn least_loaded<S: Slots>(choice: &Choice<'_, S>, start: usize) -> Option<usize> {
    let count = choice.tier.entries.len();
    let mut best: Option<(usize, u64, u64)> = None;
    let mut position = start;
    for looked_at in 0..count {
        if looked_at >= WINDOW && best.is_some() {
            break;
        }
        if choice.is_usable(position) {
            let in_flight = u64::from(choice.backend(position).in_flight());
            if in_flight == 0 {
                return Some(position);
            }
            let weight = u64::from(choice.entry(position).weight);
            // in_flight / weight < best_in_flight / best_weight, without dividing.
            if best.is_none_or(|(_, load, best_weight)| in_flight * best_weight < load * weight) {
                best = Some((position, in_flight, weight));
            }
        }
        position = if position + 1 == count { 0 } else { position + 1 };
    }
    best.map(|(position, ..)| position)
}
