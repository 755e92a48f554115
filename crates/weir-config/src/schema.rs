//! The typed form of `weir.toml`: one struct per table, one field per key, defaults in one place.

mod cache;
mod compress;
mod tls;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use weir_balance::{Algorithm, LastResort};

pub use cache::*;
pub use compress::*;
pub use tls::*;
/// `rate_limit`, `concurrency_limit`, `deny_…` and `allow_…`.
pub use weir_screen::Settings as Screen;

/// A whole configuration, checked: every pool that is named exists, every bound holds.
///
/// Listeners and pools are shared: a config that differs from another in one pool costs no more than that pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[admin]`; `None` when `bind = "off"`.
    pub admin: Option<Admin>,
    /// `[log]`
    pub log: Log,
    /// `[cache]`
    pub cache: Cache,
    /// `[listener.NAME]`, in file order.
    pub listeners: Vec<Arc<Listener>>,
    /// `[pool.NAME]`, in file order.
    pub pools: Vec<Arc<Pool>>,
}

/// Process-wide settings. All but `drain` need a restart (or USR2) to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    /// Worker threads; `None` means one per CPU this process may use.
    pub workers: Option<usize>,
    /// Longest wait for running work on shutdown, or when a listener goes away.
    pub drain: Duration,
    /// Budget for all connection buffers of the process, in bytes; `None` means 3/4 of the memory this process may use.
    pub memory_bytes: Option<u64>,
}

/// Where the admin API listens.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Default `127.0.0.1:9900`.
    pub bind: SocketAddr,
    /// File whose trimmed content is the bearer token; needed for any bind other than loopback.
    pub token_file: Option<PathBuf>,
}

/// Access log and program log.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Where access-log lines go.
    pub access: AccessTarget,
    /// Form of an access-log line.
    pub format: AccessFormat,
    /// Threshold of the program's own log on standard error.
    pub level: Level,
}

/// Where access-log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// Nowhere (default); costs nothing.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, opened for appending and opened anew on USR1.
    File(PathBuf),
}

/// Form of an access-log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// One JSON object a line (default).
    Json,
    /// The combined log format of Apache and nginx.
    Combined,
    /// HAProxy's `option httplog` / `tcplog` layout.
    Haproxy,
}

/// Threshold of the program log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// What a listener speaks to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP (default).
    Http,
    /// Bytes, relayed.
    Tcp,
    /// Datagrams, relayed by flow.
    Udp,
}

/// One place where clients are accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// The NAME of `[listener.NAME]`.
    pub name: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// At least one address.
    pub bind: Vec<SocketAddr>,
    /// Name of the pool that takes whatever no route takes; `None` answers 404 (HTTP only).
    pub pool: Option<String>,
    /// Peers that must open with a PROXY protocol header; nobody else may. Empty: nobody does.
    pub accept_proxy: Vec<IpNet>,
    /// Peers whose `forwarded`, `x-forwarded-*` and `x-request-id` are believed and extended rather than overwritten.
    pub trusted_proxies: Vec<IpNet>,
    /// Most client connections at once, over all workers. UDP: most flows.
    pub max_connections: u32,
    /// Most client connections at once from one address; `None` means no limit of its own.
    pub max_connections_per_client: Option<u32>,
    /// HTTP versions that are spoken; empty when `protocol` is not http.
    pub http: Vec<HttpVersion>,
    /// `[listener.NAME.tls]`
    pub tls: Option<ListenerTls>,
    /// Whether runs of slashes in a path count as one, for routes and for backends; default false.
    pub merge_slashes: bool,
    /// Whether a client of HTTP/1.1 that ends its direction of the connection gives up the answer it waits for; default false.
    pub abort_on_close: bool,
    /// How responses are compressed where no route says otherwise; `None` (default) leaves them as they came.
    pub compress: Option<Compress>,
    /// Every wait has a timer.
    pub timeout: Timeouts,
    /// Sizes a client may make Weir hold or parse.
    pub limits: HttpLimits,
    /// What is asked of every request, before its route is asked.
    pub screen: Screen,
    /// How requests are looked at for SQL injection where no route says otherwise.
    pub sqli: Sqli,
    /// First match wins.
    pub routes: Vec<Route>,
}

/// The timers of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Idle client connection: HTTP between requests, TCP without a byte either way, UDP flow without a datagram. Default 60s.
    pub client_idle: Duration,
    /// From the first byte of a request to the end of its head, absolute, not renewed by bytes. Default 10s.
    pub header: Duration,
    /// For a TLS handshake, absolute. Default 10s.
    pub handshake: Duration,
    /// For one backend to accept a connection. Default 2s.
    pub connect: Duration,
    /// For a backend's next byte while an exchange waits for it. Default 30s.
    pub backend: Duration,
    /// Longest time without progress while a client sends a body or reads a response. Default 30s.
    pub client_body: Duration,
}

/// HTTP sizes. All are upper bounds, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Request line, bytes. Default 8 KiB; beyond it 414.
    pub request_line_bytes: usize,
    /// Whole head, bytes. Default 64 KiB; beyond it 431.
    pub header_bytes: usize,
    /// Header fields in a head, count. Default 100; beyond it 431.
    pub header_count: usize,
    /// Slowest client body, bytes per second averaged since the body began after a 5 s grace. Default 100; 0 switches it off.
    pub min_body_rate: u64,
    /// Requests under way at once on one multiplexed connection, count. Default 128.
    pub streams: u32,
    /// Frames without content that an HTTP/2 client may send ahead of the requests it gets answered, count. Default 1000; beyond it the
    /// connection is closed.
    pub control_frames: u32,
}

/// One `[[listener.NAME.route]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// `name = "…"`, or `NAME/0`, `NAME/1` … by position; for logs and explain.
    pub name: String,
    /// Host patterns, lower case; empty matches every host.
    pub host: Vec<HostPattern>,
    /// Server names that TLS clients ask for, lower case; empty matches every client. Only for tcp.
    pub sni: Vec<HostPattern>,
    /// Path patterns; empty matches every path.
    pub path: Vec<PathPattern>,
    /// Methods; empty matches every method.
    pub method: Vec<String>,
    /// Header name (lower case) to the exact value it must have. `"*"` asks only for presence.
    pub header: BTreeMap<String, String>,
    /// What happens to a request that matches.
    pub action: RouteAction,
    /// Fields set on the request towards the backend (replacing any of the same name).
    pub add_request_header: BTreeMap<String, String>,
    /// Fields set on the response towards the client.
    pub add_response_header: BTreeMap<String, String>,
    /// Replaces what the `*` prefix matched. Only with a prefix path.
    pub rewrite_prefix: Option<String>,
    /// Largest request body, bytes; `None` means no limit. Beyond it 413.
    pub body_limit_bytes: Option<u64>,
    /// How requests are looked at for SQL injection: what the route says, else what its listener does.
    pub sqli: Sqli,
    /// What is kept of responses; `None` keeps nothing.
    pub cache: Option<RouteCache>,
    /// What is asked of its requests.
    pub screen: Screen,
    /// How responses are compressed: what the route says, else what its listener does. `None` leaves them as they came.
    pub compress: Option<Compress>,
}

/// How requests are looked at for SQL injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqli {
    /// What becomes of those that look like it.
    pub mode: SqliMode,
    /// Most of a request's body that is held back and looked at, bytes; default 64 KiB.
    pub body_bytes: u64,
}

/// What becomes of a request that looks like SQL injection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SqliMode {
    /// No request is looked at (default).
    #[default]
    Off,
    /// It passes, and is logged and counted.
    Report,
    /// It gets 403.
    Block,
}

impl SqliMode {
    /// The word of the config.
    pub fn word(self) -> &'static str {
        match self {
            SqliMode::Off => "off",
            SqliMode::Report => "report",
            SqliMode::Block => "block",
        }
    }
}

/// A host that a route takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host, lower case, without port.
    Exact(String),
    /// `*.example`: any name that ends in `.example` (the string kept here, with its dot).
    Suffix(String),
}

/// A path that a route takes; compared with the normalised path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// This path.
    Exact(String),
    /// Any path that starts so (written with a trailing `*`).
    Prefix(String),
    /// Any path that ends so (written with a leading `*`).
    Suffix(String),
    /// Any path that has this in it (written with a `*` at both ends).
    Contains(String),
}

impl std::fmt::Display for PathPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PathPattern::Exact(path) => f.write_str(path),
            PathPattern::Prefix(prefix) => write!(f, "{prefix}*"),
            PathPattern::Suffix(suffix) => write!(f, "*{suffix}"),
            PathPattern::Contains(part) => write!(f, "*{part}*"),
        }
    }
}

/// What a route does.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteAction {
    /// Forward to this pool.
    Pool(String),
    /// Answer with a redirect. `to` may hold `$host` (without port), `$path` and `$query`.
    Redirect {
        /// Target, a URI reference.
        to: String,
        /// 301, 302, 303, 307 or 308 (default).
        status: u16,
    },
    /// Answer from the config.
    Respond {
        /// 200 to 599.
        status: u16,
        /// Sent as it is.
        body: String,
        /// Default `text/plain; charset=utf-8`.
        content_type: String,
    },
}

/// A set of backends and how to choose among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The NAME of `[pool.NAME]`.
    pub name: String,
    /// Not empty.
    pub backends: Vec<Backend>,
    /// Default round-robin.
    pub balance: Algorithm,
    /// What `hash` and `maglev` hash, and the bound.
    pub hash: Hash,
    /// `H1` (default) or `H2`, towards the backends.
    pub protocol: HttpVersion,
    /// TLS towards the backends.
    pub tls: Option<PoolTls>,
    /// PROXY protocol header towards the backends.
    pub send_proxy: Option<ProxyVersion>,
    /// When a failed attempt is tried again.
    pub retry: Retry,
    /// Waiting room when every backend is at `max_connections`.
    pub queue: Queue,
    /// Cookie that keeps a client on its backend; HTTP only.
    pub sticky_cookie: Option<String>,
    /// A backend that came back gets its share gradually over this time.
    pub slow_start: Option<Duration>,
    /// Idle connections kept to backends.
    pub keep_alive: KeepAlive,
    /// How it is known which backends are up.
    pub health: Health,
}

/// One address in a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// As written, `host:port`; the backend's name everywhere.
    pub address: String,
    /// 0 to 256; default 1. 0 takes no new work.
    pub weight: u32,
    /// Most requests (HTTP) or connections (TCP) in flight, over all workers.
    pub max_connections: Option<u32>,
    /// Used only when no other backend is up.
    pub backup: bool,
}

/// `hash = { key, bounded }`
#[derive(Clone, Debug, PartialEq)]
pub struct Hash {
    /// Default: the URI for HTTP, the client's address otherwise.
    pub key: HashKey,
    /// No backend gets more than this factor of the mean load (at least 1.0); `None` switches it off.
    pub bounded: Option<f64>,
}

/// What is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// Path and query.
    Uri,
    /// Path.
    Path,
    /// A header field (lower case).
    Header(String),
    /// A cookie.
    Cookie(String),
    /// The client's address, without port.
    ClientIp,
}

/// PROXY protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// `retry = { attempts, on, non_idempotent }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Further tries after the first; default 2, 0 switches retries off.
    pub attempts: u32,
    /// Which failures are tried again; default connect and empty.
    pub on: Vec<RetryOn>,
    /// Whether methods that are not idempotent may be tried again after they reached a backend.
    pub non_idempotent: bool,
}

/// A failure that may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// No connection came about: nothing was sent.
    Connect,
    /// The backend closed without one byte of response.
    Empty,
    /// The backend did not answer in time.
    Timeout,
    /// The backend answered with this status: 502, 503 or 504.
    Status(u16),
}

/// `queue = { max, timeout }`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Most waiting at once, over all workers; default 1000.
    pub max: u32,
    /// Longest wait; default 1s. Beyond it 503.
    pub timeout: Duration,
}

/// `keep_alive = { max, idle }`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Idle connections kept per worker and backend; default 256, 0 switches reuse off.
    pub max: u32,
    /// How long an idle connection is kept; default 30s.
    pub idle: Duration,
}

/// `[pool.NAME.health]`
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Default `Http` for pools that HTTP listeners use, `Tcp` for others.
    pub check: Check,
    /// Between probes while nothing changes; default 2s.
    pub interval: Duration,
    /// Between probes while the state is changing; default 200ms, never above `interval`.
    pub fast_interval: Duration,
    /// For one probe; default 1s.
    pub timeout: Duration,
    /// Good probes in a row that bring a backend up; default 2.
    pub rise: u32,
    /// Bad probes in a row that take it down; default 3.
    pub fall: u32,
    /// Ejection by the outcome of real traffic; `None` when `passive = "off"`.
    pub passive: Option<Passive>,
    /// Who is tried when no backend is up; default late.
    pub last_resort: LastResort,
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// `GET path`, and the status must be in one of the inclusive ranges.
    Http {
        /// Default `/`.
        path: String,
        /// Host field of the probe; default the backend's address.
        host: Option<String>,
        /// Inclusive ranges; default 200-399.
        expect_status: Vec<(u16, u16)>,
    },
    /// Connects.
    Tcp,
    /// Never probes: every backend counts as up.
    Off,
}

/// `passive = { errors, within, eject, max_ejected }`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passive {
    /// Failures that eject; default 5.
    pub errors: u32,
    /// Within this time; default 10s.
    pub within: Duration,
    /// First ejection lasts this long; default 10s.
    pub eject: Duration,
    /// Never more than this share of the pool is ejected; default 0.5.
    pub max_ejected: f64,
}

/// Whether `address` is in one of `networks`.
pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}
