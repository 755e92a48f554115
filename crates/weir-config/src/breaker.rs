//! `breaker` of a pool: when to stop sending requests to it.

use std::time::Duration;

use crate::keys::{HOUR, Limit, count, duration, factor, millis, seconds};
use crate::setting::table;

table! {
    /// While most requests to the pool fail, further ones are refused at once (503), so that nobody waits for
    /// what will not come and backends can recover. Then a few are let through, and their answers decide.
    #[derive(Copy)]
    pub struct Breaker at "breaker = { … }" {
        /// Share of requests that must have failed: no backend answered, or the answer is 5xx.
        errors: f64 =
            factor(Limit::new(0.5, 0.01, 1.0, "a share of the requests, from 0.01 to 1"))
                .also(&["share", "ratio", "error_rate", "threshold"]);
        /// Of so many requests at least.
        of: u32 =
            count(Limit::new(20, 1, 1_000_000, "a few failures in a quiet hour say nothing"))
                .also(&["min_requests", "volume", "request_volume"]);
        /// Within this time.
        within: Duration =
            duration(Limit::new(seconds(10), seconds(1), HOUR, "it is counted in tenths of it"))
                .also(&["window", "interval"]);
        /// How long it refuses first; again after a failed trial it is longer, up to ten times.
        open as "for": Duration =
            duration(Limit::new(seconds(10), millis(100), HOUR, "the pool must get its chance again"))
                .also(&["open", "sleep", "eject", "timeout"]);
        /// Requests that are let through then, and must all go well.
        trials: u32 =
            count(Limit::new(3, 1, 1000, "one at least")).also(&["half_open", "probes", "permitted"]);
    }
}
