//! `weir status`

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use hyper::Method;
use weir_admin::memory::MemoryStatus;
use weir_admin::status::{
    BackendStatus, ClusterStatus, ListenerStatus, MemberStatus, NameStatus, PeerStatus, PeersStatus,
    Quantiles, Status,
};
use weir_admin::token_keys::complaint;

use crate::arguments::Running;
use crate::client::ask_and_print;
use crate::exit::Exit;
use crate::table::table;

/// Prints the state of the running Weir.
pub fn status(running: &Running, json: bool) -> Result<Exit, Exit> {
    ask_and_print(running, Method::GET, "/v1/status", None, json, |body| {
        Ok(words(&serde_json::from_value(body)?, has_colours()))
    })
}

/// Whether output may be coloured: on a terminal, unless the user sets `NO_COLOR` (no-color.org).
pub fn has_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The program's version, process and config.
fn about_process(status: &Status) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "weir {}, {}, process {}, up {}, {} workers, {} sessions",
        status.version,
        status.phase,
        status.pid,
        span(status.uptime_seconds),
        status.workers,
        status.sessions
    );
    let _ = writeln!(out, "config {}, generation {}", status.config_source, status.generation);
    if let Some(memory) = &status.memory {
        let _ = writeln!(out, "{}", memory_words(memory));
    }
    if status.process_before {
        out.push_str("the process before the upgrade still serves what it had begun\n");
    }
    out
}

/// How the memory budget is used.
fn memory_words(it: &MemoryStatus) -> String {
    let mebibytes = |bytes: u64| format!("{:.1}MiB", bytes as f64 / f64::from(1 << 20));
    let mut out = format!("memory {} of {} in use", mebibytes(it.in_use_bytes), mebibytes(it.budget_bytes));
    if let Some(client) = &it.largest_client {
        let (has, most) = (mebibytes(it.largest_client_bytes), mebibytes(it.client_max_bytes));
        let _ = write!(out, ", most by client {client}: {has} of {most}");
    }
    if it.client_refusals > 0 {
        let _ = write!(out, ", {} times refused to a client because of its share", it.client_refusals);
    }
    out
}

fn words(status: &Status, colours: bool) -> String {
    let mut out = about_process(status);
    for map in status.maps.iter().filter(|map| map.error.is_some()) {
        let error = map.error.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
        let _ = writeln!(out, "map {}: {} lines of before stay in force: {error}", map.name, map.line_count);
    }
    if let Some(it) = &status.peers {
        peers(&mut out, it, colours);
    }
    for complaint in status.token_keys.iter().filter_map(complaint) {
        let _ = writeln!(out, "{complaint}");
    }
    for log in &status.waiting_logs {
        let _ = writeln!(out, "access log {}", paint(log, "33", colours));
    }
    for part in &status.maintenance {
        let _ = writeln!(out, "in maintenance: {part}");
    }
    if let Some(last) = &status.last_reload {
        let _ =
            writeln!(out, "last reload {} at {} ({})", last.result.word(), last.time.rfc3339(), last.trigger);
        if !last.result.is_good() {
            let _ = writeln!(out, "{}", paint(&indented(&last.error), "31", colours));
        }
    }
    out.push('\n');
    let heads = [
        "listener", "protocol", "plane", "bind", "pool", "open", "accepted", "2xx", "4xx", "5xx", "p50",
        "p99",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for it in &status.listeners {
        let class = |class: &str| it.requests.get(class).copied().unwrap_or(0).to_string();
        let mut row = vec![it.name.clone(), it.protocol.clone(), plane(it), it.bind.join(",")];
        row.extend([
            it.pool.clone().unwrap_or_else(|| "-".to_owned()),
            it.connections.to_string(),
            it.connections_total.to_string(),
        ]);
        row.extend([class("2xx"), class("4xx"), class("5xx")]);
        row.extend(quantiles(it.request_seconds));
        rows.push(row);
    }
    out.push_str(&table(&rows, |_, text| text));
    for (it, reason) in status.listeners.iter().filter_map(|it| Some((it, it.plane_reason.as_ref()?))) {
        let _ = writeln!(out, "  {} is on the {} plane: {}", it.name, it.plane, paint(reason, "33", colours));
    }
    certificates(&mut out, status, colours);
    on_demand(&mut out, status);
    for pool in &status.pools {
        let (ready, all) = (pool.ready_count, pool.backends.len());
        let _ = writeln!(
            out,
            "\npool {}, {}, {ready} of {all} ready, serving from {}, {} waiting",
            pool.name, pool.balance, pool.serving_from, pool.queue_depth
        );
        if let Some(it) = &pool.cluster {
            cluster(&mut out, it, colours);
        }
        for name in &pool.names {
            let _ = writeln!(out, "  {}", words_of(name, colours));
        }
        if let Some(why) = &pool.cannot_leave {
            let _ = writeln!(out, "  {}", paint(why, "33", colours));
        }
        let heads = ["backend", "state", "weight", "in flight", "2xx", "5xx", "failed", "p50", "p99", "why"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(pool.backends.iter().map(row));
        out.push_str(&table(&rows, |column, text| match (column, text.trim_end()) {
            (1, "ready") => paint(&text, "32", colours),
            (1, "down") => paint(&text, "31", colours),
            (1, "state") => text,
            (1, _) => paint(&text, "33", colours),
            _ => text,
        }));
    }
    out
}

/// The Weirs that count together with this one, one per line.
fn peers(out: &mut String, it: &PeersStatus, colours: bool) {
    let away = |peer: &&PeerStatus| peer.state != "own";
    let others = it.told.iter().filter(away).count();
    let _ = writeln!(
        out,
        "peers: {} limits counted together, {} of {others} listened to at {}",
        it.limits,
        it.heard.len(),
        it.bind
    );
    if let Some(error) = &it.error {
        let _ = writeln!(out, "  {}", paint(&format!("can't listen: {error}"), "31", colours));
    }
    for peer in it.told.iter().filter(away) {
        let error = peer.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        let line = format!("{} {}{error}", peer.address, peer.state);
        let _ = writeln!(out, "  {}", if peer.state == "told" { line } else { paint(&line, "33", colours) });
    }
}

/// The addresses of a backend's name: `app.example:80 stands for 3, 1 of them leaves`.
fn words_of(it: &NameStatus, colours: bool) -> String {
    let leaving = match it.leaving_count {
        0 => String::new(),
        1 => ", 1 of them leaves".to_owned(),
        count => format!(", {count} of them leave"),
    };
    let ttl = it.ttl_seconds.map(|ttl| format!(", its answer lasts {ttl} s")).unwrap_or_default();
    let error = it.error.as_ref().map(|error| paint(&format!(", not resolved: {error}"), "33", colours));
    format!("{} stands for {}{leaving}{ttl}{}", it.name, it.backend_count, error.unwrap_or_default())
}

/// `kernel at eth0,eth1`, `proxy`, or `proxy at eth0`.
fn plane(it: &ListenerStatus) -> String {
    if it.interfaces.is_empty() {
        it.plane.clone()
    } else {
        format!("{} at {}", it.plane, it.interfaces.join(","))
    }
}

/// Certificates that are ordered on demand, and the names for which none could be obtained.
fn on_demand(out: &mut String, status: &Status) {
    for listener in &status.listeners {
        for it in &listener.on_demand {
            let (name, directory) = (&listener.name, &it.directory);
            let _ = writeln!(
                out,
                "\non demand at {name} by {directory}: {} certificates in memory, {} names under way, {} handshakes wait",
                it.certificates, it.names, it.waiting
            );
            for failed in &it.failures {
                let again = span(failed.again_in_seconds);
                let _ = writeln!(out, "   {}: {} (again in {again})", failed.name, failed.error);
            }
        }
    }
}

fn certificates(out: &mut String, status: &Status, colours: bool) {
    let heads = ["certificate", "listener", "names", "good until", "left", "order"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for listener in &status.listeners {
        for it in &listener.certificates {
            let left = match it.expires_in_seconds {
                None => "missing".to_owned(),
                Some(left) if left <= 0.0 => "expired".to_owned(),
                Some(left) => span(left),
            };
            let order = it.acme.as_ref().map_or_else(String::new, |order| match order.error.as_str() {
                "" => order.state.clone(),
                error => format!("{}: {error}", order.state),
            });
            let until = it.not_after.map_or_else(|| "-".to_owned(), |until| until.rfc3339()[..10].to_owned());
            let names = it.names.join(",");
            rows.push(vec![it.file.clone(), listener.name.clone(), names, until, left, order]);
        }
    }
    if rows.len() > 1 {
        out.push('\n');
        out.push_str(&table(&rows, |column, text| match (column, text.trim_end()) {
            (4, "missing" | "expired") => paint(&text, "31", colours),
            _ => text,
        }));
    }
}

/// The primary, the members that do not answer, and the last failover.
fn cluster(out: &mut String, it: &ClusterStatus, colours: bool) {
    let missing = it.no_primary.as_deref().unwrap_or("nobody has been asked yet");
    let primary = match &it.primary {
        Some(primary) => format!("primary {primary}"),
        None => paint(&format!("no primary: {missing}"), "31", colours),
    };
    let (changes, without) = (it.primary_changes, span(it.without_primary_seconds));
    let _ = writeln!(out, "  {}, {primary}, changed {changes} times, {without} without one", it.topology);
    for member in &it.members {
        let seen = member.last_seen.map_or_else(|| "never".to_owned(), |at| at.rfc3339());
        let version = member.version.as_deref().unwrap_or("unknown version");
        let (address, state) = (&member.address, &member.state);
        let _ = match member.error.as_str() {
            "" => writeln!(out, "  {address}: {state}, {version}, seen {seen}{}", lag(member)),
            error => writeln!(out, "  {address}: {}, seen {seen}", paint(error, "33", colours)),
        };
    }
    if !it.hidden_code.is_empty() {
        let _ = writeln!(out, "  stored code with locks or variables: {}", it.hidden_code.join(", "));
    }
    for receipt in &it.failovers {
        let _ = writeln!(
            out,
            "  failover at {} from {} to {}: noticed after {:.3} s, back after {:.3} s, {} waited, {} moved, {} failed{}",
            receipt.writable.rfc3339(),
            receipt.from,
            receipt.to,
            receipt.unnoticed_seconds,
            receipt.absent_seconds,
            receipt.parked,
            receipt.moved,
            receipt.failed,
            if receipt.reason.is_empty() { String::new() } else { format!(" ({})", receipt.reason) }
        );
    }
}

/// How far a member lags behind, if it does.
fn lag(member: &MemberStatus) -> String {
    match (member.lag_transactions, member.lag_seconds) {
        (Some(count @ 1..), Some(seconds)) => format!(", {seconds:.1} s and {count} transactions behind"),
        _ => String::new(),
    }
}

/// A backend's address, with its role if it has one or is a backup.
pub fn name(it: &BackendStatus) -> String {
    let role = it.role.as_deref().or_else(|| it.backup.then_some("backup"));
    let marks: Vec<&str> = role.into_iter().chain(it.found.then_some("found")).collect();
    match marks.is_empty() {
        true => it.address.clone(),
        false => format!("{} ({})", it.address, marks.join(", ")),
    }
}

fn row(it: &BackendStatus) -> Vec<String> {
    let class = |class: &str| it.requests.get(class).copied().unwrap_or(0).to_string();
    let weight = if it.ramp_percent < 100 {
        format!("{} at {} %", it.weight, it.ramp_percent)
    } else {
        it.weight.to_string()
    };
    let mut row =
        vec![name(it), it.state.clone(), weight, it.in_flight.to_string(), class("2xx"), class("5xx")];
    // These include connections that could not be established.
    row.push(it.failures.to_string());
    row.extend(quantiles(it.response_seconds));
    row.push(match &it.agent {
        Some(agent) if it.reason.is_empty() && agent.says != "up, ready" => {
            format!("its agent: {}", agent.says)
        }
        _ => it.reason.clone(),
    });
    row
}

pub fn quantiles(quantiles: Option<Quantiles>) -> [String; 2] {
    let cell = |seconds: f64| {
        if seconds < 1.0 { format!("{:.1}ms", seconds * 1e3) } else { format!("{seconds:.1}s") }
    };
    quantiles.map_or_else(|| ["-".to_owned(), "-".to_owned()], |it| [cell(it.p50), cell(it.p99)])
}

fn paint(text: &str, colour: &str, colours: bool) -> String {
    if colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

pub fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}
