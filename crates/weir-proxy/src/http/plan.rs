//! Decides from a request's head what to do with the request. The data path and `weir explain` both use it,
//! and nothing else decides this.
//!
//! It is pure. It decides whether access lists and rate limits are consulted, but does not consult them,
//! because that counts the request ([`super::screening`], [`super::sqli`]). What happens after the plan
//! belongs to the exchange: the cache lookup, the choice of a backend, a body that turns out too large.

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::values::{cookies, via};
use weir_http::{BodyLength, KnownHeader, Method, RequestHead, Violation, path};
use weir_screen::Groups;
use weir_state::key::{KeySource, choice_key};
use weir_state::maintenance::Whereto;
use weir_template::Template;
use weir_tls::ServerTls;
use weir_tls::acme::Challenges;

use crate::http::request_values::Values;
use crate::http::rewrite::{New, Old};
use crate::http::route::{Action, Decision, RequestView, Route, RouteTable, without_port};

/// The rules in force where a request comes in.
#[derive(Clone, Copy)]
pub struct Rules<'l> {
    /// The listener as configured.
    pub config: &'l weir_config::Listener,
    /// Its routes.
    pub routes: &'l RouteTable,
    /// The challenge responses that certificate authorities are about to ask for.
    pub challenges: &'l Challenges,
}

/// A request's head, and how it was received.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    /// The head, complete and valid.
    pub head: &'a RequestHead,
    /// The bytes that it was parsed from.
    pub text: &'a [u8],
    /// The TLS that it came over; `None` without TLS.
    pub tls: Option<OverTls<'a>>,
    /// The client's address.
    pub client: IpAddr,
}

/// The TLS of a client's connection.
#[derive(Clone, Copy)]
pub struct OverTls<'a> {
    /// The listener's TLS that the handshake was made with.
    pub server: &'a ServerTls,
    /// The name that the client asked for (SNI).
    pub server_name: Option<&'a str>,
}

impl OverTls<'_> {
    /// Whether a request for `host` (without port) is allowed on this connection. It always is, unless the
    /// listener asks for client certificates: a client that was admitted under one name must not reach
    /// another name whose rules it was never checked against (RFC 9110 section 7.4, threat B14).
    fn covers(&self, host: &[u8]) -> bool {
        if !self.server.asks_for_certificate() {
            return true;
        }
        std::str::from_utf8(host).is_ok_and(|host| {
            self.server_name.is_some_and(|own| own.eq_ignore_ascii_case(host))
                || self.server.covers(self.server_name, host)
        })
    }
}

impl<'a> Received<'a> {
    /// The requested host without its port; empty if there is none.
    pub fn host(&self) -> &'a [u8] {
        without_port(self.head.host(self.text).unwrap_or_default())
    }

    /// The values of the `cookie` fields.
    pub fn cookies(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.head.values(KnownHeader::Cookie, self.text)
    }

    /// Passes to `look` the request in the form that routes match. `path` is the normalised path; `values`
    /// gives the other variables of the request, which maps are looked up by.
    pub fn with_view<'r, R>(
        &self,
        path: &[u8],
        values: &dyn Fn() -> Values<'r>,
        look: impl FnOnce(&RequestView<'_>) -> R,
    ) -> R {
        look(&RequestView {
            host: self.host(),
            path,
            query: self.head.query(self.text),
            method: self.head.method_text(self.text),
            header: &|name| self.head.combined(name, self.text),
            cookies: &|look| self.cookies().any(look),
            mapped: &|name, look| Values { path, ..values() }.with_mapped(name, look),
            client: self.client,
        })
    }

    /// Whether the request has passed through Weir as often as it may. O(1) without `via`.
    fn is_looped(&self) -> bool {
        via::own_hops(self.head.values(KnownHeader::Via, self.text)) >= MOST_OWN_HOPS
    }

    /// `max-forwards: 0`: the request must not be forwarded further (RFC 9110 §7.6.2).
    fn ends_here(&self) -> bool {
        self.head.max_forwards() == Some(0)
    }
}

/// What to do with a request.
pub struct Plan<'l> {
    /// The route that matches; `None` if the request goes to the listener's own pool, or nowhere.
    pub route: Option<&'l Route>,
    /// Whether access lists and rate limits are consulted first.
    pub is_screened: bool,
    /// What happens to the request once they let it pass.
    pub outcome: Outcome<'l>,
}

impl<'l> Plan<'l> {
    /// Index of the pool that the request goes to, or that it would go to had its route not refused it.
    pub fn pool(&self) -> Option<usize> {
        match (&self.outcome, self.route.map(|route| &route.action)) {
            (Outcome::Forward { pool }, _) | (Outcome::Refuse(_), Some(Action::Pool(pool))) => Some(*pool),
            _ => None,
        }
    }

    /// The names of where the request goes; `name` gives the name of a pool by its index.
    pub fn whereto(
        &self,
        listener: &'l weir_state::Listener,
        name: impl FnOnce(usize) -> &'l str,
    ) -> Whereto<'l> {
        let pool = match &self.outcome {
            Outcome::Forward { pool } => Some(name(*pool)),
            _ => None,
        };
        Whereto { listener: &listener.config.name, route: self.route.map(|route| &*route.name), pool }
    }
}

/// What happens to a request that access lists and rate limits let pass.
pub enum Outcome<'l> {
    /// It is refused.
    Refuse(Refused),
    /// It goes to a pool.
    Forward {
        /// Index of the pool in the snapshot.
        pool: usize,
    },
    /// It is answered with a redirect; [`super::request_values::location`] builds the target.
    Redirect {
        /// The template of the target, as configured.
        to: &'l Template,
        /// The status, 3xx.
        status: u16,
    },
    /// It is answered with a fixed response from the config.
    Respond {
        /// The status, 200 to 599.
        status: u16,
        /// Sent as it is.
        body: &'l str,
        /// Value of `content-type`.
        content_type: &'l str,
    },
    /// `max-forwards: 0` (RFC 9110 §7.6.2): Weir answers it itself.
    Trace,
    /// A certificate authority checks whether the host is ours (RFC 8555 §8.3).
    Prove {
        /// The key authorization that the authority expects.
        authorization: Arc<str>,
    },
}

impl Outcome<'_> {
    /// Whether `auth` applies. Refusals, and answers to certificate authorities, are for everybody.
    pub fn is_guarded(&self) -> bool {
        match self {
            Outcome::Forward { .. } | Outcome::Redirect { .. } | Outcome::Respond { .. } | Outcome::Trace => {
                true
            }
            Outcome::Refuse(_) | Outcome::Prove { .. } => false,
        }
    }
}

/// Why a request is refused by its head alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no path that can be compared or forwarded.
    BadRequest(Violation),
    /// CONNECT, because Weir is no forward proxy; TRACE, because a backend would echo secrets.
    Method,
    /// It has passed through Weir as often as it may.
    Looped,
    /// The host is not covered by the certificate that the client was shown.
    Misdirected,
    /// No route matches, and there is no default pool.
    NoRoute,
    /// The body is larger than the route allows.
    BodyTooLarge,
}

/// How path and query differ from what was sent, and the named groups that the path matched. Reused from one
/// request to the next.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    compared: Changed,
    forwarded: Changed,
    /// The query that is sent to a backend; empty for none.
    query: Changed,
    /// Groups matched in the compared path.
    groups: Option<Groups>,
}

#[derive(Clone, Debug, Default)]
struct Changed {
    text: Vec<u8>,
    is_changed: bool,
}

impl Changed {
    fn or<'p>(&'p self, sent: &'p [u8]) -> &'p [u8] {
        if self.is_changed { &self.text } else { sent }
    }

    /// The buffer, emptied, to write a new text into.
    fn room(&mut self) -> &mut Vec<u8> {
        self.text.clear();
        &mut self.text
    }
}

impl Paths {
    /// The path that routes and access lists are compared with; `sent` is the path as it came.
    pub fn compared<'p>(&'p self, sent: &'p [u8]) -> &'p [u8] {
        self.compared.or(sent)
    }

    /// The path that is sent to a backend; `None` if it is the one that the client sent.
    pub fn forwarded(&self) -> Option<&[u8]> {
        let Paths { compared, forwarded, .. } = self;
        [forwarded, compared].into_iter().find(|changed| changed.is_changed).map(|changed| &*changed.text)
    }

    /// The query that is sent to a backend, without its `?`; `sent` is the query as it came. `None` for none.
    pub fn query<'p>(&'p self, sent: Option<&'p [u8]>) -> Option<&'p [u8]> {
        match self.query.is_changed {
            true => Some(&*self.query.text).filter(|query| !query.is_empty()),
            false => sent,
        }
    }

    /// Whether the query that is sent to a backend differs from the one that the client sent.
    pub fn has_new_query(&self) -> bool {
        self.query.is_changed
    }

    /// What the groups of the route's expression matched in the compared path; `None` if it has no groups.
    pub fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// Resets it for another request.
    pub fn clear(&mut self) {
        self.compared.is_changed = false;
        self.forwarded.is_changed = false;
        self.query.is_changed = false;
        self.groups = None;
    }
}

impl Values<'_> {
    /// The same values with the path that routes compared.
    pub(crate) fn along<'p>(self, paths: &'p Paths) -> Values<'p>
    where
        Self: 'p,
    {
        let sent = self.head.map(|(head, text)| head.path(text)).unwrap_or_default();
        Values { path: paths.compared(sent), groups: paths.groups(), ..self }
    }
}

/// How often a request may pass through Weir, counted by `via`. No real setup is nested so deeply, and a
/// service that leads back to itself would multiply requests without end if nothing stopped them.
const MOST_OWN_HOPS: usize = 16;

/// The path under which certificate authorities look for challenge responses.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

/// Decides what to do with a request, and leaves in `paths` how path and query differ from what was sent.
/// Once `paths` have grown large enough, it allocates only for routes whose expressions have groups. `values`
/// gives the variables of the request as it came, without its path; few routes need them.
pub fn plan<'l, 'r>(
    rules: &Rules<'l>,
    request: &Received<'_>,
    values: &dyn Fn() -> Values<'r>,
    paths: &mut Paths,
) -> Plan<'l> {
    paths.clear();
    let unscreened = |outcome| Plan { route: None, is_screened: false, outcome };
    let decision = match taken_by(rules, request, values, paths) {
        Ok(decision) => decision,
        Err(outcome) => return unscreened(outcome),
    };
    let (route, outcome) = match decision {
        Decision::Nowhere => return unscreened(Outcome::Refuse(Refused::NoRoute)),
        Decision::Default { pool } => (None, Outcome::Forward { pool }),
        Decision::Route { route, prefix } => {
            paths.groups = route.groups(paths.compared.or(request.head.path(request.text)));
            let rewritten = || rewrite(rules, (route, prefix), request, values, paths);
            let outcome = of_route(route, request, rewritten).unwrap_or_else(Outcome::Refuse);
            (Some(route), split(route, outcome, &|| values().along(paths)))
        }
    };
    let outcome = match outcome {
        _ if request.ends_here() => Outcome::Trace,
        Outcome::Forward { .. } if request.is_looped() => Outcome::Refuse(Refused::Looped),
        outcome => outcome,
    };
    Plan { route, is_screened: true, outcome }
}

/// The token that an authority asks for if the path that was sent is a challenge's (RFC 8555 section 8.3).
pub fn challenge_token(sent: &[u8]) -> Option<&str> {
    std::str::from_utf8(sent.strip_prefix(CHALLENGES)?).ok()
}

/// The route or pool for the request; `Err` with its outcome if it is decided before routing.
fn taken_by<'l, 'r>(
    rules: &Rules<'l>,
    request: &Received<'_>,
    values: &dyn Fn() -> Values<'r>,
    paths: &mut Paths,
) -> Result<Decision<'l>, Outcome<'l>> {
    let (head, sent) = (request.head, request.head.path(request.text));
    if head.method() == Method::Connect {
        return Err(Outcome::Refuse(Refused::Method));
    }
    match request.tls {
        None => {
            if let Some(authorization) =
                challenge_token(sent).and_then(|token| rules.challenges.answer(token))
            {
                return Err(Outcome::Prove { authorization });
            }
        }
        Some(tls) if !tls.covers(request.host()) => return Err(Outcome::Refuse(Refused::Misdirected)),
        Some(_) => {}
    }
    // A backend would echo the request's cookies and credentials into a page (A26).
    if head.method() == Method::Trace && !request.ends_here() {
        return Err(Outcome::Refuse(Refused::Method));
    }
    normalise(rules.config, head, sent, &mut paths.compared)
        .map_err(|violation| Outcome::Refuse(Refused::BadRequest(violation)))?;
    Ok(match rules.routes.is_empty() {
        true => rules.routes.default_pool().map_or(Decision::Nowhere, |pool| Decision::Default { pool }),
        false => request.with_view(paths.compared(sent), values, |view| rules.routes.decide(view)),
    })
}

/// Computes the normal form of the path that was sent.
fn normalise(
    config: &weir_config::Listener,
    head: &RequestHead,
    sent: &[u8],
    out: &mut Changed,
) -> Result<(), Violation> {
    out.is_changed = match config.http().merge_slashes {
        true if !head.path_is_plain() || path::has_empty_segment(sent) => {
            path::normalise_merging_into(sent, &mut out.text)?
        }
        false if !head.path_is_plain() => path::normalise_into(sent, &mut out.text)?,
        _ => false,
    };
    Ok(())
}

/// What the route does with the request; `rewrite` computes the path and query for the backend.
fn of_route<'l>(
    route: &'l Route,
    request: &Received<'_>,
    rewrite: impl FnOnce() -> Result<(), Violation>,
) -> Result<Outcome<'l>, Refused> {
    if let (Some(limit), BodyLength::Length(length)) = (route.body_limit_bytes, request.head.body())
        && length > limit
    {
        return Err(Refused::BodyTooLarge);
    }
    Ok(match &route.action {
        Action::Redirect { to, status } => Outcome::Redirect { to, status: *status },
        Action::Respond { status, body, content_type } => {
            Outcome::Respond { status: *status, body, content_type }
        }
        Action::Pool(pool) => {
            rewrite().map_err(Refused::BadRequest)?;
            Outcome::Forward { pool: *pool }
        }
    })
}

/// Replaces the pool by another one if the route splits its requests or has a map that picks the pool.
fn split<'l, 'r>(route: &Route, outcome: Outcome<'l>, values: &dyn Fn() -> Values<'r>) -> Outcome<'l> {
    let chosen = match (&route.split, &route.pool_map, &outcome) {
        (Some(split), _, Outcome::Forward { .. }) => {
            let values = values();
            split.choose(&values, values.request_id)
        }
        (None, Some(pools), Outcome::Forward { .. }) => {
            values().with_mapped(pools.map(), |value| pools.choose(value))
        }
        _ => None,
    };
    chosen.map_or(outcome, |pool| Outcome::Forward { pool })
}

/// Leaves in `paths` the path and query for the backend if the route changes them. `prefix` is how many bytes
/// of the path the route's own `*` path named.
fn rewrite<'r>(
    rules: &Rules<'_>,
    (route, prefix): (&Route, usize),
    request: &Received<'_>,
    values: &dyn Fn() -> Values<'r>,
    paths: &mut Paths,
) -> Result<(), Violation> {
    let Some(rewrite) = &route.rewrite else { return Ok(()) };
    let (head, text) = (request.head, request.text);
    let Paths { compared, forwarded, query, groups } = paths;
    let path = compared.or(head.path(text));
    let merges_slashes = rules.config.http().merge_slashes;
    let old = Old { path, prefix, query: head.query(text), merges_slashes };
    let values = Values { path, groups: groups.as_ref(), ..values() };
    let written = rewrite.write(&old, &values, &mut New { path: forwarded.room(), query: query.room() })?;
    (forwarded.is_changed, query.is_changed) = (written.path, written.query);
    Ok(())
}

/// The key by which the pool chooses a backend; `None` if the pool needs no key, or the request has no value
/// for it.
pub fn key_of(pool: &weir_config::Pool, values: &Values<'_>) -> Option<u64> {
    let (head, text) = values.head?;
    let source = KeySource {
        client: values.client.ip(),
        path: head.path(text),
        target: head.target(text),
        header: &|name| head.combined(name, text),
        cookie: &|name| cookies::first(head.values(KnownHeader::Cookie, text), name),
        values,
    };
    choice_key(pool, &source)
}
