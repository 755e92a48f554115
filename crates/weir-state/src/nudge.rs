//! How the data path has the servers of a pool looked at now, rather than at the next turn.

use tokio::sync::Notify;

/// Asks whoever watches the servers of a pool to look at once: one was lost, or refused what its role should
/// have let it do. Asks that come while it looks are one more look, however many they are.
#[derive(Debug, Default)]
pub struct Nudge(Notify);

impl Nudge {
    /// Asks. From any thread; never waits. Where nobody watches, nothing happens.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits until somebody asks, or has asked since the last time.
    pub async fn asked(&self) {
        self.0.notified().await;
    }
}
