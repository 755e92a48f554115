//! An order that the authority was asked to finalize and whose certificate has not been downloaded yet. It is
//! kept in the store with its key, so that the same order is continued, also by the next process, because
//! authorities count the certificates that they issue.
//!
//! The order for `FILE.pem` is in `FILE.pem.order`, readable only for its owner. It is read and written only
//! while holding the lock of the certificate.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::store;

/// How long an order is continued. If the certificate has not been issued by then, it will not be; and an
/// authority limits how often it issues the same certificate (Let's Encrypt: five times a week).
const GOOD_FOR: Duration = Duration::from_secs(2 * 24 * 3600);

/// An order with the key that its certificate is for.
#[derive(Serialize, Deserialize)]
pub struct Unfinished {
    /// The URL of the account that placed it.
    pub account: String,
    /// Its URL.
    pub order: String,
    /// The key, PEM.
    pub key: String,
}

/// The file with the order for one certificate.
#[derive(Debug)]
pub struct OrderFile(PathBuf);

impl OrderFile {
    /// For the certificate in `file`.
    pub fn beside(file: &Path) -> OrderFile {
        let mut path = file.as_os_str().to_owned();
        path.push(".order");
        OrderFile(path.into())
    }

    /// Whether the file exists.
    pub fn is_taken(&self) -> bool {
        self.0.exists()
    }

    /// Whether the order was stored longer ago than `age`.
    pub fn is_older_than(&self, age: Duration) -> bool {
        let written = store::written(&self.0).unwrap_or(SystemTime::UNIX_EPOCH);
        SystemTime::now().duration_since(written).is_ok_and(|own| own > age)
    }

    /// The stored order; `None` if there is none, or it is unreadable or too old, in which case it is
    /// removed.
    pub fn read(&self) -> Option<Unfinished> {
        let text = store::read(&self.0).transpose()?;
        let kept = match text {
            _ if self.is_older_than(GOOD_FOR) => Err(format!("it is older than {GOOD_FOR:?}")),
            Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        kept.inspect_err(|reason| self.give_up(reason)).ok()
    }

    /// Stores an order.
    ///
    /// # Errors
    /// The store can't be written.
    pub async fn write(&self, unfinished: &Unfinished) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(unfinished).map_err(|error| Failure::store(&error.into()))?;
        store::write(self.0.clone(), text).await.map_err(|error| Failure::store(&error))
    }

    /// Removes it, and logs the reason.
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
