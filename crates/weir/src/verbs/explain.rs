//! `weir explain`

use std::fmt::Write as _;

use hyper::Method;
use weir_control::explain::{Answer, Question};

use crate::cli::Running;
use crate::client::{Client, block_on};
use crate::exit::Exit;

/// Asks the running Weir and prints each decision with its reason.
pub fn explain(running: &Running, question: &Question, json: bool) -> Exit {
    let client = match Client::new(running) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let body = match serde_json::to_value(question) {
        Ok(body) => body,
        Err(error) => {
            eprintln!("weir: {error}");
            return Exit::Failed;
        }
    };
    let answer = match block_on(client.call(Method::POST, "/v1/explain", Some(&body))) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return error.report(),
        Err(exit) => return exit,
    };
    if !answer.status.is_success() {
        eprintln!("weir: {}", answer.error());
        return Exit::Failed;
    }
    if json {
        say!("{:#}", answer.body);
        return Exit::Done;
    }
    match serde_json::from_value::<Answer>(answer.body) {
        Ok(answer) => {
            say!("{}", words(&answer).trim_end());
            Exit::Done
        }
        Err(error) => {
            eprintln!("weir: the running Weir is of another version: {error}; try --json");
            Exit::Failed
        }
    }
}

fn words(answer: &Answer) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "listener {}: {}", answer.listener, answer.listener_reason);
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
    let _ = writeln!(out, "action   {}", answer.action);
    if let Some(choice) = &answer.pool {
        let chosen = choice.backend.as_deref().unwrap_or("no backend");
        let _ = writeln!(out, "pool     {}, {}: {chosen}, {}", choice.pool, choice.balance, choice.reason);
        for it in &choice.backends {
            let mark = if choice.backend.as_ref() == Some(&it.address) { " *" } else { "  " };
            let refusal =
                if it.refusal.is_empty() { String::new() } else { format!(": not chosen, {}", it.refusal) };
            let (address, state, in_flight, weight) = (&it.address, &it.state, it.in_flight, it.weight);
            let _ =
                writeln!(out, "{mark} {address} {state}, {in_flight} in flight, weight {weight}{refusal}");
        }
    }
    out
}
