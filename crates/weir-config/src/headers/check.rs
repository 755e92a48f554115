//! Reports header rules that contradict each other, that never have an effect, or that would let one client's
//! request determine the answer for all others.

use weir_template::{Template, Variable};

use super::{Headers, MergedHeaders, RuleOf, replace};
use crate::cache::RouteCache;
use crate::fields::{Fields, Value};
use crate::map;
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, Span};
use crate::rewrite;
use crate::setting::{One as _, Part};
use crate::values::template::named;

const MAPS: [&str; 4] =
    ["set_request_header", "add_request_header", "set_response_header", "add_response_header"];

/// Checks the rules of a listener and of its routes.
pub(crate) fn check_listener(root: &Fields, listener: &Fields, findings: &mut Findings<'_>) {
    if spoken(listener).is_some_and(|protocol| protocol != Protocol::Http) {
        return;
    }
    contradictions(listener, findings);
    second_ones(listener, findings);
    replace::check(listener, findings);
    let can_have = Has::of(listener);
    for (at, variables) in used(listener) {
        impossible(at, &variables, &can_have, listener, findings);
        unmatched(at, &variables, (0, None), findings);
    }
    for (_, route) in listener.tables("route") {
        contradictions(route, findings);
        second_ones(route, findings);
        replace::check(route, findings);
        let groups = rewrite::groups(route);
        let can_have = can_have.on(listener, route);
        for (at, variables) in used(route) {
            impossible(at, &variables, &can_have, listener, findings);
            unmatched(at, &variables, groups, findings);
        }
        cached(root, listener, route, findings);
    }
}

/// Checks the rules of a pool.
pub(crate) fn check_pool(root: &Fields, pool: &Fields, findings: &mut Findings<'_>) {
    contradictions(pool, findings);
    second_ones(pool, findings);
    replace::check(pool, findings);
    let users: Vec<&Fields> = root.named("listener").filter(|listener| uses(listener, &pool.name)).collect();
    for (at, variables) in used(pool) {
        unmatched(at, &variables, (0, None), findings);
        for listener in &users {
            let can_have = Has::of(listener);
            let lacking = can_have.lacking(&variables);
            let Some((_, why)) = lacking.first() else { continue };
            let names = named(lacking.iter().map(|(variable, _)| *variable));
            let hint = format!(
                "listener `{}` uses this pool and {why} ({})",
                listener.name,
                findings.place(listener.at)
            );
            match users.len() {
                1 => findings.error(at, format!("{names} can never have a value"), hint),
                _ => findings.warning(at, format!("{names} is empty for some clients"), hint),
            }
        }
    }
}

fn uses(listener: &Fields, pool: &str) -> bool {
    let routes = listener.tables("route").map(|(_, route)| route);
    std::iter::once(listener).chain(routes).any(|fields| fields.text("pool") == Some(pool))
}

/// Reports a name in two rules of the same table that undo each other.
fn contradictions(fields: &Fields, findings: &mut Findings<'_>) {
    for side in ["request", "response"] {
        let removed = format!("remove_{side}_header");
        for (at, value) in fields.list(&removed) {
            let Value::Text(name) = value else { continue };
            for verb in ["set", "add"] {
                let other = format!("{verb}_{side}_header");
                let Some(entry) = fields.map(&other).iter().find(|entry| entry.name == *name) else {
                    continue;
                };
                let hint = match verb {
                    "set" => format!(
                        "`{other}` takes the place of all of that name already ({}); keep one",
                        findings.place(entry.key)
                    ),
                    _ => format!(
                        "did you mean `set_{side}_header` instead of `{other}` ({})?",
                        findings.place(entry.key)
                    ),
                };
                findings.error(*at, format!("`{name}` stands in both `{removed}` and `{other}`"), hint);
            }
        }
    }
}

/// Single-valued fields: a second one is ignored, or interpreted differently by different readers.
const SINGLE: [&str; 14] = [
    "authorization",
    "cache-control",
    "content-encoding",
    "content-type",
    "etag",
    "expires",
    "last-modified",
    "location",
    "referer",
    "retry-after",
    "server",
    "strict-transport-security",
    "user-agent",
    "x-frame-options",
];

/// Whether a field, given in lower case, has one value, so that rules should set it instead of adding it.
pub fn is_single_valued(name: &str) -> bool {
    SINGLE.contains(&name)
}

/// Reports added fields that are single-valued.
fn second_ones(fields: &Fields, findings: &mut Findings<'_>) {
    for side in ["request", "response"] {
        let map = format!("add_{side}_header");
        for entry in fields.map(&map).iter().filter(|entry| is_single_valued(&entry.name)) {
            let hint = format!("it stands beside the one that is there; did you mean `set_{side}_header`?");
            findings.warning(entry.key, format!("`{}` may come twice by `{map}`", entry.name), hint);
        }
    }
}

/// Every template of a table with variables of a request, and its position.
fn used(fields: &Fields) -> Vec<(Span, Vec<Variable>)> {
    let in_maps = MAPS.iter().flat_map(|map| fields.map(map)).map(|entry| (entry.at, &entry.value));
    let of_redirect = fields.table("redirect").and_then(|redirect| redirect.get("to"));
    let rewrites = fields.table("rewrite").into_iter();
    let rewrites =
        rewrites.flat_map(|table| rewrite::WITH_VARIABLES.iter().filter_map(|name| table.get(name)));
    let limits =
        ["hash", "rate_limit", "concurrency_limit"].into_iter().filter_map(|name| fields.value(name));
    let keys = limits.flat_map(Value::tables).filter_map(|limit| limit.get("key"));
    let alone = fields.get("backend_host").into_iter().chain(of_redirect).chain(rewrites).chain(keys);
    let alone = alone.map(|entry| (entry.at, &entry.value));
    let variables = |(at, value)| Some((at, Template::of(value)?.variables().cloned().collect()));
    in_maps.chain(alone).filter_map(variables).chain(replace::used(fields)).collect()
}

/// What is known about the clients of a listener or a route.
struct Has {
    tls: bool,
    certificate: bool,
    user: bool,
    claims: bool,
}

impl Has {
    fn of(listener: &Fields) -> Has {
        let tls = !listener.lacks("tls");
        let certificate = listener.table("tls").is_some_and(|tls| !tls.lacks("client_ca"));
        let of_all = || {
            let routes = listener.tables("route").map(|(_, route)| route);
            std::iter::once(listener).chain(routes).filter_map(|it| it.get("auth"))
        };
        Has {
            tls,
            certificate: certificate || (tls && listener.is_bad("tls")),
            user: of_all().any(|auth| names_users(&auth.value)),
            claims: of_all().any(|auth| has_claims(&auth.value)),
        }
    }

    /// The same for one of its routes.
    fn on(&self, listener: &Fields, route: &Fields) -> Has {
        let auth = route.get("auth").or_else(|| listener.get("auth")).map(|auth| &auth.value);
        Has { user: auth.is_some_and(names_users), claims: auth.is_some_and(has_claims), ..*self }
    }

    /// The variables that are always empty, and why.
    fn lacking<'v>(&self, variables: &'v [Variable]) -> Vec<(&'v Variable, &'static str)> {
        let why = |variable: &Variable| match variable {
            Variable::ServerName | Variable::TlsVersion if !self.tls => Some("has no `tls`"),
            Variable::ClientCertSubject if !self.certificate => {
                Some("asks for no client certificate (`client_ca` of its `tls`)")
            }
            Variable::User if !self.user => Some("has no `auth` there that says who asks"),
            Variable::Claim(_) if !self.claims => Some("has no `auth.jwt` there"),
            _ => None,
        };
        variables.iter().filter_map(|variable| Some((variable, why(variable)?))).collect()
    }
}

/// Whether `auth` identifies users; a value that could not be read may.
fn names_users(auth: &Value) -> bool {
    match auth {
        Value::Table(auth) => {
            has_claims_in(auth)
                || !auth.lacks("basic")
                || auth.is_bad("forward")
                || auth.table("forward").is_some_and(|forward| !forward.lacks("user"))
        }
        Value::Bad => true,
        _ => false,
    }
}

/// Whether it requires tokens.
fn has_claims(auth: &Value) -> bool {
    match auth {
        Value::Table(auth) => has_claims_in(auth),
        Value::Bad => true,
        _ => false,
    }
}

fn has_claims_in(auth: &Fields) -> bool {
    !auth.lacks("jwt")
}

fn impossible(
    at: Span,
    variables: &[Variable],
    can_have: &Has,
    listener: &Fields,
    findings: &mut Findings<'_>,
) {
    for (variable, why) in can_have.lacking(variables) {
        let hint = format!("listener `{}` {why} ({})", listener.name, findings.place(listener.at));
        findings.error(at, format!("`${}` can never have a value", variable.name()), hint);
    }
}

/// Reports groups that no expression has; `groups` is their number, and the path that has no more.
fn unmatched(
    at: Span,
    variables: &[Variable],
    (groups, path): (u8, Option<Span>),
    findings: &mut Findings<'_>,
) {
    let lacking = variables.iter().find_map(|variable| match variable {
        Variable::Capture(number) if *number > groups => Some(*number),
        _ => None,
    });
    let Some(number) = lacking else { return };
    let hint = match (groups, path) {
        (_, None) => "it is what a group of a route's path matched: expected `path = \"~^/old/(.*)\"` in the same route".to_owned(),
        (0, Some(path)) => format!("the path at {} is no expression: write it as \"~^/old/(.*)\"", findings.place(path)),
        (1, Some(path)) => format!("the path at {} has one group", findings.place(path)),
        (_, Some(path)) => format!("the path at {} has {groups} groups", findings.place(path)),
    };
    findings.error(at, format!("`${number}` stands for nothing"), hint);
}

/// What a request sends to a backend must not depend on anything outside the key of the route's cache;
/// otherwise the first client would determine what all others get (threat E1).
fn cached(root: &Fields, listener: &Fields, route: &Fields, findings: &mut Findings<'_>) {
    let Some(Value::Table(fields)) = route.get("cache").map(|entry| &entry.value) else { return };
    let cached = Cached { root, route, cache: <RouteCache as Part>::of(fields) };
    let pool = route.text("pool").and_then(|name| root.named("pool").find(|pool| pool.name == name));
    let levels = [(RuleOf::Listener, Some(listener)), (RuleOf::Pool, pool), (RuleOf::Route, Some(route))];
    let levels = levels.into_iter().filter_map(|(of, fields)| Some((of, fields?)));
    let read: Vec<(RuleOf, &Fields, Headers)> =
        levels.map(|(of, fields)| (of, fields, Headers::of(fields))).collect();
    let merged = MergedHeaders::of(read.iter().map(|(of, _, headers)| (*of, headers)));
    for field in &merged.request.new {
        let Some((_, fields, _)) = read.iter().find(|(of, ..)| *of == field.of) else { continue };
        let map = if field.is_added { "add_request_header" } else { "set_request_header" };
        let entry = fields.map(map).iter().find(|entry| entry.name == field.name);
        let at = entry.map_or(fields.at, |entry| entry.at);
        let out = match field.of {
            RuleOf::Route => String::new(),
            _ => format!("; `remove_request_header = [\"{}\"]` in the route takes it out there", field.name),
        };
        cached.differs_by(field.value.variables(), at, &out, findings);
    }
    for rules in &merged.request.values {
        let Some((_, fields, _)) = read.iter().find(|(of, ..)| *of == rules.of) else { continue };
        for (rule, (_, written)) in rules.values.iter().zip(fields.tables("replace_request_header")) {
            cached.differs_by(replace::of_request(&rule.to), written.at("to"), "", findings);
        }
    }
    let host = [Some(route), pool].into_iter().flatten().find_map(|fields| fields.get("backend_host"));
    if let Some((entry, template)) = host.and_then(|entry| Some((entry, Template::of(&entry.value)?))) {
        cached.differs_by(template.variables(), entry.at, "", findings);
    }
    conditions(&merged, route, findings);
}

/// A route with a cache.
struct Cached<'f> {
    root: &'f Fields,
    route: &'f Fields,
    cache: RouteCache,
}

impl Cached<'_> {
    /// Reports those of the variables, used at `at`, on which responses would depend although they are not
    /// part of the cache key.
    fn differs_by<'v>(
        &self,
        variables: impl Iterator<Item = &'v Variable>,
        at: Span,
        way_out: &str,
        findings: &mut Findings<'_>,
    ) {
        let Cached { root, route, cache } = self;
        let outside: Vec<&Variable> =
            variables.filter(|variable| !is_known(root, variable, cache, route)).collect();
        // A property of the client does not let it choose an answer for others; what it sends does.
        let chosen = |variable: &Variable| {
            matches!(
                variable,
                Variable::Header(_)
                    | Variable::Cookie(_)
                    | Variable::Parameter(_)
                    | Variable::Path
                    | Variable::Query
                    | Variable::Capture(_)
                    | Variable::Map(_)
                    | Variable::User
                    | Variable::Claim(_)
            )
        };
        let place = findings.place(route.at("cache"));
        let named_here = |variables: Vec<&Variable>| named(variables);
        let (poison, personal): (Vec<&Variable>, Vec<&Variable>) =
            outside.into_iter().partition(|variable| chosen(variable));
        if !poison.is_empty() {
            let names = named_here(poison);
            let hint = format!(
                "whoever asks first would choose the answer for all: the key of the cache ({place}) does not have it; `key_headers` and `key_cookies` add to that{way_out}"
            );
            findings.error(at, format!("a cached answer would depend on {names}"), hint);
        }
        if !personal.is_empty() {
            let names = named_here(personal);
            let hint = format!("an answer that is made for one client is given to all ({place}){way_out}");
            findings.warning(at, format!("a cached answer may depend on {names}"), hint);
        }
    }
}

/// Like [`is_in_key`]; the value of a map depends on the map's key.
fn is_known(root: &Fields, variable: &Variable, cache: &RouteCache, route: &Fields) -> bool {
    match variable {
        Variable::Map(name) => map::key_of(root, name).iter().all(|asked| is_in_key(asked, cache, route)),
        other => is_in_key(other, cache, route),
    }
}

/// Whether requests that differ in it never share a cached response.
fn is_in_key(variable: &Variable, cache: &RouteCache, route: &Fields) -> bool {
    let has_whole_query = !cache.ignore_query
        && cache.query_only.is_empty()
        && cache.query_without.is_empty()
        && !cache.query_sort;
    let replaces_query =
        route.table("rewrite").is_some_and(|rewrite| !(rewrite.lacks("query") && rewrite.lacks("add_query")));
    match variable {
        Variable::Scheme | Variable::Host => true,
        // Cached responses are distinguished by the path sent to the backend.
        Variable::Path | Variable::Capture(_) => !rewrite::changes_path(route),
        Variable::Query | Variable::Parameter(_) => has_whole_query && !replaces_query,
        Variable::Header(name) => cache.key_headers.iter().any(|key| **key == **name),
        Variable::Cookie(name) => cache.key_cookies.iter().any(|key| **key == **name),
        _ => false,
    }
}

/// On a route with a cache, conditional request fields belong to the cache.
fn conditions(merged: &MergedHeaders, route: &Fields, findings: &mut Findings<'_>) {
    const CONDITIONS: [&str; 6] =
        ["if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "range"];
    let names = merged.request.new.iter().map(|field| field.name.as_str());
    for name in names.filter(|name| CONDITIONS.contains(name)) {
        let hint = format!("the cache asks by conditions of its own ({})", findings.place(route.at("cache")));
        findings.error(route.at, format!("`{name}` cannot be set on a route with a cache"), hint);
    }
}
