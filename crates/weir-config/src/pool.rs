//! `[pool.NAME]`: a set of backends and how to choose among them.

pub(crate) mod hash;
pub(crate) mod health;
mod loops;
pub(crate) mod passive;
pub(crate) mod protocol;
pub(crate) mod source;
pub(crate) mod sticky;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::Algorithm;
use weir_template::Template;

use self::hash::Hash;
use self::health::{Check, Health};
use self::protocol::PoolProtocol;
use self::source::{ONE_INTERFACE, SOURCE, Source};
use self::sticky::Sticky;
use crate::breaker::Breaker;
use crate::buffer::Buffer;
use crate::fields::{Fields, Value};
use crate::headers::{self, Headers};
use crate::hedge;
use crate::keys::{
    DAY, Each, HOUR, Key, Kind, Limit, Only, Planes, Word, count, duration, flag, list, millis, seconds,
    table as below, table_or_true, text, timer, word,
};
use crate::mysql::{self, PoolMysql};
use crate::plane::{self, Plane};
use crate::protocol::{Protocol, applies, audience};
use crate::report::{Findings, Span};
use crate::retry::{self, Retry};
use crate::setting::{Part as _, Section as _, one, table, words};
use crate::shared::TakesOver;
use crate::timeout::{self, ExchangeTimeouts};
use crate::tls::{self, PoolTls};
use crate::uses::{Use, Uses};
use crate::values::NAME;
use crate::values::address::{BACKEND_ADDRESS, backend_at, is_host_name, is_service, same_backend};
use crate::values::template::BACKEND_HOST;
use crate::values::unix::unix_name;

table! {
    /// A set of backends and how to choose among them.
    pub struct Pool(name) at "[pool.NAME]" {
        /// `"host:port"`, or a table where more than the address is said.
        backends: Vec<Backend> =
            Key::new(Kind::Many(Each::TableOrText(Backend::TABLE, "address")))
                .required()
                .also(&["servers", "server", "backend", "members", "targets"]);
        /// What it takes over.
        shared: TakesOver;
        /// How a backend is chosen.
        balance: Algorithm =
            word(ALGORITHMS, "round-robin").also(&["algorithm", "lb", "method", "policy"]);
        /// What `hash` and `maglev` hash.
        hash: Hash = below(Hash::TABLE);
        /// The pool that serves HTTP when no backend of this one can: none is up, or none takes work. Not
        /// where single requests fail, and before `last_resort` is tried.
        fallback_pool: Option<String> =
            text(&NAME).http().default("none").also(&["fallback", "backup_pool", "sorry_pool"]);
        /// HTTP version towards the backends.
        protocol: PoolProtocol =
            word(PoolProtocol::WORDS, "h1")
                .http()
                .also(&["http", "proto", "proxy_http_version", "alpn"])
                .instead(&[
                    (&["http3", "http/3", "quic"], "expected \"h3\""),
                    (
                        &["https", "tls", "ssl"],
                        "expected \"h1\", \"h2\", \"h3\" or \"auto\"; TLS is what `tls` of the pool asks for",
                    ),
                ]);
        /// For `protocol = "h3"`: where no QUIC connection has come about after so long, requests go over TCP
        /// in the version that the backend picks, for a minute; then QUIC is tried again.
        fall_back_after: Duration =
            timer(Limit::new(millis(500), millis(10), HOUR, "a request waits so long where UDP does not get through"))
                .http()
                .also(&["h3_fallback", "fallback_after"]);
        /// TLS towards the backends.
        tls: Option<PoolTls> =
            table_or_true(PoolTls::TABLE)
                .default("off")
                .stream()
                .on(Planes::Proxy("connections go through to the backend, and nobody encrypts them"))
                .also(&["ssl", "https"]);
        /// PROXY protocol header towards the backends; for udp `"v2"`.
        send_proxy: Option<ProxyVersion> =
            Key::new(Kind::Word(ProxyVersion::WORDS, None))
                .default("none")
                .on(Planes::Proxy("nothing is added to a connection there; by `nat` backends see the client's address"))
                .also(&["proxy_protocol"]);
        /// Which datagrams have the header of `send_proxy`.
        proxy_datagrams: ProxyDatagrams =
            word(ProxyDatagrams::WORDS, "first")
                .udp()
                .on(Planes::Proxy("nothing is added to a datagram there; by `nat` backends see the client's address"));
        /// Whose address backends see: one of this machine's for each family, or the client's own
        /// (`"client"`), which takes `CAP_NET_ADMIN` and routes that lead answers back here.
        source: Vec<Source> =
            list(Each::Text(&SOURCE))
                .default("what the route to the backend has")
                .on(Planes::Proxy("by `nat` backends see the client's address, by `full-nat` a `source_address` of the listener"))
                .also(&["source_address", "usesrc", "proxy_bind", "bind_address", "snat"]);
        /// The interface that connections to backends leave by, whatever routes say.
        interface: Option<String> =
            text(&ONE_INTERFACE)
                .default("the one of the route")
                .on(Planes::Proxy("packets leave by the route to the backend"))
                .also(&["device", "bind_device"]);
        /// When a failed attempt is tried again.
        retry: Retry =
            below(Retry::TABLE)
                .stream()
                .on(Planes::ProxyTuning("clients connect to the backend themselves"))
                .instead(&[(&["a whole number"], "did you mean `retry = { attempts = 2 }`?")])
                .also(&["retries"]);
        /// Refuses requests at once while most of them fail.
        breaker: Option<Breaker> =
            table_or_true(Breaker::TABLE).default("off").http().also(&["circuit_breaker", "circuit"]);
        /// What is held here so that slow clients hold no backend.
        buffer: Option<Buffer> =
            table_or_true(Buffer::TABLE).default("off").http().also(&["buffering", "proxy_buffering"]);
        /// Timers of the requests and sessions that go to it, over those of the listener.
        timeout: ExchangeTimeouts =
            below(ExchangeTimeouts::TABLE)
                .routed()
                .on(Planes::ProxyTuning("clients connect to the backend themselves"))
                .also(&["timeouts"]);
        /// Waiting room when every backend is at its `max_connections`.
        queue: Queue = below(Queue::TABLE).stream().on(Planes::Proxy("packets wait for nobody"));
        /// Keeps a client on its backend.
        sticky: Option<Sticky> =
            below(Sticky::TABLE)
                .default("off")
                .http()
                .instead(&[(&["`true` or `false`"], "did you mean `sticky = { cookie = \"weir\" }`?")])
                .also(&["cookie", "session"]);
        /// A backend that came back gets its share gradually over this time.
        slow_start: Option<Duration> =
            duration(Limit::optional(millis(100), HOUR, "leave it out to give the full share at once"))
                .default("off")
                .also(&["slowstart"]);
        /// Idle connections kept to backends.
        keep_alive: KeepAlive = below(KeepAlive::TABLE).kept().also(&["keepalive"]);
        /// How it is known which backends are up; `"off"` neither probes nor ejects.
        health: Health =
            Key::new(Kind::TableOrOff(Health::TABLE))
                .instead(&[(&["a text"], "did you mean `health = { path = \"/healthz\" }`?")])
                .also(&["check", "health_check", "healthcheck"]);
        /// Rules about header fields.
        headers: Headers;
        /// Host, and port where it is another than the usual one, that backends are asked by; they are told
        /// the client's in `x-forwarded-host`.
        backend_host: Option<Template> =
            text(&BACKEND_HOST)
                .http()
                .default("the client's")
                .also(&["host", "host_header", "upstream_host"]);
        /// Servers and their roles, and how clients log in, for mysql listeners.
        mysql: Option<PoolMysql> = below(PoolMysql::TABLE).default("none").mysql();
    }
}

table! {
    /// One address of a pool.
    #[derive(Eq)]
    pub struct Backend at "backends = [{ … }]" {
        /// Host name, IPv4 or bracketed IPv6, and port; or a Unix socket, `unix:/run/app.sock` or in the
        /// abstract namespace `unix:@app`; the backend's name everywhere. On the kernel plane an address
        /// without a port keeps the one that the client asked for. A service such as
        /// `_http._tcp.app.example` (SRV records) stands for its hosts, with their ports, weights and
        /// priorities.
        address: String = text(&BACKEND_ADDRESS).required().also(&["host", "server", "url"]);
        /// Which backends a host name stands for.
        resolve: Resolve =
            word(Resolve::WORDS, "one").brief().also(&["dns", "resolvers", "init-addr"]);
        /// Share of the load; of each backend, where it stands for several.
        weight: u32 =
            count(Limit::new(
                1,
                0,
                256,
                "0 takes no new work; finer shares than 1 in 256 cannot be told apart",
            ));
        /// Most requests (HTTP) or connections (TCP) in flight, over all workers; for MySQL connections that
        /// are open, idle ones too.
        max_connections: Option<u32> =
            count(Limit::optional(
                1,
                10_000_000,
                "use `weight = 0` for a backend that shall take nothing",
            ))
            .default("no limit")
            .on(Planes::Proxy("connections go through to the backend, and nobody holds them back"))
            .also(&["maxconn", "max_conns"]);
        /// Used only when no other backend is up.
        backup: bool = flag(false).brief();
    }
}

words! {
    /// Which backends a host name stands for.
    pub enum Resolve {
        One = "one": "one, at one of the name's addresses",
        All = "all": "one for each address of the name",
    }
}

impl Backend {
    /// Whether it stands for all addresses or services of its name, and is not a backend itself.
    pub fn is_group(&self) -> bool {
        self.resolve == Resolve::All || is_service(&self.address)
    }

    /// One of the backends that it stands for, as the config would describe it. `weight` and `backup` come
    /// from a service's records; for the addresses of a host they come from the config.
    pub fn member(&self, address: String, weight: u32, backup: bool) -> Backend {
        let (weight, backup) = match is_service(&self.address) {
            true => (weight, backup),
            false => (self.weight, self.backup),
        };
        Backend { address, weight, backup, resolve: Resolve::One, ..self.clone() }
    }
}

table! {
    /// Waiting room when every backend is at its `max_connections`.
    #[derive(Copy, Eq)]
    pub struct Queue at "queue = { … }" {
        /// Most waiting at once, over all workers.
        max: u32 =
            count(Limit::new(
                1000,
                0,
                1_000_000,
                "0 answers 503 at once; a longer queue only delays the 503",
            ))
            .also(&["size", "length"]);
        /// Longest wait; beyond it 503.
        timeout: Duration = duration(Limit::new(seconds(1), millis(1), HOUR, "clients give up too"));
    }
}

table! {
    /// Idle connections kept to backends for the next request, or for MySQL the next session.
    #[derive(Copy, Eq)]
    pub struct KeepAlive at "keep_alive = { … }" {
        /// Per worker and backend; 0 switches reuse off.
        max: u32 = count(Limit::new(256, 0, 65_536, "0 opens a new connection for every request"));
        /// How long an idle connection is kept.
        idle: Duration =
            duration(Limit::new(
                seconds(30),
                millis(100),
                DAY,
                "should end before the backend closes the connection itself",
            ))
            .also(&["timeout"]);
    }
}

words! {
    /// PROXY protocol version.
    pub enum ProxyVersion {
        V1 = "v1": "text",
        V2 = "v2": "binary",
    }
}

words! {
    /// Which datagrams of a flow have a PROXY protocol header.
    pub enum ProxyDatagrams {
        First = "first": "the first one of a flow",
        Each = "each": "every one",
    }
}

/// The algorithms, with their names in HAProxy, nginx and Envoy.
const ALGORITHMS: &[Word] = &[
    Word::new("round-robin", "in turn, by weight").also(&["roundrobin", "rr", "static-rr", "wrr"]),
    Word::new("least-connections", "fewest in flight per weight").also(&[
        "leastconn",
        "least-conn",
        "least-request",
        "lc",
        "wlc",
    ]),
    Word::new("random-two", "the less loaded of two").also(&["random", "p2c", "power-of-two"]),
    Word::new("least-time", "of two the one that answers sooner").also(&["ewma", "peak-ewma", "latency"]),
    Word::new("first", "the first with room"),
    Word::new("source", "hash of the client's address").also(&["ip-hash", "source-hash", "sh"]),
    Word::new("hash", "consistent hash").also(&["uri", "ring-hash", "consistent", "ring"]),
    Word::new("maglev", "Maglev table"),
];

one!(
    Algorithm,
    Value::Word(word) => Algorithm::from_word(word),
    |it| Value::Word(it.word()),
    Algorithm::default()
);

/// Fills in values that follow from the listeners that use a pool.
pub(crate) fn assume(pool: &mut Fields, uses: &Uses) {
    let uses = uses.of(&pool.name);
    let hash_key = agreed(uses, Protocol::usual_hash_key).unwrap_or("client_ip");
    if let Some(hash) = pool.below_or_assumed("hash", Hash::TABLE) {
        hash.assume("key", Value::Text(hash_key.to_owned()));
    }
    // When a reload removes a pool's last listener, work in progress continues, and the pool's protocol is
    // unknown here: a probe of another protocol would find its backends down.
    let check = match uses {
        [] => "off",
        _ => agreed(uses, Protocol::usual_check).unwrap_or("tcp"),
    };
    health::assume(pool, check);
    mysql::assume_pool(pool);
}

/// The value on which the protocols of all users of a pool agree; `None` also if there are no users.
fn agreed(uses: &[Use], usual: fn(Protocol) -> &'static str) -> Option<&'static str> {
    let mut said = uses.iter().filter_map(|by| by.protocol).map(usual);
    let first = said.next()?;
    said.all(|other| other == first).then_some(first)
}

/// Reports mistakes in the pools of a file.
pub(crate) fn check(root: &Fields, uses: &Uses, pools: &[Arc<Pool>], findings: &mut Findings<'_>) {
    for (pool, fields) in pools.iter().zip(root.named("pool")) {
        backends(pool, fields, uses, findings);
        loops::check(root, (&pool.name, fields), uses, findings);
        without_port(pool, fields, uses, findings);
        unix_sockets(fields, uses, findings);
        hash::check(pool.balance, fields, uses, findings);
        listeners(fields, uses, findings);
        on_kernel_plane(fields, uses, findings);
        if let Some(entry) = fields.get("queue") {
            let unlimited = pool.backends.iter().all(|backend| backend.max_connections.is_none());
            if unlimited && !pool.backends.is_empty() {
                findings.warning(
                    entry.key,
                    "`queue` has no effect",
                    "no backend of the pool has `max_connections`, so none is ever full",
                );
            }
        }
        if let Some(timeout) = fields.table("timeout") {
            timeout::never_acts(timeout, findings);
        }
        if let Some(retry) = fields.table("retry") {
            retry::check(retry, findings);
            hedge::check(retry, findings);
        }
        if uses.of(&pool.name).is_empty() {
            let message = format!("pool `{}` is never used", pool.name);
            findings.warning(fields.at, message, "no listener and no route names it");
        }
        if let Some(health) = fields.table("health") {
            health::check(health, &pool.health, &pool.name, uses, findings);
        }
        protocol::check(fields, pool.protocol, pool.tls.is_some(), findings);
        proxy_of_udp(pool, fields, uses, findings);
        headers::check_pool(root, fields, findings);
        source::check(fields, pool.protocol, uses, findings);
        sticky::check(fields, findings);
        mysql::check_pool(fields, uses, findings);
        tls::check_pool(fields, uses, findings);
        if let (Some(entry), Some(_)) = (fields.get("tls"), fields.table("tls"))
            && let Some(other) = uses.of(&pool.name).iter().find(|place| place.passes_tls_through)
        {
            let hint = format!(
                "what it relays is encrypted already: {} and has routes by `sni`",
                other.speaks(findings)
            );
            findings.warning(entry.at, "TLS is sent within TLS", hint);
        }
    }
}

impl Pool {
    /// Whether the pool's check would accept a backend with this kind of `address`. A Unix socket, or an
    /// address without a port, is accepted only if the pool has one already; any other address always is.
    pub fn can_have(&self, address: &str) -> bool {
        let is_unix = |address: &str| unix_name(address).is_some();
        let has_no_port = |address: &str| backend_at(address).is_some_and(|at| at.port() == 0);
        let has = |is_such: &dyn Fn(&str) -> bool| self.backends.iter().any(|it| is_such(&it.address));
        (!is_unix(address) || has(&is_unix)) && (!has_no_port(address) || has(&has_no_port))
    }
}

fn backends(pool: &Pool, fields: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
    for (at, backend) in fields.tables("backends") {
        let Some(address) = backend.text("address") else { continue };
        match seen.get(&same_backend(address)) {
            Some((first, place)) => {
                let same =
                    if *first == address { String::new() } else { format!("; it is the same as `{first}`") };
                let hint = format!(
                    "the first is at {}{same}; use `weight` for a larger share",
                    findings.place(*place)
                );
                findings.error(at, format!("backend `{address}` is said twice"), hint);
            }
            None => drop(seen.insert(same_backend(address), (address, at))),
        }
    }
    for (_, backend) in fields.tables("backends") {
        names(backend, fields, uses, findings);
    }
    let at = fields.at("backends");
    if !pool.backends.is_empty() && pool.backends.iter().all(|backend| backend.backup) {
        let hint = "a backup is used only when no other backend is up, and there is no other";
        findings.warning(at, format!("pool `{}` has only backups", pool.name), hint);
    }
    if !pool.backends.is_empty() && pool.backends.iter().all(|backend| backend.weight == 0) {
        findings.warning(at, format!("no backend of pool `{}` takes work", pool.name), "every `weight` is 0");
    }
}

/// Reports mistakes in a backend that stands for the backends of a name.
fn names(backend: &Fields, pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let Some(address) = backend.text("address") else { return };
    let is_all = backend.word("resolve") == Resolve::All.word();
    if is_service(address) {
        for name in ["weight", "backup", "resolve"] {
            if let Some(entry) = backend.get(name) {
                let message = format!("`{name}` cannot stand beside the service `{address}`");
                findings.error(entry.key, message, "its records say which hosts there are, and their shares");
            }
        }
    } else if is_all && !is_host_name(address) {
        let hint = "it is for host names; leave it out";
        findings.error(backend.at("resolve"), format!("`{address}` is no host name"), hint);
        return;
    } else if !is_all {
        return;
    }
    if pool.get("mysql").is_some() || uses.first(&pool.name, |by| by == Protocol::Mysql).is_some() {
        let message = format!("a pool of MySQL servers cannot have all backends of `{address}`");
        let hint = "with `topology = \"group-replication\"` the group says who its members are; \
                    with \"static\" their order decides who is primary";
        findings.error(backend.at("address"), message, hint);
    }
}

/// Reports backends without a port, which keep the client's port: only packets can do so, and probes need a
/// port.
fn without_port(pool: &Pool, fields: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let is_probed = !matches!(pool.health.check, Check::Off) && pool.health.port.is_none();
    let is_read =
        !fields.is_bad("health") && fields.table("health").is_none_or(|health| !health.is_bad("port"));
    for (at, backend) in fields.tables("backends") {
        let Some(address) = backend.text("address") else { continue };
        if backend_at(address).is_none_or(|at| at.port() != 0) {
            continue;
        }
        let add = format!("add the port: \"{address}:80\"");
        let is_ended = |by: &&Use| by.protocol.is_some() && by.plane != Some(Plane::Kernel);
        let hint = match uses.of(&pool.name).iter().find(is_ended) {
            Some(by) => format!("{add}; without it is for `plane = \"kernel\"`, and {}", by.is_on(findings)),
            None if is_probed && is_read => {
                format!("{add}; or say which one is probed (`health.port`), or `health = \"off\"`")
            }
            None => continue,
        };
        findings.error(at, format!("backend `{address}` has no port"), hint);
    }
}

/// Reports keys that need an address or a port, if a backend is a Unix socket. The kernel plane has its own
/// check.
fn unix_sockets(pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let named = pool.tables("backends").filter_map(|(at, backend)| Some((at, backend.text("address")?)));
    let mut on_sockets = named.filter(|(_, address)| unix_name(address).is_some()).peekable();
    let Some((at, address)) = on_sockets.peek().copied() else { return };
    if let Some(udp) = uses.first(&pool.name, |protocol| protocol == Protocol::Udp) {
        let hint = format!("it takes connections, no datagrams, and {}", udp.speaks(findings));
        for (at, address) in on_sockets {
            findings.error(at, format!("backend `{address}` is a Unix socket"), hint.clone());
        }
    }
    let place = findings.place(at);
    for name in ["port", "agent"] {
        if let Some(entry) = pool.table("health").and_then(|health| health.get(name)) {
            let hint = format!("backend `{address}` ({place}) is a Unix socket, which has no port");
            findings.error(entry.key, format!("`health.{name}` cannot hold for every backend"), hint);
        }
    }
    if let Some(entry) =
        pool.get("tls").filter(|_| pool.table("tls").is_some_and(|tls| tls.lacks("server_name")))
    {
        let hint = format!(
            "backend `{address}` ({place}) is a Unix socket, which has no host to ask for: expected `server_name` beside the others"
        );
        findings.error(entry.key, "`tls` needs a `server_name` here", hint);
    }
    if let Some(mysql) = pool.table("mysql").filter(|mysql| PoolMysql::of(mysql).is_watched()) {
        let hint = format!(
            "servers are known to each other by host and port ({}): expected those, or `topology = \"static\"`",
            findings.place(mysql.at("topology"))
        );
        findings.error(at, format!("backend `{address}` is a Unix socket"), hint);
    }
}

/// Reports keys without effect for the kernel-plane listeners that use the pool.
fn on_kernel_plane(pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let uses = uses.of(&pool.name);
    let is_there = |by: &&Use| by.plane == Some(Plane::Kernel);
    if let Some((by, protocol)) = uses.iter().find(is_there).and_then(|by| Some((by, by.protocol?))) {
        let alone = uses.iter().all(|by| is_there(&by));
        plane::check_pool(pool, protocol, &by.forwards(findings), alone, findings);
    }
}

/// Reports uses of the PROXY header that datagrams do not support.
fn proxy_of_udp(pool: &Pool, fields: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let by_udp = uses.first(&pool.name, |protocol| protocol == Protocol::Udp);
    if let (Some(ProxyVersion::V1), Some(entry), Some(by)) =
        (pool.send_proxy, fields.get("send_proxy"), by_udp)
    {
        let hint = format!("expected \"v2\": v1 has no word for datagrams, and {}", by.speaks(findings));
        findings.error(entry.at, "`send_proxy = \"v1\"` can't name a client of udp", hint);
    }
    if let Some(entry) = fields.get("proxy_datagrams").filter(|_| fields.lacks("send_proxy")) {
        let hint = "expected `send_proxy = \"v2\"` beside it";
        findings.warning(entry.key, "`proxy_datagrams` has no effect", hint);
    }
}

/// Reports keys without effect for the listeners that use the pool.
fn listeners(pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let tables = [Some(pool), pool.table("timeout")].into_iter().flatten();
    for (table, entry) in tables.flat_map(|table| table.entries.iter().map(move |entry| (table, entry))) {
        let only = table.schema.key(&entry.name).map(|key| key.only).filter(|only| *only != Only::Any);
        let Some(only) = only else { continue };
        let Some(other) = uses.first(&pool.name, |protocol| !applies(only, protocol)) else { continue };
        let speaks = other.speaks(findings);
        let said_in_vain = uses.first(&pool.name, |protocol| applies(only, protocol)).is_none();
        // These determine where a client ends up or what a backend trusts; the others only tune something
        // that does not happen at all.
        let promise = matches!(entry.name.as_str(), "sticky" | "send_proxy" | "mysql" | "backend_host");
        if said_in_vain && promise {
            let hint = format!("it is for {}, and {speaks}", audience(only));
            findings.error(entry.key, format!("pool `{}` cannot have `{}`", pool.name, entry.name), hint);
        } else if said_in_vain {
            let hint = format!("it is for {}, and {speaks}", audience(only));
            findings.warning(entry.key, format!("`{}` has no effect", entry.name), hint);
        } else if promise {
            let hint = format!("it is for {}, and {speaks} and uses this pool too", audience(only));
            findings.warning(entry.key, format!("`{}` does not hold for every client", entry.name), hint);
        }
    }
    let never_again = uses.first(&pool.name, Protocol::sends_again).is_none();
    let relayed = uses.first(&pool.name, |protocol| applies(Only::Stream, protocol)).filter(|_| never_again);
    let (Some(other), Some(retry)) = (relayed, pool.table("retry")) else { return };
    let why = format!("bytes that were sent cannot be sent again: {}", other.speaks(findings));
    for (at, value) in retry.list("on") {
        if let Value::Word(word) = value
            && *word != "connect"
        {
            let hint = format!("{why}; expected \"connect\"");
            findings.warning(*at, format!("a retry on `{word}` has no effect"), hint);
        }
    }
    for name in ["non_idempotent", "per_try_timeout", "retry_after", "hedge"] {
        if let Some(entry) = retry.get(name) {
            findings.warning(entry.key, format!("`{name}` has no effect"), why.clone());
        }
    }
}
