//! The queue of a pool: exchanges that wait because every backend is at `max_connections`, or because no
//! backend has the role they ask for.
//!
//! All workers share it. While nobody waits, an ended exchange touches only one cache line of it.
//!
//! There is one line for each requested role, and one for exchanges that request none, so that an exchange
//! that waits for a primary does not hold up readers.
//!
//! No wake-up is lost: a waiter first takes a place, then picks once more, then sleeps; a releaser first
//! gives its slot back ([`weir_balance::Pool::release`]), then looks at the line. All four are sequentially
//! consistent, so either the waiter's second pick finds the slot or the releaser finds the waiter.
//!
//! Room also appears in other ways: a backend is added, comes back, or may take more. That is more room than
//! one call can give away, so an exchange that is called then and finds room passes the call on
//! ([`Queue::call_all`]). While such a call is on its way, a release calls nobody: the exchange that has the
//! call is the first of those that wait, though it is no longer in line, and tries once more after any
//! release that it kept from calling.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use weir_balance::{Role, WantedRole};

/// Lines of a queue: for no role, for the primary, for reads.
const LINES: usize = 3;

/// The line of exchanges that request a role.
fn line_of(role: Option<WantedRole>) -> usize {
    match role {
        None => 0,
        Some(WantedRole::Primary) => 1,
        Some(WantedRole::Read) => 2,
    }
}

/// Whether room on a backend in `role` may help exchanges in a line. A role that is changing right now is not
/// missed: the pool calls everybody once the change is in force.
fn is_room_for(line: usize, role: Option<Role>) -> bool {
    match line {
        0 => true,
        1 => role == Some(Role::Primary),
        _ => role.is_some(),
    }
}

/// Exchanges that wait for a backend, first come first served.
#[derive(Default)]
pub struct Queue {
    /// How many wait, by line.
    waiting: [AtomicU32; LINES],
    lines: [Mutex<Waiters>; LINES],
}

#[derive(Default)]
struct Waiters {
    waiters: VecDeque<Arc<Waiter>>,
    /// Calls to all that an exchange holds, not yet passed on or given back.
    calls_to_all: u32,
}

/// One waiting exchange.
pub struct Waiter {
    line: usize,
    called: AtomicBool,
    /// Whether this is a call to all, which has to be passed on.
    to_all: AtomicBool,
    waker: Waker,
}

impl Waiter {
    fn new(line: usize, waker: Waker) -> Arc<Waiter> {
        Arc::new(Waiter { line, called: false.into(), to_all: false.into(), waker })
    }

    /// Whether this exchange has been called since it took its place.
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }
}

impl Queue {
    /// Number of exchanges that wait now, in all lines.
    pub fn depth(&self) -> u32 {
        self.waiting.iter().map(|waiting| waiting.load(Ordering::Relaxed)).sum()
    }

    /// Number of exchanges that wait now and request this role.
    pub fn depth_of(&self, role: Option<WantedRole>) -> u32 {
        self.waiting[line_of(role)].load(Ordering::Relaxed)
    }

    /// Takes a place at the end of the line for a role. `None` when `limit` exchanges already wait there.
    pub fn enter(&self, role: Option<WantedRole>, waker: Waker, limit: u32) -> Option<Arc<Waiter>> {
        let mut line = self.lock(line_of(role));
        if line.waiters.len() >= limit as usize {
            return None;
        }
        let waiter = Waiter::new(line_of(role), waker);
        line.waiters.push_back(waiter.clone());
        self.publish(waiter.line, &line);
        Some(waiter)
    }

    /// Takes a place at the front, for an exchange that was called but found the backend taken again.
    pub fn enter_again(&self, waker: Waker, called: &Waiter) -> Arc<Waiter> {
        let mut line = self.lock(called.line);
        let waiter = Waiter::new(called.line, waker);
        line.waiters.push_front(waiter.clone());
        line.calls_to_all -= u32::from(called.to_all.load(Ordering::Relaxed));
        self.publish(waiter.line, &line);
        waiter
    }

    /// Gives up a place (timed out, or the client went away).
    pub fn leave(&self, waiter: &Arc<Waiter>) {
        let mut line = self.lock(waiter.line);
        line.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        self.publish(waiter.line, &line);
        drop(line);
        // A called exchange that leaves without using the backend must pass the call on, or the call would be
        // lost.
        if waiter.to_all.load(Ordering::Relaxed) {
            self.pass_on(waiter);
        } else if waiter.is_called() {
            self.call_next_of(waiter.line);
        }
    }

    /// Calls the first exchange of each line that the room may help. Call it after each release of a backend;
    /// `role` gives the backend's role and is called only when somebody waits.
    #[inline]
    pub fn call_next(&self, role: impl FnOnce() -> Option<Role>) {
        if self.waiting.iter().any(|waiting| waiting.load(Ordering::SeqCst) > 0) {
            self.call_first_of_lines(role());
        }
    }

    #[cold]
    fn call_first_of_lines(&self, role: Option<Role>) {
        (0..LINES).filter(|line| is_room_for(*line, role)).for_each(|line| self.call_next_of(line));
    }

    fn call_next_of(&self, line: usize) {
        if self.waiting[line].load(Ordering::SeqCst) > 0 {
            let mut waiters = self.lock(line);
            if waiters.calls_to_all == 0 {
                self.call_first(line, &mut waiters, false);
            }
        }
    }

    /// Calls every waiting exchange, one after another in each line: each one passes the call on
    /// ([`Self::pass_on`]) unless all backends are busy again. So the line stays in order and nobody is woken
    /// for nothing.
    ///
    /// Call it after anything other than a release that may make room has come into force. It always takes
    /// the locks: an exchange that is not in line yet takes its place afterwards, and so sees the change when
    /// it picks once more.
    pub fn call_all(&self) {
        for line in 0..LINES {
            self.call_first(line, &mut self.lock(line), true);
        }
    }

    /// Passes the call on after a called exchange has picked: if it was a call to all, the next exchange is
    /// called.
    pub fn pass_on(&self, waiter: &Waiter) {
        if waiter.to_all.load(Ordering::Relaxed) {
            let mut line = self.lock(waiter.line);
            line.calls_to_all -= 1;
            self.call_first(waiter.line, &mut line, true);
        }
    }

    #[cold]
    fn call_first(&self, number: usize, line: &mut Waiters, to_all: bool) {
        let Some(waiter) = line.waiters.pop_front() else { return };
        self.publish(number, line);
        // Done while the line is locked: a waiter that is out of the line must be seen as called, or the call
        // is lost when that waiter leaves at the same moment.
        line.calls_to_all += u32::from(to_all);
        waiter.to_all.store(to_all, Ordering::Relaxed);
        waiter.called.store(true, Ordering::Release);
        waiter.waker.wake_by_ref();
    }

    fn lock(&self, line: usize) -> MutexGuard<'_, Waiters> {
        self.lines[line].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the length of a line whose lock is held.
    fn publish(&self, line: usize, waiters: &Waiters) {
        self.waiting[line].store(waiters.waiters.len() as u32, Ordering::SeqCst);
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
        let first = queue.enter(None, Waker::noop().clone(), 2).unwrap();
        let second = queue.enter(None, Waker::noop().clone(), 2).unwrap();
        assert!(queue.enter(None, Waker::noop().clone(), 2).is_none());
        queue.call_next(|| None);
        assert!(first.is_called() && !second.is_called());
        assert_eq!(queue.depth(), 1);
    }

    #[test]
    fn a_call_to_one_who_left_passes_to_the_next() {
        let queue = Queue::default();
        let first = queue.enter(None, Waker::noop().clone(), 9).unwrap();
        let second = queue.enter(None, Waker::noop().clone(), 9).unwrap();
        queue.call_next(|| None);
        queue.leave(&first);
        assert!(second.is_called());
        assert_eq!(queue.depth(), 0);
    }

    #[test]
    fn one_who_was_called_in_vain_goes_back_to_the_front() {
        let queue = Queue::default();
        let first = queue.enter(None, Waker::noop().clone(), 2).unwrap();
        let waiting = queue.enter(None, Waker::noop().clone(), 2).unwrap();
        queue.call_next(|| None);
        let front = queue.enter_again(Waker::noop().clone(), &first);
        queue.call_next(|| None);
        assert!(front.is_called() && !waiting.is_called());
    }

    #[test]
    fn a_call_to_all_goes_on_until_one_finds_every_backend_busy() {
        let queue = Queue::default();
        let waiters: Vec<_> = (0..4).map(|_| queue.enter(None, Waker::noop().clone(), 9).unwrap()).collect();
        let called = || waiters.iter().map(|waiter| waiter.is_called()).collect::<Vec<_>>();
        queue.call_all();
        assert_eq!(called(), [true, false, false, false]);
        queue.pass_on(&waiters[0]);
        assert_eq!(called(), [true, true, false, false]);
        // The second has left meanwhile.
        queue.leave(&waiters[1]);
        assert_eq!(called(), [true, true, true, false]);
        // The third found every backend busy and goes back to the front; the fourth still waits behind it.
        let third = queue.enter_again(Waker::noop().clone(), &waiters[2]);
        queue.call_next(|| None);
        queue.pass_on(&third);
        assert!(third.is_called());
        assert_eq!(called(), [true, true, true, false], "a release calls one");
    }

    #[test]
    fn nobody_is_called_past_one_who_has_a_call_to_all() {
        let queue = Queue::default();
        let waiters: Vec<_> = (0..2).map(|_| queue.enter(None, Waker::noop().clone(), 9).unwrap()).collect();
        queue.call_all();
        queue.call_next(|| None);
        assert!(waiters[0].is_called() && !waiters[1].is_called(), "the first has yet to try");
        let first = queue.enter_again(Waker::noop().clone(), &waiters[0]);
        queue.call_next(|| None);
        assert!(first.is_called() && !waiters[1].is_called());
        queue.call_next(|| None);
        assert!(waiters[1].is_called());
    }

    #[test]
    fn who_waits_for_a_primary_is_not_called_by_room_on_a_secondary_and_holds_up_no_read() {
        let queue = Queue::default();
        let enter = |role| queue.enter(role, Waker::noop().clone(), 1).unwrap();
        let write = enter(Some(WantedRole::Primary));
        let read = enter(Some(WantedRole::Read));
        assert!(queue.enter(Some(WantedRole::Primary), Waker::noop().clone(), 1).is_none(), "a limit each");
        assert_eq!((queue.depth(), queue.depth_of(Some(WantedRole::Read))), (2, 1));
        queue.call_next(|| Some(Role::Secondary));
        assert!(read.is_called() && !write.is_called());
        queue.call_next(|| None);
        assert!(!write.is_called());
        queue.call_next(|| Some(Role::Primary));
        assert!(write.is_called());
    }

    #[test]
    fn a_call_to_all_calls_the_first_of_each_line() {
        let queue = Queue::default();
        let roles = [None, Some(WantedRole::Primary), Some(WantedRole::Read)];
        let waiters = roles.map(|role| queue.enter(role, Waker::noop().clone(), 9).unwrap());
        queue.call_all();
        assert_eq!(waiters.map(|waiter| waiter.is_called()), [true; 3]);
        assert_eq!(queue.depth(), 0);
    }

    #[test]
    fn a_waiter_that_sleeps_is_always_seen_by_the_next_release() {
        // There is one slot, so the second pick fails exactly while the slot is held. If waiter and releaser
        // missed each other, the waiter would sleep for ever.
        for turn in 0..3_000 {
            let settings = BackendSettings { max_connections: Some(1), ..BackendSettings::default() };
            let members = vec![Arc::new(Backend::new("10.3.0.1:80", settings))];
            let pool = Arc::new(Pool::new(Settings::default(), members, Duration::ZERO));
            let queue = Queue::default();
            let held = Picker::new(pool.clone()).pick(&PickInput::default()).unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let place = queue.enter(None, Waker::noop().clone(), 1).unwrap();
                    let second = Picker::new(pool.clone()).pick(&PickInput::default());
                    (place, second.is_err())
                });
                pool.release(held.index);
                queue.call_next(|| None);
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
                        let place = queue.enter(None, Waker::noop().clone(), 3);
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
