//! The parts of a config that are about keeping responses.

use super::collect;
use crate::fields::Fields;
use crate::schema::*;
use crate::values::Value;

pub(super) fn cache(fields: &Fields) -> Cache {
    Cache {
        memory_bytes: fields.optional_number("memory"),
        background_fetches: fields.count("background_fetches"),
    }
}

/// `cache` of a route.
pub(super) fn route_cache(route: &Fields) -> Option<RouteCache> {
    let Some(Value::Table(fields)) = route.value("cache") else { return None };
    let texts = |name: &str| {
        collect(fields, name, |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    };
    Some(RouteCache {
        ttl: fields.optional_duration("ttl"),
        ttl_max: fields.optional_duration("ttl_max"),
        negative_ttl: fields.optional_duration("negative_ttl"),
        ignore_query: fields.flag("ignore_query"),
        query_only: texts("query_only"),
        query_without: texts("query_without"),
        query_sort: fields.flag("query_sort"),
        key_headers: texts("key_headers"),
        key_cookies: texts("key_cookies"),
        set_cookie: match fields.word("set_cookie") {
            "strip" => SetCookie::Strip,
            _ => SetCookie::Refuse,
        },
        stale_while_revalidate: fields.optional_duration("stale_while_revalidate"),
        stale_if_error: fields.optional_duration("stale_if_error"),
        object_max_bytes: fields.number("object_max"),
        collapse_timeout: fields.duration("collapse_timeout"),
        honour_client: fields.flag("honour_client"),
    })
}
