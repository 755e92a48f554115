//! Which route takes a request, and why: the one place that decides it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weir_config::{ExchangeTimeouts, HostPattern, PathPattern, RouteAction, RouteRetry, Sqli};
use weir_screen::{FieldLookup, Screen};
use weir_template::Template;

use crate::http::cache::{Cache, RouteCache};
use crate::http::closing::Closing;
use crate::http::edit_table::EditTable;
use crate::http::pages::Pages;
use crate::http::screen;

/// What a route looks at.
pub struct RequestView<'a> {
    /// Host without port, as sent; empty when the request has none.
    pub host: &'a [u8],
    /// The normalised path.
    pub path: &'a [u8],
    /// Method, as sent.
    pub method: &'a [u8],
    /// Whole value of the header field of a name (given in lower case).
    pub header: &'a FieldLookup<'a>,
}

/// The routes of one listener, first match wins.
pub struct RouteTable {
    routes: Vec<Route>,
    /// For each host that a route names exactly: all routes that may take it, in order.
    by_host: HashMap<Box<[u8]>, Vec<u32>, foldhash::fast::RandomState>,
    /// For every other host.
    elsewhere: Vec<u32>,
    /// Index of the pool that takes what no route takes.
    default_pool: Option<usize>,
    /// Who serves in the place of that pool, by index, in order.
    default_fallbacks: Box<[usize]>,
    /// What is told of errors where no route took the request.
    pages: Option<Arc<Pages>>,
    /// What is told in maintenance where no route took the request.
    closing: Closing,
}

/// The pools of a snapshot, by name.
pub struct PoolNames<'c> {
    config: &'c weir_config::Config,
    indexes: HashMap<&'c str, usize>,
}

impl<'c> PoolNames<'c> {
    /// Of the pools of `config`, in its order.
    pub fn of(config: &'c weir_config::Config) -> PoolNames<'c> {
        let numbered = config.pools.iter().enumerate();
        PoolNames { config, indexes: numbered.map(|(index, pool)| (pool.name.as_str(), index)).collect() }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.indexes.get(name).copied()
    }

    /// Who serves in the place of `pool`.
    fn fallbacks(&self, pool: &str, of_route: Option<&str>) -> Box<[usize]> {
        self.config.fallbacks(pool, of_route).into_iter().filter_map(|name| self.index(name)).collect()
    }
}

/// One route, ready for use.
pub struct Route {
    /// Its place in [`RouteTable::route`].
    pub number: usize,
    /// Its name in logs and explanations.
    pub name: Arc<str>,
    /// What happens to a request it takes.
    pub action: Action,
    /// Replaces the prefix that a `*` path matched.
    pub rewrite_prefix: Option<Box<[u8]>>,
    /// Largest request body in bytes.
    pub body_limit_bytes: Option<u64>,
    /// What is kept of its responses; `None` keeps nothing.
    pub cache: Option<Box<RouteCache>>,
    /// What is asked of its requests; `None` for nothing.
    pub screen: Option<Box<Screen>>,
    /// What clients are told of errors, its listener's pages among them.
    pages: Option<Arc<Pages>>,
    /// What they are told in maintenance.
    closing: Closing,
    /// Who serves in the place of its pool, by index, in order.
    fallbacks: Box<[usize]>,
    /// Whether its requests are written to the access log.
    pub access_log: bool,
    /// Whether its requests are looked at for SQL injection.
    pub sqli: Sqli,
    /// How responses are compressed; `None` leaves them as they came.
    pub compress: Option<Arc<weir_config::Compress>>,
    /// What is held back for slow clients, in place of what its pool says.
    pub buffer: Option<weir_config::Buffer>,
    /// When a failed attempt is made again, over what its pool says.
    pub retry: Option<Box<RouteRetry>>,
    /// Its own timers, over those of its pool and listener.
    pub timeout: Option<ExchangeTimeouts>,
    host: Vec<HostPattern>,
    path: Vec<PathPattern>,
    method: Vec<Box<[u8]>>,
    header: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Forwarded to the pool of that index in the snapshot.
    Pool(usize),
    /// Answered with a redirect.
    Redirect {
        /// Its target.
        to: Template,
        /// 301, 302, 303, 307 or 308.
        status: u16,
    },
    /// Answered from the config.
    Respond {
        /// 200 to 599.
        status: u16,
        /// Sent as it is.
        body: Arc<str>,
        /// Value of `content-type`.
        content_type: Arc<str>,
    },
}

/// Where a request goes.
pub enum Decision<'t> {
    /// A route took it.
    Route {
        /// Which.
        route: &'t Route,
        /// Bytes of the path's prefix that the route's `*` path named.
        prefix: usize,
    },
    /// No route took it; the listener's own pool does.
    Default {
        /// Its index in the snapshot.
        pool: usize,
    },
    /// Nothing takes it: 404 (RFC 9110 §15.5.5).
    Nowhere,
}

/// Why a route does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Its hosts are others.
    Host,
    /// Its paths are others.
    Path,
    /// Its methods are others.
    Method,
    /// A header field is missing or has another value.
    Header,
}

/// What became of one route in an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVerdict {
    /// Name of the route; the listener's own pool is called `(default)`.
    pub route: String,
    /// Whether it took the request.
    pub taken: bool,
    /// Why, in words.
    pub reason: String,
}

impl RouteTable {
    /// Compiles a listener's routes. The config's check has made sure that all pools exist. Limits go on
    /// where the routes of `old` have them.
    ///
    /// Those that keep responses keep them in `cache`; without one nothing is kept. Which of `edits` hold is
    /// part of what they are kept by.
    pub fn compile(
        config: &weir_config::Listener,
        pools: &PoolNames<'_>,
        cache: Option<&Arc<Cache>>,
        edits: Option<&EditTable>,
        old: Option<&RouteTable>,
    ) -> RouteTable {
        let pages = Pages::compile(&config.http().error_page, None);
        let around = Around { pools, cache, edits, old };
        // The config's check has made sure that none is left out.
        let compile = |(number, route): (usize, &weir_config::Route)| {
            let compiled = Route::compile(number, route, &around)?;
            let pages = Pages::compile(&route.error_page, pages.as_ref());
            Some(Route {
                closing: Closing::compile(route.maintenance.as_ref(), pages.as_ref()),
                pages,
                ..compiled
            })
        };
        let routes: Vec<Route> = config.routes.iter().enumerate().filter_map(compile).collect();
        let mut by_host: HashMap<Box<[u8]>, Vec<u32>, foldhash::fast::RandomState> = HashMap::default();
        for pattern in routes.iter().flat_map(|route| &route.host) {
            if let HostPattern::Exact(host) = pattern {
                by_host.entry(host.as_bytes().into()).or_default();
            }
        }
        let numbered = || (0u32..).zip(&routes);
        for (host, takers) in &mut by_host {
            takers.extend(numbered().filter(|(_, route)| route.takes_host(host)).map(|(number, _)| number));
        }
        let elsewhere = numbered()
            .filter(|(_, route)| {
                route.host.is_empty() || route.host.iter().any(|host| matches!(host, HostPattern::Suffix(_)))
            })
            .map(|(number, _)| number)
            .collect();
        let default_pool = config.pool.as_deref();
        RouteTable {
            routes,
            by_host,
            elsewhere,
            default_pool: default_pool.and_then(|pool| pools.index(pool)),
            default_fallbacks: default_pool.map_or_else(Box::default, |pool| pools.fallbacks(pool, None)),
            closing: Closing::compile(config.http().maintenance.as_ref(), pages.as_ref()),
            pages,
        }
    }

    /// Where a request goes. Does not allocate; one hash look-up when any route names a host, then one
    /// comparison per route that may take that host.
    #[inline]
    pub fn decide(&self, request: &RequestView<'_>) -> Decision<'_> {
        if !self.routes.is_empty() {
            let mut lower = [0; 255];
            let candidates =
                match lower_case(request.host, &mut lower).and_then(|host| self.by_host.get(host)) {
                    Some(candidates) => candidates,
                    None => &self.elsewhere,
                };
            for &number in candidates {
                let route = &self.routes[number as usize];
                if let Ok(prefix) = route.matches(request) {
                    return Decision::Route { route, prefix };
                }
            }
        }
        match self.default_pool {
            Some(pool) => Decision::Default { pool },
            None => Decision::Nowhere,
        }
    }

    /// The same decision with every step, for `weir explain`.
    pub fn explain(&self, request: &RequestView<'_>) -> Vec<RouteVerdict> {
        let mut verdicts = Vec::new();
        let mut taken = false;
        for route in &self.routes {
            let (this, reason) = match route.matches(request) {
                _ if taken => (false, "not looked at: an earlier route took it".to_owned()),
                Ok(_) => (true, route.reason()),
                Err(mismatch) => (false, route.refusal(mismatch, request)),
            };
            taken |= this;
            verdicts.push(RouteVerdict { route: route.name.to_string(), taken: this, reason });
        }
        let reason = match (taken, self.default_pool) {
            (true, _) => "not looked at: a route took it",
            (false, Some(_)) => "no route took it: the listener's own pool does",
            (false, None) => "the listener has no pool of its own: answered 404",
        };
        let default_taken = !taken && self.default_pool.is_some();
        verdicts.push(RouteVerdict {
            route: "(default)".to_owned(),
            taken: default_taken,
            reason: reason.to_owned(),
        });
        verdicts
    }

    /// The route of that number.
    pub fn route(&self, number: usize) -> Option<&Route> {
        self.routes.get(number)
    }

    /// What clients are told of errors whose requests this route took, or none; `None`: Weir's own words.
    #[inline]
    pub fn pages<'l>(&'l self, route: Option<&'l Route>) -> Option<&'l Pages> {
        route.map_or(&self.pages, |route| &route.pages).as_deref()
    }

    /// What clients are told in maintenance whose requests this route took, or none.
    #[inline]
    pub fn closing<'l>(&'l self, route: Option<&'l Route>) -> &'l Closing {
        route.map_or(&self.closing, |route| &route.closing)
    }

    /// Who serves in the place of the pool that this route names, or the listener, by index, in order.
    #[inline]
    pub fn fallbacks<'l>(&'l self, route: Option<&'l Route>) -> &'l [usize] {
        route.map_or(&self.default_fallbacks, |route| &route.fallbacks)
    }

    /// Index of the pool that takes what no route takes.
    pub fn default_pool(&self) -> Option<usize> {
        self.default_pool
    }

    /// The routes, in order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Whether there is no route: then the default pool takes everything.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

/// What a route is compiled with.
struct Around<'a> {
    pools: &'a PoolNames<'a>,
    cache: Option<&'a Arc<Cache>>,
    edits: Option<&'a EditTable>,
    old: Option<&'a RouteTable>,
}

impl Route {
    fn compile(number: usize, config: &weir_config::Route, around: &Around<'_>) -> Option<Route> {
        let Around { pools, cache, edits, old } = *around;
        let action = match &config.action {
            RouteAction::Pool(name) => Action::Pool(pools.index(name)?),
            RouteAction::Redirect(redirect) => {
                Action::Redirect { to: redirect.to.clone(), status: redirect.status }
            }
            RouteAction::Respond(respond) => Action::Respond {
                status: respond.status,
                body: respond.body.as_str().into(),
                content_type: respond.content_type.as_str().into(),
            },
        };
        let kept = match (&config.action, &config.cache, cache) {
            (RouteAction::Pool(pool), Some(config), Some(cache)) => {
                let rules = edits.map(|edits| edits.scope(Some(number), pools.index(pool)));
                Some(Box::new(RouteCache::new(config, pool, &rules.unwrap_or_default(), cache)))
            }
            _ => None,
        };
        let fallbacks = match &config.action {
            RouteAction::Pool(name) => pools.fallbacks(name, config.fallback_pool.as_deref()),
            RouteAction::Redirect(_) | RouteAction::Respond(_) => Box::default(),
        };
        let mut route = Route {
            number,
            cache: kept,
            name: config.name.as_str().into(),
            action,
            screen: None,
            pages: None,
            closing: Closing::compile(None, None),
            fallbacks,
            rewrite_prefix: config.rewrite.as_ref().map(|rewrite| rewrite.prefix.as_bytes().into()),
            body_limit_bytes: config.body_limit_bytes,
            access_log: config.access_log,
            sqli: config.sqli,
            compress: config.compress.clone().map(Arc::new),
            buffer: config.buffer,
            retry: config.retry.if_any().cloned().map(Box::new),
            timeout: config.timeout.if_any().copied(),
            // A connection of a tcp listener is looked at as a request for the name that its client asks for.
            host: config.host.iter().chain(&config.sni).cloned().collect(),
            path: config.path.clone(),
            method: config.method.iter().map(|method| method.as_bytes().into()).collect(),
            header: config
                .header
                .iter()
                .map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into()))
                .collect(),
        };
        let before = old.and_then(|old| old.routes.iter().find(|old| old.takes_the_same(&route)));
        route.screen = screen::compile(&config.screen, before.and_then(|old| old.screen.as_deref()));
        Some(route)
    }

    /// Whether both are asked for the same requests: a route is known again by this, for its name may be only
    /// its position.
    fn takes_the_same(&self, other: &Route) -> bool {
        (&self.host, &self.path, &self.method, &self.header)
            == (&other.host, &other.path, &other.method, &other.header)
    }

    /// The length of the path's prefix that the route's path named (all of an exact path), or why it does not
    /// match.
    fn matches(&self, request: &RequestView<'_>) -> Result<usize, Mismatch> {
        if !self.takes_host(request.host) {
            return Err(Mismatch::Host);
        }
        let prefix = self.matched_prefix(request.path).ok_or(Mismatch::Path)?;
        if !self.method.is_empty() && !self.method.iter().any(|method| **method == *request.method) {
            return Err(Mismatch::Method);
        }
        let has_all = self.header.iter().all(|(name, wanted)| has_field(request, name, wanted));
        if has_all { Ok(prefix) } else { Err(Mismatch::Header) }
    }

    fn takes_host(&self, host: &[u8]) -> bool {
        self.host.is_empty()
            || self.host.iter().any(|pattern| match pattern {
                HostPattern::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
                // At least one byte stands for the `*`.
                HostPattern::Suffix(suffix) => {
                    host.len() > suffix.len()
                        && host[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
                }
            })
    }

    fn matched_prefix(&self, path: &[u8]) -> Option<usize> {
        if self.path.is_empty() {
            return Some(0);
        }
        self.path.iter().find_map(|pattern| match pattern {
            PathPattern::Exact(exact) => (exact.as_bytes() == path).then_some(path.len()),
            PathPattern::Prefix(prefix) => path.starts_with(prefix.as_bytes()).then_some(prefix.len()),
            PathPattern::Suffix(suffix) => path.ends_with(suffix.as_bytes()).then_some(path.len()),
            PathPattern::Contains(part) => contains(path, part.as_bytes()).then_some(path.len()),
        })
    }

    fn reason(&self) -> String {
        let mut parts = Vec::new();
        if !self.host.is_empty() {
            parts.push("host");
        }
        if !self.path.is_empty() {
            parts.push("path");
        }
        if !self.method.is_empty() {
            parts.push("method");
        }
        if !self.header.is_empty() {
            parts.push("header");
        }
        match parts.is_empty() {
            true => "takes every request".to_owned(),
            false => format!("{} matched", parts.join(", ")),
        }
    }

    fn refusal(&self, mismatch: Mismatch, request: &RequestView<'_>) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match mismatch {
            Mismatch::Host => {
                let wanted = self.host.iter().map(|host| match host {
                    HostPattern::Exact(name) => name.clone(),
                    HostPattern::Suffix(suffix) => format!("*{suffix}"),
                });
                format!("host `{}` is not {}", text(request.host), list(wanted))
            }
            Mismatch::Path => {
                let wanted = self.path.iter().map(ToString::to_string);
                format!("path `{}` is not {}", text(request.path), list(wanted))
            }
            Mismatch::Method => {
                format!(
                    "method `{}` is not {}",
                    text(request.method),
                    list(self.method.iter().map(|method| text(method)))
                )
            }
            Mismatch::Header => {
                // The value stays unsaid: it may be what a request has to know to get through.
                let missing = self.header.iter().find(|(name, wanted)| !has_field(request, name, wanted));
                let name = missing.map_or_else(String::new, |(name, _)| text(name));
                format!("header `{name}` is missing or has another value")
            }
        }
    }
}

/// Whether a request has a field with the value that is asked for; `*` asks for the field only.
fn has_field(request: &RequestView<'_>, name: &[u8], wanted: &[u8]) -> bool {
    (request.header)(name).is_some_and(|value| wanted == b"*" || *wanted == *value)
}

/// Whether `part`, which is not empty, is somewhere in `path`. Takes time in proportion to both lengths'
/// product at worst; both are bounded, by the request line and by what an operator writes.
fn contains(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len().max(1)).any(|window| window == part)
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
}

/// `host` in lower case in `room`; `None` for one that is longer than any name can be.
fn lower_case<'r>(host: &[u8], room: &'r mut [u8; 255]) -> Option<&'r [u8]> {
    let lower = room.get_mut(..host.len())?;
    lower.copy_from_slice(host);
    lower.make_ascii_lowercase();
    Some(lower)
}

/// The host without its port: `shop.example:8080` gives `shop.example`, `[::1]:80` gives `[::1]`.
pub fn without_port(authority: &[u8]) -> &[u8] {
    let end = match authority.first() {
        Some(b'[') => authority.iter().position(|&byte| byte == b']').map(|at| at + 1),
        _ => authority.iter().position(|&byte| byte == b':'),
    };
    // A name may end in the root's dot; it is the same name.
    let host = &authority[..end.unwrap_or(authority.len())];
    host.strip_suffix(b".").unwrap_or(host)
}
