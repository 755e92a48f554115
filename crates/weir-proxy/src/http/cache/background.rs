//! Fetches that no client waits for: refreshes of stale responses, and fetches whose clients have left.
//!
//! No limit on clients counts them, so both their number and their duration are bounded (threat E10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use weir_io::clock;

/// The longest that a fetch goes on by itself: a response that trickles would otherwise hold its backend for
/// ever.
const LONGEST: Duration = Duration::from_secs(60);

/// How many such fetches there are and may be.
pub struct Background {
    most: AtomicU32,
    count: AtomicU32,
    refused: AtomicU64,
}

impl Background {
    /// No fetches yet, and at most `most`.
    pub fn new(most: u32) -> Background {
        Background { most: AtomicU32::new(most), count: AtomicU32::new(0), refused: AtomicU64::new(0) }
    }

    /// Allows at most so many from now on.
    pub fn set_most(&self, most: u32) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// How often there was no room for one, or one took too long.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A permit for one more, if there is room.
    pub fn admit(self: &Arc<Background>) -> Option<Permit> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |count: u32| (count < most).then(|| count + 1);
        if self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit { background: self.clone(), ends: clock::now() + LONGEST, is_over: false })
    }
}

/// Counts as one fetch of [`Background`] until dropped.
pub struct Permit {
    background: Arc<Background>,
    ends: Duration,
    is_over: bool,
}

impl Permit {
    /// Whether its time is over.
    pub fn is_over(&mut self) -> bool {
        if !self.is_over && clock::now() >= self.ends {
            self.is_over = true;
            self.background.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.is_over
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.background.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_go_on_than_may_and_each_that_ends_makes_room() {
        let background = Arc::new(Background::new(2));
        let first = background.admit();
        let second = background.admit();
        assert!(first.is_some() && second.is_some() && background.admit().is_none());
        assert_eq!((background.count(), background.refused()), (2, 1));
        drop(first);
        assert!(background.admit().is_some());
        background.set_most(0);
        assert!(background.admit().is_none());
        drop(second);
        assert_eq!((background.count(), background.refused()), (0, 2));
    }
}
