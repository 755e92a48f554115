//! Watches files of ticket keys that several Weirs share, so that whatever writes them need not notify Weir.

use std::sync::Arc;
use std::time::Duration;

use super::Control;
use crate::blocking::blocking;

/// Interval between two checks of a file.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Checks the files of ticket keys repeatedly, until the process ends.
pub(super) async fn keep(control: Arc<Control>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let snapshot = control.snapshot();
        let listeners = snapshot.listeners.iter();
        let shared: Vec<_> = listeners
            .filter_map(|it| Some((it.config.name.clone(), it.tls.as_ref()?.shared_keys()?.clone())))
            .collect();
        if shared.is_empty() {
            continue;
        }
        // The files may be on another machine's disk.
        let looking = blocking(move || {
            for (listener, keys) in shared {
                match keys.look_again() {
                    Ok(false) => {}
                    Ok(true) => tracing::info!(listener, "ticket keys read again"),
                    Err(error) => {
                        tracing::error!(listener, %error, "ticket keys can't be used, those of before stay in force");
                    }
                }
            }
        });
        if let Err(error) = looking.await {
            tracing::error!(%error, "ticket keys could not be looked at");
        }
    }
}
