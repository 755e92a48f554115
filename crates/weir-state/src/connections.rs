//! Counts the client connections of a listener, or the connections to a backend, against `max_connections`,
//! and lets a few newcomers wait until a connection ends.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Most newcomers that may wait at one listener or backend at once. Each holds a file descriptor; further
/// ones are turned away.
const MOST_NEWCOMERS: u32 = 256;

/// The connections of one listener or backend over all workers, across reloads.
#[derive(Default)]
pub struct ConnectionCount {
    open: AtomicU32,
    newcomers: AtomicU32,
    ended: Notify,
}

impl ConnectionCount {
    /// Connections open now.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts one connection in; `false` if there are `limit` already.
    #[inline]
    pub fn try_add(&self, limit: u32) -> bool {
        let more = |open: u32| (open < limit).then(|| open + 1);
        self.open.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// Counts one connection out and wakes the newcomer that has waited longest.
    ///
    /// Sequentially consistent with a newcomer that counts itself in and then tries: one of the two sees the
    /// other.
    #[inline]
    pub fn remove(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.newcomers.load(Ordering::SeqCst) > 0 {
            self.ended.notify_one();
        }
    }

    /// Counts in a newcomer that waits; `None` when as many wait as allowed.
    pub fn newcomer(&self) -> Option<Newcomer<'_>> {
        let more = |waiting: u32| (waiting < MOST_NEWCOMERS).then(|| waiting + 1);
        self.newcomers.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).ok()?;
        Some(Newcomer(self))
    }
}

/// A newcomer that waits for a connection to end, counted until dropped.
pub struct Newcomer<'a>(&'a ConnectionCount);

impl Newcomer<'_> {
    /// Ready when a connection has ended and this newcomer has waited longest. Another may be faster and take
    /// the place.
    pub fn ended(&self) -> Notified<'_> {
        self.0.ended.notified()
    }
}

impl Drop for Newcomer<'_> {
    fn drop(&mut self) {
        self.0.newcomers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_connections_are_let_in_than_the_limit_says() {
        let connections = ConnectionCount::default();
        assert!(connections.try_add(2) && connections.try_add(2));
        assert!(!connections.try_add(2));
        connections.remove();
        assert!(connections.try_add(2));
        assert_eq!(connections.open(), 2);
    }

    #[test]
    fn newcomers_are_bounded_and_counted_out_again() {
        let connections = ConnectionCount::default();
        let waiting: Vec<_> = (0..MOST_NEWCOMERS).map(|_| connections.newcomer().expect("room")).collect();
        assert!(connections.newcomer().is_none());
        drop(waiting);
        assert!(connections.newcomer().is_some());
    }
}
