//! Readers of a response that is not stored, and goes on only as its slowest reader does: those who read next
//! to nothing while others wait for more get no more of it, so that one client does not keep all others
//! waiting (threat E11).

use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::Sleep;

use super::BroadcastState;

/// A reader that keeps others waiting is checked each time that has lasted so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// The least that it must have read by then, in bytes.
const LEAST_BYTES: u64 = 128 << 10;
/// And so much of what it has not read: it may be far behind when it turns out that the response is too large
/// to be stored.
const LEAST_PART: u64 = 8;

/// The time since when the window is full, or since the last check.
#[derive(Default)]
pub struct Laggards {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Laggards {
    /// Called while the window is full. Leaves readers behind when it is time for that; gives whether there
    /// may be room now. The task is woken for the next check.
    pub(super) fn check(&mut self, state: &mut BroadcastState, context: &Context<'_>) -> bool {
        let mut may_have_room = false;
        loop {
            let timer = self.timer.get_or_insert_with(|| {
                state.readers.iter_mut().for_each(|reader| reader.position_before = reader.position);
                Box::pin(tokio::time::sleep(PATIENCE))
            });
            if timer.as_mut().poll(&mut Context::from_waker(context.waker())).is_pending() {
                return may_have_room;
            }
            self.timer = None;
            may_have_room |= state.leave_behind();
        }
    }
}

impl BroadcastState {
    /// Leaves those behind who have read too little since the last check, if others have read all that there
    /// is. Gives whether there were any.
    fn leave_behind(&mut self) -> bool {
        let length = self.length;
        if !self.readers.iter().any(|reader| reader.reads() && reader.position == length) {
            return false;
        }
        let lags = |reader: &super::ReaderState| {
            let behind = length - reader.position;
            let least = LEAST_BYTES.max(behind / LEAST_PART);
            reader.reads() && behind > 0 && reader.position - reader.position_before < least
        };
        let mut any = false;
        for reader in self.readers.iter_mut().filter(|reader| lags(reader)) {
            (reader.is_left, any) = (true, true);
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
        // Its waker is that of the caller.
        drop(self.free_read());
        any
    }
}
