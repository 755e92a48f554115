//! What the control side asks of every data plane: get ready, serve a snapshot, serve the one before again.
//!
//! A publication stages a change on every plane before the first of them applies anything, so that whatever
//! can fail for good reasons fails while nothing has changed; and when a plane can't apply what it has
//! staged, all that were asked to are put back.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use weir_config::Config;

use crate::snapshot::Snapshot;

/// Something a plane is doing.
pub type Pending<'p, T> = Pin<Box<dyn Future<Output = T> + Send + 'p>>;

/// Why a plane can't serve what is wanted, in words for the operator. Nothing has changed.
pub type StageError = Box<dyn Error + Send + Sync>;

/// What is to come into force.
#[derive(Clone, Copy)]
pub enum Next<'n> {
    /// A snapshot of this config.
    Config(&'n Config),
    /// A snapshot whose pool of this index has other backends; all else is the same.
    Pool(usize),
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
