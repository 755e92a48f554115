//! Backends as pools.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::acls::When;
use super::balancing;
use super::headers::{Edits, Side};
use super::health;
use super::ledger::Ledger;
use super::maps::Maps;
use super::output::{Keys, key_of, name_of, said};
use super::proxies::Proxy;
use super::rules::{RuleStep, StepAct};
use super::servers::{Server, servers};
use super::times::Time;

/// A pool.
#[derive(Debug)]
pub struct Pool {
    /// Its name in Weir.
    pub name: String,
    backends: Vec<String>,
    /// Its keys.
    pub keys: Keys,
    /// `[pool.NAME.health]`
    health: Keys,
    /// `[pool.NAME.tls]`
    tls: Keys,
    /// Its servers that have a backend: the name, and the backend with its full weight; `None` if it is
    /// disabled.
    servers: Vec<(String, Option<String>)>,
    /// Pools of single servers of it.
    singles: Vec<Pool>,
    /// The same pool without its cookie, where a rule leads to that.
    unstuck: Option<Box<Pool>>,
}

impl Pool {
    /// The pool of one of its servers alone, and what differs of a rule that leads there. `None` if the
    /// server is disabled. `Err` says why there is none. `names` are those of all other pools.
    pub fn alone(
        &mut self,
        server: &str,
        is_tcp: bool,
        names: &[String],
    ) -> Result<Option<(String, String)>, String> {
        let known = self.servers.iter().find(|(name, _)| name == server);
        let Some((_, backend)) = known else {
            return Err(format!("no server `{server}` is converted"));
        };
        let Some(backend) = backend.clone() else { return Ok(None) };
        let wanted = name_of(&format!("{}-{server}", self.name));
        let numbered = (2..).map(|number| name_of(&format!("{number}-{wanted}")));
        let is_other = |name: &String| {
            let same = |single: &Pool| single.name == *name && single.backends.first() != Some(&backend);
            names.contains(name) || self.singles.iter().chain(self.unstuck.as_deref()).any(same)
        };
        let name = std::iter::once(wanted.clone()).chain(numbered).find(|name| !is_other(name));
        let name = name.unwrap_or(wanted);
        let elsewhere = match is_tcp {
            true => "connections are closed while it is down, where HAProxy goes on to the next rules",
            false => "while it is down `fallback_pool`, and no more rules",
        };
        let note = format!(
            "a route to `[pool.{name}]`, which is that server alone and checks it by itself: {elsewhere}; no cookie is set there"
        );
        if !self.singles.iter().any(|single| single.name == name) {
            let mut keys = self.keys.clone();
            ["balance", "hash", "sticky", "slow_start"].iter().for_each(|key| keys.remove(key));
            if !is_tcp {
                keys.set("fallback_pool", said(&self.name));
            }
            self.singles.push(self.beside(&name, vec![backend], keys));
        }
        Ok(Some((name, note)))
    }

    /// A pool with these servers that asks and encrypts as this one does.
    fn beside(&self, name: &str, backends: Vec<String>, keys: Keys) -> Pool {
        let (health, tls) = (self.health.clone(), self.tls.clone());
        let (servers, singles) = (Vec::new(), Vec::new());
        Pool { name: name.to_owned(), backends, keys, health, tls, servers, singles, unstuck: None }
    }

    /// The pool of the same servers without the cookie, and what differs; `None` if it has none. `names` are
    /// those of all other pools.
    pub fn unstuck(&mut self, names: &[String]) -> Option<(String, String)> {
        let is_hidden = self.keys.get("sticky")?.contains("hidden = true");
        let wanted = name_of(&format!("{}-any", self.name));
        let numbered = (2..).map(|number| name_of(&format!("{number}-{wanted}")));
        let is_other =
            |name: &String| names.contains(name) || self.singles.iter().any(|single| single.name == *name);
        let name = std::iter::once(wanted.clone()).chain(numbered).find(|name| !is_other(name));
        let name = self.unstuck.as_ref().map(|known| known.name.clone()).or(name).unwrap_or(wanted);
        let note = super::persist::told(&name, is_hidden);
        if self.unstuck.is_none() {
            let mut keys = self.keys.clone();
            keys.remove("sticky");
            self.unstuck = Some(Box::new(self.beside(&name, self.backends.clone(), keys)));
        }
        Some((name, note))
    }

    /// Says which pool stands in for it.
    pub fn leads_on(&mut self, other: &str) {
        self.keys.set("fallback_pool", said(other));
        if let Some(unstuck) = &mut self.unstuck {
            unstuck.keys.set("fallback_pool", said(other));
        }
    }

    /// The path that probes ask its backends for, and the host where they ask for one, if clients can ask for
    /// the same.
    pub fn asked(&self) -> Option<(String, Option<String>)> {
        let health = |key: &str| self.health.get(key);
        let is_plain = health("check") == Some("\"http\"")
            && health("method").is_none()
            && health("headers").is_none()
            && health("port").is_none();
        let path = health("path").unwrap_or("\"/\"");
        let is_path = !path.contains(['?', '$', '%', '\\']);
        (is_plain && is_path).then(|| (path.to_owned(), health("host").map(str::to_owned)))
    }

    /// Writes its tables, and those of its pools of single servers and without its cookie.
    pub fn write(&self, body: &mut String) {
        self.write_own(body);
        self.singles.iter().chain(self.unstuck.as_deref()).for_each(|pool| pool.write_own(body));
    }

    fn write_own(&self, body: &mut String) {
        let name = key_of(&self.name);
        let _ = writeln!(body, "\n[pool.{name}]");
        match self.backends.as_slice() {
            [one] => {
                let _ = writeln!(body, "backends = [{one}]");
            }
            several => {
                let _ = writeln!(body, "backends = [");
                for backend in several {
                    let _ = writeln!(body, "  {backend},");
                }
                let _ = writeln!(body, "]");
            }
        }
        self.keys.write(body);
        for (table, keys) in [("tls", &self.tls), ("health", &self.health)] {
            if !keys.is_empty() {
                let _ = writeln!(body, "\n[pool.{name}.{table}]");
                keys.write(body);
            }
        }
    }
}

/// The pool of a proxy, if it has a server that Weir can reach. `port` is the one that its clients ask for.
/// `trusts` is whether certificates are not looked at unless a server says it.
pub fn pool(
    proxy: &Proxy<'_>,
    (port, trusts): (Option<u16>, bool),
    maps: &mut Maps,
    ledger: &mut Ledger,
) -> Option<Pool> {
    let mut servers = servers(proxy, ledger);
    let mut backends: Vec<(String, String)> = Vec::new();
    let mut manner = None;
    servers.retain(|server| {
        let own = server.manner();
        let why = if manner.as_ref().is_none_or(|manner| *manner == own) {
            match server.backend(port, ledger) {
                Ok((address, _)) if backends.iter().any(|(known, _)| *known == address) => {
                    ledger.approximate(server.line, "the pool has this address already: it counts once");
                    return true;
                }
                Ok(backend) => {
                    backends.push(backend);
                    manner = Some(own);
                    return true;
                }
                Err(why) => why,
            }
        } else {
            "a pool speaks with all of its backends in one way (TLS, PROXY protocol, source), and this one differs from the first".to_owned()
        };
        ledger.unsupported(server.line, format!("left out: {why}"));
        false
    });
    let first = servers.first()?;
    for server in &servers {
        ledger.exact(server.line, format!("a backend of `[pool.{}]`", name_of(proxy.name())));
    }
    let mut pool = Pool {
        name: name_of(proxy.name()),
        backends: backends.into_iter().map(|(_, backend)| backend).collect(),
        keys: Keys::default(),
        health: Keys::default(),
        tls: Keys::default(),
        servers: servers.iter().filter_map(|server| server.alone(port)).collect(),
        singles: Vec::new(),
        unstuck: None,
    };
    balancing::say(proxy, &servers, maps, &mut pool.keys, ledger);
    let has_unix = servers.iter().any(Server::is_unix);
    let trusts = first.get("verify").map_or(trusts, |verify| verify == "none");
    towards(first, (has_unix, trusts), proxy.is_tcp, &mut pool, ledger);
    if let Some(line) = proxy.last(&["source"]) {
        ledger.exact(line.number, "`source` of pools");
        if first.get("source").is_none() {
            source_of(&line.from(1).join(" "), line.number, &mut pool.keys, ledger);
        }
    }
    timers(proxy, &mut pool.keys, ledger);
    retries(proxy, &mut pool.keys, ledger);
    connections(proxy, &servers, &mut pool.keys, ledger);
    match health::of(proxy, &servers, ledger) {
        Some(health) => pool.health = health,
        None => pool.keys.set("health", said("off")),
    }
    Some(pool)
}

/// How backends are spoken to.
fn towards(
    first: &Server,
    (has_unix, trusts): (bool, bool),
    is_tcp: bool,
    pool: &mut Pool,
    ledger: &mut Ledger,
) {
    let Pool { keys, tls, .. } = pool;
    let is_tls = first.has("ssl");
    let protocol = match (first.get("proto"), first.get("alpn").filter(|_| is_tls)) {
        (Some("h2"), _) | (_, Some("h2")) => Some("h2"),
        (_, Some(alpn)) if alpn.split(',').any(|name| name == "h2") => Some("auto"),
        _ => None,
    };
    if let Some(protocol) = protocol.filter(|_| !is_tcp) {
        keys.set("protocol", said(protocol));
    }
    if is_tls {
        if let Some(ca) = first.get("ca-file").filter(|ca| !ca.starts_with('@')) {
            tls.set("ca", said(ca));
        }
        if let Some(crl) = first.get("crl-file") {
            tls.set("crl", said(crl));
        }
        if let Some(cert) = first.get("crt") {
            tls.set("cert", said(cert));
            tls.set("key", said(cert));
        }
        let named =
            first.get("sni").and_then(|sni| sni.strip_prefix("str(")).and_then(|rest| rest.strip_suffix(')'));
        match (first.get("verifyhost").or(named), first.get("sni")) {
            (Some(name), _) => tls.set("server_name", said(name)),
            (None, Some(_)) => {
                ledger.approximate(first.line, "`sni`: backends are asked for by their own host, not by what a client asks for; `tls.server_name` says another name");
            }
            (None, None) => {}
        }
        if !tls.has("server_name") && has_unix {
            tls.set("server_name", said("localhost"));
            ledger.approximate(first.line, "`tls.server_name`: a Unix socket has no host to be asked for");
        }
        if trusts {
            tls.set("verify", "false");
            tls.remove("ca");
            tls.remove("crl");
        } else if tls.has("server_name") {
            // The certificate is held against this name, as HAProxy does.
        } else if tls.has("ca") && !tls.has("crl") {
            tls.set("verify", said("ca"));
        } else {
            ledger.approximate(
                first.line,
                "`verify`: a certificate must be for the host of its backend, too (`tls.server_name`)",
            );
        }
        if tls.is_empty() {
            keys.set("tls", "true");
        }
    }
    if let Some(form) = first.send_proxy() {
        keys.set("send_proxy", said(form));
        if first.has("proxy-v2-options")
            || first.has("send-proxy-v2-ssl")
            || first.has("send-proxy-v2-ssl-cn")
        {
            ledger.approximate(first.line, "the PROXY header has the addresses alone");
        }
    }
    if let Some(source) = first.get("source") {
        source_of(source, first.line, keys, ledger);
    }
    if let Some(start) = first.get("slowstart").and_then(|text| super::times::duration(text, 1)) {
        keys.set("slow_start", said(&start.within(100, 3_600_000).0.to_string()));
    }
}

fn source_of(text: &str, line: usize, keys: &mut Keys, ledger: &mut Ledger) {
    let mut words = text.split(' ');
    let address = words.next().unwrap_or_default().split(':').next().unwrap_or_default();
    let mut source = (!matches!(address, "" | "0.0.0.0" | "*")).then(|| address.to_owned());
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        match (key, value) {
            ("interface", name) => keys.set("interface", said(name)),
            ("usesrc", "clientip" | "client") => source = Some("client".to_owned()),
            _ => ledger.unsupported(line, format!("`{key} {value}`: not in Weir")),
        }
    }
    if let Some(source) = source {
        keys.set("source", said(&source));
    }
}

/// Bounds of a timer in milliseconds.
const HOUR: u64 = 3_600_000;
const DAY: u64 = 86_400_000;

/// Says a timer, within its bounds in milliseconds.
pub fn timer(
    keys: &mut Keys,
    key: &str,
    (line, time): (usize, Time),
    bounds: RangeInclusive<u64>,
    ledger: &mut Ledger,
) {
    if time == Time(0) {
        keys.set(key, said("off"));
        ledger.exact(line, format!("`timeout.{key} = \"off\"`"));
        return;
    }
    let (kept, is_other) = time.within(*bounds.start(), *bounds.end());
    keys.set(key, said(&kept.to_string()));
    match is_other {
        true => ledger.approximate(line, format!("`timeout.{key}`, {kept} at most or least")),
        false => ledger.exact(line, format!("`timeout.{key}`")),
    }
}

fn timers(proxy: &Proxy<'_>, keys: &mut Keys, ledger: &mut Ledger) {
    let mut timeout = Keys::default();
    if let Some(connect) = proxy.time("connect", ledger) {
        timer(&mut timeout, "connect", connect, 1..=5 * 60_000, ledger);
    }
    let server = proxy.time("server", ledger);
    let tunnel = proxy.time("tunnel", ledger);
    if let (Some(server), false) = (server, proxy.is_tcp) {
        timer(&mut timeout, "backend", server, 10..=DAY, ledger);
        timer(&mut timeout, "stream", server, 10..=DAY, ledger);
    }
    match (tunnel, server) {
        (Some(tunnel), _) => timer(&mut timeout, "tunnel", tunnel, 10..=30 * DAY, ledger),
        (None, Some(server)) => {
            let client = proxy.time("client", &mut Ledger::default()).map_or(server.1, |(_, time)| time);
            let shorter = if client.0 == 0 { server.1 } else { client.min(server.1) };
            timer(&mut timeout, "tunnel", (server.0, shorter), 10..=30 * DAY, ledger);
        }
        (None, None) => {}
    }
    if server.is_none() {
        ledger.unsaid("timeout server", "where it is not said HAProxy waits without end, Weir 30s for an answer to begin (`timeout.backend`)");
    }
    if !timeout.is_empty() {
        keys.set("timeout", timeout.inline());
    }
    for name in ["server-fin", "client-fin", "tarpit"] {
        if let Some(line) = proxy.last(&["timeout", name]) {
            ledger.approximate(line.number, "none of its own: the other timers hold");
        }
    }
}

fn retries(proxy: &Proxy<'_>, keys: &mut Keys, ledger: &mut Ledger) {
    let mut retry = Keys::default();
    let line = proxy.last(&["retries"]);
    let attempts = line.and_then(|line| line.word(1).parse::<u64>().ok()).unwrap_or(3);
    retry.set("attempts", attempts.min(10).to_string());
    let elsewhere = "a retry goes to another backend where there is one, at once, and a fifth of all requests at most (`retry.budget`)";
    match line {
        Some(line) if attempts > 10 => {
            ledger.approximate(line.number, format!("`retry.attempts`, 10 at most; {elsewhere}"))
        }
        Some(line) => ledger.approximate(line.number, format!("`retry.attempts`; {elsewhere}")),
        None => ledger.unsaid("retries", format!("3, as HAProxy has it (`retry.attempts`); {elsewhere}")),
    }
    let mut on = vec!["connect".to_owned()];
    if let Some(line) = proxy.last(&["retry-on"]).filter(|_| !proxy.is_tcp) {
        on = Vec::new();
        let mut unknown = Vec::new();
        for word in line.from(1) {
            match word.as_str() {
                "none" => {}
                "conn-failure" => on.push("connect".to_owned()),
                "empty-response" => on.push("empty".to_owned()),
                "junk-response" => on.push("reset".to_owned()),
                "response-timeout" => on.push("timeout".to_owned()),
                "429" | "500" | "502" | "503" | "504" => on.push(word.clone()),
                "all-retryable-errors" => on.extend(
                    ["connect", "empty", "reset", "timeout", "500", "502", "503", "504"].map(str::to_owned),
                ),
                other => unknown.push(other),
            }
        }
        on.sort();
        on.dedup();
        let l7 = on.iter().any(|word| word != "connect");
        let disabled = proxy.lines_of("http-request").any(|line| line.word(1) == "disable-l7-retry");
        if l7 && !disabled {
            retry.set("non_idempotent", "true");
        }
        let unknown =
            if unknown.is_empty() { String::new() } else { format!("; not on {}", unknown.join(", ")) };
        ledger.approximate(line.number, format!("`retry.on`; what is malformed is not retried{unknown}"));
    }
    if on.is_empty() {
        retry.set("attempts", "0");
    } else {
        retry.set("on", format!("[{}]", on.iter().map(|word| said(word)).collect::<Vec<_>>().join(", ")));
    }
    keys.set("retry", retry.inline());
}

fn connections(proxy: &Proxy<'_>, servers: &[Server], keys: &mut Keys, ledger: &mut Ledger) {
    let close =
        ["http-server-close", "httpclose", "forceclose"].into_iter().find_map(|name| proxy.option(name));
    if let Some(line) = close {
        match (proxy.is_tcp, line.word(1)) {
            (true, _) => ledger.exact(line.number, "no effect in `mode tcp`"),
            (false, "http-server-close") => {
                keys.set("keep_alive", "{ max = 0 }");
                ledger.exact(line.number, "`keep_alive = { max = 0 }` of pools");
            }
            (false, _) => {
                keys.set("keep_alive", "{ max = 0 }");
                ledger.approximate(
                    line.number,
                    "`keep_alive = { max = 0 }` of pools; clients keep their connections",
                );
            }
        }
    }
    if let Some(line) = proxy.last(&["http-reuse"]) {
        match line.word(1) {
            "never" => {
                keys.set("keep_alive", "{ max = 0 }");
                ledger.exact(line.number, "`keep_alive = { max = 0 }`");
            }
            _ => ledger.approximate(line.number, "connections are kept for all clients (`keep_alive`)"),
        }
    }
    let queue = proxy.time("queue", ledger);
    let connect = proxy.time("connect", &mut Ledger::default());
    let limited = servers.iter().any(|server| server.has("maxconn"));
    match (queue, connect) {
        (Some((line, _)), _) if !limited => ledger.exact(line, "no effect: no server has `maxconn`"),
        (Some((line, time)), _) if time.0 > 0 => {
            let kept = time.within(1, HOUR).0;
            keys.set("queue", format!("{{ timeout = {} }}", said(&kept.to_string())));
            ledger.approximate(
                line,
                "`queue.timeout`; the queue has 1000 places (`queue.max`), HAProxy's has no end",
            );
        }
        (Some((line, _)), _) => ledger.approximate(line, "a queue has a time: 1s (`queue.timeout`)"),
        (None, Some((_, time))) if limited && time.0 > 0 => {
            keys.set("queue", format!("{{ timeout = {} }}", said(&time.within(1, HOUR).0.to_string())));
            ledger.unsaid("timeout queue", "as `timeout connect`, as HAProxy has it; the queue has 1000 places (`queue.max`), HAProxy's has no end");
        }
        _ => {}
    }
    if let Some(line) = proxy.last(&["fullconn"]) {
        ledger.approximate(line.number, "`max_connections` does not grow with the load");
    }
    if let Some(line) = proxy.last(&["option", "http-buffer-request"]).filter(|_| !proxy.is_tcp) {
        keys.set("buffer", "{ requests = \"64KiB\", responses = \"0B\" }");
        ledger.approximate(
            line.number,
            "`buffer.requests`: up to 64 KiB of a body are waited for, not a buffer of 16 KiB",
        );
    }
}

/// Takes the changes of header fields that hold for all requests to a pool, and that no other rule makes, out
/// of the rules of a backend. `others` are the names that other rules change. What could not be said.
pub fn hoisted(steps: &mut Vec<RuleStep>, others: &[String], pool: &mut Pool) -> Vec<String> {
    let mut lost = Vec::new();
    if steps.iter().any(|step| step.act == StepAct::Allow) {
        // What stands behind a rule that lets some go on past it does not hold for all.
        return lost;
    }
    let (mut request, mut response) = (Edits::default(), Edits::default());
    steps.retain(|step| {
        let StepAct::Edit(side, edit) = &step.act else { return true };
        if step.when != When::always() || others.contains(&edit.name) {
            return true;
        }
        match side {
            Side::Request => request.push(edit.clone()),
            Side::Response => response.push(edit.clone()),
        }
        false
    });
    for (side, edits) in [(Side::Request, request), (Side::Response, response)] {
        lost.extend(edits.say(side, &mut pool.keys));
    }
    lost
}

/// The names of fields that these steps change under conditions, or more than once.
pub fn changed_names(steps: &[RuleStep], conditional_only: bool) -> Vec<String> {
    let edits = steps.iter().filter_map(|step| match &step.act {
        StepAct::Edit(_, edit) if !conditional_only || step.when != When::always() => Some(edit.name.clone()),
        _ => None,
    });
    edits.collect()
}
