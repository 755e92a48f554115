//! What the control side asks of every data plane: prepare a snapshot, serve it, go back to the one before.
//!
//! A publication stages a change on every plane before any plane applies it, so that whatever can fail for
//! good reasons fails while nothing has changed. If a plane can't apply what it has staged, all planes that
//! were asked to apply are put back.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use weir_config::Config;

use crate::snapshot::Snapshot;

/// An operation of a plane that is in progress.
pub type Pending<'p, T> = Pin<Box<dyn Future<Output = T> + Send + 'p>>;

/// Why a plane can't serve the snapshot, in words for the operator. Nothing has changed.
pub type StageError = Box<dyn Error + Send + Sync>;

/// The snapshot that is to come into force.
#[derive(Clone, Copy)]
pub enum Next<'n> {
    /// A snapshot of this config, with the placement of its listeners.
    Config(&'n Config, &'n Placements),
    /// A snapshot in which the pool at this index has other backends; everything else is the same.
    Pool(usize),
}

/// The plane chosen for a listener that could run on more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The kernel plane handles its packets.
    Kernel,
    /// The proxy plane serves it, for this reason.
    Proxy(String),
}

/// Listeners that asked for a plane other than the proxy plane, by name. The proxy plane serves all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements(pub BTreeMap<String, Placement>);

impl Placements {
    /// Whether the kernel plane handles the packets of the listener with this name.
    pub fn is_in_kernel(&self, listener: &str) -> bool {
        self.0.get(listener) == Some(&Placement::Kernel)
    }
}

/// Wakes a thread that waits for work. Rings that come while it is busy cause one wake-up afterwards.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Wakes the waiting thread, now or at its next wait.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for a ring, for at most `limit`; returns whether there was one.
    pub fn wait(&self, limit: Duration) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, limit, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *rung)
    }
}

/// A data plane.
pub trait Plane: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Acquires what serving `next` needs and what may be unavailable: sockets, room in tables. Does not
    /// change what is served.
    fn stage<'p>(&'p self, next: Next<'p>) -> Pending<'p, Result<Box<dyn StagedChange + 'p>, StageError>>;
}

/// One staged change of what a plane serves. Dropping it releases what the plane no longer needs: the staged
/// resources if it was not applied, the previous ones if it was.
pub trait StagedChange: Send {
    /// Serves `snapshot`; completes when the whole plane does. After an error the plane may serve either
    /// snapshot, or both.
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>>;

    /// Serves `before` again, the snapshot before the change. Called at most once, and only after
    /// [`Self::apply`], whether that succeeded or not.
    fn put_back<'s>(&'s mut self, before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>>;
}
