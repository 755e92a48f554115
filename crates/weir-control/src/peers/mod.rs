//! Rate limits that several Weirs count together (`[peers]`).
//!
//! Each Weir connects to each other one, and tells it on this connection what its limits have counted, ten
//! times a second ([`rounds`]: who is there, and who is told what; [`tell`]: one connection to another Weir).
//! It listens to those that connect to it ([`hear`]). What is said is in [`wire`], and what follows from it
//! is decided by weir-screen (`sharing.rs`). All this has a separate thread, so that neither requests nor the
//! rest of the control side wait for it, and no request waits for another Weir. The thread starts with the
//! first config that has `[peers]`.

mod hear;
mod lag;
mod outbox;
mod rounds;
mod status;
mod tell;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, mem};

use tokio::sync::{Notify, watch};
use weir_io::clock;
use weir_proxy::compiled::{CompiledSnapshot, LimitId, SharedLimit};
use weir_state::Snapshot;
use weir_tls::PeerKeys;

pub use self::status::{HeardStatus, PeerStatus, PeersStatus};

use self::hear::Hearing;
use self::tell::Peer;
use self::wire::ProcessId;
use crate::{lock, tasks};

/// Longest wait for others to know what was counted when the process ends.
const SETTLE: Duration = Duration::from_secs(2);
/// Interval of looks whether they know.
const SETTLE_LOOK: Duration = Duration::from_millis(10);

/// Gives what is served now; `None` before the first config is.
pub(crate) type Served = Box<dyn Fn() -> Option<Arc<CompiledSnapshot>> + Send + Sync>;

/// Counts rate limits together with other Weirs.
pub struct Sharing {
    common: Arc<Common>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by the thread and its readers.
struct Common {
    /// What is served now, with its limits.
    compiled: Served,
    /// Distinguishes this process from all others.
    process: ProcessId,
    /// Wakes the thread: the config may be another one, or somebody is to be told more.
    changed: Notify,
    ends: AtomicBool,
    /// Whether another process has taken over.
    is_succeeded: AtomicBool,
    /// What the process before has handed over.
    inherited: Mutex<Option<(SocketAddr, OwnedFd)>>,
    listening: Mutex<Option<(SocketAddr, TcpListener)>>,
    /// Why it does not listen.
    cannot_listen: Mutex<Option<String>>,
    keys: Mutex<Option<Arc<PeerKeys>>>,
    limits: Mutex<Arc<HashMap<LimitId, SharedLimit>>>,
    /// Grows when the limits are other ones.
    limits_generation: watch::Sender<u64>,
    /// The Weirs that are told.
    peers: Mutex<Vec<Arc<Peer>>>,
    /// The Weirs that are listened to.
    hearings: Mutex<BTreeMap<ProcessId, Arc<Hearing>>>,
    /// Notified when another Weir has connected, so that one that has come back is told at once.
    has_come: Notify,
    heard: HeardCounts,
    /// Rounds in which everybody was told what was counted.
    rounds: AtomicU64,
}

/// What has been heard since the start of the process.
#[derive(Default)]
struct HeardCounts {
    /// Counts and debts of keys.
    entries: AtomicU64,
    bytes: AtomicU64,
    /// Frames about limits that this Weir does not have.
    unknown: AtomicU64,
    /// Connections that ended before the other side had proved to be a peer.
    strangers: AtomicU64,
    /// Connections that ended because of what was said.
    mistakes: AtomicU64,
}

impl Sharing {
    /// Shares nothing yet. `inherited` is the listening socket of the process before.
    pub(crate) fn new(compiled: Served, inherited: Option<(SocketAddr, OwnedFd)>) -> Sharing {
        let mut process = ProcessId::default();
        // Never fails where there is getrandom(2).
        if aws_lc_rs::rand::fill(&mut process).is_err() {
            process[..4].copy_from_slice(&std::process::id().to_be_bytes());
        }
        let common = Common {
            compiled,
            process,
            changed: Notify::new(),
            ends: AtomicBool::new(false),
            is_succeeded: AtomicBool::new(false),
            inherited: Mutex::new(inherited),
            listening: Mutex::default(),
            cannot_listen: Mutex::default(),
            keys: Mutex::default(),
            limits: Mutex::default(),
            limits_generation: watch::Sender::new(0),
            peers: Mutex::default(),
            hearings: Mutex::default(),
            has_come: Notify::new(),
            heard: HeardCounts::default(),
            rounds: AtomicU64::new(0),
        };
        Sharing { common: Arc::new(common), thread: Mutex::default() }
    }

    /// Shares the limits of the config that is in force now.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            if snapshot.config.peers.is_none() {
                // A socket of the process before that this one has no use for.
                drop(mem::take(&mut *lock(&self.common.inherited)));
                return;
            }
            match self.start() {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    tracing::error!(%error, "peers: no thread to count together on; the next reload tries again");
                }
            }
        }
        self.common.changed.notify_one();
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let common = self.common.clone();
        let keep = move || {
            let begin = move || rounds::keep(common.clone());
            runtime.block_on(tasks::keep_on("peers".to_owned(), begin));
        };
        std::thread::Builder::new().name("weir-peers".to_owned()).spawn(keep)
    }

    /// The socket for the next process, and where it listens; `None` if there is none.
    pub(crate) fn for_successor(&self) -> io::Result<Option<(SocketAddr, OwnedFd)>> {
        let listening = lock(&self.common.listening);
        let duplicate = |(bind, socket): &(SocketAddr, TcpListener)| Ok((*bind, socket.try_clone()?.into()));
        listening.as_ref().map(duplicate).transpose()
    }

    /// Another process serves: it is the one that others tell from now on, and it is told what this one still
    /// counts.
    pub(crate) fn leave(&self) {
        self.common.is_succeeded.store(true, Relaxed);
        self.common.changed.notify_one();
    }
}

impl Sharing {
    /// Waits until the others know what this process has counted, and the process that has taken over, if one
    /// has. Not for long: one that is silent keeps no process from ending.
    pub(crate) async fn settle(&self) {
        if lock(&self.thread).is_none() {
            return;
        }
        let before = self.common.rounds.load(Relaxed);
        let begun = clock::now();
        // Not the round that may be under way.
        while self.common.rounds.load(Relaxed) < before + 2 || !self.is_settled() {
            if clock::now().saturating_sub(begun) >= SETTLE {
                tracing::warn!("peers: not all of them know what was counted in the end");
                return;
            }
            self.common.changed.notify_one();
            tokio::time::sleep(SETTLE_LOOK).await;
        }
    }

    fn is_settled(&self) -> bool {
        let peers = lock(&self.common.peers).clone();
        let settled = |peer: &Arc<Peer>| peer.outbox.is_settled();
        // The successor is the last one, and must have been reached.
        let is_taught = match (self.common.is_succeeded.load(Relaxed), peers.last()) {
            (true, Some(successor)) => settled(successor) == Some(true),
            _ => true,
        };
        is_taught && peers.iter().all(|peer| settled(peer).unwrap_or(true))
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.common.ends.store(true, Relaxed);
        self.common.changed.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in there was a bug, and has already been logged.
            let _ = thread.join();
        }
    }
}
