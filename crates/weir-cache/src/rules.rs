//! The settings of a route's cache.

use std::time::Duration;

use weir_http::form;

/// Treatment of a response that sets a cookie: it is most likely meant for one client (threat E3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetCookie {
    /// Do not store it.
    #[default]
    Refuse,
    /// Store it without its `set-cookie` fields. The client that caused the fetch still gets them.
    Strip,
}

/// The name of a query parameter, or with a `*` at its end a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<[u8]>,
    prefix: bool,
}

impl Pattern {
    /// Parses `name` or `prefix*`, written as in a query: escapes stand for the characters they encode.
    pub fn new(text: &[u8]) -> Pattern {
        let (name, prefix) = match text.strip_suffix(b"*") {
            Some(name) => (name, true),
            None => (text, false),
        };
        Pattern { text: form::decoded(name).collect(), prefix }
    }

    /// Whether it matches the decoded name given by these bytes. Case matters, as in queries.
    pub(crate) fn matches(&self, mut name: impl Iterator<Item = u8>) -> bool {
        self.text.iter().all(|byte| name.next() == Some(*byte)) && (self.prefix || name.next().is_none())
    }
}

/// The part of the query that identifies a response. The rest does not reach origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueryRule {
    /// The whole query.
    #[default]
    Whole,
    /// Nothing.
    Ignore,
    /// These parameters.
    Only(Vec<Pattern>),
    /// All but these parameters.
    Without(Vec<Pattern>),
}

/// The settings of a route's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Lifetime of responses that do not state one and whose status lets a cache guess (RFC 9110 §15.1).
    /// `None`: only those with a `last-modified` get one, a tenth of the time since then (RFC 9111 §4.2.2).
    pub ttl: Option<Duration>,
    /// The longest lifetime, whatever a response says.
    pub ttl_max: Option<Duration>,
    /// Lifetime of 404, 405, 410, 414 and 501 that do not state one. `None`: these are not stored.
    pub negative_ttl: Option<Duration>,
    /// The part of the query that identifies a response. The rest does not reach origins.
    pub query: QueryRule,
    /// Sort the parameters by name, so that their order does not matter.
    pub query_sort: bool,
    /// Names in lower case of request fields that are part of the key, beside those in `vary`.
    pub key_headers: Vec<Box<[u8]>>,
    /// Names of cookies that are part of the key.
    pub key_cookies: Vec<Box<[u8]>>,
    /// How long a stale response may be served while it is refreshed, if it does not say so itself.
    pub stale_while_revalidate: Option<Duration>,
    /// How long a stale response may be served while the origin fails, if it does not say so itself.
    pub stale_if_error: Option<Duration>,
    /// Largest content that is stored, in bytes.
    pub object_max_bytes: u64,
    /// What to do with responses that set cookies.
    pub set_cookie: SetCookie,
    /// Follow the `cache-control` of requests (RFC 9111 §5.2.1). False: clients have no say.
    pub honour_client: bool,
}

impl Default for Rules {
    /// Plain RFC 9111: no lifetimes of ours, the whole query, objects of up to 16 MiB.
    fn default() -> Rules {
        Rules {
            ttl: None,
            ttl_max: None,
            negative_ttl: None,
            query: QueryRule::Whole,
            query_sort: false,
            key_headers: Vec::new(),
            key_cookies: Vec::new(),
            stale_while_revalidate: None,
            stale_if_error: None,
            object_max_bytes: 16 << 20,
            set_cookie: SetCookie::Refuse,
            honour_client: true,
        }
    }
}
