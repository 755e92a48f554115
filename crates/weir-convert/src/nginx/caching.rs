//! `proxy_cache` and `gzip`.

use std::time::Duration;

use weir_config::quoted;

use super::conversion::Conversion;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::units::{duration_between, nginx_size, nginx_time, size_text};
use super::variables::{NginxPart, parts};
use crate::DirectiveVerdict;
use crate::write::texts;

const DAY: Duration = Duration::from_secs(86_400);

/// Sets the cache of a route.
pub fn of_route(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, route: &mut NewRoute) {
    let Some(directive) = scope.one("proxy_cache") else { return };
    if directive.word(0) == "off" {
        conversion.ledger.exact(directive, "no `cache`");
        return;
    }
    conversion.ledger.approximate(directive, "`cache` of the route: in memory, by the rules of RFC 9111");
    let mut keys: Vec<(String, String)> = Vec::new();
    paths(conversion, scope);
    valid(conversion, scope, &mut keys);
    stale(conversion, scope, &mut keys);
    key(conversion, scope, &mut keys);
    if let Some(directive) = scope.one("proxy_cache_lock_timeout") {
        if let Some(time) = nginx_time(directive.word(0)) {
            let text = duration_between(time, Duration::from_millis(1), Duration::from_secs(3600));
            keys.push(("collapse_timeout".to_owned(), text));
        }
        conversion.ledger.exact(directive, "`collapse_timeout`");
    }
    let ignored = scope.all("proxy_ignore_headers");
    let ignores = |name: &str| {
        ignored.iter().any(|directive| directive.words.iter().any(|word| word.eq_ignore_ascii_case(name)))
    };
    if ignores("set-cookie") {
        keys.push(("set_cookie".to_owned(), quoted("strip")));
    }
    conversion.ledger.unsaid(
        "proxy_cache",
        DirectiveVerdict::Approximate,
        "clients' own `cache-control` is not obeyed, as by nginx (`honour_client = false`); HEAD, ranges and conditions are answered from memory; requests for the same thing share one fetch",
    );
    keys.push(("honour_client".to_owned(), "false".to_owned()));
    others(conversion, scope);
    let keys: Vec<String> = keys.into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
    route.set("cache", format!("{{ {} }}", keys.join(", ")));
}

fn paths(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) {
    let mut memory = 0_u64;
    for directive in scope.everywhere("proxy_cache_path") {
        let most = directive.words.iter().find_map(|word| nginx_size(word.strip_prefix("max_size=")?));
        memory += most.unwrap_or(0);
        let note = match most {
            Some(_) => "`[cache] memory`, up to 1GiB: what is kept is in memory, not on a disk",
            None => "what is kept is in memory, not on a disk: `[cache] memory`",
        };
        conversion.ledger.approximate(directive, note);
    }
    if memory > 0 {
        conversion.cache_memory = Some(memory.clamp(1 << 20, 1 << 30));
    }
}

fn valid(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, keys: &mut Vec<(String, String)>) {
    let within = |time: Duration| duration_between(time, Duration::from_secs(1), DAY * 365);
    let (mut ttl, mut negative) = (None, None);
    for directive in scope.all("proxy_cache_valid") {
        let Some(time) = directive.words.last().and_then(|word| nginx_time(word)) else {
            conversion.ledger.unsupported(directive, "no duration: left out");
            continue;
        };
        let statuses = &directive.words[..directive.words.len() - 1];
        let is = |wanted: &[&str]| {
            statuses.is_empty() || statuses.iter().any(|status| wanted.contains(&status.as_str()))
        };
        if time.is_zero() {
            conversion.ledger.approximate(
                directive,
                "left out: what is kept for no time is not kept, where nothing else is said of it",
            );
            continue;
        }
        if is(&["200", "301", "302", "any"]) {
            ttl = ttl.or(Some(time));
        }
        if statuses
            .iter()
            .any(|status| matches!(status.as_str(), "any" | "404" | "405" | "410" | "414" | "501"))
        {
            negative = negative.or(Some(time));
        }
        let known = |status: &String| {
            ["200", "301", "302", "any", "404", "405", "410", "414", "501"].contains(&status.as_str())
        };
        match statuses.iter().all(known) {
            true if statuses.is_empty() => conversion.ledger.exact(directive, "`ttl` of the cache"),
            true => conversion.ledger.approximate(directive, "`ttl` for what is no error, `negative_ttl` for 404, 405, 410, 414 and 501; no other error is kept"),
            false => conversion.ledger.approximate(directive, "only what RFC 9111 lets a cache keep is kept: see `ttl` and `negative_ttl`"),
        }
    }
    keys.extend(ttl.map(|time| ("ttl".to_owned(), within(time))));
    keys.extend(negative.map(|time| ("negative_ttl".to_owned(), within(time))));
}

fn stale(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, keys: &mut Vec<(String, String)>) {
    let background = scope.one("proxy_cache_background_update").filter(|directive| directive.word(0) == "on");
    if let Some(directive) = scope.one("proxy_cache_background_update") {
        conversion.ledger.exact(directive, "`stale_while_revalidate` does so");
    }
    let Some(directive) = scope.one("proxy_cache_use_stale") else { return };
    let has = |word: &str| directive.words.iter().any(|other| other == word);
    if has("error")
        || has("timeout")
        || has("http_500")
        || has("http_502")
        || has("http_503")
        || has("http_504")
    {
        keys.push(("stale_if_error".to_owned(), "\"1d\"".to_owned()));
    }
    if has("updating") || background.is_some() {
        keys.push(("stale_while_revalidate".to_owned(), "\"1d\"".to_owned()));
    }
    match has("off") {
        true => conversion.ledger.exact(directive, "nothing out of date is given"),
        false => conversion.ledger.approximate(
            directive,
            "`stale_if_error` and `stale_while_revalidate`, for a day; nginx for as long as it has it",
        ),
    }
}

fn key(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, keys: &mut Vec<(String, String)>) {
    let Some(directive) = scope.one("proxy_cache_key") else {
        let note = "by scheme, host, path and query; nginx by the name in `proxy_pass` in place of the host";
        conversion.ledger.unsaid("proxy_cache_key", DirectiveVerdict::Approximate, note);
        return;
    };
    let (mut headers, mut cookies, mut lacking) = (Vec::new(), Vec::new(), Vec::new());
    let (mut has_query, mut has_path) = (false, false);
    for part in parts(&directive.words.concat()) {
        let NginxPart::Variable(name) = part else { continue };
        match name.as_str() {
            "scheme" | "host" | "http_host" | "proxy_host" | "server_name" | "request_method"
            | "server_port" => {}
            "request_uri" => (has_query, has_path) = (true, true),
            "uri" | "document_uri" => has_path = true,
            "is_args" | "args" | "query_string" => has_query = true,
            name => match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
                (Some(header), _) => headers.push(header.replace('_', "-")),
                (_, Some(cookie)) => cookies.push(cookie.to_owned()),
                _ => lacking.push(format!("`${name}`")),
            },
        }
    }
    if !has_query && has_path {
        keys.push(("ignore_query".to_owned(), "true".to_owned()));
    }
    if !headers.is_empty() {
        keys.push(("key_headers".to_owned(), texts(&headers)));
    }
    if !cookies.is_empty() {
        keys.push(("key_cookies".to_owned(), texts(&cookies)));
    }
    match lacking.is_empty() && has_path {
        true => conversion.ledger.approximate(
            directive,
            "scheme, host and path always count; `ignore_query`, `key_headers`, `key_cookies` say the rest",
        ),
        false => conversion.ledger.unsupported(
            directive,
            format!("scheme, host, path and query count; {} cannot", lacking.join(", ")),
        ),
    }
}

fn others(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) {
    for name in ["proxy_cache_lock", "proxy_cache_lock_age", "proxy_cache_revalidate"] {
        if let Some(directive) = scope.one(name) {
            conversion.ledger.exact(directive, "Weir does so always");
        }
    }
    if let Some(directive) = scope.one("proxy_cache_methods") {
        conversion.ledger.approximate(directive, "GET and HEAD are answered from memory, as by default");
    }
    for name in [
        "proxy_cache_min_uses",
        "proxy_cache_convert_head",
        "proxy_cache_max_range_offset",
        "proxy_cache_purge",
    ] {
        if let Some(directive) = scope.one(name) {
            conversion.ledger.unsupported(directive, "no counterpart: left out");
        }
    }
    for name in ["proxy_cache_bypass", "proxy_no_cache"] {
        for directive in scope.all(name) {
            let note = "left out: SUCH REQUESTS ARE ANSWERED FROM MEMORY, TOO; make a route without `cache` for them, with `cookie`, `header` or `query`";
            conversion.ledger.unsupported(directive, note);
        }
    }
}

/// Sets how responses are compressed.
pub fn compression(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, route: &mut NewRoute) {
    let Some(gzip) = scope.one("gzip") else { return };
    if gzip.word(0) != "on" {
        conversion.ledger.exact(gzip, "no `compress`");
        return;
    }
    conversion.ledger.exact(gzip, "`compress`, with gzip alone; zstd and br are there, too");
    let mut keys = vec!["codings = [\"gzip\"]".to_owned()];
    let mut types = vec!["text/html".to_owned()];
    if let Some(directive) = scope.one("gzip_types") {
        types.extend(directive.words.iter().filter(|word| *word != "text/html").cloned());
        let has_all = types.iter().any(|word| word == "*");
        types.retain(|word| word.contains('/'));
        types.dedup();
        match has_all {
            true => {
                types.clear();
                conversion.ledger.approximate(directive, "Weir's own list: text, scripts, JSON, XML, SVG");
            }
            false => conversion.ledger.exact(directive, "`types`"),
        }
    }
    if !types.is_empty() {
        keys.push(format!("types = {}", texts(&types)));
    }
    let least = scope.one("gzip_min_length");
    let bytes = least.and_then(|directive| nginx_size(directive.word(0))).unwrap_or(20);
    keys.push(format!("min = {}", size_text(bytes)));
    if let Some(directive) = least {
        conversion.ledger.exact(directive, "`min`");
    }
    if let Some(directive) = scope.one("gzip_comp_level") {
        let level: u64 = directive.word(0).parse().unwrap_or(1);
        keys.push(format!("level = {{ gzip = {} }}", level.clamp(1, 9)));
        conversion.ledger.exact(directive, "`level`");
    } else {
        keys.push("level = { gzip = 1 }".to_owned());
    }
    for name in ["gzip_vary", "gzip_proxied", "gzip_http_version", "gzip_disable"] {
        if let Some(directive) = scope.one(name) {
            let note = "`vary` is always sent, and requests of proxies are compressed, too";
            match (name, directive.word(0)) {
                ("gzip_vary", "on") | ("gzip_proxied", "any") => conversion.ledger.exact(directive, note),
                _ => conversion.ledger.approximate(directive, note),
            }
        }
    }
    route.set("compress", format!("{{ {} }}", keys.join(", ")));
}
