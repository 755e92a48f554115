//! What a location does with its requests: forwards them, or answers that there is nothing.

use weir_config::quoted;

use super::access::{CopiedFields, answer_fields, gate};
use super::conversion::Conversion;
use super::divided::divided;
use super::errors::of_route as error_pages;
use super::locations::{LocationKind, PlacedLocation, words_of};
use super::pools::{FoundPool, PoolKind, pool};
use super::proxy_target::{PathChange, ProxyTarget, QueryChange, path_change};
use super::request_test::{RequestTest, RouteTest, exactly};
use super::route::NewRoute;
use super::scope::NginxScope;
use super::serve::NginxServer;
use super::tree::NginxDirective;
use super::variables::{NginxPlace, single_variable};
use super::{caching, headers, limits, logs, redirects, timers};
use crate::DirectiveVerdict;

/// Most values of a map that choose among pools.
const MOST_POOLS: usize = 100;

/// Some requests of a location.
#[derive(Clone)]
pub struct LocationContent<'c, 's> {
    /// Its server.
    pub server: &'s NginxServer<'c>,
    /// The location; `None` for a server without one.
    pub location: Option<&'s PlacedLocation<'c>>,
    /// The innermost block, with those around it.
    pub scope: NginxScope<'c>,
    /// The blocks that may say what is done: that of an `if`, that of the location.
    pub blocks: Vec<&'c [NginxDirective]>,
    /// Which requests.
    pub test: RouteTest,
    /// What is known there.
    pub place: NginxPlace,
    /// What was done to the path before.
    pub change: PathChange,
    /// A comment for the routes.
    pub comment: String,
    /// The location's directive, or the server's.
    pub of: &'c NginxDirective,
}

impl<'c> LocationContent<'c, '_> {
    /// The directive of a name that says what is done.
    fn own(&self, name: &str) -> Option<&'c NginxDirective> {
        self.blocks.iter().find_map(|block| block.iter().rfind(|it| it.name == name))
    }
}

/// Adds the routes for these requests.
pub fn of_location<'c>(
    conversion: &mut Conversion<'c>,
    content: &LocationContent<'c, '_>,
    routes: &mut Vec<NewRoute>,
) {
    if let Some(internal) = content.own("internal") {
        conversion.ledger.exact(internal, "who asks for it from outside gets 404");
        conversion.add(
            NewRoute::answering(content.test.clone(), content.comment.clone(), 404),
            content.of,
            routes,
        );
        return;
    }
    let Some(except) = content.own("limit_except") else {
        guarded(conversion, content, content.test.clone(), routes);
        return;
    };
    let mut methods = except.words.clone();
    if methods.iter().any(|method| method == "GET") && !methods.iter().any(|method| method == "HEAD") {
        methods.push("HEAD".to_owned());
    }
    let test = RequestTest { method: methods, ..RequestTest::default() };
    let inner = content.scope.within(except.inner());
    let Some(listed) = content.test.and(&test) else {
        let note = "a route cannot ask for these methods, too: such requests are answered with 501";
        conversion.ledger.unsupported(except, note);
        let closed = NewRoute::answering(content.test.clone(), content.comment.clone(), 501);
        conversion.add(closed, except, routes);
        return;
    };
    conversion.ledger.exact(except, "a route for these methods, and one for all others");
    guarded(conversion, content, listed, routes);
    let others = LocationContent {
        server: content.server,
        location: content.location,
        scope: inner,
        blocks: content.blocks.clone(),
        test: content.test.clone(),
        place: content.place.clone(),
        change: content.change.clone(),
        comment: format!("{}, other methods", content.comment),
        of: content.of,
    };
    guarded(conversion, &others, content.test.clone(), routes);
}

/// Adds the routes for the requests of a test, behind what is asked of clients.
fn guarded<'c>(
    conversion: &mut Conversion<'c>,
    content: &LocationContent<'c, '_>,
    test: RouteTest,
    routes: &mut Vec<NewRoute>,
) {
    if let Some(branches) = divided(conversion, content, &test) {
        for (test, place) in branches {
            guarded(conversion, &LocationContent { place, ..content.clone() }, test, routes);
        }
        return;
    }
    let server = (content.server.locations.as_slice(), &content.server.scope);
    let gate = gate(conversion, &content.scope, server, &content.place);
    let place = NginxPlace { has_user: gate.names_user(), ..content.place.clone() };
    let mut copied = CopiedFields::default();
    let handler = ["proxy_pass", "grpc_pass"].iter().find_map(|name| content.own(name));
    let made = match handler {
        Some(pass) => {
            let on = PassedOn { content, pass, test: &test, place: &place };
            forwarding(conversion, on, &mut copied)
        }
        None => nothing(conversion, content, &test, &place, routes).into_iter().collect(),
    };
    for mut route in made {
        error_pages(conversion, &content.scope, server, &mut route);
        logs::of_route(conversion, &content.scope, &mut route);
        for mut route in gate.routes(route, &copied) {
            settle_cache(conversion, content, &mut route);
            conversion.add(route, content.of, routes);
        }
    }
}

/// Takes the cache out of a route that Weir takes only without it.
fn settle_cache(conversion: &mut Conversion<'_>, content: &LocationContent<'_, '_>, route: &mut NewRoute) {
    if route.get("cache").is_none() {
        return;
    }
    let Some(why) = conversion.refusal(route) else { return };
    let mut without = route.clone();
    without.unset("cache");
    if conversion.refusal(&without).is_none() {
        *route = without;
        if let Some(directive) = content.scope.one("proxy_cache") {
            conversion.ledger.unsupported(directive, format!("NOT KEPT: {why}"));
        }
    }
}

/// A route for what Weir does not do; `None` if the requests go to another location, whose routes were added.
fn nothing<'c>(
    conversion: &mut Conversion<'c>,
    content: &LocationContent<'c, '_>,
    test: &RouteTest,
    place: &NginxPlace,
    routes: &mut Vec<NewRoute>,
) -> Option<NewRoute> {
    let handlers = [
        ("fastcgi_pass", "FastCGI"),
        ("uwsgi_pass", "uwsgi"),
        ("scgi_pass", "SCGI"),
        ("memcached_pass", "memcached"),
        ("content_by_lua_block", "Lua"),
        ("content_by_lua_file", "Lua"),
        ("content_by_lua", "Lua"),
        ("js_content", "JavaScript"),
        ("perl", "Perl"),
        ("dav_methods", "WebDAV"),
    ];
    for (name, what) in handlers {
        if let Some(directive) = content.own(name) {
            let note = format!(
                "Weir has no {what}: such requests are answered with 501; keep a server for it behind Weir"
            );
            conversion.ledger.unsupported(directive, note);
            return Some(NewRoute::answering(test.clone(), content.comment.clone(), 501));
        }
    }
    if let Some(directive) = content.own("stub_status") {
        let note =
            "`/metrics` of the admin API (127.0.0.1:9900) has it; here such requests are answered with 404";
        conversion.ledger.unsupported(directive, note);
        return Some(NewRoute::answering(test.clone(), content.comment.clone(), 404));
    }
    if let Some(directive) = content.scope.one("try_files")
        && let Some(fallback) = directive.words.last().filter(|word| word.starts_with('@'))
    {
        let found =
            content.server.scope.everywhere("location").into_iter().find(|it| words_of(it).1 == fallback);
        if let Some(named) = found {
            let note = format!("Weir looks for no files: all goes to `{fallback}`");
            conversion.ledger.unsupported(directive, note);
            conversion.ledger.exact(named, "where `try_files` leads");
            let inner = LocationContent {
                server: content.server,
                location: content.location,
                scope: content.server.scope.within(named.inner()),
                blocks: vec![named.inner()],
                test: test.clone(),
                place: place.clone(),
                change: content.change.clone(),
                comment: content.comment.clone(),
                of: named,
            };
            guarded(conversion, &inner, test.clone(), routes);
            return None;
        }
    }
    let mut said = false;
    for name in
        ["root", "alias", "try_files", "index", "autoindex", "random_index", "empty_gif", "flv", "mp4"]
    {
        if let Some(directive) = content.own(name) {
            said = true;
            if !conversion.ledger.is_judged(directive) {
                let note = "Weir serves no files: such requests are answered with 404; keep a server for them behind Weir";
                conversion.ledger.unsupported(directive, note);
            }
        }
    }
    let refuses = content.scope.own("deny").iter().any(|it| it.word(0) == "all")
        || !content.scope.own("internal").is_empty();
    if !said && !refuses {
        conversion.ledger.unsupported(
            content.of,
            "it serves files, which Weir does not: such requests are answered with 404",
        );
    }
    let mut route = NewRoute::answering(test.clone(), content.comment.clone(), 404);
    headers::of_response(conversion, &content.scope, place, &mut route);
    Some(route)
}

/// Requests that are forwarded.
#[derive(Clone, Copy)]
struct PassedOn<'c, 'p> {
    content: &'p LocationContent<'c, 'p>,
    /// The `proxy_pass` or `grpc_pass`.
    pass: &'c NginxDirective,
    test: &'p RouteTest,
    place: &'p NginxPlace,
}

/// A variable that chooses whom to ask, with the text before and behind it.
struct ChosenTarget {
    front: String,
    variable: String,
    behind: String,
}

impl ChosenTarget {
    /// The target for a value of the variable.
    fn with(&self, value: &str) -> Result<ProxyTarget, String> {
        ProxyTarget::of(&format!("{}{value}{}", self.front, self.behind))
    }
}

/// The routes that forward: one, or one for each pool that a map names.
fn forwarding<'c>(
    conversion: &mut Conversion<'c>,
    on: PassedOn<'c, '_>,
    copied: &mut CopiedFields,
) -> Vec<NewRoute> {
    let PassedOn { content, pass, test, place } = on;
    let closed = |conversion: &mut Conversion<'c>, why: String| {
        conversion.ledger.unsupported(pass, format!("{why}: such requests are answered with 501"));
        vec![NewRoute::answering(test.clone(), content.comment.clone(), 501)]
    };
    let text = place.constant(pass.word(0));
    let Some(chosen) = chosen_by(&text) else {
        let made = ProxyTarget::of(&text).and_then(|target| to_pool(conversion, on, &target, copied));
        return match made {
            Ok(route) => {
                conversion.ledger.exact(pass, "the route's pool");
                vec![route]
            }
            Err(why) => closed(conversion, why),
        };
    };
    let variable = chosen.variable.clone();
    let (made, note) = match conversion.maps.table(&variable) {
        Some(table) if table.name == "split_clients" => {
            let made = split(conversion, on, (&chosen, table), copied).map(|route| vec![route]);
            (made, format!("`split` by the table of `${variable}`"))
        }
        Some(_) => (by_map(conversion, on, &chosen, copied), "a route for each value of its map".to_owned()),
        None => {
            (Err(format!("whom to ask is chosen by `${variable}`, which could be anybody")), String::new())
        }
    };
    match made {
        Ok(routes) => {
            conversion.ledger.exact(pass, note);
            routes
        }
        Err(why) => closed(conversion, why),
    }
}

/// The variable that chooses whom to ask, with the text before and behind it.
fn chosen_by(text: &str) -> Option<ChosenTarget> {
    let behind_scheme = text.find("://").map_or(0, |at| at + 3);
    let authority_end = text[behind_scheme..].find('/').map_or(text.len(), |at| behind_scheme + at);
    let at = text[..authority_end].find("${")?;
    let end = at + text[at..].find('}')?;
    let name = &text[at + 2..end];
    if matches!(name, "request_uri" | "uri" | "is_args" | "args") {
        return None;
    }
    let (front, behind) = (text[..at].to_owned(), text[end + 1..].to_owned());
    Some(ChosenTarget { front, variable: name.to_owned(), behind })
}

/// A route for each value of a map that names whom to ask.
fn by_map<'c>(
    conversion: &mut Conversion<'c>,
    on: PassedOn<'c, '_>,
    chosen: &ChosenTarget,
    copied: &mut CopiedFields,
) -> Result<Vec<NewRoute>, String> {
    let variable = &chosen.variable;
    let lines = conversion.maps.lines(variable);
    let name =
        conversion.map_of(variable).ok_or_else(|| format!("`${variable}` is no map that Weir can have"))?;
    let mut values: Vec<String> = Vec::new();
    for (key, value) in lines {
        if !matches!(key.as_str(), "hostnames" | "volatile" | "include" | "default")
            && !values.contains(&value)
        {
            values.push(value);
        }
    }
    let default =
        conversion.maps.lines(variable).into_iter().find(|(key, _)| key == "default").map(|(_, value)| value);
    if values.len() > MOST_POOLS {
        return Err(format!("its map has more than {MOST_POOLS} values"));
    }
    let mut routes = Vec::new();
    for value in values.iter().filter(|value| Some(*value) != default.as_ref() && !value.is_empty()) {
        let target = chosen.with(value)?;
        let is_value = RequestTest::value("map", name.clone(), exactly(value));
        let test = on.test.and(&is_value).ok_or("a route cannot ask for its map, too")?;
        routes.push(to_pool(conversion, PassedOn { test: &test, ..on }, &target, copied)?);
    }
    match default.filter(|value| !value.is_empty()) {
        Some(value) => {
            routes.push(to_pool(conversion, on, &chosen.with(&value)?, copied)?);
        }
        None => {
            let comment = format!("{}: no value", on.content.comment);
            routes.push(NewRoute::answering(on.test.clone(), comment, 502));
        }
    }
    Ok(routes)
}

/// A route with shares of pools, by `split_clients`.
fn split<'c>(
    conversion: &mut Conversion<'c>,
    on: PassedOn<'c, '_>,
    (chosen, table): (&ChosenTarget, &'c NginxDirective),
    copied: &mut CopiedFields,
) -> Result<NewRoute, String> {
    let by =
        conversion.template(table.word(0), on.place).map_err(|bad| format!("Weir has no `${bad}` there"))?;
    let rest = table.inner().iter().find(|line| line.name == "*").ok_or("its `split_clients` has no `*`")?;
    let mut route = to_pool(conversion, on, &chosen.with(rest.word(0))?, copied)?;
    let mut shares = Vec::new();
    for line in table.inner().iter().filter(|line| line.name != "*") {
        let percent: f64 =
            line.name.trim_end_matches('%').parse().map_err(|_| "a share is no number".to_owned())?;
        let other = to_pool(conversion, on, &chosen.with(line.word(0))?, copied)?;
        let name = other.get("pool").unwrap_or_default().to_owned();
        shares.push(format!("{{ pool = {name}, share = {:?} }}", percent / 100.0));
    }
    route.set("split", format!("{{ by = {}, to = [{}] }}", quoted(&by), shares.join(", ")));
    conversion.ledger.approximate(table, "`split`: other clients get the same shares");
    conversion.ledger.judge_below(table.inner(), DirectiveVerdict::Exact, "a share of `split`");
    Ok(route)
}

/// A route to one pool.
fn to_pool<'c>(
    conversion: &mut Conversion<'c>,
    on: PassedOn<'c, '_>,
    target: &ProxyTarget,
    copied: &mut CopiedFields,
) -> Result<NewRoute, String> {
    let PassedOn { content, pass, test, place } = on;
    let place = &NginxPlace { proxy_host: target.proxy_host(), ..place.clone() };
    let kind = PoolKind::Http { is_grpc: pass.name == "grpc_pass", has_tls: target.has_tls };
    let FoundPool { name, size } = pool(conversion, &target.authority, kind, &content.scope, place)?;
    let mut route = NewRoute::of(test.clone(), content.comment.clone());
    route.set_text("pool", &name);
    let change = match (&content.change, content.location) {
        (PathChange::Kept, location) => {
            let none = LocationKind::Exact(String::new());
            path_change(target.uri.as_deref(), location.map_or(&none, |location| &location.kind))
        }
        (change, location) => behind_rewrite(change, target.uri.as_deref(), location),
    };
    rewritten(conversion, place, &change, &mut route)?;
    let fields = answer_fields(conversion, &content.scope);
    let set = content.scope.any_of(&["proxy_set_header", "grpc_set_header"]);
    let (of_answer, others): (Vec<_>, Vec<_>) = set.into_iter().partition(|directive| {
        single_variable(directive.word(1)).is_some_and(|variable| fields.contains_key(&variable))
    });
    headers::of_request(conversion, &others, place, &mut route);
    for directive in of_answer {
        let variable = single_variable(directive.word(1)).unwrap_or_default();
        copy(conversion, directive, &fields[&variable], (&mut route, &mut *copied));
    }
    headers::of_response(conversion, &content.scope, place, &mut route);
    let own = redirects::own_address(pass, content.location);
    redirects::of_route(conversion, &content.scope, place, &own, &mut route);
    timers::of_route(conversion, &content.scope, (&content.server.timers, size), &mut route);
    limits::of_route(conversion, &content.scope, place, &mut route);
    caching::compression(conversion, &content.scope, &mut route);
    caching::of_route(conversion, &content.scope, &mut route);
    passing(conversion, &content.scope);
    mirror(conversion, content, place, &mut route);
    Ok(route)
}

/// A path that was rewritten, in a location whose `proxy_pass` has a URI: that takes the place of the
/// location's prefix where the location was looked for again.
fn behind_rewrite(
    change: &PathChange,
    uri: Option<&str>,
    location: Option<&PlacedLocation<'_>>,
) -> PathChange {
    let (PathChange::Whole(path, query), Some(uri), Some(location)) = (change, uri, location) else {
        return change.clone();
    };
    let LocationKind::Prefix(prefix) = &location.kind else { return change.clone() };
    let is_own = location.own().inner().iter().any(|it| it.name == "rewrite" && it.word(2) == "break");
    match path.strip_prefix(prefix.as_str()) {
        Some(rest) if !is_own && !uri.contains('$') => {
            PathChange::Whole(format!("{uri}{rest}"), query.clone())
        }
        _ => change.clone(),
    }
}

/// Sets `rewrite`.
fn rewritten(
    conversion: &mut Conversion<'_>,
    place: &NginxPlace,
    change: &PathChange,
    route: &mut NewRoute,
) -> Result<(), String> {
    match change {
        PathChange::Kept => {}
        PathChange::Prefix(prefix) => route.set("rewrite", format!("{{ prefix = {} }}", quoted(prefix))),
        PathChange::Whole(path, query) => {
            let lacking = |bad: String| format!("Weir has no `${bad}` there");
            let path = path.replace("${request_uri}", "${uri}").replace("$request_uri", "$uri");
            let mut keys = Vec::new();
            let path = conversion.template(&path, place).map_err(lacking)?;
            if path != "$path" {
                keys.push(format!("path = {}", quoted(&path)));
            }
            match query {
                QueryChange::Kept => {}
                QueryChange::Replaced(text) => {
                    keys.push(format!(
                        "query = {}",
                        quoted(&conversion.template(text, place).map_err(lacking)?)
                    ));
                }
                QueryChange::Added(text) => {
                    keys.push(format!(
                        "add_query = {}",
                        quoted(&conversion.template(text, place).map_err(lacking)?)
                    ));
                }
            }
            if !keys.is_empty() {
                route.set("rewrite", format!("{{ {} }}", keys.join(", ")));
            }
        }
    }
    Ok(())
}

/// A field of the answer of `auth_request` that backends are told.
fn copy(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    field: &str,
    (route, copied): (&mut NewRoute, &mut CopiedFields),
) {
    let name = directive.word(0).to_ascii_lowercase();
    if name == field {
        conversion.ledger.exact(
            directive,
            "`copy_to_backend`; what a client says by that name never gets there, by other routes neither",
        );
        if !copied.to_backend.contains(&name) {
            copied.to_backend.push(name);
        }
        return;
    }
    if copied.user.as_deref().is_none_or(|user| user == field) {
        conversion.ledger.exact(directive, "`$user`, which `user` of `auth` has from that field");
        copied.user = Some(field.to_owned());
        let own = format!("{} = \"$user\"", super::request_test::toml_key(&name));
        let set = match route.get("set_request_header").and_then(|table| table.strip_suffix(" }")) {
            Some(table) => format!("{table}, {own} }}"),
            None => format!("{{ {own} }}"),
        };
        route.set("set_request_header", set);
        return;
    }
    let note = format!("backends get it as `{field}`: a field is copied by its own name");
    conversion.ledger.unsupported(directive, note);
    copied.to_backend.push(field.to_owned());
}

/// What else there is to say of forwarding.
fn passing(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) {
    if let Some(directive) = scope.one("proxy_http_version") {
        match directive.word(0) {
            "1.0" => conversion.ledger.approximate(directive, "HTTP/1.1 towards backends"),
            _ => conversion.ledger.exact(directive, "as Weir does (`protocol` of the pool)"),
        }
    }
    if let Some(directive) = scope.one("proxy_ignore_client_abort") {
        conversion.ledger.approximate(
            directive,
            "`abort_on_close` of the listener is off: a client of HTTP/1.1 that leaves is not noticed",
        );
    }
    for name in ["proxy_pass_request_headers", "proxy_pass_request_body", "proxy_method", "grpc_ssl_verify"] {
        if let Some(directive) = scope.one(name)
            && !conversion.ledger.is_judged(directive)
        {
            match directive.word(0) {
                "on" => conversion.ledger.exact(directive, "as Weir does"),
                _ => conversion
                    .ledger
                    .unsupported(directive, "no counterpart: method, fields and body pass as they are"),
            }
        }
    }
}

/// Copies for another pool.
fn mirror<'c>(
    conversion: &mut Conversion<'c>,
    content: &LocationContent<'c, '_>,
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let Some(directive) = content.scope.one("mirror").filter(|directive| directive.word(0) != "off") else {
        return;
    };
    let server = content.server;
    let found = super::errors::located(&server.locations, directive.word(0));
    let pass = found.and_then(|location| location.own().inner().iter().find(|it| it.name == "proxy_pass"));
    let made = found.zip(pass).ok_or_else(|| "no location asks a backend".to_owned()).and_then(
        |(location, pass)| {
            let target = ProxyTarget::of(&place.constant(pass.word(0)))?;
            let kind = PoolKind::Http { is_grpc: false, has_tls: target.has_tls };
            let scope = server.scope_of(location);
            let inner = NginxPlace { proxy_host: target.proxy_host(), ..place.clone() };
            let name = pool(conversion, &target.authority, kind, &scope, &inner)?.name;
            conversion.ledger.exact(pass, "the pool of `mirror`");
            Ok(name)
        },
    );
    match made {
        Ok(name) => {
            route.set("mirror", format!("{{ pool = {}, credentials = true }}", quoted(&name)));
            let note = "`mirror`: copies have the path and query of the request, and bodies up to 64KiB";
            conversion.ledger.approximate(directive, note);
        }
        Err(why) => conversion.ledger.unsupported(directive, format!("{why}: no copies")),
    }
}
