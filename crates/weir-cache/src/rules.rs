//! Settings of a route's cache.

use std::time::Duration;

use weir_http::form;

/// Treatment of a response that sets a cookie: it is most likely meant for one client (threat E3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetCookie {
    /// Do not keep it.
    #[default]
    Refuse,
    /// Keep it without its `set-cookie` fields. The client that it was fetched for still gets them.
    Strip,
}

/// A name of a query's parameter, or with a `*` at its end all names that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<[u8]>,
    prefix: bool,
}

impl Pattern {
    /// Reads `name` or `prefix*`, written as in a query: escapes stand for what they are of.
    pub fn new(text: &[u8]) -> Pattern {
        let (name, prefix) = match text.strip_suffix(b"*") {
            Some(name) => (name, true),
            None => (text, false),
        };
        Pattern { text: form::decoded(name).collect(), prefix }
    }

    /// Whether it means the name of these bytes, decoded. Case matters, as it does in queries.
    pub(crate) fn matches(&self, mut name: impl Iterator<Item = u8>) -> bool {
        self.text.iter().all(|byte| name.next() == Some(*byte)) && (self.prefix || name.next().is_none())
    }
}

/// How much of the query tells responses apart. The rest does not reach origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueryRule {
    /// All of it.
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
    /// How long responses are fresh that do not say so themselves and whose status lets a cache guess (RFC
    /// 9110 §15.1). `None`: only those with a `last-modified`, a tenth of their age (RFC 9111 §4.2.2).
    pub ttl: Option<Duration>,
    /// Nothing is fresh for longer, whatever it says.
    pub ttl_max: Option<Duration>,
    /// How long 404, 405, 410, 414 and 501 are fresh that do not say so themselves. `None`: they are not
    /// kept.
    pub negative_ttl: Option<Duration>,
    /// How much of the query tells responses apart. The rest does not reach origins.
    pub query: QueryRule,
    /// Sort the parameters by name, so that their order does not tell responses apart.
    pub query_sort: bool,
    /// Names in lower case of request fields that tell responses apart beside what `vary` says.
    pub key_headers: Vec<Box<[u8]>>,
    /// Names of cookies that tell responses apart.
    pub key_cookies: Vec<Box<[u8]>>,
    /// Where the response does not say so itself: how long a stale one may answer while it is fetched anew.
    pub stale_while_revalidate: Option<Duration>,
    /// Where the response does not say so itself: how long a stale one may answer while the origin fails.
    pub stale_if_error: Option<Duration>,
    /// Largest content that is kept, in bytes.
    pub object_max_bytes: u64,
    /// Responses that set cookies.
    pub set_cookie: SetCookie,
    /// Do as the `cache-control` of requests says (RFC 9111 §5.2.1). False: clients have no say.
    pub honour_client: bool,
}

impl Default for Rules {
    /// Nothing but RFC 9111: no lifetimes of ours, the whole query, objects of up to 16 MiB.
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
