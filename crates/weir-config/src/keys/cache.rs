//! The tables of what is kept of responses.

use super::tables::word;
use super::{Key, Kind, Table};
use crate::limits as at;
use crate::values as shape;

/// `[cache]`
pub static CACHE: Table = Table {
    path: "[cache]",
    doc: "What all routes with a `cache` share.",
    keys: &[
        Key::new(
            "memory",
            Kind::Size(&at::CACHE_MEMORY),
            "Budget for everything that is kept, out of `runtime.memory`; what was not asked for the longest gives way.",
        )
        .default("1/8 of `runtime.memory`, at least 16MiB")
        .also(&["size", "total_max_size", "max_size", "keys_zone"]),
        Key::new(
            "background_fetches",
            Kind::Count(&at::BACKGROUND_FETCHES),
            "Fetches at once that no client waits for: of what was given out of date, and of clients that have left. Beyond it who is given the former waits for it himself, and the latter end.",
        )
        .also(&["background_update", "background_fill"]),
    ],
};

/// `[listener.NAME.route.cache]`
pub static ROUTE_CACHE: Table = Table {
    path: "[listener.NAME.route.cache]",
    doc: "Keeps responses in memory and answers from there, as RFC 9111 allows. An empty table switches it on.",
    keys: &[
        Key::new("ttl", Kind::Duration(&at::CACHE_TTL), "How long a response is fresh that says nothing of it itself.")
            .default("it is not kept")
            .also(&["default_ttl", "valid", "proxy_cache_valid", "max_age"]),
        Key::new("ttl_max", Kind::Duration(&at::CACHE_TTL), "No response is fresh for longer, whatever it says.")
            .default("no limit"),
        Key::new("negative_ttl", Kind::Duration(&at::CACHE_TTL), "As `ttl`, for 404, 405, 410, 414 and 501.")
            .default("they are not kept"),
        Key::new("ignore_query", Kind::Bool(false), "Requests that differ in the query only are the same."),
        Key::new("query_only", Kind::OneOrMany(&Kind::Text(&shape::PARAMETER)), "The only parameters of a query that count; a trailing `*` stands for any rest.")
            .default("all"),
        Key::new("query_without", Kind::OneOrMany(&Kind::Text(&shape::PARAMETER)), "Parameters of a query that do not count.")
            .default("none"),
        Key::new("query_sort", Kind::Bool(false), "The order of the parameters does not count."),
        Key::new("key_headers", Kind::OneOrMany(&Kind::Text(&shape::PROBED_HEADER)), "Request fields whose values count, beside those that the response's `vary` names.")
            .default("none")
            .also(&["vary", "headers"]),
        Key::new("key_cookies", Kind::OneOrMany(&Kind::Text(&shape::COOKIE_NAME)), "Cookies whose values count.")
            .default("none")
            .also(&["cookies"]),
        Key::new(
            "set_cookie",
            Kind::Word(
                &[word("refuse", "it is not kept"), word("strip", "it is kept without the cookie")],
                Some("refuse"),
            ),
            "What becomes of a response that sets a cookie.",
        ),
        Key::new("stale_while_revalidate", Kind::Duration(&at::CACHE_STALE), "How long past its freshness a response is given while it is fetched anew, where it does not say itself.")
            .default("not at all")
            .also(&["grace", "background_update"]),
        Key::new("stale_if_error", Kind::Duration(&at::CACHE_STALE), "How long past its freshness a response is given when it can't be fetched anew, where it does not say itself.")
            .default("not at all")
            .also(&["use_stale", "proxy_cache_use_stale", "keep"]),
        Key::new("object_max", Kind::Size(&at::CACHE_OBJECT_MAX), "Largest content that is kept; larger ones are passed on.")
            .also(&["max_object_size", "max_size", "max_file_size"]),
        Key::new("collapse_timeout", Kind::Duration(&at::COLLAPSE_TIMEOUT), "How long a request waits for an answer that another one has asked for already; then it asks for itself.")
            .also(&["lock_timeout", "proxy_cache_lock_timeout"]),
        Key::new("honour_client", Kind::Bool(true), "Does what a client's `cache-control` asks for; `false` takes no notice of it."),
    ],
};
