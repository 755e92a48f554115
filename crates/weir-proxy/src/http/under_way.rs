//! The exchanges of a multiplexed connection that are under way.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use weir_io::buffers::{Buffers, Held};

/// What a client may send of one request's body before the exchange has taken any of it.
pub const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The same for all requests of a connection together (threat S4).
pub const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// How many exchanges of a connection are under way, whatever its client thinks: one whose stream was reset
/// counts until it has let go of its backend (threats B1, B4).
pub struct UnderWay {
    count: Cell<u32>,
    /// Of these, those whose body is still to come when they begin.
    with_body: Cell<u32>,
    /// What their windows may make us hold.
    windows: Held,
    /// What drives the connection.
    driver: RefCell<Option<Waker>>,
    /// Whether it is to be woken by the end of any exchange, and not of the last alone.
    awaited: Cell<bool>,
}

impl UnderWay {
    /// Of a new connection, whose windows count against the budget of `buffers`.
    pub fn new(buffers: &Rc<Buffers>) -> Rc<UnderWay> {
        Rc::new(UnderWay {
            count: Cell::new(0),
            with_body: Cell::new(0),
            windows: Held::new(buffers),
            driver: RefCell::default(),
            awaited: Cell::new(false),
        })
    }

    fn fit_windows(&self) {
        let all = u64::from(self.with_body.get()) * u64::from(STREAM_WINDOW_BYTES);
        self.windows.set(all.min(CONNECTION_WINDOW_BYTES.into()));
    }

    /// Exchanges under way.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// Counts one more until what it gives is dropped.
    pub fn enter(self: &Rc<Self>) -> ExchangeCount {
        self.count.set(self.count.get() + 1);
        ExchangeCount { under_way: self.clone(), has_body: false }
    }

    /// Has [`Self::wake_driver`] wake the task of `context`.
    pub fn driven_by(&self, context: &Context<'_>) {
        let driver = &mut *self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *driver = Some(context.waker().clone());
        }
    }

    /// Has the driver woken by the end of the next exchange, whichever it is; else by that of the last one
    /// only.
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

/// One of [`UnderWay`], until dropped.
pub struct ExchangeCount {
    under_way: Rc<UnderWay>,
    has_body: bool,
}

impl ExchangeCount {
    /// The request's body is still to come.
    pub fn expects_body(&mut self) {
        if !std::mem::replace(&mut self.has_body, true) {
            self.under_way.with_body.set(self.under_way.with_body.get() + 1);
            self.under_way.fit_windows();
        }
    }
}

impl Drop for ExchangeCount {
    fn drop(&mut self) {
        let under_way = &self.under_way;
        if self.has_body {
            under_way.with_body.set(under_way.with_body.get() - 1);
            under_way.fit_windows();
        }
        let left = under_way.count.get() - 1;
        under_way.count.set(left);
        if left == 0 || under_way.awaited.get() {
            under_way.wake_driver();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_windows_of_bodies_under_way_are_counted_up_to_that_of_the_connection() {
        let buffers = Buffers::new(1 << 30);
        let under_way = UnderWay::new(&buffers);
        let mut exchanges: Vec<ExchangeCount> = (0..3).map(|_| under_way.enter()).collect();
        assert_eq!(buffers.in_use_bytes(), 0);
        let mut counted = Vec::new();
        for exchange in &mut exchanges {
            exchange.expects_body();
            exchange.expects_body();
            counted.push(buffers.in_use_bytes() >> 10);
        }
        assert_eq!(counted, [128, 256, 256]);
        exchanges.truncate(1);
        assert_eq!(buffers.in_use_bytes() >> 10, 128);
        exchanges.clear();
        assert_eq!(buffers.in_use_bytes(), 0);
    }
}
