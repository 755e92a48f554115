//! `global`, `resolvers`, `userlist`, `cache` and the sections that no proxy is.

use std::fmt::Write as _;

use super::ledger::Ledger;
use super::networks::{Endpoint, bracketed, place};
use super::output::{Keys, said};
use super::sections::{Line, Section, SectionKind};
use super::times::duration;
use crate::write::line as write_line;

/// What `global` says that others need.
#[derive(Debug, Default)]
pub struct Globals {
    /// `nbthread`
    workers: Option<u64>,
    /// `maxconn`, and its line.
    pub maxconn: Option<u64>,
    /// `hard-stop-after`
    drain: Option<String>,
    crt_base: String,
    ca_base: String,
    /// The oldest version of TLS.
    pub min_version: Option<&'static str>,
    /// Whether certificates of servers are not looked at unless a server says it.
    pub trusts_servers: bool,
    /// Whether no session tickets are given.
    pub no_tickets: bool,
    /// `localpeer`: the name of this machine among `peers`; empty if it is not said.
    pub localpeer: String,
    /// Where files that the converted config names are to be.
    pub folder: String,
}

impl Globals {
    /// What the `global` sections say.
    pub fn of(sections: &[Section], folder: &str, ledger: &mut Ledger) -> Globals {
        let mut globals = Globals { folder: folder.trim_end_matches('/').to_owned(), ..Globals::default() };
        for section in sections.iter().filter(|section| section.kind == SectionKind::Global) {
            ledger.exact(section.number, "settings of the process");
            for line in &section.lines {
                globals.read(line, ledger);
            }
        }
        globals
    }

    /// The path of a certificate.
    pub fn certificate(&self, path: &str) -> String {
        based(&self.crt_base, path)
    }

    /// The path of certificates of authorities.
    pub fn authority(&self, path: &str) -> String {
        based(&self.ca_base, path)
    }

    /// Writes `[runtime]`.
    pub fn write(&self, body: &mut String) {
        if self.workers.is_none() && self.drain.is_none() {
            return;
        }
        let _ = writeln!(body, "\n[runtime]");
        if let Some(workers) = self.workers {
            write_line(body, "workers", workers.clamp(1, 1024));
        }
        if let Some(drain) = &self.drain {
            write_line(body, "drain", said(drain));
        }
    }

    fn read(&mut self, line: &Line, ledger: &mut Ledger) {
        let number = line.number;
        match line.word(0) {
            "nbthread" => match line.word(1).parse() {
                Ok(workers) => {
                    self.workers = Some(workers);
                    ledger.exact(number, "`runtime.workers`");
                }
                Err(_) => ledger.unsupported(number, "it is no number"),
            },
            "maxconn" => {
                self.maxconn = line.word(1).parse().ok().filter(|most| *most > 0);
                ledger.approximate(number, "`max_connections` of each listener that says none itself; beyond it the connection that has been idle longest is closed");
            }
            "hard-stop-after" => match duration(line.word(1), 1) {
                Some(time) => {
                    self.drain = Some(time.within(0, 86_400_000).0.to_string());
                    ledger.exact(number, "`runtime.drain`");
                }
                None => ledger.unsupported(number, "it is no time"),
            },
            "crt-base" => {
                line.word(1).clone_into(&mut self.crt_base);
                ledger.exact(number, "written before the paths of certificates");
            }
            "ca-base" => {
                line.word(1).clone_into(&mut self.ca_base);
                ledger.exact(number, "written before the paths of authorities");
            }
            "ssl-default-bind-options" => self.options(line, ledger),
            "log" => {}
            "localpeer" => {
                line.word(1).clone_into(&mut self.localpeer);
                ledger.exact(number, "which of the `peers` this Weir is");
            }
            "ssl-server-verify" => {
                self.trusts_servers = line.word(1) == "none";
                ledger.exact(number, "`tls.verify` of pools");
            }
            "setenv" | "presetenv" => ledger.exact(number, "its value stands where it is used"),
            word => other(word, line, ledger),
        }
    }

    fn options(&mut self, line: &Line, ledger: &mut Ledger) {
        let mut words = line.from(1).iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "ssl-min-ver" => match words.next().map(String::as_str) {
                    Some("TLSv1.3") => self.min_version = Some("1.3"),
                    Some("TLSv1.2") => self.min_version = Some("1.2"),
                    _ => ledger.approximate(line.number, "TLS 1.2 is the oldest that is spoken"),
                },
                "no-tls-tickets" => self.no_tickets = true,
                "no-sslv3" | "no-tlsv10" | "no-tlsv11" | "prefer-client-ciphers" => {}
                "no-tlsv12" => self.min_version = Some("1.3"),
                other => ledger.approximate(line.number, format!("`{other}` is not looked at")),
            }
        }
        ledger.exact(line.number, "`tls` of listeners");
    }
}

fn based(base: &str, path: &str) -> String {
    match base.is_empty() || path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{}/{path}", base.trim_end_matches('/')),
    }
}

/// Directives of `global` that have no key, with what takes their place, and whether that is something.
const OTHERS: &[(&[&str], bool, &str)] = &[
    (
        &[
            "user",
            "group",
            "uid",
            "gid",
            "chroot",
            "daemon",
            "pidfile",
            "master-worker",
            "mworker-max-reloads",
            "set-dumpable",
            "setcap",
            "unix-bind",
        ],
        true,
        "the service manager's business: the unit for systemd says as whom Weir runs, and what it may",
    ),
    (&["ulimit-n"], true, "the limit of descriptors is the unit's (`LimitNOFILE`)"),
    (&["nbproc"], true, "one process, with a worker for each CPU (`runtime.workers`)"),
    (
        &["cpu-map", "cpu-policy", "thread-groups", "thread-group", "numa-cpu-mapping"],
        true,
        "each worker is pinned to a CPU that the process may use",
    ),
    (
        &["stats"],
        true,
        "`weir status`, `weir drain` and the admin API (`[admin]`) take the place of this socket",
    ),
    (&["server-state-base", "server-state-file"], true, "a reload keeps states by itself"),
    (
        &[
            "ssl-default-bind-ciphers",
            "ssl-default-bind-ciphersuites",
            "ssl-default-bind-curves",
            "ssl-default-server-ciphers",
            "ssl-default-server-ciphersuites",
            "ssl-default-server-options",
            "ssl-default-bind-sigalgs",
        ],
        true,
        "suites are those of a policy (`tls.ciphers`), all of them strong and with forward secrecy",
    ),
    (&["ssl-dh-param-file", "tune.ssl.default-dh-param"], true, "no finite-field Diffie-Hellman is spoken"),
    (
        &[
            "ssl-load-extra-files",
            "ssl-load-extra-del-ext",
            "issuers-chain-path",
            "ssl-engine",
            "ssl-mode-async",
            "ssl-skip-self-issued-ca",
        ],
        true,
        "certificates name their files themselves",
    ),
    (&["spread-checks"], true, "the first probes are spread, later ones keep their pace"),
    (
        &[
            "description",
            "node",
            "log-tag",
            "log-send-hostname",
            "quiet",
            "zero-warning",
            "strict-limits",
            "noepoll",
            "nopoll",
            "nosplice",
            "noreuseport",
            "busy-polling",
            "profiling.tasks",
            "profiling.memory",
            "insecure-fork-wanted",
            "insecure-setuid-wanted",
            "no-memory-trimming",
            "max-spread-checks",
            "grace",
            "close-spread-time",
            "anonkey",
            "default-path",
            "limited-quic",
            "h2-workaround-bogus-websocket-clients",
        ],
        true,
        "no effect on traffic",
    ),
    (
        &[
            "maxconnrate",
            "maxsessrate",
            "maxpipes",
            "maxsslconn",
            "maxsslrate",
            "maxzlibmem",
            "maxcomprate",
            "maxcompcpuusage",
        ],
        true,
        "no limit of its own: `runtime.memory` bounds them all",
    ),
    (&["lua-load", "lua-load-per-thread", "lua-prepend-path"], false, "there is no Lua"),
    (
        &[
            "expose-experimental-directives",
            "h1-case-adjust",
            "h1-case-adjust-file",
            "external-check",
            "email-alert",
        ],
        false,
        "there is nothing like it",
    ),
    (&["unsetenv", "resetenv"], true, "no program is run"),
];

/// The verdict of a directive that has no key.
fn other(word: &str, line: &Line, ledger: &mut Ledger) {
    let known = OTHERS.iter().find(|(names, ..)| names.contains(&word));
    match known {
        Some((_, true, note)) => ledger.approximate(line.number, *note),
        Some((_, false, note)) => ledger.unsupported(line.number, *note),
        None if word.starts_with("tune.") => {
            let note = "buffers and limits have defaults of their own (`limits`, `runtime.memory`)";
            ledger.approximate(line.number, note);
        }
        None => {}
    }
}

/// `[dns]`, from the first `resolvers`.
pub fn resolvers(sections: &[Section], body: &mut String, ledger: &mut Ledger) {
    let all = sections.iter().filter(|section| section.kind == SectionKind::Resolvers);
    for (index, section) in all.enumerate() {
        if index > 0 {
            ledger.unsupported(
                section.number,
                "all names are asked of one list of servers: that of the first `resolvers`",
            );
            for line in &section.lines {
                ledger.unsupported(line.number, "not the first `resolvers`");
            }
            continue;
        }
        ledger.exact(section.number, "`[dns]`");
        let mut keys = Keys::default();
        let mut servers = Vec::new();
        for line in &section.lines {
            resolver(line, &mut servers, &mut keys, ledger);
        }
        let _ = writeln!(body, "\n[dns]");
        if servers.is_empty() {
            servers.push("resolv.conf".to_owned());
        }
        write_line(
            body,
            "resolvers",
            format!("[{}]", servers.iter().map(|server| said(server)).collect::<Vec<_>>().join(", ")),
        );
        keys.write(body);
    }
}

fn resolver(line: &Line, servers: &mut Vec<String>, keys: &mut Keys, ledger: &mut Ledger) {
    let number = line.number;
    let time = |text: &str| duration(text, 1);
    match (line.word(0), line.word(1)) {
        ("nameserver", _) => match place(line.word(2)) {
            Ok((Endpoint::Host(host, port), _))
                if super::words::has_variable(&host) || host.parse::<std::net::IpAddr>().is_ok() =>
            {
                let port =
                    port.filter(|port| port != "53").map(|port| format!(":{port}")).unwrap_or_default();
                let host = if port.is_empty() { host } else { bracketed(&host) };
                servers.push(format!("{host}{port}"));
                ledger.exact(number, "`dns.resolvers`");
            }
            _ => ledger.unsupported(number, "a name server has an address"),
        },
        ("parse-resolv-conf", _) => {
            servers.push("resolv.conf".to_owned());
            ledger.exact(number, "`dns.resolvers`: \"resolv.conf\"");
        }
        ("timeout", "retry") => match time(line.word(2)) {
            Some(time) => {
                keys.set("timeout", said(&time.within(100, 60_000).0.to_string()));
                ledger.approximate(number, "`dns.timeout`: for one answer of one server");
            }
            None => ledger.unsupported(number, "it is no time"),
        },
        ("hold", "valid") => match time(line.word(2)) {
            Some(time) => {
                keys.set("max_ttl", said(&time.within(1000, 86_400_000).0.to_string()));
                ledger.approximate(
                    number,
                    "`dns.max_ttl`: an answer lasts so long at most, and as long as its TTL says",
                );
            }
            None => ledger.unsupported(number, "it is no time"),
        },
        ("hold", "obsolete") => {
            ledger.approximate(number, "an address is drained when two answers in a row lack it")
        }
        ("hold", _) => ledger.approximate(number, "a name that cannot be looked up keeps its backends"),
        ("timeout", _) | ("resolve_retries" | "accepted_payload_size", _) => {
            ledger.approximate(number, "a name is asked for again when its TTL is over");
        }
        _ => {}
    }
}

/// Verdicts of the sections that are no proxies.
pub fn others(sections: &[Section], used: &[String], folder: &str, ledger: &mut Ledger) {
    for section in sections {
        match section.kind {
            SectionKind::Defaults => ledger.exact(section.number, "taken over by the proxies behind it"),
            SectionKind::Userlist => userlist(section, used, folder, ledger),
            SectionKind::HttpErrors => {
                ledger.exact(section.number, "pages of the listeners that name it (`errorfiles`)");
                for line in section.lines.iter().filter(|line| line.word(0) == "errorfile") {
                    if !ledger.has(line.number) {
                        ledger.exact(line.number, "named by no listener");
                    }
                }
            }
            SectionKind::Other => {
                let note = match section.keyword.as_str() {
                    "mailers" => "no mails are sent: alerts come from metrics",
                    "program" => "no programs are run: a service manager does that",
                    "ring" => "a log goes to `syslog:tcp:…` by itself",
                    _ => "there is nothing like it",
                };
                ledger.unsupported(section.number, note);
                for line in &section.lines {
                    ledger.unsupported(line.number, format!("of `{}`", section.keyword));
                }
            }
            _ => {}
        }
    }
}

fn userlist(section: &Section, used: &[String], folder: &str, ledger: &mut Ledger) {
    let file = format!("{folder}/{}.users", section.name);
    let is_used = used.iter().any(|list| list == &section.name);
    match is_used {
        true => {
            ledger.approximate(section.number, format!("`auth.basic.users`: write {file} before Weir starts"))
        }
        false => ledger.exact(section.number, "no rule asks for it that is converted"),
    }
    for line in &section.lines {
        match (is_used, line.word(0)) {
            (false, _) => ledger.exact(line.number, "of a list that is not used"),
            (true, "user") => ledger.approximate(
                line.number,
                format!("a line `{}:HASH` of {file}, where the hash is bcrypt or Argon2: the password is to be hashed anew", line.word(1)),
            ),
            (true, _) => ledger.approximate(line.number, "a file of users for each group that rules ask for"),
        }
    }
}

/// `[cache]`, from the first `cache` section.
pub fn cache(sections: &[Section], body: &mut String, ledger: &mut Ledger) {
    let mut memory = 0_u64;
    for section in sections.iter().filter(|section| section.kind == SectionKind::Cache) {
        ledger.approximate(section.number, "one memory for all caches (`[cache]`); routes say what is kept");
        for line in &section.lines {
            match line.word(0) {
                "total-max-size" => {
                    memory += line.word(1).parse::<u64>().unwrap_or(0).min(1 << 20);
                    ledger.exact(line.number, "`cache.memory`");
                }
                "max-object-size" | "max-age" | "process-vary" | "max-secondary-entries" => {
                    ledger.approximate(
                        line.number,
                        "`object_max`, `ttl_max` of a route's `cache` say it: by default 16MiB, and no limit",
                    );
                }
                _ => {}
            }
        }
    }
    if memory > 0 {
        let _ = writeln!(body, "\n[cache]\nmemory = {}", said(&format!("{}MiB", memory.max(1))));
    }
}
