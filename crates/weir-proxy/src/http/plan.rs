//! What becomes of a request, as far as its head says: the one place that decides it, for the data path and for `weir explain`.
//!
//! Pure. Whether lists and limits are asked is decided here; what they answer is not, for to ask is to count ([`super::screening`]). What comes
//! only behind a plan, the choice of a backend or a body that proves too large, belongs to the exchange.

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::{BodyLength, KnownHeader, Method, RequestHead, Violation, path};
use weir_tls::ServerTls;

use crate::http::failure::Failure;
use crate::http::route::{Action, Decision, RequestView, Route, without_port};
use crate::snapshot::Listener;

/// A request's head, and how it came.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    /// Complete and valid.
    pub head: &'a RequestHead,
    /// What it was read from.
    pub text: &'a [u8],
    /// Who asks.
    pub client: IpAddr,
    /// Over which TLS it came; `None` without.
    pub tls: Option<OverTls<'a>>,
}

/// The TLS of a client's connection.
#[derive(Clone, Copy)]
pub struct OverTls<'a> {
    /// What its handshake was made with.
    pub server: &'a ServerTls,
    /// The name that the client asked for (SNI).
    pub server_name: Option<&'a str>,
}

impl OverTls<'_> {
    /// Whether `host` (without port) may be asked for on this connection. Only where clients have certificates it may not be everything: one
    /// that was let in by one name must not reach another whose rules it was never held against (RFC 9110 section 7.4, threat B14).
    fn covers(&self, host: &[u8]) -> bool {
        if !self.server.asks_for_certificate() {
            return true;
        }
        std::str::from_utf8(host).is_ok_and(|host| {
            let is_asked_for = self.server_name.is_some_and(|own| own.eq_ignore_ascii_case(host));
            is_asked_for || self.server.covers(self.server_name, host)
        })
    }
}

impl<'a> Received<'a> {
    /// The host that is asked for, without its port; empty where none is.
    pub fn host(&self) -> &'a [u8] {
        without_port(self.head.host(self.text).unwrap_or_default())
    }

    /// The values of `cookie`.
    pub fn cookies(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.head.values(KnownHeader::Cookie, self.text)
    }
}

/// What becomes of a request.
pub struct Plan<'l> {
    /// The route that takes it; `None` where the listener's own pool does, or nothing.
    pub route: Option<&'l Route>,
    /// Whether lists and limits are asked before anything else happens, with the path that routes were compared with.
    pub is_screened: bool,
    /// What happens then.
    pub outcome: Outcome<'l>,
}

/// What happens to a request that lists and limits let pass.
pub enum Outcome<'l> {
    /// It is refused.
    Refuse(Failure),
    /// It goes to the pool of that index in the snapshot.
    Forward {
        /// Index of the pool.
        pool: usize,
    },
    /// It is answered with a redirect; [`location`] fills in where to.
    Redirect {
        /// As configured.
        to: &'l str,
        /// 3xx.
        status: u16,
    },
    /// It is answered from the config.
    Respond {
        /// 200 to 599.
        status: u16,
        /// Sent as it is.
        body: &'l str,
        /// Value of `content-type`.
        content_type: &'l str,
    },
    /// `max-forwards: 0`: the answer is Weir's (RFC 9110 §7.6.2).
    Trace,
    /// A certificate authority looks whether the host is ours (RFC 8555 §8.3).
    Prove {
        /// What it expects to see.
        authorization: Arc<str>,
    },
}

/// Paths of a request that differ from the one that was sent, reused from one request to the next.
#[derive(Debug, Default)]
pub struct Paths {
    /// What routes and lists are compared with.
    compared: Changed,
    /// What a backend is asked for.
    forwarded: Changed,
}

#[derive(Debug, Default)]
struct Changed {
    path: Vec<u8>,
    is_changed: bool,
}

impl Changed {
    fn or<'p>(&'p self, sent: &'p [u8]) -> &'p [u8] {
        if self.is_changed { &self.path } else { sent }
    }
}

impl Paths {
    /// The path that routes and lists are compared with, where `sent` came.
    pub fn compared<'p>(&'p self, sent: &'p [u8]) -> &'p [u8] {
        self.compared.or(sent)
    }

    /// The path that a backend is asked for; `None` where it is the one that was sent.
    pub fn forwarded(&self) -> Option<&[u8]> {
        self.forwarded.is_changed.then_some(&self.forwarded.path)
    }

    /// Makes ready for another request.
    pub fn clear(&mut self) {
        self.compared.is_changed = false;
        self.forwarded.is_changed = false;
    }

    /// The same for a request that is made again.
    pub fn clone_from(&mut self, other: &Paths) {
        for (own, other) in
            [(&mut self.compared, &other.compared), (&mut self.forwarded, &other.forwarded)]
        {
            own.path.clone_from(&other.path);
            own.is_changed = other.is_changed;
        }
    }
}

/// Where certificate authorities look.
const CHALLENGES: &[u8] = b"/.well-known/acme-challenge/";

/// Decides; leaves in `paths` what differs from the path that was sent. Does not allocate once those are large enough, but for what a certificate
/// authority is shown.
pub fn plan<'l>(listener: &'l Listener, request: &Received<'_>, paths: &mut Paths) -> Plan<'l> {
    paths.clear();
    let unscreened = |outcome| Plan { route: None, is_screened: false, outcome };
    if let Some(outcome) = before_routes(listener, request) {
        return unscreened(outcome);
    }
    let sent = request.head.path(request.text);
    if let Err(violation) = normalise(listener, request.head, sent, &mut paths.compared) {
        return unscreened(Outcome::Refuse(Failure::BadRequest(violation)));
    }
    let (route, outcome) = match take(listener, request, paths.compared(sent)) {
        Decision::Nowhere => return unscreened(Outcome::Refuse(Failure::NoRoute)),
        Decision::Default { pool } => (None, Outcome::Forward { pool }),
        Decision::Route { route, prefix } => (Some(route), of_route(route, prefix, request, paths)),
    };
    let outcome = if is_last_hop(request) { Outcome::Trace } else { outcome };
    if matches!(outcome, Outcome::Forward { .. }) && !paths.forwarded.is_changed && paths.compared.is_changed {
        let Paths { compared, forwarded } = paths;
        forwarded.path.clone_from(&compared.path);
        forwarded.is_changed = true;
    }
    Plan { route, is_screened: true, outcome }
}

/// What is the same whatever the routes say.
fn before_routes<'l>(listener: &'l Listener, request: &Received<'_>) -> Option<Outcome<'l>> {
    let method = request.head.method();
    if method == Method::Connect {
        return Some(Outcome::Refuse(Failure::MethodRefused));
    }
    match request.tls {
        None => {
            let token = request.head.path(request.text).strip_prefix(CHALLENGES);
            let token = token.and_then(|token| std::str::from_utf8(token).ok());
            if let Some(authorization) = token.and_then(|token| listener.challenges.answer(token)) {
                return Some(Outcome::Prove { authorization });
            }
        }
        Some(tls) if !tls.covers(request.host()) => return Some(Outcome::Refuse(Failure::Misdirected)),
        Some(_) => {}
    }
    // A backend would echo the request's cookies and credentials into a page (A26).
    (method == Method::Trace && !is_last_hop(request)).then_some(Outcome::Refuse(Failure::MethodRefused))
}

fn is_last_hop(request: &Received<'_>) -> bool {
    request.head.max_forwards() == Some(0)
}

/// Which route takes the request whose path, as routes see it, is `path`.
fn take<'l>(listener: &'l Listener, request: &Received<'_>, path: &[u8]) -> Decision<'l> {
    if listener.routes.is_empty() {
        return listener.routes.default_pool().map_or(Decision::Nowhere, |pool| Decision::Default { pool });
    }
    with_view(request, path, |view| listener.routes.decide(view))
}

/// Shows `look` the request as routes look at it.
pub fn with_view<R>(request: &Received<'_>, path: &[u8], look: impl FnOnce(&RequestView<'_>) -> R) -> R {
    look(&RequestView {
        host: request.host(),
        path,
        method: request.head.method_text(request.text),
        header: &|name| request.head.combined(name, request.text),
    })
}

/// What the route does with the request.
fn of_route<'l>(
    route: &'l Route,
    prefix: usize,
    request: &Received<'_>,
    paths: &mut Paths,
) -> Outcome<'l> {
    if let (Some(limit), BodyLength::Length(length)) = (route.body_limit_bytes, request.head.body())
        && length > limit
    {
        return Outcome::Refuse(Failure::BodyTooLarge);
    }
    match &route.action {
        Action::Redirect { to, status } => Outcome::Redirect { to, status: *status },
        Action::Respond { status, body, content_type } => {
            Outcome::Respond { status: *status, body, content_type }
        }
        Action::Pool(pool) => {
            if let Some(replacement) = &route.rewrite_prefix {
                let Paths { compared, forwarded } = paths;
                let rest = compared.or(request.head.path(request.text)).get(prefix..).unwrap_or_default();
                forwarded.path.clear();
                forwarded.path.extend_from_slice(replacement);
                forwarded.path.extend_from_slice(rest);
                forwarded.is_changed = true;
                // The rest of `/static../secret` behind `/static` is no dot segment before it stands behind a slash.
                if path::has_dot_segment(&forwarded.path) {
                    return Outcome::Refuse(Failure::BadRequest(Violation::PathAboveRoot));
                }
            }
            Outcome::Forward { pool: *pool }
        }
    }
}

/// Finds the normal form of the path that was sent.
fn normalise(
    listener: &Listener,
    head: &RequestHead,
    sent: &[u8],
    out: &mut Changed,
) -> Result<(), Violation> {
    out.is_changed = match listener.config.merge_slashes {
        true if !head.path_is_plain() || path::has_empty_segment(sent) => {
            path::normalise_merging_into(sent, &mut out.path)?
        }
        false if !head.path_is_plain() => path::normalise_into(sent, &mut out.path)?,
        _ => false,
    };
    Ok(())
}

/// Where a redirect leads: `$host` (without its port, which is another one behind `https://`), `$path` and `$query` (with its `?`) in `to`
/// stand for the request's own, which the parser has checked.
pub fn location(to: &str, request: &Received<'_>) -> Vec<u8> {
    let Received { head, text, .. } = request;
    let mut out = Vec::with_capacity(to.len() + 64);
    let mut rest = to;
    while let Some(at) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let name = &rest[at..];
        let (value, used): (&[u8], usize) = if name.starts_with("$host") {
            (request.host(), 5)
        } else if name.starts_with("$path") {
            (head.path(text), 5)
        } else if name.starts_with("$query") {
            if let Some(query) = head.query(text) {
                out.push(b'?');
                out.extend_from_slice(query);
            }
            (b"", 6)
        } else {
            (b"$", 1)
        };
        out.extend_from_slice(value);
        rest = &name[used..];
    }
    out.extend_from_slice(rest.as_bytes());
    out
}
