//! The control side in one piece: everything that changes what is in force goes through here.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use weir_balance::{AdminState, MAX_WEIGHT};
use weir_config::Config;
use weir_proxy::access_log::AccessLog;
use weir_proxy::clock;
use weir_proxy::plane::{self, Plane};
use weir_proxy::snapshot::{Pool, Snapshot};
use weir_proxy::sockets::Sockets;

use crate::dns::Names;
use crate::events::{Bus, What};
use crate::health::Board;
use crate::notify::Notifier;
use crate::publish::{PublishError, Publisher};
use crate::reload::{Ledger, Outcome, ReloadError, Source, Verdict, changes, keep_until_restart};
use crate::timestamp::Timestamp;
use crate::upgrade::{Passed, Purpose};

/// Longest wait between two looks at what time alone changes: steps of slow start that began in between.
const HOUSE_KEEPING: Duration = Duration::from_millis(250);

/// Most backends that can be added to a pool at run time; a config file may hold more.
const MOST_BACKENDS: usize = 4096;

/// What the control side is started with.
pub struct Start {
    /// Where the config came from.
    pub source: Source,
    /// The config, checked, with the command line's overrides applied.
    pub config: Arc<Config>,
    /// Running workers that serve nothing yet.
    pub plane: Plane,
    /// What the workers report.
    pub reports: mpsc::UnboundedReceiver<plane::Event>,
    /// The access log, reconfigured at each reload.
    pub access_log: AccessLog,
    /// Sockets from an older process.
    pub inherited: Sockets,
    /// Told the log level at each reload.
    pub on_level: Box<dyn Fn(weir_config::Level) + Send + Sync>,
    /// The way to the service manager.
    pub notifier: Notifier,
}

/// What is true right now, and how to change it.
pub struct Control {
    publisher: Publisher,
    board: Board,
    names: Names,
    bus: Arc<Bus>,
    ledger: Mutex<Ledger>,
    /// One reload at a time; the next one waits and then reads the file anew.
    reloading: tokio::sync::Mutex<()>,
    source: Source,
    access_log: AccessLog,
    on_level: Box<dyn Fn(weir_config::Level) + Send + Sync>,
    notifier: Notifier,
    phase: AtomicU8,
    started: Timestamp,
    started_at: Duration,
}

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Serving.
    Serving,
    /// No longer accepting; what runs may end.
    Draining,
}

impl Phase {
    /// The word in the API.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Serving => "serving",
            Phase::Draining => "draining",
        }
    }
}

/// A change to a backend that was not made.
#[derive(Debug)]
pub enum ChangeError {
    /// No pool has that name.
    NoPool(String),
    /// The pool has no such backend.
    NoBackend(String),
    /// The pool has that backend already.
    Exists(String),
    /// What was asked for can't be.
    Invalid(String),
    /// The pool would be empty.
    Last(String),
    /// It could not be put in force.
    Publish(PublishError),
}

impl From<PublishError> for ChangeError {
    fn from(error: PublishError) -> ChangeError {
        ChangeError::Publish(error)
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::NoPool(pool) => write!(out, "no pool is named `{pool}`"),
            ChangeError::NoBackend(backend) => write!(out, "the pool has no backend `{backend}`"),
            ChangeError::Exists(backend) => write!(out, "the pool has backend `{backend}` already"),
            ChangeError::Invalid(message) => write!(out, "{message}"),
            ChangeError::Last(backend) => {
                write!(out, "`{backend}` is the pool's last backend; set its state to maintenance instead")
            }
            ChangeError::Publish(error) => write!(out, "{error}"),
        }
    }
}

impl std::error::Error for ChangeError {}

impl Control {
    /// Puts the first config in force and starts probing and resolving. Must be called on the control runtime.
    pub async fn start(start: Start) -> Result<Arc<Control>, PublishError> {
        let publisher = Publisher::start(start.plane, start.config, start.inherited).await?;
        let bus = Arc::new(Bus::default());
        let resolved = Arc::new(Notify::new());
        let control = Arc::new(Control {
            board: Board::new(bus.clone()),
            names: Names::new(bus.clone(), resolved.clone()),
            bus,
            ledger: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            source: start.source,
            access_log: start.access_log,
            on_level: start.on_level,
            notifier: start.notifier,
            phase: AtomicU8::new(Phase::Serving as u8),
            started: Timestamp::now(),
            started_at: clock::now(),
            publisher,
        });
        control.follow(&control.snapshot());
        control.bus.tell(What::Process { phase: "started", detail: control.summary() });
        tokio::spawn(keep_house(control.clone(), start.reports, resolved));
        Ok(control)
    }

    /// What is in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.publisher.snapshot()
    }

    /// Reads the config file and puts it in force, or changes nothing. `trigger` says who asked: `signal` or `api`.
    pub async fn reload(&self, trigger: &str) -> Outcome {
        let _turn = self.reloading.lock().await;
        let began = clock::now();
        self.notifier.reloading();
        let outcome = self.try_reload(trigger).await;
        let outcome =
            Outcome { time: Timestamp::now(), seconds: (clock::now() - began).as_secs_f64(), ..outcome };
        lock(&self.ledger).note(&outcome);
        let (result, generation) = (outcome.result.word(), outcome.generation);
        if outcome.result.is_good() {
            tracing::info!(trigger, generation, changes = ?outcome.changes, "reload {result}");
            for key in &outcome.needs_restart {
                tracing::warn!(key, "needs a restart, or USR2, to change");
            }
        } else {
            tracing::error!(
                trigger,
                generation,
                "reload {result}, the configuration before stays in force:\n{}",
                outcome.error
            );
        }
        self.bus.tell(What::Reload { result, generation, error: outcome.error.clone() });
        self.notifier.ready(&self.summary());
        outcome
    }

    async fn try_reload(&self, trigger: &str) -> Outcome {
        let blank = |result, generation| Outcome {
            result,
            generation,
            time: self.started,
            seconds: 0.0,
            trigger: trigger.to_owned(),
            error: String::new(),
            warnings: String::new(),
            changes: Vec::new(),
            needs_restart: Vec::new(),
        };
        match self.read_and_publish().await {
            Ok(done) => {
                let result = if done.published { Verdict::Applied } else { Verdict::Unchanged };
                let Done { warnings, changes, needs_restart, .. } = done;
                Outcome { warnings, changes, needs_restart, ..blank(result, self.snapshot().generation) }
            }
            Err(error) => {
                Outcome { error: error.to_string(), ..blank(error.verdict(), self.snapshot().generation) }
            }
        }
    }

    async fn read_and_publish(&self) -> Result<Done, ReloadError> {
        if matches!(self.source, Source::Text { .. }) {
            return Err(ReloadError::NoFile);
        }
        let checked = self.source.read().map_err(ReloadError::Read)?;
        let warnings = checked.warnings.to_string();
        let running = self.snapshot();
        let (config, needs_restart) = keep_until_restart(&checked.config, &running.config);
        // The log first: a path that can't be opened must refuse the reload before anything else has changed.
        self.access_log.reconfigure(&config.log).map_err(ReloadError::Log)?;
        let mut lines = Vec::new();
        let published = self.publisher.publish(|before| {
            if *before == *config && !self.is_tuned() {
                return Ok(None);
            }
            lines = changes(before, &config);
            Ok::<_, ReloadError>(Some(config.clone()))
        });
        match published.await {
            Ok(snapshot) => {
                if let Some(snapshot) = &snapshot {
                    (self.on_level)(snapshot.config.log.level);
                    self.follow(snapshot);
                }
                Ok(Done { published: snapshot.is_some(), warnings, changes: lines, needs_restart })
            }
            Err(error) => {
                if let Err(error) = self.access_log.reconfigure(&running.config.log) {
                    tracing::error!(%error, "the access log could not be put back to its target before");
                }
                Err(error)
            }
        }
    }

    /// Whether weights were changed at run time, so that even an unchanged file has something to put back.
    fn is_tuned(&self) -> bool {
        let snapshot = self.snapshot();
        let tuned = |pool: &Arc<Pool>| {
            let configured = pool.config.backends.iter().map(|backend| backend.weight);
            configured.zip(&pool.backends).any(|(weight, backend)| backend.balance.weight() != weight)
        };
        snapshot.pools.iter().any(tuned)
    }

    /// Lets name resolution and probes follow a snapshot.
    fn follow(&self, snapshot: &Snapshot) {
        self.names.adopt(snapshot);
        self.board.adopt(snapshot);
    }

    /// Changes what the operator says about a backend, its weight, or both. In force at once.
    pub fn tune(
        &self,
        pool: &str,
        backend: &str,
        state: Option<AdminState>,
        weight: Option<u32>,
    ) -> Result<Arc<Pool>, ChangeError> {
        let pool = self.snapshot().pool(pool).cloned().ok_or_else(|| ChangeError::NoPool(pool.to_owned()))?;
        let index = pool.backends.iter().position(|it| it.address == backend);
        let index = index.ok_or_else(|| ChangeError::NoBackend(backend.to_owned()))?;
        let now = clock::now();
        // The weight is checked before anything is set: a refused change changes nothing.
        if let Some(weight) = weight {
            pool.balance
                .set_weight(index, weight)
                .map_err(|error| ChangeError::Invalid(error.to_string()))?;
            self.tell_change(&pool.config.name, backend, format!("weight {weight}"));
        }
        if let Some(state) = state {
            pool.balance.set_admin_state(index, state, now);
            self.tell_change(&pool.config.name, backend, format!("state {}", state.word()));
        }
        pool.balance.refresh(now);
        Ok(pool)
    }

    /// Adds a backend until the next reload of the file.
    pub async fn add_backend(
        &self,
        pool: &str,
        backend: weir_config::Backend,
    ) -> Result<Arc<Snapshot>, ChangeError> {
        check_backend(&backend)?;
        let change = format!("added, weight {}", backend.weight);
        let address = backend.address.clone();
        let snapshot = self.edit(pool, |pool| {
            if pool.backends.iter().any(|it| it.address == backend.address) {
                return Err(ChangeError::Exists(backend.address));
            }
            if pool.backends.len() >= MOST_BACKENDS {
                return Err(ChangeError::Invalid(format!(
                    "the pool has {MOST_BACKENDS} backends, the most it can get at run time"
                )));
            }
            pool.backends.push(backend);
            Ok(())
        });
        let snapshot = snapshot.await?;
        self.tell_change(pool, &address, change);
        Ok(snapshot)
    }

    /// Removes a backend until the next reload of the file. What it is working on goes on.
    pub async fn remove_backend(&self, pool: &str, address: &str) -> Result<Arc<Snapshot>, ChangeError> {
        let snapshot = self.edit(pool, |pool| {
            if !pool.backends.iter().any(|it| it.address == address) {
                return Err(ChangeError::NoBackend(address.to_owned()));
            }
            if pool.backends.len() == 1 {
                return Err(ChangeError::Last(address.to_owned()));
            }
            pool.backends.retain(|it| it.address != address);
            Ok(())
        });
        let snapshot = snapshot.await?;
        self.tell_change(pool, address, "removed".to_owned());
        Ok(snapshot)
    }

    async fn edit(
        &self,
        name: &str,
        change: impl FnOnce(&mut weir_config::Pool) -> Result<(), ChangeError>,
    ) -> Result<Arc<Snapshot>, ChangeError> {
        let published = self.publisher.publish(|before| {
            let mut config = before.clone();
            let pool = config.pools.iter_mut().find(|pool| pool.name == name);
            change(pool.ok_or_else(|| ChangeError::NoPool(name.to_owned()))?)?;
            Ok::<_, ChangeError>(Some(Arc::new(config)))
        });
        let snapshot = published.await?.unwrap_or_else(|| self.snapshot());
        self.follow(&snapshot);
        Ok(snapshot)
    }

    fn tell_change(&self, pool: &str, backend: &str, change: String) {
        tracing::info!(pool, backend, "operator: {change}");
        self.bus.tell(What::Backend { pool: pool.to_owned(), backend: backend.to_owned(), change });
    }

    /// Stops accepting, waits for running work at most `runtime.drain`, and gives the number of sessions that were cut off.
    ///
    /// `succeeded` says that another process serves on: the service manager is not told that the service stops then, since it does not.
    pub async fn drain(&self, succeeded: bool) -> u64 {
        let limit = self.snapshot().config.runtime.drain;
        self.phase.store(Phase::Draining as u8, Ordering::Relaxed);
        let sessions = self.sessions();
        tracing::info!(sessions, ?limit, "draining");
        if !succeeded {
            self.notifier.stopping(&format!("draining {sessions} sessions, at most {limit:?}"));
        }
        self.bus.tell(What::Process { phase: "draining", detail: format!("{sessions} sessions") });
        self.publisher.close_sockets().await;
        self.publisher.plane().drain(limit).await
    }

    /// Ends the worker threads; what they still hold is cut off.
    pub fn stop(self) {
        self.publisher.stop();
    }

    /// Duplicates of every listening socket, for a new process.
    pub async fn listening_sockets(&self) -> std::io::Result<Vec<Passed>> {
        let sockets = self.publisher.listening_sockets().await?;
        Ok(sockets
            .into_iter()
            .map(|(endpoint, socket)| Passed { purpose: Purpose::Listener(endpoint), socket })
            .collect())
    }

    /// Opens the log file anew.
    pub fn reopen_logs(&self) {
        tracing::info!("reopening the access log");
        self.access_log.reopen();
    }

    /// One line for `systemctl status` and the log.
    pub fn summary(&self) -> String {
        let snapshot = self.snapshot();
        let last = lock(&self.ledger).last.clone();
        let reload = match last {
            Some(last) if !last.result.is_good() => format!(", last reload {}", last.result.word()),
            _ => String::new(),
        };
        let (listeners, pools) = (snapshot.listeners.len(), snapshot.pools.len());
        format!("generation {}, listeners {listeners}, pools {pools}{reload}", snapshot.generation)
    }

    /// Where the process is in its life.
    pub fn phase(&self) -> Phase {
        if self.phase.load(Ordering::Relaxed) == Phase::Serving as u8 {
            Phase::Serving
        } else {
            Phase::Draining
        }
    }

    /// When the process started.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// For how long the process has been serving.
    pub fn uptime(&self) -> Duration {
        clock::now().saturating_sub(self.started_at)
    }

    /// Worker threads.
    pub fn workers(&self) -> usize {
        self.publisher.plane().workers()
    }

    /// Sessions open now.
    pub fn sessions(&self) -> u64 {
        self.publisher.plane().sessions()
    }

    /// Panics caught so far.
    pub fn panics(&self) -> u64 {
        self.publisher.plane().panics()
    }

    /// Where the config came from.
    pub fn source_name(&self) -> String {
        self.source.name()
    }

    /// The last reload.
    pub fn last_reload(&self) -> Option<Outcome> {
        lock(&self.ledger).last.clone()
    }

    /// Reloads that ended so.
    pub fn reload_count(&self, verdict: Verdict) -> u64 {
        lock(&self.ledger).count(verdict)
    }

    /// Events.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The way to the service manager.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }
}

/// What a reload that went well did.
struct Done {
    published: bool,
    warnings: String,
    changes: Vec<String>,
    needs_restart: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the config's check asks of a backend, for one that does not come from a file.
fn check_backend(backend: &weir_config::Backend) -> Result<(), ChangeError> {
    let invalid = |message: String| Err(ChangeError::Invalid(message));
    let named = backend.address.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let host_is_good = !host.is_empty() && host.len() <= 253 && host.bytes().all(plain);
        host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let literal = backend.address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.port() > 0);
    if !named && !literal {
        return invalid(format!("address {:?} is not expected: write host:port", backend.address));
    }
    if backend.weight > MAX_WEIGHT {
        return invalid(format!("weight {} is too large, expected 0 to {MAX_WEIGHT}", backend.weight));
    }
    if backend.max_connections == Some(0) {
        return invalid("max_connections 0 would take nothing, expected at least 1".to_owned());
    }
    Ok(())
}

/// Does what time and the workers' reports ask for, until the process ends.
async fn keep_house(
    control: Arc<Control>,
    mut reports: mpsc::UnboundedReceiver<plane::Event>,
    resolved: Arc<Notify>,
) {
    loop {
        let now = clock::now();
        let snapshot = control.snapshot();
        let mut next = now + HOUSE_KEEPING;
        for pool in &snapshot.pools {
            if pool.balance.next_change(now).is_some_and(|at| at <= now) {
                refresh(pool, now);
            }
            next = pool.balance.next_change(now).map_or(next, |at| next.min(at));
        }
        tokio::select! {
            report = reports.recv() => match report {
                Some(report) => control.take_report(report),
                None => return,
            },
            () = resolved.notified() => control.board.adopt(&control.snapshot()),
            // Never at once: a moment that stays due would make this loop spin.
            () = tokio::time::sleep((next - now).max(Duration::from_millis(1))) => {}
        }
    }
}

fn refresh(pool: &Pool, now: Duration) {
    for index in pool.balance.refresh(now).readmitted {
        if let Some(backend) = pool.backends.get(index) {
            tracing::info!(pool = pool.config.name, backend = backend.address, "ejection is over");
        }
    }
}

impl Control {
    fn take_report(&self, report: plane::Event) {
        match report {
            plane::Event::Ejected { pool: name, backend: address, until } => {
                let now = clock::now();
                let seconds = until.saturating_sub(now).as_secs_f64();
                tracing::warn!(
                    pool = name,
                    backend = address,
                    seconds,
                    "backend ejected: traffic to it failed"
                );
                let snapshot = self.snapshot();
                if let Some(pool) = snapshot.pool(&name) {
                    pool.balance.refresh(now);
                    if let Some(backend) = pool.backends.iter().find(|it| it.address == address) {
                        self.board.hasten(pool, backend);
                    }
                }
                self.bus.tell(What::Ejected { pool: name, backend: address, seconds });
            }
            plane::Event::DescriptorsShort { shed } => {
                tracing::error!(
                    shed,
                    "file descriptors ran out; idle connections were shed (raise LimitNOFILE)"
                );
                self.bus.tell(What::DescriptorsShort { shed });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(address: &str) -> weir_config::Backend {
        weir_config::Backend { address: address.to_owned(), weight: 1, max_connections: None, backup: false }
    }

    #[test]
    fn only_an_address_with_host_and_port_can_be_added() {
        for good in ["127.0.0.1:80", "[::1]:8080", "app-1.internal:9000"] {
            assert!(check_backend(&backend(good)).is_ok(), "{good}");
        }
        for bad in
            ["", "127.0.0.1", "127.0.0.1:0", "::1:80x", "a b:80", "host\r\nx: y:80", ":80", "host:99999"]
        {
            assert!(check_backend(&backend(bad)).is_err(), "{bad}");
        }
        assert!(check_backend(&weir_config::Backend { weight: 257, ..backend("a:1") }).is_err());
        assert!(check_backend(&weir_config::Backend { max_connections: Some(0), ..backend("a:1") }).is_err());
    }
}
