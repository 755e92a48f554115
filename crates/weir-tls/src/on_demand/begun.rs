//! A name for which a certificate is being obtained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Answered, Failed, NameResult, OnDemand, Stored, make_room};

/// Least time before the next try if the service has refused the renewal of a certificate, which is still
/// valid for weeks.
const REFUSED_LEAST: Duration = Duration::from_secs(3600);

/// A name for which a certificate is being obtained, until this is dropped: then handshakes that still wait
/// continue without one.
#[must_use = "the name is let go with it"]
pub struct Begun {
    on_demand: Arc<OnDemand>,
    name: Box<str>,
    is_renewal: bool,
    /// How often [`OnDemand::forget`] had been called when this attempt began (count).
    since: u64,
    /// Whether it failed for a reason that an operator may have fixed in the meantime.
    is_outdated: AtomicBool,
}

/// Why the service is not asked about a name now, and nothing is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNow {
    /// `max_names` names are already being asked about or ordered.
    Busy,
    /// None of the handshakes that wait for it can have a place: `max_waiting` already wait for others.
    NoPlace,
    /// The authority can't be reached.
    Away,
}

impl Begun {
    pub(super) fn new(on_demand: Arc<OnDemand>, name: Box<str>) -> Begun {
        let state = on_demand.lock();
        let is_renewal = state.begun.get(&name).is_some_and(|under_way| under_way.is_renewal);
        let since = state.forgotten;
        drop(state);
        Begun { on_demand, name, is_renewal, since, is_outdated: AtomicBool::new(false) }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether to try once more while handshakes still wait: an operator changed something during the attempt
    /// that failed.
    pub fn begins_again(&mut self) -> bool {
        self.since = self.on_demand.lock().forgotten;
        std::mem::take(self.is_outdated.get_mut())
    }

    /// Whether an operator has changed something since the attempt began.
    pub fn is_overtaken(&self) -> bool {
        self.on_demand.lock().forgotten != self.since
    }

    /// Whether there is a certificate already, which is about to expire.
    pub fn is_renewal(&self) -> bool {
        self.is_renewal
    }

    /// Takes one of the `max_names` places, and one of `max_waiting` for each handshake that waits for this
    /// name. Handshakes without a place continue without a certificate.
    ///
    /// # Errors
    /// There is no place, or it would be useless. That is counted.
    pub fn may_ask(&self) -> Result<(), NotNow> {
        let mut state = self.on_demand.lock();
        let now = Instant::now();
        if let Some(until) = state.away.filter(|until| *until > now) {
            drop(state);
            let left = until.saturating_duration_since(now);
            self.failed(NameResult::Away, left, "the authority can't be spoken with now".to_owned());
            return Err(NotNow::Away);
        }
        let has_place = state.begun.get(&self.name).is_some_and(|under_way| under_way.is_asking);
        if !has_place && state.asking >= self.on_demand.settings.max_names {
            drop(state);
            // Not remembered: a place is free as soon as another name is done.
            self.on_demand.counts.name(NameResult::Busy);
            return Err(NotNow::Busy);
        }
        let (is_wanted, wakers) = state.begin_asking(&self.name, self.on_demand.settings.max_waiting);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        if !is_wanted {
            self.on_demand.counts.name(NameResult::Busy);
            return Err(NotNow::NoPlace);
        }
        Ok(())
    }

    /// How many attempts for the name have failed in a row, and why the last one did.
    pub fn failures(&self) -> Option<Failed> {
        let state = self.on_demand.lock();
        let failed = if self.is_renewal { &state.held } else { &state.failed };
        failed.get(&self.name).cloned()
    }

    /// Serves a certificate from now on, first to those who wait for it.
    pub fn serve(&self, stored: Stored, result: NameResult) {
        let mut state = self.on_demand.lock();
        let gone = state.kept.put(&self.name, stored.0);
        let wakers = state.release(&self.name);
        if result == NameResult::Issued {
            state.failed.remove(&self.name);
            state.held.remove(&self.name);
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        self.on_demand.counts.name(result);
        self.on_demand.counts.evicted(gone);
    }

    /// Records the service's answer.
    pub fn answered(&self, is_yes: bool) {
        let remember = self.on_demand.settings.remember;
        if !is_yes && self.is_renewal {
            let reason = "the service at `ask` refuses it".to_owned();
            return self.failed(NameResult::Refused, remember.max(REFUSED_LEAST), reason);
        }
        let until = Instant::now() + remember;
        let mut state = self.on_demand.lock();
        if !is_yes && state.forgotten != self.since {
            self.is_outdated.store(true, Ordering::Relaxed);
            return;
        }
        make_room(&mut state.answers, |answer| answer.until);
        state.answers.insert(self.name.clone(), Answered { is_yes, until });
        drop(state);
        if !is_yes {
            self.on_demand.counts.name(NameResult::Refused);
        }
    }

    /// Notes that no certificate could be obtained, and when to try again: at once, and without counting this
    /// failure, if an operator has changed something since the attempt began. Otherwise a failed order counts
    /// as one more failure in a row.
    pub fn failed(&self, result: NameResult, pause: Duration, reason: String) {
        let mut state = self.on_demand.lock();
        let is_outdated = state.forgotten != self.since;
        let pause = if is_outdated { Duration::ZERO } else { pause };
        let all = if self.is_renewal { &mut state.held } else { &mut state.failed };
        make_room(all, |failed| failed.until);
        let before = all.get(&self.name).map_or(0, |failed| failed.count);
        let count = before.saturating_add(u32::from(result == NameResult::Failed));
        all.insert(self.name.clone(), Failed { until: Instant::now() + pause, count, reason });
        drop(state);
        if is_outdated {
            self.is_outdated.store(true, Ordering::Relaxed);
        } else {
            self.on_demand.counts.name(result);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let wakers = self.on_demand.lock().end(&self.name);
        wakers.into_iter().for_each(Waker::wake);
    }
}
