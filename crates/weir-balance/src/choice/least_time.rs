//! Least time: the backend that is expected to answer sooner.

use super::{Choice, Chosen, Slots, random_two};
use crate::pick::PickReason;

/// Chooses the backend with the lower cost of two different ones drawn by weight. O(1); O(n) when most are
/// full.
///
/// Cost is the peak EWMA of response times (`latency.rs`) times the queue this request would join,
/// `(in_flight + 1)`, over the weight. Two are drawn, not all compared, so that workers don't all run to the
/// one that looks fastest at the moment.
///
/// Source: Finagle and linkerd, "peak EWMA with power of two choices".
pub(crate) fn choose<S: Slots>(choice: &Choice<'_, S>) -> Chosen {
    let cost = |position: usize| {
        let backend = choice.backend(position);
        let queue = backend.in_flight() as f32 + 1.0;
        // Every cost is finite, so `<` is a total comparison here.
        backend.peak_ewma().expected_seconds(choice.input.now) * queue / choice.entry(position).weight as f32
    };
    random_two::choose_of_two(choice, |first, second| cost(second) < cost(first), PickReason::FasterOfTwo)
}
