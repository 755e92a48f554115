//! The status page: one dense HTML page without scripts, for the moment when somebody needs to see what is
//! going on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::status::{BackendStatus, ListenerStatus, PoolStatus, Quantiles, Status};
use weir_control::acme::OrderStatus;
use weir_control::events::{Event, What};
use weir_control::timestamp::Timestamp;

const STYLE: &str = "
:root{color-scheme:light dark;--line:#d5dae1;--soft:#f3f5f8;--dim:#66707d;--good:#1a7f4b;--warn:#a15c00;--bad:#b3261e;--off:#6a5acd}
@media(prefers-color-scheme:dark){:root{--line:#333a44;--soft:#1b2027;--dim:#97a1ae;--good:#4cc38a;--warn:#e2a04a;--bad:#ff7b72;--off:#a99cff}
body{background:#12161b;color:#e4e8ee}}
body{font:14px/1.45 system-ui,sans-serif;margin:1.2rem auto;max-width:1180px;padding:0 1rem;font-variant-numeric:tabular-nums}
header{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;align-items:baseline;border-bottom:1px solid var(--line);padding-bottom:.6rem}
h1{font-size:1.25rem;margin:0}h2{font-size:1rem;margin:1.4rem 0 .4rem}h2 small,header span{color:var(--dim);font-weight:400}
header b{font-weight:600;color:inherit}
table{border-collapse:collapse;width:100%}th,td{padding:.22rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-size:.78rem;font-weight:600;color:var(--dim)}
th:first-child,td:first-child,.l{text-align:left}.why{white-space:normal;text-align:left;color:var(--dim);min-width:12rem}
.s{display:inline-block;min-width:5.6rem;text-align:center;border-radius:3px;padding:0 .4rem;border:1px solid currentColor;font-size:.85em}
.ready{color:var(--good)}.ejected,.weight-zero,.draining,.leaving{color:var(--warn)}.down{color:var(--bad)}.maintenance{color:var(--off)}
.banner{border:1px solid var(--bad);border-left-width:6px;padding:.5rem .8rem;margin:1rem 0;border-radius:3px}
.banner b{color:var(--bad)}.banner pre{margin:.4rem 0 0;white-space:pre-wrap;font-size:.85em}
.spark i{display:inline-block;width:4px;height:11px;margin-right:1px;background:var(--good)}.spark i.b{background:var(--bad)}
.scroll{overflow-x:auto}footer{margin:1.6rem 0;color:var(--dim);border-top:1px solid var(--line);padding-top:.5rem}a{color:inherit}
";

/// The page.
pub(crate) fn render(status: &Status, events: &[Event]) -> String {
    let mut out = String::with_capacity(16 * 1024);
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Weir: {}</title><style>{STYLE}</style></head><body>",
        headline(status)
    );
    head(&mut out, status);
    banner(&mut out, status);
    listeners(&mut out, &status.listeners);
    certificates(&mut out, &status.listeners);
    on_demand(&mut out, &status.listeners);
    status.pools.iter().for_each(|it| pool(&mut out, it));
    happened(&mut out, events);
    out.push_str(
        "<footer>Also here: <a href=\"/v1/status\">status</a>, <a href=\"/v1/config\">config</a>, <a href=\"/metrics\">metrics</a>, \
         <a href=\"/v1/events\">events</a>, <a href=\"/v1/openapi.json\">API</a></footer></body></html>\n",
    );
    out
}

/// The title in the browser's tab: whether everything is well.
fn headline(status: &Status) -> String {
    let all = status.pools.iter().flat_map(|pool| &pool.backends);
    let down = all.filter(|backend| !matches!(backend.state.as_str(), "ready" | "weight-zero")).count();
    let certificates = status.listeners.iter().flat_map(|listener| &listener.certificates);
    let bad = certificates.filter(|it| it.expires_in_seconds.is_none_or(|left| left <= 0.0)).count();
    match (status.last_reload.as_ref().is_some_and(|last| !last.result.is_good()), down) {
        (true, _) => "reload refused".to_owned(),
        (false, 0) if bad > 0 => "a certificate is missing or expired".to_owned(),
        (false, 0) => "all ready".to_owned(),
        (false, 1) => "1 backend not ready".to_owned(),
        (false, count) => format!("{count} backends not ready"),
    }
}

fn head(out: &mut String, status: &Status) {
    let _ = write!(
        out,
        "<header><h1>Weir</h1><span>{} <b>{}</b></span><span>version <b>{}</b></span><span>generation <b>{}</b></span>\
         <span>sessions <b>{}</b></span><span>workers <b>{}</b></span><span>up <b>{}</b></span><span>{}</span></header>",
        status.phase,
        headline(status),
        escape(&status.version),
        status.generation,
        status.sessions,
        status.workers,
        span(status.uptime_seconds),
        escape(&status.config_source),
    );
}

fn banner(out: &mut String, status: &Status) {
    let Some(last) = &status.last_reload else { return };
    if last.result.is_good() {
        return;
    }
    let _ = write!(
        out,
        "<div class=\"banner\"><b>The last reload was {}</b> ({}). Generation {} stays in force.<pre>{}</pre></div>",
        last.result.word(),
        last.time.rfc3339(),
        status.generation,
        escape(&last.error),
    );
}

fn listeners(out: &mut String, listeners: &[ListenerStatus]) {
    out.push_str(
        "<h2>Listeners</h2><div class=\"scroll\"><table><tr><th>listener<th class=\"l\">protocol<th class=\"l\">bind<th class=\"l\">pool\
         <th>open<th>of<th>accepted<th>2xx<th>3xx<th>4xx<th>5xx<th>in<th>out<th>p50<th>p99<th class=\"l\">refused</tr>",
    );
    for it in listeners {
        let _ = write!(
            out,
            "<tr><td>{}<td class=\"l\">{}<td class=\"l\">{}<td class=\"l\">{}<td>{}<td>{}<td>{}{}<td>{}<td>{}{}<td class=\"why\">{}</tr>",
            escape(&it.name),
            it.protocol,
            escape(&it.bind.join(", ")),
            escape(it.pool.as_deref().unwrap_or("routes only")),
            it.connections,
            it.max_connections,
            count(it.connections_total),
            classes(&it.requests),
            bytes(it.bytes_received),
            bytes(it.bytes_sent),
            quantiles(it.request_seconds),
            escape(&words(&it.rejected)),
        );
    }
    out.push_str("</table></div>");
}

fn certificates(out: &mut String, listeners: &[ListenerStatus]) {
    if listeners.iter().all(|listener| listener.certificates.is_empty()) {
        return;
    }
    out.push_str(
        "<h2>Certificates</h2><div class=\"scroll\"><table><tr><th>listener<th class=\"l\">state<th class=\"l\">names\
         <th class=\"l\">good until<th>left<th class=\"l\">order<th class=\"l\">file</tr>",
    );
    for listener in listeners {
        for it in &listener.certificates {
            let (class, word) = match it.expires_in_seconds {
                None => ("down", "missing"),
                Some(left) if left <= 0.0 => ("down", "expired"),
                Some(left) if left < weir_tls::ENDS_SOON.as_secs_f64() && it.acme.is_none() => {
                    ("ejected", "expires soon")
                }
                Some(_) => ("ready", "good"),
            };
            let left = it.expires_in_seconds.map_or_else(|| "-".to_owned(), |left| span(left.max(0.0)));
            let _ = write!(
                out,
                "<tr><td>{}<td class=\"l\"><span class=\"s {class}\">{word}</span><td class=\"l\">{}<td class=\"l\">{}<td>{left}<td class=\"why\">{}\
                 <td class=\"l\" title=\"{}\">{}</tr>",
                escape(&listener.name),
                escape(&some(&it.names)),
                it.not_after.map_or_else(|| "-".to_owned(), day),
                it.acme.as_ref().map_or_else(String::new, order),
                escape(&it.file),
                escape(it.file.rsplit('/').next().unwrap_or_default()),
            );
        }
    }
    out.push_str("</table></div>");
}

/// Certificates ordered on demand, and the names whose order failed.
fn on_demand(out: &mut String, listeners: &[ListenerStatus]) {
    if listeners.iter().all(|listener| listener.on_demand.is_empty()) {
        return;
    }
    out.push_str(
        "<h2>Certificates on demand</h2><div class=\"scroll\"><table><tr><th>listener<th class=\"l\">authority<th>in memory\
         <th>under way<th>handshakes wait<th class=\"l\">could not be got</tr>",
    );
    for listener in listeners {
        for it in &listener.on_demand {
            let failures = it.failures.iter().map(|failed| format!("{}: {}", failed.name, failed.error));
            let _ = write!(
                out,
                "<tr><td>{}<td class=\"l\">{}<td>{}<td>{}<td>{}<td class=\"why\">{}</tr>",
                escape(&listener.name),
                escape(&it.directory),
                it.certificates,
                it.names,
                it.waiting,
                escape(&failures.take(3).collect::<Vec<_>>().join("; ")),
            );
        }
    }
    out.push_str("</table></div>");
}

/// The first few names, and the number of the others.
fn some(names: &[String]) -> String {
    match names.get(..3).filter(|_| names.len() > 3) {
        Some(first) => format!("{} and {} more", first.join(", "), names.len() - 3),
        None => names.join(", "),
    }
}

/// Formats a time to the minute: nobody renews by the second.
fn day(time: Timestamp) -> String {
    time.rfc3339()[..16].replace('T', " ")
}

fn order(order: &OrderStatus) -> String {
    let next = match (order.state.as_str(), order.next) {
        ("issued", Some(next)) => format!(", to be renewed {}", day(next)),
        ("failing", Some(next)) => format!(", again at {}", next.rfc3339()),
        _ => String::new(),
    };
    let error = if order.error.is_empty() { String::new() } else { format!(": {}", order.error) };
    escape(&format!("{}{next}{error}", order.state))
}

fn pool(out: &mut String, pool: &PoolStatus) {
    let _ = write!(
        out,
        "<h2>Pool {} <small>{}, {} of {} ready, serving from {}, {} waiting, {} retries</small></h2><div class=\"scroll\"><table><tr><th>backend\
         <th class=\"l\">state<th>weight<th>in flight<th>conns<th>2xx<th>3xx<th>4xx<th>5xx<th>refused<th>p50<th>p99\
         <th class=\"l\">probes<th class=\"l\">why</tr>",
        escape(&pool.name),
        escape(&pool.balance),
        pool.ready_count,
        pool.backends.len(),
        pool.serving_from,
        pool.queue_depth,
        pool.retries,
    );
    pool.backends.iter().for_each(|it| backend(out, it));
    out.push_str("</table></div>");
}

fn backend(out: &mut String, it: &BackendStatus) {
    let limit = it.max_connections.map(|most| format!(" of {most}")).unwrap_or_default();
    let ramp = if it.ramp_percent < 100 { format!(" at {} %", it.ramp_percent) } else { String::new() };
    let resolved = it.resolved.as_deref().filter(|resolved| *resolved != it.address);
    let name = resolved.map_or_else(
        || escape(&it.address),
        |to| format!("{} <small>{}</small>", escape(&it.address), escape(to)),
    );
    let backup = if it.backup { " <small>backup</small>" } else { "" };
    let backup = match it.origin.as_str() {
        "group" => " <small>found</small>",
        "name" => " <small>by name</small>",
        "api" => " <small>added</small>",
        _ => backup,
    };
    let role = it.role.as_deref().map(|role| format!(" <small>{}</small>", escape(role))).unwrap_or_default();
    let left = it.ejected_for_seconds.map(|left| format!(", back in {left:.0} s")).unwrap_or_default();
    let _ = write!(
        out,
        "<tr><td>{name}{role}{backup}<td class=\"l\"><span class=\"s {state}\">{state}</span><td>{}{ramp}<td>{}{limit}<td>{}{}<td>{}{}\
         <td class=\"l spark\">{}<td class=\"why\">{}{left}</tr>",
        it.weight,
        it.in_flight,
        it.connections,
        classes(&it.requests),
        count(it.connect_failures),
        quantiles(it.response_seconds),
        spark(it),
        escape(&it.reason),
        state = escape(&it.state),
    );
}

/// The last probes, oldest first, one bar each; the words are in the bar's title.
fn spark(it: &BackendStatus) -> String {
    if it.probes.check == "off" {
        return "off".to_owned();
    }
    let mut bars = String::new();
    for probed in it.probes.history.iter().rev() {
        let class = if probed.good { "" } else { " class=\"b\"" };
        let _ = write!(
            bars,
            "<i{class} title=\"{}, {:.1} ms\"></i>",
            escape(&probed.detail),
            probed.seconds * 1e3
        );
    }
    bars
}

fn happened(out: &mut String, events: &[Event]) {
    out.push_str("<h2>Lately</h2><table>");
    for event in events {
        let text = match &event.what {
            What::Reload { result, generation, .. } => format!("reload {result}, generation {generation}"),
            What::Health { pool, backend, state, reason } => format!("{pool}/{backend} is {state}: {reason}"),
            What::Ejected { pool, backend, seconds, reason } => {
                format!(
                    "{pool}/{backend} ejected for {seconds:.0} s: traffic to it failed, the last: {reason}"
                )
            }
            What::Readmitted { pool, backend } => format!("{pool}/{backend} is no longer ejected"),
            What::Pool { pool, serving_from } => format!("{pool} serves from {serving_from}"),
            What::Backend { pool, backend, change } => format!("operator: {pool}/{backend} {change}"),
            What::Role { pool, backend, role } => format!("{pool}/{backend} has role {role}"),
            What::Roster { pool, backend, change } => format!("{pool}/{backend} {change}"),
            What::Failover { pool, receipt } => format!(
                "{pool}: from {} to {}, {:.3} s without a primary, {} parked, {} moved, {} failed",
                receipt.from,
                receipt.to,
                receipt.absent_seconds,
                receipt.parked,
                receipt.moved,
                receipt.failed
            ),
            What::Resolved { backend, address } => format!("{backend} is {address}"),
            What::Certificate { names, change, detail } => {
                format!("certificate for {names} {change}: {detail}")
            }
            What::Kernel { change, interface } => format!("the kernel plane is {change}: {interface}"),
            What::Interface { change, interface } => format!("interface {interface} is {change}"),
            What::DescriptorsShort { shed } => {
                format!("file descriptors ran out, {shed} idle connections shed")
            }
            What::Maintenance { of, state } => format!("maintenance of {of}: {state}"),
            What::Map { map, result, .. } => format!("file of map {map} {result}"),
            What::TokenKeys { source, result, detail } => format!("keys of {source} {result}: {detail}"),
            What::Process { phase, detail } => format!("{phase}: {detail}"),
        };
        let _ = write!(out, "<tr><td>{}<td class=\"why\">{}</tr>", event.time.rfc3339(), escape(&text));
    }
    out.push_str("</table>");
}

fn classes(requests: &BTreeMap<String, u64>) -> String {
    ["2xx", "3xx", "4xx", "5xx"].iter().fold(String::new(), |mut cells, class| {
        let _ = write!(cells, "<td>{}", count(requests.get(*class).copied().unwrap_or(0)));
        cells
    })
}

fn quantiles(quantiles: Option<Quantiles>) -> String {
    let cell = |seconds: f64| {
        if seconds < 1.0 { format!("<td>{:.1} ms", seconds * 1e3) } else { format!("<td>{seconds:.1} s") }
    };
    quantiles.map_or_else(|| "<td>-<td>-".to_owned(), |it| cell(it.p50) + &cell(it.p99))
}

fn words(counts: &BTreeMap<String, u64>) -> String {
    counts.iter().map(|(word, many)| format!("{word} {}", count(*many))).collect::<Vec<_>>().join(", ")
}

/// Formats a count as `12 345 678` with thin spaces; 0 becomes an unobtrusive dot.
fn count(count: u64) -> String {
    if count == 0 {
        return "·".to_owned();
    }
    let digits = count.to_string();
    let mut spaced = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            spaced.push('\u{2009}');
        }
        spaced.push(digit);
    }
    spaced
}

fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Names come from the config and reasons from backends: neither may become markup.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::health::{Findings, Probed};
    use weir_control::reload::{Outcome, ReloadVerdict};
    use weir_control::timestamp::Timestamp;

    fn status(reason: &str, last_reload: Option<Outcome>) -> Status {
        let probed = Probed { time: Timestamp::now(), good: false, seconds: 0.1, detail: reason.to_owned() };
        let probes = Findings {
            check: "http".into(),
            history: vec![probed],
            good_count: 0,
            bad_count: 1,
            unsent_count: 0,
        };
        let backend = serde_json::json!({
            "address": "10.0.0.1:80", "resolved": "10.0.0.1:80", "state": "down", "reason": reason, "admin": "ready",
            "health": "down", "backup": false, "weight": 1, "ramp_percent": 100, "in_flight": 0, "max_connections": null,
            "connections": 0, "requests": {"2xx": 1234567}, "connect_failures": 0, "failures": 0, "ejections": 0,
            "ejected_for_seconds": null, "response_seconds": null, "probes": probes,
        });
        let pool = serde_json::json!({
            "name": "app", "balance": "round-robin", "ready_count": 0, "serving_from": "none", "queue_depth": 0, "retries": 0, "backends": [backend],
        });
        serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "pid": 1, "phase": "serving", "started": Timestamp::now(), "uptime_seconds": 3725.0, "workers": 2,
            "config_source": "weir.toml", "generation": 3, "sessions": 0, "last_reload": last_reload, "listeners": [], "pools": [pool],
        }))
        .unwrap()
    }

    #[test]
    fn what_a_backend_says_never_becomes_markup() {
        let page = render(&status("answered \"<script>alert('x')</script>\"", None), &[]);
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("answered &quot;&lt;script&gt;"));
        assert!(
            page.contains("1 backend not ready")
                && page.contains("1\u{2009}234\u{2009}567")
                && page.contains("1 h 2 min")
        );
    }

    #[test]
    fn a_refused_reload_is_shown_with_all_its_mistakes_until_the_next_one() {
        let outcome = |result, error: &str| Outcome {
            result,
            generation: 3,
            time: Timestamp::now(),
            seconds: 0.0,
            trigger: "signal".into(),
            error: error.into(),
            warnings: String::new(),
            changes: Vec::new(),
            needs_restart: Vec::new(),
        };
        let page = render(
            &status("x", Some(outcome(ReloadVerdict::Refused, "weir.toml:3:1: no key is named `bnd`"))),
            &[],
        );
        assert!(
            page.contains("The last reload was refused")
                && page.contains("weir.toml:3:1: no key is named `bnd`")
        );
        let page = render(&status("x", Some(outcome(ReloadVerdict::Applied, ""))), &[]);
        assert!(!page.contains("The last reload was"));
    }
}
