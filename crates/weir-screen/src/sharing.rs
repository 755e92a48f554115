//! Limits that several Weirs count together: what one tells the others, and what follows from what they say.
//!
//! Each Weir tells how many tokens each key has taken from it since it last said so ([`TokenCount`]), and the
//! others take these tokens from their own buckets. Such counts are told once, in order, over a connection.
//! On a new connection, a Weir first tells what each key owes ([`KeyDebt`]), whoever counted it; of this and
//! its own debt the other takes the larger one, so it does not matter how often it is told. Within a look at
//! some cells ([`SharedLimit::look`]) a token is either part of the debt or of a later count, never of both.
//!
//! Keys are told as digests by a seed that is derived from the secret of the Weirs, so no text or address
//! leaves a process. Times are relative: no clocks are compared.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::bucket::{Ticks, duration, ticks};
use crate::digest::digest;
use crate::rate_limiter::{Buckets, RateLimiter};
use crate::screen::Screen;
use crate::settings::RateLimit;

/// Digest domain of limits, beside those of keys.
const BY_LIMIT: u64 = 3;
/// The key of a limit that counts all together.
const WHOLE: SharedKey = [0; 2];

/// Stands for a key of a shared limit.
pub type SharedKey = [u64; 2];

/// Stands for a limit: equal on all Weirs that have the same limit at the same place.
pub type LimitId = [u64; 2];

/// Tokens that a key took from this Weir; negative if it returned more than it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// Whose.
    pub key: SharedKey,
    /// How many.
    pub tokens: i32,
}

/// What a key owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDebt {
    /// Whose.
    pub key: SharedKey,
    /// Time until its bucket is full again.
    pub owed: Duration,
}

/// What a look at a part of a limit found.
#[derive(Debug, Default)]
pub struct LimitLook {
    /// What keys took since the last look, each with its cell.
    pub counts: Vec<(usize, TokenCount)>,
    /// What the keys of the scanned cells owe.
    pub debts: Vec<KeyDebt>,
}

impl Screen {
    /// Its limits that are shared with other Weirs. `place` names the listener and the route: the limits of a
    /// place with the same settings are the same limit on all Weirs.
    pub fn shared_limits(&self, place: &[&str]) -> Vec<SharedLimit> {
        SharedLimit::of(&self.rates, place)
    }
}

/// A limit that several Weirs count together.
#[derive(Clone)]
pub struct SharedLimit {
    /// Stands for it.
    pub id: LimitId,
    limiter: Arc<RateLimiter>,
}

impl SharedLimit {
    /// Those of `limiters` that are shared, at this place.
    fn of(limiters: &[Arc<RateLimiter>], place: &[&str]) -> Vec<SharedLimit> {
        let mut texts: Vec<String> = Vec::new();
        let shared = limiters.iter().filter(|limiter| limiter.untold.is_some());
        let limit = |limiter: &Arc<RateLimiter>| {
            let RateLimit { rate, burst, statuses, key, at, .. } = &limiter.settings;
            let statuses: Vec<String> = statuses.iter().map(ToString::to_string).collect();
            let (place, key) = (place.join("\0"), key.identity());
            let text = format!("{place}\0{rate} {burst} {} {key}\0{}", at.word(), statuses.join(" "));
            let alike = texts.iter().filter(|other| **other == text).count();
            let id = digest(limiter.seed, BY_LIMIT, format!("{text}\0{alike}").as_bytes());
            texts.push(text);
            SharedLimit { id, limiter: limiter.clone() }
        };
        shared.map(limit).collect()
    }

    /// Whether it is this limit, with the same buckets.
    pub fn is_same(&self, other: &SharedLimit) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.limiter, &other.limiter)
    }

    /// Whether keys have taken or returned anything since this was last asked.
    pub fn is_touched(&self) -> bool {
        self.limiter.untold.as_ref().is_some_and(|untold| untold.is_touched())
    }

    /// Number of parts to look at, each of which is locked by itself.
    pub fn parts(&self) -> usize {
        match &self.limiter.buckets {
            Buckets::One(_) => 1,
            Buckets::Each(table) => table.shards(),
        }
    }

    /// Cells of each part (count).
    pub fn cells(&self) -> usize {
        match &self.limiter.buckets {
            Buckets::One(_) => 1,
            Buckets::Each(table) => table.shard_cells(),
        }
    }

    /// Takes what keys of a part have taken since the last look, and lists what those in the `scanned` cells
    /// owe. The lock is held for as long as the scan takes: a microsecond for some hundred cells.
    pub fn look(&self, part: usize, scanned: Range<usize>, now: Duration, look: &mut LimitLook) {
        let now = ticks(now);
        let LimitLook { counts, debts } = look;
        match (&self.limiter.buckets, &self.limiter.untold) {
            (Buckets::Each(table), _) => table.look(
                part,
                scanned,
                now,
                |cell, key, tokens| counts.push((cell, TokenCount { key, tokens })),
                |key, owed| debts.push(KeyDebt { key, owed: rounded_down(owed) }),
            ),
            (Buckets::One(full_at), Some(untold)) => {
                // In this order: what somebody takes in between is told by neither, and not by both.
                let full_at = full_at.load(Relaxed);
                let tokens = untold.take_whole();
                if tokens != 0 {
                    counts.push((0, TokenCount { key: WHOLE, tokens }));
                }
                if let (false, Some(owed)) = (scanned.is_empty(), full_at.checked_sub(now)) {
                    debts.push(KeyDebt { key: WHOLE, owed: rounded_down(owed) });
                }
            }
            (Buckets::One(_), None) => {}
        }
    }

    /// Keys whose debts an operator has cleared since this was last asked; `None` for all keys.
    pub fn cleared(&self) -> Vec<Option<SharedKey>> {
        self.limiter.untold.as_ref().map(|untold| untold.take_cleared()).unwrap_or_default()
    }

    /// Another Weir has said that a key took tokens from it, `age` ago.
    pub fn merge_count(&self, count: TokenCount, age: Duration, now: Duration) {
        let (at, now) = (ticks(now.saturating_sub(age)), ticks(now));
        let bucket = self.limiter.bucket;
        self.merge(count.key, now, |full_at| bucket.settle(full_at, count.tokens, [at, now]));
    }

    /// Another Weir has said what a key owes, as of now.
    pub fn merge_debt(&self, debt: KeyDebt, now: Duration) {
        let (owed, now) = (ticks(debt.owed), ticks(now));
        let bucket = self.limiter.bucket;
        self.merge(debt.key, now, |full_at| bucket.owe(full_at, owed, now));
    }

    /// Another Weir has said that an operator has cleared the debt of a key, or all debts.
    pub fn merge_clear(&self, key: Option<SharedKey>, now: Duration) {
        self.limiter.clear_here(key, ticks(now));
    }

    fn merge(&self, key: SharedKey, now: Ticks, next: impl Fn(Ticks) -> Ticks) {
        match &self.limiter.buckets {
            Buckets::Each(table) => table.merge(key, now, next),
            Buckets::One(full_at) => {
                let _ = full_at.fetch_update(Relaxed, Relaxed, |full_at| Some(next(full_at)));
            }
        }
    }
}

/// Not rounded up as a wait is: a debt must not cost a whole token because of a part of a nanosecond.
fn rounded_down(owed: Ticks) -> Duration {
    duration(owed.saturating_sub(ticks(Duration::from_nanos(1)) - 1))
}

#[cfg(test)]
mod tests;
