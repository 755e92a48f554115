//! Certificates that are ordered when a client asks for a name that none is for yet: what handshakes see of
//! it, and where they wait.
//!
//! Workers look into one table for each `acme` with `on_demand`, whatever number of listeners has it, and put
//! names there; the control side takes them, and says what came of each. Both hold a lock for a look-up or
//! two, and only for names that no other certificate of the listener is for. Start reading at
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

/// Answers and failures that are remembered, each (count). When there are more, those go that end first.
const REMEMBERED: usize = 10_000;
/// Names that are looked for in the store, and handshakes that wait for that, each (count): for as long as
/// the disk takes, whatever is asked about and ordered meanwhile.
const LOOKED_FOR: usize = 10_000;
/// How often it is noted on the disk that a certificate is used, at most.
const NOTE_EVERY: Duration = Duration::from_secs(3600);
/// Longest time for which an authority that can't be spoken with is left alone for all names.
const AWAY_MOST: Duration = Duration::from_secs(30);

/// One `acme` with `on_demand`, as handshakes and the control side share it.
pub struct OnDemand {
    acme: Acme,
    settings: Settings,
    state: Mutex<DemandState>,
    /// What became of names and handshakes since the start.
    pub counts: Counts,
}

struct DemandState {
    kept: Kept,
    /// Names that are looked for in the store, asked about or ordered.
    begun: HashMap<Box<str>, UnderWay>,
    /// Those of them that the control side has not taken yet.
    untaken: VecDeque<Box<str>>,
    taker: Option<Waker>,
    /// What the service has said of a name, and until when that is believed.
    answers: HashMap<Box<str>, Answered>,
    failed: HashMap<Box<str>, Failed>,
    /// Those whose renewal was refused or failed: they have a certificate, which is no reason not to serve.
    held: HashMap<Box<str>, Failed>,
    /// Until when nothing is ordered because the authority is away.
    away: Option<Instant>,
    /// When there will be all of `burst` again.
    full_at: Instant,
    /// Names that are asked about or ordered now, and those of them that have begun for renewal.
    asking: u32,
    renewing: u32,
    /// Handshakes that wait for those, and those that wait while the store is looked into.
    waiting: usize,
    looking: usize,
    next_waiter: u64,
    /// Handshakes for which there was no place when the store did not have what they waited for, until they
    /// have seen it.
    turned_away: HashSet<u64>,
    /// Whether names are taken; else nobody would serve who waits.
    is_open: bool,
    /// How often all was forgotten (count).
    forgotten: u64,
}

struct UnderWay {
    waiters: HashMap<u64, Waker>,
    is_renewal: bool,
    /// Whether it has one of the `max_names` places, and who waits for it one of `max_waiting` each; a look
    /// into the store takes neither.
    is_asking: bool,
}

#[derive(Clone, Copy)]
struct Answered {
    is_yes: bool,
    until: Instant,
}

/// A name for which no certificate could be got.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Until then it is not tried again.
    pub until: Instant,
    /// Attempts in a row.
    pub count: u32,
    /// Why, for people.
    pub reason: String,
}

/// What a handshake that asks for a name comes to. The data path acts by it, and `weir explain` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameVerdict {
    /// The certificate is in memory.
    Kept,
    /// It is asked about, or ordered: the handshake waits along.
    Begun,
    /// Nothing is known: it is looked for in the store, asked about and ordered, while the handshake waits.
    Unknown,
    /// The service said no a moment ago.
    Refused,
    /// It could not be got a moment ago; says why.
    Failed(String),
    /// It is looked for in the store, while the handshake waits; nothing is ordered, for the authority can't
    /// be spoken with now.
    Away,
    /// As many names as may be are looked for in the store.
    Full,
    /// The process takes no more names: it is on its way out, or another config is in force.
    Closed,
}

/// A certificate of the store that can be served.
pub struct Stored(Loaded);

impl Stored {
    /// Reads the certificate that is kept in `file`.
    ///
    /// # Errors
    /// There is none, it can't be served, or it is good no more.
    pub fn load(file: &Path) -> Result<Stored, LoadError> {
        let loaded = acme::load(file, &provider::of(CipherPolicy::Default))?;
        match loaded.facts.is_good(SystemTime::now()) {
            true => Ok(Stored(loaded)),
            false => Err(LoadError::new(file, "is good no more")),
        }
    }

    /// What it says.
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

    /// As configured.
    pub fn acme(&self) -> &Acme {
        &self.acme
    }

    /// As configured.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a certificate for `name` (lower case, without a last dot) may be ordered by this `acme`, if
    /// the service has nothing against it.
    pub fn takes(&self, name: &str) -> bool {
        names::is_host_name(name) && names::is_among(&self.acme.domains, name)
    }

    /// The certificate for `name`, if it is in memory and good.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.lock().kept.find(name, SystemTime::now())
    }

    /// What a handshake for `name` would come to now.
    pub fn verdict(&self, name: &str) -> NameVerdict {
        self.lock().verdict(name, &self.settings)
    }

    /// Has a certificate for `name` got if that is to be, and gives a place to wait for it. `None` when there
    /// is nothing to wait for: it is here, or will not come; or as many as may wait do, which are
    /// `max_waiting` once it is known that the store has none.
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

    /// Has a certificate for `name` got if that is to be, without waiting for it.
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

/// For whoever gets the certificates.
impl OnDemand {
    /// Takes names from now on, as it does from the start.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Takes no more names. What is under way goes on.
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

    /// The next name to get a certificate for; `None` when no more are taken.
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

    /// Has the certificate for `name` renewed; `false` when that is not to be now. Renewals take half of the
    /// places for names at most: clients wait for the others.
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

    /// Holds a certificate of the store in memory in place of an older one; does nothing where none for
    /// `name` is there.
    pub fn refresh(&self, name: &str, stored: Stored) {
        let mut state = self.lock();
        if state.kept.facts(name).is_some() {
            state.kept.put(name, stored.0);
        }
    }

    /// Whether the certificate for `name` in memory is another one than that of `facts`.
    pub fn is_older(&self, name: &str, facts: &Facts) -> bool {
        self.lock()
            .kept
            .facts(name)
            .is_some_and(|own| own.identity != facts.identity || own.not_after != facts.not_after)
    }

    /// Notes that the store has a certificate for `name`, whatever came of it here: another process has got
    /// it.
    pub fn found(&self, name: &str) {
        let mut state = self.lock();
        state.failed.remove(name);
        state.answers.remove(name);
    }

    /// Names whose certificates were used, and when, for which that is to be noted.
    pub fn take_used(&self) -> Vec<(Box<str>, SystemTime)> {
        self.lock().kept.take_used()
    }

    /// What the service has said of `name`, as long as that is believed.
    pub fn answer(&self, name: &str) -> Option<bool> {
        let now = Instant::now();
        self.lock().answers.get(name).filter(|answer| answer.until > now).map(|answer| answer.is_yes)
    }

    /// Takes one of the orders that `rate` and `burst` allow; `Err` says after which time there will be one.
    ///
    /// # Errors
    /// There is none now.
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

    /// Notes whether the authority could be spoken with; when not, all names wait for `pause` at most.
    pub fn note_authority(&self, pause: Option<Duration>) {
        self.lock().away = pause.map(|pause| Instant::now() + pause.min(AWAY_MOST));
    }

    /// Has names tried again that were refused or failed, and those that are under way when they fail: an
    /// operator has changed something.
    pub fn forget(&self) {
        let mut state = self.lock();
        state.forgotten += 1;
        state.away = None;
        state.answers.clear();
        // How often they failed stays: who fails again waits longer.
        let now = Instant::now();
        let failed = state.failed.values_mut();
        failed.for_each(|failed| failed.until = now);
        state.held.values_mut().for_each(|held| held.until = now);
    }
}

/// For whoever looks at it.
impl OnDemand {
    /// Handshakes that wait for what is not in the store, names that are asked about or ordered now,
    /// certificates in memory (counts).
    pub fn sizes(&self) -> [usize; 3] {
        let state = self.lock();
        [state.waiting, state.asking as usize, state.kept.len()]
    }

    /// Names that could not be got, or renewed, and are not tried yet: at most `most`, those that are left
    /// alone the longest first.
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

    /// Why nothing is tried for `name` now, by what is remembered.
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

    /// Whether one more may wait for `name`.
    fn has_place(&self, name: &str, max_waiting: u32) -> bool {
        match self.begun.get(name) {
            Some(under_way) if under_way.is_asking => self.waiting < max_waiting as usize,
            _ => self.looking < LOOKED_FOR,
        }
    }

    /// How many wait as those do who wait for `name`.
    fn waiters_like(&mut self, is_asking: bool) -> &mut usize {
        if is_asking { &mut self.waiting } else { &mut self.looking }
    }

    /// A place among those who wait for `name`, which has begun.
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

    /// Takes a place back; gives what was to be woken, if it still waits.
    fn leave_place(&mut self, name: &str, number: u64) -> Option<Waker> {
        self.turned_away.remove(&number);
        let under_way = self.begun.get_mut(name)?;
        let (waker, is_asking) = (under_way.waiters.remove(&number)?, under_way.is_asking);
        *self.waiters_like(is_asking) -= 1;
        Some(waker)
    }

    /// Counts `name` among those that are asked about and ordered, and those who wait for it, in the order in
    /// which they came. Gives those for whom there is no place: they are to be woken once the lock is given
    /// back. Where that is everyone who waits, nothing is asked for their sake: `false`.
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

    /// Lets those go who wait for `name`: they are to be woken once the lock is given back.
    fn release(&mut self, name: &str) -> Vec<Waker> {
        let Some(under_way) = self.begun.get_mut(name) else { return Vec::new() };
        let (waiters, is_asking) = (std::mem::take(&mut under_way.waiters), under_way.is_asking);
        *self.waiters_like(is_asking) -= waiters.len();
        waiters.into_values().collect()
    }

    /// The same, and that is all that is done for `name`.
    fn end(&mut self, name: &str) -> Vec<Waker> {
        let wakers = self.release(name);
        if let Some(under_way) = self.begun.remove(name) {
            self.asking -= u32::from(under_way.is_asking);
            self.renewing -= u32::from(under_way.is_renewal);
        }
        wakers
    }
}

/// Room for one more in `map`, by taking out a quarter of it, that which ends first: so that it is not gone
/// through for each name of somebody who guesses names.
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
