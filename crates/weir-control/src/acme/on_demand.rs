//! Certificates on demand: takes the names that handshakes wait for, and those whose certificates are about
//! to expire, and orders certificates for them.
//!
//! There is one task for each `acme` with `on_demand`, and one for each name that it is obtaining a
//! certificate for. Start reading at [`serve`], then at [`Server::get`].

mod used;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use weir_config::AcmeChallenge;
use weir_tls::acme::Challenges;
use weir_tls::on_demand::{Begun, NameResult, OnDemand, Stored};

use super::ask::Service;
use super::holds::Holds;
use super::thread::OrderThread;
use super::{Keeper, Shared, Standing, Wanted};
use crate::blocking::blocking;
use crate::events::{Bus, What};
use crate::{lock, tasks};

/// Interval between two checks for certificates to renew.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Interval between two records on disk of what was used.
const NOTE_EVERY: Duration = Duration::from_secs(10);
/// How long a name is left alone after the service did not answer, varied by a quarter.
const UNANSWERED: Duration = Duration::from_secs(5);
/// Least time between two log messages about whether the service answers.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Most concurrent look-ups in the store (count), each on its own thread: after a restart all clients come at
/// once.
const LOOKS: usize = 64;
/// Longest time for which a name is left alone because there were too many orders.
const LIMITED_MOST: Duration = Duration::from_secs(60);

/// The tasks that obtain certificates on demand, for each `acme` with `on_demand`.
#[derive(Default)]
pub(super) struct Demands {
    running: Mutex<Vec<Running>>,
    /// Tasks of entries that are no longer in force, as long as some of their names are in progress.
    retired: Mutex<Vec<JoinHandle<()>>>,
}

struct Running {
    on_demand: Arc<OnDemand>,
    service: Arc<Service>,
    ways: Arc<Mutex<Vec<AcmeChallenge>>>,
    hasten: Arc<Notify>,
    task: JoinHandle<()>,
}

/// What all of them share.
#[derive(Clone)]
pub(super) struct Common {
    pub challenges: Arc<Challenges>,
    pub bus: Arc<Bus>,
    pub holds: Arc<Holds>,
}

impl Demands {
    /// Runs those in `wanted`, each given with the challenge types that it can use. Others accept no more
    /// names, and finish what is in progress.
    pub fn adopt(
        &self,
        wanted: Vec<(Arc<OnDemand>, Vec<AcmeChallenge>)>,
        common: &Common,
        thread: &OrderThread,
    ) {
        let mut all = lock(&self.running);
        let mut retired = lock(&self.retired);
        retired.retain(|task| !task.is_finished());
        let is_unwanted =
            |running: &mut Running| !wanted.iter().any(|(each, _)| Arc::ptr_eq(each, &running.on_demand));
        for running in all.extract_if(.., is_unwanted) {
            running.on_demand.close();
            retired.push(running.task);
        }
        for (on_demand, ways) in wanted {
            if let Some(running) = all.iter().find(|running| Arc::ptr_eq(&on_demand, &running.on_demand)) {
                *lock(&running.ways) = ways;
                continue;
            }
            on_demand.open();
            let (ways, hasten) = (Arc::new(Mutex::new(ways)), Arc::<Notify>::default());
            let service = Arc::new(Service::new(on_demand.settings()));
            let server = Server {
                on_demand: on_demand.clone(),
                service: service.clone(),
                ways: ways.clone(),
                common: common.clone(),
                looks: Semaphore::new(LOOKS),
                is_silent: AtomicBool::new(false),
                said: Mutex::default(),
            };
            let task = thread.spawn(serve(Arc::new(server), hasten.clone()));
            all.push(Running { on_demand, service, ways, hasten, task });
        }
    }

    /// Retries names that failed, and checks again what is due for renewal.
    pub fn hasten(&self) {
        for running in lock(&self.running).iter() {
            running.on_demand.forget();
            running.service.forget();
            running.hasten.notify_one();
        }
    }

    /// Ends all orders at once; handshakes that wait continue without a certificate.
    pub fn stop(&self) {
        for running in lock(&self.running).drain(..) {
            running.on_demand.close();
            running.task.abort();
        }
        lock(&self.retired).drain(..).for_each(|task| task.abort());
    }
}

struct Server {
    on_demand: Arc<OnDemand>,
    service: Arc<Service>,
    ways: Arc<Mutex<Vec<AcmeChallenge>>>,
    common: Common,
    looks: Semaphore,
    /// Whether the service did not answer the last question.
    is_silent: AtomicBool,
    /// When that was last logged.
    said: Mutex<Option<Instant>>,
}

/// Obtains a certificate for each name that arrives, until no more are accepted and all are done.
async fn serve(server: Arc<Server>, hasten: Arc<Notify>) {
    let mut under_way = JoinSet::new();
    let look = async {
        loop {
            server.look().await;
            let _ = tokio::time::timeout(LOOK_EVERY, hasten.notified()).await;
        }
    };
    let note = async {
        loop {
            tokio::time::sleep(NOTE_EVERY).await;
            server.note().await;
        }
    };
    let take = async {
        loop {
            tokio::select! {
                next = server.on_demand.next() => match next {
                    Some(begun) => drop(under_way.spawn(server.clone().get(begun))),
                    None => break,
                },
                Some(ended) = under_way.join_next() => server.note_panic(&ended),
            }
        }
    };
    tokio::select! {
        () = take => {}
        () = look => {}
        () = note => {}
    }
    while let Some(ended) = under_way.join_next().await {
        server.note_panic(&ended);
    }
    server.note().await;
}

impl Server {
    /// Gets the certificate for one name. Tries again if it failed for a reason that an operator may have
    /// fixed in the meantime.
    async fn get(self: Arc<Server>, mut begun: Begun) {
        self.try_to_get(&begun).await;
        while begun.begins_again() {
            self.try_to_get(&begun).await;
        }
    }

    /// Takes the certificate from the store. If there is none, orders one, unless the service refuses the
    /// name.
    async fn try_to_get(&self, begun: &Begun) {
        // Where nobody knows whether it is there, nothing is ordered.
        let Ok(stored) = self.stored(begun.name()).await else { return };
        let is_stored = stored.is_some();
        if let Some(stored) = stored {
            begun.serve(stored, NameResult::Stored);
        }
        if is_stored && !begun.is_renewal() {
            return;
        }
        if let Err(reason) = begun.may_ask() {
            tracing::debug!(name = begun.name(), ?reason, "no certificate on demand now");
            return;
        }
        if let Some(reason) = self.refusal(begun).await {
            // Not in the log of every day: clients choose the names.
            tracing::debug!(name = begun.name(), reason, "no certificate on demand");
            return;
        }
        // Another process may have obtained it while the service was asked.
        if let Ok(Some(stored)) = self.stored(begun.name()).await
            && !(begun.is_renewal() && used::is_due(&stored, begun.name(), SystemTime::now()))
        {
            begun.serve(stored, NameResult::Stored);
            return;
        }
        self.order(begun, is_stored).await;
    }

    /// Why no certificate is ordered for the name; `None` if one is.
    async fn refusal(&self, begun: &Begun) -> Option<String> {
        let allowed = match self.on_demand.answer(begun.name()) {
            Some(known) => known,
            None => match self.service.allows(begun.name()).await {
                Ok(allowed) => {
                    self.note_service(None);
                    begun.answered(allowed);
                    allowed
                }
                Err(unanswered) => {
                    self.note_service(Some(&unanswered.to_string()));
                    let pause = UNANSWERED.min(self.on_demand.settings().remember);
                    let pause = pause.mul_f64(0.75 + super::draw() / 2.0);
                    begun.failed(NameResult::Unanswered, pause, unanswered.to_string());
                    return Some(unanswered.to_string());
                }
            },
        };
        if !allowed {
            return Some("the service at `ask` refuses it".to_owned());
        }
        if begun.is_renewal() {
            return None;
        }
        let wait = self.on_demand.take_order().err()?;
        let reason = "more orders than `rate` and `burst` allow".to_owned();
        begun.failed(NameResult::Limited, wait.min(LIMITED_MOST), reason.clone());
        Some(reason)
    }

    /// Counts a name whose task panicked; the next handshake that asks for the name starts again.
    fn note_panic(&self, ended: &Result<(), JoinError>) {
        if ended.as_ref().is_err_and(JoinError::is_panic) {
            tasks::count_panic();
            tracing::error!("the order of a certificate on demand ended by a panic");
        }
    }

    /// Logs when the service stops answering, and when it answers again, but not for each name.
    fn note_service(&self, error: Option<&str>) {
        let was_silent = self.is_silent.load(Ordering::Relaxed);
        let mut said = lock(&self.said);
        // The service may fail for only one name, and clients choose the names.
        if said.is_some_and(|said| said.elapsed() < SAY_EVERY) || was_silent == error.is_some() {
            return;
        }
        self.is_silent.store(error.is_some(), Ordering::Relaxed);
        *said = Some(Instant::now());
        match error {
            Some(reason) => {
                tracing::warn!(reason, "no certificates on demand");
                let names = "names on demand".to_owned();
                self.common.bus.tell(What::Certificate {
                    names,
                    change: "failed",
                    detail: reason.to_owned(),
                });
            }
            None => tracing::info!("the service at `ask` answers again"),
        }
    }

    async fn order(&self, begun: &Begun, is_stored: bool) {
        let acme = self.on_demand.acme().of_name(begun.name());
        let file = weir_tls::acme::file(&acme);
        let failed = begun.failures();
        let standing = Standing {
            came: is_stored.then(SystemTime::now),
            failures_in_a_row: failed.as_ref().map_or(0, |failed| failed.count),
            error: failed.map_or_else(Arc::default, |failed| failed.reason.into()),
            ..Standing::default()
        };
        let keeper = Keeper {
            file: file.clone(),
            wanted: Wanted { acme, ways: lock(&self.ways).clone() },
            shared: Arc::new(Shared { standing: Mutex::new(standing), ..Shared::default() }),
            challenges: self.common.challenges.clone(),
            bus: self.common.bus.clone(),
            holds: self.common.holds.clone(),
        };
        let pause = keeper.attempt().await;
        let standing = lock(&keeper.shared.standing).clone();
        if pause.is_none() || !begun.is_overtaken() {
            self.on_demand.note_authority(pause.filter(|_| standing.is_unreachable));
        }
        if let Some(pause) = pause {
            // Nothing was tried, so this does not lengthen the next wait.
            let result = if standing.is_held { NameResult::Limited } else { NameResult::Failed };
            begun.failed(result, pause, standing.error.to_string());
            return;
        }
        match self.stored(begun.name()).await {
            Ok(Some(stored)) => {
                // A renewal does not count as use; otherwise a certificate that nobody asks for would be
                // renewed for ever.
                if !begun.is_renewal() {
                    let used = vec![(begun.name().into(), SystemTime::now())];
                    used::note(self.on_demand.acme(), used).await;
                }
                begun.serve(stored, NameResult::Issued);
            }
            // It was there a moment ago.
            Ok(None) | Err(_) => {
                let reason = format!("{} can't be served", file.display());
                begun.failed(NameResult::Failed, Duration::from_secs(60), reason);
            }
        }
    }

    /// The stored certificate; `None` when there is none that is valid.
    ///
    /// # Errors
    /// The disk could not be read. This is logged.
    async fn stored(&self, name: &str) -> io::Result<Option<Stored>> {
        let file = weir_tls::acme::file(&self.on_demand.acme().of_name(name));
        // It is never closed.
        let turn = self.looks.acquire().await;
        let loaded = blocking(move || Stored::load(&file)).await;
        drop(turn);
        let loaded = loaded.inspect_err(
            |error| tracing::error!(name, %error, "a stored certificate could not be looked at"),
        );
        Ok(match loaded? {
            Ok(stored) if stored.facts().names.iter().any(|own| own == name) => Some(stored),
            Ok(stored) => {
                tracing::warn!(name, file = %stored.facts().file.display(), "the stored certificate is for others");
                None
            }
            Err(error) => {
                tracing::debug!(name, %error, "no stored certificate");
                None
            }
        })
    }

    /// Records on disk which certificates are used, for this process after a restart and for other processes.
    async fn note(&self) {
        let used = self.on_demand.take_used();
        if !used.is_empty() {
            used::note(self.on_demand.acme(), used).await;
        }
    }

    /// Renews what was used recently and is about to expire, and loads what another process has renewed.
    async fn look(&self) {
        self.note().await;
        let on_demand = self.on_demand.clone();
        let found = blocking(move || used::look(&on_demand)).await.unwrap_or_default();
        for (name, stored) in found.newer {
            self.on_demand.refresh(&name, stored);
        }
        let mut begun = 0usize;
        for name in &found.due {
            begun += usize::from(self.on_demand.renew(name));
        }
        if !found.due.is_empty() {
            tracing::debug!(due = found.due.len(), begun, "certificates on demand come to their end");
        }
    }
}
