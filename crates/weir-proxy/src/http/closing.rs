//! Decides whether a request meets maintenance, and which pool serves if the requested one can't, from an
//! operator's switch and the state of the pools. Nothing else decides either; the data path and `weir
//! explain` both use it. Pure but for the state that it reads.

use std::net::IpAddr;
use std::sync::Arc;

use weir_balance::TierKind;
use weir_io::clock;
use weir_state::maintenance::{Maintenance, Scope, Whereto};

use crate::http::pages::Pages;

/// What clients get while their part of the service is in maintenance, and which clients get through.
#[derive(Debug)]
pub struct Closing {
    config: weir_config::Maintenance,
    /// The error pages.
    pub pages: Option<Arc<Pages>>,
}

impl Closing {
    /// Compiles the settings of a listener or a route, or the defaults. `pages` are its pages for errors.
    pub fn compile(config: Option<&weir_config::Maintenance>, pages: Option<&Arc<Pages>>) -> Closing {
        let config = config.cloned().unwrap_or_default();
        let own = config.page();
        Closing { config, pages: Pages::compile(own.as_slice(), pages) }
    }

    /// The value of `retry-after`.
    pub fn retry_after_seconds(&self) -> u64 {
        self.config.retry_after.as_secs()
    }

    /// The part of the service in maintenance that keeps this client out; `None` if the client is served.
    /// Costs one atomic load while nothing is in maintenance.
    #[inline]
    pub fn keeps_out<'w>(
        &self,
        maintenance: &Maintenance,
        whereto: impl FnOnce() -> Whereto<'w>,
        client: IpAddr,
    ) -> Option<Scope> {
        if !maintenance.is_any() {
            return None;
        }
        let scope = maintenance.of(&whereto())?;
        (!weir_config::contains(&self.config.allow, client)).then_some(scope)
    }

    /// Whether `pool` is in maintenance for this client; for a pool that is asked in addition to the
    /// request's pool, or in its place. The costs are those of [`Self::keeps_out`].
    pub fn keeps_from(&self, maintenance: &Maintenance, pool: &str, client: IpAddr) -> bool {
        let whereto = || Whereto { listener: "", route: None, pool: Some(pool) };
        self.keeps_out(maintenance, whereto, client).is_some()
    }
}

/// The index of the pool that serves now: `first`; or, if none of its backends can or its breaker is open,
/// the first of its `fallbacks` that has one that can and is not in maintenance (`is_closed`). `first` if no
/// pool can.
#[inline]
pub fn serving<'p>(
    first: usize,
    fallbacks: &[usize],
    pool: impl Fn(usize) -> &'p weir_balance::Pool,
    is_closed: impl Fn(usize) -> bool,
) -> usize {
    if fallbacks.is_empty() {
        return first;
    }
    let can_serve = |index: &usize| {
        let pool = pool(*index);
        pool.tier().is_some_and(|tier| tier != TierKind::LastResort) && is_let_through(pool)
    };
    let open = fallbacks.iter().copied().filter(|&index| !is_closed(index));
    std::iter::once(first).chain(open).find(can_serve).unwrap_or(first)
}

/// Why the pool can't be asked now, in words; `None` if it can. For a pool that is asked in addition to a
/// request's pool, and has no fallbacks.
pub fn unasked(pool: &weir_balance::Pool) -> Option<&'static str> {
    match pool.tier() {
        None => Some("has no backend left"),
        Some(_) if !is_let_through(pool) => Some("has its breaker open"),
        Some(_) => None,
    }
}

/// Whether the pool's breaker, if it has one, lets a request through.
fn is_let_through(pool: &weir_balance::Pool) -> bool {
    pool.breaker().is_none_or(|(breaker, settings)| breaker.lets_through(clock::now(), settings))
}
