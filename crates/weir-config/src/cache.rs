//! `[cache]` and `[listener.NAME.route.cache]`: which responses are cached, and for how long.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{
    Each, HOUR, Key, Limit, MIB, Shape, TIB, count, duration, flag, list, millis, seconds, size, word,
};
use crate::report::{Findings, quote};
use crate::setting::{table, words};
use crate::units::{Refused, refuse};
use crate::values::http::{COOKIE_NAME, PROBED_HEADER, uri_characters};

table! {
    /// What all routes with a `cache` share.
    #[derive(Copy, Eq)]
    pub struct Cache at "[cache]" {
        /// Budget for everything that is kept, out of `runtime.memory`; what was not asked for the longest
        /// gives way.
        memory_bytes as "memory": Option<u64> =
            size(Limit::optional(MIB, 64 * TIB, "leave `cache` out of the routes to keep nothing"))
                .default("1/8 of `runtime.memory`, at least 16MiB")
                .also(&["size", "total_max_size", "max_size", "keys_zone"]);
        /// Fetches at once that no client waits for: of what was given out of date, and of clients that have
        /// left. Beyond it who is given the former waits for it himself, and the latter end.
        background_fetches: u32 =
            count(Limit::new(64, 1, 1_000_000, "each may occupy a backend for clients that have left"))
                .also(&["background_update", "background_fill"]);
    }
}

const YEAR: Duration = seconds(31_536_000);

const fn ttl() -> Key {
    let reason = "ages are told to clients in whole seconds; nothing is fresh for ever";
    duration(Limit::optional(seconds(1), YEAR, reason))
}

const fn stale() -> Key {
    duration(Limit::optional(seconds(1), YEAR, "ages are told to clients in whole seconds"))
        .default("not at all")
}

table! {
    /// Keeps responses in memory and answers from there, as RFC 9111 allows. An empty table switches it on.
    #[derive(Eq)]
    pub struct RouteCache at "[listener.NAME.route.cache]" {
        /// How long a response is fresh that says nothing of it itself.
        ttl: Option<Duration> =
            ttl()
                .default("it is not kept")
                .also(&["default_ttl", "valid", "proxy_cache_valid", "max_age"]);
        /// No response is fresh for longer, whatever it says.
        ttl_max: Option<Duration> = ttl().default("no limit");
        /// As `ttl`, for 404, 405, 410, 414 and 501.
        negative_ttl: Option<Duration> = ttl().default("they are not kept");
        /// Requests that differ in the query only are the same.
        ignore_query: bool = flag(false);
        /// The only parameters of a query that count; a trailing `*` stands for any rest.
        query_only: Vec<String> = list(Each::Text(&PARAMETER)).default("all");
        /// Parameters of a query that do not count.
        query_without: Vec<String> = list(Each::Text(&PARAMETER)).default("none");
        /// The order of the parameters does not count.
        query_sort: bool = flag(false);
        /// Request fields whose values count, beside those that the response's `vary` names.
        key_headers: Vec<String> =
            list(Each::Text(&PROBED_HEADER)).default("none").also(&["vary", "headers"]);
        /// Cookies whose values count.
        key_cookies: Vec<String> =
            list(Each::Text(&COOKIE_NAME)).default("none").also(&["cookies"]);
        /// What becomes of a response that sets a cookie.
        set_cookie: SetCookie = word(SetCookie::WORDS, "refuse");
        /// How long past its freshness a response is given while it is fetched anew, where it does not say
        /// itself.
        stale_while_revalidate: Option<Duration> = stale().also(&["grace", "background_update"]);
        /// How long past its freshness a response is given when it can't be fetched anew, where it does not
        /// say itself.
        stale_if_error: Option<Duration> = stale().also(&["use_stale", "proxy_cache_use_stale", "keep"]);
        /// Largest content that is kept; larger ones are passed on.
        object_max_bytes as "object_max": u64 =
            size(Limit::new(16 * MIB, 0, TIB, "each one puts out that much else; 0B keeps heads only"))
                .also(&["max_object_size", "max_size", "max_file_size"]);
        /// How long a request waits for an answer that another one has asked for already; then it asks for
        /// itself.
        collapse_timeout: Duration =
            duration(Limit::new(
                seconds(5),
                millis(1),
                HOUR,
                "a backend that is slower gets one request per client again",
            ))
            .also(&["lock_timeout", "proxy_cache_lock_timeout"]);
        /// Does what a client's `cache-control` asks for; `false` takes no notice of it.
        honour_client: bool = flag(true);
    }
}

words! {
    /// What becomes of a response that sets a cookie.
    pub enum SetCookie {
        Refuse = "refuse": "it is not kept",
        Strip = "strip": "it is kept without the cookie",
    }
}

static PARAMETER: Shape = Shape::new("a query parameter", "utm_*", parameter);

fn parameter(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a query parameter", quote(text));
    let name = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || text == "*" {
        return refuse(message, "expected a name such as \"utm_*\"; `ignore_query = true` leaves out all");
    }
    if name.contains('*') {
        return refuse(message, "a `*` stands only at the end, such as \"utm_*\"");
    }
    if let Some(at) = name.find(['=', '&', '?', '#']) {
        return refuse(message, format!("expected the name alone: \"{}\"", &name[..at]));
    }
    uri_characters(name).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

/// Reports keys of a route's `cache` that contradict each other or have no effect.
pub(crate) fn check(route: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = route.get("cache") else { return };
    let Value::Table(fields) = &entry.value else { return };
    for name in ["redirect", "respond"] {
        if route.get(name).is_some() && route.get("pool").is_none() {
            let hint = format!("there is nothing to keep: the route answers by `{name}`");
            findings.error(entry.key, format!("`cache` cannot stand beside `{name}`"), hint);
            return;
        }
    }
    if fields.flag("ignore_query") {
        for name in ["query_only", "query_without", "query_sort"] {
            if let Some(entry) = fields.get(name) {
                let hint = "`ignore_query` leaves the whole query out already; keep one";
                findings.error(entry.key, format!("`{name}` cannot stand beside `ignore_query`"), hint);
            }
        }
    }
    if let (Some(only), Some(without)) = (fields.get("query_only"), fields.get("query_without")) {
        let hint = format!(
            "`query_only` ({}) leaves out everything else already; keep one",
            findings.place(only.key)
        );
        findings.error(without.key, "`query_without` cannot stand beside `query_only`", hint);
    }
    let Some(Value::Duration(most)) = fields.value("ttl_max") else { return };
    for name in ["ttl", "negative_ttl"] {
        // It would never apply.
        if matches!(fields.value(name), Some(Value::Duration(ttl)) if ttl > most) {
            let hint = format!("`ttl_max` ({}) cuts it off", findings.place(fields.at("ttl_max")));
            findings.error(fields.at(name), format!("`{name}` is above `ttl_max`"), hint);
        }
    }
}
