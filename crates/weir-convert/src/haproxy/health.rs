//! Checks as `[pool.NAME.health]`.

use super::checks;
use super::ledger::Ledger;
use super::output::{Keys, inline, said};
use super::proxies::Proxy;
use super::sections::Line;
use super::servers::Server;
use super::times::{Time, duration};

const HOUR: u64 = 3_600_000;
/// What HAProxy has where nothing is said, in milliseconds.
const INTER: Time = Time(2000);

/// The health of a pool; `None` where nothing is probed or watched.
pub fn of(proxy: &Proxy<'_>, servers: &[Server], ledger: &mut Ledger) -> Option<Keys> {
    let checked: Vec<&Server> = servers.iter().filter(|server| server.has("check")).collect();
    let watched = servers.iter().find(|server| server.has("observe"));
    let agent = servers.iter().find(|server| server.has("agent-check"));
    let mut health = Keys::default();
    if checked.is_empty() {
        unused(proxy, ledger);
        if watched.is_none() && agent.is_none() {
            return None;
        }
        health.set("check", said("off"));
    } else {
        checks::say(proxy, &mut health, ledger);
        rhythm(proxy, servers, &checked, &mut health, ledger);
        for server in servers.iter().filter(|server| !server.has("check")) {
            ledger.approximate(server.line, "it is probed as the others of its pool are");
        }
        health.set("last_resort", said("off"));
    }
    if let Some(server) =
        servers.iter().find(|server| server.get("on-marked-down") == Some("shutdown-sessions"))
    {
        health.set("on_down", said("end-sessions"));
        ledger.exact(server.line, "`on-marked-down`: `health.on_down`");
    }
    for server in servers.iter().filter(|server| server.has("on-marked-up")) {
        ledger.unsupported(server.line, "`on-marked-up`: sessions on backups go on");
    }
    if let Some(server) = agent {
        match servers.iter().any(Server::is_unix) {
            true => ledger.unsupported(server.line, "`agent-check`: a backend of the pool has no ports"),
            false => health.set("agent", agent_of(server, ledger)),
        }
    }
    if health.has("port") && servers.iter().any(Server::is_unix) {
        health.remove("port");
        ledger.unsupported(servers[0].line, "`port`: a backend of the pool has no ports");
    }
    health.set("passive", watched.map_or_else(|| said("off"), |server| passive(server, ledger)));
    Some(health)
}

/// What is said about checks that no server asks for.
fn unused(proxy: &Proxy<'_>, ledger: &mut Ledger) {
    let of_check = |line: &&&Line| {
        matches!(line.word(0), "http-check" | "tcp-check")
            || (line.word(0) == "option" && checks::OPTIONS.contains(&line.word(1)))
            || (line.word(0) == "timeout" && line.word(1) == "check")
    };
    for line in proxy.lines.iter().filter(of_check) {
        if !ledger.has(line.number) {
            ledger.exact(line.number, "no server of the pool has `check`");
        }
    }
}

/// How often probes are made, and how many count.
fn rhythm(
    proxy: &Proxy<'_>,
    servers: &[Server],
    checked: &[&Server],
    health: &mut Keys,
    ledger: &mut Ledger,
) {
    let first = checked[0];
    for server in &checked[1..] {
        for keyword in ["inter", "fastinter", "downinter", "rise", "fall", "port", "addr", "check-ssl"] {
            if server.get(keyword) != first.get(keyword) {
                ledger.approximate(
                    server.line,
                    format!("`{keyword}`: a pool has one, that of the first server"),
                );
            }
        }
    }
    match first.get("port").map(str::parse::<u16>) {
        None => {}
        Some(Ok(port)) if port > 0 => health.set("port", port.to_string()),
        Some(_) => ledger.unsupported(first.line, "`port` is no port: probes go to the backend's own"),
    }
    if first.has("addr") {
        ledger.unsupported(first.line, "`addr`: probes go to each backend's own address");
    }
    if first.has("check-ssl") && !first.has("ssl") {
        ledger.unsupported(first.line, "`check-ssl`: probes speak TLS where traffic does");
    }
    let time = |server: &Server, keyword: &str| {
        server.get(keyword).and_then(|text| duration(text, 1)).filter(|time| time.0 > 0)
    };
    let interval = time(first, "inter").unwrap_or(INTER).within(10, HOUR).0;
    health.set("interval", said(&interval.to_string()));
    let fast = time(first, "fastinter").unwrap_or(interval).within(10, interval.0).0;
    health.set("fast_interval", said(&fast.to_string()));
    let timeout = match proxy.time("check", ledger) {
        Some((line, time)) => {
            let kept = if time.0 == 0 { interval } else { time.within(1, interval.0).0 };
            match kept == time {
                true => ledger.exact(line, "`health.timeout`"),
                false => ledger.approximate(
                    line,
                    format!("`health.timeout`: {kept}, since a probe ends before the next begins (`inter`)"),
                ),
            }
            kept
        }
        None => interval,
    };
    if let Some(down) = time(first, "downinter") {
        health.set("down_interval", said(&down.within(timeout.0, HOUR).0.to_string()));
    }
    health.set("timeout", said(&timeout.to_string()));
    for (keyword, default) in [("rise", 2_u32), ("fall", 3)] {
        let count = first.get(keyword).and_then(|text| text.parse().ok()).unwrap_or(default);
        if count != default {
            health.set(keyword, count.clamp(1, 100).to_string());
        }
    }
    if servers.iter().any(|server| server.has("backup")) && proxy.option("allbackups").is_none() {
        let backups: Vec<&Server> = servers.iter().filter(|server| server.has("backup")).collect();
        if let [_, second, ..] = backups.as_slice() {
            ledger.approximate(
                second.line,
                "all backups serve while no other backend is up, as by `option allbackups`",
            );
        }
    }
}

fn agent_of(server: &Server, ledger: &mut Ledger) -> String {
    let mut agent = Keys::default();
    let port = server.get("agent-port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
    if port.is_none() {
        ledger.unsupported(server.line, "`agent-check` without `agent-port`");
    }
    agent.set("port", port.unwrap_or(1).to_string());
    if let Some(time) = server.get("agent-inter").and_then(|text| duration(text, 1)) {
        agent.set("interval", said(&time.within(100, HOUR).0.to_string()));
    }
    if let Some(text) = server.get("agent-send") {
        agent.set("send", said(&checks::escaped(text)));
    }
    if server.has("agent-addr") {
        ledger.unsupported(server.line, "`agent-addr`: an agent is at its backend's address");
    }
    agent.inline()
}

fn passive(server: &Server, ledger: &mut Ledger) -> String {
    let errors = server.get("error-limit").and_then(|text| text.parse::<u32>().ok()).unwrap_or(10);
    let note = match server.get("on-error") {
        Some("mark-down") => "",
        _ => "; a probe comes at once, too",
    };
    ledger.approximate(
        server.line,
        format!("`observe`: `health.passive`; so many errors within 10s eject a backend for 10s{note}"),
    );
    let mut passive = vec![("errors".to_owned(), errors.clamp(1, 1_000_000).to_string())];
    if server.get("observe") == Some("layer7") {
        passive.push(("statuses".to_owned(), format!("[{}]", [said("500"), said("502-599")].join(", "))));
    }
    inline(&passive)
}
