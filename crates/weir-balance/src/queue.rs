//! The count of exchanges that wait because every backend is at its limit.
//!
//! Waiting itself (wakers, timers) belongs to weir-proxy. Two rules make it correct:
//!
//! - **No lost wake-up.** A waiter first takes a ticket, then picks once more, then sleeps; a releaser first gives its slot
//!   back, then looks at the depth ([`Pool::release`](crate::Pool::release) returns it). All four are sequentially consistent, so either the
//!   waiter's second pick sees the slot or the releaser sees the waiter.
//! - **First come, first served.** Tickets are numbered over all workers. A newcomer that finds
//!   [`Pool::queue_depth`](crate::Pool::queue_depth) above 0 queues without picking, and a releaser wakes the lowest number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    depth: AtomicU32,
    max: AtomicU32,
    next_number: AtomicU64,
}

impl Queue {
    pub(crate) fn new(max: u32) -> Arc<Queue> {
        Arc::new(Queue { max: AtomicU32::new(max), ..Queue::default() })
    }

    /// In force for the next to enter; who waits already stays.
    pub(crate) fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(self: &Arc<Self>) -> Result<QueueTicket, QueueFull> {
        let max = self.max.load(Ordering::Relaxed);
        self.depth
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |depth| (depth < max).then(|| depth + 1))
            .map_err(|_| QueueFull { max })?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Ok(QueueTicket { queue: Arc::clone(self), number })
    }
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct QueueTicket {
    queue: Arc<Queue>,
    number: u64,
}

impl QueueTicket {
    /// The order of arrival over all workers; lower goes first.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.queue.depth.fetch_sub(1, Ordering::SeqCst);
    }
}

/// As many wait as `queue.max` allows; the caller answers 503 at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFull {
    /// The limit in force (count).
    pub max: u32,
}

impl std::fmt::Display for QueueFull {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "the pool's queue is full ({} waiting)", self.max)
    }
}

impl std::error::Error for QueueFull {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_admits_exactly_its_maximum_and_a_leaver_makes_room() {
        let queue = Queue::new(2);
        let first = queue.enter().unwrap();
        let second = queue.enter().unwrap();
        assert_eq!(queue.enter().unwrap_err(), QueueFull { max: 2 });
        assert!(first.number() < second.number());
        drop(first);
        assert_eq!(queue.depth(), 1);
        assert!(queue.enter().unwrap().number() > second.number());
    }

    #[test]
    fn a_queue_of_zero_admits_nobody() {
        assert!(Queue::new(0).enter().is_err());
    }

    #[test]
    fn many_threads_never_exceed_the_maximum_and_leave_it_empty() {
        let queue = Queue::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let ticket = queue.enter();
                        assert!(queue.depth() <= 3);
                        drop(ticket);
                    }
                });
            }
        });
        assert_eq!(queue.depth(), 0);
    }
}
