//! `limit_req` and `limit_conn`.

use weir_config::quoted;
use weir_config::units::{show_byte_rate, show_size};

use super::conversion::Conversion;
use super::pool_settings::hash_key;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::units::nginx_size;
use super::variables::NginxPlace;

/// Sets the limits of rate and of requests under way.
pub fn of_route(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    place: &NginxPlace,
    route: &mut NewRoute,
) {
    let rates: Vec<String> = scope
        .all("limit_req")
        .into_iter()
        .filter_map(|directive| rate(conversion, scope, directive, place))
        .collect();
    set(route, "rate_limit", &rates);
    let counts: Vec<String> = scope
        .all("limit_conn")
        .into_iter()
        .filter_map(|directive| concurrency(conversion, scope, directive, place))
        .collect();
    set(route, "concurrency_limit", &counts);
    bandwidth(conversion, scope, route);
}

/// The slowest rate of a response, in bytes per second.
const SLOWEST: u64 = 16 << 10;

/// Sets `bandwidth`: `limit_rate` and `limit_rate_after`.
fn bandwidth(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, route: &mut NewRoute) {
    let after = scope.one("limit_rate_after");
    let Some(directive) = scope.one("limit_rate") else {
        if let Some(after) = after {
            conversion.ledger.exact(after, "there is no `limit_rate`");
        }
        return;
    };
    let after_bytes = after.and_then(|after| nginx_size(after.word(0)));
    if let Some(after) = after {
        match after_bytes {
            Some(_) => conversion.ledger.exact(after, "`after` of `bandwidth`"),
            None => conversion.ledger.unsupported(after, "it has no variables: all of a response is limited"),
        }
    }
    match nginx_size(directive.word(0)) {
        None => {
            let note = "a rate has no variables: responses are not limited";
            conversion.ledger.unsupported(directive, note);
        }
        Some(0) => conversion.ledger.exact(directive, "no limit"),
        Some(rate) => {
            let to_client = format!("to_client = \"{}\"", show_byte_rate(rate.max(SLOWEST)));
            let after = after_bytes.filter(|bytes| *bytes > 0);
            let after = after.map(|bytes| format!("after = \"{}\"", show_size(bytes)));
            let keys: Vec<String> = std::iter::once(to_client).chain(after).collect();
            route.set("bandwidth", format!("{{ {} }}", keys.join(", ")));
            match rate < SLOWEST {
                true => conversion.ledger.approximate(directive, "`bandwidth` of the slowest, 16KiB/s"),
                false => conversion.ledger.exact(directive, "`bandwidth`"),
            }
        }
    }
}

fn set(route: &mut NewRoute, key: &'static str, limits: &[String]) {
    match limits {
        [] => {}
        [one] => route.set(key, one.clone()),
        more => route.set(key, format!("[{}]", more.join(", "))),
    }
}

/// The zone of a name, and the key by which it counts. `Err` says why there is none.
fn zone<'c>(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'c>,
    (kind, name): (&str, &str),
    place: &NginxPlace,
) -> Result<(&'c NginxDirective, String), String> {
    let is_named = |directive: &&NginxDirective| {
        directive
            .words
            .iter()
            .any(|word| word.strip_prefix("zone=").is_some_and(|zone| zone.split(':').next() == Some(name)))
    };
    let found = scope.everywhere(kind).into_iter().find(is_named);
    let zone = found.ok_or_else(|| format!("there is no `{kind}` for the zone `{name}`"))?;
    let key = zone.word(0);
    match conversion.template(key, place) {
        Ok(template) if !template.contains('$') => Ok((zone, "route".to_owned())),
        Ok(template) => Ok((zone, hash_key(&template))),
        Err(bad) => {
            let note = format!("Weir has no `${bad}` there: clients are counted by their address");
            conversion.ledger.approximate(zone, note);
            Ok((zone, "client_ip".to_owned()))
        }
    }
}

/// The status of a refusal; nginx's is 503.
fn status(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, name: &str) -> &'static str {
    let Some(directive) = scope.one(name) else { return "503" };
    match directive.word(0) {
        "429" => {
            conversion.ledger.exact(directive, "`status` of the limit");
            "429"
        }
        "503" => {
            conversion.ledger.exact(directive, "`status` of the limit");
            "503"
        }
        _ => {
            conversion.ledger.approximate(directive, "429: a limit of Weir's answers with 429 or 503");
            "429"
        }
    }
}

fn dry_run(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, name: &str) -> &'static str {
    match scope.one(name) {
        Some(directive) => {
            conversion.ledger.exact(directive, "`dry_run` of the limit");
            if directive.word(0) == "on" { ", dry_run = true" } else { "" }
        }
        None => "",
    }
}

fn rate(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    directive: &NginxDirective,
    place: &NginxPlace,
) -> Option<String> {
    let value =
        |name: &str| directive.words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let name = value("zone").unwrap_or_default();
    let (zone, key) = match zone(conversion, scope, ("limit_req_zone", name), place) {
        Ok(found) => found,
        Err(why) => {
            conversion.ledger.unsupported(directive, format!("{why}: NOT LIMITED"));
            return None;
        }
    };
    let rate = zone.words.iter().find_map(|word| word.strip_prefix("rate=")).unwrap_or("1r/s");
    let rate = rate.replace("r/s", "/s").replace("r/m", "/m");
    conversion.ledger.exact(zone, "`rate_limit` where it is used, with `rate` and `key`");
    let burst: u64 = value("burst").and_then(|burst| burst.parse().ok()).unwrap_or(0);
    let has = |word: &str| directive.words.iter().any(|other| other == word);
    let common = "each route counts for itself";
    let note = match (burst, has("nodelay"), value("delay")) {
        (0, ..) | (_, true, _) => format!("`rate_limit`: `burst` counts the first request, too; {common}"),
        _ => format!("`rate_limit`: what nginx delays passes at once, as many as `burst` says; {common}"),
    };
    conversion.ledger.approximate(directive, note);
    conversion.ledger.judge_log_level(scope, "limit_req_log_level");
    let status = status(conversion, scope, "limit_req_status");
    let dry = dry_run(conversion, scope, "limit_req_dry_run");
    let key = if key == "client_ip" { String::new() } else { format!(", key = {}", quoted(&key)) };
    Some(format!(
        "{{ rate = {}, burst = {}{key}, status = {status}{dry} }}",
        quoted(&rate),
        (burst + 1).min(10_000_000)
    ))
}

fn concurrency(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    directive: &NginxDirective,
    place: &NginxPlace,
) -> Option<String> {
    let (zone, key) = match zone(conversion, scope, ("limit_conn_zone", directive.word(0)), place) {
        Ok(found) => found,
        Err(why) => {
            conversion.ledger.unsupported(directive, format!("{why}: NOT LIMITED"));
            return None;
        }
    };
    let Ok(most) = directive.word(1).parse::<u64>() else {
        conversion.ledger.unsupported(directive, "no number: NOT LIMITED");
        return None;
    };
    conversion.ledger.exact(zone, "`concurrency_limit` where it is used");
    conversion.ledger.approximate(directive, "`concurrency_limit`: each route counts for itself");
    conversion.ledger.judge_log_level(scope, "limit_conn_log_level");
    let status = status(conversion, scope, "limit_conn_status");
    let dry = dry_run(conversion, scope, "limit_conn_dry_run");
    let key = if key == "client_ip" { String::new() } else { format!(", key = {}", quoted(&key)) };
    Some(format!("{{ max = {}{key}, status = {status}{dry} }}", most.clamp(1, 10_000_000)))
}
