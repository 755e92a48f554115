//! Round robin: one rotation for all workers, weighted and smooth.

use super::{Choice, Chosen, Slots};
use crate::pick::PickReason;

/// Places of the sequence to look at before sweeping the list instead.
const PATIENCE: usize = 16;

/// Chooses the backend whose turn it is, or the next one in the sequence with room. O(1); O(n) once 16 in a
/// row are full.
///
/// The turn is one atomic counter shared by all workers, so a client that sends request after request sees a,
/// b, c, a, b, c whichever worker takes its connections. The order is that of `sequence.rs`: exact shares,
/// spread evenly.
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    choose_because(choice, PickReason::InTurn)
}

/// The same, for algorithms that have nothing to choose by this time; `reason` says so.
pub(crate) fn choose_because<S: Slots>(choice: &Choice<'_, S>, reason: PickReason) -> Chosen {
    if choice.tier.entries.len() == 1 {
        // All workers would write the same counter for nothing.
        return choice.take(0).map(|index| (index, reason));
    }
    let sequence = choice.tier.sequence();
    let mut at = (choice.turn() % sequence.len() as u64) as usize;
    for _ in 0..sequence.len().min(PATIENCE) {
        if let Some(index) = choice.take(sequence[at] as usize) {
            return Some((index, reason));
        }
        at = if at + 1 == sequence.len() { 0 } else { at + 1 };
    }
    choice.sweep(sequence[at] as usize)
}
