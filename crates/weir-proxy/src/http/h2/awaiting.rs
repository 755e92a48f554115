//! The tasks that wait for responses on a shared connection, to be woken if its backend is lost: nothing
//! comes on their streams then that would wake them.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// See the module.
#[derive(Default)]
pub struct Awaiting {
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// The place of one task.
#[derive(Default)]
pub struct AwaitingPlace(Cell<Option<usize>>);

impl Awaiting {
    /// Has [`Self::wake_all`] wake the task of `context`, until `place` is given up. O(1).
    pub fn enter(&self, place: &AwaitingPlace, context: &Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        let index = place.0.get().or_else(|| self.free.borrow_mut().pop()).unwrap_or_else(|| {
            wakers.push(None);
            wakers.len() - 1
        });
        place.0.set(Some(index));
        let waker = &mut wakers[index];
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Gives up `place`, if it was entered.
    pub fn leave(&self, place: &AwaitingPlace) {
        if let Some(index) = place.0.take() {
            self.wakers.borrow_mut()[index] = None;
            self.free.borrow_mut().push(index);
        }
    }

    /// Wakes all tasks.
    pub fn wake_all(&self) {
        self.wakers.borrow().iter().flatten().for_each(Waker::wake_by_ref);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn those_that_wait_are_woken_once_and_those_that_left_are_not() {
        let awaiting = Awaiting::default();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let context = Context::from_waker(&waker);
        let places: [AwaitingPlace; 3] = Default::default();
        for place in places.iter().chain(&places) {
            awaiting.enter(place, &context);
        }
        awaiting.leave(&places[1]);
        awaiting.leave(&places[1]);
        awaiting.wake_all();
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        awaiting.enter(&AwaitingPlace::default(), &context);
        assert_eq!(awaiting.wakers.borrow().len(), 3, "the place that was given up is taken");
    }
}
