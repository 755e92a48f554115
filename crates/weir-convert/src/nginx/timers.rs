//! Timers, bodies, buffers and tries of what is forwarded.

use std::time::Duration;

use super::conversion::Conversion;
use super::route::NewRoute;
use super::scope::NginxScope;
use super::units::{duration_between, nginx_size, nginx_time, size_text, timer};
use crate::DirectiveVerdict;

/// Most bytes of a body that Weir holds for a backend here: it is memory.
const HELD_MOST: u64 = 64 << 20;

/// The timers of an exchange, by Weir's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NginxTimers {
    connect: Duration,
    backend: Duration,
    client_body: Duration,
}

const MINUTE: Duration = Duration::from_secs(60);

/// nginx's time of a directive, which is noted; a minute where it is not said.
fn time(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, name: &str, note: &str) -> Duration {
    let Some(directive) = scope.one(name) else { return MINUTE };
    match nginx_time(directive.word(0)) {
        Some(time) => {
            conversion.ledger.exact(directive, note);
            time
        }
        None => {
            conversion.ledger.unsupported(directive, "no duration: 60s, as by default");
            MINUTE
        }
    }
}

impl NginxTimers {
    /// Those that hold in a block.
    pub fn of(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) -> NginxTimers {
        let is_grpc = scope.one("grpc_pass").is_some();
        let family = if is_grpc { "grpc" } else { "proxy" };
        let connect = time(conversion, scope, &format!("{family}_connect_timeout"), "`timeout.connect`");
        let note = "`timeout.backend`, `stream` and `tunnel`";
        let backend = time(conversion, scope, &format!("{family}_read_timeout"), note);
        let body = time(conversion, scope, "client_body_timeout", "`timeout.client_body`");
        let sending = time(conversion, scope, "send_timeout", "`timeout.client_body`, for both directions");
        if let Some(directive) = scope.one(&format!("{family}_send_timeout")) {
            let note = "no key of its own: `timeout.backend` and `client_body` end a request whose backend reads nothing";
            conversion.ledger.approximate(directive, note);
        }
        NginxTimers { connect, backend, client_body: body.max(sending) }
    }

    fn keys(&self) -> Vec<String> {
        let connect = duration_between(self.connect, Duration::from_millis(1), Duration::from_secs(300));
        let backend = timer(self.backend);
        vec![
            format!("connect = {connect}"),
            format!("backend = {backend}"),
            format!("stream = {backend}"),
            format!("tunnel = {backend}"),
            format!("client_body = {}", timer(self.client_body)),
        ]
    }

    /// Those that are others than these, as a table of a route; `None` if all are the same.
    fn beside(&self, listener: &NginxTimers) -> Option<String> {
        let all = listener.keys();
        let own: Vec<String> = self.keys().into_iter().filter(|key| !all.contains(key)).collect();
        (!own.is_empty()).then(|| format!("{{ {} }}", own.join(", ")))
    }
}

/// The timers of a listener, as a table.
pub fn of_listener(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, timers: &NginxTimers) -> String {
    let idle = match scope.one("keepalive_timeout") {
        Some(directive) => match nginx_time(directive.word(0)) {
            Some(time) => {
                match time.is_zero() {
                    true => conversion
                        .ledger
                        .approximate(directive, "`timeout.client_idle` of 10ms: connections are closed soon"),
                    false => conversion.ledger.exact(directive, "`timeout.client_idle`"),
                }
                time
            }
            None => Duration::from_secs(75),
        },
        None => Duration::from_secs(75),
    };
    let header = time(conversion, scope, "client_header_timeout", "`timeout.header`");
    let mut keys = vec![format!("client_idle = {}", timer(idle))];
    keys.push(format!(
        "header = {}",
        duration_between(header, Duration::from_millis(10), Duration::from_secs(3600))
    ));
    keys.extend(timers.keys());
    conversion.ledger.unsaid(
        "…_timeout",
        DirectiveVerdict::Exact,
        "nginx's defaults are written into `timeout` of each listener: 60s each, 75s between requests; Weir's own are shorter for `connect` (2s), and 1h for `tunnel`",
    );
    format!("{{ {} }}", keys.join(", "))
}

/// Sets what a route that forwards says of times, bodies, buffers and tries.
pub fn of_route(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    (listener, pool_size): (&NginxTimers, usize),
    route: &mut NewRoute,
) {
    if let Some(table) = NginxTimers::of(conversion, scope).beside(listener) {
        route.set("timeout", table);
    }
    let most = body_limit(conversion, scope);
    if let Some(most) = most {
        route.set("body_limit", size_text(most));
    }
    buffer(conversion, scope, most, route);
    retry(conversion, scope, pool_size, route);
}

/// `client_max_body_size`: 1 MiB where it is not said; `None` for no limit.
fn body_limit(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) -> Option<u64> {
    let Some(directive) = scope.one("client_max_body_size") else {
        let note = "`body_limit = \"1MiB\"`: Weir's own default is no limit";
        conversion.ledger.unsaid("client_max_body_size", DirectiveVerdict::Exact, note);
        return Some(1 << 20);
    };
    match nginx_size(directive.word(0)) {
        Some(0) => {
            conversion.ledger.exact(directive, "no `body_limit`");
            None
        }
        Some(most) => {
            conversion.ledger.exact(directive, "`body_limit`");
            Some(most.min(64 << 40))
        }
        None => {
            conversion.ledger.unsupported(directive, "no size: `body_limit = \"1MiB\"`, as by default");
            Some(1 << 20)
        }
    }
}

/// Whether a directive is on, which is noted.
fn is_on(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, name: &str, default: bool) -> bool {
    let Some(directive) = scope.one(name) else { return default };
    conversion.ledger.exact(directive, "`buffer` of the route");
    directive.word(0) == "on"
}

fn buffer(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, most: Option<u64>, route: &mut NewRoute) {
    let requests = is_on(conversion, scope, "proxy_request_buffering", true);
    let responses = is_on(conversion, scope, "proxy_buffering", true);
    let held = if requests { most.unwrap_or(HELD_MOST).min(HELD_MOST) } else { 0 };
    let responses_text = if responses { "1MiB" } else { "0B" };
    route.set("buffer", format!("{{ requests = {}, responses = \"{responses_text}\" }}", size_text(held)));
    for name in [
        "client_body_buffer_size",
        "client_body_temp_path",
        "proxy_temp_path",
        "proxy_max_temp_file_size",
        "client_body_in_file_only",
    ] {
        if let Some(directive) = scope.one(name) {
            let note = "bodies are held in memory; `requests_file`, `responses_file` and `runtime.buffer_directory` have files hold more";
            conversion.ledger.approximate(directive, note);
        }
    }
    if requests && most.is_none_or(|most| most > HELD_MOST) {
        let note = "requests are held up to 64MiB, in memory; what is longer goes on as it comes (`requests_file` holds more)";
        conversion.ledger.unsaid("proxy_request_buffering", DirectiveVerdict::Approximate, note);
    }
    conversion.ledger.unsaid(
        "proxy_buffering",
        DirectiveVerdict::Approximate,
        "`buffer` holds requests until they are whole, and up to 1MiB of responses for slow clients, in memory, where nginx has files",
    );
}

fn retry(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, pool_size: usize, route: &mut NewRoute) {
    let others = u64::try_from(pool_size.saturating_sub(1)).unwrap_or(u64::MAX);
    let tries = scope.one("proxy_next_upstream_tries");
    let most = tries.and_then(|directive| directive.word(0).parse::<u64>().ok()).filter(|most| *most > 0);
    if let Some(directive) = tries {
        conversion.ledger.exact(directive, "`attempts` of `retry`, which counts those after the first");
    }
    if let Some(directive) = scope.one("proxy_next_upstream_timeout") {
        match nginx_time(directive.word(0)) {
            Some(time) if !time.is_zero() => {
                let note =
                    "left out: each try has the timers; `timeout.request_total` would end the answer, too";
                conversion.ledger.unsupported(directive, note);
            }
            _ => conversion.ledger.exact(directive, "no limit, as here"),
        }
    }
    let mut on: Vec<&str> = Vec::new();
    let mut non_idempotent = false;
    let mut lacking: Vec<&str> = Vec::new();
    let words = scope.one("proxy_next_upstream").map(|directive| directive.words.clone());
    let words = words.unwrap_or_else(|| vec!["error".to_owned(), "timeout".to_owned()]);
    let is_off = words.iter().any(|word| word == "off");
    for word in &words {
        match word.as_str() {
            "error" => on.extend(["connect", "reset"]),
            "timeout" => on.push("timeout"),
            "http_500" => on.push("500"),
            "http_502" => on.push("502"),
            "http_503" => on.push("503"),
            "http_504" => on.push("504"),
            "http_429" => on.push("429"),
            "non_idempotent" => non_idempotent = true,
            "off" => {}
            other => lacking.push(other),
        }
    }
    if let Some(directive) = scope.one("proxy_next_upstream") {
        match lacking.as_slice() {
            [] => conversion.ledger.exact(directive, "`retry` of the route"),
            some => conversion
                .ledger
                .approximate(directive, format!("`retry` of the route, without {}", some.join(", "))),
        }
    } else {
        let note = "`retry`: what nginx tries at another server, once at each; besides, a pool has a `budget` of tries";
        conversion.ledger.unsaid("proxy_next_upstream", DirectiveVerdict::Approximate, note);
    }
    let attempts = most.map_or(others, |most| others.min(most - 1)).min(10);
    if is_off || on.is_empty() || attempts == 0 {
        route.set("retry", "{ attempts = 0 }");
        return;
    }
    let on: Vec<String> = on.iter().map(|word| format!("\"{word}\"")).collect();
    let more = if non_idempotent { ", non_idempotent = true" } else { "" };
    route.set("retry", format!("{{ attempts = {attempts}, on = [{}]{more} }}", on.join(", ")));
}
