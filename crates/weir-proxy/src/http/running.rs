//! The exchanges of a multiplexed connection that are under way.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

/// How many exchanges of a connection are under way, whatever its client thinks: one whose stream was reset counts until it has let go of
/// its backend (threats B1, B4).
#[derive(Default)]
pub struct Running {
    count: Cell<u32>,
    /// What drives the connection.
    driver: RefCell<Option<Waker>>,
    /// Whether it is to be woken by the end of any exchange, and not of the last alone.
    awaited: Cell<bool>,
}

impl Running {
    /// Exchanges under way.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// Takes a place for one more.
    pub fn enter(self: &Rc<Self>) -> Place {
        self.count.set(self.count.get() + 1);
        Place(self.clone())
    }

    /// Has [`Self::wake_driver`] wake the task of `context`.
    pub fn driven_by(&self, context: &Context<'_>) {
        let driver = &mut *self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *driver = Some(context.waker().clone());
        }
    }

    /// Has the driver woken by the end of the next exchange, whichever it is; else by that of the last one only.
    pub fn await_each(&self, awaited: bool) {
        self.awaited.set(awaited);
    }

    /// The connection has something to do, or may have.
    pub fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }
}

/// One of [`Running`], until dropped.
pub struct Place(Rc<Running>);

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.0.count.get() - 1;
        self.0.count.set(left);
        if left == 0 || self.0.awaited.get() {
            self.0.wake_driver();
        }
    }
}
