//! `upstream`, and the addresses of `proxy_pass`: pools.

use weir_config::quoted;

use super::conversion::Conversion;
use super::ledger::NginxLedger;
use super::pool_settings::{balance, keep_alive, source, sticky, tls};
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::units::{duration_between, nginx_time};
use super::variables::NginxPlace;
use crate::DirectiveVerdict;
use crate::write::line;

use std::time::Duration;

/// Pools that were written, in their order.
#[derive(Debug, Default)]
pub struct NewPools {
    pools: Vec<(String, String)>,
}

impl NewPools {
    /// The name of a pool with this body; it is written if there is none yet. `base` is the name that is
    /// wished for.
    fn name_of(&mut self, base: &str, body: &str) -> String {
        let mut base: String = base
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' })
            .collect();
        base = base.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
        base.truncate(56);
        if base.is_empty() {
            "pool".clone_into(&mut base);
        }
        for number in 1.. {
            let name = if number == 1 { base.clone() } else { format!("{base}-{number}") };
            match self.pools.iter().find(|(other, _)| *other == name) {
                Some((_, other)) if other == body => return name,
                Some(_) => {}
                None => {
                    self.pools.push((name.clone(), body.to_owned()));
                    return name;
                }
            }
        }
        base
    }

    /// The tables of the pools that a text names.
    pub fn stubs_for(&self, text: &str) -> String {
        let named = self.pools.iter().filter(|(name, _)| text.contains(&format!("\"{name}\"")));
        named.map(|(name, body)| format!("\n[pool.{}]\n{body}", quoted_name(name))).collect()
    }

    /// The tables of all pools.
    pub fn stubs(&self) -> String {
        let show = |(name, body): &(String, String)| format!("\n[pool.{}]\n{body}", quoted_name(name));
        self.pools.iter().map(show).collect()
    }
}

/// A name as a part of a table's name: in quotes where it has a dot.
fn quoted_name(name: &str) -> String {
    super::request_test::toml_key(name)
}

/// Whom a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// `proxy_pass` and `grpc_pass` of HTTP.
    Http {
        /// `grpc_pass`
        is_grpc: bool,
        /// `https://`, `grpcs://`
        has_tls: bool,
    },
    /// `proxy_pass` of a stream.
    Stream {
        /// `proxy_ssl on`
        has_tls: bool,
    },
}

impl PoolKind {
    /// Whether it is spoken to with TLS.
    pub fn has_tls(self) -> bool {
        match self {
            PoolKind::Http { has_tls, .. } | PoolKind::Stream { has_tls } => has_tls,
        }
    }

    fn default_port(self) -> u16 {
        match self {
            PoolKind::Http { has_tls: true, .. } => 443,
            _ => 80,
        }
    }
}

/// A pool as routes use it.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// How many backends it has (count), those of a name as one.
    pub size: usize,
}

/// The pool of an upstream or an address. `Err` says why there is none.
pub fn pool(
    conversion: &mut Conversion<'_>,
    authority: &str,
    kind: PoolKind,
    scope: &NginxScope<'_>,
    place: &NginxPlace,
) -> Result<FoundPool, String> {
    let mut body = String::new();
    let upstream = conversion.upstreams.get(authority).copied();
    let size = match upstream {
        Some(upstream) => of_upstream(conversion, upstream, place, &mut body)?,
        None => {
            let address = with_port(authority, kind.default_port())?;
            line(&mut body, "backends", format!("[{}]", quoted(&address)));
            1
        }
    };
    if let PoolKind::Http { is_grpc: true, .. } = kind {
        line(&mut body, "protocol", quoted("h2"));
    } else if scope.one("proxy_http_version").is_some_and(|version| version.word(0) == "2") {
        line(&mut body, "protocol", quoted("h2"));
    }
    if kind.has_tls() {
        line(&mut body, "tls", tls(conversion, scope, place));
    }
    source(conversion, scope, &mut body);
    if let PoolKind::Stream { .. } = kind
        && let Some(directive) = scope.one("proxy_protocol").filter(|directive| directive.word(0) == "on")
    {
        line(&mut body, "send_proxy", quoted("v1"));
        conversion.ledger.exact(directive, "`send_proxy` of the pool");
    }
    let health = match upstream {
        Some(upstream) if size > 1 => passive(conversion, upstream, scope),
        _ => "\"off\"".to_owned(),
    };
    line(&mut body, "health", health);
    refused(&body, &conversion.maps.stubs(), kind)?;
    Ok(FoundPool { name: conversion.pools.name_of(authority, &body), size })
}

/// Why Weir would refuse a pool with this body.
fn refused(body: &str, maps: &str, kind: PoolKind) -> Result<(), String> {
    let protocol = if matches!(kind, PoolKind::Http { .. }) { "http" } else { "tcp" };
    let text = format!(
        "[listener.x]\nbind = \"127.0.0.1:1\"\nprotocol = \"{protocol}\"\npool = \"x\"\n[pool.x]\n{body}{maps}"
    );
    match weir_config::check_text("", &text) {
        Ok(_) => Ok(()),
        Err(report) => {
            Err(report.problems.first().map_or_else(String::new, |problem| problem.message.clone()))
        }
    }
}

/// An address with a port. `Err` says why it is none.
pub fn with_port(authority: &str, default: u16) -> Result<String, String> {
    if authority.contains('$') {
        return Err(format!("`{authority}` is chosen by the request"));
    }
    if let Some(path) = authority.strip_prefix("unix:") {
        return Ok(format!("unix:{}", path.trim_end_matches(':')));
    }
    if authority.is_empty() {
        return Err("it names no address".to_owned());
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        && !authority.ends_with(']');
    Ok(if has_port { authority.to_owned() } else { format!("{authority}:{default}") })
}

/// Writes the backends of an upstream, and how one is chosen. Gives their number.
fn of_upstream(
    conversion: &mut Conversion<'_>,
    upstream: &NginxDirective,
    place: &NginxPlace,
    body: &mut String,
) -> Result<usize, String> {
    let mut backends: Vec<(String, String)> = Vec::new();
    for server in upstream.inner().iter().filter(|directive| directive.name == "server") {
        let (address, rest) = backend(server, &mut conversion.ledger)?;
        match backends.iter().any(|(other, _)| *other == address) {
            true => {
                conversion.ledger.approximate(server, "it stands here already: give the first one a `weight`")
            }
            false => backends.push((address, rest)),
        }
    }
    if backends.is_empty() {
        return Err(format!("upstream `{}` has no servers that can be said", upstream.word(0)));
    }
    let shown: Vec<String> = backends
        .iter()
        .map(|(address, rest)| match rest.is_empty() {
            true => quoted(address),
            false => format!("{{ address = {}{rest} }}", quoted(address)),
        })
        .collect();
    match shown.as_slice() {
        [one] => line(body, "backends", format!("[{one}]")),
        more => line(body, "backends", format!("[\n  {},\n]", more.join(",\n  "))),
    }
    let inner = NginxScope::default().within(upstream.inner());
    conversion.ledger.exact(upstream, "a pool for each way in which it is used");
    balance(conversion, &inner, place, body);
    keep_alive(conversion, &inner, body);
    sticky(conversion, &inner, body);
    for name in ["zone", "state"] {
        for directive in inner.own(name) {
            conversion.ledger.exact(directive, "not needed: all workers share the state of a pool");
        }
    }
    Ok(backends.len())
}

/// The address of a `server`, and its other keys.
fn backend(server: &NginxDirective, ledger: &mut NginxLedger) -> Result<(String, String), String> {
    let mut address = with_port(server.word(0), 80)?;
    let mut rest = String::new();
    let mut doubts: Vec<String> = Vec::new();
    let mut is_down = false;
    for word in server.words.iter().skip(1) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "weight" => {
                let weight: u64 = value.parse().unwrap_or(1);
                if weight > 256 {
                    doubts.push("weights go to 256".to_owned());
                }
                rest.push_str(&format!(", weight = {}", weight.clamp(1, 256)));
            }
            "max_conns" => match value.parse::<u64>() {
                Ok(0) | Err(_) => {}
                Ok(most) => {
                    rest.push_str(&format!(", max_connections = {most}"));
                    doubts.push("`max_connections` is over all workers, and what is beyond waits in the pool's `queue`".to_owned());
                }
            },
            "backup" => rest.push_str(", backup = true"),
            "down" | "drain" => is_down = true,
            "resolve" => rest.push_str(", resolve = \"all\""),
            "service" => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                let value = if value.starts_with('_') { value.to_owned() } else { format!("_{value}._tcp") };
                address = format!("{value}.{host}");
            }
            // Of the whole pool: see `passive`.
            "max_fails" | "fail_timeout" => {}
            "slow_start" => doubts.push("`slow_start` is a key of the pool: left out".to_owned()),
            "route" => {
                doubts.push("`route` has no counterpart: `sticky` finds backends by itself".to_owned())
            }
            other => doubts.push(format!("`{other}` is not known here: left out")),
        }
    }
    if address.starts_with('_') {
        rest = rest.replace(", resolve = \"all\"", "");
    }
    if is_down {
        rest = rest.split(", weight").next().unwrap_or_default().to_owned() + ", weight = 0";
    }
    match doubts.is_empty() {
        true => ledger.exact(server, "a backend of the pool"),
        false => ledger.approximate(server, format!("a backend of the pool; {}", doubts.join("; "))),
    }
    Ok((address, rest))
}

/// How servers that fail are left out: `max_fails` and `fail_timeout`, and what counts as a failure.
fn passive(conversion: &mut Conversion<'_>, upstream: &NginxDirective, scope: &NginxScope<'_>) -> String {
    let mut fails: Vec<(u64, Duration)> = Vec::new();
    for server in upstream.inner().iter().filter(|directive| directive.name == "server") {
        let value =
            |name: &str| server.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let most = value("max_fails").and_then(|text| text.parse().ok()).unwrap_or(1);
        let time = value("fail_timeout").and_then(nginx_time).unwrap_or(Duration::from_secs(10));
        if !fails.is_empty() && fails[0] != (most, time) {
            conversion.ledger.approximate(
                server,
                "`max_fails` and `fail_timeout` are of the pool: those of its first server",
            );
        }
        fails.push((most, time));
    }
    conversion.ledger.unsaid(
        "max_fails, fail_timeout",
        DirectiveVerdict::Approximate,
        "`passive` of `health`: so many failures in that time leave a backend out for that time, and longer each time that it goes on; there are no probes, as in nginx: \
         take `check = \"off\"` out to have them",
    );
    let (most, time) = fails.first().copied().unwrap_or((1, Duration::from_secs(10)));
    if most == 0 {
        return "{ check = \"off\", passive = \"off\" }".to_owned();
    }
    let time = duration_between(time, Duration::from_millis(100), Duration::from_secs(3600));
    let statuses = failing_statuses(scope);
    format!(
        "{{ check = \"off\", passive = {{ errors = {most}, within = {time}, eject = {time}, max_ejected = 1.0, statuses = [{statuses}] }} }}"
    )
}

/// The statuses that are failures of a backend: those of `proxy_next_upstream`. None is said by one that no
/// backend has.
fn failing_statuses(scope: &NginxScope<'_>) -> String {
    let words = scope.one("proxy_next_upstream").map(|directive| directive.words.clone()).unwrap_or_default();
    let statuses = words.iter().filter_map(|word| word.strip_prefix("http_"));
    let statuses: Vec<String> = statuses
        .filter(|status| matches!(*status, "500" | "502" | "503" | "504" | "429"))
        .map(quoted)
        .collect();
    if statuses.is_empty() { "\"599\"".to_owned() } else { statuses.join(", ") }
}
