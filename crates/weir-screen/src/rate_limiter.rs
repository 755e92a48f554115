//! One rate limit at work.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::bucket::{Bucket, duration, ticks};
use crate::screen::Facts;
use crate::settings::RateLimit;
use crate::table::{Table, take_shared};

/// A limit with its buckets, shared by all workers.
pub(crate) struct RateLimiter {
    pub settings: RateLimit,
    bucket: Bucket,
    buckets: Buckets,
    seed: [u64; 2],
}

enum Buckets {
    /// One for all.
    One(AtomicU64),
    /// One for each key.
    Each(Table),
}

impl RateLimiter {
    pub fn new(settings: &RateLimit, seed: [u64; 2]) -> RateLimiter {
        let buckets = match settings.key.is_whole() {
            true => Buckets::One(AtomicU64::new(0)),
            false => Buckets::Each(Table::new(settings.keys)),
        };
        let bucket = Bucket::new(settings.rate, settings.burst);
        RateLimiter { settings: settings.clone(), bucket, buckets, seed }
    }

    /// Takes a token; `Err` says after which time there will be one. Does not allocate; one short critical
    /// section at most.
    pub fn take(&self, facts: &Facts<'_>, now: Duration) -> Result<(), Duration> {
        let now = ticks(now);
        let taken = match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.take(digest, &self.bucket, now),
            (Buckets::One(full_at), _) => take_shared(full_at, &self.bucket, now),
            // No limit by key gives no digest.
            (Buckets::Each(_), None) => Ok(()),
        };
        taken.map_err(duration)
    }

    /// Puts a token back that was not used.
    pub fn give_back(&self, facts: &Facts<'_>, now: Duration) {
        match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.give_back(digest, &self.bucket, ticks(now)),
            (Buckets::One(full_at), _) => {
                let put = |full_at| Some(self.bucket.give_back(full_at));
                let _ = full_at.fetch_update(Relaxed, Relaxed, put);
            }
            (Buckets::Each(_), None) => {}
        }
    }

    /// Whole tokens that a request would find.
    pub fn tokens(&self, facts: &Facts<'_>, now: Duration) -> u64 {
        let now = ticks(now);
        let full_at = match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.full_at(digest, now),
            (Buckets::One(full_at), _) => full_at.load(Relaxed),
            (Buckets::Each(_), None) => 0,
        };
        self.bucket.tokens(full_at, now)
    }

    /// Times a key found no bucket of its own, count.
    pub fn overflowed(&self) -> u64 {
        match &self.buckets {
            Buckets::One(_) => 0,
            Buckets::Each(table) => table.overflowed(),
        }
    }
}
