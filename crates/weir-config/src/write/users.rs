//! Who uses a pool, which decides what of it means something.

use crate::schema::*;

/// What the listeners that name a pool speak.
pub(super) fn protocols<'c>(config: &'c Config, pool: &'c str) -> impl Iterator<Item = Protocol> + 'c {
    config.listeners.iter().filter_map(move |listener| {
        let by_route = || {
            listener
                .routes
                .iter()
                .any(|route| matches!(&route.action, RouteAction::Pool(name) if name == pool))
        };
        (listener.pool.as_deref() == Some(pool) || by_route()).then_some(listener.protocol)
    })
}
