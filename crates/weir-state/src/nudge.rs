//! Lets the data path ask for an immediate check of a pool's servers, ahead of the next scheduled one.

use tokio::sync::Notify;

/// Asks the monitor of a pool's servers to check at once, because one was lost or refused what its role
/// should allow. All requests that come during a check cause one more check.
#[derive(Debug, Default)]
pub struct Nudge(Notify);

impl Nudge {
    /// Asks for a check. From any thread; never waits. Without a monitor nothing happens.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits until a check is asked for, or returns at once if one was since the last time.
    pub async fn asked(&self) {
        self.0.notified().await;
    }
}
