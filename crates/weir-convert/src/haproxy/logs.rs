//! `log`, its formats, and who writes where.

use std::fmt::Write as _;

use super::ledger::Ledger;
use super::maps::Maps;
use super::networks::{Endpoint, bracketed, place};
use super::output::{Keys, name_of, said};
use super::proxies::Proxy;
use super::samples::{Sample, constant, variable};
use super::sections::{Line, Section, SectionKind};

/// The access logs, each once.
#[derive(Debug, Default)]
pub struct Logs {
    logs: Vec<(String, Keys)>,
    /// The logs of each listener, by its proxy.
    by_proxy: Vec<(String, Vec<String>)>,
}

const FACILITIES: &[&str] = &[
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "auth2", "ftp", "ntp",
    "audit", "alert", "cron2", "local0", "local1", "local2", "local3", "local4", "local5", "local6",
    "local7",
];

impl Logs {
    /// Takes up the logs of a proxy that accepts clients.
    pub fn read(&mut self, proxy: &Proxy<'_>, sections: &[Section], maps: &mut Maps, ledger: &mut Ledger) {
        let mut lines: Vec<&Line> = Vec::new();
        for line in proxy.lines.iter().copied().filter(|line| line.word(0) == "log") {
            match (line.negated, line.word(1)) {
                (true, _) => {
                    lines.clear();
                    ledger.exact(line.number, "no log");
                }
                (false, "global") => {
                    ledger.exact(line.number, "the logs of `global`");
                    let globals = sections.iter().filter(|section| section.kind == SectionKind::Global);
                    lines.extend(
                        globals.flat_map(|section| &section.lines).filter(|line| line.word(0) == "log"),
                    );
                }
                (false, _) => lines.push(line),
            }
        }
        let format = if lines.is_empty() { unwritten(proxy, ledger) } else { format(proxy, maps, ledger) };
        let conditions = conditions(proxy, ledger);
        let mut names: Vec<String> = Vec::new();
        for line in lines {
            if let Some(mut log) = target(line, ledger) {
                for (key, value) in format.entries().iter().chain(conditions.entries()) {
                    log.set(key, value.clone());
                }
                let name = self.keep(log);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        self.by_proxy.push((proxy.name().to_owned(), names));
    }

    fn keep(&mut self, log: Keys) -> String {
        if let Some((name, _)) = self.logs.iter().find(|(_, known)| *known == log) {
            return name.clone();
        }
        let name = format!("log{}", self.logs.len() + 1);
        self.logs.push((name.clone(), log));
        name
    }

    /// Says the logs of a listener, where they are not those of all.
    pub fn say(&self, proxy: &str, keys: &mut Keys) {
        let Some((_, names)) = self.by_proxy.iter().find(|(of, _)| of == proxy) else { return };
        if names.is_empty() && !self.logs.is_empty() {
            keys.set("access_log", "false");
        } else if names.len() < self.logs.len() {
            let names: Vec<String> = names.iter().map(|name| said(name)).collect();
            keys.set("access_logs", format!("[{}]", names.join(", ")));
        }
    }

    /// Writes the tables.
    pub fn write(&self, body: &mut String) {
        for (name, keys) in &self.logs {
            let _ = writeln!(body, "\n[access_log.{}]", name_of(name));
            keys.write(body);
        }
    }
}

/// Where a syslog daemon listens, if that is an address or comes from the environment.
fn syslog_place(host: &str, port: &str) -> Option<String> {
    let is_port = super::words::has_variable(port)
        || (!port.starts_with('+') && port.parse::<u16>().is_ok_and(|port| port > 0));
    let host = if host == "localhost" { "127.0.0.1" } else { host };
    let is_address = super::words::has_variable(host) || host.parse::<std::net::IpAddr>().is_ok();
    (is_port && is_address).then(|| format!("{}:{port}", bracketed(host)))
}

/// Where lines go; `None` where none are written.
fn target(line: &Line, ledger: &mut Ledger) -> Option<Keys> {
    let number = line.number;
    let mut words = line.from(2).iter();
    let (mut facility, mut level, mut notes) = ("local0", "", Vec::new());
    while let Some(word) = words.next() {
        match word.as_str() {
            "len" | "format" | "sample" | "profile" => {
                let value = words.next().map_or("", String::as_str);
                if word == "sample" {
                    notes.push("every line is written: `share` of a log says otherwise".to_owned());
                } else if word == "format"
                    && !matches!(value, "raw" | "rfc5424" | "rfc3164" | "local" | "short")
                {
                    notes.push(format!("the form `{value}` is not in Weir"));
                }
            }
            word if FACILITIES.contains(&word) => facility = word,
            word if level.is_empty() => level = word,
            _ => {}
        }
    }
    let rfc5424 = line.words.iter().any(|word| word == "rfc5424");
    let text = line.word(1);
    let target = match text.split_once('@').map_or(("", text), |(prefix, rest)| (prefix, rest)) {
        ("", "stdout") | ("fd", "1") => "stdout".to_owned(),
        ("", "stderr") | ("fd", "2") => "stderr".to_owned(),
        ("", "/dev/log") => "syslog".to_owned(),
        ("ring", _) => {
            ledger.unsupported(number, "no ring is kept: `syslog:tcp:ADDRESS` sends lines over TCP");
            return None;
        }
        _ => match place(text) {
            Ok((Endpoint::Unix(path), _)) => format!("syslog:unix:{path}"),
            Ok((Endpoint::Host(host, port), _)) if !host.is_empty() => {
                let port = port.unwrap_or_else(|| "514".to_owned());
                match syslog_place(&host, &port) {
                    Some(place) => format!("syslog:udp:{place}"),
                    None => {
                        let note = format!(
                            "lines go to an IP address and a port, and not to `{text}`, whose name is not looked up: NOTHING IS LOGGED there"
                        );
                        ledger.unsupported(number, note);
                        return None;
                    }
                }
            }
            _ => {
                ledger.unsupported(number, format!("no lines go to `{text}`"));
                return None;
            }
        },
    };
    if matches!(level, "emerg" | "alert" | "crit" | "err" | "warning" | "notice") {
        ledger.approximate(number, format!("no access log, since its lines are of level info: what is {level} or worse is in Weir's own log on standard error"));
        return None;
    }
    let mut keys = Keys::default();
    keys.set("target", said(&target));
    if target.starts_with("syslog") {
        let facility = match facility {
            "auth2" => "authpriv",
            "cron2" => "clock",
            known => known,
        };
        let form = if rfc5424 || target == "syslog" || target.starts_with("syslog:unix") {
            ""
        } else {
            ", form = \"rfc3164\""
        };
        notes.push("its lines are of `weir`, not of `haproxy` (`syslog.app_name`)".to_owned());
        keys.set("syslog", format!("{{ facility = {}{form} }}", said(facility)));
    }
    match notes.is_empty() {
        true => ledger.exact(number, "an access log"),
        false => ledger.approximate(number, format!("an access log; {}", notes.join("; "))),
    }
    Some(keys)
}

/// Says of the forms of lines that none are written.
fn unwritten(proxy: &Proxy<'_>, ledger: &mut Ledger) -> Keys {
    for line in proxy.lines.iter().filter(|line| is_format(line)) {
        ledger.exact(line.number, "no line is written: there is no `log`");
    }
    Keys::default()
}

/// Whether a line says the form of lines in a log.
fn is_format(line: &Line) -> bool {
    line.word(0) == "log-format"
        || (line.word(0) == "option" && matches!(line.word(1), "httplog" | "tcplog" | "httpslog"))
}

/// The form of the lines of a proxy.
fn format(proxy: &Proxy<'_>, maps: &mut Maps, ledger: &mut Ledger) -> Keys {
    let mut keys = Keys::default();
    keys.set("format", said("haproxy"));
    let Some(line) = proxy.lines.iter().rev().find(|line| is_format(line) && !line.negated) else {
        ledger.unsaid("log-format", "the line of `option httplog` and `tcplog`, in place of the short one that HAProxy has by default");
        return keys;
    };
    let counts = "its connection counts are 0, which Weir has as metrics";
    match (line.word(0), line.word(1)) {
        ("option", "httpslog") => {
            ledger.approximate(line.number, format!("`format = \"haproxy\"`: as `httplog`; {counts}"))
        }
        ("option", _) if line.word(2) == "clf" => {
            keys.set("format", said("combined"));
            ledger.approximate(line.number, "`format = \"combined\"`");
        }
        ("option", name) => {
            ledger.approximate(line.number, format!("`format = \"haproxy\"`: the line of `{name}`; {counts}"))
        }
        _ => match log_line(line.word(1), maps) {
            Ok(text) => {
                keys = Keys::default();
                keys.set("line", said(&text));
                ledger.approximate(line.number, "`line`: times are in seconds; what has no value is `-`");
            }
            Err(why) => {
                ledger.unsupported(line.number, format!("{why}: the line is that of `option httplog`"))
            }
        },
    }
    keys
}

/// A log-format in the language of values.
fn log_line(text: &str, maps: &mut Maps) -> Result<String, String> {
    let mut line = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        line.push_str(&constant(&rest[..at]));
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            line.push('%');
            rest = behind;
            continue;
        }
        // Flags such as `{+Q}` quote what Weir escapes anyway.
        if let Some(inner) = rest.strip_prefix('{') {
            let (flags, behind) = inner.split_once('}').ok_or("a flag is not closed by `}`")?;
            let quotes = flags.contains("+Q") && !behind.starts_with('o');
            rest = behind;
            let (value, behind) = one(rest, maps)?;
            let marks = if quotes { "\"" } else { "" };
            let _ = write!(line, "{marks}{value}{marks}");
            rest = behind;
            continue;
        }
        let (value, behind) = one(rest, maps)?;
        line.push_str(&value);
        rest = behind;
    }
    line.push_str(&constant(rest));
    let line = line.trim().to_owned();
    if line.is_empty() { Err("the line is empty".to_owned()) } else { Ok(line) }
}

/// One name or sample, behind its `%`, and what stands behind it.
fn one<'t>(rest: &'t str, maps: &mut Maps) -> Result<(String, &'t str), String> {
    if let Some(inner) = rest.strip_prefix('[') {
        let (sample, behind) = inner.split_once(']').ok_or("`%[` is not closed")?;
        let text = match sample.split_once('(') {
            Some(("res.hdr" | "res.fhdr", name)) => {
                format!("$response_header.{}", name.trim_end_matches(')').to_ascii_lowercase())
            }
            _ => variable(&Sample::parse(sample)?, maps)?.text,
        };
        return Ok((text, behind));
    }
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let variable = match &rest[..end] {
        "o" => "",
        "ci" => "$client_ip",
        "cp" => "$client_port",
        "fp" => "$listener_port",
        "t" | "tr" | "trl" | "T" | "Tl" | "trg" => "$time_common",
        "Ts" => "$time_unix",
        "ft" | "f" => "$listener",
        "b" => "$pool",
        "s" => "$backend",
        "ST" => "$status",
        "B" => "$bytes_sent",
        "U" => "$bytes_received",
        "r" => "$method $target $protocol",
        "HM" => "$method",
        "HU" => "$target",
        "HP" | "HPO" => "$path",
        "HQ" => "$query",
        "HV" => "$protocol",
        "TR" | "Tq" | "Ti" => "$client_header",
        "Tw" => "$queue",
        "Tc" => "$connect",
        "Tr" => "$backend_header",
        "Ta" | "Tt" | "Tu" => "$total",
        "ts" | "tsc" => "$end",
        "rc" => "$retries",
        "ID" => "$request_id",
        "sslv" => "$tls_version",
        "sslc" => "$tls_cipher",
        // What is captured, and counts of connections, are not in a line.
        "hr" | "hs" | "hrl" | "hsl" | "CC" | "CS" | "ac" | "fc" | "bc" | "sc" | "sq" | "bq" | "bi" | "si"
        | "bp" | "sp" | "fi" | "H" | "pid" | "rt" | "lc" | "Th" | "Td" => "-",
        other => return Err(format!("a log has nothing like `%{other}`")),
    };
    Ok((variable.to_owned(), &rest[end..]))
}

/// Which lines are written.
fn conditions(proxy: &Proxy<'_>, ledger: &mut Ledger) -> Keys {
    let mut keys = Keys::default();
    if let Some(line) = proxy.option("dontlog-normal") {
        keys.set("except_done", "true");
        ledger.approximate(
            line.number,
            "`except_done` of a log: lines whose `end` is neither `done` nor `responded`",
        );
    }
    if let Some(line) = proxy.option("log-separate-errors") {
        ledger.approximate(
            line.number,
            "each log has one severity: a log of its own, with `status = \"5xx\"`, for errors",
        );
    }
    if let Some(line) = proxy.option("dontlognull") {
        match proxy.is_tcp {
            true => ledger.approximate(line.number, "a line for each session, also for those without a byte"),
            false => ledger.exact(line.number, "a line for each request, none for a connection without one"),
        }
    }
    if let Some(line) = proxy.option("logasap") {
        ledger.approximate(line.number, "a line is written when a request or a session has ended");
    }
    for line in proxy.lines_of("capture").chain(proxy.lines_of("declare")) {
        ledger.approximate(
            line.number,
            "not in the line: `fields` of a log name what they show, such as `$header.x`",
        );
    }
    for word in ["log-tag", "log-format-sd", "error-log-format", "unique-id-format"] {
        if let Some(line) = proxy.last(&[word]) {
            ledger.approximate(line.number, "`syslog.app_name`, and `line` of a log, say it");
        }
    }
    keys
}
