//! The only writer of the snapshot: binds what a config needs, compiles it, has new names resolved, puts it in force on every
//! worker, and only then shows it to readers.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use weir_config::Config;
use weir_io::clock;
use weir_proxy::plane::Plane;
use weir_proxy::snapshot::Snapshot;
use weir_proxy::sockets::{BindError, Endpoint, Sockets};
use weir_tls::{LoadError, Loaded, TicketKeys};

use crate::acme::Orders;
use crate::carried::Carried;
use crate::dns::Names;
use crate::health::Board;

/// Holds what is in force.
pub struct Publisher {
    current: ArcSwap<Snapshot>,
    plane: Plane,
    followers: Arc<Followers>,
    tickets: Arc<TicketKeys>,
    /// Locked over a whole publication, so that two never interleave; the next waits.
    sockets: Mutex<Sockets>,
}

/// What is to be put in force.
pub enum Change {
    /// What the file says; weights that were set by hand give way to it.
    File(Arc<Config>),
    /// What an operator changed about the config in force; weights that were set by hand stay.
    Edit(Arc<Config>),
}

/// What goes along with the snapshot: the addresses of its names, and the probes of its backends.
pub struct Followers {
    /// Names.
    pub names: Names,
    /// Probes.
    pub board: Board,
    /// Certificates on order.
    pub orders: Orders,
}

impl Followers {
    /// Makes a snapshot ready to be served: a backend whose name is still to be resolved when the first request comes would be a
    /// backend that fails.
    async fn prepare(&self, snapshot: &Snapshot) {
        self.names.adopt(snapshot);
        self.names.first_answers().await;
        self.board.settle_names(snapshot);
    }

    /// Lets name resolution, probes and orders follow a snapshot that is in force.
    pub fn follow(&self, snapshot: &Snapshot) {
        self.names.adopt(snapshot);
        self.board.adopt(snapshot);
        self.orders.adopt(snapshot);
    }
}

/// A config that was not put in force. What was in force before still is.
#[derive(Debug)]
pub enum PublishError {
    /// A listening socket did not come about; nothing was touched.
    Bind(BindError),
    /// Files that TLS needs can't be used; nothing was touched.
    Tls(Vec<LoadError>),
    /// A worker did not take the snapshot; the one before was put back.
    Apply(io::Error),
}

impl fmt::Display for PublishError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::Bind(error) => write!(out, "{error}"),
            PublishError::Tls(errors) => {
                for (index, error) in errors.iter().enumerate() {
                    write!(out, "{}{error}", if index > 0 { "\n" } else { "" })?;
                }
                Ok(())
            }
            PublishError::Apply(error) => write!(out, "a worker did not take the new configuration: {error}"),
        }
    }
}

impl std::error::Error for PublishError {}

impl Publisher {
    /// Puts the first config in force. `inherited` are sockets that an earlier process handed over; what of them the config
    /// does not use is closed. `carried` is what it knew about the backends.
    pub async fn start(
        plane: Plane,
        config: Arc<Config>,
        inherited: Sockets,
        carried: &Carried,
        followers: Arc<Followers>,
    ) -> Result<Publisher, PublishError> {
        let tickets = carried.ticket_keys();
        let tls =
            Loaded::load(&config, &tickets, followers.orders.challenges()).map_err(PublishError::Tls)?;
        let sockets = Sockets::bind(&config, plane.workers(), &inherited).map_err(PublishError::Bind)?;
        let snapshot = Arc::new(Snapshot::compile(config, &tls, None, plane.workers()));
        followers.prepare(&snapshot).await;
        carried.apply(&snapshot, clock::now());
        plane.apply(snapshot.clone(), &sockets).await.map_err(PublishError::Apply)?;
        Ok(Publisher {
            current: ArcSwap::new(snapshot),
            plane,
            followers,
            tickets,
            sockets: Mutex::new(sockets),
        })
    }

    /// What is in force now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// The keys that session tickets are sealed with.
    pub fn tickets(&self) -> &TicketKeys {
        &self.tickets
    }

    /// The workers.
    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    /// Puts in force what `change` makes of the config in force at that moment. Publications queue: each sees the one
    /// before it complete. `Ok(None)` when `change` gives nothing to do.
    pub async fn publish<E: From<PublishError>>(
        &self,
        change: impl FnOnce(&Config) -> Result<Option<Change>, E>,
    ) -> Result<Option<Arc<Snapshot>>, E> {
        let mut sockets = self.sockets.lock().await;
        let before = self.snapshot();
        let Some(change) = change(&before.config)? else { return Ok(None) };
        let (Change::File(config) | Change::Edit(config)) = &change;
        let tls = Loaded::load(config, &self.tickets, self.followers.orders.challenges());
        let tls = tls.map_err(PublishError::Tls)?;
        let bound = Sockets::bind(config, self.plane.workers(), &sockets).map_err(PublishError::Bind)?;
        let workers = self.plane.workers();
        let snapshot = Arc::new(match change {
            Change::File(config) => Snapshot::compile(config, &tls, Some(&before), workers),
            Change::Edit(config) => Snapshot::compile_edited(config, &tls, &before, workers),
        });
        self.followers.prepare(&snapshot).await;
        if let Err(error) = self.plane.apply(snapshot.clone(), &bound).await {
            self.followers.follow(&before);
            if let Err(again) = self.plane.apply(before, &sockets).await {
                tracing::error!(error = %again, "a worker could not be put back to the configuration before");
            }
            return Err(PublishError::Apply(error).into());
        }
        self.current.store(snapshot.clone());
        *sockets = bound;
        // Whoever waits for a backend looks again: there may be more of them, or none any more.
        for pool in before.pools.iter().chain(&snapshot.pools) {
            pool.waiting_room.call_all();
        }
        Ok(Some(snapshot))
    }

    /// Duplicates of every listening socket, for handing over to a new process.
    pub async fn listening_sockets(&self) -> io::Result<Vec<(Endpoint, OwnedFd)>> {
        self.sockets.lock().await.for_worker(0, 1)
    }

    /// Gives up the listening sockets. Once the workers have closed theirs too, new clients are refused rather than left waiting
    /// in a queue that nobody serves (after an upgrade the new process has them, and serves).
    pub async fn close_sockets(&self) {
        *self.sockets.lock().await = Sockets::default();
    }

    /// Ends the worker threads; what they still hold is cut off, and what they have logged is handed over.
    pub fn stop(self) {
        self.plane.stop();
    }
}
