//! Explains an HTTP request by the same plan that the data path executes.

use std::net::IpAddr;

use weir_balance::BreakerState;
use weir_config::units::{show_duration, show_size};
use weir_config::{Bind, Buffer, NEVER, PoolProtocol, Protocol, Retry};
use weir_io::clock;
use weir_proxy::RetryRules;
use weir_proxy::compiled::{CompiledListener, CompiledSnapshot};
use weir_proxy::http::auth::Authenticator;
use weir_proxy::http::closing;
use weir_proxy::http::edits::masked;
use weir_proxy::http::explain::{Answered, Arrival, FieldChange, Request, Words};
use weir_proxy::http::plan::{Outcome, OverTls, Paths, Plan, Refused, Rules, plan};
use weir_proxy::http::pool_map::PoolMap;
use weir_proxy::http::route::{Route, RouteVerdict, without_port};
use weir_proxy::http::screening::{Checkpoint, Step};
use weir_proxy::timers::in_force;
use weir_state::{Listener, Pool, Snapshot};

use super::{Answer, ExplainedRoute, HeaderChange, Screened, by_interfaces, choose, timers, tls};

use crate::maps::LookedUp;

/// The request to explain.
pub(super) struct Asked<'q> {
    words: Words<'q>,
    /// Whether the URL is https; `None` for a path alone.
    is_secure: Option<bool>,
}

impl<'q> Asked<'q> {
    pub(super) fn read(
        method: &'q str,
        url: &'q str,
        headers: &'q [(String, String)],
    ) -> Result<Asked<'q>, String> {
        let expected = "expected http://host[:port]/path, or /path with a host header";
        let lines = headers.iter().flat_map(|(name, value)| [name.as_str(), value]);
        if let Some(broken) = lines.chain([method, url]).find(|text| text.contains(['\r', '\n'])) {
            return Err(format!("{broken:?} has a line break in it"));
        }
        let (is_secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (Some(false), rest),
            (None, Some(rest)) => (Some(true), rest),
            (None, None) => (None, url),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let named = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        let named = named.map(|(_, value)| value.as_str());
        let end = if rest == "*" { 0 } else { rest.find(['/', '?']).unwrap_or(rest.len()) };
        let (authority, target) = rest.split_at(end);
        let target = match target {
            "" if method == "CONNECT" => authority,
            "" => "/",
            target => target,
        };
        if target.starts_with('?') {
            return Err(format!("url {url:?} has no path, {expected}"));
        }
        let authority = named.unwrap_or(authority);
        if authority.is_empty() {
            return Err(format!("url {url:?} names no host, {expected}"));
        }
        Ok(Asked { words: Words { method, target, authority, headers }, is_secure })
    }

    fn host(&self) -> &str {
        std::str::from_utf8(without_port(self.words.authority.as_bytes())).unwrap_or_default()
    }

    fn port(&self) -> u16 {
        let authority = self.words.authority;
        let after = &authority[authority.rfind(']').unwrap_or(0)..];
        let named = after.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        named.unwrap_or(if self.is_secure == Some(true) { 443 } else { 80 })
    }
}

impl Asked<'_> {
    /// A warning if a request with the URL's scheme would not reach the listener.
    fn of_other_scheme(&self, listener: &Listener) -> Option<String> {
        let name = &listener.config.name;
        match (self.is_secure?, listener.tls.is_some()) {
            (false, true) => Some(format!(
                "listener {name} speaks TLS, and what comes by http:// gets no answer; \
                 what follows is of a request by https://"
            )),
            (true, false) => Some(format!(
                "listener {name} has no `tls`, and what comes by https:// is no request; \
                 what follows is of one by http://"
            )),
            (false, false) | (true, true) => None,
        }
    }
}

/// Explains a request from `peer`; over TLS it asks for `server_name`, or else for the host.
pub(super) fn explain(
    compiled: &CompiledSnapshot,
    asked: &Asked<'_>,
    peer: IpAddr,
    wanted: Option<&str>,
    server_name: Option<&str>,
) -> Result<Answer, String> {
    let snapshot = &*compiled.snapshot;
    let (listener, reason) = listener_for(snapshot, asked, wanted)?;
    let name = &listener.config.name;
    let compiled = compiled.listener(name).ok_or_else(|| format!("listener {name} is not served"))?;
    let mut answer = Answer::of(listener, reason);
    let server_name = match server_name {
        Some(text) => tls::asked_for(text)?,
        // Clients send neither an address nor an invalid name as SNI.
        None => tls::asked_for(asked.host()).ok().flatten(),
    };
    answer.warnings.extend(asked.of_other_scheme(listener));
    if let Some(server) = listener.tls.as_deref() {
        tls::tell(&mut answer, server, server_name.as_deref());
    }
    let request = match Request::read(&listener.config, peer, &asked.words) {
        Ok(request) => request,
        Err(refused) => {
            answer.refused(refused, refused.word);
            return Ok(answer);
        }
    };
    let tls = listener.tls.as_deref();
    let tls = tls.map(|server| OverTls { server, server_name: server_name.as_deref() });
    let rules =
        Rules { config: &listener.config, routes: &compiled.routes, challenges: &listener.challenges };
    let mut paths = Paths::default();
    let arrival = Arrival { port: asked.port(), tls, maps: listener.maps.as_deref() };
    let plan = plan(&rules, &request.received(tls), &|| request.values(&arrival), &mut paths);
    Followed { snapshot, listener, compiled, request: &request, arrival, paths: &paths, plan: &plan }
        .tell(&mut answer);
    Ok(answer)
}

/// A request and its plan.
struct Followed<'f> {
    snapshot: &'f Snapshot,
    listener: &'f Listener,
    compiled: &'f CompiledListener,
    request: &'f Request,
    arrival: Arrival<'f>,
    paths: &'f Paths,
    plan: &'f Plan<'f>,
}

impl Followed<'_> {
    fn tell(&self, answer: &mut Answer) {
        let Followed { listener, compiled, request, plan, .. } = self;
        let path = self.paths.compared(request.path());
        if plan.is_screened || matches!(plan.outcome, Outcome::Refuse(Refused::NoRoute)) {
            answer.path = text(path);
            let values = || request.values(&self.arrival);
            let received = request.received(None);
            let verdicts = received.with_view(path, &values, |view| compiled.routes.explain(view));
            let maps = request.mapped(self.paths, &self.arrival);
            answer.maps = maps.into_iter().map(|(map, said)| LookedUp::of(map, said)).collect();
            answer.routes = verdicts.into_iter().map(ExplainedRoute::from).collect();
        }
        let is_forwarded = matches!(plan.outcome, Outcome::Forward { .. });
        let mut steps = Vec::new();
        let mut injection = None;
        if plan.is_screened {
            let of_route = plan.route.and_then(|route| route.screen.as_deref());
            steps = request.screens([compiled.screen.as_deref(), of_route], self.paths, &self.arrival);
            steps.retain(|step| is_forwarded || step.check.at == Checkpoint::Edge);
            injection = request.injection(plan.route.map_or(listener.config.http().sqli, |route| route.sqli));
        }
        let closing = compiled.routes.closing(plan.route);
        let whereto = || plan.whereto(listener, |pool| &self.snapshot.pools[pool].config.name);
        let kept_out = closing.keeps_out(&listener.maintenance, whereto, request.client());
        let refused_at = |at| steps.iter().find(|step| !step.check.passes && step.check.at == at);
        let mut serving = None;
        if let Some(step) = refused_at(Checkpoint::Edge) {
            answer.refused_by(step);
        } else if let Some(scope) = kept_out.filter(|_| plan.is_screened) {
            let refused = Answered { status: 503, word: "maintenance" };
            answer.refused(refused, &format!("maintenance of {scope}"));
        } else {
            // A request that a list refuses is not screened.
            answer.sqli = injection.as_ref().map(|(sentence, _)| sentence.clone());
            let asked = compiled.routes.auth(plan.route).filter(|_| plan.outcome.is_guarded());
            let closed = asked.and_then(|asked| self.unanswered(asked));
            let injection = injection.and_then(|(_, refused)| refused);
            match (injection, closed, refused_at(Checkpoint::Origin)) {
                (Some(refused), _, _) => answer.refused(refused, refused.word),
                (None, Some((refused, why)), _) => answer.refused(refused, &why),
                (None, None, Some(step)) => answer.refused_by(step),
                (None, None, None) => serving = self.carry_out(answer),
            }
        }
        answer.screens = steps.into_iter().map(Screened::from).collect();
        if let Some(bandwidth) = plan.route.and_then(|route| route.bandwidth).filter(|_| serving.is_some()) {
            let (of, name) = ("route".to_owned(), "bandwidth".to_owned());
            answer.screens.push(Screened { of, name, passes: true, reason: bandwidth.words() });
        }
        let route = plan.route.map(|route| route.number);
        answer.logs = compiled.logs.as_deref().map(|logs| logs.names(route));
        self.tell_errors(answer);
        self.tell_changes(answer, serving);
    }

    /// Describes the copies that are made for another pool; `is_closed` says whether a pool is in
    /// maintenance.
    fn copied(&self, is_closed: impl Fn(usize) -> bool) -> Option<String> {
        let mirror = self.plan.route?.mirror.as_deref()?;
        let name = &self.snapshot.pools[mirror.pool()].config.name;
        Some(self.request.copied(mirror, name, || is_closed(mirror.pool())))
    }

    /// How a request is refused, and why, if the authentication service can't be asked.
    fn unanswered(&self, asked: &Authenticator) -> Option<(Answered, String)> {
        let Followed { snapshot, listener, compiled, request, plan, .. } = self;
        let name = asked.pool_name()?;
        let closing = compiled.routes.closing(plan.route);
        if closing.keeps_from(&listener.maintenance, name, request.client()) {
            let refused = Answered { status: 503, word: "maintenance" };
            return Some((refused, format!("maintenance of pool {name}, which is asked who may")));
        }
        let why = closing::unasked(&snapshot.pool(name)?.balance)?;
        let but = if asked.remembers() { ", unless the answer is remembered" } else { "" };
        let refused = Answered { status: 503, word: "auth_unavailable" };
        Some((refused, format!("pool {name}, which is asked who may, {why}{but}")))
    }

    fn tell_errors(&self, answer: &mut Answer) {
        let pages = match answer.refusal.as_deref() {
            Some("maintenance") => self.compiled.routes.closing(self.plan.route).pages.as_deref(),
            _ => self.compiled.routes.pages(self.plan.route),
        };
        if let (Some(status), Some(_)) = (answer.status, &answer.refusal) {
            answer.errors = Some(format!("told as {}", self.request.told(pages, status)));
        } else if let (Some(_), Some(pages)) = (&answer.pool, pages) {
            let replaced = pages.intercepted();
            answer.errors = (!replaced.is_empty())
                .then(|| format!("of backends give way to pages: {}", replaced.join(", ")));
        }
    }

    /// Adds the header changes that rules make to the request, if it is forwarded to the pool `serving`, and
    /// to the answer.
    fn tell_changes(&self, answer: &mut Answer, serving: Option<usize>) {
        let Followed { compiled, request, paths, plan, arrival, .. } = self;
        let Some(table) = compiled.edits.as_deref() else { return };
        let of = (plan.route.map(|route| route.number), serving.or(plan.pool()));
        let is_forwarded = serving.is_some();
        let mut changes = request.changes(table, of, paths, arrival);
        changes.retain(|change| change.to_client || is_forwarded);
        answer.header_changes = changes.into_iter().map(HeaderChange::from).collect();
        if is_forwarded {
            let hidden = &self.snapshot.config.hidden;
            let pool = serving.map(|pool| &self.snapshot.pools[pool].config.name);
            let is_hidden = self.is_hidden(&["backend_host"])
                || pool.is_some_and(|pool| hidden.holds(&["pool", pool, "backend_host"]));
            answer.backend_host = match is_hidden {
                true => table.host(of.0, of.1).map(masked),
                false => request.backend_host(table, of, paths, arrival),
            };
        }
    }

    /// Whether the value of a key in the route came from the environment or a file: then it is never shown.
    fn is_hidden(&self, key: &[&str]) -> bool {
        self.plan.route.is_some_and(|route| {
            let (listener, route) = (&self.listener.config.name, (route.number, &*route.name));
            self.snapshot.config.hidden.holds_of_route(listener, route, key)
        })
    }

    /// Fills in the result for a request that passed lists and limits; returns the index of the serving pool,
    /// if any.
    fn carry_out(&self, answer: &mut Answer) -> Option<usize> {
        let Followed { listener, request, paths, plan, .. } = self;
        let auth = self.compiled.routes.auth(plan.route).filter(|_| plan.outcome.is_guarded());
        answer.auth = auth.map(Authenticator::words);
        match &plan.outcome {
            Outcome::Refuse(refused) => {
                let refused = Answered::from(*refused);
                answer.refused(refused, refused.word);
            }
            Outcome::Redirect { to, status } => {
                let (target, location) = match self.is_hidden(&["redirect"]) {
                    true => (masked(to), masked(to)),
                    false => (to.to_string(), request.location(to, paths, &self.arrival)),
                };
                answer.answered(*status, format!("redirect {status} to {target}"));
                answer.location = Some(location);
            }
            Outcome::Respond { status, .. } => answer.answered(*status, format!("respond {status}")),
            Outcome::Trace => {
                answer.answered(200, "respond 200, for `max-forwards` lets nobody else answer".to_owned());
            }
            Outcome::Prove { .. } => {
                answer.answered(200, "respond 200 with what a certificate authority looks for".to_owned());
            }
            Outcome::Forward { pool: asked } => {
                let path = request.asked_for(paths);
                answer.backend_path = Some(match self.is_hidden(&["rewrite"]) {
                    true => weir_config::SECRET.to_owned(),
                    // `OPTIONS *` has no path.
                    false => text(if path.is_empty() { b"*" } else { &path }),
                });
                answer.cache =
                    plan.route.and_then(|route| request.cached(route, listener.tls.is_some(), paths));
                let pools = &self.snapshot.pools;
                let fallbacks = self.compiled.routes.fallbacks(plan.route, *asked);
                let closing = self.compiled.routes.closing(plan.route);
                let is_closed = |index: usize| {
                    let name = &pools[index].config.name;
                    closing.keeps_from(&listener.maintenance, name, request.client())
                };
                let serving = closing::serving(*asked, fallbacks, |index| &pools[index].balance, is_closed);
                let pool = &pools[serving];
                let (key, sticky) = request.wish(pool, paths, &self.arrival);
                answer.action = format!("forward to pool {}", pool.config.name);
                if !std::ptr::eq(pool, &pools[*asked]) {
                    answer.action +=
                        &format!(", the fallback: none of {} can serve", pools[*asked].config.name);
                }
                answer.split = plan
                    .route
                    .and_then(|route| route.split.as_deref())
                    .map(|split| split.words(|index| pools[index].config.name.as_str()));
                let by_map = plan.route.and_then(|route| route.pool_map.as_deref());
                answer.split = answer.split.take().or_else(|| by_map.map(PoolMap::words));
                answer.mirror = self.copied(is_closed);
                let of_route = plan.route.and_then(|route| route.buffer);
                let is_held = !self.request.is_never_held(pool);
                answer.buffered =
                    of_route.or(pool.config.buffer).and_then(|buffer| buffered(buffer, is_held));
                answer.protocol = picked(pool);
                answer.breaker =
                    pool.balance.breaker().map(|(breaker, _)| match breaker.state(clock::now()) {
                        BreakerState::Closed => "closed".to_owned(),
                        BreakerState::Trying => "open, and a few requests are tried".to_owned(),
                        BreakerState::Open(left) => {
                            format!("open: refuses with 503 for {} s more", left.as_secs() + 1)
                        }
                    });
                let of_route = plan.route.and_then(|route| route.timeout.as_ref());
                let of_pool = pool.config.timeout.if_any();
                answer.sticky = pool.config.sticky.as_ref().map(|it| {
                    let hidden = if it.hidden { "; hidden from backends" } else { "" };
                    let private = if it.private { "; private to each client" } else { "" };
                    let attributes = it.attributes(listener.tls.is_some());
                    format!("cookie {}{attributes}{hidden}{private}", it.cookie)
                });
                answer.retry = Some(retried(&pool.config.retry, plan.route));
                answer.hedge = request.hedged(pool, plan.route, sticky.is_some());
                answer.timers = timers(in_force(&listener.config.timeout, of_pool, of_route));
                answer.pool = Some(choose(pool, key, sticky));
                return Some(serving);
            }
        }
        None
    }
}

/// The HTTP versions that the backends of a pool chose last, in words; `None` if they do not choose.
fn picked(pool: &Pool) -> Option<String> {
    let is_h3 = pool.config.protocol == PoolProtocol::H3;
    if !pool.config.protocol.lets_pick() {
        return None;
    }
    let each = pool.backends.iter().map(|backend| {
        let over_tcp = match backend.picked.word() {
            Some(word) => format!("{} picked {word}", backend.address),
            None => format!("{} has not yet", backend.address),
        };
        if is_h3 && backend.picked.lacks_quic() {
            return format!("{over_tcp}, and QUIC does not get through to it");
        }
        over_tcp
    });
    let each = each.collect::<Vec<_>>().join(", ");
    Some(match is_h3 {
        true => format!("h3, and over TCP h2 or h1, as each backend picks: {each}"),
        false => format!("h2 or h1, as each backend picks: {each}"),
    })
}

/// What is buffered for slow clients, in words; `None` for nothing. `is_held` says whether the request may be
/// buffered.
fn buffered(buffer: Buffer, is_held: bool) -> Option<String> {
    let of_requests = if is_held { buffer.requests } else { 0 };
    let held = [
        ("requests", of_requests, buffer.requests_file),
        ("responses", buffer.responses, buffer.responses_file),
    ];
    let words = held.iter().filter(|(_, most, _)| *most > 0).map(|(what, most, in_file)| match *in_file {
        0 => format!("{what} up to {}", show_size(*most)),
        more => format!("{what} up to {}, and {} more in a file", show_size(*most), show_size(more)),
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

impl Answer {
    fn answered(&mut self, status: u16, action: String) {
        self.status = Some(status);
        self.action = action;
    }

    /// `why` becomes the text of the action.
    fn refused(&mut self, refused: Answered, why: &str) {
        self.answered(refused.status, format!("refuse {}, {why}", refused.status));
        self.refusal = Some(refused.word.to_owned());
    }

    fn refused_by(&mut self, step: &Step) {
        let refused = Answered { status: step.check.status, word: step.word };
        self.refused(refused, &format!("{} of the {}", step.check.name, step.of));
    }
}

impl From<RouteVerdict> for ExplainedRoute {
    fn from(verdict: RouteVerdict) -> ExplainedRoute {
        ExplainedRoute { route: verdict.route, taken: verdict.taken, reason: verdict.reason }
    }
}

impl From<FieldChange> for HeaderChange {
    fn from(change: FieldChange) -> HeaderChange {
        HeaderChange {
            to: if change.to_client { "client" } else { "backend" }.to_owned(),
            of: change.of.to_owned(),
            action: change.action.to_owned(),
            name: change.name,
            value: change.value,
        }
    }
}

impl From<Step> for Screened {
    fn from(step: Step) -> Screened {
        let Step { of, check, .. } = step;
        Screened { of: of.to_owned(), name: check.name, passes: check.passes, reason: check.reason }
    }
}

/// When a failed attempt is retried, in words.
fn retried(pool: &Retry, route: Option<&Route>) -> String {
    let of_route = route.and_then(|route| route.retry.as_deref());
    let rules = RetryRules::of(pool, of_route);
    let of = if of_route.is_some() { "route" } else { "pool" };
    if rules.attempts == 0 {
        return format!("none, of the {of}");
    }
    let on: Vec<&str> = rules.on.iter().map(|on| on.word()).collect();
    let mut told = format!("{} more on {}", rules.attempts, on.join(", "));
    if rules.non_idempotent {
        told += ", whatever the method";
    }
    if rules.per_try != NEVER {
        told += &format!(", each that another may follow within {}", show_duration(rules.per_try));
    }
    format!("{told}, of the {of}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The listener that a client would reach: the named one, the one at the URL's port, or the only one.
fn listener_for<'s>(
    snapshot: &'s Snapshot,
    asked: &Asked<'_>,
    wanted: Option<&str>,
) -> Result<(&'s Listener, String), String> {
    let all = || snapshot.listeners.iter().filter(|listener| listener.config.protocol() == Protocol::Http);
    if let Some(name) = wanted {
        let found = all().find(|listener| listener.config.name == name);
        let names = || all().map(|listener| listener.config.name.as_str()).collect::<Vec<_>>().join(", ");
        let found =
            found.ok_or_else(|| format!("no HTTP listener is named `{name}`, expected one of {}", names()));
        return found.map(|listener| (&**listener, "named in the question".to_owned()));
    }
    let port = asked.port();
    let host: Option<IpAddr> = asked.host().trim_matches(['[', ']']).parse().ok();
    let mut at_port = all().filter(|listener| {
        listener.config.bind.iter().filter_map(Bind::inet).any(|bind| {
            let ip = bind.first.ip();
            bind.ports().contains(&port) && host.is_none_or(|host| ip.is_unspecified() || ip == host)
        })
    });
    if let Some(listener) = at_port.next() {
        let shared = if at_port.next().is_some() { ", the first of several" } else { "" };
        let by = by_interfaces(&listener.config);
        return Ok((listener, format!("accepts at port {port}{by}{shared}")));
    }
    let mut rest = all();
    match (rest.next(), rest.next()) {
        (Some(only), None) => {
            Ok((only, format!("the only HTTP listener, though it does not accept at port {port}")))
        }
        (None, _) => Err("there is no HTTP listener".to_owned()),
        (Some(_), Some(_)) => {
            Err(format!("no HTTP listener accepts at port {port}; name one with `--listener`"))
        }
    }
}
