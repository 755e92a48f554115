//! What the control side asks of every data plane: get ready, serve a snapshot, serve the one before again.
//!
//! A publication stages a change on every plane before the first of them applies anything, so that whatever
//! can fail for good reasons fails while nothing has changed; and when a plane can't apply what it has
//! staged, all that were asked to are put back.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use weir_config::Config;

use crate::snapshot::Snapshot;

/// Something a plane is doing.
pub type Pending<'p, T> = Pin<Box<dyn Future<Output = T> + Send + 'p>>;

/// Why a plane can't serve what is wanted, in words for the operator. Nothing has changed.
pub type StageError = Box<dyn Error + Send + Sync>;

/// What is to come into force.
#[derive(Clone, Copy)]
pub enum Next<'n> {
    /// A snapshot of this config, with what is decided of its listeners.
    Config(&'n Config, &'n Placements),
    /// A snapshot whose pool of this index has other backends; all else is the same.
    Pool(usize),
}

/// Where a listener that had a choice of planes was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The kernel plane takes its packets.
    Kernel,
    /// The proxy plane serves it, for this reason.
    Proxy(String),
}

/// Listeners that asked for a plane other than the proxy's, by name. All others are the proxy plane's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements(pub BTreeMap<String, Placement>);

impl Placements {
    /// Whether the kernel plane takes the packets of the listener of this name.
    pub fn is_in_kernel(&self, listener: &str) -> bool {
        self.0.get(listener) == Some(&Placement::Kernel)
    }
}

/// Wakes a thread that waits for work. Rings that come while it is busy are heard once, afterwards.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Wakes who waits, now or at its next wait.
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for a ring, at most for `limit`; says whether there was one.
    pub fn wait(&self, limit: Duration) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, limit, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *rung)
    }
}

/// A data plane.
pub trait Plane: Send + Sync {
    /// What it is called in messages.
    fn name(&self) -> &'static str;

    /// Gets what serving `next` takes and may not be had: sockets, room in tables. Nothing is served
    /// otherwise yet.
    fn stage<'p>(&'p self, next: Next<'p>) -> Pending<'p, Result<Box<dyn StagedChange + 'p>, StageError>>;
}

/// One change of what a plane serves, ready to be made. What it no longer needs it gives back when dropped:
/// what was staged if it has not been applied, what was served before if it has.
pub trait StagedChange: Send {
    /// Serves `snapshot`; done when all of the plane does. After an error the plane may serve either, or
    /// both.
    fn apply<'s>(&'s mut self, snapshot: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>>;

    /// Serves `before` again, the snapshot before the change. Called once, and only after [`Self::apply`],
    /// whether that succeeded or not.
    fn put_back<'s>(&'s mut self, before: &'s Arc<Snapshot>) -> Pending<'s, io::Result<()>>;
}
