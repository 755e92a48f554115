//! `[cache]` and `[listener.NAME.route.cache]`: what is kept of responses, and for how long.

use std::time::Duration;

/// `[cache]`: what all routes with a `cache` share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// Budget for everything that is kept, bytes; `None` means an eighth of the process's memory budget, at least 16 MiB.
    pub memory_bytes: Option<u64>,
    /// Fetches at once that no client waits for; default 64.
    pub background_fetches: u32,
}

/// `[listener.NAME.route.cache]`: an empty table keeps what RFC 9111 allows to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCache {
    /// How long a response is fresh that says nothing of it itself; `None`: it is not kept.
    pub ttl: Option<Duration>,
    /// No response is fresh for longer, whatever it says.
    pub ttl_max: Option<Duration>,
    /// As `ttl`, for 404, 405, 410, 414 and 501.
    pub negative_ttl: Option<Duration>,
    /// Whether requests that differ in the query only are the same.
    pub ignore_query: bool,
    /// Names of the only parameters that count, exact or with a trailing `*`; empty: all.
    pub query_only: Vec<String>,
    /// Names of parameters that do not count, exact or with a trailing `*`.
    pub query_without: Vec<String>,
    /// Whether the order of parameters does not count.
    pub query_sort: bool,
    /// Request fields whose values count, lower case.
    pub key_headers: Vec<String>,
    /// Cookies whose values count.
    pub key_cookies: Vec<String>,
    /// What becomes of a response that sets a cookie.
    pub set_cookie: SetCookie,
    /// How long after its freshness a response is still given while it is fetched anew, where it does not say itself.
    pub stale_while_revalidate: Option<Duration>,
    /// How long after its freshness a response is still given when it can't be fetched anew, where it does not say itself.
    pub stale_if_error: Option<Duration>,
    /// Largest content that is kept, bytes; default 16 MiB.
    pub object_max_bytes: u64,
    /// How long a request waits for an answer that another one has asked for; default 5s.
    pub collapse_timeout: Duration,
    /// Whether what a client's `cache-control` asks for is done; default true.
    pub honour_client: bool,
}

/// What becomes of a response that sets a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCookie {
    /// It is not kept (default).
    Refuse,
    /// It is kept without the cookie.
    Strip,
}
