//! Virtual users: each sends a request, waits for the whole answer, pauses, and repeats on its own
//! connection.
//!
//! The user model is k6's (`stages` of the `ramping-vus` executor, `http.get` and `sleep`), but a user takes
//! some hundred bytes instead of k6's hundred kilobytes, and a request a few microseconds instead of its
//! hundred. So it still works where k6 needs more memory, descriptors or processor time than the machine has.
//! `weir-lab cross-check` compares both where both run.

mod answer;
mod engine;
pub mod plan;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal};

use super::LoadResult;
use crate::metric::Metric;
use crate::process::own_program;
use engine::{Counts, Engine, Tally};
use plan::Plan;

/// What a user asks for.
const PATH: &str = "/";
/// How long to wait for answers after the end; the same as k6's `gracefulStop`.
const PATIENCE: Duration = Duration::from_secs(30);
/// A part prints this when it is ready, and begins when it is told to.
const READY: &str = "ready";
const GO: &str = "go";

/// Runs the users of `plan` against `targets`, one on each in turn, split over as many processes as this
/// process's descriptor limit requires.
///
/// Err if a process can't be started or the kernel refuses an epoll. Requests that fail are counted by kind.
pub fn run(targets: &[SocketAddr], plan: &Plan) -> io::Result<LoadResult> {
    let parts = plan::processes(plan.users, descriptor_limit());
    let (tally, seconds) = if parts == 1 {
        let begins: Vec<Duration> = plan.begins(0, 1).collect();
        let start = Instant::now();
        let tally = play(targets, plan, &begins, start)?;
        (tally, start.elapsed())
    } else {
        play_split(targets, plan, parts)?
    };
    Ok(result(tally, seconds.max(plan.end())))
}

/// Runs part `part` of `parts` once told to on standard input, and prints its tally.
pub fn run_part(targets: &[SocketAddr], plan: &Plan, part: u32, parts: u32) -> io::Result<()> {
    // The parent may be killed; then nothing would read the results.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    descriptor_limit();
    let begins: Vec<Duration> = plan.begins(part, parts).collect();
    // Not `println!`, which would panic if the parent is gone.
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    if line.trim() != GO {
        return Err(io::Error::other(format!("`{line}` was said where `{GO}` was expected")));
    }
    let tally = play(targets, plan, &begins, Instant::now())?;
    writeln!(output, "{}", serde_json::to_string(&tally)?)?;
    output.flush()
}

fn play(targets: &[SocketAddr], plan: &Plan, begins: &[Duration], start: Instant) -> io::Result<Tally> {
    let host = targets.first().ok_or_else(|| io::Error::other("no target was given; one is expected"))?;
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-lab\r\n\r\n");
    Engine::new(targets, request.as_bytes(), plan.pause, PATIENCE)?.run(begins, start, plan.end())
}

/// A process that runs part of the users. Ended when dropped.
struct Part {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Part {
    fn start(targets: &[SocketAddr], plan: &Plan, part: u32, parts: u32) -> io::Result<Self> {
        let mut command = Command::new(own_program());
        command.args(arguments(targets, plan)).arg(format!("--part={part}")).arg(format!("--parts={parts}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a part of the users has no pipes"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn tally(mut self) -> io::Result<Tally> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a part of the users ended with {status}: {text}")));
        }
        serde_json::from_str(text.trim()).map_err(io::Error::other)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All parts begin together, once each is ready.
fn play_split(targets: &[SocketAddr], plan: &Plan, parts: u32) -> io::Result<(Tally, Duration)> {
    let mut all = Vec::new();
    for part in 0..parts {
        all.push(Part::start(targets, plan, part, parts)?);
    }
    for part in &mut all {
        let mut line = String::new();
        part.output.read_line(&mut line)?;
        if line.trim() != READY {
            return Err(io::Error::other(format!(
                "a part of the users said `{line}` where `{READY}` was expected"
            )));
        }
    }
    let start = Instant::now();
    for part in &mut all {
        writeln!(part.input, "{GO}")?;
    }
    let mut tally = Tally::default();
    for part in all {
        tally.add(part.tally()?);
    }
    Ok((tally, start.elapsed()))
}

/// This program's arguments that make it run `plan` against `targets`.
pub fn arguments(targets: &[SocketAddr], plan: &Plan) -> Vec<String> {
    let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
    vec![
        "load".to_owned(),
        "users".to_owned(),
        format!("--target={}", targets.join(",")),
        format!("--users={}", plan.users),
        format!("--ramp-ms={}", plan.ramp.as_millis()),
        format!("--hold-ms={}", plan.hold.as_millis()),
        format!("--pause-ms={}", plan.pause.as_millis()),
    ]
}

fn result(tally: Tally, seconds: Duration) -> LoadResult {
    let mut result = LoadResult {
        requests: tally.requests,
        bytes: tally.bytes,
        seconds: seconds.as_secs_f64(),
        errors: tally.errors,
        problem: tally.problem,
        ..LoadResult::default()
    };
    result.put_latencies(&mut listed(&tally.latencies_us));
    if let Some((least, _)) = tally.latencies_us.first_key_value() {
        result.figures.insert(Metric::LATENCY_MIN, f64::from(*least));
    }
    let late = crate::statistics::latency_percentile(&mut listed(&tally.lateness_us), 0.99);
    result.figures.extend(late.map(|late| (Metric::LOAD_LATENESS, f64::from(late))));
    result
}

/// Lists each value as often as it was counted.
fn listed(counts: &Counts) -> Vec<u32> {
    counts.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count as usize)).collect()
}

/// Raises this process's descriptor limit as far as allowed, and returns it.
pub fn descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let now = if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
        limit.maximum
    } else {
        limit.current
    };
    now.unwrap_or(u64::MAX)
}
