//! The state of a limit, for display.

use std::time::Duration;

use crate::concurrency::ConcurrencyLimiter;
use crate::rate_limiter::RateLimiter;
use crate::refused_keys::RefusedKey;
use crate::screen::Screen;
use crate::settings::{ConcurrencyLimit, RateLimit};

/// The state of a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitStatus {
    /// Its settings.
    pub rule: LimitRule,
    /// Keys with debts, or with requests in progress (count).
    pub tracked: u64,
    /// Most keys that it distinguishes; `None` if it counts all together, or counts requests in progress.
    pub room: Option<u32>,
    /// How often a key found no bucket of its own (count).
    pub overflowed: u64,
    /// How often it refused, or would have in a dry run (count).
    pub refused: u64,
    /// The keys it refused, most often refused first.
    pub refused_keys: Vec<RefusedKey>,
    /// Whether it counts together with other Weirs.
    pub is_shared: bool,
}

/// The settings of a limit.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitRule {
    /// A rate limit.
    Rate(RateLimit),
    /// A concurrency limit.
    Concurrency {
        /// As configured.
        settings: ConcurrencyLimit,
        /// The current limit.
        max: u32,
    },
}

impl Screen {
    /// The state of each of its limits, rate limits first, each with at most `most` of the keys it has
    /// refused. Takes milliseconds if a limit has room for a million keys.
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
        is_shared: limiter.untold.is_some(),
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
        is_shared: false,
    }
}
