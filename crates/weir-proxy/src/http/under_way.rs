//! Counts the exchanges of a multiplexed connection that are running.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use weir_io::buffers::{Buffers, Held};

/// Bytes that a client may send of one request's body before the exchange has taken any of it.
pub const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The same for all requests of a client's connection together, in bytes (threat S4).
pub const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// The largest window that there may be (RFC 9113 §6.9.1).
const LARGEST_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// The window of a connection with `streams` requests at once. A trusted proxy sends the requests of many
/// clients over one connection, so each of them can fill its own window there: otherwise two whose bodies a
/// backend does not read would keep the bodies of all others waiting (threat B28).
pub fn connection_window(is_trusted: bool, streams: u32) -> u32 {
    match is_trusted {
        true => {
            STREAM_WINDOW_BYTES.saturating_mul(streams).clamp(CONNECTION_WINDOW_BYTES, LARGEST_WINDOW_BYTES)
        }
        false => CONNECTION_WINDOW_BYTES,
    }
}

/// What a connection of HTTP/3 has room for beside the bodies, in bytes: there, heads count against its
/// window too (RFC 9114 §7.1), and requests without a body must not wait for the bodies of others.
pub const HEADS_BYTES: u32 = 64 << 10;

/// The largest window that a connection of HTTP/3 gets, whose client may have `client_bytes` of memory: of
/// that, the bodies of one connection take a quarter.
pub fn widest_window(is_trusted: bool, streams: u32, client_bytes: u64) -> u32 {
    let all = connection_window(true, streams).saturating_add(HEADS_BYTES).min(LARGEST_WINDOW_BYTES);
    match is_trusted {
        true => all,
        false => u32::try_from(client_bytes / 4).unwrap_or(u32::MAX).clamp(CONNECTION_WINDOW_BYTES, all),
    }
}

/// Memory that a running exchange takes besides buffers: its task, its state, and its stream in the
/// connection's protocol. A client that opens streams and reads no response makes us hold this much for each
/// (threat B26).
pub const EXCHANGE_BYTES: usize = 11 << 10;

/// Number of running exchanges of a connection, as this process sees it: an exchange whose stream was reset
/// counts until it has released its backend (threats B1, B4).
pub struct UnderWay {
    count: Cell<u32>,
    /// How many of these have a body that had not arrived when they began.
    with_body: Cell<u32>,
    /// The memory that they hold, and that their flow-control windows may make us hold.
    held: Held,
    /// The window of the connection, in bytes.
    window: Cell<u32>,
    buffers: Rc<Buffers>,
    /// The task that drives the connection.
    driver: RefCell<Option<Waker>>,
    /// Whether that task is woken by the end of any exchange, and not only of the last one.
    awaited: Cell<bool>,
}

impl UnderWay {
    /// For a new connection with a `window` of so many bytes. Its exchanges and windows count against the
    /// budget of `buffers`.
    pub fn new(buffers: &Rc<Buffers>, window: u32) -> Rc<UnderWay> {
        Rc::new(UnderWay {
            count: Cell::new(0),
            with_body: Cell::new(0),
            held: Held::new(buffers),
            window: Cell::new(window),
            buffers: buffers.clone(),
            driver: RefCell::default(),
            awaited: Cell::new(false),
        })
    }

    fn count_held(&self) {
        let windows = u64::from(self.with_body.get()) * u64::from(STREAM_WINDOW_BYTES);
        let exchanges = u64::from(self.count.get()) * EXCHANGE_BYTES as u64;
        self.held.set(windows.min(self.window.get().into()) + exchanges);
    }

    /// The window that the connection needs from now on, if that is larger than before: each body that is
    /// under way can fill its own, and the heads of others have room beside them. At most [`widest_window`],
    /// and only while memory has room for that.
    pub fn widen(&self, is_trusted: bool, streams: u32) -> Option<u32> {
        let most = widest_window(is_trusted, streams, self.held.most_bytes());
        let of_bodies = self.with_body.get().saturating_mul(STREAM_WINDOW_BYTES);
        let wanted = of_bodies.saturating_add(HEADS_BYTES).min(most);
        let more = wanted.checked_sub(self.window.get()).filter(|more| *more > 0)?;
        self.buffers.charge(more.into())?;
        self.window.set(wanted);
        self.count_held();
        Some(wanted)
    }

    /// How many exchanges are running.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// Counts one more exchange until the returned value is dropped. `None` if the memory budget has no room
    /// even for the exchange itself: the caller then refuses its stream without allocating anything for it.
    pub fn enter(self: &Rc<Self>) -> Option<ExchangeCount> {
        if !self.buffers.has_room(EXCHANGE_BYTES) {
            return None;
        }
        self.count.set(self.count.get() + 1);
        self.count_held();
        Some(ExchangeCount { under_way: self.clone(), has_body: false })
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
            self.under_way.count_held();
        }
    }
}

impl Drop for ExchangeCount {
    fn drop(&mut self) {
        let under_way = &self.under_way;
        if self.has_body {
            under_way.with_body.set(under_way.with_body.get() - 1);
        }
        let left = under_way.count.get() - 1;
        under_way.count.set(left);
        under_way.count_held();
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
        let under_way = UnderWay::new(&buffers, CONNECTION_WINDOW_BYTES);
        let mut exchanges: Vec<ExchangeCount> = (0..3).map(|_| under_way.enter().unwrap()).collect();
        let mut counted = Vec::new();
        let of_windows =
            |exchanges: usize| (buffers.in_use_bytes() as usize - exchanges * EXCHANGE_BYTES) >> 10;
        for exchange in &mut exchanges {
            exchange.expects_body();
            exchange.expects_body();
            counted.push(of_windows(3));
        }
        assert_eq!(counted, [128, 256, 256]);
        exchanges.truncate(1);
        assert_eq!(of_windows(1), 128);
        exchanges.clear();
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn b28_each_request_of_a_trusted_proxy_can_fill_its_window() {
        assert_eq!(connection_window(false, 100), CONNECTION_WINDOW_BYTES);
        assert_eq!(connection_window(true, 100), 100 * STREAM_WINDOW_BYTES);
        assert_eq!(connection_window(true, 1), CONNECTION_WINDOW_BYTES);
        assert_eq!(connection_window(true, u32::MAX), LARGEST_WINDOW_BYTES);
        let buffers = Buffers::new(1 << 30);
        let under_way = UnderWay::new(&buffers, connection_window(true, 100));
        let mut exchanges: Vec<ExchangeCount> = (0..3).map(|_| under_way.enter().unwrap()).collect();
        exchanges.iter_mut().for_each(ExchangeCount::expects_body);
        let of_windows = buffers.in_use_bytes() as usize - 3 * EXCHANGE_BYTES;
        assert_eq!(of_windows, 3 * STREAM_WINDOW_BYTES as usize);
    }

    #[test]
    fn b28_a_window_of_http_3_grows_with_the_bodies_as_far_as_its_client_has_memory() {
        let buffers = Buffers::new(4 * (768 << 10));
        let expected = [
            // Up to a quarter of all that there is.
            (false, [0, 320, 448, 576, 704, 768, 0], 768),
            (true, [0, 320, 448, 576, 704, 832, 960], 7 * 128),
        ];
        for (is_trusted, widened, counted) in expected {
            let under_way = UnderWay::new(&buffers, CONNECTION_WINDOW_BYTES);
            let mut exchanges: Vec<ExchangeCount> = Vec::new();
            for kib in widened {
                exchanges.push(under_way.enter().unwrap());
                exchanges.iter_mut().for_each(ExchangeCount::expects_body);
                let window = under_way.widen(is_trusted, 100).unwrap_or_default();
                assert_eq!(window >> 10, kib, "{} bodies, trusted: {is_trusted}", exchanges.len());
            }
            let of_windows = buffers.in_use_bytes() - 7 * EXCHANGE_BYTES as u64;
            assert_eq!(of_windows >> 10, counted);
            exchanges.truncate(1);
            assert_eq!(under_way.widen(is_trusted, 100), None, "it stays as wide as it was");
        }
    }

    #[test]
    fn b26_no_exchange_begins_that_memory_has_no_room_for() {
        let buffers = Buffers::new(3 * EXCHANGE_BYTES as u64);
        let new = || UnderWay::new(&buffers, CONNECTION_WINDOW_BYTES);
        let (one, other) = (new(), new());
        let mut exchanges: Vec<ExchangeCount> = (0..2).map(|_| one.enter().unwrap()).collect();
        exchanges.push(other.enter().unwrap());
        assert!(one.enter().is_none() && other.enter().is_none());
        exchanges.truncate(2);
        assert!(other.enter().is_some());
        assert_eq!((one.count(), other.count()), (2, 0));
    }
}
