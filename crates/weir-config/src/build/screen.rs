//! What a listener or a route asks of its requests.

use weir_screen::{Checkpoint, ConcurrencyLimit, Key, Pattern, Rate, RateLimit, Settings};

use super::{collect, network};
use crate::fields::Fields;
use crate::limits;
use crate::schema::{Sqli, SqliMode};
use crate::values::Value;

pub(super) fn screen(fields: &Fields) -> Settings {
    let patterns = |name: &str| collect(fields, name, pattern);
    let tables = |name: &str| {
        collect(fields, name, |value| match value {
            Value::Table(fields) => Some(fields.clone()),
            _ => None,
        })
    };
    Settings {
        deny_address: collect(fields, "deny_address", network),
        allow_address: collect(fields, "allow_address", network),
        deny_method: patterns("deny_method"),
        allow_method: patterns("allow_method"),
        deny_path: patterns("deny_path"),
        allow_path: patterns("allow_path"),
        deny_user_agent: patterns("deny_user_agent"),
        allow_user_agent: patterns("allow_user_agent"),
        rate_limit: tables("rate_limit").iter().map(rate_limit).collect(),
        concurrency_limit: tables("concurrency_limit").iter().map(concurrency_limit).collect(),
    }
}

/// How requests are looked at for SQL injection; what a route does not say is as its listener (`above`) has it.
pub(super) fn sqli(fields: &Fields, above: Option<Sqli>) -> Sqli {
    let mode = match fields.word("sqli") {
        "report" => SqliMode::Report,
        "block" => SqliMode::Block,
        _ => SqliMode::Off,
    };
    let here = Sqli { mode, body_bytes: fields.number("sqli_body") };
    let above = above.unwrap_or(here);
    let says = |name: &str| fields.get(name).is_some();
    Sqli {
        mode: if says("sqli") { here.mode } else { above.mode },
        body_bytes: if says("sqli_body") { here.body_bytes } else { above.body_bytes },
    }
}

fn pattern(value: &Value) -> Option<Pattern> {
    match value {
        Value::Pattern(pattern) => Some(pattern.clone()),
        _ => None,
    }
}

/// What the file says, or one a second where it could not be read.
pub(crate) fn rate(fields: &Fields) -> Rate {
    match fields.value("rate") {
        Some(Value::RequestRate(rate)) => *rate,
        _ => Rate { count: 1, per: std::time::Duration::from_secs(1) },
    }
}

fn rate_limit(fields: &Fields) -> RateLimit {
    let (rate, key) = (rate(fields), key(fields));
    // Where there is one bucket only, how many there may be says nothing.
    let most =
        if key.is_whole() { limits::RATE_KEYS.default.unwrap_or_default() } else { fields.number("keys") };
    RateLimit {
        rate,
        burst: fields.optional_count("burst").unwrap_or_else(|| rate.in_a_second()),
        key,
        at: checkpoint(fields),
        dry_run: fields.flag("dry_run"),
        status: status(fields),
        keys: u32::try_from(most).unwrap_or(u32::MAX),
    }
}

fn concurrency_limit(fields: &Fields) -> ConcurrencyLimit {
    ConcurrencyLimit {
        max: fields.count("max").max(1),
        key: key(fields),
        at: checkpoint(fields),
        dry_run: fields.flag("dry_run"),
        status: status(fields),
    }
}

fn key(fields: &Fields) -> Key {
    let bits = |name: &str| u8::try_from(fields.number(name)).unwrap_or(u8::MAX);
    match fields.value("key") {
        Some(Value::LimitKey(key)) if !matches!(key, Key::ClientIp { .. }) => key.clone(),
        _ => Key::ClientIp { v4_bits: bits("ipv4_prefix"), v6_bits: bits("ipv6_prefix") },
    }
}

fn checkpoint(fields: &Fields) -> Checkpoint {
    if fields.word("at") == "origin" { Checkpoint::Origin } else { Checkpoint::Edge }
}

fn status(fields: &Fields) -> u16 {
    u16::try_from(fields.number("status")).unwrap_or(429)
}
