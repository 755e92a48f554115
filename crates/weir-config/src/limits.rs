//! Every default and bound of the config file, with its unit and its reason. The reference page prints them.

use std::time::Duration;

/// Default and inclusive bounds of a value.
#[derive(Clone, Copy, Debug)]
pub struct Limit<T> {
    /// What holds when the key is absent; `None` when absence itself means something (no limit, or computed).
    pub default: Option<T>,
    /// Smallest value that is taken.
    pub least: T,
    /// Largest value that is taken.
    pub most: T,
    /// Why these bounds.
    pub reason: &'static str,
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn limit<T: Copy>(default: T, least: T, most: T, reason: &'static str) -> Limit<T> {
    Limit { default: Some(default), least, most, reason }
}

const fn optional<T: Copy>(least: T, most: T, reason: &'static str) -> Limit<T> {
    Limit { default: None, least, most, reason }
}

const MINUTES_5: Duration = seconds(300);
const HOUR: Duration = seconds(3600);
const DAY: Duration = seconds(86_400);
const YEAR: Duration = seconds(31_536_000);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Longest text that is read, in bytes; a larger file is not a config file.
pub const FILE_BYTES: usize = 16 << 20;

/// Problems that are listed (count); a file with more is not a config file either.
pub const PROBLEM_COUNT: usize = 1000;

/// Longest name of a listener, pool or route, in bytes: names are metric labels and parts of admin paths.
pub const NAME_BYTES: usize = 64;

/// `runtime.workers`, threads.
pub const WORKERS: Limit<u64> = optional(1, 1024, "a worker is a thread pinned to a CPU");
/// `runtime.drain`.
pub const DRAIN: Limit<Duration> = limit(seconds(30), seconds(0), DAY, "an old process must end one day");
/// `runtime.memory`, bytes.
pub const MEMORY: Limit<u64> =
    optional(16 * MIB, 64 * TIB, "below 16MiB not even one buffer per connection of a small site fits");

/// `listener.max_connections`, connections or flows.
pub const MAX_CONNECTIONS: Limit<u64> =
    limit(100_000, 1, 10_000_000, "each connection is a file descriptor; there are at most a few million");
/// `listener.max_connections_per_client`, connections.
pub const MAX_CONNECTIONS_PER_CLIENT: Limit<u64> = optional(1, 10_000_000, "0 would lock every client out");

/// `timeout.client_idle`.
pub const CLIENT_IDLE: Limit<Duration> =
    limit(seconds(60), millis(10), DAY, "a connection without a timer is never given back");
/// `timeout.header`.
pub const HEADER: Limit<Duration> =
    limit(seconds(10), millis(10), HOUR, "bounds how long a slow head can hold a connection");
/// `timeout.handshake`.
pub const HANDSHAKE: Limit<Duration> =
    limit(seconds(10), millis(10), HOUR, "bounds how long a slow handshake can hold a connection");
/// `timeout.connect`.
pub const CONNECT: Limit<Duration> =
    limit(seconds(2), millis(1), MINUTES_5, "a backend that needs longer is down");
/// `timeout.backend`.
pub const BACKEND: Limit<Duration> =
    limit(seconds(30), millis(10), DAY, "an exchange without a timer is never given back");
/// `timeout.client_body`.
pub const CLIENT_BODY: Limit<Duration> =
    limit(seconds(30), millis(10), DAY, "bounds how long a stalled body can hold a backend");

/// `limits.request_line`, bytes.
pub const REQUEST_LINE: Limit<u64> =
    limit(8 * KIB, 256, MIB, "RFC 9112 section 3 asks for at least 8000 bytes");
/// `limits.header`, bytes.
pub const HEADER_BYTES: Limit<u64> =
    limit(64 * KIB, KIB, 16 * MIB, "every connection may make Weir hold this much");
/// `limits.header_count`, fields.
pub const HEADER_COUNT: Limit<u64> =
    limit(100, 8, 10_000, "looking a field up costs time in proportion to their number");
/// `limits.min_body_rate`, bytes per second.
pub const MIN_BODY_RATE: Limit<u64> =
    limit(100, 0, 100 * MIB, "0B/s switches it off; a high rate locks out mobile clients");
/// `limits.streams`, requests at once.
pub const STREAMS: Limit<u64> =
    limit(128, 1, 10_000, "each may occupy a backend; RFC 9113 section 6.5.2 asks for at least 100");
/// `limits.control_frames`, frames.
pub const CONTROL_FRAMES: Limit<u64> =
    limit(1_000, 50, 1_000_000, "each costs work and brings nothing; a browser sends some per page");

/// `route.body_limit`, bytes.
pub const BODY_LIMIT: Limit<u64> = optional(0, 64 * TIB, "0B takes no body at all");

/// `cache.memory`, bytes.
pub const CACHE_MEMORY: Limit<u64> =
    optional(MIB, 64 * TIB, "leave `cache` out of the routes to keep nothing");
/// `cache.background_fetches`, fetches.
pub const BACKGROUND_FETCHES: Limit<u64> =
    limit(64, 1, 1_000_000, "each may occupy a backend for clients that have left");
/// `cache.ttl`, `cache.ttl_max`, `cache.negative_ttl`.
pub const CACHE_TTL: Limit<Duration> =
    optional(seconds(1), YEAR, "ages are told to clients in whole seconds; nothing is fresh for ever");
/// `cache.stale_while_revalidate`, `cache.stale_if_error`.
pub const CACHE_STALE: Limit<Duration> =
    optional(seconds(1), YEAR, "ages are told to clients in whole seconds");
/// `cache.object_max`, bytes.
pub const CACHE_OBJECT_MAX: Limit<u64> =
    limit(16 * MIB, 0, TIB, "each one puts out that much else; 0B keeps heads only");
/// `cache.collapse_timeout`.
pub const COLLAPSE_TIMEOUT: Limit<Duration> =
    limit(seconds(5), millis(1), HOUR, "a backend that is slower gets one request per client again");
/// `rate_limit.burst`, requests.
pub const RATE_BURST: Limit<u64> = optional(1, 10_000_000, "a bucket that holds nothing lets nobody pass");
/// `rate_limit.keys`, keys.
pub const RATE_KEYS: Limit<u64> =
    limit(250_000, 100, 10_000_000, "each takes 32 bytes while it owes; those beyond share buckets");
/// `rate_limit.ipv4_prefix` and `concurrency_limit.ipv4_prefix`, bits.
pub const IPV4_PREFIX: Limit<u64> = limit(32, 8, 32, "fewer bits count half the Internet as one client");
/// `rate_limit.ipv6_prefix` and `concurrency_limit.ipv6_prefix`, bits.
pub const IPV6_PREFIX: Limit<u64> =
    limit(64, 16, 128, "one customer has at least a /64, and can come from each of its addresses");
/// `concurrency_limit.max`, requests.
pub const CONCURRENCY: Limit<u64> = optional(1, 10_000_000, "use a deny list to let nobody pass");
/// Longest time in which a bucket may fill.
pub const BURST_FILL: Duration = seconds(7 * 86_400);
/// Rate limits, and concurrency limits, of one route or listener (count).
pub const LIMIT_COUNT: usize = 16;

/// `route.sqli_body`, bytes.
pub const SQLI_BODY: Limit<u64> =
    limit(64 * KIB, 0, MIB, "it is held in memory for each request whose body is under way");

/// `compress.min`, bytes.
pub const COMPRESS_MIN: Limit<u64> = limit(
    KIB,
    0,
    TIB,
    "below some hundred bytes the coding costs more than it saves: a packet is sent either way",
);
/// `compress.level.zstd`.
pub const ZSTD_LEVEL: Limit<u64> =
    limit(3, 1, 12, "above 12 a core compresses less than a slow line carries");
/// `compress.level.br`.
pub const BROTLI_LEVEL: Limit<u64> =
    limit(4, 0, 6, "from 7 on each response holds 8MiB and more while it is under way");
/// `compress.level.gzip`.
pub const GZIP_LEVEL: Limit<u64> = limit(5, 1, 9, "level 0 compresses nothing");

/// `respond.status`.
pub const RESPOND_STATUS: Limit<u64> = limit(200, 200, 599, "1xx is not an answer; there is none above 599");

/// `backend.weight`, shares.
pub const WEIGHT: Limit<u64> =
    limit(1, 0, 256, "0 takes no new work; finer shares than 1 in 256 cannot be told apart");
/// `backend.max_connections`, requests or connections in flight.
pub const BACKEND_MAX_CONNECTIONS: Limit<u64> =
    optional(1, 10_000_000, "use `weight = 0` for a backend that shall take nothing");
/// `hash.bounded`, factor of the mean load.
pub const BOUNDED: Limit<f64> =
    optional(1.01, 10.0, "at 1.0 the last request of a full round finds one place only");
/// `retry.attempts`, tries after the first.
pub const RETRY_ATTEMPTS: Limit<u64> =
    limit(2, 0, 10, "each retry multiplies the load on a pool that is in trouble");
/// `queue.max`, waiting requests.
pub const QUEUE_MAX: Limit<u64> =
    limit(1000, 0, 1_000_000, "0 answers 503 at once; a longer queue only delays the 503");
/// `queue.timeout`.
pub const QUEUE_TIMEOUT: Limit<Duration> = limit(seconds(1), millis(1), HOUR, "clients give up too");
/// `pool.slow_start`.
pub const SLOW_START: Limit<Duration> =
    optional(millis(100), HOUR, "leave it out to give the full share at once");
/// `keep_alive.max`, idle connections per worker and backend.
pub const KEEP_ALIVE_MAX: Limit<u64> = limit(256, 0, 65_536, "0 opens a new connection for every request");
/// `keep_alive.idle`.
pub const KEEP_ALIVE_IDLE: Limit<Duration> =
    limit(seconds(30), millis(100), DAY, "should end before the backend closes the connection itself");

/// `health.interval`.
pub const INTERVAL: Limit<Duration> =
    limit(seconds(2), millis(10), HOUR, "shorter probes are load, not knowledge");
/// `health.fast_interval`.
pub const FAST_INTERVAL: Limit<Duration> = limit(millis(200), millis(10), HOUR, "never above `interval`");
/// `health.timeout`.
pub const PROBE_TIMEOUT: Limit<Duration> =
    limit(seconds(1), millis(1), HOUR, "never above `interval`: one probe ends before the next begins");
/// `health.rise`, probes.
pub const RISE: Limit<u64> = limit(2, 1, 100, "one good probe at least");
/// `health.fall`, probes.
pub const FALL: Limit<u64> = limit(3, 1, 100, "one bad probe at least");
/// `passive.errors`, failures.
pub const PASSIVE_ERRORS: Limit<u64> = limit(5, 1, 1_000_000, "one failure at least");
/// `passive.within`.
pub const PASSIVE_WITHIN: Limit<Duration> = limit(seconds(10), millis(100), HOUR, "a window of failures");
/// `passive.eject`.
pub const PASSIVE_EJECT: Limit<Duration> =
    limit(seconds(10), millis(100), HOUR, "a backend must get its chance again");
/// `passive.max_ejected`, share of the pool.
pub const MAX_EJECTED: Limit<f64> = limit(0.5, 0.0, 1.0, "a share of the pool, from 0 to 1");
