//! A route's `cache`: keys that contradict each other or do nothing.

use crate::fields::Fields;
use crate::report::Findings;
use crate::values::Value;

pub(super) fn check(route: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = route.get("cache") else { return };
    let Value::Table(fields) = &entry.value else { return };
    for name in ["redirect", "respond"] {
        if route.get(name).is_some() && route.get("pool").is_none() {
            let hint = format!("there is nothing to keep: the route answers by `{name}`");
            findings.error(entry.key, format!("`cache` cannot stand beside `{name}`"), hint);
            return;
        }
    }
    if fields.flag("ignore_query") {
        for name in ["query_only", "query_without", "query_sort"] {
            if let Some(entry) = fields.get(name) {
                let hint = "`ignore_query` leaves the whole query out already; keep one";
                findings.error(entry.key, format!("`{name}` cannot stand beside `ignore_query`"), hint);
            }
        }
    }
    if let (Some(only), Some(without)) = (fields.get("query_only"), fields.get("query_without")) {
        let hint = format!(
            "`query_only` ({}) leaves out everything else already; keep one",
            findings.place(only.key)
        );
        findings.error(without.key, "`query_without` cannot stand beside `query_only`", hint);
    }
    longest(fields, findings);
}

/// `ttl` above `ttl_max` would never hold.
fn longest(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(most) = fields.optional_duration("ttl_max") else { return };
    for name in ["ttl", "negative_ttl"] {
        if !fields.is_bad(name) && fields.optional_duration(name).is_some_and(|ttl| ttl > most) {
            let hint = format!("`ttl_max` ({}) cuts it off", findings.place(fields.at("ttl_max")));
            findings.error(fields.at(name), format!("`{name}` is above `ttl_max`"), hint);
        }
    }
}
