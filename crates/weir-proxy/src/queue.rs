//! The waiting room of a pool: exchanges that wait because every backend is at `max_connections`.
//!
//! Shared by all workers. Nothing here is touched while nobody waits but one relaxed load per ended exchange.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// Exchanges that wait for a backend, first come first served.
#[derive(Default)]
pub struct WaitingRoom {
    waiting: AtomicU32,
    line: Mutex<VecDeque<Arc<Turn>>>,
}

/// One exchange's place in the line.
pub struct Turn {
    called: std::sync::atomic::AtomicBool,
    waker: Waker,
}

impl Turn {
    /// Whether a backend has become free since the place was taken.
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }
}

impl WaitingRoom {
    /// Exchanges that wait now.
    pub fn depth(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes a place at the end of the line, or at its front for one who was called and found the backend taken again.
    /// `None` when `limit` exchanges wait already.
    pub fn enter(&self, waker: Waker, limit: u32, at_front: bool) -> Option<Arc<Turn>> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.len() >= limit as usize && !at_front {
            return None;
        }
        let turn = Arc::new(Turn { called: false.into(), waker });
        if at_front {
            line.push_front(turn.clone())
        } else {
            line.push_back(turn.clone())
        }
        self.waiting.store(line.len() as u32, Ordering::SeqCst);
        Some(turn)
    }

    /// Gives up a place (timed out, or the client went away).
    pub fn leave(&self, turn: &Arc<Turn>) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.retain(|other| !Arc::ptr_eq(other, turn));
        self.waiting.store(line.len() as u32, Ordering::SeqCst);
        drop(line);
        // Whoever was called and leaves without using the backend passes the call on, or it would be lost.
        if turn.is_called() {
            self.call_next();
        }
    }

    /// Calls the first in line; called after each release of a backend.
    #[inline]
    pub fn call_next(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.call_first();
        }
    }

    #[cold]
    fn call_first(&self) {
        let turn = {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = line.pop_front();
            self.waiting.store(line.len() as u32, Ordering::SeqCst);
            // While the line is held: who is out of it must be seen as called, or the call is lost with one who leaves just now.
            turn.inspect(|turn| turn.called.store(true, Ordering::Release))
        };
        if let Some(turn) = turn {
            turn.waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_first_come_first_served_and_bounded() {
        let room = WaitingRoom::default();
        let first = room.enter(Waker::noop().clone(), 2, false).unwrap();
        let second = room.enter(Waker::noop().clone(), 2, false).unwrap();
        assert!(room.enter(Waker::noop().clone(), 2, false).is_none());
        room.call_next();
        assert!(first.is_called() && !second.is_called());
        assert_eq!(room.depth(), 1);
    }

    #[test]
    fn a_call_to_one_who_left_passes_to_the_next() {
        let room = WaitingRoom::default();
        let first = room.enter(Waker::noop().clone(), 9, false).unwrap();
        let second = room.enter(Waker::noop().clone(), 9, false).unwrap();
        room.call_next();
        room.leave(&first);
        assert!(second.is_called());
        assert_eq!(room.depth(), 0);
    }

    #[test]
    fn one_who_was_called_in_vain_goes_back_to_the_front() {
        let room = WaitingRoom::default();
        let waiting = room.enter(Waker::noop().clone(), 1, false).unwrap();
        let front = room.enter(Waker::noop().clone(), 1, true).unwrap();
        room.call_next();
        assert!(front.is_called() && !waiting.is_called());
    }
}
