//! How a limit stands, for people.

use std::time::Duration;

use crate::concurrency::ConcurrencyLimiter;
use crate::rate_limiter::RateLimiter;
use crate::refused_keys::RefusedKey;
use crate::screen::Screen;
use crate::settings::{ConcurrencyLimit, RateLimit};

/// How a limit stands.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitStatus {
    /// What it says.
    pub rule: LimitRule,
    /// Keys that owe it something, or have requests under way (count).
    pub tracked: u64,
    /// Keys that it tells apart at most; `None` where it counts all together, or requests under way.
    pub room: Option<u32>,
    /// Times a key found no bucket of its own, count.
    pub overflowed: u64,
    /// Times it refused, or would have in a dry run, count.
    pub refused: u64,
    /// Whom it refused, those most often first.
    pub refused_keys: Vec<RefusedKey>,
}

/// What a limit says.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitRule {
    /// How many in which time.
    Rate(RateLimit),
    /// How many at once.
    Concurrency {
        /// As the config says it.
        settings: ConcurrencyLimit,
        /// As many as may be under way now.
        max: u32,
    },
}

impl Screen {
    /// How each of its limits stands, those of rate first, each with at most `most` of the keys that it has
    /// refused. Takes milliseconds where a limit has room for a million keys.
    pub fn limits(&self, most: usize, now: Duration) -> Vec<LimitStatus> {
        let rates = self.rates.iter().map(|limiter| of_rate(limiter, most, now));
        rates.chain(self.concurrencies.iter().map(|limiter| of_concurrency(limiter, most, now))).collect()
    }
}

fn of_rate(limiter: &RateLimiter, most: usize, now: Duration) -> LimitStatus {
    let (refused, refused_keys) = limiter.refused_keys(most, now);
    let settings = &limiter.settings;
    LimitStatus {
        rule: LimitRule::Rate(settings.clone()),
        tracked: limiter.owing(now),
        room: (!settings.key.is_whole()).then_some(settings.keys),
        overflowed: limiter.overflowed(),
        refused,
        refused_keys,
    }
}

fn of_concurrency(limiter: &ConcurrencyLimiter, most: usize, now: Duration) -> LimitStatus {
    let (refused, refused_keys) = limiter.refused_keys(most, now);
    LimitStatus {
        rule: LimitRule::Concurrency { settings: limiter.settings.clone(), max: limiter.limit() },
        tracked: limiter.counted(),
        room: None,
        overflowed: 0,
        refused,
        refused_keys,
    }
}
