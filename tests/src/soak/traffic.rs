//! Arrivals at a fixed rate, whatever becomes of them, and what clients have seen.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::clients::Clients;
use super::sql_clients::SqlWork;
use super::sql_judge::SqlTold;
use super::sql_ledger::SqlLedger;
use crate::dialogue::{Authority, Draws};
use crate::{mysql, versions};

/// Longest run.
const LONGEST: Duration = Duration::from_secs(48 * 3600);
/// Most clients at once; beyond it arrivals are counted as left out.
const MOST_AT_ONCE: u64 = 2000;
/// How often it is checked whether the clients run, and the shortest time without that counts as a stall.
const TICK: Duration = Duration::from_millis(100);
const SHORTEST_STALL: Duration = Duration::from_secs(1);
/// Spreads the numbers of clients over all bits (2^64 divided by the golden ratio): seeds that differ in
/// their upper bits alone have nearly the same first draw.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Failures that are kept to be judged; the others are only counted.
const MOST_FAILURES: usize = 20_000;

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// HTTP/1.1 on connections that are kept.
    Kept,
    /// HTTP/1.1 on a connection of its own.
    Fresh,
    /// HTTP/2 on a connection that many share.
    Http2,
    /// HTTP/3, likewise.
    Http3,
    /// HTTP/1.1 over TLS on a connection of its own, with a ticket from an earlier one.
    Resumed,
    /// An upload over HTTP/2 or HTTP/3 to a backend that speaks HTTP/2 or HTTP/3.
    Modern,
    /// A WebSocket.
    WebSocket,
    /// Server-sent events.
    Events,
    /// An upload in pieces, with pauses.
    SlowUpload,
    /// A client that reads slowly.
    SlowReader,
    /// A client that leaves in the middle.
    Leaver,
    /// A TCP relay.
    Relay,
    /// A few datagrams.
    Datagrams,
    /// What the cache may answer.
    Cached,
    /// A listener with a rate limit.
    Limited,
    /// A pool whose backends come from a name server.
    Named,
    /// A listener that comes and goes.
    Extra,
    /// A client of MySQL.
    Sql(SqlWork),
}

impl Kind {
    /// All, each with its name and its share of the arrivals.
    pub(super) const ALL: [(Kind, &str, u64); 26] = [
        (Kind::Kept, "HTTP/1.1, kept", 220),
        (Kind::Fresh, "HTTP/1.1, new", 100),
        (Kind::Http2, "HTTP/2", 140),
        (Kind::Http3, "HTTP/3", 100),
        (Kind::Resumed, "TLS, resumed", 50),
        (Kind::Modern, "to HTTP/2 and 3", 40),
        (Kind::WebSocket, "WebSocket", 15),
        (Kind::Events, "events", 15),
        (Kind::SlowUpload, "slow upload", 25),
        (Kind::SlowReader, "slow reader", 10),
        (Kind::Leaver, "leaver", 80),
        (Kind::Relay, "TCP", 60),
        (Kind::Datagrams, "UDP", 30),
        (Kind::Cached, "cached", 100),
        (Kind::Limited, "rate limit", 60),
        (Kind::Named, "by name", 40),
        (Kind::Extra, "comes and goes", 20),
        (Kind::Sql(SqlWork::Writes), "MySQL, own writes", 40),
        (Kind::Sql(SqlWork::Transactions), "MySQL, transactions", 40),
        (Kind::Sql(SqlWork::Reads), "MySQL, reads", 30),
        (Kind::Sql(SqlWork::Prepared), "MySQL, prepared", 30),
        (Kind::Sql(SqlWork::State), "MySQL, pinned", 15),
        (Kind::Sql(SqlWork::Leaves), "MySQL, leaver", 25),
        (Kind::Sql(SqlWork::SlowReader), "MySQL, slow reader", 8),
        (Kind::Sql(SqlWork::Killed), "MySQL, killed", 8),
        (Kind::Sql(SqlWork::Extra), "MySQL, comes and goes", 8),
    ];

    fn draw(draws: &mut Draws) -> Kind {
        let all: u64 = Kind::ALL.iter().map(|(.., share)| share).sum();
        let mut at = draws.below(all);
        for (kind, _, share) in Kind::ALL {
            if at < share {
                return kind;
            }
            at -= share;
        }
        Kind::Kept
    }

    fn place(self) -> usize {
        Kind::ALL.iter().position(|(kind, ..)| *kind == self).unwrap_or(0)
    }
}

/// What a client of a live pool was not to see.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    /// What its line in the access log has: the path, or the address of the client.
    pub(super) key: String,
    pub(super) what: String,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// Of a client of MySQL: how its statement failed.
    pub(super) told: Option<SqlTold>,
}

impl Failure {
    fn of(kind: Kind, key: String, what: String, begun: Instant) -> Failure {
        Failure { kind, key, what, begun, ended: Instant::now(), told: None }
    }
}

/// What came of one client's work.
#[derive(Debug)]
pub(super) enum Outcome {
    /// As it should.
    Good,
    /// Key and reason of a [`Failure`].
    Failed(String, String),
    /// The same of a statement.
    SqlFailed { key: String, what: String, told: SqlTold },
    /// A wrong answer, such as another client's: no fault of a backend explains it.
    Wrong(String),
}

/// Clients of one kind.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) begun: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// Where clients connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Targets {
    pub(super) web: SocketAddr,
    pub(super) secure: SocketAddr,
    pub(super) limited: SocketAddr,
    pub(super) relay: SocketAddr,
    pub(super) flow: SocketAddr,
    pub(super) extra: SocketAddr,
    pub(super) db: SocketAddr,
    pub(super) writes: SocketAddr,
    pub(super) copies: SocketAddr,
}

/// What clients, the chaos and the report share.
pub(super) struct Shared {
    pub(super) targets: Targets,
    pub(super) authority: Arc<Authority>,
    /// TLS of clients of MySQL.
    pub(super) sql_tls: Arc<rustls::ClientConfig>,
    pub(super) sql_ledger: Mutex<SqlLedger>,
    seed: u64,
    stopped: AtomicBool,
    /// Of each kind, as in [`Kind::ALL`].
    pub(super) counts: [Count; Kind::ALL.len()],
    /// Clients now.
    pub(super) now: AtomicU64,
    /// Arrivals for which there was no room.
    pub(super) left_out: AtomicU64,
    /// Requests sent again as any client does, because they were refused.
    pub(super) repeated: AtomicU64,
    /// TLS handshakes of [`Kind::Resumed`] with a ticket that was taken, and all.
    pub(super) resumed: AtomicU64,
    pub(super) handshakes: AtomicU64,
    /// Requests that the rate limit let pass.
    pub(super) passed: AtomicU64,
    /// Least version that an answer of the cache may have.
    pub(super) purged: AtomicU64,
    /// POSTs answered 200, by number.
    pub(super) answered: Mutex<Vec<usize>>,
    failures: Mutex<Vec<Failure>>,
    wrong: Mutex<Vec<String>>,
    /// Times in which the machine was too busy to run all that was ready.
    stalls: Mutex<Vec<Stall>>,
    /// Processes other than this one that clients need.
    processes: Mutex<Vec<u32>>,
}

/// A time in which the machine was too busy.
pub(super) type Stall = (Instant, Instant);

impl Shared {
    pub(super) fn new(targets: Targets, authority: Arc<Authority>, seed: u64) -> Shared {
        Shared {
            targets,
            sql_tls: mysql::trusting(authority.path("ca.pem").as_ref()),
            sql_ledger: Mutex::default(),
            authority,
            seed,
            stopped: AtomicBool::new(false),
            counts: std::array::from_fn(|_| Count::default()),
            now: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            handshakes: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            answered: Mutex::default(),
            failures: Mutex::default(),
            wrong: Mutex::default(),
            stalls: Mutex::default(),
            processes: Mutex::default(),
        }
    }

    fn ends(&self, kind: Kind, begun: Instant, outcome: Outcome) {
        match outcome {
            Outcome::Good => return,
            Outcome::Failed(key, what) => self.keeps(Failure::of(kind, key, what, begun)),
            Outcome::SqlFailed { key, what, told } => {
                self.keeps(Failure { told: Some(told), ..Failure::of(kind, key, what, begun) });
            }
            Outcome::Wrong(what) => {
                self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{kind:?}: {what}"));
            }
        }
        self.counts[kind.place()].failed.fetch_add(1, Ordering::Relaxed);
    }

    fn keeps(&self, failure: Failure) {
        let failures = &mut self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < MOST_FAILURES {
            failures.push(failure);
        }
    }

    /// Clients that began so far.
    pub(super) fn begun(&self) -> u64 {
        self.counts.iter().map(|count| count.begun.load(Ordering::Relaxed)).sum()
    }

    /// Clients that failed so far, explained or not.
    pub(super) fn failed(&self) -> u64 {
        self.counts.iter().map(|count| count.failed.load(Ordering::Relaxed)).sum()
    }

    /// Sends no more.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Processes other than this one that clients need.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says which these are.
    pub(super) fn needs(&self, processes: Vec<u32>) {
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }

    /// Notes a time in which the machine was too busy.
    pub(super) fn is_stalled(&self, from: Instant, until: Instant) {
        let stalls = &mut self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        match stalls.last_mut().filter(|last| last.1 >= from) {
            Some(last) => *last = (last.0.min(from), last.1.max(until)),
            None => stalls.push((from, until)),
        }
    }

    /// Times in which the machine was too busy.
    pub(super) fn stalls(&self) -> Vec<Stall> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All failures so far, and all wrong answers.
    pub(super) fn take_failures(&self) -> (Vec<Failure>, Vec<String>) {
        let take = std::mem::take::<Vec<Failure>>;
        let failures = take(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        let wrong = std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner));
        (failures, wrong)
    }
}

/// Starts the clients, `rate` a second; the thread ends after [`Shared::stop`], when all have left.
pub(super) fn start(shared: &Arc<Shared>, rate: u64) -> JoinHandle<()> {
    let shared = shared.clone();
    let clients = std::thread::Builder::new().name("soak-clients".to_owned());
    let runs = move || {
        let local = tokio::task::LocalSet::new();
        versions::run(LONGEST, local.run_until(arrivals(shared, rate)));
    };
    clients.spawn(runs).expect("a thread")
}

/// Notes when the thread of the clients did not run. Timers of Weir may run out then, and rightly so.
async fn notes_stalls(shared: Arc<Shared>) {
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(TICK).await;
        let now = Instant::now();
        if now - last > SHORTEST_STALL {
            shared.is_stalled(last, now);
        }
        last = now;
    }
}

async fn arrivals(shared: Arc<Shared>, rate: u64) {
    tokio::task::spawn_local(notes_stalls(shared.clone()));
    let clients = Rc::new(Clients::new(shared.clone()));
    let running = Rc::new(Cell::new(0_u64));
    let begun = tokio::time::Instant::now();
    let mut draws = Draws::seeded(shared.seed);
    let mut number = 0_u64;
    while !shared.stopped.load(Ordering::SeqCst) {
        number += 1;
        // A fixed moment for each, so that slow answers do not make the load lighter.
        tokio::time::sleep_until(begun + Duration::from_micros(number * 1_000_000 / rate.max(1))).await;
        let kind = Kind::draw(&mut draws);
        if running.get() >= MOST_AT_ONCE {
            shared.left_out.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        running.set(running.get() + 1);
        shared.now.store(running.get(), Ordering::Relaxed);
        shared.counts[kind.place()].begun.fetch_add(1, Ordering::Relaxed);
        let draws = Draws::seeded(shared.seed ^ number.wrapping_mul(SPREAD));
        let (clients, shared, running) = (clients.clone(), shared.clone(), running.clone());
        tokio::task::spawn_local(async move {
            let begun = Instant::now();
            let outcome = clients.works(kind, number, draws).await;
            shared.ends(kind, begun, outcome);
            running.set(running.get() - 1);
            shared.now.store(running.get(), Ordering::Relaxed);
        });
    }
    while running.get() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
