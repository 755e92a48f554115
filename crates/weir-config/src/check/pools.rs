//! Pools: who uses them, and what their backends add up to.

use std::collections::BTreeMap;

use weir_balance::Algorithm;

use super::{applies, audience, speaks};
use crate::build::{Draft, Use};
use crate::fields::Fields;
use crate::keys::Only;
use crate::report::{Findings, Span};
use crate::schema::{HashKey, Pool, Protocol};
use crate::values::{Value, same_backend};

pub(super) fn check(draft: &Draft, pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    backends(pool, fields, findings);
    hash(draft, pool, fields, findings);
    listeners(draft, pool, fields, findings);
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
    if draft.uses.of(&pool.name).is_empty() {
        findings.warning(
            fields.at,
            format!("pool `{}` is never used", pool.name),
            "no listener and no route names it",
        );
    }
}

fn backends(pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
    for (at, value) in fields.list("backends") {
        let Value::Table(backend) = value else { continue };
        let Some(address) = backend.text("address") else { continue };
        match seen.get(&same_backend(address)) {
            Some((first, place)) => {
                let same =
                    if *first == address { String::new() } else { format!("; it is the same as `{first}`") };
                let hint = format!(
                    "the first is at {}{same}; use `weight` for a larger share",
                    findings.place(*place)
                );
                findings.error(*at, format!("backend `{address}` is said twice"), hint);
            }
            None => drop(seen.insert(same_backend(address), (address, *at))),
        }
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

fn hash(draft: &Draft, pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    let hash = fields.table("hash");
    let algorithm = pool.balance;
    if let Some(entry) = hash.get("key") {
        if !fields.is_bad("balance") && !matches!(algorithm, Algorithm::Hash | Algorithm::Maglev) {
            let hint =
                format!("it is for `balance = \"hash\"` and `\"maglev\"`, and this pool has \"{algorithm}\"");
            findings.warning(entry.key, "`key` has no effect", hint);
        }
        if let Some(other) = user(draft, pool, |protocol| protocol != Protocol::Http)
            && hash.value("key").is_some()
            && pool.hash.key != HashKey::ClientIp
        {
            let what = match &pool.hash.key {
                HashKey::Header(_) => "a header field",
                HashKey::Cookie(_) => "a cookie",
                _ => "a URI",
            };
            let speaks = speaks(draft, other.listener, findings);
            if user(draft, pool, |protocol| protocol == Protocol::Http).is_some() {
                let message = format!("not every client of pool `{}` has {what}", pool.name);
                findings.warning(
                    entry.at,
                    message,
                    format!("{speaks} and hashes the client's address instead"),
                );
            } else {
                let hint = format!("only http has one, and {speaks}; expected \"client_ip\"");
                findings.error(entry.at, format!("pool `{}` cannot hash {what}", pool.name), hint);
            }
        }
    }
    if let Some(entry) = hash.get("bounded")
        && !fields.is_bad("balance")
        && !matches!(algorithm, Algorithm::Hash | Algorithm::Source)
    {
        let hint =
            format!("it is for `balance = \"hash\"` and `\"source\"`, and this pool has \"{algorithm}\"");
        findings.warning(entry.key, "`bounded` has no effect", hint);
    }
}

/// The first place that uses a pool from a listener with such a protocol.
fn user<'d>(draft: &'d Draft, pool: &Pool, wanted: impl Fn(Protocol) -> bool) -> Option<&'d Use> {
    draft.uses.of(&pool.name).iter().find(|place| place.protocol.is_some_and(&wanted))
}

/// Keys that mean nothing to the listeners which use the pool.
fn listeners(draft: &Draft, pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    for entry in &fields.entries {
        let Some(only) = fields.schema.key(&entry.name).map(|key| key.only).filter(|only| *only != Only::Any)
        else {
            continue;
        };
        let Some(other) = user(draft, pool, |protocol| !applies(only, protocol)) else { continue };
        let speaks = speaks(draft, other.listener, findings);
        let said_in_vain = user(draft, pool, |protocol| applies(only, protocol)).is_none();
        // These change where a client ends up or what a backend believes; the rest only tunes what is not done at all.
        let promise = matches!(entry.name.as_str(), "sticky" | "send_proxy");
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
    let tcp_only = user(draft, pool, |protocol| protocol == Protocol::Http).is_none();
    if let Some(other) = user(draft, pool, |protocol| protocol == Protocol::Tcp).filter(|_| tcp_only) {
        let retry = fields.table("retry");
        for (at, value) in retry.list("on") {
            if let Value::Word(word) = value
                && *word != "connect"
            {
                let hint = format!(
                    "bytes that were sent cannot be sent again: {}; expected \"connect\"",
                    speaks(draft, other.listener, findings)
                );
                findings.warning(*at, format!("a retry on `{word}` has no effect"), hint);
            }
        }
    }
}
