//! An order that the authority was told to sign and whose certificate is not here yet: kept in the store with
//! its key, so that it is asked for again, also by the next process. Authorities count what they issue.
//!
//! What is kept for `FILE.pem` is `FILE.pem.order`, for nobody else to read. Whoever holds the lock of the
//! certificate reads and writes it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::store;

/// How long it is asked for. What has not come by then does not; and an authority issues the same certificate
/// that often for as long as it is asked (Let's Encrypt: five times a week).
const GOOD_FOR: Duration = Duration::from_secs(2 * 24 * 3600);

/// An order with the key that its certificate is for.
#[derive(Serialize, Deserialize)]
pub struct Unfinished {
    /// The URL of the account that has placed it.
    pub account: String,
    /// Its URL.
    pub order: String,
    /// The key, PEM.
    pub key: String,
}

/// Where the order for one certificate is kept.
#[derive(Debug)]
pub struct OrderFile(PathBuf);

impl OrderFile {
    /// For the certificate in `file`.
    pub fn beside(file: &Path) -> OrderFile {
        let mut path = file.as_os_str().to_owned();
        path.push(".order");
        OrderFile(path.into())
    }

    /// Whether there is one.
    pub fn is_taken(&self) -> bool {
        self.0.exists()
    }

    /// Whether what is kept was put there longer ago.
    pub fn is_older_than(&self, age: Duration) -> bool {
        let written = store::written(&self.0).unwrap_or(SystemTime::UNIX_EPOCH);
        SystemTime::now().duration_since(written).is_ok_and(|own| own > age)
    }

    /// What is kept; `None` where nothing is, or what can't be read or is too old, which is removed.
    pub fn read(&self) -> Option<Unfinished> {
        let text = store::read(&self.0).transpose()?;
        let kept = match text {
            _ if self.is_older_than(GOOD_FOR) => Err(format!("it is older than {GOOD_FOR:?}")),
            Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        kept.inspect_err(|reason| self.give_up(reason)).ok()
    }

    /// Keeps an order.
    ///
    /// # Errors
    /// The store can't be written.
    pub async fn write(&self, unfinished: &Unfinished) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(unfinished).map_err(|error| Failure::store(&error.into()))?;
        store::write(self.0.clone(), text).await.map_err(|error| Failure::store(&error))
    }

    /// Removes it for a reason that is said.
    pub fn give_up(&self, reason: &str) {
        tracing::warn!(order = %self.0.display(), reason, "an order that was not brought to its end is given up");
        self.clear();
    }

    /// Removes it, if it is there.
    pub fn clear(&self) {
        if let Err(error) = store::remove(&self.0) {
            tracing::warn!(%error, "an order that is done could not be removed from the store");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[tokio::test]
    async fn an_order_is_kept_for_two_days_and_what_is_none_is_removed() {
        let folder = std::env::temp_dir().join(format!("weir-unfinished-{}", std::process::id()));
        store::make_folder(&folder).unwrap();
        let place = OrderFile::beside(&folder.join("shop.pem"));
        assert!(place.read().is_none() && !place.is_taken());
        let text = |it: &str| it.to_owned();
        let order = Unfinished { account: text("/a/1"), order: text("/o/1"), key: text("secret") };
        place.write(&order).await.unwrap();
        assert_eq!(place.read().map(|kept| (kept.order, kept.key)), Some((order.order, order.key)));
        let old = SystemTime::now() - GOOD_FOR - Duration::from_secs(1);
        File::options().write(true).open(&place.0).unwrap().set_modified(old).unwrap();
        assert!(place.read().is_none() && !place.is_taken());
        fs::write(&place.0, "half of someth").unwrap();
        assert!(place.read().is_none() && !place.is_taken());
        fs::remove_dir_all(&folder).unwrap();
    }
}
