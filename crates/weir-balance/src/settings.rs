//! The settings of one pool that concern choosing.

use crate::{Algorithm, BreakerSettings, LastResort, Readers, RetryShare};
use std::time::Duration;

/// The settings of one pool that concern choosing. Ranges are checked by weir-config; this crate stays
/// well-behaved (no panic, no endless loop) outside them.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How to choose.
    pub algorithm: Algorithm,
    /// For `source` and `hash`: no backend takes more than this factor times its fair share of the requests
    /// in flight (1.0 exclusive to 10.0, usually 1.25). `None`: the owner of a key takes it whatever its
    /// load.
    pub hash_bound: Option<f64>,
    /// How long a backend that came back takes to reach its full weight. `None` or zero: at once.
    pub slow_start: Option<Duration>,
    /// When failing traffic takes a backend out without waiting for a probe. `None`: never.
    pub passive: Option<Passive>,
    /// Good probes in a row that bring a backend up (at least 1).
    pub rise: u32,
    /// Bad probes in a row that take a backend down (at least 1).
    pub fall: u32,
    /// Which backends are tried when none is up.
    pub last_resort: LastResort,
    /// Below this share (0.0..=1.0) of healthy ordinary backends, all of them are used, healthy or not.
    /// `None`: never.
    pub panic_below: Option<f64>,
    /// When to stop sending to the whole pool. `None`: never.
    pub breaker: Option<BreakerSettings>,
    /// Retries allowed, as a share of recent requests and per second.
    pub retries: RetryShare,
    /// Which backends serve reads, if backends have roles. `None`: they have none, and requested roles are
    /// ignored.
    pub readers: Option<Readers>,
}

impl Settings {
    /// A pool that uses its unhealthy backends when few are healthy also does so when none is.
    pub(crate) fn last_resort_in_force(&self) -> LastResort {
        if self.panic_below.is_some() { LastResort::All } else { self.last_resort }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            algorithm: Algorithm::RoundRobin,
            hash_bound: None,
            slow_start: None,
            passive: None,
            rise: 2,
            fall: 3,
            last_resort: LastResort::Late,
            panic_below: None,
            breaker: None,
            retries: RetryShare::default(),
            readers: None,
        }
    }
}

/// When failing traffic ejects a backend: `passive = { errors, within, eject, max_ejected }`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Passive {
    /// Failures (count, at least 1) …
    pub errors: u32,
    /// … within this time eject.
    pub within: Duration,
    /// Length of a first ejection; the k-th in a row lasts k times as long, at most ten times.
    pub eject: Duration,
    /// Largest share (0.0..=1.0) of the backends that could serve that may be ejected at once.
    pub max_ejected: f64,
    /// Ejects backends that fail much more often than the others. `None`: never.
    pub success_rate: Option<SuccessRate>,
}

/// When a backend fails so much more often than the others that it is ejected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SuccessRate {
    /// The time over which requests are counted before each comparison.
    pub interval: Duration,
    /// How many standard deviations below the mean are too far.
    pub factor: f64,
    /// Backends (count) with enough requests that a comparison needs.
    pub min_backends: u32,
    /// Requests (count) in one interval that a backend needs to be compared.
    pub min_requests: u64,
}

impl Default for Passive {
    fn default() -> Self {
        Passive {
            errors: 5,
            within: Duration::from_secs(10),
            eject: Duration::from_secs(10),
            max_ejected: 0.5,
            success_rate: None,
        }
    }
}
