//! Routes: one thing each, and each reachable.

use std::collections::BTreeMap;

use super::{cache, compress, pool_exists, shadow};
use crate::build::{Draft, protocol};
use crate::fields::Fields;
use crate::report::{Findings, Span};
use crate::schema::{Listener, PathPattern, Protocol};
use crate::values::Value;

const ACTIONS: [&str; 3] = ["pool", "redirect", "respond"];

pub(super) fn check(draft: &Draft, listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    if protocol(fields) == Some(Protocol::Udp) {
        return;
    }
    let mut names: BTreeMap<&str, Span> = BTreeMap::new();
    for (_, value) in fields.list("route") {
        let Value::Table(route) = value else { continue };
        pool_exists(draft, route, findings);
        compress::check(route, findings);
        action(route, protocol(fields), findings);
        rewrite(route, findings);
        cache::check(route, findings);
        respond(&route.table("respond"), findings);
        if let Some(name) = route.text("name") {
            match names.get(name) {
                Some(first) => {
                    let hint = format!("the first is at {}", findings.place(*first));
                    findings.error(
                        route.at("name"),
                        format!("two routes of `{}` are named `{name}`", listener.name),
                        hint,
                    );
                }
                None => drop(names.insert(name, route.at("name"))),
            }
        }
    }
    shadow::check(listener, fields, findings);
}

fn action(route: &Fields, protocol: Option<Protocol>, findings: &mut Findings<'_>) {
    let given: Vec<_> = route.entries.iter().filter(|entry| ACTIONS.contains(&entry.name.as_str())).collect();
    match given.as_slice() {
        [] if ACTIONS.iter().any(|action| !route.lacks(action)) => {}
        [] => {
            let hint = match protocol {
                Some(Protocol::Tcp) => "expected `pool = \"NAME\"`",
                _ => {
                    "expected one of `pool = \"NAME\"`, `redirect = { to = \"…\" }` or `respond = { status = 200 }`"
                }
            };
            findings.error(route.at, "the route does nothing", hint);
        }
        [only] => {
            if only.name != "pool" {
                for name in ["add_request_header", "body_limit", "compress"] {
                    if let Some(entry) = route.get(name) {
                        let hint = format!("nothing is forwarded: the route answers by `{}`", only.name);
                        findings.warning(entry.key, format!("`{name}` has no effect"), hint);
                    }
                }
            }
        }
        [first, rest @ ..] => {
            for other in rest {
                let hint = format!(
                    "`{}` says already what to do ({}); keep one",
                    first.name,
                    findings.place(first.key)
                );
                findings.error(
                    other.key,
                    format!("a route cannot have both `{}` and `{}`", first.name, other.name),
                    hint,
                );
            }
        }
    }
}

fn rewrite(route: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = route.get("rewrite") else { return };
    for name in ["redirect", "respond"] {
        if route.get(name).is_some() && route.get("pool").is_none() {
            let hint = format!("nothing is forwarded: the route answers by `{name}`");
            findings.error(entry.key, format!("`rewrite` cannot stand beside `{name}`"), hint);
            return;
        }
    }
    if route.get("path").is_none() {
        let hint = "it replaces what the `*` of a path matched: expected `path = \"/api/*\"`, for example";
        findings.error(entry.key, "`rewrite` needs a `path` that ends in `*`", hint);
        return;
    }
    let rewrite = route.table("rewrite");
    for (at, value) in route.list("path") {
        match value {
            Value::Path(PathPattern::Suffix(_) | PathPattern::Contains(_)) => {
                let hint = "what a `*` at the front matched is not replaced; make it a route of its own";
                findings.error(*at, "`rewrite` needs a `path` that ends in `*`", hint);
            }
            Value::Path(PathPattern::Exact(path)) => {
                let hint = format!(
                    "`{path}` ({}) has no `*`; say \"{path}*\", or make it a route of its own",
                    findings.place(*at)
                );
                findings.error(entry.key, "`rewrite` needs a `path` that ends in `*`", hint);
            }
            Value::Path(PathPattern::Prefix(path)) => {
                let Some(prefix) = rewrite.text("prefix") else { continue };
                match (path.ends_with('/'), prefix.ends_with('/')) {
                    (true, false) => {
                        let hint = format!("`{path}x` becomes `{prefix}x`; did you mean \"{prefix}/\"?");
                        findings.warning(
                            rewrite.at("prefix"),
                            "the rewritten path runs into what follows",
                            hint,
                        );
                    }
                    (false, true) => {
                        let hint = format!(
                            "`{path}/x` becomes `{prefix}/x`, and `{path}../x` would become `{prefix}../x`, which is answered \
                             400; did you mean \"{path}/*\"?"
                        );
                        findings.warning(*at, "the rewritten path can leave its prefix", hint);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

fn respond(respond: &Fields, findings: &mut Findings<'_>) {
    let status = respond.number("status");
    if respond.text("body").is_some_and(|body| !body.is_empty()) && matches!(status, 204 | 205 | 304) {
        let hint = format!("leave it out, or use another status than {status}");
        findings.error(respond.at("body"), format!("a response with status {status} has no body"), hint);
    }
}
