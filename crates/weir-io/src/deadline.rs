//! One deadline per session, in a dense table per worker.
//!
//! Moving a deadline takes two stores and no timer is inserted or cancelled, so that every wait can have one.
//! The table is scanned when the earliest deadline known at the last scan is due; scanning 20,000 entries
//! takes about 10 us. A session waits for one thing at a time, or uses the earlier of two deadlines, so one
//! entry is enough.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;

/// Deadlines fire up to this much late: scans are at least this far apart.
const RESOLUTION: Duration = Duration::from_millis(4);
/// No deadline.
const NEVER: Duration = Duration::MAX;

/// The deadlines of one worker's sessions.
pub struct Deadlines {
    table: RefCell<Table>,
    /// When the next scan is due; a deadline before it wakes the scanner.
    next_scan: Cell<Duration>,
    earlier: Notify,
}

#[derive(Default)]
struct Table {
    due: Vec<Duration>,
    entries: Vec<SessionEntry>,
    free: Vec<usize>,
}

#[derive(Default)]
struct SessionEntry {
    waker: Option<Waker>,
    fired: bool,
    /// Set if the session was asked to close: for whom it should make room.
    shed: Option<Favour>,
    /// Since when the session waits for its client's next request; `None` while it is busy.
    idle_since: Option<Duration>,
    /// The listener it belongs to; 0 when none was named.
    listener: usize,
}

/// For whom a session makes room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Favour {
    /// Any new session.
    Anybody,
    /// A new session on the same listener.
    Listener,
}

impl Deadlines {
    /// An empty table.
    pub fn new() -> Rc<Deadlines> {
        Rc::new(Deadlines { table: RefCell::default(), next_scan: Cell::new(NEVER), earlier: Notify::new() })
    }

    /// Registers an entry. `waker` is woken when its deadline passes; it must be the waker of the session's
    /// own task.
    pub fn register(self: &Rc<Self>, waker: Waker) -> Deadline {
        let entry = SessionEntry { waker: Some(waker), ..SessionEntry::default() };
        let table = &mut *self.table.borrow_mut();
        let slot = match table.free.pop() {
            Some(slot) => {
                table.entries[slot] = entry;
                slot
            }
            None => {
                table.entries.push(entry);
                table.due.push(NEVER);
                table.entries.len() - 1
            }
        };
        Deadline { table: self.clone(), slot }
    }

    /// Fires due deadlines, for ever. One such task runs per worker.
    pub async fn run(self: Rc<Self>) {
        loop {
            let wait = self.next_scan.get().saturating_sub(clock::now()).max(RESOLUTION);
            if self.next_scan.get() == NEVER {
                self.earlier.notified().await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => self.scan(clock::now()),
                () = self.earlier.notified() => {}
            }
        }
    }

    fn scan(&self, now: Duration) {
        let mut next = NEVER;
        let mut due = Vec::new();
        {
            let table = &mut *self.table.borrow_mut();
            for (slot, at) in table.due.iter_mut().enumerate() {
                if *at <= now {
                    *at = NEVER;
                    table.entries[slot].fired = true;
                    due.extend(table.entries[slot].waker.clone());
                } else if *at < next {
                    next = *at;
                }
            }
            self.next_scan.set(next);
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// Wakes every session, so that each notices what has changed (a drain, say).
    pub fn wake_all(&self) {
        let wakers: Vec<Waker> =
            self.table.borrow().entries.iter().filter_map(|entry| entry.waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Asks the `count` sessions that have been idle longest to close; returns how many there were.
    pub fn shed_idle(&self, count: usize) -> usize {
        self.shed(count, Favour::Anybody, |_| true)
    }

    /// As [`Deadlines::shed_idle`], but only sessions of one listener.
    pub fn shed_idle_of(&self, listener: usize, count: usize) -> usize {
        self.shed(count, Favour::Listener, |entry| entry.listener == listener)
    }

    fn shed(&self, count: usize, favour: Favour, wanted: impl Fn(&SessionEntry) -> bool) -> usize {
        let mut wakers = Vec::new();
        {
            let table = &mut *self.table.borrow_mut();
            let mut idle: Vec<(Duration, usize)> = table
                .entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.shed.is_none() && wanted(entry))
                .filter_map(|(slot, entry)| entry.idle_since.map(|since| (since, slot)))
                .collect();
            if idle.len() > count && count > 0 {
                idle.select_nth_unstable(count - 1);
            }
            for &(_, slot) in idle.iter().take(count) {
                table.entries[slot].shed = Some(favour);
                wakers.extend(table.entries[slot].waker.clone());
            }
        }
        let found = wakers.len();
        wakers.into_iter().for_each(Waker::wake);
        found
    }
}

/// A session's entry in the table; removed when dropped.
pub struct Deadline {
    table: Rc<Deadlines>,
    slot: usize,
}

impl Deadline {
    /// Sets the deadline to the clock time `at`, replacing the one before.
    #[inline]
    pub fn set(&self, at: Duration) {
        let table = &mut *self.table.table.borrow_mut();
        table.due[self.slot] = at;
        table.entries[self.slot].fired = false;
        if at < self.table.next_scan.get() {
            self.table.next_scan.set(at);
            self.table.earlier.notify_one();
        }
    }

    /// Moves the deadline to `at` if it is later than that.
    #[inline]
    pub fn no_later_than(&self, at: Duration) {
        let is_later = self.table.table.borrow().due[self.slot] > at;
        // A deadline that has passed stays passed.
        if is_later && !self.has_passed() {
            self.set(at);
        }
    }

    /// Removes the deadline.
    #[cfg(test)]
    fn clear(&self) {
        let table = &mut *self.table.table.borrow_mut();
        table.due[self.slot] = NEVER;
        table.entries[self.slot].fired = false;
    }

    /// Whether the last deadline that was set has passed.
    #[inline]
    pub fn has_passed(&self) -> bool {
        self.table.table.borrow().entries[self.slot].fired
    }

    /// Marks the session as idle since `now` (it may be shed), or busy with `None`.
    #[inline]
    pub fn set_idle(&self, since: Option<Duration>) {
        self.table.table.borrow_mut().entries[self.slot].idle_since = since;
    }

    /// Says which listener the session belongs to, so that it can make room for a newcomer there.
    pub fn belongs_to(&self, listener: usize) {
        self.table.table.borrow_mut().entries[self.slot].listener = listener;
    }

    /// Whether the worker ran short of something and asked this idle session to close.
    #[inline]
    pub fn is_shed(&self) -> bool {
        self.table.table.borrow().entries[self.slot].shed.is_some()
    }

    /// Declines to close: the session has found that it is not idle after all, and counts as busy until it
    /// calls [`Self::set_idle`] again. The next session is asked in its place.
    pub fn decline_shed(&self) {
        let (favour, listener) = {
            let entry = &mut self.table.table.borrow_mut().entries[self.slot];
            entry.idle_since = None;
            (entry.shed.take(), entry.listener)
        };
        match favour {
            Some(Favour::Anybody) => self.table.shed_idle(1),
            Some(Favour::Listener) => self.table.shed_idle_of(listener, 1),
            None => 0,
        };
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let table = &mut *self.table.table.borrow_mut();
        table.due[self.slot] = NEVER;
        table.entries[self.slot] = SessionEntry::default();
        table.free.push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_fires_once_and_only_when_due() {
        let deadlines = Deadlines::new();
        let woken = Arc::new(Count::default());
        let deadline = deadlines.register(woken.clone().into());
        deadline.set(2 * SECOND);
        deadlines.scan(SECOND);
        assert!(!deadline.has_passed());
        deadlines.scan(2 * SECOND);
        deadlines.scan(3 * SECOND);
        assert!(deadline.has_passed());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_deadline_that_moved_on_does_not_fire() {
        let deadlines = Deadlines::new();
        let deadline = deadlines.register(Waker::noop().clone());
        deadline.set(SECOND);
        deadline.set(5 * SECOND);
        deadlines.scan(2 * SECOND);
        assert!(!deadline.has_passed());
        assert_eq!(deadlines.next_scan.get(), 5 * SECOND);
        deadline.clear();
        deadlines.scan(9 * SECOND);
        assert!(!deadline.has_passed());
    }

    #[test]
    fn the_sessions_idle_longest_are_shed_first() {
        let deadlines = Deadlines::new();
        let sessions: Vec<Deadline> = (0..5).map(|_| deadlines.register(Waker::noop().clone())).collect();
        for (age, session) in sessions.iter().enumerate().skip(1) {
            session.set_idle(Some(SECOND * (10 - age as u32)));
        }
        assert_eq!(deadlines.shed_idle(2), 2);
        let shed: Vec<bool> = sessions.iter().map(Deadline::is_shed).collect();
        assert_eq!(shed, [false, false, false, true, true]);
        assert_eq!(deadlines.shed_idle(9), 2, "the busy one and the ones already asked stay");
    }

    #[test]
    fn only_sessions_of_the_full_listener_make_room_there() {
        let deadlines = Deadlines::new();
        let sessions: Vec<Deadline> = (0..3).map(|_| deadlines.register(Waker::noop().clone())).collect();
        for (age, session) in sessions.iter().enumerate() {
            session.belongs_to(if age == 2 { 7 } else { 8 });
            session.set_idle(Some(SECOND * age as u32));
        }
        assert_eq!(deadlines.shed_idle_of(7, 1), 1);
        assert_eq!(deadlines.shed_idle_of(7, 1), 0);
        let shed: Vec<bool> = sessions.iter().map(Deadline::is_shed).collect();
        assert_eq!(
            shed,
            [false, false, true],
            "those of another listener were idle longer, and are of no use"
        );
    }

    #[test]
    fn a_session_that_is_not_idle_after_all_passes_the_question_on() {
        let deadlines = Deadlines::new();
        let sessions: Vec<Deadline> = (0..4).map(|_| deadlines.register(Waker::noop().clone())).collect();
        for (age, session) in sessions.iter().enumerate() {
            session.belongs_to(if age == 1 { 7 } else { 8 });
            session.set_idle(Some(SECOND * age as u32));
        }
        let shed = || sessions.iter().map(Deadline::is_shed).collect::<Vec<bool>>();
        assert_eq!(deadlines.shed_idle_of(8, 1), 1);
        sessions[0].decline_shed();
        assert_eq!(shed(), [false, false, true, false], "another of the same listener");
        assert_eq!(deadlines.shed_idle(1), 1);
        sessions[1].decline_shed();
        assert_eq!(shed(), [false, false, true, true]);
        sessions[2].decline_shed();
        sessions[3].decline_shed();
        assert_eq!(shed(), [false; 4], "nobody is asked twice who has not become idle again");
        sessions[0].set_idle(Some(9 * SECOND));
        assert_eq!(deadlines.shed_idle(4), 1);
    }

    #[test]
    fn a_slot_given_back_is_used_again_without_its_past() {
        let deadlines = Deadlines::new();
        let first = deadlines.register(Waker::noop().clone());
        first.set(SECOND);
        deadlines.scan(SECOND);
        drop(first);
        let second = deadlines.register(Waker::noop().clone());
        assert!(!second.has_passed() && !second.is_shed());
        assert_eq!(deadlines.table.borrow().entries.len(), 1);
    }
}
