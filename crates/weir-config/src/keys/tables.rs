//! Every table and key of `weir.toml`.

use super::bounds::{LIMITS, TIMEOUT};
use super::cache::{CACHE, ROUTE_CACHE};
use super::compress::COMPRESS;
use super::screen;
use super::tls::{LISTENER_TLS, POOL_TLS};
use super::{Key, Kind, Table, Word};
use crate::limits as at;
use crate::values as shape;

pub(super) const fn word(word: &'static str, doc: &'static str) -> Word {
    Word { word, doc, built: true }
}

const fn not_built(word: &'static str, doc: &'static str) -> Word {
    Word { word, doc, built: false }
}

/// The file.
pub static ROOT: Table = Table {
    path: "the file",
    doc: "Six kinds of tables. At least one listener is needed; all the rest has defaults.",
    keys: &[
        Key::new("runtime", Kind::Table(&RUNTIME), "Settings of the whole process."),
        Key::new("admin", Kind::Table(&ADMIN), "The admin API, metrics and dashboard."),
        Key::new("log", Kind::Table(&LOG), "Access log and program log."),
        Key::new("cache", Kind::Table(&CACHE), "The memory that routes with a `cache` share."),
        Key::new("listener", Kind::NamedTables(&LISTENER), "Where clients are accepted.")
            .also(&["frontend", "server", "listen"]),
        Key::new("pool", Kind::NamedTables(&POOL), "Backends, and how to choose among them.")
            .also(&["upstream", "cluster"]),
    ],
};

static RUNTIME: Table = Table {
    path: "[runtime]",
    doc: "Settings of the whole process.",
    keys: &[
        Key::new("workers", Kind::Count(&at::WORKERS), "Worker threads, each pinned to a CPU.")
            .default("one per CPU this process may use")
            .restart()
            .also(&["threads", "nbthread", "worker_processes"]),
        Key::new(
            "drain",
            Kind::Duration(&at::DRAIN),
            "Longest wait for running work on shutdown or when a listener goes away.",
        ),
        Key::new("memory", Kind::Size(&at::MEMORY), "Budget for all connection buffers of the process.")
            .default("3/4 of the memory this process may use")
            .restart(),
    ],
};

static ADMIN: Table = Table {
    path: "[admin]",
    doc: "Where the admin API, `/metrics` and the dashboard are served.",
    keys: &[
        Key::new(
            "bind",
            Kind::Text(&shape::ADMIN_BIND),
            "Address and port, or `\"off\"`. Any other than loopback needs `token_file`.",
        )
        .default("\"127.0.0.1:9900\"")
        .restart()
        .also(&["listen", "address"]),
        Key::new(
            "token_file",
            Kind::Text(&shape::FILE),
            "File whose trimmed content is the bearer token: changing calls need it and, where `bind` is not loopback, all but `/livez` and `/readyz`.",
        )
        .default("none: loopback only")
        .restart(),
    ],
};

static LOG: Table = Table {
    path: "[log]",
    doc: "The access log, and the program's own log on standard error.",
    keys: &[
        Key::new(
            "access",
            Kind::Text(&shape::ACCESS_TARGET),
            "Where access-log lines go; a file is opened anew on USR1.",
        )
        .default("\"off\""),
        Key::new(
            "format",
            Kind::Word(
                &[
                    word("json", "one JSON object a line"),
                    word("combined", "the combined format of Apache and nginx"),
                    word("haproxy", "HAProxy's `option httplog` and `tcplog`"),
                ],
                Some("json"),
            ),
            "Form of an access-log line.",
        ),
        Key::new(
            "level",
            Kind::Word(
                &[
                    word("error", "what an operator must look at"),
                    word("warn", "what may become trouble"),
                    word("info", "starts, reloads, state changes"),
                    word("debug", "single connections"),
                    word("trace", "everything"),
                ],
                Some("info"),
            ),
            "Threshold of the program's own log.",
        ),
    ],
};

/// Keys of a table, and those of screening behind them: listeners and routes have the same.
macro_rules! with_screening {
    ($($key:expr),* $(,)?) => {
        &[
            $($key,)*
            screen::RATE_LIMIT,
            screen::CONCURRENCY_LIMIT,
            screen::DENY_ADDRESS,
            screen::ALLOW_ADDRESS,
            screen::DENY_METHOD,
            screen::ALLOW_METHOD,
            screen::DENY_PATH,
            screen::ALLOW_PATH,
            screen::DENY_USER_AGENT,
            screen::ALLOW_USER_AGENT,
        ]
    };
}

static LISTENER: Table = Table {
    path: "[listener.NAME]",
    doc: "One place where clients are accepted.",
    keys: with_screening![
        Key::new(
            "protocol",
            Kind::Word(
                &[
                    word("http", "HTTP"),
                    word("tcp", "bytes, relayed"),
                    word("udp", "datagrams, relayed by flow"),
                    not_built("mysql", "MySQL, split by statement"),
                ],
                Some("http"),
            ),
            "What it speaks to its clients.",
        )
        .also(&["mode"]),
        Key::new("bind", Kind::OneOrMany(&Kind::Text(&shape::BIND)), "Addresses of this machine to accept at; port 0 takes a free one.")
            .required()
            .also(&["listen", "address", "addr"]),
        Key::new("pool", Kind::Text(&shape::NAME), "The pool that takes whatever no route takes. Needed for tcp and udp; without it HTTP answers 404.")
            .default("none")
            .also(&["default_backend", "use_backend", "proxy_pass", "backend", "upstream"]),
        Key::new("accept_proxy", Kind::OneOrMany(&Kind::Text(&shape::NETWORK)), "Peers that must open with a PROXY protocol header (v1 or v2); nobody else may.")
            .default("nobody")
            .stream()
            .also(&["proxy_protocol"]),
        Key::new("trusted_proxies", Kind::OneOrMany(&Kind::Text(&shape::NETWORK)), "Peers whose `forwarded` and `x-forwarded-*` are believed and extended rather than overwritten; whom they name is the client everywhere.")
            .default("nobody")
            .http()
            .also(&["set_real_ip_from", "real_ip_from"]),
        Key::new("max_connections", Kind::Count(&at::MAX_CONNECTIONS), "Most client connections at once, over all workers; for udp, flows.")
            .also(&["maxconn"]),
        Key::new("max_connections_per_client", Kind::Count(&at::MAX_CONNECTIONS_PER_CLIENT), "Most client connections at once of one client: an IPv4 address, or an IPv6 /64. Those of `trusted_proxies` are not counted.")
            .default("no limit of its own"),
        Key::new("merge_slashes", Kind::Bool(false), "Takes `//` in a path for `/`, for routes and for backends: where backends do so, a route guards no path without it.")
            .http(),
        Key::new("abort_on_close", Kind::Bool(false), "Takes a client of HTTP/1.1 that ends its direction of the connection for one that has left, and its backend off the request. A few clients (netcat) end it and wait for the answer.")
            .http()
            .also(&["abortonclose", "proxy_ignore_client_abort"]),
        Key::new("compress", Kind::TableOrTrue(&COMPRESS), "Compresses responses for clients that ask for it; a route may say otherwise.")
            .default("off")
            .http()
            .also(&["compression", "gzip", "brotli", "encode"]),
        Key::new("timeout", Kind::Table(&TIMEOUT), "The timers.").also(&["timeouts"]),
        Key::new("limits", Kind::Table(&LIMITS), "Sizes a client may make Weir hold or parse.").http().also(&["limit"]),
        Key::new(
            "http",
            Kind::OneOrMany(&Kind::Word(
                &[
                    word("h1", "HTTP/1.0 and 1.1"),
                    word("h2", "HTTP/2; without `tls` for clients that begin with it (prior knowledge)"),
                    word("h3", "HTTP/3, over QUIC at the same port; announced to the others with `alt-svc`"),
                ],
                None,
            )),
            "HTTP versions that are spoken. A client that knows several gets HTTP/2 by TLS.",
        )
        .default("`[\"h1\", \"h2\"]` with `tls`, else `[\"h1\"]`")
        .http()
        .also(&["alpn", "versions", "http_versions"]),
        Key::new(
            "plane",
            Kind::Unread("`\"proxy\"`, `\"kernel\"` or `\"auto\"`"),
            "`proxy` terminates and relays; `kernel` forwards packets.",
        )
        .not_built(&["proxy"]),
        Key::new("interface", Kind::Unread("a list of interfaces"), "Interfaces of the kernel plane.").not_built(&[]),
        Key::new("forward", Kind::Unread("`\"nat\"`, `\"full-nat\"` or `\"dsr\"`"), "How the kernel plane forwards.").not_built(&[]),
        Key::new("access", Kind::Unread("`\"read-write\"`, `\"read-only\"` or `\"auto\"`"), "Which MySQL members are used.").not_built(&[]),
        Key::new("tls", Kind::Table(&LISTENER_TLS), "Certificates and TLS settings.").default("off").stream().also(&["ssl"]),
        screen::SQLI,
        screen::SQLI_BODY,
        Key::new("route", Kind::Tables(&ROUTE), "In file order, first match wins.").stream().also(&["routes", "location", "rule", "acl"]),
    ],
};

static ROUTE: Table = Table {
    path: "[[listener.NAME.route]]",
    doc: "Takes the requests that match all its conditions and does exactly one thing: `pool`, `redirect` or `respond`. A tcp listener's routes take \
          connections, by `sni`, and have a `pool`.",
    keys: with_screening![
        Key::new("name", Kind::Text(&shape::NAME), "For logs and `weir explain`.")
            .default("LISTENER/POSITION, from 0"),
        Key::new(
            "host",
            Kind::OneOrMany(&Kind::Text(&shape::HOST)),
            "Hosts without port; `*.example` takes any name below it.",
        ).http()
        .default("every host")
        .also(&["hosts", "server_name", "domain"]),
        Key::new(
            "sni",
            Kind::OneOrMany(&Kind::Text(&shape::HOST)),
            "Server names that TLS clients ask for; without `tls` on the listener they are read from the greeting and the connection is passed on as it is.",
        )
        .default("every client")
        .tcp()
        .also(&["server_names", "hostsni", "req_ssl_sni"]),
        Key::new(
            "path",
            Kind::OneOrMany(&Kind::Text(&shape::PATH)),
            "Exact, a prefix with a trailing `*`, a suffix with a leading one, or with both a part.",
        ).http()
        .default("every path")
        .also(&["paths", "path_beg", "location", "prefix"]),
        Key::new("method", Kind::OneOrMany(&Kind::Text(&shape::METHOD)), "Methods.").http()
            .default("every method")
            .also(&["methods"]),
        Key::new(
            "header",
            Kind::Map(&shape::PROBED_HEADER, &shape::FIELD_VALUE),
            "Header fields and the exact value each must have, several lines of a field being one (`a, b`); `\"*\"` asks only for presence.",
        ).http()
        .default("none")
        .also(&["headers"]),
        Key::new("pool", Kind::Text(&shape::NAME), "Forward to this pool.").also(&[
            "use_backend",
            "proxy_pass",
            "backend",
            "upstream",
        ]),
        Key::new("redirect", Kind::Table(&REDIRECT), "Answer with a redirect.").http().also(&["return"]),
        Key::new("respond", Kind::Table(&RESPOND), "Answer from here.").http().also(&["response"]),
        Key::new(
            "add_request_header",
            Kind::Map(&shape::REQUEST_HEADER, &shape::SET_VALUE),
            "Fields set on the request towards the backend, replacing any of the same name. A `$` is written `$$`.",
        ).http()
        .default("none")
        .also(&["proxy_set_header", "set_header", "request_header"]),
        Key::new(
            "add_response_header",
            Kind::Map(&shape::RESPONSE_HEADER, &shape::SET_VALUE),
            "Fields set on the response towards the client, also on Weir's own. A `$` is written `$$`.",
        ).http()
        .default("none")
        .also(&["add_header", "response_header"]),
        Key::new("rewrite", Kind::Table(&REWRITE), "Change the path towards the backend.").http(),
        Key::new("body_limit", Kind::Size(&at::BODY_LIMIT), "Largest request body; beyond it 413.").http()
            .default("no limit")
            .also(&["client_max_body_size", "max_body_size"]),
        Key::new("compress", Kind::TableOrTrue(&COMPRESS), "Compresses responses for clients that ask for it; `false` where the listener does and this route shall not.")
            .http()
            .default("as the listener")
            .also(&["compression", "gzip", "brotli", "encode"]),
        screen::SQLI.default("as the listener"),
        screen::SQLI_BODY.default("as the listener"),
        Key::new("cache", Kind::Table(&ROUTE_CACHE), "Keeps responses and answers from memory; only with `pool`.")
            .http()
            .default("off")
            .also(&["proxy_cache", "caching"]),
    ],
};

static REDIRECT: Table = Table {
    path: "redirect = { … }",
    doc: "Answers with a redirect.",
    keys: &[
        Key::new(
            "to",
            Kind::Text(&shape::REDIRECT_TO),
            "Target, a URI reference; may hold `$host` (without its port), `$path` and `$query` (with its `?`).",
        )
        .required()
        .also(&["location", "target", "url"]),
        Key::new("status", Kind::Choice(&[301, 302, 303, 307, 308], 308), "Status code.").also(&["code"]),
    ],
};

static RESPOND: Table = Table {
    path: "respond = { … }",
    doc: "Answers without any backend.",
    keys: &[
        Key::new("status", Kind::Count(&at::RESPOND_STATUS), "Status code.").also(&["code"]),
        Key::new("body", Kind::Text(&shape::TEXT), "Sent as it is.").default("empty"),
        Key::new("content_type", Kind::Text(&shape::CONTENT_TYPE), "Media type of the body.")
            .default("\"text/plain; charset=utf-8\""),
    ],
};

static REWRITE: Table = Table {
    path: "rewrite = { … }",
    doc: "Changes the path towards the backend. Only where every `path` of the route ends in `*`.",
    keys: &[
        Key::new("prefix", Kind::Text(&shape::PREFIX), "Replaces what the `*` prefix matched.").required()
    ],
};

/// `[pool.NAME]`
pub static POOL: Table =
    Table {
        path: "[pool.NAME]",
        doc: "A set of backends and how to choose among them.",
        keys: &[
            Key::new(
                "backends",
                Kind::Many(&Kind::TableOrText(&BACKEND, "address")),
                "`\"host:port\"`, or a table where more than the address is said.",
            )
            .required()
            .also(&["servers", "server", "backend", "members", "targets"]),
            Key::new("balance", Kind::Algorithm, "How a backend is chosen.")
                .default("\"round-robin\"")
                .also(&["algorithm", "lb", "method", "policy"]),
            Key::new("hash", Kind::Table(&HASH), "What `hash` and `maglev` hash."),
            Key::new(
                "protocol",
                Kind::Word(
                    &[
                        word("h1", "HTTP/1.1"),
                        word(
                            "h2",
                            "HTTP/2: many clients share few connections; without `tls` by prior knowledge",
                        ),
                    ],
                    Some("h1"),
                ),
                "HTTP version towards the backends.",
            )
            .http()
            .also(&["http", "proto", "proxy_http_version"]),
            Key::new("tls", Kind::TableOrTrue(&POOL_TLS), "TLS towards the backends.")
                .default("off")
                .stream()
                .also(&["ssl", "https"]),
            Key::new(
                "send_proxy",
                Kind::Word(&[word("v1", "text"), word("v2", "binary")], None),
                "PROXY protocol header towards the backends.",
            )
            .default("none")
            .stream()
            .also(&["proxy_protocol"]),
            Key::new("retry", Kind::Table(&RETRY), "When a failed attempt is tried again.")
                .stream()
                .also(&["retries"]),
            Key::new(
                "queue",
                Kind::Table(&QUEUE),
                "Waiting room when every backend is at its `max_connections`.",
            )
            .stream(),
            Key::new("sticky", Kind::Table(&STICKY), "Keeps a client on its backend.")
                .default("off")
                .http()
                .also(&["cookie", "session"]),
            Key::new(
                "slow_start",
                Kind::Duration(&at::SLOW_START),
                "A backend that came back gets its share gradually over this time.",
            )
            .default("off")
            .also(&["slowstart"]),
            Key::new("keep_alive", Kind::Table(&KEEP_ALIVE), "Idle connections kept to backends.")
                .http()
                .also(&["keepalive"]),
            Key::new(
                "health",
                Kind::TableOrOff(&HEALTH),
                "How it is known which backends are up; `\"off\"` neither probes nor ejects.",
            )
            .also(&["check", "health_check", "healthcheck"]),
            Key::new("mysql", Kind::Unread("a table"), "Members and roles of a MySQL cluster.")
                .not_built(&[]),
        ],
    };

static BACKEND: Table = Table {
    path: "backends = [{ … }]",
    doc: "One address of a pool.",
    keys: &[
        Key::new(
            "address",
            Kind::Text(&shape::BACKEND_ADDRESS),
            "Host name, IPv4 or bracketed IPv6, and port; the backend's name everywhere.",
        )
        .required()
        .also(&["host", "server", "url"]),
        Key::new("weight", Kind::Count(&at::WEIGHT), "Share of the load."),
        Key::new(
            "max_connections",
            Kind::Count(&at::BACKEND_MAX_CONNECTIONS),
            "Most requests (HTTP) or connections (TCP) in flight, over all workers.",
        )
        .default("no limit")
        .also(&["maxconn", "max_conns"]),
        Key::new("backup", Kind::Bool(false), "Used only when no other backend is up."),
    ],
};

static HASH: Table = Table {
    path: "hash = { … }",
    doc: "Means something where `balance` is `hash` or `maglev`.",
    keys: &[
        Key::new(
            "key",
            Kind::Text(&shape::HASH_KEY),
            "`uri` (path and query), `path`, `header:NAME`, `cookie:NAME` or `client_ip`.",
        )
        .default("\"uri\" where only HTTP listeners use the pool, else \"client_ip\""),
        Key::new(
            "bounded",
            Kind::Factor(&at::BOUNDED),
            "No backend gets more than this factor of the mean load.",
        )
        .default("off"),
    ],
};

static RETRY: Table = Table {
    path: "retry = { … }",
    doc: "A failed attempt is tried again at another backend where there is one.",
    keys: &[
        Key::new(
            "attempts",
            Kind::Count(&at::RETRY_ATTEMPTS),
            "Further tries after the first; 0 switches retries off.",
        ),
        Key::new(
            "on",
            Kind::OneOrMany(&Kind::Word(
                &[
                    word("connect", "no connection came about: nothing was sent"),
                    word("empty", "the backend closed without one byte of response"),
                    word("timeout", "the backend did not answer in time"),
                    word("502", "the backend answered 502"),
                    word("503", "the backend answered 503"),
                    word("504", "the backend answered 504"),
                ],
                None,
            )),
            "Which failures are tried again.",
        )
        .default("[\"connect\", \"empty\"]"),
        Key::new(
            "non_idempotent",
            Kind::Bool(false),
            "Whether POST and the like may be tried again after they reached a backend.",
        ),
    ],
};

static QUEUE: Table = Table {
    path: "queue = { … }",
    doc: "Waiting room when every backend is at its `max_connections`.",
    keys: &[
        Key::new("max", Kind::Count(&at::QUEUE_MAX), "Most waiting at once, over all workers.")
            .also(&["size", "length"]),
        Key::new("timeout", Kind::Duration(&at::QUEUE_TIMEOUT), "Longest wait; beyond it 503."),
    ],
};

static STICKY: Table = Table {
    path: "sticky = { … }",
    doc: "Keeps a client on its backend as long as that is up.",
    keys: &[Key::new("cookie", Kind::Text(&shape::COOKIE_NAME), "Name of the cookie.")
        .required()
        .also(&["name"])],
};

static KEEP_ALIVE: Table = Table {
    path: "keep_alive = { … }",
    doc: "Idle connections kept to backends for the next request.",
    keys: &[
        Key::new("max", Kind::Count(&at::KEEP_ALIVE_MAX), "Per worker and backend; 0 switches reuse off."),
        Key::new("idle", Kind::Duration(&at::KEEP_ALIVE_IDLE), "How long an idle connection is kept.")
            .also(&["timeout"]),
    ],
};

static HEALTH: Table = Table {
    path: "[pool.NAME.health]",
    doc: "How it is known which backends are up.",
    keys: &[
        Key::new(
            "check",
            Kind::Word(
                &[
                    word("http", "`GET path`, and look at the status"),
                    word("tcp", "connect"),
                    not_built("mysql", "ask the member"),
                    word("off", "never probe: every backend counts as up"),
                ],
                None,
            ),
            "What a probe does.",
        )
        .default(
            "\"http\" where only HTTP listeners use the pool, \"off\" where only udp ones do, else \"tcp\"",
        )
        .also(&["type", "protocol", "mode"]),
        Key::new("path", Kind::Text(&shape::PROBE_PATH), "Path (and query) of an HTTP probe.")
            .default("\"/\"")
            .also(&["uri", "url"]),
        Key::new("host", Kind::Text(&shape::HOST_FIELD), "Host field of an HTTP probe.")
            .default("the backend's address"),
        Key::new(
            "expect_status",
            Kind::OneOrMany(&Kind::Text(&shape::STATUS_RANGE)),
            "Statuses of a good HTTP probe, as inclusive ranges.",
        )
        .default("[\"200-399\"]")
        .also(&["status", "expect"]),
        Key::new("interval", Kind::Duration(&at::INTERVAL), "Between probes while nothing changes.")
            .also(&["inter"]),
        Key::new(
            "fast_interval",
            Kind::Duration(&at::FAST_INTERVAL),
            "Between probes while the state is changing.",
        )
        .also(&["fastinter"]),
        Key::new("timeout", Kind::Duration(&at::PROBE_TIMEOUT), "For one probe."),
        Key::new("rise", Kind::Count(&at::RISE), "Good probes in a row that bring a backend up."),
        Key::new("fall", Kind::Count(&at::FALL), "Bad probes in a row that take it down."),
        Key::new("passive", Kind::TableOrOff(&PASSIVE), "Ejection by the outcome of real traffic."),
        Key::new(
            "last_resort",
            Kind::Word(
                &[
                    word("late", "those that accepted the last probe and did not answer it in time"),
                    word("all", "every one, whatever its probes say"),
                    word("off", "none: 503 at once"),
                ],
                Some("late"),
            ),
            "Which backends are tried, a few exchanges at a time, when probes say that all are down.",
        )
        .also(&["panic", "panic_threshold"]),
    ],
};

static PASSIVE: Table = Table {
    path: "passive = { … }",
    doc: "Ejects a backend for a while when real traffic fails on it. On unless it is `\"off\"`.",
    keys: &[
        Key::new("errors", Kind::Count(&at::PASSIVE_ERRORS), "Failures that eject.").also(&["max_fails"]),
        Key::new("within", Kind::Duration(&at::PASSIVE_WITHIN), "Within this time.").also(&["window"]),
        Key::new("eject", Kind::Duration(&at::PASSIVE_EJECT), "The first ejection lasts this long.")
            .also(&["fail_timeout"]),
        Key::new(
            "max_ejected",
            Kind::Factor(&at::MAX_EJECTED),
            "Never more than this share of the pool is ejected.",
        ),
    ],
};
