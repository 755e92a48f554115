//! A request that goes to a pool: where it goes, and what is still known of it when its bytes are gone.

use std::rc::Rc;

use weir_config::{Buffer, Coding, Compress, PoolProtocol, RouteRetry, Sqli};
use weir_http::forward::Negotiated;
use weir_http::{Limits, Method, ResponseContext, SetCookie, Version};
use weir_screen::sqli::BodyKind;

use crate::backends::{Chosen, WorkerPool};
use crate::http::handshake::Handshake;
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
    /// The timers, where pool or route say any.
    own_timers: Option<ExchangeTimers>,
    /// What is held back for slow clients.
    pub buffer: Option<Buffer>,
    /// Whether the pool serves in the place of the one that was asked for: what it says is kept for nobody.
    pub is_fallback: bool,
}

impl<'l> Forwarding<'l> {
    /// Goes to `pool` as the listener, or the route, has it.
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
        Forwarding { listener, pool, route, own_timers, buffer, is_fallback: false }
    }

    /// Its timers.
    #[inline]
    pub fn timers(&self) -> &ExchangeTimers {
        self.own_timers.as_ref().unwrap_or(&self.listener.compiled.timers)
    }

    /// What parsers of HTTP/1.1 bound.
    #[inline]
    pub fn limits(&self) -> &Limits {
        &self.listener.compiled.limits
    }

    /// What the route says of retries.
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

    /// Whether a backend's answer with this status gives way to a page.
    #[inline]
    pub fn replaces(&self, status: u16) -> bool {
        let pages = self.listener.compiled.routes.pages(self.route);
        pages.is_some_and(|pages| pages.intercepts(status))
    }

    /// How the request is looked at for SQL injection.
    pub fn sqli(&self) -> Sqli {
        self.route.map_or(self.listener.shared.config.http().sqli, |route| route.sqli)
    }
}

/// The request's facts that outlive its bytes.
pub struct Facts {
    pub method: Method,
    pub version: Version,
    pub keep_alive: bool,
    /// Whether an upgrade was passed on.
    pub upgrade: bool,
    /// Whether the client takes any 2xx for the beginning of a tunnel (RFC 8441 §4).
    pub extended_connect: bool,
    /// What backends are asked in; `Auto` where each picks, and the request is written for both.
    pub protocol: PoolProtocol,
    pub handshake: Handshake,
    pub expect_continue: bool,
    /// How the body is read before it is forwarded; `None`: it is not.
    pub inspected: Option<BodyKind>,
    /// The content coding that the client wants, where any is offered.
    pub coding: Option<Coding>,
    pub wish: Wish,
    pub sticky: Sticky,
}

impl Facts {
    /// The client's side of what `write_response` needs to know.
    pub fn response_context(&self, keep_alive: bool) -> ResponseContext<'static> {
        ResponseContext::new(self.version, self.method, keep_alive)
    }

    /// Notes who sent the response: the client's cookie may have to say so, and over TLS (`is_secure`) to
    /// stay there.
    pub fn answered_by(&mut self, chosen: &Chosen, is_secure: bool) {
        self.sticky.answered_by(chosen, is_secure);
    }

    /// What the response says beside its own fields.
    pub fn beside(&self, negotiated: Option<Negotiated>) -> Beside<'_> {
        Beside { sticky: self.sticky.cookie(), websocket_accept: self.handshake.accept(), negotiated }
    }

    /// The stickiness cookie to send, if any.
    pub fn sticky_cookie(&self) -> Option<&SetCookie> {
        self.sticky.cookie()
    }
}

/// What a response says beside its own fields and those that every one is told.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// The stickiness cookie.
    pub sticky: Option<&'a SetCookie>,
    /// The answer to a WebSocket key.
    pub websocket_accept: &'a [u8],
    /// What the client's `accept-encoding` made of it.
    pub negotiated: Option<Negotiated>,
}
