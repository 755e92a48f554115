//! The timers of an exchange or a TCP session: each as set by its route, else by its pool, else by its
//! listener. Nothing else decides this; the data path and `weir explain` both use it. Pure.

use std::time::Duration;

use weir_config::{ExchangeTimeouts, Timeouts};
use weir_stats::table::End;

/// The timers of one exchange or session. A timer that is off is [`weir_config::NEVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeTimers {
    /// Until one backend accepts a connection.
    pub connect: Duration,
    /// Until a backend's response begins.
    pub backend: Duration,
    /// Time without progress while a client sends a body or reads a response.
    pub client_body: Duration,
    /// Silence while a response is being received.
    pub stream: Duration,
    /// Silence in a tunnel.
    pub tunnel: Duration,
    /// From the request's head to the last byte of its response.
    pub request_total: Duration,
}

/// Where a timer is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaidBy {
    /// The route.
    Route,
    /// The pool.
    Pool,
    /// The listener, or its default.
    Listener,
}

impl SaidBy {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            SaidBy::Route => "route",
            SaidBy::Pool => "pool",
            SaidBy::Listener => "listener",
        }
    }
}

/// A timer in force, for `weir explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerInForce {
    /// Its key in the config.
    pub name: &'static str,
    /// How long it is.
    pub timer: Duration,
    /// Where it is set.
    pub said_by: SaidBy,
}

impl ExchangeTimers {
    /// The timers for an exchange of a listener, with the settings of its pool and of its route. If neither
    /// sets any, this copies six durations.
    #[inline]
    pub fn of(
        listener: &Timeouts,
        pool: Option<&ExchangeTimeouts>,
        route: Option<&ExchangeTimeouts>,
    ) -> ExchangeTimers {
        if pool.is_some() || route.is_some() {
            return in_force(listener, pool, route).into();
        }
        let Timeouts { connect, backend, client_body, stream, tunnel, request_total, .. } = *listener;
        ExchangeTimers { connect, backend, client_body, stream, tunnel, request_total }
    }
}

/// How a TCP session ended that was silent for its `tunnel`: as one that was idle for `client_idle`, unless
/// another `tunnel` is set.
///
/// A listener's own `tunnel` that equals its `client_idle` expires at the same time, and can't be told from
/// the default.
pub fn idle_end(
    listener: &Timeouts,
    pool: Option<&ExchangeTimeouts>,
    route: Option<&ExchangeTimeouts>,
) -> End {
    let is_own = [pool, route].into_iter().flatten().any(|own| own.tunnel.is_some());
    if is_own || listener.tunnel != listener.client_idle { End::TunnelIdle } else { End::ClientIdle }
}

/// Each timer, and where it is set.
pub fn in_force(
    listener: &Timeouts,
    pool: Option<&ExchangeTimeouts>,
    route: Option<&ExchangeTimeouts>,
) -> [TimerInForce; 6] {
    let layer = |name, listener, own: fn(&ExchangeTimeouts) -> Option<Duration>| {
        let (timer, said_by) = match (route.and_then(own), pool.and_then(own)) {
            (Some(timer), _) => (timer, SaidBy::Route),
            (None, Some(timer)) => (timer, SaidBy::Pool),
            (None, None) => (listener, SaidBy::Listener),
        };
        TimerInForce { name, timer, said_by }
    };
    [
        layer("connect", listener.connect, |own| own.connect),
        layer("backend", listener.backend, |own| own.backend),
        layer("client_body", listener.client_body, |own| own.client_body),
        layer("stream", listener.stream, |own| own.stream),
        layer("tunnel", listener.tunnel, |own| own.tunnel),
        layer("request_total", listener.request_total, |own| own.request_total),
    ]
}

impl From<[TimerInForce; 6]> for ExchangeTimers {
    fn from(all: [TimerInForce; 6]) -> ExchangeTimers {
        let [connect, backend, client_body, stream, tunnel, request_total] = all.map(|it| it.timer);
        ExchangeTimers { connect, backend, client_body, stream, tunnel, request_total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_route_stands_over_its_pool_and_that_over_the_listener() {
        let listener = Timeouts { connect: seconds(1), backend: seconds(2), ..Timeouts::default() };
        let pool = ExchangeTimeouts {
            connect: Some(seconds(3)),
            backend: Some(seconds(4)),
            ..ExchangeTimeouts::default()
        };
        let route = ExchangeTimeouts { backend: Some(weir_config::NEVER), ..ExchangeTimeouts::default() };
        let told = in_force(&listener, Some(&pool), Some(&route));
        let of = |name| told.iter().find(|it| it.name == name).map(|it| (it.timer, it.said_by));
        assert_eq!(of("connect"), Some((seconds(3), SaidBy::Pool)));
        assert_eq!(of("backend"), Some((weir_config::NEVER, SaidBy::Route)));
        assert_eq!(of("client_body"), Some((listener.client_body, SaidBy::Listener)));
    }

    /// Earlier, this was guessed by comparing the two durations.
    #[test]
    fn a_pool_whose_tunnel_is_as_long_as_the_listeners_client_idle_is_logged_as_the_tunnel() {
        let listener = Timeouts { client_idle: seconds(9), tunnel: seconds(9), ..Timeouts::default() };
        let own = ExchangeTimeouts { tunnel: Some(seconds(9)), ..ExchangeTimeouts::default() };
        let nothing = ExchangeTimeouts::default();
        assert_eq!(idle_end(&listener, Some(&own), None), End::TunnelIdle);
        assert_eq!(idle_end(&listener, None, Some(&own)), End::TunnelIdle);
        assert_eq!(idle_end(&listener, Some(&nothing), None), End::ClientIdle);
        assert_eq!(idle_end(&Timeouts { tunnel: seconds(8), ..listener }, None, None), End::TunnelIdle);
    }

    #[test]
    fn what_is_told_is_what_is_in_force() {
        let listener = Timeouts {
            connect: seconds(1),
            backend: seconds(2),
            client_body: seconds(3),
            stream: seconds(4),
            tunnel: seconds(5),
            request_total: seconds(6),
            ..Timeouts::default()
        };
        let nothing = ExchangeTimeouts::default();
        let alone = ExchangeTimers::of(&listener, None, None);
        assert_eq!(alone, in_force(&listener, None, None).into());
        assert_eq!(alone, ExchangeTimers::of(&listener, Some(&nothing), Some(&nothing)));
    }
}
