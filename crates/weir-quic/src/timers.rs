//! Timers: when each connection of a worker is due next.
//!
//! A connection's due time changes with nearly every packet, and mostly becomes later. So an entry whose time
//! has become later stays where it is; when it comes up, the connection is asked for its due time again. Only
//! an earlier time adds an entry. Of a connection's later entries, the last one is remembered so that it can
//! be reused: it is mostly the idle timeout, which would otherwise be added again after each delayed
//! acknowledgement.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use tokio::sync::Notify;

/// The queue is searched for obsolete entries only above this number.
const FEW_ENTRIES: usize = 64;

/// Entries in order of time.
pub struct Timers {
    entries: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// Number of entries at which to search for obsolete ones: twice as many as were left by the last search,
    /// so that the search costs each entry no more than its insertion.
    most: Cell<usize>,
    /// Notified when the first entry changes.
    earlier: Notify,
}

/// The timer of one connection.
#[derive(Default)]
pub struct Timer {
    /// Time of its earliest entry, if it has one.
    next: Cell<Option<Instant>>,
    /// Time of an entry after that one.
    last: Cell<Option<Instant>>,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { entries: RefCell::default(), most: Cell::new(FEW_ENTRIES), earlier: Notify::new() }
    }
}

impl Timers {
    /// Makes sure that `key`, whose timer is `timer`, comes up at `at` or before. True when there are so many
    /// entries that [`Self::clear_out`] should be called.
    pub fn arm(&self, key: usize, timer: &Timer, at: Instant) -> bool {
        let next = timer.next.get();
        if next.is_some_and(|next| next <= at) {
            return false;
        }
        timer.last.set(timer.last.get().or(next));
        timer.next.set(Some(at));
        let mut entries = self.entries.borrow_mut();
        let is_first = entries.peek().is_none_or(|Reverse((first, _))| at < *first);
        entries.push(Reverse((at, key)));
        if is_first {
            self.earlier.notify_one();
        }
        entries.len() > self.most.get()
    }

    /// Removes obsolete entries, for which `is_served` is false: those of closed connections, and those
    /// between the earliest and the last of a connection.
    pub fn clear_out(&self, is_served: impl Fn(usize, Instant) -> bool) {
        let mut entries = self.entries.borrow_mut();
        entries.retain(|Reverse((at, key))| is_served(*key, *at));
        self.most.set((2 * entries.len()).max(FEW_ENTRIES));
    }

    /// Removes and returns the first entry if it is due.
    pub fn take_due(&self, now: Instant) -> Option<(Instant, usize)> {
        let mut entries = self.entries.borrow_mut();
        match entries.peek() {
            Some(Reverse((at, _))) if *at <= now => entries.pop().map(|Reverse(entry)| entry),
            _ => None,
        }
    }

    /// Waits until the first entry is due.
    pub async fn wait(&self) {
        loop {
            let first = self.entries.borrow().peek().map(|Reverse((at, _))| *at);
            match first {
                None => self.earlier.notified().await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => return,
                    () = self.earlier.notified() => {}
                },
            }
        }
    }
}

impl Timer {
    /// Whether the entry that came up at `at` is the connection's earliest. If so it is removed, and the
    /// later one becomes the next.
    pub fn take(&self, at: Instant) -> bool {
        let is_next = self.next.get() == Some(at);
        if is_next {
            self.next.set(self.last.take());
        }
        is_next
    }

    /// Whether an entry at `at` is still needed by the connection.
    pub fn has(&self, at: Instant) -> bool {
        [self.next.get(), self.last.get()].contains(&Some(at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_an_earlier_moment_is_entered_and_the_later_one_comes_behind_it() {
        let (timers, timer) = (Timers::default(), Timer::default());
        let start = Instant::now();
        let [one, two, three] = [1, 2, 3].map(|seconds| start + Duration::from_secs(seconds));
        timers.arm(7, &timer, two);
        timers.arm(7, &timer, three);
        timers.arm(7, &timer, one);
        assert_eq!(timers.take_due(start), None);
        assert_eq!(timers.take_due(three), Some((one, 7)));
        assert!(timer.take(one));
        timers.arm(7, &timer, three);
        assert_eq!(timers.take_due(three), Some((two, 7)));
        assert!(timer.take(two));
        assert_eq!(timers.take_due(three), None, "it comes before that");
        timers.arm(7, &timer, three);
        assert_eq!(timers.take_due(three), Some((three, 7)), "nothing is left that would");
    }

    #[test]
    fn moments_that_come_soon_leave_no_far_ones_behind() {
        let (timers, entry) = (Timers::default(), Timer::default());
        let start = Instant::now();
        for step in 0..1_000 {
            let now = start + Duration::from_millis(step);
            timers.arm(7, &entry, now + Duration::from_secs(30));
            timers.arm(7, &entry, now + Duration::from_millis(1));
            let due = timers.take_due(now + Duration::from_millis(1));
            assert_eq!(due, Some((now + Duration::from_millis(1), 7)));
            assert!(entry.take(now + Duration::from_millis(1)));
        }
        assert!(timers.entries.borrow().len() <= 2, "{} entries", timers.entries.borrow().len());
    }

    #[test]
    fn moments_ever_closer_and_those_of_connections_that_are_over_are_cleared_out() {
        let (timers, start) = (Timers::default(), Instant::now());
        let far = start + Duration::from_secs(3_600);
        let live: Vec<Timer> = (0..100).map(|_| Timer::default()).collect();
        let served = |key: usize, at| live.get(key).is_some_and(|timer: &Timer| timer.has(at));
        let mut most = 0;
        for step in 0..10_000 {
            // Each time that the one before has not come up yet.
            let at = far - Duration::from_millis(step);
            for (key, timer) in [(step as usize % 100, &live[step as usize % 100]), (500, &Timer::default())]
            {
                if timers.arm(key, timer, at) {
                    timers.clear_out(served);
                }
            }
            most = most.max(timers.entries.borrow().len());
        }
        assert!(most <= 2 * 2 * live.len() + 1, "{most} entries");
        timers.clear_out(served);
        let mut due = 0;
        while let Some((at, key)) = timers.take_due(far) {
            due += usize::from(live[key].take(at));
        }
        assert_eq!(due, 2 * live.len(), "whatever is still somebody's is there");
    }
}
