//! Listeners: what they need, and what means nothing to them.

use super::{applies, audience, word};
use crate::build::protocol;
use crate::fields::Fields;
use crate::report::Findings;
use crate::schema::{Listener, Protocol};
use crate::values::Value;

pub(super) fn check(listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(protocol) = protocol(fields) else { return };
    inapplicable(listener, fields, fields, protocol, findings);
    if fields.lacks("pool") {
        no_pool(listener, fields, protocol, findings);
    }
    if let (Some(most), Some(entry)) =
        (listener.max_connections_per_client, fields.get("max_connections_per_client"))
        && most > listener.max_connections
        && fields.value("max_connections").is_some()
    {
        let hint = format!(
            "`max_connections` is {} already ({})",
            listener.max_connections,
            findings.place(fields.at("max_connections"))
        );
        findings.warning(entry.at, "`max_connections_per_client` has no effect", hint);
    }
    let limits = fields.table("limits");
    if limits.value("header").is_some()
        && limits.value("request_line").is_some()
        && listener.limits.request_line_bytes > listener.limits.header_bytes
    {
        let hint = format!("the whole head is bounded by `header` ({})", findings.place(limits.at("header")));
        findings.warning(limits.at("request_line"), "a request line this long never fits", hint);
    }
}

/// Keys that only other protocols know. A table that means nothing is named once, not once for each of its keys.
fn inapplicable(
    listener: &Listener,
    listener_fields: &Fields,
    fields: &Fields,
    protocol: Protocol,
    findings: &mut Findings<'_>,
) {
    for entry in &fields.entries {
        let Some(key) = fields.schema.key(&entry.name) else { continue };
        if applies(key.only, protocol) {
            let below = match &entry.value {
                value @ Value::Table(_) => std::slice::from_ref(value).iter().collect(),
                Value::List(list) => list.iter().map(|(_, value)| value).collect(),
                _ => Vec::new(),
            };
            for value in below {
                if let Value::Table(below) = value {
                    inapplicable(listener, listener_fields, below, protocol, findings);
                }
            }
            continue;
        }
        let place = findings.place(listener_fields.at("protocol"));
        let message = format!("`{}` means nothing to a {} listener", key.name, word(protocol));
        let hint = format!(
            "it is for {}, and `{}` speaks {} ({place})",
            audience(key.only),
            listener.name,
            word(protocol)
        );
        findings.error(entry.key, message, hint);
    }
}

fn no_pool(listener: &Listener, fields: &Fields, protocol: Protocol, findings: &mut Findings<'_>) {
    if protocol == Protocol::Udp || protocol == Protocol::Tcp && fields.lacks("route") {
        let hint = match protocol {
            Protocol::Udp => "a udp listener has no routes: expected `pool = \"NAME\"`",
            _ => "expected `pool = \"NAME\"`, or routes by `sni`",
        };
        findings.error(fields.at, format!("listener `{}` has no `pool`", listener.name), hint);
    } else if fields.lacks("route") {
        let hint = "it has no `pool` and no `[[route]]`";
        findings.warning(
            fields.at,
            format!("listener `{}` answers every request with 404", listener.name),
            hint,
        );
    }
}
