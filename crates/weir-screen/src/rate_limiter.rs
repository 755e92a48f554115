//! A rate limit in operation.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::bucket::{Bucket, Ticks, duration, ticks};
use crate::digest::{Digest, Seeds};
use crate::refused_keys::{RefusedKey, RefusedKeys};
use crate::screen::{Facts, with_client};
use crate::settings::RateLimit;
use crate::table::{Table, change_shared};
use crate::untold::Untold;

/// A limit with its buckets, shared by all workers.
pub(crate) struct RateLimiter {
    pub settings: RateLimit,
    pub(crate) bucket: Bucket,
    pub(crate) buckets: Buckets,
    refused: RefusedKeys,
    pub(crate) seed: [u64; 2],
    /// What other Weirs are to be told; `None` if nobody is.
    pub(crate) untold: Option<Box<Untold>>,
}

/// Whose debts to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debtor<'a> {
    /// Those of the client at this address, or of its network if the limit counts by that. In limits by a
    /// header, a cookie or a template: requests of the client without such a value.
    Client(IpAddr),
    /// The key with this text as header, cookie or template value.
    Key(&'a [u8]),
    /// Everybody, including the one count of a limit that counts all together.
    All,
}

pub(crate) enum Buckets {
    /// One bucket for all.
    One(AtomicU64),
    /// One bucket per key.
    Each(Table),
}

impl RateLimiter {
    pub fn new(settings: &RateLimit, seeds: &Seeds) -> RateLimiter {
        let (seed, is_shared) = seeds.of(settings.share);
        let buckets = match settings.key.is_whole() {
            true => Buckets::One(AtomicU64::new(0)),
            false => Buckets::Each(Table::new(settings.keys, is_shared)),
        };
        let bucket = Bucket::new(settings.rate, settings.burst);
        let untold = is_shared.then(Box::default);
        RateLimiter { settings: settings.clone(), bucket, buckets, refused: RefusedKeys::new(), seed, untold }
    }

    /// Takes a token; `Err` says how long until there is one. Does not allocate; at most one short critical
    /// section.
    pub fn take(&self, facts: &Facts<'_>, now: Duration) -> Result<(), Duration> {
        let now = ticks(now);
        let taken = match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.take(digest, &self.bucket, now),
            (Buckets::One(full_at), _) => change_shared(full_at, |full_at| self.bucket.take(full_at, now)),
            // Unreachable: a limit by key always gives a digest.
            (Buckets::Each(_), None) => Ok(()),
        };
        if let (Some(untold), true) = (&self.untold, taken.is_ok()) {
            untold.note(self.settings.key.is_whole(), 1);
        }
        taken.map_err(duration)
    }

    /// Returns an unused token.
    pub fn give_back(&self, facts: &Facts<'_>, now: Duration) {
        match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.give_back(digest, &self.bucket, ticks(now)),
            (Buckets::One(full_at), _) => {
                let put = |full_at| Some(self.bucket.give_back(full_at));
                let _ = full_at.fetch_update(Relaxed, Relaxed, put);
            }
            (Buckets::Each(_), None) => {}
        }
        if let Some(untold) = &self.untold {
            untold.note(self.settings.key.is_whole(), -1);
        }
    }

    /// Clears a debtor's debt, as if it had never sent a request; returns whether there was any. The one
    /// count of a limit that counts all together belongs to no client and no key.
    pub fn clear(&self, debtor: &Debtor<'_>, now: Duration) -> bool {
        let now = ticks(now);
        let key = &self.settings.key;
        let digest = match debtor {
            Debtor::All => {
                if let Some(untold) = &self.untold {
                    untold.clear(None);
                }
                return self.clear_all(now);
            }
            Debtor::Client(client) => with_client(*client, |facts| key.digest(self.seed, facts)),
            Debtor::Key(text) => key.digest_of_text(self.seed, text),
        };
        let (Some(digest), Buckets::Each(table)) = (digest, &self.buckets) else { return false };
        if let Some(untold) = &self.untold {
            untold.clear(Some(digest));
        }
        self.refused.forget(digest);
        table.clear(digest, now)
    }

    /// Clears the debt of the key with this digest, or all debts; other Weirs are not told.
    pub(crate) fn clear_here(&self, key: Option<Digest>, now: Ticks) {
        let _ = match (key, &self.buckets) {
            (Some(digest), Buckets::Each(table)) => {
                self.refused.forget(digest);
                table.clear(digest, now)
            }
            _ => self.clear_all(now),
        };
    }

    fn clear_all(&self, now: Ticks) -> bool {
        self.refused.forget_all();
        match &self.buckets {
            Buckets::One(full_at) => full_at.swap(0, Relaxed) > now,
            Buckets::Each(table) => table.clear_all(now),
        }
    }

    /// Records the key of a refused request.
    pub fn note_refusal(&self, facts: &Facts<'_>, now: Duration) {
        let key = &self.settings.key;
        let digest = key.digest(self.seed, facts).unwrap_or_default();
        self.refused.note(digest, now, || key.remembered(facts));
    }

    /// The number of refusals, and the keys refused most often, at most `most`.
    pub fn refused_keys(&self, most: usize, now: Duration) -> (u64, Vec<RefusedKey>) {
        let at = ticks(now);
        self.refused.list(most, now, |digest, key| {
            let full_at = self.full_at(Some(digest), at);
            let wait = self.bucket.take(full_at, at).err().map(duration);
            RefusedKey { wait: Some(wait.unwrap_or_default()), ..key }
        })
    }

    /// Number of keys with debts. Looks at every bucket: some milliseconds if it has room for a million.
    pub fn owing(&self, now: Duration) -> u64 {
        match &self.buckets {
            Buckets::One(full_at) => u64::from(full_at.load(Relaxed) > ticks(now)),
            Buckets::Each(table) => table.owing(ticks(now)),
        }
    }

    /// The charge to make once the request is answered, if there is a token; `Err` says how long until there
    /// is one. Takes no token.
    pub fn foresee(self: &Arc<Self>, facts: &Facts<'_>, now: Duration) -> Result<Charge, Duration> {
        let key = self.settings.key.digest(self.seed, facts);
        let now = ticks(now);
        self.bucket.take(self.full_at(key, now), now).map_err(duration)?;
        Ok(Charge { limiter: self.clone(), key })
    }

    /// Whole tokens available to a request.
    pub fn tokens(&self, facts: &Facts<'_>, now: Duration) -> u64 {
        let now = ticks(now);
        self.bucket.tokens(self.full_at(self.settings.key.digest(self.seed, facts), now), now)
    }

    fn full_at(&self, key: Option<Digest>, now: Ticks) -> Ticks {
        match (&self.buckets, key) {
            (Buckets::Each(table), Some(digest)) => table.full_at(digest, now),
            (Buckets::One(full_at), _) => full_at.load(Relaxed),
            (Buckets::Each(_), None) => 0,
        }
    }

    /// How often a key found no bucket of its own (count).
    pub fn overflowed(&self) -> u64 {
        match &self.buckets {
            Buckets::One(_) => 0,
            Buckets::Each(table) => table.overflowed(),
        }
    }
}

/// A request whose answer will be counted once its status is known.
pub(crate) struct Charge {
    limiter: Arc<RateLimiter>,
    key: Option<Digest>,
}

impl Charge {
    /// Takes a token if the limit counts answers with this status. If others have taken the last ones
    /// meanwhile, it becomes a debt.
    pub fn answered(self, status: u16, now: Duration) {
        let RateLimiter { settings, bucket, buckets, untold, .. } = &*self.limiter;
        if !settings.counts(status) {
            return;
        }
        let now = ticks(now);
        match (buckets, self.key) {
            (Buckets::Each(table), Some(digest)) => table.charge(digest, bucket, now),
            (Buckets::One(full_at), _) => {
                let _ = full_at.fetch_update(Relaxed, Relaxed, |full_at| Some(bucket.charge(full_at, now)));
            }
            (Buckets::Each(_), None) => {}
        }
        if let Some(untold) = untold {
            untold.note(settings.key.is_whole(), 1);
        }
    }
}
