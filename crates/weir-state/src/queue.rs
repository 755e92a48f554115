//! The queue of a pool: exchanges that wait because every backend is at `max_connections`.
//!
//! Shared by all workers. Nothing here is touched while nobody waits but one load per ended exchange.
//!
//! No wake-up is lost: a waiter first takes a place, then picks once more, then sleeps; a releaser first
//! gives its slot back ([`weir_balance::Pool::release`]), then looks at the line. All four are sequentially
//! consistent, so either the waiter's second pick finds the slot or the releaser finds the waiter.
//!
//! Room comes about in other ways too: a backend is added, comes back, or may take more. That is more room
//! than one call can give away, so whoever is called then and finds some passes the call on
//! ([`Queue::call_all`]). While such a call is on its way a release calls nobody: who has the call is the
//! first of those who wait, though not in line, and tries once more after any release that it has kept
//! silent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// Exchanges that wait for a backend, first come first served.
#[derive(Default)]
pub struct Queue {
    waiting: AtomicU32,
    line: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    waiters: VecDeque<Arc<Waiter>>,
    /// Calls to all that somebody has and has neither passed on nor brought back.
    calls_to_all: u32,
}

/// One exchange that waits.
pub struct Waiter {
    called: AtomicBool,
    /// Whether the call is one to all, and this one has to pass it on.
    to_all: AtomicBool,
    waker: Waker,
}

impl Waiter {
    fn new(waker: Waker) -> Arc<Waiter> {
        Arc::new(Waiter { called: false.into(), to_all: false.into(), waker })
    }

    /// Whether a backend has become free since the place was taken.
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }
}

impl Queue {
    /// Exchanges that wait now.
    pub fn depth(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes a place at the end of the line. `None` when `limit` exchanges wait already.
    pub fn enter(&self, waker: Waker, limit: u32) -> Option<Arc<Waiter>> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.waiters.len() >= limit as usize {
            return None;
        }
        let waiter = Waiter::new(waker);
        line.waiters.push_back(waiter.clone());
        self.waiting.store(line.waiters.len() as u32, Ordering::SeqCst);
        Some(waiter)
    }

    /// Takes a place at the front, for one who was called in vain: the backend was taken again.
    pub fn enter_again(&self, waker: Waker, called: &Waiter) -> Arc<Waiter> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let waiter = Waiter::new(waker);
        line.waiters.push_front(waiter.clone());
        line.calls_to_all -= u32::from(called.to_all.load(Ordering::Relaxed));
        self.waiting.store(line.waiters.len() as u32, Ordering::SeqCst);
        waiter
    }

    /// Gives up a place (timed out, or the client went away).
    pub fn leave(&self, waiter: &Arc<Waiter>) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        self.waiting.store(line.waiters.len() as u32, Ordering::SeqCst);
        drop(line);
        // Whoever was called and leaves without using the backend passes the call on, or it would be lost.
        if waiter.to_all.load(Ordering::Relaxed) {
            self.pass_on(waiter);
        } else if waiter.is_called() {
            self.call_next();
        }
    }

    /// Calls the first in line; called after each release of a backend.
    #[inline]
    pub fn call_next(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            if line.calls_to_all == 0 {
                self.call_first(&mut line, false);
            }
        }
    }

    /// Calls everybody, one after the other: whoever is called passes the call on ([`Self::pass_on`]) unless
    /// every backend is busy again, so that the line stays in order and nobody is woken for nothing.
    ///
    /// To be called after whatever may make room, other than a release, has come into force. Always takes the
    /// lock: who is not in line yet then takes a place after it, and so sees what has changed when choosing
    /// once more.
    pub fn call_all(&self) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        self.call_first(&mut line, true);
    }

    /// One who was called has had its choice: if the call was one to all, the next is called.
    pub fn pass_on(&self, waiter: &Waiter) {
        if waiter.to_all.load(Ordering::Relaxed) {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            line.calls_to_all -= 1;
            self.call_first(&mut line, true);
        }
    }

    #[cold]
    fn call_first(&self, line: &mut Waiters, to_all: bool) {
        let Some(waiter) = line.waiters.pop_front() else { return };
        self.waiting.store(line.waiters.len() as u32, Ordering::SeqCst);
        // While the line is held: who is out of it must be seen as called, or the call is lost with one who
        // leaves just now.
        line.calls_to_all += u32::from(to_all);
        waiter.to_all.store(to_all, Ordering::Relaxed);
        waiter.called.store(true, Ordering::Release);
        waiter.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_balance::{Backend, BackendSettings, PickInput, Picker, Pool, Settings};

    #[test]
    fn the_line_is_first_come_first_served_and_bounded() {
        let queue = Queue::default();
        let first = queue.enter(Waker::noop().clone(), 2).unwrap();
        let second = queue.enter(Waker::noop().clone(), 2).unwrap();
        assert!(queue.enter(Waker::noop().clone(), 2).is_none());
        queue.call_next();
        assert!(first.is_called() && !second.is_called());
        assert_eq!(queue.depth(), 1);
    }

    #[test]
    fn a_call_to_one_who_left_passes_to_the_next() {
        let queue = Queue::default();
        let first = queue.enter(Waker::noop().clone(), 9).unwrap();
        let second = queue.enter(Waker::noop().clone(), 9).unwrap();
        queue.call_next();
        queue.leave(&first);
        assert!(second.is_called());
        assert_eq!(queue.depth(), 0);
    }

    #[test]
    fn one_who_was_called_in_vain_goes_back_to_the_front() {
        let queue = Queue::default();
        let first = queue.enter(Waker::noop().clone(), 2).unwrap();
        let waiting = queue.enter(Waker::noop().clone(), 2).unwrap();
        queue.call_next();
        let front = queue.enter_again(Waker::noop().clone(), &first);
        queue.call_next();
        assert!(front.is_called() && !waiting.is_called());
    }

    #[test]
    fn a_call_to_all_goes_on_until_one_finds_every_backend_busy() {
        let queue = Queue::default();
        let waiters: Vec<_> = (0..4).map(|_| queue.enter(Waker::noop().clone(), 9).unwrap()).collect();
        let called = || waiters.iter().map(|waiter| waiter.is_called()).collect::<Vec<_>>();
        queue.call_all();
        assert_eq!(called(), [true, false, false, false]);
        queue.pass_on(&waiters[0]);
        assert_eq!(called(), [true, true, false, false]);
        // The second has gone away meanwhile.
        queue.leave(&waiters[1]);
        assert_eq!(called(), [true, true, true, false]);
        // The third found every backend busy and goes back to the front; the fourth still waits behind it.
        let third = queue.enter_again(Waker::noop().clone(), &waiters[2]);
        queue.call_next();
        queue.pass_on(&third);
        assert!(third.is_called());
        assert_eq!(called(), [true, true, true, false], "a release calls one");
    }

    #[test]
    fn nobody_is_called_past_one_who_has_a_call_to_all() {
        let queue = Queue::default();
        let waiters: Vec<_> = (0..2).map(|_| queue.enter(Waker::noop().clone(), 9).unwrap()).collect();
        queue.call_all();
        queue.call_next();
        assert!(waiters[0].is_called() && !waiters[1].is_called(), "the first has yet to try");
        let first = queue.enter_again(Waker::noop().clone(), &waiters[0]);
        queue.call_next();
        assert!(first.is_called() && !waiters[1].is_called());
        queue.call_next();
        assert!(waiters[1].is_called());
    }

    #[test]
    fn a_waiter_that_sleeps_is_always_seen_by_the_next_release() {
        // One slot, so the second pick fails exactly while the slot is held. If both missed each other the
        // waiter would sleep for ever.
        for turn in 0..3_000 {
            let settings = BackendSettings { max_connections: Some(1), ..BackendSettings::default() };
            let members = vec![Arc::new(Backend::new("10.3.0.1:80", settings))];
            let pool = Arc::new(Pool::new(Settings::default(), members, Duration::ZERO));
            let queue = Queue::default();
            let held = Picker::new(pool.clone()).pick(&PickInput::default()).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let place = queue.enter(Waker::noop().clone(), 1).unwrap();
                    let second = Picker::new(pool.clone()).pick(&PickInput::default());
                    (place, second.is_err())
                });
                pool.release(held.index);
                queue.call_next();
                let (place, sleeps) = waiter.join().unwrap();
                assert!(!sleeps || place.is_called(), "turn {turn}: the waiter sleeps and nobody calls it");
            });
        }
    }

    #[test]
    fn many_threads_never_exceed_the_limit_and_leave_the_room_empty() {
        let queue = Queue::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let place = queue.enter(Waker::noop().clone(), 3);
                        assert!(queue.depth() <= 3);
                        if let Some(place) = place {
                            queue.leave(&place);
                        }
                    }
                });
            }
        });
        assert_eq!(queue.depth(), 0);
    }
}
