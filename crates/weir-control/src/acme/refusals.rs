//! Refused orders, as Weirs that share a store learn of each other's: authorities count refused orders, and
//! as many Weirs as there are would have them count as many times.
//!
//! The last refusal of the order for `FILE.pem` is in `FILE.pem.refused`, read and written only while holding
//! the lock of the certificate. A Weir that finds another one there than when it last tried does not try, but
//! waits as if it had been refused itself. So no clocks are compared, and whoever wakes first is the one who
//! tries.

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::schedule::{self, Blame};
use crate::{lock, store};

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// How many in a row.
    pub count: u32,
    reason: String,
    /// Whether it is about a record that did not come into its zone.
    is_of_dns: bool,
    /// How long the authority asked to wait, in seconds.
    asked_for: Option<u64>,
    /// Tells one from the next.
    number: u64,
}

impl Refusal {
    fn blame(&self) -> Blame {
        if self.is_of_dns { Blame::Dns } else { Blame::Refused }
    }

    /// What this is to a Weir that has not tried, and waits as long as if it had.
    pub fn failure(&self, draw: f64) -> Failure {
        let reason = format!("another Weir with this store has tried: {}", self.reason);
        let asked_for = self.asked_for.map(Duration::from_secs);
        let pause = schedule::pause(self.blame(), self.count, asked_for, draw);
        Failure { asked_for: Some(pause), ..Failure::new(Blame::Held, reason) }
    }
}

/// What one Weir knows about refusals of one order.
#[derive(Default)]
pub struct Refusals {
    /// The last one that it knows of.
    known: Mutex<Option<Refusal>>,
    /// Whether it has begun to try in spite of those that there were.
    is_trying: AtomicBool,
}

impl Refusals {
    /// To be called before the first attempt, and before each one that an operator asks for: it is made
    /// whatever was refused earlier.
    pub fn disregard(&self) {
        self.is_trying.store(false, Ordering::Release);
    }

    /// To be called before waiting for the lock. Blocks on the disk.
    pub fn begin(&self, file: &Path) {
        if !self.is_trying.swap(true, Ordering::AcqRel) {
            *lock(&self.known) = read(file);
        }
    }

    /// What another Weir was refused since this one last tried. Blocks on the disk.
    pub fn of_another(&self, file: &Path) -> Option<Refusal> {
        let mut known = lock(&self.known);
        let found = read(file);
        let is_news = found.is_some() && found != *known;
        known.clone_from(&found);
        found.filter(|_| is_news)
    }

    /// Notes that an attempt was refused, which is number `count` in a row; other failures are not noted,
    /// because no authority counts them.
    pub async fn note(&self, file: &Path, failure: &Failure, count: u32) {
        if !matches!(failure.blame, Blame::Refused | Blame::Dns) {
            return;
        }
        let refusal = Refusal {
            count,
            reason: failure.reason.to_string(),
            is_of_dns: failure.blame == Blame::Dns,
            asked_for: failure.asked_for.map(|asked_for| asked_for.as_secs()),
            number: RandomState::new().hash_one(count),
        };
        let text = serde_json::to_vec_pretty(&refusal).unwrap_or_default();
        if let Err(error) = store::write(beside(file), text).await {
            tracing::debug!(%error, "other Weirs do not learn of a refusal");
        }
        *lock(&self.known) = Some(refusal);
    }

    /// Forgets all: the certificate has come. Blocks on the disk.
    pub fn clear(&self, file: &Path) {
        *lock(&self.known) = None;
        if let Err(error) = store::remove(&beside(file)) {
            tracing::debug!(%error, "a refusal that is over could not be removed from the store");
        }
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".refused");
    path.into()
}

fn read(file: &Path) -> Option<Refusal> {
    // Whatever is unreadable refuses nothing.
    serde_json::from_str(&store::read(&beside(file)).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_refusal_is_enough_for_all_and_an_operator_has_it_tried_again() {
        let folder = std::env::temp_dir().join(format!("weir-refusals-{}", std::process::id()));
        store::make_folder(&folder).unwrap();
        let file = folder.join("shop.pem");
        let refused = Failure::refused("no such name");
        let [one, other] = [Refusals::default(), Refusals::default()];
        [&one, &other].iter().for_each(|each| each.begin(&file));
        assert_eq!(one.of_another(&file), None);
        one.note(&file, &refused, 1).await;
        let theirs = other.of_another(&file).unwrap();
        let waits = theirs.failure(0.5);
        assert_eq!((theirs.count, waits.asked_for.unwrap().as_secs()), (1, 60));
        assert!(waits.blame == Blame::Held && waits.reason.ends_with("no such name"), "{waits:?}");

        // Who has waited tries, and then the first one need not.
        other.begin(&file);
        assert_eq!(other.of_another(&file), None);
        other.note(&file, &refused, 2).await;
        one.begin(&file);
        assert_eq!(one.of_another(&file).map(|theirs| theirs.count), Some(2));

        other.begin(&file);
        other.note(&file, &refused, 3).await;
        one.disregard();
        one.begin(&file);
        assert_eq!(one.of_another(&file), None);
        let away = Failure::new(Blame::Away, "nobody there");
        one.note(&file, &away, 4).await;
        other.begin(&file);
        assert_eq!(other.of_another(&file), None, "it was not refused");
        one.clear(&file);
        assert!(read(&file).is_none());
        std::fs::write(beside(&file), "{\"count\"").unwrap();
        assert_eq!(other.of_another(&file), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
