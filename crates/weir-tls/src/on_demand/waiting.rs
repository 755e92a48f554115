//! A handshake that waits for a certificate.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use super::{OnDemand, WaitResult};

/// A place among those who wait for one name; given back when dropped, whatever becomes of the name.
#[must_use = "the place is given back with it"]
pub struct Waiting {
    on_demand: Arc<OnDemand>,
    name: Box<str>,
    number: u64,
    /// What is counted when this is dropped.
    result: WaitResult,
}

impl Waiting {
    pub(super) fn new(on_demand: Arc<OnDemand>, name: Box<str>, number: u64) -> Waiting {
        Waiting { on_demand, name, number, result: WaitResult::Left }
    }

    /// How long to wait at most.
    pub fn limit(&self) -> Duration {
        self.on_demand.settings.wait
    }

    /// Ready when there is a certificate, or there is none to wait for. Safe to be called again after that.
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

    /// Notes that the time is over, and gives the place back.
    pub fn time_out(mut self) {
        self.result = WaitResult::TimedOut;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waker = self.on_demand.lock().leave_place(&self.name, self.number);
        // Not within the lock: it is somebody else's code.
        drop(waker);
        self.on_demand.counts.wait(self.result);
    }
}
