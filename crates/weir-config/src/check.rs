//! What no value shows by itself: names that must exist, addresses that clash, keys that contradict each other.
//!
//! Runs over whatever could be read; a key that could not be read has been reported and is not mentioned again.

mod acme;
mod binds;
mod cache;
mod compress;
mod health;
mod listeners;
mod pools;
mod routes;
mod screen;
mod shadow;
mod tls;

use crate::build::{Draft, protocol};
use crate::fields::Fields;
use crate::keys::Only;
use crate::report::Findings;
use crate::schema::Protocol;
use crate::suggest::{nearest, one_of};
use crate::values::Value;

/// Notes every contradiction of a draft.
pub(crate) fn check(draft: &Draft, findings: &mut Findings<'_>) {
    let empty = draft.root.map("listener").is_empty() && !draft.root.is_bad("listener");
    if empty && !draft.root.meant.contains(&"listener") {
        let hint =
            "expected at least `[listener.web]` with `bind` and `pool`, and a `[pool.NAME]` with `backends`";
        findings.error(draft.root.at("listener"), "no listener is defined", hint);
    }
    admin(&draft.root.table("admin"), findings);
    binds::check(draft, findings);
    for (listener, fields) in draft.config.listeners.iter().zip(&draft.listeners) {
        listeners::check(listener, fields, findings);
        tls::listener(draft, listener, fields, findings);
        compress::check(fields, findings);
        pool_exists(draft, fields, findings);
        routes::check(draft, listener, fields, findings);
        screen::check(fields, findings);
    }
    for (pool, fields) in draft.config.pools.iter().zip(&draft.pools) {
        pools::check(draft, pool, fields, findings);
        health::check(draft, pool, fields, findings);
        tls::pool(draft, pool, fields, findings);
    }
}

fn admin(fields: &Fields, findings: &mut Findings<'_>) {
    match fields.value("bind") {
        Some(Value::Bind(address))
            if !address.ip().to_canonical().is_loopback() && fields.get("token_file").is_none() =>
        {
            findings.error(
                fields.at("bind"),
                format!("the admin API at {address} would be open to everyone who can reach it"),
                "add `token_file = \"…\"`, or bind it to 127.0.0.1",
            );
        }
        Some(Value::Off) => {
            if let Some(entry) = fields.get("token_file") {
                findings.warning(entry.key, "`token_file` has no effect", "the admin API is off");
            }
        }
        _ => {}
    }
}

/// Notes a `pool = "…"` that names none.
fn pool_exists(draft: &Draft, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(name) = fields.text("pool") else { return };
    let defined = draft.root.map("pool");
    // `[pool]` itself could not be read: nobody knows what was meant to be there.
    if defined.iter().any(|entry| entry.name == name)
        || draft.root.is_bad("pool")
        || draft.root.meant.contains(&"pool")
    {
        return;
    }
    let names = || defined.iter().map(|entry| entry.name.as_str());
    let hint = match nearest(name, names()).and_then(|near| defined.iter().find(|entry| entry.name == near)) {
        Some(near) => format!("did you mean `{}` ({})?", near.name, findings.place(near.at)),
        None if defined.is_empty() => {
            format!("no pool is defined at all; expected `[pool.{name}]` with `backends`")
        }
        None if defined.len() <= 8 => format!("expected {}, or a new `[pool.{name}]`", one_of(names())),
        None => format!("expected one of the {} pools of this file, or a new `[pool.{name}]`", defined.len()),
    };
    findings.error(fields.at("pool"), format!("no pool is named `{name}`"), hint);
}

/// The word for a protocol.
fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

/// Whether a key means something to a protocol.
fn applies(only: Only, protocol: Protocol) -> bool {
    match only {
        Only::Any => true,
        Only::Http => protocol == Protocol::Http,
        Only::Stream => protocol != Protocol::Udp,
        Only::Tcp => protocol == Protocol::Tcp,
    }
}

/// Who a key is for.
fn audience(only: Only) -> &'static str {
    match only {
        Only::Any => "every listener",
        Only::Http => "http",
        Only::Stream => "http and tcp",
        Only::Tcp => "tcp",
    }
}

/// "listener `vip` speaks tcp (weir.toml:3:12)".
fn speaks(draft: &Draft, listener: usize, findings: &Findings<'_>) -> String {
    let (Some(fields), Some(config)) = (draft.listeners.get(listener), draft.config.listeners.get(listener))
    else {
        return String::new();
    };
    let protocol = protocol(fields).map_or("?", word);
    format!("listener `{}` speaks {protocol} ({})", config.name, findings.place(fields.at("protocol")))
}
