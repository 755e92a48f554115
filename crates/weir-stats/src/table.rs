//! The counters of each kind of object, and the closed sets of label values.

use crate::cells::{Counter, Counters, Histogram};

/// Declares a closed set of label values: the enum, its words and their meanings (which the reference page
/// prints).
macro_rules! words {
    ($(#[$outer:meta])* $name:ident { $($variant:ident = $word:literal, $meaning:literal;)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $(#[doc = $meaning] $variant,)* }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Their words, indexed by the numeric value.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word used in metrics and logs.
            pub fn word(self) -> &'static str {
                $name::WORDS[self as usize]
            }

            /// The meaning of the value, for the generated reference page.
            pub fn meaning(self) -> &'static str {
                match self { $($name::$variant => $meaning,)* }
            }
        }
    };
}

words! {
    /// Why an exchange, a session or a flow ended: one word in the access log.
    End {
        Done = "done", "Ended as both sides wished.";
        ClientClosed = "client_closed", "The client went away before it had the whole response.";
        ClientIdle = "client_idle", "The client was idle for `timeout.client_idle`.";
        TunnelIdle = "tunnel_idle", "Neither side of a tunnel (a WebSocket or another upgrade, a tcp session) said anything for `timeout.tunnel`.";
        ClientHeader = "client_header_timeout", "The request head did not end within `timeout.header`; answered 408.";
        ClientBody = "client_body_timeout", "The client sent its body, or read its response, too slowly.";
        Handshake = "tls_handshake", "The TLS handshake did not come about, or not within `timeout.handshake`; closed.";
        BadRequest = "bad_request", "The request broke the protocol; answered 4xx or 5xx and closed.";
        BadProxyHeader = "bad_proxy_header", "The PROXY protocol header was missing, malformed or not allowed.";
        BodyTooLarge = "body_too_large", "The body exceeded `body_limit`; answered 413.";
        NoRoute = "no_route", "No route took the request and the listener has no pool; answered 404.";
        Responded = "responded", "The config answered (`respond`, `redirect`), or a certificate authority was shown what it asked for (`acme`).";
        MethodRefused = "method_refused", "CONNECT or another method that is never forwarded; answered 405 or 501.";
        Looped = "looped", "The request had come through Weir 16 times before (`via`): a pool leads back to its own listener; answered 508.";
        Misdirected = "misdirected", "The host is not one of the certificate that the client was shown, on a listener that asks for client certificates; answered 421.";
        DeniedAddress = "denied_address", "The client is denied, or not allowed (`deny_address`, `allow_address`); answered 403, or not at all by tcp and udp listeners.";
        DeniedMethod = "denied_method", "The method is denied, or not allowed (`deny_method`, `allow_method`); answered 403.";
        DeniedPath = "denied_path", "The path is denied, or not allowed (`deny_path`, `allow_path`); answered 403.";
        DeniedUserAgent = "denied_user_agent", "The user agent is denied, or not allowed (`deny_user_agent`, `allow_user_agent`); answered 403.";
        RateLimited = "rate_limited", "Over a `rate_limit`; answered 429 with `retry-after`, or as the limit says.";
        ConcurrencyLimited = "concurrency_limited", "Over a `concurrency_limit`; answered 429 with `retry-after`, or as the limit says.";
        Sqli = "sqli", "The request looks like SQL injection, or its body cannot be read as its type says (`sqli = \"block\"`); answered 403.";
        AuthDenied = "auth_denied", "The client has not shown who it is, or may not ask for that (`auth`); answered as the service says, or with 401.";
        AuthUnavailable = "auth_unavailable", "Nobody could say whether the client may ask for that (`auth`); answered 503.";
        NoBackend = "no_backend", "No backend of the pool is up; answered 503.";
        BreakerOpen = "breaker_open", "Most requests to the pool failed, and its `breaker` lets none through; answered 503 with `retry-after`.";
        QueueFull = "queue_full", "Every backend was at `max_connections` and the queue was full; answered 503.";
        QueueTimeout = "queue_timeout", "Waited in the queue for its whole timeout; answered 503.";
        ParkFull = "park_full", "No server was the primary, and as many as may wait for one did (`park_max`); answered with error 1836.";
        ParkTimeout = "park_timeout", "No server became the primary within `park`; answered with error 1836.";
        LoginRefused = "login_refused", "The login was refused by a server, or as one would; answered with its error, as 1045.";
        LoginLimited = "login_limited", "More clients had to show their password than `full_logins` and its like let; answered with error 1040 or 1226.";
        AccountConnections = "account_connections", "The account had as many sessions as `max_connections_per_account`; answered with error 1203.";
        LoginTimeout = "login_timeout", "The login did not end within `timeout.handshake`; closed.";
        ConnectFailed = "connect_failed", "No backend accepted a connection; answered 502.";
        ConnectTimeout = "connect_timeout", "No backend accepted within `timeout.connect`; answered 504.";
        NoTunnel = "no_tunnel", "The request was an upgrade (WebSocket), and its backend speaks HTTP/2 without extended CONNECT (RFC 8441); answered 502. Or its route has an answer of its own (`respond`); answered 501 in HTTP/2 and HTTP/3, where any 2xx would open a tunnel.";
        BackendTls = "backend_tls", "No backend could be spoken TLS with, most often because its certificate is not good; answered 502.";
        BackendTimeout = "backend_timeout", "The backend did not begin to answer within `timeout.backend`; answered 504.";
        StreamTimeout = "stream_timeout", "Nobody said anything for `timeout.stream` while a response was under way; cut off.";
        RequestTotal = "request_total_timeout", "The request was not over within `timeout.request_total`; answered 504, or 408 where the client had not sent all of it, or cut off.";
        BackendDown = "backend_down", "The backend went down, and its pool ends sessions then (`on_down`); cut off.";
        BackendClosed = "backend_closed", "The backend closed before the response was whole; answered 502, or cut off.";
        BadResponse = "bad_response", "The backend's response broke the protocol; answered 502, or cut off.";
        Overload = "overload", "Weir's own memory or descriptors ran short; answered 503 or closed.";
        BufferLost = "buffer_lost", "What a file of `buffer` held of a body could not be read back, or its disk hung; answered 500 or closed.";
        TooManyConnections = "too_many_connections", "The listener or the client address was at its connection limit; closed.";
        Maintenance = "maintenance", "The listener, the route or its pool is in maintenance (`weir maintenance on`); answered 503.";
        NotCached = "not_cached", "The client wanted what the cache has or nothing (`only-if-cached`), and it has nothing fit; answered 504.";
        Killed = "killed", "mysql: another session ended this one by KILL; closed.";
        Draining = "draining", "The listener or the process was going away and the drain time was over.";
        Internal = "internal", "A mistake of Weir's own; only this connection ended.";
    }
}

words! {
    /// Reasons for which a worker refused something before or instead of forwarding it: label `reason` of
    /// `weir_rejected_total`.
    Rejected {
        BadRequest = "bad_request", "Malformed or ambiguous request; of MySQL, what is against its protocol.";
        HeaderTooLarge = "header_too_large", "Request line, head or field count over its limit.";
        HeaderTimeout = "header_timeout", "Request head, or PROXY header, not complete in time.";
        BodyTooLarge = "body_too_large", "Body over `body_limit`.";
        BodyTimeout = "body_timeout", "Body below `min_body_rate` or stalled.";
        BadProxyHeader = "bad_proxy_header", "PROXY protocol header missing, malformed or not allowed.";
        Handshake = "tls_handshake", "TLS handshake failed or too slow.";
        Looped = "looped", "Request that came through Weir 16 times before.";
        Misdirected = "misdirected", "Host of another certificate than the one shown, where clients have certificates too.";
        MethodRefused = "method_refused", "Method that is never forwarded.";
        NoRoute = "no_route", "No route and no default pool.";
        DeniedAddress = "denied_address", "Client denied, or not allowed.";
        DeniedMethod = "denied_method", "Method denied, or not allowed.";
        DeniedPath = "denied_path", "Path denied, or not allowed.";
        DeniedUserAgent = "denied_user_agent", "User agent denied, or not allowed.";
        RateLimited = "rate_limited", "Over a `rate_limit`.";
        ConcurrencyLimited = "concurrency_limited", "Over a `concurrency_limit`.";
        Sqli = "sqli", "Looks like SQL injection, or has a body that cannot be read as its type says.";
        AuthDenied = "auth_denied", "Not shown who it is, or not allowed (`auth`).";
        AuthUnavailable = "auth_unavailable", "Nobody could say who may pass (`auth`).";
        NoBackend = "no_backend", "No backend up.";
        BreakerOpen = "breaker_open", "The pool's `breaker` is open.";
        QueueFull = "queue_full", "Queue full.";
        QueueTimeout = "queue_timeout", "Queue timeout over.";
        ListenerConnections = "listener_connections", "Listener at `max_connections`.";
        ClientConnections = "client_connections", "Client address at `max_connections_per_client`.";
        Descriptors = "descriptors", "File descriptors ran out; idle connections were shed.";
        Memory = "memory", "Memory budget used up, or the client's share of it.";
        Maintenance = "maintenance", "In maintenance.";
        RetryBudget = "retry_budget", "A retry was due and the pool's retry budget was used up.";
        Ports = "ports", "No port was left for a UDP flow to leave from (`net.ipv4.ip_local_port_range`).";
        FlowLimit = "flow_limit", "UDP flow table full.";
        DatagramTooLong = "datagram_too_long", "UDP datagram that is longer, with its PROXY header, than what can be sent to the backend; each counts.";
        Login = "login", "MySQL login refused, or not done in time.";
        LoginLimit = "login_limit", "More MySQL logins in full than `full_logins`, `full_logins_per_client` or `full_logins_per_account`.";
        AccountConnections = "account_connections", "MySQL account at `max_connections_per_account`.";
        Bandwidth = "bandwidth", "UDP datagrams over `bandwidth`, in either direction; each counts.";
        FrameFlood = "frame_flood", "HTTP/2 or HTTP/3 client sent more frames without content than `control_frames` allows; closed.";
    }
}

words! {
    /// Verdicts of the screen for SQL injection: label `verdict` of `weir_sqli_requests_total`.
    SqliVerdict {
        Passed = "passed", "Nothing was found.";
        Reported = "reported", "An injection was found, and passed (`sqli = \"report\"`).";
        Blocked = "blocked", "An injection was found, and refused (`sqli = \"block\"`).";
        Unreadable = "unreadable", "A body could not be read as its type says: refused with `sqli = \"block\"`, else passed.";
        Cut = "cut", "Of a body, besides, something passed unread: it was larger than `sqli_body`, or memory was short.";
    }
}

words! {
    /// The result of authenticating a client: label `result` of `weir_auth_requests_total`.
    AuthResult {
        Passed = "passed", "It may pass.";
        Remembered = "remembered", "It may pass by an answer that the service gave before (`remember`).";
        Denied = "denied", "It may not, or has not shown who it is.";
        Unavailable = "unavailable", "Nobody could say so in time.";
        Crowded = "crowded", "Nor could anybody because of its own client: as many of one address waited for it as may.";
    }
}

words! {
    /// The result of mirroring a request: label `result` of `weir_mirrored_requests_total`.
    MirrorResult {
        Answered = "answered", "A copy was sent, and a backend of the mirror answered, whatever it said.";
        Failed = "failed", "A copy was sent, or was to be, and no answer came in time.";
        Busy = "busy", "No copy: as many as `max` were under way.";
        Body = "body", "No copy: the body was longer than `body_limit`, or not whole when the answer began.";
        Memory = "memory", "No copy: memory was short.";
        Looped = "looped", "No copy: the request was one itself.";
        Maintenance = "maintenance", "No copy: the mirror's pool is in maintenance.";
    }
}

words! {
    /// Why bytes of a buffered body were not written to a file, or could not be read back: label `reason` of
    /// `weir_buffer_file_refusals_total`.
    FileRefusal {
        Full = "full", "All files together have as many bytes as `runtime.buffer_files` lets them: the body streams.";
        Count = "count", "There are as many files as `runtime.buffer_files_max` lets there be: the body streams.";
        Memory = "memory", "Memory is short even for the blocks on their way to and from the disk: the body streams.";
        Disk = "disk", "The file could not be made or written (no space, no permission): the body streams.";
        Lost = "lost", "What was written could not be read back: the exchange fails.";
    }
}

words! {
    /// How a TLS handshake with a client ended: label `result` of `weir_tls_handshakes_total`.
    Handshake {
        Full = "full", "Made, with certificate and key exchange.";
        Resumed = "resumed", "Made, by a session ticket.";
        TimedOut = "timed_out", "Not done within `timeout.handshake`.";
        Closed = "closed", "The client closed or reset the connection; clients that do not trust the certificate may do so without a word.";
        Alert = "alert", "The client said what it did not like: an unknown authority, an expired certificate.";
        NoProtocol = "no_protocol", "No application protocol in common (ALPN).";
        NoCommon = "no_common", "No version, cipher suite, key exchange or signature in common.";
        ClientCertificate = "client_certificate", "The client's certificate is missing or not good.";
        NoCertificate = "no_certificate", "The listener has no certificate yet: the first is on order.";
        Challenge = "challenge", "Made to prove a domain to a certificate authority (`acme`), and closed.";
        NotTls = "not_tls", "What the client sent is no TLS.";
        Malformed = "malformed", "The client broke the protocol.";
        Overload = "overload", "Weir's own memory or descriptors ran short.";
    }
}

words! {
    /// How a MySQL client logged in, or why it was not let in: label `result` of `weir_mysql_logins_total`.
    Login {
        Fast = "fast", "Let in: the proof was of a password that is known.";
        FullTls = "full_tls", "Let in: the password came within TLS.";
        FullRsa = "full_rsa", "Let in: the password came under Weir's RSA key.";
        Empty = "empty", "Let in without a password, as the server lets that account.";
        Relayed = "relayed", "Let in by a server that the client proved itself to.";
        Refused = "refused", "Not let in: by a server, or because no password shows what the client sent.";
        Limited = "limited", "Not let in: over `full_logins`, `full_logins_per_client`, `full_logins_per_account` or `max_connections_per_account`.";
        Unavailable = "unavailable", "Not let in: no server could be asked.";
        Malformed = "malformed", "The client broke the protocol, or speaks none that is safe.";
        Gone = "gone", "The client left, or took longer than `timeout.handshake`.";
    }
}

words! {
    /// Results of a request on a route with a cache: label `result` of `weir_cache_requests_total`, and
    /// `cache` in the access log.
    CacheResult {
        Hit = "hit", "Answered from memory.";
        Stale = "stale", "Answered from memory, out of date, while it is fetched anew (`stale_while_revalidate`).";
        ErrorStale = "error_stale", "Answered from memory, out of date, because the backend failed (`stale_if_error`).";
        Revalidated = "revalidated", "Answered from memory after the backend confirmed it.";
        Collapsed = "collapsed", "Answered by what another request had asked for at that moment.";
        Miss = "miss", "Fetched from a backend.";
        Pass = "pass", "Forwarded past the cache: an answer to the same request proved a moment ago not to be one that is kept, or took too long.";
        Bypass = "bypass", "Forwarded past the cache: not a request that memory may answer.";
    }
}

words! {
    /// Why a request was retried: label `reason` of `weir_retry_reasons_total`.
    RetryReason {
        Connect = "connect", "No connection came about.";
        RefusedStream = "refused-stream", "The backend promised not to have looked at it (HTTP/2).";
        Empty = "empty", "The backend closed without one byte of response.";
        Reset = "reset", "The backend broke off within the head of its response.";
        Timeout = "timeout", "The backend did not answer in time.";
        TooManyRequests = "429", "The backend answered 429.";
        InternalError = "500", "The backend answered 500.";
        BadGateway = "502", "The backend answered 502.";
        Unavailable = "503", "The backend answered 503.";
        GatewayTimeout = "504", "The backend answered 504.";
    }
}

words! {
    /// The result of hedging a request: label `result` of `weir_hedge_results_total`, and the first three of
    /// them `hedge` in the access log.
    HedgeResult {
        Won = "won", "Sent, and the second backend's answer counted.";
        Lost = "lost", "Sent, and the first backend's answer counted.";
        Failed = "failed", "Sent, and neither gave an answer that counts at once.";
        Left = "left", "Sent, and the client left before there was an answer.";
        NoBackend = "no_backend", "Not sent: no other backend takes work.";
        Busy = "busy", "Not sent: every other backend is at `max_connections`, or requests wait for room.";
        Breaker = "breaker", "Not sent: the pool's breaker had opened, or tries whether it may close.";
        NoBudget = "no_budget", "Not sent: the pool's retry budget had nothing left.";
    }
}

impl End {
    /// The refusal that an end counts as, for all protocols; `None` if a backend or the client itself caused
    /// the end. A caller that knows the cause better reports it instead, for example that descriptors ran
    /// short when the end is [`End::Overload`].
    pub fn rejected(self) -> Option<Rejected> {
        Some(match self {
            End::BadRequest => Rejected::BadRequest,
            End::ClientHeader => Rejected::HeaderTimeout,
            End::BodyTooLarge => Rejected::BodyTooLarge,
            End::BadProxyHeader => Rejected::BadProxyHeader,
            End::Handshake => Rejected::Handshake,
            End::Looped => Rejected::Looped,
            End::Misdirected => Rejected::Misdirected,
            End::MethodRefused => Rejected::MethodRefused,
            End::NoRoute => Rejected::NoRoute,
            End::DeniedAddress => Rejected::DeniedAddress,
            End::DeniedMethod => Rejected::DeniedMethod,
            End::DeniedPath => Rejected::DeniedPath,
            End::DeniedUserAgent => Rejected::DeniedUserAgent,
            End::RateLimited => Rejected::RateLimited,
            End::ConcurrencyLimited => Rejected::ConcurrencyLimited,
            End::Sqli => Rejected::Sqli,
            End::AuthDenied => Rejected::AuthDenied,
            End::AuthUnavailable => Rejected::AuthUnavailable,
            End::NoBackend => Rejected::NoBackend,
            End::BreakerOpen => Rejected::BreakerOpen,
            End::QueueFull | End::ParkFull => Rejected::QueueFull,
            End::QueueTimeout | End::ParkTimeout => Rejected::QueueTimeout,
            End::LoginRefused | End::LoginTimeout => Rejected::Login,
            End::LoginLimited => Rejected::LoginLimit,
            End::AccountConnections => Rejected::AccountConnections,
            End::TooManyConnections => Rejected::ClientConnections,
            End::Overload => Rejected::Memory,
            End::Maintenance => Rejected::Maintenance,
            _ => return None,
        })
    }
}

impl Rejected {
    /// Reasons that a dry run can count without refusing: label `reason` of `weir_would_reject_total`.
    pub const WOULD: &'static [Rejected] = &[Rejected::RateLimited, Rejected::ConcurrencyLimited];
}

words! {
    /// How a compressible response was sent: label `coding` of `weir_compressed_responses_total`.
    Compressed {
        Zstd = "zstd", "In Zstandard.";
        Brotli = "br", "In Brotli.";
        Gzip = "gzip", "In gzip.";
        Short = "short_of_memory", "As it came: its client took a coding, and the memory budget had no room for an encoder.";
    }
}

/// Classes of status codes: index `status / 100`, 0 for none.
pub const CODE_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Capacity for the reasons that decide where statements go.
pub const STATEMENT_REASONS: usize = 48;
/// Capacity for the reasons that pin a session to its connection.
pub const PIN_REASONS: usize = 16;

/// Counters of one worker for one listener.
#[derive(Debug, Default)]
pub struct ListenerCells {
    /// Client connections (UDP: flows) accepted.
    pub connections: Counter,
    /// Of these, those that have ended.
    pub connections_ended: Counter,
    /// Requests answered, by class of status.
    pub requests: [Counter; 6],
    /// From the first byte of a request to the last byte of its response.
    pub request_seconds: Histogram,
    /// Bytes from clients.
    pub bytes_received: Counter,
    /// Bytes to clients.
    pub bytes_sent: Counter,
    /// Refusals by [`Rejected`].
    pub rejected: Counters<{ Rejected::ALL.len() }>,
    /// Requests that a dry run would have refused, by [`Rejected`].
    pub would_reject: Counters<{ Rejected::ALL.len() }>,
    /// Requests screened for SQL injection, by [`SqliVerdict`].
    pub sqli: Counters<{ SqliVerdict::ALL.len() }>,
    /// Requests on routes with `auth`, by [`AuthResult`].
    pub auth: [Counter; AuthResult::ALL.len()],
    /// Remembered answers of authentication services that were evicted early, because there were too many.
    pub auth_forgotten: Counter,
    /// Names given by senders of datagrams that were evicted early, because there were too many.
    pub names_forgotten: Counter,
    /// Requests on routes with `mirror`, by [`MirrorResult`].
    pub mirrored: [Counter; MirrorResult::ALL.len()],
    /// Ends by [`End`].
    pub ends: Counters<{ End::ALL.len() }>,
    /// TLS handshakes by [`Handshake`].
    pub handshakes: [Counter; Handshake::ALL.len()],
    /// MySQL logins by [`Login`].
    pub logins: [Counter; Login::ALL.len()],
    /// MySQL statements by the reason that decided where they went, by its number.
    pub statements: Counters<STATEMENT_REASONS>,
    /// MySQL sessions that were pinned to their connection, by the number of the reason.
    pub pins: [Counter; PIN_REASONS],
    /// MySQL sessions pinned to their connection because the account's plugin takes no password.
    pub pinned_by_plugin: Counter,
    /// MySQL statements that ran again because their server was lost.
    pub rerun_lost: Counter,
    /// MySQL statements that ran again because their server had refused them as read-only.
    pub rerun_read_only: Counter,
    /// MySQL statements that were not prepared because their session has prepared too much text.
    pub prepared_too_much: Counter,
    /// MySQL statements that were not prepared for want of memory.
    pub prepared_no_memory: Counter,
    /// MySQL reads for which a server first had to catch up with their session's writes.
    pub catch_ups: Counter,
    /// MySQL reads that went to the primary because a server was too far behind.
    pub behind: Counter,
    /// Full MySQL logins that had to wait for their turn.
    pub logins_waited: Counter,
    /// Requests on routes with a cache by [`CacheResult`].
    pub cache: [Counter; CacheResult::ALL.len()],
    /// Responses by [`Compressed`].
    pub compressed: [Counter; Compressed::ALL.len()],
    /// Bytes of content before compression.
    pub compression_plain_bytes: Counter,
    /// Bytes of content after compression.
    pub compression_encoded_bytes: Counter,
    /// Answers of backends that were replaced by an error page.
    pub replaced: Counter,
    /// How often a connection waited, or a datagram was dropped, because of `bandwidth`: to the client, from
    /// it.
    pub throttled: [Counter; 2],
    /// Access-log lines dropped because the queue to the writer was full.
    pub log_dropped: Counter,
}

impl ListenerCells {
    /// Counts a refusal. One plain load and store, like all of these.
    #[inline]
    pub fn count_rejected(&self, reason: Rejected) {
        self.rejected[reason as usize].increment();
    }

    /// Counts an end.
    #[inline]
    pub fn count_end(&self, end: End) {
        self.ends[end as usize].increment();
    }

    /// Counts the end of a session without a request in progress, and the refusal that the end counts as.
    pub fn count_ended(&self, end: End) {
        self.count_end(end);
        if let Some(reason) = end.rejected() {
            self.count_rejected(reason);
        }
    }
}

/// Counters of one worker for one route, or for requests that matched no route.
#[derive(Debug, Default)]
pub struct RouteCells {
    /// Requests by class of the status sent; index 0 for those without one.
    pub requests: [Counter; 6],
    /// From the first byte of a request to the last of its response.
    pub request_seconds: Histogram,
}

/// Counters of one worker for one backend of one pool.
#[derive(Debug, Default)]
pub struct BackendCells {
    /// Responses by class of status; index 0 for exchanges (or connections) without one.
    pub requests: [Counter; 6],
    /// Connections opened.
    pub connections: Counter,
    /// Of these, those that have ended.
    pub connections_ended: Counter,
    /// Connections that failed.
    pub connect_failures: Counter,
    /// Full TLS handshakes.
    pub tls_full: Counter,
    /// TLS handshakes that resumed a session.
    pub tls_resumed: Counter,
    /// TLS handshakes that failed.
    pub tls_failures: Counter,
    /// Connections for which the backend could choose, and chose HTTP/2.
    pub picked_h2: Counter,
    /// Connections for which the backend could choose, and chose HTTP/1.1.
    pub picked_h1: Counter,
    /// HTTP/3 connections.
    pub picked_h3: Counter,
    /// How often HTTP/3 failed and TCP was used instead.
    pub fell_back: Counter,
    /// Requests on a reused connection.
    pub reused: Counter,
    /// Idle connections that the backend had ended, or had sent something on, before they were used again.
    pub ended_idle: Counter,
    /// From the request sent to the response's head received.
    pub response_seconds: Histogram,
    /// Bytes from the backend.
    pub bytes_received: Counter,
    /// Bytes to the backend.
    pub bytes_sent: Counter,
    /// Failures that passive health counted.
    pub failures: Counter,
    /// Times passive health ejected it.
    pub ejections: Counter,
    /// Connections ended because it went down.
    pub ended: Counter,
    /// Prepared MySQL statements that were closed to make room for others.
    pub statements_closed: Counter,
}

/// Counters of one worker for one pool.
#[derive(Debug, Default)]
pub struct PoolCells {
    /// Attempts after the first.
    pub retries: Counter,
    /// Retries by [`RetryReason`].
    pub retry_reasons: [Counter; RetryReason::ALL.len()],
    /// Retries on another backend than the first.
    pub redispatches: Counter,
    /// Requests sent to a second backend beside the first.
    pub hedges: Counter,
    /// Results of hedged requests, by [`HedgeResult`].
    pub hedge_results: [Counter; HedgeResult::ALL.len()],
    /// Exchanges that waited in the queue.
    pub queued: Counter,
    /// Exchanges that waited because no backend had the requested role.
    pub parked: Counter,
    /// Exchanges that found too many others waiting for a role.
    pub park_full: Counter,
    /// Exchanges that waited for a role in vain.
    pub park_timeouts: Counter,
    /// MySQL sessions that continued on another server, because theirs was lost or stopped taking writes.
    pub moved: Counter,
    /// MySQL clients that got an error, or lost their connection, because their server was lost or stopped
    /// taking writes, or because no server had the role that they needed.
    pub failed: Counter,
    /// Times its breaker opened.
    pub breaker_opened: Counter,
    /// Requests whose body was buffered whole before a backend was asked.
    pub buffered_requests: Counter,
    /// Requests whose body was to be buffered and was not.
    pub unbuffered_requests: Counter,
    /// Responses that were read from the backend completely before the client had received them.
    pub read_ahead: Counter,
    /// Picks of a backend that is out, because no other was left.
    pub last_resort: Counter,
    /// Picks among all backends, because few are healthy.
    pub panics: Counter,
    /// Requests that went to the fallback pool because none of this pool's backends could serve.
    pub fallbacks: Counter,
}
