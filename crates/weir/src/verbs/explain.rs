//! `weir explain`

use std::fmt::Write as _;

use hyper::Method;
use weir_admin::explain::{Answer, Choice, Question, Statement, Timer, Worded};

use crate::arguments::Running;
use crate::client::ask_and_print;
use crate::exit::Exit;

/// Asks the running Weir, and prints each decision with its reason.
pub fn explain(running: &Running, question: &Question, json: bool) -> Result<Exit, Exit> {
    let question = serde_json::to_value(question).map_err(|error| Exit::Failed.saying(error))?;
    ask_and_print(running, Method::POST, "/v1/explain", Some(&question), json, |body| {
        Ok(words(&serde_json::from_value(body)?))
    })
}

fn words(answer: &Answer) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "listener {}: {}", answer.listener, answer.listener_reason);
    for warning in &answer.warnings {
        let _ = writeln!(out, "warning  {warning}");
    }
    if let Some(name) = &answer.server_name {
        let _ = writeln!(out, "name     {name}");
    }
    if !answer.path.is_empty() {
        let _ = writeln!(out, "path     {}", answer.path);
    }
    for route in &answer.routes {
        let _ = writeln!(
            out,
            "{} route {}: {}",
            if route.taken { " *" } else { "  " },
            route.route,
            route.reason
        );
    }
    of_maps(&mut out, answer);
    for screen in &answer.screens {
        let mark = if screen.passes { "  " } else { " !" };
        let _ = writeln!(out, "{mark} {} of the {}: {}", screen.name, screen.of, screen.reason);
    }
    if let Some(statement) = &answer.statement {
        of_statement(&mut out, statement);
    }
    if let Some(sqli) = &answer.sqli {
        let _ = writeln!(out, "sqli     {sqli}");
    }
    for step in &answer.steps {
        let _ = writeln!(out, "   {step}");
    }
    if let Some(auth) = &answer.auth {
        let _ = writeln!(out, "auth     {auth}");
    }
    let _ = writeln!(out, "action   {}", answer.action);
    if let Some(errors) = &answer.errors {
        let _ = writeln!(out, "errors   {errors}");
    }
    if let Some(location) = &answer.location {
        let _ = writeln!(out, "location {location}");
    }
    if let Some(path) = answer.backend_path.as_ref().filter(|path| **path != answer.path) {
        let _ = writeln!(out, "asks for {path}");
    }
    if let Some(host) = &answer.backend_host {
        let _ = writeln!(out, "by host  {host}");
    }
    of_headers(&mut out, answer);
    let Answer {
        certificate, split, mirror, cache, buffered, protocol, breaker, sticky, retry, hedge, ..
    } = answer;
    let logs = answer.logs.as_ref().map(|it| if it.is_empty() { "none".to_owned() } else { it.join(", ") });
    let words = [
        ("tls", certificate),
        ("split", split),
        ("mirror", mirror),
        ("cache", cache),
        ("logs", &logs),
        ("buffered", buffered),
        ("protocol", protocol),
        ("breaker", breaker),
        ("sticky", sticky),
        ("retry", retry),
        ("hedge", hedge),
    ];
    for (name, said) in words.into_iter().filter_map(|(name, said)| Some((name, said.as_ref()?))) {
        let _ = writeln!(out, "{name:<8} {said}");
    }
    for Timer { name, value, from } in &answer.timers {
        let _ = writeln!(out, "timer    {name} {value}, of the {from}");
    }
    if let Some(choice) = &answer.pool {
        of_choice(&mut out, choice);
    }
    out
}

/// The chosen backend, and the candidates.
fn of_choice(out: &mut String, choice: &Choice) {
    let chosen = choice.backend.as_deref().unwrap_or("no backend");
    let _ = writeln!(out, "pool     {}, {}: {chosen}, {}", choice.pool, choice.balance, choice.reason);
    for it in &choice.backends {
        let mark = if choice.backend.as_ref() == Some(&it.address) { " *" } else { "  " };
        let refusal =
            if it.refusal.is_empty() { String::new() } else { format!(": not chosen, {}", it.refusal) };
        let (address, state, in_flight, weight) = (&it.address, &it.state, it.in_flight, it.weight);
        let role = it.role.as_deref().map(|role| format!(" {role}")).unwrap_or_default();
        let why = if it.why.is_empty() { String::new() } else { format!(" ({})", it.why) };
        let _ = writeln!(
            out,
            "{mark} {address} {state}{role}{why}, {in_flight} in flight, weight {weight}{refusal}"
        );
    }
}

/// The results of map lookups.
fn of_maps(out: &mut String, answer: &Answer) {
    for map in &answer.maps {
        let by = match (&map.key, &map.line) {
            (Some(key), Some(line)) => format!("by `{key}` ({line})"),
            _ => "no line has it".to_owned(),
        };
        let _ = writeln!(out, "map      {} of `{}`: `{}`, {by}", map.map, map.asked, map.value);
    }
}

/// The header fields that rules change.
fn of_headers(out: &mut String, answer: &Answer) {
    for change in &answer.header_changes {
        let value = match (&change.value, change.action.as_str()) {
            (Some(value), _) => format!(": {value}"),
            (None, "remove") => String::new(),
            (None, _) => ", which comes out empty and is left out".to_owned(),
        };
        let _ = writeln!(
            out,
            "header   to the {}, of the {}: {} {}{value}",
            change.to, change.of, change.action, change.name
        );
    }
}

fn of_statement(out: &mut String, it: &Statement) {
    let count = if it.statements > 1 { format!(", {} of them", it.statements) } else { String::new() };
    let _ = writeln!(out, "kind     {}{count}", it.kind);
    let _ = writeln!(out, "wants    {}, {}: {}", it.wants, it.reason.word, it.reason.meaning);
    if it.own_reason != it.reason {
        let (word, meaning) = (&it.own_reason.word, &it.own_reason.meaning);
        let _ = writeln!(out, "by text  {}, {word}: {meaning}", it.own_wants);
    }
    let mut list = |name: &str, all: &[Worded]| {
        for Worded { word, meaning } in all {
            let _ = writeln!(out, "{name:<8} {word}: {meaning}");
        }
    };
    list("leaves", &it.leaves);
    list("asks for", &it.reads_back);
    if it.pins {
        let _ = writeln!(out, "pins     the session keeps its connection until a reset");
    }
    if it.for_the_primary_alone {
        let _ = writeln!(
            out,
            "kept     a session that is kept at a server that is not the primary gets error 1836"
        );
    }
    if let Some(step) = &it.transaction {
        let _ = writeln!(out, "transaction {step}");
    }
    let _ = writeln!(out, "again    {}: {}", it.resend.word, it.resend.meaning);
}
