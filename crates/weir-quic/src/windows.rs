//! Limits on unacknowledged bytes, per connection and in total (threat S4).

use std::cell::Cell;
use std::rc::Rc;

use quinn_proto::VarInt;
use weir_io::buffers::Buffers;

use crate::connection::{Connection, Inner};

/// Smallest and largest number of unacknowledged bytes per connection. In between it is twice the congestion
/// window: a client that acknowledges nothing, or slowly, makes us hold little.
pub(crate) const SEND_WINDOW: (u64, u64) = (128 << 10, 8 << 20);

/// Most bytes of send windows, beyond the smallest, that all connections of a worker have together (threat
/// S4): a client that first takes a lot and then acknowledges nothing keeps its window until its connection
/// is given up.
const SEND_WINDOWS_BYTES: u64 = 64 << 20;

/// A connection has no more than one part in this many of the memory that its client may have, unless that
/// is below the smallest window: a transfer that goes well must not use up its client's share.
const CLIENT_SHARE: u64 = 4;

/// The send windows of all connections of a worker.
#[derive(Default)]
pub(crate) struct SendWindows {
    /// Bytes granted beyond the smallest window, in total.
    granted: Cell<u64>,
}

impl SendWindows {
    /// Returns a window of `before` bytes (0: none yet) and grants one of `wanted` bytes, or what is
    /// available; never less than the smallest.
    pub(crate) fn exchange(&self, before: u64, wanted: u64) -> u64 {
        let others = self.granted.get() - before.saturating_sub(SEND_WINDOW.0);
        let granted = (wanted - SEND_WINDOW.0).min(SEND_WINDOWS_BYTES.saturating_sub(others));
        self.granted.set(others + granted);
        SEND_WINDOW.0 + granted
    }
}

impl Connection {
    /// Limits unacknowledged bytes to what the path can carry, and to what all connections of the worker may
    /// hold together.
    pub(crate) fn fit_send_window(&self, inner: &mut Inner) {
        let most = (inner.held.most_bytes() / CLIENT_SHARE).clamp(SEND_WINDOW.0, SEND_WINDOW.1);
        let wanted = (2 * inner.quic.congestion_state().window()).clamp(SEND_WINDOW.0, most);
        if wanted != inner.send_window {
            let granted = self.driver.send_windows.exchange(inner.send_window, wanted);
            if granted != inner.send_window {
                inner.send_window = granted;
                inner.quic.set_send_window(granted);
            }
        }
        inner.held.set(inner.unended_bytes.min(inner.send_window));
    }

    /// Lets the peer send so many bytes on all streams together before any of them was read.
    pub fn widen_window(self: &Rc<Self>, bytes: u32) {
        self.inner.borrow_mut().quic.set_receive_window(VarInt::from_u32(bytes));
        self.touch();
    }

    /// What it holds is memory of `owner`, a client of the same worker, from now on.
    pub fn counts_for(&self, owner: &Rc<Buffers>) {
        self.inner.borrow_mut().held.counts_for(owner);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let before = self.inner.get_mut().send_window;
        self.driver.send_windows.exchange(before, SEND_WINDOW.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_send_windows_grow_only_as_far_as_all_of_a_worker_may() {
        let windows = SendWindows::default();
        let (least, most) = SEND_WINDOW;
        let granted: Vec<u64> = (0..20).map(|_| windows.exchange(0, most)).collect();
        let beyond: u64 = granted.iter().map(|window| window - least).sum();
        assert_eq!(beyond, SEND_WINDOWS_BYTES);
        assert_eq!((granted[0], granted[19]), (most, least));
        // A window that one gives back another gets.
        assert_eq!(windows.exchange(granted[0], least), least);
        assert!(windows.exchange(granted[19], most) > most / 2);
    }
}
