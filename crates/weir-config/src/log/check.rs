//! Checks access logs for settings that contradict each other, that would log credentials, or that have no
//! effect.

use weir_template::Variable;

use super::{AccessTarget, MAIN_LOG, MOST_ACCESS_LOGS};
use crate::fields::{Fields, Value};
use crate::log::LineTemplate;
use crate::report::{Findings, Span};
use crate::setting::One as _;
use crate::suggest::{nearest, one_of};
use crate::world::below;

/// The standard fields of a JSON line.
pub(crate) const STANDARD_FIELDS: [&str; 32] = [
    "time",
    "listener",
    "route",
    "pool",
    "backend",
    "client",
    "protocol",
    "method",
    "host",
    "path",
    "status",
    "bytes_received",
    "bytes_sent",
    "request_id",
    "cache",
    "retries",
    "hedge",
    "client_header",
    "auth",
    "queue",
    "connect",
    "backend_header",
    "total",
    "end",
    "would_reject",
    "sqli",
    "user",
    "user_agent",
    "referer",
    "tls_version",
    "tls_cipher",
    "server_name",
];

/// Reports mistakes in the access logs of a file, and in the references to them.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    let main = root.table("log");
    if let Some(log) = main {
        lines(log, findings);
        syslog(log, "access", findings);
    }
    for (number, log) in root.named("access_log").enumerate() {
        lines(log, findings);
        syslog(log, "target", findings);
        if log.name == MAIN_LOG {
            let hint = "that is the name of the log of `[log]`; take another";
            findings.error(log.at, format!("no log can be named `{MAIN_LOG}`"), hint);
        }
        if number == MOST_ACCESS_LOGS {
            let hint = "each has a thread and a queue of its own";
            findings.error(log.at, format!("there are more than {MOST_ACCESS_LOGS} access logs"), hint);
        }
    }
    one_file(root, findings);
    for listener in root.named("listener") {
        names(root, listener, findings);
        listener.tables("route").for_each(|(_, route)| names(root, route, findings));
    }
}

/// Reports several logs that write to one file.
fn one_file(root: &Fields, findings: &mut Findings<'_>) {
    let named = root.named("access_log").map(|log| (log, "target"));
    let mut seen: Vec<(String, Span)> = Vec::new();
    for (log, name) in root.table("log").map(|log| (log, "access")).into_iter().chain(named) {
        let Some(AccessTarget::File(path)) = log.value(name).and_then(AccessTarget::of) else { continue };
        let path = below("", &path.display().to_string());
        match seen.iter().find(|(other, _)| *other == path) {
            Some((_, first)) => {
                let hint = format!(
                    "the first is at {}; lines of both stand in it, and what both log twice",
                    findings.place(*first)
                );
                findings.warning(log.at(name), "two access logs go to one file", hint);
            }
            None => seen.push((path, log.at(name))),
        }
    }
}

/// Checks the logs that a listener or a route names.
fn names(root: &Fields, fields: &Fields, findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("access_logs") else { return };
    if matches!(fields.get("access_log").map(|entry| &entry.value), Some(Value::Bool(false))) {
        let hint = format!("`access_log` is `false` ({}); keep one", findings.place(fields.at("access_log")));
        findings.error(entry.key, "`access_logs` names logs, and nothing is to be logged", hint);
    }
    crate::values::said_once(fields, "access_logs", findings);
    let known = || root.named("access_log").map(|log| log.name.as_str()).filter(|name| *name != MAIN_LOG);
    for (at, value) in fields.list("access_logs") {
        let Value::Text(name) = value else { continue };
        if name == MAIN_LOG {
            let is_off = root.table("log").is_none_or(|log| {
                !log.is_bad("access")
                    && log.value("access").and_then(AccessTarget::of).is_none_or(|it| it == AccessTarget::Off)
            });
            if is_off {
                let hint = "expected `[log]` with `access = \"/var/log/weir/access.log\"`, for example";
                findings.warning(*at, format!("the log `{MAIN_LOG}` is off"), hint);
            }
            continue;
        }
        if root.is_bad("access_log") || known().any(|known| known == name) {
            continue;
        }
        let hint = match nearest(name, known().chain([MAIN_LOG])) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", one_of(known().chain([MAIN_LOG])).replace(" or ", " and ")),
        };
        findings.error(*at, format!("no access log is named `{name}`"), hint);
    }
}

/// Checks the lines of one log.
fn lines(log: &Fields, findings: &mut Findings<'_>) {
    let format = log.get("format").filter(|entry| !matches!(entry.value, Value::Word("json")));
    if let Some(line) = log.get("line") {
        for name in ["format", "fields", "standard_fields"] {
            let Some(entry) = log.get(name) else { continue };
            let hint = format!("`line` ({}) says all that a line has; keep one", findings.place(line.key));
            findings.error(entry.key, format!("`{name}` cannot stand beside `line`"), hint);
        }
    } else if let Some(format) = format.filter(|_| !log.is_bad("format")) {
        for name in ["fields", "standard_fields"] {
            let Some(entry) = log.get(name) else { continue };
            let hint = format!("only lines in JSON have fields with names ({})", findings.place(format.at));
            findings.error(entry.key, format!("`{name}` needs `format = \"json\"`"), hint);
        }
    }
    let has_standard = log.flag("standard_fields");
    for entry in log.map("fields") {
        if has_standard && STANDARD_FIELDS.contains(&entry.name.as_str()) {
            let hint = "name it otherwise, or say `standard_fields = false`";
            findings.error(entry.key, format!("every line has a field `{}` already", entry.name), hint);
        }
        secrets(entry.at, &entry.value, findings);
    }
    if !has_standard && log.lacks("fields") {
        let hint = "expected `fields = { client = \"$client_ip\", status = \"$status\" }`, for example";
        findings.error(log.at("standard_fields"), "lines would say nothing", hint);
    }
    if let Some(entry) = log.get("line") {
        secrets(entry.at, &entry.value, findings);
    }
    let is_sampled = matches!(log.holds("share").as_deref(), Some(Value::Factor(share)) if *share < 1.0);
    if let Some(entry) = log.get("keep_errors").filter(|_| !is_sampled && !log.is_bad("share")) {
        let hint = "`share` leaves nothing out: expected `share = 0.1`, for example";
        findings.warning(entry.key, "`keep_errors` has no effect", hint);
    }
}

/// Fields that are credentials as a whole.
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// Reports credentials in a line, which would let readers of the log impersonate the client.
fn secrets(at: Span, value: &Value, findings: &mut Findings<'_>) {
    let Some(LineTemplate(template)) = LineTemplate::of(value) else { return };
    for variable in template.variables() {
        let hint = match variable {
            Variable::Header(name) if &**name == "cookie" => {
                "whoever reads the log can be any client; name the one cookie, such as `$cookie.theme`"
            }
            Variable::Header(name) if CREDENTIALS.contains(&&**name) => {
                "whoever reads the log can be any client"
            }
            Variable::ResponseHeader(name) if &**name == "set-cookie" => {
                "whoever reads the log can be any client"
            }
            _ => continue,
        };
        findings.warning(at, format!("`${}` writes secrets to the log", variable.name()), hint);
    }
}

/// Reports syslog settings of a log that writes elsewhere.
fn syslog(log: &Fields, target: &'static str, findings: &mut Findings<'_>) {
    let Some(entry) = log.get("syslog") else { return };
    let goes_to = log.value(target).and_then(AccessTarget::of);
    if !log.is_bad(target) && !matches!(goes_to, Some(AccessTarget::Syslog(_) | AccessTarget::Journal)) {
        let hint =
            format!("expected `{target} = \"syslog\"`, or a place such as \"syslog:udp:10.0.0.1:514\"");
        findings.warning(entry.key, "`syslog` has no effect", hint);
    }
}
