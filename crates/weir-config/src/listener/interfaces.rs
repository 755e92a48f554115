//! `interface` of a listener whose sockets are bound to it.

use std::net::SocketAddr;

use crate::fields::{Fields, Value};
use crate::plane::{self, Plane};
use crate::report::Findings;
use crate::setting::One as _;
use crate::values;
use crate::values::bind::Bind;

/// Reports interfaces that no socket can be bound to, and addresses that can't have one.
pub(super) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    values::said_once(fields, "interface", findings);
    let Some(entry) = fields.get("interface") else { return };
    // On the other planes patterns are allowed, and `plane` reports what they do not support.
    if fields.is_bad("plane") || !matches!(plane::asked(fields), None | Some(Plane::Proxy)) {
        return;
    }
    for (at, value) in fields.list("interface") {
        let Value::Text(text) = value else { continue };
        if text.contains('*') {
            let hint = "sockets are bound to one each, which must be there: name them";
            findings.error(*at, format!("`{text}` is not one interface"), hint);
        }
    }
    for (at, value) in fields.list("bind") {
        match Bind::of(value) {
            Some(bind @ Bind::Unix(_)) => {
                let hint = format!(
                    "it comes by none: give it a listener of its own, without `interface` ({})",
                    findings.place(entry.key)
                );
                findings.error(*at, format!("`{bind}` has no interface"), hint);
            }
            Some(Bind::Inet(bind)) if has_interface(bind.first) => {
                let hint = format!(
                    "`interface` says it already ({}): expected the address without `%`",
                    findings.place(entry.key)
                );
                findings.error(*at, format!("`{bind}` says its interface, too"), hint);
            }
            Some(Bind::Inet(_)) | None => {}
        }
    }
}

/// `[fe80::1%2]:80` names an interface by its index.
fn has_interface(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.scope_id() != 0)
}
