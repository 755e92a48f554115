//! When each connection of a worker wants to be looked at next.
//!
//! A connection's next moment changes with nearly every packet, and mostly moves back. So a moment that has
//! become later stays where it is: when it comes, the connection is asked anew. Only an earlier one is
//! entered.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use tokio::sync::Notify;

/// Entries in order of time.
#[derive(Default)]
pub struct Timers {
    entries: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// Told when the first entry has become another.
    earlier: Notify,
}

/// The timer of one connection: when its earliest entry comes up, if it has one.
#[derive(Default)]
pub struct Timer(Cell<Option<Instant>>);

impl Timers {
    /// Makes sure that `key`, whose entry is `entry`, comes up at `at` or before.
    pub fn arm(&self, key: usize, entry: &Timer, at: Instant) {
        if entry.0.get().is_some_and(|entered| entered <= at) {
            return;
        }
        entry.0.set(Some(at));
        let mut entries = self.entries.borrow_mut();
        let is_first = entries.peek().is_none_or(|Reverse((first, _))| at < *first);
        entries.push(Reverse((at, key)));
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// Takes out the first entry if its time has come.
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
    /// Whether the entry that came up at `at` is the connection's; one that an earlier has replaced is not.
    /// It is gone after that.
    pub fn take(&self, at: Instant) -> bool {
        let is_current = self.0.get() == Some(at);
        if is_current {
            self.0.set(None);
        }
        is_current
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_an_earlier_moment_is_entered_and_it_replaces_the_later_one() {
        let (timers, entry) = (Timers::default(), Timer::default());
        let start = Instant::now();
        let [one, two, three] = [1, 2, 3].map(|seconds| start + Duration::from_secs(seconds));
        timers.arm(7, &entry, two);
        timers.arm(7, &entry, three);
        timers.arm(7, &entry, one);
        assert_eq!(timers.take_due(start), None);
        assert_eq!(timers.take_due(three), Some((one, 7)));
        assert!(entry.take(one));
        assert_eq!(timers.take_due(three), Some((two, 7)));
        assert!(!entry.take(two), "replaced");
        assert_eq!(timers.take_due(three), None, "the later one was never entered");
    }
}
