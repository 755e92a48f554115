//! Copies of requests for another pool (`mirror` of a route): which there are. How they are made and sent
//! stands in [`copies`].

pub(crate) mod copies;

use std::sync::Arc;
use std::time::Duration;

use weir_balance::stable_hash;

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
    /// Compiles; those that `old` has under way count on.
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

    /// Whether a request with this id is copied. By other bits than those that a `split` goes by: else all
    /// copies of a share would be of one side.
    fn takes(&self, request_id: &[u8]) -> bool {
        let low = stable_hash(request_id) & ((1 << 53) - 1);
        (low as f64 / (1_u64 << 53) as f64) < self.share
    }

    /// Which copies go where, in words; `name` gives the name of a pool by its index.
    pub fn words<'n>(&self, name: impl Fn(usize) -> &'n str) -> String {
        let with = if self.credentials { "with" } else { "without" };
        format!(
            "{:.1} % of the requests are copied to pool {}, bodies up to {} bytes, {with} credentials",
            self.share * 100.0,
            name(self.pool),
            self.body_limit,
        )
    }
}
