//! `mirror` of a route: copies of its requests sent to another pool, whose answers are ignored.

use std::time::Duration;

use crate::fields::Fields;
use crate::keys::{KIB, Limit, MIB, count, duration, factor, flag, seconds, size, text};
use crate::named_pool;
use crate::protocol::{Protocol, spoken};
use crate::report::Findings;
use crate::setting::table;
use crate::values::NAME;

table! {
    /// Sends copies of requests to another pool, such as that of a new version, and throws their answers
    /// away. The request itself is neither delayed nor changed by it.
    pub struct Mirror at "mirror = { … }" {
        /// The pool that gets the copies.
        pool: String = text(&NAME).required().also(&["backend", "upstream", "service", "cluster"]);
        /// Share of the requests that are copied, by a hash of their ids.
        share: f64 =
            factor(Limit::new(1.0, 0.0, 1.0, "a share of the requests: 1 is all of them"))
                .also(&["percent", "runtime_fraction", "ratio"]);
        /// Largest body of a request that is copied; it is held in memory until it is whole.
        body_limit_bytes as "body_limit": u64 =
            size(Limit::new(64 * KIB, 0, MIB, "it is held in memory for each request whose body is under way"))
                .also(&["maxBodySize", "max_body_size"]);
        /// Whether copies have what proves who somebody is: `authorization`, `proxy-authorization`, `cookie`.
        credentials: bool = flag(false);
        /// Most copies under way at once, over all workers; beyond it requests are not copied.
        max: u32 =
            count(Limit::new(100, 1, 1_000_000, "each may hold a body, and a connection"))
                .also(&["limit", "max_requests"]);
        /// For a copy and its answer, with all waits and tries.
        timeout: Duration =
            duration(Limit::new(seconds(5), Duration::from_millis(10), seconds(60), "nobody waits for the answer"));
    }
}

/// The pool that the mirror of a route names.
pub(crate) fn pools(route: &Fields) -> impl Iterator<Item = &str> {
    route.get("mirror").and_then(|_| route.table("mirror")).and_then(|mirror| mirror.text("pool")).into_iter()
}

/// Reports pools that don't exist or are the route's own, and routes that have nothing to copy.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    for listener in root.named("listener") {
        if spoken(listener).is_some_and(|protocol| protocol != Protocol::Http) {
            continue;
        }
        for (_, route) in listener.tables("route") {
            let Some((entry, mirror)) = route.get("mirror").zip(route.table("mirror")) else { continue };
            named_pool::exists(root, mirror, "pool", findings);
            if route.lacks("pool") {
                let hint = "only what goes to a pool is copied: add `pool`, or take `mirror` out";
                findings.error(entry.key, "`mirror` needs `pool`", hint);
            } else if mirror.text("pool").is_some() && mirror.text("pool") == route.text("pool") {
                let hint = "its backends would get each request twice";
                findings.error(mirror.at("pool"), "a pool cannot be the mirror of itself", hint);
            }
        }
    }
}
