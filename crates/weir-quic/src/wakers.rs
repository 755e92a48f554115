//! Places at which one task waits.

use std::task::{Context, Waker};

/// Wakes whoever waits at this place.
pub fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Has the task of `context` woken from this place.
pub fn watch(place: &mut Option<Waker>, context: &Context<'_>) {
    if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *place = Some(context.waker().clone());
    }
}
