//! The only writer of the snapshot. It makes every plane get ready, compiles, has new names resolved, puts
//! the snapshot in force on every plane, and only then shows it to readers. If a plane can't serve it, all
//! planes go back to the one before.

use std::fmt;
use std::io;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use weir_config::Config;
use weir_io::clock;
use weir_state::plane::{Next, Plane, StageError, StagedChange};
use weir_state::{Origin, Pool, PoolChange, Snapshot};
use weir_tls::{LoadError, Loaded, TicketKeys};

use crate::acme::Orders;
use crate::blocking::reading;
use crate::carried::Carried;
use crate::cluster::watch::Watch;
use crate::dns::Names;
use crate::health::Board;
use crate::kernel::KernelPlane;
use crate::peers::Sharing;
use crate::token_keys::Fetches;

/// The snapshot in force, for all readers; only [`Publisher`] changes it.
#[derive(Clone, Default)]
pub struct InForce(Arc<ArcSwapOption<Snapshot>>);

impl InForce {
    /// A snapshot that was not published.
    #[cfg(test)]
    pub(crate) fn of(snapshot: Snapshot) -> InForce {
        InForce(Arc::new(ArcSwapOption::from_pointee(snapshot)))
    }

    /// `None` before the first config is served.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.0.load_full()
    }
}

/// Puts snapshots in force, one after the other.
pub struct Publisher {
    in_force: InForce,
    kernel: Arc<KernelPlane>,
    planes: Vec<Arc<dyn Plane>>,
    /// Number of copies of each counter.
    workers: usize,
    followers: Arc<Followers>,
    tickets: Arc<TicketKeys>,
    /// Held during a whole publication, so that two never interleave; the next one waits.
    turn: Mutex<()>,
}

/// The planes that serve.
pub struct Planes {
    /// The kernel plane, which chooses its listeners before the others are asked.
    pub kernel: Arc<KernelPlane>,
    /// All others.
    pub others: Vec<Arc<dyn Plane>>,
}

/// What follows the snapshot: name resolution, probes, and others.
pub struct Followers {
    /// Name resolution.
    pub names: Names,
    /// Probes.
    pub board: Arc<Board>,
    /// Roles of servers that replicate from each other.
    pub watch: Watch,
    /// Certificates to order.
    pub orders: Orders,
    /// Keys for signed tokens.
    pub token_keys: Fetches,
    /// Rate limits that are counted together with other Weirs.
    pub sharing: Sharing,
}

impl Followers {
    /// Prepares a snapshot to be served, with the backends that its names resolve to: a backend whose name
    /// were still to be resolved when the first request arrives would count as failed.
    async fn prepare(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.names.adopt(&snapshot);
        self.names.first_answers(None).await;
        let snapshot = self.names.populated(snapshot);
        self.board.settle_names(&snapshot);
        snapshot
    }

    /// As [`Self::prepare`], for the backend that is added to a pool.
    async fn prepare_change(&self, change: &PoolChange) {
        let Some(backend) = &change.added else { return };
        self.names.add(&change.pool().config.name, backend);
        self.names.first_answers(Some(&backend.address)).await;
        self.board.settle_name_of(change.pool(), backend);
    }

    /// Makes name resolution, probes, orders and fetches follow a snapshot that is in force.
    fn follow(&self, snapshot: &Snapshot) {
        self.names.adopt(snapshot);
        self.board.adopt(snapshot);
        self.watch.follow(snapshot);
        self.orders.adopt(snapshot);
        self.token_keys.follow(snapshot);
        self.sharing.follow(snapshot);
        self.names.look_again(None);
    }

    /// As [`Self::follow`], for a change that is in force. What does not concern its backend continues
    /// undisturbed.
    fn follow_change(&self, change: &PoolChange) {
        if let Some(backend) = &change.removed {
            self.names.remove(backend);
            self.board.remove(backend);
        }
        let pool = change.pool();
        if let Some(backend) = &change.added {
            self.board.add(pool, backend);
        }
        self.watch.follow(&change.snapshot);
        if change.removed.is_some() {
            self.names.look_again(Some(&pool.config.name));
        }
        // What probes and the watch have found out since the pool was made was applied to its predecessor.
        pool.refresh(clock::now());
    }
}

/// A config that was not put in force. The one before remains in force.
#[derive(Debug)]
pub enum PublishError {
    /// A plane can't serve it, mostly because a listening socket could not be opened; nothing was changed.
    Stage(StageError),
    /// Files for TLS can't be used; nothing was changed.
    Tls(Vec<LoadError>),
    /// One of them hangs; nothing was changed.
    Files(io::Error),
    /// A plane did not accept the snapshot; all of them went back to the one before.
    Apply {
        /// The plane.
        plane: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl fmt::Display for PublishError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Stage(error) => write!(out, "{error}"),
            PublishError::Tls(errors) => {
                for (index, error) in errors.iter().enumerate() {
                    write!(out, "{}{error}", if index > 0 { "\n" } else { "" })?;
                }
                Ok(())
            }
            PublishError::Files(error) => write!(out, "{error}"),
            PublishError::Apply { plane, source } => {
                write!(out, "the {plane} plane did not take the new configuration: {source}")
            }
        }
    }
}

impl std::error::Error for PublishError {}

impl Publisher {
    /// Puts the first config in force on the kernel plane and on `planes`, and shows it in `in_force`.
    /// `carried` is what an earlier process knew about the backends; `workers` is the number of copies of
    /// each counter.
    pub async fn start(
        Planes { kernel, others: mut planes }: Planes,
        workers: usize,
        config: Arc<Config>,
        carried: &Carried,
        followers: Arc<Followers>,
        in_force: InForce,
    ) -> Result<Publisher, PublishError> {
        let tickets = carried.ticket_keys();
        planes.insert(0, kernel.clone());
        let publisher =
            Publisher { in_force, kernel, planes, workers, followers, tickets, turn: Mutex::default() };
        match publisher.publish_first(config, carried).await {
            Ok(()) => Ok(publisher),
            Err(error) => {
                publisher.kernel.give_up().await;
                Err(error)
            }
        }
    }

    async fn publish_first(&self, config: Arc<Config>, carried: &Carried) -> Result<(), PublishError> {
        let tls = self.load(&config).await?;
        let placements = self.kernel.place(&config).await.map_err(PublishError::Stage)?;
        let mut changes = self.stage(Next::Config(&config, &placements)).await?;
        let snapshot = Arc::new(Snapshot::compile(config.clone(), &tls, None, self.workers));
        let snapshot = carried.with_others(snapshot);
        let snapshot = self.followers.prepare(snapshot).await;
        carried.apply(&snapshot, clock::now());
        self.apply(&mut changes, &snapshot, None).await?;
        drop(changes);
        self.followers.follow(&snapshot);
        Ok(())
    }

    /// The snapshot in force, for readers that look at it repeatedly.
    pub fn in_force(&self) -> InForce {
        self.in_force.clone()
    }

    /// The snapshot in force now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.in_force.snapshot().expect("a publisher is there once the first snapshot is in force")
    }

    /// The keys that seal session tickets.
    pub fn tickets(&self) -> &TicketKeys {
        &self.tickets
    }

    /// Puts in force the config that `choose` makes from the current one. Publications queue, so each sees
    /// the one before it completed. `Ok(None)` when `choose` has nothing to do. Weights that were set at run
    /// time are replaced by the config's. Discovered backends are in neither config, and stay.
    pub async fn publish<E: From<PublishError>>(
        &self,
        choose: impl FnOnce(&Config) -> Result<Option<Arc<Config>>, E>,
    ) -> Result<Option<Arc<Snapshot>>, E> {
        let _turn = self.turn.lock().await;
        let before = self.snapshot();
        let Some(config) = choose(&before.configured())? else { return Ok(None) };
        let tls = self.load(&config).await?;
        let placements = self.kernel.place(&config).await.map_err(PublishError::Stage)?;
        let mut changes = self.stage(Next::Config(&config, &placements)).await?;
        let compiled = Arc::new(Snapshot::compile(config.clone(), &tls, Some(&before), self.workers));
        let snapshot = self.followers.prepare(compiled.clone()).await;
        if let Err(error) = self.apply(&mut changes, &snapshot, Some(&before)).await {
            compiled.undo();
            self.followers.follow(&before);
            return Err(error.into());
        }
        drop(changes);
        tell_dropped(&before, &snapshot);
        self.followers.follow(&snapshot);
        // Requests that wait for a backend look again: there may be more backends, or none any more.
        for pool in before.pools.iter().chain(&snapshot.pools) {
            pool.queue.call_all();
        }
        Ok(Some(snapshot))
    }

    /// Puts in force what `change` makes of the current snapshot: one pool with other backends. Reads no
    /// file, binds no socket, and affects no other pool.
    pub async fn change_pool<E: From<PublishError>>(
        &self,
        change: impl FnOnce(&Snapshot) -> Result<PoolChange, E>,
    ) -> Result<Arc<Snapshot>, E> {
        let _turn = self.turn.lock().await;
        let before = self.snapshot();
        let change = change(&before)?;
        let mut changes = self.stage(Next::Pool(change.pool)).await?;
        self.followers.prepare_change(&change).await;
        if let Err(error) = self.apply(&mut changes, &change.snapshot, Some(&before)).await {
            change.added.iter().for_each(|backend| self.followers.names.remove(backend));
            return Err(error.into());
        }
        drop(changes);
        self.followers.follow_change(&change);
        change.pool().queue.call_all();
        Ok(change.snapshot)
    }

    /// Makes the planes bind their sockets again where interfaces have come back. The snapshot stays the
    /// same.
    pub async fn rebind(&self) -> Result<(), PublishError> {
        let _turn = self.turn.lock().await;
        let before = self.snapshot();
        let placements = self.kernel.placements();
        let mut changes = self.stage(Next::Config(&before.config, &placements)).await?;
        self.apply(&mut changes, &before, Some(&before)).await
    }

    async fn load(&self, config: &Arc<Config>) -> Result<Loaded, PublishError> {
        let (config, tickets) = (config.clone(), self.tickets.clone());
        let challenges = self.followers.orders.challenges().clone();
        let loaded = reading(move || Loaded::load(&config, &tickets, &challenges)).await;
        loaded.map_err(PublishError::Files)?.map_err(|errors| match errors.iter().find(|it| it.is_hung) {
            Some(hung) => PublishError::Files(io::Error::new(io::ErrorKind::TimedOut, hung.to_string())),
            None => PublishError::Tls(errors),
        })
    }

    /// Makes every plane get ready; if one can't, the others release what they have acquired.
    async fn stage<'p>(&'p self, next: Next<'p>) -> Result<Vec<StagedOn<'p>>, PublishError> {
        let mut changes = Vec::with_capacity(self.planes.len());
        for plane in &self.planes {
            let change = plane.stage(next).await.map_err(PublishError::Stage)?;
            changes.push(StagedOn { plane: plane.name(), change });
        }
        Ok(changes)
    }

    /// Makes every plane serve `snapshot`, and shows it to readers. If one can't, all that were asked serve
    /// `before` again, the last one first.
    async fn apply(
        &self,
        changes: &mut [StagedOn<'_>],
        snapshot: &Arc<Snapshot>,
        before: Option<&Arc<Snapshot>>,
    ) -> Result<(), PublishError> {
        for number in 0..changes.len() {
            let Err(source) = changes[number].change.apply(snapshot).await else { continue };
            if let Some(before) = before {
                for staged in changes[..=number].iter_mut().rev() {
                    if let Err(error) = staged.change.put_back(before).await {
                        let plane = staged.plane;
                        tracing::error!(%error, plane, "a plane could not be put back to the configuration before");
                    }
                }
            }
            return Err(PublishError::Apply { plane: changes[number].plane, source });
        }
        self.in_force.0.store(Some(snapshot.clone()));
        Ok(())
    }
}

/// Logs which backends, permanently added through the API, `after` no longer has.
fn tell_dropped(before: &Snapshot, after: &Snapshot) {
    for pool in &before.pools {
        for backend in pool.backends.iter().filter(|it| it.origin == Origin::Api) {
            let name = &pool.config.name;
            let is_there = |pool: &Arc<Pool>| pool.backends.iter().any(|it| it.address == backend.address);
            if !after.pool(name).is_some_and(is_there) {
                tracing::warn!(
                    pool = name,
                    backend = backend.address,
                    "was added lastingly, and its pool is gone or cannot have it any more"
                );
            }
        }
    }
}

/// A change staged on a plane, and the name of the plane.
struct StagedOn<'p> {
    plane: &'static str,
    change: Box<dyn StagedChange + 'p>,
}

#[cfg(test)]
mod tests;
