//! Active health: who is probed, what came of it, and who is told.
//!
//! One prober per target (check and socket address) and pace, however many pools and backends use it. Probers are kept across
//! reloads: one whose check did not change goes on as if nothing had happened.

pub mod probe;
mod probe_h2;
pub mod schedule;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use weir_balance::{Health, HealthMachine, Transition};
use weir_config::{Check, HttpVersion};
use weir_io::clock;
use weir_proxy::snapshot::{Backend, Pool, Snapshot};

use crate::events::{Bus, What};
use crate::timestamp::Timestamp;
use probe::{Failure, Question, Target};
use schedule::{Ending, Pace, Schedule, Step};

/// Results kept per target.
const HISTORY: usize = 10;

/// First probes are spread over the interval, but no longer than this: nobody wants to wait for a verdict after a start.
const LONGEST_SPREAD: Duration = Duration::from_millis(500);

/// All probers.
pub struct Board {
    probers: Mutex<HashMap<Key, Prober>>,
    bus: Arc<Bus>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    target: Target,
    pace: Pace,
}

struct Prober {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a prober's task and its readers share.
struct Shared {
    state: Mutex<State>,
    hasten: Notify,
}

struct State {
    machine: HealthMachine,
    subscribers: Vec<Subscriber>,
    history: VecDeque<Probed>,
    good_count: u64,
    bad_count: u64,
    /// Whether the last bad probe was accepted and merely not answered in time.
    late: bool,
}

#[derive(Clone)]
struct Subscriber {
    pool: Arc<Pool>,
    backend: Arc<Backend>,
}

/// The result of one probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probed {
    /// When it ended.
    pub time: Timestamp,
    /// Whether it was good.
    pub good: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The status, or what went wrong.
    pub detail: String,
}

/// What is known about one backend from probes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// `http`, `tcp` or `off`.
    pub check: String,
    /// Newest first.
    pub history: Vec<Probed>,
    /// Good probes so far.
    pub good_count: u64,
    /// Bad probes so far.
    pub bad_count: u64,
}

impl Board {
    /// No probers yet.
    pub fn new(bus: Arc<Bus>) -> Board {
        Board { probers: Mutex::default(), bus }
    }

    /// Makes the probers be what `snapshot` asks for: starts those that are missing, ends those nobody needs, tells all others
    /// whom they work for now. Must be called on the control runtime.
    #[allow(clippy::mutable_key_type, reason = "a key is compared by digest and name, which never change")]
    pub fn adopt(&self, snapshot: &Snapshot) {
        let now = clock::now();
        let mut wanted: HashMap<Key, Vec<Subscriber>> = HashMap::new();
        for pool in &snapshot.pools {
            for backend in &pool.backends {
                let subscriber = Subscriber { pool: pool.clone(), backend: backend.clone() };
                self.settle_name(&subscriber);
                match key(pool, backend) {
                    Some(key) => wanted.entry(key).or_default().push(subscriber),
                    None => self.settle_unprobed(&subscriber, now),
                }
            }
            pool.refresh(now);
        }
        let mut probers = self.lock();
        probers.retain(|key, _| wanted.contains_key(key));
        for (key, subscribers) in wanted {
            match probers.get(&key) {
                Some(prober) => prober.shared.serve(subscribers, now),
                None => {
                    let prober = start(key.clone(), subscribers, now, self.bus.clone());
                    probers.insert(key, prober);
                }
            }
        }
    }

    /// Real traffic failed on this backend: asks now rather than at the next turn.
    pub fn hasten(&self, pool: &Pool, backend: &Backend) {
        if let Some(prober) =
            key(pool, backend).and_then(|key| self.lock().get(&key).map(|prober| prober.shared.clone()))
        {
            prober.hasten.notify_one();
        }
    }

    /// What probes found out about a backend.
    pub fn findings(&self, pool: &Pool, backend: &Backend) -> Findings {
        let check = match pool.config.health.check {
            Check::Http { .. } => "http",
            Check::Tcp => "tcp",
            Check::Off => "off",
        };
        let mut findings = Findings { check: check.to_owned(), ..Findings::default() };
        if let Some(prober) =
            key(pool, backend).and_then(|key| self.lock().get(&key).map(|prober| prober.shared.clone()))
        {
            let state = prober.lock();
            findings.history = state.history.iter().rev().cloned().collect();
            findings.good_count = state.good_count;
            findings.bad_count = state.bad_count;
        }
        findings
    }

    /// Sees to it that no worker is given a backend as up whose name stands for no address.
    pub fn settle_names(&self, snapshot: &Snapshot) {
        for pool in &snapshot.pools {
            for backend in &pool.backends {
                self.settle_name(&Subscriber { pool: pool.clone(), backend: backend.clone() });
            }
            pool.refresh(clock::now());
        }
    }

    /// While its name stands for no address nothing could connect to a backend, so it is down; from the first address on it is taken
    /// to be up until a probe says otherwise, as a backend is that is given by address.
    fn settle_name(&self, subscriber: &Subscriber) {
        let backend = &subscriber.backend;
        let resolved = backend.resolved.address().is_some();
        if backend.balance.is_assumed_up() == resolved {
            return;
        }
        backend.balance.assume_up(resolved);
        if resolved {
            tell(&self.bus, subscriber, Health::Up, "its name is resolved");
        } else {
            tell(&self.bus, subscriber, Health::Down, "its name has not been resolved (dns)");
        }
    }

    /// A backend that is not probed is up, once its name stands for an address.
    fn settle_unprobed(&self, subscriber: &Subscriber, now: Duration) {
        let backend = &subscriber.backend;
        if backend.resolved.address().is_none() || backend.balance.health() == Health::Up {
            return;
        }
        let before = backend.balance.health();
        backend.balance.set_health(Health::Up, now);
        if before == Health::Down {
            tell(&self.bus, subscriber, Health::Up, "it is no longer probed");
        }
    }

    #[allow(clippy::mutable_key_type, reason = "a key is compared by digest and name, which never change")]
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Prober>> {
        self.probers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to probe for a backend of a pool; `None` when nothing is probed: the check is off, or the name not resolved.
fn key(pool: &Pool, backend: &Backend) -> Option<Key> {
    let health = &pool.config.health;
    let question = match &health.check {
        Check::Off => return None,
        Check::Tcp => Question::Connect,
        Check::Http { path, host, expect_status } => Question::Get {
            path: path.clone(),
            host: host.clone().unwrap_or_else(|| backend.address.clone()),
            expect_status: expect_status.clone(),
            over_h2: pool.config.protocol == HttpVersion::H2,
        },
    };
    let send_proxy = pool.config.send_proxy.map(Into::into);
    let tls = backend.tls.clone().map(probe::Secured);
    let target = Target { address: backend.resolved.address()?, tls, send_proxy, question };
    Some(Key { target, pace: Pace::of(health) })
}

fn start(key: Key, subscribers: Vec<Subscriber>, now: Duration, bus: Arc<Bus>) -> Prober {
    let health = &subscribers[0].pool.config.health;
    let offset = weir_balance::start_offset(
        subscribers[0].backend.balance.id(),
        key.pace.interval().min(LONGEST_SPREAD),
    );
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            machine: HealthMachine::new(health.rise, health.fall),
            subscribers,
            history: VecDeque::with_capacity(HISTORY),
            good_count: 0,
            bad_count: 0,
            late: false,
        }),
        hasten: Notify::new(),
    });
    let schedule = Schedule::new(key.pace, now + offset);
    let task = tokio::spawn(run(Arc::new(key.target), schedule, shared.clone(), bus));
    Prober { shared, task }
}

/// A prober's life.
async fn run(target: Arc<Target>, mut schedule: Schedule, shared: Arc<Shared>, bus: Arc<Bus>) {
    let mut probes = JoinSet::new();
    loop {
        let now = clock::now();
        match schedule.step(now) {
            Step::Start { number, limit } => {
                let target = target.clone();
                probes.spawn(async move {
                    let began = clock::now();
                    let result = probe::probe(&target, limit).await;
                    (number, result, clock::now().saturating_sub(began))
                });
            }
            Step::Wait(until) => tokio::select! {
                Some(ended) = probes.join_next() => if let Ok((number, result, took)) = ended {
                    let ending = match &result {
                        Ok(_) => Ending::Good,
                        Err(Failure::TimedOut { .. }) => Ending::Late,
                        Err(_) => Ending::Bad,
                    };
                    if schedule.finished(number, ending) {
                        shared.take(result, took, &bus);
                    }
                },
                () = tokio::time::sleep(until.saturating_sub(now)) => {}
                () = shared.hasten.notified() => schedule.hasten(),
            },
        }
    }
}

impl Shared {
    /// Works for these from now on; who is new learns what is known already.
    fn serve(&self, subscribers: Vec<Subscriber>, now: Duration) {
        let mut state = self.lock();
        let known = state.machine.state();
        for subscriber in &subscribers {
            subscriber.backend.balance.set_late(state.late);
            if known != Health::Unknown && subscriber.backend.balance.health() != known {
                subscriber.backend.balance.set_health(known, now);
                subscriber.pool.refresh(now);
            }
        }
        state.subscribers = subscribers;
    }

    /// Takes the result of one probe and tells everybody concerned when it changes the verdict.
    fn take(&self, result: Result<Option<u16>, Failure>, took: Duration, bus: &Bus) {
        let good = result.is_ok();
        let late = matches!(result, Err(Failure::TimedOut { connected: true, .. }));
        let detail = match result {
            Ok(Some(status)) => format!("answered {status}"),
            Ok(None) => "accepted".to_owned(),
            Err(failure) => failure.to_string(),
        };
        let mut state = self.lock();
        *(if good { &mut state.good_count } else { &mut state.bad_count }) += 1;
        if state.history.len() == HISTORY {
            state.history.pop_front();
        }
        state.history.push_back(Probed {
            time: Timestamp::now(),
            good,
            seconds: took.as_secs_f64(),
            detail: detail.clone(),
        });
        let now = clock::now();
        if !good && state.late != late {
            // It is down for another reason now, which may decide whether it is tried all the same.
            state.late = late;
            for subscriber in &state.subscribers {
                subscriber.backend.balance.set_late(late);
                subscriber.pool.refresh(now);
            }
        }
        let Some(Transition { from, to }) = state.machine.observe(good) else { return };
        for subscriber in &state.subscribers {
            let before = subscriber.backend.balance.health();
            subscriber.backend.balance.set_health(to, now);
            subscriber.pool.refresh(now);
            // The first good answer of a backend that was taken to be up is no news.
            if before != to && !(from == Health::Unknown && to == Health::Up && before != Health::Down) {
                tell(bus, subscriber, to, &detail);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(bus: &Bus, subscriber: &Subscriber, health: Health, reason: &str) {
    let (pool, backend) = (subscriber.pool.config.name.clone(), subscriber.backend.address.clone());
    let state = if health == Health::Up { "up" } else { "down" };
    if health == Health::Up {
        tracing::info!(pool, backend, reason, "backend is up");
    } else {
        tracing::warn!(pool, backend, reason, "backend is down");
    }
    bus.tell(What::Health { pool, backend, state, reason: reason.to_owned() });
}
