//! `[[listener.NAME.route]]`: which requests a route matches, and what it does with them.

use std::collections::BTreeMap;

use weir_screen::{Pattern, Settings as Screen};
use weir_template::Template;

use crate::action::{self, RouteAction};
use crate::auth::Authentication;
use crate::bandwidth::RouteBandwidth;
use crate::buffer::Buffer;
use crate::cache::{self, RouteCache};
use crate::compress::{self, Compress};
use crate::condition::{self, CONDITIONS, Condition, MATCHED_VALUE, Others};
use crate::error_page::{self, ErrorPage};
use crate::fields::{Fields, Value};
use crate::headers::{Headers, Marks};
use crate::hedge;
use crate::keys::{Each, Key, Kind, Limit, TIB, flag, list, map, size, table as below, table_or_true, text};
use crate::maintenance::{self, Maintenance};
use crate::map::PoolMap;
use crate::mirror::Mirror;
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, Span};
use crate::retry::{self, RouteRetry};
use crate::rewrite::{self, Rewrite};
use crate::screen;
use crate::setting::{Section as _, table};
use crate::shared::TakesOver;
use crate::split::Split;
use crate::sqli::Sqli;
use crate::timeout::{self, ExchangeTimeouts};
use crate::values::NAME;
use crate::values::host::{HOST, HostPattern, PLAIN_HOST};
use crate::values::http::{METHOD, PROBED_HEADER};
use crate::values::path::{PATH, PathPattern};
use crate::values::template::BACKEND_HOST;

table! {
    /// Takes the requests that match all its conditions and does exactly one thing: `pool`, `redirect` or
    /// `respond`. A tcp listener's routes take connections, by `sni`, and have a `pool`.
    pub struct Route at "[[listener.NAME.route]]" {
        /// For logs and `weir explain`.
        name: String = text(&NAME).default("LISTENER/POSITION, from 0").brief();
        /// What it takes over.
        shared: TakesOver;
        /// Hosts without port; `*.example` takes any name below it, and what stands behind a `~` is a regular
        /// expression that matches anywhere in it, whatever its capitals.
        host: Vec<HostPattern> =
            list(Each::Text(&HOST))
                .http()
                .default("every host")
                .also(&["hosts", "server_name", "domain"]);
        /// Server names that TLS clients ask for; without `tls` on the listener they are read from the
        /// greeting and the connection is passed on as it is.
        sni: Vec<HostPattern> =
            list(Each::Text(&PLAIN_HOST))
                .default("every client")
                .tcp()
                .also(&["server_names", "hostsni", "req_ssl_sni"]);
        /// Exact, a prefix with a trailing `*`, a suffix with a leading one, with both a part, or behind a
        /// `~` a regular expression that matches anywhere in it, whose groups are `$1` and so on.
        path: Vec<PathPattern> =
            list(Each::Text(&PATH))
                .http()
                .default("every path")
                .also(&["paths", "path_beg", "location", "prefix"]);
        /// Methods.
        method: Vec<String> =
            list(Each::Text(&METHOD)).http().default("every method").also(&["methods"]);
        /// Header fields and the value each must have, several lines of a field being one (`a, b`): exactly
        /// this, with a `*` at an end or a `~` before it as in `path`; `"*"` asks only for presence.
        header: BTreeMap<String, Pattern> =
            map(&PROBED_HEADER, &MATCHED_VALUE).http().secret().default("none").also(&["headers"]);
        /// What is asked of query, cookies and client.
        others: Others;
        /// Conditions that must not hold: a request for which all that one of them says does is not taken.
        not: Vec<Condition> = CONDITIONS.default("none").also(&["unless", "except"]);
        /// Conditions of which one must hold.
        any: Vec<Condition> = CONDITIONS.default("none").also(&["any_of", "or"]);
        /// What happens to a request that matches.
        action: RouteAction;
        /// Shares of the requests that go to other pools than `pool`.
        split: Option<Split> = below(Split::TABLE).http().default("none").also(&["split_clients", "canary", "weighted"]);
        /// Has a map say which pool takes a request, in place of `pool`.
        pool_map: Option<PoolMap> =
            below(PoolMap::TABLE).http().default("none").also(&["use_backend", "pool_by_map"]);
        /// Copies of the requests for another pool, whose answers are thrown away.
        mirror: Option<Mirror> = below(Mirror::TABLE).http().default("none").also(&["mirroring", "shadow", "request_mirror"]);
        /// The pool that serves when no backend of `pool` can: none is up, or none takes work.
        fallback_pool: Option<String> =
            text(&NAME).http().default("what the pool says").also(&["fallback", "backup_pool", "sorry_pool"]);
        /// Rules about header fields.
        headers: Headers;
        /// What Weir says of itself and of the client.
        marks: Marks;
        /// Host, and port where it is another than the usual one, that backends are asked by.
        backend_host: Option<Template> =
            text(&BACKEND_HOST)
                .http()
                .default("what the pool says, else the client's")
                .also(&["host_header", "upstream_host"]);
        /// Change path and query towards the backend.
        rewrite: Option<Rewrite> = below(Rewrite::TABLE).http();
        /// Largest request body; beyond it 413.
        body_limit_bytes as "body_limit": Option<u64> =
            size(Limit::optional(0, 64 * TIB, "0B takes no body at all"))
                .http()
                .default("no limit")
                .also(&["client_max_body_size", "max_body_size"]);
        /// Compresses responses for clients that ask for it; `false` where the listener does and this route
        /// shall not.
        compress: Option<Compress> =
            table_or_true(Compress::TABLE)
                .http()
                .inherited()
                .also(&["compression", "gzip", "brotli", "encode"]);
        /// Timers of the requests or sessions that it takes, over those of its pool and its listener.
        timeout: ExchangeTimeouts =
            below(ExchangeTimeouts::TABLE).routed().also(&["timeouts"]);
        /// What is held here so that slow clients hold no backend, in place of what the pool says.
        buffer: Option<Buffer> =
            below(Buffer::TABLE).http().default("as the pool has it").also(&["buffering"]);
        /// How fast responses go to their clients.
        bandwidth: Option<RouteBandwidth> =
            below(RouteBandwidth::TABLE)
                .http()
                .default("no limit")
                .also(&["limit_rate", "rate", "bwlim", "bandwidth_limit", "throttle"]);
        /// When a failed attempt is made again, over what the pool says.
        retry: RouteRetry = below(RouteRetry::TABLE).http().also(&["retries"]);
        /// Keeps responses and answers from memory; only with `pool`.
        cache: Option<RouteCache> =
            below(RouteCache::TABLE)
                .http()
                .default("off")
                .instead(&[(&["`true` or `false`"], "an empty table switches it on: `cache = {}`")])
                .also(&["proxy_cache", "caching"]);
        /// What clients are told of errors; what it does not say is as its listener says it.
        error_page: Vec<ErrorPage> =
            Key::new(Kind::Tables(ErrorPage::TABLE))
                .http()
                .default("as the listener has it")
                .also(&["error_pages", "errorfile", "errors", "http-errors"]);
        /// What clients are told while the route is in maintenance, and who gets through.
        maintenance: Option<Maintenance> =
            below(Maintenance::TABLE).http().inherited().default("as the listener has it");
        /// Who may ask, and who says so; `false` lets everybody where the listener does not.
        auth: Option<Authentication> =
            table_or_true(Authentication::TABLE)
                .http()
                .inherited()
                .also(&["authentication", "auth_request", "forward_auth", "forwardauth"]);
        /// Whether its requests are written to access logs; metrics count them anyway.
        access_log: bool = flag(true).http().inherited();
        /// The access logs that its requests are written to.
        access_logs: Vec<String> =
            list(Each::Text(&NAME)).http().inherited().default("as the listener has it").also(&["logs"]);
        /// How requests are looked at for SQL injection: what the route says, else what its listener does.
        sqli: Sqli;
        /// What is asked of its requests.
        screen: Screen;
    }
}

/// Fills in values that follow from other settings for the routes of a listener.
pub(crate) fn assume(listener: &mut Fields) {
    let inherited: Vec<(&'static str, Value)> = Route::TABLE
        .keys()
        .into_iter()
        .filter(|key| key.inherited)
        .filter_map(|key| Some((key.name, listener.holds(key.name)?.into_owned())))
        .collect();
    let name = listener.name.clone();
    for (position, route) in listener.below_mut("route").into_iter().enumerate() {
        route.assume("name", Value::Text(format!("{name}/{position}")));
        for (name, value) in &inherited {
            route.assume(name, value.clone());
        }
    }
}

/// Whether a route's name is only its position: configured names have no slash.
pub fn is_position(route: &str) -> bool {
    route.contains('/')
}

impl Route {
    /// Whether requests of this route may go to a pool: the route's own, or one with a share.
    pub fn may_go_to(&self, pool: &str) -> bool {
        let shares = self.split.iter().flat_map(|split| &split.to);
        let by_map = self.pool_map.iter().flat_map(|by_map| &by_map.pools);
        matches!(&self.action, RouteAction::Pool(name) if name == pool)
            || by_map.into_iter().any(|name| name == pool)
            || shares.into_iter().any(|to| to.pool == pool)
    }
}

/// Checks the routes of one listener: each has one action, and each is reachable.
pub(crate) fn check(listener: &Fields, routes: &[Route], findings: &mut Findings<'_>) {
    let protocol = spoken(listener);
    if !protocol.is_none_or(Protocol::has_routes) {
        return;
    }
    let mut names: BTreeMap<&str, Span> = BTreeMap::new();
    for (_, route) in listener.tables("route") {
        compress::check(route, findings);
        error_page::check(route, findings);
        maintenance::check(route, findings);
        action::check(route, protocol, findings);
        condition::check(route, findings);
        rewrite::check(route, findings);
        cache::check(route, findings);
        tries(route, findings);
        if protocol.is_none_or(|protocol| protocol == Protocol::Http) {
            screen::check_route(route, findings);
        } else {
            screen::check_name_route(route, findings);
        }
        let Some(entry) = route.get("name") else { continue };
        let Value::Text(name) = &entry.value else { continue };
        match names.get(name.as_str()) {
            Some(first) => {
                let hint = format!("the first is at {}", findings.place(*first));
                let message = format!("two routes of `{}` are named `{name}`", listener.name);
                findings.error(entry.at, message, hint);
            }
            None => drop(names.insert(name, entry.at)),
        }
    }
    shadowed(listener, routes, findings);
    if routes.len() > MOST_MEASURED && listener.flag("route_metrics") {
        let hint = format!(
            "it has {} routes, and at most {MOST_MEASURED} are counted apart: each is a label of some 40 time series",
            routes.len()
        );
        findings.error(
            listener.at("route_metrics"),
            format!("`{}` has too many routes for it", listener.name),
            hint,
        );
    }
}

/// Most routes of one listener with metrics of their own (count).
const MOST_MEASURED: usize = 500;

/// Reports parts of a route's `timeout` and `retry` that have no effect.
fn tries(route: &Fields, findings: &mut Findings<'_>) {
    if let Some(timeout) = route.table("timeout") {
        timeout::never_acts(timeout, findings);
    }
    if let Some(retry) = route.table("retry") {
        hedge::check(retry, findings);
    }
    if let Some(retry) = route.table("retry").filter(|retry| retry.get("on").is_some()) {
        retry::check(retry, findings);
    }
    let answers = ["redirect", "respond"].into_iter().find(|name| route.get(name).is_some());
    let Some(by) = answers.filter(|_| route.get("pool").is_none()) else { return };
    for name in ["timeout", "retry"].into_iter().filter(|name| route.get(name).is_some()) {
        let hint = format!("nothing is forwarded: the route answers by `{by}`");
        findings.warning(route.at(name), format!("`{name}` has no effect"), hint);
    }
}

/// Most routes of one listener that are compared with each other (count). The time grows with the square.
const MOST_COMPARED: usize = 2000;

/// Reports routes that can never match, because an earlier route matches all their requests.
fn shadowed(listener: &Fields, routes: &[Route], findings: &mut Findings<'_>) {
    let places: Vec<Span> = listener.tables("route").map(|(at, _)| at).collect();
    for (index, route) in routes.iter().enumerate().take(MOST_COMPARED) {
        let earlier = routes[..index].iter().position(|earlier| covers(earlier, route));
        if let (Some(earlier), Some(at)) = (earlier, places.get(index)) {
            let by = &routes[earlier];
            let place = places.get(earlier).map_or_else(String::new, |at| findings.place(*at));
            let all = if takes_all(by) { "every request" } else { "all of them" };
            let hint = format!("the earlier route `{}` ({place}) takes {all}; first match wins", by.name);
            findings.warning(*at, format!("the route `{}` can never match", route.name), hint);
        }
    }
}

fn takes_every_path(route: &Route) -> bool {
    route.path.is_empty() || route.path.contains(&PathPattern::Prefix("/".to_owned()))
}

fn takes_all(route: &Route) -> bool {
    route.host.is_empty()
        && route.sni.is_empty()
        && takes_every_path(route)
        && route.method.is_empty()
        && route.header.is_empty()
        && asks_no_more(route)
}

/// Whether it has conditions only on host, path, method and header fields.
fn asks_no_more(route: &Route) -> bool {
    route.others.is_empty() && route.not.is_empty() && route.any.is_empty()
}

/// Whether `earlier` matches every request that `later` matches.
fn covers(earlier: &Route, later: &Route) -> bool {
    covers_all(&earlier.host, &later.host, HostPattern::covers)
        && covers_all(&earlier.sni, &later.sni, HostPattern::covers)
        && (takes_every_path(earlier) || covers_all(&earlier.path, &later.path, PathPattern::covers))
        && covers_all(&earlier.method, &later.method, |a, b| a == b)
        && earlier.header.iter().all(|(name, value)| {
            let asked = later.header.get(name);
            asked.is_some_and(|asked| value.is_everything() || value == asked)
        })
        && (asks_no_more(earlier)
            || (&earlier.others, &earlier.not, &earlier.any) == (&later.others, &later.not, &later.any))
}

fn covers_all<T>(earlier: &[T], later: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    earlier.is_empty()
        || (!later.is_empty()
            && later.iter().all(|later| earlier.iter().any(|earlier| covers(earlier, later))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_routes_than_are_counted_apart_are_refused_where_they_are_to_be() {
        let listener = |routes: usize, counted: bool| {
            let mut text = format!("[listener.web]\nbind = '127.0.0.1:80'\nroute_metrics = {counted}\n");
            for number in 0..routes {
                text +=
                    &format!("[[listener.web.route]]\npath = '/{number}'\nrespond = {{ status = 204 }}\n");
            }
            crate::parse("weir.toml", &text)
        };
        assert!(listener(super::MOST_MEASURED, true).is_ok());
        assert!(listener(super::MOST_MEASURED + 1, false).is_ok());
        let report = listener(super::MOST_MEASURED + 1, true).unwrap_err().to_string();
        assert!(report.contains("weir.toml:3:17: `web` has too many routes for it"), "{report}");
    }
}
