//! Adds and removes backends as their cluster's membership changes.

use std::sync::Arc;

use tokio::sync::{OwnedMutexGuard, mpsc};
use weir_state::Origin;

use super::change::{check_backend, pool_of};
use super::{ChangeError, Control, Phase};
use crate::cluster::RosterChange;
use crate::events::What;
use crate::publish::PublishError;

/// Makes the changes that the watch of the clusters asks for, one after the other, until the process ends.
pub(super) async fn keep(
    control: Arc<Control>,
    mut changes: OwnedMutexGuard<mpsc::UnboundedReceiver<RosterChange>>,
) {
    while let Some(change) = changes.recv().await {
        // A draining process adds none, and its successor finds them itself.
        if control.phase() != Phase::Serving {
            continue;
        }
        if let Err(error) = control.enrol(&change).await {
            tracing::warn!(?change, %error, "cluster: the pool stays as it is");
        }
    }
}

impl Control {
    async fn enrol(&self, change: &RosterChange) -> Result<(), ChangeError> {
        let (pool, backend, told) = match change {
            RosterChange::Join { pool, address } => {
                self.join(pool, address).await?;
                (pool, address, "found in its group".to_owned())
            }
            RosterChange::Leave { pool, address, reason } => {
                self.leave(pool, address).await?;
                (pool, address, format!("taken out: {reason}"))
            }
        };
        tracing::info!(pool, backend, "cluster: {told}");
        let (pool, backend) = (pool.clone(), backend.clone());
        self.bus.tell(What::Roster { pool, backend, change: told });
        Ok(())
    }

    async fn join(&self, pool: &str, address: &str) -> Result<(), ChangeError> {
        let address_of = address.to_owned();
        let found =
            weir_config::Backend { address: address_of, weight: 1, ..weir_config::Backend::default() };
        check_backend(&found, std::iter::empty())?;
        let changed = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, pool)?;
            if pool.backends.iter().any(|it| it.address == address) {
                return Err(ChangeError::Exists(address.to_owned()));
            }
            let change = before.with_found(index, address);
            change.map_err(|error| ChangeError::Publish(PublishError::Tls(vec![error])))
        });
        changed.await.map(drop)
    }

    async fn leave(&self, pool: &str, address: &str) -> Result<(), ChangeError> {
        let changed = self.publisher.change_pool(|before| {
            let (index, pool) = pool_of(before, pool)?;
            let backend =
                pool.backends.iter().position(|it| it.address == address && it.origin == Origin::Group);
            let backend = backend.ok_or_else(|| ChangeError::no_backend(address, pool))?;
            Ok::<_, ChangeError>(before.without_backend(index, backend))
        });
        changed.await.map(drop)
    }
}
