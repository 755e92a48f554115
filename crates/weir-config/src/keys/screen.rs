//! What a listener or a route asks of its requests. The keys are the same on both.

use super::tables::word;
use super::{Key, Kind, Table};
use crate::limits as at;
use crate::values as shape;

static RATE_KIND: Kind = Kind::Table(&RATE);
static CONCURRENCY_KIND: Kind = Kind::Table(&CONCURRENCY);
static NETWORK: Kind = Kind::Text(&shape::NETWORK);
static METHOD: Kind = Kind::Text(&shape::METHOD_PATTERN);
static PATH: Kind = Kind::Text(&shape::PATH_PATTERN);
static USER_AGENT: Kind = Kind::Text(&shape::USER_AGENT_PATTERN);

pub(super) const RATE_LIMIT: Key = Key::new(
    "rate_limit",
    Kind::OneOrMany(&RATE_KIND),
    "Most requests in a time, over all workers; beyond it 429 with `retry-after`. Of several all hold.",
)
.default("no limit")
.http()
.also(&["limit_req", "rate", "rate_limits", "ratelimit"]);

pub(super) const CONCURRENCY_LIMIT: Key = Key::new(
    "concurrency_limit",
    Kind::OneOrMany(&CONCURRENCY_KIND),
    "Most requests under way at once, over all workers; beyond it 429. Of several all hold.",
)
.default("no limit")
.http()
.also(&["limit_conn", "in_flight", "inflight", "max_requests", "concurrency"]);

pub(super) const SQLI: Key = Key::new(
    "sqli",
    Kind::Word(
        &[
            word("off", "no request is looked at"),
            word("report", "what looks like an injection is logged and counted, and passes"),
            word("block", "what looks like an injection gets 403, and so does a body that cannot be read as its type says"),
        ],
        Some("off"),
    ),
    "Detection of SQL injection in path, query, headers, cookies, forms and JSON.",
)
.http();

pub(super) const SQLI_BODY: Key = Key::new(
    "sqli_body",
    Kind::Size(&at::SQLI_BODY),
    "With `sqli`: how much of a body (a form, JSON, text) is held back and looked at before it is forwarded; what follows passes unread, and is counted. \
     `\"0B\"` looks at no body.",
)
.http();

pub(super) const DENY_ADDRESS: Key = Key::new(
    "deny_address",
    Kind::OneOrMany(&NETWORK),
    "Clients that get 403. Where an address is in both lists, the entry with the longer prefix decides.",
)
.default("nobody")
.http()
.also(&["deny", "deny_ip", "deny_src", "blocklist", "blacklist"]);

pub(super) const ALLOW_ADDRESS: Key =
    Key::new("allow_address", Kind::OneOrMany(&NETWORK), "Where it is there, all others get 403.")
        .default("everybody")
        .http()
        .also(&["allow", "allow_ip", "allow_src", "whitelist", "allowlist"]);

pub(super) const DENY_METHOD: Key =
    Key::new("deny_method", Kind::OneOrMany(&METHOD), "Methods that get 403.")
        .default("none")
        .http()
        .also(&["deny_methods"]);

pub(super) const ALLOW_METHOD: Key =
    Key::new("allow_method", Kind::OneOrMany(&METHOD), "Where it is there, all other methods get 403.")
        .default("all")
        .http()
        .also(&["allow_methods", "limit_except"]);

pub(super) const DENY_PATH: Key =
    Key::new("deny_path", Kind::OneOrMany(&PATH), "Normalised paths that get 403.")
        .default("none")
        .http()
        .also(&["deny_paths"]);

pub(super) const ALLOW_PATH: Key =
    Key::new("allow_path", Kind::OneOrMany(&PATH), "Where it is there, all other paths get 403.")
        .default("all")
        .http()
        .also(&["allow_paths"]);

pub(super) const DENY_USER_AGENT: Key = Key::new(
    "deny_user_agent",
    Kind::OneOrMany(&USER_AGENT),
    "User agents that get 403, compared without regard to case; a request without one has the empty one, `\"\"`.",
)
.default("none")
.http()
.also(&["deny_user_agents", "disallowed_user_agents", "bad_bots"]);

pub(super) const ALLOW_USER_AGENT: Key = Key::new(
    "allow_user_agent",
    Kind::OneOrMany(&USER_AGENT),
    "Where it is there, all other user agents get 403.",
)
.default("all")
.http()
.also(&["allow_user_agents"]);

const KEY: Key = Key::new(
    "key",
    Kind::Text(&shape::LIMIT_KEY),
    "What is counted: `client_ip`, `route` or `listener` (all of it together), `header:NAME` or `cookie:NAME`; a request without that header or cookie \
     is counted by its client.",
)
.default("\"client_ip\"")
.also(&["by", "zone", "per"]);

const AT: Key = Key::new(
    "at",
    Kind::Word(
        &[
            word("edge", "every request"),
            word(
                "origin",
                "only those that go to a backend, and not those that are answered from the config or from memory",
            ),
        ],
        Some("edge"),
    ),
    "Which requests are counted.",
);

const DRY_RUN: Key = Key::new(
    "dry_run",
    Kind::Bool(false),
    "Refuses nothing; what it would refuse is counted in `weir_would_reject_total` and logged.",
)
.also(&["limit_req_dry_run", "limit_conn_dry_run", "report"]);

const STATUS: Key = Key::new("status", Kind::Choice(&[429, 503], 429), "Status of the refusal.")
    .also(&["code", "limit_req_status"]);

const IPV4_PREFIX: Key = Key::new(
    "ipv4_prefix",
    Kind::Count(&at::IPV4_PREFIX),
    "Bits of an IPv4 client's address that are told apart, for `key = \"client_ip\"`.",
);

const IPV6_PREFIX: Key = Key::new(
    "ipv6_prefix",
    Kind::Count(&at::IPV6_PREFIX),
    "Bits of an IPv6 client's address that are told apart, for `key = \"client_ip\"`.",
);

/// `rate_limit = { … }`
pub(super) static RATE: Table = Table {
    path: "rate_limit = { … }",
    doc: "A token bucket for each key: so many requests at once, and then as many as come in at the rate. Unchanged limits go on over a reload.",
    keys: &[
        Key::new(
            "rate",
            Kind::Text(&shape::REQUEST_RATE),
            "In the long run, such as `\"100/s\"`, `\"30/m\"`, `\"1000/h\"`, `\"5/10s\"`.",
        )
        .required()
        .also(&["average", "limit"]),
        Key::new("burst", Kind::Count(&at::RATE_BURST), "At once, after a pause.")
            .default("what comes in a second at the rate, at least 1")
            .also(&["capacity", "size"]),
        KEY,
        AT,
        DRY_RUN,
        STATUS,
        Key::new("keys", Kind::Count(&at::RATE_KEYS), "Keys that are told apart at once.")
            .also(&["max_keys"]),
        IPV4_PREFIX,
        IPV6_PREFIX,
    ],
};

/// `concurrency_limit = { … }`
pub(super) static CONCURRENCY: Table = Table {
    path: "concurrency_limit = { … }",
    doc: "Requests of one key under way at once, from their head to the end of their answer; tunnels (WebSocket) to their end.",
    keys: &[
        Key::new("max", Kind::Count(&at::CONCURRENCY), "At once.").required().also(&["limit", "amount"]),
        KEY,
        AT,
        DRY_RUN,
        STATUS,
        IPV4_PREFIX,
        IPV6_PREFIX,
    ],
};
