//! Holds what clients saw against Weir's access log, and against what the soak did to backends.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::sql_judge::{SqlCause, SqlChange};
use super::traffic::{Failure, Kind, Stall};

/// A failure that begins so long after a backend was disturbed may still come of it: timers run out.
const AFTERMATH: Duration = Duration::from_secs(1);
/// A failure that begins so long behind a time in which the machine was too busy may still come of it.
const AFTER_STALL: Duration = Duration::from_secs(3);
/// End reasons that say that somebody took too long, or gave up; and of a wait that only the client knows.
const OF_TIMERS: [&str; 14] = [
    "done",
    "client_closed",
    "client_idle",
    "tunnel_idle",
    "client_header_timeout",
    "client_body_timeout",
    "tls_handshake",
    "login_timeout",
    "connect_timeout",
    "backend_timeout",
    "stream_timeout",
    "backend_down",
    "no_backend",
    "draining",
];
/// End reasons that say that the backend failed.
const OF_BACKENDS: [&str; 6] = [
    "connect_failed",
    "connect_timeout",
    "backend_timeout",
    "backend_closed",
    "backend_down",
    "stream_timeout",
];
/// End reasons that none of this traffic may have: limits that it stays below, and mistakes of Weir's.
const NEVER: [&str; 7] =
    ["internal", "overload", "buffer_lost", "queue_full", "bad_response", "no_route", "too_many_connections"];

/// A time in which a backend was killed or stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disturbance {
    pub(super) backend: SocketAddr,
    pub(super) from: Instant,
    pub(super) until: Option<Instant>,
}

impl Disturbance {
    fn touches(&self, failure: &Failure) -> bool {
        failure.ended >= self.from && self.until.is_none_or(|until| failure.begun <= until + AFTERMATH)
    }
}

/// What became of the failures.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// Failures that the access log explains by a backend that was disturbed at that time, or by a timer that
    /// ran out while the machine was too busy.
    pub(super) explained: Vec<String>,
    /// How many of them by the latter alone.
    pub(super) stalled: u64,
    /// Others, each with what the log says.
    pub(super) unexplained: Vec<String>,
    /// Lines of the access log, by their end reason.
    pub(super) ends: BTreeMap<String, u64>,
}

/// A line of the access log.
struct Line {
    end: String,
    backend: Option<String>,
    text: String,
}

/// What explains failures.
#[derive(Clone, Copy)]
pub(super) struct Excuses<'a> {
    pub(super) disturbed: &'a [Disturbance],
    pub(super) sql_changes: &'a [SqlChange],
    /// Times in which the machine was too busy.
    pub(super) stalls: &'a [Stall],
}

/// Reads the access log once; `begun` is when the soak began.
pub(super) fn judge(
    log: &Path,
    failures: &[Failure],
    Excuses { disturbed, sql_changes, stalls }: Excuses<'_>,
    begun: Instant,
) -> Judgement {
    let mut judgement = Judgement::default();
    let mut lines: HashMap<&str, Vec<Line>> =
        failures.iter().map(|failure| (failure.key.as_str(), Vec::new())).collect();
    let Ok(file) = File::open(log) else {
        judgement.unexplained.push(format!("there is no access log {}", log.display()));
        return judgement;
    };
    for text in BufReader::new(file).lines().map_while(Result::ok) {
        let end = field(&text, "end").unwrap_or_default();
        match judgement.ends.get_mut(end) {
            Some(count) => *count += 1,
            None => drop(judgement.ends.insert(end.to_owned(), 1)),
        }
        // Requests are known by their paths, and what is not HTTP by the client's address.
        let Some(key) = field(&text, "path").or_else(|| field(&text, "client")) else { continue };
        if let Some(of_key) = lines.get_mut(key) {
            let backend = field(&text, "backend").map(str::to_owned);
            of_key.push(Line { end: end.to_owned(), backend, text: text.clone() });
        }
    }
    for end in NEVER {
        if let Some(count) = judgement.ends.get(end) {
            judgement.unexplained.push(format!("{count} lines of the access log end with {end}"));
        }
    }
    for failure in failures {
        let lines = &lines[failure.key.as_str()];
        let at = failure.begun.duration_since(begun).as_secs_f64();
        let took = failure.ended.duration_since(failure.begun).as_secs_f64();
        let log: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        let Failure { kind, key, what, .. } = failure;
        let said =
            if log.is_empty() { "the access log has no such line".to_owned() } else { log.join("\n    ") };
        let text = format!("at {at:.1} s, {took:.1} s long, {kind:?} {key}: {what}\n    {said}");
        let is_explained = match &failure.told {
            Some(told) => sql_changes.iter().any(|change| change.explains(told, failure.ended)),
            None => is_explained(failure, lines, disturbed),
        };
        let is_stalled = !is_explained && is_stalled(failure, lines, stalls);
        judgement.stalled += u64::from(is_stalled);
        let is_explained = is_explained || is_stalled;
        if is_explained { &mut judgement.explained } else { &mut judgement.unexplained }.push(text);
    }
    judgement
}

/// Whether a timer ran out, and may have because the machine was too busy.
fn is_stalled(failure: &Failure, lines: &[Line], stalls: &[Stall]) -> bool {
    let is_of_timer = match &failure.told {
        // Also one that waited too long behind others, or for a row.
        Some(told) => {
            told.code.is_none_or(|code| matches!(code, 1040 | 1205))
                || SqlCause::Lost.allows(told.phase, told.code)
        }
        None => lines.iter().all(|line| OF_TIMERS.contains(&line.end.as_str())),
    };
    is_of_timer
        && stalls.iter().any(|(from, until)| failure.ended >= *from && failure.begun <= *until + AFTER_STALL)
}

fn is_explained(failure: &Failure, lines: &[Line], disturbed: &[Disturbance]) -> bool {
    let mut touching = disturbed.iter().filter(|disturbance| disturbance.touches(failure)).peekable();
    if touching.peek().is_none() {
        return false;
    }
    // Datagrams get lost without a word.
    if failure.kind == Kind::Datagrams {
        return true;
    }
    // A GET whose backend was lost before it answered is one for another backend.
    if failure.what.starts_with("502 ") && !["/p/", "/digest"].iter().any(|it| failure.key.contains(it)) {
        return false;
    }
    // How a relayed connection was ended by its backend, Weir can't know.
    let is_relayed = matches!(failure.kind, Kind::Relay | Kind::WebSocket);
    touching.any(|disturbance| {
        lines.iter().any(|line| {
            let is_faulted = OF_BACKENDS.contains(&line.end.as_str());
            let of_it = line.backend.as_ref().map(|backend| *backend == disturbance.backend.to_string());
            (is_faulted && of_it != Some(false)) || (is_relayed && of_it == Some(true))
        })
    })
}

/// The value of a field of a line of JSON, where it is a text without escapes.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let marked = format!("\"{name}\":\"");
    let rest = &line[line.find(&marked)? + marked.len()..];
    rest.split('"').next()
}
