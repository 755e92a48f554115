//! First: fill the first backend before using the second, so that the rest can sleep or be switched off.

use super::{Choice, Chosen, Slots};
use crate::pick::PickReason;

/// Chooses the first backend in file order that is below its `max_connections`. O(backends that are full).
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    (0..choice.tier.entries.len())
        .find_map(|position| choice.take(position))
        .map(|index| (index, PickReason::FirstWithRoom))
}
