//! A handshake that waits for a certificate.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use super::{OnDemand, WaitResult};

/// A place among those that wait for one name; released when dropped, whatever the outcome.
#[must_use = "the place is given back with it"]
pub struct Waiting {
    on_demand: Arc<OnDemand>,
    name: Box<str>,
    number: u64,
    /// The outcome to count when this is dropped.
    result: WaitResult,
}

impl Waiting {
    pub(super) fn new(on_demand: Arc<OnDemand>, name: Box<str>, number: u64) -> Waiting {
        Waiting { on_demand, name, number, result: WaitResult::Left }
    }

    /// The longest time to wait.
    pub fn limit(&self) -> Duration {
        self.on_demand.settings.wait
    }

    /// Ready when there is a certificate, or none to wait for. May be called again after that.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.on_demand.lock();
        let waiters = state.begun.get_mut(&self.name).map(|under_way| &mut under_way.waiters);
        let waker = waiters.and_then(|waiters| waiters.get_mut(&self.number));
        if let Some(waker) = waker {
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        self.result = match state.kept.has(&self.name, SystemTime::now()) {
            true => WaitResult::Served,
            false if state.turned_away.contains(&self.number) => WaitResult::NoPlace,
            false => WaitResult::Refused,
        };
        Poll::Ready(())
    }

    /// Records that the wait timed out, and releases the place.
    pub fn time_out(mut self) {
        self.result = WaitResult::TimedOut;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waker = self.on_demand.lock().leave_place(&self.name, self.number);
        // Outside the lock, since it runs foreign code.
        drop(waker);
        self.on_demand.counts.wait(self.result);
    }
}
