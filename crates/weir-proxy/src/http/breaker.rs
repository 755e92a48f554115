//! Asks a pool's circuit breaker before a backend is asked, and reports the outcome to it.

use std::rc::Rc;
use std::time::Duration;

use weir_balance::{Admitted, Turn};
use weir_io::clock;

use crate::backends::WorkerPool;
use crate::http::failure::Failure;

/// A request that its pool's breaker let through.
pub struct Passed {
    pool: Rc<WorkerPool>,
    /// `None` once the outcome has been reported to the breaker.
    admitted: Option<Admitted>,
}

impl Passed {
    /// Asks the breaker; `None` if the pool has none.
    ///
    /// # Errors
    /// The breaker is open.
    #[inline]
    pub fn ask(pool: &Rc<WorkerPool>, now: impl FnOnce() -> Duration) -> Result<Option<Passed>, Failure> {
        let Some((breaker, settings)) = pool.shared.balance.breaker() else { return Ok(None) };
        match breaker.admit(now(), settings) {
            Ok(admitted) => Ok(Some(Passed { pool: pool.clone(), admitted: Some(admitted) })),
            Err(left) => {
                let retry_after_seconds = left.as_millis().div_ceil(1000).max(1) as u64;
                Err(Failure::BreakerOpen { retry_after_seconds })
            }
        }
    }

    /// Reports whether the request failed.
    pub fn tell(mut self, failed: bool) {
        let Some((admitted, (breaker, settings))) =
            self.admitted.take().zip(self.pool.shared.balance.breaker())
        else {
            return;
        };
        let pool = &self.pool.shared.config.name;
        match breaker.observe(admitted, failed, clock::now(), settings) {
            None => {}
            Some(Turn::Opened(length)) => {
                self.pool.cells().breaker_opened.increment();
                tracing::warn!(pool, ?length, "breaker opened: requests to the pool fail");
            }
            Some(Turn::Closed) => tracing::info!(pool, "breaker closed: all trials went well"),
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some((admitted, (breaker, _))) = self.admitted.take().zip(self.pool.shared.balance.breaker()) {
            breaker.forget(admitted);
        }
    }
}
