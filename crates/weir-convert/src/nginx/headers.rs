//! Header fields: what backends and clients are told.

use std::collections::BTreeMap;

use weir_config::{is_framing_field, is_single_valued, quoted};

use super::conversion::Conversion;
use super::request_test::toml_key;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::units::{is_plain_host, nginx_time};
use super::variables::NginxPlace;
use crate::DirectiveVerdict;
use crate::write::texts;

/// What nginx never passes on of a backend's answer.
const HIDDEN: [&str; 6] = [
    "server",
    "x-accel-redirect",
    "x-accel-expires",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
];

/// What Weir tells backends by itself, in the place of what clients say.
const OWN_OF_WEIR: [&str; 4] = ["x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip"];

/// Sets what backends are told: `proxy_set_header`. The names of fields and cookies that values depend on
/// are given, for the key of a cache.
pub fn of_request(
    conversion: &mut Conversion<'_>,
    directives: &[&NginxDirective],
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let mut set: BTreeMap<String, String> = BTreeMap::new();
    let mut removed: Vec<String> = Vec::new();
    let mut has_host = false;
    for directive in directives {
        let name = directive.word(0).to_ascii_lowercase();
        let value = directive.word(1);
        if name == "host" {
            has_host = true;
            host(conversion, directive, place, route);
            continue;
        }
        if let Some((verdict, note)) = own(&name, value) {
            conversion.ledger.judge(directive, verdict, note.to_owned());
            continue;
        }
        match conversion.template(value, place) {
            Ok(text) if text.is_empty() => {
                conversion.ledger.exact(directive, "`remove_request_header`");
                removed.push(name);
            }
            Ok(text) => {
                conversion.ledger.exact(directive, "`set_request_header`");
                set.insert(name, text);
            }
            Err(bad) if OWN_OF_WEIR.contains(&name.as_str()) => {
                let note = format!("Weir has no `${bad}` there: backends get what Weir writes itself");
                conversion.ledger.approximate(directive, note);
            }
            Err(bad) => {
                // The client's own field would pass as if it were what nginx writes.
                let note =
                    format!("Weir has no `${bad}` there: the field is taken out (`remove_request_header`)");
                conversion.ledger.unsupported(directive, note);
                removed.push(name);
            }
        }
    }
    if !has_host {
        default_host(conversion, place, route);
    }
    removed.retain(|name| !set.contains_key(name));
    if !set.is_empty() {
        route.set("set_request_header", table(&set));
    }
    if !removed.is_empty() {
        route.set("remove_request_header", texts(&removed));
    }
}

/// Fields that Weir writes by itself, and what differs.
fn own(name: &str, value: &str) -> Option<(DirectiveVerdict, &'static str)> {
    use DirectiveVerdict::{Approximate, Exact, Unsupported};
    Some(match (name, value) {
        ("x-real-ip", "$remote_addr") => (Exact, "backends get it from Weir anyway"),
        ("x-forwarded-proto", "$scheme") => (Exact, "backends get it from Weir anyway"),
        ("x-forwarded-host", "$http_host") => (Exact, "backends get it from Weir anyway"),
        ("x-forwarded-port", "$server_port") => (Exact, "backends get it from Weir anyway"),
        ("x-forwarded-for", "$remote_addr") => (Exact, "backends get it from Weir anyway"),
        ("x-forwarded-for", "$proxy_add_x_forwarded_for") => (
            Approximate,
            "backends get it from Weir anyway; what a client that is none of the `trusted_proxies` says in it is thrown away",
        ),
        ("x-forwarded-for", _) => (Unsupported, "Weir writes it itself, with the client's address"),
        ("upgrade", "$http_upgrade") => (Exact, "WebSocket and the like pass by themselves"),
        ("x-request-id", "$request_id") => {
            (Exact, "backends get it from Weir anyway, and the client's own is passed on")
        }
        ("forwarded", _) => (Unsupported, "Weir writes it itself (`forwarded = false` does not)"),
        ("connection", _) => (Exact, "Weir writes it itself, by connection; WebSocket passes"),
        ("proxy", "") => (Exact, "Weir never passes it on"),
        ("via" | "x-request-id", _) => (Approximate, "Weir writes it itself"),
        (name, _) if is_framing_field(name) => {
            (Approximate, "Weir writes it itself, as the connection or the message needs it")
        }
        _ => return None,
    })
}

fn host(
    conversion: &mut Conversion<'_>,
    directive: &NginxDirective,
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    match place.constant(directive.word(1)).as_str() {
        "${http_host}" => conversion.ledger.exact(directive, "the client's, as Weir passes it"),
        "" => conversion.ledger.approximate(directive, "a request has a host: the client's"),
        "${proxy_host}" => {
            conversion.ledger.exact(directive, "`backend_host`");
            default_host(conversion, place, route);
        }
        value => match conversion.template(value, place) {
            Ok(text) => {
                route.set_text("backend_host", &text);
                match text.as_str() {
                    "$host" => conversion.ledger.exact(directive, "`backend_host = \"$host\"`: without a port, as by nginx; capitals, which mean nothing in a host, stay"),
                    _ => conversion.ledger.exact(directive, "`backend_host`"),
                }
            }
            Err(bad) => {
                let note = format!("Weir has no `${bad}` there: backends get the client's host");
                conversion.ledger.unsupported(directive, note);
            }
        },
    }
}

/// nginx asks backends by the name in `proxy_pass`, where nothing else is said.
fn default_host(conversion: &mut Conversion<'_>, place: &NginxPlace, route: &mut NewRoute) {
    let host = place.proxy_host.as_str();
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let is_host = is_plain_host(name) || (name.starts_with('[') && name.ends_with(']'));
    if !is_host {
        let note =
            "backends get the client's host; nginx asks by the name in `proxy_pass`, which is no host here";
        conversion.ledger.unsaid("proxy_set_header Host", DirectiveVerdict::Approximate, note);
        return;
    }
    route.set_text("backend_host", host);
    let note = "`backend_host`: backends are asked by the name in `proxy_pass`, as nginx does; without it they would get the client's host";
    conversion.ledger.unsaid("proxy_set_header Host", DirectiveVerdict::Exact, note);
}

fn table(pairs: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{} = {}", toml_key(name), quoted(value))).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// Sets what clients are told: `add_header`, `expires`, `proxy_hide_header`.
pub fn of_response(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let mut set: BTreeMap<String, String> = BTreeMap::new();
    let mut added: BTreeMap<String, String> = BTreeMap::new();
    // Without `always` nginx adds nothing to its own errors.
    let is_error = route.own_status().is_some_and(|status| status >= 400);
    let added_here = scope.all("add_header").into_iter();
    for directive in added_here.filter(|directive| !is_error || directive.word(2) == "always") {
        let name = directive.word(0).to_ascii_lowercase();
        let text = match conversion.template(directive.word(1), place) {
            Ok(text) => text,
            Err(bad) => {
                let note = match bad.as_str() {
                    "upstream_cache_status" => "Weir says it in `cache-status`".to_owned(),
                    bad => format!("Weir has no `${bad}` there: left out"),
                };
                conversion.ledger.unsupported(directive, note);
                continue;
            }
        };
        if text.is_empty() || is_framing_field(&name) || name == "alt-svc" {
            conversion.ledger.exact(directive, "nothing to send, or Weir's own");
            continue;
        }
        match (directive.word(2) == "always", is_single_valued(&name)) {
            (true, false) => conversion.ledger.exact(directive, "`add_response_header`"),
            (true, true) => conversion
                .ledger
                .exact(directive, "`set_response_header`, which takes the place of the backend's own"),
            (false, _) => conversion
                .ledger
                .approximate(directive, "also on errors, where nginx adds it with `always` only"),
        }
        if is_single_valued(&name) {
            set.insert(name, text);
            continue;
        }
        match added.get_mut(&name) {
            Some(_) if name == "set-cookie" => {
                conversion.ledger.unsupported(directive, "a second one of that name: left out")
            }
            Some(value) => *value = format!("{value}, {text}"),
            None => drop(added.insert(name, text)),
        }
    }
    if let Some(directive) = scope.one("expires") {
        expires(conversion, directive, &mut set);
    }
    let mut hidden: Vec<String> = if route.is_forwarding() { hidden(conversion, scope) } else { Vec::new() };
    for name in &hidden {
        // One rule for a name: what is set takes the place of all others.
        if let Some(value) = added.remove(name) {
            set.insert(name.clone(), value);
        }
    }
    hidden.retain(|name| !set.contains_key(name));
    for (key, pairs) in [("set_response_header", &set), ("add_response_header", &added)] {
        if !pairs.is_empty() {
            route.set(key, table(pairs));
        }
    }
    if !hidden.is_empty() {
        route.set("remove_response_header", texts(&hidden));
    }
}

/// The fields of a backend's answer that clients do not get.
fn hidden(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) -> Vec<String> {
    let mut hidden: Vec<String> = HIDDEN.iter().map(|&name| name.to_owned()).collect();
    for directive in scope.all("proxy_hide_header") {
        conversion.ledger.exact(directive, "`remove_response_header`");
        hidden.push(directive.word(0).to_ascii_lowercase());
    }
    for directive in scope.all("proxy_pass_header") {
        conversion.ledger.exact(directive, "the field passes");
        let name = directive.word(0).to_ascii_lowercase();
        hidden.retain(|other| *other != name);
    }
    for directive in scope.all("proxy_ignore_headers") {
        let note = "Weir acts on no `x-accel-…`; `cache-control`, `expires`, `vary` and `set-cookie` hold for its cache";
        conversion.ledger.approximate(directive, note);
    }
    if let Some(directive) = scope.one("server_tokens") {
        conversion
            .ledger
            .exact(directive, "Weir adds no `server`, and backends' own is taken out, as by nginx");
    }
    hidden.dedup();
    conversion.ledger.unsaid(
        "server",
        DirectiveVerdict::Approximate,
        "nginx answers with its own `server` and passes neither the backend's nor `x-accel-…` on: `remove_response_header` takes them out, and Weir adds none",
    );
    hidden
}

fn expires(conversion: &mut Conversion<'_>, directive: &NginxDirective, set: &mut BTreeMap<String, String>) {
    let value = match directive.word(0) {
        "off" => {
            conversion.ledger.exact(directive, "nothing is added");
            return;
        }
        "epoch" => "no-cache".to_owned(),
        "max" => "max-age=315360000".to_owned(),
        text => match nginx_time(text.trim_start_matches('-')) {
            Some(_) if text.starts_with('-') => "no-cache".to_owned(),
            Some(time) => format!("max-age={}", time.as_secs()),
            None => {
                conversion.ledger.unsupported(directive, "no time that never changes: left out");
                return;
            }
        },
    };
    set.entry("cache-control".to_owned()).or_insert(value);
    conversion.ledger.approximate(directive, "`cache-control` is set, and no `expires`; also on errors");
}
