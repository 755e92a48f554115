//! `timeout` of listeners, pools and routes, and `[listener.NAME.limits]`: how much time and memory a client
//! may use.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{
    DAY, HOUR, KIB, Limit, MIB, Planes, byte_rate, count, millis, seconds, size, timer, timer_off,
};
use crate::plane::{self, Plane};
use crate::protocol::{Protocol, spoken};
use crate::report::Findings;
use crate::setting::{Part as _, Section as _, table};

/// The value of a timeout that is `"off"`: longer than anything lasts (100 years), and short enough to be
/// added to any time.
pub const NEVER: Duration = seconds(100 * 365 * 86_400);

table! {
    /// The timers of a listener. Every wait has one; each may be `"off"`. Those of an exchange may stand on
    /// pools and routes, too: what the route says, else the pool, else the listener.
    #[derive(Copy, Eq)]
    pub struct Timeouts at "[listener.NAME.timeout]" {
        /// Idle client: HTTP between requests, MySQL between statements, TCP without a byte either way,
        /// UDP flow without a datagram. On the kernel plane nobody is told when a connection is
        /// forgotten, so for TCP it is what IPVS has.
        client_idle: Duration =
            timer(Limit::new(
                seconds(60),
                millis(10),
                DAY,
                "a connection without a timer is never given back",
            ))
            .default("`\"60s\"`; for mysql `\"8h\"`; for tcp with `plane` `\"kernel\"` or `\"auto\"` `\"15m\"`")
            .also(&["client", "idle", "keep_alive", "keepalive", "http_keep_alive"]);
        /// From the first byte of a request to the end of its head; not renewed by bytes. Also for a PROXY
        /// header.
        header: Duration =
            timer(Limit::new(
                seconds(10),
                millis(10),
                HOUR,
                "bounds how long a slow head can hold a connection",
            ))
            .stream()
            .on(Planes::ProxyTuning("nobody reads a header there"))
            .also(&["http_request", "client_header", "request"]);
        /// From the first moment of a connection to the end of its TLS handshake, or, where `sni` chooses, of
        /// its greeting; for mysql, of its login.
        handshake: Duration =
            timer(Limit::new(
                seconds(10),
                millis(10),
                HOUR,
                "bounds how long a slow handshake can hold a connection",
            ))
            .stream()
            .on(Planes::ProxyTuning("nobody takes part in a handshake there"))
            .also(&["tls", "ssl", "ssl_handshake"]);
        /// For one backend to accept a connection.
        connect: Duration =
            timer(Limit::new(seconds(2), millis(1), seconds(300), "a backend that needs longer is down"))
                .stream()
                .on(Planes::ProxyTuning("clients connect to the backend themselves"))
                .also(&["proxy_connect"]);
        /// For a backend's answer to begin, once it has the request; renewed by interim responses.
        backend: Duration =
            timer(Limit::new(
                seconds(30),
                millis(10),
                DAY,
                "an exchange without a timer is never given back",
            ))
            .http()
            .also(&["server", "read", "proxy_read", "response", "upstream"]);
        /// Longest time without progress while a client sends a body or reads a response.
        client_body: Duration =
            timer(Limit::new(
                seconds(30),
                millis(10),
                DAY,
                "bounds how long a stalled body can hold a backend",
            ))
            .http()
            .also(&["body", "send"]);
        /// Longest silence while a response is under way: within a download, between two events (SSE), on a
        /// gRPC stream when neither side speaks.
        stream: Duration =
            timer(Limit::new(STREAM, millis(10), DAY, STREAM_REASON))
                .default("`\"5m\"`, or `backend` where that is longer")
                .http()
                .also(&["sse", "events", "stream_idle"]);
        /// Longest silence of both sides of a WebSocket or another upgrade, and of a tcp session.
        tunnel: Duration =
            timer(Limit::new(TUNNEL, millis(10), MONTH, TUNNEL_REASON))
                .default("`\"1h\"`, or `client_idle` where that is longer; for tcp as `client_idle`")
                .routed()
                .on(Planes::ProxyTuning("`client_idle` is the timer of connections there"))
                .also(&["websocket", "upgrade"]);
        /// From a request's head to the last byte of its response, all waits, tries and retries counted in.
        /// Not for what was upgraded.
        request_total: Duration =
            timer_off(Limit::optional(millis(10), DAY, TOTAL_REASON))
                .default("\"off\"")
                .http()
                .also(&["total", "deadline", "exchange"]);
        /// For one statement, until the first byte of its answer.
        statement: Option<Duration> =
            timer(Limit::optional(millis(1), DAY, "leave it out where statements may run for hours"))
                .default("\"off\"")
                .mysql()
                .also(&["query", "query_timeout", "max_execution_time", "max_query_time"]);
    }
}

table! {
    /// Timers of the requests and sessions that a route takes, or that go to a pool. What none says is as the
    /// listener has it.
    #[derive(Copy, Eq)]
    pub struct ExchangeTimeouts at "timeout = { … }" {
        /// For one backend to accept a connection.
        connect: Option<Duration> =
            timer(Limit::optional(millis(1), seconds(300), "a backend that needs longer is down"))
                .default("as the listener")
                .also(&["proxy_connect"]);
        /// For a backend's answer to begin, once it has the request; renewed by interim responses.
        backend: Option<Duration> =
            timer(Limit::optional(millis(10), DAY, "an exchange without a timer is never given back"))
                .default("as the listener")
                .http()
                .also(&["server", "read", "proxy_read", "response", "upstream"]);
        /// Longest time without progress while a client sends a body or reads a response.
        client_body: Option<Duration> =
            timer(Limit::optional(millis(10), DAY, "bounds how long a stalled body can hold a backend"))
                .default("as the listener")
                .http()
                .also(&["body", "send"]);
        /// Longest silence while a response is under way.
        stream: Option<Duration> =
            timer(Limit::optional(millis(10), DAY, STREAM_REASON))
                .default("as the listener")
                .http()
                .also(&["sse", "events", "stream_idle"]);
        /// Longest silence of both sides of a WebSocket or another upgrade, and of a tcp session.
        tunnel: Option<Duration> =
            timer(Limit::optional(millis(10), MONTH, TUNNEL_REASON))
                .default("as the listener")
                .also(&["websocket", "upgrade"]);
        /// From a request's head to the last byte of its response, all waits, tries and retries counted in.
        request_total: Option<Duration> =
            timer(Limit::optional(millis(10), DAY, TOTAL_REASON))
                .default("as the listener")
                .http()
                .also(&["total", "deadline", "exchange"]);
    }
}

table! {
    /// HTTP sizes, all inclusive.
    #[derive(Copy, Eq)]
    pub struct HttpLimits at "[listener.NAME.limits]" {
        /// Request line; beyond it 414.
        request_line_bytes as "request_line": usize =
            size(Limit::new(8 * KIB, 256, MIB, "RFC 9112 section 3 asks for at least 8000 bytes"))
                .http()
                .also(&["uri", "url"]);
        /// Whole head; beyond it 431.
        header_bytes as "header": usize =
            size(Limit::new(64 * KIB, KIB, 16 * MIB, "every connection may make Weir hold this much"))
                .http()
                .also(&["headers", "head", "header_size"]);
        /// Header fields in a head; beyond it 431.
        header_count: usize =
            count(Limit::new(100, 8, 10_000, "looking a field up costs time in proportion to their number"))
                .http()
                .also(&["max_headers"]);
        /// Slowest client body, averaged since it began, after 5 s of grace and until the answer begins.
        min_body_rate: u64 =
            byte_rate(Limit::new(
                100,
                0,
                100 * MIB,
                "0B/s switches it off; a high rate locks out mobile clients",
            ))
            .http();
        /// Requests under way at once on one HTTP/2 or HTTP/3 connection; what is beyond waits or is refused.
        streams: u32 =
            count(Limit::new(
                128,
                1,
                10_000,
                "each may occupy a backend; RFC 9113 section 6.5.2 asks for at least 100",
            ))
            .http()
            .also(&["max_concurrent_streams", "concurrent_streams"]);
        /// Frames without content that a client may send in HTTP/2 or HTTP/3 ahead of the requests it gets
        /// answered; beyond it the connection is closed. A trusted proxy may send `streams` times as many.
        control_frames: u32 =
            count(Limit::new(
                1_000,
                50,
                1_000_000,
                "each costs work and brings nothing; a browser sends some per page",
            ))
            .http();
    }
}

impl ExchangeTimeouts {
    /// This table, if it sets anything.
    pub fn if_any(&self) -> Option<&ExchangeTimeouts> {
        let ExchangeTimeouts { connect, backend, client_body, stream, tunnel, request_total } = self;
        let all = [connect, backend, client_body, stream, tunnel, request_total];
        all.into_iter().any(Option::is_some).then_some(self)
    }
}

/// Idle timeout of TCP on the kernel plane, as in IPVS: a shorter one breaks quiet SSH, database and queue
/// connections, which notice it only when they send again. The same for `auto`, whose listeners may change
/// planes.
const KERNEL_TCP_IDLE: Duration = seconds(15 * 60);

/// Idle timeout of MySQL clients, as in servers (`wait_timeout`, MySQL 8.4 Reference Manual section 7.1.8):
/// connection pools in applications rely on it.
const MYSQL_IDLE: Duration = seconds(8 * 60 * 60);

/// Longest silence within a response, for servers of events: the HTML standard (section 9.2.7) tells their
/// authors to send a comment every 15 s or so, but few do.
const STREAM: Duration = seconds(300);
const STREAM_REASON: &str = "events come when there are any; a stalled response holds its backend";

/// Longest silence of a WebSocket: its ends choose what they send to keep it open (RFC 6455 section 5.5.2).
const TUNNEL: Duration = HOUR;
const TUNNEL_REASON: &str = "a tunnel whose ends are gone is never given back";
const MONTH: Duration = seconds(30 * 86_400);

const TOTAL_REASON: &str = "what is longer is better bounded by its silence";

/// Fills in the timeouts of a listener that follow from its protocol, its plane, or another timeout.
pub(crate) fn assume(listener: &mut Fields) {
    let protocol = spoken(listener);
    let idle = match (protocol, plane::asked(listener)) {
        (Some(Protocol::Tcp), Some(Plane::Kernel | Plane::Auto)) => Some(KERNEL_TCP_IDLE),
        (Some(Protocol::Mysql), _) => Some(MYSQL_IDLE),
        _ => None,
    };
    let Some(timeout) = listener.below_or_assumed("timeout", Timeouts::TABLE) else { return };
    if let Some(idle) = idle {
        timeout.assume("client_idle", Value::Duration(idle));
    }
    let Timeouts { client_idle, backend, .. } = Timeouts::of(timeout);
    match protocol {
        Some(Protocol::Http) => {
            timeout.assume("stream", written(STREAM.max(backend)));
            timeout.assume("tunnel", written(TUNNEL.max(client_idle)));
        }
        Some(Protocol::Tcp | Protocol::Mysql) => timeout.assume("tunnel", written(client_idle)),
        _ => {}
    }
}

/// Reports, in a listener's `timeout` and `limits`, what never ends, what never acts, and a request line that
/// never fits.
pub(crate) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    if let Some(timeout) = listener.table("timeout") {
        never_ends(listener, timeout, findings);
        never_acts(timeout, findings);
    }
    let Some(limits) = listener.table("limits") else { return };
    let HttpLimits { request_line_bytes, header_bytes, .. } = HttpLimits::of(limits);
    let said = |name| limits.value(name).is_some();
    if said("header") && said("request_line") && request_line_bytes > header_bytes {
        let hint = format!("the whole head is bounded by `header` ({})", findings.place(limits.at("header")));
        findings.warning(limits.at("request_line"), "a request line this long never fits", hint);
    }
}

/// Reports timeouts that are off although nothing else would release what they guard.
fn never_ends(listener: &Fields, timeout: &Fields, findings: &mut Findings<'_>) {
    let is_off = |name| matches!(timeout.value(name), Some(Value::Off));
    let is_udp = spoken(listener) == Some(Protocol::Udp);
    let in_kernel = matches!(plane::asked(listener), Some(Plane::Kernel | Plane::Auto));
    if is_off("client_idle") && (is_udp || in_kernel) {
        let why = if is_udp { "a flow has no other end" } else { "the kernel plane forgets by it alone" };
        let hint = format!("{why}: expected a duration of up to \"1d\"");
        findings.error(timeout.at("client_idle"), "`client_idle` cannot be off here", hint);
    }
    let guards = [("header", "a head that never ends"), ("handshake", "a handshake that never ends")];
    for (name, what) in guards.into_iter().filter(|(name, _)| is_off(name)) {
        let hint = format!("{what} holds its connection for ever; \"1h\" is the longest that can be said");
        findings.warning(timeout.at(name), format!("`{name}` is off"), hint);
    }
}

/// Reports timeouts that never act, because `request_total` of the same table always comes first.
pub(crate) fn never_acts(timeout: &Fields, findings: &mut Findings<'_>) {
    let said = |name| timeout.get(name).and_then(|entry| read(&entry.value));
    let Some(total) = said("request_total").filter(|total| *total != NEVER) else { return };
    for name in ["connect", "backend", "client_body", "stream"] {
        let Some(_) = said(name).filter(|timer| *timer != NEVER && *timer > total) else { continue };
        let hint = format!(
            "`request_total` ends the request first ({})",
            findings.place(timeout.at("request_total"))
        );
        findings.warning(timeout.at(name), format!("`{name}` never ends a wait"), hint);
    }
}

/// Reads a timeout from a table.
pub(crate) fn read(value: &Value) -> Option<Duration> {
    match value {
        Value::Duration(value) => Some(*value),
        Value::Off => Some(NEVER),
        _ => None,
    }
}

/// Writes a timeout for a table; [`NEVER`] becomes `"off"`.
pub(crate) fn written(timer: Duration) -> Value {
    if timer == NEVER { Value::Off } else { Value::Duration(timer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timer_of_a_listener_may_be_off() {
        let of = |protocol: &str, timers: &[&str]| {
            let off: Vec<String> = timers.iter().map(|timer| format!("{timer} = \"off\"")).collect();
            let text = format!(
                "[listener.l]\nprotocol = \"{protocol}\"\nbind = \"127.0.0.1:1\"\npool = \"p\"\ntimeout = {{ {} }}\n\
                 [pool.p]\nbackends = [\"127.0.0.1:2\"]\n{}",
                off.join(", "),
                if protocol == "mysql" { "mysql = { topology = \"static\" }\n" } else { "" }
            );
            let config = crate::parse("off.toml", &text).unwrap_or_else(|report| panic!("{report}"));
            config.listeners[0].timeout
        };
        let http = ["client_idle", "header", "handshake", "connect", "backend", "client_body", "stream"];
        let timeouts = of("http", &[&http[..], &["tunnel", "request_total"]].concat());
        assert_eq!((timeouts.client_idle, timeouts.backend, timeouts.tunnel), (NEVER, NEVER, NEVER));
        let timeouts = of("mysql", &["client_idle", "handshake", "connect", "statement"]);
        assert_eq!(timeouts.statement, Some(NEVER));
    }
}
