//! Certificates that are ordered when a client asks for a name that has none yet: the part that handshakes
//! use, and where they wait.
//!
//! For each `acme` with `on_demand` there is one table, however many listeners use it. Workers look names up
//! in it and add names; the control side takes the names, and records the result for each. Both hold a lock
//! for a look-up or two, and only for names for which the listener has no other certificate. Start reading at
//! [`OnDemand::wanted`].

mod begun;
mod counts;
mod kept;
mod names;
mod waiting;

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use rustls::sign::CertifiedKey;
use weir_config::{Acme, CipherPolicy, OnDemand as Settings};

pub use self::begun::{Begun, NotNow};
pub use self::counts::{Counts, NameResult, WaitResult};
use self::kept::Kept;
pub use self::names::is_host_name;
pub use self::waiting::Waiting;
use crate::acme;
use crate::certificate::{Facts, Loaded};
use crate::files::LoadError;
use crate::provider;

/// Most answers and most failures to remember (count each). Above that, those that expire first are dropped.
const REMEMBERED: usize = 10_000;
/// Most names being looked up in the store, and most handshakes waiting for that (count each). A look-up only
/// takes as long as the disk, whatever else is being asked about or ordered.
const LOOKED_FOR: usize = 10_000;
/// Least time between two records on disk that a certificate is used.
const NOTE_EVERY: Duration = Duration::from_secs(3600);
/// Longest time for which nothing is ordered after the authority could not be reached.
const AWAY_MOST: Duration = Duration::from_secs(30);

/// One `acme` with `on_demand`, shared by handshakes and the control side.
pub struct OnDemand {
    acme: Acme,
    settings: Settings,
    state: Mutex<DemandState>,
    /// Outcomes of names and handshakes since the start.
    pub counts: Counts,
}

struct DemandState {
    kept: Kept,
    /// Names that are being looked up in the store, asked about or ordered.
    begun: HashMap<Box<str>, UnderWay>,
    /// Those of them that the control side has not taken yet.
    untaken: VecDeque<Box<str>>,
    taker: Option<Waker>,
    /// The service's answers by name, and until when they are valid.
    answers: HashMap<Box<str>, Answered>,
    failed: HashMap<Box<str>, Failed>,
    /// Names whose renewal was refused or failed. They have a certificate, which can still be served.
    held: HashMap<Box<str>, Failed>,
    /// Until when nothing is ordered because the authority can't be reached.
    away: Option<Instant>,
    /// When the whole `burst` will be available again.
    full_at: Instant,
    /// Number of names being asked about or ordered, and how many of them are renewals.
    asking: u32,
    renewing: u32,
    /// Handshakes waiting for those names, and handshakes waiting for a look-up in the store.
    waiting: usize,
    looking: usize,
    next_waiter: u64,
    /// Handshakes that got no place when their name was not in the store, until they have noticed.
    turned_away: HashSet<u64>,
    /// Whether names are accepted; if not, no one would serve the handshakes that wait.
    is_open: bool,
    /// How often [`OnDemand::forget`] was called (count).
    forgotten: u64,
}

struct UnderWay {
    waiters: HashMap<u64, Waker>,
    is_renewal: bool,
    /// Whether it has one of the `max_names` places, and each handshake that waits for it one of
    /// `max_waiting`; a look-up in the store takes neither.
    is_asking: bool,
}

#[derive(Clone, Copy)]
struct Answered {
    is_yes: bool,
    until: Instant,
}

/// A name for which no certificate could be obtained.
#[derive(Clone, Debug)]
pub struct Failed {
    /// It is not tried again before this time.
    pub until: Instant,
    /// Attempts in a row.
    pub count: u32,
    /// The reason, in readable form.
    pub reason: String,
}

/// What happens to a handshake that asks for a name. The data path acts on it, and `weir explain` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameVerdict {
    /// The certificate is in memory.
    Kept,
    /// The name is already being asked about or ordered; the handshake waits, too.
    Begun,
    /// Nothing is known: the name is looked up in the store, asked about and ordered while the handshake
    /// waits.
    Unknown,
    /// The service refused it a moment ago.
    Refused,
    /// It could not be obtained a moment ago, for this reason.
    Failed(String),
    /// The name is looked up in the store while the handshake waits; nothing is ordered, since the authority
    /// can't be reached now.
    Away,
    /// The limit of names being looked up in the store is reached.
    Full,
    /// The process accepts no more names: it is shutting down, or another config is in force.
    Closed,
}

/// A certificate from the store that can be served.
pub struct Stored(Loaded);

impl Stored {
    /// Reads the certificate in `file`.
    ///
    /// # Errors
    /// There is none, it can't be served, or it is no longer valid.
    pub fn load(file: &Path) -> Result<Stored, LoadError> {
        let loaded = acme::load(file, &provider::of(CipherPolicy::Default))?;
        match loaded.facts.is_good(SystemTime::now()) {
            true => Ok(Stored(loaded)),
            false => Err(LoadError::new(file, "is good no more")),
        }
    }

    /// Facts about it.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }
}

impl OnDemand {
    /// `None` for an `acme` without `on_demand`.
    pub fn new(acme: &Acme) -> Option<OnDemand> {
        let settings = acme.on_demand.clone()?;
        let state = DemandState {
            kept: Kept::new(
                settings.max_certificates as usize,
                NOTE_EVERY.min(settings.renew_used_within / 4),
            ),
            begun: HashMap::new(),
            untaken: VecDeque::new(),
            taker: None,
            answers: HashMap::new(),
            failed: HashMap::new(),
            held: HashMap::new(),
            away: None,
            full_at: Instant::now(),
            asking: 0,
            renewing: 0,
            waiting: 0,
            looking: 0,
            next_waiter: 0,
            turned_away: HashSet::new(),
            is_open: true,
            forgotten: 0,
        };
        Some(OnDemand { acme: acme.clone(), settings, state: Mutex::new(state), counts: Counts::default() })
    }

    /// The config.
    pub fn acme(&self) -> &Acme {
        &self.acme
    }

    /// The settings in the config.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether this `acme` may order a certificate for `name` (lower case, without a trailing dot), provided
    /// the service does not object.
    pub fn takes(&self, name: &str) -> bool {
        names::is_host_name(name) && names::is_among(&self.acme.domains, name)
    }

    /// The certificate for `name`, if it is in memory and valid.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.lock().kept.find(name, SystemTime::now())
    }

    /// What would happen to a handshake for `name` now.
    pub fn verdict(&self, name: &str) -> NameVerdict {
        self.lock().verdict(name, &self.settings)
    }

    /// Starts to obtain a certificate for `name` if there should be one, and returns a place to wait for it.
    /// `None` when there is nothing to wait for: it is in memory, or will not be obtained; or no place is
    /// left. `max_waiting` limits the places once it is known that the store has no certificate.
    pub fn wanted(self: &Arc<OnDemand>, name: &str) -> Option<Waiting> {
        let mut state = self.lock();
        let verdict = state.verdict(name, &self.settings);
        let is_full = !state.has_place(name, self.settings.max_waiting);
        match verdict {
            NameVerdict::Begun | NameVerdict::Unknown | NameVerdict::Away if is_full => {
                self.counts.wait(WaitResult::NoPlace);
            }
            NameVerdict::Begun | NameVerdict::Unknown | NameVerdict::Away => {
                state.begin(name, false);
                let number = state.take_place(name);
                drop(state);
                return Some(Waiting::new(self.clone(), name.into(), number));
            }
            NameVerdict::Kept => {}
            NameVerdict::Full => self.counts.wait(WaitResult::NoPlace),
            NameVerdict::Refused | NameVerdict::Failed(_) | NameVerdict::Closed => {
                self.counts.wait(WaitResult::Remembered);
            }
        }
        None
    }

    /// Starts to obtain a certificate for `name` if there should be one, without waiting for it.
    pub(crate) fn begin(&self, name: &str) {
        let mut state = self.lock();
        match state.verdict(name, &self.settings) {
            NameVerdict::Unknown | NameVerdict::Away => state.begin(name, false),
            NameVerdict::Full => self.counts.wait(WaitResult::NoPlace),
            NameVerdict::Kept
            | NameVerdict::Begun
            | NameVerdict::Refused
            | NameVerdict::Failed(_)
            | NameVerdict::Closed => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, DemandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the code that obtains the certificates.
impl OnDemand {
    /// Accepts names from now on, which is also the initial state.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Accepts no more names. What is in progress continues.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        let mut wakers: Vec<Waker> = state.taker.take().into_iter().collect();
        for name in std::mem::take(&mut state.untaken) {
            wakers.extend(state.end(&name));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The next name to obtain a certificate for; `None` when no more names are accepted.
    pub async fn next(self: &Arc<OnDemand>) -> Option<Begun> {
        let taken = poll_fn(|context| {
            let mut state = self.lock();
            match state.untaken.pop_front() {
                Some(taken) => Poll::Ready(Some(taken)),
                None if !state.is_open => Poll::Ready(None),
                None => {
                    state.taker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        Some(Begun::new(self.clone(), taken.await?))
    }

    /// Starts to renew the certificate for `name`; `false` when that is not possible now. Renewals take at
    /// most half of the places for names, since clients wait for the others.
    pub fn renew(&self, name: &str) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        let is_to_be = state.is_open
            && state.renewing < self.settings.max_names.div_ceil(2)
            && !state.begun.contains_key(name)
            && state.held.get(name).is_none_or(|held| held.until <= now)
            && !state.is_away(now);
        if is_to_be {
            state.begin(name, true);
        }
        is_to_be
    }

    /// Replaces the certificate for `name` in memory by one from the store; does nothing if none is in
    /// memory.
    pub fn refresh(&self, name: &str, stored: Stored) {
        let mut state = self.lock();
        if state.kept.facts(name).is_some() {
            state.kept.put(name, stored.0);
        }
    }

    /// Whether the certificate for `name` in memory differs from that of `facts`.
    pub fn is_older(&self, name: &str, facts: &Facts) -> bool {
        self.lock()
            .kept
            .facts(name)
            .is_some_and(|own| own.identity != facts.identity || own.not_after != facts.not_after)
    }

    /// Records that the store has a certificate for `name`, whatever happened here: another process has
    /// obtained it.
    pub fn found(&self, name: &str) {
        let mut state = self.lock();
        state.failed.remove(name);
        state.answers.remove(name);
    }

    /// Names whose use is to be recorded, and when they were used.
    pub fn take_used(&self) -> Vec<(Box<str>, SystemTime)> {
        self.lock().kept.take_used()
    }

    /// The service's answer for `name`, as long as it is valid.
    pub fn answer(&self, name: &str) -> Option<bool> {
        let now = Instant::now();
        self.lock().answers.get(name).filter(|answer| answer.until > now).map(|answer| answer.is_yes)
    }

    /// Takes one of the orders that `rate` and `burst` allow.
    ///
    /// # Errors
    /// None is available now; the time until there is one.
    pub fn take_order(&self) -> Result<(), Duration> {
        let (now, between) = (Instant::now(), self.settings.between_orders());
        let mut state = self.lock();
        let full_at = state.full_at.max(now) + between;
        let burst = between.saturating_mul(self.settings.burst.max(1));
        match (full_at - now).checked_sub(burst) {
            Some(over) if !over.is_zero() => Err(over),
            _ => {
                state.full_at = full_at;
                Ok(())
            }
        }
    }

    /// Records whether the authority could be reached; if not, nothing is ordered for `pause`, or
    /// `AWAY_MOST` if that is less.
    pub fn note_authority(&self, pause: Option<Duration>) {
        self.lock().away = pause.map(|pause| Instant::now() + pause.min(AWAY_MOST));
    }

    /// Called when an operator has changed something: names that were refused or failed are tried again, and
    /// so are those that are being tried now, if they fail.
    pub fn forget(&self) {
        let mut state = self.lock();
        state.forgotten += 1;
        state.away = None;
        state.answers.clear();
        // The number of failures stays: a name that fails again waits longer.
        let now = Instant::now();
        let failed = state.failed.values_mut();
        failed.for_each(|failed| failed.until = now);
        state.held.values_mut().for_each(|held| held.until = now);
    }
}

/// For inspection.
impl OnDemand {
    /// Counts of handshakes that wait for what is not in the store, of names being asked about or ordered,
    /// and of certificates in memory.
    pub fn sizes(&self) -> [usize; 3] {
        let state = self.lock();
        [state.waiting, state.asking as usize, state.kept.len()]
    }

    /// Names that could not be obtained or renewed and are not tried yet: at most `most`, those with the
    /// longest pause first.
    pub fn failures(&self, most: usize) -> Vec<(String, Failed)> {
        let (state, now) = (self.lock(), Instant::now());
        let failed = state.failed.iter().chain(&state.held).filter(|(_, failed)| failed.until > now);
        let mut failed: Vec<_> = failed.map(|(name, failed)| (name.to_string(), failed.clone())).collect();
        failed.sort_by_key(|(_, failed)| std::cmp::Reverse(failed.until));
        failed.truncate(most);
        failed
    }
}

impl std::fmt::Debug for OnDemand {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [waiting, names, certificates] = self.sizes();
        write!(out, "{waiting} wait for {names} names, {certificates} certificates in memory")
    }
}

impl DemandState {
    fn verdict(&self, name: &str, settings: &Settings) -> NameVerdict {
        if self.kept.has(name, SystemTime::now()) {
            return NameVerdict::Kept;
        }
        if self.begun.contains_key(name) {
            return NameVerdict::Begun;
        }
        if !self.is_open {
            return NameVerdict::Closed;
        }
        let now = Instant::now();
        if let Some(refusal) = self.refusal(name, now) {
            return refusal;
        }
        match self.begun.len() < LOOKED_FOR + settings.max_names as usize {
            true if self.is_away(now) => NameVerdict::Away,
            true => NameVerdict::Unknown,
            false => NameVerdict::Full,
        }
    }

    /// Why nothing is tried for `name` now, according to what is remembered.
    fn refusal(&self, name: &str, now: Instant) -> Option<NameVerdict> {
        if self.answers.get(name).is_some_and(|answer| !answer.is_yes && answer.until > now) {
            return Some(NameVerdict::Refused);
        }
        let failed = self.failed.get(name).filter(|failed| failed.until > now);
        failed.map(|failed| NameVerdict::Failed(failed.reason.clone()))
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away.is_some_and(|until| until > now)
    }

    fn begin(&mut self, name: &str, is_renewal: bool) {
        if self.begun.contains_key(name) {
            return;
        }
        let under_way = UnderWay { waiters: HashMap::new(), is_renewal, is_asking: false };
        self.begun.insert(name.into(), under_way);
        self.renewing += u32::from(is_renewal);
        self.untaken.push_back(name.into());
        self.taker.take().into_iter().for_each(Waker::wake);
    }

    /// Whether one more handshake may wait for `name`.
    fn has_place(&self, name: &str, max_waiting: u32) -> bool {
        match self.begun.get(name) {
            Some(under_way) if under_way.is_asking => self.waiting < max_waiting as usize,
            _ => self.looking < LOOKED_FOR,
        }
    }

    /// The counter of waiting handshakes that applies to a name in this state.
    fn waiters_like(&mut self, is_asking: bool) -> &mut usize {
        if is_asking { &mut self.waiting } else { &mut self.looking }
    }

    /// Takes a place among the handshakes that wait for `name`, which has begun.
    fn take_place(&mut self, name: &str) -> u64 {
        let number = self.next_waiter;
        self.next_waiter += 1;
        if let Some(under_way) = self.begun.get_mut(name) {
            under_way.waiters.insert(number, Waker::noop().clone());
            let is_asking = under_way.is_asking;
            *self.waiters_like(is_asking) += 1;
        }
        number
    }

    /// Releases a place; returns the waker if the handshake is still waiting.
    fn leave_place(&mut self, name: &str, number: u64) -> Option<Waker> {
        self.turned_away.remove(&number);
        let under_way = self.begun.get_mut(name)?;
        let (waker, is_asking) = (under_way.waiters.remove(&number)?, under_way.is_asking);
        *self.waiters_like(is_asking) -= 1;
        Some(waker)
    }

    /// Counts `name` among those being asked about and ordered, and its waiting handshakes, in order of
    /// arrival, against `max_waiting`. Returns the wakers of handshakes without a place, to be woken once the
    /// lock is released. If no handshake got a place there is no point in asking: `false`.
    fn begin_asking(&mut self, name: &str, max_waiting: u32) -> (bool, Vec<Waker>) {
        let Some(under_way) = self.begun.get_mut(name).filter(|under_way| !under_way.is_asking) else {
            return (true, Vec::new());
        };
        let mut staying: Vec<u64> = under_way.waiters.keys().copied().collect();
        staying.sort_unstable();
        let places = (max_waiting as usize).saturating_sub(self.waiting);
        let turned_away = staying.split_off(staying.len().min(places));
        let wakers = turned_away.iter().filter_map(|number| under_way.waiters.remove(number)).collect();
        let is_wanted = under_way.is_renewal || turned_away.is_empty() || !staying.is_empty();
        under_way.is_asking = is_wanted;
        self.asking += u32::from(is_wanted);
        self.looking -= staying.len() + turned_away.len();
        self.waiting += staying.len();
        self.turned_away.extend(turned_away);
        (is_wanted, wakers)
    }

    /// Releases the handshakes that wait for `name`; wake them once the lock is released.
    fn release(&mut self, name: &str) -> Vec<Waker> {
        let Some(under_way) = self.begun.get_mut(name) else { return Vec::new() };
        let (waiters, is_asking) = (std::mem::take(&mut under_way.waiters), under_way.is_asking);
        *self.waiters_like(is_asking) -= waiters.len();
        waiters.into_values().collect()
    }

    /// The same, and removes `name`, since nothing more is done for it.
    fn end(&mut self, name: &str) -> Vec<Waker> {
        let wakers = self.release(name);
        if let Some(under_way) = self.begun.remove(name) {
            self.asking -= u32::from(under_way.is_asking);
            self.renewing -= u32::from(under_way.is_renewal);
        }
        wakers
    }
}

/// Makes room for one more entry by removing the quarter of `map` that expires first, so that it is not
/// scanned for each name if somebody tries many names.
fn make_room<T>(map: &mut HashMap<Box<str>, T>, until: impl Fn(&T) -> Instant) {
    if map.len() < REMEMBERED {
        return;
    }
    let mut ends: Vec<Instant> = map.values().map(&until).collect();
    let (_, quarter, _) = ends.select_nth_unstable(REMEMBERED / 4);
    let quarter = (*quarter).max(Instant::now());
    map.retain(|_, each| until(each) > quarter);
}

#[cfg(test)]
mod tests;
