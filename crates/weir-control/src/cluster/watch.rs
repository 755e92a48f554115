//! The watch of all pools whose servers' roles are discovered. It has a separate thread, because the control
//! runtime reads files, resolves names and answers scrapes, and the loss of a primary can't wait for those.
//!
//! The thread starts with the first such pool. It follows each new snapshot, and ends with the process:
//! sessions need a primary while the process drains, too.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::{Notify, mpsc};
use weir_state::{Pool, Snapshot};

use super::roster::RosterChange;
use super::seen::PoolSeen;
use super::vigil::{Audience, Vigil, watched};
use crate::events::Bus;
use crate::health::Board;
use crate::publish::InForce;
use crate::{lock, tasks};

/// Watches the clusters.
pub struct Watch {
    shared: Arc<Shared>,
    audience: Audience,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by the thread and its readers.
#[derive(Default)]
struct Shared {
    changed: Notify,
    ends: AtomicBool,
    pools: Mutex<BTreeMap<String, Arc<PoolSeen>>>,
}

impl Watch {
    /// Watches nothing yet; also returns the receiver for backends to add and remove.
    pub fn new(
        bus: Arc<Bus>,
        in_force: InForce,
        board: Arc<Board>,
    ) -> (Watch, mpsc::UnboundedReceiver<RosterChange>) {
        let (roster, changes) = mpsc::unbounded_channel();
        let audience = Audience { in_force, board, bus, roster };
        (Watch { shared: Arc::default(), audience, thread: Mutex::default() }, changes)
    }

    /// Watches the pools of the snapshot that is in force now.
    pub fn follow(&self, snapshot: &Snapshot) {
        let is_needed = snapshot.pools.iter().any(|pool| watched(pool).is_some());
        let mut thread = lock(&self.thread);
        if thread.is_none() && is_needed {
            match self.start() {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    tracing::error!(%error, "cluster: no thread to watch on; the next reload tries again");
                }
            }
        }
        self.shared.changed.notify_one();
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shared, audience) = (self.shared.clone(), self.audience.clone());
        let watch = move || runtime.block_on(watch_all(&shared, &audience));
        std::thread::Builder::new().name("weir-cluster".to_owned()).spawn(watch)
    }

    /// The state of a pool's cluster; `None` if it is not watched.
    pub fn seen(&self, pool: &str) -> Option<Arc<PoolSeen>> {
        lock(&self.shared.pools).get(pool).cloned()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.changed.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in there was a bug, and has already been logged.
            let _ = thread.join();
        }
    }
}

/// The watch of a pool; ends with this.
struct Kept {
    changed: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Kept {
    fn start(shared: &Arc<Shared>, audience: &Audience, pool: &Arc<Pool>) -> Kept {
        let changed = Arc::new(Notify::new());
        let begin = {
            let (shared, audience, seen) = (shared.clone(), audience.clone(), PoolSeen::new());
            let (pool, changed) = (pool.clone(), changed.clone());
            move || watch_one(shared.clone(), audience.clone(), (pool.clone(), seen.clone()), changed.clone())
        };
        let task = format!("watch of the cluster of pool {}", pool.config.name);
        Kept { changed, task: tokio::spawn(tasks::keep_on(task, begin)) }
    }
}

/// Watches the current pool, or `pool` if it was removed, until the task is ended. After a panic and restart
/// it knows the members only by their answers, and their published state continues.
async fn watch_one(
    shared: Arc<Shared>,
    audience: Audience,
    (pool, seen): (Arc<Pool>, Arc<PoolSeen>),
    changed: Arc<Notify>,
) {
    let name = &pool.config.name;
    let snapshot = audience.in_force.snapshot();
    let current = snapshot.and_then(|snapshot| snapshot.pool(name).cloned());
    let current = current.unwrap_or_else(|| pool.clone());
    let Some(vigil) = Vigil::new(audience, current, seen.clone()) else { return };
    lock(&shared.pools).insert(name.clone(), seen);
    vigil.keep(changed).await;
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch_all(shared: &Arc<Shared>, audience: &Audience) {
    let mut vigils: HashMap<String, Kept> = HashMap::new();
    while !shared.ends.load(Ordering::Relaxed) {
        if let Some(snapshot) = audience.in_force.snapshot() {
            let is_watched = |name: &str| snapshot.pool(name).is_some_and(|pool| watched(pool).is_some());
            vigils.retain(|name, kept| is_watched(name) && !kept.task.is_finished());
            lock(&shared.pools).retain(|name, _| is_watched(name));
            for pool in &snapshot.pools {
                let name = &pool.config.name;
                if let Some(kept) = vigils.get(name) {
                    kept.changed.notify_one();
                    continue;
                }
                if is_watched(name) {
                    vigils.insert(name.clone(), Kept::start(shared, audience, pool));
                }
            }
        }
        shared.changed.notified().await;
    }
}
