//! Counts the exchanges of a multiplexed connection that are running.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use weir_io::buffers::{Buffers, Held};

/// Bytes that a client may send of one request's body before the exchange has taken any of it.
pub const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The same for all requests of a connection together, in bytes (threat S4).
pub const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// How many exchanges of a connection are running, from Weir's point of view: one whose stream was reset
/// counts until it has released its backend (threats B1, B4).
pub struct UnderWay {
    count: Cell<u32>,
    /// How many of these have a body that had not arrived when they began.
    with_body: Cell<u32>,
    /// Counts the memory that their flow-control windows may make us hold.
    windows: Held,
    /// Wakes the task that drives the connection.
    driver: RefCell<Option<Waker>>,
    /// Whether that task is woken by the end of any exchange, and not only of the last one.
    awaited: Cell<bool>,
}

impl UnderWay {
    /// For a new connection, whose windows count against the budget of `buffers`.
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

    /// How many exchanges are running.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// Counts one more until the result is dropped.
    pub fn enter(self: &Rc<Self>) -> ExchangeCount {
        self.count.set(self.count.get() + 1);
        ExchangeCount { under_way: self.clone(), has_body: false }
    }

    /// Makes [`Self::wake_driver`] wake the task of `context`.
    pub fn driven_by(&self, context: &Context<'_>) {
        let driver = &mut *self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *driver = Some(context.waker().clone());
        }
    }

    /// If `awaited`, wakes the driver at the end of each exchange; otherwise only at the end of the last one.
    pub fn await_each(&self, awaited: bool) {
        self.awaited.set(awaited);
    }

    /// Wakes the driver, because the connection may have something to do.
    pub fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }
}

/// Counts as one exchange of [`UnderWay`] until dropped.
pub struct ExchangeCount {
    under_way: Rc<UnderWay>,
    has_body: bool,
}

impl ExchangeCount {
    /// Notes that the request's body has not arrived yet.
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
