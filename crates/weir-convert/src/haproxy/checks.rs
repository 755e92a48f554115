//! What a check asks, and what it expects.

use std::fmt::Write as _;

use super::expressions::translated;
use super::ledger::Ledger;
use super::output::{Keys, inline, said};
use super::proxies::Proxy;
use super::sections::Line;

/// Options that say what a check does.
pub const OPTIONS: &[&str] = &[
    "httpchk",
    "tcp-check",
    "mysql-check",
    "pgsql-check",
    "ldap-check",
    "redis-check",
    "smtpchk",
    "ssl-hello-chk",
    "spop-check",
    "external-check",
    "lb-agent-chk",
];

/// Says what probes of a pool do.
pub fn say(proxy: &Proxy<'_>, health: &mut Keys, ledger: &mut Ledger) {
    // The last of these options is the one that holds.
    let line = proxy
        .lines
        .iter()
        .rev()
        .find(|line| line.word(0) == "option" && OPTIONS.contains(&line.word(1)) && !line.negated);
    let Some(line) = line else {
        health.set("check", said("tcp"));
        return;
    };
    let number = line.number;
    match line.word(1) {
        "httpchk" => http(proxy, line, health, ledger),
        "tcp-check" => {
            health.set("check", said("tcp"));
            let steps = steps(proxy, health, ledger);
            if !steps.is_empty() {
                let steps: Vec<String> = steps.iter().map(Keys::inline).collect();
                health.set("steps", format!("[{}]", steps.join(", ")));
            }
            ledger.exact(number, "`check = \"tcp\"` with `steps`");
        }
        "mysql-check" => {
            health.set("check", said("mysql"));
            ledger.approximate(number, "`check = \"mysql\"`: the greeting is read; nobody logs in");
        }
        "redis-check" => {
            conversation(&[("PING\\r\\n", "+PONG\\r\\n")], health);
            ledger.exact(number, "`steps` of a tcp probe: PING is answered by +PONG");
        }
        "smtpchk" => {
            let hello =
                if line.word(2).is_empty() { "HELO localhost".to_owned() } else { line.from(2).join(" ") };
            conversation(
                &[
                    ("", "~(?m)^220 "),
                    (&format!("{}\\r\\n", escaped(&hello)), "~(?m)^250 "),
                    ("QUIT\\r\\n", ""),
                ],
                health,
            );
            ledger.exact(number, "`steps` of a tcp probe");
        }
        other => {
            health.set("check", said("tcp"));
            ledger
                .approximate(number, format!("a tcp probe, that connects: there is nothing like `{other}`"));
        }
    }
    for line in proxy.lines.iter().filter(|line| matches!(line.word(0), "tcp-check" | "http-check")) {
        if !ledger.has(line.number) {
            ledger.exact(line.number, "not used by this kind of check");
        }
    }
}

/// Steps as pairs of what is sent and what is expected.
fn conversation(steps: &[(&str, &str)], health: &mut Keys) {
    let steps: Vec<String> = steps
        .iter()
        .map(|(send, expect)| {
            let both = [("send", send), ("expect", expect)];
            let said: Vec<(String, String)> = both
                .into_iter()
                .filter(|(_, text)| !text.is_empty())
                .map(|(key, text)| (key.to_owned(), said(text)))
                .collect();
            inline(&said)
        })
        .collect();
    health.set("check", said("tcp"));
    health.set("steps", format!("[{}]", steps.join(", ")));
}

/// Bytes as a probe's text has them.
pub fn escaped(text: &str) -> String {
    let mut written = String::new();
    for (at, c) in text.chars().enumerate() {
        match c {
            '\r' => written.push_str("\\r"),
            '\n' => written.push_str("\\n"),
            '\t' => written.push_str("\\t"),
            '\\' => written.push_str("\\\\"),
            '!' | '~' if at == 0 => {
                let _ = write!(written, "\\x{:02x}", u32::from(c));
            }
            c if c.is_ascii_control() || ('\u{80}'..='\u{ff}').contains(&c) => {
                let _ = write!(written, "\\x{:02x}", u32::from(c));
            }
            c => written.push(c),
        }
    }
    written
}

fn http(proxy: &Proxy<'_>, line: &Line, health: &mut Keys, ledger: &mut Ledger) {
    let mut method = "OPTIONS".to_owned();
    let mut path = "/".to_owned();
    match line.from(2) {
        [] => {}
        [path_only] => path.clone_from(path_only),
        [first, second, ..] => {
            method.clone_from(first);
            path.clone_from(second);
        }
    }
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut has_version = false;
    // In old files header fields stand behind the version, with line ends that are escaped.
    let rest = line.from(4).join(" ");
    if let Some(version) = line.words.get(4) {
        has_version = version.starts_with("HTTP/1.1");
        for field in rest.split("\r\n").skip(1).filter_map(|field| field.split_once(':')) {
            headers.push((field.0.trim().to_ascii_lowercase(), field.1.trim().to_owned()));
        }
    }
    let mut notes: Vec<String> = Vec::new();
    for line in proxy.lines_of("http-check") {
        match line.word(1) {
            "send" => {
                let mut words = line.from(2).iter();
                while let Some(word) = words.next() {
                    let mut next = || words.next().cloned().unwrap_or_default();
                    match word.as_str() {
                        "meth" => method = next(),
                        "uri" => path = next(),
                        "ver" => has_version = next() == "HTTP/1.1",
                        "hdr" => headers.push((next().to_ascii_lowercase(), next())),
                        "body" => {
                            next();
                            ledger.unsupported(line.number, "a probe has no body");
                        }
                        _ => ledger.unsupported(
                            line.number,
                            format!("a probe has no `{word}`: its value is a text"),
                        ),
                    }
                }
                ledger.exact(line.number, "`method`, `path`, `host`, `headers` of probes");
            }
            "expect" => expect(line, health, ledger),
            "comment" => ledger.exact(line.number, "no effect"),
            "disable-on-404" => ledger
                .unsupported(line.number, "a probe that is answered 404 is a bad one; agents say `drain`"),
            "send-state" => ledger.unsupported(line.number, "probes tell nothing of the pool"),
            "connect" => connect(line, health, ledger),
            other => ledger.unsupported(line.number, format!("probes have no `{other}`")),
        }
    }
    say_http(&method, &path, headers, health, &mut notes);
    if !has_version {
        notes.push("probes are HTTP/1.1, with the backend's address as host unless one is said".to_owned());
    }
    match notes.is_empty() {
        true => ledger.exact(line.number, "`check = \"http\"`"),
        false => ledger.approximate(line.number, format!("`check = \"http\"`; {}", notes.join("; "))),
    }
}

fn say_http(
    method: &str,
    path: &str,
    headers: Vec<(String, String)>,
    health: &mut Keys,
    notes: &mut Vec<String>,
) {
    health.set("check", said("http"));
    let path = if path.starts_with('/') { path.to_owned() } else { "/".to_owned() };
    if path != "/" {
        health.set("path", said(&path));
    }
    if method != "GET" {
        health.set("method", said(method));
    }
    let mut others = Keys::default();
    for (name, value) in headers {
        match name.as_str() {
            "host" => health.set("host", said(&value)),
            "connection" | "content-length" | "transfer-encoding" => {
                notes.push(format!("`{name}` is Weir's own"))
            }
            _ if value.contains("%[") => notes.push(format!("`{name}` is left out: its value is a sample")),
            _ => others.set(&name, said(&value)),
        }
    }
    if !others.is_empty() {
        health.set("headers", others.inline());
    }
}

/// `expect [!] KIND PATTERN` of an HTTP check.
fn expect(line: &Line, health: &mut Keys, ledger: &mut Ledger) {
    let (negated, kind, pattern) = expected(line);
    let number = line.number;
    let body = |text: String| said(&format!("{}{text}", if negated { "!" } else { "" }));
    match (kind, negated) {
        ("status", false) if others(&pattern).is_empty() => {
            ledger.unsupported(number, "its statuses are no numbers: 200 to 399 are good");
        }
        ("status", false) => {
            let statuses: Vec<String> = pattern.split(',').map(said).collect();
            health.set("expect_status", format!("[{}]", statuses.join(", ")));
            ledger.exact(number, "`expect_status`");
        }
        ("status", true) => {
            let ranges = others(&pattern);
            match ranges.is_empty() {
                true => ledger.unsupported(number, "its statuses are no numbers"),
                false => {
                    health.set("expect_status", format!("[{}]", ranges.join(", ")));
                    ledger.exact(number, "`expect_status`: all others");
                }
            }
        }
        ("rstatus", false) => match by_class(&pattern) {
            Some(ranges) => {
                health.set("expect_status", ranges);
                ledger.exact(number, "`expect_status`");
            }
            None => ledger.unsupported(number, "statuses are expected by ranges: 200-399 are good"),
        },
        ("string", _) => {
            health.set("expect_body", body(escaped(&pattern)));
            ledger.approximate(number, "`expect_body`; the status must be good, too");
        }
        ("rstring", _) => match translated(&pattern) {
            Ok(expression) => {
                health.set("expect_body", body(format!("~{expression}")));
                ledger.approximate(number, "`expect_body`; the status must be good, too");
            }
            Err(why) => ledger.unsupported(number, why),
        },
        _ => ledger.unsupported(number, format!("probes do not look at `{kind}`: 200 to 399 are good")),
    }
}

/// Whether `!` stands there, the kind, and the pattern.
fn expected(line: &Line) -> (bool, &str, String) {
    let mut words = line.from(2).iter();
    let mut negated = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "!" => negated = true,
            "min-recv" | "comment" | "ok-status" | "error-status" | "tout-status" | "on-success"
            | "on-error" | "status-code" => {
                words.next();
            }
            kind => {
                let (bang, kind) = kind.strip_prefix('!').map_or((false, kind), |kind| (true, kind));
                return (negated || bang, kind, words.next().cloned().unwrap_or_default());
            }
        }
    }
    (negated, "", String::new())
}

/// All statuses but these, as ranges.
fn others(statuses: &str) -> Vec<String> {
    let mut bad: Vec<(u16, u16)> = Vec::new();
    for one in statuses.split(',') {
        let (least, most) = one.split_once('-').unwrap_or((one, one));
        match (least.parse(), most.parse()) {
            (Ok(least), Ok(most)) if least <= most => bad.push((least, most)),
            _ => return Vec::new(),
        }
    }
    bad.sort_unstable();
    let mut ranges = Vec::new();
    let mut from = 100;
    for (least, most) in bad.into_iter().chain([(600, 600)]) {
        if least > from {
            ranges.push(said(&format!("{from}-{}", least - 1)));
        }
        from = from.max(most.saturating_add(1));
    }
    ranges
}

/// `^2` and `^[23]` as ranges.
fn by_class(expression: &str) -> Option<String> {
    let inner = expression
        .strip_prefix('^')
        .unwrap_or(expression)
        .trim_end_matches("[0-9][0-9]")
        .trim_end_matches("..");
    let classes = inner
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .or_else(|| inner.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')));
    let classes: Vec<char> = classes.unwrap_or(inner).chars().filter(|c| *c != '|').collect();
    let good = !classes.is_empty() && classes.iter().all(|c| ('1'..='5').contains(c));
    good.then(|| {
        let ranges: Vec<String> = classes.iter().map(|class| said(&format!("{class}00-{class}99"))).collect();
        format!("[{}]", ranges.join(", "))
    })
}

fn connect(line: &Line, health: &mut Keys, ledger: &mut Ledger) {
    let port = line.words.iter().position(|word| word == "port").and_then(|at| line.words.get(at + 1));
    if let Some(port) = port.filter(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        health.set("port", port.clone());
        ledger.exact(line.number, "`health.port`");
    }
    let plain = line.from(2).iter().all(|word| word == "port" || Some(word) == port || word == "default");
    match plain {
        true => ledger.exact(line.number, "each probe has a connection of its own"),
        false => ledger.approximate(line.number, "probes connect as traffic does"),
    }
}

/// The steps that `tcp-check` lines are.
fn steps(proxy: &Proxy<'_>, health: &mut Keys, ledger: &mut Ledger) -> Vec<Keys> {
    let mut steps: Vec<Keys> = Vec::new();
    for line in proxy.lines_of("tcp-check") {
        let number = line.number;
        match line.word(1) {
            "connect" => connect(line, health, ledger),
            "comment" => ledger.exact(number, "no effect"),
            "send" | "send-binary" => {
                let text = match line.word(1) {
                    "send" => Some(escaped(line.word(2))),
                    _ => hexadecimal(line.word(2)),
                };
                match text {
                    Some(text) => {
                        let mut step = Keys::default();
                        step.set("send", said(&text));
                        steps.push(step);
                        ledger.exact(number, "a step of `steps`");
                    }
                    None => ledger.unsupported(number, "it is no hexadecimal text"),
                }
            }
            "expect" => match step_expected(line) {
                Ok(text) => {
                    // What is sent and what comes then are one step.
                    match steps.last_mut().filter(|step| !step.has("expect")) {
                        Some(step) => step.set("expect", said(&text)),
                        None => {
                            let mut step = Keys::default();
                            step.set("expect", said(&text));
                            steps.push(step);
                        }
                    }
                    ledger.exact(number, "a step of `steps`");
                }
                Err(why) => ledger.unsupported(number, why),
            },
            other => ledger.unsupported(number, format!("a probe has no step `{other}`")),
        }
    }
    steps
}

fn step_expected(line: &Line) -> Result<String, String> {
    let (negated, kind, pattern) = expected(line);
    if negated {
        return Err("a step says what must come, not what must not".to_owned());
    }
    match kind {
        "string" => Ok(escaped(&pattern)),
        "rstring" => translated(&pattern).map(|expression| format!("~{expression}")),
        "binary" => hexadecimal(&pattern).ok_or_else(|| "it is no hexadecimal text".to_owned()),
        other => Err(format!("a step expects no `{other}`")),
    }
}

/// `0a0b` as `\x0a\x0b`.
fn hexadecimal(text: &str) -> Option<String> {
    let good =
        !text.is_empty() && text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    good.then(|| {
        text.as_bytes().chunks(2).map(|pair| format!("\\x{}", String::from_utf8_lossy(pair))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_ranges() {
        assert_eq!(by_class("^2").as_deref(), Some("[\"200-299\"]"));
        assert_eq!(by_class("^[23]..").as_deref(), Some("[\"200-299\", \"300-399\"]"));
        assert_eq!(by_class("^(2|3)[0-9][0-9]").as_deref(), Some("[\"200-299\", \"300-399\"]"));
        assert_eq!(by_class("204"), None);
        assert_eq!(others("500"), ["\"100-499\"", "\"501-599\""]);
        assert_eq!(others("x"), [""; 0]);
    }

    #[test]
    fn bytes_are_written_with_escapes() {
        assert_eq!(escaped("PING\r\n\0"), "PING\\r\\n\\x00");
        assert_eq!(escaped("!a~"), "\\x21a~");
        assert_eq!(hexadecimal("50494e"), Some("\\x50\\x49\\x4e".to_owned()));
        assert_eq!(hexadecimal("5"), None);
    }
}
