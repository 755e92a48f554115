//! The checks that a listener or a route makes on its requests: limits and lists. Both have the same keys.

use std::time::Duration;

use ipnet::IpNet;
use weir_screen::{
    AdaptiveLimit, AnswerStatus, Case, Checkpoint, ConcurrencyLimit, Key as CountedBy, Pattern, Rate,
    RateLimit, Settings,
};
use weir_template::{Piece, Template, Variable};

use crate::adaptive;
use crate::fields::{Fields, Value};
use crate::keys::{
    Each, Key, Kind, Limit, Planes, Row, Shape, Table, count, flag, list, table_or_true, text, text_or, word,
};
use crate::keys::{Word, seconds};
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, quote};
use crate::setting::{Part, Section, Setting as _, one};
use crate::suggest::nearest;
use crate::units::{Refused, refuse, show_duration};
use crate::values::address::NETWORK;
use crate::values::http::{METHODS, cookie_name, field_name};
use crate::values::path::plain_path;
use crate::values::status::STATUS as ANSWER_STATUS;
use crate::values::template::{key_template, of_anybody};

/// Most rate limits, and most concurrency limits, of one route or listener (count).
const LIMIT_COUNT: usize = 16;
/// Longest time to fill a bucket.
const BURST_FILL: Duration = seconds(7 * 86_400);

/// The kernel plane has no buckets.
const NOT_COUNTED: Planes = Planes::Proxy("nobody counts the flows of a client there");

impl Part for Settings {
    const ROWS: &'static [Row] = &[
        Row::Key(list(Each::Table(RateLimit::TABLE)).default("no limit").on(NOT_COUNTED).also(&["limit_req", "rate", "rate_limits", "ratelimit"]).named(
            "rate_limit",
            "Most requests in a time, over all workers; beyond it 429 with `retry-after`. Of tcp and mysql listeners most new connections, which are closed beyond it; of udp \
             listeners most new flows, whose datagrams are dropped. Of several all hold.",
        )),
        Row::Key(list(Each::Table(ConcurrencyLimit::TABLE)).default("no limit").http().also(&["limit_conn", "in_flight", "inflight", "max_requests", "concurrency"]).named(
            "concurrency_limit",
            "Most requests under way at once, over all workers; beyond it 429. Of several all hold.",
        )),
        Row::Key(list(Each::Text(&NETWORK)).default("nobody").may_be_empty().also(&["deny", "deny_ip", "deny_src", "blocklist", "blacklist"]).named(
            "deny_address",
            "Clients that get 403; of tcp and udp listeners those whose connections are closed, and whose datagrams and packets are dropped. Where an address is in both \
             lists, the entry with the longer prefix decides.",
        )),
        Row::Key(list(Each::Text(&NETWORK)).default("everybody").also(&["allow", "allow_ip", "allow_src", "whitelist", "allowlist"]).named(
            "allow_address",
            "Where it is there, all others get 403, or what `deny_address` says.",
        )),
        Row::Key(list(Each::Text(&METHOD_PATTERN)).default("none").http().also(&["deny_methods"]).named(
            "deny_method",
            "Methods that get 403.",
        )),
        Row::Key(list(Each::Text(&METHOD_PATTERN)).default("all").http().also(&["allow_methods", "limit_except"]).named(
            "allow_method",
            "Where it is there, all other methods get 403.",
        )),
        Row::Key(list(Each::Text(&PATH_PATTERN)).default("none").http().also(&["deny_paths"]).named(
            "deny_path",
            "Normalised paths that get 403.",
        )),
        Row::Key(list(Each::Text(&PATH_PATTERN)).default("all").http().also(&["allow_paths"]).named(
            "allow_path",
            "Where it is there, all other paths get 403.",
        )),
        Row::Key(list(Each::Text(&USER_AGENT_PATTERN)).default("none").http().also(&["deny_user_agents", "disallowed_user_agents", "bad_bots"]).named(
            "deny_user_agent",
            "User agents that get 403, compared without regard to case; a request without one has the empty one, `\"\"`.",
        )),
        Row::Key(list(Each::Text(&USER_AGENT_PATTERN)).default("all").http().also(&["allow_user_agents"]).named(
            "allow_user_agent",
            "Where it is there, all other user agents get 403.",
        )),
    ];

    fn of(fields: &Fields) -> Settings {
        let patterns = |name: &str, case| {
            let texts = Vec::<String>::read(fields.value(name));
            texts.iter().filter_map(|text| Pattern::parse(text, case).ok()).collect()
        };
        Settings {
            rate_limit: Vec::read(fields.value("rate_limit")),
            concurrency_limit: Vec::read(fields.value("concurrency_limit")),
            deny_address: Vec::read(fields.value("deny_address")),
            allow_address: Vec::read(fields.value("allow_address")),
            deny_method: patterns("deny_method", Case::Sensitive),
            allow_method: patterns("allow_method", Case::Sensitive),
            deny_path: patterns("deny_path", Case::Sensitive),
            allow_path: patterns("allow_path", Case::Sensitive),
            deny_user_agent: patterns("deny_user_agent", Case::Ignored),
            allow_user_agent: patterns("allow_user_agent", Case::Ignored),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("rate_limit", self.rate_limit.write());
        fields.put("concurrency_limit", self.concurrency_limit.write());
        for (name, written) in self.lists() {
            fields.put(name, written.write());
        }
    }
}

/// The checks of a listener that does not speak HTTP on its connections and datagrams. Its keys are a subset
/// of those of [`Settings`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientScreen {
    /// `deny_address`
    pub deny: Vec<IpNet>,
    /// `allow_address`
    pub allow: Vec<IpNet>,
    /// `rate_limit`, for new connections or flows.
    pub rate_limit: Vec<RateLimit>,
}

impl ClientScreen {
    /// The same as settings with checks of clients only.
    pub fn settings(&self) -> Settings {
        let (deny_address, allow_address) = (self.deny.clone(), self.allow.clone());
        let rate_limit = self.rate_limit.clone();
        Settings { deny_address, allow_address, rate_limit, ..Settings::default() }
    }
}

impl Part for ClientScreen {
    const ROWS: &'static [Row] = &[];

    fn of(fields: &Fields) -> ClientScreen {
        if spoken(fields).is_none_or(|protocol| protocol == Protocol::Http) {
            return ClientScreen::default();
        }
        let read = |name| Vec::read(fields.value(name));
        let rate_limit = Vec::read(fields.value("rate_limit"));
        ClientScreen { deny: read("deny_address"), allow: read("allow_address"), rate_limit }
    }

    fn put(&self, fields: &mut Fields) {
        if !self.rate_limit.is_empty() {
            fields.put("rate_limit", self.rate_limit.write());
        }
        for (name, networks) in [("deny_address", &self.deny), ("allow_address", &self.allow)] {
            if !networks.is_empty() {
                fields.put(name, networks.write());
            }
        }
    }
}

const DRY_RUN: Key = flag(false).also(&["limit_req_dry_run", "limit_conn_dry_run", "report"]).named(
    "dry_run",
    "Refuses nothing; what it would refuse is counted in `weir_would_reject_total` and logged.",
);

const SHARE: Key = flag(true).also(&["shared", "peers", "sync"]).named(
    "share",
    "Whether the Weirs of `[peers]` count it together, so that it holds over all of them. Without `[peers]` each counts alone.",
);

const STATUS: Key = Key::new(Kind::Choice(&[429, 503], 429))
    .also(&["code", "limit_req_status"])
    .named("status", "Status of the refusal.");

const AT: Key = word(
    &[
        Word::new("edge", "every request"),
        Word::new(
            "origin",
            "only those that go to a backend, and not those that are answered from the config or from memory",
        ),
    ],
    "edge",
)
.named("at", "Which requests are counted.");

one!(
    Checkpoint,
    Value::Word(word) => Some(if *word == "origin" { Checkpoint::Origin } else { Checkpoint::Edge }),
    |it| Value::Word(it.word()),
    Checkpoint::Edge
);

/// What is counted: one key and, for clients, how many bits of their addresses.
impl Part for CountedBy {
    const ROWS: &'static [Row] = &[
        Row::Key(text_or(&LIMIT_KEY, "client_ip").also(&["by", "zone", "per"]).named(
            "key",
            "What is counted: `client_ip`, `route` or `listener` (all of it together), `header:NAME`, `cookie:NAME`, or a text with variables such as \
             `\"$client_ip $path\"`; a request that has nothing of it is counted by its client.",
        )),
        Row::Key(count(Limit::new(32, 8, 32, "fewer bits count half the Internet as one client")).named(
            "ipv4_prefix",
            "Bits of an IPv4 client's address that are told apart, for `key = \"client_ip\"`.",
        )),
        Row::Key(
            count(Limit::new(64, 16, 128, "one customer has at least a /64, and can come from each of its addresses"))
                .named(
                    "ipv6_prefix",
                    "Bits of an IPv6 client's address that are told apart, for `key = \"client_ip\"`.",
                ),
        ),
    ];

    fn of(fields: &Fields) -> CountedBy {
        match limit_key(fields.text("key").unwrap_or_default()) {
            Ok(CountedBy::Value { template, .. }) => {
                let (v4_bits, v6_bits) = prefixes(fields);
                CountedBy::Value { template, v4_bits, v6_bits }
            }
            Ok(key) if !matches!(key, CountedBy::ClientIp { .. }) => key,
            _ => {
                let (v4_bits, v6_bits) = prefixes(fields);
                CountedBy::ClientIp { v4_bits, v6_bits }
            }
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("key", Some(Value::Text(self.to_string())));
        if let CountedBy::ClientIp { v4_bits, v6_bits } | CountedBy::Value { v4_bits, v6_bits, .. } = self {
            fields.put("ipv4_prefix", v4_bits.write());
            fields.put("ipv6_prefix", v6_bits.write());
        }
    }
}

static RATE_LIMIT: Table = Table {
    path: "rate_limit = { … }",
    doc: "A token bucket for each key: so many requests at once, and then as many as come in at the rate. Unchanged limits go on over a reload.",
    rows: RateLimit::ROWS,
};

impl Section for RateLimit {
    const TABLE: &'static Table = &RATE_LIMIT;
}

impl Part for RateLimit {
    const ROWS: &'static [Row] =
        &[
            Row::Key(text(&REQUEST_RATE).required().also(&["average", "limit"]).named(
                "rate",
                "In the long run, such as `\"100/s\"`, `\"30/m\"`, `\"1000/h\"`, `\"5/10s\"`.",
            )),
            Row::Key(
                count(Limit::optional(1, 10_000_000, "a bucket that holds nothing lets nobody pass"))
                    .default("what comes in a second at the rate, at least 1; with `statuses` the whole number of the rate")
                    .also(&["capacity", "size"])
                    .named("burst", "At once, after a pause."),
            ),
            Row::Key(
                list(Each::Text(&ANSWER_STATUS))
                    .default("requests are counted")
                    .http()
                    .also(&["status_codes", "answers", "responses", "count_status"])
                    .named(
                        "statuses",
                        "Counts answers with these statuses and classes (`\"4xx\"`) that go to clients, and not requests: who has no token left is refused, and a token is \
                         taken when such an answer is given, whoever gives it. Refusals by limits are not counted.",
                    ),
            ),
            Row::Part(CountedBy::ROWS),
            Row::Key(AT),
            Row::Key(DRY_RUN),
            Row::Key(STATUS),
            Row::Key(
                count(Limit::new(
                    250_000,
                    100,
                    10_000_000,
                    "each takes 32 bytes while it owes; those beyond share buckets",
                ))
                .also(&["max_keys"])
                .named("keys", "Keys that are told apart at once."),
            ),
            Row::Key(SHARE),
        ];

    fn of(fields: &Fields) -> RateLimit {
        let (rate, key) = (rate(fields), CountedBy::of(fields));
        // With a single bucket, the number of buckets has no meaning.
        let keys = if key.is_whole() {
            fields.unsaid("keys")
        } else {
            fields.holds("keys").map(|it| it.into_owned())
        };
        let statuses: Vec<AnswerStatus> = Vec::read(fields.value("statuses"));
        // Answers of the counted kind seldom come in bursts, so a second's worth of them is no useful
        // default.
        let burst = if statuses.is_empty() { rate.in_a_second() } else { rate.count };
        RateLimit {
            rate,
            burst: Option::read(fields.value("burst")).unwrap_or(burst),
            statuses,
            key,
            at: Checkpoint::read(fields.value("at")),
            dry_run: fields.flag("dry_run"),
            status: u16::read(fields.holds("status").as_deref()),
            keys: u32::read(keys.as_ref()),
            share: fields.flag("share"),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("rate", Some(Value::Text(self.rate.to_string())));
        fields.put("burst", self.burst.write());
        fields.put("statuses", self.statuses.write());
        self.key.put(fields);
        fields.put("at", self.at.write());
        fields.put("dry_run", self.dry_run.write());
        fields.put("status", self.status.write());
        fields.put("keys", self.keys.write());
        fields.put("share", self.share.write());
    }
}

static CONCURRENCY_LIMIT: Table = Table {
    path: "concurrency_limit = { … }",
    doc: "Requests of one key under way at once, from their head to the end of their answer; tunnels (WebSocket) to their end.",
    rows: ConcurrencyLimit::ROWS,
};

impl Section for ConcurrencyLimit {
    const TABLE: &'static Table = &CONCURRENCY_LIMIT;
}

impl Part for ConcurrencyLimit {
    const ROWS: &'static [Row] = &[
        Row::Key(
            count(Limit::optional(1, 10_000_000, "use a deny list to let nobody pass"))
                .required()
                .also(&["limit", "amount"])
                .named("max", "At once."),
        ),
        Row::Key(table_or_true(AdaptiveLimit::TABLE).default("off").also(&["gradient", "auto", "dynamic"]).named(
            "adaptive",
            "Finds the limit by itself, up to `max`, from how long answers take. With `key = \"route\"` or `\"listener\"`.",
        )),
        Row::Part(CountedBy::ROWS),
        Row::Key(AT),
        Row::Key(DRY_RUN),
        Row::Key(STATUS),
    ];

    fn of(fields: &Fields) -> ConcurrencyLimit {
        ConcurrencyLimit {
            max: u32::read(fields.value("max")).max(1),
            adaptive: Option::read(fields.value("adaptive")),
            key: CountedBy::of(fields),
            at: Checkpoint::read(fields.value("at")),
            dry_run: fields.flag("dry_run"),
            status: u16::read(fields.holds("status").as_deref()),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("max", self.max.write());
        fields.put("adaptive", self.adaptive.write());
        self.key.put(fields);
        fields.put("at", self.at.write());
        fields.put("dry_run", self.dry_run.write());
        fields.put("status", self.status.write());
    }
}

static REQUEST_RATE: Shape = Shape::new("a rate", "100/s", |text| {
    let message = || format!("{} is not a rate", quote(text));
    Rate::parse(text).map(|rate| rate.to_string()).map_err(|hint| Refused { message: message(), hint })
});
static LIMIT_KEY: Shape =
    Shape::new("what to count by", "client_ip", |text| limit_key(text).map(|key| key.to_string()));
static METHOD_PATTERN: Shape = Shape::new("a method or a pattern", "DELETE", method);
static PATH_PATTERN: Shape = Shape::new("a path or a pattern", "/admin/*", path);
static USER_AGENT_PATTERN: Shape =
    Shape::new("a user agent or a pattern", "curl/*", |text| pattern(text, Case::Ignored));

/// The configured rate, or one a second if it could not be read.
fn rate(fields: &Fields) -> Rate {
    let said = fields.text("rate").and_then(|text| Rate::parse(text).ok());
    said.unwrap_or(Rate { count: 1, per: seconds(1) })
}

/// Significant bits of IPv4 and of IPv6 addresses.
fn prefixes(fields: &Fields) -> (u8, u8) {
    let bits = |name| u8::read(fields.holds(name).as_deref());
    (bits("ipv4_prefix"), bits("ipv6_prefix"))
}

/// A template that equals another kind of key becomes that kind.
fn of_template(template: Template) -> CountedBy {
    match template.pieces() {
        [Piece::Value(Variable::ClientIp)] => CountedBy::CLIENT,
        [Piece::Value(Variable::Header(name))] => CountedBy::Header(name.clone()),
        [Piece::Value(Variable::Cookie(name))] => CountedBy::Cookie(name.clone()),
        _ => CountedBy::Value { template, v4_bits: 32, v6_bits: 64 },
    }
}

fn limit_key(text: &str) -> Result<CountedBy, Refused> {
    const EXPECTED: &str = "expected \"client_ip\", \"route\", \"listener\", \"header:NAME\", \"cookie:NAME\" or variables such as \"$host\"";
    Ok(match (text, text.split_once(':')) {
        ("client_ip", _) => CountedBy::CLIENT,
        ("route", _) => CountedBy::Route,
        ("listener", _) => CountedBy::Listener,
        (text, _) if text.contains('$') => {
            let template = key_template(text, "what a limit counts by")?;
            of_anybody(&template, "what a limit counts by")?;
            if template.variables().any(|it| matches!(it, Variable::ClientPort)) {
                let hint = "a client gets another with each connection, and would never come to the limit";
                return refuse("`$client_port` cannot stand in what a limit counts by", hint);
            }
            of_template(template)
        }
        (_, Some(("header", name))) => CountedBy::Header(field_name(name)?.into()),
        (_, Some(("cookie", name))) => CountedBy::Cookie(cookie_name(name)?.into()),
        _ => {
            let hint = match (text, nearest(text, ["client_ip", "route", "listener"])) {
                ("header" | "cookie", _) => format!("say which one, such as \"{text}:session\""),
                ("source" | "src" | "ip" | "remote_addr" | "binary_remote_addr" | "client", _) => {
                    "did you mean \"client_ip\"?".to_owned()
                }
                ("server" | "all" | "global", _) => "did you mean \"route\"?".to_owned(),
                (_, Some(word)) => format!("did you mean \"{word}\"?"),
                _ => EXPECTED.to_owned(),
            };
            return refuse(format!("{} is not something to count by", quote(text)), hint);
        }
    })
}

fn pattern(text: &str, case: Case) -> Result<String, Refused> {
    let message = || format!("{} is not a pattern", quote(text));
    Pattern::check(text, case).map_err(|hint| Refused { message: message(), hint })?;
    Ok(text.to_owned())
}

fn method(text: &str) -> Result<String, Refused> {
    let upper = text.to_ascii_uppercase();
    if upper != text && METHODS.contains(&upper.trim_start_matches('!')) {
        return refuse(
            format!("{} is not a method", quote(text)),
            format!("did you mean \"{upper}\"? Methods are case-sensitive"),
        );
    }
    pattern(text, Case::Sensitive)
}

fn path(text: &str) -> Result<String, Refused> {
    let bare = text.strip_prefix('!').unwrap_or(text);
    // If the beginning is given, it must be one that a normalised path can have.
    if !bare.starts_with(['~', '*']) {
        let whole = bare.strip_suffix('*').unwrap_or(bare);
        if !whole.contains('*') {
            plain_path(whole, bare)
                .map_err(|hint| Refused { message: format!("{} is not a path", quote(text)), hint })?;
        }
    }
    pattern(text, Case::Sensitive)
}

/// Reports mistakes in the limits of a listener.
pub(crate) fn check_listener(listener: &Fields, findings: &mut Findings<'_>) {
    limits_of(listener, ["route", "listener"], findings);
}

/// Reports mistakes in the limits of connections and flows, which have no head to count by.
pub(crate) fn check_connections(listener: &Fields, findings: &mut Findings<'_>) {
    limits_of(listener, ["route", "listener"], findings);
    for (_, limit) in listener.tables("rate_limit") {
        let key = limit.text("key").map(limit_key);
        if let Some(Ok(CountedBy::Header(_) | CountedBy::Cookie(_) | CountedBy::Value { .. })) = key {
            let message = "a limit of connections cannot count by what stands in requests";
            findings.error(limit.at("key"), message, "expected \"client_ip\" or \"listener\"");
        }
        for name in ["at", "status"] {
            if let Some(entry) = limit.get(name) {
                let hint = "it means something to requests, and this counts connections or flows";
                findings.warning(entry.key, format!("`{name}` has no effect"), hint);
            }
        }
    }
}

/// Reports checks of a route that is chosen by server name alone.
pub(crate) fn check_name_route(route: &Fields, findings: &mut Findings<'_>) {
    for name in ["deny_address", "allow_address", "rate_limit"] {
        if let Some(entry) = route.get(name) {
            let message = format!("`{name}` means nothing in a route of a tcp listener");
            findings.error(
                entry.at,
                message,
                "write it in the listener, whose clients are known before their routes",
            );
        }
    }
}

/// Reports mistakes in the limits of a route.
pub(crate) fn check_route(route: &Fields, findings: &mut Findings<'_>) {
    limits_of(route, ["listener", "route"], findings);
    never_forwarded(route, findings);
}

/// `here` holds the words for what cannot be counted by, and for what can.
fn limits_of(fields: &Fields, here: [&str; 2], findings: &mut Findings<'_>) {
    for name in ["rate_limit", "concurrency_limit"] {
        let count = fields.list(name).len();
        if count > LIMIT_COUNT {
            let hint = format!("expected at most {LIMIT_COUNT}");
            findings.error(fields.at(name), format!("`{name}` has {count} limits"), hint);
        }
        for (_, limit) in fields.tables(name) {
            key(limit, here, findings);
        }
    }
    for (_, limit) in fields.tables("rate_limit") {
        burst(limit, findings);
        if limit.get("statuses").is_some() && limit.word("at") == "origin" {
            let hint = "leave it out: answers are counted where they go to the client, whoever gave them";
            findings.error(limit.at("at"), "a limit that counts answers is not one of the origin", hint);
        }
    }
    adaptive::check(fields, findings);
}

fn key(limit: &Fields, [wrong, right]: [&str; 2], findings: &mut Findings<'_>) {
    let Some(said) = limit.text("key") else { return };
    let Ok(key) = limit_key(said) else { return };
    if said == wrong {
        let message = format!("a limit of a {right} cannot count by {wrong}");
        findings.error(limit.at("key"), message, format!("did you mean \"{right}\"?"));
    }
    let counts_addresses = match &key {
        CountedBy::ClientIp { .. } => true,
        CountedBy::Value { template, .. } => template.variables().any(|it| *it == Variable::ClientIp),
        _ => false,
    };
    if !counts_addresses {
        for name in ["ipv4_prefix", "ipv6_prefix"] {
            if let Some(entry) = limit.get(name) {
                let hint =
                    format!("it means something to `key = \"client_ip\"`, and this counts by \"{key}\"");
                findings.warning(entry.key, format!("`{name}` has no effect"), hint);
            }
        }
    }
    if key.is_whole()
        && let Some(entry) = limit.get("keys")
    {
        let hint = format!("there is one bucket only, for \"{key}\"");
        findings.warning(entry.key, "`keys` has no effect", hint);
    }
}

fn burst(limit: &Fields, findings: &mut Findings<'_>) {
    let (Some(Value::Number(burst)), Some(_)) = (limit.value("burst"), limit.text("rate")) else { return };
    let rate = rate(limit);
    let fill = Duration::from_secs_f64(*burst as f64 * rate.per.as_secs_f64() / f64::from(rate.count));
    if fill > BURST_FILL {
        let longest = show_duration(BURST_FILL);
        let message = format!("at {rate} a burst of {burst} is whole again only after more than {longest}");
        findings.error(limit.at("burst"), message, "expected a smaller burst, or a higher rate");
    }
}

/// Reports limits at the origin on a route that forwards nothing.
fn never_forwarded(route: &Fields, findings: &mut Findings<'_>) {
    if route.get("pool").is_some() {
        return;
    }
    let Some(action) = ["redirect", "respond"].into_iter().find(|action| route.get(action).is_some()) else {
        return;
    };
    for name in ["rate_limit", "concurrency_limit"] {
        for (_, limit) in route.tables(name).filter(|(_, limit)| limit.word("at") == "origin") {
            let hint = format!("nothing is forwarded: the route answers by `{action}`");
            findings.warning(limit.at("at"), format!("`{name}` has no effect at the origin"), hint);
        }
    }
}
