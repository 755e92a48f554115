//! Limits that count by what is not there, or where nothing comes by.

use std::time::Duration;

use weir_screen::Key;

use crate::build::{protocol, request_rate};
use crate::fields::Fields;
use crate::limits;
use crate::report::Findings;
use crate::schema::Protocol;
use crate::units::show_duration;
use crate::values::Value;

/// Notes what is wrong with the limits of a listener and of its routes.
pub(super) fn check(listener: &Fields, findings: &mut Findings<'_>) {
    if protocol(listener).is_some_and(|protocol| protocol != Protocol::Http) {
        return;
    }
    limits_of(listener, "route", "listener", findings);
    for (_, value) in listener.list("route") {
        let Value::Table(route) = value else { continue };
        limits_of(route, "listener", "route", findings);
        never_forwarded(route, findings);
    }
}

fn tables<'f>(fields: &'f Fields, name: &str) -> impl Iterator<Item = &'f Fields> {
    fields.list(name).iter().filter_map(|(_, value)| match value {
        Value::Table(fields) => Some(fields),
        _ => None,
    })
}

fn limits_of(fields: &Fields, wrong: &str, right: &str, findings: &mut Findings<'_>) {
    for name in ["rate_limit", "concurrency_limit"] {
        let count = fields.list(name).len();
        if count > limits::LIMIT_COUNT {
            let hint = format!("expected at most {}", limits::LIMIT_COUNT);
            findings.error(fields.at(name), format!("`{name}` has {count} limits"), hint);
        }
        for limit in tables(fields, name) {
            key(limit, wrong, right, findings);
        }
    }
    for limit in tables(fields, "rate_limit") {
        burst(limit, findings);
    }
}

fn key(limit: &Fields, wrong: &str, right: &str, findings: &mut Findings<'_>) {
    let Some(Value::LimitKey(key)) = limit.value("key") else { return };
    if key.to_string() == wrong {
        let message = format!("a limit of a {right} cannot count by {wrong}");
        findings.error(limit.at("key"), message, format!("did you mean \"{right}\"?"));
    }
    if !matches!(key, Key::ClientIp { .. }) {
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
    let (Some(burst), Some(Value::RequestRate(_))) = (limit.optional_count("burst"), limit.value("rate"))
    else {
        return;
    };
    let rate = request_rate(limit);
    let fill = Duration::from_secs_f64(f64::from(burst) * rate.per.as_secs_f64() / f64::from(rate.count));
    if fill > limits::BURST_FILL {
        let longest = show_duration(limits::BURST_FILL);
        let message = format!("at {rate} a burst of {burst} is whole again only after more than {longest}");
        findings.error(limit.at("burst"), message, "expected a smaller burst, or a higher rate");
    }
}

/// Where nothing is forwarded nothing is counted at the origin.
fn never_forwarded(route: &Fields, findings: &mut Findings<'_>) {
    if route.get("pool").is_some() {
        return;
    }
    let Some(action) = ["redirect", "respond"].into_iter().find(|action| route.get(action).is_some()) else {
        return;
    };
    for name in ["rate_limit", "concurrency_limit"] {
        for limit in tables(route, name).filter(|limit| limit.word("at") == "origin") {
            let hint = format!("nothing is forwarded: the route answers by `{action}`");
            findings.warning(limit.at("at"), format!("`{name}` has no effect at the origin"), hint);
        }
    }
}
