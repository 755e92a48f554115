//! Copies of requests for another pool (`mirror` of a route): decides which requests are copied. [`copies`]
//! makes and sends them.

pub(crate) mod copies;

use std::sync::Arc;
use std::time::Duration;

use weir_balance::stable_hash;
use weir_http::RequestHead;
use weir_stats::table::MirrorResult;

use crate::http::cache::background::Background;

/// The mirror of a route.
pub struct Mirror {
    /// Index of the pool that gets the copies.
    pool: usize,
    share: f64,
    body_limit: usize,
    credentials: bool,
    timeout: Duration,
    under_way: Arc<Background>,
}

impl Mirror {
    /// Compiles the config; copies of `old` that are still running keep counting.
    pub fn compile(config: &weir_config::Mirror, pool: usize, old: Option<&Mirror>) -> Mirror {
        let under_way = match old {
            Some(old) => old.under_way.clone(),
            None => Arc::new(Background::new(config.max)),
        };
        under_way.set_most(config.max);
        Mirror {
            pool,
            share: config.share,
            body_limit: config.body_limit_bytes as usize,
            credentials: config.credentials,
            timeout: config.timeout,
            under_way,
        }
    }

    /// Whether a request with this id is copied. This uses other bits than a `split` does: otherwise all
    /// copies of a share would come from one side of the split.
    fn takes(&self, request_id: &[u8]) -> bool {
        let low = stable_hash(request_id) & ((1 << 53) - 1);
        (low as f64 / (1_u64 << 53) as f64) < self.share
    }

    /// Index of the pool that gets the copies.
    pub fn pool(&self) -> usize {
        self.pool
    }

    /// Which requests are copied to the pool of this name, in words, and whether this one would be;
    /// `is_closed` says whether that pool is in maintenance for its client.
    pub(super) fn words(
        &self,
        pool: &str,
        (request, text): (&RequestHead, &[u8]),
        is_closed: impl FnOnce() -> bool,
    ) -> String {
        let with = if self.credentials { "with" } else { "without" };
        let (percent, most) = (self.share * 100.0, self.body_limit);
        let words = format!(
            "{percent:.1} % of the requests are copied to pool {pool}, bodies up to {most} bytes, {with} credentials"
        );
        let why = match copies::left_out(request, text, is_closed) {
            _ if copies::is_tunnel(request, text) => "it asks for a tunnel",
            Some(MirrorResult::Looped) => "it is one itself (x-mirrored)",
            Some(_) => "that pool is in maintenance",
            None => return words,
        };
        format!("{words}; this one is not: {why}")
    }
}
