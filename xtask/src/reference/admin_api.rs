//! The reference page of the admin API, written from the table of endpoints.

use std::fmt::Write as _;

use weir_admin::endpoints::ENDPOINTS;

/// `docs/reference/admin-api.md`, whole.
pub fn page() -> String {
    let mut page = String::from(
        "# Admin API\n\nHTTP and JSON at `admin.bind` (default `127.0.0.1:9900`). Generated from \
         `crates/weir-admin/src/endpoints.rs`; do not edit. The same as OpenAPI 3.1: `GET /v1/openapi.json`.\n\n\
         Changing calls need `authorization: Bearer TOKEN` where `admin.token_file` is set, and are refused when they come from \
         another site (`origin`, `sec-fetch-site`). Where `admin.bind` is not loopback, all calls but `/livez` and `/readyz` need it. The `host` must be an address of this machine or its name, unless the \
         request carries the token. Every error is `{\"error\": {\"code\": \"…\", \"message\": \"…\"}}`.\n\n\
         | call | does |\n|---|---|\n",
    );
    for endpoint in ENDPOINTS {
        let _ = writeln!(page, "| `{} {}` | {} |", endpoint.method.word(), endpoint.path, endpoint.summary);
    }
    page.push_str("\n## Errors of every call\n\n| status | code | when |\n|---|---|---|\n");
    for (status, code, when) in COMMON_ERRORS {
        let _ = writeln!(page, "| {status} | `{code}` | {when} |");
    }
    for endpoint in
        ENDPOINTS.iter().filter(|it| !(it.query.is_empty() && it.body.is_empty() && it.statuses.is_empty()))
    {
        let _ = write!(page, "\n## `{} {}`\n\n{}\n", endpoint.method.word(), endpoint.path, endpoint.summary);
        fields(&mut page, "parameter of the query", endpoint.query);
        fields(&mut page, "field", endpoint.body);
        if !endpoint.statuses.is_empty() {
            page.push_str("\n| status | meaning |\n|---|---|\n");
            for (status, meaning) in endpoint.statuses {
                let _ = writeln!(page, "| {status} | {meaning} |");
            }
        }
    }
    page
}

fn fields(page: &mut String, head: &str, fields: &[(&str, &str, &str)]) {
    if fields.is_empty() {
        return;
    }
    let _ = write!(page, "\n| {head} | type | meaning |\n|---|---|---|\n");
    for (name, kind, meaning) in fields {
        let optional = if kind.ends_with('?') { ", optional" } else { "" };
        let _ = writeln!(page, "| `{name}` | {}{optional} | {meaning} |", kind.trim_end_matches('?'));
    }
}

/// Errors that any endpoint may answer: status, code, when.
const COMMON_ERRORS: &[(u16, &str, &str)] = &[
    (400, "bad_request", "the body or a parameter is not what was expected"),
    (401, "unauthorized", "no token, or a wrong one, where the call needs it"),
    (403, "forbidden", "a cross-site request, or a host name that is not this machine's (DNS rebinding)"),
    (404, "not_found", "no such path, pool or backend"),
    (405, "method_not_allowed", "the path knows other methods"),
    (413, "too_large", "a body above 64 KiB"),
    (
        503,
        "upgrade_under_way",
        "a call that changes something, while a new process is about to take over (USR2): nothing has changed; `retry-after` says when to call again",
    ),
];

#[test]
fn the_reference_page_has_every_endpoint() {
    let page = page();
    for endpoint in ENDPOINTS {
        assert!(page.contains(&format!("| `{} {}` |", endpoint.method.word(), endpoint.path)));
    }
}
