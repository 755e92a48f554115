//! A request that goes to a pool: where it goes, and the facts that are needed after its bytes are gone.

use std::rc::Rc;

use weir_config::{Buffer, Coding, Compress, PoolProtocol, RouteRetry, Sqli};
use weir_http::forward::Negotiated;
use weir_http::{Limits, Method, SetCookie, Version};
use weir_screen::sqli::BodyKind;

use crate::backends::{Chosen, WorkerPool};
use crate::http::closing;
use crate::http::edits;
use crate::http::exchange::Exchange;
use crate::http::handshake::Handshake;
use crate::http::requester::Requester;
use crate::http::route::Route;
use crate::http::sticky::Sticky;
use crate::reach::Wish;
use crate::timers::ExchangeTimers;
use crate::worker::WorkerListener;

/// What stays the same over all attempts of an exchange.
pub struct Forwarding<'l> {
    pub listener: &'l Rc<WorkerListener>,
    pub pool: Rc<WorkerPool>,
    pub route: Option<&'l Route>,
    /// The timers, if the pool or the route sets any.
    own_timers: Option<ExchangeTimers>,
    /// How much is held back for slow clients.
    pub buffer: Option<Buffer>,
    /// The pool that was asked for, and the one of it and its fallbacks that serves, by index; `None` for
    /// requests without fallbacks.
    choice: Option<Choice>,
}

/// The pool that serves, out of those that may.
#[derive(Clone, Copy)]
struct Choice {
    asked: usize,
    serving: usize,
}

impl<'l> Forwarding<'l> {
    /// For `pool`, with the settings of the listener or the route.
    #[inline]
    pub fn new(
        listener: &'l Rc<WorkerListener>,
        pool: Rc<WorkerPool>,
        route: Option<&'l Route>,
    ) -> Forwarding<'l> {
        let of_route = route.and_then(|route| route.timeout.as_ref());
        let of_pool = pool.own_timeouts();
        let says_any = of_pool.is_some() || of_route.is_some();
        let own_timers =
            says_any.then(|| ExchangeTimers::of(&listener.shared.config.timeout, of_pool, of_route));
        let buffer = route.and_then(|route| route.buffer).or(pool.shared.config.buffer);
        Forwarding { listener, pool, route, own_timers, buffer, choice: None }
    }

    /// For the pool that serves now: the one that was asked for, or one of its fallbacks.
    #[inline]
    pub fn serving(
        requester: &Requester,
        listener: &'l Rc<WorkerListener>,
        exchange: &Exchange,
        (route, asked): (Option<&'l Route>, usize),
    ) -> Forwarding<'l> {
        let pools = pools_now(requester, listener);
        let fallbacks = listener.compiled.routes.fallbacks(route, asked);
        let pool = |index: usize| &*pools[index].shared;
        let is_closed = |index: usize| {
            let client = exchange.ledger.client(requester).address.ip();
            let closing = listener.compiled.routes.closing(route);
            closing.keeps_from(&listener.shared.maintenance, &pool(index).config.name, client)
        };
        let serving = closing::serving(asked, fallbacks, |index| &pool(index).balance, is_closed);
        let choice = Some(Choice { asked, serving });
        Forwarding { choice, ..Forwarding::new(listener, pools[serving].clone(), route) }
    }

    /// Where the request goes after a wait in which backends may have gone, or the config may have changed;
    /// `None` if that is unchanged. `now` is the listener as it is configured now: its rules about header
    /// fields apply only if its routes are still the same.
    pub fn anew<'n>(
        &'n self,
        requester: &Requester,
        exchange: &Exchange,
        now: &'n Rc<WorkerListener>,
    ) -> Option<Forwarding<'n>> {
        let Choice { asked, .. } = self.choice?;
        let (listener, route) = match is_numbered_alike(self.listener, now) {
            true => (now, self.route.and_then(|route| now.compiled.routes.route(route.number))),
            false => (self.listener, self.route),
        };
        let anew = Forwarding::serving(requester, listener, exchange, (route, asked));
        (!Rc::ptr_eq(&anew.pool, &self.pool)).then_some(anew)
    }

    /// Sets up the exchange for this pool. The bytes of its request are still here.
    #[inline]
    pub fn begin(&self, requester: &Requester, exchange: &mut Exchange) {
        if let Some(Choice { asked, serving }) = self.choice {
            if asked != serving && exchange.pool != Some(serving) {
                self.listener.pools[asked].cells().fallbacks.increment();
            }
            exchange.pool = Some(serving);
        }
        if let Some(rendered) = exchange.rendered.used() {
            rendered.has_response = false;
        }
        exchange.ledger.pool = Some(self.pool.clone());
        edits::prepare(requester, self.listener, exchange);
        requester.begin_total(exchange.ledger.head, self.timers().request_total);
    }

    /// Whether the pool is a fallback of the one that was asked for: its responses are not stored.
    #[inline]
    pub fn is_fallback(&self) -> bool {
        self.choice.is_some_and(|choice| choice.asked != choice.serving)
    }

    /// The timers in force.
    #[inline]
    pub fn timers(&self) -> &ExchangeTimers {
        self.own_timers.as_ref().unwrap_or(&self.listener.compiled.timers)
    }

    /// The limits for HTTP/1.1 parsers.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.listener.compiled.limits
    }

    /// The retry settings of the route.
    pub fn route_retry(&self) -> Option<&RouteRetry> {
        self.route.and_then(|route| route.retry.as_deref())
    }

    /// How responses are compressed.
    pub fn compress(&self) -> Option<&Compress> {
        match self.route {
            Some(route) => route.compress.as_deref(),
            None => self.listener.shared.config.http().compress.as_ref(),
        }
    }

    /// Whether a backend's response with this status is replaced by a page.
    #[inline]
    pub fn replaces(&self, status: u16) -> bool {
        let pages = self.listener.compiled.routes.pages(self.route);
        pages.is_some_and(|pages| pages.intercepts(status))
    }

    /// How the request is checked for SQL injection.
    pub fn sqli(&self) -> Sqli {
        self.route.map_or(self.listener.shared.config.http().sqli, |route| route.sqli)
    }
}

/// The current pools, with the indexes of `listener`, which may have been looked up long ago.
#[inline]
fn pools_now(requester: &Requester, listener: &Rc<WorkerListener>) -> Rc<[Rc<WorkerPool>]> {
    // If the listener was removed, its slot keeps the last one.
    if requester.slot.is_current(listener) && requester.slot.draining_until().is_none() {
        return listener.pools.clone();
    }
    let now = |known: &Rc<WorkerPool>| {
        // A pool that was removed still serves requests that were on their way to it.
        requester.worker.pool(&known.shared.config.name).unwrap_or_else(|| known.clone())
    };
    listener.pools.iter().map(now).collect()
}

/// Whether routes and pools have the same indexes in both.
fn is_numbered_alike(one: &WorkerListener, other: &WorkerListener) -> bool {
    let same_name =
        |(one, other): (&Rc<WorkerPool>, &Rc<WorkerPool>)| one.shared.config.name == other.shared.config.name;
    Rc::ptr_eq(&one.pools, &other.pools)
        || one.shared.config == other.shared.config
            && one.pools.len() == other.pools.len()
            && one.pools.iter().zip(other.pools.iter()).all(same_name)
}

/// Facts about the request that are needed after its bytes are gone.
pub struct Facts {
    pub method: Method,
    pub version: Version,
    pub keep_alive: bool,
    /// Whether an upgrade was forwarded.
    pub upgrade: bool,
    /// Whether the client takes any 2xx as the beginning of a tunnel (RFC 8441 §4).
    pub extended_connect: bool,
    /// The protocol for backends; `Auto` if each chooses, and the request is written for both.
    pub protocol: PoolProtocol,
    pub handshake: Handshake,
    pub expect_continue: bool,
    /// How the body is inspected before it is forwarded; `None` if it is not.
    pub inspected: Option<BodyKind>,
    /// The content coding that the client prefers, if any is offered.
    pub coding: Option<Coding>,
    pub wish: Wish,
    pub sticky: Sticky,
}

impl Facts {
    /// Notes the backend that sent the response: the stickiness cookie may have to name it, and must be
    /// `secure` if the client uses TLS (`is_secure`).
    pub fn answered_by(&mut self, chosen: &Chosen, is_secure: bool) {
        self.sticky.answered_by(chosen, is_secure);
    }

    /// What is added to the response's own fields.
    pub fn beside(&self, negotiated: Option<Negotiated>) -> Beside<'_> {
        Beside { sticky: self.sticky.cookie(), websocket_accept: self.handshake.accept(), negotiated }
    }

    /// The stickiness cookie to send, if any.
    pub fn sticky_cookie(&self) -> Option<&SetCookie> {
        self.sticky.cookie()
    }
}

/// What is added to a response's own fields, apart from fields that every response gets.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// The stickiness cookie.
    pub sticky: Option<&'a SetCookie>,
    /// The answer to a WebSocket key.
    pub websocket_accept: &'a [u8],
    /// The result of negotiating `accept-encoding`.
    pub negotiated: Option<Negotiated>,
}
