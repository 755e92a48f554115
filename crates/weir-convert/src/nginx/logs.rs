//! `access_log`, `log_format` and `error_log`.

use weir_config::quoted;

use super::conversion::Conversion;
use super::request_test::toml_key;
use super::route::{NewRoute, taken_lines};
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::variables::{NginxPart, parts, single_variable};
use crate::DirectiveVerdict;
use crate::write::line;

/// Access logs that were written.
#[derive(Debug, Default)]
pub struct NginxLogs {
    logs: Vec<NginxLog>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NginxLog {
    name: String,
    target: String,
    /// The keys that say what a line has.
    form: String,
}

/// The name of the log of `[log]`.
const MAIN: &str = "main";

impl NginxLogs {
    /// The name of a log with this target and form.
    fn name_of(&mut self, target: &str, form: &str) -> String {
        if let Some(log) = self.logs.iter().find(|log| log.target == target && log.form == form) {
            return log.name.clone();
        }
        let stem = target.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default();
        let stem: String =
            stem.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_').take(50).collect();
        let is_free =
            |name: &str| !name.is_empty() && name != MAIN && self.logs.iter().all(|log| log.name != name);
        let name = match self.logs.is_empty() {
            true => MAIN.to_owned(),
            false => {
                let numbered = (2..).map(|number| format!("{stem}{number}")).take(self.logs.len() + 2);
                let starts_well = stem.starts_with(|c: char| c.is_ascii_alphanumeric());
                let names = [stem.clone()].into_iter().chain(numbered).filter(|_| starts_well);
                let spare = (1..).map(|number| format!("log{number}"));
                names.chain(spare).find(|name| is_free(name)).unwrap_or_default()
            }
        };
        self.logs.push(NginxLog { name: name.clone(), target: target.to_owned(), form: form.to_owned() });
        name
    }

    /// Tables that stand for the logs, where a route is tried.
    pub fn stubs(&self) -> String {
        let show = |log: &NginxLog| match log.name.as_str() {
            MAIN => "[log]\naccess = \"stdout\"\n".to_owned(),
            name => format!("[access_log.{}]\ntarget = \"stdout\"\n", toml_key(name)),
        };
        self.logs.iter().map(show).collect()
    }

    /// Takes `access_logs` out of routes that have all logs, as they have by default.
    pub fn settle(&self, routes: &mut [NewRoute]) {
        let all = listed(&self.logs.iter().map(|log| log.name.clone()).collect::<Vec<_>>());
        for route in routes {
            if route.get("access_logs") == Some(&all) {
                route.unset("access_logs");
            }
        }
    }

    /// The tables of all logs; `level` is that of Weir's own log.
    pub fn write(&self, level: Option<&str>, body: &mut String) {
        if self.logs.is_empty() && level.is_none() {
            return;
        }
        body.push_str("\n[log]\n");
        if let Some(main) = self.logs.first() {
            line(body, "access", quoted(&main.target));
            body.push_str(&main.form);
        }
        if let Some(level) = level {
            line(body, "level", quoted(level));
        }
        for log in self.logs.iter().skip(1) {
            body.push_str(&format!("\n[access_log.{}]\n", toml_key(&log.name)));
            line(body, "target", quoted(&log.target));
            body.push_str(&log.form);
        }
    }
}

/// A list of names, as TOML.
fn listed(names: &[String]) -> String {
    let mut names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    names.sort();
    format!("[{}]", names.join(", "))
}

/// Sets which access logs a route writes to.
pub fn of_route(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, route: &mut NewRoute) {
    let directives = scope.all("access_log");
    if directives.is_empty() {
        let note = "nginx writes one in its own folder: `[log]` writes it to standard output";
        conversion.ledger.unsaid("access_log", DirectiveVerdict::Approximate, note);
        let name = conversion.logs.name_of("stdout", &form("combined"));
        route.set("access_logs", listed(&[name]));
        return;
    }
    let mut names = Vec::new();
    for directive in directives {
        if directive.word(0) == "off" {
            conversion.ledger.exact(directive, "`access_log = false`");
            continue;
        }
        names.extend(log(conversion, scope, directive));
    }
    names.sort();
    names.dedup();
    match names.is_empty() {
        true => route.set("access_log", "false"),
        false => route.set("access_logs", listed(&names)),
    }
}

fn form(format: &str) -> String {
    let mut form = String::new();
    line(&mut form, "format", quoted(format));
    form
}

/// The log of one `access_log`; `None` if Weir cannot write it.
fn log(
    conversion: &mut Conversion<'_>,
    scope: &NginxScope<'_>,
    directive: &NginxDirective,
) -> Option<String> {
    let mut doubts: Vec<String> = Vec::new();
    let path = directive.word(0);
    let (target, mut keys) = match path {
        "/dev/stdout" => ("stdout".to_owned(), String::new()),
        "/dev/stderr" | "stderr" => ("stderr".to_owned(), String::new()),
        path if path.starts_with("syslog:") => match syslog(path) {
            Ok(syslog) => syslog,
            Err(why) => {
                conversion.ledger.unsupported(directive, format!("{why}: not written"));
                return None;
            }
        },
        path if path.contains('$') => {
            conversion.ledger.unsupported(directive, "a path with variables has no counterpart: not written");
            return None;
        }
        path => (conversion.file(path), String::new()),
    };
    let mut format = "combined";
    for word in directive.words.iter().skip(1) {
        match word.split_once('=') {
            Some(("buffer" | "flush", _)) => {}
            Some(("gzip", _)) => doubts.push("`gzip` left out".to_owned()),
            Some(("if", condition)) => match logged_classes(conversion, condition) {
                Some(classes) => keys.push_str(&classes),
                None => doubts.push(format!("`if={condition}` left out: all lines are written")),
            },
            None if word == "gzip" => doubts.push("`gzip` left out".to_owned()),
            _ => format = word,
        }
    }
    let formats = scope.everywhere("log_format");
    match (format, formats.into_iter().rev().find(|it| it.word(0) == format)) {
        ("combined", None) => keys.insert_str(0, &form("combined")),
        (_, Some(found)) => {
            let (text, lacking) = log_line(found);
            let mut own = String::new();
            line(&mut own, "line", quoted(&text));
            keys.insert_str(0, &own);
            match lacking.is_empty() {
                true => conversion.ledger.exact(found, "`line` of the log"),
                false => {
                    let note = format!("`line` of the log; `-` stands for {}", lacking.join(", "));
                    conversion.ledger.approximate(found, note);
                }
            }
        }
        (_, None) => {
            keys.insert_str(0, &form("combined"));
            doubts.push(format!("there is no `log_format {format}`: `combined` is taken"));
        }
    }
    let before = format!("[log]\naccess = {}\n", quoted(&target));
    let after = "[listener.x]\nbind = \"127.0.0.1:1\"\n";
    if let Some(why) = taken_lines("# where lines go\n", &before, after).1.first() {
        conversion.ledger.unsupported(directive, format!("Weir would not take it ({why}): not written"));
        return None;
    }
    let (keys, refused) = taken_lines(&keys, &before, after);
    doubts.extend(refused.iter().map(|why| format!("Weir would not take a part of it ({why})")));
    match doubts.is_empty() {
        true => conversion.ledger.exact(directive, "an access log"),
        false => conversion.ledger.approximate(directive, format!("an access log; {}", doubts.join("; "))),
    }
    Some(conversion.logs.name_of(&target, &keys))
}

/// The target of `syslog:server=…` and its keys.
fn syslog(text: &str) -> Result<(String, String), String> {
    let (mut server, mut keys) = (None, Vec::new());
    for word in text.trim_start_matches("syslog:").split(',') {
        match word.split_once('=') {
            Some(("server", address)) => server = Some(address.to_owned()),
            Some(("facility", facility)) => keys.push(format!("facility = {}", quoted(facility))),
            Some(("severity", severity)) => {
                let severity = match severity {
                    "error" => "err",
                    "warn" => "warning",
                    other => other,
                };
                keys.push(format!("severity = {}", quoted(severity)));
            }
            Some(("tag", tag)) => keys.push(format!("app_name = {}", quoted(tag))),
            _ => {}
        }
    }
    let server = server.ok_or("`syslog:` without a server")?;
    let target = match server.strip_prefix("unix:") {
        Some(path) => format!("syslog:unix:{path}"),
        None => {
            let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            format!("syslog:udp:{server}{}", if has_port { "" } else { ":514" })
        }
    };
    let mut form = String::new();
    if !keys.is_empty() {
        line(&mut form, "syslog", format!("{{ {} }}", keys.join(", ")));
    }
    Ok((target, form))
}

/// The statuses of `if=$x`, where `$x` is a map of `$status` that leaves out classes.
fn logged_classes(conversion: &mut Conversion<'_>, condition: &str) -> Option<String> {
    let variable = single_variable(condition)?;
    let table = conversion.maps.table(&variable).filter(|table| table.word(0) == "$status")?;
    let mut left_out = Vec::new();
    for each in table.inner() {
        let is_off = matches!(each.word(0), "0" | "");
        match (each.name.as_str(), is_off) {
            ("default", false) => {}
            (pattern, true) => {
                let digits = pattern.strip_prefix("~^")?;
                let digits =
                    digits.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(digits);
                left_out.extend(
                    digits.chars().map(|c| c.is_ascii_digit().then_some(c)).collect::<Option<Vec<char>>>()?,
                );
            }
            _ => return None,
        }
    }
    let kept: Vec<String> = ('1'..='5')
        .filter(|class| !left_out.contains(class))
        .map(|class| quoted(&format!("{class}xx")))
        .collect();
    conversion.ledger.exact(table, "`status` of the log");
    conversion.ledger.judge_below(table.inner(), DirectiveVerdict::Exact, "`status` of the log");
    let mut form = String::new();
    line(&mut form, "status", format!("[{}]", kept.join(", ")));
    Some(form)
}

/// The text of a `log_format` in Weir's language, and the variables that Weir lacks.
fn log_line(format: &NginxDirective) -> (String, Vec<String>) {
    let words = format.words.iter().skip(1).filter(|word| !word.starts_with("escape="));
    let text: String = words.map(String::as_str).collect();
    let (mut out, mut lacking) = (String::new(), Vec::new());
    for part in parts(&text) {
        match part {
            NginxPart::Text(text) => out.push_str(&text.replace('$', "$$")),
            NginxPart::Variable(name) => match log_variable(&name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push('-');
                    lacking.push(format!("`${name}`"));
                }
            },
        }
    }
    (out, lacking)
}

fn log_variable(name: &str) -> Option<String> {
    let ours = match name {
        "remote_addr" | "realip_remote_addr" | "binary_remote_addr" => "client_ip",
        "remote_port" => "client_port",
        "remote_user" => "user",
        "time_local" => "time_common",
        "time_iso8601" => "time",
        "msec" => "time_unix",
        "request" => return Some("$method $target $protocol".to_owned()),
        "request_uri" => "target",
        "uri" | "document_uri" => "path",
        "args" | "query_string" => "query",
        "request_method" => "method",
        "server_protocol" => "protocol",
        "request_length" | "bytes_received" => "bytes_received",
        "request_time" | "session_time" => "total",
        "upstream_addr" => "backend",
        "upstream_status" => "status",
        "upstream_response_time" | "upstream_header_time" | "upstream_first_byte_time" => "backend_header",
        "upstream_connect_time" => "connect",
        "upstream_cache_status" => "cache",
        "ssl_protocol" => "tls_version",
        "ssl_cipher" => "tls_cipher",
        "ssl_server_name" | "ssl_preread_server_name" => "server_name",
        "host" | "server_name" => "host",
        "server_port" => "listener_port",
        "status" | "body_bytes_sent" | "bytes_sent" | "scheme" | "request_id" => name,
        "protocol" => "protocol",
        _ => {
            let families = [
                ("http_", "header"),
                ("sent_http_", "response_header"),
                ("upstream_http_", "response_header"),
                ("cookie_", "cookie"),
                ("arg_", "query"),
            ];
            return families.into_iter().find_map(|(prefix, family)| {
                let member = name.strip_prefix(prefix).filter(|member| !member.is_empty())?;
                let member =
                    if family.ends_with("header") { member.replace('_', "-") } else { member.to_owned() };
                Some(format!("${family}.{member}"))
            });
        }
    };
    Some(format!("${ours}"))
}

/// The level of Weir's own log, by `error_log`.
pub fn level(conversion: &mut Conversion<'_>) -> Option<&'static str> {
    let mut level = None;
    for directive in conversion.outer.clone().everywhere("error_log") {
        let of = match directive.words.get(1).map_or("error", String::as_str) {
            "debug" | "debug_core" | "debug_http" => "debug",
            "info" | "notice" => "info",
            "warn" => "warn",
            _ => "error",
        };
        level = Some(of);
        let note = "`level` of `[log]`; Weir's own log goes to standard error";
        conversion.ledger.approximate(directive, note);
    }
    level
}
