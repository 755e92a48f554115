//! A slot for the waker of one task.

use std::task::{Context, Waker};

/// Wakes the task that waits on this slot.
pub fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Stores the waker of the task that polls with `context` in the slot.
pub fn watch(place: &mut Option<Waker>, context: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *place = Some(context.waker().clone());
    }
}
