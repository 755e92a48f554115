//! Whether a request meets maintenance, and which pool serves when its own can't: what an operator's switch
//! and the state of the pools make of a plan. The one place that decides both, for the data path and for
//! `weir explain`. Pure but for the state that it looks at.

use std::net::IpAddr;
use std::sync::Arc;

use weir_balance::TierKind;
use weir_io::clock;
use weir_state::maintenance::{Maintenance, Scope, Whereto};

use crate::http::pages::Pages;

/// What clients are told while their part of the service is in maintenance, and who gets through.
#[derive(Debug)]
pub struct Closing {
    config: weir_config::Maintenance,
    /// What is told.
    pub pages: Option<Arc<Pages>>,
}

impl Closing {
    /// Compiles what a listener or a route says of it, or what holds without a word. `pages` are those of its
    /// errors.
    pub fn compile(config: Option<&weir_config::Maintenance>, pages: Option<&Arc<Pages>>) -> Closing {
        let config = config.cloned().unwrap_or_default();
        let own = config.page();
        Closing { config, pages: Pages::compile(own.as_slice(), pages) }
    }

    /// What `retry-after` says.
    pub fn retry_after_seconds(&self) -> u64 {
        self.config.retry_after.as_secs()
    }

    /// The part of the service in maintenance that keeps this client out; `None` where it is served. One load
    /// of an atomic while there is none.
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

    /// Whether `pool` gets nothing for this client, as it is in maintenance: one that comes beside the pool
    /// of the request, or in its place. The costs are those of [`Self::keeps_out`].
    pub fn keeps_from(&self, maintenance: &Maintenance, pool: &str, client: IpAddr) -> bool {
        let whereto = || Whereto { listener: "", route: None, pool: Some(pool) };
        self.keeps_out(maintenance, whereto, client).is_some()
    }
}

/// The pool that serves now, by index: `first`, or where none of its backends can or its breaker is open, the
/// first of its `fallbacks` of which one can and that is not in maintenance (`is_closed`). `first` where
/// nobody can.
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

/// Why nobody of the pool is asked now, in words; `None` where somebody is. Of one that is asked beside the
/// pool of a request, in whose place no other answers.
pub fn unasked(pool: &weir_balance::Pool) -> Option<&'static str> {
    match pool.tier() {
        None => Some("has no backend left"),
        Some(_) if !is_let_through(pool) => Some("has its breaker open"),
        Some(_) => None,
    }
}

/// Whether the pool's breaker, where it has one, lets a request through.
fn is_let_through(pool: &weir_balance::Pool) -> bool {
    pool.breaker().is_none_or(|(breaker, settings)| breaker.lets_through(clock::now(), settings))
}
