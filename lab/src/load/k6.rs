//! k6: its command line, its output, and the resources that it needs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;

use serde::Deserialize;

use super::LoadResult;
use super::users::plan::{Plan, processes};
use crate::contender::Tools;
use crate::metric::Metric;

/// The published script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/loads/cached-hello.js");

/// Memory that k6 takes for one virtual user and for itself (bytes), and processor time for one request
/// (seconds). Measured with k6 1.8.1 by `weir-lab cross-check`: 247 KiB, 63 MiB, 250 to 390 us; with 2000
/// users it fell behind on one core.
const BYTES_PER_USER: u64 = 250 * 1024;
const BYTES_ALONE: u64 = 100 * 1024 * 1024;
const SECONDS_PER_REQUEST: f64 = 350e-6;
/// Above this share of its core, k6 measures its own queues.
const FULL: f64 = 0.5;

/// What a load generator may use of this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// Memory that can be had (bytes).
    pub memory_bytes: u64,
    /// Descriptors one process may have.
    pub descriptors: u64,
    /// Cores the load generator may use.
    pub cores: u32,
}

impl Room {
    /// The room that there is now. Memory that can't be determined counts as none.
    pub fn here() -> Self {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            memory_bytes: parse_available(&text).unwrap_or(0),
            descriptors: super::users::descriptor_limit(),
            // Load and backends share one core.
            cores: 1,
        }
    }
}

/// `MemAvailable` of `/proc/meminfo` (bytes).
fn parse_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Why k6's own resource needs would show in the figures of `plan`; `None` if they would not.
pub fn obstacle(plan: &Plan, room: &Room) -> Option<String> {
    let memory_bytes = BYTES_ALONE + u64::from(plan.users) * BYTES_PER_USER;
    let cores = f64::from(plan.users) / plan.pause.as_secs_f64() * SECONDS_PER_REQUEST;
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    if memory_bytes > room.memory_bytes / 2 {
        // The message does not include the free memory, which differs from cell to cell: equal remarks are
        // shown once.
        let needs = gigabytes(memory_bytes);
        return Some(format!("k6 needs {needs:.1} GB of memory, more than half of what is free"));
    }
    if processes(plan.users, room.descriptors) > 1 {
        let (users, has) = (plan.users, room.descriptors);
        return Some(format!(
            "k6 needs a descriptor for each, and one process may have {has}, not {users} and more"
        ));
    }
    if cores > f64::from(room.cores) * FULL {
        return Some(format!("k6 needs {cores:.1} cores to keep up, and the load has {}", room.cores));
    }
    None
}

pub fn command(tools: &Tools, targets: &[SocketAddr], plan: &Plan) -> Vec<String> {
    let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
    let mut command: Vec<String> =
        [tools.peers.as_str(), "run", "k6", "--", "run", "--quiet", "--no-usage-report"]
            .map(str::to_owned)
            .into();
    for (name, value) in [
        ("USERS", plan.users.to_string()),
        ("TARGETS", targets.join(",")),
        ("RAMP_MS", plan.ramp.as_millis().to_string()),
        ("HOLD_MS", plan.hold.as_millis().to_string()),
        ("PAUSE_MS", plan.pause.as_millis().to_string()),
    ] {
        command.extend(["--env".to_owned(), format!("{name}={value}")]);
    }
    command.push(SCRIPT.to_owned());
    command
}

/// Whether `printed` is the output of k6 rather than of our own generator.
pub fn printed_it(printed: &str) -> bool {
    printed.contains("\"metrics\"")
}

#[derive(Deserialize)]
struct Summary {
    metrics: BTreeMap<String, Values>,
    planned_ms: f64,
}

#[derive(Deserialize)]
struct Values {
    values: BTreeMap<String, f64>,
}

/// Reads the summary that the script prints. Its times are in milliseconds.
pub fn parse(printed: &str) -> io::Result<LoadResult> {
    let problem = |what: &str| {
        io::Error::other(format!("k6 printed something else than its summary ({what}):\n{printed}"))
    };
    // A warning may precede it.
    let begin = printed.find('{').ok_or_else(|| problem("no JSON"))?;
    let summary: Summary =
        serde_json::from_str(printed[begin..].trim()).map_err(|error| problem(&error.to_string()))?;
    let value = |metric: &str, name: &str| summary.metrics.get(metric)?.values.get(name).copied();
    let sent = value("http_reqs", "count").ok_or_else(|| problem("no http_reqs"))?;
    // `passes` of this metric counts the requests that failed.
    let failed = value("http_req_failed", "passes").unwrap_or(0.0);
    let mut result = LoadResult {
        requests: (sent - failed) as u64,
        bytes: value("data_received", "count").unwrap_or(0.0) as u64,
        seconds: summary.planned_ms / 1e3,
        ..LoadResult::default()
    };
    result.fail("failed", failed as u64);
    if failed > 0.0 {
        result.problem = Some(format!("{failed} of {sent} requests failed; k6's own log says how"));
    }
    for (metric, name) in [
        (Metric::LATENCY_MIN, "min"),
        (Metric::LATENCY_MEAN, "avg"),
        (Metric::LATENCY_P50, "med"),
        (Metric::LATENCY_P90, "p(90)"),
        (Metric::LATENCY_P95, "p(95)"),
        (Metric::LATENCY_P99, "p(99)"),
        (Metric::LATENCY_P999, "p(99.9)"),
        (Metric::LATENCY_MAX, "max"),
    ] {
        result.figures.extend(value("http_req_duration", name).map(|ms| (metric, ms * 1e3)));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What k6 1.8.1 printed for 100 users over 7 s, cut down to the metrics that are read and one that is
    /// not.
    const PRINTED: &str = r#"{"planned_ms":7000,"root_group":{"name":""},"options":{"noColor":false},
        "state":{"isStdOutTTY":false,"isStdErrTTY":false,"testRunDurationMs":7998.126016},
        "metrics":{"http_reqs":{"type":"counter","contains":"default","values":{"count":699,"rate":87.39}},
        "http_req_failed":{"type":"rate","contains":"default","values":{"passes":2,"fails":697,"rate":0.0028}},
        "data_received":{"type":"counter","contains":"data","values":{"count":80385,"rate":10050.4}},
        "http_req_duration":{"type":"trend","contains":"time","values":{"p(90)":0.2937512,"p(95)":0.332593,
        "p(99)":1.5201928,"p(99.9)":6.5874,"avg":0.262184,"min":0.076784,"med":0.209902,"max":9.664037}},
        "vus":{"type":"gauge","contains":"default","values":{"value":100,"min":100,"max":100}}}}"#;

    #[test]
    fn the_summary_is_read_in_microseconds_and_failures_are_no_answers() {
        assert!(printed_it(PRINTED));
        let result = parse(PRINTED).unwrap();
        assert_eq!((result.requests, result.bytes, result.error_count()), (697, 80_385, 2));
        assert_eq!(result.errors["failed"], 2);
        assert!((result.seconds - 7.0).abs() < 1e-9, "without the last second of rest");
        let figure = |metric| result.figures[&metric];
        assert!((figure(Metric::LATENCY_MEAN) - 262.184).abs() < 1e-6);
        assert!((figure(Metric::LATENCY_P50) - 209.902).abs() < 1e-6);
        assert!((figure(Metric::LATENCY_P999) - 6587.4).abs() < 1e-6);
        assert!((figure(Metric::LATENCY_MAX) - 9664.037).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_summary_is_shown_as_it_is() {
        let error = parse("ERRO[0000] could not open script").unwrap_err().to_string();
        assert!(error.ends_with("(no JSON):\nERRO[0000] could not open script"), "{error}");
        assert!(!printed_it(r#"{"requests":1,"bytes":2,"seconds":3.0}"#));
    }

    #[test]
    fn k6_gives_way_where_memory_descriptors_or_processor_do_not_suffice() {
        let plan = |users| {
            let second = Duration::from_secs(1);
            Plan { users, ramp: second * 5, hold: second * 30, pause: second }
        };
        let ample = Room { memory_bytes: 64_000_000_000, descriptors: 1_000_000, cores: 16 };
        assert_eq!(obstacle(&plan(20_000), &ample), None);
        let told = |room| obstacle(&plan(20_000), &room).unwrap_or_default();
        assert!(
            told(Room { memory_bytes: 2_000_000_000, ..ample }).contains("5.2 GB of memory, more than half")
        );
        assert!(told(Room { descriptors: 20_000, ..ample }).contains("may have 20000"));
        assert!(told(Room { cores: 1, ..ample }).contains("7.0 cores"));
        assert_eq!(obstacle(&plan(1000), &Room { cores: 1, ..ample }), None);
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2_097_152));
        assert_eq!(parse_available("MemTotal: 9 kB\n"), None);
    }
}
