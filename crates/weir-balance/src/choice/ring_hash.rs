//! Consistent hashing with bounded load, for `source` and `hash`.
//!
//! Every backend owns points on a ring in proportion to its weight; a key belongs to the next point. A
//! backend that leaves gives away its own keys and no others. With a bound, a backend that holds its fair
//! share times the bound passes further keys to the next one on the ring, so that one hot key can't overload
//! its owner.
//!
//! Source: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.

use super::{Choice, Chosen, Slots, round_robin};
use crate::pick::PickReason;
use crate::stable_hash::mix64;
use crate::view::Tables;

/// Points after the key's own that are tried when backends are full, over their bound or excluded.
const PATIENCE: usize = 64;

/// Chooses the owner of the key, or the next backend on the ring with room below its limit and its bound.
/// O(1) expected; O(n) when most are full.
///
/// Falls back to round robin without a key.
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let (Some(key), Tables::Ring(ring)) = (choice.input.key, &choice.tier.tables) else {
        return round_robin::choose_because(choice, PickReason::NoKey);
    };
    let place = (mix64(key) >> 32) as u32;
    let start = ring.next_after(place);
    let owner = ring.position(start);
    if let Some(index) = choice.take_below(owner, ceiling(choice, owner)) {
        return Some((index, PickReason::OwnsKey));
    }
    let mut before = owner;
    for step in 1..=PATIENCE.min(ring.count()) {
        let position = ring.position((start + step) % ring.count());
        if position == before {
            continue;
        }
        before = position;
        if let Some(index) = choice.take_below(position, ceiling(choice, position)) {
            return Some((index, PickReason::NextAfterOwner));
        }
    }
    let count = choice.tier.entries.len();
    let from = place as usize % count;
    (0..count)
        .map(|step| (from + step) % count)
        .find_map(|position| choice.take_below(position, ceiling(choice, position)))
        .map(|index| (index, PickReason::NextAfterOwner))
        // The bounds add up to more than all requests in flight. So this is reached only when the total lags
        // behind (another worker's pick is not counted yet) or when the backends with room under their bounds
        // are full or excluded.
        .or_else(|| choice.sweep(from))
}

/// Most that may be in flight at this backend, this request included: ceil(bound * (in flight + 1) * weight /
/// weights).
fn ceiling<S: Slots>(choice: &Choice<'_, S>, position: usize) -> u32 {
    let Some(bound) = choice.hash_bound else { return u32::MAX };
    let share = f64::from(choice.entry(position).weight) / choice.tier.total_weight as f64;
    // `as` saturates. A NaN bound would give 0 and close every backend, hence at least one request.
    ((bound * (choice.pool_in_flight + 1) as f64 * share).ceil() as u32).max(1)
}
