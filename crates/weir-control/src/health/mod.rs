//! Active health checks: which backends are probed, the results, and who is notified.
//!
//! There is one prober per target (check and socket address) and pace, however many pools and backends use
//! it. Probers are kept across reloads: one whose check has not changed continues undisturbed. Adding or
//! removing a backend affects only its own prober.

mod agent;
pub mod probe;
mod probe_grpc;
mod probe_h2;
mod probe_http;
mod probe_mysql;
mod probe_tcp;
mod probe_vip;
pub mod schedule;
mod target;
mod tidings;
mod vips;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use weir_balance::{Health, HealthMachine, Transition};
use weir_io::clock;
use weir_proxy::events::Event;
use weir_state::{Backend, Origin, Pool, Snapshot};

use crate::dns::Member;
use crate::events::Bus;
use crate::kernel::VipProbes;
use crate::lock;
use crate::publish::InForce;
use crate::tasks;
use crate::timestamp::Timestamp;
use probe::{Answer, Failure, Question, Target};
use schedule::{Due, Ending, Pace, Schedule};
use tidings::Tidings;

pub use agent::AgentFindings;
pub use tidings::Fallen;

/// Number of results kept per target.
const HISTORY: usize = 10;

/// First probes are spread over the interval, but no longer than this, so that a verdict does not take long
/// after a start.
const LONGEST_SPREAD: Duration = Duration::from_millis(500);

/// All probers.
pub struct Board {
    table: Mutex<Table>,
    agents: agent::Agents,
    tidings: Arc<Tidings>,
    vip_probes: OnceLock<Arc<VipProbes>>,
}

#[derive(Default)]
struct Table {
    probers: HashMap<Arc<Key>, Prober>,
    /// The target for each backend, by [`id`].
    of_backends: HashMap<usize, Arc<Key>>,
}

/// A number that identifies a backend as long as it is in its pool.
fn id(backend: &Backend) -> usize {
    Arc::as_ptr(&backend.balance).addr()
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

/// Shared by a prober's task and its readers.
struct Shared {
    state: Mutex<ProbeState>,
    hasten: Notify,
    /// Where it is probed, shown after the answer; empty if at its own address.
    asked: String,
    /// Until then no probe is needed, in milliseconds of the clock; see [`Board::vouch`].
    vouched_until_ms: AtomicU64,
}

struct ProbeState {
    machine: HealthMachine,
    /// The backends that use it. Their pools are looked up when there is something to report, since each
    /// change of a pool's backends makes a new pool.
    subscribers: Vec<Member>,
    history: VecDeque<Probed>,
    good_count: u64,
    bad_count: u64,
    unsent_count: u64,
    /// Whether the last bad probe was accepted and only not answered in time.
    late: bool,
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

/// What probes have found out about one backend.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// `http`, `grpc`, `tcp`, `mysql` or `off`.
    pub check: String,
    /// Newest first.
    pub history: Vec<Probed>,
    /// Number of good probes so far.
    pub good_count: u64,
    /// Number of bad probes so far.
    pub bad_count: u64,
    /// Number of probes so far that could not be sent because a local resource had run out.
    #[serde(default)]
    pub unsent_count: u64,
}

impl Board {
    /// Without probers. `in_force` has the pools that a verdict concerns; the receiver gets the backends
    /// whose sessions should end. What probes find out as workers do goes to `reports`.
    pub fn new(
        bus: Arc<Bus>,
        in_force: InForce,
        reports: mpsc::UnboundedSender<Event>,
    ) -> (Board, mpsc::UnboundedReceiver<Fallen>) {
        let (tidings, fallen) = Tidings::new(bus, in_force, reports);
        let board = Board {
            table: Mutex::default(),
            agents: agent::Agents::default(),
            tidings: Arc::new(tidings),
            vip_probes: OnceLock::new(),
        };
        (board, fallen)
    }

    /// Probes backends at listeners' addresses from now on, where listeners forward in that way.
    pub fn ask_by(&self, vip_probes: Arc<VipProbes>) {
        let _ = self.vip_probes.set(vip_probes);
    }

    /// The target for a backend of a pool.
    fn key(&self, pool: &Pool, backend: &Backend) -> Option<Key> {
        let target = target::target(pool, backend, self.vip_probes.get())?;
        Some(Key { target, pace: Pace::of(&pool.config.health) })
    }

    /// Matches the probers to `snapshot`: starts missing ones, ends those that are no longer used, and sets
    /// the backends of all others. Must be called on the control runtime.
    #[allow(clippy::mutable_key_type, reason = "a key is compared by digest and name, which never change")]
    pub fn adopt(&self, snapshot: &Snapshot) {
        let now = clock::now();
        let mut wanted: HashMap<Key, (&Pool, Vec<Member>)> = HashMap::new();
        for pool in &snapshot.pools {
            for backend in &pool.backends {
                let subscriber = Member { pool: pool.config.name.clone(), backend: backend.clone() };
                self.settle_name(&subscriber);
                match self.key(pool, backend) {
                    Some(key) => wanted.entry(key).or_insert((pool, Vec::new())).1.push(subscriber),
                    None => self.settle_unprobed(&subscriber, now),
                }
            }
        }
        {
            let mut table = lock(&self.table);
            table.probers.retain(|key, _| wanted.contains_key(&**key));
            table.of_backends.clear();
            for (key, (pool, subscribers)) in wanted {
                self.subscribe(&mut table, key, pool, subscribers, true);
            }
        }
        self.agents.adopt(snapshot, &self.tidings);
        for pool in &snapshot.pools {
            pool.refresh(now);
        }
    }

    /// Probes a backend that was added to its pool; applies what is already known about its target. The
    /// caller must refresh the pool.
    pub fn add(&self, pool: &Pool, backend: &Arc<Backend>) {
        let subscriber = Member { pool: pool.config.name.clone(), backend: backend.clone() };
        self.settle_name(&subscriber);
        match self.key(pool, backend) {
            Some(key) => self.subscribe(&mut lock(&self.table), key, pool, vec![subscriber], false),
            None => self.settle_unprobed(&subscriber, clock::now()),
        }
        self.agents.add(pool, backend, &self.tidings);
    }

    /// Ends what is done for a backend that was removed from its pool.
    pub fn remove(&self, backend: &Backend) {
        self.agents.remove(backend);
        self.remove_prober(backend);
    }

    fn remove_prober(&self, backend: &Backend) {
        let mut table = lock(&self.table);
        let Some(key) = table.of_backends.remove(&id(backend)) else { return };
        let is_left = table.probers.get(&key).is_some_and(|prober| prober.shared.leave(backend));
        if !is_left {
            table.probers.remove(&key);
        }
    }

    /// The address of a backend has changed, so its target changes too.
    pub fn follow_address(&self, pool: &Pool, backend: &Arc<Backend>) {
        let probed = lock(&self.table).of_backends.get(&id(backend)).cloned();
        if probed.is_none() || probed.as_deref() != self.key(pool, backend).as_ref() {
            self.remove_prober(backend);
            self.add(pool, backend);
        }
        pool.refresh(clock::now());
    }

    /// Reports the results of a target to `subscribers`, the first of which is in `pool`, in addition to the
    /// existing ones or, with `alone`, instead of them.
    fn subscribe(&self, table: &mut Table, key: Key, pool: &Pool, subscribers: Vec<Member>, alone: bool) {
        let now = clock::now();
        let key = table.probers.get_key_value(&key).map_or_else(|| Arc::new(key), |(key, _)| key.clone());
        for subscriber in &subscribers {
            table.of_backends.insert(id(&subscriber.backend), key.clone());
        }
        match table.probers.get(&key) {
            Some(prober) => prober.shared.serve(subscribers, alone, now),
            None => {
                let prober = self.start(&key, pool, subscribers, now);
                table.probers.insert(key, prober);
            }
        }
    }

    /// The prober of a backend; `None` if it is not probed.
    fn prober_of(&self, backend: &Backend) -> Option<Arc<Shared>> {
        let table = lock(&self.table);
        table.probers.get(table.of_backends.get(&id(backend))?).map(|prober| prober.shared.clone())
    }

    /// Real traffic failed on this backend: probes it now instead of when it is due.
    pub fn hasten(&self, backend: &Backend) {
        if let Some(prober) = self.prober_of(backend) {
            prober.hasten.notify_one();
        }
    }

    /// The watch of its cluster has had an answer from a backend, which counts as a good probe `until` then:
    /// a server that lets the same account in and answers its query would also answer a login, and a login
    /// costs a server six times as much. So for a watched member the watch's answers replace probes, and only
    /// if those fail does a probe log in and find out why. `is_back` means that there was no answer before: a
    /// probe is due now.
    pub fn vouch(&self, backend: &Backend, until: Duration, is_back: bool) {
        let probed = {
            let table = lock(&self.table);
            let Some(key) = table.of_backends.get(&id(backend)) else { return };
            let is_same = backend.resolved.at().as_ref() == Some(&key.target.at);
            let is_login = matches!(key.target.question, Question::Login { .. });
            table.probers.get(key).filter(|_| is_same && is_login).map(|prober| prober.shared.clone())
        };
        let Some(prober) = probed else { return };
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        prober.vouched_until_ms.store(until_ms, Ordering::Relaxed);
        if is_back {
            prober.hasten.notify_one();
        }
    }

    /// What probes have found out about a backend.
    pub fn findings(&self, pool: &Pool, backend: &Backend) -> Findings {
        let check = pool.config.health.check.word().to_owned();
        let mut findings = Findings { check, ..Findings::default() };
        if let Some(prober) = self.prober_of(backend) {
            let state = lock(&prober.state);
            findings.history = state.history.iter().rev().cloned().collect();
            findings.good_count = state.good_count;
            findings.bad_count = state.bad_count;
            findings.unsent_count = state.unsent_count;
        }
        findings
    }

    /// What is known about a backend's agent; `None` if it has none.
    pub fn agent_findings(&self, backend: &Backend) -> Option<AgentFindings> {
        self.agents.findings(backend)
    }

    /// Makes sure that no backend whose name has no address counts as up.
    pub fn settle_names(&self, snapshot: &Snapshot) {
        for pool in &snapshot.pools {
            for backend in &pool.backends {
                self.settle_name_of(pool, backend);
            }
            pool.refresh(clock::now());
        }
    }

    /// As [`Self::settle_names`], for one backend; the caller must refresh its pool.
    pub fn settle_name_of(&self, pool: &Pool, backend: &Arc<Backend>) {
        self.settle_name(&Member { pool: pool.config.name.clone(), backend: backend.clone() });
    }

    /// As long as its name has no address a backend is down, since nothing could connect to it. From the
    /// first address on it is assumed to be up until a probe says otherwise, like a backend that is given by
    /// address.
    fn settle_name(&self, subscriber: &Member) {
        let backend = &subscriber.backend;
        // A backend discovered through a name has its address, and is not assumed to be up because of that.
        let resolved = backend.resolved.is_known();
        if matches!(backend.origin, Origin::Name(_)) || backend.balance.is_assumed_up() == resolved {
            return;
        }
        if !resolved {
            // What probes found out concerned an address that it no longer has.
            backend.balance.set_health(Health::Unknown, clock::now());
        }
        backend.balance.assume_up(resolved);
        if resolved {
            self.tidings.tell(subscriber, Health::Up, "its name is resolved");
        } else {
            self.tidings.tell(subscriber, Health::Down, "its name has not been resolved (dns)");
        }
    }

    /// A backend that is not probed is up once its name has an address.
    fn settle_unprobed(&self, subscriber: &Member, now: Duration) {
        let backend = &subscriber.backend;
        if !backend.resolved.is_known() || backend.balance.health() == Health::Up {
            return;
        }
        let before = backend.balance.health();
        backend.balance.set_health(Health::Up, now);
        if before == Health::Down {
            self.tidings.tell(subscriber, Health::Up, "it is no longer probed");
        }
    }

    fn start(&self, key: &Arc<Key>, pool: &Pool, subscribers: Vec<Member>, now: Duration) -> Prober {
        let health = &pool.config.health;
        let offset = subscribers.first().map_or(Duration::ZERO, |first| {
            weir_balance::start_offset(first.backend.balance.id(), key.pace.interval().min(LONGEST_SPREAD))
        });
        let shared = Arc::new(Shared {
            state: Mutex::new(ProbeState {
                machine: HealthMachine::new(health.rise, health.fall),
                subscribers,
                history: VecDeque::with_capacity(HISTORY),
                good_count: 0,
                bad_count: 0,
                unsent_count: 0,
                late: false,
            }),
            hasten: Notify::new(),
            asked: key.target.asked(),
            vouched_until_ms: AtomicU64::new(0),
        });
        let begin = {
            let (key, shared, tidings) = (key.clone(), shared.clone(), self.tidings.clone());
            move || run(key.clone(), now + offset, shared.clone(), tidings.clone())
        };
        let task = format!("probes of {}", key.target.at);
        Prober { shared, task: tokio::spawn(tasks::keep_on(task, begin)) }
    }
}

/// The task of a prober, whose first probe starts at `first`.
async fn run(key: Arc<Key>, first: Duration, shared: Arc<Shared>, tidings: Arc<Tidings>) {
    let mut schedule = Schedule::new(key.pace, first);
    let mut probes = JoinSet::new();
    loop {
        let now = clock::now();
        match schedule.step(now) {
            Due::Start { number, .. } if shared.is_vouched_for(now) => {
                if schedule.finished(number, Ending::Good) {
                    shared.take(Ok(Answer::Watched), Duration::ZERO, &tidings);
                }
            }
            Due::Start { number, limit } => {
                let key = key.clone();
                probes.spawn(async move {
                    let began = clock::now();
                    let mut other = None;
                    let result = probe_vip::probe(&key.target, limit, &mut other).await;
                    (number, (result, other), clock::now().saturating_sub(began))
                });
            }
            Due::Wait(until) => tokio::select! {
                Some(ended) = probes.join_next() => {
                    // A probe that panics has no result, for which the schedule would wait for ever.
                    let (number, (result, other), took) =
                        ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
                    if let Some(other) = other {
                        shared.tell_other(other, &tidings);
                    }
                    let ending = match &result {
                        Ok(_) => Ending::Good,
                        Err(failure) if failure.is_late() => Ending::Late,
                        Err(failure) if failure.is_unsent(&key.target) => {
                            lock(&shared.state).unsent_count += 1;
                            tidings.unsent(failure, clock::now());
                            Ending::Unsent
                        }
                        Err(_) => Ending::Bad,
                    };
                    if schedule.finished(number, ending) {
                        shared.take(result, took, &tidings);
                    }
                },
                () = tokio::time::sleep(until.saturating_sub(now)) => {}
                () = shared.hasten.notified() => schedule.hasten(),
            },
        }
    }
}

impl Shared {
    fn is_vouched_for(&self, now: Duration) -> bool {
        u128::from(self.vouched_until_ms.load(Ordering::Relaxed)) > now.as_millis()
    }

    /// Adds these subscribers, or replaces all by these if `alone`; new ones get what is already known. The
    /// caller must refresh their pools.
    fn serve(&self, subscribers: Vec<Member>, alone: bool, now: Duration) {
        let mut state = lock(&self.state);
        let known = state.machine.state();
        for subscriber in &subscribers {
            subscriber.backend.balance.set_late(state.late);
            if known != Health::Unknown && subscriber.backend.balance.health() != known {
                subscriber.backend.balance.set_health(known, now);
            }
        }
        if alone {
            state.subscribers.clear();
        }
        state.subscribers.extend(subscribers);
    }

    /// Removes this backend; returns whether there are other subscribers.
    fn leave(&self, backend: &Backend) -> bool {
        let subscribers = &mut lock(&self.state).subscribers;
        subscribers.retain(|subscriber| id(&subscriber.backend) != id(backend));
        !subscribers.is_empty()
    }

    /// Reports that another address of a name than the current one accepted.
    fn tell_other(&self, accepted: SocketAddr, tidings: &Tidings) {
        for subscriber in &lock(&self.state).subscribers {
            if let Some(first) = subscriber.backend.resolved.address() {
                let address = SocketAddr::new(accepted.ip(), first.port());
                tidings.other_address(&subscriber.backend.address, first, address);
            }
        }
    }

    /// Handles the result of one probe, and notifies the subscribers if it changes the verdict.
    fn take(&self, result: Result<Answer, Failure>, took: Duration, tidings: &Tidings) {
        let good = result.is_ok();
        let late = result.as_ref().is_err_and(Failure::is_unanswered);
        let mut state = lock(&self.state);
        let mut detail = match result {
            Ok(Answer::Status(status)) => format!("answered {status}"),
            Ok(Answer::Accepted) => "accepted".to_owned(),
            Ok(Answer::Told(1)) => "answered as expected".to_owned(),
            Ok(Answer::Told(steps)) => format!("answered as expected in {steps} steps"),
            Ok(Answer::Serving) => "answered SERVING".to_owned(),
            Ok(Answer::Watched) => "answers the watch of its cluster".to_owned(),
            Ok(Answer::Greeted(facts)) => {
                for subscriber in &state.subscribers {
                    subscriber.backend.learn(facts.clone());
                }
                "answered a login".to_owned()
            }
            Err(failure) => failure.to_string(),
        };
        if good {
            detail += &self.asked;
        }
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
            // It is now down for another reason, which may affect whether it is used as a last resort.
            state.late = late;
            for subscriber in &state.subscribers {
                subscriber.backend.balance.set_late(late);
                tidings.refresh(subscriber, now);
            }
        }
        let Some(Transition { from, to }) = state.machine.observe(good) else { return };
        for subscriber in &state.subscribers {
            let before = subscriber.backend.balance.health();
            subscriber.backend.balance.set_health(to, now);
            match to == Health::Down && before != Health::Down {
                true => tidings.fell(subscriber, now),
                false => drop(tidings.refresh(subscriber, now)),
            }
            // The first good answer of a backend that was assumed to be up is not reported.
            if before != to && !(from == Health::Unknown && to == Health::Up && before != Health::Down) {
                tidings.tell(subscriber, to, &detail);
            }
        }
    }
}
