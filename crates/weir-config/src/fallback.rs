//! `fallback_pool` of a pool or a route: which pool serves when no backend of a pool can.

use crate::fields::Fields;
use crate::named_pool;
use crate::protocol::{Protocol, spoken};
use crate::report::Findings;

/// The fallbacks of the pool that `fields` (a listener or a route) names, in the order in which they are
/// tried: the route's fallback, otherwise the pool's, and then the fallback of that pool. Ends before a pool
/// that is in the chain already.
pub(crate) fn chain<'f>(root: &'f Fields, fields: &'f Fields) -> Vec<&'f str> {
    let Some(first) = fields.text("pool") else { return Vec::new() };
    let of_pool = |name: &str| {
        root.named("pool").find(|pool| pool.name == name).and_then(|pool| pool.text("fallback_pool"))
    };
    follow(first, fields.text("fallback_pool").or_else(|| of_pool(first)), of_pool)
}

/// Follows the fallbacks from pool to pool, until there is none or it is in the chain already.
pub(crate) fn follow<'n>(
    first: &str,
    mut next: Option<&'n str>,
    of_pool: impl Fn(&str) -> Option<&'n str>,
) -> Vec<&'n str> {
    let mut chain = Vec::new();
    while let Some(name) = next.filter(|name| *name != first && !chain.contains(name)) {
        chain.push(name);
        next = of_pool(name);
    }
    chain
}

/// Reports fallbacks that don't exist, that form a cycle, or that are never used.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    for pool in root.named("pool") {
        named(root, pool, &pool.name, findings);
        circle(root, pool, findings);
    }
    for listener in root.named("listener") {
        let is_http = spoken(listener).is_none_or(|protocol| protocol == Protocol::Http);
        for (_, route) in listener.tables("route").filter(|_| is_http) {
            let Some(entry) = route.get("fallback_pool") else { continue };
            match route.text("pool") {
                Some(pool) => named(root, route, pool, findings),
                None if route.lacks("pool") => {
                    let hint = "only what goes to a `pool` can go to another in its place";
                    findings.error(entry.key, "`fallback_pool` needs `pool`", hint);
                }
                None => {}
            }
        }
    }
}

/// Checks that the fallback of `pool` in `fields` is another pool of the file.
fn named(root: &Fields, fields: &Fields, pool: &str, findings: &mut Findings<'_>) {
    if fields.text("fallback_pool") == Some(pool) {
        let hint = "name another pool, or leave it out";
        let message = format!("pool `{pool}` cannot be its own fallback");
        findings.error(fields.at("fallback_pool"), message, hint);
        return;
    }
    named_pool::exists(root, fields, "fallback_pool", findings);
}

/// Reports a cycle of pools once, at the one of its pools that comes first in the file.
fn circle(root: &Fields, pool: &Fields, findings: &mut Findings<'_>) {
    let find = |name: &str| root.named("pool").find(|other| other.name == name);
    let mut names = vec![pool.name.as_str()];
    let mut at = pool;
    while let Some(next) = at.text("fallback_pool").and_then(find) {
        if next.name == pool.name {
            let is_first = names.iter().filter_map(|name| find(name)).all(|other| pool.at <= other.at);
            if names.len() > 1 && is_first {
                names.push(&pool.name);
                let hint = format!("{}; take one of them out", names.join(" -> "));
                findings.error(pool.at("fallback_pool"), "fallback pools lead in a circle", hint);
            }
            return;
        }
        if names.contains(&next.name.as_str()) {
            return;
        }
        names.push(&next.name);
        at = next;
    }
}
