//! The tables of what is kept of responses, as text again.

use super::{duration, list, size, text};
use crate::schema::*;

/// `[cache]`.
pub(super) fn section(cache: &Cache) -> Vec<(&'static str, String)> {
    let memory = cache.memory_bytes.map(|most| ("memory", size(most)));
    let background = ("background_fetches", cache.background_fetches.to_string());
    memory.into_iter().chain([background]).collect()
}

/// `cache` of a route.
pub(super) fn route(cache: &RouteCache) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    keys.extend(cache.ttl.map(|value| ("ttl", duration(value))));
    keys.extend(cache.ttl_max.map(|value| ("ttl_max", duration(value))));
    keys.extend(cache.negative_ttl.map(|value| ("negative_ttl", duration(value))));
    keys.push(("ignore_query", cache.ignore_query.to_string()));
    for (name, values) in [("query_only", &cache.query_only), ("query_without", &cache.query_without)] {
        if !values.is_empty() {
            keys.push((name, list(values, |value| text(value))));
        }
    }
    if !cache.ignore_query {
        keys.push(("query_sort", cache.query_sort.to_string()));
    }
    for (name, values) in [("key_headers", &cache.key_headers), ("key_cookies", &cache.key_cookies)] {
        if !values.is_empty() {
            keys.push((name, list(values, |value| text(value))));
        }
    }
    let set_cookie = match cache.set_cookie {
        SetCookie::Refuse => "refuse",
        SetCookie::Strip => "strip",
    };
    keys.push(("set_cookie", text(set_cookie)));
    keys.extend(cache.stale_while_revalidate.map(|value| ("stale_while_revalidate", duration(value))));
    keys.extend(cache.stale_if_error.map(|value| ("stale_if_error", duration(value))));
    keys.push(("object_max", size(cache.object_max_bytes)));
    keys.push(("collapse_timeout", duration(cache.collapse_timeout)));
    keys.push(("honour_client", cache.honour_client.to_string()));
    keys
}
