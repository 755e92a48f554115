//! Routes that can never match, because an earlier one takes everything they would.

use crate::fields::Fields;
use crate::report::Findings;
use crate::schema::{HostPattern, Listener, PathPattern, Route};
use crate::values::Value;

/// Routes of one listener that are compared with each other (count). The comparison takes time in proportion to the square.
const MOST: usize = 2000;

pub(super) fn check(listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    let places: Vec<_> = fields
        .list("route")
        .iter()
        .filter_map(|(at, value)| matches!(value, Value::Table(_)).then_some(*at))
        .collect();
    for (index, route) in listener.routes.iter().enumerate().take(MOST) {
        let earlier = listener.routes[..index].iter().position(|earlier| covers(earlier, route));
        if let (Some(earlier), Some(at)) = (earlier, places.get(index)) {
            let by = &listener.routes[earlier];
            let place = places.get(earlier).map_or_else(String::new, |at| findings.place(*at));
            let all = if takes_all(by) { "every request" } else { "all of them" };
            let hint = format!("the earlier route `{}` ({place}) takes {all}; first match wins", by.name);
            findings.warning(*at, format!("the route `{}` can never match", route.name), hint);
        }
    }
}

fn takes_all(route: &Route) -> bool {
    let path = route.path.is_empty() || route.path.contains(&PathPattern::Prefix("/".to_owned()));
    route.host.is_empty()
        && route.sni.is_empty()
        && path
        && route.method.is_empty()
        && route.header.is_empty()
}

/// Whether `earlier` takes every request that `later` takes.
fn covers(earlier: &Route, later: &Route) -> bool {
    covers_all(&earlier.host, &later.host, host_covers)
        && covers_all(&earlier.sni, &later.sni, host_covers)
        && (earlier.path.contains(&PathPattern::Prefix("/".to_owned()))
            || covers_all(&earlier.path, &later.path, path_covers))
        && covers_all(&earlier.method, &later.method, |a, b| a == b)
        && earlier.header.iter().all(|(name, value)| {
            let asked = later.header.get(name);
            asked.is_some_and(|asked| value == "*" || value == asked)
        })
}

fn covers_all<T>(earlier: &[T], later: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    earlier.is_empty()
        || (!later.is_empty()
            && later.iter().all(|later| earlier.iter().any(|earlier| covers(earlier, later))))
}

fn host_covers(earlier: &HostPattern, later: &HostPattern) -> bool {
    match (earlier, later) {
        (HostPattern::Exact(a), HostPattern::Exact(b)) => a == b,
        (HostPattern::Suffix(a), HostPattern::Exact(b) | HostPattern::Suffix(b)) => b.ends_with(a.as_str()),
        (HostPattern::Exact(_), HostPattern::Suffix(_)) => false,
    }
}

fn path_covers(earlier: &PathPattern, later: &PathPattern) -> bool {
    match (earlier, later) {
        (PathPattern::Exact(a), PathPattern::Exact(b)) => a == b,
        (PathPattern::Prefix(a), PathPattern::Exact(b) | PathPattern::Prefix(b)) => b.starts_with(a.as_str()),
        (PathPattern::Suffix(a), PathPattern::Exact(b) | PathPattern::Suffix(b)) => b.ends_with(a.as_str()),
        (PathPattern::Contains(a), PathPattern::Exact(b))
        | (PathPattern::Contains(a), PathPattern::Prefix(b))
        | (PathPattern::Contains(a), PathPattern::Suffix(b))
        | (PathPattern::Contains(a), PathPattern::Contains(b)) => b.contains(a.as_str()),
        _ => false,
    }
}
