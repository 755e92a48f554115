//! `[listener.NAME.timeout]` and `[listener.NAME.limits]`: how much time and memory a client may take.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::keys::{DAY, HOUR, KIB, Limit, MIB, Planes, byte_rate, count, duration, millis, seconds, size};
use crate::plane::{self, Plane};
use crate::protocol::{Protocol, spoken};
use crate::report::Findings;
use crate::setting::{Part as _, Section as _, table};

table! {
    /// The timers of a listener. Every wait has one.
    #[derive(Copy, Eq)]
    pub struct Timeouts at "[listener.NAME.timeout]" {
        /// Idle client: HTTP between requests, MySQL between statements, TCP without a byte either way,
        /// UDP flow without a datagram. On the kernel plane nobody is told when a connection is
        /// forgotten, so for TCP it is what IPVS has.
        client_idle: Duration =
            duration(Limit::new(
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
            duration(Limit::new(
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
            duration(Limit::new(
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
            duration(Limit::new(seconds(2), millis(1), seconds(300), "a backend that needs longer is down"))
                .stream()
                .on(Planes::ProxyTuning("clients connect to the backend themselves"))
                .also(&["proxy_connect"]);
        /// For a backend's next byte while an exchange waits for it.
        backend: Duration =
            duration(Limit::new(
                seconds(30),
                millis(10),
                DAY,
                "an exchange without a timer is never given back",
            ))
            .http()
            .also(&["server", "read", "proxy_read", "response", "upstream"]);
        /// Longest time without progress while a client sends a body or reads a response.
        client_body: Duration =
            duration(Limit::new(
                seconds(30),
                millis(10),
                DAY,
                "bounds how long a stalled body can hold a backend",
            ))
            .http()
            .also(&["body", "send"]);
        /// For one statement, until the first byte of its answer.
        statement: Option<Duration> =
            duration(Limit::optional(millis(1), DAY, "leave it out where statements may run for hours"))
                .default("off: none")
                .mysql()
                .also(&["query", "query_timeout", "max_execution_time", "max_query_time"]);
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
        /// answered; beyond it the connection is closed.
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

/// Idle TCP on the kernel plane, as IPVS has it: a shorter one kills quiet SSH, databases and queues, which
/// learn of it only when they speak again. The same for `auto`, whose listeners may change planes.
const KERNEL_TCP_IDLE: Duration = seconds(15 * 60);

/// Idle MySQL client, as servers have it (`wait_timeout`, MySQL 8.4 Reference Manual section 7.1.8): pools of
/// connections in applications count on it.
const MYSQL_IDLE: Duration = seconds(8 * 60 * 60);

/// Says how long a client may be idle where that follows from the protocol or the plane.
pub(crate) fn assume(listener: &mut Fields) {
    let idle = match (spoken(listener), plane::asked(listener)) {
        (Some(Protocol::Tcp), Some(Plane::Kernel | Plane::Auto)) => KERNEL_TCP_IDLE,
        (Some(Protocol::Mysql), _) => MYSQL_IDLE,
        _ => return,
    };
    if let Some(timeout) = listener.below_or_assumed("timeout", Timeouts::TABLE) {
        timeout.assume("client_idle", Value::Duration(idle));
    }
}

/// A listener's `limits`: a request line that never fits.
pub(crate) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    let Some(limits) = listener.table("limits") else { return };
    let HttpLimits { request_line_bytes, header_bytes, .. } = HttpLimits::of(limits);
    let said = |name| limits.value(name).is_some();
    if said("header") && said("request_line") && request_line_bytes > header_bytes {
        let hint = format!("the whole head is bounded by `header` ({})", findings.place(limits.at("header")));
        findings.warning(limits.at("request_line"), "a request line this long never fits", hint);
    }
}
