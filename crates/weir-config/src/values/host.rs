//! Hosts: those that routes match, and those that Weir writes.

use std::fmt;

use weir_screen::{Case, Pattern};

use super::address::host_name;
use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

/// A host that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host, lower case, without port.
    Exact(String),
    /// `*.example`: any name that ends in `.example` (the string kept here, with its dot).
    Suffix(String),
    /// Any host in which this expression matches, without regard to case (written behind a `~`).
    Regex(Pattern),
}

/// A host, a wildcard or an expression.
pub(crate) static HOST: Shape =
    Shape::new("a host", "*.shop.example", |text| host(text).map(|host| host.to_string()));

/// A host or a wildcard.
pub(crate) static PLAIN_HOST: Shape = Shape::new("a host", "*.shop.example", |text| {
    match text.strip_prefix('~') {
        Some(_) => refuse(
            format!("{} is not a host", quote(text)),
            "expressions are for the hosts of HTTP: name these, or write `*.` before what they have in common",
        ),
        None => host(text).map(|host| host.to_string()),
    }
});

/// The host name in a TLS client's SNI: no wildcard.
pub(crate) static SERVER_NAME: Shape = Shape::new("a host name", "app.internal", server_name);

/// The value of a `host` field: a host, optionally with a port.
pub(crate) static HOST_FIELD: Shape = Shape::new("a host", "shop.example", host_field);

one!(HostPattern, Value::Text(text) => host(text).ok(), |it| Value::Text(it.to_string()), HostPattern::Exact(String::new()));

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(host) => f.write_str(host),
            HostPattern::Suffix(suffix) => write!(f, "*{suffix}"),
            HostPattern::Regex(expression) => write!(f, "{expression}"),
        }
    }
}

impl HostPattern {
    /// Whether it matches every host that `other` matches.
    pub(crate) fn covers(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (HostPattern::Exact(a), HostPattern::Exact(b)) => a == b,
            (HostPattern::Suffix(a), HostPattern::Exact(b) | HostPattern::Suffix(b)) => {
                b.ends_with(a.as_str())
            }
            (HostPattern::Regex(a), HostPattern::Exact(b)) => a.matches(b.as_bytes()),
            (HostPattern::Regex(a), HostPattern::Regex(b)) => a == b,
            _ => false,
        }
    }
}

pub(crate) fn host(text: &str) -> Result<HostPattern, Refused> {
    let message = format!("{} is not a host", quote(text));
    if text.is_empty() || text == "*" {
        return refuse(message, "leave `host` out to match every host");
    }
    if text.starts_with('~') {
        return Pattern::parse(text, Case::Ignored)
            .map(HostPattern::Regex)
            .map_err(|hint| Refused { message, hint });
    }
    if let Some((_, rest)) = text.split_once("://") {
        return refuse(
            message,
            format!("leave out the scheme: \"{}\"", rest.split('/').next().unwrap_or(rest)),
        );
    }
    if let Some((host, path)) = text.split_once('/') {
        return refuse(message, format!("the path goes into `path`: host = \"{host}\", path = \"/{path}\""));
    }
    let (wildcard, name) = match text.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if name.contains('*') {
        return refuse(message, "a `*` stands only at the front, before a dot, such as \"*.shop.example\"");
    }
    let lower = name.to_ascii_lowercase();
    if let Some(inner) = lower.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match inner.parse::<std::net::Ipv6Addr>() {
            Ok(address) if !wildcard => Ok(HostPattern::Exact(format!("[{address}]"))),
            _ => refuse(message, format!("{} is not an IPv6 address", quote(inner))),
        };
    }
    if let Some((host, port)) = name.rsplit_once(':') {
        let hint = match port.parse::<u16>() {
            Ok(_) => format!(
                "leave out the port, a route takes every port: \"{}{host}\"",
                if wildcard { "*." } else { "" }
            ),
            Err(_) => "a host name cannot hold `:`".to_owned(),
        };
        return refuse(message, hint);
    }
    if let Some(name) = name.strip_suffix('.') {
        return refuse(
            message,
            format!("leave out the last dot: \"{}{name}\"", if wildcard { "*." } else { "" }),
        );
    }
    host_name(&lower).map_err(|hint| Refused { message, hint })?;
    Ok(if wildcard { HostPattern::Suffix(format!(".{lower}")) } else { HostPattern::Exact(lower) })
}

fn server_name(text: &str) -> Result<String, Refused> {
    match host(text)? {
        HostPattern::Exact(name) => Ok(name.trim_matches(['[', ']']).to_owned()),
        _ => refuse(format!("{} is not a host name", quote(text)), "one name is asked for: a `*` can't be"),
    }
}

pub(crate) fn host_field(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a host", quote(text));
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !text.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return refuse(message, "expected a host such as \"shop.example\" or \"shop.example:8080\"");
    }
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match bracketed.map(|inner| inner.parse::<std::net::Ipv6Addr>()) {
        Some(Ok(_)) => {}
        Some(Err(_)) => return refuse(message, format!("{} is not an IPv6 address", quote(name))),
        None if name.is_empty() => return refuse(message, "expected a host such as \"shop.example\""),
        None => host_name(name).map_err(|hint| Refused { message, hint })?,
    }
    Ok(text.to_owned())
}
