//! Maglev: a key goes to the same backend on every worker, machine and plane.

use super::{Choice, Chosen, Slots, round_robin};
use crate::maglev;
use crate::pick::PickReason;
use crate::view::Tables;

/// Slots after the key's own that are tried when its backend is full or excluded.
const PATIENCE: usize = 64;

/// Chooses the backend in the key's slot of the table; if that is full or excluded, the next different one in
/// the table. O(1).
///
/// Falls back to round robin without a key. Weights are shares of the table.
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let (Some(key), Tables::Maglev(table)) = (choice.input.key, &choice.tier.tables) else {
        return round_robin::choose_because(choice, PickReason::NoKey);
    };
    let own = maglev::slot(key);
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
