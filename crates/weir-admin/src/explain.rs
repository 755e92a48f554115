//! Why a request or a connection would go where it goes: the data path's own functions asked about the live state.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use weir_balance::{PickInput, Picker, TierKind, address_hash};
use weir_config::{Protocol, Sqli, SqliMode};
use weir_io::clock;
use weir_proxy::client::Client;
use weir_proxy::compiled::{CompiledListener, CompiledSnapshot};
use weir_proxy::http::cache::explain::Asked;
use weir_proxy::http::route::{Action, Decision, RequestView, RouteTable, without_port};
use weir_proxy::http::screening::{self, Checkpoint, Facts, ScreenCheck};
use weir_proxy::http::sqli;
use weir_proxy::http::sticky::{self, Sticky};
use weir_state::key::{KeySource, choice_key};
use weir_state::{Listener, Pool, Snapshot};

/// What `POST /v1/explain` asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// An HTTP request.
    Http {
        /// Method.
        method: String,
        /// `http://host[:port]/path?query`, or `/path?query` with a `host` header.
        url: String,
        /// Who connects: the client, or a trusted proxy that names it in `x-forwarded-for`; default 127.0.0.1.
        from: Option<IpAddr>,
        /// Header fields.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// Name of the listener; default: the one that the URL's address and port lead to.
        listener: Option<String>,
    },
    /// A TCP connection (or a UDP flow).
    Tcp {
        /// Address of the client.
        source: SocketAddr,
        /// Address of the listener.
        destination: SocketAddr,
    },
}

/// What would happen, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Name of the listener.
    pub listener: String,
    /// Why that one.
    pub listener_reason: String,
    /// The path that routes are compared with; empty for TCP.
    pub path: String,
    /// What became of each route, in order; empty for TCP.
    pub routes: Vec<Verdict>,
    /// What is asked of the request before that, in order; empty where nothing is.
    #[serde(default)]
    pub screens: Vec<Screened>,
    /// What the screen for SQL injection says of the request's head, where the route has one.
    #[serde(default)]
    pub sqli: Option<String>,
    /// What happens: `forward to pool app`, `redirect 308 to …`, `respond 200`, `404, no route`, `refuse 403, deny_path`, `refuse 403, sqli`.
    pub action: String,
    /// What the cache of the route would say; `None` where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The choice among the pool's backends; `None` when the request goes to no pool.
    pub pool: Option<Choice>,
}

/// One route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Its name.
    pub route: String,
    /// Whether it took the request.
    pub taken: bool,
    /// Why, or why not.
    pub reason: String,
}

/// One question that a listener or a route asks of a request, and the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Screened {
    /// `listener` or `route`.
    pub of: String,
    /// The key of the config.
    pub name: String,
    /// Whether the request passes.
    pub passes: bool,
    /// Why, in words.
    pub reason: String,
}

/// The choice among the backends of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the pool.
    pub pool: String,
    /// The algorithm's word.
    pub balance: String,
    /// The backend that would be chosen now; `None` when none can be.
    pub backend: Option<String>,
    /// Why that one, or why none.
    pub reason: String,
    /// Every backend.
    pub backends: Vec<Candidate>,
}

/// One backend in a choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// As configured.
    pub address: String,
    /// Its state's word.
    pub state: String,
    /// Being worked on now.
    pub in_flight: u32,
    /// In force.
    pub weight: u32,
    /// Why it was out of the question; empty when it could have been chosen.
    pub refusal: String,
}

/// Answers, or says what is wrong with the question.
pub fn explain(compiled: &CompiledSnapshot, question: &Question) -> Result<Answer, String> {
    match question {
        Question::Http { method, url, from, headers, listener } => {
            let client = from.unwrap_or(IpAddr::from([127, 0, 0, 1]));
            http(compiled, Request::read(method, url, headers, client)?, listener.as_deref())
        }
        Question::Tcp { source, destination } => tcp(&compiled.snapshot, *source, *destination),
    }
}

/// A request as far as routing and choosing look at it.
struct Request<'q> {
    method: &'q str,
    authority: &'q str,
    path: &'q str,
    target: &'q str,
    secure: bool,
    headers: &'q [(String, String)],
    client: IpAddr,
}

impl<'q> Request<'q> {
    fn read(
        method: &'q str,
        url: &'q str,
        headers: &'q [(String, String)],
        client: IpAddr,
    ) -> Result<Request<'q>, String> {
        let expected = "expected http://host[:port]/path, or /path with a host header";
        let (secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => (false, url),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let slash = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(slash);
        let target = if target.is_empty() { "/" } else { target };
        if !target.starts_with('/') {
            return Err(format!("url {url:?} has no path, {expected}"));
        }
        let named = headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("host"))
            .map(|(_, value)| value.as_str());
        let authority = named.unwrap_or(authority);
        if authority.is_empty() {
            return Err(format!("url {url:?} names no host, {expected}"));
        }
        let path = target.split('?').next().unwrap_or("/");
        Ok(Request { method, authority, path, target, secure, headers, client })
    }

    fn host(&self) -> &str {
        std::str::from_utf8(without_port(self.authority.as_bytes())).unwrap_or_default()
    }

    fn port(&self) -> u16 {
        let after = &self.authority[self.authority.rfind(']').unwrap_or(0)..];
        let named = after.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        named.unwrap_or(if self.secure { 443 } else { 80 })
    }

    fn header(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let mut named = self.headers.iter().filter(|(other, _)| other.as_bytes().eq_ignore_ascii_case(name));
        let first = named.next()?;
        let mut whole = Cow::Borrowed(first.1.as_bytes());
        for (_, value) in named {
            whole.to_mut().extend_from_slice(b", ");
            whole.to_mut().extend_from_slice(value.as_bytes());
        }
        Some(whole)
    }

    fn values(&self, wanted: &'static str) -> impl Iterator<Item = &[u8]> {
        let all = self.headers.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted));
        all.map(|(_, value)| value.as_bytes())
    }

    fn cookies(&self) -> impl Iterator<Item = &[u8]> {
        self.values("cookie")
    }

    fn key(&self, pool: &Pool) -> Option<u64> {
        let source = KeySource {
            client: self.client,
            path: self.path.as_bytes(),
            target: self.target.as_bytes(),
            header: &|name| self.header(name),
            cookie: &|name| sticky::cookie(self.cookies(), name),
        };
        choice_key(&pool.config, &source)
    }

    fn sticky(&self, pool: &Pool) -> Option<u64> {
        Sticky::of(pool, self.cookies()).wanted
    }
}

fn http(
    compiled: &CompiledSnapshot,
    mut request: Request<'_>,
    wanted: Option<&str>,
) -> Result<Answer, String> {
    let snapshot = &compiled.snapshot;
    let (listener, listener_reason) = http_listener(snapshot, &request, wanted)?;
    let name = &listener.config.name;
    let compiled = compiled.listener(name).ok_or_else(|| format!("listener {name} is not served"))?;
    let peer = Client::of_peer(SocketAddr::new(request.client, 0));
    request.client = peer.of_request(&listener.config, request.values("x-forwarded-for")).address.ip();
    let request = &request;
    let path = weir_proxy::http::normalised_path(&listener.config, request.path)?;
    let header = |name: &[u8]| request.header(name);
    let view = RequestView {
        host: request.host().as_bytes(),
        path: path.as_bytes(),
        method: request.method.as_bytes(),
        header: &header,
    };
    let verdict = |it: weir_proxy::http::route::RouteVerdict| Verdict {
        route: it.route,
        taken: it.taken,
        reason: it.reason,
    };
    let routes = compiled.routes.explain(&view).into_iter().map(verdict).collect();
    let decision = compiled.routes.decide(&view);
    let (screens, refused) = screen(compiled, &decision, request, &path);
    let (sqli, is_injection) = match &decision {
        Decision::Route { route, .. } if refused.is_none() => injection(route.sqli, request),
        Decision::Default { .. } if refused.is_none() => injection(listener.config.http().sqli, request),
        _ => (None, false),
    };
    let (action, pool) = match decision {
        _ if refused.is_some() => (refused, None),
        _ if is_injection => (Some("refuse 403, sqli".to_owned()), None),
        Decision::Default { pool } => (None, Some(pool)),
        Decision::Nowhere => (Some("404, no route".to_owned()), None),
        Decision::Route { route, .. } => match &route.action {
            Action::Pool(pool) => (None, Some(*pool)),
            Action::Redirect { to, status } => (Some(format!("redirect {status} to {to}")), None),
            Action::Respond { status, .. } => (Some(format!("respond {status}")), None),
        },
    };
    let pool = pool.and_then(|index| snapshot.pools.get(index));
    let cache = cached(&compiled.routes, &view, request, &path)?;
    let action = action.or_else(|| pool.map(|pool| format!("forward to pool {}", pool.config.name)));
    let choice = pool.map(|pool| choose(pool, request.key(pool), request.sticky(pool)));
    let listener = listener.config.name.clone();
    Ok(Answer {
        listener,
        listener_reason,
        path,
        routes,
        screens,
        sqli,
        action: action.unwrap_or_default(),
        cache,
        pool: choice,
    })
}

/// What the cache of the route that takes the request says.
fn cached(
    routes: &RouteTable,
    view: &RequestView<'_>,
    request: &Request<'_>,
    path: &str,
) -> Result<Option<String>, String> {
    let Decision::Route { route, prefix } = routes.decide(view) else { return Ok(None) };
    let Some(cache) = &route.cache else { return Ok(None) };
    let rewritten = route
        .rewrite_prefix
        .as_ref()
        .map(|new| format!("{}{}", String::from_utf8_lossy(new), path.get(prefix..).unwrap_or_default()));
    let asked = Asked {
        method: request.method,
        secure: request.secure,
        authority: request.authority,
        path: rewritten.as_deref().unwrap_or(path),
        target: request.target,
        headers: request.headers,
    };
    weir_proxy::http::cache::explain::explain(cache, &asked).map(Some)
}

/// What the listener and the route ask of the request, and what they answer it with when they do not let it pass.
fn screen(
    compiled: &CompiledListener,
    decision: &Decision<'_>,
    request: &Request<'_>,
    path: &str,
) -> (Vec<Screened>, Option<String>) {
    let (route, is_forwarded) = match decision {
        Decision::Nowhere => return (Vec::new(), None),
        Decision::Default { .. } => (None, true),
        Decision::Route { route, .. } => (Some(*route), matches!(route.action, Action::Pool(_))),
    };
    let user_agent = request.header(b"user-agent");
    let facts = Facts {
        client: request.client,
        path: path.as_bytes(),
        method: request.method.as_bytes(),
        user_agent: user_agent.as_deref().unwrap_or_default(),
        header: &|name| request.header(name),
        cookie: &|name| sticky::cookie(request.cookies(), name),
    };
    let mut steps = screening::explain(compiled, route, &facts, clock::now());
    steps.retain(|(_, step)| is_forwarded || step.at == Checkpoint::Edge);
    // What is asked on the edge is asked first, of both.
    steps.sort_by_key(|(_, step)| step.at == Checkpoint::Origin);
    let refused = steps.iter().find(|(_, step)| !step.passes);
    let refused = refused.map(|(of, step)| format!("refuse {}, {} of the {of}", step.status, step.name));
    let screened = |(of, step): (&str, ScreenCheck)| Screened {
        of: of.to_owned(),
        name: step.name,
        passes: step.passes,
        reason: step.reason,
    };
    (steps.into_iter().map(screened).collect(), refused)
}

/// What the screen for SQL injection says, and whether it refuses the request.
fn injection(asked: Sqli, request: &Request<'_>) -> (Option<String>, bool) {
    if asked.mode == SqliMode::Off {
        return (None, false);
    }
    let query = request.target.split_once('?').map(|(_, query)| query.as_bytes());
    let fields = request.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let (sentence, refuses) = sqli::explain(asked, request.path.as_bytes(), query, fields);
    (Some(sentence), refuses)
}

/// The listener a client would reach: the one named, the one at the URL's port, or the only one there is.
fn http_listener<'s>(
    snapshot: &'s Snapshot,
    request: &Request<'_>,
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
    let port = request.port();
    let host: Option<IpAddr> = request.host().trim_matches(['[', ']']).parse().ok();
    let mut at_port = all().filter(|listener| {
        listener.config.bind.iter().any(|bind| {
            bind.port() == port && host.is_none_or(|host| bind.ip().is_unspecified() || bind.ip() == host)
        })
    });
    if let Some(listener) = at_port.next() {
        let shared = if at_port.next().is_some() { ", the first of several" } else { "" };
        return Ok((listener, format!("accepts at port {port}{shared}")));
    }
    let mut rest = all();
    match (rest.next(), rest.next()) {
        (Some(only), None) => {
            Ok((only, format!("the only HTTP listener, though it does not accept at port {port}")))
        }
        (None, _) => Err("there is no HTTP listener".to_owned()),
        (Some(_), Some(_)) => {
            Err(format!("no HTTP listener accepts at port {port}; name one with `listener`"))
        }
    }
}

fn tcp(snapshot: &Snapshot, source: SocketAddr, destination: SocketAddr) -> Result<Answer, String> {
    let accepts = |listener: &&std::sync::Arc<Listener>| {
        let at = |bind: &SocketAddr| {
            bind.port() == destination.port() && (bind.ip() == destination.ip() || bind.ip().is_unspecified())
        };
        listener.config.protocol() != Protocol::Http && listener.config.bind.iter().any(at)
    };
    let listener = snapshot.listeners.iter().find(accepts);
    let listener = listener.ok_or_else(|| format!("no TCP or UDP listener accepts at {destination}"))?;
    let pool = listener.config.pool.as_deref().and_then(|name| snapshot.pool(name));
    let pool = pool.ok_or_else(|| format!("listener `{}` has no pool", listener.config.name))?;
    Ok(Answer {
        listener: listener.config.name.clone(),
        listener_reason: format!("accepts at {destination}"),
        path: String::new(),
        routes: Vec::new(),
        screens: Vec::new(),
        sqli: None,
        action: format!("forward to pool {}", pool.config.name),
        cache: None,
        pool: Some(choose(pool, Some(address_hash(source.ip())), None)),
    })
}

fn choose(pool: &Pool, key: Option<u64>, sticky: Option<u64>) -> Choice {
    // The middle of the range for both draws: an explanation should not change when nothing else does.
    let input = PickInput { now: clock::now(), draw: [u32::MAX / 2; 2], key, sticky, exclude: &[] };
    let explanation = Picker::new(pool.balance.clone()).explain(&input);
    let (backend, reason) = match &explanation.outcome {
        Ok(pick) => {
            let mut reason = pick.reason.words().to_owned();
            if pick.tier == TierKind::LastResort {
                reason = format!("{reason}; {}", explanation.backends[pick.index].0.last_resort_words());
            }
            (pool.backends.get(pick.index).map(|it| it.address.clone()), reason)
        }
        Err(none) => (None, none.to_string()),
    };
    let backends = explanation.backends.iter().map(|(status, refusal)| Candidate {
        address: status.address.clone(),
        state: status.state.word().to_owned(),
        in_flight: status.in_flight,
        weight: status.weight,
        refusal: refusal.map(|refusal| refusal.words().to_owned()).unwrap_or_default(),
    });
    let (pool, balance) = (pool.config.name.clone(), pool.config.balance.word().to_owned());
    Choice { pool, balance, backend, reason, backends: backends.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_tls::{Loaded, TicketKeys};

    fn snapshot(text: &str) -> CompiledSnapshot {
        let config = weir_config::parse("test.toml", text).unwrap_or_else(|report| panic!("{report}"));
        let loaded = Loaded::load(&config, &TicketKeys::new([]), &Arc::default()).unwrap();
        let snapshot = Snapshot::compile(Arc::new(config), &loaded, None, 1);
        CompiledSnapshot::compile(Arc::new(snapshot), None, 1)
    }

    const CONFIG: &str = "
        [listener.web]
        bind = '0.0.0.0:8080'
        pool = 'app'
        [[listener.web.route]]
        host = 'shop.example'
        path = '/api/*'
        pool = 'api'
        [[listener.web.route]]
        path = '/old/*'
        redirect = { to = 'https://shop.example' }
        [listener.raw]
        protocol = 'tcp'
        bind = '127.0.0.1:7000'
        pool = 'app'
        [pool.app]
        backends = ['10.0.0.1:80', '10.0.0.2:80']
        [pool.api]
        backends = ['10.0.0.3:80']
        balance = 'source'
    ";

    fn ask(url: &str) -> Result<Answer, String> {
        let (method, url) = ("GET".to_owned(), url.to_owned());
        explain(
            &snapshot(CONFIG),
            &Question::Http { method, url, from: None, headers: Vec::new(), listener: None },
        )
    }

    #[test]
    fn a_request_is_followed_to_its_backend_with_a_reason_at_each_step() {
        let answer = ask("http://shop.example:8080/api/cart?id=1").unwrap();
        assert_eq!(
            (answer.listener.as_str(), answer.listener_reason.as_str()),
            ("web", "accepts at port 8080")
        );
        assert_eq!(answer.path, "/api/cart");
        assert_eq!(answer.routes.iter().map(|it| it.taken).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(answer.action, "forward to pool api");
        let choice = answer.pool.unwrap();
        assert_eq!((choice.backend.as_deref(), choice.balance.as_str()), (Some("10.0.0.3:80"), "source"));
        assert!(!choice.reason.is_empty());
    }

    #[test]
    fn what_no_route_takes_goes_to_the_listeners_pool_and_a_redirect_to_no_pool() {
        assert_eq!(ask("http://other:8080/api/x").unwrap().action, "forward to pool app");
        let redirected = ask("http://other:8080/old/x").unwrap();
        assert!(redirected.action.starts_with("redirect 308 to "), "{}", redirected.action);
        assert!(redirected.pool.is_none());
    }

    #[test]
    fn a_port_nobody_accepts_at_leads_to_the_only_listener_and_says_so() {
        let answer = ask("http://shop.example/").unwrap();
        assert_eq!(answer.listener_reason, "the only HTTP listener, though it does not accept at port 80");
    }

    #[test]
    fn a_question_that_can_not_be_understood_says_what_was_expected() {
        for url in ["", "http://", "/no-host"] {
            let error = ask(url).unwrap_err();
            assert!(error.contains("expected http://host"), "{url}: {error}");
        }
    }

    #[test]
    fn a_connection_is_explained_by_its_destination() {
        let tcp = |destination: &str| {
            let (source, destination) = ("10.9.9.9:1234".parse().unwrap(), destination.parse().unwrap());
            explain(&snapshot(CONFIG), &Question::Tcp { source, destination })
        };
        let answer = tcp("127.0.0.1:7000").unwrap();
        assert_eq!((answer.listener.as_str(), answer.action.as_str()), ("raw", "forward to pool app"));
        assert_eq!(tcp("127.0.0.1:7001").unwrap_err(), "no TCP or UDP listener accepts at 127.0.0.1:7001");
    }

    #[test]
    fn a_cookie_leads_where_the_data_path_would_go_also_from_a_second_header_line() {
        let config = "
            [listener.web]
            bind = '0.0.0.0:8080'
            pool = 'app'
            [pool.app]
            backends = ['10.0.0.1:80', '10.0.0.2:80', '10.0.0.3:80']
            sticky = { cookie = 'weir' }
        ";
        let snapshot = snapshot(config);
        let sticky = snapshot.snapshot.pools[0].sticky.clone().unwrap();
        for backend in &snapshot.snapshot.pools[0].backends {
            let cookie = |value: &str| ("Cookie".to_owned(), value.to_owned());
            let question = Question::Http {
                method: "GET".to_owned(),
                url: "http://shop.example:8080/".to_owned(),
                from: None,
                headers: vec![
                    cookie("a=1"),
                    cookie(&format!("b=2; weir={}", sticky.seal(backend.balance.id()))),
                ],
                listener: None,
            };
            let choice = explain(&snapshot, &question).unwrap().pool.unwrap();
            assert_eq!(choice.backend.as_deref(), Some(backend.address.as_str()));
            assert_eq!(choice.reason, "the cookie names it");
        }
    }
}
