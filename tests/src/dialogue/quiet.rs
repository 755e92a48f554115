//! Gives tests that measure time the machine to themselves, as far as this test run is concerned.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static GATE: RwLock<()> = RwLock::new(());

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Held while a test runs Weir; see [`alone`].
#[derive(Debug)]
pub struct Quiet {
    _shared: Option<RwLockReadGuard<'static, ()>>,
    _exclusive: Option<RwLockWriteGuard<'static, ()>>,
}

/// Waits until no other test of this run has a Weir running, and keeps others waiting while the result lives.
///
/// Call it before the first Weir of the test is started.
pub fn alone() -> Quiet {
    let guard = GATE.write().unwrap_or_else(PoisonError::into_inner);
    DEPTH.set(DEPTH.get() + 1);
    Quiet { _shared: None, _exclusive: Some(guard) }
}

/// Taken by every Weir. A thread that already holds the gate may pass: it may run several.
pub(super) fn together() -> Quiet {
    let first = DEPTH.get() == 0;
    DEPTH.set(DEPTH.get() + 1);
    let guard = first.then(|| GATE.read().unwrap_or_else(PoisonError::into_inner));
    Quiet { _shared: guard, _exclusive: None }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}
