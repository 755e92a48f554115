//! A [`Config`] as text again: every key, defaults included, so that nobody has to know them by heart.

mod cache;
mod compress;
mod screen;
mod tls;
mod users;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use self::users::protocols;
use crate::build::{CONTENT_TYPE, RETRY_ON, default_hash_key, default_pool};
use crate::schema::*;
use crate::units::{show_byte_rate, show_duration, show_size};
use crate::values::written_value;

/// One table of the effective config: its header without brackets, and its keys in the order of the reference.
pub(crate) struct Section {
    /// `listener.web`, `listener.web.route`, …
    pub header: String,
    /// Written in double brackets.
    pub repeated: bool,
    /// The object it belongs to, for change lists: `listener.web`.
    pub object: String,
    /// What stands in front of the keys in change lists: `route.canary`.
    pub prefix: String,
    /// Key and value as TOML.
    pub keys: Vec<(&'static str, String)>,
}

impl Section {
    fn new(header: impl Into<String>, keys: Vec<(&'static str, String)>) -> Self {
        let header = header.into();
        Self { object: header.clone(), header, repeated: false, prefix: String::new(), keys }
    }
}

/// What stands in place of a secret.
pub const SECRET: &str = "(secret)";

/// The effective config as TOML. [`parse`](crate::parse) reads it back to an equal [`Config`].
///
/// Secrets are written as they are; [`to_toml_without_secrets`] leaves them out.
pub fn to_toml(config: &Config) -> String {
    let mut text = String::new();
    for section in sections(config) {
        if !text.is_empty() {
            text.push('\n');
        }
        let (open, close) = if section.repeated { ("[[", "]]") } else { ("[", "]") };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{open}{}{close}", section.header);
        for (key, value) in section.keys {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    text
}

/// [`to_toml`] for people, with [`SECRET`] in place of each secret: the value of a header field that a route asks for, and of one
/// that it gives to backends, since either may be what proves who somebody is. Keys, tokens and passwords are named by their files.
pub fn to_toml_without_secrets(config: &Config) -> String {
    to_toml(&without_secrets(config))
}

/// The config with [`SECRET`] in place of each secret.
pub(crate) fn without_secrets(config: &Config) -> Config {
    let mut shown = config.clone();
    let listeners = shown.listeners.iter_mut().map(Arc::make_mut);
    for route in listeners.flat_map(|listener| &mut listener.routes) {
        // `*` asks for presence only. What a route adds to responses every client sees.
        let asked = route.header.values_mut().filter(|value| *value != "*");
        for value in asked.chain(route.add_request_header.values_mut()) {
            SECRET.clone_into(value);
        }
    }
    shown
}

/// A text as a TOML basic string, with its quotes.
pub fn text(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for c in value.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A TOML key: bare where it can be.
fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if bare { name.to_owned() } else { text(name) }
}

fn list<T>(values: &[T], show: impl Fn(&T) -> String) -> String {
    format!("[{}]", values.iter().map(show).collect::<Vec<_>>().join(", "))
}

fn inline(keys: Vec<(&'static str, String)>) -> String {
    let keys: Vec<_> = keys.into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
    format!("{{ {} }}", keys.join(", "))
}

fn map(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = map.iter().map(|(name, value)| format!("{} = {}", key(name), text(value))).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// Fields that are set.
fn set_fields(fields: &BTreeMap<String, String>) -> String {
    map(&fields.iter().map(|(name, value)| (name.clone(), written_value(value))).collect())
}

fn duration(value: std::time::Duration) -> String {
    text(&show_duration(value))
}

fn size(bytes: u64) -> String {
    text(&show_size(bytes))
}

/// Every table of the effective config, in the order of the reference.
pub(crate) fn sections(config: &Config) -> Vec<Section> {
    let mut runtime = Vec::new();
    if let Some(workers) = config.runtime.workers {
        runtime.push(("workers", workers.to_string()));
    }
    runtime.push(("drain", duration(config.runtime.drain)));
    if let Some(memory) = config.runtime.memory_bytes {
        runtime.push(("memory", size(memory)));
    }
    let admin = match &config.admin {
        None => vec![("bind", text("off"))],
        Some(admin) => {
            let mut keys = vec![("bind", text(&admin.bind.to_string()))];
            keys.extend(admin.token_file.as_ref().map(|file| ("token_file", text(&file.to_string_lossy()))));
            keys
        }
    };
    let mut sections = vec![
        Section::new("runtime", runtime),
        Section::new("admin", admin),
        Section::new("log", log(&config.log)),
    ];
    sections.push(Section::new("cache", cache::section(&config.cache)));
    for each in &config.listeners {
        listener(each, &mut sections);
    }
    for each in &config.pools {
        pool(config, each, &mut sections);
    }
    sections
}

fn log(log: &Log) -> Vec<(&'static str, String)> {
    let access = match &log.access {
        AccessTarget::Off => "off".to_owned(),
        AccessTarget::Stdout => "stdout".to_owned(),
        AccessTarget::Stderr => "stderr".to_owned(),
        AccessTarget::File(file) => file.to_string_lossy().into_owned(),
    };
    let format = match log.format {
        AccessFormat::Json => "json",
        AccessFormat::Combined => "combined",
        AccessFormat::Haproxy => "haproxy",
    };
    let level = match log.level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    };
    vec![("access", text(&access)), ("format", text(format)), ("level", text(level))]
}

fn listener(listener: &Listener, sections: &mut Vec<Section>) {
    let http = listener.protocol == Protocol::Http;
    let networks = |networks: &[ipnet::IpNet]| list(networks, |network| text(&network.to_string()));
    let protocol = match listener.protocol {
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    let mut keys = vec![
        ("protocol", text(protocol)),
        ("bind", list(&listener.bind, |address| text(&address.to_string()))),
    ];
    keys.extend(listener.pool.as_ref().map(|pool| ("pool", text(pool))));
    if !listener.accept_proxy.is_empty() {
        keys.push(("accept_proxy", networks(&listener.accept_proxy)));
    }
    if !listener.trusted_proxies.is_empty() {
        keys.push(("trusted_proxies", networks(&listener.trusted_proxies)));
    }
    keys.push(("max_connections", listener.max_connections.to_string()));
    keys.extend(
        listener.max_connections_per_client.map(|most| ("max_connections_per_client", most.to_string())),
    );
    if http {
        keys.push(("http", list(&listener.http, |version| text(version.word()))));
        keys.push(("merge_slashes", listener.merge_slashes.to_string()));
        keys.push(("abort_on_close", listener.abort_on_close.to_string()));
        keys.extend(screen::sqli(listener.sqli, None));
        if listener.compress.is_some() {
            keys.push(("compress", compress::compress(listener.compress.as_ref())));
        }
    }
    keys.extend(bounds(listener));
    keys.extend(screen::keys(&listener.screen));
    let header = format!("listener.{}", key(&listener.name));
    sections.push(Section::new(header.clone(), keys));
    sections.extend(listener.tls.as_ref().map(|each| Section {
        header: format!("{header}.tls"),
        repeated: false,
        object: header.clone(),
        prefix: "tls".to_owned(),
        keys: tls::listener(each),
    }));
    for (position, each) in listener.routes.iter().enumerate() {
        sections.push(Section {
            header: format!("{header}.route"),
            repeated: true,
            object: header.clone(),
            prefix: format!("route {}", each.name),
            keys: route(listener, position, each),
        });
        sections.extend(each.cache.as_ref().map(|cache| Section {
            header: format!("{header}.route.cache"),
            repeated: false,
            object: header.clone(),
            prefix: format!("route {}.cache", each.name),
            keys: cache::route(cache),
        }));
    }
}

/// The times and limits of a listener.
fn bounds(listener: &Listener) -> Vec<(&'static str, String)> {
    let http = listener.protocol == Protocol::Http;
    let times = &listener.timeout;
    let mut timeout = vec![("client_idle", duration(times.client_idle))];
    if listener.protocol != Protocol::Udp {
        timeout.push(("header", duration(times.header)));
        timeout.push(("handshake", duration(times.handshake)));
        timeout.push(("connect", duration(times.connect)));
    }
    if http {
        timeout.push(("backend", duration(times.backend)));
        timeout.push(("client_body", duration(times.client_body)));
    }
    let mut keys = vec![("timeout", inline(timeout))];
    if http {
        let limits = &listener.limits;
        keys.push((
            "limits",
            inline(vec![
                ("request_line", size(limits.request_line_bytes as u64)),
                ("header", size(limits.header_bytes as u64)),
                ("header_count", limits.header_count.to_string()),
                ("min_body_rate", text(&show_byte_rate(limits.min_body_rate))),
                ("streams", limits.streams.to_string()),
                ("control_frames", limits.control_frames.to_string()),
            ]),
        ));
    }
    keys
}

fn route(listener: &Listener, position: usize, route: &Route) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if route.name != format!("{}/{position}", listener.name) {
        keys.push(("name", text(&route.name)));
    }
    for (name, hosts) in [("host", &route.host), ("sni", &route.sni)] {
        if !hosts.is_empty() {
            keys.push((
                name,
                list(hosts, |host| match host {
                    HostPattern::Exact(host) => text(host),
                    HostPattern::Suffix(suffix) => text(&format!("*{suffix}")),
                }),
            ));
        }
    }
    if !route.path.is_empty() {
        keys.push(("path", list(&route.path, |path| text(&path.to_string()))));
    }
    if !route.method.is_empty() {
        keys.push(("method", list(&route.method, |method| text(method))));
    }
    if !route.header.is_empty() {
        keys.push(("header", map(&route.header)));
    }
    match &route.action {
        RouteAction::Pool(pool) => keys.push(("pool", text(pool))),
        RouteAction::Redirect { to, status } => {
            keys.push(("redirect", inline(vec![("to", text(to)), ("status", status.to_string())])));
        }
        RouteAction::Respond { status, body, content_type } => {
            let mut respond = vec![("status", status.to_string()), ("body", text(body))];
            if content_type != CONTENT_TYPE {
                respond.push(("content_type", text(content_type)));
            }
            keys.push(("respond", inline(respond)));
        }
    }
    if !route.add_request_header.is_empty() {
        keys.push(("add_request_header", set_fields(&route.add_request_header)));
    }
    if !route.add_response_header.is_empty() {
        keys.push(("add_response_header", set_fields(&route.add_response_header)));
    }
    keys.extend(
        route.rewrite_prefix.as_ref().map(|prefix| ("rewrite", inline(vec![("prefix", text(prefix))]))),
    );
    keys.extend(route.body_limit_bytes.map(|most| ("body_limit", size(most))));
    keys.extend(screen::keys(&route.screen));
    keys.extend(screen::sqli(route.sqli, Some(listener.sqli)));
    if route.compress != listener.compress {
        keys.push(("compress", compress::compress(route.compress.as_ref())));
    }
    keys
}

fn pool(config: &Config, pool: &Pool, sections: &mut Vec<Section>) {
    let unused = protocols(config, &pool.name).next().is_none();
    let http = unused || protocols(config, &pool.name).any(|protocol| protocol == Protocol::Http);
    let stream = unused || protocols(config, &pool.name).any(|protocol| protocol != Protocol::Udp);
    let all_http = protocols(config, &pool.name).all(|protocol| protocol == Protocol::Http);
    let default = default_pool();
    let header = format!("pool.{}", key(&pool.name));
    let mut keys = vec![("backends", list(&pool.backends, backend)), ("balance", text(pool.balance.word()))];
    let mut hash = Vec::new();
    if matches!(pool.balance.word(), "hash" | "maglev") || pool.hash.key != default_hash_key(all_http) {
        let word = match &pool.hash.key {
            HashKey::Uri => "uri".to_owned(),
            HashKey::Path => "path".to_owned(),
            HashKey::Header(name) => format!("header:{name}"),
            HashKey::Cookie(name) => format!("cookie:{name}"),
            HashKey::ClientIp => "client_ip".to_owned(),
        };
        hash.push(("key", text(&word)));
    }
    hash.extend(pool.hash.bounded.map(|bounded| ("bounded", format!("{bounded:?}"))));
    if !hash.is_empty() {
        keys.push(("hash", inline(hash)));
    }
    if http || pool.protocol != default.protocol {
        keys.push(("protocol", text(pool.protocol.word())));
    }
    keys.extend(pool.tls.as_ref().map(|each| ("tls", tls::pool(each))));
    keys.extend(
        pool.send_proxy
            .map(|version| ("send_proxy", text(if version == ProxyVersion::V1 { "v1" } else { "v2" }))),
    );
    if stream || pool.retry != default.retry {
        keys.push(("retry", retry(&pool.retry, http)));
    }
    let queue = inline(vec![("max", pool.queue.max.to_string()), ("timeout", duration(pool.queue.timeout))]);
    if pool.backends.iter().any(|backend| backend.max_connections.is_some()) || pool.queue != default.queue {
        keys.push(("queue", queue));
    }
    keys.extend(pool.sticky_cookie.as_ref().map(|cookie| ("sticky", inline(vec![("cookie", text(cookie))]))));
    keys.extend(pool.slow_start.map(|time| ("slow_start", duration(time))));
    let keep_alive =
        inline(vec![("max", pool.keep_alive.max.to_string()), ("idle", duration(pool.keep_alive.idle))]);
    if http || pool.keep_alive != default.keep_alive {
        keys.push(("keep_alive", keep_alive));
    }
    sections.push(Section::new(header.clone(), keys));
    sections.push(Section {
        header: format!("{header}.health"),
        repeated: false,
        object: header,
        prefix: "health".to_owned(),
        keys: health(&pool.health, &default.health),
    });
}

fn backend(backend: &Backend) -> String {
    let mut keys = vec![("address", text(&backend.address)), ("weight", backend.weight.to_string())];
    keys.extend(backend.max_connections.map(|most| ("max_connections", most.to_string())));
    if backend.backup {
        keys.push(("backup", "true".to_owned()));
    }
    if keys.len() == 2 && backend.weight == 1 { text(&backend.address) } else { inline(keys) }
}

fn retry(retry: &Retry, http: bool) -> String {
    let mut keys = vec![("attempts", retry.attempts.to_string())];
    // To a pool that relays bytes most of this means nothing, and reading it back would say so.
    if http || retry.on != RETRY_ON {
        keys.push((
            "on",
            list(&retry.on, |failure| match failure {
                RetryOn::Connect => text("connect"),
                RetryOn::Empty => text("empty"),
                RetryOn::Timeout => text("timeout"),
                RetryOn::Status(status) => text(&status.to_string()),
            }),
        ));
    }
    if http || retry.non_idempotent {
        keys.push(("non_idempotent", retry.non_idempotent.to_string()));
    }
    inline(keys)
}

fn health(health: &Health, default: &Health) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    match &health.check {
        Check::Http { path, host, expect_status } => {
            keys.push(("check", text("http")));
            keys.push(("path", text(path)));
            keys.extend(host.as_ref().map(|host| ("host", text(host))));
            let ranges = list(expect_status, |(first, last)| {
                text(&if first == last { first.to_string() } else { format!("{first}-{last}") })
            });
            keys.push(("expect_status", ranges));
        }
        Check::Tcp => keys.push(("check", text("tcp"))),
        Check::Off => keys.push(("check", text("off"))),
    }
    let probes = health.check != Check::Off;
    let mut say = |name, same: bool, value: String| {
        if probes || !same {
            keys.push((name, value));
        }
    };
    say("interval", health.interval == default.interval, duration(health.interval));
    say("fast_interval", health.fast_interval == default.fast_interval, duration(health.fast_interval));
    say("timeout", health.timeout == default.timeout, duration(health.timeout));
    say("rise", health.rise == default.rise, health.rise.to_string());
    say("fall", health.fall == default.fall, health.fall.to_string());
    say("last_resort", health.last_resort == default.last_resort, text(health.last_resort.word()));
    keys.push((
        "passive",
        match &health.passive {
            None => text("off"),
            Some(passive) => inline(vec![
                ("errors", passive.errors.to_string()),
                ("within", duration(passive.within)),
                ("eject", duration(passive.eject)),
                ("max_ejected", format!("{:?}", passive.max_ejected)),
            ]),
        },
    ));
    keys
}

#[cfg(test)]
mod tests;
