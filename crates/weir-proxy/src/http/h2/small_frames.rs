//! Small frames of content that a backend may not have read yet.
//!
//! The `h2` crate, with which many backends are built, counts what such frames cost beside their content
//! until a handler has read them, and ends a connection on which they cost too much (`ENHANCE_YOUR_CALM`) for
//! all who share it: a hundred bytes of one client, each sent by itself, were enough (threat B29). So from
//! half of that cost on, there are pauses between those of a stream, in which what follows is joined, and
//! requests that begin use another connection.
//!
//! What was read is not known, only what a backend shows: it opens a stream's window, or answers on it. A
//! stream on which a client and its backend take turns has no pauses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

/// Frames with at least this much content cost nothing; smaller ones cost what they lack, in bytes.
pub const SMALL_BYTES: usize = 256;
/// The cost at which the `h2` crate ends a connection is half of the connection's window, and at least this.
const LEAST_BUDGET: u64 = 25_600;
/// The pause between two small frames of a stream, if only this one has such frames, when they cost as much
/// as ends the connection.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, if many streams have. A client that keeps to the usual `limits.min_body_rate` sends
/// more in it than a small frame holds, and `timeout.backend` is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The small frames that were sent on one connection.
#[derive(Default)]
pub struct SmallFrames {
    unread: RefCell<HashMap<u32, Unread, foldhash::fast::RandomState>>,
    /// The cost of all of them.
    cost: Cell<u64>,
}

/// Those of one stream.
#[derive(Default)]
struct Unread {
    cost: u64,
    /// The content sent since the first of them, in bytes.
    bytes: u64,
    /// When the next may be sent.
    next_at: Duration,
}

impl SmallFrames {
    /// Notes a frame with `bytes` of content that does not end its stream. `window` is that of the
    /// connection; `now` is called only if a pause begins.
    pub fn note_sent(&self, stream: u32, bytes: usize, window: u64, now: impl FnOnce() -> Duration) {
        let cost = SMALL_BYTES.saturating_sub(bytes) as u64;
        let unread = &mut *self.unread.borrow_mut();
        let entry = match cost {
            0 => unread.get_mut(&stream),
            _ => Some(unread.entry(stream).or_default()),
        };
        let Some(entry) = entry else { return };
        entry.cost += cost;
        entry.bytes += bytes as u64;
        self.cost.set(self.cost.get() + cost);
        if cost > 0 && self.is_crowded(window) {
            let pause = self.pause(window);
            let streams = u32::try_from(unread.len()).unwrap_or(u32::MAX);
            if let Some(entry) = unread.get_mut(&stream) {
                entry.next_at = now() + pause.saturating_mul(streams).min(LONGEST_PAUSE);
            }
        }
    }

    /// Notes that a stream's window was opened by so much: that content was read.
    pub fn note_read(&self, stream: u32, bytes: u32) {
        self.forgive(stream, |entry| {
            let read = u64::from(bytes).min(entry.bytes);
            // The rest of its frames are taken to be as small as those that were read.
            let share = entry.cost.saturating_mul(read).checked_div(entry.bytes).unwrap_or(entry.cost);
            entry.bytes -= read;
            share
        });
    }

    /// Notes a piece of an answer: who takes turns with its client has read what it answers.
    pub fn note_answered(&self, stream: u32) {
        self.forgive(stream, |_| SMALL_BYTES as u64);
    }

    /// Notes that a stream is over.
    pub fn end(&self, stream: u32) {
        self.forgive(stream, |entry| entry.cost);
    }

    fn forgive(&self, stream: u32, share: impl FnOnce(&mut Unread) -> u64) {
        if self.cost.get() == 0 {
            return;
        }
        let unread = &mut *self.unread.borrow_mut();
        let Some(entry) = unread.get_mut(&stream) else { return };
        let forgiven = share(entry).min(entry.cost);
        entry.cost -= forgiven;
        if entry.cost == 0 {
            unread.remove(&stream);
        }
        self.cost.set(self.cost.get() - forgiven);
    }

    /// Whether they cost so much that requests which begin should use another connection.
    pub fn is_crowded(&self, window: u64) -> bool {
        self.cost.get() > budget(window) / 2
    }

    /// When the next small frame of a stream may be sent; zero if at once.
    pub fn next_at(&self, stream: u32, window: u64) -> Duration {
        if !self.is_crowded(window) {
            return Duration::ZERO;
        }
        self.unread.borrow().get(&stream).map_or(Duration::ZERO, |entry| entry.next_at)
    }

    fn pause(&self, window: u64) -> Duration {
        let half = budget(window) / 2;
        let beyond = self.cost.get().saturating_sub(half).min(half);
        PAUSE.mul_f64(beyond as f64 / half as f64)
    }
}

/// The cost at which the connection ends.
fn budget(window: u64) -> u64 {
    (window / 2).max(LEAST_BUDGET)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 65_535;
    const NOW: Duration = Duration::from_secs(100);

    /// Sends so many frames of a byte; gives when the next may be sent, from now on.
    fn sends(frames: &SmallFrames, stream: u32, count: usize) -> Duration {
        (0..count).for_each(|_| frames.note_sent(stream, 1, WINDOW, || NOW));
        frames.next_at(stream, WINDOW).saturating_sub(NOW)
    }

    #[test]
    fn b29_pauses_grow_with_what_nobody_has_read() {
        let frames = SmallFrames::default();
        assert_eq!(sends(&frames, 1, 64), Duration::ZERO);
        assert!(!frames.is_crowded(WINDOW));
        let first = sends(&frames, 1, 1);
        assert!(frames.is_crowded(WINDOW) && first < Duration::from_millis(20), "{first:?}");
        let second = sends(&frames, 1, 30);
        assert!(second > Duration::from_millis(400) && second < Duration::from_millis(600), "{second:?}");
        assert_eq!(sends(&frames, 1, 100), PAUSE);
        assert_eq!(frames.next_at(3, WINDOW), Duration::ZERO, "it has sent none");
        assert_eq!(sends(&frames, 3, 1), 2 * PAUSE);
        for stream in 5..100 {
            sends(&frames, stream, 1);
        }
        assert_eq!(sends(&frames, 1, 1), LONGEST_PAUSE);
        // Large frames cost nothing, and make no others wait longer.
        frames.note_sent(3, SMALL_BYTES, WINDOW, || panic!("no pause"));
        assert!(!frames.is_crowded(1 << 20), "a larger window");
        (1..100).for_each(|stream| frames.end(stream));
        assert_eq!((frames.cost.get(), frames.unread.borrow().len()), (0, 0));
    }

    #[test]
    fn what_was_read_or_answered_costs_nothing_any_more() {
        let frames = SmallFrames::default();
        sends(&frames, 1, 100);
        frames.note_sent(1, 300, WINDOW, || NOW);
        frames.note_read(1, 200);
        assert_eq!(frames.cost.get(), 100 * 255 / 2);
        frames.note_read(3, 200);
        frames.note_read(1, 1000);
        assert_eq!((frames.cost.get(), frames.unread.borrow().len()), (0, 0));
        for _ in 0..1000 {
            assert_eq!(sends(&frames, 1, 1), Duration::ZERO);
            frames.note_answered(1);
        }
        assert_eq!(frames.cost.get(), 0);
    }
}
