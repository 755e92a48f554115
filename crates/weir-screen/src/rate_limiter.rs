//! One rate limit at work.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::bucket::{Bucket, Ticks, duration, ticks};
use crate::digest::Digest;
use crate::refused_keys::{RefusedKey, RefusedKeys};
use crate::screen::{Facts, with_client};
use crate::settings::RateLimit;
use crate::table::{Table, change_shared};

/// A limit with its buckets, shared by all workers.
pub(crate) struct RateLimiter {
    pub settings: RateLimit,
    bucket: Bucket,
    buckets: Buckets,
    refused: RefusedKeys,
    seed: [u64; 2],
}

/// Who owes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debtor<'a> {
    /// The client at this address, or its network where the limit counts by that; with limits by a header,
    /// a cookie or a text, who has no such value.
    Client(IpAddr),
    /// Who has this text as the limit's header, cookie or text.
    Key(&'a [u8]),
    /// Everybody, the one count of all together included.
    All,
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
        RateLimiter { settings: settings.clone(), bucket, buckets, refused: RefusedKeys::new(), seed }
    }

    /// Takes a token; `Err` says after which time there will be one. Does not allocate; one short critical
    /// section at most.
    pub fn take(&self, facts: &Facts<'_>, now: Duration) -> Result<(), Duration> {
        let now = ticks(now);
        let taken = match (&self.buckets, self.settings.key.digest(self.seed, facts)) {
            (Buckets::Each(table), Some(digest)) => table.take(digest, &self.bucket, now),
            (Buckets::One(full_at), _) => change_shared(full_at, |full_at| self.bucket.take(full_at, now)),
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

    /// Has what a debtor owes be as if it had never asked; whether it owed anything. The one count of all
    /// together is no client's and no key's.
    pub fn clear(&self, debtor: &Debtor<'_>, now: Duration) -> bool {
        let now = ticks(now);
        let key = &self.settings.key;
        let digest = match debtor {
            Debtor::All => {
                self.refused.forget_all();
                return match &self.buckets {
                    Buckets::One(full_at) => full_at.swap(0, Relaxed) > now,
                    Buckets::Each(table) => table.clear_all(now),
                };
            }
            Debtor::Client(client) => with_client(*client, |facts| key.digest(self.seed, facts)),
            Debtor::Key(text) => key.digest_of_text(self.seed, text),
        };
        let (Some(digest), Buckets::Each(table)) = (digest, &self.buckets) else { return false };
        self.refused.forget(digest);
        table.clear(digest, now)
    }

    /// A request found no token: notes whose it was.
    pub fn note_refusal(&self, facts: &Facts<'_>, now: Duration) {
        let key = &self.settings.key;
        let digest = key.digest(self.seed, facts).unwrap_or_default();
        self.refused.note(digest, now, || key.remembered(facts));
    }

    /// How often it refused, and the keys that it refused most, at most `most`.
    pub fn refused_keys(&self, most: usize, now: Duration) -> (u64, Vec<RefusedKey>) {
        let at = ticks(now);
        self.refused.list(most, now, |digest, key| {
            let full_at = self.full_at(Some(digest), at);
            let wait = self.bucket.take(full_at, at).err().map(duration);
            RefusedKey { wait: Some(wait.unwrap_or_default()), ..key }
        })
    }

    /// Keys that owe it something, count. Looks at every bucket: some milliseconds where it has room for a
    /// million.
    pub fn owing(&self, now: Duration) -> u64 {
        match &self.buckets {
            Buckets::One(full_at) => u64::from(full_at.load(Relaxed) > ticks(now)),
            Buckets::Each(table) => table.owing(ticks(now)),
        }
    }

    /// What the answer to a request will be counted by, where there is a token; `Err` says after which time
    /// there will be one. Takes none.
    pub fn foresee(self: &Arc<Self>, facts: &Facts<'_>, now: Duration) -> Result<Charge, Duration> {
        let key = self.settings.key.digest(self.seed, facts);
        let now = ticks(now);
        self.bucket.take(self.full_at(key, now), now).map_err(duration)?;
        Ok(Charge { limiter: self.clone(), key })
    }

    /// Whole tokens that a request would find.
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

    /// Times a key found no bucket of its own, count.
    pub fn overflowed(&self) -> u64 {
        match &self.buckets {
            Buckets::One(_) => 0,
            Buckets::Each(table) => table.overflowed(),
        }
    }
}

/// A request whose answer is counted once its status is known.
pub(crate) struct Charge {
    limiter: Arc<RateLimiter>,
    key: Option<Digest>,
}

impl Charge {
    /// The answer has this status: takes a token where the limit counts such. Where others took the last ones
    /// meanwhile, it is owed.
    pub fn answered(self, status: u16, now: Duration) {
        let RateLimiter { settings, bucket, buckets, .. } = &*self.limiter;
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
    }
}
