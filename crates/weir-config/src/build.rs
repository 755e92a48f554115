//! From read fields to the typed [`Config`], with every default filled in. What could not be read gets its default here; the
//! file is refused anyway.

mod cache;
mod compress;
mod screen;
mod tls;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::{Algorithm, LastResort};

use crate::fields::{Entry, Fields};
use crate::keys::tables::POOL;
use crate::report::Span;
use crate::schema::*;
use crate::values::Value;

/// A configuration and where its parts come from. `listeners` and `pools` stand in the order of the config's.
pub(crate) struct Draft {
    pub config: Config,
    pub root: Fields,
    pub listeners: Vec<Fields>,
    pub pools: Vec<Fields>,
    pub uses: Uses,
}

/// A listener that uses a pool, by itself or by a route.
pub(crate) struct Use {
    /// Position of the listener in the config.
    pub listener: usize,
    /// What the listener speaks; `None` when that could not be read.
    pub protocol: Option<Protocol>,
}

/// By pool name, who uses it, in file order.
pub(crate) struct Uses(pub BTreeMap<String, Vec<Use>>);

impl Uses {
    /// The places that name `pool`.
    pub fn of(&self, pool: &str) -> &[Use] {
        self.0.get(pool).map_or(&[], Vec::as_slice)
    }

    fn protocols(&self, pool: &str) -> impl Iterator<Item = Protocol> {
        self.of(pool).iter().filter_map(|place| place.protocol)
    }
}

pub(crate) use screen::rate as request_rate;

/// Where the admin API listens when the file says nothing.
pub(crate) const ADMIN_BIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);

/// Media type of `respond` when the file says nothing.
pub(crate) const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

pub(crate) fn build(root: Fields) -> Draft {
    let runtime = root.table("runtime");
    let log = root.table("log");
    let named = |name: &str| -> Vec<(String, Fields)> {
        let tables = root.map(name).iter().filter_map(|entry| match &entry.value {
            Value::Table(fields) => Some((entry.name.clone(), fields.clone())),
            _ => None,
        });
        tables.collect()
    };
    let (listeners, listener_fields): (Vec<_>, Vec<_>) = named("listener")
        .into_iter()
        .map(|(name, fields)| (Arc::new(listener(&name, &fields)), fields))
        .unzip();
    let uses = collect_uses(&listener_fields);
    let (pools, pool_fields): (Vec<_>, Vec<_>) = named("pool")
        .into_iter()
        .map(|(name, fields)| (Arc::new(pool(&name, &fields, &uses)), fields))
        .unzip();
    let config = Config {
        runtime: Runtime {
            workers: runtime.optional_number("workers").and_then(|count| usize::try_from(count).ok()),
            drain: runtime.duration("drain"),
            memory_bytes: runtime.optional_number("memory"),
        },
        admin: admin(&root.table("admin")),
        log: Log {
            access: match log.value("access") {
                Some(Value::Access(target)) => target.clone(),
                _ => AccessTarget::Off,
            },
            format: match log.word("format") {
                "combined" => AccessFormat::Combined,
                "haproxy" => AccessFormat::Haproxy,
                _ => AccessFormat::Json,
            },
            level: match log.word("level") {
                "error" => Level::Error,
                "warn" => Level::Warn,
                "debug" => Level::Debug,
                "trace" => Level::Trace,
                _ => Level::Info,
            },
        },
        cache: cache::cache(&root.table("cache")),
        listeners,
        pools,
    };
    Draft { config, root, listeners: listener_fields, pools: pool_fields, uses }
}

fn admin(fields: &Fields) -> Option<Admin> {
    let bind = match fields.value("bind") {
        Some(Value::Off) => return None,
        Some(Value::Bind(address)) => *address,
        _ => ADMIN_BIND,
    };
    Some(Admin { bind, token_file: fields.text("token_file").map(PathBuf::from) })
}

/// What a listener speaks; `None` when that could not be read.
pub(crate) fn protocol(fields: &Fields) -> Option<Protocol> {
    if fields.is_bad("protocol") {
        return None;
    }
    Some(match fields.word("protocol") {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => Protocol::Http,
    })
}

fn collect_uses(listeners: &[Fields]) -> Uses {
    let mut uses: BTreeMap<String, Vec<Use>> = BTreeMap::new();
    for (listener, fields) in listeners.iter().enumerate() {
        let protocol = protocol(fields);
        let mut add = |fields: &Fields| {
            if let Some(name) = fields.text("pool") {
                uses.entry(name.to_owned()).or_default().push(Use { listener, protocol });
            }
        };
        add(fields);
        for (_, route) in fields.list("route") {
            if let Value::Table(route) = route {
                add(route);
            }
        }
    }
    Uses(uses)
}

fn collect<T>(fields: &Fields, name: &str, pick: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    fields.list(name).iter().filter_map(|(_, value)| pick(value)).collect()
}

fn network(value: &Value) -> Option<ipnet::IpNet> {
    match value {
        Value::Network(network) => Some(*network),
        _ => None,
    }
}

fn listener(name: &str, fields: &Fields) -> Listener {
    let timeout = fields.table("timeout");
    let limits = fields.table("limits");
    let size = |name: &str| usize::try_from(limits.number(name)).unwrap_or(usize::MAX);
    let compress = compress::compress(fields).flatten();
    let sqli = screen::sqli(fields, None);
    let routes = fields.list("route").iter().enumerate().filter_map(|(position, (_, value))| match value {
        Value::Table(fields) => Some(route(name, position, fields, (compress.as_ref(), sqli))),
        _ => None,
    });
    let spoken = protocol(fields).unwrap_or(Protocol::Http);
    Listener {
        name: name.to_owned(),
        protocol: spoken,
        bind: collect(fields, "bind", |value| match value {
            Value::Bind(address) => Some(*address),
            _ => None,
        }),
        pool: fields.text("pool").map(str::to_owned),
        accept_proxy: collect(fields, "accept_proxy", network),
        trusted_proxies: collect(fields, "trusted_proxies", network),
        max_connections: fields.count("max_connections"),
        max_connections_per_client: fields.optional_count("max_connections_per_client"),
        http: tls::http_versions(fields, spoken),
        tls: tls::listener_tls(fields),
        merge_slashes: fields.flag("merge_slashes"),
        abort_on_close: fields.flag("abort_on_close"),
        timeout: Timeouts {
            client_idle: timeout.duration("client_idle"),
            header: timeout.duration("header"),
            handshake: timeout.duration("handshake"),
            connect: timeout.duration("connect"),
            backend: timeout.duration("backend"),
            client_body: timeout.duration("client_body"),
        },
        limits: HttpLimits {
            request_line_bytes: size("request_line"),
            header_bytes: size("header"),
            header_count: size("header_count"),
            min_body_rate: limits.number("min_body_rate"),
            streams: limits.number("streams") as u32,
            control_frames: limits.number("control_frames") as u32,
        },
        screen: screen::screen(fields),
        sqli,
        routes: routes.collect(),
        compress,
    }
}

fn header_map(entries: &[Entry]) -> BTreeMap<String, String> {
    let pairs = entries.iter().filter_map(|entry| match &entry.value {
        Value::Text(value) => Some((entry.name.clone(), value.clone())),
        _ => None,
    });
    pairs.collect()
}

fn route(
    listener: &str,
    position: usize,
    fields: &Fields,
    (compress, sqli): (Option<&Compress>, Sqli),
) -> Route {
    let action = if let Some(pool) = fields.text("pool") {
        RouteAction::Pool(pool.to_owned())
    } else if fields.value("redirect").is_some() {
        let redirect = fields.table("redirect");
        RouteAction::Redirect {
            to: redirect.text("to").unwrap_or_default().to_owned(),
            status: u16::try_from(redirect.number("status")).unwrap_or(308),
        }
    } else {
        let respond = fields.table("respond");
        RouteAction::Respond {
            status: u16::try_from(respond.number("status")).unwrap_or(200),
            body: respond.text("body").unwrap_or_default().to_owned(),
            content_type: respond.text("content_type").unwrap_or(CONTENT_TYPE).to_owned(),
        }
    };
    Route {
        name: fields.text("name").map_or_else(|| format!("{listener}/{position}"), str::to_owned),
        host: collect(fields, "host", |value| match value {
            Value::Host(pattern) => Some(pattern.clone()),
            _ => None,
        }),
        sni: collect(fields, "sni", |value| match value {
            Value::Host(pattern) => Some(pattern.clone()),
            _ => None,
        }),
        path: collect(fields, "path", |value| match value {
            Value::Path(pattern) => Some(pattern.clone()),
            _ => None,
        }),
        method: collect(fields, "method", |value| match value {
            Value::Text(method) => Some(method.clone()),
            _ => None,
        }),
        header: header_map(fields.map("header")),
        action,
        add_request_header: header_map(fields.map("add_request_header")),
        add_response_header: header_map(fields.map("add_response_header")),
        rewrite_prefix: fields.table("rewrite").text("prefix").map(str::to_owned),
        body_limit_bytes: fields.optional_number("body_limit"),
        sqli: screen::sqli(fields, Some(sqli)),
        cache: cache::route_cache(fields),
        screen: screen::screen(fields),
        compress: compress::compress(fields).unwrap_or_else(|| compress.cloned()),
    }
}

/// What `hash.key` is when the file says nothing: HTTP has a URI, everything else only the client's address.
pub(crate) fn default_hash_key(all_http: bool) -> HashKey {
    if all_http { HashKey::Uri } else { HashKey::ClientIp }
}

/// A pool of which the file says nothing.
pub(crate) fn default_pool() -> Pool {
    let nothing = Fields { schema: &POOL, at: Span::default(), entries: Vec::new(), meant: Vec::new() };
    pool("", &nothing, &Uses(BTreeMap::new()))
}

fn pool(name: &str, fields: &Fields, uses: &Uses) -> Pool {
    let all_http = uses.protocols(name).all(|protocol| protocol == Protocol::Http);
    let hash = fields.table("hash");
    let queue = fields.table("queue");
    let keep_alive = fields.table("keep_alive");
    Pool {
        name: name.to_owned(),
        backends: collect(fields, "backends", |value| match value {
            Value::Table(fields) => Some(Backend {
                address: fields.text("address").unwrap_or_default().to_owned(),
                weight: fields.count("weight"),
                max_connections: fields.optional_count("max_connections"),
                backup: fields.flag("backup"),
            }),
            _ => None,
        }),
        balance: match fields.value("balance") {
            Some(Value::Algorithm(algorithm)) => *algorithm,
            _ => Algorithm::default(),
        },
        hash: Hash {
            key: match hash.value("key") {
                Some(Value::HashKey(key)) => key.clone(),
                _ => default_hash_key(all_http),
            },
            bounded: hash.get("bounded").map(|_| hash.factor("bounded")),
        },
        protocol: HttpVersion::from_word(fields.word("protocol")).unwrap_or(HttpVersion::H1),
        tls: tls::pool_tls(fields),
        send_proxy: match fields.word("send_proxy") {
            "v1" => Some(ProxyVersion::V1),
            "v2" => Some(ProxyVersion::V2),
            _ => None,
        },
        retry: retry(&fields.table("retry")),
        queue: Queue { max: queue.count("max"), timeout: queue.duration("timeout") },
        sticky_cookie: fields.table("sticky").text("cookie").map(str::to_owned),
        slow_start: fields.optional_duration("slow_start"),
        keep_alive: KeepAlive { max: keep_alive.count("max"), idle: keep_alive.duration("idle") },
        health: health(name, fields, uses),
    }
}

/// What is tried again when the file says nothing: only what has surely not been served.
pub(crate) const RETRY_ON: [RetryOn; 2] = [RetryOn::Connect, RetryOn::Empty];

fn retry(fields: &Fields) -> Retry {
    let on = collect(fields, "on", |value| match value {
        Value::Word("connect") => Some(RetryOn::Connect),
        Value::Word("empty") => Some(RetryOn::Empty),
        Value::Word("timeout") => Some(RetryOn::Timeout),
        Value::Word(status) => status.parse().ok().map(RetryOn::Status),
        _ => None,
    });
    let on = if fields.get("on").is_some() { on } else { RETRY_ON.to_vec() };
    Retry { attempts: fields.count("attempts"), on, non_idempotent: fields.flag("non_idempotent") }
}

/// Statuses of a good probe when the file says nothing.
pub(crate) const EXPECT_STATUS: (u16, u16) = (200, 399);

/// The check that holds when the file says nothing.
pub(crate) fn default_check(name: &str, uses: &Uses) -> &'static str {
    if uses.protocols(name).all(|protocol| protocol == Protocol::Http) {
        "http"
    } else if uses.protocols(name).all(|protocol| protocol == Protocol::Udp) {
        // A connection says nothing about a UDP service, and a datagram that nobody answers says nothing either.
        "off"
    } else {
        "tcp"
    }
}

fn health(name: &str, pool: &Fields, uses: &Uses) -> Health {
    let off = matches!(pool.value("health"), Some(Value::Off));
    let fields = pool.table("health");
    let word = match fields.word("check") {
        _ if off => "off",
        "" => default_check(name, uses),
        word => word,
    };
    let check = match word {
        "http" => {
            let ranges = collect(&fields, "expect_status", |value| match value {
                Value::StatusRange(first, last) => Some((*first, *last)),
                _ => None,
            });
            Check::Http {
                path: fields.text("path").unwrap_or("/").to_owned(),
                host: fields.text("host").map(str::to_owned),
                expect_status: if ranges.is_empty() { vec![EXPECT_STATUS] } else { ranges },
            }
        }
        "tcp" => Check::Tcp,
        _ => Check::Off,
    };
    let interval = fields.duration("interval");
    // A default gives way to an interval that is shorter than it; only what the file says itself can contradict it.
    let at_most_interval = |name: &str| -> Duration {
        let value = fields.duration(name);
        if fields.get(name).is_some() { value } else { value.min(interval) }
    };
    Health {
        check,
        interval,
        fast_interval: at_most_interval("fast_interval"),
        timeout: at_most_interval("timeout"),
        rise: fields.count("rise"),
        fall: fields.count("fall"),
        passive: (!off && !matches!(fields.value("passive"), Some(Value::Off)))
            .then(|| passive(&fields.table("passive"))),
        last_resort: LastResort::from_word(fields.word("last_resort")).unwrap_or_default(),
    }
}

fn passive(fields: &Fields) -> Passive {
    Passive {
        errors: fields.count("errors"),
        within: fields.duration("within"),
        eject: fields.duration("eject"),
        max_ejected: fields.factor("max_ejected"),
    }
}
