//! Certificates that are obtained and renewed by ACME (RFC 8555): when to order them, and the results.
//!
//! There is one task for each certificate, however many listeners serve it. All of them run on a thread of
//! their own ([`OrderThread`]), and may block on the store. A new certificate is first
//! written to the store; the listeners then load it from there, as after a restart. No snapshot is published
//! for it, and no connection is affected. Workers look up challenges in [`Challenges`]. Start reading at
//! [`Orders::adopt`], then at [`keep`]. `on_demand` orders certificates that clients ask for.

mod accounts;
mod ask;
mod client;
mod dns01;
mod failure;
mod holds;
mod on_demand;
mod order;
mod refusals;
mod schedule;
mod shared;
mod thread;
mod unfinished;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use weir_config::{Acme, AcmeChallenge, Protocol};
use weir_state::Snapshot;
use weir_tls::acme::Challenges;
use weir_tls::{Facts, ServerTls};

use self::accounts::Accounts;
use self::client::Client;
use self::failure::Failure;
use self::holds::Holds;
use self::on_demand::{Common, Demands};
use self::order::Attempt;
use self::refusals::Refusals;
pub use self::schedule::Blame;
use self::schedule::{Life, Window};
use self::shared::SharedProofs;
use self::thread::OrderThread;
use self::unfinished::OrderFile;
use crate::events::{Bus, What};
use crate::lock;
use crate::store;
use crate::tasks;
use crate::timestamp::Timestamp;

/// Longest sleep: meanwhile the wall clock, which determines expiry, may be set, and another process may have
/// renewed the certificate.
const NAP: Duration = Duration::from_secs(600);
/// Disk space to reserve for a key and its chain, in bytes; chains have some KiB.
const PEM_BYTES: usize = 32 << 10;
/// Longest time for an order, not counting the time until DNS records are visible; a slow authority is asked
/// again later.
const ORDER_TIME: Duration = Duration::from_secs(300);

/// All certificates that are ordered.
pub struct Orders {
    orders: Mutex<HashMap<PathBuf, Running>>,
    demands: Demands,
    challenges: Arc<Challenges>,
    shared: SharedProofs,
    bus: Arc<Bus>,
    holds: Arc<Holds>,
    thread: OrderThread,
}

struct Running {
    wanted: Wanted,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What to order, and how.
#[derive(Clone, PartialEq, Eq)]
struct Wanted {
    acme: Acme,
    /// The challenge types that can be used.
    ways: Vec<AcmeChallenge>,
}

#[derive(Default)]
struct Shared {
    standing: Mutex<Standing>,
    listeners: Mutex<Vec<Arc<ServerTls>>>,
    hasten: Notify,
    refusals: Refusals,
    /// A certificate that could not be written, key and chain as PEM: it is served, and not ordered again.
    unwritten: Mutex<Option<String>>,
}

impl Shared {
    /// Makes the listeners serve what is stored in `file`, or could not be written there. Blocks on the disk.
    fn take_up(&self, file: &Path) {
        // Copies, because the control thread needs the locks as well.
        let (unwritten, listeners) = (lock(&self.unwritten).clone(), lock(&self.listeners).clone());
        for listener in &listeners {
            let taken = match &unwritten {
                Some(pem) => listener.take_up_unwritten(file, pem),
                None => listener.take_up_ordered(file),
            };
            if let Err(error) = taken {
                tracing::debug!(%error, "stored certificate");
            }
        }
    }
}

/// The state of one order.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// When the next attempt is due, if one is planned.
    pub next: Option<SystemTime>,
    /// Whether an attempt is in progress.
    pub is_ordering: bool,
    /// When the certificate was obtained, by this process or an earlier one.
    pub came: Option<SystemTime>,
    /// Certificates obtained by this process.
    pub issued_count: u64,
    /// Attempts that failed, by [`Blame`].
    pub failed_counts: [u64; Blame::ALL.len()],
    /// Failed attempts since the last success.
    pub failures_in_a_row: u32,
    /// Why the last attempt failed; empty if it did not.
    pub error: Arc<str>,
    /// Whether the authority could not be reached at the end of the last attempt.
    pub is_unreachable: bool,
    /// Whether nothing was tried, because the authority has refused all orders of the account for some time.
    pub is_held: bool,
}

/// The state of one order as the status shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderStatus {
    /// The certificate authority's directory.
    pub directory: String,
    /// `ordering`, `failing`, `issued`, or `waiting` before the first attempt.
    pub state: String,
    /// When it will be renewed, or tried again; `None` while it is being ordered.
    pub next: Option<Timestamp>,
    /// Why the last attempt failed; empty if it did not.
    pub error: String,
}

impl Standing {
    /// For the status.
    pub fn status(&self, acme: &Acme) -> OrderStatus {
        let state = match self {
            Standing { is_ordering: true, .. } => "ordering",
            Standing { failures_in_a_row: 1.., .. } => "failing",
            Standing { came: Some(_), .. } => "issued",
            _ => "waiting",
        };
        OrderStatus {
            directory: acme.directory.clone(),
            state: state.to_owned(),
            next: self.next.filter(|_| !self.is_ordering).map(Timestamp::of),
            error: self.error.to_string(),
        }
    }
}

impl Orders {
    /// Without orders.
    pub fn new(bus: Arc<Bus>) -> Orders {
        let (orders, demands, challenges, shared, holds, thread) = Default::default();
        Orders { orders, demands, challenges, shared, bus, holds, thread }
    }

    /// The proofs that workers present to certificate authorities.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Orders what `snapshot` requires, from now on. Orders that are still required in the same way continue.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let speaks_plain_http = |listener: &weir_config::Listener| {
            listener.protocol() == Protocol::Http && listener.tls.is_none()
        };
        let has_plain_http = snapshot.config.listeners.iter().any(|listener| speaks_plain_http(listener));
        let open = |way: &AcmeChallenge| *way != AcmeChallenge::Http01 || has_plain_http;
        let ways = |acme: &Acme| -> Vec<_> { acme.challenges.iter().copied().filter(open).collect() };
        let served = snapshot.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let on_demand = served.flat_map(|tls| tls.on_demand());
        let on_demand: Vec<_> = on_demand.map(|each| (each.clone(), ways(each.acme()))).collect();
        let mut shared: Vec<_> =
            on_demand.iter().map(|(each, ways)| (each.acme().clone(), ways.clone())).collect();
        let common =
            Common { challenges: self.challenges.clone(), bus: self.bus.clone(), holds: self.holds.clone() };
        self.demands.adopt(on_demand, &common, &self.thread);
        let mut wanted: HashMap<PathBuf, (Wanted, Vec<Arc<ServerTls>>)> = HashMap::new();
        for listener in &snapshot.listeners {
            let Some(served) = &listener.tls else { continue };
            for acme in listener.config.tls.iter().flat_map(|tls| tls.ordered()) {
                let ways = ways(acme);
                let entry = wanted.entry(weir_tls::acme::file(acme));
                let entry = entry.or_insert_with(|| (Wanted { acme: acme.clone(), ways }, Vec::new()));
                entry.1.push(served.clone());
            }
        }
        shared.extend(wanted.values().map(|(wanted, _)| (wanted.acme.clone(), wanted.ways.clone())));
        self.shared.adopt(&shared, &self.challenges);
        let mut orders = lock(&self.orders);
        orders.retain(|file, running| wanted.get(file).is_some_and(|(wanted, _)| *wanted == running.wanted));
        for (file, (wanted, listeners)) in wanted {
            // These listeners do not serve a certificate yet that arrived while they were loaded.
            if let Some(running) = orders.get(&file) {
                *lock(&running.shared.listeners) = listeners;
                let shared = running.shared.clone();
                self.thread.spawn(async move { shared.take_up(&file) });
                continue;
            }
            let shared = Arc::new(Shared { listeners: Mutex::new(listeners), ..Shared::default() });
            let keeper = Keeper {
                file: file.clone(),
                wanted: wanted.clone(),
                shared: shared.clone(),
                challenges: self.challenges.clone(),
                bus: self.bus.clone(),
                holds: self.holds.clone(),
            };
            let task = self.thread.spawn(keep_on(Arc::new(keeper)));
            orders.insert(file, Running { wanted, shared, task });
        }
    }

    /// Checks every order now, and tries again those that failed: an operator has changed something.
    pub fn hasten(&self) {
        self.holds.hasten();
        // An order in the middle of an attempt sees this afterwards.
        for running in lock(&self.orders).values() {
            running.shared.refusals.disregard();
            running.shared.hasten.notify_one();
        }
        self.demands.hasten();
    }

    /// Ends all orders: the next process repeats what is unfinished.
    pub fn stop(&self) {
        lock(&self.orders).clear();
        self.demands.stop();
        self.shared.stop(&self.challenges);
    }

    /// The state of the order for the certificate in `file`; `None` when it is not ordered.
    pub fn standing(&self, file: &Path) -> Option<Standing> {
        lock(&self.orders).get(file).map(|running| lock(&running.shared.standing).clone())
    }

    /// The states of all orders with the certificates' files, sorted by file.
    pub fn standings(&self) -> Vec<(PathBuf, Standing)> {
        let orders = lock(&self.orders);
        let mut all: Vec<_> = orders
            .iter()
            .map(|(file, running)| (file.clone(), lock(&running.shared.standing).clone()))
            .collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

/// Obtains and renews one certificate.
struct Keeper {
    file: PathBuf,
    wanted: Wanted,
    shared: Arc<Shared>,
    challenges: Arc<Challenges>,
    bus: Arc<Bus>,
    holds: Arc<Holds>,
}

/// Result of an attempt.
enum Got {
    New,
    /// Another process had already obtained it.
    Found,
}

/// As [`keep`], but restarts after a panic: otherwise a certificate would expire unnoticed.
async fn keep_on(keeper: Arc<Keeper>) {
    tasks::keep_on_after(|| keep(keeper.clone()), |count| keeper.pause_after_panic(count)).await;
}

/// Obtains the certificate if there is none, and renews it, until the config no longer requires it.
async fn keep(keeper: Arc<Keeper>) {
    // Another process may have obtained it while the listeners were loaded.
    keeper.take_up();
    let mut asked: Option<Asked> = None;
    loop {
        let due = keeper.due(&mut asked).await;
        if let Some(due) = due {
            lock(&keeper.shared.standing).next = Some(due);
            let now = SystemTime::now();
            if let Ok(left) = due.duration_since(now).map(|left| left.min(NAP))
                && !left.is_zero()
            {
                // Another process may have obtained it while the attempts of this one failed.
                if lock(&keeper.shared.standing).failures_in_a_row > 0 {
                    keeper.note_success(Got::Found);
                }
                let _ = tokio::time::timeout(left, keeper.shared.hasten.notified()).await;
                keeper.take_up();
                continue;
            }
        }
        // The attempt takes into account what an operator has changed up to now.
        pin!(keeper.shared.hasten.notified()).enable();
        let pause = keeper.attempt().await;
        if let Some(pause) = pause {
            lock(&keeper.shared.standing).next = Some(SystemTime::now() + pause);
            // The clock of a suspended computer stands still, so an additional short sleep does no harm.
            let _ = tokio::time::timeout(pause, keeper.shared.hasten.notified()).await;
        }
    }
}

/// The authority's renewal information, and which certificate it is for.
struct Asked {
    of: Facts,
    window: Option<Window>,
    until: SystemTime,
    /// The random number for this certificate: drawn once, so that the renewal time does not change.
    draw: f64,
}

impl Keeper {
    /// When the stored certificate is due for renewal; `None` when there is none that can be served.
    async fn due(&self, asked: &mut Option<Asked>) -> Option<SystemTime> {
        let stored = self.stored()?;
        let life = self.life(&stored)?;
        {
            let mut standing = lock(&self.shared.standing);
            standing.came = Some(life.came);
        }
        let now = SystemTime::now();
        if asked.as_ref().is_none_or(|asked| asked.of != stored || asked.until <= now) {
            let draw =
                asked.as_ref().filter(|asked| asked.of == stored).map_or_else(draw, |asked| asked.draw);
            let (window, good_for) = self.ask(&stored).await;
            *asked = Some(Asked { of: stored, window, until: now + good_for, draw });
        }
        asked.as_ref().map(|asked| schedule::renewal(life, asked.window, asked.draw))
    }

    fn stored(&self) -> Option<Facts> {
        weir_tls::acme::stored(&self.wanted.acme).ok()
    }

    fn life(&self, stored: &Facts) -> Option<Life> {
        let now = SystemTime::now();
        Life::of(stored, store::written(&self.file).unwrap_or(now), now)
    }

    /// When the authority suggests renewal, and how long until it should be asked again.
    async fn ask(&self, stored: &Facts) -> (Option<Window>, Duration) {
        let nothing = (None, schedule::window_is_good_for(Duration::from_secs(6 * 3600)));
        let Some(identity) = &stored.identity else { return nothing };
        let asking = async {
            let accounts = self.accounts()?;
            let Some(account) = accounts.kept().await? else { return Ok(None) };
            match account.renewal_info(&accounts::identifier(identity)).await {
                Ok((info, good_for)) => {
                    let window = info.suggested_window;
                    let window = Window { start: window.start.into(), end: window.end.into() };
                    Ok(Some((window, good_for)))
                }
                Err(instant_acme::Error::Unsupported(_)) => Ok(None),
                Err(error) => Err(Failure::from(error)),
            }
        };
        match asking.await {
            Ok(Some((window, good_for))) => (Some(window), schedule::window_is_good_for(good_for)),
            Ok(None) => nothing,
            Err(failure) => {
                let reason = &*failure.reason;
                tracing::debug!(certificate = %self.file.display(), reason, "no renewal information");
                (None, schedule::window_is_good_for(Duration::from_secs(3600)))
            }
        }
    }

    fn accounts(&self) -> Result<Accounts<'_>, Failure> {
        let acme = &self.wanted.acme;
        let client =
            Client::new(acme.ca.as_deref()).map_err(|error| Failure::new(Blame::Store, error.to_string()))?;
        Ok(Accounts { acme, client, holds: &self.holds })
    }

    /// Where an unfinished order is stored.
    fn unfinished(&self) -> OrderFile {
        OrderFile::beside(&self.file)
    }

    /// Tries once; returns how long to wait after a failure.
    async fn attempt(&self) -> Option<Duration> {
        {
            let mut standing = lock(&self.shared.standing);
            (standing.is_ordering, standing.is_held) = (true, false);
        }
        let longest = ORDER_TIME + dns01::longest(&self.wanted.acme);
        let limited = tokio::time::timeout(longest, self.order()).await;
        let done = limited.unwrap_or_else(|_| {
            let blame = if self.unfinished().is_taken() { Blame::Late } else { Blame::Away };
            Err(Failure::new(blame, format!("no certificate came within {longest:?}")))
        });
        match done {
            Ok(got) => {
                self.note_success(got);
                None
            }
            Err(failure) => Some(self.note(failure)),
        }
    }

    fn note_success(&self, got: Got) {
        let mut standing = lock(&self.shared.standing);
        standing.is_ordering = false;
        standing.failures_in_a_row = 0;
        standing.error = Arc::default();
        standing.issued_count += u64::from(matches!(got, Got::New));
        let is_first = standing.came.is_none();
        drop(standing);
        self.take_up();
        if matches!(got, Got::New) {
            let (names, change) = (self.names(), if is_first { "issued" } else { "renewed" });
            tracing::info!(names, certificate = %self.file.display(), "certificate {change}");
            self.bus.tell(What::Certificate { names, change, detail: self.expiry() });
        }
    }

    /// Records a failed attempt; returns how long to wait.
    fn note(&self, failure: Failure) -> Duration {
        let Failure { blame, reason, asked_for } = failure;
        let names = self.names();
        let mut standing = lock(&self.shared.standing);
        standing.is_ordering = false;
        standing.is_held = blame == Blame::Held;
        // An attempt that was not made does not lengthen later waits.
        let more = u32::from(!standing.is_held || standing.failures_in_a_row == 0);
        standing.failures_in_a_row = standing.failures_in_a_row.saturating_add(more);
        standing.failed_counts[blame as usize] += 1;
        let is_news = standing.error != reason;
        standing.error = reason.clone();
        let pause = schedule::pause(blame, standing.failures_in_a_row, asked_for, draw());
        drop(standing);
        if blame == Blame::Held {
            // That the account is held was logged once, for all names; a refusal by the Weir that got it.
            tracing::debug!(names, reason = &*reason, again_in = ?pause, "no certificate is ordered now");
            return pause;
        }
        tracing::warn!(names, blame = blame.word(), reason = &*reason, again_in = ?pause, "no certificate could be got");
        // Reported only once: a few hundred events are kept, and a long outage has many attempts.
        if is_news {
            self.bus.tell(What::Certificate { names, change: "failed", detail: reason.to_string() });
        }
        pause
    }

    async fn order(&self) -> Result<Got, Failure> {
        let before = self.stored();
        self.shared.refusals.begin(&self.file);
        let _lock = store::Lock::take(&self.file).await.map_err(|error| Failure::store(&error))?;
        let now = self.stored();
        // Another process held the lock and has obtained the certificate.
        if now.is_some() && now != before {
            *lock(&self.shared.unwritten) = None;
            return Ok(Got::Found);
        }
        let unwritten = lock(&self.shared.unwritten).take();
        if let Some(Ok(pem)) = unwritten.map(|pem| self.checked(pem)) {
            return self.write(pem).await;
        }
        if let Some(refusal) = self.shared.refusals.of_another(&self.file)
            && !self.unfinished().is_taken()
        {
            let mut standing = lock(&self.shared.standing);
            standing.failures_in_a_row = standing.failures_in_a_row.max(refusal.count);
            return Err(refusal.failure(draw()));
        }
        // Authorities count what they issue: nothing is ordered for which there is no space.
        store::reserve(&self.file, PEM_BYTES).await.map_err(|error| Failure::store(&error))?;
        let attempt = Attempt {
            accounts: self.accounts()?,
            challenges: &self.challenges,
            ways: &self.wanted.ways,
            turn: lock(&self.shared.standing).failures_in_a_row as usize,
            replaces: now.as_ref().and_then(|facts| facts.identity.as_ref()),
            kept: &self.unfinished(),
        };
        let ordered = attempt.run().await;
        let client = &attempt.accounts.client;
        lock(&self.shared.standing).is_unreachable = client.is_away();
        match ordered.and_then(|pem| self.checked(pem)) {
            Ok(pem) => self.write(pem).await,
            Err(failure) => {
                store::release(&self.file);
                let asked_for = failure.asked_for.or(client.asked_for());
                let failure = Failure { asked_for, ..failure };
                let count = lock(&self.shared.standing).failures_in_a_row.saturating_add(1);
                self.shared.refusals.note(&self.file, &failure, count).await;
                Err(failure)
            }
        }
    }

    /// Writes the new certificate; if it can't be written, keeps it in memory and serves it.
    async fn write(&self, pem: String) -> Result<Got, Failure> {
        if let Err(error) = store::write_reserved(self.file.clone(), pem.clone().into_bytes()).await {
            *lock(&self.shared.unwritten) = Some(pem);
            self.take_up();
            let reason = format!("the certificate that came is served, and can't be written: {error}");
            return Err(Failure::new(Blame::Store, reason));
        }
        match weir_tls::acme::stored(&self.wanted.acme) {
            Ok(_) => {
                self.unfinished().clear();
                self.shared.refusals.clear(&self.file);
                Ok(Got::New)
            }
            Err(error) => Err(Failure::new(Blame::Store, error.to_string())),
        }
    }

    /// Refuses a certificate that could not be served for every domain.
    fn checked(&self, pem: String) -> Result<String, Failure> {
        let refuse = |reason: String| {
            self.unfinished().give_up(&reason);
            Failure::new(Blame::Refused, reason)
        };
        let facts = weir_tls::acme::look(&pem)
            .map_err(|reason| refuse(format!("the certificate that came can't be served: {reason}")))?;
        if let Some(domain) = self.wanted.acme.domains.iter().find(|domain| !facts.names.contains(domain)) {
            return Err(refuse(format!("the certificate that came is not for {domain}")));
        }
        match self.life(&facts) {
            Some(life) if life.ends > SystemTime::now() => Ok(pem),
            // Another one would be no better.
            _ => Err(Failure::new(
                Blame::Refused,
                "the certificate that came is good no more; is the clock of this machine right?",
            )),
        }
    }

    /// Waits before a restart after a panic; the state of the attempt is unknown.
    async fn pause_after_panic(&self, count: u32) {
        let pause = schedule::pause(Blame::Refused, count, None, draw());
        let names = self.names();
        {
            let mut standing = lock(&self.shared.standing);
            standing.is_ordering = false;
            standing.failures_in_a_row = standing.failures_in_a_row.saturating_add(1);
            standing.error = "a mistake of Weir's own; please report it".into();
            standing.next = Some(SystemTime::now() + pause);
        }
        tracing::error!(names, again_in = ?pause, "the order of a certificate ended by a panic");
        let _ = tokio::time::timeout(pause, self.shared.hasten.notified()).await;
    }

    fn names(&self) -> String {
        self.wanted.acme.domains.join(", ")
    }

    /// Makes the listeners serve what is stored.
    fn take_up(&self) {
        self.shared.take_up(&self.file);
    }

    fn expiry(&self) -> String {
        let life = self.stored().and_then(|stored| self.life(&stored));
        life.map_or_else(String::new, |life| format!("good until {}", Timestamp::of(life.ends).rfc3339()))
    }
}

/// A random number from 0 to 1.
fn draw() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}
