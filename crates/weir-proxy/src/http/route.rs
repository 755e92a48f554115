//! Decides which route takes a request, and why; nothing else decides this. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use weir_config::{ExchangeTimeouts, HostPattern, RouteAction, RouteRetry, Sqli};
use weir_screen::{Groups, Screen, Seeds};
use weir_state::Snapshot;
use weir_state::token_keys::TokenKeys;
use weir_template::Template;

use crate::http::auth::{Authenticator, Passwords};
use crate::http::cache::{Cache, RouteCache};
use crate::http::closing::Closing;
use crate::http::conditions::Asked;
pub use crate::http::conditions::{Mismatch, RequestView};
use crate::http::edit_table::EditTable;
use crate::http::mirror::Mirror;
use crate::http::pages::Pages;
use crate::http::pool_map::PoolMap;
use crate::http::rewrite::Rewrite;
use crate::http::screen;
use crate::http::split::Split;

/// The routes of one listener, first match wins.
pub struct RouteTable {
    routes: Vec<Route>,
    /// For each host that a route names exactly: all routes that may match it, in order.
    by_host: HashMap<Box<[u8]>, Vec<u32>, foldhash::fast::RandomState>,
    /// The routes for every other host.
    elsewhere: Vec<u32>,
    /// Index of the pool for requests that match no route.
    default_pool: Option<usize>,
    /// The fallbacks of that pool, by index, in order.
    default_fallbacks: Box<[usize]>,
    /// The error pages for requests that match no route.
    pages: Option<Arc<Pages>>,
    /// The maintenance settings for requests that match no route.
    closing: Closing,
    /// The authentication for requests that match no route.
    auth: Option<Box<Authenticator>>,
}

/// What routes of a snapshot refer to: pools by name, fetched keys, and the seeds of limits.
pub struct PoolNames<'c> {
    config: &'c weir_config::Config,
    token_keys: Option<&'c TokenKeys>,
    /// With which keys of limits are hashed.
    pub seeds: Seeds,
    indexes: HashMap<&'c str, usize>,
}

impl<'c> PoolNames<'c> {
    /// For the pools of `snapshot`, in the order of its config.
    pub fn of(snapshot: &'c Snapshot) -> PoolNames<'c> {
        let (config, token_keys) = (&*snapshot.config, snapshot.token_keys.as_deref());
        let seeds = screen::seeds(snapshot);
        let numbered = config.pools.iter().enumerate();
        let indexes = numbered.map(|(index, pool)| (pool.name.as_str(), index)).collect();
        PoolNames { config, token_keys, seeds, indexes }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.indexes.get(name).copied()
    }

    /// The fallbacks of `pool`.
    fn fallbacks(&self, pool: &str, of_route: Option<&str>) -> Box<[usize]> {
        self.config.fallbacks(pool, of_route).into_iter().filter_map(|name| self.index(name)).collect()
    }
}

/// One route, ready for use.
pub struct Route {
    /// Its index in [`RouteTable::route`].
    pub number: usize,
    /// Its name in logs and explanations.
    pub name: Arc<str>,
    /// What happens to a request that matches.
    pub action: Action,
    /// Changes path and query for backends; `None` changes nothing.
    pub rewrite: Option<Box<Rewrite>>,
    /// Largest request body in bytes.
    pub body_limit_bytes: Option<u64>,
    /// How its responses are cached; `None` if they are not.
    pub cache: Option<Box<RouteCache>>,
    /// The screen for its requests; `None` without one.
    pub screen: Option<Box<Screen>>,
    /// Its error pages, including those of its listener.
    pages: Option<Arc<Pages>>,
    /// Its maintenance settings.
    closing: Closing,
    /// Its authentication; `None` if everybody may make requests.
    auth: Option<Box<Authenticator>>,
    /// Where copies of its requests go; `None` if none are made.
    pub mirror: Option<Box<Mirror>>,
    /// Which requests go to other pools than its own.
    pub split: Option<Box<Split>>,
    /// Which pools a map may name for its requests.
    pub pool_map: Option<Box<PoolMap>>,
    /// The fallbacks of its pool, by index, in order.
    fallbacks: Box<[usize]>,
    /// Whether its requests are written to the access log.
    pub access_log: bool,
    /// Whether and how its requests are checked for SQL injection.
    pub sqli: Sqli,
    /// How responses are compressed; `None` leaves them unchanged.
    pub compress: Option<Arc<weir_config::Compress>>,
    /// How much is held back for slow clients; overrides its pool's setting.
    pub buffer: Option<weir_config::Buffer>,
    /// How fast responses go to their clients.
    pub bandwidth: Option<weir_config::RouteBandwidth>,
    /// Its retry settings, which override those of its pool.
    pub retry: Option<Box<RouteRetry>>,
    /// Its own timers, which override those of its pool and listener.
    pub timeout: Option<ExchangeTimeouts>,
    /// The conditions that a request must meet.
    asked: Asked,
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
    /// Answered with a fixed response from the config.
    Respond {
        /// The status, 200 to 599.
        status: u16,
        /// The content.
        body: Arc<str>,
        /// Value of `content-type`.
        content_type: Arc<str>,
    },
}

/// Where a request goes.
pub enum Decision<'t> {
    /// A route matches.
    Route {
        /// The route.
        route: &'t Route,
        /// How many bytes of the path the route's `*` path named.
        prefix: usize,
    },
    /// No route matches; the listener's own pool takes it.
    Default {
        /// The index of that pool in the snapshot.
        pool: usize,
    },
    /// Nothing takes it: 404 (RFC 9110 §15.5.5).
    Nowhere,
}

/// Where a connection goes whose bytes are passed on unchanged.
pub struct TakenConnection<'t> {
    /// Index of the pool in the snapshot.
    pub pool: usize,
    /// The route that matches; `None` if it goes to the listener's own pool.
    pub route: Option<&'t Route>,
}

/// The result for one route in an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVerdict {
    /// Name of the route; the listener's own pool is called `(default)`.
    pub route: String,
    /// Whether it takes the request.
    pub taken: bool,
    /// The reason, in words.
    pub reason: String,
}

impl RouteTable {
    /// Compiles a listener's routes. The config's check has made sure that all pools exist. Rate limits of
    /// the routes of `old` continue.
    ///
    /// Routes that cache use `cache`; without one, nothing is cached. The `edits` in force are part of the
    /// cache key.
    pub fn compile(
        config: &weir_config::Listener,
        pools: &PoolNames<'_>,
        cache: Option<&Arc<Cache>>,
        edits: Option<&EditTable>,
        old: Option<&RouteTable>,
    ) -> RouteTable {
        let pages = Pages::compile(&config.http().error_page, None);
        let around = Around { pools, cache, edits, old };
        let mut passwords: Vec<_> = old.into_iter().flat_map(RouteTable::passwords).collect();
        let auth = http_auth(config.http().auth.as_ref(), pools, &mut passwords);
        // The config's check has made sure that none is left out.
        let compile = |(number, route): (usize, &weir_config::Route)| {
            let compiled = Route::compile(number, route, &around)?;
            let pages = Pages::compile(&route.error_page, pages.as_ref());
            Some(Route {
                closing: Closing::compile(route.maintenance.as_ref(), pages.as_ref()),
                auth: http_auth(route.auth.as_ref(), pools, &mut passwords),
                pages,
                ..compiled
            })
        };
        let routes: Vec<Route> = config.routes.iter().enumerate().filter_map(compile).collect();
        let mut by_host: HashMap<Box<[u8]>, Vec<u32>, foldhash::fast::RandomState> = HashMap::default();
        for pattern in routes.iter().flat_map(|route| &route.asked.host) {
            if let HostPattern::Exact(host) = pattern {
                by_host.entry(host.as_bytes().into()).or_default();
            }
        }
        let numbered = || (0u32..).zip(&routes);
        for (host, takers) in &mut by_host {
            takers.extend(
                numbered().filter(|(_, route)| route.asked.takes_host(host)).map(|(number, _)| number),
            );
        }
        let elsewhere = numbered()
            .filter(|(_, route)| {
                let hosts = &route.asked.host;
                hosts.is_empty() || hosts.iter().any(|host| !matches!(host, HostPattern::Exact(_)))
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
            auth,
            pages,
        }
    }

    /// Where a request goes. Does not allocate; one hash look-up if any route names a host, then one
    /// comparison per route that may match that host.
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
                if let Ok(prefix) = route.asked.matches(request) {
                    return Decision::Route { route, prefix };
                }
            }
        }
        match self.default_pool {
            Some(pool) => Decision::Default { pool },
            None => Decision::Nowhere,
        }
    }

    /// Where a connection goes, by the server name that its client asks for; `None` if no route matches and
    /// there is no default pool. Costs what [`RouteTable::decide`] does.
    pub fn decide_connection(&self, name: Option<&str>, client: IpAddr) -> Option<TakenConnection<'_>> {
        match self.decide(&RequestView::of_connection(name, client)) {
            Decision::Default { pool } => Some(TakenConnection { pool, route: None }),
            Decision::Route { route, .. } => match route.action {
                Action::Pool(pool) => Some(TakenConnection { pool, route: Some(route) }),
                // The config's check allows no other action.
                Action::Redirect { .. } | Action::Respond { .. } => None,
            },
            Decision::Nowhere => None,
        }
    }

    /// The decision of [`RouteTable::decide`] with all its steps, for `weir explain`.
    pub fn explain(&self, request: &RequestView<'_>) -> Vec<RouteVerdict> {
        self.follow(request, "answered 404", |asked, matched| match matched {
            Ok(_) => asked.reason(request.path),
            Err(mismatch) => asked.refusal(mismatch, request),
        })
    }

    /// The decision of [`RouteTable::decide_connection`] with all its steps, for `weir explain`.
    pub fn explain_connection(&self, name: Option<&str>, client: IpAddr) -> Vec<RouteVerdict> {
        let view = RequestView::of_connection(name, client);
        self.follow(&view, "the connection is closed", |asked, matched| match matched {
            Ok(_) => asked.reason_of_connection(),
            Err(_) => asked.refusal_of_connection(name),
        })
    }

    /// Follows a decision. `nowhere` says what happens if nothing takes the request; `why` gives the reason
    /// why a route matched, or did not.
    fn follow(
        &self,
        request: &RequestView<'_>,
        nowhere: &str,
        why: impl Fn(&Asked, Result<usize, Mismatch>) -> String,
    ) -> Vec<RouteVerdict> {
        let mut verdicts = Vec::new();
        let mut taken = false;
        for route in &self.routes {
            let (this, reason) = match route.asked.matches(request) {
                _ if taken => (false, "not looked at: an earlier route took it".to_owned()),
                matched => (matched.is_ok(), why(&route.asked, matched)),
            };
            taken |= this;
            verdicts.push(RouteVerdict { route: route.name.to_string(), taken: this, reason });
        }
        let reason = match (taken, self.default_pool) {
            (true, _) => "not looked at: a route took it".to_owned(),
            (false, Some(_)) => "no route took it: the listener's own pool does".to_owned(),
            (false, None) => format!("the listener has no pool of its own: {nowhere}"),
        };
        let default_taken = !taken && self.default_pool.is_some();
        verdicts.push(RouteVerdict { route: "(default)".to_owned(), taken: default_taken, reason });
        verdicts
    }

    /// The route with that index.
    pub fn route(&self, number: usize) -> Option<&Route> {
        self.routes.get(number)
    }

    /// The error pages for requests that this route, or none, matched; `None` for Weir's own texts.
    #[inline]
    pub fn pages<'l>(&'l self, route: Option<&'l Route>) -> Option<&'l Pages> {
        route.map_or(&self.pages, |route| &route.pages).as_deref()
    }

    /// The maintenance settings for requests that this route, or none, matched.
    #[inline]
    pub fn closing<'l>(&'l self, route: Option<&'l Route>) -> &'l Closing {
        route.map_or(&self.closing, |route| &route.closing)
    }

    /// The authentication for requests that this route, or none, matched; `None` if everybody may make
    /// requests.
    #[inline]
    pub fn auth<'l>(&'l self, route: Option<&'l Route>) -> Option<&'l Authenticator> {
        route.map_or(&self.auth, |route| &route.auth).as_deref()
    }

    /// The password files, which outlive this table; each once.
    fn passwords(&self) -> Vec<Arc<Passwords>> {
        let all = self.routes.iter().map(|route| &route.auth).chain([&self.auth]);
        let mut distinct: Vec<Arc<Passwords>> = Vec::new();
        for passwords in all.filter_map(|auth| auth.as_ref()?.passwords()) {
            if !distinct.iter().any(|known| Arc::ptr_eq(known, passwords)) {
                distinct.push(passwords.clone());
            }
        }
        distinct
    }

    /// The fallbacks of `asked`, which this route, its map, or the listener names; by index, in order.
    #[inline]
    pub fn fallbacks<'l>(&'l self, route: Option<&'l Route>, asked: usize) -> &'l [usize] {
        let of_map = route.and_then(|route| route.pool_map.as_deref()?.fallbacks(asked));
        if let Some(of_map) = of_map {
            return of_map;
        }
        route.map_or(&self.default_fallbacks, |route| &route.fallbacks)
    }

    /// Index of the pool for requests that match no route.
    pub fn default_pool(&self) -> Option<usize> {
        self.default_pool
    }

    /// The routes, in order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Whether there are no routes: then the default pool takes everything.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}

/// Compiles the authentication.
fn http_auth(
    config: Option<&weir_config::Authentication>,
    pools: &PoolNames<'_>,
    known: &mut Vec<Arc<Passwords>>,
) -> Option<Box<Authenticator>> {
    Authenticator::compile(config, |name| pools.index(name), known, pools.token_keys).map(Box::new)
}

/// What is needed to compile a route.
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
            RouteAction::Pool(name) => {
                let fallbacks = pools.fallbacks(name, config.fallback_pool.as_deref());
                // If another pool of a split can't serve, the route's own pool does.
                let own = config.split.is_some().then(|| pools.index(name)).flatten();
                own.into_iter().chain(fallbacks).collect()
            }
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
            // The listener compiles it together with those of the other routes.
            auth: None,
            mirror: None,
            split: config
                .split
                .as_ref()
                .map(|split| Box::new(Split::compile(split, |name| pools.index(name)))),
            pool_map: config.pool_map.as_ref().map(|by_map| {
                let fallbacks = |pool: &str| pools.fallbacks(pool, config.fallback_pool.as_deref());
                Box::new(PoolMap::compile(by_map, |name| pools.index(name), fallbacks))
            }),
            fallbacks,
            rewrite: config.rewrite.as_ref().map(Rewrite::compile).map(Box::new),
            body_limit_bytes: config.body_limit_bytes,
            access_log: config.access_log,
            sqli: config.sqli,
            compress: config.compress.clone().map(Arc::new),
            buffer: config.buffer,
            bandwidth: config.bandwidth,
            retry: config.retry.if_any().cloned().map(Box::new),
            timeout: config.timeout.if_any().copied(),
            asked: Asked::of_route(config),
        };
        // A route is identified across reloads by its conditions: its name may be only its position.
        let before = old.and_then(|old| old.routes.iter().find(|old| old.asked == route.asked));
        let mirror = config.mirror.as_ref();
        let old = before.and_then(|old| old.mirror.as_deref());
        route.mirror = mirror.and_then(|it| Some(Box::new(Mirror::compile(it, pools.index(&it.pool)?, old))));
        let screen = before.and_then(|old| old.screen.as_deref());
        route.screen = screen::compile(&config.screen, &pools.seeds, screen);
        Some(route)
    }

    /// What the groups of the expression that matched this path matched; `None` if there are none.
    #[inline]
    pub fn groups(&self, path: &[u8]) -> Option<Groups> {
        self.asked.groups(path)
    }
}

/// `host` in lower case, in `room`; `None` if it is longer than any name can be.
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
    // A name may end with the root's dot; it is still the same name.
    let host = &authority[..end.unwrap_or(authority.len())];
    host.strip_suffix(b".").unwrap_or(host)
}
