//! `rewrite = { … }`: changes the path and query sent to a backend.

use weir_template::Template;

use crate::fields::{Fields, Value};
use crate::keys::text;
use crate::report::{Findings, Span};
use crate::setting::{One as _, table};
use crate::values::path::{PREFIX, PathPattern};
use crate::values::template::{REWRITTEN_PATH, REWRITTEN_QUERY};

table! {
    /// Changes path and query towards the backend.
    #[derive(Eq)]
    pub struct Rewrite at "rewrite = { … }" {
        /// Replaces what the `*` prefix matched; only where every `path` of the route ends in `*`.
        prefix: Option<String> = text(&PREFIX).default("the path is kept").also(&["replace_prefix", "strip_prefix"]);
        /// The whole path, with variables, such as `/new/$1` for what the first group of an expression in
        /// `path` matched. What it becomes is brought into the normal form, or refused with 400.
        path: Option<Template> =
            text(&REWRITTEN_PATH).default("the path is kept").also(&["uri", "to", "target", "replacement", "regex"]);
        /// The query, with variables, in place of the one that was sent; `""` takes it out.
        query: Option<Template> =
            text(&REWRITTEN_QUERY).default("the query is kept").also(&["set_query", "args"]);
        /// Stands behind the query that was sent, with a `&` where there is one.
        add_query: Option<Template> =
            text(&REWRITTEN_QUERY).default("the query is kept").also(&["append_query", "extend_query"]);
    }
}

/// The keys that accept variables.
pub(crate) const WITH_VARIABLES: [&str; 3] = ["path", "query", "add_query"];

/// Whether backends get another path than the one that routes compare.
pub(crate) fn changes_path(route: &Fields) -> bool {
    let changes = |rewrite: &Fields| ["prefix", "path"].iter().any(|name| !rewrite.lacks(name));
    route.table("rewrite").map_or(route.get("rewrite").is_some(), changes)
}

/// The number of groups in a route's paths, at their minimum: the highest number that `$1` and so on may
/// have; and the path with the fewest.
pub(crate) fn groups(route: &Fields) -> (u8, Option<Span>) {
    let count = |value: &Value| match PathPattern::of(value) {
        Some(PathPattern::Regex(expression)) => expression.group_count(),
        // A path that could not be read has been reported.
        None => u8::MAX,
        Some(_) => 0,
    };
    let paths = route.list("path").iter().map(|(at, value)| (count(value), Some(*at)));
    let fewest = paths.min_by_key(|(count, _)| *count);
    fewest.unwrap_or((if route.is_bad("path") { u8::MAX } else { 0 }, None))
}

/// Checks a route's `rewrite`: the route must forward, and the rewrite must be unambiguous.
pub(crate) fn check(route: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = route.get("rewrite") else { return };
    for name in ["redirect", "respond"] {
        if route.get(name).is_some() && route.get("pool").is_none() {
            let hint = format!("nothing is forwarded: the route answers by `{name}`");
            findings.error(entry.key, format!("`rewrite` cannot stand beside `{name}`"), hint);
            return;
        }
    }
    let Some(rewrite) = route.table("rewrite") else { return };
    for (one, other) in [("prefix", "path"), ("query", "add_query")] {
        if let (Some(first), Some(second)) = (rewrite.get(one), rewrite.get(other)) {
            let hint = format!("`{one}` ({}) says it already; keep one", findings.place(first.key));
            findings.error(second.key, format!("`rewrite` cannot have both `{one}` and `{other}`"), hint);
        }
    }
    if rewrite.entries.is_empty() && rewrite.meant.is_empty() {
        let hint = "expected `prefix = \"/v2/\"` or `path = \"/new/$1\"`, for example";
        findings.error(entry.at, "`rewrite` changes nothing", hint);
    }
    if rewrite.get("prefix").is_some() {
        prefix(route, rewrite, entry.key, findings);
    }
}

fn prefix(route: &Fields, rewrite: &Fields, key: Span, findings: &mut Findings<'_>) {
    const NEEDED: &str = "`rewrite` needs a `path` that ends in `*`";
    if route.get("path").is_none() {
        let hint = "it replaces what the `*` of a path matched: expected `path = \"/api/*\"`, for example";
        findings.error(key, NEEDED, hint);
        return;
    }
    for (at, value) in route.list("path") {
        match PathPattern::of(value) {
            Some(PathPattern::Suffix(_) | PathPattern::Contains(_)) => {
                let hint = "what a `*` at the front matched is not replaced; make it a route of its own";
                findings.error(*at, NEEDED, hint);
            }
            Some(PathPattern::Regex(_)) => {
                let hint = "what an expression matched is replaced by `rewrite = { path = \"/new/$1\" }`";
                findings.error(*at, NEEDED, hint);
            }
            Some(PathPattern::Exact(path)) => {
                let hint = format!(
                    "`{path}` ({}) has no `*`; say \"{path}*\", or make it a route of its own",
                    findings.place(*at)
                );
                findings.error(key, NEEDED, hint);
            }
            Some(PathPattern::Prefix(path)) => {
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
            None => {}
        }
    }
}
